"""Imports follow the map in docs/architecture.md, and no import cycle has more than two files."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
from benchmarks.structure import (
    Import,
    all_imports,
    circles,
    imports_of,
    layers_of,
    module_files,
    not_on_the_map,
    picture,
    upward,
)

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"


@pytest.fixture(scope="module")
def layers() -> dict[str, int]:
    return layers_of((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return all_imports(SRC)


def test_the_map_has_every_module_and_no_other(layers):
    files = module_files(SRC)
    assert not_on_the_map(files, layers) == []
    assert [room for room in layers if f"gigagp.{room}" not in files] == []


@pytest.mark.slow
def test_the_picture_is_of_these_imports(layers, imports):
    assert picture(imports, layers) in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    without = [one for one in imports if one.target.partition(".kernels")[1] == ""]
    assert picture(without, layers) != picture(imports, layers)


def test_no_import_runs_up(layers, imports):
    found = [f"{one.module}:{one.line} imports {one.target}" for one in upward(imports, layers)]
    assert found == []


def test_no_circle_has_more_than_two_files(imports):
    assert [group for group in circles(imports) if len(group) > 2] == []


def test_no_test_limits_its_own_process():
    """pytest would have the limit too when it writes results; `stress.faults.limited_files` ends with its block."""
    calls = {
        path.name: calls_of(path.read_text(encoding="utf-8"), "setrlimit") for path in (ROOT / "tests").rglob("*.py")
    }
    assert [name for name, lines in calls.items() if lines] == []


def calls_of(source: str, name: str) -> list[int]:
    """Return the lines on which a function or method of this name is called; programs in strings do not count."""
    if name not in source:  # most files need not be parsed
        return []
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if getattr(call.func, "attr", getattr(call.func, "id", "")) == name]


# The checks find planted errors ---------------------------------------------------------------------------------------

PAGE = """The rooms:

```
top.py           the door
left/ right/     beside each other
    a second line of a description, which names no room
bottom.py        the rest
```
"""
MODULES = dict.fromkeys(("gigagp.top", "gigagp.left", "gigagp.left.inner", "gigagp.right", "gigagp.bottom"))
SOURCE = """
from typing import TYPE_CHECKING
from gigagp import bottom
from gigagp.left import inner, something
if TYPE_CHECKING:
    from gigagp.right import Thing
def work():
    import gigagp.top
"""


def test_a_map_is_read_line_by_line():
    assert layers_of(PAGE) == {"top": 0, "left": 1, "right": 1, "bottom": 2}


def test_every_kind_of_import_is_found():
    found = {(one.target, one.kind) for one in imports_of("gigagp.left", SOURCE, MODULES)}
    assert found == {
        ("gigagp.bottom", "top"),
        ("gigagp.left.inner", "top"),
        ("gigagp.right", "type"),
        ("gigagp.top", "lazy"),
    }


def test_arrows_up_and_sideways_are_found():
    found = upward(list(imports_of("gigagp.left.inner", SOURCE, MODULES)), layers_of(PAGE))
    assert {one.target for one in found} == {"gigagp.right", "gigagp.top"}
    assert not_on_the_map([*MODULES, "gigagp.attic"], layers_of(PAGE)) == ["gigagp.attic"]


def test_circles_are_found():
    arrows = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "d"), ("e", "f")]
    found = circles([Import(f"gigagp.{one}", f"gigagp.{other}", 1, "top") for one, other in arrows])
    assert found == [["gigagp.a", "gigagp.b", "gigagp.c"], ["gigagp.d", "gigagp.e"]]
    later = [Import("gigagp.a.base", f"gigagp.{room}.sum", 1, "lazy") for room in "ab"]
    back = [Import(one.target, one.module, 1, "top") for one in later]
    assert circles([*later, *back]) == [["gigagp.a.base", "gigagp.b.sum"]]


#: A section of a docstring that begins with a description: the line with the name has been lost.
NAMELESS = re.compile(r"^( *)(?:Parameters|Attributes|Returns|Yields|Raises|Warns)\n\1-+\n\1 +\S", re.M)


def test_what_docstrings_describe_has_a_name():
    assert [name for name, path in module_files(SRC).items() if NAMELESS.search(path.read_text(encoding="utf-8"))] == []
    named = "    Parameters\n    ----------\n    count : int\n        How many.\n"
    assert NAMELESS.search(named) is None
    assert NAMELESS.search(named.replace("    count : int\n", "")) is not None


def undocumented(sources: Iterable[str]) -> list[str]:
    """Return the public methods without a docstring, unless a class of the package that they override has one."""
    classes = [node for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    bases, documented = defaultdict(set), defaultdict(set)
    for one in classes:
        bases[one.name] |= {getattr(base, "attr", getattr(base, "id", "")) for base in one.bases} - {one.name}
        documented[one.name] |= {method.name for method in methods_of(one) if ast.get_docstring(method)}

    def inherited(name: str) -> set[str]:
        return documented[name].union(*map(inherited, bases[name]))

    return [
        f"{one.name}.{method.name}"
        for one in classes
        for method in methods_of(one)
        if not one.name.startswith("_") and method.name not in inherited(one.name)
    ]


def methods_of(one: ast.ClassDef) -> list[ast.FunctionDef]:
    return [node for node in one.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]


def test_public_methods_say_what_they_do():
    """Instead of ruff's D102, which wants a docstring of an override that says no more than that of its base."""
    assert undocumented(path.read_text(encoding="utf-8") for path in module_files(SRC).values()) == []
    planted = 'class A:\n    def f(self):\n        "Do."\nclass B(A):\n    def f(self): ...\n    def g(self): ...\n'
    assert undocumented([planted]) == ["B.g"]


def test_planted_limit():
    source = 'import resource\nCHILD = "resource.setrlimit(1, 2)"\nresource.setrlimit(1, 2)\n'
    assert calls_of(source, "setrlimit") == [3]
