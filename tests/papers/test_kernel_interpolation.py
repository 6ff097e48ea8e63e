"""Yadav et al. (2021): the package's one CG and one Lanczos against the paper's algorithms and golden numbers."""

from __future__ import annotations

import math

import pytest
import torch
from benchmarks.grid_problems import InterpolatedKernelMatrix
from torch import Tensor

import grid_golden as gold
import kernel_interpolation_reference as paper
from gigagp.kernels import RBF, Matern
from gigagp.operators.grid import GridKernel, GridOperator, RowsGram, Starts
from gigagp.operators.grid.statistics import GridStatistics, RegularGrid
from gigagp.solvers import ConjugateGradients
from gigagp.solvers.krylov import Recurrence
from gigagp.solvers.lanczos import Quadrature, lanczos, log_determinant
from grid_golden import NOISE, GoldenGrid


@pytest.fixture(scope="module")
def problem() -> GoldenGrid:
    return GoldenGrid()


def close(found: Tensor | list[float], expected: Tensor | list[float], rtol: float) -> None:
    found, expected = (torch.as_tensor(values, dtype=torch.float64) for values in (found, expected))
    assert torch.allclose(found.flatten(), expected.flatten(), rtol=rtol, atol=0), (found, expected)


def run_ours(operator: GridOperator | InterpolatedKernelMatrix, residual: Tensor, steps: int) -> paper.Run:
    """Run the package's recurrence and write down what the paper's algorithms do."""
    run = paper.Run(squared_residuals=[float(operator.inner(residual, residual))], start_weights=[1.0])
    ours = Recurrence(operator, torch.zeros_like(residual), residual.clone())
    for _ in range(steps):
        coefficients = ours.step()
        run.alpha.append(float(coefficients.alpha))
        run.beta.append(float(coefficients.beta))
        run.squared_residuals.append(float(ours.gamma))
        run.start_weights.append(float(ours.residual[-1]))
    run.solution = ours.value
    return run


# The problem and the two views of it ---------------------------------------------------------------------------------


def test_statistics_are_the_golden_ones(problem: GoldenGrid) -> None:
    statistics = problem.statistics
    assert abs(statistics.gram.trace - 32.6335403019) < 1e-9
    assert statistics.gram.nnz == 79
    close(statistics.target_squares, [21.77343901821579], 1e-13)
    close(statistics.gram.dense(), problem.S, 1e-10)
    close(statistics.cross[:3], [-0.05725712, 0.51655771, 3.81754669], 1e-6)


def test_weight_space_is_function_space(problem: GoldenGrid) -> None:
    """Theorem 1 with Eqs. (7) to (9): the two posteriors and likelihoods are one."""
    W, K, H, A, y, n, m = problem.W, problem.K, problem.H, problem.A, problem.y, 40, 14
    solved = torch.linalg.solve(H, y)
    close(K @ W.T @ solved, problem.mean_on_grid, 1e-10)
    close(problem.mean_on_grid, gold.GRID_MEAN, 1e-5)
    assert abs(float(y @ solved) - gold.DATA_FIT) < 1e-10
    assert abs(float(y @ (y - W @ problem.mean_on_grid)) / NOISE - gold.DATA_FIT) < 1e-10
    assert abs(float(torch.logdet(H)) - gold.LOG_DETERMINANT) < 1e-11
    assert abs(float(torch.logdet(A)) + (n - m) * math.log(NOISE) - gold.LOG_DETERMINANT) < 1e-11
    assert abs(float(torch.logdet(A)) - -9.06232352748522) < 1e-11
    likelihood = -0.5 * (gold.LOG_DETERMINANT + gold.DATA_FIT + n * math.log(2 * math.pi))
    assert abs(likelihood - gold.LOG_LIKELIHOOD) < 1e-11
    posterior = NOISE * torch.linalg.solve(A, K)
    close(posterior, K - K @ W.T @ torch.linalg.solve(H, W @ K), 1e-6)
    w = problem.grid.matrix(gold.TEST_POINTS).to_dense()
    close(w @ posterior @ w.T, gold.COVARIANCE, 1e-7)


@pytest.mark.parametrize(("rows", "columns"), [(6, 4), (4, 6)])
def test_claims_five_and_six(rows: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    B = torch.randn(columns, rows, generator=generator, dtype=torch.float64)
    left, right = B @ A + 30 * torch.eye(columns).double(), A @ B + 30 * torch.eye(rows).double()
    close(A @ torch.linalg.inv(left), torch.linalg.inv(right) @ A, 1e-10)
    close(torch.det(right)[None], (30.0 ** (rows - columns) * torch.det(left))[None], 1e-10)


def test_product_and_inner_product_of_factorised_vectors(problem: GoldenGrid) -> None:
    """Claims 3 and 4, for several columns with start vectors of their own."""
    generator = torch.Generator().manual_seed(1)
    z0 = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    starts = Starts(problem.W.T @ z0, z0.square().sum(0))
    operator = GridOperator(GridKernel(problem.kernel, problem.grid), problem.statistics.gram, NOISE, starts)
    a, b = (torch.randn(14, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    c, d = (torch.randn(1, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    left, right = (torch.cat([v, problem.S @ v + w * starts.cross, w]) for v, w in ((a, c), (b, d)))
    z, v = problem.W @ a + c * z0, problem.W @ b + d * z0
    close(operator.inner(left, right), (z * v).sum(0), 1e-11)
    product = operator @ left
    close(problem.W @ operator.coefficients(product) + product[-1] * z0, problem.H @ z, 1e-11)
    close(operator.adjoint(product), problem.W.T @ problem.H @ z, 1e-11)
    # a control: without the start vector's share the inner product is another
    simplified = GridOperator(operator.kernel, operator.gram, NOISE)
    assert not torch.allclose(simplified.inner(left[:-1], right[:-1]), (z * v).sum(0), rtol=1e-3)


# Conjugate gradients --------------------------------------------------------------------------------------------------


def test_all_conjugate_gradients_are_one(problem: GoldenGrid) -> None:
    W, y = problem.W, problem.y
    h, rho = W.T @ y, float(y @ y)
    zero = torch.zeros(40, dtype=torch.float64)
    ours = run_ours(problem.operator(y), problem.operator(y).start_vectors(), 7)
    baseline = InterpolatedKernelMatrix(GridKernel(problem.kernel, problem.grid), problem.x, NOISE)
    runs = {
        "paper's CG": paper.cg(problem.H, y, zero, 1e-10),
        "paper's FCG": paper.factorised_cg(problem.K, W, y, NOISE, zero, 1e-10),
        "paper's EFCG": paper.efficient_cg(paper.Problem(problem.K, problem.S, NOISE), h, rho, 1e-10),
        "ours": ours,
        "ours, rows": run_ours(baseline, y[:, None], 7),
    }
    for run in runs.values():
        close(run.alpha[:7], gold.ALPHA, 1e-8)
        close(run.beta[:7], gold.BETA, 1e-8)
        close(run.squared_residuals[:8], gold.SQUARED_RESIDUALS, 1e-8)
    for name in ("paper's FCG", "paper's EFCG", "ours"):
        close(runs[name].start_weights[:8], gold.START_WEIGHTS, 1e-8)
    # the weight of the first residual tells the solution's: c_r = 1 - noise c_x
    assert ours.solution is not None
    close(ours.start_weights[-1:], 1 - NOISE * ours.solution[-1], 1e-9)
    # the misprint's first step, whatever the data, is 1 / noise
    assert abs(ours.alpha[0] - rho / float(h @ problem.K @ h + NOISE * rho)) < 1e-14
    assert abs(ours.alpha[0] - 1 / NOISE) > 10


def test_a_start_that_is_not_zero(problem: GoldenGrid) -> None:
    x0 = torch.cos(torch.arange(40, dtype=torch.float64))
    r0 = problem.y - problem.H @ x0
    h, rho = problem.W.T @ r0, float(r0 @ r0)
    efficient = paper.efficient_cg(paper.Problem(problem.K, problem.S, NOISE), h, rho, 1e-10)
    plain = paper.cg(problem.H, problem.y, x0, 1e-10)
    factorised = paper.factorised_cg(problem.K, problem.W, problem.y, NOISE, x0, 1e-10)
    operator = problem.operator(r0)
    ours = run_ours(operator, operator.start_vectors(), 7)
    # which of the two is rounding: late residuals of the three differ by their size
    assert {plain.iterations, efficient.iterations, factorised.iterations} <= {11, 12}
    for run in (plain, factorised, efficient, ours):
        assert abs(run.alpha[0] - 0.05200903573) < 1e-10
        close(run.alpha[:7], plain.alpha[:7], 1e-9)
    assert plain.solution is not None
    assert efficient.solution is not None
    close(efficient.solution + problem.W.T @ x0, problem.W.T @ plain.solution, 1e-5)


def test_the_simplified_form_needs_statistics_alone(problem: GoldenGrid) -> None:
    """Algorithm 4 from ``x0 = y / noise``."""
    cross, K = problem.statistics.cross, problem.K
    start = -(K @ cross) / NOISE
    literal = paper.simplified_cg(paper.Problem(K, problem.S, NOISE), start[:, 0], 1e-10)
    # which of the two is rounding, which differs between processors
    assert literal.iterations in {10, 11}
    assert literal.grid_products == literal.iterations + 1
    close(literal.squared_residuals[:6], gold.SIMPLIFIED_RESIDUALS, 1e-8)
    operator = problem.operator()
    ours = run_ours(operator, operator.lift(start), 6)
    close(ours.squared_residuals[:6], gold.SIMPLIFIED_RESIDUALS, 1e-8)
    close(ours.alpha, literal.alpha[:6], 1e-9)
    plain = paper.cg(problem.H, problem.y, problem.y / NOISE, 1e-10)
    close(plain.squared_residuals[:8], literal.squared_residuals[:8], 1e-10)
    assert literal.solution is not None
    mean = K @ (literal.solution + cross[:, 0] / NOISE)
    # of the largest value: one is nearly zero, and the stop at 1e-10 leaves an error that is not
    assert float((mean - problem.mean_on_grid).abs().max()) < 1e-4 * float(problem.mean_on_grid.abs().max())
    # the covariance start, W y: cov(0.13, 0.13)
    w = problem.grid.matrix(gold.TEST_POINTS[:1]).to_dense()
    first = K @ w.T
    solution = ConjugateGradients(tolerance=1e-8, preconditioner=None).solve(operator, operator.lift(first))
    found = w @ first - first.T @ operator.adjoint(solution.value)
    assert abs(float(found) - float(gold.COVARIANCE[0, 0])) < 3e-8
    assert solution.iterations <= 12


def test_operation_counts(problem: GoldenGrid) -> None:
    """One product with K_G and one with W'W an iteration, none with W, whatever the number of rows."""
    counts = []
    for repeat in (1, 10):
        X, Y = problem.x.repeat(repeat, 1), problem.y.repeat(repeat)
        statistics = GridStatistics.from_rows(problem.grid, X, Y)
        kernel = GridKernel(problem.kernel, problem.grid)
        operator = GridOperator(
            kernel, statistics.gram, NOISE, Starts(statistics.cross, statistics.target_squares), len(X)
        )
        for steps in (3, 9):
            before = (operator.grid_products, operator.gram_products, kernel.products)
            run_ours(operator, operator.start_vectors(), steps)
            after = (operator.grid_products, operator.gram_products, kernel.products)
            assert [b - a for a, b in zip(before, after, strict=True)] == [steps] * 3
        before = operator.grid_products
        lanczos(operator, operator.start_vectors(), 8)
        assert operator.grid_products - before == 8
        counts.append((operator.grid_products, operator.gram_products, operator.n))
    assert counts[0] == counts[1]
    baseline = InterpolatedKernelMatrix(GridKernel(problem.kernel, problem.grid), problem.x, NOISE)
    run_ours(baseline, problem.y[:, None], 3)
    assert (baseline.grid_products, baseline.weight_products) == (3, 6)
    literal = paper.Problem(problem.K, problem.S, NOISE)
    run = paper.efficient_cg(literal, problem.W.T @ problem.y, float(problem.y @ problem.y), 1e-10)
    assert run.grid_products == run.gram_products == run.iterations


def test_without_forming_the_gram(problem: GoldenGrid) -> None:
    rows = RowsGram(problem.grid, problem.x)
    close(rows @ torch.eye(14, dtype=torch.float64), problem.S, 1e-12)
    close(rows.row_sums(), problem.statistics.gram.row_sums(), 1e-12)
    kernel = GridKernel(problem.kernel, problem.grid)
    starts = Starts(problem.statistics.cross, problem.statistics.target_squares)
    operator = GridOperator(kernel, rows, NOISE, starts)
    close(run_ours(operator, operator.start_vectors(), 7).alpha, gold.ALPHA, 1e-8)


def test_the_symmetrised_and_the_asymmetric_system(problem: GoldenGrid) -> None:
    from scipy.sparse.linalg import gmres

    right = problem.K @ problem.statistics.cross[:, 0]
    symmetric = paper.symmetrised(problem.K, problem.S, NOISE)
    assert float(torch.linalg.cond(symmetric)) > 1e6 * float(torch.linalg.cond(problem.H))
    errors = []
    for steps in (12, 20, 40, 80):
        run = paper.cg(symmetric, right, torch.zeros(14, dtype=torch.float64), 0.0, steps)
        assert run.solution is not None
        errors.append(float((problem.K @ run.solution - problem.mean_on_grid).abs().max()))
    assert errors[0] > 1e-4  # where the factorised form is done (11 or 12 steps)
    assert errors[-1] < 1e-9
    counted = []
    found, info = gmres(problem.A.numpy(), right.numpy(), rtol=1e-12, callback=counted.append, callback_type="pr_norm")
    assert info == 0
    assert len(counted) <= 14
    close(torch.from_numpy(found), problem.mean_on_grid, 1e-9)


def test_iteration_counts_of_both_spaces_agree() -> None:
    """Noisy sine, relative tolerance 0.01: at most two steps apart (figure 6)."""
    generator = torch.Generator().manual_seed(3)
    for n, m in ((4096, 64), (4096, 256), (16384, 1024)):
        X = torch.rand(n, 1, generator=generator, dtype=torch.float64)
        y = torch.sin(4 * math.pi * X) + 0.25 * torch.randn(n, 1, generator=generator, dtype=torch.float64)
        grid = RegularGrid.around((0.0,), (1.0,), m)
        kernel, statistics = GridKernel(RBF(0.15), grid), GridStatistics.from_rows(grid, X, y)
        starts = Starts(statistics.cross, statistics.target_squares)
        operator = GridOperator(kernel, statistics.gram, 0.0625, starts)
        solver = ConjugateGradients(tolerance=0.01, preconditioner=None)
        factorised = solver.solve(operator, operator.start_vectors())
        rows = solver.solve(InterpolatedKernelMatrix(kernel, X, 0.0625), y)
        assert factorised.converged
        assert abs(factorised.iterations - rows.iterations) <= 2


# Lanczos --------------------------------------------------------------------------------------------------------------


def test_all_lanczos_are_one(problem: GoldenGrid) -> None:
    W, unit = problem.W, problem.y / problem.y.norm()
    h = W.T @ unit
    Q, T = paper.lanczos(problem.H, problem.y, 8)
    grid_part, d, factorised = paper.factorised_lanczos(problem.K, problem.S, h, NOISE, 8)
    efficient = paper.efficient_lanczos(paper.Problem(problem.K, problem.S, NOISE), h, 8)
    operator = problem.operator(problem.y)
    ours = lanczos(operator, operator.start_vectors(), 8)
    close(torch.diagonal(T), gold.LANCZOS_DIAGONAL, 1e-8)
    close(torch.diagonal(T, 1), gold.LANCZOS_OFF_DIAGONAL, 1e-8)
    for other in (factorised, efficient[3], ours.dense()):
        assert float((other - T).abs().max()) < 1e-10
    close(d, gold.LANCZOS_START_WEIGHTS, 1e-7)
    close(ours.vectors[-1] * problem.y.norm(), gold.LANCZOS_START_WEIGHTS, 1e-7)
    whole = W @ operator.coefficients(ours.vectors) + problem.y[:, None] * ours.vectors[-1]
    for vectors in (whole, W @ grid_part + unit[:, None] * d, W @ efficient[0] + unit[:, None] * efficient[2]):
        assert float((vectors - Q).abs().max()) < 1e-9
        assert float((vectors.T @ vectors - torch.eye(8).double()).abs().max()) < 1e-10


def test_the_tridiagonal_matrix_from_conjugate_gradients(problem: GoldenGrid) -> None:
    operator = problem.operator(problem.y)
    run = run_ours(operator, operator.start_vectors(), 6)
    alpha, beta = torch.tensor(run.alpha, dtype=torch.float64), torch.tensor(run.beta, dtype=torch.float64)
    diagonal = 1 / alpha
    diagonal[1:] += beta[:5] / alpha[:5]
    close(diagonal, gold.LANCZOS_DIAGONAL[:6], 1e-8)
    close((beta[:5].sqrt() / alpha[:5]), gold.LANCZOS_OFF_DIAGONAL[:5], 1e-8)


def test_lanczos_stops_where_the_krylov_space_ends(problem: GoldenGrid) -> None:
    w = problem.grid.matrix(gold.TEST_POINTS).to_dense()
    for in_span in (False, True):
        operator = problem.operator(None if in_span else problem.y)
        start = operator.lift(problem.K @ torch.ones(14, 1).double()) if in_span else operator.start_vectors()
        found = lanczos(operator, start, 20)
        assert 12 <= found.vectors.shape[1] <= 14
        assert bool(found.vectors.isfinite().all())
        root = problem.K @ operator.adjoint(found.vectors)
        explained = w @ root @ torch.linalg.solve(found.dense(), root.T @ w.T)
        assert float((w @ problem.K @ w.T - explained - gold.COVARIANCE).abs().max()) < 1e-9
    rows = InterpolatedKernelMatrix(GridKernel(problem.kernel, problem.grid), problem.x, NOISE)
    assert lanczos(rows, problem.y[:, None], 20).vectors.shape[1] <= 15
    unguarded = lanczos(rows, problem.y[:, None], 20, breakdown=0.0)  # the control: rounding is taken for directions
    assert unguarded.vectors.shape[1] > 15


def test_lanczos_apart_from_other_vectors(problem: GoldenGrid) -> None:
    operator = problem.operator(problem.y)
    known = lanczos(operator, operator.start_vectors(), 5).vectors
    other = operator.lift(problem.K @ torch.linspace(-1, 1, 14, dtype=torch.float64)[:, None])
    found = lanczos(operator, other, 4, apart_from=known)
    both = torch.cat([known, found.vectors], 1)
    products = torch.stack([operator.inner(vector[:, None], both) for vector in both.T])
    assert found.vectors.shape[1] == 4
    assert float((products - torch.eye(9)).abs().max()) < 1e-10
    projected = torch.stack([operator.inner(vector[:, None], operator @ found.vectors) for vector in found.vectors.T])
    assert float((projected - found.dense()).abs().max()) < 1e-10
    assert lanczos(operator, known @ torch.ones(5, 1).double(), 4, apart_from=known).vectors.shape[1] == 0


def test_lanczos_stops_where_the_parts_of_vectors_drift_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many rows near each node and short waves, all eigenvalues of the Krylov space are far above the noise."""
    X = torch.rand(4000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    grid = RegularGrid.around((0.0,), (1.0,), 200)
    gram = GridStatistics.from_rows(grid, X, X).gram
    operator = GridOperator(GridKernel(RBF(0.001), grid), gram, 1e-4)
    start = operator.lift(torch.ones(grid.size, 1, dtype=torch.float64))

    def error(steps: int) -> float:
        coefficients = operator.coefficients(lanczos(operator, start, steps).vectors)
        return float((coefficients.T @ (gram @ coefficients) - torch.eye(coefficients.shape[1])).abs().max())

    assert error(100) < 1e-5
    monkeypatch.setattr("gigagp.solvers.lanczos._DRIFT", math.inf)  # the control
    assert error(100) > 0.1


def test_quadrature_of_a_fixed_probe(problem: GoldenGrid) -> None:
    z = (-1.0) ** torch.arange(40, dtype=torch.float64)
    operator = problem.operator(z)
    quadrature = Quadrature(operator, operator.start_vectors())
    found = []
    for _ in range(5):
        quadrature.step()
        quadrature.step()
        found.append(40 * float(quadrature.values()))
    close(found, [-89.38640924, -93.38697826, -94.21904362, -94.34328589, -94.34335908], 1e-8)
    values, vectors = torch.linalg.eigh(problem.H)
    close(found[-1:], [float(((vectors.T @ z).square() * values.log()).sum())], 1e-8)


def test_log_determinant_from_probes_of_the_rows(problem: GoldenGrid) -> None:
    generator = torch.Generator().manual_seed(0)
    Z = torch.randint(0, 2, (40, 1000), generator=generator).double() * 2 - 1
    starts = Starts(problem.W.T @ Z, Z.square().sum(0))
    kernel = GridKernel(problem.kernel, problem.grid)
    operator = GridOperator(kernel, problem.statistics.gram, NOISE, starts, 40)
    found = log_determinant(operator, None, starts=operator.start_vectors())
    assert 0.2 < found.standard_error < 0.8
    assert abs(found.value - gold.LOG_DETERMINANT) < 4 * found.standard_error
    # a control: probes on the grid's nodes estimate the determinant of another matrix
    wrong = GridOperator(kernel, problem.statistics.gram, NOISE, starts, 14)
    other = log_determinant(wrong, None, starts=wrong.start_vectors())
    assert abs(other.value - gold.LOG_DETERMINANT) > 20 * other.standard_error


# Interpolation --------------------------------------------------------------------------------------------------------


def test_finer_grids_approach_the_exact_model() -> None:
    """Test 14 of the notes: third order."""
    errors = []
    for spacing, count, expected in ((0.1, 14, 1.17e-2), (0.05, 24, 1.10e-3), (0.025, 44, 1.25e-4)):
        finer = GoldenGrid(spacing=spacing, n_nodes=count)
        exact = finer.kernel.block(finer.x, finer.x)
        errors.append(float((exact - finer.W @ finer.K @ finer.W.T).abs().max()))
        assert abs(errors[-1] / expected - 1) < 0.01
    assert 6 < errors[0] / errors[1] < 14


def test_memory_never_exceeds_the_bound() -> None:
    """``nnz(W'W) + 2 m`` against ``nnz(W) + m + n`` (Table 1), and at most 7^d entries a row."""
    generator = torch.Generator().manual_seed(0)
    for d, shape in ((1, (30,)), (2, (14, 15)), (3, (11, 11, 11))):
        X = torch.rand(4000, d, generator=generator, dtype=torch.float64)
        grid = RegularGrid.around((0.0,) * d, (1.0,) * d, shape)
        gram, rows = GridStatistics.from_rows(grid, X, X[:, 0]).gram, RowsGram(grid, X)
        assert rows.nnz == 4**d * 4000
        assert gram.nnz <= 7**d * grid.size
        assert int((gram.dense() != 0).sum(1).max()) == min(7**d, grid.size)
        ratio = (gram.nnz + 2 * grid.size) / (rows.nnz + grid.size + 4000)
        assert ratio <= (7**d * grid.size + 2 * grid.size) / (4**d * 4000 + grid.size + 4000)


def test_samples_of_the_prior(problem: GoldenGrid) -> None:
    """Test 20: the covariance of many draws, within four standard errors; another kernel's is not."""
    kernel = GridKernel(problem.kernel, problem.grid)
    n = 20_000
    draws = problem.W @ kernel.sample(n, torch.Generator().manual_seed(0))
    expected = problem.W @ problem.K @ problem.W.T
    variance = expected.diagonal()
    error = ((variance[:, None] * variance + expected.square()) / n).sqrt()

    def worst(covariance: Tensor) -> float:
        return float(((draws @ draws.T / n - covariance) / error).abs().max())

    assert worst(expected) < 4.5  # 1,600 entries
    rough = Matern(1.5, 0.2, 1.5).bind(1).block(problem.grid.nodes(), problem.grid.nodes())
    assert worst(problem.W @ rough @ problem.W.T) > 10
