"""Failed allocations: one clear error, an unchanged estimator, and one line on the command line."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from gigagp.errors import MemoryBudgetError
from gigagp.runtime.memory import is_lack_of_memory, memory_is_budget

#: A script with a fit that succeeds and one that does not; the first must survive.
FIT = """
import resource, sys
import numpy as np
import torch
from gigagp import GPRegressor, errors, inference

name, spare = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
rng = np.random.default_rng(0)
X = rng.normal(size=(3000, 2))
y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=3000)
inferences = {
    "exact": inference.Exact(),
    "iterative": inference.Iterative(),
    "vecchia": inference.Vecchia(),
    "features": inference.RandomFeatures(),
    "sparse": inference.SparseVariational(n_inducing=500),
    "grid": inference.Grid(size=80),
    "quadruply": inference.QuadruplyStochastic(n_basis=2000),
}
estimator = GPRegressor(inference=inferences[name], optimizer=None, memory_budget=2**40).fit(X[:100], y[:100])
before, mean = dict(estimator.__dict__), estimator.predict(X[:50])
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + spare * 2**20, -1))
try:
    estimator.fit(X, y)
except errors.MemoryBudgetError as error:
    assert "memory ran out" in str(error) and error.__cause__ is not None
    assert estimator.__dict__ == before
else:
    try:  # the fit had room; its predictions have not
        estimator.predict(np.repeat(X, 300, 0), return_std=True)
    except errors.MemoryBudgetError:
        pass
    else:
        sys.exit(4)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
assert np.isfinite(estimator.predict(X[:50])).all()
sys.exit(3)
"""
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_AS is kept by Linux")


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["exact", "iterative", "vecchia", "features", "sparse", "grid", "quadruply"])
def test_a_fit_without_memory(name):
    command = [sys.executable, "-c", FIT, name, "20"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 3, (done.returncode, done.stderr[-2000:])


@pytest.mark.slow
def test_the_command_line_says_so_in_one_line(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "table.npy", rng.normal(size=(3000, 4)))
    code = f"""
import resource, sys
import torch
from gigagp.commands import fit  # all that is imported later fits into what is left
import gigagp.regression, scipy.linalg
from gigagp.commands import main
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + 50 * 2**20, -1))
main(["fit", {str(tmp_path / "table.npy")!r}, "--target", "4", "--out", {str(tmp_path / "m.gp")!r}, "-q"])
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "memory" in done.stderr
    assert not (tmp_path / "m.gp").exists()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you ..."
        ),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("std::bad_alloc"),
        MemoryError("Unable to allocate 7.45 GiB for an array"),
    ],
)
def test_whoever_says_it(error):
    assert is_lack_of_memory(error)
    with pytest.raises(MemoryBudgetError) as found, memory_is_budget():
        raise error
    assert found.value.__cause__ is error


def test_other_errors_stay_what_they_are():
    for error in (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), MemoryBudgetError("too many rows")):
        with pytest.raises(type(error)) as found, memory_is_budget():
            raise error
        assert found.value is error
