"""Points of predictions in the units of a posterior, and the posterior that answers where cells are missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gigagp.inference.contract.open_points import OpenPosterior
from gigagp.inference.contract.posterior import Posterior, SampleFunctions
from gigagp.kernels.stationary import require_taken
from gigagp.model.scaling import Scaling
from gigagp.tables.encoding import fitted_encoder, model_inputs


class QueryPoints:
    """The part of a fitted estimator that takes points.

    Attributes
    ----------
    posterior_ : Posterior
        Posterior in the units of the standardized problem.
    scaling_ : Scaling
        Transformation between the data's own units and those of the standardized problem.
    """

    posterior_: Posterior
    scaling_: Scaling

    def _new_inputs(self, X: Any) -> tuple[np.ndarray, torch.Tensor]:
        """Return checked points in the data's units, and in the posterior's, with NaN where cells are missing."""
        X = opened = model_inputs(self, X, reset=False, opens=True)
        encoder = fitted_encoder(self)
        if encoder is not None:
            X = encoder.filled(opened)
        names = getattr(self, "feature_names_in_", None)
        require_taken(self.posterior_.model.kernel, X, names)
        points = self._points(X)
        refusal = self.posterior_.refusal(points, self.scaling_, names)
        if refusal is not None:
            raise refusal
        return X, points if opened is X else self._points(opened)

    def _points(self, X: np.ndarray) -> torch.Tensor:
        """Return inputs in the units of the posterior."""
        posterior = self.posterior_
        return torch.from_numpy(self.scaling_.inputs(X)).to(dtype=posterior.dtype, device=posterior.device)

    def _posterior_for(self, points: torch.Tensor) -> Posterior | OpenPosterior:
        """Return the posterior that answers at points, of which some inputs may be NaN."""
        encoder = fitted_encoder(self)
        if encoder is None or not bool(points.isnan().any()):
            return self.posterior_
        return OpenPosterior(self.posterior_, self._points(encoder.spread))

    def _white_at(self, points: torch.Tensor) -> torch.Tensor:
        """Return the variance of the kernel's white part at points, of which some inputs may be NaN, shape (m,)."""
        posterior, white = self._posterior_for(points), self.posterior_.model.kernel.white
        found = posterior.averaged(white, points) if isinstance(posterior, OpenPosterior) else white(points)
        return found.double().cpu()

    def _evaluated(self, functions: SampleFunctions, points: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return samples (m, t, s) at points, of which some inputs may be NaN."""
        posterior = self._posterior_for(points)
        if isinstance(posterior, OpenPosterior):
            return posterior.samples_of(functions, points, generator)
        return functions(points)
