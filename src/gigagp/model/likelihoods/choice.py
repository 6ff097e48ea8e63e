"""Likelihoods by name, and what inference methods require of them."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.model.likelihoods.base import Likelihood
from gigagp.model.likelihoods.classes import Logistic, Probit
from gigagp.model.likelihoods.counts import Poisson
from gigagp.model.likelihoods.noise import Gaussian, Laplace, StudentT

#: Argument for a choice between Gaussian and Student-t noise.
AUTO = "auto"

_BY_NAME: dict[str, type[Likelihood]] = {
    kind.name: kind for kind in (Gaussian, Laplace, StudentT, Logistic, Probit, Poisson)
}


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
        distinct = torch.unique(y.double().reshape(-1))
        tried = distinct[torch.linspace(0, len(distinct) - 1, min(len(distinct), 9)).round().long()]
        grid = tried[:, None] + torch.linspace(-6, 6, 241, dtype=torch.float64)
        values = likelihood.log_density(tried[:, None], grid, torch.tensor(noise, dtype=torch.float64))
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
        f"Use one of {', '.join(name for name, kind in _BY_NAME.items() if kind.is_log_concave)}."
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
    if likelihood.information(torch.ones((), dtype=torch.float64)) is None:
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
