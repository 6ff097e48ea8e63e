"""The page and the picture of `beside_peers.py`, from its JSON file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from beside_peers import PACKAGES, TABLES

from gigagp.storage.figures import new_figure, save_figure, style

DOCS = Path(__file__).parents[1] / "docs"
OURS, *OTHERS = PACKAGES
#: Differences below this share of the RMSE, and below these nats, are ties.
_TIE_RMSE, _TIE_NLL = 0.01, 0.01
#: Colours that are told apart without red and green (Okabe and Ito 2008), and markers for print.
_LOOKS = dict(
    zip(
        PACKAGES,
        zip(("#0072b2", "#d55e00", "#e69f00", "#cc79a7", "#009e73", "#555555"), "osD^vx", strict=True),
        strict=True,
    )
)
_HEAD = """<!-- Written by `python benchmarks/beside_peers.py --page` from its JSON file. Do not edit. -->

# Comparison with other packages

{count} public tables, from {fewest:,} to {most:,} rows, each fitted by `GPRegressor().fit(X, y)` and by other
packages as their documentation introduces them: scikit-learn and GPyTorch with one Matern-3/2 kernel and a
lengthscale for each input, GPyTorch's variational inference with 500 inducing points (SVGP), GPBoost, and
scikit-learn's boosted trees. `python benchmarks/beside_peers.py` runs all of it, with one thread and one process for
each fit. A fit is ended after {limit} CPU seconds or beyond 16 GiB, and its package is then not tried on larger tables.
A package that is not listed for a table was not run on it.
The machine had two cores and other work to do, which can double CPU seconds. TabPFN was not run, because its weights
have to be downloaded. Each table is split once, so that small differences on tables of a few hundred rows are chance.

![CPU seconds by the number of rows; RMSE, NLL and coverage of each table and package](figures/beside-peers.png)

RMSE is in standard deviations of the target, so that predicting the average has 1. NLL is the mean negative log
density of a new measurement in these units; lower is better. Coverage is the fraction of new measurements that 95 %
intervals cover. Boosted trees have no error bars. What does not end within the limits is missing in the picture.
"""
_ASIDE = """
On tables of a few hundred rows, packages that fit one kernel take a fraction of the time. A default fit of gigagp
tries several kernels there, and its first fit in a process also loads modules. Boosted trees are even faster on
larger tables. If only their best guess counts, see [Coming from boosted trees](coming-from/boosted-trees.md).
"""


def write(rows: list[dict[str, Any]]) -> None:
    """Write docs/beside-peers.md and its picture, of the tables on which gigagp was run."""
    found = {(row["table"], row["package"]): row for row in rows}
    tables = [table for table in TABLES if (table, OURS) in found]
    sizes = [row["rows"] for row in rows if row["table"] in tables and "rows" in row]
    limit = next((row["ended"].split()[0] for row in rows if row.get("ended", "").endswith("CPU s")), "300")
    head = _HEAD.format(count=len(tables), fewest=min(sizes), most=max(sizes), limit=limit)
    parts = [head, "## Who is best\n", *_won(found, tables), "", "## Where gigagp is not the best\n"]
    parts += [*_lost(found, tables), _ASIDE, "## All figures\n"]
    parts += ["| table | package | CPU s | GiB | RMSE | NLL | coverage |", "|---|---|---|---|---|---|---|"]
    parts += [_line(found[table, package]) for table in tables for package in PACKAGES if (table, package) in found]
    commits = ", ".join(sorted({row["commit"][:8] for row in rows if "commit" in row}))
    (DOCS / "beside-peers.md").write_text("\n".join([*parts, "", f"Run at {commits}.", ""]), encoding="utf-8")
    _draw(found, tables)


def _line(row: dict[str, Any]) -> str:
    size = f" ({row['rows']:,} x {row['inputs']})" if "inputs" in row else ""
    start = f"| {row['table'] + size if row['package'] == OURS else ''} | {row['package']} |"
    if "ended" in row:
        return f"{start} {row['ended']} | | | | |"
    nll, coverage = (f"{row[key]:.{digits}f}" if key in row else "" for key, digits in (("nll", 2), ("coverage", 3)))
    return f"{start} {row['cpu_s']:.3g} | {row['peak_gib']:.1f} | {row['rmse']:.3g} | {nll} | {coverage} |"


def _won(found: dict[tuple[str, str], dict[str, Any]], tables: list[str]) -> list[str]:
    """Return a table of how often each package is the best, or within a tie of it."""
    lines = ["| package | tables fitted | lowest RMSE | lowest NLL | least CPU time |", "|---|---|---|---|---|"]
    for package in PACKAGES:
        own = [found[table, package] for table in tables if "rmse" in found.get((table, package), {})]
        best = {key: 0 for key in ("rmse", "nll", "cpu_s")}
        for row in own:
            rivals = [found[row["table"], one] for one in PACKAGES if (row["table"], one) in found]
            for key in best:
                least = min(rival[key] for rival in rivals if key in rival)
                reach = least + {"rmse": _TIE_RMSE * least, "nll": _TIE_NLL, "cpu_s": 0.0}[key]
                best[key] += key in row and row[key] <= reach
        nll = best["nll"] if any("nll" in row for row in own) else "no density"
        lines.append(f"| {package} | {len(own)} | {best['rmse']} | {nll} | {best['cpu_s']} |")
    return [*lines, "", f"Ties count for each: {100 * _TIE_RMSE:.0f} % of the RMSE, and {_TIE_NLL} nats."]


def _lost(found: dict[tuple[str, str], dict[str, Any]], tables: list[str]) -> list[str]:
    """Return a line for each table on which another package has a smaller error or NLL by more than a tie."""
    lines, slower = [], []
    for table in tables:
        words, quicker = [], []
        ours = {"rmse": np.inf, "nll": np.inf, "cpu_s": np.inf} | found[table, OURS]
        for package in OTHERS:
            row = found.get((table, package), {})
            parts = []
            if "rmse" in row and row["rmse"] < (1 - _TIE_RMSE) * ours["rmse"]:
                parts.append(f"RMSE {row['rmse']:.3g}")
            if "nll" in row and row["nll"] < ours["nll"] - _TIE_NLL:
                parts.append(f"NLL {row['nll']:.2f}")
            if parts:
                words.append(f"{package} {' and '.join(parts)}")
            if "cpu_s" in row and row["cpu_s"] < ours["cpu_s"]:
                quicker.append(package)
        if words:
            own = f"ended: {ours['ended']}" if "ended" in ours else f"RMSE {ours['rmse']:.3g}, NLL {ours['nll']:.2f}"
            lines.append(f"- {table} ({own}): {'; '.join(words)}.")
        if quicker:
            slower.append(f"{table} ({', '.join(quicker)})")
    if slower:
        lines.append(f"- Faster fits: {'; '.join(slower)}.")
    return lines


def _draw(found: dict[tuple[str, str], dict[str, Any]], tables: list[str]) -> None:
    """Draw times by rows, and for each table the RMSE and NLL compared with ours, and the coverage."""
    compared: dict[str, Callable[[dict[str, Any], dict[str, Any]], float]] = {
        "RMSE over that of gigagp": lambda row, ours: row["rmse"] / ours.get("rmse", np.nan),
        "NLL minus that of gigagp (nats)": lambda row, ours: row["nll"] - ours.get("nll", np.nan),
        "coverage of 95 % intervals (%)": lambda row, _: 100 * row["coverage"],
    }
    with style():
        figure = new_figure(9, 8)
        (seconds, *others) = figure.subplots(2, 2).flat
        for package, (colour, marker) in _LOOKS.items():
            own = [found[table, package] for table in tables if "rmse" in found.get((table, package), {})]
            look = {"color": colour, "marker": marker, "label": package, "markersize": 5, "linewidth": 1}
            seconds.plot([row["rows"] for row in own], [row["cpu_s"] for row in own], **look)
            for ax, value in zip(others, compared.values(), strict=True):
                rows = own if ax is others[0] else [row for row in own if "nll" in row]
                places = [tables.index(row["table"]) for row in rows]
                ax.plot([value(row, found[row["table"], OURS]) for row in rows], places, **look | {"linestyle": ""})
        seconds.set(xscale="log", yscale="log", xlabel="training rows", ylabel="CPU seconds of fit and prediction")
        seconds.legend(fontsize="small")
        for ax, label, ours in zip(others, compared, (1, 0, 95), strict=True):
            ax.axvline(ours, color="0.8", linewidth=1, zorder=0)
            ax.set_xlabel(label)
            ax.set_yticks(range(len(tables)), tables)
            ax.invert_yaxis()
        others[0].set_xscale("log")
        others[0].set_xticks([0.5, 1, 2, 5, 10, 20], ["0.5", "1", "2", "5", "10", "20"])
        others[0].minorticks_off()
        others[1].set_xscale("symlog", linthresh=0.1)
        save_figure(figure, DOCS / "figures" / "beside-peers.png")
