"""Checks of settings that estimators share, made before any work."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

from gigagp.errors import InvalidInputError
from gigagp.tables.intake import numbers

_DTYPES = {"float64": torch.float64, "float32": torch.float32, "mixed": torch.float64}


def resolve_dtype(dtype: Literal["float64", "float32", "mixed"]) -> torch.dtype:
    """Return the torch dtype for a setting."""
    return _DTYPES[dtype]


def resolve_device(device: str) -> torch.device:
    """Return the device for a setting; ``"auto"`` is CUDA if available, and the CPU otherwise."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        msg = f'device of GPRegressor must be "auto", "cpu" or "cuda"; got {device!r}.'
        raise InvalidInputError(msg) from error
    if resolved.type not in ("cpu", "cuda"):  # meta has no data; others lack float64 or our kernels
        msg = f'device of GPRegressor must be "auto", "cpu" or "cuda"; got {device!r}.'
        raise InvalidInputError(msg)
    if resolved.type == "cpu" and resolved.index:  # torch accepts any index, but there is only one
        msg = f'device of GPRegressor must be "auto", "cpu" or "cuda"; got {device!r}: there is one CPU device.'
        raise InvalidInputError(msg)
    if resolved.type == "cuda" and not torch.cuda.is_available():
        msg = f'device of GPRegressor is {device!r}, but torch finds no CUDA device. Use "auto" or "cpu".'
        raise InvalidInputError(msg)
    return resolved


def known_noise(noise_variance: Any, n_rows: int, name: str = "noise_variance of GPRegressor") -> torch.Tensor | None:
    """Return a given noise variance as float64 of shape () or (n_rows,), or None if none was given."""
    if noise_variance is None:
        return None
    values = numbers(noise_variance, name, finite=False)
    if values.ndim > 1 or (values.ndim == 1 and values.shape[0] != n_rows):
        msg = f"{name} must have shape () or ({n_rows},), one for each row; got {values.shape}."
        raise InvalidInputError(msg)
    if not (np.isfinite(values).all() and (values > 0).all()):
        first = values if values.ndim == 0 else values[~(np.isfinite(values) & (values > 0))][0]
        msg = (
            f"{name} must be positive and finite; got {float(first)!r}. Zero is for kernels "
            "with a White term; for targets without noise give a small variance."
        )
        raise InvalidInputError(msg)
    return torch.from_numpy(values.copy())
