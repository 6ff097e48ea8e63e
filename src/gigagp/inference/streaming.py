"""What a fit to streamed rows is: the job that `GPRegressor.fit_table` gives an inference, and what it gets back.

An inference that can do it has a method ``stream(job, generator) -> StreamedFit``. It may read `StreamJob.source` as
often as that allows, and decides itself what it keeps of the rows: `gigagp.inference.Grid` their statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from gigagp.inference.objective import TableObjective
from gigagp.inference.row_source import RowSource
from gigagp.likelihoods import Gaussian, Likelihood
from gigagp.model import Model
from gigagp.progress import Meter, NoProgress
from gigagp.scaling import Scaling


@dataclass(frozen=True)
class StreamJob:
    """A fit to rows that are not held.

    Attributes
    ----------
    source : RowSource
        In the data's own units; a fixed mean has been taken off the targets.
    model : Model
        Where learning starts, in the units of the standardized problem.
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
    """

    source: RowSource
    model: Model
    standardize: bool
    budget: int
    bounds: tuple[Sequence[float], Sequence[float]] | None = None
    checkpoint: Path | None = None
    learn: Callable[[TableObjective, Model], Model] | None = None
    meter: Meter = field(default_factory=NoProgress)
    likelihood: Likelihood = field(default_factory=Gaussian)


@dataclass(frozen=True)
class StreamedFit:
    """What learning goes on with once rows have been seen.

    Attributes
    ----------
    objective : TableObjective
        In the units of the standardized problem.
    model : Model
        Where learning starts now.
    scaling : Scaling
        By the statistics of all rows.
    """

    objective: TableObjective
    model: Model
    scaling: Scaling


@runtime_checkable
class StreamingInference(Protocol):
    """An inference that `GPRegressor.fit_table` can use."""

    def stream(self, job: StreamJob, generator: torch.Generator) -> StreamedFit:
        """Pass over the rows of a job.

        Raises
        ------
        InvalidInputError
            If a row cannot be used, naming its file.
        """
        ...

    def describe(self) -> str:
        """Return one line for people."""
        ...
