"""The pictures of a report: of the function, by the number of its inputs, and of the learning."""

from __future__ import annotations

from typing import Any

import numpy as np

from gigagp.figures import BLUE, GUIDE
from gigagp.optimization.history_plot import draw_history
from gigagp.plots.checks import chance_band
from gigagp.plots.curves import curve
from gigagp.plots.dependence import draw_dependence, partial_dependence_values
from gigagp.plots.importance import relevance, relevance_values
from gigagp.plots.surfaces import surface
from gigagp.plots.view import Axis, View
from gigagp.reports.page import Picture, picture

#: Inputs whose dependence is drawn.
_DEPENDENCES = 4
#: Groups of probabilities.
_BINS = 10


def of_the_function(view: View, X: Any, test: np.ndarray, label: str | None) -> list[Picture]:
    """Return pictures of the function, and of what each input does."""
    name = label or ("latent function" if view.is_classifier else "target")
    numeric = len(view.axes) == len(view.columns)
    found = []
    if numeric and len(view.axes) == 1:
        axis = view.axes[0]
        values = test[:, axis.places[0]]
        low, high = view.range_of(axis)
        ends = min(low, float(values.min())), max(high, float(values.max()))
        alt = f"Curve of {name} against {axis.name} with bands of 50 and 95 percent."
        caption = "Mean with bands of 50 and 95 % of the function, and the rows of the fit if the model keeps them."

        def draw(ax: Any) -> None:
            curve(view.model, ax=ax, lower=ends[0], upper=ends[1], target=view.target, label=label)

        found.append(picture(draw, alt, caption, height=4.8))
    if numeric and len(view.axes) == 2:
        pair = f"{view.axes[0].name} and {view.axes[1].name}"
        found += [
            picture(
                lambda ax: surface(view.model, ax=ax, target=view.target, label=label),
                f"Map of the mean of {name} over {pair}.",
                "Mean, with the rows of the fit if the model keeps them.",
            ),
            picture(
                lambda ax: surface(view.model, ax=ax, target=view.target, label=label, quantity="std"),
                f"Map of the standard deviation of {name} over {pair}.",
                "Standard deviation of the function: bright where little is known.",
            ),
        ]
    if len(view.columns) > 1:
        found += _of_the_inputs(view, X, label, name)
    return found


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
        caption = (
            "Sensitivity: the share of the function's variance that stays unknown while one input is unknown, over the "
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


def reliability(ax: Any, codes: np.ndarray, probability: np.ndarray) -> None:
    """Draw how often the chosen class is right against its probability, with what chance allows."""
    confidence, right = probability.max(1), probability.argmax(1) == codes
    order = np.argsort(confidence, kind="stable")
    groups = [group for group in np.array_split(order, min(_BINS, max(len(order) // 10, 1))) if len(group)]
    x = np.array([confidence[group].mean() for group in groups])
    shares = np.array([right[group].mean() for group in groups])
    low, high = np.array([chance_band(len(group), np.array([p])) for group, p in zip(groups, x, strict=True)])[
        :, :, 0
    ].T
    ax.vlines(100 * x, 100 * low, 100 * high, color="#BBBBBB", linewidth=6, label="by chance")
    ax.plot([0, 100], [0, 100], color=GUIDE, linewidth=0.8)
    ax.plot(100 * x, 100 * shares, "o-", color=BLUE, markersize=5, linewidth=1.2, label="this model")
    least = 100 * min(float(x.min()), float(shares.min()), float(low.min())) - 3
    ax.set_xlim(max(least, 0), 101)
    ax.set_ylim(max(least, 0), 101)
    ax.set_aspect("equal")
    ax.set_xlabel("predicted probability of the chosen class (%)")
    ax.set_ylabel("right (%)")
    ax.legend(loc="upper left")
