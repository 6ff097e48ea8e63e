"""What every optimizer does at each evaluation: record it, show it, and refuse numbers that are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from gigagp.errors import FitWarning, NonFiniteError, NotPositiveDefiniteError, warn
from gigagp.model import Model
from gigagp.optimization.history import History, Step, natural_values
from gigagp.optimization.objective import Evaluation, Objective
from gigagp.optimization.space import ParameterSpace
from gigagp.progress import Meter

#: From an objective to its scores on validation rows, or None where it has no posterior at hand.
Validate = Callable[[Objective], "tuple[float, float] | None"]


class Trace:
    """The history and the progress meter of one fit.

    Parameters
    ----------
    history : History
        Where steps are recorded.
    meter : Meter
        Where they are shown.
    validate : callable or None
        Scores an objective where it was last evaluated.
    """

    def __init__(self, history: History, meter: Meter, validate: Validate | None = None) -> None:
        self.history = history
        self.meter = meter
        self.validate = validate
        #: the model of the last evaluation that was finite
        self.last_sound: Model | None = None
        #: whether a step that is not finite has ended the fit
        self.stopped = False
        self._singular: NotPositiveDefiniteError | None = None

    def evaluate(
        self, objective: Objective, space: ParameterSpace, vector: torch.Tensor, stage: str
    ) -> tuple[Evaluation, torch.Tensor] | None:
        """Evaluate, record and show; return the evaluation and its unconstrained gradient.

        Returns None when value or gradient are not finite, or the matrix has no factor: the caller keeps what it had.
        """
        model = space.decode(vector)
        self._singular = None
        try:
            evaluation = objective.evaluate(model) if in_range(model) else _not_finite(model)
        except NotPositiveDefiniteError as error:
            self._singular, evaluation = error, _not_finite(model)
        gradient = space.pull_back(evaluation.gradient, vector)
        norm = float(gradient.norm()) / objective.n_observations
        sound = bool(torch.isfinite(gradient).all())  # otherwise the objective still stands at an earlier model
        scores = (self.validate(objective) if self.validate is not None and sound else None) or (None, None)
        step = Step(
            stage, self.history.elapsed(), evaluation.value, norm, natural_values(model), evaluation.solve, *scores
        )
        self.history.append(step)
        fields: dict[str, object] = {"stage": stage, "gradient": norm}
        if evaluation.value is not None:
            fields["log likelihood"] = evaluation.value
        if evaluation.solve is not None:
            fields["residual"] = evaluation.solve.relative_residual_targets
            fields["epochs"] = evaluation.solve.epochs
        if scores[0] is not None:
            fields["validation RMSE"] = scores[0]
        self.meter.step(**fields)
        finite_value = evaluation.value is None or math.isfinite(evaluation.value)
        if not finite_value or not bool(torch.isfinite(gradient).all()):
            return None
        self.last_sound = model
        return evaluation, gradient

    def stop(self, space: ParameterSpace, vector: torch.Tensor, best: Model | None, stage: str) -> Model:
        """End a fit at a step that is not finite: warn and return the best model, or raise if there is none."""
        step = len(self.history)
        values = space.flatten(space.decode(vector).parameters())
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
            msg = (
                f"The first step of the fit ({stage}) failed: {cause}. Give start values nearer to the data's scale, a "
                'larger noise_variance, or dtype="float64".'
            )
            raise NonFiniteError(msg)
        msg = (
            f"The fit stopped at step {step} ({stage}): {cause}. The best state before it was kept. A smaller learning "
            "rate, a tighter solver tolerance or a larger noise variance avoids this."
        )
        self.stopped = True
        warn(msg, FitWarning)
        return best


def in_range(model: Model) -> bool:
    """Whether every hyperparameter is a positive finite number: a wild step can leave the range of float64."""
    return all(bool((torch.isfinite(value) & (value > 0)).all()) for value in model.parameters().values())


def _not_finite(model: Model) -> Evaluation:
    """Return what stands in the history for an evaluation that could not be made."""
    return Evaluation(None, {name: torch.full_like(value, torch.nan) for name, value in model.parameters().items()})
