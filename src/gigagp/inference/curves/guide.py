"""The exact likelihood of the complete part of a panel, which guides learning on panels with gaps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.inference.contract.least_noise import at_least_noise, with_least_noise
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import Trend
from gigagp.inference.curves.complete import Grid, Product, has_spectrum
from gigagp.model.model import NOISE, Model
from gigagp.optimization.fisher import derivative_products
from gigagp.optimization.objective import Evaluation
from gigagp.optimization.space import ParameterSpace
from gigagp.products import PanelTiles
from gigagp.products.engine import weights_of
from gigagp.settings.random import standard_normal
from gigagp.solvers.preconditioners.complete_panel import Spectrum

#: Entities and times of the part, at most; eigenvectors of 500 take a tenth of a second.
_MOST = 500
#: Smallest gain in nats for each observation that is worth another step, which takes a fraction of a second.
_LEAST_GAIN = 1e-5
#: Seeds of the entities and times that are kept, and of the draws for the information; how many cells they have.
_SEED, _DRAWS_SEED, _DRAWN_CELLS = 17, 18, 50_000


@dataclass(frozen=True)
class _Solved:
    """The complete part at one model."""

    model: Model
    products: list[Product]
    spectrum: Spectrum
    solutions: Tensor  # ``H^-1 (Y - mean)``, (N, T, t)
    value: float


class PanelGuide(TableObjective):
    """The exact log marginal likelihood of entities and times of which every cell was observed.

    When to use: as a guide for inference on all cells of a panel whose kernel is a product of a part of entities and
    one of times, to which parts of entities alone and of times alone may be added. Value and gradient come from the
    eigenvectors of the factors and a correction of rank ``N + T``, in some ``N^3 + T^3`` operations. Where gaps are not
    random the part is not either, so that steps on all cells follow.
    """

    rival = None
    deterministic = True
    is_exact = True

    def __init__(self, table: TrainingTable, panel: PanelTiles, grid: Grid) -> None:
        self.grid, self._panel = grid, panel
        super().__init__(table.take_rows(grid.rows.flatten()))
        columns = torch.cat([self.table.Y, self.table.basis], 1).double()
        self._columns = columns.view(*grid.cells.shape, -1)
        self._last: _Solved | None = None
        self._is_new = True

    @classmethod
    def of(cls, table: TrainingTable, model: Model, panel: PanelTiles) -> PanelGuide | None:
        """Return the guide of a panel; None where its kernel has several products or its gaps are everywhere."""
        grid = Grid.of(panel, table.n_rows) if has_spectrum(panel, model) else None
        return None if grid is None else cls.of_grid(table, panel, grid)

    @classmethod
    def of_grid(cls, table: TrainingTable, panel: PanelTiles, grid: Grid) -> PanelGuide:
        """Return the guide of random entities and times of a complete part."""
        generator = torch.Generator().manual_seed(_SEED)
        some = (torch.randperm(size, generator=generator)[:_MOST].sort().values for size in grid.cells.shape)
        return cls(table, panel, grid.take(*some))

    @property
    def least_gain(self) -> float:
        return _LEAST_GAIN * self.n_observations

    def guide(self, model: Model) -> PanelGuide:
        return self

    def refresh(self, model: Model) -> bool:
        """Return whether this is the first call: the rows stay the same."""
        is_new, self._is_new = self._is_new, False
        return is_new

    def finest(self, model: Model) -> float:
        """Return 1: the entities are no nearer to each other than random ones."""
        return 1.0

    def start(self, model: Model) -> Model:
        """Return the model with at least the noise that float64 needs."""
        return with_least_noise(model, self.table.X)

    def _solve(self, model: Model) -> _Solved:
        if self._last is not None and model.equals(self._last.model):
            return self._last
        products, spectrum = self.grid.solved(model, self._panel, self.table.budget)
        t = self.table.n_targets
        rotated = spectrum.to_basis(self._columns)
        divided = spectrum.divide(rotated.clone())
        gram = torch.einsum("ats,atr->sr", rotated, divided)
        trend = Trend.from_products(gram[t:, t:], gram[t:, :t]).coefficients
        contrast = torch.cat([torch.eye(t, dtype=torch.float64), -trend])
        squares = float((contrast * (gram @ contrast)).sum())
        determinant = spectrum.log_determinant() + self.n_rows * math.log(2 * math.pi)
        value = -0.5 * (squares + t * determinant)
        self._last = _Solved(model, products, spectrum, spectrum.from_basis(divided @ contrast), value)
        return self._last

    def evaluate(self, model: Model) -> Evaluation:
        """Return the value and its gradient at a model with enough noise (see `start`)."""
        given, model = model, self.start(model)
        found, t = self._solve(model), self.table.n_targets
        alpha, inverse = found.solutions, _Inverse.of(found.spectrum)
        gradient = {
            name: torch.zeros(value.shape, dtype=torch.float64) for name, value in model.kernel.parameters().items()
        }
        engine, budget = self._panel.engine, self.table.budget
        for one in found.products:
            S, T = one.whole(self.grid.cells.shape)
            by_entities = torch.einsum("ats,tu,bus->ab", alpha, T, alpha) - t * inverse.by_entities(T)
            by_times = torch.einsum("ats,ab,bus->tu", alpha, S, alpha) - t * inverse.transposed.by_entities(S)
            for part, points, weights, names in (
                (one.factors.entities, one.cells.entities, by_entities, one.factors.entity_names),
                (one.factors.times, one.cells.times, by_times, one.factors.time_names),
            ):
                if not names:
                    continue
                own = weights if len(points) > 1 else weights.sum().reshape(1, 1)
                slopes = engine.gradient(part, points, points, weights_of(0.5 * own), symmetric=True, budget=budget)
                for name, slope in zip(names, slopes.values(), strict=False):
                    gradient[name] += slope.reshape(gradient[name].shape)
        trace = inverse.by_entities(torch.eye(self.grid.cells.shape[1], dtype=torch.float64)).trace()
        gradient[NOISE] = 0.5 * (alpha.square().sum() - t * trace)
        return at_least_noise(Evaluation(found.value, gradient), given, self.table.X)

    def quick_value(self, model: Model) -> float:
        """Return the value, which takes the eigenvectors alone."""
        return self._solve(self.start(model)).value

    def fisher(self, space: ParameterSpace, vector: Tensor, probes: Tensor) -> Tensor:
        """Return an estimate of the Fisher information of all targets, from a few draws; ``probes`` have no effect.

        It is ``tr(H^-1 D_k H^-1 D_l) / 2``, the mean of ``x' D_k H^-1 D_l x / 2`` over draws x of ``N(0, H^-1)``.
        """
        found = self._solve(self.start(space.decode(vector)))
        spectrum, s = found.spectrum, max(1, _DRAWN_CELLS // self.n_rows)
        n_entities, n_times = self.grid.cells.shape
        normal = standard_normal(spectrum.n_normal, s, generator=torch.Generator().manual_seed(_DRAWS_SEED))
        draws = spectrum.solve(spectrum.sample(normal.double()))
        slopes = {NOISE: draws[None]}
        for one in found.products:
            S, T = one.whole(self.grid.cells.shape)
            of_entities = torch.einsum("tu,aus->ats", T, draws)
            of_times = torch.einsum("ab,bus->uas", S, draws)
            for part, points, vectors, names, axis in (
                (one.factors.entities, one.cells.entities, of_entities, one.factors.entity_names, 1),
                (one.factors.times, one.cells.times, of_times, one.factors.time_names, 2),
            ):
                size = vectors.shape[0]
                flat = vectors.flatten(1) if len(points) > 1 else vectors.sum(0).reshape(1, -1)
                moved = derivative_products(part, points, flat)
                for name, own_name in zip(names, part.parameters(), strict=False):
                    own = moved[own_name].expand(-1, size, -1)
                    table = own.reshape(len(own), *vectors.shape).movedim(1, axis)
                    slopes[name] = slopes[name] + table if name in slopes else table
        stacked = torch.cat([slopes[name] for name in space.names])  # (p, N, T, s)
        p = len(stacked)
        table = stacked.movedim(0, 2).reshape(n_entities, n_times, p * s)
        solved = spectrum.solve(table).view(n_entities, n_times, p, s)
        flat = solved.movedim(2, 0).reshape(p, -1)
        information = 0.5 / s * self.table.n_targets * (stacked.reshape(p, -1) @ flat.T)
        jacobian = space.jacobian(vector)
        return jacobian[:, None] * (0.5 * (information + information.T)) * jacobian

    def thin(self, rows: Tensor) -> TableObjective:
        return self.subset(rows)

    def current_posterior(self) -> Posterior | None:
        return None

    def posterior(self, model: Model, generator: torch.Generator) -> Posterior:
        """Return the exact posterior given the part."""
        return self.subset(torch.arange(self.n_rows)).posterior(model, generator)


@dataclass(frozen=True)
class _Inverse:
    """``H^-1 = (left (x) right) (D - B B') (left (x) right)'`` for a table D of numbers, in a `Spectrum`'s basis.

    The row of B for a cell (n, t) is ``D_nt (v_t P_n + w_n R_t)``.
    """

    left: Tensor
    right: Tensor
    D: Tensor
    w: Tensor
    v: Tensor
    P: Tensor
    R: Tensor

    @classmethod
    def of(cls, spectrum: Spectrum) -> _Inverse:
        alone = spectrum.alone
        P, R = spectrum.roots().mT.split([len(alone.L), len(alone.R)])
        return cls(spectrum.left, spectrum.right, 1 / spectrum.values, alone.w, alone.v, P, R)

    @property
    def transposed(self) -> _Inverse:
        """The same with entities and times exchanged."""
        return _Inverse(self.right, self.left, self.D.T, self.v, self.w, self.R, self.P)

    def by_entities(self, T: Tensor) -> Tensor:
        """Return the sums over times t and u of ``H^-1[(a, t), (b, u)] T[t, u]`` for entities a and b, (N, N)."""
        D, P, R, w, v = self.D, self.P, self.R, self.w, self.v
        rotated = self.right.T @ T @ self.right
        found = torch.diag(D @ rotated.diagonal())
        if P.shape[1]:
            of_entities = D * v
            passed = of_entities @ rotated
            mixed = ((passed * (P @ R.T)) @ D.T) * w
            found -= (P @ P.T) * (passed @ of_entities.T) + mixed + mixed.T
            found -= w[:, None] * (D @ (rotated * (R @ R.T)) @ D.T) * w
        return self.left @ found @ self.left.T
