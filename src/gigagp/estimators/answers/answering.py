"""What answers for an estimator: the predictor of its prior, of its fit, or of a mixture over the hyperparameters."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from sklearn.utils.validation import check_is_fitted

from gigagp.errors import InvalidInputError
from gigagp.estimators.answers.correlated import CorrelatedPredictor, require_apart
from gigagp.estimators.answers.left_out import LeaveOneOut
from gigagp.estimators.answers.predictor import Predictor
from gigagp.estimators.answers.prior import PriorFunctions, prior_predictor
from gigagp.estimators.choices.open_hyperparameters import Hyperparameters, uncertain_posterior
from gigagp.estimators.guard import guarded
from gigagp.estimators.panel_fit import entities_of
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.exact.mixture_posterior import MixturePosterior
from gigagp.inference.exact.without_groups import WithoutGroups
from gigagp.settings.random import RandomState
from gigagp.tables.encoding import fitted_encoder, model_inputs

#: Mixtures over the hyperparameters by the posteriors that they are of, as long as these live.
_MIXTURES: WeakKeyDictionary[Posterior, MixturePosterior] = WeakKeyDictionary()


def answering(
    estimator: Any, X: Any, hyperparameters: Hyperparameters, *, groups: bool = True
) -> tuple[Predictor | CorrelatedPredictor, np.ndarray]:
    """Return what answers, before or after a fit, and points as it takes them.

    Without ``groups``, the effects of groups are no part of the function that it answers for.
    """
    predictor: Predictor | CorrelatedPredictor
    if _is_prior(estimator, hyperparameters):
        predictor, points = prior_predictor(copy.copy(estimator), X)
    else:
        predictor = predictor_of(estimator, hyperparameters)
        points = model_inputs(estimator, X, reset=False, opens=True)
    if groups:
        return predictor, points
    if not isinstance(predictor, Predictor):
        raise InvalidInputError('groups of GPRegressor.predict must be True with outputs="correlated".')
    return replace(predictor, posterior=WithoutGroups(predictor.posterior)), points


def joint_answering(estimator: Any, X: Any, hyperparameters: Hyperparameters) -> Predictor | CorrelatedPredictor:
    """Return what answers at batches of points (..., q, d), which it checks itself, before or after a fit."""
    if _is_prior(estimator, hyperparameters):
        return prior_predictor(copy.copy(estimator), np.zeros((1, *np.shape(X)[-1:])))[0]
    return predictor_of(estimator, hyperparameters)


def sampled_functions(
    estimator: Any, n_samples: int, random_state: RandomState, hyperparameters: Hyperparameters, *, latent: bool
) -> Callable[[Any], np.ndarray]:
    """Return samples of the function as a function of points, before or after a fit."""
    owner = copy.copy(estimator)  # a later fit of the estimator leaves these samples as they are
    if _is_prior(estimator, hyperparameters):
        return PriorFunctions(owner, n_samples, random_state, latent=latent)
    functions = predictor_of(estimator, hyperparameters).sample_functions(n_samples, random_state, latent=latent)
    return guarded()(lambda X: functions(model_inputs(owner, X, reset=False, opens=True, grows=True)))


def left_out(estimator: Any, groups: Any, hyperparameters: Hyperparameters) -> LeaveOneOut:
    """Return each row of the fit as it is predicted from all others, or from the other groups."""
    if groups is None:
        return predictor_of(estimator, hyperparameters).leave_one_out()
    require_apart(estimator, "groups of leave_one_out")
    return predictor_of_rows(estimator).leave_one_out(_groups_of_rows(estimator, groups))


def predictor_of(estimator: Any, hyperparameters: Hyperparameters = "auto") -> Predictor | CorrelatedPredictor:
    """Return what answers after a fit."""
    found = predictor_of_rows(estimator, hyperparameters)
    return found if estimator._stacking is None else CorrelatedPredictor(found, estimator._stacking)


def predictor_of_rows(estimator: Any, hyperparameters: Hyperparameters = "auto") -> Predictor:
    """Return what answers about the rows of the model of a fit, which are cells of correlated outputs."""
    check_is_fitted(estimator, "posterior_")
    learned = Predictor(
        estimator.posterior_,
        estimator.scaling_,
        estimator.target_transform_,
        estimator.likelihood_,
        estimator._one_target,
        fitted_encoder(estimator),
        getattr(estimator, "feature_names_in_", None),
    )
    mixture = estimator._uncertain
    if hyperparameters == "learned" or (hyperparameters == "auto" and mixture is None):
        return learned
    return replace(learned, posterior=_mixture(estimator, learned) if mixture is None else mixture)


def _is_prior(estimator: Any, hyperparameters: Hyperparameters) -> bool:
    """Whether the prior answers: before a fit, unless what is asked for needs one."""
    return hyperparameters != "laplace" and not hasattr(estimator, "posterior_")


def _mixture(estimator: Any, learned: Predictor) -> MixturePosterior:
    """Return the mixture over what the rows leave open, for a fit whose own answers are at the learned hyperparameters.

    It is computed once for each fit, with the inference method and the optimizer that ran.
    """
    known = _MIXTURES.get(learned.posterior)
    if known is None:
        ran = estimator.inference_, estimator.optimizer_
        known = uncertain_posterior(learned.posterior, *ran, learned.likelihood)
        _MIXTURES[learned.posterior] = known
    return known


def _groups_of_rows(estimator: Any, groups: Any) -> np.ndarray:
    """Return the number of the group of each row of the fit, shape (n,)."""
    check_is_fitted(estimator, "posterior_")
    n_rows = estimator.posterior_.n_rows
    if isinstance(groups, str):
        if groups != "entity" or estimator._arguments["panel"] is None:
            msg = f'groups of leave_one_out must be an array, or "entity" for a fit with a panel; got {groups!r}.'
            raise InvalidInputError(msg)
        return entities_of(estimator)
    found = np.asarray(groups)
    if found.shape != (n_rows,):
        msg = f"groups of leave_one_out must have shape ({n_rows},), one for each row of the fit; got {found.shape}."
        raise InvalidInputError(msg)
    return np.unique(found.astype(str), return_inverse=True)[1].reshape(-1)
