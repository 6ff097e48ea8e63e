"""Likelihoods, which relate a target to the latent function at its row.

A likelihood here is a density ``g(y, f)``. Where it is log-concave in f, variational bounds have a single optimum, and
their estimates from sampled basis functions remain lower bounds (Evans and Nair 2020, arXiv:2006.03015, Theorem 3).
Laplace approximations also take a density that states its expected information, as `StudentT`, `Beta` and the
zero-inflated ones do. They alone learn parameters of a density.

Predictions are in the target's units: a likelihood states the mean and the variance of a target where f is known.
"""

from gigagp.model.likelihoods.base import NODES as NODES
from gigagp.model.likelihoods.base import Likelihood
from gigagp.model.likelihoods.choice import AUTO as AUTO
from gigagp.model.likelihoods.choice import NAMES as NAMES
from gigagp.model.likelihoods.choice import check_laplace, check_log_concave, resolve_likelihood
from gigagp.model.likelihoods.choice import is_default as is_default
from gigagp.model.likelihoods.classes import Logistic, Probit
from gigagp.model.likelihoods.counts import Poisson
from gigagp.model.likelihoods.intervals import Censored, Ordinal
from gigagp.model.likelihoods.noise import Gaussian, Laplace, Quantile, StudentT
from gigagp.model.likelihoods.proportions import Beta, Binomial
from gigagp.model.likelihoods.rates import (
    Gamma,
    HurdlePoisson,
    NegativeBinomial,
    Weibull,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)

__all__ = [
    "Beta",
    "Binomial",
    "Censored",
    "Gamma",
    "Gaussian",
    "HurdlePoisson",
    "Laplace",
    "Likelihood",
    "Logistic",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "Probit",
    "Quantile",
    "StudentT",
    "Weibull",
    "ZeroInflatedNegativeBinomial",
    "ZeroInflatedPoisson",
    "check_laplace",
    "check_log_concave",
    "resolve_likelihood",
]
