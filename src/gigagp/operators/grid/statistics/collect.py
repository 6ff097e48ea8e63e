"""Statistics of rows that are read once, from files, folders or generators, by one process or several."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.operators.grid.statistics.accumulator import Accumulator
from gigagp.operators.grid.statistics.geometry import RegularGrid
from gigagp.operators.grid.statistics.grid_sum import GridSum
from gigagp.operators.grid.statistics.neighbourhoods import Neighbourhoods
from gigagp.operators.grid.statistics.statistics import GridStatistics, load_kind, warn_if_repeated
from gigagp.runtime.progress import Meter, NoProgress
from gigagp.storage.tensor_file import save_state
from gigagp.tables.rows.chunk import CHUNK_ROWS, Chunk, as_columns, as_table
from gigagp.tables.rows.sample import SAMPLE_SIZE, RowSample
from gigagp.tables.rows.source import stream_rows

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_KIND = "GridCollector"


class GridCollector:
    """Sums the rows of sources on a grid, and keeps track of what has been read.

    ::

        low, high, n = source_bounds("radar/", ["x", "y", "z"], ["dbz"])
        collector = GridCollector(RegularGrid.around(low, high, (160, 80, 10)), n_targets=1, n_probes=16)
        collector.read("radar/", ["x", "y", "z"], ["dbz"])
        statistics = collector.statistics()

    After an error all rows before it are kept. The error names a damaged file. Once the file has been repaired or
    removed, `read` with the same arguments goes on where it stopped.

    Parameters
    ----------
    grid : RegularGrid or GridSum
    n_targets : int
    n_probes : int
        Number of columns of random signs to sum, for log-determinants.
    seed : int
        Seed of these signs and of the sample.
    sample_size : int
        Number of rows to keep as a random sample.
    neighbourhoods : Neighbourhoods, optional
        Centres whose nearest rows are kept.
    memory_budget : int, str or None
        Bytes; None: half of the free memory.

    Attributes
    ----------
    done : dict of str to int
        Number of rows read of each file, by its path.
    sample : RowSample
    neighbourhoods : Neighbourhoods or None
    notes : dict
        Anything that JSON can hold; saved and loaded with the rest.

    Raises
    ------
    MemoryBudgetError
        If the statistics on this grid do not fit.
    """

    def __init__(
        self,
        grid: RegularGrid | GridSum,
        n_targets: int = 1,
        n_probes: int = 0,
        seed: int = 0,
        *,
        sample_size: int = SAMPLE_SIZE,
        neighbourhoods: Neighbourhoods | None = None,
        memory_budget: int | str | None = None,
    ) -> None:
        settings = (grid, n_targets, n_probes, seed)
        self._prepare(settings, memory_budget, Accumulator(*settings, memory_budget))
        self.sample = RowSample(sample_size, grid.n_inputs, n_targets, seed)
        self.neighbourhoods = neighbourhoods

    def _prepare(
        self, settings: tuple[RegularGrid | GridSum, int, int, int], memory_budget: int | str | None, sums: Accumulator
    ) -> None:
        self.grid, self.n_targets = settings[:2]
        self.done: dict[str, int] = {}
        self.notes: dict[str, Any] = {}
        self._settings, self._accumulator = (*settings, memory_budget), sums

    @property
    def n_rows(self) -> int:
        """Number of rows so far."""
        return self._accumulator.n_rows

    def name_inputs(self, names: Sequence[str] | None) -> None:
        """Set the names of the inputs in messages."""
        self._accumulator.names = names

    def add(self, X: Any, Y: Any) -> None:
        """Add rows that are in memory: either all of them, or none and `InvalidInputError` is raised.

        Parameters
        ----------
        X : array of shape (n, d)
        Y : array of shape (n,) or (n, t)
        """
        X, Y = as_table(X, "X"), as_columns(Y)
        self._accumulator.add(X, Y)
        self.sample.add(X, Y)
        if self.neighbourhoods is not None:
            self.neighbourhoods.add(X, Y)

    def read(
        self,
        source: Any,
        inputs: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        *,
        chunk_rows: int = CHUNK_ROWS,
        share: tuple[int, int] = (0, 1),
        meter: Meter | None = None,
    ) -> GridCollector:
        """Add all rows of a source that have not been read yet.

        Parameters
        ----------
        source, inputs, targets, chunk_rows, share
            As for `gigagp.grids.stream_rows`.
        meter : Meter, optional
            Is updated after every chunk.

        Returns
        -------
        GridCollector
            This one.

        Raises
        ------
        InvalidInputError
            If a part cannot be read or used; the message names the file. All rows before it are kept, and are not read
            again.
        """
        meter = meter or NoProgress()
        meter.phase("reading the table", unit="row")
        if inputs is not None:
            self.name_inputs(inputs)
        try:
            for rows in stream_rows(source, inputs, targets, chunk_rows=chunk_rows, done=self.done, share=share):
                self.take(rows)
                meter.reached(self.n_rows)
        except InvalidInputError as error:
            msg = f"{error} The {self.n_rows:,} rows before it are kept"
            files = isinstance(source, (str, os.PathLike))
            msg += "; mend or remove the file and read again: what is done is skipped." if files else "."
            raise InvalidInputError(msg) from error
        finally:
            meter.close()
        return self

    def take(self, rows: Chunk) -> None:
        """Add a chunk of a source, and note how much of its file has been read.

        If a row cannot be used, `InvalidInputError` names the file, and no row of the chunk is added.
        """
        try:
            self.add(rows.X, rows.Y)
        except InvalidInputError as error:
            msg = f"{rows.part or 'the source'}, rows after its first {rows.first:,}: {error}"
            raise InvalidInputError(msg) from error
        if rows.part:
            self.done[rows.part] = rows.last

    def statistics(self) -> GridStatistics:
        """Return the statistics of all rows so far.

        With probes it warns if more than a tenth of the rows are copies of others. Equal rows share their random signs,
        which biases log-determinants.
        """
        if self._settings[2]:
            warn_if_repeated(self.sample)
        return self._accumulator.statistics()

    def all_reduce(self, group: ProcessGroup | None = None) -> GridCollector:
        """Return the collector of the rows of all processes of a ``torch.distributed`` group, the same on each.

        Sums are added in one all-reduce; samples and neighbourhoods are merged.

        Raises
        ------
        InvalidInputError
            If the processes have different grids, targets, probes or seeds; raised in every process.
        """
        import torch.distributed as dist

        found = GridCollector(self.grid, *self._settings[1:4], memory_budget=self._settings[4])
        found._accumulator = Accumulator(*self._settings, start=self._accumulator.statistics().all_reduce(group))
        parts: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(parts, (self.sample, self.neighbourhoods), group=group)
        found.sample, found.neighbourhoods = parts[0]
        for sample, near in parts[1:]:
            found.sample = found.sample + sample
            if found.neighbourhoods is not None:
                found.neighbourhoods = found.neighbourhoods + near
        found.notes = self.notes
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write sums, samples, notes and what has been read to one file, atomically; the collector does not change.

        A collector that is loaded from it goes on to the same bits as this one.
        """
        tensors, header = self._accumulator.state()
        parts = {"sample": self.sample, "near": self.neighbourhoods}
        header |= {"done": self.done, "notes": self.notes}
        for name, part in parts.items():
            if part is not None:
                own, header[name] = part.state()
                tensors |= {f"{name}.{key}": value for key, value in own.items()}
        save_state(path, _KIND, tensors, header)

    @classmethod
    def load(cls, path: str | os.PathLike[str], memory_budget: int | str | None = None) -> GridCollector:
        """Return the collector that was saved; raises `ModelFileError` if the file is damaged or of another kind."""
        tensors, header = load_kind(path, _KIND)

        def part(name: str) -> dict[str, Tensor]:
            return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}

        if "n_targets" in header:
            sums = Accumulator.resumed(tensors, header, memory_budget)
            settings = (sums.grid, header["n_targets"], header["n_probes"], header["seed"])
        else:  # written by a version that kept statistics
            start = GridStatistics.from_state(tensors, header)
            settings = (start.grid, start.n_targets, start.n_probes, start.seed)
            sums = Accumulator(*settings, memory_budget, start)
        found = cls.__new__(cls)
        found._prepare(settings, memory_budget, sums)
        found.neighbourhoods = None
        found.sample = RowSample.from_state(part("sample"), header["sample"])
        if "near" in header:
            found.neighbourhoods = Neighbourhoods.from_state(part("near"), header["near"])
        found.done = {str(file): int(rows) for file, rows in header["done"].items()}
        found.notes = header["notes"]
        return found
