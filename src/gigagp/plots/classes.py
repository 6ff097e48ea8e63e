"""Pictures of classifiers: the classes of points, and whether probabilities and predicted classes are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.plots.axes import LEVELS, OPACITIES, below, dress, mark_ends, plain, thinned
from gigagp.plots.checks import chance_band
from gigagp.plots.curves import points_needed
from gigagp.plots.maps import Grid, ends_of
from gigagp.plots.surfaces import Aspect, eastward, frame
from gigagp.plots.view import Rows, View
from gigagp.settings.fields import checks_arguments
from gigagp.storage.figures import BLUE, CYCLE, GUIDE, INK, VALUES, axes_or_new, style

#: Largest number of groups of probabilities, and smallest number of rows in a group.
_BINS, _IN_A_BIN = 10, 10
#: Largest numbers of classes in a confusion matrix, data points on a map, and points of a curve.
_MOST_CLASSES, _SHOWN, _MOST_POINTS = 12, 3000, 2000
#: How strong the colour of a class is where it is as likely as chance, and where it is certain.
_WEAK, _FULL = 0.12, 0.9
_WIDE = (LEVELS[0], LEVELS[-1])


def _tested(model: Any, X: Any, y: Any, what: str) -> tuple[View, np.ndarray, np.ndarray]:
    """Return the view, the numbers of the classes of rows, and their probabilities, shape (n, n_classes)."""
    view = View(model)
    if not view.is_classifier:
        raise InvalidInputError(f"{what} is a picture of a GPClassifier; got {type(model).__name__}.")
    rows = view.given(X, y)
    found = view.probabilities(rows.X)
    return view, rows.y, np.stack([1 - found, found], 1) if found.ndim == 1 else found


@checks_arguments
def reliability(model: Any, X: Any, y: Any, *, ax: Any = None) -> Any:
    """Draw how often a class occurs against its predicted probability, in groups of equally many rows.

    Of two classes it is the probability of the second one, ``model.classes_[1]``; of more, that of the predicted class.
    Calibrated probabilities are on the diagonal. Grey bars contain 95 % of what calibrated probabilities give by
    chance, for each group on its own. Ticks below are the probabilities of the rows.

    Parameters
    ----------
    model : GPClassifier
        A fitted model.
    X, y : array-like of shape (m, d) and (m,)
        Test rows and their labels.
    ax : matplotlib axes, optional
        Where to draw. None: a new figure.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InvalidInputError
        If matplotlib is missing, the model is no fitted classifier, or the rows do not suit it.
    """
    view, codes, probability = _tested(model, X, y, "reliability")
    with style():
        ax = axes_or_new(ax, 4.8, 4.8)
        draw_reliability(ax, view.classes, codes, probability)
    return ax


def draw_reliability(ax: Any, classes: Sequence[Any], codes: np.ndarray, probability: np.ndarray) -> None:
    """Draw the picture of `reliability` from numbers of classes and probabilities, shape (n, n_classes)."""
    if len(classes) == 2:
        stated, happened = probability[:, 1], codes == 1
        words = f"probability of {classes[1]} (%)", f"rows that are {classes[1]} (%)"
    else:
        stated, happened = probability.max(1), probability.argmax(1) == codes
        words = "probability of the predicted class (%)", "rows of the predicted class (%)"
    order = np.argsort(stated, kind="stable")
    groups = np.array_split(order, min(_BINS, max(len(order) // _IN_A_BIN, 1)))
    x = np.array([stated[group].mean() for group in groups])
    shares = np.array([happened[group].mean() for group in groups])
    bands = [chance_band(len(group), np.array([p])) for group, p in zip(groups, x, strict=True)]
    low, high = (np.array([float(band[k][0]) for band in bands]) for k in (0, 1))
    ax.plot([0, 100], [0, 100], color=GUIDE, linewidth=0.8)
    ax.vlines(100 * x, 100 * low, 100 * high, color="#BBBBBB", linewidth=6, label="by chance, 95 %")
    ax.plot(100 * x, 100 * shares, "o-", color=BLUE, markersize=5, linewidth=1.2, label=f"{len(groups)} groups of rows")
    shown, _ = thinned(np.arange(len(stated)), 1000)
    ax.vlines(100 * stated[shown], 0, 0.03, transform=ax.get_xaxis_transform(), color=GUIDE, linewidth=0.6, alpha=0.5)
    least = 0.0 if len(classes) == 2 else max(100 * min(x.min(), shares.min(), low.min()) - 8, 0)
    ax.set_xlim(least - 1, 101)
    ax.set_ylim(least - 4, 101)
    ax.set_aspect("equal")
    ax.set_xlabel(plain(words[0]))
    ax.set_ylabel(plain(words[1]))
    below(ax)


@checks_arguments
def confusion(model: Any, X: Any, y: Any, *, ax: Any = None) -> Any:
    """Draw how many rows of each class get each class as the most probable one.

    Rows of the table are true classes and columns are predicted ones; colours are shares of the true class. Of more
    than twelve classes, it has those that are confused most often.

    Parameters
    ----------
    model, X, y, ax
        As for `reliability`.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InvalidInputError
        As for `reliability`.
    """
    view, codes, probability = _tested(model, X, y, "confusion")
    with style():
        ax = axes_or_new(ax, 4.8, 4.4)
        draw_confusion(ax, view.classes, codes, probability)
    return ax


def draw_confusion(ax: Any, classes: Sequence[Any], codes: np.ndarray, probability: np.ndarray) -> None:
    """Draw the picture of `confusion` from numbers of classes and probabilities, shape (n, n_classes)."""
    k = len(classes)
    counts = np.bincount(k * codes + probability.argmax(1), minlength=k * k).reshape(k, k)
    wrong = counts.sum(0) + counts.sum(1) - 2 * np.diag(counts)
    kept = np.sort(np.argsort(-wrong, kind="stable")[:_MOST_CLASSES])
    shares = (counts / np.maximum(counts.sum(1, keepdims=True), 1))[np.ix_(kept, kept)]
    ax.pcolormesh(shares, cmap="Blues", vmin=0, vmax=1, edgecolors="white", linewidth=1)
    for row, share in enumerate(shares):
        for column, part in enumerate(share):
            words = f"{counts[kept[row], kept[column]]:,}"
            if len(kept) <= 5 and counts[kept[row]].sum():
                words += f"\n{100 * part:.0f} %"
            ax.text(
                column + 0.5, row + 0.5, words, ha="center", va="center", color="white" if part > 0.55 else INK,
                fontsize="medium" if len(kept) <= 5 else "small",
            )  # fmt: skip
    names = [plain(text if len(text := str(classes[place])) <= 14 else f"{text[:13]}…") for place in kept]
    places = np.arange(len(kept)) + 0.5
    turned = len(kept) > 3 and max(map(len, names)) > 4
    ax.set_xticks(places, names, rotation=45 if turned else 0, ha="right" if turned else "center", fontsize="small")
    ax.set_yticks(places, names, fontsize="small")
    ax.invert_yaxis()
    ax.set_aspect("equal")
    ax.tick_params(length=0)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.set_xlabel("most probable class")
    ax.set_ylabel("true class")
    if len(kept) < k:
        ax.set_title(f"the {len(kept)} of {k} classes that are confused most", fontsize=9, color=GUIDE)


def colours(count: int) -> np.ndarray:
    """Return a colour for each class, shape (count, 3); up to six are told apart with any colour vision."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb

    if count <= len(CYCLE):
        return np.array([to_rgb(one) for one in CYCLE[:count]])
    return np.asarray(colormaps["turbo"](np.linspace(0.05, 0.95, count)))[:, :3]


def class_curves(
    view: View, rows: Rows | None, *, ax: Any, lower: Any = None, upper: Any = None, resolution: int | None = None
) -> None:
    """Draw the probabilities of all classes along one input, with bands of 95 %."""
    axis = view.axes[0]
    low, high = ends_of(view, axis, lower, upper)
    needed = min(points_needed(view, axis, high - low), _MOST_POINTS) if resolution is None else resolution
    values = np.linspace(low, high, needed)
    points = view.points([axis], values[:, None])
    probability, x = view.probabilities(points), axis.shown(values)
    for k, colour in enumerate(colours(len(view.classes))):
        bands = View(view.model, k).quantiles(points, _WIDE)
        ax.fill_between(x, bands[:, 0], bands[:, 1], color=colour, alpha=OPACITIES[0], linewidth=0)
        ax.plot(x, probability[:, k], color=colour, linewidth=1.6, label=plain(str(view.classes[k])))
        if rows is not None:
            here = rows.X[rows.y == k][:, axis.places[0]]
            here = here[(here >= low) & (here <= high)]
            shown, _ = thinned(here, 1000)
            foot = -0.02 - 0.02 * k  # a line of ticks for each class
            ax.vlines(axis.shown(shown), foot - 0.015, foot, color=colour, linewidth=0.7)
    mark_ends(ax, axis, view.range_of(axis), low, high)
    ax.set_xlim(x[0], x[-1])
    ax.set_ylim(-0.05 - (0.02 * len(view.classes) if rows is not None else 0), 1.03)
    dress(ax.xaxis, axis)
    ax.set_ylabel("probability (bands of 95 %)")
    below(ax)


def class_map(
    ax: Any, view: View, grid: Grid, values: np.ndarray, rows: Rows | None, aspect: Aspect, *, level: float, named: bool
) -> None:
    """Draw one slice of a grid from the probabilities at its points, (r * r, n_classes).

    The map is of the most probable class, with the rows, if ``named``, and else of its probability.
    """
    axes, places, values = eastward(view, grid.names, grid.axes, values.reshape(*grid.shape, -1))
    x, y = (axis.shown(one) for axis, one in zip(axes, places, strict=True))
    best, sure, chance = values.argmax(2), values.max(2), 1 / len(view.classes)
    end = "" if grid.across is None else f", {plain(grid.across)} = {level:.4g}"
    if named:
        palette = colours(len(view.classes))
        strength = _WEAK + (_FULL - _WEAK) * np.clip((sure - chance) / (1 - chance), 0, 1)
        image = 1 - (1 - palette[best]) * strength[..., None]
        ax.pcolormesh(x, y, image.swapaxes(0, 1), shading="nearest", rasterized=True)
        frame(ax, axes, places, aspect)
        _name_regions(ax, view, x, y, best, sure)
        if rows is not None and grid.across is None:  # rows of all slices would cover each of them
            _draw_rows(ax, view, axes, rows, palette)
        ax.set_title(f"most probable class{end}")
        return
    mesh = ax.pcolormesh(x, y, sure.T, cmap=VALUES, vmin=chance, vmax=1, shading="nearest", rasterized=True)
    frame(ax, axes, places, aspect)
    bar = ax.figure.colorbar(mesh, cax=ax.inset_axes((1.03, 0.0, 0.045, 1.0)))
    bar.set_label("probability")
    ax.set_title(f"probability of that class{end}")


def _name_regions(ax: Any, view: View, x: np.ndarray, y: np.ndarray, best: np.ndarray, sure: np.ndarray) -> None:
    """Write the name of each class within its region, so that nobody has to tell colours apart."""
    from matplotlib.patheffects import withStroke

    for k, name in enumerate(view.classes):
        cells = np.argwhere(best == k)
        if len(cells) < 0.01 * best.size:
            continue
        weight = sure[best == k]
        middle = (cells * weight[:, None]).sum(0) / weight.sum()
        i, j = cells[((cells - middle) ** 2).sum(1).argmin()]  # a cell of the region, however it is shaped
        halo = [withStroke(linewidth=2.5, foreground="white")]
        ax.text(
            x[i], y[j], plain(str(name)), ha="center", va="center", fontsize=9, color=INK, path_effects=halo, zorder=4
        )


def _draw_rows(ax: Any, view: View, axes: Any, rows: Rows, palette: np.ndarray) -> None:
    kept, _ = thinned(np.arange(len(rows.y)), _SHOWN)
    size = float(np.clip(6000 / max(len(kept), 1), 3, 18))
    for k, colour in enumerate(palette):
        chosen = kept[rows.y[kept] == k]
        x, y = (axis.shown(rows.X[chosen, axis.places[0]]) for axis in axes)
        ax.scatter(x, y, s=size, color=[colour], edgecolors=INK, linewidths=0.5, rasterized=len(kept) > 500)
