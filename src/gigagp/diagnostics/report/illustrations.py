"""The pictures of a report: of the function, by the number of its inputs, and of the learning."""

from __future__ import annotations

from typing import Any

import numpy as np

from gigagp.diagnostics.report.page import Picture, picture
from gigagp.estimators.description import input_names
from gigagp.model.model import NOISE
from gigagp.optimization.history_plot import draw_history
from gigagp.plots.axes import plain
from gigagp.plots.classes import class_curves, class_map
from gigagp.plots.curves import draw_curve
from gigagp.plots.dependence import draw_dependence, partial_dependence_values
from gigagp.plots.importance import relevance, relevance_values
from gigagp.plots.maps import Grid
from gigagp.plots.surfaces import draw_map
from gigagp.plots.view import Axis, Rows, View

#: Inputs whose dependence is drawn.
_DEPENDENCES = 4
#: Points along each axis of a map of classes.
_MAP_POINTS = 160


def of_the_function(view: View, X: Any, test: Rows, label: str | None, *, every: bool = False) -> list[Picture]:
    """Return pictures of the function, or of every class of a classifier, and of what each input does.

    They show the training rows, or the test rows if the model does not keep them.
    """
    name = view.label(label)
    numeric = len(view.axes) == len(view.columns)
    found = []
    if numeric and len(view.axes) == 1:
        found.append(_curve(view, test, label, every))
    if numeric and len(view.axes) == 2:
        found += _maps(view, test, label, every)
    if len(view.columns) > 1:
        found += _of_the_inputs(view, X, label, name)
    return found


def _shown(view: View, test: Rows) -> tuple[Rows, str]:
    return (test, "test rows") if view.rows is None else (view.rows, "training rows")


def _curve(view: View, test: Rows, label: str | None, every: bool) -> Picture:
    axis, (rows, words) = view.axes[0], _shown(view, test)
    values = test.X[:, axis.places[0]]
    low, high = view.range_of(axis)
    low, high = min(low, float(values.min())), max(high, float(values.max()))

    def draw(ax: Any) -> None:
        if every:
            class_curves(view, rows, ax=ax, lower=low, upper=high)
        else:
            draw_curve(ax, view, view.drawn(rows), low=low, high=high, label=label)

    if every:
        alt, what = f"Curves of the probability of each class against {axis.name}.", "Probabilities with bands of 95 %"
    else:
        alt = f"Curve of {view.label(label)} against {axis.name} with bands of 50 and 95 percent."
        what = f"{'Probability' if view.is_classifier else 'Mean'} with bands of 50 and 95 % of {view.noun}"
    points = f", and the {words}" if view.drawn(rows) is not None else ""
    return picture(draw, alt, f"{what}{points}.", height=4.8)


def _maps(view: View, test: Rows, label: str | None, every: bool) -> list[Picture]:
    pair, (rows, words) = f"{view.axes[0].name} and {view.axes[1].name}", _shown(view, test)
    ends = np.array([view.range_of(axis) for axis in view.axes]).T
    if not view.knows_places:
        ends = np.array([[f(test.X[:, axis.places[0]]) for axis in view.axes] for f in (np.min, np.max)])
    grid = Grid.of(view, None, None, ends[0], ends[1], _MAP_POINTS)
    drawn = view.drawn(rows)
    points = f", with the {words}" if drawn is not None else ""
    if every:
        probability = view.probabilities(next(grid.points(view)))

        def draw(ax: Any, *, named: bool) -> None:
            class_map(ax, view, grid, probability, rows, "auto", level=0.0, named=named)

        return [
            picture(
                lambda ax: draw(ax, named=True),
                f"Map of the most probable class over {pair}.",
                f"Most probable class, stronger where it is more certain{points}.",
            ),
            picture(
                lambda ax: draw(ax, named=False),
                f"Map of the probability of the most probable class over {pair}.",
                "Probability of the most probable class: dark where several classes are likely.",
            ),
        ]
    values, name = grid.values(view), view.label(label)
    what = "Probability, with a line where it is one half" if view.is_classifier else "Mean"
    return [
        picture(
            lambda ax: draw_map(ax, view, values, drawn, quantity="mean", label=label),
            f"Map of the {'' if view.is_classifier else 'mean of '}{name} over {pair}.",
            f"{what}{points}.",
        ),
        picture(
            lambda ax: draw_map(ax, view, values, drawn, quantity="std", label=label),
            f"Map of the standard deviation of {name} over {pair}.",
            f"Standard deviation of {view.noun}: bright where little is known.",
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
            f"Sensitivity: the share of the {noun}'s variance that remains while one input is unknown, over the "
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
    names = input_names(view.regressor, view.names)
    options: dict[str, Any] = {"inputs": None if names is None else [plain(name) for name in names]}
    options["hidden"] = () if view.has_noise else (NOISE,)
    return [
        picture(
            lambda ax: draw_history(steps, "hyperparameters", ax, **options),
            f"Lines of hyperparameters over {len(steps)} steps, as multiples of their last values.",
            "Hyperparameters as multiples of their last values. Lines that are flat at the end have settled.",
            height=4.6,
        ),
        picture(
            lambda ax: draw_history(steps, "gradient", ax),
            f"Norm of the gradient over {len(steps)} steps, at the end {steps[-1].gradient_norm:.2g} nats per row.",
            "Norm of the gradient for each row. Stages that use other rows or approximations do not compare exactly.",
        ),
    ]
