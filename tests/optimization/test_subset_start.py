"""Starts on some of the rows: the papers' average of exact fits on neighbourhoods, and subsets that grow."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, inference, kernels
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective
from gigagp.model.means import ZeroMean
from gigagp.model.model import NOISE, Model
from gigagp.optimization import LBFGS, Adam, ParameterSpace, SubsetFirst, SubsetStart
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


@pytest.mark.few(1)
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


def test_a_third_of_the_rows_leaves_few_steps_for_all(monkeypatch):
    x = points(600, 2)
    objective = ExactObjective(TrainingTable(x, draw_targets(kernels.RBF(1.0), x, 0.1), ZeroMean(), 2**30))
    start = Model(kernels.RBF([6.0, 0.2], 9.0).bind(2), ZeroMean(), torch.tensor(1.0, dtype=torch.float64))

    def run():
        trace = new_trace()
        found = SubsetFirst(600, tolerance=1e-5).run(objective, start, trace, generator(0))
        return objective.evaluate(found).value, [step.stage for step in trace.history]

    value, stages = run()
    assert sorted(set(stages)) == ["likelihood, 200 rows", "likelihood, 600 rows"]
    assert stages == sorted(stages)
    monkeypatch.setattr(SubsetFirst, "_counts", staticmethod(lambda rows: (rows,)))
    directly, steps = run()
    assert value == pytest.approx(directly, abs=600 * 1e-4)
    assert stages.count("likelihood, 600 rows") < len(steps) / 2
