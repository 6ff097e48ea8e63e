from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from gigagp.operators import DenseMatrix
from gigagp.solvers import Start, Status, StochasticGradientDescent
from gigagp.solvers.stochastic_gradient_descent import automatic_step
from matrices import generator, kernel_matrix, normal, smooth_part, spectral

# Matrices that require very different rates: nearly diagonal, smooth, noisy, and with a few rows of large noise.
KINDS = {
    "nearly diagonal": kernel_matrix(300, 10, noise=1.0, lengthscale=0.5),
    "smooth": kernel_matrix(300, 2, noise=0.05, lengthscale=3.0),
    "between": kernel_matrix(300, 4, noise=0.3),
    "uneven noise": kernel_matrix(300, 2, noise=torch.where(torch.arange(300) % 50 == 0, 30.0, 0.3).double()),
}


def test_full_batches_without_momentum_are_gradient_descent():
    matrix, b = spectral(40, 10.0), normal(40, 2)
    H, unit = matrix.to_dense(), b / b.norm(dim=0)
    step = 1.0 / float(torch.linalg.eigvalsh(H)[-1])
    value, lagged = torch.zeros_like(unit), []
    for _ in range(10):
        residual = unit - H @ value
        lagged.append(residual.norm(dim=0))
        value = value + step * residual
    # The residual in the loop is that of the iterate before the newest step, so the loop stops one step later.
    solver = StochasticGradientDescent(40, float(lagged[-1].max()) * (1 + 1e-5), learning_rate=40 * step, momentum=0.0)
    solution = replace(solver, max_epochs=10).solve(matrix, b)
    torch.testing.assert_close(solution.value, value * b.norm(dim=0))
    assert solution.iterations == 10
    assert all(float(after.max()) < float(before.max()) for before, after in itertools.pairwise(lagged))


def test_a_batch_moves_by_the_rate_over_its_rows():
    """From zero, the gradient of a row is its right-hand side."""
    matrix, b = spectral(40, 10.0), normal(40, 2)
    solution = StochasticGradientDescent(10, learning_rate=3.0, max_epochs=10 / 40).solve(matrix, b)
    moved = (solution.value != 0).all(1)
    assert solution.iterations == 1
    assert int(moved.sum()) == 10
    torch.testing.assert_close(solution.value[moved], 3.0 / 10 * b[moved])
    assert not solution.value[~moved].any()


def test_a_rate_below_the_bound_of_the_mean_dynamics_converges_and_one_above_diverges():
    matrix, b = spectral(50, 10.0), normal(50, 2)
    largest = float(torch.linalg.eigvalsh(matrix.to_dense())[-1])
    outcomes = {}
    for share in (0.9, 1.1):
        rate = share * 2 * (1 + 0.9) / largest * 50
        solution = StochasticGradientDescent(50, learning_rate=rate, max_epochs=2000).solve(matrix, b)
        outcomes[share] = solution
    assert outcomes[0.9].converged
    assert outcomes[1.1].status is Status.DIVERGED
    assert "learning rate" in outcomes[1.1].status.value
    assert float(outcomes[1.1].relative_residual.max()) <= 1.0 + 1e-9  # the best iterate was kept
    assert outcomes[1.1].detail["learning_rate"] == pytest.approx(1.1 * 3.8 / largest * 50)


@pytest.mark.few(2)
@pytest.mark.parametrize("matrix", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize(("batch_size", "momentum"), [(15, 0.9), (60, 0.9), (300, 0.9), (15, 0.0)])
def test_the_rate_is_found_and_is_near_the_best_one(matrix, batch_size, momentum):
    b = normal(300, 3)
    solver = StochasticGradientDescent(batch_size, 0.1, momentum=momentum, max_epochs=500)
    found = solver.solve(matrix, b, generator=generator())
    assert found.converged
    assert found.detail["halvings"] <= 1
    rate = found.detail["learning_rate"] * 2 ** found.detail["halvings"]
    by_hand = [
        replace(solver, learning_rate=factor * rate).solve(matrix, b, generator=generator())
        for factor in (0.3, 0.6, 1.5, 3.0)
    ]
    best = min(solution.epochs for solution in [*by_hand, found] if solution.converged)
    assert found.epochs <= 2.5 * best + 1


def test_no_single_multiple_of_the_largest_eigenvalue_is_right():
    # The automatic rate uses information that a rule c / mu_max does not have.
    multiples = {}
    for name in ("nearly diagonal", "smooth"):
        matrix = KINDS[name]
        step, _ = automatic_step(matrix, 30, 0.9, generator())
        rows = torch.randperm(300, generator=generator())[:30]
        multiples[name] = step * float(torch.linalg.eigvalsh(matrix.block(rows, rows))[-1])
    assert multiples["smooth"] > 5 * multiples["nearly diagonal"]


def test_a_rate_that_was_found_too_high_is_halved(monkeypatch):
    import gigagp.solvers.stochastic_gradient_descent as module

    def too_high(*arguments):
        step, epochs = automatic_step(*arguments)
        return 20 * step, epochs

    monkeypatch.setattr(module, "automatic_step", too_high)
    matrix, b = KINDS["between"], normal(300, 3)
    solution = StochasticGradientDescent(60, 0.05).solve(matrix, b, generator=generator())
    assert solution.converged
    assert solution.detail["halvings"] >= 2


def test_the_running_residual_of_a_warm_start_is_that_of_its_guess():
    # Trap 5: a residual that starts at b makes a warm start at the solution visit every row first (notes, test 9).
    matrix, b = kernel_matrix(400, noise=0.3), normal(400, 3)
    exact = torch.linalg.solve(matrix.to_dense(), b)
    solver = StochasticGradientDescent(20)
    assert solver.solve(matrix, b, exact, generator()).iterations == 0
    papers = Start(exact, b)
    independent = solver.solve(matrix, b, papers, generator())
    assert 4 < independent.epochs < 11
    each_once = replace(solver, sampling="epoch").solve(matrix, b, papers, generator())
    assert each_once.epochs == 1.0


def test_every_row_is_visited_once_an_epoch():
    class Recorder(DenseMatrix):
        def rows_product(self, rows, vectors):
            self.seen = [*getattr(self, "seen", []), rows]
            return super().rows_product(rows, vectors)

    for sampling, distinct in (("epoch", 103), ("independent", None)):
        matrix = Recorder(smooth_part(kernel_matrix(103)), 0.3)
        StochasticGradientDescent(20, 1e-9, max_epochs=1, sampling=sampling).solve(matrix, normal(103))
        assert all(len(rows.unique()) == len(rows) for rows in matrix.seen)
        seen = torch.cat(matrix.seen).unique()
        assert len(seen) == distinct if distinct else len(seen) < 103


def test_a_step_costs_its_rows():
    solution = StochasticGradientDescent(25, 1e-9, max_epochs=2).solve(kernel_matrix(100, noise=0.3), normal(100))
    assert solution.status is Status.BUDGET_SPENT
    assert (solution.iterations, solution.epochs) == (8, 2.0)
    assert solution.setup_epochs == pytest.approx(4 * (25 / 100) ** 2 + 1)  # the rate, and the residual at return
