"""Control variates whose expectation is known at all times, at a cost that knows nothing of rows and functions.

The product of two sampled sums at a few fixed *support rows* is correlated with the same product at all rows, and its
expectation is the square of the full sum there, which a running vector holds (Evans and Nair 2020, eq. 3, Prop. 3, F.1
to F.3). Subtracting the product and adding the expectation changes no mean and removes variance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample
from gigagp.inference.quadruply_stochastic.estimators.terms import both_products


class QuadraticControl:
    """``-u(left) . u(right) + u . u`` with ``u(weights) = P (weights v) - r``, for several vectors v at once.

    Parameters
    ----------
    features : callable
        From an index set to P at these functions, shape (support, w). The functions have to stay as they are: at
        changing hyperparameters they are those of the start (F.3).
    offset : Tensor of shape (support, q)
        r: zeros give eq. 3. The targets of the support rows make u a residual; then the control follows the whole term
        of the mean and not its quadratic part alone, whose noise nearly cancels against that of the other part in a
        good fit.
    """

    def __init__(self, features: Callable[[Tensor], Tensor], offset: Tensor) -> None:
        self.features, self.offset = features, offset
        #: ``P v``, kept up to date by `update` (Proposition 3)
        self.running = torch.zeros_like(offset, dtype=torch.float64)

    def reset(self, blocks: Iterator[tuple[Tensor, Tensor]]) -> None:
        """Compute the running vectors anew from all of v, given in blocks of indices and values (w, q)."""
        self.running.zero_()
        for index, values in blocks:
            self.running += self.features(index).double() @ values.double()

    def update(self, features: Tensor, change: Tensor) -> None:
        """Follow a change of the touched part of v, shape (w, q)."""
        self.running += (features @ change.to(features)).double()

    def value(self, features: Tensor, vectors: Tensor, sample: BasisSample, weights: Tensor) -> Tensor:
        """Return the control, zero in the mean, shape (q,), with an unbiased sparse gradient.

        Parameters
        ----------
        features : Tensor of shape (support, w)
            Of the sample's index.
        vectors : Tensor of shape (w, q)
            The touched part of v; derivatives go through it.
        sample : BasisSample
        weights : Tensor of shape (support,)
            Of the support rows; derivatives go through these too.
        """
        first, second = both_products(features, vectors, sample)
        sampled = weights @ ((first - self.offset) * (second - self.offset))
        # F.1: the value is that of all of v; the slope in the touched part is scaled so that its mean is the whole
        # slope's. The scale is on the running vector alone: around the whole term it would scale the slope in the noise
        # as well.
        step = features @ (sample.linear[:, None] * (vectors - vectors.detach())).to(features)
        exact = weights @ ((self.running - self.offset).to(step) + step).square()
        return exact - sampled


class LinearControl:
    """``2 b . (left v) - 2 b . v`` for a term ``-2 b . v`` of known b: the targets' part, ``b = Phi' N^-1 y`` (F2c).

    It removes what the sampling of functions adds to the value. A sparse unbiased gradient of the known term has the
    same entries as that of the sampled one, so with one set of weights for both the gradient is as it was.

    Parameters
    ----------
    slope : Tensor of shape (m, q)
        b, at all functions: one pass over rows and functions, and m numbers.
    """

    def __init__(self, slope: Tensor) -> None:
        self.slope = slope
        #: ``b . v``
        self.running = torch.zeros((), dtype=torch.float64, device=slope.device)

    def update(self, index: Tensor, change: Tensor) -> None:
        """Follow a change of the touched part of v."""
        self.running += (self.slope[index].double() * change.double()).sum()

    def value(self, index: Tensor, vectors: Tensor, weights: Tensor, linear: Tensor) -> Tensor:
        """Return the control, zero in the mean, one number; ``weights`` are those of the term it belongs to."""
        slope = self.slope[index]
        sampled = (slope * (weights[:, None] * vectors)).sum()
        step = (slope * linear[:, None] * (vectors - vectors.detach())).sum()
        return 2 * (sampled - (self.running.to(step) + step))


@dataclass
class Coefficient:
    """The best multiple of a control, ``-Cov(estimate, control) / Var(control)``, learned from the steps before.

    A multiple that is chosen by earlier draws leaves the mean as it is. A control for a short lengthscale, or of low
    rank, adds variance with the multiple 1 (up to 200-fold); with the fitted one it cannot, but for the error of the
    fit.

    Attributes
    ----------
    memory : float
        Weight of the past at each step.
    warm_up : int
        Steps before the control is used.
    """

    memory: float = 0.99
    warm_up: int = 20
    steps: int = 0
    centre: float = 0.0
    covariance: float = 0.0
    control_variance: float = 0.0
    variance: float = 0.0

    @property
    def value(self) -> float:
        """The multiple."""
        if self.steps < self.warm_up or self.control_variance <= 0:
            return 0.0
        return min(max(-self.covariance / self.control_variance, 0.0), 1.5)

    @property
    def removed(self) -> float:
        """The share of the estimate's variance that the control removes at its multiple; 0 at first."""
        if self.steps < self.warm_up or self.control_variance <= 0 or self.variance <= 0:
            return 0.0
        left = self.variance + 2 * self.value * self.covariance + self.value**2 * self.control_variance
        return 1 - left / self.variance

    def learn(self, estimate: float, control: float) -> None:
        """Take in one step's estimate, without its control, and the control."""
        share = max(1 - self.memory, 1 / (self.steps + 1))
        deviation = estimate - self.centre
        self.centre += share * deviation
        if self.steps:
            self.covariance += share * (deviation * control - self.covariance)
            self.control_variance += share * (control**2 - self.control_variance)
            self.variance += share * (deviation**2 - self.variance)
        self.steps += 1


def fit_coefficient(estimates: Tensor, controls: Tensor) -> float:
    """Return the best multiple of a control from pilot draws of both, each of shape (draws,)."""
    spread = controls.var()
    if float(spread) <= 0:
        return 0.0
    return float(-((estimates - estimates.mean()) * (controls - controls.mean())).sum() / (len(controls) - 1) / spread)
