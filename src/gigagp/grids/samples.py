"""Rows kept from a stream of any length: some spread over all of it, and the nearest to a few centres.

Both are what a start of the hyperparameters needs (an exact likelihood on a few dense boxes and on rows that are far
apart), and both depend on which rows there are, not on their order, so samples of parts can be added.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gigagp.errors import GigaGPWarning, InvalidInputError, warn
from gigagp.fields import Count, CountOrZero, checks_arguments
from gigagp.grids.moments import row_hashes

_POSITIVE = 2**63 - 1
#: Rows of a sample unless something else is asked for.
SAMPLE_SIZE = 4096
#: Share of rows that are equal to others above which their random signs are not to be trusted.
_REPEATED = 0.1


class RowSample:
    """A random sample of the different rows of a stream, without replacement.

    Rows are numbered by random bits made of their contents and the seed, and those with the smallest numbers are kept
    ("bottom-k"): whatever the order of the rows and however they are cut into parts.

    Parameters
    ----------
    size : int
        Rows to keep.
    n_inputs, n_targets : int
    seed : int
    """

    @checks_arguments
    def __init__(self, size: Count, n_inputs: Count, n_targets: Count, seed: CountOrZero = 0) -> None:
        self.size, self.seed = size, seed
        self._numbers = torch.zeros(0, dtype=torch.int64)
        self._counts = torch.zeros(0, dtype=torch.int64)
        self.X = torch.zeros(0, n_inputs, dtype=torch.float64)
        self.Y = torch.zeros(0, n_targets, dtype=torch.float64)
        self.n_rows = 0

    def __len__(self) -> int:
        return len(self.X)

    def add(self, X: Tensor, Y: Tensor) -> None:
        """Look at rows: X (n, d) and Y (n, t), float64, finite and contiguous."""
        # Other bits than those that the probes of the same seed are made of.
        numbers = row_hashes(X, Y, ~self.seed & _POSITIVE) & _POSITIVE
        limit = int(self._numbers[-1]) if len(self) == self.size else _POSITIVE
        chosen = (numbers <= limit).nonzero().squeeze(1)
        self._merge(numbers[chosen], torch.ones_like(chosen), X[chosen], Y[chosen])
        self.n_rows += len(X)

    def __add__(self, other: RowSample) -> RowSample:
        """Return the sample of both streams."""
        if (self.size, self.seed, self.X.shape[1], self.Y.shape[1]) != (
            other.size,
            other.seed,
            other.X.shape[1],
            other.Y.shape[1],
        ):
            msg = "Samples can be added if they have the same size, seed and columns."
            raise InvalidInputError(msg)
        both = RowSample(self.size, self.X.shape[1], self.Y.shape[1], self.seed)
        for part in (self, other):
            both._merge(part._numbers, part._counts, part.X, part.Y)
        both.n_rows = self.n_rows + other.n_rows
        return both

    def _merge(self, numbers: Tensor, counts: Tensor, X: Tensor, Y: Tensor) -> None:
        numbers, X, Y = torch.cat([self._numbers, numbers]), torch.cat([self.X, X]), torch.cat([self.Y, Y])
        counts = torch.cat([self._counts, counts])
        different, group = numbers.unique(return_inverse=True)  # sorted
        first = torch.full_like(different, len(numbers)).scatter_reduce_(
            0, group, torch.arange(len(numbers)), reduce="amin"
        )[: self.size]
        self._counts = torch.zeros_like(different).index_add_(0, group, counts)[: self.size]
        self._numbers, self.X, self.Y = different[: self.size], X[first], Y[first]

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and plain data from which `from_state` makes the same sample."""
        tensors = {"numbers": self._numbers, "counts": self._counts, "X": self.X, "Y": self.Y}
        return tensors, {"size": self.size, "seed": self.seed, "n_rows": self.n_rows}

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], header: dict[str, Any]) -> RowSample:
        """Return the sample that `state` described."""
        found = cls(header["size"], tensors["X"].shape[1], tensors["Y"].shape[1], header["seed"])
        found._numbers, found._counts = tensors["numbers"], tensors["counts"]
        found.X, found.Y, found.n_rows = tensors["X"], tensors["Y"], header["n_rows"]
        return found

    @property
    def n_different(self) -> float:
        """Estimate of the number of different rows of the stream; its relative error is about ``size**-0.5``."""
        if len(self) < self.size:
            return float(len(self))
        return (self.size - 1) * 2.0**63 / float(self._numbers[-1])

    def warn_if_repeated(self) -> None:
        """Warn (`GigaGPWarning`) if so many rows are copies of others that probes made of their contents are biased."""
        repeated = 1 - self.n_different / max(self.n_rows, 1)
        if repeated > max(_REPEATED, 4 * self.size**-0.5):
            message = (
                f"About {repeated:.0%} of the rows are exact copies of others, inputs and targets. Equal rows share "
                "their random signs, so log-determinants from these probes are biased. Add an input or a target that "
                "tells them apart, or merge them."
            )
            warn(message, GigaGPWarning)


class Neighbourhoods:
    """The rows of a stream that lie nearest to each of a few centres.

    Parameters
    ----------
    centres : Tensor of shape (c, d)
    spacing : sequence of float
        Units of distance, one an input. The distance is the largest difference of an input: neighbourhoods are boxes.
    size : int
        Rows to keep for each centre.
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
        """Look at rows: X (n, d) and Y (n, t), float64."""
        first = X[:, 0].contiguous()
        for place, (centre, (distances, *_)) in enumerate(zip(self.centres, self._near, strict=True)):
            # a little more than the furthest one: what is as far must not be lost to rounding
            radius = float(distances[-1]) * (1 + 1e-12) if len(distances) == self.size else torch.inf
            near = torch.arange(len(X))
            if radius < torch.inf:
                # one input after the other, of rows that are left: most have gone after the first
                near = ((first - centre[0]).abs_() <= radius * self.spacing[0]).nonzero().squeeze(1)
                for k in range(1, X.shape[1]):
                    near = near[(X[near, k] - centre[k]).abs() <= radius * self.spacing[k]]
            if len(near):
                self._merge(place, ((X[near] - centre) / self.spacing).abs().amax(1), X[near], Y[near])

    def __add__(self, other: Neighbourhoods) -> Neighbourhoods:
        """Return the nearest rows of both streams."""
        if self.size != other.size or not torch.equal(self.centres, other.centres):
            msg = "Neighbourhoods can be added if they have the same centres and size."
            raise InvalidInputError(msg)
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
        # Of rows that are as far (on a lattice most are) the first ones, however the stream is cut into chunks.
        nearest = candidates[distances[candidates].argsort(stable=True)[: self.size]]
        self._near[place] = (distances[nearest], X[nearest], Y[nearest])

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and plain data from which `from_state` makes the same neighbourhoods."""
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
