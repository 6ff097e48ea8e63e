"""Guards of the estimators' public methods: results are finite, and errors are gigagp's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from gigagp.errors import GigaGPError, InvalidInputError, NonFiniteError
from gigagp.memory import memory_is_budget

_LinAlgError: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]  # torch's stub lacks it
_REMEDY = (
    'Take standardize=True, dtype="float64", start values nearer to the data\'s scale, or targets and inputs in other '
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
        msg = f"The arithmetic broke down ({error}): numbers in between leave the range of floating point. {_REMEDY}"
        raise NonFiniteError(msg) from error


@contextmanager
def scored() -> Iterator[None]:
    """Turn errors of scikit-learn's metrics about targets and weights into `InvalidInputError`."""
    try:
        yield
    except GigaGPError:
        raise
    except (TypeError, ValueError) as error:
        msg = f"y and sample_weight of score cannot be used: {error}"
        raise InvalidInputError(msg) from error


def finite_prediction(values: np.ndarray) -> np.ndarray:
    """Return means, deviations, covariances or samples; raise `NonFiniteError` if a value is not finite."""
    bad = ~np.isfinite(values)
    if bad.any():
        rows = int(bad.reshape(len(values), -1).any(1).sum())
        msg = (
            f"The prediction is not finite at {rows} of {len(values)} rows: numbers in between leave the range of "
            f"floating point. Predict nearer to the training rows, or fit again. {_REMEDY}"
        )
        raise NonFiniteError(msg)
    return values


def finite_means(means: torch.Tensor) -> None:
    """Raise `NonFiniteError` for a fit whose means are not finite at training rows."""
    rows = int((~torch.isfinite(means).all(1)).sum())
    if rows:
        msg = (
            f"The fit gives means that are not finite at {rows} of {len(means)} training rows: numbers in between "
            f"leave the range of {str(means.dtype).removeprefix('torch.')}. {_REMEDY}"
        )
        raise NonFiniteError(msg)
