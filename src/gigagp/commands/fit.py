"""``gigagp fit``: fit a model to a table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import pyarrow as pa
import typer

from gigagp.commands import options
from gigagp.commands.blocks import is_large
from gigagp.data import PLAIN, CsvStyle, Table, find_column, read_columns
from gigagp.data.streaming import column_names
from gigagp.data.table import find_columns
from gigagp.errors import FitInterruptedWarning, InvalidInputError
from gigagp.files import check_folder

Rows = TypeVar("Rows", Table, pa.Table)


def fit(
    table: options.TablePath,
    target: options.Target,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the model.")] = Path("model.gp"),
    columns: options.Columns = None,
    noise_column: Annotated[
        str | None,
        typer.Option(help="Column with the known noise variance of each row, in squared units of the target."),
    ] = None,
    kernel: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(options.KERNELS)}, joined by + and *, such as rbf*periodic+linear; auto to choose one on "
            "500 rows, or average to mix four by their evidence (up to a few thousand rows)."
        ),
    ] = "matern32",
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
            help="gaussian, laplace (outliers), student-t (gross outliers) or poisson (counts); logistic or probit for "
            "a target of classes, whose labels may be text. student-t uses --inference vecchia; the others but "
            "gaussian use it or, by default, quadruply-stochastic."
        ),
    ] = "gaussian",
    target_transform: Annotated[
        str,
        typer.Option(
            help="none, log, yeo-johnson, spline or auto: an increasing transform of a target that is skewed or has "
            "heavy tails, learned with the model. Predictions are in the target's units."
        ),
    ] = "none",
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
            "this mean and standard deviation, and reweight. With random features, it is the number of frequencies.",
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
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="File for the state of the fit; after a kill, the same command continues from it."),
    ] = None,
    header: options.Header = None,
    strict: options.Strict = False,
    decimal: options.Decimal = ".",
    comment: options.Comment = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Fit a Gaussian process to a table and save it."""
    check_folder(out)  # before the work, not after it
    chosen_kernel = kernel if kernel in options.KERNEL_RULES else options.choose_kernel(kernel)
    if likelihood not in options.LIKELIHOODS:
        msg = f"--likelihood must be one of {', '.join(options.LIKELIHOODS)}; got {likelihood!r}."
        raise InvalidInputError(msg)
    if target_transform not in options.TRANSFORMS:
        msg = f"--target-transform must be one of {', '.join(options.TRANSFORMS)}; got {target_transform!r}."
        raise InvalidInputError(msg)
    if target_transform != "none" and likelihood != "gaussian":
        msg = f"--target-transform {target_transform} has no meaning for --likelihood {likelihood}; leave one out."
        raise InvalidInputError(msg)
    if likelihood != "gaussian" and inference == "auto":
        inference = "vecchia" if likelihood == "student-t" else "quadruply-stochastic"
    of_classes = likelihood in options.OF_CLASSES
    of_some = {
        "--grid-size": options.grid_nodes(grid_size),
        "--functions": functions,
        "--neighbors": neighbors,
        "--actions": actions,
        "--inducing": inducing,
        "--features": features,
    }
    chosen_inference = options.choose_inference(inference, truncation, of_some)
    chosen_optimizer = options.choose_optimizer(optimizer, steps, chosen_inference)
    streams = chosen_inference != "auto" and chosen_inference.abilities.streams
    if streams and (rows is not None or noise_column is not None):
        if not chosen_inference.abilities.holds_rows:
            msg = (
                f"--rows and --noise-column have no meaning for --inference {inference}, which takes all rows of a "
                "table and learns one noise variance."
            )
            raise InvalidInputError(msg)
        streams = False
    streams = streams and target_transform == "none"  # a transform is learned from rows that are held
    if of_classes and mean == "linear":
        msg = f"--mean linear has no meaning for --likelihood {likelihood}: the latent function's mean is zero."
        raise InvalidInputError(msg)

    source = str(table)
    style = CsvStyle(decimal, comment)
    # One file of moderate size may have texts, for which it is held. Folders and large files are of numbers.
    in_chunks = streams and style == PLAIN and (strict or table.is_dir() or is_large(table))
    found = None if in_chunks else read_columns(table, header, style)
    names = column_names(table, header) if found is None else list(found.column_names)
    target = resolve_column(target, names, source)
    extra = [target]
    if noise_column is not None:
        noise_column = resolve_column(noise_column, names, source)
        extra.append(noise_column)
    inputs = choose_inputs(columns, names, extra, source)
    find_columns(inputs, names, source)
    if found is not None and streams and style == PLAIN and not _needs_encoder(found.select(inputs)):
        found = None  # the columns are numbers, so that rows can be read in chunks
    if found is not None:
        found = choose_rows(found, rows, seed)
        if len(found) == 1:
            msg = f"{source} has one row; at least two are needed to fit a model."
            raise InvalidInputError(msg)

    from gigagp import GPClassifier, GPRegressor, persistence

    settings: dict[str, Any] = {
        "kernel": chosen_kernel,
        "inference": chosen_inference,
        "optimizer": chosen_optimizer,
        "dtype": dtype,
        "device": device,
        "memory_budget": memory,
        "time_budget": time_budget,
        "verbose": options.verbosity(quiet, verbose),
        "random_state": seed,
    }
    if likelihood != "gaussian":
        settings["likelihood"] = likelihood
    if not of_classes:
        settings["mean"] = mean
        settings["target_transform"] = target_transform
        noise = None if found is None or noise_column is None else Table.from_arrow(found, [noise_column], source)
        settings["noise_variance"] = None if noise is None else noise.values[:, 0]
    if found is not None and not strict:
        settings["encode"] = "auto"
    regressor: Any = GPClassifier(**settings) if of_classes else GPRegressor(**settings)
    began = time.perf_counter()
    stopped = None
    try:
        if found is None:
            regressor.fit_table(table, target, inputs, checkpoint=checkpoint, header=header)
        else:
            regressor.fit(*loaded(found, inputs, target, source, strict, of_classes), checkpoint=checkpoint)
    except FitInterruptedWarning as warning:  # the model exists nevertheless
        stopped = warning
    n_rows = (regressor.latent_ if of_classes else regressor).posterior_.n_rows if found is None else len(found)
    seconds = time.perf_counter() - began
    persistence.save(regressor, out, notes={"target": target, "noise_column": noise_column, "rows": n_rows})
    if stopped is not None:
        msg = f"{stopped} Saved to {out}."
        raise FitInterruptedWarning(msg)
    if of_classes:
        typer.echo(f"classes       {options.listed(regressor.classes_.tolist())}")
    typer.echo((regressor.latent_ if of_classes else regressor).describe())
    typer.echo(f"Fitted {n_rows:,} rows and {len(inputs)} inputs in {seconds:.1f} s; saved to {out}.")


def read_problem(
    table: Path, target: str, columns: str | None, header: bool | None, style: CsvStyle, strict: bool
) -> tuple[pa.Table, Any, str]:
    """Return the inputs and the targets of a table that is held, and the name of the target's column."""
    found, source = read_columns(table, header, style), str(table)
    names = list(found.column_names)
    target = resolve_column(target, names, source)
    inputs = choose_inputs(columns, names, [target], source)
    return *loaded(found, inputs, target, source, strict, of_classes=False), target


def loaded(
    found: pa.Table, inputs: list[str], target: str, source: str, strict: bool, of_classes: bool
) -> tuple[pa.Table, Any]:
    """Return the inputs of a fit, as numbers if ``strict``, and the targets, or the labels as they are."""
    if len(found) == 0:
        msg = f"{source} has no rows of data."
        raise InvalidInputError(msg)
    table = Table.from_arrow(found, inputs, source).to_arrow() if strict else found.select(inputs)
    return table, found.column(target) if of_classes else Table.from_arrow(found, [target], source).values[:, 0]


def _needs_encoder(inputs: pa.Table) -> bool:
    """Whether columns have other cells than numbers."""
    return any(
        column.null_count or not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type))
        for column in inputs.columns
    )


def resolve_column(text: str, names: Sequence[str], source: str) -> str:
    """Return the column name that ``text`` means: a name, or a number from 1, negative from the end."""
    if text not in names and text.lstrip("-").isdecimal():
        number = int(text)
        if 1 <= abs(number) <= len(names):
            return str(names[number - 1 if number > 0 else number])
    return find_column(text, names, source)


def choose_inputs(columns: str | None, names: Sequence[str], others: list[str], source: str) -> list[str]:
    """Return the names of the inputs: those in ``columns``, or all columns except ``others``."""
    inputs = options.split_names(columns)
    if inputs is None:
        inputs = [name for name in names if name not in others]
    if not inputs:
        msg = f"{source} has no column besides {', '.join(others)}: at least one input is needed."
        raise InvalidInputError(msg)
    for name in others:
        if name in inputs:
            msg = f"--columns must not contain {name!r}, which is the target or the noise."
            raise InvalidInputError(msg)
    return inputs


def choose_rows(data: Rows, rows: int | None, seed: int) -> Rows:
    """Return ``rows`` random rows of a table in their original order, or all rows if there are no more."""
    if rows is None or rows >= len(data):
        return data
    if rows < 2:
        msg = f"--rows must be at least 2; got {rows}."
        raise InvalidInputError(msg)
    return data.take(np.sort(np.random.default_rng(seed).choice(len(data), size=rows, replace=False)))
