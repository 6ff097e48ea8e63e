"""The states of a kernel at rows in the order of time, and passes over them in stretches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.kernels import Kernel
from gigagp.kernels.state_space import Component
from gigagp.products.filtering import Blocks, places

#: Most rows of a stretch, and the numbers that its matrices may have.
_MOST_ROWS, _NUMBERS = 2**14, 2**23


class Stretch(NamedTuple):
    """Consecutive rows in the order of time, with the steps that lead to them."""

    rows: slice
    transition: Tensor  # entries of the blocks of F, (k, B); zero at the first of all rows
    spread: Tensor  # and of Q; the prior covariance at the first of all rows
    seen: Tensor  # h, (k, q)


class States:
    """All components of a kernel as one state of q numbers, whose matrices have a block for each component."""

    def __init__(self, kernel: Kernel) -> None:
        self.components: tuple[Component, ...] = kernel.state_space()
        self.blocks = Blocks(tuple(one.size for one in self.components))

    @property
    def size(self) -> int:
        """Numbers of the state."""
        return self.blocks.n_states

    def seen(self, t: Tensor) -> Tensor:
        """Return h at times (n,), shape (n, q)."""
        return _beside(t, [one.seen(t) for one in self.components])

    def entries(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the entries of the blocks of F and Q for steps from times s to t, each (n, B)."""
        steps = [one.step(s, t) for one in self.components]
        return _beside(t, [F for F, _ in steps]), _beside(t, [Q for _, Q in steps])

    def covariance_entries(self, t: Tensor) -> Tensor:
        """Return the entries of the blocks of the prior covariance at times, (n, B)."""
        return _beside(t, [one.covariance(t) for one in self.components])

    def dense(self, entries: Tensor) -> Tensor:
        """Return blocks (n, B) as matrices (n, q, q)."""
        q, found = self.size, []
        for place, size, first in places(self.blocks.sizes):
            block = entries[:, first : first + size**2].unflatten(1, (size, size))
            found.append(torch.nn.functional.pad(block, (place, q - place - size)))
        return torch.cat([entries.new_zeros(len(entries), 0, q), *found], 1)

    def steps(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return F and Q of steps from times s to t, each (n, q, q)."""
        F, Q = self.entries(s, t)
        return self.dense(F), self.dense(Q)

    def covariance(self, t: Tensor) -> Tensor:
        """Return the prior covariance at times, (n, q, q)."""
        return self.dense(self.covariance_entries(t))

    def stretch(self, t: Tensor, rows: slice) -> Stretch:
        """Return the steps to some of the rows with sorted times t."""
        at = t[rows]
        before = torch.cat([t[max(rows.start - 1, 0)][None], at[:-1]])
        F, Q = self.entries(before, at)
        if rows.start == 0:
            F = torch.cat([torch.zeros_like(F[:1]), F[1:]])
            Q = torch.cat([self.covariance_entries(at[:1]), Q[1:]])
        return Stretch(rows, F.contiguous(), Q.contiguous(), self.seen(at).contiguous())

    def rows_at_once(self, n_columns: int = 1) -> int:
        """Return how many rows a stretch has, for passes with some columns."""
        q = max(self.size, 1)
        return max(16, min(_MOST_ROWS, _NUMBERS // (q * (q + n_columns))))

    def slices(self, n_rows: int, n_columns: int = 1) -> list[slice]:
        """Return the rows of all stretches."""
        size = self.rows_at_once(n_columns)
        return [slice(first, min(first + size, n_rows)) for first in range(0, n_rows, size)]

    def stretches(self, t: Tensor, n_columns: int = 1) -> Iterator[Stretch]:
        """Iterate over stretches of rows with sorted times."""
        for rows in self.slices(len(t), n_columns):
            yield self.stretch(t, rows)


def _beside(t: Tensor, parts: list[Tensor]) -> Tensor:
    """Return the numbers of parts (n, ...) side by side, (n, k); a kernel of white noise has none."""
    return torch.cat([t.new_zeros(len(t), 0), *(one.flatten(1) for one in parts)], 1)
