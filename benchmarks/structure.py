"""Measure the package's structure: imports against the map, import cycles, file sizes, files that a fit enters.

    python benchmarks/structure.py --json benchmarks/results/structure.json
    python benchmarks/structure.py --src ../other-checkout/src   # measure another checkout

The map is the first code block of ``docs/architecture.md``. Each of its lines is a layer: the names of its rooms (which
end in "/" or ".py") and then a description. A room may import only from layers below its own. Every import counts,
including those inside functions and those for type checkers only. `tests/test_structure.py` enforces this.

Files entered: the number of files of the package in which a function is called between the call of ``fit`` and the
first product with a kernel matrix (for predictions and streamed fits: until they end). Changes of file: the number of
calls that are in a different file from the preceding call.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = "gigagp"
SRC = ROOT / "src"
#: Modules that the diagram shows beside the folders.
DRAWN = ("regression", "classification")
#: Lines of a file that is small, and is better merged if it has one user.
SMALL = 110


class Import(NamedTuple):
    """One import of a module of the package by another module.

    Attributes
    ----------
    module, target : str
        Dotted names of the importing and the imported module.
    line : int
        Line number of the import statement.
    kind : {"top", "lazy", "type"}
        At module level, inside a function, or under ``TYPE_CHECKING``.
    """

    module: str
    target: str
    line: int
    kind: str


def module_files(src: Path) -> dict[str, Path]:
    """Return the package's files by dotted name."""
    files = {}
    for path in sorted((src / PACKAGE).rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imports_of(name: str, source: str, modules: Mapping[str, Any]) -> Iterator[Import]:
    """Yield a module's imports from the package; names that are not modules count as imports of an ``__init__``."""

    def visit(node: ast.AST, kind: str) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            inner = kind
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and kind == "top":
                inner = "lazy"
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                inner = "type"
            if isinstance(child, ast.ImportFrom) and child.module and child.module.split(".")[0] == PACKAGE:
                wholes = (f"{child.module}.{alias.name}" for alias in child.names)
                for target in dict.fromkeys(whole if whole in modules else child.module for whole in wholes):
                    yield Import(name, target, child.lineno, kind)
            elif isinstance(child, ast.Import):
                for alias in child.names:
                    if alias.name in modules:
                        yield Import(name, alias.name, child.lineno, kind)
            yield from visit(child, inner)

    for one in visit(ast.parse(source), "top"):
        if one.target != name:
            yield one


def all_imports(src: Path) -> list[Import]:
    """Return every import of the package's own modules."""
    files = module_files(src)
    return [one for name, path in files.items() for one in imports_of(name, path.read_text(encoding="utf-8"), files)]


def layers_of(page: str) -> dict[str, int]:
    """Return the layer of each room of the map, counted from the top; rooms are dotted names without the package."""
    block = re.search(r"```\n(.*?)```", page, re.DOTALL)
    assert block is not None, "the page has no map"
    layers: dict[str, int] = {}
    lines = [line for line in block[1].splitlines() if line and not line[0].isspace()]
    for level, line in enumerate(lines):
        for room in takewhile(lambda word: word.endswith(("/", ".py")), line.split()):
            layers[room.removesuffix(".py").rstrip("/").replace("/", ".")] = level
    return layers


def room_of(module: str, layers: Mapping[str, int]) -> str | None:
    """Return the innermost room of the map that contains a module; None if no room does."""
    name = module.removeprefix(f"{PACKAGE}.")
    while name:
        if name in layers:
            return name
        name = name.rpartition(".")[0]
    return None


def not_on_the_map(modules: Iterable[str], layers: Mapping[str, int]) -> list[str]:
    """Return the modules that are in no room of the map, except the package itself, which only re-exports names."""
    return [name for name in modules if name != PACKAGE and room_of(name, layers) is None]


def upward(imports: list[Import], layers: Mapping[str, int]) -> list[Import]:
    """Return the imports of a room from another room that is not below it."""
    found = []
    for one in imports:
        here, there = room_of(one.module, layers), room_of(one.target, layers)
        if here is not None and there is not None and here != there and layers[there] <= layers[here]:
            found.append(one)
    return found


def circles(imports: list[Import]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or indirectly, largest first.

    An import inside a function of a module of the same folder does not count: it is how ``+`` of a base finds its sum.
    These are the strongly connected components of the import graph (Tarjan 1972), without the ``__init__`` of gigagp.
    """
    targets: dict[str, set[str]] = {}
    for one in imports:
        beside = one.kind == "lazy" and one.module.rpartition(".")[0] == one.target.rpartition(".")[0]
        if PACKAGE not in (one.module, one.target) and not beside:
            targets.setdefault(one.module, set()).add(one.target)
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in sorted(targets.get(node, ())):
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            place = stack.index(node)
            group = sorted(stack[place:])
            del stack[place:]
            if len(group) > 1:
                found.append(group)

    for node in sorted(targets):
        if node not in order:
            visit(node)
    return sorted(found, key=len, reverse=True)


def picture(imports: list[Import], layers: Mapping[str, int]) -> str:
    """Return the larger rooms and their imports as a Mermaid graph.

    The graph shows folders and the modules in `DRAWN`. Arrows that follow from others are left out (transitive
    reduction). If a hidden module connects two rooms, an arrow is drawn between them as if the import were direct.
    """
    below: dict[str, set[str]] = {}
    for one in imports:
        here, there = room_of(one.module, layers), room_of(one.target, layers)
        if here is not None and there is not None and here != there:
            below.setdefault(here, set()).add(there)

    def reached(room: str) -> set[str]:
        found, left = set[str](), list(below.get(room, ()))
        while left:
            other = left.pop()
            if other not in found:
                found.add(other)
                left += below.get(other, ())
        return found

    shown = [room for room in layers if room in DRAWN or _is_folder(room)]
    all_below = {room: reached(room) & set(shown) for room in shown}
    lines = ["graph TD"]
    for room in shown:
        implied = set[str]().union(*(all_below[other] for other in all_below[room]))
        lines += [f"    {_node(room)} --> {_node(other)}" for other in sorted(all_below[room] - implied)]
    return "\n".join(lines)


def _is_folder(room: str) -> bool:
    return (SRC / PACKAGE / room.replace(".", "/")).is_dir()


def _node(room: str) -> str:
    return f'{room.replace(".", "_")}["{room.replace(".", "/")}{"/" if _is_folder(room) else ".py"}"]'


_WALK = """
import json, sys, threading, warnings
from pathlib import Path
import numpy as np, torch
torch.set_num_threads(1)
import gigagp
from gigagp import GPRegressor, inference, kernels, optimization
HOME = str(Path(gigagp.__file__).parent)
files, changes, last, running = set(), 0, None, True

class Done(Exception):
    pass

def profile(frame, event, argument):
    global changes, last, running
    if event != "call" or not running or not frame.f_code.co_filename.startswith(HOME):
        return
    name, function = frame.f_code.co_filename[len(HOME) + 1:], frame.f_code.co_name
    files.add(name)
    changes += last is not None and name != last
    last = name
    if STOP and name.startswith("products/") and function in ("product", "dense"):
        running = False

rng = np.random.default_rng(0)
X = rng.normal(size=(ROWS, 2))
y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=ROWS)
gp = MAKE
GPRegressor(optimizer=None).fit(X[:20], y[:20])  # what is imported once is not part of the walk
sys.setprofile(profile)
warnings.simplefilter("ignore")
FIT
sys.setprofile(None)
print(json.dumps({"files_entered": len(files), "changes_of_file": changes, "stopped": not running}))
"""

#: For each measured call: code that makes the estimator, the call, its number of rows, and whether it ends at the first
#: product.
WALKS = {
    "exact": ("GPRegressor(optimizer=None)", "gp.fit(X, y)", 200, True),
    "iterative": ("GPRegressor(inference=inference.Iterative(), optimizer=None)", "gp.fit(X, y)", 200, True),
    "predict": ("GPRegressor(optimizer=None).fit(X, y)", "gp.predict(X, return_std=True)", 200, False),
    "streamed quadruply stochastic": (
        "GPRegressor(inference=inference.QuadruplyStochastic(n_basis=50, row_batch=20, basis_batch=25), "
        "optimizer=optimization.SparseAdam(steps=3))",
        "gp.fit_table(zip(np.split(X, 4), np.split(y, 4)))",
        400,
        False,
    ),
}


def walk(src: Path, make: str, fit: str, rows: int, stop: bool) -> dict[str, int]:
    """Return the number of files that a call enters, measured in a process that imports from ``src``."""
    script = _WALK.replace("MAKE", make).replace("FIT", fit).replace("ROWS", str(rows)).replace("STOP", str(stop))
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(src)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measured(src: Path, page: str) -> dict[str, Any]:
    """Return all figures."""
    files, imports, layers = module_files(src), all_imports(src), layers_of(page)
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in files.items()}
    groups = circles(imports)
    return {
        "files": len(files),
        "lines": sum(lengths.values()),
        "lines_of_code": sum(code_lines(path.read_text(encoding="utf-8")) for path in files.values()),
        "loose_modules": sum(path.parent == src / PACKAGE for path in files.values()),
        "folders": sum(path.parent.parent == src / PACKAGE and path.name == "__init__.py" for path in files.values()),
        "floors": len(set(layers.values())),
        "small_files_with_one_user": [name for name in with_one_user(imports) if lengths[name] <= SMALL],
        "ambient_variables": sum(path.read_text(encoding="utf-8").count("] = ContextVar(") for path in files.values()),
        "classes_behind_the_regressor": ancestors(src),
        "modules_not_on_the_map": not_on_the_map(files, layers),
        "upward_imports": len(upward(imports, layers)),
        "lazy_imports": sum(one.kind == "lazy" for one in imports),
        "type_only_imports": sum(one.kind == "type" for one in imports),
        "circles": [len(group) for group in groups],
        "largest_circle": groups[0] if groups else [],
        "walks": {name: walk(src, *arguments) for name, arguments in WALKS.items()},
    }


def with_one_user(imports: list[Import]) -> list[str]:
    """Return the modules that exactly one other module imports, and which no ``__init__`` exports."""
    users: dict[str, set[str]] = {}
    for one in imports:
        users.setdefault(one.target, set()).add(one.module)
    packages = {name.rpartition(".")[0] for name in users}
    return [name for name, (*found,) in users.items() if len(found) == 1 and not {name, *found} & packages]


def ancestors(src: Path) -> int:
    """Return the number of classes of the package that `GPRegressor` derives from."""
    code = "from gigagp import GPRegressor as G; print(sum('gigagp' in one.__module__ for one in G.__mro__[1:]))"
    return int(subprocess.check_output([sys.executable, "-c", code], env={"PYTHONPATH": str(src)}, text=True))


def code_lines(source: str) -> int:
    """Return the lines of a module on which code begins or ends: no blank lines, comments or docstrings."""
    lines: set[int] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue  # a docstring
            if isinstance(child, ast.stmt | ast.expr):
                lines.update((child.lineno, child.end_lineno or child.lineno))
            visit(child)

    visit(ast.parse(source))
    return len(lines)


def commit_of(src: Path) -> str:
    """Return the commit of a checkout."""
    command = ["git", "-C", str(src), "describe", "--always", "--dirty", "--abbrev=7"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Print the figures and, if requested, write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--src", type=Path, default=SRC, help="folder that contains the package")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--mermaid", action="store_true", help="print only the diagram of docs/architecture.md")
    parser.add_argument("--arrows", action="store_true", help="list every import from the same or a higher layer")
    arguments = parser.parse_args()
    page = (arguments.src.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    if arguments.mermaid:
        print(picture(all_imports(arguments.src), layers_of(page)))
        return
    if arguments.arrows:
        for one in upward(all_imports(arguments.src), layers_of(page)):
            print(f"{one.module}:{one.line} imports {one.target} ({one.kind})")
    figures = {"commit": commit_of(arguments.src), **measured(arguments.src, page)}
    print(json.dumps(figures, indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
