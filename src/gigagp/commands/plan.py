"""``gigagp plan``: what a fit would choose, how long it would take, and what it is expected to bring."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from gigagp.commands import options
from gigagp.commands.problem import read_problem
from gigagp.tables.files import CsvStyle


def plan(
    table: options.TablePath,
    target: options.Target,
    columns: options.Columns = None,
    kernel: Annotated[str, typer.Option(help=f"{', '.join(options.KERNELS)}, joined by + and *.")] = "matern32",
    time_budget: options.TimeBudget = None,
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
    chosen_kernel = options.choose_kernel(kernel)
    X, y, _ = read_problem(table, target, columns, header, CsvStyle(decimal, comment), strict)

    from gigagp import GPRegressor
    from gigagp.inference.automatic.plan import Plan

    regressor = GPRegressor(
        chosen_kernel,
        memory_budget=memory,
        verbose=options.verbosity(quiet, verbose, "forecast"),
        random_state=seed,
        time_budget=time_budget,
        encode="strict" if strict else "auto",
    )
    forecast = regressor.plan(X, y)
    assert isinstance(forecast, Plan)  # of one target
    if not as_json:
        typer.echo(str(forecast))
        return
    listed: list[dict[str, Any]] = [
        {**asdict(one), "inference": one.inference.abilities.name, "chosen": one is forecast.chosen}
        for one in forecast.options
    ]
    typer.echo(json.dumps({"options": listed, "reason": forecast.reason}))
