"""`inference.Markov`: the settings of state-space inference in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.contract.base import Abilities, Inference
from gigagp.inference.contract.forecast import Forecast, Subject
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import EXACT_ROWS
from gigagp.inference.markov.objective import MarkovObjective, row_seconds
from gigagp.inference.markov.posterior import MarkovPosterior, posterior_bytes, require_states
from gigagp.inference.markov.states import Axis, States, check_states
from gigagp.model.likelihoods import Likelihood
from gigagp.model.model import Model

_KERNELS = (
    "Matern, Cosine, Oscillator, Periodic, IntegratedWiener, DampedTrend, Constant, Linear and White, and sums and "
    "products of them"
)

#: Rows beyond which ``"auto"`` chooses this method, because factors take many times as long as passes over the rows.
_FEWEST_ROWS = 1000
#: Numbers of a state up to which ``"auto"`` chooses this method: beyond, a row costs more than its neighbours do.
_MOST_STATES = 16
#: For a panel, where neighbours lose more: the most entities, and nominal seconds of an evaluation.
MOST_ENTITIES, MOST_SECONDS = 50, 6.0
#: Gradients and posteriors of a fit after neighbours have learned.
_EVALUATIONS = 6


class _Cost(NamedTuple):
    """What a fit costs: numbers of a state, nominal seconds of a row in an evaluation, and bytes of the posterior."""

    axis: Axis
    size: int
    row_seconds: float
    memory: float


@dataclass(frozen=True)
class Markov(Inference):
    """Exact state-space inference, linear in the number of rows, by a Kalman filter and smoother.

    A kernel with a state-space form is the covariance of a linear differential equation driven by noise: a row depends
    on earlier rows only through the state at the previous row. All results equal those of `Exact` up to rounding:
    likelihood, gradient, mean, variance, covariance, samples, leave-one-out predictions and added rows. Rows may come
    in any order, with steps of any length and with repeated times.

    When to use: for a time series, or any table with one input, with any number of rows; and for a panel, or correlated
    outputs, of up to about fifty entities at any number of times. The state dimension is p + 1 for a Matern kernel of
    smoothness p + 1/2, 2 for a wave, an oscillator or a trend, and 1 for a constant or a slope. Dimensions add up in a
    sum and multiply in a product; time grows with the square or the cube of the dimension.

    In a panel every term of the kernel is a product of kernels of the time column and kernels of the other columns,
    those of the entities, which may be any kernels. There is then a state of this dimension for each entity. Entities
    without rows are predicted from their columns, as by `Exact`.

    Notes
    -----
    A `Periodic` kernel is represented by as many harmonics as are needed to lose less than 1e-12 of its variance: 11
    for a lengthscale of 1. There are at most 32, which suffice for lengthscales from 0.24 on. The fraction that they
    lose bounds the error of every covariance, and `describe()` reports it. `RBF` and `RationalQuadratic` have no
    finite-dimensional state and are refused, and so are non-Gaussian likelihoods, except Student-t noise.

    References
    ----------
    Hartikainen and Sarkka 2010, Kalman filtering and smoothing solutions to temporal Gaussian process regression
    models, doi:10.1109/MLSP.2010.5589113; Durbin and Koopman 2012, Time Series Analysis by State Space Methods, ch. 4.
    """

    abilities = Abilities(
        "markov",
        "any number, of one input or of few entities",
        kernels="state space",
        adds_rows=True,
        dtypes=("float64",),
        devices="cpu",
    )
    posteriors = (MarkovPosterior,)

    def objective(
        self, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> MarkovObjective:
        """Return the log marginal likelihood of rows of one input."""
        return MarkovObjective(replace(table, X=table.X.cpu(), Y=table.Y.cpu()))

    def objective_of(
        self, model: Model, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> MarkovObjective:
        """Return that of rows of which the kernel of a model tells the column of the time."""
        objective = MarkovObjective(replace(table, X=table.X.cpu(), Y=table.Y.cpu()), model)
        require_states(model, objective.table, objective.axis)
        return objective

    def serves(self, model: Model, n_rows: int, rows: Callable[[], np.ndarray], budget: int) -> bool:
        """Return whether ``"auto"`` chooses this method for a model that was given and rows, which are made if needed.

        Those are many rows of one input, or of a panel of few entities that is too large for `Exact`.
        """
        if n_rows <= _FEWEST_ROWS:
            return False
        try:
            self.check_model(model)
        except InvalidInputError:
            return False
        found = self._cost(model, torch.from_numpy(rows()), 3)
        if found is None or found.memory > budget:
            return False
        if not found.axis.columns:
            return found.size <= _MOST_STATES
        return n_rows > EXACT_ROWS and found.row_seconds * n_rows <= MOST_SECONDS

    def forecast(self, subject: Subject) -> Forecast | None:
        """Return the time of a few gradients and of the posterior, and the error of exact inference."""
        table = subject.table
        found = self._cost(subject.model, table.X, table.n_targets + 2)
        if found is None:
            return None
        return subject.with_nll(_EVALUATIONS * found.row_seconds * len(table.X), found.memory, subject.exact_nll)

    @staticmethod
    def _cost(model: Model, X: Tensor, n_columns: int) -> _Cost | None:
        """Return what rows cost; None for too many entities."""
        axis = Axis.of(model.kernel, X)
        if len(axis.entities) > MOST_ENTITIES:
            return None
        states = States(model.kernel, axis)
        memory = posterior_bytes(len(X), len(states.times(X).unique()), states.size, n_columns)
        return _Cost(axis, states.size, row_seconds(states.blocks), memory)

    def check_model(self, model: Model) -> None:
        super().check_model(model)
        try:
            check_states(model.kernel)
        except InvalidInputError as error:
            raise InvalidInputError(
                f"kernel of GPRegressor must have a state-space form for {self.label}: {_KERNELS}; got "
                f"{model.kernel!r}. {error} Use kernels.Matern(nu=2.5), inference.Exact or inference.Vecchia."
            ) from error

    def describe(self) -> str:
        return "exact along the time (Kalman filter)"
