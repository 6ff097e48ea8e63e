"""Randomized truncation: cut a series at a random length and reweight its terms, so that the estimate is unbiased.

A `Distribution` is the law of the length. A `RussianRoulette` or `SingleSample` defines the weights of the terms, with
which the mean over the random length is the sum of the whole series.
"""

from gigagp.solvers.truncation.bounded import Fixed, OneOverJ, Uniform
from gigagp.solvers.truncation.decay import ExponentialDecay, Geometric
from gigagp.solvers.truncation.distribution import Distribution
from gigagp.solvers.truncation.estimators import (
    RussianRoulette,
    SingleSample,
    TruncatedSeries,
    russian_roulette,
    russian_roulette_variance,
    single_sample,
    single_sample_variance,
)

__all__ = [
    "Distribution",
    "ExponentialDecay",
    "Fixed",
    "Geometric",
    "OneOverJ",
    "RussianRoulette",
    "SingleSample",
    "TruncatedSeries",
    "Uniform",
    "russian_roulette",
    "russian_roulette_variance",
    "single_sample",
    "single_sample_variance",
]
