"""Rows that are left out together: no patches where there are no gaps, and patches that are like the gaps there are."""

import numpy as np
import pytest
import torch

from gigagp.kernels import Matern
from gigagp.neighbours.folds import folds_like_gaps, random_folds

KERNEL = Matern(nu=1.5)


def lattice(hole: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the points of a grid of spacing 1 outside a disc of this radius, and those in it."""
    points = torch.cartesian_prod(torch.arange(60.0, dtype=torch.float64), torch.arange(50.0, dtype=torch.float64))
    inside = torch.linalg.vector_norm(points - torch.tensor([31.0, 24.0]), dim=1) <= hole
    return points[~inside], points[inside]


def folds(X, predict_at=None):
    found = folds_like_gaps(KERNEL.bind(X.shape[1]), X, predict_at)
    return [] if found is None else found.folds


def depths(X, folds):
    """Return the distances of scored rows from the nearest row of no fold, by brute force."""
    kept = np.setdiff1d(np.arange(len(X)), np.concatenate([one.rows for one in folds]))
    return [torch.cdist(X[one.scored], X[kept]).amin(1) for one in folds]


def test_random_folds_have_every_row_once():
    found = random_folds(41, 4)
    assert sorted(torch.cat([one.scored for one in found]).tolist()) == list(range(41))
    assert {len(one.rows) for one in found} == {10, 11}


@pytest.mark.few(4)
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("law", ["uniform", "normal", "repeated", "skewed"])
def test_scattered_rows_have_no_gaps(d, law):
    rng = np.random.default_rng(d)
    for n in (120, 900, 4000):
        X = rng.uniform(size=(n, d)) if law == "uniform" else rng.normal(size=(n, d))
        if law == "repeated":
            X[n // 20 :] = X[rng.integers(n // 20, size=n - n // 20)]
        if law == "skewed":
            X = np.exp(X)
        assert folds(torch.from_numpy(X)) == []


def test_a_grid_has_no_gaps():
    assert folds(lattice(0.0)[0]) == []


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("known", [False, True])
def test_patches_are_as_wide_as_the_hole(known, scale):
    rows, hole = (scale * one for one in lattice(8.0))
    kernel = Matern(nu=1.5, lengthscale=scale).bind(2)
    found, reach = folds_like_gaps(kernel, rows, hole if known else None)
    assert len(found) >= 4
    assert 0.7 < reach < 1.4
    every = torch.cat([one.rows for one in found])
    assert len(every.unique()) == len(every) <= 0.4 * len(rows)
    own = torch.cdist(hole, rows).amin(1)
    of_scored = torch.cat(depths(rows, found))
    assert float(of_scored.min()) >= scale
    assert float(of_scored.max()) <= 1.6 * float(own.max())
    assert 0.6 * float(own.mean()) < float(of_scored.mean()) < 1.6 * float(own.mean())


def test_the_reach_says_where_a_gap_is_wider_than_patches_can_be():
    rows, hole = lattice(21.0)
    assert folds_like_gaps(KERNEL.bind(2), rows, hole).reach < 0.6


def test_points_near_the_rows_lie_in_no_gap_and_far_ones_do():
    rows, hole = lattice(8.0)
    assert folds(rows, rows[:200] + 0.4) == []
    assert folds(rows, hole) != []
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.normal(size=(2000, 5)))
    apart = X[:, 0].abs() > 1.0  # a slab between the rows, in five inputs
    assert folds(X[apart], X[~apart]) != []
    assert folds(X[:1000], X[1000:]) == []


def test_repeated_rows_change_nothing_of_where_gaps_are():
    rows, _ = lattice(8.0)
    assert folds(torch.cat([rows, rows, rows[:100]])) != []
    assert folds(torch.cat([lattice(0.0)[0]] * 2)) == []


def test_the_same_rows_have_the_same_patches():
    rows, _ = lattice(8.0)
    for one, other in zip(folds(rows), folds(rows), strict=True):
        assert one.n_scored == other.n_scored
        assert torch.equal(one.rows, other.rows)
