"""The rates that bound kernel products on this machine: matrix multiplication, and exp in the first-level cache."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent
SIMD_FOLDER = HERE.parent / "src" / "gigagp" / "products" / "native"
FLAGS = ["-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-std=c++17", "-shared", "-fPIC"]
#: Size of the square matrices whose product is timed.
GEMM_SIDE = 2048
#: Mean of exp(-t) over [0, 8), which the compiled loop has to return up to the spacing of its numbers.
MEAN_EXPONENTIAL = (1 - np.exp(-8)) / 8


@dataclass(frozen=True)
class Rates:
    """Floating-point operations, and exponentials, per second of CPU time and of wall time.

    Attributes
    ----------
    gemm, exponential : tuple of two floats
        Rates by CPU time, which counts all threads, and by wall time.
    """

    gemm: tuple[float, float]
    exponential: tuple[float, float]

    def limit(self, d: int, s: int, *, symmetric: bool) -> tuple[float, float]:
        """Return the least seconds per matrix entry, CPU and wall: ``(2d + 2s) / gemm + 1 / exponential``.

        A symmetric product needs half of the distances and exponentials, but all products with V.
        """
        share = 0.5 if symmetric else 1.0
        cpu, wall = (
            (share * 2 * d + 2 * s) / gemm + share / exponential
            for gemm, exponential in zip(self.gemm, self.exponential, strict=True)
        )
        return cpu, wall

    def best(self, other: Rates | None) -> Rates:
        """Return the larger of the two values of each rate."""
        if other is None:
            return self
        gemm, exponential = (
            (max(mine[0], theirs[0]), max(mine[1], theirs[1]))
            for mine, theirs in ((self.gemm, other.gemm), (self.exponential, other.exponential))
        )
        return Rates(gemm, exponential)


def timed(call: Callable[[], Any], least: float = 0.2) -> tuple[float, float]:
    """Return CPU and wall seconds per call, from as many calls as take ``least`` seconds together."""
    time.sleep(0.01)  # let idle threads stop spinning, so that their time is not counted
    wall, cpu, calls = time.perf_counter(), time.process_time(), 0
    while calls == 0 or time.perf_counter() - wall < least:
        call()
        calls += 1
    return (time.process_time() - cpu) / calls, (time.perf_counter() - wall) / calls


class MachineLimit:
    """Measures both rates with the number of threads that torch uses.

    Parameters
    ----------
    dtype : str
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.threads = torch.get_num_threads()
        generator = torch.Generator().manual_seed(0)
        left, right = (
            torch.randn(GEMM_SIDE, GEMM_SIDE, generator=generator, dtype=getattr(torch, dtype)) for _ in range(2)
        )
        out = torch.empty_like(left)
        self._multiply = lambda: torch.mm(left, right, out=out)
        self._exponentials, self._count, self.exponential_of = _exponentials(dtype)

    def measure(self) -> Rates:
        """Measure both rates, and return the better of two results for each."""
        best = None
        for _ in range(2):
            cpu, wall = timed(self._multiply)
            exp_cpu, exp_wall = timed(self._run_exponentials)
            work, count = 2.0 * GEMM_SIDE**3, float(self.threads * self._count)
            best = Rates((work / cpu, work / wall), (count / exp_cpu, count / exp_wall)).best(best)
        assert best is not None
        return best

    def _run_exponentials(self) -> None:
        workers = [threading.Thread(target=self._exponentials) for _ in range(self.threads - 1)]
        for worker in workers:
            worker.start()
        self._exponentials()
        for worker in workers:
            worker.join()


def _exponentials(dtype: str) -> tuple[Callable[[], Any], int, str]:
    """Return a call that computes exponentials in one thread, their number, and a description of the exp function."""
    compiler = os.environ.get("CXX") or next(
        (found for c in ("c++", "g++", "clang++") if (found := shutil.which(c))), ""
    )
    if not compiler:
        numbers = -8 * np.arange(4096, dtype=dtype) / 4096
        out, repeats = np.empty_like(numbers), 2000

        def numpy_exponentials() -> None:
            for _ in range(repeats):
                np.exp(numbers, out=out)

        return numpy_exponentials, repeats * len(numbers), "numpy.exp (no C++ compiler was found)"
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "exponential_rate.so"
        source = HERE / "exponential_rate.cpp"
        subprocess.run([compiler, *FLAGS, f"-I{SIMD_FOLDER}", str(source), "-o", str(library)], check=True)
        loaded = ctypes.CDLL(str(library))
    function = getattr(loaded, f"exponentials_{dtype}")
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_long]
    numbers_each = int(loaded.exponentials_count(ctypes.c_long(np.dtype(dtype).itemsize)))
    repeats = 2**26 // numbers_each

    def compiled_exponentials() -> None:
        function(repeats)

    mean = function(1)
    if abs(mean - MEAN_EXPONENTIAL) > 1.0 / numbers_each:
        msg = f"exponential_rate.cpp returned {mean}, not {MEAN_EXPONENTIAL}: it does not compute exp."
        raise RuntimeError(msg)
    return compiled_exponentials, repeats * numbers_each, f"native/simd.h, {Path(compiler).name} -march=native"
