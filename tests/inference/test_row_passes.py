"""Rows by number from every kind of source, and minibatches from random places: what is uniform and what is not."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from gigagp.data import streaming
from gigagp.data.labels import Labels
from gigagp.errors import InvalidInputError
from gigagp.inference import row_access
from gigagp.inference.row_access import RowAccess
from gigagp.inference.row_passes import RowPasses
from gigagp.inference.row_source import RowSource

N = 500
RNG = np.random.default_rng(0)
X = np.column_stack([np.arange(N), RNG.normal(size=N)])
Y = RNG.normal(size=N)
FRAME = pd.DataFrame({"b": X[:, 1], "note": "text", "y": Y, "a": X[:, 0]})
#: rows of the row groups of three files: as unlike as can be
GROUPS = ([7, 7, 7, 7], [150, 100], [222])


def folder(path: Path, frame: pd.DataFrame = FRAME, groups=GROUPS) -> Path:
    path.mkdir()
    start = 0
    for k, sizes in enumerate(groups):
        schema = pa.Schema.from_pandas(frame, preserve_index=False)
        with pq.ParquetWriter(path / f"{k}.parquet", schema) as writer:
            for size in sizes:
                part = pa.Table.from_pandas(frame.iloc[start : start + size], schema, preserve_index=False)
                writer.write_table(part, row_group_size=size)
                start += size
    return path


def pairs(y=Y):
    return ((X[k : k + 90], y[k : k + 90]) for k in range(0, N, 90))


def sources(path: Path, frame: pd.DataFrame = FRAME, y=Y, **options) -> dict[str, RowSource]:
    frame.to_csv(path / "t.csv", index=False)
    named = {"target": "y", "inputs": ["a", "b"], "chunk_rows": 60}
    found = {
        "folder": lambda **more: RowSource(folder(path / "p", frame), **named, **more),
        "csv": lambda **more: RowSource(path / "t.csv", **named, **more),
        "pandas": lambda **more: RowSource(frame, **named, **more),
        "arrow": lambda **more: RowSource(pa.Table.from_pandas(frame), **named, **more),
        "arrays": lambda **more: RowSource((X, y), **more),
        "tensors": lambda **more: RowSource((torch.from_numpy(X), y), **more),
        "callable": lambda **more: RowSource(lambda: pairs(y), **more),
        "generator": lambda **more: RowSource(pairs(y), **more),
    }
    if y.dtype.kind == "f":
        np.save(path / "t.npy", np.column_stack([X, y]))
        found["npy"] = lambda **more: RowSource(path / "t.npy", "column3", chunk_rows=60, **more)
    return {name: make(**{key: value() for key, value in options.items()}) for name, make in found.items()}


def all_rows(access: RowAccess) -> tuple[np.ndarray, np.ndarray]:
    """Return all rows of all sections, some at a time, in the order of the table."""
    found = []
    for section in access.sections:
        for rows in (np.arange(0, section.count, 2), np.arange(1, section.count, 2)):
            if len(rows):
                found.append(access.take(section, rows))
    both = (torch.cat([getattr(part, name) for part in found]).numpy() for name in ("X", "Y"))
    inputs, targets = both
    order = inputs[:, 0].argsort()
    return inputs[order], targets[order]


def test_every_kind_of_source_gives_its_rows_by_number(tmp_path, monkeypatch):
    monkeypatch.setattr(row_access, "_SECTION_ROWS", 130)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    for name, source in sources(tmp_path).items():
        with RowAccess(source, 60) as access:
            inputs, targets = all_rows(access)
            np.testing.assert_array_equal(inputs, X, name)
            np.testing.assert_array_equal(targets[:, 0], Y, name)
            assert access.n_rows == N
            written = list((tmp_path / "scratch").iterdir())
            assert bool(written) == (name in ("csv", "callable", "generator"))
        assert not list((tmp_path / "scratch").iterdir())


def test_labels_are_the_signs_of_their_classes_in_every_kind_of_source(tmp_path):
    for k, values in enumerate((np.array(["up", "down", "still"]), np.array([4, 2]))):
        y = values[RNG.integers(len(values), size=N)]
        (tmp_path / str(k)).mkdir()
        for name, source in sources(tmp_path / str(k), FRAME.assign(y=y), y, labels=Labels).items():
            with RowAccess(source, 60) as access:
                _, targets = all_rows(access)
                classes = np.unique(y)
                assert source.labels.classes.tolist() == classes.tolist(), name
                expected = np.where(y[:, None] == (classes if len(classes) > 2 else classes[1:]), 1.0, -1.0)
                np.testing.assert_array_equal(targets, expected, name)
                assert source.n_targets == expected.shape[1]


def test_only_the_columns_and_the_row_groups_that_are_wanted_are_read(tmp_path, monkeypatch):
    """Other columns and row groups are garbage; the control reads them."""
    path = folder(tmp_path / "p", groups=([100, 100, 300],))
    file = path / "0.parquet"
    metadata, broken = pq.read_metadata(file), bytearray(file.read_bytes())

    def spoil(group: int, column: int) -> None:
        chunk = metadata.row_group(group).column(column)
        start = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
        broken[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size

    spoil(0, 1)  # the notes of the first
    for column in range(4):
        spoil(1, column)
    file.write_bytes(broken)
    rows = np.array([3, 99, 200, 499])
    found = streaming.take_rows(file, ["a", "y"], rows, 30)
    np.testing.assert_array_equal(found, np.column_stack([X[rows, 0], Y[rows]]))
    with pytest.raises(InvalidInputError, match=r"0\.parquet cannot be read"):
        streaming.take_rows(file, ["a", "y"], np.array([3, 150]), 30)
    with pytest.raises(InvalidInputError, match=r"cannot be read|not a number"):
        streaming.take_rows(file, ["note"], np.array([3]), 30)


def test_bad_cells_are_named_with_their_row_and_a_shorter_file_too(tmp_path):
    frame = FRAME.copy()
    frame.loc[261, "b"] = np.nan
    path = folder(tmp_path / "p", frame)
    file = path / "1.parquet"  # whose first row is number 28
    with pytest.raises(InvalidInputError, match=r"1\.parquet: column 'b', row 234: the"):
        streaming.take_rows(file, ["a", "b"], np.array([0, 200, 233]), 40)
    assert len(streaming.take_rows(file, ["a", "b"], np.array([0, 200, 232]), 40)) == 3
    with pytest.raises(InvalidInputError, match=r"has fewer rows than when the fit began: there is no row 401"):
        streaming.take_rows(file, ["a"], np.array([3, 400]), 40)
    np.save(tmp_path / "t.npy", np.where(np.arange(30).reshape(15, 2) == 25, np.nan, 1.0))
    with pytest.raises(InvalidInputError, match=r"t\.npy: column 'column2', row 13"):
        streaming.take_rows(tmp_path / "t.npy", ["column1", "column2"], np.array([2, 12]), 5)


# Passes ---------------------------------------------------------------------------------------------------------------


def access(tmp_path: Path) -> RowAccess:
    return RowAccess(RowSource(folder(tmp_path / "p"), "y", ["a", "b"]), 60)


@pytest.mark.parametrize("window", [37, 120, N])
def test_a_pass_gives_every_row_once(tmp_path, window):
    passes = RowPasses(access(tmp_path), window, seed=1, places=4)
    for number in range(3):
        inputs = [passes.batch(number * N + k, 25) for k in range(0, N, 25)]
        rows = torch.cat([part for part, _ in inputs])[:, 0].numpy().astype(int)
        assert sorted(rows) == list(range(N))
        np.testing.assert_array_equal(torch.cat([part for _, part in inputs])[:, 0].numpy(), Y[rows])
        assert np.abs(np.diff(rows)).mean() > 50  # in random order


def test_the_sequence_can_be_entered_anywhere(tmp_path):
    passes, other = (RowPasses(RowAccess(RowSource((X, Y)), 60), 77, seed=3, places=5) for _ in range(2))
    whole = torch.cat([passes.batch(k, 40)[0] for k in range(0, 3 * N, 40)])[:, 0]
    for position in (1290, 0, 711, 495, 76, 77):
        assert torch.equal(other.batch(position, 33)[0][:, 0], whole[position : position + 33])
    assert not torch.equal(whole[:N], whole[N : 2 * N])


def test_every_row_of_a_batch_is_uniform(tmp_path):
    """Over all places where a pass can begin, every row is in every place of every window equally often, exactly.

    The shuffles inside of sections and windows do not know where it begins. Without that, small groups are first too
    often.
    """
    source = RowAccess(RowSource((X, Y)), 60)
    source.sections = [row_access.Section(None, 5 * k, 5) for k in range(4)] + [row_access.Section(None, 20, 480)]
    window, small_first = 60, 0
    for seed in range(60):
        passes = RowPasses(source, window, seed, places=4)
        order = passes._order_of(0)
        assert 0 <= order.turn < N
        small_first += RowPasses(source, window, seed, places=1)._order_of(0).section[0] < 4
        if seed >= 2:
            continue
        shuffled = {k: passes._random(1, 0, k).permutation(found.count) for k, found in enumerate(source.sections)}
        counts = np.zeros((9, window, N), dtype=int)
        for turn in range(N):
            passes._order = 0, type(order)(order.section, order.first, order.ends, turn)
            for number in range(9):
                stretches = passes._stretches(0, number)
                rows = np.concatenate(
                    [source.sections[k].first + shuffled[k][first:last] for k, first, last in stretches]
                )
                assert len(rows) == min(window, N - number * window)
                counts[number, np.arange(len(rows)), rows] += 1
        for number in range(9):
            length = min(window, N - number * window)
            assert (counts[number, :length] == 1).all()
    assert small_first / 60 > 0.04 + 4 * np.sqrt(0.04 * 0.96 / 60)  # of the rows 4 % are in small groups


def test_where_passes_begin_is_uniform():
    source = RowAccess(RowSource((X, Y)), 60)
    passes = RowPasses(source, 60, 0)
    turns = np.array([passes._order_of(number).turn for number in range(600)])
    assert abs(turns.mean() - (N - 1) / 2) < 4 * N / np.sqrt(12 * 600)
    assert len(np.unique(turns)) > 300


def test_batches_hold_rows_from_many_places_of_a_sorted_table(tmp_path):
    """With one piece a window, batches would come from one place."""

    def spread(places: int) -> float:
        passes = RowPasses(RowAccess(RowSource((X, Y)), 60), 100, seed=0, places=places)
        passes._access.sections = [row_access.Section(None, k, 50) for k in range(0, N, 50)]
        return float(np.mean([passes.batch(k, 20)[0][:, 0].std() for k in range(0, 3 * N, 20)]))

    assert spread(20) > 0.8 * X[:, 0].std()
    assert spread(2) < 0.75 * X[:, 0].std()


def test_a_batch_larger_than_a_window_and_errors_that_change_nothing(tmp_path, monkeypatch):
    found = access(tmp_path)
    passes = RowPasses(found, 50, seed=0)
    X_batch, _ = passes.batch(30, 170)
    assert len(set(X_batch[:, 0].tolist())) == 170
    before = passes.batch(430, 20)[0].clone()
    with monkeypatch.context() as patch:
        patch.setattr(found, "take", lambda *_: (_ for _ in ()).throw(InvalidInputError("broken")))
        with pytest.raises(InvalidInputError, match="broken"):
            passes.batch(900, 20)
    assert torch.equal(passes.batch(430, 20)[0], before)


def test_no_rows(tmp_path):
    with pytest.raises(InvalidInputError, match="has no rows"):
        RowAccess(RowSource(folder(tmp_path / "p", FRAME, ([],)), "y", ["a", "b"]), 60)
