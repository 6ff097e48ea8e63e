"""Estimates of the sum of a series from a random number of its terms.

Each estimate is a weighted sum of the terms ``D_j``: given the length J it is ``sum_j w_j(J) D_j`` with
``E[w_j(J)] = 1`` (Potapczynski et al. 2021, eqs. 6 and 7).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Self, TypeVar

import torch

from gigagp.errors import InvalidInputError
from gigagp.settings.fields import Settings, Words
from gigagp.solvers.truncation.distribution import Distribution

#: A term of a series: a float or a tensor.
Term = TypeVar("Term", float, torch.Tensor)

#: A law of the length.
Law = Annotated[Distribution, Words("one of gigagp.truncation, such as ExponentialDecay(0.05, 80)")]


class TruncatedSeries(Settings, ABC):
    """The weights of the terms of a series that is cut at a random length with the law ``distribution``."""

    distribution: Distribution

    @abstractmethod
    def weight(self, j: int, length: int) -> float:
        """Return the weight of the j-th term (from 1) of a series cut at ``length``; 0 for later terms."""

    def bounded(self, largest: int, what: str = "the length of the series") -> Self:
        """Return this estimate with a bounded law; see `Distribution.bounded`."""
        return replace(self, distribution=self.distribution.bounded(largest, what))  # type: ignore[type-var]

    def coefficients(self, length: int) -> dict[int, float]:
        """Return the weights of the partial sums that make up the estimate.

        The estimate is ``sum_i c_i S_i``, where ``S_i`` is the sum of the first i terms. Increments are taken between
        consecutive lengths of the law, so that a step larger than 1 leaves no term out.

        Parameters
        ----------
        length : int
            A length that has positive probability under the law.

        Returns
        -------
        dict of int to float
            Coefficient for each number of terms, in ascending order. Zero coefficients and the empty sum are left out.
            Together with that of the empty sum, the coefficients add up to 1.
        """
        law = self.distribution
        if law.probability(length) == 0:
            raise InvalidInputError(f"length must be one that {law!r} can give; got {length!r}.")
        points = [law.base, *range(law.base + law.step, length + 1, law.step)]
        weights = [1.0, *(self.weight(j, length) for j in points[1:]), 0.0]
        found = {point: here - after for point, here, after in zip(points, weights, weights[1:], strict=False)}
        return {point: value for point, value in found.items() if value != 0 and point > 0}

    def estimate(self, partial_sum: Callable[[int], Term], length: int) -> Term:
        """Return the estimate from the partial sums of the series.

        Parameters
        ----------
        partial_sum : callable
            Maps a number of terms to their sum, a float or a tensor. It is called once for each number that is needed,
            in ascending order.
        length : int
            Drawn from the law, independently of the series.
        """
        terms = [partial_sum(point) * value for point, value in self.coefficients(length).items()]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total


@dataclass(frozen=True)
class RussianRoulette(TruncatedSeries):
    """Keep every term up to J, each divided by the probability of reaching it.

    When to use: if the terms before the last one are computed anyway, as in conjugate gradients.

    Parameters
    ----------
    distribution : Distribution
        Law of the length.
    trust_convergence : bool, default False
        True: if conjugate gradients converge before J, return the converged solution without weights, as the authors'
        code does. This reduces the variance but is biased, because those draws should exceed the solution by what the
        shorter ones lack. Use it only to reproduce that code.

    References
    ----------
    Potapczynski et al. (2021), arXiv:2102.06695, eq. 6.
    """

    distribution: Law
    trust_convergence: bool = False

    def weight(self, j: int, length: int) -> float:
        """Return ``1 / P(J >= j)`` for terms that were reached, and 0 for later ones."""
        return 1 / self.distribution.survival(j) if j <= length else 0.0


@dataclass(frozen=True)
class SingleSample(TruncatedSeries):
    """Keep the terms that are always computed, and those of the last step divided by the probability of that step.

    When to use: if each partial sum is a separate computation, as with the number of random features.

    Parameters
    ----------
    distribution : Distribution
        Law of the length; ``OneOverJ(base, maximum, step)`` for random features.

    References
    ----------
    Potapczynski et al. (2021), arXiv:2102.06695, eqs. 7 and 20.
    """

    distribution: Law

    def weight(self, j: int, length: int) -> float:
        """Return 1 up to the law's base, ``1 / P(J = length)`` within the last step, and 0 between."""
        law = self.distribution
        if j <= law.base:
            return 1.0
        return 1 / law.probability(length) if length - law.step < j <= length else 0.0


#: A setting that asks for truncation. A law alone stands for the estimate that is usual in that context.
TruncationChoice = Annotated[
    Distribution | TruncatedSeries,
    Words("one of gigagp.truncation, such as ExponentialDecay(rate=0.05, minimum=80)"),
]


def russian_roulette(terms: Iterable[Term], distribution: Distribution, length: int) -> Term:
    """Return ``sum_{j <= length} D_j / P(J >= j)``, an unbiased estimate of the sum of all terms.

    Parameters
    ----------
    terms : iterable of float or Tensor
        ``D_1, D_2, ...``. At most ``length`` of them are taken, so that they may be computed lazily. A shorter series
        is continued with zeros.
    distribution : Distribution
        Law of the length.
    length : int
        Drawn from it, independently of the terms.
    """
    return _weighted_sum(terms, RussianRoulette(distribution), length)


def single_sample(terms: Iterable[Term], distribution: Distribution, length: int) -> Term:
    """Return the first terms plus ``sum D_j / P(J = length)`` over the last step, unbiased for the sum of all terms.

    The arguments are those of `russian_roulette`. If a partial sum costs less than its terms one by one, use
    `SingleSample.estimate`, which needs three partial sums.
    """
    return _weighted_sum(terms, SingleSample(distribution), length)


def _weighted_sum(terms: Iterable[Term], kind: TruncatedSeries, length: int) -> Term:
    if kind.distribution.probability(length) == 0:
        raise InvalidInputError(f"length must be one that {kind.distribution!r} can give; got {length!r}.")
    total: Term | None = None
    for j, term in enumerate(islice(terms, length), start=1):
        weight = kind.weight(j, length)
        if weight == 0:
            continue
        total = term * weight if total is None else total + term * weight
    if total is None:
        raise InvalidInputError("terms must hold at least one term of the series; got none with a weight.")
    return total


def russian_roulette_variance(terms: Sequence[float], distribution: Distribution) -> float:
    """Return the exact variance of `russian_roulette` for a series of known terms.

    It is ``sum_j D_j (D_j + 2 sum_{k > j} D_k) / P(J >= j) - (sum_j D_j)^2``. Terms that the law never reaches are not
    part of the estimated sum.
    """
    reached = [(term, distribution.survival(j)) for j, term in enumerate(terms, start=1)]
    reached = [(term, survival) for term, survival in reached if survival > 0]
    rest, total = 0.0, []
    for term, survival in reversed(reached):
        # The same sum with every weight reduced by 1, which avoids cancellation in the terms that are always computed.
        total.append(term * (term + 2 * rest) * (1 / survival - 1))
        rest += term
    return math.fsum(total)


def single_sample_variance(terms: Sequence[float], distribution: Distribution) -> float:
    """Return the exact variance of `single_sample` for a series of known terms.

    It is ``sum_J I_J^2 / P(J) - (sum_J I_J)^2`` over the increments ``I_J`` between consecutive lengths of the law.
    """
    law = distribution
    increments, j = [], law.base
    while j < len(terms) and law.probability(j + law.step) > 0:
        increments.append((math.fsum(terms[max(j, 0) : j + law.step]), law.probability(j + law.step)))
        j += law.step
    mean = math.fsum(increment for increment, _ in increments)
    # P(J) (I_J / P(J) - mean)^2: the lengths beyond the series have increment zero.
    beyond = max(0.0, 1 - math.fsum(probability for _, probability in increments))
    return math.fsum(p * (increment / p - mean) ** 2 for increment, p in increments) + beyond * mean**2
