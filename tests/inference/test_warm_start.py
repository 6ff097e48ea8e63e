"""Warm starts: exact residuals, never worse than zero, and the identities of section 2.10 of the notes."""

from __future__ import annotations

import pytest
import torch

from gigagp.diagnostics import squared_distance
from gigagp.inference.iterative.iterative import WarmStart
from gigagp.kernels import Matern
from gigagp.operators import KernelMatrix
from gigagp.solvers import Start
from helpers import DTYPES, generator, points

X = points(90, 3)
B = torch.randn(90, 5, generator=generator(4), dtype=torch.float64)


def matrix_at(lengthscale=1.0, variance=1.0, noise=0.05, dtype=torch.float64):
    return KernelMatrix(Matern(1.5, lengthscale, variance), X.to(dtype), noise)


def solutions(matrix, right_hand_sides):
    return torch.linalg.solve(matrix.to_dense().double(), right_hand_sides.double()).to(matrix.dtype)


def remembering(kind, *blocks):
    warm = WarmStart(kind)
    for block in blocks:
        warm.remember(block)
    return warm


def residual_of(start, matrix, right_hand_sides):
    return right_hand_sides - matrix @ start.value


@pytest.mark.parametrize("kind", ["none", "previous", "subspace"])
def test_nothing_to_start_from(kind):
    assert WarmStart(kind).start(matrix_at(), B) is None
    assert remembering("none", B).start(matrix_at(), B) is None


def test_previous_is_the_last_solution():
    first, second = points(90, 5, seed=1), points(90, 5, seed=2)
    start = remembering("previous", first, second).start(matrix_at(), B)
    assert isinstance(start, Start)
    assert torch.equal(start.value, second)
    assert start.residual is None  # the solver computes it, and counts the pass
    assert remembering("previous", first[:, :3]).start(matrix_at(), B) is None  # a different number of columns


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_residual_that_comes_along_is_true(dtype):
    old = [solutions(matrix_at(scale, dtype=dtype), B) for scale in (1.3, 1.1)]
    matrix = matrix_at(dtype=dtype)
    right = B.to(dtype)
    start = remembering("subspace", *old).start(matrix, right)
    assert start.epochs == 1
    tight = 1e-12 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(start.residual, residual_of(start, matrix, right), rtol=0, atol=tight)


@pytest.mark.parametrize("seed", range(5))
def test_the_subspace_is_never_worse_than_zero_nor_than_what_spans_it(seed):
    """In the norm of H, even for blocks that are unrelated to the system."""
    matrix = matrix_at()
    blocks = [10.0**seed * points(90, 5, seed=10 + seed), points(90, 5, seed=20 + seed)]
    exact = solutions(matrix, B)
    start = remembering("subspace", *blocks).start(matrix, B)
    distance = squared_distance(matrix, start.value, exact)
    zero = squared_distance(matrix, torch.zeros_like(B), exact)
    assert bool((distance <= zero * (1 + 1e-10)).all())
    assert bool((squared_distance(matrix, blocks[0], exact) > zero).any())  # the control: "previous" is much worse
    for block in blocks:
        assert bool((distance <= squared_distance(matrix, block, exact) * (1 + 1e-10)).all())


def test_the_subspace_contains_what_it_should():
    """A system whose solution lies in the span of the last two blocks is solved; older blocks are dropped."""
    matrix = matrix_at()
    exact = solutions(matrix, B)
    mixed = exact @ torch.randn(5, 5, generator=generator(1), dtype=torch.float64)
    for blocks in ((mixed, points(90, 5, seed=3)), (points(90, 5, seed=3), mixed)):
        start = remembering("subspace", *blocks).start(matrix, B)
        torch.testing.assert_close(start.value, exact, rtol=1e-7, atol=1e-7)
    forgotten = remembering("subspace", mixed, points(90, 5, seed=3), points(90, 5, seed=5)).start(matrix, B)
    assert not torch.allclose(forgotten.value, exact, rtol=1e-2)


def test_blocks_of_another_width_still_help():
    matrix = matrix_at()
    exact = solutions(matrix, B)
    start = remembering("subspace", exact[:, :2], exact[:, 1:4]).start(matrix, B)
    torch.testing.assert_close(start.value[:, :4], exact[:, :4], rtol=1e-7, atol=1e-7)


def test_equal_blocks_and_zero_blocks_do_no_harm():
    matrix = matrix_at()
    exact = solutions(matrix, B)
    for blocks in ((exact, exact), (torch.zeros_like(B), exact), (exact[:, :1].expand(-1, 5), exact)):
        start = remembering("subspace", *blocks).start(matrix, B)
        torch.testing.assert_close(start.value, exact, rtol=1e-7, atol=1e-7)


def test_more_columns_than_rows():
    small = KernelMatrix(Matern(1.5, 1.0, 1.0), points(8, 2), 0.1)
    right = points(8, 20, seed=1)
    start = remembering("subspace", points(8, 20, seed=2), points(8, 20, seed=3)).start(small, right)
    torch.testing.assert_close(start.value, solutions(small, right))  # the span is the whole space


def test_two_blocks_are_better_than_one_along_a_smooth_path():
    """The reason for the subspace: two past solutions extrapolate."""
    path = [solutions(matrix_at(lengthscale), B) for lengthscale in (1.2, 1.1)]
    matrix = matrix_at(1.0)
    exact = solutions(matrix, B)
    previous = remembering("previous", *path).start(matrix, B)
    subspace = remembering("subspace", *path).start(matrix, B)
    distances = [squared_distance(matrix, start.value, exact).sum() for start in (previous, subspace)]
    assert distances[1] < 0.25 * distances[0]
