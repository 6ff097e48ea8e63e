"""CPU seconds of a step of `gigagp.search` with about 300 observations: condition, refit where it is due, and suggest.

    python benchmarks/search.py --json benchmarks/results/search.json

Hartmann-6 without noise. 285 random points are told first; then 30 steps of one point each are timed, in which the
hyperparameters are learned again when the search finds that worthwhile. Times are CPU seconds of one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkout import commit

from gigagp.search import Search

FIRST, STEPS = 285, 30
_A = np.array(
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
)
_P = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)
_WEIGHTS = np.array([1, 1.2, 3, 3.2])


def hartmann(x: np.ndarray) -> float:
    """Return the function of Hartmann with six inputs in the unit cube, whose minimum is -3.32237."""
    return -float(_WEIGHTS @ np.exp(-(_A * (x - _P) ** 2).sum(1)))


def run(acquisition: Any) -> dict[str, Any]:
    """Return the seconds of all steps with one acquisition function."""
    search = Search([(0, 1)] * 6, acquisition=acquisition, n_initial=1)
    X = np.random.default_rng(0).uniform(size=(FIRST, 6))
    search.tell(X, [hartmann(x) for x in X])
    for x in search.ask(2):  # a Sobol point, and the first one for which hyperparameters are learned
        search.tell(x, hartmann(x))
    seconds, learned = [], 0
    for _ in range(STEPS):
        before, began = search._n_learned, time.process_time()
        (x,) = search.ask()
        search.tell(x, hartmann(x))
        seconds.append(time.process_time() - began)
        learned += search._n_learned != before
    found: dict[str, Any] = {"acquisition": acquisition, "first": FIRST, "steps": STEPS, "refits": learned}
    found |= {"mean_cpu_ms": 1e3 * statistics.fmean(seconds), "median_cpu_ms": 1e3 * statistics.median(seconds)}
    return found | {"largest_cpu_ms": 1e3 * max(seconds), "best": search.best.y}


def main() -> None:
    """Time both acquisition functions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = {"commit": commit(), "steps": [run("logei"), run("thompson")]}
    print(json.dumps(record, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
