"""Arguments that are set after a fit are for the next one: the answers and the file of the fit stay as they are."""

import inspect
import warnings

import numpy as np
import pytest

import gigagp
from gigagp import GPClassifier, GPRegressor, inference, kernels, likelihoods, optimization

RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(0, 6, (80, 1))
CURVE = np.sin(X[:, 0]) + 0.05 * RANDOM.normal(size=80)
OUTLIERS = np.where(np.arange(80) % 13 == 0, CURVE + 5, CURVE)
COUNTS = RANDOM.poisson(np.exp(1 + CURVE))
POINTS = np.linspace(-1, 7, 7)[:, None]

#: Another valid value of each argument.
OTHER = {
    "kernel": kernels.RBF(0.3),
    "inference": inference.Vecchia(n_neighbors=3),
    "optimizer": optimization.LBFGS(steps=2),
    "mean": "zero",
    "noise_variance": 0.5,
    "standardize": False,
    "dtype": "float32",
    "device": "cpu",
    "memory_budget": "1GiB",
    "verbose": 0,
    "random_state": 7,
    "likelihood": likelihoods.StudentT(df=3.0),
    "hyperparameter_units": "standardized",
    "time_budget": 100.0,
    "target_transform": "yeo-johnson",
    "encode": "auto",
    "distributed": True,
    "outputs": "shared",
    "noise": "auto",
    "panel": (0, 1),
    "hyperparameters": "learned",
    "groups": [0],
}

FITS = {
    "gaussian": (GPRegressor(optimizer=None, noise_variance=0.04), CURVE),
    "student": (GPRegressor(kernels.RBF(0.5), likelihood="student-t", optimizer=None, noise_variance=0.04), OUTLIERS),
    "chosen noise": (GPRegressor(kernels.RBF(0.5), inference.Vecchia(n_neighbors=6), likelihood="auto"), OUTLIERS),
    "counts": (GPRegressor(kernels.RBF(0.5), inference.Vecchia(), None, likelihood="poisson", mean="zero"), COUNTS),
    "transform": (GPRegressor(optimizer=None, noise_variance=0.04, target_transform="log"), np.exp(CURVE)),
    "table": (GPRegressor(optimizer=None, noise_variance=0.04, encode="auto"), CURVE),
    "outputs": (GPRegressor(optimizer=None, noise_variance=0.04), np.stack([CURVE, 3 * CURVE], 1)),
}


def answers(gp: GPRegressor) -> list[object]:
    """Return what a fit says about its target in every way that it has."""
    found = [*gp.predict(POINTS, return_std=True, include_noise=True), gp.predict_latent(POINTS)]
    found += [gp.sample_y(POINTS, 3, include_noise=True), gp.predict_quantile(POINTS, 0.9)]
    y = np.ones((7, 2))[:, : gp.posterior_.n_targets] if not gp._models else np.ones((7, 2))
    found += [gp.predictive_log_density(POINTS, y if gp._models else y[:, 0]), gp.sample_functions(2)(POINTS)]
    return [*(one.tobytes() for one in found), gp.describe(), str(gp.likelihood_), str(gp.log_marginal_likelihood())]


@pytest.fixture(scope="module", params=FITS)
def fitted(request: pytest.FixtureRequest) -> GPRegressor:
    gp, y = FITS[request.param]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forty rows with outliers
        return gp.fit(X, y)


def test_every_argument_has_another_value():
    assert OTHER.keys() == inspect.signature(GPRegressor).parameters.keys()


@pytest.mark.few(2)
@pytest.mark.parametrize("value", ["another", "nonsense"])
def test_later_arguments_change_no_answer_and_no_file(fitted, value, tmp_path):
    before, given = answers(fitted), fitted.get_params(deep=False)
    fitted.save(tmp_path / "before.gp")
    grown = fitted.condition_on(POINTS, _more(fitted)) if _grows(fitted) else None
    fitted.set_params(**(OTHER if value == "another" else dict.fromkeys(OTHER, "nonsense")))
    try:
        assert answers(fitted) == before
        fitted.save(tmp_path / "after.gp")
        if grown is not None:
            assert answers(fitted.condition_on(POINTS, _more(fitted))) == answers(grown)
    finally:
        fitted.set_params(**given)
    assert (tmp_path / "after.gp").read_bytes() == (tmp_path / "before.gp").read_bytes()
    assert answers(gigagp.load(tmp_path / "after.gp")) == before


def _grows(gp: GPRegressor) -> bool:
    return all(isinstance(one.likelihood_, likelihoods.Gaussian) for one in gp.estimators_)


def _more(gp: GPRegressor) -> np.ndarray:
    return np.ones((7, 2)) if gp._models else np.ones(7)


def test_a_new_fit_takes_them():
    """The control: arguments that make a difference do make it in the next fit."""
    gp = GPRegressor(optimizer=None, noise_variance=0.04).fit(X, CURVE)
    for name in ("kernel", "mean", "noise_variance", "standardize", "dtype", "likelihood", "hyperparameter_units"):
        changed = GPRegressor(optimizer=None, noise_variance=0.04).set_params(**{name: OTHER[name]}).fit(X, CURVE)
        assert answers(changed) != answers(gp), name


def test_a_refused_fit_leaves_the_likelihood_of_the_last_one():
    gp = GPRegressor(optimizer=None, noise_variance=0.04).fit(X, CURVE)
    before = answers(gp)
    with pytest.raises(gigagp.errors.InvalidInputError):
        gp.set_params(likelihood="logistic").fit(X, CURVE)
    assert answers(gp) == before


def test_a_classifier_keeps_the_likelihood_of_its_fit():
    gp = GPClassifier(kernels.RBF(0.5), optimizer=None).fit(X, CURVE > 0)
    before = gp.predict_proba(POINTS).tobytes()
    assert gp.set_params(likelihood="probit").predict_proba(POINTS).tobytes() == before
    assert gp.fit(X, CURVE > 0).predict_proba(POINTS).tobytes() != before


@pytest.mark.slow
def test_laplace_with_a_chosen_likelihood_answers_for_it(tmp_path):
    """Vecchia's approximation has no weights that would tell of Student-t noise: the likelihood itself is kept."""
    gp, y = FITS["chosen noise"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gp.fit(X, y)
    assert isinstance(gp.likelihood_, likelihoods.StudentT)
    gp.save(tmp_path / "model.gp")
    again = gigagp.load(tmp_path / "model.gp")
    assert isinstance(again.likelihood_, likelihoods.StudentT)
    assert again.likelihood == "auto"
