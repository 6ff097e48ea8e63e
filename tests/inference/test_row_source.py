"""Sources of rows: every kind gives the same rows, and a preview reads no more than it must."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from gigagp.errors import InvalidInputError
from gigagp.inference import row_source
from gigagp.inference.row_source import RowSource
from gigagp.means import resolve_mean

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
        preview = source.preview(0, bounds)
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
            with pytest.raises(InvalidInputError, match="read once, and have been"):
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
    source.preview(0, (X.min(0), X.max(0)))
    np.testing.assert_array_equal(np.concatenate([rows.X.numpy().copy() for rows in source.chunks()]), X)


def test_a_preview_of_a_large_source_reads_a_few_stretches(tmp_path, monkeypatch):
    monkeypatch.setattr(row_source, "PREVIEW_ROWS", 160)
    monkeypatch.setattr(row_source, "_STRETCHES", 4)
    read: list[int] = []
    import gigagp.data.streaming as streaming

    original = streaming.stream_file

    def counting(*arguments, **options):
        for chunk in original(*arguments, **options):
            read.append(len(chunk.table))
            yield chunk

    monkeypatch.setattr(streaming, "stream_file", counting)
    preview = RowSource(parquet_folder(tmp_path / "p"), "y", ["a", "b"]).preview(0)
    assert (preview.lower, preview.n_rows) == (X.min(0).tolist(), N)
    assert len(preview.sample) == 160
    assert sum(read) < 400
    places = np.flatnonzero(np.isin(X[:, 0], preview.sample.X[:, 0].numpy()))
    assert np.array_equal(np.unique(places // 225), [0, 1, 2, 3])  # from all over
    # Without metadata all rows have to be read once.
    whole = RowSource(parquet_folder(tmp_path / "q", write_statistics=False), "y", ["a", "b"]).preview(0)
    assert (whole.lower, whole.n_rows, len(whole.sample)) == (X.min(0).tolist(), N, N)
    # A generator is read as far as that, and goes on behind it.
    source = RowSource(pairs(50))
    assert len(source.preview(0, (X.min(0), X.max(0))).sample) == 200
    assert sum(len(rows.X) for rows in source.chunks()) == N


def test_a_fixed_mean_is_taken_off():
    source = RowSource((X, Y), mean=resolve_mean(lambda points: 2 * points[:, 0]), chunk_rows=100)
    np.testing.assert_allclose(
        torch.cat([one.Y for one in source.chunks()])[:, 0].numpy(), Y - 2 * X[:, 0], rtol=0, atol=1e-14
    )


def test_reading_goes_on_where_it_stopped(tmp_path):
    folder = parquet_folder(tmp_path / "p")
    source = RowSource(folder, "y", ["a", "b"], chunk_rows=100)
    rows = list(source.chunks({str(folder / "0.parquet"): 300, str(folder / "1.parquet"): 120}))
    np.testing.assert_array_equal(torch.cat([one.X for one in rows]).numpy(), X[420:])


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
        (lambda: RowSource(FRAME, "y", ["a", "a"]), "'a' is there twice"),
        (lambda: RowSource(FRAME, ["y", "a", "b"]), "at least one input"),
        (lambda: RowSource((X, Y), "y"), "this source has no names"),
        (lambda: RowSource(iter([])), "has no rows"),
        (lambda: RowSource((X[:0], Y[:0])), "has no rows"),
        (lambda: RowSource(lambda: [X]), "must yield pairs"),
        (lambda: RowSource((X, Y[:-1])).preview(0), "same number of rows"),
        (lambda: RowSource([(X, Y), (X, Y[1:])]).preview(0), "item 1 has 900 and 899"),
        (lambda: RowSource([(X, Y), (X[:, :1], Y)]).preview(0), "after its first 900 have 1 inputs"),
        (lambda: RowSource((bad(), Y), chunk_rows=100).preview(0), "X must be finite; got NaN in column 0, row 333 "),
        (lambda: RowSource((bad(value=-np.inf), Y)).preview(0), "got infinity in column 0, row 333 "),
        (
            lambda: RowSource((X, bad()[:, 0]), chunk_rows=100).preview(0),
            "y must be finite; got NaN in row 333 ",
        ),
        (lambda: RowSource((X + 1j, Y)), "real numbers; got complex128"),
        (lambda: RowSource(pairs()).preview(0), "bounds of fit_table must be given"),
        (lambda: RowSource(pairs()).preview(0, ([0, 0], [1])), "two sequences of 2 finite numbers"),
        (lambda: RowSource(pairs()).preview(0, ([0, 0], [1, -1])), "two sequences of 2 finite numbers"),
        (lambda: RowSource(pairs()).preview(0, 3), "two sequences of 2 finite numbers"),
        (lambda: RowSource(FRAME.assign(a=2.0), "y").preview(0), "Input 'a' is constant .always 2.0"),
    ],
)
def test_bad_sources_are_refused(make, match):
    with pytest.raises(InvalidInputError, match=match):
        make()
