"""Rows in files: one file of any kind, or a folder of Parquet and CSV files. Importing this loads pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from gigagp.tables.files import streaming
from gigagp.tables.files.folders import PARQUET, table_files
from gigagp.tables.files.labels import Labels
from gigagp.tables.rows.chunk import Chunk
from gigagp.tables.rows.storage import Bounds, Storage


@dataclass(frozen=True)
class FileRows(Storage):
    """Rows of a file or a folder of files.

    Parameters
    ----------
    path : Path
    header : bool, optional
        For CSV files: whether the first line holds the names; None: detected.
    labels : Labels, optional
        If given, the target columns hold class labels, and chunks hold their codes.
    inputs, targets : sequence of str
        Names of the columns that are used.
    """

    is_named = in_files = True

    path: Path
    header: bool | None = None
    labels: Labels | None = None
    inputs: Sequence[str] = ()
    targets: Sequence[str] = ()

    @cached_property
    def files(self) -> dict[str, Path]:
        """The files by the names that chunks carry."""
        return {str(file): file for file in table_files(self.path)}

    @property
    def parts(self) -> list[str]:
        return list(self.files)

    @property
    def shares_whole_parts(self) -> bool:
        """Whether the table is a folder, whose files are shared out among processes."""
        return self.path.is_dir()

    def column_names(self) -> list[str]:
        """Return the names of all columns of the first file."""
        return streaming.column_names(self.path, self.header)

    def select(self, inputs: Sequence[str], targets: Sequence[str]) -> FileRows:
        """Return the same rows with these columns; whether a file has them is checked when it is read."""
        return replace(self, inputs=tuple(inputs), targets=tuple(targets))

    def read(self, part: str, chunk_rows: int, first_row: int = 0) -> Iterator[Chunk]:
        last = first_row
        for table in streaming.stream_file(
            self.files[part], self._columns, chunk_rows, first_row, self.header, self._labels_by_column
        ):
            last += len(table)
            yield self._chunk(part, last, table.values)

    def known_bounds(self, part: str) -> Bounds | None:
        """Return the bounds in the metadata of a Parquet file; None if there are none."""
        found = streaming.column_bounds(self.files[part], self.inputs)
        return None if found is None else Bounds(*found)

    def row_groups(self, part: str) -> list[int] | None:
        """Return the row groups of a Parquet file; a ``.npy`` file is one group."""
        file = self.files[part]
        if file.suffix.lower() in PARQUET:
            return streaming.row_groups(file)
        return [streaming.array_rows(file)] if file.suffix.lower() == ".npy" else None

    def take(self, part: str, rows: np.ndarray, chunk_rows: int) -> Chunk:
        values = streaming.take_rows(self.files[part], self._columns, rows, chunk_rows, self._labels_by_column)
        return self._chunk(part, int(rows[-1]) + 1 if len(rows) else 0, values)

    @property
    def _columns(self) -> list[str]:
        return [*self.inputs, *self.targets]

    @property
    def _labels_by_column(self) -> dict[str, Labels] | None:
        return None if self.labels is None else dict.fromkeys(self.targets, self.labels)

    def _chunk(self, part: str, last: int, values: np.ndarray) -> Chunk:
        X, Y = torch.from_numpy(values).split([len(self.inputs), len(self.targets)], 1)
        return Chunk(part, last, X.contiguous(), Y.contiguous())
