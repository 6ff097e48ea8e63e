"""Choice of the inference method for ``inference="auto"``, as far as sizes and the likelihood decide it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Annotated, Literal, cast

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.inference import Curves, Exact, Grid, Inference, Iterative, Markov, QuadruplyStochastic, Vecchia
from gigagp.inference.automatic import Automatic
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.exact.exact import EXACT_ROWS
from gigagp.inference.registry import streaming_names
from gigagp.model.likelihoods import Gaussian, Likelihood
from gigagp.model.model import Model
from gigagp.runtime.duration import in_words
from gigagp.settings.fields import Words, checked

#: Argument for several outputs of one estimator.
OutputsChoice = Literal["auto", "independent", "shared", "correlated"]
#: Largest number of outputs that ``"auto"`` gives their own hyperparameters, and of rows times outputs.
SEPARATE_OUTPUTS, SEPARATE_CELLS = 50, 20_000

#: Inference argument of the estimators.
InferenceChoice = Literal["auto"] | Annotated[Inference, Words("one of gigagp.inference")]

#: Seconds that a posterior may take under any time budget, and how many times the budget it must be expected to take to
#: be refused: expectations are right within such a factor.
_ALWAYS_TIME, _FAR = 1.0, 1.5


def resolve_inference(
    inference: object,
    n_rows: int,
    itemsize: int,
    budget: int,
    likelihood: Likelihood | None = None,
    deadline: float = math.inf,
    *,
    all_rows: bool = False,
    model: Model | None = None,
    rows: Callable[[], np.ndarray] | None = None,
    has_offset: bool = False,
    has_groups: bool = False,
) -> Inference:
    """Return the inference method for rows that are held in memory.

    Parameters
    ----------
    inference : Inference or "auto"
        Argument of the estimator.
    n_rows : int
        Number of training rows.
    itemsize : int
        Bytes of a number in the model's dtype.
    budget : int
        Memory budget in bytes.
    likelihood : Likelihood or None, default None
        Likelihood of the targets. None: Gaussian. For others than Gaussian and Student-t noise, ``"auto"`` is
        `gigagp.inference.QuadruplyStochastic`, or `gigagp.inference.Vecchia` where it does not take the likelihood.
    deadline : float, default infinity
        Value of ``time.monotonic()`` at which the fit is to end.
    all_rows : bool, default False
        Whether no row may be left out for lack of time, because its noise is known.
    model, rows : Model and callable, or None, default None
        The model, and what returns the rows in its units, (n_rows, d), if its kernel was given and rows are float64 on
        the CPU: with one input, or a panel of few entities, and a kernel with states, ``"auto"`` is then
        `gigagp.inference.Markov` beyond 1,000 rows, and for other panels `gigagp.inference.Curves`.
    has_offset : bool, default False
        Whether latent values have an offset, which Laplace approximations alone take.
    has_groups : bool, default False
        Whether the kernel has groups, for which ``"auto"`` is `gigagp.inference.Vecchia` where it is not exact.

    Raises
    ------
    InvalidInputError
        If it is neither ``"auto"`` nor an inference method, or if the method does not support the likelihood.
    """
    given = _checked(inference, likelihood)
    if given is not None:
        if has_offset and given.abilities.likelihoods != "any":
            msg = f'inference of GPRegressor for exposure or offset must be "auto" or inference.Vecchia; got {given!r}.'
            raise InvalidInputError(msg)
        return given
    if not isinstance(likelihood, Gaussian | None) and not likelihood.is_scale_mixture:
        return Vecchia() if has_offset else _of_other(likelihood)
    is_gaussian = isinstance(likelihood, Gaussian | None)
    if is_gaussian and model is not None and rows is not None and Markov().serves(model, n_rows, rows, budget):
        return Markov()
    if n_rows <= EXACT_ROWS and 3 * n_rows**2 * itemsize <= budget:
        return Exact()
    if is_gaussian and model is not None and rows is not None and Curves().serves(model, n_rows, rows, budget):
        return Curves()
    return Vecchia() if has_groups else Automatic(deadline, all_rows)


def resolve_areas(inference: Literal["auto"] | Inference, n_areas: int, budget: int) -> Inference:
    """Return the inference of averages over areas: exact where it would be for as many rows, or else iterative."""
    if inference != "auto":
        return inference
    return Exact() if n_areas <= EXACT_ROWS and 3 * 8 * n_areas**2 <= budget else Iterative()


def resolve_outputs(
    outputs: OutputsChoice, n_rows: int, n_outputs: int
) -> Literal["independent", "shared", "correlated"]:
    """Return whether each output has hyperparameters of its own, all share them, or one model correlates them.

    Fits apart cost as many times as much as one fit. ``"auto"`` makes them for up to 50 outputs and 20,000 numbers in
    them.
    """
    if outputs != "auto":
        return outputs
    few = n_outputs <= SEPARATE_OUTPUTS and n_rows * n_outputs <= SEPARATE_CELLS
    return "independent" if few or n_outputs == 1 else "shared"


def resolve_streaming(inference: object, likelihood: Likelihood) -> Inference:
    """Return the inference method of `GPRegressor.fit_table`; for a Gaussian likelihood, ``"auto"`` is a grid.

    Raises
    ------
    InvalidInputError
        If the method does not support streamed rows or the likelihood.
    """
    given = _checked(inference, likelihood)
    if given is None:
        return Grid() if isinstance(likelihood, Gaussian) else _of_other(likelihood)
    if not given.abilities.streams:
        raise InvalidInputError(
            f"fit_table of GPRegressor works with {streaming_names()}, which read rows in chunks; {given.label} does "
            "not. Load the table and use fit, or use one of these inferences."
        )
    return given


def _of_other(likelihood: Likelihood) -> Inference:
    """Return the inference method of a likelihood that is not Gaussian."""
    return QuadruplyStochastic() if likelihood.is_log_concave and not likelihood.only_laplace else Vecchia()


def _checked(inference: object, likelihood: Likelihood | None) -> Inference | None:
    """Return an inference method that supports the likelihood; None for ``"auto"``."""
    if isinstance(inference, str) and inference == "auto":
        return None
    chosen = cast("Inference", checked(inference, InferenceChoice, "inference", "GPRegressor"))
    if likelihood is not None:
        chosen.check_likelihood(likelihood)
    return chosen


def require_time(objective: TableObjective, inference: Inference, deadline: float) -> None:
    """Raise an error if a time budget is far too short for the posterior of a method, at the speed of this machine."""
    needed = objective.least_seconds()
    if needed > _FAR * max(deadline - time.monotonic(), _ALWAYS_TIME):
        raise InvalidInputError(
            f"time_budget of GPRegressor is too short for {inference.label} of {objective.n_rows:,} rows, which takes "
            f'at least about {in_words(needed)} on this machine. Give more time, or inference="auto".'
        )
