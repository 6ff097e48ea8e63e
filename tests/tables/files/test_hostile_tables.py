"""Damaged and odd files: numbers that an independent reader finds too, or one clear error. Never another exception."""

from __future__ import annotations

import csv
import io
import math
import random
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from gigagp.errors import InvalidInputError
from gigagp.tables.files import Table, read_columns
from gigagp.tables.files.folders import table_files
from gigagp.tables.files.streaming import FileRows, column_names, stream_file

#: What cells and the places between them are replaced by.
ODD = [
    "", " ", "1_000", "٣", "1,5", '"1,000"', '"', '""', "'1'", "NaN", "nan", "inf", "-inf", "1e400", "1e-400", "0x1f",
    "true", "T", "NA", "null", "2020-01-01", "12:30", "2020-01-01T00:00:00+02:00", "007", "+5", ".5", "5.", "1d5", "1e",
    "--1", "\u22121", "\ufeff", "\u00a01", "\u2028", "\x85", "\x1c", "\r", "\r\n", "\n", "\n\n", "\t", ";", "|", ",,",
    "\0", "9007199254740993", "9223372036854775808", "123456789012345678901234567890", "x" * 140_000, "#", "\\N",
]  # fmt: skip
PLAIN = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)


def odd_csv(rng: random.Random) -> bytes:
    """Return a table of numbers with some of its cells, ends of lines or bytes replaced."""
    columns, rows = rng.randint(1, 4), rng.randint(0, 6)
    comma, end = rng.choice([",", ";", "\t"]), rng.choice(["\n", "\r\n", "\r"])
    lines = [[f"{rng.uniform(-9, 9):.3g}" for _ in range(columns)] for _ in range(rows)]
    if rng.random() < 0.7:
        lines.insert(0, [rng.choice(["a", "b", "2010", " c", "'d", "g h", ""]) + str(k) for k in range(columns)])
    for _ in range(rng.choice([0, 0, 1, 1, 1, 2])):
        if lines:
            line = rng.choice(lines)
            line[rng.randrange(columns)] = rng.choice(ODD)
    text = end.join(comma.join(line) for line in lines) + rng.choice(["", end, end * 2])
    found = bytearray(rng.choice(["", "", "\ufeff"]).encode() + text.encode("utf-8"))
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        if found:
            found[rng.randrange(len(found))] = rng.choice([0, 9, 10, 13, 34, 44, 59, 128, 255, rng.randrange(256)])
    return bytes(found)


def reference(data: bytes, names: tuple[str, ...]) -> np.ndarray | None:
    """Return the numbers of a CSV file by Python's own reader; None where it is not simple enough for certainty."""
    text = data.decode("utf-8-sig")
    if '"' in text or "'" in text or max(map(len, text.split("\n"))) > 1000:
        return None
    lines = [line for line in re.split(r"\r\n|\n|\r", text) if line.strip()]
    for comma in ",;\t|":
        cells = list(csv.reader(io.StringIO("\n".join(lines)), delimiter=comma))
        if all(len(row) == len(names) for row in cells):
            break
    else:
        return None
    if tuple(cell.strip() for cell in cells[0]) == names:
        cells = cells[1:]
    if not all(PLAIN.fullmatch(cell) for row in cells for cell in row):
        return None
    return np.array([[float(cell) for cell in row] for row in cells])


def read_in_chunks(path: Path) -> np.ndarray:
    names = column_names(path)
    FileRows(path, inputs=names).known_bounds(str(path))
    found = [table.values for table in stream_file(path, names, 2)]
    return np.concatenate(found) if found else np.empty((0, len(names)))


def outcome(read, path: Path) -> np.ndarray | Table | str:
    try:
        return read(path)
    except InvalidInputError:
        return "refused"


def check_csv(path: Path, seed: int) -> str:
    rng = random.Random(seed)
    data = odd_csv(rng)
    path.write_bytes(data)
    whole = outcome(lambda file: Table.from_arrow(read_columns(file), source=str(file)), path)
    chunks = outcome(read_in_chunks, path)
    if isinstance(whole, str):
        return whole
    assert np.isfinite(whole.values).all()
    if not isinstance(chunks, str):  # truth values and hexadecimal numbers are read with the whole file alone
        np.testing.assert_array_equal(chunks, whole.values)
    expected = reference(data, whole.names)
    if expected is None:
        return "read"
    np.testing.assert_array_equal(whole.values, expected)
    return "right"


VALUES = np.random.default_rng(0).normal(size=(6, 3))


def write_binary(path: Path) -> None:
    table = pa.table({"a": VALUES[:, 0], "b": [1, 2, 3, 4, 5, 6], "y": VALUES[:, 2]})
    if path.suffix == ".npy":
        np.save(path, VALUES)
    elif path.suffix == ".npz":
        np.savez_compressed(path, X=VALUES[:, :2], y=VALUES[:, 2])
    elif path.suffix == ".parquet":
        pa.parquet.write_table(table, path)
    else:
        pa.feather.write_feather(table, path, compression="uncompressed")


BINARY = ("t.npy", "t.npz", "t.parquet", "t.arrow")


def check_binary(path: Path, sound: bytes, seed: int) -> str:
    rng = random.Random(seed)
    data = bytearray(sound)
    for _ in range(rng.randint(1, 4)):
        place = rng.choice(
            [rng.randrange(len(data)), rng.randrange(min(len(data), 160)), -rng.randint(1, min(90, len(data)))]
        )
        data[place] = rng.choice(
            [
                0,
                1,
                255,
                data[place] ^ (1 << rng.randrange(8)),
                rng.randrange(256),
                ord(rng.choice("0123456789(),'{}[]<")),
            ]
        )
    if rng.random() < 0.1:
        data = data[: rng.randrange(len(data))]
    path.write_bytes(data)
    whole = outcome(lambda file: Table.from_arrow(read_columns(file), source=str(file)), path)
    outcome(read_in_chunks, path)
    assert isinstance(whole, str) or np.isfinite(whole.values).all()
    return "refused" if isinstance(whole, str) else "read"


@pytest.mark.filterwarnings("ignore:.*the first column has no name")
def test_odd_csv_files_are_read_right_or_refused(tmp_path):
    counts = {"refused": 0, "read": 0, "right": 0}
    for seed in range(400):
        counts[check_csv(tmp_path / "t.csv", seed)] += 1
    assert counts["right"] > 50
    assert counts["refused"] > 100


def test_the_reference_sees_a_misread_table():
    right = reference(b"a,b\n1,2\n3,4\n", ("a", "b"))
    np.testing.assert_array_equal(right, [[1, 2], [3, 4]])
    assert reference(b"a,b\n1_0,2\n", ("a", "b")) is None


@pytest.mark.few(4)
@pytest.mark.parametrize("name", BINARY)
def test_damaged_binary_files_are_read_or_refused(tmp_path, name):
    write_binary(tmp_path / name)
    sound = (tmp_path / name).read_bytes()
    counts = {"refused": 0, "read": 0}
    for seed in range(150):
        counts[check_binary(tmp_path / name, sound, seed)] += 1
    assert counts["refused"] > 20


# Folders --------------------------------------------------------------------------------------------------------------


def folder_of_parts(path: Path) -> Path:
    (path / "deep").mkdir(parents=True)
    for place, name in enumerate(("one.csv", "two.csv", "deep/three.csv")):
        (path / name).write_text(f"a,y\n{place},1\n{place + 10},2\n", encoding="utf-8")
    return path


def test_a_folder_with_a_part_that_cannot_be_reached_is_refused(tmp_path):
    folder = folder_of_parts(tmp_path / "t")
    np.testing.assert_array_equal(read_columns(folder)["a"].to_numpy(), [2, 12, 0, 10, 1, 11])
    (folder / "_temporary.csv").write_text("not,a part\n", encoding="utf-8")
    (folder / "more").symlink_to(tmp_path / "other")
    with pytest.raises(InvalidInputError, match="more is a broken link"):
        read_columns(folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "four.csv").write_text("a,y\n3,1\n", encoding="utf-8")
    assert len(table_files(folder)) == 4  # links to folders are followed
    for name in ("five.csv", "five.parquet", "deep/five.csv.gz"):
        (folder / name).symlink_to(tmp_path / "gone")
        for read in (read_columns, column_names, table_files):
            with pytest.raises(InvalidInputError, match=r"five.* is a broken link. Repair or remove it"):
                read(folder)
        (folder / name).unlink()
    (folder / "deep" / "up").symlink_to(folder)
    with pytest.raises(InvalidInputError, match="is a link to a folder that holds it"):
        table_files(folder)
    (folder / "deep" / "up").unlink()
    (tmp_path / "alone.csv").symlink_to(tmp_path / "gone")
    with pytest.raises(InvalidInputError, match=r"alone\.csv is a broken link"):
        read_columns(tmp_path / "alone.csv")


def test_parts_with_other_columns_are_refused(tmp_path):
    folder = folder_of_parts(tmp_path / "t")
    (folder / "zz.csv").write_text("y,a\n5,6\n", encoding="utf-8")  # another order is no matter
    assert read_columns(folder)["a"].to_pylist()[-1] == 6
    (folder / "zz.csv").write_text("a,z\n5,6\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"zz\.csv has no column 'y'"):
        read_columns(folder)


# Archives -------------------------------------------------------------------------------------------------------------


def test_arrays_of_an_archive_do_not_replace_each_other(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, X=VALUES[:, :2], X1=VALUES[:, 2])  # the first column of X is X1 too
    with pytest.raises(InvalidInputError, match="two columns named 'X1'"):
        read_columns(path)
    np.savez(path, column=VALUES[:, 0], column1=VALUES[:, 2])
    with pytest.raises(InvalidInputError, match="two columns named 'column1'"):
        read_columns(path)


# Wide tables ----------------------------------------------------------------------------------------------------------


def test_the_work_on_a_table_grows_with_its_columns_alone(monkeypatch):
    """Looking for a column among its names one after another made it quadratic: count the comparisons of names."""

    class Name(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other):
            Name.compared += 1
            return str.__eq__(self, other)

    n = 300
    names = [f"column {k}" for k in range(n)]
    table = pa.table([pa.array([1.0, 2.0])] * n, names=names)
    found = Table.from_arrow(table, [Name(name) for name in names])
    found.select([Name(name) for name in reversed(names)])
    assert Name.compared < 20 * n


def test_a_header_longer_than_a_block_is_read_whole(tmp_path):
    names = [f"{k} {'long name' * 200}" for k in range(1000)]  # two megabytes
    (tmp_path / "t.csv").write_text(",".join(names) + "\n" + ",".join(["1.5"] * len(names)) + "\n", encoding="utf-8")
    assert column_names(tmp_path / "t.csv") == names
    assert read_columns(tmp_path / "t.csv").num_columns == len(names)


def test_labels_of_a_file_are_texts_without_blanks(tmp_path):
    from gigagp.tables.files.labels import Labels

    labels = Labels()
    (tmp_path / "t.csv").write_text("a,kind\n1, yes\n2,yes\n3,no\n", encoding="utf-8")
    tables = stream_file(tmp_path / "t.csv", ["kind"], 10, labels={"kind": labels})
    assert len({math.floor(code) for table in tables for code in table.values[:, 0]}) == 2
    labels.finish("t.csv")
    assert labels.classes.tolist() == ["no", "yes"]
