"""L-BFGS on unconstrained hyperparameters, for deterministic objectives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from gigagp.errors import InvalidInputError
from gigagp.model.model import Model
from gigagp.optimization.objective import Objective
from gigagp.optimization.prior import loss
from gigagp.optimization.quasi_newton import QuasiNewton, minimise
from gigagp.optimization.space import ParameterSpace, TransformName
from gigagp.optimization.trace import Trace
from gigagp.settings.fields import Count, Positive, Settings

#: Predicted gain in nats per observation that is not worth a step, with values and with gradients alone.
_TOLERANCE, _TOLERANCE_WITHOUT_VALUES = 1e-10, 1e-4


@dataclass(frozen=True)
class LBFGS(Settings):
    """Limited-memory BFGS ascent on the log marginal likelihood.

    When to use: with exact inference, or with fixed probes (``Iterative(warm_start=True)``), so that the same
    hyperparameters always give the same gradient.

    Parameters
    ----------
    steps : int, default 100
        Largest number of accepted steps.
    tolerance : float or None, default None
        The loop ends when the predicted gain is below this many nats per observation. None stands for 1e-10, the level
        of rounding, or for 1e-4 with iterative inference, whose gradients are no more accurate than that.
    memory : int, default 10
        Number of curvature pairs that are kept.
    max_change : float, default 1.0
        Largest change of an unconstrained hyperparameter in one step.
    transform : {"log", "softplus"}, default "log"
        How hyperparameters are made unconstrained; see `gigagp.optimization.ParameterSpace`.
    """

    steps: Count = 100
    tolerance: Positive | None = None
    memory: Count = 10
    max_change: Positive = 1.0
    transform: TransformName = "log"

    def run(
        self, objective: Objective, model: Model, trace: Trace, generator: torch.Generator, *, stage: str = "lbfgs"
    ) -> Model:
        """Return the model at the last accepted step."""
        if not objective.deterministic:
            raise InvalidInputError(
                "LBFGS needs a deterministic objective, but probes, minibatches or lengths of solves are redrawn at "
                "every step. Use Iterative(warm_start=True), which freezes probes, with a solver without truncation, "
                "SparseVariational(batch_size=None), or optimizer=Adam(), SparseAdam() for QuadruplyStochastic."
            )
        space = ParameterSpace(objective.start(model), self.transform)
        if not space.size:
            return model
        trace.meter.phase("learning", unit="gradient", then=1.0)
        start = space.encode(space.template)
        given = self.tolerance
        settings = QuasiNewton(
            self.steps,
            _TOLERANCE if given is None else given,
            self.max_change,
            self.memory,
            tolerance_without_values=_TOLERANCE_WITHOUT_VALUES if given is None else given,
        )
        accept = partial(trace.accept, objective, space)
        evaluate = loss(trace, objective, space, stage)
        vector, _, finite = minimise(evaluate, start, settings, box=space.box, accept=accept)
        if not finite:
            best = None if torch.equal(vector, start) and len(trace.history) <= 1 else space.decode(vector)
            return trace.stop(space, vector, best, stage)
        return space.decode(vector)
