"""Samples of indices, in time that does not depend on how many indices there are, and weights for unbiased sums."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError


def sample_indices(n: int, size: int, generator: torch.Generator, *, replacement: bool = False) -> Tensor:
    """Return a uniformly random index sample of 0 .. n - 1, shape (size,), int64.

    With replacement it is independent draws, in the order drawn. Without, it is a uniformly random set, sorted, in
    O(size) time and memory.
    """
    if replacement:
        return torch.randint(n, (size,), generator=generator)
    if size > n:
        raise InvalidInputError(f"size of a sample without replacement must be at most {n}; got {size}.")
    if size == n:
        return torch.arange(n)
    if 4 * size >= n:
        return torch.randperm(n, generator=generator)[:size].sort().values
    # The set of distinct values among independent draws is uniform among the sets of its size, and so is a random
    # subset of it.
    found = torch.randint(n, (size + size // 4 + 8,), generator=generator).unique()
    while len(found) < size:
        found = torch.cat([found, torch.randint(n, (size,), generator=generator)]).unique()
    if len(found) > size:
        found = found[torch.randperm(len(found), generator=generator)[:size].sort().values]
    return found


@dataclass(frozen=True)
class ColumnSample:
    """The sampled dense columns of the root, ``first`` to ``last - 1``: Theorem 2's third sample.

    The k columns are divided once into groups of neighbours, and a step sees one group, each with the same probability.
    Every column is then as likely as in a sample of single columns, so sums stay unbiased. But the entries of a row
    that a step reads lie side by side: single columns would take several times as long to fetch from the memory of a
    million rows.
    """

    first: int
    last: int
    #: of each of these columns in a sum over all: the number of groups
    weight: float

    @property
    def index(self) -> Tensor:
        """The columns, shape (s,), int64."""
        return torch.arange(self.first, self.last)

    @property
    def slice(self) -> slice:
        """The columns as an index of a matrix."""
        return slice(self.first, self.last)

    @classmethod
    def group(cls, n_columns: int, size: int, number: int) -> ColumnSample:
        """Return one of the ``ceil(n_columns / size)`` groups, whose sizes differ by at most one."""
        groups = -(-n_columns // size)
        return cls(number * n_columns // groups, (number + 1) * n_columns // groups, float(groups))

    @classmethod
    def draw(cls, n_columns: int, size: int, generator: torch.Generator) -> ColumnSample:
        """Return a random group of at most ``size`` columns."""
        return cls.group(n_columns, size, int(torch.randint(-(-n_columns // size), (), generator=generator)))


@dataclass(frozen=True)
class BasisSample:
    """The sampled basis functions of one step, with weights that make sums over them unbiased.

    The estimators see two samples of the basis as weights ``left`` and ``right`` on their union. The two are
    independent, and each has mean one for every function: ``m / size`` times the number of times that the function was
    drawn (Evans and Nair 2020, Theorem 1). A weighted sum over the union estimates a sum over all functions; a product
    of two sums needs both sets of weights. A third sample, independent of both, is that of the dense columns.
    """

    #: the functions in either sample, and those of the sampled columns, sorted and distinct, shape (w,), int64
    index: Tensor
    #: weights of the two samples, shape (w,); those of `for_columns` may have the shape (w, s), one for every column
    left: Tensor
    right: Tensor
    #: number of these functions that have a dense column, ``index[:n_head]``: all, where no columns are sampled
    n_head: int = 0
    #: None: every step sees all dense columns
    columns: ColumnSample | None = None

    @property
    def linear(self) -> Tensor:
        """Weights of a single sum, from both samples."""
        return 0.5 * (self.left + self.right)

    @property
    def places(self) -> Tensor:
        """Where in ``index`` the functions are whose columns the step sees, shape (s,)."""
        if self.columns is None:
            return torch.arange(self.n_head, device=self.index.device)
        return torch.searchsorted(self.index, self.columns.index.to(self.index))

    def for_columns(self) -> BasisSample:
        """Return the same sample with weight 1 for the functions that the dense columns have at every draw.

        These are all functions of the head where all columns are seen. A sampled column always has its own function,
        the one on the diagonal, which is the largest part of it. The others are there at random.
        """
        if not self.n_head:
            return self
        left, right = self.left.clone(), self.right.clone()
        if self.columns is None:
            left[: self.n_head] = 1
            right[: self.n_head] = 1
        else:
            places = self.places
            left, right = (one[:, None].repeat(1, len(places)) for one in (left, right))
            own = torch.arange(len(places), device=places.device)
            left[places, own] = 1
            right[places, own] = 1
        return replace(self, left=left, right=right)

    def sum_of_columns(self, values: Tensor) -> Tensor:
        """Return the sum over all dense columns, given the values of those that the step sees, shape (s,)."""
        return values.sum() if self.columns is None else self.columns.weight * values.sum()

    @classmethod
    def from_indices(
        cls,
        left: Tensor,
        right: Tensor,
        n_basis: int,
        *,
        n_head: int = 0,
        columns: ColumnSample | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> BasisSample:
        """Return the sample of two index sets, in any order, repeats allowed.

        The first ``n_head`` functions have dense columns, of which the step sees ``columns`` (None: all). ``dtype`` is
        that of the weights.
        """
        for name, index in (("left", left), ("right", right)):
            if index.ndim != 1 or not len(index) or int(index.min()) < 0 or int(index.max()) >= n_basis:
                msg = f"{name} of BasisSample must be indices from 0 to {n_basis - 1}, at least one; got {index!r}."
                raise InvalidInputError(msg)
        head = (torch.arange(n_head) if columns is None else columns.index).to(left.device)
        union, place = torch.unique(torch.cat([head, left, right]), return_inverse=True)
        weights = []
        for start, index in ((len(head), left), (len(head) + len(left), right)):
            count = torch.zeros(len(union), dtype=dtype, device=left.device)
            count.index_add_(0, place[start : start + len(index)], torch.ones_like(index, dtype=dtype))
            weights.append(count * (n_basis / len(index)))
        touched = n_head if columns is None else int((union < n_head).sum())
        return cls(union, weights[0], weights[1], touched, columns)

    @classmethod
    def draw(
        cls,
        n_basis: int,
        size: int,
        generator: torch.Generator,
        *,
        n_head: int = 0,
        column_batch: int | None = None,
        replacement: bool = False,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> BasisSample:
        """Return two independent samples of the same size, and ``column_batch`` of the dense columns (None: all)."""
        left, right = (sample_indices(n_basis, size, generator, replacement=replacement) for _ in range(2))
        sampled = column_batch is not None and column_batch < n_head
        columns = ColumnSample.draw(n_head, column_batch, generator) if sampled and column_batch else None
        return cls.from_indices(left.to(device), right.to(device), n_basis, n_head=n_head, columns=columns, dtype=dtype)
