"""What inference methods say they would cost and bring, and fits that end with the one that a forecast prefers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import gigagp
from engines import NO_EXTENSION
from gigagp import GPRegressor, inference, optimization
from gigagp.estimators import checkpoint
from gigagp.inference.contract.forecast import Forecast, Subject
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.iterative import solve_cost
from gigagp.inference.registry import registered
from gigagp.inference.sparse_variational.inference import extrapolated, trials
from gigagp.kernels import RBF, Linear, Matern
from gigagp.model.means import resolve_mean
from gigagp.model.model import Model
from gigagp.products import NativeTiles
from gigagp.runtime.machine import float64_slowness

SMALL = 150
#: Subsets that leave a table of 200 rows to be learned whole.
QUICK = optimization.Auto(subset_sizes=(50, 100))


def subject(n: int, d: int, noise: float = 0.05, seed: int = 0, gain: float = 0.1) -> Subject:
    """Return clumped rows of a function drawn from the model itself, of which every fifth is left out."""
    random = np.random.default_rng(seed)
    X = torch.from_numpy(random.normal(size=(n, d)) * random.uniform(0.3, 1.5, size=(n, 1)))
    kernel = Matern(nu=2.5, lengthscale=[1.0] * d, variance=1.0).bind(d)
    model = Model(kernel, resolve_mean("zero"), torch.tensor(noise, dtype=torch.float64))
    H = kernel.block(X, X) + noise * torch.eye(n, dtype=torch.float64)
    Y = torch.linalg.cholesky(H) @ torch.from_numpy(random.normal(size=(n, 1)))
    table = TrainingTable(X, Y, model.mean, 2**30)
    densities = 0.5 + 0.1 * torch.from_numpy(random.normal(size=len(range(0, n, 5))))
    squares = torch.ones_like(densities)
    return Subject(table, model, torch.arange(0, n, 5), densities, squares, 0.4, gain, 20.0, 1e-4)


def dense_density(known: Subject, rows: torch.Tensor) -> float:
    """Return the mean negative log density of the left-out rows given others, with variances made right."""
    X, Y, noise = known.table.X, known.table.Y, known.model.noise_variance
    kernel = known.model.kernel
    H = kernel.block(X[rows], X[rows]) + noise * torch.eye(len(rows), dtype=torch.float64)
    cross = kernel.block(X[known.left_out], X[rows])
    solved = torch.linalg.solve(H, torch.cat([Y[rows], cross.T], 1))
    residual = (Y[known.left_out] - cross @ solved[:, :1])[:, 0]
    variance = kernel.diagonal(X[known.left_out]) + noise - (cross * solved[:, 1:].T).sum(1)
    right = (residual.square() / variance).mean() * variance
    return float(0.5 * ((2 * math.pi * right).log() + residual.square() / right).mean())


def test_with_a_point_at_every_row_the_trial_is_exact():
    known = subject(250, 2)
    others = torch.tensor(sorted(set(range(250)) - set(known.left_out.tolist())))
    truth = dense_density(known, others) - known.nll
    whole, few = (inference.SparseVariational(m, learn_inducing_points=False) for m in (250, 5))
    assert trials(whole, known, 50)[-1] == pytest.approx(truth, abs=1e-4)
    assert trials(few, known, 50)[-1] > truth + 0.1  # the control
    assert few.forecast(known).nll > whole.forecast(known).nll + 0.1
    assert few.forecast(known).seconds < whole.forecast(known).seconds


def test_inducing_points_are_not_tried_where_nothing_can_be_gained():
    assert inference.SparseVariational().forecast(subject(250, 2, gain=1e-4)).nll is None


def test_gains_of_twice_the_rows_are_a_geometric_series():
    def law(k: float) -> float:
        return 0.3 + 0.8 * 0.6**k

    scores = [law(k) for k in range(3)]
    assert extrapolated(scores, 4) == pytest.approx(law(6))
    assert extrapolated(scores, 0) == scores[-1]
    assert extrapolated([0.5, 0.4, 0.45], 3) == 0.45  # more rows were worse
    assert extrapolated([0.5, 0.45, 0.30], 100) > 0.30 - 0.15 * 0.8 / 0.2 - 1e-9  # gains that grow do not go on growing


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("size", [12, 20, 60])
def test_a_grid_foresees_about_the_most_that_it_loses(size):
    known = subject(1500, 2, noise=0.02, seed=3)
    table, model = known.table, known.model
    others = torch.tensor(sorted(set(range(1500)) - set(known.left_out.tolist())))
    truth = dense_density(known, others)
    known = replace(known, densities=torch.full((300,), truth), gain=0.0)
    found = inference.Grid(size=size).forecast(known)
    objective = inference.Grid(size=size).objective(table.take_rows(others), torch.Generator().manual_seed(0))
    started = objective.start(model)
    with pytest.warns(gigagp.errors.GigaGPWarning) if size == 12 else _nothing():
        posterior = objective.posterior(started, torch.Generator().manual_seed(0))
    mean, variance = posterior.mean_and_variance(table.X[known.left_out])
    variance = (variance + started.noise_variance).reshape(-1)
    squares = (table.Y[known.left_out] - mean)[:, 0].square()
    right = (squares / variance).mean() * variance
    real = float(0.5 * ((2 * math.pi * right).log() + squares / right).mean())
    assert real - 0.01 < found.nll < truth + 4 * (real - truth) + 0.1
    assert (real > truth + 0.2) == (size == 12)


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *arguments):
        return False


@pytest.mark.parametrize("name", registered())
def test_costs_grow_with_rows(name):
    method = registered()[name]()
    costs = []
    for n in (200, 400):
        known = subject(n, 1 if name == "markov" else 2)  # two inputs of no panel have no states
        method.check_model(known.model)
        costs.append(method.forecast(known))
    if costs[0] is None:
        pytest.skip(f"{name} foresees nothing")
    assert 0 < costs[0].seconds <= costs[1].seconds
    assert 0 < costs[0].memory <= costs[1].memory
    assert all((one.nll is None) == (one.rmse is None) for one in costs)


def rows(n: int, d: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    X = random.uniform(-2, 2, size=(n, d))
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, -1] + 0.2 * random.normal(size=n)


@pytest.fixture
def small(monkeypatch):
    """Let ``inference="auto"`` forecast from 150 rows on, which it does from compiled neighbours."""
    if not NativeTiles.available():
        pytest.skip(NO_EXTENSION)
    monkeypatch.setattr("gigagp.estimators.planning.EXACT_ROWS", SMALL)
    monkeypatch.setattr("gigagp.inference.automatic.objective.EXACT_ROWS", SMALL)


def prefer(monkeypatch, kind, seconds: float = 1e-3):
    monkeypatch.setattr(kind, "forecast", lambda self, known: Forecast(seconds, 1.0, -9.0, 1e-3))


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [inference.SparseVariational, inference.Grid, inference.ComputationAware])
def test_any_method_can_end_a_fit(kind, small, monkeypatch, tmp_path):
    X, y = rows(300)
    other = GPRegressor(Matern(nu=1.5), optimizer=QUICK).fit(X[:200], y[:200])
    prefer(monkeypatch, kind)
    gp = GPRegressor(Matern(nu=1.5), optimizer=QUICK).fit(X[:200], y[:200])
    assert isinstance(gp.inference_, kind)
    assert gp.plan_.chosen.inference == kind()
    assert not isinstance(other.inference_, kind)
    assert kind.__name__ in gp.describe()
    np.testing.assert_allclose(gp.predict(X[200:]), other.predict(X[200:]), atol=0.2)
    gp.save(tmp_path / "model.gp")
    again = gigagp.load(tmp_path / "model.gp")
    assert again.plan_ == gp.plan_
    np.testing.assert_allclose(again.predict(X[200:]), gp.predict(X[200:]), rtol=1e-10)


def test_a_method_that_cannot_have_the_model_is_not_asked(small, monkeypatch):
    prefer(monkeypatch, inference.Grid)
    X, y = rows(200, 5)
    for dtype in ("float32", "mixed"):  # grids are float64
        narrow = GPRegressor(Matern(nu=1.5), dtype=dtype, optimizer=QUICK).fit(X[:, :2], y)
        assert not isinstance(narrow.inference_, inference.Grid)
    assert isinstance(
        GPRegressor(Matern(nu=1.5), optimizer=QUICK).fit(X[:, :2], y).inference_, inference.Grid
    )  # the control
    assert not isinstance(
        GPRegressor(Matern(nu=1.5), optimizer=QUICK).fit(X, y).inference_, inference.Grid
    )  # five inputs
    with_slope = RBF(lengthscale=1.0) * Linear()
    assert not isinstance(GPRegressor(with_slope, optimizer=QUICK).fit(X[:, :2], y).inference_, inference.Grid)


def test_hyperparameters_and_known_noise_leave_neighbours_and_solves(small, monkeypatch):
    prefer(monkeypatch, inference.SparseVariational)
    X, y = rows(200)
    fixed = GPRegressor(Matern(lengthscale=1.0, variance=1.0), noise_variance=0.04, optimizer=None).fit(X, y)
    known = GPRegressor(Matern(nu=1.5), noise_variance=np.full(200, 0.04), optimizer=QUICK).fit(X, y)
    for gp in (fixed, known):
        assert isinstance(gp.inference_, inference.Vecchia | inference.Iterative)
        assert len(gp.plan_.options) == 2


def test_memory_decides_too(small, monkeypatch):
    X, y = rows(200)
    whole = GPRegressor(Matern(nu=1.5), memory_budget="1GiB", optimizer=QUICK).plan(X, y)
    monkeypatch.setattr(
        inference.SparseVariational, "forecast", lambda self, known: Forecast(1e-3, 2.0**31, -9.0, 1e-3)
    )
    plan = GPRegressor(Matern(nu=1.5), memory_budget="1GiB", optimizer=QUICK).plan(X, y)
    assert plan.chosen.inference == whole.chosen.inference
    assert "would take 2 GiB of memory" in plan.reason
    larger = GPRegressor(Matern(nu=1.5), memory_budget="4GiB", optimizer=QUICK).plan(X, y)
    assert isinstance(larger.chosen.inference, inference.SparseVariational)


def test_learning_of_a_bound_that_does_not_begin_ends_with_neighbours(small, monkeypatch):
    """A deadline right after the choice leaves the neighbours' hyperparameters, which are not those of a bound."""
    prefer(monkeypatch, inference.SparseVariational)
    X, y = rows(200)
    real = GPRegressor(Matern(nu=1.5), time_budget=1e6, optimizer=QUICK).fit(X, y)
    assert isinstance(real.inference_, inference.SparseVariational)

    def late(self, *arguments, **options):
        raise gigagp.runtime.interruption.Interrupted

    monkeypatch.setattr("gigagp.optimization.auto.Auto._maximise_bound", late)
    gp = GPRegressor(Matern(nu=1.5), time_budget=1e6, optimizer=QUICK).fit(X, y)
    assert isinstance(gp.inference_, inference.Vecchia)
    assert "took longer than forecast" in gp.describe()
    np.testing.assert_allclose(gp.predict(X), real.predict(X), atol=0.2)


def test_learning_of_a_bound_that_does_not_end_ends_with_neighbours(small, monkeypatch):
    """What the deadline cuts may be far worse than what neighbours have learned already."""
    prefer(monkeypatch, inference.SparseVariational)
    X, y = rows(200)
    kind = type(inference.SparseVariational().objective(_table(X, y), torch.Generator()))
    evaluate, seen = kind.evaluate, []

    def slow(self, model):
        seen.append(1)
        if len(seen) == 4:
            gigagp.runtime.interruption.reserve(1e9)
        return evaluate(self, model)

    monkeypatch.setattr(kind, "evaluate", slow)
    gp = GPRegressor(Matern(nu=1.5), time_budget=1e6, optimizer=QUICK).fit(X, y)
    assert len(seen) == 4
    assert gp.history_.interrupted == "time budget"
    assert isinstance(gp.inference_, inference.Vecchia)
    assert "took longer than forecast" in gp.describe()
    whole = GPRegressor(Matern(nu=1.5), time_budget=1e6, optimizer=QUICK).fit(X, y)  # the control
    assert isinstance(whole.inference_, inference.SparseVariational)
    assert whole.history_.interrupted == ""


def test_what_cannot_end_in_time_is_not_tried(small, monkeypatch):
    known = subject(250, 2)
    few = inference.SparseVariational(5)
    assert few.forecast(known).nll is not None
    late = few.forecast(replace(known, seconds_left=0.5 * few.forecast(known).seconds))
    assert late.nll is None
    assert late.seconds == few.forecast(known).seconds

    def tried(*_):
        raise AssertionError("trial solves")

    monkeypatch.setattr("gigagp.inference.iterative.iterative.automatic", tried)
    monkeypatch.setattr("gigagp.inference.automatic.objective.FEWEST_PRODUCTS", 1e15)
    X, y = rows(200)
    gp = GPRegressor(Matern(nu=1.5), time_budget=1e4, optimizer=QUICK).fit(X, y)
    assert {type(one.inference) for one in gp.plan_.options} >= {inference.Vecchia, inference.Iterative}
    with pytest.raises(AssertionError, match="trial solves"):  # the control
        GPRegressor(optimizer=QUICK).fit(X, y)


def test_a_killed_fit_that_ends_with_inducing_points_resumes(small, monkeypatch, tmp_path):
    prefer(monkeypatch, inference.SparseVariational)
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)
    X, y = rows(200)
    whole = GPRegressor(Matern(nu=1.5), random_state=0, optimizer=QUICK).fit(X, y)
    path = tmp_path / "fit.checkpoint"
    kind = type(inference.SparseVariational().objective(_table(X, y), torch.Generator()))
    evaluate, seen = kind.evaluate, []

    def killed(self, model):
        seen.append(1)
        if len(seen) == 6:
            raise RuntimeError("killed")
        return evaluate(self, model)

    monkeypatch.setattr(kind, "evaluate", killed)
    with pytest.raises(RuntimeError, match="killed"):
        GPRegressor(random_state=0, optimizer=QUICK).fit(X, y, checkpoint=path)
    assert path.exists()
    gp = GPRegressor(Matern(nu=1.5), random_state=0, optimizer=QUICK).fit(X, y, checkpoint=path)
    assert not path.exists()
    assert (gp.predict(X) == whole.predict(X)).all()


def _table(X: np.ndarray, y: np.ndarray) -> TrainingTable:
    return TrainingTable(torch.from_numpy(X), torch.from_numpy(y)[:, None], resolve_mean("zero"), 2**30)


def test_products_in_float32_pay_where_a_gpu_is_slow_in_float64_and_solves_are_long(monkeypatch):
    table = TrainingTable(torch.zeros(4, 2).double(), torch.zeros(4, 1).double(), resolve_mean("zero"), 2**20)
    assert solve_cost.share_in_float32(table, 30.0) == 1.0  # the CPU
    cases = ((2.0, 30.0, 0.6), (32.0, 30.0, 0.13125), (2.0, 4.0, 1.25), (32.0, 3.0, 1.03125))
    for slowness, products, expected in cases:
        monkeypatch.setattr(solve_cost, "float64_slowness", lambda device, known=slowness: known)
        assert solve_cost.share_in_float32(table, products) == pytest.approx(expected)


@pytest.mark.parametrize(("capability", "slowness"), [((9, 0), 2.0), ((8, 0), 2.0), ((8, 6), 32.0), ((12, 0), 32.0)])
def test_only_gpus_for_computing_centres_are_quick_in_float64(capability, slowness, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert float64_slowness(torch.device("cuda")) == slowness
    assert float64_slowness(torch.device("cpu")) == 1.0
