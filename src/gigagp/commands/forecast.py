"""``gigagp forecast``: from a table with a column of dates to a table and a picture of the future."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gigagp.commands import options
from gigagp.commands.problem import no_rows
from gigagp.errors import InvalidInputError
from gigagp.storage.figures import check_plot
from gigagp.storage.files import check_apart
from gigagp.tables.files import CsvStyle, read_columns, write_table
from gigagp.tables.files.writing import check_ending


def forecast(
    table: options.TablePath,
    time: Annotated[str, typer.Option(help="Column with the times: dates or numbers.", show_default=False)],
    target: Annotated[str, typer.Option("--target", "-y", help="Column to forecast.", show_default=False)],
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of steps after the last value, of the usual distance between times; 24 by default. With "
            "--covariate, the rows after the last value.",
            show_default=False,
        ),
    ] = None,
    series: Annotated[
        str | None,
        typer.Option(help="Column with the name of the series that a row is of; each is forecast.", show_default=False),
    ] = None,
    covariate: Annotated[
        list[str] | None,
        typer.Option(
            help="Column that is known for the future too, in rows with an empty target; may be repeated.",
            show_default=False,
        ),
    ] = None,
    period: Annotated[
        list[float] | None,
        typer.Option(help="Length of a season in steps; may be repeated. By default found.", show_default=False),
    ] = None,
    level: Annotated[
        list[float] | None,
        typer.Option(help="Quantile to write; may be repeated. By default 0.025, 0.1, 0.5, 0.9 and 0.975."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File of the forecast: .csv, .parquet, .arrow, .npy or .npz.")
    ] = Path("forecast.csv"),
    picture: Annotated[
        bool, typer.Option("--picture/--no-picture", help="Also draw it, as a PNG of the same name.")
    ] = True,
    origins: Annotated[
        int | None,
        typer.Option(
            "--backtest",
            min=1,
            help="Also forecast from this many earlier times, and print the errors.",
            show_default=False,
        ),
    ] = None,
    seed: options.Seed = 0,
    header: options.Header = None,
    decimal: options.Decimal = ".",
    comment: options.Comment = None,
    quiet: options.Quiet = False,
) -> None:
    """Forecast a series, or many, with models that are chosen by how well they forecast."""
    check_ending(out)
    check_apart(out, table)
    drawn = out.with_suffix(".png") if picture else None
    if drawn is not None:
        check_plot(drawn)
    levels = level or [0.025, 0.1, 0.5, 0.9, 0.975]
    if not all(0 < one < 1 for one in levels):
        raise InvalidInputError(f"--level must be between 0 and 1; got {', '.join(f'{one:g}' for one in levels)}.")
    if origins is not None and series is not None:
        raise InvalidInputError("--backtest is for one series: leave --series out, or take the rows of one.")

    from gigagp.forecasting import Forecast
    from gigagp.forecasting import forecast as forecast_table

    read = read_columns(table, header, CsvStyle(decimal, comment))
    if len(read) == 0:
        raise no_rows(table)
    found = forecast_table(
        read,
        steps,
        time=time,
        target=target,
        series=series,
        covariates=covariate or (),
        periods=period or "auto",
        random_state=seed,
        verbose=options.verbosity(quiet, False, f"forecast of {target}"),
    )
    typer.echo(str(found))
    if origins is not None and isinstance(found, Forecast):
        typer.echo(str(found.backtest(origins)))
    whole = found.table(levels)
    write_table(whole, out)
    if drawn is not None:
        found.plot(drawn)
    beside = "" if drawn is None else f", and {drawn}"
    typer.echo(f"Wrote {len(whole):,} rows to {out}{beside}.")
