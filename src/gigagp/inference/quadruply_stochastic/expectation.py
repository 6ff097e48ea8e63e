"""The expected log-likelihood at the rows, with the derivatives that Newton steps need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from gigagp.errors import FitWarning, warn
from gigagp.model.likelihoods import Likelihood

#: Targets times quadrature nodes in a block of rows.
_ENTRIES = 2**22
#: Smallest variance: there are divisions by its root.
_LEAST = 1e-30
#: A residual below this share of the standard deviation is zero: a slope divided by it is not accurate.
_NO_RESIDUAL = 1e-6
#: Curvatures whose ratio is below this are the same.
_SAME = 1 + 1e-6
#: Halvings of a step, and those with Newton's curvature where there is another one to try.
_HALVINGS, _FIRST_HALVINGS = 8, 3
#: Most steps of a search: by default, and for weights that are kept.
STEPS, LAST_STEPS = 100, 300
#: Gain in nats an observation that may be missed without a warning.
_MISSED = 1e-3


class ExpectedFit(NamedTuple):
    """The expected log-likelihood for ``f ~ N(latent, variance)`` at n rows with t targets, and its derivatives."""

    #: the sum over rows and targets
    value: float
    #: derivatives by the latent means, shape (n, t)
    slope: Tensor
    #: minus twice the derivatives by the latent variances, ``-E (log g)''``, shape (n, t): the curvature in the latent
    #: mean, which is not negative for a log-concave g
    bend: Tensor
    #: curvature of the parabola with the same slope and its top where the likelihood has it (`peak`), but no less
    #: than ``bend``, shape (n, t); None for likelihoods that have no top, as those of labels
    secant: Tensor | None
    #: derivatives by the noise variances, shape (n,); zeros where the likelihood has none
    of_noise: Tensor

    def curvatures(self) -> Iterator[tuple[Tensor, list[float]]]:
        """Yield curvatures for a step towards the best distribution, each with the shares of the step to try.

        Newton's curvature comes first. Laplace noise has none at targets that are many standard deviations away, where
        its slope is constant: a Newton step goes much too far. The parabola of the secant is nowhere above the expected
        log density of such noise, so that its full step always raises the bound as a function of the mean, and reaches
        the target however far that is (de Leeuw and Lange 2009, "Sharp quadratic majorization in one dimension",
        https://doi.org/10.1016/j.csda.2009.01.002). A search must not end before such a step has been tried: where all
        targets are far away, Newton's curvature says nothing about the mean's coefficients. A count far above the rate
        has next to no curvature either: Newton's step would take the rate beyond float64, whereas the parabola, which
        is below the expected log density up to its top, leads to the count.
        """
        shares = [0.5**k for k in range(_HALVINGS)]
        if self.secant is None or not bool((self.secant > _SAME * self.bend).any()):
            yield self.bend, shares
        else:
            yield self.bend, shares[:_FIRST_HALVINGS]
            yield self.secant, shares


class _HasValue(Protocol):
    @property
    def value(self) -> float: ...


Place = TypeVar("Place", bound=_HasValue)
#: A step from a place: the place at a share of it, the shares to try, and the gain that it promises.
Step = tuple[Callable[[float], Place], list[float], float]


def climb(
    here: Place, steps_from: Callable[[Place], Iterator[Step[Place]]], least: float, most: int = STEPS
) -> tuple[Place, float, float]:
    """Return the place where steps gain less than ``least``, the gain that the last step promised, and what is missed.

    Where ``most`` steps do not get there, the last half of them tells what is missed: if that falls as the inverse of
    the steps, as much is left as these have gained. Otherwise it is zero.

    Where the whole first step, which is Newton's, gains ``least``, the search goes there. Otherwise it goes to the
    highest of the places that gain at all, of which each step has one: a small share of Newton's step gains next to
    nothing where another step gains much, and hundreds of such shares do not reach what that step does.
    """
    promised, values = 0.0, [here.value]
    for _ in range(most):
        start, found = here, None
        for number, (at, shares, promised) in enumerate(steps_from(start)):
            if found is not None and promised < least:
                break
            for share in shares:
                there = at(share)
                if there.value >= start.value:
                    found = there if found is None or there.value > found.value else found
                    break
            if number == 0 and found is not None and share == shares[0] and found.value - start.value >= least:
                break
        if found is None:
            break
        here = found
        values.append(here.value)
        if here.value - start.value < least:
            break
    else:
        return here, promised, here.value - values[most // 2]
    return here, promised, 0.0


def warn_of_missed(missed: float, n_observations: int) -> None:
    """Warn of a search that has ended early, if it has missed much, in nats."""
    if missed > _MISSED * n_observations:
        msg = (
            f"the search for the best weights ended early: further steps promised {missed:.3g} nats. Mean and variance "
            "may be off. Use a larger noise_variance or another likelihood."
        )
        warn(msg, FitWarning)


def expected_fit(
    likelihood: Likelihood, targets: Tensor, latent: Tensor, variance: Tensor, noise: Tensor, nodes: int
) -> ExpectedFit:
    """Return the expected log-likelihood and its derivatives.

    All targets share the latent variances and the noise variances, each of shape (n,). ``nodes`` are the quadrature's.
    """
    size = max(1, _ENTRIES // (nodes * latent.shape[1]))
    std = variance.clamp_min(_LEAST).sqrt()[:, None].expand_as(latent)
    parts = targets, latent, std, noise[:, None].expand_as(latent)
    blocks = zip(*(one.detach().split(size) for one in parts), strict=True)
    found = [likelihood.expected_slopes(y, mean, spread, of_rows, nodes) for y, mean, spread, of_rows in blocks]
    total = sum(float(one.value.sum()) for one in found)
    slope, by_std, by_noise = (torch.cat([one[k] for one in found]) for k in (1, 2, 3))
    bend, secant = (-by_std / std).clamp_min(0), None
    peak = likelihood.peak(targets, std)
    if peak is not None:
        residual = peak - latent
        secant = torch.where(residual.abs() > _NO_RESIDUAL * std, slope / residual, bend).maximum(bend)
    return ExpectedFit(total, slope, bend, secant, by_noise.sum(1))
