"""A fit to rows that are not held: the job that an inference is given, and the fit that it begins.

An inference with ``abilities.streams`` has a method ``stream(job, generator) -> BegunFit``. It may read
`StreamJob.source` as often as the source allows, and decides what it keeps of the rows: `gigagp.inference.Grid` keeps
their statistics, `gigagp.inference.QuadruplyStochastic` one window of rows after the other.
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
    """A fit to rows that are not held.

    Attributes
    ----------
    source : RowSource
        In the data's own units; a fixed mean has been taken off the targets.
    start : StartModel
        Where learning starts.
    standardize : bool
    budget : int
        Bytes that may be taken.
    bounds : (lower, upper) or None
        Smallest and largest inputs, where the user has said so.
    checkpoint : Path or None
        Where the state of the pass is to be kept; whoever started the fit removes it at its end.
    learn : callable or None
        From an objective on few rows and a model to a better model, quickly; None where hyperparameters are given.
    meter : Meter
    likelihood : Likelihood
    dtype, device : torch.dtype, torch.device
        Of rows that are computed with.
    resources : ExitStack
        What is to be closed when the fit is over.
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
    """What learning starts from once the rows have been seen.

    Attributes
    ----------
    objective : TableObjective
        In the units of the standardized problem.
    model : Model
        Where learning starts.
    scaling : Scaling
        By the statistics of all rows, or of a sample.
    logs_steps : bool
        Whether the fit's checkpoint is a log of the optimizer's steps; otherwise `stream` has kept its own.
    """

    objective: TableObjective
    model: Model
    scaling: Scaling
    logs_steps: bool = False
