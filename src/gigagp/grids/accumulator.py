"""Adding rows up on a grid, a chunk at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.grids.geometry import RegularGrid
from gigagp.grids.moments import Moments, survey
from gigagp.grids.statistics import GridStatistics
from gigagp.grids.tables import as_columns, as_table, refuse_not_finite
from gigagp.memory import require, resolve_budget

#: Rows are gathered up to this number, so that a pass over many small chunks is as fast as over few large ones.
_GATHERED = 2**20


class Accumulator:
    """Adds rows up in place, a chunk at a time; `GridStatistics` come out of it.

    Parameters
    ----------
    grid : RegularGrid
    n_targets : int
    n_probes : int
    seed : int
    memory_budget : int, str or None
        Bytes; None: half of what is free.
    start : GridStatistics, optional
        Rows that were added before.

    Raises
    ------
    MemoryBudgetError
        If the statistics on this grid do not fit.
    """

    def __init__(
        self,
        grid: RegularGrid,
        n_targets: int,
        n_probes: int = 0,
        seed: int = 0,
        memory_budget: int | str | None = None,
        start: GridStatistics | None = None,
    ) -> None:
        if n_targets < 1 or n_probes < 0:
            msg = f"Statistics need a target and no negative number of probes; got {n_targets} and {n_probes}."
            raise InvalidInputError(msg)
        needed = grid.statistics_bytes + 16 * grid.size * (n_targets + n_probes)
        require(
            needed,
            resolve_budget(memory_budget),
            f"Collecting statistics on a grid of {grid.size:,} nodes",
            "Use a coarser grid, or raise memory_budget.",
        )
        self.grid, self.start = grid, start
        #: of the inputs, for messages
        self.names: Sequence[str] | None = None
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._moments = Moments(grid, n_targets, n_probes, seed)
        d = grid.n_inputs
        self._n_rows = 0
        self._target_squares = torch.zeros(n_targets, dtype=torch.float64)
        self._low = torch.full((d,), torch.inf, dtype=torch.float64)
        self._high = -self._low

    @property
    def n_rows(self) -> int:
        """Rows so far, those of ``start`` included."""
        return self._n_rows + (self.start.n_rows if self.start is not None else 0)

    def add(self, X: Any, Y: Any) -> None:
        """Add rows. Either all of them are added, or an error is raised and none is.

        Parameters
        ----------
        X : array of shape (n, d)
        Y : array of shape (n,) or (n, t)

        Raises
        ------
        InvalidInputError
            If a number is not finite, a row lies outside of the grid, or the shapes do not fit.
        """
        moments = self._moments
        X, Y = as_table(X, "X"), as_columns(Y)
        if X.shape[1] != self.grid.n_inputs or Y.shape != (len(X), moments.n_columns):
            msg = (
                f"X and Y must have shapes (n, {self.grid.n_inputs}) and (n, {moments.n_columns}); got "
                f"{tuple(X.shape)} and {tuple(Y.shape)}."
            )
            raise InvalidInputError(msg)
        if not len(X):
            return
        inputs, targets = survey(X), survey(Y)
        for table, found, name in ((X, inputs, "X"), (Y, targets, "Y")):
            if bool(found.squares.isnan().any()):
                refuse_not_finite(table, name)
            if bool(found.squares.isinf().any()):
                msg = f"{name} holds numbers whose squares overflow float64. Scale it down."
                raise InvalidInputError(msg)
        if not bool(self.grid.covers(torch.stack([inputs.low, inputs.high])).all()):
            raise self.grid.refusal(X, self.grid.covers(X), names=self.names)
        self._n_rows += len(X)
        self._target_squares += targets.squares
        self._low, self._high = torch.minimum(self._low, inputs.low), torch.maximum(self._high, inputs.high)
        if len(X) >= _GATHERED:
            moments.add(X, Y)
            return
        # A copy: whoever gave them may use the same memory for the next ones.
        self._waiting.append((X.clone(), Y.clone()))
        if sum(len(part) for part, _ in self._waiting) >= _GATHERED:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            X, Y = (torch.cat(parts) for parts in zip(*self._waiting, strict=True))
            self._waiting = []
            self._moments.add(X, Y)

    def statistics(self) -> GridStatistics:
        """Return the statistics of all rows so far; more can be added afterwards."""
        self._flush()
        moments, n_probes = self._moments, self._moments.n_probes
        sums = moments.columns.T
        position_sums, position_squares = moments.position_sums()
        cross = sums[:, : moments.n_columns].contiguous()
        found = GridStatistics(
            grid=self.grid,
            n_rows=self._n_rows,
            gram=moments.gram(),
            cross=cross,
            target_squares=self._target_squares.clone(),
            target_sums=cross.sum(0),  # every row's weights sum to one
            probes=sums[:, moments.n_columns :].contiguous(),
            probe_squares=torch.full((n_probes,), float(self._n_rows), dtype=torch.float64),
            seed=moments.seed,
            position_sums=position_sums,
            position_squares=position_squares,
            cell_counts=moments.counts(),
            input_low=self._low,
            input_high=self._high,
        )
        return found if self.start is None else self.start + found
