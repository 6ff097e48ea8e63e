"""Guards of the estimators' public methods: results are finite, and errors are gigagp's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import numpy as np
import torch

from gigagp.errors import FitInterruptedWarning, GigaGPError, InvalidInputError, NonFiniteError, warn
from gigagp.optimization.history import History
from gigagp.runtime import termination
from gigagp.runtime.memory import memory_is_budget
from gigagp.runtime.run import current_run, running

_LinAlgError: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]  # torch's stub lacks it
_REMEDY = (
    'Use standardize=True, dtype="float64", start values nearer to the data\'s scale, or targets and inputs in other '
    "units."
)


@contextmanager
def guarded() -> Iterator[None]:
    """Turn failed allocations into `MemoryBudgetError`, and failed factors and overflows into `NonFiniteError`.

    It is also a decorator. Solvers raise errors for expected difficulties themselves; this covers unexpected ones.
    """
    try:
        with memory_is_budget():
            yield
    except (_LinAlgError, np.linalg.LinAlgError, OverflowError) as error:
        msg = f"The arithmetic broke down ({error}): intermediate results leave the range of floating point. {_REMEDY}"
        raise NonFiniteError(msg) from error


@contextmanager
def scored() -> Iterator[None]:
    """Turn errors of scikit-learn's metrics about targets and weights into `InvalidInputError`."""
    try:
        yield
    except GigaGPError:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"y and sample_weight of score cannot be used: {error}") from error


def finite_prediction(values: np.ndarray) -> np.ndarray:
    """Return means, deviations, covariances or samples; raise `NonFiniteError` if a value is not finite."""
    bad = ~np.isfinite(values)
    if bad.any():
        rows = int(bad.reshape(len(values), -1).any(1).sum())
        raise NonFiniteError(
            f"The prediction is not finite at {rows} of {len(values)} rows: intermediate results leave the range of "
            f"floating point. Predict nearer to the training rows, or fit again. {_REMEDY}"
        )
    return values


def finite_means(means: torch.Tensor) -> None:
    """Raise `NonFiniteError` for a fit whose means are not finite at training rows."""
    rows = int((~torch.isfinite(means).all(1)).sum())
    if rows:
        raise NonFiniteError(
            f"The fit gives means that are not finite at {rows} of {len(means)} training rows: intermediate "
            f"results leave the range of {str(means.dtype).removeprefix('torch.')}. {_REMEDY}"
        )


@contextmanager
def whole_or_unchanged(estimator: object, checkpoint: str | PathLike[str] | None = None) -> Iterator[None]:
    """Restore the estimator if a fit in the block fails; errors are converted as by `guarded`.

    Warnings are kept for the estimator, and SIGTERM writes the checkpoint first, if there is one.
    """
    before = estimator.__dict__.copy()
    try:
        with guarded(), termination.written_first(checkpoint is not None), running(told=current_run().told or []):
            yield
    except BaseException:
        # Validating X has set n_features_in_ and the feature names. A single assignment restores everything, so that a
        # second Ctrl-C cannot leave the estimator half restored.
        estimator.__dict__ = before
        raise


def warn_of_interruption(history: History, checkpoint: str | PathLike[str] | None) -> None:
    """Warn if Ctrl-C was pressed during a fit; call this once the estimator holds the result."""
    if history.interrupted in ("", "time budget"):
        return
    msg = "Ctrl-C came after the learning. The fit was completed."
    if history.interrupted == "learning":
        msg = (
            f"Ctrl-C ended the learning after {len(history)} evaluations; the model is fitted at the best "
            "hyperparameters so far."
        )
        if checkpoint is not None and Path(checkpoint).exists():
            msg += f" The checkpoint {checkpoint} stays: the same call goes on from there."
    warn(msg, FitInterruptedWarning)
