"""Figures of Potapczynski et al. 2021, and what they show, from the numbers of cells."""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks.papers.experiment import Results, Row

_COLOURS = {"cholesky": "black", "cg": "C0", "rr-cg": "C1", "rff": "C2", "ss-rff": "C3"}
_PAIRS = (("cg", "rr-cg"), ("rff", "ss-rff"))


def _method(results: Results, method: str) -> list[dict[str, Any]]:
    """Return what the cells of a method returned; empty without any."""
    return next((numbers for row, numbers in results if row.settings["method"] == method), [])


def _length(row: Row) -> int:
    """Return a row's iterations or frequencies; 0 without any."""
    return row.settings.get("iterations", row.settings.get("frequencies", 0))


def _mean(numbers: list[dict[str, Any]], key: str) -> float:
    return float(np.mean([one[key] for one in numbers if one.get(key) is not None]))


def _panels(plt: Any, columns: int, width: float = 4.0) -> tuple[Any, np.ndarray]:
    figure, axes = plt.subplots(1, columns, figsize=(width * columns, 3.2), layout="constrained", squeeze=False)
    return figure, axes[0]


def _log_lengths(plt: Any, axis: Any) -> None:
    """Make the axis of lengths logarithmic, with labels at powers of two."""
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(plt.FuncFormatter(lambda length, _: f"{length:g}"))


def _legend(axis: Any) -> None:
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=7)


def figure_1(plt: Any, results: Results) -> Any:
    """Plot errors of both terms against the expected length, with two standard deviations of a draw."""
    figure, axes = _panels(plt, 4)
    for place, pair in enumerate(_PAIRS):
        for shift, method in enumerate(pair):
            for numbers in _method(results, method)[:1]:
                lengths = np.asarray(numbers["lengths"]) * 1.06**shift
                for axis, name in zip(axes[2 * place :], ("fit", "determinant"), strict=False):
                    errors, spread = np.asarray(numbers[f"{name}_errors"]), np.asarray(numbers[f"{name}_deviations"])
                    axis.errorbar(lengths, errors, yerr=2 * spread, fmt="o", color=_COLOURS[method], label=method)
        for axis, name in zip(axes[2 * place :], ("data fit", "log-determinant"), strict=False):
            axis.axhline(0, color="black", ls="--", lw=0.8)
            _log_lengths(plt, axis)
            axis.set_yscale("symlog", linthresh=10)
            axis.set(title=f"{name}, estimate minus exact", xlabel=("iterations", "frequencies")[place])
            _legend(axis)
    return figure


def figure_2(plt: Any, results: Results) -> Any:
    """Plot log ratios of learned and exact lengthscales against the expected length."""
    figure, axes = _panels(plt, 2)
    for axis, pair, label in zip(axes, _PAIRS, ("iterations", "frequencies"), strict=True):
        for method in pair:
            for numbers in _method(results, method)[:1]:
                axis.plot(numbers["lengths"], numbers["ratios"], "o-", color=_COLOURS[method], label=method)
        axis.axhline(0, color="black", ls="--", lw=0.8)
        axis.set(xlabel=f"(expected) {label}", ylabel="log(learned / exact lengthscale)")
        _log_lengths(plt, axis)
        _legend(axis)
    return figure


def figure_3(plt: Any, results: Results) -> Any:
    """Plot the exact loss over both hyperparameters, and the path of each method."""
    methods = ("cholesky", "rr-cg", "cg", "ss-rff", "rff")
    figure, axes = _panels(plt, len(methods), 3.2)
    ground = _method(results, "surface")
    for axis, method in zip(axes, methods, strict=True):
        for one in ground[:1]:
            losses = np.array(one["losses"], dtype=float)
            levels = np.nanmin(losses) + np.geomspace(0.01, 3, 12)
            axis.contour(one["grid_lengthscales"], one["grid_noises"], losses, levels=levels, linewidths=0.5)
            axis.plot(one["lengthscale"], one["noise"], "k*")
        for numbers in _method(results, method)[:1]:
            axis.plot(numbers["lengthscales"], numbers["noises"], color=_COLOURS[method], lw=1)
            axis.plot(numbers["lengthscale"], numbers["noise"], "o", color=_COLOURS[method])
        axis.set(xscale="log", yscale="log", xlabel="lengthscale", ylabel="noise variance", title=method)
        axis.xaxis.set_minor_formatter(plt.NullFormatter())
    return figure


def curves(plt: Any, results: Results) -> Any:
    """Plot the exact loss while learning (Figures 4, 5, S2 and S3); dashes: the shorter of several lengths."""
    figure, axes = _panels(plt, 1, 6.0)
    for row, numbers in results:
        steps, losses = np.asarray(numbers[0]["curve_steps"]) + 1, np.asarray(numbers[0]["curve_losses"], dtype=float)
        method, length = row.settings["method"], _length(row)
        line = "-" if length == max(_length(one) for one, _ in results if one.settings["method"] == method) else "--"
        axes[0].plot(steps, losses, line, color=_COLOURS[row.settings["method"]], label=row.name, lw=1.2)
    axes[0].set(xscale="log", xlabel="step of Adam", ylabel="exact loss per row")
    _legend(axes[0])
    return figure


def figure_6(plt: Any, results: Results) -> Any:
    """Plot RMSE and NLL of every method on every data set."""
    sets = list(dict.fromkeys(row.data for row, _ in results))
    figure, axes = plt.subplots(2, len(sets), figsize=(2.4 * len(sets), 5.0), layout="constrained", squeeze=False)
    for k, data in enumerate(sets):
        here = [(row, numbers) for row, numbers in results if row.data == data]
        for axis, key in zip(axes[:, k], ("rmse", "nll"), strict=True):
            for place, (row, numbers) in enumerate(here):
                values = [one[key] for one in numbers]
                colour = _COLOURS.get(row.settings["method"], "grey")
                axis.errorbar(place, np.mean(values), yerr=np.std(values), fmt="o", color=colour)
                if row.settings["method"] == "cholesky":
                    axis.axhline(np.mean(values), color="red", ls="--", lw=0.8)
            axis.set_xticks(range(len(here)), [row.name for row, _ in here], rotation=90, fontsize=6)
            axis.set_title(f"{data}, {key.upper()}", fontsize=8)
    return figure


def figure_s1(plt: Any, results: Results) -> Any:
    """Plot RMSE and NLL against the expected number of iterations."""
    figure, axes = _panels(plt, 2)
    for axis, key in zip(axes, ("rmse", "nll"), strict=True):
        for method in ("cg", "rr-cg"):
            points = [
                (row.settings["iterations"], [one[key] for one in numbers])
                for row, numbers in results
                if row.settings["method"] == method
            ]
            if points:
                lengths, values = zip(*points, strict=True)
                means, spreads = [np.mean(one) for one in values], [np.std(one) for one in values]
                axis.errorbar(lengths, means, yerr=spreads, fmt="o-", color=_COLOURS[method], label=method)
        for numbers in _method(results, "cholesky")[:1]:
            axis.axhline(numbers[key], color="red", ls="--", lw=0.8, label="cholesky")
        axis.set(xlabel="(expected) iterations", ylabel=key.upper())
        _legend(axis)
    return figure


# What they show -------------------------------------------------------------------------------------------------------


def biases(results: Results) -> str:
    """Say whether the signs of the biases are the paper's, and whether truncated estimates are unbiased."""
    parts = []
    for method, signs in (("cg", (-1, 1)), ("rff", (1, -1))):
        for numbers in _method(results, method)[:1]:
            first = numbers["fit_first"] * signs[0] > 0 and numbers["determinant_first"] * signs[1] > 0
            parts.append(f"{method.upper()} {'has' if first else 'does not have'} the signs of the paper's biases")
    for method in ("rr-cg", "ss-rff"):
        for numbers in _method(results, method)[:1]:
            scores = [numbers[f"{name}_score"] for name in ("fit", "determinant")]
            worst = max(score for score in scores if score is not None)
            parts.append(f"the means of {method.upper()} are within {worst:.1f} standard errors of the exact terms")
    return "; ".join(parts) + "."


def recoveries(results: Results) -> str:
    """Say which lengthscales are too long and too short."""
    parts = [
        f"{row.settings['method'].upper()}: {numbers[0]['first']:+.3f} at {numbers[0]['lengths'][0]:.3g}, "
        f"{numbers[0]['last']:+.3f} at {numbers[0]['lengths'][-1]:.3g}"
        for row, numbers in results
    ]
    return "Log ratios at the shortest and the longest length: " + "; ".join(parts) + "."


def ends(results: Results) -> str:
    """Say how far from exact learning each method ends."""
    exact = [(row, numbers) for row, numbers in results if row.settings["method"] == "cholesky"]
    if not exact:
        return "There is no exact fit to compare with."
    loss = _mean(exact[0][1], "loss")
    parts = [
        f"{row.name} {_mean(numbers, 'loss') - loss:+.4f}"
        for row, numbers in results
        if row.settings["method"] not in ("cholesky", "surface")
    ]
    return "Exact loss per row at the end, above that of exact learning: " + ", ".join(parts) + "."


def ratios(results: Results) -> str:
    """Say what random truncation changes, over the data sets."""
    by = {(row.data, row.settings["method"]): numbers for row, numbers in results}
    sets = [
        data for data in dict.fromkeys(row.data for row, _ in results) if {(data, "cg"), (data, "rr-cg")} <= set(by)
    ]
    if not sets:
        return "There are no pairs of CG and RR-CG yet."
    times = [_mean(by[data, "rr-cg"], "minutes") / _mean(by[data, "cg"], "minutes") for data in sets]
    better = [data for data in sets if _mean(by[data, "rr-cg"], "nll") < _mean(by[data, "cg"], "nll") - 1e-3]
    worse = [data for data in sets if _mean(by[data, "rr-cg"], "nll") > _mean(by[data, "cg"], "nll") + 1e-3]
    return (
        f"RR-CG takes {min(times):.2f} to {max(times):.2f} times as long as CG (paper: 1.09 to 1.17). Its NLL is lower "
        f"by more than 0.001 on {', '.join(better) or 'no set'}, and higher on {', '.join(worse) or 'no set'}."
    )
