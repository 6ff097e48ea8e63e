"""The paper's configuration; every row of its Table 1 runs."""

from __future__ import annotations

import pytest
import torch

from gigagp import GPRegressor, gradients, inference, kernels, optimization, solvers
from gigagp.errors import InvalidInputError
from gigagp.presets import lin2024
from helpers import draw_targets, points

X = points(120, 3)
Y = draw_targets(kernels.Matern(1.5, 1.5), X, 0.1)[:, 0]


def test_the_settings_of_the_paper():
    settings = lin2024()
    assert settings["kernel"] == kernels.Matern(1.5, 1.0, 1.0)
    assert settings["noise_variance"] == 1.0
    assert settings["mean"] == "zero"
    assert settings["optimizer"] == optimization.Adam(learning_rate=0.1, steps=100, transform="softplus")
    chosen = settings["inference"]
    assert chosen.solver == solvers.ConjugateGradients(
        tolerance=0.01, max_epochs=1000, preconditioner=solvers.PivotedCholesky(rank=100)
    )
    assert chosen.gradient == gradients.Pathwise(n_probes=64, n_features=2000, law="joint")
    assert chosen.warm_start == "previous"
    assert chosen.n_samples == 64
    assert chosen.resolve() == chosen  # it contains no choice left to the package
    assert lin2024(warm_start=False)["inference"].warm_start is False
    assert lin2024(estimator="standard")["inference"].gradient == gradients.Hutchinson(64, law="gaussian")
    projections = lin2024("ap", block_size=2000)["inference"].solver
    assert (projections.block_size, projections.partition, projections.coarse_rank) == (2000, "contiguous", 0)
    assert projections.score == "frobenius"
    descent = lin2024("sgd", sgd_learning_rate=20.0)["inference"].solver
    assert (descent.batch_size, descent.momentum, descent.learning_rate) == (500, 0.9, 20.0)
    assert descent.sampling == "independent"


@pytest.mark.parametrize("warm_start", [True, False])
@pytest.mark.parametrize("estimator", ["standard", "pathwise"])
@pytest.mark.parametrize("solver", ["cg", "ap", "sgd"])
def test_every_row_of_table_one_runs(solver, estimator, warm_start):
    settings = lin2024(solver, estimator, warm_start, steps=6, n_probes=16, block_size=30, batch_size=40)
    gp = GPRegressor(**settings).fit(X.numpy(), Y.numpy())
    assert len(gp.history_) == 6
    assert all(step.solve.status == "CONVERGED" for step in gp.history_)  # a warning would be an error here
    first = {name: torch.as_tensor(value) for name, value in gp.history_[0].hyperparameters.items()}
    assert all(torch.allclose(value, torch.ones_like(value)) for value in first.values())  # every scale starts at one
    exact = GPRegressor(**{**settings, "inference": inference.Exact()}).fit(X.numpy(), Y.numpy())
    assert gp.noise_variance_ == pytest.approx(exact.noise_variance_, rel=0.2)
    assert gp.score(X.numpy(), Y.numpy()) == pytest.approx(exact.score(X.numpy(), Y.numpy()), abs=0.03)


def test_other_names_are_refused():
    with pytest.raises(InvalidInputError, match='solver of lin2024 must be "cg", "ap" or "sgd"; got \'lu\''):
        lin2024("lu")
    with pytest.raises(InvalidInputError, match='estimator of lin2024 must be "standard" or "pathwise"'):
        lin2024(estimator="exact")
