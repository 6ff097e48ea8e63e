"""The posterior along the time: what each moment knows from its left and from its right."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gigagp.errors import SolverWarning, warn
from gigagp.inference.contract.batches import one_by_one
from gigagp.inference.contract.input_gradients import recomputed, refuse_gradient
from gigagp.inference.contract.left_out import LeftOut, without_trend
from gigagp.inference.contract.posterior import GrowingPosterior, SampleFunctions, VarianceMethod, VarianceParts
from gigagp.inference.contract.rows_posterior import ROWS, RowsPosterior
from gigagp.inference.contract.saved import Saved
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.markov.filtering import FilteredTable, Sides, Solved
from gigagp.inference.markov.states import Axis, States
from gigagp.kernels.periodic import Periodic
from gigagp.model.estimate import Estimate
from gigagp.model.model import Model
from gigagp.model.prior_samples import PriorSamples
from gigagp.runtime.memory import require
from gigagp.settings.random import standard_normal
from gigagp.settings.schema import check_tensors

#: Float64 numbers of the matrices of a point, over those of one matrix, and most points at a time.
_MATRICES, _POINTS = 12, 4096
#: Shares of a variance, and of that of the targets, that rounding may take without a warning.
_LOST, _LOST_OF_TARGETS = 0.01, 1e-9


def posterior_bytes(n_rows: int, n_times: int, size: int, n_columns: int = 3) -> int:
    """Return the memory that the posterior of rows takes, for states of ``size`` numbers and some columns."""
    return 8 * (n_times * (2 * size**2 + 2 * size * n_columns) + n_rows * (size + 4 * n_columns))


def require_states(model: Model, table: TrainingTable, axis: Axis) -> None:
    """Raise `MemoryBudgetError` if what the posterior keeps of each time does not fit the memory budget."""
    n_entities, remedy = len(axis.entities), "Use inference=gigagp.inference.Vecchia(), or raise memory_budget."
    require(32 * n_entities**2, table.budget, f"The covariance of {n_entities:,} entities", remedy)
    n, q = table.n_rows, States(model.kernel, axis).size
    n_times = len(table.X[:, axis.time].unique())
    require(
        posterior_bytes(n, n_times, q, table.n_targets + table.basis[:1].shape[1]),
        table.budget,
        f"The states of {n_times:,} times, of {q} numbers each,",
        f"Give a kernel of fewer parts. {remedy}",
    )


class _Known(NamedTuple):
    """The states at m points, given the rows on the left, and what the rows on the right tell of them."""

    rows: Sides
    before: Tensor  # places of the last times that are not later; -1 for none, (m,)
    after: Tensor  # places of the times that follow; the last one where none does, (m,)
    seen: Tensor  # h, (m, q)
    left: Tensor  # variance of the function that no state holds, (m,)
    covariance: Tensor  # P, (m, q, q)
    information: Tensor  # N, (m, q, q)
    from_left: Tensor  # F of the step from the row before, zero where there is none, (m, q, q)
    to_right: Tensor  # F of the step to the row that follows, likewise

    @property
    def gain(self) -> Tensor:
        """The covariances of the state with the function, (m, q)."""
        return (self.covariance @ self.seen[:, :, None])[:, :, 0]

    @property
    def variance(self) -> Tensor:
        """The variances of the function, (m,)."""
        explained = (self.gain * (self.information @ self.gain[:, :, None])[:, :, 0]).sum(1)
        # an explained variance never exceeds what was there; a negative difference near zero is rounding
        return ((self.gain * self.seen).sum(1) - explained).clamp_min(0) + self.left

    def mean(self) -> Tensor:
        """Return the means of the function at the points, (m, c)."""
        means, pulls = self.rows.means, self.rows.pulls
        own = self.from_left @ means[self.before.clamp_min(0)]
        pull = self.to_right.mT @ pulls[self.after]
        return (self.seen[:, :, None] * own).sum(1) + (self.gain[:, :, None] * pull).sum(1)


class MarkovPosterior(RowsPosterior, GrowingPosterior):
    """The exact posterior of rows along the time.

    A point between two times needs their states alone. The one on its left has the mean and the covariance of its state
    given all rows up to it, and the one on its right has r and N: given all rows, a state with mean m and covariance P
    has the mean ``m + P r`` and the covariance ``P - P N P`` (Durbin and Koopman 2012, Time Series Analysis by State
    Space Methods, section 4.4).
    """

    kind = "markov"
    covariance_is_cheap = True

    def __init__(self, known: FilteredTable) -> None:
        self.model, self.table, self.budget = known.model, known.table, known.table.budget
        self._known, self._states = known, known.states
        self.coefficients, self.coefficient_root = known.trend

    @cached_property
    def _solved(self) -> Solved:
        return self._known.solved()

    @cached_property
    def _last(self) -> Sides:
        return self._known.last()

    @property
    def _sides(self) -> Sides:
        return self._solved.sides

    def with_rows(self, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> MarkovPosterior:
        """Return the posterior given additional rows, anywhere in time, by passes over all rows."""
        model, table = self.model.appended(noise), self.table.appended(X, Y)
        axis = self._states.axis.widened(X)
        require_states(model, table, axis)
        return MarkovPosterior(FilteredTable.of(model, table, axis))

    def solver_name(self) -> str:
        return f"Kalman filter, states of {self._states.size} numbers"

    def engine_name(self) -> str:
        return f"{'numpy' if self._states.blocks.instruction_set is None else 'native'}, cpu, float64"

    def notes(self) -> dict[str, str]:
        """Return the error of periodic kernels, if there are any."""
        leaf, share = self._worst_periodic()
        return (
            {}
            if leaf is None
            else {"harmonics": f"{len(leaf.harmonics()) - 1}, which miss {share:.1g} of the variance"}
        )

    def _worst_periodic(self) -> tuple[Periodic | None, float]:
        """Return the periodic kernel whose harmonics miss the largest share of its variance, and the share."""
        leaves = [leaf for leaf in self.model.kernel.leaves() if isinstance(leaf, Periodic)]
        worst = max(leaves, key=Periodic.missing_share, default=None)
        return worst, 0.0 if worst is None else max(worst.missing_share(), torch.finfo(torch.float64).eps)

    # Predictions ----------------------------------------------------------------------------------------------------

    def _at(self, X: Tensor, rows: Sides | None = None, summand: int | None = None) -> _Known:
        """Return what is known at points X (m, d); by default from the last time alone where none is before it.

        With a ``summand`` what is known of one part of a sum.
        """
        states = self._states
        x = states.times(X)
        if rows is None:
            rows = self._last if bool((x.detach() >= self._known.moments.times[-1]).all()) else self._sides
        times = rows.times
        before = torch.searchsorted(times, x.detach().contiguous(), right=True) - 1
        has, follows = before >= 0, before < len(times) - 1
        left, after = before.clamp_min(0), (before + 1).clamp_max(len(times) - 1)
        F, Q = states.steps(torch.where(has, times[left], x), x)
        F = torch.where(has[:, None, None], F, 0.0)
        P = torch.where(has[:, None, None], F @ rows.covariances[left] @ F.mT + Q, states.covariance(x))
        G, _ = states.steps(x, torch.where(follows, times[after], x))
        G = torch.where(follows[:, None, None], G, 0.0)
        seen, unheld = states.seen(X, summand), states.left(X, summand)
        return _Known(rows, before, after, seen, unheld, P, G.mT @ rows.informations[after] @ G, F, G)

    def _by_points(
        self,
        X: Tensor,
        answer: Callable[[_Known], Tensor],
        n_columns: int,
        rows: Sides | None = None,
        summand: int | None = None,
    ) -> Tensor:
        """Return an answer (m, n_columns) about points, some of them at a time."""
        q = max(self._states.size, 1)
        size = max(1, min(_POINTS, self.budget // (8 * _MATRICES * q * (q + n_columns))))
        found = [recomputed(lambda some: answer(self._at(some, rows, summand)), some) for some in X.split(size)]
        return torch.cat(found) if found else X.new_zeros(0, n_columns)

    def _moments(self, X: Tensor, summand: int | None = None) -> Tensor:
        """Return, side by side, means of targets (without the learned mean) and of basis, and the variance (m, c + 1).

        The targets are those minus the learned mean, so that the mean of the basis is `explained_basis`.
        """

        def answer(at: _Known) -> Tensor:
            return torch.cat([at.mean(), at.variance[:, None]], 1)

        return self._by_points(X, answer, self._known.errors.shape[1] + 1, summand=summand)

    def mean(self, X: Tensor) -> Tensor:
        return self.trend(X) + self._moments(X)[:, : self.n_targets].to(X)

    def explained_basis(self, X: Tensor) -> Tensor:
        return self._moments(X)[:, self.n_targets : -1].to(X)

    def mean_and_variance(self, X: Tensor, method: VarianceMethod = "auto") -> tuple[Tensor, Tensor]:
        """Return the mean (m, t) and the variance (m,) of the latent function; ``method`` has no effect."""
        found = self._moments(X).to(X)
        root = self.trend_root(X, found[:, self.n_targets : -1])
        return self.trend(X) + found[:, : self.n_targets], found[:, -1] + root.square().sum(1).to(found)

    def mean_and_variance_given_trend(self, X: Tensor, method: VarianceMethod = "auto") -> tuple[Tensor, Tensor]:
        """Return mean and variance at given coefficients of the mean; ``method`` has no effect."""
        found = self._moments(X).to(X)
        return self.trend(X) + found[:, : self.n_targets], found[:, -1]

    def moments_of_part(self, X: Tensor, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean (m, t), explained basis (m, p) and variance (m,) of one part of a sum, without the mean's own."""
        found = self._moments(X, number).to(X)
        return found[:, : self.n_targets], found[:, self.n_targets : -1], found[:, -1]

    def check_variances(self, X: Tensor) -> None:
        """Warn of what spoils variances: missing harmonics, and rounding of a huge prior variance before the first row.

        The variance at the first row comes from the row itself, and again as that of a point before it.
        """
        leaf, share = self._worst_periodic()
        missing = share * float(self.model.kernel.diagonal(self.table.X[:1]).max())
        if leaf is not None and missing > _LOST * float(self._known.noise.min()):
            msg = (
                f"{len(leaf.harmonics()) - 1} harmonics of {leaf!r} miss {share:.2g} of its variance, which is not "
                "small beside the noise. Use inference.Exact, or a longer lengthscale."
            )
            warn(msg, SolverWarning)
        at, first = self._at(self._known.rows[:1]), self._known.moments.times[:1]
        alone = at._replace(covariance=self._states.covariance(first), information=self._sides.informations[:1])
        variance, again = float(at.variance), float(alone.variance)
        lost = abs(again - variance)
        if lost > _LOST * variance and lost > _LOST_OF_TARGETS * self.table.target_variance:
            msg = (
                f"Variances before the first row have lost their digits: {again:.3g} at the row, where it is "
                f"{variance:.3g}. The prior variance there is {float(alone.covariance[0].diagonal().max()):.3g}. Put "
                "the centre of a trend nearer to the rows."
            )
            warn(msg, SolverWarning)

    def covariance_given_trend(self, X: Tensor) -> Tensor:
        if X.ndim == 3:
            return one_by_one(self.covariance_given_trend, X)
        m = len(X)
        require(8 * 4 * m * (m + self._states.size**2), self.budget, f"The covariance of {m:,} points", "")
        if m == 0:
            return X.new_zeros(0, 0)
        x, order = self._states.times(X).sort(stable=True)
        X = X[order]
        at, F = self._at(X), self._states.steps(x[:-1], x[1:])[0]
        passed = self._transfers(at.before)
        # rows of h' P F' ... of all points up to one, which the transitions carry to the next
        carried, columns = x.new_zeros(0, self._states.size), []
        gain = at.gain
        ends = at.seen - (at.information @ gain[:, :, None])[:, :, 0]  # (I - N P) h
        for k in range(m):
            if k > 0:
                between = passed.get(k)
                T = F[k - 1] if between is None else at.from_left[k] @ between @ at.to_right[k - 1]
                carried = carried @ T.T
            carried = torch.cat([carried, gain[k : k + 1]])
            columns.append(torch.nn.functional.pad(carried @ ends[k], (0, m - 1 - k)))
        upper = torch.stack(columns, 1)
        found = upper + upper.triu(1).T + self._states.left(X, joint=True)
        places = order.argsort()
        return found[places][:, places].to(X)

    def _transfers(self, before: Tensor) -> dict[int, Tensor]:
        """Return the matrices (q, q) by which errors of states pass the rows between successive points.

        ``before`` are the places of the times before the points, sorted. Points without rows between them and the point
        before have none.
        """
        known, q = self._known, self._states.size
        after = torch.nn.functional.pad(known.moments.last + 1, (1, 0))[before + 1]  # the first row after each point
        new = (torch.nonzero(before.diff() > 0)[:, 0] + 1).tolist()
        out = torch.zeros(len(new), q, q, dtype=torch.float64)
        if new:
            first, stop = int(after[new[0] - 1]), int(after[-1])
            ends = torch.full((len(known.rows),), -1, dtype=torch.int64)
            begins = torch.zeros(len(known.rows), dtype=torch.bool)
            ends[after[new] - 1] = torch.arange(len(new))
            begins[after[[k - 1 for k in new]]] = True
            state = torch.zeros(q, q, dtype=torch.float64).numpy()
            size = self._states.rows_at_once()
            for start in range(first, stop, size):
                rows = slice(start, min(start + size, stop))
                stretch = self._states.stretch(known.rows, rows)
                given = stretch.transition.numpy(), stretch.seen.numpy(), self._solved.gains[rows].numpy()
                marks = begins[rows].numpy(), ends[rows].numpy()
                self._states.blocks.transfer(*given, *marks, state, out.numpy())
        return dict(zip(new, out, strict=True))

    # Samples --------------------------------------------------------------------------------------------------------

    def sample_functions_given_trend(self, n_samples: int, generator: torch.Generator) -> SampleFunctions:
        """Return samples as functions: prior functions from random features, less what rows would tell of them.

        These samples have the error of the features; `sample_at` has none.
        """
        kernel, budget = self.model.kernel, self.budget
        prior = PriorSamples.for_sample_functions(kernel, self.n_inputs, n_samples * self.n_targets, generator)
        told = self._told(prior.evaluate(kernel, self.X, budget), generator)
        return lambda X: self._corrected(X, prior.evaluate(kernel, X, budget), told)

    def sample_at(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        """Return joint samples at points, shape (m, t, s), in linear time.

        Each is a sample of the prior at rows and points, step by step in time, less what rows would tell of it (Durbin
        and Koopman 2002, A simple and efficient simulation smoother, doi:10.1093/biomet/89.3.603).
        """
        refuse_gradient(X, f"sample_at of a {self.kind} posterior", "Samples from sample_functions have one.")
        path = self._prior_path(torch.cat([self.X, X.to(self.X)]), n_samples * self.n_targets, generator)
        at_rows, at_points = path.split([self.n_rows, len(X)])
        values = self._corrected(X, at_points, self._told(at_rows, generator))
        return values + (self.trend_root(X) @ self._coefficient_draws(n_samples, generator)).reshape(values.shape)

    def _told(self, at_rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return what rows would tell of functions with values (n, s) there, measured with the rows' noise."""
        n, s = at_rows.shape
        times = len(self._known.moments.times)
        require(16 * (times * self._states.size + 2 * n) * s, self.budget, f"The states of {s:,} samples", "")
        noise = standard_normal(n, s, generator=generator).to(at_rows)
        own = torch.empty_like(self._known.noise)
        own[self._known.order] = self._known.noise
        return self._known.smoothed(at_rows + own.sqrt()[:, None] * noise)

    def _corrected(self, X: Tensor, prior: Tensor, told: tuple[Tensor, Tensor]) -> Tensor:
        """Return samples (m, t, s) from values (m, t s) of prior functions and what rows would tell of these."""
        means, pulls = told
        rows = self._sides._replace(means=means, pulls=pulls)
        deviations = prior.to(X) - self._by_points(X, _Known.mean, means.shape[2], rows).to(X)
        return self.mean(X)[:, :, None] + deviations.reshape(len(X), self.n_targets, -1)

    def _prior_path(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        """Return samples of the prior at points in any order, (m, s)."""
        states = States(self.model.kernel, self._states.axis.widened(X))
        order = states.times(X).argsort(stable=True)
        out = torch.empty(len(X), n_samples, dtype=torch.float64)
        state = torch.zeros(states.size, n_samples, dtype=torch.float64).numpy()
        for stretch in states.stretches(X[order].double(), n_samples):
            moves, place = [torch.zeros(len(stretch.seen), 0, n_samples, dtype=torch.float64)], 0
            for size in states.blocks.sizes:
                spread = stretch.spread[:, place : place + size**2].detach().unflatten(1, (size, size))
                values, vectors = torch.linalg.eigh(spread)
                draws = standard_normal(len(spread), size * n_samples, generator=generator).unflatten(1, (size, -1))
                moves.append(vectors * values.clamp_min(0).sqrt()[:, None] @ draws)
                place += size**2
            moved = torch.cat(moves, 1).contiguous().numpy()
            found = torch.from_numpy(states.blocks.accumulate(stretch.transition.detach().numpy(), moved, state))
            out[order[stretch.rows]] = (stretch.seen[:, :, None] * found).sum(1)
        return out

    # Other answers --------------------------------------------------------------------------------------------------

    def variance_parts(self, X: Tensor) -> VarianceParts:
        variance = self.mean_and_variance(X)[1]
        return VarianceParts(variance, torch.zeros_like(variance))

    def left_out(self) -> LeftOut:
        """Return the distribution of each row given all others."""
        precisions = torch.empty_like(self._solved.precisions)
        precisions[self._known.order] = self._solved.precisions
        of_targets, of_basis = self._solved.solutions.split([self.n_targets, len(self.coefficients)], 1)
        return LeftOut.of(self.table.Y, of_targets, without_trend(precisions, of_basis, self.coefficient_root))

    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        """Return the exact value; its standard error is 0."""
        return Estimate(self._known.value, 0.0)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state for a model file; the passes over the rows are made again on loading."""
        return {"X": self.table.X, "Y": self.table.Y}, {}

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], header: dict[str, Any], saved: Saved) -> MarkovPosterior:
        check_tensors(tensors, ROWS, saved.sizes)
        table = TrainingTable(tensors["X"], tensors["Y"], saved.model.mean, saved.budget)
        axis = Axis.of(saved.model.kernel, table.X)
        require_states(saved.model, table, axis)
        return cls(FilteredTable.of(saved.model, table, axis))
