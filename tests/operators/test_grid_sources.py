"""Vectors ``W K_G q`` of factorised solves that carry their sources q."""

from __future__ import annotations

import pytest
import torch

from gigagp import kernels
from gigagp.errors import InvalidInputError
from gigagp.inference.grid.preconditioners.long_waves import LongWavesPreconditioner
from gigagp.operators.grid import GridKernel, GridOperator, Starts
from gigagp.operators.grid.statistics import GridStatistics, RegularGrid
from gigagp.solvers import ConjugateGradients
from grid_golden import NOISE, GoldenGrid


@pytest.fixture(scope="module")
def problem() -> GoldenGrid:
    return GoldenGrid()


@pytest.fixture(scope="module")
def operator(problem: GoldenGrid) -> GridOperator:
    # This kernel is rougher than the golden one, so that K_G can be inverted.
    kernel = GridKernel(kernels.Matern(0.5, 0.2).bind(1), problem.grid)
    return GridOperator(kernel, problem.statistics.gram, NOISE, sources=True)


def normal(m: int, s: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(m, s, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_product_has_the_source_of_its_coefficients(operator: GridOperator, problem: GoldenGrid) -> None:
    q = normal(14, 3)
    vectors = operator.lift_sources(q)
    assert len(vectors) == operator.n == 42
    K = operator.kernel.to_dense()
    torch.testing.assert_close(operator.coefficients(vectors), K @ q)
    torch.testing.assert_close(operator.adjoint(vectors), problem.S @ K @ q)
    product = operator @ vectors
    torch.testing.assert_close(operator.coefficients(product), K @ operator.sources(product))
    torch.testing.assert_close(operator.coefficients(product), K @ (problem.S @ K @ q + NOISE * q))
    # Control: the same for vectors without sources.
    plain = GridOperator(operator.kernel, operator.gram, NOISE)
    torch.testing.assert_close(plain @ vectors[:28], product[:28])


def test_residuals_of_sources_do_not_cancel(operator: GridOperator) -> None:
    """Check this for a right-hand side that is a billion times larger than the residual."""
    q, small = normal(14, 2), 1e-9 * normal(14, 2, seed=1)
    value = operator.lift_sources(q)
    right = operator @ value + operator.lift_sources(small)
    wanted = operator.lift_sources(small)
    found = operator.residual(right, value)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-14)
    torch.testing.assert_close(
        operator.coefficients(found), operator.kernel @ operator.sources(found), rtol=1e-12, atol=0
    )


def test_long_waves_keep_sources_true(operator: GridOperator) -> None:
    preconditioner = LongWavesPreconditioner(operator, torch.Generator().manual_seed(0), 5)
    vectors = operator.lift_sources(normal(14, 3))
    applied = preconditioner.apply(vectors)
    torch.testing.assert_close(operator.coefficients(applied), operator.kernel @ operator.sources(applied))
    torch.testing.assert_close(operator.adjoint(applied), operator.gram @ operator.coefficients(applied))


def test_the_start_of_long_waves_is_the_posterior_of_their_kernel(operator: GridOperator, problem: GoldenGrid) -> None:
    preconditioner = LongWavesPreconditioner(operator, torch.Generator().manual_seed(0), 5)
    pivots = preconditioner.pivots
    assert 1 <= len(pivots) == preconditioner.rank <= 5
    K = operator.kernel.to_dense()
    low_rank = K[:, pivots] @ torch.linalg.solve(K[pivots][:, pivots], K[pivots])
    H = problem.W @ low_rank @ problem.W.T + NOISE * torch.eye(40)
    y = normal(40, 2)
    cross = problem.W.T @ y
    expected = low_rank @ problem.W.T @ torch.linalg.solve(H, y)
    torch.testing.assert_close(K @ preconditioner.posterior_sources(cross), expected)
    influence = problem.W @ low_rank @ problem.W.T @ torch.linalg.inv(H)
    assert abs(preconditioner.degrees_of_freedom - float(influence.trace())) < 1e-8  # computed from W and from moments


def test_solves_end_when_the_error_is_small() -> None:
    """Check `errors` of conjugate gradients: the lengths of the last ten steps estimate the error before them."""
    grid = RegularGrid.around((0.0,), (1.0,), 80)
    x = torch.rand(400, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    statistics = GridStatistics.from_rows(grid, x, torch.sin(9 * x) + 0.1 * normal(400, 1))
    kernel = GridKernel(kernels.Matern(0.5, 0.2).bind(1), grid)
    operator = GridOperator(kernel, statistics.gram, 0.01, sources=True)
    right = operator.lift_sources(statistics.cross)
    preconditioner = LongWavesPreconditioner(operator, torch.Generator().manual_seed(0), 5)
    S, K = statistics.gram.dense(), kernel.to_dense()
    exact = torch.linalg.solve(K @ S + 0.01 * torch.eye(grid.size), K @ statistics.cross)
    steps = []
    for bound in (1e-1, 1e-3, 1e-5):
        solver = ConjugateGradients(1e-13, preconditioner=preconditioner, errors=(bound, bound))
        found = solver.solve(operator, right)
        assert found.converged
        difference = operator.coefficients(found.value) - exact
        assert float((difference * (S @ difference)).sum()) ** 0.5 < bound
        steps.append(found.iterations)
    assert steps[0] < steps[1] < steps[2]


def test_bad_arguments(operator: GridOperator, problem: GoldenGrid) -> None:
    starts = Starts(problem.statistics.cross, problem.statistics.target_squares)
    with pytest.raises(InvalidInputError, match="either sources or starts"):
        GridOperator(operator.kernel, operator.gram, NOISE, starts, sources=True)
    with pytest.raises(InvalidInputError, match="errors of ConjugateGradients must be a pair of positive numbers"):
        ConjugateGradients(errors=(1.0,))  # type: ignore[arg-type]
