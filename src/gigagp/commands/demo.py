"""``gigagp demo``: a complete analysis of a real table from scikit-learn, from fit to calibrated predictions."""

from __future__ import annotations

import math
import time
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Column
from rich.table import Table as Grid

from gigagp.commands import options
from gigagp.commands.evaluate import scores
from gigagp.errors import InvalidInputError
from gigagp.estimators import metrics
from gigagp.tables.files import Table

_LEVELS = (0.25, 0.5, 0.8, 0.9, 0.95)
_NEXT = """\
What to do next
  gigagp fit TABLE.csv --target COLUMN --out model.gp     your own table: CSV, Parquet, Arrow or NumPy
  gigagp predict model.gp NEW.csv --out predictions.csv   mean and standard deviation for each row
  gigagp evaluate model.gp TEST.csv                       RMSE, NLL, CRPS and coverage where the truth is known
In Python: from gigagp import GPRegressor; GPRegressor().fit(X, y).predict(X_new, return_std=True)"""


def demo(
    table: Annotated[
        str, typer.Option(help="digits (1,797 scanned digits) or diabetes (442 patients); both come with scikit-learn.")
    ] = "digits",
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Fit a real table, and compare accuracy and calibration with simple baselines."""
    title, data = load_dataset(table)
    train, test = _split(data, seed)
    *names, target = data.names
    typer.echo(title)
    typer.echo(f"{len(train):,} rows to fit, {len(test):,} rows held out to test, {len(names)} inputs.\n")

    from gigagp import GPRegressor

    regressor = GPRegressor(verbose=options.verbosity(quiet, verbose, "fit"), random_state=seed)
    began = time.perf_counter()
    regressor.fit(train.select(names).to_arrow(), train.column(target))
    mean, std = regressor.predict(test.select(names).to_arrow(), return_std=True, include_noise=True)
    seconds = time.perf_counter() - began
    typer.echo(regressor.describe())

    measured = test.column(target)
    rows = {**_baselines(train, test), "Gaussian process": (np.asarray(mean), np.asarray(std), seconds)}
    console = Console()
    typer.echo("\nOn the held-out rows (lower is better)")
    console.print(_results({name: (scores(measured, row[0], row[1]), row[2]) for name, row in rows.items()}))
    typer.echo("\nCalibration: share of the held-out rows inside the Gaussian process's intervals")
    console.print(_calibration(measured, np.asarray(mean), np.asarray(std)))
    typer.echo(f"\n{_NEXT}")


def load_dataset(name: str) -> tuple[str, Table]:
    """Return the title of one of the two tables, and its inputs and, as the last column, its target."""
    from sklearn import datasets

    if name == "diabetes":
        found = datasets.load_diabetes(scaled=False)
        columns = (*(str(column) for column in found.feature_names), "progression")
        title = "diabetes (Efron et al. 2004): progression of the disease one year after ten measurements of a patient."
        return (title, Table(columns, np.column_stack([found.data, found.target])))
    if name == "digits":
        found = datasets.load_digits()
        upper, lower = found.data[:, :32], found.data[:, 32:]
        used = np.flatnonzero(upper.std(axis=0) > 0)  # some corner pixels never have ink
        columns = (*(str(found.feature_names[place]) for place in used), "ink_below")
        title = (
            "digits (UCI, Alpaydin and Kaynak 1998): scans of handwritten digits, 8 x 8 pixels with ink from 0 to 16.\n"
            "The lower half is hidden; its amount of ink is predicted from the pixels of the upper half."
        )
        return (title, Table(columns, np.column_stack([upper[:, used], lower.sum(axis=1)])))
    raise InvalidInputError(f"--table must be digits or diabetes; got {name!r}.")


def _split(data: Table, seed: int) -> tuple[Table, Table]:
    """Return a random three quarters of the rows for the fit, and the rest for the test."""
    order = np.random.default_rng(seed).permutation(len(data))
    cut = (3 * len(data)) // 4
    return data.take(order[:cut]), data.take(order[cut:])


def _baselines(train: Table, test: Table) -> dict[str, tuple[np.ndarray, np.ndarray, float]]:
    """Return mean, standard deviation and seconds of each baseline."""
    from sklearn.linear_model import LinearRegression

    inputs, y = train.values[:, :-1], train.values[:, -1]
    began = time.perf_counter()
    line = LinearRegression().fit(inputs, y)
    # Standard deviation of the residuals, with degrees of freedom reduced by the fitted coefficients.
    spread = math.sqrt(np.sum((y - line.predict(inputs)) ** 2) / max(len(y) - inputs.shape[1] - 1, 1))
    predicted = line.predict(test.values[:, :-1])
    seconds = time.perf_counter() - began
    n = len(test)
    return {
        "mean of the training rows": (np.full(n, y.mean()), np.full(n, y.std(ddof=1)), 0.0),
        "linear regression": (predicted, np.full(n, spread), seconds),
    }


def _results(rows: dict[str, tuple[dict[str, Any], float]]) -> Grid:
    grid = Grid("model", *(Column(name, justify="right") for name in ("RMSE", "NLL", "CRPS", "seconds")))
    for name, (score, seconds) in rows.items():
        grid.add_row(name, f"{score['rmse']:.4g}", f"{score['nll']:.3f}", f"{score['crps']:.4g}", f"{seconds:.1f}")
    return grid


def _calibration(measured: np.ndarray, mean: np.ndarray, std: np.ndarray) -> Grid:
    """Return nominal and empirical coverage, with the sampling error of the latter."""
    grid = Grid(*(Column(name, justify="right") for name in ("nominal", "empirical", "+- by chance")))
    for level in _LEVELS:
        share = metrics.coverage(measured, mean, std, level)
        chance = math.sqrt(level * (1 - level) / len(measured))
        grid.add_row(f"{100 * level:.0f} %", f"{100 * share:.1f} %", f"{100 * chance:.1f} %")
    return grid
