"""The interface of fits to streamed rows: the job given to an inference method, and the fit it returns.

An inference method with ``abilities.streams`` implements ``stream(job, generator) -> BegunFit``. It may read
`StreamJob.source` as often as the source allows, and decides what to keep of the rows: `gigagp.inference.Grid` keeps
their statistics, `gigagp.inference.QuadruplyStochastic` holds one window of rows at a time, and
`gigagp.inference.Vecchia` holds as many as fit the memory budget (`hold_rows`), and passes over all of them to learn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from gigagp.errors import InvalidInputError
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.likelihoods import Gaussian, Likelihood
from gigagp.model.model import Model, StartModel
from gigagp.model.scaling import Scaling
from gigagp.runtime.memory import require
from gigagp.runtime.progress import Meter, NoProgress
from gigagp.tables.rows.access import RowAccess
from gigagp.tables.rows.chunk import CHUNK_ROWS
from gigagp.tables.rows.random_order import RandomOrder
from gigagp.tables.rows.source import RowSource

#: Fewest rows that a fit holds, and the part of the memory budget that a block of a pass may take: one over this.
_FEWEST_ROWS, _PASS_SHARE = 1000, 4


@dataclass(frozen=True)
class StreamJob:
    """A fit to rows that are not held in memory."""

    source: RowSource  # rows in the data's own units; a fixed mean has been subtracted from the targets
    start: StartModel  # initial kernel, mean and noise
    standardize: bool  # whether to standardize inputs and targets
    budget: int  # memory budget in bytes
    #: smallest and largest inputs, if the user has given them
    bounds: tuple[Sequence[float], Sequence[float]] | None = None
    checkpoint: Path | None = None  # file for the state of the pass; the caller removes it at the end of the fit
    #: takes an objective on few rows and a model, and returns a better model; None: hyperparameters are fixed
    learn: Callable[[TableObjective, Model], Model] | None = None
    meter: Meter = field(default_factory=NoProgress)
    likelihood: Likelihood = field(default_factory=Gaussian)
    dtype: torch.dtype = torch.float64  # of rows in computations, as the device
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    resources: ExitStack = field(default_factory=ExitStack)  # to close when the fit ends


@dataclass(frozen=True)
class BegunFit:
    """The state of a fit once the rows have been seen, before optimization."""

    objective: TableObjective  # in the units of the standardized problem
    model: Model  # initial model
    scaling: Scaling  # by the statistics of all rows, or of a sample
    #: whether checkpoints log the optimizer's steps; otherwise `stream` has written its own checkpoint
    logs_steps: bool = False


class HeldRows(NamedTuple):
    """Rows of a source that fit the memory budget."""

    table: TrainingTable  # all rows, or a random part of them, in the units, dtype and on the device of the fit
    scaling: Scaling  # by the statistics of these rows
    order: RandomOrder  # all rows, to be read again; those of the table are its first ones
    needed: int  # bytes that all rows would need


def hold_rows(job: StreamJob, access: RowAccess, beside: int) -> HeldRows:
    """Read as many rows into a table as the memory budget has room for; all rows as `GPRegressor.fit` would have them.

    ``beside`` is the number of float64 numbers that the fit will hold for each row beside the table.

    Raises
    ------
    InvalidInputError
        If a row cannot be used, or there are fewer than two.
    MemoryBudgetError
        If not even a thousand rows fit the memory budget; before they are read, but for sources that are copied first.
    """
    source, n = job.source, access.n_rows
    width = source.n_inputs + source.n_targets
    each, fewest = 8 * beside + (8 + job.dtype.itemsize) * width, min(n, _FEWEST_ROWS)
    what = f"A fit that holds {fewest:,} rows with {width} numbers each"
    require(fewest * each, job.budget, what, "Raise memory_budget, or use inference.Grid (up to three inputs).")
    if n < 2:
        raise InvalidInputError(f"The source of fit_table must have at least two rows; got {n}.")
    room = job.budget / each
    # The rows that are drawn are a random number of them, which hardly ever is four standard deviations too large.
    share = 1.0 if n <= room else (room - 4 * room**0.5) / n
    order = RandomOrder(
        access, max(fewest, min(CHUNK_ROWS, job.budget // (8 * _PASS_SHARE * pass_numbers(width)))), job.meter
    )
    job.meter.phase("reading the table", n, unit="row")
    drawn = order.drawn(share)
    X, Y = drawn.X.numpy(), drawn.Y.numpy()
    scaling = Scaling.fit(X, Y, job.standardize, medians=job.likelihood.scales_by_medians)
    if not job.likelihood.has_noise:  # counts and signs have no scale
        scaling = scaling.of_inputs_only()
    for first in range(0, len(X), CHUNK_ROWS):
        place = slice(first, first + CHUNK_ROWS)
        X[place], Y[place] = scaling.inputs(X[place]), scaling.targets(Y[place])
    inputs, targets = (torch.from_numpy(part).to(dtype=job.dtype, device=job.device) for part in (X, Y))
    table = TrainingTable(inputs, targets, job.start.mean, job.budget, drawn_from=None if share == 1 else n)
    return HeldRows(table.require_finite(), scaling, order, n * each)


def pass_numbers(width: int) -> int:
    """Return how many float64 numbers a pass over the rows holds for each row of a block, at most."""
    return 8 + 10 * width
