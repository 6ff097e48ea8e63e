"""Reproduce the twelve rows of Table 1 of Lin et al. 2024: solver x gradient estimator x warm start.

    python benchmarks/iterative_table.py --data ../shared/data --table pol --rows 4000 --steps 60
    python benchmarks/iterative_table.py --table pol --solvers cg --estimators pathwise --starts warm   # full size

Prints test RMSE and log-likelihood, solver iterations, epochs and seconds, and ratios to the cold standard row of the
same solver. ``--defaults`` adds rows with this package's default solver and warm start, with the same probes and Adam
settings. An epoch uses every entry of the kernel matrix once; "all epochs" includes first residuals and
preconditioners.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from splits import read_split

from gigagp import GPRegressor, __version__, inference, kernels, presets
from gigagp.estimators.metrics import gaussian_nll, rmse

#: The paper's hand-tuned SGD rates; "auto" chooses a rate.
PAPER_RATES = {"pol": 30, "elevators": 20, "bike": 30, "keggdirected": 20, "protein": 20}
PAPER_BLOCKS = {"protein": 2000, "keggdirected": 2000}


def settings_of(
    solver: str, estimator: str, start: str, preconditioner: str = "paper", **common: Any
) -> dict[str, Any]:
    """Return the arguments of `GPRegressor` for a row.

    Parameters
    ----------
    solver : {"cg", "ap", "sgd", "default", "exact"}
        "default" is this package's solver and warm start; "exact" has no solver, estimator or start.
    estimator : {"standard", "pathwise"}
    start : {"cold", "warm"}
    preconditioner : {"paper", "default"}
        Preconditioner of "cg".
    **common
        Further arguments of `presets.lin2024`.
    """
    named = solver if solver in ("cg", "ap", "sgd") else "cg"
    settings = presets.lin2024(named, estimator, warm_start=start == "warm", **common)
    if solver == "exact":
        settings["inference"] = inference.Exact()
    elif solver == "default":
        settings["inference"] = replace(settings["inference"], solver="auto", warm_start="subspace")
    elif solver == "cg" and preconditioner == "default":
        better = replace(settings["inference"].solver, preconditioner="auto")
        settings["inference"] = replace(settings["inference"], solver=better)
    return settings


def run(settings: dict, data: tuple[np.ndarray, ...], verbose: int = 0) -> dict:
    """Fit, predict from the stored samples, and return scores and costs."""
    X, y, X_test, y_test = data
    started, cpu = time.perf_counter(), time.process_time()
    gp = GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | settings, standardize=False, verbose=verbose).fit(X, y)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    mean, std = gp.predict(X_test, return_std=True, include_noise=True)
    scores = {
        "rmse": rmse(y_test, mean),
        "log_likelihood": -gaussian_nll(y_test, mean, std),
        "rows": len(y),
        "seconds": seconds,
        "minutes": seconds / 60,
        "cpu_seconds": cpu,
        "hyperparameters": {name: value.tolist() for name, value in gp.posterior_.model.parameters().items()},
        "hyperparameters_by_step": [step.hyperparameters for step in gp.history_],
    }
    solves = [step.solve for step in gp.history_ if step.solve is not None]
    if not solves:  # exact inference
        return scores
    epochs = [solve.epochs for solve in solves]
    probes = [solve.relative_residual_probes for solve in solves]
    return {
        **scores,
        "iterations": sum(solve.iterations for solve in solves),
        "epochs": sum(epochs),
        "all_epochs": gp.history_.epochs,
        "epochs_a_step": sum(epochs) / len(epochs),
        "residual_targets_last": solves[-1].relative_residual_targets,
        "residual_probes_last": probes[-1],
        "unfinished_solves": sum(solve.status != "CONVERGED" for solve in solves),
        "iterations_by_step": [solve.iterations for solve in solves],
        "epochs_by_step": epochs,
        "residual_targets_by_step": [solve.relative_residual_targets for solve in solves],
        "residual_probes_by_step": probes,
    }


def largest_log_difference(left: dict, right: dict) -> float:
    """Return the largest absolute difference between the logarithms of two sets of hyperparameters."""
    return max(float(np.abs(np.log(left[name]) - np.log(right[name])).max()) for name in left)


def known_rows(path: Path, settings: dict) -> dict[tuple[str, str, str], dict]:
    """Return the rows of an earlier run with the same settings, which may be incomplete."""
    if not path.exists():
        return {}
    payload = json.loads(path.read_text(encoding="utf-8"))
    if payload["settings"] != settings:
        raise SystemExit(f"{path} was made with other settings: {payload['settings']}")
    return {(row["solver"], row["estimator"], row["start"]): row for row in payload["rows"]}


def main() -> None:
    """Run the requested rows, print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--table", default="pol")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--rows", type=int, default=None, help="number of random training rows (default: all)")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("--max-epochs", type=float, default=1000)
    parser.add_argument("--probes", type=int, default=64)
    parser.add_argument("--block-size", type=int, default=None, help="default: the paper's, scaled with --rows")
    parser.add_argument("--sgd-rate", default="auto", help='"auto", "paper" or a number')
    parser.add_argument("--solvers", nargs="+", default=["cg", "ap", "sgd"])
    parser.add_argument("--estimators", nargs="+", default=["standard", "pathwise"])
    parser.add_argument("--starts", nargs="+", default=["cold", "warm"])
    parser.add_argument(
        "--preconditioner", choices=["paper", "default"], default="paper", help="preconditioner of the cg rows"
    )
    parser.add_argument("--defaults", action="store_true", help="add rows with this package's defaults")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--resume", action="store_true", help="reuse the rows that are already in the JSON file")
    parser.add_argument("--verbose", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.resume and arguments.json is None:
        parser.error("--resume needs --json, the file of the earlier run")

    data = read_split(arguments.data, arguments.table, arguments.split, arguments.rows)
    n = len(data[1])
    block = arguments.block_size
    if block is None:
        full = read_split(arguments.data, arguments.table, arguments.split)[1]
        block = round(PAPER_BLOCKS.get(arguments.table, 1000) * n / len(full))
    rate = PAPER_RATES[arguments.table] if arguments.sgd_rate == "paper" else arguments.sgd_rate
    rate = rate if rate == "auto" else float(rate)
    common = {
        "steps": arguments.steps,
        "tolerance": arguments.tolerance,
        "max_epochs": arguments.max_epochs,
        "n_probes": arguments.probes,
        "block_size": block,
        "sgd_learning_rate": rate,
    }
    print(f"gigagp {__version__}, {arguments.table}, split {arguments.split}, {n:,} rows; {common}", flush=True)
    header = f"{'solver':8s} {'gradient':9s} {'start':6s} {'RMSE':>7s} {'LLH':>8s} {'iterations':>10s} {'epochs':>9s}"
    header += f" {'all epochs':>10s} {'seconds':>8s} {'epochs ratio':>12s} {'time ratio':>10s} {'unfinished':>10s}"
    header += f" {'last res. y':>11s} {'probes':>8s}"
    print(header, flush=True)
    described = {**common, "table": arguments.table, "rows": n}
    known = known_rows(arguments.json, described) if arguments.resume else {}
    results = []
    plan = [(s, e, w) for s in arguments.solvers for e in arguments.estimators for w in arguments.starts]
    if arguments.defaults:
        plan += [("default", estimator, "warm") for estimator in arguments.estimators]
    reference: dict[str, dict] = {}
    for solver, estimator, start in plan:
        settings = settings_of(solver, estimator, start, arguments.preconditioner, **common)
        assert isinstance(settings["inference"], inference.Iterative)
        result = known.get((solver, estimator, start)) or run(settings, data, arguments.verbose)
        result.update(solver=solver, estimator=estimator, start=start)
        if (estimator, start) == ("standard", "cold"):
            reference[solver] = result
        base = reference.get("cg" if solver == "default" else solver)
        ratios = "           -          -"
        if base is not None:
            ratios = f"{base['epochs'] / result['epochs']:12.2f} {base['seconds'] / result['seconds']:10.2f}"
        print(
            f"{solver:8s} {estimator:9s} {start:6s} {result['rmse']:7.4f} {result['log_likelihood']:8.4f} "
            f"{result['iterations']:10d} {result['epochs']:9.1f} {result['all_epochs']:10.1f} "
            f"{result['seconds']:8.1f} {ratios} {result['unfinished_solves']:10d} "
            f"{result['residual_targets_last']:11.2g} {result['residual_probes_last']:8.2g}",
            flush=True,
        )
        if solver == "default":
            paper = [r for r in results if (r["solver"], r["estimator"], r["start"]) == ("cg", estimator, "warm")]
            for other in paper:
                drift = largest_log_difference(result["hyperparameters"], other["hyperparameters"])
                ratio, in_loop = other["all_epochs"] / result["all_epochs"], other["epochs"] / result["epochs"]
                print(
                    f"  relative to the paper's warm {estimator} cg: {ratio:.2f} times fewer epochs ({in_loop:.2f} in "
                    f"the loop), largest difference of a log hyperparameter {drift:.4f}",
                    flush=True,
                )
        results.append(result)
        if arguments.json is not None:
            own = {(row["solver"], row["estimator"], row["start"]) for row in results}
            earlier = [row for key, row in known.items() if key not in own]
            payload = {"settings": described, "rows": earlier + results}
            arguments.json.write_text(json.dumps(payload, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
