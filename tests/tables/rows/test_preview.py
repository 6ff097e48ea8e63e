"""A preview reads no more than it must."""

from __future__ import annotations

import numpy as np

from gigagp.tables.files import streaming
from gigagp.tables.rows import RowSource, preview_of
from gigagp.tables.rows import preview as preview_module

from .test_source import N, X, pairs, parquet_folder


def test_a_preview_of_a_large_source_reads_a_few_stretches(tmp_path, monkeypatch):
    monkeypatch.setattr(preview_module, "PREVIEW_ROWS", 160)
    monkeypatch.setattr(preview_module, "_STRETCHES", 4)
    read: list[int] = []
    original = streaming.stream_file

    def counting(*arguments, **options):
        for chunk in original(*arguments, **options):
            read.append(len(chunk))
            yield chunk

    monkeypatch.setattr(streaming, "stream_file", counting)
    found = preview_of(RowSource(parquet_folder(tmp_path / "p"), "y", ["a", "b"]), 0)
    assert (found.lower, found.n_rows) == (X.min(0).tolist(), N)
    assert len(found.sample) == 160
    assert sum(read) < 400
    places = np.flatnonzero(np.isin(X[:, 0], found.sample.X[:, 0].numpy()))
    assert np.array_equal(np.unique(places // 225), [0, 1, 2, 3])  # from all over
    # Without metadata all rows have to be read once.
    whole = preview_of(RowSource(parquet_folder(tmp_path / "q", write_statistics=False), "y", ["a", "b"]), 0)
    assert (whole.lower, whole.n_rows, len(whole.sample)) == (X.min(0).tolist(), N, N)
    # A generator is read as far as that, and goes on behind it.
    source = RowSource(pairs(50))
    assert len(preview_of(source, 0, (X.min(0), X.max(0))).sample) == 200
    assert sum(len(rows.X) for rows in source.chunks()) == N
