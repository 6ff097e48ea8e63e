"""The meaning of ``preconditioner="auto"``, and the construction of a preconditioner from any accepted choice."""

from __future__ import annotations

from typing import Annotated, Literal

import torch

from gigagp.errors import InvalidInputError
from gigagp.fields import Words
from gigagp.neighbours.conditionals import Pool, is_compiled
from gigagp.neighbours.neighbourhood import FEW_INPUTS, FEW_NEIGHBOURS, NeighbourGraph
from gigagp.operators import KernelMatrix
from gigagp.operators.base import LinearOperator, SymmetricMatrix
from gigagp.preconditioners.base import Preconditioner, PreconditionerRecipe, Reuse, budget_of
from gigagp.preconditioners.two_level import TwoLevel
from gigagp.preconditioners.vecchia import Vecchia

#: A recipe, a preconditioner that has already been built, the automatic choice, or none.
PreconditionerChoice = (
    Annotated[
        PreconditionerRecipe | Preconditioner,
        Words("a recipe such as TwoLevel(), a Preconditioner that was built for this matrix"),
    ]
    | Literal["auto"]
    | None
)

#: Neighbours in more inputs for each cube root of the rows: 120 for 8,000 rows, 200 for 37,000. On kin40k (20,000 rows,
#: 8 inputs) 120, 200 and 300 take 38, 28 and 22 iterations to 0.01, and as long as 2, 5 and 13 products to build.
_MANY_NEIGHBOURS = 6.0
#: Rows up to which `TwoLevel` is nearly the matrix itself.
_SMALLEST_SPARSE = 1000
#: Share of the signal's variance below which conditionals of near rows would be all rounding.
_LOST_NOISE = 1e-8
#: Rows of the trial, and the variance that their neighbours must leave, noise included, in units of the noise. Six
#: tables of 8,000 to 20,000 rows: `Vecchia` was ahead from 2 on, equal at 1.7, and took thrice the iterations at 1.6.
_TRIAL_ROWS, _LEFT = 500, 2.0
#: Bytes for each neighbour of each row: neighbours and weights, by rows and by columns, and as much again in a build.
_VECCHIA_BYTES = 48
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


def automatic(matrix: SymmetricMatrix, reuse: Reuse | None = None) -> tuple[PreconditionerRecipe, Reuse | None]:
    """Return the recipe for a matrix, with what its build may reuse; the build uses at most half of the memory budget.

    Up to three inputs the recipe is `Vecchia` with 30 neighbours. Beyond, a trial decides. Where 30 neighbours of a row
    leave more variance than the noise, nothing but closer rows could explain it, and `Vecchia` with ``6 n^(1/3)``
    neighbours takes as many iterations as `TwoLevel` or fewer, at a fifth of its set-up and a third of its application.
    Elsewhere the answer is spread over very many rows, which low-rank columns see better. A kernel without a compiled
    program takes `TwoLevel`, because its conditionals are slow.
    """
    n, budget = matrix.n, budget_of(matrix) // 2
    rank, block_size = auto_sizes(n, budget)
    two_level = TwoLevel(rank=rank, block_size=block_size)
    if not isinstance(matrix, KernelMatrix) or n <= _SMALLEST_SPARSE or not is_compiled(matrix.kernel, matrix.device):
        return two_level, reuse
    few = matrix.X.shape[1] <= FEW_INPUTS
    wanted = FEW_NEIGHBOURS if few else round(_MANY_NEIGHBOURS * n ** (1 / 3))
    noise = matrix.noise().double()
    signal = float(matrix.kernel.diagonal(matrix.X).double().mean())
    if float(noise.min()) < _LOST_NOISE * signal or _VECCHIA_BYTES * n * wanted > budget:
        return two_level, reuse
    graph = None if reuse is None else reuse.graph
    if graph is None or not graph.serves(matrix.kernel, matrix.X, wanted):
        graph = NeighbourGraph(matrix.kernel, matrix.X, wanted)
    if not few:
        rows = torch.arange(n, device=matrix.device)[:: max(1, n // _TRIAL_ROWS)]
        neighbours = graph.neighbourhood.earlier(FEW_NEIGHBOURS, rows)
        pool = Pool(matrix.kernel, matrix.X, noise, budget=budget // 4)
        left = pool.conditionals(rows, neighbours, weights=False).variance
        if float((left / noise[rows]).mean()) < _LEFT:  # eigenvalues below the noise need no columns
            return TwoLevel(rank=max(1, rank // 2), block_size=max(1, block_size // 2)), reuse
    return Vecchia(n_neighbors=wanted), Reuse(None if reuse is None else reuse.pivots, graph)


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
        recipe, reuse = (choice, reuse) if isinstance(choice, PreconditionerRecipe) else automatic(operator, reuse)
        return recipe.build(operator, generator, reuse, bound=bound)
    if isinstance(choice, PreconditionerRecipe):
        msg = f"{choice!r} reads entries of the matrix, and {type(operator).__name__} has none to read: use None."
        raise InvalidInputError(msg)
    return None
