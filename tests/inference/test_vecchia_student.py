"""Student-t noise in Vecchia inference: gradients, dense algebra, gross outliers, files, and who takes it."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import gigagp
from contract import dense
from gigagp import GPRegressor, inference, kernels, optimization
from gigagp.errors import FitWarning, InvalidInputError
from gigagp.inference.vecchia import latent
from gigagp.model.likelihoods import StudentT
from gigagp.model.means import LinearMean
from helpers import draw_targets, generator, points
from vecchia_cases import NEW, clumps, gradients, killed_at_write, model_of, objective_of, tables

KERNEL = kernels.Matern(1.5, [0.8, 1.7], 1.3).bind(2)
N, NOISE = 90, 0.2


def wrong(X, columns=1, share=0.1, size=20.0):
    """Return targets of which a share is grossly wrong."""
    Y = draw_targets(KERNEL, X, NOISE / 4, columns=columns)
    uniform = torch.rand(Y.shape, generator=generator(7), dtype=torch.float64)
    return torch.where(uniform < share, size * torch.sign(uniform - 0.5 * share), Y)


@pytest.mark.each
@tables
@pytest.mark.parametrize("df", [2.5, 4.0, 30.0])
def test_the_gradient_is_that_of_the_value(table, df):
    """With a white part, a linear mean and two targets with outliers."""
    X, kernel = table(N), (KERNEL + kernels.White(0.05)).bind(2)
    own = objective_of(X, wrong(X, 2), StudentT(df), mean=LinearMean())
    found, expected = gradients(own, own.start(model_of(kernel, NOISE, LinearMean())))
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-5)
    assert float((1.01 * found - expected).abs().max()) > 1e-2  # the control


@tables
def test_all_neighbours_are_dense_algebra(table):
    X = table(N)
    Y = wrong(X, size=6.0)
    noise = NOISE * (0.5 + torch.rand(N, generator=generator(5), dtype=torch.float64))
    covariance = dense.matern(1.5, np.array([0.8, 1.7]), 1.3)
    exact = dense.laplace_approximation(covariance, X.numpy(), Y.numpy(), NEW.numpy(), noise.numpy(), "student-t")
    found = objective_of(X, Y, StudentT(), neighbours=N - 1, more=N).posterior(model_of(KERNEL, noise), generator())
    np.testing.assert_allclose(found.mean(NEW).numpy(), exact.mean, atol=1e-4)
    np.testing.assert_allclose(found.mean_and_variance(NEW)[1].numpy(), exact.variance, rtol=1e-6, atol=1e-9)
    assert found.log_marginal_likelihood(generator()).value == pytest.approx(exact.evidence, abs=1e-5)
    few = objective_of(X, Y, StudentT(), neighbours=2, more=2).posterior(model_of(KERNEL, noise), generator())
    assert np.abs(few.mean(NEW).numpy() - exact.mean).max() > 1e-3  # the control


def test_many_degrees_of_freedom_are_gaussian_noise():
    X = clumps(N)
    Y = draw_targets(KERNEL, X, NOISE)
    found, exact = (
        objective_of(X, Y, likelihood, neighbours=N - 1, more=N).posterior(model_of(KERNEL, NOISE), generator())
        for likelihood in (StudentT(1e6), None)
    )
    for one, other in zip(found.mean_and_variance(NEW), exact.mean_and_variance(NEW), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    values = [one.log_marginal_likelihood(generator()).value for one in (found, exact)]
    assert values[0] == pytest.approx(values[1], abs=1e-3)


@pytest.mark.parametrize("rows", [10**6, 0], ids=["dense", "draws"])
def test_what_is_far_off_changes_nothing(rows, monkeypatch):
    """The pull of an outlier falls with its distance."""
    monkeypatch.setattr(latent, "DENSE_ROWS", rows)
    X = clumps(N)
    clean = wrong(X, share=0.0)
    found = []
    for size in (1e3, 1e9):
        own = objective_of(X, wrong(X, size=size), StudentT(), neighbours=N - 1, more=N)
        found.append(own.posterior(model_of(KERNEL, NOISE), generator()).mean(NEW))
    torch.testing.assert_close(*found, rtol=0, atol=0.01)
    kept = clean[:, 0] == wrong(X)[:, 0]
    best = objective_of(X[kept], clean[kept], StudentT(), neighbours=N - 1, more=N)
    torch.testing.assert_close(
        found[1], best.posterior(model_of(KERNEL, NOISE), generator()).mean(NEW), rtol=0, atol=0.02
    )


# Fits -----------------------------------------------------------------------------------------------------------------


def measured(n=300, size=0.0, share=0.1, seed=0):
    """Return a function of two inputs, with a share of gross outliers, at rows in clumps and between them."""
    draw = np.random.default_rng(seed)
    X = np.concatenate([draw.uniform(-3, 3, (n - n // 4, 2)), 0.2 * draw.normal(size=(n // 4, 2)) + 1.0])
    truth = np.sin(2 * X[:, 0]) * np.cos(X[:, 1])
    y = truth + 0.1 * draw.normal(size=n)
    bad = draw.uniform(size=n) < share
    y = np.where(bad, y + size * draw.choice([-1, 1], n) * draw.uniform(0.5, 1.5, n), y)
    return X, y, truth


def fitted(X, y, likelihood, **settings):
    return GPRegressor(kernels.Matern(nu=1.5), inference.Vecchia(15), likelihood=likelihood, **settings).fit(X, y)


@pytest.mark.slow
def test_gross_outliers_do_not_move_the_fit():
    errors, noises = {}, {}
    for likelihood in ("student-t", "gaussian"):
        for size in (0.0, 5.0, 1e3, 1e9):
            X, y, truth = measured(size=size)
            warns = likelihood == "gaussian" and size >= 1e3
            with pytest.warns(FitWarning, match="lie far from the others") if warns else nullcontext():
                gp = fitted(X, y, likelihood)
            errors[likelihood, size] = float(np.sqrt(np.mean((gp.predict(X) - truth) ** 2)))
            noises[likelihood, size] = float(gp.noise_variance_)
    assert max(errors["student-t", size] for size in (5.0, 1e3, 1e9)) < 1.1 * errors["student-t", 0.0] < 0.07
    assert noises["student-t", 1e9] == pytest.approx(noises["student-t", 1e3], rel=0.05)
    # the controls: Gaussian noise does as well without outliers, and fails with them
    assert errors["gaussian", 0.0] < 1.1 * errors["student-t", 0.0]
    assert min(errors["gaussian", size] for size in (5.0, 1e3, 1e9)) > 5 * errors["student-t", 0.0]


@pytest.mark.slow
def test_outliers_on_one_side_and_several_targets():
    X, _, truth = measured()
    draw = np.random.default_rng(1)
    y = truth[:, None] * np.array([1.0, -50.0]) + np.array([0.0, 7.0]) + 0.1 * draw.normal(size=(len(X), 2)) * [1, 50]
    y[draw.uniform(size=y.shape) < 0.1] += 1e4
    gp = fitted(X, y, "student-t")
    error = np.abs(gp.predict(X) - truth[:, None] * np.array([1.0, -50.0]) - np.array([0.0, 7.0])).mean(0)
    assert error[0] < 0.06
    assert error[1] < 50 * 0.06


@pytest.mark.slow
def test_the_noise_is_learned_and_predictions_of_targets_are_calibrated():
    """Noise that is Student's own; the log score is the better one, too."""
    X, _, truth = measured(600)
    y = truth + 0.2 * stats.t.rvs(4, size=600, random_state=3)
    gp = fitted(X, y, StudentT())
    assert float(gp.noise_variance_) == pytest.approx(2 * 0.2**2, rel=0.4)
    new, _, at_new = measured(2000, seed=5)
    drawn = at_new + 0.2 * stats.t.rvs(4, size=2000, random_state=4)
    mean, std = gp.predict(new, return_std=True)
    total = gp.predict(new, return_std=True, include_noise=True)[1]
    np.testing.assert_allclose(total**2, std**2 + float(gp.noise_variance_))
    assert 0.88 < np.mean(np.abs(at_new - mean) < 1.96 * std) < 0.99
    y_new, m, s = (torch.from_numpy(one) for one in (drawn, mean, std))
    own = StudentT().predictive_log_density(y_new, m, s, torch.full_like(m, gp.noise_variance_))
    normal = -0.5 * ((y_new - m) ** 2 / torch.from_numpy(total) ** 2 + (2 * np.pi * torch.from_numpy(total) ** 2).log())
    assert float((own - normal).mean()) > 0.02


@pytest.mark.slow
def test_degrees_of_freedom_are_chosen_by_the_evidence():
    X, _, truth = measured(400)
    y = truth + 0.1 * stats.t.rvs(3, size=400, random_state=3)
    values = [fitted(X, y, StudentT(df)).log_marginal_likelihood().value for df in (3.0, 100.0)]
    assert values[0] > values[1] + 5


@pytest.mark.slow
def test_constant_and_half_constant_targets():
    X = points(60, 2).numpy()
    for y in (np.full(60, 3.0), np.where(np.arange(60) < 40, 3.0, X[:, 0]), np.where(np.arange(60) == 7, 1e6, 3.0)):
        gp = fitted(X, y, "student-t")
        mean, std = gp.predict(X, return_std=True)
        assert np.isfinite(mean).all()
        assert (std > 0).all()
        assert np.abs(mean[:40] - 3.0).mean() < 0.2


@pytest.mark.few(1)
@pytest.mark.parametrize("white", [False, True])
def test_a_kernel_is_learned_with_known_noise_of_each_row(white):
    X, y, truth = measured(150, 10.0)
    noise = 0.02 * np.random.default_rng(2).uniform(0.5, 2.0, 150)
    kernel = kernels.Matern(nu=1.5) + kernels.White() if white else kernels.Matern(nu=1.5)
    gp = GPRegressor(kernel, inference.Vecchia(15), likelihood="student-t", noise_variance=noise).fit(X, y)
    assert np.sqrt(np.mean((gp.predict(X) - truth) ** 2)) < 0.12
    own = objective_of(torch.from_numpy(X), torch.from_numpy(y)[:, None], StudentT(), neighbours=15)
    start = own.start(model_of(kernel.bind(2), torch.from_numpy(noise)))
    found, expected = gradients(own, start)
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-5)


# Names and files ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("likelihood", ["student-t", StudentT(), StudentT(6.0)], ids=repr)
def test_models_are_saved_and_resumed(likelihood, tmp_path):
    X, y, _ = measured(80, 10.0)
    estimator = GPRegressor(kernels.Matern(nu=1.5), inference=inference.Vecchia(), likelihood=likelihood)
    gp = estimator.fit(X, y, checkpoint=tmp_path / "fit.checkpoint")
    gp.save(tmp_path / "model.gp")
    again = gigagp.load(tmp_path / "model.gp")
    assert again.likelihood == (likelihood if likelihood == StudentT(6.0) else "student-t")
    for one, other in zip(gp.predict(X, return_std=True), again.predict(X, return_std=True), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_a_table_in_chunks_gives_the_same():
    X, y, _ = measured(120, 1e4)
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(y=y)
    gp = fitted(X, y, "student-t")
    table = GPRegressor(kernels.Matern(nu=1.5), inference.Vecchia(15), likelihood="student-t").fit_table(frame, "y")
    np.testing.assert_array_equal(table.predict(frame[["a", "b"]]), gp.predict(X))
    auto = GPRegressor(likelihood="student-t").fit_table(frame, "y")
    assert isinstance(auto.inference_, inference.Vecchia)


def test_a_killed_fit_resumes_to_the_same_bits(tmp_path):
    X, y, _ = measured(60, 10.0)
    path = tmp_path / "fit.checkpoint"

    def estimator():
        settings = {"inference": inference.Vecchia(6, 9, learning_rows=40), "likelihood": "student-t"}
        return GPRegressor(optimizer=optimization.Adam(steps=8), **settings)

    whole = estimator().fit(X, y)
    with killed_at_write(4):
        estimator().fit(X, y, checkpoint=path)
    np.testing.assert_array_equal(estimator().fit(X, y, checkpoint=path).predict(X), whole.predict(X))


@pytest.mark.parametrize("method", [inference.QuadruplyStochastic(), inference.RelevanceVectorMachine()], ids=repr)
def test_inferences_without_row_noise_refuse_it(method):
    X, y, _ = measured(40)
    with pytest.raises(InvalidInputError, match=r'must be "auto", one that takes known noise variances of rows, or'):
        GPRegressor(inference=method, likelihood="student-t").fit(X, y)


@pytest.mark.slow
def test_a_likelihood_of_a_users_own_that_states_its_information():
    """Cauchy noise, of which ``noise`` is the squared scale."""

    class Cauchy(StudentT):
        name = "cauchy"

        def log_density(self, y, f, noise):
            return -(np.pi * noise.sqrt()).log() - torch.log1p((y - f).square() / noise)

        def information(self, noise):
            return 0.5 / noise

    X, y, truth = measured(200, 1e3)
    gp = fitted(X, y, Cauchy())
    assert np.sqrt(np.mean((gp.predict(X) - truth) ** 2)) < 0.1
