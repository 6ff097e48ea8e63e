"""GPClassifier: labels, probabilities, files, scikit-learn's checks, and other likelihoods of the regressor."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.utils.estimator_checks import parametrize_with_checks

import gigagp
from gigagp import GPClassifier, GPRegressor, kernels
from gigagp.errors import InvalidInputError
from gigagp.inference import Exact, QuadruplyStochastic
from gigagp.optimization import SparseAdam

QUICK = SparseAdam(steps=300)


def moons(n=300, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    angle = np.arctan2(X[:, 1], X[:, 0])
    return X, np.floor((angle + np.pi) / (2 * np.pi) * classes).astype(int).clip(0, classes - 1)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("likelihood", ["logistic", "probit"])
@pytest.mark.parametrize("bound", ["sqrt", "linear"])
def test_two_classes_with_names(likelihood, bound):
    X, codes = moons()
    y = np.array(["north", "south"])[codes]
    inference = QuadruplyStochastic(n_basis=200, basis_batch=150, bound=bound)
    gp = GPClassifier(kernels.RBF([1.0, 1.0]), inference, QUICK, likelihood).fit(X[:200], y[:200])
    assert gp.score(X[200:], y[200:]) > 0.93
    probability = gp.predict_proba(X[200:])
    assert probability.shape == (100, 2)
    np.testing.assert_allclose(probability.sum(1), 1)
    chosen = gp.classes_[probability.argmax(1)]
    assert np.array_equal(chosen, gp.predict(X[200:]))  # for one latent function mean and median agree
    assert gp.decision_function(X[200:]).shape == (100,)


@pytest.mark.slow
def test_probabilities_are_calibrated():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(4000, 1))
    truth = 1 / (1 + np.exp(-2 * np.sin(2 * X[:, 0])))
    y = (rng.random(4000) < truth).astype(int)
    inference = QuadruplyStochastic(n_basis=100)
    gp = GPClassifier(kernels.RBF([1.0]), inference, SparseAdam(steps=500)).fit(X[:2000], y[:2000])
    found = gp.predict_proba(X[2000:])[:, 1]
    assert np.abs(found - truth[2000:]).mean() < 0.05
    for low in np.arange(0.1, 0.9, 0.2):
        inside = (found >= low) & (found < low + 0.2)
        error = np.sqrt(found[inside].mean() * (1 - found[inside].mean()) / inside.sum())
        assert abs(y[2000:][inside].mean() - found[inside].mean()) < 4 * error + 0.03


def test_several_classes_and_a_file(tmp_path):
    X, y = moons(classes=3)
    gp = GPClassifier(kernels.RBF([1.0, 1.0]), QuadruplyStochastic(n_basis=200), QUICK).fit(X[:200], y[:200] * 10)
    assert gp.score(X[200:], y[200:] * 10) > 0.9
    assert gp.classes_.tolist() == [0, 10, 20]
    assert gp.predict_proba(X).shape == (300, 3)
    np.testing.assert_allclose(gp.predict_proba(X).sum(1), 1)
    gp.save(tmp_path / "c.gp")
    loaded = gigagp.load(tmp_path / "c.gp")
    assert isinstance(loaded, GPClassifier)
    assert np.array_equal(loaded.predict_proba(X), gp.predict_proba(X))
    assert np.array_equal(loaded.predict(X), gp.predict(X))
    assert loaded.classes_.dtype == gp.classes_.dtype


@pytest.mark.slow
def test_digits_odd_or_even_at_a_quarter_of_the_steps():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order], y[order] % 2
    gp = GPClassifier(
        inference=QuadruplyStochastic(n_basis=2000, basis_batch=1000),
        optimizer=SparseAdam(steps=400),
        dtype="float32",
        kernel=kernels.RBF(6.0, 4.0, ard=False),
        hyperparameter_units="standardized",
    ).fit(X[:1200], y[:1200])
    assert gp.score(X[1200:], y[1200:]) > 0.96


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Squared errors")  # of Gaussian noise, few steps
def test_laplace_noise_does_not_mind_outliers():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (300, 1))
    truth = np.sin(2 * X[:, 0])
    y = truth + 0.1 * rng.normal(size=300)
    y[::6] += rng.choice([-1, 1], 50) * 4
    settings = {"standardize": False, "noise_variance": 0.1, "mean": "zero"}
    inference = QuadruplyStochastic(n_basis=100)
    errors = {
        name: np.abs(
            GPRegressor(kernels.RBF([1.0]), inference, QUICK, likelihood=name, **settings).fit(X, y).predict(X) - truth
        ).mean()
        for name in ("laplace", "gaussian")
    }
    assert errors["laplace"] < 0.08
    assert errors["laplace"] < 0.5 * errors["gaussian"]


def test_poisson_counts(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (500, 1))
    rate = np.exp(1 + np.sin(2 * X[:, 0]))
    y = rng.poisson(rate)
    inference = QuadruplyStochastic(n_basis=100)
    gp = GPRegressor(kernels.RBF([1.0], 2.0), inference, SparseAdam(steps=600), likelihood="poisson").fit(X, y)
    assert np.abs(gp.predict_latent(X) - np.log(rate)).mean() < 0.15
    assert np.abs(gp.predict(X) / rate - 1).mean() < 0.15
    assert gp.score(X, y) > 0.5 * np.var(rate) / np.var(y)
    gp.save(tmp_path / "p.gp")
    assert np.array_equal(gigagp.load(tmp_path / "p.gp").predict(X), gp.predict(X))


def test_bad_input():
    X, y = moons(30)
    with pytest.raises(InvalidInputError, match="must have at least two classes; got one class"):
        GPClassifier().fit(X, np.zeros(30))
    with pytest.raises(InvalidInputError, match='likelihood of GPClassifier must be "logistic" or "probit"'):
        GPClassifier(likelihood="poisson").fit(X, y)
    with pytest.raises(InvalidInputError, match='inference for the logistic likelihood must be "auto"'):
        GPClassifier(inference=Exact()).fit(X, y)
    with pytest.raises(InvalidInputError, match='inference for the laplace likelihood must be "auto"'):
        GPRegressor(inference=Exact(), likelihood="laplace").fit(X, y)
    with pytest.raises(InvalidInputError, match="X must be finite"):
        GPClassifier().fit(np.where(X > 0, np.nan, X), y)
    gp = GPClassifier(inference=QuadruplyStochastic(n_basis=20), optimizer=SparseAdam(steps=5)).fit(X, y)
    with pytest.raises(InvalidInputError, match="two classes"):
        gp.fit(X, np.ones(30))
    assert gp.classes_.tolist() == [0, 1]  # the failed refit left it alone


@pytest.mark.parametrize("likelihood", ["logistic", "probit"])
def test_log_odds_rank_rows_as_probabilities_do(likelihood):
    """Latent means would not: a large one with a large variance is a smaller probability."""
    random = np.random.default_rng(0)
    X = random.normal(size=(60, 1))
    gp = GPClassifier(kernels.RBF(0.5, 4.0), optimizer=None, likelihood=likelihood).fit(X, X[:, 0] > 0.2)
    points = np.linspace(-6, 6, 200)[:, None]
    odds, probability = gp.decision_function(points), gp.predict_proba(points)
    np.testing.assert_allclose(odds, np.log(probability[:, 1] / probability[:, 0]), rtol=1e-9)
    assert (np.diff(probability[np.argsort(odds), 1]) >= -4 * np.finfo(float).eps).all()  # log is not always monotone
    assert not (np.diff(probability[np.argsort(gp.latent_.predict_latent(points)), 1]) >= 0).all()
    np.testing.assert_array_equal(gp.predict(points), gp.classes_[(odds > 0).astype(int)])


@pytest.mark.few(5)
@parametrize_with_checks(
    [GPClassifier(), GPClassifier(inference=QuadruplyStochastic(n_basis=50), optimizer=SparseAdam(0.1, steps=100))]
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)
