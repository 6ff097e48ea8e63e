"""Leave-one-out predictions against fits without the row, for every inference that has them."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

import gigagp
from engines import needs_extension
from gigagp import GPClassifier, GPRegressor, inference, kernels
from gigagp.errors import InvalidInputError
from gigagp.inference.iterative.pathwise_posterior import PathwisePosterior
from gigagp.model.likelihoods import StudentT
from gigagp.neighbours.folds import random_folds


def rows(n: int = 80, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return clumped rows with duplicates, a gap and badly scaled inputs."""
    rng = np.random.default_rng(seed)
    X = np.concatenate([rng.normal(size=(n // 2, 2)) * 0.1, rng.uniform(2, 5, size=(n - n // 2 - 4, 2))])
    X = np.concatenate([X, X[:4]])
    y = np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.2 * rng.normal(size=n)
    return X, 7.0 + 30.0 * y


def slope(X: np.ndarray) -> np.ndarray:
    return 3 * X[:, 0]


def fixed(method: object, mean: object = "constant", **options: object) -> GPRegressor:
    kernel = kernels.Matern(1.5, lengthscale=[1.0, 2.0], variance=900.0)
    return GPRegressor(kernel, method, noise_variance=40.0, mean=mean, optimizer=None, standardize=False, **options)


METHODS = {
    "exact": inference.Exact(),
    "vecchia": inference.Vecchia(79, 79),
    "iterative": inference.Iterative(n_samples=64),
}


def by_hand(mean: object, X: np.ndarray, y: np.ndarray, noise: object = None) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations of rows from exact fits without them."""
    found = []
    for row in range(len(y)):
        rest = np.arange(len(y)) != row
        gp = fixed(inference.Exact(), mean)
        if noise is not None:
            gp.set_params(noise_variance=noise[rest])
        gp.fit(X[rest], y[rest])
        m, s = gp.predict(X[[row]], return_std=True, include_noise=noise is None)
        found.append((m[0], s[0] if noise is None else np.sqrt(s[0] ** 2 + noise[row])))
    return tuple(np.array(found).T)


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
def test_left_out_folds_are_equal_to_fits_without_them(mean):
    X, y = rows(41)
    gp = fixed(inference.Exact(), mean).fit(X, y)
    folds = random_folds(41, 4)
    assert sorted(len(one.rows) for one in folds) == [10, 10, 10, 11]
    folds[1] = folds[1]._replace(n_scored=3)  # as of a patch whose other rows are left out with them
    found = gp.posterior_.left_out_folds(folds)
    scored = torch.cat([one.scored for one in folds])
    for part in (one.rows for one in folds):
        rest = np.setdiff1d(np.arange(41), part)
        m, s = (
            fixed(inference.Exact(), mean).fit(X[rest], y[rest]).predict(X[part], return_std=True, include_noise=True)
        )
        own = torch.isin(scored, part)
        some = np.arange(int(own.sum()))
        np.testing.assert_allclose(found.mean[own, 0], m[some], rtol=1e-7)
        np.testing.assert_allclose(found.variance[own].sqrt(), s[some], rtol=1e-7)
        expected = norm.logpdf(y[part], m, s)[some]
        np.testing.assert_allclose(found.log_density[own, 0], expected, rtol=1e-7)
    alone = random_folds(41, 41)
    order = torch.cat([one.rows for one in alone])
    np.testing.assert_allclose(
        gp.posterior_.left_out_folds(alone).mean, gp.posterior_.left_out().mean[order], rtol=1e-9
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("mean", ["zero", "constant", "linear", slope])
@pytest.mark.parametrize("method", METHODS)
def test_equal_to_fits_without_the_row(method, mean):
    X, y = rows()
    found = fixed(METHODS[method], mean).fit(X, y).leave_one_out()
    m, s = by_hand(mean, X, y)
    if method == "iterative":
        assert (found.standard_error > 0).all()
        assert (found.standard_error < 0.2 * found.std).all()
        z = (found.std - s) / found.standard_error
        assert np.abs(z).max() < 5, z
        assert np.sqrt(np.mean(z**2)) < 2
        np.testing.assert_allclose(y - found.mean, (y - m) * (found.std / s) ** 2, atol=0.03 * y.std())
        return
    np.testing.assert_array_equal(found.standard_error, 0)
    np.testing.assert_allclose(found.mean, m, rtol=1e-7)
    np.testing.assert_allclose(found.std, s, rtol=1e-7)
    expected = -0.5 * ((y - m) / s) ** 2 - np.log(s) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(found.log_density, expected, rtol=1e-6)
    wrong = fixed(METHODS[method], mean).fit(X, y).predict(X)  # the control: a row is not predicted from itself
    assert np.abs(wrong - m).max() > 1.0


@pytest.mark.parametrize("method", ["exact", "iterative"])
def test_every_tenth_of_500_rows_is_left_out_by_dense_algebra(method):
    X, y = rows(500)
    found = fixed(METHODS[method]).fit(X, y).leave_one_out()
    kernel = kernels.Matern(1.5, lengthscale=[1.0, 2.0], variance=900.0).bind(2)
    covariance = kernel.block(torch.from_numpy(X), torch.from_numpy(X)).numpy() + 40.0 * np.eye(500)
    tenth = np.arange(0, 500, 10)
    m, s = np.zeros(50), np.zeros(50)
    for k, row in enumerate(tenth):
        rest = np.arange(500) != row
        sides = np.stack([y[rest], np.ones(499), covariance[rest, row]], 1)
        solved = np.linalg.solve(covariance[np.ix_(rest, rest)], sides)
        precision = solved[:, 1].sum()
        constant = solved[:, 0].sum() / precision
        m[k] = constant + covariance[row, rest] @ (solved[:, 0] - solved[:, 1] * constant)
        gap = 1 - covariance[row, rest] @ solved[:, 1]
        s[k] = np.sqrt(covariance[row, row] - covariance[row, rest] @ solved[:, 2] + gap**2 / precision)
    if method == "exact":
        np.testing.assert_allclose(found.mean[tenth], m, rtol=1e-8)
        np.testing.assert_allclose(found.std[tenth], s, rtol=1e-8)
        return
    z = (found.std[tenth] - s) / found.standard_error[tenth]
    assert np.abs(z).max() < 5, z
    assert np.sqrt(np.mean(z**2)) < 2


@pytest.mark.parametrize("method", ["exact", "vecchia"])
def test_known_noise(method):
    X, y = rows(50)
    noise = np.linspace(10.0, 90.0, 50)
    found = fixed(METHODS[method]).set_params(noise_variance=noise).fit(X, y).leave_one_out()
    m, s = by_hand("constant", X, y, noise)
    np.testing.assert_allclose(found.mean, m, rtol=1e-7)
    np.testing.assert_allclose(found.std, s, rtol=1e-7)


def test_vecchia_with_few_neighbours_is_the_dense_answer_of_its_own_approximation():
    X, y = rows()
    gp = fixed(inference.Vecchia(7, 7), "zero").fit(X, y)
    graph = gp.posterior_._graph
    n = len(y)
    whitening = np.zeros((n, n))
    K = gp.kernel_.block(torch.from_numpy(X), torch.from_numpy(X)).numpy() + 40.0 * np.eye(n)
    for row, near in enumerate(graph.neighbours.numpy()):
        near = near[near >= 0]
        b = np.linalg.solve(K[np.ix_(near, near)], K[near, row]) if len(near) else np.zeros(0)
        d = K[row, row] - K[row, near] @ b
        whitening[row, row], whitening[row, near] = d**-0.5, -b * d**-0.5
    precision = whitening.T @ whitening
    found = gp.leave_one_out()
    np.testing.assert_allclose(found.std, np.diag(precision) ** -0.5, rtol=1e-8)
    np.testing.assert_allclose(y - found.mean, precision @ y / np.diag(precision), rtol=1e-6)


def test_standardized_targets_and_several_of_them():
    X, y = rows(60)
    gp = GPRegressor(kernels.Matern(nu=1.5)).fit(X, y)
    found = gp.leave_one_out()
    rest = np.arange(60) != 3
    fixed_there = GPRegressor(gp.kernel_, noise_variance=gp.noise_variance_, optimizer=None, standardize=False)
    m, s = fixed_there.fit(X[rest], y[rest]).predict(X[[3]], return_std=True, include_noise=True)
    assert found.mean[3] == pytest.approx(m[0], rel=1e-6)
    assert found.std[3] == pytest.approx(s[0], rel=1e-6)
    two = GPRegressor(kernels.Matern(nu=1.5)).fit(X, np.stack([y, -3 * y], 1)).leave_one_out()
    assert two.mean.shape == two.std.shape == two.log_density.shape == two.standard_error.shape == (60, 2)
    np.testing.assert_allclose(two.mean[:, 1], -3 * two.mean[:, 0], rtol=1e-6)
    np.testing.assert_allclose(two.std[:, 1], 3 * two.std[:, 0], rtol=1e-9)
    np.testing.assert_allclose(two.log_density[:, 1], two.log_density[:, 0] - np.log(3), rtol=1e-6)


def test_a_transformed_target():
    X, y = rows(60)
    skewed = np.exp(y / 40)
    gp = GPRegressor(kernels.Matern(nu=1.5), target_transform="log").fit(X, skewed)
    found, plain = gp.leave_one_out(), GPRegressor(kernels.Matern(nu=1.5)).fit(X, np.log(skewed)).leave_one_out()
    np.testing.assert_allclose(found.mean, np.exp(plain.mean + plain.std**2 / 2), rtol=1e-5)
    np.testing.assert_allclose(found.std, found.mean * np.sqrt(np.expm1(plain.std**2)), rtol=1e-5)
    np.testing.assert_allclose(found.log_density, plain.log_density - np.log(skewed), rtol=1e-5)


def test_an_average_mixes():
    X, y = rows(60)
    gp = GPRegressor("average").fit(X, y)
    found = gp.leave_one_out(hyperparameters="learned")
    density = np.zeros(60)
    for weight, one in zip(gp.posterior_.weights.tolist(), gp.posterior_.components, strict=True):
        density += weight * np.exp(one.left_out().log_density[:, 0].numpy()) / gp.scaling_.y_scale
    np.testing.assert_allclose(np.exp(found.log_density), density)
    assert np.isfinite(found.std).all()


def test_after_loading(tmp_path):
    X, y = rows(40)
    for method in METHODS.values():
        gp = fixed(method).fit(X, y)
        gp.save(tmp_path / "m.gp")
        for one, other in zip(gigagp.load(tmp_path / "m.gp").leave_one_out(), gp.leave_one_out(), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_two_rows_at_one_place_know_each_other(method):
    X, y = rows(40)
    found = fixed(METHODS[method], "zero").fit(X[[0, 0]], y[:2]).leave_one_out()
    mean, std = y[[1, 0]] * 900 / 940, np.sqrt(940 - 900**2 / 940)
    # what a row's residual is divided by has twice the relative error of the standard deviation; a solve ends at 0.01
    error = 5 * found.standard_error / std + (0.02 if method == "iterative" else 1e-7)
    assert (np.abs(found.std / std - 1) < error).all()
    assert (np.abs(found.mean - mean) < 2 * error * np.abs(y[:2] - mean)).all()


@pytest.mark.parametrize("beside", [pytest.param("neighbours", marks=needs_extension), "samples alone"])
def test_many_samples_make_it_certain(beside):
    """The estimate is unbiased, with and without neighbours, and its error bar is true."""
    X, y = rows(60)
    exact = fixed(inference.Exact()).fit(X, y).posterior_.left_out()
    posterior = fixed(inference.Iterative(n_samples=2000, final_tolerance=1e-9)).fit(X, y).posterior_
    assert isinstance(posterior, PathwisePosterior)
    sharp = posterior.left_out()
    posterior.probe_values = None
    blunt = posterior.left_out()
    found = sharp if beside == "neighbours" else blunt
    z = (exact.variance / found.variance - 1) / found.relative_error
    assert np.abs(z.numpy()).max() < 4.5
    if beside == "neighbours":
        assert (sharp.relative_error < 0.5 * blunt.relative_error).double().mean() > 0.9


@pytest.mark.parametrize(
    "method",
    [
        inference.SparseVariational(10),
        inference.ComputationAware(5),
        inference.Grid(size=30),
        inference.RandomFeatures(),
    ],
)
def test_others_refuse(method):
    X, y = rows(40)
    with pytest.raises(InvalidInputError, match="leave_one_out of GPRegressor needs"):
        fixed(method).fit(X, y).leave_one_out()
    assert not hasattr(GPClassifier(), "leave_one_out")


def test_other_noise_by_laplace_has_that_of_gaussian_noise_as_its_limit():
    X, y = rows(40)
    kernel = kernels.Matern(1.5, 1.0, float(y.var()))  # in the data's own units, which differ by their scaling
    settings = {"noise_variance": 0.05 * float(y.var()), "optimizer": None}
    exact = GPRegressor(kernel, inference.Exact(), **settings).fit(X, y).leave_one_out()
    wide, near = (
        GPRegressor(kernel, inference.Vecchia(40), likelihood=StudentT(df), **settings).fit(X, y).leave_one_out()
        for df in (1e6, 3.0)
    )
    for one, other in zip(exact, wide, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-3)
    assert np.abs(near.std - exact.std).max() > 1e-3  # the control


@pytest.mark.parametrize("method", METHODS)
def test_a_row_that_alone_determines_the_mean_is_refused(method):
    X, y = rows()
    X = np.column_stack([X[:, 0], np.zeros(80)])
    X[17, 1] = 1.0
    gp = fixed(METHODS[method], "linear").fit(X, y)
    with pytest.raises(InvalidInputError, match="Without row 17"):
        gp.leave_one_out()
    X[18, 1] = 0.3  # now the slope is known without either
    assert fixed(METHODS[method], "linear").fit(X, y).leave_one_out().std.max() < 1e3
    X[:, 1] = 1.0  # never known, with or without a row
    assert fixed(METHODS[method], "linear").fit(X, y).leave_one_out().std.max() < 1e3


def test_as_many_rows_as_coefficients_are_refused():
    X, y = rows(8)
    with pytest.raises(InvalidInputError, match=r"Without row 0 .* 3 such row"):
        fixed(inference.Exact(), "linear").fit(X[:3], y[:3]).leave_one_out()
