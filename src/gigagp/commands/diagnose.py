"""``gigagp diagnose bias``: bias, variance and cost of estimates, measured on a table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Column
from rich.table import Table as Grid

import gigagp
from gigagp.commands import options
from gigagp.commands.blocks import read_inputs
from gigagp.commands.interrupts import interruptible
from gigagp.commands.problem import (
    beside_inputs,
    choose_inputs,
    choose_rows,
    known_target,
    require_one_target,
    resolve_column,
)
from gigagp.errors import InvalidInputError
from gigagp.tables.files import Table, read_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from gigagp.diagnostics import BiasReport
    from gigagp.inference.contract.table import TrainingTable
    from gigagp.model.model import Model

SOLVERS = {
    "cg": "ConjugateGradients",
    "ap": "AlternatingProjections",
    "sgd": "StochasticGradientDescent",
    "cholesky": "Cholesky",
}
GRADIENTS = {"pathwise": "Pathwise", "hutchinson": "Hutchinson", "exact": "Exact"}
#: Inference methods whose gradients estimate the exact ones.
_MEASURED = ("iterative", "random-features", "exact")
#: Relative residual so small that solves run until their budget is spent.
_NEVER = 1e-12
#: A bias of more standard errors than this is not due to chance.
_ERRORS = 4
diagnose = typer.Typer(help="Measure the accuracy of the estimates behind a fit.")


@diagnose.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@diagnose.command()
@interruptible
def bias(
    table: options.TablePath,
    target: Annotated[
        str | None, typer.Option(help="The column to predict: its name, or its number from 1.", show_default=False)
    ] = None,
    columns: options.Columns = None,
    rows: Annotated[int, typer.Option(help="Number of random rows; the exact values need a Cholesky factor.")] = 2000,
    draws: Annotated[int, typer.Option(help="Number of draws of each estimate.")] = 200,
    kernel: Annotated[str, typer.Option(help=f"{', '.join(options.KERNELS)}, joined by + and *.")] = "matern32",
    mean: Annotated[str, typer.Option(help="zero, constant or linear.")] = "constant",
    model: Annotated[
        Path | None,
        typer.Option(help="Use the hyperparameters of this saved model; by default they are learned from the rows."),
    ] = None,
    start: Annotated[
        bool, typer.Option("--start", help="Use the hyperparameters at which learning would start.")
    ] = False,
    inference: Annotated[str, typer.Option(help="iterative, random-features or exact.")] = "iterative",
    truncation: Annotated[
        str | None,
        typer.Option(
            metavar="MEAN[,SD]",
            help="Cut series at a random length with this mean and standard deviation.",
            show_default=False,
        ),
    ] = None,
    features: Annotated[
        int | None, typer.Option(help="Number of random features, for the inference or for pathwise probes.")
    ] = None,
    solver: Annotated[str, typer.Option(help=f"auto, {', '.join(SOLVERS)}.")] = "auto",
    max_epochs: Annotated[
        float | None,
        typer.Option(help="Stop every solve after this many epochs (iterations of cg), regardless of its residual."),
    ] = None,
    tolerance: Annotated[float | None, typer.Option(help="Relative residual of the solves.")] = None,
    preconditioner: Annotated[
        str, typer.Option(help="For cg: auto, none, or the rank of a pivoted Cholesky factor.")
    ] = "auto",
    gradient: Annotated[str, typer.Option(help=f"auto, {', '.join(GRADIENTS)}.")] = "auto",
    probes: Annotated[int | None, typer.Option(help="Number of probe vectors of the gradient.")] = None,
    values: Annotated[
        bool,
        typer.Option("--values/--no-values", help="Also estimate the log likelihood (a determinant per draw)."),
    ] = True,
    plot: Annotated[Path | None, typer.Option(help="Plot the errors to this file (.png, .pdf, .svg).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    memory: Annotated[str | None, typer.Option(help='Memory to use at most, such as "4GiB".')] = None,
    seed: options.Seed = 0,
    header: options.Header = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Estimate likelihood and gradient many times, and report their bias, variance and cost."""
    from gigagp import diagnostics
    from gigagp.runtime.progress import meter_for
    from gigagp.storage.figures import check_plot

    if plot is not None:
        check_plot(plot)
    if start and model is not None:
        raise InvalidInputError("--start and --model cannot be combined: give only one of them.")
    method = choose_method(
        inference,
        truncation=truncation,
        features=features,
        solver=solver,
        max_epochs=max_epochs,
        tolerance=tolerance,
        preconditioner=preconditioner,
        gradient=gradient,
        probes=probes,
    )
    found = read_columns(table, header)
    if model is not None:
        at, numbers = _at_model(model, found, str(table), target, columns, rows, seed, memory)
    else:
        if target is None:
            raise InvalidInputError("--target must name the column to predict.")
        at, numbers = _at_rows(found, str(table), target, columns, rows, seed, memory, kernel, mean, learn=not start)

    report = diagnostics.measure_bias(
        method,
        at,
        numbers,
        n_draws=draws,
        random_state=seed,
        values=values,
        meter=meter_for(options.verbosity(quiet, verbose, "measurement"), job="measurement"),
    )
    if plot is not None:
        diagnostics.plot_bias(report, plot)
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
    else:
        _show(report)


def choose_method(
    inference: str,
    *,
    truncation: str | None = None,
    features: int | None = None,
    solver: str = "auto",
    max_epochs: float | None = None,
    tolerance: float | None = None,
    preconditioner: str = "auto",
    gradient: str = "auto",
    probes: int | None = None,
) -> Any:
    """Return the inference method that the options describe; refuse unknown words, and options of other methods."""
    from gigagp.inference import Iterative, RandomFeatures

    if (inference in options.INFERENCES and inference not in _MEASURED) or inference == "auto":
        why = "which is exact here" if inference == "auto" else "whose model is another one"
        raise InvalidInputError(f"--inference of diagnose must be {' or '.join(_MEASURED)}; got {inference!r}, {why}.")
    method = options.choose_inference(inference, truncation)
    given = {
        "--solver": solver != "auto",
        "--max-epochs": max_epochs is not None,
        "--tolerance": tolerance is not None,
        "--preconditioner": preconditioner != "auto",
        "--gradient": gradient != "auto",
        "--probes": probes is not None,
    }
    if isinstance(method, Iterative):
        return replace(
            method,
            solver=_choose_solver(method.solver, solver, max_epochs, tolerance, preconditioner),
            gradient=_choose_gradient(gradient, probes, features),
        )
    given["--features"] = features is not None and not isinstance(method, RandomFeatures)
    for option, is_given in given.items():
        if is_given:
            msg = f"{option} does not apply to --inference {inference}; it goes with --inference iterative."
            raise InvalidInputError(msg)
    if features is None:
        return method
    if truncation is not None:
        msg = "--features cannot be combined with --truncation, which draws the number of random features."
        raise InvalidInputError(msg)
    return replace(method, n_features=features)


def _choose_solver(
    truncated: Any, word: str, max_epochs: float | None, tolerance: float | None, preconditioner: str
) -> Any:
    """Return the solver; ``truncated`` is ``"auto"``, or conjugate gradients with a truncation."""
    from gigagp import solvers

    if word not in ("auto", *SOLVERS):
        raise InvalidInputError(f"--solver must be one of auto, {', '.join(SOLVERS)}; got {word!r}.")
    if truncated != "auto" and word not in ("auto", "cg"):
        raise InvalidInputError(f"--truncation cuts conjugate gradients; --solver must be cg, got {word!r}.")
    if word not in ("auto", "cg") and preconditioner != "auto":
        raise InvalidInputError(f"--preconditioner belongs to --solver cg; got {word!r}.")
    changes: dict[str, Any] = {}
    if max_epochs is not None:
        changes |= {"max_epochs": max_epochs, "tolerance": _NEVER}
    if tolerance is not None:
        changes["tolerance"] = tolerance
    if preconditioner == "none":
        changes["preconditioner"] = None
    elif preconditioner != "auto":
        if not preconditioner.isdecimal():
            raise InvalidInputError(f"--preconditioner must be auto, none or a rank; got {preconditioner!r}.")
        changes["preconditioner"] = solvers.PivotedCholesky(rank=int(preconditioner))
    if truncated != "auto":
        return replace(truncated, **changes)
    if word == "auto" and not changes:
        return "auto"
    if word == "cholesky" and changes:
        raise InvalidInputError("--solver cholesky has no --max-epochs and no --tolerance: it solves exactly.")
    return getattr(solvers, SOLVERS["cg" if word == "auto" else word])(**changes)


def _choose_gradient(word: str, probes: int | None, features: int | None) -> Any:
    from gigagp.inference import gradients

    if word not in ("auto", *GRADIENTS):
        raise InvalidInputError(f"--gradient must be one of auto, {', '.join(GRADIENTS)}; got {word!r}.")
    if features is not None and word not in ("auto", "pathwise"):
        msg = f"--features belongs to --gradient pathwise or --inference random-features; got --gradient {word!r}."
        raise InvalidInputError(msg)
    if word == "exact" and probes is not None:
        raise InvalidInputError("--gradient exact has no --probes.")
    changes = {} if probes is None else {"n_probes": probes}
    if features is not None:
        changes["n_features"] = features
    if word == "auto" and not changes:
        return "auto"
    # sixteen probes, as for "auto"; the default of the estimators themselves is the papers' sixty-four
    return getattr(gradients, GRADIENTS["pathwise" if word == "auto" else word])(
        **({} if word == "exact" else {"n_probes": 16} | changes)
    )


def _at_rows(
    found: pa.Table,
    source: str,
    target: str,
    columns: str | None,
    rows: int,
    seed: int,
    memory: str | None,
    kernel: str,
    mean: str,
    *,
    learn: bool,
) -> tuple[Model, TrainingTable]:
    """Return the model that exact inference learns from the rows (or starts from), and the rows in its units."""
    from gigagp import GPRegressor
    from gigagp.inference import Exact
    from gigagp.inference.contract.rows_posterior import RowsPosterior

    target = resolve_column(target, found.column_names, source)
    inputs = choose_inputs(columns, found.column_names, [target], source)
    data = choose_rows(Table.from_arrow(found, [*inputs, target], source, targets=[target]), rows, seed)
    regressor = GPRegressor(
        options.choose_kernel(kernel),
        inference=Exact(),
        optimizer="auto" if learn else None,
        mean=mean,
        memory_budget=memory,
        random_state=seed,
    )
    regressor.fit(data.select(inputs).to_arrow(), data.column(target))
    posterior = regressor.posterior_
    assert isinstance(posterior, RowsPosterior), "the inferences of diagnose keep the rows"
    return posterior.model, posterior.table


def _at_model(
    path: Path,
    found: pa.Table,
    source: str,
    target: str | None,
    columns: str | None,
    rows: int,
    seed: int,
    memory: str | None,
) -> tuple[Model, TrainingTable]:
    """Return a saved model and the rows in its units."""
    from gigagp.inference.contract.table import TrainingTable
    from gigagp.runtime.memory import resolve_budget

    regressor = gigagp.load(path)
    require_one_target(regressor, path)
    model, scaling = regressor.posterior_.model, regressor.scaling_
    if model.noise_is_known:
        raise InvalidInputError(f"--model must have a learned noise variance; {path} does not.")
    target = resolve_column(known_target(path, target), found.column_names, source)
    inputs = read_inputs(regressor, found, source, options.split_names(columns))
    values = inputs if isinstance(inputs, np.ndarray) else Table.from_arrow(inputs, source=source).values
    measured = beside_inputs(found, target, source)
    names = (*(f"input {place}" for place in range(values.shape[1])), "target")  # an input may have the target's name
    data = choose_rows(Table(names, np.column_stack([values, measured])), rows, seed).values
    posterior, transform = regressor.posterior_, regressor.target_transform_
    transform.check(data[:, -1:], f"column {target!r} of {source}")
    of_model = {"dtype": posterior.dtype, "device": posterior.device}
    return model, TrainingTable(
        torch.from_numpy(scaling.inputs(data[:, :-1])).to(**of_model),
        torch.from_numpy(scaling.targets(transform.forward(data[:, -1:]))).to(**of_model),
        model.mean,
        resolve_budget(memory, posterior.device),
    )


def _show(report: BiasReport) -> None:
    typer.echo(f"{report.method}\n{report.n_draws:,} draws, {report.n_rows:,} rows")
    names = ("exact", "mean", "bias / s.e.", "std", "std / data")
    grid = Grid(Column("", no_wrap=True), *(Column(name, justify="right", no_wrap=True) for name in names))
    for row in report:
        spread = row.standard_deviation
        errors = f"{row.errors:.1f}", f"{spread:.3g}", f"{spread / row.scale:.3g}"
        grid.add_row(row.name, f"{row.exact:.5g}", f"{row.mean:.5g}", *errors)
    Console().print(grid)
    typer.echo(
        "The gradient is with respect to the logarithm of each hyperparameter, with variances as standard deviations. "
        "bias / s.e.: bias in standard errors. std / data: standard deviation of one draw divided by that of the exact "
        "value over data sets."
    )
    epochs = "" if report.epochs is None else f", {report.epochs:.3g} epochs"
    typer.echo(
        f"A gradient took {report.seconds:.3g} s{epochs}; the exact one {report.exact_seconds:.3g} s. Root mean square "
        f"error of one draw, in the same units: {report.gradient_error:.3g}."
    )
    biased = [row.name for row in report if abs(row.errors) > _ERRORS]
    if biased:
        typer.echo(f"Biased by more than {_ERRORS} standard errors: {', '.join(biased)}.")
    else:
        typer.echo(f"No bias of more than {_ERRORS} standard errors in {report.n_draws:,} draws.")
