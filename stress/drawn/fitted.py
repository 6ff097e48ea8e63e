"""Fitted models of every kind, made once per worker."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np

#: Kinds of models.
KINDS = (
    "exact",
    "noise by row",
    "linear mean",
    "iterative",
    "neighbours",
    "gross outliers",
    "classes by neighbours",
    "features",
    "aware",
    "inducing",
    "grid",
    "quadruply",
    "classifier",
    "two targets",
    "named",
)


def rows(n: int = 20, d: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return a small table."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, d))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n)


@functools.lru_cache(maxsize=64)
def model(kind: str, seed: int = 0) -> Any:
    """Return a fitted model of a kind, which callers must not change."""
    import pandas as pd

    from gigagp import GPClassifier, GPRegressor, actions, inference

    X, y = rows(seed=seed)
    ways = {
        "iterative": inference.Iterative(n_samples=4),
        "neighbours": inference.Vecchia(n_neighbors=5, prediction_neighbors=8),
        "gross outliers": inference.Vecchia(n_neighbors=5, prediction_neighbors=8),
        "features": inference.RandomFeatures(n_features=12, prediction="features"),
        "aware": inference.ComputationAware(n_actions=4, policy=actions.UnitVectors()),
        "inducing": inference.SparseVariational(n_inducing=5),
        "grid": inference.Grid(size=8, n_samples=4),
        "quadruply": inference.QuadruplyStochastic(n_basis=10),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind in ("classifier", "classes by neighbours"):
            way = inference.QuadruplyStochastic(n_basis=10) if kind == "classifier" else inference.Vecchia(5, 8)
            return GPClassifier(inference=way, optimizer=None).fit(X, np.where(y > 0, "up", "down"))
        gp = GPRegressor(inference=ways.get(kind, "auto"), optimizer=None)
        if kind == "gross outliers":
            gp.set_params(likelihood="student-t")
        elif kind == "noise by row":
            gp.set_params(noise_variance=np.full(len(X), 0.05))
        elif kind == "linear mean":
            gp.set_params(mean="linear")
        elif kind == "two targets":
            y = np.stack([y, -y], 1)
        return gp.fit(pd.DataFrame(X, columns=["a", "b"]) if kind == "named" else X, y)


def answers(fitted: Any) -> np.ndarray:
    """Return the predictions of a model at a few points, as one array."""
    import pandas as pd

    new = np.array([[0.0, 0.0], [0.5, -1.0], [-1.5, 1.2]])
    given = pd.DataFrame(new, columns=fitted.feature_names_in_) if hasattr(fitted, "feature_names_in_") else new
    if hasattr(fitted, "classes_"):
        return fitted.predict_proba(given)
    mean, std = fitted.predict(given, return_std=True)
    return np.concatenate([np.ravel(mean), np.ravel(std)])
