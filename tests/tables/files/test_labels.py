"""Labels of any type as codes, and what can be none."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest

from gigagp.errors import InvalidInputError
from gigagp.tables.files.labels import Labels


def column(values) -> pa.ChunkedArray:
    whole = pa.array(values)
    return pa.chunked_array([whole[:2], whole[2:]])


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["b", "a", "c", "a"], ["a", "b", "c"]),
        ([3, 1, 3, 2], [1, 2, 3]),
        ([2.0, 1.0, 1.0, 2.0], [1.0, 2.0]),
        ([True, False, True, True], [False, True]),
    ],
)
def test_columns_and_arrays_have_the_classes_that_numpy_finds(values, classes):
    for encode in (
        lambda labels: labels.of_column(column(values), "y", "t.parquet", 0),
        lambda labels: labels.of_column(column(values).dictionary_encode(), "y", "t.parquet", 0),
        lambda labels: labels.of_array(np.array(values), 0),
        lambda labels: labels.of_array(np.array(values, dtype=object)[:, None], 0),
    ):
        labels = Labels()
        first = encode(labels)
        order = labels.finish("t")
        expected, codes = np.unique(np.array(values), return_inverse=True)
        assert labels.classes.tolist() == classes == expected.tolist()
        assert labels.classes.dtype.kind == expected.dtype.kind
        np.testing.assert_array_equal(order[first.astype(int)], codes)
        np.testing.assert_array_equal(encode(labels), codes)  # now they are known


def test_texts_of_files_without_types_are_numbers_if_all_are():
    for texts, classes in ((["10", "9", "9"], [9, 10]), (["1.0", "2", "2"], [1.0, 2.0]), (["1", "b", "1"], ["1", "b"])):
        labels = Labels()
        labels.of_column(column(texts), "y", "t.csv", 0, typed=False)
        labels.finish("t.csv")
        assert labels.classes.tolist() == classes
    typed = Labels()
    typed.of_column(column(["10", "9"]), "y", "t.parquet", 0)
    typed.finish("t.parquet")
    assert typed.classes.tolist() == ["10", "9"]
    known = Labels([1, 2])
    np.testing.assert_array_equal(known.of_column(column(["2", "1", "2.0"]), "y", "t.csv", 0, typed=False), [1, 0, 1])


def test_signs():
    two, three = Labels(["no", "yes"]), Labels([5, 7, 6])
    assert two.signs(np.array([0.0, 1.0])).tolist() == [[-1.0], [1.0]]
    assert three.classes.tolist() == [5, 6, 7]
    assert three.signs(np.array([2.0, 0.0])).tolist() == [[-1.0, -1.0, 1.0], [1.0, -1.0, -1.0]]


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (["a", "b", None], r"t: column 'y', row 13: the label is missing"),
        ([1.0, 2.0, float("nan")], r"row 13: the label is missing"),
        ([1.0, 2.0, 2.5], r"row 13: 2\.5 is not a class label\. Use GPRegressor"),
        ([datetime.date(2020, 1, 1)] * 3, r"row 11: labels must be numbers, strings or booleans"),
    ],
)
def test_what_is_no_label_is_named(values, match):
    with pytest.raises(InvalidInputError, match=match):
        Labels().of_column(column(values), "y", "t", 10)


def test_an_unknown_label_is_named_with_its_row():
    labels = Labels(["a", "b"])
    with pytest.raises(InvalidInputError, match=r"f\.parquet: column 'y', row 8: the label 'c' is not one .* 'a', 'b'"):
        labels.of_column(column(["a", "b", "c"]), "y", "f.parquet", 5)
    with pytest.raises(InvalidInputError, match=r"y, row 1: the label 3 is not one of the classes 'a', 'b'"):
        labels.of_array(np.array([3, 3]), 0)
    with pytest.raises(InvalidInputError, match="row 2: the label is missing"):
        labels.of_column(column(["a", "", "b"]), "y", "f.csv", 0, typed=False)


def test_classes_that_cannot_be():
    for given in (["a"], ["a", "a"], "ab"):
        with pytest.raises(InvalidInputError, match="two labels or more, all different"):
            Labels(given)
    with pytest.raises(InvalidInputError, match=r"0\.5 is not a class label"):
        Labels([0.5, 1.0])
    one = Labels()
    one.of_array(np.array(["a", "a"]), 0)
    with pytest.raises(InvalidInputError, match="folder has labels of only one class, 'a'; at least two"):
        one.finish("folder")
    mixed = Labels()
    with pytest.raises(InvalidInputError, match=r"must be of one type; got 'a' in row 0 .* and 1 in row 1"):
        mixed.of_array(np.array(["a", 1], dtype=object), 0)
    mixed.of_array(np.array(["a", "b"], dtype=object), 0)
    mixed.of_array(np.array([1]), 2)
    with pytest.raises(InvalidInputError, match="strings and numbers as labels"):
        mixed.finish("folder")
    with pytest.raises(InvalidInputError, match="one column of labels"):
        Labels().of_array(np.zeros((3, 2)), 0)
