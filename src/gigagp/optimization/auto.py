"""The default outer loop: Fisher scoring on small subsets, then a few gradients on a large one and on all rows.

On four tables of 4,000 rows and fewer this took a tenth to a thirtieth of the time of L-BFGS or Adam on all rows to
the same likelihood: a subset of a thousand rows finds nearly all of the lengthscales in a second, and its Fisher
information is the metric in which two to ten gradients on all rows do the rest.

A bound (`gigagp.inference.SparseVariational`) can have its optimum elsewhere: on 2,500 rows of kin40k with 100 inducing
points it takes a noise of 0.23 where the likelihood of 1,000 rows takes 0.0014, and quasi-Newton steps that start there
end 60,000 nats below those that start from the data's scale. So a bound is maximised from its own start, unless it says
that it follows the likelihood (`gigagp.inference.ComputationAware`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated

import torch

from gigagp.errors import InvalidInputError
from gigagp.fields import Count, CountOrZero, Length, Positive, Range, Settings
from gigagp.model import Model
from gigagp.optimization.adam import Adam
from gigagp.optimization.fisher import damped_inverse
from gigagp.optimization.lbfgs import LBFGS
from gigagp.optimization.objective import FisherObjective, Objective
from gigagp.optimization.prior import WeakPrior, loss
from gigagp.optimization.quasi_newton import Evaluate, Metric, QuasiNewton, minimise
from gigagp.optimization.space import ParameterSpace
from gigagp.optimization.trace import Trace

_DAMPING = 1e-3
_MAX_DAMPING = 1e6
#: With noisy gradients the k-th step, from 0, is divided by k plus this. The subset's optimum is a good start, of whose
#: error about ``4 / (steps + 4)`` is left, and the first steps must not throw it away: with 1 in the place of 4 two of
#: three fits to the table of `Auto._average` ended 5 and 7 nats below the optimum, now 1.5, 0.7 and 1.8.
_FIRST_GAIN = 4


@dataclass(frozen=True)
class Auto(Settings):
    """Fisher scoring on random subsets, then quasi-Newton steps on all rows in the subset's metric.

    When to use: always, unless a paper's optimizer is to be reproduced. It is what ``optimizer="auto"`` means.
    It maximises the likelihood times a weak log-normal prior (see `gigagp.optimization.prior`).

    Where inference has a bound in place of the likelihood (``is_likelihood`` is False), it is maximised without a prior
    by ``bound_polish``, on a subset of ``middle_size`` rows first where the table is large or comes in minibatches (and
    before that by Fisher scoring of the subsets' likelihoods, where the bound ``follows_likelihood``);
    ``stochastic_polish`` follows for minibatches.

    Parameters
    ----------
    subset_sizes : tuple of int, default (500, 1000)
        Rows of the successive subsets, each started where the last one ended; sizes of at least half the table are
        replaced by the table itself where its likelihood is exact.
    subset_steps : int, default 15
        Most evaluations on each subset.
    middle_size : int, default 8000
        A table of at least twice as many rows is polished on a subset of this size first, by the same inference:
        steps there cost a fraction of one on all rows, and leave two or three for those. 0: never.
    polish_steps : int, default 10
        Most gradients on the middle subset, and again on all rows; 0 keeps the subset's hyperparameters.
    noisy_steps : int, default 30
        Gradients on all rows in place of the polish where probes or lengths of solves are drawn anew at each: steps
        in the subset's metric, divided by their number, which averages the noise out.
    subset_tolerance, polish_tolerance : float, defaults 5e-4 and 1e-3
        Predicted gain in nats an observation below which a stage ends (the polish: twice in a row). An objective whose
        gradients do not cost more for more rows ends the polish at a gain in nats of its own (`Objective.least_gain`).
    n_probes : int, default 8
        Probe vectors of the Fisher information.
    max_subset_change, max_polish_change : float, defaults 1.5 and 0.7
        Largest change of a log hyperparameter in one step.
    bound_polish : LBFGS, default ``LBFGS(steps=100, tolerance=1e-5, memory=50)``
    stochastic_polish : Adam, default ``Adam(0.03, steps=2000, transform="log", final_share=0.1)``
    """

    subset_sizes: Annotated[tuple[Annotated[int, Range(least=2)], ...], Length(1)] = (500, 1000)
    subset_steps: Count = 15
    middle_size: CountOrZero = 8000
    polish_steps: CountOrZero = 10
    noisy_steps: Count = 30
    subset_tolerance: Positive = 5e-4
    polish_tolerance: Positive = 1e-3
    n_probes: Count = 8
    max_subset_change: Positive = 1.5
    max_polish_change: Positive = 0.7
    bound_polish: LBFGS = field(default_factory=lambda: LBFGS(steps=100, tolerance=1e-5, memory=50))
    stochastic_polish: Adam = field(default_factory=lambda: Adam(0.03, 2000, transform="log", final_share=0.1))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.middle_size == 1:
            msg = f"middle_size of Auto must be 0 or at least 2; got {self.middle_size!r}."
            raise InvalidInputError(msg)

    def run(self, objective: Objective, model: Model, trace: Trace, generator: torch.Generator) -> Model:
        """Return the model after both stages."""
        if not objective.is_likelihood and not (objective.follows_likelihood and model.learned_names()):
            return self._maximise_bound(objective, model, trace, generator)
        if not model.learned_names():
            return model
        whole = ParameterSpace(model, "log")
        prior = WeakPrior(whole, objective.n_inputs, objective.target_variance)
        vector = whole.encode(model)
        trace.meter.start(None, "fit")
        n = objective.n_rows
        information: torch.Tensor | None = None
        for size in self.subset_sizes:
            if size >= n // 2 and information is not None:
                break
            rows = objective.draw_rows(size, generator)
            subset = objective.subset(rows)
            space = ParameterSpace(model.take_rows(rows), "log")
            if information is None:
                given = space.decode(vector)
                started = subset.start(given)
                vector = vector if started is given else space.encode(started)
            vector, information = self._score(subset, space, prior, vector, information, trace, generator)
            if trace.stopped:
                break
        if not self.polish_steps or information is None or trace.stopped:
            return whole.decode(vector)
        if not objective.is_likelihood:
            return self._maximise_bound(objective, whole.decode(vector), trace, generator)
        if min(self.subset_sizes) >= n:  # the exact likelihood of so few rows costs less than an estimate
            objective = objective.subset(torch.arange(n))
        if self.middle_size and n >= 2 * self.middle_size:
            rows = objective.draw_rows(self.middle_size, generator)
            space = ParameterSpace(model.take_rows(rows), "log")
            thin = objective.thin(rows)
            if thin is not objective:  # where the rows make no difference to the cost of a gradient, it is
                middle = self._polish(thin, space, prior, vector, information, trace, f"subset {self.middle_size}")
                vector = space.encode(middle)
                if trace.stopped:
                    return whole.decode(vector)
        return self._polish(objective, whole, prior, vector, information, trace, "all rows")

    def _maximise_bound(self, objective: Objective, model: Model, trace: Trace, generator: torch.Generator) -> Model:
        """Maximise an objective that is not the likelihood, free numbers and all."""
        own = objective.own_optimizer()
        if own is not None:
            return own.run(objective, model, trace, generator)
        n, size = objective.n_rows, self.middle_size
        thins = n >= 2 * size or not objective.deterministic
        # Where the likelihood is a good start, a bound on fewer rows led away from it (protein, kin40k).
        if size and thins and not objective.follows_likelihood:
            rows = objective.draw_rows(size, generator)
            thin = objective.thin(rows)
            found = self.bound_polish.run(thin, model.take_rows(rows), trace, generator, stage=f"subset {thin.n_rows}")
            learned = {name: found.parameters()[name] for name in model.learned_names()}
            model = replace(model.replace(learned), free=found.free)
            if trace.stopped:
                return model
        polish: LBFGS | Adam = self.bound_polish if objective.deterministic else self.stochastic_polish
        return polish.run(objective, model, trace, generator)

    def _score(
        self,
        objective: FisherObjective,
        space: ParameterSpace,
        prior: WeakPrior,
        vector: torch.Tensor,
        known: torch.Tensor | None,
        trace: Trace,
        generator: torch.Generator,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Fisher scoring with Levenberg damping; returns the best point and its information per observation.

        ``known`` is the information of the subset before, None for the first.
        """
        n, stage = objective.n_observations, f"subset {objective.n_rows}"
        probes = torch.randn(objective.n_rows, self.n_probes, generator=generator, dtype=torch.float64)

        penalised = loss(trace, objective, space, stage, prior)

        def evaluate(x: torch.Tensor) -> tuple[float, torch.Tensor, torch.Tensor] | None:
            found = penalised(x)
            if found is None:
                return None
            value, gradient = found
            return None if value is None else (value, gradient, objective.fisher(space, x, probes) / n)

        best = evaluate(vector)
        if best is None:
            trace.stop(space, vector, None if known is None else space.decode(vector), stage)  # raises at the first
            assert known is not None
            return vector, known
        trace.accept(objective, space, vector)
        damping, trials, failures = _DAMPING, 0, 0
        for _ in range(self.subset_steps - 1):
            value, gradient, information = best
            free = space.box.free(vector, gradient)
            curvature = (information + torch.diag(prior.precision / n)) * (free[:, None] * free)
            step = -damped_inverse(curvature, damping) @ (gradient * free)
            if -0.5 * float(step @ gradient) < self.subset_tolerance or damping > _MAX_DAMPING:
                break
            step = step * min(1.0, self.max_subset_change / max(float(step.abs().max()), 1e-300))
            trial = vector + space.box.confine(vector, step, gradient * free)
            outcome = evaluate(trial)
            if outcome is not None and outcome[0] < value:
                vector, best, damping = trial, outcome, max(damping * 0.3, _DAMPING)
                trace.accept(objective, space, vector)
                trials = failures = 0
            else:
                damping *= 10
                trials, failures = trials + 1, failures + (outcome is None)
        if failures and failures == trials:  # no step was too long by its value: there is none that is finite
            trace.stop(space, vector, space.decode(vector), stage)
        return vector, best[2]

    def _polish(
        self,
        objective: Objective,
        space: ParameterSpace,
        prior: WeakPrior,
        vector: torch.Tensor,
        information: torch.Tensor,
        trace: Trace,
        stage: str,
    ) -> Model:
        """Quasi-Newton; the first metric is the information that the last small subset had."""
        n = objective.n_observations
        vector = space.encode(objective.start(space.decode(vector)))
        inverse = damped_inverse(information + torch.diag(prior.precision / n), _DAMPING)
        evaluate = loss(trace, objective, space, stage, prior)
        accept = partial(trace.accept, objective, space)
        if not objective.deterministic:
            return self._average(evaluate, lambda g: inverse @ g, space, vector, trace, stage, accept)
        settings = QuasiNewton(
            steps=self.polish_steps - 1,
            tolerance=min(self.polish_tolerance, objective.least_gain / n),
            max_change=self.max_polish_change,
            patience=2,
        )
        vector, step, finite = minimise(evaluate, vector, settings, lambda g: inverse @ g, space.box, accept)
        if not finite:
            return trace.stop(space, vector, space.decode(vector), stage)
        # The last gradient's step is taken without being evaluated: an evaluation costs as much as the step gains.
        return space.decode(vector + step)

    def _average(
        self,
        evaluate: Evaluate,
        metric: Metric,
        space: ParameterSpace,
        vector: torch.Tensor,
        trace: Trace,
        stage: str,
        accept: Callable[[torch.Tensor], None],
    ) -> Model:
        """Fisher scoring with noisy gradients: steps divided by their number (Robbins and Monro 1951).

        With the inverse information as metric these gains are those of least asymptotic variance. Line searches and
        quasi-Newton updates would follow the noise: with CG cut at about 20 iterations they ended 4 to 55 nats below
        the optimum of 1,500 rows.
        """
        best: torch.Tensor = vector
        for k in range(self.noisy_steps):
            outcome = evaluate(vector)
            if outcome is None:
                return trace.stop(space, vector, space.decode(best), stage)
            accept(vector)
            step = -metric(outcome[1]) / (k + _FIRST_GAIN)
            best, vector = (
                vector,
                space.box.clip(vector + step * min(1.0, self.max_polish_change / max(float(step.abs().max()), 1e-300))),
            )
        return space.decode(vector)
