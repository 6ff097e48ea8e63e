"""The interface between optimizers and inference methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from gigagp.model.model import Model
from gigagp.optimization.history import SolveRecord
from gigagp.optimization.space import ParameterSpace


@dataclass(frozen=True)
class Evaluation:
    """A log marginal likelihood and its gradient at one model.

    Attributes
    ----------
    value : float or None
        Log marginal likelihood, summed over rows and targets; None if only the gradient is estimated.
    gradient : dict of str to Tensor
        Derivative of the log marginal likelihood with respect to each hyperparameter, in natural units, and to each of
        the free numbers.
    solve : SolveRecord or None
        Record of the linear solve; None without one.
    """

    value: float | None
    gradient: dict[str, torch.Tensor]
    solve: SolveRecord | None = None


class Objective(Protocol):
    """The log marginal likelihood of a model on one table, or the function that is maximised instead."""

    @property
    def deterministic(self) -> bool:
        """Whether the same model always gives the same numbers (exact inference, or fixed probes)."""

    @property
    def follows_likelihood(self) -> bool:
        """Whether a bound is best started at the optimal hyperparameters of the likelihood of a few rows."""

    @property
    def has_distant_optima(self) -> bool:
        """Whether scoring from the usual start may end far below the optimum, and a second start is worth its cost.

        Such an objective has values, by which all rows choose between the starts.
        """

    @property
    def is_likelihood(self) -> bool:
        """Whether this is the log marginal likelihood or an estimate of it, and not a bound or another function."""

    @property
    def least_gain(self) -> float:
        """Gain in nats that justifies the cost of one more gradient; infinity leaves the choice to the optimizer."""

    @property
    def n_rows(self) -> int:
        """Number of rows of the table."""

    @property
    def product_entries(self) -> float:
        """Multiplications with each column in a product with the matrix of all rows, which price a solve."""

    @property
    def n_inputs(self) -> int:
        """Number of input columns."""

    @property
    def n_observations(self) -> int:
        """Rows times targets, by which likelihoods are divided for comparisons."""

    @property
    def target_variance(self) -> float:
        """Mean variance of the targets, which sets the scale of signal and noise."""

    def own_optimizer(self) -> Any | None:
        """Return the optimizer that this objective requires, or None if any optimizer of one vector will do."""

    def start(self, model: Model) -> Model:
        """Return the model with the free numbers (`Model.free`) that are learned together with the hyperparameters.

        An optimizer calls this once, before its first evaluation. ``model.free`` is then empty, or it holds the result
        of a stage on other rows, parts of which may be kept.
        """

    def evaluate(self, model: Model) -> Evaluation:
        """Return value and gradient at a model that comes from `start` or from the optimizer."""

    def known_information(self, model: Model) -> Mapping[str, torch.Tensor]:
        """Return the expected information of logarithms of hyperparameters at a model, by name, where it is known.

        That of few rows, times the number of rows, does not tell it for a variance of groups: few rows are few rows of
        each level.
        """

    def draw_rows(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """Return the sorted indices of random rows, to be passed to `subset` or `thin`."""

    def subset(self, rows: torch.Tensor) -> FisherObjective:
        """Return the exact objective on a subset of the rows."""

    def nearest(self, row: int, count: int) -> torch.Tensor:
        """Return the sorted indices of the ``count`` rows closest to a row, including that row."""

    def thin(self, rows: torch.Tensor) -> Objective:
        """Return the objective of the same inference method on a subset of the rows."""

    def amplified(self, model: Model) -> Model:
        """Return the last evaluated model with its covariances multiplied by their most likely factor, if it is known.

        A factor of all covariances has a closed form, and changes solutions by a factor alone.
        """

    def guide(self, model: Model) -> GuideObjective | None:
        """Return a much cheaper approximate likelihood of all rows, possibly this objective; None if there is none.

        Parameters
        ----------
        model : Model
            A model of the structure that is learned.
        """

    def settled(self, model: Model) -> Objective:
        """Return what learning goes on with after a guide: this objective, or one that guides itself and ends learning.

        Parameters
        ----------
        model : Model
            What the guide has learned.
        """


class FisherObjective(Objective, Protocol):
    """An objective that also gives the Fisher information at its last evaluation."""

    @property
    def is_exact(self) -> bool:
        """Whether values depend on model and rows alone, and not on neighbours or blocks chosen at the start."""

    def information_is_dear(self, n_learned: int) -> bool:
        """Whether the information costs many gradients, so that a search computes it once and then corrects it."""

    def quick_value(self, model: Model) -> float | None:
        """Return the value at a model where it costs a fraction of a gradient, so that many starts can be compared."""

    def fisher(self, space: ParameterSpace, vector: torch.Tensor, probes: torch.Tensor) -> torch.Tensor:
        """Return the information of all observations, shape (p, p), at the last evaluated vector."""


class GuideObjective(FisherObjective, Protocol):
    """A likelihood of all rows, mostly an approximate one, for which a search needs no random subsets."""

    def refresh(self, model: Model) -> bool:
        """Adapt the approximation to a model; return whether the objective has changed."""

    def finest(self, model: Model) -> float:
        """Return the smallest factor of a model's lengthscales at which the rows in use still tell of each other.

        It is 1 where the rows are no nearer to each other than those of a random subset.
        """

    @property
    def rival(self) -> Rival | None:
        """Other guides, for where this one misleads or its matrices have no factor; None if there is nothing else."""


class Rival(NamedTuple):
    """A guide beside another one, what tells that either of the two has misled, and a guide where that one fails."""

    guide: GuideObjective
    is_misled: Callable[[Model], bool]
    substitute: GuideObjective
