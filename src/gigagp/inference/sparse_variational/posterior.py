"""The posterior through inducing points: m numbers per target and an m x m root, for any number of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.inference.contract.batches import by_batches, prior_covariance, within_batches
from gigagp.inference.contract.input_gradients import wants_gradient
from gigagp.inference.contract.posterior import GrowingPosterior, SampleFunctions, VarianceMethod
from gigagp.inference.contract.saved import Saved
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.weight_space import RowSums, WeightSpace
from gigagp.inference.sparse_variational.points import InducingPoints, row_blocks
from gigagp.model.estimate import Estimate
from gigagp.model.model import Model
from gigagp.model.prior_samples import PriorSamples
from gigagp.model.scaling import Scaling
from gigagp.products import cross_product, select
from gigagp.products.dense import triangular_inverse
from gigagp.runtime.memory import require
from gigagp.settings.random import standard_normal
from gigagp.settings.schema import Field, Form, check_tensors, number, one_of, optional, part, record, text, whole


class SparseTrend(NamedTuple):
    """The learned part of the mean, with its interaction with the inducing values."""

    #: coefficients of the mean's basis, shape (p, t)
    coefficients: Tensor
    #: root of their covariance, shape (p, p)
    root: Tensor
    #: mean of the whitened inducing values with the mean's basis functions in place of the targets, shape (m, p)
    whitened: Tensor

    @classmethod
    def of(cls, space: WeightSpace) -> SparseTrend:
        """Return the trend for the optimal distribution of the inducing values."""
        return cls(*space.trend, space.basis_weights)

    @classmethod
    def known(cls, coefficients: Tensor, count: int) -> SparseTrend:
        """Return a trend with known coefficients, for ``count`` inducing values."""
        p = len(coefficients)
        return cls(coefficients, coefficients.new_zeros(p, p), coefficients.new_zeros(count, p))


class SparseSums(NamedTuple):
    """Sums over the rows that further rows are added to, beside those that the distribution determines."""

    #: ``[Y - Phi b, Phi]' N^-1 [Y - Phi b, Phi]`` for the mean's basis Phi, shape (t + p, t + p)
    products: Tensor
    #: ``log det N``, a scalar
    log_noise: Tensor
    #: the coefficients b, those of a least-squares fit, shape (p, t)
    shift: Tensor
    #: ``sum_i (k(x_i, x_i) - f_i' f_i) / N_i``
    unexplained: float


def zeros_of_sums(points: InducingPoints, width: int) -> list[Tensor]:
    """Return zeros of the shapes of the sums that `sums_of_points` returns."""
    m, new = points.count, points.factor.new_zeros
    return [new(m, m), new(m, width), new(width, width), new(()), new(())]


def sums_of_points(
    model: Model, points: InducingPoints, blocks: Iterable[tuple[Tensor, Tensor, Tensor]], width: int
) -> list[Tensor]:
    """Return the sums over rows for features of inducing points: those of `RowSums`, and `SparseSums.unexplained`.

    A block of rows has their inputs, their targets and mean basis (rows, width), and their noise, all float64.
    """
    *found, unexplained = zeros_of_sums(points, width)
    gram, cross, products, log_noise = found
    for X, known, noise in blocks:
        features = points.features(X)
        unexplained += ((model.kernel.diagonal(X) - features.square().sum(1)) / noise).sum()
        root = noise.rsqrt()[:, None]
        features.mul_(root)
        known = known * root
        gram.addmm_(features.T, features)
        cross.addmm_(features.T, known)
        products.addmm_(known.T, known)
        log_noise += noise.log().sum()
    return [*found, unexplained]


class SparsePosterior(GrowingPosterior):
    """The posterior given by a Gaussian distribution of the inducing values.

    Parameters
    ----------
    mean : Tensor of shape (m, t)
        Mean of the whitened inducing values ``v = L^-1 u``.
    root : Tensor of shape (m, m)
        Root of their covariance ``root root'``, which is the same for all targets.
    value : float
        Lower bound of the log marginal likelihood.
    method : {"SGPR", "SVGP"}
        Method that determined the distribution.
    n_rows : int
        Number of rows of the bound.
    dtype : torch.dtype
        Data type of predictions; computations are in float64.
    sums : SparseSums or None
        Further sums over rows, with which rows can be added; None for SVGP.
    """

    kind = "sparse variational"
    replaces_kernel = True
    covariance_is_cheap = True

    def __init__(
        self,
        model: Model,
        points: InducingPoints,
        mean: Tensor,
        root: Tensor,
        trend: SparseTrend,
        value: float,
        *,
        method: str,
        n_rows: int,
        dtype: torch.dtype,
        budget: int,
        sums: SparseSums | None = None,
    ) -> None:
        self.model, self.points, self.budget = model, points, budget
        self.whitened_mean, self.whitened_root = mean.contiguous(), root.contiguous()  # as a model file restores them
        self.coefficients, self.coefficient_root = trend.coefficients.to(dtype), trend.root
        self._trend = trend
        self._value, self.method, self._n_rows, self._sums = value, method, n_rows, sums
        #: weights of ``K(x, Z)`` in the mean, and the same with the mean's basis functions in place of the targets
        self.weights, self.basis_weights = points.unwhiten(mean), points.unwhiten(trend.whitened)

    @property
    def inducing_points(self) -> Tensor:
        """Inducing points, shape (m, d), in the units in which the model was fitted."""
        return self.points.points

    @property
    def n_inducing(self) -> int:
        """Number of inducing points."""
        return self.points.count

    @property
    def n_rows(self) -> int:
        return self._n_rows

    def row_refusal(self, X: Tensor, scaling: Scaling, names: Sequence[str] | None) -> InvalidInputError | None:
        """Return the error where the sums over the rows are not known, or None."""
        if self._sums is not None:
            return None
        msg = (
            "inference.SparseVariational adds rows to a fit by SGPR (batch_size=None) alone, whose sums over rows are "
            f"known; this is a fit by {self.method}"
            + (" from a file of an earlier version." if self.method == "SGPR" else ", from minibatches.")
            + " Fit all rows again."
        )
        return InvalidInputError(msg)

    @torch.no_grad()
    def with_rows(self, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> SparsePosterior:
        """Return the posterior given additional rows, at the same inducing points, in O(m^3 + k m^2) time."""
        assert self._sums is not None
        model, sums, trend, t, k = self.model.appended(noise), self._sums, self._trend, self.n_targets, len(X)
        X = X.to(self.coefficients)
        TrainingTable(X, Y.to(X), model.mean, self.budget).require_finite()
        basis = model.mean.basis(X).double()
        known = torch.cat([Y.to(X).double() - basis @ sums.shift, basis], 1)
        variances = (model.noise_variance[-k:] if noise is not None else model.noise_variance).double().to(X.device)
        variances = variances.expand(k) + model.kernel.white(X).double()
        rows = row_blocks(slice(0, k), self.n_inducing, self.budget, X.device)
        blocks = ((X[some].double(), known[some], variances[some]) for some in rows)
        *further, unexplained = sums_of_points(model, self.points, blocks, known.shape[1])
        factor = triangular_inverse(self.whitened_root.T.contiguous())
        coefficients = trend.coefficients - sums.shift
        both = RowSums.of_posterior(
            factor, self.whitened_mean, trend.whitened, coefficients, sums.products, sums.log_noise
        ).plus(RowSums(*further))
        space, left = WeightSpace.fit(both, self.n_rows + k, t), sums.unexplained + float(unexplained)
        found = SparseTrend.of(space)
        return SparsePosterior(
            model,
            self.points,
            space.weights,
            triangular_inverse(space.factor).T,
            found._replace(coefficients=sums.shift + found.coefficients),
            space.value - 0.5 * t * left,
            method=self.method,
            n_rows=self.n_rows + k,
            dtype=self.dtype,
            budget=self.budget,
            sums=SparseSums(both.products, both.log_noise, sums.shift, left),
        )

    def places(self) -> Tensor:
        return self.inducing_points.to(self.dtype)

    def solver_name(self) -> str:
        return f"{self.method}, {self.n_inducing} inducing points"

    def engine_name(self) -> str:
        engine = select(self.model.kernel, self.device, torch.float64)
        return f"{engine.name}, {self.device.type}, float64"

    # Predictions ----------------------------------------------------------------------------------------------------

    def trend(self, X: Tensor) -> Tensor:
        wide = self._trend.coefficients
        return (self.model.mean.basis(X).to(wide) @ wide).to(X)

    def mean(self, X: Tensor) -> Tensor:
        return self.trend(X) + self.cross_product(X, self.weights).to(X)

    def cross_product(self, X: Tensor, vectors: Tensor) -> Tensor:
        """Return ``K(X, inducing points) @ vectors``, float64."""
        return cross_product(self.model.kernel, X.double(), self.inducing_points, vectors, budget=self.budget)

    def explained_basis(self, X: Tensor) -> Tensor:
        return self.cross_product(X, self.basis_weights)

    def _covariances(self, X: Tensor) -> Tensor:
        """Return ``K(X, Z)``, by tiles, or by autograd if the points require a gradient."""
        if wants_gradient(X):
            return self.model.kernel.block(X, self.inducing_points)
        return self.points.covariances(self.points.tiles(X))

    def mean_and_variance_given_trend(self, X: Tensor, method: VarianceMethod = "auto") -> tuple[Tensor, Tensor]:
        """Return mean and variance; ``method`` has no effect.

        With features f, the variance is ``(k - f'f) + |root' f|^2`` (Titsias 2009, eq. 6). The first term is the
        variance given the inducing values; it is negative only by rounding. The second is that of the inducing values.
        """
        means, variances = [self.trend(X[:0]).double()], [X.new_zeros(0).double()]
        for rows in row_blocks(slice(0, len(X)), self.n_inducing, self.budget, X.device):
            block = X[rows].double()
            covariances = self._covariances(block)
            means.append(covariances @ self.weights)
            features = self.points.whiten(covariances)
            left = (self.model.kernel.diagonal(block) - features.square().sum(1)).clamp_min(0)
            variances.append(left + (features @ self.whitened_root).square().sum(1))
        return self.trend(X) + torch.cat(means).to(X), torch.cat(variances).to(X)

    def covariance_given_trend(self, X: Tensor) -> Tensor:
        m = X.shape[-2]
        require(8 * m * (3 * m + 4 * self.n_inducing), self.budget, f"The covariance of {m:,} points", "")

        def left(X: Tensor) -> Tensor:
            wide = X.double()
            features = within_batches(self.points.whiten(self._covariances(wide.flatten(0, 1))), X)
            spread = features @ self.whitened_root
            prior = prior_covariance(self.model.kernel, wide)
            return (prior - features @ features.mT + spread @ spread.mT).to(X)

        return by_batches(left, X, self.budget // (32 * self.n_inducing))

    def sample_functions_given_trend(self, n_samples: int, generator: torch.Generator) -> SampleFunctions:
        """Return samples as functions: random features for the prior, and inducing values for the update.

        A sample is ``f(x) + K(x, Z) (K(Z, Z) + jitter)^-1 (u - f(Z) - noise)`` with u from the posterior (Wilson et al.
        2020, arXiv:2002.09309, eq. 13). These samples have the error of the features. At a few thousand points,
        `sample_at` samples without it.
        """
        kernel, points, t = self.model.kernel, self.points, self.n_targets
        needed = n_samples * t  # targets are independent given the hyperparameters
        prior = PriorSamples.for_sample_functions(kernel, self.n_inputs, needed, generator)
        draws = standard_normal(2, points.count, needed, generator=generator).to(self.whitened_root)
        inducing = self.whitened_mean.repeat_interleave(n_samples, 1) + self.whitened_root @ draws[0]
        at_points = prior.evaluate(kernel, points.points, self.budget) + points.jitter**0.5 * draws[1]
        at_points = torch.linalg.solve_triangular(points.factor, at_points, upper=False)
        weights = points.unwhiten(inducing - at_points)

        def evaluate(X: Tensor) -> Tensor:
            wide = X.double()
            update = cross_product(kernel, wide, points.points, weights, budget=self.budget)
            values = prior.evaluate(kernel, wide, self.budget) + update
            return self.trend(X)[:, :, None] + values.to(X).reshape(X.shape[0], t, n_samples)

        return evaluate

    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        """Return the lower bound of the log marginal likelihood on all rows.

        Its standard error is 0, because the bound is exact; its distance from the likelihood is not known.
        """
        return Estimate(self._value, 0.0)

    # Files ----------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state for a model file, which does not include the rows."""
        tensors = {
            "inducing_points": self.inducing_points,
            "mean": self.whitened_mean,
            "root": self.whitened_root,
            "coefficients": self._trend.coefficients,
            "coefficient_root": self._trend.root,
            "whitened_basis": self._trend.whitened,
        }
        if self._sums is not None:
            tensors |= {f"sums.{name}": getattr(self._sums, name) for name in ("products", "log_noise", "shift")}
        return tensors, {
            "unexplained": None if self._sums is None else self._sums.unexplained,
            "value": self._value,
            "method": self.method,
            "jitter": self.points.share,
            "n_rows": self.n_rows,
            "dtype": str(self.dtype).removeprefix("torch."),
        }

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], header: dict[str, Any], saved: Saved) -> SparsePosterior:
        forms: dict[str, Form] = {
            "value": number(),
            "method": text,
            "jitter": number(finite=True, positive=True),
            "n_rows": whole(1),
            "dtype": one_of("float64", "float32"),
        }
        record(forms, {"unexplained": optional(number(finite=True))})(header, "posterior")
        fields = {
            "inducing_points": Field("m d", "float64"),
            "mean": Field("m t", "float64"),
            "root": Field("m m", "float64"),
            "whitened_basis?": Field("m p", "float64"),
            "coefficients": Field("p t"),
            "coefficient_root?": Field("p p"),
        }
        with_sums = header.get("unexplained") is not None  # not in files of versions that added no rows
        if with_sums:
            fields |= {"sums.products": Field("k k", "float64"), "sums.log_noise": Field("", "float64")}
            fields["sums.shift"] = Field("p t", "float64")
        sizes = check_tensors(tensors, fields, saved.sizes)
        if with_sums and sizes["k"] != sizes["t"] + sizes["p"]:
            raise ModelFileError(f"sums.products must have {sizes['t'] + sizes['p']} rows; got {sizes['k']}.")
        saved.check_rows(header["n_rows"])
        trend = SparseTrend.known(tensors["coefficients"], len(tensors["mean"]))
        # files of versions that count the uncertainty of the trend in the variance contain these tensors
        if "whitened_basis" in tensors or "coefficient_root" in tensors:
            trend = SparseTrend(trend.coefficients, tensors["coefficient_root"], tensors["whitened_basis"])
        return cls(
            saved.model,
            InducingPoints(saved.model.kernel, tensors["inducing_points"], header["jitter"]),
            tensors["mean"],
            tensors["root"],
            trend,
            header["value"],
            method=header["method"],
            n_rows=header["n_rows"],
            dtype=getattr(torch, header["dtype"]),
            budget=saved.budget,
            sums=SparseSums(**part(tensors, "sums."), unexplained=header["unexplained"]) if with_sums else None,
        )
