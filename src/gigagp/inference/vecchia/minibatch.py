"""Rows whose densities stand for those of all rows, together with the rows that they are conditioned on."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.likelihood import Regression, pool_of
from gigagp.model.model import Model
from gigagp.neighbours.conditionals import Pool
from gigagp.neighbours.local import Derivatives


class Minibatch(NamedTuple):
    """Some rows of a table and all their neighbours: what an evaluation reads, however large the table is."""

    table: TrainingTable  # the rows and their neighbours, and perhaps others
    rows: Tensor  # places of the rows in ``table``, (q,)
    neighbours: Tensor  # places of their neighbours in ``table``, (q, m), int32; -1 where there are fewer
    #: Numbers of the rows of ``table`` in the table that models belong to; None: they are the same rows, or no row has
    #: its own noise.
    origin: Tensor | None = None

    @classmethod
    def of(cls, table: TrainingTable, rows: Tensor, neighbours: Tensor) -> Minibatch:
        """Return rows of a table with neighbours, without the rows that none of them needs if these are many."""
        if table.n_rows <= rows.numel() + neighbours.numel():
            return cls(table, rows, neighbours)
        present = neighbours >= 0
        origin, places = torch.unique(torch.cat([rows, neighbours[present].long()]), return_inverse=True)
        local = torch.full_like(neighbours, -1)
        local[present] = places[len(rows) :].to(local.dtype)
        return cls(table.take_rows(origin), places[: len(rows)], local, origin)

    def _pool(self, model: Model) -> Pool:
        return pool_of(model if self.origin is None else model.take_rows(self.origin), self.table)

    def regression(self, model: Model) -> Regression:
        """Return the best coefficients of the mean, and the log density of the rows there."""
        return Regression.of(self._pool(model), self.table, [(self.rows, self.neighbours)])

    def derivatives(self, model: Model, regression: Regression) -> Derivatives:
        """Return the log density of the rows with its derivatives, given the `regression` of the same model."""
        values = self.table.Y.double() - self.table.basis.double() @ regression.trend.coefficients
        return self._pool(model).derivatives(self.rows, self.neighbours, values)
