"""Quadruply stochastic inference: the cost of a step, the effect of control variates, and the tables of the paper.

    python benchmarks/quadruply_table.py steps            # time of a step at fixed batches for very different n and m
    python benchmarks/quadruply_table.py columns          # the same with 100 dense columns, and with a full covariance
    python benchmarks/quadruply_table.py memory           # peak memory of a fit with 10,000,000 functions
    python benchmarks/quadruply_table.py control --data FOLDER   # variance removed against rank (the paper's Fig. 1)
    python benchmarks/quadruply_table.py table --data FOLDER --tables kin40k    # Table 2 rows
    python benchmarks/quadruply_table.py relevance        # relevance vectors of a noisy sinc (the paper's Fig. 3)
    python benchmarks/quadruply_table.py digits           # odd against even digits

Each prints its settings and writes JSON with ``--out``.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from splits import read_split

from gigagp import GPClassifier, GPRegressor, inference, kernels, optimization
from gigagp.estimators.metrics import gaussian_nll, rmse
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.quadruply_stochastic.controls import support_weights
from gigagp.inference.quadruply_stochastic.estimators.control_variate import QuadraticControl
from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample, sample_indices
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from gigagp.optimization import History
from gigagp.optimization.sparse_ascent import SparseRun
from gigagp.optimization.trace import Trace
from gigagp.presets import evans2020
from gigagp.runtime.progress import NoProgress

RELEVANCE_WAYS = [
    "all rows and functions",
    "samples, the paper's recipe",
    "samples, Adam",
    "samples, Adam and anchors",
    "samples of all rows and functions",
]


def started(n: int, m: int, settings: dict[str, Any], d: int = 8) -> tuple[Any, Model]:
    """Return an objective on random rows, and its model."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, d, generator=generator)
    Y = torch.sin(X.sum(1, keepdim=True))
    objective = inference.QuadruplyStochastic(n_basis=m, **settings).objective(
        TrainingTable(X, Y, ZeroMean(), 2**36), generator
    )
    return objective, Model(kernels.RBF(2.0).bind(d), ZeroMean(), torch.tensor(0.1, dtype=torch.float64))


def times_of_steps(runs: dict[Any, SparseRun], repeats: int) -> dict[Any, list[float]]:
    """Return the seconds of a step, five at a time; the runs take turns, so that a slow moment affects all of them."""
    times: dict[Any, list[float]] = {key: [] for key in runs}
    for _ in range(repeats):
        for key, run in runs.items():
            begun = time.perf_counter()
            for _ in range(5):
                run.step += 1
                run._take_step()
            times[key].append((time.perf_counter() - begun) / 5)
    return times


def begun_run(n: int, m: int, settings: dict[str, Any], optimizer: Any) -> SparseRun:
    """Return an ascent before its first step, whose arrays are all in memory.

    A page of zeros is fetched when it is first written, once in a fit: the first steps would pay for that.
    """
    objective, model = started(n, m, settings)
    run = SparseRun(optimizer, objective, model, Trace(History(), NoProgress()))
    for array in [*run.arrays.values(), *run.state.values()]:
        array.add_(0.0)
    return run


def steps(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the time of a step at fixed batches."""
    settings = {"row_batch": 256, "basis_batch": options.basis_batch, "n_support": 100, "start_rows": 0}
    optimizer = optimization.SparseAdam(steps=10**6, hyper_start=1.0)
    sizes = [(40_000, 10**4), (40_000, 10**5), (40_000, 10**6), (4_000, 10**5)]
    found = []
    runs = {(n, m): begun_run(n, m, settings, optimizer) for n, m in sizes}
    for (n, m), times in times_of_steps(runs, options.repeats).items():
        found.append({"n": n, "m": m, "ms": 1e3 * float(np.median(times)), "best_ms": 1e3 * min(times)})
        print(f"n = {n:6,}  m = {m:9,}  {found[-1]['ms']:7.1f} ms per step (fastest {found[-1]['best_ms']:.1f})")
    medians = [one["ms"] for one in found]
    print(f"slowest over fastest size: {max(medians) / min(medians):.3f}")
    return found


def columns(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the time of a step with dense columns: 100 of them, all seen or sampled, and a full covariance."""
    settings = {"row_batch": 256, "basis_batch": options.basis_batch, "start_rows": 0, "anchor": False}
    optimizer = optimization.SparseAdaGrad(steps=10**6, hyper_start=1.0)
    ways = {
        "mean-field": [(m, 0, None) for m in (10**4, 10**5, 10**6)],
        "100 columns, 10 sampled": [(m, 100, 10) for m in (10**4, 10**5, 10**6)],
        "100 columns, all seen": [(m, 100, 100) for m in (10**4, 10**5, 10**6)],
        "full, 10 sampled": [(m, m, 10) for m in (3000, 6000, 12_000)],
    }
    found = []
    for way, sizes in ways.items():
        if options.column_ways and way not in options.column_ways:
            continue
        runs = {}
        for m, k, batch in sizes:
            of_columns = {"n_columns": k} | ({} if batch is None else {"column_batch": batch})
            of_columns["basis_batch"] = min(options.basis_batch, 1000) if k == m else options.basis_batch
            runs[m] = begun_run(40_000, m, settings | of_columns, optimizer)
        times = times_of_steps(runs, options.repeats)
        medians = {m: 1e3 * float(np.median(some)) for m, some in times.items()}
        # sizes take turns, so a moment that slows one size slows its neighbours in time: ratios turn by turn
        first = sizes[0][0]
        ratios = {m: float(np.median(np.array(times[m]) / np.array(times[first]))) for m in medians}
        for m, ms in medians.items():
            row = {"way": way, "m": m, "ms": ms, "best_ms": 1e3 * min(times[m]), "over_smallest": ratios[m]}
            found.append(row)
            print(
                f"{way:24} m = {m:9,}  {ms:7.1f} ms (fastest {row['best_ms']:.1f}), {ratios[m]:.3f} of the smallest m"
            )
    return found


def memory(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the peak memory of the process after a short fit; run it alone."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    objective, model = started(40_000, options.m, {})
    begun = time.perf_counter()
    optimizer = optimization.SparseAdam(steps=options.steps or 100)
    model = optimizer.run(objective, model, Trace(History(), NoProgress()), torch.Generator())
    objective.current_posterior().mean_and_variance(objective.table.X[:100])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"m = {options.m:,}, n = 40,000: peak {peak:.2f} GiB (imports alone: {before:.2f} GiB)")
    return [{"m": options.m, "peak_gib": peak, "imports_gib": before, "seconds": time.perf_counter() - begun}]


def start_of(X: np.ndarray, y: np.ndarray, count: int = 1000) -> GPRegressor:
    """Return a fit of the exact likelihood of random rows, of which the paper uses 1,000."""
    rows = np.random.default_rng(0).permutation(len(y))[:count]
    return GPRegressor(kernels.RBF(), inference.Exact(), mean="zero", standardize=False).fit(X[rows], y[rows])


def control_variances(
    X: np.ndarray, y: np.ndarray, ranks: list[int], m: int = 10_000, batch: int = 500, repeats: int = 20
) -> list[dict[str, Any]]:
    """Return the variance of the quadratic term with a control of each rank, relative to that without (Fig. 1).

    As in the paper, the weights are a draw of the prior, and ``batch`` rows and functions are sampled. Controls have
    equal weights of their support rows (the paper's) or fitted ones, and the multiple one or the best one.
    """
    start, generator, n = start_of(X, y), torch.Generator().manual_seed(0), len(y)
    settings = {"n_basis": m, "basis_batch": batch, "row_batch": batch, "start_rows": 0}
    table = TrainingTable(torch.from_numpy(X), torch.from_numpy(y)[:, None], ZeroMean(), 2**36)
    objective = inference.QuadruplyStochastic(**settings).objective(table, generator)
    model = objective.begin(Model(start.kernel_, ZeroMean(), torch.tensor(start.noise_variance_, dtype=torch.float64)))
    basis = objective.state.basis
    mean = torch.randn(basis.size, 1, generator=generator, dtype=torch.float64)
    support = sample_indices(n, max(ranks), generator)[torch.randperm(max(ranks), generator=generator)]
    controls = {}
    for rank in ranks:
        P = table.X[support[:rank]]
        controls[rank] = QuadraticControl(lambda i, P=P: basis.columns(P, i), torch.zeros(rank, 1, dtype=torch.float64))
        controls[rank].reset((index, mean[index]) for index in basis.blocks(1024))
    estimates, drawn = [], {(rank, name): [] for rank in ranks for name in ("equal", "fitted")}
    some = table.X[sample_indices(n, min(8192, n), generator)]
    fitted = {rank: support_weights(model.kernel, table.X[support[:rank]], some, n) for rank in ranks}
    for _ in range(repeats):
        sample = BasisSample.draw(basis.size, batch, generator)
        rows, touched = sample_indices(n, min(batch, n), generator), mean[sample.index]
        products = [
            basis.columns(table.X[rows], sample.index) @ (w[:, None] * touched) for w in (sample.left, sample.right)
        ]
        estimates.append(n / len(rows) * (products[0] * products[1]).sum())
        whole = basis.columns(table.X[support], sample.index)
        for rank in ranks:
            for name, weights in {"equal": torch.full((rank,), n / rank).double(), "fitted": fitted[rank]}.items():
                drawn[rank, name].append(controls[rank].value(whole[:rank], touched, sample, weights)[0])
    values, found = torch.stack(estimates), []
    generator, halves = torch.Generator().manual_seed(1), torch.zeros(200, dtype=torch.float64)
    for (rank, name), values_drawn in drawn.items():
        added = torch.stack(values_drawn)
        plain = float((values + added).var() / values.var())
        for one in range(len(halves)):  # bootstrap the uncertain ratio of two variances
            again = torch.randint(len(values), (len(values),), generator=generator)
            halves[one] = (values + added)[again].var() / values[again].var()
        best = 1 - float(torch.corrcoef(torch.stack([values, added]))[0, 1]) ** 2  # by the best multiple
        error = float(halves.std())
        found.append({"rank": rank, "weights": name, "variance": plain, "error": error, "variance_fitted": best})
    return found


def control(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the effect of control variates on kin40k (Fig. 1)."""
    X, y, *_ = read_split(options.data, "kin40k", 0)
    found = control_variances(X, y, options.ranks, repeats=options.repeats)
    for row in found:
        print(
            f"rank {row['rank']:5}, {row['weights']:6} weights: variance {row['variance']:8.4f} +- {row['error']:.4f} "
            f"of that without, {row['variance_fitted']:.4f} with the best multiple"
        )
    return found


def fit_of(way: str, data: tuple[np.ndarray, ...], options: argparse.Namespace) -> dict[str, Any]:
    """Fit one method to a split and return its scores.

    QSGP has the covariance of rows, QSGP-0 is mean-field, and QSGP-k has k dense columns; "inducing" has functions at
    all training rows. With "paper" the settings are those of the paper, without anchors and from weights at zero; with
    "fixed", hyperparameters and noise stay where they start.
    """
    X, y, X_test, y_test = data
    start = start_of(X, y, options.hyper_rows)
    shared = {"mean": "zero", "standardize": False, "dtype": "float32", "device": options.device}
    shared["noise_variance"] = start.noise_variance_
    batches = {"basis_batch": min(options.basis_batch, options.m), "row_batch": options.row_batch}
    columns = {"QSGP-0": {"n_columns": 0}, "QSGP-100": {"n_columns": min(100, options.m)}}
    ascent = optimization.SparseAdam(options.rate, steps=options.steps, hyper_learning_rate=options.hyper_rate)
    if way.endswith(", paper"):
        kind, _ = way.split(", ")
        chosen: dict[str, Any] = {"n_basis": options.m, "n_support": options.support, "steps": options.steps, **batches}
        chosen["learning_rate"] = 0.1 / options.scale  # the preset's unit is the prior deviation of a weight
        if kind == "inducing":
            settings = evans2020("inducing", **chosen | {"n_basis": len(y), "basis_batch": options.basis_batch})
        else:
            settings = evans2020("fourier", **chosen, **columns[kind])
        chosen_inference, ascent = settings["inference"], settings["optimizer"].then
    elif way == "inducing":
        chosen_inference = inference.QuadruplyStochastic(len(y), "inducing")
        ascent = optimization.SparseAdam(options.rate, hyper_learning_rate=0.0)  # ends by itself
    elif way in ("SVGP-512", "SVGP-512, fixed"):
        chosen_inference = inference.SparseVariational(min(512, len(y)), batch_size=1024)
        ascent = optimization.Adam(0.01, steps=options.svgp)
    else:
        chosen = {"n_basis": options.m, "n_support": options.support, **batches, **columns.get(way, {})}
        chosen |= {"start_rows": options.start_rows, "anchor": not options.no_anchor}
        chosen_inference = inference.QuadruplyStochastic(**chosen)
    kernel = start.kernel_
    if way.endswith(", fixed"):
        kernel = kernels.RBF(**kernel.parameters(), fixed=True) + kernels.White(start.noise_variance_, fixed=True)
        shared["noise_variance"] = None
    begun = time.process_time()
    gp = GPRegressor(kernel, chosen_inference, ascent, **shared).fit(X, y)
    seconds = time.process_time() - begun
    mean, std = gp.predict(X_test, return_std=True, include_noise=True)
    row = {"way": way, "cpu_seconds": seconds, "m": options.m, "rmse": rmse(y_test, mean)}
    noise = start.noise_variance_ if way.endswith(", fixed") else gp.noise_variance_
    row |= {"mnlp": gaussian_nll(y_test, mean, std), "noise_variance": noise}
    row["coverage_95"] = float(np.mean(np.abs(y_test - mean) < 1.959964 * std))
    return row | {"removed": getattr(gp.posterior_, "variance_removed", {})}


def table(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return scores of the methods on splits of tables; a run with ``--out`` leaves out what the file has already."""
    found = read_rows(options)
    known = {(row["table"], row["split"], row["way"]) for row in found}
    for name in options.tables:
        for split in range(options.first_split, options.first_split + options.splits):
            for way in options.ways:
                if (name, split, way) in known:
                    continue
                row = {"table": name, "split": split} | fit_of(way, read_split(options.data, name, split), options)
                found.append(row)
                score = f"RMSE {row['rmse']:.4f}  MNLP {row['mnlp']:.3f}  within 95 % {row['coverage_95']:.3f}"
                print(f"{name} {split} {way:9} {score}  {row['cpu_seconds']:.0f} CPU s", flush=True)
                write_rows(options, found)
    return found


def plain_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options as JSON has them, without what does not change a row of `table`."""
    left_out = ("tables", "ways", "splits", "first_split", "out", "data")
    return {name: value for name, value in vars(options).items() if name not in left_out}


def read_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows that ``--out`` has with the same settings."""
    if options.out is None or not options.out.exists():
        return []
    kept = json.loads(options.out.read_text(encoding="utf-8"))
    return kept["rows"] if kept["settings"] == json.loads(json.dumps(plain_settings(options))) else []


def write_rows(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Write settings and rows to ``--out``, where it is given."""
    if options.out:
        options.out.write_text(
            json.dumps({"settings": plain_settings(options), "rows": rows}, indent=1) + "\n", encoding="utf-8"
        )


def relevance_of(way: str, steps: int, n: int = 500) -> dict[str, Any]:
    """Return how many of n rows of a noisy sinc one way keeps, with the error of its mean (Fig. 3: 13 of 500).

    The paper states neither the noise, the range, the kernel's width nor the optimizer. Here the rows are uniform on
    [-10, 10], the noise has the standard deviation 0.1, and the kernel is an RBF of lengthscale 2.
    """
    generator = np.random.default_rng(0)
    x = np.sort(generator.uniform(-10, 10, n))[:, None]
    truth = np.sinc(x[:, 0] / np.pi)
    y = truth + 0.1 * generator.normal(size=n)
    machine = inference.RelevanceVectorMachine
    batches = {"n_basis": n, "row_batch": n // 5, "basis_batch": n // 2, "n_columns": 10}
    adam = optimization.SparseAdam(0.01, steps=steps, hyper_learning_rate=0.0, final_share=0.003)
    as_written = evans2020("relevance", **batches, n_support=n // 2, steps=steps)
    chosen, optimizer = {
        "all rows and functions": (machine(), None),
        "samples, the paper's recipe": (as_written["inference"], as_written["optimizer"].then),
        "samples, Adam": (machine(**batches, anchor=False), adam),
        "samples, Adam and anchors": (machine(**batches), adam),
        "samples of all rows and functions": (machine(**batches | {"row_batch": n, "basis_batch": n}), adam),
    }[way]
    begun = time.process_time()
    shared = {"noise_variance": 0.01, "mean": "zero", "standardize": False}
    gp = GPRegressor(kernels.RBF(2.0), chosen, optimizer, **shared).fit(x, y)
    seconds, grid = time.process_time() - begun, np.linspace(-10, 10, 101)
    mean, std = gp.predict(grid[:, None], return_std=True)
    vectors = np.sort(gp.posterior_.relevance_vectors[:, 0].numpy())
    row = {"way": way, "kept": len(vectors), "rmse": rmse(truth, gp.predict(x)), "cpu_seconds": seconds}
    row["bound"] = float(gp.log_marginal_likelihood(standardized=True).value)
    return row | {"grid": grid, "mean": mean, "std": std, "vectors": vectors, "x": x[:, 0], "y": y}


def relevance(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what each way of fitting a relevance vector machine keeps (Fig. 3)."""
    found = []
    for way in options.relevance_ways:
        row = relevance_of(way, options.steps or 4000)
        found.append({name: value for name, value in row.items() if not isinstance(value, np.ndarray)})
        print(found[-1], flush=True)
    return found


def digits(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return accuracy, log loss and calibration error of odd against even on scikit-learn's digits.

    Compares quadruply stochastic ascent, `GPClassifier` with default settings, and the package's SVGP. The latter only
    supports a Gaussian likelihood, so it learns the labels as numbers; its probability is that of a positive noisy
    label.
    """
    from scipy.stats import norm
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y, cut = X[order] / 16, y[order] % 2, 1200
    kernel = kernels.RBF(2.0, 10.0, ard=False)
    shared = {"standardize": False, "dtype": "float32", "device": options.device}
    sampled = inference.QuadruplyStochastic(
        n_basis=options.m, basis_batch=min(options.basis_batch, options.m), row_batch=128
    )
    ascent = optimization.SparseAdam(steps=options.steps or 3000)
    ways = {
        "quadruply stochastic": lambda: GPClassifier(kernel, sampled, ascent, **shared),
        "all at once": lambda: GPClassifier(kernel, **shared),
        "GPClassifier()": GPClassifier,
        "SVGP-512 of signs": lambda: GPRegressor(
            kernels.RBF(2.0, 1.0, ard=False),
            inference.SparseVariational(512, batch_size=256),
            optimization.Adam(0.01, steps=options.svgp),
            **(shared | {"dtype": "float64"}),
        ),
    }
    found = []
    for name, make in ways.items():
        if options.digits_ways and name not in options.digits_ways:
            continue
        begun = time.process_time()
        gp = make()
        if isinstance(gp, GPClassifier):
            probability = gp.fit(X[:cut], y[:cut]).predict_proba(X[cut:])[:, 1]
        else:
            mean, std = gp.fit(X[:cut], 2.0 * y[:cut] - 1).predict(X[cut:], return_std=True, include_noise=True)
            probability = norm.cdf(mean / std)
        row = {"way": name, "m": options.m, **scores(probability.clip(1e-12, 1 - 1e-12), y[cut:])}
        found.append(row | {"cpu_seconds": time.process_time() - begun})
        print(found[-1], flush=True)
    return found


def scores(probability: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Return accuracy, log loss and expected calibration error (ten bins of confidence from one half to one)."""
    confidence, right = np.maximum(probability, 1 - probability), (probability > 0.5) == truth
    bins = np.minimum(((confidence - 0.5) * 20).astype(int), 9)
    gaps = [abs(right[bins == b].mean() - confidence[bins == b].mean()) * np.mean(bins == b) for b in np.unique(bins)]
    loss = float(-np.mean(np.where(truth == 1, np.log(probability), np.log1p(-probability))))
    return {"accuracy": float(right.mean()), "log_loss": loss, "calibration_error": float(sum(gaps))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("steps", "columns", "memory", "control", "table", "relevance", "digits"))
    parser.add_argument("--data", type=Path, default=Path("shared/data"))
    parser.add_argument("--tables", nargs="+", default=["kin40k", "protein", "keggdirected"])
    parser.add_argument("--ways", nargs="+", default=["QSGP", "QSGP-0", "QSGP-100", "SVGP-512"])
    parser.add_argument("--column-ways", nargs="+", help="kinds of root that columns times; default: all")
    parser.add_argument("--relevance-ways", nargs="+", default=RELEVANCE_WAYS, help="fits that relevance compares")
    parser.add_argument("--digits-ways", nargs="+", help="methods that digits compares; default: all")
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--first-split", type=int, default=0)
    parser.add_argument("--m", type=int, default=100_000)
    parser.add_argument("--row-batch", type=int, default=500)
    parser.add_argument("--basis-batch", type=int, default=2000)
    parser.add_argument("--support", type=int, default=0)
    parser.add_argument(
        "--steps", type=int, default=None, help="number of ascent steps; default: until nothing is gained"
    )
    parser.add_argument("--rate", type=float, default=0.01, help="largest learning rate of ascent")
    parser.add_argument("--hyper-rate", type=float, default=0.0, help="largest learning rate of the hyperparameters")
    parser.add_argument(
        "--hyper-rows", type=int, default=4000, help="number of rows from which hyperparameters are learned"
    )
    parser.add_argument("--start-rows", type=int, help="number of rows whose posterior gives the initial weights")
    parser.add_argument("--no-anchor", action="store_true")
    scale = "prior standard deviation of the weights of the paper's ways, whose AdaGrad has the rate 0.1"
    parser.add_argument("--scale", type=float, default=1.0, help=scale)
    parser.add_argument("--svgp", type=int, default=3000, help="number of steps of SVGP")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--ranks", type=int, nargs="+", default=[10, 30, 100, 300, 1000])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print(vars(options))
    found = globals()[options.what](options)
    write_rows(options, found)


if __name__ == "__main__":
    main()
