"""Laplace noise far smaller than the residuals of a start: the search for the best distribution, and default fits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, kernels, metrics
from gigagp.errors import FitWarning
from gigagp.estimators import checkpoint
from gigagp.inference import QuadruplyStochastic
from gigagp.inference.quadruply_stochastic import whole
from gigagp.inference.quadruply_stochastic.expectation import (
    LAST_STEPS,
    STEPS,
    ExpectedFit,
    expected_fit,
    warn_of_missed,
)
from gigagp.inference.quadruply_stochastic.latent import best_latent
from gigagp.inference.quadruply_stochastic.newton import WeightSearch
from gigagp.inference.quadruply_stochastic.rows_covariance import RowsCovariance
from gigagp.inference.quadruply_stochastic.whole import WholeObjective
from gigagp.model.likelihoods import Laplace, Logistic
from helpers import generator

#: even, clumped and repeated rows, with gaps
X = torch.cat([torch.linspace(0, 3, 15), 5 + 1e-3 * torch.arange(10), torch.full((3,), 7.0), torch.tensor([9.0, 9.5])])[
    :, None
].double()
WRONG = [2, 11, 20, 26]
Y = X.sin()
Y[WRONG] += torch.tensor([[30.0], [-8.0], [5.0], [300.0]]).double()
K = kernels.Matern(1.5, 0.8, 1.3).bind(1).block(X, X)
NOISES = [1.0, 1e-2, 1e-4, 1e-6]


def search(noise, start=None):
    noises = torch.full((len(X),), noise).double()
    return best_latent(K, X.new_zeros(len(X), 0), noises, Y, Laplace(), 20, start, tolerance=1e-11)


def bound(alpha, curvature, noise):
    """The bound from its definition: the mean of ``|y - f|`` is that of a folded normal distribution."""
    left = torch.eye(len(X)).double() + curvature[:, None] * K  # the covariance is K times its inverse
    inverse = torch.linalg.inv(left)
    mean, std, scale = K @ alpha, (K @ inverse).diagonal().sqrt()[:, None], math.sqrt(noise / 2)
    ratio = (Y - mean) / std
    folded = std * math.sqrt(2 / math.pi) * (-0.5 * ratio.square()).exp() + (Y - mean) * torch.erf(ratio / math.sqrt(2))
    divergence = 0.5 * (inverse.trace() + (alpha * mean).sum() - len(X) + torch.logdet(left))
    return float(-len(X) * math.log(2 * scale) - folded.sum() / scale - divergence)


@pytest.mark.parametrize("noise", NOISES)
def test_the_search_ends_at_the_best_distribution(noise):
    best = search(noise)
    value = bound(best.alpha, best.curvature, noise)
    assert best.value == pytest.approx(value, rel=1e-7, abs=1e-5)
    rng = generator(0)
    for size in (1e-3, 1e-2, 0.1, 1.0):  # the bound is concave, so what is best nearby is best
        for _ in range(20):
            moved = best.alpha * (1 + size * torch.randn(best.alpha.shape, generator=rng, dtype=torch.float64))
            curved = best.curvature * (size * torch.randn(len(X), generator=rng, dtype=torch.float64)).exp()
            assert bound(moved, curved, noise) <= value + 1e-4
            assert bound(best.alpha, curved, noise) <= value + 1e-4
            assert bound(moved, best.curvature, noise) <= value + 1e-4


def test_newtons_curvature_alone_goes_too_far(monkeypatch):
    """The control: targets are thousands of standard deviations away from the start."""
    best = search(1e-6).value
    monkeypatch.setattr(ExpectedFit, "curvatures", lambda self: iter([(self.bend, [0.5**k for k in range(8)])]))
    assert search(1e-6).value < best - 1000


@pytest.mark.few(2)
@pytest.mark.parametrize("noise", NOISES)
def test_a_start_nearby_leads_to_the_same_distribution(noise):
    cold, near = search(noise), search(1.2 * noise)
    warm = search(noise, near.sites(K, X.new_zeros(len(X), 0), near.fit.bend))
    assert warm.value == pytest.approx(cold.value, abs=1e-4)
    torch.testing.assert_close(K @ warm.alpha, K @ cold.alpha, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("std", [1e-3, 0.1, 1.0, 10.0])
def test_the_parabola_of_the_secant_is_nowhere_above_the_expected_fit(std):
    places = torch.linspace(-40, 40, 161).double()[:, None]
    ones = torch.ones(len(places)).double()

    def at(latent):
        return Laplace().expected_log_density(
            torch.zeros_like(latent), latent, torch.full_like(latent, std), torch.full_like(latent, 0.5)
        )

    fit = expected_fit(Laplace(), 0 * places, places, std**2 * ones, 0.5 * ones, 20)
    gaps = places.T - places

    def above(curvature):
        return float((at(places) + fit.slope * gaps - 0.5 * curvature * gaps.square() - at(places).T).max())

    assert above(fit.secant) < 1e-9
    assert above(0.5 * fit.secant) > 0.01  # the control


def test_labels_have_no_secant():
    labels = Y.sign()
    assert expected_fit(Logistic(), labels, 0 * Y, torch.ones(len(X)).double(), torch.ones(len(X)), 20).secant is None


@pytest.mark.few(2)
@pytest.mark.parametrize("noise", NOISES)
def test_more_rows_than_functions_lead_to_the_same_weights(noise):
    """The search among weights, with functions ``L`` for ``K = L L'``, so that both know the same processes."""
    L = torch.linalg.cholesky(K + 1e-10 * torch.eye(len(X)).double())
    noises = torch.full((len(X),), noise).double()
    weights = WeightSearch(L, torch.ones(len(X)).double(), noises, Y, X.new_zeros(len(X), 0), Laplace(), None, 20)
    found, promised = weights.maximise(weights.start(None), 1e-11)
    best = search(noise)
    assert promised < 1e-3
    assert found.value == pytest.approx(best.value, rel=1e-6, abs=1e-3)
    torch.testing.assert_close(L @ found.mean, K @ best.alpha, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("n_columns", [None, 60])
def test_the_covariance_is_nearly_that_of_the_exact_process(n_columns):
    x = torch.sort(torch.rand(60, 1, generator=generator(1), dtype=torch.float64) * 6, dim=0).values
    y = x.sin() + 1e-3 * torch.randn(60, 1, generator=generator(2), dtype=torch.float64)
    settings = QuadruplyStochastic(n_basis=60, n_columns=n_columns)
    kernel = kernels.Matern(0.5, 2.0)
    gp = GPRegressor(
        kernel, settings, None, mean="zero", noise_variance=1e-4, likelihood="laplace", standardize=False
    ).fit(x.numpy(), y[:, 0].numpy())
    bound_kernel = kernel.bind(1)
    gram = bound_kernel.block(x, x)
    best = best_latent(gram, x.new_zeros(60, 0), torch.full((60,), 1e-4).double(), y, Laplace(), 20, tolerance=1e-11)
    between = (x[1:] + x[:-1]) / 2
    mean = (bound_kernel.block(between, x) @ best.alpha)[:, 0]
    variance = RowsCovariance(bound_kernel, x, best.curvature).variance(between)
    found, std = (torch.from_numpy(one) for one in gp.predict(between.numpy(), return_std=True))
    errors = float((((found - mean).square() + variance) / std.square()).mean())
    if n_columns is None:
        assert 0.8 < errors < 2
    else:
        assert errors > 4  # the control: the covariance of the weights


@pytest.mark.few(1)
@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_the_default_fit_follows_targets_with_little_noise_past_wrong_ones(noise):
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.uniform(0, 6, (90, 1)), 8 + 0.01 * rng.normal(size=(20, 1))]) * 1e3
    function = np.sin(X[:, 0] / 1e3)
    y = function + noise * rng.laplace(size=len(X))
    y[::15] += rng.choice([-5, 5], len(y[::15]))
    robust = GPRegressor(likelihood="laplace").fit(X, y)
    normal = GPRegressor(kernels.Matern(nu=1.5)).fit(X, y)
    error, of_normal = (metrics.rmse(function, gp.predict(X)) for gp in (robust, normal))
    assert error < 0.05
    assert error < 0.3 * of_normal


@pytest.mark.few(1)
@pytest.mark.parametrize("n_rows", [15, len(X)])
def test_a_fit_of_more_rows_that_is_killed_among_few_or_all_goes_on_to_the_same_numbers(n_rows, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)
    monkeypatch.setattr(whole, "_SUBSET", 15)
    kept, rows = WholeObjective.evaluate, []

    def fit(**given):
        return GPRegressor(likelihood="laplace").fit(X.numpy(), Y[:, 0].numpy(), **given)

    def dying(self, model):
        rows.append(self.n_rows)
        if self.n_rows == n_rows and rows.count(n_rows) == 3:
            raise KeyboardInterrupt
        return kept(self, model)

    straight = fit()
    monkeypatch.setattr(WholeObjective, "evaluate", dying)
    with pytest.raises(KeyboardInterrupt):
        fit(checkpoint=tmp_path / "c")
    resumed = fit(checkpoint=tmp_path / "c")
    assert np.array_equal(resumed.predict(X.numpy()), straight.predict(X.numpy()))


# Targets that are all far from the start ------------------------------------------------------------------------------


def least_deviations(y: np.ndarray, basis: np.ndarray, scale: float) -> np.ndarray:
    """Return coefficients for all of the targets' absolute deviations, by iteratively reweighted least squares."""
    found = np.linalg.lstsq(basis, y, rcond=None)[0]
    for _ in range(2000):
        weights = 1 / np.maximum(abs(y - basis @ found), 1e-6 * scale)
        found = np.linalg.solve(basis.T @ (weights[:, None] * basis), basis.T @ (weights * y))
    return found


@pytest.mark.each
@pytest.mark.filterwarnings("ignore:the search for the best weights ended early")
@pytest.mark.parametrize("mean", ["constant", "linear"])
@pytest.mark.parametrize("n_basis", [20, 100])
@pytest.mark.parametrize(("scale", "offset"), [(1e3, 0.0), (1e6, 0.0), (1e6, 1e8)])
def test_the_mean_follows_targets_that_no_function_of_the_prior_reaches(scale, offset, n_basis, mean):
    """The coefficients had ended at zero: far from all targets, Newton's curvature is zero and determines nothing."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, 40)
    y = offset + scale * (np.sin(2 * x) + x + 0.1 * rng.laplace(size=40))
    gp = GPRegressor(
        kernels.RBF(1.0, 1.0),
        QuadruplyStochastic(n_basis=n_basis),
        None,
        likelihood="laplace",
        mean=mean,
        standardize=False,
        noise_variance=0.1,
    ).fit(x[:, None], y)
    basis = np.stack([np.ones(40), x][: 1 + (mean == "linear")], 1)
    best = least_deviations(y, basis, scale)
    deviations = abs(y - basis @ gp.posterior_.coefficients.numpy()[:, 0]).sum()
    assert deviations < 1.02 * abs(y - basis @ best).sum()
    assert abs(y - gp.predict(x[:, None])).sum() < deviations + 1e-6 * scale


def test_a_search_that_has_not_ended_says_so(monkeypatch):
    """By the gain that steps surely bring: Newton's promise where there is no curvature is nothing or infinite."""
    monkeypatch.setattr(whole, "LAST_STEPS", 3)
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (40, 1))
    y = 1e3 * (np.sin(2 * x[:, 0]) + x[:, 0] + 0.1 * rng.laplace(size=40))
    settings = {"likelihood": "laplace", "mean": "linear", "standardize": False, "noise_variance": 0.1}
    for n_basis in (20, 100):
        gp = GPRegressor(kernels.RBF(1.0, 1.0), QuadruplyStochastic(n_basis=n_basis), None, **settings)
        with pytest.warns(FitWarning, match=r"promised [0-9.]+(e\+0[0-9])? nats"):
            gp.fit(x, y)


def clumped(seed, clumps, kernel, n_targets, noise):
    """Return the covariance of rows in clumps (centre, number), a linear mean's basis, noises, and random targets."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.cat([centre + 1e-2 * torch.randn(n, 1, generator=rng, dtype=torch.float64) for centre, n in clumps])
    y = torch.randn(len(x), n_targets, generator=rng, dtype=torch.float64)
    return kernel.bind(1).block(x, x), torch.cat([torch.ones_like(x), x], 1), torch.full((len(x),), noise).double(), y


def test_a_step_of_the_mean_alone_ends_a_search_with_two_targets():
    """Targets share a covariance: steps that moved it, too, gained nothing, and a third of a nat was missed."""
    gram, basis, noises, y = clumped(4, ((0.0, 5), (1.0, 4)), kernels.Matern(2.5, 0.2, 0.13), 2, 0.01)

    def best(noise, start=None):
        return best_latent(gram, basis, noise, y, Laplace(), 20, start, 1e-9)

    near = best(3 * noises)
    warm = best(noises, near.sites(gram, basis, near.fit.bend))
    assert best(noises).value == pytest.approx(warm.value, abs=1e-3)


@pytest.mark.slow
def test_a_search_with_two_targets_does_not_creep_along_small_shares_of_newtons_steps():
    """It went to the first place that gained anything, and after fifty steps it was three nats below the best bound."""
    clumps = ((0.0, 5), (1.0, 4), (1.5, 6))
    gram, basis, noises, y = clumped(2, clumps, kernels.Matern(2.5, 1.2, 0.39), 2, 1e-4)
    found = best_latent(gram, basis, noises, y, Laplace(), 20, None, 1e-9)
    near = best_latent(gram, basis, 3 * noises, y, Laplace(), 20, None, 1e-9)
    warm = best_latent(gram, basis, noises, y, Laplace(), 20, near.sites(gram, basis, near.fit.bend), 1e-9)
    assert found.value == pytest.approx(warm.value, abs=1e-3)
    # At the best bound each weight is the slope of the expected fit.
    torch.testing.assert_close(found.alpha, found.fit.slope, atol=0.05, rtol=1e-3)


@pytest.mark.slow
def test_a_search_goes_on_for_the_weights_that_are_kept_and_says_what_is_missed():
    """After a hundred steps it was three nats below the best bound, without a word."""
    clumps = ((0.0, 4), (1.0, 4), (1.5, 4))
    gram, basis, noises, y = clumped(1, clumps, kernels.Matern(2.5, 0.5, 0.4), 1, 1e-4)
    given = gram, basis, noises, y, Laplace(), 20, None, 1e-9
    short, kept, whole_way = (best_latent(*given, most) for most in (STEPS, LAST_STEPS, 2000))
    assert kept.value == pytest.approx(whole_way.value, abs=1e-5)
    assert kept.missed == whole_way.missed == 0  # they have ended
    assert whole_way.value - short.value > 1
    with pytest.warns(FitWarning, match="ended early: further steps promised"):
        warn_of_missed(short.missed, 12)
