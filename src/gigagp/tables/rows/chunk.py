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
    """Rows of a source that were read together: X (n, d) and Y (n, t), float64 on the CPU.

    ``part`` is the path of their file, empty without one, and ``last`` the number of its rows up to and including
    these.
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
    """Return rows in memory as a chunk, after a check; with ``labels``, Y holds class labels and the chunk their codes.

    ``first_row`` is the number of rows of the source before these, for messages.
    """
    inputs = as_table(X, "X", first_row, finite=True)
    targets = as_columns(Y if labels is None else labels.of_array(Y, first_row), "y", first_row, finite=True)
    return Chunk("", first_row + len(inputs), inputs, targets)


def as_table(values: Any, name: str, first_row: int = 0, *, finite: bool = False) -> Tensor:
    """Return inputs as a contiguous float64 tensor of shape (n, d) on the CPU, which must be finite if ``finite``."""
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
