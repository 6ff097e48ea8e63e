"""A White term of the kernel as the only noise, in every inference method, learned and fixed, against dense algebra."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import gigagp
from gigagp import GPClassifier, GPRegressor, inference, kernels, likelihoods, optimization, solvers
from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.settings.custom import NOTHING

RNG = np.random.default_rng(1)
X = RNG.uniform(-3, 3, (40, 1))
Y = np.sin(2 * X[:, 0]) + 0.3 * RNG.normal(size=40)
NEW = np.linspace(-2.7, 2.8, 9)[:, None]
PLAIN = {"mean": "zero", "standardize": False}
EXACT = inference.Exact()
TIGHT = inference.Iterative(solver=solvers.ConjugateGradients(tolerance=1e-11, max_epochs=400))
#: Each method in its exact limit.
METHODS = {
    "exact": EXACT,
    "iterative": TIGHT,
    "sparse variational": inference.SparseVariational(40),
    "computation aware": inference.ComputationAware(40),
    "grid": inference.Grid(size=512),
    "quadruply stochastic": inference.QuadruplyStochastic(n_basis=512),
    "vecchia": inference.Vecchia(60, 60),
    "random features": inference.RandomFeatures(1000),
}


def dense(lengthscale, variance, white, noise=0.0):
    """Return the log marginal likelihood, mean, latent variance and the variance of observations."""

    def k(A, B):
        return variance * np.exp(-0.5 * (A - B.T) ** 2 / lengthscale**2)

    H = k(X, X) + (white + noise) * np.eye(len(X))
    solved = np.linalg.solve(H, k(X, NEW))
    latent = variance - (k(X, NEW) * solved).sum(0)
    evidence = -0.5 * (Y @ np.linalg.solve(H, Y) + np.linalg.slogdet(H)[1] + len(X) * math.log(2 * math.pi))
    return evidence, solved.T @ Y, latent, latent + white + noise


@pytest.mark.parametrize("given", [None, 0, 0.0, np.array(0.0)])
def test_it_is_the_dense_formula_with_the_noise_of_the_kernel_alone(given):
    gp = GPRegressor(kernels.RBF(0.8, 1.3) + kernels.White(0.1), EXACT, None, noise_variance=given, **PLAIN).fit(X, Y)
    evidence, mean, latent, observed = dense(0.8, 1.3, 0.1)
    assert gp.noise_variance_ == 0
    assert gp.log_marginal_likelihood().value == pytest.approx(evidence, rel=1e-12)
    np.testing.assert_allclose(gp.predict(NEW), mean, atol=1e-10)
    np.testing.assert_allclose(gp.predict(NEW, return_std=True)[1] ** 2, latent, atol=1e-10)
    np.testing.assert_allclose(gp.predict(NEW, return_std=True, include_noise=True)[1] ** 2, observed, atol=1e-10)
    # Control: the usual initial noise gives another number.
    assert abs(evidence - dense(0.8, 1.3, 0.1, 0.09)[0]) > 0.1


def test_a_noise_that_is_given_adds_to_it():
    kernel = kernels.RBF(0.8, 1.3) + kernels.White(0.1)
    gp = GPRegressor(kernel, EXACT, None, noise_variance=0.05, **PLAIN).fit(X, Y)
    assert gp.log_marginal_likelihood().value == pytest.approx(dense(0.8, 1.3, 0.1, 0.05)[0], rel=1e-12)
    known = GPRegressor(kernel, EXACT, None, noise_variance=np.full(40, 0.05), **PLAIN).fit(X, Y)
    assert known.log_marginal_likelihood().value == pytest.approx(dense(0.8, 1.3, 0.1, 0.05)[0], rel=1e-12)
    both = GPRegressor(kernel, EXACT, optimization.LBFGS(), noise_variance=0.05, **PLAIN).fit(X, Y)
    assert both.noise_variance_ != 0.05  # the noise was learned
    assert float(both.kernel_.parameters()["1.variance"]) != 0.1


@pytest.mark.few(4)
@pytest.mark.parametrize("name", METHODS)
def test_every_inference_answers_as_with_the_noise_of_its_own(name):
    method = METHODS[name]
    white = GPRegressor(kernels.RBF(0.8, 1.3) + kernels.White(0.1), method, None, **PLAIN).fit(X, Y)
    own = GPRegressor(kernels.RBF(0.8, 1.3), method, None, noise_variance=0.1, **PLAIN).fit(X, Y)
    _, mean, latent, observed = dense(0.8, 1.3, 0.1)
    loose = name in ("random features", "grid", "quadruply stochastic")
    np.testing.assert_allclose(white.predict(NEW), mean, atol=0.05 if loose else 1e-4)
    sampled = {"variance": "solve"} if name == "iterative" else {}
    for noisy, variance in ((False, latent), (True, observed)):
        found = white.predict(NEW, return_std=True, include_noise=noisy, **sampled)[1]
        np.testing.assert_allclose(found**2, variance, atol=0.05 if loose else 1e-4)
        np.testing.assert_allclose(
            found, own.predict(NEW, return_std=True, include_noise=noisy, **sampled)[1], rtol=1e-6
        )
    np.testing.assert_allclose(white.predict(NEW), own.predict(NEW), atol=1e-7)
    assert white.noise_variance_ == 0


@pytest.mark.few(4)
@pytest.mark.parametrize("name", METHODS)
def test_every_inference_learns_it(name):
    method = inference.RandomFeatures(200) if name == "random features" else METHODS[name]
    gp = GPRegressor(kernels.RBF(0.8) + kernels.White(0.5), method, **PLAIN).fit(X, Y)
    assert 0.03 < float(gp.kernel_.parameters()["1.variance"]) + gp.noise_variance_ < 0.25
    own = GPRegressor(kernels.RBF(0.8), method, noise_variance=0.5, **PLAIN).fit(X, Y)
    np.testing.assert_allclose(gp.predict(NEW), own.predict(NEW), atol=0.1)
    if name != "grid":  # a grid adds unresolved variation to the noise
        assert gp.noise_variance_ == 0


def test_the_optimum_is_that_of_a_noise_variance():
    white = GPRegressor(kernels.RBF(0.8) + kernels.White(), EXACT, optimization.LBFGS(), **PLAIN).fit(X, Y)
    own = GPRegressor(kernels.RBF(0.8), EXACT, optimization.LBFGS(), **PLAIN).fit(X, Y)
    assert white.log_marginal_likelihood().value == pytest.approx(own.log_marginal_likelihood().value, abs=1e-8)
    assert float(white.kernel_.parameters()["1.variance"]) == pytest.approx(own.noise_variance_, rel=1e-4)
    default = GPRegressor(kernels.RBF(0.8) + kernels.White(), **PLAIN).fit(X, Y)
    assert default.log_marginal_likelihood().value == pytest.approx(
        GPRegressor(kernels.RBF(0.8), **PLAIN).fit(X, Y).log_marginal_likelihood().value, abs=1e-3
    )


def test_bounds_of_the_noise_are_bounds_of_white():
    kernel = kernels.RBF(0.8) + kernels.White(0.01, bounds={"variance": (1e-3, 0.02)})
    gp = GPRegressor(kernel, **PLAIN).fit(X, Y)
    assert float(gp.kernel_.parameters()["1.variance"]) == 0.02


@pytest.mark.parametrize("kernel", [kernels.RBF(0.8), kernels.RBF(0.8) + kernels.White() * kernels.Linear()])
def test_zero_without_white_noise_is_refused(kernel):
    with pytest.raises(InvalidInputError, match=r"noise_variance of GPRegressor must be positive.*White term"):
        GPRegressor(kernel, noise_variance=0.0).fit(X, Y)


def test_noise_that_grows_is_added_to_one_of_its_own():
    gp = GPRegressor(kernels.RBF(0.8) + kernels.White(0.1) * kernels.Linear(), **PLAIN).fit(X, Y)
    assert gp.noise_variance_ > 0
    multiple = GPRegressor(kernels.RBF(0.8) + kernels.White(0.1) * kernels.Constant(2.0), **PLAIN).fit(X, Y)
    assert multiple.noise_variance_ == 0


def test_it_is_saved(tmp_path):
    gp = GPRegressor(kernels.RBF(0.8) + kernels.White(), **PLAIN).fit(X, Y)
    gp.save(tmp_path / "model.gp")
    again = gigagp.load(tmp_path / "model.gp")
    np.testing.assert_array_equal(again.predict(NEW), gp.predict(NEW))
    assert again.noise_variance_ == 0
    refit = again.fit(X, Y)
    assert refit.kernel_ == gp.kernel_


def test_a_file_without_noise_and_without_white_is_refused():
    for kernel, good in ((kernels.RBF(0.8), False), (kernels.RBF(0.8) + kernels.White(), True)):
        tensors, header = GPRegressor(kernel, **PLAIN).fit(X, Y)._to_state()
        tensors["noise_variance"] = torch.zeros((), dtype=torch.float64)
        if good:
            assert not GPRegressor._from_state(tensors, header, NOTHING).posterior_.model.noise_is_learned
        else:
            with pytest.raises(ModelFileError, match="its kernel has no White term"):
                GPRegressor._from_state(tensors, header, NOTHING)


# Counts and labels, whose likelihoods have no noise variance ---------------------------------------------------------


class Exponential(likelihoods.Likelihood):
    """A likelihood of a user's own, without noise."""

    name = "exponential"
    is_log_concave = True

    def log_density(self, y, f, noise):
        return -f - y * torch.exp(-f)


def of_scikit_learn():
    sk = pytest.importorskip("sklearn.gaussian_process.kernels")
    return kernels.from_sklearn(2.0 * sk.RBF(0.8) + sk.WhiteKernel(0.1))


WITH_WHITE = {
    "alone": lambda: kernels.White(0.1),
    "a sum": lambda: kernels.RBF(0.8) + kernels.White(0.1),
    "scaled": lambda: kernels.RBF(0.8) + kernels.Constant(2.0) * kernels.White(0.1),
    "a product": lambda: kernels.RBF(0.8) + kernels.White(0.1) * kernels.Linear(),
    "within a product": lambda: (kernels.RBF(0.8) + kernels.White(0.1)) * kernels.Matern(1.5),
    "of scikit-learn": of_scikit_learn,
}
WITHOUT_NOISE = ("poisson", "logistic", "probit", Exponential())
OF_COUNTS = {
    "auto": "auto",
    "vecchia": inference.Vecchia(10),
    "quadruply stochastic": inference.QuadruplyStochastic(n_basis=16),
    "relevance": inference.RelevanceVectorMachine(),
}
REFUSED = r"kernel must not contain White with the .* likelihood: .*no effect; got .*White"
CELLS = [
    *((kernel, "poisson", "auto") for kernel in WITH_WHITE),
    *(("a sum", likelihood, "auto") for likelihood in WITHOUT_NOISE),
    *(("a product", "poisson", method) for method in OF_COUNTS),
]


@pytest.mark.parametrize(("kernel", "likelihood", "method"), CELLS)
def test_a_likelihood_without_noise_refuses_it_before_any_work(kernel, likelihood, method, monkeypatch):
    gp = GPRegressor(WITH_WHITE[kernel](), OF_COUNTS[method], likelihood=likelihood, mean="zero")
    monkeypatch.setattr("gigagp.estimators.fitting._Held", None)  # what would do the work
    y = np.where(Y > 0, 1.0, -1.0) if likelihood in ("logistic", "probit") else np.round(np.exp(Y))
    for ask in (lambda: gp.fit(X, y), lambda: gp.fit_table((X, y)), lambda: gp.predict(NEW), lambda: gp.sample_y(NEW)):
        with pytest.raises(InvalidInputError, match=REFUSED):
            ask()


@pytest.mark.parametrize("kernel", WITH_WHITE)
@pytest.mark.parametrize("classes", [2, 3])
def test_classes_refuse_it(kernel, classes):
    with pytest.raises(InvalidInputError, match=REFUSED):
        GPClassifier(WITH_WHITE[kernel]()).fit(X, np.arange(len(X)) % classes)


def test_other_noise_adds_it():
    """The control: where there is noise, the same kernels are taken, and the white part is that noise."""
    found = [
        GPRegressor(kernels.RBF(0.8) + kernels.White(v), optimizer=None, likelihood="laplace", **PLAIN).fit(X, Y)
        for v in (0.01, 1.0)
    ]
    assert abs(found[0].predict(NEW) - found[1].predict(NEW)).max() > 0.05


def test_white_noise_alone_is_fitted_by_iterative_inference():
    """Its samples have no function whose variance could be uncertain."""
    y = np.random.default_rng(3).normal(size=len(X))
    gp = GPRegressor(kernels.White(0.5), inference.Iterative()).fit(X, y)
    mean, std = gp.predict(X, return_std=True, include_noise=True)
    np.testing.assert_allclose(mean, y.mean(), atol=1e-6)
    assert np.isfinite(std).all()
