"""Checks of what users hand in, made before any work."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gigagp.errors import InvalidInputError

_DTYPES = {"float64": torch.float64, "float32": torch.float32, "mixed": torch.float64}


def resolve_dtype(dtype: str) -> torch.dtype:
    """Return the torch dtype of a setting."""
    if dtype not in _DTYPES:
        msg = f'dtype of GPRegressor must be "float64", "float32" or "mixed"; got {dtype!r}.'
        raise InvalidInputError(msg)
    return _DTYPES[dtype]


def resolve_device(device: str) -> torch.device:
    """Return the device of a setting; ``"auto"`` is CUDA where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        msg = f'device of GPRegressor must be "auto", "cpu" or "cuda"; got {device!r}.'
        raise InvalidInputError(msg) from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        msg = f'device of GPRegressor is {device!r}, but torch finds no CUDA device. Use "auto" or "cpu".'
        raise InvalidInputError(msg)
    return resolved


def finite_columns(values: np.ndarray, name: str, column_names: np.ndarray | None) -> np.ndarray:
    """Return float64 values; refuse NaN and infinity, naming the first column and row that has one."""
    values = np.asarray(values)
    if np.iscomplexobj(values):
        msg = f"{name} must be real. Complex data not supported."
        raise InvalidInputError(msg)
    values = values.astype(np.float64, copy=False)
    bad = ~np.isfinite(values)
    if bad.any():
        row = int(np.flatnonzero(bad.reshape(bad.shape[0], -1).any(1))[0])
        what = "NaN" if np.isnan(values[bad]).any() else "infinity"
        where = f"row {row}"
        if values.ndim == 2:
            column = int(np.flatnonzero(bad[row])[0])
            label = f"{column_names[column]!r}" if column_names is not None else f"{column}"
            where = f"column {label}, row {row}"
            what = "NaN" if np.isnan(values[row, column]) else "infinity"
        msg = (
            f"{name} must be finite; got {what} in {where} (counted from 0), {int(bad.sum())} such cells in all. "
            "Drop or fill these rows first."
        )
        raise InvalidInputError(msg)
    return values


def finite_targets(y: Any) -> None:
    """Refuse NaN and infinity in the targets, naming the row: scikit-learn's own check says only that there are some.

    What is not numbers at all is left to scikit-learn.
    """
    values = np.asarray(y)
    if values.dtype.kind == "O":
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError):
            return
    if values.dtype.kind == "f" and values.ndim in (1, 2):
        finite_columns(values, "y", None)


def known_noise(noise_variance: Any, n_rows: int) -> torch.Tensor | None:
    """Return a noise variance of shape () or (n_rows,), float64; None where none was given."""
    if noise_variance is None:
        return None
    try:
        values = np.asarray(noise_variance, dtype=np.float64)
    except (TypeError, ValueError) as error:
        msg = f"noise_variance of GPRegressor must be a number or one for each row; got {noise_variance!r}."
        raise InvalidInputError(msg) from error
    if values.ndim > 1 or (values.ndim == 1 and values.shape[0] != n_rows):
        msg = f"noise_variance of GPRegressor must have shape () or ({n_rows},), one for each row; got {values.shape}."
        raise InvalidInputError(msg)
    if not (np.isfinite(values).all() and (values > 0).all()):
        first = values if values.ndim == 0 else values[~(np.isfinite(values) & (values > 0))][0]
        msg = f"noise_variance of GPRegressor must be positive and finite; got {float(first)!r}."
        raise InvalidInputError(msg)
    return torch.from_numpy(values.copy())
