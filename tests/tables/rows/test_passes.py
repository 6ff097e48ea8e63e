"""Minibatches from random places: what is uniform and what is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gigagp.errors import InvalidInputError
from gigagp.tables.rows import RowAccess, RowPasses, RowSource, Section

from .test_access import N, X, Y, folder


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
    source.sections = [Section("", 5 * k, 5) for k in range(4)] + [Section("", 20, 480)]
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
        passes._access.sections = [Section("", k, 50) for k in range(0, N, 50)]
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
