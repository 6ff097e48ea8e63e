"""Maps of scales from squared errors: how much more, and less, targets vary in each place than a model expects."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gigagp.kernels import ScaleMap
from gigagp.kernels.local_variance import between
from gigagp.kernels.units import Units

#: Rows for each knot, and the squared errors as expected that are added to those around it.
_ROWS_OF_KNOT, _ADDED = 40, 2.0
#: Rows whose quantiles are knots.
_SORTED = 20_000


def scale_map(X: Tensor, units: Units, ratios: Tensor, columns: Sequence[int]) -> ScaleMap:
    """Return the scale of standardized rows X (n, d) along some columns, from squared errors over what is expected.

    It is the root of their mean around each knot. Knots are quantiles of each input. There are twice as many along each
    as long as the means of one half of the rows (n,) predict the squared errors of the other half better, as variances
    of normal errors. The means of each number of knots multiply those of half as many, so that a place with few rows
    has the mean of its surroundings.
    """
    places = X[:, columns] * units.scale[columns] + units.centre[columns]
    knots = list(_knots(places))
    halves = torch.randperm(len(X), generator=torch.Generator().manual_seed(0)).tensor_split(2)
    losses = torch.zeros(len(knots), dtype=torch.float64)
    for own, other in (halves, halves[::-1]):
        for level, logs in enumerate(_log_means(knots, places[own], ratios[own])):
            expected = _interpolated(knots[level], logs, places[other])
            losses[level] += (expected + ratios[other] * (-expected).exp()).sum()
    best = int(losses.argmin())
    *_, logs = _log_means(knots[: best + 1], places, ratios)
    return ScaleMap(knots[best], 0.5 * logs.reshape(_shape(knots[best])), columns=columns).standardized(units)


def _knots(places: Tensor) -> Iterator[list[Tensor]]:
    """Iterate over ever more quantiles of each input, those of before among them, while there are rows for them."""
    some, last = places[:: max(1, len(places) // _SORTED)], 0
    for level in range(places.shape[0].bit_length()):
        levels = torch.linspace(0, 1, 2**level + 1, dtype=torch.float64)
        found = [one.contiguous().quantile(levels).unique() for one in some.unbind(1)]
        size = math.prod(_shape(found))
        if level and (size == last or size * _ROWS_OF_KNOT > len(places)):
            return
        yield found
        last = size


def _shape(knots: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(map(len, knots))


def _log_means(knots: Sequence[Sequence[Tensor]], places: Tensor, ratios: Tensor) -> Iterator[Tensor]:
    """Iterate over the logarithms of the means at the knots of each level, flat."""
    expected = torch.zeros_like(ratios)
    before: tuple[Sequence[Tensor], Tensor] | None = None
    for own in knots:
        index, weights = between(own, places)
        nothing = torch.zeros(math.prod(_shape(own)), dtype=torch.float64)
        squares = (ratios * (-expected).exp())[:, None] * weights
        total, count = (nothing.index_add(0, index.reshape(-1), one.reshape(-1)) for one in (squares, weights))
        logs = ((total + _ADDED) / (count + _ADDED)).log()
        if before is not None:
            logs = logs + _interpolated(*before, torch.cartesian_prod(*own).reshape(len(logs), -1))
        yield logs
        before, expected = (own, logs), (weights * logs[index]).sum(1)


def _interpolated(knots: Sequence[Tensor], logs: Tensor, places: Tensor) -> Tensor:
    index, weights = between(knots, places)
    return (weights * logs[index]).sum(1)
