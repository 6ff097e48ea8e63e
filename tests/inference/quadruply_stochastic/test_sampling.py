"""Index samples: uniform, independent of the number of indices in time and memory."""

from __future__ import annotations

import itertools

import pytest
import torch

from gigagp.errors import InvalidInputError
from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample, sample_indices
from helpers import generator, largest_tensor


@pytest.mark.parametrize("n", [5, 12])  # by a permutation, and by rejection
def test_sets_are_uniform(n):
    g, size, draws = generator(0), 2, 6000
    counts = dict.fromkeys(itertools.combinations(range(n), size), 0)
    for _ in range(draws):
        counts[tuple(sample_indices(n, size, g).tolist())] += 1
    expected = draws / len(counts)
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    degrees = len(counts) - 1
    assert chi_square < degrees + 4 * (2 * degrees) ** 0.5
    counts[0, 1] *= 3  # the control: one set three times as often
    assert sum((count - expected) ** 2 / expected for count in counts.values()) > degrees + 4 * (2 * degrees) ** 0.5


def test_without_replacement_they_are_different_and_sorted():
    for n, size in [(10**9, 1000), (1000, 249), (1000, 251), (1000, 1000), (1, 1)]:
        found = sample_indices(n, size, generator(1))
        assert len(found) == size
        assert bool((found.diff() > 0).all())
        assert 0 <= int(found[0]) <= int(found[-1]) < n
    with pytest.raises(InvalidInputError, match="at most 3; got 4"):
        sample_indices(3, 4, generator())


def test_nothing_of_the_size_of_the_population_is_made():
    with largest_tensor() as spy:
        sample_indices(10**9, 1000, generator(0))
        BasisSample.draw(10**9, 1000, generator(0), n_head=7)
    assert spy.elements < 10_000


def test_weights_are_one_in_the_mean_and_repeats_count():
    sample = BasisSample.from_indices(torch.tensor([7, 2, 2, 2]), torch.tensor([3, 7, 0, 1]), 10, n_head=2)
    assert sample.index.tolist() == [0, 1, 2, 3, 7]
    assert sample.left.tolist() == [0, 0, 7.5, 0, 2.5]
    assert sample.right.tolist() == [2.5, 2.5, 0, 2.5, 2.5]
    assert sample.for_columns().left.tolist() == [1, 1, 7.5, 0, 2.5]
    shuffled = BasisSample.from_indices(torch.tensor([2, 7, 2, 2]), torch.tensor([0, 1, 3, 7]), 10, n_head=2)
    assert torch.equal(shuffled.left, sample.left)
    assert torch.equal(shuffled.index, sample.index)
    total = sum(BasisSample.draw(10, 3, generator(seed)).left.sum() for seed in range(5))
    assert float(total) == pytest.approx(50)


@pytest.mark.parametrize("bad", [torch.tensor([], dtype=torch.long), torch.tensor([-1, 2]), torch.tensor([10])])
def test_bad_index_sets_are_refused(bad):
    with pytest.raises(InvalidInputError, match="left of BasisSample must be indices from 0 to 9"):
        BasisSample.from_indices(bad, torch.tensor([1]), 10)
