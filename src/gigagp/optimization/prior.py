"""Weak log-normal priors that keep fits on small subsets from collapsing, and whose weight vanishes with more rows.

On a few hundred rows the likelihood alone may drive the noise to zero (pol: test NLL 11 to 112). It also sends the
lengthscales of irrelevant inputs to any bound, which takes most of the evaluations. A prior with a width of one to
two e-folds on each log hyperparameter prevents both. At a thousand rows it has a thousandth of the likelihood's weight.
Smooth functions have long lengthscales and large variances: with two thirds of these widths errors on Friedman's
functions were larger by 5 % on average, and with half as much again searches ended in poor optima.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from gigagp.kernels import Kernel, LocalVariance, Outputs, Product, ScaleMap, Sum, White
from gigagp.model.model import NOISE
from gigagp.optimization.objective import Objective
from gigagp.optimization.space import ParameterSpace
from gigagp.optimization.trace import Trace

_NOISE_SCALE = 0.3  # of the targets' standard deviation
_WIDTHS = {"lengthscale": 2.0, "variance": 1.5}  # in e-folds; 1 for others


class WeakPrior:
    """Independent normal priors on the coordinates of a log `ParameterSpace`; ``centre`` and ``precision`` are (p,).

    The priors of lengthscales are centred at the root of ``n_inputs``. Inputs that share a lengthscale, such as the
    one-hot columns of a categorical column, count as one. ``target_variance`` scales the priors of signal and noise.
    """

    def __init__(self, space: ParameterSpace, n_inputs: int, target_variance: float) -> None:
        log_target_scale = 0.5 * math.log(target_variance)
        noises = {NOISE, *_white_terms(space.template.kernel)}
        centres = {
            "lengthscale": 0.5 * math.log(n_inputs - _shared_inputs(space.template.kernel)),
            NOISE: math.log(_NOISE_SCALE) + log_target_scale,
            "variance": log_target_scale,
            "angle": math.log(180.0),  # half a turn to either side of the same direction as 0
        }
        names = [label.split("[")[0] for label in space.labels]
        kinds = [NOISE if name in noises else name.split(".")[-1] for name in names]
        self.centre = torch.tensor([centres.get(kind, 0.0) for kind in kinds], dtype=torch.float64)
        widths = [_WIDTHS.get(kind, 1.0) for kind in kinds]
        self.precision = torch.tensor(widths, dtype=torch.float64).pow(-2)

    def penalty(self, vector: torch.Tensor) -> float:
        """Return minus the log density up to a constant; free numbers have no prior."""
        return 0.5 * float(self.precision @ (vector[: len(self.centre)] - self.centre).square())

    def gradient(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the gradient of `penalty`."""
        gradient = torch.zeros_like(vector)
        gradient[: len(self.centre)] = self.precision * (vector[: len(self.centre)] - self.centre)
        return gradient


def _shared_inputs(kernel: Kernel) -> int:
    """Return by how many inputs the lengthscales are fewer, where groups of inputs share one."""
    return max((len(leaf.groups) - max(leaf.groups) - 1 for leaf in kernel.leaves() if leaf.groups), default=0)


def _white_terms(kernel: Kernel) -> list[str]:
    """Return the names of variances that act as noise on every row, like the model's own noise variance."""
    if isinstance(kernel, Sum):
        return [f"{i}.{name}" for i, part in enumerate(kernel.parts) for name in _white_terms(part)]
    of_noise = {White, Outputs}, {White, LocalVariance}, {White, ScaleMap}
    if isinstance(kernel, Product) and {type(part) for part in kernel.parts} in of_noise:
        return [f"{i}.variance" for i, part in enumerate(kernel.parts) if "variance" in part.parameters()]
    return ["variance"] if isinstance(kernel, White) else []


def loss(
    trace: Trace, objective: Objective, space: ParameterSpace, stage: str, prior: WeakPrior | None = None
) -> Callable[[torch.Tensor], tuple[float | None, torch.Tensor] | None]:
    """Return a function to minimise: minus the objective, plus the prior's penalty, in nats per observation.

    It returns a value and a gradient. The value is None if the objective has none, and the result is None if the
    evaluation was not finite.
    """
    n = objective.n_observations

    def evaluate(vector: torch.Tensor) -> tuple[float | None, torch.Tensor] | None:
        outcome = trace.evaluate(objective, space, vector, stage)
        if outcome is None:
            return None
        evaluation, gradient = outcome
        penalty = 0.0 if prior is None else prior.penalty(vector)
        slope = 0.0 if prior is None else prior.gradient(vector)
        value = None if evaluation.value is None else (penalty - evaluation.value) / n
        return value, (slope - gradient) / n

    return evaluate
