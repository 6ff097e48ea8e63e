"""Blocks of points: the label of the block of each point, and its share in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.tables import intake


def shares_in_blocks(
    blocks: Any, weights: Any, n_points: int, method: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the labels of the blocks in ascending order, the number of each point's block, and its share in it.

    ``weights`` are divided by their sum over each block; None stands for equal ones. ``method`` is the public method
    whose arguments ``blocks`` and ``weights`` are, for messages. Points without a block, and blocks without weights,
    are refused.
    """
    labels = np.asarray(blocks)
    if labels.shape != (n_points,):
        raise InvalidInputError(
            f"blocks of {method} must have shape ({n_points},), one label for each point; got {labels.shape}."
        )
    missing = np.array([_is_missing(one) for one in labels.tolist()], dtype=bool)
    if missing.any():
        raise InvalidInputError(
            f"blocks of {method} must name the block of every point; row {missing.argmax()} has none. Leave out points "
            "that are in no block."
        )
    try:
        names, places = np.unique(labels, return_inverse=True)
    except TypeError:
        msg = f"blocks of {method} must be labels of one kind, such as numbers or strings."
        raise InvalidInputError(msg) from None
    places = places.reshape(-1)
    given = np.ones(n_points) if weights is None else intake.numbers(weights, "weights")
    if given.shape != (n_points,) or (given < 0).any():
        raise InvalidInputError(
            f"weights of {method} must be {n_points} numbers of at least 0, one for each point; got "
            + (f"shape {given.shape}." if given.shape != (n_points,) else f"{given.min():g} in row {given.argmin()}.")
        )
    largest = np.zeros(len(names))
    np.maximum.at(largest, places, given)
    if (largest == 0).any():
        empty = names.tolist()[largest.argmin()]
        raise InvalidInputError(f"weights of {method} must not all be 0 within a block; those of {empty!r} are.")
    given = given / largest[places]  # sums of huge weights would be infinite
    return names, places, given / np.bincount(places, given, len(names))[places]


def _is_missing(label: Any) -> bool:
    try:
        return label is None or bool(label != label)
    except TypeError:  # pandas.NA, of which no comparison is true or false
        return True
