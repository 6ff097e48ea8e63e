"""Recursions along the time: the Kalman filter, the smoother with its gradient, and sums of what a state carries.

The state x of a row follows from that of the row before as ``x_i = F_i x_(i-1) + w_i``, where w has the covariance
``Q_i``, and the row shows ``h_i' x_i`` with noise. F and Q have blocks on their diagonals, whose entries are stored row
by row, one block after another: shape (n, B) with ``B = sum of squared sizes``. States before the first row are zero.

All arrays are float64 and contiguous. Functions work on stretches of rows and change what they carry from one stretch
to the next in place. The loops are compiled (``native/filter.cpp``); without the extension NumPy runs the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gigagp.products.extension import native as _native

Array = np.ndarray


class Filtered(NamedTuple):
    """What the filter finds in a stretch of n rows."""

    errors: Array  # of each row, predicted from the rows before, (n, c)
    variances: Array  # of these errors, (n,)
    gains: Array  # by which an error moves the state, (n, q)
    means: Array | None  # of the states before the first row and after each row, given the rows so far, (n + 1, q, c)
    covariances: Array | None  # of the same, (n + 1, q, q)


class Smoothed(NamedTuple):
    """What the smoother finds in a stretch of n rows, for the covariance H of all rows."""

    solutions: Array  # ``H^-1`` times the columns, (n, c)
    precisions: Array  # diagonal of ``H^-1``, (n,)
    pulls: Array | None  # r: a state predicted with mean m and covariance P has the mean ``m + P r``, (n, q, c)
    informations: Array | None  # N: and the covariance ``P - P N P``, (n, q, q)
    by_transition: Array | None  # derivatives of the log likelihood of all columns together, by F and by Q, (n, B)
    by_spread: Array | None
    by_seen: Array | None  # and by h, (n, q)


@dataclass(frozen=True)
class Blocks:
    """The loops for states with blocks of these sizes, compiled where they can be.

    ``instruction_set`` is one of `NativeTiles.instruction_sets`, "" for the best one, and None for the loops in NumPy.
    """

    sizes: tuple[int, ...]
    instruction_set: str | None = None if _native is None else ""

    @property
    def n_states(self) -> int:
        """Numbers of a state."""
        return sum(self.sizes)

    @property
    def n_entries(self) -> int:
        """Entries of the blocks."""
        return sum(size**2 for size in self.sizes)

    def forward(
        self,
        transition: Array,
        spread: Array,
        seen: Array,
        noise: Array,
        values: Array,
        mean: Array,
        covariance: Array,
        *,
        keep: bool = False,
    ) -> Filtered:
        """Filter columns (n, c) of values with noise variances (n,), and carry ``mean`` (q, c) and ``covariance``."""
        n, (q, c) = len(values), mean.shape
        found = Filtered(
            np.empty((n, c)),
            np.empty(n),
            np.empty((n, q)),
            np.empty((n + 1, q, c)) if keep else None,
            np.empty((n + 1, q, q)) if keep else None,
        )
        kept: tuple[Array | None, Array | None] = None, None
        if found.means is not None and found.covariances is not None:
            found.means[0], found.covariances[0] = mean, covariance
            kept = found.means[1:], found.covariances[1:]
        given = transition, spread, seen, noise, values, mean, covariance
        if self.instruction_set is not None:
            _native.filter_forward(self.instruction_set, list(self.sizes), *given, *found[:3], *kept)
            return found
        for i in range(n):
            F, h = self._dense(transition[i]), seen[i]
            m, P = F @ mean, F @ covariance @ F.T + self._dense(spread[i])
            u = P @ h
            found.variances[i] = noise[i] + h @ u
            k = found.gains[i] = u / found.variances[i]
            found.errors[i] = values[i] - h @ m
            mean[:] = m + np.outer(k, found.errors[i])
            # (I - k h') P (I - k h')' + noise k k', which stays positive where the noise is tiny
            P = P - np.outer(k, u)
            P = P - np.outer(P @ h - noise[i] * k, k)
            covariance[:] = 0.5 * (P + P.T)
            if kept[0] is not None and kept[1] is not None:
                kept[0][i], kept[1][i] = mean, covariance
        return found

    def backward(
        self,
        transition: Array,
        seen: Array,
        found: Filtered,
        pull: Array,
        information: Array,
        states: tuple[Array, Array] | None = None,
        *,
        keep: bool = False,
        by_seen: bool = False,
    ) -> Smoothed:
        """Smooth a stretch that has been filtered, and carry ``pull`` (q, c) and ``information`` (q, q) to the left.

        ``states`` are means and covariances as the filter keeps them, for the gradient.
        """
        n, (q, c), entries = len(transition), pull.shape, self.n_entries
        means, covariances = (None, None) if states is None else states
        smooth = Smoothed(
            np.empty((n, c)),
            np.empty(n),
            np.empty((n, q, c)) if keep else None,
            np.empty((n, q, q)) if keep else None,
            None if states is None else np.empty((n, entries)),
            None if states is None else np.empty((n, entries)),
            np.empty((n, q)) if by_seen else None,
        )
        if self.instruction_set is not None:
            given = transition, seen, found.errors, found.variances, found.gains, pull, information, *smooth[:4]
            _native.filter_backward(self.instruction_set, list(self.sizes), *given, means, covariances, *smooth[4:])
            return smooth
        for i in range(n - 1, -1, -1):
            F, h, k, variance = self._dense(transition[i]), seen[i], found.gains[i], found.variances[i]
            g = information @ k
            smooth.precisions[i] = 1 / variance + k @ g
            smooth.solutions[i] = found.errors[i] / variance - k @ pull
            if smooth.by_seen is not None and means is not None and covariances is not None:
                smoothed = means[i + 1] + covariances[i + 1] @ pull
                smooth.by_seen[i] = smoothed @ smooth.solutions[i] - c * (k - covariances[i + 1] @ g)
            r = pull + np.outer(h, smooth.solutions[i])
            N = information - np.outer(g, h)
            N = N - np.outer(h, k @ N - h / variance)
            N = 0.5 * (N + N.T)
            if smooth.pulls is not None and smooth.informations is not None:
                smooth.pulls[i], smooth.informations[i] = r, N
            if means is not None and covariances is not None:
                assert smooth.by_transition is not None, "there is a gradient"
                assert smooth.by_spread is not None, "there is a gradient"
                G = 0.5 * (r @ r.T - c * N)
                smooth.by_spread[i] = self._entries(G)
                smooth.by_transition[i] = self._entries(r @ means[i].T + 2 * G @ F @ covariances[i])
            pull[:], information[:] = F.T @ r, F.T @ N @ F
        return smooth

    def accumulate(self, transition: Array, values: Array, state: Array) -> Array:
        """Return ``a_i = F_i a_(i-1) + v_i``, (n, q, c), and carry ``state`` (q, c), the last a."""
        out = np.empty(values.shape)
        if self.instruction_set is not None:
            _native.filter_accumulate(self.instruction_set, list(self.sizes), transition, values, state, out)
            return out
        for i in range(len(values)):
            state[:] = out[i] = self._dense(transition[i]) @ state + values[i]
        return out

    def transfer(
        self, transition: Array, seen: Array, gains: Array, begins: Array, ends: Array, state: Array, out: Array
    ) -> None:
        """Write how errors of predicted states pass segments of rows to ``out`` (segments, q, q).

        A segment begins at a row where ``begins`` is true, before which its state is predicted, and its matrix is
        written after the row where ``ends`` has its number; elsewhere ``ends`` is -1.
        """
        if self.instruction_set is not None:
            _native.filter_transfer(
                self.instruction_set, list(self.sizes), transition, seen, gains, begins, ends, state, out
            )
            return
        for i in range(len(transition)):
            state[:] = np.eye(len(state)) if begins[i] else self._dense(transition[i]) @ state
            state -= np.outer(gains[i], seen[i] @ state)
            if ends[i] >= 0:
                out[ends[i]] = state

    def _dense(self, entries: Array) -> Array:
        """Return blocks (B,) as a matrix (q, q)."""
        out = np.zeros((self.n_states, self.n_states))
        for place, size, first in places(self.sizes):
            block = entries[first : first + size**2]
            out[place : place + size, place : place + size] = block.reshape(size, size)
        return out

    def _entries(self, matrix: Array) -> Array:
        """Return the blocks of a matrix (q, q), shape (B,)."""
        blocks = [matrix[place : place + size, place : place + size] for place, size, _ in places(self.sizes)]
        return np.concatenate([block.reshape(-1) for block in blocks])


def places(sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Iterate over blocks: the place in the state, the size, and the place among the entries of all blocks."""
    place = first = 0
    for size in sizes:
        yield place, size, first
        place, first = place + size, first + size**2
