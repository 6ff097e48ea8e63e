"""Samples of indices, in time that does not depend on how many indices there are, and weights for unbiased sums."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError


def sample_indices(n: int, size: int, generator: torch.Generator, *, replacement: bool = False) -> Tensor:
    """Return a uniformly random index sample of 0 .. n - 1.

    Parameters
    ----------
    n : int
    size : int
        At most n without replacement.
    generator : torch.Generator
    replacement : bool
        True: independent draws, in the order drawn. False: a uniformly random set, sorted; O(size) time and memory.

    Returns
    -------
    Tensor of shape (size,), int64
    """
    if replacement:
        return torch.randint(n, (size,), generator=generator)
    if size > n:
        msg = f"size of a sample without replacement must be at most {n}; got {size}."
        raise InvalidInputError(msg)
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


@dataclass(frozen=True, eq=False)
class ColumnSample:
    """The sampled dense columns of the root: Theorem 2's third sample.

    Attributes
    ----------
    index : Tensor of shape (s,), int64
        Sorted and distinct.
    weights : Tensor of shape (s,)
        With mean one for every dense column: their number over the size of the sample, times the number of times that
        the column was drawn.
    """

    index: Tensor
    weights: Tensor


@dataclass(frozen=True)
class BasisSample:
    """The sampled basis functions of one step, with weights that make sums over them unbiased.

    The estimators see two samples of the basis as weights ``left`` and ``right`` on their union. The two are
    independent, and each has mean one for every function: ``m / size`` times the number of times that the function was
    drawn (Evans and Nair 2020, Theorem 1). A weighted sum over the union estimates a sum over all functions; a product
    of two sums needs both sets of weights. A third sample, independent of both, is that of the dense columns.

    Attributes
    ----------
    index : Tensor of shape (w,), int64
        The functions in either sample, and those of the sampled columns, sorted and distinct.
    left, right : Tensor of shape (w,)
        Weights of the two samples. Those of `for_columns` may have the shape (w, s), different for every column.
    n_head : int
        Number of these functions that have a dense column: ``index[:n_head]``. All of them, where no columns are
        sampled.
    columns : ColumnSample or None
        None: every step sees all dense columns.
    """

    index: Tensor
    left: Tensor
    right: Tensor
    n_head: int = 0
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
        return torch.searchsorted(self.index, self.columns.index)

    def for_columns(self) -> BasisSample:
        """Return the same sample with weight 1 for what the dense columns have at every draw.

        These are all functions of the head where all columns are seen. A sampled column always has its own function,
        the one on the diagonal, which is the largest part of it; whether the others are there is random.
        """
        if not self.n_head:
            return self
        left, right = self.left.clone(), self.right.clone()
        if self.columns is None:
            left[: self.n_head] = 1
            right[: self.n_head] = 1
        else:
            places, s = self.places, len(self.columns.index)
            left, right = left[:, None].repeat(1, s), right[:, None].repeat(1, s)
            own = torch.arange(s, device=places.device)
            left[places, own] = 1
            right[places, own] = 1
        return replace(self, left=left, right=right)

    def sum_of_columns(self, values: Tensor) -> Tensor:
        """Return the sum over all dense columns of something that is known for those that the step sees, shape (s,)."""
        return values.sum() if self.columns is None else self.columns.weights.to(values) @ values

    @classmethod
    def from_indices(
        cls,
        left: Tensor,
        right: Tensor,
        n_basis: int,
        *,
        n_head: int = 0,
        columns: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> BasisSample:
        """Return the sample of index sets, in any order, repeats allowed.

        Parameters
        ----------
        left, right : Tensor of int64
        n_basis : int
            m.
        n_head : int
            Number of dense columns, which are those of the first functions.
        columns : Tensor of int64 or None
            The dense columns that the step sees; None: all.
        dtype : torch.dtype
            Of the weights.

        Raises
        ------
        InvalidInputError
            If a set is empty or an index is out of range.
        """
        sets = [("left", left, n_basis), ("right", right, n_basis)]
        if columns is not None:
            sets.append(("columns", columns, n_head))
        for name, index, most in sets:
            if index.ndim != 1 or not len(index) or int(index.min()) < 0 or int(index.max()) >= most:
                msg = f"{name} of BasisSample must be indices from 0 to {most - 1}, at least one; got {index!r}."
                raise InvalidInputError(msg)
        head = torch.arange(n_head, device=left.device) if columns is None else columns
        union, place = torch.unique(torch.cat([head, left, right]), return_inverse=True)
        weights = []
        for start, index in ((len(head), left), (len(head) + len(left), right)):
            count = torch.zeros(len(union), dtype=dtype, device=left.device)
            count.index_add_(0, place[start : start + len(index)], torch.ones_like(index, dtype=dtype))
            weights.append(count * (n_basis / len(index)))
        if columns is None:
            return cls(union, weights[0], weights[1], n_head)
        distinct, times = torch.unique(columns, return_counts=True)
        drawn = ColumnSample(distinct, times.to(dtype) * (n_head / len(columns)))
        return cls(union, weights[0], weights[1], int((union < n_head).sum()), drawn)

    @classmethod
    def draw(
        cls,
        n_basis: int,
        size: int,
        generator: torch.Generator,
        *,
        n_head: int = 0,
        n_columns: int | None = None,
        replacement: bool = False,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> BasisSample:
        """Return two independent samples of the same size, and ``n_columns`` of the dense columns (None: all)."""
        left, right = (sample_indices(n_basis, size, generator, replacement=replacement) for _ in range(2))
        columns = None
        if n_columns is not None and n_head:
            columns = sample_indices(n_head, n_columns, generator, replacement=replacement).to(device)
        return cls.from_indices(left.to(device), right.to(device), n_basis, n_head=n_head, columns=columns, dtype=dtype)
