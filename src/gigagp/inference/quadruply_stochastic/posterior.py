"""The posterior of very many weights: predictions in blocks over the basis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import FitWarning, InvalidInputError, ModelFileError, warn
from gigagp.inference.contract.batches import one_by_one
from gigagp.inference.contract.input_gradients import recomputed
from gigagp.inference.contract.posterior import Posterior, SampleFunctions, VarianceMethod
from gigagp.inference.contract.saved import Saved
from gigagp.inference.quadruply_stochastic import divergence
from gigagp.inference.quadruply_stochastic.bases import Basis, RadialBasis, basis_from_state
from gigagp.inference.quadruply_stochastic.estimators.sampling import sample_indices
from gigagp.inference.quadruply_stochastic.options import WeightProblem
from gigagp.inference.quadruply_stochastic.rows_covariance import OpenTrend, RowsCovariance
from gigagp.inference.quadruply_stochastic.weights import Weights
from gigagp.model.estimate import Estimate
from gigagp.model.likelihoods import Likelihood
from gigagp.model.model import Model
from gigagp.model.prior_samples import PriorSamples
from gigagp.runtime.memory import require
from gigagp.settings.random import standard_normal
from gigagp.settings.schema import (
    Field,
    Form,
    below,
    check_tensors,
    flag,
    listing,
    not_negative,
    number,
    optional,
    part,
    record,
    table,
    text,
    whole,
)

#: Entries of a block of features, on the CPU and on a GPU.
_CPU_ENTRIES, _GPU_ENTRIES = 2**21, 2**25
#: Rows of the final estimate of the bound, which uses all basis functions; random features of a sample of the prior.
_BOUND_ROWS, _PRIOR_FEATURES = 256, 4000
#: Most functions for which the determinant of a dense prior precision is computed.
_DENSE_PRIOR = 4000


class QuadruplyStochasticPosterior(Posterior):
    """The posterior under a Gaussian distribution of the weights of a basis.

    The covariance is that of the weights, or that of the exact process given the rows at which the weights started.

    Parameters
    ----------
    model, basis, weights, likelihood
        The basis is at the model's hyperparameters.
    coefficients : Tensor of shape (p, t)
        Of the mean's basis; ``open_trend`` is their uncertainty.
    X : Tensor of shape (n, d)
        The training rows where the variance is augmented, and otherwise none: (0, d).
    augment : bool
        Whether the variance is augmented (Proposition 4).
    threshold : float or None
        Prior precision above which a function is left out; None: all functions count.
    covariance_of : RowsCovariance or None
        Source of the covariance; None: the weights.
    variance_removed : dict of str to float
        Share of the variance of each estimate that its control variate removed at the end of the fit.
    from_samples : bool
        Whether the weights were learned from samples.
    bound : Estimate or None
        Lower bound of the log marginal likelihood, where it is known.
    """

    kind = "quadruply stochastic"

    def __init__(
        self,
        model: Model,
        basis: Basis,
        weights: Weights,
        coefficients: Tensor,
        open_trend: OpenTrend,
        likelihood: Likelihood,
        X: Tensor,
        *,
        n_rows: int,
        budget: int,
        augment: bool = False,
        threshold: float | None = None,
        covariance_of: RowsCovariance | None = None,
        variance_removed: dict[str, float] | None = None,
        from_samples: bool = True,
        bound: Estimate | None = None,
    ) -> None:
        self.model, self.basis, self.weights, self.likelihood = model, basis, weights, likelihood
        self.coefficients, self.coefficient_root = coefficients.to(X), open_trend.root
        self.open_trend = open_trend
        self.X, self._n_rows, self.budget = X, n_rows, budget
        self.augment, self.threshold, self.covariance_of = augment, threshold, covariance_of
        self.learns_prior = threshold is not None
        self.replaces_kernel = not self.learns_prior
        self.variance_removed = variance_removed or {}
        self.from_samples, self.bound = from_samples, bound

    @classmethod
    def of(
        cls,
        problem: WeightProblem,
        model: Model,
        basis: Basis,
        weights: Weights,
        coefficients: Tensor,
        open_trend: OpenTrend,
        *,
        covariance_of: RowsCovariance | None = None,
        variance_removed: dict[str, float] | None = None,
        from_samples: bool = True,
    ) -> QuadruplyStochasticPosterior:
        """Return the posterior of a fitted problem; ``basis`` may be at other hyperparameters than the model's."""
        table, options = problem.table, problem.options
        return cls(
            model,
            basis.with_kernel(model.kernel),
            weights,
            coefficients,
            open_trend,
            problem.likelihood,
            table.X if options.augment else table.X[:0],
            n_rows=problem.n_rows,
            budget=table.budget,
            augment=options.augment,
            threshold=options.highest_precision,
            covariance_of=covariance_of,
            variance_removed=variance_removed,
            from_samples=from_samples,
        )

    @property
    def n_rows(self) -> int:
        return self._n_rows

    @property
    def n_targets(self) -> int:
        return self.weights.mean.shape[1]

    @property
    def n_basis(self) -> int:
        """Number of basis functions, m."""
        return self.basis.size

    @property
    def relevance_vectors(self) -> Tensor:
        """The training rows whose weights a relevance vector machine has kept, (r, d), in the units of the fit."""
        if self.threshold is None or not isinstance(self.basis, RadialBasis):
            msg = "relevance_vectors are those of inference.RelevanceVectorMachine; this fit has none."
            raise InvalidInputError(msg)
        return self.basis.points[self.kept]

    @property
    def kept(self) -> Tensor:
        """The functions that count: all, or those with a precision below the threshold.

        The function of the lowest precision always counts: without any, the posterior would be the trend alone, with no
        variance.
        """
        precision = self.weights.log_precision
        if self.threshold is None or precision is None:
            return torch.arange(self.n_basis, device=self.weights.mean.device)
        kept = (precision < math.log(self.threshold)).nonzero()[:, 0]
        return kept if len(kept) else precision.argmin()[None]

    def warn_of_threshold(self) -> None:
        """Warn where the threshold would have dropped every function."""
        precision = self.weights.log_precision
        if self.threshold is None or precision is None or float(precision.min()) < math.log(self.threshold):
            return
        msg = (
            f"threshold of RelevanceVectorMachine is {self.threshold:g}, and no weight has a precision below it: the "
            f"weight with the lowest one, {float(precision.min().exp()):.3g}, was kept. Use a larger "
            "threshold, or a mean that explains less."
        )
        warn(msg, FitWarning)

    def solver_name(self) -> str:
        way = "sparse stochastic ascent" if self.from_samples else "all rows and functions at once"
        known = "" if self.covariance_of is None else f"; covariance of {len(self.covariance_of.X):,} rows"
        return f"{way}, {self.n_basis:,} {self.basis.kind} functions{known}"

    def engine_name(self) -> str:
        return f"{self.basis.kind} basis, {self.X.device.type}, {str(self.X.dtype).removeprefix('torch.')}"

    # Predictions ----------------------------------------------------------------------------------------------------

    def _blocks(self, X: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Iterate over blocks of rows and functions: all functions for some rows, then for the next rows."""
        kept = self.kept
        entries = min(_CPU_ENTRIES if X.device.type == "cpu" else _GPU_ENTRIES, max(self.budget // 64, 1))
        height = max(1, min(X.shape[0], entries // 128))
        width = max(1, entries // height)
        for first in range(0, X.shape[0], height):
            rows = slice(first, first + height)
            for index in kept.split(width):
                yield rows, index

    def _summed(self, X: Tensor, width: int, part: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return the sum over all functions of ``part(features, index)``, shape (n, width), float64."""
        found = X.new_zeros(X.shape[0], width, dtype=torch.float64)
        for rows, index in self._blocks(X):

            def block(some: Tensor, index: Tensor = index) -> Tensor:
                return part(self.basis.columns(some, index), index).double()

            found[rows] += recomputed(block, X[rows])
        return found

    def _combined(self, X: Tensor, weights: Tensor) -> Tensor:
        """Return all functions at points times weights (m, q), shape (n, q), float64."""
        return self._summed(X, weights.shape[1], lambda features, index: features.to(weights) @ weights[index])

    def mean(self, X: Tensor) -> Tensor:
        return self.trend(X) + self._combined(X, self.weights.mean).to(X)

    def explained_basis(self, X: Tensor) -> Tensor:
        known = self.open_trend
        if known.rows is not None:
            return known.rows.taken(X, known.solutions)
        if not len(known.solutions):
            return X.new_zeros(X.shape[0], known.root.shape[0], dtype=torch.float64)
        return self._combined(X, known.solutions)

    def mean_and_variance_given_trend(self, X: Tensor, method: VarianceMethod = "auto") -> tuple[Tensor, Tensor]:
        """Return mean and variance. Every ``method`` gives the same: the variance comes from one source."""
        return self._mean_and_variance(X, augment=self.augment)

    def _mean_and_variance(self, X: Tensor, *, augment: bool) -> tuple[Tensor, Tensor]:
        if self.covariance_of is not None:
            return self.mean(X), self.covariance_of.variance(X).to(X)

        def part(features: Tensor, index: Tensor) -> Tensor:
            independent = features.square() @ self.weights.diagonal_scales(index).square()
            of_mean, dense = features @ self.weights.mean[index], features @ self.weights.root_rows(index)
            return torch.cat([of_mean, independent[:, None], dense], 1)

        widths = [self.n_targets, 1, self.weights.n_columns]
        found = self._summed(X, sum(widths), part)
        mean, independent, dense = found.split(widths, 1)
        variance = independent[:, 0] + dense.square().sum(1)
        if augment:
            variance = variance + recomputed(self._augmentation, X)
        return self.trend(X) + mean.to(X), variance.to(X)

    def _augmentation(self, X: Tensor) -> Tensor:
        """Return the variance that one more function at each point adds there (Proposition 4), float64."""
        kernel, own = self.model.kernel, self.model.kernel.diagonal(X).double()
        noise = self.model.noise_variance.to(own) + kernel.white(self.X).to(own)
        squares, height = torch.zeros_like(own), max(1, _CPU_ENTRIES // max(len(X), 1))
        for rows, variances in zip(self.X.split(height), noise.split(height), strict=True):
            squares = squares + kernel.block(X, rows).double().square() @ (1 / variances)
        return own.square() / (squares + own)

    def covariance_given_trend(self, X: Tensor) -> Tensor:
        """Return the full covariance, of batches one by one; augmentation adds to its diagonal alone."""
        if X.ndim == 3:
            return one_by_one(self.covariance_given_trend, X)
        n, k = X.shape[0], self.weights.n_columns
        require(8 * n * (3 * n + k), self.budget, f"The covariance of {n:,} points", "")
        if self.covariance_of is not None:
            return self.covariance_of.covariance(X).to(X)
        found = X.new_zeros(n, n, dtype=torch.float64)
        dense = X.new_zeros(n, k, dtype=torch.float64)
        for index in self.kept.split(max(1, _CPU_ENTRIES // max(n, 1))):
            scales, root = self.weights.diagonal_scales(index), self.weights.root_rows(index).double()

            def part(X: Tensor, index: Tensor = index, scales: Tensor = scales, root: Tensor = root) -> Tensor:
                features = self.basis.columns(X, index).double()
                scaled = features * scales
                return torch.cat([scaled @ scaled.T, features @ root], 1)

            block = recomputed(part, X)
            found += block[:, :n]
            dense += block[:, n:]
        found += dense @ dense.T
        if self.augment:
            found.diagonal().add_(recomputed(self._augmentation, X))
        return found.to(X)

    def sample_functions_given_trend(self, n_samples: int, generator: torch.Generator) -> SampleFunctions:
        """Return samples of the weights as functions; a sample has m numbers.

        Where the covariance comes from rows, these are samples of the prior conditioned on the rows (Matheron's rule).
        """
        m, t, k = self.n_basis, self.n_targets, self.weights.n_columns
        size = self.weights.mean.element_size()
        require(2 * size * m * t * n_samples, self.budget, f"{n_samples} samples of {m:,} weights", "Ask for fewer.")
        if self.covariance_of is not None:
            return self._sample_at_rows(self.covariance_of, n_samples, generator)
        shared = standard_normal(k, t * n_samples, generator=generator).to(self.weights.mean)
        drawn = self.weights.mean.repeat_interleave(n_samples, 1)
        for index in self.basis.blocks(2**16, drawn.device):
            noise = standard_normal(len(index), t * n_samples, generator=generator).to(drawn)
            drawn[index] += self.weights.diagonal_scales(index)[:, None] * noise
            drawn[index] += self.weights.root_rows(index) @ shared

        def evaluate(X: Tensor) -> Tensor:
            found = self._combined(X, drawn).to(X)
            return self.trend(X)[:, :, None] + found.reshape(X.shape[0], t, n_samples)

        return evaluate

    def _sample_at_rows(self, known: RowsCovariance, n_samples: int, generator: torch.Generator) -> SampleFunctions:
        t, kernel, budget = self.n_targets, self.model.kernel, self.budget
        prior = PriorSamples.new(kernel, known.X.shape[1], t * n_samples, _PRIOR_FEATURES, generator)
        noise = standard_normal(len(known.X), t * n_samples, generator=generator).to(known.X)
        update = known.update(
            prior.evaluate(kernel, known.X, budget) + noise / known.curvature.sqrt().to(noise)[:, None]
        )

        def evaluate(X: Tensor) -> Tensor:
            deviations = prior.evaluate(kernel, X, budget) - known.taken(X, update).to(X)
            return self.mean(X)[:, :, None] + deviations.reshape(X.shape[0], t, n_samples)

        return evaluate

    # The bound ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def estimate_bound(self, X: Tensor, targets: Tensor, generator: torch.Generator) -> None:
        """Compute the bound from all basis functions and a few of the held rows, whose spread gives its standard error.

        ``targets`` (n, t) are less the trend where the fit has subtracted it. The bound stays unknown where a dense
        prior precision is too large for its determinant.
        """
        rows = sample_indices(len(X), min(_BOUND_ROWS, len(X)), generator).to(X.device)
        X, y = X[rows], targets[rows]
        mean, variance = self._mean_and_variance(X, augment=False)
        noise, latent = self.model.noise_of_rows(rows, X), mean - self.trend(X)
        fit = self.likelihood.expected_log_density(y, latent, variance.sqrt()[:, None], noise[:, None]).double().sum(1)
        of_prior = self._divergence()
        if of_prior is None:
            return
        error = 0.0 if len(rows) == self.n_rows else float(fit.std()) * self.n_rows / math.sqrt(len(rows))
        self.bound = Estimate(float(fit.mean()) * self.n_rows - of_prior, error)

    def _divergence(self) -> float | None:
        """Return the divergence from the prior, all targets; None where a dense prior is out of reach."""
        basis, weights, known = self.basis, self.weights, self.covariance_of
        if not basis.has_diagonal_prior and self.n_basis > _DENSE_PRIOR:
            return None
        of_covariance = divergence.of_covariance(basis, weights) if known is None else known.divergence
        return 0.5 * divergence.square_of_mean(basis, weights) + self.n_targets * of_covariance

    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        """Return the lower bound of the log marginal likelihood, with the standard error that sampled rows leave."""
        if self.bound is None:
            raise InvalidInputError(
                f"The bound of {self.n_basis:,} inducing functions is not known: it needs the determinant of a matrix "
                f"of that size, which is computed up to {_DENSE_PRIOR:,} functions."
            )
        return self.bound

    # Files ----------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state for a model file; of the rows it has only those of the covariance or its augmentation."""
        tensors, basis = self.basis.state()
        tensors = {f"basis.{name}": value for name, value in tensors.items()}
        tensors |= {f"weights.{name}": value for name, value in self.weights.arrays().items()}
        tensors |= {"coefficients": self.coefficients, "X": self.X}
        tensors |= {f"trend.{name}": value for name, value in self.open_trend.state().items()}
        if self.covariance_of is not None:
            tensors |= {f"rows.{name}": value for name, value in self.covariance_of.state().items()}
        header = {
            "basis": {"kind": self.basis.kind, **basis},
            "n_rows": self._n_rows,
            "augment": self.augment,
            "threshold": self.threshold,
            "variance_removed": self.variance_removed,
            "from_samples": self.from_samples,
            "bound": None if self.bound is None else list(self.bound),
        }
        return tensors, header

    @classmethod
    def from_state(
        cls, tensors: dict[str, Tensor], header: dict[str, Any], saved: Saved
    ) -> QuadruplyStochasticPosterior:
        check_state(header, tensors, saved)
        model, rows, trend = saved.model, part(tensors, "rows."), part(tensors, "trend.")
        return cls(
            model,
            basis_from_state(header["basis"]["kind"], model.kernel, part(tensors, "basis."), header["basis"]),
            Weights.from_arrays(part(tensors, "weights.")),
            tensors["coefficients"],
            OpenTrend.from_state(model.kernel, trend) if trend else OpenTrend.known(len(tensors["coefficients"])),
            saved.likelihood,
            tensors["X"],
            n_rows=header["n_rows"],
            budget=saved.budget,
            augment=header["augment"],
            threshold=header["threshold"],
            covariance_of=RowsCovariance.from_state(model.kernel, rows) if rows else None,
            variance_removed=header["variance_removed"],
            from_samples=header.get("from_samples", True),
            bound=None if header["bound"] is None else Estimate(*header["bound"]),
        )


# The state of a posterior in a model file, checked before anything is made of it --------------------------------------


def check_state(header: dict[str, Any], tensors: dict[str, Tensor], saved: Saved) -> None:
    """Raise `ModelFileError` for a state that no posterior of very many weights has."""
    forms: dict[str, Form] = {
        "basis": record({"kind": text}),
        "n_rows": whole(1),
        "augment": flag,
        "threshold": optional(number()),
        "variance_removed": table(number()),
        "bound": optional(listing(number(), 2)),
    }
    record(forms, {"from_samples": flag})(header, "posterior")
    fields = {
        "X": Field("r d", "real"),
        "weights.mean": Field("m t", "real"),
        "weights.log_scale": Field("m", "real"),
        "weights.columns?": Field("m k", "real"),
        "weights.log_precision?": Field("m", "real"),
        "coefficients": Field("p t"),
    }
    if part(tensors, "rows."):
        fields |= {"rows.X": Field("o d"), "rows.curvature": Field("o", rule=not_negative)}
    if part(tensors, "trend."):
        of_rows = bool(part(tensors, "trend.rows."))
        letter = "v" if of_rows else "w"
        fields |= {"trend.root": Field("p p", "float64"), "trend.solutions": Field(f"{letter} p", "float64")}
        if of_rows:
            fields |= {"trend.rows.X": Field("v d"), "trend.rows.curvature": Field("v", rule=not_negative)}
    sizes = check_tensors(tensors, fields | _basis_fields(header["basis"], saved, tensors), saved.sizes)
    saved.check_rows(header["n_rows"])
    if sizes.get("w", 0) not in (0, sizes["m"]):
        raise ModelFileError(f"its tensor 'trend.solutions' must have {sizes['m']} rows or none; got {sizes['w']}.")
    if sizes.get("k", 0) > sizes["m"]:
        raise ModelFileError(f"its tensor 'weights.columns' must have {sizes['m']} columns at most; got {sizes['k']}.")


def _basis_fields(header: dict[str, Any], saved: Saved, tensors: Mapping[str, Tensor]) -> dict[str, Field]:
    """Return the fields of a basis of as many functions as there are weights."""
    mean = tensors.get("weights.mean")
    m = 0 if mean is None or not mean.ndim else len(mean)
    kind = header["kind"]
    if kind == "fourier":
        record({"size": whole(m, m), "seed": whole(-(2**63))})(header, "posterior.basis")
        return {}
    if kind in ("inducing", "radial"):
        extra: dict[str, Form] = {"jitter": number(finite=True)} if kind == "inducing" else {}
        record(extra)(header, "posterior.basis")
        return {"basis.points": Field("m d")}
    if kind == "grid eigenfunctions":
        record({"n_axes": whole(saved.n_inputs, saved.n_inputs)})(header, "posterior.basis")
        nodes = {f"basis.nodes.{axis}": Field(f"g{axis}", "float64") for axis in range(saved.n_inputs)}
        axes = [tensors.get(name) for name in nodes]
        most = max((axis.numel() for axis in axes if axis is not None), default=0)
        orders = tensors.get("basis.orders")
        if orders is not None and orders.ndim == 2 and orders.shape[1] == len(axes):
            for axis, column in zip(axes, orders.T, strict=True):
                if axis is not None and not bool((column < axis.numel()).all()):
                    raise ModelFileError("its tensor 'basis.orders' must be places among the nodes of their axis.")
        return nodes | {"basis.orders": Field("m d", "int64", below(most))}
    raise ModelFileError(f"the model file names a basis that this version does not know: {kind[:60]!r}.")
