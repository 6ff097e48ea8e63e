"""Bias, variance and cost of estimates of the log marginal likelihood and its gradient, against exact values.

Potapczynski et al. 2021 (arXiv:2102.06695) show that conjugate gradients stopped early and random features are biased
in opposite directions, and remove the bias at the cost of variance. This module measures both for any inference method.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference import Inference
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective
from gigagp.inference.iterative.iterative import IterativeObjective
from gigagp.model.model import Model
from gigagp.optimization.space import ParameterSpace
from gigagp.runtime.progress import Meter, NoProgress
from gigagp.settings.fields import Range, checks_arguments
from gigagp.settings.random import RandomState, generator_from, spawn, standard_normal

#: Name of the row of the log marginal likelihood.
VALUE = "log likelihood"
#: A bias below this share of a quantity's scale may come from rounding and tight tolerances, and has no effect.
_NEGLIGIBLE = 1e-6
#: Number of probe vectors for the Fisher information, which only sets scales.
_FISHER_PROBES = 16


@dataclass(frozen=True)
class BiasRow:
    """Statistics of one quantity that was estimated many times.

    Attributes
    ----------
    name : str
        ``"log likelihood"``, or the hyperparameter whose derivative was estimated.
    exact, mean, standard_deviation : float
        The exact value, and the mean and standard deviation of the draws.
    scale : float
        Approximate standard deviation of the exact value over data sets drawn from the model: the root of the Fisher
        information for a derivative, and the root of half the number of observations for the log likelihood. An error
        far below it changes the hyperparameters by less than their uncertainty.
    n_draws : int
        Number of draws.
    """

    name: str
    exact: float
    mean: float
    standard_deviation: float
    scale: float
    n_draws: int

    @property
    def bias(self) -> float:
        """Mean minus the exact value."""
        return self.mean - self.exact

    @property
    def standard_error(self) -> float:
        """Standard deviation of the mean."""
        return self.standard_deviation / math.sqrt(self.n_draws)

    @property
    def errors(self) -> float:
        """The bias in standard errors; an absolute value above 4 is not due to chance.

        It is 0 if the bias is below a millionth of `scale`. Otherwise it is infinite if all draws are equal.
        """
        negligible = _NEGLIGIBLE * self.scale
        if abs(self.bias) <= negligible:
            return 0.0
        if self.standard_deviation <= 1e-3 * negligible:
            return math.copysign(math.inf, self.bias)
        return self.bias / self.standard_error


@dataclass(frozen=True)
class BiasReport:
    """The result of `measure_bias`.

    Attributes
    ----------
    method : str
        The measured inference method, in words.
    n_rows, n_draws : int
        Number of rows and of draws.
    rows : tuple of BiasRow
        The log likelihood, if it was estimated, and then the gradient with respect to the logarithms of the learned
        hyperparameters (variances as standard deviations).
    draws : Tensor of shape (n_draws, number of rows)
        All estimates.
    seconds, exact_seconds : float
        Wall time of one gradient (the mean over the draws) and of the exact gradient.
    epochs : float or None
        Passes over all entries of H in one draw; None if the method makes no solves.
    """

    method: str
    n_rows: int
    n_draws: int
    rows: tuple[BiasRow, ...]
    draws: Tensor
    seconds: float
    exact_seconds: float
    epochs: float | None

    def __iter__(self) -> Iterator[BiasRow]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> BiasRow:
        for row in self.rows:
            if row.name == name:
                return row
        raise InvalidInputError(f"{name!r} was not measured; there are {', '.join(row.name for row in self.rows)}.")

    @property
    def worst(self) -> float:
        """The largest absolute bias in standard errors."""
        return max(abs(row.errors) for row in self.rows)

    @property
    def gradient_error(self) -> float:
        """Root mean square error of one draw of the gradient, in units of each derivative's scale.

        It combines bias and variance in one number for comparing methods. Its square times the cost of a draw is
        proportional to the cost of a gradient of given accuracy, as far as more draws improve the accuracy.
        """
        rows = [row for row in self.rows if row.name != VALUE]
        share = (self.n_draws - 1) / self.n_draws  # standard deviations divide by n_draws - 1
        squared = sum((row.bias**2 + share * row.standard_deviation**2) / row.scale**2 for row in rows)
        return math.sqrt(squared / len(rows))

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the individual draws as plain data."""
        own = ("method", "n_rows", "n_draws", "seconds", "exact_seconds", "epochs", "gradient_error")
        of_row = ("name", "exact", "mean", "bias", "standard_error", "errors", "standard_deviation", "scale")
        rows = [{name: getattr(row, name) for name in of_row} for row in self.rows]
        for row in rows:
            row["errors"] = row["errors"] if math.isfinite(row["errors"]) else None
        return {name: getattr(self, name) for name in own} | {"rows": rows}


@checks_arguments
def measure_bias(
    method: Inference,
    model: Model,
    table: TrainingTable,
    *,
    n_draws: Annotated[int, Range(least=2)] = 100,
    random_state: RandomState = 0,
    values: bool = True,
    meter: Meter | None = None,
) -> BiasReport:
    """Estimate value and gradient repeatedly at fixed hyperparameters, and compare the estimates with exact values.

    Every draw is a fresh start with its own probes, features and random lengths, like one step of a fit without warm
    starts.

    Parameters
    ----------
    method : Exact, Iterative, RandomFeatures, ...
        Any inference method of `gigagp.inference`, with any solver, gradient estimator and truncation.
    model : Model
        Hyperparameters at which to measure.
    table : TrainingTable
        A few thousand rows at most, because the exact values need a Cholesky factor. A fitted `gigagp.GPRegressor` has
        both, as ``posterior_.model`` and ``posterior_.table``.
    n_draws : int, default 100
        Number of draws, at least 2.
    random_state : int or generator, default 0
        Seed of all draws.
    values : bool, default True
        Whether to estimate the log marginal likelihood too; with iterative inference, each draw then costs a
        determinant.
    meter : Meter, optional
        Shows progress.

    Returns
    -------
    BiasReport

    Raises
    ------
    InvalidInputError
        If ``n_draws`` is below 2, or the model has no learned hyperparameter.
    MemoryBudgetError
        If the exact values do not fit into the table's memory budget.

    Examples
    --------
    >>> import numpy as np
    >>> from gigagp import GPRegressor, diagnostics, inference
    >>> X = np.linspace(0, 6, 60)[:, None]
    >>> at = GPRegressor(noise_variance=0.1, optimizer=None).fit(X, np.sin(X[:, 0])).posterior_
    >>> few = diagnostics.measure_bias(inference.RandomFeatures(4), at.model, at.table, n_draws=50)
    >>> abs(few["log likelihood"].errors) > 4
    True
    """
    space = ParameterSpace(model, "log")
    if not space.labels:
        raise InvalidInputError("model of measure_bias must have a learned hyperparameter; all of them are fixed.")
    vector, generator = space.encode(model), generator_from(random_state)
    meter = NoProgress() if meter is None else meter

    started = time.perf_counter()
    truth = ExactObjective(table)
    reference = truth.evaluate(model)
    exact_seconds = time.perf_counter() - started
    assert reference.value is not None
    probes = standard_normal(table.n_rows, _FISHER_PROBES, generator=spawn(generator))
    information = truth.fisher(space, vector, probes).diagonal().clamp_min(1e-300).sqrt()
    scales = torch.cat([information.new_tensor([math.sqrt(table.n_observations / 2)]), information])
    del truth  # frees its Cholesky factor
    exact = torch.cat(
        [torch.tensor([reference.value], dtype=torch.float64), space.pull_back(reference.gradient, vector)]
    )

    draws, seconds, epochs = [], [], []
    with meter:
        meter.phase("measuring", n_draws, unit="draw", then=0.0)
        for _ in range(n_draws):
            objective = method.objective(table, spawn(generator))
            at = objective.start(model)
            started = time.perf_counter()
            evaluation = objective.evaluate(at)
            gradient = space.pull_back(evaluation.gradient, vector)
            seconds.append(time.perf_counter() - started)
            if evaluation.solve is not None:
                epochs.append(evaluation.solve.epochs + evaluation.solve.setup_epochs)
            value = evaluation.value
            if values and value is None and isinstance(objective, IterativeObjective):
                value = objective.value(at).value
            known = torch.tensor([math.nan if value is None else value], dtype=torch.float64)
            draws.append(torch.cat([known, gradient]))
            meter.step()
    found, names = torch.stack(draws), (VALUE, *space.labels)
    if not values or bool(found[:, 0].isnan().all()):  # the value was not estimated
        found, exact, scales, names = found[:, 1:], exact[1:], scales[1:], space.labels
    rows = tuple(
        BiasRow(name, float(truly), float(drawn.mean()), float(drawn.std()), float(scale), n_draws)
        for name, truly, drawn, scale in zip(names, exact, found.T, scales, strict=True)
    )
    return BiasReport(
        method.describe(),
        table.n_rows,
        n_draws,
        rows,
        found,
        sum(seconds) / n_draws,
        exact_seconds,
        sum(epochs) / n_draws if epochs else None,
    )
