"""Input tables of commands: small ones are read at once, and larger ones in blocks of rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from gigagp.commands.problem import no_rows
from gigagp.errors import InvalidInputError
from gigagp.runtime.progress import current
from gigagp.tables.files import PLAIN, CsvStyle, Table, read_columns
from gigagp.tables.files.folders import PARQUET, table_files
from gigagp.tables.files.labels import Labels
from gigagp.tables.files.streaming import STREAMED, column_names, numbers, stream_file
from gigagp.tables.files.table import find_columns

if TYPE_CHECKING:
    from gigagp import GPClassifier, GPRegressor

#: Largest file size in bytes of a table that is read at once.
AT_ONCE = 2**27
#: Number of rows in a block of a larger table, and of one that is held, so that commands can show their progress.
BLOCK_ROWS, HELD_ROWS = 2**18, 2**15


class Block(NamedTuple):
    """Some rows of a table: the inputs of the model in its order, and the other columns that were asked for, if any.

    The inputs have column names if the model has them. They are cells of any type if the model encodes them.
    """

    inputs: pa.Table | np.ndarray
    others: Table | None


@dataclass(frozen=True)
class Blocks:
    """A table in blocks; if it ``is_whole``, it is held, and one block may be all of it."""

    path: Path
    header: bool | None
    names: list[str]
    is_whole: bool
    style: CsvStyle = PLAIN
    _found: pa.Table | None = None

    @classmethod
    def of(cls, path: Path, header: bool | None = None, style: CsvStyle = PLAIN) -> Blocks:
        """Open a table; raises `InvalidInputError` if there is none."""
        if style == PLAIN and is_large(path):
            return cls(path, header, column_names(path, header), False)
        found = read_columns(path, header, style)
        return cls(path, header, list(found.column_names), True, style, found)

    def whole(self) -> pa.Table:
        """Return all columns of the table, as they are."""
        return read_columns(self.path, self.header, self.style) if self._found is None else self._found

    def read(
        self,
        regressor: GPRegressor | GPClassifier,
        columns: list[str] | None,
        others: Sequence[str] = (),
        labels: Mapping[str, Labels] | None = None,
        *,
        title: str = "predicting",
        at_once: bool = False,
    ) -> Iterator[Block]:
        """Yield blocks with the inputs of a model and further columns, and report them as progress under a title.

        ``columns`` are names to use instead of the model's own, in its order. They are required for a model that was
        fitted to an array without names, unless the table has exactly its number of columns. Those of ``others`` with
        ``labels`` contain classes, and are returned as codes. With ``at_once``, a table that is held is one block.
        """
        chosen = _model_columns(regressor, self.names, columns, str(self.path))
        size = BLOCK_ROWS if not self.is_whole else self._n_rows or 1 if at_once else HELD_ROWS
        current().phase(title, self._n_rows, unit="row", then=0.0)
        done = 0
        if _encodes(regressor):
            blocks = self._raw(regressor, chosen, list(others), labels or {}, size)
        else:
            found = self._tables(chosen, list(others), labels or {}, size)
            blocks = (Block(_named(regressor, inputs), beside) for inputs, beside in found)
        for block in blocks:
            yield block
            done += len(block.inputs)
            current().reached(done)
        if not done:
            raise no_rows(self.path)

    @cached_property
    def _n_rows(self) -> int | None:
        """Number of rows; None where they have to be read to be counted."""
        if self._found is not None:
            return len(self._found)
        files = table_files(self.path)
        if not all(file.suffix.lower() in PARQUET for file in files):
            return None
        from pyarrow import parquet

        return sum(int(parquet.read_metadata(file).num_rows) for file in files)

    def _raw(
        self,
        regressor: GPRegressor | GPClassifier,
        columns: list[str],
        others: list[str],
        labels: Mapping[str, Labels],
        size: int,
    ) -> Iterator[Block]:
        """Yield blocks with cells of any type, for models that encode them."""
        found, source = self.whole(), str(self.path)
        chosen = found.select(find_columns(columns, found.column_names, source))
        for start in range(0, len(found), size):
            part = found.slice(start, size)
            beside = numbers(part, others, source, start, labels, others) if others else None
            yield Block(_named_cells(regressor, chosen.slice(start, size)), beside)

    def _tables(
        self, columns: list[str], others: list[str], labels: Mapping[str, Labels], size: int
    ) -> Iterator[tuple[Table, Table | None]]:
        if self._found is not None:
            inputs = Table.from_arrow(self._found, columns, str(self.path))
            beside = numbers(self._found, others, str(self.path), 0, labels, others) if others else None
            for start in range(0, max(len(self._found), 1), size):
                rows = np.arange(start, min(start + size, len(self._found)))
                yield inputs.take(rows), None if beside is None else beside.take(rows)
            return
        wanted = list(dict.fromkeys([*columns, *others]))
        for file in table_files(self.path):
            for table in stream_file(file, wanted, BLOCK_ROWS, header=self.header, labels=labels, targets=others):
                yield table.select(columns), table.select(others) if others else None


def read_inputs(
    regressor: GPRegressor, found: pa.Table, source: str, columns: list[str] | None = None
) -> pa.Table | np.ndarray:
    """Return the columns to which the model was fitted, in its order; other columns are ignored, see `Blocks.read`."""
    chosen = _model_columns(regressor, found.column_names, columns, source)
    return _named(regressor, Table.from_arrow(found, chosen, source))


def _model_columns(
    regressor: GPRegressor | GPClassifier, names: Sequence[str], columns: list[str] | None, source: str
) -> list[str]:
    own = getattr(regressor, "feature_names_in_", None)
    expected = int(regressor.n_features_in_)
    if columns is None:
        columns = list(names) if own is None else [str(name) for name in own]
    if len(columns) != expected:
        msg = f"{source}: the model has {expected} inputs, got {len(columns)} columns. Choose them with --columns."
        raise InvalidInputError(msg)
    return columns


def _named(regressor: GPRegressor | GPClassifier, inputs: Table) -> pa.Table | np.ndarray:
    own = getattr(regressor, "feature_names_in_", None)
    return inputs.values if own is None else Table(tuple(str(name) for name in own), inputs.values).to_arrow()


def _encodes(regressor: GPRegressor | GPClassifier) -> bool:
    """Whether a model takes cells of any type."""
    return getattr(getattr(regressor, "latent_", regressor), "encoder_", None) is not None


def _named_cells(regressor: GPRegressor | GPClassifier, inputs: pa.Table) -> pa.Table | np.ndarray:
    """Return columns of any type under the names of the model, or without names if it has none."""
    own = getattr(regressor, "feature_names_in_", None)
    if own is not None:
        return inputs.rename_columns([str(name) for name in own])
    cells = np.empty(inputs.shape, dtype=object)
    for place, column in enumerate(inputs.columns):
        cells[:, place] = column.to_pylist()
    return cells


def is_large(path: Path) -> bool:
    """Whether a table can be read in blocks and is large enough for it."""
    if not os.path.exists(path):  # returns False for an invalid path, where Path raises
        return False
    if not path.is_dir():
        return path.suffix.lower() in STREAMED and path.stat().st_size > AT_ONCE
    files = table_files(path)
    parquet = all(file.suffix.lower() in PARQUET for file in files)
    return not parquet or sum(file.stat().st_size for file in files) > AT_ONCE
