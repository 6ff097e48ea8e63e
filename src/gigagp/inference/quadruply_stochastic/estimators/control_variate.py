"""Control variates with a known expectation, at a cost that does not depend on the numbers of rows and functions.

The product of two sampled sums at a few fixed *support rows* is correlated with the same product at all rows. Its
expectation is the square of the full sum at the support rows, which a running vector holds (Evans and Nair 2020, eq. 3,
Prop. 3, F.1 to F.3). Subtracting the product and adding the expectation changes no mean and removes variance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample
from gigagp.inference.quadruply_stochastic.estimators.terms import both_products, weighted


class QuadraticControl:
    """``-u(left) . u(right) + u . u`` with ``u(weights) = P (weights v) - r``, for q vectors v at once.

    ``features`` returns P at an index set, shape (support, w). These functions must not change: where the
    hyperparameters move they stay at the start's (F.3). ``offset`` is r, shape (support, q). Zeros give eq. 3. With the
    targets of the support rows u is a residual, and the control follows the whole term of the mean. Its quadratic part
    alone, which eq. 3 follows, has noise that nearly cancels against the noise of the linear part in a good fit.
    """

    def __init__(self, features: Callable[[Tensor], Tensor], offset: Tensor) -> None:
        self.features, self.offset = features, offset
        #: ``P v``, kept up to date by `update` (Proposition 3)
        self.running = torch.zeros_like(offset, dtype=torch.float64)

    def reset(self, blocks: Iterator[tuple[Tensor, Tensor]]) -> None:
        """Compute the running vectors from all of v, given in blocks of indices and values (w, q)."""
        self.running.zero_()
        for index, values in blocks:
            self.running += self.features(index).double() @ values.double()

    def update(self, features: Tensor, change: Tensor, which: slice | None = None) -> None:
        """Follow a change of the touched part of v, shape (w, q), or of some of the vectors."""
        added = (features @ change.to(features)).double()
        self.running[:, which or slice(None)] += added

    def value(
        self, features: Tensor, vectors: Tensor, sample: BasisSample, weights: Tensor, which: slice | None = None
    ) -> Tensor:
        """Return the control, zero in the mean, shape (q,), with an unbiased sparse gradient.

        It is differentiable in ``vectors`` (w, q), the touched part of v, and in the ``weights`` of the support rows.
        ``which`` says which of the vectors are given; None: all.
        """
        offset, running = (one[:, which or slice(None)] for one in (self.offset, self.running))
        first, second = both_products(features, vectors, sample)
        sampled = weights @ ((first - offset) * (second - offset))
        # F.1: the value is that of all of v. The slope in the touched part is scaled so that its mean is the whole
        # slope. Only the running vector is scaled: a scale on the whole term would also scale the slope by the noise.
        step = features @ weighted(sample.linear, vectors - vectors.detach()).to(features)
        exact = weights @ ((running - offset).to(step) + step).square()
        return exact - sampled


class LinearControl:
    """``2 b . (left v) - 2 b . v`` for a term ``-2 b . v`` with known b: the targets' term, ``b = Phi' N^-1 y`` (F2c).

    It removes the noise that sampled functions add to the value. The gradient stays as it is: a sparse unbiased
    gradient of the known term has the same entries as that of the sampled term, with the same weights. ``slope`` is b
    for all functions, shape (m, q).
    """

    def __init__(self, slope: Tensor) -> None:
        self.slope = slope
        #: ``b . v``
        self.running = torch.zeros((), dtype=torch.float64, device=slope.device)

    def update(self, index: Tensor, change: Tensor) -> None:
        """Follow a change of the touched part of v."""
        self.running += (self.slope[index].double() * change.double()).sum()

    def value(self, index: Tensor, vectors: Tensor, weights: Tensor, linear: Tensor) -> Tensor:
        """Return the control, a scalar that is zero in the mean and differentiable in the touched part of v.

        ``weights`` are those of the sampled term, and ``linear`` those of an unbiased sum, for the derivatives.
        """
        slope = self.slope[index]
        sampled = (slope * (weights[:, None] * vectors)).sum()
        step = (slope * linear[:, None] * (vectors - vectors.detach())).sum()
        return 2 * (sampled - (self.running.to(step) + step))


@dataclass
class Coefficient:
    """The best multiple of a control, ``-Cov(estimate, control) / Var(control)``, learned from earlier steps.

    A multiple that earlier draws have chosen leaves the mean unbiased. With the multiple 1 a control of low rank, or at
    a short lengthscale, adds variance (up to 200-fold). The fitted multiple adds none beyond the error of its fit.
    """

    #: weight of the earlier steps in the running moments
    memory: float = 0.99
    #: steps before the control is used, if its multiple is learned
    warm_up: int = 20
    steps: int = 0
    centre: float = 0.0
    covariance: float = 0.0
    control_variance: float = 0.0
    variance: float = 0.0
    #: a multiple to use instead, from the first step; None: the learned one
    fixed: float | None = None

    @property
    def value(self) -> float:
        """The multiple: 0 before the warm-up has ended, unless it is fixed."""
        if self.fixed is not None:
            return self.fixed
        if self.steps < self.warm_up or self.control_variance <= 0:
            return 0.0
        return min(max(-self.covariance / self.control_variance, 0.0), 1.5)

    @property
    def removed(self) -> float:
        """The share of the estimate's variance that the control removes; 0 before the warm-up has ended."""
        if self.steps < self.warm_up or self.control_variance <= 0 or self.variance <= 0:
            return 0.0
        left = self.variance + 2 * self.value * self.covariance + self.value**2 * self.control_variance
        return 1 - left / self.variance

    def learn(self, estimate: float, control: float) -> None:
        """Update the moments with one step's estimate, without its control, and the control."""
        share = max(1 - self.memory, 1 / (self.steps + 1))
        deviation = estimate - self.centre
        self.centre += share * deviation
        if self.steps:
            self.covariance += share * (deviation * control - self.covariance)
            self.control_variance += share * (control**2 - self.control_variance)
            self.variance += share * (deviation**2 - self.variance)
        self.steps += 1
