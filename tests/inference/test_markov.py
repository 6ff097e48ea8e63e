"""`inference.Markov` against dense float64 algebra, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch

import gigagp
from contract import dense
from contract.checks import answers, failures
from contract.problems import Problem, Table, draw_targets
from contract.systems import System
from gigagp import GPRegressor, inference, kernels
from gigagp.errors import InvalidInputError, MemoryBudgetError, NotPositiveDefiniteError, SolverWarning
from gigagp.inference.contract.objective import ExactObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.markov.objective import MarkovObjective
from gigagp.kernels.composite import summands
from gigagp.model.means import ConstantMean, LinearMean, ZeroMean
from gigagp.model.model import Model
from gigagp.optimization.space import ParameterSpace
from gigagp.products.filtering import Blocks

SYSTEM = System("markov", lambda p: inference.Markov(), refuses=frozenset({"mixed", "float32"}), by_features=False)


def cosine(variance, period):
    return lambda A, B: variance * np.cos(2 * math.pi * (A[:, None, 0] - B[None, :, 0]) / period)


def wiener(variance, centre):
    def covariance(A, B):
        a, b = A[:, None, 0] - centre, B[None, :, 0] - centre
        near, far = np.minimum(abs(a), abs(b)), np.maximum(abs(a), abs(b))
        return np.where(a * b > 0, variance * near**2 * (3 * far - near) / 6, 0.0)

    return covariance


def damped(lengthscale, variance, centre):
    def run(d):
        return d / lengthscale + np.expm1(-d / lengthscale)

    def covariance(A, B):
        a, b = A[:, None, 0] - centre, B[None, :, 0] - centre
        return variance * lengthscale**2 * (run(abs(a)) + run(abs(b)) - run(abs(a - b)))

    return covariance


def oscillator(variance, period, quality):
    def covariance(A, B):
        x, a = 2 * math.pi / period * abs(A[:, None, 0] - B[None, :, 0]), 0.5 / quality
        b = math.sqrt(1 - a**2)
        return variance * np.exp(-a * x) * (np.cos(b * x) + a / b * np.sin(b * x))

    return covariance


def shifted(variance, centre):
    return lambda A, B: variance * (A[:, None, 0] - centre) * (B[None, :, 0] - centre)


#: Kernel, formula, white noise.
KERNELS = {
    "matern12": (kernels.Matern(0.5, 0.7, 1.3), dense.matern(0.5, 0.7, 1.3), 0.0),
    "matern32": (kernels.Matern(1.5, 0.7, 1.3), dense.matern(1.5, 0.7, 1.3), 0.0),
    "matern52": (kernels.Matern(2.5, 0.7, 1.3), dense.matern(2.5, 0.7, 1.3), 0.0),
    "cosine": (kernels.Cosine(1.3, 2.1), cosine(1.3, 2.1), 0.0),
    "integrated Wiener": (kernels.IntegratedWiener(0.6, centre=0.3), wiener(0.6, 0.3), 0.0),
    "damped trend": (kernels.DampedTrend(1.4, 0.5, centre=0.3), damped(1.4, 0.5, 0.3), 0.0),
    "oscillator": (kernels.Oscillator(1.1, 1.3, 4.0), oscillator(1.1, 1.3, 4.0), 0.0),
    "periodic": (kernels.Periodic(1.1, 0.9, 2.0), dense.periodic(1.1, 0.9, 2.0), 0.0),
    "line and constant": (
        kernels.Linear(0.3, centre=0.2) + kernels.Constant(0.4),
        dense.added(shifted(0.3, 0.2), dense.constant(0.4)),
        0.0,
    ),
    "sum": (
        kernels.Matern(1.5, 0.7) + kernels.Cosine(0.8, 1.7) * kernels.Matern(0.5, 0.9) + kernels.White(0.15),
        dense.added(dense.matern(1.5, 0.7), dense.multiplied(cosine(0.8, 1.7), dense.matern(0.5, 0.9))),
        0.15,
    ),
    "slow season": (
        kernels.Periodic(1.4, 0.9, 2.0) * kernels.Matern(2.5, 3.0) + kernels.IntegratedWiener(0.1),
        dense.added(dense.multiplied(dense.periodic(1.4, 0.9, 2.0), dense.matern(2.5, 3.0)), wiener(0.1, 0.0)),
        0.0,
    ),
}


def times(name):
    """Return times in no order: even, with gaps, in clumps, repeated, or all of this."""
    draw = np.random.default_rng(len(name))
    found = {
        "even": np.linspace(-2, 2, 40),
        "gaps": np.concatenate([draw.uniform(-9, -8, 9), draw.uniform(0, 1, 11), [40.0]]),
        "clumps": draw.uniform(-2, 2, 5).repeat(5) + 1e-7 * draw.normal(size=25),
        "repeated": draw.uniform(-2, 2, 12).repeat(2),
        "few": np.array([0.3, -1.0, 2.0, 2.0, 0.1]),
    }[name]
    return draw.permutation(found)[:, None]


def cell(kernel, where, mean="constant", targets=1, rows=False, noise=0.1):
    """Return a problem of the contract on a table of one input."""
    own, covariance, white = KERNELS[kernel]
    X, draw = times(where), np.random.default_rng(7)
    low, high = X.min(), X.max()
    # a row, between rows, beside one, and beyond them on both sides
    new = np.concatenate([X[:2, 0], draw.uniform(low, high, 5), [X[0, 0] + 1e-6, low - 1, high + 0.5, high + 30]])[
        :, None
    ]
    each = noise * (draw.uniform(0.2, 4.0, len(X)) if rows else np.ones(len(X)))
    table = Table(where, X, new, own, covariance, noise)
    whole = covariance(X, X) + 1e-10 * np.eye(len(X))
    values, vectors = np.linalg.eigh(whole)
    f = vectors * np.sqrt(values.clip(0)) @ draw.normal(size=(len(X), targets))
    found = Problem(table, draw_targets(draw, f, each, "gaussian"), mean, each, rows, "float64", "gaussian")
    Y = found.Y + {"zero": 0.0, "function": 0.0, "constant": 2.0, "linear": 2.0 + X}[mean] + found.offset(X)
    return replace(found, Y=Y), white


WAYS = [("even", "constant", 1, False), ("gaps", "zero", 3, True), ("clumps", "linear", 1, True)]
WAYS += [("repeated", "function", 1, False), ("few", "constant", 2, False)]


@pytest.mark.each
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way[0])
def test_answers_are_those_of_dense_algebra(kernel, way):
    """Mean, variance, covariance, samples, noise and evidence within the rounding of the dense solve."""
    given, white = cell(kernel, *way)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gigagp.inference.markov.states._MOST_ROWS", 7)  # several stretches
        gp = SYSTEM.fit(given)
        wrong = failures(answers(SYSTEM, gp, replace(given, noise=given.noise + white)))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("noise", [1e-4, 10.0])
@pytest.mark.parametrize("kernel", ["matern12", "matern52", "integrated Wiener", "periodic"])
def test_little_and_much_noise(kernel, noise):
    given, _ = cell(kernel, "repeated", noise=noise)
    wrong = failures(answers(SYSTEM, SYSTEM.fit(given), given))
    assert not wrong, "\n".join(wrong)


def test_tiny_noise_by_algebra_of_fifty_digits():
    """Repeated and nearly repeated rows with noise of 1e-11 of the variance, where dense float64 leaves few digits."""
    draw, noise = np.random.default_rng(2), 1e-11
    x = np.concatenate([draw.uniform(-1, 1, 7).repeat(2), [0.5, 0.5 + 1e-7, 0.5 + 3e-7]])
    y = draw.normal(size=len(x))
    z = np.concatenate([x[:2], [0.1, 0.5 + 2e-7, 1.5]])

    def covariance(a, b):
        t = [[mpmath.sqrt(5) * abs(mpmath.mpf(float(p)) - mpmath.mpf(float(q))) for q in b] for p in a]
        return mpmath.matrix([[(1 + one + one**2 / 3) * mpmath.exp(-one) for one in row] for row in t])

    with mpmath.workdps(50):
        H = covariance(x, x) + noise * mpmath.eye(len(x))
        cross = covariance(x, z)
        solved = [mpmath.lu_solve(H, cross[:, k]) for k in range(len(z))]
        mean = np.array([float((solved[k].T * mpmath.matrix(y.tolist()))[0]) for k in range(len(z))])
        variance = np.array([float(1 - (cross[:, k].T * solved[k])[0]) for k in range(len(z))])
    settings = {"optimizer": None, "standardize": False, "mean": "zero", "noise_variance": noise}
    gp = GPRegressor(kernels.Matern(2.5, 1.0, 1.0), inference.Markov(), **settings).fit(x[:, None], y)
    found, std = gp.predict(z[:, None], return_std=True)
    np.testing.assert_allclose(std**2, variance, rtol=1e-4)
    np.testing.assert_allclose(found, mean, atol=1e-4 * np.abs(mean).max())


def both(kernel, mean, n=60, targets=2, rows=False, seed=0):
    draw = np.random.default_rng(seed)
    X = torch.from_numpy(draw.permutation(np.concatenate([draw.uniform(-3, 3, n - 4), [0.5, 0.5, 0.5, 9.0]])))[:, None]
    Y = torch.from_numpy(draw.normal(size=(n, targets)))
    noise = torch.from_numpy(draw.uniform(0.05, 0.3, n)) if rows else torch.tensor(0.1, dtype=torch.float64)
    table = TrainingTable(X, Y, mean, 2**30)
    return Model(kernel.bind(1), mean, noise), ExactObjective(table), MarkovObjective(table)


@pytest.mark.few(11)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("mean", "rows"), [(ConstantMean(), False), (LinearMean(), True), (ZeroMean(), False)])
def test_value_and_gradient_are_the_exact_ones(name, mean, rows):
    model, exact, markov = both(KERNELS[name][0], mean, rows=rows)
    expected, found = exact.evaluate(model), markov.evaluate(model)
    assert found.value == pytest.approx(expected.value, rel=1e-9)
    assert found.gradient.keys() == expected.gradient.keys() - ({"noise_variance"} if rows else set())
    scale = max(float(one.abs().max()) for one in expected.gradient.values())
    for key, value in found.gradient.items():
        assert torch.allclose(value, expected.gradient[key], rtol=1e-7, atol=1e-8 * scale), key


@pytest.mark.slow
def test_the_information_is_that_of_differences_of_rows():
    """Its expectation over targets is Fisher's, whatever the order in which rows are predicted."""
    model, _, _ = both(kernels.Matern(1.5, 0.7) + kernels.White(0.1), ZeroMean())
    draw, X = torch.Generator().manual_seed(1), both(model.kernel, ZeroMean())[1].table.X
    H = model.kernel.block(X, X) + torch.diag(model.noise_of_rows(slice(None), X))
    Y = torch.linalg.cholesky(H) @ torch.randn(len(X), 4000, generator=draw, dtype=torch.float64)
    space = ParameterSpace(model, "log")
    vector = space.encode(model)
    found = MarkovObjective(TrainingTable(X, Y, ZeroMean(), 2**30)).fisher(space, vector, torch.zeros(0, 1)) / 4000

    def covariance(v):
        at = space.decode(v)
        return at.kernel.block(X, X) + torch.diag(at.noise_of_rows(slice(None), X))

    slopes = torch.autograd.functional.jacobian(covariance, vector).permute(2, 0, 1)
    solved = torch.linalg.solve(H, slopes)
    expected = 0.5 * torch.einsum("aij,bji->ab", solved, solved)
    assert torch.allclose(found, expected, rtol=0.03, atol=0.03 * float(expected.abs().max()))


def test_rows_left_out_and_further_rows():
    draw, t = np.random.default_rng(3), times("even")
    y = np.sin(3 * t[:, 0]) + 0.1 * draw.normal(size=len(t))
    settings = {"optimizer": None, "noise_variance": 0.02, "mean": "linear"}
    kernel = kernels.Matern(2.5, 0.8, 1.0)
    exact, markov = (GPRegressor(kernel, one(), **settings).fit(t, y) for one in (inference.Exact, inference.Markov))
    for one, other in zip(exact.leave_one_out(), markov.leave_one_out(), strict=True):
        if isinstance(one, np.ndarray):
            np.testing.assert_allclose(other, one, rtol=1e-8, atol=1e-8)
    new, values = np.array([[-3.0], [0.4], [0.4], [7.0]]), np.array([0.1, 0.2, 0.3, 0.4])
    grown = [gp.condition_on(new, values) for gp in (exact, markov)]
    z = np.linspace(-4, 9, 15)[:, None]
    for one, other in zip(*(gp.predict(z, return_cov=True) for gp in grown), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-8, atol=1e-8)


def test_a_saved_model_predicts_the_same_bits(tmp_path):
    t = times("gaps")
    gp = GPRegressor(kernels.Matern(1.5) + kernels.Oscillator(0.5, 2.0, 3.0), inference.Markov(), random_state=0)
    gp.fit(t, np.sin(t[:, 0]))
    gp.save(tmp_path / "m")
    loaded, z = gigagp.load(tmp_path / "m"), np.linspace(-10, 50, 20)[:, None]
    for one, other in zip(gp.predict(z, return_cov=True), loaded.predict(z, return_cov=True), strict=True):
        np.testing.assert_array_equal(one, other)
    assert "exact along the time" in loaded.describe()
    assert "Kalman filter, states of 4 numbers" in loaded.describe()


def test_unix_seconds_are_as_good_as_days():
    """Times far from zero, with steps of hours, standardized or not."""
    draw = np.random.default_rng(5)
    days = np.sort(draw.uniform(0, 40, 80))
    y = np.sin(days) + 0.1 * draw.normal(size=80)
    seconds = np.round(1.7e9 + 86400 * days)
    days, z = (seconds - 1.7e9) / 86400, np.linspace(-3, 44, 30)
    found = []
    for x, unit, origin in ((days, 1.0, 0.0), (seconds, 86400.0, 1.7e9)):
        kernel = kernels.Matern(2.5, 2.0 * unit, 1.0) + kernels.Oscillator(0.5, 6.3 * unit, 3.0)
        for standardize in (True, False):
            gp = GPRegressor(kernel, inference.Markov(), optimizer=None, noise_variance=0.01, standardize=standardize)
            found.append(gp.fit(x[:, None], y).predict((origin + unit * z)[:, None], return_std=True))
    for mean, std in found[1:]:
        np.testing.assert_allclose(mean, found[0][0], atol=1e-7)
        np.testing.assert_allclose(std, found[0][1], atol=1e-7)


def test_a_trend_far_from_its_centre_keeps_its_noise():
    """A prior variance of 1e11 must not raise the noise, and predictions are nearly those of a flat prior."""
    draw = np.random.default_rng(5)
    t = np.sort(draw.uniform(0, 10, 150))[:, None] + 1e4
    y = np.cos(t[:, 0]) + 0.1 * draw.normal(size=150)
    settings = {"noise_variance": 0.01, "standardize": False, "inference": inference.Markov()}
    kernel = kernels.IntegratedWiener(1.0, centre=0.0)
    with pytest.warns(SolverWarning, match="Variances before the first row have lost their digits"):
        far = GPRegressor(kernel, mean="zero", optimizer=None, **settings).fit(t, y)
    near = GPRegressor(kernels.IntegratedWiener(1.0, centre=1e4), mean="linear", optimizer=None, **settings).fit(t, y)
    z = np.linspace(t.min(), t.max() + 1, 20)[:, None]
    for one, other in zip(far.predict(z, return_cov=True), near.predict(z, return_cov=True), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)  # the slope has a prior deviation of 100
    with pytest.warns(SolverWarning, match="lost their digits"):
        learned = GPRegressor(kernel, mean="zero", random_state=0, **settings).fit(t, y)
    assert 0.005 < learned.noise_variance_ < 0.02


def test_two_thousand_rows_and_none():
    """Many rows on a short stretch, where states hardly move; and points alone."""
    draw = np.random.default_rng(6)
    t = draw.uniform(0, 3, 2000)[:, None]
    y = np.sin(5 * t[:, 0]) + 0.1 * draw.normal(size=2000)
    kernel, settings = kernels.Matern(2.5, 0.8, 1.0), {"optimizer": None, "noise_variance": 0.01}
    exact, markov = (GPRegressor(kernel, one(), **settings).fit(t, y) for one in (inference.Exact, inference.Markov))
    z = np.linspace(-0.5, 3.5, 40)[:, None]
    for one, other in zip(exact.predict(z, return_cov=True), markov.predict(z, return_cov=True), strict=True):
        np.testing.assert_allclose(other, one, atol=1e-8)
    values = [gp.log_marginal_likelihood().value for gp in (exact, markov)]
    assert values[1] == pytest.approx(values[0], rel=1e-10)
    assert markov.posterior_.covariance(torch.zeros(0, 1, dtype=torch.float64)).shape == (0, 0)


def test_learning_finds_the_optimum_of_exact_inference():
    draw = np.random.default_rng(8)
    t = np.sort(draw.uniform(0, 30, 700))
    y = np.sin(2 * t) + 0.3 * draw.normal(size=700)
    exact, markov = (
        GPRegressor(kernels.Matern(1.5), one(), random_state=0).fit(t[:, None], y)
        for one in (inference.Exact, inference.Markov)
    )
    values = [gp.log_marginal_likelihood().value for gp in (exact, markov)]
    assert values[1] >= values[0] - 0.1


@pytest.mark.parametrize("settings", [{"kernel": "choose"}, {"target_transform": "yeo-johnson"}, {"time_budget": 1.0}])
def test_choices_work_as_with_exact_inference(settings):
    draw = np.random.default_rng(4)
    t = np.sort(draw.uniform(0, 10, 80))
    y = np.exp(np.sin(2 * t) + 0.1 * draw.normal(size=80))
    gp = GPRegressor(inference=inference.Markov(), random_state=0, **{"kernel": kernels.Matern(nu=1.5)} | settings).fit(
        t[:, None], y
    )
    assert gp.score(t[:, None], y) > 0.9
    std = gp.predict(t[:3, None], return_std=True)[1]
    assert np.isfinite(std).all()


@pytest.mark.slow
def test_the_forecast_of_auto_knows_it():
    draw = np.random.default_rng(4)
    t = np.sort(draw.uniform(0, 60, 3200))
    plan = GPRegressor(kernels.Matern(nu=1.5), random_state=0).plan(
        t[:, None], np.sin(2 * t) + 0.3 * draw.normal(size=3200)
    )
    assert any(isinstance(one.inference, inference.Markov) and one.nll is not None for one in plan.options)


def test_without_the_extension_answers_are_the_same(monkeypatch):
    t = times("even")
    y, z = np.sin(3 * t[:, 0]), np.linspace(-3, 3, 9)[:, None]
    kernel, found = kernels.Matern(1.5, 0.8, 1.0) + kernels.Cosine(0.3, 1.1), []
    for engine in (Blocks(()).instruction_set, None):
        monkeypatch.setattr("gigagp.inference.markov.states.Blocks", lambda sizes, use=engine: Blocks(sizes, use))
        gp = GPRegressor(kernel, inference.Markov(), optimizer=None, noise_variance=0.01).fit(t, y)
        found.append(gp.predict(z, return_cov=True))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-12)


@pytest.mark.slow
def test_gradients_by_points_are_those_of_exact_inference():
    model, exact, markov = both(kernels.Matern(2.5, 0.7) + kernels.DampedTrend(1.0, 0.2), ConstantMean(), targets=1)
    one, other = exact.posterior(model), markov.posterior(model, torch.Generator())
    X = torch.linspace(-4, 10, 9, dtype=torch.float64)[:, None]
    weights = torch.cos(torch.arange(81, dtype=torch.float64)).reshape(9, 9)

    def slope(posterior):
        points = X.clone().requires_grad_()
        mean, variance = posterior.mean_and_variance(points)
        number = (mean[:, 0] * weights[0] + variance * weights[1]).sum() + (
            posterior.covariance(points) * weights
        ).sum()
        return torch.autograd.grad(number, points)[0]

    assert torch.allclose(slope(other), slope(one), rtol=1e-7, atol=1e-9)
    with pytest.raises(InvalidInputError, match="no gradient with respect to X"):
        other.sample_at(X.clone().requires_grad_(), 2, torch.Generator())


def test_missing_harmonics_are_said():
    t = np.linspace(0, 3, 30)[:, None]
    settings = {"optimizer": None, "noise_variance": 0.01, "inference": inference.Markov()}
    with pytest.warns(SolverWarning, match=r"32 harmonics of Periodic\(.*\) miss 0.0012 of its variance"):
        gp = GPRegressor(kernels.Periodic(0.1, 1.0, 1.0), **settings).fit(t, np.sin(6 * t[:, 0]))
    assert "32, which miss 0.001 of the variance" in gp.describe()
    GPRegressor(kernels.Periodic(0.2, 1.0, 1.0), **settings).fit(t, np.sin(6 * t[:, 0]))  # warnings are errors


def test_student_noise_shrugs_off_outliers():
    draw = np.random.default_rng(9)
    t = np.linspace(0, 6, 120)
    y = np.sin(2 * t) + 0.1 * draw.normal(size=120)
    y[::17] += 5
    gp = GPRegressor(kernels.Matern(2.5), inference.Markov(), likelihood="student-t", random_state=0).fit(t[:, None], y)
    assert np.abs(gp.predict(t[:, None]) - np.sin(2 * t)).max() < 0.3


def test_what_it_cannot_do_is_said():
    t = np.linspace(0, 1, 20)[:, None]
    y = t[:, 0]
    for kernel in (kernels.RBF(), kernels.RationalQuadratic() + kernels.Matern()):
        with pytest.raises(InvalidInputError, match=r"state-space form for inference\.Markov: Matern, .*has no state"):
            GPRegressor(kernel, inference.Markov()).fit(t, y)
    with pytest.raises(InvalidInputError, match="Of several inputs, every part must depend on one column of times"):
        GPRegressor(inference=inference.Markov()).fit(np.hstack([t, t]), y)
    with pytest.raises(InvalidInputError, match="poisson likelihood"):
        GPRegressor(inference=inference.Markov(), likelihood="poisson").fit(t, np.ones(20))
    with pytest.raises(InvalidInputError, match="float32"):
        GPRegressor(inference=inference.Markov(), dtype="float32").fit(t, y)
    with pytest.raises(MemoryBudgetError, match="states of 20 times"):
        GPRegressor(kernels.Periodic(1.0, 1.0, 0.3), inference.Markov(), optimizer=None, memory_budget=10_000).fit(t, y)
    twice = torch.from_numpy(np.concatenate([t, t]))
    objective = MarkovObjective(TrainingTable(twice, torch.zeros_like(twice), ZeroMean(), 2**30))
    model = Model(kernels.Matern(1.5).bind(1), ZeroMean(), torch.tensor(0.0, dtype=torch.float64))
    with pytest.raises(NotPositiveDefiniteError, match="repeated rows need some"):
        objective.posterior(model, torch.Generator())


@pytest.mark.parametrize("mean", ["zero", "linear"])
def test_other_forms_of_the_same_answers(mean):
    draw = np.random.default_rng(5)
    x = np.sort(draw.uniform(0, 5, 40))[:, None]
    y = np.sin(3 * x[:, 0]) + x[:, 0] + 0.1 * draw.normal(size=40)
    gp = GPRegressor(kernels.Matern(1.5), inference.Markov(), None, mean=mean, noise_variance=1e-4).fit(x, y)
    new = draw.uniform(-1, 6, 12)[:, None]
    mean_at, std, parts = gp.predict(new, return_std=True, return_parts=True)
    np.testing.assert_allclose(parts.mathematical, std, rtol=1e-12)
    assert not parts.computational.any()
    posterior, points = gp.posterior_, torch.from_numpy(gp.scaling_.inputs(new))
    given, variance = posterior.mean_and_variance_given_trend(points)
    root = posterior.trend_root(points)
    torch.testing.assert_close(given, posterior.mean(points))
    torch.testing.assert_close(variance + root.square().sum(1), posterior.mean_and_variance(points)[1])
    assert (root.numel() > 0) == (mean == "linear")
    batches = gp.posterior(torch.from_numpy(new.reshape(3, 4, 1))).covariance
    for batch, of_batch in zip(new.reshape(3, 4, 1), batches, strict=True):
        np.testing.assert_allclose(of_batch.numpy(), gp.predict(batch, return_cov=True)[1], rtol=1e-7, atol=1e-12)
    samples = gp.sample_functions(200)(np.concatenate([x, new]))
    assert np.abs(samples[:40] - y[:, None]).max() < 0.2, "the rows have little noise"
    error = np.abs(samples[40:].mean(1) - mean_at) / (std / math.sqrt(200) + 0.02 * y.std())
    assert error.max() < 5


@pytest.mark.parametrize("name", ["slow season", "damped trend"])
def test_points_after_all_rows_need_the_last_one_alone(name):
    model, exact, markov = both(KERNELS[name][0], LinearMean())
    found, expected = markov.posterior(model, torch.Generator()), exact.posterior(model)
    last = exact.table.X.max()
    X = last + torch.tensor([[0.0], [0.4], [2.5], [0.1]], dtype=torch.float64)

    def answers():
        parts = [found.moments_of_part(X, number)[0] for number in range(len(summands(model.kernel)))]
        return [*found.mean_and_variance(X), found.covariance(X), *parts]

    ahead = answers()
    assert "_solved" not in vars(found)
    for one, other in zip(ahead, [*expected.mean_and_variance(X), expected.covariance(X)], strict=False):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)
    found.mean(torch.cat([X, last[None, None] - 0.1]))  # a point before the last row needs all rows
    assert "_solved" in vars(found)
    for one, other in zip(ahead, answers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    told = found.sample_at(X, 2000, torch.Generator().manual_seed(0))[:, 0]
    torch.testing.assert_close(told.var(1), found.covariance(X).diagonal(), rtol=0.2, atol=1e-3)


def test_less_noise_than_rounding_allows_pulls_up_and_never_down():
    draw = np.random.default_rng(6)
    X = torch.from_numpy(np.sort(draw.uniform(0, 5, 30))[:, None])
    table = TrainingTable(X, torch.sin(X), ZeroMean(), 2**28)
    model = Model(kernels.Matern(2.5).bind(1), ZeroMean(), torch.tensor(1e-30, dtype=torch.float64))
    objective = MarkovObjective(table)
    started = objective.start(model)
    assert float(started.noise_variance) > 1e-30
    found, expected = objective.evaluate(model), objective.evaluate(started)
    assert found.value == expected.value
    assert float(expected.gradient["noise_variance"]) < 0, "these rows want less noise"
    assert float(found.gradient["noise_variance"]) == 0.0
    assert float(found.gradient["lengthscale"]) == float(expected.gradient["lengthscale"])
