"""Evaluations by optimizers: record and show each one, and reject numbers that are not finite."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import torch

from gigagp.errors import FitWarning, NonFiniteError, NotPositiveDefiniteError, warn
from gigagp.model.model import Model
from gigagp.optimization.history import History, Step, natural_values
from gigagp.optimization.objective import Evaluation, Objective
from gigagp.optimization.space import ParameterSpace
from gigagp.runtime import interruption
from gigagp.runtime.progress import Meter
from gigagp.storage.kept_solves import SolveFile

#: From an objective to its scores on validation rows, or to None if it has no posterior available.
Validate = Callable[[Objective], "tuple[float, float] | None"]


class EvaluationLog(Protocol):
    """A record of the evaluations of one objective, for checkpoints; see `gigagp.estimators.checkpoint`."""

    objective: Any
    solves: SolveFile

    def replay(self, vector: torch.Tensor, model: Model) -> tuple[Step, torch.Tensor] | None:
        """Return the next logged step and its gradient, or None at the end of the log."""

    def record(self, vector: torch.Tensor, gradient: torch.Tensor, step: Step) -> None:
        """Log an evaluation."""

    def resume(self) -> tuple[list[Step], dict[str, torch.Tensor]] | None:
        """Return the steps and the last state of an optimizer that starts here, or None if no state was kept."""

    def catch_up(self, model: Model) -> None:
        """Restore the objective's state if it was saved after all logged steps."""

    def keep(self, state: dict[str, torch.Tensor]) -> None:
        """Keep a state from which the optimizer can continue without the results of its earlier evaluations."""

    def write(self) -> bool:
        """Write the log to disk."""

    def remove(self) -> None:
        """Delete the file after a complete fit."""


class Trace:
    """The history and the progress meter of one fit.

    ``validate`` scores an objective at its last evaluation. ``log`` replays the evaluations of an earlier, killed run
    of the same fit.
    """

    def __init__(
        self, history: History, meter: Meter, validate: Validate | None = None, log: EvaluationLog | None = None
    ) -> None:
        self.history = history
        self.meter = meter
        self.validate = validate
        self.log = log
        #: model of the last evaluation that was finite
        self.last_sound: Model | None = None
        #: whether a step that was not finite has ended the fit
        self.stopped = False
        self._accepted: tuple[Objective, ParameterSpace, torch.Tensor] | None = None
        self._singular: NotPositiveDefiniteError | None = None

    def evaluate(
        self, objective: Objective, space: ParameterSpace, vector: torch.Tensor, stage: str
    ) -> tuple[Evaluation, torch.Tensor] | None:
        """Evaluate, record and show; return the evaluation and its unconstrained gradient.

        Returns None if value or gradient are not finite or the matrix cannot be factored; the caller then keeps its
        previous point. Ctrl-C ends the learning here, after the checkpoint has been written, or during the evaluation.
        """
        if interruption.is_pending():
            self.write(objective)
        interruption.check()
        model = space.decode(vector)
        self._singular = None
        log = self._log_of(objective)
        found = None if log is None else log.replay(vector, model)
        if found is not None:
            step, gradient = found
            evaluation = Evaluation(step.objective, {}, step.solve)
            self.history.resume_after(step)
        else:
            evaluation, gradient, step = self._compute(objective, space, vector, model, stage)
            if log is not None:
                log.record(vector, gradient, step)
        self.history.append(step)
        self._show(step)
        finite_value = evaluation.value is None or math.isfinite(evaluation.value)
        if not finite_value or not bool(torch.isfinite(gradient).all()):
            return None
        self.last_sound = model
        return evaluation, gradient

    def accept(self, objective: Objective, space: ParameterSpace, vector: torch.Tensor) -> None:
        """Remember the best point so far, at which Ctrl-C ends the fit.

        Optimizers call it with each point from which they continue: the one with the lowest loss if there are values,
        and otherwise the last one.
        """
        self._accepted = objective, space, vector.clone()
        interruption.keep()

    @property
    def accepted(self) -> tuple[Objective, Model]:
        """The objective of the last accepted point, and the model at that point."""
        assert self._accepted is not None, "Ctrl-C must not end the learning before a point has been accepted"
        objective, space, vector = self._accepted
        return objective, space.decode(vector)

    def record(self, objective: Objective, model: Model, step: Step, done: int | None = None) -> None:
        """Record and show a step that an optimizer evaluated itself, because its numbers do not fit into one vector.

        ``done`` is the number of steps of the phase that have been taken, if it is not one more than before.
        """
        log, nothing = self._log_of(objective), torch.zeros(0, dtype=torch.float64)
        found = None if log is None else log.replay(nothing, model)
        if found is not None:
            step = found[0]
            self.history.resume_after(step)
        else:
            rmse, log_likelihood = self._scores(objective)
            step = replace(step, validation_rmse=rmse, validation_log_likelihood=log_likelihood)
            if log is not None:
                log.record(nothing, nothing, step)
        self.history.append(step)
        self._show(step, done)

    def _log_of(self, objective: Objective) -> EvaluationLog | None:
        return self.log if self.log is not None and self.log.objective is objective else None

    def resume(self, objective: Objective, space: ParameterSpace) -> dict[str, torch.Tensor] | None:
        """Return the last state kept by an optimizer that was killed at this stage of the fit, or None on a first run.

        Its entry ``"last"`` is the vector of the last evaluation.
        """
        log = self._log_of(objective)
        found = None if log is None else log.resume()
        if log is None or found is None:
            return None
        for step in found[0]:
            self.history.resume_after(step)
            self.history.append(step)
            self._show(step)
        self.last_sound = space.decode(found[1]["last"])
        log.catch_up(self.last_sound)
        return found[1]

    def keep(self, objective: Objective, **state: torch.Tensor) -> None:
        """Keep a state from which the optimizer can continue, so that a checkpoint need not hold every gradient."""
        log = self._log_of(objective)
        if log is not None:
            log.keep(state)

    def write(self, objective: Objective) -> None:
        """Write the checkpoint now, if there is one, because the fit is about to end."""
        log = self._log_of(objective)
        if log is not None:
            log.write()

    def _compute(
        self, objective: Objective, space: ParameterSpace, vector: torch.Tensor, model: Model, stage: str
    ) -> tuple[Evaluation, torch.Tensor, Step]:
        started = time.monotonic()
        try:
            evaluation = objective.evaluate(model) if in_range(model) else _not_finite(model)
        except NotPositiveDefiniteError as error:
            self._singular, evaluation = error, _not_finite(model)
        # The posterior may cost as much, and learning must not begin what it cannot end.
        interruption.reserve(2 * (time.monotonic() - started), at_least=True)
        gradient = space.pull_back(evaluation.gradient, vector)
        norm = float(gradient.norm()) / objective.n_observations
        sound = bool(torch.isfinite(gradient).all())  # otherwise the objective is at an earlier model
        scores = self._scores(objective) if sound else (None, None)
        values = natural_values(model)
        step = Step(stage, self.history.elapsed(), evaluation.value, norm, values, evaluation.solve, *scores)
        return evaluation, gradient, step

    def _scores(self, objective: Objective) -> tuple[float, float] | tuple[None, None]:
        return (None if self.validate is None else self.validate(objective)) or (None, None)

    def _show(self, step: Step, done: int | None = None) -> None:
        fields: dict[str, object] = {"stage": step.stage, "gradient": step.gradient_norm}
        if step.objective is not None:
            fields["log likelihood"] = step.objective
        if step.solve is not None:
            fields["residual"] = step.solve.relative_residual_targets
            fields["epochs"] = step.solve.epochs
        if step.validation_rmse is not None:
            fields["validation RMSE"] = step.validation_rmse
        if done is None:
            self.meter.step(**fields)
        else:
            self.meter.reached(done, **fields)

    def stop(self, space: ParameterSpace, vector: torch.Tensor, best: Model | None, stage: str) -> Model:
        """End a fit at a step that is not finite: warn and return the best model, or raise if there is none."""
        step = len(self.history)
        model = space.decode(vector)
        values = space.flatten({**model.parameters(), **model.free})[: space.n_hyperparameters]
        sound = torch.isfinite(values) & (values > 0)
        bad = next((label for label, is_sound in zip(space.labels, sound, strict=True) if not is_sound), None)
        cause = (
            f"hyperparameter {bad} left the range of float64" if bad else "the likelihood or its gradient is not finite"
        )
        if self._singular is not None:
            cause = "the kernel matrix is not positive definite"
        if best is None and self._singular is not None:
            raise self._singular
        if best is None:
            raise NonFiniteError(
                f"The first step of the fit ({stage}) failed: {cause}. Give start values nearer to the data's scale, a "
                'larger noise_variance, or dtype="float64".'
            )
        msg = (
            f"The fit stopped at step {step} ({stage}): {cause}. The best state before it was kept. A smaller learning "
            "rate, a tighter solver tolerance or a larger noise variance avoids this."
        )
        self.stopped = True
        warn(msg, FitWarning)
        return best


def in_range(model: Model) -> bool:
    """Whether every hyperparameter is positive and finite; a step that is too long can leave the range of float64."""
    values = model.parameters()
    learned = [values[name] for name in model.learned_names()]
    return all(0 < number < math.inf for value in learned for number in value.flatten().tolist()) and all(
        bool(torch.isfinite(value).all()) for value in model.free.values()
    )


def _not_finite(model: Model) -> Evaluation:
    """Return the evaluation that represents one that failed."""
    learned = {**model.parameters(), **model.free}
    return Evaluation(None, {name: torch.full_like(value, torch.nan) for name, value in learned.items()})
