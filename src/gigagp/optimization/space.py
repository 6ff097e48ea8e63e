"""The vector that an optimizer changes: the learned hyperparameters, made unconstrained, and then the free numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from gigagp.model.model import NOISE, Model
from gigagp.settings.fields import checked

#: Transform that makes positive hyperparameters unconstrained.
TransformName = Literal["softplus", "log"]


class ParameterSpace:
    """A bijection between the learned numbers of a model and one unconstrained float64 vector.

    The hyperparameters come first. Variances are represented by standard deviations, because the papers learn scales: a
    variance ``v`` is ``softplus(u)^2`` with the softplus transform and ``exp(2 u)`` with the log transform. The free
    numbers of the model (inducing points, actions) follow without a transform.

    Bounds of the kernel's hyperparameters (`Kernel.bounds`) become a `box` of vectors. A vector outside the box is
    decoded as the closest model inside, so that no optimizer can violate the bounds, even one that ignores the box.

    Parameters
    ----------
    model : Model
        Supplies the names, the shapes, and the values that stay fixed.
    transform : {"softplus", "log"}
        ``"softplus"`` is the papers' choice and suits Adam. With ``"log"``, equal steps are equal ratios, as methods
        that use curvature require.
    """

    def __init__(self, model: Model, transform: TransformName) -> None:
        self.transform: TransformName = checked(transform, TransformName, "transform", "ParameterSpace")
        self.template = model
        values = model.parameters()
        self.names = model.learned_names()
        self._shapes = {name: values[name].shape for name in self.names}
        #: number of hyperparameters, which come first in the vector
        self.n_hyperparameters = sum(shape.numel() for shape in self._shapes.values())
        self._free_shapes = {name: value.shape for name, value in model.free.items()}
        self.size = self.n_hyperparameters + sum(value.numel() for value in model.free.values())
        #: one label for each hyperparameter, such as ``lengthscale[3]``
        self.labels = tuple(
            f"{name}[{i}]" if shape else name for name, shape in self._shapes.items() for i in range(shape.numel())
        )
        self._kinds = [label.split("[")[0].split(".")[-1] for label in self.labels]
        self.is_variance = torch.tensor(
            [kind in ("variance", "noise_variance") for kind in self._kinds], dtype=torch.bool
        )
        bounds = model.kernel.bounds()
        self._lower = torch.zeros(self.n_hyperparameters, dtype=torch.float64)
        self._upper = torch.full_like(self._lower, torch.inf)
        lower, upper = _parts(self._lower, self._shapes), _parts(self._upper, self._shapes)
        for name in self.names:
            if name in bounds:
                lower[name].copy_(bounds[name].lower)
                upper[name].copy_(bounds[name].upper)
        #: region of the vectors that the bounds allow
        self.box = Box.everywhere(self.size)
        self.box.lower[: self.n_hyperparameters] = self._unconstrained(self._lower)
        self.box.upper[: self.n_hyperparameters] = self._unconstrained(self._upper)

    def _unconstrained(self, natural: torch.Tensor) -> torch.Tensor:
        scale = torch.where(self.is_variance, natural.sqrt(), natural)
        # The inverse of softplus is written as scale + log(1 - exp(-scale)), which does not overflow.
        return scale.log() if self.transform == "log" else scale + torch.log(-torch.expm1(-scale))

    def encode(self, model: Model) -> torch.Tensor:
        """Return the learned numbers of the model as an unconstrained vector."""
        head = self._unconstrained(self._flatten(model.parameters(), self.names))
        return self.box.clip(torch.cat([head, self._flatten(model.free, self._free_shapes)]))

    def _head(self, vector: torch.Tensor) -> torch.Tensor:
        return vector[: self.n_hyperparameters]

    def _scale(self, head: torch.Tensor) -> torch.Tensor:
        return head.exp() if self.transform == "log" else torch.nn.functional.softplus(head)

    def decode(self, vector: torch.Tensor) -> Model:
        """Return the model at an unconstrained vector."""
        head = self._head(vector)
        scale = self._scale(head)
        natural = torch.where(self.is_variance, scale.square(), scale).clamp(self._lower, self._upper)
        # At a bound the value is the bound itself, because the exponential of its logarithm can be off by a bit.
        natural = torch.where(head <= self._head(self.box.lower), self._lower, natural)
        natural = torch.where(head >= self._head(self.box.upper), self._upper, natural)
        values = torch.cat([natural, vector[self.n_hyperparameters :]])
        return self.template.replace(_parts(values, {**self._shapes, **self._free_shapes}))

    def rougher(
        self, vector: torch.Tensor, lengths: float, deviations: float = 1.0, noise: float = 1.0
    ) -> torch.Tensor:
        """Return a vector with lengthscales and standard deviations multiplied, in the "log" transform."""
        factors = {"lengthscale": lengths, "variance": deviations, NOISE: noise}
        shift = torch.tensor([factors.get(kind, 1.0) for kind in self._kinds], dtype=torch.float64).log()
        moved = vector.clone()
        moved[: self.n_hyperparameters] += shift
        return self.box.clip(moved)

    def jacobian(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the derivative of each natural value by its unconstrained coordinate; 1 for free numbers."""
        head = self._head(vector)
        scale = self._scale(head)
        slope = scale if self.transform == "log" else torch.sigmoid(head)
        found = torch.where(self.is_variance, 2 * scale * slope, slope)
        return torch.cat([found, found.new_ones(self.size - self.n_hyperparameters)])

    def information(self, of_logarithms: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the information (size,) of "log" coordinates from that of logarithms of some values.

        The others have nan.
        """
        unknown = {name: torch.full(shape, torch.nan) for name, shape in {**self._shapes, **self._free_shapes}.items()}
        found = self.flatten({**unknown, **of_logarithms})
        found[: self.n_hyperparameters] *= torch.where(self.is_variance, 4.0, 1.0)  # v = exp(2 u)
        return found

    def flatten(self, by_name: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return values given by name (for example a gradient) as one vector in this order, untransformed."""
        return self._flatten(by_name, (*self.names, *self._free_shapes))

    def _flatten(self, by_name: Mapping[str, torch.Tensor], names: Iterable[str]) -> torch.Tensor:
        parts = [by_name[name].reshape(-1).double().cpu() for name in names]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def pull_back(self, gradient: Mapping[str, torch.Tensor], vector: torch.Tensor) -> torch.Tensor:
        """Return the gradient with respect to the unconstrained vector from one in natural units (chain rule)."""
        return self.flatten(gradient) * self.jacobian(vector)


def _parts(vector: torch.Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, torch.Tensor]:
    """Return the parts of a vector by name, as views of these shapes."""
    parts = vector.split([shape.numel() for shape in shapes.values()])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


@dataclass(frozen=True)
class Box:
    """The smallest and largest value of every coordinate of an optimizer's vector; infinite if there is no bound."""

    lower: torch.Tensor
    upper: torch.Tensor

    @classmethod
    def everywhere(cls, size: int) -> Box:
        """Return the box without bounds."""
        infinite = torch.full((size,), torch.inf, dtype=torch.float64)
        return cls(-infinite, infinite)

    def clip(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the closest vector in the box."""
        return torch.minimum(torch.maximum(vector, self.lower), self.upper)

    def free(self, vector: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Return 1 for coordinates that a descent step may change, and 0 for those it would push out of the box."""
        stuck = ((vector <= self.lower) & (gradient > 0)) | ((vector >= self.upper) & (gradient < 0))
        return (~stuck).to(vector)

    def confine(self, vector: torch.Tensor, step: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Return a descent step that stays in the box: the clipped step, or else a clipped step of steepest descent.

        Clipping a step that is not along the gradient may turn it into one that does not descend.
        """
        inside = self.clip(vector + step) - vector
        if float(inside @ gradient) < 0 or not float(step @ gradient) < 0:
            return inside
        length = float(step.abs().max()) / max(float(gradient.abs().max()), 1e-300)
        return self.clip(vector - length * gradient) - vector
