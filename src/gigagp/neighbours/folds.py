"""Rows that are left out together: random parts of a table, and patches as wide as its gaps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.kernels import Kernel, Outputs
from gigagp.neighbours.metric import Metric
from gigagp.neighbours.neighbourhood import FEW_INPUTS, squared_distances
from gigagp.neighbours.search import NeighbourTree

#: Rows that gaps are looked for among, and those that say on which sides of a point there are rows; points looked at.
_ROWS, _SIDE_ROWS, _POINTS = 50_000, 2000, 1024
#: A point lies in a gap if the row nearest to it is farther than this many rows are from that row, and the ratio of
#: both distances exceeds this quantile of those of the rows themselves.
_NEAR, _USUAL = 8, 0.99
#: Share of the points that must lie in gaps, and of the rows at either end of an input beyond which no point lies.
_LEAST_SHARE, _MARGIN = 0.03, 0.005
#: Rows among those of the sides that a point has on each side, so that a stray row does not count.
_ON_A_SIDE = 3
#: Fewest rows of a table with patches, fewest and most patches, rows tried as their centres, and the rows that are
#: scored of each.
_FEWEST_ROWS, _FEWEST, _MOST, _TRIES, _SCORED = 100, 4, 40, 400, 50
#: Fewest rows, of those of the sides, that say whether a ball is at the edge of the table.
_IN_A_BALL = 30
#: Largest share of the rows in all patches, and in one.
_ALL, _ONE = 0.4, 0.1


class Fold(NamedTuple):
    """Rows that are left out together, of which the first ``n_scored`` are predicted from all others."""

    rows: Tensor
    n_scored: int

    @property
    def scored(self) -> Tensor:
        """The rows that are predicted."""
        return self.rows[: self.n_scored]


class GapFolds(NamedTuple):
    """Patches of rows that are predicted as points in gaps are."""

    folds: list[Fold]
    #: how far the scored rows lie from all others, over how far the points in gaps do: below 1 where gaps are wider
    #: than the table has room for
    reach: float


def random_folds(n_rows: int, count: int, device: torch.device | None = None) -> list[Fold]:
    """Return random parts of all rows."""
    order = torch.randperm(n_rows, generator=torch.Generator().manual_seed(0)).to(device)
    return [Fold(rows, len(rows)) for rows in order.tensor_split(count)]


def folds_like_gaps(kernel: Kernel, X: Tensor, predict_at: Tensor | None = None) -> GapFolds | None:
    """Return patches of rows that are predicted at the distances at which points in gaps lie from the nearest row.

    The points are those to be predicted (q, d), if they are known, and otherwise quasi-random ones that have rows on
    all sides, which are looked at in up to three inputs. Distances are in the kernel's metric. Where hardly any point
    lies in a gap, rows differ in their levels alone, or are of several outputs, there are no patches.

    A patch is a ball around a random row, not at the edge of the table if there are others. For a point in a gap at a
    distance r from the nearest row, it is as wide as the largest empty ball around one of the points that contains this
    one, and those of its rows are scored that lie between r / 2 and 3 r / 2 from all others. Patches do not overlap.
    """
    if len(X) < _FEWEST_ROWS or (predict_at is None and X.shape[1] > FEW_INPUTS):
        return None
    generator, metric = torch.Generator().manual_seed(5), Metric(kernel, X)
    if metric.is_of_levels or any(isinstance(leaf, Outputs) for leaf in kernel.leaves()):
        return None
    some = _some(X, generator)
    points = _between(some) if predict_at is None else _some(predict_at, generator)
    places = metric(points)
    depths, in_gaps = _depths(metric(some), places)
    if predict_at is None:
        in_gaps &= _surrounded(points, some[:_SIDE_ROWS])
    if float(in_gaps.double().mean()) < _LEAST_SHARE:
        return None
    chosen = in_gaps.nonzero()[:, 0][:_POINTS]
    return _patches(metric(X), depths[chosen], _widths(places[chosen], depths[chosen]), generator)


def _some(X: Tensor, generator: torch.Generator) -> Tensor:
    return X[torch.randperm(len(X), generator=generator)[:_ROWS].to(X.device)]


def _between(X: Tensor) -> Tensor:
    """Return quasi-random points in the box of most rows."""
    low, high = torch.quantile(X[:_SIDE_ROWS].double(), torch.tensor([_MARGIN, 1 - _MARGIN]).to(X).double(), dim=0)
    drawn = torch.quasirandom.SobolEngine(X.shape[1], scramble=True, seed=0).draw(_POINTS, dtype=torch.float64)
    return (low + (high - low) * drawn.to(X.device)).to(X)


def _nearest(tree: NeighbourTree, among: Tensor, points: Tensor, which: int) -> tuple[Tensor, Tensor]:
    """Return which of the points in a tree is the k-th nearest of others, (q,), and its distance."""
    found = tree.query(points, which)[:, -1:].long()
    return found[:, 0], squared_distances(points, among, found)[:, 0].sqrt()


def _depths(rows: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distances of points (q, c) from the nearest row, and whether they lie in gaps."""
    places = torch.unique(rows, dim=0)  # equal rows say nothing of how dense they are
    if len(places) <= _NEAR:
        return points.new_zeros(len(points)), points.new_zeros(len(points), dtype=torch.bool)
    tree = NeighbourTree(places)
    nearest, depths = _nearest(tree, places, points, 1)
    few = places[:: max(1, len(places) // _POINTS)]
    neighbours, usual = _nearest(tree, places, few, 2)
    ratios, usual_ratios = (
        distance / _nearest(tree, places, places[row], 1 + _NEAR)[1]
        for row, distance in ((nearest, depths), (neighbours, usual))
    )
    return depths, ratios > max(1.0, float(usual_ratios.quantile(_USUAL)))


def _surrounded(points: Tensor, rows: Tensor) -> Tensor:
    """Return whether points (q, d) have rows on all sides, above and below in each input."""
    bits = 2 ** torch.arange(points.shape[1], device=points.device)
    sides = ((points[:, None] > rows[None]) * bits).sum(2)
    counts = torch.stack([(sides == side).sum(1) for side in range(2 ** points.shape[1])])
    return counts.amin(0) >= _ON_A_SIDE


def _widths(points: Tensor, depths: Tensor) -> Tensor:
    """Return the radius of the largest empty ball around one of the points (q, c) that contains each of them."""
    contains = torch.cdist(points, points) <= depths[:, None]
    return torch.where(contains, depths[:, None], 0.0).amax(0)


def _eccentricities(centres: Tensor, few: Tensor, distances: Tensor, radii: Tensor) -> Tensor:
    """Return how far the mean of the rows in balls lies from their centres, in radii: far at the edge of a table."""
    reach = radii.maximum(distances.kthvalue(min(_IN_A_BALL, len(few)), dim=1).values)
    inside = (distances <= reach[:, None]).double()
    return torch.linalg.vector_norm(inside @ few / inside.sum(1, keepdim=True) - centres, dim=1) / reach


def _patches(points: Tensor, depths: Tensor, widths: Tensor, generator: torch.Generator) -> GapFolds | None:
    """Return patches of rows with points (n, c) for some of the points in gaps, given their depths and widths."""
    n = len(points)
    few = points[torch.randperm(n, generator=generator)[:_SIDE_ROWS].to(points.device)]
    centres = torch.randperm(n, generator=generator)[:_TRIES].to(points.device)
    drawn = torch.randint(len(depths), (len(centres),), generator=generator).to(points.device)
    distances = torch.cdist(points[centres], few)
    widest = distances.kthvalue(max(1, int(_ONE * len(few))), dim=1).values
    radii = widths[drawn].minimum(widest)
    wanted = radii * depths[drawn] / widths[drawn]
    inwards = _eccentricities(points[centres], few, distances, radii).argsort()
    centres, radii, wanted = centres[inwards], radii[inwards], wanted[inwards]
    apart = torch.cdist(points[centres], points[centres])
    taken: list[int] = []
    balls: list[Tensor] = []
    left_out = torch.zeros(n, dtype=torch.bool, device=points.device)
    for k, centre in enumerate(centres.tolist()):
        if len(taken) == _MOST or bool((apart[k, taken] <= radii[k] + radii[taken]).any()):
            continue
        ball = (torch.linalg.vector_norm(points - points[centre], dim=1) <= radii[k]).nonzero()[:, 0]
        if int(left_out.sum()) + len(ball) <= _ALL * n:
            left_out[ball] = True
            taken.append(k)
            balls.append(ball)
    others = points[~left_out]
    tree, folds, reached = NeighbourTree(others), [], []
    for k, ball in zip(taken, balls, strict=True):
        ball = ball[torch.randperm(len(ball), generator=generator).to(ball.device)]
        depth = _nearest(tree, others, points[ball], 1)[1]
        scored = (depth >= 0.5 * wanted[k]) & (depth <= 1.5 * wanted[k])
        if bool(scored.any()):
            inner = ball[scored]
            folds.append(Fold(torch.cat([inner, ball[~scored]]), min(len(inner), _SCORED)))
            reached.append(depth[scored].mean())
    return GapFolds(folds, float(torch.stack(reached).mean() / depths.mean())) if len(folds) >= _FEWEST else None
