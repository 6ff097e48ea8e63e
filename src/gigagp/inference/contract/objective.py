"""Base class of objectives on a table, and the exact objective, which every fit can use on a subset of rows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from gigagp.inference.contract.exact_posterior import ExactPosterior, Factorised, require_factor, warn_of_float64
from gigagp.inference.contract.least_noise import at_least_noise, with_least_noise
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.rows_posterior import RowsPosterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.gradients.exact import Exact as ExactGradient
from gigagp.model.model import Model
from gigagp.optimization.fisher import fisher_information
from gigagp.optimization.objective import Evaluation, GuideObjective
from gigagp.optimization.space import ParameterSpace
from gigagp.runtime.machine import FACTOR_SECONDS, entries_seconds, slowness


class TableObjective(ABC):
    """The log marginal likelihood of a model on a table, or a bound; see `gigagp.optimization.Objective`.

    The rows of the table are in the model's units.

    Attributes
    ----------
    has_posteriors_near : bool
        Whether uncertain hyperparameters may ask for `posterior_near`.
    """

    has_posteriors_near: ClassVar[bool] = False

    def __init__(self, table: TrainingTable) -> None:
        self.table = table

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.table.n_rows

    @property
    def product_entries(self) -> float:
        """Multiplications with each column in a product with the matrix of all rows; by default its entries."""
        return float(self.n_rows) ** 2

    @property
    def n_inputs(self) -> int:
        """Number of inputs."""
        return self.table.n_inputs

    @property
    def n_observations(self) -> int:
        """Number of rows times number of targets."""
        return self.n_rows * self.table.n_targets

    @property
    def target_variance(self) -> float:
        """Mean variance of the targets about their means."""
        return self.table.target_variance

    @property
    @abstractmethod
    def deterministic(self) -> bool:
        """Whether repeated evaluations at the same model return the same numbers."""

    @property
    def follows_likelihood(self) -> bool:
        """Whether optimization should start at the hyperparameters that maximize the likelihood of a few rows."""
        return False

    @property
    def has_distant_optima(self) -> bool:
        """Whether learning should always begin from two starts."""
        return False

    @property
    def is_likelihood(self) -> bool:
        """Whether the value is the log marginal likelihood of the model or an estimate of it, and not a bound."""
        return True

    @property
    def includes_its_error(self) -> bool:
        """Whether variances hold at hyperparameters of the exact likelihood, because nothing is left out of them."""
        return self.is_likelihood

    @property
    def least_gain(self) -> float:
        """Smallest gain in nats that is worth another gradient; infinity leaves the decision to the optimizer."""
        return math.inf

    def known_information(self, model: Model) -> Mapping[str, torch.Tensor]:
        """Return the expected information of logarithms of hyperparameters that is known at a model; by default none.

        See `gigagp.optimization.objective.Objective.known_information`.
        """
        return {}

    def amplified(self, model: Model) -> Model:
        """Return the model with its covariances multiplied by their most likely factor; by default as it is."""
        return model

    def own_optimizer(self) -> Any | None:
        """Return the optimizer that this objective requires; None: any optimizer of a single vector."""
        return None

    def start(self, model: Model) -> Model:
        """Return the model with the free parameters (`Model.free`) that this method learns; by default none."""
        return model

    @abstractmethod
    def evaluate(self, model: Model) -> Evaluation:
        """Return the value (None if it is not known) and the gradient."""

    @property
    def is_exact(self) -> bool:
        """Whether values depend on model and rows alone, and not on neighbours or blocks chosen at the start."""
        return False

    def information_is_dear(self, n_learned: int) -> bool:
        """Whether the information costs many gradients, so that a search computes it once and then corrects it."""
        return False

    def quick_value(self, model: Model) -> float | None:
        """Return the value at a model if it costs a fraction of a gradient; by default None."""
        return None

    def draw_rows(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """Return the sorted indices of random rows of the table; see `TrainingTable.draw_rows`."""
        return self.table.draw_rows(count, generator)

    def subset(self, rows: torch.Tensor) -> ExactObjective:
        """Return the exact objective on a subset of the rows."""
        return ExactObjective(self.table.take_rows(rows))

    @abstractmethod
    def thin(self, rows: torch.Tensor) -> TableObjective:
        """Return the objective of the same inference method on a subset of the rows."""

    def nearest(self, row: int, count: int) -> torch.Tensor:
        """Return the sorted indices of the rows nearest to a row, itself included."""
        return self.table.nearest(row, count)

    def guide(self, model: Model) -> GuideObjective | None:
        """Return an approximate likelihood of all rows that is much cheaper; by default there is none."""
        return None

    def ending_seconds(self) -> float:
        """Return the expected seconds of another evaluation and of the posterior, if they are known beforehand."""
        return 0.0

    def least_seconds(self) -> float:
        """Return the expected seconds below which no posterior can be had; 0 if they are not known beforehand."""
        return 0.0

    def settled(self, model: Model) -> TableObjective:
        """Return the objective with which learning goes on after a guide has settled: this one, or the guide."""
        return self

    @abstractmethod
    def current_posterior(self) -> Posterior | None:
        """Return the posterior at the last evaluated model, if it needs no further solve."""

    def learn_remaining(self, model: Model, generator: torch.Generator) -> None:
        """Learn what the posterior at a model needs beyond the optimized parameters; by default nothing.

        Every fit calls it once before `posterior`, even if the hyperparameters are fixed.
        """
        return

    @abstractmethod
    def posterior(self, model: Model, generator: torch.Generator) -> Posterior:
        """Return the posterior at a model."""

    def learned_posterior(self, model: Model, generator: torch.Generator) -> Posterior:
        """Return the posterior that ends a fit, at the learned model or one that its computation shows to be better.

        By default it is `posterior`.
        """
        return self.posterior(model, generator)

    def posterior_near(self, model: Model, generator: torch.Generator) -> RowsPosterior | None:
        """Return the posterior at a model near the learned one, or None; it may keep what depends little on the model.

        As for learned ones, the noise is at least what float64 needs: the likelihood does not change below it, so that
        draws of the hyperparameters may have less. None if the posterior does not keep its rows.
        """
        found = self.posterior(with_least_noise(model, self.table.X), generator)
        return found if isinstance(found, RowsPosterior) else None

    def left_out_densities(self, model: Model, generator: torch.Generator) -> torch.Tensor | None:
        """Return the log density of each row given all others, shape (n,), to compare kernels; by default None.

        Objectives of targets that are not Gaussian have it on few rows.
        """
        return None

    def snapshot(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the state of the objective, apart from the model, as tensors and plain data for a checkpoint."""
        return {}, {}

    def restore(self, model: Model, tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
        """Restore a `snapshot` taken after an evaluation; the objective must have been constructed the same way."""
        assert not tensors, "an objective without a state was given one"


class ExactObjective(TableObjective):
    """The exact log marginal likelihood with its gradient and, on request, the Fisher information."""

    has_posteriors_near = True
    deterministic = True
    is_exact = True

    def __init__(self, table: TrainingTable) -> None:
        super().__init__(table)
        require_factor(table)
        self._last: Factorised | None = None

    def ending_seconds(self) -> float:
        """Return the expected seconds of two factors of all rows."""
        return 2 * self.least_seconds()

    def least_seconds(self) -> float:
        entries = entries_seconds(float(len(self.table.points)) ** 2, self.n_inputs)
        return slowness() * (FACTOR_SECONDS * self.n_rows**3 + entries)

    def _factorise(self, model: Model) -> Factorised:
        if self._last is not None and model.equals(self._last.model):
            return self._last
        self._last = None  # free the factor of the last model before computing the next one
        self._last = Factorised.of(model, self.table)
        return self._last

    def start(self, model: Model) -> Model:
        """Return the model with at least the noise with which its matrix has a factor in float64."""
        return with_least_noise(model, self.table.X)

    def evaluate(self, model: Model) -> Evaluation:
        """Return the value and its gradient at a model with enough noise (see `start`)."""
        given, model = model, self.start(model)
        state = self._factorise(model)
        gradient = ExactGradient().from_factor(state.matrix, state.solutions, state.factor)
        return at_least_noise(Evaluation(state.value, gradient), given, self.table.X)

    def value(self, model: Model) -> float:
        """Return the value without its gradient."""
        return self._factorise(self.start(model)).value

    def quick_value(self, model: Model) -> float:
        """Return the value, which takes a factor and no inverse."""
        return self.value(model)

    def fisher(self, space: ParameterSpace, vector: torch.Tensor, probes: torch.Tensor) -> torch.Tensor:
        """Return the Fisher information of all observations at the last evaluated model."""
        state = self._last
        assert state is not None, "evaluate comes first"
        information = fisher_information(
            state.model, state.table.derivative_products, state.factor, space, vector, probes.to(state.factor)
        )
        return self.table.n_targets * information

    def thin(self, rows: torch.Tensor) -> ExactObjective:
        return self.subset(rows)

    def current_posterior(self) -> ExactPosterior | None:
        return None if self._last is None else ExactPosterior(self._last)

    def learned_posterior(self, model: Model, generator: torch.Generator) -> ExactPosterior:
        """Return the posterior at a learned model with enough noise (see `start`)."""
        return self.posterior(self.start(model), generator)

    def posterior(self, model: Model, generator: torch.Generator | None = None) -> ExactPosterior:
        self._factorise(model)
        posterior = self.current_posterior()
        assert posterior is not None
        self._last = None
        warn_of_float64(self.table, posterior.table)
        return posterior
