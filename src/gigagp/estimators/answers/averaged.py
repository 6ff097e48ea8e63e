"""Answers with the uncertainty of the learned hyperparameters, ``hyperparameters="laplace"``."""

from __future__ import annotations

import copy
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from sklearn.utils.validation import check_is_fitted

from gigagp.errors import InvalidInputError
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.rows_posterior import RowsPosterior
from gigagp.inference.exact.mixture_posterior import MixturePosterior
from gigagp.inference.uncertain_hyperparameters import laplace_mixture
from gigagp.model.likelihoods import Gaussian
from gigagp.settings.random import spawn

E = TypeVar("E")

#: Mixtures by the posteriors that they are of, as long as these live.
_KNOWN: WeakKeyDictionary[Posterior, MixturePosterior] = WeakKeyDictionary()


def averaged(estimator: E) -> E:
    """Return a copy of a fitted estimator whose posterior is a mixture over the hyperparameters.

    The mixture is computed once for each fit.

    Parameters
    ----------
    estimator : GPRegressor
        A fitted estimator, which does not change.

    Raises
    ------
    InvalidInputError
        If nothing was learned, or the inference method, the likelihood or the number of targets has no such mixture.
    MemoryBudgetError
        If the factors of all components do not fit the memory budget.
    """
    check_is_fitted(estimator, "posterior_")
    fitted: Any = copy.copy(estimator)
    known = _KNOWN.get(fitted.posterior_)
    if known is None:
        known = _KNOWN[fitted.posterior_] = _mixture(fitted)
    fitted.posterior_ = known
    return cast("E", fitted)


def _mixture(fitted: Any) -> MixturePosterior:
    """Return the mixture of a fitted estimator."""
    posterior = fitted.posterior_
    parts = posterior.components if isinstance(posterior, MixturePosterior) else (posterior,)
    if fitted.optimizer_ is None or not any(one.model.learned_names() for one in parts):
        raise _refusal("learned hyperparameters, and this fit has kept those that were given (optimizer=None)")
    if not isinstance(fitted.likelihood_, Gaussian):
        raise _refusal(f"Gaussian noise; the likelihood of this fit is {fitted.likelihood_.name}")
    if posterior.n_targets > 1:
        raise _refusal(f'one target, or outputs="independent"; got {posterior.n_targets} that share a kernel')
    needed = "inference.Exact, Iterative or Vecchia and all rows of the fit"
    got = f"{needed}; this is a {posterior.kind} posterior of {posterior.n_rows:,} rows"
    if not isinstance(posterior, RowsPosterior) or posterior.table.drawn_from is not None:
        raise _refusal(got)
    generator = torch.Generator().manual_seed(0)
    mixtures = []
    for one in parts:
        objective = fitted.inference_.objective(one.table, spawn(generator), fitted.likelihood_)
        found = laplace_mixture(objective, one.model, spawn(generator), len(parts))
        if found is None:
            raise _refusal(got)
        mixtures.append(found)
    if not isinstance(posterior, MixturePosterior):
        return mixtures[0]
    pairs = zip(posterior.weights, mixtures, strict=True)
    weights = torch.cat([weight * mixture.weights for weight, mixture in pairs])
    return MixturePosterior([one for mixture in mixtures for one in mixture.components], weights)


def _refusal(needs: str) -> InvalidInputError:
    return InvalidInputError(f'hyperparameters="laplace" of GPRegressor needs {needs}.')
