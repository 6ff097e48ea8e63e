from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import grid_golden as gold
from gigagp.errors import InvalidInputError, MemoryBudgetError
from gigagp.inference import Grid
from gigagp.inference.contract.saved import Saved
from gigagp.inference.grid.likelihood import GridLikelihood
from gigagp.inference.grid.posterior import GridPosterior, LowRankCovariance
from gigagp.inference.registry import restore_posterior
from gigagp.kernels import RBF
from gigagp.model.likelihoods import Gaussian
from gigagp.model.means import ConstantMean, LinearMean, Mean, ZeroMean
from gigagp.model.model import Model
from gigagp.operators.grid import GridKernel
from gigagp.operators.grid.statistics import GridStatistics, RegularGrid
from grid_golden import NOISE, TEST_POINTS, GoldenGrid

TIGHT = Grid(exact_nodes=0, tolerance=1e-9, final_tolerance=1e-9, n_samples=64, rank=13)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def posterior(settings: Grid = TIGHT, mean: Mean | None = None, budget: int = 2**30) -> GridPosterior:
    problem, mean = GoldenGrid(), mean or ZeroMean()
    statistics = GridStatistics.from_rows(problem.grid, problem.x, problem.y, settings.n_samples)
    likelihood = GridLikelihood(statistics, mean, settings, generator())
    model = Model(problem.kernel, mean, torch.tensor(NOISE, dtype=torch.float64))
    return GridPosterior.fit(likelihood, model, budget)


@pytest.mark.parametrize("settings", [TIGHT, replace(TIGHT, exact_nodes=800)], ids=["iterative", "dense"])
def test_golden_mean_and_covariance(settings: Grid) -> None:
    found = posterior(settings)
    assert torch.allclose(found.mean(TEST_POINTS)[:, 0], gold.MEAN, atol=1e-8)
    variance = gold.COVARIANCE.diagonal()
    for method in ("solve", "low_rank"):
        own = posterior(replace(settings, variance=method))
        assert torch.allclose(own.mean_and_variance(TEST_POINTS)[1], variance, atol=2e-8), method
        assert torch.allclose(own.covariance(TEST_POINTS), gold.COVARIANCE, atol=2e-8), method
    assert torch.allclose(found.mean_and_variance(TEST_POINTS, "solve")[1], variance, atol=1e-9)


def test_variances_from_samples() -> None:
    """64 samples estimate a variance to within 18 %; the prior variance is far off."""
    found = posterior().mean_and_variance(TEST_POINTS, "samples")[1]
    ratio = found / gold.COVARIANCE.diagonal()
    error = (2 / 64) ** 0.5
    assert bool(((ratio - 1).abs() < 4 * error).all())
    prior = posterior().prior_variance(TEST_POINTS)
    assert bool(((prior / gold.COVARIANCE.diagonal() - 1) > 20).all())


def test_low_rank_variances_never_understate() -> None:
    """The variance is never below the exact one (test 11 of the notes), and includes what the rank leaves out."""
    problem = GoldenGrid()
    kernel = GridKernel(problem.kernel, problem.grid)
    X = torch.linspace(0.02, 1.0, 50, dtype=torch.float64)[:, None]
    w = problem.grid.matrix(X).to_dense()
    prior = ((w @ problem.K) * w).sum(1)
    exact = prior - (w @ problem.K @ problem.W.T * torch.linalg.solve(problem.H, problem.W @ problem.K @ w.T).T).sum(1)
    points = problem.grid.matrix(TEST_POINTS).to_dense()
    previous = prior
    for rank, expected in ((4, 0.11), (8, 7.2e-5), (12, 1.4e-11)):
        found = LowRankCovariance.build(kernel, problem.statistics, NOISE, rank)
        variance = prior - (w @ found.root).square().sum(1)
        assert bool((variance >= exact - 1e-10).all())
        assert bool((variance <= previous + 1e-10).all())  # a higher rank leaves less out
        previous = variance
        whole = points @ problem.K @ points.T - points @ found.root @ (points @ found.root).T
        error = float((whole - gold.COVARIANCE).abs().max())
        assert error < max(1.1 * expected, 1e-9)
        assert error > 0.5 * expected or expected < 1e-9
    assert LowRankCovariance.build(kernel, problem.statistics, NOISE, 100).rank <= 14


@pytest.mark.slow
@pytest.mark.few(4)
@pytest.mark.parametrize("noise", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize(
    ("kind", "lengthscale"), [("repeated", 2.0), ("even", 0.2), ("even", 30.0), ("few", 0.3), ("with a gap", 3.0)]
)
def test_low_rank_variances_never_understate_on_hard_rows(kind: str, lengthscale: float, noise: float) -> None:
    random = torch.Generator().manual_seed(0)
    counts = {"repeated": 40, "even": 4000, "few": 60, "with a gap": 3000}
    x = torch.rand(counts[kind], 1, generator=random, dtype=torch.float64)
    x = {"repeated": 500 * x.repeat(50, 1), "with a gap": torch.where(x > 0.1, 150 * x, 500 * (1 - x))}.get(
        kind, 500 * x
    )
    grid = RegularGrid.around((0.0,), (500.0,), 500)
    kernel, statistics = GridKernel(RBF(lengthscale), grid), GridStatistics.from_rows(grid, x, torch.zeros_like(x))
    points = torch.cat([x[:100], torch.linspace(0, 500, 100, dtype=torch.float64)[:, None]])
    W, w, K = (part.to_dense() for part in (grid.matrix(x), grid.matrix(points), kernel))
    cross = W @ K @ w.T
    factor = torch.linalg.cholesky(W @ K @ W.T + noise * torch.eye(len(x), dtype=torch.float64))
    exact = torch.linalg.solve_triangular(factor, cross, upper=False).square().sum(0)
    found = (w @ LowRankCovariance.build(kernel, statistics, noise, 100).root).square().sum(1)
    assert bool((found <= exact + 1e-8).all())
    assert float(found.max()) > 0.01
    if kind == "repeated":  # 40 vectors span all that the rows determine
        assert float((exact - found).max()) < 1e-6
    if kind in ("repeated", "few"):
        root = LowRankCovariance.of_few_rows(kernel, statistics, noise).root
        assert root.shape[1] <= min(len(x), 60)
        # rounding of H over the noise, and that of the interpolation weights
        assert float(((w @ root).square().sum(1) - exact).abs().max()) < 1e-14 * len(x) / noise + 1e-10
        assert float((exact - found).max()) > 1e-6 or kind == "repeated"  # the control: Lanczos vectors miss some


def test_parts_of_a_low_rank_variance() -> None:
    found = posterior(replace(TIGHT, variance="low_rank", rank=4))
    parts = found.variance_parts(TEST_POINTS)
    total = found.mean_and_variance(TEST_POINTS)[1]
    assert torch.allclose(parts.mathematical + parts.computational, total, rtol=1e-12)
    assert torch.allclose(parts.mathematical, gold.COVARIANCE.diagonal(), atol=1e-8)
    assert float(parts.computational.max()) > 0.01
    with pytest.raises(InvalidInputError, match="low_rank"):
        posterior().variance_parts(TEST_POINTS)


def test_parts_of_a_variance_beyond_the_grid() -> None:
    """Beyond the grid nothing is computed: the whole prior variance is mathematical."""
    found = posterior(replace(TIGHT, variance="low_rank", rank=4, outside="prior"))
    beyond = torch.cat([TEST_POINTS + 100, TEST_POINTS[:1]])
    parts, total = found.variance_parts(beyond), found.mean_and_variance(beyond)[1]
    torch.testing.assert_close(parts.mathematical + parts.computational, total)
    torch.testing.assert_close(parts.mathematical[:3], torch.full((3,), found.kernel.variance, dtype=torch.float64))
    assert not bool(parts.computational[:3].any())
    assert float(parts.mathematical[3]) < 0.5 * found.kernel.variance  # the control: a point inside the grid


def test_samples_are_functions_with_the_posterior_covariance() -> None:
    found = posterior()
    functions = found.sample_functions(2000, generator(3))
    values = functions(TEST_POINTS)[:, 0]
    assert values.shape == (3, 2000)
    deviations = values - gold.MEAN[:, None]
    variance = gold.COVARIANCE.diagonal()
    error = ((variance[:, None] * variance + gold.COVARIANCE.square()) / 2000).sqrt()
    assert bool(((deviations @ deviations.T / 2000 - gold.COVARIANCE).abs() < 4 * error).all())
    assert bool(((deviations.mean(1) / (variance / 2000).sqrt()).abs() < 4).all())
    assert not bool(((deviations @ deviations.T / 2000 - 1.5 * gold.COVARIANCE).abs() < 4 * error).all())
    assert torch.equal(functions(TEST_POINTS), functions(TEST_POINTS))
    stored = found.sample_functions(3, generator(4))(TEST_POINTS)[:, 0]
    chosen = torch.randperm(found.deviations.shape[1], generator=generator(4))[:3]
    expected = found.mean(TEST_POINTS) + found.grid.interpolate(TEST_POINTS, found.deviations[:, chosen])
    assert torch.equal(stored, expected)


def test_a_linear_trend_is_in_the_model() -> None:
    """As in generalised least squares, adding a linear function to the targets changes only the coefficients."""
    problem = GoldenGrid()
    base = posterior(mean=LinearMean())
    statistics = GridStatistics.from_rows(problem.grid, problem.x, problem.y + 5 - 3 * problem.x[:, 0], 64)
    likelihood = GridLikelihood(statistics, LinearMean(), TIGHT, generator())
    moved = GridPosterior.fit(likelihood, base.model, 2**30)
    shift = moved.coefficients - base.coefficients
    assert torch.allclose(shift[:, 0], torch.tensor([5.0, -3.0], dtype=torch.float64), atol=1e-6)
    assert torch.allclose(moved.values, base.values, atol=1e-6)
    assert torch.allclose(moved.mean(TEST_POINTS), base.mean(TEST_POINTS) + 5 - 3 * TEST_POINTS, atol=1e-6)
    basis = LinearMean().basis(problem.x)
    solved = torch.linalg.solve(problem.H, basis)
    expected = torch.linalg.solve(basis.T @ solved, solved.T @ problem.y)
    assert torch.allclose(base.coefficients[:, 0], expected, rtol=1e-6)


def universal(points: Tensor, mean: Mean) -> Tensor:
    """Return the golden problem's covariance with unknown coefficients of the mean, by dense algebra.

    It is the limit of an increasingly vague prior on them, which shares no formula with the package.
    """
    problem = GoldenGrid()
    here = problem.grid.matrix(points).to_dense()
    vague = 1e7 * mean.basis(problem.x) @ mean.basis(problem.x).T
    across = here @ problem.K @ problem.W.T + 1e7 * mean.basis(points) @ mean.basis(problem.x).T
    prior = here @ problem.K @ here.T + 1e7 * mean.basis(points) @ mean.basis(points).T
    return prior - across @ torch.linalg.solve(problem.H + vague, across.T)


@pytest.mark.few(2)
@pytest.mark.parametrize("mean", [ConstantMean(), LinearMean()])
@pytest.mark.parametrize("exact_nodes", [0, 800])
def test_the_uncertainty_of_the_trend_is_in_the_variance(mean: Mean, exact_nodes: int) -> None:
    points = torch.tensor([[0.0], [0.21], [1.1]], dtype=torch.float64)  # the effect is largest beyond the rows
    expected = universal(points, mean)
    found = posterior(replace(TIGHT, exact_nodes=exact_nodes), mean)
    for method in ("solve", "low_rank"):
        assert torch.allclose(found.mean_and_variance(points, method)[1], expected.diagonal(), rtol=1e-4), method
    assert torch.allclose(found.covariance(points), expected, rtol=1e-4, atol=1e-6)
    known = posterior(replace(TIGHT, exact_nodes=exact_nodes)).covariance(points).diagonal()  # a control
    assert not torch.allclose(known, expected.diagonal(), rtol=0.05)
    draws = found.sample_functions(4000, generator(3))(points)[:, 0] - found.mean(points)
    error = (2 / 4000) ** 0.5
    assert bool(((draws.square().mean(1) / expected.diagonal() - 1).abs() < 4 * error).all())
    ratio = found.mean_and_variance(points, "samples")[1] / expected.diagonal()
    assert bool(((ratio - 1).abs() < 4 * (2 / 64) ** 0.5).all())


@pytest.mark.slow
def test_the_uncertainty_of_the_trend_beyond_the_grid() -> None:
    """Where only the prior is left, the uncertainty of the coefficients is added to it."""
    found = posterior(replace(TIGHT, outside="prior"), LinearMean())
    problem = GoldenGrid()
    basis = LinearMean().basis(problem.x)
    coefficients = torch.linalg.inv(basis.T @ torch.linalg.solve(problem.H, basis))
    far = LinearMean().basis(OUTSIDE[1:])
    expected = 1.5 + (far @ coefficients * far).sum(1)
    assert torch.allclose(found.mean_and_variance(OUTSIDE)[1][1:], expected, rtol=1e-5)
    draws = found.sample_functions(4000, generator(3))(OUTSIDE)[1:, 0] - found.mean(OUTSIDE)[1:]
    assert bool(((draws.square().mean(1) / expected - 1).abs() < 4 * (2 / 4000) ** 0.5).all())


def test_saved_and_restored() -> None:
    for settings in (TIGHT, replace(TIGHT, exact_nodes=800)):
        first = posterior(settings, LinearMean())
        tensors, header = first.state()
        saved = Saved(first.model, 2**30, first.solver_name(), Gaussian(), first.n_targets)
        again = restore_posterior({"kind": first.kind, **header}, {k: v.clone() for k, v in tensors.items()}, saved)
        for method in ("samples", "solve", "low_rank"):
            for mine, other in zip(
                first.mean_and_variance(TEST_POINTS, method), again.mean_and_variance(TEST_POINTS, method), strict=True
            ):
                assert torch.equal(mine, other)
        assert first.log_marginal_likelihood(generator(2)) == again.log_marginal_likelihood(generator(2))
        assert first.n_rows == again.n_rows == 40
        assert again.solver_name() == first.solver_name()


def test_log_likelihood() -> None:
    exact = posterior(replace(TIGHT, exact_nodes=800)).log_marginal_likelihood(generator())
    assert abs(exact.value - gold.LOG_LIKELIHOOD) < 1e-9
    assert exact.standard_error == 0
    estimate = posterior().log_marginal_likelihood(generator())
    assert 0.1 < estimate.standard_error < 5
    assert abs(estimate.value - gold.LOG_LIKELIHOOD) < 4 * estimate.standard_error


# Outside of the grid --------------------------------------------------------------------------------------------------

OUTSIDE = torch.tensor([[0.5], [7.0], [-3.0]], dtype=torch.float64)


def test_points_outside_are_refused() -> None:
    found = posterior()
    for ask in (found.mean, found.mean_and_variance, found.covariance, found.sample_functions(1, generator())):
        with pytest.raises(InvalidInputError, match=r"2 of 3 rows lie outside.*row 1 .*outside="):
            ask(OUTSIDE)


def test_points_outside_are_clamped() -> None:
    found = posterior(replace(TIGHT, outside="clamp"), LinearMean())
    low, high = found.grid.accepted
    edge = torch.tensor([[0.5], high, low], dtype=torch.float64)
    assert torch.allclose(found.mean(OUTSIDE), found.mean(edge), atol=1e-6)
    assert torch.allclose(found.mean_and_variance(OUTSIDE)[1], found.mean_and_variance(edge)[1], atol=1e-6)


def test_points_outside_are_the_priors() -> None:
    found = posterior(replace(TIGHT, outside="prior"))
    mean, variance = found.mean_and_variance(OUTSIDE)
    assert torch.equal(mean[1:], torch.zeros(2, 1).double())
    trend = posterior(replace(TIGHT, outside="prior"), LinearMean())
    assert torch.allclose(trend.mean(OUTSIDE)[1:], trend.trend(OUTSIDE)[1:])
    assert variance[1:].tolist() == [1.5, 1.5]
    assert torch.equal(mean[0], found.mean(OUTSIDE[:1])[0])
    covariance = found.covariance(OUTSIDE)
    assert torch.allclose(covariance[1:, 1:], found.model.kernel.block(OUTSIDE[1:], OUTSIDE[1:]))
    assert bool((covariance[0, 1:] == 0).all())
    values = found.sample_functions(500, generator(1))(OUTSIDE)[1:, 0]
    assert bool((values.var(1) / 1.5 - 1).abs().max() < 4 * (2 / 500) ** 0.5)


def test_no_points() -> None:
    found = posterior()
    for method in ("samples", "solve", "low_rank"):
        mean, variance = found.mean_and_variance(TEST_POINTS[:0], method)
        assert mean.shape == (0, 1)
        assert variance.shape == (0,)


def test_what_does_not_fit_is_refused() -> None:
    found = posterior(budget=1000)
    with pytest.raises(MemoryBudgetError, match="The covariance of 3 points"):
        found.covariance(TEST_POINTS)
    with pytest.raises(MemoryBudgetError, match="rank"):
        found.mean_and_variance(TEST_POINTS, "low_rank")
