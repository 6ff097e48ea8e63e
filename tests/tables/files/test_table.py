from __future__ import annotations

import datetime
import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from gigagp.errors import InvalidInputError
from gigagp.tables.files import Table, find_column


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, 2], pa.int8()), [1, 2]),
        (pa.array([1, 2**63], pa.uint64()), [1, 2.0**63]),
        (pa.array([True, False]), [1, 0]),
        (pa.array(np.array([0.5, 0.25], np.float16)), [0.5, 0.25]),  # pyarrow 16 takes no list for it
        (pa.array([Decimal("1.50"), Decimal("-2.25")]), [1.5, -2.25]),
        (pa.array(["1.5", " -2e3"]), [1.5, -2000]),  # a Parquet file with numbers kept as text
        (pa.array([3, 4], pa.int32()).dictionary_encode(), [3, 4]),
    ],
)
def test_columns_that_are_numbers_become_float64(column, expected):
    table = Table.from_arrow(pa.table({"a": column}))
    np.testing.assert_array_equal(table.values[:, 0], expected)
    assert table.values.dtype == np.float64


def test_columns_that_are_not_chosen_may_hold_anything():
    columns = pa.table({"text": ["x", None], "a": [1.0, 2.0], "b": [3, 4]})
    table = Table.from_arrow(columns, ["b", "a"])
    assert table.names == ("b", "a")
    np.testing.assert_array_equal(table.values, [[3, 1], [4, 2]])
    with pytest.raises(InvalidInputError, match="column 'text', row 1: 'x' is not a number"):
        Table.from_arrow(columns)


@pytest.mark.parametrize(
    "cells", [["red", "blue"], [None, 1.0], [np.inf, 1.0], [datetime.date(2024, 1, 1)] * 2], ids=str
)
def test_only_columns_of_inputs_are_advised_to_be_left_out(cells):
    table, errors = pa.table({"a": [1.0, 2.0], "y": cells}), {}
    for targets in ([], ["y"]):
        with pytest.raises(InvalidInputError) as error:
            Table.from_arrow(table, targets=targets)
        errors[len(targets)] = str(error.value)
    assert re.search("leave the column out|leave it out|or the column", errors[0])
    assert not re.search("leave|the column[.]|encode", errors[1])
    assert ("GPClassifier" in errors[1]) == (cells[0] == "red")


def test_chunks_count_rows_through():
    column = pa.chunked_array([pa.array([1.0, 2.0]), pa.array([3.0, float("nan")])])
    with pytest.raises(InvalidInputError, match="column 'a', row 4: the number is NaN"):
        Table.from_arrow(pa.table({"a": column}))


def test_types_without_numbers_are_refused():
    with pytest.raises(InvalidInputError, match="column 'a' holds values of type list"):
        Table.from_arrow(pa.table({"a": [[1.0], [2.0]]}))


@pytest.mark.parametrize(
    ("name", "near"), [("temprature", "temperature"), ("TEMPERATURE", "temperature"), ("Dept", "depth")]
)
def test_a_missing_column_names_the_nearest(name, near):
    with pytest.raises(InvalidInputError, match=f"no column '{name}'. Did you mean '{near}'"):
        find_column(name, ["depth", "temperature"], "t.csv")


@pytest.mark.parametrize("name", ["lon", "price"])
def test_a_missing_column_whose_letters_are_in_a_longer_name_is_not_near(name):
    with pytest.raises(InvalidInputError, match=f"no column '{name}'. Its columns are: "):
        find_column(name, ["balcony", "colony", "price_per_square_metre"], "t.csv")


def test_a_missing_column_unlike_any_lists_them():
    with pytest.raises(InvalidInputError, match=r"no column 'y'. Its columns are: c0, .*, \.\.\. \(30 in all\)"):
        find_column("y", [f"c{i}" for i in range(30)], "t.csv")


def test_select_reorders_and_take_picks_rows():
    table = Table(("a", "b"), np.arange(6.0).reshape(3, 2))
    np.testing.assert_array_equal(table.select(["b", "a"]).values, [[1, 0], [3, 2], [5, 4]])
    np.testing.assert_array_equal(table.take(np.array([2, 0])).values, [[4, 5], [0, 1]])
    np.testing.assert_array_equal(table.column("b"), [1, 3, 5])
    assert len(table) == 3
    assert Table.from_arrow(table.to_arrow()).names == table.names
    with pytest.raises(InvalidInputError, match="no column 'c'"):
        table.select(["c"])


def test_a_table_is_checked_when_it_is_made():
    with pytest.raises(InvalidInputError, match="two columns named 'a'"):
        Table(("a", "a"), np.zeros((1, 2)))
    with pytest.raises(InvalidInputError, match=r"shape \(n, 1\)"):
        Table(("a",), np.zeros((1, 2)))
    with pytest.raises(InvalidInputError, match="no columns are left"):
        Table.from_arrow(pa.table({"a": [1.0]}), [])
