"""Blocks of a large matrix, for engines that take one block at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gigagp.kernels import Kernel
from gigagp.products.arguments import read_weights
from gigagp.products.engine import Weights

#: The gradient of one block: kernel, left and right points, weights (n, m).
BlockGradient = Callable[[Kernel, Tensor, Tensor, Tensor], dict[str, Tensor]]


def ranges(n: int, size: int, start: int = 0) -> Iterator[slice]:
    """Iterate over slices of a size that cover start..n. All starts that are multiples of size give the same grid."""
    for first in range(start, n, size):
        yield slice(first, min(first + size, n))


def gradient_by_blocks(
    engine: str,
    gradient: BlockGradient,
    kernel: Kernel,
    X: Tensor,
    Z: Tensor,
    weights: Weights,
    side: int,
    *,
    symmetric: bool,
) -> dict[str, Tensor]:
    """Return the gradient for weights that are read block by block; see `Engine.gradient`."""
    total = {name: torch.zeros(v.shape, dtype=torch.float64) for name, v in kernel.parameters().items()}
    for rows in ranges(X.shape[0], side):
        for columns in ranges(Z.shape[0], side, start=rows.start if symmetric else 0):
            found = gradient(kernel, X[rows], Z[columns], read_weights(engine, weights, rows, columns, X))
            multiple = 2.0 if symmetric and rows != columns else 1.0
            for name, value in found.items():
                total[name] += multiple * value
    return total
