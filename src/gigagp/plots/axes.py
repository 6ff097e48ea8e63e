"""Names, ticks and proportions of axes, and which data points there is room for."""

from __future__ import annotations

from typing import Any

import numpy as np

from gigagp.plots.view import Axis
from gigagp.storage.figures import GUIDE

#: Quantiles at the ends of the bands of 95 and of 50 %, and the opacities of these bands.
LEVELS, OPACITIES = (0.025, 0.25, 0.75, 0.975), (0.22, 0.35)
#: Names of columns that are degrees on a globe, and pairs of coordinates in the same unit of length.
_LONGITUDES, _LATITUDES = {"lon", "long", "lng", "longitude"}, {"lat", "latitude"}
_PLANE = ({"x", "y"}, {"easting", "northing"}, {"east", "north"}, {"x1", "x2"})


def is_longitude(name: str) -> bool:
    """Whether a column holds longitudes, by its name."""
    return _word(name) in _LONGITUDES


def is_latitude(name: str) -> bool:
    """Whether a column holds latitudes, by its name."""
    return _word(name) in _LATITUDES


def are_in_a_plane(names: tuple[str, str]) -> bool:
    """Whether two columns are coordinates in one unit, by their names."""
    return {_word(name) for name in names} in _PLANE


def _word(name: str) -> str:
    return name.split("(")[0].split("[")[0].strip().lower()


def labelled(name: str) -> str:
    """Return the label of an axis; degrees where the name says that it is a longitude or a latitude."""
    has_unit = "(" in name or "[" in name
    return f"{plain(name)} (°)" if (is_longitude(name) or is_latitude(name)) and not has_unit else plain(name)


def plain(text: str) -> str:
    """Return a user's text, such as the name of a column, as matplotlib shows it literally and in one short line."""
    text = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    text = text if len(text) <= 40 else f"{text[:39]}…"
    return text.replace("$", r"\$")


def dress(matplotlib_axis: Any, axis: Axis) -> None:
    """Label an axis; dates get ticks at whole years, months or days."""
    matplotlib_axis.set_label_text(labelled(axis.name))
    if axis.is_date:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator(minticks=3, maxticks=7)
        matplotlib_axis.set_major_locator(locator)
        matplotlib_axis.set_major_formatter(ConciseDateFormatter(locator))


def mark_ends(ax: Any, axis: Axis, ends: tuple[float, float], low: float, high: float) -> None:
    """Draw lines where the training rows end, if that is between two values."""
    for edge in ends:
        if low < edge < high:
            ax.axvline(axis.shown(np.array([edge]))[0], color=GUIDE, linewidth=0.8, linestyle=":")


def thinned(places: np.ndarray, most: int) -> tuple[np.ndarray, str]:
    """Return at most this many of the places, drawn at random, and words about what was left out."""
    if len(places) <= most:
        return places, ""
    kept = np.random.default_rng(0).choice(places, most, replace=False)
    return kept, f" ({most:,} of {len(places):,} rows)"


def below(ax: Any) -> None:
    """Put the legend below the axes, where it covers nothing, with markers that can be seen."""
    handles, labels = ax.get_legend_handles_labels()
    if not handles:
        return
    found = ax.legend(
        handles, labels, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, handlelength=1.4, columnspacing=1.2
    )
    for handle in found.legend_handles:
        if hasattr(handle, "set_sizes"):
            handle.set_sizes([14.0])
            handle.set_alpha(0.8)
