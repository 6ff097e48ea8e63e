"""Exposure, trials, limits and learned parameters through the doors of `GPRegressor`: answers, files, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import clone

import gigagp
from gigagp import GPRegressor, inference, kernels, likelihoods, optimization
from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.plots.view import View
from gigagp.settings.custom import NOTHING
from vecchia_cases import killed_at_write

RNG = np.random.default_rng(0)
N = 40
X = np.sort(RNG.uniform(0, 6, N))[:, None]
F = 0.8 * np.sin(X[:, 0])
EFFORT = 10 ** RNG.uniform(-1, 1, N)
TRIALS = RNG.integers(1, 30, N)
TIMES = 1e3 * np.exp(1 + F) * RNG.weibull(1.7, N)
ENDS = RNG.uniform(1e3, 6e3, N)
VALUES = 50 + 10 * (F + 0.2 * RNG.normal(size=N))
NEW = np.linspace(0.2, 5.8, 5)[:, None]

#: Targets of each likelihood, and what is given beside them.
CASES = {
    "poisson": (RNG.poisson(np.exp(1.2 + F) * EFFORT), {"exposure": EFFORT}),
    "negative-binomial": (RNG.negative_binomial(2, 2 / (2 + np.exp(1.2 + F) * EFFORT)), {"exposure": EFFORT}),
    "zero-inflated-poisson": (RNG.poisson(np.exp(1.2 + F)) * (RNG.uniform(size=N) > 0.3), {}),
    "zero-inflated-negative-binomial": (RNG.negative_binomial(2, 0.4, N) * (RNG.uniform(size=N) > 0.3), {}),
    "hurdle-poisson": (RNG.poisson(np.exp(1.2 + F)) * (RNG.uniform(size=N) > 0.3), {}),
    "gamma": (RNG.gamma(3, np.exp(10 + F) / 3), {}),
    "weibull": (np.stack([np.minimum(TIMES, ENDS), np.where(TIMES < ENDS, TIMES, np.inf)], 1), {}),
    "binomial": (RNG.binomial(TRIALS, 1 / (1 + np.exp(-2 * F))), {"exposure": TRIALS}),
    "beta": (RNG.beta(8 / (1 + np.exp(-2 * F)), 8 / (1 + np.exp(2 * F))), {}),
    "ordinal": (np.digitize(F + 0.5 * RNG.normal(size=N), [-0.5, 0.0, 0.6]), {}),
    "censored": (np.stack([np.where(VALUES < 48, -np.inf, VALUES), np.maximum(VALUES, 48)], 1), {}),
    "quantile": (VALUES, {}),
}


def fitted(name, **options):
    y, beside = CASES[name]
    return GPRegressor(likelihood=name, **{"kernel": kernels.Matern(nu=1.5)} | options).fit(X, y, **beside)


def test_every_likelihood_has_a_case():
    assert set(CASES) == set(likelihoods.NAMES) - {"gaussian", "laplace", "student-t", "logistic", "probit"}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
def test_each_through_all_doors(name, tmp_path):
    y, beside = CASES[name]
    gp = fitted(name)
    assert isinstance(gp.inference_, inference.Vecchia)
    exposure = 7 if "exposure" in beside else None
    mean, std = gp.predict(NEW, return_std=True, exposure=exposure)
    _, wide = gp.predict(NEW, return_std=True, include_noise=True, exposure=exposure)
    assert (std > 0).all()
    assert (wide > std).all()
    covariance = gp.predict(NEW, return_cov=True, exposure=exposure)[1]
    np.testing.assert_allclose(np.diag(covariance), std**2, rtol=1e-6)
    drawn = gp.sample_y(NEW, 20_000, include_noise=True, exposure=exposure)
    quantiles = gp.predict_quantile(NEW, [0.1, 0.5, 0.9], exposure=exposure)
    for k in range(3):
        assert (drawn <= quantiles[:, k, None] + 1e-9).mean() > 0.1 + 0.4 * k - 0.015
        assert (drawn < quantiles[:, k, None] - 1e-9).mean() < 0.1 + 0.4 * k + 0.015
    if name != "quantile":
        np.testing.assert_allclose(drawn.mean(1), mean, atol=6 * wide.max() / np.sqrt(20_000))
        np.testing.assert_allclose(drawn.std(1), wide, rtol=0.15)
    functions = gp.sample_functions(3)
    assert functions(NEW).shape == (5, 3)
    log_density = gp.predictive_log_density(X, y, **beside)
    left_out = gp.leave_one_out()
    assert log_density.shape == left_out.log_density.shape == (N,)
    assert left_out.log_density.mean() < log_density.mean()
    assert "likelihood." not in " ".join(gp.likelihood_.learned)
    gp.describe()
    path = tmp_path / "m.gp"
    gp.save(path)
    loaded = gigagp.load(path)
    assert loaded.likelihood_ == gp.likelihood_
    for one, other in (
        (loaded.predict(NEW, exposure=exposure), mean),
        (loaded.predictive_log_density(X, y, **beside), log_density),
        (loaded.leave_one_out().log_density, left_out.log_density),
    ):
        # Tensors of a file lie elsewhere in memory, which can change the last bit of a product.
        np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-13)


@pytest.mark.slow
def test_learned_parameters_are_shown_and_given_ones_stay():
    gp = fitted("gamma")
    assert 1.5 < gp.likelihood_.shape < 8
    assert "likelihood.shape" in gp.describe()
    assert "likelihood.shape" in gp.history_[-1].hyperparameters
    y, _ = CASES["gamma"]
    fixed = GPRegressor(likelihood=likelihoods.Gamma(2.0)).fit(X, y)
    assert fixed.likelihood_ == likelihoods.Gamma(2.0)
    assert fixed.set_params(likelihood__shape=3.0).likelihood == likelihoods.Gamma(3.0)


@pytest.mark.slow
def test_units_of_amounts_change_nothing_but_the_units():
    y, _ = CASES["gamma"]
    one, other = (GPRegressor(likelihood="gamma").fit(X, factor * y) for factor in (1.0, 1e6))
    np.testing.assert_allclose(1e6 * one.predict(NEW), other.predict(NEW), rtol=1e-3)
    shift = other.log_marginal_likelihood().value - one.log_marginal_likelihood().value
    assert shift == pytest.approx(-N * np.log(1e6), abs=0.05)


def test_an_exposure_is_a_factor_of_the_rate():
    """Predictions for an exposure are those of the rate times it; counts vary around that."""
    gp = fitted("poisson")
    rate, std = gp.predict(NEW, return_std=True)
    np.testing.assert_allclose(View(gp).rows.y, CASES["poisson"][0] / EFFORT)  # what pictures draw beside the rate
    mean, of_mean = gp.predict(NEW, return_std=True, exposure=3.0)
    np.testing.assert_allclose(mean, 3 * rate)
    np.testing.assert_allclose(of_mean, 3 * std)
    _, whole = gp.predict(NEW, return_std=True, include_noise=True, exposure=[3.0] * 5)
    np.testing.assert_allclose(whole**2, (3 * std) ** 2 + 3 * rate)
    y, _ = CASES["poisson"]
    as_offset = GPRegressor(likelihood="poisson").fit(X, y, offset=np.log(EFFORT))
    np.testing.assert_allclose(as_offset.predict(NEW), rate)
    without = GPRegressor(inference=inference.Vecchia(), likelihood="poisson").fit(X, y)  # the control
    truth = np.exp(1.2 + 0.8 * np.sin(NEW[:, 0]))
    assert np.abs(np.log(without.predict(NEW) / truth)).max() > 2 * np.abs(np.log(rate / truth)).max()


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["poisson", "negative-binomial"])
def test_the_unit_of_the_exposure(name):
    """Hours or seconds: the mean of the log rate is learned, so that the unit changes the rate alone."""
    y, _ = CASES[name]
    one, other = (
        GPRegressor(kernels.Matern(nu=1.5), likelihood=name).fit(X, y, exposure=unit * EFFORT) for unit in (1.0, 3.6e6)
    )
    np.testing.assert_allclose(other.predict(NEW, exposure=3.6e6), one.predict(NEW), rtol=1e-3)
    values = [gp.log_marginal_likelihood().value for gp in (one, other)]
    assert values[1] == pytest.approx(values[0], abs=0.01)


@pytest.mark.slow
def test_a_table_that_is_read_in_chunks():
    y, _ = CASES["gamma"]
    one, other = GPRegressor(likelihood="gamma").fit(X, y), GPRegressor(likelihood="gamma").fit_table((X, y))
    np.testing.assert_allclose(other.predict(NEW), one.predict(NEW), rtol=1e-9)
    assert other.likelihood_ == one.likelihood_


def test_trials_of_predictions():
    gp = fitted("binomial")
    share, std = gp.predict(NEW, return_std=True)
    mean, whole = gp.predict(NEW, return_std=True, include_noise=True, exposure=20)
    np.testing.assert_allclose(mean, 20 * share)
    np.testing.assert_allclose(whole**2, 400 * std**2 + 20 * (share * (1 - share) - std**2))
    f, spread = gp.predict_latent(NEW, return_std=True)
    places = stats.norm.ppf((np.arange(4000) + 0.5) / 4000)
    p = 1 / (1 + np.exp(-(f[:, None] + spread[:, None] * places)))
    exact = np.log(stats.binom(20, p).pmf(9).mean(1))
    np.testing.assert_allclose(gp.predictive_log_density(NEW, np.full(5, 9), exposure=20), exact, rtol=1e-4)


def test_measured_targets_are_those_of_gaussian_noise():
    """Without a limit that differs, all answers are those of exact inference, leave-one-out too."""
    kernel, y = kernels.Matern(1.5, 1.0, 80.0), VALUES
    settings = {"noise_variance": 4.0, "optimizer": None}
    exact = GPRegressor(kernel, inference.Exact(), **settings).fit(X, y)
    limits = GPRegressor(kernel, inference.Vecchia(N), likelihood="censored", **settings).fit(X, np.stack([y, y], 1))
    for one, other in zip(exact.leave_one_out(), limits.leave_one_out(), strict=True):
        np.testing.assert_allclose(other, one, atol=1e-9)
    values = [gp.log_marginal_likelihood().value for gp in (exact, limits)]
    assert values[1] == pytest.approx(values[0], abs=1e-9)
    np.testing.assert_allclose(limits.predict_quantile(NEW, 0.9), exact.predict_quantile(NEW, 0.9), rtol=1e-9)
    assert limits.score(X, np.stack([y, y], 1)) == pytest.approx(exact.score(X, y))


@pytest.mark.slow
def test_limits_tell_more_than_what_is_put_in_their_place():
    gp = fitted("censored")
    truth = 50 + 8 * np.sin(NEW[:, 0])
    replaced = GPRegressor(kernels.Matern(nu=1.5)).fit(X, np.maximum(VALUES, 48))
    low = truth < 46
    assert low.any()
    assert np.abs(gp.predict(NEW) - truth)[low].max() < 0.7 * np.abs(replaced.predict(NEW) - truth)[low].max()


def test_a_killed_fit_goes_on(tmp_path):
    y, beside = CASES["negative-binomial"]
    path = tmp_path / "fit.check"
    gp = GPRegressor(likelihood="negative-binomial", optimizer=optimization.Adam(steps=6))
    whole = clone(gp).fit(X, y, **beside)
    with killed_at_write(4):
        clone(gp).fit(X, y, checkpoint=path, **beside)
    with pytest.raises(InvalidInputError, match="belongs to another fit"):
        clone(gp).fit(X, y, checkpoint=path, exposure=2 * EFFORT)
    resumed = clone(gp).fit(X, y, checkpoint=path, **beside)
    assert resumed.likelihood_ == whole.likelihood_
    np.testing.assert_array_equal(resumed.predict(NEW), whole.predict(NEW))


@pytest.mark.slow
def test_before_a_fit_and_beside_other_targets():
    prior = GPRegressor(kernels.RBF(1.0, 0.5), likelihood="gamma")
    np.testing.assert_allclose(prior.predict(NEW, exposure=2.0), 2 * np.exp(0.25))
    y = np.stack([CASES["hurdle-poisson"][0], CASES["poisson"][0]], 1)
    both = GPRegressor(likelihood="negative-binomial").fit(X, y, exposure=EFFORT)
    assert both.predict(NEW, exposure=2.0).shape == (5, 2)
    alone = GPRegressor(likelihood="negative-binomial").fit(X, y[:, 1], exposure=EFFORT)
    np.testing.assert_array_equal(both.predict(NEW)[:, 1], alone.predict(NEW))


# What does not go together --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "beside", "match"),
    [
        ("quantile", {}, {"exposure": EFFORT}, "exposure must be None with the quantile likelihood"),
        ("beta", {}, {"exposure": EFFORT}, "exposure must be None with the beta likelihood"),
        ("censored", {}, {"offset": EFFORT}, "offset must be None with the censored likelihood, .* Subtract it from y"),
        ("poisson", {}, {"exposure": EFFORT * (EFFORT[3] != EFFORT)}, "exposure must be positive; got 0 in row 3"),
        (
            "poisson",
            {},
            {"exposure": EFFORT[:-1]},
            r"exposure must be a number or have shape \(40,\), one for each row",
        ),
        ("poisson", {}, {"offset": np.full(N, np.nan)}, "offset.*row 0"),
        ("binomial", {}, {"exposure": TRIALS + 0.5}, "exposure must be whole numbers of trials for binomial targets"),
        ("binomial", {}, {"exposure": 1}, "successes must be from 0 to the number of trials"),
        (
            "poisson",
            {"inference": inference.QuadruplyStochastic()},
            {},
            r"for exposure or offset must be .* inference\.Vecchia",
        ),
        ("gamma", {"inference": inference.QuadruplyStochastic()}, {}, "bound has no parameters of a likelihood"),
        ("beta", {"inference": inference.QuadruplyStochastic()}, {}, "only for log-concave densities"),
        ("gamma", {"inference": inference.Exact()}, {}, "inference for the gamma likelihood must be"),
        ("gamma", {"target_transform": "log"}, {}, 'must be "none" with the gamma likelihood'),
        ("gamma", {"noise_variance": 0.1}, {}, "noise_variance of GPRegressor must be None with the gamma likelihood"),
        ("gamma", {"kernel": "auto"}, {}, "for the gamma likelihood, give a kernel"),
        (
            "gamma",
            {"mean": lambda X: np.ones(len(X))},
            {},
            "mean of GPRegressor must not be a function with the gamma likelihood",
        ),
        ("gamma", {"kernel": kernels.RBF() + kernels.White()}, {}, "must not contain White with the gamma likelihood"),
    ],
)
def test_what_does_not_go_together_is_refused(name, options, beside, match):
    y, own = CASES[name]
    with pytest.raises(InvalidInputError, match=match):
        GPRegressor(likelihood=name, **options).fit(X, y, **(own | beside))


def test_bad_limits_and_other_places():
    crossed = np.stack([VALUES, VALUES], 1)
    crossed[5, 0] += 1
    for name in ("censored", "weibull"):
        with pytest.raises(InvalidInputError, match=r"limits of y must be .* not both infinite; got .* in row 5"):
            GPRegressor(likelihood=name).fit(X, crossed)
        with pytest.raises(InvalidInputError, match=r"y must have shape \(n, 2\), the lower and the upper limit"):
            GPRegressor(likelihood=name).fit(X, VALUES)
        with pytest.raises(InvalidInputError, match=f"for fit_table must not be {name}"):
            GPRegressor(likelihood=name).fit_table((X, VALUES))
    gp = fitted("censored")
    with pytest.raises(InvalidInputError, match=r"score of GPRegressor needs measured targets; row \d+ has limits"):
        gp.score(X, CASES["censored"][0])
    with pytest.raises(InvalidInputError, match="exposure must be None with the gaussian likelihood"):
        GPRegressor().fit(X, VALUES).predict(NEW, exposure=2.0)
    with pytest.raises(InvalidInputError, match="3 to 100 levels, numbered from 0; got 2"):
        GPRegressor(likelihood="ordinal").fit(X, VALUES > 50)
    with pytest.raises(InvalidInputError, match=r"must have all levels from 0 to 2, .* no row has 1"):
        GPRegressor(likelihood="ordinal").fit(X, 2 * (VALUES > 50))
    with pytest.raises(InvalidInputError, match="must be whole numbers from 0 to 3; got 7 in row 1"):
        fitted("ordinal").predictive_log_density(NEW[:2], [0, 7])
    sampled = GPRegressor(likelihood="poisson").fit(X, CASES["hurdle-poisson"][0])
    with pytest.raises(
        InvalidInputError, match=r"leave_one_out of GPRegressor needs .* Vecchia and at most 1,000 rows"
    ):
        sampled.leave_one_out()


def test_values_of_a_file_are_checked(tmp_path):
    gp = fitted("weibull")
    tensors, header = gp._to_state()
    for name, value in (
        ("likelihood.shape", torch.tensor(-1.0, dtype=torch.float64)),
        ("beside.limits", torch.zeros(N, 3, dtype=torch.float64)),
        ("likelihood.other", torch.tensor(1.0, dtype=torch.float64)),
    ):
        with pytest.raises(ModelFileError):
            GPRegressor._from_state({**tensors, name: value}, header, NOTHING)


ENDLESS = np.full(N, np.inf)


@pytest.mark.parametrize(
    ("likelihood", "targets", "way"),
    [
        ("poisson", np.zeros(N), "lower"),
        ("negative-binomial", np.zeros(N), "lower"),
        ("zero-inflated-poisson", np.zeros(N), "lower"),
        ("hurdle-poisson", np.ones(N), "lower"),
        ("binomial", np.zeros(N), "lower"),
        ("binomial", TRIALS, "higher"),
        ("weibull", np.stack([TIMES, ENDLESS], 1), "higher"),
        ("censored", np.stack([VALUES, ENDLESS], 1), "higher"),
        ("censored", np.stack([-ENDLESS, VALUES], 1), "lower"),
    ],
)
def test_targets_that_do_not_limit_the_mean_are_refused(likelihood, targets, way):
    """They ended in predictions that are not finite, or in 9 with a standard deviation of 134,378."""
    beside = {"binomial": {"exposure": TRIALS}, "poisson": {"exposure": EFFORT}}.get(likelihood, {})
    with pytest.raises(InvalidInputError, match=f'more probable the {way} .* or use mean="zero"'):
        GPRegressor(likelihood=likelihood).fit(X, targets, **beside)
    if likelihood == "poisson":  # one event, or a mean that is not learned, is enough
        known = GPRegressor(likelihood=likelihood, mean="zero").fit(X, targets, **beside)
        one = GPRegressor(likelihood=likelihood).fit(X, np.eye(N)[3], **beside)
        assert np.isfinite([known.predict(NEW), one.predict(NEW)]).all()


def test_targets_that_cannot_be_written_are_read():
    y = np.random.default_rng(0).poisson(2.0, 20).astype(float)
    y.flags.writeable = False
    gp = GPRegressor(likelihood="negative-binomial", optimizer=None).fit(np.arange(20.0)[:, None], y)
    assert np.isfinite(gp.predictive_log_density(np.arange(20.0)[:, None], y)).all()
