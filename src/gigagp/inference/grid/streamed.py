"""Grid inference on rows that are never held: a preview, one pass, and learning from what the pass has added up."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigagp import termination
from gigagp.custom import Custom
from gigagp.errors import InvalidInputError
from gigagp.grids import GridCollector, GridStatistics, Neighbourhoods, RegularGrid
from gigagp.inference.exact import ExactObjective
from gigagp.inference.grid.likelihood import GridLikelihood
from gigagp.inference.grid.objective import GridChoice, GridObjective, choose_grid
from gigagp.inference.grid.posterior import in_units
from gigagp.inference.grid.settings import GridSettings
from gigagp.inference.grid.start import BLOCK_SHARE, N_BLOCKS, CompositeObjective
from gigagp.inference.streaming import BegunFit, StreamJob
from gigagp.inference.table import TrainingTable
from gigagp.kernels import from_dict
from gigagp.kernels.serialization import describe, foreign_classes
from gigagp.model import Model
from gigagp.occasional_writes import OccasionalWrites
from gigagp.rows.preview import Preview, preview_of
from gigagp.scaling import Scaling

#: Rows of a neighbourhood: what the start's largest subset, of a thousand rows, asks for.
_NEAR = 400
#: Seconds between two writes of the pass's state.
_INTERVAL = 60.0
#: Where a target's mean is so many standard deviations from zero, it is taken off before squares are summed.
_FAR_FROM_ZERO = 1e3
#: A standard deviation below this share of the mean square is rounding.
_ROUNDING = 1e-7


class StreamedGridObjective(GridObjective):
    """The likelihood from statistics that a pass has made; what it was started from is all that is left of the rows.

    Parameters
    ----------
    settings : GridSettings
    statistics : GridStatistics
        In the model's units.
    sample : TrainingTable
        Rows from everywhere.
    blocks : list of TrainingTable
        Rows near to each other, nearest to the middle of their block first.
    generator : torch.Generator
        Of the probes.
    """

    def __init__(
        self,
        settings: GridSettings,
        statistics: GridStatistics,
        sample: TrainingTable,
        blocks: list[TrainingTable],
        generator: torch.Generator,
    ) -> None:
        n = statistics.n_rows
        super().__init__(
            settings, sample, generator, GridChoice(statistics.input_low, statistics.input_high, n, statistics.grid)
        )
        self._blocks = blocks
        self._likelihood = GridLikelihood(statistics, sample.mean, settings, self._generator)
        self._statistics = statistics

    @property
    def n_rows(self) -> int:
        """Rows of the pass."""
        return self._statistics.n_rows

    @property
    def n_observations(self) -> int:
        """Rows times targets."""
        return self._statistics.n_rows * self._statistics.n_targets

    @property
    def target_variance(self) -> float:
        """Mean variance of the targets; 1 where they do not vary."""
        variance = float(self._statistics.target_variances.mean())
        return variance if variance > 0 else 1.0

    def draw_rows(self, count: int, generator: torch.Generator) -> Tensor:
        """Return the indices of random rows of the sample, sorted."""
        return torch.randperm(self.table.n_rows, generator=generator)[:count].sort().values

    def subset(self, rows: Tensor) -> ExactObjective | CompositeObjective:  # type: ignore[override]
        """Return the exact likelihood of rows of the sample, together with that of the blocks where there are more."""
        chosen = self.table.take_rows(rows[rows < self.table.n_rows])
        if 2 * len(rows) > self.n_rows:
            return ExactObjective(chosen)
        size = max(int(BLOCK_SHARE * len(rows)), 2)
        return CompositeObjective(
            chosen, [block.take_rows(torch.arange(len(block.X))[:size]) for block in self._blocks]
        )

    def nearest(self, row: int, count: int) -> Tensor:
        """Raise: the rows are gone."""
        msg = "optimization.SubsetStart needs the rows, which fit_table does not hold. Use fit, or another optimizer."
        raise InvalidInputError(msg)


def stream(settings: GridSettings, job: StreamJob, generator: torch.Generator) -> BegunFit:
    """Choose a grid, pass over the rows, and return the objective on their statistics; see `StreamJob`."""
    collector, shift, learned = _collected(settings, job, _share(settings, job))
    if collector.n_rows < 2:
        msg = f"The source of fit_table must have two rows at least; got {collector.n_rows}."
        raise InvalidInputError(msg)
    statistics = collector.statistics()
    scaling = _scaling(statistics, shift, job.standardize)
    own = statistics.for_targets(torch.from_numpy(scaling.y_centre) - shift, scaling.y_scale).for_inputs(
        scaling.x_centre, scaling.x_scale
    )

    model = job.start.standardized(scaling.units()) if learned is None else learned.standardized(scaling.units())

    def table(X: Tensor, Y: Tensor) -> TrainingTable:
        X, Y = (torch.from_numpy(part) for part in (scaling.inputs(X.numpy()), scaling.targets((Y + shift).numpy())))
        return TrainingTable(X, Y, model.mean, job.budget).require_finite()

    sample = table(collector.sample.X, collector.sample.Y)
    boxes = [] if collector.neighbourhoods is None else collector.neighbourhoods.boxes()
    objective = StreamedGridObjective(settings, own, sample, [table(*box) for box in boxes], generator)
    return BegunFit(objective, model, scaling)


def _share(settings: GridSettings, job: StreamJob) -> tuple[int, int]:
    """Return which process of how many this is; (0, 1) where it is alone."""
    if not settings.distributed:
        return 0, 1
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        msg = (
            "distributed of inference.Grid needs torch.distributed: call torch.distributed.init_process_group in every "
            "process before fit_table (torchrun starts them)."
        )
        raise InvalidInputError(msg)
    if job.checkpoint is not None:
        msg = "checkpoint of fit_table must be None with inference.Grid(distributed=True): it keeps one process's sums."
        raise InvalidInputError(msg)
    return dist.get_rank(), dist.get_world_size()


def _collected(
    settings: GridSettings, job: StreamJob, share: tuple[int, int]
) -> tuple[GridCollector, Tensor, Model | None]:
    """Return the statistics of all rows, what was taken off the targets (t,), and the model to learn from.

    The model is that of a preview, in the data's own units; None: what was given.
    """
    source = job.source
    identity = _identity(settings, job)
    if job.checkpoint is not None and job.checkpoint.exists():
        collector = GridCollector.load(job.checkpoint, job.budget)
        if collector.notes.get("identity") != identity:
            msg = (
                f"checkpoint {job.checkpoint} belongs to another fit (other files, columns or settings). Delete it, or "
                "give another file name."
            )
            raise InvalidInputError(msg)
        learned = None
        if collector.notes["kernel"] is not None:
            noise = torch.tensor(collector.notes["noise"], dtype=torch.float64)
            own = Custom(foreign_classes(job.start.kernel))
            learned = Model(from_dict(collector.notes["kernel"], own), job.start.mean, noise)
        shift = torch.tensor(collector.notes["shift"], dtype=torch.float64)
    else:
        preview = preview_of(source, settings.seed, job.bounds)
        shift, scaling = _preview_scaling(preview, job.standardize)
        learned, grid = _preview(settings, job, preview, scaling)
        extents = torch.tensor(preview.upper, dtype=torch.float64) - torch.tensor(preview.lower, dtype=torch.float64)
        # an input may not vary in a preview of the first rows
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
    if not settings.distributed:
        _pass(job, collector, shift, share)
        return collector, shift, learned
    error = None
    try:
        _pass(job, collector, shift, share)
    except InvalidInputError as found:  # the others wait for this one
        error = found
    _raise_everywhere(error, share)
    return collector.all_reduce(), shift, learned


def _raise_everywhere(error: InvalidInputError | None, share: tuple[int, int]) -> None:
    """Raise in every process what has gone wrong in one of them."""
    import torch.distributed as dist

    messages: list[Any] = [None] * share[1]
    dist.all_gather_object(messages, None if error is None else str(error))
    if error is not None:
        raise error
    for rank, message in enumerate(messages):
        if message is not None:
            raise InvalidInputError(f"process {rank} of {share[1]}: {message}")


def _pass(job: StreamJob, collector: GridCollector, shift: Tensor, share: tuple[int, int]) -> None:
    """Add all rows that the collector has not seen, and keep its state where that is wanted."""
    writes = None if job.checkpoint is None else OccasionalWrites(job.checkpoint, _INTERVAL)

    def write() -> bool:
        assert job.checkpoint is not None
        assert writes is not None
        path = job.checkpoint
        return writes.attempt(lambda: collector.save(path))

    job.meter.start(None, "rows")
    try:
        for rows in job.source.chunks(collector.done, share):
            collector.take(rows if not bool(shift.any()) else replace(rows, Y=rows.Y - shift))
            job.meter.step(rows=f"{collector.n_rows:,}")
            if writes is not None and writes.are_due:
                write()
    except InvalidInputError as error:
        if writes is None or not write():
            can_go_on = writes is None and job.source.has_files and share == (0, 1)
            hint = " Give fit_table a checkpoint, and a later call goes on from there." if can_go_on else ""
            msg = f"{error}{hint}"
        else:
            msg = (
                f"{error} The {collector.n_rows:,} rows before it are kept in {job.checkpoint}: mend or remove the "
                "file, and the same call goes on from there."
            )
        raise InvalidInputError(msg) from error
    finally:
        job.meter.close()
    if writes is not None:
        termination.write_last(write)


def _preview(
    settings: GridSettings, job: StreamJob, preview: Preview, scaling: Scaling
) -> tuple[Model | None, RegularGrid]:
    """Return the model that a few rows prefer (None: they were not asked) and the grid, in the data's own units."""
    model = job.start.standardized(scaling.units())
    if settings.size != "auto":
        return None, choose_grid(settings, preview.lower, preview.upper, None, job.budget, model)
    lower, upper = (scaling.inputs(np.array([corner]))[0] for corner in (preview.lower, preview.upper))
    learned = None
    if job.learn is not None and len(preview.sample) > 1:
        X, Y = scaling.inputs(preview.sample.X.numpy()), scaling.targets(preview.sample.Y.numpy())
        table = TrainingTable(torch.from_numpy(X), torch.from_numpy(Y), model.mean, job.budget)
        # Its exact likelihoods of subsets are all that is asked for. A generator of its own: a fit that is resumed has
        # no preview, and goes on to the same numbers.
        choice = GridChoice(torch.from_numpy(lower), torch.from_numpy(upper), len(X))
        objective = GridObjective(settings, table, torch.Generator().manual_seed(settings.seed), choice)
        model = job.learn(objective, model)
        learned = model.in_own_units(scaling.units())
    grid = choose_grid(settings, lower.tolist(), upper.tolist(), preview.n_rows, job.budget, model)
    return learned, in_units(grid, scaling)


def _preview_scaling(preview: Preview, standardize: bool) -> tuple[Tensor, Scaling]:
    """Return what is to be taken off the targets in the pass, and a first guess at the scaling."""
    X, Y = preview.sample.X, preview.sample.Y
    scaling = Scaling.fit(X.numpy(), Y.numpy(), standardize)
    far = Y.mean(0).abs() > _FAR_FROM_ZERO * Y.std(0, correction=0)
    return torch.where(far, Y.mean(0), 0.0), scaling


def _scaling(statistics: GridStatistics, shift: Tensor, standardize: bool) -> Scaling:
    """Return the scaling by means and standard deviations of all rows, whose targets have had ``shift`` taken off."""
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
    """Return what decides the pass and its preview, as JSON gives it back."""
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
