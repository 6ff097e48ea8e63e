"""What every fit does once there is an objective: learn the hyperparameters, then solve for the posterior."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from gigagp import termination
from gigagp.errors import FitInterruptedWarning, NotPositiveDefiniteError, warn
from gigagp.guard import finite_means, guarded
from gigagp.inference.objective import TableObjective
from gigagp.inference.posterior import Posterior
from gigagp.interruption import Interrupted, interruptible
from gigagp.model import Model
from gigagp.optimization.history import History
from gigagp.optimization.optimizer import check_found
from gigagp.optimization.sampled import SampledObjective
from gigagp.optimization.trace import Trace
from gigagp.random import spawn

#: Rows at which a fit is looked at when it is over.
_CHECKED_ROWS = 256


@contextmanager
def whole_or_unchanged(estimator: object, checkpoint: str | PathLike[str] | None = None) -> Iterator[None]:
    """Put an estimator back as it was where a fit in the block fails; `guarded` says how that is told.

    SIGTERM writes the checkpoint first, if there is one.
    """
    before = estimator.__dict__.copy()
    try:
        with guarded(), termination.written_first(checkpoint is not None):
            yield
    except BaseException:
        # The checks of X set n_features_in_ and the names. One assignment: a second Ctrl-C finds nothing half done.
        estimator.__dict__ = before
        raise


def learn_posterior(
    objective: TableObjective, model: Model, optimizer: Any, trace: Trace, generator: torch.Generator
) -> Posterior:
    """Return the posterior at the hyperparameters that the optimizer finds; None keeps those of the model.

    The first Ctrl-C ends the learning at the best hyperparameters so far, and ``trace.history.interrupted`` says so.
    The last solve is never cut: predictions are made of it.
    """
    with interruptible() as interruption:
        if optimizer is not None:
            try:
                model = check_found(optimizer.run(objective, model, trace, spawn(generator)), model, optimizer)
            except Interrupted:
                interruption.learning = False
                model = _best_so_far(objective, model, trace)
        interruption.learning = False
        if trace.log is not None:
            termination.write_last(trace.log.write)
        title = "posterior at the best so far; Ctrl-C again ends at once" if interruption.requested else "posterior"
        trace.meter.start(1, title)
        seed = spawn(generator)
        try:
            posterior = objective.posterior(model, seed)
        except NotPositiveDefiniteError:
            # No optimizer evaluates its last step. Where that one has no factor, the step before it has.
            if trace.last_sound is None or trace.last_sound.noise_variance.shape != model.noise_variance.shape:
                raise
            posterior = objective.posterior(trace.last_sound, seed)
        X = objective.table.X[:_CHECKED_ROWS]
        finite_means(posterior.mean(X))
        posterior.check_variances(X)
        trace.meter.step()
    if interruption.requested:  # after the block: no signal is lost between this line and its end
        trace.history.interrupted = "learning" if interruption.cut else "last solve"
    return posterior


def _best_so_far(objective: TableObjective, start: Model, trace: Trace) -> Model:
    """Return what the optimizer has last accepted, on all rows."""
    accepted_by, found = trace.accepted
    if accepted_by is objective:
        return found
    learned = found.parameters()
    model = start.replace({name: learned[name] for name in start.learned_names()})
    # A stage on other rows knows nothing of the free numbers here. Objectives of samples start when they are learned.
    return model if isinstance(objective, SampledObjective) else objective.start(model)


def warn_of_interruption(history: History, checkpoint: str | PathLike[str] | None) -> None:
    """Warn if Ctrl-C has come in a fit that is over; the estimator has its result by now."""
    if not history.interrupted:
        return
    msg = "Ctrl-C came in the last solve of the fit, which was completed: nothing is missing."
    if history.interrupted == "learning":
        msg = (
            f"Ctrl-C ended the learning after {len(history)} evaluations; the model is fitted at the best "
            "hyperparameters so far."
        )
        if checkpoint is not None and Path(checkpoint).exists():
            msg += f" The checkpoint {checkpoint} stays: the same call goes on from there."
    warn(msg, FitInterruptedWarning)
