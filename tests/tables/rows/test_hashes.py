"""Hashes of rows: the compiled extension and torch make the same bits, of nothing but the numbers and the seed."""

from __future__ import annotations

import pytest
import torch

from gigagp.tables.rows import hashes
from gigagp.tables.rows.hashes import row_hashes

GENERATOR = torch.Generator().manual_seed(0)
X, Y = (torch.randn(100, width, dtype=torch.float64, generator=GENERATOR) for width in (3, 2))


@pytest.mark.skipif(hashes._native is None, reason="the compiled extension was not built")
def test_both_ways_make_the_same_bits(monkeypatch):
    compiled = row_hashes(X, Y, 2**63 + 5), row_hashes(X, Y, -1)
    monkeypatch.setattr(hashes, "_native", None)
    assert torch.equal(row_hashes(X, Y, 2**63 + 5), compiled[0])
    assert torch.equal(row_hashes(X, Y, -1), compiled[1])


def test_bits_belong_to_the_row():
    order = torch.randperm(100, generator=torch.Generator().manual_seed(1))
    assert torch.equal(row_hashes(X[order], Y[order], 7), row_hashes(X, Y, 7)[order])
    assert not bool((row_hashes(X, Y, 7) == row_hashes(X, Y, 8)).any())
    assert len(row_hashes(X, Y, 7).unique()) == 100
