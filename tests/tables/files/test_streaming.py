"""Tables in chunks; what grids make of them is in tests/operators/grids/test_collect.py."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from gigagp import GPRegressor, inference
from gigagp.errors import InvalidInputError
from gigagp.tables.files import read_columns, read_table
from gigagp.tables.files.streaming import FileRows, column_names, stream_file


def rows(path, columns, chunk_rows=7, first_row=0, header=None):
    return np.concatenate([table.values for table in stream_file(path, columns, chunk_rows, first_row, header=header)])


@pytest.fixture
def frame():
    return pd.DataFrame(np.random.default_rng(0).normal(size=(50, 3)), columns=["a", "b", "y"])


def test_names_of_columns(tmp_path, frame):
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_feather(tmp_path / "t.feather")
    np.save(tmp_path / "t.npy", frame.to_numpy())
    for kind in ("csv", "parquet", "feather"):
        assert column_names(tmp_path / f"t.{kind}") == ["a", "b", "y"]
    assert column_names(tmp_path / "t.npy") == ["column1", "column2", "column3"]
    assert column_names(tmp_path) == ["a", "b", "y"]  # the first file's
    assert column_names(tmp_path / "t.csv", header=False) == ["column1", "column2", "column3"]
    (tmp_path / "twice.csv").write_text("a,a\n1,2\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match="two columns named 'a'"):
        column_names(tmp_path / "twice.csv")
    (tmp_path / "no.parquet").write_bytes(b"PAR1 something else")
    with pytest.raises(InvalidInputError, match=r"no\.parquet cannot be read"):
        column_names(tmp_path / "no.parquet")


def test_an_index_without_a_name_is_no_column(tmp_path, frame):
    """pandas stores the numbers of selected rows in a column of their own."""
    learner = lambda: GPRegressor(inference=inference.Vecchia(), optimizer=None)  # noqa: E731
    some = frame[frame["a"] > 0]
    table = pa.Table.from_pandas(some)
    assert table.column_names == ["a", "b", "y", "__index_level_0__"]
    pa.parquet.write_table(table, tmp_path / "t.parquet")
    pa.feather.write_feather(table, tmp_path / "t.feather")
    expected = learner().fit(some[["a", "b"]], some["y"])
    for path in (tmp_path / "t.parquet", tmp_path / "t.feather"):
        assert column_names(path) == read_columns(path).column_names == ["a", "b", "y"]
        np.testing.assert_array_equal(
            learner().fit_table(path, "y").predict(some[["a", "b"]]),
            expected.predict(some[["a", "b"]]),
        )
    found = learner().fit(table.drop(["y"]), some["y"])
    assert list(found.feature_names_in_) == ["a", "b"]
    np.testing.assert_array_equal(
        found.predict(pa.Table.from_pandas(some[["a", "b"]])), expected.predict(some[["a", "b"]])
    )
    named = some.rename_axis("time").reset_index().set_index("time")
    assert pa.Table.from_pandas(named).column_names[-1] == "time"  # an index with a name is a column
    pa.parquet.write_table(pa.Table.from_pandas(named), tmp_path / "named.parquet")
    assert column_names(tmp_path / "named.parquet") == ["a", "b", "y", "time"]


@pytest.mark.parametrize("chunk_rows", [1, 7, 1000])
def test_a_numpy_file_stays_on_the_disk(tmp_path, frame, monkeypatch, chunk_rows):
    path = tmp_path / "t.npy"
    np.save(path, frame.to_numpy())
    monkeypatch.setattr("gigagp.tables.files.streaming.read_columns", None)  # would read it whole
    found = rows(path, ["column3", "column1"], chunk_rows, first_row=11)
    np.testing.assert_array_equal(found, frame[["y", "a"]].to_numpy()[11:])
    np.save(path, np.array([object()]), allow_pickle=True)
    with pytest.raises(InvalidInputError, match="not a NumPy file of numbers"):
        rows(path, ["column1"])
    path.write_bytes(b"\x93NUMPY")
    with pytest.raises(InvalidInputError, match="not a NumPy file of numbers"):
        rows(path, ["column1"])


@pytest.mark.parametrize("header", [None, True])
def test_a_cell_of_text_in_a_csv_file_is_named(tmp_path, monkeypatch, header):
    monkeypatch.setattr("gigagp.tables.files.streaming._CSV_BLOCK", 64)
    path = tmp_path / "t.csv"
    path.write_text("note,a,b\n" + "x,1,2\n" * 40 + "x,1,tall\n" + "x,1,2\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"t.csv: column 'b', row 41: 'tall' is not a number"):
        rows(path, ["a", "b"], header=header)
    assert len(rows(path, ["a"], header=header)) == 42
    with pytest.raises(InvalidInputError, match=r"'tall' is not a number\. Correct the cell, or remove its row"):
        list(stream_file(path, ["a", "b"], 7, header=header, targets=["b"]))


def test_a_csv_file_without_a_header(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("1,2\n3,4\n5,oops\n", encoding="utf-8")
    assert rows(path, ["column1"], header=False).tolist() == [[1.0], [3.0], [5.0]]
    with pytest.raises(InvalidInputError, match=r"column 'column2', row 3: 'oops'"):
        rows(path, ["column2"], header=False)


def test_blank_lines_are_nothing_or_an_empty_cell(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("\n\n1,2\n\n3,4\n5,6\n\n", encoding="utf-8")
    for read in (rows, lambda path, columns, header: read_table(path, columns, header).values):
        assert read(path, ["1", "2"], header=True).tolist() == [[3.0, 4.0], [5.0, 6.0]]
        assert read(path, ["column1"], header=False).tolist() == [[1.0], [3.0], [5.0]]
    path.write_text("a\n1\n\n3\n", encoding="utf-8")  # to leave the row out would move all predictions after it
    for read in (rows, lambda path, columns: read_table(path, columns).values):
        with pytest.raises(InvalidInputError, match="column 'a', row 2: the cell is empty"):
            read(path, ["a"])


def test_infinite_bounds_are_looked_at_again(tmp_path, frame):
    path = tmp_path / "t.parquet"
    frame.to_parquet(path)
    assert FileRows(path, inputs=["a"]).known_bounds(str(path)) == ([frame.a.min()], [frame.a.max()], 50)
    frame.loc[7, "a"] = np.inf
    frame.to_parquet(path)
    assert FileRows(path, inputs=["a"]).known_bounds(str(path)) is None
    with pytest.raises(InvalidInputError, match="column 'a', row 8: the number is infinite"):
        rows(path, ["a"])
