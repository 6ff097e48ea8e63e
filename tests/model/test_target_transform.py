"""Transforms of the target: inverses, derivatives, answers in the target's units, and how they are learned."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import trapezoid
from scipy.special import ndtri
from sklearn.base import clone

import gigagp
from gigagp import GPRegressor, inference, kernels, load
from gigagp.errors import InvalidInputError, NonFiniteError
from gigagp.estimators.arguments import Arguments
from gigagp.estimators.choices import transform_learning
from gigagp.model.target_transform import Log, NoTransform, Spline, TargetTransform, YeoJohnson
from gigagp.model.transformed_answers import covariance_of, function_values, log_density, moments

SPLINE = Spline(targets=(-2.0, -1.0, 0.5, 0.6, 3.0, 40.0), values=(-3.0, -0.5, 0.0, 1.0, 1.5, 2.0))
TRANSFORMS = {
    "log": Log(),
    "power 0": YeoJohnson(power=0.0, centre=1.0, scale=2.0),
    "power 0.3": YeoJohnson(power=0.3, centre=-5.0, scale=0.1),
    "power 1": YeoJohnson(power=1.0, centre=1e6, scale=10.0),
    "power 1.9": YeoJohnson(power=1.9),
    "power 2": YeoJohnson(power=2.0),
    "spline": SPLINE,
    "line": Spline(),
}


def targets(transform):
    """Return targets from the middle to far in the tails."""
    if isinstance(transform, Log):
        return np.exp(np.linspace(-300, 300, 401))
    unit, centre = (transform.scale, transform.centre) if isinstance(transform, YeoJohnson) else (1.0, 0.0)
    tails = 10 ** np.linspace(-6, 6, 200)
    return centre + unit * np.concatenate([-tails[::-1], [0.0], tails, [-2.0, -1.0, 0.5, 0.6, 3.0, 40.0]])


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_transform_is_increasing_and_has_an_inverse(transform):
    y = np.unique(targets(transform))
    z = transform.forward(y)
    assert (np.diff(z) > 0).all()
    back = transform.inverse(z)
    unit = transform.scale if isinstance(transform, YeoJohnson) else 1e-12
    # A number of z has 16 digits, of which the derivative leaves those of y.
    lost = np.abs(z) * np.exp(-transform.log_derivative(y))
    assert (np.abs(back - y) <= 1e-13 * (np.abs(y) + unit + lost) * 50).all()


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_the_derivative_is_that_of_finite_differences(transform):
    y = targets(transform)
    y = y[np.abs(np.log(np.abs(y) + 1e-300)) < 8] if not isinstance(transform, YeoJohnson) else y[60:-60]
    unit = transform.scale if isinstance(transform, YeoJohnson) else 1.0
    step = 1e-6 * (np.abs(y) if isinstance(transform, Log) else unit + np.abs(y - getattr(transform, "centre", 0.0)))
    found = (transform.forward(y + step) - transform.forward(y - step)) / (2 * step)
    noise = 1e-9 * np.abs(transform.forward(y)) / step * 1e-6
    assert np.allclose(found, np.exp(transform.log_derivative(y)), rtol=2e-4, atol=noise.max())


def test_a_power_of_one_and_a_line_change_nothing():
    y = np.linspace(-50, 50, 101)
    for same in (NoTransform(), YeoJohnson(power=1.0, centre=3.0, scale=7.0), Spline()):
        assert np.allclose(same.forward(y), y, rtol=1e-14, atol=1e-13)
        assert np.allclose(same.log_derivative(y), 0.0, atol=1e-14)


def test_a_logarithm_refuses_zero_and_says_where():
    with pytest.raises(InvalidInputError, match=r"positive .* in row 3 \(2 such"):
        Log().check(np.array([1.0, 2.0, 0.0, -1.0]))


#: Latent mean, latent variance and noise variance, in units of z.
CASES = [(0.0, 0.5, 0.3), (1.5, 0.01, 1.0), (-2.0, 1.0, 1e-6), (2.0, 0.0, 0.5)]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("transform", [Log(), TRANSFORMS["power 0"], YeoJohnson(power=0.5), SPLINE])
@pytest.mark.parametrize(("mean", "variance", "noise"), CASES)
def test_moments_are_those_of_many_draws(transform, mean, variance, noise):
    rng = np.random.default_rng(0)
    n = 400_000
    f = mean + np.sqrt(variance) * rng.normal(size=n)
    y = transform.inverse(f + np.sqrt(noise) * rng.normal(size=n))
    h = function_values(transform, f, np.full(n, noise))
    found = moments(transform, *(np.array([v]) for v in (mean, variance, noise)))
    assert abs(y.mean() - found[0][0]) < 4 * y.std() / np.sqrt(n) + 1e-12
    for draws, answer in ((h, found[1][0]), (y, found[2][0])):
        squares = np.square(draws - draws.mean())
        assert abs(squares.mean() - answer) < 4 * squares.std() / np.sqrt(n) + 1e-3 * answer + 1e-12
    # the control: what a linear map at the mean would give
    if variance + noise > 0.5 and transform is not SPLINE:
        wrong = transform.inverse(np.array([mean]))[0]
        assert abs(y.mean() - wrong) > 10 * y.std() / np.sqrt(n)


def test_the_quadrature_gives_the_closed_forms_of_a_logarithm():
    # A power of 0 is log(1 + y), of which the closed forms are known where z is far above 0.
    given = np.array([50.0, 200.0, 30.0]), np.array([1.0, 2.0, 4.0]), np.array([1e-8, 1.0, 0.1])
    closed, found = moments(Log(), *given), moments(YeoJohnson(power=0.0), *given)
    for one, other in zip(found, closed, strict=True):
        assert np.allclose(one, other, rtol=1e-8)


STEP = 0.1
NODES = STEP * np.arange(-420, 421)
ROOTS = np.sqrt(STEP / np.sqrt(2 * np.pi)) * np.exp(-(NODES**2) / 4)  # twice as a factor: once would leave float64


def by_fine_rule(transform, mean, variance, noise):
    """Return the moments of h(f) and of a measurement by sums over 841 values of f and as many of the noise."""
    measured = transform.inverse(mean + np.sqrt(variance + noise) * NODES)
    inner = transform.inverse(mean + np.sqrt(variance) * NODES[:, None] + np.sqrt(noise) * NODES)
    h = (inner * ROOTS) @ ROOTS
    centre = (measured * ROOTS) @ ROOTS
    return centre, *(np.square((one - centre) * ROOTS).sum() for one in (h, measured))


@pytest.mark.few(6)
@pytest.mark.parametrize("power", [0.0, 1e-6, 0.5, 1.0, 1.6, 2.0])
@pytest.mark.parametrize("size", [0.3, 2.0, 6.0])
def test_moments_of_heavy_tails_are_those_of_a_fine_rule(power, size):
    """With a power of 0 or 2 most of a variance comes from 2 s deviations from the mean, for a deviation of s."""
    transform = YeoJohnson(power=power, centre=0.5, scale=3.0)
    for mean, share in ((0.5, 0.9), (-4.0, 0.5), (10.0, 0.1)):
        whole = (3.0 * size) ** 2
        given = mean, share * whole, (1 - share) * whole
        expected = by_fine_rule(transform, *given)
        found = [one[0] for one in moments(transform, *(np.array([one]) for one in given))]
        assert abs(found[0] - expected[0]) < 1e-4 * np.sqrt(expected[2])
        assert np.allclose(found[1:], expected[1:], rtol=2e-4)
    if size == 6.0 and power in (0.0, 2.0):  # the control: nodes where most of the probability is
        places, weights = np.polynomial.hermite_e.hermegauss(32)
        weights /= weights.sum()
        values = transform.inverse(mean + np.sqrt(whole) * places)
        assert np.square(values - values @ weights) @ weights < 0.5 * expected[2]


@pytest.mark.few(5)
@pytest.mark.parametrize("transform", [YeoJohnson(power=p, centre=0.2) for p in (0.0, 0.3, 1.6, 2.0)] + [SPLINE])
@pytest.mark.parametrize("noise", [0.01, 1.0, 30.0])
def test_function_values_are_right_to_a_small_share_of_a_deviation(transform, noise):
    f = np.linspace(-9, 9, 301)
    places = np.arange(-30, 30, 1 / 100)
    weights = np.exp(-(places**2) / 2) / np.sqrt(2 * np.pi) / 100
    measured = transform.inverse(f[:, None] + np.sqrt(noise) * places) - transform.inverse(f)[:, None]
    mean = measured @ weights
    deviation = np.sqrt(np.square(measured - mean[:, None]) @ weights)
    found = function_values(transform, f, np.array(noise))
    assert (np.abs(found - transform.inverse(f) - mean) < 4e-3 * deviation).all()
    alone = function_values(transform, f[40:41], np.array(noise))
    assert np.allclose(found[40], alone, rtol=1e-12, atol=1e-12 * deviation[40])  # other rounding of a product


def test_variances_beyond_float64_are_not_numbers():
    given = np.array([0.0, 0.0]), np.array([4.0, 900.0]), np.array([0.1, 0.1])
    mean, of_mean, whole = moments(YeoJohnson(power=0.0), *given)
    assert np.isfinite([mean[0], of_mean[0], whole[0]]).all()
    assert not np.isfinite([mean[1], of_mean[1], whole[1]]).any()


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("size", [0.5, 5.0])
def test_covariances_of_heavy_tails_are_those_of_a_fine_rule(size):
    transform = YeoJohnson(power=0.0)
    mean, noise = np.array([0.3, -1.0]), np.array([0.1, 0.4])
    covariance = size * np.array([[1.0, 0.7], [0.7, 2.0]])
    found = covariance_of(transform, mean, covariance, noise)
    root = np.linalg.cholesky(covariance)
    first = function_values(transform, mean[0] + root[0, 0] * NODES, np.full(len(NODES), noise[0]))
    both = mean[1] + root[1, 0] * NODES[:, None] + root[1, 1] * NODES
    second = (function_values(transform, both, np.full(both.shape, noise[1])) * ROOTS) @ ROOTS
    expected = ((first - (first * ROOTS) @ ROOTS) * ROOTS) @ ((second - (second * ROOTS) @ ROOTS) * ROOTS)
    assert np.isclose(found[0, 1], expected, rtol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("transform", [Log(), YeoJohnson(power=0.2), SPLINE])
def test_covariances_are_those_of_many_draws(transform):
    rng = np.random.default_rng(1)
    mean, noise = np.array([0.0, 1.0, -0.5]), np.array([0.2, 0.1, 0.2])
    root = np.array([[0.6, 0.0, 0.0], [0.5, 0.3, 0.0], [-0.4, 0.2, 0.1]])
    covariance = root @ root.T
    f = mean + rng.normal(size=(200_000, 3)) @ root.T
    h = np.stack([function_values(transform, f[:, j], np.full(len(f), noise[j])) for j in range(3)], 1)
    found = covariance_of(transform, mean, covariance, noise)
    assert np.allclose(np.diag(found), moments(transform, mean, np.diag(covariance), noise)[1], rtol=1e-10)
    assert np.linalg.eigvalsh(found).min() > 0
    centred = h - h.mean(0)
    for i in range(3):
        for j in range(3):
            products = centred[:, i] * centred[:, j]
            assert abs(products.mean() - found[i, j]) < 4 * products.std() / np.sqrt(len(f)) + 1e-3 * abs(found[i, j])


def test_overflow_is_an_error_and_no_number():
    X, y = skewed(60)
    gp = GPRegressor(kernels.Linear(), target_transform="log", optimizer=None, mean="linear").fit(X, y**20)
    with pytest.raises(NonFiniteError):
        gp.predict(1e4 * np.ones((1, 2)))


def skewed(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.exp(np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.3 * rng.normal(size=n))


KINDS = ("log", "yeo-johnson", "spline")


@pytest.fixture(scope="module", params=KINDS)
def fitted(request):
    X, y = skewed(150)
    return GPRegressor(kernels.Matern(nu=1.5), target_transform=request.param).fit(X[:120], y[:120]), X[120:], y[120:]


def test_answers_agree_with_each_other_and_with_draws(fitted):
    gp, X, _ = fitted
    mean, std = gp.predict(X, return_std=True)
    noisy, whole = gp.predict(X, return_std=True, include_noise=True)
    assert np.array_equal(mean, noisy)
    assert np.array_equal(mean, gp.predict(X))
    assert (whole > std).all()
    _, covariance = gp.predict(X, return_cov=True)
    assert np.allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-6)
    assert np.allclose(np.diag(gp.predict(X, return_cov=True, include_noise=True)[1]), whole**2, rtol=1e-6)
    draws = gp.sample_y(X, 4000, random_state=1)
    assert (np.abs(draws.mean(1) - mean) < 4.5 * std / np.sqrt(4000)).all()
    assert np.allclose(draws.std(1), std, rtol=0.15)
    functions = gp.sample_functions(500, random_state=1)(X)
    assert (np.abs(functions.mean(1) - mean) < 6 * std / np.sqrt(500) + 0.02 * mean).all()


def test_quantiles_are_exact(fitted):
    gp, X, _ = fitted
    transform, scaling = gp.target_transform_, gp.scaling_
    points = torch.from_numpy(scaling.inputs(X))
    centre, variance = (part.numpy() for part in gp.posterior_.mean_and_variance(points))
    noise = float(gp.posterior_.noise_at(points)[0])
    levels = np.array([0.001, 0.25, 0.5, 0.975])
    z = scaling.y_centre + scaling.y_scale * (centre + np.sqrt(variance + noise)[:, None] * ndtri(levels))
    found = gp.predict_quantile(X, levels)
    assert np.allclose(found, transform.inverse(z), rtol=1e-10)
    assert np.array_equal(gp.predict_quantile(X, 0.25), found[:, 1])
    assert (np.diff(found, axis=1) > 0).all()
    latent = gp.predict_quantile(X, levels, include_noise=False)
    assert (np.ptp(latent, axis=1) < np.ptp(found, axis=1)).all()
    draws = gp.sample_y(X, 4000, random_state=2)
    shares = (draws <= latent[:, [1]]).mean(1)
    assert np.allclose(shares, 0.25, atol=4.5 * np.sqrt(0.25 * 0.75 / 4000))


def test_the_density_integrates_to_one_and_is_that_of_quantiles(fitted):
    gp, X, _ = fitted
    levels = np.linspace(0.001, 0.999, 999)
    y = gp.predict_quantile(X[:1], levels)[0]
    density = np.exp(gp.predictive_log_density(np.repeat(X[:1], len(y), 0), y))
    assert abs(trapezoid(density, y) - 0.998) < 2e-3


def test_the_likelihood_with_the_jacobian_is_that_of_a_dense_computation(fitted):
    gp, *_ = fitted
    X, y = (part[:120] for part in skewed(150))
    transform = gp.target_transform_
    z = transform.forward(y)
    H = gp.kernel_.block(*(2 * [torch.from_numpy(X)])).numpy() + gp.noise_variance_ * np.eye(120)
    ones = np.ones(120)
    constant = ones @ np.linalg.solve(H, z) / (ones @ np.linalg.solve(H, ones))
    direct = stats.multivariate_normal(constant * ones, H).logpdf(z)
    step = 1e-5 * y
    slopes = (transform.forward(y + step) - transform.forward(y - step)) / (2 * step)
    assert np.isclose(transform.log_derivative(y).sum(), np.log(slopes).sum(), rtol=1e-4, atol=1e-3)
    value = gp.log_marginal_likelihood().value
    assert np.isclose(value - transform.log_derivative(y).sum(), direct, rtol=1e-8)
    scale = gp.scaling_.y_scale[0]
    assert np.isclose(gp.log_marginal_likelihood(standardized=True).value - 120 * np.log(scale), direct, rtol=1e-8)
    gain = float(log_density(transform, y, z, np.ones(120)).sum())
    assert np.isclose(gain, stats.norm.logpdf(0) * 120 + transform.log_derivative(y).sum())


def test_transforms_describe_skewed_targets_better(fitted):
    gp, X, y = fitted
    plain = GPRegressor(kernels.Matern(nu=1.5)).fit(*(part[:120] for part in skewed(150)))
    assert gp.predictive_log_density(X, y).mean() > plain.predictive_log_density(X, y).mean() + 0.2
    assert gp.score(X, y) > 0.3


def test_a_file_gives_the_same_answers(fitted, tmp_path):
    gp, X, y = fitted
    gp.save(tmp_path / "model.gp")
    again = gigagp.load(tmp_path / "model.gp")
    assert again.target_transform_ == gp.target_transform_
    assert again.describe() == gp.describe()
    assert np.array_equal(again.predict(X, return_std=True), gp.predict(X, return_std=True))
    assert np.array_equal(again.predictive_log_density(X, y), gp.predictive_log_density(X, y))


def test_the_same_seed_gives_the_same_bits_and_a_clone_fits_alike(fitted):
    gp, X, _ = fitted
    other = clone(gp)
    assert other.get_params()["target_transform"] == gp.target_transform
    assert not hasattr(other, "target_transform_")
    again = other.fit(*(part[:120] for part in skewed(150)))
    assert again.target_transform_ == gp.target_transform_
    assert np.array_equal(again.predict(X), gp.predict(X))


def test_units_of_the_target_do_not_matter(fitted):
    gp, X, _ = fitted
    train, y = (part[:120] for part in skewed(150))
    other = clone(gp).fit(train, 1e4 * y)
    assert np.allclose(other.predict(X), 1e4 * gp.predict(X), rtol=1e-3)


# ------------------------------------------------------------------------------------------------- learning


def subset(y, X, **settings):
    state = torch.Generator().manual_seed(0).get_state()
    return transform_learning._Rows(
        X, y, Arguments.of(GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | settings)), state
    )


@pytest.mark.parametrize("kind", ["yeo-johnson", "spline"])
def test_a_learned_transform_is_more_likely_than_its_neighbours(kind):
    X, y = skewed(100)
    rows = subset(y, X)
    plain = rows.fit(NoTransform(), None)
    found = transform_learning._learned(rows, plain, kind)
    best = transform_learning._profile(y, found.precision, found.transform)
    if kind == "yeo-johnson":
        others = [YeoJohnson(power=p, centre=found.transform.centre, scale=found.transform.scale) for p in (0.5, 1.0)]
    else:
        x, z = found.transform.targets, np.array(found.transform.values)
        others = [Spline(targets=x, values=tuple(z + 0.3 * (np.arange(len(z)) % 2))) for _ in range(1)]
    assert all(transform_learning._profile(y, found.precision, other) < best for other in others)
    assert found.value > plain.value + 50


def test_leave_one_out_scores_are_those_of_fits_without_a_row():
    X, y = skewed(40)
    rows = subset(y, X, optimizer=None, noise_variance=0.1, standardize=False)
    found = rows.fit(Log(), None)
    for left in (0, 17, 39):
        kept = np.arange(40) != left
        gp = GPRegressor(optimizer=None, noise_variance=0.1, standardize=False, target_transform="log")
        gp.fit(X[kept], y[kept])
        assert np.isclose(gp.predictive_log_density(X[[left]], y[[left]])[0], found.densities[left], rtol=1e-8)


def test_auto_takes_the_logarithm_of_products():
    X, y = skewed(200)
    gp = GPRegressor(kernels.Matern(nu=1.5), target_transform="auto").fit(X, y)
    assert gp.target_transform_.kind == "log"
    assert "auto: +" in gp.describe()


def test_auto_takes_none_of_normal_targets():
    X, y = skewed(200)
    gp, plain = (
        GPRegressor(kernels.Matern(nu=1.5), target_transform="auto").fit(X, np.log(y)),
        GPRegressor(kernels.Matern(nu=1.5)).fit(X, np.log(y)),
    )
    assert gp.target_transform_.kind == "none"
    assert "target        none; auto, on 200 rows; yeo-johnson: " in gp.describe()
    assert "too few" in gp.describe()
    assert np.array_equal(gp.predict(X), plain.predict(X))


@pytest.mark.parametrize(
    ("y", "reason"),
    [
        (np.arange(200.0) % 7 + 1, "only 7 different targets"),
        (np.where(np.arange(200) % 5 == 0, 1.0, skewed(200)[1]), "one target in 20 % of the rows"),
        (np.ones(200), "the targets are constant"),
    ],
)
def test_auto_leaves_targets_with_few_values_alone(y, reason):
    gp = GPRegressor(target_transform="auto", optimizer=None).fit(skewed(200)[0], y)
    assert gp.target_transform_.kind == "none"
    assert reason in gp.describe()


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [*KINDS, "auto"])
def test_constant_targets_stay_constant(kind):
    X, _ = skewed(30)
    gp = GPRegressor(kernels.Matern(nu=1.5), target_transform=kind).fit(X, np.full(30, 7.0))
    mean, std = gp.predict(X, return_std=True)
    assert np.allclose(mean, 7.0, rtol=1e-2)
    assert np.isfinite(std).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("y", [[1.0, 2.0], [1.0, 1.0, 5.0], [1e-140, 2e-140, 5e-140, 1e-139], [1e140, 2e140, 9e140]])
def test_tiny_tables_and_extreme_units(kind, y):
    X = np.arange(len(y), dtype=float)[:, None]
    gp = GPRegressor(target_transform=kind, optimizer=None).fit(X, y)
    assert np.isfinite(gp.predict_quantile(X, [0.1, 0.5, 0.9])).all()


@pytest.mark.parametrize("kind", ["yeo-johnson", "spline", "auto"])
@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_targets_whose_variance_is_beyond_float64_are_refused(kind, unit):
    X, y = skewed(60)
    with pytest.raises(InvalidInputError, match="other units"):
        GPRegressor(target_transform=kind, optimizer=None).fit(X, unit * y)
    log = GPRegressor(target_transform="log", optimizer=None)
    found = log.fit(X, unit * y).predict_quantile(X, 0.5)
    assert np.allclose(found / unit, log.fit(X, y).predict_quantile(X, 0.5), rtol=1e-9)


def test_auto_names_the_test_that_a_transform_fails():
    X, y = skewed(60)
    plain, found = (subset(y, X).fit(one, None) for one in (NoTransform(), Log()))
    assert transform_learning._failing(found, plain) is None
    changes = {
        "too few": {"value": plain.value + 9.0},
        "within its error": {"densities": plain.densities + torch.from_numpy(np.resize([9.0, -8.9], 60))},
        r"RMSE changes by \+5.0 %": {"rmse": 1.05 * plain.rmse},
        "RMSE": {"rmse": np.nan},
    }
    for match, change in changes.items():
        failing = transform_learning._failing(replace(found, **change), plain)
        assert failing is not None
        assert re.search(match, failing)
        chosen = transform_learning._chosen(plain, [replace(found, **change)])
        assert chosen.is_identity
        assert failing in chosen.note


# ---------------------------------------------------------------------------------------- with the rest


def test_none_gives_the_bits_of_a_fit_without_the_argument():
    X, y = skewed(60)
    given, default = (
        GPRegressor(kernels.Matern(nu=1.5), target_transform="none").fit(X, y),
        GPRegressor(kernels.Matern(nu=1.5)).fit(X, y),
    )
    assert default.target_transform_ == NoTransform()
    for one in (given, default):
        assert "target  " not in one.describe()
    assert np.array_equal(given.predict(X, return_std=True), default.predict(X, return_std=True))


@pytest.mark.parametrize(
    "method", [inference.Iterative(), inference.Vecchia(8), inference.SparseVariational(20), inference.Grid(size=12)]
)
def test_other_inferences_answer_in_the_targets_units(method):
    X, y = skewed(120)
    gp = GPRegressor(kernels.Matern(nu=1.5), inference=method, target_transform="log").fit(X, y)
    assert (gp.predict(X) > 0).all()
    low, high = gp.predict_quantile(X, [0.025, 0.975]).T
    assert 0.85 < np.mean((low < y) & (y < high)) <= 1
    assert gp.sample_y(X, 3).shape == (120, 3)


@pytest.mark.parametrize("method", [inference.Vecchia(8), inference.Grid(size=12)])
def test_added_rows_are_transformed(method):
    X, y = skewed(150)
    gp = GPRegressor(kernels.Matern(), method, target_transform="log", optimizer=None, noise_variance=0.1)
    gp.fit(X, y)
    first = gp.predict(X[:5])
    gp.partial_fit(X[:5], 3 * y[:5])
    assert (gp.predict(X[:5]) > first).all()
    with pytest.raises(InvalidInputError, match="y of partial_fit must be positive"):
        gp.partial_fit(X[:1], [-1.0])


def test_validation_scores_are_those_of_the_answers():
    X, y = skewed(150)
    gp = GPRegressor(kernels.Matern(nu=1.5), target_transform="log").fit(
        X[:120], y[:120], validation=(X[120:], y[120:])
    )
    last = gp.history_[-1]
    logs = gp.predictive_log_density(X[120:], y[120:])
    assert abs(last.validation_log_likelihood - logs.mean()) < 0.05
    assert np.isclose(last.validation_rmse, np.sqrt(np.mean((gp.predict(X[120:]) - y[120:]) ** 2)), rtol=0.05)


@pytest.mark.parametrize(
    ("settings", "y", "match"),
    [
        ({"target_transform": "log"}, -1.0, "y must be positive"),
        ({"target_transform": "auto", "likelihood": "student-t"}, 1.0, "with the student-t likelihood"),
        ({"target_transform": "log", "noise_variance": np.full(30, 0.1)}, 1.0, "noise variance of each row"),
        ({"target_transform": "log", "mean": lambda X: X[:, 0]}, 1.0, "a known mean function"),
        ({"target_transform": "log", "mean": "log"}, 1.0, "mean of GPRegressor"),
        ({"target_transform": "square"}, 1.0, "target_transform of GPRegressor must be"),
        ({"target_transform": None}, 1.0, "target_transform of GPRegressor must be"),
    ],
)
def test_what_has_no_meaning_is_refused(settings, y, match):
    X, given = skewed(30)
    with pytest.raises(InvalidInputError, match=match):
        GPRegressor(**settings).fit(X, y * given)


def test_several_targets_streams_parts_and_priors_are_refused():
    X, y = skewed(30)
    gp = GPRegressor(kernels.Matern(nu=1.5), target_transform="log")
    with pytest.raises(InvalidInputError, match="with 2 targets"):
        GPRegressor(target_transform="log", outputs="shared").fit(X, np.stack([y, y], 1))
    with pytest.raises(InvalidInputError, match="with fit_table"):
        gp.fit_table((X, y))
    with pytest.raises(InvalidInputError, match="fit first"):
        gp.predict(X)
    gp.fit(X, y[:, None])
    assert gp.predict(X).shape == (30, 1)
    assert gp.predict(X, return_cov=True)[1].shape == (30, 30, 1)
    assert gp.predict_quantile(X, 0.5).shape == (30, 1)
    assert gp.predict_quantile(X, [0.5]).shape == (30, 1, 1)
    assert gp.predictive_log_density(X, y[:, None]).shape == (30, 1)
    assert gp.sample_y(X, 4).shape == (30, 1, 4)
    with pytest.raises(InvalidInputError, match="return_parts"):
        gp.predict(X, return_parts=True)
    with pytest.raises(InvalidInputError, match="positive"):
        gp.predictive_log_density(X, -y[:, None])


def test_a_file_without_the_jacobian_refuses_the_likelihood_in_own_units(fitted, tmp_path, monkeypatch):
    gp, *_ = fitted
    gp.save(tmp_path / "new.gp")
    assert load(tmp_path / "new.gp").log_marginal_likelihood() == gp.log_marginal_likelihood()
    plain = TargetTransform.to_plain
    monkeypatch.setattr(
        TargetTransform, "to_plain", lambda one: {k: v for k, v in plain(one).items() if k != "log_jacobian"}
    )
    gp.save(tmp_path / "old.gp")
    old = load(tmp_path / "old.gp")
    assert old.log_marginal_likelihood(standardized=True) == gp.log_marginal_likelihood(standardized=True)
    with pytest.raises(InvalidInputError, match="standardized of log_marginal_likelihood must be True for this model"):
        old.log_marginal_likelihood()


@pytest.mark.parametrize("used", [inference.Exact(), inference.RandomFeatures(n_features=40)], ids=["rows", "sums"])
def test_further_rows_add_to_the_likelihood_in_own_units(used):
    X, y = skewed(60)
    settings = {"inference": used, "target_transform": "log", "standardize": False, "mean": "zero"}
    few = GPRegressor(kernels.RBF([0.7]), optimizer=None, noise_variance=0.2, **settings).fit(X[:40], y[:40])
    more = few.condition_on(X[40:], y[40:])
    at_once = GPRegressor(kernels.RBF([0.7]), optimizer=None, noise_variance=0.2, **settings).fit(X, y)
    assert more.log_marginal_likelihood().value == pytest.approx(at_once.log_marginal_likelihood().value, rel=1e-9)
