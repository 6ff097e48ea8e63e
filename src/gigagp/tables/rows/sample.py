"""A random sample of the rows of a stream, chosen by their contents."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.settings.fields import Count, CountOrZero, checks_arguments
from gigagp.tables.rows.hashes import row_hashes

_POSITIVE = 2**63 - 1
#: Default number of rows of a sample.
SAMPLE_SIZE = 4096


class RowSample:
    """A random sample of the different rows of a stream, without replacement: the rows X (k, d) and Y (k, t).

    Every row gets a random number that is a hash of its contents and the seed, and the ``size`` rows with the smallest
    numbers are kept ("bottom-k" sampling). So the sample does not depend on the order of the rows or on how they are
    cut into chunks, and the samples of two streams can be added. ``n_rows`` counts the rows of the stream so far.
    """

    @checks_arguments
    def __init__(self, size: Count, n_inputs: Count, n_targets: Count, seed: CountOrZero = 0) -> None:
        self.size, self.seed = size, seed
        self._numbers = torch.zeros(0, dtype=torch.int64)
        self.X = torch.zeros(0, n_inputs, dtype=torch.float64)
        self.Y = torch.zeros(0, n_targets, dtype=torch.float64)
        self.n_rows = 0

    def __len__(self) -> int:
        return len(self.X)

    def add(self, X: Tensor, Y: Tensor) -> None:
        """Take rows of the stream into account: X (n, d) and Y (n, t), float64, finite and contiguous."""
        # The seed is inverted because random signs may be made of the same rows' hashes with this seed.
        numbers = row_hashes(X, Y, ~self.seed & _POSITIVE) & _POSITIVE
        limit = int(self._numbers[-1]) if len(self) == self.size else _POSITIVE
        chosen = (numbers <= limit).nonzero().squeeze(1)
        self._merge(numbers[chosen], X[chosen], Y[chosen])
        self.n_rows += len(X)

    def __add__(self, other: RowSample) -> RowSample:
        """Return the sample of both streams; raises `InvalidInputError` if their sizes, seeds or columns differ."""
        kinds = [(one.size, one.X.shape[1], one.Y.shape[1], one.seed) for one in (self, other)]
        if kinds[0] != kinds[1]:
            raise InvalidInputError("Samples can be added only if they have the same size, seed and columns.")
        both = RowSample(*kinds[0])
        for part in (self, other):
            both._merge(part._numbers, part.X, part.Y)
        both.n_rows = self.n_rows + other.n_rows
        return both

    def _merge(self, numbers: Tensor, X: Tensor, Y: Tensor) -> None:
        numbers, X, Y = torch.cat([self._numbers, numbers]), torch.cat([self.X, X]), torch.cat([self.Y, Y])
        different, group = numbers.unique(return_inverse=True)  # sorted
        places = torch.arange(len(numbers))
        first = torch.full_like(different, len(numbers)).scatter_reduce_(0, group, places, reduce="amin")[: self.size]
        self._numbers, self.X, self.Y = different[: self.size], X[first], Y[first]

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the sample as tensors and plain data, for `from_state`."""
        return {"numbers": self._numbers, "X": self.X, "Y": self.Y}, {
            "size": self.size,
            "seed": self.seed,
            "n_rows": self.n_rows,
        }

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], header: dict[str, Any]) -> RowSample:
        """Return the sample that `state` described."""
        found = cls(header["size"], tensors["X"].shape[1], tensors["Y"].shape[1], header["seed"])
        found._numbers, found.X, found.Y = tensors["numbers"], tensors["X"], tensors["Y"]
        found.n_rows = header["n_rows"]
        return found

    @property
    def n_different(self) -> float:
        """Estimate of the number of different rows of the stream, with a relative error of about ``size**-0.5``."""
        if len(self) < self.size:
            return float(len(self))
        return (self.size - 1) * 2.0**63 / float(self._numbers[-1])

    @property
    def repeated(self) -> float:
        """Estimate of the share of rows that are exact copies of others, inputs and targets."""
        return 1 - self.n_different / max(self.n_rows, 1)
