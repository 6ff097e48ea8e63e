"""``gigagp predict``: mean, standard deviation and samples for the rows of a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pyarrow as pa
import typer

import gigagp
from gigagp.commands import options
from gigagp.data import Table, read_columns, write_table
from gigagp.data.writing import check_ending
from gigagp.errors import InvalidInputError

if TYPE_CHECKING:
    from gigagp import GPRegressor


def predict(
    model: options.ModelPath,
    table: options.TablePath,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where the predictions go: .csv, .parquet, .arrow, .npy or .npz.")
    ] = Path("predictions.csv"),
    include_noise: Annotated[
        bool, typer.Option("--include-noise", help="std of a new measurement, not only of the function behind it.")
    ] = False,
    samples: Annotated[int, typer.Option(help="Also write this many joint samples, a column each.")] = 0,
    columns: options.Columns = None,
    seed: options.Seed = 0,
    header: options.Header = None,
) -> None:
    """Predict the target for the rows of a table; writes the columns mean and std."""
    check_ending(out)
    if samples < 0:
        msg = f"--samples must not be negative; got {samples}."
        raise InvalidInputError(msg)
    regressor = gigagp.load(model)
    inputs = read_inputs(regressor, read_columns(table, header), str(table), options.split_names(columns))
    mean, std = regressor.predict(inputs, return_std=True, include_noise=include_noise)
    parts = {"mean": np.asarray(mean), "std": np.asarray(std)}
    if samples:
        drawn = np.asarray(regressor.sample_y(inputs, n_samples=samples, random_state=seed))
        for place in range(samples):
            parts[f"sample{place + 1}"] = drawn[..., place]
    write_table(_as_table(parts), out)
    typer.echo(f"Wrote {len(parts['mean']):,} predictions to {out}.")


def read_inputs(
    regressor: GPRegressor, found: pa.Table, source: str, columns: list[str] | None = None
) -> pa.Table | np.ndarray:
    """Return the columns that the model was fitted to, in its order; other columns of the table are left alone.

    Parameters
    ----------
    regressor : GPRegressor
        A fitted model.
    found : pyarrow.Table
        The user's table.
    source : str
        What to call it in messages.
    columns : list of str, optional
        Names to use in place of the model's own, in its order. Needed for a model that was fitted to a bare array,
        unless the table has exactly its number of columns.
    """
    names = getattr(regressor, "feature_names_in_", None)
    expected = int(regressor.n_features_in_)
    if columns is None:
        columns = list(found.column_names) if names is None else [str(name) for name in names]
    if len(columns) != expected:
        msg = f"{source}: the model has {expected} inputs, got {len(columns)} columns. Choose them with --columns."
        raise InvalidInputError(msg)
    inputs = Table.from_arrow(found, columns, source)
    if names is None:
        return inputs.values
    return Table(tuple(str(name) for name in names), inputs.values).to_arrow()


def _as_table(parts: dict[str, np.ndarray]) -> Table:
    """Return 1-D parts as columns; a 2-D part (several targets) as one column a target: mean1, mean2, ..."""
    names: list[str] = []
    for name, values in parts.items():
        names += [name] if values.ndim == 1 else [f"{name}{place + 1}" for place in range(values.shape[1])]
    return Table(tuple(names), np.column_stack(list(parts.values())).astype(np.float64, copy=False))
