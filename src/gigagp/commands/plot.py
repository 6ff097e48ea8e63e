"""``gigagp plot``: the picture that suits a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

import gigagp
from gigagp.commands import options
from gigagp.errors import InvalidInputError
from gigagp.estimators.saving.persistence import load_notes
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
        int | None,
        typer.Option(
            help="Number of the target, or of a classifier the class, from 1, if the model has several; by default the "
            "first target, or all classes.",
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
    from gigagp.commands.blocks import Blocks
    from gigagp.plots import plot as draw
    from gigagp.storage.figures import check_plot

    check_plot(out)
    regressor = gigagp.load(model)
    names = [str(name) for name in getattr(regressor, "feature_names_in_", [])]
    which: str | int | None = across
    if across is not None and across not in names and across.isdecimal():
        which = int(across) - 1
    label, is_classifier = load_notes(model).get("target"), isinstance(regressor, gigagp.GPClassifier)
    X = y = None
    if table is not None:
        if not isinstance(label, str):
            msg = f"{model} does not contain the name of its target, so that --data cannot be read."
            raise InvalidInputError(msg)
        labels = {label: Labels(regressor.classes_)} if is_classifier else None
        (block,) = Blocks.of(table).read(regressor, None, [label], labels, at_once=True)
        assert block.others is not None
        X, y = block.inputs, block.others.values[:, 0]
        if is_classifier:
            y = regressor.classes_[y.astype(np.int64)]
    chosen: Any = aspect
    proportions: Aspect = chosen  # checked by `draw`
    draw(
        regressor,
        X,
        y,
        path=out,
        label=label if (target in (None, 1) or is_classifier) and isinstance(label, str) else None,
        target=None if target is None else target - 1,
        across=which,
        at=_numbers("--at", at),
        lower=_ends(lower),
        upper=_ends(upper),
        resolution=resolution,
        include_noise=include_noise,
        aspect=proportions,
    )
    typer.echo(f"Drew {out}.")


def _numbers(option: str, text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        msg = f"{option} must be numbers separated by commas; got {text!r}."
        raise InvalidInputError(msg) from None


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
