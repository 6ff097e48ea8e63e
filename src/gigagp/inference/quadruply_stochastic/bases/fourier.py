"""Random Fourier features that are computed again at every use."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.quadruply_stochastic.bases.base import Basis
from gigagp.kernels import Constant, Kernel, Leaf, Linear, Outputs
from gigagp.settings.indexed_random import IndexedDraws


@dataclass(frozen=True)
class FourierBasis(Basis):
    """Random Fourier features of a kernel tree, computed from a seed and an index: no array of m numbers is kept.

    Columns 2 f and 2 f + 1 of a stationary kernel are ``sqrt(2 variance / m)`` times the sine and the cosine of
    frequency f (Rahimi and Recht 2007, https://papers.nips.cc/paper/3182), and the prior of the weights is ``S = I``.
    The covariance is the kernel's in the mean over seeds, and exactly the kernel's at distance zero. The terms of a sum
    of kernels take the columns in turn. A constant or linear term gets random columns of the same size as the others,
    so that no column matters much more than another: where all are sampled alike, that keeps the variance low.

    When to use: for any kernel with a spectrum and m far above n. The functions do not depend on the data, so the data
    need not be kept.

    Parameters
    ----------
    kernel : Kernel
        Bound, with a spectrum.
    size : int
        m, a multiple of twice the number of terms. `fitting` rounds down to a multiple.
    seed : int

    Raises
    ------
    InvalidInputError
        If the kernel has no spectrum, or the size is not such a multiple.
    """

    kernel: Kernel
    size: int
    seed: int = 0

    kind = "fourier"

    def __post_init__(self) -> None:
        unknown = {type(leaf).__name__ for term in self._terms for leaf in term if not leaf.has_spectrum}
        if unknown or not self._terms:
            unknown_text = sorted(unknown) or "a white kernel alone"
            raise InvalidInputError(
                f"kernel of FourierBasis must have random features; {unknown_text} has none. "
                "Use InducingBasis, or another kernel."
            )
        if self.size < 1 or self.size % (2 * len(self._terms)):
            raise InvalidInputError(
                f"size of FourierBasis must be a multiple of {2 * len(self._terms)} for this kernel; got {self.size!r}."
            )

    @classmethod
    def fitting(cls, kernel: Kernel, most: int, seed: int = 0) -> FourierBasis:
        """Return the basis with at most ``most`` functions, but at least two for each term."""
        unit = 2 * max(len(kernel.correlated_terms()), 1)
        return cls(kernel, max(most // unit, 1) * unit, seed)

    @property
    def _terms(self) -> list[tuple[Leaf, ...]]:
        return self.kernel.correlated_terms()

    @property
    def n_terms(self) -> int:
        """Number of terms of the kernel, which take the columns in turn."""
        return len(self._terms)

    def columns(self, X: Tensor, index: Tensor) -> Tensor:
        if self.n_terms == 1:
            return self._term_columns(X, 0, index)
        found = X.new_zeros(X.shape[0], len(index))
        for place in range(self.n_terms):
            chosen = (index % self.n_terms == place).nonzero()[:, 0]
            if len(chosen):
                part = self._term_columns(X, place, torch.div(index[chosen], self.n_terms, rounding_mode="floor"))
                found = found.index_copy(1, chosen, part)
        return found

    def _term_columns(self, X: Tensor, place: int, index: Tensor) -> Tensor:
        """Return columns of one term of the kernel; ``index`` counts within the term."""
        amplitude, phase = self.waves(X, place, index)
        if phase is None:
            return amplitude
        if phase.requires_grad or amplitude.requires_grad:
            return torch.sin(phase) * amplitude
        return phase.sin_().mul_(amplitude)

    def waves(self, X: Tensor, place: int, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return amplitudes and phases, whose sines make columns of one term; a term without waves has no phases."""
        term = self._terms[place]
        per_term = self.size // len(self._terms)
        waves = not all(isinstance(leaf, Constant | Linear | Outputs) for leaf in term)
        item = torch.div(index, 2, rounding_mode="floor") if waves else index
        amplitude = X.new_tensor(math.sqrt((2 if waves else 1) / per_term))
        phase: Tensor | None = None
        for part, leaf in enumerate(term):
            numbers = leaf.draw_at(IndexedDraws(self.seed, (place, part), item))
            factor, angle = leaf.amplitude_and_phase(X, numbers)
            amplitude = amplitude * factor
            if angle is not None:
                phase = angle if phase is None else phase + angle
        if phase is None:  # a product without waves
            return amplitude.expand(X.shape[0], len(index)), None
        # one sine for every column: cos p = sin(p + pi / 2)
        shift = (index % 2).to(X.dtype) * (math.pi / 2)
        return amplitude, phase + shift if phase.requires_grad else phase.add_(shift)

    def with_kernel(self, kernel: Kernel) -> FourierBasis:
        return replace(self, kernel=kernel)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {"size": self.size, "seed": self.seed}

    @classmethod
    def from_state(cls, kernel: Kernel, tensors: dict[str, Tensor], header: dict[str, Any]) -> FourierBasis:
        """Return the basis that `state` described."""
        return cls(kernel, header["size"], header["seed"])
