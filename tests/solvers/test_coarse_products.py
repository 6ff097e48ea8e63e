"""Loops whose products are less precise than the matrix (`LinearOperator.fast`), down to too coarse for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gigagp.operators import DenseMatrix
from gigagp.solvers import AlternatingProjections, ConjugateGradients, Status, StochasticGradientDescent, TwoLevel
from gigagp.solvers import base as parts
from matrices import generator, kernel_matrix, normal, smooth_part

N, NOISE = 120, 0.05
SOLVERS = {
    "cg": ConjugateGradients(tolerance=1e-6, preconditioner=None, max_epochs=400),
    "cg two-level": ConjugateGradients(tolerance=1e-6, preconditioner=TwoLevel(10, 20), max_epochs=400),
    "ap": AlternatingProjections(block_size=20, coarse_rank=10, tolerance=1e-4, max_epochs=400),
    "sgd": StochasticGradientDescent(batch_size=30, tolerance=1e-2, max_epochs=2000),
}
every_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())


class Rounded(DenseMatrix):
    """A matrix that says that its products are rounded."""

    rounding = 1e-3


class Perturbed(DenseMatrix):
    """A matrix whose fast products are those of a matrix that differs from it by ``error`` in norm."""

    def __init__(self, error: float) -> None:
        super().__init__(smooth_part(kernel_matrix(N, 1, noise=NOISE)), NOISE)
        self.wrong = self.matrix + error * rough()

    @property
    def fast(self) -> DenseMatrix:
        return Rounded(self.wrong, NOISE)


def rough() -> torch.Tensor:
    """Return a symmetric matrix of norm one that no eigenvector knows."""
    found = normal(N, N, seed=9)
    found = found + found.T
    return found / torch.linalg.matrix_norm(found, 2)


def sides(matrix: DenseMatrix) -> torch.Tensor:
    """Return draws of N(0, H)."""
    return torch.linalg.cholesky(matrix.to_dense()) @ normal(N, 4)


def true_residual(matrix: DenseMatrix, value: torch.Tensor, b: torch.Tensor) -> float:
    return float(((b - matrix.to_dense() @ value).norm(dim=0) / b.norm(dim=0)).max())


@pytest.mark.each
@every_solver
@pytest.mark.parametrize("error", [1e-5, 0.2, 5.0])
def test_the_answer_is_that_of_the_matrix_for_any_error_of_its_products(solver, error):
    """The least eigenvalue is the noise: an error of four times that makes the other matrix indefinite."""
    matrix = Perturbed(error)
    b = sides(matrix)
    solution = solver.solve(matrix, b, generator=generator())
    assert solution.status is Status.CONVERGED
    assert true_residual(matrix, solution.value, b) <= solver.tolerance
    assert solution.widened == (error > NOISE)
    plain = solver.solve(DenseMatrix(matrix.matrix, NOISE), b, generator=generator())
    assert not plain.widened
    assert solution.iterations <= 1.3 * plain.iterations + 20


@every_solver
def test_without_the_check_they_find_nothing(solver, monkeypatch):
    """The control: the same loops, which never take the matrix itself."""
    monkeypatch.setattr(parts.Problem, "take_exact", lambda self: None)
    matrix = Perturbed(5.0)
    solution = replace(solver, max_epochs=100).solve(matrix, sides(matrix), generator=generator())
    assert solution.status is not Status.CONVERGED


def test_products_that_are_precise_enough_cost_few_exact_ones():
    matrix = Perturbed(1e-5)
    b = sides(matrix)
    solution = SOLVERS["cg two-level"].solve(matrix, b)
    assert solution.iterations > 10
    assert solution.setup_epochs - 1 <= 4  # the build of the preconditioner is less than one
