"""Fits with Student-t noise: every inference, the choice of the noise, answers, files, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.integrate import trapezoid

import gigagp
from gigagp import GPRegressor, inference, kernels, optimization
from gigagp.errors import InvalidInputError, ModelFileError, NotPositiveDefiniteError
from gigagp.estimators.arguments import Arguments
from gigagp.estimators.choices import noise_choice
from gigagp.estimators.choices.noise_choice import choose
from gigagp.model.likelihoods import Gaussian, StudentT
from helpers import generator
from vecchia_cases import killed_at_write


def truth(X):
    return np.sin(2 * X[:, 0]) * np.cos(X[:, 1] / 10)


def measured(n=300, size=5.0, share=0.1, seed=0, law=None):
    """Return rows in clumps and between them, with gross outliers, repeats and inputs of two scales."""
    draw = np.random.default_rng(seed)
    X = np.concatenate([draw.uniform(-3, 3, (n - n // 4, 2)), 0.2 * draw.normal(size=(n // 4, 2)) + 1.0])
    X[:3] = X[3:6]
    X[:, 1] *= 10
    wrong = draw.uniform(size=n) < share
    noise = 0.1 * draw.normal(size=n) if law is None else law.rvs(n, random_state=draw)
    y = truth(X) + noise + np.where(wrong, size * draw.choice([-1, 1], n) * draw.uniform(0.5, 1.5, n), 0.0)
    return X, y, wrong


NEW = measured(200, seed=9)[0]


def error(gp):
    return np.sqrt(np.mean((gp.predict(NEW) - truth(NEW)) ** 2))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "method",
    [
        inference.Exact(),
        inference.Iterative(),
        inference.ComputationAware(150),
        inference.RandomFeatures(),
        inference.SparseVariational(80),
        inference.Grid(60),
    ],
    ids=lambda one: type(one).__name__,
)
def test_every_inference_with_row_noise_finds_the_outliers(method):
    X, y, wrong = measured(400, share=0.1)
    gp = GPRegressor(inference=method, likelihood="student-t").fit(X, y)
    assert (gp.noise_weights_[wrong] < 0.1).mean() > 0.9
    assert (gp.noise_weights_[~wrong] < 0.1).mean() < 0.02
    assert error(gp) < 0.09
    assert isinstance(gp.likelihood_, StudentT)
    assert gp.likelihood_.df < 4
    plain = GPRegressor(kernels.Matern(nu=1.5), inference=method).fit(X, y)
    assert error(plain) > 2 * error(gp)
    assert isinstance(plain.likelihood_, Gaussian)
    with pytest.raises(AttributeError, match="noise_weights_ of GPRegressor needs Student-t noise"):
        _ = plain.noise_weights_


@pytest.mark.parametrize("size", [1e3, 1e9])
def test_what_is_far_off_changes_nothing(size):
    near, far = (GPRegressor(likelihood="student-t").fit(*measured(150, one)[:2]) for one in (100.0, size))
    np.testing.assert_allclose(far.predict(NEW), near.predict(NEW), atol=0.03)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The error bars are too small")  # those of Gaussian noise, the control
def test_intervals_of_heavy_tails_are_calibrated():
    """Noise of Student's law with three degrees of freedom; those of Gaussian noise hold too much in the middle."""
    law, n, inside = stats.t(3, scale=0.3), 600, {}
    for seed in range(4):
        X, y, _ = measured(n, share=0.0, seed=seed, law=law)
        X_new, y_new, _ = measured(1500, share=0.0, seed=50 + seed, law=law)
        for likelihood in ("student-t", "gaussian"):
            gp = GPRegressor(kernels.Matern(nu=1.5), likelihood=likelihood).fit(X, y)
            low, first, third, high = gp.predict_quantile(X_new, [0.025, 0.25, 0.75, 0.975]).T
            found = inside.setdefault(likelihood, [])
            found.append([np.mean((first <= y_new) & (y_new <= third)), np.mean((low <= y_new) & (y_new <= high))])
            inside.setdefault(likelihood + " density", []).append(gp.predictive_log_density(X_new, y_new).mean())
    half, most = np.mean(inside["student-t"], 0)
    # binomial errors of all rows, and the errors of fits to 600 rows, both about a hundredth
    assert half == pytest.approx(0.5, abs=0.035)
    assert most == pytest.approx(0.95, abs=0.015)
    assert np.mean(inside["gaussian"], 0)[0] > 0.57  # the control
    assert np.mean(inside["student-t density"]) > np.mean(inside["gaussian density"]) + 0.05


def test_answers_are_of_one_distribution():
    X, y, _ = measured(150)
    gp = GPRegressor(kernels.Matern(nu=1.5) + kernels.White(0.01), likelihood="student-t", noise_variance=0.02).fit(
        X, y
    )
    levels = np.array([0.01, 0.3, 0.5, 0.9, 0.999])
    found = gp.predict_quantile(NEW[:5], levels)
    assert found.shape == (5, 5)
    for k in range(5):
        grid = np.linspace(found[k, 0], found[k, -1], 4001)
        density = np.exp(gp.predictive_log_density(np.repeat(NEW[k : k + 1], 4001, 0), grid))
        assert trapezoid(density, grid) == pytest.approx(0.989, abs=1e-4)
    np.testing.assert_allclose(found[:, 2], gp.predict(NEW[:5]), atol=1e-8)
    std, whole = (gp.predict(NEW[:5], return_std=True, include_noise=one)[1] for one in (False, True))
    white = gp.kernel_.parameters()["1.variance"].item()
    np.testing.assert_allclose(whole**2 - std**2, gp.noise_variance_ + white, rtol=1e-6)
    df = gp.likelihood_.df
    scale = np.sqrt(gp.noise_variance_ * (df - 2) / df)
    assert f"Student-t with {df:.3g} degrees of freedom and the scale {scale:.4g}" in gp.describe()
    count = int((gp.noise_weights_ < 0.1).sum())
    assert f"{count} rows of 150 have weights below 0.1" in gp.describe()


def test_the_white_part_of_a_kernel_is_counted_once():
    """The second moment of the density is the variance of a measurement: function, white part and Student-t noise."""
    X, y, _ = measured(40)
    kernel = kernels.Matern(nu=1.5) + kernels.White(0.3)
    gp = GPRegressor(kernel, likelihood=StudentT(10.0), noise_variance=0.2, optimizer=None).fit(X, y)
    means, stds = gp.predict(NEW[:2], return_std=True, include_noise=True)
    for point, mean, std in zip(NEW[:2], means, stds, strict=True):
        apart = np.linspace(-40, 40, 4001) * std
        density = np.exp(gp.predictive_log_density(np.repeat(point[None], 4001, 0), mean + apart))
        assert trapezoid(apart**2 * density, apart) == pytest.approx(std**2, rel=1e-4)


@pytest.mark.slow
def test_units_of_the_data():
    X, y, _ = measured(120)
    one, other = (
        GPRegressor(likelihood="student-t").fit(X, scale * y + 7).predict_quantile(NEW, 0.9) for scale in (1, 1e4)
    )
    np.testing.assert_allclose((other - 7) / 1e4, one - 7, atol=1e-5)
    raw = GPRegressor(likelihood="student-t", standardize=False).fit(X, y)
    assert error(raw) < 0.12


def test_given_degrees_of_freedom_and_no_optimizer():
    X, y, wrong = measured(150)
    gp = GPRegressor(likelihood=StudentT(6.0)).fit(X, y)
    assert gp.likelihood_ == StudentT(6.0)
    held = GPRegressor(
        kernels.Matern(1.5, [1.0, 10.0], 1.0), optimizer=None, noise_variance=0.02, likelihood="student-t"
    )
    held.fit(X, y)
    assert held.noise_variance_ == pytest.approx(0.02)
    assert held.likelihood_ == StudentT(4.0)
    assert (held.noise_weights_[wrong] < 0.1).mean() > 0.9
    values = [GPRegressor(likelihood=StudentT(df)).fit(X, y).log_marginal_likelihood().value for df in (3.0, 30.0)]
    assert values[0] > values[1] + 10


# The choice -----------------------------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(3))
def test_auto_leaves_normal_noise_as_it_is(seed):
    X, y, _ = measured(250, share=0.0, seed=seed)
    chosen, plain = (GPRegressor(kernels.Matern(nu=1.5), likelihood=one).fit(X, y) for one in ("auto", "gaussian"))
    assert chosen.likelihood_ == Gaussian()
    np.testing.assert_array_equal(chosen.predict(NEW), plain.predict(NEW))
    assert "noise         Gaussian, auto: a Student-t density of left-out errors gains" in chosen.describe()


@pytest.mark.slow
def test_auto_takes_student_t_noise_where_it_gains():
    X, y, _ = measured(250)
    chosen, robust = (GPRegressor(kernels.Matern(nu=1.5), likelihood=one).fit(X, y) for one in ("auto", "student-t"))
    assert isinstance(chosen.likelihood_, StudentT)
    np.testing.assert_array_equal(chosen.predict(NEW), robust.predict(NEW))
    assert "auto: Student-t noise gains +" in chosen.describe()
    rounded = GPRegressor(kernels.Matern(nu=1.5), likelihood="auto").fit(X, np.round(y))
    assert "of the rows" in rounded.describe() or "different targets" in rounded.describe()


@pytest.mark.parametrize(
    ("settings", "targets", "words"),
    [
        ({"outputs": "shared"}, 2, "one target"),
        ({"noise_variance": np.ones(40)}, 1, "one for each row"),
        ({"target_transform": "auto"}, 1, "target_transform"),
        ({"optimizer": None}, 1, "an optimizer"),
    ],
)
def test_what_auto_needs(settings, targets, words):
    X, y, _ = measured(40)
    with pytest.raises(InvalidInputError, match=f'likelihood="auto" of GPRegressor needs .*{words}'):
        GPRegressor(likelihood="auto", **settings).fit(X, np.stack([y] * targets, 1))


@pytest.mark.slow
def test_the_kernel_is_chosen_with_it():
    X, y, _ = measured(200)
    gp = GPRegressor(kernel="auto", likelihood="student-t").fit(X, y)
    assert gp.kernel_choice_ is not None
    assert error(gp) < 0.09
    far = GPRegressor(kernel="auto", likelihood="student-t", inference=inference.Iterative()).fit(X, y)
    assert error(far) < 0.09


# Files, checkpoints, refusals -----------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("likelihood", ["student-t", "auto", StudentT(5.0)], ids=repr)
@pytest.mark.parametrize("method", [inference.Exact(), inference.Iterative()], ids=lambda one: type(one).__name__)
def test_models_are_saved(likelihood, method, tmp_path):
    X, y, _ = measured(120)
    gp = GPRegressor(kernels.Matern(nu=1.5), likelihood=likelihood, inference=method).fit(X, y)
    gp.save(tmp_path / "model.gp")
    again = gigagp.load(tmp_path / "model.gp")
    assert again.likelihood == likelihood
    assert again.likelihood_ == gp.likelihood_
    np.testing.assert_array_equal(again.predict_quantile(NEW, [0.1, 0.5]), gp.predict_quantile(NEW, [0.1, 0.5]))
    np.testing.assert_array_equal(again.noise_weights_, gp.noise_weights_)
    assert again.noise_variance is None
    assert again.describe().splitlines()[1:3] == gp.describe().splitlines()[1:3]
    again.fit(X, y)


def test_hostile_files(tmp_path):
    X, y, _ = measured(40)
    gp = GPRegressor(likelihood="student-t", optimizer=None).fit(X, y)
    tensors, header = gp._to_state()
    for bad in ({"df": 2.0, "squared_scale": 1.0}, {"df": 3.0}, {"df": 3.0, "squared_scale": -1.0}, 5):
        gigagp.estimators.saving.persistence.save_state(
            tmp_path / "m.gp", "GPRegressor", dict(tensors), {**header, "student": bad}
        )
        with pytest.raises(ModelFileError, match="student"):
            gigagp.load(tmp_path / "m.gp")


def test_a_killed_fit_resumes_to_the_same_bits(tmp_path):
    X, y, _ = measured(60)
    path = tmp_path / "fit.checkpoint"

    def estimator():
        return GPRegressor(optimizer=optimization.Adam(steps=8), likelihood="student-t")

    whole = estimator().fit(X, y)
    with killed_at_write(4):
        estimator().fit(X, y, checkpoint=path)
    np.testing.assert_array_equal(estimator().fit(X, y, checkpoint=path).predict(X), whole.predict(X))


def test_validation_rows_are_scored():
    X, y, _ = measured(120)
    gp = GPRegressor(likelihood="student-t", optimizer=optimization.LBFGS(steps=12)).fit(X, y, validation=(X, y))
    last = gp.history_[-1]
    assert last.validation_rmse == pytest.approx(gigagp.metrics.rmse(y, gp.predict(X)), rel=0.05)
    assert last.validation_log_likelihood == pytest.approx(gp.predictive_log_density(X, y).mean(), abs=0.2)


def test_refusals():
    X, y, _ = measured(40)
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(y=y)
    cases = (
        (
            lambda: GPRegressor(likelihood="student-t", outputs="shared").fit(X, np.stack([y, y], 1)),
            "needs one target",
        ),
        (lambda: GPRegressor(likelihood="student-t", noise_variance=np.ones(40)).fit(X, y), "got one for each row"),
        (lambda: GPRegressor(kernels.RBF() + kernels.White(), likelihood="student-t").fit(X, y), "leave kernels.White"),
        (lambda: GPRegressor(likelihood="student-t", target_transform="log").fit(X, y), "student-t likelihood"),
        (lambda: GPRegressor(kernel="average", likelihood="student-t").fit(X, y), "Gaussian noise"),
        (
            lambda: GPRegressor(likelihood="student-t", inference=inference.QuadruplyStochastic()).fit(X, y),
            "known noise variances",
        ),
        (lambda: GPRegressor(likelihood="auto").fit_table(frame, "y"), "likelihood of GPRegressor for fit_table"),
        (
            lambda: GPRegressor(likelihood="student-t", inference=inference.Grid(10)).fit_table(frame, "y"),
            "fit_table with Student-t noise must be inference.Vecchia",
        ),
    )
    for call, words in cases:
        with pytest.raises(InvalidInputError, match=words):
            call()


@pytest.mark.slow
def test_large_tables_end_with_what_auto_chooses():
    """Beyond the rows of exact inference, also where neighbours end the fit and rows cannot be added."""
    X, y, wrong = measured(3200)
    gp = GPRegressor(likelihood="student-t").fit(X, y)
    assert gp.plan_ is not None
    assert (gp.noise_weights_[wrong] < 0.1).mean() > 0.9
    assert error(gp) < 0.05
    if hasattr(gp, "partial_fit"):
        with pytest.raises(InvalidInputError, match="cannot add rows to a fit with Student-t noise"):
            gp.partial_fit(X[:2], y[:2])


@pytest.mark.few(1)
@pytest.mark.parametrize("wrong", [100.0, 3.0, 2.0])
def test_auto_finds_wrong_targets_that_its_sample_does_not_hold(wrong, monkeypatch):
    X, y, _ = measured(1500, share=0.0)
    y[torch.randperm(1500, generator=generator())[-2:]] = wrong

    def found():
        return choose(
            Arguments.of(GPRegressor(kernels.Matern(nu=1.5), likelihood="auto")), X, y, generator()
        ).likelihood

    assert found() == StudentT()
    monkeypatch.setattr(noise_choice, "_FAR_ERROR", np.inf)  # the control
    assert found() == Gaussian()


@pytest.mark.slow
def test_the_comparison_stays_small_where_many_rows_are_far():
    X, y, _ = measured(5000, share=0.05, size=50.0)
    found = choose(Arguments.of(GPRegressor(kernels.Matern(nu=1.5), likelihood="auto")), X, y, generator())
    assert found.likelihood == StudentT()
    assert int(re.search(r"on (\d+) rows", found.note)[1]) <= 500


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("height", [10.0, 5.0, 2.0])
def test_auto_keeps_a_peak_that_its_sample_does_not_resolve(height, monkeypatch):
    """Rows around those that lie far off have errors alike."""
    draw = np.random.default_rng(2)
    X = draw.uniform(-3, 3, (3000, 2))
    y = np.sin(X[:, 0]) + height * np.exp(-((X - 1) ** 2).sum(1) / 0.03) + 0.05 * draw.normal(size=3000)

    def found():
        return choose(
            Arguments.of(GPRegressor(kernels.Matern(nu=1.5), likelihood="auto")), X, y, generator()
        ).likelihood

    assert found() == Gaussian()
    monkeypatch.setattr(noise_choice, "_ALIKE", np.inf)  # the control
    assert found() == StudentT()


def test_the_comparison_of_rows_that_cannot_be_fitted_is_gaussian(monkeypatch):
    def failing(*_):
        raise NotPositiveDefiniteError("no factor")

    monkeypatch.setattr(noise_choice, "trial", failing)
    X, y, _ = measured(100)
    found = choose(Arguments.of(GPRegressor(kernels.Matern(nu=1.5), likelihood="auto")), X, y, generator())
    assert found.likelihood == Gaussian()
    assert "could not be fitted" in found.note


def test_rows_predicted_from_all_others():
    """Outliers have a low density, and the deviations of all others are of size one."""
    X, y, wrong = measured(200, share=0.1)
    gp = GPRegressor(likelihood="student-t").fit(X, y)
    found = gp.leave_one_out()
    df = gp.likelihood_.df
    assert np.median(found.log_density[wrong]) < np.median(found.log_density[~wrong]) - 3
    assert (found.std**2 > gp.noise_variance_).all()
    scale = np.sqrt(gp.noise_variance_ * (df - 2) / df)
    assert np.median(np.abs(y - found.mean)[~wrong]) < 2 * scale


@pytest.mark.few(2)
@pytest.mark.parametrize("method", [inference.Vecchia(n_neighbors=20), inference.Iterative()])
def test_a_rule_for_kernels_compares_them_by_weights_of_rows(method):
    """With Laplace's approximation it ended in a `TypeError`, and beyond 500 rows it took the noise for Gaussian."""
    draw = np.random.default_rng(0)
    x = np.sort(draw.uniform(0, 6, 100))
    truth = np.sin(2 * np.pi * x / 2)
    y = truth + 0.05 * draw.normal(size=100)
    y[::9] += 30
    gp = GPRegressor("choose", method, likelihood="student-t").fit(x[:, None], y)
    assert gp.kernel_choice_.rule == "choose"
    assert len(gp.kernel_choice_.tried) > 2
    assert np.abs(gp.predict(x[:, None]) - truth).mean() < 0.05
