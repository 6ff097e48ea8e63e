"""What ``"auto"`` means: which inference fits a table, by one rule that can be printed."""

from __future__ import annotations

from typing import Annotated, Literal, cast

from gigagp.errors import InvalidInputError
from gigagp.fields import Words, checked
from gigagp.inference import Exact, Grid, Inference, Iterative, QuadruplyStochastic
from gigagp.inference.registry import streaming_names
from gigagp.likelihoods import Gaussian, Likelihood

#: Rows up to which a factor for each gradient is quicker than solves (measured at 2,000 to 4,000 rows of pol and
#: elevators).
EXACT_ROWS = 3000

RULE = (
    f"exact inference (Cholesky) up to {EXACT_ROWS:,} rows where three n x n arrays fit the memory budget, "
    "iterative inference beyond"
)

#: What users ask for.
InferenceChoice = Literal["auto"] | Annotated[Inference, Words("one of gigagp.inference")]


def resolve_inference(
    inference: object, n_rows: int, itemsize: int, budget: int, likelihood: Likelihood | None = None
) -> Inference:
    """Return the inference that will run on rows that are held.

    Parameters
    ----------
    inference : Inference or "auto"
    n_rows : int
    itemsize : int
        Bytes of a number.
    budget : int
        Bytes that may be taken.
    likelihood : Likelihood or None, default None
        None: Gaussian. ``"auto"`` is `gigagp.inference.QuadruplyStochastic` for others.

    Raises
    ------
    InvalidInputError
        If it is neither ``"auto"`` nor an inference, or not one for the likelihood.
    """
    given = _checked(inference, likelihood)
    if given is not None:
        return given
    if not isinstance(likelihood, Gaussian | None):
        return QuadruplyStochastic()
    return Exact() if n_rows <= EXACT_ROWS and 3 * n_rows**2 * itemsize <= budget else Iterative()


def resolve_streaming(inference: object, likelihood: Likelihood) -> Inference:
    """Return the inference of `GPRegressor.fit_table`: ``"auto"`` is a grid where the likelihood is Gaussian.

    Raises
    ------
    InvalidInputError
        If it cannot work on rows that are not held, or is not one for the likelihood.
    """
    given = _checked(inference, likelihood)
    if given is None:
        return Grid() if isinstance(likelihood, Gaussian) else QuadruplyStochastic()
    if not given.abilities.streams:
        msg = (
            f"fit_table of GPRegressor works with {streaming_names()}, which do not need to hold the rows; "
            f"{given.label} does. Load the table and use fit, or use the other inference."
        )
        raise InvalidInputError(msg)
    return given


def _checked(inference: object, likelihood: Likelihood | None) -> Inference | None:
    """Return an inference that was asked for and that has the likelihood; None: ``"auto"``."""
    given = checked(inference, InferenceChoice, "inference", "GPRegressor")
    if given == "auto":
        return None
    chosen = cast("Inference", given)
    if likelihood is not None:
        chosen.check_likelihood(likelihood)
    return chosen
