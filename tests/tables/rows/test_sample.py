"""Samples by content: random, without replacement, the same in any order."""

from __future__ import annotations

import pytest
import torch

from gigagp.tables.rows import RowSample


def rows(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, 2, dtype=torch.float64, generator=generator)
    return X, torch.randn(n, 1, dtype=torch.float64, generator=generator)


def test_a_sample_is_random_and_the_same_in_any_order():
    X, Y = rows(20_000)
    one = RowSample(500, 2, 1, seed=3)
    one.add(X, Y)
    order = torch.randperm(20_000, generator=torch.Generator().manual_seed(0))
    parts = [RowSample(500, 2, 1, seed=3) for _ in range(3)]
    for place, chunk in enumerate(order.split(700)):
        parts[place % 3].add(X[chunk].contiguous(), Y[chunk].contiguous())
    merged = parts[0] + parts[1] + parts[2]
    assert torch.equal(one.X, merged.X)
    assert torch.equal(one.Y, merged.Y)
    assert merged.n_rows == 20_000
    assert abs(float(one.Y.mean()) - float(Y.mean())) < 4 / 500**0.5
    assert one.n_different == pytest.approx(20_000, rel=4 / 500**0.5)
    # Equal rows count once, and the estimate tells.
    one.add(X, Y)
    assert len(one) == 500
    assert one.n_different == pytest.approx(20_000, rel=4 / 500**0.5)
    other = RowSample(500, 2, 1, seed=4)
    other.add(X, Y)
    assert not torch.equal(other.X, one.X)
    # However often rows are repeated, the sample is of the different ones.
    few = RowSample(50, 2, 1, seed=3)
    few.add(X[:400].repeat(25, 1), Y[:400].repeat(25, 1))
    single = RowSample(50, 2, 1, seed=3)
    single.add(X[:400].contiguous(), Y[:400].contiguous())
    assert torch.equal(few.X, single.X)
    assert few.n_different == single.n_different == pytest.approx(400, rel=4 / 50**0.5)
