"""Noise that hides structure: a test that what a model leaves out differs at random from row to row.

A kernel with one lengthscale for each input cannot be slow along all inputs and fast along two of them. The likelihood
then takes one of the parts for noise, and error bars of the function are too small by far. Neighbouring rows tell: the
part that was left out is alike in them.

Each row is predicted from all others. The errors ``e = (P r) / diag(P)`` have the correlations of ``P`` if the model is
right, where ``r`` is the targets less the mean and ``P`` is ``H^-1`` less its part in the span of the mean's basis.
These are negative for neighbours, because each has helped to predict the other. What is tested is the mean product of
the standardized errors ``u`` of neighbours over that which the mean square of all errors leads to expect,

    s = u' (A - a I) u,    a = tr(R A) / n,

where A has ones for neighbours and R is the matrix of correlations. Its expectation is 0 at any scale of errors, and
its variance is ``2 tr((R (A - a I))^2)``. It is the score of a further component that reaches from a row to its
neighbours, so that no test has more power against a small one. That the hyperparameters are learned from the same rows
makes large values rarer.

Any rows of a fit follow its model, so that some groups of close rows stand for a large table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.errors import UNUSABLE
from gigagp.inference.contract.exact_posterior import Factorised
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.model import Model
from gigagp.model.scaling import centre_and_spread

#: Fewest rows of a group that is looked at, most rows of one, all near one of them, and most groups.
_FEWEST, _TOGETHER, _GROUPS = 50, 300, 8
#: Neighbours of each row.
_NEAREST = 3
#: There is structure if the correlation is this large and this many standard errors above what the model expects.
_ALIKE, _STANDARD_ERRORS = 0.1, 4.5
#: Least share of the noise in the variance of left-out rows, and of the targets: less cannot hide much.
_NOISE, _VISIBLE = 0.3, 1e-4


class Likeness(NamedTuple):
    """The mean correlation of left-out errors of neighbouring rows, beyond what a model expects of them."""

    correlation: float
    standard_error: float  # if the model is right

    @property
    def is_structure(self) -> bool:
        """Whether what the model takes for noise has structure, surely and of a size that matters."""
        return self.correlation > max(_ALIKE, _STANDARD_ERRORS * self.standard_error)


class _Sums(NamedTuple):
    """Sums over the rows of a group, or of several, for both kinds of neighbours where not said otherwise."""

    excess: Tensor  # products of standardized errors of neighbours beyond what is expected, (2, t)
    variance: Tensor  # of `excess`, for errors with a mean square of 1, (2, 1)
    pairs: Tensor  # number of pairs, each counted twice, (2, 1)
    squares: Tensor  # of the standardized errors, (t,)
    rows: Tensor  # their number, ()
    noise: Tensor  # variances of the noise of all rows, ()
    total: Tensor  # variances of all rows, each given all others, ()


@torch.no_grad()
def likeness(model: Model, table: TrainingTable) -> Likeness | None:
    """Return how alike neighbouring rows are, given a model with Gaussian noise; None where noise hides nothing.

    Neighbours are the nearest rows, each input counted by its standard deviation, or those that the kernel correlates
    most: what is missed may lie along inputs of which the kernel makes nothing, or along a few of many. The larger
    number of standard errors counts, among these two and among the targets. Some 2,400 rows are looked at, at most.
    """
    held = table.on_cpu()
    centre, spread = (torch.from_numpy(one) for one in centre_and_spread(held.X.numpy()))
    places = (held.X - centre) / spread
    found = []
    for rows in _groups(places):
        try:
            found.append(_sums(model.take_rows(rows), held.take_rows(rows), places[rows]))
        except UNUSABLE:  # without noise: it hides nothing
            return None
    if not found:
        return None
    whole = _Sums(*(torch.stack(parts).sum(0) for parts in zip(*found, strict=True)))
    spread = held.Y.double().var(0, correction=0).mean()
    hides = bool(whole.noise >= _NOISE * whole.total) and bool(whole.noise >= _VISIBLE * spread * whole.rows)
    if not hides or not bool((whole.squares > 0).all()) or not bool((whole.pairs > 0).all()):
        return None
    correlations = whole.excess / (whole.squares / whole.rows) / whole.pairs
    errors = (whole.variance.sqrt() / whole.pairs).expand_as(correlations)
    best = (correlations / errors).argmax()
    return Likeness(float(correlations.flatten()[best]), float(errors.flatten()[best]))


def _groups(places: Tensor) -> Iterator[Tensor]:
    """Yield groups of rows at places (n, d), each of the rows nearest to a random one that are in no earlier group."""
    left = torch.ones(len(places), dtype=torch.bool)
    for _ in range(_GROUPS):
        count = int(left.sum())
        if count < _FEWEST:
            return
        row = left.nonzero()[torch.randint(count, (), generator=torch.Generator().manual_seed(count))]
        distances = (places - places[row]).square().sum(1).masked_fill(~left, torch.inf)
        rows = distances.topk(min(count, _TOGETHER), largest=False).indices.sort().values
        left[rows] = False
        yield rows


def _sums(model: Model, table: TrainingTable, places: Tensor) -> _Sums:
    """Return the sums over the rows of a small table, at places (n, d)."""
    known = Factorised.of(model, table)
    of_basis = known.basis_solutions @ known.trend.root
    precision = torch.cholesky_inverse(known.factor) - of_basis @ of_basis.T  # P
    sizes = precision.diagonal().clamp_min(torch.finfo(precision.dtype).tiny).sqrt()
    errors = known.solutions / sizes[:, None]
    alike = precision / sizes[:, None] / sizes
    covariances = table.covariance(model.kernel)
    scales = covariances.diagonal().clamp_min(torch.finfo(precision.dtype).tiny).rsqrt()
    # by differences, so that those of equal rows are zero
    distances = torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")
    repeated = distances == 0  # rows of one place tell of the noise alone
    excess, variance, pairs = [], [], []
    for nearness in (-distances, covariances * scales[:, None] * scales):
        nearest = nearness.masked_fill(repeated, -torch.inf).topk(_NEAREST)
        adjacent = torch.zeros_like(distances).scatter_(1, nearest.indices, nearest.values.isfinite().double())
        adjacent = torch.maximum(adjacent, adjacent.T)
        expected = (alike * adjacent).sum() / len(places)
        excess.append((errors * (adjacent @ errors)).sum(0) - expected * errors.square().sum(0))
        product = alike @ adjacent - expected * alike
        variance.append(2 * (product * product.T).sum())
        pairs.append(adjacent.sum())
    column = (torch.stack(variance)[:, None], torch.stack(pairs)[:, None])
    noise, rows = known.matrix.noise().sum(), precision.new_tensor(len(places))
    return _Sums(torch.stack(excess), *column, errors.square().sum(0), rows, noise, sizes.square().reciprocal().sum())
