"""Likelihoods by name, and what inference methods require of them."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.model.likelihoods.base import Likelihood
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

#: Argument for a choice between Gaussian and Student-t noise.
AUTO = "auto"

_KINDS: tuple[type[Likelihood], ...] = (
    *(Gaussian, Laplace, StudentT, Quantile, Censored),
    *(Logistic, Probit, Ordinal, Binomial, Beta),
    *(Poisson, NegativeBinomial, ZeroInflatedPoisson, ZeroInflatedNegativeBinomial, HurdlePoisson),
    *(Gamma, Weibull),
)
_BY_NAME = {kind.name: kind for kind in _KINDS}
#: Names of all likelihoods of the package.
NAMES = tuple(_BY_NAME)


def check_log_concave(likelihood: Likelihood, y: Tensor, noise: float = 1.0) -> None:
    """Raise `InvalidInputError` for a likelihood that is not declared log-concave, or is found not to be.

    Parameters
    ----------
    likelihood : Likelihood
    y : Tensor
        Targets, a few of which are checked.
    noise : float, default 1.0
        Noise variance of the check.
    """
    reason = "does not declare it (is_log_concave)"
    if likelihood.is_log_concave:
        # Limits are a pair for each target, of which the finite one is where to look.
        pairs = y.double().cpu().reshape(2 if likelihood.has_limits else 1, -1)
        pairs = torch.unique(pairs, dim=1)
        pairs = pairs[:, torch.linspace(0, pairs.shape[1] - 1, min(pairs.shape[1], 9)).round().long()]
        tried = torch.where(torch.isfinite(pairs[0]), pairs[0], pairs[-1])
        grid = tried[:, None] + torch.linspace(-6, 6, 241, dtype=torch.float64)
        likelihood = likelihood.at(likelihood.start(tried))
        given = pairs[..., None] if likelihood.has_limits else tried[:, None]
        values = likelihood.log_density(given, grid, torch.tensor(noise, dtype=torch.float64))
        bend = values[:, 2:] - 2 * values[:, 1:-1] + values[:, :-2]
        # Places far from zero are rounded, and the density follows.
        rounded = 4 * torch.finfo(grid.dtype).eps * grid.abs().amax(1, keepdim=True)
        slopes = values.diff(dim=1).abs().amax(1, keepdim=True) / grid.diff(dim=1).abs().amin(1, keepdim=True)
        bad = bend > 1e-9 * (1 + values[:, 1:-1].abs()) + rounded * slopes
        if not bool(bad.any()):
            return
        row, place = (int(one) for one in bad.nonzero()[0])
        reason = f"is convex near f = {float(grid[row, place + 1]):.3g} for y = {float(tried[row]):.3g}"
    raise InvalidInputError(
        f"likelihood must be log-concave in the latent function; {type(likelihood).__name__} {reason}. "
        f"Use one of {', '.join(one.name for one in _KINDS if one.is_log_concave and not one.only_laplace)}."
    )


def check_laplace(likelihood: Likelihood, y: Tensor) -> None:
    """Raise `InvalidInputError` for a likelihood that Laplace approximations cannot take.

    They need a curvature that is never negative: that of a log-concave density, or the expected information.

    Parameters
    ----------
    likelihood : Likelihood
    y : Tensor
        Targets.
    """
    one = torch.ones((), dtype=torch.float64)
    if likelihood.at(likelihood.start(y)).information_at(0 * one, one) is None:
        check_log_concave(likelihood, y)


def is_default(likelihood: Likelihood) -> bool:
    """Whether the name of a likelihood suffices to recreate it."""
    return type(likelihood) is _BY_NAME.get(likelihood.name) and likelihood == type(likelihood)()


def resolve_likelihood(likelihood: str | Likelihood) -> Likelihood:
    """Return the likelihood with a given name, or a likelihood unchanged.

    ``"auto"`` is Gaussian until a fit has chosen (`gigagp.estimators.choices.likelihood_choice.choose`).

    Raises
    ------
    InvalidInputError
        If the argument is neither.
    """
    if isinstance(likelihood, Likelihood):
        return likelihood
    if isinstance(likelihood, str) and likelihood == AUTO:
        return Gaussian()
    if isinstance(likelihood, str) and likelihood in _BY_NAME:
        return _BY_NAME[likelihood]()
    names = ", ".join(map(repr, (*_BY_NAME, AUTO)))
    raise InvalidInputError(f"likelihood must be one of {names} or of gigagp.likelihoods; got {likelihood!r}.")
