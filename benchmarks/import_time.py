"""Measure the time of ``import gigagp`` as a ratio to ``import torch``: median of alternating fresh processes.

    python benchmarks/import_time.py [--repeats 15] [--json FILE]

The target is a ratio of at most 1.3 for ``import gigagp``; the times of other imports are shown for comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STATEMENTS = {
    "torch": "import torch",
    "gigagp": "import gigagp",
    "gigagp and torch": "import torch, gigagp",
    "all light parts": "from gigagp import kernels, inference, solvers, gradients, optimization, means, errors",
    "GPRegressor": "from gigagp import GPRegressor",
}


def seconds(statement: str) -> float:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], env=environment, check=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for _ in range(arguments.repeats + 1):
        for name, statement in STATEMENTS.items():  # alternate, so that a busy machine affects all alike
            times[name].append(seconds(statement))
    medians = {
        name: statistics.median(values[1:]) for name, values in times.items()
    }  # the first run fills the disk cache
    print(f"Python {platform.python_version()}, median of {arguments.repeats} fresh processes")
    for name, median in medians.items():
        print(f"{name:18s} {median:7.3f} s   {median / medians['torch']:5.2f} x import torch")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"repeats": arguments.repeats, "median_seconds": medians}, indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
