"""The iterative objective: probes, starts, solvers, and the joint solve for all right-hand sides."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, kernels, solvers
from gigagp.inference import Exact as ExactInference
from gigagp.inference import Iterative
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import OrthogonalBasis
from gigagp.inference.gradients import Exact, Hutchinson, Pathwise
from gigagp.inference.vecchia.likelihood import typical_deviation
from gigagp.model.means import LinearMean
from gigagp.model.model import NOISE, Model
from gigagp.optimization import Auto
from gigagp.products.native_tiles import NativeTiles
from helpers import RecordingSolver, dense_posterior, draw_targets, generator, points

X = points(80, 2)
Y = draw_targets(kernels.Matern(1.5, 1.0), X, 0.1, columns=2)
MODEL = Model(kernels.Matern(1.5, 1.0, 1.0).bind(2), LinearMean(), torch.tensor(0.1, dtype=torch.float64))
FINISHED = solvers.ConjugateGradients(tolerance=1e-9)


def objective_of(settings, *, seed=0):
    return settings.objective(TrainingTable(X, Y, LinearMean(), 2**30), generator(seed))


def recorded(**settings):
    solver = RecordingSolver(FINISHED)
    return solver, objective_of(Iterative(solver=solver, **settings))


def moved(step):
    return MODEL.replace({NOISE: MODEL.noise_variance * (1 + 0.1 * step)})


def test_what_auto_means():
    resolved = Iterative().resolve()
    assert isinstance(resolved.solver, solvers.ConjugateGradients)
    assert resolved.solver.nats is not None
    assert resolved.gradient == Pathwise(n_probes=16)
    assert resolved.warm_start == "subspace"
    assert objective_of(Iterative())._warm.kind == "subspace"
    assert objective_of(Iterative(warm_start="previous"))._warm.kind == "previous"
    assert objective_of(Iterative(warm_start=False))._warm.kind == "none"
    assert "ConjugateGradients" in Iterative().describe()
    assert "warm start: none" in Iterative(warm_start=False).describe()


def test_targets_basis_and_probes_are_one_solve():
    solver, objective = recorded(gradient=Pathwise(5))
    objective.evaluate(MODEL)
    (call,) = solver.calls
    assert call.right_hand_sides.shape == (80, 2 + 3 + 5)
    assert torch.equal(call.right_hand_sides[:, :2], Y)
    basis = OrthogonalBasis.of(torch.cat([torch.ones(80, 1).double(), X], 1))
    assert torch.equal(call.right_hand_sides[:, 2:5], basis.columns)
    assert call.n_targets == 5
    assert call.initial is None
    assert objective.last_solution.value is call.solution.value


@pytest.mark.parametrize("warm_start", ["previous", "subspace"])
def test_warm_starts_freeze_probes_and_start_from_the_past(warm_start):
    solver, objective = recorded(gradient=Hutchinson(4), warm_start=warm_start)
    for step in range(3):
        objective.evaluate(moved(step))
    first, *others = (call.right_hand_sides for call in solver.calls)
    assert all(torch.equal(first, other) for other in others)
    assert [call.initial is None for call in solver.calls] == [True, False, False]
    assert objective.deterministic


def test_cold_starts_redraw_probes_and_start_from_zero():
    solver, objective = recorded(gradient=Hutchinson(4), warm_start=False)
    for step in range(3):
        objective.evaluate(moved(step))
    probes = [call.right_hand_sides[:, 5:] for call in solver.calls]
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(probes))
    assert all(call.initial is None for call in solver.calls)
    assert not objective.deterministic
    assert objective_of(Iterative(gradient=Exact(), warm_start=False)).deterministic


def test_warm_starts_save_iterations():
    def iterations(warm_start):
        solver, objective = recorded(gradient=Pathwise(4), warm_start=warm_start)
        for step in range(6):
            objective.evaluate(moved(0.05 * step))
        return sum(call.solution.iterations for call in solver.calls[1:])

    assert iterations("subspace") < iterations("previous") < iterations(False)


def test_the_same_model_again_takes_no_iteration():
    solver, objective = recorded(gradient=Pathwise(4), warm_start="previous")
    first = objective.evaluate(MODEL).gradient
    again = objective.evaluate(MODEL).gradient
    assert solver.calls[1].solution.iterations == 0
    for name, value in first.items():
        torch.testing.assert_close(again[name], value, rtol=1e-7, atol=1e-7)


def test_seeds_choose_the_probes():
    def gradient(seed):
        return objective_of(Iterative(), seed=seed).evaluate(MODEL).gradient["lengthscale"]

    assert torch.equal(gradient(1), gradient(1))
    assert not torch.equal(gradient(1), gradient(2))


def test_records_say_what_the_solves_did():
    objective = objective_of(Iterative(gradient=Pathwise(4)))
    record = objective.evaluate(MODEL).solve
    solution = objective.last_solution
    assert record.relative_residual_targets == float(solution.relative_residual[:5].max())
    assert record.relative_residual_probes == float(solution.relative_residual[5:].mean())
    assert (record.iterations, record.epochs) == (solution.iterations, solution.epochs)
    assert record.status == "CONVERGED"
    no_probes = objective_of(Iterative(gradient=Exact())).evaluate(MODEL).solve
    assert no_probes.relative_residual_probes is None
    assert no_probes.nats_probes is None


def test_the_last_solve_is_as_tight_as_it_was_asked_to_be():
    for settings, tolerance in (
        (Iterative(solver=solvers.AlternatingProjections(tolerance=0.05)), 0.05),
        (Iterative(solver=solvers.AlternatingProjections(tolerance=0.05), final_tolerance=1e-6), 1e-6),
        (Iterative(final_tolerance=1e-7), 1e-7),
    ):
        posterior = objective_of(settings).posterior(MODEL, generator())
        assert posterior.solver.tolerance == tolerance
        assert posterior.final_solve.relative_residual_targets <= tolerance


@pytest.mark.parametrize("noise", [1e-6, 1e-3, 0.1])
def test_the_automatic_last_solve_keeps_errors_below_what_rows_leave_to_predict(noise):
    """The better rows are predicted, the smaller the residual must be. What is left of it is part of the variance."""
    kernel = kernels.Matern(1.5, 1.0).bind(2)
    model = MODEL.replace({NOISE: torch.tensor(noise, dtype=torch.float64)})
    targets = draw_targets(kernel, X, noise)
    table = TrainingTable(X, targets, LinearMean(), 2**30)
    exact = dense_posterior(model.kernel, X, targets, X, noise, LinearMean().basis)
    for settings in (Iterative(), Iterative(final_tolerance=0.01)):
        posterior = settings.objective(table, generator()).posterior(model, generator())
        mean, variance = posterior.mean_and_variance(X)
        error = (mean - exact.mean).square().mean()
        assert float(error / variance.mean()) < 1.2
        if settings.final_tolerance is None:
            residual = posterior.final_solve.relative_residual_targets * float(targets.norm()) / 80**0.5
            assert residual <= min(0.06 * typical_deviation(posterior.matrix()), 0.25 * noise**0.5)
            assert float(error / exact.covariance.diagonal().mean()) < 0.1
        elif noise == 1e-6 and NativeTiles.available():
            # the control: without what is left of the solve, intervals at the rows would be too short; samples alone,
            # without neighbours, come from unfinished solves as well
            assert float(error / (variance - posterior.unsolved).mean()) > 2


@pytest.mark.parametrize(
    "solver", ["auto", solvers.AlternatingProjections(block_size=20, tolerance=1e-6), FINISHED], ids=repr
)
def test_a_linear_mean_of_inputs_that_hardly_differ(solver):
    """Its coefficients are large and cancel; what the solve leaves over is that of their sum."""
    inputs = torch.cat([X, X[:, :1] + 1e-5 * points(80, 1, seed=3)], 1)
    kernel = kernels.Matern(1.5, [2.0] * 3)
    targets = draw_targets(kernel.bind(3), inputs, 0.1)[:, 0] + 500 * (inputs[:, 2] - inputs[:, 0]) + inputs[:, 1]
    new = points(40, 3, seed=8)
    new[:, 2] = new[:, 0] + 1e-5 * new[:, 2]
    settings = {"kernel": kernel, "optimizer": None, "mean": "linear", "noise_variance": 0.1, "standardize": False}
    exact = GPRegressor(inference=ExactInference(), **settings).fit(inputs.numpy(), targets.numpy())
    assert float(exact.posterior_.coefficients.abs().max()) > 1000
    found = GPRegressor(inference=Iterative(solver), **{"kernel": kernels.Matern(nu=1.5)} | settings).fit(
        inputs.numpy(), targets.numpy()
    )
    (mean, std), (own, spread) = (gp.predict(new.numpy(), return_std=True, variance="solve") for gp in (exact, found))
    assert np.abs((own - mean) / std).max() < 0.1
    assert np.abs(spread / std - 1).max() < 0.01
    posterior = found.posterior_
    left = posterior.table.Y - posterior.trend(posterior.X) - posterior.matrix() @ posterior.target_solutions
    assert posterior.unsolved == pytest.approx(float(left.square().mean()), rel=0.05, abs=1e-14)
    assert posterior.unsolved < 1e-3 * float(std.min()) ** 2
    more = posterior.with_rows(torch.from_numpy(new.numpy()), torch.from_numpy(mean)[:, None])
    left = more.table.Y - more.trend(more.X) - more.matrix() @ more.target_solutions
    assert more.unsolved == pytest.approx(float(left.square().mean()), rel=0.05, abs=1e-14)


def test_predictions_at_the_rows_where_new_rows_can_hardly_be_predicted(monkeypatch):
    """The function is then known at the rows alone, as well as the noise allows."""
    rows, noise = points(200, 6), 1e-4
    kernel = kernels.Matern(1.5, 1.0).bind(6)
    targets = draw_targets(kernel, rows, noise)
    exact = dense_posterior(kernel, rows, targets, rows, noise)

    def errors(n_samples="auto"):
        settings = {"mean": "zero", "noise_variance": noise, "standardize": False, "random_state": 0}
        method = Iterative(n_samples=n_samples)
        gp = GPRegressor(kernels.Matern(1.5, 1.0), method, None, **settings).fit(rows.numpy(), targets[:, 0].numpy())
        mean, std = gp.predict(rows.numpy(), return_std=True)
        deviation = exact.covariance.diagonal().sqrt().numpy()
        return np.abs(mean - exact.mean[:, 0].numpy()) / deviation, std / deviation

    assert errors()[0].max() < 1
    ratio = errors(n_samples=1024)[1]  # 4.5 standard errors of a deviation from samples alone are a tenth
    assert 0.8 < ratio.min() <= ratio.max() < 1.25
    if NativeTiles.available():  # without neighbours, the preconditioner of so few rows leaves nothing to a tolerance
        monkeypatch.setattr("gigagp.inference.iterative.iterative._ERRORS_AT_ROWS", (np.inf, np.inf))  # the control
        assert errors()[0].max() > 2


def test_an_objective_of_fewer_rows():
    objective = objective_of(Iterative(gradient=Pathwise(4)))
    rows = torch.arange(0, 80, 2)
    thin = objective.thin(rows)
    assert thin.n_rows == 40
    assert thin.settings == objective.settings
    assert thin.evaluate(MODEL).value is None
    exact = objective.subset(rows)
    assert exact.n_rows == 40
    assert exact.evaluate(MODEL).value is not None


def test_learning_is_guided_by_neighbours_where_they_are_quick():
    def guide(kernel, n):
        X = torch.randn(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        table = TrainingTable(X, X.sum(1, keepdim=True).sin(), LinearMean(), 2**28)
        model = Model(kernel.bind(2), LinearMean(), torch.tensor(0.1, dtype=torch.float64))
        return Iterative().objective(table, torch.Generator().manual_seed(0)).guide(model)

    assert (guide(kernels.Matern(), 2000) is not None) == NativeTiles.available()
    assert guide(kernels.Matern(), 1999) is None  # exact subsets know as much
    assert guide(kernels.Matern() * kernels.Cosine(), 2000) is None  # not compiled


def test_steps_of_a_guide_are_scored_on_validation_rows():
    X = torch.randn(2100, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).numpy()
    y = np.sin(X.sum(1)) + 0.1 * np.random.default_rng(0).normal(size=2100)
    optimizer = Auto(subset_sizes=(50,), guide_steps=2, guide_rounds=1, guided_steps=1, middle_size=0)
    gp = GPRegressor(kernels.Matern(nu=1.5), inference=Iterative(n_samples=4), optimizer=optimizer)
    history = gp.fit(X[:2000], y[:2000], validation=(X[2000:], y[2000:])).history_
    scores = [step.validation_rmse for step in history if step.stage == "neighbours"]
    assert len(scores) == (2 if NativeTiles.available() else 0)
    assert all(score is not None and score < 0.2 for score in scores)


def test_the_amplitude_after_a_gradient_is_the_most_likely_one():
    """``r' H^-1 r / n`` by dense algebra, and the next solve has nothing left to do."""
    solver = solvers.ConjugateGradients(tolerance=1e-8)
    objective = objective_of(Iterative(solver=solver, gradient=Pathwise(4), n_samples=4))
    model = MODEL.replace({"variance": torch.tensor(5.0).double(), NOISE: torch.tensor(0.5).double()})
    assert objective.amplified(model) is model  # nothing is known yet
    objective.evaluate(model)
    found = objective.amplified(model)
    factor = float(found.noise_variance / 0.5)

    def likelihood(c):
        return dense_posterior(model.amplified(c).kernel, X, Y, X[:1], 0.5 * c, LinearMean().basis).log_likelihood

    assert likelihood(factor) > max(likelihood(1.02 * factor), likelihood(0.98 * factor), likelihood(1.0))
    posterior = objective.posterior(found, generator())
    assert posterior.final_solve.iterations == 0
    assert posterior.final_solve.setup_epochs <= 1  # the preconditioner is kept
    exact = dense_posterior(found.kernel, X, Y, X, found.noise_variance, LinearMean().basis)
    assert torch.allclose(posterior.mean(X), exact.mean, atol=1e-5)
    assert objective.amplified(model) is model  # of another model it knows nothing


def test_a_restored_objective_knows_the_amplitude_of_its_last_solve():
    settings = Iterative(solver=FINISHED, gradient=Pathwise(4), n_samples=4)
    objective, other = objective_of(settings), objective_of(settings)
    objective.evaluate(MODEL)
    moved_on = moved(1)
    objective.evaluate(moved_on)
    other.restore(MODEL, *objective.snapshot())
    found = other.amplified(moved_on)
    assert found.equals(objective.amplified(moved_on))
    assert not found.equals(moved_on)
