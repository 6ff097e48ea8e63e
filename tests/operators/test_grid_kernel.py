from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from gigagp import kernels
from gigagp.errors import InvalidInputError
from gigagp.kernels import Kernel, Leaf
from gigagp.operators.grid import GridKernel, Torus
from gigagp.operators.grid.statistics import RegularGrid
from helpers import relative_error


class Slanted(Leaf):
    """A stationary kernel that is even in the difference, but not in each input separately."""

    shapes: ClassVar[Mapping[str, bool]] = {"variance": False, "slant": False}  # type: ignore[assignment]

    def __init__(self, variance: float = 1.3, slant: float = 0.6) -> None:
        super().__init__({"variance": variance, "slant": slant})

    def block(self, X: Tensor, Z: Tensor) -> Tensor:
        difference = X[:, None] - Z[None]
        slanted = difference[..., 0] + self.value("slant") * difference[..., 1]
        q = slanted.square() + difference[..., 1].square()
        return self.bind(2).value("variance") * torch.exp(-q)

    def diagonal(self, X: Tensor) -> Tensor:
        return self.bind(2).value("variance").expand(len(X))


KERNELS: dict[str, tuple[Kernel, RegularGrid]] = {
    "rbf 1d": (kernels.RBF(0.3, 1.5), RegularGrid((-1.0,), (0.1,), (23,))),
    "matern12 2d": (kernels.Matern(0.5, [0.3, 0.9], 0.7), RegularGrid((-1.0, 2.0), (0.1, 0.3), (11, 8))),
    "matern52 3d": (kernels.Matern(2.5, [0.3, 0.9, 2.0]), RegularGrid((0.0, 1.0, -3.0), (0.1, 0.2, 0.5), (5, 6, 7))),
    "rational quadratic": (
        kernels.RationalQuadratic([0.3, 0.4], alpha=0.1),
        RegularGrid((0.0, 0.0), (0.1, 0.1), (9, 7)),
    ),
    "sum": (
        kernels.Matern(1.5, [0.2, 0.3], 0.4) + kernels.RBF([1.0, 2.0], 0.8) + kernels.Constant(0.3),
        RegularGrid((0.0, 0.0), (0.1, 0.2), (10, 9)),
    ),
    "product": (
        kernels.Periodic(0.9, 1.1, 0.7, columns=[0]) * kernels.RBF([0.4, 0.5]),
        RegularGrid((0.0, 0.0), (0.1, 0.2), (10, 9)),
    ),
    "with white": (kernels.RBF(0.4) + kernels.White(0.3), RegularGrid((0.0,), (0.1,), (12,))),
    "slanted": (Slanted(), RegularGrid((0.0, 0.0), (0.2, 0.3), (8, 9))),
}


@pytest.fixture(params=KERNELS, ids=list(KERNELS))
def grid_kernel(request: pytest.FixtureRequest) -> GridKernel:
    kernel, grid = KERNELS[request.param]
    return GridKernel(kernel, grid)


def vectors(grid_kernel: GridKernel, s: int, seed: int = 0) -> Tensor:
    return torch.randn(grid_kernel.n, s, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_products(grid_kernel: GridKernel) -> None:
    V = vectors(grid_kernel, 3)
    dense = grid_kernel.kernel.block(grid_kernel.grid.nodes(), grid_kernel.grid.nodes())
    assert relative_error(grid_kernel @ V, dense @ V) < 1e-12
    assert relative_error(grid_kernel.diagonal(), dense.diagonal()) < 1e-13
    assert grid_kernel.products == 1


def test_the_slanted_kernel_is_the_uneven_one() -> None:
    assert not GridKernel(*KERNELS["slanted"]).even
    assert all(GridKernel(*pair).even for name, pair in KERNELS.items() if name != "slanted")


def test_gradients_by_all_hyperparameters(grid_kernel: GridKernel) -> None:
    left, right = vectors(grid_kernel, 3, 1), vectors(grid_kernel, 3, 2)
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    found = grid_kernel.gradient(left, right, weights)
    dense = grid_kernel.weighted_gradient((left * weights) @ right.T)
    assert found.keys() == grid_kernel.kernel.parameters().keys()
    for name, value in dense.items():
        assert float((found[name] - value).abs().max()) < 1e-10 * (1 + float(value.abs().max())), name
    # Compare with differences, for one of them.
    name = next(iter(found))
    value, step = grid_kernel.kernel.parameters()[name], 1e-5
    ends = []
    for sign in (1, -1):
        moved = value.clone()
        moved.view(-1)[0] += sign * step
        other = GridKernel(grid_kernel.kernel.replace({name: moved}), grid_kernel.grid)
        ends.append(float(((left * weights) * (other @ right)).sum()))
    assert abs((ends[0] - ends[1]) / (2 * step) - float(found[name].reshape(-1)[0])) < 1e-5 * (1 + abs(ends[0]))


def test_the_same_vectors_twice_cost_one_transform_and_change_nothing(grid_kernel: GridKernel) -> None:
    V = vectors(grid_kernel, 2)
    once, twice = grid_kernel.gradient(V, V), grid_kernel.gradient(V, V.clone())
    assert all(torch.allclose(once[name], twice[name], rtol=1e-12, atol=1e-12) for name in once)


def test_the_root_is_a_root_up_to_what_was_clipped(grid_kernel: GridKernel) -> None:
    V = vectors(grid_kernel, 2)
    back = grid_kernel.root(grid_kernel.root_transposed(torch.eye(grid_kernel.n, dtype=torch.float64)))
    error = float((back - grid_kernel.to_dense()).abs().max())
    assert error <= grid_kernel.root_error + 1e-12
    # R' is the transpose of R in the plain dot product of packed vectors.
    packed = grid_kernel.root_torus.white_noise(2, torch.Generator().manual_seed(3))
    lhs, rhs = (grid_kernel.root_transposed(V) * packed).sum(), (V * grid_kernel.root(packed)).sum()
    assert abs(float(lhs - rhs)) < 1e-10 * (1 + abs(float(lhs)))


def test_long_lengthscales_are_reported_as_clipped() -> None:
    grid = RegularGrid((0.0,), (0.1,), (21,))
    short, long = (GridKernel(kernels.RBF(scale), grid) for scale in (0.2, 2.0))
    assert short.clipped < 1e-12
    assert long.clipped > 1e-3
    back = long.root(long.root_transposed(torch.eye(21, dtype=torch.float64)))
    assert 1e-3 < float((back - long.to_dense()).abs().max()) <= long.clipped + 1e-12


@pytest.mark.parametrize("lengthscale", [0.05, 0.3, 1.0])
def test_a_fitting_torus_is_as_small_as_the_covariance_allows(lengthscale: float) -> None:
    grid = RegularGrid((0.0, 0.0), (0.02, 0.02), (51, 51))
    kernel = kernels.Matern(1.5, [lengthscale] * 2)
    torus = GridKernel(kernel, grid).fitting_torus(1e-3)
    fitted = GridKernel(kernel, grid, torus)
    assert fitted.root_error <= 1e-3
    assert (max(torus.lengths) < 2 * 51 - 1) == (lengthscale < 0.1)
    columns = torch.zeros(grid.size, 2, dtype=torch.float64)
    columns[0, 0] = columns[1300, 1] = 1.0
    error = fitted.root(fitted.root_transposed(columns)) - fitted @ columns
    assert float(error.abs().max()) <= fitted.root_error + 1e-12
    # Control: a torus that is too small must not count as fitting.
    tight = GridKernel(kernel, grid, Torus.around(grid.shape, 1.02))
    wrapped = tight.root(tight.root_transposed(columns)) - tight @ columns
    assert float(wrapped.abs().max()) > 0.05
    assert tight.root_error > 0.05


def test_packed_white_noise_is_white() -> None:
    torus = Torus((3, 4), (6, 8))
    noise = torus.white_noise(4000, torch.Generator().manual_seed(0))
    assert noise.shape == (torus.n_packed, 4000)
    squares = noise.square().sum(0)
    assert abs(float(squares.mean()) - torus.size) < 4 * (2 * torus.size / 4000) ** 0.5


@pytest.mark.parametrize(
    "kernel", [kernels.Linear(1.0), kernels.RBF() * kernels.Linear(1.0), kernels.White() * kernels.Linear()]
)
def test_kernels_that_are_not_stationary_are_refused(kernel: Kernel) -> None:
    with pytest.raises(InvalidInputError, match="must be stationary"):
        GridKernel(kernel, RegularGrid((1.0, 1.0), (0.1, 0.1), (8, 8)))


def test_bad_vectors_are_refused() -> None:
    kernel = GridKernel(kernels.RBF(0.3), RegularGrid((0.0,), (0.1,), (8,)))
    for wrong in (torch.ones(7, 1).double(), torch.ones(8, 1), torch.ones(8).double()):
        with pytest.raises(InvalidInputError, match="float64 vectors of shape"):
            kernel @ wrong
    with pytest.raises(InvalidInputError, match="lengths of Torus"):
        Torus((8,), (8,))
