"""Grids and rows for the tests here, and the two ways to add them up."""

from __future__ import annotations

import pytest
import torch

from gigagp.operators.grid.statistics import RegularGrid, gram, moments
from gigagp.tables.rows import hashes

#: dimensions -> nodes; the longest input first, in the middle and last
SHAPES = {1: (31,), 2: (9, 13), 3: (12, 7, 8), 4: (6, 6, 7, 6)}


@pytest.fixture(params=["compiled", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with the compiled extension and without it."""
    if request.param == "torch":
        monkeypatch.setattr(moments, "_native", None)
        monkeypatch.setattr(gram, "_native", None)
        monkeypatch.setattr(hashes, "_native", None)
    elif moments._native is None:
        pytest.skip("the compiled extension was not built")
    return request.param


def rows(n: int, d: int, t: int = 1, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs of different scales and places, and targets."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, dtype=torch.float64, generator=generator) * torch.arange(1, d + 1) * 10 - 7
    return X, torch.randn(n, t, dtype=torch.float64, generator=generator) + 2


@pytest.fixture
def golden() -> tuple[RegularGrid, torch.Tensor, torch.Tensor]:
    """Return the golden problem of papers/faster-kernel-interpolation.md, section 10: grid, X (40, 1), y (40, 1)."""
    i = torch.arange(1, 41, dtype=torch.float64)
    x = torch.frac(i * 0.6180339887498949)
    y = torch.sin(4 * torch.pi * x) + 0.3 * torch.cos(37 * i)
    return RegularGrid((-0.1,), (0.1,), (14,)), x[:, None], y[:, None]
