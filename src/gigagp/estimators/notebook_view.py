"""The view of a fitted estimator in a notebook: what was fitted, what ran, and the hyperparameters in both units."""

from __future__ import annotations

import html
from typing import Any

from gigagp.estimators.description import facts, hyperparameters
from gigagp.estimators.estimator import FittedEstimator
from gigagp.settings.brief import output_name

#: Facts that the view shows at once; the others are folded.
_FIRST = {"rows", "target", "noise", "outliers", "inference", "interrupted", "time budget", "last solve"}
_CSS = """<style>
.gigagp-view { font: 13px/1.45 system-ui, sans-serif; max-width: 46rem; border: 1px solid #8884; border-radius: 6px;
  padding: .6rem .8rem; margin-bottom: .4rem; }
.gigagp-view table { border-collapse: collapse; margin: .3rem 0; background: none; font: inherit; }
.gigagp-view td:first-child { white-space: nowrap; }
.gigagp-view td, .gigagp-view th { text-align: left; padding: .12rem .9rem .12rem 0; vertical-align: top;
  white-space: pre-line; background: none; }
.gigagp-view td.number, .gigagp-view th.number { text-align: right; font-variant-numeric: tabular-nums; }
.gigagp-view summary { cursor: pointer; }
</style>"""


class NotebookView:
    """Adds to scikit-learn's diagram of an estimator, once it is fitted, what a fit has found.

    scikit-learn shows the arguments, which is what pipelines and searches need; it stays below, and is all there is
    before a fit. ``sklearn.set_config(display="text")`` turns both off.
    """

    @property
    def _repr_html_(self) -> Any:
        inherited = super()._repr_html_  # type: ignore[misc]  # an AttributeError where the display is text
        return lambda: with_fit(self, inherited())

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        found: dict[str, str] = super()._repr_mimebundle_(**options)  # type: ignore[misc]
        if "text/html" in found:
            found["text/html"] = with_fit(self, found["text/html"])
        return found


def with_fit(estimator: Any, diagram: str) -> str:
    """Return the view of a fitted estimator above its diagram, or the diagram alone before a fit."""
    regressor = getattr(estimator, "latent_", estimator)
    if getattr(regressor, "posterior_", None) is None:
        return diagram
    name, inputs = type(estimator).__name__, getattr(estimator, "feature_names_in_", None)
    models = regressor.estimators_
    names = [name] if len(models) == 1 else [f"{name}, {output_name(number)}" for number in range(len(models))]
    return "".join(view(one, own, inputs) for one, own in zip(models, names, strict=True)) + diagram


def view(estimator: FittedEstimator, name: str, inputs: Any = None) -> str:
    """Return the HTML view of a fit; ``inputs`` are the names of the inputs of a classifier."""
    found = facts(estimator)
    numbers, hidden = hyperparameters(estimator, inputs)
    rows = [
        (one.label, f"{one.standardized:.4g}", "not known" if one.own is None else f"{one.own:.4g}") for one in numbers
    ]
    more = "".join(f"<p>{count} more of {html.escape(label)}</p>" for label, count in hidden.items())
    first = [fact for fact in found if fact[0] in _FIRST]
    scored = [step for step in estimator.history_ if step.validation_rmse is not None]
    if scored:
        first.append(("validation", f"RMSE {scored[-1].validation_rmse:.4g} at the last step that was scored"))
    rest = [fact for fact in found if fact[0] not in _FIRST]
    return (
        f'{_CSS}<div class="gigagp-view"><b>{html.escape(name)}</b>, fitted'
        f"{_table((), first)}{_table(('hyperparameter', 'standardized', 'own units'), rows)}{more}"
        f"<details><summary>all that ran</summary>{_table((), rest)}</details></div>"
    )


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    """Return a table whose columns are numbers where it has a head, but for the first."""

    def line(row: tuple[str, ...], tag: str) -> str:
        mark = ' class="number"' if head else ""
        return (
            "<tr>"
            + "".join(f"<{tag}{mark if k else ''}>{html.escape(cell)}</{tag}>" for k, cell in enumerate(row))
            + "</tr>"
        )

    return "<table>" + (line(head, "th") if head else "") + "".join(line(row, "td") for row in rows) + "</table>"
