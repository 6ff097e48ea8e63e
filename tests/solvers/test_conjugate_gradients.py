from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from gigagp.errors import InvalidInputError
from gigagp.operators import DenseMatrix
from gigagp.solvers import (
    ConjugateGradients,
    Nystrom,
    PivotedCholesky,
    RandomlyPivotedCholesky,
    Start,
    Status,
    TwoLevel,
)
from gigagp.solvers.base import column_norms
from gigagp.solvers.krylov import Lookahead, Recurrence, WeightedSum
from gigagp.solvers.truncation import ExponentialDecay, Fixed
from matrices import (
    Counting,
    Euclidean,
    Weighted,
    generator,
    kernel_matrix,
    normal,
    smooth_part,
    spectral,
    with_spectrum,
)

PLAIN = ConjugateGradients(preconditioner=None)


def energy_errors(matrix, b, solver, steps):
    """Return the energy norm of the error after each number of iterations."""
    H = matrix.to_dense()
    exact = torch.linalg.solve(H, b)
    errors = []
    for budget in range(1, steps + 1):
        error = (
            replace(solver, tolerance=1e-30, max_epochs=budget).solve(matrix, b, generator=generator()).value - exact
        )
        errors.append(float((error * (H @ error)).sum()))
    return errors


@pytest.mark.parametrize("preconditioner", [None, TwoLevel(15, 20)])
def test_the_energy_norm_of_the_error_never_grows(preconditioner):
    matrix = kernel_matrix(80)
    errors = energy_errors(matrix, normal(80, 3), ConjugateGradients(preconditioner=preconditioner), 15)
    assert errors == sorted(errors, reverse=True)


def test_it_is_exact_after_as_many_steps_as_there_are_distinct_eigenvalues():
    matrix = DenseMatrix(with_spectrum(torch.tensor([1.0, 2.0, 5.0]).double().repeat(10)))
    solution = replace(PLAIN, tolerance=1e-12).solve(matrix, normal(30, 4))
    assert solution.converged
    assert solution.iterations == 3


@pytest.mark.few(4)
@pytest.mark.parametrize("recipe", [PivotedCholesky(100), RandomlyPivotedCholesky(100), Nystrom(100), TwoLevel(50, 60)])
@pytest.mark.parametrize("noise", [0.09, 0.01])
def test_preconditioners_save_iterations(recipe, noise):
    matrix, b = kernel_matrix(400, 4, noise=noise), normal(400, 9)
    plain = PLAIN.solve(matrix, b, n_targets=1)
    better = ConjugateGradients(preconditioner=recipe).solve(matrix, b, generator=generator(), n_targets=1)
    assert better.converged
    assert better.iterations < 0.75 * plain.iterations


def test_the_two_level_preconditioner_is_far_ahead_of_the_papers():
    matrix, b = kernel_matrix(400, 3, noise=1e-3), normal(400, 9)
    counts = {
        recipe: ConjugateGradients(preconditioner=recipe).solve(matrix, b, generator=generator()).iterations
        for recipe in (PivotedCholesky(50), RandomlyPivotedCholesky(50), TwoLevel(50, 50))
    }
    assert counts[TwoLevel(50, 50)] < 0.5 * counts[PivotedCholesky(50)]
    assert counts[RandomlyPivotedCholesky(50)] <= counts[PivotedCholesky(50)]


def test_the_first_direction_is_the_preconditioned_residual():
    # Alg. 1, line 8 prints d <- b, which diverges with a preconditioner (notes, test 5).
    matrix, b = kernel_matrix(300, 4, noise=0.01), normal(300, 2)
    precondition = PivotedCholesky(100).build(matrix, generator()).apply
    results = {}
    for printed in (False, True):
        run = Recurrence(matrix, torch.zeros_like(b), b.clone(), precondition)
        if printed:
            run.direction = b.clone()
        for _ in range(60):
            run.step()
        results[printed] = float((b - matrix @ run.value).norm() / b.norm())
    assert results[False] < 1e-4
    assert not results[True] < 1e3


def test_the_inner_product_is_the_operators_own():
    K, M = with_spectrum(torch.logspace(0, -2, 40).double(), 1), with_spectrum(torch.logspace(0.5, -1, 40).double(), 2)
    operator, b = Weighted(K, M, 0.05), normal(40, 3)
    solution = replace(PLAIN, tolerance=1e-10).solve(operator, b)
    assert solution.converged
    exact = torch.linalg.solve(operator.full, b)
    torch.testing.assert_close(solution.value, exact, rtol=1e-6, atol=1e-6)
    residual = b - operator.full @ solution.value
    expected = (operator.inner(residual, residual) / operator.inner(b, b)).sqrt()
    torch.testing.assert_close(solution.relative_residual, expected, rtol=1e-2, atol=1e-13)
    # The entries of such an operator cannot be read, so "auto" means no preconditioner.
    assert ConjugateGradients().solve(operator, b).detail["preconditioner"] == "none"
    # Control: with the dot product the operator is not self-adjoint, and conjugacy is lost.
    wrong = replace(PLAIN, tolerance=1e-10, max_epochs=solution.iterations).solve(Euclidean(K, M, 0.05), b)
    assert float(wrong.relative_residual.max()) > 1e-6


def test_a_recipe_needs_entries():
    operator = Weighted(torch.eye(5).double(), torch.eye(5).double(), 0.1)
    with pytest.raises(InvalidInputError, match="Weighted has none to read"):
        ConjugateGradients(preconditioner=TwoLevel()).solve(operator, normal(5))


def test_a_preconditioner_may_be_built_once_and_used_often():
    matrix, b = kernel_matrix(100), normal(100, 2)
    built = TwoLevel(20, 25).build(matrix, generator())
    solver = ConjugateGradients(preconditioner=built)
    solution = solver.solve(matrix, b)
    fresh = ConjugateGradients(preconditioner=TwoLevel(20, 25)).solve(matrix, b, generator=generator())
    assert torch.equal(solution.value, fresh.value)
    assert solution.setup_epochs == 0
    assert fresh.setup_epochs == pytest.approx(built.epochs)
    assert solver.prepare(matrix).build(generator()) is built
    with pytest.raises(InvalidInputError, match="built for 100 rows; the operator has 20"):
        solver.solve(kernel_matrix(20), normal(20))


def test_float64_needs_no_extra_pass_to_know_its_residual():
    matrix = Counting(smooth_part(kernel_matrix(100)), 0.1)
    solution = PLAIN.solve(matrix, normal(100, 3))
    assert solution.converged
    assert matrix.products == solution.iterations  # the bound on the drift is far below the tolerance
    torch.testing.assert_close(
        solution.relative_residual,
        PLAIN.solve(matrix, normal(100, 3), Start(solution.value)).relative_residual,
        rtol=1e-9,
        atol=0,
    )


def test_float32_asks_for_the_truth_before_it_claims_convergence():
    matrix = Counting(smooth_part(kernel_matrix(100)).float(), 0.1)
    solution = replace(PLAIN, tolerance=1e-4).solve(matrix, normal(100, 3))
    assert solution.converged
    assert matrix.products == solution.iterations + 1
    assert solution.setup_epochs == 1


@pytest.mark.few(3)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-30), (torch.float32, 1e-9)])
@pytest.mark.parametrize("refresh_every", [5, 50, None])
def test_a_tolerance_out_of_reach_is_stagnation_with_the_true_residual(dtype, tolerance, refresh_every):
    matrix, b = kernel_matrix(100, noise=1e-3, dtype=dtype), normal(100, 3, dtype=dtype)
    solver = replace(PLAIN, tolerance=tolerance, refresh_every=refresh_every, max_epochs=3000)
    solution = solver.solve(matrix, b)
    assert solution.status is Status.STAGNATED
    assert "float64" in solution.status.value
    truth = (b - matrix @ solution.value).double().norm(dim=0) / b.double().norm(dim=0)
    # Both are at rounding level.
    torch.testing.assert_close(solution.relative_residual.double(), truth, rtol=1.0, atol=0)
    assert float(truth.max()) < 1e3 * torch.finfo(dtype).eps


def test_a_solve_that_stagnates_returns_nothing_worse_than_zero():
    """Beyond float64, iterations leave far more than they began with; in reach, the same solver is left as it is."""
    for lengthscale, stagnates in ((1e5, True), (0.3, False)):
        matrix = kernel_matrix(400, 2, noise=1e-16 if stagnates else 1e-2, lengthscale=lengthscale)
        b = normal(400, 3)
        solution = ConjugateGradients(tolerance=1e-6).solve(matrix, b, generator=generator())
        # Which of the two it is depends on how the processor rounds.
        assert (solution.status in (Status.STAGNATED, Status.DIVERGED)) == stagnates
        truth = (b - matrix @ solution.value).norm(dim=0) / b.norm(dim=0)
        torch.testing.assert_close(solution.relative_residual, truth)
        assert float(truth.max()) <= 1.0
        assert bool((solution.value == 0).all()) == stagnates


def test_a_matrix_that_is_not_positive_definite_stops_with_a_finite_value():
    matrix = DenseMatrix(with_spectrum(torch.cat([torch.linspace(0.5, 1, 29), torch.tensor([-0.3])]).double()))
    solution = replace(PLAIN, tolerance=1e-8).solve(matrix, normal(30, 2))
    assert solution.status is Status.STAGNATED
    assert torch.isfinite(solution.value).all()


def test_nats_stop_sooner_and_keep_their_promise():
    matrix, b = kernel_matrix(200, noise=1e-3), 3 * normal(200, 9)
    b[:, 1:] = torch.linalg.cholesky(matrix.to_dense()) @ normal(200, 8, seed=1)
    for recipe in (TwoLevel(20, 25), RandomlyPivotedCholesky(20), None):
        by_residual = ConjugateGradients(1e-6, preconditioner=recipe).solve(matrix, b, n_targets=1)
        solver = ConjugateGradients(1e-6, preconditioner=recipe, nats=(1.0, 10.0))
        by_nats = solver.solve(matrix, b, generator=generator(), n_targets=1)
        assert by_nats.converged
        assert by_nats.iterations < by_residual.iterations
        residual = b - matrix.to_dense() @ by_nats.value
        nats = 0.5 * (residual * torch.linalg.solve(matrix.to_dense(), residual)).sum(0)
        assert float(nats[0]) <= 1
        assert float(nats[1:].mean()) <= 10
        assert (by_nats.nats >= nats * (1 - 1e-6)).all()
        # Control: one step less violates the bound.
        early = replace(solver, max_epochs=by_nats.iterations - 1).solve(matrix, b, generator=generator(), n_targets=1)
        assert early.status is Status.BUDGET_SPENT
        assert float(early.nats[0]) > 1 or float(early.nats[1:].mean()) > 10


def test_weighted_increments_follow_the_same_recurrence():
    matrix, b = spectral(40), normal(40, 2)
    plain = Recurrence(matrix, torch.zeros_like(b), b.clone())
    sums = [WeightedSum(torch.zeros_like(b), b.clone()) for _ in range(2)]
    weighted = Recurrence(matrix, torch.zeros_like(b), b.clone(), sums=sums)
    iterates = [torch.zeros_like(b)]
    weights = [(1.0, 1.0), (1.5, 0.0), (3.0, 2.0)]
    for pair in weights:
        plain.step()
        iterates.append(plain.value.clone())
        weighted.step(pair)
    for total, factors in zip(sums, zip(*weights, strict=True), strict=True):
        expected = sum(w * (after - before) for w, before, after in zip(factors, iterates, iterates[1:], strict=False))
        torch.testing.assert_close(total.value, expected)
        torch.testing.assert_close(total.residual, b - matrix.to_dense() @ total.value)
    assert torch.equal(weighted.value, plain.value)
    assert torch.equal(weighted.residual, plain.residual)


@pytest.mark.parametrize("preconditioned", [False, True])
def test_steps_ahead_of_those_that_are_seen_change_nothing(preconditioned):
    matrix, b = kernel_matrix(60), normal(60, 3)
    precondition = TwoLevel(10, 15).build(matrix, generator()).apply if preconditioned else None

    def start():
        return Recurrence(matrix, torch.zeros_like(b), b.clone(), precondition)

    plain, ahead = start(), start()
    looks = Lookahead(ahead, column_norms, 5, delay=2)
    was_ahead = 0
    for number, wanted in enumerate([1, 3, 3, 3, 9, 9, 9, 9, 9, 2, 2, 4, 4]):
        lengths = column_norms(plain.direction)
        step = plain.step()
        seen = looks.look(lambda wanted=wanted: wanted, math.inf)
        assert torch.equal(seen.gamma, plain.gamma)
        assert torch.equal(seen.norms, column_norms(plain.residual))
        assert torch.equal(seen.step_norms, step.alpha * lengths)
        assert torch.equal(seen.value_norms, column_norms(plain.value))
        was_ahead += not torch.equal(ahead.value, plain.value)  # the control
        if number in (2, 7, 12):
            looks.settle()
            for name in ("value", "residual", "direction", "gamma"):
                assert torch.equal(getattr(ahead, name), getattr(plain, name))
    assert was_ahead >= 5
    assert bool(torch.isfinite(looks.moved).all())
    assert not bool(looks.failed.any())


def test_a_step_without_positive_curvature_is_seen():
    matrix = DenseMatrix(with_spectrum(torch.cat([torch.linspace(0.5, 1, 29), torch.tensor([-0.3])]).double()))
    b = normal(30, 2)
    for most in (1, 4):
        looks = Lookahead(Recurrence(matrix, torch.zeros_like(b), b.clone()), column_norms, most)
        for _ in range(40):
            looks.look(lambda: 4, math.inf)
        assert bool(looks.failed.all())
        looks.settle()
        looks.restart()
        assert not bool(looks.failed.any())


def test_numbers_that_are_not_finite_are_seen():
    matrix, b = kernel_matrix(30), normal(30, 2)
    run = Recurrence(matrix, torch.zeros_like(b), b.clone())
    looks = Lookahead(run, column_norms, 1)
    assert looks.look(lambda: 1, math.inf).finite
    run.direction[3, 1] = torch.nan
    assert not looks.look(lambda: 1, math.inf).finite
    assert not run.finite


def test_frozen_columns_stay_where_they_are():
    matrix, b = spectral(40), normal(40, 2)
    run, free = (Recurrence(matrix, torch.zeros_like(b), b.clone()) for _ in range(2))
    run.step()
    free.step()
    before = run.value.clone()
    run.frozen = torch.tensor([True, False])
    for _ in range(4):
        run.step()
        free.step()
    assert torch.equal(run.value[:, 0], before[:, 0])
    torch.testing.assert_close(run.value[:, 1], free.value[:, 1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preconditioner": "jacobi"}, "preconditioner of ConjugateGradients must be"),
        ({"nats": (1.0, 0.0)}, "nats of ConjugateGradients must be a pair of positive numbers"),
        ({"nats": (1.0,)}, "must be a pair"),
        ({"max_epochs": 0.5}, "at least 1"),
        ({"refresh_every": 0}, "refresh_every of ConjugateGradients must be an int of at least 1 or None; got 0"),
        ({"truncation": 3}, "truncation of ConjugateGradients must be one of gigagp.truncation"),
        ({"truncation": Fixed(5), "nats": (1.0, 1.0)}, "nats of ConjugateGradients must be None with a truncation"),
        ({"truncation": Fixed(50), "max_epochs": 40}, "maximum of the truncation .* at most max_epochs, 40; got 50"),
        (
            {"truncation": ExponentialDecay(0.1, 50), "max_epochs": 40},
            "minimum of the truncation .* at most max_epochs, 40; got 50",
        ),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(InvalidInputError, match=message):
        ConjugateGradients(**settings)
