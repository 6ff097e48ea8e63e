"""The pathwise estimator, whose probes are noisy samples of the prior."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from gigagp.inference.gradients.base import GradientEstimator, Probes
from gigagp.inference.gradients.panel_samples import PanelSamples
from gigagp.model.model import Model
from gigagp.model.prior_samples import PriorSamples
from gigagp.operators import RowsMatrix
from gigagp.products import PanelTiles, select
from gigagp.products.dense import cholesky
from gigagp.runtime.memory import require
from gigagp.settings.fields import Count, Pairs
from gigagp.settings.random import standard_normal


@dataclass(frozen=True)
class PathwiseProbes(Probes):
    """``xi_j = f_j(X) + noise_sd * w_j`` with frozen base randomness (Lin et al. 2024, eq. 10).

    Attributes
    ----------
    prior : PriorSamples or None
        The prior functions; None if their values are drawn exactly at the training rows.
    base : Tensor of shape (n, s) or None
        Standard normal draws from which exact prior values are computed; None with prior functions.
    noise : Tensor of shape (n, s)
        Standard normal draws ``w``.
    """

    prior: PriorSamples | None
    base: torch.Tensor | None
    noise: torch.Tensor

    def right_hand_sides(self, model: Model, matrix: RowsMatrix, budget: int) -> torch.Tensor:
        if self.prior is not None:
            prior = self.prior
            values = matrix.of_function(lambda X: prior.evaluate(model.kernel, X, budget))
        else:
            assert self.base is not None
            n = matrix.n
            require(2 * n * n * 8, budget, "An exact prior sample", 'Use Pathwise(prior="features").')
            smooth = matrix.to_dense().double()
            smooth.diagonal().sub_(matrix.noise().double())
            # A kernel matrix is singular up to rounding; this addition to its diagonal has no visible effect on
            # samples.
            smooth.diagonal().add_(1e-10 * float(smooth.diagonal().max()))
            values = (cholesky(smooth, "the prior covariance") @ self.base.to(smooth)).to(matrix.dtype)
        return values + matrix.noise().sqrt()[:, None] * self.noise.to(values)

    def further(self, n_probes: int, generator: torch.Generator) -> PathwiseProbes:
        """Return further probes whose prior functions have the same features."""
        assert self.prior is not None
        weights, noise = (
            standard_normal(len(have), n_probes, generator=generator) for have in (self.prior.weights, self.noise)
        )
        return PathwiseProbes(replace(self.prior, weights=weights), None, noise)


@dataclass(frozen=True)
class Pathwise(GradientEstimator):
    """``tr(H^-1 D) = E[u' D u]`` with ``u = H^-1 xi``, ``xi ~ N(0, H)`` (Lin et al. 2024, eqs. 9 to 11).

    When to use: by default. The solutions are posterior samples (eq. 16), so that predictions need no further solve. At
    low noise the solves are shorter. With exact prior samples the variance is ``2 tr((H^-1 D)^2)`` for each probe,
    which is never above that of Hutchinson's estimator with Gaussian probes. Rademacher probes have a smaller variance
    for the noise and the kernel's variance, and usually a larger one for lengthscales.

    Parameters
    ----------
    n_probes : int, default 64
        Number of probes, and so of posterior samples; training needs no more than 16.
    n_features : int, default 2000
        Number of sine and cosine columns for each stationary term of the kernel.
    prior : {"features", "exact"}, default "features"
        ``"features"`` approximates prior functions by random features, except in the cells of a panel
        (`docs/iterative.md`), where they are exact. ``"exact"`` draws ``f(X)`` with a Cholesky
        factor, without the error of features, for a few thousand rows at most.
    law : {"balanced", "joint", "independent"}, default "balanced"
        How frequencies are drawn. ``"joint"``: from the spectral density. ``"balanced"``: half of them evenly over the
        decades of its tail, with weights, so that samples are not overconfident at low noise. ``"independent"``: each
        coordinate separately, which is another kernel if there is more than one input. This error is behind the paper's
        printed pathwise numbers on bike and protein; use it only to reproduce them.
    """

    n_probes: Count = 64
    n_features: Pairs = 2000
    prior: Literal["features", "exact"] = "features"
    law: Literal["balanced", "joint", "independent"] = "balanced"

    def draw(
        self, model: Model, X: torch.Tensor, generator: torch.Generator, *, has_points: bool = True
    ) -> PathwiseProbes:
        """Draw frequencies, weights and noise, none of which depends on the hyperparameters."""
        n, d = X.shape
        prior: PriorSamples | None = None
        base = None
        engine = select(model.kernel, X.device, X.dtype, rows=X if has_points else None, alone=True)
        if self.prior == "features" and isinstance(engine, PanelTiles):
            prior = PanelSamples.of_panel(model, engine, self.n_probes, self.n_features, generator, self.law)
        elif self.prior == "features":
            prior = PriorSamples.new(model.kernel, d, self.n_probes, self.n_features, generator, law=self.law)
        else:
            base = standard_normal(n, self.n_probes, generator=generator)
        return PathwiseProbes(prior, base, standard_normal(n, self.n_probes, generator=generator))

    def trace_pair(
        self, solutions: torch.Tensor, right_hand_sides: torch.Tensor, second: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``H^-1 xi`` twice, or both independent solutions; neither is differentiated."""
        return solutions, solutions if second is None else second
