"""What a fitted model answers, whatever inferred it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch

from gigagp.errors import InvalidInputError
from gigagp.estimate import Estimate
from gigagp.inference.input_gradients import refuse_gradient
from gigagp.inference.saved import Saved
from gigagp.model import Model
from gigagp.optimization.history import SolveRecord
from gigagp.products import select
from gigagp.random import standard_normal
from gigagp.scaling import Scaling

#: Where a variance comes from, where there is a choice: stored samples, or a solve for each point.
VarianceMethod = Literal["auto", "samples", "solve"]

#: Functions of points (m, d) with values (m, n_targets, n_samples).
SampleFunctions = Callable[[torch.Tensor], torch.Tensor]


class VarianceParts(NamedTuple):
    """A latent variance in two parts (Wenger et al. 2024, section 2).

    Attributes
    ----------
    mathematical : Tensor of shape (m,)
        What finitely many rows leave open: the exact posterior's variance at the same hyperparameters.
    computational : Tensor of shape (m,)
        What was not computed leaves open on top; never negative.
    """

    mathematical: torch.Tensor
    computational: torch.Tensor


class Posterior(ABC):
    """The posterior of the latent function at one set of hyperparameters.

    Everything here is in the units in which the model was fitted (standardized, if the estimator standardizes) and
    works in blocks that keep to the memory budget. Where points require a gradient, answers have the right gradient
    (at fixed random numbers, and as exact as the solves behind it), or refuse with `InvalidInputError`.

    A subclass keeps what it needs of the rows: `gigagp.inference.rows_posterior.RowsPosterior` keeps all of them,
    others keep inducing points, weights, or sums on a grid. Nothing outside a system relies on more than this class.

    Attributes
    ----------
    kind : str
        Name of the class in model files.
    covariance_is_cheap : bool
        Whether joint samples at a few points are best drawn from the full covariance.
    model : Model
    budget : int
        Bytes.
    coefficients : Tensor of shape (p, t)
        Of the mean's basis, in the dtype and on the device of all answers.
    coefficient_root : Tensor of shape (p, p)
        Root of the coefficients' covariance (`gigagp.inference.trend`).
    final_solve : SolveRecord or None
        What the solve behind the posterior did; None where there was a factor instead.

    Notes
    -----
    The coefficients of the mean are not known exactly, and their uncertainty is in every variance, covariance and
    sample, whatever inferred them (universal kriging: a flat prior of the coefficients). A subclass answers for the
    function at given coefficients, in the methods with ``given_trend`` in their names; what the coefficients add is
    independent of that, and is added here.
    """

    kind: ClassVar[str]
    covariance_is_cheap: ClassVar[bool] = False
    model: Model
    budget: int
    coefficients: torch.Tensor
    coefficient_root: torch.Tensor
    final_solve: SolveRecord | None = None

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """Rows that it was fitted to."""

    @property
    def n_inputs(self) -> int:
        """Columns of the inputs."""
        assert self.model.kernel.n_inputs is not None, "the kernel of a model is bound"
        return self.model.kernel.n_inputs

    @property
    def n_targets(self) -> int:
        """Number of targets."""
        return self.coefficients.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Of points and answers."""
        return self.coefficients.dtype

    @property
    def device(self) -> torch.device:
        """Of points and answers."""
        return self.coefficients.device

    def places(self) -> torch.Tensor:
        """Return points, shape (k, d), among which the data lie, as far as the posterior knows them; there may be none.

        For pictures, and to check that a restored posterior has an answer.
        """
        return torch.zeros(0, self.n_inputs, dtype=self.dtype, device=self.device)

    def engine_name(self) -> str:
        """Return what computes kernel products, where, in which precision."""
        engine = select(self.model.kernel, self.device, self.dtype)
        return f"{engine.name}, {self.device.type}, {str(self.dtype).removeprefix('torch.')}"

    @abstractmethod
    def solver_name(self) -> Any:
        """Return the solver that ran."""

    @abstractmethod
    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the tensors and the plain data that a model file needs."""

    @classmethod
    @abstractmethod
    def from_state(cls, tensors: dict[str, torch.Tensor], header: dict[str, Any], saved: Saved) -> Posterior:
        """Return the posterior that `state` described, after a check of every tensor and number of it.

        Parameters
        ----------
        tensors : dict of str to Tensor
        header : dict
        saved : Saved
            What the file says beside them.

        Raises
        ------
        ModelFileError
            If the state is not what a posterior of this kind has. A file with a right checksum may still be of another
            program, another version, or hostile (`gigagp.schema`).
        """

    def refusal(self, X: torch.Tensor, scaling: Scaling, names: Sequence[str] | None) -> InvalidInputError | None:
        """Return the error for points that it has no answer for, in the data's own units; None: it has for all.

        Parameters
        ----------
        X : Tensor of shape (m, d)
            In the units of the model.
        scaling : Scaling
        names : sequence of str or None
            Of the inputs.
        """
        return None

    def noise_at(self, X: torch.Tensor) -> torch.Tensor:
        """Return the noise variance of new rows, the kernel's white part included, shape (m,)."""
        return self.model.noise_at(X)

    def trend(self, X: torch.Tensor) -> torch.Tensor:
        """Return the learned part of the mean at new points, shape (m, t)."""
        return self.model.mean.basis(X).to(self.coefficients) @ self.coefficients

    @abstractmethod
    def mean(self, X: torch.Tensor) -> torch.Tensor:
        """Return the posterior mean, shape (m, t)."""

    @abstractmethod
    def explained_basis(self, X: torch.Tensor) -> torch.Tensor:
        """Return what `mean` less `trend` would be if the mean's basis functions were the targets, shape (m, p)."""

    def trend_root(self, X: torch.Tensor, explained: torch.Tensor | None = None) -> torch.Tensor:
        """Return the root, shape (m, p), of what the uncertainty of the mean's coefficients adds to the covariance.

        ``phi(x) - Phi' H^-1 k_x`` times the root of the coefficients' covariance (Rasmussen and Williams 2006, eq.
        2.42). It grows with the distance from the rows as the basis functions do. A caller that has `explained_basis`
        of the points hands it in.
        """
        if not self.coefficient_root.shape[0]:
            return X.new_zeros(X.shape[0], 0)
        basis = self.model.mean.basis(X).to(self.coefficient_root)
        explained = self.explained_basis(X) if explained is None else explained
        return (basis - explained.to(basis)) @ self.coefficient_root

    def prior_variance(self, X: torch.Tensor) -> torch.Tensor:
        """Return the variance before any row is known, at given coefficients of the mean, shape (m,).

        Rows never add to it.
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
        """Return the mean and the variance at given coefficients of the mean."""

    def check_variances(self, X: torch.Tensor) -> None:  # noqa: B027 (most have nothing to check)
        """Warn where variances at points cannot be right, for a fit to say so at its end.

        Here nothing: variances from a factor cannot exceed the prior's.
        """

    def covariance(self, X: torch.Tensor) -> torch.Tensor:
        """Return the covariance of the latent function at all pairs of points, shape (m, m)."""
        covariance, root = self.covariance_given_trend(X), self.trend_root(X)
        return covariance + (root @ root.T).to(covariance)

    @abstractmethod
    def covariance_given_trend(self, X: torch.Tensor) -> torch.Tensor:
        """Return the covariance at given coefficients of the mean."""

    def sample_functions(self, n_samples: int, generator: torch.Generator) -> SampleFunctions:
        """Return posterior samples that can be evaluated anywhere, again and again."""
        functions = self.sample_functions_given_trend(n_samples, generator)
        p, t = self.coefficient_root.shape[0], self.n_targets
        if not p:
            return functions
        draws = standard_normal(p, t * n_samples, generator=generator).to(self.coefficient_root)

        def evaluate(X: torch.Tensor) -> torch.Tensor:
            values = functions(X)
            return values + (self.trend_root(X) @ draws).reshape(X.shape[0], t, n_samples).to(values)

        return evaluate

    @abstractmethod
    def sample_functions_given_trend(self, n_samples: int, generator: torch.Generator) -> SampleFunctions:
        """Return posterior samples at given coefficients of the mean."""

    def sample_at(self, X: torch.Tensor, n_samples: int, generator: torch.Generator) -> torch.Tensor:
        """Return joint samples at given points from the full covariance, shape (m, t, s).

        Raises
        ------
        InvalidInputError
            If the points require a gradient: the root of a covariance that is nearly singular has none to speak of.
        """
        refuse_gradient(X, f"sample_at of a {self.kind} posterior", "Samples from sample_functions have one.")
        values, vectors = torch.linalg.eigh(self.covariance(X).double())
        root = vectors * values.clamp_min(0).sqrt()  # eigenvalues below zero are rounding
        draws = standard_normal(X.shape[0], self.n_targets * n_samples, generator=generator).to(root)
        spread = (root @ draws).to(X).reshape(X.shape[0], self.n_targets, n_samples)
        return self.mean(X)[:, :, None] + spread

    def variance_parts(self, X: torch.Tensor) -> VarianceParts:
        """Return the variance as what the data and what the skipped computation leave open.

        Raises
        ------
        InvalidInputError
            If this inference does not tell the two apart.
        """
        msg = (
            f"return_parts of GPRegressor.predict needs inference.ComputationAware or Exact; this is a {self.kind} "
            "posterior, which does not tell the parts of its variance apart."
        )
        raise InvalidInputError(msg)

    @abstractmethod
    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        """Return the log marginal likelihood of the training targets with its standard error."""


class GrowingPosterior(Posterior):
    """A posterior that takes further rows at its hyperparameters, at a cost free of the rows before."""

    @abstractmethod
    def row_refusal(self, X: torch.Tensor, scaling: Scaling, names: Sequence[str] | None) -> InvalidInputError | None:
        """Return the error for rows that it cannot take; arguments as those of `refusal`."""

    @abstractmethod
    def with_rows(self, X: torch.Tensor, Y: torch.Tensor) -> Posterior:
        """Return the posterior given further rows as well.

        Parameters
        ----------
        X : Tensor of shape (n, d)
            In the units of the model.
        Y : Tensor of shape (n, t)
            A fixed mean has been subtracted.
        """
