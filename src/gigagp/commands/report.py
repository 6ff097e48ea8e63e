"""``gigagp report``: a model and its predictions of a table on one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer

import gigagp
from gigagp.commands import options
from gigagp.commands.blocks import Blocks
from gigagp.commands.problem import resolve_column
from gigagp.errors import InvalidInputError
from gigagp.estimators.saving.persistence import load_notes
from gigagp.runtime.progress import meter_for
from gigagp.storage.figures import require_matplotlib
from gigagp.storage.files import check_folder
from gigagp.tables.files import CsvStyle
from gigagp.tables.files.labels import Labels


def report(
    model: options.ModelPath,
    table: options.TablePath,
    out: Annotated[Path, typer.Option("--out", "-o", help="File of the report: .html.")] = Path("report.html"),
    target: Annotated[
        str | None, typer.Option(help="The column with the true values; by default the target of the fit.")
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
        msg = f"a report must be a file that ends in .html; got {out}."
        raise InvalidInputError(msg)
    check_folder(out)
    fitted = gigagp.load(model)
    known = load_notes(model).get("target")
    target = known if target is None else target
    if target is None:
        msg = f"{model} does not contain the name of its target; name the column with --target."
        raise InvalidInputError(msg)
    blocks = Blocks.of(table, header, CsvStyle(decimal, comment))
    target = resolve_column(target, blocks.names, str(table))
    with meter_for(options.verbosity(quiet, False, "report"), job="report"):
        X, y = _rows(fitted, blocks, options.split_names(columns), target)
        gigagp.report(fitted, X, y, out, label=target, title=title)
    typer.echo(f"Wrote {out}.")


def _rows(fitted: Any, blocks: Blocks, columns: list[str] | None, target: str) -> tuple[Any, Any]:
    """Return the inputs and the targets of a table."""
    is_classifier = isinstance(fitted, gigagp.GPClassifier)
    labels = {target: Labels(fitted.classes_)} if is_classifier else None
    parts, targets = [], []
    for block in blocks.read(fitted, columns, [target], labels, title="reading"):
        assert block.others is not None
        parts.append(block.inputs)
        targets.append(block.others.values[:, 0])
    if not sum(map(len, targets)):
        msg = f"{blocks.path} has no rows of data."
        raise InvalidInputError(msg)
    X = pa.concat_tables(parts) if isinstance(parts[0], pa.Table) else np.concatenate(parts)
    y = np.concatenate(targets)
    return X, fitted.classes_[y.astype(np.int64)] if is_classifier else y
