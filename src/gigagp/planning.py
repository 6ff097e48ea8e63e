"""What ``"auto"`` means: which inference fits a table, by one rule that can be printed."""

from __future__ import annotations

from typing import Annotated, Literal, cast, get_args

from gigagp.errors import InvalidInputError
from gigagp.fields import Words, checked
from gigagp.inference import (
    ComputationAware,
    Exact,
    Grid,
    Iterative,
    QuadruplyStochastic,
    RandomFeatures,
    SparseVariational,
)
from gigagp.inference.streaming import StreamingInference
from gigagp.likelihoods import Gaussian, Likelihood

#: Rows up to which a factor for each gradient is quicker than solves (measured at 2,000 to 4,000 rows of pol and
#: elevators).
EXACT_ROWS = 3000

RULE = (
    f"exact inference (Cholesky) up to {EXACT_ROWS:,} rows where three n x n arrays fit the memory budget, "
    "iterative inference beyond"
)


#: Every way of inference that can be asked for.
Inference = ComputationAware | Exact | Grid | Iterative | QuadruplyStochastic | RandomFeatures | SparseVariational
#: What users ask for.
InferenceChoice = Literal["auto"] | Annotated[Inference, Words("one of gigagp.inference")]


def resolve_inference(
    inference: object, n_rows: int, itemsize: int, budget: int, likelihood: Likelihood | None = None
) -> Inference:
    """Return the inference object that ran or will run.

    Parameters
    ----------
    inference : one of `gigagp.inference` or "auto"
    n_rows : int
    itemsize : int
        Bytes of a number.
    budget : int
        Bytes that may be taken.
    likelihood : Likelihood or None, default None
        None: Gaussian. Others are for `gigagp.inference.QuadruplyStochastic` alone, and ``"auto"`` is that for them.

    Raises
    ------
    InvalidInputError
        If it is neither ``"auto"`` nor one of `gigagp.inference`, or not one for the likelihood.
    """
    inference = checked(inference, InferenceChoice, "inference", "GPRegressor")
    if likelihood is not None and not isinstance(likelihood, Gaussian):
        if inference == "auto":
            return QuadruplyStochastic()
        if isinstance(inference, QuadruplyStochastic):
            return inference
        msg = (
            f'inference for the {likelihood.name} likelihood must be "auto" or inference.QuadruplyStochastic; got '
            f"{inference!r}."
        )
        raise InvalidInputError(msg)
    if inference == "auto":
        return Exact() if n_rows <= EXACT_ROWS and 3 * n_rows**2 * itemsize <= budget else Iterative()
    return cast("Inference", inference)


def resolve_streaming(inference: object, likelihood: Likelihood) -> StreamingInference:
    """Return the inference object of `GPRegressor.fit_table`: ``"auto"`` is a grid.

    Raises
    ------
    InvalidInputError
        If it cannot work on rows that are not held, or is not one for the likelihood.
    """
    chosen = Grid() if inference == "auto" and isinstance(likelihood, Gaussian) else inference
    chosen = resolve_inference(chosen, 0, 8, 0, likelihood)
    if isinstance(chosen, StreamingInference):
        return chosen
    names = ", ".join(f"inference.{kind.__name__}" for kind in get_args(Inference) if hasattr(kind, "stream"))
    msg = (
        f"fit_table of GPRegressor works with {names}, which do not need to hold the rows; inference."
        f"{type(chosen).__name__} does. Load the table and use fit, or use the other inference."
    )
    raise InvalidInputError(msg)
