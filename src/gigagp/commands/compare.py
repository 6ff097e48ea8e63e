"""``gigagp compare``: several models on a held-out part of a table, beside simple methods."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gigagp.commands import options
from gigagp.commands.problem import read_problem
from gigagp.storage.files import check_folder
from gigagp.tables.files import CsvStyle

if TYPE_CHECKING:
    from gigagp.tables.encoding import Encode


def compare(
    table: options.TablePath,
    target: options.Target,
    columns: options.Columns = None,
    time_budget: Annotated[str, typer.Option("--time", help='Time of each model, such as "1min".')] = "1min",
    held_out: Annotated[float, typer.Option(help="Share of the rows that is held out, at most 10,000 rows.")] = 0.2,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Fit the best model again, to all rows, and save it.", show_default=False),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="File of a plot: .png, .pdf or .svg.", show_default=False)] = None,
    seed: options.Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
    header: options.Header = None,
    strict: options.Strict = False,
    decimal: options.Decimal = ".",
    comment: options.Comment = None,
    quiet: options.Quiet = False,
) -> None:
    """Compare models in equal times, beside the mean, linear regression, neighbours and boosted trees."""
    if out is not None:
        check_folder(out)
    if plot is not None:
        from gigagp.storage.figures import check_plot

        check_plot(plot)
        check_folder(plot)
    X, y, target = read_problem(table, target, columns, header, CsvStyle(decimal, comment), strict)

    import gigagp
    from gigagp.estimators.saving import persistence

    encode: Encode = "strict" if strict else "auto"
    comparison = gigagp.compare(
        X,
        y,
        time_budget=time_budget,
        held_out=held_out,
        encode=encode,
        random_state=seed,
        verbose=options.verbosity(quiet, False, "comparison"),
    )
    if as_json:
        listed = [asdict(one) for one in comparison.models]
        sizes = {"rows": comparison.n_rows, "held_out": comparison.n_held_out}
        typer.echo(json.dumps({"best": comparison.best, **sizes, "models": listed}))
    else:
        typer.echo(str(comparison))
    if plot is not None:
        comparison.plot(plot)
    if out is not None:
        model = comparison.model.set_params(verbose=options.verbosity(quiet, False, "fit")).fit(X, y)
        persistence.save(model, out, notes={"target": target, "noise_column": None, "rows": len(y)})
        typer.echo(f"{comparison.best} fitted to all rows; saved to {out}.", err=as_json)
