"""Panels, that is long tables of entities and times, against dense algebra on the covariance of all rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import gigagp
from gigagp import GPRegressor, inference, kernels
from gigagp.errors import InvalidInputError
from gigagp.estimators import checkpoint
from gigagp.inference.exact.exact import ExactObjective
from gigagp.optimization import LBFGS

N_ENTITIES, N_TIMES = 9, 12


def sensors(seed: int = 0, *, share: float = 0.7, inputs: bool = True) -> tuple[pd.DataFrame, np.ndarray]:
    """Return a long table of sensors and its targets, in shuffled order.

    Cells are missing at random; sensor 0 ends early, sensor 1 has one cell, nothing was measured at one time, and two
    cells were measured twice.
    """
    draw = np.random.default_rng(seed)
    seen = draw.random((N_ENTITIES, N_TIMES)) < share
    seen[0, 5:] = seen[1] = seen[:, 7] = False
    seen[1, 2] = True
    cells = np.argwhere(seen)
    cells = draw.permutation(np.concatenate([cells, cells[[3, 10]]]))
    height, hours = draw.normal(size=N_ENTITIES), 20.0 + 3.0 * np.arange(N_TIMES)
    wind, who, when = draw.normal(size=N_TIMES), cells[:, 0], cells[:, 1]
    y = 5 + np.sin(hours / 7)[when] + height[who] * np.cos(hours / 9)[when] + 0.1 * draw.normal(size=len(cells))
    table = pd.DataFrame({"hour": hours[when], "sensor": [f"s{one}" for one in who]})
    if inputs:
        table = table.assign(height=height[who], wind=wind[when], cell=draw.normal(size=len(cells)))
    return table, y


def covariance(gp: GPRegressor, a: pd.DataFrame, b: pd.DataFrame) -> np.ndarray:
    """Return the prior covariance of two tables from what the documentation says of the model."""
    values = {name: value.numpy() for name, value in gp.kernel_.parameters().items()}

    def matern(name: str, columns: list[str]) -> np.ndarray:
        A, B = (one[columns].to_numpy(float) / values[f"{name}.lengthscale"] for one in (a, b))
        t = np.sqrt(3 * np.square(A[:, None] - B[None]).sum(2))
        return values[f"{name}.variance"] * (1 + t) * np.exp(-t)

    same = (a["sensor"].to_numpy()[:, None] == b["sensor"].to_numpy()).astype(float)
    if "height" not in a:
        own = same * values["0.0.variance"] * matern("0.1", ["hour"]) + same * values["1.variance"]
        return own + matern("2", ["hour"])
    product = same * values["0.0.0.variance"] + matern("0.0.1", ["height"])
    product = product * matern("0.1", ["hour", "wind"])
    alone = same * values["1.variance"] + matern("2", ["height"])
    return product + alone + matern("3", ["hour", "wind"]) + matern("4", ["cell"])


def dense(gp, table, y, points, noise=None):
    """Return mean, covariance and likelihood of kriging with an unknown constant."""
    noise = np.broadcast_to(gp.noise_variance_ if noise is None else noise, len(y))
    H = covariance(gp, table, table) + np.diag(noise)
    cross, ones = covariance(gp, points, table), np.ones(len(y))
    solved = np.linalg.solve(H, np.column_stack([ones, y, cross.T]))
    of_ones, of_cross = solved[:, 0], solved[:, 2:]
    constant = ones @ solved[:, 1] / of_ones.sum()
    rest = 1 - cross @ of_ones
    mean = constant + cross @ (solved[:, 1] - constant * of_ones)
    posterior = covariance(gp, points, points) - cross @ of_cross + np.outer(rest, rest) / of_ones.sum()
    residual = y - constant
    value = -0.5 * (residual @ np.linalg.solve(H, residual) + np.linalg.slogdet(H)[1] + len(y) * np.log(2 * np.pi))
    return mean, posterior, value


def questions(table: pd.DataFrame) -> pd.DataFrame:
    """Return a known cell, a gap, a new time, forecasts, and two new sensors at one place and time."""
    found = pd.DataFrame(
        {
            "hour": [table["hour"].iloc[0], 41.0, 33.3, 70.0, 70.0, 30.0, 30.0, 33.0],
            "sensor": [table["sensor"].iloc[0], "s0", "s1", "s0", "s4", "new", "newer", "new"],
        }
    )
    if "height" in table:
        heights = table.groupby("sensor")["height"].first()
        found["height"] = [heights.get(one, 0.4) for one in found["sensor"]]
        found["wind"], found["cell"] = 0.1, 0.2
    return found


@pytest.fixture(scope="module")
def fitted() -> tuple[GPRegressor, pd.DataFrame, np.ndarray]:
    table, y = sensors()
    return GPRegressor(panel=("sensor", "hour"), optimizer=None).fit(table, y), table, y


@pytest.mark.parametrize(
    ("method", "inputs", "tolerance"),
    [
        (inference.Exact(), True, 1e-8),
        (inference.Exact(), False, 1e-8),
        (inference.Vecchia(n_neighbors=200), False, 1e-8),
        (inference.Iterative(solver=gigagp.solvers.ConjugateGradients(tolerance=1e-10)), True, 1e-6),
    ],
)
def test_answers_are_those_of_dense_algebra(method, inputs, tolerance):
    table, y = sensors(inputs=inputs)
    noise = 0.01 * np.linspace(0.5, 2.0, len(y)) if not inputs else None
    gp = GPRegressor(panel=("sensor", "hour"), inference=method, optimizer=None, noise_variance=noise).fit(table, y)
    points = questions(table)
    mean, whole, value = dense(gp, table, y, points, noise)
    found, std = gp.predict(points, return_std=True, variance="solve")
    np.testing.assert_allclose(found, mean, atol=tolerance)
    np.testing.assert_allclose(std, np.sqrt(np.diag(whole)), rtol=10 * tolerance)
    if not isinstance(method, inference.Vecchia):  # whose points are predicted one by one
        np.testing.assert_allclose(gp.predict(points, return_cov=True)[1], whole, atol=10 * tolerance)
    if not isinstance(method, inference.Iterative):
        np.testing.assert_allclose(gp.log_marginal_likelihood().value, value, rtol=1e-8)
    # the control: the entity matters, and two new ones are not one
    renamed = table.assign(sensor=table["sensor"].to_numpy()[::-1])
    assert np.abs(dense(gp, renamed, y, points, noise)[0] - mean).max() > 0.05
    one = points.assign(sensor=points["sensor"].replace("newer", "new"))
    assert abs(dense(gp, table, y, one, noise)[1] - whole).max() > 0.01


def test_products_of_many_cells_are_kronecker_products_of_the_same_model():
    draw = np.random.default_rng(1)
    who, when = np.nonzero(draw.random((40, 25)) < 0.7)
    table = pd.DataFrame({"sensor": who, "hour": when * 1.0})
    y = np.sin(when / 4) + 0.3 * draw.normal(size=40)[who] + 0.1 * draw.normal(size=len(who))
    method = inference.Iterative(solver=gigagp.solvers.ConjugateGradients(tolerance=1e-10))
    gp = GPRegressor(panel=("sensor", "hour"), inference=method, optimizer=None).fit(table, y)
    assert gp.engine_.startswith("Kronecker products")
    points = pd.DataFrame({"sensor": [0, 7, 99], "hour": [3.0, 24.5, 12.0]})
    np.testing.assert_allclose(gp.predict(points), dense(gp, table, y, points)[0], atol=1e-7)
    gapped = gp.predict(points, return_std=True, variance="solve")[1]
    np.testing.assert_allclose(gapped, np.sqrt(np.diag(dense(gp, table, y, points)[1])), rtol=1e-6)


@pytest.mark.slow
def test_samples_have_the_moments_of_the_posterior(fitted):
    gp, table, _ = fitted
    points = questions(table)
    mean, whole = gp.predict(points, return_cov=True)
    functions = gp.sample_functions(3000, 1)
    for draws in (gp.sample_y(points, 4000, 1), functions(points)):
        error = 6 * np.sqrt(2 / draws.shape[1]) * np.sqrt(np.outer(np.diag(whole), np.diag(whole)))
        assert (np.abs(np.cov(draws) - whole) < error).all()
        assert (np.abs(draws.mean(1) - mean) < 6 * np.sqrt(np.diag(whole) / draws.shape[1])).all()
    # one function: an entity that is new in two calls is the same, and another one is not
    first, again = functions(points[-3:]), functions(points[-3:].iloc[::-1])[::-1]
    np.testing.assert_allclose(first, again, atol=1e-9)
    other = functions(points[-3:].assign(sensor="newest"))
    assert np.abs(np.corrcoef(first[0], other[0])[0, 1]) < 0.9


def test_further_cells_of_known_and_new_entities(fitted):
    gp, table, y = fitted
    points = questions(table)
    added, values = points.iloc[[3, 5, 6]], np.array([6.0, 5.5, 4.5])
    grown = gp.condition_on(added, values)
    rows = pd.concat([table, added], ignore_index=True)
    mean, whole, _ = dense(gp, rows, np.concatenate([y, values]), points)
    found, cov = grown.predict(points, return_cov=True)
    np.testing.assert_allclose(found, mean, atol=1e-8)
    np.testing.assert_allclose(cov, whole, atol=1e-8)
    assert len(gp.encoder_.columns[1].levels) == len(grown.encoder_.columns[1].levels) - 2  # the fit is as it was
    swapped = grown.predict(points.assign(sensor=points["sensor"].replace({"new": "newer", "newer": "new"})))
    assert np.abs(swapped - found).max() > 0.1  # the control: each of them has its own cells
    with pytest.raises(InvalidInputError, match="refit"):
        gp.condition_on(added, values, refit=True)


@pytest.mark.parametrize("groups", [None, "entity", "given"])
def test_left_out_cells_and_whole_curves(fitted, groups):
    gp, table, y = fitted
    number = np.arange(len(y)) % 4
    left = gp.leave_one_out() if groups is None else gp.leave_one_out(number if groups == "given" else groups)
    of = {None: np.arange(len(y)), "entity": table["sensor"].to_numpy(), "given": number}[groups]
    for row in (0, 17, 30):
        out = of == of[row]
        mean, whole, _ = dense(gp, table[~out], y[~out], table[row : row + 1])
        np.testing.assert_allclose(left.mean[row], mean[0], atol=1e-8)
        std = np.sqrt(whole[0, 0] + gp.noise_variance_)
        np.testing.assert_allclose(left.std[row], std, rtol=1e-7)
        density = -0.5 * ((y[row] - mean[0]) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
        np.testing.assert_allclose(left.log_density[row], density, atol=1e-7)
    if groups == "entity":  # the control: without its own cells an entity is known less
        assert (left.std > gp.leave_one_out().std).all()


def test_learning_saving_and_words(tmp_path):
    table, y = sensors(inputs=False)
    gp = GPRegressor(panel=("sensor", "hour")).fit(table, y)
    assert gp.predict(table).std() > 0.2
    gp.save(tmp_path / "model")
    again = gigagp.load(tmp_path / "model")
    points = questions(table)
    for one, other in zip(gp.predict(points, return_cov=True), again.predict(points, return_cov=True), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(gp.leave_one_out("entity").std, again.leave_one_out("entity").std)
    assert again.panel == ("sensor", "hour")
    assert "9 entities (s0, s1, s2, s3, ...)" in gp.describe()
    assert "panel         9 entities (sensor) by 11 times (hour)" in gp.describe()
    plan = GPRegressor(panel=("sensor", "hour")).plan(table, y)
    assert plan.chosen.rmse < 1.5 * y.std()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Learning stopped after")  # by so few steps
def test_a_killed_fit_of_a_panel_resumes_to_the_same_bits(tmp_path, monkeypatch):
    table, y = sensors(inputs=False)
    path, given = tmp_path / "fit.checkpoint", GPRegressor(panel=("sensor", "hour"), optimizer=LBFGS(steps=4))
    whole = clone(given).fit(table, y).predict(questions(table))
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)
    count = {"ran": 0}

    def evaluate(self, model, original=ExactObjective.evaluate):
        count["ran"] += 1
        if count["ran"] == 3:
            raise SystemExit
        return original(self, model)

    with monkeypatch.context() as patch:
        patch.setattr(ExactObjective, "evaluate", evaluate)
        with pytest.raises(SystemExit):
            clone(given).fit(table, y, checkpoint=path)
    with pytest.raises(InvalidInputError, match="checkpoint"):
        clone(given).set_params(panel=("sensor", -2)).fit(table, y, checkpoint=path)  # another call
    resumed = clone(given).fit(table, y, checkpoint=path)
    np.testing.assert_array_equal(resumed.predict(questions(table)), whole)
    assert not path.exists()
    hurried = clone(given).set_params(time_budget="10min").fit(table, y)
    np.testing.assert_array_equal(hurried.predict(questions(table)), whole)


def test_tables_of_all_kinds_are_one_model(fitted):
    gp, table, y = fitted
    indexed = table.set_index(["sensor", "hour"])
    again = GPRegressor(panel=("sensor", "hour"), optimizer=None).fit(indexed, y)
    np.testing.assert_allclose(again.predict(indexed), gp.predict(table), atol=1e-10)
    plain, numbers = sensors(inputs=False)[0], sensors(inputs=False)[1]
    named = GPRegressor(panel=("sensor", "hour"), optimizer=None).fit(plain, numbers)
    array = np.column_stack([1000.0 + plain["sensor"].str[1:].astype(int), plain["hour"]])
    placed = GPRegressor(panel=(0, -1), optimizer=None).fit(array, numbers)
    np.testing.assert_allclose(placed.predict(array), named.predict(plain), atol=1e-10)
    dates = plain.assign(hour=pd.Timestamp("2024-01-01") + pd.to_timedelta(plain["hour"], unit="D"))
    dated = GPRegressor(panel=("sensor", "hour"), optimizer=None).fit(dates, numbers)
    np.testing.assert_allclose(dated.predict(dates), named.predict(plain), atol=1e-9)


def test_a_kernel_of_the_tables_columns():
    """Outputs take the number of each entity, in the order of their names."""
    table, y = sensors(inputs=False)
    covariance = kernels.Outputs(N_ENTITIES, columns=[1], rank=1)
    kernel = kernels.Matern(columns=[0], fixed=["variance"]) * covariance
    gp = GPRegressor(kernel, panel=("sensor", "hour"), optimizer=None).fit(table, y)
    codes = table.assign(sensor=table["sensor"].str[1:].astype(int))
    plain = GPRegressor(kernel, optimizer=None).fit(codes, y)
    np.testing.assert_allclose(gp.predict(table), plain.predict(codes), atol=1e-8)
    with pytest.raises(InvalidInputError, match="from 0 to 8"):
        gp.predict(questions(table))


@pytest.mark.parametrize(
    ("changes", "table", "message"),
    [
        ({"panel": ("sensor", "minute")}, {}, r"panel .* must name the time by a column of X.*'hour'.*got 'minute'"),
        ({"panel": ("sensor", 9)}, {}, "must name the time"),
        ({"panel": ("sensor", "sensor")}, {}, "two columns"),
        ({"panel": "sensor"}, {}, "panel of GPRegressor must be"),
        ({"panel": ("hour", "sensor")}, {}, "must name a column of times.*'sensor'"),
        ({"kernel": kernels.Matern()}, {}, "column 1 of the table.*name the columns"),
        ({"kernel": kernels.Matern(columns=[0, 1]) + kernels.RBF(columns=[1])}, {}, "column 1 of the table"),
        ({"kernel": "auto"}, {}, "kernel of GPRegressor with a panel"),
        ({"outputs": "correlated"}, {}, "outputs of GPRegressor with a panel"),
        ({}, {"sensor": None}, "name the entity of every row.*'sensor', row 0"),
        ({}, {"hour": np.nan}, "none missing.*'hour'"),
    ],
)
def test_what_is_no_panel_is_refused(changes, table, message):
    rows, y = sensors(inputs=False)
    for name, value in table.items():
        rows[name] = rows[name].astype(object if value is None else float)
        rows.loc[0, name] = value
    with pytest.raises(InvalidInputError, match=message):
        GPRegressor(**{"panel": ("sensor", "hour"), **changes}).fit(rows, y)


def test_other_doors_refuse_panels(fitted):
    gp, table, y = fitted
    with pytest.raises(InvalidInputError, match="fit_table"):
        GPRegressor(panel=("sensor", "hour")).fit_table((table, y))
    words = "9 entities (sensor) by 11 times (hour); inputs: height of entities, wind of times, cell of cells"
    assert words in gp.describe()
    with pytest.raises(InvalidInputError, match="groups of leave_one_out"):
        gp.leave_one_out("sensor")
    with pytest.raises(InvalidInputError, match="shape"):
        gp.leave_one_out(np.arange(3))
    vecchia = GPRegressor(panel=("sensor", "hour"), optimizer=None, inference=inference.Vecchia()).fit(table, y)
    with pytest.raises(InvalidInputError, match=r"inference\.Exact"):
        vecchia.leave_one_out("entity")
    one = table.assign(sensor="s0")
    with pytest.raises(InvalidInputError, match="two groups"):
        GPRegressor(panel=("sensor", "hour"), optimizer=None).fit(one, y).leave_one_out("entity")
