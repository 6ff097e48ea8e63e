"""Numbers at the limits of floating point: every fit ends in finite predictions or in one of gigagp's errors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, gradients, inference, kernels, optimization
from gigagp.errors import GigaGPError, GigaGPWarning, InvalidInputError, NonFiniteError
from gigagp.inference.exact.exact import ExactPosterior

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(24, 2))
y = np.sin(X[:, 0]) + 0.1 * GENERATOR.normal(size=24)


def but(values, **changes):
    """Return values with some rows changed, given as ``row_3=1e308``."""
    changed = values.copy()
    for place, value in changes.items():
        changed[int(place.split("_")[1])] = value
    return changed


CASES = {
    "one target of 1e308": (X, but(y, row_3=1e308), {}),
    "targets too far apart": (X, but(y, row_3=1.7e308, row_4=-1.7e308), {}),
    "targets of 1e308": (X, 1e308 * y, {}),
    "targets of 1e39": (X, 1e39 * y, {}),
    "targets of 1e200": (X, 1e200 * y, {}),
    "targets of 1e-200": (X, 1e-200 * y, {}),
    "denormal targets": (X, 1e-320 * y, {}),
    "one input of 1e308": (but(X, row_3=1e308), y, {}),
    "inputs too far apart": (but(X, row_3=1.7e308, row_4=-1.7e308), y, {}),
    "inputs of 1e307": (1e307 * X, y, {}),
    "inputs of 1e200": (1e200 * X, y, {}),
    "denormal inputs": (1e-320 * X, y, {}),
    "lengthscale 1e-300": (X, y, {"kernel": kernels.RBF(1e-300)}),
    "denormal lengthscale": (X, y, {"kernel": kernels.RBF(1e-320)}),
    "lengthscale 1e300": (X, y, {"kernel": kernels.RBF(1e300)}),
    "Matern-1/2, 1e-300": (X, y, {"kernel": kernels.Matern(nu=0.5, lengthscale=1e-300)}),
    "denormal variance": (X, y, {"kernel": kernels.RBF(1.0, variance=1e-320)}),
    "variance 1e308": (X, y, {"kernel": kernels.RBF(1.0, variance=1e308)}),
    "denormal noise": (X, y, {"noise_variance": 1e-320}),
    "noise 1e308": (X, y, {"noise_variance": 1e308}),
}
INFERENCES = {
    "exact": inference.Exact(),
    "iterative": inference.Iterative(gradient=gradients.Pathwise(n_probes=4, n_features=40), n_samples=4),
    "vecchia": inference.Vecchia(8),
    "features": inference.RandomFeatures(n_features=30),
    "grid": inference.Grid(size=12),
    "sparse": inference.SparseVariational(n_inducing=10),
    "aware": inference.ComputationAware(n_actions=6),
    "quadruply": inference.QuadruplyStochastic(n_basis=30),
}


@pytest.mark.few(20)
@pytest.mark.parametrize("method", INFERENCES)
@pytest.mark.parametrize("case", CASES)
def test_finite_or_refused(case, method):
    inputs, targets, settings = CASES[case]
    rounded = {"grid": "float64", "iterative": "mixed"}.get(method, "float32")
    for standardize, dtype, learns in [(True, "float64", True), (False, "float64", True), (False, rounded, False)]:
        steps = ("auto" if method == "quadruply" else optimization.LBFGS(steps=3)) if learns else None
        estimator = GPRegressor(
            inference=INFERENCES[method],
            optimizer=steps,
            standardize=standardize,
            dtype=dtype,
            **{"kernel": kernels.Matern(nu=1.5)} | settings,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GigaGPWarning)
            try:
                mean, std = estimator.fit(inputs, targets).predict(inputs, return_std=True)
                samples = estimator.sample_y(inputs, 2)
            except GigaGPError:
                continue
        assert np.isfinite(mean).all()
        assert np.isfinite(std).all()
        assert np.isfinite(samples).all()


@pytest.mark.parametrize(("dtype", "where"), [("float32", 9.97e36), ("float64", 1e200)])
def test_rows_are_refused_where_squares_of_distances_overflow(dtype, where):
    X = np.random.default_rng(0).normal(size=(60, 2))
    X[17, 1] = where
    with pytest.raises(InvalidInputError, match=r"row 17, column 1.*make it NaN"):
        GPRegressor(dtype=dtype).fit(X, X[:, 0])


def test_float32_says_that_targets_do_not_fit():
    with pytest.raises(InvalidInputError, match="y leaves the range of float32"):
        GPRegressor(dtype="float32", standardize=False).fit(X, 1e39 * y)
    GPRegressor(dtype="float32", optimizer=None).fit(X, 1e39 * y)  # standardized targets fit


@pytest.mark.parametrize("call", ["predict", "std", "cov", "sample_y", "sample_functions"])
def test_no_prediction_that_is_not_finite_gets_out(monkeypatch, call):
    """The estimator guards against any failure of a posterior."""
    estimator = GPRegressor(optimizer=None).fit(X, y)
    monkeypatch.setattr(ExactPosterior, "mean", lambda self, X: torch.full((len(X), 1), torch.nan, dtype=X.dtype))
    if call == "predict":
        with pytest.raises(NonFiniteError, match="not finite at 24 of 24 rows"):
            estimator.predict(X)
        return
    monkeypatch.undo()
    estimator.posterior_.factor = torch.full_like(estimator.posterior_.factor, torch.nan)
    estimator.posterior_.model = estimator.posterior_.model.replace({"variance": torch.tensor(torch.nan).double()})
    with pytest.raises(NonFiniteError):
        {
            "std": lambda: estimator.predict(X, return_std=True),
            "cov": lambda: estimator.predict(X, return_cov=True),
            "sample_y": lambda: estimator.sample_y(X, 2),
            "sample_functions": lambda: estimator.sample_functions(2)(X),
        }[call]()


@pytest.mark.parametrize("distance", [1e-9, 1e-8, 1e-7])
def test_a_point_beside_a_row_is_not_the_row(distance):
    """Matern-1/2 has a kink at zero: ``k(0) - k(r)`` is ``r`` for any small r."""
    kernel = kernels.Matern(nu=0.5, lengthscale=1.0).bind(1)
    rows = torch.tensor([[0.3], [-1.0], [2.0]], dtype=torch.float64)
    beside = rows[:1] + distance
    true = -torch.expm1(-(beside - rows[:1]).abs())
    found = 1 - kernel.block(beside, rows)[0, 0]
    torch.testing.assert_close(found, true[0, 0], rtol=1e-4, atol=1e-15)
