"""The metric in which rows are near: distances that the kernel's correlation falls with."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gigagp.kernels import Group, Kernel, Linear, Outputs, Periodic, StationaryKernel
from gigagp.kernels.leaf import Leaf
from gigagp.kernels.outputs import places_of
from gigagp.neighbours.search import LARGEST

#: A part of a sum with a smaller share of the variance than this does not decide who is near.
_NEGLIGIBLE = 0.01
#: Rows on which parts of a kernel are compared.
_SAMPLE = 2000
#: Kernels with a distance between points.
_PLACED = (StationaryKernel, Periodic, Linear)


class Metric:
    """Points whose Euclidean distances say which rows are strongly correlated.

    For one stationary kernel these are the inputs in units of the lengthscales, for `gigagp.kernels.Periodic` points on
    circles, for a product the coordinates of all factors. In a sum the part with the shortest scale on a sample of the
    rows decides, among parts with at least a hundredth of the variance: what varies slowly is known from any rows in
    the vicinity. A kernel without such parts, such as one of your own, uses the inputs themselves. Outputs are nearer
    to each other the more they correlate at one place, in all parts together. Levels of `gigagp.kernels.Group` have no
    distances: rows of the same level are found beside the nearest ones (``groups``).
    """

    def __init__(self, kernel: Kernel, X: Tensor) -> None:
        sample = X[:: max(1, len(X) // _SAMPLE)].detach().to("cpu", torch.float64)
        found: list[tuple[float, float, tuple[Leaf, ...]]] = []
        terms = kernel.correlated_terms()
        for leaves in terms:
            placed = tuple(leaf for leaf in leaves if isinstance(leaf, _PLACED))
            if placed:
                variance = _variance(leaves, sample)
                extent = sum(float(_points(leaf, sample).var(0, correction=0).sum()) for leaf in placed)
                found.append((variance, extent, placed))
        total = sum(variance for variance, _, _ in found)
        eligible = [one for one in found if one[0] >= _NEGLIGIBLE * total]
        self._leaves = max(eligible, key=lambda one: one[1])[2] if eligible else ()
        self._outputs = _outputs(terms, sample)
        #: A kernel of each different column of levels, or of columns whose combinations are levels.
        self.groups = tuple(
            {leaf.label: leaf for leaves in terms for leaf in leaves if isinstance(leaf, Group)}.values()
        )

    @property
    def is_of_levels(self) -> bool:
        """Whether rows differ in the levels of groups alone, between which there is no distance."""
        return bool(self.groups) and not (self._leaves or self._outputs)

    def __call__(self, X: Tensor) -> Tensor:
        """Return the points of rows, shape (n, d) to (n, c), float64.

        Coordinates are at most `gigagp.neighbours.search.LARGEST` in size, beyond which all rows are equally far.
        """
        points = X.detach().to("cpu", torch.float64)  # whose bits do not depend on the device
        if self.is_of_levels:
            points = self.groups[0].levels(points).to(points)
        elif self._leaves or self._outputs:
            coordinates = [_points(leaf, points) for leaf in self._leaves]
            coordinates += [
                places.to(points).index_select(0, leaf.levels(points).clamp(max=leaf.n_outputs))
                for leaf, places in self._outputs
            ]
            points = torch.cat(coordinates, 1)
        return points.clamp(-LARGEST, LARGEST).to(X.device)


def _points(leaf: Leaf, X: Tensor) -> Tensor:
    """Return the coordinates of one elementary kernel."""
    with torch.no_grad():
        return leaf.embed(X) if isinstance(leaf, Periodic) else leaf.scale(X)  # type: ignore[attr-defined]


def _variance(leaves: tuple[Leaf, ...], sample: Tensor) -> float:
    """Return the product of the mean variances of leaves on a sample of the rows."""
    return math.prod(float(leaf.diagonal(sample).mean()) for leaf in leaves)


@torch.no_grad()
def _outputs(terms: list[tuple[Leaf, ...]], sample: Tensor) -> list[tuple[Outputs, Tensor]]:
    """Return for each column of outputs a kernel of them, and a point for each output and for new ones (`places_of`).

    What outputs have in common in all terms together decides how far they are from each other.
    """
    first: dict[tuple[int, ...], Outputs] = {}
    for leaf in (leaf for leaves in terms for leaf in leaves if isinstance(leaf, Outputs)):
        first.setdefault(tuple(leaf.active_columns), leaf)
    found = []
    for columns, outputs in first.items():
        total = torch.zeros(outputs.n_outputs, outputs.n_outputs, dtype=torch.float64)
        for leaves in terms:
            own = [leaf for leaf in leaves if isinstance(leaf, Outputs) and tuple(leaf.active_columns) == columns]
            others = tuple(leaf for leaf in leaves if leaf not in own)
            covariance = math.prod((leaf.covariance() for leaf in own), start=torch.ones_like(total))
            total += _variance(others, sample) * covariance
        places = places_of(total)
        found.append((outputs, torch.cat([places, places.mean(0, keepdim=True)])))
    return found
