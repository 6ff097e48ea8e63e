"""Columns in every container have the same cells."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from gigagp.errors import InvalidInputError
from gigagp.tables.cells import Place
from gigagp.tables.encoding.reading import read_cells

PLACE = Place("Column 'a'")
VALUES = np.array([1.5, 0.0, -2.0, np.nan, 4.0])
DAYS = np.array(["2020-01", "2020-03", "NaT"], dtype="M8[M]")


@pytest.mark.parametrize(
    "column",
    [
        VALUES.astype(np.float16),
        VALUES.astype(np.longdouble),
        pd.Series(pd.arrays.SparseArray(VALUES, fill_value=0.0)),
        pa.chunked_array([VALUES[:2], VALUES[2:]]),
        pa.chunked_array([pa.array(VALUES[:2]).dictionary_encode(), pa.array(VALUES[2:]).dictionary_encode()]),
        np.ma.MaskedArray(np.where(np.isnan(VALUES), 7.0, VALUES), np.isnan(VALUES)),
    ],
    ids=["half", "long", "sparse", "chunks", "dictionaries", "masked"],
)
def test_numbers(column):
    found = read_cells(column, PLACE, "number")
    assert found.kind == "number"
    np.testing.assert_array_equal(found.values, VALUES)


def test_other_types():
    truth = read_cells(np.array([True, False, True]), PLACE, "number")
    assert truth.values.tolist() == [1.0, 0.0, 1.0]
    months = read_cells(DAYS, PLACE)
    assert months.kind == "date"
    np.testing.assert_array_equal(months.values, [1577836800.0, 1583020800.0, np.nan])
    spans = read_cells(np.array([36, 12], dtype="m8[h]"), PLACE)
    assert (spans.kind, spans.values.tolist()) == ("number", [1.5, 0.5])
    codes = read_cells(pa.array([7, 3, 7]), PLACE, "category")
    assert [codes.texts[int(k)] for k in codes.values] == ["7", "3", "7"]
    assert len(read_cells(pa.chunked_array([], pa.float64()), PLACE).values) == 0


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy 2 has texts of any length")
def test_texts_of_numpy():
    texts = read_cells(np.array(["b", "a"], dtype=np.dtypes.StringDType()), PLACE)
    assert [texts.texts[int(k)] for k in texts.values] == ["b", "a"]


def test_a_slash_date_of_impossible_numbers_is_a_text():
    found = read_cells(np.array(["2024/13/45", "2024/01/02"], dtype=object), PLACE)
    assert found.kind == "category"


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (np.array([1j]), "must hold real numbers; got complex128"),
        (np.array([1j, None], dtype=object), "must hold real numbers; got 1j"),
        (np.array([1.0, b"a"], dtype=object), "cells of different types"),
        (np.array([object()], dtype=object), "in every cell; got <object"),
        (pa.array([[1], [2]]), "values of type list"),
    ],
)
def test_what_no_column_may_hold(column, words):
    with pytest.raises(InvalidInputError, match=words):
        read_cells(column, PLACE)
