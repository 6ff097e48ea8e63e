"""Helpers shared by operators: indexing, checks of vectors, noise on a diagonal, and what gradients begin with."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels import Kernel, StationaryKernel
from gigagp.operators.base import Index, LinearOperator


def positions(index: Index, n: int, device: torch.device) -> Tensor:
    """Return the row numbers that an index selects."""
    if isinstance(index, slice):
        return torch.arange(n, device=device)[index]
    return index.nonzero()[:, 0] if index.dtype == torch.bool else index


def take(matrix: Tensor, rows: Index, columns: Index) -> Tensor:
    """Return ``matrix[rows, columns]`` (all pairs) as a new tensor, without copying whole rows."""
    if isinstance(rows, slice) and isinstance(columns, slice):
        return matrix[rows, columns].clone()
    if isinstance(rows, slice) or isinstance(columns, slice):
        return matrix[rows, columns]  # indexing by a tensor makes a copy
    left = positions(rows, matrix.shape[0], matrix.device)
    right = positions(columns, matrix.shape[1], matrix.device)
    return matrix[left[:, None], right[None, :]]


def add_matching(block: Tensor, rows: Index, columns: Index, noise: Tensor) -> Tensor:
    """Add ``noise[i]`` in place to the entries of ``block`` whose row and column are both i; return it."""
    if isinstance(rows, slice) and rows == columns:  # the common case: a diagonal block
        block.diagonal().add_(noise[rows])
        return block
    left = positions(rows, noise.shape[0], noise.device)
    right = left if rows is columns else positions(columns, noise.shape[0], noise.device)
    if left.shape == right.shape and torch.equal(left, right) and left.unique().numel() == left.numel():
        block.diagonal().add_(noise[left])
        return block
    same_row, same_column = torch.nonzero(left[:, None] == right[None, :], as_tuple=True)
    block[same_row, same_column] += noise[left[same_row]]
    return block


def add_rows(target: Tensor, rows: Index, values: Tensor) -> Tensor:
    """Add ``values`` in place to the selected rows of ``target``, which may repeat; return it."""
    if isinstance(rows, slice):
        target[rows] += values
        return target
    return target.index_add_(0, positions(rows, target.shape[0], target.device), values)


def as_noise(noise: float | Tensor, like: Tensor, what: str) -> Tensor:
    """Return noise variances, one or one for each row, as a vector with the length, dtype and device of ``like``."""
    vector = torch.as_tensor(noise, dtype=like.dtype, device=like.device).detach()
    if vector.shape not in {(), like.shape}:
        msg = f"{what} must be one number or have shape {tuple(like.shape)}; got shape {tuple(vector.shape)}."
        raise InvalidInputError(msg)
    if not 0 <= float(vector.min()) <= float(vector.max()) < math.inf:  # also false for NaN
        msg = f"{what} must be zero or positive, and finite; got {float(vector.min()):.6g} as the smallest."
        raise InvalidInputError(msg)
    return vector.expand(like.shape)


def check_vectors(operator: LinearOperator, vectors: Tensor, n_rows: int) -> None:
    """Raise `InvalidInputError` unless ``vectors`` has ``n_rows`` rows and the operator's dtype and device."""
    if vectors.ndim not in {1, 2} or vectors.shape[0] != n_rows:
        raise InvalidInputError(f"vectors must have shape ({n_rows}, s); got {tuple(vectors.shape)}.")
    if vectors.dtype != operator.dtype or vectors.device != operator.device:
        raise InvalidInputError(
            f"vectors must be {operator.dtype} on {operator.device}, like the matrix; "
            f"got {vectors.dtype} on {vectors.device}."
        )


def scaled_places(kernel: Kernel, X: Tensor) -> Tensor:
    """Return places (n, d) as the kernel's first stationary part scales them, or else as they are."""
    for leaf in kernel.leaves():
        if isinstance(leaf, StationaryKernel):
            return leaf.scale(X).detach()
    return X


def symmetric_factors(left: Tensor, right: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return factors of the symmetric part of ``L w R'``, and its diagonal in float64, for `KernelMatrix.gradient`."""
    same = left is right
    left, right = (vectors if vectors.ndim == 2 else vectors[:, None] for vectors in (left, right))
    weighted = left if weights is None else left * weights.to(left)
    diagonal = (weighted.double() * right.double()).sum(1)
    if same:
        return weighted, right, diagonal
    return torch.cat([weighted, right], 1).mul_(0.5), torch.cat([right, weighted], 1), diagonal
