from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from gigagp.errors import GigaGPWarning, InvalidInputError, MemoryBudgetError
from gigagp.operators.grid.statistics import RegularGrid
from gigagp.operators.grid.statistics.arguments import node_bytes

from .conftest import SHAPES, rows

pytestmark = pytest.mark.filterwarnings("ignore:A grid over 4 inputs:gigagp.errors.GigaGPWarning")


def keys(s: np.ndarray) -> np.ndarray:
    """Keys' kernel with a = -1/2 as the notes print it, section 3.1."""
    s = np.abs(s)
    near, far = 1.5 * s**3 - 2.5 * s**2 + 1, -0.5 * s**3 + 2.5 * s**2 - 4 * s + 2
    return np.where(s < 1, near, np.where(s < 2, far, 0.0))


def around(X: torch.Tensor, interpolation: str = "cubic", shape: tuple[int, ...] | None = None) -> RegularGrid:
    return RegularGrid.around(X.amin(0).tolist(), X.amax(0).tolist(), shape or SHAPES[X.shape[1]], interpolation)


@pytest.mark.parametrize("d", SHAPES)
@pytest.mark.parametrize("interpolation", ["cubic", "linear"])
def test_weights_are_the_tensor_product_of_the_printed_kernel(d, interpolation):
    X, _ = rows(40, d)
    grid = around(X, interpolation)
    position = (X.numpy()[:, None] - grid.nodes().numpy()) / np.array(grid.spacing)
    kernel = keys if interpolation == "cubic" else lambda s: np.clip(1 - np.abs(s), 0, None)
    expected = kernel(position).prod(2)
    W = grid.matrix(X)
    assert W.layout == torch.sparse_csr
    assert np.abs(W.to_dense().numpy() - expected).max() < 1e-13
    q = (4 if interpolation == "cubic" else 2) ** d
    assert (np.abs(expected) > 1e-12).sum(1).max() == q == W.values().numel() // 40


@pytest.mark.parametrize("interpolation", ["cubic", "linear"])
def test_every_accepted_row_sums_to_one_up_to_the_corners(interpolation):
    grid = RegularGrid((-3.0, 100.0), (0.3, 7.0), (9, 8), interpolation)
    low, high = (torch.tensor(corner, dtype=torch.float64) for corner in grid.accepted)
    generator = torch.Generator().manual_seed(1)
    inside = low + (high - low) * torch.rand(500, 2, dtype=torch.float64, generator=generator)
    X = torch.cat([inside, low[None], high[None], torch.stack([low[0], high[1]])[None]])
    assert bool(grid.covers(X).all())
    indices, weights = grid.stencil(X)
    assert (weights.sum(1) - 1).abs().max() < 1e-14
    assert indices.min() >= 0
    assert indices.max() < grid.size
    # Control: a hundred-thousandth of a cell beyond a corner is refused, and so is NaN.
    step = 1e-5 * torch.tensor(grid.spacing, dtype=torch.float64)
    beyond = torch.stack([low - step, high + step, torch.tensor([torch.nan, 110.0])])
    assert not bool(grid.covers(beyond).any())


def test_a_node_has_weight_one_and_polynomials_are_reproduced():
    grid = RegularGrid((0.5, -2.0), (0.25, 0.5), (9, 10))
    nodes = grid.nodes()
    covered = grid.covers(nodes)
    assert int(covered.sum()) == 7 * 8
    W = grid.matrix(nodes[covered]).to_dense()
    assert torch.equal(W, torch.eye(grid.size, dtype=torch.float64)[covered])
    X = torch.rand(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) + torch.tensor([1.0, 0.0])

    def polynomial(X: torch.Tensor, degree: int) -> torch.Tensor:
        return (X[:, 0] ** degree - 3 * X[:, 1] ** degree + 1)[:, None]

    for degree, exact in ((1, True), (2, True), (3, False)):
        error = (grid.interpolate(X, polynomial(nodes, degree)) - polynomial(X, degree)).abs().max()
        assert (error < 1e-13) == exact


def test_weights_can_be_differentiated_in_the_points():
    X, _ = rows(6, 2)
    grid = around(X)
    values = torch.randn(grid.size, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    X = X.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: grid.interpolate(x, values), (X,), eps=1e-6)


@pytest.mark.parametrize("d", SHAPES)
def test_interpolate_and_scatter_are_the_products_with_the_matrix(d, monkeypatch):
    monkeypatch.setattr("gigagp.operators.grid.statistics.geometry._BLOCK", 4096)  # several blocks
    X, _ = rows(70, d)
    grid = around(X)
    W = grid.matrix(X).to_dense()
    generator = torch.Generator().manual_seed(0)
    values, columns = (torch.randn(k, 3, dtype=torch.float64, generator=generator) for k in (grid.size, 70))
    assert (grid.interpolate(X, values) - W @ values).abs().max() < 1e-13
    assert (grid.scatter(X, columns) - W.T @ columns).abs().max() < 1e-13


def test_the_margin_is_two_cells_of_the_range():
    # The authors' code takes 1 % of the coordinate's value: with negative longitudes both ends move inwards.
    grid = RegularGrid.around((-124.5, 0.0), (-67.7, 2.0), (62, 30))
    assert grid.lower[0] == pytest.approx(-124.5 - 2 * grid.spacing[0])
    assert grid.upper[0] == pytest.approx(-67.7 + 2 * grid.spacing[0])
    assert grid.spacing[1] == pytest.approx(2 / 25)
    corners = torch.tensor([[-124.5, 0.0], [-67.7, 2.0]], dtype=torch.float64)
    outer = corners + torch.tensor([[-0.99], [0.99]]) * torch.tensor(grid.spacing)  # new rows a little outside
    assert bool(grid.covers(torch.cat([corners, outer])).all())
    authors = torch.tensor([[-124.5 * 0.99, 1.0]], dtype=torch.float64)
    assert float(authors[0, 0]) > -124.5


def test_cells_are_numbered_with_the_longest_input_slowest():
    grid = RegularGrid((0, 0, 0), (1, 1, 1), (7, 12, 8))
    assert grid.cells == (4, 9, 5)
    assert grid.cell_strides == (5, 20, 1)
    assert grid.strides == (96, 8, 1)
    assert grid.size == 672


@pytest.mark.parametrize("d", [1, 2, 3])
def test_automatic_follows_the_lengthscales_and_stays_within_the_budget(d):
    low, high, scales = [0.0] * d, [1.0] * d, [0.05 * (k + 1) for k in range(d)]
    fine = RegularGrid.automatic(low, high, scales, 10**9)
    for step, scale, count in zip(fine.spacing, scales, fine.shape, strict=True):
        assert step <= scale / 4 * (1 + 1e-9)
        assert count == 5 + math.ceil(4 / scale - 1e-9)
    budget = fine.statistics_bytes // 2
    tight = RegularGrid.automatic(low, high, scales, budget)
    assert tight.statistics_bytes <= budget
    more = tuple(count + 1 for count in tight.shape)  # and not much smaller than it might be
    assert math.prod(more) * node_bytes(d, "cubic") * 1.2 > budget


def test_cells_larger_than_a_lengthscale_are_warned_of():
    with pytest.warns(GigaGPWarning, match=r"larger than the lengthscale in input 1 .* cannot see this kernel"):
        RegularGrid.automatic((0, 0), (1, 1), (0.5, 1e-4), 10**6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RegularGrid.automatic((0, 0), (1, 1), (0.5, 0.1), 10**7)


def test_a_grid_that_cannot_fit_is_refused_with_its_bytes():
    with pytest.raises(MemoryBudgetError, match=r"The coarsest grid over 3 inputs needs [\d,]+ bytes"):
        RegularGrid.automatic((0, 0, 0), (1, 1, 1), (1, 1, 1), 10**5)


def test_plain_data_and_back():
    grid = RegularGrid.around((0.1, 2), (0.7, 3), (8, 9), "linear")
    assert RegularGrid.from_dict(grid.to_dict()) == grid
    assert hash(grid) == hash(RegularGrid.from_dict(grid.to_dict()))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: RegularGrid.around((0, 5.0), (1, 5.0), 10), r"Input 1 is constant \(always 5.0\)"),
        (lambda: RegularGrid.around([0] * 6, [1] * 6, 10), "1 to 4 inputs; got 6"),
        (lambda: RegularGrid((0,) * 6, (1,) * 6, (5,) * 6), "1 to 4 inputs; got 6"),
        (lambda: RegularGrid.around((0, 3), (1, 2), 10), "lower of a grid must be below upper"),
        (lambda: RegularGrid.around((0, math.nan), (1, 2), 10), "must be finite"),
        (lambda: RegularGrid.around((0,), (1,), 5), "at least 6 for each input"),
        (lambda: RegularGrid.around((0,), (1, 2), 9), "same length"),
        (lambda: RegularGrid.around((0, 0), (1, 2), (9, 9, 9)), "must have 2 numbers"),
        (lambda: RegularGrid((0,), (1,), (3,)), "at least 4 nodes"),
        (lambda: RegularGrid((0,), (0.0,), (9,)), "spacing of RegularGrid must be positive"),
        (lambda: RegularGrid((0,), (1.0,), (9.5,)), "whole numbers"),
        (lambda: RegularGrid((0, 1), (1.0,), (9,)), "one number for each input"),
        (lambda: RegularGrid((0,), (1.0,), (9,), "quintic"), '"cubic" or "linear"'),
        (lambda: RegularGrid((1e12,), (1e-3,), (9,)), "Subtract an offset"),
        (lambda: RegularGrid("ab", (1e-3,), (9,)), "sequence of numbers"),
        (lambda: RegularGrid.automatic((0,), (1,), (-1,), 10**9), "1 positive numbers"),
    ],
)
def test_bad_grids_are_refused(make, match):
    with pytest.raises(InvalidInputError, match=match):
        make()


def test_points_outside_are_named():
    grid = RegularGrid((0.0, 0.0), (1.0, 1.0), (9, 9))
    X = torch.full((5, 2), 4.0, dtype=torch.float64)
    X[3] = torch.tensor([4.0, 7.5])
    with pytest.raises(InvalidInputError, match=r"1 of 5 rows lie outside .*the first is row 3 .*input 1 = 7\.5"):
        grid.stencil(X)
    with pytest.raises(InvalidInputError, match=r"shape \(n, 2\)"):
        grid.stencil(X[:, :1])
    with pytest.raises(InvalidInputError, match=r"shape \(81, s\)"):
        grid.interpolate(X[:1], torch.ones(80, 1))


def test_four_inputs_are_warned_of():
    with pytest.warns(GigaGPWarning, match="A grid over 4 inputs"):
        RegularGrid.around([0] * 4, [1] * 4, 6)
