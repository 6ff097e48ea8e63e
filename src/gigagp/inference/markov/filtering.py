"""The likelihood of a table along the time, and solves with the covariance of its rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import NotPositiveDefiniteError
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import Trend
from gigagp.inference.markov.states import Axis, States, Stretch
from gigagp.model.model import NOISE, Model
from gigagp.products.filtering import Filtered
from gigagp.runtime import interruption

#: Least variance of a row given those before, as a share of that of the row before: below, it is rounding.
_LEAST_SHARE = 4 * float(np.finfo(np.float64).eps)


class Carried(NamedTuple):
    """What a pass carries from one stretch of rows to the next."""

    columns: np.ndarray  # (q, c)
    matrix: np.ndarray  # (q, q)

    @classmethod
    def zero(cls, size: int, n_columns: int) -> Carried:
        """Return what the first stretch begins with."""
        return cls(np.zeros((size, n_columns)), np.zeros((size, size)))

    def copy(self) -> Carried:
        """Return a copy, because passes change their own."""
        return Carried(self.columns.copy(), self.matrix.copy())


class Sides(NamedTuple):
    """What the different times know of the states from their left and from their right, in order."""

    times: Tensor  # (T,)
    means: Tensor  # of the states given the rows up to the last one of a time, (T, q, c)
    covariances: Tensor  # (T, q, q)
    pulls: Tensor  # at the first row of a time, (T, q, c); see `gigagp.products.filtering.Smoothed`
    informations: Tensor  # (T, q, q)


class Moments(NamedTuple):
    """Where the rows of the different times begin and end, in the order of time."""

    times: Tensor  # (T,)
    first: Tensor  # row, (T,)
    last: Tensor  # row, (T,)

    @classmethod
    def of(cls, times: Tensor) -> Moments:
        """Return the moments of sorted times."""
        found, counts = times.unique_consecutive(return_counts=True)
        ends = counts.cumsum(0)
        return cls(found, ends - counts, ends - 1)

    @staticmethod
    def among(places: Tensor, rows: slice) -> tuple[slice, Tensor]:
        """Return which of some places are among rows, and where among these they are."""
        start, stop = torch.searchsorted(places, torch.tensor([rows.start, rows.stop])).tolist()
        return slice(start, stop), places[start:stop] - rows.start


class Solved(NamedTuple):
    """``H^-1`` times columns, in the order of the table, and more about each row in the order of time."""

    solutions: Tensor  # (n, c)
    precisions: Tensor  # diagonal of ``H^-1``, (n,)
    gains: Tensor  # (n, q)
    sides: Sides


@dataclass
class FilteredTable:
    """A table filtered at one model: each row predicted from the rows before, in the order of time."""

    model: Model
    table: TrainingTable
    states: States
    order: Tensor  # of the rows by their times
    rows: Tensor  # sorted by their times, (n, d)
    moments: Moments
    noise: Tensor  # in the order of time, (n,)
    errors: Tensor  # of targets and basis, (n, t + p)
    variances: Tensor  # of the errors, (n,)
    starts: list[Carried]  # at the beginning of each stretch
    end: Carried  # the state of the last row
    trend: Trend
    value: float  # log marginal likelihood, summed over targets

    @classmethod
    def of(cls, model: Model, table: TrainingTable, axis: Axis) -> FilteredTable:
        """Filter the targets and the mean's basis; raise `NotPositiveDefiniteError` if H is singular to rounding."""
        states, X, t = States(model.kernel, axis), table.X.double(), table.n_targets
        times, order = states.times(X).sort(stable=True)
        noise = model.noise_of_rows(slice(None), X).double()[order]
        values = torch.cat([table.Y, table.basis], 1).double()[order].contiguous()
        errors, variances, starts = torch.empty_like(values), torch.empty_like(times), []
        carried, X = Carried.zero(states.size, values.shape[1]), X[order]
        for stretch in states.stretches(X, values.shape[1]):
            interruption.check()
            starts.append(carried.copy())
            rows = stretch.rows
            found = _forward(states, stretch, noise[rows], values[rows], carried)
            errors[rows], variances[rows] = torch.from_numpy(found.errors), torch.from_numpy(found.variances)
        open_before = torch.cat([variances.new_zeros(1), variances[:-1]])
        bad = torch.nonzero(~(variances > _LEAST_SHARE * open_before))
        if len(bad):
            raise NotPositiveDefiniteError(
                f"the kernel matrix is not positive definite in float64 (row {int(order[bad[0, 0]])} follows from the "
                "rows before it without an error). Raise noise_variance (repeated rows need some), or put the centre "
                "of a trend nearer to the rows."
            )
        of_targets, of_basis = (errors / variances.sqrt()[:, None]).split([t, values.shape[1] - t], 1)
        trend = Trend.from_products(of_basis.T @ of_basis, of_basis.T @ of_targets)
        squares = (of_targets - of_basis @ trend.coefficients).square().sum()
        value = -0.5 * float(squares + t * (variances.log().sum() + len(times) * math.log(2 * math.pi)))
        moments = Moments.of(times)
        return cls(model, table, states, order, X, moments, noise, errors, variances, starts, carried, trend, value)

    @property
    def residuals(self) -> Tensor:
        """From errors of targets and basis to those of the targets minus the learned mean, (t + p, t)."""
        return torch.cat([torch.eye(self.table.n_targets, dtype=torch.float64), -self.trend.coefficients])

    @property
    def _means_of(self) -> Tensor:
        """From columns of targets and basis to those of the targets minus the learned mean and of the basis."""
        t, c = self.table.n_targets, self.errors.shape[1]
        return torch.cat([self.residuals, torch.eye(c, dtype=torch.float64)[:, t:]], 1)

    @property
    def _values(self) -> Tensor:
        return torch.cat([self.table.Y, self.table.basis], 1).double()[self.order]

    def _again(self, stretch: Stretch, values: Tensor, start: Carried) -> tuple[Filtered, Tensor, Tensor]:
        """Filter a stretch again; return also means and covariances of the states before it and of its rows."""
        rows = stretch.rows
        found = _forward(self.states, stretch, self.noise[rows], values[rows], start.copy(), keep=True)
        assert found.means is not None, "they are kept"
        assert found.covariances is not None, "they are kept"
        return found, torch.from_numpy(found.means), torch.from_numpy(found.covariances)

    def gradient(self) -> dict[str, Tensor]:
        """Return the derivatives of `value` by all hyperparameters; the mean's coefficients are at their optimum.

        A pass to the left has the derivatives by every F, Q and h (the smoother's pulls and informations are those by
        the states), and autograd leads from these to the hyperparameters.
        """
        model, states, C = self.model, self.states, self.residuals
        values, t = self._values, self.table.n_targets
        carried = Carried.zero(states.size, t)
        given = {name: value.detach().clone().requires_grad_() for name, value in model.kernel.parameters().items()}
        total = {name: torch.zeros_like(value) for name, value in given.items()}
        by_noise = torch.empty_like(self.noise)
        slices = states.slices(len(values), values.shape[1])
        with torch.enable_grad():
            kernel = model.kernel.replace(given)
            for rows, start in zip(reversed(slices), reversed(self.starts), strict=True):
                interruption.check()
                stretch = States(kernel, states.axis).stretch(self.rows, rows)
                found, means, covariances = self._again(stretch, values, start)
                smooth = states.blocks.backward(
                    stretch.transition.detach().numpy(),
                    stretch.seen.detach().numpy(),
                    found._replace(errors=(torch.from_numpy(found.errors) @ C).numpy()),
                    *carried,
                    ((means @ C).numpy(), covariances.numpy()),
                    by_seen=stretch.seen.requires_grad,
                )
                squares = torch.from_numpy(smooth.solutions).square().sum(1)
                by_noise[rows] = 0.5 * (squares - t * torch.from_numpy(smooth.precisions))
                parts = (stretch.transition, smooth.by_transition), (stretch.spread, smooth.by_spread)
                moved = [(one * torch.from_numpy(by)).sum() for one, by in parts if by is not None]
                if smooth.by_seen is not None:
                    moved.append((stretch.seen * torch.from_numpy(smooth.by_seen)).sum())
                _add(total, given, sum(moved, torch.zeros(())))
            _add(total, given, (kernel.white(self.rows) * by_noise).sum())
        return total if model.noise_is_known else total | {NOISE: by_noise.sum()}

    def solved(self) -> Solved:
        """Return what predictions are made from, for the targets minus the learned mean and for the basis."""
        n, q, values, moments = len(self.rows), self.states.size, self._values, self.moments
        T, c, C = len(moments.times), values.shape[1], self._means_of

        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.float64)

        sides = Sides(moments.times, empty(T, q, c), empty(T, q, q), empty(T, q, c), empty(T, q, q))
        out = Solved(empty(n, c), empty(n), empty(n, q), sides)
        carried = Carried.zero(q, c)
        for rows, start in zip(reversed(self.states.slices(n, c)), reversed(self.starts), strict=True):
            stretch = self.states.stretch(self.rows, rows)
            found, means, covariances = self._again(stretch, values, start)
            found = found._replace(errors=(torch.from_numpy(found.errors) @ C).numpy())
            smooth = self.states.blocks.backward(
                stretch.transition.numpy(), stretch.seen.numpy(), found, *carried, keep=True
            )
            assert smooth.pulls is not None, "they are kept"
            assert smooth.informations is not None, "they are kept"
            out.precisions[rows], out.gains[rows] = torch.from_numpy(smooth.precisions), torch.from_numpy(found.gains)
            out.solutions[self.order[rows]] = torch.from_numpy(smooth.solutions)
            at, ends = moments.among(moments.last, rows)
            out.sides.means[at], out.sides.covariances[at] = means[ends + 1] @ C, covariances[ends + 1]
            at, begins = moments.among(moments.first, rows)
            out.sides.pulls[at] = torch.from_numpy(smooth.pulls)[begins]
            out.sides.informations[at] = torch.from_numpy(smooth.informations)[begins]
        return out

    def last(self) -> Sides:
        """Return what the last row knows, without a pass over the others."""
        C = self._means_of
        means, covariance = torch.from_numpy(self.end.columns) @ C, torch.from_numpy(self.end.matrix)
        nothing = torch.zeros_like(means), torch.zeros_like(covariance)
        return Sides(self.moments.times[-1:], means[None], covariance[None], *(one[None] for one in nothing))

    def smoothed(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and pulls as in `Sides`, each (T, q, s), for columns (n, s) in place of the targets."""
        values, states, s = columns.double()[self.order].contiguous(), self.states, columns.shape[1]
        slices, starts, moments = states.slices(len(values), s), [], self.moments
        carried = Carried.zero(states.size, s)
        for rows in slices:
            starts.append(carried.copy())
            _forward(states, states.stretch(self.rows, rows), self.noise[rows], values[rows], carried)
        out = tuple(torch.empty(len(moments.times), states.size, s, dtype=torch.float64) for _ in range(2))
        carried = Carried.zero(states.size, s)
        for rows, start in zip(reversed(slices), reversed(starts), strict=True):
            stretch = states.stretch(self.rows, rows)
            found, means, _ = self._again(stretch, values, start)
            smooth = states.blocks.backward(
                stretch.transition.numpy(), stretch.seen.numpy(), found, *carried, keep=True
            )
            assert smooth.pulls is not None, "they are kept"
            at, ends = moments.among(moments.last, rows)
            out[0][at] = means[ends + 1]
            at, begins = moments.among(moments.first, rows)
            out[1][at] = torch.from_numpy(smooth.pulls)[begins]
        return out[0], out[1]


def _forward(
    states: States, stretch: Stretch, noise: Tensor, values: Tensor, carried: Carried, *, keep: bool = False
) -> Filtered:
    F, Q, h = (one.detach().numpy() for one in (stretch.transition, stretch.spread, stretch.seen))
    given = noise.contiguous().numpy(), values.contiguous().numpy()
    return states.blocks.forward(F, Q, h, *given, *carried, keep=keep)


def _add(total: dict[str, Tensor], given: dict[str, Tensor], number: Tensor) -> None:
    """Add the derivatives of a number by the given values."""
    if number.requires_grad:
        found = torch.autograd.grad(number, list(given.values()), allow_unused=True)
        for name, one in zip(given, found, strict=True):
            if one is not None:
                total[name] += one
