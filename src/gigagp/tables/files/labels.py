"""Class labels of any type as numbers, both while the classes are being collected and once they are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gigagp.errors import InvalidInputError
from gigagp.tables.cells import is_number
from gigagp.tables.intake import labels as known_labels


class Labels:
    """The classes of a column, and the codes 0, 1, ... that stand for its labels.

    Until the classes are known, codes are given in the order in which labels first occur. `finish` sorts the
    ``classes``, numbers, strings or booleans, and says how the codes change.
    """

    def __init__(self, classes: Sequence[Any] | np.ndarray | None = None) -> None:
        self.classes: np.ndarray | None = None
        self._codes: dict[Any, int] = {}
        #: Texts from files without types (CSV). They may stand for numbers.
        self._untyped: set[str] = set()
        if classes is None:
            return
        given = np.asarray(classes).tolist() if not isinstance(classes, str) else [classes]
        _refuse_others(given, "classes of GPClassifier.fit_table")
        if len(given) < 2 or len(set(given)) < len(given):
            msg = f"classes of GPClassifier.fit_table must be two labels or more, all different; got {classes!r}."
            raise InvalidInputError(msg)
        self._codes = {label: 0 for label in given}
        self._sort(given)

    @property
    def n_functions(self) -> int:
        """Number of latent functions: one for two classes, otherwise one for each class."""
        assert self.classes is not None
        return 1 if len(self.classes) == 2 else len(self.classes)

    def signs(self, codes: np.ndarray) -> np.ndarray:
        """Return the targets of a two-class likelihood, (n, n_functions), from codes (n,).

        They are 1 for the class and -1 for all others.
        """
        if self.n_functions == 1:
            return 2.0 * codes[:, None] - 1.0
        return np.where(codes[:, None] == np.arange(self.n_functions), 1.0, -1.0)

    def of_column(
        self, column: pa.ChunkedArray, name: str, source: str, first_row: int, *, typed: bool = True
    ) -> np.ndarray:
        """Return the codes of a column's labels, float64.

        An empty cell, what is no label, and a label of no known class are refused. ``typed`` says whether the file
        states the type of the labels. If not (CSV), a text such as ``"3"`` may be a number. Messages have the names of
        column and file (``source``) and the row, counted after ``first_row``.
        """
        where = f"{source}: column {name!r}"
        if column.null_count:
            row = first_row + int(np.argmax(column.is_null().to_numpy())) + 1
            raise InvalidInputError(f"{where}, row {row}: the label is missing. Fill it in, or remove the row.")
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        encoded = column.combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):  # for no rows, and in older versions of pyarrow
            encoded = encoded.combine_chunks()
        return self._codes_of(encoded.dictionary.to_pylist(), encoded.indices.to_numpy(), where, first_row, typed)

    def of_array(self, values: Any, first_row: int) -> np.ndarray:
        """Return the codes of labels in memory, given with shape (n,) or (n, 1); errors as for `of_column`."""
        values = known_labels(values, first_row=first_row)
        if values.dtype.kind == "O":
            distinct = list(dict.fromkeys(values.tolist()))
            place = {label: k for k, label in enumerate(distinct)}
            inverse = np.array([place[label] for label in values.tolist()], dtype=np.int64)
        else:
            found, inverse = np.unique(values, return_inverse=True)
            distinct = found.tolist()
        return self._codes_of(distinct, inverse, "y", first_row, True)

    def _codes_of(
        self, distinct: list[Any], inverse: np.ndarray, where: str, first_row: int, typed: bool
    ) -> np.ndarray:
        codes = np.empty(len(distinct))
        for k, label in enumerate(distinct):
            code = self._code(label, typed)
            if not isinstance(code, int):
                row = first_row + int(np.argmax(inverse == k)) + 1
                if code is None:
                    assert self.classes is not None
                    code = (
                        f"the label {label!r} is not one of the classes {', '.join(map(repr, self.classes.tolist()))}. "
                        "Name all of them in classes, or remove these rows."
                    )
                raise InvalidInputError(f"{where}, row {row}: {code}")
            codes[k] = code
        return codes[inverse] if len(distinct) else np.empty(0)

    def _code(self, label: Any, typed: bool) -> int | str | None:
        """Return a label's code, None if it is not one of the known classes, or a text that says why it is no label."""
        if isinstance(label, str) and not typed:
            label = label.strip()  # the blank in "1, yes" is not part of the label
        known = self._codes.get(label)
        if known is not None:
            return known
        wrong = _not_a_label(None if label == "" and not typed else label)
        if wrong is not None:
            return wrong
        if self.classes is not None:
            return None if typed else self._codes.get(_number(label))
        if not typed:
            self._untyped.add(label)
        return self._codes.setdefault(label, len(self._codes))

    def finish(self, source: str) -> np.ndarray:
        """Sort the classes that have been collected, and return the new code of each old one, shape (n_classes,).

        There must be two at least, and no strings beside numbers, which have no common order.
        """
        found = list(self._codes)
        if self._untyped and all(isinstance(label, str) for label in found):
            numbers = [_number(label) for label in found]
            if all(number is not None and number == number for number in numbers):
                found = numbers
        if len(set(found)) < 2:
            raise InvalidInputError(
                f"{source} has labels of only one class, {found[0]!r}; at least two classes are needed."
                if found
                else f"{source} has no rows."
            )
        if len({isinstance(label, str) for label in found}) > 1:
            raise InvalidInputError(
                f"{source} has strings and numbers as labels ({', '.join(map(repr, found[:6]))}). Use one type."
            )
        return self._sort(found)

    def _sort(self, found: list[Any]) -> np.ndarray:
        self.classes = np.unique(np.array(found))
        self._codes = {label: k for k, label in enumerate(self.classes.tolist())}
        return np.array([self._codes[label] for label in np.array(found).tolist()], dtype=np.float64)


def _number(text: Any) -> int | float | None:
    """Return the number that a text stands for, None if it is not a number."""
    if not isinstance(text, str) or not is_number(text):
        return None
    try:
        return int(text)
    except ValueError:  # it has a point, an exponent, or more digits than Python converts
        return float(text) if math.isfinite(float(text)) else None


def _not_a_label(label: Any) -> str | None:
    """Return what is wrong with a label, None if nothing is."""
    if label is None or (isinstance(label, float) and math.isnan(label)):
        return "the label is missing. Fill it in, or remove the row."
    if isinstance(label, float) and not label.is_integer():
        return f"{label!r} is not a class label. Use GPRegressor for continuous targets."
    if not isinstance(label, bool | int | float | str):
        return f"labels must be numbers, strings or booleans; got {label!r} of type {type(label).__name__}."
    return None


def _refuse_others(labels: list[Any], what: str) -> None:
    for label in labels:
        wrong = _not_a_label(label)
        if wrong is not None:
            raise InvalidInputError(f"{what}: {wrong}")
