"""Coverings have every pair of settings, in few cases, and the default run leaves out the other cases alone."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path

import pytest

from pairs import covering

FULL = list(product(range(9), range(4), range(3), range(3), range(2)))
#: Without some pairs, and with a setting that decides another.
PARTIAL = [(*case, case[0] % 4) for case in FULL if case[0] != case[1] and case[2:4] != (1, 2)]


def pairs_of(cases):
    return {pair for case in cases for pair in combinations(enumerate(case), 2)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "cases", [FULL, PARTIAL, FULL[:1], [(k,) for k in range(5)]], ids=["full", "partial", "one", "single"]
)
def test_every_pair_is_covered(cases, seed):
    chosen = [cases[place] for place in covering(cases, seed)]
    assert pairs_of(chosen) == pairs_of(cases)
    assert {setting for case in chosen for setting in enumerate(case)} == {
        setting for case in cases for setting in enumerate(case)
    }
    if len(cases[0]) > 1:  # the control: without its last case, a pair is missing
        assert pairs_of(chosen[:-1]) != pairs_of(cases)


def test_few_cases_are_enough():
    assert 36 <= len(covering(FULL, 0)) <= 45 < len(FULL) // 10


def test_seeds_choose_other_cases_and_the_same_seed_the_same():
    assert covering(FULL, 0) == covering(FULL, 0) != covering(FULL, 1)


EXAMPLE = """
import pytest

@pytest.mark.pairs
@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize(("b", "c"), [(b, c) for b in range(3) for c in range(3)])
def test_of_pairs(a, b, c): ...

@pytest.mark.few(4)
@pytest.mark.parametrize("a", range(9))
def test_of_few(a): ...

@pytest.mark.slow
@pytest.mark.few(2)
@pytest.mark.parametrize("a", range(3))
def test_that_is_slow(a): ...

@pytest.mark.each
@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", range(5))
def test_of_each(a, b): ...

@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", range(3))
@pytest.mark.parametrize("c", range(3))
def test_of_all(a, b, c): ...
"""


def test_the_default_run_and_the_others_are_all_cases(tmp_path):
    (tmp_path / "test_example.py").write_text(EXAMPLE, encoding="utf-8")
    root = Path(__file__).parents[1]
    (tmp_path / "conftest.py").write_text(
        (root / "tests" / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    (tmp_path / "pyproject.toml").write_text((root / "pyproject.toml").read_text(encoding="utf-8"), encoding="utf-8")

    class Names:
        def pytest_collection_finish(self, session):
            self.found = {item.name for item in session.items}

    def collected(*options):
        names = Names()
        # the plugin collects garbage at the end, among all that this session holds
        without = ["-p", "no:cacheprovider", "-p", "no:unraisableexception"]
        assert pytest.main(["-q", "--collect-only", *without, *options, str(tmp_path)], [names]) == 0
        return names.found

    default, full, rest, everything = collected(), collected("-m", "full"), collected("-m", "rest"), collected("-m", "")
    slow = {"test_that_is_slow[0]", "test_that_is_slow[1]", "test_that_is_slow[2]"}
    assert default | full | rest | slow == everything
    assert not slow & (default | full)
    assert len(slow & rest) == 1
    assert len(default) + len(full) + len(rest) + 2 == len(everything) == 81
    assert not rest & collected("-m", "(slow or full) and not rest")
    assert sum(name.startswith("test_of_few") for name in full) == 4
    assert sum(name.startswith("test_of_each") for name in full) == 5
    assert sum(name.startswith("test_of_each") for name in rest) == 5
    assert sum(name.startswith("test_of_each") for name in default) == 5
    assert sum(name.startswith("test_of_few") for name in default) == 4
    assert sum(name.startswith("test_of_all") for name in default) == 27
    assert 9 <= sum(name.startswith("test_of_pairs") for name in default) <= 12
