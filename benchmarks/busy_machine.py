"""CPU and wall seconds of a default fit beside other work, with threads that spin while they wait and that do not.

    python benchmarks/busy_machine.py --json benchmarks/results/busy_machine.json

The threads of PyTorch wait for each other at the end of every parallel loop. By default they spin, and where others use
the cores, the thread that they wait for does not run. ``OMP_WAIT_POLICY=passive`` lets them sleep. Each fit is of a
process of its own, on a made table of 400 rows and three inputs, beside 0, 1 and 2 processes that are always busy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from checkout import commit

_FIT = """
import time
import numpy as np
from gigagp import GPRegressor
rng = np.random.default_rng(0)
X = rng.uniform(size=(400, 3))
y = np.sin(6 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=400)
GPRegressor(optimizer=None).fit(X[:50], y[:50])  # whatever is loaded at the first fit
wall, cpu = time.perf_counter(), time.process_time()
GPRegressor().fit(X, y)
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


def measured(policy: str | None, threads: int | None, busy: int) -> tuple[float, float]:
    """Return wall and CPU seconds of one fit beside busy processes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    environment |= {} if policy is None else {"OMP_WAIT_POLICY": policy}
    environment |= {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        found = subprocess.run(
            [sys.executable, "-c", _FIT], env=environment, capture_output=True, text=True, check=True
        )
    finally:
        for other in others:
            other.kill()
            other.wait()
    wall, cpu = map(float, found.stdout.split())
    return wall, cpu


def main() -> None:
    """Measure all settings in turn, several times, and write medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path("busy_machine.json"))
    options = parser.parse_args()
    settings = [(None, None), ("passive", None), (None, 1)]
    runs = [
        (policy, threads, busy, *measured(policy, threads, busy))
        for _ in range(options.repeats)
        for busy in (0, 1, 2)
        for policy, threads in settings
    ]
    rows = []
    for busy in (0, 1, 2):
        for policy, threads in settings:
            some = [one[3:] for one in runs if one[:3] == (policy, threads, busy)]
            wall, cpu = (statistics.median(column) for column in zip(*some, strict=True))
            rows.append({"policy": policy or "default", "threads": threads or "all", "busy": busy})
            rows[-1] |= {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2)}
            print(rows[-1], flush=True)
    record = {"commit": commit(), "cores": os.cpu_count(), "rows": rows}
    options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
