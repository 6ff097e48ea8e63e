"""Rows that stand for a table in learning."""

from __future__ import annotations

import torch
from torch import Tensor

#: Clusters, and their share of the rows.
_CLUSTERS, _SHARE = 8, 0.5
_SEED = 7


def spread_and_clustered(X: Tensor, count: int) -> Tensor:
    """Return the sorted numbers of ``count`` rows, half at random and half in eight dense clusters.

    Random rows show the long range, and the rows around a few centres the short range, which a thinned table has lost.
    Any rows are a sound sample: a process keeps its hyperparameters on a part of its rows. The inputs, shape (n, d),
    are in units in which they are comparable.
    """
    n = len(X)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(_SEED)).to(X.device)
    chosen = torch.zeros(n, dtype=torch.bool, device=X.device)
    size = int(_SHARE * count) // _CLUSTERS
    for centre in order[:_CLUSTERS] if size else order[:0]:
        distances = torch.linalg.vector_norm(X.double() - X[centre].double(), dim=1)
        chosen[torch.topk(distances, size, largest=False).indices] = True
    rest = order[~chosen[order]]
    chosen[rest[: count - int(chosen.sum())]] = True
    return torch.nonzero(chosen)[:, 0]
