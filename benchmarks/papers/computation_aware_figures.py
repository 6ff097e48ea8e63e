"""Figures of Wenger et al. 2024, from the numbers of cells."""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks.papers.experiment import Results


def figure_1(plt: Any, results: Results) -> Any:
    """Draw posterior (dark) and predictive (light) bands, with a gap in the data."""
    figure, axes = plt.subplots(
        1, len(results), figsize=(4 * len(results), 3.2), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, (row, cells) in zip(axes[0], results, strict=True):
        cell = cells[0]
        grid, mean, latent = (np.array(cell[name]) for name in ("grid", "mean", "latent"))
        for std, alpha in ((np.sqrt(latent**2 + cell["noise"]), 0.2), (latent, 0.5)):
            axis.fill_between(grid, mean - 1.96 * std, mean + 1.96 * std, alpha=alpha, color="C0", lw=0)
        axis.plot(grid, mean, color="C0")
        axis.plot(cell["x"], cell["y"], "k.", ms=3)
        axis.plot(cell["inducing_points"], np.full(len(cell["inducing_points"]), -3.0), "C3^", ms=5)
        axis.set_title(f"{row.name}, noise {cell['noise']:.3f} (truth 0.02)")
    return figure


def figure_2(plt: Any, results: Results) -> Any:
    """Draw magnitudes of eigenvectors and actions, and the distance of their spans by step."""
    shown = [("eigenvectors", results[0][1][0]["eigenvectors"], results[0][1][0]["points"])]
    shown += [(row.name, cells[0]["actions"], cells[0]["points"]) for row, cells in results]
    figure = plt.figure(figsize=(10, 1.5 * len(shown)), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(5, 2))
    axes = left.subplots(len(shown), 5, squeeze=False)
    for line, (name, vectors, points) in zip(axes, shown, strict=True):
        for j, axis in enumerate(line):
            sizes = np.abs(vectors[j]) / np.abs(vectors[j]).max()
            axis.scatter(*np.array(points).T, c=sizes, s=2, cmap="viridis")
            axis.set(xticks=[], yticks=[], ylabel=name if j == 0 else "")
    axis = right.subplots()
    for row, cells in results:
        axis.plot(cells[0]["steps"], cells[0]["distances"], "o-", ms=3, label=row.name)
    axis.set(xlabel="training step", ylabel="Grassmann distance to the top eigenvectors", xscale="log")
    axis.legend()
    return figure


def figure_3(plt: Any, results: Results) -> Any:
    """Draw test NLL and RMSE by seconds."""
    names = list(dict.fromkeys(row.data for row, _ in results))
    figure, axes = plt.subplots(len(names), 2, figsize=(9, 3.2 * len(names)), squeeze=False, layout="constrained")
    for line, data in zip(axes, names, strict=True):
        for row, cells in results:
            if row.data != data or "log_likelihood_by_step" not in cells[0]:
                continue
            seconds = cells[0]["seconds_by_step"]
            nll = [np.nan if value is None else -value for value in cells[0]["log_likelihood_by_step"]]
            rmse = [np.nan if value is None else value for value in cells[0]["rmse_by_step"]]
            line[0].plot(seconds, nll, lw=1, label=row.name)
            line[1].plot(seconds, rmse, lw=1)
        line[0].set(title=data, xlabel="seconds", ylabel="test NLL", xscale="log")
        line[1].set(title=data, xlabel="seconds", ylabel="test RMSE", xscale="log", yscale="log")
        if line[0].lines:
            line[0].legend(fontsize=6)
    return figure


def figure_s5(plt: Any, results: Results) -> Any:
    """Draw noise and the first three lengthscales by step."""
    names = list(dict.fromkeys(row.data for row, _ in results))
    figure, axes = plt.subplots(len(names), 2, figsize=(9, 3.2 * len(names)), squeeze=False, layout="constrained")
    for line, data in zip(axes, names, strict=True):
        for k, (row, cells) in enumerate(one for one in results if one[0].data == data):
            steps = np.linspace(0, 1, len(cells[0]["noise_by_step"]))
            line[0].plot(steps, cells[0]["noise_by_step"], color=f"C{k}", lw=1, label=row.name)
            line[1].plot(steps, cells[0]["lengthscales_by_step"], color=f"C{k}", lw=0.8)
        line[0].set(title=data, xlabel="share of the steps", ylabel="noise", yscale="log")
        line[1].set(title=data, xlabel="share of the steps", ylabel="first three lengthscales", yscale="log")
        line[0].legend(fontsize=6)
    return figure


def figure_4(plt: Any, results: Results) -> Any:
    """Draw the coverage error by step."""
    figure, axis = plt.subplots(figsize=(5, 3.5), layout="constrained")
    for row, cells in results:
        axis.plot(cells[0]["steps"], cells[0]["errors"], "o-", ms=3, label=f"{row.name}, {row.data}")
    axis.set(xlabel="training steps", ylabel="coverage error of 95 % intervals")
    axis.legend()
    return figure


def figure_s1(plt: Any, results: Results) -> Any:
    """Draw test NLL and noise by step under the two losses."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for row, cells in results:
        axes[0].plot(cells[0]["nll_by_step"], label=row.name)
        axes[1].plot(cells[0]["noise_by_step"])
    axes[0].set(xlabel="step", ylabel="test NLL", ylim=(0, 4))
    axes[1].set(xlabel="step", ylabel="noise variance", yscale="log")
    axes[1].axhline(0.05, color="k", lw=0.5)
    axes[0].legend(fontsize=7)
    return figure


def figure_s3(plt: Any, results: Results) -> Any:
    """Draw distances of inducing points and their latent share by the number of inputs."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    inputs = [cells[0]["inputs"] for _, cells in results]
    shown = (("distance", "SVGP, learned"), ("random_distance", "uniform"))
    shares = (("share", "SVGP"), ("exact_share", "exact, true hyperparameters"))
    for axis, lines in zip(axes, (shown, shares), strict=True):
        for key, label in lines:
            axis.plot(inputs, [np.mean([cell[key] for cell in cells]) for _, cells in results], "o-", ms=3, label=label)
        axis.legend()
    axes[0].set(xlabel="inputs", ylabel="distance to the nearest row (lengthscales)")
    axes[1].set(xlabel="inputs", ylabel="latent share of the variance at inducing points")
    return figure


def figure_s4(plt: Any, results: Results) -> Any:
    """Draw the test NLL by learning rate."""
    figure, axis = plt.subplots(figsize=(5, 3.5), layout="constrained")
    for method in dict.fromkeys(row.name.partition(",")[0] for row, _ in results):
        points = [
            (row.settings["rate"], np.mean([cell["best_nll"] for cell in cells]))
            for row, cells in results
            if row.name.partition(",")[0] == method
        ]
        axis.plot(*zip(*points, strict=True), "o-", ms=3, label=method)
    axis.set(xlabel="learning rate", ylabel="best test NLL", xscale="log")
    axis.legend()
    return figure
