"""The neighbour search against brute force, in every instruction set and in torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.neighbours import search
from gigagp.neighbours.search import NeighbourTree

NATIVE = search._native is not None
SETS = search._native.neighbour_instruction_sets() if NATIVE else []


def normal(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def shuffled(points: Tensor, seed: int = 1) -> Tensor:
    return points[torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))]


def lattice(side: int, step: float) -> Tensor:
    axis = step * torch.arange(side, dtype=torch.float64)
    return shuffled(torch.cartesian_prod(axis, axis))


def clumps() -> Tensor:
    return shuffled(torch.cat([normal(300, 3), 1e-6 * normal(300, 3, seed=1) + 1e6, normal(7, 3, seed=2) * 1e3]))


def half_equal() -> Tensor:
    points = normal(600, 3)
    points[300:] = points[0]
    return shuffled(points)


def uneven_scales() -> Tensor:
    return normal(500, 4) * torch.tensor([1e-12, 1.0, 1e12, 0.0], dtype=torch.float64) + 1.0


TABLES = {
    "Gaussian": lambda: normal(700, 3),
    "lattice": lambda: lattice(26, 1.0),
    "lattice with rounded steps": lambda: lattice(26, 0.1),
    "clumps": clumps,
    "half of the rows equal": half_equal,
    "pairs of equal rows": lambda: shuffled(normal(300, 2).repeat(2, 1)),
    "all rows equal": lambda: torch.ones(300, 2, dtype=torch.float64),
    "one input": lambda: normal(500, 1),
    "one input with ties": lambda: normal(500, 1).mul(5).round(),
    "four inputs": lambda: normal(500, 4),
    "eight inputs": lambda: normal(500, 8),
    "26 inputs": lambda: normal(400, 26),
    "a line in 26 inputs": lambda: normal(400, 1) * normal(1, 26, seed=1),
    "uneven scales": uneven_scales,
    "tiny": lambda: normal(300, 2) * 1e-12,
    "huge": lambda: normal(300, 2) * 1e12,
    "fewer rows than neighbours": lambda: normal(5, 2),
    "one row": lambda: normal(1, 2),
}


def by_brute_force(points: Tensor, queries: Tensor, limits: Tensor, m: int) -> Tensor:
    """Sort every distance by (distance, index). The last bits of sums depend on the order of inputs."""
    distances = sum((queries[:, k, None] - points[:, k]) ** 2 for k in range(points.shape[1]))
    distances = torch.where(torch.arange(len(points)) < limits[:, None], distances, torch.inf)
    values, indices = distances.sort(stable=True)
    found = torch.full((len(queries), m), -1)
    found[:, : len(points)] = torch.where(values.isinf(), -1, indices)[:, :m]
    return found.int()


def uses(points: Tensor) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Queries and limits: earlier rows of all rows, of some rows, and predictions (some of them far away)."""
    n = len(points)
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(2))[: max(1, n // 3)]
    new = torch.cat([points[::3] + 0.1 * points.std(0, correction=0), points[:2] * 100 - 3])
    return {
        "earlier": (points, torch.arange(n)),
        "some rows": (points[rows], rows),
        "new": (new, None),
        "odd limits": (new, torch.arange(len(new)) * 3 - 5),
    }


@pytest.fixture(params=[*SETS, "torch"])
def way(request, monkeypatch) -> str:
    """Every instruction set, and torch."""
    if request.param != "torch":
        return request.param
    monkeypatch.setattr(search, "_native", None)
    return ""


@pytest.mark.few(8)
@pytest.mark.parametrize("table", TABLES)
def test_neighbours_are_those_of_brute_force(table, way):
    points = TABLES[table]()
    tree = NeighbourTree(points, way)
    for use, (queries, limits) in uses(points).items():
        below = torch.full((len(queries),), len(points)) if limits is None else limits
        for m in (1, 7, 40):
            found = tree.query(queries, m, limits)
            assert found.dtype == torch.int32
            assert torch.equal(found, by_brute_force(points, queries, below, m)), (use, m)


def test_without_limits_the_comparison_fails():
    """Control: the reference tells earlier neighbours from all neighbours, and ties by index from other ties."""
    points = lattice(26, 1.0)
    earlier = by_brute_force(points, points, torch.arange(len(points)), 7)
    assert not torch.equal(NeighbourTree(points).query(points, 7), earlier)
    backwards = len(points) - 1 - by_brute_force(points.flip(0), points, torch.full((len(points),), len(points)), 7)
    assert not torch.equal(NeighbourTree(points).query(points, 7), backwards)


def test_many_neighbours(way):
    points = normal(900, 5)
    limits = torch.full((100,), 900)
    assert torch.equal(
        NeighbourTree(points, way).query(points[:100], 850, limits), by_brute_force(points, points[:100], limits, 850)
    )


def test_a_large_table_has_one_answer(way):
    """More points than a block of torch's search or a task of the compiled one."""
    points = lattice(61, 0.1)
    limits = torch.arange(len(points))
    expected = torch.cat(
        [by_brute_force(points, points[a : a + 500], limits[a : a + 500], 12) for a in range(0, len(points), 500)]
    )
    assert torch.equal(NeighbourTree(points, way).query(points, 12, limits), expected)


def test_threads_change_nothing():
    points = shuffled(torch.cat([normal(3000, 3), half_equal(), clumps()]))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(NeighbourTree(points).query(points, 20, torch.arange(len(points))))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_threads_are_used_for_many_queries_only(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert [search._threads_for(n) for n in (0, 1, 600, 1100, 10**6)] == [1, 1, 1, 2, 4]


def test_no_queries(way):
    tree = NeighbourTree(normal(10, 2), way)
    assert tree.query(normal(0, 2), 3).shape == (0, 3)
    assert tree.query(normal(0, 2), 3, torch.arange(0)).shape == (0, 3)


def test_layout_and_type_do_not_matter(way):
    points = normal(300, 3)
    wide = torch.cat([points, points], dim=1)[:, :3]
    expected = NeighbourTree(points, way).query(points, 5)
    assert torch.equal(NeighbourTree(wide, way).query(points.T.contiguous().T, 5), expected)
    single = points.float().requires_grad_()
    rounded = points.float().double()
    assert torch.equal(NeighbourTree(single, way).query(single, 5), NeighbourTree(rounded, way).query(rounded, 5))


def test_the_points_are_copied(way):
    points = normal(300, 3)
    tree, queries = NeighbourTree(points, way), points.clone()
    expected = tree.query(queries, 5)
    points.zero_()
    assert torch.equal(tree.query(queries, 5), expected)


def test_bad_input_is_refused(way):
    points = normal(10, 2)
    tree = NeighbourTree(points, way)
    for value in (torch.nan, torch.inf, -torch.inf, 1e200):
        bad = points.clone()
        bad[3, 1] = value
        with pytest.raises(InvalidInputError, match=r"points of NeighbourTree must be finite and .* row 3"):
            NeighbourTree(bad, way)
        with pytest.raises(InvalidInputError, match=r"queries must be finite and .* row 3"):
            tree.query(bad, 1)
    for empty in (normal(0, 2), normal(10, 0), normal(10, 1)[:, 0]):
        with pytest.raises(InvalidInputError, match="points of NeighbourTree must have"):
            NeighbourTree(empty, way)
    with pytest.raises(InvalidInputError, match="queries must have 2 inputs"):
        tree.query(normal(10, 3), 1)
    with pytest.raises(InvalidInputError, match="n_neighbours must be at least 1; got 0"):
        tree.query(points, 0)
    with pytest.raises(InvalidInputError, match="limits must have shape"):
        tree.query(points, 1, torch.arange(9))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("table", TABLES)
def test_cuda_gives_the_same_neighbours(table):
    points = TABLES[table]()
    for queries, limits in uses(points).values():
        there = NeighbourTree(points.cuda()).query(queries.cuda(), 7, None if limits is None else limits.cuda())
        assert torch.equal(there.cpu(), NeighbourTree(points).query(queries, 7, limits))


@pytest.mark.skipif(not NATIVE, reason="the compiled extension was not built")
def test_the_extension_checks_its_arguments():
    """Whatever Python passes, the compiled code must not read or write outside of its arrays."""
    points = normal(50, 2).numpy()
    tree = search._native.NeighbourTree(points, 1)
    queries, limits, out = points[:5], torch.zeros(5).int().numpy(), torch.zeros(5, 3).int().numpy()
    tree.query("", queries, limits, out, 1)
    for arguments in (
        ("none", queries, limits, out, 1),
        ("", normal(5, 3).numpy(), limits, out, 1),
        ("", queries, limits[:4], out, 1),
        ("", queries, limits, out[:4], 1),
        ("", queries, limits, out[:, :0].copy(), 1),
        ("", queries, limits, out, 0),
    ):
        with pytest.raises(ValueError, match="native neighbour search"):
            tree.query(*arguments)
    with pytest.raises(ValueError, match="native neighbour search"):
        search._native.NeighbourTree(points[:0], 1)
