"""Files with plots of bias reports and of fitted functions; matplotlib is an optional extra."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from typing import Any

import torch

from gigagp.diagnostics.bias import BiasReport
from gigagp.errors import InvalidInputError
from gigagp.plots import plot
from gigagp.storage.figures import check_plot, new_figure, save_figure

#: Largest number of lines in a plot; of more, only the worst are shown.
_SHOWN = 40


def plot_bias(reports: BiasReport | Mapping[str, BiasReport], path: str | os.PathLike[str]) -> None:
    """Plot the errors of single draws and of their mean, with a line for each quantity and a colour for each report.

    Errors are in units of `BiasRow.scale`, on an axis that is linear within one unit and logarithmic beyond. Thin bars
    span nine tenths of the draws, and thick bars four standard errors on either side of the mean. A thick bar that does
    not contain zero shows a bias.

    Parameters
    ----------
    reports : BiasReport or mapping of str to BiasReport
        One report, or several by name for the same model and table.
    path : str or path
        File of the plot; its extension determines the format (PNG, PDF, SVG).

    Raises
    ------
    InvalidInputError
        If matplotlib is not installed, the extension is unknown, or there is nothing to plot.
    """
    by_name = {"": reports} if isinstance(reports, BiasReport) else dict(reports)
    if not by_name:
        raise InvalidInputError("reports of plot_bias must hold at least one report; got none.")
    check_plot(path)
    names = _shown(by_name)
    figure = new_figure(7.5, 1.4 + 0.28 * len(names) * (0.6 + 0.4 * len(by_name)))
    axes = figure.subplots()
    for number, (label, report) in enumerate(by_name.items()):
        lowered = (number + 0.5) / len(by_name) - 0.5
        places, means, errors, lows, highs = [], [], [], [], []
        for place, name in enumerate(names):
            column = next((i for i, row in enumerate(report.rows) if row.name == name), None)
            if column is None:
                continue
            row = report.rows[column]
            spread = torch.quantile(report.draws[:, column], torch.tensor([0.05, 0.95], dtype=torch.float64))
            places.append(place + 0.7 * lowered)
            means.append(row.bias / row.scale)
            errors.append(4 * row.standard_error / row.scale)
            lows.append((float(spread[0]) - row.exact) / row.scale)
            highs.append((float(spread[1]) - row.exact) / row.scale)
        colour = f"C{number}"
        axes.hlines(places, lows, highs, color=colour, linewidth=1)
        axes.errorbar(means, places, xerr=errors, fmt="o", color=colour, markersize=4, linewidth=3, label=label or None)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlabel("error, in standard deviations of the exact value over data sets")
    first = next(iter(by_name.values()))
    title = f"{first.n_draws:,} draws, {first.n_rows:,} rows"
    if isinstance(reports, BiasReport):
        title += "\n" + textwrap.fill(first.method, 100)
    else:
        figure.legend(loc="outside lower center", ncols=min(len(by_name), 4))
    axes.set_title(title, fontsize=8)
    save_figure(figure, path)


def plot_map(model: Any, path: str | os.PathLike[str], *, label: str | None = None, **options: Any) -> None:
    """Write the picture that `GPRegressor.plot` draws to a file; the options are those of `gigagp.plots.plot`."""
    plot(model, path=path, label=label, **options)


def _shown(reports: Mapping[str, BiasReport]) -> list[str]:
    """Return the names of the lines in the reports' own order; only the worst if there are too many."""
    errors: dict[str, float] = {}
    for report in reports.values():
        for row in report.rows:
            errors[row.name] = max(errors.get(row.name, 0.0), abs(row.errors))
    kept = set(sorted(errors, key=lambda name: -errors[name])[:_SHOWN])
    return [name for name in errors if name in kept]
