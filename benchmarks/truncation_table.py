"""Compare Cholesky, CG, RR-CG, RFF and SS-RFF as in Potapczynski et al. 2021: learned values and their cost.

    python benchmarks/truncation_table.py --data ../shared/data --tables pol --rows 500 --steps 20      # a quick trial
    python benchmarks/truncation_table.py --tables pol elevators bike --seeds 0 1 2 --json truncation.json # Table S1
    python benchmarks/truncation_table.py --tables pol --rows 2000 --steps 200 --iterations 20 --curves 20 --plots plots
    python benchmarks/truncation_table.py --tables pol --methods --plots plots              # figures 1 and 2 alone

All methods predict in the same way with what they have learned: exactly up to ``--exact-rows`` rows, and otherwise by
CG to 1e-4. "loss" is the exact negative log marginal likelihood per row at the end of learning (an estimate for larger
tables), and "gap" its distance from that of Cholesky. "log l/l_chol" is the median log ratio of the lengthscales to
Cholesky's, and "time" the learning time relative to that of CG. The JSON file is written after every row, and
``--resume`` reuses its rows.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from tables import read_shuffled

from gigagp import GPRegressor, __version__, gradients, inference, kernels, optimization, solvers
from gigagp.errors import SolverWarning
from gigagp.metrics import gaussian_nll, rmse
from gigagp.truncation import ExponentialDecay, OneOverJ, SingleSample

METHODS = ("cholesky", "cg", "rr-cg", "rff", "ss-rff")
#: Numbers of Adam steps in the paper for CG, RR-CG and Cholesky.
PAPER_STEPS = {"pol": 1500, "elevators": 1500, "bike": 1500, "kin40k": 800, "protein": 800, "keggdirected": 800}
FEATURE_STEPS = 500
#: Rate of the paper's law, exp(-0.05 J), and its mean length above the minimum.
RATE, OFFSET = 0.05, 20
#: GPyTorch's initial value, softplus(0).
START = math.log(2)


@dataclass(frozen=True)
class SteppedAdam(optimization.Adam):
    """Adam whose learning rate falls by a factor at given shares of its steps (PyTorch's MultiStepLR)."""

    milestones: tuple[float, ...] = (0.5, 0.7, 0.9)
    factor: float = 0.1

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 1."""
        passed = (step - 1) / self.steps
        return self.learning_rate * self.factor ** sum(passed >= milestone for milestone in self.milestones)


@dataclass(frozen=True)
class Setting:
    """The settings of one run."""

    method: str
    table: str
    seed: int
    n_rows: int
    steps: int
    learning_rate: float
    iterations: int
    frequencies: int
    step: int
    probes: int
    rank: int
    dtype: str

    def law(self) -> ExponentialDecay | OneOverJ:
        """Return the law of the random length, in iterations or frequencies."""
        if self.method == "rr-cg":
            return ExponentialDecay(RATE, minimum=max(self.iterations - OFFSET, 1))
        # The paper starts with 500 features and has a mean of 700; the largest length is the exact likelihood.
        base = round(5 / 7 * self.frequencies)
        return OneOverJ(base=base, maximum=min(3 * base, self.n_rows // 2), step=self.step)

    def optimizer(self) -> SteppedAdam:
        """Return the paper's schedule."""
        if "rff" not in self.method:
            return SteppedAdam(self.learning_rate, self.steps)
        slower = 0.5 if self.table == "keggdirected" else 1.0
        return SteppedAdam(self.learning_rate * slower, self.steps, milestones=(0.85, 0.9, 0.95), factor=0.5)

    def inference(self) -> inference.Exact | inference.Iterative | inference.RandomFeatures:
        """Return the paper's configuration."""
        if self.method == "cholesky":
            return inference.Exact()
        if self.method == "rff":
            return inference.RandomFeatures(2 * self.frequencies, redraw=True)
        if self.method == "ss-rff":
            return inference.RandomFeatures(truncation=SingleSample(self.law()), redraw=True, prediction="features")
        shared = {"preconditioner": solvers.PivotedCholesky(rank=self.rank) if self.rank else None}
        if self.method == "cg":
            solver = solvers.ConjugateGradients(tolerance=1e-8, max_epochs=self.iterations, **shared)
        else:
            solver = solvers.ConjugateGradients(truncation=self.law(), **shared)
        return inference.Iterative(
            solver, gradients.Hutchinson(self.probes, law="rademacher"), warm_start=False, n_samples=1
        )


def model_settings(dtype: str) -> dict:
    """Return the settings that all methods share."""
    return {
        "kernel": kernels.RBF(lengthscale=START, variance=START),
        "noise_variance": START,
        "mean": "constant",
        "standardize": False,
        "dtype": dtype,
    }


def judge(parameters: dict, data: tuple[np.ndarray, ...], exact_rows: int) -> dict:
    """Return the loss at given hyperparameters and test scores, in the same way for all methods."""
    X, y, X_test, y_test = data
    exact = len(y) <= exact_rows
    method = inference.Exact() if exact else inference.Iterative(final_tolerance=1e-4, n_samples=256)
    kernel = kernels.RBF(parameters["lengthscale"], parameters["variance"])
    gp = GPRegressor(
        kernel, method, None, noise_variance=parameters["noise_variance"], mean="constant", standardize=False
    )
    gp.fit(X, y)
    mean, std = gp.predict(X_test, return_std=True, include_noise=True)
    value = gp.log_marginal_likelihood()
    return {
        "rmse": rmse(y_test, mean),
        "nll": gaussian_nll(y_test, mean, std),
        "loss": -value.value / len(y),
        "loss_error": value.standard_error / len(y),
    }


def loss_curve(history: dict, n_points: int, data: tuple[np.ndarray, ...], exact_rows: int) -> list[list[float]]:
    """Return [step, exact loss] at ``n_points`` steps of a fit."""
    count = len(history["stage"])
    chosen = sorted({round(place) for place in np.linspace(0, count - 1, n_points)}) if n_points else []
    few = (*data[:2], data[2][:2], data[3][:2])
    return [[step, judge(history["hyperparameters"][step], few, exact_rows)["loss"]] for step in chosen]


def run(setting: Setting, data: tuple[np.ndarray, ...], exact_rows: int, curves: int, verbose: int) -> dict:
    """Learn, evaluate, and return scores and costs."""
    gp = GPRegressor(
        inference=setting.inference(),
        optimizer=setting.optimizer(),
        random_state=setting.seed,
        verbose=verbose,
        **model_settings(setting.dtype),
    )
    started, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolverWarning)  # early stopping is the subject of this benchmark
        gp.fit(*data[:2])
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    parameters = {name: value.tolist() for name, value in gp.posterior_.model.parameters().items()}
    history = gp.history_.to_dict()
    return {
        **vars(setting),
        **judge(parameters, data, exact_rows),
        "expected_length": setting.law().bounded(len(data[1])).mean if setting.method in ("rr-cg", "ss-rff") else None,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "epochs": float(gp.history_.epochs),
        "parameters": parameters,
        "curve": loss_curve(history, curves, data, exact_rows),
    }


def show(result: dict, known: list[dict]) -> None:
    """Print one row, relative to the known rows of the same table and seed."""
    beside = {row["method"]: row for row in known if (row["table"], row["seed"]) == (result["table"], result["seed"])}
    exact, cg = beside.get("cholesky"), beside.get("cg")
    gap = "" if exact is None else f"{result['loss'] - exact['loss']:.5f}"
    ratio = "" if cg is None else f"{result['seconds'] / cg['seconds']:.2f}"
    lengthscales = np.log(np.asarray(result["parameters"]["lengthscale"]))
    away = ""
    if exact is not None:
        away = f"{float(np.median(lengthscales - np.log(np.asarray(exact['parameters']['lengthscale'])))):.3f}"
    print(
        f"{result['table']:13s} {result['seed']:4d} {result['method']:9s} {result['rmse']:8.4f} {result['nll']:8.4f} "
        f"{result['loss']:9.5f} {gap:>9s} {away:>12s} {result['seconds']:8.1f} {ratio:>6s} {result['epochs']:9.0f}",
        flush=True,
    )


def main() -> None:
    """Run the requested methods, print the table, write the JSON and draw the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tables", nargs="+", default=["pol"], choices=sorted(PAPER_STEPS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="seeds of the split and of all randomness")
    parser.add_argument("--rows", type=int, default=None, help="number of training rows (default: all)")
    parser.add_argument(
        "--steps", type=int, default=None, help="number of steps of Adam; default: the paper's (features: 500)"
    )
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--iterations", type=int, default=100, help="iterations of CG, and expected ones of RR-CG")
    parser.add_argument(
        "--frequencies", type=int, default=None, help="frequencies of RFF, approximate mean for SS-RFF; default: 700"
    )
    parser.add_argument("--feature-step", type=int, default=100, help="step of SS-RFF, in frequencies")
    parser.add_argument("--probes", type=int, default=10)
    parser.add_argument("--rank", type=int, default=5, help="rank of the preconditioner; 0: none")
    parser.add_argument("--dtype", default="float64", choices=["float64", "float32"])
    parser.add_argument(
        "--exact-rows", type=int, default=12_000, help="largest number of rows for exact losses and predictions"
    )
    parser.add_argument(
        "--curves", type=int, default=0, help="number of steps of each fit at which to compute exact losses"
    )
    parser.add_argument("--plots", type=Path, default=None, help="folder of the figures; figures 1 and 2 take minutes")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--resume", action="store_true", help="reuse the rows that are already in the JSON file")
    parser.add_argument("--verbose", type=int, default=0)
    arguments = parser.parse_args()

    print(f"gigagp {__version__}; {vars(arguments)}", flush=True)
    print(
        f"{'table':13s} {'seed':>4s} {'method':9s} {'RMSE':>8s} {'NLL':>8s} {'loss':>9s} {'gap':>9s} "
        f"{'log l/l_chol':>12s} {'seconds':>8s} {'time':>6s} {'epochs':>9s}",
        flush=True,
    )
    results: list[dict] = []
    earlier: list[dict] = []
    if arguments.resume and arguments.json is not None and arguments.json.exists():
        earlier = json.loads(arguments.json.read_text())["rows"]
    for table in arguments.tables:
        for seed in arguments.seeds:
            data = read_shuffled(arguments.data, table, seed, arguments.rows)
            n = len(data[1])
            # A few hundred rows cannot use 700 frequencies, which would give more columns than rows.
            frequencies = arguments.frequencies or min(700, max(n // 5, 2))
            for method in arguments.methods:
                steps = FEATURE_STEPS if "rff" in method else PAPER_STEPS[table]
                setting = Setting(
                    method,
                    table,
                    seed,
                    n,
                    arguments.steps or steps,
                    arguments.learning_rate,
                    arguments.iterations,
                    frequencies,
                    min(arguments.feature_step, max(frequencies // 7, 1)),
                    arguments.probes,
                    arguments.rank,
                    arguments.dtype,
                )
                if method == "cholesky" and n > arguments.exact_rows:
                    continue
                found = [row for row in earlier if all(row[name] == value for name, value in vars(setting).items())]
                result = (
                    found[0] if found else run(setting, data, arguments.exact_rows, arguments.curves, arguments.verbose)
                )
                results.append(result)
                show(result, results)
                if arguments.json is not None:
                    settings = {name: str(value) for name, value in vars(arguments).items()}
                    arguments.json.write_text(json.dumps({"settings": settings, "rows": results}, indent=1))
    if arguments.plots is not None:
        import truncation_figures

        arguments.plots.mkdir(parents=True, exist_ok=True)
        truncation_figures.draw_all(arguments.plots, results, arguments.data, arguments.tables[0])


if __name__ == "__main__":
    main()
