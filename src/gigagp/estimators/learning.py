"""Learn hyperparameters and solve for the posterior, to the end or until Ctrl-C or a deadline ends the learning."""

from __future__ import annotations

import math
from typing import Any

import torch

from gigagp.errors import NotPositiveDefiniteError
from gigagp.estimators.guard import finite_means
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.model.model import Model
from gigagp.optimization.optimizer import check_found
from gigagp.optimization.sampled import SampledObjective
from gigagp.optimization.trace import Trace
from gigagp.runtime import processes, termination
from gigagp.runtime.interruption import Interrupted, interruptible
from gigagp.settings.random import spawn

#: Largest number of rows at which the posterior is checked at the end of a fit.
_CHECKED_ROWS = 256


def learn_posterior(
    objective: TableObjective,
    model: Model,
    optimizer: Any,
    trace: Trace,
    generator: torch.Generator,
    deadline: float = math.inf,
) -> Posterior:
    """Return the posterior at the hyperparameters found by the optimizer; None keeps those of the model.

    The first Ctrl-C ends learning at the best hyperparameters so far and sets ``trace.history.interrupted``. The last
    solve is never interrupted by it, because predictions depend on that solve. A deadline ends the learning in time
    for the last solve.
    """
    # Ctrl-C does not come to all processes at once, so that it ends a distributed fit as it ends other programs.
    with interruptible(deadline, handles=processes.current() is None) as interruption:
        if deadline < math.inf:
            interruption.reserve = objective.ending_seconds()
        if optimizer is not None:
            try:
                model = check_found(optimizer.run(objective, model, trace, spawn(generator)), model, optimizer)
            except Interrupted:
                interruption.learning = False
                model = _best_so_far(objective, model, trace)
        interruption.learning = False
        if trace.log is not None:
            termination.write_last(trace.log.write)
        title = "preparing predictions"
        if interruption.requested:
            title += " at the best so far (Ctrl-C again ends at once)"
        trace.meter.phase(title, 1, then=0.0)
        seed = spawn(generator)
        try:
            posterior = _posterior_at(objective, model, seed, learned=optimizer is not None)
        except NotPositiveDefiniteError:
            # Optimizers do not evaluate their last step. If it has no factor, the step before it does.
            if trace.last_sound is None or trace.last_sound.noise_variance.shape != model.noise_variance.shape:
                raise
            posterior = _posterior_at(objective, trace.last_sound, seed, learned=True)
        X = objective.table.X[:_CHECKED_ROWS].to(posterior.dtype)  # which may be wider than what was asked for
        finite_means(posterior.mean(X))
        posterior.check_variances(X)
        trace.history.gap = posterior.gap()
        trace.meter.step()
    if interruption.requested:  # checked after the block, so that a signal at its end is not lost
        trace.history.interrupted = "learning" if interruption.cut else "last solve"
        trace.meter.remark("Ctrl-C ended the learning")
    elif interruption.cut:
        trace.history.interrupted = "time budget"
        trace.meter.remark("the time budget ended the learning")
    return posterior


def _posterior_at(objective: TableObjective, model: Model, generator: torch.Generator, *, learned: bool) -> Posterior:
    """Return the posterior at a learned or given model; what the optimizer does not learn is learned before."""
    objective.learn_remaining(model, generator)
    return objective.learned_posterior(model, generator) if learned else objective.posterior(model, generator)


def _best_so_far(objective: TableObjective, start: Model, trace: Trace) -> Model:
    """Return the model that the optimizer has last accepted, completed for all rows."""
    accepted_by, found = trace.accepted
    if accepted_by is objective:
        return found
    learned = found.parameters()
    model = start.replace({name: learned[name] for name in start.learned_names()})
    # A stage on other rows has no free parameters for these rows. Sampled objectives start when they are learned.
    return model if isinstance(objective, SampledObjective) else objective.start(model)
