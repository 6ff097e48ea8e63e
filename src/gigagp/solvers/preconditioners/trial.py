"""Trial solves with a few rows of a matrix, which tell what a preconditioner would cost for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gigagp.operators import KernelMatrix
from gigagp.solvers.preconditioners.base import Preconditioner, PreconditionerRecipe

#: Rows of a trial, its right-hand sides, its relative residual, and its largest number of iterations.
TRIAL_ROWS, _COLUMNS, _TOLERANCE, _ITERATIONS = 2000, 4, 0.01, 150


@dataclass(frozen=True)
class Candidate:
    """A recipe, at the size of a trial and at that of the matrix, with its cost there.

    Attributes
    ----------
    trial : PreconditionerRecipe
        Recipe for `TRIAL_ROWS` rows.
    recipe : PreconditionerRecipe
        Recipe for all rows.
    setup, application : float
        Cost of its build, and of one application, in products with the matrix.
    growth : float
        Power of the rows with which iterations grow.
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
    """Return the recipe whose solves with a matrix would cost least, and that cost in products with the matrix.

    It follows from solves with 2,000 random rows.
    """
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
