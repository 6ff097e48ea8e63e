"""`plot`: the picture that suits a model, by the number of its inputs."""

from __future__ import annotations

import os
from typing import Any, get_args

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.plots.axes import plain
from gigagp.plots.classes import class_curves, class_map
from gigagp.plots.curves import curve
from gigagp.plots.dependence import draw_dependence, partial_dependence_values
from gigagp.plots.importance import relevance, relevance_values
from gigagp.plots.maps import MOST_INPUTS, Grid, map_values
from gigagp.plots.surfaces import Aspect, Quantity, colour_limits, draw_map
from gigagp.plots.view import View
from gigagp.settings.fields import CountOrZero, checks_arguments
from gigagp.storage.figures import check_plot, new_figure, require_matplotlib, save_figure, style

#: Inputs whose dependence is drawn, of those that matter most.
_DEPENDENCES = 5


@checks_arguments
def plot(
    model: Any,
    X: Any = None,
    y: Any = None,
    *,
    path: str | os.PathLike[str] | None = None,
    label: str | None = None,
    target: CountOrZero | None = None,
    lower: Any = None,
    upper: Any = None,
    include_noise: bool = False,
    resolution: int | None = None,
    across: str | int | None = None,
    at: Any = None,
    aspect: Aspect = "auto",
) -> Any:
    """Draw the picture that suits a fitted model.

    - One input: data points, mean, and bands of 50 and 95 %, with what lies beyond the data apart (`curve`).
    - Two inputs: a map of the mean with the data points, and a map of the uncertainty (`surface`).
    - Three inputs: maps in slices of one of them, all with the same colours.
    - A classifier of two classes: the probability of the second one, ``model.classes_[1]``, in these pictures. Of more
      classes: the probabilities of all of them along one input; the most probable class and its probability on maps.
    - More inputs, or categorical columns: relevance of the inputs, and the partial dependence on those that matter
      most (`relevance`, `partial_dependence`).

    Parameters
    ----------
    model : GPRegressor or GPClassifier
        A fitted model.
    X, y : array-like, optional
        Data points to draw, for a classifier with their labels, and with more than three inputs the rows to average
        over. None: the training rows, if the model keeps them.
    path : str or path, optional
        File for the picture, written atomically; its extension determines the format (PNG, PDF, SVG). None: the figure
        is shown as pyplot shows figures, such as in a notebook.
    label : str, optional
        Name of the target, with its unit.
    target : int, optional
        Number of the target, from 0, if there are several. None: the first one. Of a classifier with more than two
        classes, the class whose probability is drawn. None: all of them, or the first one where there are more than
        three inputs.
    lower, upper : sequence of numbers or dates, optional
        Corners of the region, one entry for each input. None: the range of the training rows.
    include_noise : bool, default False
        Whether uncertainty is that of new measurements instead of the function.
    resolution : int, optional
        Number of points along an axis. None: as many as the kernel asks for along a curve, 160 on maps, and 40 for
        partial dependences.
    across : str or int, optional
        With three inputs, the one that is constant in each slice, by name or number from 0. None: the last one.
    at : sequence of float, optional
        With three inputs, its values, one for each slice. None: a sixth, a half and five sixths of its range.
    aspect : {"auto", "geographic", "equal", "free"}, default "auto"
        Proportions of maps; see `surface`.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidInputError
        If matplotlib is not installed, the file cannot be written, or an argument is invalid.
    """
    if path is None:
        require_matplotlib()
    else:
        check_plot(path)
    every = target is None
    target = 0 if target is None else target
    view, is_shown = View(model, target), path is None
    every &= len(view.classes) > 2
    if view.is_classifier and include_noise:
        msg = "include_noise of a picture must be False for a GPClassifier: probabilities have no noise."
        raise InvalidInputError(msg)
    d, is_numeric = len(view.axes), len(view.axes) == len(view.columns)
    is_map = 0 < d <= MOST_INPUTS and (is_numeric or lower is not None or upper is not None)
    given = {"across": across, "at": at}
    if not is_map:
        for name, value in {**given, "lower": lower, "upper": upper}.items():
            if value is not None:
                msg = f"{name} of a picture is for models of up to {MOST_INPUTS} inputs; it has {len(view.columns)}."
                raise InvalidInputError(msg)
    if is_map and d != MOST_INPUTS and any(value is not None for value in given.values()):
        raise InvalidInputError(f"across and at are only for maps of three inputs; the model has {d}.")
    with style():
        if is_map and d == 1:
            figure = new_figure(8.0, 4.6, shown=is_shown)
            ends = [_single(end, name) for end, name in ((lower, "lower"), (upper, "upper"))]
            ax = figure.add_subplot()
            if every:
                labelled = view.rows if X is None and y is None else view.given(X, y)
                class_curves(view, labelled, ax=ax, lower=ends[0], upper=ends[1], resolution=resolution)
            else:
                curve(
                    model, X, y, ax=ax, lower=ends[0], upper=ends[1], target=target, label=label,
                    include_noise=include_noise, resolution=resolution,
                )  # fmt: skip
        elif is_map and every:
            grid = Grid.of(view, across, at, lower, upper, 160 if resolution is None else resolution)
            figure = new_figure(11.0, 4.4 * len(grid.levels), shown=is_shown)
            rows = view.rows if X is None and y is None else view.given(X, y)
            pairs = figure.subplots(len(grid.levels), 2, squeeze=False)
            for pair, points, level in zip(pairs, grid.points(view), grid.levels, strict=True):
                values = view.probabilities(points)
                for ax, named in zip(pair, (True, False), strict=True):
                    class_map(ax, view, grid, values, rows, aspect, level=level, named=named)
        elif is_map:
            found = map_values(
                model, target=target, lower=lower, upper=upper, include_noise=include_noise,
                resolution=160 if resolution is None else resolution, **given,
            )  # fmt: skip
            figure = _maps(view, found, view.rows_to_draw(X, y), label, aspect, include_noise, is_shown)
        else:
            figure = _dependences(view, X, label, 40 if resolution is None else resolution, is_shown)
    if path is not None:
        save_figure(figure, path)
    return figure


def _single(end: Any, name: str) -> Any:
    """Return the end of a curve, which may be in a sequence as corners of maps are."""
    if np.ndim(end) == 0:
        return end
    if len(end) != 1:
        raise InvalidInputError(f"{name} of a map must be 1 finite numbers, one per input; got {end!r}.")
    return end[0]


def _maps(view: View, found: Any, rows: Any, label: str | None, aspect: Aspect, noise: bool, is_shown: bool) -> Any:
    count = len(found.at)
    figure = new_figure(11.0, 4.4 * count, shown=is_shown)
    grid = figure.subplots(count, 2, squeeze=False)
    shared = {"mean": colour_limits(found.mean), "std": colour_limits(found.std)}
    for place in range(count):
        for ax, quantity in zip(grid[place], get_args(Quantity), strict=True):
            near = rows if found.across is None else None  # rows of all slices would cover each of them
            draw_map(
                ax, view, found, near, quantity=quantity, label=label, aspect=aspect, include_noise=noise, place=place,
                limits=shared[quantity],
            )  # fmt: skip
            if found.across is not None:
                ax.set_title(f"{ax.get_title()}, {plain(found.across)} = {found.at[place]:.4g}")
    return figure


def _dependences(view: View, X: Any, label: str | None, resolution: int, is_shown: bool) -> Any:
    """Draw the relevance of the inputs, and the dependence on those that matter most."""
    values = relevance_values(view.model, X, target=view.target)
    weight = values.lengthscales_in_spread if np.isnan(values.sensitivity).any() else values.sensitivity
    chosen = np.argsort(-weight, kind="stable")[:_DEPENDENCES]
    columns = 3 if len(chosen) > 1 else 2
    rows = -(-(len(chosen) + 1) // columns)
    figure = new_figure(3.7 * columns, 3.2 * rows, shown=is_shown)
    grid = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    relevance(view.model, ax=grid[0], found=values)
    for ax, k in zip(grid[1:], chosen, strict=False):
        axis = view.columns[k]
        found = partial_dependence_values(view.model, axis.number, X, target=view.target, resolution=resolution)
        draw_dependence(ax, view, axis, found, label)
    lows, highs = zip(*(ax.get_ylim() for ax in grid[1 : len(chosen) + 1]), strict=True)
    for ax in grid[1 : len(chosen) + 1]:
        ax.set_ylim(min(lows), max(highs))  # one scale, so that what matters more looks so
    for ax in grid[len(chosen) + 1 :]:
        ax.set_axis_off()
    return figure
