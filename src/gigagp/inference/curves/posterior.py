"""The posterior given whole curves: every point is predicted from its own curve and from those most like it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gigagp.inference.contract.batches import one_by_one
from gigagp.inference.contract.left_out import LeftOut, without_trend
from gigagp.inference.contract.rows_posterior import ROWS
from gigagp.inference.contract.saved import Saved
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.curves.complete import CompletePart
from gigagp.inference.vecchia.likelihood import REGRESSION_NUMBERS, REGRESSION_TENSORS, Regression, Whitened, pool_of
from gigagp.inference.vecchia.posterior import NeighboursPosterior
from gigagp.model.model import Model
from gigagp.neighbours.curves import CurveGraph, CurvePredictor
from gigagp.neighbours.joint import Joint
from gigagp.runtime import interruption
from gigagp.runtime.progress import current
from gigagp.settings.schema import check_tensors, listing, record, whole


def whitened(model: Model, table: TrainingTable, graph: CurveGraph, entities: list[int]) -> Whitened:
    """Return targets and basis functions of the curves of entities, whitened given those of earlier ones."""
    pool, values = pool_of(model, table), torch.cat([table.Y.double(), table.basis.double()], 1)
    parts, log_variance = [values[:0]], 0.0
    for done, (rows, given) in enumerate(graph.blocks(entities)):
        interruption.check()
        joint = Joint.of(pool, rows, given)
        parts.append(joint.whitened(values))
        log_variance += joint.log_variance
        current().within(done / len(entities))
    return Whitened(torch.cat(parts), log_variance, 0)


class CurvesPosterior(NeighboursPosterior):
    """Predictions from all rows of a point's entity and from whole curves of others.

    These are the complete part of the panel, if it has one, and otherwise the curves of the entities most like it.
    """

    kind = "curves"

    def __init__(
        self,
        model: Model,
        table: TrainingTable,
        graph: CurveGraph,
        n_neighbours: int,
        complete: CompletePart | None,
        regression: Regression,
    ) -> None:
        noise = pool_of(model, table).noise
        self._graph, self._complete = graph, complete
        local = CurvePredictor(model.kernel, graph, noise, n_neighbours, table.budget)
        super().__init__(model, table, regression, local, noise, complete)

    @classmethod
    def fitted(cls, model: Model, table: TrainingTable, graph: CurveGraph, n_neighbours: int) -> CurvesPosterior:
        """Return the posterior at a model, with the mean's coefficients and the likelihood from all curves."""
        complete = CompletePart.of(model, table)
        if complete is not None:
            return cls(model, table, graph, n_neighbours, complete, complete.regression())
        found = whitened(model, table, graph, list(range(graph.n_entities)))
        return cls(model, table, graph, n_neighbours, None, Regression.of_whitened(found, table.n_targets))

    def covariance_given_trend(self, X: Tensor) -> Tensor:
        if self._complete is None:
            return super().covariance_given_trend(X)
        return one_by_one(self.covariance_given_trend, X) if X.ndim == 3 else self._complete.covariance(X).to(X)

    def with_rows(self, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> CurvesPosterior:
        """Return the posterior of a fit to additional rows too, at the same hyperparameters."""
        model, grown, old = self.model.appended(noise), self.table.appended(X, Y), self._graph
        columns = old.entity_columns, old.time_columns
        graph = CurveGraph(model.kernel, grown.X, *columns, old.n_neighbours)
        return CurvesPosterior.fitted(model, grown, graph, self._local.asked)

    def solver_name(self) -> str:
        if self._complete is not None:
            return f"all cells of {self._complete.n_entities:,} complete curves, and each other curve given these"
        return (
            f"{self._graph.n_neighbours} earlier curves for each of {self._graph.n_entities:,}, and "
            f"{self._local.asked} other curves for each new point"
        )

    def left_out(self) -> LeftOut:
        """Return the distribution of each row given all others in the approximation.

        The inverse of the approximation of ``H`` is ``W' W`` for the rows W of `Joint.inverse`.
        """
        pool, t = pool_of(self.model, self.table), self.n_targets
        values = torch.cat([self._residuals, self._basis], 1)
        solved, precision = torch.zeros_like(values), values.new_zeros(len(values))
        for rows, given in self._graph.blocks():
            joint = Joint.of(pool, rows, given)
            W = joint.inverse()
            solved.index_add_(0, joint.every, W.mT @ (W @ values[joint.every]))
            precision.index_add_(0, joint.every, W.square().sum(0))
        precision = without_trend(precision, solved[:, t:], self.coefficient_root)
        return LeftOut.of(self.table.Y, solved[:, :t], precision)

    # Files ----------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state for a model file; the order of the curves is found again on loading."""
        tensors, numbers = self._regression.state()
        return {"X": self.table.X, "Y": self.table.Y, **tensors}, {
            **numbers,
            "curve_neighbours": self._graph.n_neighbours,
            "point_neighbours": self._local.asked,
            "entity_columns": list(self._graph.entity_columns),
            "time_columns": list(self._graph.time_columns),
        }

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], header: dict[str, Any], saved: Saved) -> CurvesPosterior:
        columns = listing(whole(0))
        check = REGRESSION_NUMBERS | {"curve_neighbours": whole(1), "point_neighbours": whole(1)}
        record(check | {"entity_columns": columns, "time_columns": columns})(header, "posterior")
        check_tensors(tensors, ROWS | REGRESSION_TENSORS, saved.sizes)
        table = TrainingTable(tensors["X"], tensors["Y"], saved.model.mean, saved.budget)
        places = tuple(header["entity_columns"]), tuple(header["time_columns"])
        graph = CurveGraph(saved.model.kernel, table.X, *places, header["curve_neighbours"])
        regression = Regression.from_state(tensors, header, table.n_rows)
        complete = CompletePart.of(saved.model, table)
        return cls(saved.model, table, graph, header["point_neighbours"], complete, regression)
