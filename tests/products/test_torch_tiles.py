"""What only the torch engine has: tiles of any size, closed forms, autograd for the rest."""

from __future__ import annotations

import pytest
import torch

from engines import BUDGET
from gigagp.errors import MemoryBudgetError
from gigagp.kernels import RBF, Linear, Matern, RationalQuadratic
from gigagp.products import LowRankWeights, TorchTiles, blocks, native_tiles, select, tiles
from helpers import all_kernels, largest_tensor, points, reference_block, relative_error

ALL = all_kernels()
STATIONARY = ["rbf", "matern12", "matern32", "matern52", "rational quadratic"]
#: Tiles of 32 by 32, so that every test crosses borders.
SMALL = TorchTiles(tile_bytes=1)


def test_select_takes_it_where_no_other_engine_runs(monkeypatch):
    monkeypatch.setattr(native_tiles, "_native", None)  # as where gigagp was installed without a compiler
    for kernel in ALL.values():
        assert select(kernel, "cpu", torch.float64) == TorchTiles()


def test_float32_distances_alone_would_not_do(monkeypatch):
    """The control of `test_float32_near_points_far_from_the_origin` in test_engines.py."""
    monkeypatch.setitem(tiles.ROUNDING_ERROR, torch.float32, float("inf"))
    X = points(40, 4)
    X = torch.cat([X, X + 1e-3 * points(40, 4, seed=1)]).float()
    kernel = RBF(1e-3).bind(4)
    V = points(80, 2, seed=2, dtype=torch.float32)
    found = SMALL.product(kernel, X, X, V, budget=BUDGET)
    assert relative_error(found, reference_block(kernel, X, X) @ V.double()) > 1e-3


@pytest.mark.parametrize(("name", "allowed"), [("matern12", 0.0), ("matern32", tiles.ROUNDING_ERROR[torch.float64])])
def test_duplicate_rows_are_perfectly_correlated(name, allowed):
    """Exactly where the profile has a kink: the root of a distance's rounding error would show there."""
    X = (points(20, 4) * 30)[torch.arange(80) % 20]
    whole = SMALL.dense(ALL[name], X, budget=BUDGET)
    assert torch.allclose(
        whole[:20, 40:60].diagonal(), torch.full((20,), 1.7, dtype=torch.float64), rtol=0, atol=allowed
    )


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["matern32", "sum", "decaying period", "nested"])
def test_nothing_large_is_allocated(name):
    """A budget that pays for small tiles: no array of n times n, in any of the methods."""
    n, budget = 600, 2**20
    kernel, X, Z = ALL[name], points(n, 4), points(n, 4, seed=1)
    V = points(n, 5, seed=2)
    engine, weights = TorchTiles(), LowRankWeights(V, V)
    with largest_tensor() as spy:
        engine.product(kernel, X, X, V, budget=budget)
        engine.product(kernel, X, Z, V, budget=budget)
        engine.gradient(kernel, X, X, weights, symmetric=True, budget=budget)
        engine.gradient(kernel, X, Z, weights, symmetric=False, budget=budget)
    assert spy.elements < n * n / 10
    with largest_tensor() as spy:  # the spy sees what it should
        kernel.block(X, Z) @ V
    assert spy.elements >= n * n


def test_dense_is_refused_before_it_is_allocated():
    X = points(600, 4)
    with largest_tensor() as spy, pytest.raises(MemoryBudgetError):
        TorchTiles().dense(ALL["rbf"], X, budget=2**20)
    assert spy.elements <= X.numel()


@pytest.mark.parametrize("tile_bytes", [None, 1, 2**13, 2**16])
def test_the_size_of_tiles_does_not_matter(tile_bytes):
    kernel, X, V = ALL["nested"], points(130, 4), points(130, 2, seed=1)
    found = TorchTiles(tile_bytes=tile_bytes).product(kernel, X, X, V, budget=BUDGET)
    assert torch.allclose(found, kernel.block(X, X) @ V, atol=1e-11)


def test_closed_forms_are_used_where_they_exist():
    X = points(5, 4)
    for name in STATIONARY:
        assert isinstance(tiles.tiles_of(ALL[name], X, X), tiles.StationaryTiles)
    parts = tiles.tiles_of((Matern() * RBF() + Linear() + RationalQuadratic()).bind(4), X, X).parts
    assert [type(part).__name__ for part in parts] == ["ProductTiles", "AutogradTiles", "StationaryTiles"]


def test_ranges_cover_everything_once():
    found = torch.cat([torch.arange(100)[part] for part in blocks.ranges(100, 32)])
    assert torch.equal(found, torch.arange(100))
    assert [part.start for part in blocks.ranges(100, 32, start=64)] == [64, 96]
