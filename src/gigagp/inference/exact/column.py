"""The exact likelihood of rows of one input, whose covariances are computed once for each distance of two rows.

Rows at equal steps have as many distances as rows, and not as many as pairs. A stationary kernel and its derivatives
are computed at these, and the matrices are gathered from them: they cost little beside the factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add, mul
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.inference.contract.exact_posterior import Factorised
from gigagp.inference.contract.least_noise import at_least_noise
from gigagp.inference.contract.objective import ExactObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.kernels import Kernel, Oscillator, Periodic
from gigagp.kernels.composite import Composite, Sum, summands
from gigagp.kernels.leaf import Leaf
from gigagp.kernels.stationary import StationaryKernel
from gigagp.model.model import NOISE, Model
from gigagp.optimization.fisher import information_from_products
from gigagp.optimization.objective import Evaluation
from gigagp.optimization.space import ParameterSpace
from gigagp.products.dense import cholesky, symmetric_inverse

#: Difference of distances up to which they are one, in roundings of the largest number: equal steps are rounded.
_ROUNDINGS = 16
#: Kernels with closed derivatives whose covariances depend on the distance of two points alone.
_STATIONARY = StationaryKernel, Periodic, Oscillator


@dataclass(frozen=True)
class Distances:
    """The different distances of rows of one input, and the place of every pair among them."""

    values: Tensor  # ascending, (m, 1)
    places: Tensor  # (n * n,)

    @classmethod
    def of(cls, x: Tensor) -> Distances:
        """Return the distances of rows at numbers x (n,)."""
        apart = (x[:, None] - x).abs().flatten()
        found, order = apart.sort()
        is_new = found.diff(prepend=found.new_full((1,), -torch.inf)) > _ROUNDINGS * torch.finfo(x.dtype).eps * float(
            x.abs().max()
        )
        places = torch.empty_like(order)
        places[order] = is_new.cumsum(0) - 1
        return cls(found[is_new][:, None], places)


class _Part(NamedTuple):
    """A summand of a kernel, and the pairs of points at which its covariances make up the matrix of all rows."""

    before: str  # its place in the names of hyperparameters
    kernel: Kernel
    X: Tensor
    Z: Tensor
    places: Tensor | None  # of the pairs of rows among the points X; None: X and Z are the rows

    def matrix(self, block: Tensor, n: int) -> Tensor:
        """Return covariances of X and Z, or derivatives of these, as a matrix of all rows, (n, n)."""
        return block if self.places is None else block.flatten().index_select(0, self.places).view(n, n)


class ColumnObjective(ExactObjective):
    """The exact log marginal likelihood of float64 rows of one input, for kernels with closed derivatives.

    When to use: for many evaluations on a few hundred rows at equal steps, or at some of many equal steps.
    """

    def __init__(self, table: TrainingTable, distances: Distances) -> None:
        super().__init__(table)
        self.distances = distances
        self._slopes: list[tuple[str, Tensor, _Part]] = []  # at the last evaluated model

    def subset(self, rows: Tensor) -> ExactObjective:
        """Return the objective on some rows; on all of them, this one."""
        return self if len(rows) == self.n_rows else super().subset(rows)

    def _parts(self, kernel: Kernel) -> Iterator[_Part]:
        X, at = self.table.X, self.distances
        for number, part in enumerate(summands(kernel)):
            before = f"{number}." if isinstance(kernel, Sum) else ""
            if all(isinstance(leaf, _STATIONARY) for leaf in part.leaves()):
                yield _Part(before, part, at.values, torch.zeros_like(X[:1]), at.places)
            else:
                yield _Part(before, part, X, X, None)

    def _factorise(self, model: Model) -> Factorised:
        if self._last is not None and model.equals(self._last.model):
            return self._last
        self._last, X = None, self.table.X
        H, self._slopes = torch.diag(model.noise_variance.expand(len(X))), []
        for part in self._parts(model.kernel):
            block, slopes = with_derivatives(part.kernel, part.X, part.Z)
            H += part.matrix(block, len(X))
            self._slopes += [(part.before + name, one, part) for name, one in slopes.items()]
        matrix = self.table.matrix(model.kernel, model.noise_variance)
        self._last = Factorised.from_factor(model, self.table, matrix, cholesky(H, overwrite=True))
        return self._last

    def evaluate(self, model: Model) -> Evaluation:
        """Return the value and its gradient at a model with enough noise (see `start`)."""
        started = self.start(model)
        state = self._factorise(started)
        solutions, inverse = state.solutions, symmetric_inverse(state.factor)
        weights = torch.addmm(inverse, solutions, solutions.T, beta=-0.5 * self.table.n_targets, alpha=0.5)
        flat = weights.flatten()
        sums = torch.bincount(self.distances.places, flat, len(self.distances.values))
        gradient = {name: one.flatten(1) @ (flat if part.places is None else sums) for name, one, part in self._slopes}
        gradient[NOISE] = weights.diagonal().sum()
        found = Evaluation(state.value, gradient)
        return found if started is model else at_least_noise(found, model, self.table.X)

    def fisher(self, space: ParameterSpace, vector: Tensor, probes: Tensor) -> Tensor:
        """Return the Fisher information of all observations at the last evaluated model."""
        state = self._last
        assert state is not None, "evaluate comes first"
        whitened = torch.linalg.solve_triangular(state.factor.T, probes.to(state.factor), upper=True)
        products = {NOISE: whitened[None]}
        for name, slopes, part in self._slopes:
            if name in space.names:
                products[name] = torch.stack([part.matrix(one, self.n_rows) @ whitened for one in slopes])
        return self.table.n_targets * information_from_products(products, state.factor, space, vector)


def with_derivatives(kernel: Kernel, X: Tensor, Z: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return `Kernel.block` and its derivatives by all hyperparameters, each (number of values, n, m).

    A leaf with closed derivatives is its variance times the derivative by that.
    """
    if isinstance(kernel, Composite):
        parts = [with_derivatives(part, X, Z) for part in kernel.parts]
        combine: Callable[[Tensor, Tensor], Tensor] = add if isinstance(kernel, Sum) else mul
        slopes: dict[str, Tensor] = {}
        for number, (_, own) in enumerate(parts):
            others = [] if isinstance(kernel, Sum) else [one for k, (one, _) in enumerate(parts) if k != number]
            slopes |= {f"{number}.{name}": reduce(mul, others, slope) for name, slope in own.items()}
        return reduce(combine, [value for value, _ in parts]), slopes
    assert isinstance(kernel, Leaf), "all other kernels are made of leaves"
    closed = kernel.derivatives(X, Z)
    assert closed is not None, f"derivatives of {kernel!r} are closed"
    return closed["variance"][0] * kernel.value("variance", X), closed
