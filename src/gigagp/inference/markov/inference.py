"""`inference.Markov`: the settings of inference along one input."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from gigagp.errors import InvalidInputError
from gigagp.inference.contract.base import Abilities, Inference
from gigagp.inference.contract.forecast import Forecast, Subject
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.markov.objective import MarkovObjective, row_seconds
from gigagp.inference.markov.posterior import MarkovPosterior, posterior_bytes
from gigagp.inference.markov.states import States
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
#: Gradients and posteriors of a fit after neighbours have learned.
_EVALUATIONS = 6


@dataclass(frozen=True)
class Markov(Inference):
    """Exact inference for one input, in time and memory linear in the rows, by a Kalman filter and smoother.

    A kernel with a state-space form is a linear equation that noise drives: a row needs the state of the row before and
    not all earlier rows. The answers are those of `Exact` to rounding: likelihood, gradient, mean, variance,
    covariance, samples, rows left out, further rows. Rows may come in any order, with steps of any length and with
    repeated times.

    When to use: for a series in time, or any table of one input, of any number of rows. A state has p + 1 numbers for
    a Matern kernel of smoothness p + 1/2, 2 for a wave, an oscillator or a trend and 1 for a constant or a slope. Those
    of a sum add up, and those of a product multiply; time grows with the square or the cube of their number.

    Notes
    -----
    A `Periodic` kernel is the sum of its harmonics, as many as it takes to miss less than 1e-12 of its variance; that
    is 11 for a lengthscale of 1. There are at most 32, which suffice for lengthscales from 0.24 on. The share that they
    miss bounds the error of every covariance, and `describe()` tells it. `RBF` and `RationalQuadratic` have no state of
    finitely many numbers and are refused, and so are likelihoods that are not Gaussian, except Student-t noise.

    References
    ----------
    Hartikainen and Sarkka 2010, Kalman filtering and smoothing solutions to temporal Gaussian process regression
    models, doi:10.1109/MLSP.2010.5589113; Durbin and Koopman 2012, Time Series Analysis by State Space Methods, ch. 4.
    """

    abilities = Abilities(
        "markov",
        "any number, of one input",
        kernels="state space",
        most_inputs=1,
        adds_rows=True,
        dtypes=("float64",),
        devices="cpu",
    )
    posteriors = (MarkovPosterior,)

    def objective(
        self, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> MarkovObjective:
        return MarkovObjective(replace(table, X=table.X.cpu(), Y=table.Y.cpu()))

    def serves(self, model: Model, n_rows: int, budget: int) -> bool:
        """Return whether ``"auto"`` chooses this method for a model that was given: many rows of one input."""
        if n_rows <= _FEWEST_ROWS:
            return False
        try:
            self.check_model(model)
        except InvalidInputError:
            return False
        size = States(model.kernel).size
        return size <= _MOST_STATES and posterior_bytes(n_rows, size) <= budget

    def forecast(self, subject: Subject) -> Forecast:
        """Return the time of a few gradients and of the posterior, and the error of exact inference."""
        n, size = subject.table.n_rows, States(subject.model.kernel).size
        seconds = _EVALUATIONS * row_seconds(size) * n
        return subject.with_nll(seconds, posterior_bytes(n, size, subject.table.n_targets + 2), subject.exact_nll)

    def check_model(self, model: Model) -> None:
        super().check_model(model)
        try:
            model.kernel.state_space()
        except InvalidInputError as error:
            raise InvalidInputError(
                f"kernel of GPRegressor must have a state-space form for {self.label}: {_KERNELS}; got "
                f"{model.kernel!r}. {error} Use kernels.Matern(nu=2.5), inference.Exact or inference.Vecchia."
            ) from error

    def describe(self) -> str:
        return "exact along one input (Kalman filter)"
