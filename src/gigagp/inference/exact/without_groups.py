"""The posterior of a function without the effects of groups."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any, NoReturn

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.contract.posterior import Posterior, SampleFunctions, VarianceMethod
from gigagp.inference.contract.saved import Saved
from gigagp.inference.exact.mixture_posterior import MixturePosterior
from gigagp.kernels import Group, Kernel
from gigagp.kernels.leaf import Leaf
from gigagp.model.estimate import Estimate


class WithoutGroups(Posterior):
    """The posterior of all parts of the kernel but those with groups.

    At a level that no row has, the mean of an effect is zero, and the effect is independent of everything else. So the
    posterior there, minus the prior covariance of the groups, is that of the other parts, for every inference method
    that takes the kernel itself. Of a mixture it is the components' prior covariances, times their weights, that are
    subtracted, because the means of all effects there are equal.

    Raises `InvalidInputError` for a kernel without groups, or a posterior in which other functions stand for the
    kernel.
    """

    kind = "without groups"

    def __init__(self, inner: Posterior) -> None:
        mixed: list[tuple[float, Posterior]] = [(1.0, inner)]
        if isinstance(inner, MixturePosterior):
            mixed = list(zip(inner.weights.tolist(), inner.components, strict=True))
        self._parts = [(weight, _terms_with_groups(one.model.kernel)) for weight, one in mixed]
        if not self._parts[0][1]:
            raise InvalidInputError("groups of GPRegressor.predict must be True: the kernel has no kernels.Group.")
        if any(one.replaces_kernel for _, one in mixed):
            raise InvalidInputError(
                f"groups of GPRegressor.predict must be True for a {inner.kind} posterior, whose functions stand for "
                "the kernel. Use inference.Exact or Vecchia."
            )
        self._inner, self.model, self.budget = inner, inner.model, inner.budget
        self.coefficients, self.coefficient_root = inner.coefficients, inner.coefficient_root
        self.covariance_is_cheap = inner.covariance_is_cheap

    def _at_new_levels(self, X: Tensor) -> Tensor:
        """Return points at levels that no row has."""
        for term in self._parts[0][1]:
            for group in _groups(term):
                X = group.at_new_levels(X)
        return X

    def _prior(self, of: Callable[[Leaf], Tensor]) -> Tensor:
        """Return what the groups add, from the value of each leaf: products within terms, times the weights."""
        each = [weight * reduce(operator.mul, map(of, term)) for weight, terms in self._parts for term in terms]
        return torch.stack(each).sum(0)

    @property
    def n_rows(self) -> int:
        return self._inner.n_rows

    def solver_name(self) -> Any:
        return self._inner.solver_name()

    def mean(self, X: Tensor) -> Tensor:
        return self._inner.mean(self._at_new_levels(X))

    def explained_basis(self, X: Tensor) -> Tensor:
        return self._inner.explained_basis(self._at_new_levels(X))

    def mean_and_variance_given_trend(self, X: Tensor, method: VarianceMethod = "auto") -> tuple[Tensor, Tensor]:
        """Return mean and variance; by default without samples, whose errors would be those of the groups too."""
        moved = self._at_new_levels(X)
        mean, variance = self._inner.mean_and_variance_given_trend(moved, "solve")
        return mean, variance - self._prior(lambda leaf: leaf.diagonal(moved))

    def covariance_given_trend(self, X: Tensor) -> Tensor:
        if X.ndim == 3:
            return torch.stack([self.covariance_given_trend(one) for one in X])
        moved = self._at_new_levels(X)
        return self._inner.covariance_given_trend(moved) - self._prior(lambda leaf: leaf.block(moved, moved))

    def sample_functions_given_trend(self, n_samples: int, generator: torch.Generator) -> SampleFunctions:
        self._refuse()

    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        return self._inner.log_marginal_likelihood(generator)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self._refuse()

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], header: dict[str, Any], saved: Saved) -> Posterior:
        raise NotImplementedError

    def _refuse(self) -> NoReturn:
        raise InvalidInputError("Without groups there are means, deviations and covariances alone.")


def _terms_with_groups(kernel: Kernel) -> list[tuple[Leaf, ...]]:
    return [term for term in kernel.correlated_terms() if _groups(term)]


def _groups(term: tuple[Leaf, ...]) -> list[Group]:
    return [leaf for leaf in term if isinstance(leaf, Group)]
