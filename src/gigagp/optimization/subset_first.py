"""Hyperparameters from a subset of the rows, before an optimizer sees all rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch

from gigagp.model.model import Model
from gigagp.optimization.lbfgs import LBFGS
from gigagp.optimization.objective import Objective
from gigagp.optimization.prior import WeakPrior, loss
from gigagp.optimization.quasi_newton import QuasiNewton, minimise
from gigagp.optimization.space import ParameterSpace
from gigagp.optimization.sparse_ascent import SparseAscent
from gigagp.optimization.trace import Trace
from gigagp.settings.fields import Count, Positive, Range, Settings


@dataclass(frozen=True)
class SubsetFirst(Settings):
    """Maximise the objective of a subset of the rows, times a weak prior, and continue from there on all rows.

    When to use: ``optimizer="auto"`` ends with it where `gigagp.inference.QuadruplyStochastic` samples, and for
    likelihoods that are not Gaussian. A Gaussian likelihood of labels or counts prefers other hyperparameters than
    their own likelihood. A thousand rows, with the kernel itself in place of a basis, find those of their own.

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
            found = self._maximise(objective.thin(rows), model.take_rows(rows), trace)
            model = model.replace({name: found.parameters()[name] for name in model.learned_names()})
        if self.then is None or trace.stopped:
            return model
        return self.then.run(objective, model, trace, generator)

    def _maximise(self, objective: Objective, model: Model, trace: Trace) -> Model:
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
        )
        if not finite:
            return trace.stop(space, vector, space.decode(vector) if len(trace.history) > 1 else None, stage)
        return space.decode(vector)
