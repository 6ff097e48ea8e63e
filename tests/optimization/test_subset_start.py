"""The papers' start for large tables: the average of exact fits on neighbourhoods."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, inference, kernels
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective
from gigagp.model.means import ZeroMean
from gigagp.model.model import NOISE, Model
from gigagp.optimization import LBFGS, Adam, ParameterSpace, SubsetStart
from helpers import draw_targets, generator, new_trace, points

X = points(150, 2)
Y = draw_targets(kernels.RBF(1.0), X, 0.1)
TABLE = TrainingTable(X, Y, ZeroMean(), 2**30)


def test_neighbours_are_the_nearest():
    found = TABLE.nearest(7, 20)
    distances = (X - X[7]).norm(dim=1)
    assert 7 in found
    assert torch.equal(found, found.sort().values)
    others = np.setdiff1d(np.arange(150), found.numpy())
    assert distances[found].max() <= distances[others].min()
    assert torch.equal(TABLE.nearest(3, 150), torch.arange(150))


def test_the_average_is_over_scales():
    """One step after the start shows its starting point: the mean of the neighbourhoods' fits."""
    objective = ExactObjective(TABLE)
    start = Model(kernels.RBF(1.0, 1.0).bind(2), ZeroMean(), torch.tensor(1.0, dtype=torch.float64))
    local, trace = Adam(0.1, 20), new_trace()
    SubsetStart(Adam(steps=1), n_centroids=3, n_neighbours=30, optimizer=local).run(
        objective, start, trace, generator(4)
    )
    assert len(trace.history) == 3 * 20 + 1
    fits = []
    for centroid in torch.randperm(150, generator=generator(4))[:3]:
        near = objective.subset(objective.nearest(int(centroid), 30))
        fits.append(local.run(near, start, new_trace(), generator()).parameters())
    reached = trace.history[-1].hyperparameters
    for name in ("variance", NOISE):
        expected = torch.stack([fit[name] for fit in fits]).sqrt().mean() ** 2
        assert reached[name] == pytest.approx(float(expected), rel=1e-9)
    expected = torch.stack([fit["lengthscale"] for fit in fits]).mean(0)
    np.testing.assert_allclose(reached["lengthscale"], expected, rtol=1e-9)


@pytest.mark.parametrize("method", [inference.Exact(), inference.Iterative()], ids=["exact", "iterative"])
def test_it_is_a_better_start(method):
    optimizer = SubsetStart(Adam(steps=1), n_centroids=3, n_neighbours=50, optimizer=LBFGS())
    gp = GPRegressor(kernels.RBF(5.0, 5.0), method, optimizer, noise_variance=1.0).fit(X.numpy(), Y[:, 0].numpy())
    alone = GPRegressor(kernels.RBF(5.0, 5.0), method, Adam(steps=1), noise_variance=1.0).fit(
        X.numpy(), Y[:, 0].numpy()
    )
    assert gp.log_marginal_likelihood().value > alone.log_marginal_likelihood().value + 20


def test_known_noise_goes_with_the_neighbourhoods():
    noise = np.linspace(0.1, 1.0, 150)
    optimizer = SubsetStart(Adam(steps=2), n_centroids=2, n_neighbours=40, optimizer=Adam(steps=2))
    gp = GPRegressor(kernels.RBF(), noise_variance=noise, optimizer=optimizer, standardize=False)
    np.testing.assert_array_equal(gp.fit(X.numpy(), Y[:, 0].numpy()).noise_variance_, noise)


def test_a_neighbourhood_larger_than_the_table_is_the_table():
    start = Model(kernels.RBF(1.0, 1.0).bind(2), ZeroMean(), torch.tensor(0.1, dtype=torch.float64))
    space = ParameterSpace(start, "softplus")
    both = SubsetStart(Adam(steps=1), n_centroids=1, optimizer=Adam(steps=1))
    found = both.run(ExactObjective(TABLE), start, new_trace(), generator())
    once = Adam(steps=1).run(ExactObjective(TABLE), start, new_trace(), generator())
    twice = Adam(steps=1).run(ExactObjective(TABLE), once, new_trace(), generator())
    torch.testing.assert_close(space.encode(found), space.encode(twice))
