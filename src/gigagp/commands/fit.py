"""``gigagp fit``: fit a model to a table; ``gigagp plan``: forecast what that would choose, take and bring."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from gigagp.commands import options
from gigagp.commands.blocks import is_large
from gigagp.commands.problem import (
    beside_inputs,
    choose_inputs,
    choose_rows,
    limits,
    loaded,
    naming_rows,
    needs_encoder,
    read_inputs,
    read_problem,
    resolve_column,
    resolve_panel,
)
from gigagp.errors import FitInterruptedWarning, GigaGPWarning, InvalidInputError, ProcessFailedError
from gigagp.model.likelihoods import resolve_likelihood
from gigagp.storage.files import check_apart, check_folder
from gigagp.tables.beside import known_targets
from gigagp.tables.files import PLAIN, CsvStyle, read_columns
from gigagp.tables.files.streaming import column_names
from gigagp.tables.files.table import find_columns, listed


def fit(
    table: options.TablePath,
    target: options.Target,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the model.")] = Path("model.gp"),
    columns: options.Columns = None,
    noise_column: Annotated[
        str | None,
        typer.Option(help="Column with the known noise variance of each row, in squared units of the target."),
    ] = None,
    exposure: options.Exposure = None,
    panel: options.Panel = None,
    groups: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN[,COLUMN...]",
            help="Columns of levels, such as shop,item: each level has an effect, whose variance is learned. "
            "shop:department stands for the combinations of two columns.",
            show_default=False,
        ),
    ] = None,
    upper: Annotated[
        str | None,
        typer.Option(
            help="Column with the upper limit of each target, for --likelihood censored and weibull; --target is then "
            "the lower one. They are equal where the target was measured, and an empty cell is no limit.",
            show_default=False,
        ),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(options.KERNELS)}, joined by + and *, such as rbf*periodic+linear; or average to "
            "average several by their evidence, choose to select one by the evidence of up to 2,000 rows, or auto to "
            "average on up to 2,000 rows and choose on more.",
            show_default="auto; rbf or rq for classes",
        ),
    ] = None,
    inference: Annotated[
        str,
        typer.Option(
            help=f"auto or one of {', '.join(options.INFERENCES)}. Tables that do not fit into memory need grid, which "
            "reads them once (one to three inputs, or an additive kernel), or quadruply-stochastic or "
            "relevance-vectors, which read minibatches."
        ),
    ] = "auto",
    likelihood: Annotated[
        str,
        typer.Option(
            help="gaussian, student-t (heavy tails, outliers), auto (what left-out rows show, for counts, shares, "
            "positive targets and noise), laplace (outliers) or poisson (counts); logistic or probit for a target of "
            "classes, whose labels may be text. laplace, poisson "
            "and classes use --inference vecchia or, by default, quadruply-stochastic. With --inference vecchia also "
            f"{', '.join(options.OF_VECCHIA)}."
        ),
    ] = "gaussian",
    target_transform: Annotated[
        str,
        typer.Option(
            help="none, log, yeo-johnson, spline or auto: an increasing transform of a target that is skewed or has "
            "heavy tails, learned with the model. Predictions are in the target's units."
        ),
    ] = "none",
    noise: Annotated[
        str,
        typer.Option(
            help="constant; varying: noise whose variance depends on the inputs; scaled: the function and its noise "
            "have a common scale that depends on them; auto: what predicts left-out rows best."
        ),
    ] = "constant",
    functions: Annotated[
        int | None,
        typer.Option(help="Number of basis functions of --inference quadruply-stochastic.", show_default=False),
    ] = None,
    neighbors: Annotated[
        int | None,
        typer.Option(help="Number of neighbors of each row for --inference vecchia.", show_default=False),
    ] = None,
    actions: Annotated[
        int | None, typer.Option(help="Number of actions of --inference computation-aware.", show_default=False)
    ] = None,
    inducing: Annotated[
        int | None,
        typer.Option(help="Number of inducing points of --inference sparse-variational.", show_default=False),
    ] = None,
    features: Annotated[
        int | None, typer.Option(help="Number of random features of --inference random-features.", show_default=False)
    ] = None,
    grid_size: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N...]",
            help="Number of grid nodes along each input, such as 80,80,20.",
            show_default=False,
        ),
    ] = None,
    truncation: Annotated[
        str | None,
        typer.Option(
            metavar="MEAN[,SD]",
            help="Learn without the bias of early stopping: end every solve after a random number of iterations with "
            "this mean and standard deviation, and reweight its terms. With random features, it is the number of "
            "frequencies.",
            show_default=False,
        ),
    ] = None,
    optimizer: Annotated[str, typer.Option(help="auto, adam, lbfgs or none.")] = "auto",
    steps: Annotated[
        int | None, typer.Option(help="Number of steps of the optimizer (of Adam, if the optimizer is auto).")
    ] = None,
    mean: Annotated[str, typer.Option(help="zero, constant or linear.")] = "constant",
    rows: Annotated[int | None, typer.Option(help="Fit only this many rows, chosen at random.")] = None,
    seed: options.Seed = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    dtype: Annotated[
        str, typer.Option(help="float64, float32 or mixed (float32 within solvers, corrected in float64).")
    ] = "float64",
    memory: Annotated[str | None, typer.Option(help='Largest amount of memory to use, such as "4GiB".')] = None,
    time_budget: options.TimeBudget = None,
    predict_at: options.PredictAt = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="File for the state of the fit; after a kill, the same command continues from it."),
    ] = None,
    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed",
            help="Share the fit with the other processes of torchrun, which all run this command. The first "
            "one prints and saves.",
        ),
    ] = False,
    header: options.Header = None,
    strict: options.Strict = False,
    decimal: options.Decimal = ".",
    comment: options.Comment = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Fit a Gaussian process to a table and save it."""
    check_folder(out)  # before the work, not after it
    check_apart(out, table)
    method = _method(
        likelihood,
        inference,
        optimizer,
        steps,
        truncation,
        target_transform,
        noise,
        {
            "--grid-size": options.grid_nodes(grid_size),
            "--functions": functions,
            "--neighbors": neighbors,
            "--actions": actions,
            "--inducing": inducing,
            "--features": features,
        },
        exposure is not None,
    )
    if (upper is not None) != (likelihood in options.WITH_LIMITS):
        msg = f"--upper is for --likelihood {' and '.join(options.WITH_LIMITS)}, which need it; got {likelihood}."
        raise InvalidInputError(msg)
    if method.of_classes and exposure is not None:
        raise InvalidInputError(f"--exposure does not apply to --likelihood {likelihood}, whose targets are classes.")
    for option, given in (("--predict-at", predict_at), ("--panel", panel)):
        if method.of_classes and given is not None:
            msg = f"{option} does not apply to --likelihood {likelihood}, whose targets are classes."
            raise InvalidInputError(msg)
    chosen_kernel = kernel if kernel is None or kernel in options.KERNEL_RULES else options.choose_kernel(kernel)
    if method.of_classes and mean == "linear":
        msg = f"--mean linear does not apply to --likelihood {likelihood}: the latent function's mean is zero."
        raise InvalidInputError(msg)
    settings: dict[str, Any] = {
        "kernel": chosen_kernel,
        "dtype": dtype,
        "device": device,
        "memory_budget": memory,
        "time_budget": time_budget,
        "verbose": options.verbosity(quiet, verbose, f"fit of {table.name}"),
        "random_state": seed,
    } | method.settings()
    if distributed:
        if method.of_classes:
            msg = f"--distributed does not apply to --likelihood {likelihood}, whose fits run in one process."
            raise InvalidInputError(msg)
        settings["distributed"] = True
    with all_processes(distributed) as saves:
        beside, style = {"noise_column": noise_column, "exposure": exposure, "upper": upper}, CsvStyle(decimal, comment)
        takes_some = any(one is not None for one in (rows, predict_at, panel, groups, *beside.values()))
        streams = _may_stream(method, takes_some=takes_some)
        streams = streams and (not distributed or method.inference.abilities.name == "grid")
        problem = _read(table, target, columns, beside, header, style, strict, streams)
        if not method.of_classes:
            problem.check_targets(method.likelihood)
        problem = problem.with_rows(rows, seed)
        points = None if predict_at is None else read_inputs(predict_at, problem.inputs, header, style, strict)
        if not method.of_classes:
            settings |= {"mean": mean, "noise_variance": problem.noise()}
        if groups is not None:
            settings["groups"] = [
                [problem.inputs.index(resolve_column(one, problem.inputs, table.name)) for one in group.split(":")]
                for group in groups.split(",")
            ]
        if problem.found is not None and not strict:
            settings["encode"] = "auto"
        if panel is not None:
            settings["panel"] = resolve_panel(panel, problem.inputs, str(table))
        _fit_and_save(problem, method, settings, out if saves else None, checkpoint, points)


def plan(
    table: options.TablePath,
    target: options.Target,
    columns: options.Columns = None,
    panel: options.Panel = None,
    kernel: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(options.KERNELS)}, joined by + and *, or a rule, as for gigagp fit.", show_default="auto"
        ),
    ] = None,
    time_budget: options.TimeBudget = None,
    predict_at: options.PredictAt = None,
    memory: Annotated[str | None, typer.Option(help='Largest amount of memory to use, such as "4GiB".')] = None,
    seed: options.Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the forecast as JSON.")] = False,
    header: options.Header = None,
    strict: options.Strict = False,
    decimal: options.Decimal = ".",
    comment: options.Comment = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Forecast what ``gigagp fit`` would do with a table: the method, its time, and its error on new rows."""
    chosen_kernel: Any = kernel if kernel is None or kernel in options.KERNEL_RULES else options.choose_kernel(kernel)
    style = CsvStyle(decimal, comment)
    X, y, *_ = read_problem(table, target, columns, header, style, strict)
    points = None if predict_at is None else read_inputs(predict_at, list(X.column_names), header, style, strict)

    from gigagp import GPRegressor
    from gigagp.inference.automatic.plan import Plan

    regressor = GPRegressor(
        chosen_kernel,
        memory_budget=memory,
        verbose=options.verbosity(quiet, verbose, "forecast"),
        random_state=seed,
        time_budget=time_budget,
        encode="strict" if strict else "auto",
        panel=None if panel is None else resolve_panel(panel, list(X.column_names), str(table)),
    )
    forecast = regressor.plan(X, y, predict_at=points)
    assert isinstance(forecast, Plan)  # of one target
    if not as_json:
        typer.echo(str(forecast))
        return
    listed: list[dict[str, Any]] = [
        {**asdict(one), "inference": one.inference.abilities.name, "chosen": one is forecast.chosen}
        for one in forecast.options
    ]
    in_gaps = None if forecast.in_gaps is None else asdict(forecast.in_gaps)
    typer.echo(json.dumps({"options": listed, "reason": forecast.reason, "in_gaps": in_gaps}))


@dataclass(frozen=True)
class _Method:
    """How a model is fitted, from the options of the command line."""

    inference: Any
    optimizer: Any
    likelihood: str
    target_transform: str
    noise: str

    @property
    def of_classes(self) -> bool:
        """Whether the target is a class."""
        return self.likelihood in options.OF_CLASSES

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the estimator."""
        found: dict[str, Any] = {"inference": self.inference, "optimizer": self.optimizer}
        if self.likelihood != "gaussian":
            found["likelihood"] = self.likelihood
        of_numbers = {"target_transform": self.target_transform, "noise": self.noise}
        return found if self.of_classes else {**found, **of_numbers}

    @property
    def holds_targets(self) -> bool:
        """Whether more than a number of each target is needed, or a choice is made by all of them."""
        found = None if self.likelihood == "auto" else resolve_likelihood(self.likelihood)
        return found is None or found.has_limits or found.exposure == "trials"


def _method(
    likelihood: str,
    inference: str,
    optimizer: str,
    steps: int | None,
    truncation: str | None,
    target_transform: str,
    noise: str,
    of_some: dict[str, Any],
    has_exposure: bool,
) -> _Method:
    """Return the method that words describe; ``of_some`` are options that only some inference methods have."""
    if likelihood not in options.LIKELIHOODS:
        raise InvalidInputError(f"--likelihood must be one of {', '.join(options.LIKELIHOODS)}; got {likelihood!r}.")
    if target_transform not in options.TRANSFORMS:
        msg = f"--target-transform must be one of {', '.join(options.TRANSFORMS)}; got {target_transform!r}."
        raise InvalidInputError(msg)
    if target_transform != "none" and likelihood != "gaussian":
        msg = f"--target-transform {target_transform} does not apply to --likelihood {likelihood}; leave one out."
        raise InvalidInputError(msg)
    if noise not in options.NOISES:
        raise InvalidInputError(f"--noise must be one of {', '.join(options.NOISES)}; got {noise!r}.")
    if noise != "constant" and likelihood != "gaussian":
        raise InvalidInputError(f"--noise {noise} does not apply to --likelihood {likelihood}; leave one out.")
    if inference == "auto" and (has_exposure or likelihood in options.OF_VECCHIA):
        inference = "vecchia"
    elif inference == "auto" and likelihood in options.OF_BOTH:
        inference = "quadruply-stochastic"
    chosen = options.choose_inference(inference, truncation, of_some)
    return _Method(chosen, options.choose_optimizer(optimizer, steps, chosen), likelihood, target_transform, noise)


def _may_stream(method: _Method, *, takes_some: bool) -> bool:
    """Whether rows may be read in chunks; refuse some rows, or their noise, for a method that holds none."""
    abilities = None if method.inference == "auto" else method.inference.abilities
    if abilities is None or not abilities.streams:
        return False
    if takes_some and not abilities.holds_rows:
        raise InvalidInputError(
            "--rows, --noise-column, --panel, --groups and --predict-at do not apply to --inference "
            f"{abilities.name}, which takes all rows of a table and learns one noise variance."
        )
    # a transform, noise that varies and the choice of a likelihood are learned from rows that are held
    plain = method.target_transform == "none" and method.noise == "constant" and not method.holds_targets
    return plain and not takes_some


@dataclass(frozen=True)
class _Problem:
    """The table of a fit; ``found`` has all columns, and is None where rows are read in chunks."""

    path: Path
    header: bool | None
    strict: bool
    target: str
    inputs: list[str]
    beside: dict[str, str | None]  # columns with the noise, the exposure and the upper limits
    found: pa.Table | None

    def with_rows(self, rows: int | None, seed: int) -> _Problem:
        """Return the problem with this many random rows."""
        if self.found is None:
            return self
        found = choose_rows(self.found, rows, seed)
        if len(found) == 1:
            raise InvalidInputError(f"{self.path} has one row; at least two are needed to fit a model.")
        return replace(self, found=found)

    def check_targets(self, likelihood: str) -> None:
        """Refuse rows that a likelihood excludes."""
        if self.found is None:
            return
        source, names, upper = str(self.path), self.target, self.beside["upper"]
        if upper is None:
            y = beside_inputs(self.found, self.target, source)
        else:
            y, names = limits(self.found, self.target, upper, source), f"{self.target}' and '{upper}"
        with naming_rows(source, names, self.beside["exposure"]):
            known_targets(resolve_likelihood(likelihood), y, len(self.found), self.exposure())

    def noise(self) -> Any:
        """Return the known noise variance of each row, if there is a column of it."""
        return self._column("noise_column")

    def exposure(self) -> Any:
        """Return the exposure of each row, if there is a column of it."""
        return self._column("exposure")

    def _column(self, role: str) -> Any:
        name = self.beside[role]
        if self.found is None or name is None:
            return None
        return beside_inputs(self.found, name, str(self.path))


def _read(
    path: Path,
    target: str,
    columns: str | None,
    beside: dict[str, str | None],
    header: bool | None,
    style: CsvStyle,
    strict: bool,
    streams: bool,
) -> _Problem:
    """Read a table, or only the names of its columns where its rows will be read in chunks."""
    source, streams = str(path), streams and style == PLAIN
    # One file of moderate size may have texts, for which it is held. Folders and large files are of numbers.
    in_chunks = streams and (strict or path.is_dir() or is_large(path))
    found = None if in_chunks else read_columns(path, header, style)
    names = column_names(path, header) if found is None else list(found.column_names)
    target = resolve_column(target, names, source)
    beside = {role: one if one is None else resolve_column(one, names, source) for role, one in beside.items()}
    extra = [target, *(one for one in beside.values() if one is not None)]
    inputs = choose_inputs(columns, names, extra, source)
    find_columns(inputs, names, source)
    if found is not None and streams and not needs_encoder(found.select(inputs)):
        found = None  # the columns are numbers, so that rows can be read in chunks
    return _Problem(path, header, strict, target, inputs, beside, found)


def _fit_and_save(
    problem: _Problem,
    method: _Method,
    settings: dict[str, Any],
    out: Path | None,
    checkpoint: Path | None,
    predict_at: pa.Table | None,
) -> None:
    """Fit, save and describe the model; in a process without an output, only fit it."""
    from gigagp import GPClassifier, GPRegressor
    from gigagp.estimators.saving import persistence

    regressor: Any = GPClassifier(**settings) if method.of_classes else GPRegressor(**settings)
    target, inputs, found = problem.target, problem.inputs, problem.found
    began = time.perf_counter()
    stopped = None
    try:
        if found is None:
            with naming_rows(problem.path, target):
                regressor.fit_table(problem.path, target, inputs, checkpoint=checkpoint, header=problem.header)
        else:
            source, upper = str(problem.path), problem.beside["upper"]
            X, y = loaded(found, inputs, target, source, problem.strict, method.of_classes or upper is not None)
            y = y if upper is None else limits(found, target, upper, source)
            given = {"exposure": problem.exposure(), "predict_at": predict_at}
            known = {name: one for name, one in given.items() if one is not None}
            regressor.fit(X, y, checkpoint=checkpoint, **known)
    except FitInterruptedWarning as warning:  # the model exists nevertheless
        stopped = warning
    if out is None:
        return
    latent = regressor.latent_ if method.of_classes else regressor
    n_rows = latent.posterior_.n_rows if found is None else len(found)
    seconds = time.perf_counter() - began
    beside = {role: one for role, one in problem.beside.items() if one is not None or role == "noise_column"}
    persistence.save(regressor, out, notes={"target": target, **beside, "rows": n_rows})
    if stopped is not None:
        raise FitInterruptedWarning(f"{stopped} Saved to {out}.")
    if method.of_classes:
        typer.echo(f"classes       {listed(regressor.classes_.tolist())}")
    typer.echo(latent.describe())
    typer.echo(f"Fitted {n_rows:,} rows and {len(inputs)} inputs in {seconds:.1f} s; saved to {out}.")


# Commands that several processes run together, as ``torchrun`` starts them --------------------------------------------


#: Exit code of a process whose error the first process reports.
_EXIT_REPORTED = 2
#: How long a process waits for the others, which may be in the middle of a long computation.
_TIMEOUT = timedelta(minutes=30)


@contextmanager
def all_processes(distributed: bool) -> Iterator[bool]:
    """Run a block together with the other processes of torchrun; the value is whether this one prints and saves.

    An error of any process ends the block in all of them, and one of them reports it: the first, or one that has lost
    contact with it. Without ``distributed``, this process runs the block alone.
    """
    if not distributed:
        yield True
        return
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        raise InvalidInputError(
            "--distributed needs the processes that torchrun starts: torchrun --nproc-per-node 2 -m gigagp fit ... "
            "--distributed."
        )
    import torch.distributed as dist

    from gigagp.runtime import processes

    _take_card()
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    first = dist.get_rank() == 0
    try:
        with warnings.catch_warnings():
            if not first:
                warnings.simplefilter("ignore", GigaGPWarning)
            with processes.joined(True):
                yield first
    except Exception as error:
        if first or (isinstance(error, ProcessFailedError) and error.lost):
            raise
        raise typer.Exit(_EXIT_REPORTED) from error
    finally:
        dist.destroy_process_group()


def _take_card() -> None:
    """Let each process of a machine with several GPUs compute on its own."""
    import torch

    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if cards > 1:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % cards)
