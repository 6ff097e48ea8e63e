"""The meaning of ``preconditioner="auto"``, and the construction of a preconditioner from any accepted choice."""

from __future__ import annotations

from typing import Annotated, Literal

import torch

from gigagp.errors import InvalidInputError
from gigagp.fields import Words
from gigagp.operators.base import LinearOperator, SymmetricMatrix
from gigagp.preconditioners.base import Preconditioner, PreconditionerRecipe, Reuse, budget_of
from gigagp.preconditioners.two_level import TwoLevel

#: A recipe, a preconditioner that has already been built, the automatic choice, or none.
PreconditionerChoice = (
    Annotated[
        PreconditionerRecipe | Preconditioner,
        Words("a recipe such as TwoLevel(), a Preconditioner that was built for this matrix"),
    ]
    | Literal["auto"]
    | None
)

_SMALLEST, _LARGEST = 20, 2000
#: Number of arrays of n rows and ``size`` columns that exist at the peak of a build (measured).
_ARRAYS = 6


def auto_sizes(n: int, budget: int | None = None) -> tuple[int, int]:
    """Return the rank and the block size for ``n`` rows: ``1.8 n^(2/3)`` each, from 20 to 2,000.

    Iterations fall about as 1 / k (pol, n = 13,500, learned hyperparameters, rank = block size = k: 36, 21 and 12 for
    k = 300, 500 and 1,000). The build costs about ``8 n k^2`` operations, and a pass with 65 right-hand sides whose
    kernel entries are recomputed costs ``240 n^2``. With n / (3 k) iterations, about what warm starts leave, the total
    is smallest near ``k = 1.8 n^(2/3)`` and flat around it.

    Parameters
    ----------
    n : int
        Number of rows.
    budget : int, optional
        Bytes that the build may use; both sizes shrink in proportion to fit. None: no limit.
    """
    size = min(max(round(1.8 * n ** (2 / 3)), _SMALLEST), _LARGEST, n)
    if budget is not None:
        size = max(min(size, budget // (8 * n * _ARRAYS)), 1)
    return size, size


def automatic(matrix: SymmetricMatrix) -> TwoLevel:
    """Return the recipe for a matrix; its build uses at most half of the memory budget."""
    rank, block_size = auto_sizes(matrix.n, budget_of(matrix) // 2)
    return TwoLevel(rank=rank, block_size=block_size)


def build(
    choice: PreconditionerChoice,
    operator: LinearOperator,
    generator: torch.Generator,
    reuse: Reuse | None = None,
    *,
    bound: bool = False,
) -> Preconditioner | None:
    """Return the preconditioner of an operator, or None if there is to be none.

    "auto" stands for `automatic` if the operator's entries can be read, and for none otherwise.

    Raises
    ------
    InvalidInputError
        If a recipe is given for an operator whose entries cannot be read, or a preconditioner was built for another
        number of rows.
    """
    if choice is None:
        return None
    if isinstance(choice, Preconditioner):
        if choice.n != operator.n:
            msg = f"the preconditioner was built for {choice.n} rows; the operator has {operator.n}."
            raise InvalidInputError(msg)
        return choice
    if isinstance(operator, SymmetricMatrix):
        recipe = choice if isinstance(choice, PreconditionerRecipe) else automatic(operator)
        return recipe.build(operator, generator, reuse, bound=bound)
    if isinstance(choice, PreconditionerRecipe):
        msg = f"{choice!r} reads entries of the matrix, and {type(operator).__name__} has none to read: use None."
        raise InvalidInputError(msg)
    return None
