"""Grid inference on rows that are not held in memory: a preview, one pass, and learning from the statistics."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.contract.streaming import BegunFit, StreamJob
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective
from gigagp.inference.grid.likelihood import GridLikelihood
from gigagp.inference.grid.objective import GridChoice, GridObjective, choose_grid
from gigagp.inference.grid.posterior import in_units
from gigagp.inference.grid.settings import GridSettings
from gigagp.inference.grid.start import BLOCK_SHARE, N_BLOCKS, CompositeObjective
from gigagp.kernels import from_dict
from gigagp.kernels.serialization import describe, foreign_classes
from gigagp.model.model import Model
from gigagp.model.scaling import Scaling
from gigagp.operators.grid.statistics import GridCollector, GridStatistics, GridSum, Neighbourhoods, RegularGrid
from gigagp.runtime import group, termination
from gigagp.runtime.run import current_run
from gigagp.settings.custom import Custom
from gigagp.storage.occasional_writes import OccasionalWrites
from gigagp.tables.rows.preview import Preview, preview_of

#: Number of rows of a neighbourhood, as the largest subset of the start (a thousand rows) requires.
_NEAR = 400
#: Seconds between two checkpoints of the pass.
_INTERVAL = 60.0
#: A target mean more than this many standard deviations from zero is subtracted before squares are summed.
_FAR_FROM_ZERO = 1e3
#: A standard deviation below this share of the root mean square is a rounding error.
_ROUNDING = 1e-7


class StreamedGridObjective(GridObjective):
    """The likelihood from the statistics of a pass; of the rows, only a sample and a few blocks are kept.

    The rows of the sample are spread over the data. In each block of neighbouring rows, the nearest to its centre come
    first.
    """

    def __init__(
        self,
        settings: GridSettings,
        statistics: GridStatistics,
        sample: TrainingTable,
        blocks: list[TrainingTable],
        generator: torch.Generator,
    ) -> None:
        corners = statistics.input_low, statistics.input_high
        super().__init__(settings, sample, generator, GridChoice(*corners, statistics.n_rows, statistics.grid))
        self._statistics, self._blocks = statistics, blocks
        self._likelihood = GridLikelihood(statistics, sample.mean, settings, self._generator)

    @property
    def n_rows(self) -> int:
        """Number of rows of the pass."""
        return self._statistics.n_rows

    @property
    def target_variance(self) -> float:
        """Mean variance of the targets; 1 where they do not vary."""
        variance = float(self._statistics.target_variances.mean())
        return variance if variance > 0 else 1.0

    def subset(self, rows: Tensor) -> ExactObjective | CompositeObjective:  # type: ignore[override]
        """Return the exact likelihood of rows of the sample, plus that of the blocks unless most rows are chosen."""
        chosen = self.table.take_rows(rows[rows < self.table.n_rows])
        if 2 * len(rows) > self.n_rows:
            return ExactObjective(chosen)
        size = max(int(BLOCK_SHARE * len(rows)), 2)
        near = [block.take_rows(torch.arange(len(block.X))[:size]) for block in self._blocks]
        return CompositeObjective(chosen, near, self.resolves)

    def nearest(self, row: int, count: int) -> Tensor:
        """Raise `InvalidInputError`, because the rows are not held."""
        msg = "optimization.SubsetStart needs the rows, which fit_table does not hold. Use fit, or another optimizer."
        raise InvalidInputError(msg)


def stream(settings: GridSettings, job: StreamJob, generator: torch.Generator) -> BegunFit:
    """Choose a grid, pass over the rows, and return the objective on their statistics; see `StreamJob`."""
    if job.start.noise_variance is not None and job.start.noise_variance.ndim:
        raise InvalidInputError(
            "noise_variance of GPRegressor must be one number, or None, for fit_table with inference.Grid; got one for "
            "each row. Use fit, or inference.Vecchia."
        )
    collector, shift, learned = _collected(settings, job, _share(settings, job))
    if collector.n_rows < 2:
        raise InvalidInputError(f"The source of fit_table must have at least two rows; got {collector.n_rows}.")
    statistics = collector.statistics()
    scaling = _scaling(statistics, shift, job.standardize)
    own = statistics.for_targets(torch.from_numpy(scaling.y_centre) - shift, scaling.y_scale)
    own = own.for_inputs(scaling.x_centre, scaling.x_scale)
    model = (job.start if learned is None else learned).standardized(scaling.units())

    def table(X: Tensor, Y: Tensor) -> TrainingTable:
        X, Y = (torch.from_numpy(part) for part in (scaling.inputs(X.numpy()), scaling.targets((Y + shift).numpy())))
        return TrainingTable(X, Y, model.mean, job.budget).require_finite()

    sample = table(collector.sample.X, collector.sample.Y)
    boxes = [] if collector.neighbourhoods is None else collector.neighbourhoods.boxes()
    objective = StreamedGridObjective(settings, own, sample, [table(*box) for box in boxes], generator)
    return BegunFit(objective, model, scaling)


def _share(settings: GridSettings, job: StreamJob) -> tuple[int, int]:
    """Return the rank of this process and the number of processes; (0, 1) without distribution."""
    together = current_run().processes
    if not settings.distributed or together is None:
        return 0, 1
    if job.checkpoint is not None:
        msg = "checkpoint of fit_table must be None with inference.Grid(distributed=True): it keeps one process's sums."
        raise InvalidInputError(msg)
    return together.rank, together.count


def _collected(
    settings: GridSettings, job: StreamJob, share: tuple[int, int]
) -> tuple[GridCollector, Tensor, Model | None]:
    """Return the statistics of all rows, the shift subtracted from the targets, shape (t,), and the initial model.

    The model comes from the preview and is in the data's own units; None means the model that the user has given.
    """
    source = job.source
    identity = _identity(settings, job)
    if job.checkpoint is not None and job.checkpoint.exists():
        collector = GridCollector.load(job.checkpoint, job.budget)
        if collector.notes.get("identity") != identity:
            raise InvalidInputError(
                f"checkpoint {job.checkpoint} belongs to another fit (other files, columns or settings). Delete it, or "
                "give another file name."
            )
        learned = None
        if collector.notes["kernel"] is not None:
            noise = torch.tensor(collector.notes["noise"], dtype=torch.float64)
            own = Custom(foreign_classes(job.start.kernel))
            kernel, given = from_dict(collector.notes["kernel"], own), job.start.kernel.given_parameters()
            learned = Model(kernel, job.start.mean, noise, given=given)
        shift = torch.tensor(collector.notes["shift"], dtype=torch.float64)
    else:
        preview = preview_of(source, settings.seed, job.bounds)
        shift, scaling = _preview_scaling(preview, job.standardize)
        learned, grid = _preview(settings, job, preview, scaling)
        extents = torch.tensor(preview.upper, dtype=torch.float64) - torch.tensor(preview.lower, dtype=torch.float64)
        # an input may be constant in a preview of the first rows
        units = torch.maximum(preview.sample.X.std(0, correction=0), 1e-3 * extents)
        collector = GridCollector(
            grid,
            source.n_targets,
            settings.n_collected,
            settings.seed,
            neighbourhoods=Neighbourhoods(preview.sample.X[:N_BLOCKS], units, _NEAR, source.n_targets),
            memory_budget=job.budget,
        )
        collector.notes = {
            "identity": identity,
            "kernel": None if learned is None else describe(learned.kernel),
            "noise": None if learned is None else float(learned.noise_variance),
            "shift": shift.tolist(),
        }
    collector.name_inputs(source.input_names)
    _pass(job, collector, shift, share)
    together = current_run().processes
    if not settings.distributed or together is None:
        return collector, shift, learned
    together.meet("the sums of all rows")  # where a process that could not read its share sends its message
    with group.one_message():
        return collector.all_reduce(), shift, learned


def _pass(job: StreamJob, collector: GridCollector, shift: Tensor, share: tuple[int, int]) -> None:
    """Add all rows that the collector has not seen, and write checkpoints if requested."""
    writes = None if job.checkpoint is None else OccasionalWrites(job.checkpoint, _INTERVAL)

    def write() -> bool:
        assert job.checkpoint is not None
        assert writes is not None
        path = job.checkpoint
        return writes.attempt(lambda: collector.save(path))

    count = job.source.storage.row_count
    job.meter.phase("reading the table", None if count is None else count // share[1], unit="row")
    try:
        for rows in job.source.chunks(collector.done, share):
            collector.take(rows if not bool(shift.any()) else replace(rows, Y=rows.Y - shift))
            job.meter.reached(collector.n_rows)
            if writes is not None and writes.are_due:
                write()
    except InvalidInputError as error:
        if writes is None or not write():
            can_go_on = writes is None and job.source.has_files and share == (0, 1)
            hint = " Give fit_table a checkpoint, and a later call continues from it." if can_go_on else ""
            msg = f"{error}{hint}"
        else:
            msg = (
                f"{error} The {collector.n_rows:,} rows before it are kept in {job.checkpoint}: repair or remove "
                "the file, and the same call continues from there."
            )
        raise InvalidInputError(msg) from error
    if writes is not None:
        termination.write_last(write)


def _preview(
    settings: GridSettings, job: StreamJob, preview: Preview, scaling: Scaling
) -> tuple[Model | None, RegularGrid | GridSum]:
    """Return the model learned from a preview (None if nothing was learned) and the grid, in the data's own units."""
    model = job.start.standardized(scaling.units())
    if settings.size != "auto":
        return None, choose_grid(settings, preview.lower, preview.upper, None, job.budget, model)
    lower, upper = (scaling.inputs(np.array([corner]))[0] for corner in (preview.lower, preview.upper))
    learned = None
    if job.learn is not None and len(preview.sample) > 1:
        X, Y = scaling.inputs(preview.sample.X.numpy()), scaling.targets(preview.sample.Y.numpy())
        table = TrainingTable(torch.from_numpy(X), torch.from_numpy(Y), model.mean, job.budget)
        # Learning uses only its exact likelihoods of subsets. It has its own generator, because a resumed fit has
        # no preview and must continue with the same numbers.
        choice = GridChoice(torch.from_numpy(lower), torch.from_numpy(upper), len(X))
        objective = GridObjective(settings, table, torch.Generator().manual_seed(settings.seed), choice)
        model = job.learn(objective, model)
        learned = model.in_own_units(scaling.units())
    grid = choose_grid(settings, lower.tolist(), upper.tolist(), preview.n_rows, job.budget, model)
    return learned, in_units(grid, scaling)


def _preview_scaling(preview: Preview, standardize: bool) -> tuple[Tensor, Scaling]:
    """Return the shift to subtract from the targets in the pass, and a first estimate of the scaling."""
    X, Y = preview.sample.X, preview.sample.Y
    scaling = Scaling.fit(X.numpy(), Y.numpy(), standardize)
    far = Y.mean(0).abs() > _FAR_FROM_ZERO * Y.std(0, correction=0)
    return torch.where(far, Y.mean(0), 0.0), scaling


def _scaling(statistics: GridStatistics, shift: Tensor, standardize: bool) -> Scaling:
    """Return the scaling by means and standard deviations of all rows; ``shift`` was subtracted from the targets."""
    if not standardize:
        return Scaling.fit(np.zeros((1, statistics.grid.n_inputs)), np.zeros((1, statistics.n_targets)), False)
    spread = statistics.target_variances.sqrt()
    size = (statistics.target_squares / statistics.n_rows).sqrt()
    varies = spread > _ROUNDING * size
    inputs = statistics.input_variances.sqrt()
    return Scaling(
        statistics.input_means.numpy(),
        torch.where(inputs > 0, inputs, 1.0).numpy(),
        (statistics.target_means + shift).numpy(),
        torch.where(varies, spread, 1.0).numpy(),
    )


def _identity(settings: GridSettings, job: StreamJob) -> dict[str, Any]:
    """Return the data that determine the pass and its preview, as JSON restores them."""
    found = {
        "source": job.source.identity,
        "settings": asdict(settings),
        "standardize": job.standardize,
        "kernel": describe(job.start.kernel),
        "noise": None if job.start.noise_variance is None else float(job.start.noise_variance),
        "units": job.start.units,
        "mean": getattr(job.start.mean, "name", type(job.start.mean).__name__),
        "bounds": None if job.bounds is None else np.asarray(job.bounds, dtype=np.float64).tolist(),
        "learns": job.learn is not None,
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain
