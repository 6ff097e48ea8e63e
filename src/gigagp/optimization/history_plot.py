"""The picture of a history: how hyperparameters, gradients, values or scores moved during a fit."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.storage.figures import CYCLE, GUIDE, axes_or_new, style

if TYPE_CHECKING:
    from gigagp.optimization.history import Step

#: What a picture of a history shows.
HistoryQuantity = Literal["hyperparameters", "gradient", "objective", "validation"]
#: Most lines of a picture; of more hyperparameters, those that moved most are drawn.
_LINES = 8
_MARKERS = "osD^vP"


def draw_history(
    steps: Sequence[Step],
    quantity: HistoryQuantity,
    ax: Any,
    *,
    inputs: Sequence[str] | None = None,
    hidden: Container[str] = (),
) -> Any:
    """Draw a quantity against the seconds of a fit; see `History.plot`.

    ``inputs`` are names of the inputs for hyperparameters with a value for each, and ``hidden`` has the names of
    hyperparameters that are left out.
    """
    if quantity not in get_args(HistoryQuantity):
        msg = f"quantity of History.plot must be one of {', '.join(get_args(HistoryQuantity))}; got {quantity!r}."
        raise InvalidInputError(msg)
    if not steps:
        raise InvalidInputError("History.plot needs at least one step: nothing was learned in this fit.")

    def lines(ax: Any, steps: Sequence[Step]) -> None:
        _hyperparameters(ax, steps, inputs, hidden)

    draw = {"hyperparameters": lines, "gradient": _gradient, "objective": _objective, "validation": _scores}
    with style():
        ax = axes_or_new(ax)
        draw[quantity](ax, steps)
        _stages(ax, steps)
        ax.set_xlabel("seconds since the start of the fit")
        handles, labels = ax.get_legend_handles_labels()
        if handles:
            ax.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, handlelength=1.6)
    return ax


def _hyperparameters(ax: Any, steps: Sequence[Step], inputs: Sequence[str] | None, hidden: Container[str]) -> None:
    """Draw hyperparameters as multiples of their last values."""
    lines: dict[str, list[float]] = {}
    labels: dict[str, str] = {}
    for step in steps:
        for name, value in step.hyperparameters.items():
            values = value if isinstance(value, list) else [value]
            if name in hidden or (name == "noise_variance" and len(values) > 1):  # known, and not learned
                continue
            for k, one in enumerate(values):
                key = f"{name}[{k}]" if isinstance(value, list) else name
                lines.setdefault(key, []).append(float(one))
                if isinstance(value, list) and inputs is not None and len(inputs) == len(values):
                    labels[key] = f"{name}[{inputs[k]}]"
    ratios = {}
    for name, values in lines.items():
        if len(values) == len(steps) and values[-1] > 0 and min(values) > 0:
            ratios[name] = np.array(values) / values[-1]
    moved = sorted(ratios, key=lambda name: -float(np.ptp(np.log(ratios[name]))))[:_LINES]
    seconds = [step.seconds for step in steps]
    for number, name in enumerate(name for name in ratios if name in moved):
        style_of = {"color": CYCLE[number % len(CYCLE)], "linestyle": "-" if number < len(CYCLE) else "--"}
        ax.plot(
            seconds,
            ratios[name],
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=3,
            linewidth=1.1,
            label=labels.get(name, name),
            **style_of,
        )
    ax.axhline(1.0, color=GUIDE, linewidth=0.8)
    ax.set_yscale("log")
    _plain_ticks(ax)
    more = f" ({len(moved)} of {len(ratios)})" if len(ratios) > len(moved) else ""
    ax.set_ylabel(f"hyperparameter / last value{more}")


def _plain_ticks(ax: Any) -> None:
    """Write ticks of a narrow logarithmic axis as numbers: powers of ten alone could leave it without any."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = ax.get_ylim()
    decades = np.log10(high / low)
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 3 else (1.0,)))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())


def _gradient(ax: Any, steps: Sequence[Step]) -> None:
    ax.plot(
        [s.seconds for s in steps], [s.gradient_norm for s in steps], "o-", color=CYCLE[0], markersize=3, linewidth=1.1
    )
    if min(s.gradient_norm for s in steps) > 0:
        ax.set_yscale("log")
    ax.set_ylabel("gradient norm for each row (nats)")


def _objective(ax: Any, steps: Sequence[Step]) -> None:
    """Draw values, of each stage on its own: stages may have different rows, whose values do not compare."""
    known = [step for step in steps if step.objective is not None]
    if not known:
        raise InvalidInputError("History.plot has no objective: this fit learned from gradients alone.")
    for number, name in enumerate(dict.fromkeys(step.stage for step in known)):
        part = [step for step in known if step.stage == name]
        colour = CYCLE[number % len(CYCLE)]
        values = [step.objective for step in part]
        ax.plot([step.seconds for step in part], values, "o-", color=colour, markersize=3, linewidth=1.1, label=name)
    ax.set_ylabel("log marginal likelihood, or its bound (nats)")


def _scores(ax: Any, steps: Sequence[Step]) -> None:
    scored = [step for step in steps if step.validation_rmse is not None]
    if not scored:
        raise InvalidInputError("History.plot has no validation scores: give validation=(X, y) to fit.")
    ax.plot([s.seconds for s in scored], [s.validation_rmse for s in scored], "o-", color=CYCLE[0], markersize=3)
    ax.set_ylabel("RMSE of the validation rows")


def _stages(ax: Any, steps: Sequence[Step]) -> None:
    """Name the stages at the top, where they begin."""
    starts = [k for k in range(len(steps)) if k == 0 or steps[k].stage != steps[k - 1].stage]
    if len(starts) > 8:
        return
    span = (steps[-1].seconds - steps[0].seconds) or 1.0
    last_written, row = -np.inf, 0
    for k in starts:
        at = steps[k].seconds if k == 0 else 0.5 * (steps[k].seconds + steps[k - 1].seconds)
        if k:
            ax.axvline(at, color=GUIDE, linewidth=0.6, linestyle=":")
        row = row + 1 if at - last_written < 0.22 * span else 0
        last_written = at
        options = {"xytext": (2, 3 + 9 * row), "textcoords": "offset points", "fontsize": 7, "color": GUIDE}
        ax.annotate(steps[k].stage, (at, 1.0), xycoords=("data", "axes fraction"), va="bottom", **options)
