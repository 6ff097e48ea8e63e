"""The compiled recursions along the time against those in NumPy, on states with blocks of every form."""

from __future__ import annotations

import numpy as np
import pytest

from gigagp.products import filtering
from gigagp.products.filtering import Blocks
from gigagp.products.native_tiles import NativeTiles
from helpers import close

compiled = pytest.mark.skipif(filtering._native is None, reason="without the compiled extension there is one engine")
SETS = NativeTiles.instruction_sets()
SIZES = [(1,), (2,), (3,), (4,), (5,), (2, 1), (3, 2, 2, 1), (1,) * 19]


def problem(sizes, n=37, c=3):
    draw = np.random.default_rng(len(sizes) + sum(sizes))
    q, entries = sum(sizes), sum(size**2 for size in sizes)
    transition, spread = 0.4 * draw.normal(size=(n, entries)), np.zeros((n, entries))
    for _, size, first in filtering.places(sizes):
        roots = draw.normal(size=(n, size, size))
        spread[:, first : first + size**2] = (roots @ roots.transpose(0, 2, 1)).reshape(n, -1)
        transition[9:30, first : first + size**2] = np.eye(size).ravel()  # rows at one time
    spread[9:30] = 0.0
    noise = draw.uniform(1e-6, 1.0, n)
    return transition, spread, draw.normal(size=(n, q)), noise, draw.normal(size=(n, c))


def passes(sizes, instruction_set):
    """Return everything that the loops compute for a problem, in two stretches."""
    blocks, (F, Q, h, noise, y) = Blocks(sizes, instruction_set), problem(sizes)
    n, c, q = *y.shape, blocks.n_states
    carried, back = (np.zeros((q, c)), np.eye(q)), (np.zeros((q, c)), np.zeros((q, q)))
    parts = [slice(0, 20), slice(20, n)]
    found = [blocks.forward(F[some], Q[some], h[some], noise[some], y[some], *carried, keep=True) for some in parts]
    out = [*carried, *(one for each in found for one in each)]
    for some, each in zip(reversed(parts), reversed(found), strict=True):
        states = each.means, each.covariances
        smooth = blocks.backward(F[some], h[some], each, *back, states, keep=True, by_seen=True)
        out += [*smooth, *back]
    values = np.random.default_rng(1).normal(size=(n, q, 2))
    state = np.ones((q, 2))
    out += [blocks.accumulate(F, values, state), state]
    begins, ends = np.zeros(n, bool), np.full(n, -1)
    begins[[3, 15]], ends[[14, 30]] = True, [0, 1]
    state, segments = np.zeros((q, q)), np.zeros((2, q, q))
    gains = np.concatenate([each.gains for each in found])
    for some in parts:
        blocks.transfer(F[some], h[some], gains[some], begins[some], ends[some], state, segments)
    return [*out, segments]


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_compiled_loops_are_those_of_numpy(sizes, instruction_set):
    for found, expected in zip(passes(sizes, instruction_set), passes(sizes, None), strict=True):
        close(found, expected, condition=1e4)


@pytest.mark.parametrize("instruction_set", [pytest.param("", marks=compiled), None])
@pytest.mark.parametrize("sizes", [(2,), (3, 2, 2, 1), (1,) * 19], ids=str)
def test_the_filter_is_dense_algebra(sizes, instruction_set):
    """Errors and solutions against the covariance of all rows, formed from the steps."""
    blocks, (F, Q, h, noise, y) = Blocks(sizes, instruction_set), problem(sizes)
    n, q = len(y), blocks.n_states
    P, states = np.zeros((q, q)), np.zeros((n, n, q, q))  # covariances of states, the later one first
    for i in range(n):
        dense = blocks._dense(F[i])
        for j in range(i):
            states[i, j] = dense @ states[i - 1, j]
        P = states[i, i] = dense @ P @ dense.T + blocks._dense(Q[i])
    H = np.array([[h[max(i, j)] @ states[max(i, j), min(i, j)] @ h[min(i, j)] for j in range(n)] for i in range(n)])
    H += np.diag(noise)
    found = blocks.forward(F, Q, h, noise, y, np.zeros((q, 3)), np.zeros((q, q)))
    smooth = blocks.backward(F, h, found, np.zeros((q, 3)), np.zeros((q, q)))
    condition = float(np.linalg.cond(H))
    close(np.log(found.variances).sum(), np.linalg.slogdet(H)[1], condition=condition)
    close(smooth.solutions, np.linalg.solve(H, y), condition=condition)
    close(smooth.precisions, np.linalg.inv(H).diagonal().copy(), condition=condition)


@compiled
def test_wrong_arrays_are_refused():
    blocks, (F, Q, h, noise, y) = Blocks((2, 1)), problem((2, 1))
    good = [F, Q, h, noise, y, np.zeros((3, 3)), np.zeros((3, 3))]
    for place, bad in (
        (1, Q[:, :-1]),
        (2, h[:-1]),
        (3, noise.astype(np.float32)),
        (4, y[:, ::2]),
        (6, np.zeros((2, 2))),
    ):
        arrays = list(good)
        arrays[place] = bad
        with pytest.raises(ValueError, match="native filter"):
            blocks.forward(*arrays)
