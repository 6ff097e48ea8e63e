"""Invalid and unusual tables and arguments: each ends in a clear error or in a right answer."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, gradients, inference, kernels, optimization, solvers
from gigagp.errors import InvalidInputError, NotPositiveDefiniteError
from helpers import dense_posterior, draw_targets, points

X = points(60, 3).numpy()
y = draw_targets(kernels.Matern(1.5), torch.from_numpy(X), 0.05)[:, 0].numpy()
X_NEW = points(15, 3, seed=4).numpy()
ITERATIVE = inference.Iterative(n_samples=8)
BOTH = pytest.mark.parametrize("method", [inference.Exact(), ITERATIVE], ids=["exact", "iterative"])


def spoiled(value, row=7, column=2):
    bad = X.copy()
    bad[row, column] = value
    return bad


# Cells ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "what"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
def test_cells_that_are_not_finite_are_named(value, what):
    with pytest.raises(InvalidInputError, match=rf"X must be finite; got {what} in column 2, row 7 .*1 such cells"):
        GPRegressor().fit(spoiled(value), y)
    bad_y = y.copy()
    bad_y[5] = value
    with pytest.raises(InvalidInputError, match=rf"y must be finite; got {what} in row 5"):
        GPRegressor().fit(X, bad_y)
    two = np.column_stack([y, bad_y])
    with pytest.raises(InvalidInputError, match=rf"y must be finite; got {what} in column 1, row 5"):
        GPRegressor().fit(X, two)
    gp = GPRegressor(optimizer=None).fit(X, y)
    for ask in (gp.predict, gp.sample_y, gp.sample_functions(1)):
        with pytest.raises(InvalidInputError, match=rf"X must be finite; got {what} in column 2, row 7"):
            ask(spoiled(value))


def test_columns_with_names_are_named():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(spoiled(np.nan), columns=["height", "width", "depth"])
    with pytest.raises(InvalidInputError, match="NaN in column 'depth', row 7"):
        GPRegressor().fit(frame, y)


def test_text_and_other_things_that_are_no_numbers():
    words = X.astype(object)
    words[3, 1] = "tall"
    with pytest.raises(ValueError, match="X must hold real numbers; got the text 'tall' in column 1, row 3"):
        GPRegressor().fit(words, y)
    with pytest.raises(ValueError, match="y must hold real numbers; got the text 'a' in row 0"):
        GPRegressor().fit(X, np.array(["a", "b"] * 30, dtype=object))
    with pytest.raises(ValueError, match="Complex data not supported"):
        GPRegressor().fit(X + 1j, y)
    with pytest.raises(ValueError, match="Complex data not supported"):
        GPRegressor().fit(X, y + 1j)
    with pytest.raises(ValueError, match="the target y is None"):
        GPRegressor().fit(X, None)


def test_numbers_as_objects_are_numbers():
    gp = GPRegressor(optimizer=None)
    expected = gp.fit(X, y).predict(X_NEW)
    np.testing.assert_array_equal(gp.fit(X.astype(object), list(y)).predict(X_NEW.tolist()), expected)


# Shapes ---------------------------------------------------------------------------------------------------------------


def test_tables_of_the_wrong_shape():
    for rows in (0, 1):
        with pytest.raises(ValueError, match=f"{rows} sample"):
            GPRegressor().fit(X[:rows], y[:rows])
    with pytest.raises(ValueError, match=r"0 feature\(s\)"):
        GPRegressor().fit(X[:, :0], y)
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[60, 59\]"):
        GPRegressor().fit(X, y[:-1])
    with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
        GPRegressor().fit(X[:, 0], y)
    with pytest.raises(ValueError, match="Expected 2D array, got 3D"):
        GPRegressor().fit(X[:, :, None], y)


def test_new_tables_have_to_match():
    gp = GPRegressor(optimizer=None).fit(X, y)
    for wrong in (np.hstack([X, X]), X[:, :2]):
        for ask in (gp.predict, gp.sample_y, gp.sample_functions(1)):
            with pytest.raises(ValueError, match="GPRegressor is expecting 3 features as input"):
                ask(wrong)
    for wrong in (5.0, X[0], X[:0]):
        for ask in (gp.predict, gp.sample_y):
            with pytest.raises(ValueError, match=r"2D array|0 sample"):
                ask(wrong)


def test_asking_before_fitting():
    gp = GPRegressor(kernels.Matern(nu=1.5))
    for ask in (gp.describe, gp.log_marginal_likelihood):  # predictions come from the prior
        with pytest.raises(ValueError, match="not fitted"):
            ask()


@BOTH
def test_two_rows_are_enough(method):
    gp = GPRegressor(kernels.Matern(nu=1.5), inference=method).fit(X[:2], y[:2])
    mean, std = gp.predict(X_NEW, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


# Right answers from odd tables ----------------------------------------------------------------------------------------


@BOTH
def test_constant_columns_change_nothing(method):
    wide, wide_new = np.insert(X, 1, 0.1, axis=1), np.insert(X_NEW, 1, 0.1, axis=1)
    kernel = kernels.Matern(1.5, [1.0, 1.3, 0.8])
    wide_kernel = kernels.Matern(1.5, [1.0, 77.0, 1.3, 0.8])
    expected = GPRegressor(kernel, method, None).fit(X, y).predict(X_NEW, return_std=True, variance="solve")
    found = GPRegressor(wide_kernel, method, None).fit(wide, y).predict(wide_new, return_std=True, variance="solve")
    np.testing.assert_allclose(found, expected, atol=1e-9 if method == inference.Exact() else 5e-3)
    learned = GPRegressor(kernels.Matern(nu=1.5), inference=method).fit(wide, y)
    assert learned.score(wide, y) > 0.5


@BOTH
def test_a_constant_target_is_predicted(method):
    for constant in (0.0, 1234.5):
        gp = GPRegressor(kernels.Matern(nu=1.5), inference=method).fit(X, np.full(60, constant))
        mean, std = gp.predict(X_NEW, return_std=True)
        np.testing.assert_allclose(mean, constant, atol=1e-9)
        assert np.isfinite(std).all()
        assert np.isfinite(gp.log_marginal_likelihood().value)


@BOTH
def test_repeated_rows_are_more_information(method):
    """m copies of a row with its targets equal one row with the mean target and the noise divided by m."""
    copies = GPRegressor(kernels.Matern(1.5, 1.0), method, None, "zero", noise_variance=0.3, standardize=False)
    copies.fit(np.repeat(X, 3, axis=0), (y[:, None] + [-0.5, 0.0, 0.5]).ravel())
    expected = dense_posterior(
        kernels.Matern(1.5, 1.0), *(torch.from_numpy(part) for part in (X, y, X_NEW)), noise_variance=0.1
    )
    mean, std = copies.predict(X_NEW, return_std=True, variance="solve")
    slack = 1e-9 if method == inference.Exact() else 3e-3
    np.testing.assert_allclose(mean, expected.mean[:, 0], atol=slack)
    np.testing.assert_allclose(std, expected.covariance.diagonal().sqrt(), atol=slack)


@BOTH
def test_repeated_rows_can_be_learned_from(method):
    """Without noise in the data, the likelihood drives the noise to zero, where H is singular."""
    repeated = np.repeat(X[:30], 3, axis=0)
    gp = GPRegressor(kernels.Matern(nu=1.5), inference=method).fit(repeated, np.sin(repeated[:, 0]))
    assert gp.noise_variance_ > 0
    assert gp.score(repeated, np.sin(repeated[:, 0])) > 0.99


def test_a_singular_matrix_is_a_clear_error():
    repeated = np.repeat(X[:30], 3, axis=0)
    with pytest.raises(NotPositiveDefiniteError, match="Raise noise_variance"):
        GPRegressor(kernels.RBF(), optimizer=None, noise_variance=1e-300).fit(repeated, repeated[:, 0])


@BOTH
def test_integers_and_booleans_are_numbers(method):
    whole = np.column_stack([np.arange(60) % 7, np.arange(60) % 11])
    flags = whole % 2 == 0
    target = np.arange(60) % 5
    for table in (whole, whole.astype(np.int8), whole.astype(np.uint16), flags):
        expected = GPRegressor(inference=method, optimizer=None).fit(table.astype(float), target.astype(float))
        found = GPRegressor(inference=method, optimizer=None).fit(table, target)
        np.testing.assert_array_equal(found.predict(table), expected.predict(table.astype(float)))
    on = GPRegressor(inference=method, optimizer=None).fit(whole, flags[:, 0]).predict(whole)
    assert ((on > 0.5) == flags[:, 0]).mean() > 0.7


@pytest.mark.each
@BOTH
@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e200])
def test_wildly_different_scales_are_standardized(method, scale):
    factors = np.array([scale, 1.0, 1e-6])
    if method == ITERATIVE:  # rounding may change pivots, which only converged solves hide
        method = inference.Iterative(solver=solvers.ConjugateGradients(tolerance=1e-10), n_samples=8)
    settings = {"inference": method, "optimizer": optimization.Adam(steps=2)}
    expected = GPRegressor(**settings).fit(X, y).predict(X_NEW, return_std=True)
    mean, std = GPRegressor(**settings).fit(X * factors, y * scale).predict(X_NEW * factors, return_std=True)
    np.testing.assert_allclose(mean / scale, expected[0], atol=1e-6)
    np.testing.assert_allclose(std / scale, expected[1], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_offsets_are_standardized_in_float64(dtype):
    """Seconds over years, or metres above a distant datum, would lose their digits in float32."""
    offsets = np.array([1.7e9, -6e6, 40.0])
    settings = {"optimizer": None, "dtype": dtype}
    expected = GPRegressor(**settings).fit(X, y).predict(X_NEW)
    found = GPRegressor(**settings).fit(X + offsets, y + 1e6).predict(X_NEW + offsets) - 1e6
    np.testing.assert_allclose(found, expected, atol=1e-5 if dtype == "float64" else 1e-3)


def test_numbers_too_large_to_standardize_are_no_silent_nonsense():
    huge = np.clip(X, -1.7, 1.7) * 1e308
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            mean = GPRegressor(optimizer=None).fit(huge, y).predict(huge)
        except InvalidInputError:
            return
    assert np.isfinite(mean).all()
    assert np.corrcoef(mean, y)[0, 1] > 0.5


@BOTH
def test_more_probes_than_rows(method):
    few = {
        "exact": None,
        "probes": inference.Iterative(gradient=gradients.Pathwise(200, 100), n_samples=300),
        "hutchinson": inference.Iterative(gradient=gradients.Hutchinson(200), n_samples=200, warm_start="previous"),
    }
    for choice in (few["probes"], few["hutchinson"]) if method == ITERATIVE else (method,):
        gp = GPRegressor(kernels.Matern(1.5, 1.0), choice, optimization.Adam(steps=3)).fit(X[:20], y[:20])
        mean, std = gp.predict(X_NEW, return_std=True)
        assert np.isfinite(mean).all()
        assert (std > 0).all()


# Kernels --------------------------------------------------------------------------------------------------------------


@BOTH
def test_a_kernel_with_no_parameters_to_fit(method):
    kernel = kernels.RBF(1.0, 1.0, fixed=True)
    learned = GPRegressor(kernel, method, noise_variance=4.0).fit(X, y)  # only the noise is learned
    assert learned.kernel_ == kernel.bind(3)
    assert learned.noise_variance_ < 1
    known = GPRegressor(kernel, method, noise_variance=np.full(60, 0.1), standardize=False, mean="zero").fit(X, y)
    assert len(known.history_) == 0
    expected = dense_posterior(kernel, *(torch.from_numpy(part) for part in (X, y, X_NEW)), noise_variance=0.1)
    np.testing.assert_allclose(known.predict(X_NEW), expected.mean[:, 0], atol=0.03)  # a tenth of the noise


@BOTH
def test_a_kernel_that_is_noise_alone(method):
    gp = GPRegressor(kernels.White(0.3), method, None, noise_variance=0.2, standardize=False).fit(X, y)
    mean, std = gp.predict(X_NEW, return_std=True, include_noise=True)
    np.testing.assert_allclose(mean, y.mean())
    of_constant = 0.5 / len(y)  # the variance of the mean's constant
    np.testing.assert_allclose(std, np.sqrt(0.5 + of_constant))
    np.testing.assert_allclose(gp.predict(X_NEW, return_std=True)[1], np.sqrt(of_constant))
    known = GPRegressor(kernels.White(0.3), method, None, "zero", 0.2, standardize=False).fit(X, y)
    np.testing.assert_array_equal(known.predict(X_NEW, return_std=True)[1], 0.0)


def test_kernels_that_do_not_fit_the_table():
    with pytest.raises(InvalidInputError, match="columns of RBF must be below 3"):
        GPRegressor(kernels.RBF(columns=[3])).fit(X, y)
    with pytest.raises(InvalidInputError, match="lengthscale of RBF must be one number or 3"):
        GPRegressor(kernels.RBF([1.0, 2.0])).fit(X, y)
    with pytest.raises(
        InvalidInputError,
        match=r'kernel of GPRegressor must be one of gigagp.kernels, "auto", "average", "choose", Chosen or None',
    ):
        GPRegressor("rbf").fit(X, y)


# Arguments ------------------------------------------------------------------------------------------------------------

REFUSED = [
    (
        lambda: GPRegressor(kernels.Matern(nu=1.5), noise_variance=-0.1),
        "noise_variance of GPRegressor must be positive and finite; got -0.1",
    ),
    (
        lambda: GPRegressor(kernels.Matern(nu=1.5), noise_variance=0),
        "noise_variance of GPRegressor must be positive and finite; got 0.0",
    ),
    (
        lambda: GPRegressor(kernels.Matern(nu=1.5), noise_variance=np.nan),
        "noise_variance of GPRegressor must be positive and finite; got nan",
    ),
    (
        lambda: GPRegressor(kernels.Matern(nu=1.5), noise_variance=np.r_[np.ones(59), -2.0]),
        "must be positive and finite; got -2.0",
    ),
    (
        lambda: GPRegressor(kernels.Matern(nu=1.5), noise_variance=np.ones(59)),
        r"must have shape \(\) or \(60,\), one for each row; got \(59,\)",
    ),
    (lambda: GPRegressor(kernels.Matern(nu=1.5), noise_variance=np.ones((60, 1))), r"must have shape \(\) or \(60,\)"),
    (
        lambda: GPRegressor(kernels.Matern(nu=1.5), noise_variance="low"),
        "noise_variance of GPRegressor must hold real numbers; got the text 'low'",
    ),
    (
        lambda: GPRegressor(kernels.Matern(nu=1.5), inference="exactly"),
        'inference of GPRegressor must be "auto" or one of gigagp.inference',
    ),
    (
        lambda: GPRegressor(kernels.Matern(nu=1.5), inference=inference.Iterative),
        'inference of GPRegressor must be "auto" or one of',
    ),
    (
        lambda: GPRegressor(kernels.Matern(nu=1.5), optimizer="adam"),
        'optimizer of GPRegressor must be "auto", None or one of',
    ),
    (lambda: GPRegressor(kernels.Matern(nu=1.5), mean="quadratic"), "mean of GPRegressor must be one of"),
    (
        lambda: GPRegressor(kernels.Matern(nu=1.5), mean=lambda X: X),
        r"A mean function must return 60 finite numbers .* got shape \(60, 3\)",
    ),
    (
        lambda: GPRegressor(kernels.Matern(nu=1.5), mean=lambda X: X[:, 0] / 0),
        "A mean function must return 60 finite numbers",
    ),
    (
        lambda: GPRegressor(kernels.Matern(nu=1.5), dtype="float16"),
        'dtype of GPRegressor must be "float64", "float32" or "mixed"; got \'float16\'',
    ),
    (
        lambda: GPRegressor(kernels.Matern(nu=1.5), device="abacus"),
        'device of GPRegressor must be "auto", "cpu" or "cuda"; got \'abacus\'',
    ),
    (lambda: GPRegressor(kernels.Matern(nu=1.5), memory_budget="lots"), "memory_budget must be bytes or a string"),
    (
        lambda: GPRegressor(kernels.Matern(nu=1.5), memory_budget=0),
        "memory_budget of GPRegressor must be a positive number",
    ),
    (lambda: GPRegressor(kernels.Matern(nu=1.5), verbose=-1), "verbose of GPRegressor must be 0"),
    (
        lambda: GPRegressor(kernels.Matern(nu=1.5), random_state="seed"),
        "random_state of GPRegressor must be None, an int",
    ),
    (lambda: kernels.RBF(lengthscale=-1.0), "lengthscale of RBF must be positive and finite"),
    (lambda: kernels.RBF(variance=0.0), "variance of RBF must be positive and finite"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_arguments_are_refused_before_any_work(make, message, monkeypatch):
    def no_work(*arguments):
        raise AssertionError

    monkeypatch.setattr(inference.Exact, "objective", no_work)
    monkeypatch.setattr(inference.Iterative, "objective", no_work)

    def use():
        made = make()
        if isinstance(made, GPRegressor):
            with np.errstate(all="ignore"):
                made.fit(X, y)

    with pytest.raises(InvalidInputError, match=message):
        use()


def test_contradictions_are_refused():
    gp = GPRegressor(optimizer=None).fit(X, y)
    with pytest.raises(InvalidInputError, match=r"return_std and return_cov .* cannot both be True"):
        gp.predict(X, return_std=True, return_cov=True)
    with pytest.raises(InvalidInputError, match=r'variance of GPRegressor.predict must be "auto"'):
        gp.predict(X, return_std=True, variance="exact")
    with pytest.raises(InvalidInputError, match=r"as an array needs .*one target, or standardize=False"):
        GPRegressor(noise_variance=np.ones(60), outputs="shared").fit(X, np.column_stack([y, y]))
    with pytest.raises(InvalidInputError, match=r"LBFGS needs a deterministic objective.*warm_start=True"):
        GPRegressor(inference=inference.Iterative(warm_start=False), optimizer=optimization.LBFGS()).fit(X, y)
