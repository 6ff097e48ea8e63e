"""The posterior of several kernels or hyperparameters at once: a mixture of posteriors with fixed weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.inference.contract.exact_posterior import ExactPosterior
from gigagp.inference.contract.left_out import LeftOut
from gigagp.inference.contract.marginals import Marginals
from gigagp.inference.contract.posterior import GrowingPosterior, SampleFunctions, VarianceMethod, VarianceParts
from gigagp.inference.contract.rows_posterior import ROWS, RowsPosterior
from gigagp.inference.contract.saved import Saved
from gigagp.inference.contract.table import TrainingTable
from gigagp.kernels.serialization import describe, from_dict
from gigagp.model.estimate import Estimate
from gigagp.model.model import Model
from gigagp.runtime.memory import require
from gigagp.settings.schema import (
    Field,
    anything,
    check_tensors,
    listing,
    number,
    optional,
    positive,
    record,
    table,
    text,
)

#: Largest number of components in a model file, each of which has a factor.
_MOST = 16
#: Weights whose sum differs from 1 by less than this are not scaled.
_ROUNDING = 1e-12


def require_factors(rows: TrainingTable, count: int) -> None:
    """Raise `MemoryBudgetError` if the factors of all components do not fit beside the work on the last one."""
    n = rows.n_rows
    remedy = 'Use kernel="auto" and hyperparameters="learned", or raise memory_budget.'
    require(
        (count + 2) * n * n * rows.X.element_size(), rows.budget, f"A mixture of {count} models on {n:,} rows", remedy
    )


class MixturePosterior(RowsPosterior, GrowingPosterior):
    """A mixture of posteriors of the same rows, whose models differ in kernel and noise.

    The function is that of component k with probability ``weights[k]``. Mean and covariance are those of the mixture,
    by the law of total variance, and each sample is drawn from one component. The distribution at a point is not
    normal; `marginals` has it.

    The components have one table with one target. Several targets, whose variances would differ, are refused
    (`InvalidInputError`). The heaviest component comes first, and its model is that of the mixture. Weights are scaled
    to add up to 1, and components without weight are left out. What further rows gain in nats, divided by the
    ``temperature``, changes the logarithms of the weights; at 1 this is Bayes' rule.

    Each component has coefficients of the mean of its own, whose uncertainty is part of its answers. Of the mixture
    itself nothing is uncertain beyond that, so its ``coefficient_root`` is empty, and the methods "given the trend" are
    those with it.
    """

    kind = "mixture"
    is_mixture = True

    def __init__(self, components: Sequence[RowsPosterior], weights: torch.Tensor, temperature: float = 1.0) -> None:
        if len({one.dtype for one in components}) > 1:
            components = [one.in_float64() if isinstance(one, ExactPosterior) else one for one in components]
        self.temperature = temperature
        weights, order = weights.double().cpu().sort(descending=True, stable=True)
        weights = weights[weights > 0]  # others are below the smallest number
        self.components = tuple(components[k] for k in order[: len(weights)].tolist())
        total = float(weights.sum())
        # Those of a model file have been scaled before, and scaling them again would change their last bits.
        self.weights = weights if abs(total - 1.0) < _ROUNDING else weights / total
        heaviest = self.components[0]
        if heaviest.n_targets > 1:
            msg = f"a mixture of posteriors must have one target; got {heaviest.n_targets}. Fit each target on its own."
            raise InvalidInputError(msg)
        self.model, self.table, self.budget = heaviest.model, heaviest.table, heaviest.budget
        self.coefficients = heaviest.coefficients
        self.coefficient_root = heaviest.coefficients.new_zeros(0, 0)
        self.covariance_is_cheap = heaviest.covariance_is_cheap

    def solver_name(self) -> Any:
        return self.components[0].solver_name()

    def _mixed(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the sum of the components' tensors times their weights."""
        return sum((weight * one for weight, one in zip(self.weights.tolist(), parts, strict=True)), parts[0] * 0)

    def noise_at(self, X: torch.Tensor) -> torch.Tensor:
        """Return the expected noise variance of new rows, shape (m,)."""
        return self._mixed([one.noise_at(X) for one in self.components])

    def trend(self, X: torch.Tensor) -> torch.Tensor:
        return self._mixed([one.trend(X) for one in self.components])

    def mean(self, X: torch.Tensor) -> torch.Tensor:
        return self._mixed([one.mean(X) for one in self.components])

    def explained_basis(self, X: torch.Tensor) -> torch.Tensor:
        return self._mixed([one.explained_basis(X) for one in self.components])

    def prior_variance(self, X: torch.Tensor) -> torch.Tensor:
        return self._mixed([one.prior_variance(X) for one in self.components])

    def marginals(self, X: torch.Tensor, *, include_noise: bool = False, method: VarianceMethod = "auto") -> Marginals:
        means, variances = zip(*(one.mean_and_variance(X, method) for one in self.components), strict=True)
        found = Marginals(self.weights, torch.stack(means), torch.stack(variances))
        return found.plus(torch.stack([one.noise_at(X) for one in self.components])) if include_noise else found

    def mean_and_variance_given_trend(
        self, X: torch.Tensor, method: VarianceMethod = "auto"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        each = self.marginals(X, method=method)
        mean = self._mixed(list(each.means))
        between = (each.means - mean).square()[:, :, 0]
        return mean, self._mixed(list(each.variances + between))

    def covariance_given_trend(self, X: torch.Tensor) -> torch.Tensor:
        means = [one.mean(X.flatten(0, -2)).unflatten(0, X.shape[:-1]) for one in self.components]
        centre = self._mixed(means)
        covariances = []
        for one, mean in zip(self.components, means, strict=True):
            apart = mean - centre
            covariances.append(one.covariance(X) + apart @ apart.mT)
        return self._mixed(covariances)

    def _drawn(self, n_samples: int, generator: torch.Generator) -> tuple[list[int], torch.Tensor]:
        """Return the number of samples of each component, and the place of each sample among all of these."""
        which = torch.multinomial(self.weights, n_samples, replacement=True, generator=generator)
        counts = torch.bincount(which, minlength=len(self.components))
        return counts.tolist(), which.argsort(stable=True).argsort()

    def sample_functions_given_trend(self, n_samples: int, generator: torch.Generator) -> SampleFunctions:
        """Return samples as functions, each of one component."""
        counts, places = self._drawn(n_samples, generator)
        pairs = zip(self.components, counts, strict=True)
        functions = [one.sample_functions(count, generator) for one, count in pairs if count]

        def evaluate(X: torch.Tensor) -> torch.Tensor:
            return torch.cat([function(X) for function in functions], 2)[:, :, places.to(X.device)]

        return evaluate

    def sample_at(self, X: torch.Tensor, n_samples: int, generator: torch.Generator) -> torch.Tensor:
        """Return joint samples at points, each from the full covariance of one component, shape (m, 1, s)."""
        counts, places = self._drawn(n_samples, generator)
        pairs = zip(self.components, counts, strict=True)
        samples = [one.sample_at(X, count, generator) for one, count in pairs if count]
        return torch.cat(samples, 2)[:, :, places.to(X.device)]

    def variance_parts(self, X: torch.Tensor) -> VarianceParts:
        variance = self.mean_and_variance(X)[1]
        return VarianceParts(variance, torch.zeros_like(variance))

    def left_out(self) -> LeftOut | None:
        """Return the mixture of what the components say of each row given all others, with the weights of all rows.

        None if one of them does not say it.
        """
        each = [found for one in self.components if (found := one.left_out()) is not None]
        if len(each) < len(self.components):
            return None
        means = torch.stack([one.mean for one in each])
        mean = self._mixed(list(means))
        variances = torch.stack([one.variance for one in each]) + (means - mean).square()[:, :, 0]
        density = self.weights.log()[:, None, None] + torch.stack([one.log_density.cpu() for one in each])
        variance = self._mixed(list(variances))
        return LeftOut(mean, variance, density.logsumexp(0), torch.zeros_like(variance))

    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        """Return the value for a prior that is a mixture with these weights; its standard error is 0."""
        values = [one.log_marginal_likelihood(generator).value for one in self.components]
        return Estimate(float((self.weights.log() + torch.tensor(values, dtype=torch.float64)).logsumexp(0)), 0.0)

    def with_rows(self, X: torch.Tensor, Y: torch.Tensor, noise: torch.Tensor | None = None) -> MixturePosterior:
        """Return the mixture of the components given additional rows, weighted by how well they foresaw these."""
        grown, logs = [], []
        for one, weight in zip(self.components, self.weights.tolist(), strict=True):
            if not isinstance(one, GrowingPosterior):
                raise InvalidInputError(
                    f"a mixture with a {one.kind} posterior, which takes no further rows, has none."
                )
            found = one.with_rows(X, Y, noise)
            assert isinstance(found, RowsPosterior), "it keeps its rows"
            before, after = (each.log_marginal_likelihood(torch.Generator()).value for each in (one, found))
            grown.append(found)
            logs.append(math.log(weight) + (after - before) / self.temperature)
        weights = torch.tensor(logs, dtype=torch.float64).softmax(0)
        return MixturePosterior(grown, weights, self.temperature)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the state for a model file: the rows once, and what else is known of each component."""
        (tensors, first), *more = (one.state() for one in self.components)
        header: dict[str, Any] = {"temperature": self.temperature, "first": _described(self.components[0], first)}
        header["others"] = [
            {
                "kernel": describe(one.model.kernel),
                "noise_variance": None if one.model.noise_is_known else float(one.model.noise_variance),
                **_described(one, own),
            }
            for one, (_, own) in zip(self.components[1:], more, strict=True)
        ]
        tensors = {**tensors, "weights": self.weights}
        for k, (own, _) in enumerate(more):
            tensors |= {f"others.{k}.{name}": value for name, value in own.items() if name not in ROWS}
        return tensors, header

    @classmethod
    def from_state(cls, tensors: dict[str, torch.Tensor], header: dict[str, Any], saved: Saved) -> MixturePosterior:
        kind = {"kind": text, "state": table(anything)}  # earlier versions had exact components alone
        other = {"kernel": table(anything), "noise_variance": optional(number(finite=True, positive=True))}
        others = listing(record(other, kind), *range(_MOST))
        extra = {"first": record(kind), "temperature": number(finite=True, positive=True)}
        record({"others": others}, extra)(header, "the header.posterior")
        descriptions = [header.get("first", {}), *header["others"]]
        if saved.n_targets != 1:
            raise ModelFileError(f"a mixture of posteriors must have one target; got {saved.n_targets}.")
        shared = {name: tensors[name] for name in ("weights", *ROWS) if name in tensors}
        check_tensors(
            shared, {**ROWS, "weights": Field("k", "float64", positive)}, {**saved.sizes, "k": len(descriptions)}
        )
        own: list[dict[str, torch.Tensor]] = [{name: shared[name] for name in ROWS} for _ in descriptions]
        for name, value in tensors.items():
            of, _, rest = name.removeprefix("others.").partition(".") if name.startswith("others.") else ("", "", name)
            k = int(of) + 1 if of.isdecimal() and int(of) + 1 < len(own) else 0  # a stray one is refused there
            if name not in shared:
                own[k][rest if k else name] = value
        rows = TrainingTable(tensors["X"], tensors["Y"], saved.model.mean, saved.budget)
        kinds = {**saved.kinds, ExactPosterior.kind: ExactPosterior}
        classes = [kinds.get(one.get("kind", ExactPosterior.kind)) for one in descriptions]
        require_factors(rows, sum(one is ExactPosterior for one in classes))
        models = [saved.model, *(_model(one, saved) for one in header["others"])]
        components = []
        for found, one, model, state in zip(classes, descriptions, models, own, strict=True):
            if found is None or not issubclass(found, RowsPosterior) or found.is_mixture:
                raise ModelFileError(f"a mixture of posteriors has no component of kind {one['kind'][:60]!r}.")
            components.append(found.from_state(state, dict(one.get("state", {})), saved._replace(model=model)))
        return cls(components, tensors["weights"], header.get("temperature", 1.0))


def _described(posterior: RowsPosterior, state: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a component's own state."""
    return {"kind": posterior.kind, "state": state}


def _model(description: dict[str, Any], saved: Saved) -> Model:
    """Return the model of a component from its description."""
    kernel, noise = from_dict(description["kernel"], n_inputs=saved.n_inputs), description["noise_variance"]
    if kernel.n_inputs != saved.n_inputs:
        raise ModelFileError(f"the kernel of a component must be bound to {saved.n_inputs} inputs.")
    if (noise is None) != saved.model.noise_is_known:
        raise ModelFileError("the components must all have known noise, or none of them.")
    variance = saved.model.noise_variance if noise is None else torch.tensor(noise, dtype=torch.float64)
    return replace(saved.model, kernel=kernel, noise_variance=variance)
