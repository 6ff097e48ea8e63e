"""The vector an optimizer moves: learned hyperparameters under a transform that keeps them positive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch

from gigagp.errors import InvalidInputError
from gigagp.model import Model

#: How positive hyperparameters are made unconstrained.
TransformName = Literal["softplus", "log"]


def check_transform(transform: str, owner: str) -> None:
    """Raise `InvalidInputError` for anything that is not a transform."""
    if transform not in ("softplus", "log"):
        msg = f'transform of {owner} must be "softplus" or "log"; got {transform!r}.'
        raise InvalidInputError(msg)


class ParameterSpace:
    """A bijection between a model's learned hyperparameters and one unconstrained vector.

    Variances are moved as standard deviations (the papers learn scales), so a variance ``v`` with the softplus
    transform is ``softplus(u)^2`` and with the log transform ``exp(2 u)``.

    Parameters
    ----------
    model : Model
        Gives names, shapes and the values that stay fixed.
    transform : {"softplus", "log"}
        ``"softplus"`` is the papers' choice and goes with Adam; ``"log"`` makes equal steps equal ratios, which
        is what methods that use curvature need.
    """

    def __init__(self, model: Model, transform: TransformName) -> None:
        check_transform(transform, "ParameterSpace")
        self.transform = transform
        self.template = model
        values = model.parameters()
        self.names = model.learned_names()
        self._shapes = {name: values[name].shape for name in self.names}
        self._sizes = {name: values[name].numel() for name in self.names}
        self.size = sum(self._sizes.values())
        #: one label for each coordinate, such as ``lengthscale[3]``
        self.labels = tuple(
            name if values[name].ndim == 0 else f"{name}[{i}]" for name in self.names for i in range(self._sizes[name])
        )
        self.is_variance = torch.tensor(
            [label.split("[")[0].split(".")[-1] in ("variance", "noise_variance") for label in self.labels],
            dtype=torch.bool,
        )

    def encode(self, model: Model) -> torch.Tensor:
        """Return the model's learned hyperparameters as an unconstrained float64 vector."""
        values = model.parameters()
        natural = torch.cat(
            [values[name].reshape(-1).double().cpu() for name in self.names] or [torch.zeros(0, dtype=torch.float64)]
        )
        scale = torch.where(self.is_variance, natural.sqrt(), natural)
        # the inverse of softplus is scale + log(1 - exp(-scale)), which does not overflow
        return scale.log() if self.transform == "log" else scale + torch.log(-torch.expm1(-scale))

    def _scale(self, vector: torch.Tensor) -> torch.Tensor:
        return vector.exp() if self.transform == "log" else torch.nn.functional.softplus(vector)

    def decode(self, vector: torch.Tensor) -> Model:
        """Return the model at an unconstrained vector."""
        scale = self._scale(vector)
        natural = torch.where(self.is_variance, scale.square(), scale)
        values, start = {}, 0
        for name in self.names:
            values[name] = natural[start : start + self._sizes[name]].reshape(self._shapes[name])
            start += self._sizes[name]
        return self.template.replace(values)

    def jacobian(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the derivative of each natural hyperparameter by its unconstrained coordinate."""
        scale = self._scale(vector)
        slope = scale if self.transform == "log" else torch.sigmoid(vector)
        return torch.where(self.is_variance, 2 * scale * slope, slope)

    def flatten(self, by_name: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return values given by name (a gradient, say) as one vector in this order, untransformed."""
        parts = [by_name[name].reshape(-1).double().cpu() for name in self.names]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def pull_back(self, gradient: Mapping[str, torch.Tensor], vector: torch.Tensor) -> torch.Tensor:
        """Return a gradient in natural units as one by the unconstrained vector (chain rule)."""
        return self.flatten(gradient) * self.jacobian(vector)
