"""Rows by number are the same from every kind of source."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
import torch

from gigagp.errors import InvalidInputError
from gigagp.tables.files.labels import Labels
from gigagp.tables.files.streaming import FileRows
from gigagp.tables.rows import RowAccess, RowSource
from gigagp.tables.rows import access as row_access

N = 500
RNG = np.random.default_rng(0)
X = np.column_stack([np.arange(N), RNG.normal(size=N)])
Y = RNG.normal(size=N)
FRAME = pd.DataFrame({"b": X[:, 1], "note": "text", "y": Y, "a": X[:, 0]})
#: rows of the row groups of three files: as unlike as can be
GROUPS = ([7, 7, 7, 7], [150, 100], [222])


def folder(path: Path, frame: pd.DataFrame = FRAME, groups=GROUPS) -> Path:
    path.mkdir()
    start = 0
    for k, sizes in enumerate(groups):
        schema = pa.Schema.from_pandas(frame, preserve_index=False)
        with pq.ParquetWriter(path / f"{k}.parquet", schema) as writer:
            for size in sizes:
                part = pa.Table.from_pandas(frame.iloc[start : start + size], schema, preserve_index=False)
                writer.write_table(part, row_group_size=size)
                start += size
    return path


def pairs(y=Y):
    return ((X[k : k + 90], y[k : k + 90]) for k in range(0, N, 90))


def sources(path: Path, frame: pd.DataFrame = FRAME, y=Y, **options) -> dict[str, RowSource]:
    frame.to_csv(path / "t.csv", index=False)
    named = {"target": "y", "inputs": ["a", "b"], "chunk_rows": 60}
    found = {
        "folder": lambda **more: RowSource(folder(path / "p", frame), **named, **more),
        "csv": lambda **more: RowSource(path / "t.csv", **named, **more),
        "pandas": lambda **more: RowSource(frame, **named, **more),
        "arrow": lambda **more: RowSource(pa.Table.from_pandas(frame), **named, **more),
        "arrays": lambda **more: RowSource((X, y), **more),
        "tensors": lambda **more: RowSource((torch.from_numpy(X), y), **more),
        "sparse": lambda **more: RowSource((scipy.sparse.coo_array(X), y), **more),
        "pandas pair": lambda **more: RowSource((frame[["a", "b"]], frame["y"]), chunk_rows=60, **more),
        "arrow pair": lambda **more: RowSource((pa.table({"a": X[:, 0], "b": X[:, 1]}), y), **more),
        "list": lambda **more: RowSource(list(pairs(y)), **more),
        "callable": lambda **more: RowSource(lambda: pairs(y), **more),
        "generator": lambda **more: RowSource(pairs(y), **more),
    }
    if y.dtype.kind == "f":
        np.save(path / "t.npy", np.column_stack([X, y]))
        found["npy"] = lambda **more: RowSource(path / "t.npy", "column3", chunk_rows=60, **more)
    return {name: make(**{key: value() for key, value in options.items()}) for name, make in found.items()}


def all_rows(access: RowAccess) -> tuple[np.ndarray, np.ndarray]:
    """Return all rows of all sections, some at a time, in the order of the table."""
    found = []
    for section in access.sections:
        for rows in (np.arange(0, section.count, 2), np.arange(1, section.count, 2)):
            if len(rows):
                found.append(access.take(section, rows))
    both = (torch.cat([getattr(part, name) for part in found]).numpy() for name in ("X", "Y"))
    inputs, targets = both
    order = inputs[:, 0].argsort()
    return inputs[order], targets[order]


def test_every_kind_of_source_gives_its_rows_by_number(tmp_path, monkeypatch):
    monkeypatch.setattr(row_access, "_SECTION_ROWS", 130)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    for name, source in sources(tmp_path).items():
        with RowAccess(source, 60) as access:
            inputs, targets = all_rows(access)
            np.testing.assert_array_equal(inputs, X, name)
            np.testing.assert_array_equal(targets[:, 0], Y, name)
            assert access.n_rows == N
            written = list((tmp_path / "scratch").iterdir())
            assert bool(written) == (name in ("csv", "callable", "generator", "list"))
        assert not list((tmp_path / "scratch").iterdir())


def test_labels_are_the_signs_of_their_classes_in_every_kind_of_source(tmp_path):
    for k, values in enumerate((np.array(["up", "down", "still"]), np.array([4, 2]))):
        y = values[RNG.integers(len(values), size=N)]
        (tmp_path / str(k)).mkdir()
        for name, source in sources(tmp_path / str(k), FRAME.assign(y=y), y, labels=Labels).items():
            with RowAccess(source, 60) as access:
                _, targets = all_rows(access)
                classes = np.unique(y)
                assert source.labels.classes.tolist() == classes.tolist(), name
                expected = np.where(y[:, None] == (classes if len(classes) > 2 else classes[1:]), 1.0, -1.0)
                np.testing.assert_array_equal(targets, expected, name)
                assert source.n_targets == expected.shape[1]


def taken(file, columns, rows, chunk_rows):
    return FileRows(file, inputs=columns).take(str(file), rows, chunk_rows).X.numpy()


def test_only_the_columns_and_the_row_groups_that_are_wanted_are_read(tmp_path, monkeypatch):
    """Other columns and row groups are garbage; the control reads them."""
    path = folder(tmp_path / "p", groups=([100, 100, 300],))
    file = path / "0.parquet"
    metadata, broken = pq.read_metadata(file), bytearray(file.read_bytes())

    def spoil(group: int, column: int) -> None:
        chunk = metadata.row_group(group).column(column)
        start = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
        broken[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size

    spoil(0, 1)  # the notes of the first
    for column in range(4):
        spoil(1, column)
    file.write_bytes(broken)
    rows = np.array([3, 99, 200, 499])
    found = taken(file, ["a", "y"], rows, 30)
    np.testing.assert_array_equal(found, np.column_stack([X[rows, 0], Y[rows]]))
    with pytest.raises(InvalidInputError, match=r"0\.parquet cannot be read"):
        taken(file, ["a", "y"], np.array([3, 150]), 30)
    with pytest.raises(InvalidInputError, match=r"cannot be read|not a number"):
        taken(file, ["note"], np.array([3]), 30)


def test_bad_cells_are_named_with_their_row_and_a_shorter_file_too(tmp_path):
    frame = FRAME.copy()
    frame.loc[261, "b"] = np.nan
    path = folder(tmp_path / "p", frame)
    file = path / "1.parquet"  # whose first row is number 28
    with pytest.raises(InvalidInputError, match=r"1\.parquet: column 'b', row 234: the"):
        taken(file, ["a", "b"], np.array([0, 200, 233]), 40)
    assert len(taken(file, ["a", "b"], np.array([0, 200, 232]), 40)) == 3
    with pytest.raises(InvalidInputError, match=r"has fewer rows than when the fit began: there is no row 401"):
        taken(file, ["a"], np.array([3, 400]), 40)
    np.save(tmp_path / "t.npy", np.where(np.arange(30).reshape(15, 2) == 25, np.nan, 1.0))
    with pytest.raises(InvalidInputError, match=r"t\.npy: column 'column2', row 13"):
        taken(tmp_path / "t.npy", ["column1", "column2"], np.array([2, 12]), 5)


def test_no_rows(tmp_path):
    with pytest.raises(InvalidInputError, match="has no rows"):
        RowAccess(RowSource(folder(tmp_path / "p", FRAME, ([],)), "y", ["a", "b"]), 60)
