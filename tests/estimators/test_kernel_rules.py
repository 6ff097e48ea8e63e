"""``kernel="average"``, ``"choose"`` and ``"auto"``: what they choose, refuse, save, and do with degenerate tables."""

import json
import signal
import warnings
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch
from sklearn.base import clone
from typer.testing import CliRunner

import gigagp
from gigagp import GPClassifier, GPRegressor, inference, kernels, optimization
from gigagp.commands import app
from gigagp.errors import FitInterruptedWarning, FitWarning, InvalidInputError, MemoryBudgetError, ModelFileError
from gigagp.estimators.choices import allowance, kernel_average, kernel_rules, kernel_trials
from gigagp.estimators.choices.candidates import candidate_kernels, strongest_period
from gigagp.estimators.choices.kernel_choice import KernelChoice
from gigagp.estimators.fit_checks import noise_support
from gigagp.estimators.saving.persistence import load_state, save_state
from gigagp.inference.contract.exact_posterior import ExactPosterior
from gigagp.inference.contract.objective import ExactObjective
from gigagp.inference.exact.evidence import laplace_evidence
from gigagp.inference.exact.mixture_posterior import MixturePosterior

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (60, 2))
Y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * RNG.normal(size=60)
NEW = RNG.uniform(-2, 2, (9, 2))
FOUR = "matern32", "rq", "matern32+matern12", "rbf+matern32"


def drawn(kernel: kernels.Kernel, n: int, d: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return uneven rows of a function drawn from a kernel, with noise."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, d))
    K = kernel.bind(d).block(torch.from_numpy(points), torch.from_numpy(points)).numpy()
    f = np.linalg.cholesky(K + 1e-9 * np.eye(n)) @ rng.normal(size=n)
    return points, f + noise * rng.normal(size=n)


def monthly(seed: int, gaps: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return years and concentrations like those of carbon dioxide: a bent trend, a season, slow wander and noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(1960, 2000, 1 / 12)
    season = 3 * np.sin(2 * np.pi * t) + 0.8 * np.cos(4 * np.pi * t)
    y = 320 + 0.8 * (t - 1960) + 0.012 * (t - 1960) ** 2 + season + np.cumsum(rng.normal(size=len(t))) * 0.05
    kept = np.ones(len(t), bool)
    if gaps:
        kept = (rng.uniform(size=len(t)) < 0.7) & ~((t > 1975) & (t < 1977.3))
    return t[kept, None], (y + 0.2 * rng.normal(size=len(t)))[kept]


@dataclass(frozen=True)
class Picky(inference.Exact):
    """Exact inference that refuses sums."""

    def check_model(self, model):
        if isinstance(model.kernel, kernels.Sum):
            raise InvalidInputError("no sums")


@cache
def fitted(rule: str) -> GPRegressor:
    """Return a fit that several tests read and none changes."""
    return GPRegressor(rule).fit(X, Y)


def chosen(gp: GPRegressor) -> str:
    return next(one.name for one in gp.kernel_choice_.tried if one.weight)


# The choice -----------------------------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(3))
def test_two_scales_are_found(seed):
    kernel = kernels.RBF(3.0, 4.0) + kernels.Matern(0.5, 0.3, 0.5)
    points, y = drawn(kernel, 300, 1, 0.05, seed)
    gp = GPRegressor("choose").fit(points, y)
    assert chosen(gp) in ("rbf+matern32", "matern32+matern12"), gp.kernel_choice_
    assert chosen(gp) != "matern32"


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(3))
def test_the_default_is_kept_where_it_is_true(seed):
    points, y = drawn(kernels.Matern(1.5, 1.0), 200, 2, 0.2, seed)
    gp, alone = GPRegressor("choose").fit(points, y), GPRegressor(kernels.Matern(nu=1.5)).fit(points, y)
    assert chosen(gp) == "matern32"
    assert isinstance(gp.kernel_, kernels.Matern)
    scale = alone.predict(points, return_std=True)[1]
    assert (np.abs(gp.predict(points) - alone.predict(points)) < 0.1 * scale).all()


def test_the_default_is_kept_for_noise():
    rng = np.random.default_rng(1)
    gp = GPRegressor("choose").fit(rng.normal(size=(150, 1)), rng.normal(size=150))
    assert chosen(gp) == "matern32"


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(("seed", "gaps"), [(0, False), (1, True)])
def test_the_year_is_found(seed, gaps):
    t, y = monthly(seed, gaps)
    gp = GPRegressor("choose").fit(t[t[:, 0] < 1990], y[t[:, 0] < 1990])
    assert chosen(gp) == "matern32+rbf*periodic"
    period = next(float(v) for name, v in gp.kernel_.parameters().items() if name.endswith("period"))
    assert abs(period - 1) < 0.01
    after = (t[:, 0] >= 1990) & (t[:, 0] < 1993)
    with pytest.warns(FitWarning, match="has structure"):
        without = GPRegressor(kernels.Matern(nu=1.5)).fit(t[t[:, 0] < 1990], y[t[:, 0] < 1990])
    errors = [np.std(model.predict(t[after]) - y[after]) for model in (gp, without)]
    assert errors[0] < 0.7 * errors[1], errors


def rough_in_many_rows():
    """Return 1,200 rows of a slow wave and an Ornstein-Uhlenbeck process that 100 random rows take for noise."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(size=1200))
    rough = np.zeros(1200)
    for row, kept in enumerate(np.exp(-np.diff(x) / 0.004), 1):
        rough[row] = kept * rough[row - 1] + 0.5 * np.sqrt(1 - kept**2) * rng.normal()
    return x[:, None], np.sin(6 * x) + rough + 0.02 * rng.normal(size=1200)


@pytest.mark.slow
def test_the_short_scale_of_many_rows_is_seen(monkeypatch):
    monkeypatch.setattr(kernel_rules, "CHOICE_ROWS", 100)
    monkeypatch.setattr(kernel_rules, "NEIGHBOUR_ROWS", 300)
    X, y = rough_in_many_rows()
    found = GPRegressor("choose", inference.Vecchia(20)).fit(X, y)
    assert chosen(found) in ("matern12", "matern32+matern12"), found.kernel_choice_
    assert found.kernel_choice_.n_rows == 300
    monkeypatch.setattr(kernel_rules, "_sees_all_rows", lambda *given: False)  # the control
    assert chosen(GPRegressor("choose", inference.Vecchia(20)).fit(X, y)) == "matern32"


def waves_and_a_bend(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of six inputs with short smooth waves along all of them beside a long rough part along two."""
    points = np.random.default_rng(0).normal(size=(n, 6))
    f = np.sin(2 * points[:, 0]) + points[:, 1] ** 2 / 2 * (points[:, 0] > 0) + 0.3 * np.cos(1.2247 * points.sum(1))
    return points, f + 0.1 * np.random.default_rng(1).normal(size=n)


@pytest.mark.slow
def test_where_neighbours_miss_much_kernels_are_compared_by_dense_algebra(monkeypatch):
    points, y = waves_and_a_bend(2500)
    monkeypatch.setattr(kernel_rules, "EXACT_ROWS", 1000)
    given: list[tuple[ExactObjective, torch.Tensor]] = []
    on_subset = kernel_rules._on_subset

    def noted(name, start, default, subset, rows, optimizer, **options):
        given.append((subset, rows))
        return on_subset(name, start, default, subset, rows, optimizer, **options)

    monkeypatch.setattr(kernel_rules, "_on_subset", noted)
    picked = []

    class Chosen(Exception):
        """Ends a fit once its kernel is chosen."""

    def end(rule, trials, *_):
        picked.append(trials)
        raise Chosen

    monkeypatch.setattr(kernel_rules, "choice_of", end)
    for suffices in (False, True):  # the second is the control: what neighbours say is left as it is
        if suffices:
            monkeypatch.setattr(kernel_rules.VecchiaObjective, "suffices", lambda *_: True)
        with pytest.raises(Chosen):
            GPRegressor("choose", inference.Vecchia(60)).fit(points, y)
    exact, by_neighbours = picked
    assert len(exact) == 3
    assert len(by_neighbours) > 5
    table, rows = given[0][0].table, given[0][1]
    assert len(rows) == 1000
    ones = torch.ones(1000, 1, dtype=torch.float64)
    for one in exact:
        H = one.model.kernel.block(table.X, table.X) + one.model.noise_variance * torch.eye(1000)
        inverse = torch.linalg.inv(H)
        P = inverse - inverse @ ones @ ones.T @ inverse / (ones.T @ inverse @ ones)
        error, variance = (P @ table.Y)[:, 0] / P.diagonal(), 1 / P.diagonal()
        densities = -0.5 * (error.square() / variance + variance.log() + np.log(2 * np.pi))
        torch.testing.assert_close(one.densities, densities, rtol=1e-6, atol=1e-6)
        neighbours = next(other for other in by_neighbours if other.name == one.name)
        assert abs(float(neighbours.densities.mean() - densities.mean())) > 1e-3


def count_as_time(monkeypatch):
    """Let a hundredth of a second pass with each look at a clock."""

    class Clock:
        now = 0.0

        def __call__(self):
            self.now += 0.01
            return self.now

    for name in ("time.monotonic", "time.perf_counter"):
        monkeypatch.setattr(name, Clock())


def test_a_time_budget_ends_a_choice(monkeypatch):
    count_as_time(monkeypatch)
    short, long = (GPRegressor("choose", time_budget=budget).fit(X, Y) for budget in (0.5, 1e6))
    assert 1 <= len(short.kernel_choice_.tried) < len(FOUR)
    assert len(long.kernel_choice_.tried) == len(FOUR)


@pytest.mark.parametrize("rule", ["choose", "average"])
def test_more_hyperparameters_than_rows_tell_are_not_tried(rule):
    """Twelve inputs: the sums have 27 hyperparameters, which 60 rows cannot tell, and all others 14 or 15."""
    wide = np.concatenate([X, np.random.default_rng(5).normal(size=(60, 10))], 1)
    choice = GPRegressor(rule).fit(wide, Y).kernel_choice_
    assert [one.name for one in choice.tried] == ["matern32", "rq"]
    assert [name for name, _ in choice.dropped] == list(FOUR[2:])
    assert all("27 hyperparameters" in line for line in choice.lines()[-2:])
    assert not any("hyperparameters" in why for _, why in fitted(rule).kernel_choice_.dropped)


def test_a_period_is_not_found_in_noise():
    rng = np.random.default_rng(2)
    x = torch.from_numpy(np.sort(rng.uniform(size=400)))
    found = [strongest_period(x, torch.from_numpy(rng.normal(size=400))) for _ in range(20)]
    assert sum(one is not None for one in found) <= 1
    wave = torch.sin(2 * torch.pi * x / 0.07) + torch.from_numpy(rng.normal(size=400))
    assert strongest_period(x, wave) == pytest.approx(0.07, rel=0.02)
    assert strongest_period(x[:20], wave[:20]) is None
    assert strongest_period(x * 0, wave) is None
    assert strongest_period(x, x**3) is None, "a cubic trend is no period"


@pytest.mark.slow
def test_an_inference_gets_the_kernels_that_it_supports():
    gp = GPRegressor("choose", Picky()).fit(X, Y)
    assert [one.name for one in gp.kernel_choice_.tried] == ["matern32", "rq"]
    for method in (inference.Iterative(), inference.Vecchia(10, 10), inference.SparseVariational(20)):
        gp = GPRegressor("choose", method).fit(X, Y)
        assert gp.inference_ is method
        assert len(gp.kernel_choice_.tried) == 4


@pytest.mark.slow
def test_a_choice_with_known_noise_and_several_targets():
    noise = np.linspace(0.01, 0.05, len(Y))
    gp = GPRegressor("choose", noise_variance=noise).fit(X, Y)
    np.testing.assert_allclose(gp.noise_variance_, noise)
    two = GPRegressor("choose", mean="linear").fit(X, np.stack([Y, -2 * Y], 1))
    assert two.predict(NEW).shape == (9, 2)


def test_the_same_seed_chooses_the_same_bits():
    one, other = (GPRegressor("choose", random_state=3).fit(X, Y) for _ in range(2))
    assert one.kernel_choice_ == other.kernel_choice_
    np.testing.assert_array_equal(one.predict(NEW), other.predict(NEW))


# Evidence -------------------------------------------------------------------------------------------------------------


def test_an_inert_hyperparameter_costs_nothing():
    """Evidence charges what the rows determine: a second input that does nothing hardly changes it."""
    points, y = drawn(kernels.Matern(1.5, 1.0), 150, 1, 0.2, 0)
    values = []
    for inputs in (points, np.concatenate([points, RNG.normal(size=(150, 1))], 1)):
        posterior = GPRegressor(kernels.Matern(1.5)).fit(inputs, y).posterior_
        assert isinstance(posterior, ExactPosterior)
        likelihood = posterior.log_marginal_likelihood(torch.Generator()).value
        values.append((likelihood, laplace_evidence(posterior, torch.Generator().manual_seed(0))))
    assert all(evidence < likelihood for likelihood, evidence in values)
    assert abs(values[0][1] - values[1][1]) < 6


# The average ----------------------------------------------------------------------------------------------------------


def test_the_weights_are_tempered_evidence():
    gp = fitted("average")
    assert isinstance(gp.posterior_, MixturePosterior)
    tried, dropped = gp.kernel_choice_.tried, dict(gp.kernel_choice_.dropped)
    assert tried[0].name == FOUR[0]
    assert {one.name for one in tried} == {*FOUR} - dropped.keys()
    assert dropped.keys() & {*FOUR[2:]}, "the two sums are rivals"
    assert all(why in gp.describe() for why in dropped.values())
    assert sum(one.weight for one in tried) == pytest.approx(1)
    expected = np.exp(np.array([min(one.gain, one.left_out_gain) for one in tried]) / 10)
    expected[[bool(one.refusal) for one in tried]] = 0
    np.testing.assert_allclose([one.weight for one in tried], expected / expected.sum(), rtol=1e-9)
    weights = sorted((one.weight for one in tried if one.weight), reverse=True)
    np.testing.assert_allclose(gp.posterior_.weights, weights, rtol=1e-14)
    assert repr(gp.kernel_)  # that of the heaviest
    single = GPRegressor(kernels.Matern(nu=1.5)).fit(X, Y)
    default = next(
        one
        for one in gp.posterior_.components
        if one.model.parameters().keys() == {"lengthscale", "variance", "noise_variance"}
    )
    mine = default.log_marginal_likelihood(torch.Generator()).value
    assert mine == pytest.approx(single.log_marginal_likelihood(standardized=True).value, abs=0.2)


@pytest.mark.slow
def test_answers_of_an_average():
    gp = fitted("average")
    mean, std = gp.predict(NEW, return_std=True)
    _, covariance = gp.predict(NEW, return_cov=True)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-6)
    assert (gp.predict(NEW, return_std=True, include_noise=True)[1] > std).all()
    samples = gp.sample_y(NEW, 2000)
    assert (np.abs(samples.mean(1) - mean) < 4 * std / np.sqrt(2000)).all()
    assert gp.sample_functions(5)(NEW).shape == (9, 5)
    assert np.isfinite(gp.log_marginal_likelihood().value)
    assert gp.score(X, Y) > 0.8
    low, high = gp.predict_quantile(NEW, [0.1, 0.9]).T
    inside = sum(
        np.exp(gp.predictive_log_density(NEW, low + t * (high - low))) * (high - low) / 400
        for t in np.linspace(0.5 / 400, 1 - 0.5 / 400, 400)
    )
    np.testing.assert_allclose(inside, 0.8, rtol=1e-3)


@pytest.mark.parametrize("method", [inference.Exact(), inference.Vecchia(80, 80)])
def test_further_rows_change_the_weights(method):
    """Each kernel is conditioned, and weighted by how well it foresaw the rows, as the evidence weights it."""
    gp = GPRegressor("average", method, hyperparameters="learned").fit(X[:40], Y[:40])
    grown = gp.condition_on(X[40:], Y[40:])
    assert grown.posterior_.n_rows == 60
    logs, means = [], []
    for weight, one in zip(gp.posterior_.weights, gp.posterior_.components, strict=True):
        points, targets = (torch.from_numpy(gp.scaling_.inputs(X))), torch.from_numpy(gp.scaling_.targets(Y[:, None]))
        H = one.model.kernel.block(points, points) + one.model.noise_variance * torch.eye(60)
        values = [_restricted(H[:n, :n], targets[:n, 0]) for n in (40, 60)]
        logs.append(float(weight.log()) + (values[1] - values[0]) / 10)
        trend = torch.linalg.solve(H, torch.cat([targets, torch.ones(60, 1).double()], 1))
        beta = trend[:, 0].sum() / trend[:, 1].sum()
        cross = one.model.kernel.block(torch.from_numpy(gp.scaling_.inputs(NEW)), points)
        means.append(beta + cross @ (trend[:, 0] - beta * trend[:, 1]))
    weights = torch.tensor(logs).double().softmax(0)
    np.testing.assert_allclose(grown.posterior_.weights, weights.sort(descending=True).values, rtol=1e-6)
    assert not np.allclose(np.sort(gp.posterior_.weights), np.sort(weights), rtol=1e-3), "the rows say nothing"
    expected = gp.scaling_.original((weights @ torch.stack(means))[:, None].numpy())[:, 0]
    np.testing.assert_allclose(grown.predict(NEW), expected, rtol=1e-6)


def _restricted(H: torch.Tensor, y: torch.Tensor) -> float:
    """Return the log density of rows for a flat prior on the constant mean, up to a constant."""
    ones = torch.ones_like(y)
    solved = torch.linalg.solve(H, torch.stack([y, ones], 1))
    error = y - (ones @ solved[:, 0]) / (ones @ solved[:, 1])
    determinants = torch.logdet(H) + (ones @ solved[:, 1]).log()
    return float(-0.5 * (error @ torch.linalg.solve(H, error) + determinants + len(y) * np.log(2 * np.pi)))


def test_neighbours_are_averaged(tmp_path):
    """With all rows as neighbours, the mixture of the best kernels is that of dense algebra, also from a file."""
    gp = GPRegressor("average", inference.Vecchia(80, 80)).fit(X, Y)
    tried = [one for one in gp.kernel_choice_.tried if one.weight]
    assert gp.kernel_choice_.rule == "average"
    assert 2 <= len(tried) <= 3
    assert [one.kind for one in gp.posterior_.components] == ["vecchia"] * len(tried)
    np.testing.assert_allclose(sorted(one.weight for one in tried), sorted(gp.posterior_.weights.tolist()))
    parts = [
        GPRegressor(
            one.model.kernel,
            inference.Exact(),
            optimizer=None,
            noise_variance=float(one.model.noise_variance),
            hyperparameter_units="standardized",
        ).fit(X, Y)
        for one in gp.posterior_.components
    ]
    weights = gp.posterior_.weights.numpy()
    moments = [one.predict(NEW, return_cov=True) for one in parts]
    mean = sum(w * one for w, (one, _) in zip(weights, moments, strict=True))
    second = sum(w * (C + np.outer(one, one)) for w, (one, C) in zip(weights, moments, strict=True))
    found, covariance = gp.predict(NEW, return_cov=True)
    np.testing.assert_allclose(found, mean, rtol=1e-7)
    np.testing.assert_allclose(covariance, second - np.outer(mean, mean), rtol=1e-5, atol=1e-9)
    assert not np.allclose(found, moments[0][0], rtol=1e-4), "one kernel says the same"
    samples = gp.sample_y(NEW, 2000)
    std = np.sqrt(np.diag(covariance))
    assert (np.abs(samples.mean(1) - found) < 4 * std / np.sqrt(2000)).all()
    low, high = gp.predict_quantile(NEW, [0.1, 0.9]).T
    assert (low < found).all()
    assert (found < high).all()
    gp.save(tmp_path / "m.gp")
    again = gigagp.load(tmp_path / "m.gp")
    for one, other in zip(again.predict(NEW, return_cov=True), (found, covariance), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(
        again.condition_on(NEW, NEW[:, 0]).predict(X), gp.condition_on(NEW, NEW[:, 0]).predict(X)
    )


def test_validation_rows_are_scored():
    gp = GPRegressor("average").fit(X[:50], Y[:50], validation=(X[50:], Y[50:]))
    assert gp.history_[-1].validation_rmse is not None


def test_an_average_finds_the_year():
    t, y = monthly(0)
    gp = GPRegressor("average").fit(t[:360], y[:360])
    with pytest.warns(FitWarning, match="has structure"):
        without = GPRegressor(kernels.Matern(nu=1.5)).fit(t[:360], y[:360])
    assert next(one.weight for one in gp.kernel_choice_.tried if one.name == "matern32+rbf*periodic") > 0.99
    errors = [np.std(model.predict(t[360:396]) - y[360:396]) for model in (gp, without)]
    assert errors[0] < 0.7 * errors[1], errors


def test_a_time_budget_leaves_kernels_out(monkeypatch):
    count_as_time(monkeypatch)
    short, long = (GPRegressor("average", time_budget=budget).fit(X, Y) for budget in (0.5, 1e6))
    assert 1 <= len(short.kernel_choice_.tried) < len(FOUR)
    assert short.history_.interrupted == "time budget"
    assert "time budget" in short.describe()
    assert sum(one.weight for one in short.kernel_choice_.tried) == pytest.approx(1)
    assert len(long.kernel_choice_.tried) + len(long.kernel_choice_.dropped) == len(FOUR)
    assert long.history_.interrupted == ""


def test_ctrl_c_leaves_kernels_out(monkeypatch):
    posterior, calls = ExactObjective.posterior, []

    def pressed(objective, model, generator):
        calls.append(model)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return posterior(objective, model, generator)

    monkeypatch.setattr(ExactObjective, "posterior", pressed)
    with pytest.warns(FitInterruptedWarning, match="learning"):
        gp = GPRegressor("average").fit(X, Y)
    assert len(gp.kernel_choice_.tried) == 2
    assert gp.kernel_choice_.tried[0].name == FOUR[0]
    assert np.isfinite(gp.predict(NEW)).all()


def test_ctrl_c_between_kernels_loses_none(monkeypatch):
    """Not even before the next one has a result."""
    monkeypatch.setattr(kernel_average, "_near", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.warns(FitInterruptedWarning, match="learning"):
        gp = GPRegressor("average").fit(X, Y)
    assert [one.name for one in gp.kernel_choice_.tried] == [FOUR[0]]
    assert np.isfinite(gp.predict(NEW)).all()


# What "auto" does -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_auto_averages_few_rows_and_chooses_for_many(monkeypatch, tmp_path):
    small = GPRegressor("auto").fit(X, Y)
    few, average = (gp.predict(NEW, hyperparameters="learned") for gp in (small, fitted("average")))
    np.testing.assert_array_equal(few, average)
    assert small.kernel == "auto"
    assert small.kernel_choice_.rule == "average"
    small.save(tmp_path / "m.gp")
    again = gigagp.load(tmp_path / "m.gp")
    assert again.kernel == "auto"
    assert again.kernel_choice_ == small.kernel_choice_
    expected = fitted("choose").predict(NEW)
    for fit in (
        lambda: GPRegressor("auto", inference.Vecchia(59, 59)).fit(X, Y),
        lambda: GPRegressor("auto", outputs="shared").fit(X, np.stack([Y, Y], 1)),
        lambda: GPRegressor("auto").fit(X, Y, checkpoint=tmp_path / "c"),
        lambda: GPRegressor("auto", memory_budget=6 * 60 * 60 * 8).fit(X, Y),
    ):
        assert fit().kernel_choice_.rule == "choose"
    monkeypatch.setattr(kernel_rules, "AVERAGED_ROWS", 59)
    large = GPRegressor("auto").fit(X, Y)
    assert large.kernel_choice_.rule == "choose"
    np.testing.assert_array_equal(large.predict(NEW), expected)


@pytest.mark.slow
def test_auto_keeps_to_a_multiple_of_the_default(monkeypatch):
    """By nominal seconds of the evaluations and endings; an average that nobody limits takes more."""
    share = 1.8
    monkeypatch.setattr(allowance, "_SHARE_BESIDE", share)
    monkeypatch.setattr(allowance, "_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(allowance, "_LEAST_BESIDE", 0.0)
    evaluate, made = ExactObjective.evaluate, []

    def noted(self, model):
        made.append((isinstance(model.kernel, kernels.Matern), allowance.step_seconds(self.n_rows, model)))
        return evaluate(self, model)

    monkeypatch.setattr(ExactObjective, "evaluate", noted)
    points, y = drawn(kernels.RBF(3.0, 4.0) + kernels.Matern(0.5, 0.3, 0.5), 120, 2, 0.05, 1)
    spent, tried = {}, {}
    for rule in ("auto", "average"):
        made.clear()
        gp = GPRegressor(rule).fit(points, y)
        own = sum(seconds for is_default, seconds in made if is_default)
        end = allowance.ending_seconds(120, gp.posterior_.model)
        tried[rule] = len(gp.kernel_choice_.tried)
        others = (tried[rule] - 1) * end + sum(seconds for is_default, seconds in made if not is_default)
        spent[rule] = others / (own + end)
    assert spent["auto"] <= share < spent["average"], spent
    assert 1 < tried["auto"] < tried["average"]


def test_auto_without_time_to_spare_is_the_default_to_the_bit(monkeypatch):
    monkeypatch.setattr(allowance, "_SHARE_BESIDE", 0.0)
    monkeypatch.setattr(allowance, "_LEAST_BESIDE", 0.0)
    gp, plain = (GPRegressor(one, hyperparameters="learned").fit(X, Y) for one in ("auto", kernels.Matern(nu=1.5)))
    assert not gp.posterior_.is_mixture
    assert {why for _, why in gp.kernel_choice_.dropped} == {"takes too long compared with the default"}
    for found, expected in zip(gp.predict(NEW, return_std=True), plain.predict(NEW, return_std=True), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.few(1)
@pytest.mark.parametrize("rule", ["choose", "average"])
def test_other_columns_than_numbers(rule, tmp_path):
    """Categories have one lengthscale in every candidate."""
    rng = np.random.default_rng(3)
    colour, x = rng.choice(["red", "green", "blue"], 90), rng.uniform(-2, 2, 90)
    y = np.sin(2 * x) + (colour == "red") + 0.05 * rng.normal(size=90)
    table = pandas.DataFrame({"colour": colour, "x": x})
    gp = GPRegressor(rule, encode="auto").fit(table[:70], y[:70])
    assert gp.kernel_choice_.rule == rule
    components = gp.posterior_.components if rule == "average" else [gp.posterior_]
    for one in components:
        for name, value in one.model.kernel.parameters().items():
            assert value.numel() == (2 if name.endswith("lengthscale") else 1)
    assert np.sqrt(np.mean((gp.predict(table[70:]) - y[70:]) ** 2)) < 0.3 * y.std()
    gp.save(tmp_path / "m.gp")
    np.testing.assert_allclose(gigagp.load(tmp_path / "m.gp").predict(table), gp.predict(table), rtol=1e-12)


# Degenerate tables ----------------------------------------------------------------------------------------------------


TABLES = {
    "constant target": (X[:20], np.full(20, 3.0)),
    "two rows": (X[:2], Y[:2]),
    "two equal rows": (X[[0, 0]], Y[[0, 0]]),
    "no noise": (X[:40], np.sin(X[:40, 0])),
    "repeated rows": (X[:20].repeat(3, 0), Y[:20].repeat(3)),
    "repeated inputs": (X[:20].repeat(2, 0), Y[:40]),
    "badly scaled": (X[:40] * [1e-6, 1e6], 1e5 * Y[:40]),
    "one far row": (np.concatenate([X[:30], [[1e4, 0.0]]]), Y[:31]),
    "a constant input": (X[:30] * [1.0, 0.0], Y[:30]),
    "one input": (X[:35, :1], Y[:35]),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("rule", ["choose", "average"])
def test_degenerate_tables(name, rule):
    points, y = TABLES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the default kernel has them too
        gp = GPRegressor(rule).fit(points, y)
    mean, std = gp.predict(points, return_std=True, include_noise=True)
    assert np.isfinite(mean).all()
    assert (std >= 0).all()
    assert np.abs(mean - y).max() <= 1.1 * np.ptp(y) + 1e-9


def test_beyond_the_rows_error_bars_only_widen():
    """Also where a linear part goes on: its slope is not known exactly."""
    x = np.linspace(0, 1, 40)[:, None] + 100.0
    y = 3 * x[:, 0] + 0.1 * np.random.default_rng(0).normal(size=40)
    for kernel in candidate_kernels(
        kernels.Matern(1.5, 1.0, 1.0).bind(1), torch.from_numpy(x), torch.from_numpy(y)
    ).values():
        gp = GPRegressor(kernel, "auto", None, noise_variance=0.01, hyperparameter_units="standardized").fit(x, y)
        for way in (-1, 1):
            beyond = 100.5 + way * np.array([0.5, 0.6, 0.8, 1.5, 4.0, 20.0])[:, None]
            std = gp.predict(beyond, return_std=True)[1]
            assert (np.diff(std) > -1e-9 * std[-1]).all(), (kernel, std)


@pytest.mark.slow
def test_rows_that_are_exact_do_not_decide_alone(monkeypatch):
    """Nine targets of ten are an input, to the digit; the others tell how a kernel fills gaps, by their CRPS."""
    rng = np.random.default_rng(1)
    X = rng.uniform(0, 1, (160, 2))
    X[:, 1] = rng.uniform(size=160) < 0.1
    y = np.where(X[:, 1] > 0, np.cos(25 * X[:, 0]) * rng.uniform(0.5, 1.0, 160), X[:, 0])
    found = {}
    for name, refuses in (("default", True), ("rule", True), ("control", False)):
        if not refuses:
            monkeypatch.setattr(kernel_trials.KernelTrial, "predicts_worse", lambda *_: False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            rule = None if name == "default" else "choose"
            gp = GPRegressor(rule, hyperparameters="learned").fit(X[:110], y[:110])
        mean, std = gp.predict(X[110:], return_std=True, include_noise=True)
        found[name] = gigagp.metrics.gaussian_crps(y[110:], mean, std)
    assert found["rule"] < 1.05 * found["default"]
    assert found["control"] > 1.5 * found["default"]


@pytest.mark.parametrize("crps", [0.9, 1.1])
def test_what_predicts_left_out_rows_worse_has_no_weight(crps):
    model = SimpleNamespace(noise_is_known=True)
    row = torch.ones(20, dtype=torch.float64)
    default = kernel_trials.KernelTrial(0.0, 0 * row, "matern32", model, crps=row)
    other = kernel_trials.KernelTrial(50.0, 3 * row, "rq", model, crps=crps * row)
    weights = kernel_trials.tempered_weights([default, other])
    assert weights == pytest.approx([0.0, 1.0] if crps < 1 else [1.0, 0.0], abs=0.02)


@pytest.mark.few(1)
@pytest.mark.parametrize("rule", ["choose", "average"])
def test_repeats_do_not_take_the_noise_away(rule):
    """Rows that were entered twice: a rough part of a sum explains the noise, and new rows have it again."""
    rng = np.random.default_rng(4)
    points = rng.uniform(-2, 2, (150, 2))
    y = np.sin(points[:, 0]) + 0.3 * rng.normal(size=150)
    new = rng.uniform(-2, 2, (300, 2))
    y_new = np.sin(new[:, 0]) + 0.3 * rng.normal(size=300)
    repeated = np.concatenate([points, points[:100]]), np.concatenate([y, y[:100]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        losses = []
        for kernel in (kernels.Matern(nu=1.5), rule):
            gp = GPRegressor(kernel).fit(*repeated)
            mean, std = gp.predict(new, return_std=True, include_noise=True)
            losses.append(gigagp.metrics.gaussian_nll(y_new, mean, std))
    assert losses[1] < losses[0] + 0.05, losses


def test_repeats_among_many_rows_do_not_take_the_noise_away(monkeypatch):
    """As above, for a rough kernel that was learned on rows given their neighbours."""
    monkeypatch.setattr(kernel_rules, "CHOICE_ROWS", 100)
    monkeypatch.setattr(kernel_rules, "NEIGHBOUR_ROWS", 300)
    x, y = rough_in_many_rows()
    repeated = np.concatenate([x, x[::12]]), np.concatenate([y, y[::12]])
    again = y[::12] + 0.02 * np.sqrt(2) * np.random.default_rng(1).normal(size=100)  # the same function, a new error
    losses = []
    for least in (0.1, 0.0):  # the control has no least noise
        monkeypatch.setattr(noise_support, "_LOST", least)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            gp = GPRegressor("choose", inference.Vecchia(20)).fit(*repeated)
        assert chosen(gp) in ("matern12", "matern32+matern12"), gp.kernel_choice_
        mean, std = gp.predict(x[::12], return_std=True, include_noise=True)
        losses.append(gigagp.metrics.gaussian_nll(again, mean, std))
    assert losses[0] < 0, losses
    assert losses[1] > 10, losses


# Manners, files, the command line -------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("rule", ["choose", "average"])
def test_save_load_and_describe(rule, tmp_path):
    gp = fitted(rule)
    gp.save(tmp_path / "m.gp")
    again = gigagp.load(tmp_path / "m.gp")
    for one, other in zip(again.predict(NEW, return_cov=True), gp.predict(NEW, return_cov=True), strict=True):
        np.testing.assert_array_equal(one, other)
    assert again.kernel == rule
    assert again.kernel_choice_ == gp.kernel_choice_
    assert again.describe() == gp.describe()
    for one in gp.kernel_choice_.tried:
        assert one.name in gp.describe()
    kind, tensors, header = load_state(tmp_path / "m.gp")
    for change in ({"rule": "best"}, {"tried": [{"name": 3}]}, {"n_rows": 0}):
        broken = {**header, "kernel_choice": {**header["kernel_choice"], **change}}
        save_state(tmp_path / "b.gp", kind, tensors, broken)
        with pytest.raises(ModelFileError, match="kernel_choice"):
            gigagp.load(tmp_path / "b.gp")
    header.pop("kernel_choice")  # of an earlier version
    save_state(tmp_path / "old.gp", kind, tensors, header)
    assert gigagp.load(tmp_path / "old.gp").kernel_choice_ is None


def test_a_record_survives_json():
    choice = fitted("choose").kernel_choice_
    assert KernelChoice.from_plain(json.loads(json.dumps(choice.to_plain()))) == choice


def test_manners_of_scikit_learn():
    gp = clone(GPRegressor("choose"))
    assert gp.get_params()["kernel"] == "choose"
    gp.set_params(kernel="average").fit(X[:30], Y[:30])
    assert gp.kernel == "average"
    gp.set_params(kernel=kernels.RBF()).fit(X[:30], Y[:30])
    assert gp.kernel_choice_ is None
    assert GPRegressor("choose").predict(NEW).shape == (9,)  # of the prior, before a fit


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"kernel": "best"}, '"auto"'),
        ({"kernel": "choose", "optimizer": None}, "optimizer=None"),
        ({"kernel": "auto", "optimizer": None}, "optimizer=None"),
        ({"kernel": "auto", "likelihood": "poisson"}, "Gaussian noise"),
        ({"kernel": "average", "likelihood": "student-t"}, "Gaussian noise"),
        ({"kernel": "average", "inference": inference.Iterative()}, "inference.Exact"),
        ({"kernel": "average", "inference": inference.Grid(size=9)}, "same rows"),
    ],
)
def test_what_does_not_work_is_refused(arguments, word):
    with pytest.raises(InvalidInputError, match=word):
        GPRegressor(**arguments).fit(X, np.abs(Y).round())  # counts suit every likelihood


def test_more_refusals(tmp_path):
    with pytest.raises(InvalidInputError, match="needs fit"):
        GPRegressor("choose", inference.Grid(size=9)).fit_table((X, Y))
    with pytest.raises(InvalidInputError, match="checkpoint"):
        GPRegressor("average").fit(X, Y, checkpoint=tmp_path / "c")
    with pytest.raises(InvalidInputError, match="one target"):
        GPRegressor("average", outputs="shared").fit(X, np.stack([Y, Y], 1))
    with pytest.raises(MemoryBudgetError, match="4 models on 60 rows"):
        GPRegressor("average", memory_budget=5 * 60 * 60 * 8).fit(X, Y)
    with pytest.raises(InvalidInputError, match="kernel of GPClassifier"):
        GPClassifier(kernel="auto").fit(X, Y > 0)


def test_a_choice_with_a_checkpoint_and_another_optimizer(tmp_path):
    gp = GPRegressor("choose", optimizer=optimization.LBFGS(steps=5)).fit(X, Y, checkpoint=tmp_path / "c")
    assert not (tmp_path / "c").exists()
    assert gp.kernel_choice_.n_rows == 60


@pytest.mark.parametrize(("n", "many", "has"), [(500, False, False), (501, False, True), (500, True, True)])
def test_a_short_smooth_part_is_tried_where_rows_can_tell(n, many, has):
    points = torch.from_numpy(np.random.default_rng(0).normal(size=(n, 2)))
    found = candidate_kernels(kernels.Matern(1.5).bind(2), points, points[:, 0], many_rows=many)
    assert ("matern32+rbf" in found) == has


@pytest.mark.slow
def test_waves_along_all_inputs_beside_a_bend_along_one():
    """No single lengthscale for each input serves both, and the rough part is the long one."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(1800, 3))
    f = np.abs(points[:, 0]) + 0.3 * np.cos(2 * points.sum(1))
    y = f + 0.05 * rng.normal(size=1800)
    gp = GPRegressor().fit(points[:800], y[:800])
    assert gp.kernel_choice_.tried[-1].name == "matern32+rbf"
    assert gp.kernel_choice_.tried[-1].weight > 0.9
    # The control is the sum whose short part is rough.
    start = kernels.RBF(4.0, 0.7) + kernels.Matern(1.5, 1.0, 0.3)
    other = GPRegressor(start, hyperparameter_units="standardized").fit(points[:800], y[:800])
    errors = [np.std(one.predict(points[800:]) - f[800:]) for one in (gp, other)]
    assert errors[0] < 0.9 * errors[1], errors


def test_the_candidates_of_one_input():
    t, y = monthly(0)
    default = kernels.Matern(1.5).bind(1)
    found = candidate_kernels(default, torch.from_numpy((t - t.mean()) / t.std()), torch.from_numpy(y))
    assert list(found)[:4] == list(FOUR)
    assert "matern32+rbf*periodic" in found
    assert all(kernel.n_inputs == 1 for kernel in found.values())


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "kernel", "rule"),
    [
        (["--kernel", "choose"], "choose", "choose"),
        (["--kernel", "average"], "average", "average"),
        ([], None, "average"),
        (["--inference", "exact"], None, "average"),
        (["--optimizer", "none"], None, None),
        (["--likelihood", "student-t"], None, None),
        (["--kernel", "rbf"], None, None),
    ],
)
def test_the_command_line(options, kernel, rule, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text(
        "a,b,y\n" + "\n".join(f"{a},{b},{c}" for (a, b), c in zip(X[:40], Y[:40], strict=True)), encoding="utf-8"
    )
    out = str(tmp_path / "m.gp")
    result = CliRunner().invoke(app.app, ["fit", str(table), "--target", "y", "-o", out, "-q", *options])
    assert result.exit_code == 0, result.output
    assert ("kernels tried" in result.output) == (rule is not None)
    gp = gigagp.load(out)
    assert (gp.kernel_choice_ and gp.kernel_choice_.rule) == rule
    if kernel is not None:
        assert gp.kernel == kernel
    for command in (["predict", out, str(table), "-o", str(tmp_path / "p.csv")], ["evaluate", out, str(table)]):
        again = CliRunner().invoke(app.app, command)
        assert again.exit_code == 0, again.output
