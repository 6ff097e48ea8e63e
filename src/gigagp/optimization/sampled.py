"""What ascent asks of an objective that is evaluated on samples of its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from gigagp.model import Model
from gigagp.optimization.objective import Objective


@dataclass(frozen=True)
class SampledEvaluation:
    """An unbiased estimate of an objective and of its gradient in the entries that a sample touches.

    Attributes
    ----------
    value : float
    index : Tensor of shape (w,), int64
        Touched rows of the parameter arrays; different ones.
    gradient : dict of str to Tensor
        For each array that moves, of shape (w, ...).
    hyperparameters : dict of str to Tensor
        Gradient in natural units; empty where they were not asked for.
    """

    value: float
    index: Tensor
    gradient: dict[str, Tensor]
    hyperparameters: dict[str, Tensor]


@runtime_checkable
class SampledObjective(Objective, Protocol):
    """What sparse ascent asks for beside `gigagp.optimization.Objective`."""

    def begin(self, model: Model, *, moves_hyperparameters: bool) -> Model:
        """Make the parameter arrays at their start; return the model in which only what can be learned is left free.

        ``moves_hyperparameters`` says whether their gradient will be asked for.
        """
        ...

    def learned_names(self, model: Model) -> tuple[str, ...]:
        """Return the hyperparameters whose gradient it has."""
        ...

    def arrays(self) -> dict[str, Tensor]:
        """Return the parameter arrays; they are moved in place."""
        ...

    def units(self) -> dict[str, float]:
        """Return for some of the arrays what a learning rate of one means for an entry; 1 for the others."""
        ...

    def sample(self, model: Model, *, hyperparameters: bool) -> SampledEvaluation:
        """Draw a sample and evaluate it."""
        ...

    def moved(self, evaluation: SampledEvaluation, changes: dict[str, Tensor]) -> None:
        """Take note of what has been added to the touched entries."""
        ...

    def settle(self, model: Model) -> None:
        """Do what comes once, after the last step."""
        ...


@runtime_checkable
class Sampleable(Objective, Protocol):
    """A deterministic objective that can also be maximised from samples of its parameters."""

    def sampled(self) -> SampledObjective:
        """Return the objective of samples; the posterior is made of its parameters from now on."""
        ...
