"""Additive kernels on sums of grids, and random slopes on any grid."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels import Kernel
from gigagp.kernels.additive import Component, components
from gigagp.model.prior_samples import PriorSamples
from gigagp.operators.grid.kernel import GridKernel
from gigagp.operators.grid.statistics import GridSum, RegularGrid, StencilGram, SumGram
from gigagp.operators.grid.statistics.rows_gram import RowsGram
from gigagp.operators.grid.torus import Torus
from gigagp.settings.random import standard_normal

#: Number of random features of prior functions, if a kernel has no root on a torus of reasonable size.
_FEATURES = 4000


class SumKernel:
    """The prior covariance between the nodes of any grid: ``K_G`` of each component, and slopes.

    On a `GridSum` each component of the kernel (`gigagp.kernels.additive.components`) has its own grid, and different
    grids are independent. A linear term of the kernel adds ``F F'``, where the columns of F are linear functions on the
    nodes, one for each slope. Interpolation reproduces them exactly.

    ``parts`` holds the components with their places in a vector. Some grids may have none; they serve slopes and the
    mean only. ``tori`` has the torus of each grid for samples; see `GridKernel`.
    """

    def __init__(self, kernel: Kernel, grid: RegularGrid | GridSum, tori: Sequence[Torus] | None = None) -> None:
        self.kernel = kernel.bind(grid.n_inputs)
        self.grid = grid
        if isinstance(grid, RegularGrid):
            every = tuple(range(grid.n_inputs))
            found, self.slopes = components(self.kernel, every)
            grids, columns, places = [grid], [every], [slice(0, grid.size)]
        else:
            found, self.slopes = components(self.kernel)
            grids, columns, places = list(grid.grids), list(grid.columns), grid.places
        self._columns, self._places, self._grids = columns, places, grids
        missing = [one.columns for one in found if one.columns not in columns]
        if missing:
            msg = f"grid of SumKernel has no grid for the terms of the inputs {missing[0]}; got {columns}."
            raise InvalidInputError(msg)
        self.parts: list[tuple[slice, GridKernel, Component]] = []
        for one in found:
            k = columns.index(one.columns)
            own = GridKernel(one.kernel, grids[k], None if tori is None else tori[k])
            self.parts.append((places[k], own, one))

    @property
    def n(self) -> int:
        """Number of nodes m."""
        return self.grid.size

    @property
    def products(self) -> int:
        """Number of products with ``K_G`` so far."""
        return max((own.products for _, own, _ in self.parts), default=0)

    @property
    def pieces(self) -> list[tuple[Kernel, RegularGrid, tuple[int, ...]]]:
        """The kernel of each component with its grid and inputs."""
        return [(own.kernel, own.grid, one.columns) for _, own, one in self.parts]

    # Roots ------------------------------------------------------------------------------------------------------------

    @property
    def root_error(self) -> float:
        """Bound on the error of the roots of the components, in units of the kernel's variance."""
        return max((own.root_error for _, own, _ in self.parts), default=0.0)

    @property
    def tori(self) -> list[Torus]:
        """Torus of each grid."""
        return self._of_grids({place.start: own.root_torus for place, own, _ in self.parts})

    def fitting_tori(self, limit: float) -> list[Torus]:
        """Return tori on which the roots have an error of at most ``limit``; see `GridKernel.fitting_torus`."""
        return self._of_grids({place.start: own.fitting_torus(limit) for place, own, _ in self.parts})

    def _of_grids(self, tori: dict[int, Torus]) -> list[Torus]:
        """Return one torus for each grid from those of the components, by where their values begin."""
        grids = zip(self._places, self._grids, strict=True)
        return [tori.get(place.start, Torus.around(grid.shape)) for place, grid in grids]

    # Slopes -----------------------------------------------------------------------------------------------------------

    @cached_property
    def lines(self) -> Tensor:
        """Linear functions on the nodes, zero at their centres, one column for each slope, shape (m, p)."""
        columns = [torch.zeros(self.n, 0, dtype=torch.float64)]
        for term in self.slopes:
            for column, centre in zip(term.columns, term.centre().tolist(), strict=True):
                # a separate column for each slope, so that several linear terms add up
                columns.append(self.grid.extended(partial(_line, column, centre)))
        return torch.cat(columns, 1)

    @property
    def slope_variances(self) -> Tensor:
        """Prior variance of each slope, shape (p,)."""
        with torch.no_grad():
            return torch.cat([torch.zeros(0, dtype=torch.float64), *(term.variances() for term in self.slopes)])

    @cached_property
    def slope_root(self) -> Tensor:
        """Root F of the covariance that the slopes add, shape (m, p)."""
        return self.lines * self.slope_variances.sqrt()

    def slope_gradient(self, adjoint: Tensor, weights: Tensor) -> dict[str, Tensor]:
        """Return ``sum_j w_j q_j' (d F F' / d parameter) q_j`` for every hyperparameter of the kernel."""
        return self._by_slopes((self.lines.T @ adjoint).square() @ weights)

    def _by_slopes(self, powers: Tensor) -> dict[str, Tensor]:
        values = {name: value.detach().clone().requires_grad_() for name, value in self.kernel.parameters().items()}
        if not self.slopes:
            return {name: torch.zeros_like(value).detach() for name, value in values.items()}
        with torch.enable_grad():
            variances = torch.cat([term.variances(values) for term in self.slopes])
            found = torch.autograd.grad(variances, list(values.values()), powers, allow_unused=True)
        return {
            name: torch.zeros_like(value).detach() if one is None else one
            for (name, value), one in zip(values.items(), found, strict=True)
        }

    # The covariance without slopes ------------------------------------------------------------------------------------

    @property
    def smooth(self) -> GridKernel | SumKernel:
        """The covariance without slopes: the kernel of the grid, if there is only one."""
        if isinstance(self.grid, RegularGrid) and self.parts:
            return self.parts[0][1]
        other = SumKernel.__new__(SumKernel)
        other.__dict__.update({name: value for name, value in self.__dict__.items() if name not in _CACHED})
        other.slopes = []
        return other

    def smooth_gradient(self, gradient: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return derivatives by all hyperparameters from those by the hyperparameters of `smooth`."""
        if not isinstance(self.grid, RegularGrid) or not self.parts:
            return gradient
        whole = self._zeros()
        self.parts[0][2].gather(gradient, whole)
        return whole

    # Products ---------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def __matmul__(self, vectors: Tensor) -> Tensor:
        """Return ``K_G @ vectors`` for vectors of shape (m, s), float64."""
        product = torch.zeros_like(vectors)
        for place, own, _ in self.parts:
            product[place] = own @ vectors[place]
        return product if not self.slopes else product.addmm_(self.slope_root, self.slope_root.T @ vectors)

    def diagonal(self) -> Tensor:
        """Return the diagonal, shape (m,)."""
        found = self.slope_root.square().sum(1)
        for place, own, _ in self.parts:
            found[place] += own.diagonal()
        return found

    @property
    def variance(self) -> float:
        """Variance of the stationary part at any point."""
        return sum(own.variance for _, own, _ in self.parts)

    def to_dense(self) -> Tensor:
        """Return the matrix, shape (m, m); only for small grids."""
        found = self.slope_root @ self.slope_root.T
        for place, own, _ in self.parts:
            found[place, place] += own.to_dense()
        return found

    @torch.no_grad()
    def between(self, rows: Tensor | slice, columns: Tensor | slice) -> Tensor:
        """Return a block of the matrix."""
        nodes = torch.arange(self.n)
        i, j = nodes[rows], nodes[columns]
        found = self.slope_root[i] @ self.slope_root[j].T
        for place, own, _ in self.parts:
            a, b = (((one >= place.start) & (one < place.stop)).nonzero()[:, 0] for one in (i, j))
            if len(a) and len(b):
                found[a[:, None], b] += own.between(i[a] - place.start, j[b] - place.start)
        return found

    def interpolated_variance(self, X: Tensor) -> Tensor:
        """Return ``w'K_G w`` at points inside the grid, shape (n,)."""
        found = self.grid.interpolate(X, self.slope_root).square().sum(1)
        for place, own, _ in self.parts:
            found = found + own.interpolated_variance(X[:, list(self._columns[self._places.index(place)])])
        return found

    def gap(self, gram: StencilGram | SumGram | RowsGram, total: float) -> float:
        """Return ``k(x, x) - w'K_G w`` averaged over the rows; slopes have none."""
        if isinstance(gram, SumGram):
            return sum(own.gap(gram.stencil(self._places.index(place)), total) for place, own, _ in self.parts)
        return sum(own.gap(gram, total) for _, own, _ in self.parts)

    def sample(self, n_samples: int, generator: torch.Generator, limit: float = torch.inf) -> Tensor:
        """Return samples of ``N(0, K_G)``, shape (m, s), by features where a root errs by more than a limit."""
        draws = self.slope_root @ standard_normal(self.slope_root.shape[1], n_samples, generator=generator)
        for place, own, _ in self.parts:
            if own.root_error <= limit or not own.kernel.has_features():
                draws[place] += own.sample(n_samples, generator)
            else:
                d = own.grid.n_inputs
                functions = PriorSamples.new(own.kernel, d, n_samples, _FEATURES, generator)
                draws[place] += functions.evaluate(own.kernel, own.grid.nodes(), 2**28)
        return draws

    # Derivatives ------------------------------------------------------------------------------------------------------

    def _zeros(self) -> dict[str, Tensor]:
        return {name: torch.zeros_like(value).detach() for name, value in self.kernel.parameters().items()}

    def gradient(self, left: Tensor, right: Tensor, weights: Tensor | None = None) -> dict[str, Tensor]:
        """Return ``sum_j w_j L_j' (dK_G / d parameter) R_j`` for every hyperparameter; see `GridKernel.gradient`."""
        powers = (self.lines.T @ left) * (self.lines.T @ right)
        whole = self._by_slopes(powers.sum(1) if weights is None else powers @ weights)
        for place, own, component in self.parts:
            component.gather(own.gradient(left[place], right[place], weights), whole)
        return whole

    def weighted_gradient(self, matrix_weights: Tensor) -> dict[str, Tensor]:
        """Return ``sum_ij A_ij d(K_G)_ij / d parameter`` for a dense A of shape (m, m); only for small grids."""
        whole = self._by_slopes(((matrix_weights @ self.lines) * self.lines).sum(0))
        for place, own, component in self.parts:
            component.gather(own.weighted_gradient(matrix_weights[place, place]), whole)
        return whole


#: Parts that depend on the slopes and are computed once.
_CACHED = ("lines", "slope_root")


def _line(column: int, centre: float, X: Tensor) -> Tensor:
    return X[:, column : column + 1] - centre


def grid_kernel(
    kernel: Kernel, grid: RegularGrid | GridSum, tori: Sequence[Torus] | None = None
) -> GridKernel | SumKernel:
    """Return the prior covariance between the nodes of a grid: a `GridKernel` if it is stationary on one grid."""
    if isinstance(grid, GridSum) or components(kernel.bind(grid.n_inputs), range(grid.n_inputs))[1]:
        return SumKernel(kernel, grid, tori)
    return GridKernel(kernel, grid, None if tori is None else tori[0])
