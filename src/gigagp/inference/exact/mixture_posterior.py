"""The posterior of several kernels or hyperparameters at once: a mixture of posteriors with fixed weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.inference.contract.areas import ROW_NAMES, restored, row_fields
from gigagp.inference.contract.exact_posterior import ExactPosterior
from gigagp.inference.contract.left_out import LeftOut
from gigagp.inference.contract.marginals import Marginals
from gigagp.inference.contract.posterior import (
    GroupEffect,
    GrowingPosterior,
    Posterior,
    SampleFunctions,
    VarianceMethod,
    VarianceParts,
)
from gigagp.inference.contract.rows_posterior import RowsPosterior
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
    whole,
)

#: Largest number of components in a model file, each of which has a factor.
_MOST = 256
#: Weights whose sum differs from 1 by less than this are not scaled.
_ROUNDING = 1e-12
#: Least size of a direction of the mean's coefficients, relative to the largest, that the rows determine.
_DETERMINED = 1e-12


def require_factors(rows: TrainingTable, count: int) -> None:
    """Raise `MemoryBudgetError` if the factors of all components do not fit beside the work on the last one."""
    n = rows.n_rows
    remedy = 'Use kernel="auto" and hyperparameters="learned", or raise memory_budget.'
    require(
        (count + 2) * n * n * rows.X.element_size(), rows.budget, f"A mixture of {count} models on {n:,} rows", remedy
    )


def restricted_likelihood(posterior: Posterior, generator: torch.Generator) -> Estimate:
    """Return the log marginal likelihood for a flat prior on the coefficients of the mean, as variances have it.

    It is ``log p(y | theta) - log det(Phi' H^-1 Phi) / 2`` for the basis Phi. Differences between rows and more rows
    are log densities of the further ones.
    """
    found = posterior.log_marginal_likelihood(generator)
    sizes = torch.linalg.svdvals(posterior.coefficient_root.double())
    flat = float(sizes[sizes > _DETERMINED * sizes.max()].log().sum()) if len(sizes) else 0.0
    return Estimate(found.value + flat, found.standard_error)


class MixturePosterior(RowsPosterior, GrowingPosterior):
    """A mixture of posteriors of the same rows, whose models differ in kernel, noise or hyperparameters alone.

    The function is that of component k with probability ``weights[k]``. Mean and covariance are those of the mixture,
    by the law of total variance, and each sample is drawn from one component. The distribution at a point is not
    normal; `marginals` has it.

    The components have one table with one target. Several targets, whose variances would differ, are refused
    (`InvalidInputError`). The heaviest component comes first, and its model is that of the mixture. Weights are scaled
    to add up to 1, and components without weight are left out.

    ``groups`` has a number for each component: those with the same number are draws of the hyperparameters of one
    kernel. Further rows change their weights by Bayes' rule, and the logarithm of the weight of the whole group by what
    it gains in nats, divided by the ``temperature``. By default each component is a group.

    Each component has coefficients of the mean of its own, whose uncertainty is part of its answers. Of the mixture
    itself nothing is uncertain beyond that, so its ``coefficient_root`` is empty, and the methods "given the trend" are
    those with it.
    """

    kind = "mixture"
    is_mixture = True

    def __init__(
        self,
        components: Sequence[RowsPosterior],
        weights: torch.Tensor,
        temperature: float = 1.0,
        groups: Sequence[int] | None = None,
    ) -> None:
        if len({one.dtype for one in components}) > 1:
            components = [one.in_float64() if isinstance(one, ExactPosterior) else one for one in components]
        self.temperature = temperature
        weights, order = weights.double().cpu().sort(descending=True, stable=True)
        weights = weights[weights > 0]  # others are below the smallest number
        kept = order[: len(weights)].tolist()
        self.components = tuple(components[k] for k in kept)
        self.groups = tuple(kept if groups is None else (groups[k] for k in kept))
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
        """Return the parts of the variance; that between the components is due to finite data."""
        variance = self.mean_and_variance(X)[1]
        computational = self._mixed([one.variance_parts(X).computational for one in self.components])
        return VarianceParts((variance - computational).clamp_min(0), computational)

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

    def group_effects(self) -> list[GroupEffect] | None:
        """Return the effects of groups by the law of total variance; None if a component does not have them."""
        each = [found for one in self.components if (found := one.group_effects()) is not None]
        if len(each) < len(self.components) or len({tuple(group.label for group, *_ in one) for one in each}) > 1:
            return None
        effects = []
        for same in zip(*each, strict=True):
            (group, levels, *_), means = same[0], [one[2] for one in same]
            mean = self._mixed(means)
            squares = [one[3].square() + (one[2] - mean).square()[..., 0] for one in same]
            effects.append((group, levels, mean, self._mixed(squares).sqrt()))
        return effects

    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        """Return the value for a prior that is a mixture with these weights; its standard error is 0."""
        values = [one.log_marginal_likelihood(generator).value for one in self.components]
        return Estimate(float((self.weights.log() + torch.tensor(values, dtype=torch.float64)).logsumexp(0)), 0.0)

    def with_rows(self, X: torch.Tensor, Y: torch.Tensor, noise: torch.Tensor | None = None) -> MixturePosterior:
        """Return the mixture of the components given additional rows, weighted by how well they foresaw these.

        Likelihoods that are estimates, as those of iterative solves, are refused (`InvalidInputError`): their errors
        would decide.
        """
        before = [restricted_likelihood(one, torch.Generator()) for one in self.components]
        for one, known in zip(self.components, before, strict=True):
            if not isinstance(one, GrowingPosterior) or known.standard_error:
                raise InvalidInputError(
                    f"a mixture with a {one.kind} posterior, whose likelihood is an estimate or which takes no further "
                    'rows, takes none. Fit with hyperparameters="learned", or fit all rows again.'
                )
        grown, gains = [], []
        for one, known in zip(self.components, before, strict=True):
            assert isinstance(one, GrowingPosterior), "others have been refused"
            found = one.with_rows(X, Y, noise)
            assert isinstance(found, RowsPosterior), "it keeps its rows"
            grown.append(found)
            gains.append(restricted_likelihood(found, torch.Generator()).value - known.value)
        logs = self.weights.log() + torch.tensor(gains, dtype=torch.float64)
        each = torch.tensor(self.groups)
        for group in set(self.groups):
            same = each == group
            gain = logs[same].logsumexp(0) - self.weights[same].log().logsumexp(0)
            logs[same] -= gain * (1 - 1 / self.temperature)
        return MixturePosterior(grown, logs.softmax(0), self.temperature, self.groups)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the state for a model file: the rows once, and what else is known of each component."""
        (tensors, first), *more = (one.state() for one in self.components)
        header: dict[str, Any] = {"temperature": self.temperature, "groups": list(self.groups)}
        header["first"] = _described(self.components[0], first)
        header["others"] = [
            {**model_description(one.model), **_described(one, own)}
            for one, (_, own) in zip(self.components[1:], more, strict=True)
        ]
        tensors = {**tensors, "weights": self.weights}
        for k, (own, _) in enumerate(more):
            tensors |= {f"others.{k}.{name}": value for name, value in own.items() if name not in ROW_NAMES}
        return tensors, header

    @classmethod
    def from_state(cls, tensors: dict[str, torch.Tensor], header: dict[str, Any], saved: Saved) -> MixturePosterior:
        kind = {"kind": text, "state": table(anything)}  # earlier versions had exact components alone
        extra = {"first": record(kind), "temperature": number(finite=True, positive=True), "groups": listing(whole())}
        record({"others": listing(record(MODEL, kind))}, extra)(header, "the header.posterior")
        descriptions, groups = [header.get("first", {}), *header["others"]], header.get("groups")
        if len(descriptions) > _MOST:
            raise ModelFileError(f"the header.posterior.others must have fewer than {_MOST} items.")
        if groups is not None:
            listing(whole(), len(descriptions))(groups, "the header.posterior.groups")
        if saved.n_targets != 1:
            raise ModelFileError(f"a mixture of posteriors must have one target; got {saved.n_targets}.")
        fields = row_fields(tensors)
        shared = {name: tensors[name] for name in ("weights", *fields) if name in tensors}
        check_tensors(
            shared, {**fields, "weights": Field("k", "float64", positive)}, {**saved.sizes, "k": len(descriptions)}
        )
        own: list[dict[str, torch.Tensor]] = [{name: shared[name] for name in fields} for _ in descriptions]
        rows = restored(own[0], saved)
        for name, value in tensors.items():
            of, _, rest = name.removeprefix("others.").partition(".") if name.startswith("others.") else ("", "", name)
            k = int(of) + 1 if of.isdecimal() and int(of) + 1 < len(own) else 0  # a stray one is refused there
            if name not in shared:
                own[k][rest if k else name] = value
        kinds = {**saved.kinds, ExactPosterior.kind: ExactPosterior}
        classes = [kinds.get(one.get("kind", ExactPosterior.kind)) for one in descriptions]
        require_factors(rows, sum(one is ExactPosterior for one in classes))
        models = [saved.model, *(described_model(one, saved) for one in header["others"])]
        components = []
        for found, one, model, state in zip(classes, descriptions, models, own, strict=True):
            if found is None or not issubclass(found, RowsPosterior) or found.is_mixture:
                raise ModelFileError(f"a mixture of posteriors has no component of kind {one['kind'][:60]!r}.")
            components.append(found.from_state(state, dict(one.get("state", {})), saved._replace(model=model)))
        return cls(components, tensors["weights"], header.get("temperature", 1.0), groups)


def _described(posterior: RowsPosterior, state: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a component's own state."""
    return {"kind": posterior.kind, "state": state}


def mixture_to_state(mixture: MixturePosterior) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the state of a mixture beside another posterior in a model file, with the model of its first component."""
    tensors, header = mixture.state()
    return tensors, {"model": model_description(mixture.model), "posterior": header}


def state_to_mixture(tensors: dict[str, torch.Tensor], header: dict[str, Any], saved: Saved) -> MixturePosterior:
    """Return the mixture of a state; the rows are among the tensors."""
    record({"model": record(MODEL), "posterior": table(anything)})(header, "the header.uncertain")
    model = described_model(header["model"], saved)
    return MixturePosterior.from_state(tensors, header["posterior"], saved._replace(model=model))


#: Form of the description of a component's model.
MODEL = {"kernel": table(anything), "noise_variance": optional(number(finite=True, positive=True))}


def model_description(model: Model) -> dict[str, Any]:
    """Return plain data from which `described_model` makes a component's model."""
    noise = None if _has_no_own_noise(model) else float(model.noise_variance)
    return {"kernel": describe(model.kernel), "noise_variance": noise}


def _has_no_own_noise(model: Model) -> bool:
    """Whether all components have the same noise variances: known ones, or none beside the kernel's white part."""
    return model.noise_is_known or not model.noise_is_learned


def described_model(description: dict[str, Any], saved: Saved) -> Model:
    """Return the model of a component from its description."""
    kernel, noise = from_dict(description["kernel"], n_inputs=saved.n_inputs), description["noise_variance"]
    if kernel.n_inputs != saved.n_inputs:
        raise ModelFileError(f"the kernel of a component must be bound to {saved.n_inputs} inputs.")
    if (noise is None) != _has_no_own_noise(saved.model):
        raise ModelFileError("the components must all have a noise variance that was learned, or none of them.")
    variance = saved.model.noise_variance if noise is None else torch.tensor(noise, dtype=torch.float64)
    return replace(saved.model, kernel=kernel, noise_variance=variance)
