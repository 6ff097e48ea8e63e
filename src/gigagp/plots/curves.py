"""Curves of models of one input: data, mean and bands, with extrapolation set apart."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.plots.axes import LEVELS, OPACITIES, below, dress, mark_ends, plain, thinned
from gigagp.plots.maps import ends_of
from gigagp.plots.view import Axis, Rows, View
from gigagp.storage.figures import BLUE, INK, ORANGE, axes_or_new, style

#: Points for each lengthscale or half period; least and most points of a curve.
_FINE, _LEAST, _MOST = 8, 240, 8000
#: Points and pixel columns, where more would be needed than can be drawn: each column then shows a range.
_COLUMNS, _IN_A_COLUMN = 480, 16
#: Most data points of a picture of one input.
_SHOWN = 20_000


def curve(
    model: Any,
    X: Any = None,
    y: Any = None,
    *,
    ax: Any = None,
    lower: Any = None,
    upper: Any = None,
    target: int = 0,
    label: str | None = None,
    include_noise: bool = False,
    resolution: int | None = None,
) -> Any:
    """Draw a model of one input: data points, mean, and bands that contain 50 and 95 % of the probability.

    What lies beyond the training rows has another colour and a dashed line. The number of points follows the
    shortest lengthscale and period of the kernel, so that no cycle is lost between points. Where a curve would need
    more points than a picture has room for, the range of the mean within each of 480 columns is drawn.

    Parameters
    ----------
    model : GPRegressor or GPClassifier
        A fitted model of one input that is a number or a date. Of a classifier, the probability of a class is drawn,
        with rows of this class at one and all others at zero.
    X, y : array-like of shape (n, 1) and (n,), optional
        Data points. None: the training rows, if the model keeps them.
    ax : matplotlib axes, optional
        Where to draw. None: a new figure.
    lower, upper : float, date or text, optional
        Ends of the picture. None: the range of the training rows.
    target : int, default 0
        Number of the target, from 0.
    label : str, optional
        Name of the target, with its unit.
    include_noise : bool, default False
        Whether the bands are those of new measurements instead of the function.
    resolution : int, optional
        Number of points. None: as many as the kernel asks for.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InvalidInputError
        If matplotlib is missing, the model has more inputs, or an argument is invalid.
    """
    view = View(model, target)
    if len(view.axes) != 1:
        msg = f"curve needs a model of one input that is a number or a date; it has {len(view.axes)}."
        raise InvalidInputError(msg)
    axis = view.axes[0]
    low, high = ends_of(view, axis, lower, upper)
    shown = view.rows_to_draw(X, y)
    with style():
        ax = axes_or_new(ax)
        draw_curve(ax, view, shown, low=low, high=high, label=label, include_noise=include_noise, resolution=resolution)
    return ax


def draw_curve(
    ax: Any,
    view: View,
    shown: Rows | None,
    *,
    low: float,
    high: float,
    label: str | None = None,
    include_noise: bool = False,
    resolution: int | None = None,
) -> None:
    """Draw the picture of `curve` between two values, with rows as `View.drawn` has them."""
    axis = view.axes[0]
    first, last = view.range_of(axis)
    _draw_points(ax, axis, shown, low, high)
    beyond = False
    for start, end, is_inside in _pieces(low, high, first, last):
        _draw_piece(ax, view, axis, (start, end), is_inside, include_noise, resolution, named=is_inside or not beyond)
        beyond |= not is_inside
    if beyond:
        mark_ends(ax, axis, (first, last), low, high)
    ends = axis.shown(np.array([low, high]))
    if low < high:
        ax.set_xlim(ends[0], ends[1])
    dress(ax.xaxis, axis)
    ax.set_ylabel(plain(view.label(label)))
    if view.is_classifier:
        ax.set_ylim(-0.03, 1.03)
    below(ax)


def _pieces(low: float, high: float, first: float, last: float) -> list[tuple[float, float, bool]]:
    """Return the parts of a range: before the data, within them, and after them."""
    cuts = [low, *(edge for edge in (first, last) if low < edge < high), high]
    found = []
    for start, end in pairwise(cuts):
        found.append((start, end, first <= 0.5 * (start + end) <= last))
    return sorted(found, key=lambda piece: not piece[2])


def points_needed(view: View, axis: Axis, width: float) -> int:
    """Return how many points show every wave of the kernel over a part of an axis."""
    finest = width
    kernel = view.regressor.posterior_.model.kernel.in_own_units(view.regressor.scaling_.units())
    for leaf in kernel.leaves():
        for name, value in leaf.parameters().items():
            if leaf.units.get(name) == "input":
                finest = min(finest, float(value.min()) / (2.0 if name == "period" else 1.0))
    if axis.is_date and len(axis.places) > 1:  # seasons, or times of day
        finest = min(finest, 0.5 if getattr(axis.column, "clock", False) else 180.0)
    needed = _FINE * width / finest if finest > 0 else np.inf
    return int(min(max(needed, _LEAST), 1e9))


def _draw_piece(
    ax: Any,
    view: View,
    axis: Axis,
    ends: tuple[float, float],
    is_inside: bool,
    include_noise: bool,
    resolution: int | None,
    *,
    named: bool,
) -> None:
    needed = points_needed(view, axis, ends[1] - ends[0]) if resolution is None else resolution
    is_crowded = resolution is None and needed > _MOST
    if is_crowded:
        # At random places within columns: evenly spaced points would show waves that are not there.
        count = _COLUMNS * _IN_A_COLUMN
        shares = (np.arange(count) + np.random.default_rng(0).uniform(size=count)) / count
        values = ends[0] + (ends[1] - ends[0]) * shares
    else:
        values = np.linspace(*ends, needed)
    X = view.points([axis], values[:, None])
    bands = view.quantiles(X, LEVELS, include_noise)
    mean = view.mean(X)
    colour, what = (BLUE, "") if is_inside else (ORANGE, "beyond the data: ")
    of = "measurements" if include_noise else view.noun
    if is_crowded:
        values = values.reshape(_COLUMNS, -1).mean(1)
        low, high = (bands[:, k].reshape(_COLUMNS, -1) for k in (0, 3))
        x = axis.shown(values)
        words = f"{what}95 % of {of}" if named else None
        ax.fill_between(x, low.min(1), high.max(1), color=colour, alpha=OPACITIES[0], linewidth=0, label=words)
        parts = mean.reshape(_COLUMNS, -1)
        words = f"{what}mean (its range within a pixel)" if named else None
        ax.fill_between(x, parts.min(1), parts.max(1), color=colour, alpha=0.8, linewidth=0.5, label=words)
        return
    x = axis.shown(values)
    for k, opacity, share in ((0, OPACITIES[0], 95), (1, OPACITIES[1], 50)):
        label = f"{what}{share} % of {of}" if named else None
        ax.fill_between(x, bands[:, k], bands[:, 3 - k], color=colour, alpha=opacity, linewidth=0, label=label)
    label = f"{what}mean" if named else None
    ax.plot(x, mean, color=colour, linewidth=1.4, linestyle="-" if is_inside else (0, (5, 1)), label=label)


def _draw_points(ax: Any, axis: Axis, rows: Rows | None, low: float, high: float) -> None:
    if rows is None:
        return
    x = rows.X[:, axis.places[0]]
    inside = np.flatnonzero((x >= low) & (x <= high))
    if not len(inside):
        return
    kept, words = thinned(inside, _SHOWN)
    size = float(np.clip(4000 / len(kept), 1.5, 16))
    ax.scatter(
        axis.shown(x[kept]),
        rows.y[kept],
        s=size,
        color=INK,
        alpha=float(np.clip(300 / len(kept), 0.25, 0.75)),
        linewidth=0,
        label=f"data{words}",
        rasterized=len(kept) > 500,
        zorder=2.5 if len(kept) < 2000 else 0.5,
    )
