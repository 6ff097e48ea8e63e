"""The exact log marginal likelihood by a Kalman filter, with its gradient and its information."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.markov.filtering import FilteredTable
from gigagp.inference.markov.posterior import MarkovPosterior, require_states
from gigagp.inference.markov.states import Axis, States
from gigagp.model.model import NOISE, Model
from gigagp.optimization.objective import Evaluation
from gigagp.optimization.space import ParameterSpace
from gigagp.products.filtering import Blocks
from gigagp.runtime.machine import slowness

#: Smallest gain in nats that is worth another step, for each observation and for each hyperparameter: with many of
#: these, some drift towards a limit (a correlation towards 1) and gain a little at every step.
_LEAST_GAIN, _LEAST_GAIN_EACH = 1e-5, 0.01
#: Hyperparameters up to which the information, two passes over some rows for each, is computed at every step.
_FEW_LEARNED = 30
#: Least learned noise variance as a share of the variance of the targets: sixteen roundings of float64.
_LEAST_SHARE = 16 * torch.finfo(torch.float64).eps
#: Change of a logarithm of a hyperparameter for the information. Central differences are off by its square, and by
#: rounding over it.
_CHANGE = 1e-4
#: Nominal seconds of these differences, and the fewest rows for them.
_INFORMATION, _FEWEST_ROWS = 1.0, 2000
#: Nominal seconds of a row in an evaluation: of any, for each squared number of its state, and for each entry of the
#: largest block of its step, whose matrices are computed in torch.
_ROW, _NUMBERS, _STEP = 9e-7, 1e-8, 3e-7


def row_seconds(blocks: Blocks) -> float:
    """Return the nominal seconds of a row in an evaluation, for a state with these blocks."""
    return _ROW + _NUMBERS * blocks.n_states**2 + _STEP * max(blocks.sizes, default=0) ** 2


class MarkovObjective(TableObjective):
    """The exact log marginal likelihood of rows along the time; it is its own guide.

    Without a ``model``, whose structure tells which column is the time, rows have one input.
    """

    has_posteriors_near = True
    rival: None = None
    deterministic = True
    is_exact = True

    def __init__(self, table: TrainingTable, model: Model | None = None) -> None:
        super().__init__(table)
        self._model = model
        self.axis = Axis.of_one_input() if model is None else Axis.of(model.kernel, table.X)
        self._last: FilteredTable | None = None

    def _run(self, count: int) -> Tensor:
        """Return the rows around the middle one in the order of time."""
        order = self.table.X[:, self.axis.time].argsort(stable=True)
        first = max((len(order) - count) // 2, 0)
        return order[first : first + count]

    @property
    def least_gain(self) -> float:
        n_learned = 0 if self._model is None else self._model.n_learned
        return max(_LEAST_GAIN * self.n_observations, _LEAST_GAIN_EACH * n_learned)

    def information_is_dear(self, n_learned: int) -> bool:
        return n_learned > _FEW_LEARNED

    def ending_seconds(self) -> float:
        """Return the expected seconds of an evaluation and of the posterior, at the last model's size of the state."""
        blocks = Blocks((3,)) if self._last is None else self._last.states.blocks
        return 2 * slowness() * row_seconds(blocks) * self.n_rows

    def _filtered(self, model: Model) -> FilteredTable:
        if self._last is None or not model.equals(self._last.model):
            self._last = FilteredTable.of(model, self.table, self.axis)
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
        of errors and variances s it is ``sum e' e' / s + t s' s' / (2 s^2)``, at the errors of these targets. Where
        differences would take long, the rows of a run tell it, and the second half of them what all others add.
        """
        started = self.start(space.decode(vector))
        axis, n, t = self.axis, self.n_rows, self.table.n_targets
        seconds = len(vector) * row_seconds(States(started.kernel, axis).blocks) / 2  # a pass is a quarter of one
        count = min(n, max(_FEWEST_ROWS, int(_INFORMATION / seconds)))
        rows = torch.arange(n) if count == n else self._run(count).sort().values
        table = self.table if count == n else self.table.take_rows(rows)

        def filtered(at: Tensor) -> FilteredTable:
            model = self.start(space.decode(at))
            return FilteredTable.of(model if count == n else model.take_rows(rows), table, axis)

        errors, variances = [], []
        for k in range(len(vector)):
            ends = []
            for change in (_CHANGE, -_CHANGE):
                moved = vector.clone()
                moved[k] += change
                found = filtered(moved)
                ends.append((found.errors @ found.residuals, found.variances.log()))
            errors.append((ends[0][0] - ends[1][0]) / (2 * _CHANGE))
            variances.append((ends[0][1] - ends[1][1]) / (2 * _CHANGE))
        slopes, spreads = torch.stack(errors), torch.stack(variances)  # (p, count, t), (p, count)
        slopes *= (self._filtered(started) if count == n else filtered(vector)).variances.rsqrt()[:, None]

        def information(some: slice) -> Tensor:
            of_errors = slopes[:, some].flatten(1)
            return of_errors @ of_errors.T + 0.5 * t * spreads[:, some] @ spreads[:, some].T

        half = count // 2
        others = (n - count) / (count - half)
        return information(slice(None)) + others * information(slice(half, None))

    # Learning -------------------------------------------------------------------------------------------------------

    def thin(self, rows: Tensor) -> MarkovObjective:
        return MarkovObjective(self.table.take_rows(rows), self._model)

    def guide(self, model: Model) -> MarkovObjective:
        return self

    def refresh(self, model: Model) -> bool:
        """Return False: nothing is approximate."""
        return False

    def finest(self, model: Model) -> float:
        """Return the factor of the usual start's lengthscale at which neighbouring times are half of one apart."""
        times = self.table.X[:, self.axis.time].double().sort().values
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
        require_states(model, self.table, self.axis)
        return MarkovPosterior(self._filtered(model))
