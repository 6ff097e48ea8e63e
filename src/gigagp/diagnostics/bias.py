"""Bias, variance and cost of an estimate of the log marginal likelihood and its gradient, against exact numbers.

Potapczynski et al. 2021 (arXiv:2102.06695) show that conjugate gradients stopped early and random features are biased
in opposite directions, and trade the bias for variance; this measures both for any way of inference.
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
from gigagp.fields import Range, checks_arguments
from gigagp.inference import Inference
from gigagp.inference.exact import ExactObjective
from gigagp.inference.iterative import IterativeObjective
from gigagp.inference.table import TrainingTable
from gigagp.model import Model
from gigagp.optimization.space import ParameterSpace
from gigagp.progress import Meter, NoProgress
from gigagp.random import RandomState, generator_from, spawn, standard_normal

#: Name of the row of the log marginal likelihood.
VALUE = "log likelihood"
#: A bias below this share of a number's scale is what rounding and tight tolerances leave; it moves nothing.
_NEGLIGIBLE = 1e-6
#: Probe vectors of the Fisher information, which only sets scales.
_FISHER_PROBES = 16


@dataclass(frozen=True)
class BiasRow:
    """One number that was estimated many times.

    Attributes
    ----------
    name : str
        ``"log likelihood"``, or the hyperparameter whose derivative it is.
    exact, mean, standard_deviation : float
        The truth; mean and standard deviation of the draws.
    scale : float
        About the standard deviation that the exact number has over data sets drawn from the model: an error far below
        it moves the hyperparameters by less than the data leave open. Of a derivative the root of the Fisher
        information, of the log likelihood the root of half the observations.
    n_draws : int
    """

    name: str
    exact: float
    mean: float
    standard_deviation: float
    scale: float
    n_draws: int

    @property
    def bias(self) -> float:
        """Mean minus the truth."""
        return self.mean - self.exact

    @property
    def standard_error(self) -> float:
        """Standard deviation of the mean."""
        return self.standard_deviation / math.sqrt(self.n_draws)

    @property
    def errors(self) -> float:
        """The bias in standard errors; beyond 4 in size it is no chance.

        0 where it is below a millionth of `scale`, infinite where it is not and the draws do not differ.
        """
        negligible = _NEGLIGIBLE * self.scale
        if abs(self.bias) <= negligible:
            return 0.0
        if self.standard_deviation <= 1e-3 * negligible:
            return math.copysign(math.inf, self.bias)
        return self.bias / self.standard_error


@dataclass(frozen=True)
class BiasReport:
    """What `measure_bias` found.

    Attributes
    ----------
    method : str
        What was measured, in words.
    n_rows, n_draws : int
    rows : tuple of BiasRow
        The log likelihood, where there is an estimate of it, then the gradient by the logarithms of the learned
        hyperparameters (variances as standard deviations).
    draws : Tensor of shape (n_draws, number of rows)
    seconds, exact_seconds : float
        Wall time of one gradient, mean over the draws, and of the exact one.
    epochs : float or None
        Passes over all entries of H in one draw; None where none are made.
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
        msg = f"{name!r} was not measured; there are {', '.join(row.name for row in self.rows)}."
        raise InvalidInputError(msg)

    @property
    def worst(self) -> float:
        """The largest bias in standard errors, without its sign."""
        return max(abs(row.errors) for row in self.rows)

    @property
    def gradient_error(self) -> float:
        """Root mean square error of one draw of the gradient, in units of each derivative's scale.

        Bias and variance together, in one number that methods can be compared by: their squares times the cost say what
        a gradient of a given accuracy costs, as far as it can be bought with more draws.
        """
        rows = [row for row in self.rows if row.name != VALUE]
        share = (self.n_draws - 1) / self.n_draws  # standard deviations are those of a sample
        squared = sum((row.bias**2 + share * row.standard_deviation**2) / row.scale**2 for row in rows)
        return math.sqrt(squared / len(rows))

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the single draws as plain data."""
        return {
            "method": self.method,
            "n_rows": self.n_rows,
            "n_draws": self.n_draws,
            "seconds": self.seconds,
            "exact_seconds": self.exact_seconds,
            "epochs": self.epochs,
            "gradient_error": self.gradient_error,
            "rows": [
                {
                    "name": row.name,
                    "exact": row.exact,
                    "mean": row.mean,
                    "bias": row.bias,
                    "standard_error": row.standard_error,
                    "errors": row.errors if math.isfinite(row.errors) else None,
                    "standard_deviation": row.standard_deviation,
                    "scale": row.scale,
                }
                for row in self.rows
            ],
        }


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
    """Draw an estimate of value and gradient again and again at fixed hyperparameters, and compare with the exact ones.

    Every draw is a fresh start with probes, features and random lengths of its own: what one step of a cold fit would
    see.

    Parameters
    ----------
    method : Exact, Iterative, RandomFeatures, ...
        Any of `gigagp.inference`, with any solver, gradient estimator and truncation.
    model : Model
    table : TrainingTable
        Of a few thousand rows at most: the exact numbers need a factor. A fitted `gigagp.GPRegressor` has both,
        as ``posterior_.model`` and ``posterior_.table``.
    n_draws : int, default 100
        At least 2.
    random_state : int or generator
    values : bool, default True
        Also estimate the log marginal likelihood, which costs iterative inference a determinant a draw.
    meter : Meter, optional
        Shows progress.

    Returns
    -------
    BiasReport

    Raises
    ------
    InvalidInputError
        If ``n_draws`` is below 2, or the model has nothing to learn.
    MemoryBudgetError
        If the exact numbers do not fit the table's budget.

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
        msg = "model of measure_bias must have a hyperparameter that is learned; all of its are fixed."
        raise InvalidInputError(msg)
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
    del truth  # and with it the factor
    exact = torch.cat(
        [torch.tensor([reference.value], dtype=torch.float64), space.pull_back(reference.gradient, vector)]
    )

    draws, seconds, epochs = [], [], []
    with meter:
        meter.start(n_draws, "draws")
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
    if not values or bool(found[:, 0].isnan().all()):  # no estimate of the value was made
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
