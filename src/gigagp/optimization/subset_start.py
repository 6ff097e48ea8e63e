"""The start of Lin et al. 2024 for large tables: the average of exact fits on neighbourhoods of random rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch

from gigagp.model.model import Model
from gigagp.optimization.adam import Adam
from gigagp.optimization.lbfgs import LBFGS
from gigagp.optimization.objective import Objective
from gigagp.optimization.space import ParameterSpace
from gigagp.optimization.trace import Trace
from gigagp.runtime.interruption import Interrupted
from gigagp.settings.fields import Count, Range, Settings


@dataclass(frozen=True)
class SubsetStart(Settings):
    """Fit the exact likelihood on the neighbourhoods of a few random rows, average, and continue on all rows.

    When to use: to reproduce the papers on more than 50,000 rows. `Auto` starts from random rows instead, which also
    show the global variation of the target (on pol, neighbourhoods with a constant target spoil the average).

    Parameters
    ----------
    then : Adam or LBFGS
        Optimizer on all rows.
    n_centroids : int, default 10
        Number of random rows.
    n_neighbours : int, default 10_000
        Number of rows in each neighbourhood, including its centroid, by Euclidean distance of the inputs.
    optimizer : Adam or LBFGS, default ``Adam(0.1, 100)``
        Optimizer on each neighbourhood.

    References
    ----------
    Lin et al. 2024, appendix B, "initialisation for n > 50k", after Lin et al. 2023. The paper does not specify the
    average; here hyperparameters are averaged in natural units, and variances as standard deviations.
    """

    then: Adam | LBFGS
    n_centroids: Count = 10
    n_neighbours: Annotated[int, Range(least=2)] = 10_000
    optimizer: Adam | LBFGS = field(default_factory=Adam)

    def run(self, objective: Objective, model: Model, trace: Trace, generator: torch.Generator) -> Model:
        """Return the model after both parts."""
        fitted: list[Model] = []
        trace.meter.phase("choosing a start", min(self.n_centroids, objective.n_rows), unit="neighbourhood")
        for centroid in torch.randperm(objective.n_rows, generator=generator)[: self.n_centroids]:
            rows = objective.nearest(int(centroid), min(self.n_neighbours, objective.n_rows))
            subset, here = objective.subset(rows), model.take_rows(rows)
            try:
                with trace.meter.inside():
                    fitted.append(self.optimizer.run(subset, here, trace, generator))
            except Interrupted:
                if fitted:  # prefer their average to an unfinished fit
                    space = ParameterSpace(here, "log")
                    trace.accept(subset, space, space.encode(_average(here, fitted)))
                raise
            trace.meter.step()
        return self.then.run(objective, _average(model, fitted), trace, generator)


def _average(model: Model, fitted: list[Model]) -> Model:
    """Return the model whose learned hyperparameters are the means over several fits."""
    mean = {}
    for name in model.learned_names():
        values = torch.stack([one.parameters()[name] for one in fitted])
        is_variance = name.split(".")[-1] in ("variance", "noise_variance")
        mean[name] = values.sqrt().mean(0).square() if is_variance else values.mean(0)
    return model.replace(mean)
