"""Summing rows on a grid, a chunk at a time, or without W'W where all rows are held."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.operators.grid.statistics.geometry import RegularGrid
from gigagp.operators.grid.statistics.grid_sum import GridSum, grid_from_dict
from gigagp.operators.grid.statistics.moments import Moments, signs, survey
from gigagp.operators.grid.statistics.rows_gram import RowsGram
from gigagp.operators.grid.statistics.statistics import GridStatistics, row_noise, warn_if_repeated
from gigagp.operators.grid.statistics.sum_gram import SumMoments
from gigagp.runtime.memory import require, resolve_budget
from gigagp.settings.fields import Count, CountOrZero, Positive, checks_arguments
from gigagp.tables.rows.chunk import as_columns, as_table, refuse_not_finite
from gigagp.tables.rows.sample import SAMPLE_SIZE, RowSample


class Accumulator:
    """Sums rows in place, a chunk at a time, and returns their `GridStatistics`.

    Rows are gathered into blocks whose size the grid decides (`Moments.block_rows`). So a pass over many small chunks
    is as fast as one over few large chunks, and gives the same bits. A pass that stopped and went on from a `state`
    gives them too.

    Parameters
    ----------
    grid : RegularGrid or GridSum
    n_targets : int
    n_probes : int
    seed : int
    memory_budget : int, str or None
        Bytes; None: half of the free memory.
    start : GridStatistics, optional
        Statistics of rows that were added before.

    Raises
    ------
    MemoryBudgetError
        If the statistics on this grid do not fit.
    """

    @checks_arguments
    def __init__(
        self,
        grid: RegularGrid | GridSum,
        n_targets: Count,
        n_probes: CountOrZero = 0,
        seed: CountOrZero = 0,
        memory_budget: Positive | str | None = None,
        start: GridStatistics | None = None,
    ) -> None:
        needed = grid.statistics_bytes + 16 * grid.size * (n_targets + n_probes)
        require(
            needed,
            resolve_budget(memory_budget),
            f"Collecting statistics on a grid of {grid.size:,} nodes",
            "Use a coarser grid, raise memory_budget, or hold the rows: GPRegressor.fit can do without W'W.",
        )
        self.grid, self.start = grid, start
        #: Names of the inputs, for messages.
        self.names: Sequence[str] | None = None
        self._waiting: list[tuple[Tensor, Tensor]] = []
        settings = (n_targets, n_probes, seed)
        self._moments: Moments | SumMoments = (
            SumMoments(grid, *settings) if isinstance(grid, GridSum) else Moments(grid, *settings)
        )
        d = grid.n_inputs
        self._n_rows = 0
        self._target_squares = torch.zeros(n_targets, dtype=torch.float64)
        #: sum and sum of logarithms of the weights
        self._weights = torch.zeros(2, dtype=torch.float64)
        self._low = torch.full((d,), torch.inf, dtype=torch.float64)
        self._high = -self._low

    @property
    def n_rows(self) -> int:
        """Number of rows so far, including those of ``start``."""
        return self._n_rows + (self.start.n_rows if self.start is not None else 0)

    def add(self, X: Any, Y: Any, weights: Tensor | None = None) -> None:
        """Add rows: either all of them, or none and an error is raised.

        Parameters
        ----------
        X : array of shape (n, d)
        Y : array of shape (n,) or (n, t)
        weights : Tensor of shape (n,), optional
            Positive weights of the rows in all sums; ones by default.

        Raises
        ------
        InvalidInputError
            If a number is not finite, a row lies outside of the grid, or the shapes do not fit.
        """
        moments = self._moments
        X, Y = as_table(X, "X"), as_columns(Y)
        if X.shape[1] != self.grid.n_inputs or Y.shape != (len(X), moments.n_columns):
            raise InvalidInputError(
                f"X and Y must have shapes (n, {self.grid.n_inputs}) and (n, {moments.n_columns}); got "
                f"{tuple(X.shape)} and {tuple(Y.shape)}."
            )
        if not len(X):
            return
        inputs, targets = survey(X), survey(Y)
        for table, found, name in ((X, inputs, "X"), (Y, targets, "Y")):
            if bool(found.squares.isnan().any()):
                refuse_not_finite(table, name)
            if bool(found.squares.isinf().any()):
                raise InvalidInputError(f"{name} holds numbers whose squares overflow float64. Scale it down.")
        if not bool(self.grid.covers(torch.stack([inputs.low, inputs.high])).all()):
            raise self.grid.refusal(X, self.grid.covers(X), names=self.names)
        self._n_rows += len(X)
        self._low, self._high = torch.minimum(self._low, inputs.low), torch.maximum(self._high, inputs.high)
        if weights is not None:
            self._flush()
            self._weights += torch.stack([weights.sum(), weights.log().sum()])
            self._moments.add(X, Y, weights)
            self._target_squares += (weights[:, None] * Y.square()).sum(0)
            return
        self._weights[0] += len(X)
        size = moments.block_rows
        missing = (size - sum(len(part) for part, _ in self._waiting)) % size
        if missing and len(X) >= missing:  # the waiting rows and these fill a block
            self._wait(X[:missing], Y[:missing])
            self._flush()
            X, Y = X[missing:].contiguous(), Y[missing:].contiguous()
        elif missing:
            self._wait(X, Y)
            return
        whole = len(X) // size * size
        if whole:
            self._sum(X[:whole], Y[:whole])
        self._wait(X[whole:], Y[whole:])

    def _wait(self, X: Tensor, Y: Tensor) -> None:
        if len(X):  # a copy, because the caller may fill the same memory with the next rows
            self._waiting.append((X.clone(), Y.clone()))

    def _flush(self) -> None:
        if self._waiting:
            X, Y = (torch.cat(parts) for parts in zip(*self._waiting, strict=True))
            self._waiting = []
            self._sum(X, Y)

    def _sum(self, X: Tensor, Y: Tensor) -> None:
        """Sum rows, the first of which begins a block."""
        self._moments.add(X, Y)
        for block in Y.split(self._moments.block_rows):
            self._target_squares += survey(block).squares

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the sums as tensors and plain data, from which `resumed` goes on to the same bits; nothing changes."""
        d, t = self.grid.n_inputs, self._moments.n_columns
        X = [torch.zeros(0, d, dtype=torch.float64), *(part for part, _ in self._waiting)]
        Y = [torch.zeros(0, t, dtype=torch.float64), *(part for _, part in self._waiting)]
        tensors = {f"moments.{name}": value for name, value in self._moments.state().items()}
        tensors |= {"waiting.X": torch.cat(X), "waiting.Y": torch.cat(Y), "target_squares": self._target_squares}
        tensors |= {"weights": self._weights, "input_low": self._low, "input_high": self._high}
        counts = {"n_targets": t, "n_probes": self._moments.n_probes, "seed": self._moments.seed}
        return tensors, {"grid": self.grid.to_dict(), "n_rows": self._n_rows, **counts}

    @classmethod
    def resumed(
        cls, tensors: Mapping[str, Tensor], header: Mapping[str, Any], memory_budget: int | str | None = None
    ) -> Accumulator:
        """Return the accumulator that `state` described."""
        grid = grid_from_dict(header["grid"])
        found = cls(grid, header["n_targets"], header["n_probes"], header["seed"], memory_budget)
        found._moments.take_over(
            {name.removeprefix("moments."): value for name, value in tensors.items() if name.startswith("moments.")}
        )
        found._wait(tensors["waiting.X"], tensors["waiting.Y"])
        found._target_squares = tensors["target_squares"].clone()
        found._low, found._high = tensors["input_low"].clone(), tensors["input_high"].clone()
        found._n_rows = header["n_rows"]
        found._weights[0] = header["n_rows"]
        if "weights" in tensors:  # versions without weights did not write them
            found._weights.copy_(tensors["weights"])
        return found

    def statistics(self) -> GridStatistics:
        """Return the statistics of all rows so far. Rows added afterwards begin a new block."""
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
            # Every row's weights sum to one, on each grid of a sum.
            target_sums=cross[self.grid.places[0] if isinstance(self.grid, GridSum) else slice(None)].sum(0),
            probes=sums[:, moments.n_columns :].contiguous(),
            probe_squares=torch.full((n_probes,), float(self._n_rows), dtype=torch.float64),
            weight_sums=self._weights.clone(),
            seed=moments.seed,
            position_sums=position_sums,
            position_squares=position_squares,
            cell_counts=moments.counts(),
            input_low=self._low,
            input_high=self._high,
        )
        return found if self.start is None else self.start + found


def statistics_of_rows(
    grid: RegularGrid,
    X: Any,
    Y: Any,
    n_probes: int = 0,
    seed: int = 0,
    memory_budget: int | str | None = None,
    noise: Any = None,
    unit: float | None = None,
) -> GridStatistics:
    """Return what `GridStatistics.from_rows` does, with a `RowsGram` in the place of ``W'W``.

    It serves grids with so many nodes that ``W'W`` does not fit the memory budget. Every product reads the rows. A row
    of weight one has the noise variance ``unit``, by default the harmonic mean of ``noise``.
    """
    X, Y = as_table(X, "X"), as_columns(Y)
    n, t = Y.shape
    needed = RowsGram.forecast(grid, n) + 16 * grid.size * (t + n_probes)
    require(
        needed,
        resolve_budget(memory_budget),
        f"Collecting statistics of {n:,} rows on a grid of {grid.size:,} nodes without W'W",
        "Use a coarser grid, or raise memory_budget.",
    )
    weights = None
    if noise is not None:
        variances = row_noise(noise, n)
        unit = float(1 / (1 / variances).mean()) if unit is None else unit
        weights = unit / variances
    gram = RowsGram(grid, X, weights)
    column = torch.ones(n, 1, dtype=torch.float64) if weights is None else weights[:, None]
    probes = signs(X, Y, n_probes, seed) if n_probes else Y[:, :0]
    if n_probes:
        sample = RowSample(SAMPLE_SIZE, X.shape[1], t, seed)
        sample.add(X, Y)
        warn_if_repeated(sample)
    positions = grid.positions(X)
    cells = (grid.located(X)[0] * torch.tensor(grid.cell_strides)).sum(1)
    counts = torch.zeros(math.prod(grid.cells), dtype=torch.float64).index_add_(0, cells, column[:, 0])
    return GridStatistics(
        grid=grid,
        n_rows=n,
        gram=gram,
        cross=gram.scatter(column * Y),
        target_squares=(column * Y.square()).sum(0),
        target_sums=(column * Y).sum(0),
        probes=gram.scatter(column.sqrt() * probes),
        probe_squares=torch.full((n_probes,), float(n), dtype=torch.float64),
        seed=seed,
        position_sums=(column * positions).sum(0),
        position_squares=(column * positions.square()).sum(0),
        cell_counts=counts,
        input_low=X.amin(0),
        input_high=X.amax(0),
        weight_sums=torch.stack([column.sum(), column.log().sum()]),
        noise=unit,
    )
