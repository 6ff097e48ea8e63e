"""The vector an optimizer moves: learned hyperparameters made unconstrained, then the free numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

import torch

from gigagp.fields import checked
from gigagp.model import Model
from gigagp.optimization.box import Box

#: How positive hyperparameters are made unconstrained.
TransformName = Literal["softplus", "log"]


class ParameterSpace:
    """A bijection between what is learned of a model and one unconstrained float64 vector.

    The hyperparameters come first. Variances are moved as standard deviations (the papers learn scales), so a variance
    ``v`` with the softplus transform is ``softplus(u)^2`` and with the log transform ``exp(2 u)``. The free
    numbers of the model (inducing points, actions) follow as they are.

    Bounds of the kernel's hyperparameters (`Kernel.bounds`) are a `box` of vectors. A vector outside means the nearest
    model inside, so that no optimizer, whatever it knows of the box, can leave it.

    Parameters
    ----------
    model : Model
        Gives names, shapes and the values that stay fixed.
    transform : {"softplus", "log"}
        ``"softplus"`` is the papers' choice and goes with Adam; ``"log"`` makes equal steps equal ratios, which
        is what methods that use curvature need.
    """

    def __init__(self, model: Model, transform: TransformName) -> None:
        self.transform: TransformName = checked(transform, TransformName, "transform", "ParameterSpace")
        self.template = model
        values = model.parameters()
        self.names = model.learned_names()
        self._shapes = {name: values[name].shape for name in self.names}
        self._sizes = {name: values[name].numel() for name in self.names}
        #: number of hyperparameters, which are the head of the vector
        self.n_hyperparameters = sum(self._sizes.values())
        self._free_shapes = {name: value.shape for name, value in model.free.items()}
        self.size = self.n_hyperparameters + sum(value.numel() for value in model.free.values())
        #: one label for each hyperparameter, such as ``lengthscale[3]``
        self.labels = tuple(
            name if values[name].ndim == 0 else f"{name}[{i}]" for name in self.names for i in range(self._sizes[name])
        )
        self.is_variance = torch.tensor(
            [label.split("[")[0].split(".")[-1] in ("variance", "noise_variance") for label in self.labels],
            dtype=torch.bool,
        )
        bounds = model.kernel.bounds()
        self._lower = torch.zeros(self.n_hyperparameters, dtype=torch.float64)
        self._upper = torch.full_like(self._lower, torch.inf)
        start = 0
        for name in self.names:
            stop = start + self._sizes[name]
            if name in bounds:
                self._lower[start:stop] = bounds[name].lower.reshape(-1)
                self._upper[start:stop] = bounds[name].upper.reshape(-1)
            start = stop
        #: what the bounds leave of the vectors
        self.box = Box.everywhere(self.size)
        self.box.lower[: self.n_hyperparameters] = self._unconstrained(self._lower)
        self.box.upper[: self.n_hyperparameters] = self._unconstrained(self._upper)

    def _unconstrained(self, natural: torch.Tensor) -> torch.Tensor:
        scale = torch.where(self.is_variance, natural.sqrt(), natural)
        # the inverse of softplus is scale + log(1 - exp(-scale)), which does not overflow
        return scale.log() if self.transform == "log" else scale + torch.log(-torch.expm1(-scale))

    def encode(self, model: Model) -> torch.Tensor:
        """Return what is learned of the model as an unconstrained vector."""
        head = self._unconstrained(self._flatten(model.parameters(), self.names))
        return self.box.clip(torch.cat([head, self._flatten(model.free, self._free_shapes)]))

    def _head(self, vector: torch.Tensor) -> torch.Tensor:
        return vector[: self.n_hyperparameters]

    def _scale(self, vector: torch.Tensor) -> torch.Tensor:
        head = self._head(vector)
        return head.exp() if self.transform == "log" else torch.nn.functional.softplus(head)

    def decode(self, vector: torch.Tensor) -> Model:
        """Return the model at an unconstrained vector."""
        scale = self._scale(vector)
        natural = torch.where(self.is_variance, scale.square(), scale)
        # At a bound the value is the bound itself, not the exponential of its logarithm: that can be off by a bit.
        head = self._head(vector)
        natural = torch.where(head <= self._head(self.box.lower), self._lower, natural)
        natural = torch.where(head >= self._head(self.box.upper), self._upper, natural)
        natural = torch.minimum(torch.maximum(natural, self._lower), self._upper)
        values, start = {}, 0
        for name in self.names:
            values[name] = natural[start : start + self._sizes[name]].reshape(self._shapes[name])
            start += self._sizes[name]
        free = {}
        for name, shape in self._free_shapes.items():
            free[name] = vector[start : start + shape.numel()].reshape(shape)
            start += shape.numel()
        return replace(self.template.replace(values), free=free)

    def jacobian(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the derivative of each natural value by its unconstrained coordinate; 1 for the free numbers."""
        scale = self._scale(vector)
        slope = scale if self.transform == "log" else torch.sigmoid(self._head(vector))
        head = torch.where(self.is_variance, 2 * scale * slope, slope)
        return torch.cat([head, head.new_ones(self.size - self.n_hyperparameters)])

    def flatten(self, by_name: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return values given by name (a gradient, say) as one vector in this order, untransformed."""
        return self._flatten(by_name, (*self.names, *self._free_shapes))

    def _flatten(self, by_name: Mapping[str, torch.Tensor], names: Iterable[str]) -> torch.Tensor:
        parts = [by_name[name].reshape(-1).double().cpu() for name in names]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def pull_back(self, gradient: Mapping[str, torch.Tensor], vector: torch.Tensor) -> torch.Tensor:
        """Return a gradient in natural units as one by the unconstrained vector (chain rule)."""
        return self.flatten(gradient) * self.jacobian(vector)
