"""The pictures of a report: of the function, by the number of its inputs, and of the learning."""

from __future__ import annotations

from typing import Any

import numpy as np

from gigagp.optimization.history_plot import draw_history
from gigagp.plots.classes import class_curves, class_map
from gigagp.plots.curves import curve
from gigagp.plots.dependence import draw_dependence, partial_dependence_values
from gigagp.plots.importance import relevance, relevance_values
from gigagp.plots.maps import Grid
from gigagp.plots.surfaces import surface
from gigagp.plots.view import Axis, View
from gigagp.reports.page import Picture, picture

#: Inputs whose dependence is drawn.
_DEPENDENCES = 4
#: Points along each axis of a map of classes.
_MAP_POINTS = 160


def of_the_function(view: View, X: Any, test: np.ndarray, label: str | None, *, every: bool = False) -> list[Picture]:
    """Return pictures of the function, or of every class of a classifier, and of what each input does."""
    name = view.label(label)
    numeric = len(view.axes) == len(view.columns)
    found = []
    if numeric and len(view.axes) == 1:
        axis = view.axes[0]
        values = test[:, axis.places[0]]
        low, high = view.range_of(axis)
        ends = min(low, float(values.min())), max(high, float(values.max()))
        alt = f"Curve of {name} against {axis.name} with bands of 50 and 95 percent."
        of, points = f"bands of 50 and 95 % of {view.noun}", "and the rows of the fit if the model keeps them"
        if every:
            of, alt = "bands of 95 %", f"Curves of the probability of each class against {axis.name}."
        caption = f"{'Probability' if view.is_classifier else 'Mean'} with {of}, {points}."

        def draw(ax: Any) -> None:
            if every:
                class_curves(view, None, None, ax=ax, lower=ends[0], upper=ends[1])
                return
            curve(view.model, ax=ax, lower=ends[0], upper=ends[1], target=view.target, label=label)

        found.append(picture(draw, alt, caption, height=4.8))
    if numeric and len(view.axes) == 2 and every:
        found += _of_classes(view)
    elif numeric and len(view.axes) == 2:
        pair = f"{view.axes[0].name} and {view.axes[1].name}"
        what = "Probability, with a line where it is one half" if view.is_classifier else "Mean"
        found += [
            picture(
                lambda ax: surface(view.model, ax=ax, target=view.target, label=label),
                f"Map of the {'' if view.is_classifier else 'mean of '}{name} over {pair}.",
                f"{what}, with the rows of the fit if the model keeps them.",
            ),
            picture(
                lambda ax: surface(view.model, ax=ax, target=view.target, label=label, quantity="std"),
                f"Map of the standard deviation of {name} over {pair}.",
                f"Standard deviation of {view.noun}: bright where little is known.",
            ),
        ]
    if len(view.columns) > 1:
        found += _of_the_inputs(view, X, label, name)
    return found


def _of_classes(view: View) -> list[Picture]:
    grid = Grid.of(view, None, None, None, None, _MAP_POINTS)
    values = view.probabilities(next(grid.points(view)))
    pair = f"{view.axes[0].name} and {view.axes[1].name}"

    def draw(ax: Any, named: bool) -> None:
        class_map(ax, view, grid, values, view.rows, "auto", level=0.0, named=named)

    return [
        picture(
            lambda ax: draw(ax, True),
            f"Map of the most probable class over {pair}.",
            "Most probable class, stronger where it is surer, with the rows of the fit if the model keeps them.",
        ),
        picture(
            lambda ax: draw(ax, False),
            f"Map of the probability of the most probable class over {pair}.",
            "Probability of the most probable class: dark where several classes are likely.",
        ),
    ]


def _of_the_inputs(view: View, X: Any, label: str | None, name: str) -> list[Picture]:
    values = relevance_values(view.model, X, target=view.target)
    has_shares = bool(np.isfinite(values.sensitivity).all())
    weight = values.sensitivity if has_shares else values.lengthscales_in_spread
    order = np.argsort(-weight, kind="stable")
    best = ", ".join(values.names[k] for k in order[:3])
    height = 1.6 + 0.25 * min(len(order), 15)

    def bars(quantity: str, alt: str, caption: str) -> Picture:
        return picture(lambda ax: relevance(view.model, ax=ax, quantity=quantity, found=values), alt, caption, height)

    found = []
    if has_shares:
        noun = view.noun.removeprefix("the ")
        caption = (
            f"Sensitivity: the share of the {noun}'s variance that stays unknown while one input is unknown, over the "
            "test rows. Shares can add up to more than one."
        )
        alt = f"Bars of the sensitivity of each input; the largest are {best}."
        found.append(bars("sensitivity", alt, caption))
    if np.isfinite(values.lengthscale).any():
        caption = "Inverse lengthscales: the function changes faster along inputs with longer bars, though not by more."
        alt = "Bars of the inverse lengthscale of each input, with the lengthscale in its own units."
        found.append(bars("lengthscale", alt, caption))
    for k in order[:_DEPENDENCES]:
        found.append(_dependence(view, view.columns[k], X, label, name))
    return found


def _dependence(view: View, axis: Axis, X: Any, label: str | None, name: str) -> Picture:
    values = partial_dependence_values(view.model, axis.number, X, target=view.target)
    low, high = float(values.mean.min()), float(values.mean.max())
    return picture(
        lambda ax: draw_dependence(ax, view, axis, values, label),
        f"Mean of {name} over test rows against {axis.name}, between {low:.3g} and {high:.3g}.",
        f"Partial dependence on {axis.name}: mean over {values.n_rows} test rows, with bands of 50 and 95 %.",
        height=3.6,
    )


def of_the_history(view: View) -> list[Picture]:
    """Return pictures of the learning; none where nothing was learned."""
    steps = view.regressor.history_.steps
    if len(steps) < 2:
        return []
    return [
        picture(
            lambda ax: draw_history(steps, "hyperparameters", ax),
            f"Lines of hyperparameters over {len(steps)} steps, as multiples of their last values.",
            "Hyperparameters as multiples of their last values. Lines that are flat at the end have settled.",
            height=4.6,
        ),
        picture(
            lambda ax: draw_history(steps, "gradient", ax),
            f"Norm of the gradient over {len(steps)} steps, at the end {steps[-1].gradient_norm:.2g} nats a row.",
            "Norm of the gradient for each row. Stages that use other rows or approximations do not compare exactly.",
        ),
    ]
