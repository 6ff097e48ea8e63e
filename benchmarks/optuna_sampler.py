"""The sampler of `examples/optuna_sampler.py` beside Optuna's own `GPSampler`: regret and CPU seconds a trial.

    PYTHONPATH=src:. python benchmarks/optuna_sampler.py --json benchmarks/results/optuna_sampler.json

Needs Optuna, which is no dependency of this package. Both samplers minimize Branin (40 trials) and Hartmann-6 (80
trials), one trial after the other, after ten first points of their own.
"""

from __future__ import annotations

import argparse
import json
import math
import runpy
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from benchmarks.checkout import commit
from benchmarks.search import hartmann

#: Functions on the unit cube with their number of inputs, minimum, and number of trials.
FUNCTIONS: dict[str, tuple[Any, int, float, int]] = {}


def branin(x: np.ndarray) -> float:
    """Return Branin's function on the unit square, whose minimum is 0.397887."""
    a, b = 15 * x[0] - 5, 15 * x[1]
    bend = b - 5.1 / (4 * math.pi**2) * a * a + 5 / math.pi * a - 6
    return float(bend**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(a) + 10)


FUNCTIONS["Branin"] = branin, 2, 0.39788735772973816, 40
FUNCTIONS["Hartmann-6"] = hartmann, 6, -3.322368011415515, 80


def run(function: str, name: str, seed: int) -> dict[str, Any]:
    """Return the regret of one study at its half and at its end, and its CPU seconds a trial."""
    call, d, minimum, trials = FUNCTIONS[function]
    if name == "GPSampler":
        sampler = optuna.samplers.GPSampler(seed=seed, n_startup_trials=10)
    else:
        example = Path(__file__).parents[1] / "examples" / "optuna_sampler.py"
        sampler = runpy.run_path(str(example))["GigaSampler"](seed=seed, n_initial=10)

    def objective(trial: optuna.Trial) -> float:
        return float(call(np.array([trial.suggest_float(f"x{k}", 0.0, 1.0) for k in range(d)])))

    study, began = optuna.create_study(sampler=sampler), time.process_time()
    study.optimize(objective, n_trials=trials)
    seconds = (time.process_time() - began) / trials
    values = np.minimum.accumulate([trial.value for trial in study.trials]) - minimum
    found = {"function": function, "sampler": name, "seed": seed, "trials": trials, "cpu_s": seconds}
    return found | {"half": float(values[trials // 2 - 1]), "end": float(values[-1])}


def main() -> None:
    """Run all studies and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    runs, summary = [], []
    for function in FUNCTIONS:
        for name in ("GPSampler", "GigaSampler"):
            found = [run(function, name, seed) for seed in range(options.seeds)]
            runs += found
            one: dict[str, Any] = {"function": function, "sampler": name, "seeds": len(found)}
            one |= {part: statistics.median(each[part] for each in found) for part in ("half", "end", "cpu_s")}
            one |= {"worst": max(each["end"] for each in found)}
            summary.append(one)
            print(json.dumps(one), flush=True)
    record = {"commit": commit(), "optuna": optuna.__version__, "summary": summary, "runs": runs}
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
