"""Quadruply stochastic fits of tables on disk: minibatches come from windows, and the rows are never all held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError, UnreadableRowsError
from gigagp.inference.contract.streaming import BegunFit, StreamJob
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.quadruply_stochastic.factory import draw_seed, make_objective, require_weights
from gigagp.inference.quadruply_stochastic.options import WeightOptions, WeightProblem
from gigagp.inference.quadruply_stochastic.sampled import Batches, MinibatchObjective
from gigagp.model.scaling import Scaling
from gigagp.runtime.memory import require
from gigagp.tables.rows.access import RowAccess
from gigagp.tables.rows.passes import RowPasses

#: Most rows of a window, and of the sample that gives scales and start.
WINDOW_ROWS, SAMPLE_ROWS = 2**18, 2**16
#: Most rows that are decoded together.
_CHUNK_ROWS = 2**16
#: Copies of a window while it is read, and the part of the memory budget that they may take together: one over this.
_COPIES, _SHARE = 4, 4
#: Rows of a block in a pass over all of them.
_PASS_ROWS = 1024
#: Pieces of the table that the sample is read from.
_SAMPLE_PLACES = 64


class StreamedBatches(Batches):
    """Batches of ``size`` rows of an endless sequence in random order, in the model's units.

    The held ``sample`` of the rows decides dtype, device and the mean's basis. ``takes_trend`` says whether the trend
    is subtracted from the targets.
    """

    def __init__(
        self, passes: RowPasses, scaling: Scaling, sample: TrainingTable, size: int, *, takes_trend: bool
    ) -> None:
        self._passes, self._scaling, self._sample = passes, scaling, sample
        self._takes_trend = takes_trend
        self.size = size
        self._position = 0
        self._coefficients: Tensor | None = None
        self._last: tuple[Tensor, Tensor] | None = None

    def begin(self, coefficients: Tensor, targets: Tensor) -> None:
        """Go back to the first row, and take over the trend."""
        self._position, self._coefficients = 0, coefficients

    def draw(self, generator: torch.Generator) -> Tensor:
        """Take the next rows of the sequence, and return the places 0 to size - 1."""
        X, Y = self._read(self._position, self.size)
        if self._takes_trend:
            assert self._coefficients is not None, "an ascent begins first"
            Y = Y - (self._sample.mean.basis(X).double() @ self._coefficients).to(Y)
        self._last = X, Y
        self._position += self.size
        return torch.arange(len(X), device=X.device)

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        assert self._last is not None, "a batch is drawn first"
        return self._last[0][rows], self._last[1][rows]

    def all_rows(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the first pass again: it gives every row once."""
        n = self._passes.n_rows
        for first in range(0, n, _PASS_ROWS):
            X, _ = self._read(first, min(_PASS_ROWS, n - first))
            yield torch.arange(len(X), device=X.device), X

    def _read(self, position: int, size: int) -> tuple[Tensor, Tensor]:
        """Return rows of the sequence; see `RowPasses.batch`."""
        try:
            found = self._passes.batch(position, size)
        except InvalidInputError as error:
            raise UnreadableRowsError(str(error)) from error
        return _scaled(*found, self._scaling, self._sample.X)

    def snapshot(self) -> dict[str, Any]:
        return {"position": self._position}

    def restore(self, header: dict[str, Any]) -> None:
        self._position = header["position"]


def _scaled(X: Tensor, Y: Tensor, scaling: Scaling, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows in the model's units, in the dtype and on the device of ``like``."""
    X, Y = (torch.from_numpy(part) for part in (scaling.inputs(X.numpy()), scaling.targets(Y.numpy())))
    return X.to(like), Y.to(like)


def stream(options: WeightOptions, job: StreamJob, generator: torch.Generator) -> BegunFit:
    """Read a sample of the rows, and return the objective on all of them; see `StreamJob`.

    The sample gives the basis, where functions are at rows, the support rows of control variates, the trend, and the
    final estimate of the bound. A table no larger than a window is held, and the fit is that of `GPRegressor.fit`.
    """
    if job.bounds is not None:
        msg = "bounds of fit_table are for inference.Grid; leave them out with inference.QuadruplyStochastic."
        raise InvalidInputError(msg)
    source = job.source
    width = source.n_inputs + source.n_columns
    source.chunk_rows = max(1, min(source.chunk_rows, _CHUNK_ROWS, job.budget // (8 * 8 * _COPIES * width)))
    access = job.resources.enter_context(RowAccess(source, source.chunk_rows, job.likelihood.check_targets))
    per_row = 8 * _COPIES * _SHARE * (source.n_inputs + source.n_targets)  # the classes are known now
    least = min(options.sampled_rows, access.n_rows)
    require(
        per_row * least, job.budget, f"A window of {least:,} rows", "Use a smaller row_batch or raise memory_budget."
    )
    window = min(WINDOW_ROWS, job.budget // per_row)
    if access.n_rows <= window:
        return _held(options, job, access, generator)
    seed = int(torch.randint(2**62, (), generator=generator))
    size = min(SAMPLE_ROWS, window)
    X, Y = RowPasses(access, size, seed, _SAMPLE_PLACES).batch(0, size)
    scaling = _scaling(X, Y, job)
    passes = RowPasses(access, window, seed + 1)
    if options.augment:
        raise InvalidInputError(
            "augment of QuadruplyStochastic must be False for a table that is not held: its variance needs all rows at "
            "every prediction."
        )
    budget = job.budget - window * per_row // _SHARE
    like = torch.zeros(0, dtype=job.dtype, device=job.device)
    sample = TrainingTable(*_scaled(X, Y, scaling, like), job.start.mean, budget).require_finite()
    # There is no place to keep the anchor's function at rows that are not held.
    problem = WeightProblem(replace(options, anchor=False), sample, job.likelihood, passes.n_rows)
    size = min(options.sampled_rows, passes.n_rows)
    batches = StreamedBatches(passes, scaling, sample, size, takes_trend=job.likelihood.has_noise)
    objective = MinibatchObjective(problem, draw_seed(generator), batches)
    require_weights(problem.options, sample)
    return BegunFit(objective, job.start.standardized(scaling.units()), scaling, logs_steps=True)


def _held(options: WeightOptions, job: StreamJob, access: RowAccess, generator: torch.Generator) -> BegunFit:
    """Return the fit of a table that fits into a window, which is then held."""
    parts = [access.take(section, np.arange(section.count)) for section in access.sections]
    X, Y = (torch.cat([getattr(part, name) for part in parts]) for name in ("X", "Y"))
    if len(X) < 2:
        raise InvalidInputError(f"The source of fit_table must have at least two rows; got {len(X)}.")
    scaling = _scaling(X, Y, job)
    like = torch.zeros(0, dtype=job.dtype, device=job.device)
    table = TrainingTable(*_scaled(X, Y, scaling, like), job.start.mean, job.budget).require_finite()
    model = job.start.standardized(scaling.units())
    return BegunFit(make_objective(options, table, generator, job.likelihood), model, scaling, logs_steps=True)


def _scaling(X: Tensor, Y: Tensor, job: StreamJob) -> Scaling:
    scaling = Scaling.fit(X.numpy(), Y.numpy(), job.standardize)
    return scaling if job.likelihood.has_noise else scaling.of_inputs_only()
