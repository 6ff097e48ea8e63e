"""Figures of Lin et al. 2024, and what they show, from the numbers of cells."""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks.papers.experiment import Results, Row
from benchmarks.papers.iterative_cells import log_path

_STYLES = {"cold": "--", "warm": "-"}
_COLOURS = {"standard": "C0", "pathwise": "C1"}


def select(results: Results, **settings: Any) -> Results:
    """Return the rows with these settings; ``data`` is the row's data set."""
    return [
        (row, numbers)
        for row, numbers in results
        if all((row.data if name == "data" else row.settings.get(name)) == value for name, value in settings.items())
    ]


def datasets(results: Results) -> list[str]:
    """Return the data sets in order."""
    return list(dict.fromkeys(row.data for row, _ in results))


def style(row: Row) -> dict[str, Any]:
    """Return the line of a row: colour by estimator, dashes by start."""
    colour = _COLOURS.get(row.settings["estimator"], "C2")
    return {"color": colour, "ls": _STYLES[row.settings["start"]], "lw": 1}


def panels(plt: Any, rows: int, columns: int) -> tuple[Any, np.ndarray]:
    """Return a figure and its axes as an array of two dimensions."""
    return plt.subplots(rows, columns, figsize=(4 * columns, 3 * rows), layout="constrained", squeeze=False)


def legend(axis: Any, size: int) -> None:
    """Add a legend where there is something to name."""
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=size)


def by_solver(plt: Any, results: Results, key: str, label: str) -> Any:
    """Plot a quantity by step: data sets in rows, solvers in columns."""
    solvers = ("cg", "ap", "sgd")
    names = datasets(results)
    figure, axes = panels(plt, len(names), 3)
    for i, data in enumerate(names):
        for k, solver in enumerate(solvers):
            for row, numbers in select(results, data=data, solver=solver):
                budget = f", {row.settings['max_epochs']} epochs" if "max_epochs" in row.settings else ""
                name = f"{row.settings['estimator']}, {row.settings['start']}{budget}"
                axes[i, k].plot(numbers[0][key], label=name, **style(row))
            axes[i, k].set(title=f"{data}, {solver.upper()}", xlabel="step", ylabel=label, yscale="log")
    legend(axes[0, 0], 6)
    return figure


def iterations(plt: Any, results: Results) -> Any:
    """Figures 7 and 21: epochs to the tolerance at every step."""
    return by_solver(plt, results, "epochs_by_step", "epochs")


def budget_figure(plt: Any, results: Results, estimator: str | None, key: str, score: str) -> Any:
    """Plot the last residual and the score by budget, for each data set and solver."""
    kept = results if estimator is None else select(results, estimator=estimator)
    names = datasets(kept)
    figure, axes = panels(plt, 2 * max(1, len(names)), 3)
    for i, data in enumerate(names):
        for k, solver in enumerate(("cg", "ap", "sgd")):
            for name in ("standard", "pathwise"):
                for start in ("cold", "warm"):
                    rows = select(kept, data=data, solver=solver, estimator=name, start=start)
                    if not rows:
                        continue
                    budgets = [row.settings["max_epochs"] for row, _ in rows]
                    for j, one in enumerate((key, score)):
                        values = [np.mean([cell[one] for cell in numbers]) for _, numbers in rows]
                        axes[2 * i + j, k].plot(
                            budgets, values, "o", ms=3, label=f"{name}, {start}", **style(rows[0][0])
                        )
            axes[2 * i, k].set(title=f"{data}, {solver.upper()}", ylabel="residual, last step", yscale="log")
            axes[2 * i + 1, k].set(xlabel="epochs a solve", ylabel=score.replace("_", " "))
    legend(axes[0, 0], 6)
    return figure


def figure_9(plt: Any, results: Results) -> Any:
    """Probe residuals and log-likelihood by budget, both estimators."""
    return budget_figure(plt, results, None, "residual_probes_last", "log_likelihood")


def figure_14(plt: Any, results: Results) -> Any:
    """Target residuals and RMSE, standard estimator."""
    return budget_figure(plt, results, "standard", "residual_targets_last", "rmse")


def figure_15(plt: Any, results: Results) -> Any:
    """Target residuals and RMSE, pathwise estimator."""
    return budget_figure(plt, results, "pathwise", "residual_targets_last", "rmse")


def figure_16(plt: Any, results: Results) -> Any:
    """Probe residuals and log-likelihood, standard estimator."""
    return budget_figure(plt, results, "standard", "residual_probes_last", "log_likelihood")


def figure_17(plt: Any, results: Results) -> Any:
    """Probe residuals and log-likelihood, pathwise estimator."""
    return budget_figure(plt, results, "pathwise", "residual_probes_last", "log_likelihood")


def figure_1(plt: Any, results: Results) -> Any:
    """Epochs of every row relative to the standard cold row of its solver."""
    names = datasets(results)
    figure, axes = panels(plt, 1, len(names))
    for axis, data in zip(axes[0], names, strict=True):
        shown = [(row, numbers) for row, numbers in select(results, data=data) if "epochs" in numbers[0]]
        axis.barh([row.name for row, _ in shown], [numbers[0]["epochs"] for _, numbers in shown])
        axis.set(title=data, xlabel="epochs of the whole fit", xscale="log")
        axis.tick_params(axis="y", labelsize=6)
    return figure


def figure_3(plt: Any, results: Results) -> Any:
    """Distances, epochs, the top eigenvalue of the inverse and the noise precision by step, cold."""
    names = datasets(results)
    figure, axes = panels(plt, len(names), 3)
    for i, data in enumerate(names):
        for row, numbers in select(results, data=data, start="cold"):
            cell, name = numbers[0], row.settings["estimator"]
            axes[i, 0].plot(cell["squared_distances"], label=name, **style(row))
            axes[i, 1].plot(cell["epochs_by_step"], label=name, **style(row))
            axes[i, 2].plot(cell["top_eigenvalue"], label=f"top eigenvalue, {name}", **style(row))
            axes[i, 2].plot(cell["noise_precision"], ":", lw=1, label=f"noise precision, {name}")
        labels = ("squared distance from zero", "epochs (AP)", "of the inverse matrix")
        for axis, label in zip(axes[i], labels, strict=True):
            axis.set(title=data, xlabel="step", ylabel=label, yscale="log")
            legend(axis, 6)
    return figure


def figure_6(plt: Any, results: Results) -> Any:
    """Draw the objective of a solve in the plane of two eigenvectors, with the starts, and distances by step."""
    names = datasets(results)
    figure, axes = panels(plt, len(names), 2)
    for i, data in enumerate(names):
        for row, numbers in select(results, data=data):
            cell = numbers[0]
            name = f"{row.settings['estimator']}, {row.settings['start']}"
            axes[i, 1].plot(np.sqrt(cell["squared_distances"]), label=name, **style(row))
            if row.settings["estimator"] == "pathwise" and cell["section"]:
                start = cell["section"]["start"]
                axes[i, 0].plot(*start, "o", label=name)
                if row.settings["start"] == "cold":
                    reach = 1.3 * max(map(abs, start)) + 1e-12
                    grid = np.linspace(-reach, reach, 41)
                    first, second = cell["section"]["eigenvalues"]
                    axes[i, 0].contour(
                        grid, grid, first * grid[None] ** 2 + second * grid[:, None] ** 2, 8, linewidths=0.5
                    )
        axes[i, 0].set(title=f"{data}, a late step; the solution is at 0", xlabel="first eigenvector", ylabel="second")
        axes[i, 1].set(title=data, xlabel="step", ylabel="distance to the solution", yscale="log")
        for axis in axes[i]:
            legend(axis, 6)
    return figure


def figure_5(plt: Any, results: Results) -> Any:
    """Histograms of differences from exact optimisation, and the hyperparameters that are furthest off."""
    names = datasets(results)
    figure, axes = panels(plt, len(names), 2)
    for i, data in enumerate(names):
        for k, (row, numbers) in enumerate(select(results, data=data)):
            axes[i, 0].hist(numbers[0]["differences"], bins=60, range=(-0.5, 0.5), histtype="step", label=row.name)
            axes[i, 1].plot(np.array(numbers[0]["path"])[:, -1], color=f"C{k}", lw=1, label=row.name)
            axes[i, 1].plot(np.array(numbers[0]["exact_path"])[:, -1], color=f"C{k}", ls=":", lw=1)
        axes[i, 0].set(title=data, xlabel="difference of log hyperparameters", ylabel="count", yscale="log")
        axes[i, 1].set(title=f"{data}: furthest off; dotted: exact", xlabel="step", ylabel="log hyperparameter")
        legend(axes[i, 0], 5)
    return figure


def figure_5_probes(plt: Any, results: Results) -> Any:
    """Distance from exact gradients by the number of probes: likelihood where learning ends, and hyperparameters."""
    names = datasets(results)
    figure, axes = panels(plt, len(names), 2)
    for i, data in enumerate(names):
        for estimator in _COLOURS:
            for start in _STYLES:
                rows = select(results, data=data, estimator=estimator, start=start)
                counts = [row.settings["probes"] for row, _ in rows]
                for axis, key in zip(axes[i], ("nats_below", "largest_difference"), strict=True):
                    values = [np.mean([abs(cell[key]) for cell in numbers]) for _, numbers in rows]
                    for row, _ in rows[:1]:
                        axis.plot(counts, values, "o", ms=3, label=f"{estimator}, {start}", **style(row))
        for axis, label in zip(axes[i], ("nats from exact gradients", "largest log difference"), strict=True):
            axis.set(title=data, xlabel="probe vectors", ylabel=label, xscale="log", yscale="log")
            legend(axis, 6)
    return figure


def exact_paths(results: Results) -> list[tuple[Row, np.ndarray]]:
    """Return the log hyperparameters of each row's first split minus those of the exact row on the same rows."""
    found = []
    for data in datasets(results):
        exact = select(results, data=data, solver="exact")
        for row, numbers in select(results, data=data):
            if not exact or row.settings["solver"] == "exact" or numbers[0]["rows"] != exact[0][1][0]["rows"]:
                continue
            paths = [log_path(one["hyperparameters_by_step"]) for one in (numbers[0], exact[0][1][0])]
            steps = min(map(len, paths))
            found.append((row, paths[0][:steps] - paths[1][:steps]))
    return found


def figure_8(plt: Any, results: Results) -> Any:
    """Histograms of differences from exact optimisation, cold and warm."""
    paths = exact_paths(results)
    figure, axes = panels(plt, 1, 2)
    for axis, start in zip(axes[0], ("cold", "warm"), strict=True):
        for name in ("standard", "pathwise"):
            off = [
                path.ravel()
                for row, path in paths
                if (row.settings["estimator"], row.settings["start"]) == (name, start)
            ]
            if off:
                axis.hist(np.concatenate(off), bins=60, range=(-0.5, 0.5), histtype="step", label=name)
        axis.set(title=start, xlabel="difference of log hyperparameters", ylabel="count", yscale="log")
        legend(axis, 6)
    return figure


def trajectories(plt: Any, results: Results, solver: str) -> Any:
    """Plot all hyperparameters by step for a solver, with the exact ones dotted."""
    names = datasets(results)
    figure, axes = panels(plt, 1, len(names))
    for axis, data in zip(axes[0], names, strict=True):
        for row, numbers in select(results, data=data, solver=solver) + select(results, data=data, solver="exact"):
            exact = row.settings["solver"] == "exact"
            look = {"color": "k", "ls": ":", "lw": 0.7} if exact else style(row)
            axis.plot(np.exp(log_path(numbers[0]["hyperparameters_by_step"])), **{**look, "lw": 0.6})
        axis.set(
            title=f"{data}, {solver.upper()}; dotted: exact", xlabel="step", ylabel="hyperparameters", yscale="log"
        )
    return figure


def figure_11(plt: Any, results: Results) -> Any:
    """Trajectories of conjugate gradients."""
    return trajectories(plt, results, "cg")


def figure_12(plt: Any, results: Results) -> Any:
    """Trajectories of alternating projections."""
    return trajectories(plt, results, "ap")


def figure_13(plt: Any, results: Results) -> Any:
    """Trajectories of stochastic gradient descent."""
    return trajectories(plt, results, "sgd")


def figure_10(plt: Any, results: Results) -> Any:
    """Residuals of targets and probes by step, ten epochs a step."""
    figure, axes = panels(plt, 1, 2)
    for k, (row, numbers) in enumerate(results):
        for axis, key in zip(axes[0], ("residual_targets_by_step", "residual_probes_by_step"), strict=True):
            axis.plot(numbers[0][key], color=f"C{k // 2}", ls=_STYLES[row.settings["start"]], label=row.name)
            axis.set(xlabel="step", ylabel=key.split("_")[1] + ": relative residual", yscale="log")
    legend(axes[0, 0], 6)
    return figure


def speedups(results: Results) -> str:
    """Say how many times fewer epochs the rows take than the cold standard row of their solver on the same rows."""
    said = []
    for solver in ("cg", "ap", "sgd"):
        parts = []
        for estimator, start in (("pathwise", "cold"), ("standard", "warm"), ("pathwise", "warm")):
            ratios = []
            for data in datasets(results):
                pair = [
                    select(results, data=data, solver=solver, estimator=one, start=other)
                    for one, other in (("standard", "cold"), (estimator, start))
                ]
                if all(pair) and pair[0][0][1][0]["rows"] == pair[1][0][1][0]["rows"]:
                    ratios.append(pair[0][0][1][0]["epochs"] / pair[1][0][1][0]["epochs"])
            if ratios:
                parts.append(f"{estimator} {start} {np.mean(ratios):.1f}")
        if parts:
            said.append(f"{solver.upper()}: {', '.join(parts)}")
    return (
        "Times faster than the solver's standard cold row. The paper, for pathwise cold, standard warm and pathwise"
        " warm: CG 1.2, 2.1, 1.9; AP 5.4, 18.9, 72.1; SGD 2.1, 5.1, 7.2. Ours, in epochs of the loops, the mean over"
        " data sets:"
        f" {'; '.join(said)}."
    )


def closeness(results: Results) -> str:
    """Say how far the trajectories are from exact ones."""
    off = [np.abs(path) for _, path in exact_paths(results)]
    if not off:
        return "No row has an exact one on the same rows."
    every = np.concatenate([path.ravel() for path in off])
    return (
        "The paper: differences from exact optimisation concentrate at zero. Ours, in logarithms over all rows, steps"
        f" and hyperparameters: median {np.median(every):.3g}, 95 % below {np.quantile(every, 0.95):.3g}, largest"
        f" {every.max():.3g}."
    )


def nearer(results: Results) -> str:
    """Compare the distances of cold and warm, standard and pathwise starts."""
    said = []
    for data in datasets(results):
        parts = [f"{row.name} {numbers[0]['rms_distance']:.3g}" for row, numbers in select(results, data=data)]
        rows = select(results, data=data)[0][1][0]["rows"]
        said.append(f"{data} (square root of the number of rows: {np.sqrt(rows):.3g}): {', '.join(parts)}")
    return "Root-mean-square distance from the start of a solve to its solution, over steps. " + "; ".join(said) + "."
