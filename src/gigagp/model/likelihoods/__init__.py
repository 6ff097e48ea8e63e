"""Likelihoods, which relate a target to the latent function at its row.

A likelihood here is a density ``g(y, f)``. All except `StudentT` are log-concave in f. Variational bounds then have a
single optimum, and their estimates from sampled basis functions remain lower bounds (Evans and Nair 2020,
arXiv:2006.03015, Theorem 3). Laplace approximations also take a density that states its expected information.

Predictions are in the target's units: a likelihood states the mean and the variance of a target where f is known.
"""

from gigagp.model.likelihoods.base import NODES as NODES
from gigagp.model.likelihoods.base import Likelihood
from gigagp.model.likelihoods.choice import AUTO as AUTO
from gigagp.model.likelihoods.choice import check_laplace, check_log_concave, resolve_likelihood
from gigagp.model.likelihoods.choice import is_default as is_default
from gigagp.model.likelihoods.classes import Logistic, Probit
from gigagp.model.likelihoods.counts import Poisson
from gigagp.model.likelihoods.noise import Gaussian, Laplace, StudentT

__all__ = [
    "Gaussian",
    "Laplace",
    "Likelihood",
    "Logistic",
    "Poisson",
    "Probit",
    "StudentT",
    "check_laplace",
    "check_log_concave",
    "resolve_likelihood",
]
