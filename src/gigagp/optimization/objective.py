"""What an optimizer asks of an inference method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from gigagp.model import Model
from gigagp.optimization.history import SolveRecord
from gigagp.optimization.space import ParameterSpace


@dataclass(frozen=True)
class Evaluation:
    """A log marginal likelihood and its gradient at one model.

    Attributes
    ----------
    value : float or None
        Log marginal likelihood, summed over rows and targets; None where only the gradient is estimated.
    gradient : dict of str to Tensor
        Derivative of the log marginal likelihood by each hyperparameter, in natural units, and by each
        of the free numbers.
    solve : SolveRecord or None
        What the linear solver did.
    """

    value: float | None
    gradient: dict[str, torch.Tensor]
    solve: SolveRecord | None = None


class Objective(Protocol):
    """The log marginal likelihood of a model on one table, or what is maximised in its place."""

    @property
    def deterministic(self) -> bool:
        """Whether the same model gives the same numbers (exact, or with frozen probes)."""
        ...

    @property
    def follows_likelihood(self) -> bool:
        """Whether a bound is best started at hyperparameters that the likelihood of a few rows prefers."""
        ...

    @property
    def is_likelihood(self) -> bool:
        """Whether it is the log marginal likelihood or an estimate of it, not a bound or another model's."""
        ...

    @property
    def least_gain(self) -> float:
        """Gain in nats for which one more gradient is worth its cost; infinity: as the optimizer thinks."""
        ...

    @property
    def n_rows(self) -> int:
        """Rows of the table."""
        ...

    @property
    def n_inputs(self) -> int:
        """Columns of the inputs."""
        ...

    @property
    def n_observations(self) -> int:
        """Rows times targets: likelihoods are compared per observation."""
        ...

    @property
    def target_variance(self) -> float:
        """Mean variance of the targets: the scale of signal and noise."""
        ...

    def own_optimizer(self) -> Any | None:
        """Return the optimizer that only this objective can have; None: any that moves one vector."""
        ...

    def start(self, model: Model) -> Model:
        """Return the model with the free numbers (`Model.free`) that are learned beside the hyperparameters.

        An optimizer calls it once, before its first evaluation. ``model.free`` is empty then, or holds what a stage on
        other rows has ended with: what is of use may stay.
        """
        ...

    def evaluate(self, model: Model) -> Evaluation:
        """Return value and gradient where `start`, or the optimizer since, has put the model."""
        ...

    def draw_rows(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """Return the indices of random rows, sorted: those that `subset` and `thin` can be asked for."""
        ...

    def subset(self, rows: torch.Tensor) -> FisherObjective:
        """Return the exact objective on a subset of the rows."""
        ...

    def nearest(self, row: int, count: int) -> torch.Tensor:
        """Return the indices of the ``count`` rows nearest to a row, itself included, sorted."""
        ...

    def thin(self, rows: torch.Tensor) -> Objective:
        """Return the objective of the same inference on a subset of the rows."""
        ...


class FisherObjective(Objective, Protocol):
    """An objective that knows the Fisher information where it was last evaluated."""

    def fisher(self, space: ParameterSpace, vector: torch.Tensor, probes: torch.Tensor) -> torch.Tensor:
        """Return the information of all observations, shape (p, p), at the vector last evaluated."""
        ...
