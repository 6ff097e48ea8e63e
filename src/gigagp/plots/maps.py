"""Mean and standard deviation of a fitted function on a regular grid of one to three inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.plots.view import Axis, View
from gigagp.settings.fields import CountOrZero, Range, checks_arguments, shown

#: Most inputs of a map.
MOST_INPUTS = 3


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
    model: Any,
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
        A model fitted to one, two or three inputs. Of a classifier, the probability of a class is taken. With
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
        Corners of the region, with one number for each input. None: the range of the training rows or, if the model
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
    view = View(model, target)
    return Grid.of(view, across, at, lower, upper, resolution).values(view, include_noise)


@dataclass(frozen=True)
class Grid:
    """The points of a map: those of its axes, in one slice for each level of a third input.

    ``names``, ``axes`` and ``across`` are as in `MapValues`. There is a single meaningless level with fewer inputs.
    ``along`` and ``fixed`` are the numbers of the inputs along the axes and of the third one.
    """

    names: list[str]
    axes: list[np.ndarray]
    across: str | None
    levels: list[float]
    along: list[int]
    fixed: int | None

    @classmethod
    def of(cls, view: View, across: Any, at: Any, lower: Any, upper: Any, resolution: int) -> Grid:
        """Return the grid that the arguments of `map_values` ask for."""
        d = len(view.axes)
        if not 0 < d <= MOST_INPUTS:
            kind = "" if view.encoder is None else " that are numbers or dates"
            raise InvalidInputError(f"A map requires 1 to {MOST_INPUTS} inputs; the model has {d}{kind}.")
        low, high = region(view, view.axes, lower, upper)
        fixed = _which(across, [axis.name for axis in view.axes]) if d == MOST_INPUTS else None
        if fixed is None and (across is not None or at is not None):
            raise InvalidInputError(f"across and at are only for maps of three inputs; the model has {d}.")
        along = [k for k in range(d) if k != fixed]
        axes = [np.linspace(low[k], high[k], resolution) for k in along]
        levels = [0.0] if fixed is None else _levels(at, low[fixed], high[fixed])
        name = None if fixed is None else view.axes[fixed].name
        return cls([view.axes[k].name for k in along], axes, name, levels, along, fixed)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a slice."""
        return tuple(len(axis) for axis in self.axes)

    def points(self, view: View) -> Iterator[np.ndarray]:
        """Yield the encoded inputs of each slice, the last axis first."""
        for level in self.levels:
            values = np.full((math.prod(self.shape), len(view.axes)), level)
            for k, column in zip(self.along, np.meshgrid(*self.axes, indexing="ij"), strict=True):
                values[:, k] = column.ravel()
            yield view.points(view.axes, values)

    def values(self, view: View, include_noise: bool = False) -> MapValues:
        """Return the function at the points."""
        means, stds = [], []
        for points in self.points(view):
            mean, std = view.mean_and_std(points, include_noise)
            means.append(mean.reshape(self.shape))
            stds.append(std.reshape(self.shape))
        return MapValues(self.names, self.axes, self.across, self.levels, np.stack(means), np.stack(stds))


def region(
    view: View, axes: Sequence[Axis], lower: Sequence[Any] | None, upper: Sequence[Any] | None
) -> tuple[list[float], list[float]]:
    """Return the corners of a region, given or those of the training rows, in the data's own units."""
    own = [view.range_of(axis) for axis in axes]
    corners = []
    for k, (name, given) in enumerate((("lower", lower), ("upper", upper))):
        if given is None:
            corners.append([pair[k] for pair in own])
            continue
        values = np.asarray(given, dtype=object).reshape(-1).tolist()
        if len(values) != len(axes):
            msg = f"{name} of a map must be {len(axes)} finite numbers, one per input; got {given!r}."
            raise InvalidInputError(msg)
        corners.append([axis.value(value, name) for axis, value in zip(axes, values, strict=True)])
    for a, b in zip(*corners, strict=True):
        if a > b:
            raise InvalidInputError(f"lower of a map must be below upper; got {corners[0]} and {corners[1]}.")
    return corners[0], corners[1]


def ends_of(view: View, axis: Axis, lower: Any, upper: Any) -> tuple[float, float]:
    """Return the ends of a curve along one axis; see `region`."""
    (low,), (high,) = region(view, [axis], *(None if end is None else [end] for end in (lower, upper)))
    return low, high


def _numbers(values: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(values, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"{name} of a map must be a sequence of numbers; got {shown(values)}.") from error


def _which(across: str | int | None, names: list[str]) -> int:
    if across is None:
        return len(names) - 1
    if isinstance(across, str) and across in names:
        return names.index(across)
    if isinstance(across, int) and not isinstance(across, bool) and 0 <= across < len(names):
        return across
    raise InvalidInputError(f"across of a map must be one of {', '.join(names)}, or its number from 0; got {across!r}.")


def _levels(at: Sequence[float] | None, low: float, high: float) -> list[float]:
    if at is None:
        return [low + share * (high - low) for share in (1 / 6, 1 / 2, 5 / 6)]
    levels = _numbers(at, "at")
    if not len(levels) or len(levels) > 20 or not np.isfinite(levels).all():
        raise InvalidInputError(f"at of a map must be 1 to 20 finite numbers; got {at!r}.")
    return levels.tolist()
