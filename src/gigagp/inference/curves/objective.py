"""The likelihood of curves given other curves, with its gradient, and how it learns."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.inference.contract.least_noise import at_least_noise, with_least_noise
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.curves.complete import panel_of_rows
from gigagp.inference.curves.guide import PanelGuide
from gigagp.inference.curves.posterior import CurvesPosterior, whitened
from gigagp.inference.iterative.subset_guide import SubsetGuide, guide_of
from gigagp.inference.vecchia.likelihood import Regression, pool_of
from gigagp.inference.vecchia.objective import VecchiaObjective
from gigagp.model.model import Model
from gigagp.neighbours.conditionals import is_compiled
from gigagp.neighbours.curves import CurveGraph
from gigagp.neighbours.joint import Joint
from gigagp.optimization.objective import Evaluation
from gigagp.runtime import interruption

#: Curves whose densities estimate the likelihood in learning, and their seed.
_LEARNING_CURVES, _SEED = 150, 5
#: Smallest gain in nats for each observation that is worth another step.
_LEAST_GAIN = 1e-4


class CurvesObjective(TableObjective):
    """The log density of curves, each given whole curves that come earlier (Vecchia 1988, in blocks).

    Where a part of the panel is complete, its exact likelihood stands for the curves in it, and guides learning; the
    densities of random other curves are added. They stand for all curves that have gaps, which may differ from those
    without.
    """

    deterministic = True

    def __init__(
        self,
        table: TrainingTable,
        columns: tuple[tuple[int, ...], tuple[int, ...]],
        n_neighbours: int,
        prediction_neighbours: int,
    ) -> None:
        super().__init__(table)
        self._columns, self.n_neighbours, self.prediction_neighbours = columns, n_neighbours, prediction_neighbours
        self._graph: CurveGraph | None = None
        self._complete: PanelGuide | None = None
        self._entities: list[int] = []
        self._shares = 0.0, 1.0

    def graph_of(self, model: Model) -> CurveGraph:
        """Return the neighbours at a model."""
        return CurveGraph(model.kernel, self.table.X, *self._columns, self.n_neighbours)

    @property
    def least_gain(self) -> float:
        return _LEAST_GAIN * self.n_observations

    def guide(self, model: Model) -> PanelGuide | VecchiaObjective | SubsetGuide | None:
        """Return the exact likelihood of the complete part of the panel, or else that of rows by neighbours."""
        panel = panel_of_rows(self.table, model)
        if panel is not None:
            self._complete = PanelGuide.of(self.table, model, panel)
        if self._complete is not None:
            return self._complete
        return guide_of(VecchiaObjective.for_learning(self.table), model) if is_compiled(model.kernel) else None

    def start(self, model: Model) -> Model:
        """Choose the neighbours, and the curves to learn from; return the model with the noise that float64 needs."""
        graph = self._graph = self.graph_of(model)
        order = torch.randperm(graph.n_entities, generator=torch.Generator().manual_seed(_SEED))
        others, complete = torch.ones(graph.n_entities, dtype=torch.bool), self._complete
        lengths = torch.tensor([len(rows) for rows in graph.curves])
        share = 0.0
        if complete is not None:
            held = lengths[graph.entity[complete.grid.rows.flatten()]].max()
            others = lengths < held
            share = float(lengths[~others].sum()) / complete.n_rows
        self._entities = order[others[order]][:_LEARNING_CURVES].tolist()
        rows = max(float(lengths[self._entities].sum()), 1.0)
        self._shares = share, float(lengths[others].sum()) / rows
        return with_least_noise(model, self.table.X)

    def evaluate(self, model: Model) -> Evaluation:
        """Return the value and its gradient at a model with enough noise."""
        if self._graph is None:
            self.start(model)
        assert self._graph is not None
        given, model = model, with_least_noise(model, self.table.X)
        regression, pool = self._regression(model), pool_of(model, self.table)
        of_complete, of_others = self._shares
        value = of_others * regression.value
        gradient = {name: torch.zeros(one.shape, dtype=torch.float64) for name, one in model.parameters().items()}
        values = self.table.Y.double() - self.table.basis.double() @ regression.trend.coefficients
        for rows, near in self._graph.blocks(self._entities):
            interruption.check()
            for name, slope in Joint.of(pool, rows, near).gradient(values).items():
                gradient[name] += of_others * slope
        if of_complete and self._complete is not None:
            found = self._complete.evaluate(model)
            assert found.value is not None
            value += of_complete * found.value
            for name, slope in found.gradient.items():
                gradient[name] += of_complete * slope
        if model.noise_is_known:
            del gradient["noise_variance"]
        return at_least_noise(Evaluation(value, gradient), given, self.table.X)

    def _regression(self, model: Model) -> Regression:
        assert self._graph is not None
        found = whitened(model, self.table, self._graph, self._entities)
        return Regression.of_whitened(found, self.table.n_targets)

    def thin(self, rows: Tensor) -> TableObjective:
        return self.subset(rows)

    def current_posterior(self) -> None:
        return None

    def posterior(self, model: Model, generator: torch.Generator) -> CurvesPosterior:
        """Return the posterior at a model, with the mean's coefficients and the likelihood from all curves."""
        return CurvesPosterior.fitted(model, self.table, self.graph_of(model), self.prediction_neighbours)

    def learned_posterior(self, model: Model, generator: torch.Generator) -> CurvesPosterior:
        return self.posterior(with_least_noise(model, self.table.X), generator)
