"""The paper's configuration; every row of its Table 1 runs."""

from __future__ import annotations

import pytest
import torch

import gigagp
from gigagp import GPRegressor, gradients, inference, kernels, optimization, solvers
from gigagp.errors import InvalidInputError
from gigagp.presets import evans2020, lin2024
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


@pytest.mark.few(1)
@pytest.mark.parametrize("warm_start", [True, False])
@pytest.mark.parametrize("estimator", ["standard", "pathwise"])
@pytest.mark.parametrize("solver", ["cg", "ap", "sgd"])
def test_every_row_of_table_one_runs(solver, estimator, warm_start):
    settings = lin2024(solver, estimator, warm_start, steps=6, n_probes=16, block_size=30, batch_size=40)
    gp = GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | settings).fit(X.numpy(), Y.numpy())
    assert len(gp.history_) == 6
    assert all(step.solve.status == "CONVERGED" for step in gp.history_)  # a warning would be an error here
    first = {name: torch.as_tensor(value) for name, value in gp.history_[0].hyperparameters.items()}
    assert all(torch.allclose(value, torch.ones_like(value)) for value in first.values())  # every scale starts at one
    exact = GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | {**settings, "inference": inference.Exact()}).fit(
        X.numpy(), Y.numpy()
    )
    assert gp.noise_variance_ == pytest.approx(exact.noise_variance_, rel=0.2)
    assert gp.score(X.numpy(), Y.numpy()) == pytest.approx(exact.score(X.numpy(), Y.numpy()), abs=0.03)


def test_other_names_are_refused():
    with pytest.raises(InvalidInputError, match='solver of lin2024 must be "cg", "ap" or "sgd"; got \'lu\''):
        lin2024("lu")
    with pytest.raises(InvalidInputError, match='estimator of lin2024 must be "standard" or "pathwise"'):
        lin2024(estimator="exact")


# Evans and Nair 2020 --------------------------------------------------------------------------------------------------


def test_the_settings_of_evans_and_nair():
    settings = evans2020()
    chosen, ascent = settings["inference"], settings["optimizer"].then
    assert settings["kernel"] == kernels.RBF()
    assert settings["mean"] == "zero"
    assert (chosen.n_basis, chosen.basis_batch, chosen.row_batch, chosen.n_columns) == (100_000, 10_000, 500, 100)
    assert (chosen.n_support, chosen.control, chosen.start_rows, chosen.anchor) == (500, "as_printed", 0, False)
    assert isinstance(ascent, optimization.SparseAdaGrad)
    assert (ascent.learning_rate, ascent.hyper_learning_rate, ascent.hyper_start) == (0.1, 1e-5, 0.1)
    assert (ascent.steps, ascent.tail_share) == (100_000, 0.0)
    assert settings["optimizer"].rows == 1000
    assert evans2020(n_columns=0)["inference"].n_columns == 0
    points_of_table_3 = evans2020("inducing")["inference"]
    assert (points_of_table_3.basis, points_of_table_3.augment, points_of_table_3.prior_control) == (
        "inducing",
        True,
        True,
    )
    assert (points_of_table_3.row_batch, points_of_table_3.basis_batch, points_of_table_3.n_support) == (
        3000,
        3000,
        200,
    )
    assert evans2020("inducing")["optimizer"].then.hyper_learning_rate == 0
    machine = evans2020("relevance", n_basis=500)["inference"]
    assert isinstance(machine, inference.RelevanceVectorMachine)
    assert (machine.row_batch, machine.basis_batch, machine.n_columns, machine.n_support) == (100, 250, 10, 250)
    with pytest.raises(InvalidInputError, match='model of evans2020 must be "fourier", "inducing" or "relevance"'):
        evans2020("rbf")


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["fourier", "inducing", "relevance"])
def test_every_model_of_evans_and_nair_runs_and_is_kept_in_a_file(model, tmp_path):
    settings = evans2020(model, n_basis=120, row_batch=40, basis_batch=50, n_support=30, steps=400)
    gp = GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | settings).fit(X.numpy(), Y.numpy())
    assert gp.posterior_.from_samples
    assert gp.score(X.numpy(), Y.numpy()) > 0.5
    gp.save(tmp_path / "model.gp")
    again = gigagp.load(tmp_path / "model.gp")
    assert again.optimizer == settings["optimizer"]
    assert torch.equal(torch.as_tensor(again.predict(X.numpy())), torch.as_tensor(gp.predict(X.numpy())))
