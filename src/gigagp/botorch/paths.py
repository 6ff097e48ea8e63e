"""Samples of a fit as functions, for BoTorch's Thompson sampling."""

from __future__ import annotations

import math
from typing import Any

import torch
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from torch import Tensor

from gigagp.botorch.model import GigaModel
from gigagp.errors import InvalidInputError
from gigagp.estimators.answers.answering import predictor_of_rows
from gigagp.estimators.answers.joint_posterior import known_mean
from gigagp.estimators.answers.predictor import Predictor
from gigagp.inference.contract.posterior import SampleFunctions


class GigaPaths(SamplePath):
    """Posterior samples of a `GigaModel`'s regressor as functions, by `gigagp.GPRegressor.sample_functions`' rules.

    Parameters
    ----------
    model : GigaModel
        Not conditioned on further observations.
    sample_shape : torch.Size
        Shape of the samples. They are drawn with a seed from torch's global generator, as BoTorch's own are.

    Raises
    ------
    InvalidInputError
        If the model is conditioned on further observations, or the inference has no sampled functions.
    """

    def __init__(self, model: GigaModel, sample_shape: torch.Size) -> None:
        super().__init__()
        if model.given is not None:
            msg = "draw_matheron_paths needs a GigaModel without further observations: fit again with them."
            raise InvalidInputError(msg)
        self.model, self.sample_shape = model, torch.Size(sample_shape)
        generator = torch.Generator().manual_seed(int(torch.randint(2**31, (1,))))
        count = max(1, math.prod(sample_shape))
        predictors = [predictor_of_rows(fit, "learned") for fit in model.regressor.estimators_]
        self._functions = [(one, one.posterior.sample_functions(count, generator)) for one in predictors]

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Do nothing: a regressor is one model."""

    def forward(self, x: Tensor) -> Tensor:
        """Return values at points.

        Parameters
        ----------
        x : Tensor of shape (..., n, d)
            The leading shape is broadcast with the shape of the samples, to which several outputs add an axis.

        Returns
        -------
        Tensor of shape (..., n)
        """
        model = self.model
        if model.stacking is None:
            found = torch.cat([_values(*one, x) for one in self._functions], 1)
        else:
            centre, unit = (one[:, None].to(x.device) for one in model.stacking.units())
            stacked = _values(*self._functions[0], model.stacking.points_of(x.double()))[:, 0]
            found = stacked.unflatten(0, (-1, model.n_fitted)) * unit + centre
        found = found[:, model.outputs]
        shape = self.sample_shape if model.num_outputs == 1 else (*self.sample_shape, model.num_outputs)
        every = found.mT.reshape(*x.shape[:-1], -1)  # samples first, then outputs, in the last axis
        places = torch.arange(math.prod(shape), device=found.device).reshape(shape)
        leading = torch.broadcast_shapes(x.shape[:-2], places.shape)
        every = every.expand(*leading, *every.shape[-2:])
        places = places.expand(leading)[..., None, None].expand(*every.shape[:-1], 1)
        return every.gather(-1, places)[..., 0].to(x)


def _values(predictor: Predictor, functions: SampleFunctions, x: Tensor) -> Tensor:
    """Return samples of a fit in the data's own units, shape (points, targets, samples)."""
    points = predictor.scaling.points(x.double().reshape(-1, x.shape[-1])).to(predictor.posterior.coefficients)
    refusal = predictor.posterior.refusal(points.detach(), predictor.scaling, None)
    if refusal is not None:
        raise refusal
    found = functions(points).double()
    scale, centre = (torch.from_numpy(one).to(found) for one in (predictor.scaling.y_scale, predictor.scaling.y_centre))
    found = found * scale[:, None] + centre[:, None]
    offset = known_mean(predictor.posterior.model.mean, x, x.reshape(-1, x.shape[-1]))
    return found if offset is None else found + offset.to(found)[:, None, None]


@DrawMatheronPaths.register(GigaModel)  # type: ignore[untyped-decorator]  # BoTorch's dispatcher has no types
def _draw_matheron_paths(model: GigaModel, *, sample_shape: torch.Size, **_: Any) -> GigaPaths:
    return GigaPaths(model, sample_shape)
