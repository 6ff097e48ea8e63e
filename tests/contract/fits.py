"""Fits shared by several tests, which must not change them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from contract.dense import Array
from contract.problems import Problem, problem
from contract.systems import BY_NAME
from gigagp import GPRegressor

#: Indices in `TABLES`: two inputs, one input, one input without a smooth function.
GAUSSIAN, UNEVEN, GAPPY = 0, 1, 3


@cache
def fitted(
    name: str, place: int = GAUSSIAN, mean: str = "constant", dtype: str = "float64", targets: str = "one"
) -> tuple[GPRegressor, Problem]:
    cell = problem(place, targets, mean, "one", dtype)
    return BY_NAME[name].fit(cell), cell


def everything(gp: GPRegressor, X: Array, **options: Any) -> dict[str, Array]:
    """Return all predictions of a model at points, with seeded random numbers."""
    mean, std = gp.predict(X, return_std=True)
    value = gp.log_marginal_likelihood(random_state=5)
    return {
        "mean": gp.predict(X),
        "mean beside a deviation": mean,
        "standard deviation": std,
        "covariance": gp.predict(X, return_cov=True)[1],
        "samples": gp.sample_y(X, 3, random_state=7),
        "many samples": gp.sample_y(X, 70, random_state=7),
        "functions": gp.sample_functions(3, random_state=8)(X),
        "evidence": np.array([value.value, value.standard_error]),
    }


def differing(left: dict[str, Array], right: dict[str, Array]) -> list[str]:
    """Return the names of predictions that differ in any bit."""
    return [name for name in left if not np.array_equal(left[name], right[name])]
