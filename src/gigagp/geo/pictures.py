"""Pictures of maps: mean and standard deviation beside each other, and places of rows."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from gigagp.geo.places import Places
from gigagp.plots.axes import labelled, plain
from gigagp.plots.surfaces import colour_limits
from gigagp.storage.figures import SPREADS, VALUES, check_plot, new_figure, save_figure, style

#: Most places that a map shows with the colour of their value; more are small dots.
_COLOURED = 400
#: Most cells along a side of a picture; of more, every second, third, ... is drawn.
_CELLS = 1500


def placed_figure(path: str | os.PathLike[str] | None, width: float, height: float) -> Any:
    """Return a figure for a file, or one that is shown, after a look whether the file can be written."""
    if path is not None:
        check_plot(path)
    return new_figure(width, height, shown=path is None)


def draw_maps(maps: Any, places: Places, values: np.ndarray, label: str, path: str | os.PathLike[str] | None) -> Any:
    """Draw the mean of a map with the measurements, and its standard deviation; see `Kriging.plot`."""
    figure = placed_figure(path, 11.0, 4.6)
    with style():
        for number, (name, colours) in enumerate((("mean", VALUES), ("std", SPREADS)), 1):
            ax = figure.add_subplot(1, 2, number)
            every = -(-max(maps[name].shape) // _CELLS)
            array = maps[name][::every, ::every]
            low, high = colour_limits(array.values[np.isfinite(array.values)])
            y, x = (array[one].values for one in array.dims)
            mesh = ax.pcolormesh(
                x, y, array.values, cmap=colours, vmin=low, vmax=high, shading="nearest", rasterized=True
            )
            if name == "mean":
                _draw_measurements(ax, places.continuous(places.X), values, mesh)
            _dress(ax, places)
            if len(x) > 1:
                ax.set_xlim(x.min(), x.max())
            if len(y) > 1:
                ax.set_ylim(y.min(), y.max())
            ax.set_title(plain(label) if name == "mean" else "standard deviation")
            figure.colorbar(mesh, ax=ax)
    if path is not None:
        save_figure(figure, path)
    return figure


def _draw_measurements(ax: Any, X: np.ndarray, values: np.ndarray, mesh: Any) -> None:
    if len(values) <= _COLOURED:
        ax.scatter(*X.T, c=values, cmap=mesh.cmap, norm=mesh.norm, s=16, edgecolors="white", linewidths=0.6)
    else:
        ax.scatter(*X.T, color="white", alpha=0.5, s=1.0, linewidths=0, rasterized=True)


def draw_places(ax: Any, places: Places, number: np.ndarray, title: str) -> None:
    """Draw places (n, 2) with a colour for each number from 0."""
    X = places.continuous(places.X)
    for one in range(int(number.max()) + 1):
        ax.scatter(*X[number == one].T, s=9, linewidths=0, color=f"C{one % 10}")
    _dress(ax, places)
    ax.set_title(title)


def _dress(ax: Any, places: Places) -> None:
    """Label the axes of a map, and give them one scale on the ground."""
    ax.set_xlabel(labelled(places.dims[1]))
    ax.set_ylabel(labelled(places.dims[0]))
    middle = np.clip(np.median(places.X[:, 1]), -85.0, 85.0)
    ax.set_aspect(1 / np.cos(np.radians(middle)) if places.is_geographic else "equal")
