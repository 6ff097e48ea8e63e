"""Every kind of source gives the same rows and the same bounds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from gigagp.errors import InvalidInputError
from gigagp.tables.files import streaming
from gigagp.tables.rows import RowSource, preview_of, source_bounds, stream_rows

N = 900
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2)) * [1.0, 50.0]
Y = RNG.normal(size=N)
FRAME = pd.DataFrame({"b": X[:, 1], "y": Y, "a": X[:, 0]})


def pairs(size: int = 170):
    return ((X[k : k + size], Y[k : k + size]) for k in range(0, N, size))


def parquet_folder(path, parts: int = 3, group: int = 60, **options):
    path.mkdir()
    for k, part in enumerate(np.array_split(np.arange(N), parts)):
        table = pa.Table.from_pandas(FRAME.iloc[part], preserve_index=False)
        pq.write_table(table, path / f"{k}.parquet", row_group_size=group, **options)
    return path


def sources(path) -> dict[str, RowSource]:
    FRAME.to_csv(path / "t.csv", index=False)
    np.save(path / "t.npy", np.column_stack([X, Y]))
    named = {"target": "y", "inputs": ["a", "b"], "chunk_rows": 100}
    return {
        "folder": RowSource(parquet_folder(path / "p"), **named),
        "csv": RowSource(str(path / "t.csv"), **named),
        "npy": RowSource(path / "t.npy", "column3", chunk_rows=100),
        "pandas": RowSource(FRAME, **named),
        "arrow": RowSource(pa.Table.from_pandas(FRAME), **named),
        "arrays": RowSource((X, Y), chunk_rows=100),
        "callable": RowSource(pairs),
        "list": RowSource(list(pairs())),
        "generator": RowSource(pairs()),
    }


def test_every_kind_gives_the_same_rows(tmp_path):
    for name, source in sources(tmp_path).items():
        bounds = ([-9, -900], [9, 900]) if source.reads_once else None
        preview = preview_of(source, 0, bounds)
        rows = list(source.chunks())
        np.testing.assert_array_equal(torch.cat([one.X for one in rows]).numpy(), X, name)
        np.testing.assert_array_equal(torch.cat([one.Y for one in rows])[:, 0].numpy(), Y, name)
        assert max(len(one.X) for one in rows) < N
        assert (source.n_inputs, source.n_targets, source.one_target) == (2, 1, True)
        assert source.has_files == (name in ("folder", "csv", "npy"))
        assert source.reads_once == (name == "generator")
        assert len(preview.sample) == N
        if name == "generator":
            assert (preview.lower, preview.n_rows) == ([-9.0, -900.0], None)
            with pytest.raises(InvalidInputError, match="can be read only once"):
                next(source.chunks())
        else:
            assert (preview.lower, preview.upper, preview.n_rows) == (X.min(0).tolist(), X.max(0).tolist(), N)


def test_names_and_shapes_of_targets():
    assert RowSource(FRAME, "y").input_names == ["b", "a"]
    one, two = RowSource(FRAME, ["y"], ["a"]), RowSource(FRAME, ["y", "b"])
    assert (one.one_target, one.n_targets, two.n_targets, two.input_names) == (False, 1, 2, ["a"])
    assert not RowSource((X, Y[:, None])).one_target
    assert not RowSource(lambda: [(X, Y[:, None])]).one_target


def test_a_generator_may_use_its_memory_again():
    def reused():
        points, values = np.empty((100, 2)), np.empty(100)
        for k in range(0, N, 100):
            points[:], values[:] = X[k : k + 100], Y[k : k + 100]
            yield points, values

    source = RowSource(reused())
    preview_of(source, 0, (X.min(0), X.max(0)))
    np.testing.assert_array_equal(np.concatenate([rows.X.numpy().copy() for rows in source.chunks()]), X)


def test_a_known_part_of_the_targets_is_subtracted():
    source = RowSource((X, Y), offset=lambda points: 2 * points[:, 0], chunk_rows=100)
    np.testing.assert_allclose(
        torch.cat([one.Y for one in source.chunks()])[:, 0].numpy(), Y - 2 * X[:, 0], rtol=0, atol=1e-14
    )


def test_reading_goes_on_where_it_stopped(tmp_path):
    folder = parquet_folder(tmp_path / "p")
    source = RowSource(folder, "y", ["a", "b"], chunk_rows=100)
    rows = list(source.chunks({str(folder / "0.parquet"): 300, str(folder / "1.parquet"): 120}))
    np.testing.assert_array_equal(torch.cat([one.X for one in rows]).numpy(), X[420:])


def test_a_number_may_begin_as_a_whole_one_in_a_csv_file(tmp_path, monkeypatch):
    monkeypatch.setattr("gigagp.tables.files.streaming._CSV_BLOCK", 64)
    path = tmp_path / "t.csv"
    path.write_text("a;b;y\n" + "0;1;2\n" * 50 + "0.5;1.25;2.5\n" * 50, encoding="utf-8")
    parts = list(stream_rows(path, ["a", "b"], ["y"]))
    assert sum(len(part.X) for part in parts) == 100
    assert parts[-1].X[-1].tolist() == [0.5, 1.25]
    path.write_text("a,b,y\n", encoding="utf-8")
    assert list(stream_rows(path, ["a", "b"], ["y"])) == []


def test_bounds_come_from_the_metadata_where_it_has_them(tmp_path, monkeypatch):
    expected = (X.min(0).tolist(), X.max(0).tolist(), N)
    folder, named = parquet_folder(tmp_path / "p"), (["a", "b"], ["y"])
    read: list[str] = []
    original = streaming.stream_file
    monkeypatch.setattr(streaming, "stream_file", lambda path, *rest: read.append(path.name) or original(path, *rest))
    assert source_bounds(folder, *named) == expected
    assert read == []
    pq.write_table(pq.read_table(folder / "0.parquet"), folder / "0.parquet", write_statistics=False)
    assert source_bounds(folder, *named) == expected
    assert read == ["0.parquet"]


def test_every_kind_has_the_same_bounds():
    expected = (X.min(0).tolist(), X.max(0).tolist(), N)
    assert source_bounds((X, Y)) == expected
    assert source_bounds(FRAME, ["a", "b"], ["y"], chunk_rows=50) == expected
    assert source_bounds(list(pairs())) == source_bounds(pairs) == expected
    assert source_bounds([(X[:0], Y[:0]), (X, Y), (X[:0], Y[:0])]) == expected  # chunks without rows are nothing


def bad(column=0, row=333, value=np.nan):
    points = X.copy()
    points[row, column] = value
    return points


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: RowSource(7), "A source of rows is"),
        (lambda: RowSource(FRAME), "target of fit_table must name"),
        (lambda: RowSource(FRAME, "Y"), "no column 'Y'. Did you mean 'y'"),
        (lambda: RowSource(FRAME, "y", "ab"), "must be a list"),
        (lambda: RowSource(FRAME, "y", ["a", "y"]), "must not contain 'y'"),
        (lambda: RowSource(FRAME, "y", ["a", "a"]), "'a' is named twice"),
        (lambda: RowSource(FRAME, ["y", "a", "b"]), "at least one input"),
        (lambda: RowSource((X, Y), "y"), "this source has no names"),
        (lambda: RowSource(iter([])), "has no rows"),
        (lambda: RowSource((X[:0], Y[:0])), "has no rows"),
        (lambda: RowSource(lambda: [X]), "must yield pairs"),
        (lambda: preview_of(RowSource((X, Y[:-1])), 0), "same number of rows"),
        (lambda: preview_of(RowSource([(X, Y), (X, Y[1:])]), 0), "item 1 has 900 and 899"),
        (lambda: preview_of(RowSource([(X, Y), (X[:, :1], Y)]), 0), "after its first 900 have 1 inputs"),
        (
            lambda: preview_of(RowSource((bad(), Y), chunk_rows=100), 0),
            "X must be finite; got NaN in column 0, row 333 ",
        ),
        (lambda: preview_of(RowSource((bad(value=-np.inf), Y)), 0), "got infinity in column 0, row 333 "),
        (lambda: preview_of(RowSource((X, bad()[:, 0]), chunk_rows=100), 0), "y must be finite; got NaN in row 333 "),
        (lambda: source_bounds(iter([])), "give the grid, or lower and upper"),
        (lambda: source_bounds((X[:0], Y[:0])), "has no rows"),
        (lambda: source_bounds((bad(), Y)), "must be finite"),
        (lambda: source_bounds((X, Y), chunk_rows=0), "chunk_rows must be positive"),
        (lambda: source_bounds(lambda: 3), "must return an iterable of pairs"),
        (lambda: RowSource((X + 1j, Y)), "real numbers; got complex128"),
        (lambda: preview_of(RowSource(pairs()), 0), "bounds of fit_table must be given"),
        (lambda: preview_of(RowSource(pairs()), 0, ([0, 0], [1])), "two sequences of 2 finite numbers"),
        (lambda: preview_of(RowSource(FRAME.assign(a=2.0), "y"), 0), "Input 'a' is constant .always 2.0"),
    ],
)
def test_bad_sources_are_refused(make, match):
    with pytest.raises(InvalidInputError, match=match):
        make()
