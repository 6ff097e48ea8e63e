"""Rows of a source by number, wherever they are stored: what random minibatches of a table that is not held need.

Parquet files, ``.npy`` files and what is in memory are read where the rows are. Rows of other sources (CSV files,
callables, generators), which can be read in their own order only, are written to a temporary ``.npy`` file once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.grids.sources import Rows, stream_rows

if TYPE_CHECKING:
    from gigagp.inference.row_source import RowSource

#: Most rows of a section: their numbers are permuted in the memory.
_SECTION_ROWS = 2**20


@dataclass(frozen=True)
class Section:
    """Rows that are read together: of a Parquet file a row group, or a part of a large one.

    Attributes
    ----------
    file : Path or None
        None for rows in memory.
    first : int
        Number of the first of them in the file.
    count : int
    """

    file: Path | None
    first: int
    count: int


@contextmanager
def _written() -> Iterator[None]:
    """Say what could not be written, and what to do about it."""
    try:
        yield
    except OSError as error:
        msg = (
            "the rows of the source of fit_table cannot be copied to a temporary file, which reading them by number "
            f"needs ({error.strerror or error}). Free some space, set TMPDIR to another disk, or give a Parquet or "
            ".npy file."
        )
        raise InvalidInputError(msg) from error


class RowAccess:
    """Rows of a source by section and number; a context manager that removes its temporary file at the end.

    Parameters
    ----------
    source : RowSource
        Labels of classes that are not known yet are, afterwards.
    chunk_rows : int
        Most rows that are decoded at a time.
    check : callable, optional
        Refuses targets that cannot be used.

    Attributes
    ----------
    sections : list of Section
    n_rows : int

    Raises
    ------
    InvalidInputError
        If the source cannot be read, or has no rows.
    """

    def __init__(self, source: RowSource, chunk_rows: int, check: Callable[[Tensor], None] | None = None) -> None:
        self._source, self._chunk_rows, self._check = source, chunk_rows, check
        self._folder: TemporaryDirectory[str] | None = None
        self._columns: list[str] = []
        self.sections: list[Section] = []
        try:
            self._find_sections()
            self.n_rows = sum(section.count for section in self.sections)
            if not self.n_rows:
                msg = "The source of fit_table has no rows."
                raise InvalidInputError(msg)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RowAccess:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the temporary file, if there is one."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _find_sections(self) -> None:
        source = self._source
        if source.has_files:
            from gigagp.data.folders import PARQUET, table_files
            from gigagp.data.streaming import array_rows, row_groups

            files = table_files(source.origin)
            if all(file.suffix.lower() in PARQUET | {".npy"} for file in files):
                self._find_classes(files)
                self._columns = _columns(source)
                for file in files:
                    self._add(file, row_groups(file) if file.suffix.lower() in PARQUET else [array_rows(file)])
                return
        elif source.is_sliced:
            for _ in source.raw_chunks():  # which refuses what cannot be used, with its row
                pass
            self._finish_classes()
            self._add(None, [len(source.origin[0] if isinstance(source.origin, tuple) else source.origin)])
            return
        self._write_down()

    def _find_classes(self, files: list[Path]) -> None:
        """Read the column of labels alone, where it is not known what they are."""
        from gigagp.data.streaming import stream_file

        labels, names = self._source.labels, self._source.target_names
        if labels is not None and labels.classes is None:
            assert names is not None
            for file in files:
                for _ in stream_file(file, names, self._chunk_rows, labels=dict.fromkeys(names, labels)):
                    pass
        self._finish_classes()

    def _finish_classes(self) -> np.ndarray | None:
        """Sort the classes once all labels have been seen; return new codes of old ones, None if nothing changes."""
        source = self._source
        if source.labels is None or source.labels.classes is not None:
            return None
        return source.labels.finish(str(source.origin) if source.has_files else "The source of fit_table")

    def _add(self, file: Path | None, groups: list[int]) -> None:
        start = 0
        for count in groups:
            for first in range(0, count, _SECTION_ROWS):
                self.sections.append(Section(file, start + first, min(_SECTION_ROWS, count - first)))
            start += count

    def _write_down(self) -> None:
        """Write all rows to one file, in their order."""
        source = self._source
        width = source.n_inputs + source.n_columns
        count = 0
        with ExitStack() as opened:
            with _written():
                self._folder = TemporaryDirectory(prefix="gigagp-")
                path = Path(self._folder.name) / "rows.npy"
                file = opened.enter_context(path.open("wb", buffering=0))  # nothing is left to write at its end
                _write_header(file, 0, width)
            for rows in source.raw_chunks():
                with _written():
                    np.concatenate([rows.X.numpy(), rows.Y.numpy()], 1).tofile(file)
                count += len(rows.X)
            with _written():
                file.seek(0)
                _write_header(file, count, width)
        order = self._finish_classes()
        if order is not None and count:
            # codes were given in the order in which the labels came
            array = np.load(path, mmap_mode="r+")
            for first in range(0, count, self._chunk_rows):
                codes = array[first : first + self._chunk_rows, source.n_inputs]
                codes[:] = order[codes.astype(np.int64)]
            array.flush()
            del array
        self._columns = [f"column{place + 1}" for place in range(width)]
        if count:
            self._add(path, [count])

    def take(self, section: Section, rows: np.ndarray) -> Rows:
        """Return rows of a section.

        Parameters
        ----------
        section : Section
        rows : ndarray of int64
            Sorted, from 0 for the section's first.

        Raises
        ------
        InvalidInputError
            If a row cannot be used; the message names the file and the row.
        """
        found = self._source.prepared(self._raw(section, rows + section.first))
        if self._check is not None:
            try:
                self._check(found.Y)
            except InvalidInputError as error:
                msg = f"{found.part}: {error}" if found.part and self._folder is None else str(error)
                raise InvalidInputError(msg) from error
        return found

    def _raw(self, section: Section, numbers: np.ndarray) -> Rows:
        """Return rows by their numbers in the file."""
        source = self._source
        if section.file is None:
            return _of_memory(source, numbers)
        from gigagp.data.streaming import take_rows

        labels = None  # a temporary file has their codes
        if source.labels is not None and self._folder is None:
            assert source.target_names is not None
            labels = dict.fromkeys(source.target_names, source.labels)
        values = take_rows(section.file, self._columns, numbers, self._chunk_rows, labels)
        X, Y = (np.ascontiguousarray(part) for part in np.split(values, [source.n_inputs], 1))
        last = section.first + section.count
        return Rows(str(section.file), last, torch.from_numpy(X), torch.from_numpy(Y))


def _columns(source: RowSource) -> list[str]:
    """Return the names of all columns that are read."""
    assert source.input_names is not None
    assert source.target_names is not None
    return [*source.input_names, *source.target_names]


def _of_memory(source: RowSource, numbers: np.ndarray) -> Rows:
    """Return rows of arrays or of a data frame."""
    origin: Any = source.origin
    if isinstance(origin, tuple):
        picked: Any = tuple(part[torch.from_numpy(numbers) if torch.is_tensor(part) else numbers] for part in origin)
    elif hasattr(origin, "iloc"):
        picked = origin.iloc[numbers]
    else:
        picked = origin.take(numbers)
    found: Iterator[Rows] = stream_rows(
        picked, source.input_names, source.target_names, chunk_rows=len(numbers), labels=source.labels
    )
    return next(found)


def _write_header(file: Any, rows: int, width: int) -> None:
    """Write the head of a ``.npy`` file; its length does not depend on the number of rows."""
    description = {"descr": "<f8", "fortran_order": False, "shape": (rows, width)}
    # numpy leaves room for the first axis to grow to 21 digits
    np.lib.format.write_array_header_1_0(file, description)
