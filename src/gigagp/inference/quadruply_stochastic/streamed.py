"""Quadruply stochastic inference on rows that are never held: minibatches from windows of a table on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError, UnreadableRowsError
from gigagp.inference.quadruply_stochastic.objective import QuadruplyStochasticObjective
from gigagp.inference.quadruply_stochastic.settings import QuadruplyStochastic
from gigagp.inference.streaming import BegunFit, StreamJob
from gigagp.inference.table import TrainingTable
from gigagp.likelihoods import Likelihood
from gigagp.memory import require
from gigagp.model import Model
from gigagp.rows.access import RowAccess
from gigagp.rows.passes import RowPasses
from gigagp.scaling import Scaling

#: Most rows of a window, and of the sample that scales and starts come from.
WINDOW_ROWS, SAMPLE_ROWS = 2**18, 2**16
#: Most rows that are decoded at a time.
_CHUNK_ROWS = 2**16
#: Copies of a window while it is made, and the share of the memory budget that they may take together.
_COPIES, _SHARE = 4, 4
#: Rows that are asked for together in a pass over all of them.
_PASS_ROWS = 1024
#: Pieces of the table that the sample comes from.
_SAMPLE_PLACES = 64


class StreamedRows:
    """The minibatches of a fit, in the model's units.

    Parameters
    ----------
    passes : RowPasses
    scaling : Scaling
    like : Tensor
        Of the dtype and on the device that are wanted.
    """

    def __init__(self, passes: RowPasses, scaling: Scaling, like: Tensor) -> None:
        self.passes, self._scaling, self._like = passes, scaling, like

    def batch(self, position: int, size: int) -> tuple[Tensor, Tensor]:
        """Return rows of the endless sequence; see `RowPasses.batch`.

        Raises
        ------
        UnreadableRowsError
            If a row cannot be used; the message names the file.
        """
        try:
            found = self.passes.batch(position, size)
        except InvalidInputError as error:
            raise UnreadableRowsError(str(error)) from error
        return self.scaled(*found)

    def scaled(self, X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows in the model's units."""
        X, Y = (torch.from_numpy(part) for part in (self._scaling.inputs(X.numpy()), self._scaling.targets(Y.numpy())))
        return X.to(self._like), Y.to(self._like)


class StreamedQuadruplyStochasticObjective(QuadruplyStochasticObjective):
    """The same bound with rows from a stream; a sample of them is held.

    The basis, where functions are at rows, the support rows of control variates, the trend, and the final estimate of
    the bound are of the sample; every step is of the next rows of all.

    Parameters
    ----------
    settings : QuadruplyStochastic
    sample : TrainingTable
    generator : torch.Generator
    likelihood : Likelihood
    rows : StreamedRows
    """

    def __init__(
        self,
        settings: QuadruplyStochastic,
        sample: TrainingTable,
        generator: torch.Generator,
        likelihood: Likelihood,
        rows: StreamedRows,
    ) -> None:
        self._rows = rows
        # rows are sampled, however few there are in the sample
        super().__init__(replace(settings, row_batch=settings.sampled_rows), sample, generator, likelihood)
        self.row_batch = min(settings.sampled_rows, self.n_rows)
        self._position = 0
        self._batch: tuple[Tensor, Tensor] | None = None

    @property
    def n_rows(self) -> int:
        """Rows of the table."""
        return self._rows.passes.n_rows

    @property
    def n_observations(self) -> int:
        """Rows times targets."""
        return self.n_rows * self.table.n_targets

    @property
    def has_anchors(self) -> bool:
        """Rows that are not held have no place for what is known there."""
        return False

    def draw_rows(self, count: int, generator: torch.Generator) -> Tensor:
        """Return the indices of random rows of the sample, sorted."""
        return torch.randperm(self.table.n_rows, generator=generator)[:count].sort().values

    def begin(self, model: Model, *, moves_hyperparameters: bool = True) -> Model:
        """Make basis, weights and control variates at their start."""
        self._position = 0
        return super().begin(model, moves_hyperparameters=moves_hyperparameters)

    def draw_batch(self) -> Tensor:
        """Take the next rows of the stream; return their places among them."""
        X, Y = self._rows.batch(self._position, self.row_batch)
        if self.likelihood.has_noise:
            Y = Y - (self.table.mean.basis(X).double() @ self.trend).to(Y)
        self._batch = X, Y
        self._position += self.row_batch
        return torch.arange(len(X), device=X.device)

    def values_at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of rows of the last batch."""
        assert self._batch is not None
        return self._batch[0][rows], self._batch[1][rows]

    def _all_rows(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the first pass again: it gives every row once."""
        for first in range(0, self.n_rows, _PASS_ROWS):
            X, _ = self._rows.batch(first, min(_PASS_ROWS, self.n_rows - first))
            yield torch.arange(len(X), device=X.device), X

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what the next step depends on beside the weights."""
        tensors, header = super().snapshot()
        return tensors, {**header, "position": self._position}

    def restore(self, model: Model, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        """Take over a snapshot."""
        self._position = header["position"]
        super().restore(model, tensors, {name: value for name, value in header.items() if name != "position"})


def stream(settings: QuadruplyStochastic, job: StreamJob, generator: torch.Generator) -> BegunFit:
    """Look at a sample of the rows, and return the objective on all of them; see `StreamJob`.

    A table no larger than a window is held, and the fit is that of `GPRegressor.fit`.
    """
    if job.bounds is not None:
        msg = "bounds of fit_table are for inference.Grid; leave them out with inference.QuadruplyStochastic."
        raise InvalidInputError(msg)
    source = job.source
    width = source.n_inputs + source.n_columns
    source.chunk_rows = max(1, min(source.chunk_rows, _CHUNK_ROWS, job.budget // (8 * 8 * _COPIES * width)))
    access = job.resources.enter_context(RowAccess(source, source.chunk_rows, job.likelihood.check_targets))
    per_row = 8 * _COPIES * _SHARE * (source.n_inputs + source.n_targets)  # the classes are known now
    least = min(settings.sampled_rows, access.n_rows)
    require(
        per_row * least, job.budget, f"A window of {least:,} rows", "Use a smaller row_batch or raise memory_budget."
    )
    window = min(WINDOW_ROWS, job.budget // per_row)
    if access.n_rows <= window:
        return _held(settings, job, access, generator)
    seed = int(torch.randint(2**62, (), generator=generator))
    size = min(SAMPLE_ROWS, window)
    X, Y = RowPasses(access, size, seed, _SAMPLE_PLACES).batch(0, size)
    scaling = _scaling(X.numpy(), Y.numpy(), job)
    like = torch.zeros(0, dtype=job.dtype, device=job.device)
    rows = StreamedRows(RowPasses(access, window, seed + 1), scaling, like)
    if settings.augment:
        msg = (
            "augment of QuadruplyStochastic must be False for a table that is not held: its variance needs all rows at "
            "every prediction."
        )
        raise InvalidInputError(msg)
    budget = job.budget - window * per_row // _SHARE
    sample = TrainingTable(*rows.scaled(X, Y), job.start.mean, budget).require_finite()
    objective = StreamedQuadruplyStochasticObjective(settings, sample, generator, job.likelihood, rows)
    return BegunFit(objective, job.start.standardized(scaling.units()), scaling, logs_steps=True)


def _held(settings: QuadruplyStochastic, job: StreamJob, access: RowAccess, generator: torch.Generator) -> BegunFit:
    """Return the objective on all rows at once."""
    parts = [access.take(section, np.arange(section.count)) for section in access.sections]
    X, Y = (torch.cat([getattr(part, name) for part in parts]).numpy() for name in ("X", "Y"))
    if len(X) < 2:
        msg = f"The source of fit_table must have two rows at least; got {len(X)}."
        raise InvalidInputError(msg)
    scaling = _scaling(X, Y, job)
    table = TrainingTable(
        torch.from_numpy(scaling.inputs(X)).to(job.device, job.dtype),
        torch.from_numpy(scaling.targets(Y)).to(job.device, job.dtype),
        job.start.mean,
        job.budget,
    ).require_finite()
    model = job.start.standardized(scaling.units())
    return BegunFit(settings.objective(table, generator, job.likelihood), model, scaling, logs_steps=True)


def _scaling(X: np.ndarray, Y: np.ndarray, job: StreamJob) -> Scaling:
    scaling = Scaling.fit(X, Y, job.standardize)
    return scaling if job.likelihood.has_noise else scaling.of_inputs_only()
