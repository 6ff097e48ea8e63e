"""Kernels of one input as linear equations of a state, which make inference linear in the rows.

A kernel has a state-space form if its functions are ``f(t) = sum_b h_b(t)' x_b(t)`` with independent Markov states
``x_b``. A `Component` is one of these states: its covariance at a time, and its step from a time to a later one,
``x(t) = F x(s) + w`` with ``cov w = Q``. A sum of kernels has the components of all parts. A product has a component
for each choice of one from every part, with Kronecker products of the matrices.

Every covariance here is a sum of products of non-negative numbers, as far as there is such a form: short steps leave
tiny covariances with all their digits, where ``P(t) - F P(s) F'`` has none.

References
----------
Hartikainen and Sarkka 2010, Kalman filtering and smoothing solutions to temporal Gaussian process regression models,
doi:10.1109/MLSP.2010.5589113; Solin and Sarkka 2014, Explicit link between periodic covariance functions and state
space models, http://proceedings.mlr.press/v33/solin14.html; Foreman-Mackey et al. 2017, Fast and scalable Gaussian
process modeling with applications to astronomical time series, doi:10.3847/1538-3881/aa9332.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Steps in lengthscales from which ``exp(-x) x^k`` is zero in float64, and powers of larger ones may overflow.
_FARTHEST = 800.0


class Component(ABC):
    """One independent state of a kernel; ``b`` numbers.

    Times are float64 of shape (n,). All methods are differentiable in the hyperparameters and the times.
    """

    size: int

    @abstractmethod
    def covariance(self, t: Tensor) -> Tensor:
        """Return the prior covariance of the state at times, (n, b, b)."""

    @abstractmethod
    def step(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return F and Q of the steps from times s to times t that are not earlier, each (n, b, b)."""

    def seen(self, t: Tensor) -> Tensor:
        """Return h, by which the function follows from the state, (n, b); it depends on no hyperparameter."""
        return torch.eye(1, self.size, dtype=t.dtype).expand(len(t), -1)


@dataclass(frozen=True)
class Resting(Component):
    """A single number that does not change: a constant, or with a ``centre`` the slope of a line that is zero there."""

    variance: Tensor
    centre: float | None = None
    size = 1

    def covariance(self, t: Tensor) -> Tensor:
        return self.variance.expand(len(t), 1, 1)

    def step(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return t.new_ones(len(t), 1, 1), t.new_zeros(len(t), 1, 1)

    def seen(self, t: Tensor) -> Tensor:
        return super().seen(t) if self.centre is None else (t - self.centre)[:, None]


@dataclass(frozen=True)
class Turning(Component):
    """A wave of one period: a point that goes round."""

    variance: Tensor
    period: Tensor
    size = 2

    def covariance(self, t: Tensor) -> Tensor:
        return (self.variance * torch.eye(2, dtype=t.dtype)).expand(len(t), 2, 2)

    def step(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        angle = (t - s) * (2 * math.pi / self.period)
        c, d = torch.cos(angle), torch.sin(angle)
        return _matrix([[c, d], [-d, c]]), t.new_zeros(len(t), 2, 2)


@dataclass(frozen=True)
class Relaxing(Component):
    """The state of a Matern kernel of smoothness p + 1/2: white noise through p + 1 equal low-pass filters in a row.

    The state is f, ``(D + 1) f``, ``(D + 1)^2 f``, ... for the derivative D in units of the decay time. So F has no
    entry below its diagonal, and Q consists of incomplete gamma functions alone.
    """

    variance: Tensor
    rate: Tensor  # 1 / decay time
    order: int  # p

    @property
    def size(self) -> int:  # type: ignore[override]
        """Numbers of the state."""
        return self.order + 1

    def _spread(self, gammas: Sequence[Tensor]) -> Tensor:
        """Return Q from the integrals of ``u^k exp(-u)`` up to twice the step."""
        p = self.order
        scale = self.variance * (2 ** (2 * p + 1) * math.factorial(p) ** 2 / math.factorial(2 * p))
        ends = [1 / math.factorial(p - i) for i in range(p + 1)]
        scaled = [scale * gamma / 2 ** (k + 1) for k, gamma in enumerate(gammas)]
        return _matrix([[scaled[2 * p - i - j] * (a * b) for j, b in enumerate(ends)] for i, a in enumerate(ends)])

    def covariance(self, t: Tensor) -> Tensor:
        wholes = [t.new_tensor(float(math.factorial(k))) for k in range(2 * self.order + 1)]
        return self._spread(wholes).expand(len(t), -1, -1)

    def step(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        x = ((t - s) * self.rate).clamp_max(_FARTHEST)
        e, zero = torch.exp(-x), torch.zeros_like(x)
        powers = [e]
        for k in range(1, self.order + 1):
            powers.append(powers[-1] * x / k)
        F = _matrix([[powers[j - i] if j >= i else zero for j in range(self.size)] for i in range(self.size)])
        return F, self._spread(incomplete_gammas(2 * x, 2 * self.order))


@dataclass(frozen=True)
class Swinging(Component):
    """A damped oscillator that white noise drives: its position, and its velocity in units of the frequency."""

    variance: Tensor
    frequency: Tensor  # of the undamped oscillator, in radians
    quality: Tensor
    size = 2

    def covariance(self, t: Tensor) -> Tensor:
        return (self.variance * torch.eye(2, dtype=t.dtype)).expand(len(t), 2, 2)

    def step(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        x = (t - s) * self.frequency
        c, d = damped_waves(x, self.quality)
        half = 0.5 / self.quality
        F = _matrix([[c + half * d, d], [-d, c - half * d]])
        # the noise enters at the velocity: Q = 2 / quality times the integral of what is left of it
        limit = _SHORT * min(1.0, float(self.quality.detach()))
        step = x.clamp_max(limit)
        c, d = damped_waves(step[:, None] * (0.5 * (_SHARES + 1)), self.quality)
        ends = torch.stack([d, c - half * d], -1)
        scale = step / self.quality  # the weights add up to 2
        short = torch.einsum("nk,nki,nkj->nij", scale[:, None] * _WEIGHTS, ends, ends)
        whole = torch.eye(2, dtype=t.dtype) - F @ F.mT
        return F, self.variance * torch.where((x <= limit)[:, None, None], short, whole)


#: Steps in radians, or decay times, up to which the covariance of an oscillator comes from a rule of ten points, which
#: has an error below 1e-15 there. Beyond, little cancels.
_SHORT = 0.5
_SHARES, _WEIGHTS = (torch.from_numpy(one) for one in np.polynomial.legendre.leggauss(10))


def damped_waves(x: Tensor, quality: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``exp(-a x) cos(b x)`` and ``exp(-a x) sin(b x) / b`` with ``a = 1 / (2 quality)``, ``b^2 = 1 - a^2``.

    For a quality below 1/2, b is imaginary, and both decay without waves. They are smooth in the quality.
    """
    a = 0.5 / quality
    square = (1 - a) * (1 + a)
    sign = float(square.detach())
    if sign >= _NEAR:
        b, e = square.sqrt(), torch.exp(-a * x)
        return e * torch.cos(b * x), e * torch.sin(b * x) / b
    if sign <= -_NEAR:
        b = (-square).sqrt()
        slow, quick = torch.exp(-x / (a + b)), torch.exp(-(a + b) * x)  # a - b = 1 / (a + b)
        return 0.5 * (slow + quick), 0.5 * (slow - quick) / b
    e = torch.exp(-a * x.clamp_max(_FARTHEST))
    z = square * x.clamp_max(_FARTHEST).square()
    c, d = torch.ones_like(z), torch.ones_like(z)
    for k in range(_TERMS, 0, -1):  # the series of cos(y) and sin(y) / y in z = y^2
        c, d = 1 - c * z / ((2 * k - 1) * (2 * k)), 1 - d * z / ((2 * k) * (2 * k + 1))
    return e * c, e * d * x.clamp_max(_FARTHEST)


def damped_bend(x: Tensor, c: Tensor, d: Tensor, quality: Tensor) -> Tensor:
    """Return the derivative of ``c + a d`` by a, which is ``(d - x c) / b^2``, for the `damped_waves` c and d."""
    a = 0.5 / quality
    square = (1 - a) * (1 + a)
    if abs(float(square)) >= _NEAR:
        return (d - x * c) / square
    x = x.clamp_max(_FARTHEST)
    z, total = square * x.square(), torch.ones_like(x)
    for k in range(_TERMS, 1, -1):  # sin(y) / y - cos(y) is the sum of (-1)^(k + 1) 2 k z^k / (2 k + 1)!
        total = 1 - total * z / (2 * (k - 1) * (2 * k + 1))
    return torch.exp(-a * x) * x**3 / 3 * total


#: Squares of b up to which series take the place of the waves, whose difference would cancel. At the square 1e-4 and 40
#: decay times, where nothing is left, z is .16.
_NEAR, _TERMS = 1e-4, 12


class Anchored(Component):
    """A state whose function is zero at a ``centre``, from which it runs to both sides.

    What a subclass gives is the side on the right, as a function of the distance from the centre. The left side is its
    mirror image. There the steps lead towards the centre: by Bayes' rule,
    ``x(r) = G x(r + d)`` on average with ``G = P(r) F' P(r + d)^-1``.
    """

    centre: float
    size = 2

    @abstractmethod
    def onward(self, d: Tensor) -> tuple[Tensor, Tensor]:
        """Return F and Q of steps of lengths d away from the centre."""

    @abstractmethod
    def reached(self, r: Tensor) -> Tensor:
        """Return the covariance of the state at distances r from the centre."""

    def covariance(self, t: Tensor) -> Tensor:
        apart = t - self.centre
        return self._mirrored(self.reached(apart.abs()), apart < 0)

    @staticmethod
    def _mirrored(matrices: Tensor, left: Tensor) -> Tensor:
        signs = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=matrices.dtype)
        return torch.where(left[:, None, None], matrices * signs, matrices)

    def step(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        middle = torch.full_like(t, self.centre).maximum(s).minimum(t)
        F, Q = self.onward(t - s.maximum(middle))
        left = middle > s
        if not bool(left.any()):
            return F, Q
        near, d = (self.centre - middle).clamp_min(0), torch.where(left, middle - s, 1.0)
        G, R = (self._mirrored(one, left) for one in self.homeward(near, d))
        eye = torch.eye(2, dtype=t.dtype)
        G = torch.where(left[:, None, None], G, eye)
        R = torch.where(left[:, None, None], R, torch.zeros_like(R))
        return F @ G, F @ R @ F.mT + Q

    @abstractmethod
    def homeward(self, near: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        """Return G and the covariance that it leaves, for steps of lengths d > 0 to distances ``near``."""


@dataclass(frozen=True)
class Drifting(Anchored):
    """An integrated Wiener process and its slope."""

    variance: Tensor
    centre: float

    def onward(self, d: Tensor) -> tuple[Tensor, Tensor]:
        one = torch.ones_like(d)
        return _matrix([[one, d], [torch.zeros_like(d), one]]), self.reached(d)

    def reached(self, r: Tensor) -> Tensor:
        half = r.square() / 2
        return self.variance * _matrix([[r**3 / 3, half], [half, r]])

    def homeward(self, near: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        """Return a cubic between two ends of the path, and the variance of the bridge."""
        far = near + d
        p, q = near / far, d / far
        G = _matrix([[p**2 * (3 - 2 * p), -far * p**2 * q], [6 * p * q / far, p * (3 * p - 2)]])
        across = far**2 * (p * q) ** 2 * (q - p) / 2
        # 1 - 3 p q = p^2 - p q + q^2
        slope = far * p * q * (p**2 - p * q + q**2)
        return G, self.variance * _matrix([[(far * p * q) ** 3 / 3, across], [across, slope]])


@dataclass(frozen=True)
class Damped(Anchored):
    """The integral of a slope that forgets itself after a lengthscale, and the slope."""

    variance: Tensor  # of the slope
    lengthscale: Tensor
    centre: float

    def onward(self, d: Tensor) -> tuple[Tensor, Tensor]:
        x = (d / self.lengthscale).clamp_max(_FARTHEST)
        e, run = torch.exp(-x), -torch.expm1(-x)
        F = _matrix([[torch.ones_like(x), self.lengthscale * run], [torch.zeros_like(x), e]])
        level = damped_level(d / self.lengthscale)
        across = self.lengthscale * run.square()
        return F, self.variance * _matrix([[self.lengthscale**2 * level, across], [across, -torch.expm1(-2 * x)]])

    def reached(self, r: Tensor) -> Tensor:
        x = (r / self.lengthscale).clamp_max(_FARTHEST)
        across = -self.lengthscale * torch.expm1(-x)
        whole = 2 * self.lengthscale**2 * remainder(r / self.lengthscale, 2)
        return self.variance * _matrix([[whole, across], [across, torch.ones_like(x)]])

    def homeward(self, near: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        """Return G and the covariance that it leaves.

        Towards the centre the slope is the same process. So three things follow from the slope at the far end: the run
        to the near end, the slope there, and what the run on to the centre adds to ``a`` times that slope. The value at
        the far end is the sum of both runs, and conditions them.
        """
        (F, Q), (onward, noise) = self.onward(d), self.onward(near)
        a, zero, one = onward[:, 0, 1], torch.zeros_like(d), torch.ones_like(d)
        cov = torch.nn.functional.pad(Q, (0, 1, 0, 1)) + torch.nn.functional.pad(noise[:, :1, :1], (2, 0, 2, 0))
        total = torch.stack([one, a, one], 1)[:, :, None]
        states = torch.stack([torch.stack([zero, a, one], 1), torch.stack([zero, one, zero], 1)], 1)
        K = cov @ total / (total.mT @ cov @ total)
        by_value, left = states @ K, states - states @ K @ total.mT
        slope = torch.stack([F[:, 0, 1], F[:, 1, 1], zero], 1)[:, :, None]  # means of all three by that slope
        return torch.cat([by_value, left @ slope], 2), left @ cov @ left.mT


def damped_level(x: Tensor) -> Tensor:
    """Return the variance that noise adds to the integral within x lengthscales, ``2 (x - 1 + e) - (1 - e)^2``.

    With ``e = exp(-x)``. For small x this is ``2 x^3 / 3``.
    """
    small = x.clamp_max(1.0)
    series = 2 * remainder(small, 3) + remainder(small, 2) * (small - torch.expm1(-small))
    run = -torch.expm1(-x.clamp_max(_FARTHEST))
    return torch.where(x < 1, series, 2 * (x - run) - run.square())


def remainder(x: Tensor, order: int) -> Tensor:
    """Return ``exp(-x)`` minus the first ``order`` terms of its series, without cancellation where x is small."""
    small = x.clamp_max(1.0)
    total = one = torch.ones_like(small)
    for k in range(order + 18, order, -1):
        total = torch.addcmul(one, total, small, value=-1 / k)
    head = (-1) ** order * small**order / math.factorial(order) * total
    whole = torch.exp(-x.clamp_max(_FARTHEST)) - sum((-x) ** k / math.factorial(k) for k in range(order))
    return torch.where(x < 1, head, whole)


class Joint(Component):
    """The state of a product of kernels: all products of one number from each state."""

    def __init__(self, parts: Sequence[Component]) -> None:
        self.parts = tuple(parts)
        self.size = math.prod(part.size for part in parts)

    def covariance(self, t: Tensor) -> Tensor:
        found = self.parts[0].covariance(t)
        for part in self.parts[1:]:
            found = _kronecker(found, part.covariance(t))
        return found

    def step(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        F, Q = self.parts[0].step(s, t)
        before = self.parts[0].covariance(s)
        for part in self.parts[1:]:
            G, R = part.step(s, t)
            # P P' - (P - Q) (P' - R) for the covariances P and P' after the step: two terms that are not negative
            Q = _kronecker(Q, part.covariance(t)) + _kronecker(F @ before @ F.mT, R)
            F, before = _kronecker(F, G), _kronecker(before, part.covariance(s))
        return F, Q

    def seen(self, t: Tensor) -> Tensor:
        found = self.parts[0].seen(t)
        for part in self.parts[1:]:
            found = (found[:, :, None] * part.seen(t)[:, None, :]).flatten(1)
        return found


def product_of(parts: Sequence[tuple[Component, ...]]) -> tuple[Component, ...]:
    """Return the components of a product of kernels with these components."""
    return tuple(choice[0] if len(choice) == 1 else Joint(choice) for choice in itertools.product(*parts))


def _kronecker(A: Tensor, B: Tensor) -> Tensor:
    """Return Kronecker products of matrices (n, a, a) and (n, b, b)."""
    size = A.shape[1] * B.shape[1]
    return (A[:, :, None, :, None] * B[:, None, :, None, :]).reshape(-1, size, size)


def _matrix(rows: list[list[Tensor]]) -> Tensor:
    """Return matrices (n, b, b), or (b, b), of entries (n,), or ()."""
    size = len(rows)
    return torch.stack([one for row in rows for one in row], -1).unflatten(-1, (size, size))


# Integrals of powers times a decay ------------------------------------------------------------------------------------


class _TopGamma(torch.autograd.Function):
    """The integral of ``u^k exp(-u)`` from 0 to y, whose derivative is simple."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, k: int) -> Tensor:
        ctx.k = k
        ctx.save_for_backward(y)
        if k == 0:
            return -torch.expm1(-y)
        small, e = y.clamp_max(1.0), torch.exp(-y)
        series, tail = torch.ones_like(y), torch.ones_like(y)
        for j in range(k + 17, k + 1, -1):
            series = series.mul_(small).div_(j).add_(1)
        for j in range(k, 0, -1):
            tail = tail.mul_(y).div_(j).add_(1)
        whole = math.factorial(k) * (1 - e * tail)
        return torch.where(y < 1, small ** (k + 1) * e * series / (k + 1), whole)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return gradients[0] * y**ctx.k * torch.exp(-y), None


def incomplete_gammas(y: Tensor, most: int) -> list[Tensor]:
    """Return the integrals of ``u^k exp(-u)`` from 0 to y for k from 0 to an even number ``most``.

    The last one comes from a series or its closed form; the others follow downwards by sums of positive numbers.
    """
    found = [_TopGamma.apply(y, most)]
    e = torch.exp(-y)
    for k in range(most, 0, -1):
        found.append((found[-1] + y**k * e) / k)
    return found[::-1]
