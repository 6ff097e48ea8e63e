"""Regret and CPU seconds of `gigagp.search` beside Optuna's GP and TPE, scikit-optimize and BoTorch's qLogNEI.

    python benchmarks/search_regret.py run --json benchmarks/results/search_regret.json
    python benchmarks/search_regret.py figure --json benchmarks/results/search_regret.json
    python benchmarks/search_regret.py table --json benchmarks/results/search_regret.json

Twelve functions of 2 to 20 inputs, three of them with integers and categories, are minimized without noise, one trial
after the other, after ``2 (d + 1)`` first points of each method's own. A run is added to the file as soon as it is
done, and runs that are in the file are not repeated, so that the whole comparison can be run in parts (``--functions``,
``--methods``, ``--seeds``). CPU seconds are those of one thread, without the function. BoTorch runs with its defaults:
`SingleTaskGP` or `MixedSingleTaskGP`, 10 restarts of 256 raw points, and `optimize_acqf_mixed_alternating` for mixed
inputs. A package that is not installed is left out, with a line that says so.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from checkout import commit
from search import hartmann

from gigagp.search import Search
from gigagp.storage.files import replacing

Point = dict[str, Any]


class Problem(NamedTuple):
    """A function of dictionaries with its bounds, its minimum and a number of trials."""

    bounds: dict[str, Any]
    function: Callable[[Point], float]
    minimum: float
    trials: int


def reals(d: int, lower: float, upper: float, function: Callable[[np.ndarray], float]) -> tuple[Any, Any]:
    """Return bounds and function of real inputs with the same range."""
    names = [f"x{k}" for k in range(d)]
    return dict.fromkeys(names, (lower, upper)), lambda x: float(function(np.array([x[name] for name in names])))


def branin(a: float, b: float) -> float:
    """Return Branin's function, whose minimum is 0.397887."""
    bend = b - 5.1 / (4 * math.pi**2) * a * a + 5 / math.pi * a - 6
    return bend**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(a) + 10


def camel(a: float, b: float) -> float:
    """Return the six-hump camel function, whose minimum is -1.031628."""
    return (4 - 2.1 * a**2 + a**4 / 3) * a**2 + a * b + (-4 + 4 * b**2) * b**2


def ackley(x: np.ndarray) -> float:
    """Return Ackley's function, whose minimum is 0 at 0."""
    bowl = -20 * math.exp(-0.2 * math.sqrt(float((x**2).mean())))
    return bowl - math.exp(float(np.cos(2 * math.pi * x).mean())) + 20 + math.e


def hartmann3(x: np.ndarray) -> float:
    """Return Hartmann's function of three inputs, whose minimum is -3.86278."""
    A = np.array([[3, 10, 30], [0.1, 10, 35], [3, 10, 30], [0.1, 10, 35]])
    P = 1e-4 * np.array([[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]])
    return -float(np.array([1, 1.2, 3, 3.2]) @ np.exp(-(A * (x - P) ** 2).sum(1)))


def levy(x: np.ndarray) -> float:
    """Return Levy's function, whose minimum is 0 at 1."""
    w = 1 + (x - 1) / 4
    middle = ((w[:-1] - 1) ** 2 * (1 + 10 * np.sin(math.pi * w[:-1] + 1) ** 2)).sum()
    last = (w[-1] - 1) ** 2 * (1 + math.sin(2 * math.pi * w[-1]) ** 2)
    return float(math.sin(math.pi * w[0]) ** 2 + middle + last)


def rosenbrock(x: np.ndarray) -> float:
    """Return Rosenbrock's function, whose minimum is 0 at 1."""
    return float((100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum())


def training(x: Point) -> float:
    """Return what stands for the loss of a trained model; its minimum is 0."""
    rate = math.log10(x["rate"]) + {"sgd": 1.5, "adam": 3.0, "rms": 3.4}[x["optimizer"]]
    size = math.log2(x["width"]) * x["layers"] / 24 - 1
    base = {"sgd": 0.3, "adam": 0.0, "rms": 0.1}[x["optimizer"]]
    return base + 0.4 * rate**2 + size**2 + 0.05 * (x["layers"] - 3) ** 2 + (0.0 if x["warm"] else 0.1 + 0.1 * rate**2)


def switch(x: Point) -> float:
    """Return one of three functions of two inputs; the minimum is -1.031628, of the camel."""
    a, b = x["a"], x["b"]
    if x["kind"] == "branin":
        return branin(7.5 * a + 2.5, 7.5 * b + 7.5) / 50
    return camel(2 * a, b) if x["kind"] == "camel" else rosenbrock(np.array([2 * a, 2 * b])) / 300


def rounded_ackley(x: Point) -> float:
    """Return Ackley's function of four integers and four real numbers; its minimum is 0."""
    return ackley(np.array([x[f"n{k}"] for k in range(4)] + [x[f"x{k}"] for k in range(4)], dtype=float))


_TRAINING = {
    "layers": (1, 8),
    "width": (8, 1024, "log"),
    "rate": (1e-5, 1.0, "log"),
    "optimizer": ["sgd", "adam", "rms"],
    "warm": [False, True],
}
PROBLEMS = {
    "Branin": Problem({"a": (-5.0, 10.0), "b": (0.0, 15.0)}, lambda x: branin(x["a"], x["b"]), 0.39788735772973816, 40),
    "Camel": Problem({"a": (-3.0, 3.0), "b": (-2.0, 2.0)}, lambda x: camel(x["a"], x["b"]), -1.0316284534898772, 40),
    "Hartmann-3": Problem(*reals(3, 0.0, 1.0, hartmann3), -3.8627797869493365, 40),
    "Rosenbrock-4": Problem(*reals(4, -2.0, 2.0, rosenbrock), 0.0, 60),
    "Styblinski-5": Problem(
        *reals(5, -5.0, 5.0, lambda x: 0.5 * (x**4 - 16 * x**2 + 5 * x).sum()), 5 * -39.16616570377142, 60
    ),
    "Hartmann-6": Problem(*reals(6, 0.0, 1.0, hartmann), -3.322368011415515, 80),
    "Levy-8": Problem(*reals(8, -10.0, 10.0, levy), 0.0, 80),
    "Ackley-10": Problem(*reals(10, -5.0, 10.0, ackley), 0.0, 80),
    "Ackley-20": Problem(*reals(20, -5.0, 10.0, ackley), 0.0, 100),
    "Switch (mixed)": Problem(
        {"kind": ["branin", "camel", "rosenbrock"], "a": (-1.0, 1.0), "b": (-1.0, 1.0)}, switch, -1.0316284534898772, 50
    ),
    "Training (mixed)": Problem(_TRAINING, training, 0.0, 60),
    "Ackley-8 (mixed)": Problem(
        {f"n{k}": (-5, 10) for k in range(4)} | {f"x{k}": (-5.0, 10.0) for k in range(4)}, rounded_ackley, 0.0, 80
    ),
}

# Methods: each a generator that yields points and is sent their values -----------------------------------------------

Loop = Iterator[Any]


def by_search(bounds: dict[str, Any], first: int, seed: int) -> Any:
    """Use `gigagp.search`."""
    search = Search(bounds, n_initial=first, random_state=seed)
    while True:
        (x,) = search.ask()
        search.tell(x, (yield x))


def by_optuna(bounds: dict[str, Any], first: int, seed: int, *, sampler: str) -> Any:
    """Use one of Optuna's samplers."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if sampler == "GPSampler":
        chosen: Any = optuna.samplers.GPSampler(seed=seed, n_startup_trials=first)
    else:
        chosen = optuna.samplers.TPESampler(seed=seed, n_startup_trials=first)
    study = optuna.create_study(sampler=chosen)
    while True:
        trial = study.ask()
        x = {name: suggested(trial, name, one) for name, one in bounds.items()}
        study.tell(trial, (yield x))


def suggested(trial: Any, name: str, one: Any) -> Any:
    """Return what a trial of Optuna suggests for an input."""
    if isinstance(one, list):
        return trial.suggest_categorical(name, one)
    suggest = trial.suggest_int if isinstance(one[0], int) else trial.suggest_float
    return suggest(name, one[0], one[1], log=len(one) == 3)


def by_skopt(bounds: dict[str, Any], first: int, seed: int) -> Any:
    """Use scikit-optimize's Gaussian process with its default acquisition."""
    from skopt import Optimizer
    from skopt.space import Categorical, Integer, Real

    inputs: list[Any] = []
    for one in bounds.values():
        if isinstance(one, list):
            inputs.append(Categorical(one))
        else:
            kind = Integer if isinstance(one[0], int) else Real
            inputs.append(kind(one[0], one[1], prior="log-uniform" if len(one) == 3 else "uniform"))
    optimizer = Optimizer(inputs, "GP", n_initial_points=first, random_state=seed)
    while True:
        row = optimizer.ask()
        x = {name: one.item() if hasattr(one, "item") else one for name, one in zip(bounds, row, strict=True)}
        optimizer.tell(row, (yield x))


def by_botorch(bounds: dict[str, Any], first: int, seed: int) -> Any:
    """Use BoTorch's qLogNEI; numbers are in [0, 1] or integers from 0, categories are numbered."""
    from botorch.acquisition import qLogNoisyExpectedImprovement
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import MixedSingleTaskGP, SingleTaskGP
    from botorch.models.transforms import Normalize
    from botorch.optim import optimize_acqf
    from botorch.optim.optimize_mixed import optimize_acqf_mixed_alternating
    from gpytorch.mlls import ExactMarginalLogLikelihood

    torch.manual_seed(seed)
    ends, integers, categories = [], {}, {}
    for k, one in enumerate(bounds.values()):
        if isinstance(one, list):
            categories[k], top = list(range(len(one))), len(one) - 1.0
        elif isinstance(one[0], int) and len(one) == 2:
            integers[k], top = list(range(one[1] - one[0] + 1)), float(one[1] - one[0])
        else:
            top = 1.0
        ends.append(top)
    box = torch.tensor([[0.0] * len(ends), ends], dtype=torch.float64)

    def point_of(row: list[float]) -> Point:
        found: Point = {}
        for (name, one), value in zip(bounds.items(), row, strict=True):
            if isinstance(one, list):
                found[name] = one[round(value)]
            elif isinstance(one[0], int) and len(one) == 2:
                found[name] = one[0] + round(value)
            elif len(one) == 3:
                number = one[0] * math.exp(value * math.log(one[1] / one[0]))
                found[name] = round(number) if isinstance(one[0], int) else number
            else:
                found[name] = one[0] + value * (one[1] - one[0])
        return found

    X = torch.quasirandom.SobolEngine(len(ends), scramble=True, seed=seed).draw(first, dtype=torch.float64)
    X = X * (box[1] - box[0])
    discrete = list(integers) + list(categories)
    X[:, discrete] = X[:, discrete].round()
    y = torch.zeros(0, 1, dtype=torch.float64)
    for row in X:
        y = torch.cat([y, torch.tensor([[-(yield point_of(row.tolist()))]], dtype=torch.float64)])
    while True:
        if categories:
            model: Any = MixedSingleTaskGP(X, y, cat_dims=list(categories))
        else:
            model = SingleTaskGP(X, y, input_transform=Normalize(len(ends), bounds=box))
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        acquisition = qLogNoisyExpectedImprovement(model, X, prune_baseline=True)
        if discrete:
            new, _ = optimize_acqf_mixed_alternating(
                acquisition, box, discrete_dims=integers, cat_dims=categories, q=1, num_restarts=10, raw_samples=256
            )
        else:
            new, _ = optimize_acqf(acquisition, box, q=1, num_restarts=10, raw_samples=256)
        X = torch.cat([X, new.detach()])
        y = torch.cat([y, torch.tensor([[-(yield point_of(new[0].tolist()))]], dtype=torch.float64)])


METHODS: dict[str, Callable[..., Any]] = {
    "gigagp": by_search,
    "Optuna GP": lambda *given: by_optuna(*given, sampler="GPSampler"),
    "Optuna TPE": lambda *given: by_optuna(*given, sampler="TPESampler"),
    "scikit-optimize": by_skopt,
    "BoTorch qLogNEI": by_botorch,
}


def run(name: str, method: str, seed: int, most: int = 10**6) -> dict[str, Any]:
    """Return the regret after each trial of one run, with three digits, and its CPU seconds a trial."""
    problem = PROBLEMS[name]
    values: list[float] = []
    seconds, began = 0.0, time.process_time()
    loop = METHODS[method](problem.bounds, 2 * (len(problem.bounds) + 1), seed)
    x = next(loop)
    trials = min(problem.trials, most)
    for trial in range(trials):
        seconds += time.process_time() - began
        values.append(problem.function(x))
        began = time.process_time()
        if trial < trials - 1:
            x = loop.send(values[-1])
    regret = [float(f"{one:.3g}") for one in np.minimum.accumulate(values) - problem.minimum]
    return {"function": name, "method": method, "seed": seed, "cpu_s": seconds / trials, "regret": regret}


def summaries(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each function and method the median and the worst regret at the end, and the CPU seconds a trial."""
    found = []
    for name in PROBLEMS:
        for method in METHODS:
            some = [one for one in runs if (one["function"], one["method"]) == (name, method)]
            if some:
                ends = [one["regret"][-1] for one in some]
                one: dict[str, Any] = {"function": name, "method": method, "seeds": len(some)}
                one |= {"median": statistics.median(ends), "worst": max(ends)}
                found.append(one | {"cpu_s": statistics.fmean(one["cpu_s"] for one in some)})
    return found


def table(record: dict[str, Any]) -> str:
    """Return the table of docs/botorch.md: medians, seeds and CPU seconds, for methods that have run."""
    cells = {(one["function"], one["method"]): one for one in record["summary"]}
    lines = ["| | " + " | ".join(METHODS) + " |", "|---" * (len(METHODS) + 1) + "|"]
    for name in PROBLEMS:
        found = [cells.get((name, method)) for method in METHODS]
        shown = ["" if one is None else f"{one['median']:.1e} ({one['seeds']}; {one['cpu_s']:.3f} s)" for one in found]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def figure(record: dict[str, Any], out: Path) -> None:
    """Draw medians and quartiles of the regret by the number of trials."""
    from gigagp.storage.figures import CYCLE, new_figure, save_figure, style

    names = [name for name in PROBLEMS if any(one["function"] == name for one in record["runs"])]
    with style():
        rows = math.ceil(len(names) / 3)
        drawn = new_figure(10, 2.8 * rows)
        for number, name in enumerate(names):
            axes = drawn.add_subplot(rows, 3, number + 1)
            for method, colour in zip(METHODS, CYCLE, strict=False):
                some = [one for one in record["runs"] if (one["function"], one["method"]) == (name, method)]
                if some:
                    table = np.maximum([one["regret"] for one in some], 1e-8)
                    lower, middle, upper = np.quantile(table, [0.25, 0.5, 0.75], axis=0)
                    trials = np.arange(1, table.shape[1] + 1)
                    seconds = statistics.fmean(one["cpu_s"] for one in some)
                    words = f"{method}, {len(some)} seed{'s' * (len(some) > 1)}, {seconds:.3f} CPU s a trial"
                    axes.plot(trials, middle, color=colour, label=words)
                    axes.fill_between(trials, lower, upper, color=colour, alpha=0.15, linewidth=0)
            axes.set(title=name, yscale="log", xlabel="trials", ylabel="regret")
            axes.legend(fontsize=6)
    save_figure(drawn, out)


def main() -> None:
    """Run what the file does not have yet, or draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("run", "figure", "table"))
    parser.add_argument("--json", type=Path, default=Path("search_regret.json"))
    parser.add_argument("--out", type=Path, default=Path("docs/figures/search_regret.png"))
    parser.add_argument("--functions", nargs="+", choices=tuple(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=10**6, help="at most")
    options = parser.parse_args()
    record: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {"runs": []}
    if options.part == "figure":
        figure(record, options.out)
        return
    if options.part == "table":
        print(table(record))
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    absent = set()
    for seed in range(options.seeds):
        for name in options.functions:
            for method in options.methods:
                done = {(one["function"], one["method"], one["seed"]) for one in record["runs"]}
                if method in absent or (name, method, seed) in done:
                    continue
                try:
                    found = run(name, method, seed, options.trials)
                except ImportError as error:
                    print(f"{method} is left out: {error}")
                    absent.add(method)
                    continue
                print(
                    f"{name:17s} {method:16s} {seed:2d} {found['regret'][-1]:9.2e} {found['cpu_s']:7.3f} s", flush=True
                )
                record["runs"].append({**found, "commit": commit()})
                record["summary"] = summaries(record["runs"])
                with replacing(options.json) as file:
                    file.write(json.dumps(record).encode())


if __name__ == "__main__":
    main()
