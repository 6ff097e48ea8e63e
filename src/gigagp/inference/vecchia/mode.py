"""The most probable latent values, by Newton's method in independent coordinates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.inference.vecchia.latent import LatentSpace
from gigagp.model.likelihoods import Likelihood

#: A step takes at least this share of the expected information as its curvature, where the likelihood has one.
_LEAST_SHARE = 0.05
#: Steps to the most probable latent value of a single row, and the longest.
_ROW_STEPS, _LONGEST = 15, 3.0
#: What a learned mean adds to the prior variance of a single row.
_OPEN = 1e3


class Curvature(NamedTuple):
    """Derivatives of the log density of every target by its latent value, (n, t) each, for a Laplace approximation."""

    slope: Tensor  # first derivatives
    second: Tensor  # minus the second derivatives
    hessian: Tensor  # those, or a little more: the curvature of Newton's steps
    curvature: Tensor  # W of the Gaussian approximation: minus the second derivatives, or the expected information
    change: Tensor  # derivatives of ``curvature``

    @classmethod
    def of(cls, likelihood: Likelihood, targets: Tensor, latent: Tensor, noise: Tensor) -> Curvature:
        """Return the derivatives at latent values (n, t) with the noise variances (n,) of the rows."""
        with torch.enable_grad():
            f = latent.detach().clone().requires_grad_()
            each = noise.detach()[:, None].expand_as(f)
            _, slope, second, curvature = terms(likelihood, targets, f, each)
            change = _derivative(curvature, f)
        second, curvature = second.detach(), curvature.detach()
        least = _LEAST_SHARE * curvature if likelihood.information_at(latent, each) is not None else 0.0
        hessian = torch.maximum(second, torch.as_tensor(least).to(second))
        # Not positive by rounding, far out in a tail.
        kept = curvature > 0
        change = torch.where(kept, change, 0.0).detach()
        return cls(slope.detach(), second, hessian, curvature.clamp_min(0), change)


def terms(likelihood: Likelihood, targets: Tensor, f: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log densities, slopes, minus the second derivatives and the curvature W, differentiable in all arguments.

    f, of shape (n, t), requires a gradient.
    """
    value = likelihood.smooth_log_density(targets, f, noise)
    slope = _derivative(value, f)
    second = -_derivative(slope, f)
    information = likelihood.information_at(f, noise)
    return value, slope, second, second if information is None else information.expand_as(f)


def _derivative(values: Tensor, f: Tensor) -> Tensor:
    """Return the derivatives of values of single rows by their latent values."""
    if not values.requires_grad:
        return torch.zeros_like(f)
    (found,) = torch.autograd.grad(values.sum(), f, create_graph=True, allow_unused=True)
    return torch.zeros_like(f) if found is None else found


def row_modes(likelihood: Likelihood, targets: Tensor, noise: Tensor, variance: Tensor, offset: Tensor) -> Tensor:
    """Return the most probable latent value of every row by itself, (n, t), under a prior variance (n,).

    ``offset``, (n, t), is added to it.

    Newton's method on all rows starts there: from zero, counts in the thousands would need as many steps as they have
    digits, and each would overflow first.
    """
    f = torch.zeros_like(offset)
    for _ in range(_ROW_STEPS):
        found = Curvature.of(likelihood, targets, f + offset, noise)
        step = (found.slope - f / variance[:, None]) / (found.hessian + 1 / variance[:, None])
        f = f + step.clamp(-_LONGEST, _LONGEST)
    return f


#: Most Newton steps, halvings of a step, and the relative error of the solve for a step.
_STEPS, _HALVINGS, _TOLERANCE = 100, 12, 0.01
#: Factor by which noise falls on the way to one of several modes, and the steps for each.
_FALL, _EACH = 30.0, 3
#: Most noise there, over the likelihood's own.
_MOST = 1e30


class Mode(NamedTuple):
    """The maximum of ``log p(Y | f) - z'z / 2`` over ``f = L z`` and the mean's coefficients."""

    z: Tensor  # (n, t)
    coefficients: Tensor  # (p, t)
    f: Tensor  # ``L z``, without the mean, (n, t)
    local: Curvature  # of the likelihood there
    value: float
    promised: float  # gain in nats that the last Newton step promised


class _Place(NamedTuple):
    """Coordinates, coefficients, latent values, and the objective of each target."""

    z: Tensor
    coefficients: Tensor
    f: Tensor
    value: Tensor

    def choose(self, other: _Place, better: Tensor) -> _Place:
        """Return the place with the targets of another one where that is better."""
        return _Place(*(torch.where(better, theirs, own) for own, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True, eq=False)
class ModeSearch:
    """Newton's method on the latent values of all rows, with a step length for each target."""

    space: LatentSpace
    likelihood: Likelihood
    targets: Tensor  # (n, t), or with limits (2, n, t)
    offset: Tensor  # of the latent values, known, (n, t)
    basis: Tensor  # of the mean, (n, p)
    noise: Tensor  # (n,)
    prior_variance: Tensor  # of the latent values, (n,)

    def maximise(self, known: tuple[Tensor, Tensor] | None, tolerance: float) -> Mode:
        """Return the mode; ``known`` are z and coefficients at a model nearby.

        The search ends where a step gains less than ``tolerance`` nats an observation.
        """
        if known is None and self._starts_at_targets and not self.likelihood.is_log_concave:
            known = self._by_falling_noise()
        return self._climb(self._start(known), tolerance * self.offset.numel(), _STEPS)

    def _climb(self, here: _Place, left: float, steps: int) -> Mode:
        """Return where steps lead, the last of which promises less than ``left`` nats if there are enough.

        Where what a step gains is lost in the rounding of the objective, which is large for targets far from all latent
        values, steps go on as long as each promises less than the last one.
        """
        promised = torch.inf
        for _ in range(steps):
            before = promised
            step, by_trend, promised = self._newton(here, self._curvature(here))
            if promised < left:  # the last step, which gains less than the objective's rounding
                here = self._moved(here, step, by_trend)
                break
            rounding = 1e-13 * float(here.value.abs().sum())
            there = self._search(here, step, by_trend)
            if float((there.value - here.value).sum()) <= rounding:
                there = self._moved(here, step, by_trend)
                if not (promised < before and float((there.value - here.value).sum()) >= -rounding):
                    break
            here = there
        return Mode(here.z, here.coefficients, here.f, self._curvature(here), float(here.value.sum()), promised)

    def _by_falling_noise(self) -> tuple[Tensor, Tensor] | None:
        """Return where steps lead under less and less noise, down to the likelihood's own.

        With much noise no target is an outlier, and the mode is the only one. It then leads to one that most targets
        support, whereas steps that start among outliers can end there.
        """
        known, share = None, min(float(self.targets.var(0, correction=0).max() / self.noise.min()), _MOST)
        while share > 1:
            wide = replace(self, noise=share * self.noise)
            found = wide._climb(wide._start(known), 0.0, _EACH)
            known, share = (found.z, found.coefficients), share / _FALL
        return known

    def _curvature(self, here: _Place) -> Curvature:
        return self._local(self._latent(here.f, here.coefficients))

    def _local(self, latent: Tensor) -> Curvature:
        return Curvature.of(self.likelihood, self.targets, latent, self.noise)

    def _latent(self, f: Tensor, coefficients: Tensor) -> Tensor:
        return f + self.basis @ coefficients + self.offset

    @property
    def _starts_at_targets(self) -> bool:
        """Whether a target is the latent value with noise added, and measured."""
        return self.likelihood.has_noise and not self.likelihood.has_limits

    def _at(self, z: Tensor, coefficients: Tensor, f: Tensor) -> _Place:
        fit = self.likelihood.smooth_log_density(self.targets, self._latent(f, coefficients), self.noise[:, None])
        value = fit.sum(0) - 0.5 * z.square().sum(0)
        return _Place(z, coefficients, f, torch.where(torch.isfinite(value), value, -torch.inf))

    def _moved(self, here: _Place, step: Tensor, by_trend: Tensor) -> _Place:
        return self._at(here.z + step, here.coefficients + by_trend, here.f + self.space.colour(step))

    def _start(self, known: tuple[Tensor, Tensor] | None) -> _Place:
        """Return the better of the prior's mean and a start: a mode nearby, or one step from modes of single rows."""
        zero = self._at(torch.zeros_like(self.offset), *self._none())
        if known is not None:
            start = self._at(*known, self.space.colour(known[0]))
        else:
            modes = self.targets
            if not self._starts_at_targets:
                open_ = _OPEN if self.basis.shape[1] else 0.0
                given = self.likelihood, self.targets, self.noise, self.prior_variance + open_, self.offset
                modes = row_modes(*given)
            local = self._local(modes + self.offset)
            working = local.curvature * modes + local.slope
            right = self.space.colour_transposed(working)
            z, coefficients = self.space.solve_with_trend(
                right, self.basis.T @ working, local.curvature, self.basis, _TOLERANCE
            )
            start = self._at(z, coefficients, self.space.colour(z))
        return zero.choose(start, start.value > zero.value)

    def _none(self) -> tuple[Tensor, Tensor]:
        return self.offset.new_zeros(self.basis.shape[1], self.offset.shape[1]), torch.zeros_like(self.offset)

    def _newton(self, here: _Place, local: Curvature) -> tuple[Tensor, Tensor, float]:
        """Return the step of z and of the coefficients, and the gain that it promises."""
        by_z, by_trend = self.space.colour_transposed(local.slope) - here.z, self.basis.T @ local.slope
        z, coefficients = self.space.solve_with_trend(by_z, by_trend, local.hessian, self.basis, _TOLERANCE)
        return z, coefficients, 0.5 * float((by_z * z).sum() + (by_trend * coefficients).sum())

    def _search(self, here: _Place, step: Tensor, by_trend: Tensor) -> _Place:
        """Return the first place along the step, halved for each target by itself, where the objective is higher."""
        moved, found = self.space.colour(step), here
        share = torch.ones_like(here.value)
        for _ in range(_HALVINGS):
            trial = self._at(here.z + share * step, here.coefficients + share * by_trend, here.f + share * moved)
            better = trial.value > found.value
            open_ = found.value == here.value
            found = found.choose(trial, better & open_)
            share = torch.where(open_ & ~better, 0.5 * share, share)
            if bool((found.value > here.value).all()):
                break
        return found
