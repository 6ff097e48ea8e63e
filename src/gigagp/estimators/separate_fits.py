"""Fits of several outputs with hyperparameters of their own: one after the other, on the same rows."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gigagp.estimators.answers.outputs import columns_of
from gigagp.estimators.arguments import Arguments
from gigagp.estimators.fitting import fit_rows
from gigagp.model.target_transform import Log
from gigagp.runtime import processes
from gigagp.runtime.run import naming
from gigagp.settings.brief import output_name


def fit_outputs(
    arguments: Arguments,
    X: np.ndarray,
    y: np.ndarray,
    validation: tuple[Any, Any] | None = None,
    checkpoint: str | PathLike[str] | None = None,
) -> list[Any]:
    """Return a fitted copy of an estimator for each output, as a fit of that output alone leaves it.

    All have the seed of the estimator, so that equal targets get equal models; what is drawn from
    these afterwards has random numbers of its own (`gigagp.estimators.answers.outputs.by_output`). Each output gets an
    equal share of the memory budget, because all models are kept, and of what is left of a time budget.

    Parameters
    ----------
    arguments : Arguments
        Checked arguments of the estimator, whose inputs have been checked and encoded too.
    X : ndarray of shape (n, d)
        Inputs in the data's own units.
    y : ndarray of shape (n, t)
        Targets in the data's own units.
    validation, checkpoint
        The same as for `GPRegressor.fit`. There is a file for each output, with ``.0``, ``.1`` and so on added to the
        name. They stay until all outputs are fitted.

    Raises
    ------
    InvalidInputError, MemoryBudgetError
        As for `gigagp.estimators.fitting.fit_rows`; the message names the output.
    KeyboardInterrupt
        If Ctrl-C ends the fit of an output that is not the last: the others have not been learned.
    """
    count = y.shape[1]
    _check_targets(arguments, y)
    files = checkpoints_of(checkpoint, count)
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
            deadline=deadline,
            job=f", output {number + 1} of {count}",
            keeps_checkpoint=True,
        )
        with naming(output_name(number)):
            fitted = fit_rows(own, X, np.ascontiguousarray(y[:, number]), pair, file)
        if fitted.history.interrupted in ("learning", "last solve") and number + 1 < count:
            raise KeyboardInterrupt(f"Ctrl-C came in the fit of output {number + 1} of {count}.")
        one._take(fitted, one_target=True)
        models.append(one)
    if processes.is_first() and not any(one.history_.interrupted in ("learning", "time budget") for one in models):
        for file in files:
            if file is not None:
                file.unlink(missing_ok=True)
                file.with_name(f"{file.name}.solve").unlink(missing_ok=True)
    return models


def checkpoints_of(checkpoint: str | PathLike[str] | None, count: int) -> Sequence[Path | None]:
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


def _columns(validation: Any, count: int) -> Sequence[Any]:
    """Return the validation rows of each output; anything else than a pair is left for its own check."""
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        return [validation] * count
    return [(validation[0], column) for column in columns_of(validation[1], count, "validation y")]
