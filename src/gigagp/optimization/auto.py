"""The default outer loop: Fisher scoring on small subsets, then a few gradients on a large one and on all rows.

On four tables of at most 4,000 rows this took between a tenth and a thirtieth of the time that L-BFGS or Adam on all
rows took to reach the same likelihood. A subset of a thousand rows determines the lengthscales almost completely within
a second. Its Fisher information is a metric in which two to ten gradients on all rows suffice.

A bound (`gigagp.inference.SparseVariational`) can have its optimum elsewhere. On 2,500 rows of kin40k with 100 inducing
points its optimal noise is 0.23, whereas that of the likelihood of 1,000 rows is 0.0014; quasi-Newton steps from the
latter end 60,000 nats below those from the data's scale. A bound is therefore maximised from its own start, unless it
declares that it follows the likelihood (`gigagp.inference.ComputationAware`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from gigagp.errors import FitWarning, InvalidInputError, NotPositiveDefiniteError, warn
from gigagp.model.model import Model
from gigagp.optimization.adam import Adam
from gigagp.optimization.fisher import damped_inverse, with_known
from gigagp.optimization.lbfgs import LBFGS
from gigagp.optimization.objective import FisherObjective, GuideObjective, Objective
from gigagp.optimization.prior import WeakPrior, loss
from gigagp.optimization.quasi_newton import Evaluate, Metric, QuasiNewton, minimise
from gigagp.optimization.scoring import DAMPING, FisherScoring, Scored
from gigagp.optimization.space import ParameterSpace
from gigagp.optimization.trace import Trace
from gigagp.settings.fields import Count, CountOrZero, Length, Positive, Range, Settings

#: With noisy gradients, the k-th step (from 0) is divided by k plus this number. About ``4 / (steps + 4)`` of the error
#: of the start remains. The subset's optimum is a good start, which the first steps must not destroy: with 1 instead of
#: 4, two of three fits to the table of `_Stages._average` ended 5 and 7 nats below the optimum; with 4, the three ended
#: 1.5, 0.7 and 1.8 nats below it.
_FIRST_GAIN = 4
#: Steps on a guide in a row that gain less than they must. Along a ridge of variance and lengthscales the information
#: promises too much: on kin40k 24 of 30 evaluations gained 0.001 nats a row together.
_GUIDE_PATIENCE = 2
#: Nats an observation that are always worth another gradient after a guide, however many rows make it expensive. A fit
#: of 16,000 rows of six inputs that passed by 0.0075 for 4 s ended 0.012 nats above the test score of one that did not.
_MOST_GAIN = 0.004
#: Nats an observation from which the next step after a guide is taken without a gradient at its end. If nothing moves,
#: the last solve goes on from that of the last gradient; otherwise it begins anew, with the same preconditioner.
_SMALLEST_STEP = 0.001
#: Kernel entries of a solve, about ten seconds, up to which both hold. On 36,000 rows of kin40k, where a solve takes a
#: minute, a fit took more than twice the time with the first, and 1.6 times the time with the second.
_FEW_ENTRIES = 1e10
#: Factors of lengthscales and standard deviations at a second start. From the first one alone, four of six tables of
#: 100 or 300 labels ended 4 to 27 nats below the best of 16 starts; from the second, none did.
_ROUGHER = (0.4, 3.0)
#: Share of a point's variance at which noise counts as none. The likelihood of targets without noise goes on to rise as
#: it falls, until the kernel matrix has no factor.
_NO_NOISE = 1e-9


@dataclass(frozen=True)
class Auto(Settings):
    """Fisher scoring on random subsets, then quasi-Newton steps on all rows in the subset's metric.

    When to use: always, except to reproduce a paper's optimizer. It is the meaning of ``optimizer="auto"``. It
    maximises the likelihood times a weak log-normal prior (see `gigagp.optimization.prior`).

    An inference method may have a bound in place of the likelihood (``is_likelihood`` is False). The bound is maximised
    without a prior by ``bound_polish``. If the table is large or is read in minibatches, this is done on a subset of
    ``middle_size`` rows first. If the bound ``follows_likelihood``, Fisher scoring of the likelihood on subsets comes
    before it instead. Minibatches are then followed by ``stochastic_polish``.

    Parameters
    ----------
    subset_sizes : tuple of int, default (500, 1000)
        Numbers of rows of the successive subsets; each starts at the result of the one before. If the likelihood is
        exact, a size of at least half the table is replaced by the whole table.
    subset_steps : int, default 15
        Largest number of evaluations on each subset.
    rougher_starts : bool, default True
        Whether starts with shorter lengthscales are tried where much noise is left, which may be a function with many
        waves: on the first subset, and on nearest neighbours, which show far shorter waves than random rows do.
    middle_size : int, default 8000
        A table with at least twice this many rows is first polished on a subset of this size, by the same inference
        method. Steps there cost a fraction of those on all rows, of which only two or three remain necessary. 0
        disables it.
    guide_rounds, guide_steps : int, defaults 8 and 30
        An approximate likelihood of all rows (`gigagp.inference.Vecchia`, and `gigagp.inference.Iterative`, which is
        guided by it): the largest number of times that its neighbours or rows change, and of evaluations for each. A
        round ends at the objective's own smallest gain (`Objective.least_gain`).
    guided_steps : int, default 3
        Largest number of gradients on all rows after a guide.
    guided_gain : float, default 6e-8
        Predicted gain in nats, for each kernel entry that the gradient's solve has computed, that is worth a step after
        a guide: about 50 nats for each second of a core. A gain of 0.004 nats an observation is worth it in any case if
        the solve has computed fewer than 1e10 entries. The last step has no gradient at its end. If it promises less
        than 0.001 nats an observation, or solves are slower than that, only the amplitude is set
        (`Objective.amplified`), and the last solve goes on from the gradient's.
    polish_steps : int, default 100
        Largest number of gradients on the middle subset, and again on all rows; 0 keeps the subset's hyperparameters.
        A warning says so if it ends the fit while another step is still worth its while.
    noisy_steps : int, default 30
        Number of gradients on all rows in place of the polish, if probes or lengths of solves are redrawn for each
        gradient. These are steps in the subset's metric, divided by their number to average the noise out.
    subset_tolerance, polish_tolerance : float, defaults 5e-4 and 1e-3
        Predicted gain in nats per observation below which a stage ends (for the polish, twice in a row). An objective
        whose gradients do not become more expensive with more rows sets a smaller gain (`Objective.least_gain`).
    n_probes : int, default 8
        Number of probe vectors for the Fisher information.
    max_subset_change, max_polish_change : float, defaults 1.5 and 0.7
        Largest change of a log hyperparameter in one step.
    bound_polish : LBFGS, default ``LBFGS(steps=100, tolerance=1e-5, memory=50)``
        Optimizer of deterministic bounds.
    stochastic_polish : Adam, default ``Adam(0.03, steps=2000, transform="log", final_share=0.1)``
        Optimizer of bounds that are estimated from minibatches.
    """

    subset_sizes: Annotated[tuple[Annotated[int, Range(least=2)], ...], Length(1)] = (500, 1000)
    subset_steps: Count = 15
    rougher_starts: bool = True
    middle_size: CountOrZero = 8000
    guide_rounds: Count = 8
    guide_steps: Count = 30
    guided_steps: Count = 3
    guided_gain: Positive = 6e-8
    polish_steps: CountOrZero = 100
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
            raise InvalidInputError(f"middle_size of Auto must be 0 or at least 2; got {self.middle_size!r}.")

    def run(self, objective: Objective, model: Model, trace: Trace, generator: torch.Generator) -> Model:
        """Return the model after all stages."""
        if not objective.is_likelihood and not (objective.follows_likelihood and model.learned_names()):
            return self._maximise_bound(objective, model, trace, generator)
        return _Stages(self, objective, model, trace, generator).run() if model.learned_names() else model

    def _maximise_bound(self, objective: Objective, model: Model, trace: Trace, generator: torch.Generator) -> Model:
        """Maximise an objective that is not the likelihood, including its free numbers."""
        own = objective.own_optimizer()
        if own is not None:
            return own.run(objective, model, trace, generator)
        n, size = objective.n_rows, self.middle_size
        thins = n >= 2 * size or not objective.deterministic
        # If the likelihood gives a good start, a bound on fewer rows leads away from it (measured on protein, kin40k).
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


class _Stages:
    """The stages of one run of `Auto` on a likelihood, with what they share."""

    def __init__(
        self, settings: Auto, objective: Objective, model: Model, trace: Trace, generator: torch.Generator
    ) -> None:
        self.settings, self.objective, self.model = settings, objective, model
        self.trace, self.generator = trace, generator
        self.space = ParameterSpace(model, "log")
        self.prior = WeakPrior(self.space, objective.n_inputs, objective.target_variance)
        self.origin = self.space.encode(model)  # where the subsets begin
        self.starts: list[Tensor] = []  # what was tried on a part of the rows, for all rows to choose from

    def run(self) -> Model:
        """Return the model after all stages."""
        objective, settings, trace = self.objective, self.settings, self.trace
        scored = self._on_subsets()
        learned = self.space.decode(scored.vector)
        if not settings.polish_steps or trace.stopped:
            return learned
        if not objective.is_likelihood:
            return settings._maximise_bound(objective, learned, trace, self.generator)
        if min(settings.subset_sizes) >= objective.n_rows:  # on a small table this costs less than an estimate
            exact = objective.subset(torch.arange(objective.n_rows))
            known = scored if exact.is_exact else None
            found = self._polish(exact, self.space, scored.vector, scored.information, "all rows", known=known)
            return objective.start(found)  # what the inference approximates may need another start (noise on a grid)
        guide = objective.guide(learned)
        if guide is not None:
            return self._guided(guide, scored)
        vector = self._on_middle(scored)
        if trace.stopped:
            return self.space.decode(vector)
        return self._polish(objective, self.space, vector, scored.information, "all rows")

    def _on_subsets(self) -> Scored:
        """Run Fisher scoring on successive subsets, each from the result of the one before."""
        n, trace, scored = self.objective.n_rows, self.trace, None
        for size in self.settings.subset_sizes:
            if size >= n // 2 and scored is not None:
                break
            rows = self.objective.draw_rows(size, self.generator)
            subset = self.objective.subset(rows)
            title = "learning" if size >= n else f"choosing a start on {subset.n_rows:,} rows"
            trace.meter.phase(title, most=self.settings.subset_steps)
            space = ParameterSpace(self.model.take_rows(rows), "log")
            if scored is None:
                given = space.decode(self.origin)
                started = subset.start(given)
                self.origin = self.origin if started is given else space.encode(started)
                scored = self._from_starts(subset, space)
            else:
                scored = self._scoring(subset, space, self._probes(subset)).run(scored.vector, scored.information)
            if trace.stopped:
                break
        assert scored is not None, "there is a size"
        return scored

    def _guided(self, guide: GuideObjective, scored: Scored) -> Model:
        """Learn from a guide, and then from the objective if that is more than its guide."""
        objective, trace = self.objective, self.trace
        scored = self._on_guides(guide, scored, self.origin)
        learned = self.space.decode(scored.vector)
        if trace.stopped:
            return learned
        following = objective.settled(learned)
        if following is objective and objective is not guide:
            if not objective.is_likelihood:  # a bound has been found better, and has its own start
                return self.settings._maximise_bound(objective, self.model, trace, self.generator)
            found = self._polish(objective, self.space, scored.vector, scored.information, "all rows", guided=True)
            following = objective.settled(learned)  # solves may have failed
            if following is objective or trace.stopped:
                return found
        own = following.guide(learned)
        if own is None or own is guide:
            return learned
        # Neighbours end the fit, and were not the guide.
        return self.space.decode(self._on_guide(own, scored, None).vector)

    def _on_middle(self, scored: Scored) -> Tensor:
        """Polish on a subset of a large table by the same inference, if its gradients are cheaper."""
        size = self.settings.middle_size
        if not size or self.objective.n_rows < 2 * size:
            return scored.vector
        rows = self.objective.draw_rows(size, self.generator)
        thin = self.objective.thin(rows)
        if thin is self.objective:  # fewer rows do not make gradients cheaper
            return scored.vector
        space = ParameterSpace(self.model.take_rows(rows), "log")
        return space.encode(self._polish(thin, space, scored.vector, scored.information, f"subset {size}"))

    def _on_guides(self, guide: GuideObjective, start: Scored, origin: Tensor | None) -> Scored:
        """Return the optimum of a guide, or where that has failed or misled, that of another one."""
        found, rival, space = self._on_guide(guide, start, origin), guide.rival, self.space
        if rival is None or self.trace.stopped:
            return found
        if found.failed:
            return self._on_guide(rival.substitute, found, origin)
        if not rival.is_misled(space.decode(found.vector)):
            return found
        other = self._on_guide(rival.guide, start, origin, on_trial=True)
        if other.failed or rival.is_misled(space.decode(other.vector)):
            return found
        self.trace.accept(rival.guide, space, other.vector)
        return other

    def _on_guide(
        self, guide: GuideObjective, found: Scored, origin: Tensor | None, *, on_trial: bool = False
    ) -> Scored:
        """Run Fisher scoring on a guide, again where it has changed with the hyperparameters.

        The first time it may begin anew from rougher functions than subsets show, given where the subsets began.
        """
        settings, space, trace = self.settings, self.space, self.trace
        probes = torch.zeros(0, settings.n_probes)  # a guide needs none, and may have very many rows
        scoring = replace(
            self._scoring(guide, space, probes),
            steps=settings.guide_steps,
            tolerance=min(settings.subset_tolerance, guide.least_gain / guide.n_observations),
            stage=f"subset {guide.n_rows}" if guide.is_exact else "neighbours",
            patience=_GUIDE_PATIENCE,
            may_fail=on_trial or guide.rival is not None,
            on_trial=on_trial,
        )
        for round_ in range(settings.guide_rounds):
            changed = guide.refresh(space.decode(found.vector))
            # After an earlier run, as of `Restarts`, the guide may serve the first round without a change.
            if trace.stopped or not (changed or round_ == 0):
                break
            phase = f"learning on {guide.n_rows:,} rows" if guide.is_exact else "learning from neighbours"
            trace.meter.phase(phase, most=settings.guide_steps)
            found = scoring.run(found.vector, found.information)
            if found.failed and scoring.may_fail:
                break
            if round_ == 0 and origin is not None and settings.rougher_starts:
                found = best_of_starts(scoring, origin, found, guide.finest(space.decode(origin)))
        return found

    def _from_starts(self, subset: FisherObjective, space: ParameterSpace) -> Scored:
        """Run Fisher scoring from the start and, where another optimum may be better, from rougher functions too."""
        vector, trace = self.origin, self.trace
        scoring = self._scoring(subset, space, self._probes(subset))
        found = scoring.run(vector, None)
        if trace.stopped:
            return found
        if not subset.has_distant_optima:
            return best_of_starts(scoring, vector, found) if self.settings.rougher_starts else found
        rougher = space.rougher(vector, *_ROUGHER)
        if torch.equal(rougher, vector):
            return found
        other = replace(scoring, probes=self._probes(subset)).run(rougher, found.information)
        if subset.n_rows < self.objective.n_rows:
            self.starts = [vector, rougher, found.vector, other.vector]
        if other.value < found.value:
            return other
        if not trace.stopped:
            trace.accept(subset, space, found.vector)
        return found

    def _probes(self, objective: FisherObjective) -> Tensor:
        """Return standard normal vectors for the information of an exact objective."""
        n_probes = self.settings.n_probes
        return torch.randn(objective.n_rows, n_probes, generator=self.generator, dtype=torch.float64)

    def _scoring(self, objective: FisherObjective, space: ParameterSpace, probes: Tensor) -> FisherScoring:
        settings, stage = self.settings, f"subset {objective.n_rows}"
        limits = settings.subset_steps, settings.subset_tolerance, settings.max_subset_change
        return FisherScoring(objective, space, self.prior, self.trace, probes, *limits, stage)

    def _polish(
        self,
        objective: Objective,
        space: ParameterSpace,
        vector: Tensor,
        information: Tensor,
        stage: str,
        *,
        guided: bool = False,
        known: Scored | None = None,
    ) -> Model:
        """Run quasi-Newton steps with the information of the last stage as first metric.

        Where the objective knows the information of a hyperparameter, it stands in the place of that of few rows. A
        guide leaves little to gain, and its information is that of all rows. So a single small gain ends the steps.
        ``known`` is a point of the same objective.
        """
        own, prior, trace, n = self.settings, self.prior, self.trace, objective.n_observations
        vector = space.encode(objective.start(space.decode(vector))) if known is None else known.vector
        known_here = objective.known_information(space.decode(vector))
        information = with_known(information, space.information(known_here) / n)
        inverse = damped_inverse(information + torch.diag(prior.precision / n), DAMPING)
        evaluate = loss(trace, objective, space, stage, prior)
        accept = partial(trace.accept, objective, space)
        whole, n_gradients = stage == "all rows", None if objective.deterministic else own.noisy_steps
        trace.meter.phase(
            "learning" if whole else f"learning on {objective.n_rows:,} rows",
            n_gradients,
            unit="gradient",
            most=own.guided_steps if guided else None,
            then=1.0 if whole else None,
        )

        def enough(at: torch.Tensor) -> float:
            if guided:
                return self._worth(objective)
            if space.decode(at).noise_share < _NO_NOISE:
                return math.inf
            return min(own.polish_tolerance, objective.least_gain / n)

        if not objective.deterministic:
            return self._average(evaluate, lambda g: inverse @ g, space, vector, stage, accept)
        settings = QuasiNewton(
            steps=min(own.polish_steps, own.guided_steps if guided else own.polish_steps) - 1,
            tolerance=enough,
            max_change=own.max_polish_change,
            patience=1 if guided else 2,
            smallest_step=partial(_smallest_step, objective, trace) if guided else lambda: 0.0,
            unfinished=(lambda predicted: None) if guided else self._warn_of_limit,
        )
        at_start: tuple[float | None, Tensor] | None = None if known is None else (known.value, known.gradient)
        if self.starts:
            vector, at_start = self._highest(evaluate, vector)
        vector, step, finite = minimise(evaluate, vector, settings, lambda g: inverse @ g, space.box, accept, at_start)
        if not finite:
            return trace.stop(space, vector, space.decode(vector), stage)
        if guided and not bool(step.any()):
            found = objective.amplified(space.decode(vector))
            moved = space.encode(found)
            return found if torch.equal(moved, space.box.clip(moved)) else space.decode(vector)
        if objective.has_distant_optima:  # where a step may lead down, the highest value ends the search
            return space.decode(vector)
        # The step of the last gradient is taken without evaluating it, because an evaluation costs more than it gains.
        return space.decode(vector + step)

    def _highest(self, evaluate: Evaluate, vector: Tensor) -> tuple[Tensor, tuple[float | None, Tensor] | None]:
        """Return the best of a vector and of all starts by the values of an objective, with its value and gradient."""
        places = [vector, *(one for one in self.starts if not torch.equal(one, vector))]
        outcomes = [(place, evaluate(place)) for place in places]
        return min(outcomes, key=lambda one: math.inf if one[1] is None or one[1][0] is None else one[1][0])

    def _warn_of_limit(self, predicted: float) -> None:
        steps = self.settings.polish_steps
        msg = (
            f"Learning stopped after {steps} gradients, where another step promised {predicted:.2g} nats an "
            "observation. Give optimization.Auto a larger polish_steps."
        )
        warn(msg, FitWarning)

    def _worth(self, objective: Objective) -> float:
        """Return the gain per observation that is worth another solve like the last one."""
        entries = _last_entries(objective, self.trace)
        worth = self.settings.guided_gain * entries / objective.n_observations
        return min(worth, _MOST_GAIN) if entries < _FEW_ENTRIES else worth

    def _average(
        self,
        evaluate: Evaluate,
        metric: Metric,
        space: ParameterSpace,
        vector: Tensor,
        stage: str,
        accept: Callable[[Tensor], None],
    ) -> Model:
        """Run Fisher scoring with noisy gradients, whose steps are divided by their number (Robbins and Monro 1951).

        With the inverse information as metric, these gains have the least asymptotic variance. Line searches and
        quasi-Newton updates would follow the noise: with CG cut at about 20 iterations they ended 4 to 55 nats below
        the optimum of 1,500 rows.
        """
        best = vector
        for k in range(self.settings.noisy_steps):
            outcome = evaluate(vector)
            if outcome is None:
                return self.trace.stop(space, vector, space.decode(best), stage)
            accept(vector)
            step = -metric(outcome[1]) / (k + _FIRST_GAIN)
            share = min(1.0, self.settings.max_polish_change / max(float(step.abs().max()), 1e-300))
            best, vector = vector, space.box.clip(vector + step * share)
        return space.decode(vector)


def _last_entries(objective: Objective, trace: Trace) -> float:
    """Return the number of kernel entries that the last solve has computed."""
    solve = trace.history[-1].solve
    epochs = 1.0 if solve is None else solve.epochs + solve.setup_epochs
    return epochs * objective.product_entries


def _smallest_step(objective: Objective, trace: Trace) -> float:
    """Return the gain per observation that is worth a last solve that begins anew."""
    return _SMALLEST_STEP if _last_entries(objective, trace) < _FEW_ENTRIES else math.inf


# Other starts of a fit, for functions far rougher than the usual start supposes ---------------------------------------
#
# From one start, Fisher scoring takes a function with many waves for noise: the lengthscales grow, and the likelihood
# has an optimum there. Random rows of a large table lie too far apart to show otherwise; a guide, which looks at near
# rows, may. On 68 made and real tables of 50 to 500 rows it ended more than 2 nats below the best of eight random
# starts 13 times, by up to 465 nats; with the starts of this module 4 times, by up to 6 (`benchmarks/starts.py`).


#: Factors of lengthscales and of the noise's standard deviation at other starts.
_STARTS = ((0.25, 1.0), (0.1, 1.0), (0.1, 0.1), (0.05, 1.0), (0.05, 0.1), (0.02, 0.1))
#: Ratio of successive lengthscales that are tried on a guide, and factors of the noise's standard deviation there.
_RATIO, _NOISES = 0.25, (1.0, 0.1)
#: Share of the targets' variance from which what is left as noise may be a function.
_MUCH_NOISE = 0.1
#: Nats an observation by which a start may lie below the optimum that is known, and evaluations to reach it in.
_WITHIN_REACH, _TRIAL_STEPS = 0.3, 3


def best_of_starts(scoring: FisherScoring, start: Tensor, found: Scored, finest: float | None = None) -> Scored:
    """Return the better of an optimum and what scoring reaches from rougher starts than the usual one, (p,).

    Nothing is tried where little noise is left. A start costs one likelihood. The best one gets a few steps, and is
    followed to its end if these reach the optimum that is known. Lengthscales are tried down to the factor ``finest``,
    at ratios of four; None: at six fixed starts.
    """
    space = scoring.space
    model = space.decode(found.vector)
    much_noise = _MUCH_NOISE * scoring.objective.target_variance
    if scoring.trace.stopped or model.noise_is_known or model.noise_level < much_noise:
        return found
    factors = _STARTS if finest is None else [(one, noise) for one in _down_to(finest) for noise in _NOISES]
    rougher = (space.rougher(start, lengths, noise=noise) for lengths, noise in factors)
    candidates = [one for one in rougher if not torch.equal(one, start)]  # a kernel may have no lengthscale to learn
    losses = [_loss(scoring, one) for one in candidates]
    if not losses or min(losses) > found.value + _WITHIN_REACH:
        return found
    tried = scoring.evaluate(candidates[losses.index(min(losses))])
    if tried is not None:
        tried = replace(scoring, on_trial=True).improve(tried, _TRIAL_STEPS)
        if tried.value < found.value:
            return scoring.improve(tried, scoring.steps - _TRIAL_STEPS)
    return found


def _down_to(finest: float) -> list[float]:
    """Return the powers of `_RATIO` that are not below a number."""
    return [_RATIO**k for k in range(1, 1 + math.floor(math.log(finest) / math.log(_RATIO)))]


def _loss(scoring: FisherScoring, vector: Tensor) -> float:
    """Return the loss of a start in nats an observation; infinity where it is costly or the matrix has no factor."""
    try:
        value = scoring.objective.quick_value(scoring.space.decode(vector))
    except NotPositiveDefiniteError:
        return math.inf
    return math.inf if value is None else (scoring.prior.penalty(vector) - value) / scoring.objective.n_observations
