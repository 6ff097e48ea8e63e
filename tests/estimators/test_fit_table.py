"""`GPRegressor.fit_table` and `partial_fit`: streamed rows give the fit of rows in memory; invalid rows are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from stress.faults import limited_files

import gigagp
from gigagp import GPRegressor, inference, kernels, optimization
from gigagp.errors import GigaGPWarning, InvalidInputError, MemoryBudgetError
from gigagp.inference.grid import streamed
from gigagp.model.means import ZeroMean
from gigagp.operators.grid.statistics import moments
from gigagp.tables.rows import RowSource, preview
from helpers import largest_tensor

#: of a coarse grid
pytestmark = pytest.mark.filterwarnings("ignore:Squared errors of the latent function")
N = 2400
RNG = np.random.default_rng(0)
X = RNG.uniform(0, 3, (N, 2)) * [1.0, 20.0] + [5.0, -40.0]
NEW = RNG.uniform(0.1, 2.9, (100, 2)) * [1.0, 20.0] + [5.0, -40.0]


def truth(points: np.ndarray) -> np.ndarray:
    return 7 + 3 * np.sin(2 * points[:, 0]) * np.cos(3 * points[:, 1] / 20)


Y = truth(X) + 0.3 * RNG.normal(size=N)
FRAME = pd.DataFrame({"x": X[:, 0], "note": "text", "y": Y, "z": X[:, 1]})
NEW_FRAME = pd.DataFrame(NEW, columns=["x", "z"])
GRID = inference.Grid(size=(12, 14))
#: quick, but with learning: a start on few rows, then gradients from the statistics
QUICK = optimization.Auto(subset_sizes=(60, 120))
GIVEN = {
    "kernel": kernels.RBF([1.0, 1.1]),
    "noise_variance": 0.05,
    "optimizer": None,
    "hyperparameter_units": "standardized",
}


def write_folder(path: Path, frame: pd.DataFrame = FRAME, parts: int = 4, **options) -> Path:
    path.mkdir()
    for k, rows in enumerate(np.array_split(np.arange(len(frame)), parts)):
        pages = {"data_page_size": 200, "write_batch_size": 20, "use_dictionary": False, "compression": "none"}
        frame.iloc[rows].to_parquet(path / f"part-{k}.parquet", row_group_size=100, **pages, **options)
    return path


def damage(file: Path) -> bytes:
    """Overwrite all but the first pages of a Parquet file's third row group; return the original file."""
    import pyarrow.parquet as pq

    whole = file.read_bytes()
    group = pq.read_metadata(file).row_group(2)
    start = min(group.column(k).dictionary_page_offset or group.column(k).data_page_offset for k in (0, 2, 3))
    broken = bytearray(whole)
    broken[start + 400 : start + 700] = b"\xff" * 300
    file.write_bytes(broken)
    return whole


def same(one: GPRegressor, other: GPRegressor, tolerance: float = 1e-9) -> None:
    for mine, theirs in zip(answers(one), answers(other), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)


def answers(gp: GPRegressor) -> list[np.ndarray]:
    points = NEW_FRAME if hasattr(gp, "feature_names_in_") else NEW
    mean, std = gp.predict(points, return_std=True, include_noise=True)
    values = [value.numpy().reshape(-1) for value in gp.kernel_.parameters().values()]
    return [mean, std, np.concatenate([*values, [gp.noise_variance_]]), [gp.log_marginal_likelihood().value]]


# Streamed is in memory ------------------------------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "settings",
    [{}, {"mean": "linear"}, {"standardize": False}, {"mean": lambda x: 5 * x[:, 0]}],
    ids=["constant mean", "linear mean", "own units", "given mean"],
)
def test_streamed_rows_give_what_rows_in_memory_give(tmp_path, settings):
    options = {"inference": GRID, **GIVEN, **settings}
    if "standardize" in settings:
        options |= {"kernel": kernels.RBF([0.9, 19.0], 4.0), "noise_variance": 0.1}
    memory = GPRegressor(**options).fit(X, Y)
    table = GPRegressor(**options).fit_table(write_folder(tmp_path / "p"), "y", ["x", "z"], chunk_rows=170)
    same(table, memory)
    for name in ("x_centre", "x_scale", "y_centre", "y_scale"):
        np.testing.assert_allclose(
            getattr(table.scaling_, name), getattr(memory.scaling_, name), rtol=1e-11, atol=1e-11
        )
    assert table.posterior_.n_rows == N
    assert list(table.feature_names_in_) == ["x", "z"]
    assert np.sqrt(np.mean((table.predict(NEW_FRAME) - truth(NEW)) ** 2)) < 0.1


@pytest.mark.slow
def test_iterative_solves_give_the_same_mean(tmp_path):
    grid = inference.Grid(size=(12, 14), exact_nodes=0, final_tolerance=1e-6)
    memory = GPRegressor(inference=grid, **GIVEN).fit(X, Y)
    table = GPRegressor(inference=grid, **GIVEN).fit_table((X, Y))
    assert table.solver_.startswith("conjugate gradients")
    np.testing.assert_allclose(table.predict(NEW), memory.predict(NEW), rtol=0, atol=1e-3)
    # Their probes use the rows' numbers, here in other units, so they are other samples of the same posterior.
    ratio = table.predict(NEW, return_std=True)[1] / memory.predict(NEW, return_std=True)[1]
    assert abs(np.mean(ratio**2) - 1) < 4 * (4 / 32) ** 0.5


@pytest.fixture(scope="module")
def learned() -> GPRegressor:
    return GPRegressor(inference=GRID, optimizer=QUICK).fit_table((X, Y), chunk_rows=500)


@pytest.mark.slow
def test_files_and_generators_learn_what_arrays_do(tmp_path, learned):
    """`tests/tables/rows/test_source.py` tests that all kinds of sources have the same rows."""

    def pairs():
        return ((X[k : k + 331], Y[k : k + 331]) for k in range(0, N, 331))

    def fit(source, target=None, **options):
        return GPRegressor(inference=GRID, optimizer=QUICK).fit_table(source, target, chunk_rows=500, **options)

    same(fit(write_folder(tmp_path / "p"), "y", inputs=["x", "z"]), learned, 1e-6)
    same(fit(pairs(), bounds=(X.min(0), X.max(0))), learned, 1e-6)


@pytest.mark.slow
def test_learning_ends_within_a_nat_wherever_it_starts(learned):
    """Methods whose cost depends on rows stop at a thousandth of a nat per row, which is 2.4 nats here."""
    best = learned.log_marginal_likelihood().value
    for sizes in ((50, 100), (80, 160)):
        other = GPRegressor(inference=GRID, optimizer=optimization.Auto(subset_sizes=sizes)).fit_table((X, Y))
        assert abs(other.log_marginal_likelihood().value - best) < 1.0


@pytest.mark.slow
def test_learning_ends_where_it_does_in_memory(learned):
    memory = GPRegressor(inference=GRID, optimizer=optimization.LBFGS(steps=60)).fit(X, Y)
    assert memory.log_marginal_likelihood().value - learned.log_marginal_likelihood().value < 1.0
    assert abs(learned.noise_variance_ / 0.09 - 1) < 0.1
    assert np.sqrt(np.mean((learned.predict(NEW) - truth(NEW)) ** 2)) < 0.06
    stages = [step.stage for step in learned.history_]
    assert stages[0].startswith("subset")
    assert stages[-1] == "all rows"
    assert learned.describe().startswith("rows          2,400, inputs 2, targets 1\ninference     grid (size 12 x 14")


def test_saved_and_loaded(tmp_path):
    gp = GPRegressor(inference=GRID, **GIVEN).fit_table(FRAME, "y", ["x", "z"])
    gp.save(tmp_path / "model.gp")
    again = gigagp.load(tmp_path / "model.gp")
    for one, other in zip(answers(gp), answers(again), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11)
    assert list(again.feature_names_in_) == ["x", "z"]
    with pytest.raises(ValueError, match="feature names"):
        again.predict(NEW_FRAME[["z", "x"]])
    gp.fit_table((X, Y))  # a fit without names removes those of the last fit
    assert not hasattr(gp, "feature_names_in_")


def test_several_targets():
    two = pd.DataFrame({"x": X[:, 0], "z": X[:, 1], "y": Y, "w": 2 - 3 * Y})
    gp = GPRegressor(inference=GRID, **GIVEN).fit_table(two, ["y", "w"])
    one = GPRegressor(inference=GRID, **GIVEN).fit_table((X, Y))
    mean = gp.predict(NEW_FRAME)
    np.testing.assert_allclose(mean[:, 0], one.predict(NEW), rtol=1e-9)
    np.testing.assert_allclose(mean[:, 1], 2 - 3 * mean[:, 0], rtol=1e-9)
    table = GPRegressor(inference=GRID, **GIVEN).fit_table(two, ["y"], ["x", "z"])
    assert table.predict(NEW_FRAME).shape == (100, 1)


def test_a_target_far_from_zero_keeps_its_digits():
    """Sums of squares alone would lose a spread of 1e-3 around 1e6: a relative error of 1e-16 * 1e18."""
    small = 1e-3 * (Y - Y.mean()) / Y.std()
    near, far = (GPRegressor(inference=GRID, **GIVEN).fit_table((X, small + shift)) for shift in (0.0, 1e6))
    np.testing.assert_allclose(far.scaling_.y_scale, 1e-3, rtol=1e-6)
    np.testing.assert_allclose(far.predict(NEW) - 1e6, near.predict(NEW), rtol=0, atol=1e-8)
    flat = GPRegressor(inference=GRID, **GIVEN).fit_table((X, np.full(N, 0.1)))
    np.testing.assert_allclose(flat.predict(NEW), 0.1, rtol=1e-12)
    assert flat.scaling_.y_scale.tolist() == [1.0]


@pytest.mark.slow
def test_the_rows_are_never_held(monkeypatch):
    monkeypatch.setattr(preview, "_SAMPLE_ROWS", 200)
    monkeypatch.setattr(moments, "_LEAST_ROWS", 250)
    monkeypatch.setattr(moments, "_MOST_ROWS", 250)  # torch takes them with the values of all samples
    n = 24_000  # at its end, a fit evaluates 256 rows of all 32 samples
    x = np.random.default_rng(1).uniform(size=(n, 1))
    y = np.sin(9 * x[:, 0])
    settings = {"inference": inference.Grid(size=30), "kernel": kernels.RBF(0.5), "noise_variance": 1e-3}
    settings["hyperparameter_units"] = "standardized"

    def chunks():
        return ((x[k : k + 400], y[k : k + 400]) for k in range(0, n, 400))

    with largest_tensor() as spy:
        GPRegressor(optimizer=None, **settings).fit_table(chunks, chunk_rows=400)
    assert spy.elements < n / 2
    with largest_tensor() as spy:
        GPRegressor(optimizer=None, **settings).fit(x, y)
    assert spy.elements >= n


@pytest.mark.filterwarnings("ignore:Squared errors")  # few steps, given noise
@pytest.mark.parametrize("way", [GRID, inference.QuadruplyStochastic(n_basis=20)], ids=["grid", "quadruply"])
def test_chunks_without_rows_are_nothing(way):
    few, targets = X[:200], Y[:200]
    parts = [few[:0], few[:50], few[:0], few[50:], few[:0]]

    def chunks():
        done = 0
        for part in parts:
            yield part, targets[done : done + len(part)]
            done += len(part)

    settings = {"inference": way, "optimizer": None}
    whole = GPRegressor(**settings).fit_table((few, targets))
    np.testing.assert_allclose(GPRegressor(**settings).fit_table(chunks).predict(few), whole.predict(few), atol=1e-8)
    with pytest.raises(InvalidInputError, match="row"):
        GPRegressor(**settings).fit_table(lambda: iter([(few[:0], targets[:0])]))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_under_the_copy_of_rows_is_one_error(monkeypatch, tmp_path):
    table = tmp_path / "table.csv"
    pd.DataFrame({"a": X[:100, 0], "b": Y[:100]}).to_csv(table, index=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    opened = Path.open
    full = Path("/dev/full")
    monkeypatch.setattr(
        Path, "open", lambda path, *how, **named: opened(full if path.name == "rows.npy" else path, *how, **named)
    )
    gp = GPRegressor(inference=inference.QuadruplyStochastic(n_basis=10), optimizer=None)
    with pytest.raises(InvalidInputError, match=r"temporary file.*TMPDIR"):
        gp.fit_table(table, "b")
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]
    assert not hasattr(gp, "posterior_")


def test_the_grid_is_as_fine_as_the_data_ask_for():
    """The initial lengthscale is twenty times too long, which the preview must detect."""
    x = X[:, :1]
    y = np.sin(20 * x[:, 0]) + 0.4 * RNG.normal(size=N)
    gp = GPRegressor(optimizer=QUICK).fit_table((x, y))
    assert gp.inference_ == inference.Grid()
    # the size for the hyperparameters learned from all rows, to a factor of two
    lengthscale = float(gp.kernel_.parameters()["lengthscale"])
    (nodes,) = gp.posterior_.grid.shape
    cells = float(np.ptp(x)) / gp.scaling_.x_scale[0] / lengthscale * 5
    assert abs(np.log((nodes - 5) / cells)) < np.log(2)
    assert np.sqrt(np.mean((gp.predict(NEW[:, :1]) - np.sin(20 * NEW[:, 0])) ** 2)) < 0.1
    given = {**GIVEN, "inference": inference.Grid()}
    fine, coarse = (
        GPRegressor(**{**given, "kernel": kernels.Matern(1.5, scale)}).fit_table((x, y)) for scale in (0.1, 0.2)
    )
    assert abs((fine.posterior_.grid.size - 5) - 2 * (coarse.posterior_.grid.size - 5)) <= 2


# Errors in the middle, kills, and what comes after --------------------------------------------------------------------


@pytest.fixture
def small_previews(monkeypatch):
    """Make previews use few rows, as they do for large tables."""
    monkeypatch.setattr(preview, "PREVIEW_ROWS", 160)


@pytest.mark.usefixtures("small_previews")
def test_a_damaged_file_is_named_and_the_same_call_goes_on(tmp_path):
    folder = write_folder(tmp_path / "p")
    call = {"target": "y", "inputs": ["x", "z"], "chunk_rows": 100, "checkpoint": tmp_path / "pass.state"}
    options = {"inference": GRID, "optimizer": QUICK}
    whole = GPRegressor(**options).fit_table(folder, **{**call, "checkpoint": None})
    content = damage(folder / "part-2.parquet")
    gp = GPRegressor(**options)
    with pytest.raises(
        InvalidInputError, match=r"part-2\.parquet cannot be read .* row 200.*1,400 rows before"
    ) as error:
        gp.fit_table(folder, **call)
    assert str(call["checkpoint"]) in str(error.value)
    assert not hasattr(gp, "posterior_")
    with pytest.raises(InvalidInputError, match="Give fit_table a checkpoint"):
        gp.fit_table(folder, **{**call, "checkpoint": None})
    with pytest.raises(InvalidInputError, match="belongs to another fit"):
        gp.fit_table(folder, **{**call, "inputs": ["z", "x"]})
    with pytest.raises(InvalidInputError, match="belongs to another fit"):
        GPRegressor(inference=inference.Grid(size=13)).fit_table(folder, **call)
    (folder / "part-2.parquet").write_bytes(content)
    FRAME.iloc[:0].to_parquet(folder / "part-0.parquet")  # rows that have been read are not read again
    gp.fit_table(folder, **call)
    one, other = gp.posterior_.statistics, whole.posterior_.statistics
    assert one.n_rows == other.n_rows == N
    torch.testing.assert_close(one.gram.values, other.gram.values, rtol=1e-11, atol=1e-9)
    torch.testing.assert_close(one.cross, other.cross, rtol=1e-10, atol=1e-9)
    # The preview left out unreadable rows, so learning started elsewhere. It ends within a nat, with the same
    # predictions (the variance of such a smooth kernel changes by percents within a tenth of a nat).
    for mine, theirs in zip(answers(gp)[:2], answers(whole)[:2], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0.02, atol=0.02)
    assert abs(answers(gp)[3][0] - answers(whole)[3][0]) < 1.0
    assert not call["checkpoint"].exists()


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.usefixtures("small_previews")
@pytest.mark.parametrize("where", [(0, 140), (1, 350), (2, 70), (3, 420), "while learning"])
def test_a_killed_fit_goes_on_to_the_same_bits(tmp_path, monkeypatch, where):
    """Chunks of 70 rows match neither row groups nor blocks of sums, so a resumed pass splits the rows differently."""
    monkeypatch.setattr(moments, "_LEAST_ROWS", 128)
    monkeypatch.setattr(moments, "_MOST_ROWS", 128)
    folder = write_folder(tmp_path / "p")
    call = {"target": "y", "inputs": ["x", "z"], "chunk_rows": 70, "checkpoint": tmp_path / "pass.state"}
    learns = where in ((1, 350), "while learning")
    given = {"kernel": kernels.RBF([1.0, 20.0]), "noise_variance": 0.05, "optimizer": None}
    options = {"inference": inference.Grid(size=(12, 14)), **({"optimizer": QUICK} if learns else given)}
    whole = GPRegressor(**options).fit_table(folder, **{**call, "checkpoint": None})
    monkeypatch.setattr(streamed, "_INTERVAL", 0.0)

    class Killed(BaseException):
        pass

    def die(*_arguments):
        raise Killed

    with monkeypatch.context() as patch:
        if isinstance(where, tuple):
            patch.setattr(RowSource, "prepared", lambda self, rows: die() if _is(rows, *where) else rows)
        else:
            patch.setattr(streamed.StreamedGridObjective, "evaluate", die)
        with pytest.raises(Killed):
            GPRegressor(**options).fit_table(folder, **call)
    assert call["checkpoint"].exists()
    read: list[int] = []
    original = RowSource.prepared
    monkeypatch.setattr(RowSource, "prepared", lambda self, rows: read.append(len(rows.X)) or original(self, rows))
    resumed = GPRegressor(**options).fit_table(folder, **call)
    for mine, theirs in zip(answers(resumed), answers(whole), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for name, sums in whole.posterior_.state()[0].items():
        assert torch.equal(resumed.posterior_.state()[0][name], sums), name
    assert sum(read) == (N - 600 * where[0] - where[1] + 70 if isinstance(where, tuple) else 0)


@pytest.mark.usefixtures("small_previews")
def test_a_full_disk_does_not_end_a_streamed_fit(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "p")
    call = {"target": "y", "inputs": ["x", "z"], "chunk_rows": 100}
    options = {"inference": GRID, "kernel": kernels.RBF([1.0, 20.0]), "noise_variance": 0.05, "optimizer": None}
    whole = GPRegressor(**options).fit_table(folder, **call)
    monkeypatch.setattr(streamed, "_INTERVAL", 0.0)
    with pytest.warns(GigaGPWarning, match="A checkpoint was not written") as seen, limited_files(2000):
        gp = GPRegressor(**options).fit_table(folder, **call, checkpoint=tmp_path / "pass.state")
    assert len(seen) == 1
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["p"]
    for mine, theirs in zip(answers(gp), answers(whole), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def _is(rows, part: int, last: int) -> bool:
    return rows.part.endswith(f"part-{part}.parquet") and rows.last == last


def test_new_rows_are_added_at_the_hyperparameters_of_the_fit(tmp_path):
    options = {"inference": GRID, **GIVEN, "standardize": False, "kernel": kernels.RBF([0.9, 19.0], 4.0)}
    corners = np.array([X[:, k].argmin() for k in (0, 1)] + [X[:, k].argmax() for k in (0, 1)])
    first = np.union1d(corners, np.arange(1000))
    rest = np.setdiff1d(np.arange(N), first)
    whole = GPRegressor(**options).fit(X, Y)
    gp = GPRegressor(**options).partial_fit(X[first], Y[first])  # the first call is a fit
    gp.save(tmp_path / "part.gp")
    alone = gp.predict(NEW)
    for grown in (gp, gigagp.load(tmp_path / "part.gp")):
        for rows in np.array_split(rest, 3):
            assert grown.partial_fit(X[rows], Y[rows]) is grown
        same(grown, whole)
        assert grown.posterior_.n_rows == N
    assert np.abs(alone - gp.predict(NEW)).max() > 1e-3
    # in standardized units, with names, and with a user-defined mean
    named = GPRegressor(inference=GRID, **GIVEN, mean=lambda x: x[:, 0]).fit_table(FRAME.iloc[first], "y", ["x", "z"])
    scale = named.scaling_.y_scale
    named.partial_fit(FRAME[["x", "z"]].iloc[rest], Y[rest])
    assert named.scaling_.y_scale is scale
    assert np.abs(named.predict(NEW_FRAME) - truth(NEW)).max() < 0.3


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ((X[:5] + 100, Y[:5]), "5 of 5 rows lie outside"),
        ((np.where(np.arange(10).reshape(5, 2) == 3, np.nan, X[:5]), Y[:5]), "NaN in column 1, row 1"),
        ((X[:5], np.append(Y[:4], np.inf)), "y must be finite; got infinity in row 4"),
        ((X[:5, :1], Y[:5]), "X has 1 features, but GPRegressor is expecting 2"),
        ((X[:5], np.stack([Y[:5]] * 2, 1)), r"must have 1 target\(s\), as in the fit; got 2"),
    ],
)
def test_new_rows_that_cannot_be_used_change_nothing(rows, match):
    gp = GPRegressor(inference=GRID, **GIVEN).fit(X, Y)
    before = answers(gp)
    with pytest.raises(ValueError, match=match):
        gp.partial_fit(*rows)
    for one, other in zip(before, answers(gp), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_mean_class_of_the_users_own_is_taken_off():
    class Slope(ZeroMean):
        name = "slope"

        def offset(self, X):
            return 100 + X[:, 0]

    gp = GPRegressor(inference=GRID, mean=Slope(), **GIVEN)
    same(gp.fit_table((X, Y + 100)), GPRegressor(inference=GRID, mean=Slope(), **GIVEN).fit(X, Y + 100))


def test_other_inferences_cannot_add_rows():
    gp = GPRegressor(inference=inference.ComputationAware(n_actions=10), optimizer=None)
    for estimator in (clone(gp), gp.fit(X[:50], Y[:50])):
        assert not hasattr(estimator, "partial_fit")
        with pytest.raises(AttributeError, match="has no attribute 'partial_fit'") as caught:
            estimator.partial_fit(X[50:60], Y[50:60])
        assert "only to a fit with inference.Exact, inference.Markov, inference.Curves," in str(caught.value.__cause__)


# Bad input ------------------------------------------------------------------------------------------------------------


def spoiled(path: Path, kind: str, value: object) -> Path:
    frame = FRAME[["x", "z", "y"]].astype(object if isinstance(value, str) else float)
    frame.loc[1711, "z"] = value
    if kind == "csv":
        frame.to_csv(path / "bad.csv", index=False)
        return path / "bad.csv"
    return write_folder(path / "bad", frame)


@pytest.mark.parametrize("kind", ["csv", "folder"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_none_is_named_with_its_file_and_row(tmp_path, kind, value):
    path = spoiled(tmp_path, kind, value)
    place = r"bad\.csv: column 'z', row 1712" if kind == "csv" else r"part-2\.parquet: column 'z', row 512"
    with pytest.raises(InvalidInputError, match=place):
        GPRegressor(inference=GRID, **GIVEN).fit_table(path, "y")


def test_text_is_named_with_its_file_and_row(tmp_path):
    with pytest.raises(InvalidInputError, match=r"bad\.csv: column 'z', row 1712: 'high' is not a number"):
        GPRegressor(inference=GRID, **GIVEN).fit_table(spoiled(tmp_path, "csv", "high"), "y")
    with pytest.raises(InvalidInputError, match=r"part-0\.parquet: column 'note', row 1: 'text' is not a number"):
        GPRegressor(inference=GRID).fit_table(write_folder(tmp_path / "p"), "y")


def test_rows_beyond_given_bounds_are_named(tmp_path):
    folder, bounds = write_folder(tmp_path / "p"), (X.min(0), [8.0, -10.0])
    with pytest.raises(InvalidInputError, match=r"part-0\.parquet, rows after its first 0: .* rows lie outside"):
        GPRegressor(inference=GRID, **GIVEN).fit_table(folder, "y", ["x", "z"], bounds=bounds)


WIDE = RNG.normal(size=(50, 6))


@pytest.mark.parametrize(
    ("settings", "source", "options", "match"),
    [
        ({}, (WIDE, WIDE[:, 0]), {}, "sum of terms of at most 3 inputs"),
        ({}, (X[:1], Y[:1]), {}, "must have two rows|is constant"),
        ({}, "no such file.parquet", {"target": "y"}, "does not exist"),
        ({}, (X, Y), {"checkpoint": "state"}, "needs a file or a folder"),
        ({}, (X, Y), {"bounds": ([0, 0], [1])}, "must have the same length"),
        ({}, (X, Y), {"bounds": ([0, 0], [1, -1])}, "must be below upper"),
        ({}, (X, Y), {"bounds": ([0], [1])}, "two sequences of 2 finite numbers"),
        ({}, (X, Y), {"bounds": 3}, "a pair"),
        ({}, (X, Y), {"chunk_rows": 0}, "chunk_rows of GPRegressor.fit_table must be an int"),
        ({}, (X, Y), {"chunk_rows": 1e6}, "chunk_rows of GPRegressor.fit_table must be an int"),
        ({"kernel": kernels.Linear() * kernels.RBF()}, (X, Y), {}, "must be stationary"),
        ({"kernel": "rbf"}, (X, Y), {}, "kernel of GPRegressor"),
        ({"noise_variance": np.full(N, 0.1)}, (X, Y), {}, "one number, or None, for fit_table"),
        ({"noise_variance": -1.0}, (X, Y), {}, "must be positive"),
        ({"dtype": "float16"}, (X, Y), {}, "dtype of GPRegressor"),
        ({"mean": "quadratic"}, (X, Y), {}, "mean of GPRegressor must be one of"),
        ({"inference": inference.Exact()}, (X, Y), {}, r"works with inference\.Vecchia.*inference\.Exact does not"),
        ({"inference": inference.Iterative()}, (X, Y), {}, r"inference\.Iterative does"),
        ({"inference": "grid"}, (X, Y), {}, 'must be "auto" or one of'),
        ({"likelihood": "poisson"}, (X, Y), {}, "fit_table|poisson"),
        ({"optimizer": optimization.SubsetStart(optimization.Adam())}, (X, Y), {}, "SubsetStart needs the rows"),
        ({"inference": inference.Grid(size=(9, 9, 9))}, (X, Y), {}, "must have 2 numbers"),
    ],
)
def test_what_cannot_be_done_is_refused(settings, source, options, match):
    with pytest.raises(InvalidInputError, match=match):
        GPRegressor(**settings).fit_table(source, **options)


def test_a_grid_that_does_not_fit_is_refused():
    with pytest.raises(MemoryBudgetError, match="statistics"):
        GPRegressor(inference=inference.Grid(size=3000), memory_budget="200MiB", **GIVEN).fit_table((X, Y))


def test_a_refit_that_fails_leaves_the_old_fit():
    gp = GPRegressor(inference=GRID, **GIVEN).fit_table(FRAME, "y", ["x", "z"])
    before = answers(gp)
    broken = X.copy()
    broken[7, 0] = np.nan
    with pytest.raises(InvalidInputError, match="column 0, row 7"):
        gp.fit_table((broken, Y))
    for one, other in zip(before, answers(gp), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_posterior_works_on_statistics_in_the_units_of_the_model():
    gp = GPRegressor(inference=GRID, **GIVEN).fit_table((X, Y))
    statistics = gp.posterior_.statistics
    torch.testing.assert_close(statistics.input_means, torch.zeros(2).double(), rtol=0, atol=1e-9)
    torch.testing.assert_close(statistics.target_variances, torch.ones(1).double(), rtol=1e-9, atol=0)
