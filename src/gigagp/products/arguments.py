"""Checks of the arguments of engines, which all engines make before anything is computed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels import Kernel
from gigagp.products.engine import LowRankWeights, Weights


def check_points(engine: str, kernel: Kernel, X: Tensor, Z: Tensor) -> None:
    """Raise `InvalidInputError` unless X and Z are finite and fit, and the kernel is bound to their columns."""
    if X.ndim != 2 or X.dtype not in (torch.float32, torch.float64):
        raise InvalidInputError(
            f"X of {engine} must be a float32 or float64 tensor of shape (n, d); "
            f"got {X.dtype} of shape {tuple(X.shape)}."
        )
    if kernel.n_inputs != X.shape[1]:
        bound = "not bound to data" if kernel.n_inputs is None else f"bound to {kernel.n_inputs} inputs"
        raise InvalidInputError(
            f"The kernel of {engine} is {bound}, but X has {X.shape[1]} columns; call bind({X.shape[1]}) of the kernel."
        )
    if Z is not X:
        _check(f"Z of {engine}", Z, X, "m", X.shape[1])
        check_finite(f"Z of {engine}", Z)
    check_finite(f"X of {engine}", X)


def check_vectors(engine: str, V: Tensor, Z: Tensor) -> None:
    """Raise `InvalidInputError` unless V has one row for each row of Z."""
    _check(f"V of {engine}", V, Z, Z.shape[0], "s")


def check_weights(engine: str, weights: Weights, X: Tensor, Z: Tensor) -> None:
    """Raise `InvalidInputError` unless low-rank weights have one row for each row of X and of Z."""
    if not isinstance(weights, LowRankWeights):
        return
    _check(f"weights.left of {engine}", weights.left, X, X.shape[0], "s")
    _check(f"weights.right of {engine}", weights.right, X, Z.shape[0], "s")
    if weights.left.shape[1] != weights.right.shape[1]:
        raise InvalidInputError(
            f"weights.left and weights.right of {engine} must have the same number of columns; "
            f"got {weights.left.shape[1]} and {weights.right.shape[1]}."
        )


def read_weights(engine: str, weights: Weights, rows: slice, columns: slice, X: Tensor) -> Tensor:
    """Return one tile of weights; raise `InvalidInputError` unless it has the right shape and is on the device of X."""
    tile = weights(rows, columns)
    shape = (rows.stop - rows.start, columns.stop - columns.start)
    if tile.shape != shape or tile.device != X.device or not tile.is_floating_point():
        raise InvalidInputError(
            f"weights({rows}, {columns}) of {engine} must be floating-point numbers on {X.device} of shape {shape}; "
            f"got {tile.dtype} on {tile.device} of shape {tuple(tile.shape)}."
        )
    return tile


def check_finite(name: str, table: Tensor) -> None:
    """Raise `InvalidInputError` at NaN or infinity, which a distance could turn into an ordinary covariance."""
    if not math.isfinite(table.detach().sum()) and not bool(torch.isfinite(table).all()):
        row, column = torch.nonzero(~torch.isfinite(table))[0].tolist()
        msg = f"{name} must be finite; got {float(table[row, column])} in row {row}, column {column}."
        raise InvalidInputError(msg)


def _check(name: str, given: Tensor, like: Tensor, rows: int | str, columns: int | str) -> None:
    """Raise unless a matrix has the dtype and device of another, and the lengths that are given as numbers."""
    fits = given.ndim == 2 and all(
        isinstance(wanted, str) or wanted == found for wanted, found in zip((rows, columns), given.shape, strict=True)
    )
    if not fits or given.dtype != like.dtype or given.device != like.device:
        raise InvalidInputError(
            f"{name} must be {like.dtype} on {like.device} of shape ({rows}, {columns}); "
            f"got {given.dtype} on {given.device} of shape {tuple(given.shape)}."
        )
