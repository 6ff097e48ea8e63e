"""The parts of a symmetric product that processes share: each entry in one of them, and the whole as their sum."""

from __future__ import annotations

import pytest
import torch

from gigagp.kernels import RBF, Matern
from gigagp.products import LowRankWeights, NativeTiles, TorchTiles, shared_tiles
from gigagp.products.shared_tiles import SharedTiles, _triangle
from gigagp.runtime.run import running

BUDGET = 2**26
ENGINES = [
    pytest.param(NativeTiles, marks=pytest.mark.skipif(not NativeTiles.available(), reason="not built")),
    pytest.param(lambda: TorchTiles(tile_bytes=2**13), id="torch"),
]


@pytest.mark.pairs
@pytest.mark.parametrize("make", ENGINES)
@pytest.mark.parametrize("n", [1, 97, 1300])
@pytest.mark.parametrize("parts", [2, 5, 16])
def test_every_entry_is_in_one_part(make, n, parts):
    X = torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    X[: n // 5] = X[-(n // 5) :] if n > 4 else X[: n // 5]  # repeated rows
    kernel, engine = Matern(1.5).bind(2), make()
    identity = torch.eye(n, dtype=torch.float64)
    found = [engine.product_part(kernel, X, identity, part, parts, budget=BUDGET) for part in range(parts)]
    assert torch.equal(sum((part != 0).long() for part in found), torch.ones(n, n, dtype=torch.int64))
    torch.testing.assert_close(sum(found), kernel.block(X, X).detach(), rtol=1e-12, atol=1e-13)


@pytest.mark.few(1)
@pytest.mark.parametrize("make", ENGINES)
def test_parts_are_about_equal(make):
    """Else one process would wait for another."""
    X = torch.rand(5000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel, engine, ones = RBF(lengthscale=1e4).bind(2), make(), torch.ones(5000, 1, dtype=torch.float64)
    sizes = [float(engine.product_part(kernel, X, ones, part, 4, budget=BUDGET).sum()) for part in range(4)]
    assert sum(sizes) == pytest.approx(5000**2, rel=1e-6)
    assert max(sizes) < 1.15 * min(sizes)


@pytest.mark.parametrize("make", ENGINES)
def test_one_part_is_the_product(make):
    generator = torch.Generator().manual_seed(0)
    X, V = (torch.randn(800, k, generator=generator) for k in (3, 4))
    kernel, engine = RBF().bind(3), make()
    expected = engine.product(kernel, X, X, V, budget=BUDGET)
    assert torch.equal(engine.product_part(kernel, X, V, 0, 1, budget=BUDGET), expected)


@pytest.mark.parametrize("terms", [4, 16, 64])
@pytest.mark.parametrize("n", [1100, 3001])
def test_the_blocks_of_a_gradient_are_a_triangle(terms, n):
    seen = torch.zeros(n, n, dtype=torch.int8)
    for rows, columns in _triangle(n, terms):
        seen[rows, columns] += 1
    assert int(seen.diagonal().min()) == 1
    assert bool((seen + seen.T >= 1).all())
    off = seen + seen.T
    blocks = [rows for rows, columns in _triangle(n, terms) if rows == columns]
    for rows in blocks:
        off[rows, rows] -= 1
    assert bool((off == 1).all())


class OneProcess:
    """Computes all terms that several processes would share, and adds them."""

    def total(self, like, n_terms, term, what, checked):
        return torch.stack([term(part) for part in range(n_terms)]).sum(0)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("make", ENGINES)
def test_a_gradient_in_terms_is_the_gradient(make, symmetric, monkeypatch):
    monkeypatch.setattr(shared_tiles, "SMALLEST", 0)
    generator = torch.Generator().manual_seed(0)
    X, L = (torch.randn(n, k, generator=generator, dtype=torch.float64) for n, k in ((300, 2), (300, 3)))
    Z, R = (X, L) if symmetric else (X[:170].contiguous(), torch.randn(170, 3, generator=generator).double())
    kernel, weights = Matern(1.5, [0.7, 1.3]).bind(2), LowRankWeights(L, R)
    expected = make().gradient(kernel, X, Z, weights, symmetric=symmetric, budget=BUDGET)
    with running(processes=OneProcess()):
        found = SharedTiles(make()).gradient(kernel, X, Z, weights, symmetric=symmetric, budget=BUDGET)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-10, atol=1e-10)
