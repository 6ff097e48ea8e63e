"""What the rows leave open about the hyperparameters as a part of the answers: ``hyperparameters=`` of `GPRegressor`.

- ``"learned"``: answers are those at the learned hyperparameters.
- ``"laplace"``: answers are mixed over draws of the hyperparameters (`gigagp.inference.uncertain_hyperparameters`), of
  each kernel of an average in proportion to its weight.
- ``"auto"``: draws where they are known to help and to be cheap. That is where exact inference averages kernels on few
  rows. On 645 real tables of 40 to 450 rows the draws were worth as much as the choice of the kernel, and the two added
  up. They take at most twice as long as the fit, or half a second, by nominal times
  (`gigagp.estimators.choices.allowance`): the heaviest kernels get theirs as long as these last, and what has none
  stays as it was learned. A kernel that was given by the user, and whatever learns it, answer as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from gigagp.errors import UNUSABLE, InvalidInputError, MemoryBudgetError
from gigagp.estimators.choices.allowance import uncertainty_seconds
from gigagp.inference import Inference
from gigagp.inference.automatic.objective import AutomaticObjective
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.rows_posterior import RowsPosterior
from gigagp.inference.exact.mixture_posterior import MixturePosterior
from gigagp.inference.uncertain_hyperparameters import drawn, laplace_mixture
from gigagp.model.likelihoods import Gaussian, Likelihood
from gigagp.runtime.run import unshown
from gigagp.settings.random import spawn

#: Argument of the estimator and of its answers, where ``"auto"`` stands for what the estimator says.
Hyperparameters = Literal["auto", "learned", "laplace"]
#: Largest number of rows for which draws are the default.
DEFAULT_ROWS = 500
#: Nominal seconds that the draws may take by default, over those of the fit, and the least that they may take. Where
#: rows are few and columns many, no other kernel is learned, and the fit is over before its draws could be.
_SHARE_OF_FIT, _LEAST = 2.0, 0.5


def check_draws(objective: TableObjective, optimizer: object, likelihood: Likelihood) -> None:
    """Refuse early a fit that can have no draws; see `uncertain_posterior` for what shows later."""
    _check(optimizer, likelihood, objective.table.n_targets)
    if not (objective.has_posteriors_near or isinstance(objective, AutomaticObjective)):
        raise _refusal('inference.Exact, Iterative or Vecchia, or "auto"')


def _check(optimizer: object, likelihood: Likelihood, n_targets: int) -> None:
    """Refuse draws where nothing is learned, of other likelihoods than the Gaussian one, and for several targets."""
    if optimizer is None:
        raise _refusal("learned hyperparameters, but this fit has kept those that were given (optimizer=None)")
    if not isinstance(likelihood, Gaussian):
        raise _refusal(f"Gaussian noise; the likelihood of this fit is {likelihood.name}")
    if n_targets > 1:
        raise _refusal(f'one target, or outputs="independent"; got {n_targets} that share a kernel')


def uncertain_posterior(
    posterior: Posterior, inference: Inference, optimizer: object, likelihood: Likelihood
) -> MixturePosterior:
    """Return the mixture over the hyperparameters of a fit; `InvalidInputError` says where there is none."""
    learns = any(one.model.learned_names() for one in _parts(posterior))
    _check(optimizer if learns else None, likelihood, posterior.n_targets)
    needed = "inference.Exact, Iterative or Vecchia and all training rows"
    got = f"{needed}; this is a {posterior.kind} posterior of {posterior.n_rows:,} rows"
    if not isinstance(posterior, RowsPosterior) or posterior.table.drawn_from is not None:
        raise _refusal(got)
    found = _mixture(posterior, inference, likelihood, lambda one, share: True)
    if found is None:
        raise _refusal(got)
    return found


def uncertain_by_default(
    posterior: Posterior, inference: Inference, likelihood: Likelihood, seconds: float, kept: Sequence[Posterior]
) -> MixturePosterior | None:
    """Return the mixture over the hyperparameters of an average of kernels that took nominal seconds to learn.

    ``kept`` are components that stay as they are, such as those whose noise left-out rows have raised above the most
    likely one. None if there are no draws of any component, because they would take too long or fail.
    """
    if not isinstance(posterior, RowsPosterior) or posterior.n_rows > DEFAULT_ROWS:
        return None
    left = max(_LEAST, _SHARE_OF_FIT * seconds)

    def may_take(one: RowsPosterior, share: float) -> bool:
        nonlocal left
        count = drawn(posterior.n_rows, share)
        needed = uncertainty_seconds(posterior.n_rows, one.model, count)
        if not count or needed > left or not one.model.learned_names() or any(one is other for other in kept):
            return False
        left -= needed
        return True

    try:
        with unshown():
            return _mixture(posterior, inference, likelihood, may_take)
    except (*UNUSABLE, MemoryBudgetError):
        return None


def _parts(posterior: Posterior) -> Sequence[Posterior]:
    """Return the components of an average of kernels, or the posterior itself."""
    return posterior.components if isinstance(posterior, MixturePosterior) else (posterior,)


def _mixture(
    posterior: RowsPosterior,
    inference: Inference,
    likelihood: Likelihood,
    may_take: Callable[[RowsPosterior, float], bool],
) -> MixturePosterior | None:
    """Return the mixture of the draws of all components, the heaviest first, and of those that may take none.

    None if no component has draws.
    """
    generator = torch.Generator().manual_seed(0)
    weights, temperature = torch.ones(1, dtype=torch.float64), 1.0
    if isinstance(posterior, MixturePosterior):
        weights, temperature = posterior.weights, posterior.temperature
    components: list[RowsPosterior] = []
    groups: list[int] = []
    mixed, has_draws = [], False
    for k, (one, share) in enumerate(zip(_parts(posterior), weights.tolist(), strict=True)):
        assert isinstance(one, RowsPosterior), "so are the components of a mixture"
        own = spawn(generator), spawn(generator)
        found = None
        if may_take(one, share):
            found = laplace_mixture(
                inference.objective_of(one.model, one.table, own[0], likelihood), one, own[1], share
            )
            if found is None:
                return None
        has_draws |= found is not None
        parts = [one] if found is None else found.components
        components += parts
        groups += [k] * len(parts)
        mixed.append(share * (torch.ones(1, dtype=torch.float64) if found is None else found.weights))
    return MixturePosterior(components, torch.cat(mixed), temperature, groups) if has_draws else None


def _refusal(needs: str) -> InvalidInputError:
    """Return the error of a fit without draws of its hyperparameters."""
    return InvalidInputError(f'hyperparameters="laplace" of GPRegressor needs {needs}.')
