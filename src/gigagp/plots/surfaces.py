"""A function of two inputs: a map of the mean with the data points, and a map of the uncertainty."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.plots.axes import are_in_a_plane, below, dress, is_latitude, is_longitude, plain, thinned
from gigagp.plots.maps import MapValues, map_values
from gigagp.plots.view import Axis, Rows, View
from gigagp.storage.figures import INK, SPREADS, VALUES, axes_or_new, style

#: How the two axes of a map relate.
Aspect = Literal["auto", "geographic", "equal", "free"]
Quantity = Literal["mean", "std"]
#: Percentiles at the ends of the colours, so that a few extreme places do not take all of them.
_ENDS = (1.0, 99.0)
#: Most data points that a map has room for with colours, and at all.
_COLOURED, _SHOWN = 400, 5000
#: Ranges of axes without known units are drawn in proportion up to this ratio.
_EQUAL_UP_TO = 3.0


def surface(
    model: Any,
    X: Any = None,
    y: Any = None,
    *,
    ax: Any = None,
    quantity: Quantity = "mean",
    lower: Any = None,
    upper: Any = None,
    target: int = 0,
    label: str | None = None,
    include_noise: bool = False,
    resolution: int = 160,
    aspect: Aspect = "auto",
) -> Any:
    """Draw one map of a model of two inputs: its mean with the data points, or its standard deviation.

    Parameters
    ----------
    model : GPRegressor or GPClassifier
        A fitted model of two inputs that are numbers or dates. Of a classifier, the map is that of the probability of a
        class, with a line where it is one half.
    X, y : array-like of shape (n, 2) and (n,), optional
        Data points. None: the training rows, if the model keeps them. Up to 400 points have the colour of their
        value; more are small dots.
    ax : matplotlib axes, optional
        Where to draw. None: a new figure.
    quantity : {"mean", "std"}, default "mean"
        What is drawn.
    lower, upper : sequence of two numbers, optional
        Corners of the map. None: the range of the training rows.
    target, label, include_noise
        As for `curve`; ``include_noise`` adds the noise to the standard deviation.
    resolution : int, default 160
        Number of points along each axis.
    aspect : {"auto", "geographic", "equal", "free"}, default "auto"
        ``"geographic"``: longitude is drawn to the right and one degree of it is shorter than one of latitude, as it is
        on the ground in the middle of the map. ``"equal"``: both axes have one scale. ``"free"``: the map fills its
        frame. ``"auto"`` is geographic for columns named as longitude and latitude (lon, lat), equal for coordinates in
        a plane (x and y, easting and northing) and for ranges of similar size, and else free.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InvalidInputError
        If matplotlib is missing, the model has another number of inputs, or an argument is invalid.
    """
    view = View(model, target)
    if len(view.axes) != 2:
        msg = f"surface needs a model of two inputs that are numbers or dates; it has {len(view.axes)}."
        raise InvalidInputError(msg)
    options = {"target": target, "lower": lower, "upper": upper, "resolution": resolution}
    found = map_values(model, include_noise=include_noise, **options)
    shown = view.rows_to_draw(X, y)
    with style():
        ax = axes_or_new(ax, 6.0, 5.0)
        draw_map(ax, view, found, shown, quantity=quantity, label=label, aspect=aspect, include_noise=include_noise)
    return ax


def draw_map(
    ax: Any,
    view: View,
    found: MapValues,
    rows: Rows | None,
    *,
    quantity: Quantity,
    label: str | None = None,
    aspect: Aspect = "auto",
    include_noise: bool = False,
    place: int = 0,
    limits: tuple[float, float] | None = None,
) -> None:
    """Draw one slice of a map with its colour bar and the data points."""
    values = (found.mean if quantity == "mean" else found.std)[place]
    pair, places, values = eastward(view, found.names, found.axes, values)
    low, high = colour_limits(values) if limits is None else limits
    is_probability = view.is_classifier and quantity == "mean"
    if is_probability:
        low, high = 0.0, 1.0
    colours = VALUES if quantity == "mean" else SPREADS
    x, y = (axis.shown(one) for axis, one in zip(pair, places, strict=True))
    mesh = ax.pcolormesh(x, y, values.T, cmap=colours, vmin=low, vmax=high, shading="nearest", rasterized=True)
    if is_probability and values.min() < 0.5 < values.max():
        ax.contour(x, y, values.T, levels=[0.5], colors=INK, linewidths=1.2)
    frame(ax, pair, places, aspect)
    if rows is not None and is_probability:
        _draw_classes(ax, view, pair, rows, mesh)
    elif rows is not None:
        _draw_points(ax, pair, rows, mesh if quantity == "mean" else None)
    name = plain(view.label(label))
    of = "measurements" if include_noise else view.noun
    beside = ax.inset_axes((1.03, 0.0, 0.045, 1.0))  # as high as the map, whatever its proportions
    bar = ax.figure.colorbar(mesh, cax=beside, extend=_extended(values, low, high))
    bar.set_label(name if quantity == "mean" else f"standard deviation of {of}")
    what = "" if is_probability else ": mean" if quantity == "mean" else ": uncertainty"
    ax.set_title(f"{name}{what}")


def eastward(
    view: View, names: list[str], axes: list[np.ndarray], values: np.ndarray
) -> tuple[list[Axis], list[np.ndarray], np.ndarray]:
    """Return columns, coordinates and values, (r, r) or (r, r, k), with east to the right on maps."""
    pair = [next(axis for axis in view.axes if axis.name == name) for name in names]
    if is_latitude(pair[0].name) and is_longitude(pair[1].name):
        return pair[::-1], axes[::-1], values.swapaxes(0, 1)
    return pair, axes, values


def frame(ax: Any, pair: list[Axis], places: list[np.ndarray], aspect: Aspect) -> None:
    """Label the axes of a map, and set its extent and proportions."""
    dress(ax.xaxis, pair[0])
    dress(ax.yaxis, pair[1])
    _proportion(ax, pair, places, aspect)
    x, y = (axis.shown(one) for axis, one in zip(pair, places, strict=True))
    ax.set_xlim(x[0], x[-1])
    ax.set_ylim(y[0], y[-1])


def colour_limits(values: np.ndarray) -> tuple[float, float]:
    """Return where the colours of a map begin and end: nearly all of its values lie between."""
    low, high = np.percentile(values, _ENDS)
    if high <= low:
        low, high = float(values.min()), float(values.max())
    if high <= low:  # constant up to rounding
        low, high = low - (abs(low) or 1.0) * 1e-3, high + (abs(high) or 1.0) * 1e-3
    return float(low), float(high)


def _extended(values: np.ndarray, low: float, high: float) -> str:
    """Return at which ends of the colours there are values beyond."""
    slack = 0.02 * (high - low)
    below, above = bool(values.min() < low - slack), bool(values.max() > high + slack)
    return {(True, True): "both", (True, False): "min", (False, True): "max"}.get((below, above), "neither")


def _draw_points(ax: Any, pair: list[Axis], rows: Rows, mesh: Any) -> None:
    kept, words = thinned(np.arange(len(rows.y)), _SHOWN)
    x, y = (axis.shown(rows.X[kept, axis.places[0]]) for axis in pair)
    if len(kept) <= _COLOURED and mesh is not None:
        ax.scatter(x, y, c=rows.y[kept], cmap=mesh.cmap, norm=mesh.norm, s=16, edgecolors="white", linewidths=0.6)
    else:
        size = float(np.clip(2500 / len(kept), 0.6, 6))
        alpha = float(np.clip(1000 / len(kept), 0.3, 0.8))
        colour = INK if mesh is not None else "white"
        ax.scatter(x, y, s=size, color=colour, alpha=alpha, linewidth=0, rasterized=True)
    if words:
        ax.set_xlabel(f"{ax.get_xlabel()}\npoints{words}")


def _draw_classes(ax: Any, view: View, pair: list[Axis], rows: Rows, mesh: Any) -> None:
    """Draw rows of the class and others, with other marks and edges, so that they are seen on any colour."""
    others = [str(one) for k, one in enumerate(view.classes) if k != view.class_number]
    names = {1.0: str(view.classes[view.class_number]), 0.0: others[0] if len(others) == 1 else "other classes"}
    for has_class, mark, edge in ((0.0, "X", "white"), (1.0, "o", INK)):
        chosen = np.flatnonzero(rows.y == has_class)
        kept, words = thinned(chosen, _SHOWN // 2)
        x, y = (axis.shown(rows.X[kept, axis.places[0]]) for axis in pair)
        size = float(np.clip(8000 / max(len(rows.y), 1), 3, 24))
        ax.scatter(
            x, y, s=size, marker=mark, color=mesh.cmap(mesh.norm(has_class)), edgecolors=edge,
            linewidths=0.6 if size > 8 else 0.3, label=plain(names[has_class]) + words, rasterized=len(kept) > 500,
        )  # fmt: skip
    below(ax)


def _proportion(ax: Any, pair: list[Axis], places: list[np.ndarray], aspect: Aspect) -> None:
    names = (pair[0].name, pair[1].name)
    spans = [float(one[-1] - one[0]) for one in places]
    if aspect == "auto":
        if is_longitude(names[0]) and is_latitude(names[1]):
            aspect = "geographic"
        elif any(axis.is_date for axis in pair) or min(spans) <= 0:
            aspect = "free"
        else:
            near = max(spans) <= _EQUAL_UP_TO * min(spans)
            aspect = "equal" if are_in_a_plane(names) or near else "free"
    if aspect == "geographic":
        middle = float(np.clip(0.5 * (places[1][0] + places[1][-1]), -85.0, 85.0))
        ax.set_aspect(1 / np.cos(np.radians(middle)))
    elif aspect == "equal":
        ax.set_aspect("equal")
