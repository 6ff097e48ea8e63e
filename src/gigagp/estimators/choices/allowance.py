"""What the kernels of an average, and draws of their hyperparameters, may cost, in nominal seconds.

They are the same on every machine: measured seconds would change the choice from run to run.
"""

from __future__ import annotations

import math

from gigagp.inference.uncertain_hyperparameters import SKEWED
from gigagp.kernels import Outputs, White
from gigagp.kernels.composite import summands
from gigagp.kernels.leaf import Leaf
from gigagp.kernels.stationary import StationaryKernel
from gigagp.model.model import Model
from gigagp.optimization import History

#: Nominal seconds that ``"auto"`` may spend on an average beside the default kernel: a multiple of the nominal seconds
#: of that, or these seconds, which are those of two candidates on three hundred rows.
_SHARE_BESIDE, _LEAST_BESIDE = 2.5, 0.4
#: Nominal seconds of an evaluation with its Fisher information: of any, for each entry of the matrix, the same for each
#: hyperparameter, and for each n^3. Measured from 50 to 2,000 rows of 1 to 20 inputs.
_STEP_SECONDS, _ENTRY_SECONDS, _SLOPE_SECONDS, _CUBE_SECONDS = 4e-3, 2e-8, 2.5e-9, 5e-11
#: How many times as much the Fisher information of a hyperparameter takes that has no closed form.
_DIFFERENTIATED = 16
#: Nominal seconds of the end of a fit, and evaluations that it and its comparison with others take as long as besides.
_ENDING_SECONDS, _ENDING_STEPS, _COMPARISON_STEPS = 1e-2, 1.0, 1.3
#: Nominal seconds of the checks around a fit, which an average has once.
_CHECK_SECONDS = 4e-2
#: Evaluations from a learned model to the mode of its likelihood times the prior, and nominal seconds of a value.
_MODE_STEPS, _VALUE_SECONDS = 4, 2.5e-3


class Allowance:
    """Nominal seconds that are left for other kernels beside the default one, and those that all have taken."""

    def __init__(self, left: float = math.inf, spent: float = 0.0) -> None:
        self.left, self.spent = left, spent

    @classmethod
    def beside(cls, history: History, model: Model, n_rows: int) -> Allowance:
        """Return what may be spent beside a fit of the default kernel with a history."""
        sizes = [int(words[1]) if (words := step.stage.split())[0] == "subset" else n_rows for step in history]
        spent = _CHECK_SECONDS + _ENDING_SECONDS + sum(step_seconds(size, model) for size in sizes)
        spent += _ENDING_STEPS * step_seconds(n_rows, model)
        compared = _COMPARISON_STEPS * step_seconds(n_rows, model)
        return cls(max(_LEAST_BESIDE, _SHARE_BESIDE * spent) - compared, spent + compared)

    def steps(self, n_rows: int, model: Model, most: int, *, ends: bool = False) -> int:
        """Return how many evaluations on some rows can be had, of all rows with the end of a fit."""
        spare = self.left - (ending_seconds(n_rows, model) if ends else 0.0)
        return int(min(most, max(0.0, spare / step_seconds(n_rows, model))))

    def spend(self, n_rows: int, model: Model, steps: int, *, ends: bool = False) -> None:
        """Note that evaluations were made."""
        seconds = steps * step_seconds(n_rows, model) + (ending_seconds(n_rows, model) if ends else 0.0)
        self.left, self.spent = self.left - seconds, self.spent + seconds


def step_seconds(n_rows: int, model: Model) -> float:
    """Return the nominal seconds of an evaluation with its Fisher information."""
    slopes = sum(
        sum(one.numel() for one in part.parameters().values())
        * (1 if all(_has_closed_form(leaf) for leaf in part.leaves()) else _DIFFERENTIATED)
        for part in summands(model.kernel)
    )
    entries = (_ENTRY_SECONDS + _SLOPE_SECONDS * slopes) * n_rows**2
    return _STEP_SECONDS + entries + _CUBE_SECONDS * n_rows**3


def _has_closed_form(leaf: Leaf) -> bool:
    is_closed = isinstance(leaf, StationaryKernel) and leaf.has_closed_form()
    return is_closed or isinstance(leaf, Outputs | White)


def ending_seconds(n_rows: int, model: Model) -> float:
    """Return the nominal seconds of the end of a fit and of its comparison with others."""
    return _ENDING_SECONDS + (_ENDING_STEPS + _COMPARISON_STEPS) * step_seconds(n_rows, model)


def uncertainty_seconds(n_rows: int, model: Model, draws: int) -> float:
    """Return the nominal seconds of the mode, of the widths about it and of draws of the hyperparameters."""
    values = 2 * min(model.n_learned, SKEWED) + 2 * draws
    value = _VALUE_SECONDS + _ENTRY_SECONDS * n_rows**2 + _CUBE_SECONDS * n_rows**3
    return _MODE_STEPS * step_seconds(n_rows, model) + values * value
