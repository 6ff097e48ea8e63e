"""Grid inference on rows with gaps: neighbours among nodes against dense algebra, and nodes on the rows' lattice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from gigagp import GPRegressor, inference, kernels
from gigagp.errors import GigaGPWarning, InvalidInputError
from gigagp.inference.grid.iterative import has_empty_nodes, has_holes, iterative_system
from gigagp.inference.grid.nodes_system import NodesGridSystem
from gigagp.inference.grid.objective import choose_grid, lattice_grid
from gigagp.inference.grid.preconditioners.nodes import NodesPreconditioner
from gigagp.inference.grid.system import SolveSettings
from gigagp.kernels import Kernel
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from gigagp.operators.grid import GridKernel, GridOperator
from gigagp.operators.grid.statistics import GridStatistics, RegularGrid
from gigagp.products import NativeTiles


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def lattice(*shape: int) -> Tensor:
    axes = [torch.arange(count, dtype=torch.float64) for count in shape]
    return torch.cartesian_prod(*axes).reshape(-1, len(shape))


def uniform(n: int, d: int, side: float, seed: int = 0) -> Tensor:
    return side * torch.rand(n, d, generator=generator(seed), dtype=torch.float64)


def around(X: Tensor) -> RegularGrid:
    """Return the grid of unit steps over rows, with nodes at whole numbers."""
    low, high = X.amin(0).floor(), X.amax(0).ceil()
    shape = (high - low + 5).int().tolist()
    return RegularGrid(tuple((low - 2).tolist()), (1.0,) * X.shape[1], tuple(shape))


def rows(name: str) -> Tensor:
    """Return rows for a grid of unit steps."""
    plane, draw = lattice(18, 17), torch.rand(18 * 17, generator=generator(1))
    if name == "lattice with a hole":
        return plane[(plane - 8).norm(dim=1) > 5]
    if name == "random quarter of a lattice":
        return plane[draw < 0.25]
    if name == "half of a lattice":
        return plane[: len(plane) // 2]
    if name == "lattice in float32":
        return (plane[draw < 0.5] * np.float64(np.float32(1 / 24)) * 24).float().double()
    if name == "record":
        return lattice(300)[torch.rand(300, generator=generator(2)) < 0.3]
    if name == "volume":
        return lattice(7, 6, 8)[torch.rand(7 * 6 * 8, generator=generator(3)) < 0.5]
    if name == "many rows in one node":
        return torch.cat([plane[draw < 0.3], plane[40].expand(500, 2)])
    if name == "between nodes":
        X = uniform(400, 2, 16.0)
        return X[(X - 9).norm(dim=1) > 4]
    if name == "clumps":
        return torch.cat([uniform(150, 2, 1.5, k) + 4.0 * k for k in range(4)])
    if name == "densities":  # 1,000, 10 and 0.1 rows in a cell
        return torch.cat([uniform(3000, 2, 1.7), uniform(90, 2, 3.0, 1) + 4, uniform(15, 2, 12.0, 2) + 5])
    assert name == "far apart"  # in the middles of cells, where no node has much of a row
    return 4 * lattice(5, 4) + 0.5


ON_NODES = (
    "lattice with a hole",
    "random quarter of a lattice",
    "half of a lattice",
    "lattice in float32",
    "record",
    "volume",
    "many rows in one node",
)
BETWEEN = ("between nodes", "clumps", "densities", "far apart")


class Problem:
    """Rows on a grid with all matrices dense."""

    def __init__(self, name: str, noise: float, lengthscale: float = 3.0, kernel: Kernel | None = None) -> None:
        self.X, self.noise = rows(name), noise
        self.grid = around(self.X)
        g = generator(7)
        self.Y = torch.sin(self.X[:, :1] / 2) + noise**0.5 * torch.randn(len(self.X), 1, generator=g).double()
        self.statistics = GridStatistics.from_rows(self.grid, self.X, self.Y, n_probes=8)
        self.kernel = GridKernel(kernel or kernels.Matern(1.5, lengthscale), self.grid)
        self.W = self.grid.matrix(self.X).to_dense()
        self.H = self.W @ self.kernel.to_dense() @ self.W.T + noise * torch.eye(len(self.X), dtype=torch.float64)

    def system(self, tolerance: float, steps: int = 500) -> NodesGridSystem:
        settings = SolveSettings(tolerance, tolerance, steps, "vecchia")
        found = iterative_system(self.kernel, self.statistics, self.noise, settings)
        assert isinstance(found, NodesGridSystem)
        return found


@pytest.mark.few(2)
@pytest.mark.parametrize("noise", [1e-2, 10.0])
@pytest.mark.parametrize("name", ON_NODES + BETWEEN)
def test_solves_are_those_of_dense_algebra(name: str, noise: float) -> None:
    problem = Problem(name, noise)
    right = torch.cat([problem.Y, torch.ones_like(problem.Y), torch.zeros_like(problem.Y)], 1)
    cross, exact = problem.W.T @ right, torch.linalg.solve(problem.H, right)
    q = problem.W.T @ exact
    slope = problem.kernel.gradient(q, q)["lengthscale"]
    errors = []
    for tolerance in (0.1, 1e-8):  # an iteration more or less changes the errors several times
        system = problem.system(tolerance)
        solved = system.solve(cross)
        assert solved.solution is not None
        assert solved.solution.converged
        difference = solved.adjoint - q
        # the error in the norm of K_G is relative to that of the solution
        size = (q * (problem.kernel @ q)).sum(0).sqrt().clamp_min(1e-300)
        relative = (difference * (problem.kernel @ difference)).sum(0).clamp_min(0).sqrt() / size
        errors.append(float(relative[:2].max()))
        assert float(solved.values[:, 2].abs().max()) == 0.0
    assert errors[0] < (0.5 if name in ON_NODES else 3.0)
    assert errors[1] < 1e-6
    scale = solved.values.abs().max()
    assert torch.allclose(solved.values, problem.kernel.to_dense() @ q, atol=1e-6 * scale)
    assert torch.allclose(solved.gram_values, problem.statistics.gram @ solved.values)
    forms = system.quadratic(cross, right.T @ right, solved)
    assert torch.allclose(forms, right.T @ exact, rtol=1e-8, atol=1e-8)
    norms = system.squared_norms(right.square().sum(0), cross, solved)
    assert torch.allclose(norms, exact.square().sum(0), rtol=1e-5)
    own = system.gradient(solved, torch.ones(3, dtype=torch.float64))["lengthscale"]
    assert torch.allclose(own, slope, rtol=1e-5)
    again = system.solve(cross, initial=solved.dual)
    assert again.solution is not None
    assert again.solution.iterations == 0
    # the bounds tell a system with 1 % more noise from this one
    problem.noise *= 1.01
    difference = problem.system(1e-7).solve(cross).adjoint - q
    assert float((difference * (problem.kernel @ difference)).sum(0).sqrt()[0] / size[0]) > 1e-4


@pytest.mark.parametrize(("name", "counts"), [("lattice with a hole", (1, 2, 4)), ("between nodes", (30, 45, 60))])
def test_data_fits_of_unfinished_solves_have_a_second_order_error(name: str, counts: tuple[int, ...]) -> None:
    """The computed data fit is below the exact one, because the solves maximise a function with that maximum."""
    problem = Problem(name, 0.01)
    exact = float(problem.Y.T @ torch.linalg.solve(problem.H, problem.Y))
    errors = []
    for steps in counts:
        system = problem.system(1e-12, steps)
        solved = system.solve(problem.statistics.cross)
        assert solved.solution is not None
        assert not solved.solution.converged
        products = problem.Y.T @ problem.Y
        errors.append(float(system.quadratic(problem.statistics.cross, products, solved)) / exact - 1)
        first = float(solved.solution.relative_residual[0])
        assert -2 * first**2 - 1e-9 < errors[-1] < 1e-9
    assert abs(errors[2]) < 0.1 * abs(errors[0])


@pytest.mark.parametrize("name", ON_NODES + BETWEEN)
def test_the_preconditioner_is_symmetric_and_positive_on_the_span(name: str) -> None:
    problem = Problem(name, 0.01)
    operator = GridOperator(problem.kernel, problem.statistics.gram, problem.noise)
    built = NodesPreconditioner(operator)
    assert built.on_nodes == (name in ON_NODES)
    vectors = operator.lift(torch.randn(operator.m, 6, generator=generator(), dtype=torch.float64))
    applied = built.apply(vectors)
    m = operator.m
    assert torch.allclose(applied[m:], problem.statistics.gram @ applied[:m])
    forms = vectors[:m].T @ applied[m:]
    assert torch.allclose(forms, forms.T, rtol=1e-8, atol=1e-8 * float(forms.abs().max()))
    assert float(torch.linalg.eigvalsh(forms + forms.T).min()) > 0
    assert "neighbours among" in built.describe()
    for refused in (built.log_determinant, lambda: built.transform_normal(vectors)):
        with pytest.raises(NotImplementedError, match=r"not known|cannot be sampled"):
            refused()


def test_the_preconditioner_is_exact_where_every_node_has_all_neighbours() -> None:
    """With at most 11 nodes of a record, rows on nodes leave nothing to approximate; rows between nodes do."""
    found = {}
    for name, shift in (("on", 0.0), ("between", 0.3)):
        X = lattice(30)[::3] + shift  # 10 rows
        X = torch.cat([X, X[:5], X[:2]])
        statistics = GridStatistics.from_rows(around(X), X, X[:, 0])
        operator = GridOperator(GridKernel(kernels.Matern(1.5, 4.0), statistics.grid), statistics.gram, 0.1)
        built = NodesPreconditioner(operator)
        vectors = operator.lift(torch.randn(operator.m, 3, generator=generator(), dtype=torch.float64))
        back = operator.coefficients(built.apply(operator @ vectors))
        W = statistics.grid.matrix(X).to_dense()
        found[name] = float((W @ (back - vectors[: operator.m])).abs().max())
    assert found["on"] < 1e-8 < 1e-2 < found["between"]


@pytest.mark.parametrize("name", ["lattice with a hole", "between nodes"])
def test_explained_covariances_and_determinants_are_those_of_dense_algebra(name: str) -> None:
    problem = Problem(name, 0.05)
    smooth = problem.kernel.to_dense()[:, 30:40]
    exact = (problem.W @ smooth).T @ torch.linalg.solve(problem.H, problem.W @ smooth)
    found = problem.system(1e-6).explained(smooth)
    assert torch.allclose(found, exact, rtol=1e-4, atol=1e-5)
    assert float(torch.linalg.eigvalsh(exact - found).min()) > -1e-9
    estimate = problem.system(1e-6).log_determinant(8, generator())
    assert abs(estimate.value - float(torch.logdet(problem.H))) < 4 * estimate.standard_error + 0.5


SHAPES = {1: (2000,), 2: (48, 48), 3: (14, 13, 15)}


@pytest.mark.each
@pytest.mark.parametrize("d", SHAPES)
@pytest.mark.parametrize("gaps", ["none", "random half", "half", "random tenth"])
def test_iterations_do_not_grow_with_gaps(d: int, gaps: str) -> None:
    """For noise from 1e-4 to 10 of the signal; the circulant takes several times as many where it hardly has any."""
    whole = lattice(*SHAPES[d])
    draw = torch.rand(len(whole), generator=generator(5))
    X = {"none": whole, "random half": whole[draw < 0.5], "half": whole[: len(whole) // 2]}.get(gaps, whole[draw < 0.1])
    grid = around(whole)
    statistics = GridStatistics.from_rows(grid, X, torch.sin(X[:, 0]) + torch.randn(len(X), generator=generator()))
    taken = {}
    for noise in (1e-4, 1e-2, 1.0, 10.0):
        for lengthscale in (2.0, 6.0):
            kernel = GridKernel(kernels.Matern(1.5, lengthscale), grid)
            settings = SolveSettings(1e-3, 1e-3, 60, "vecchia")
            solved = iterative_system(kernel, statistics, noise, settings).solve(statistics.cross)
            assert solved.solution is not None
            assert solved.solution.converged
            taken[noise, lengthscale] = solved.solution.iterations
    assert max(taken.values()) <= 14, taken
    if gaps != "none" and d == 2:
        kernel = GridKernel(kernel.kernel, grid, kernel.fitting_torus(1e-7))
        other = iterative_system(kernel, statistics, 1e-4, replace(settings, preconditioner="circulant"))
        control = other.solve(statistics.cross)
        assert control.solution is not None
        assert control.solution.iterations > 2 * taken[1e-4, 6.0]


# The lattice of the rows ----------------------------------------------------------------------------------------------


def asked(X: Tensor, cell: float) -> RegularGrid:
    """Return the grid that would be used otherwise, with cells of about a number of the lattice's steps."""
    low, high = X.amin(0), X.amax(0)
    steps = [float(torch.unique(column).diff().median()) for column in X.T]
    shape = [int(np.ceil(e / s / cell)) + 5 for e, s in zip((high - low).tolist(), steps, strict=True)]
    return RegularGrid.around(low.tolist(), high.tolist(), shape)


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", ["whole numbers", "float32", "standardized"])
def test_nodes_lie_on_the_lattice_of_the_rows(d: int, kind: str) -> None:
    X = lattice(*SHAPES[d])
    X = X[torch.rand(len(X), generator=generator()) < 0.4][torch.randperm(200, generator=generator())]
    if kind == "float32":
        X = (X.float() / 24 - 125).double()
    elif kind == "standardized":
        X = (X - X.mean(0)) / X.std(0)
    found = lattice_grid(X, asked(X, 1.0), 1e6)
    assert found is not None
    statistics = GridStatistics.from_rows(found, X, X[:, 0])
    assert statistics.gram.trace == pytest.approx(len(X), rel=1e-5)
    other = GridStatistics.from_rows(asked(X, 0.93), X, X[:, 0])
    assert other.gram.trace < 0.9 * len(X)


def test_a_lattice_must_be_there_and_have_gaps_and_suit_the_kernel() -> None:
    X = lattice(40, 40)
    gappy = X[(X - 20).norm(dim=1) > 12]
    assert lattice_grid(gappy, asked(gappy, 1.0), 1e6) is not None
    assert lattice_grid(X, asked(X, 1.0), 1e6) is None  # full
    assert lattice_grid(uniform(800, 2, 40.0), asked(X, 1.0), 1e5) is None  # none
    assert lattice_grid(gappy + 0.1 * uniform(len(gappy), 2, 1.0), asked(X, 1.0), 1e6) is None  # rough
    assert lattice_grid(gappy, asked(gappy, 3.0), 1e6) is None  # finer than the kernel needs
    assert lattice_grid(gappy, asked(gappy, 3.0), 1e6, at_any_cost=True) is not None
    assert lattice_grid(gappy, asked(gappy, 3.0), 1000, at_any_cost=True) is None  # too large
    finer = lattice_grid(gappy, asked(gappy, 0.24), 1e6)
    assert finer is not None
    assert finer.spacing == (0.5, 0.5)
    limited = lattice_grid(gappy, asked(gappy, 0.24), 4000)
    assert limited is not None
    assert limited.size <= 4000
    assert float(GridStatistics.from_rows(limited, gappy, gappy[:, 0]).gram.trace) == pytest.approx(len(gappy))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Squared errors of the latent function")  # as well
def test_a_lattice_with_gaps_is_fitted_and_predicted_as_by_exact_inference() -> None:
    """With fixed hyperparameters, the posterior at the lattice's points is that of the kernel itself."""
    whole = lattice(44, 40)
    hidden = ((whole - 20).norm(dim=1) < 8) | (whole[:, 0] > 38)
    X, rest = whole[~hidden].numpy(), whole[hidden].numpy()
    y = np.sin(X[:, 0] / 3) + np.cos(X[:, 1] / 4) + 0.1 * np.random.default_rng(0).normal(size=len(X))
    common = {"kernel": kernels.Matern(1.5, 3.0), "noise_variance": 0.01, "optimizer": None, "standardize": False}
    settings = inference.Grid(exact_nodes=0, n_samples=256, outside="clamp")
    grid = GPRegressor(inference=settings, **common).fit(X, y)
    exact = GPRegressor(inference=inference.Exact(), **common).fit(X, y)
    inside = rest[rest[:, 0] <= 38]
    if NativeTiles.available():  # "auto" takes neighbours among nodes where they are compiled
        assert "vecchia" in grid.solver_
        assert "rows on nodes" in grid.describe()
    else:
        assert "holes" in grid.solver_
    mean, std = exact.predict(inside, return_std=True)
    found, its_std = grid.predict(inside, return_std=True)
    # the last solve leaves at most a twentieth of a deviation; neighbours among nodes end it much closer
    allowed = 1e-3 if NativeTiles.available() else 0.05 * std
    assert (np.abs(found - mean) < allowed).all()
    assert np.abs(its_std / std - 1).mean() < 0.1
    # nodes between the rows leave out a part of the kernel
    with pytest.warns(GigaGPWarning, match="leaves out more variance"):
        between = GPRegressor(inference=inference.Grid(size=(31, 29), exact_nodes=0), **common).fit(X, y)
    assert np.abs(between.predict(inside) - mean).max() > 1e-2


def test_a_rough_kernel_takes_the_lattice_however_long_its_lengthscale() -> None:
    """Between other nodes it leaves out more variance than the noise has, which would be learned as noise."""
    whole = lattice(60, 60)
    X = whole[(whole - 30).norm(dim=1) > 12]
    bounds = X.amin(0).tolist(), X.amax(0).tolist()
    for nu, noise, expected in ((0.5, 1e-3, True), (0.5, 0.5, False), (2.5, 1e-3, False)):
        kernel = kernels.Matern(nu, 60.0).bind(2)
        model = Model(kernel, ZeroMean(), torch.tensor(noise, dtype=torch.float64))
        found = choose_grid(inference.Grid(), *bounds, len(X), 2**30, model, X)
        assert (found.spacing == (1.0, 1.0)) == expected
        assert choose_grid(inference.Grid(), *bounds, len(X), 2**30, model).spacing != (1.0, 1.0)


def test_auto_tries_neighbours_where_nodes_are_empty() -> None:
    whole = lattice(60, 60)
    grid, g, compiled = around(whole), generator(3), NativeTiles.available()  # neighbours are tried where they are
    for name, X, expected in (
        ("dense", whole, "circulant"),
        ("holes", whole[(whole - 30).norm(dim=1) > 15], "vecchia" if compiled else "holes"),
        (
            "random",
            whole[torch.rand(len(whole), generator=g) < 0.5],
            "vecchia" if compiled else "circulant",
        ),
    ):
        statistics = GridStatistics.from_rows(grid, X, torch.sin(X[:, 0]) + 0.1 * torch.randn(len(X), generator=g))
        kernel = GridKernel(kernels.Matern(1.5, 5.0), grid)
        kernel = GridKernel(kernel.kernel, grid, kernel.fitting_torus(1e-5))
        assert has_empty_nodes(kernel, statistics.gram) == (name != "dense")
        assert has_holes(kernel, statistics.gram) == (name == "holes")
        system = iterative_system(kernel, statistics, 0.01, SolveSettings())
        assert system.preconditioner == expected
        assert expected in system.describe()


def test_the_same_bits_on_any_number_of_threads() -> None:
    problem = Problem("between nodes", 0.01)
    operator = GridOperator(problem.kernel, problem.statistics.gram, problem.noise)
    vectors = operator.lift(torch.randn(operator.m, 5, generator=generator(), dtype=torch.float64))
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(NodesPreconditioner(operator).apply(vectors))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


def test_the_choice_is_checked() -> None:
    assert inference.Grid(preconditioner="vecchia").preconditioner == "vecchia"
    with pytest.raises(InvalidInputError, match="preconditioner"):
        inference.Grid(preconditioner="neighbours")  # type: ignore[arg-type]
