"""What only the native engine has: instruction sets, threads, memory outside of torch, a module called directly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from engines import BUDGET, NO_EXTENSION
from gigagp.errors import InvalidInputError
from gigagp.kernels import RBF, Matern
from gigagp.products import LowRankWeights, NativeTiles, native_tiles, select
from helpers import DTYPES, all_kernels, points, reference_block, relative_error

ALL = all_kernels()
pytestmark = pytest.mark.skipif(not NativeTiles.available(), reason=NO_EXTENSION)


def test_select_takes_it_for_the_package_s_own_kernels():
    class Mine(RBF):
        """A class derived from a kernel may compute something else."""

    for kernel in ALL.values():
        assert isinstance(select(kernel, "cpu", torch.float64), NativeTiles)
    assert select(Mine().bind(4), "cpu", torch.float64).name == "torch tiles"
    assert select((Mine() + RBF()).bind(4), "cpu", torch.float64).name == "torch tiles"
    assert select(ALL["rbf"], "cuda", torch.float64).name != NativeTiles().name


def test_the_best_instruction_set_is_taken_and_named():
    sets = NativeTiles.instruction_sets()
    assert sets[-1] in {"baseline", "NEON"}
    assert NativeTiles().name == f"native tiles ({sets[0]})"
    assert NativeTiles(sets[-1]).name == f"native tiles ({sets[-1]})"


def test_refusals(monkeypatch):
    with pytest.raises(InvalidInputError, match=r"instruction_set of NativeTiles must be one of .*; got 'MMX'"):
        NativeTiles("MMX")
    monkeypatch.setattr(native_tiles, "_native", None)
    assert NativeTiles.instruction_sets() == []
    with pytest.raises(InvalidInputError, match="compiled extension, which was not built"):
        NativeTiles()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("instruction_set", NativeTiles.instruction_sets())
def test_the_same_bits_on_any_number_of_threads(instruction_set, dtype, monkeypatch):
    monkeypatch.setattr(native_tiles, "ENTRIES_A_THREAD", 1)  # small products too are shared
    engine, kernel = NativeTiles(instruction_set), ALL["matern32"]
    X, Z = points(1100, 4, dtype=dtype), points(700, 4, seed=1, dtype=dtype)
    V, W = points(1100, 17, seed=2, dtype=dtype), points(700, 17, seed=3, dtype=dtype)
    counted = []
    monkeypatch.setattr(
        native_tiles,
        "_threads",
        lambda entries, real=native_tiles._threads: counted.append(real(entries)) or counted[-1],
    )

    def everything() -> list[torch.Tensor]:
        symmetric = engine.gradient(kernel, X, X, LowRankWeights(V, V), symmetric=True, budget=BUDGET)
        rectangular = engine.gradient(kernel, X, Z, LowRankWeights(V, W), symmetric=False, budget=BUDGET)
        return [
            engine.product(kernel, X, X, V, budget=BUDGET),
            engine.product(kernel, X, Z, W, budget=BUDGET),
            engine.dense(kernel, X, budget=BUDGET),
            engine.dense(kernel, X, Z, budget=BUDGET),
            *symmetric.values(),
            *rectangular.values(),
        ]

    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            counted.clear()
            torch.set_num_threads(threads)
            results.append(everything())
            assert set(counted) == {threads}
    finally:
        torch.set_num_threads(before)
    for found in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(results[0], found, strict=True))


def test_instruction_sets_differ_by_rounding():
    X, V = points(300, 4), points(300, 5, seed=1)
    expected = reference_block(ALL["nested"], X, X) @ V
    for instruction_set in NativeTiles.instruction_sets():
        assert (
            relative_error(NativeTiles(instruction_set).product(ALL["nested"], X, X, V, budget=BUDGET), expected)
            < 1e-13
        )


def test_rows_in_parts_are_the_rows():
    """A budget that pays for a thousand rows at a time."""
    X, Z, V = points(2100, 3), points(50, 3, seed=1), points(50, 2, seed=2)
    kernel = Matern(1.5, 2.0).bind(3)
    found = NativeTiles().product(kernel, X, Z, V, budget=1)
    assert relative_error(found, reference_block(kernel, X, Z) @ V) < 1e-13


@pytest.mark.parametrize("instruction_set", NativeTiles.instruction_sets())
@pytest.mark.parametrize("name", ["matern32", "rbf", "nested", "growing noise"])
def test_far_points_in_float32_give_the_rounded_entries_of_float64(name, instruction_set):
    kernel, engine = ALL[name], NativeTiles(instruction_set)
    X, Z = points(150, 4, dtype=torch.float32), points(70, 4, seed=1, dtype=torch.float32)
    X[0] += 1e7
    for right in (None, Z):
        wide = engine.dense(kernel, X.double(), None if right is None else right.double(), budget=BUDGET)
        assert torch.equal(engine.dense(kernel, X, right, budget=BUDGET), wide.float())
    near = X[1:]  # the control: computed in float32
    wide = engine.dense(kernel, near.double(), budget=BUDGET)
    assert not torch.equal(engine.dense(kernel, near, budget=BUDGET), wide.float())


MEMORY = """
import re, torch
from pathlib import Path
from gigagp.kernels import Matern
from gigagp.products import LowRankWeights, NativeTiles
def kilobytes(field):
    return int(re.search(field + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))[1])
def run(method, n):
    X, V = torch.randn(n, 3), torch.randn(n, 9)
    X[0] += 1e7 if method == "far" else 0.0  # entries are computed in float64
    Z, weights = X.clone(), LowRankWeights(V, V)
    if method == "product":
        engine.product(kernel, X, X, V, budget=2**40), engine.product(kernel, X, Z, V, budget=2**40)
    elif method == "gradient":
        engine.gradient(kernel, X, X, weights, symmetric=True, budget=2**40)
        engine.gradient(kernel, X, Z, weights, symmetric=False, budget=2**40)
        engine.gradient(kernel, X, X, weights.__call__, symmetric=True, budget=2**20)
    else:
        engine.dense(kernel, X, budget=2**40)
engine, kernel = NativeTiles(), Matern(1.5, 2.0).bind(3)
for method in ("product", "gradient", "dense", "far"):
    run(method, 300)
    Path("/proc/self/clear_refs").write_text("5")  # the largest resident memory is counted anew
    before = kilobytes("VmRSS")
    run(method, ROWS)
    print(method, kilobytes("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the largest resident memory")
def test_memory_grows_with_the_rows_and_not_with_their_square():
    n = 5000
    done = subprocess.run(
        [sys.executable, "-c", MEMORY.replace("ROWS", str(n))],
        env={"PYTHONPATH": str(Path(native_tiles.__file__).parents[2]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    grown = dict(line.split() for line in done.stdout.splitlines())
    matrix = 4 * n * n // 1024
    assert int(grown["product"]) < matrix / 5
    assert int(grown["gradient"]) < matrix / 5
    assert int(grown["dense"]) >= 0.9 * matrix  # what is measured shows it
    assert int(grown["far"]) < 1.2 * matrix


# The module itself -------------------------------------------------------------------------------------------------

STEP = (0, 0, 0, 1.0, 1.0)
ONE = (3, 0, 0, 1.0, 1.0)


def array(*shape: int, dtype: type = np.float64) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


def term(n: int = 5, m: int = 4, profile=0, inputs=2, alpha=1.0, dtype: type = np.float64) -> tuple:
    return (profile, inputs, False, alpha, array(n, 2, dtype=dtype), array(m, 2, dtype=dtype))


def product(terms=None, steps=None, vectors=None, out=None, symmetric=False, threads=1, instruction_set=""):
    terms = [term()] if terms is None else terms
    steps = [STEP] if steps is None else steps
    vectors = array(4, 3) if vectors is None else vectors
    out = np.zeros((5, 3)) if out is None else out
    native_tiles._native.product(instruction_set, terms, steps, 1.0, vectors, out, symmetric, threads)
    return out


def rounded_dense(terms, out, symmetric=False):
    native_tiles._native.rounded_dense("", terms, [STEP], 1.0, out, symmetric, 1)
    return out


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "wrong",
    [
        {"instruction_set": "MMX"},
        {"threads": 0},
        {"threads": 5000},
        {"vectors": array(5, 3)},
        {"vectors": array(4, 2)},
        {"vectors": array(4, 3, dtype=np.float32)},
        {"vectors": np.zeros((4, 3), dtype=int)},
        {"vectors": np.asfortranarray(array(4, 3))},
        {"vectors": array(8, 3)[::2]},
        {"vectors": array(4)},
        {"vectors": None, "out": object()},
        {"out": np.zeros((4, 3))},
        {"out": np.zeros((3, 5)).T},
        {"out": np.zeros((5, 3, 1))},
        {"out": np.zeros((5, 3), dtype=np.float32)},
        {"out": read_only(np.zeros((5, 3)))},
        {"symmetric": True},
        {"terms": [term()[:5]]},
        {"terms": [3]},
        {"terms": [term(profile=9)]},
        {"terms": [term(profile=-1)]},
        {"terms": [term(inputs=3)]},
        {"terms": [term(inputs=-1)]},
        {"terms": [term(dtype=np.float32)]},
        {"terms": [term(n=6)]},
        {"terms": [term(m=6)]},
        {"terms": [(*term()[:4], array(5), array(4))]},
        {"terms": [(*term()[:4], array(10, 2)[::2], array(4, 2))]},
        {"terms": [(*term()[:4], None, None)]},
        {"terms": []},
        {"terms": [term(), term()]},
        {"steps": []},
        {"steps": [STEP[:4]]},
        {"steps": [None]},
        {"steps": (STEP,)},
        {"steps": [(7, 0, 0, 1.0, 1.0)]},
        {"steps": [(0, 1, 0, 1.0, 1.0)]},
        {"steps": [(0, -1, 0, 1.0, 1.0)]},
        {"steps": [STEP, ONE]},
        {"steps": [STEP, STEP, (1, 0, 1, 1.0, 1.0)]},
        {"steps": [STEP, (1, 0, 1, 1.0, 1.0)]},
        {"steps": [STEP, (2, 0, 0, 1.0, 1.0)]},
        {"steps": [STEP, (2, 0, -1, 1.0, 1.0)]},
        {"steps": [STEP, (1, 0, 2, 1.0, 1.0), ONE]},
    ],
)
def test_the_module_refuses_what_does_not_fit(wrong):
    with pytest.raises((ValueError, TypeError)):
        product(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"n": 6},
        {"n": -5},
        {"n": 2**70},
        {"m": 5},
        {"left": array(4, 3)},
        {"left": array(5, 3, dtype=np.float32)},
        {"left": array(5)},
        {"right": array(5, 3)},
        {"right": array(4, 2)},
        {"right": array(4, 3, dtype=np.float32)},
        {"right": array(4)},
        {"right": "text"},
        {"right": None},
        {"symmetric": True},
    ],
)
def test_the_module_refuses_weights_that_do_not_fit(wrong):
    given = {"left": array(5, 3), "right": array(4, 3), "n": 5, "m": 4, "symmetric": False, "threads": 1, **wrong}
    with pytest.raises((ValueError, TypeError)):
        native_tiles._native.gradient("", [term()], [STEP], **given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"out": np.zeros((5, 4))},
        {"out": np.zeros((4, 5), dtype=np.float32)},
        {"out": np.zeros(20, dtype=np.float32)},
        {"out": read_only(np.zeros((5, 4), dtype=np.float32))},
        {"terms": [term(dtype=np.float32)]},
        {"symmetric": True},
    ],
)
def test_the_module_refuses_rounded_entries_that_do_not_fit(wrong):
    given = {"terms": [term()], "out": np.zeros((5, 4), dtype=np.float32), **wrong}
    with pytest.raises((ValueError, TypeError)):
        rounded_dense(**given)


def test_the_module_computes_what_does_fit():
    """The controls of the three tests above."""
    left, right = term()[4:]
    distances = np.square(left[:, None] - right[None, :]).sum(2)
    assert np.allclose(rounded_dense([term()], np.zeros((5, 4), dtype=np.float32)), np.exp(-distances))
    assert np.allclose(product(), np.exp(-distances) @ array(4, 3))
    assert product(terms=[], steps=[ONE], vectors=np.zeros((4, 0)), out=np.zeros((2**50, 0))).shape == (2**50, 0)
    sums, rows, columns = native_tiles._native.gradient("", [term()], [STEP], array(5, 3), array(4, 3), 5, 4, False, 1)
    weighted = array(5, 3) @ array(4, 3).T * np.exp(-distances)
    assert np.allclose(sums[0], weighted.sum())
    assert np.allclose(rows, -weighted.sum(1))
    assert np.allclose(columns, -weighted.sum(0))
    assert np.allclose(sums[2:], -(left * (weighted @ right)).sum(0))
