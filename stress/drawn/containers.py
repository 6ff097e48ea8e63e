"""The same rows in every kind of container that users pass: valid contents, and contents that must be refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stress.draw import Draw
from stress.drawn.rows import Rows

#: Required treatment of a container.
FIT, REFUSE, EITHER = "fit", "refuse", "either"


@dataclass
class Given:
    """The arguments of `fit`, and their meaning.

    Attributes
    ----------
    X, y : object
        The arguments.
    meant_X, meant_y : arrays, float64
        The numbers that they contain.
    verdict : str
        FIT: they must be taken as those numbers (or refused if the rows are not tame). REFUSE: they must be refused.
        EITHER: both are allowed.
    """

    X: Any
    y: Any
    meant_X: np.ndarray
    meant_y: np.ndarray
    verdict: str = FIT


def put(draw: Draw, rows: Rows) -> Given:
    """Return rows in a random container."""
    names = list(_CONTAINERS)
    name = "ndarray" if draw.chance(0.4) else draw.one_of(names)
    draw.note(f"as {name}")
    given = Given(rows.X.copy(), rows.y.copy(), rows.X.copy(), rows.y.copy())
    _CONTAINERS[name](draw, given)
    if not (np.isfinite(given.meant_X).all() and np.isfinite(given.meant_y).all()):
        given.verdict = REFUSE  # a cast to integers can remove such a cell
    return given


def _array(draw: Draw, given: Given) -> None:
    pass


def _lists(draw: Draw, given: Given) -> None:
    given.X, given.y = given.X.tolist(), given.y.tolist()
    if not given.X or not given.meant_X.shape[1]:
        given.verdict = EITHER


def _layout(draw: Draw, given: Given) -> None:
    X = given.X
    how = draw.one_of(["fortran", "strided", "reversed", "read-only", "big-endian", "broadcast"])
    draw.note(how)
    if how == "fortran":
        given.X = np.asfortranarray(X)
    elif how == "strided":
        given.X = np.repeat(np.repeat(X, 2, 0), 3, 1)[::2, ::3]
    elif how == "reversed":
        given.X, given.y = X[::-1].copy()[::-1], given.y[::-1].copy()[::-1]
    elif how == "read-only":
        given.X.setflags(write=False)
        given.y.setflags(write=False)
    elif how == "big-endian":
        given.X, given.y = X.astype(">f8"), given.y.astype(">f8")
    elif len(X):
        given.X = np.broadcast_to(X[:1], X.shape)
        given.meant_X = np.array(given.X)
        given.verdict = EITHER


def _cast(draw: Draw, given: Given) -> None:
    kind = draw.one_of(["f2", "f4", "g", "i1", "i4", "i8", "u1", "u8", "?", "O"])
    draw.note(f"dtype {kind}")
    with np.errstate(all="ignore"):
        given.X = (
            np.nan_to_num(given.X, nan=0.0).astype(kind)
            if kind in ("i1", "i4", "i8", "u1", "u8")
            else given.X.astype(kind)
        )
        given.meant_X = given.X.astype(np.float64)
        if draw.chance(0.3) and kind not in ("u1", "u8", "i1"):
            given.y = given.y.astype(kind) if np.isfinite(given.y).all() else given.y
            given.meant_y = given.y.astype(np.float64)
    given.verdict = EITHER if np.isfinite(given.meant_X).all() and np.isfinite(given.meant_y).all() else REFUSE


def _masked(draw: Draw, given: Given) -> None:
    mask = draw.rng.random(given.X.shape) < draw.one_of([0.0, 0.1])
    given.X = np.ma.masked_array(given.X, mask=mask)
    if draw.chance(0.3):
        of_y = draw.rng.random(given.y.shape) < 0.2
        given.y = np.ma.masked_array(given.y, mask=of_y)
        mask = np.append(mask.reshape(-1), of_y.reshape(-1))
    if mask.any():
        given.verdict = REFUSE


def _tensor(draw: Draw, given: Given) -> None:
    import torch

    X, y = torch.from_numpy(given.X), torch.from_numpy(given.y)
    how = draw.one_of(["plain", "float32", "bfloat16", "gradient", "meta", "sparse", "transposed"])
    draw.note(how)
    given.X, given.y = X, y
    if how == "float32":
        given.X = X.float()
        given.meant_X = given.X.double().numpy()
    elif how == "bfloat16":
        given.X = X.bfloat16()
        given.meant_X = given.X.double().numpy()
        given.verdict = EITHER
    elif how == "gradient":
        given.X.requires_grad_(True)
        given.verdict = EITHER
    elif how == "meta":
        given.X, given.verdict = X.to("meta"), REFUSE
    elif how == "sparse":
        given.X, given.verdict = X.to_sparse(), EITHER
    elif how == "transposed":
        given.X = X.T.contiguous().T
    if not np.isfinite(given.meant_X).all():
        given.verdict = REFUSE


def _frame(draw: Draw, given: Given) -> None:
    import pandas as pd

    columns: list[Any] = [f"c{place}" for place in range(given.X.shape[1])]
    how = draw.one_of(
        ["plain", "duplicate names", "mixed names", "nullable", "category", "dates", "text", "index", "arrow dtypes"]
    )
    draw.note(how)
    frame = pd.DataFrame(given.X, columns=columns)
    given.y = pd.Series(given.y) if given.y.ndim == 1 else pd.DataFrame(given.y)
    if how == "duplicate names" and len(columns) > 1:
        frame.columns = [columns[0]] * len(columns)
        given.verdict = EITHER
    elif how == "mixed names" and columns:
        frame.columns = [7, *columns[1:]]
        given.verdict = EITHER
    elif how == "nullable" and columns:
        frame = frame.astype("Float64")
        if draw.chance(0.5) and len(frame):
            frame.iloc[0, 0] = pd.NA
            given.verdict = REFUSE
    elif how == "arrow dtypes" and columns:
        frame = frame.astype("float64[pyarrow]")
    elif how == "category" and columns:
        frame[columns[0]] = frame[columns[0]].astype("category")
        given.verdict = EITHER
    elif how == "dates" and columns:
        frame[columns[0]] = pd.date_range("2024-01-01", periods=len(frame))
        given.meant_X, given.verdict = given.meant_X * np.nan, REFUSE
    elif how == "text" and columns and len(frame):
        frame[columns[0]] = ["red", *["blue"] * (len(frame) - 1)]
        given.verdict = REFUSE
    elif how == "index":
        frame.index = draw.rng.permutation(len(frame)) + 100
    given.X = frame


def _sparse(draw: Draw, given: Given) -> None:
    from scipy import sparse

    kind = draw.one_of(["csr_matrix", "csc_array", "coo_array", "dok_matrix"])
    given.X = getattr(sparse, kind)(given.X)
    given.verdict = EITHER if np.isfinite(given.meant_X).all() else REFUSE
    if draw.chance(0.1):
        given.y = sparse.csr_matrix(given.y if given.y.ndim == 2 else given.y[:, None])
        given.verdict = EITHER


def _arrow(draw: Draw, given: Given) -> None:
    import pyarrow as pa

    columns = {f"c{place}": pa.array(column) for place, column in enumerate(given.X.T)}
    how = draw.one_of(["plain", "null", "chunked", "dictionary", "decimal", "date"])
    draw.note(how)
    if how == "null" and columns and len(given.X):
        columns["c0"] = pa.array([None, *given.X[1:, 0]])
        given.verdict = REFUSE
    elif how == "dictionary" and columns and len(given.X):
        columns["c0"] = pa.array(["a"] * len(given.X)).dictionary_encode()
        given.verdict = REFUSE
    elif how == "date" and columns and len(given.X):
        columns["c0"] = pa.array(np.arange(len(given.X)).astype("datetime64[D]"))
        given.verdict = REFUSE
    table = pa.table(columns)
    if how == "chunked" and len(given.X) > 2:
        table = pa.concat_tables([table[:2], table[2:]])
    given.X = table
    if not given.meant_X.shape[1]:
        given.verdict = EITHER


def _strange(draw: Draw, given: Given) -> None:
    n = len(given.X)
    given.verdict = REFUSE
    how = draw.one_of(
        [
            "complex",
            "datetime",
            "structured",
            "none",
            "number",
            "text",
            "ragged",
            "three axes",
            "one axis",
            "object text",
            "huge integers",
            "generator",
            "set",
            "dict",
            "matrix",
            "short y",
            "y none",
            "y text",
            "y complex",
            "y three axes",
            "numeric text",
            "bytes",
            "y dates",
        ]
    )
    draw.note(how)
    if how == "complex":
        given.X = given.X + 1j
    elif how == "datetime":
        given.X = np.arange(n * max(1, given.X.shape[1])).reshape(n, -1).astype("datetime64[D]")
    elif how == "structured":
        given.X = np.zeros(n, dtype=[("a", "f8"), ("b", "i4")])
    elif how == "none":
        given.X = None
    elif how == "number":
        given.X = 3.5
    elif how == "text":
        given.X = "table.csv"
    elif how == "ragged":
        given.X = [[1.0], [1.0, 2.0]] * max(1, n // 2)
    elif how == "three axes":
        given.X = given.X[:, :, None]
    elif how == "one axis":
        given.X = given.X[:, 0] if given.X.shape[1] else given.X.reshape(-1)
    elif how == "object text":
        given.X = np.full((n, max(1, given.X.shape[1])), "red", dtype=object)
    elif how == "huge integers":
        given.X = [[10**400] * max(1, given.X.shape[1])] * max(n, 2)
    elif how == "generator":
        given.X = (row for row in given.X)
    elif how == "set":
        given.X = {1.0, 2.0}
    elif how == "dict":
        given.X = {"a": 1.0}
    elif how == "matrix":
        given.X, given.verdict = np.matrix(given.X), EITHER
    elif how == "short y":
        given.y = given.y[:-1] if n else np.zeros(3)
    elif how == "y none":
        given.y = None
    elif how == "y text":
        given.y = ["red", "blue"] * (n // 2) + ["red"] * (n % 2)
    elif how == "y complex":
        given.y = given.y + 1j
    elif how == "y three axes":
        given.y = given.y.reshape(n, given.y.shape[1] if given.y.ndim == 2 else 1, 1)
    elif how == "numeric text":
        given.X, given.verdict = given.X.astype(str), EITHER
    elif how == "bytes":
        given.X = given.X.tobytes()
    elif how == "y dates":
        given.y = np.arange(n).astype("datetime64[D]")
    if n < 2 or not given.meant_X.shape[1]:
        given.verdict = EITHER


_CONTAINERS: dict[str, Callable[[Draw, Given], None]] = {
    "ndarray": _array,
    "lists": _lists,
    "array of another layout": _layout,
    "array of another dtype": _cast,
    "masked array": _masked,
    "tensor": _tensor,
    "data frame": _frame,
    "sparse matrix": _sparse,
    "arrow table": _arrow,
    "something strange": _strange,
}
