"""`inference.Grid`: what users choose of grid inference, and what it makes of rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gigagp.errors import InvalidInputError
from gigagp.grids import RegularGrid
from gigagp.inference.base import Abilities, Inference
from gigagp.inference.grid.objective import GridObjective
from gigagp.inference.grid.posterior import GridPosterior
from gigagp.inference.grid.settings import GridSettings
from gigagp.inference.grid.streamed import stream
from gigagp.inference.streaming import BegunFit, StreamJob
from gigagp.inference.table import TrainingTable
from gigagp.likelihoods import Likelihood
from gigagp.model import Model
from gigagp.operators.grid.kernel import check_stationary


@dataclass(frozen=True)
class Grid(GridSettings, Inference):
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

    abilities = Abilities(
        "grid",
        "any number, one to three inputs",
        kernels="stationary",
        row_noise=False,
        most_inputs=4,
        streams=True,
        takes_bounds=True,
        adds_rows=True,
        dtypes=("float64",),
        devices="cpu",
        options={"--grid-size": "size"},
    )
    posteriors = (GridPosterior,)

    def check_model(self, model: Model) -> None:
        """Refuse what a grid cannot do, before any work.

        Raises
        ------
        InvalidInputError
            If the kernel is not stationary, the noise is given for each row, or there are more inputs than a grid has.
        """
        super().check_model(model)
        d = int(model.kernel.n_inputs or 1)
        # any grid will do: the kernel is looked at, not the data; this refuses too many inputs
        check_stationary(model.kernel, RegularGrid((-2.0,) * d, (0.25,) * d, (17,) * d))

    def check_held(self) -> None:
        """Refuse ``distributed``: each process has been given the same rows.

        Raises
        ------
        InvalidInputError
            If it is set.
        """
        if self.distributed:
            msg = (
                "distributed of inference.Grid must be False for GPRegressor.fit; processes share the rows of "
                "fit_table; got True."
            )
            raise InvalidInputError(msg)

    def objective(
        self, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> GridObjective:
        """Return the log marginal likelihood of a table.

        Raises
        ------
        InvalidInputError
            If the table has more inputs than a grid can have, or a constant one.
        """
        return GridObjective(self, table, generator)

    def stream(self, job: StreamJob, generator: torch.Generator) -> BegunFit:
        """Pass once over rows that are not held; see `gigagp.inference.streaming`.

        Raises
        ------
        InvalidInputError
            If a row cannot be used, naming its file, or an input is constant.
        MemoryBudgetError
            If the grid does not fit.
        """
        return stream(self, job, generator)

    def describe(self) -> str:
        """Return one line for people."""
        size = self.size if isinstance(self.size, str | int) else " x ".join(map(str, self.size))
        return f"grid (size {size}, {self.interpolation}, preconditioner {self.preconditioner})"
