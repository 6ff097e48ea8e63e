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
from gigagp.kernels import Kernel
from gigagp.model.model import NOISE, Model
from gigagp.optimization.fisher import derivative_products
from gigagp.optimization.objective import Evaluation
from gigagp.optimization.space import ParameterSpace
from gigagp.products import PanelTiles
from gigagp.products.dense import eigh
from gigagp.products.engine import weights_of
from gigagp.products.panel import Factors

#: Entities and times of the part, at most; eigenvectors of 500 take a tenth of a second.
_MOST = 500
#: Least share of the rows that the complete part has, before it is cut to size, and least number of its entities.
_LEAST_SHARE, _LEAST_ENTITIES = 0.2, 50
#: Seed of the entities and times that are kept.
_SEED = 17


@dataclass(frozen=True)
class _Solved:
    """The complete part at one model, by eigenvectors U and V of its factors, in which H is the diagonal D."""

    model: Model
    factors: Factors
    U: Tensor
    V: Tensor
    of_entities: Tensor  # eigenvalues, (N,)
    of_times: Tensor  # (T,)
    D: Tensor  # (N, T)
    solutions: Tensor  # ``H^-1 (Y - mean)`` in the eigenvectors, (N, T, t)
    value: float


class PanelGuide(TableObjective):
    """The exact log marginal likelihood of entities and times of which every cell was observed.

    When to use: as a guide for inference on all cells of a panel whose kernel is one product of a part of entities and
    one of times. Value, gradient and Fisher information come from the eigenvectors of the factors, in ``N^3 + T^3``
    operations. Where gaps are not random the part is not either, so that steps on all cells follow.
    """

    substitute = None
    deterministic = True
    is_exact = True

    def __init__(self, table: TrainingTable, panel: PanelTiles, entities: Tensor, times: Tensor) -> None:
        cells = panel.known
        numbers = torch.full(cells.shape, -1, dtype=torch.long)
        numbers[cells.entity, cells.time] = torch.arange(table.n_rows)
        self._rows = numbers[entities][:, times].flatten()
        super().__init__(table.take_rows(self._rows))
        self._panel, self._shape = panel, (len(entities), len(times))
        self._entities, self._times = cells.entities[entities].double(), cells.times[times].double()
        columns = torch.cat([self.table.Y, self.table.basis], 1).double()
        self._columns = columns.view(*self._shape, -1)
        self._last: _Solved | None = None
        self._is_new = True

    @classmethod
    def of(cls, table: TrainingTable, model: Model, panel: PanelTiles) -> PanelGuide | None:
        """Return the guide of a panel; None where its kernel has several products or its gaps are everywhere."""
        if model.noise_is_known or model.kernel.has_white or len(panel.factors(model.kernel)) != 1:
            return None
        cells = panel.known
        observed = torch.zeros(cells.shape, dtype=torch.bool)
        observed[cells.entity, cells.time] = True
        entities, times = complete_part(observed)
        if len(entities) * len(times) < _LEAST_SHARE * table.n_rows or len(entities) < _LEAST_ENTITIES:
            return None
        generator = torch.Generator().manual_seed(_SEED)
        entities, times = (
            one[torch.randperm(len(one), generator=generator)[:_MOST]].sort().values for one in (entities, times)
        )
        return cls(table, panel, entities, times)

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
        (factors,) = self._panel.factors(model.kernel)
        S = self._dense(factors.entities, self._entities)
        (a, U), (b, V) = eigh(S), eigh(self._dense(factors.times, self._times))
        D = a.clamp_min(0)[:, None] * b.clamp_min(0) + model.noise_variance.double()
        n_entities, n_times = self._shape
        rotated = torch.matmul(V.T, (U.T @ self._columns.flatten(1)).view(n_entities, n_times, -1))
        t = self.table.n_targets
        of_targets, of_basis = rotated.split([t, rotated.shape[2] - t], 2)
        scaled = of_basis / D[:, :, None]
        gram, cross = (torch.einsum("atp,atq->pq", scaled, one) for one in (of_basis, of_targets))
        residuals = of_targets - of_basis @ Trend.from_products(gram, cross).coefficients
        solutions = residuals / D[:, :, None]
        determinant = float(D.log().sum()) + self.n_rows * math.log(2 * math.pi)
        value = -0.5 * (float((residuals * solutions).sum()) + t * determinant)
        self._last = _Solved(model, factors, U, V, a, b, D, solutions, value)
        return self._last

    def _dense(self, kernel: Kernel, points: Tensor) -> Tensor:
        return self._panel.engine.dense(kernel, points, budget=self.table.budget)

    def evaluate(self, model: Model) -> Evaluation:
        """Return the value and its gradient at a model with enough noise (see `start`)."""
        given, model = model, self.start(model)
        found, t = self._solve(model), self.table.n_targets
        alpha, inverse = found.solutions, t / found.D
        by_entities = torch.einsum("ats,t,bts->ab", alpha, found.of_times, alpha)
        by_entities.diagonal().sub_(inverse @ found.of_times)
        by_times = torch.einsum("ats,a,aus->tu", alpha, found.of_entities, alpha)
        by_times.diagonal().sub_(found.of_entities @ inverse)
        gradient = {
            name: torch.zeros(value.shape, dtype=torch.float64) for name, value in model.kernel.parameters().items()
        }
        factors, engine, budget = found.factors, self._panel.engine, self.table.budget
        for part, points, vectors, weights, names in (
            (factors.entities, self._entities, found.U, by_entities, factors.entity_names),
            (factors.times, self._times, found.V, by_times, factors.time_names),
        ):
            whole = weights_of(0.5 * (vectors @ weights @ vectors.T))
            slopes = engine.gradient(part, points, points, whole, symmetric=True, budget=budget)
            for name, slope in zip(names, slopes.values(), strict=False):
                gradient[name] += slope.reshape(gradient[name].shape)
        gradient[NOISE] = 0.5 * (alpha.square().sum() - inverse.sum())
        return at_least_noise(Evaluation(found.value, gradient), given, self.table.X)

    def quick_value(self, model: Model) -> float:
        """Return the value, which takes the eigenvectors alone."""
        return self._solve(self.start(model)).value

    def fisher(self, space: ParameterSpace, vector: Tensor, probes: Tensor) -> Tensor:
        """Return the Fisher information ``tr(H^-1 D_k H^-1 D_l) / 2`` of all targets; ``probes`` have no effect."""
        found = self._last
        assert found is not None, "evaluate comes first"
        a, b, D, factors = found.of_entities, found.of_times, found.D, found.factors
        slopes = self._slopes(factors.entities, self._entities, found.U, factors.entity_names)
        of_times = self._slopes(factors.times, self._times, found.V, factors.time_names)
        n, m = len(a), len(b)
        zero, one = torch.zeros(0, n, n, dtype=torch.float64), torch.zeros(0, m, m, dtype=torch.float64)
        names = space.names
        G = torch.cat([zero, *(slopes[name] for name in names if name in slopes)])
        E = torch.cat([one, *(of_times[name] for name in names if name in of_times)])
        g, e = (values.diagonal(dim1=1, dim2=2) for values in (G, E))
        by_entities, by_times = b / D, a[:, None] / D
        p, q = len(G), len(E)
        size = p + q + (NOISE in names)
        whole = torch.zeros(size, size, dtype=torch.float64)
        whole[:p, :p] = (G * (by_entities @ by_entities.T)).flatten(1) @ G.flatten(1).T
        whole[p : p + q, p : p + q] = (E * (by_times.T @ by_times)).flatten(1) @ E.flatten(1).T
        whole[:p, p : p + q] = g @ (by_entities * by_times) @ e.T
        if NOISE in names:
            whole[:p, -1] = g @ (by_entities / D).sum(1)
            whole[p : p + q, -1] = e @ (by_times / D).sum(0)
            whole[-1, -1] = D.square().reciprocal().sum()
        whole = whole.triu() + whole.triu(1).T
        # from entities, times and noise to the order of the space
        places, start = {}, 0
        for name in [*(x for x in names if x in slopes), *(x for x in names if x in of_times), NOISE]:
            count = len(slopes.get(name, of_times.get(name, torch.zeros(1))))
            places[name], start = range(start, start + count), start + count
        order = torch.tensor([place for name in names for place in places[name]], dtype=torch.long)
        jacobian = space.jacobian(vector)
        information = 0.5 * self.table.n_targets * whole[order][:, order]
        return jacobian[:, None] * information * jacobian

    def _slopes(self, part: Kernel, points: Tensor, vectors: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Return ``U' (dK / d value) U`` for the values of each hyperparameter of a factor, by its full name."""
        products = derivative_products(part, points, vectors)
        return {name: vectors.T @ products[own] for own, name in zip(part.parameters(), names, strict=False)}

    def thin(self, rows: Tensor) -> TableObjective:
        return self.subset(rows)

    def current_posterior(self) -> Posterior | None:
        return None

    def posterior(self, model: Model, generator: torch.Generator) -> Posterior:
        """Return the exact posterior given the part."""
        return self.subset(torch.arange(self.n_rows)).posterior(model, generator)


def complete_part(observed: Tensor) -> tuple[Tensor, Tensor]:
    """Return entities and times, as sorted numbers, of which every cell was observed (N, T).

    Whichever entity or time lacks the largest share of what is left is left out, one after the other.
    """
    missing = (~observed).double()
    kept = [torch.ones(size, dtype=torch.bool) for size in observed.shape]
    counts = [missing.sum(1), missing.sum(0)]
    while bool((counts[0] * kept[0]).sum() > 0):
        sizes = [int(one.sum()) for one in kept]
        shares = [counts[axis] * kept[axis] / max(sizes[1 - axis], 1) for axis in (0, 1)]
        axis = int(shares[1].max() > shares[0].max())
        out = int(shares[axis].argmax())
        kept[axis][out] = False
        counts[1 - axis] = counts[1 - axis] - (missing[:, out] if axis else missing[out])
    return torch.nonzero(kept[0])[:, 0], torch.nonzero(kept[1])[:, 0]
