"""Compare the methods of Potapczynski et al. 2021 as in its Tables S1 and S2: learned values, scores and cost.

    python benchmarks/truncation_table.py --tables pol --rows 500 --steps 20 --data ../shared/data   # a quick trial
    python benchmarks/truncation_table.py --tables pol elevators bike --seeds 0 1 2 --json out.json --resume # Table S1
    python benchmarks/truncation_table.py --tables pol --rows 2000 --steps 200 --iterations 20 --curves 20 --plots plots
    python benchmarks/truncation_table.py --tables pol --methods --plots plots              # figures 1 and 2 alone

Methods: exact learning (cholesky), CG and its randomly truncated form (rr-cg), random features and theirs (rff,
ss-rff), gradients from small minibatches (sggp), inducing points (svgp) and a product of experts (poe). The last two
predict with their own models. The others learn hyperparameters of one exact model, and all predict in the same way:
exactly up to ``--exact-rows`` rows, and otherwise by CG to 1e-4 with variances from 256 samples and nearest neighbours.
"loss" is the exact negative log marginal likelihood per row at the end of learning (an estimate for larger tables), and
"gap" its distance from that of Cholesky. "log l/l_chol" is the median log ratio of the lengthscales to Cholesky's, and
"time" the learning time relative to that of CG. The JSON file is written after every row; with ``--resume`` its rows
stay, and those with the same settings are not computed again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from earlier_run import earlier_rows
from splits import read_shuffled
from truncation_baselines import Minibatches, generalized_product, split_rows

from gigagp import GPRegressor, __version__, gradients, inference, kernels, optimization, solvers
from gigagp.errors import SolverWarning
from gigagp.estimators.metrics import gaussian_nll, rmse
from gigagp.solvers.truncation import ExponentialDecay, OneOverJ, SingleSample
from gigagp.storage.files import replacing

METHODS = ("cholesky", "cg", "rr-cg", "rff", "ss-rff", "sggp", "svgp", "poe")
#: Methods with a model of their own, which predict with it.
OWN_MODELS = ("poe", "svgp")
#: Numbers of Adam steps in the paper for CG, RR-CG and Cholesky.
PAPER_STEPS = {
    **dict.fromkeys(("pol", "elevators", "bike"), 1500),
    **dict.fromkeys(("kin40k", "protein", "keggdirected", "keggundirected"), 800),
}
#: Learning rates of random features in the paper, as shares of that of other tables.
FEATURE_RATES = {"keggdirected": 0.5, "keggundirected": 0.1}
FEATURE_STEPS, EPOCHS = 500, 300
#: Rows of a minibatch and of an expert, inducing points, and minibatches of a step of sgGP in the paper.
BATCH = 1024
#: Rate of the paper's law, exp(-0.05 J), and its mean length above the minimum.
RATE, OFFSET = 0.05, 20
#: Predictions of tables that are too large for exact ones.
PREDICTION = inference.Iterative(final_tolerance=1e-4, n_samples=256)
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
    batch: int = BATCH

    @classmethod
    def of(cls, method: str, table: str, seed: int, n_rows: int, options: argparse.Namespace) -> Setting:
        """Return the settings of a method for a table: the options, and the paper's where these are None."""
        epochs = EPOCHS * -(-n_rows // options.batch)
        steps = {"rff": FEATURE_STEPS, "ss-rff": FEATURE_STEPS, "svgp": epochs, "sggp": epochs}
        # A few hundred rows cannot use 700 frequencies, which would give more columns than rows.
        frequencies = options.frequencies or min(700, max(n_rows // 5, 2))
        return cls(
            method,
            table,
            seed,
            n_rows,
            options.steps or steps.get(method, PAPER_STEPS.get(table, 1500)),
            options.learning_rate,
            options.iterations,
            frequencies,
            min(options.feature_step, max(frequencies // 7, 1)),
            options.probes,
            options.rank,
            options.dtype,
            options.batch,
        )

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
        slower = FEATURE_RATES.get(self.table, 1.0)
        return SteppedAdam(self.learning_rate * slower, self.steps, milestones=(0.85, 0.9, 0.95), factor=0.5)

    def inference(self) -> inference.Inference:
        """Return the paper's configuration; for a product, that of an expert."""
        if self.method in ("cholesky", "poe"):
            return inference.Exact()
        if self.method == "svgp":
            return inference.SparseVariational(self.batch, batch_size=self.batch)
        if self.method == "sggp":
            return Minibatches(count=self.batch)
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


def at(parameters: dict, data: Sequence[np.ndarray], method: inference.Inference) -> GPRegressor:
    """Return a fit at given hyperparameters."""
    kernel = kernels.RBF(parameters["lengthscale"], parameters["variance"])
    noise = parameters["noise_variance"]
    gp = GPRegressor(kernel, method, None, noise_variance=noise, mean="constant", standardize=False)
    return gp.fit(*data[:2])


def judge(parameters: dict, data: Sequence[np.ndarray], exact_rows: int) -> dict:
    """Return the loss at given hyperparameters and test scores, in the same way for all methods.

    Beyond ``exact_rows``, 256 samples and nearest neighbours give the variances; ``truncation_predictions.py`` compares
    them with exact ones.
    """
    X_test, y_test = data[2:]
    exact = len(data[1]) <= exact_rows
    gp = at(parameters, data, inference.Exact() if exact else PREDICTION)
    mean, std = gp.predict(X_test, return_std=True, include_noise=True)
    value = gp.log_marginal_likelihood(standardized=True)
    return {
        "rmse": rmse(y_test, mean),
        "nll": gaussian_nll(y_test, mean, std),
        "loss": -value.value / len(data[1]),
        "loss_error": value.standard_error / len(data[1]),
    }


def loss_curve(history: dict, n_points: int, data: tuple[np.ndarray, ...], exact_rows: int) -> list[list[float]]:
    """Return [step, exact loss] at ``n_points`` steps of a fit."""
    count = len(history["stage"])
    chosen = sorted({round(place) for place in np.linspace(0, count - 1, n_points)}) if n_points else []
    few = (*data[:2], data[2][:2], data[3][:2])
    return [[step, judge(history["hyperparameters"][step], few, exact_rows)["loss"]] for step in chosen]


def learn(setting: Setting, data: Sequence[np.ndarray], verbose: int = 0) -> GPRegressor:
    """Return the fit of a method."""
    gp = GPRegressor(
        inference=setting.inference(),
        optimizer=setting.optimizer(),
        random_state=setting.seed,
        verbose=verbose,
        **model_settings(setting.dtype),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolverWarning)  # early stopping is the subject of this benchmark
        return gp.fit(*data[:2])


def run(setting: Setting, data: tuple[np.ndarray, ...], exact_rows: int, curves: int, verbose: int) -> dict:
    """Learn, evaluate, and return scores and costs."""
    X, y, X_test, y_test = data
    parts = split_rows(len(y), setting.batch, setting.seed) if setting.method == "poe" else [np.arange(len(y))]
    started, cpu = time.perf_counter(), time.process_time()
    fits = [learn(setting, (X[part], y[part]), verbose) for part in parts]
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    parameters = {name: value.tolist() for name, value in fits[0].posterior_.model.parameters().items()}
    curve: list[list[float]] = []
    if setting.method in OWN_MODELS:
        predicted = [gp.predict(X_test, return_std=True, include_noise=True) for gp in fits]
        means, deviations = (np.array([one[k] for one in predicted]) for k in (0, 1))
        mean, variance = generalized_product(means, deviations**2)
        scores = {"rmse": rmse(y_test, mean), "nll": gaussian_nll(y_test, mean, np.sqrt(variance)), "loss": None}
    else:
        scores = judge(parameters, data, exact_rows)
        curve = loss_curve(fits[0].history_.to_dict(), curves, data, exact_rows)
    return {
        **asdict(setting),
        "version": __version__,
        **scores,
        "predictions": "own model" if setting.method in OWN_MODELS else "exact" if len(y) <= exact_rows else "CG, 1e-4",
        "expected_length": setting.law().bounded(len(y)).mean if setting.method in ("rr-cg", "ss-rff") else None,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "epochs": float(sum(gp.history_.epochs for gp in fits)),
        "parameters": parameters,
        "curve": curve,
    }


def show(result: dict, known: list[dict]) -> None:
    """Print one row, relative to the known rows of the same table and seed."""
    beside = {row["method"]: row for row in known if (row["table"], row["seed"]) == (result["table"], result["seed"])}
    exact, cg = beside.get("cholesky"), beside.get("cg")
    loss = "" if result["loss"] is None else f"{result['loss']:.5f}"
    gap = "" if exact is None or not loss else f"{result['loss'] - exact['loss']:.5f}"
    ratio = "" if cg is None else f"{result['seconds'] / cg['seconds']:.2f}"
    lengthscales = np.log(np.asarray(result["parameters"]["lengthscale"]))
    away = ""
    if exact is not None:
        away = f"{float(np.median(lengthscales - np.log(np.asarray(exact['parameters']['lengthscale'])))):.3f}"
    print(
        f"{result['table']:13s} {result['seed']:4d} {result['method']:9s} {result['rmse']:8.4f} {result['nll']:8.4f} "
        f"{loss:>9s} {gap:>9s} {away:>12s} {result['seconds']:8.1f} {ratio:>6s} {result['epochs']:9.0f}",
        flush=True,
    )


def write(path: Path, settings: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Replace the JSON file: a run that is killed leaves the old or the new one."""
    with replacing(path) as file:
        file.write((json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n").encode())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the requested methods, print the table, write the JSON and draw the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tables", nargs="+", default=["pol"])
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
    parser.add_argument(
        "--batch",
        type=int,
        default=BATCH,
        help="rows of a minibatch and of an expert, inducing points, and minibatches of a step of sgGP",
    )
    parser.add_argument("--rank", type=int, default=5, help="rank of the preconditioner; 0: none")
    parser.add_argument("--dtype", default="float64", choices=["float64", "float32"])
    parser.add_argument(
        "--exact-rows", type=int, default=12_000, help="largest number of rows for exact losses and predictions"
    )
    parser.add_argument(
        "--curves", type=int, default=0, help="number of steps of each fit at which to compute exact losses"
    )
    parser.add_argument("--plots", type=Path, default=None, help="folder of the figures; figures 1 and 2 take minutes")
    parser.add_argument("--plot-rows", type=int, default=600, help="training rows of figure 1")
    parser.add_argument("--plot-draws", type=int, default=60, help="draws of figure 1")
    parser.add_argument("--plot-steps", type=int, default=300, help="steps of Adam in figure 2")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--resume", action="store_true", help="reuse the rows that are already in the JSON file")
    parser.add_argument("--verbose", type=int, default=0)
    options = parser.parse_args(arguments)
    kept = earlier_rows(parser, options)
    settings = {name: str(value) for name, value in vars(options).items()}
    print(f"gigagp {__version__}; {settings}", flush=True)
    print(
        f"{'table':13s} {'seed':>4s} {'method':9s} {'RMSE':>8s} {'NLL':>8s} {'loss':>9s} {'gap':>9s} "
        f"{'log l/l_chol':>12s} {'seconds':>8s} {'time':>6s} {'epochs':>9s}",
        flush=True,
    )
    results: list[dict] = []
    for table in options.tables:
        for seed in options.seeds:
            data = read_shuffled(options.data, table, seed, options.rows)
            for method in options.methods:
                setting = Setting.of(method, table, seed, len(data[1]), options)
                if method == "cholesky" and setting.n_rows > options.exact_rows:
                    continue
                wanted = asdict(setting)
                found = next((row for row in kept if all(row.get(name) == wanted[name] for name in wanted)), None)
                if found is None:
                    found = run(setting, data, options.exact_rows, options.curves, options.verbose)
                    kept.append(found)
                    if options.json is not None:
                        write(options.json, settings, kept)
                results.append(found)
                show(found, results)
    if options.plots is not None:
        import truncation_figures

        options.plots.mkdir(parents=True, exist_ok=True)
        sizes = options.plot_rows, options.plot_draws, options.plot_steps
        truncation_figures.draw_all(options.plots, results, options.data, options.tables[0], *sizes)


if __name__ == "__main__":
    main()
