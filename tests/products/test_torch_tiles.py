"""The reference engine against dense algebra."""

from __future__ import annotations

import pytest
import torch

from gigagp.errors import MemoryBudgetError
from gigagp.kernels import RBF, Linear, Matern, RationalQuadratic
from gigagp.products import TorchTiles, select, tiles, torch_tiles
from helpers import (
    DTYPES,
    all_kernels,
    autograd_gradient,
    largest_tensor,
    points,
    reference_block,
    relative_error,
    tolerance,
)

ALL = all_kernels()
STATIONARY = ["rbf", "matern12", "matern32", "matern52", "rational quadratic"]
#: Tiles of 32 by 32, so that every test crosses borders.
SMALL = TorchTiles(tile_bytes=1)
BUDGET = 2**24


def training_inputs(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Return inputs as real tables have them: duplicate rows, a constant column, one row far out."""
    X = points(n, 4, dtype=dtype)
    X[7], X[n - 1] = X[3], X[0]
    X[:, 2] = 1.5
    X[11] = 40
    return X


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALL)
def test_product(name, dtype):
    kernel, X, Z = ALL[name], training_inputs(70, dtype), points(45, 4, seed=1, dtype=dtype)
    V, W = points(70, 3, seed=2, dtype=dtype), points(45, 3, seed=3, dtype=dtype)
    scale = float(reference_block(kernel, X, X).abs().max()) or 1.0
    for right, vectors in ((X, V), (X.clone(), V), (Z, W)):
        found = SMALL.product(kernel, X, right, vectors, budget=BUDGET)
        assert found.dtype == dtype
        expected = reference_block(kernel, X, right) @ vectors.double()
        assert torch.allclose(found.double(), expected, rtol=0, atol=50 * scale * tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALL)
def test_dense(name, dtype):
    kernel, X, Z = ALL[name], training_inputs(70, dtype), points(45, 4, seed=1, dtype=dtype)
    scale = float(reference_block(kernel, X, X).abs().max()) or 1.0
    for right in (None, Z):
        found = SMALL.dense(kernel, X, right, budget=BUDGET)
        expected = reference_block(kernel, X, X if right is None else right)
        assert torch.allclose(found.double(), expected, rtol=0, atol=scale * tolerance(dtype))
        if right is None:
            assert torch.equal(found, found.T)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_gradient_agrees_with_autograd_on_the_formula(name, symmetric, dtype):
    kernel, X = ALL[name], training_inputs(70, dtype)
    Z = X if symmetric else points(45, 4, seed=1, dtype=dtype)
    A = points(70, len(Z), seed=2, dtype=dtype)
    if symmetric:
        A = A + A.T
    before = A.clone()
    found = SMALL.gradient(kernel, X, Z, lambda r, c: A[r, c], symmetric=symmetric, budget=BUDGET)
    assert torch.equal(A, before)
    assert list(found) == list(kernel.parameters())
    if name == "white":
        assert float(found["variance"]) == 0
        return
    expected = autograd_gradient(kernel, lambda k: (reference_block(k, X, Z) * A.double()).sum())
    largest = max(float(value.abs().max()) for value in expected.values())
    for key, value in expected.items():
        assert found[key].shape == value.shape
        assert found[key].dtype == torch.float64
        assert torch.allclose(found[key], value, rtol=0, atol=100 * (1 + largest) * tolerance(dtype)), key


@pytest.mark.parametrize("name", STATIONARY)
def test_float32_near_points_far_from_the_origin(name):
    """Lengthscales a thousandth of the range: products and derivatives keep their digits."""
    X = points(40, 4)
    X = torch.cat([X, X + 1e-3 * points(40, 4, seed=1)]).float()
    kernel = ALL[name].replace({"lengthscale": torch.full((4,), 1e-3, dtype=torch.float64)})
    V = points(80, 2, seed=2, dtype=torch.float32)
    found = SMALL.product(kernel, X, X, V, budget=BUDGET)
    assert relative_error(found, reference_block(kernel, X, X) @ V.double()) < 1e-5
    found = SMALL.gradient(kernel, X, X, lambda r, c: V[r] @ V[c].T, symmetric=True, budget=BUDGET)
    expected = autograd_gradient(kernel, lambda k: (reference_block(k, X, X) * (V @ V.T).double()).sum())
    for key, value in expected.items():
        assert relative_error(found[key], value) < 1e-5, key


def test_float32_distances_alone_would_not_do(monkeypatch):
    monkeypatch.setattr(tiles, "DISTANCE_ERROR", float("inf"))
    X = points(40, 4)
    X = torch.cat([X, X + 1e-3 * points(40, 4, seed=1)]).float()
    kernel = RBF(1e-3).bind(4)
    V = points(80, 2, seed=2, dtype=torch.float32)
    found = SMALL.product(kernel, X, X, V, budget=BUDGET)
    assert relative_error(found, reference_block(kernel, X, X) @ V.double()) > 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengthscale", [1e-14, 1e14])
@pytest.mark.parametrize("name", STATIONARY)
def test_extreme_lengthscales_stay_finite(name, lengthscale, dtype):
    kernel = ALL[name].replace({"lengthscale": torch.full((4,), lengthscale, dtype=torch.float64)})
    X = points(40, 4, dtype=dtype)
    expected = torch.eye(40, dtype=dtype) if lengthscale < 1 else torch.ones(40, 40, dtype=dtype)
    assert torch.allclose(SMALL.dense(kernel, X, budget=BUDGET), 1.7 * expected, atol=1e-5)
    found = SMALL.gradient(kernel, X, X, lambda r, c: torch.ones(40, 40)[r, c].to(dtype), symmetric=True, budget=BUDGET)
    assert all(bool(torch.isfinite(value).all()) for value in found.values())


@pytest.mark.parametrize("name", ["matern12", "matern32"])
def test_duplicate_rows_are_perfectly_correlated(name):
    """Without exact zeros the root of the rounding error would show: 1e-8 in float64."""
    X = (points(20, 4) * 30)[torch.arange(80) % 20]
    whole = SMALL.dense(ALL[name], X, budget=BUDGET)
    assert torch.allclose(whole[:20, 40:60].diagonal(), torch.full((20,), 1.7, dtype=torch.float64), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["matern32", "sum", "decaying period", "nested"])
def test_nothing_large_is_allocated(name):
    """A budget that pays for small tiles: no array of n times n, in any of the methods."""
    n, budget = 600, 2**20
    kernel, X, Z = ALL[name], points(n, 4), points(n, 4, seed=1)
    V = points(n, 5, seed=2)
    engine = TorchTiles()
    with largest_tensor() as spy:
        engine.product(kernel, X, X, V, budget=budget)
        engine.product(kernel, X, Z, V, budget=budget)
        engine.gradient(kernel, X, X, lambda r, c: V[r] @ V[c].T, symmetric=True, budget=budget)
        engine.gradient(kernel, X, Z, lambda r, c: V[r] @ V[c].T, symmetric=False, budget=budget)
    assert spy.elements < n * n / 10
    with largest_tensor() as spy:  # the spy sees what it should
        kernel.block(X, Z) @ V
    assert spy.elements >= n * n


def test_dense_is_refused_before_it_is_allocated():
    X = points(600, 4)
    with largest_tensor() as spy, pytest.raises(MemoryBudgetError, match="600 by 600 needs 2,880,000 bytes"):
        TorchTiles().dense(ALL["rbf"], X, budget=2**20)
    assert spy.elements == 0


@pytest.mark.parametrize("tile_bytes", [None, 1, 2**13, 2**16])
def test_the_size_of_tiles_does_not_matter(tile_bytes):
    kernel, X, V = ALL["nested"], points(130, 4), points(130, 2, seed=1)
    found = TorchTiles(tile_bytes=tile_bytes).product(kernel, X, X, V, budget=BUDGET)
    assert torch.allclose(found, kernel.block(X, X) @ V, atol=1e-11)


def test_the_same_call_gives_the_same_bits():
    kernel, X, V = ALL["matern32"], points(130, 4), points(130, 2, seed=1)
    first, second = (SMALL.product(kernel, X, X, V, budget=BUDGET) for _ in range(2))
    assert torch.equal(first, second)


def test_no_graph_is_recorded():
    kernel = Matern().bind(4)
    values = {key: value.clone().requires_grad_() for key, value in kernel.parameters().items()}
    kernel, X = kernel.replace(values), points(40, 4)
    V = torch.ones(40, 1, dtype=torch.float64)
    assert not SMALL.product(kernel, X, X, V, budget=BUDGET).requires_grad
    assert not SMALL.dense(kernel, X, budget=BUDGET).requires_grad
    found = SMALL.gradient(kernel, X, X, lambda r, c: V[r] @ V[c].T, symmetric=True, budget=BUDGET)
    assert not any(value.requires_grad for value in found.values())


def test_float32_sums_over_many_tiles_keep_their_digits():
    """Tiles are added up in float64."""
    n = 4000
    X = points(n, 1, dtype=torch.float32)
    V = torch.ones(n, 1, dtype=torch.float32) + points(n, 1, seed=1, dtype=torch.float32).abs()
    kernel = RBF(100.0).bind(1)
    exact = TorchTiles().product(kernel, X[:5].double(), X.double(), V.double(), budget=BUDGET)
    assert relative_error(TorchTiles(tile_bytes=1).product(kernel, X[:5], X, V, budget=BUDGET), exact) < 2e-7


def test_closed_forms_are_used_where_they_exist():
    X = points(5, 4)
    for name in STATIONARY:
        assert isinstance(tiles.tiles_of(ALL[name], X, X), tiles.StationaryTiles)
    parts = tiles.tiles_of((Matern() * RBF() + Linear() + RationalQuadratic()).bind(4), X, X).parts
    assert [type(part).__name__ for part in parts] == ["ProductTiles", "AutogradTiles", "StationaryTiles"]
    assert select(ALL["rbf"], "cpu", torch.float64).name == "torch tiles"


def test_ranges_cover_everything_once():
    found = torch.cat([torch.arange(100)[part] for part in torch_tiles._ranges(100, 32)])
    assert torch.equal(found, torch.arange(100))
    assert [part.start for part in torch_tiles._ranges(100, 32, start=64)] == [64, 96]
