"""Rows in memory as float64 tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigagp import cells, intake


def as_table(values: Any, name: str, first_row: int = 0, *, finite: bool = False) -> Tensor:
    """Return a contiguous float64 table on the CPU of whatever holds one; NaN and infinity pass unless ``finite``.

    Raises
    ------
    InvalidInputError
        See `gigagp.intake.inputs`.
    """
    return _on_cpu(intake.inputs(values, name, min_rows=0, finite=finite, first_row=first_row))


def as_columns(Y: Any, name: str = "Y", first_row: int = 0, *, finite: bool = False) -> Tensor:
    """Return targets as a table; one target may be given as (n,)."""
    found = _on_cpu(intake.targets(Y, name=name, finite=finite, first_row=first_row))
    return found.reshape(-1, 1) if found.ndim == 1 else found


def refuse_not_finite(table: Tensor, name: str, first_row: int = 0) -> None:
    """Raise `InvalidInputError` for the first number that is not finite; ``first_row`` is the number of the first."""
    cells.refuse_not_finite(table.numpy(), cells.Place(name, None, first_row))


def _on_cpu(found: np.ndarray) -> Tensor:
    # An array that cannot be written is copied: torch has none such.
    return torch.from_numpy(found if found.flags.c_contiguous and found.flags.writeable else found.copy())
