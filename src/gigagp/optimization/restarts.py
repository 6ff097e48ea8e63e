"""An optimizer that runs another one from several starts and keeps the best result."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

import torch

from gigagp.errors import UNUSABLE, InvalidInputError
from gigagp.model.model import Model
from gigagp.optimization.auto import Auto
from gigagp.optimization.objective import Objective
from gigagp.optimization.optimizer import Optimizer, check_optimizer, require_deterministic, require_value
from gigagp.optimization.space import ParameterSpace
from gigagp.optimization.trace import Trace
from gigagp.settings.fields import CountOrZero, Range, Settings


@dataclass(frozen=True)
class Restarts(Settings):
    """Run an optimizer from the given start and from random ones, and keep the highest likelihood.

    When to use: if the likelihood has several optima, as with small tables, `Periodic` and `Cosine` kernels, and sums
    of kernels. Values must be comparable, so use exact inference or a bound without minibatches.

    Parameters
    ----------
    optimizer : Optimizer, default ``Auto()``
        Optimizer of each run. Its first run is the same as without restarts, so restarts never end lower.
    restarts : int, default 4
        Number of further runs. The starts of k runs are the first k starts of k + 1 runs.
    spread : float, default 10
        A random start is log-uniform between the kernel's bounds if there are two, and otherwise up to this factor
        below and above the given value.
    """

    optimizer: Optimizer = field(default_factory=Auto)
    restarts: CountOrZero = 4
    spread: Annotated[float, Range(above=1)] = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_optimizer(self.optimizer)
        if self.optimizer is None or isinstance(self.optimizer, Restarts):
            msg = f"optimizer of Restarts must be an optimizer without restarts; got {self.optimizer!r}."
            raise InvalidInputError(msg)

    def run(self, objective: Objective, model: Model, trace: Trace, generator: torch.Generator) -> Model:
        """Return the best of the models found by all runs.

        Raises
        ------
        InvalidInputError
            If the objective has no value, or is redrawn for each evaluation.
        NonFiniteError, NotPositiveDefiniteError
            From the first run; a random start that cannot be evaluated is skipped.
        """
        if not self.restarts or not model.learned_names():
            return self.optimizer.run(objective, model, trace, generator)
        require_deterministic(objective, "Restarts")
        # An objective without values raises an error here, before the first run.
        _value(objective, objective.start(model), trace, "start")
        trace.meter.phase("learning from several starts", 1 + self.restarts, unit="start", then=0.0)
        with trace.meter.inside():
            best = self.optimizer.run(objective, model, trace, generator)
        best_value, stopped = _value(objective, best, trace, "end"), trace.stopped
        for _ in range(self.restarts):
            trace.meter.step()
            start, trace.stopped = self._draw(model, generator), False
            if _value(objective, objective.start(start), trace, "start") == -math.inf:
                continue
            try:
                with trace.meter.inside():
                    found = self.optimizer.run(objective, start, trace, generator)
            except UNUSABLE:
                continue
            value = _value(objective, found, trace, "end")
            if value > best_value:
                best, best_value, stopped = found, value, trace.stopped
        trace.stopped = stopped
        if best_value > -math.inf:
            trace.last_sound = best
        return best

    def _draw(self, model: Model, generator: torch.Generator) -> Model:
        """Return the model with random values for all learned hyperparameters."""
        bounds, values = model.kernel.bounds(), model.parameters()
        drawn = {}
        for name in model.learned_names():
            value = values[name]
            share = torch.rand(value.shape, generator=generator, dtype=torch.float64)
            lower, upper = value / self.spread, value * self.spread
            if name in bounds:
                pair = bounds[name]
                both = (pair.lower > 0) & (pair.upper < math.inf)
                lower, upper = torch.where(both, pair.lower, lower), torch.where(both, pair.upper, upper)
            drawn[name] = lower * (upper / lower) ** share
            if name in bounds:
                drawn[name] = bounds[name].clip(drawn[name])
        return model.replace(drawn)


def _value(objective: Objective, model: Model, trace: Trace, stage: str) -> float:
    """Return the value at a model, or minus infinity if it is not finite."""
    space = ParameterSpace(model, "log")
    found = trace.evaluate(objective, space, space.encode(model), f"restarts, {stage}")
    return -math.inf if found is None else require_value(found[0].value, "Restarts")
