"""Pictures that show whether predictions are right: residuals, and calibration."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import binom

from gigagp.plots.axes import below, plain, thinned
from gigagp.plots.measured import Predicted, predicted
from gigagp.settings.fields import CountOrZero, checks_arguments
from gigagp.storage.figures import BLUE, GUIDE, INK, ORANGE, axes_or_new, style

#: Most points of a picture, and bins of the running mean.
_SHOWN, _BINS = 10_000, 12


@checks_arguments
def residuals(
    model: Any,
    X: Any = None,
    y: Any = None,
    *,
    ax: Any = None,
    label: str | None = None,
    target: CountOrZero = 0,
    found: Predicted | None = None,
) -> Any:
    """Draw residuals against predictions, both in the target's units.

    Grey lines are at twice the typical standard deviation of a prediction. The orange points are means of residuals
    over groups of equal size with two standard errors: a trend in them is what the model has missed.

    Parameters
    ----------
    model : GPRegressor
        A fitted model.
    X, y : array-like, optional
        Test rows. None: the training rows, each predicted from all others.
    ax : matplotlib axes, optional
        Where to draw. None: a new figure.
    label : str, optional
        Name of the target, with its unit.
    target : int, default 0
        Number of the target, from 0.
    found : Predicted, optional
        Predictions of an earlier call of `gigagp.plots.predicted`.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InvalidInputError
        If matplotlib is missing, or for an error of `gigagp.plots.predicted`.
    """
    found = predicted(model, X, y, target=target) if found is None else found
    left = found.y - found.mean
    name = plain(label or "target")
    with style():
        ax = axes_or_new(ax)
        kept, words = thinned(np.arange(found.n), _SHOWN)
        size, alpha = float(np.clip(6000 / len(kept), 2, 16)), float(np.clip(600 / len(kept), 0.2, 0.7))
        ax.scatter(
            found.mean[kept],
            left[kept],
            s=size,
            alpha=alpha,
            color=BLUE,
            linewidth=0,
            rasterized=len(kept) > 500,
            label=f"{found.n:,} rows" if not words else words.strip(" ()"),
        )
        ax.axhline(0, color=INK, linewidth=0.8)
        spread = 2 * float(np.median(found.std))
        for side in (-spread, spread):
            ax.axhline(
                side,
                color=GUIDE,
                linewidth=0.8,
                linestyle="--",
                label="± 2 predicted std (median)" if side > 0 else None,
            )
        _group_means(ax, found.mean, left)
        ax.set_xlabel(f"predicted {name}")
        ax.set_ylabel("measured minus predicted")
        far = float(np.quantile(np.abs(left), 0.999))
        reach = 1.1 * max(far, 1.3 * spread)
        hidden = int((np.abs(left) > reach).sum())
        if reach > 0:
            ax.set_ylim(-reach, reach)
        if hidden:
            ax.annotate(
                f"{hidden} beyond",
                (1, 1),
                xycoords="axes fraction",
                ha="right",
                va="bottom",
                fontsize="small",
                color=GUIDE,
            )
        below(ax)
    return ax


def _group_means(ax: Any, mean: np.ndarray, left: np.ndarray) -> None:
    if len(mean) < 5 * _BINS:
        return
    groups = np.array_split(np.argsort(mean, kind="stable"), _BINS)
    x = [float(mean[group].mean()) for group in groups]
    centre = [float(left[group].mean()) for group in groups]
    error = [2 * float(left[group].std(ddof=1)) / np.sqrt(len(group)) for group in groups]
    ax.errorbar(x, centre, error, fmt="o-", color=ORANGE, markersize=4, linewidth=1.2, label="mean ± 2 standard errors")


@checks_arguments
def calibration(
    model: Any,
    X: Any = None,
    y: Any = None,
    *,
    ax: Any = None,
    target: CountOrZero = 0,
    found: Predicted | None = None,
) -> Any:
    """Draw the share of measurements inside central intervals against the probability of these intervals.

    A calibrated model is on the diagonal. The grey band holds 95 % of the shares that a calibrated model has by chance
    with this many independent rows, for each probability separately. Below the diagonal, intervals are too narrow.

    Parameters
    ----------
    model, X, y, ax, target, found
        As for `residuals`.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InvalidInputError
        As for `residuals`.
    """
    found = predicted(model, X, y, target=target) if found is None else found
    levels = np.linspace(0, 1, 101)
    shares = np.array([found.share_inside(level) for level in levels])
    low, high = chance_band(found.n, levels)
    with style():
        ax = axes_or_new(ax, 4.8, 4.6)
        ax.fill_between(
            100 * levels,
            100 * low,
            100 * high,
            color="#BBBBBB",
            alpha=0.6,
            linewidth=0,
            label=f"by chance, {found.n:,} rows",
        )
        ax.plot([0, 100], [0, 100], color=GUIDE, linewidth=0.8)
        ax.plot(100 * levels, 100 * shares, color=BLUE, linewidth=1.6, label="this model")
        ax.annotate("too wide", (0.06, 0.9), xycoords="axes fraction", fontsize="small", color=GUIDE)
        ax.annotate("too narrow", (0.94, 0.06), xycoords="axes fraction", fontsize="small", color=GUIDE, ha="right")
        ax.set_xlim(0, 100)
        ax.set_ylim(0, 100)
        ax.set_aspect("equal")
        ax.set_xlabel("probability of the interval (%)")
        ax.set_ylabel("rows inside (%)")
        below(ax)
    return ax


def chance_band(n: int, levels: np.ndarray, probability: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Return the central part of the shares of n independent rows, each of which is inside with a probability."""
    low, high = (binom.ppf(q, n, levels) / n for q in (0.5 - 0.5 * probability, 0.5 + 0.5 * probability))
    return np.where(levels <= 0, 0.0, low), np.where(levels >= 1, 1.0, high)
