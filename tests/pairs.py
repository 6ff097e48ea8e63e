"""Which cases of a product of settings a run has.

A test with the marker ``pairs`` runs by default in a few cases in which every pair of its settings still occurs. Most
faults of settings come from one of them or from two that meet (Kuhn, Wallace and Gallo 2004,
https://doi.org/10.1109/TSE.2004.24). With the marker ``each``, every single setting still occurs; with ``few(count)``,
the default run has ``count`` cases, which are drawn.

Of the others, as many again get the marker ``full``: `.ci/run` has them as well. Those that are left get the marker
``rest``. They take longer than all other tests together and hardly ever find what the first ones do not, so they are
run before a release. Tests that are slow have no ``full`` cases.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from itertools import combinations

import pytest

SEED = 0

Case = Sequence[Hashable]


def covering(cases: Sequence[Case], seed: int | str, strength: int = 2) -> list[int]:
    """Return the numbers of cases in which every pair of settings occurs that occurs in any case.

    Parameters
    ----------
    cases : sequence of sequences
        Settings of each case, in the same order in all of them.
    seed : int or str
        Decides which of several coverings is taken.
    strength : int
        2 for pairs; 1 for single settings, 3 for triples.

    Notes
    -----
    Greedy: the next case is always one with the most pairs that no earlier case has.
    """
    order = list(range(len(cases)))
    random.Random(seed).shuffle(order)
    pairs = {place: set(combinations(enumerate(cases[place]), min(strength, len(cases[place])))) for place in order}
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


def mark_cases(items: Iterable[pytest.Item]) -> None:
    """Give ``full`` or ``rest`` to the cases that the markers ``pairs``, ``each`` and ``few`` leave out."""
    tests: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and any(map(item.get_closest_marker, ("pairs", "each", "few"))):
            tests[item.nodeid.partition("[")[0]].append(item)
    for name, found in tests.items():
        found.sort(key=lambda item: tuple(item.callspec.indices.values()))  # random orders have the same cases
        few, draws = found[0].get_closest_marker("few"), random.Random(f"{SEED} {name}")
        if few is not None:
            chosen = draws.sample(range(len(found)), min(*few.args, len(found)))
        else:
            strength = 1 if found[0].get_closest_marker("each") else 2
            chosen = covering([_settings(item) for item in found], f"{SEED} {name}", strength)
        others = sorted(set(range(len(found))) - set(chosen))
        draws.shuffle(others)
        again = 0 if found[0].get_closest_marker("slow") else len(chosen)
        for place in others[:again]:
            found[place].add_marker(pytest.mark.full)
        for place in others[again:]:
            found[place].add_marker(pytest.mark.rest)


def _settings(item: pytest.Function) -> list[Hashable]:
    """Return the values of the parameters of a case; those in a tuple are parameters of their own."""
    found: list[Hashable] = []
    for value in item.callspec.params.values():
        found += [_key(one) for one in value] if type(value) is tuple else [_key(value)]
    return found


def _key(value: object) -> Hashable:
    """Return something that is equal for equal settings of one process; scikit-learn's checks are partial functions."""
    if isinstance(value, partial):
        return _key(value.func)
    return (type(value), value) if isinstance(value, Hashable) else id(value)
