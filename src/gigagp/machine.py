"""The speed of this machine beside that of the benchmarks."""

from __future__ import annotations

import time
from functools import cache

import torch

#: Seconds of a product of two 768 x 768 matrices in float64 on the machine of the benchmarks, one thread.
_NOMINAL, _SIZE, _REPEATS = 0.0225, 768, 3


def slowness() -> float:
    """Return how many times as long as on the machine of the benchmarks (one thread) computations take now.

    It is measured once in a process for each number of threads, in less than a tenth of a second.
    """
    return _measured(torch.get_num_threads())


@cache
def _measured(threads: int) -> float:
    matrix = torch.ones(_SIZE, _SIZE, dtype=torch.float64)
    times = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        matrix @ matrix
        times.append(time.perf_counter() - started)
    return min(times) / _NOMINAL
