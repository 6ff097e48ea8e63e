"""The time that a fit on a grid is expected to take."""

from __future__ import annotations

import math

from gigagp.runtime.machine import transform_seconds

#: Gradients of a fit, iterations of a solve, and its columns: targets, basis functions and probes.
_GRADIENTS, _ITERATIONS, COLUMNS = 15, 40, 12
#: Smallest grid that a time budget leaves.
_FEWEST = 500


def solves_seconds(n_inputs: int, n_nodes: float) -> float:
    """Return the nominal seconds of all solves of a fit.

    Each iteration transforms every column on a grid of twice the nodes along each input, there and back.
    """
    return 2 * _GRADIENTS * _ITERATIONS * COLUMNS * transform_seconds(2.0**n_inputs * n_nodes)


def nodes_within(n_inputs: int, seconds: float) -> float:
    """Return the largest number of nodes whose solves take this many nominal seconds, at least 500."""
    if seconds == math.inf:
        return math.inf
    few, many = float(_FEWEST), 1e10
    while many > 1.05 * few:
        middle = math.sqrt(few * many)
        few, many = (middle, many) if solves_seconds(n_inputs, middle) <= seconds else (few, middle)
    return few
