"""Neighbours among earlier rows against brute force by rank, and when they are found anew."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from gigagp import kernels
from gigagp.neighbours.neighbourhood import NeighbourGraph, Neighbourhood
from helpers import generator, points

KERNEL = (kernels.Matern(1.5, [0.4, 3.0], 1.2) + kernels.White(0.1)).bind(2)
TABLES = {
    "Gaussian": points(150, 2),
    "clumps": torch.cat([points(80, 2), 1e-4 * points(70, 2, seed=1) + 3.0]),
    "duplicates": points(75, 2).repeat(2, 1),
    "a lattice": torch.cartesian_prod(torch.arange(12.0), torch.arange(12.0)).double(),
    "two rows": points(2, 2),
    "one row": points(1, 2),
}
tables = pytest.mark.parametrize("X", TABLES.values(), ids=TABLES.keys())


def by_brute_force(around, X, at, limits, m):
    """Return the nearest rows of rank below the limits, by (distance, rank)."""
    places = around.metric(X)[around.order]
    points = around.metric(at)
    found = torch.full((len(at), m), -1, dtype=torch.int32)
    for k, limit in enumerate(limits.tolist()):
        distances = sum((places[:limit, c] - points[k, c]) ** 2 for c in range(places.shape[1]))
        nearest = around.order[:limit][distances.sort(stable=True).indices[:m]]
        found[k, : len(nearest)] = nearest.int()
    return found


@tables
@pytest.mark.parametrize("m", [1, 7, 200])
def test_neighbours_are_the_nearest_of_lower_rank(X, m):
    around = Neighbourhood(KERNEL, X, generator())
    assert torch.equal(around.order.sort().values, torch.arange(len(X)))
    assert torch.equal(around.order[around.rank], torch.arange(len(X)))
    expected = by_brute_force(around, X, X, around.rank, m)
    assert torch.equal(around.earlier(m), expected)
    rows = torch.arange(0, len(X), 3)
    assert torch.equal(around.earlier(m, rows), expected[rows])
    new = torch.cat([points(20, 2, seed=5) * 2, X[:1]])
    every = torch.full((len(new),), len(X))
    assert torch.equal(around.around(new, m), by_brute_force(around, X, new, every, m))


def test_the_metric_is_that_of_the_kernel():
    X = TABLES["Gaussian"]
    plain = Neighbourhood(kernels.Matern(1.5, 1.0).bind(2), X, generator()).around(X, 5)
    assert not torch.equal(Neighbourhood(KERNEL, X, generator()).around(X, 5), plain)


def test_rows_of_the_same_level_are_near_and_all_over_it():
    draw = generator()
    sizes = torch.tensor([600, 300, 5])  # rows of each level, at times from 0 to 1
    level = torch.arange(3).repeat_interleave(sizes)
    X = torch.stack([torch.rand(len(level), generator=draw).double(), level.double()], 1)
    kernel = (kernels.Group(1) * kernels.Matern(0.5, 0.1, columns=[0], fixed=["variance"]) + kernels.Group(1)).bind(2)
    around = Neighbourhood(kernel, X, generator())
    asked = torch.tensor([[1.5, 0.0], [1.5, 1.0], [0.5, 0.0], [0.5, 2.0], [0.5, 9.0]]).double()
    found = around.around(asked, 60)
    for point, rows in zip(asked, found.long(), strict=True):
        assert len(rows.unique()) == 60
        own = rows[level[rows] == point[1]]
        all_of_level = torch.nonzero(level == point[1])[:, 0]
        by_distance = all_of_level[(X[all_of_level, 0] - point[0]).abs().argsort()]
        assert torch.isin(by_distance[:20], own).all()  # two thirds of the half of a level
        if len(all_of_level) > 60:
            times = torch.cat([X[own, 0], torch.tensor([0.0, 1.0])]).sort().values
            assert len(own) > 24
            assert times.diff().max() < 0.35  # the 30 nearest ones to 1.5 leave .9 of the level out
    assert torch.equal(found, around.around(asked, 60))


def test_a_graph_is_a_function_of_kernel_rows_and_number():
    X = TABLES["clumps"]
    one, other = (NeighbourGraph(KERNEL, X.clone(), 9) for _ in range(2))
    assert torch.equal(one.neighbours, other.neighbours)
    assert torch.equal(one.order, other.order)
    for made in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert torch.equal(made.neighbours, one.neighbours)


@pytest.mark.parametrize(("n", "m", "width"), [(1, 5, 1), (2, 5, 1), (5, 4, 4), (5, 9, 4), (9, 3, 3)])
def test_a_graph_is_as_wide_as_it_must_be(n, m, width):
    assert NeighbourGraph(KERNEL, points(n, 2), m).neighbours.shape == (n, width)


@pytest.mark.parametrize(
    ("moved", "serves"),
    [
        ({}, True),
        ({"0.lengthscale": [0.4 * 1.28, 3.0]}, True),
        ({"0.lengthscale": [0.4 * 1.29, 3.0]}, False),
        ({"0.lengthscale": [0.4, 3.0 / 1.29]}, False),
        ({"0.variance": 100.0}, True),
        ({"1.variance": 1e-9}, True),
        ({"0.lengthscale": [float("nan"), 3.0]}, False),
    ],
)
def test_a_graph_serves_while_its_lengthscales_hold(moved, serves):
    X = TABLES["Gaussian"]
    graph = NeighbourGraph(KERNEL, X, 9)
    given = KERNEL.parameters()
    changes = {name: torch.as_tensor(v, dtype=torch.float64).reshape(given[name].shape) for name, v in moved.items()}
    changed = KERNEL.replace(changes)
    assert graph.serves(changed, X, 9) == serves
    assert graph.is_of(changed, X, 9) == (not moved)
    for other in ((changed, X.clone(), 9), (changed, X, 10)):
        assert not graph.serves(*other)
        assert not graph.is_of(*other)


def test_a_graph_serves_no_other_structure():
    X = TABLES["Gaussian"]
    graph = NeighbourGraph(KERNEL, X, 9)
    for other in (kernels.Matern(1.5, [0.4, 3.0]), kernels.RBF(0.4, ard=False) + kernels.White(0.1)):
        assert not graph.serves(other.bind(2), X, 9)
    periodic = kernels.Periodic(1.0, 1.0, 2.0).bind(2)
    longer = periodic.replace({"period": periodic.parameters()["period"] * 1.3})
    assert not NeighbourGraph(periodic, X, 9).serves(longer, X, 9)
