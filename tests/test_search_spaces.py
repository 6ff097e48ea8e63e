"""`gigagp.search` over integers, logs and categories: what the model sees, what is asked, and what a file keeps."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from scipy.linalg import cho_factor, cho_solve

from gigagp import GPRegressor, kernels
from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.search import Search, acquisition
from gigagp.search.space import Space

BOUNDS = {"layers": (1, 8), "rate": (1e-5, 1e-1, "log"), "kind": ["a", "b", "c"], "flag": [False, True]}


def loss(x):
    kind = {"a": 1.0, "b": 0.0, "c": 2.0}[x["kind"]]
    return 0.2 * (x["layers"] - 5) ** 2 + (math.log10(x["rate"]) + 3) ** 2 + kind + 0.5 * x["flag"]


def run(search, function, steps):
    for _ in range(steps):
        (x,) = search.ask()
        search.tell(x, function(x))
    return search


def key(x):
    return tuple(x.items())


# Spaces ---------------------------------------------------------------------------------------------------------------


def test_points_survive_the_way_to_rows_and_back():
    space = Space(
        BOUNDS | {"width": (8, 1024, "log"), "big": (10**12 - 10**7, 10**12), "x": (-2, 3.5), "n": [1, 1.5, None]}
    )
    rows = space.spread(np.random.default_rng(0).uniform(size=(300, len(space.inputs))))
    points = space.points(rows)
    np.testing.assert_allclose(space.rows(points, "x"), rows, atol=1e-15)
    np.testing.assert_allclose(space.spread(space.shares(rows)), rows, atol=1e-15)
    wide = Space({"n": (0, 10**7), "log": (1, 10**7, "log")})
    last = wide.rows([{"n": 10**7 - k, "log": 10**7 - k} for k in range(3)], "x")
    assert (np.abs(np.diff(last, axis=0)) > 2e-9).all()  # two integers are never taken for the same
    assert {type(x["layers"]) for x in points} == {type(x["big"]) for x in points} == {int}
    assert {type(x["rate"]) for x in points} == {type(x["x"]) for x in points} == {float}
    assert {x["n"] for x in points} == {1, 1.5, None}
    assert {x["flag"] for x in points} == {False, True}
    ends = {"layers": 8.0, "rate": np.float64(1e-1), "kind": np.str_("c"), "flag": np.True_}
    assert Space(BOUNDS).points(Space(BOUNDS).rows(ends, "x")) == [
        {"layers": 8, "rate": 0.1, "kind": "c", "flag": True}
    ]


def test_values_are_spread_by_their_share_of_the_scale():
    space = Space({"n": (1, 4), "log": (1, 100, "log"), "kind": ["a", "b", "c"]})
    U = np.repeat((np.arange(3000) + 0.5)[:, None] / 3000, 3, 1)
    points = space.points(space.spread(U))
    assert [sum(x["n"] == k for x in points) for k in range(1, 5)] == [750] * 4
    assert [sum(x["kind"] == k for x in points) for k in "abc"] == [1000] * 3
    width = math.log(100.5 / 0.5)
    for n in (1, 7, 100):
        share = math.log((n + 0.5) / (n - 0.5)) / width
        assert abs(sum(x["log"] == n for x in points) - 3000 * share) <= 1


def test_the_model_is_that_of_dense_algebra():
    """A Matern kernel of the numbers times the overlap of each category, by formulas of the dictionaries."""
    search = run(Search(BOUNDS, n_initial=25), loss, 25)
    search.ask()
    gp = search.gp
    values = {name: value.numpy() for name, value in gp.kernel_.parameters().items()}
    mean = gp.predict(search._space.rows([{"layers": 5, "rate": 1e-3, "kind": "b", "flag": False}], "x"))

    def numbers(points):
        return np.array([[(x["layers"] - 1) / 7, math.log10(x["rate"] / 1e-5) / 4] for x in points])

    def dense(A, B):
        apart = (numbers(A)[:, None] - numbers(B)) / values["0.lengthscale"]
        r = math.sqrt(5) * np.sqrt((apart**2).sum(2))
        K = values["0.variance"] * (1 + r + r**2 / 3) * np.exp(-r)
        for part, name in ((1, "kind"), (2, "flag")):
            differs = np.array([[float(x[name] != z[name]) for z in B] for x in A])
            K = K * np.exp(-differs / values[f"{part}.lengthscale"] ** 2)
        return K

    X, y = search.X, search.y
    factor = cho_factor(dense(X, X) + gp.noise_variance_ * np.eye(25))
    ones = np.ones(25)
    level = ones @ cho_solve(factor, y) / (ones @ cho_solve(factor, ones))
    at = dense([{"layers": 5, "rate": 1e-3, "kind": "b", "flag": False}], X)
    assert mean[0] == pytest.approx((level + at @ cho_solve(factor, y - level))[0], abs=1e-6 * np.ptp(y))


def test_kernels_of_the_regressor_are_of_the_numbers():
    kernel = kernels.RBF(columns=[1]) + kernels.Matern(1.5) * kernels.Constant()
    search = Search(BOUNDS, n_initial=6, regressor=GPRegressor(kernel))
    run(search, loss, 8)
    leaves = [leaf for leaf in search.gp.kernel_.leaves() if not isinstance(leaf, kernels.Constant)]
    assert [list(leaf.columns) for leaf in leaves] == [[1], [0, 1], [2, 3, 4], [5, 6]]
    for columns in ([2], [4], [0, 3]):
        with pytest.raises(InvalidInputError, match=r"columns of Matern of the regressor of Search .* \[0, 1\]"):
            Search(BOUNDS, regressor=GPRegressor(kernels.Matern(columns=columns)))
    only = run(Search({"a": list("xyz"), "b": list("uvw")}, n_initial=3), lambda x: float(x["a"] == x["b"]), 5)
    assert [type(part) for part in only.gp.kernel_.leaves()] == [kernels.Categorical] * 2
    assert run(Search(BOUNDS, n_initial=3, regressor=GPRegressor(kernels.Matern(nu=1.5))), loss, 5).gp is not None


# The maximum ----------------------------------------------------------------------------------------------------------


def found_maximum(space, function):
    spread = torch.quasirandom.SobolEngine(len(space.inputs), scramble=True, seed=0)
    best = space.spread(np.full((1, len(space.inputs)), 0.5))

    def values(rows):
        return torch.tensor([function(x) for x in space.points(rows.numpy())], dtype=torch.float64)

    rows = acquisition.maximize(values, space, spread, best, 0, space.allows)
    return space.points(rows[:1])[0]


def test_a_small_space_is_searched_in_full():
    space = Space({"a": (0, 9), "b": (0, 9), "c": list(range(10))})
    rng = np.random.default_rng(0)
    table = rng.normal(size=(10, 10, 10))
    found = found_maximum(space, lambda x: table[x["a"], x["b"], x["c"]])
    assert table[found["a"], found["b"], found["c"]] == table.max()


def test_steps_to_neighbours_find_what_no_candidate_is(monkeypatch):
    space = Space({"a": (0, 10**6), "b": (1, 10**6, "log"), "c": list(range(40)), "d": list(range(40))})
    best = {"a": 777_777, "b": 345, "c": 17, "d": 3}

    def hill(x):
        far = abs(x["a"] - best["a"]) / 1e6 + abs(math.log(x["b"] / best["b"]))
        return -far - (x["c"] != best["c"]) - (x["d"] != best["d"])

    monkeypatch.setattr(acquisition, "_ROUNDS", 60)
    assert found_maximum(space, hill) == best
    monkeypatch.setattr(acquisition, "_ROUNDS", 0)  # the control: candidates alone
    assert found_maximum(space, hill) != best


def test_gradient_steps_and_neighbours_alternate():
    space = Space({"x": (0.0, 1.0), "n": (0, 50), "kind": list("abcdefgh"), "other": list("abcdefgh")})

    def hill(X):
        n, where = 50 * X[:, 1], X[:, 0]
        return -((where - 0.013 * n).square()) - (n - 37).square() / 100 + X[:, 2 + 5] + X[:, 10 + 6]

    spread = torch.quasirandom.SobolEngine(4, scramble=True, seed=0)
    rows = acquisition.maximize(hill, space, spread, space.spread(np.full((1, 4), 0.5)), 0, space.allows)
    (found,) = space.points(rows[:1])
    assert (found["n"], found["kind"], found["other"]) == (37, "f", "g")
    assert found["x"] == pytest.approx(0.013 * 37, abs=1e-4)


# The loop -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_optimum_of_a_mixed_space_is_found(seed):
    search = run(Search(BOUNDS, random_state=seed), loss, 25)
    assert (search.best.x["layers"], search.best.x["kind"], search.best.x["flag"]) == (5, "b", False)
    assert search.best.y < 1e-2
    assert search.best.y == pytest.approx(loss(search.best.x), abs=1e-12)
    assert search.pending == [] == search.failed


@pytest.mark.slow
def test_no_point_is_asked_for_twice_without_noise(monkeypatch):
    bounds = {"a": (0, 9), "b": (0, 9)}

    def distinct():
        search = run(Search(bounds), lambda x: float((x["a"] - 3) ** 2 + (x["b"] - 7) ** 2), 40)
        return len({key(x) for x in search.X})

    assert distinct() == 40
    # the control: known points are not passed over
    monkeypatch.setattr(Search, "_known", lambda self, chosen, *, repeats: self._space.no_rows)
    assert distinct() < 30


def test_batches_of_a_finite_space_are_of_different_points():
    search = Search({"a": (0, 5), "kind": ["a", "b"]}, n_initial=4)
    batch = search.ask(4)
    search.tell(batch, [x["a"] + (x["kind"] == "a") for x in batch])
    rest = search.ask(8)
    assert len({key(x) for x in batch + rest}) == 12
    search.tell_failed(rest[0])
    assert search.failed == rest[:1]
    assert search.pending == rest[1:]
    assert len(search.ask(3)) == 3  # none is left, and a worker waits


def test_first_points_are_new_until_none_is():
    search = Search({"a": (1, 5), "b": [False, True]}, n_initial=30)
    points = search.ask(10)
    assert len({key(x) for x in points}) == 10
    search.tell(points, [x["a"] for x in points])
    assert search.is_done()
    assert search.ask()[0] in points


@pytest.mark.slow
def test_noise_is_worth_a_second_look():
    """Five arms: once all are known they are told again, and noise that is seen makes the better ones come often."""
    rng = np.random.default_rng(0)
    search = Search({"arm": list("abcde")}, n_initial=3)
    run(search, lambda x: "abcde".index(x["arm"]) + 0.5 * rng.normal(), 5)
    assert {x["arm"] for x in search.X} == set("abcde")
    assert search.is_done()  # so far there is no noise
    run(search, lambda x: "abcde".index(x["arm"]) + 0.5 * rng.normal(), 25)
    assert sum(x["arm"] in "ab" for x in search.X) > 14
    assert not search._exhausted()
    still = run(Search({"arm": list("abcde")}, n_initial=3), lambda x: float("abcde".index(x["arm"])), 12)
    assert still.is_done()
    assert len(still.X) == 12


@pytest.mark.slow
def test_a_search_is_done_when_little_is_promised():
    search = Search(BOUNDS)
    assert not search.is_done()
    done = []
    for _ in range(40):
        (x,) = search.ask()
        search.tell(x, loss(x))
        done.append(search.is_done())
    assert not any(done[: search.n_initial + 2])
    assert done[-1]
    assert search.y[: done.index(True) + 1].min() < 1e-2
    assert not search.is_done(tolerance=1e-300)
    with pytest.raises(InvalidInputError, match="tolerance of"):
        search.is_done(tolerance=-1.0)


@pytest.mark.slow
def test_what_was_told_is_never_out_of_place():
    """Points that nobody asked for, of a grid and beyond `feasible`, are taken as data."""
    search = Search(BOUNDS, feasible=lambda x: x["layers"] < 3, n_initial=1)
    grid = [
        dict(zip(BOUNDS, one, strict=True))
        for one in itertools.product((1, 8), (1e-5, 1e-1), ("a", "b"), (True, False))
    ]
    search.tell(grid, [loss(x) for x in grid])
    assert list(search.X) == grid
    assert all(x["layers"] < 3 for x in search.ask(6))


# What is feasible -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_best_point_of_a_border_is_found():
    def feasible(x):
        return x[0] + 2 * x[1] <= 1.0

    def far(x):
        return float((x[0] - 0.8) ** 2 + (x[1] - 0.6) ** 2)

    search = run(Search([(0, 1), (0, 1)], feasible=feasible), far, 25)
    assert all(feasible(x) for x in search.X)
    best = np.array([0.8, 0.6]) - np.array([1, 2]) / 5  # the nearest point of the line
    np.testing.assert_allclose(search.best.x, best, atol=2e-2)
    free = run(Search([(0, 1), (0, 1)]), far, 25)
    assert not all(feasible(x) for x in free.X)  # the control


def test_few_feasible_points_are_all_found():
    search = Search({"a": (0, 99), "b": (0, 99)}, feasible=lambda x: x["a"] + x["b"] < 4, n_initial=3)
    run(search, lambda x: float(x["a"] ** 2 + x["b"]), 10)
    assert len({key(x) for x in search.X}) == 10  # all that there are


def test_feasible_is_checked():
    with pytest.raises(InvalidInputError, match="feasible of Search must be a function"):
        Search(BOUNDS, feasible=True)
    with pytest.raises(InvalidInputError, match=r"must return True or False; got 3.5 for \{'layers'"):
        Search(BOUNDS, feasible=lambda x: 3.5).ask()
    with pytest.raises(InvalidInputError, match="allows none of 4,096 points"):
        Search(BOUNDS, feasible=lambda x: False).ask()


# The file -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_search_goes_on_from_its_file(tmp_path):
    file = tmp_path / "search.json"
    whole = Search(BOUNDS, maximize=True, n_initial=14, random_state=3)
    expected = whole.ask(14)
    first = Search(BOUNDS, maximize=True, n_initial=14, random_state=3, file=file)
    points = first.ask(6)
    first.tell(points[:4], [-loss(x) for x in points[:4]])
    first.tell_failed(points[4])
    again = Search(BOUNDS, maximize=True, n_initial=14, file=file)  # another seed is given: that of the file counts
    assert list(again.X) == points[:4]
    assert again.failed == points[4:5]
    np.testing.assert_array_equal(again.y, first.y)
    assert again.pending == []
    assert again.ask(2) == [points[5], expected[6]]  # what was asked for and never told comes first
    run(again, lambda x: -loss(x), 12)
    third = Search(BOUNDS, maximize=True, file=file)
    run(third, lambda x: -loss(x), 10)
    assert third.best.y > -1e-1
    assert len({key(x) for x in third.X}) == len(third.X)


def test_arrays_have_files_too(tmp_path):
    file = tmp_path / "search.json"
    search = run(Search([(-1, 3), (10, 20)], file=file), lambda x: float(x.sum()), 8)
    again = Search([(-1, 3), (10, 20)], file=file)
    np.testing.assert_allclose(again.X, search.X, rtol=1e-15)
    np.testing.assert_array_equal(again.y, search.y)
    found = [run(Search([(-1, 3), (10, 20)], file=file), lambda x: float(x.sum()), 1).X[-1] for _ in range(2)]
    assert not np.array_equal(*found)


@pytest.mark.parametrize(
    ("bounds", "options", "match"),
    [
        (BOUNDS | {"layers": (1, 9)}, {}, r"'layers' is \[1, 8\], and \[1, 9\] was given"),
        (BOUNDS | {"layers": (1.0, 8.0)}, {}, r"'layers' is \[1, 8\], and \[1.0, 8.0\] was given"),
        (BOUNDS | {"flag": [0, 1]}, {}, r"its 'flag' is \[False, True\], and \[0, 1\] was given"),
        (BOUNDS | {"more": (0, 1)}, {}, "it has no 'more'"),
        ({"layers": (1, 8)}, {}, "it has 'rate', which was not given"),
        ([(0, 1)], {}, "its bounds are"),
        (dict(reversed(BOUNDS.items())), {}, "its inputs are in the order"),
        (BOUNDS, {"maximize": True}, "maximize is False there, and True was given"),
    ],
)
def test_a_file_of_another_search_is_refused(tmp_path, bounds, options, match):
    file = tmp_path / "search.json"
    run(Search(BOUNDS, file=file), loss, 2)
    before = file.read_bytes()
    with pytest.raises(InvalidInputError, match=f"file of Search: .*search.json.*{match}.*Give another file"):
        Search(bounds, file=file, **options)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda data: "not a search", "cannot be read as the file of a search"),
        (lambda data: "{}", "has no 'format'"),
        (lambda data: json.dumps(data | {"format": "gigagp search 9"}), "format must be one of"),
        (lambda data: json.dumps(data | {"values": [1.0]}), "a value for each of 2 point"),
        (lambda data: json.dumps(data | {"values": [1.0, None]}), "must be a finite number"),
        (lambda data: json.dumps(data | {"asked": -1}), "must be a whole number"),
        (lambda data: json.dumps(data | {"told": [{"layers": 9}] * 2}), "told must have the inputs"),
    ],
)
def test_damaged_files_are_refused(tmp_path, change, match):
    file = tmp_path / "search.json"
    run(Search(BOUNDS, file=file), loss, 2)
    file.write_text(change(json.loads(file.read_text(encoding="utf-8"))), encoding="utf-8")
    with pytest.raises(ModelFileError, match=match):
        Search(BOUNDS, file=file)


def test_a_file_needs_a_folder(tmp_path):
    with pytest.raises(InvalidInputError, match="does not exist"):
        Search(BOUNDS, file=tmp_path / "nowhere" / "search.json")


# The picture ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("maximize", [False, True])
def test_the_picture_has_the_values_and_the_best_so_far(maximize):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    search = Search(BOUNDS, maximize=maximize, n_initial=3)
    with pytest.raises(InvalidInputError, match="no best value yet"):
        search.plot()
    X = search.ask(5)
    search.tell(X, [3.0, 4.0, 1.0, 2.0, 5.0])
    ax = search.plot(figure.add_subplot())
    told, best, first = ax.lines
    np.testing.assert_array_equal(told.get_ydata(), search.y)
    np.testing.assert_array_equal(best.get_ydata(), [3, 4, 4, 4, 5] if maximize else [3, 3, 1, 1, 1])
    assert list(first.get_xdata()) == [3.5, 3.5]


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "match"),
    [
        ({}, "at least one input"),
        ({1: (0, 1)}, "strings as names; got 1"),
        ({"a": (8, 1)}, r"for 'a' must have finite lower < upper; got \(8, 1\)"),
        ({"a": (1, 1)}, "lower < upper"),
        ({"a": (0.0, math.nan)}, "lower < upper"),
        ({"a": (0.0, math.inf)}, "lower < upper"),
        ({"a": (0, 1, "log")}, 'must be positive with "log"'),
        ({"a": (1, 2, "ln")}, "or a list of categories; got"),
        ({"a": (1, "b")}, "or a list of categories"),
        ({"a": (False, True)}, "or a list of categories"),
        ({"a": 3}, "or a list of categories"),
        ({"a": (0, 10**400)}, r"integers up to 10\^12"),
        ({"a": (0.5, 10**400)}, "lower < upper"),
        ({"a": (0, 10**7 + 1)}, r"at most 10\^7 apart"),
        ({"a": (0, 10**13)}, r"integers up to 10\^12"),
        ({"a": ["b"]}, "at least two categories, all different"),
        ({"a": ["b", "c", "b"]}, "all different"),
        ({"a": [1, 1.0]}, "all different"),
        ({"a": [math.nan, 1.0]}, "strings, numbers, booleans or None"),
        ({"a": [(1, 2), (3, 4)]}, "strings, numbers, booleans or None"),
    ],
)
def test_bounds_by_name_are_checked(bounds, match):
    with pytest.raises(InvalidInputError, match=f"bounds of Search.*{match}"):
        Search(bounds)


@pytest.mark.parametrize(
    ("x", "match"),
    [
        ({"kind": "d"}, r"must have one of \['a', 'b', 'c'\] for 'kind'; got 'd'"),
        ({"flag": 1}, r"one of \[False, True\] for 'flag'; got 1"),
        ({"layers": 9}, "an integer from 1 to 8 for 'layers'; got 9"),
        ({"layers": 10**400}, "an integer from 1 to 8"),
        ({"layers": 2.5}, "an integer from 1 to 8 for 'layers'; got 2.5"),
        ({"layers": True}, "an integer from 1 to 8"),
        ({"layers": "2"}, "an integer from 1 to 8"),
        ({"rate": 1.0}, r"a number from 1e-05 to 0.1 \(log\) for 'rate'; got 1.0"),
        ({"rate": -1.0}, "a number from 1e-05"),
        ({"rate": math.nan}, "a number from 1e-05"),
        ({"rat": 1.0}, "and no others; 'rat' is no input"),
    ],
)
def test_what_is_told_by_name_is_checked(x, match):
    search = Search(BOUNDS)
    (point,) = search.ask()
    for tell in (lambda x: search.tell(x, 1.0), search.tell_failed):
        with pytest.raises(InvalidInputError, match=rf"x of Search\.tell.*{match}"):
            tell(point | x)
        with pytest.raises(InvalidInputError, match="'layers' is missing"):
            tell({name: value for name, value in point.items() if name != "layers"})
        with pytest.raises(InvalidInputError, match="must be a dictionary, or a list of them"):
            tell([1.0, 2.0])
    assert search.pending == [point]


def test_a_search_says_what_it_understood():
    found = repr(Search(BOUNDS))
    assert found == (
        "Search over layers: an integer from 1 to 8; rate: a number from 1e-05 to 0.1 (log); "
        "kind: one of ['a', 'b', 'c']; flag: one of [False, True]; 0 values told"
    )
