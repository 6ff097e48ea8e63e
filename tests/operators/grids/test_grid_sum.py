"""Sums of grids and weighted statistics against dense weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError, MemoryBudgetError
from gigagp.operators.grid.statistics import Accumulator, GridCollector, GridStatistics, GridSum, RegularGrid

COLUMNS = ((0,), (1, 3), (2,), (1, 4))
SCALES = torch.tensor([1.0, 1e5, 1e-4, 3.0, 1.0], dtype=torch.float64)


def rows(kind: str, n: int = 400) -> tuple[Tensor, Tensor]:
    """Return rows of five inputs of different scales, unevenly spread, and two targets."""
    g = torch.Generator().manual_seed(1)
    X = torch.rand(n, 5, dtype=torch.float64, generator=g)
    if kind == "gappy":
        X = torch.where(X < 0.5, 0.4 * X, 0.8 + 0.4 * (X - 0.5))
    elif kind == "clumped":
        X = X[:10].repeat(n // 10, 1) + 1e-3 * X
    elif kind == "duplicated":
        X = X[: n // 4].repeat(4, 1)
    return X * SCALES - 3 * SCALES, torch.randn(n, 2, dtype=torch.float64, generator=g) + 2


def grid_of(X: Tensor, interpolation: str = "cubic", columns: tuple[tuple[int, ...], ...] = COLUMNS) -> GridSum:
    low, high = X.amin(0), X.amax(0)
    grids = (RegularGrid.around(low[list(one)], high[list(one)], 7 + len(one), interpolation) for one in columns)
    return GridSum(tuple(grids), columns)


def dense(grid: GridSum | RegularGrid, X: Tensor) -> Tensor:
    indices, weights = grid.stencil(X)
    return torch.zeros(len(X), grid.size, dtype=torch.float64).scatter_add_(1, indices, weights)


def noise_of(n: int) -> Tensor:
    return torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * 10 + 0.01


def check(found: GridStatistics, X: Tensor, Y: Tensor, noise: Tensor | None) -> None:
    """Compare all sums with dense ones."""
    W, n = dense(found.grid, X), len(X)
    D = torch.ones(n, 1, dtype=torch.float64) if noise is None else (1 / (1 / noise).mean() / noise)[:, None]
    # in an own coordinate: positions in units of the spacing
    positions = (X - X.new_tensor(found.grid.lower)) / X.new_tensor(found.grid.spacing)
    for got, expected in (
        (found.gram.dense(), W.T @ (D * W)),
        (found.cross, W.T @ (D * Y)),
        (found.gram.row_sums(), (W.T @ D)[:, 0]),
        (found.target_squares, (D * Y.square()).sum(0)),
        (found.target_sums, (D * Y).sum(0)),
        (found.position_sums, (D * positions).sum(0)),
        (found.position_squares, (D * positions.square()).sum(0)),
        (found.weight_sums, torch.stack([D.sum(), D.log().sum()])),
        (found.target_means, (D * Y).sum(0) / D.sum()),
        (found.input_means / SCALES[: X.shape[1]], (D * X).sum(0) / D.sum() / SCALES[: X.shape[1]]),
    ):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.pairs
@pytest.mark.parametrize("interpolation", ["cubic", "linear"])
@pytest.mark.parametrize("known", [False, True], ids=["", "row noise"])
@pytest.mark.parametrize("kind", ["even", "gappy", "clumped", "duplicated"])
def test_statistics_are_those_of_dense_weights(kind: str, known: bool, interpolation: str) -> None:
    X, Y = rows(kind)
    noise = noise_of(len(X)) if known else None
    found = GridStatistics.from_rows(grid_of(X, interpolation), X, Y, 3, noise=noise)
    check(found, X, Y, noise)
    with pytest.raises(AssertionError):  # the control: without a row everything differs
        check(found, X[1:], Y[1:], None if noise is None else noise[1:])
    for k, place in enumerate(found.grid.places):
        assert torch.equal(found.gram.stencil(k).dense(), found.gram.dense()[place, place])


@pytest.mark.parametrize("d", [1, 2, 3])
def test_weighted_statistics_on_one_grid(d: int) -> None:
    X, Y = rows("clumped")
    X, noise = X[:, :d].contiguous(), noise_of(len(X))
    grid = RegularGrid.around(X.amin(0), X.amax(0), 8)
    found = GridStatistics.from_rows(grid, X, Y, 3, noise=noise)
    check(found, X, Y, noise)
    with pytest.raises(AssertionError):
        check(found, X, Y, noise.flip(0))
    # probes: W'D^1/2 z for the signs z that the rows have without weights
    signs = GridStatistics.from_rows(grid, X[:1], Y[:1], 3).probes
    one = GridStatistics.from_rows(grid, X[:1], Y[:1], 3, noise=noise[:1])
    torch.testing.assert_close(one.probes, signs)  # the weight of a single row is one
    added = one.add_rows(X[1:2], Y[1:2], noise[1:2])
    second = GridStatistics.from_rows(grid, X[1:2], Y[1:2], 3).probes
    torch.testing.assert_close(added.probes, signs + second * (noise[0] / noise[1]).sqrt())


def test_probes_have_the_covariance_of_the_weights() -> None:
    X, Y = rows("even", 2000)
    grid = grid_of(X, columns=((0,), (1,), (2, 3, 4)))
    found = GridStatistics.from_rows(grid, X, Y, 512, noise=noise_of(2000))
    error = found.probes @ found.probes.T / 512 - found.gram.dense()
    diagonal = found.gram.diagonal().clamp_min(1e-9)
    allowed = 6 * (diagonal[:, None] * diagonal + found.gram.dense().square()).sqrt() / 512**0.5
    assert bool((error.abs() <= allowed + 1e-9).all())
    assert not bool((error + 0.5 * found.gram.dense()).abs().le(allowed).all())


@pytest.mark.parametrize("known", [False, True], ids=["", "row noise"])
def test_sums_are_sums(known: bool, tmp_path) -> None:
    """Sums of parts, in units that were changed, and from a file; removing rows undoes adding them."""
    X, Y = rows("even")
    grid, noise = grid_of(X), noise_of(len(X)) if known else None
    whole = GridStatistics.from_rows(grid, X, Y, 3, noise=noise)
    if noise is None:
        collector = GridCollector(grid, 2, 3)
        for part in range(4):
            collector.add(X[part::4], Y[part::4])
        torch.testing.assert_close(collector.statistics().gram.dense(), whole.gram.dense())
        collector.save(tmp_path / "state")
        again = GridCollector.load(tmp_path / "state").statistics()
        assert torch.equal(again.gram.dense(), collector.statistics().gram.dense())
    less = whole.remove_rows(X[:50], Y[:50], None if noise is None else noise[:50])
    back = less.add_rows(X[:50], Y[:50], None if noise is None else noise[:50])
    torch.testing.assert_close(back.gram.dense(), whole.gram.dense())
    torch.testing.assert_close(back.weight_sums, whole.weight_sums)
    with pytest.raises(InvalidInputError, match="never added"):
        less.remove_rows(X, Y, noise)
    with pytest.raises(InvalidInputError, match="noise of GridStatistics"):
        whole.add_rows(X[:50], Y[:50], noise_of(50) if noise is None else None)
    shift, scale = X.mean(0), X.std(0)
    other = whole.for_inputs(shift, scale).for_targets(1.5, 2.0)
    check_units = GridStatistics.from_rows(other.grid, (X - shift) / scale, (Y - 1.5) / 2, 3, noise=noise)
    for name in ("cross", "target_squares", "target_sums"):
        torch.testing.assert_close(getattr(other, name), getattr(check_units, name), rtol=1e-7, atol=1e-7)
    whole.save(tmp_path / "sums")
    loaded = GridStatistics.load(tmp_path / "sums")
    assert loaded.grid == whole.grid
    assert loaded.noise == whole.noise
    assert torch.equal(loaded.gram.dense(), whole.gram.dense())


def test_interpolation_of_a_sum() -> None:
    """Sums of quadratic functions of the inputs of one grid are reproduced; a product across grids is not."""
    X, _ = rows("even")
    grid, low = grid_of(X), X.amin(0)
    U = (X - low) / SCALES

    def additive(points: Tensor) -> Tensor:
        own = (points - low) / SCALES
        return torch.stack([1 + own[:, 0] - 2 * own[:, 1] + own[:, 4], own[:, 2]], 1)

    torch.testing.assert_close(grid.interpolate(X, grid.extended(additive)), additive(X), rtol=1e-8, atol=1e-8)
    product = (U[:, 0] * U[:, 2])[:, None]
    values = grid.extended(lambda points: ((points - low) / SCALES)[:, [0]] * ((points - low) / SCALES)[:, [2]])
    assert float((grid.interpolate(X, values) - product).abs().max()) > 0.1
    values = torch.randn(grid.size, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(grid.interpolate(X, values), dense(grid, X) @ values)
    torch.testing.assert_close(grid.scatter(X[: grid.size], values), dense(grid, X[: grid.size]).T @ values)


def test_refusals() -> None:
    X, Y = rows("even")
    grid = grid_of(X)
    with pytest.raises(InvalidInputError, match="1 of 1 rows lie outside"):
        GridStatistics.from_rows(grid, X[:1] + 10 * SCALES, Y[:1])
    with pytest.raises(InvalidInputError, match="together are 0, 1"):
        GridSum(grid.grids[:1], ((1,),))
    with pytest.raises(InvalidInputError, match="positive finite variance"):
        GridStatistics.from_rows(grid, X, Y, noise=torch.zeros(len(X)))
    with pytest.raises(MemoryBudgetError):
        Accumulator(grid, 1, memory_budget=1000)
