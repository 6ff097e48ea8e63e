"""The order from coarse to fine: a permutation that is nearly max-min, whatever the table."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.neighbours import order as order_module


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def coarse_to_fine(points: Tensor, rng: torch.Generator) -> Tensor:
    return order_module.coarse_to_fine(points, rng)[0]


def uniform(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.rand(n, d, dtype=torch.float64, generator=generator(seed))


def two_clumps() -> Tensor:
    """Half of the rows about 1 apart, 1e6 away from the other half."""
    points = 16 * uniform(512, 2)
    points[256:] += 1e6
    return points


TABLES = {
    "uniform": lambda: uniform(500, 2),
    "one input": lambda: uniform(500, 1),
    "Gaussian": lambda: torch.randn(500, 3, dtype=torch.float64, generator=generator()),
    "lattice": lambda: torch.cartesian_prod(*2 * [torch.arange(22, dtype=torch.float64)]),
    "two clumps": two_clumps,
    "uneven scales": lambda: uniform(500, 3) * torch.tensor([1e-9, 1.0, 1.0], dtype=torch.float64),
    "a constant input": lambda: uniform(500, 3) * torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64),
    "nine inputs": lambda: uniform(500, 9),
    "a plane in nine inputs": lambda: uniform(500, 2) @ torch.randn(2, 9, dtype=torch.float64, generator=generator(1)),
}


def spacing(points: Tensor) -> Tensor:
    """Return the distance of each row, but the first, to its nearest earlier row, shape (n - 1,)."""
    distances = (points[:, None] - points).square().sum(2).sqrt()
    return distances.masked_fill(torch.ones(len(points), len(points)).triu().bool(), torch.inf).amin(1)[1:]


def max_min(points: Tensor) -> Tensor:
    """The exact order: always the row that is furthest from all earlier ones."""
    distances = (points[:, None] - points).square().sum(2)
    order, nearest = [0], distances[0].clone()
    for _ in range(len(points) - 1):
        order.append(int(nearest.argmax()))
        nearest = torch.minimum(nearest, distances[order[-1]])
    return torch.tensor(order)


def worst_ratio(points: Tensor, order: Tensor) -> float:
    """How many times smaller than max-min's the lower quartile of 32 rows' spacing is, at the worst place."""
    used = (len(points) - 1) // 32 * 32
    best, found = (spacing(points[one])[:used].view(-1, 32).quantile(0.25, dim=1) for one in (max_min(points), order))
    return float((best / found).max())


@pytest.mark.parametrize("table", TABLES)
def test_rows_keep_their_distance_like_max_min(table):
    points = TABLES[table]()
    order = coarse_to_fine(points, generator())
    assert order.dtype == torch.int64
    assert torch.equal(order.sort().values, torch.arange(len(points)))
    assert worst_ratio(points, order) < 2.6


@pytest.mark.parametrize("table", [table for table in TABLES if table != "nine inputs"])
def test_other_orders_do_not(table):
    """Control. (Of 500 rows in nine inputs, all are far apart.)"""
    points = TABLES[table]()
    assert worst_ratio(points, points[:, -1].argsort()) > 3.0
    if table == "one input":
        assert worst_ratio(points, torch.randperm(len(points), generator=generator())) > 3.0


@pytest.mark.parametrize("d", [1, 2, 3])
def test_every_cell_has_a_row_before_any_has_two(d):
    """A full lattice of 2^k points a side: each level is known."""
    side = {1: 256, 2: 32, 3: 8}[d]
    axis = torch.arange(side, dtype=torch.float64)
    points = torch.cartesian_prod(*d * [axis]).view(-1, d)
    points = torch.cat([points, points.new_full((1, d), side)])  # so that cells begin at multiples
    order = coarse_to_fine(points, generator())
    order = order[order < side**d]
    for level in range(1, side.bit_length() - 1):
        taken = (points[order[: 2 ** (d * level) - 1]] // (side / 2**level)).long()
        # The extra row may have been taken for the first cell.
        assert len(taken.unique(dim=0)) >= 2 ** (d * level) - 2


def test_levels_adapt_to_clumps(monkeypatch):
    """Passes over the rows: as many as levels that join rows, not as many as halvings between the scales."""
    calls = []
    unique = order_module.np.unique
    monkeypatch.setattr(order_module.np, "unique", lambda values: calls.append(unique(values)) or calls[-1])
    coarse_to_fine(two_clumps(), generator())
    assert 6 <= len(calls[0]) <= 12
    assert int(calls[0][1:].min()) >= 15  # 1e6 / 16 is 2^16


def test_duplicates_come_last():
    points = uniform(300, 2)
    points = torch.cat([points, points[:100], points[:50]])[torch.randperm(450, generator=generator(1))]
    order = coarse_to_fine(points, generator())
    assert len(points[order[:300]].unique(dim=0)) == 300
    assert spacing(points[order])[299:].max() == 0.0


def test_equal_rows_are_shuffled():
    points = torch.ones(200, 3, dtype=torch.float64)
    order = coarse_to_fine(points, generator())
    assert torch.equal(order.sort().values, torch.arange(200))
    ranks = torch.corrcoef(torch.stack([order.double(), torch.arange(200.0, dtype=torch.float64)]))[0, 1]
    assert abs(float(ranks)) < 0.3


@pytest.mark.parametrize("d", [1, 2, 26, 70])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 40])
def test_few_rows_and_many_inputs(n, d):
    order = coarse_to_fine(uniform(n, d), generator())
    assert torch.equal(order.sort().values, torch.arange(n))


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1.0, 1e12, 1e149])
def test_units_do_not_matter(scale):
    points = uniform(300, 2)
    order = coarse_to_fine(points, generator())
    found = coarse_to_fine(points * scale, generator())
    assert float((order == found).double().mean()) > 0.9  # a row at the edge of a cell may change it by rounding


def test_the_order_is_a_function_of_the_generator():
    points = uniform(300, 3)
    assert torch.equal(coarse_to_fine(points, generator()), coarse_to_fine(points.clone(), generator()))
    assert not torch.equal(coarse_to_fine(points, generator()), coarse_to_fine(points, generator(1)))


def test_the_first_row_is_random():
    points = uniform(4, 2)
    assert {int(coarse_to_fine(points, generator(seed))[0]) for seed in range(60)} == {0, 1, 2, 3}


def test_bad_input_is_refused():
    points = uniform(10, 2)
    points[3, 1] = torch.nan
    with pytest.raises(InvalidInputError, match=r"points to be ordered must be finite and .* row 3"):
        coarse_to_fine(points, generator())
    with pytest.raises(InvalidInputError, match="points to be ordered must have shape"):
        coarse_to_fine(uniform(10, 0), generator())


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_rows_by_place_have_near_rows_beside_them(table):
    points = table()
    by_place = order_module.coarse_to_fine(points, generator())[1]
    assert torch.equal(by_place.sort().values, torch.arange(len(points)))
    steps = points[by_place].diff(dim=0).norm(dim=1).median()
    shuffled = points[torch.randperm(len(points), generator=generator())]
    assert steps < 0.75 * shuffled.diff(dim=0).norm(dim=1).median()  # 0.61 with nine inputs
