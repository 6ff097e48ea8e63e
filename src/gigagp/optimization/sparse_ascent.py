"""The loop of sparse ascent: steps that touch only what was sampled, where a step cannot look at all numbers."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import FitWarning, InvalidInputError, NonFiniteError, UnreadableRowsError, warn
from gigagp.model.model import Model
from gigagp.optimization.auto import Auto
from gigagp.optimization.history import Step, natural_values
from gigagp.optimization.sampled import Place, Sampleable, SampledObjective
from gigagp.optimization.space import ParameterSpace
from gigagp.optimization.trace import Trace, in_range
from gigagp.runtime.interruption import asked_between_steps
from gigagp.runtime.run import Interruption
from gigagp.settings.fields import Count, Positive, PositiveShare, Settings, Share, ShareBelowOne

#: Windows of steps in a fit of a given number of steps. At the end of each, history, best state and checkpoint are
#: brought up to date.
_REPORTS = 50
#: In a fit without a number of steps: the number that shares of the steps refer to, steps of a window, and most steps.
USUAL_STEPS, _LOOK_STEPS, _MOST_STEPS = 5000, 100, 20_000
#: Samples at the start, which later windows are compared with, and the successive windows below them that end a fit.
_PILOTS, _PATIENCE = 8, 3


@dataclass(frozen=True)
class SparseAscent(Settings):
    """The base of `SparseAdam`, `SparseAdaGrad` (which explains the settings) and `SparseSGD`; use one of those."""

    learning_rate: Positive = 0.1
    steps: Count | None = None
    final_share: PositiveShare = 0.01
    hyper_learning_rate: ShareBelowOne = 1e-3
    hyper_start: Share = 0.1
    tail_share: Share = 0.25

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 1, as a share of the largest.

        Without a number of steps, `Plateau.share` multiplies it.
        """
        return 1.0 if self.steps is None else self.final_share ** ((step - 1) / max(self.steps - 1, 1))

    @abstractmethod
    def direction(self, gradient: Tensor, name: str, place: Place, state: dict[str, Tensor]) -> Tensor:
        """Return the step of an array's touched entries for the learning rate 1, and update the state there."""

    @abstractmethod
    def start_state(self, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the state before the first step."""

    def run(self, objective: Any, model: Model, trace: Trace, generator: torch.Generator) -> Model:
        """Return the model after the last step, or the best one before a divergence."""
        if isinstance(objective, Sampleable):
            if self.steps is None:
                # The optimum can be computed, and steps on samples would gain nothing there: the weights in closed
                # form or by Newton's method, the hyperparameters as with optimizer="auto".
                return Auto().run(objective, model, trace, generator) if self.hyper_learning_rate > 0 else model
            whole, objective = objective, objective.sampled()
            if trace.log is not None and trace.log.objective is whole:
                trace.log.objective = objective  # the checkpoint is of the objective that takes the steps
        if not isinstance(objective, SampledObjective):
            raise InvalidInputError(
                f"optimizer={type(self).__name__}(...) is for inference.QuadruplyStochastic and RelevanceVectorMachine"
                '; use "auto", Adam or LBFGS with this inference.'
            )
        return SparseRun(self, objective, model, trace).go()


class SparseRun:
    """One sparse ascent: the arrays with their state, Adam on the hyperparameters, and looks back at the last steps."""

    def __init__(self, settings: SparseAscent, objective: SampledObjective, model: Model, trace: Trace) -> None:
        self.settings, self.objective, self.trace = settings, objective, trace
        self.model = objective.begin(model, moves_hyperparameters=settings.hyper_learning_rate > 0)
        names = objective.learned_names(self.model) if settings.hyper_learning_rate > 0 else ()
        # What is not learned here keeps its start value.
        self.space = ParameterSpace(self.model, "log")
        chosen = [label.split("[")[0] in names for label in self.space.labels]
        self.moving = torch.tensor(chosen, dtype=torch.float64)
        self.vector = self.space.encode(self.model)
        self.first, self.second = torch.zeros_like(self.vector), torch.zeros_like(self.vector)
        self.arrays, self.units = objective.arrays(), objective.units()
        self.state = settings.start_state(self.arrays)
        self.step = self.hyper_steps = 0
        self.values: list[float] = []
        self.norm = 0.0
        #: mean and standard error of estimates at the start
        self.start = math.nan, math.nan
        #: successive windows whose mean was far below that of the start
        self.below = 0
        #: mean of the best window, and the state at its end
        self.best_value = -math.inf
        self.best = self.vector, {name: array.clone() for name, array in self.arrays.items()}
        steps = settings.steps
        self.plateau = None if steps is not None else Plateau(settings.final_share, 1e-3 * objective.n_observations)
        self.last = _MOST_STEPS if steps is None else steps
        self.every = _LOOK_STEPS if steps is None else max(1, steps // _REPORTS)
        self.tail: TailAverage | None = None
        self.interrupted = False

    def go(self) -> Model:
        """Ascend, and return the model at the end.

        If rows of a table on disk cannot be read, the checkpoint is written before the error is raised.
        """
        # A step moves numbers in place: Ctrl-C ends the ascent between two of them.
        with asked_between_steps() as interruption:
            return self._ascend(interruption)

    def _ascend(self, interruption: Interruption) -> Model:
        self.trace.meter.phase("learning", self.settings.steps, then=0.0)
        if not self._resume():
            self._look_at_start()
        while True:
            if interruption.wanted and not self.interrupted and self.step < self.last:
                self._interrupt(interruption)
            at_end = self.step == self.last or (self.plateau is not None and self.plateau.ended)
            # A run that is resumed after an error can stand at a step whose window has ended already.
            due = at_end or (self.step % self.every == 0 and (self.values or not self.step))
            if due and not self._look_back():
                return self.model
            if at_end:
                break
            self.step += 1
            try:
                sound = self._take_step()
            except UnreadableRowsError:  # nothing has moved yet
                self.step -= 1
                self._save()
                raise
            if not sound:
                return self._stop("the estimate or its gradient is not finite")
            interruption.keep()
        if self.tail is not None:
            self.tail.settle(self.step)
        try:
            self.objective.settle(self.model)
        except UnreadableRowsError:
            self._save()
            raise
        return self.model

    def _interrupt(self, interruption: Interruption) -> None:
        """End the ascent at the last step taken; the checkpoint is written first, so that it shows no interruption."""
        self._save()
        self.trace.log = None
        self.last, self.interrupted, interruption.cut = self.step, True, True

    def _take_step(self) -> bool:
        settings, share = self.settings, self.settings.rate(self.step)
        if self.plateau is not None:
            share *= self.plateau.share
        learns = bool(self.moving.any()) and self.step > settings.hyper_start * (settings.steps or USUAL_STEPS)
        found = self.objective.sample(self.model, hyperparameters=learns)
        if not math.isfinite(found.value):
            return False
        changes, total = {}, 0.0
        for name, gradient in found.gradient.items():
            total += float(gradient.double().square().sum())
            direction = settings.direction(gradient, name, found.place(name), self.state)
            changes[name] = direction.mul_(settings.learning_rate * share * self.units.get(name, 1.0))
        if not math.isfinite(total):
            return False
        self._begin_tail(changes)
        for name, change in changes.items():
            array, place = self.arrays[name], found.place(name)
            place.write(array, place.read(array) + change)
            if self.tail is not None:
                self.tail.add(name, place, change, self.step)
        self.objective.moved(found, changes)
        if learns and not self._move_hyperparameters(found.hyperparameters, share):
            return False
        self.values.append(found.value)
        if self.plateau is not None:
            self.plateau.add(found.value)
        self.norm = math.sqrt(total) / self.objective.n_observations
        return True

    def _begin_tail(self, moving: Iterable[str]) -> None:
        """Start the mean of the iterates where the last part of the steps starts, or where the rate has fallen."""
        share = self.settings.tail_share
        if self.plateau is not None:
            begins = share > 0 and self.plateau.fresh and self.plateau.share < 1
        else:
            begins = self.step == self.last - int(share * self.last) + 1
        if begins:
            self.tail = TailAverage(self.arrays, moving, self.step - 1)

    def _move_hyperparameters(self, by_name: dict[str, Tensor], share: float) -> bool:
        zeros = {name: torch.zeros_like(value) for name, value in self.model.parameters().items()}
        gradient = self.space.pull_back({**zeros, **by_name}, self.vector) * self.moving
        if not bool(torch.isfinite(gradient).all()):
            return False
        self.hyper_steps += 1
        self.first.lerp_(gradient, 0.1)
        self.second.lerp_(gradient.square(), 0.001)
        corrected = (self.second / (1 - 0.999**self.hyper_steps)).sqrt() + 1e-12
        rate = self.settings.hyper_learning_rate * share
        moved = self.vector + rate * (self.first / (1 - 0.9**self.hyper_steps)) / corrected
        self.vector = self.space.box.clip(moved)
        self.model = self.space.decode(self.vector)
        return in_range(self.model)

    # Looking back ---------------------------------------------------------------------------------------------------

    def _look_at_start(self) -> None:
        found = [self.objective.sample(self.model, hyperparameters=False).value for _ in range(_PILOTS)]
        pilots = torch.tensor(found, dtype=torch.float64)
        if not bool(torch.isfinite(pilots).all()):
            raise NonFiniteError(
                "The bound is not finite where the fit starts. Give start values nearer to the data's scale, or a "
                "larger noise_variance."
            )
        self.start = float(pilots.mean()), float(pilots.std() / math.sqrt(_PILOTS))

    def _look_back(self) -> bool:
        """Record the last window, and keep its state if it is the best; return False where the fit has diverged."""
        values = torch.tensor(self.values, dtype=torch.float64)
        mean = float(values.mean()) if len(values) else None
        self._record(mean)
        self.values = []
        if mean is None:
            return True
        error = float(values.std() / math.sqrt(len(values))) if len(values) > 1 else 0.0
        # The start costs nothing, so a fit that stays clearly below it has diverged.
        start, start_error = self.start
        far_below = mean < start - 4 * (error + start_error) - 0.1 * abs(start)
        self.below = self.below + 1 if far_below else 0
        if self.below >= _PATIENCE or (far_below and self.step == self.last):
            self._stop(f"the bound, now {mean:.4g}, stays far below where it began, {start:.4g}")
            return False
        if mean >= max(self.best_value, start):
            self.best_value, self.best = mean, (self.vector, self.best[1])
            for name, array in self.arrays.items():
                self.best[1][name].copy_(array)
        return True

    def _stop(self, cause: str) -> Model:
        """Go back to the best state and warn."""
        self.vector, kept = self.best
        for name, array in self.arrays.items():
            array.copy_(kept[name])
        self.model = self.space.decode(self.vector)
        self.objective.settle(self.model)
        self.trace.stopped = True
        warn(
            f"The fit stopped at step {self.step} of {self.last}: {cause}. The best state before it was kept."
            f" Use a smaller learning_rate of {type(self.settings).__name__} (now {self.settings.learning_rate:g}).",
            FitWarning,
        )
        return self.model

    def _record(self, mean: float | None) -> None:
        self._keep()
        step = Step(self._stage(), self.trace.history.elapsed(), mean, self.norm, natural_values(self.model))
        self.trace.record(self.objective, self.model, step, self.step)

    def _stage(self) -> str:
        """Return the stage for the history; that of the last step says why the fit ended."""
        if self.interrupted and self.step == self.last:
            return "sparse, interrupted"
        if self.plateau is None:
            return "sparse"
        if self.plateau.ended:
            return "sparse, nothing gained at the smallest rate"
        return (
            f"sparse, the most steps ({self.last})"
            if self.step == self.last
            else f"sparse, rate {self.plateau.share:.2g}"
        )

    def _save(self) -> None:
        """Write the checkpoint: an error is about to end the fit."""
        self._keep()
        self.trace.write(self.objective)

    def _keep(self) -> None:
        """Give the checkpoint everything that the next steps depend on."""
        numbers = [self.step, self.hyper_steps, *self.start, self.below, self.best_value, self.norm]
        state = {"last": self.vector, "first": self.first, "second": self.second, "best": self.best[0]}
        state["numbers"] = torch.tensor(numbers, dtype=torch.float64)
        state["values"] = torch.tensor(self.values, dtype=torch.float64)
        if self.plateau is not None:
            state["plateau"] = self.plateau.state()
        tail = {} if self.tail is None else self.tail.state()
        kinds = (("array", self.arrays), ("state", self.state), ("best array", self.best[1]), ("tail", tail))
        for kind, arrays in kinds:
            state |= {f"{kind}.{name}": value for name, value in arrays.items()}
        self.trace.keep(self.objective, **state)

    def _resume(self) -> bool:
        """Take over the state of a killed run, if there is one; the log restores the objective's own part."""
        kept = self.trace.resume(self.objective, self.space)
        if kept is None:
            return False
        self.vector, self.first, self.second = (kept[name].clone() for name in ("last", "first", "second"))
        step, hyper_steps, *start, below, self.best_value, self.norm = kept["numbers"].tolist()
        self.step, self.hyper_steps, self.below = int(step), int(hyper_steps), int(below)
        self.start, self.values = (start[0], start[1]), kept["values"].tolist()
        self.best = kept["best"], self.best[1]
        self.model = self.space.decode(self.vector)
        if self.plateau is not None:
            self.plateau.take_over(kept["plateau"])
        for kind, arrays in (("array", self.arrays), ("state", self.state), ("best array", self.best[1])):
            for name, array in arrays.items():
                array.copy_(kept[f"{kind}.{name}"])
        tail = {name.removeprefix("tail."): value for name, value in kept.items() if name.startswith("tail.")}
        if tail:
            moving = [name for name in self.arrays if name in tail]
            self.tail = TailAverage(self.arrays, moving, 0)
            self.tail.take_over(tail)
        return True


# When a noisy ascent stops gaining: its learning rate falls, and at the smallest rate the ascent ends -----------------


#: Factor of the rate when nothing is gained.
_FALL = 0.4
#: Estimates at one rate before the first comparison of their halves, and most estimates at one rate.
_FEWEST, _MOST = 400, 3200
#: Standard errors of the gain that a decision allows for.
_ERRORS = 2.0


class Plateau:
    """Compare the two halves of the estimates at one learning rate, each time that their number has doubled.

    The rate, ``share`` of the largest, falls, and the comparison starts again, in two cases. The later half is higher
    by less than what ``matters``, even with the error added. Or a second comparison still shows no gain beyond the
    error: what remains is then the noise of the steps themselves, which a smaller rate reduces. One comparison within
    the error decides nothing, so a noisy objective gets more estimates and is not stopped by its noise. At most 3,200
    are made at one rate. The ascent ends below ``final_share``.
    """

    def __init__(self, final_share: float, matters: float) -> None:
        self.final_share, self.matters = final_share, matters
        self.share = 1.0
        self._values: list[float] = []
        self._due = _FEWEST

    @property
    def ended(self) -> bool:
        """Whether nothing was gained at the smallest rate."""
        return self.share < self.final_share

    @property
    def fresh(self) -> bool:
        """Whether nothing has been estimated at this rate."""
        return not self._values

    def add(self, value: float) -> None:
        """Add an estimate of the objective, and lower the rate where a comparison says so."""
        self._values.append(value)
        if len(self._values) < self._due:
            return
        values = torch.tensor(self._values, dtype=torch.float64)
        # The first quarter is left out: a start, or a new rate, takes some steps to settle.
        first, second = values[len(values) // 4 :].chunk(2)
        gain = float(second.mean() - first.mean())
        error = math.sqrt(float(first.var() / len(first) + second.var() / len(second)))
        small = gain + _ERRORS * error < self.matters or gain < -_ERRORS * error
        hidden = len(values) > _FEWEST and gain < _ERRORS * error
        if small or hidden or len(values) >= _MOST:
            self.share *= _FALL
            self._values, self._due = [], _FEWEST
        else:
            self._due *= 2

    def state(self) -> Tensor:
        """Return everything as one vector, for a checkpoint."""
        return torch.tensor([self.share, self._due, *self._values], dtype=torch.float64)

    def take_over(self, state: Tensor) -> None:
        """Go on from a `state`."""
        self.share, due, *self._values = state.tolist()
        self._due = int(due)


# The mean of an ascent's last iterates, updated only where steps touch them -------------------------------------------


class TailAverage:
    """The mean of some arrays, which are moved in place, over all steps after a first one.

    Steps on samples end in a cloud about the optimum, as wide as the learning rate makes it, and their mean is at its
    centre (Polyak and Juditsky 1992, https://doi.org/10.1137/0330046). The change of step s is missing from the s - 1
    iterates before it. The mean of N iterates is therefore the last one less ``sum_s (s - 1) change_s / N``, and that
    sum grows only where a step touches the arrays.
    """

    def __init__(self, arrays: dict[str, Tensor], names: Iterable[str], step: int) -> None:
        self._arrays = {name: arrays[name] for name in names}
        self.first = step
        #: what the last iterates lack, summed over all iterates
        self._missing = {name: torch.zeros_like(array) for name, array in self._arrays.items()}

    def add(self, name: str, place: Place, change: Tensor, step: int) -> None:
        """Follow a change of some entries of an array in a step."""
        missing = self._missing[name]
        place.write(missing, place.read(missing) + change * (step - 1 - self.first))

    def settle(self, step: int) -> None:
        """Put the means up to a step into the arrays, once: a run that is resumed after it has nothing left to do."""
        if step <= self.first:
            return
        for name, array in self._arrays.items():
            array -= self._missing[name] / (step - self.first)
            self._missing[name].zero_()

    def state(self) -> dict[str, Tensor]:
        """Return everything."""
        return {"first": torch.tensor(self.first), **self._missing}

    def take_over(self, state: dict[str, Tensor]) -> None:
        """Go on from a `state`."""
        self.first = int(state["first"])
        for name, missing in self._missing.items():
            missing.copy_(state[name])
