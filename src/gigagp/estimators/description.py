"""A description of a fitted estimator in words and numbers, as text and as the view in a notebook."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from gigagp.errors import GigaGPError
from gigagp.estimators.estimator import FittedEstimator
from gigagp.estimators.panel_fit import panel_in_words
from gigagp.model.model import NOISE, Model
from gigagp.model.student_noise import LEAST_DF, OUTLIER_WEIGHT
from gigagp.settings.brief import brief, output_name, rounded
from gigagp.tables.encoding import fitted_encoder

_SHOWN = 12
#: Rows at which standard deviations are compared.
_ROWS_WIDENED = 200
#: Most rows that the view in a notebook scores.
_ROWS_SCORED = 1000


class Hyperparameter(NamedTuple):
    """One number of a model."""

    label: str  # with the input in brackets
    standardized: float
    own: float | None  # in the data's own units; None where the kernel does not say how it is scaled


def describe(estimator: FittedEstimator) -> str:
    """Return the settings of a fit, its outcome, and the hyperparameters in standardized and own units.

    A user-defined kernel that does not define the units of its hyperparameters has only standardized values.
    """
    models = estimator.estimators_
    if len(models) > 1:
        parts = (f"\n{output_name(number)}\n{describe(one)}" for number, one in enumerate(models))
        return "\n".join([f"{'outputs':13s} {len(models)}, each with its own hyperparameters", *parts])
    lines = []
    for word, text in facts(estimator):
        lines += [f"{word if not k else '':13s} {line}" for k, line in enumerate(text.splitlines())]
    lines += [] if estimator.kernel_choice_ is None else estimator.kernel_choice_.lines()
    if (encoder := fitted_encoder(estimator)) is not None:
        lines += ["columns", *encoder.describe()]
    lines.append(f"{'hyperparameter':34s} {'standardized':>14s} {'own units':>14s}")
    found, hidden = hyperparameters(estimator)
    for one in found:
        own = "not known" if one.own is None else f"{one.own:14.6g}"
        lines.append(f"{one.label:34s} {one.standardized:14.6g} {own:>14s}")
    lines += [f"{name} has {count} more values, see kernel_.parameters()" for name, count in hidden.items()]
    if estimator.scaling_.y_scale.size > 1:
        lines.append("variances      shares of the variance of each target, which are scaled separately")
    lines += [f"at its bound  {label}" for label in at_bounds(estimator.posterior_.model)]
    return "\n".join(lines)


def facts(estimator: FittedEstimator) -> list[tuple[str, str]]:
    """Return what was fitted, what ran and how it ended: words of at most 13 letters, each with a text."""
    posterior = estimator.posterior_
    optimizer = "none" if estimator.optimizer_ is None else type(estimator.optimizer_).__name__
    epochs = estimator.history_.epochs
    found = [("rows", f"{posterior.n_rows:,}, inputs {posterior.n_inputs}, targets {posterior.n_targets}")]
    if (stacking := estimator._stacking) is not None:
        n_inputs = posterior.n_inputs - stacking.n_outputs
        found = [
            ("rows", f"{posterior.n_rows:,}, one for each observed cell, inputs {n_inputs}"),
            ("outputs", f"{stacking.n_outputs}, correlated, observed {', '.join(map(str, stacking.observed.sum(0)))}"),
        ]
    if estimator._arguments["panel"] is not None:
        found.append(("panel", panel_in_words(estimator)))
    if posterior.n_targets > 1:
        found.append(("outputs", f"{posterior.n_targets}, which share the kernel and the noise"))
    found += [
        *_transform(estimator),
        *_noise(estimator),
        *_noise_of_missing_cells(estimator),
        ("inference", estimator.inference_.describe()),
        ("solver", brief(estimator.solver_)),
        ("engine", estimator.engine_),
        ("optimizer", f"{optimizer}, {len(estimator.history_)} evaluations, {epochs:.4g} epochs of kernel products"),
        *_answers(estimator),
    ]
    if estimator.plan_ is not None:
        found.append(("forecast", str(estimator.plan_)))
    if estimator.history_.interrupted == "learning":
        found.append(("interrupted", "Ctrl-C ended the learning; these are the best hyperparameters so far"))
    elif estimator.history_.interrupted == "time budget":
        found.append(("time budget", "it ended the learning; these are the best hyperparameters so far"))
    found += _truncated_solves(estimator)
    final = posterior.final_solve
    if final is not None:
        found.append(
            (
                "last solve",
                f"{final.status.lower()}, {final.iterations} iterations, relative residual "
                f"{final.relative_residual_targets:.2g} (targets), {final.relative_residual_probes:.2g} (probes)",
            )
        )
    found += posterior.notes().items()
    found += [("warning", text) for text in estimator.warnings_]
    structure = re.sub(r"\[[^][]{40,}\]", "[...]", rounded(repr(estimator.kernel_)))  # a table has long lists
    return [*found, ("kernel", structure)]


def hyperparameters(
    estimator: FittedEstimator, names: Sequence[str] | None = None
) -> tuple[list[Hyperparameter], dict[str, int]]:
    """Return the numbers of a model, and by name how many more there are of those with more than twelve.

    The noise variance is none of them where the likelihood ignores it, as those of classes and counts do. ``names`` are
    those of the inputs, where the estimator does not know them: a classifier knows those of its latent functions.
    """
    posterior = estimator.posterior_
    names = input_names(estimator, names)
    encoder = fitted_encoder(estimator)
    n_inputs = posterior.n_inputs if encoder is None else len(encoder.labels)
    factors = posterior.model.unit_factors(estimator.scaling_.units())
    found, hidden = [], {}
    for name, value in posterior.model.parameters().items():
        if name == NOISE and not estimator.likelihood_.has_noise:
            continue
        numbers = np.atleast_1d(value.double().cpu().numpy())
        factor = np.broadcast_to(factors[name].numpy(), numbers.shape) if name in factors else None
        is_per_input = numbers.size == n_inputs and not name.endswith(NOISE)
        for index, number in enumerate(numbers[:_SHOWN].tolist()):
            label = name
            if numbers.size > 1:
                label = f"{name}[{names[index] if names is not None and is_per_input else index}]"
            found.append(Hyperparameter(label, number, None if factor is None else float(number * factor[index])))
        if numbers.size > _SHOWN:
            hidden[name] = numbers.size - _SHOWN
    return found, hidden


def input_names(estimator: FittedEstimator, names: Sequence[str] | None = None) -> Sequence[str] | None:
    """Return the names of the encoded inputs; None where they have none."""
    encoder = fitted_encoder(estimator)
    return getattr(estimator, "feature_names_in_", names) if encoder is None else encoder.labels


def _transform(estimator: FittedEstimator) -> list[tuple[str, str]]:
    """Return a fact about the transform of the target, or none if none was asked for."""
    transform = estimator.target_transform_
    if transform.is_identity and not transform.note:
        return []
    return [("target", transform.words() + (f"; {transform.note}" if transform.note else ""))]


def _noise(estimator: FittedEstimator) -> list[tuple[str, str]]:
    """Return facts about Student-t noise and its outliers, or about the choice of the likelihood, if there is any."""
    model, note = estimator.posterior_.model, estimator.likelihood_note_
    if model.student is None:
        word = "noise" if estimator.likelihood_.adds_noise else "likelihood"
        return [(word, note)] if note else []
    weights = model.student.weights(model.noise_variance).double().cpu()
    scale = np.sqrt(model.student.squared_scale) * estimator.scaling_.y_scale[0]
    count = int((weights < OUTLIER_WEIGHT).sum())
    words = (
        f"{count:,} rows of {len(weights):,} have weights below {OUTLIER_WEIGHT:g}: they hardly move the function "
        "(noise_weights_)"
    )
    if model.student.df <= LEAST_DF:
        words += f"\n{LEAST_DF:g} is the smallest number of degrees of freedom that is learned"
    return [
        (
            "noise",
            f"Student-t with {model.student.df:.3g} degrees of freedom and the scale {scale:.4g}"
            + (f"; {note}" if note else ""),
        ),
        ("outliers", words),
    ]


def _noise_of_missing_cells(estimator: FittedEstimator) -> list[tuple[str, str]]:
    """Return a fact about rows with missing cells, if these have further noise."""
    encoder, scale = fitted_encoder(estimator), estimator.scaling_.y_scale
    if encoder is None or not encoder.marks or len(scale) > 1:
        return []
    model = estimator.posterior_.model
    rows = torch.zeros(1 + len(encoder.marks), encoder.n_encoded, dtype=torch.float64)  # the first has all cells
    for row, (_, mark) in enumerate(encoder.marks, start=1):
        rows[row, mark] = 1.0
    white = model.kernel.white(rows)
    if not bool((white > white[0]).any()):
        return []
    deviations = [float(scale[0]) * math.sqrt(float(one)) for one in white + model.noise_variance.double().cpu()]
    complete, *others = (f"{one:.4g}" for one in deviations)
    parts = [f"{one} without {label!r}" for one, (label, _) in zip(others, encoder.marks, strict=True)]
    more = f"; {len(parts) - _SHOWN} more columns" * (len(parts) > _SHOWN)
    return [("noise", f"standard deviation {complete} in complete rows; {', '.join(parts[:_SHOWN])}{more}")]


def at_bounds(model: Model) -> list[str]:
    """Return the learned hyperparameters that ended at a bound, with its side."""
    values, found = model.parameters(), []
    for name, pair in model.kernel.bounds().items():
        if name in model.learned_names():
            for side, at in (("lower", values[name] == pair.lower), ("upper", values[name] == pair.upper)):
                where = at.reshape(-1).nonzero().reshape(-1).tolist()
                found += [f"{name}[{i}] ({side})" if values[name].ndim else f"{name} ({side})" for i in where]
    return found


def _answers(estimator: FittedEstimator) -> list[tuple[str, str]]:
    """Return a fact about the hyperparameters of the answers, where any are learned.

    The widths are those of the function at training rows, as shares of those at the learned hyperparameters.
    """
    mixture, learned = estimator._uncertain, estimator.posterior_
    if mixture is None:
        words = "at the learned hyperparameters, as if they were known"
        return [] if estimator.optimizer_ is None else [("predictions", words)]
    rows = mixture.places()[:: max(1, mixture.n_rows // _ROWS_WIDENED)]
    wide, narrow = (one.mean_and_variance(rows.to(one.dtype))[1].double().cpu().sqrt() for one in (mixture, learned))
    ratio = (wide / narrow.clamp_min(1e-300)).sort().values
    middle, most = (float(ratio[int(share * (len(ratio) - 1))]) for share in (0.5, 0.95))
    words = (
        f"averaged over {len(mixture.components)} draws from an approximate posterior of the hyperparameters "
        "(Laplace's approximation)\nstandard deviations of the function at the rows are "
        f"{middle:.3g} times those at the learned values (median), {most:.3g} times at one row of 20"
    )
    return [("predictions", words)]


def _truncated_solves(estimator: FittedEstimator) -> list[tuple[str, str]]:
    """Return a fact about solves that were cut at a random length, or none if there were none."""
    solves = [step.solve for step in estimator.history_ if step.solve is not None and step.solve.lengths is not None]
    if not solves:
        return []
    mean = sum(solve.iterations for solve in solves) / len(solves)
    early = sum(bool(solve.ended_early) for solve in solves)
    words = f"{len(solves)} solves cut at random, {mean:.4g} iterations on average; {early} converged before"
    return [("truncation", words)]


# The view in a notebook -----------------------------------------------------------------------------------------------


#: Facts that the view in a notebook shows at once; the others are folded.
_FIRST = {
    "rows",
    "target",
    "likelihood",
    "noise",
    "predictions",
    "outliers",
    "inference",
    "interrupted",
    "time budget",
    "last solve",
    "warning",
}
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
    first += _score(estimator)
    rest = [fact for fact in found if fact[0] not in _FIRST]
    return (
        f'{_CSS}<div class="gigagp-view"><b>{html.escape(name)}</b>, fitted'
        f"{_table((), first)}{_table(('hyperparameter', 'standardized', 'own units'), rows)}{more}"
        f"<details><summary>all that ran</summary>{_table((), rest)}</details></div>"
    )


def _score(estimator: Any) -> list[tuple[str, str]]:
    """Return the score of the rows, each predicted from all others, where it is had at once."""
    if estimator.posterior_.n_rows > _ROWS_SCORED:
        return []
    try:
        nll = -float(estimator.leave_one_out().log_density.mean())
    except GigaGPError:
        return []
    words = f"mean NLL {nll:.4g} of rows predicted from all others"
    if estimator.target_transform_.is_identity:
        without = 0.5 * math.log(2 * math.pi * math.e) + float(np.log(estimator.scaling_.y_scale).mean())
        words += f"; {without:.4g} without inputs"
    return [("score", words)]


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    """Return a table whose columns are numbers where it has a head, but for the first."""

    def line(row: tuple[str, ...], tag: str) -> str:
        mark = ' class="number"' if head else ""
        cells = (f"<{tag}{mark if k else ''}>{html.escape(cell)}</{tag}>" for k, cell in enumerate(row))
        return f"<tr>{''.join(cells)}</tr>"

    return "<table>" + (line(head, "th") if head else "") + "".join(line(row, "td") for row in rows) + "</table>"
