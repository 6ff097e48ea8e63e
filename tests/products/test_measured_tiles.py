"""How the engine on a GPU is chosen: simulated on the CPU, and with Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import gigagp
import helpers
from engines import BUDGET, HAS_TRITON, NO_TRITON, MatrixWeights
from gigagp.errors import GigaGPWarning, InvalidInputError, MemoryBudgetError
from gigagp.kernels import RBF, Matern
from gigagp.operators import KernelMatrix
from gigagp.products import LowRankWeights, MeasuredTiles, TorchTiles, measured_tiles, select
from gigagp.products.measured_tiles import Findings
from gigagp.products.tile_memory import TileMemory, default_path
from gigagp.products.triton_tiles import Tiling, TritonTiles
from helpers import all_kernels, points, reference_block, relative_error

ALL = all_kernels()


@dataclass
class Simulated:
    """An engine in the place of Triton's: torch tiles, with a flaw, that remembers its calls."""

    name: str = "simulated tiles"
    error: float = 0.0
    raises: Exception | None = None
    #: calls with at least so many rows have the flaw
    flawed_rows: int = 0
    calls: int = 0
    largest: int = 0
    tiling: Tiling | None = None
    shapes: tuple[Simulated, ...] = ()

    def variants(self, kernel, like, vectors):
        return self.shapes or (self,)

    def _do(self, method, kernel, X, *arguments, **settings):
        self.calls, self.largest = self.calls + 1, max(self.largest, len(X))
        flawed = len(X) >= self.flawed_rows
        if self.raises is not None and flawed:
            raise self.raises
        found = getattr(TorchTiles(), method)(kernel, X, *arguments, **settings)
        factor = 1 + self.error * flawed
        return found * factor if isinstance(found, torch.Tensor) else {k: v * factor for k, v in found.items()}

    def product(self, *arguments, **settings):
        return self._do("product", *arguments, **settings)

    def dense(self, *arguments, **settings):
        return self._do("dense", *arguments, **settings)

    def gradient(self, *arguments, **settings):
        return self._do("gradient", *arguments, **settings)


@pytest.fixture(autouse=True)
def _small_jobs(monkeypatch):
    monkeypatch.setattr(measured_tiles, "SMALLEST_JOB", 200 * 200)
    monkeypatch.setattr(measured_tiles, "TIMED_SIDE", 256)


def clock_with(speedup):
    """Return a clock for which Triton is so many times as fast as torch tiles."""

    def clock(call, device):
        call()
        return 1.0 if isinstance(call.args[0], TorchTiles) else 1.0 / speedup

    return clock


def measured(kernel, triton, *, speedup=2.0, findings=None, dtype=torch.float64, memory=None, clock=None):
    findings = Findings() if findings is None else findings
    clock, memory = clock or clock_with(speedup), memory or TileMemory(None)
    return MeasuredTiles(kernel, "cpu", dtype, triton=triton, memory=memory, findings=findings, clock=clock)


X, Z = points(300, 4), points(280, 4, seed=1)
V, W = points(300, 3, seed=2), points(280, 3, seed=3)


def run_everything(engine, kernel):
    """Call every method, and assert that the numbers are right whichever engine they are from."""
    K, cross = reference_block(kernel, X, X), reference_block(kernel, X, Z)
    assert relative_error(engine.product(kernel, X, X, V, budget=BUDGET), K @ V) < 1e-10
    assert relative_error(engine.product(kernel, X, Z, W, budget=BUDGET), cross @ W) < 1e-10
    assert relative_error(engine.dense(kernel, X, budget=BUDGET), K) < 1e-10
    assert relative_error(engine.dense(kernel, X, Z, budget=BUDGET), cross) < 1e-10
    for weights in (LowRankWeights(V, W), MatrixWeights(V @ W.T)):
        found = engine.gradient(kernel, X, Z, weights, symmetric=False, budget=BUDGET)
        expected = TorchTiles().gradient(kernel, X, Z, weights, symmetric=False, budget=BUDGET)
        for name, value in expected.items():
            assert torch.allclose(found[name], value, rtol=1e-8, atol=1e-8)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", [name for name in ALL if name != "white"])
def test_the_quicker_engine_runs_once_it_has_agreed(name):
    kernel, triton = ALL[name], Simulated()
    engine = measured(kernel, triton, speedup=2.5)
    assert engine.name == "torch tiles (Triton not tried: no job was large enough)"
    run_everything(engine, kernel)
    assert engine.name == "simulated tiles (2.5 times as fast as torch tiles)"
    assert triton.largest == len(X)
    before = triton.calls
    engine.product(kernel, X, X, V, budget=BUDGET)
    assert triton.calls == before + 1  # it is tested and timed once


def test_a_slower_triton_leaves_the_job_to_torch_tiles():
    kernel, triton = ALL["nested"], Simulated()
    engine = measured(kernel, triton, speedup=0.5)
    run_everything(engine, kernel)
    assert engine.name == "torch tiles (Triton was slower)"
    assert triton.largest == measured_tiles.TIMED_SIDE
    before = triton.calls
    run_everything(engine, kernel)
    assert triton.calls == before


def test_each_class_of_jobs_has_its_own_choice():
    kernel, triton, findings = ALL["matern32"], Simulated(), Findings()
    fast, slow = (measured(kernel, triton, speedup=ratio, findings=findings) for ratio in (2.0, 0.5))
    fast.product(kernel, X, X, V, budget=BUDGET)
    assert slow.name.startswith("simulated tiles (2 times")  # engines of one structure share what was found
    slow.product(kernel, X, X, points(300, 40, seed=4), budget=BUDGET)
    assert fast.name == "simulated tiles, and torch tiles for jobs where Triton was slower"
    other = measured(Matern(1.5, 3.0).bind(4), triton, findings=findings)
    assert other.name == fast.name  # hyperparameters do not matter
    for different in (Matern(2.5).bind(4), Matern(1.5).bind(5), (Matern(1.5) + RBF()).bind(4)):
        assert "not tried" in measured(different, triton, findings=findings).name
    assert "not tried" in measured(kernel, triton, findings=findings, dtype=torch.float32).name


SHAPES = [Tiling(64, 32, 4), Tiling(32, 64, 4), Tiling(32, 32, 4)]


def with_shapes(**flaws):
    """Return an engine with three shapes of tiles, of which some have flaws."""
    made = tuple(Simulated(tiling=one, **flaws.get(f"shape{k}", {})) for k, one in enumerate(SHAPES))
    return Simulated(tiling=None, shapes=made)


def clock_of(seconds):
    """Return a clock for which each shape takes so long, and what it timed."""
    timed = []

    def clock(call, device):
        call()
        tiling = getattr(call.args[0], "tiling", None)
        timed.append(tiling)
        return 10.0 if isinstance(call.args[0], TorchTiles) else dict(zip(SHAPES, seconds, strict=True)).get(tiling, 5)

    return clock, timed


@pytest.mark.parametrize("job", ["product", "gradient"])
def test_large_jobs_take_the_quickest_shape_of_tiles_and_remember_it(job, tmp_path, monkeypatch):
    monkeypatch.setattr(measured_tiles, "LARGE_JOB", 300 * 300)
    kernel, file = ALL["matern32"], tmp_path / "folder" / "tiles-1.jsonl"

    def run(engine):
        if job == "product":
            return engine.product(kernel, X, X, V, budget=BUDGET)
        return engine.gradient(kernel, X, X, LowRankWeights(V, V), symmetric=True, budget=BUDGET)["lengthscale"]

    triton, (clock, timed) = with_shapes(), clock_of((3.0, 2.0, 4.0))
    engine = measured(kernel, triton, memory=TileMemory(file), clock=clock)
    found = run(engine)
    assert set(SHAPES) < set(timed)
    assert triton.shapes[1].largest == 300  # it ran the whole job
    assert relative_error(found, run(TorchTiles())) < 1e-10
    calls = triton.shapes[1].calls
    run(engine)
    assert triton.shapes[1].calls == calls + 1
    if job == "product":  # a smaller job of the same class is not worth it
        engine.product(kernel, X[:290], X[:290], V[:290], budget=BUDGET)
        assert triton.shapes[1].calls == calls + 1
    # another process measures nothing but what is remembered, and checks its numbers
    again, (clock, timed) = with_shapes(), clock_of((1.0, 2.0, 1.0))
    run(measured(kernel, again, memory=TileMemory(file), clock=clock))
    assert again.shapes[1].largest == 300
    assert not {SHAPES[0], SHAPES[2]} & set(timed)
    wrong, (clock, timed) = with_shapes(shape1={"error": 1e-3}), clock_of((3.0, 1.0, 2.0))
    run(measured(kernel, wrong, memory=TileMemory(file), clock=clock))
    assert wrong.shapes[2].largest == 300
    assert TileMemory(file).get(json.loads(file.read_bytes().splitlines()[-1])[0]) == SHAPES[2].shape


def test_shapes_that_fail_are_left_out_without_a_warning(monkeypatch):
    monkeypatch.setattr(measured_tiles, "LARGE_JOB", 300 * 300)
    kernel, broken = ALL["matern32"], {"raises": RuntimeError("out of resources")}
    triton, (clock, _) = with_shapes(shape0=broken, shape2={"error": 1e-3}), clock_of((1.0, 4.0, 2.0))
    measured(kernel, triton, clock=clock).product(kernel, X, X, V, budget=BUDGET)
    assert triton.shapes[1].largest == 300
    triton, (clock, _) = with_shapes(shape0=broken, shape1=broken, shape2=broken), clock_of((1.0, 4.0, 2.0))
    measured(kernel, triton, clock=clock).product(kernel, X, X, V, budget=BUDGET)
    assert triton.largest == 300


def test_what_is_no_line_of_a_file_of_shapes_is_passed_over(tmp_path):
    file = tmp_path / "tiles-1.jsonl"
    memory = TileMemory(file)
    assert memory.get("key") is None
    shapes = [b"[64, 32]", b"[64, 32, 4.0]", b"[64, 32, true]", b"null", b"{}", b'"64"', b"[1, 2, 3], 4"]
    bad = [b"", b"{", b"\xff\xfe", b"[1, 2]", b"[" * 9999, *(b'["key", %b]' % shape for shape in shapes)]
    file.write_bytes(b"\n".join([*bad, b'["other", [64, 32, 4]]', b'["key", [6']))
    assert (memory.get("key"), memory.get("other")) == (None, (64, 32, 4))
    memory.put("key", (32, 64, 4))  # behind the line of a process that was killed
    assert (memory.get("key"), memory.get("other")) == ((32, 64, 4), (64, 32, 4))
    memory.put("key", (32, 32, 4))
    assert memory.get("key") == (32, 32, 4)
    assert [one.name for one in tmp_path.iterdir()] == [file.name]


@pytest.mark.slow
def test_processes_that_write_at_the_same_time_do_not_forget_each_other(tmp_path):
    file = tmp_path / "tiles-1.jsonl"
    code = "import sys; from pathlib import Path; from gigagp.products.tile_memory import TileMemory\n"
    code += "[TileMemory(Path(sys.argv[1])).put(f'{sys.argv[2]} {k}', (64, 32, k)) for k in range(50)]"
    running = [subprocess.Popen([sys.executable, "-c", code, str(file), str(k)]) for k in range(3)]
    assert [one.wait() for one in running] == [0, 0, 0]
    memory = TileMemory(file)
    assert all(memory.get(f"{process} {k}") == (64, 32, k) for process in range(3) for k in range(50))


def test_a_file_of_shapes_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "tiles-1.jsonl", tmp_path, None):
        memory = TileMemory(path)
        memory.put("key", (32, 64, 4))
        assert memory.get("key") is None
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file"]


def test_the_file_of_shapes_is_in_the_folder_for_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_path() == tmp_path / "gigagp" / "tiles-1.jsonl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path() == tmp_path / ".cache" / "gigagp" / "tiles-1.jsonl"


def test_small_jobs_are_not_worth_a_compilation():
    kernel, triton = ALL["matern32"], Simulated(raises=RuntimeError("must not be called"))
    engine = measured(kernel, triton)
    engine.product(kernel, X[:199], X[:199], V[:199], budget=BUDGET)
    assert triton.calls == 0
    assert engine.name == "torch tiles (Triton not tried: no job was large enough)"


@pytest.mark.parametrize(
    ("flaw", "words"),
    [
        (Simulated(error=1e-6), "disagreed in its self-test"),
        (Simulated(error=float("nan")), "disagreed in its self-test"),
        (Simulated(error=1e-4, flawed_rows=200), "disagreed in its self-test"),
        (Simulated(raises=RuntimeError("ptxas exited with error 255\nmore")), "failed: RuntimeError"),
        (Simulated(raises=RuntimeError("ptxas exited with error 255"), flawed_rows=290), "failed: RuntimeError"),
    ],
    ids=["mismatch", "nan", "mismatch on the job", "compiler", "run time"],
)
def test_a_mismatch_or_an_error_leaves_the_device_to_torch_tiles_with_one_warning(flaw, words):
    kernel, findings = ALL["matern32"], Findings()
    engine = measured(kernel, flaw, findings=findings)
    detail = "ptxas exited with error 255" if flaw.raises else "is off by"
    with pytest.warns(
        GigaGPWarning, match=rf"Triton {words} on cpu:0 \(.*{detail}.*\)\. .* run on torch tiles"
    ) as seen:
        run_everything(engine, kernel)
    assert len(seen) == 1
    assert Path(seen[0].filename) == Path(__file__)
    assert engine.name == f"torch tiles (Triton {words})"
    before = flaw.calls
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = measured(ALL["nested"], flaw, findings=findings)
        run_everything(other, ALL["nested"])
    assert other.name == engine.name
    assert flaw.calls == before


def test_a_lack_of_memory_is_no_failure():
    kernel, findings = ALL["matern32"], Findings()
    engine = measured(kernel, Simulated(raises=torch.OutOfMemoryError("no room to try")), findings=findings)
    engine.product(kernel, X, X, V, budget=BUDGET)  # torch tiles do the job
    assert "not tried" in engine.name
    late = Simulated(raises=torch.OutOfMemoryError("no room for the job"), flawed_rows=290)
    with pytest.raises(torch.OutOfMemoryError, match="no room for the job"):
        measured(kernel, late, findings=findings).product(kernel, X, X, V, budget=BUDGET)
    assert findings.failures == {}


def test_the_tolerance_is_for_rounding():
    """The control: errors of rounding pass the self-test."""
    engine = measured(ALL["matern32"], Simulated(error=1e-11))
    engine.product(ALL["matern32"], X, X, V, budget=BUDGET)
    assert "times as fast" in engine.name


def test_errors_that_are_the_callers_are_passed_on():
    kernel = ALL["matern32"]
    engine = measured(kernel, Simulated())
    with pytest.raises(InvalidInputError, match=r"V of torch tiles \(Triton not tried"):
        engine.product(kernel, X, X, W, budget=BUDGET)
    with pytest.raises(InvalidInputError, match=r"weights\.left of"):
        engine.gradient(kernel, X, Z, LowRankWeights(W, W), symmetric=False, budget=BUDGET)
    with pytest.raises(InvalidInputError, match="X of"):
        engine.dense(kernel, torch.full_like(X, torch.nan), budget=BUDGET)
    with pytest.raises(MemoryBudgetError):
        engine.dense(kernel, X, budget=2**16)
    assert "failed" not in engine.name


def test_select_takes_it_on_cuda_where_triton_is_installed(monkeypatch):
    monkeypatch.setattr(TritonTiles, "available", staticmethod(lambda: True))
    for kernel in ALL.values():
        assert isinstance(select(kernel, "cuda", torch.float32), MeasuredTiles)
        assert not isinstance(select(kernel, "cpu", torch.float32), MeasuredTiles)
    monkeypatch.setattr(TritonTiles, "available", staticmethod(lambda: False))
    assert select(ALL["rbf"], "cuda", torch.float32) == TorchTiles()


def test_a_kernel_matrix_says_what_was_found():
    kernel = ALL["matern32"]
    engine = measured(kernel, Simulated())
    H = KernelMatrix(kernel, X, 0.1, storage="tiles", engine=engine)
    assert "not tried" in H.engine
    H @ V
    assert H.engine == "simulated tiles (2 times as fast as torch tiles)"
    assert H.engine in H.describe()


INTERPRETED = """
import sys, time, torch
from triton.runtime.interpreter import InterpretedFunction
InterpretedFunction.__call__ = lambda self, *a, **k: self.rewrite()(*a, **k)  # see tests/engines.py
torch.set_num_threads(1)
from gigagp.kernels import Matern, Linear, Periodic
from gigagp.products import LowRankWeights, MeasuredTiles, TorchTiles, measured_tiles
from gigagp.products.triton_tiles import TritonTiles
from helpers import points, reference_block, relative_error

measured_tiles.SMALLEST_JOB, measured_tiles.TIMED_SIDE, measured_tiles.TEST_SHAPE = 1, 70, (40, 30)
kernel = (Matern(1.5) * Periodic() + Linear(0.3)).bind(2)
X, V = points(80, 2), points(80, 2, seed=1)

def clock(call, device):
    call()
    return 1.0 if isinstance(call.args[0], TritonTiles) is FASTER else 2.0

FASTER = True
engine = MeasuredTiles(kernel, "cpu", torch.float64, clock=clock)
found = engine.product(kernel, X, X, V, budget=2**24)
assert relative_error(found, reference_block(kernel, X, X) @ V) < 1e-10
assert engine.name == "triton tiles (2 times as fast as torch tiles)", engine.name
FASTER = False
engine.gradient(kernel, X, X, LowRankWeights(V, V), symmetric=True, budget=2**24)
assert engine.name == "triton tiles, and torch tiles for jobs where Triton was slower", engine.name
real = MeasuredTiles(Matern(2.5).bind(2), "cpu", torch.float32)
X, V = X.float(), V.float()
real.product(Matern(2.5).bind(2), X, X, V, budget=2**24)
assert real.name == "torch tiles (Triton was slower)", real.name  # it is interpreted
print("chosen")
"""


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON or torch.cuda.is_available(), reason=NO_TRITON)
def test_tritons_interpreter_passes_the_self_test():
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(gigagp.__file__).parents[1]), str(Path(helpers.__file__).parent)]),
        "TRITON_INTERPRET": "1",
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", INTERPRETED],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "chosen\n", done.stderr[-2000:]
