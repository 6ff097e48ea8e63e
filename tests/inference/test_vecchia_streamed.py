"""Vecchia fits of tables that are larger than the memory budget: rows with their neighbours in all of the table."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pandas as pd
import pytest
import torch

import gigagp
from gigagp import GPClassifier, GPRegressor, inference, kernels, optimization
from gigagp.errors import FitWarning, InvalidInputError, MemoryBudgetError, UnreadableRowsError
from gigagp.inference.contract import streaming
from gigagp.inference.contract.objective import ExactObjective
from gigagp.inference.contract.streaming import StreamJob
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia import inference as vecchia_inference
from gigagp.inference.vecchia.objective import VecchiaObjective
from gigagp.model.means import ZeroMean, resolve_mean
from gigagp.model.model import Model, StartModel
from gigagp.neighbours.conditionals import Pool
from gigagp.optimization.space import ParameterSpace
from gigagp.runtime.progress import NoProgress
from gigagp.settings.random import generator_from
from gigagp.tables.rows import RandomOrder, RowAccess, RowSource
from gigagp.tables.rows.random_order import row_places
from helpers import draw_targets, points
from vecchia_cases import NEW, clumps, duplicates

KERNEL, NOISE = kernels.Matern(1.5, [0.8, 1.7], 1.3), 0.05
MODEL = Model(KERNEL.bind(2), ZeroMean(), torch.tensor(NOISE, dtype=torch.float64))
N = 400
#: Bytes that a row with two inputs is said to need in these tests, and a budget for 127 of them, of which 82 are drawn.
ROW, BUDGET = 65_680, 2**23


def by_place(n):
    """A file sorted by an input: a block of rows is a strip of the plane."""
    X = points(n, 2)
    return X[X[:, 0].argsort()]


def scattered(n):
    """Far outliers, and units that differ by many digits."""
    X = points(n, 2)
    X[::50] *= 1e4
    return X


TABLES = {"clumps": clumps, "duplicates": duplicates, "sorted": by_place, "scattered": scattered}
tables = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())


@pytest.fixture
def small(monkeypatch):
    """Room for few rows and small blocks, and for any number of learning rows."""
    monkeypatch.setattr(vecchia_inference, "_ORDER_NUMBERS", 8192)
    monkeypatch.setattr(streaming, "_PASS_SHARE", 200)
    monkeypatch.setattr(streaming, "_FEWEST_ROWS", 20)
    monkeypatch.setattr(vecchia_inference, "_FEWEST_ROWS", 5)
    monkeypatch.setattr(vecchia_inference, "_SHARE", 1e-3)


def rows_of(table, n=N):
    X = table(n)
    return X.numpy(), draw_targets(KERNEL.bind(2), X, NOISE)[:, 0].numpy()


def begun(source, m, learning_rows, budget=BUDGET, mean="zero", **options):
    """Return the objective that `stream` makes, and the resources to close."""
    mean = resolve_mean(mean)
    start = StartModel(KERNEL, mean, torch.tensor(NOISE, dtype=torch.float64))
    job = StreamJob(RowSource(source, **options), start, False, budget, learn=lambda objective, model: model)
    with pytest.warns(FitWarning, match="drawn at random"):
        found = inference.Vecchia(m, None, learning_rows).stream(job, generator_from(0)).objective
    assert isinstance(found, vecchia_inference.StreamedObjective)
    return found


def earlier_by_hand(X, m):
    """Return the m nearest rows with a smaller place for all rows, by all distances; ties by place."""
    places, scaled = row_places(0, len(X)), torch.from_numpy(X) / torch.tensor([0.8, 1.7])
    found = torch.full((len(X), m), -1)
    for row in range(len(X)):
        earlier = (places < places[row]).nonzero()[:, 0]
        earlier = earlier[places[earlier].argsort()]
        distances = (scaled[earlier] - scaled[row]).square().sum(1)
        nearest = earlier[distances.sort(stable=True).indices[:m]]
        found[row, : len(nearest)] = nearest
    return found


# Neighbours -----------------------------------------------------------------------------------------------------------


@tables
@pytest.mark.usefixtures("small")
def test_neighbours_are_the_nearest_earlier_rows_of_the_whole_table(table):
    X, y = rows_of(table)
    objective = begun((X, y), 7, N)
    objective.refresh(MODEL)
    batch, nearest = objective._batch, earlier_by_hand(X, 7)
    assert len(batch.rows) == N
    assert objective.n_rows < 120
    assert torch.equal(batch.table.X[batch.rows], torch.from_numpy(X))
    present = nearest >= 0
    assert torch.equal(batch.neighbours >= 0, present)
    of_rows = batch.neighbours.long().clamp_min(0)
    for values, given in ((batch.table.X, X), (batch.table.Y[:, 0], y)):
        expected = torch.from_numpy(given)[nearest.clamp_min(0)]
        assert torch.equal(values[of_rows][present], expected[present])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("table", [duplicates, by_place])
def test_neighbours_do_not_depend_on_blocks(table, tmp_path, monkeypatch):
    X, y = rows_of(table)
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_parquet(tmp_path / "rows.parquet", row_group_size=37)
    taken = []
    take = RowAccess.take
    monkeypatch.setattr(RowAccess, "take", lambda self, part, rows: taken.append(len(rows)) or take(self, part, rows))
    one = begun((X, y), 7, N)
    others = [begun(tmp_path / "rows.parquet", 7, N, target="y", chunk_rows=50)]
    monkeypatch.setattr(streaming, "_PASS_SHARE", 800)
    others.append(begun((X, y), 7, N))
    one.refresh(MODEL)
    assert min(taken) < 37 < max(taken) < N
    for other in others:
        other.refresh(MODEL)
        for mine, theirs in zip(one._batch[1:3], other._batch[1:3], strict=True):
            assert torch.equal(mine, theirs)
        assert torch.equal(one._batch.table.X, other._batch.table.X)
        assert torch.equal(one._batch.table.Y, other._batch.table.Y)


def test_places_are_random_and_a_larger_share_has_the_rows_of_a_smaller_one():
    """Copies are drawn as often as they are there."""
    X, y = np.repeat(np.arange(500.0), 10)[:, None], np.arange(5000.0)
    with RowAccess(RowSource((X, y)), 1000) as access:
        order = RandomOrder(access, 130, NoProgress())
        few, more, other, every = (order.drawn(*given) for given in ((0.1,), (0.3,), (0.1, 5), (1.0,)))
    assert torch.equal(every.X[:, 0], torch.from_numpy(X[:, 0]))
    assert set(few.Y[:, 0].tolist()) <= set(more.Y[:, 0].tolist())
    assert few.places.max() < every.places.sort().values[len(few.X)]  # they come before all others
    for drawn, share in ((few, 0.1), (more, 0.3), (other, 0.1)):
        assert abs(len(drawn.X) - 5000 * share) < 4 * math.sqrt(5000 * share * (1 - share))
        middle = 4999 * math.sqrt(1 / 12 / len(drawn.Y))
        assert abs(float(drawn.Y.mean()) - 2499.5) < 4 * middle
    both = len(set(few.Y[:, 0].tolist()) & set(other.Y[:, 0].tolist()))
    assert abs(both - 50) < 4 * math.sqrt(50)
    assert torch.equal(few.places, few.draws)
    assert not torch.equal(other.places, other.draws)


# The likelihood -------------------------------------------------------------------------------------------------------


@tables
@pytest.mark.usefixtures("small")
def test_with_all_rows_and_neighbours_the_likelihood_is_the_exact_one(table):
    n = 150
    X, y = rows_of(table, n)
    objective = begun((X, y), n - 1, n)
    found = objective.evaluate(MODEL)
    whole = TrainingTable(torch.from_numpy(X), torch.from_numpy(y)[:, None], ZeroMean(), 2**28)
    exact, factor = ExactObjective(whole).evaluate(MODEL), objective.n_rows / n
    assert found.value == pytest.approx(factor * exact.value, rel=1e-6)
    for name, slope in exact.gradient.items():
        torch.testing.assert_close(found.gradient[name], factor * slope, rtol=1e-5, atol=1e-5)
    held = ExactObjective(objective.table).evaluate(MODEL)  # the control: the rows that are held
    assert abs(found.value - held.value) > 1e-2 * abs(found.value)


def per_row(kernel, X, y, neighbours):
    """Return the log densities of all rows given their neighbours."""
    pool = Pool(kernel, X, torch.full((len(X),), NOISE, dtype=torch.float64))
    found = pool.conditionals(torch.arange(len(X)), neighbours.to(torch.int32), y[:, None])
    return -0.5 * (found.residual[:, 0].square() / found.variance + found.variance.log() + math.log(2 * math.pi))


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_minibatch_has_the_likelihood_of_all_rows_and_the_held_rows_have_not():
    X = 0.15 * by_place(2000)  # dense rows
    y = draw_targets(KERNEL.bind(2), X, NOISE)[:, 0]
    every = per_row(KERNEL.bind(2), X, y, earlier_by_hand(X.numpy(), 10))
    objective = begun((X.numpy(), y.numpy()), 10, 500)
    value = objective.evaluate(MODEL).value / objective.n_rows
    error = float(every.std()) * math.sqrt(1 / len(objective._batch.rows) - 1 / len(X))
    assert abs(value - float(every.mean())) < 4 * error
    held = VecchiaObjective(objective.table, 10, None, None)
    assert abs(held.evaluate(MODEL).value / held.n_rows - float(every.mean())) > 4 * error


@pytest.mark.few(1)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("table", [clumps, by_place])
def test_hyperparameters_are_those_of_the_held_fit(table):
    """Within four standard errors, which are those of the information of the minibatch."""
    X, y = rows_of(table, 1500)
    given = {"optimizer": optimization.Auto(subset_sizes=(60,)), "standardize": False, "mean": "zero"}
    whole = GPRegressor(kernels.Matern(1.5), inference.Vecchia(10), **given).fit_table((X, y))
    gp = GPRegressor(kernels.Matern(1.5), inference.Vecchia(10, None, 400), memory_budget=2**25, **given)
    with pytest.warns(FitWarning, match="drawn at random"):
        gp.fit_table((X, y))
    assert gp.posterior_.n_rows < 500
    objective = begun((X, y), 10, 400, budget=2**25)
    space = ParameterSpace(gp.posterior_.model, "log")
    vector = space.encode(gp.posterior_.model)
    objective.evaluate(gp.posterior_.model)
    information = objective.fisher(space, vector, torch.zeros(0)) / objective.share
    errors = torch.linalg.inv(information).diagonal().sqrt()
    assert ((space.encode(whole.posterior_.model) - vector).abs() < 4 * errors).all()
    start = Model(kernels.Matern(1.5, 5.0).bind(2), ZeroMean(), torch.tensor(0.5, dtype=torch.float64))
    assert not ((ParameterSpace(start, "log").encode(start) - vector).abs() < 4 * errors).all()  # the control


# Whole fits -----------------------------------------------------------------------------------------------------------


def estimator(**given):
    given = {"optimizer": None, "standardize": False, "noise_variance": NOISE, "memory_budget": BUDGET} | given
    return GPRegressor(KERNEL, inference.Vecchia(8, 12, 200), **given)


def learner(**given):
    return estimator(optimizer=optimization.LBFGS(steps=4), noise_variance=None, standardize=True, **given)


def frame_of(table):
    X, y = rows_of(table)
    return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y})


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("make", [estimator, learner])
def test_sources_of_the_same_rows_give_the_same_fit(make, tmp_path):
    frame = frame_of(clumps)
    X, y = frame[["a", "b"]].to_numpy(), frame["y"].to_numpy()
    frame.to_csv(tmp_path / "rows.csv", index=False, float_format="%.17g")
    (tmp_path / "folder").mkdir()
    for k, rows in enumerate(np.array_split(np.arange(N), 3)):
        frame.iloc[rows].to_parquet(tmp_path / "folder" / f"{k}.parquet", row_group_size=31)
    pairs = lambda: ((X[rows], y[rows]) for rows in np.array_split(np.arange(N), 7))  # noqa: E731
    sources = [((X, y), None), (pairs, None), (pairs(), None), (tmp_path / "rows.csv", "y"), (tmp_path / "folder", "y")]
    answers = []
    for source, target in sources:
        with pytest.warns(FitWarning, match=r"has room for \d+ of 400 rows, drawn at random.*All rows need 26,272,000"):
            gp = make().fit_table(source, target, chunk_rows=90)
        new = pd.DataFrame(NEW.numpy(), columns=["a", "b"]) if target else NEW.numpy()
        answers.append([*gp.predict(new, return_std=True), gp.kernel_.lengthscale.numpy()])
    for other in answers[1:]:
        for mine, theirs in zip(answers[0], other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.usefixtures("small")
@tables
def test_predictions_are_those_of_the_rows_that_are_held(table, tmp_path):
    X, y = rows_of(table)
    with pytest.warns(FitWarning, match="drawn at random"):
        gp = estimator(mean="linear").fit_table((X, y))
    kept = gp.posterior_.X.numpy(), gp.posterior_.table.Y[:, 0].numpy()
    assert 40 < len(kept[0]) < 120
    assert {*map(tuple, kept[0])} <= {*map(tuple, X)}
    assert len(kept[0]) * ROW <= BUDGET
    own = estimator(mean="linear", memory_budget=None).fit(*kept)
    new = NEW.numpy()
    for mine, theirs in zip(gp.predict(new, return_std=True), own.predict(new, return_std=True), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    note = f"drawn         {len(kept[0])} of 400 rows"
    assert note in gp.describe()
    assert "drawn  " not in own.describe()
    gp.save(tmp_path / "model.gp")
    loaded = gigagp.load(tmp_path / "model.gp")
    np.testing.assert_array_equal(loaded.predict(new), gp.predict(new))
    assert note in loaded.describe()
    loaded.partial_fit(X[:3], y[:3])
    assert f"drawn         {len(kept[0]) + 3} of 403 rows" in loaded.describe()
    assert pickle.loads(pickle.dumps(gp)).predict(new).tolist() == gp.predict(new).tolist()


@pytest.mark.usefixtures("small")
def test_labels_are_learned_from_the_rows_that_are_held(tmp_path):
    X, y = rows_of(clumps)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "wet": np.where(y > 0, "yes", "no")})
    frame.to_parquet(tmp_path / "rows.parquet")
    optimizer = optimization.LBFGS(steps=2)
    gp = GPClassifier(KERNEL, inference.Vecchia(8, 12), optimizer, memory_budget=BUDGET)
    with pytest.warns(FitWarning, match="drawn at random"):
        gp.fit_table(tmp_path / "rows.parquet", "wet")
    assert gp.score(frame[["a", "b"]], frame["wet"]) > 0.7
    assert "of 400 rows, at random" in gp.latent_.describe()


@pytest.mark.usefixtures("small")
def test_rows_that_cannot_be_read_any_more_and_a_resumed_fit(tmp_path, monkeypatch):
    """After a pass the file is damaged; once it is mended the same call goes on to the same bits."""
    frame = frame_of(by_place)
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=64)
    fit = lambda path: learner().fit_table(tmp_path / "rows.parquet", "y", checkpoint=path)  # noqa: E731
    with pytest.warns(FitWarning, match="drawn at random"):
        whole = fit(None)
    take, left = RowAccess.take, [10**9]

    def damaged(self, section, rows):
        left[0] -= 1
        if left[0] < 0:
            raise InvalidInputError(f"{section.part} cannot be read")
        return take(self, section, rows)

    monkeypatch.setattr(RowAccess, "take", damaged)
    left[0] = 10
    with pytest.warns(FitWarning), pytest.raises(UnreadableRowsError, match=r"cannot be read.*mend the file"):
        fit(tmp_path / "state")
    left[0] = 3  # while the rows to hold are read
    with pytest.raises(InvalidInputError, match="cannot be read"):
        fit(tmp_path / "state")
    left[0] = 10**9
    with pytest.warns(FitWarning, match="drawn at random"):
        resumed = fit(tmp_path / "state")
    new = pd.DataFrame(NEW.numpy(), columns=["a", "b"])
    np.testing.assert_array_equal(resumed.predict(new), whole.predict(new))
    assert not (tmp_path / "state").exists()


@pytest.mark.usefixtures("small")
def test_a_row_that_is_no_number_is_named_even_if_it_is_not_held(tmp_path):
    frame = frame_of(by_place)
    frame.loc[row_places(0, N).argmax().item(), "b"] = np.nan
    frame.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(InvalidInputError, match=f"row {row_places(0, N).argmax().item() + 1}"):
        estimator().fit_table(tmp_path / "rows.parquet", "y")


# Memory ---------------------------------------------------------------------------------------------------------------


def test_what_is_held_keeps_to_the_budget(monkeypatch):
    """The rows that are kept, the minibatch with the copies of an evaluation, and a block of a pass."""
    budget, n = 2**21, 12_000
    X = by_place(n)
    y = X[:, 0].sin()
    blocks = []
    take = RowAccess.take
    monkeypatch.setattr(RowAccess, "take", lambda self, part, rows: blocks.append(len(rows)) or take(self, part, rows))
    objective = begun((X.numpy(), y.numpy()), 8, None, budget=budget, mean="constant")
    monkeypatch.setattr(objective, "_adds_rows", False)
    objective._size = 10**9
    objective._size = objective._affordable_rows()
    objective.evaluate(MODEL)
    table, batch = objective.table, objective._batch
    assert 0.9 * budget < 272 * table.n_rows <= budget
    assert 500 <= len(batch.rows) < 0.1 * n
    held = sum(one.untyped_storage().nbytes() for one in (table.X, table.Y))
    local = sum(one.untyped_storage().nbytes() for one in (batch.table.X, batch.table.Y, batch.neighbours, batch.rows))
    assert 3 * local < budget / 3 * 1.2
    assert 8 * streaming.pass_numbers(3) * max(blocks) <= budget / 4
    assert held + 3 * local + budget / 4 < budget
    objective.posterior(MODEL, generator_from(0))
    assert objective._batch is None


@pytest.mark.slow
def test_a_budget_that_is_too_small_is_refused():
    X, y = rows_of(by_place, 3000)
    gp = GPRegressor(KERNEL, inference.Vecchia(30), memory_budget=300_000)
    with pytest.raises(MemoryBudgetError, match="Learning from 500 rows with 30 neighbours each needs"):
        gp.fit_table((X, y))
    with pytest.raises(MemoryBudgetError, match="holds 1,000 rows with 3 numbers each needs"):
        GPRegressor(KERNEL, inference.Vecchia(30), memory_budget=200_000).fit_table((X, y))
    assert not hasattr(gp, "posterior_")
