"""Computational uncertainty of unfinished solves: the vectors that a solver multiplies become actions."""

from __future__ import annotations

import pytest
import torch

import gigagp
from gigagp import GPRegressor, actions, solvers
from gigagp.errors import InvalidInputError
from gigagp.inference import Iterative
from gigagp.inference.computation_aware import RecordingMatrix
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.gradients import Pathwise
from gigagp.kernels import Matern
from gigagp.model.means import ConstantMean, ZeroMean
from gigagp.model.model import Model
from helpers import dense_posterior, draw_targets, generator, points, reference_matrix
from twelve_rows import posterior_of

F64 = {"dtype": torch.float64}
KERNEL = Matern(1.5, [0.7, 1.2], 1.1).bind(2)
X, X_NEW = points(150, 2, seed=1), points(25, 2, seed=2)
Y = draw_targets(KERNEL, X, 0.05)
H = reference_matrix(KERNEL, X, 0.05)
SOLVERS = {
    "CG": solvers.ConjugateGradients(tolerance=1e-9, max_epochs=3, preconditioner=None),
    "preconditioned CG": solvers.ConjugateGradients(
        tolerance=1e-9, max_epochs=2, preconditioner=solvers.PivotedCholesky(rank=10)
    ),
    "AP": solvers.AlternatingProjections(block_size=40, tolerance=1e-9, max_epochs=2),
    "SGD": solvers.StochasticGradientDescent(batch_size=30, tolerance=1e-9, max_epochs=3),
}


def recording(mean=None, capacity=500, noise=0.05, Y=Y):
    mean = ZeroMean() if mean is None else mean
    model = Model(KERNEL, mean, torch.as_tensor(noise, **F64))
    return RecordingMatrix(model, TrainingTable(X, Y, mean, 2**30), capacity)


def solved(name, right=Y, **options):
    matrix = recording(**options)
    return matrix, SOLVERS[name].solve(matrix, right, generator=generator()).value


@pytest.mark.parametrize("name", SOLVERS)
def test_every_product_is_remembered_with_its_image(name):
    matrix, _ = solved(name, torch.cat([Y, points(150, 4, seed=5)], 1))
    assert matrix.count >= 5
    for S, image in zip(matrix._inputs, matrix._outputs, strict=True):
        torch.testing.assert_close(H @ S, image, rtol=1e-9, atol=1e-9)
    S, image = matrix.actions()
    torch.testing.assert_close(S.T @ image, torch.eye(S.shape[1], **F64), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", SOLVERS)
def test_an_unfinished_solve_is_never_surer_than_a_finished_one(name):
    matrix, solution = solved(name, torch.cat([Y, points(150, 4, seed=5)], 1))
    exact = dense_posterior(KERNEL, X, Y, X_NEW, 0.05).covariance.diagonal()
    few = matrix.posterior("2 epochs")
    before = few.mean_and_variance(X_NEW)[1]
    assert bool((before >= exact - 1e-9).all())
    assert float(before.mean()) > 1.05 * float(exact.mean())
    assert few.solver_name() == f"{few.n_actions} dense actions (2 epochs)"
    matrix.add_blocks(solution[:, :1], 30)
    after = matrix.posterior().mean_and_variance(X_NEW)[1]
    assert bool((exact - 1e-9 <= after).all())
    assert bool((after <= before + 1e-9).all())
    assert float(after.mean()) < float(before.mean())


def test_the_mean_of_conjugate_gradients_is_kept():
    """Without a preconditioner the products span the Krylov space, so this is CaGP-CG after equally many steps."""
    matrix, solution = solved("CG")
    found = matrix.posterior()
    sequence, _ = actions.ConjugateGradients(0.0).run(matrix, Y, 3)
    expected = posterior_of(actions.DenseActions(sequence.actions), X, Y, kernel=KERNEL, noise=0.05)
    torch.testing.assert_close(found.mean(X_NEW), expected.mean(X_NEW), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found.covariance(X_NEW), expected.covariance(X_NEW), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found.target_solutions, solution, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", SOLVERS)
def test_the_solution_in_blocks_is_at_least_as_near(name):
    """The error is measured in the norm of H; the solution is the sum of its blocks."""
    matrix, solution = solved(name)
    exact = torch.linalg.solve(H, Y)

    def error(v):
        return float((v - exact).T @ H @ (v - exact))

    matrix.add_blocks(solution, 20)
    assert error(matrix.posterior().target_solutions) <= error(solution) + 1e-9


def test_means_targets_and_noise_of_each_row():
    noise = torch.linspace(0.02, 0.2, 150, **F64)
    both = torch.cat([Y, 2 * Y.flip(0)], 1) + 5
    matrix = recording(ConstantMean(), noise=noise, Y=both)
    finished = solvers.ConjugateGradients(tolerance=1e-12, max_epochs=300, preconditioner=None)
    finished.solve(matrix, torch.cat([both, torch.ones(150, 1, **F64)], 1))
    exact = dense_posterior(KERNEL, X, both, X_NEW, noise, ConstantMean().basis)
    found = matrix.posterior()
    # directions whose new part is below 1e-5 count as repetitions, which causes this error
    torch.testing.assert_close(found.mean(X_NEW), exact.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.coefficients, exact.coefficients, rtol=1e-5, atol=1e-5)


def test_the_bound_is_a_bound():
    matrix, _ = solved("CG")
    value = matrix.posterior().log_marginal_likelihood(generator()).value
    assert value < dense_posterior(KERNEL, X, Y, X_NEW, 0.05).log_likelihood


def test_capacity_keeps_the_targets_columns():
    right = torch.cat([Y, points(150, 9, seed=5)], 1)
    matrix, _ = solved("CG", right, capacity=22)
    widths = [S.shape[1] for S in matrix._inputs]
    assert widths[:3] == [10, 10, 1]
    assert matrix.count <= 22
    full, _ = solved("CG", right)
    assert full.count >= 30


def test_repeated_and_empty_products_do_no_harm():
    matrix = recording()
    with pytest.raises(InvalidInputError, match="has no product yet"):
        matrix.actions()
    vectors = points(150, 3, seed=4)
    for _ in range(3):
        matrix @ torch.cat([vectors, torch.zeros(150, 1, **F64)], 1)
    matrix @ vectors[:, 0]
    assert matrix.actions()[0].shape == (150, 3)
    with pytest.raises(InvalidInputError, match="capacity of RecordingMatrix must be at least 1"):
        recording(capacity=0)


MANY = points(700, 2, seed=8)  # more rows than clusters of a solution, so that something is left uncomputed
MANY_Y = draw_targets(KERNEL, MANY, 0.05)
EXACT = dense_posterior(KERNEL, MANY, MANY_Y, X_NEW, 0.05)


def budgeted(aware, max_epochs=3, tolerance=1e-9, dtype="float64"):
    solver = solvers.ConjugateGradients(tolerance=tolerance, max_epochs=max_epochs, preconditioner=None)
    settings = Iterative(solver, Pathwise(n_probes=16), computational_uncertainty=aware)
    estimator = GPRegressor(
        KERNEL,
        settings,
        optimizer=None,
        mean="zero",
        noise_variance=0.05,
        standardize=False,
        random_state=0,
        dtype=dtype,
    )
    return estimator.fit(MANY.numpy(), MANY_Y[:, 0].numpy())


@pytest.mark.filterwarnings("ignore::gigagp.errors.SolverWarning")
def test_the_option_of_iterative_inference_keeps_the_variance_above_the_exact_one(tmp_path):
    exact = EXACT.covariance.diagonal().sqrt().numpy()
    aware = budgeted(True)
    mean, std = aware.predict(X_NEW.numpy(), return_std=True)
    assert (std >= exact - 1e-9).all()
    assert std.mean() > 1.05 * exact.mean()
    samples = budgeted(False, max_epochs=300).predict(X_NEW.numpy(), return_std=True)[1]  # with converged solves
    assert not (samples >= exact - 1e-9).all()
    assert "what ConjugateGradients multiplied in 3 epochs" in aware.solver_
    assert "budget_spent" in aware.describe()
    aware.save(tmp_path / "model.gp")
    loaded = gigagp.load(tmp_path / "model.gp")
    assert loaded.describe() == aware.describe()
    for before, after in zip((mean, std), loaded.predict(X_NEW.numpy(), return_std=True), strict=True):
        torch.testing.assert_close(torch.from_numpy(after), torch.from_numpy(before), rtol=1e-11, atol=1e-12)


def test_where_the_solve_converges_the_option_keeps_the_mean_and_stays_above_the_variance():
    mean, std = budgeted(True, max_epochs=300).predict(X_NEW.numpy(), return_std=True)
    # directions whose new part is below 1e-5 count as repetitions
    torch.testing.assert_close(torch.from_numpy(mean), EXACT.mean[:, 0], rtol=5e-5, atol=5e-5)
    exact = EXACT.covariance.diagonal().sqrt().numpy()
    assert (std >= exact - 1e-9).all()
    assert std.mean() < 1.05 * exact.mean()


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore::gigagp.errors.SolverWarning")
@pytest.mark.parametrize("max_epochs", [3, 300])
def test_single_precision_keeps_what_double_precision_keeps(max_epochs):
    """float32 keeps most directions; it once kept only the few that float32 images distinguish, and lost the mean."""
    fits = {dtype: budgeted(True, max_epochs, 1e-5, dtype) for dtype in ("float32", "float64")}
    (narrow, narrow_std), (wide, wide_std) = (
        fits[dtype].predict(X_NEW.numpy(), return_std=True) for dtype in ("float32", "float64")
    )
    kept = {dtype: fit.posterior_.n_actions for dtype, fit in fits.items()}
    assert kept["float32"] > 0.9 * kept["float64"]  # late directions are due to its own rounding
    scale = float(MANY_Y.std())
    torch.testing.assert_close(torch.from_numpy(narrow).double(), torch.from_numpy(wide), rtol=0, atol=2e-3 * scale)
    torch.testing.assert_close(torch.from_numpy(narrow_std).double(), torch.from_numpy(wide_std), rtol=2e-2, atol=0)
    exact = EXACT.covariance.diagonal().sqrt().numpy()
    assert (narrow_std >= exact * (1 - 1e-4)).all()


def test_memory_bounds_what_is_remembered():
    model = Model(KERNEL, ZeroMean(), torch.as_tensor(0.05, **F64))
    assert RecordingMatrix(model, TrainingTable(X, Y, ZeroMean(), 2**30)).capacity == 1024
    assert RecordingMatrix(model, TrainingTable(X, Y, ZeroMean(), 2**20)).capacity == 2**20 // (4 * 16 * 150)
