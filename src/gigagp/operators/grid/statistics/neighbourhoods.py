"""The rows of a stream that lie nearest to a few centres.

The start of the hyperparameters needs them: it maximises the exact likelihoods of a few dense boxes of rows, and of a
sample of rows that are far apart (`gigagp.tables.rows.RowSample`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError


class Neighbourhoods:
    """The rows of a stream that lie nearest to each of a few centres.

    The order of the rows matters only where several are equally far from a centre: then the first ones are kept.

    Parameters
    ----------
    centres : Tensor of shape (c, d)
    spacing : sequence of float
        Unit of distance of each input. The distance of two points is the largest of their inputs' differences in these
        units, so neighbourhoods are boxes.
    size : int
        Number of rows to keep for each centre.
    n_targets : int
    """

    def __init__(self, centres: Tensor, spacing: Any, size: int, n_targets: int) -> None:
        self.centres = centres.double()
        self.spacing = torch.as_tensor(spacing, dtype=torch.float64)
        if centres.ndim != 2 or self.spacing.shape != centres.shape[1:] or size < 1:
            msg = f"Neighbourhoods need centres (c, d) and d units; got {tuple(centres.shape)} and {spacing!r}."
            raise InvalidInputError(msg)
        self.size = size
        self._near: list[tuple[Tensor, Tensor, Tensor]] = [
            (torch.zeros(0).double(), torch.zeros(0, centres.shape[1]).double(), torch.zeros(0, n_targets).double())
            for _ in centres
        ]

    def add(self, X: Tensor, Y: Tensor) -> None:
        """Take rows of the stream into account: X (n, d) and Y (n, t), float64."""
        first = X[:, 0].contiguous()
        for place, (centre, (distances, *_)) in enumerate(zip(self.centres, self._near, strict=True)):
            # Slightly more than the distance of the furthest row, so that rounding drops no row that is equally far.
            radius = float(distances[-1]) * (1 + 1e-12) if len(distances) == self.size else torch.inf
            near = torch.arange(len(X))
            if radius < torch.inf:
                # One input after the other, because the first excludes most rows.
                near = ((first - centre[0]).abs_() <= radius * self.spacing[0]).nonzero().squeeze(1)
                for k in range(1, X.shape[1]):
                    near = near[(X[near, k] - centre[k]).abs() <= radius * self.spacing[k]]
            if len(near):
                self._merge(place, ((X[near] - centre) / self.spacing).abs().amax(1), X[near], Y[near])

    def __add__(self, other: Neighbourhoods) -> Neighbourhoods:
        """Return the nearest rows of both streams; raises `InvalidInputError` if centres or sizes differ."""
        if self.size != other.size or not torch.equal(self.centres, other.centres):
            raise InvalidInputError("Neighbourhoods can be added if they have the same centres and size.")
        both = Neighbourhoods(self.centres, self.spacing, self.size, self._near[0][2].shape[1])
        for place, (mine, theirs) in enumerate(zip(self._near, other._near, strict=True)):
            both._merge(place, *mine)
            both._merge(place, *theirs)
        return both

    def _merge(self, place: int, distances: Tensor, X: Tensor, Y: Tensor) -> None:
        held = self._near[place]
        distances, X, Y = torch.cat([held[0], distances]), torch.cat([held[1], X]), torch.cat([held[2], Y])
        if len(distances) > self.size:
            furthest = distances.kthvalue(self.size).values
            candidates = (distances <= furthest).nonzero().squeeze(1)
        else:
            candidates = torch.arange(len(distances))
        # Among equally far rows (most are, on a lattice) the first ones, however the stream is cut into chunks.
        nearest = candidates[distances[candidates].argsort(stable=True)[: self.size]]
        self._near[place] = (distances[nearest], X[nearest], Y[nearest])

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the neighbourhoods as tensors and plain data, for `from_state`."""
        tensors = {"centres": self.centres, "spacing": self.spacing}
        for place, parts in enumerate(self._near):
            tensors |= {f"{name}.{place}": part for name, part in zip(("distances", "X", "Y"), parts, strict=True)}
        return tensors, {"size": self.size}

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], header: dict[str, Any]) -> Neighbourhoods:
        """Return the neighbourhoods that `state` described."""
        count = len(tensors["centres"])
        near = [(tensors[f"distances.{k}"], tensors[f"X.{k}"], tensors[f"Y.{k}"]) for k in range(count)]
        n_targets = near[0][2].shape[1] if near else 1
        found = cls(tensors["centres"], tensors["spacing"], header["size"], n_targets)
        found._near = near
        return found

    def boxes(self) -> list[tuple[Tensor, Tensor]]:
        """Return (X, Y) of each neighbourhood, nearest rows first."""
        return [(X, Y) for _, X, Y in self._near]
