"""A regular grid embedded in a torus, on which a stationary covariance is diagonal in Fourier space."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.products.blocks import ranges

#: Largest number of bytes for the transforms of one batch of columns.
_BATCH_BYTES = 2**28


@dataclass(frozen=True)
class Torus:
    """A grid of nodes, extended by further nodes and closed to a torus.

    With at least ``2 * shape - 1`` nodes, no distance on the grid is shorter the other way around, and a stationary
    covariance on the torus equals that on the grid. Fewer nodes suffice for a covariance that is negligible beyond the
    added nodes (`GridKernel.root_error`). ``lengths`` are the numbers of nodes of the torus; each exceeds that of the
    grid.

    Vectors on the torus are stored as *packed* Fourier coefficients: real and imaginary parts of the half spectrum of
    the real transform, scaled so that the plain dot product of two packed vectors equals that of the vectors. Sums, and
    products with functions of the frequency, then need no transform.
    """

    shape: tuple[int, ...]
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        fits = len(self.shape) == len(self.lengths) and all(
            length > count for count, length in zip(self.shape, self.lengths, strict=True)
        )
        if not fits:
            raise InvalidInputError(f"lengths of Torus must be more than its shape {self.shape}; got {self.lengths}.")

    @classmethod
    def around(cls, shape: Sequence[int], padding: Sequence[float] | float = 2.0) -> Torus:
        """Return the torus with at least ``padding`` times the nodes of the grid, in lengths with fast transforms.

        A padding of exactly 2 requires only one node less than twice those of the grid, which makes products exact.
        """
        from scipy.fft import next_fast_len

        factors = [padding] * len(shape) if isinstance(padding, (int, float)) else padding
        least = [2 * n - 1 if f == 2 else math.ceil(f * n) for f, n in zip(factors, shape, strict=True)]
        lengths = (next_fast_len(max(length, n + 1), real=True) for length, n in zip(least, shape, strict=True))
        return cls(tuple(shape), tuple(lengths))

    @property
    def size(self) -> int:
        """Number of torus nodes L."""
        return math.prod(self.lengths)

    @property
    def spectrum_shape(self) -> tuple[int, ...]:
        """Shape of the half spectrum."""
        return (*self.lengths[:-1], self.lengths[-1] // 2 + 1)

    @property
    def n_packed(self) -> int:
        """Length of a packed vector; slightly more than L, because some coefficients occur twice."""
        return 2 * math.prod(self.spectrum_shape)

    @property
    def _axes(self) -> tuple[int, ...]:
        return tuple(range(-len(self.lengths), 0))

    def multiplicity(self) -> Tensor:
        """Return how often each coefficient of the half spectrum occurs in the whole, shape ``spectrum_shape``."""
        length = self.lengths[-1]
        last = torch.full((length // 2 + 1,), 2.0, dtype=torch.float64)
        last[0] = 1.0
        if length % 2 == 0:
            last[-1] = 1.0
        return last.expand(self.spectrum_shape)

    def lags(self, axis: int) -> Tensor:
        """Return the distance in nodes assigned to each step along an axis of the torus, shape (length,).

        On the grid it is the true distance. Beyond the grid, values do not matter but the positivity of the spectrum
        does, so the distance levels off smoothly: a covariance that is still falling half way around would have a kink
        there. On a torus of 2.5 times the grid this reduces the negative part of Matern-3/2's spectrum, at a
        lengthscale of 0.3 of the grid, from 6e-5 of the variance to zero (one input), or from 3e-4 to 3e-8 (two).
        """
        count, length = self.shape[axis], self.lengths[axis]
        step = torch.arange(length, dtype=torch.float64)
        step = torch.minimum(step, length - step)
        inside, half = min(count - 1.0, length / 2), max(length / 2, count - 0.5)
        s = ((step - inside) / (half - inside)).clamp(0, 1)
        # Integral of the slope 1 - (3 s^2 - 2 s^3).
        return torch.where(step <= inside, step, inside + (half - inside) * (s - s**3 + s**4 / 2))

    def batches(self, n_columns: int, arrays: int = 1) -> list[slice]:
        """Return slices of columns whose transforms, with ``arrays`` arrays each, fit into a fixed number of bytes."""
        step = max(1, _BATCH_BYTES // (32 * self.size * arrays))
        return list(ranges(n_columns, step))

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the orthonormal half spectra, (s, *spectrum_shape), of grid vectors (m, s) padded with zeros."""
        return self._forward(vectors.T.reshape(-1, *self.shape))

    def backward(self, spectra: Tensor) -> Tensor:
        """Return the grid part, (m, s), of the vectors with these half spectra, in column-major memory."""
        # Transforming one axis after the other, each cut to the grid at once, takes at most half of the work.
        for axis, count in enumerate(self.shape[:-1], 1):
            spectra = torch.fft.ifft(spectra, dim=axis, norm="ortho").narrow(axis, 0, count)
        grid = torch.fft.irfft(spectra, n=self.lengths[-1], dim=-1, norm="ortho")[..., : self.shape[-1]]
        return grid.reshape(grid.shape[0], -1).T

    def _forward(self, columns: Tensor) -> Tensor:
        return torch.fft.rfftn(columns, s=self.lengths, dim=self._axes, norm="ortho")

    def _backward(self, spectra: Tensor) -> Tensor:
        return torch.fft.irfftn(spectra, s=self.lengths, dim=self._axes, norm="ortho")

    def from_grid(self, vectors: Tensor, factor: Tensor) -> Tensor:
        """Return ``factor`` times the spectra of grid vectors (m, s), packed, shape (n_packed, s)."""
        parts = [self.pack(self.forward(vectors[:, c]), factor) for c in self.batches(vectors.shape[1])]
        return column_major(parts, self.n_packed)

    def to_grid(self, packed: Tensor, factor: Tensor) -> Tensor:
        """Return the grid part, (m, s), of ``factor`` times packed vectors; the transpose of `from_grid`."""
        parts = [self.backward(self.unpack(packed[:, c], factor)) for c in self.batches(packed.shape[1])]
        return column_major(parts, math.prod(self.shape))

    def convolve_within(self, packed: Tensor, outer: Tensor, mask: Tensor, inner: Tensor) -> Tensor:
        """Return ``F M G M F`` times packed vectors: F and G multiply spectra, M multiplies values on the torus."""
        parts = []
        for c in self.batches(packed.shape[1], arrays=2):
            values = self._backward(self.unpack(packed[:, c], outer)).mul_(mask)
            values = self._backward(self._forward(values).mul_(inner)).mul_(mask)
            parts.append(self.pack(self._forward(values), outer))
        return column_major(parts, self.n_packed)

    def pack(self, spectra: Tensor, factor: Tensor) -> Tensor:
        """Return ``factor * spectra`` as packed vectors, shape (n_packed, s); ``spectra`` is overwritten."""
        packed = torch.view_as_real(spectra).mul_((factor * self.multiplicity().sqrt()).unsqueeze(-1))
        return packed.reshape(packed.shape[0], -1).T

    def unpack(self, packed: Tensor, factor: Tensor) -> Tensor:
        """Return ``factor`` times the half spectra of packed vectors."""
        columns = packed.T.contiguous().reshape(-1, *self.spectrum_shape, 2)  # no copy of a result of `from_grid`
        return torch.view_as_complex(columns * (factor / self.multiplicity().sqrt()).unsqueeze(-1))

    def spread(self, values: Tensor) -> Tensor:
        """Return a function of the frequency as a column that multiplies packed vectors, shape (n_packed, 1)."""
        return values.unsqueeze(-1).expand(*values.shape, 2).reshape(-1, 1)

    def white_noise(self, n_columns: int, generator: torch.Generator) -> Tensor:
        """Return independent standard normal vectors on the whole torus, packed."""
        parts = []
        ones = torch.ones(self.spectrum_shape, dtype=torch.float64)
        for columns in self.batches(n_columns):
            width = columns.stop - columns.start
            normal = torch.randn(width, *self.lengths, generator=generator, dtype=torch.float64)
            parts.append(self.pack(self._forward(normal), ones))
        return column_major(parts, self.n_packed)


def column_major(parts: list[Tensor], n_rows: int) -> Tensor:
    """Return blocks of columns side by side in column-major memory, the order in which transforms read them."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part.T for part in parts]).T if parts else torch.zeros(n_rows, 0, dtype=torch.float64)
