"""The speed of this machine beside that of the benchmarks, and the times of single operations there.

A time that is computed from these is a nominal one: of one thread of the machine of the benchmarks, in float64.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cache

import torch

#: Seconds of a product of two 768 x 768 matrices in float64 on the machine of the benchmarks, one thread.
_NOMINAL, _SIZE, _REPEATS = 0.0225, 768, 3
#: Nominal seconds of a multiplication and an addition in a product of large matrices.
MULTIPLICATION = _NOMINAL / _SIZE**3
#: Nominal seconds of the exact likelihood and its gradient for each cubed row.
FACTOR_SECONDS = 6e-11
#: Nominal seconds of a fast Fourier transform for each point and each halving.
_TRANSFORM = 1.5e-9
#: Compute capabilities of the GPUs for computing centres (P100, V100, A100, H100, B200), which have half
#: of their speed in float64, and the least that other GPUs lose by it.
_FOR_CENTRES, _OTHERS = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0)), 32.0
#: Nominal seconds for each kernel entry of a product with about twenty columns, and their growth with the inputs.
_ENTRY, _ENTRY_OF_INPUT = 1.1e-9, 2e-11


def entries_seconds(n_entries: float, n_inputs: int) -> float:
    """Return the nominal seconds of products with about twenty columns that take this many kernel entries."""
    return (_ENTRY + n_inputs * _ENTRY_OF_INPUT) * n_entries


def transform_seconds(n_points: float) -> float:
    """Return the nominal seconds of a fast Fourier transform of this many points."""
    return _TRANSFORM * n_points * math.log2(max(n_points, 2.0))


def slowness() -> float:
    """Return how many times as long as on the machine of the benchmarks (one thread) computations take now.

    It is measured once in a process for each number of threads, in less than a tenth of a second.
    """
    return _measured(torch.get_num_threads())


def fastest(work: Callable[[], object]) -> float:
    """Return the fewest seconds that some work takes in three runs: others only lengthen it."""
    times = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


@cache
def _measured(threads: int) -> float:
    matrix = torch.ones(_SIZE, _SIZE, dtype=torch.float64)
    return fastest(lambda: matrix @ matrix) / _NOMINAL


def float64_slowness(device: torch.device) -> float:
    """Return how many times as long as in float32 products take in float64, at least; 1 where it is not known.

    It follows from the kind of a GPU and is not measured, so that what depends on it does not differ between two runs.
    """
    if device.type != "cuda":
        return 1.0
    return 2.0 if torch.cuda.get_device_capability(device) in _FOR_CENTRES else _OTHERS
