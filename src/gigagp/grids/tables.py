"""Rows in memory as float64 tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError


def as_table(values: Any, name: str) -> Tensor:
    """Return a contiguous float64 table on the CPU of an array, a tensor or a data frame."""
    if isinstance(values, Tensor):
        table = values.detach().to("cpu", torch.float64)
    else:
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            msg = f"{name} must hold real numbers; got {array.dtype}."
            raise InvalidInputError(msg)
        table = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64))
    if table.ndim != 2:
        msg = f"{name} must have two dimensions; got shape {tuple(table.shape)}."
        raise InvalidInputError(msg)
    return table.contiguous()


def as_columns(Y: Any) -> Tensor:
    """Return targets as a table; one target may be given as (n,)."""
    Y = Y if isinstance(Y, Tensor) else np.asarray(Y)
    return as_table(Y.reshape(-1, 1) if Y.ndim == 1 else Y, "Y")


def refuse_not_finite(table: Tensor, name: str, first_row: int = 0) -> None:
    """Raise `InvalidInputError` for the first number that is not finite; ``first_row`` is the number of the first."""
    if bool(table.sum().isfinite()):  # a sum can overflow, but NaN and infinity never leave one finite
        return
    bad = ~table.isfinite()
    if not bool(bad.any()):
        return
    row, column = (int(place) for place in bad.nonzero()[0])
    msg = (
        f"{name} must be finite; got {float(table[row, column])!r} in column {column}, row {row + first_row} (counted "
        f"from 0), {int(bad.sum())} such cells near it. Drop or fill these rows first."
    )
    raise InvalidInputError(msg)
