"""The choice between the two objectives, and the memory that each needs."""

from __future__ import annotations

import torch

from gigagp.errors import SolverWarning, warn
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.quadruply_stochastic.options import WeightOptions, WeightProblem
from gigagp.inference.quadruply_stochastic.sampled import MinibatchObjective
from gigagp.inference.quadruply_stochastic.whole import WholeObjective
from gigagp.model.likelihoods import Likelihood
from gigagp.runtime.memory import require

#: Arrays of the parameters' size in a sampled fit: parameters, two averages of Adam, best state, anchor, sums of the
#: last steps.
_COPIES = 6
#: Arrays of the size of a step's features that are alive at once.
_STEP_COPIES = 5
#: Said of a float32 table.
_WIDENED = (
    "Weights of relevance vectors are large and cancel, for which float32 has too few digits: this fit used float64, "
    'as dtype="float64" does.'
)
#: Where all functions are used at once: arrays of the features' size, and square ones.
_WHOLE_FEATURES, _WHOLE_SQUARES = 6, 6


def make_objective(
    options: WeightOptions, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood
) -> WholeObjective | MinibatchObjective:
    """Return the objective of all rows and functions where that is affordable, and otherwise that of samples."""
    whole = options.for_all_at_once(table.n_rows)
    if whole is not None and whole_bytes(whole, table) <= table.budget:
        held = table.in_float64() if whole.learns_precision else table
        if held is not table:
            warn(_WIDENED, SolverWarning)
        return WholeObjective(WeightProblem(whole, held, likelihood, table.n_rows), draw_seed(generator))
    problem = WeightProblem(options, table, likelihood, table.n_rows)
    objective = MinibatchObjective(problem, draw_seed(generator))
    require_weights(options, table)
    return objective


def draw_seed(generator: torch.Generator) -> int:
    """Return a seed for basis and samples."""
    return int(torch.randint(2**62, (), generator=generator))


def require_weights(options: WeightOptions, table: TrainingTable) -> None:
    """Raise `MemoryBudgetError` where the weights or a step do not fit, before anything is allocated."""
    k, m = options.n_columns or 0, options.n_functions
    numbers = table.n_targets + 1 + k + options.learns_precision
    itemsize = table.X.element_size()
    touched = min(2 * options.sampled_functions + k, m)
    rows = min(options.sampled_rows, table.n_rows) + min(options.n_support, table.n_rows)
    needed = itemsize * (_COPIES * numbers * m + _STEP_COPIES * touched * rows)
    if options.has_dense_prior:
        needed += 8 * _STEP_COPIES * min(options.sampled_functions, m) ** 2
    remedy = "Use a smaller n_basis, n_columns, basis_batch or row_batch, or raise memory_budget."
    require(needed, table.budget, f"Inference with {m:,} basis functions", remedy)


def whole_bytes(options: WeightOptions, table: TrainingTable) -> int:
    """Return the bytes of a step on all rows and functions: features with their derivatives, and square matrices."""
    m = options.n_functions
    return 8 * (_WHOLE_FEATURES * table.n_rows * m + _WHOLE_SQUARES * m**2)
