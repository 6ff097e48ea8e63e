"""`inference.Grid`: the settings of grid inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch

from gigagp.errors import InvalidInputError
from gigagp.fields import Count, CountOrZero, Fraction, Length, Range, Settings, Words
from gigagp.grids import RegularGrid
from gigagp.inference.table import TrainingTable
from gigagp.model import Model
from gigagp.operators.grid.kernel import check_stationary

if TYPE_CHECKING:
    from gigagp.inference.grid.objective import GridObjective
    from gigagp.inference.streaming import StreamedFit, StreamJob

Outside = Literal["refuse", "clamp", "prior"]
#: Fewer nodes have no room for the margins and a cell between them.
_Nodes = Annotated[int, Range(least=6)]
_Size = Annotated[
    Literal["auto"] | _Nodes | Annotated[Sequence[_Nodes], Length(1)],
    Words('"auto", or nodes an input, each at least 6'),
]


@dataclass(frozen=True)
class Grid(Settings):
    """Inference on a regular grid: one pass over the rows, then a cost that does not depend on their number.

    The function is a Gaussian process on the nodes of a grid, interpolated between them. All that learning and
    predicting need of the rows are sums over them (`gigagp.grids.GridStatistics`).

    When to use: many rows of one to three inputs (four at a price) and a stationary kernel. The lengthscales should
    span two to four cells or more: what the grid cannot resolve is learned as noise.

    Parameters
    ----------
    size : "auto", int or sequence of int, default "auto"
        Nodes an input, two cells of margin on each side included. ``"auto"``: as fine as the lengthscales at the start
        of learning on all rows ask for, as far as the memory budget and the number of rows go.
    interpolation : {"cubic", "linear"}, default "cubic"
    outside : {"refuse", "clamp", "prior"}, default "refuse"
        What a prediction beyond the grid is: an error, that of the nearest point inside, or the prior's.
    tolerance : float, default 1e-3
        Relative preconditioned residual of solves in learning.
    final_tolerance : float, default 1e-4
        Of the last solve, which predictions are made of.
    max_iterations : int, default 1000
    preconditioner : {"auto", "circulant", "holes", "long_waves", "none"}, default "auto"
        ``"auto"``: ``"circulant"``; where 7 % of the nodes or more have no rows within a cell, whichever gets furthest
        in a short trial of it, ``"holes"`` (`gigagp.preconditioners.holes`) and ``"long_waves"``
        (`gigagp.preconditioners.long_waves`). Where a lengthscale exceeds the grid by far, all but ``"none"`` stand for
        the last.
    n_probes : int, default 16
        Probes of the gradient's trace.
    n_samples : int, default 32
        Posterior samples made by the last solve; predicted variances have a relative standard error of
        ``sqrt(2 / n_samples)``.
    variance : {"samples", "low_rank", "solve"}, default "samples"
        What ``predict(return_std=True)`` uses: the samples, a Lanczos approximation of rank ``rank`` that never
        understates the variance, or a solve for each point.
    rank : int, default 100
        Of ``"low_rank"``: 2 rank m numbers while it is made, rank m kept.
    exact_nodes : int, default 1500
        Grids of at most so many nodes are inferred with dense factors, without any estimate.
    seed : int, default 0
        Of the probes that are collected with the rows.
    distributed : bool, default False
        `GPRegressor.fit_table` in every process of ``torch.distributed``'s default group, with the same arguments: each
        passes over its share of the files or chunks, and all go on with the same sums to the same model.

    References
    ----------
    Yadav, Sheldon and Musco (2021), "Faster kernel interpolation for Gaussian processes", arXiv:2101.11751. Wilson and
    Nickisch (2015), arXiv:1503.01057. Pleiss, Gardner, Weinberger and Wilson (2018), arXiv:1803.06058 (low rank).
    """

    size: _Size = "auto"
    interpolation: Literal["cubic", "linear"] = "cubic"
    outside: Outside = "refuse"
    tolerance: Fraction = 1e-3
    final_tolerance: Fraction = 1e-4
    max_iterations: Count = 1000
    preconditioner: Literal["auto", "circulant", "holes", "long_waves", "none"] = "auto"
    n_probes: Count = 16
    n_samples: Count = 32
    variance: Literal["samples", "low_rank", "solve"] = "samples"
    rank: Count = 100
    exact_nodes: CountOrZero = 1500
    seed: CountOrZero = 0
    distributed: bool = False

    @property
    def n_collected(self) -> int:
        """Noise probes that a pass over the rows collects: as many as any solve of the fit needs.

        What is not collected has to be drawn from ``W'W``, which is slower and less exact.
        """
        return max(self.n_probes, self.n_samples)

    def check_model(self, model: Model) -> None:
        """Refuse what a grid cannot do, before any work.

        Raises
        ------
        InvalidInputError
            If the kernel is not stationary, the noise is given for each row, or there are more inputs than a grid has.
        """
        d = int(model.kernel.n_inputs or 1)
        # any grid will do: the kernel is looked at, not the data; this refuses too many inputs
        check_stationary(model.kernel, RegularGrid((-2.0,) * d, (0.25,) * d, (17,) * d))
        if model.noise_is_known:
            msg = (
                "noise_variance of GPRegressor must be one number, or None, with inference.Grid; got one for each row. "
                "Use inference.Iterative."
            )
            raise InvalidInputError(msg)

    def objective(self, table: TrainingTable, generator: torch.Generator) -> GridObjective:
        """Return the log marginal likelihood of a table.

        Raises
        ------
        InvalidInputError
            If the table has more inputs than a grid can have, or a constant one.
        """
        from gigagp.inference.grid.objective import GridObjective

        return GridObjective(self, table, generator)

    def stream(self, job: StreamJob, generator: torch.Generator) -> StreamedFit:
        """Pass once over rows that are not held; see `gigagp.inference.streaming`.

        Raises
        ------
        InvalidInputError
            If a row cannot be used, naming its file, or an input is constant.
        MemoryBudgetError
            If the grid does not fit.
        """
        from gigagp.inference.grid.streamed import stream

        return stream(self, job, generator)

    def describe(self) -> str:
        """Return one line for people."""
        size = self.size if isinstance(self.size, str | int) else " x ".join(map(str, self.size))
        return f"grid (size {size}, {self.interpolation}, preconditioner {self.preconditioner})"
