"""`import gigagp` stays light. Tests check the loaded modules, and never times (see benchmarks/import_time.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gigagp

HEAVY = ("sklearn", "scipy", "pyarrow", "rich", "typer", "safetensors", "pandas", "matplotlib")


#: Installed by extras, and what imports them.
OPTIONAL = (
    "botorch", "geopandas", "gigagp.botorch", "gpytorch", "linear_operator", "matplotlib", "onnx", "optuna", "pyproj",
    "rioxarray", "triton", "xarray",
)  # fmt: skip
USES = """
import torch
from gigagp import GPRegressor, geo, kernels
from gigagp.operators import KernelMatrix
kernels.RBF()
X = torch.ones(5, 2)
KernelMatrix(kernels.Matern(), X, 0.1, storage="tiles") @ X
"""


def modules_after(code: str) -> set[str]:
    """Return what a fresh process has loaded after running code, besides what it calls `before`."""
    code = f"before = ()\n{code}\nimport sys\nprint(*set(sys.modules).difference(before))"
    environment = {**os.environ, "PYTHONPATH": str(Path(gigagp.__file__).parents[1])}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def loaded_by(statement: str) -> set[str]:
    """Return the heavy packages that a fresh process has loaded after the statement, besides those of torch alone."""
    found = modules_after(f"import torch, sys; before = set(sys.modules); {statement}")
    return {name.split(".")[0] for name in found} & set(HEAVY)


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


@pytest.mark.slow
def test_the_check_sees_what_is_loaded():
    assert "pyarrow" in loaded_by("import gigagp.tables.files")


@pytest.mark.slow
def test_what_needs_no_extra_imports_none():
    """Also where nothing calls `from_gpytorch`, and products of tiles run on a CPU."""
    found = modules_after(USES)
    assert found.isdisjoint(OPTIONAL)
    assert {"gigagp.regression", "gigagp.geo"} <= found
