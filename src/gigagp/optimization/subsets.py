"""Hyperparameters from subsets of the rows, before an optimizer sees all rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import torch

from gigagp.model.model import Model
from gigagp.optimization.adam import Adam
from gigagp.optimization.lbfgs import LBFGS
from gigagp.optimization.objective import Objective
from gigagp.optimization.prior import WeakPrior, loss
from gigagp.optimization.quasi_newton import CurvaturePair, QuasiNewton, minimise
from gigagp.optimization.space import ParameterSpace
from gigagp.optimization.sparse_ascent import SparseAscent
from gigagp.optimization.trace import Trace
from gigagp.runtime.interruption import Interrupted
from gigagp.settings.fields import Count, Positive, Range, Settings

#: Where one row in this many is learned from before the others, the fewest of these, and the seed that draws them.
_SHARE, _FEW, _SEED = 3, 200, 9


@dataclass(frozen=True)
class SubsetFirst(Settings):
    """Maximise the objective of a subset of the rows, times a weak prior, and continue from there on all rows.

    When to use: ``optimizer="auto"`` ends with it where `gigagp.inference.QuadruplyStochastic` samples, and for
    likelihoods that are not Gaussian. A Gaussian likelihood of labels or counts prefers other hyperparameters than
    their own likelihood. A thousand rows, with the kernel itself in place of a basis, find those of their own. A third
    of 600 or more rows comes first, and leaves few steps for all of them.

    Parameters
    ----------
    rows : int, default 1000
        Most rows of the subset.
    steps : int, default 20
        Most accepted quasi-Newton steps on the subset.
    tolerance : float, default 5e-4
        Predicted gain in nats per observation that ends them.
    signal_variance : float or None, default None
        Centre of the prior of the kernel's variance; None: the variance of the targets.
    then : LBFGS, SparseAdam, SparseAdaGrad, SparseSGD or None, default None
        The optimizer on all rows. None: only the weights are fitted to all rows.
    """

    rows: Annotated[int, Range(least=2)] = 1000
    steps: Count = 20
    tolerance: Positive = 5e-4
    signal_variance: Positive | None = None
    then: SparseAscent | LBFGS | None = None

    def run(self, objective: Objective, model: Model, trace: Trace, generator: torch.Generator) -> Model:
        """Return the model after both stages."""
        if model.learned_names():
            rows = objective.draw_rows(min(self.rows, objective.n_rows), generator)
            pairs: list[CurvaturePair] = []
            thin = objective.thin(rows)
            for count in self._counts(len(rows)):
                # The fit's own generator is left as it is.
                drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(_SEED))[:count]
                some = drawn.sort().values.to(rows.device)
                stage = thin.thin(some) if count < len(rows) else thin
                found = self._maximise(stage, model.take_rows(rows[some]), trace, pairs)
                model = model.replace({name: found.parameters()[name] for name in model.learned_names()})
                if trace.stopped:
                    break
        if self.then is None or trace.stopped:
            return model
        return self.then.run(objective, model, trace, generator)

    @staticmethod
    def _counts(rows: int) -> tuple[int, ...]:
        """Return the sizes of successive subsets: steps on a few rows cost little, and leave few for all of them."""
        return (rows,) if rows < _FEW * _SHARE else (rows // _SHARE, rows)

    def _maximise(self, objective: Objective, model: Model, trace: Trace, pairs: list[CurvaturePair]) -> Model:
        space = ParameterSpace(objective.start(model), "log")
        prior = WeakPrior(space, objective.n_inputs, self.signal_variance or objective.target_variance)
        stage = f"{'likelihood' if objective.is_likelihood else 'bound'}, {objective.n_rows} rows"
        trace.meter.phase(f"choosing a start on {objective.n_rows:,} rows")
        start = space.encode(space.template)
        vector, _, finite = minimise(
            loss(trace, objective, space, stage, prior),
            start,
            QuasiNewton(self.steps, self.tolerance, patience=2),
            box=space.box,
            accept=partial(trace.accept, objective, space),
            pairs=pairs,
        )
        if not finite:
            return trace.stop(space, vector, space.decode(vector) if len(trace.history) > 1 else None, stage)
        return space.decode(vector)


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
