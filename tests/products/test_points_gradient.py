"""Tiles: the derivative of a weighted sum of covariances in the points Z."""

from __future__ import annotations

import pytest
import torch

from gigagp.products.tiles import tiles_of
from helpers import DTYPES, all_kernels, points, reference_block, tolerance

ALL = all_kernels()
EVERY = slice(None)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_it_is_what_autograd_gives(name, same, dtype):
    """Where X is Z the points on the left are held: a symmetric sum has twice this slope."""
    kernel, Z = ALL[name], points(13, 4, seed=1, dtype=dtype)
    X = Z if same else points(21, 4, dtype=dtype)
    weights = points(len(X), 13, seed=2, dtype=dtype)
    moving = Z.double().clone().requires_grad_()
    block = reference_block(kernel, X.double(), moving)
    expected = torch.zeros(13, 4).double()
    if block.requires_grad:
        (expected,) = torch.autograd.grad(block, moving, weights.double())
    tiles = tiles_of(kernel, X, Z)
    tiles.follow_points()
    for rows in (slice(0, 8), slice(8, None)):  # two calls add up
        tiles.accumulate(rows, EVERY, weights[rows], 1.0)
    found = tiles.points_gradient()
    assert found.dtype == torch.float64
    scale = float(expected.abs().max()) or 1.0
    torch.testing.assert_close(found, expected, rtol=0, atol=100 * scale * tolerance(dtype))
    if not same and scale > 1:
        half = tiles_of(kernel, X, Z)  # the control: half of the rows
        half.follow_points()
        half.accumulate(slice(0, 8), EVERY, weights[:8], 1.0)
        assert not torch.allclose(half.points_gradient(), expected, atol=100 * scale * tolerance(dtype))


@pytest.mark.parametrize("name", ["matern32", "nested"])
def test_it_is_left_out_unless_asked_for(name):
    tiles = tiles_of(ALL[name], points(5, 4), points(4, 4, seed=1))
    tiles.accumulate(EVERY, EVERY, points(5, 4), 1.0)
    with pytest.raises(AssertionError, match="follow_points comes first"):
        tiles.points_gradient()
