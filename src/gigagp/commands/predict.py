"""``gigagp predict``: mean, standard deviation and samples for the rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer

import gigagp
from gigagp.commands import options
from gigagp.commands.blocks import Blocks
from gigagp.commands.problem import naming_rows, resolve_column
from gigagp.errors import InvalidInputError
from gigagp.runtime.memory import require, resolve_budget
from gigagp.runtime.progress import meter_for
from gigagp.storage.files import check_apart
from gigagp.tables.files import CsvStyle, Table, write_table
from gigagp.tables.files.table import find_columns
from gigagp.tables.files.writing import check_ending


def predict(
    model: options.ModelPath,
    table: options.TablePath,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File of the predictions: .csv, .parquet, .arrow, .npy or .npz.")
    ] = Path("predictions.csv"),
    include_noise: Annotated[
        bool, typer.Option("--include-noise", help="Give the std of a new measurement instead of the function.")
    ] = False,
    samples: Annotated[int, typer.Option(help="Also write this many joint samples, one column each.")] = 0,
    exposure: options.Exposure = None,
    columns: options.Columns = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="Columns of the table to write next to the predictions, by name, separated by commas.",
            show_default=False,
        ),
    ] = None,
    seed: options.Seed = 0,
    header: options.Header = None,
    decimal: options.Decimal = ".",
    comment: options.Comment = None,
    quiet: options.Quiet = False,
) -> None:
    """Predict the target for the rows of a table; write the columns mean and std, or one probability per class."""
    check_ending(out)
    check_apart(out, table, model)
    if samples < 0:
        raise InvalidInputError(f"--samples must not be negative; got {samples}.")
    regressor = gigagp.load(model)
    of_classes = isinstance(regressor, gigagp.GPClassifier)
    if of_classes and (samples or include_noise or exposure is not None):
        msg = f"--samples, --include-noise and --exposure do not apply to {model}, a model of classes."
        raise InvalidInputError(msg)
    blocks = Blocks.of(table, header, CsvStyle(decimal, comment))
    if exposure is not None:
        exposure = resolve_column(exposure, blocks.names, str(table))
        if samples and not blocks.is_whole:
            raise InvalidInputError(f"--samples with --exposure needs a table that is held; {table} is too large.")
    kept = options.split_names(keep, "--keep") or []
    find_columns(kept, blocks.names, str(table))
    with meter_for(options.verbosity(quiet, False, "prediction"), job="prediction"):
        found = _predicted(regressor, blocks, options.split_names(columns), include_noise, samples, seed, exposure)
    whole = {name: np.concatenate([parts[name] for parts in found]) for name in found[0]}
    predictions = _as_table(whole)
    write_table(_with_kept(blocks.whole().select(kept), predictions) if kept else predictions, out)
    typer.echo(f"Wrote {len(next(iter(whole.values()))):,} predictions to {out}.")


def _predicted(
    regressor: Any,
    blocks: Blocks,
    columns: list[str] | None,
    include_noise: bool,
    samples: int,
    seed: int,
    exposure: str | None,
) -> list[dict[str, np.ndarray]]:
    """Return the columns of the predictions, block by block."""
    budget, n_rows = resolve_budget(None), 0
    _require_samples(samples, 1, budget)
    draw: Callable[[Any], np.ndarray] | None = None
    if samples and blocks.is_whole:
        draw = partial(regressor.sample_y, n_samples=samples, random_state=seed)
    elif samples:
        draw = regressor.sample_functions(samples, seed)  # the same functions in every block
    found: list[dict[str, np.ndarray]] = []
    for block in blocks.read(regressor, columns, [] if exposure is None else [exposure], at_once=samples > 0):
        if isinstance(regressor, gigagp.GPClassifier):
            probabilities = regressor.predict_proba(block.inputs).T
            names = [f"p_{label}" for label in regressor.classes_.tolist()]
            found.append(dict(zip(names, probabilities, strict=True)))
            continue
        known = {} if block.others is None else {"exposure": block.others.values[:, 0]}
        with naming_rows(blocks.path, "", exposure, before=n_rows):
            mean, std = regressor.predict(block.inputs, return_std=True, include_noise=include_noise, **known)
        parts = {"mean": np.asarray(mean), "std": np.asarray(std)}
        n_rows += len(mean)
        if draw is not None:
            _require_samples(samples, n_rows, budget)
            drawn = np.asarray(draw(block.inputs, **known))
            parts |= {f"sample{place + 1}": drawn[..., place] for place in range(samples)}
        found.append(parts)
    return found


def _require_samples(samples: int, n_rows: int, budget: int) -> None:
    """Raise `MemoryBudgetError` if the samples cannot be held in memory until they are written."""
    require(16 * samples * n_rows, budget, f"{samples} samples (--samples) of {n_rows:,} rows", "Ask for fewer.")


def _with_kept(kept: pa.Table, predictions: Table) -> pa.Table:
    """Return columns of the user's table beside the predictions."""
    for name in predictions.names:
        if name in kept.column_names:
            raise InvalidInputError(f"--keep must not name {name!r}, which is a column of the predictions.")
        kept = kept.append_column(name, pa.array(predictions.column(name)))
    return kept


def _as_table(parts: dict[str, np.ndarray]) -> Table:
    """Return 1-D parts as columns, and a 2-D part (several targets) as one column per target: mean1, mean2, ..."""
    names: list[str] = []
    for name, values in parts.items():
        names += [name] if values.ndim == 1 else [f"{name}{place + 1}" for place in range(values.shape[1])]
    return Table(tuple(names), np.column_stack(list(parts.values())).astype(np.float64, copy=False))
