"""The meaning of ``preconditioner="auto"``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from gigagp.neighbours.conditionals import is_compiled
from gigagp.neighbours.neighbourhood import FEW_INPUTS, FEW_NEIGHBOURS, NeighbourGraph
from gigagp.operators import KernelMatrix
from gigagp.operators.base import SymmetricMatrix
from gigagp.products import product_entries
from gigagp.runtime.machine import slowness
from gigagp.settings.fields import Words
from gigagp.solvers.preconditioners.base import Choice, Parts, Preconditioner, PreconditionerRecipe, budget_of
from gigagp.solvers.preconditioners.complete_panel import CompletePanel, suits_panel
from gigagp.solvers.preconditioners.two_level import TwoLevel
from gigagp.solvers.preconditioners.vecchia import Vecchia

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
#: Rows from which more neighbours are taken in few inputs too, as many as keep a build below a product of one column.
#: With 60,000 rows of elevation and a Matern-1/2 kernel, 30 and 60 take 4 and 3 iterations to 0.01.
_FEW_ROWS = 10_000
#: Rows up to which `TwoLevel` is nearly the matrix itself.
_SMALLEST_SPARSE = 1000
#: Share of the signal's variance below which conditionals of near rows would be all rounding.
_LOST_NOISE = 1e-8
#: Rows up to which, in many inputs, a solve costs no more than a trial.
_SMALLEST_TRIAL = 5000
#: Costs in products of H with 18 columns, one thread, float64; a product in float32 costs a third. Setting up takes
#: ``0.16 k^2 / n`` products for `TwoLevel` of size k and ``0.0054 m^3 / n`` for `Vecchia` with m neighbours, and an
#: application ``2 k / n`` and ``10 m / n``. Measured on elevators, protein and kin40k (15,000 to 41,000 rows).
_SETUP, _APPLICATION, _MIXED = (0.16, 0.0054), (2.0, 10.0), 3.0
#: Power of the rows with which the iterations of `Vecchia` grow in many inputs (kin40k: 19, 24 and about 50 for 2,000,
#: 4,000 and 36,000 rows); those of `TwoLevel` stay the same at the automatic sizes.
_GROWTH = 1 / 3
#: Bytes for each neighbour of each row: neighbours and weights, by rows and by columns, and as much again in a build.
_VECCHIA_BYTES = 48
_SMALLEST, _LARGEST = 20, 2000
#: Share of the time left that a build may take, and its nominal seconds for each row and column. With 43,945 rows of 20
#: inputs (keggdirected) they were 1.9e-7 for 2,000 columns, and 2.4e-7 for 657.
_IN_TIME, _COLUMN_OF_ROW = 0.2, 2e-7
#: Number of arrays of n rows and ``size`` columns that exist at the peak of a build (measured).
_ARRAYS = 6


def auto_sizes(n: int, budget: int | None = None, seconds: float = math.inf) -> tuple[int, int]:
    """Return the rank and the block size for ``n`` rows: ``1.8 n^(2/3)`` each, from 20 to 2,000.

    Iterations fall about as 1 / k (pol, n = 13,500, learned hyperparameters, rank = block size = k: 36, 21 and 12 for k
    = 300, 500 and 1,000). The build costs about ``8 n k^2`` operations, and a pass with 65 right-hand sides whose
    kernel entries are recomputed costs ``240 n^2``. With n / (3 k) iterations, about what warm starts leave, the total
    is smallest near ``k = 1.8 n^(2/3)`` and flat around it.

    Both sizes shrink where the build would exceed ``budget`` bytes, or take more than a fifth of the ``seconds`` that
    are left of a time budget.
    """
    size = min(max(round(1.8 * n ** (2 / 3)), _SMALLEST), _LARGEST, n)
    if seconds < math.inf:
        affordable = _IN_TIME * max(seconds, 0.0) / (slowness() * _COLUMN_OF_ROW * n)
        size = min(size, max(int(affordable), _SMALLEST))
    if budget is not None:
        size = max(min(size, budget // (8 * n * _ARRAYS)), 1)
    return size, size


def automatic(matrix: SymmetricMatrix, parts: Parts, seconds: float = math.inf) -> PreconditionerRecipe:
    """Return the recipe for a matrix, whose build uses at most half of the memory budget.

    A panel with few gaps takes `CompletePanel`.

    Up to three inputs the recipe is `Vecchia` with 30 neighbours, and from 10,000 rows on with ``30 (n /
    10,000)^(1/3)`` where the budget has room for them. Beyond three inputs, solves with 2,000 of the rows decide
    between `Vecchia` with ``6 n^(1/3)`` neighbours and `TwoLevel`. Neighbours take the fewest iterations where only
    close rows explain a row. With more noise, or for a smooth function with very little, low-rank columns see better
    what is spread over many rows. A kernel without a compiled program takes `TwoLevel`, because its conditionals are
    slow.

    ``parts`` has what is known of a similar matrix, and afterwards the neighbours and the choice for this one.
    ``seconds`` are left of a time budget.
    """
    n, budget = matrix.n, budget_of(matrix) // 2
    if isinstance(matrix, KernelMatrix) and suits_panel(matrix, budget):
        return CompletePanel()
    rank, block_size = auto_sizes(n, budget, seconds)
    two_level = TwoLevel(rank=rank, block_size=block_size)
    if not isinstance(matrix, KernelMatrix) or n <= _SMALLEST_SPARSE or not is_compiled(matrix.kernel):
        return two_level
    few = matrix.X.shape[1] <= FEW_INPUTS
    if not few and n <= _SMALLEST_TRIAL:
        return two_level
    if few:
        wanted = round(FEW_NEIGHBOURS * max(n / _FEW_ROWS, 1.0) ** (1 / 3))
        wanted = min(wanted, max(FEW_NEIGHBOURS, budget // (_VECCHIA_BYTES * n)))
    else:
        wanted = round(_MANY_NEIGHBOURS * n ** (1 / 3))
    noise = matrix.noise().double()
    signal = float(matrix.kernel.diagonal(matrix.X).double().mean())
    if float(noise.min()) < _LOST_NOISE * signal or _VECCHIA_BYTES * n * wanted > budget:
        return two_level
    graph, known = parts.graph, parts.choice
    if graph is None or not graph.serves(matrix.kernel, matrix.X, wanted):
        graph = NeighbourGraph(matrix.kernel, matrix.X, wanted)
    neighbours = Vecchia(n_neighbors=wanted)
    parts.choice = None
    if not few:
        if known is None or not known.serves(matrix.kernel, float(noise.mean())):
            recipe, products = cheapest(matrix, _candidates(matrix, neighbours, two_level, budget))
            known = Choice(recipe, matrix.kernel, float(noise.mean()), products)
        parts.choice = known
        if not isinstance(known.recipe, Vecchia):
            return known.recipe
    parts.graph = graph
    return neighbours


def _candidates(matrix: KernelMatrix, neighbours: Vecchia, two_level: TwoLevel, budget: int) -> list[Candidate]:
    """Return the recipes that a trial compares: neighbours, and two levels of the automatic size and of half of it."""
    n, product = matrix.n, 1.0 / (_MIXED if matrix.fast is not matrix else 1.0)
    product *= product_entries(matrix.kernel, matrix.X) / float(n) ** 2

    def costs(kind: int, size: int, power: int) -> tuple[float, float]:
        return _SETUP[kind] * size**power / n / product, _APPLICATION[kind] * size / n / product

    m, small = neighbours.n_neighbors, round(_MANY_NEIGHBOURS * TRIAL_ROWS ** (1 / 3))
    found = [Candidate(Vecchia(n_neighbors=small), neighbours, *costs(1, m, 3), _GROWTH)]
    size, trial = two_level.rank, auto_sizes(TRIAL_ROWS, budget)[0]
    for share in (1, 2):
        k, few = max(1, size // share), max(1, trial // share)
        found.append(Candidate(TwoLevel(few, few), TwoLevel(k, k), *costs(0, k, 2)))
    return found


# Trial solves with a few rows of a matrix, which tell what a preconditioner would cost for all of them ----------------


#: Rows of a trial, its right-hand sides, its relative residual, and its largest number of iterations.
TRIAL_ROWS, _COLUMNS, _TOLERANCE, _ITERATIONS = 2000, 4, 0.01, 150


@dataclass(frozen=True)
class Candidate:
    """A recipe at the size of a trial and at that of all rows, with its costs there in products with the matrix.

    Iterations grow with the power ``growth`` of the number of rows.
    """

    trial: PreconditionerRecipe
    recipe: PreconditionerRecipe
    setup: float
    application: float
    growth: float = 0.0

    def cost(self, small: KernelMatrix, n: int, right_hand_sides: torch.Tensor) -> float:
        """Return the estimated cost of a solve with ``n`` rows in products, infinite where the trial did not end."""
        built = self.trial.build(small, torch.Generator().manual_seed(0))
        iterations = _iterations(small, built, right_hand_sides)
        return self.setup + iterations * (n / small.n) ** self.growth * (1.0 + self.application)


def cheapest(matrix: KernelMatrix, candidates: Sequence[Candidate]) -> tuple[PreconditionerRecipe, float]:
    """Return the recipe that would cost least, judged by solves with 2,000 random rows, and its cost in products."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randperm(matrix.n, generator=generator)[:TRIAL_ROWS].to(matrix.device)
    X, kernel = matrix.X[rows].double(), matrix.kernel
    noise = matrix.noise()[rows].double() - kernel.white(X)
    small = KernelMatrix(kernel, X, noise, memory_budget=matrix.memory_budget)
    normal = torch.randn(len(rows), _COLUMNS, generator=generator, dtype=torch.float64).to(X)
    # Draws of about N(0, H): the right-hand sides of pathwise probes, and what targets look like.
    drawn = candidates[0].trial.build(small, generator).transform_normal(normal)
    costs = [one.cost(small, matrix.n, drawn) for one in candidates]
    least = min(range(len(costs)), key=costs.__getitem__)
    return candidates[least].recipe, costs[least]


def _iterations(matrix: KernelMatrix, preconditioner: Preconditioner, right_hand_sides: torch.Tensor) -> float:
    """Return the iterations that conjugate gradients take to the trial's tolerance; infinity beyond their limit."""
    residual = right_hand_sides
    sizes = residual.norm(dim=0)
    preconditioned = preconditioner.apply(residual)
    direction, product = preconditioned, (residual * preconditioned).sum(0)
    for iteration in range(_ITERATIONS):
        if bool((residual.norm(dim=0) <= _TOLERANCE * sizes).all()):
            return float(iteration)
        image = matrix @ direction
        residual = residual - product / (direction * image).sum(0) * image
        preconditioned = preconditioner.apply(residual)
        new = (residual * preconditioned).sum(0)
        direction, product = preconditioned + new / product * direction, new
    return float("inf")
