"""All answers of one fit agree with each other, with settings as users have them: learned, and with default tolerances.

The other tests of the contract hold inferences against dense algebra at their exact limits, where nothing is estimated.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

from contract.dense import Array
from gigagp import GPRegressor, actions, inference, kernels

SMALL, LARGE = 60, 320
#: Rounding of a sum of a few hundred covariances, and of what is taken from it, in units of the prior variance.
ROUNDINGS = 200
#: Rounding of means and variances that are small differences of large sums, in units of the answers' own size: that of
#: the dtype times the condition number of the rows' covariance, between these limits.
DIFFERENCES = (1e-6, 0.05)
SAMPLES, ERRORS = 400, 5.5

INFERENCES = {
    "exact": lambda: inference.Exact(),
    "iterative": lambda: inference.Iterative(),
    "aware": lambda: inference.Iterative(computational_uncertainty=True),
    "vecchia": lambda: inference.Vecchia(n_neighbors=12),
    "features": lambda: inference.RandomFeatures(60),
    "grid": lambda: inference.Grid(),
    "grid, few rows": lambda: inference.Grid(size=12),
    "grid, low rank": lambda: inference.Grid(size=12, exact_nodes=0, variance="low_rank"),
    # points that are solved for together stop together: at the default tolerance an answer depends on the others
    "grid, solves": lambda: inference.Grid(size=9, exact_nodes=0, variance="solve", final_tolerance=1e-9),
    "quadruply, waves": lambda: inference.QuadruplyStochastic(n_basis=60),
    "quadruply, inducing": lambda: inference.QuadruplyStochastic(n_basis=40, basis="inducing"),
    "actions": lambda: inference.ComputationAware(5),
    "actions of CG": lambda: inference.ComputationAware(8, policy=actions.ConjugateGradients()),
    "inducing points": lambda: inference.SparseVariational(20),
}
KERNELS = {
    "matern": lambda: kernels.Matern(nu=1.5),
    "white": lambda: kernels.RBF() + kernels.White(),
    "rough": lambda: kernels.Matern(0.5),
}
#: Pairs of settings: kernel, mean, dtype, number of rows, number of inputs. Those with even numbers are in float32.
CELLS = (
    ("matern", "linear", "float32", SMALL, 2),
    ("white", "constant", "float64", SMALL, 3),
    ("rough", "zero", "float32", LARGE, 2),
    ("matern", "constant", "float64", LARGE, 2),
)


def table(n: int, d: int) -> tuple[Array, Array, Array]:
    """Return rows of which some are repeated and one input is badly scaled, their targets, and points between them."""
    draw = np.random.default_rng(n + d)
    X = draw.uniform(-1, 1, size=(n, d))
    X[: n // 6] = X[n // 6 : 2 * (n // 6)]
    y = 50 + 3 * (np.sin(4 * X[:, 0]) + X[:, 1] + 0.1 * draw.normal(size=n))
    scales = np.array([1.0, 1e4, 1.0])[:d]
    return X * scales, y, 0.85 * draw.uniform(-1, 1, size=(7, d)) * scales


def disagreements(gp: GPRegressor, X: Array) -> list[str]:
    """Return the answers at points that disagree with mean and standard deviation there by more than rounding."""
    mean, std = gp.predict(X, return_std=True)
    posterior = gp.posterior_
    prior = float(gp.kernel_.diagonal(torch.from_numpy(X)).max())
    eps = torch.finfo(posterior.dtype).eps
    noisy = gp.predict(X, return_std=True, include_noise=True)[1]
    condition = gp.posterior_.n_rows * prior / float((noisy**2 - std**2).min())
    rounding = float(np.clip(eps * condition, *DIFFERENCES))
    of_variance = ROUNDINGS * eps * prior + rounding * float((std**2).min())
    of_mean = ROUNDINGS * eps * (np.sqrt(prior) + np.abs(mean).max()) + rounding * float(std.min())
    # covariances are from solves; variances from stored samples have an error of their own (test_sampled_variance.py)
    exactly = gp.predict(X, return_std=True, variance="solve")[1] if posterior.kind == "pathwise" else std
    found = []

    def compare(what: str, got: Array, expected: Array, allowed: Array | float) -> None:
        if not (np.abs(np.asarray(got) - expected) <= allowed).all():
            worst = np.abs(np.asarray(got) - expected).max()
            found.append(f"{what}: off by {worst:.3g}, allowed {np.max(allowed):.3g}")

    def compare_variance(what: str, got: Array) -> None:
        compare(what, got, std**2, of_variance)

    compare("mean alone", gp.predict(X), mean, of_mean)
    beside, covariance = gp.predict(X, return_cov=True)
    compare("mean beside a covariance", beside, mean, of_mean)
    compare("diagonal of the covariance", np.diag(covariance), exactly**2, of_variance)
    single = [gp.predict(x[None], return_std=True) for x in X]
    compare("mean of one row at a time", np.array([m[0] for m, _ in single]), mean, of_mean)
    compare_variance("variance of one row at a time", np.array([s[0] for _, s in single]) ** 2)
    backwards = gp.predict(X[::-1], return_std=True)
    compare("mean of the rows backwards", backwards[0][::-1], mean, of_mean)
    compare_variance("variance of the rows backwards", backwards[1][::-1] ** 2)
    joint = gp.posterior(X)
    compare("mean of posterior", joint.mean.numpy(), mean, of_mean)
    compare_variance("variance of posterior", joint.variance.numpy())
    compare("covariance of posterior", joint.covariance.numpy(), covariance, of_variance)
    levels = np.array([0.05, 0.5, 0.9])
    for include, spread in ((False, std), (True, noisy)):
        quantiles = gp.predict_quantile(X, levels, include_noise=include)
        compare(f"quantiles, noise {include}", quantiles, mean[:, None] + spread[:, None] * norm.ppf(levels), of_mean)
    noise = gp.predict(X, return_cov=True, include_noise=True)[1] - covariance
    compare("noise of the covariance", np.diag(noise), noisy**2 - std**2, 2 * of_variance)
    at = mean + 0.7 * noisy
    error = of_variance / noisy.min() ** 2 + of_mean / noisy.min()
    compare("log density", gp.predictive_log_density(X, at), norm.logpdf(at, mean, noisy), error)
    draws = gp.sample_y(X, SAMPLES, random_state=4)
    deviation = np.sqrt(np.diag(covariance))
    compare("mean of samples", draws.mean(1), mean, ERRORS * deviation / SAMPLES**0.5 + of_mean)
    pairs = np.sqrt((deviation[:, None] ** 2 * deviation**2 + covariance**2) / SAMPLES)
    # functions sampled by random features of the prior have a variance of their own
    allowed = ERRORS * pairs + 0.1 * deviation[:, None] * deviation + of_variance
    compare("covariance of samples", np.cov(draws), covariance, allowed)
    return found


@pytest.mark.few(20)
@pytest.mark.parametrize(
    ("name", "cell"),
    [(name, CELLS[one]) for k, name in enumerate(INFERENCES) for one in (2 * (k % 2), 1 + k // 2 % 2 * 2)],
    ids=lambda one: one if isinstance(one, str) else "-".join(map(str, one)),
)
@pytest.mark.filterwarnings("ignore:Weights of relevance vectors")  # of float32, for which the fit takes float64
@pytest.mark.filterwarnings("ignore:.*(latent function|grid)")  # few functions or nodes, of which these fits say so
def test_all_answers_agree(name, cell):
    kernel, mean, dtype, n, d = cell
    X, y, new = table(n, d)
    dtype = "float64" if name.startswith("grid") else dtype
    gp = GPRegressor(KERNELS[kernel](), INFERENCES[name](), mean=mean, dtype=dtype).fit(X, y)
    assert not disagreements(gp, new)


@pytest.mark.slow
def test_the_comparison_finds_variances_from_few_samples():
    """The control: 32 samples know a standard deviation within some 12 %."""
    X, y, new = table(SMALL, 3)
    gp = GPRegressor(inference=inference.Grid(size=9, exact_nodes=0)).fit(X, y)
    assert any("diagonal" in line for line in disagreements(gp, new))
    assert "from 32 posterior samples, standard error 25%" in gp.describe()
