"""Adam on unconstrained hyperparameters (Kingma and Ba 2015), the outer loop of Lin et al. 2024."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch

from gigagp.model.model import Model
from gigagp.optimization.objective import Objective
from gigagp.optimization.space import ParameterSpace, TransformName
from gigagp.optimization.trace import Trace, in_range
from gigagp.settings.fields import Count, Positive, Remedy, Settings, Share, ShareBelowOne


@dataclass(frozen=True)
class Adam(Settings):
    """Adam ascent on the log marginal likelihood.

    When to use: with redrawn probes, which make the objective noisy, or to reproduce a paper. From unit lengthscales it
    needs 50 to 100 steps; ``optimizer="auto"`` needs about ten gradients.

    Parameters
    ----------
    learning_rate : float, default 0.1
        Step size in unconstrained hyperparameters.
    steps : int, default 100
        Number of outer steps; each takes one solve and one gradient.
    beta1, beta2, epsilon : float, defaults 0.9, 0.999 and 1e-8
        The decay rates of the two moments, and the number added to the root of the second.
    transform : {"softplus", "log"}, default "softplus"
        How hyperparameters are made unconstrained; see `gigagp.optimization.ParameterSpace`.
    final_share : float, default 1
        Learning rate of the last step as a share of that of the first; it falls linearly. Wenger et al. 2024 use 0.1.
    """

    learning_rate: Positive = 0.1
    steps: Annotated[Count, Remedy("To keep the hyperparameters use optimizer=None.")] = 100
    beta1: ShareBelowOne = 0.9
    beta2: ShareBelowOne = 0.999
    epsilon: Positive = 1e-8
    transform: TransformName = "softplus"
    final_share: Share = 1.0

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 1."""
        passed = (step - 1) / max(self.steps - 1, 1)
        return self.learning_rate * (1 - passed * (1 - self.final_share))

    def run(self, objective: Objective, model: Model, trace: Trace, generator: torch.Generator) -> Model:
        """Return the model after the last step, or the last one with a finite evaluation."""
        space = ParameterSpace(objective.start(model), self.transform)
        if not space.size:
            return model
        vector = space.encode(space.template)
        first, second = torch.zeros_like(vector), torch.zeros_like(vector)
        trace.meter.phase("learning", self.steps, then=1.0)
        best: Model | None = None
        done, highest = 0, -math.inf
        kept = trace.resume(objective, space)
        if kept is not None:
            vector, first, second, done = kept["vector"], kept["first"], kept["second"], int(kept["step"])
            best = space.decode(kept["last"])
            trace.accept(objective, space, kept["last"])
        for step in range(done + 1, self.steps + 1):
            outcome = trace.evaluate(objective, space, vector, "adam")
            if outcome is None:
                return trace.stop(space, vector, best, "adam")
            last, best = vector, space.decode(vector)
            value = outcome[0].value if objective.deterministic else None
            if value is None or value >= highest:
                trace.accept(objective, space, vector)
                highest = value if value is not None else highest
            gradient = -outcome[1]
            first = self.beta1 * first + (1 - self.beta1) * gradient
            second = self.beta2 * second + (1 - self.beta2) * gradient.square()
            corrected = (second / (1 - self.beta2**step)).sqrt() + self.epsilon
            vector = space.box.clip(vector - self.rate(step) * (first / (1 - self.beta1**step)) / corrected)
            trace.keep(objective, last=last, vector=vector, first=first, second=second, step=torch.tensor(step))
        final = space.decode(vector)
        return final if in_range(final) else trace.stop(space, vector, best, "adam")
