from __future__ import annotations

import pytest
import torch

from gigagp.solvers.preconditioners.clusters import Partition, clustered, contiguous
from matrices import normal


@pytest.mark.parametrize(("n", "size"), [(1, 5), (5, 5), (6, 5), (100, 7), (97, 10), (64, 16), (50, 1)])
def test_clusters_hold_every_row_once_and_differ_in_size_by_at_most_one(n, size):
    partition = clustered(normal(n, 3), size)
    sizes = [len(rows) for rows in partition.blocks]
    assert torch.cat(partition.blocks).sort().values.tolist() == list(range(n))
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1
    assert len(partition) == -(-n // size)


def test_clusters_separate_groups_that_are_far_apart():
    group = torch.arange(40) % 4
    points = normal(40, 2) + 100.0 * torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])[group]
    for rows in clustered(points, 10).blocks:
        assert len(group[rows].unique()) == 1


def test_clusters_of_identical_points_are_balanced():
    assert [len(rows) for rows in clustered(torch.zeros(30, 2), 10).blocks] == [10, 10, 10]


def test_contiguous_blocks_follow_the_data_and_the_last_is_shorter():
    blocks = contiguous(10, 4, torch.device("cpu")).blocks
    assert [rows.tolist() for rows in blocks] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("trailing", [(), (3,)])
def test_stacking_is_undone_and_pads_with_zeros(trailing):
    partition = Partition([torch.tensor([4, 0]), torch.tensor([1, 2, 3])])
    vectors = normal(5, *trailing)
    stacked = partition.stack(vectors)
    assert stacked.shape == (2, 3, *trailing)
    assert torch.equal(stacked[0, 0], vectors[4])
    assert not stacked[0, 2].any()
    assert torch.equal(partition.unstack(stacked), vectors)
