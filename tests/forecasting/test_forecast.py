"""`gigagp.forecast`: a known future, every kind of input, components that add up, and input that cannot be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy.special import ndtri

import gigagp
from gigagp.errors import FitWarning, InvalidInputError
from gigagp.estimators.metrics import gaussian_crps
from gigagp.forecasting import choice
from gigagp.forecasting.candidates import found_periods, season, transforms, trends
from gigagp.forecasting.door import _Columns
from gigagp.forecasting.times import Periods
from gigagp.inference.contract.objective import ExactObjective

N, STEPS = 48, 6


def seasonal(n: int = N + STEPS, noise: float = 0.02) -> np.ndarray:
    """Growth times a season of twelve steps."""
    t = np.arange(n)
    random = np.random.default_rng(0)
    return 50 * np.exp(0.01 * t + 0.3 * np.sin(2 * np.pi * t / 12) + noise * random.normal(size=n))


@pytest.fixture(scope="module")
def monthly():
    dates = np.arange("2015-01", "2019-07", dtype="datetime64[M]").astype("datetime64[D]")
    y = seasonal()
    y[7] = np.nan
    return dates[:N], y[:N], dates[N:], y[N:]


@pytest.fixture(scope="module")
def found(monthly):
    dates, y, _, _ = monthly
    return gigagp.forecast(y, STEPS, time=dates)


@pytest.mark.slow
def test_a_season_in_logarithms_is_foretold(found, monthly):
    _, _, dates, truth = monthly
    assert np.array_equal(found.times.astype("datetime64[D]"), dates)
    assert np.abs(found.mean / truth - 1).max() < 4 * 0.02
    lower, upper = found.interval(0.95).T
    assert ((truth > lower) & (truth < upper)).all()
    assert found.chosen.periods == (12.0,)
    assert found.model.target_transform_.kind == "log"
    assert found.rows.n == N - 1
    # by a straight line alone the season would be missed
    assert np.abs(truth.mean() / truth - 1).max() > 4 * 0.02


def test_samples_and_quantiles_are_of_the_same_distribution(found):
    samples = found.samples(4000)
    for level in (0.1, 0.5, 0.9):
        share = (samples < found.quantile(level)[:, None]).mean(1)
        assert np.abs(share - level).max() < 5 * np.sqrt(level * (1 - level) / 4000)
    standard_error = samples.std(1) / np.sqrt(4000)
    assert (np.abs(samples.mean(1) - found.mean) < 5 * standard_error).all()
    table = found.table([0.5])
    assert table.column_names == ["time", "mean", "std", "q0.5"]


@pytest.mark.parametrize("inference", ["Exact", "Markov"])
def test_parts_add_up_and_are_those_of_dense_algebra(inference):
    t = np.sort(np.random.default_rng(2).uniform(0, 40, 30))
    y = np.sin(2 * np.pi * t / 12) + 0.1 * t + 0.1 * np.random.default_rng(3).normal(size=30)
    kernel = next(trends(40.0, 30, None)).plus([season(12.0, 40.0, 0.5)]).kernel
    method = getattr(gigagp.inference, inference)()
    gp = gigagp.GPRegressor(kernel, method, None, "linear", 0.01, verbose=0).fit(t[:, None], y)
    posterior, points = gp.posterior_, torch.linspace(-2.0, 3.0, 7, dtype=torch.float64)[:, None]
    X, model = posterior.X, posterior.model
    H = model.kernel.block(X, X) + float(model.noise_variance) * torch.eye(30, dtype=torch.float64)
    basis = model.mean.basis(X)
    rest = posterior.table.Y.double() - basis @ posterior.coefficients
    total = posterior.trend(points)
    for number, part in enumerate(model.kernel.parts):
        mean, explained, variance = posterior.moments_of_part(points, number)
        cross = part.block(points, X)
        assert torch.allclose(mean, cross @ torch.linalg.solve(H, rest), atol=1e-9)
        assert torch.allclose(explained, cross @ torch.linalg.solve(H, basis), atol=1e-8)
        dense = part.diagonal(points) - (cross * torch.linalg.solve(H, cross.T).T).sum(1)
        assert torch.allclose(variance, dense, atol=1e-9)
        total = total + mean
    assert torch.allclose(total, posterior.mean(points), atol=1e-9)


def test_components_multiply_to_the_forecast_of_the_heaviest_model(found):
    bands = found.components()
    assert list(bands) == ["trend", "season of 12"] or set(bands) > {"trend", "season of 12"}
    product = np.prod([one.mean for one in bands.values()], axis=0)
    heaviest = found.model.posterior_.components[0]
    points = torch.from_numpy(found.model.scaling_.inputs(found.rows.X))
    latent = found.model.scaling_.original(heaviest.mean(points).numpy())[:, 0]
    assert np.allclose(np.log(product), latent, atol=1e-8)
    assert all((one.lower < one.mean).all() and (one.mean < one.upper).all() for one in bands.values())


def test_left_out_stretches_widen_what_is_forecast():
    t = np.arange(11.0)
    y = np.cumsum(np.random.default_rng(1).normal(size=11))
    calm = choice.choose(np.arange(13.0)[:, None], y, Periods((), sure=False), 0)
    assert calm.factor >= 1
    tried = calm.tried[0]
    exact = gigagp.inference.Exact()
    mixture = [choice._mixture(t[:, None], y, [tried], factor, exact, 0) for factor in (1.0, 4.0)]
    means, stds = zip(
        *(one.predict(t[:, None] + 50, return_std=True, include_noise=True) for one in mixture), strict=True
    )
    assert np.allclose(means[0], means[1], rtol=1e-8)
    assert np.allclose(2 * stds[0], stds[1], rtol=1e-6)


def test_left_out_stretches_are_forecast_from_the_rows_before_them():
    """The scores from one factor are those of fits to the rows before each stretch."""
    t, y = np.arange(40.0)[:, None], seasonal(40)
    candidate = replace(next(trends(40.0, 40, None)).plus([season(12.0, 40.0, 0.1)]), transform=transforms(y)[1])
    tried = choice._Learner(t, y, 0).learn(candidate)
    found = choice.forecast_left_out(tried, t, y, 5.0, choice._SameRows())
    z, scores, squares = np.log(y), [], []
    for end in (40, 35, 30, 25)[: found.n_origins]:
        past, future = slice(end - 5), slice(end - 5, end)
        again = choice.given_rows(tried, t[past], z[past], ExactObjective)
        points, scale = torch.from_numpy(tried.scaling.inputs(t[future])), tried.scaling.y_scale[0]
        mean, variance = again.mean_and_variance(points)
        mean = tried.scaling.original(mean.numpy())[:, 0]
        std = scale * (variance + again.model.noise_variance).sqrt().numpy()
        squares.append(np.mean(((z[future] - mean) / std) ** 2))
        scores.append(choice.normal_scores(y[future], mean, std, candidate.transform).mean())
    assert found.n_origins >= 2
    assert np.isclose(found.crps, np.mean(scores), rtol=1e-6)
    assert np.isclose(found.excess, np.mean(squares), rtol=1e-6)
    assert not np.isclose(found.crps, np.mean(scores[1:]), rtol=1e-3)  # the control


def test_candidates_of_another_scale_have_the_same_weights():
    t, y = np.arange(13.0)[:, None], seasonal(11)
    first, second = (choice.choose(t, factor * y, Periods((4.0,), sure=True), 0) for factor in (1.0, 1e3))
    assert [str(one.candidate) for one in first.tried] == [str(one.candidate) for one in second.tried]
    assert np.allclose([one.weight for one in first.tried], [one.weight for one in second.tried], atol=1e-3)


def test_periods_show_in_values_or_differences():
    t, random = np.arange(120.0), np.random.default_rng(0)
    noise = random.normal(size=120)
    assert found_periods(t, noise, Periods((4.0, 12.0), sure=False))[0] == []
    assert found_periods(t, np.sin(2 * np.pi * t / 12) + 0.3 * noise, Periods((4.0, 7.0, 12.0), sure=False))[0] == [
        12.0
    ]
    bent = 1e-3 * (t - 60) ** 3 + 40 * np.sin(t / 20) + (t % 4 == 0) + 0.1 * noise
    assert found_periods(t, bent, Periods((4.0, 7.0), sure=False))[0] == [4.0]
    cycle = found_periods(t, np.sin(2 * np.pi * t / 9.3) + 0.3 * noise, Periods((), sure=False))[1]
    assert cycle == pytest.approx(9.3, rel=0.02)
    assert found_periods(t, noise, Periods((), sure=False))[1] is None


@pytest.mark.slow
def test_a_season_of_guessed_length_is_better_than_all_trends_without_one():
    """A walk whose spectrum shows one of the usual periods by chance has no season; a season that is there stays."""
    t, random = np.arange(62.0)[:, None], np.random.default_rng(2)
    walk, usual = np.cumsum(random.normal(size=60)), Periods((4.0, 7.0, 12.0, 24.0), sure=False)
    assert found_periods(t[:60, 0], walk, usual)[0]
    assert choice.choose(t, walk, usual, 0).periods == ()
    year = 3 * np.sin(2 * np.pi * t[:60, 0] / 12)
    assert choice.choose(t, walk + year, Periods((12.0,), sure=False), 0).periods == (12.0,)


def test_sure_periods_are_tried_in_any_case():
    t = np.arange(9.0)
    assert found_periods(t, np.sin(t), Periods((4.0,), sure=True))[0] == [4.0]
    assert found_periods(t, np.sin(t), Periods((4.0,), sure=False))[0] == []


def test_transforms_are_those_that_values_allow():
    assert [one.kind for one in transforms(np.array([1.0, 2.0]))] == ["none", "log", "yeo-johnson"]
    for y in (np.array([0.0, 1.0, 2.0, 5.0]), np.array([-1.0, 0.0, 3.0])):
        kinds = transforms(y)
        assert "log" not in [one.kind for one in kinds]
        assert all(np.allclose(one.inverse(one.forward(y)), y) for one in kinds)


@pytest.mark.slow
def test_a_table_is_forecast_whatever_its_order():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    dates, y = np.arange("2024-01-31", "2024-02-11", dtype="datetime64[D]"), seasonal(11)
    y[3] = np.nan
    series = gigagp.forecast(pandas.Series(y, index=dates.astype("datetime64[s]"), name="sold"), 2)
    assert series.name == "sold"
    assert series.rows.n == 10
    order = np.random.default_rng(0).permutation(11)
    columns = {"day": dates[order].astype("datetime64[ms]"), "sold": y[order]}
    for frame in (pandas.DataFrame(columns), polars.DataFrame(columns)):
        again = gigagp.forecast(frame, 2, time="day", target="sold")
        assert np.array_equal(again.mean, series.mean)
        assert np.array_equal(again.times, series.times)


def test_many_series_keep_those_that_can_be_forecast():
    days = np.tile(np.arange("2024-01-01", "2024-01-12", dtype="datetime64[D]"), 2)
    sold = np.concatenate([seasonal(11), np.ones(11)])
    table = pa.table({"day": days, "shop": ["a"] * 11 + ["b"] * 11, "sold": sold})
    with pytest.warns(FitWarning, match="1 of 2 series have no forecast, such as 'b': b is 1 at all times"):
        many = gigagp.forecast(table, 3, time="day", target="sold", series="shop")
    assert list(many) == ["a"]
    assert list(many.failures) == ["b"]
    assert many.table()["series"].to_pylist() == ["a"] * 3
    assert "b: failed" in str(many)


def test_covariates_carry_their_future():
    random = np.random.default_rng(0)
    x = (random.random(14) < 0.5).astype(float)
    y = 5 + 3 * x + 0.1 * random.normal(size=14)
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"t": np.arange(14.0), "y": y, "promo": x})
    frame.loc[11:, "y"] = np.nan
    found = gigagp.forecast(frame, time="t", target="y", covariates=["promo"])
    assert np.abs(found.mean - y[11:]).max() < 0.6
    assert "covariates" in found.components()
    with pytest.raises(InvalidInputError, match="has 3 rows with covariates after its last measured value, and 9 are"):
        gigagp.forecast(frame, 9, time="t", target="y", covariates=["promo"])
    frame.loc[12, "promo"] = np.nan
    with pytest.raises(InvalidInputError, match="no value of the covariate 'promo'"):
        gigagp.forecast(frame, time="t", target="y", covariates=["promo"])


@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        ([1.0, 2.0, 3.0], {}, "3 measured values; a forecast needs at least 4"),
        ([1.0, np.nan, np.nan, 2.0, 3.0], {}, "3 measured values"),
        ([5.0] * 9, {}, "is 5 at all times"),
        ([1.0, 2.0, np.inf, 4.0, 5.0], {}, "y must be finite; got infinity in row 2"),
        ([1.0, 2.0, 3.0, 4.0], {"time": [1, 1, 1, 1]}, "fewer than 4 different times"),
        ([1.0, 2.0, 3.0, 4.0], {"time": [1, 2, 3]}, "a time for each of 4 values; got 3"),
        ([1.0, 2.0, 3.0, 4.0], {"time": ["a", "b", "c", "d"]}, "must hold dates, such as 2024-03-31, or numbers"),
        ([1.0, 2.0, 3.0], {"time": ["2024-01-01", "soon", "2024-01-03"]}, "got 'soon' in row 2"),
        ([1.0, 2.0, 3.0, 4.0], {"periods": [7, -7.0]}, "each at least 2; got"),
        ([1.0, 2.0, 3.0, 4.0], {"periods": [float("nan")]}, "each at least 2; got"),
        ([1.0, 2.0, 3.0, 4.0], {"steps": 10**9}, "steps of forecast must be at most 100,000; got 1,000,000,000"),
        ([1.0, 2.0, 3.0, 4.0], {"target": "y"}, "target of forecast needs a data frame"),
        ([1.0, 2.0, 3.0, 4.0], {"steps": 0}, "steps"),
        ([1.0, 2.0, 3.0, 4.0], {"periods": [1]}, r"periods of forecast must be .* each at least 2; got \[1\]"),
        ([1e200, 2e200, 3e200, 5e200], {}, "squares leave the range of float64: up to 5e\\+200"),
        ([1e-200, 2e-200, 3e-200, 5e-200], {}, "squares leave the range"),
        (["a", "b", "c", "d"], {}, "y must be a column of numbers; got one of strings, such as 'a'"),
        (np.arange("2024", "2028", dtype="datetime64[Y]"), {}, "y must be a column of numbers; got one of dates"),
        (np.ones((4, 2)), {}, "one column"),
    ],
)
def test_what_cannot_be_forecast_is_said_before_any_work(y, options, message):
    with pytest.raises(InvalidInputError, match=message):
        gigagp.forecast(y, **{"steps": 2, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "t"}, "must be different columns; got 't' twice"),
        ({"target": "y", "covariates": ["y"]}, "must be different columns; got 'y' twice"),
        ({"target": "y", "covariates": "shop"}, "the column 'shop' must be a column of numbers"),
        ({"target": "y", "series": "shop"}, "the column 'shop' names no series in row 3"),
        ({"target": "z"}, "target of forecast must name a column, one of t, shop, y; got 'z'"),
        ({"target": "y", "time": None}, "time of forecast must name a column"),
    ],
)
def test_tables_that_cannot_be_forecast_are_refused(options, message):
    table = pa.table({"t": range(5), "shop": ["a", "b", None, "a", "b"], "y": [1.0, 2.0, 3.0, 5.0, 4.0]})
    with pytest.raises(InvalidInputError, match=message):
        gigagp.forecast(table, 2, **{"time": "t", **options})


def test_an_index_has_the_times():
    """Dates of pandas' index, also of a frame, and numbers in equal steps, such as years; not the places of rows."""
    pandas = pytest.importorskip("pandas")
    y, days = np.array([1.0, 3.0, 2.0, 4.0, 3.0]), np.arange("2024-01-01", "2024-01-06", dtype="datetime64[D]")

    def following(values, **options):
        columns = _Columns.of(values, options.get("time"), options.get("target"), None, [])
        return columns.rows(np.arange(5), "y", 2).future

    index = pandas.DatetimeIndex(days, name="day")
    expected = np.array(["2024-01-06", "2024-01-07"], dtype="datetime64[s]").astype(float)
    assert np.array_equal(following(pandas.Series(y, index=index)), expected)
    for time in (None, "day"):
        assert np.array_equal(following(pandas.DataFrame({"y": y}, index=index), target="y", time=time), expected)
    assert following(pandas.Series(y, index=range(2000, 2005))).tolist() == [2005, 2006]
    assert following(pandas.Series(y, index=2000 + np.arange(5) / 4)).tolist() == [2001.25, 2001.5]
    assert following(pandas.Series(y, index=[3, 17, 21, 40, 41])).tolist() == [5, 6]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "y",
    [[1.0, 3.0, 2.0, 4.0], [0.0, 0.0, 3.0, 0.0, 1.0, 0.0, 2.0], [-1.0, 2.0, -3.0, 4.0, 0.5]],
    ids=["four", "zeros", "negative"],
)
def test_short_series_have_a_forecast(y):
    found = gigagp.forecast(y, 2)
    assert np.isfinite(found.mean).all()
    assert (found.std > 0).all()


def test_repeated_times_are_kept():
    t = np.repeat(np.arange(5.0), 2)
    found = gigagp.forecast(np.sin(t) + 0.1 * (np.arange(10) % 2), 2, time=t)
    assert found.rows.n == 10
    assert np.array_equal(found.times, [5.0, 6.0])


def test_rows_of_several_series_are_not_taken_for_one_without_a_word():
    t = np.repeat(np.arange(8), 2)
    table = pa.table({"t": t, "shop": ["a", "b"] * 8, "open": np.arange(16) % 3, "y": np.sin(t) + t % 2})
    with pytest.warns(FitWarning, match="differ in the column 'shop'.*series='shop'"):
        gigagp.forecast(table, 1, time="t", target="y")
    gigagp.forecast(table.select(["t", "y"]), 1, time="t", target="y")  # measurements that repeat


def test_a_backtest_scores_all_methods_on_the_same_values():
    y = 10 + np.tile([1.0, 3.0, 2.0, 7.0], 4)[:15] + 0.1 * np.random.default_rng(0).normal(size=15)
    found = gigagp.forecast(y, 2, periods=[4]).backtest(2)
    assert np.array_equal(np.concatenate(found.truth), y[-4:])
    assert found.origins.tolist() == [10.0, 12.0]
    own, naive, before = (found.scores[one] for one in ("gigagp", "naive", "seasonal naive"))
    errors = y[-4:] - np.concatenate(found.mean)
    assert own.rmse == pytest.approx(np.sqrt(np.mean(errors**2)))
    assert naive.mae == pytest.approx(np.abs(y[-4:] - y[[10, 10, 12, 12]]).mean())
    assert before.mae == pytest.approx(np.abs(y[-4:] - y[-8:-4]).mean())
    assert np.isnan(naive.crps)
    assert "RMSE" in str(found)
    with pytest.raises(InvalidInputError, match="Forecast fewer steps"):
        gigagp.forecast([1.0, 3.0, 2.0, 4.0, 3.0], 4).backtest()


def test_scores_of_quantiles_are_near_the_closed_form():
    levels = (np.arange(400) + 0.5) / 400
    y, mean, std = np.array([0.3, -1.0, 2.0]), np.array([0.0, 0.5, 1.0]), np.array([1.0, 0.3, 2.0])
    found = choice.quantile_scores(y, mean[:, None] + std[:, None] * ndtri(levels), levels)
    for k in range(3):
        assert found[k] == pytest.approx(gaussian_crps(y[k : k + 1], mean[k : k + 1], std[k : k + 1]), rel=0.01)


def test_pictures_are_drawn(found, tmp_path):
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "a.png")
    found.plot(tmp_path / "b.svg", components=True)
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert "season of 12" in (tmp_path / "b.svg").read_text(encoding="utf-8")
