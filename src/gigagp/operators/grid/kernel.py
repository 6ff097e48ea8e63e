"""The kernel between the nodes of a regular grid: products, derivatives and samples by fast Fourier transforms."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels import Kernel
from gigagp.operators.grid.statistics import RegularGrid
from gigagp.operators.grid.statistics.gram import StencilGram, half_offsets
from gigagp.operators.grid.statistics.rows_gram import RowsGram
from gigagp.operators.grid.torus import Torus, column_major
from gigagp.runtime import interruption

#: Candidate numbers of torus nodes as multiples of the grid's. The short ones suffice where a covariance vanishes; the
#: long ones are for covariances whose spectrum has to be made positive.
_SHORT_PADDINGS = (1.1, 1.2, 1.35, 1.5, 1.75)
_LONG_PADDINGS = (2.0, 2.5, 3.0, 4.0)


class GridKernel:
    """``K_G``: a stationary kernel between all nodes of a grid, in O(m log m) time and O(m) memory.

    Two nodes with the same offset have the same covariance, so ``K_G`` is a block of a matrix that is diagonal in
    Fourier space on a larger torus (Lee 1986; Yadav et al. 2021, section 2). Products use the smallest torus and are
    exact. A square root requires a spectrum without negative values. It uses a larger torus, and the part of the
    spectrum that still has to be clipped is reported.

    White parts of the kernel are noise and no part of ``K_G``. Kernels that are not stationary are refused.
    ``root_torus`` is the torus of `root`, `root_transposed` and `sample`, by default 2.5 times the grid in each
    direction; see `fitting_torus`. ``products`` counts the products with ``K_G``, where one pass through `root` and its
    transpose is one.
    """

    def __init__(self, kernel: Kernel, grid: RegularGrid, root_torus: Torus | None = None) -> None:
        self.kernel = kernel.bind(grid.n_inputs)
        self.grid = grid
        self.even = check_stationary(self.kernel, grid)
        self.root_torus = root_torus or Torus.around(grid.shape, 2.5)
        self.products = 0

    @property
    def n(self) -> int:
        """Number of nodes m."""
        return self.grid.size

    @property
    def pieces(self) -> list[tuple[Kernel, RegularGrid, tuple[int, ...]]]:
        """The kernel with its grid and inputs, as a list of one; see `SumKernel.pieces`."""
        return [(self.kernel, self.grid, tuple(range(self.grid.n_inputs)))]

    # Spectra ----------------------------------------------------------------------------------------------------------

    @cached_property
    def torus(self) -> Torus:
        """The torus on which products are exact."""
        return Torus.around(self.grid.shape)

    @cached_property
    def spectrum(self) -> Tensor:
        """Half spectrum of eigenvalues on `torus`; some may be negative."""
        return self._spectrum(self.torus)

    @cached_property
    def _root_spectrum(self) -> Tensor:
        return self._spectrum(self.root_torus)

    @cached_property
    def root_spectrum(self) -> Tensor:
        """Half spectrum of eigenvalues on `root_torus`, with negative values clipped to zero."""
        return self._root_spectrum.clamp_min(0)

    @cached_property
    def _root_factor(self) -> Tensor:
        return self.root_spectrum.sqrt()

    @cached_property
    def clipped(self) -> float:
        """Bound on the covariance error at any offset due to clipping, in units of the kernel's variance.

        It is the sum of the clipped eigenvalues divided by the number of nodes of the torus. The variance of the
        clipped kernel is too large by the same amount.
        """
        negative = (self._root_spectrum.clamp_max(0) * self.root_torus.multiplicity()).sum()
        return float(-negative) / self.root_torus.size

    @cached_property
    def wrapped(self) -> float:
        """Largest covariance error on `root_torus`, at offsets that are shorter the other way around the torus."""
        worst = 0.0
        for k, (count, length) in enumerate(zip(self.grid.shape, self.root_torus.lengths, strict=True)):
            if length < 2 * count - 1:
                worst = max(worst, self._along(k, torch.tensor([float(length - count + 1)])))
        return worst

    @property
    def root_error(self) -> float:
        """Bound on the error of ``R R'`` as a covariance between nodes, in units of the kernel's variance."""
        return self.clipped + self.wrapped

    def _along(self, axis: int, steps: Tensor) -> float:
        """Return the largest absolute covariance of nodes that are ``steps`` apart along one axis."""
        d = self.grid.n_inputs
        offsets = [torch.zeros(1, dtype=torch.float64) for _ in range(d)]
        offsets[axis] = steps.double() * self.grid.spacing[axis]
        with torch.no_grad():
            return float(self._at_offsets(offsets).abs().max())

    def fitting_torus(self, limit: float) -> Torus:
        """Return a small torus on which the kernel's root has an error of at most ``limit``, or the largest one tried.

        In each direction, nodes are added until the covariance vanishes. If it does not vanish, the torus is made long
        enough that no distance is shorter the other way around, and is then enlarged until the spectrum is positive, to
        at most four times the grid.
        """
        shape = self.grid.shape
        paddings = []
        for k, count in enumerate(shape):
            reaches = (f for f in _SHORT_PADDINGS if self._along(k, torch.tensor([f * count - count + 1])) <= limit / 4)
            paddings.append(next(reaches, 2.0))
        best = Torus.around(shape, paddings)
        for more in _LONG_PADDINGS:
            if GridKernel(self.kernel, self.grid, best).root_error <= limit:
                return best
            best = Torus.around(shape, [max(padding, more) for padding in paddings])
        return best

    @torch.no_grad()
    def _spectrum(self, torus: Torus) -> Tensor:
        column = self._first_column(torus)
        # The real part makes the spectrum even where the two ends of an odd offset do not match.
        return torch.fft.rfftn(column).real.contiguous()

    def _first_column(self, torus: Torus, kernel: Kernel | None = None) -> Tensor:
        """Return the covariance between the first node and every node of a torus, shape ``torus.lengths``."""
        spacing = self.grid.spacing
        if self.even:  # even in each input: the rest is a mirror image
            halves = [torus.lags(k)[: length // 2 + 1] * spacing[k] for k, length in enumerate(torus.lengths)]
            column = self._at_offsets(halves, kernel)
            for k, length in enumerate(torus.lengths):
                step = torch.arange(length)
                column = column.index_select(k, torch.minimum(step, length - step))
            return column
        whole = []
        for k, length in enumerate(torus.lengths):
            sign = torch.where(torch.arange(length) <= length // 2, 1.0, -1.0).double()
            whole.append(torus.lags(k) * spacing[k] * sign)
        return self._at_offsets(whole, kernel)

    def _at_offsets(self, axes: list[Tensor], kernel: Kernel | None = None) -> Tensor:
        """Return the covariance at all combinations of the offsets along the axes."""
        points = torch.cartesian_prod(*axes).reshape(-1, len(axes))
        # The single point is the second argument: distances are then taken about it, without rounding.
        block = (kernel or self.kernel).block(points, torch.zeros(1, len(axes), dtype=torch.float64))
        return block.reshape([len(axis) for axis in axes])

    # Products ---------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def __matmul__(self, vectors: Tensor) -> Tensor:
        """Return ``K_G @ vectors`` for vectors of shape (m, s), float64."""
        self._check(vectors)
        interruption.check()
        self.products += 1
        torus, factor = self.torus, self.spectrum
        return column_major(
            [
                torus.backward(torus.forward(vectors[:, columns]).mul_(factor))
                for columns in torus.batches(vectors.shape[1])
            ],
            self.n,
        )

    def diagonal(self) -> Tensor:
        """Return the diagonal, shape (m,), whose entries are all equal."""
        with torch.no_grad():
            return self.kernel.diagonal(torch.zeros(1, self.grid.n_inputs, dtype=torch.float64)).expand(self.n)

    @property
    def variance(self) -> float:
        """Covariance of a node with itself."""
        return float(self.diagonal()[0])

    @property
    def tori(self) -> list[Torus]:
        """The torus of the root, as a list of one; see `SumKernel.tori`."""
        return [self.root_torus]

    def fitting_tori(self, limit: float) -> list[Torus]:
        """Return `fitting_torus` as a list of one."""
        return [self.fitting_torus(limit)]

    @torch.no_grad()
    def between(self, rows: Tensor | slice, columns: Tensor | slice) -> Tensor:
        """Return a block of the matrix."""
        nodes = self._node_list
        return self.kernel.block(nodes[rows], nodes[columns])

    @cached_property
    def _node_list(self) -> Tensor:
        return self.grid.nodes()

    def interpolated_variance(self, X: Tensor) -> Tensor:
        """Return ``w'K_G w`` at points inside the grid, shape (n,): slightly below the kernel's variance."""
        if not len(X):
            return X.new_zeros(0)
        # the covariance between the nodes of a stencil is the same for all points, because K_G is stationary
        corner = self._node_list[self.grid.stencil(X[:1])[0][0]]
        with torch.no_grad():
            between = self.kernel.block(corner, corner)
        weights = (self.grid.stencil(block)[1] for block in X.split(4096))
        return torch.cat([((block @ between) * block).sum(1) for block in weights])

    def gap(self, gram: StencilGram | RowsGram, total: float) -> float:
        """Return ``k(x, x) - w'K_G w`` averaged over the rows: the variance that the grid cannot represent.

        The mean of ``w'K_G w`` is the trace of ``K_G W'W`` over the rows' total weight. The sums of ``W'W`` along its
        diagonals give it exactly.
        """
        grid = self.grid
        offsets = torch.tensor(half_offsets(grid), dtype=torch.float64) * torch.tensor(
            grid.spacing, dtype=torch.float64
        )
        with torch.no_grad():
            covariances = self.kernel.block(offsets, torch.zeros(1, grid.n_inputs, dtype=torch.float64))[:, 0]
        double = torch.full_like(covariances, 2.0)
        double[0] = 1.0
        return self.variance - float((double * covariances) @ gram.offset_sums) / max(total, 1e-300)

    def to_dense(self) -> Tensor:
        """Return the matrix, shape (m, m); only for small grids."""
        nodes = self.grid.nodes()
        with torch.no_grad():
            return self.kernel.block(nodes, nodes)

    @torch.no_grad()
    def root(self, packed: Tensor) -> Tensor:
        """Return ``R c``, shape (m, s), for packed torus vectors c, where ``R R'`` is ``K_G`` up to `clipped`."""
        self.products += 1
        return self.root_torus.to_grid(packed, self._root_factor)

    @torch.no_grad()
    def root_transposed(self, vectors: Tensor) -> Tensor:
        """Return ``R' v``, packed, for vectors v of shape (m, s)."""
        self._check(vectors)
        return self.root_torus.from_grid(vectors, self._root_factor)

    def sample(self, n_samples: int, generator: torch.Generator) -> Tensor:
        """Return independent samples of ``N(0, K_G)`` up to `clipped`, shape (m, s) (Dietrich and Newsam 1997)."""
        batches = self.root_torus.batches(n_samples)
        parts = [self.root(self.root_torus.white_noise(c.stop - c.start, generator)) for c in batches]
        return column_major(parts, self.n)

    def _check(self, vectors: Tensor) -> None:
        if vectors.ndim != 2 or len(vectors) != self.n or vectors.dtype != torch.float64:
            raise InvalidInputError(
                f"GridKernel multiplies float64 vectors of shape ({self.n}, s); got {vectors.dtype} of shape "
                f"{tuple(vectors.shape)}."
            )

    # Derivatives ------------------------------------------------------------------------------------------------------

    def gradient(self, left: Tensor, right: Tensor, weights: Tensor | None = None) -> dict[str, Tensor]:
        """Return ``sum_j w_j L_j' (dK_G / d parameter) R_j`` for every hyperparameter, in natural units.

        The sum depends on left and right vectors only through their correlation at each offset between nodes. Computing
        this correlation takes one transform more than a product; the rest is the derivative of m covariances.
        """
        self._check(left)
        self._check(right)
        torus = self.torus
        total = torch.zeros(torus.spectrum_shape, dtype=torch.complex128)
        for columns in torus.batches(left.shape[1], arrays=2):
            one = torus.forward(left[:, columns])
            other = one if left is right else torus.forward(right[:, columns])
            scaled = one if weights is None else one * weights[columns].reshape(-1, *[1] * len(torus.lengths))
            total += (scaled.conj() * other).sum(0)
        # The orthonormal spectra already contain the factor 1 / L of the inverse transform.
        correlation = torch.fft.irfftn(total, s=torus.lengths) * torus.size
        return self._pull_back(correlation)

    def spectral_gradient(self, dual: Tensor, weights: Tensor) -> dict[str, Tensor]:
        """Return ``sum_j w_j q_j' (dT / d parameter) q_j`` for packed vectors q, where T is the kernel on `root_torus`.

        The vectors q are what `WhitenedOperator.to_dual` makes of solutions.
        """
        torus = self.root_torus
        powers = (dual.square() @ weights).reshape(*torus.spectrum_shape, 2).sum(-1)
        # Coefficients that occur twice already include both; irfftn counts them twice again.
        powers = torch.where(self._root_spectrum > 0, powers / torus.multiplicity(), 0.0)
        by_offset = torch.fft.irfftn(powers.to(torch.complex128), s=torus.lengths) * torus.size
        return self._differentiate(lambda kernel: self._first_column(torus, kernel), by_offset)

    def weighted_gradient(self, matrix_weights: Tensor) -> dict[str, Tensor]:
        """Return ``sum_ij A_ij d(K_G)_ij / d parameter`` for a dense A of shape (m, m); only for small grids."""
        nodes = self.grid.nodes()
        return self._differentiate(lambda kernel: kernel.block(nodes, nodes), matrix_weights)

    def _pull_back(self, correlation: Tensor) -> dict[str, Tensor]:
        """Return the derivatives of the sum over offsets of correlation times covariance."""
        axes, weights = [], correlation
        for k, (count, length) in enumerate(zip(self.grid.shape, self.torus.lengths, strict=True)):
            near, far = weights.narrow(k, 0, count), weights.narrow(k, length - count + 1, count - 1)
            steps = torch.arange(count, dtype=torch.float64)
            if self.even:  # an offset and its mirror image have the same covariance
                weights = near.clone()
                weights.narrow(k, 1, count - 1).add_(far.flip(k))
            else:
                weights = torch.cat([near, far], k)
                steps = torch.cat([steps, steps[1:].flip(0).neg()])
            axes.append(steps * self.grid.spacing[k])
        return self._differentiate(lambda kernel: self._at_offsets(axes, kernel), weights)

    def _differentiate(self, evaluate: object, weights: Tensor) -> dict[str, Tensor]:
        values = {name: value.detach().clone().requires_grad_() for name, value in self.kernel.parameters().items()}
        with torch.enable_grad():
            block = evaluate(self.kernel.replace(values))  # type: ignore[operator]
            if not block.requires_grad:  # the kernel has only white parts
                return {name: torch.zeros_like(value) for name, value in values.items()}
            found = torch.autograd.grad(block, list(values.values()), weights, allow_unused=True)
        return {
            name: torch.zeros_like(value) if one is None else one.detach()
            for (name, value), one in zip(values.items(), found, strict=True)
        }


def check_stationary(kernel: Kernel, grid: RegularGrid) -> bool:
    """Return whether a kernel is even in each input separately; raise `InvalidInputError` if it is not stationary.

    The check is numerical, at a few pairs of points, so that it also applies to user-defined kernels.
    """
    d = grid.n_inputs
    lower, upper = (torch.tensor(corner, dtype=torch.float64) for corner in (grid.lower, grid.upper))
    extent = upper - lower
    # A few offsets with different lengths and directions, at three different places.
    share = torch.tensor([[math.sin(3.0 * k + i * i) for k in range(1, d + 1)] for i in range(5)], dtype=torch.float64)
    offsets = share * extent * torch.tensor([0.05, 0.1, 0.2, 0.4, 0.6], dtype=torch.float64)[:, None]
    middle = lower + 0.5 * extent
    places = [middle, middle + 0.31 * extent, middle - 0.17 * extent]
    with torch.no_grad():
        found = torch.stack([kernel.block(place + offsets, place[None])[:, 0] for place in places])
        variances = kernel.diagonal(torch.stack(places))
        whites = kernel.white(torch.stack(places))
        mirrored = [kernel.block(middle + offsets * _flip(d, k), middle[None])[:, 0] for k in range(d)]
    # The absolute size of the covariances; the tolerance below allows for rounding of the coordinates.
    scale = float(found.abs().max() + variances.abs().max()) + 1e-300
    differs = max(float((part - part[0]).abs().max()) for part in (found, variances, whites))
    if not differs <= 1e-6 * scale:
        raise InvalidInputError(
            f"kernel of grid inference must be stationary (a function of differences) but for linear terms; got "
            f"{kernel!r}. Use Matern, RBF, RationalQuadratic, Periodic, sums and products of them, Linear as a term of "
            'its own, and mean="linear" for a trend.'
        )
    return all(float((part - found[0]).abs().max()) <= 1e-6 * scale for part in mirrored)


def _flip(d: int, k: int) -> Tensor:
    sign = torch.ones(d, dtype=torch.float64)
    sign[k] = -1
    return sign
