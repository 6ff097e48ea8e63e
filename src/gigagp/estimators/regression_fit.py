"""What `fit`, `fit_table` and `plan` of `GPRegressor` do: what they are given becomes the rows of models."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gigagp.errors import InvalidInputError
from gigagp.estimators.answers.correlated import Stacking, observed_cells
from gigagp.estimators.answers.outputs import columns_of
from gigagp.estimators.arguments import Arguments
from gigagp.estimators.attributes import take, take_outputs
from gigagp.estimators.choices.likelihood_choice import of_rates
from gigagp.estimators.correlated_fit import stacked
from gigagp.estimators.fitting import fit_rows, fit_source, plan_rows
from gigagp.estimators.panel_fit import of_panel
from gigagp.estimators.planning import resolve_outputs
from gigagp.inference.automatic.plan import Plan
from gigagp.model.target_transform import Log
from gigagp.runtime import processes, threads
from gigagp.runtime.run import naming, running
from gigagp.settings.brief import output_name
from gigagp.tables.beside import Beside, known_targets
from gigagp.tables.encoding import model_inputs, points_to_predict
from gigagp.tables.intake import targets
from gigagp.tables.rows.source import RowSource


@dataclass(frozen=True)
class _Given:
    """The rows of a fit, in the data's own units, and the arguments that suit them."""

    arguments: Arguments
    X: np.ndarray  # (n, d)
    y: np.ndarray  # (n,) or (n, n_targets)
    beside: Beside
    stacking: Stacking | None = None  # of correlated outputs, whose cells are the rows

    @classmethod
    def of(cls, estimator: Any, arguments: Arguments, X: Any, y: Any, predict_at: Any, **beside: Any) -> _Given:
        """Check and encode what `GPRegressor.fit` is given; ``beside`` is known of the rows, or None."""
        X = model_inputs(estimator, X, reset=True, min_rows=2)
        arguments = replace(arguments, predict_at=points_to_predict(estimator, predict_at))
        if estimator.panel is not None:
            arguments = of_panel(arguments, X)
        stacking = None
        if estimator.outputs == "correlated" and np.ndim(y) == 2 and np.shape(y)[1] > 1:
            for name, value in {**beside, "predict_at": predict_at}.items():
                if value is not None:
                    raise InvalidInputError(f'{name} of GPRegressor must be None with outputs="correlated".')
            arguments, X, y, stacking = stacked(arguments, X, observed_cells(y, len(X)))
        known = {name: beside.get(name) for name in ("exposure", "offset")}
        likelihood = arguments.likelihood
        if arguments.chooses_likelihood and any(one is not None for one in known.values()):
            likelihood = of_rates(targets(y, len(X)))
        return cls(arguments, X, *known_targets(likelihood, y, len(X), **known), stacking)

    @property
    def is_apart(self) -> bool:
        """Whether the targets are several outputs with their own hyperparameters."""
        several = self.y.ndim == 2 and self.y.shape[1] > 1
        return several and resolve_outputs(self.arguments.estimator.outputs, *self.y.shape) == "independent"


def fit(
    estimator: Any,
    X: Any,
    y: Any,
    validation: tuple[Any, Any] | None = None,
    checkpoint: str | PathLike[str] | None = None,
    exposure: Any = None,
    offset: Any = None,
    predict_at: Any = None,
) -> None:
    """Fit an estimator and set its attributes; see `GPRegressor.fit`."""
    known = {"validation": validation, "exposure": exposure, "offset": offset}
    given = _Given.of(estimator, Arguments.of(estimator), X, y, predict_at, **known)
    rows = given.arguments, given.X, given.y, validation, checkpoint, given.beside
    with threads.enough_for(len(given.X)):
        if given.is_apart:
            take_outputs(estimator, _fit_outputs(*rows))
        else:
            take(estimator, fit_rows(*rows), one_target=given.y.ndim == 1, stacking=given.stacking)


def fit_table(
    estimator: Any, open_rows: Callable[..., RowSource], bounds: Any, checkpoint: str | PathLike[str] | None
) -> None:
    """Fit rows that are not held in memory, and set the attributes and the names of the columns."""
    for name in ("encoder_", "feature_names_in_"):
        estimator.__dict__.pop(name, None)  # of an earlier fit
    fitted, rows = fit_source(estimator, open_rows, bounds, checkpoint)
    estimator.n_features_in_ = rows.n_inputs
    if rows.input_names is not None:
        estimator.feature_names_in_ = np.array(rows.input_names, dtype=object)
    take(estimator, fitted, one_target=rows.n_targets == 1 and (rows.one_target or rows.labels is not None))


def plan(estimator: Any, X: Any, y: Any, predict_at: Any) -> Plan | tuple[Plan, ...]:
    """Return what a fit with ``inference="auto"`` would do; see `GPRegressor.plan`."""
    planned = copy.copy(estimator)  # whose names and encoder are set
    arguments = Arguments.of(planned)
    arguments.check_plan()
    given = _Given.of(planned, arguments, X, y, predict_at)
    parts = given.y.T if given.is_apart else [given.y]
    found = [plan_rows(given.arguments, given.X, np.ascontiguousarray(part)) for part in parts]
    plans = tuple(plan.in_units(scaling.typical_y_scale) for plan, scaling in found)
    return plans if len(plans) > 1 else plans[0]


# Outputs that are fitted one by one -----------------------------------------------------------------------------------


def _fit_outputs(
    arguments: Arguments,
    X: np.ndarray,
    y: np.ndarray,
    validation: tuple[Any, Any] | None,
    checkpoint: str | PathLike[str] | None,
    beside: Beside,
) -> list[Any]:
    """Return a fitted copy of an estimator for each output, as a fit of that output alone leaves it.

    All have the seed of the estimator, so that equal targets get equal models; samples drawn afterwards have random
    their own numbers (`gigagp.estimators.answers.outputs.by_output`). Each output gets an equal share of the memory
    budget, because all models are kept, and of what is left of a time budget. There is a checkpoint for each output,
    with ``.0``, ``.1`` and so on added to the name; they stay until all outputs are fitted.

    Messages name the output. If Ctrl-C ends the fit of an output that is not the last, the others have not been
    learned, and `KeyboardInterrupt` is raised.
    """
    count = y.shape[1]
    _check_targets(arguments, y)
    files = _checkpoints_of(checkpoint, count)
    pairs = _columns(validation, count)
    models: list[Any] = []
    for number, (file, pair) in enumerate(zip(files, pairs, strict=True)):
        one: Any = copy.copy(arguments.estimator)
        now = time.monotonic()
        deadline = now + (arguments.deadline - now) / (count - number)
        own = replace(
            arguments,
            estimator=one,
            budget=arguments.budget // count,
            sharing=count,
            deadline=deadline,
            job=f", output {number + 1} of {count}",
            keeps_checkpoint=True,
        )
        with naming(output_name(number)), running(told=[]):
            fitted = fit_rows(own, X, np.ascontiguousarray(y[:, number]), pair, file, beside)
            if fitted.history.interrupted in ("learning", "last solve") and number + 1 < count:
                raise KeyboardInterrupt(f"Ctrl-C came in the fit of output {number + 1} of {count}.")
            take(one, fitted, one_target=True)
        models.append(one)
    if processes.is_first() and not any(one.history_.interrupted in ("learning", "time budget") for one in models):
        for file in files:
            if file is not None:
                file.unlink(missing_ok=True)
                file.with_name(f"{file.name}.solve").unlink(missing_ok=True)
    return models


def last_checkpoint(checkpoint: str | PathLike[str] | None, n_models: int) -> str | PathLike[str] | None:
    """Return the checkpoint of the last output, or that of the fit where no outputs have their own models."""
    return _checkpoints_of(checkpoint, n_models)[-1] if n_models else checkpoint


def _checkpoints_of(checkpoint: str | PathLike[str] | None, count: int) -> Sequence[Path | None]:
    """Return the file of each output; None without checkpoints."""
    return [None if checkpoint is None else Path(f"{Path(checkpoint)}.{number}") for number in range(count)]


def _check_targets(arguments: Arguments, y: np.ndarray) -> None:
    """Refuse targets of any output before the first one is fitted."""
    for number, column in enumerate(y.T):
        with naming(output_name(number)):
            if arguments.estimator.target_transform == "log":
                Log().check(column)
            if not arguments.likelihood.has_noise:
                arguments.likelihood.check_targets(torch.from_numpy(np.ascontiguousarray(column)))


def _columns(validation: tuple[Any, Any] | None, count: int) -> Sequence[Any]:
    """Return the validation rows of each output."""
    if validation is None:
        return [None] * count
    return [(validation[0], column) for column in columns_of(validation[1], count, "validation y")]
