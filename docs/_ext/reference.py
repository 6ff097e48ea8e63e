"""The pages of the reference, written from the packages' public names and from the commands' own help."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

#: Modules of the reference, by what a reader looks for.
GROUPS = {
    "Models": ["gigagp"],
    "Components": [
        "gigagp.kernels",
        "gigagp.means",
        "gigagp.likelihoods",
        "gigagp.inference",
        "gigagp.optimization",
        "gigagp.solvers",
        "gigagp.solvers.preconditioners",
        "gigagp.gradients",
        "gigagp.truncation",
        "gigagp.actions",
        "gigagp.operators",
        "gigagp.grids",
        "gigagp.inference.quadruply_stochastic.bases",
    ],
    "Checks and pictures": [
        "gigagp.metrics",
        "gigagp.diagnostics",
        "gigagp.plots",
        "gigagp.planning",
        "gigagp.presets",
    ],
    "Forecasts": ["gigagp.forecasting"],
    "Search and integrations": ["gigagp.search", "gigagp.search.optuna", "gigagp.botorch", "gigagp.geo", "gigagp.onnx"],
    "Errors and warnings": ["gigagp.errors"],
}
COMMANDS = ("fit", "predict", "evaluate", "plan", "compare", "plot", "report", "krige", "forecast", "diagnose", "demo")


def public_names(module: ModuleType) -> list[str]:
    """Return the names of a module's classes and functions that readers may use, in the order of the alphabet."""
    given = getattr(module, "__all__", None)
    names = given if given is not None else [name for name in vars(module) if not name.startswith("_")]
    found = []
    for name in names:
        value = getattr(module, name)
        documented = inspect.isclass(value) or inspect.isroutine(value)
        if documented and (given is not None or value.__module__ == module.__name__):
            found.append(name)
    return sorted(found)


def page_of(name: str, homes: dict[int, str]) -> str:
    """Return the page of a module, as reStructuredText.

    ``homes`` has the full names of objects that are on earlier pages, by their identity; those of this page are added.
    """
    module = importlib.import_module(name)
    first, _, rest = inspect.getdoc(module).partition("\n")
    own, others = [], []
    for member in public_names(module):
        full = f"{name}.{member}"
        home = homes.setdefault(id(getattr(module, member)), full)
        if home == full:
            own.append(f"   {member}\n")
        else:
            others.append(f"- `{member} <{home}>`\n")
    return (
        f"{name}\n{'=' * len(name)}\n\n{first}\n\n{rest.strip()}\n\n.. currentmodule:: {name}\n\n"
        f".. autosummary::\n   :toctree: generated\n   :nosignatures:\n\n{''.join(own)}\n"
        + (f"Names of other modules that can be imported from here too:\n\n{''.join(others)}" if others else "")
    )


def index() -> str:
    """Return the start of the reference, as reStructuredText."""
    parts = ["Reference\n=========\n"]
    for title, names in GROUPS.items():
        rows = "\n".join(f"   {name}" for name in names)
        parts.append(f"{title}\n{'-' * len(title)}\n\n.. toctree::\n   :maxdepth: 1\n\n{rows}\n")
    parts.append("Command line\n------------\n\n.. toctree::\n   :maxdepth: 1\n\n   commands\n")
    return "\n".join(parts)


def commands() -> str:
    """Return the help of every command, as reStructuredText."""
    parts = ["Commands\n========\n"]
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    for command in COMMANDS:
        run = [sys.executable, "-m", "gigagp", command, "--help"]
        text = subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout
        shown = "\n".join(f"   {line.rstrip()}" for line in text.strip().splitlines())
        title = f"gigagp {command}"
        parts.append(f"{title}\n{'-' * len(title)}\n\n.. code-block:: text\n\n{shown}\n")
    return "\n".join(parts)


def write_pages(folder: Path) -> None:
    """Write the pages of the reference where they differ from what is there. Call it before Sphinx looks for pages."""
    folder.mkdir(exist_ok=True)
    homes: dict[int, str] = {}
    pages = {name: page_of(name, homes) for names in GROUPS.values() for name in names}
    for name, text in {"index": index(), "commands": commands(), **pages}.items():
        write_changed(folder / f"{name}.rst", text)


def write_changed(path: Path, text: str) -> None:
    """Write a page, unless it is there already: a page that is written anew is built anew."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def is_foreign(_app: Any, _what: str, name: str, member: object, skip: bool, _options: Any) -> bool | None:
    """Leave out members that come from another package, whose docstrings refer to that package's pages."""
    routes_metadata = name.startswith("set_") and name.endswith("_request")  # scikit-learn adds them to estimators
    module = getattr(member, "__module__", None) or ""
    package = module.partition(".")[0]
    return True if routes_metadata or (callable(member) and package not in ("gigagp", "")) else None


def setup(app: Any) -> dict[str, object]:
    """Connect it to Sphinx."""
    app.connect("autodoc-skip-member", is_foreign)
    return {"version": "1", "parallel_read_safe": True}
