"""Rows of a source by number, wherever they are stored: what random minibatches of rows that are not held need.

Rows in memory, in Parquet files and in ``.npy`` files are read where they are. Other sources (CSV files, functions,
generators) can only be read in order. Their rows are copied once to a temporary ``.npy`` file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import Tensor

from gigagp.errors import InvalidInputError, RowError
from gigagp.runtime.progress import current
from gigagp.tables.rows.chunk import Chunk
from gigagp.tables.rows.held import ArrayRows
from gigagp.tables.rows.source import RowSource, no_rows
from gigagp.tables.rows.storage import Storage

#: Largest number of rows of a section: a permutation of their numbers is held in memory.
_SECTION_ROWS = 2**20


@dataclass(frozen=True)
class Section:
    """Rows that are read together: a row group of a Parquet file, or a part of a large one.

    ``first`` is the number of its first row in the file, from 0.
    """

    part: str
    first: int
    count: int


class RowAccess:
    """Rows of a source by section and number; a context manager that removes its temporary file at the end.

    Classes of labels that are not known are found here. At most ``chunk_rows`` rows are decoded at a time. ``check`` is
    given targets (n, t) and raises `InvalidInputError` for those that cannot be used. ``sections`` are all rows, in
    order.
    """

    def __init__(self, source: RowSource, chunk_rows: int, check: Callable[[Tensor], None] | None = None) -> None:
        self._source, self._chunk_rows, self._check = source, chunk_rows, check
        self._folder: TemporaryDirectory[str] | None = None
        try:
            self._storage = self._numbered()
            self.sections = list(_sections(self._storage))
            self.n_rows = sum(section.count for section in self.sections)
            if not self.n_rows:
                raise no_rows()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RowAccess:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the temporary file, if there is one; its rows cannot be taken any more."""
        if self._folder is not None:
            vars(self).pop("_storage", None)  # some systems keep a file that is mapped into memory
            self._folder.cleanup()
            self._folder = None

    def take(self, section: Section, rows: np.ndarray) -> Chunk:
        """Return rows of a section by their sorted numbers, int64, counted from 0 at its first row."""
        stored = self._storage.take(section.part, rows + section.first, self._chunk_rows)
        found = self._source.prepared(stored)
        if self._check is not None:
            try:
                self._check(found.Y)
            except RowError as error:
                row = int(rows[error.row]) + section.first
                names = self._source.target_names
                if not found.part or not names:
                    raise RowError(error.rule, error.got, row, error.name) from error
                raise error.of_table(found.part, names[0], row) from error
            except InvalidInputError as error:
                raise InvalidInputError(f"{found.part}: {error}" if found.part else str(error)) from error
        return found

    def _numbered(self) -> Storage:
        """Return storage whose rows can be taken by number, and find the classes of labels."""
        source, storage = self._source, self._source.storage
        if any(storage.row_groups(part) is None for part in storage.parts):
            return self._copied()
        if not source.has_files:
            for _ in source.raw_chunks():  # rows in memory are checked now, as they cost little
                pass
        elif source.labels is not None and source.labels.classes is None:
            assert source.target_names is not None
            for _ in storage.select([], source.target_names).chunks(self._chunk_rows):
                pass
        self._finish_classes()
        return storage

    def _finish_classes(self) -> np.ndarray | None:
        """Sort the classes once all labels have been seen, and return the new code of each old one.

        None if none changes.
        """
        labels = self._source.labels
        return None if labels is None or labels.classes is not None else labels.finish(self._source.name)

    def _copied(self) -> Storage:
        """Return arrays that lie in a temporary ``.npy`` file: a copy of all rows, in their order."""
        source = self._source
        width = source.n_inputs + source.n_columns
        count = 0
        with ExitStack() as opened:
            with _writing():
                self._folder = TemporaryDirectory(prefix="gigagp-")
                path = Path(self._folder.name) / "rows.npy"
                # Without a buffer nothing is left to be written when the file is closed.
                file = opened.enter_context(path.open("wb", buffering=0))
                _write_header(file, 0, width)
            current().phase("copying the table", unit="row")
            for chunk in source.raw_chunks():
                with _writing():
                    np.concatenate([chunk.X.numpy(), chunk.Y.numpy()], 1).tofile(file)
                count += len(chunk.X)
                current().reached(count)
            with _writing():
                file.seek(0)
                _write_header(file, count, width)
        if not count:
            raise no_rows()
        order = self._finish_classes()
        if order is not None:
            # The codes in the file are in the order in which the labels came.
            array = np.load(path, mmap_mode="r+")
            for first in range(0, count, self._chunk_rows):
                codes = array[first : first + self._chunk_rows, source.n_inputs]
                codes[:] = order[codes.astype(np.int64)]
            array.flush()
            del array
        array = np.load(path, mmap_mode="r")
        return ArrayRows(array[:, : source.n_inputs], array[:, source.n_inputs :])


def _sections(storage: Storage) -> Iterator[Section]:
    for part in storage.parts:
        start = 0
        for count in storage.row_groups(part) or []:
            for first in range(0, count, _SECTION_ROWS):
                yield Section(part, start + first, min(_SECTION_ROWS, count - first))
            start += count


@contextmanager
def _writing() -> Iterator[None]:
    """Say what could not be written, and what to do about it."""
    try:
        yield
    except OSError as error:
        raise InvalidInputError(
            "the rows of the source of fit_table cannot be copied to a temporary file, which reading them by number "
            f"needs ({error.strerror or error}). Free some space, set TMPDIR to another disk, or give a Parquet or "
            ".npy file."
        ) from error


def _write_header(file: Any, rows: int, width: int) -> None:
    """Write the head of a ``.npy`` file; its length does not depend on the number of rows."""
    description = {"descr": "<f8", "fortran_order": False, "shape": (rows, width)}
    # NumPy leaves room for the first axis to grow to 21 digits.
    np.lib.format.write_array_header_1_0(file, description)
