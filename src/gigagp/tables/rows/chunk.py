"""A chunk of rows, and how arrays of any kind become float64 tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gigagp.tables import cells, intake

if TYPE_CHECKING:
    from gigagp.tables.files.labels import Labels

#: Default number of rows of a chunk: enough for a pass over the rows to run at full speed.
CHUNK_ROWS = 2**20


@dataclass(frozen=True)
class Chunk:
    """Rows of a source that were read together, as float64 tensors on the CPU.

    Attributes
    ----------
    part : str
        Path of the file the rows come from; empty for rows that are not in a file.
    last : int
        Number of rows of the part up to and including these.
    X : Tensor of shape (n, d)
    Y : Tensor of shape (n, t)
    """

    part: str
    last: int
    X: Tensor
    Y: Tensor

    @property
    def first(self) -> int:
        """Number of rows of the part before these."""
        return self.last - len(self.X)


def chunk_of(X: Any, Y: Any, first_row: int, labels: Labels | None = None) -> Chunk:
    """Return rows in memory as a chunk.

    Parameters
    ----------
    X : array of shape (n, d)
    Y : array of shape (n,) or (n, t)
    first_row : int
        Number of rows of the source before these, for messages.
    labels : Labels, optional
        If given, ``Y`` holds class labels, and the chunk holds their codes.

    Raises
    ------
    InvalidInputError
        If a cell is not a finite number, or not a label. The message names the column and the row.
    """
    inputs = as_table(X, "X", first_row, finite=True)
    targets = as_columns(Y if labels is None else labels.of_array(Y, first_row), "y", first_row, finite=True)
    return Chunk("", first_row + len(inputs), inputs, targets)


def as_table(values: Any, name: str, first_row: int = 0, *, finite: bool = False) -> Tensor:
    """Return inputs as a contiguous float64 tensor of shape (n, d) on the CPU; NaN and infinity pass unless ``finite``.

    Raises
    ------
    InvalidInputError
        As `gigagp.tables.intake.inputs`.
    """
    return _as_tensor(intake.inputs(values, name, min_rows=0, finite=finite, first_row=first_row))


def as_columns(Y: Any, name: str = "Y", first_row: int = 0, *, finite: bool = False) -> Tensor:
    """Return targets as a float64 tensor of shape (n, t) on the CPU; a single target may have shape (n,)."""
    found = _as_tensor(intake.targets(Y, name=name, finite=finite, first_row=first_row))
    return found.reshape(-1, 1) if found.ndim == 1 else found


def refuse_not_finite(table: Tensor, name: str, first_row: int = 0) -> None:
    """Raise `InvalidInputError` for the first number that is not finite; rows are counted from ``first_row``."""
    cells.refuse_not_finite(table.numpy(), cells.Place(name, None, first_row))


def _as_tensor(found: np.ndarray) -> Tensor:
    # torch warns about arrays that cannot be written to, so they are copied.
    return torch.from_numpy(found if found.flags.c_contiguous and found.flags.writeable else found.copy())
