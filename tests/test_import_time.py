"""`import gigagp` stays light. Tests check the loaded modules, and never times (see benchmarks/import_time.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gigagp

HEAVY = ("sklearn", "scipy", "pyarrow", "rich", "typer", "safetensors", "pandas", "matplotlib")


def loaded_by(statement: str) -> set[str]:
    """Return the heavy packages that a fresh process has loaded after the statement, besides those of torch alone."""
    code = f"import torch, sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    environment = {**os.environ, "PYTHONPATH": str(Path(gigagp.__file__).parents[1])}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in result.stdout.split()} & set(HEAVY)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "statement",
    [
        "import gigagp",
        "import gigagp.errors, gigagp.metrics, gigagp.runtime.progress, gigagp.storage.files",
        "from gigagp.estimators.saving import persistence",
        "from gigagp import kernels, inference, solvers, gradients, optimization, means, errors",
    ],
)
def test_nothing_heavy_is_loaded(statement):
    assert loaded_by(statement) == set()


def test_the_check_sees_what_is_loaded():
    assert "pyarrow" in loaded_by("import gigagp.tables.files")
