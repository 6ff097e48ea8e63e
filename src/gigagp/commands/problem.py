"""The table of a command: its target, its inputs and its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gigagp.commands import options
from gigagp.errors import InvalidInputError, RowError
from gigagp.estimators.answers.correlated import require_apart
from gigagp.estimators.saving.persistence import load_notes
from gigagp.tables.files import CsvStyle, Table, find_column, read_columns
from gigagp.tables.files.table import find_columns

if TYPE_CHECKING:
    from gigagp.regression import GPRegressor

Rows = TypeVar("Rows", Table, pa.Table)


def read_problem(
    table: Path,
    target: str,
    columns: str | None,
    header: bool | None,
    style: CsvStyle,
    strict: bool,
    exposure: str | None = None,
) -> tuple[pa.Table, Any, list[str], dict[str, Any]]:
    """Return the inputs and the targets of a table that is held, the columns of target and exposure, and the latter."""
    found, source = read_columns(table, header, style), str(table)
    names = list(found.column_names)
    target = resolve_column(target, names, source)
    others, known = [target], {}
    if exposure is not None:
        others.append(resolve_column(exposure, names, source))
        known = {"exposure": Table.from_arrow(found, others[1:], source).values[:, 0]}
    inputs = choose_inputs(columns, names, others, source)
    return *loaded(found, inputs, target, source, strict, of_classes=False), others, known


def read_inputs(table: Path, inputs: list[str], header: bool | None, style: CsvStyle, strict: bool) -> pa.Table:
    """Return the inputs of another table, in the order of a fit's, as numbers if ``strict``."""
    found, source = read_columns(table, header, style), str(table)
    find_columns(inputs, list(found.column_names), source)
    return Table.from_arrow(found, inputs, source).to_arrow() if strict else found.select(inputs)


def loaded(
    found: pa.Table, inputs: list[str], target: str, source: str, strict: bool, of_classes: bool
) -> tuple[pa.Table, Any]:
    """Return the inputs of a fit, as numbers if ``strict``, and the targets, or the labels as they are."""
    if len(found) == 0:
        raise no_rows(source)
    table = Table.from_arrow(found, inputs, source).to_arrow() if strict else found.select(inputs)
    if of_classes:
        return table, found.column(target)
    return table, beside_inputs(found, target, source)


def beside_inputs(found: pa.Table, name: str, source: str) -> np.ndarray:
    """Return a column that is no input as numbers, (n,)."""
    return Table.from_arrow(found, [name], source, targets=[name]).values[:, 0]


def limits(found: pa.Table, lower: str, upper: str, source: str) -> np.ndarray:
    """Return the lower and the upper limit of each target, (n, 2); an empty cell is no limit."""
    both = []
    for name, nothing in ((lower, -np.inf), (upper, np.inf)):
        column = found.column(name)
        is_open = pc.is_null(column, nan_is_null=True)
        if pa.types.is_floating(column.type):
            is_open = pc.or_(is_open, pc.fill_null(pc.is_inf(column), False))
        filled = found.select([name]).set_column(0, name, pc.if_else(is_open, pa.scalar(0, column.type), column))
        values = beside_inputs(filled, name, source)
        both.append(np.where(is_open.to_numpy(), nothing, values))
    return np.stack(both, 1)


@contextmanager
def naming_rows(source: object, target: str, exposure: str | None = None, *, before: int = 0) -> Iterator[None]:
    """Name the file, the column and the row of the table where a row is refused; ``before`` it are other rows."""
    try:
        yield
    except RowError as error:
        column = exposure if error.name == "exposure" and exposure is not None else target
        raise error.of_table(str(source), column, before + error.row) from error


def no_rows(source: object) -> InvalidInputError:
    """Return the error for a table without rows."""
    return InvalidInputError(f"{source} has no rows of data.")


def known_target(model: Path, target: str | None) -> str:
    """Return the target's column, given or that of the fit of a saved model."""
    found = load_notes(model).get("target") if target is None else target
    if found is None:
        raise InvalidInputError(f"{model} does not contain the name of its target; name the column with --target.")
    return str(found)


def require_one_target(regressor: GPRegressor, path: Path) -> None:
    """Refuse a saved model of several targets, which do not have one column of true values."""
    require_apart(regressor, f"This command, of the model {path},")
    count = sum(one.posterior_.n_targets for one in regressor.estimators_)
    if count > 1:
        msg = f"the model of this command must have one target; {path} has {count}. Save one of its estimators_."
        raise InvalidInputError(msg)


def needs_encoder(inputs: pa.Table) -> bool:
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
        count = f"it has {len(names)}, and numbers count from 1, or from the end from -1"
        raise InvalidInputError(f"{source} has no column {text!r}: {count}.")
    return find_column(text, names, source)


def resolve_panel(text: str, inputs: Sequence[str], source: str) -> tuple[str, str]:
    """Return the columns of the entities and the times of a panel, which are inputs, from the text of ``--panel``."""
    names = options.split_names(text, "--panel") or []
    if len(names) != 2:
        raise InvalidInputError(f"--panel must be two columns, those of the entity and the time; got {text!r}.")
    found = [resolve_column(name, inputs, source) for name in names]
    return found[0], found[1]


def choose_inputs(columns: str | None, names: Sequence[str], others: list[str], source: str) -> list[str]:
    """Return the names of the inputs: those in ``columns``, or all columns except ``others``."""
    inputs = options.split_names(columns)
    if inputs is None:
        inputs = [name for name in names if name not in others]
    if not inputs:
        raise InvalidInputError(f"{source} has no column besides {', '.join(others)}: at least one input is needed.")
    for name in others:
        if name in inputs:
            raise InvalidInputError(f"--columns must not contain {name!r}, which is the target or the noise.")
    return inputs


def choose_rows(data: Rows, rows: int | None, seed: int) -> Rows:
    """Return ``rows`` random rows of a table in their original order, or all rows if there are no more."""
    if rows is None or rows >= len(data):
        return data
    if rows < 2:
        raise InvalidInputError(f"--rows must be at least 2; got {rows}.")
    return data.take(np.sort(np.random.default_rng(seed).choice(len(data), size=rows, replace=False)))
