"""The prior as the posterior given no rows."""

from __future__ import annotations

from typing import Any

import torch

from gigagp.errors import InvalidInputError
from gigagp.inference.contract.batches import prior_covariance
from gigagp.inference.contract.posterior import Posterior, SampleFunctions, VarianceMethod, VarianceParts
from gigagp.inference.contract.saved import Saved
from gigagp.model.estimate import Estimate
from gigagp.model.model import Model
from gigagp.model.prior_samples import PriorSamples
from gigagp.runtime.memory import require

#: Number of random features of sampled functions.
_N_FEATURES = 4000


class PriorPosterior(Posterior):
    """The distribution of the function before any row is observed: the kernel, with mean coefficients of 0.

    Parameters
    ----------
    model : Model
        Model in the units of the points.
    dtype : torch.dtype
        Data type of points and predictions.
    device : torch.device
        Device of points and predictions.
    budget : int
        Memory budget in bytes.
    knows_noise : bool
        Whether the model's noise was given; if not, `noise_at` refuses.
    """

    kind = "prior"
    covariance_is_cheap = True

    def __init__(self, model: Model, dtype: torch.dtype, device: torch.device, budget: int, knows_noise: bool) -> None:
        self.model, self.budget, self.knows_noise = model, budget, knows_noise
        places = torch.zeros(0, self.n_inputs, dtype=dtype, device=device)
        self.coefficients = places.new_zeros(model.mean.basis(places).shape[1], 1)
        self.coefficient_root = places.new_zeros(0, 0)  # left out: a flat prior on coefficients has infinite variance

    @property
    def n_rows(self) -> int:
        return 0

    def solver_name(self) -> str:
        """Return "none", since nothing is solved."""
        return "none"

    def noise_at(self, X: torch.Tensor) -> torch.Tensor:
        """Return the noise variance of rows, shape (m,).

        Raises
        ------
        InvalidInputError
            If no noise was given.
        """
        if self.knows_noise:
            return self.model.noise_at(X)
        msg = (
            "include_noise of GPRegressor.predict before fit needs one number as noise_variance of the estimator, or a "
            "White term in its kernel; there is neither."
        )
        raise InvalidInputError(msg)

    def mean(self, X: torch.Tensor) -> torch.Tensor:
        """Return zeros, shape (m, 1); the estimator adds a fixed mean."""
        return X.new_zeros(X.shape[0], 1)

    def explained_basis(self, X: torch.Tensor) -> torch.Tensor:
        """Return zeros, since there are no rows."""
        return X.new_zeros(X.shape[0], len(self.coefficients))

    def mean_and_variance_given_trend(
        self, X: torch.Tensor, method: VarianceMethod = "auto"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.mean(X), self.model.kernel.diagonal(X)

    def covariance_given_trend(self, X: torch.Tensor) -> torch.Tensor:
        m = X.shape[-2]
        require(3 * X[..., 0].numel() * m * X.element_size(), self.budget, f"The covariance of {m:,} points", "")
        return prior_covariance(self.model.kernel, X)

    def sample_functions_given_trend(self, n_samples: int, generator: torch.Generator) -> SampleFunctions:
        kernel = self.model.kernel
        prior = PriorSamples.new(kernel, self.n_inputs, n_samples, _N_FEATURES, generator)
        return lambda X: prior.evaluate(kernel, X, self.budget)[:, None, :]

    def variance_parts(self, X: torch.Tensor) -> VarianceParts:
        variance = self.mean_and_variance(X)[1]
        return VarianceParts(variance, torch.zeros_like(variance))

    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        return Estimate(0.0, 0.0)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Raise `NotImplementedError`: a prior is not stored."""
        raise NotImplementedError

    @classmethod
    def from_state(cls, tensors: dict[str, torch.Tensor], header: dict[str, Any], saved: Saved) -> PriorPosterior:
        """Raise `NotImplementedError`: a prior is not stored."""
        raise NotImplementedError
