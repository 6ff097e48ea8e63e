"""Random bits for a row that depend on the row's own numbers alone."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.products.extension import native as _native
from gigagp.settings.indexed_random import random_bits

#: Rows below which a second thread costs more than it saves.
ROWS_A_THREAD = 2**15


def threads_for(n_rows: int) -> int:
    """Return the number of threads that the compiled extension uses for a pass over ``n_rows`` rows."""
    return max(1, min(torch.get_num_threads(), n_rows // ROWS_A_THREAD))


def row_hashes(X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """Return 64 random bits for each row of X (n, d) and Y (n, t), float64 and contiguous, as int64 of shape (n,).

    They are a function of the seed and of the row's numbers alone: the order of rows, and how they are cut into chunks
    or spread over machines, does not matter. Equal rows have equal bits.
    """
    if _native is not None:
        return torch.from_numpy(_native.grid_hashes("", X.numpy(), Y.numpy(), seed % 2**64, threads_for(len(X))))
    hashed = torch.full((len(X),), _signed(seed), dtype=torch.int64)
    for column in (*X.T, *Y.T):
        # -0 and 0 are the same number.
        hashed = random_bits(0, hashed ^ (column + 0.0).contiguous().view(torch.int64))
    return hashed


def _signed(seed: int) -> int:
    seed %= 2**64
    return seed - 2**64 if seed >= 2**63 else seed
