"""Benchmarks are run by hand, so their imports from the package are checked here."""

import ast
import importlib
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "benchmarks").rglob("*.py"))


def missing_names(source: str) -> list[str]:
    """Return the names that a script imports from gigagp, anywhere in it, but that do not exist."""
    missing = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or node.module is None or node.module.split(".")[0] != "gigagp":
            continue
        try:
            module = importlib.import_module(node.module)
        except ModuleNotFoundError:
            missing.append(node.module)
            continue
        for alias in node.names:
            if not hasattr(module, alias.name):
                try:
                    importlib.import_module(f"{node.module}.{alias.name}")
                except ModuleNotFoundError:
                    missing.append(f"{node.module}.{alias.name}")
    return missing


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_benchmark_imports_only_what_the_package_has(script):
    assert missing_names(script.read_text()) == []


def test_names_that_are_gone_are_found():
    source = "def main():\n    from gigagp.nowhere import x\n    from gigagp import GPRegressor, nothing\n"
    assert missing_names(source) == ["gigagp.nowhere", "gigagp.nothing"]
