"""The exact likelihood of a few thousand rows, which guides learning where neighbours miss much."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from gigagp.errors import MemoryBudgetError
from gigagp.inference.contract.exact_posterior import Factorised
from gigagp.inference.contract.objective import ExactObjective
from gigagp.inference.contract.structured_noise import likeness
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.learning_rows import spread_and_clustered
from gigagp.inference.vecchia.objective import VecchiaObjective
from gigagp.model.model import Model
from gigagp.neighbours.metric import Metric
from gigagp.optimization.objective import Rival
from gigagp.optimization.space import ParameterSpace
from gigagp.settings.random import standard_normal

#: Rows of the subset; an evaluation with its information takes a third of a second.
SUBSET_ROWS = 2000
#: Probe vectors of the information, and their seed.
_PROBES, _SEED = 8, 11


def guide_of(neighbours: VecchiaObjective, model: Model) -> VecchiaObjective | SubsetGuide:
    """Return the likelihood by neighbours, or the exact one of a subset where neighbours miss much at a model.

    A small memory budget has no room for the subset's factor; neighbours have to do there.
    """
    table = neighbours.table
    try:
        if neighbours.suffices(model):
            return neighbours
        return SubsetGuide(table, model, neighbours=neighbours)
    except MemoryBudgetError:
        return neighbours


class SubsetGuide(ExactObjective):
    """The exact log marginal likelihood of rows of a table, half of them spread and half in dense clusters.

    When to use: as a guide for exact inference on all rows. A row's nearest neighbours say little of a smooth function
    of many inputs under noise, and their likelihood is then largest at lengthscales that are too short. On 16,000 rows
    of a function of six inputs it led from a variance of 29, the optimum of 1,000 rows, to 2.8.

    The model's kernel tells which rows are near. Where a kernel does not describe a function at all distances, it is
    the subset that misleads: it takes for noise what only near rows show (`structured_noise`). Neighbours of as many
    rows then lead on. The likelihood by ``neighbours`` guides where the subset's matrix has no factor, as happens with
    targets without noise.
    """

    def __init__(
        self,
        table: TrainingTable,
        model: Model,
        n_rows: int = SUBSET_ROWS,
        *,
        neighbours: VecchiaObjective | None = None,
    ) -> None:
        points = Metric(model.kernel, table.X)(table.X)
        self._rows = spread_and_clustered(points, min(n_rows, table.n_rows))
        super().__init__(table.take_rows(self._rows))
        self.rival: Rival | None = None
        if neighbours is not None:
            some = VecchiaObjective.on_some_rows(table, SUBSET_ROWS)
            self.rival = Rival(some, partial(_is_misled, table), neighbours)
        self._is_new = True

    def refresh(self, model: Model) -> bool:
        """Return whether this is the first call: the rows stay the same."""
        is_new, self._is_new = self._is_new, False
        return is_new

    def finest(self, model: Model) -> float:
        """Return 1: a guide by nearest neighbours sees rougher functions, and comes first."""
        return 1.0

    def _factorise(self, model: Model) -> Factorised:
        return super()._factorise(model.take_rows(self._rows))

    def fisher(self, space: ParameterSpace, vector: Tensor, probes: Tensor) -> Tensor:
        """Return the Fisher information of the subset's observations; ``probes`` have no effect."""
        generator = torch.Generator().manual_seed(_SEED)
        return super().fisher(space, vector, standard_normal(self.n_rows, _PROBES, generator=generator))


def _is_misled(table: TrainingTable, model: Model) -> bool:
    """Whether a model takes for noise what is alike in neighbouring rows of a table."""
    found = None if model.noise_is_known else likeness(model, table)
    return found is not None and found.is_structure
