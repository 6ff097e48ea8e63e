"""Ordinary tables: a default fit and its predictions say nothing, as warnings are errors in these tests."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from engines import needs_extension
from gigagp import GPRegressor, kernels
from gigagp.errors import GigaGPWarning, warn
from gigagp.runtime.run import unshown

Table = tuple[pd.DataFrame, np.ndarray]


def numbers(n: int, d: int, seed: int = 0) -> tuple[np.random.Generator, np.ndarray]:
    random = np.random.default_rng(seed)
    return random, random.uniform(-2, 2, size=(n, d))


def of(X: np.ndarray, y: np.ndarray) -> Table:
    return pd.DataFrame({f"x{k}": column for k, column in enumerate(X.T)}), y


def line() -> Table:
    random, X = numbers(40, 1)
    return of(X, 3 * X[:, 0] + 0.5 * random.normal(size=40))


def wave() -> Table:
    random, X = numbers(60, 1)
    return of(X, np.sin(4 * X[:, 0]) + 0.1 * random.normal(size=60))


def wave_without_noise() -> Table:
    X = np.linspace(0, 6, 40)[:, None]
    return of(X, np.sin(X[:, 0]))


def step() -> Table:
    random, X = numbers(60, 1)
    return of(X, (X[:, 0] > 0.3) + 0.1 * random.normal(size=60))


def noise_alone() -> Table:
    random, X = numbers(50, 2)
    return of(X, random.normal(size=50))


def plane() -> Table:
    random, X = numbers(120, 4)
    return of(X, X @ [1.0, 2.0, 0.0, -1.0] + 0.3 * random.normal(size=120))


def bowl() -> Table:
    random, X = numbers(80, 2)
    return of(X, (X**2).sum(1) + 0.2 * random.normal(size=80))


def clusters() -> Table:
    random, centres = numbers(6, 3)
    X = 3 * centres[random.integers(6, size=90)] + 0.1 * random.normal(size=(90, 3))
    return of(X, np.sin(X[:, 0]) + 0.1 * random.normal(size=90))


def replicates() -> Table:
    random, X = numbers(15, 1)
    X = np.repeat(X, 4, axis=0)
    return of(X, np.exp(X[:, 0] / 2) + 0.2 * random.normal(size=60))


def grades() -> Table:
    """Whole numbers in few steps, such as marks and scores."""
    random = np.random.default_rng(0)
    X = random.integers(1, 6, size=(100, 3)).astype(float)
    return of(X, np.round(2 * X[:, 0] + X[:, 1] + random.normal(size=100)))


def shares() -> Table:
    random, X = numbers(70, 2)
    return of(X, 1 / (1 + np.exp(-X[:, 0] - 0.3 * random.normal(size=70))))


def large_units() -> Table:
    random, X = numbers(60, 2)
    return of(1e6 * X + 1e8, 1e9 * (X[:, 0] + 0.2 * random.normal(size=60)))


def small_units() -> Table:
    random, X = numbers(60, 2)
    return of(1e-6 * X, 1e-9 * (X[:, 0] ** 2 + 0.2 * random.normal(size=60)))


def growing_noise() -> Table:
    random, X = numbers(100, 1)
    return of(X, X[:, 0] + 0.2 * (2.5 + X[:, 0]) * random.normal(size=100))


def nearly_the_same_columns() -> Table:
    random, X = numbers(60, 1)
    X = np.hstack([X, 2 * X + 1e-3 * random.normal(size=(60, 1))])
    return of(X, X[:, 0] + 0.1 * random.normal(size=60))


def skewed() -> Table:
    random, X = numbers(80, 2)
    return of(X, np.exp(0.5 * X[:, 0] + 0.3 * random.normal(size=80)))


def few_rows() -> Table:
    return of(np.array([[0.0], [1.0], [2.0], [4.0], [5.0]]), np.array([1.0, 1.8, 3.3, 4.9, 6.2]))


def months() -> Table:
    """Dates as texts, with a trend and a season."""
    random = np.random.default_rng(0)
    days = pd.date_range("2015-01-01", periods=72, freq="MS")
    season = np.sin(2 * np.pi * days.day_of_year.to_numpy() / 365)
    return pd.DataFrame({"day": days.strftime("%Y-%m-%d")}), season + np.arange(72) / 40 + 0.1 * random.normal(size=72)


def people() -> Table:
    """Categories, truth values and missing cells beside numbers."""
    random = np.random.default_rng(0)
    age = random.uniform(20, 70, size=90)
    sex = random.choice(["f", "m"], size=90)
    table = pd.DataFrame({"age": age, "sex": sex, "smokes": random.random(90) < 0.3, "height": random.normal(size=90)})
    table.loc[random.random(90) < 0.2, "height"] = np.nan
    return table, 0.1 * age + (sex == "m") + random.normal(size=90)


def one_input_of_many() -> Table:
    random, X = numbers(80, 12)
    return of(X, X[:, 3] ** 2 + 0.2 * random.normal(size=80))


TABLES: list[Callable[[], Table]] = [
    line,
    wave,
    wave_without_noise,
    step,
    noise_alone,
    plane,
    bowl,
    clusters,
    replicates,
    grades,
    shares,
    large_units,
    small_units,
    growing_noise,
    nearly_the_same_columns,
    skewed,
    few_rows,
    months,
    people,
    one_input_of_many,
]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("make", TABLES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("kernel", [None, "auto"])
def test_ordinary_tables_are_fitted_without_a_word(make, kernel):
    table, y = make()
    model = GPRegressor(kernel=kernel, encode="auto", verbose=0).fit(table, y)
    mean, std = model.predict(table, return_std=True, include_noise=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


@needs_extension
def test_candidates_beyond_exact_sizes_are_considered_in_silence(monkeypatch):
    """The forecast of a grid over four inputs warned of the cost of grids, which nobody had asked for."""
    monkeypatch.setattr("gigagp.estimators.planning.EXACT_ROWS", 300)
    monkeypatch.setattr("gigagp.inference.automatic.objective.EXACT_ROWS", 300)
    random, X = numbers(600, 4)
    model = GPRegressor(kernels.Matern(nu=1.5), verbose=0).fit(
        X, np.sin(3 * X[:, 0]) + X[:, 1] + 0.1 * random.normal(size=600)
    )
    assert any(type(option.inference).__name__ == "Grid" for option in model.plan_.options)


def test_only_warnings_of_this_package_are_held_back():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with unshown():
            warn("a candidate", GigaGPWarning)
            warnings.warn("something else", UserWarning, stacklevel=1)
        warn("the fit", GigaGPWarning)
    assert [str(one.message) for one in caught] == ["something else", "the fit"]
