"""The states of a kernel at rows in the order of time, and passes over them in stretches.

Rows with one input have the states of its kernel. Rows of a panel, whose kernel has parts ``K_S (x) K_T`` of entities
and times, have more of them. With ``K_S = L L'``, entity e has the function ``sum_j L[e, j] x_j(t)`` of independent
functions x_j with the kernel K_T. Every x_j has the states of K_T, and a row sees them through its entity's row of L.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels import Constant, Kernel, Sum
from gigagp.kernels.composite import summands
from gigagp.kernels.state_space import Component
from gigagp.products.dense import cholesky
from gigagp.products.filtering import Blocks, places
from gigagp.products.panel import Factors, distinct_rows, factors_of, joined_columns

#: Most rows of a stretch, and the numbers that its matrices may have.
_MOST_ROWS, _NUMBERS = 2**14, 2**23
#: Share of the largest variance, times the entities, that is added to variances of entities so that they have a root.
_LEAST_PIVOT = 4 * torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Axis:
    """Which column is the time, and the entities that rows may be of.

    Attributes
    ----------
    time : int
        Column of the time.
    columns : tuple of int
        Columns of the entities; none where the kernel is one of the time alone.
    entities : Tensor of shape (N, number of columns)
        Different entities, in float64; of no columns, one.
    """

    time: int
    columns: tuple[int, ...]
    entities: Tensor

    @classmethod
    def of(cls, kernel: Kernel, X: Tensor) -> Axis:
        """Return the axis of rows X (n, d) with which states are shortest.

        Raises `InvalidInputError` if no column can be the time.
        """
        if kernel.n_inputs == 1:
            return cls.of_one_input()
        found = []
        for time, columns in _possible(kernel):
            entities = X.double()[:, list(columns)]
            entities = distinct_rows(entities)[0] if columns else entities[:1]
            found.append(cls(time, columns, entities))
        return min(found, key=lambda one: len(one.entities))

    @classmethod
    def of_one_input(cls) -> Axis:
        """Return the axis of rows that have no other column than the time."""
        return cls(0, (), torch.empty(1, 0, dtype=torch.float64))

    def widened(self, X: Tensor) -> Axis:
        """Return the axis with the entities of points X (m, d) too, after those that are known."""
        if not self.columns:
            return self
        others = X.double()[:, list(self.columns)]
        return Axis(self.time, self.columns, distinct_rows(torch.cat([self.entities, others]))[0])

    def number(self, X: Tensor) -> Tensor:
        """Return the number of the entity of each point, -1 for an unknown one, shape (m,)."""
        if not self.columns:
            return torch.zeros(len(X), dtype=torch.int64)
        same = (X.detach().double()[:, None, list(self.columns)] == self.entities).all(2)
        return torch.where(same.any(1), same.to(torch.int8).argmax(1), -1)


def check_states(kernel: Kernel) -> None:
    """Raise `InvalidInputError` if no column of a bound kernel can be the time."""
    _possible(kernel)


def _possible(kernel: Kernel) -> list[tuple[int, tuple[int, ...]]]:
    """Return the columns that can be the time of a bound kernel, each with the columns of the entities.

    Raises `InvalidInputError` if there is none.
    """
    if kernel.n_inputs == 1:
        kernel.state_space()  # has its own words for what it refuses
        return [(0, ())]
    joined, found, why = joined_columns(kernel), [], ""
    for columns in joined or ((0,),):
        others = tuple(sorted(column for one in joined if one is not columns for column in one))
        if len(columns) > 1:
            continue
        try:
            for one in _factors(kernel, others, columns[0]):
                one.times.state_space()
        except InvalidInputError as error:
            why = str(error)
            continue
        found.append((columns[0], others))
    if not found:
        raise InvalidInputError(
            why or "Of several inputs, every part must depend on one column of times alone, or on other columns alone."
        )
    return found


def _factors(kernel: Kernel, columns: tuple[int, ...], time: int) -> list[Factors]:
    """Return a kernel as products; where it has no columns of entities, any other one stands for them."""
    return factors_of(kernel, columns or (int(time == 0),), (time,))


class Stretch(NamedTuple):
    """Consecutive rows in the order of time, with the steps that lead to them."""

    rows: slice
    transition: Tensor  # entries of the blocks of F, (k, B); zero at the first of all rows
    spread: Tensor  # and of Q; the prior covariance at the first of all rows
    seen: Tensor  # h, (k, q)


class _Part(NamedTuple):
    """Independent functions of the time with one kernel, mixed for each entity."""

    entities: tuple[Kernel, ...]  # kernels of the entities, one for each term; none where there are no entities
    times: Kernel
    terms: tuple[int, ...]  # places of the terms among those of the kernel, or of its summands
    points: Tensor  # entities, (N, columns); one where they are all alike
    root: Tensor  # L, (N, r)
    components: tuple[Component, ...]

    def weights(self, X: Tensor, number: Tensor, terms: Sequence[int] | None) -> Tensor:
        """Return the weights of the functions at entities X (m, columns), or of some ``terms`` of the kernel there.

        ``number`` is that of each entity, -1 for an unknown one, which has the weights of its best prediction.
        """
        chosen = self._chosen(terms)
        if not self.entities:
            return (float(terms is None or self.terms[0] in terms) * self.root).expand(len(X), -1)
        if not chosen:
            return self.root.new_zeros(len(X), self.root.shape[1])
        known, is_whole = number >= 0, len(chosen) == len(self.entities)
        if is_whole and (len(self.points) == 1 or (bool(known.all()) and not X.requires_grad)):
            return self.root[number.clamp(0, len(self.points) - 1)]
        if len(self.points) == 1:
            X = self.points.expand(len(X), -1)
        covariance = Sum(*chosen).block(self.points, X)
        found = torch.linalg.solve_triangular(self.root, covariance, upper=False).mT
        if is_whole:  # the same to rounding, with the derivatives by the points
            found = found + torch.where(known[:, None], (self.root[number] - found).detach(), 0.0)
        return found

    def left(self, X: Tensor, number: Tensor, terms: Sequence[int] | None, *, joint: bool) -> Tensor:
        """Return the variances of entities, (m,), that their weights leave, or ``joint`` their covariance, (m, m)."""
        chosen = self._chosen(terms)
        known = (number >= 0) & (len(chosen) == len(self.entities))
        if not chosen or bool(known.all()) or (len(chosen) == len(self.entities) and len(self.points) == 1):
            return self.root.new_zeros(len(X), len(X)) if joint else self.root.new_zeros(len(X))
        weights, kernel = self.weights(X, number, terms), Sum(*chosen)
        if len(self.points) == 1:
            X = self.points.expand(len(X), -1)
        if joint:
            return torch.where(known[:, None] | known, 0.0, kernel.block(X, X) - weights @ weights.mT)
        return torch.where(known, 0.0, kernel.diagonal(X) - weights.square().sum(1)).clamp_min(0)

    def _chosen(self, terms: Sequence[int] | None) -> list[Kernel]:
        pairs = zip(self.entities, self.terms, strict=False)
        return [one for one, place in pairs if terms is None or place in terms]


class States:
    """All components of a kernel as one state of q numbers, whose matrices have a block for each component."""

    def __init__(self, kernel: Kernel, axis: Axis) -> None:
        self.kernel, self.axis = kernel, axis
        self.parts = _parts_of(kernel, axis)
        sizes = ((one.size for one in part.components) for part in self.parts for _ in range(part.root.shape[1]))
        self.blocks = Blocks(tuple(itertools.chain.from_iterable(sizes)))

    @property
    def size(self) -> int:
        """Numbers of the state."""
        return self.blocks.n_states

    def times(self, X: Tensor) -> Tensor:
        """Return the times of points (m, d), shape (m,)."""
        return X[:, self.axis.time].double()

    def seen(self, X: Tensor, summand: int | None = None) -> Tensor:
        """Return h at points (m, d), shape (m, q); with a ``summand`` that of one part of a sum."""
        t, entities, number = self._places(X)
        found = []
        for part in self.parts:
            weights = part.weights(entities, number, self._terms_of(summand))
            h = _beside(t, [one.seen(t) for one in part.components])
            found.append(weights[:, :, None] * h[:, None, :])
        return _beside(t, found)

    def left(self, X: Tensor, summand: int | None = None, *, joint: bool = False) -> Tensor:
        """Return the variance of the function that no state holds, that of unknown entities, (m,).

        With ``joint`` the covariance of all points, (m, m).
        """
        t, entities, number = self._places(X)
        total, terms = t.new_zeros(len(X), len(X)) if joint else t.new_zeros(len(X)), self._terms_of(summand)
        for part in self.parts if self.axis.columns else []:
            left, at = part.left(entities, number, terms, joint=joint), t[:, None]
            total = total + left * (part.times.block(at, at) if joint else part.times.diagonal(at))
        return total

    def _places(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        X = X.double()
        return self.times(X), X[:, list(self.axis.columns)], self.axis.number(X)

    def _terms_of(self, summand: int | None) -> tuple[int, ...] | None:
        """Return the places of the terms of a part of a sum; None for the whole."""
        if summand is None or self.kernel.n_inputs == 1:
            return None if summand is None else (summand,)
        counts = [len(part.correlated_terms()) for part in summands(self.kernel)]
        first = sum(counts[:summand])
        return tuple(range(first, first + counts[summand]))

    def entries(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the entries of the blocks of F and Q for steps from times s to t, each (n, B)."""
        F, Q = [], []
        for part in self.parts:
            steps = [one.step(s, t) for one in part.components]
            F.append(_beside(t, [one for one, _ in steps]).repeat(1, part.root.shape[1]))
            Q.append(_beside(t, [one for _, one in steps]).repeat(1, part.root.shape[1]))
        return _beside(t, F), _beside(t, Q)

    def covariance_entries(self, t: Tensor) -> Tensor:
        """Return the entries of the blocks of the prior covariance at times, (n, B)."""
        found = [
            _beside(t, [one.covariance(t) for one in part.components]).repeat(1, part.root.shape[1])
            for part in self.parts
        ]
        return _beside(t, found)

    def dense(self, entries: Tensor) -> Tensor:
        """Return blocks (n, B) as matrices (n, q, q)."""
        q, found = self.size, []
        for place, size, first in places(self.blocks.sizes):
            block = entries[:, first : first + size**2].unflatten(1, (size, size))
            found.append(torch.nn.functional.pad(block, (place, q - place - size)))
        return torch.cat([entries.new_zeros(len(entries), 0, q), *found], 1)

    def steps(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return F and Q of steps from times s to t, each (n, q, q)."""
        F, Q = self.entries(s, t)
        return self.dense(F), self.dense(Q)

    def covariance(self, t: Tensor) -> Tensor:
        """Return the prior covariance at times, (n, q, q)."""
        return self.dense(self.covariance_entries(t))

    def stretch(self, X: Tensor, rows: slice) -> Stretch:
        """Return the steps to some of the rows X (n, d), which are sorted by their times."""
        t = self.times(X[max(rows.start - 1, 0) : rows.stop])
        at = t if rows.start == 0 else t[1:]
        before = torch.cat([at[:1], at[:-1]]) if rows.start == 0 else t[:-1]
        F, Q = self.entries(before, at)
        if rows.start == 0:
            F = torch.cat([torch.zeros_like(F[:1]), F[1:]])
            Q = torch.cat([self.covariance_entries(at[:1]), Q[1:]])
        return Stretch(rows, F.contiguous(), Q.contiguous(), self.seen(X[rows]).contiguous())

    def rows_at_once(self, n_columns: int = 1) -> int:
        """Return how many rows a stretch has, for passes with some columns."""
        q = max(self.size, 1)
        return max(16, min(_MOST_ROWS, _NUMBERS // (q * (q + n_columns))))

    def slices(self, n_rows: int, n_columns: int = 1) -> list[slice]:
        """Return the rows of all stretches."""
        size = self.rows_at_once(n_columns)
        return [slice(first, min(first + size, n_rows)) for first in range(0, n_rows, size)]

    def stretches(self, X: Tensor, n_columns: int = 1) -> Iterator[Stretch]:
        """Iterate over stretches of rows that are sorted by their times."""
        for rows in self.slices(len(X), n_columns):
            yield self.stretch(X, rows)


def _parts_of(kernel: Kernel, axis: Axis) -> list[_Part]:
    """Return independent functions whose mixtures have a kernel."""
    one = torch.ones(1, 1, dtype=torch.float64)
    if kernel.n_inputs == 1:
        return [
            _Part((), part, (place,), axis.entities, one, part.state_space())
            for place, part in enumerate(summands(kernel))
        ]
    found, entities = [], axis.entities if axis.columns else torch.zeros(1, 1, dtype=torch.float64)
    for factors in _factors(kernel, axis.columns, axis.time):
        alike = all(isinstance(leaf, Constant) for leaf in factors.entities.leaves())
        points = entities[:1] if alike else entities
        root = _Root.apply(factors.entities.block(points, points))
        terms = summands(factors.entities)
        found.append(_Part(terms, factors.times, factors.terms, points, root, factors.times.state_space()))
    return found


class _Root(torch.autograd.Function):
    """A root L of ``K = L L'``, for functions that depend on L through ``L L'`` alone.

    Their derivative G by K is then half of that by L times the inverse of L. That of the Cholesky factor itself has the
    inverse twice, which costs twice as many digits where entities are nearly alike.
    """

    @staticmethod
    def forward(ctx: Any, covariance: Tensor) -> Tensor:
        least = _LEAST_PIVOT * len(covariance) * covariance.diagonal().max()
        root = cholesky(
            covariance + least * torch.eye(len(covariance), dtype=covariance.dtype), "the entities' covariance"
        )
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        found = torch.linalg.solve_triangular(root, gradients[0], upper=False, left=False)
        return 0.25 * (found + found.mT)


def _beside(t: Tensor, parts: list[Tensor]) -> Tensor:
    """Return the numbers of parts (n, ...) side by side, (n, k); a kernel of white noise has none."""
    return torch.cat([t.new_zeros(len(t), 0), *(one.flatten(1) for one in parts)], 1)
