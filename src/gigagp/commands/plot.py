"""``gigagp plot``: a plot of a model of one to three inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import gigagp
from gigagp.commands import options
from gigagp.errors import InvalidInputError
from gigagp.files import check_folder
from gigagp.persistence import load_notes


def plot(
    model: options.ModelPath,
    out: Annotated[Path, typer.Option("--out", "-o", help="File of the plot: .png, .pdf or .svg.")] = Path("map.png"),
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
        str | None, typer.Option(metavar="V,...", help="Lower corner of the region, one number per input.")
    ] = None,
    upper: Annotated[str | None, typer.Option(metavar="V,...", help="Upper corner.")] = None,
    resolution: Annotated[int, typer.Option(help="Number of points along an axis.")] = 160,
    target: Annotated[int, typer.Option(help="Number of the target, from 1, if the model has several.")] = 1,
    include_noise: Annotated[
        bool, typer.Option("--include-noise", help="Give the std of a new measurement instead of the function.")
    ] = False,
) -> None:
    """Plot mean and standard deviation of a model: a curve, a map, or slices of three inputs."""
    from gigagp.diagnostics import plot_map
    from gigagp.diagnostics.plots import check_plot

    check_plot(out)
    check_folder(out)
    regressor = gigagp.load(model)
    names = [str(name) for name in getattr(regressor, "feature_names_in_", [])]
    which: str | int | None = across
    if across is not None and across not in names and across.isdecimal():
        which = int(across) - 1
    label = load_notes(model).get("target")
    plot_map(
        regressor,
        out,
        label=label if target == 1 and isinstance(label, str) else None,
        target=target - 1,
        across=which,
        at=_numbers("--at", at),
        lower=_numbers("--lower", lower),
        upper=_numbers("--upper", upper),
        resolution=resolution,
        include_noise=include_noise,
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
