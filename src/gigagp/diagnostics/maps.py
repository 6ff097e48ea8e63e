"""Plots of a fitted function of one to three inputs; matplotlib is an optional extra."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from gigagp.diagnostics.plots import check_plot
from gigagp.encoding import fitted_encoder
from gigagp.errors import InvalidInputError
from gigagp.fields import CountOrZero, Range, checks_arguments, shown

if TYPE_CHECKING:
    from gigagp.classification import GPClassifier
    from gigagp.regression import GPRegressor

_MOST_INPUTS = 3
#: Number of points that are predicted at a time.
_BLOCK = 2**14
#: Half width of a curve's band in standard deviations.
_BAND = 2.0


@dataclass(frozen=True)
class MapValues:
    """A fitted function on a regular grid of points.

    Attributes
    ----------
    names : list of str
        Names of the one or two inputs along the axes.
    axes : list of ndarray
        Coordinates along each axis, shape (r,).
    across : str or None
        Name of the third input, which is constant in each slice.
    at : list of float
        Values of that input, one for each slice; a single meaningless entry with fewer inputs.
    mean, std : ndarray of shape (n_slices, r) or (n_slices, r, r)
        Mean and standard deviation; the first input is the first axis of a slice.
    """

    names: list[str]
    axes: list[np.ndarray]
    across: str | None
    at: list[float]
    mean: np.ndarray
    std: np.ndarray


@checks_arguments
def map_values(
    model: GPRegressor | GPClassifier,
    *,
    target: CountOrZero = 0,
    across: str | int | None = None,
    at: Sequence[float] | None = None,
    lower: Sequence[float] | None = None,
    upper: Sequence[float] | None = None,
    resolution: Annotated[int, Range(least=2, most=10_000)] = 160,
    include_noise: bool = False,
) -> MapValues:
    """Return mean and standard deviation of a fitted function on a regular grid.

    Parameters
    ----------
    model : GPRegressor or GPClassifier
        A model fitted to one, two or three inputs. For a classifier the latent function is used. With
        ``encode="auto"``, the inputs are the numbers, and the dates in days since the earliest; each column of
        categories is at its most frequent one.
    target : int, default 0
        Number of the target, from 0, if there are several.
    across : str or int, optional
        With three inputs, the name of the input that is constant in each slice, or its number from 0. None: the last.
    at : sequence of float, optional
        With three inputs, the values of that input, one for each slice. None: a sixth, a half and five sixths of its
        range.
    lower, upper : sequence of float, optional
        Corners of the region, with one number for each input. None: the range of the rows of the fit or, if the model
        does not store it, two standard deviations on either side of the mean.
    resolution : int, default 160
        Number of points along an axis.
    include_noise : bool, default False
        Whether the standard deviation is that of a new observation instead of the function.

    Returns
    -------
    MapValues

    Raises
    ------
    InvalidInputError
        If the model has more than three inputs, or an argument is invalid.
    """
    regressor: GPRegressor = getattr(model, "latent_", model)  # type: ignore[assignment]
    if getattr(regressor, "posterior_", None) is None:
        msg = "model of map_values must be fitted."
        raise InvalidInputError(msg)
    n_columns = int(regressor.n_features_in_)
    names = [str(name) for name in getattr(model, "feature_names_in_", [f"input {k + 1}" for k in range(n_columns)])]
    if (encoder := fitted_encoder(regressor)) is not None:
        names = [names[k] for k in encoder.axes]
    d = len(names)
    if not 0 < d <= _MOST_INPUTS:
        kind = "" if encoder is None else " that are numbers or dates"
        msg = f"A map requires 1 to {_MOST_INPUTS} inputs; the model has {d}{kind}."
        raise InvalidInputError(msg)
    _check_counts(regressor, target, resolution)
    low, high = _region(regressor, lower, upper)
    fixed = _which(across, names) if d == _MOST_INPUTS else None
    if fixed is None and (across is not None or at is not None):
        msg = f"across and at are only for maps of three inputs; the model has {d}."
        raise InvalidInputError(msg)
    shown = [k for k in range(d) if k != fixed]
    axes = [np.linspace(low[k], high[k], resolution) for k in shown]
    levels = [0.0] if fixed is None else _levels(at, low[fixed], high[fixed])
    means, stds = [], []
    for level in levels:
        points = np.empty((resolution ** len(shown), d))
        for k, column in zip(shown, np.meshgrid(*axes, indexing="ij"), strict=True):
            points[:, k] = column.ravel()
        if fixed is not None:
            points[:, fixed] = level
        mean, std = _predicted(regressor, points, include_noise)
        shape = (resolution,) * len(shown)
        means.append((mean if mean.ndim == 1 else mean[:, target]).reshape(shape))
        stds.append((std if std.ndim == 1 else std[:, target]).reshape(shape))
    return MapValues(
        [names[k] for k in shown],
        axes,
        None if fixed is None else names[fixed],
        levels,
        np.stack(means),
        np.stack(stds),
    )


def plot_map(
    model: GPRegressor | GPClassifier, path: str | os.PathLike[str], *, label: str | None = None, **options: Any
) -> None:
    """Plot mean and standard deviation of a fitted function of one to three inputs.

    One input gives a curve with a band of two standard deviations, and two inputs give two maps. Three inputs give a
    row of maps for each slice, all with the same colours.

    Parameters
    ----------
    model : GPRegressor or GPClassifier
        A fitted model.
    path : str or path
        File of the plot; its extension determines the format (PNG, PDF, SVG).
    label : str, optional
        Name of the target.
    **options
        As for `map_values`.

    Raises
    ------
    InvalidInputError
        If matplotlib is not installed, the extension is unknown, or an option is invalid.
    """
    check_plot(path)
    found = map_values(model, **options)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    label = label or ("latent function" if hasattr(model, "latent_") else "target")
    if len(found.axes) == 1:
        figure = Figure(figsize=(7, 4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        (x,), mean, std = found.axes, found.mean[0], found.std[0]
        low, high = mean - _BAND * std, mean + _BAND * std
        axes.fill_between(x, low, high, alpha=0.25, linewidth=0, label="± 2 standard deviations")
        axes.plot(x, mean, label="mean")
        axes.set_xlabel(found.names[0])
        axes.set_ylabel(label)
        axes.legend()
    else:
        figure = Figure(figsize=(11, 4.2 * len(found.at)), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(found.at), 2, squeeze=False, sharex=True, sharey=True)
        for column, (values, name, colours) in enumerate(
            ((found.mean, f"{label}: mean", "viridis"), (found.std, f"{label}: standard deviation", "magma"))
        ):
            for row, slice_values in enumerate(values):
                axes = grid[row, column]
                mesh = axes.pcolormesh(
                    *found.axes,
                    slice_values.T,
                    cmap=colours,
                    vmin=float(values.min()),
                    vmax=float(values.max()),
                    shading="nearest",
                    rasterized=True,
                )
                axes.set_xlabel(found.names[0])
                axes.set_ylabel(found.names[1])
                axes.set_title(name if found.across is None else f"{name}, {found.across} = {found.at[row]:.4g}")
            figure.colorbar(mesh, ax=list(grid[:, column]))
    figure.savefig(path, dpi=150)


def _check_counts(regressor: GPRegressor, target: int, resolution: int) -> None:
    n_targets = regressor.posterior_.n_targets
    if not 0 <= target < n_targets:
        msg = f"target of a map must be from 0 to {n_targets - 1}; got {target!r}."
        raise InvalidInputError(msg)


def _region(
    regressor: GPRegressor, lower: Sequence[float] | None, upper: Sequence[float] | None
) -> tuple[list[float], list[float]]:
    """Return the corners of the plotted region in the data's own units."""
    scaling, posterior = regressor.scaling_, regressor.posterior_
    places = posterior.places().double().cpu().numpy()
    if len(places):
        low, high = places.min(0), places.max(0)
    else:
        d = len(scaling.x_centre)
        low, high = np.full(d, -2.0), np.full(d, 2.0)
    scale, centre, encoder = scaling.x_scale, scaling.x_centre, fitted_encoder(regressor)
    if encoder is not None:
        inputs = [encoder.inputs[k][0][0] for k in encoder.axes]
        low, high, scale, centre = (values[inputs] for values in (low, high, scale, centre))
    corners = []
    for name, given, own in (("lower", lower, low), ("upper", upper, high)):
        if given is None:
            corners.append((own * scale + centre).tolist())
            continue
        values = _numbers(given, name)
        if len(values) != len(own) or not np.isfinite(values).all():
            msg = f"{name} of a map must be {len(own)} finite numbers, one per input; got {given!r}."
            raise InvalidInputError(msg)
        corners.append(values.tolist())
    for a, b in zip(*corners, strict=True):
        if a > b:
            msg = f"lower of a map must be below upper; got {corners[0]} and {corners[1]}."
            raise InvalidInputError(msg)
    return corners[0], corners[1]


def _numbers(values: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(values, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError, OverflowError) as error:
        msg = f"{name} of a map must be a sequence of numbers; got {shown(values)}."
        raise InvalidInputError(msg) from error


def _which(across: str | int | None, names: list[str]) -> int:
    if across is None:
        return len(names) - 1
    if isinstance(across, str) and across in names:
        return names.index(across)
    if isinstance(across, int) and not isinstance(across, bool) and 0 <= across < len(names):
        return across
    msg = f"across of a map must be one of {', '.join(names)}, or its number from 0; got {across!r}."
    raise InvalidInputError(msg)


def _levels(at: Sequence[float] | None, low: float, high: float) -> list[float]:
    if at is None:
        return [low + share * (high - low) for share in (1 / 6, 1 / 2, 5 / 6)]
    levels = _numbers(at, "at")
    if not len(levels) or len(levels) > 20 or not np.isfinite(levels).all():
        msg = f"at of a map must be 1 to 20 finite numbers; got {at!r}."
        raise InvalidInputError(msg)
    return levels.tolist()


def _predicted(regressor: GPRegressor, points: np.ndarray, include_noise: bool) -> tuple[np.ndarray, np.ndarray]:
    names = getattr(regressor, "feature_names_in_", None)
    means, stds = [], []
    encoder = fitted_encoder(regressor)
    for start in range(0, len(points), _BLOCK):
        block: Any = points[start : start + _BLOCK]
        if encoder is not None:
            block = encoder.table(block, None if names is None else [str(name) for name in names])
        elif names is not None:
            from gigagp.data import Table

            block = Table(tuple(str(name) for name in names), block).to_arrow()
        mean, std = regressor.predict(block, return_std=True, include_noise=include_noise)
        means.append(mean)
        stds.append(std)
    return np.concatenate(means), np.concatenate(stds)
