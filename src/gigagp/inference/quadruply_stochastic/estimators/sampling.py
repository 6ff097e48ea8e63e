"""Samples of indices, in time that does not depend on how many indices there are, and weights for unbiased sums."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class BasisSample:
    """The sampled basis functions of one step, with weights that make sums over them unbiased.

    The estimators see two samples of the basis as weights ``left`` and ``right`` on their union. The two are
    independent, and each has mean one for every function: ``m / size`` times the number of times that the function was
    drawn (Evans and Nair 2020, Theorem 1). A weighted sum over the union estimates a sum over all functions; a product
    of two sums needs both sets of weights.

    Attributes
    ----------
    index : Tensor of shape (w,), int64
        The functions in either sample, sorted and distinct.
    left, right : Tensor of shape (w,)
        Weights of the two samples.
    n_head : int
        Number of first functions, those of dense columns, which are in every sample: ``index[:n_head]``.
    """

    index: Tensor
    left: Tensor
    right: Tensor
    n_head: int = 0

    @property
    def linear(self) -> Tensor:
        """Weights of a single sum, from both samples."""
        return 0.5 * (self.left + self.right)

    def with_head(self) -> BasisSample:
        """Return the same sample with weight 1 for the functions of the head, which are there every time."""
        if not self.n_head:
            return self
        left, right = self.left.clone(), self.right.clone()
        left[: self.n_head] = 1
        right[: self.n_head] = 1
        return BasisSample(self.index, left, right, self.n_head)

    @classmethod
    def from_indices(
        cls, left: Tensor, right: Tensor, n_basis: int, *, n_head: int = 0, dtype: torch.dtype = torch.float64
    ) -> BasisSample:
        """Return the sample of two index sets, in any order, repeats allowed.

        Raises
        ------
        InvalidInputError
            If a set is empty or an index is out of range.
        """
        for name, index in (("left", left), ("right", right)):
            if index.ndim != 1 or not len(index) or int(index.min()) < 0 or int(index.max()) >= n_basis:
                msg = f"{name} of BasisSample must be indices from 0 to {n_basis - 1}, at least one; got {index!r}."
                raise InvalidInputError(msg)
        head = torch.arange(n_head, device=left.device)
        union, place = torch.unique(torch.cat([head, left, right]), return_inverse=True)
        weights = []
        for start, index in ((n_head, left), (n_head + len(left), right)):
            count = torch.zeros(len(union), dtype=dtype, device=left.device)
            count.index_add_(0, place[start : start + len(index)], torch.ones_like(index, dtype=dtype))
            weights.append(count * (n_basis / len(index)))
        return cls(union, weights[0], weights[1], n_head)

    @classmethod
    def draw(
        cls,
        n_basis: int,
        size: int,
        generator: torch.Generator,
        *,
        n_head: int = 0,
        replacement: bool = False,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> BasisSample:
        """Return two independent samples of the same size."""
        left, right = (sample_indices(n_basis, size, generator, replacement=replacement) for _ in range(2))
        return cls.from_indices(left.to(device), right.to(device), n_basis, n_head=n_head, dtype=dtype)
