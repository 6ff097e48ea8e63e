"""Randomized truncation: cut a series at a random length, reweight what was computed, and lose the bias.

A `Distribution` says how long the series may become, a `RussianRoulette` or `SingleSample` says how its terms are
weighted, so that the mean over the random length is the sum of the whole series.
"""

from gigagp.truncation.bounded import Fixed, OneOverJ, Uniform
from gigagp.truncation.decay import ExponentialDecay, Geometric
from gigagp.truncation.distribution import Distribution
from gigagp.truncation.estimators import (
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
