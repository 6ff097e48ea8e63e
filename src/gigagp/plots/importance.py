"""How much each input matters: by its lengthscale, and by its share of the function's variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.kernels import Leaf
from gigagp.kernels.geometry import EARTH_RADIUS
from gigagp.plots.axes import plain
from gigagp.plots.view import Axis, View
from gigagp.settings.fields import CountOrZero, Range, checks_arguments
from gigagp.storage.figures import BLUE, GUIDE, ORANGE, axes_or_new, style

#: Most inputs that a picture shows; of more, those that matter most.
_SHOWN = 15


@dataclass(frozen=True)
class Relevance:
    """How much each column matters. Columns are in the order of the table.

    Attributes
    ----------
    names : list of str
        Names of the columns.
    lengthscale : ndarray of shape (k,)
        Shortest lengthscale of the kernel along each column, in the units of `units`; infinity where there is none.
        Along turned axes (``metric="rotated"``) it is that of a step along the column alone.
    units : list of str
        ``"km"`` for longitudes and latitudes of a kernel on the sphere (``metric="haversine"``); else empty, for the
        column's own unit.
    inverse : ndarray of shape (k,)
        Inverse lengthscale in these units.
    lengthscales_in_spread : ndarray of shape (k,)
        Standard deviation of the column over its lengthscale, so that columns in different units compare.
    sensitivity : ndarray of shape (k,)
        Total sensitivity: the share of the variance of the posterior mean that remains if all other columns are known.
        NaN where no rows are known.
    standard_error : ndarray of shape (k,)
        Standard errors of the shares, from the draw of the rows.
    """

    names: list[str]
    lengthscale: np.ndarray
    units: list[str]
    inverse: np.ndarray
    lengthscales_in_spread: np.ndarray
    sensitivity: np.ndarray
    standard_error: np.ndarray


@checks_arguments
def relevance_values(
    model: Any,
    X: Any = None,
    *,
    target: CountOrZero = 0,
    n_rows: Annotated[int, Range(least=2)] = 400,
    random_state: CountOrZero = 0,
) -> Relevance:
    """Return how much each column matters, by lengthscales and by sensitivity.

    A short lengthscale says that the function changes quickly along a column, and not by how much. The total
    sensitivity does: ``E[(f(x) - f(x'))^2] / (2 Var f(x))``, where ``x'`` has the column of another row (Jansen 1999;
    Saltelli et al. 2010, Table 2). It takes columns as independent; where they are not, some of these rows cannot
    occur. The function is the posterior mean, so that the standard errors do not include what is unknown about it.

    Parameters
    ----------
    model : GPRegressor or GPClassifier
        A fitted model. Of a classifier, the function is the probability of a class.
    X : array-like, optional
        Rows. None: the training rows, if the model keeps them.
    target : int, default 0
        Number of the target, from 0.
    n_rows : int, default 400
        Most rows, and pairs of rows; of more, some are drawn at random.
    random_state : int, default 0
        Seed of the draws.

    Raises
    ------
    InvalidInputError
        If there is no such target, or an argument is invalid.

    References
    ----------
    M. J. W. Jansen, "Analysis of variance designs for model output", Computer Physics Communications 117 (1999),
    https://doi.org/10.1016/S0010-4655(98)00154-4. A. Saltelli et al., "Variance based sensitivity analysis of model
    output", Computer Physics Communications 181 (2010), https://doi.org/10.1016/j.cpc.2009.09.018.
    """
    view = View(model, target)
    kilometres = _kilometres(view)
    lengths = np.array([_lengthscale(view, axis, kilometres) for axis in view.columns])
    places = [axis.places[0] for axis in view.columns]
    spreads = np.array([view.regressor.scaling_.x_scale[place] * kilometres.get(place, 1.0) for place in places])
    units = ["km" if place in kilometres else "" for place in places]
    rows = view.inputs(X) if X is not None else None if view.rows is None else view.rows.X
    share = error = np.full(len(view.columns), np.nan)
    if rows is not None and len(rows) > 1:
        share, error = _sensitivity(view, rows, n_rows, random_state)
    names = [axis.name for axis in view.columns]
    return Relevance(names, lengths, units, 1 / lengths, spreads / lengths, share, error)


def _kilometres(view: View) -> dict[int, float]:
    """Return how many km a degree has, in the middle of the rows, for the longitudes and latitudes of the kernel."""
    scaling, places, found = view.regressor.scaling_, view.regressor.posterior_.places(), {}
    for leaf in view.regressor.posterior_.model.kernel.leaves():
        if getattr(leaf, "metric", "euclidean") == "haversine":
            longitude, latitude = _active(view, leaf)[:2]
            degree = float(np.radians(EARTH_RADIUS))
            middle = scaling.x_centre[latitude]
            if len(places):
                middle += scaling.x_scale[latitude] * float(places[:, latitude].double().mean())
            found[latitude] = degree
            found[longitude] = degree * float(np.cos(np.radians(middle)))
    return found


def _active(view: View, leaf: Leaf) -> Sequence[int]:
    return range(len(view.regressor.scaling_.x_scale)) if leaf.columns is None else leaf.columns


def _lengthscale(view: View, axis: Axis, kilometres: dict[int, float]) -> float:
    """Return the shortest lengthscale along a column, in own units or km."""
    found = np.inf
    kernel = view.regressor.posterior_.model.kernel.in_own_units(view.regressor.scaling_.units())
    for leaf in kernel.leaves():
        if leaf.units.get("lengthscale") != "input":
            continue
        metric = getattr(leaf, "metric", "euclidean")
        parameters = {name: value.double().cpu().numpy().reshape(-1) for name, value in leaf.parameters().items()}
        values, active = parameters["lengthscale"], _active(view, leaf)
        for position, column in enumerate(active):
            if column not in axis.places:
                continue
            if metric == "haversine":  # longitude and latitude share the first lengthscale
                found = min(found, float(values[max(position - 1, 0)]))
            elif metric == "rotated" and position < 2:
                turn = np.radians(float(parameters["angle"][0])) + (np.pi / 2 if position else 0.0)
                found = min(found, float(1 / np.hypot(np.cos(turn) / values[0], np.sin(turn) / values[1])))
            else:
                group = position if leaf.groups is None else leaf.groups[position]
                value = float(values[group] if len(values) > 1 else values[0])
                found = min(found, value * kilometres.get(column, 1.0))
    return found


def _sensitivity(view: View, rows: np.ndarray, n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return total sensitivities and their standard errors, each of shape (k,)."""
    rng = np.random.default_rng(seed)
    count = min(len(rows), n_rows)
    base = rows[rng.choice(len(rows), count, replace=False)]
    shift = 1 + rng.integers(count - 1, size=count)  # another row for each row, and not the row itself
    others = base[(np.arange(count) + shift) % count]
    tables = [base]
    for axis in view.columns:
        changed = base.copy()
        changed[:, list(axis.places)] = others[:, list(axis.places)]
        tables.append(changed)
    values = view.mean(np.concatenate(tables)).reshape(len(tables), count)
    squares = 0.5 * (values[1:] - values[0]) ** 2  # (k, n)
    deviations = (values[0] - values[0].mean()) ** 2
    variance = deviations.mean()
    if not variance > 0:
        return np.zeros(len(squares)), np.zeros(len(squares))
    share = squares.mean(1) / variance
    # The delta method for a ratio of means over the same rows.
    residual = (squares - share[:, None] * deviations) / variance
    return share, residual.std(1, ddof=1) / np.sqrt(count)


def relevance(
    model: Any, X: Any = None, *, ax: Any = None, quantity: str = "auto", found: Relevance | None = None, **options: Any
) -> Any:
    """Draw how much each input matters, with the most important one at the top.

    Parameters
    ----------
    model, X
        As for `relevance_values`.
    ax : matplotlib axes, optional
        Where to draw. None: a new figure.
    quantity : {"auto", "sensitivity", "lengthscale"}, default "auto"
        ``"sensitivity"``: shares of the function's variance with two standard errors. ``"lengthscale"``: lengthscales
        for each standard deviation of the column, with the lengthscale in the column's own units beside it. ``"auto"``:
        sensitivity where rows are known.
    found : Relevance, optional
        Values of an earlier call of `relevance_values`.
    **options
        Further arguments of `relevance_values`.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InvalidInputError
        If matplotlib is missing, sensitivity is asked for without rows, or for an error of `relevance_values`.
    """
    if quantity not in ("auto", "sensitivity", "lengthscale"):
        msg = f'quantity of relevance must be "auto", "sensitivity" or "lengthscale"; got {quantity!r}.'
        raise InvalidInputError(msg)
    found = relevance_values(model, X, **options) if found is None else found
    is_known = bool(np.isfinite(found.sensitivity).all())
    if quantity == "sensitivity" and not is_known:
        raise InvalidInputError("relevance of a model that does not keep its rows needs X for the sensitivity.")
    by_share = quantity == "sensitivity" or (quantity == "auto" and is_known)
    values = found.sensitivity if by_share else np.nan_to_num(found.lengthscales_in_spread)
    order = np.argsort(-values, kind="stable")[:_SHOWN][::-1]
    with style():
        ax = axes_or_new(ax, 6.4, 1.2 + 0.32 * len(order))
        places = np.arange(len(order))
        ax.barh(places, values[order], color=BLUE, height=0.62)
        ax.set_yticks(places, [plain(found.names[k]) for k in order])
        top = float(values[order].max()) or 1.0
        if by_share:
            ends = values[order] + 2 * found.standard_error[order]
            ax.errorbar(
                values[order], places, xerr=2 * found.standard_error[order], fmt="none", color=ORANGE, capsize=2
            )
            ax.set_xlim(0, max(1.08 * float(ends.max()), 1e-9))
            what = "probability" if hasattr(model, "latent_") else "function"
            ax.set_xlabel(f"share of the {what}'s variance\n(± 2 standard errors)")
        else:
            for place, k in zip(places, order, strict=True):
                words = "no lengthscale" if not np.isfinite(found.lengthscale[k]) else f"{found.lengthscale[k]:.3g}"
                words += f" {found.units[k]}" if found.units[k] and np.isfinite(found.lengthscale[k]) else ""
                ax.annotate(
                    words, (values[k], place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
                )
            ax.set_xlim(0, 1.22 * top)
            ax.set_xlabel("standard deviations per lengthscale\n(at the bars: lengthscale in own units)")
        hidden = len(values) - len(order)
        if hidden:
            ax.set_title(f"the {len(order)} of {len(values)} inputs that matter most", fontsize=9, color=GUIDE)
    return ax
