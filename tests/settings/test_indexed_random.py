"""Random numbers by index."""

from __future__ import annotations

import pytest
import torch

from gigagp.settings.indexed_random import IndexedDraws, random_bits


def test_bits_are_those_of_splitmix64():
    # These are the first outputs for the seed 1234567 as listed by other implementations of SplitMix64.
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    found = random_bits(1234567, torch.arange(5))
    assert [value % 2**64 for value in found.tolist()] == expected


def test_an_item_has_its_numbers_wherever_it_is_asked_for():
    index = torch.tensor([5, 10**12, 0, 5])
    for name, width in (("normal", 3), ("uniform", 2)):
        together = getattr(IndexedDraws(3, (1, 2), index), name)(width)
        alone = getattr(IndexedDraws(3, (1, 2), index[1:2]), name)(width)
        assert torch.equal(together[1:2], alone)
        assert torch.equal(together[0], together[3])
        assert not torch.equal(together[0], together[2])


@pytest.mark.parametrize("seed", [0, 1])
def test_numbers_are_standard_and_unrelated(seed):
    n = 40_000
    draws = IndexedDraws(seed, (0, 0), torch.arange(n))
    columns = [*draws.normal(3).T, *IndexedDraws(seed, (0, 1), torch.arange(n)).normal(1).T]
    columns += [*IndexedDraws(seed + 1, (0, 0), torch.arange(n)).normal(1).T, (draws.uniform(1)[:, 0] - 0.5) * 12**0.5]
    numbers = torch.stack(columns)
    bound = 4.5 / n**0.5
    assert float(numbers.mean(1).abs().max()) < bound
    products = numbers @ numbers.T / n - torch.eye(len(numbers))
    assert float((products - products.diagonal().diag()).abs().max()) < bound
    assert float(products.diagonal().abs().max()) < bound * 2**0.5
    neighbours = (numbers[:, 1:] * numbers[:, :-1]).mean(1)
    assert float(neighbours.abs().max()) < bound
    # Check the law by the largest distance between distribution functions (Kolmogorov and Smirnov).
    law = torch.distributions.Normal(0.0, 1.0)
    for column in numbers[:5]:
        steps = (torch.arange(n) + 0.5) / n
        assert float((law.cdf(column.sort().values) - steps).abs().max()) < 1.95 / n**0.5
    uniform = draws.uniform(1)
    assert 0 < float(uniform.min()) < 1e-3 < 1 - 1e-3 < float(uniform.max()) < 1
