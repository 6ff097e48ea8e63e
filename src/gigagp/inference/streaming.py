"""The interface of fits to streamed rows: the job given to an inference method, and the fit it returns.

An inference method with ``abilities.streams`` implements ``stream(job, generator) -> BegunFit``. It may read
`StreamJob.source` as often as the source allows, and decides what to keep of the rows: `gigagp.inference.Grid` keeps
their statistics, `gigagp.inference.QuadruplyStochastic` holds one window of rows at a time, and
`gigagp.inference.Vecchia` holds their numbers (`hold_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from gigagp import interruption
from gigagp.errors import InvalidInputError
from gigagp.inference.objective import TableObjective
from gigagp.inference.table import TrainingTable
from gigagp.likelihoods import Gaussian, Likelihood
from gigagp.memory import require
from gigagp.model import Model, StartModel
from gigagp.progress import Meter, NoProgress
from gigagp.rows.access import RowAccess
from gigagp.rows.chunk import CHUNK_ROWS
from gigagp.rows.source import RowSource
from gigagp.scaling import Scaling


@dataclass(frozen=True)
class StreamJob:
    """A fit to rows that are not held in memory.

    Attributes
    ----------
    source : RowSource
        Rows in the data's own units; a fixed mean has been subtracted from the targets.
    start : StartModel
        Initial kernel, mean and noise.
    standardize : bool
        Whether to standardize inputs and targets.
    budget : int
        Memory budget in bytes.
    bounds : (lower, upper) or None
        Smallest and largest inputs, if the user has given them.
    checkpoint : Path or None
        File for the state of the pass; the caller removes it at the end of the fit.
    learn : callable or None
        Quick optimization: takes an objective on few rows and a model, and returns a better model. None if the
        hyperparameters are fixed.
    meter : Meter
        Progress meter.
    likelihood : Likelihood
        Likelihood of the targets.
    dtype, device : torch.dtype, torch.device
        Data type and device of rows in computations.
    resources : ExitStack
        Resources to close when the fit ends.
    """

    source: RowSource
    start: StartModel
    standardize: bool
    budget: int
    bounds: tuple[Sequence[float], Sequence[float]] | None = None
    checkpoint: Path | None = None
    learn: Callable[[TableObjective, Model], Model] | None = None
    meter: Meter = field(default_factory=NoProgress)
    likelihood: Likelihood = field(default_factory=Gaussian)
    dtype: torch.dtype = torch.float64
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    resources: ExitStack = field(default_factory=ExitStack)


@dataclass(frozen=True)
class BegunFit:
    """The state of a fit once the rows have been seen, before optimization.

    Attributes
    ----------
    objective : TableObjective
        Objective in the units of the standardized problem.
    model : Model
        Initial model.
    scaling : Scaling
        Scaling by the statistics of all rows, or of a sample.
    logs_steps : bool
        Whether checkpoints of the fit log the optimizer's steps; otherwise `stream` has written its own checkpoint.
    """

    objective: TableObjective
    model: Model
    scaling: Scaling
    logs_steps: bool = False


def hold_rows(job: StreamJob, beside: int) -> tuple[TrainingTable, Scaling]:
    """Read all rows into a table, in the units, dtype and on the device of the fit, as `GPRegressor.fit` makes it.

    Parameters
    ----------
    job : StreamJob
    beside : int
        Float64 numbers that the fit will hold for each row beside the table.

    Raises
    ------
    InvalidInputError
        If a row cannot be used, or there are fewer than two.
    MemoryBudgetError
        If the rows do not fit the memory budget; before they are read, but for sources that are copied first.
    """
    source = job.source
    with RowAccess(source, source.chunk_rows, job.likelihood.check_targets) as access:
        n, width = access.n_rows, source.n_inputs + source.n_targets
        needed = n * (8 * beside + (8 + job.dtype.itemsize) * width)
        remedy = "Fit fewer rows, raise memory_budget, or use inference.Grid (up to three inputs), which holds none."
        require(needed, job.budget, f"A fit that holds {n:,} rows with {width} numbers each", remedy)
        if n < 2:
            msg = f"The source of fit_table must have at least two rows; got {n}."
            raise InvalidInputError(msg)
        X, Y = np.empty((n, source.n_inputs)), np.empty((n, source.n_targets))
        job.meter.start(None, "rows")
        first = 0
        for section in access.sections:
            interruption.check()
            rows = access.take(section, np.arange(section.count))
            place = slice(first, first + section.count)
            X[place], Y[place] = rows.X.numpy(), rows.Y.numpy()
            first += section.count
            job.meter.step(rows=f"{first:,}")
    scaling = Scaling.fit(X, Y, job.standardize, medians=job.likelihood.scales_by_medians)
    if not job.likelihood.has_noise:  # counts and signs have no scale
        scaling = scaling.of_inputs_only()
    for first in range(0, n, CHUNK_ROWS):
        place = slice(first, first + CHUNK_ROWS)
        X[place], Y[place] = scaling.inputs(X[place]), scaling.targets(Y[place])
    inputs, targets = (torch.from_numpy(part).to(dtype=job.dtype, device=job.device) for part in (X, Y))
    return TrainingTable(inputs, targets, job.start.mean, job.budget).require_finite(), scaling
