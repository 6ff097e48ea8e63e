"""The page and the picture of `beside_peers.py`, from its JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from beside_peers import PACKAGES, TABLES

from gigagp.storage.figures import new_figure, save_figure, style

DOCS = Path(__file__).parents[1] / "docs"
#: Differences below these shares of the RMSE, and nats, are ties.
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

# Beside other packages

Twelve public tables, from a hundred rows to a million, each fitted by `GPRegressor().fit(X, y)` and by other packages
as their documentation introduces them: scikit-learn and GPyTorch with one Matern-3/2 kernel and a lengthscale for each
input, GPyTorch's variational inference with 500 inducing points, GPBoost, and scikit-learn's boosted trees.
`python benchmarks/beside_peers.py` runs all of it: one thread and one process for each fit, which is ended after
{limit} CPU seconds or beyond 16 GiB. TabPFN was not run, because its weights have to be downloaded. Each table is split
once, so that small differences on tables of a few hundred rows are chance.

![CPU seconds by the number of rows, and errors beside those of gigagp](figures/beside-peers.png)

RMSE is in standard deviations of the target, so that predicting the average has 1. NLL is the mean negative log density
of a new measurement in these units. Coverage is the share of new measurements within the 95 % intervals. Boosted trees
have no error bars.
"""


def write(rows: list[dict[str, Any]]) -> None:
    """Write docs/beside-peers.md and its picture."""
    found = {(row["table"], row["package"]): row for row in rows}
    parts = [_HEAD.format(limit=_limit(rows)), "## Where gigagp is not the best\n", *_lost(found), "## All figures\n"]
    parts += ["| table | package | CPU s | GiB | RMSE | NLL | coverage |", "|---|---|---|---|---|---|---|"]
    parts += [_line(found[table, package]) for table in TABLES for package in PACKAGES if (table, package) in found]
    text = "\n".join(
        [*parts, "", f"Run at {', '.join(sorted({row['commit'][:8] for row in rows if 'commit' in row}))}.", ""]
    )
    (DOCS / "beside-peers.md").write_text(text, encoding="utf-8")
    _draw(found)


def _limit(rows: list[dict[str, Any]]) -> str:
    return next((row["ended"].split()[0] for row in rows if row.get("ended", "").endswith("CPU s")), "600")


def _line(row: dict[str, Any]) -> str:
    name = row["table"] + (
        f" ({row['rows']:,} x {row['inputs']})" if row["package"] == "gigagp" and "rmse" in row else ""
    )
    start = f"| {name if row['package'] == 'gigagp' else ''} | {row['package']} |"
    if "ended" in row:
        return f"{start} {row['ended']} | | | | |"
    nll, coverage = (f"{row[key]:.{digits}f}" if key in row else "" for key, digits in (("nll", 2), ("coverage", 3)))
    return f"{start} {row['cpu_s']:.3g} | {row['peak_gib']:.1f} | {row['rmse']:.3f} | {nll} | {coverage} |"


def _lost(found: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    """Return a line for each table on which another package has a smaller error or NLL by more than a tie."""
    lines, slower = [], []
    for table in TABLES:
        ours = found.get((table, "gigagp"), {})
        if "rmse" not in ours:
            continue
        words = []
        for package in list(PACKAGES)[1:]:
            row = found.get((table, package), {})
            parts = []
            if row.get("rmse", np.inf) < (1 - _TIE_RMSE) * ours["rmse"]:
                parts.append(f"RMSE {row['rmse']:.3f}")
            if row.get("nll", np.inf) < ours["nll"] - _TIE_NLL:
                parts.append(f"NLL {row['nll']:.2f}")
            if parts:
                words.append(f"{package} {' and '.join(parts)}")
        if words:
            lines.append(f"- {table} (RMSE {ours['rmse']:.3f}, NLL {ours['nll']:.2f}): {'; '.join(words)}.")
        quicker = [
            package
            for package in list(PACKAGES)[1:]
            if found.get((table, package), {}).get("cpu_s", np.inf) < ours["cpu_s"]
        ]
        if quicker:
            slower.append(f"{table} ({', '.join(quicker)})")
    if slower:
        lines.append(f"- Quicker fits: {'; '.join(slower)}.")
    return [*lines, ""]


def _draw(found: dict[tuple[str, str], dict[str, Any]]) -> None:
    with style():
        figure = new_figure(11, 4.6)
        seconds, errors = figure.subplots(1, 2)
        for package, (colour, marker) in _LOOKS.items():
            own = [row for (_, name), row in found.items() if name == package and "rmse" in row]
            own.sort(key=lambda row: row["rows"])
            look = {"color": colour, "marker": marker, "label": package, "markersize": 5}
            seconds.plot([row["rows"] for row in own], [row["cpu_s"] for row in own], linewidth=1, **look)
            places = [list(TABLES).index(row["table"]) for row in own]
            ratios = [row["rmse"] / found[row["table"], "gigagp"]["rmse"] for row in own]
            errors.plot(ratios, places, linestyle="" if package != "gigagp" else "-", linewidth=1, **look)
        seconds.set(xscale="log", yscale="log", xlabel="training rows", ylabel="CPU seconds of fit and prediction")
        seconds.legend(fontsize="small")
        errors.set(xlabel="RMSE over that of gigagp (right of the line: worse)", xscale="log")
        errors.set_xticks([0.9, 1, 1.25, 1.5, 2, 3], ["0.9", "1", "1.25", "1.5", "2", "3"])
        errors.minorticks_off()
        errors.set_yticks(range(len(TABLES)), list(TABLES))
        errors.invert_yaxis()
        save_figure(figure, DOCS / "figures" / "beside-peers.png")
