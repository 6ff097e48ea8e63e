"""The interface of fits to streamed rows: the job given to an inference method, and the fit it returns.

An inference method with ``abilities.streams`` implements ``stream(job, generator) -> BegunFit``. It may read
`StreamJob.source` as often as the source allows, and decides what to keep of the rows: `gigagp.inference.Grid` keeps
their statistics, and `gigagp.inference.QuadruplyStochastic` holds one window of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch

from gigagp.inference.objective import TableObjective
from gigagp.likelihoods import Gaussian, Likelihood
from gigagp.model import Model, StartModel
from gigagp.progress import Meter, NoProgress
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
