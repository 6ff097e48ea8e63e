"""Limited-memory BFGS with a step cap, in a box, with or without function values, and with any first metric.

In a box it is a projected method (Bertsekas 1982): coordinates at a bound that a descent step would push out are held
fixed, and the step in the others is clipped at their bounds.

Two things differ from a textbook L-BFGS. First, no step changes an unconstrained hyperparameter by more than a cap.
Without it, the second step of L-BFGS-B can go to every bound at once and stay there (measured on pol). Second, if only
the gradient is known (iterative inference has no value), a step is shortened when the slope at its end points upwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gigagp.optimization.space import Box
from gigagp.runtime.progress import Approach, current

#: At a vector, the value per observation (None if unknown) and the gradient of the loss; None if not finite.
Evaluate = Callable[[torch.Tensor], "tuple[float | None, torch.Tensor] | None"]
Metric = Callable[[torch.Tensor], torch.Tensor]
#: A step and the change of the gradient along it.
CurvaturePair = tuple[torch.Tensor, torch.Tensor]

_ARMIJO = 1e-4
#: Without values, a step is too long if the slope at its end is positive and exceeds this share of the initial slope.
_OVERSHOT = 0.5
_BACKTRACKS = 6


@dataclass(frozen=True)
class QuasiNewton:
    """Settings of the quasi-Newton loop.

    The loop ends when the decrease that the metric predicts is below ``tolerance`` ``patience`` times in a row.

    Attributes
    ----------
    steps : int
        Largest number of accepted steps.
    tolerance : float or callable
        A callable returns the number at the vector of each gradient.
    max_change : float
        Largest change of any coordinate in one step.
    memory : int
        Number of curvature pairs that are kept.
    tolerance_without_values : float or None
        Replaces ``tolerance`` if there are only gradients, which come from unconverged solves.
    smallest_step : callable
        Returns the predicted decrease below which the loop returns a step of zero at its end, and not the next step.
    unfinished : callable
        Called with the predicted decrease if the steps are used up while it exceeds the tolerance.
    """

    steps: int
    tolerance: float | Callable[[torch.Tensor], float]
    max_change: float = 1.0
    memory: int = 10
    patience: int = 1
    tolerance_without_values: float | None = None
    smallest_step: Callable[[], float] = lambda: 0.0
    unfinished: Callable[[float], None] = lambda predicted: None


def minimise(
    evaluate: Evaluate,
    start: torch.Tensor,
    settings: QuasiNewton,
    metric: Metric | None = None,
    box: Box | None = None,
    accept: Callable[[torch.Tensor], None] = lambda vector: None,
    at_start: tuple[float | None, torch.Tensor] | None = None,
    pairs: list[CurvaturePair] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Minimise from a point of the box.

    The results are the last accepted point, the next step, which is capped and has not been evaluated, and False if the
    loop ended because no further evaluation was finite; the point is then the last finite one. ``evaluate`` returns
    value and gradient at a vector; ``at_start`` has those of the start if they are known. ``metric`` is the product
    with the first inverse Hessian, None for a scaled identity, and ``accept`` is called with every accepted point.
    ``pairs`` are those of a similar loss, to which the search adds its own.
    """
    if not start.numel():
        return start, start, True
    outcome = evaluate(start) if at_start is None else at_start
    vector = start
    if outcome is None:
        return vector, torch.zeros_like(vector), False
    accept(vector)
    value, gradient = outcome
    box = Box.everywhere(len(start)) if box is None else box
    pairs = [] if pairs is None else pairs
    small, tolerance = 0, settings.tolerance
    if value is None and settings.tolerance_without_values is not None:
        tolerance = settings.tolerance_without_values
    way = Approach()
    for iteration in range(settings.steps + 1):
        free = box.free(vector, gradient)
        step = -_inverse_product(gradient, pairs, metric, free)
        if not float(step @ gradient) < 0:  # curvature pairs of a noisy gradient can spoil the metric
            pairs.clear()
            step = -_inverse_product(gradient, pairs, metric, free)
        predicted = -0.5 * float(step @ gradient)
        step = step * min(1.0, settings.max_change / max(float(step.abs().max()), 1e-300))
        step = box.confine(vector, step, gradient * free)
        enough = tolerance(vector) if callable(tolerance) else tolerance
        small = small + 1 if predicted < enough else 0
        current().towards(way.share(predicted, enough))
        if small >= settings.patience and predicted < settings.smallest_step():
            return vector, torch.zeros_like(vector), True
        if small >= settings.patience:
            break
        if iteration == settings.steps:
            if not small:
                settings.unfinished(predicted)
            break
        found, finite = _search(evaluate, box, vector, step, value, gradient)
        if found is None:  # no decrease left, or nothing finite
            return vector, torch.zeros_like(vector), finite
        new_vector, new_value, new_gradient = found
        moved, change = new_vector - vector, new_gradient - gradient
        if float(moved @ change) > 1e-10 * float(moved.norm() * change.norm()):
            pairs.append((moved, change))
            del pairs[: -settings.memory]
        vector, value, gradient = new_vector, new_value, new_gradient
        accept(vector)
    return vector, step, True


def _search(
    evaluate: Evaluate,
    box: Box,
    vector: torch.Tensor,
    step: torch.Tensor,
    value: float | None,
    gradient: torch.Tensor,
) -> tuple[tuple[torch.Tensor, float | None, torch.Tensor] | None, bool]:
    """Return the first point along the step that is finite and, if values are known, low enough.

    Also returns whether any point was finite.
    """
    slope, length, finite = float(step @ gradient), 1.0, False
    for _ in range(_BACKTRACKS if value is not None else 3):
        trial = box.clip(vector + length * step)  # the step may leave the box by rounding
        outcome = evaluate(trial)
        if outcome is None:
            length *= 0.25
            continue
        finite = True
        new_value, new_gradient = outcome
        if value is not None and new_value is not None:
            if new_value <= value + _ARMIJO * length * slope:
                return (trial, new_value, new_gradient), True
            # Minimum of the parabola through both values and the slope, kept inside the step.
            curvature = 2 * (new_value - value - length * slope)
            length *= min(max(-slope * length / curvature, 0.1), 0.5) if curvature > 0 else 0.5
        else:
            new_slope = float(step @ new_gradient)
            if new_slope <= _OVERSHOT * -slope:
                return (trial, None, new_gradient), True
            length *= max(slope / (slope - new_slope), 0.1)  # zero of the line through both slopes
    return None, finite


def _inverse_product(
    gradient: torch.Tensor, pairs: list[CurvaturePair], metric: Metric | None, free: torch.Tensor
) -> torch.Tensor:
    """Apply the two-loop recursion (Nocedal and Wright 2006, Alg. 7.4) with a given metric, in the free coordinates."""
    direction, weights = gradient * free, []
    if not bool(free.all()):
        pairs = [(moved * free, change * free) for moved, change in pairs]
        pairs = [(moved, change) for moved, change in pairs if float(moved @ change) > 0]
    for moved, change in reversed(pairs):
        weight = float(moved @ direction) / float(moved @ change)
        weights.append(weight)
        direction = direction - weight * change
    if metric is not None:
        direction = metric(direction) * free
    elif pairs:
        moved, change = pairs[-1]
        direction = direction * (float(moved @ change) / float(change @ change))
    else:
        # For the first step of a problem of unknown scale, use the gradient with its largest entry scaled to one.
        direction = direction / max(float(gradient.abs().max()), 1e-300)
    for (moved, change), weight in zip(pairs, reversed(weights), strict=True):
        direction = direction + moved * (weight - float(change @ direction) / float(moved @ change))
    return direction
