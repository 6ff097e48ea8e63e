"""The exact log marginal likelihood by a Kalman filter, with its gradient and its information."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.markov.filtering import FilteredTable
from gigagp.inference.markov.posterior import MarkovPosterior, require_states
from gigagp.model.model import NOISE, Model
from gigagp.optimization.objective import Evaluation
from gigagp.optimization.space import ParameterSpace
from gigagp.runtime.machine import slowness

#: Smallest gain in nats for each observation that is worth another step.
_LEAST_GAIN = 1e-5
#: Least learned noise variance as a share of the variance of the targets: sixteen roundings of float64.
_LEAST_SHARE = 16 * torch.finfo(torch.float64).eps
#: Change of a logarithm of a hyperparameter for the information. Central differences are off by its square, and by
#: rounding over it.
_CHANGE = 1e-4


def row_seconds(size: int) -> float:
    """Return the nominal seconds of a row in an evaluation, for a state of this many numbers."""
    return 1.2e-7 * (size + 1) ** 2


class MarkovObjective(TableObjective):
    """The exact log marginal likelihood of rows of one input; it is its own guide."""

    has_posteriors_near = True
    substitute: None = None
    deterministic = True
    is_exact = True

    def __init__(self, table: TrainingTable) -> None:
        super().__init__(table)
        self._last: FilteredTable | None = None

    @property
    def least_gain(self) -> float:
        return _LEAST_GAIN * self.n_observations

    def ending_seconds(self) -> float:
        """Return the expected seconds of an evaluation and of the posterior, at the last model's size of the state."""
        size = 3 if self._last is None else self._last.states.size
        return 2 * slowness() * row_seconds(size) * self.n_rows

    def _filtered(self, model: Model) -> FilteredTable:
        if self._last is None or not model.equals(self._last.model):
            self._last = FilteredTable.of(model, self.table)
        return self._last

    def start(self, model: Model) -> Model:
        """Return the model with at least as much learned noise as rounding leaves of the targets; given noise stays.

        A filter needs no more: rounding is relative to what the rows before leave open, and not to the prior variance,
        which is enormous far from the centre of a trend.
        """
        least = _LEAST_SHARE * self.target_variance
        if NOISE not in model.learned_names() or float(model.noise_variance) >= least:
            return model
        return model.replace({NOISE: torch.full_like(model.noise_variance, least)})

    def evaluate(self, model: Model) -> Evaluation:
        """Return the value and its gradient at a model with enough noise (see `start`)."""
        started = self.start(model)
        found = self._filtered(started)
        gradient = found.gradient()
        if started is not model:  # only a pull to more noise is kept
            gradient[NOISE] = gradient[NOISE].clamp_min(0.0)
        return Evaluation(found.value, gradient)

    def quick_value(self, model: Model) -> float:
        """Return the value, which takes a third of the time of an evaluation."""
        return self._filtered(self.start(model)).value

    def fisher(self, space: ParameterSpace, vector: Tensor, probes: Tensor) -> Tensor:
        """Return the information of all observations at a vector; ``probes`` have no effect.

        It is the sum over the rows of the information of their densities given the rows before: with slopes e' and s'
        of errors and variances s it is ``sum e' e' / s + t s' s' / (2 s^2)``, at the errors of these targets.
        """
        errors, variances = [], []
        for k in range(len(vector)):
            ends = []
            for change in (_CHANGE, -_CHANGE):
                moved = vector.clone()
                moved[k] += change
                found = FilteredTable.of(self.start(space.decode(moved)), self.table)
                ends.append((found.errors @ found.residuals, found.variances.log()))
            errors.append((ends[0][0] - ends[1][0]).reshape(-1) / (2 * _CHANGE))
            variances.append((ends[0][1] - ends[1][1]) / (2 * _CHANGE))
        scale = self._filtered(self.start(space.decode(vector))).variances.rsqrt()
        slopes = torch.stack(errors).unflatten(1, (-1, self.table.n_targets)) * scale[:, None]
        spreads, slopes = torch.stack(variances), slopes.flatten(1)
        return slopes @ slopes.T + 0.5 * self.table.n_targets * spreads @ spreads.T

    # Learning -------------------------------------------------------------------------------------------------------

    def thin(self, rows: Tensor) -> MarkovObjective:
        return MarkovObjective(self.table.take_rows(rows))

    def guide(self, model: Model) -> MarkovObjective:
        return self

    def refresh(self, model: Model) -> bool:
        """Return False: nothing is approximate."""
        return False

    def finest(self, model: Model) -> float:
        """Return the factor of the usual start's lengthscale at which neighbouring times are half of one apart."""
        times = self.table.X[:, 0].double().sort().values
        gaps = times.diff()
        gaps = gaps[gaps > 0]
        spread = float(times.std()) if len(times) > 1 else 0.0
        return min(1.0, 2 * float(gaps.median()) / spread) if len(gaps) and spread > 0 else 1.0

    # Posteriors -----------------------------------------------------------------------------------------------------

    def current_posterior(self) -> MarkovPosterior | None:
        return None if self._last is None else MarkovPosterior(self._last)

    def learned_posterior(self, model: Model, generator: torch.Generator) -> MarkovPosterior:
        """Return the posterior at a learned model with enough noise (see `start`)."""
        return self.posterior(self.start(model), generator)

    def posterior(self, model: Model, generator: torch.Generator) -> MarkovPosterior:
        require_states(model, self.table)
        return MarkovPosterior(self._filtered(model))
