"""`inference.Grid`: the settings of grid inference, and the objectives it makes of tables and streams."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from gigagp.errors import InvalidInputError
from gigagp.inference.contract.base import Abilities, Inference
from gigagp.inference.contract.forecast import Forecast, Subject
from gigagp.inference.contract.streaming import BegunFit, StreamJob
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.grid.cost import COLUMNS, solves_seconds
from gigagp.inference.grid.objective import GridObjective, choose_grid
from gigagp.inference.grid.posterior import GridPosterior
from gigagp.inference.grid.settings import GridSettings
from gigagp.inference.grid.spacing import axis_gap
from gigagp.inference.grid.streamed import stream
from gigagp.inference.grid.sum_grid import check_terms
from gigagp.kernels.additive import components
from gigagp.model.likelihoods import Likelihood
from gigagp.model.model import Model
from gigagp.operators.grid.statistics import RegularGrid
from gigagp.operators.grid.statistics.interpolation import interpolation_named
from gigagp.runtime.machine import MULTIPLICATION


@dataclass(frozen=True)
class Grid(GridSettings, Inference):
    """Inference on a regular grid: one pass over the rows, then computations that do not depend on their number.

    The function is a Gaussian process on the nodes of a grid, with interpolation between nodes. Learning and
    predictions need only sums over the rows (`gigagp.grids.GridStatistics`).

    When to use: many rows of one to three inputs (four are possible but expensive) and a stationary kernel, or more
    inputs and a kernel that is a sum of terms of at most three inputs each, such as ``RBF(columns=[0]) +
    RBF(columns=[1, 2])``. Linear terms are allowed in both. The lengthscales should span at least two to four cells,
    because finer variation is learned as noise.

    With more than three inputs, each term has its own grid. ``W'W`` then couples all nodes and is dense, 16 m^2 bytes
    for m nodes of all grids while rows are added; solves are as for one grid.

    Parameters
    ----------
    size : "auto", int or sequence of int, default "auto"
        Number of nodes per input, including two cells of margin on each side. ``"auto"`` chooses the spacing by the
        lengthscales at the start of learning, within the limits of the memory budget and the number of rows. If the
        rows of `GPRegressor.fit` lie on a lattice of about that spacing, with gaps, the nodes are the points of the
        lattice.
    interpolation : {"cubic", "linear"}, default "cubic"
        Interpolation scheme: 4 or 2 nodes per input.
    outside : {"refuse", "clamp", "prior"}, default "refuse"
        Predictions at points beyond the grid: an error, the prediction at the nearest point of the grid, or the prior.
    tolerance : float, default 1e-3
        Relative preconditioned residual of solves during learning.
    final_tolerance : float, default 1e-4
        Relative preconditioned residual of the last solve, from which predictions are made.
    max_iterations : int, default 1000
        Largest number of iterations of a solve.
    preconditioner : {"auto", "circulant", "holes", "long_waves", "vecchia", "none"}, default "auto"
        Preconditioner of the solves. ``"auto"`` is ``"circulant"`` if rows are everywhere. If at least 7 % of the nodes
        have no rows, a short trial decides between it and ``"vecchia"``
        (`gigagp.inference.grid.preconditioners.nodes`); if as many have no rows within a cell, also ``"holes"``
        (`gigagp.inference.grid.whitened_system`) and ``"long_waves"``
        (`gigagp.inference.grid.preconditioners.long_waves`). If a lengthscale is much longer than the grid, every
        choice except ``"vecchia"`` and ``"none"`` means ``"long_waves"``.
    n_probes : int, default 16
        Number of probe vectors for the trace in the gradient.
    n_samples : int, default 32
        Number of posterior samples that the last solve computes. Variances from them have a relative standard error of
        ``sqrt(2 / n_samples)``.
    variance : {"samples", "low_rank", "solve"}, default "samples"
        Source of the variances of ``predict(return_std=True)``: the posterior samples, a Lanczos approximation of rank
        ``rank`` that never understates the variance, or a solve for each point. Variances are exact for few rows: if
        the number of nodes times the squared number of rows is at most twice the cube of ``exact_nodes``.
    rank : int, default 100
        Rank of ``variance="low_rank"``. Building it takes 2 rank m numbers of memory, of which rank m are kept.
    exact_nodes : int, default 1500
        Largest number of nodes for which dense factors are used, without stochastic estimates.
    seed : int, default 0
        Seed of the probe vectors that are accumulated with the rows.
    distributed : bool, default False
        Whether `GPRegressor.fit_table` runs in every process of the default ``torch.distributed`` group, called with
        the same arguments. Each process passes over its share of the files or chunks; all continue with the same sums
        and return the same model.

    References
    ----------
    Yadav, Sheldon and Musco (2021), "Faster kernel interpolation for Gaussian processes", arXiv:2101.11751. Wilson and
    Nickisch (2015), arXiv:1503.01057. Pleiss, Gardner, Weinberger and Wilson (2018), arXiv:1803.06058 (low rank).
    """

    abilities = Abilities(
        "grid",
        "any number, one to three inputs, or more with an additive kernel",
        kernels="stationary",
        streams=True,
        takes_bounds=True,
        adds_rows=True,
        dtypes=("float64",),
        devices="cpu",
        options={"--grid-size": "size"},
    )
    posteriors = (GridPosterior,)

    def check_model(self, model: Model) -> None:
        """Refuse models that grid inference does not support, before anything is computed.

        Raises
        ------
        InvalidInputError
            If a term of the kernel is neither stationary nor linear, there are more than four inputs and a term of more
            than three of them, or the kernel has a white term although the noise of every row is known.
        """
        check_terms(model.kernel)
        if model.noise_is_known and model.kernel.has_white:
            raise InvalidInputError(
                "kernel of GPRegressor must have no white term with inference.Grid if noise_variance is given for each "
                f"row, because the rows are weighted once; got {model.kernel!r}. Add its variance to those of the "
                "rows, or use inference.Iterative."
            )
        super().check_model(model)

    def in_processes(self) -> Grid:
        return replace(self, distributed=True)

    def check_held(self) -> None:
        """Refuse (`InvalidInputError`) ``distributed``, because every process would have been given the same rows."""
        if self.distributed:
            raise InvalidInputError(
                "distributed of inference.Grid must be False for GPRegressor.fit; processes share the rows of "
                "fit_table; got True."
            )

    def objective(
        self, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> GridObjective:
        """Return the log marginal likelihood on a table.

        Raises `InvalidInputError` if the table has more inputs than a grid supports, or a constant input.
        """
        return GridObjective(self, table, generator)

    def forecast(self, subject: Subject) -> Forecast | None:
        """Return the cost of a grid that suits a model, and its density; None for sums of grids and constant inputs.

        The variance that interpolation leaves out between the nodes is added to that of every prediction.
        """
        table, model = subject.table, subject.model
        lower, upper = table.X.double().amin(0).cpu().tolist(), table.X.double().amax(0).cpu().tolist()
        if not all(a < b for a, b in zip(lower, upper, strict=True)):
            return None
        grid = choose_grid(self, lower, upper, table.n_rows, table.budget, model)
        if not isinstance(grid, RegularGrid):
            return None
        d, scheme = grid.n_inputs, interpolation_named(self.interpolation)
        kernel = components(model.kernel, range(d))[0][0].kernel
        gap = sum(max(axis_gap(kernel, axis, d, cell, scheme), 0.0) for axis, cell in enumerate(grid.spacing))
        once = MULTIPLICATION * table.n_rows * scheme.width ** (2 * d)
        seconds = once + solves_seconds(d, grid.size)
        nll = subject.exact_nll + 0.5 * math.log1p(gap / subject.exact_variance)
        return subject.with_nll(seconds, grid.statistics_bytes + 8.0 * 2**d * grid.size * COLUMNS, nll)

    def stream(self, job: StreamJob, generator: torch.Generator) -> BegunFit:
        """Pass once over rows that are not held in memory; see `gigagp.inference.contract.streaming`.

        Raises
        ------
        InvalidInputError
            If a row cannot be used (the message names its file), or an input is constant.
        MemoryBudgetError
            If the grid does not fit the memory budget.
        """
        return stream(self, job, generator)

    def describe(self) -> str:
        size = self.size if isinstance(self.size, str | int) else " x ".join(map(str, self.size))
        return f"grid (size {size}, {self.interpolation}, preconditioner {self.preconditioner})"
