"""Settings of exact inference; `exact_posterior` and `objective` implement it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gigagp.inference.contract.base import Abilities, Inference
from gigagp.inference.contract.exact_posterior import ExactPosterior
from gigagp.inference.contract.forecast import Forecast, Subject
from gigagp.inference.contract.objective import ExactObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.mixture_posterior import MixturePosterior
from gigagp.model.likelihoods import Likelihood
from gigagp.runtime.machine import FACTOR_SECONDS

__all__ = ["Exact", "ExactObjective", "ExactPosterior"]

#: Largest number of rows for which a factor for each gradient is faster than solves (measured at 2,000 to 4,000 rows of
#: pol and elevators).
EXACT_ROWS = 3000
#: Evaluations of the likelihood in a fit, alone and after neighbours have learned.
_EVALUATIONS, _GUIDED_EVALUATIONS = 15, 4


@dataclass(frozen=True)
class Exact(Inference):
    """Exact inference by a Cholesky factor, in O(n^3) time and with three n x n arrays.

    When to use: up to a few thousand rows. ``inference="auto"`` selects it up to 3,000 rows if the memory allows.
    """

    abilities = Abilities("exact", "up to a few thousand", adds_rows=True)
    posteriors = (ExactPosterior, MixturePosterior)

    def objective(
        self, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> ExactObjective:
        return ExactObjective(table)

    def forecast(self, subject: Subject) -> Forecast:
        """Return the time of a factor for each gradient, and the memory of three matrices."""
        n = subject.table.n_rows
        evaluations = _EVALUATIONS if n <= EXACT_ROWS else _GUIDED_EVALUATIONS
        memory = 3.0 * n**2 * subject.table.X.element_size()
        return subject.with_nll(evaluations * FACTOR_SECONDS * n**3, memory, subject.exact_nll)

    def describe(self) -> str:
        return "exact (Cholesky)"
