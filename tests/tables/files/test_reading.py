from __future__ import annotations

import gzip
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest

from gigagp.errors import EncodingWarning, InvalidInputError
from gigagp.tables.files import read_columns, read_table
from gigagp.tables.files.streaming import column_names, stream_file

VALUES = np.array([[1.0, 10.0, 0.25], [2.0, 20.0, -1.5], [3.0, 30.0, 1e-9]])
NAMES = ("a", "b", "y")


def arrow() -> pa.Table:
    return pa.table({name: VALUES[:, i] for i, name in enumerate(NAMES)})


def write_csv(path):
    path.write_text("a,b,y\n1,10,0.25\n2,20,-1.5\n3,30,1e-9\n", encoding="utf-8")


def write_gz(path):
    path.write_bytes(gzip.compress(b"a,b,y\n1,10,0.25\n2,20,-1.5\n3,30,1e-9\n"))


def write_tsv(path):
    path.write_text("a\tb\ty\n1\t10\t0.25\n2\t20\t-1.5\n3\t30\t1e-9\n", encoding="utf-8")


def write_semicolons(path):
    path.write_text("a;b;y\r\n1;10;0.25\r\n2;20;-1.5\r\n3;30;1e-9\r\n", encoding="utf-8")


def write_stream(path):
    with pa.ipc.new_stream(str(path), arrow().schema) as stream:
        stream.write_table(arrow())


def write_parts(path):
    path.mkdir()
    pa.parquet.write_table(arrow().slice(0, 2), path / "part-0.parquet")
    pa.parquet.write_table(arrow().slice(2), path / "part-1.parquet")


WRITERS = {
    "t.csv": write_csv,
    "t.csv.gz": write_gz,
    "t.tsv": write_tsv,
    "semicolons.csv": write_semicolons,
    "t.parquet": lambda path: pa.parquet.write_table(arrow(), path),
    "folder": write_parts,
    "t.feather": lambda path: pa.feather.write_feather(arrow(), path),
    "t.arrow": lambda path: pa.feather.write_feather(arrow(), path, compression="uncompressed"),
    "stream.arrow": write_stream,
    "t.npz": lambda path: np.savez(path, a=VALUES[:, 0], b=VALUES[:, 1], y=VALUES[:, 2]),
    "fields.npy": lambda path: np.save(
        path, np.array([tuple(row) for row in VALUES], dtype=[(name, "f8") for name in NAMES])
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_table(tmp_path, name):
    WRITERS[name](tmp_path / name)
    table = read_table(tmp_path / name)
    assert table.names == NAMES
    np.testing.assert_array_equal(table.values, VALUES)
    assert table.values.dtype == np.float64


def test_bare_arrays_get_numbered_columns(tmp_path):
    np.save(tmp_path / "t.npy", VALUES.astype(">f4"))
    assert read_table(tmp_path / "t.npy").names == ("column1", "column2", "column3")
    np.savez(tmp_path / "t.npz", X=VALUES[:, :2], y=VALUES[:, 2].astype(np.longdouble))
    table = read_table(tmp_path / "t.npz", columns=["y", "X2"])
    np.testing.assert_array_equal(table.values, VALUES[:, [2, 1]])
    np.save(tmp_path / "one.npy", np.arange(4))
    assert read_table(tmp_path / "one.npy").names == ("column1",)


@pytest.mark.parametrize("ending", ["t.csv", "t.txt", "t.data"])
def test_a_csv_without_header_is_recognised(tmp_path, ending):
    (tmp_path / ending).write_text("1,10\n\n2,-1e3\n", encoding="utf-8")
    table = read_table(tmp_path / ending)
    assert table.names == ("column1", "column2")
    np.testing.assert_array_equal(table.values, [[1, 10], [2, -1000]])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("depth,2010,2011\n1,2,3\n", ("depth", "2010", "2011")),  # years as names
        ("true,1\nfalse,2\n", ("column1", "column2")),
        ("nan,1\n1,2\n", ("column1", "column2")),
        ("\ufeffa, b\n1, 2\n", ("a", "b")),  # byte order mark, blanks
        ('"a, first",b\n1,2\n', ("a, first", "b")),
        ("a\n1\n2\n", ("a",)),
        ("a,b", ("a", "b")),
    ],
)
def test_header_detection(tmp_path, text, names):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    assert tuple(read_columns(path).column_names) == names


def test_a_text_cell_in_the_first_row_is_not_taken_for_a_header(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("1,red\n2,blue\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match="column 'column2', row 1: 'red' is not a number"):
        read_table(path)


def test_header_can_be_forced(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("1,2\n3,4\n", encoding="utf-8")
    assert read_table(path, header=True).names == ("1", "2")
    path.write_text("a,b\n3,4\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match="column 'column1', row 1: 'a' is not a number"):
        read_table(path, header=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"a,b\n", "has no rows"),
        (b"a,b\n1,2\n3\n", "row 2 has 1 cells, the first line has 2"),
        (b"1,2\n3,4\n3,4,5\n", "row 3 has 3 cells, the first line has 2"),
        (b"a,a\n1,2\n", "two columns named 'a'"),
        (b"a,\n1,2\n", "column 2 has no name"),
        (b"a,b\n1,\xe9\n", "not a table of text in UTF-8"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "not a table of text in UTF-8"),
        (b"\xff\xfe1,2\n", "not a table of text in UTF-8"),
        (b"a,b\n1,2\n,4\n", "column 'a', row 2: the cell is empty or NaN"),
        (b"a,b\n1,2\n3,nan\n", "column 'b', row 2: the cell is empty or NaN"),
        (b"a,b\n1,2\n3,4\n-inf,4\n", "column 'a', row 3: the number is infinite"),
        (b"a,b\n1,2\n3,four\n5,\n", "column 'b', row 2: 'four' is not a number"),
        (b"a,b\n1,\n3,four\n", "column 'b', row 1: the cell is empty"),
        (b"a;b\n1;2,5\n", "decimal point is needed"),
        (b"a,b\n1,2020-01-01\n", "column 'b' holds values of type date32"),
        (b"a,b\n1,\n2,\n", "column 'b', row 1: the cell is empty"),
    ],
)
def test_a_bad_csv_is_refused_with_the_place(tmp_path, content, message):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=message) as caught:
        read_table(path)
    assert str(path) in str(caught.value)


def test_text_far_down_a_long_column_is_found(tmp_path):
    path = tmp_path / "t.csv"  # beyond the block that pyarrow looks at first
    path.write_text("a\n" + "1\n" * 700_000 + "oops\n2\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"column 'a', row 700001: 'oops'"):
        read_table(path)


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow", "t.npy", "t.npz", "t.csv.gz"])
@pytest.mark.parametrize("content", [b"not a table at all", b"PK\x03\x04half a zip", b"\x93NUMPY\x01"])
def test_files_of_another_kind_are_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInputError, match=name):
        read_table(tmp_path / name)


@pytest.mark.parametrize("name", ["t.parquet", "t.feather", "t.npz", "fields.npy", "t.csv.gz"])
@pytest.mark.parametrize("share", [0.1, 0.6, 0.95])
def test_truncated_files_are_refused(tmp_path, name, share):
    path = tmp_path / name
    WRITERS[name](path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InvalidInputError, match=name):
        read_table(path)


def test_paths_that_are_no_table(tmp_path):
    with pytest.raises(InvalidInputError, match="does not exist"):
        read_table(tmp_path / "absent.csv")
    with pytest.raises(InvalidInputError, match="folder without Parquet or CSV files"):
        read_table(tmp_path)
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    with pytest.raises(InvalidInputError, match=r"the ending '.xlsx' is not one of"):
        read_table(tmp_path / "t.xlsx")
    (tmp_path / "bare").write_bytes(b"1,2")
    with pytest.raises(InvalidInputError, match=r"the ending '\(none\)'"):
        read_table(tmp_path / "bare")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 2, 2)), "one or two dimensions"),
        (np.zeros((2, 2), dtype=complex), "complex128"),
        (np.array(["a", "b"]), "<U1"),
        (np.array([1, None]), "not a NumPy file of numbers"),
        (np.zeros((0, 2)), "no rows"),
    ],
)
def test_arrays_that_are_no_table(tmp_path, array, message):
    np.save(tmp_path / "t.npy", array, allow_pickle=True)
    with pytest.raises(InvalidInputError, match=message):
        read_table(tmp_path / "t.npy")


def test_an_archive_needs_arrays_of_one_length(tmp_path):
    np.savez(tmp_path / "t.npz", a=np.zeros(3), b=np.zeros(4))
    with pytest.raises(InvalidInputError, match=r"same number of rows; got \{'a': 3, 'b': 4\}"):
        read_table(tmp_path / "t.npz")


def test_reading_an_object_array_runs_no_code(tmp_path):
    class Mischief:
        def __reduce__(self):
            return (warnings.warn, ("code ran",))

    np.save(tmp_path / "t.npy", np.array([Mischief()]), allow_pickle=True)
    with pytest.raises(InvalidInputError):
        read_table(tmp_path / "t.npy")


@pytest.mark.parametrize("content", [b",a,b\n0,1,2\n1,3,4\n", b'"","a","b"\n"1",1,2\n"2",3,4'])
def test_a_first_column_without_a_name_that_counts_the_rows_is_left_out(content, tmp_path):
    """pandas and R write such a column."""
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.warns(EncodingWarning, match="counts the rows, so that it is left out"):
        table = read_table(path)
    assert table.names == ("a", "b")
    assert np.array_equal(table.values, [[1.0, 2.0], [3.0, 4.0]])
    with pytest.warns(EncodingWarning, match="counts the rows, so that it is left out"):
        assert column_names(path) == ["a", "b"]
    (part,) = stream_file(path, ["b", "a"], 10)
    assert np.array_equal(part.values, [[2.0, 1.0], [4.0, 3.0]])


@pytest.mark.parametrize("first", [(0.5, 1.5), (0, 2), (2, 3), (1, 0)])
def test_a_first_column_without_a_name_that_is_an_input_is_kept(first, tmp_path):
    """It was left out without a word, whatever it held."""
    path = tmp_path / "table.csv"
    path.write_text(f",b\n{first[0]},2\n{first[1]},4\n")
    with pytest.warns(EncodingWarning, match="kept as 'column1'"):
        table = read_table(path)
    assert table.names == ("column1", "b")
    assert np.array_equal(table.column("column1"), first)
    with pytest.warns(EncodingWarning, match="kept as 'column1'"):
        assert column_names(path) == ["column1", "b"]
    (part,) = stream_file(path, ["b", "column1"], 10)
    assert np.array_equal(part.values, table.values[:, ::-1])
