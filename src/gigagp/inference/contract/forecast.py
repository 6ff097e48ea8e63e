"""The expected cost and error of an inference method on a table: what `Inference.forecast` takes and returns."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from gigagp.inference.contract.table import TrainingTable
from gigagp.model.model import Model

#: Largest ratio of the gains of successive doublings.
_LARGEST_RATIO = 0.8


def ratio_of_gains(before: float, after: float) -> float:
    """Return the ratio of a geometric series of gains from two of them, at most 0.8, so that all others add up."""
    return min(after / before, _LARGEST_RATIO) if before > 0 else _LARGEST_RATIO


@dataclass(frozen=True)
class Subject:
    """A table whose hyperparameters have been learned from nearest neighbours, and what is known of it by then.

    Attributes
    ----------
    table : TrainingTable
        Training rows in the model's units.
    model : Model
        The learned model.
    left_out : Tensor of shape (s,)
        Indices of random rows that have been predicted without themselves.
    densities : Tensor of shape (s,)
        Negative log densities of these rows given the rows nearest to them, means over targets.
    squares : Tensor of shape (s,)
        Squared errors of these predictions over their variances, means over targets.
    rmse : float
        Root mean square error of these predictions.
    gain : float
        Expected gain of exact inference over `nll`, in nats.
    products : float
        Products with the kernel matrix that a solve is expected to take.
    row_seconds : float
        Nominal seconds in which a row is conditioned on its neighbours.
    seconds_left : float
        Nominal seconds that are left of a time budget: what takes longer need not be tried.
    """

    table: TrainingTable
    model: Model
    left_out: torch.Tensor
    densities: torch.Tensor
    squares: torch.Tensor
    rmse: float
    gain: float
    products: float
    row_seconds: float
    seconds_left: float = math.inf

    @property
    def nll(self) -> float:
        """Expected negative log density of a new target given its neighbours."""
        return float(self.densities.mean())

    @property
    def exact_nll(self) -> float:
        """Expected negative log density of a new target under exact inference."""
        return self.nll - self.gain

    @property
    def exact_variance(self) -> float:
        """The variance of a normal distribution, right about its errors, that has the density `exact_nll`."""
        return math.exp(2 * self.exact_nll - 1) / (2 * math.pi)

    def with_nll(self, seconds: float, memory: float, nll: float) -> Forecast:
        """Return a forecast with a density, and with the error that goes with it if the variances are right."""
        return Forecast(seconds, memory, nll, self.rmse * math.exp(nll - self.nll))


@dataclass(frozen=True)
class Forecast:
    """The expected cost and error of an inference method.

    Attributes
    ----------
    seconds : float
        Time of what comes after learning from neighbours, on the machine of the benchmarks with one thread; see
        `gigagp.runtime.machine`.
    memory : float
        Bytes at the peak, in addition to the table.
    nll, rmse : float or None, default None
        Expected negative log density of a new target in nats, and its root mean square error; None if the method cannot
        tell. It is then never chosen.
    """

    seconds: float
    memory: float
    nll: float | None = None
    rmse: float | None = None
