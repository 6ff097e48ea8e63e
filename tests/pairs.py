"""Coverings: a few cases of a product of settings in which every pair of settings still occurs.

A test with the marker ``pairs`` runs by default only in such cases. The others get the marker ``full``, which the
default run leaves out and `.ci/run` includes. Most faults of settings come from one of them or from two that meet
(Kuhn, Wallace and Gallo 2004, https://doi.org/10.1109/TSE.2004.24).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations

import pytest

SEED = 0

Case = Sequence[Hashable]


def covering(cases: Sequence[Case], seed: int | str) -> list[int]:
    """Return the numbers of cases in which every pair of settings occurs that occurs in any case.

    Parameters
    ----------
    cases : sequence of sequences
        Settings of each case, in the same order in all of them.
    seed : int or str
        Decides which of several coverings is taken.

    Notes
    -----
    Greedy: the next case is always one with the most pairs that no earlier case has.
    """
    order = list(range(len(cases)))
    random.Random(seed).shuffle(order)
    pairs = {place: _pairs(cases[place]) for place in order}
    missing = set().union(*pairs.values())
    gains = {place: len(own) for place, own in pairs.items()}
    chosen: list[int] = []
    while missing:
        # a gain of before is never too small, so that few of them are computed again
        best, most = -1, 0
        for place in sorted(order, key=gains.__getitem__, reverse=True):
            if gains[place] <= most:
                break
            gains[place] = len(pairs[place] & missing)
            if gains[place] > most:
                best, most = place, gains[place]
        chosen.append(best)
        missing -= pairs[best]
        gains[best] = 0
    return sorted(chosen)


def _pairs(case: Case) -> set[Hashable]:
    settings = list(enumerate(case))
    return set(combinations(settings, 2)) if len(settings) > 1 else set(settings)


def mark_full(items: Iterable[pytest.Item]) -> None:
    """Give the marker ``full`` to the cases of tests with the marker ``pairs`` that their covering leaves out."""
    tests: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("pairs") is not None:
            tests[item.nodeid.partition("[")[0]].append(item)
    for name, found in tests.items():
        chosen = set(covering([_settings(item) for item in found], f"{SEED} {name}"))
        for place, item in enumerate(found):
            if place not in chosen:
                item.add_marker(pytest.mark.full)


def _settings(item: pytest.Function) -> list[Hashable]:
    """Return the values of the parameters of a case; those in a tuple are parameters of their own."""
    found: list[Hashable] = []
    for value in item.callspec.params.values():
        found += [_key(one) for one in value] if type(value) is tuple else [_key(value)]
    return found


def _key(value: object) -> Hashable:
    """Return something that is equal for equal settings of one process."""
    return (type(value), value) if isinstance(value, Hashable) else id(value)
