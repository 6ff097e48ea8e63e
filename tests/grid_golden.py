"""The small problem that the notes on faster kernel interpolation give numbers for (section 10)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gigagp.kernels import RBF, Kernel
from gigagp.operators.grid import GridKernel, GridOperator, Starts
from gigagp.operators.grid.statistics import GridStatistics, RegularGrid

NOISE = 0.09
LENGTHSCALE, VARIANCE = 0.2, 1.5


@dataclass
class GoldenGrid:
    """Forty rows on fourteen nodes, with everything dense."""

    lengthscale: float = LENGTHSCALE
    variance: float = VARIANCE
    spacing: float = 0.1
    n_nodes: int = 14

    @cached_property
    def x(self) -> Tensor:
        i = torch.arange(40, dtype=torch.float64)
        return torch.frac((i + 1) * 0.6180339887498949)[:, None]

    @cached_property
    def y(self) -> Tensor:
        i = torch.arange(40, dtype=torch.float64)
        return torch.sin(4 * math.pi * self.x[:, 0]) + 0.3 * torch.cos(37 * (i + 1))

    @cached_property
    def grid(self) -> RegularGrid:
        return RegularGrid((-self.spacing,), (self.spacing,), (self.n_nodes,))

    @property
    def kernel(self) -> Kernel:
        return RBF(self.lengthscale, self.variance).bind(1)

    @cached_property
    def statistics(self) -> GridStatistics:
        return GridStatistics.from_rows(self.grid, self.x, self.y)

    @cached_property
    def W(self) -> Tensor:
        return self.grid.matrix(self.x).to_dense()

    @cached_property
    def K(self) -> Tensor:
        return self.kernel.block(self.grid.nodes(), self.grid.nodes())

    @cached_property
    def S(self) -> Tensor:
        return self.W.T @ self.W

    @cached_property
    def H(self) -> Tensor:
        """``W K_G W' + noise``."""
        return self.W @ self.K @ self.W.T + NOISE * torch.eye(40, dtype=torch.float64)

    @cached_property
    def A(self) -> Tensor:
        """``K_G W'W + noise``."""
        return self.K @ self.S + NOISE * torch.eye(self.n_nodes, dtype=torch.float64)

    @cached_property
    def mean_on_grid(self) -> Tensor:
        return torch.linalg.solve(self.A, self.K @ self.W.T @ self.y)

    def operator(self, z: Tensor | None = None, kernel: GridKernel | None = None) -> GridOperator:
        """Return the factorised operator, with a start vector of the rows if one is given."""
        starts = None if z is None else Starts((self.W.T @ z)[:, None], (z @ z)[None])
        return GridOperator(kernel or GridKernel(self.kernel, self.grid), self.statistics.gram, NOISE, starts, 40)


TEST_POINTS = torch.tensor([[0.13], [0.5], [0.97]], dtype=torch.float64)
MEAN = torch.tensor([0.863059082, 0.000665396585, -0.491962459], dtype=torch.float64)
COVARIANCE = torch.tensor(
    [
        [0.0130385747, 2.83148286e-4, -1.51073538e-5],
        [2.83148286e-4, 0.0121369600, 2.09878862e-4],
        [-1.51073538e-5, 2.09878862e-4, 0.0357007914],
    ],
    dtype=torch.float64,
)
GRID_MEAN = [-0.64629680, 0.17349665, 0.86401029, 0.53412426, -0.52640373, -0.89713514, 0.00066540, 0.90657197,
             0.53749169, -0.54373576, -0.90364667, -0.25778349, 0.50696589, 0.72548682]  # fmt: skip
LOG_DETERMINANT = -71.66890935243387
DATA_FIT = 37.981330661067695
LOG_LIKELIHOOD = -19.913751982503815
GRADIENT = {"lengthscale": -182.593696198, "variance": 3.009894485, "noise_variance": -61.379737739}
ALPHA = [0.31049282, 0.0999018138, 0.3436803372, 0.1368356618, 0.2122359461, 1.3062448844, 2.5138033002]
BETA = [1.4343983749, 0.48908189058, 5.5572693442, 0.037472365040, 0.90803127219, 0.93419964107, 2.1584345308e-4]
SQUARED_RESIDUALS = [21.773439018, 31.231785545, 15.274900720, 84.886737508, 3.1809068150, 2.8883628619, 2.6983075489,
                     5.8241201882e-4]  # fmt: skip
START_WEIGHTS = [1, 0.97205564620, 0.95041882526, 0.88461659475, 0.72812728497, 0.70512388809, 0.49367028344,
                 1.8255091956e-3]  # fmt: skip
SIMPLIFIED_RESIDUALS = [66341.665064, 18087.301206, 11311.622054, 113.27510767, 221.89448728, 24.173896897]
LANCZOS_DIAGONAL = [3.2206863914, 14.6295755967, 7.8053063064, 23.4779150610, 4.9855865978, 5.0439579516, 1.1129831585,
                    0.1386054067]  # fmt: skip
LANCZOS_OFF_DIAGONAL = [3.8572992293, 7.0003123419, 6.8592406085, 1.4146736198, 4.4898461670, 0.73993785351,
                        0.0058443759922]  # fmt: skip
LANCZOS_START_WEIGHTS = [1, -0.8116265307, 1.1347216641, -0.4480213141, 1.9050016096, -1.9359898071, 1.4023446955,
                         -0.3529655953]  # fmt: skip
