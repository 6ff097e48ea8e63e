"""How far below the best of several random starts the default optimizer ends, on small tables, and at what cost.

    python benchmarks/starts.py --data ../shared/data --json benchmarks/results/starts.json

The cases are random rows of nine real tables (200, 500 and 1,000 rows, two seeds), and made functions of one to eight
inputs with little noise (50 to 400 rows). Each is learned by ``optimization.Auto`` as it is, by ``Auto`` with one start
only, and from random starts: lengthscales and standard deviations up to a factor of ten above and below the default
start, deviations of the noise down to 0.001 of the targets'. Values are log posteriors: the log likelihood plus the log
of the weak prior that the optimizer maximises too. CPU seconds are those of the learning alone, in one thread.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from checkout import commit
from maps import FILES, read_map
from splits import read_split

from gigagp import GPRegressor, kernels
from gigagp.errors import GigaGPError
from gigagp.estimators.arguments import Arguments, Problem
from gigagp.inference.exact.exact import Exact
from gigagp.model.model import Model
from gigagp.optimization import Auto, History
from gigagp.optimization.prior import WeakPrior
from gigagp.optimization.space import ParameterSpace
from gigagp.optimization.trace import Trace
from gigagp.runtime.progress import meter_for

REAL = (
    "bike", "elevators", "kin40k", "pol", "protein", "keggdirected", "parkinsons", "temperature", "precipitation",
)  # fmt: skip
#: Nats below the best that count as far.
FAR = 2.0


def branin(U: np.ndarray) -> np.ndarray:
    """Return Branin's function of the unit square."""
    a, b = 15 * U[:, 0] - 5, 15 * U[:, 1]
    return (b - 5.1 / (4 * np.pi**2) * a**2 + 5 / np.pi * a - 6) ** 2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(a) + 10


def friedman(U: np.ndarray) -> np.ndarray:
    """Return Friedman's function of five of the inputs."""
    return 10 * np.sin(np.pi * U[:, 0] * U[:, 1]) + 20 * (U[:, 2] - 0.5) ** 2 + 10 * U[:, 3] + 5 * U[:, 4]


def wiggly(U: np.ndarray) -> np.ndarray:
    """Return a sine with fifteen periods."""
    return np.sin(2 * np.pi * 15 * U[:, 0])


def mixed(U: np.ndarray) -> np.ndarray:
    """Return a trend and a short wave."""
    return 3 * U[:, 0] + np.sin(2 * np.pi * 8 * U[:, 1])


#: function, number of inputs, deviation of the noise as a share of the function's
MADE: dict[str, tuple[Callable[[np.ndarray], np.ndarray], int, float]] = {
    "branin": (branin, 2, 1e-3),
    "friedman": (friedman, 8, 1e-3),
    "wiggly": (wiggly, 1, 1e-3),
    "mixed": (mixed, 2, 1e-2),
}


def cases(data: Path, rows: tuple[int, ...] = (200, 500, 1000)) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Iterate over name, inputs and targets of every case."""

    @cache
    def rows_of(table: str) -> tuple[np.ndarray, np.ndarray]:
        return read_map(data, table, None) if table in FILES else read_split(data, table)[:2]

    for name, (function, d, share) in MADE.items():
        for n in (50, 100, 200, 400):
            for seed in (0, 1):
                rng = np.random.default_rng([seed, n])
                U = rng.uniform(size=(n, d))
                y = function(U)
                yield f"{name} {n} {seed}", U, y + share * y.std() * rng.normal(size=n)
    for n in rows:
        for table in REAL:
            for seed in (0, 1):
                X, y = rows_of(table)
                order = np.random.default_rng(seed).permutation(len(y))[:n]
                yield f"{table} {n} {seed}", X[order], y[order]


class Case:
    """One table, and the log posterior of its hyperparameters."""

    def __init__(self, X: np.ndarray, y: np.ndarray) -> None:
        self.problem = Problem.of(Arguments.of(GPRegressor(kernels.Matern(nu=1.5))), X, y)
        self.objective = Exact().objective(self.problem.table(), torch.Generator().manual_seed(0))

    def value(self, model: Model) -> float:
        """Return the log posterior of a model up to a constant."""
        space, objective = ParameterSpace(model, "log"), self.objective
        prior = WeakPrior(space, objective.n_inputs, objective.target_variance)
        return objective.value(model) - prior.penalty(space.encode(model))

    def learn(self, optimizer: Any, model: Model | None = None) -> dict[str, float]:
        """Return the log posterior that an optimizer reaches, its CPU seconds and its evaluations."""
        trace, generator = Trace(History(), meter_for(0)), torch.Generator().manual_seed(0)
        began = time.process_time()
        try:
            found = optimizer.run(self.objective, self.problem.model if model is None else model, trace, generator)
            seconds = time.process_time() - began
            value = self.value(found)
        except GigaGPError:
            return {"value": -math.inf, "seconds": time.process_time() - began, "evaluations": len(trace.history)}
        return {"value": value, "seconds": seconds, "evaluations": len(trace.history)}

    def random_start(self, generator: torch.Generator) -> Model:
        """Return a random model around the default start."""
        model = self.problem.model
        drawn = {}
        for name in model.learned_names():
            value = model.parameters()[name]
            share = torch.rand(value.shape, generator=generator, dtype=torch.float64)
            if name == "noise_variance":
                drawn[name] = value * 10 ** (-5 * share + 0.5)
            else:
                drawn[name] = value * 10 ** ((2 * share - 1) * (2 if name.endswith("variance") else 1))
        return model.replace(drawn)


def main() -> None:
    """Run every case and print how often each optimizer ends far below the best."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--restarts", type=int, default=8)
    parser.add_argument("--rows", type=int, nargs="*", default=(200, 500, 1000), help="of the real tables")
    parser.add_argument("--match", nargs="*", default=None, help="only cases whose names contain one of these")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known: dict[str, Any] = {}
    if options.json is not None and options.json.exists():
        known = {one["case"]: one for one in json.loads(options.json.read_text(encoding="utf-8"))["cases"]}
    optimizers = {"default": Auto(), "one start": Auto(rougher_starts=False)}
    found = []
    for name, X, y in cases(options.data, tuple(options.rows)):
        if options.match is not None and not any(word in name for word in options.match):
            continue
        case = Case(X, y)
        one: dict[str, Any] = {"case": name} | {word: case.learn(how) for word, how in optimizers.items()}
        random = known.get(name, {}).get("random", [])  # a benchmark that goes on, or measures another optimizer again
        generator = torch.Generator().manual_seed(1)
        starts = [case.random_start(generator) for _ in range(options.restarts)]
        alone = optimizers["one start"]
        random += [case.learn(alone, start)["value"] for start in starts[len(random) :]]
        one["random"] = random
        one["best"] = max([*random, *(one[word]["value"] for word in optimizers)])
        found.append(one)
        shown = (
            f"{word} {one[word]['value'] - one['best']:8.2f} {one[word]['seconds']:.3f} s {one[word]['evaluations']}"
            for word in optimizers
        )
        print(f"{name:22s} best {one['best']:10.2f}  " + "  ".join(shown), flush=True)
        if options.json is not None:
            options.json.write_text(
                json.dumps(
                    {
                        "commit": commit(),
                        "restarts": options.restarts,
                        "totals": totals(found, optimizers),
                        "cases": found,
                    }
                ),
                encoding="utf-8",
            )
    for word, total in totals(found, optimizers).items():
        print(f"{word}: {total}")


def totals(found: list[dict[str, Any]], words: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return, for every optimizer, how many cases end far below the best, the nats lost and the CPU seconds."""
    return {
        word: {
            "far": sum(one[word]["value"] < one["best"] - FAR for one in found),
            "cases": len(found),
            "nats_lost": sum(one["best"] - one[word]["value"] for one in found),
            "seconds": sum(one[word]["seconds"] for one in found),
        }
        for word in words
    }


if __name__ == "__main__":
    main()
