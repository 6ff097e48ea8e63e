"""`inference.Curves`: the settings of inference given whole curves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from gigagp.errors import InvalidInputError
from gigagp.inference.contract.base import Abilities, Inference
from gigagp.inference.contract.forecast import Forecast, Subject
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.curves.complete import panel_of_rows, quick_grid
from gigagp.inference.curves.objective import CurvesObjective
from gigagp.inference.curves.posterior import CurvesPosterior
from gigagp.inference.exact.exact import EXACT_ROWS
from gigagp.model.likelihoods import Likelihood
from gigagp.model.model import Model
from gigagp.products.panel import joined_columns
from gigagp.runtime.machine import FACTOR_SECONDS
from gigagp.settings.fields import Count


@dataclass(frozen=True)
class Curves(Inference):
    """Inference for panels of many entities: each curve, all rows of an entity, is conditioned on whole other curves.

    A panel has a complete part if enough of its entities were observed at all of some times. That part is solved
    exactly by the eigenvectors of its factors, and every other cell is predicted from all of it and from the other rows
    of the cell's own entity. What entities with gaps say of each other is all that is left out.

    Without such a part, a point is predicted from all rows of its own entity and of the entities most correlated with
    it, and the likelihood is a product of the densities of curves, each given curves that come earlier: Vecchia's
    approximation in blocks. Both are the best predictions from the rows that they use, and their variances are those of
    their errors, never smaller than the exact ones at given coefficients of the mean.

    When to use: for panels, such as learning curves of which many end early. A complete part serves up to 3,000
    entities and 500 times, with a kernel that is one product of a part of entities and one of times, to which parts of
    entities alone and of times alone may be added, as the default kernel of a panel. Other curves should have up to
    about a hundred rows, and entities inputs that say which of them are alike. With few entities `Markov` is exact, and
    with gaps everywhere `Iterative`.

    Parameters
    ----------
    n_neighbors : int, default 8
        Earlier curves that a curve is conditioned on in learning, and in the likelihood where the panel has no complete
        part. It takes ``N (m T)^3 / 3`` operations for N curves of T rows and m neighbours.
    prediction_neighbors : int, default 15
        Other curves that a new point is conditioned on beside its own, where the panel has no complete part.

    References
    ----------
    Vecchia 1988, doi:10.1111/j.2517-6161.1988.tb01729.x; in blocks: Katzfuss and Guinness 2021, A general framework for
    Vecchia approximations of Gaussian processes, arXiv:1708.06302.
    """

    n_neighbors: Count = 8
    prediction_neighbors: Count = 15

    abilities = Abilities(
        "curves",
        "any number, in panels",
        adds_rows=True,
        dtypes=("float64",),
        devices="cpu",
    )
    posteriors = (CurvesPosterior,)

    def objective(
        self, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> TableObjective:
        """Return the likelihood of the curves of a table whose columns of entities and times are known."""
        table = table.on_cpu()
        if table.cells is None:
            raise InvalidInputError(
                "inference.Curves needs a panel: GPRegressor(panel=(entity, time)), or a kernel that is a product of "
                "kernels of entities and of times, with rows that are cells of both. Use inference.Vecchia for others."
            )
        return CurvesObjective(table, table.cells, self.n_neighbors, self.prediction_neighbors)

    def objective_of(
        self, model: Model, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> TableObjective:
        """Return the likelihood of curves, of which the kernel of a model may tell the columns."""
        panel = panel_of_rows(table, model) if table.cells is None else None
        if panel is not None:
            table = replace(table, cells=(panel.known.entity_columns, panel.known.time_columns))
        return self.objective(table, generator, likelihood)

    def serves(self, model: Model, n_rows: int, rows: Callable[[], np.ndarray], budget: int) -> bool:
        """Return whether ``"auto"`` chooses this method for a model that was given and rows, which are made if needed.

        Those are panels that are too large for `Exact`, and have a complete part.
        """
        if n_rows <= EXACT_ROWS or len(joined_columns(model.kernel)) < 2:
            return False
        X = torch.from_numpy(rows())
        return quick_grid(TrainingTable(X, X[:, :1], model.mean, budget), model) is not None

    def forecast(self, subject: Subject) -> Forecast | None:
        """Return the time of the likelihood of all rows and of their prediction; None without a complete part.

        The error is that of exact inference: what entities with gaps say of each other is little beside the others.
        """
        found = quick_grid(subject.table, subject.model)
        if found is None:
            return None
        panel, grid = found
        n_entities, n_times = grid.cells.shape
        others = panel.known.shape[0] - n_entities
        operations = 20.0 * n_entities**3 + 4.0 * n_entities * (n_entities + n_times) * n_times * others
        memory = 8.0 * (8 * n_entities**2 + 4 * grid.rows.numel())
        return subject.with_nll(FACTOR_SECONDS * operations, memory, subject.exact_nll)

    def describe(self) -> str:
        return "curves given whole curves"
