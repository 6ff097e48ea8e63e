"""Rows that are added to a Vecchia fit, and rows of tables that are read in chunks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import gigagp
import vecchia_cases
from gigagp import GPRegressor, inference, kernels, optimization
from gigagp.errors import InvalidInputError, MemoryBudgetError
from gigagp.neighbours.conditionals import Pool
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.tables.rows.access import RowAccess
from helpers import draw_targets, points
from vecchia_cases import clumps, duplicates

KERNEL = kernels.Matern(1.5, [0.8, 1.7], 1.3)
NOISE = 0.05
N = 200
NEW = vecchia_cases.NEW.numpy()


def sorted_rows(n):
    """The rows that come later lie elsewhere."""
    return points(n, 2).sort(dim=0).values


TABLES = {"Gaussian": lambda n: points(n, 2), "clumps": clumps, "duplicates": duplicates, "sorted": sorted_rows}
tables = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())


def rows_of(table, columns=1):
    X = table(N)
    return X.numpy(), (draw_targets(KERNEL.bind(2), X, NOISE, columns=columns) + 3.0 * X[:, :1]).numpy()


def estimator(neighbours=8, more=12, **given):
    given = {"noise_variance": NOISE, "optimizer": None, "standardize": False, "outputs": "shared"} | given
    return GPRegressor(KERNEL, inference.Vecchia(neighbours, more), **given)


def grown(gp, X, y, cuts=(60, 61, 150), **noise):
    """Return the estimator after a fit to the rows before the first cut, and the other parts one by one."""
    parts = [slice(a, b) for a, b in zip((0, *cuts), (*cuts, len(X)), strict=True)]
    gp.fit(X[parts[0]], y[parts[0]])
    for part in parts[1:]:
        assert gp.partial_fit(X[part], y[part], **{name: values[part] for name, values in noise.items()}) is gp
    return gp


def answers(gp):
    return [*gp.predict(NEW, return_cov=True), gp.predict(NEW, return_std=True)[1]]


def assert_same(one, other, rtol=1e-8, atol=1e-9):
    for mine, theirs in zip(answers(one), answers(other), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=atol)


# Added rows --------------------------------------------------------------------------------------------------------


@pytest.mark.each
@tables
@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
def test_with_all_neighbours_added_rows_are_those_of_a_fit(table, mean):
    X, y = rows_of(table, columns=2)
    whole, found = (estimator(N, N, mean=mean) for _ in range(2))
    grown(found, X, y)
    assert_same(found, whole.fit(X, y), rtol=1e-6, atol=1e-7)
    assert found.log_marginal_likelihood().value == pytest.approx(whole.log_marginal_likelihood().value, rel=1e-9)
    np.testing.assert_allclose(found.posterior_.coefficients, whole.posterior_.coefficients, rtol=1e-6, atol=1e-7)
    assert found.posterior_.n_rows == N
    first = estimator(N, N, mean=mean).fit(X[:150], y[:150])  # the control
    assert abs(first.predict(NEW) - whole.predict(NEW)).max() > 1e-3


@tables
def test_predictions_with_few_neighbours_are_those_of_a_fit(table, tmp_path):
    X, y = rows_of(table)
    found = grown(estimator(mean="zero"), X, y, cuts=(5, 60, 150))  # the first fit has fewer rows than neighbours
    whole = estimator(mean="zero").fit(X, y)
    assert_same(found, whole)
    assert found.solver_ == whole.solver_
    found.save(tmp_path / "model.gp")
    more = estimator(mean="zero").fit(X[:150], y[:150])
    more.save(tmp_path / "part.gp")
    assert_same(gigagp.load(tmp_path / "model.gp"), whole)
    assert_same(gigagp.load(tmp_path / "part.gp").partial_fit(X[150:], y[150:]), whole)


@tables
@pytest.mark.parametrize("m", [1, 7, 300])
def test_neighbours_of_appended_rows_are_the_nearest_earlier_ones(table, m):
    X = table(N)
    old, new = X[:120], X[120:]
    graph = NeighbourGraph(KERNEL.bind(2), old, m)
    blocks = list(graph.appended(new))
    rows, found = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    assert torch.equal(rows, torch.arange(120, N))
    own = NeighbourGraph(KERNEL.bind(2), new, m).neighbourhood
    scaled = X / torch.tensor([0.8, 1.7])
    for row, near in zip(rows.tolist(), found.tolist(), strict=True):
        earlier = torch.cat([torch.arange(120), 120 + own.order[: own.rank[row - 120]]])
        distances = (scaled[earlier] - scaled[row]).norm(dim=1)
        kept = [k for k in near if k >= 0]
        assert len(kept) == len(set(kept)) == min(m, len(earlier))
        assert set(kept) <= set(earlier.tolist())
        nearest = distances.sort().values[: len(kept)]
        torch.testing.assert_close((scaled[kept] - scaled[row]).norm(dim=1), nearest, rtol=1e-9, atol=1e-12)


@tables
def test_the_likelihood_is_that_of_the_neighbours_at_the_time(table):
    """Old rows keep their neighbours, and new ones have neighbours among all rows before them."""
    X, y = rows_of(table)
    found = grown(estimator(mean="zero"), X, y, cuts=(120,))
    rows, kernel, Y = torch.from_numpy(X), KERNEL.bind(2), torch.from_numpy(y)
    graph = NeighbourGraph(kernel, rows[:120], 8)
    pool = Pool(kernel, rows, torch.full((N,), NOISE, dtype=torch.float64))
    value = 0.0
    for targets, near in [(torch.arange(120), graph.neighbours), *graph.appended(rows[120:])]:
        value += pool.derivatives(targets, near, Y).value
    assert found.log_marginal_likelihood().value == pytest.approx(value, rel=1e-10)
    assert found.log_marginal_likelihood().value != pytest.approx(
        estimator(mean="zero").fit(X, y).log_marginal_likelihood().value, rel=1e-7
    )


def test_known_noise_of_added_rows():
    """In units of the targets, whatever the scaling of the first rows."""
    X, y = rows_of(clumps)
    noise = np.random.default_rng(0).uniform(0.01, 0.5, N)
    found = estimator(N, N, noise_variance=noise[:60], standardize=True)
    grown(found, X, y[:, 0], noise_variance=noise)
    np.testing.assert_allclose(found.noise_variance_, noise, rtol=1e-12)
    assert_same(found, estimator(N, N, noise_variance=noise).fit(X, y[:, 0]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ((np.full((5, 2), np.nan), np.zeros(5)), "NaN in column 0, row 0"),
        ((np.zeros((5, 2)), np.append(np.zeros(4), np.inf)), "y must be finite; got infinity in row 4"),
        ((np.zeros((5, 1)), np.zeros(5)), "X has 1 features, but GPRegressor is expecting 2"),
        ((np.zeros((5, 2)), np.zeros((5, 2))), r"must have 1 target\(s\), as in the fit; got 2"),
        ((np.zeros((5, 2)), np.zeros(5), 0.1), "noise_variance of partial_fit must be None"),
    ],
)
def test_added_rows_that_cannot_be_used_change_nothing(rows, match):
    X, y = rows_of(clumps)
    gp = estimator().fit(X, y[:, 0])
    before = answers(gp)
    with pytest.raises(ValueError, match=match):
        gp.partial_fit(*rows)
    for one, other in zip(before, answers(gp), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("noise", "match"),
    [
        (None, "noise_variance of partial_fit must be given"),
        (np.zeros(5), "noise_variance of partial_fit must be positive"),
        (np.ones(4), r"noise_variance of partial_fit must have shape \(\) or \(5,\)"),
    ],
)
def test_noise_of_added_rows_that_cannot_be_used(noise, match):
    X, y = rows_of(clumps)
    gp = estimator(noise_variance=np.full(N, 0.1)).fit(X, y[:, 0])
    with pytest.raises(InvalidInputError, match=match):
        gp.partial_fit(np.zeros((5, 2)), np.zeros(5), noise)
    assert gp.posterior_.n_rows == N


def test_the_first_call_is_a_fit_and_the_scaling_is_kept():
    X, y = rows_of(clumps)
    gp = GPRegressor(KERNEL, inference.Vecchia(8, 12), None)
    with pytest.raises(InvalidInputError, match="noise_variance of the first partial_fit"):
        gp.partial_fit(X, y[:, 0], np.ones(N))
    gp.partial_fit(X[:100], y[:100, 0])
    scaling, length = gp.scaling_, gp.kernel_.lengthscale
    gp.partial_fit(X[100:], y[100:, 0])
    assert gp.scaling_ is scaling
    np.testing.assert_array_equal(gp.kernel_.lengthscale, length)
    narrow = GPRegressor(KERNEL, inference.Vecchia(8, 12), None, dtype="float32").fit(X[:100], y[:100, 0])
    narrow.partial_fit(X[100:], y[100:, 0])
    np.testing.assert_allclose(narrow.predict(NEW), gp.predict(NEW), rtol=1e-3, atol=1e-3)
    with pytest.raises(InvalidInputError, match="leaves the range of float32"):
        narrow.partial_fit(1e60 * X[:5], y[:5, 0])


# Tables ------------------------------------------------------------------------------------------------------------


def frame_of(table, columns=1):
    X, y = rows_of(table, columns)
    names = [f"y{k}" for k in range(columns)]
    return pd.DataFrame(np.concatenate([X, y], 1), columns=["a", "b", *names]), ["a", "b"], names


def file_of(frame, kind, tmp_path):
    if kind == "frame":
        return frame
    path = tmp_path / f"rows.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False, float_format="%.17g")
    elif kind == "parquet":
        frame.to_parquet(path, row_group_size=64)
    elif kind == "folder":
        path.mkdir()
        for k, rows in enumerate(np.array_split(np.arange(len(frame)), 3)):
            frame.iloc[rows].to_parquet(path / f"{k}.parquet")
    return path


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["csv", "parquet", "folder", "frame"])
@pytest.mark.parametrize(
    "given",
    [
        {"mean": "linear", "standardize": True},
        {"standardize": True, "dtype": "float32"},
        {"mean": lambda x: 5 * x[:, 0]},
        {"optimizer": optimization.Auto(subset_sizes=(60,)), "standardize": True},
    ],
    ids=["linear mean", "float32", "given mean", "learned"],
)
def test_a_table_gives_the_bits_of_rows_in_memory(kind, given, tmp_path):
    frame, inputs, names = frame_of(clumps, columns=2)
    memory = estimator(**given).fit(frame[inputs], frame[names])
    table = estimator(**given).fit_table(file_of(frame, kind, tmp_path), names, inputs, chunk_rows=70)
    new = pd.DataFrame(NEW, columns=inputs)
    for one, other in zip(table.predict(new, return_std=True), memory.predict(new, return_std=True), strict=True):
        np.testing.assert_array_equal(one, other)
    assert table.log_marginal_likelihood() == memory.log_marginal_likelihood()
    assert table.kernel_ == memory.kernel_
    assert table.posterior_.n_rows == N
    fewer = estimator(**given).fit_table((frame[inputs].to_numpy()[::2], frame[names].to_numpy()[::2]))
    assert (fewer.predict(NEW) != table.predict(new)).any()  # the control


def test_rows_that_are_generated_and_a_resumed_checkpoint(tmp_path):
    X, y = rows_of(clumps)
    pairs = lambda: ((X[rows], y[rows, 0]) for rows in np.array_split(np.arange(N), 7))  # noqa: E731
    memory = estimator(standardize=True).fit(X, y[:, 0])
    for source in (pairs, pairs(), (X, y[:, 0])):
        np.testing.assert_array_equal(estimator(standardize=True).fit_table(source).predict(NEW), memory.predict(NEW))
    frame, inputs, names = frame_of(clumps)
    path = tmp_path / "state"
    table = estimator(standardize=True).fit_table(file_of(frame, "csv", tmp_path), names[0], inputs, checkpoint=path)
    np.testing.assert_array_equal(table.predict(pd.DataFrame(NEW, columns=inputs)), memory.predict(NEW))
    assert not path.exists()


def test_rows_that_cannot_be_held_are_refused_beforehand(tmp_path, monkeypatch):
    frame, inputs, names = frame_of(clumps)
    path = file_of(frame, "parquet", tmp_path)
    gp = estimator(memory_budget=20_000)
    monkeypatch.setattr(RowAccess, "take", lambda *_: pytest.fail("rows were read"))
    with pytest.raises(
        MemoryBudgetError, match=r"A fit that holds 200 rows with 3 numbers each needs .* inference\.Grid"
    ):
        gp.fit_table(path, names[0], inputs)
    assert not hasattr(gp, "posterior_")


def test_tables_that_cannot_be_used(tmp_path):
    frame, inputs, names = frame_of(clumps)
    frame.loc[133, "b"] = np.nan
    path = file_of(frame, "parquet", tmp_path)
    with pytest.raises(InvalidInputError, match="row 134"):
        estimator().fit_table(path, names[0], inputs)
    with pytest.raises(InvalidInputError, match="at least two rows"):
        estimator().fit_table((NEW[:1], NEW[:1, 0]))
    with pytest.raises(InvalidInputError, match="must be None with inference"):
        estimator().fit_table((NEW, NEW[:, 0]), bounds=([0, 0], [1, 1]))
