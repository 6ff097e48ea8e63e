"""Base classes of posteriors: the methods that predict with a fitted model, for every inference method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch

from gigagp.errors import InvalidInputError
from gigagp.inference.contract.input_gradients import refuse_gradient
from gigagp.inference.contract.left_out import LeftOut
from gigagp.inference.contract.marginals import Marginals
from gigagp.inference.contract.saved import Saved
from gigagp.kernels import Group
from gigagp.model.estimate import Estimate
from gigagp.model.likelihoods import Likelihood
from gigagp.model.model import Model
from gigagp.model.scaling import Scaling
from gigagp.neighbours.folds import Fold
from gigagp.optimization.history import SolveRecord
from gigagp.products import Engine, select
from gigagp.products.dense import eigh
from gigagp.settings.random import standard_normal

#: Source of a variance where there is a choice: stored samples, or a solve for each point.
VarianceMethod = Literal["auto", "samples", "solve"]

#: A group with its levels (q, columns), and means (q, 1 + slopes, t) and standard deviations (q, 1 + slopes) of effects
#: and slopes.
GroupEffect = tuple[Group, torch.Tensor, torch.Tensor, torch.Tensor]

#: Functions of points (m, d) with values (m, n_targets, n_samples).
SampleFunctions = Callable[[torch.Tensor], torch.Tensor]


class VarianceParts(NamedTuple):
    """A latent variance split into two parts of shape (m,) (Wenger et al. 2024, section 2)."""

    #: due to the finite number of rows: the variance of the exact posterior at the same hyperparameters
    mathematical: torch.Tensor
    computational: torch.Tensor  # due to limited computation, in addition; never negative


class Posterior(ABC):
    """The posterior of the latent function at one set of hyperparameters.

    All quantities are in the units in which the model was fitted (standardized, if the estimator standardizes), and
    all methods work in blocks that keep to the memory budget. Where points require a gradient, a method returns values
    with the correct gradient (at fixed random numbers, and as exact as the solves behind it), or raises
    `InvalidInputError`.

    Subclasses differ in what they keep: `gigagp.inference.contract.rows_posterior.RowsPosterior` keeps all rows, and
    others keep inducing points, weights, or sums on a grid. Code outside an inference method relies on this class only.

    Attributes
    ----------
    kind : str
        Name of the class in model files.
    covariance_is_cheap : bool
        Whether joint samples at a few points should be drawn from the full covariance.
    replaces_kernel : bool
        Whether functions or a grid stand for the kernel, so that variances can be far below the exact ones.
    learns_prior : bool
        Whether functions have a prior of their own, which leaves next to no variance away from those that are kept.
    is_mixture : bool
        Whether `marginals` has several components, so that the distribution at a point is not normal.
    model : Model
        Model at the fitted hyperparameters.
    budget : int
        Memory budget in bytes.
    coefficients : Tensor of shape (p, t)
        Coefficients of the mean's basis. All returned tensors have their dtype and device.
    coefficient_root : Tensor of shape (p, p)
        Root of the covariance of the coefficients (`gigagp.inference.contract.trend`).
    final_solve : SolveRecord or None
        Record of the solve that the posterior is computed from; None if it is computed from a factor.

    Notes
    -----
    The coefficients of the mean are not known exactly, and their uncertainty is included in every variance, covariance
    and sample, for every inference method (universal kriging: a flat prior on the coefficients). A subclass implements
    the methods with ``given_trend`` in their names, which take the coefficients as known. The contribution of the
    coefficients is independent of theirs, and this class adds it.
    """

    kind: ClassVar[str]
    covariance_is_cheap: bool = False
    replaces_kernel: bool = False
    learns_prior: bool = False
    is_mixture: ClassVar[bool] = False
    model: Model
    budget: int
    coefficients: torch.Tensor
    coefficient_root: torch.Tensor
    final_solve: SolveRecord | None = None

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """Number of rows that the posterior was fitted to."""

    @property
    def n_inputs(self) -> int:
        """Number of inputs."""
        return self.model.n_inputs

    @property
    def n_targets(self) -> int:
        """Number of targets."""
        return self.coefficients.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Data type of points and predictions."""
        return self.coefficients.dtype

    @property
    def device(self) -> torch.device:
        """Device of points and predictions."""
        return self.coefficients.device

    def places(self) -> torch.Tensor:
        """Return points, shape (k, d), that outline the training data as far as the posterior knows them; k may be 0.

        They are used for plots, and to check that a restored posterior can predict.
        """
        return torch.zeros(0, self.n_inputs, dtype=self.dtype, device=self.device)

    def engine_name(self) -> str:
        """Return the engine of the kernel products with its device and precision."""
        return f"{self.engine().name}, {self.device.type}, {str(self.dtype).removeprefix('torch.')}"

    def engine(self) -> Engine:
        """Return the engine of the kernel products."""
        return select(self.model.kernel, self.device, self.dtype)

    @abstractmethod
    def solver_name(self) -> Any:
        """Return the solver that ran."""

    def notes(self) -> dict[str, str]:
        """Return what else a description of the fit should say, by a word of at most 13 letters; by default nothing."""
        return {}

    def gap(self) -> Estimate | None:
        """Return `gigagp.optimization.History.gap`; by default None."""
        return None

    @abstractmethod
    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the tensors and the plain data that a model file stores."""

    @classmethod
    @abstractmethod
    def from_state(cls, tensors: dict[str, torch.Tensor], header: dict[str, Any], saved: Saved) -> Posterior:
        """Return the posterior that `state` described, after a check of all its tensors and numbers.

        Raises
        ------
        ModelFileError
            If the state is not valid for a posterior of this kind. A file with a correct checksum may still come from
            another program or version, or be hostile (`gigagp.settings.schema`).
        """

    def refusal(self, X: torch.Tensor, scaling: Scaling, names: Sequence[str] | None) -> InvalidInputError | None:
        """Return the error for points (m, d) without a prediction, in the data's own units; None if all have one.

        The points are in the units of the model, to which ``scaling`` leads from the data's own units. ``names`` are
        the names of the inputs.
        """
        return None

    def noise_at(self, X: torch.Tensor) -> torch.Tensor:
        """Return the noise variance of new rows, shape (m,); it includes the kernel's white terms."""
        return self.model.noise_at(X)

    def trend(self, X: torch.Tensor) -> torch.Tensor:
        """Return the learned part of the mean at new points, shape (m, t)."""
        return self.model.mean.basis(X).to(self.coefficients) @ self.coefficients

    @abstractmethod
    def mean(self, X: torch.Tensor) -> torch.Tensor:
        """Return the posterior mean, shape (m, t)."""

    @abstractmethod
    def explained_basis(self, X: torch.Tensor) -> torch.Tensor:
        """Return `mean` minus `trend` with the mean's basis functions in place of the targets, shape (m, p)."""

    def trend_root(self, X: torch.Tensor, explained: torch.Tensor | None = None) -> torch.Tensor:
        """Return a root, shape (m, p), of the covariance that the uncertain coefficients of the mean add.

        It is ``phi(x) - Phi' H^-1 k_x`` times the root of the coefficients' covariance (Rasmussen and Williams 2006,
        eq. 2.42). It grows with the distance from the rows as the basis functions do. Callers that have already
        computed `explained_basis` at the points pass it as ``explained``.
        """
        if not self.coefficient_root.shape[0]:
            return X.new_zeros(X.shape[0], 0)
        basis = self.model.mean.basis(X).to(self.coefficient_root)
        explained = self.explained_basis(X) if explained is None else explained
        return (basis - explained.to(basis)) @ self.coefficient_root

    def prior_variance(self, X: torch.Tensor) -> torch.Tensor:
        """Return the prior variance at given coefficients of the mean, shape (m,).

        The posterior variance at given coefficients never exceeds it.
        """
        return self.model.kernel.diagonal(X)

    def mean_and_variance(self, X: torch.Tensor, method: VarianceMethod = "auto") -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean (m, t) and the variance (m,) of the latent function, never negative."""
        mean, variance = self.mean_and_variance_given_trend(X, method)
        return mean, variance + self.trend_root(X).square().sum(1).to(variance)

    @abstractmethod
    def mean_and_variance_given_trend(
        self, X: torch.Tensor, method: VarianceMethod = "auto"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean and the variance at given coefficients of the mean's basis."""

    def marginals(self, X: torch.Tensor, *, include_noise: bool = False) -> Marginals:
        """Return the distribution of the latent function, or of observations, at single points."""
        mean, variance = self.mean_and_variance(X)
        found = Marginals(torch.ones(1, dtype=torch.float64), mean[None], variance[None])
        return found.plus(self.noise_at(X)) if include_noise else found

    def check_variances(self, X: torch.Tensor) -> None:  # noqa: B027 (most have nothing to check)
        """Warn if the variances at points cannot be correct; called at the end of a fit.

        By default nothing is checked: variances from a factor cannot exceed the prior variance.
        """

    def covariance(self, X: torch.Tensor) -> torch.Tensor:
        """Return the covariance of the latent function at all pairs of points, (m, d) to (m, m).

        Batches of points (b, m, d) have the covariances (b, m, m) within each batch.
        """
        covariance = self.covariance_given_trend(X)
        root = self.trend_root(X.flatten(0, -2)).unflatten(0, X.shape[:-1])
        return covariance + (root @ root.mT).to(covariance)

    @abstractmethod
    def covariance_given_trend(self, X: torch.Tensor) -> torch.Tensor:
        """Return the covariance at given coefficients of the mean's basis, of points or batches as `covariance`."""

    def sample_functions(self, n_samples: int, generator: torch.Generator) -> SampleFunctions:
        """Return posterior samples as functions that can be evaluated at any points, repeatedly."""
        functions = self.sample_functions_given_trend(n_samples, generator)
        if not self.coefficient_root.shape[0]:
            return functions
        draws = self._coefficient_draws(n_samples, generator)

        def evaluate(X: torch.Tensor) -> torch.Tensor:
            values = functions(X)
            return values + (self.trend_root(X) @ draws).reshape(X.shape[0], self.n_targets, n_samples).to(values)

        return evaluate

    def _coefficient_draws(self, n_samples: int, generator: torch.Generator) -> torch.Tensor:
        """Return standard normal numbers for the coefficients of the mean, shape (p, t s)."""
        p = self.coefficient_root.shape[0]
        return standard_normal(p, self.n_targets * n_samples, generator=generator).to(self.coefficient_root)

    @abstractmethod
    def sample_functions_given_trend(self, n_samples: int, generator: torch.Generator) -> SampleFunctions:
        """Return posterior samples at given coefficients of the mean's basis."""

    def sample_at(self, X: torch.Tensor, n_samples: int, generator: torch.Generator) -> torch.Tensor:
        """Return joint samples at points, drawn from the full covariance, shape (m, t, s).

        Raises
        ------
        InvalidInputError
            If the points require a gradient: the root of a nearly singular covariance has no usable gradient.
        """
        refuse_gradient(X, f"sample_at of a {self.kind} posterior", "Samples from sample_functions have one.")
        values, vectors = eigh(self.covariance(X).double())
        root = vectors * values.clamp_min(0).sqrt()  # negative eigenvalues are rounding errors
        draws = standard_normal(X.shape[0], self.n_targets * n_samples, generator=generator).to(root)
        spread = (root @ draws).to(X).reshape(X.shape[0], self.n_targets, n_samples)
        return self.mean(X)[:, :, None] + spread

    def variance_parts(self, X: torch.Tensor) -> VarianceParts:
        """Return the variance split into the parts due to finite data and due to limited computation.

        Raises
        ------
        InvalidInputError
            If this inference method does not separate the two parts.
        """
        raise InvalidInputError(
            f"return_parts of GPRegressor.predict needs inference.ComputationAware or Exact; this is a {self.kind} "
            "posterior, which does not tell the parts of its variance apart."
        )

    def left_out(self) -> LeftOut | None:
        """Return the distribution of each row given all others; by default None."""
        return None

    def left_out_folds(self, folds: Sequence[Fold]) -> LeftOut | None:
        """Return the scored rows of folds, each given all rows but those of its fold; by default None."""
        return None

    def left_out_latent(self, likelihood: Likelihood) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the mean (n, t) and the variance (n,) of the latent function at each row given all others.

        It is for targets that are not Gaussian, of which ``likelihood`` has the learned parameters; by default None.
        """
        return None

    def group_effects(self) -> list[GroupEffect] | None:
        """Return each group of the kernel with the effects of its levels; by default None, because none are kept."""
        return None

    @abstractmethod
    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        """Return the log marginal likelihood of the training targets with its standard error."""


class GrowingPosterior(Posterior):
    """A posterior that can add rows at fixed hyperparameters, for about the cost of the new rows."""

    def row_refusal(self, X: torch.Tensor, scaling: Scaling, names: Sequence[str] | None) -> InvalidInputError | None:
        """Return the error for rows that cannot be added, or None; the parameters are those of `refusal`."""
        return None

    @abstractmethod
    def with_rows(self, X: torch.Tensor, Y: torch.Tensor, noise: torch.Tensor | None = None) -> Posterior:
        """Return the posterior given additional rows; this one stays as it is.

        Inputs (n, d), targets (n, t) minus a fixed mean, and noise variances (n,), which are given if those of the
        earlier rows are known too, are in the units of the model.
        """
