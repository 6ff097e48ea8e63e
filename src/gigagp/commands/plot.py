"""``gigagp plot``: the picture that suits a model; ``gigagp report``: a model and its predictions on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow as pa
import typer

import gigagp
from gigagp.commands import options
from gigagp.commands.blocks import Blocks
from gigagp.commands.problem import known_target, naming_rows, resolve_column
from gigagp.errors import InvalidInputError
from gigagp.estimators.saving.persistence import load_notes
from gigagp.runtime.progress import meter_for
from gigagp.storage.figures import check_plot, require_matplotlib
from gigagp.storage.files import check_folder
from gigagp.tables.files import CsvStyle
from gigagp.tables.files.labels import Labels

if TYPE_CHECKING:
    from gigagp.plots.surfaces import Aspect


def plot(
    model: options.ModelPath,
    out: Annotated[Path, typer.Option("--out", "-o", help="File of the plot: .png, .pdf or .svg.")] = Path("map.png"),
    table: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="TABLE",
            help="Rows to draw as data points, with the target; by default those of the fit, if the model keeps them.",
            show_default=False,
        ),
    ] = None,
    across: Annotated[
        str | None,
        typer.Option(
            help="With three inputs: the constant one in each slice, by name or number from 1; default: last."
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="V[,V...]", help="With three inputs: values of the constant input, one per slice."),
    ] = None,
    lower: Annotated[
        str | None, typer.Option(metavar="V,...", help="Lower corner of the region, one number or date per input.")
    ] = None,
    upper: Annotated[
        str | None, typer.Option(metavar="V,...", help="Upper corner; a curve goes on beyond the data up to it.")
    ] = None,
    resolution: Annotated[
        int | None, typer.Option(help="Number of points along an axis; by default enough.", show_default=False)
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Of a model with several targets, the number of one from 1; of a classifier a class, by name or by "
            "number from 1. By default the first target, or all classes.",
            show_default=False,
        ),
    ] = None,
    include_noise: Annotated[
        bool, typer.Option("--include-noise", help="Show the uncertainty of a new measurement, not of the function.")
    ] = False,
    aspect: Annotated[
        str, typer.Option(help="Proportions of maps: auto, geographic (longitude and latitude), equal or free.")
    ] = "auto",
) -> None:
    """Draw a model: a curve, a map, slices of three inputs, or what each of more inputs does."""
    from gigagp.plots import plot as draw

    check_plot(out)
    regressor = gigagp.load(model)
    names = [str(name) for name in getattr(regressor, "feature_names_in_", [])]
    which: str | int | None = across
    if across is not None and across not in names and across.isdecimal():
        which = int(across) - 1
    place = None if target is None else _target_place(regressor, target)
    label, is_classifier = load_notes(model).get("target"), isinstance(regressor, gigagp.GPClassifier)
    X = y = None
    if table is not None:
        if not isinstance(label, str):
            raise InvalidInputError(f"{model} does not contain the name of its target, so that --data cannot be read.")
        X, y = _rows(regressor, Blocks.of(table), None, label)
    chosen: Any = aspect
    proportions: Aspect = chosen  # checked by `draw`
    draw(
        regressor,
        X,
        y,
        path=out,
        label=label if (place in (None, 0) or is_classifier) and isinstance(label, str) else None,
        target=place,
        across=which,
        at=_numbers("--at", at),
        lower=_ends(lower),
        upper=_ends(upper),
        resolution=resolution,
        include_noise=include_noise,
        aspect=proportions,
    )
    typer.echo(f"Drew {out}.")


def _target_place(regressor: Any, text: str) -> int | None:
    """Return the number, from 0, of the target or the class that the text of ``--target`` means.

    Of two classes a picture shows the probability of the second one, which has no number.
    """
    classes = [str(one) for one in getattr(regressor, "classes_", ())]
    latent = getattr(regressor, "latent_", regressor)
    count = len(classes) or sum(one.posterior_.n_targets for one in latent.estimators_)
    if text in classes:
        place = classes.index(text)
    elif text.isdecimal() and 1 <= int(text) <= count:
        place = int(text) - 1
    else:
        named = f"one of the classes {', '.join(classes)}, or " if classes else ""
        every = f"a number from 1 to {count}" if count > 1 else "1, as the model has one target"
        raise InvalidInputError(f"--target must be {named}{every}; got {text!r}.")
    if len(classes) != 2:
        return place
    if place == 0:
        msg = f"--target must be {classes[1]}, whose probability a picture of two classes shows; got {text!r}."
        raise InvalidInputError(msg)
    return None


def _numbers(option: str, text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInputError(f"{option} must be numbers separated by commas; got {text!r}.") from None


def _ends(text: str | None) -> list[float | str] | None:
    """Return the numbers or dates of a corner."""
    if text is None:
        return None
    found: list[float | str] = []
    for part in text.split(","):
        try:
            found.append(float(part))
        except ValueError:
            found.append(part.strip())
    return found


def report(
    model: options.ModelPath,
    table: options.TablePath,
    out: Annotated[Path, typer.Option("--out", "-o", help="File of the report: .html.")] = Path("report.html"),
    target: Annotated[
        str | None, typer.Option(help="The column with the true values; by default the target of the fit.")
    ] = None,
    exposure: Annotated[
        str | None,
        typer.Option(help="The column with each row's exposure or trials; by default that of the fit."),
    ] = None,
    columns: options.Columns = None,
    header: options.Header = None,
    decimal: options.Decimal = ".",
    comment: options.Comment = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page.", show_default=False)] = None,
    quiet: options.Quiet = False,
) -> None:
    """Describe a model on one HTML page: in words, scores and pictures, for a table whose targets are known."""
    require_matplotlib()
    if out.suffix.lower() not in (".html", ".htm"):
        raise InvalidInputError(f"a report must be a file that ends in .html; got {out}.")
    check_folder(out)
    fitted = gigagp.load(model)
    target = known_target(model, target)
    blocks = Blocks.of(table, header, CsvStyle(decimal, comment))
    target = resolve_column(target, blocks.names, str(table))
    exposure = load_notes(model).get("exposure") if exposure is None else exposure
    beside = [] if exposure is None else [resolve_column(exposure, blocks.names, str(table))]
    with meter_for(options.verbosity(quiet, False, "report"), job="report"):
        X, y, *known = _rows(fitted, blocks, options.split_names(columns), target, *beside)
        with naming_rows(table, target, *beside):
            gigagp.report(fitted, X, y, out, label=target, title=title, exposure=known[0] if known else None)
    typer.echo(f"Wrote {out}.")


def _rows(fitted: Any, blocks: Blocks, columns: list[str] | None, target: str, *others: str) -> tuple[Any, ...]:
    """Return the inputs and the targets of a table, and other columns."""
    is_classifier = isinstance(fitted, gigagp.GPClassifier)
    labels = {target: Labels(fitted.classes_)} if is_classifier else None
    parts, values = [], []
    for block in blocks.read(fitted, columns, [target, *others], labels, title="reading"):
        assert block.others is not None
        parts.append(block.inputs)
        values.append(block.others.values)
    X = pa.concat_tables(parts) if isinstance(parts[0], pa.Table) else np.concatenate(parts)
    y, *rest = np.concatenate(values).T
    return X, fitted.classes_[y.astype(np.int64)] if is_classifier else y, *rest
