"""`gigagp.search`: suggestions are right, pending and failed points count, and wrong calls change nothing."""

from __future__ import annotations

import copy
import math
import pickle
import threading

import numpy as np
import pytest
import torch
from scipy import special, stats
from scipy.integrate import trapezoid

from gigagp import GPRegressor, inference, kernels, optimization
from gigagp.errors import InvalidInputError
from gigagp.search import Search
from gigagp.search.acquisition import log_expected_improvement, log_improvement, maximize
from gigagp.search.space import Space

BOX = [(-1.0, 3.0), (10.0, 20.0)]


def bowl(x):
    return float((x[0] - 1.3) ** 2 + 0.1 * (x[1] - 12.0) ** 2)


def told(n=15, **options):
    search = Search(BOX, n_initial=1, **options)
    rng = np.random.default_rng(0)
    X = rng.uniform([-1, 10], [3, 20], size=(n, 2))
    search.tell(X, [bowl(x) for x in X])
    search.ask()
    search._pending = search._pending[:0]  # the Sobol point is not of interest
    return search


def run(search, function, steps):
    for _ in range(steps):
        (x,) = search.ask()
        search.tell(x, function(x))
    return search


# The acquisition function ---------------------------------------------------------------------------------------------


def test_log_improvement_is_right_in_every_tail():
    u = torch.tensor([-1e8, -1e4, -1001.0, -999.0, -40.0, -1.001, -0.999, 0.0, 2.0, 30.0], dtype=torch.float64)
    found = log_improvement(u).numpy()
    # by integration of exp(-t^2 / 2 - |u| t) t, without cancellation: h(-a) = phi(a) times that integral over t > 0
    t = np.linspace(0, 60, 400_001)
    for a, value in zip(-u[:7].numpy(), found[:7], strict=True):
        step = t / a if a > 1.0 else t
        integral = trapezoid(np.exp(-(step**2) / 2 - a * step) * step, step)
        assert value == pytest.approx(
            -(a**2) / 2 - 0.5 * math.log(2 * math.pi) + math.log(integral), rel=1e-8
        )  # the rule of the integral has an error of 2e-9
    plain = stats.norm.pdf(u[6:]) + u[6:].numpy() * special.ndtr(u[6:].numpy())
    np.testing.assert_allclose(found[6:], np.log(plain), rtol=1e-12)
    some = u[2:].clone().requires_grad_()
    assert torch.autograd.gradcheck(log_improvement, some, rtol=1e-4)


def test_the_improvement_is_that_of_samples():
    rng = np.random.default_rng(1)
    X = rng.uniform(size=(12, 2))
    gp = GPRegressor(kernels.Matern(2.5), inference.Exact()).fit(X, np.sin(5 * X).sum(1))
    at = rng.uniform(size=(6, 2))
    best = gp.scaling_.targets(np.array([[0.9]]))[0, 0]
    found = log_expected_improvement(gp.posterior_, gp.scaling_, best)(torch.from_numpy(at)).exp().numpy()
    draws = gp.scaling_.targets(gp.sample_y(at, 200_000, random_state=0))
    gains = np.clip(best - draws, 0, None)
    assert (np.abs(found - gains.mean(1)) < 5 * gains.std(1) / math.sqrt(200_000) + 1e-12).all()


def test_the_maximum_is_found():
    peak = np.array([0.37, 0.81, 0.11])

    def hill(X):
        return -((X - torch.from_numpy(peak)) ** 2).sum(1)

    space, spread = Space([(0, 1)] * 3), torch.quasirandom.SobolEngine(3, scramble=True, seed=0)
    found = maximize(hill, space, spread, np.full((1, 3), 0.5), 0, space.allows)
    np.testing.assert_allclose(found[0], peak, atol=1e-4)
    edge = maximize(lambda X: X.sum(1), space, spread, np.full((1, 3), 0.5), 0, space.allows)
    np.testing.assert_allclose(edge[0], 1.0)


# The loop -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("acquisition", ["logei", "thompson"])
@pytest.mark.parametrize("maximize", [False, True])
def test_the_optimum_is_found_in_the_units_of_the_box(acquisition, maximize):
    sign = -1 if maximize else 1
    search = Search(BOX, maximize=maximize, acquisition=acquisition)
    run(search, lambda x: sign * bowl(x), 22)
    assert bowl(search.best.x) < 5e-3
    assert search.best.y == sign * bowl(search.best.x)
    assert len(search.X) == len(search.y) == 22
    assert len(search.pending) == 0
    by_chance = Search(BOX, n_initial=22)  # the same number of Sobol points
    assert bowl(run(by_chance, bowl, 22).best.x) > 2e-2


def test_first_points_are_spread_and_asking_needs_no_values():
    search = Search(BOX, n_initial=8)
    X = search.ask(8)
    assert ((X >= [-1, 10]) & (X <= [3, 20])).all()
    assert len(np.unique(np.floor(4 * (X - [-1, 10]) / [4, 10])[:, 0])) == 4  # two in each quarter
    assert len(search.pending) == 8
    assert len(search.ask(3)) == 3  # nothing is told yet: the sequence goes on
    search.tell(X[0], 1.0)
    search.ask()
    assert search.gp is None
    search.tell(X[1], 2.0)
    search.ask()
    assert search.gp is not None


def test_the_same_seed_gives_the_same_points():
    found = [run(Search(BOX, random_state=seed), bowl, 12).X for seed in (3, 3, 4)]
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


@pytest.mark.slow
def test_pending_points_are_kept_away_from():
    search = told()
    batch = search.ask(4)
    apart = np.abs(batch[:, None] - batch) / [4, 10]
    assert (apart.max(2) + np.eye(4)).min() > 1e-6
    again = search.ask()
    assert (np.abs(batch - again) / [4, 10]).max(1).min() > 1e-6
    alone = told().ask()
    np.testing.assert_array_equal(alone[0], batch[0])  # the first of a batch is the one that is asked for alone
    search.tell(batch, [bowl(x) for x in batch])
    np.testing.assert_array_equal(search.pending, again)


def test_what_is_told_during_an_ask_waits(monkeypatch):
    search = told()
    fit, others = search._fit, []

    def interrupted():
        others.append(threading.Thread(target=search.tell, args=([0.0, 15.0], 2.0)))
        others[0].start()
        others[0].join(0.2)
        assert len(search.y) == 15
        return fit()

    monkeypatch.setattr(search, "_fit", interrupted)
    search.ask()
    others[0].join()
    assert len(search.y) == 16


def test_a_copy_goes_on():
    search = told()
    again, other = pickle.loads(pickle.dumps(search)), copy.deepcopy(search)
    np.testing.assert_array_equal(again.ask(), search.ask())
    np.testing.assert_array_equal(other.ask(2)[:1], search.pending)


def test_failed_points_are_not_asked_for_again():
    search = told()
    (x,) = search.ask()
    search.tell_failed(x)
    assert len(search.pending) == 0
    np.testing.assert_array_equal(search.failed, x[None])
    (other,) = search.ask()
    assert (np.abs(other - x) / [4, 10]).max() > 1e-6
    assert len(search.y) == 15  # a failure is not a value


@pytest.mark.slow
def test_a_failure_by_chance_hides_no_optimum(monkeypatch):
    def error():
        search = Search([(0, 1)] * 3, n_initial=4)
        for trial in range(25):
            (x,) = search.ask()
            if trial == 7:
                search.tell_failed(x)
            else:
                search.tell(x, float(((x - 0.43) ** 2).sum()))
        return np.abs(search.best.x - 0.43).max()

    found = error()
    assert found < 0.01
    # the control: the worst value, however alone a failure is
    monkeypatch.setattr(Search, "_values_of_failed", lambda self, believed: np.full_like(believed, self._y.max()))
    assert error() > 2 * found


@pytest.mark.slow
def test_a_region_where_all_trials_fail_is_left(monkeypatch):
    """The best point is beside the region, and the values fall towards it."""

    def failures():
        search = Search([(0, 1)] * 2)
        for _ in range(40):
            (x,) = search.ask()
            if x[0] > 0.5:
                search.tell_failed(x)
            else:
                search.tell(x, float((x[0] - 0.8) ** 2 + (x[1] - 0.3) ** 2))
        return search

    search = failures()
    assert len(search.failed) < 20
    assert search.best.y < 0.09 + 0.02
    monkeypatch.setattr(Search, "_values_of_failed", lambda self, believed: believed)  # the control
    assert len(failures().failed) > 25


@pytest.mark.slow
def test_rows_are_added_without_learning_and_learned_again_when_due():
    search = told(n=40)
    search.ask()
    search._pending = search._pending[:0]
    first, model = search.gp, search.gp.posterior_.model
    (x,) = search.ask()
    search.tell(x, float(search.gp.predict((x - [-1, 10])[None] / [4, 10])[0]))  # no surprise
    search.ask()
    assert search.gp is not first
    assert search.gp.posterior_.n_rows == 41
    assert search.gp.posterior_.model.equals(model)
    search.tell([0.0, 15.0], 1e3)  # a surprise
    search.ask()
    assert not search.gp.posterior_.model.equals(model)


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [0.0, 1e12, -1e12]])
def test_odd_values_and_duplicates(values):
    search = Search(BOX, n_initial=1)
    points = [[0.0, 15.0], [1.0, 11.0], [2.0, 19.0]]
    search.tell(points, values)
    search.tell(points[:1] * 3, values[:1] * 3)
    search.tell(points[0], values[0] + 1)
    for _ in range(3):
        (x,) = search.ask()
        assert np.isfinite(x).all()
        search.tell(x, values[0])
    assert len(np.unique(search.X, axis=0)) == 3 + 3


@pytest.mark.slow
def test_other_regressors():
    for how in (inference.Vecchia(), inference.SparseVariational(10), "auto"):
        given = GPRegressor(kernels.Matern(1.5), how, noise_variance=1e-4)
        search = run(Search(BOX, regressor=given), bowl, 12)
        assert bowl(search.best.x) < 1.0
        assert not hasattr(given, "posterior_")


@pytest.mark.parametrize(("acquisition", "sign"), [("logei", 1), ("thompson", -1)])
def test_the_best_point_of_a_known_function_is_asked_for_and_the_search_is_soon_done(acquisition, sign):
    X = np.linspace(0, 1, 9)[:, None]
    known = GPRegressor(kernels.RBF(0.5), noise_variance=1e-8, optimizer=None)
    search = Search([(0, 1)], n_initial=1, acquisition=acquisition, maximize=sign < 0, regressor=known)
    search.tell(X, sign * (X[:, 0] - 0.3) ** 2)
    search.ask()
    for _ in range(4):
        assert not search.is_done(), "three suggestions must promise little"
        (x,) = search.ask()
        assert x[0] == pytest.approx(0.3, abs=0.01)
        search.tell(x, sign * (x[0] - 0.3) ** 2)
    assert search.is_done()
    assert not search.is_done(tolerance=1e-300)


def test_a_surprise_is_learned_from_all_rows_where_the_posterior_keeps_none():
    X = np.linspace(0, 1, 9)[:, None]
    few = GPRegressor(kernels.RBF(0.5), inference.SparseVariational(5), optimizer=optimization.LBFGS(steps=2))
    search = Search([(0, 1)], n_initial=1, regressor=few)
    search.tell(X, X[:, 0])
    search.ask()
    (x,) = search.ask()
    before = search.gp
    search.tell(x, 10.0)
    search.ask()
    assert [gp.posterior_.n_rows for gp in (before, search.gp)] == [9, 10]
    assert not search.gp.posterior_.model.equals(before.posterior_.model)


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "match"),
    [
        ([(0, 1, 2)], "must be pairs"),
        ([], "bounds of Search"),
        ([(0, 1), (2, 2)], r"lower < upper; got \[2.0, 2.0\] for input 1"),
        ([(0, np.nan)], "bounds of Search"),
        ([(-1e308, 1e308)], "lower < upper"),
        ("ab", "bounds of Search"),
    ],
)
def test_bounds_are_checked(bounds, match):
    with pytest.raises(InvalidInputError, match=match):
        Search(bounds)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"acquisition": "ei"}, "acquisition of Search"),
        ({"n_initial": 0}, "n_initial of Search"),
        ({"maximize": "yes"}, "maximize of Search"),
        ({"regressor": "gp"}, "regressor of Search must be a GPRegressor"),
        ({"regressor": GPRegressor(kernels.Matern(nu=1.5), mean=np.ravel)}, "mean of the regressor"),
        ({"regressor": GPRegressor("average")}, "kernel of the regressor"),
        (
            {"regressor": GPRegressor(kernels.Matern(nu=1.5), target_transform="log")},
            "target_transform of the regressor",
        ),
        ({"regressor": GPRegressor(inference=inference.Grid())}, "inference of the regressor"),
        ({"regressor": GPRegressor(inference=inference.ComputationAware())}, "inference of the regressor"),
        ({"regressor": GPRegressor(encode="auto")}, "encode of the regressor"),
        (
            {"regressor": GPRegressor(kernels.Matern(nu=1.5), noise_variance=[1.0, 2.0])},
            "noise_variance of the regressor",
        ),
        ({"regressor": GPRegressor(likelihood="student-t")}, "likelihood of the regressor"),
    ],
)
def test_arguments_are_checked(options, match):
    with pytest.raises(InvalidInputError, match=match):
        Search(BOX, **options)


@pytest.mark.parametrize(
    ("x", "y", "match"),
    [
        ([0.0, 15.0], np.nan, "tell_failed"),
        ([[0.0, 15.0], [1.0, 15.0]], [1.0, np.inf], "tell_failed"),
        ([0.0, 15.0], [1.0, 2.0], "a value for each of 1 point"),
        ([0.0, 15.0, 1.0], 1.0, "must have shape"),
        ([0.0, 21.0], 1.0, "must lie within the bounds"),
        ([0.0, np.nan], 1.0, "x of Search.tell"),
    ],
)
def test_what_is_told_is_checked(x, y, match):
    search = told()
    pending = search.ask()
    with pytest.raises(InvalidInputError, match=match):
        search.tell(x, y)
    assert len(search.y) == 15
    np.testing.assert_array_equal(search.pending, pending)


def test_the_best_of_nothing_and_numbers_of_points():
    with pytest.raises(InvalidInputError, match="no best value yet"):
        _ = Search(BOX).best
    with pytest.raises(InvalidInputError, match=r"n of Search\.ask"):
        Search(BOX).ask(0)
