"""Conversion of tables to NumPy arrays: arrays, masked arrays, lists, tensors, sparse matrices and data frames.

Every public function converts its inputs by `inputs`, its targets by `targets`, its labels by `labels` and other
numbers by `numbers`, and then works with float64 NumPy arrays. Unusable data raise an `InvalidInputError` that names
the column and the row. Masked cells are rejected like NaN, because the value under a mask is not data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gigagp.errors import InvalidInputError
from gigagp.runtime.memory import require, resolve_budget
from gigagp.tables.cells import Place, refuse_masked, refuse_not_finite, to_floats

#: What else can be done about cells that are no numbers: a table has other inputs, but no other targets.
_WITHOUT_ROWS = "leave these rows out"
#: Advice for targets of which some were not observed.
_OF_GAPS = (
    'Drop or fill these rows first, or give GPRegressor outputs="correlated", which takes NaN where an output was not '
    "observed."
)


def numbers(
    values: Any,
    name: str,
    *,
    finite: bool = True,
    first_row: int = 0,
    memory_budget: float | str | None = None,
    otherwise: str = _WITHOUT_ROWS,
) -> np.ndarray:
    """Return real numbers as a float64 array of the same shape.

    ``values`` are numbers, booleans, or text that is a number, in an array, list, tensor (gradients are discarded),
    sparse matrix, data frame or column of one. NaN and infinity pass unless ``finite``. ``first_row`` is the number of
    the first row in messages, which advise to do ``otherwise`` where a cell cannot be converted. A sparse matrix is
    made dense within the memory budget.

    Raises
    ------
    InvalidInputError
        If the data cannot be read as numbers, or for the first cell that is masked, empty, not a number or not finite.
    MemoryBudgetError
        If a sparse matrix is too large to be made dense.
    """
    frame = _frame(values)
    if frame is None:
        place = Place(name, None, first_row, otherwise=otherwise)
        found = to_floats(_array(values, name, memory_budget), place)
    else:
        columns, parts = frame
        _refuse_repeated(columns, name)
        place = Place(name, columns, first_row, otherwise=otherwise)
        found = np.empty((len(values), len(columns)))
        for k, part in enumerate(parts):
            found[:, k] = to_floats(_column(part), replace(place, columns=[columns[k]]))
    found = np.asarray(found, order="C")  # sums over rows have one order, whatever the layout of the table
    return refuse_not_finite(found, place) if finite else found


def inputs(X: Any, name: str = "X", *, min_rows: int = 1, finite: bool = True, **options: Any) -> np.ndarray:
    """Return a table of inputs, float64 of shape (n, d); arguments and errors are those of `numbers`.

    The shape is also checked: two dimensions, at least ``min_rows`` rows and at least one input.
    """
    values = numbers(X, name, finite=finite, otherwise="leave the column out", **options)
    _require_table(values.shape, name, min_rows)
    return values


def _require_table(shape: tuple[int, ...], name: str, min_rows: int) -> None:
    if len(shape) != 2:
        raise InvalidInputError(
            f"Expected 2D array, got {f'{len(shape)}D' if shape else 'scalar'} array instead: {name} must have shape "
            f"(n, d), one row per point; got {shape}. Reshape your data: reshape(-1, 1) for one input, reshape(1, -1) "
            "for one row."
        )
    if shape[1] == 0:
        msg = f"{name} must have inputs: got 0 feature(s) (shape={shape}) while a minimum of 1 is required."
        raise InvalidInputError(msg)
    if shape[0] < min_rows:
        msg = f"{name} must have rows: got {shape[0]} sample(s) while a minimum of {min_rows} is required."
        raise InvalidInputError(msg)


def table_columns(
    X: Any, name: str = "X", *, min_rows: int = 1, memory_budget: float | str | None = None
) -> tuple[list[Any] | None, list[Any]]:
    """Return the names of a table's columns, None for an array, and its columns, of any type and as they are."""
    frame = _frame(X)
    if frame is not None:
        _refuse_repeated(frame[0], name)
        _require_table((len(X), len(frame[0])), name, min_rows)
        return frame[0], list(frame[1])
    values = _rows(X, name) if isinstance(X, list | tuple) else _array(X, name, memory_budget)
    _require_table(values.shape, name, min_rows)
    return None, [values[:, k] for k in range(values.shape[1])]


def _rows(X: Sequence[Any], name: str) -> np.ndarray:
    """Return a list of rows as an array of objects: NumPy would turn numbers beside texts into texts."""
    try:
        return np.array(_objects(X), dtype=object)
    except ValueError as error:  # rows of different lengths
        raise _not_an_array(X, name, error) from None


def targets(y: Any, n_rows: int | None = None, name: str = "y", *, finite: bool = True, **options: Any) -> np.ndarray:
    """Return targets, float64 of shape (n,) or (n, t), as many as there are rows; the rest is as for `numbers`."""
    _require_given(y, name)
    values = numbers(y, name, finite=False, otherwise=f"{_WITHOUT_ROWS}. GPClassifier takes classes", **options)
    if values.ndim not in (1, 2) or (values.ndim == 2 and values.shape[1] == 0):
        raise InvalidInputError(f"{name} must have shape (n,) or (n, n_targets); got {values.shape}.")
    refuse_unequal(n_rows, len(values), name)
    if finite:
        frame, several = _frame(y), values.ndim == 2 and values.shape[1] > 1
        place = Place(name, None if frame is None else frame[0], options.get("first_row", 0))
        refuse_not_finite(values, replace(place, advice=_OF_GAPS) if several else place)
    return values


def _require_given(y: Any, name: str) -> None:
    if y is None:
        raise InvalidInputError(f"{name} must be given: a fit requires y to be passed, but the target y is None.")


def labels(y: Any, n_rows: int | None = None, name: str = "y", *, first_row: int = 0) -> np.ndarray:
    """Return class labels, shape (n,), from an array of shape (n,) or (n, 1).

    They are integers, booleans or strings, all of one type.
    """
    _require_given(y, name)
    frame = _frame(y)
    if frame is not None and len(frame[0]) == 1:
        y = frame[1][0]
    # Lists become arrays of objects: NumPy would convert the numbers of a mixed list to strings.
    values = np.array(_objects(y), dtype=object) if isinstance(y, list | tuple) else _array(_column(y), name, None)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values.reshape(-1)
    if values.ndim != 1:
        raise InvalidInputError(f"{name} of GPClassifier must be one column of labels; got shape {values.shape}.")
    refuse_unequal(n_rows, len(values), name)
    place = Place(name, None, first_row)
    values = refuse_masked(values, place)
    if values.dtype.kind == "O":
        values = _of_one_type(values, place, as_array=isinstance(y, list | tuple))
    if values.dtype.kind == "f":
        values = refuse_not_finite(to_floats(values, place), place)
        broken = values != np.floor(values)
        if broken.any():
            first = int(np.argmax(broken))
            raise InvalidInputError(
                f"Unknown label type: continuous. {float(values[first])!r}{place.of((first,))} of {name} is not a "
                "class label. Use GPRegressor for continuous targets."
            )
    elif values.dtype.kind not in "biuUO":
        msg = f"Unknown label type: {values.dtype}. Labels in {name} must be integers, strings or booleans."
        raise InvalidInputError(msg)
    return values


def estimator_inputs(estimator: Any, X: Any, *, reset: bool, min_rows: int = 1) -> np.ndarray:
    """Return the inputs of a scikit-learn estimator's `fit` (``reset``) or of its predictions.

    Their number and names are stored on the estimator by a fit, and compared with the stored ones otherwise.
    """
    budget = getattr(estimator, "memory_budget", None)
    values = inputs(X, min_rows=min_rows, memory_budget=budget)
    _check_features(estimator, values if _frame(X) is None else X, reset=reset)
    return values


def check_features(estimator: Any, X: Any, *, reset: bool, min_rows: int = 1) -> int:
    """Return the number of rows of a table of any types; store or compare the number and names of its columns."""
    names, columns = table_columns(X, min_rows=min_rows, memory_budget=getattr(estimator, "memory_budget", None))
    _check_features(estimator, np.empty((len(columns[0]), len(columns))) if names is None else X, reset=reset)
    return len(columns[0])


def _check_features(estimator: Any, X: Any, *, reset: bool) -> None:
    from sklearn.utils.validation import validate_data

    try:
        validate_data(estimator, _without_index(X) if _is_arrow(X) else X, reset=reset, skip_check_array=True)
    except (ValueError, TypeError) as error:
        raise InvalidInputError(str(error)) from None


def refuse_unequal(n_inputs: int | None, n_targets: int, name: str = "y") -> None:
    """Raise `InvalidInputError` unless there are as many targets as rows of inputs."""
    if n_inputs is not None and n_inputs != n_targets:
        raise InvalidInputError(
            f"X and {name} must have the same number of rows; got inconsistent numbers of samples: "
            f"{[n_inputs, n_targets]}."
        )


def is_sparse(values: Any) -> bool:
    """Whether this is a sparse matrix or array of SciPy, or an object with the same interface."""
    return hasattr(values, "toarray") and hasattr(values, "nnz") and hasattr(values, "tocsr")


def frame_names(values: Any) -> list[str] | None:
    """Return the column names of a data frame, which must differ, or None for anything else."""
    if isinstance(values, str) or (frame := _frame(values)) is None:
        return None
    names = [str(name) for name in frame[0]]
    _refuse_repeated(names, "the data frame")
    return names


# Containers of cells
# ---------------------------------------------------------------------------------------------------


def _array(values: Any, name: str, memory_budget: float | str | None) -> np.ndarray:
    """Return a container other than a data frame as a NumPy array of any type."""
    if isinstance(values, torch.Tensor):
        return _of_tensor(values, name, memory_budget)
    if is_sparse(values):
        _require_dense(values.shape, name, memory_budget)
        return np.asarray(values.toarray())
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, list | tuple) and any(isinstance(part, np.ma.MaskedArray) for part in values):
        mask = np.asarray([np.ma.getmaskarray(part) for part in values])
        return np.ma.MaskedArray(np.asarray([np.ma.getdata(part) for part in values]), mask)
    values = _column(values)
    try:
        found = np.asarray(values)
    except Exception as error:  # an object may raise anything on conversion
        if isinstance(error, MemoryError):
            raise
        if not isinstance(values, list | tuple):
            raise _not_an_array(values, name, error) from None
        found = np.array(_objects(values), dtype=object)  # rows of different lengths: a later error names the cell
    if found.dtype == object and found.ndim == 0:
        raise _not_an_array(values, name, None)
    return found


def _of_tensor(values: torch.Tensor, name: str, memory_budget: float | str | None) -> np.ndarray:
    if values.device.type == "meta":
        raise InvalidInputError(f"{name} is a tensor on the device meta, which has a shape but no data.")
    if values.is_complex():
        raise InvalidInputError(f"{name} must hold real numbers; got {values.dtype}. Complex data not supported.")
    try:
        values = values.detach()
        if values.layout != torch.strided:
            _require_dense(tuple(values.shape), name, memory_budget)
            values = values.to_dense()
        if values.is_floating_point():
            values = values.to(torch.float64)  # NumPy has no bfloat16
        return values.cpu().resolve_neg().numpy()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise _not_an_array(values, name, error) from None


def _require_dense(shape: tuple[int, ...], name: str, memory_budget: float | str | None) -> None:
    # The factor 2 covers the table and a copy of it in the units of the model.
    needed = 16 * int(np.prod([int(size) for size in shape], dtype=object))
    remedy = "Gaussian processes need dense inputs: use fewer columns or rows, or raise memory_budget."
    require(needed, resolve_budget(memory_budget), f"{name}, a sparse matrix of shape {shape}, made dense", remedy)


def _not_an_array(values: Any, name: str, error: Exception | None) -> InvalidInputError:
    why = "" if error is None else f" ({' '.join(str(error).split())})"
    return InvalidInputError(
        f"{name} must be an array, a table or a list of numbers; got {type(values).__name__}{why}."
    )


def _objects(values: Any) -> list[Any]:
    """Return the items of a list, so that NumPy makes an array of objects from them regardless of their lengths."""
    return [part.tolist() if isinstance(part, torch.Tensor) and part.device.type != "meta" else part for part in values]


def _frame(values: Any) -> tuple[list[Any], Sequence[Any]] | None:
    """Return names and columns of a data frame (pandas, polars, pyarrow), or None for anything else."""
    if hasattr(values, "iloc") and hasattr(values, "columns"):
        return list(values.columns), [values.iloc[:, k] for k in range(values.shape[1])]
    if _is_arrow(values):
        values = _without_index(values)
        return list(values.schema.names), [values.column(k) for k in range(values.num_columns)]
    if hasattr(values, "get_columns") and hasattr(values, "to_arrow"):
        return list(values.columns), values.get_columns()
    return None


def without_levels(values: Any) -> Any:
    """Return a pandas frame with the levels of its MultiIndex, or an index, as columns in front; others unchanged."""
    if hasattr(values, "get_level_values") and hasattr(values, "to_frame"):
        return values.to_frame(index=False)
    index = getattr(values, "index", None)
    if not hasattr(values, "iloc") or not hasattr(values, "columns") or not hasattr(index, "levels"):
        return values
    return values.reset_index()


def _is_arrow(values: Any) -> bool:
    return hasattr(values, "num_columns") and hasattr(values, "schema") and hasattr(values, "column")


def _without_index(values: Any) -> Any:
    """Return a pyarrow table without an unnamed index that pandas has stored in it."""
    from gigagp.tables.files.table import without_index

    names = values.schema.names
    kept = without_index(names)
    return values if len(kept) == len(names) else values.select(kept)


def _column(values: Any) -> Any:
    """Return a column of a data frame as an array of numbers or of objects, and anything else unchanged."""
    if hasattr(values, "iloc") and hasattr(values, "to_numpy"):
        return values.to_numpy()
    if hasattr(values, "to_arrow") and hasattr(values, "to_numpy"):  # polars
        values = values.to_arrow()
    if not (hasattr(values, "null_count") and hasattr(values, "to_pylist")):
        return values
    import pyarrow as pa

    kind = values.type
    plain = pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    if plain and not values.null_count:
        return values.to_numpy() if isinstance(values, pa.ChunkedArray) else values.to_numpy(zero_copy_only=False)
    cells = values.to_pylist()
    found = np.empty(len(cells), dtype=object)
    for k, cell in enumerate(cells):
        found[k] = cell
    return found


def _refuse_repeated(columns: Sequence[Any], name: str) -> None:
    for column, count in Counter(columns).items():
        if count > 1:
            raise InvalidInputError(f"{name} has two columns named {column!r}. Rename one of them.")


def _of_one_type(values: np.ndarray, place: Place, *, as_array: bool) -> np.ndarray:
    """Return an array of label objects as an array of their type; strings stay objects unless ``as_array``."""
    cells = [cell.item() if isinstance(cell, np.generic) else cell for cell in values.tolist()]
    kinds: dict[type, int] = {}
    for row, cell in enumerate(cells):
        if isinstance(cell, bool | int | float | str):
            kind = str if isinstance(cell, str) else bool if isinstance(cell, bool) else float
            kinds.setdefault(kind, row)
        elif cell is None or type(cell).__name__ in {"NAType", "NaTType"} or cell is np.ma.masked:
            raise place.not_finite(f"an empty cell ({type(cell).__name__})", (row,), 1)
        else:
            raise InvalidInputError(
                f"Unknown label type: {type(cell).__name__}. Labels in {place.name} must be integers, strings or "
                f"booleans; got {cell!r}{place.of((row,))}."
            )
    if len(kinds) > 1:
        found = " and ".join(f"{cells[row]!r}{place.of((row,))}" for row in sorted(kinds.values()))
        raise InvalidInputError(
            f"Labels in {place.name} must be of one type; got {found}. Make them all strings, or all numbers."
        )
    if str in kinds:
        return np.array(cells) if as_array else np.array(cells, dtype=object)
    array = np.array(cells)
    whole = all(isinstance(cell, int) for cell in cells)
    # Integers of more than 64 bits would become floats.
    return np.array(cells, dtype=object) if whole and array.dtype.kind == "f" else array
