from __future__ import annotations

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from gigagp.errors import InvalidInputError
from gigagp.tables.files import Table, read_table, write_table

TABLE = Table(("mean", "std"), np.array([[1 / 3, 1e-300], [-1e22, 2.0]]))


@pytest.mark.parametrize("name", ["p.csv", "p.parquet", "p.arrow", "p.feather", "p.npz"])
def test_what_is_written_reads_back_exactly(tmp_path, name):
    write_table(TABLE, tmp_path / name)
    read = read_table(tmp_path / name)
    assert read.names == TABLE.names
    np.testing.assert_array_equal(read.values, TABLE.values)


def test_npy_has_the_numbers_only(tmp_path):
    write_table(TABLE, tmp_path / "p.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "p.npy"), TABLE.values)


def test_csv_is_plain(tmp_path):
    write_table(Table(("mean", "a, b"), np.array([[0.5, 2.0]])), tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text(encoding="utf-8") == 'mean,"a, b"\n0.5,2\n'


@pytest.mark.parametrize("name", ["p.xlsx", "p", "absent/p.csv"])
def test_what_cannot_be_written_is_refused(tmp_path, name):
    with pytest.raises(InvalidInputError, match="p"):
        write_table(TABLE, tmp_path / name)


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "p.parquet"
    write_table(TABLE, path)
    before = path.read_bytes()

    def half(table, where):
        where.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pyarrow.parquet, "write_table", half)
    with pytest.raises(OSError, match="No space left"):
        write_table(TABLE, path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.parquet"]
