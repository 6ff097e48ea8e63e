"""Bayesian optimization: regret by the number of observations, beside BoTorch's SingleTaskGP, and with 20,000 of them.

    python benchmarks/regret.py curves --json benchmarks/results/regret.json
    python benchmarks/regret.py large --json benchmarks/results/regret.json
    python benchmarks/regret.py figure --json benchmarks/results/regret.json --out docs/figures/regret.png

``curves`` maximizes Branin, Hartmann-6 and Ackley-20 (``botorch.test_functions``, negated, without noise). All models
get the same scrambled Sobol points first, then batches of four from qLogEI with 64 Sobol samples, two starts of 32 raw
points and at most 20 iterations of L-BFGS-B; hyperparameters are learned again at every step. A run is added to the
file as soon as it is done, and runs that are in the file are not repeated. ``large`` has 20,000 Sobol observations
with noise to begin with. Its hyperparameters are learned once, and each step adds its four observations to the fit.
Times are CPU seconds of one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from botorch.test_functions import Ackley, Branin, Hartmann
from checkout import commit
from gpytorch.mlls import ExactMarginalLogLikelihood

from gigagp import GPRegressor, inference, kernels
from gigagp.botorch import GigaModel

#: Functions to maximize, with the number of first points.
FUNCTIONS: dict[str, tuple[Any, int]] = {
    "Branin": (Branin, 8),
    "Hartmann-6": (lambda **options: Hartmann(6, **options), 16),
    "Ackley-20": (lambda **options: Ackley(20, **options), 40),
}
MODELS = ("SingleTaskGP", "GigaModel")
BATCH, SAMPLES, STARTS, RAW, ITERATIONS = 4, 64, 2, 32, 20


def unit_function(name: str) -> Any:
    """Return the negated function on the unit cube, with its number of inputs and its largest value."""
    function = FUNCTIONS[name][0](negate=True).double()
    lower, upper = function.bounds.double()

    def evaluate(X: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = function(lower + (upper - lower) * X)
        return found

    return evaluate, function.dim, float(function.optimal_value)


def model_of(name: str, X: torch.Tensor, y: torch.Tensor) -> Any:
    """Return a fitted model with an RBF kernel and a lengthscale for each input."""
    if name == "SingleTaskGP":  # its defaults: RBF, standardized outcomes, priors scaled by the number of inputs
        model = SingleTaskGP(X, y[:, None])
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return model
    return GigaModel(GPRegressor(kernels.RBF(), inference.Exact()).fit(X.numpy(), y.numpy()))


def suggest(model: Any, best: torch.Tensor, n_inputs: int, seed: int) -> torch.Tensor:
    """Return a batch of points that maximizes qLogEI."""
    sampler = SobolQMCNormalSampler(torch.Size([SAMPLES]), seed=seed)
    acquisition = qLogExpectedImprovement(model, best_f=best, sampler=sampler)
    bounds = torch.stack([torch.zeros(n_inputs), torch.ones(n_inputs)]).double()
    options = {"maxiter": ITERATIONS, "seed": seed}
    found = optimize_acqf(acquisition, bounds, q=BATCH, num_restarts=STARTS, raw_samples=RAW, options=options)
    points: torch.Tensor = found[0].detach().clamp(0.0, 1.0)
    return points


def curve(name: str, model: str, seed: int, observations: int) -> dict[str, Any]:
    """Return the regret after each batch of one run, and its CPU seconds."""
    torch.manual_seed(seed)
    function, d, largest = unit_function(name)
    X = torch.quasirandom.SobolEngine(d, scramble=True, seed=seed).draw(FUNCTIONS[name][1], dtype=torch.float64)
    y = function(X)
    regret, seconds = [largest - float(y.max())], {"fit": 0.0, "suggest": 0.0}
    while len(X) < observations:
        began = time.process_time()
        fitted = model_of(model, X, y)
        learned = time.process_time()
        points = suggest(fitted, y.max(), d, seed + len(X))
        seconds["fit"] += learned - began
        seconds["suggest"] += time.process_time() - learned
        X, y = torch.cat([X, points]), torch.cat([y, function(points)])
        regret.append(largest - float(y.max()))
    cpu = {f"{part}_cpu_s": total / max(1, len(regret) - 1) for part, total in seconds.items()}  # of a step
    return {"function": name, "model": model, "seed": seed, "first": FUNCTIONS[name][1], "regret": regret, **cpu}


def curves(path: Path, seeds: int, observations: int, names: list[str]) -> None:
    """Run what the file does not have yet."""
    for seed in range(seeds):
        for name in names:
            for model in MODELS:
                record = read(path)
                done = {(one["function"], one["model"], one["seed"]) for one in record["curves"]}
                if (name, model, seed) in done:
                    continue
                found = curve(name, model, seed, observations)
                print(f"{name:11s} {model:13s} seed {seed}: regret {found['regret'][-1]:.2e}, ", end="")
                print(f"fit {found['fit_cpu_s']:.2f} s, suggest {found['suggest_cpu_s']:.2f} s", flush=True)
                record = read(path)
                record["curves"].append({**found, "commit": commit()})
                write(path, record)


def summaries(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return medians and quartiles of the regret at 60, 100 and 200 observations, and CPU seconds of a step."""
    found = []
    for name in FUNCTIONS:
        for model in MODELS:
            runs = [one for one in record["curves"] if (one["function"], one["model"]) == (name, model)]
            if not runs:
                continue
            one: dict[str, Any] = {"function": name, "model": model, "seeds": len(runs)}
            for observations in (60, 100, 200):
                place = (observations - runs[0]["first"]) // BATCH
                if place >= min(len(run["regret"]) for run in runs):
                    continue
                values = sorted(run["regret"][place] for run in runs)
                quarters = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
                one[f"at_{observations}"] = dict(zip(("lower", "median", "upper"), quarters, strict=True))
            for part in ("fit_cpu_s", "suggest_cpu_s"):
                one[part] = statistics.fmean(run[part] for run in runs if run.get("commit") == runs[-1].get("commit"))
            found.append(one)
    return found


def large(path: Path, name: str, rows: int, steps: int, seed: int) -> None:
    """Run the loop with many observations from the start."""
    torch.manual_seed(seed)
    function, d, largest = unit_function(name)
    X = torch.quasirandom.SobolEngine(d, scramble=True, seed=seed).draw(rows, dtype=torch.float64)
    noise = 0.01 * float(function(X).std())

    def measure(points: torch.Tensor) -> torch.Tensor:
        return function(points) + noise * torch.randn(len(points), dtype=torch.float64)

    y = measure(X)
    began, wall = time.process_time(), time.perf_counter()
    gp = GPRegressor(kernels.Matern(2.5), inference.Vecchia()).fit(X.numpy(), y.numpy())
    fit = time.process_time() - began
    regret, parts = [largest - float(function(X).max())], []
    for step in range(steps):
        start = time.process_time()
        points = suggest(GigaModel(gp), y.max(), d, seed + step)
        suggested = time.process_time()
        values = measure(points)
        gp.partial_fit(points.numpy(), values.numpy())
        y = torch.cat([y, values])
        parts.append((suggested - start, time.process_time() - suggested))
        regret.append(min(regret[-1], largest - float(function(points).max())))
        print(f"step {step}: regret {regret[-1]:.3f}, {parts[-1][0]:.2f} s + {parts[-1][1]:.2f} s", flush=True)
    record = read(path)
    found = {"function": name, "rows": rows, "steps": steps, "batch": BATCH, "regret": regret, "fit_cpu_s": fit}
    found |= {"suggest_cpu_s": statistics.fmean(one for one, _ in parts)}
    found |= {"add_cpu_s": statistics.fmean(one for _, one in parts), "wall_s": time.perf_counter() - wall}
    found |= {"step_cpu_s": found["suggest_cpu_s"] + found["add_cpu_s"]}
    record["large"] = [one for one in record["large"] if one["function"] != name] + [found]
    write(path, record)


def figure(path: Path, out: Path) -> None:
    """Draw medians and quartiles of the regret."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    record = read(path)
    drawn = Figure(figsize=(10, 3.2), layout="constrained")
    FigureCanvasAgg(drawn)
    for axes, name in zip(drawn.subplots(1, len(FUNCTIONS)), FUNCTIONS, strict=True):
        for model, colour in zip(MODELS, ("tab:orange", "tab:blue"), strict=True):
            runs = [one for one in record["curves"] if (one["function"], one["model"]) == (name, model)]
            if not runs:
                continue
            table = torch.tensor([one["regret"] for one in runs], dtype=torch.float64).clamp_min(1e-9)
            at = [runs[0]["first"] + BATCH * place for place in range(table.shape[1])]
            lower, middle, upper = table.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64), dim=0)
            axes.plot(at, middle, color=colour, label=model)
            axes.fill_between(at, lower, upper, color=colour, alpha=0.2, linewidth=0)
        axes.set(title=f"{name}, {len(runs)} seeds", xlabel="observations", yscale="log")
    drawn.axes[0].set_ylabel("regret: median and quartiles")
    drawn.axes[0].legend()
    out.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(out, dpi=110)


def read(path: Path) -> dict[str, Any]:
    """Return the record so far."""
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    return {"curves": [], "large": []}


def write(path: Path, record: dict[str, Any]) -> None:
    """Write the record with its summary and the commit."""
    settings = {"batch": BATCH, "samples": SAMPLES, "starts": STARTS, "raw": RAW, "iterations": ITERATIONS}
    record = {**record, "commit": commit(), "settings": settings, "summary": summaries(record)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".part").write_text(json.dumps(record, indent=1), encoding="utf-8")
    path.with_suffix(".part").replace(path)


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("curves", "large", "figure"))
    parser.add_argument("--json", type=Path, default=Path("regret.json"))
    parser.add_argument("--out", type=Path, default=Path("regret.png"))
    parser.add_argument("--functions", nargs="+", choices=tuple(FUNCTIONS), default=list(FUNCTIONS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--observations", type=int, default=200)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.part == "curves":
        curves(options.json, options.seeds, options.observations, options.functions)
    elif options.part == "large":
        for name in options.functions:
            large(options.json, name, options.rows, options.steps, seed=0)
    else:
        figure(options.json, options.out)
    print(json.dumps(summaries(read(options.json)), indent=1))


if __name__ == "__main__":
    main()
