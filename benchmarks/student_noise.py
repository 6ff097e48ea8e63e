"""Score fits with Gaussian and with Student-t noise, and with the choice between them.

    OMP_NUM_THREADS=1 python benchmarks/student_noise.py run --data ../shared/data --rows 500 --splits 0 1 2
    python benchmarks/student_noise.py summary

Tables are those of ``target_transforms.py``, and three made ones with the function of its made tables: noise of
Student's law with three degrees of freedom, gross outliers in a tenth of the training rows (test rows have none), and a
control whose noise is normal. ``run`` adds its fits to the JSON file; ``summary`` has means over splits for each table,
and counts wins and losses against Gaussian noise: NLL by more than 0.01, RMSE by more than 1 %.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from target_transforms import UCI, Split
from target_transforms import read as read_real

MADE = ("made-student", "made-outliers", "made-normal")
TABLES = (*UCI, "temperature", *MADE)
KINDS = ("gaussian", "student-t", "auto")
TEST_ROWS = 2000
OUT = Path(__file__).parent / "results" / "student_noise.json"
MEANS = ("nll", "rmse", "coverage_50", "coverage_95", "cpu_seconds")


def read(folder: Path, table: str, rows: int, split: int) -> Split:
    """Return X, y, X_test, y_test of one table."""
    if table not in MADE:
        return read_real(folder, table, rows, split)
    rng = np.random.default_rng(split)
    X = rng.uniform(-2, 2, (rows + TEST_ROWS, 3))
    f = np.sin(2 * X[:, 0]) + X[:, 1] * np.cos(X[:, 2])
    noise = rng.standard_t(3, len(X)) if table == "made-student" else rng.normal(size=len(X))
    y = f + 0.3 * noise
    if table == "made-outliers":
        wrong = np.arange(len(X)) < rows // 10
        y = np.where(wrong, y + rng.choice([-1, 1], len(X)) * rng.uniform(5, 50, len(X)), y)
    return X[:rows], y[:rows], X[rows:], y[rows:]


def scores(kind: str, X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray) -> dict[str, Any]:
    """Return the scores of one fit."""
    from gigagp import GPRegressor, kernels
    from gigagp.estimators.metrics import rmse
    from gigagp.model.likelihoods import StudentT

    began = time.process_time()
    gp = GPRegressor(kernels.Matern(nu=1.5), likelihood=kind).fit(X, y)
    seconds = time.process_time() - began
    low, first, third, high = gp.predict_quantile(X_test, [0.025, 0.25, 0.75, 0.975]).T
    found = {
        "nll": -float(gp.predictive_log_density(X_test, y_test).mean()),
        "rmse": rmse(y_test, gp.predict(X_test)),
        "coverage_50": float(np.mean((y_test >= first) & (y_test <= third))),
        "coverage_95": float(np.mean((y_test >= low) & (y_test <= high))),
        "cpu_seconds": seconds,
        "note": gp.likelihood_note_,
    }
    if isinstance(gp.likelihood_, StudentT):
        found |= {"df": gp.likelihood_.df, "outliers": int((gp.noise_weights_ < 0.1).sum())}
    return found


def run(arguments: argparse.Namespace) -> None:
    """Fit, print and keep every cell that was asked for."""
    results = json.loads(arguments.out.read_text(encoding="utf-8"))["fits"] if arguments.out.exists() else []
    for table in arguments.tables:
        for split in arguments.splits:
            data = read(arguments.data, table, arguments.rows, split)
            for kind in arguments.kinds:
                cell = {"table": table, "rows": arguments.rows, "split": split, "kind": kind}
                found = cell | scores(kind, *data)
                results = [one for one in results if not cell.items() <= one.items()] + [found]
                write(arguments.out, results)
                print(
                    f"{table:13s} {arguments.rows:5d} {split} {kind:9s} NLL {found['nll']:8.4f} RMSE "
                    f"{found['rmse']:8.4f} 50 %: {found['coverage_50']:.3f} 95 %: {found['coverage_95']:.3f} "
                    f"CPU {found['cpu_seconds']:6.2f} s  {found.get('df', 0):.2f} {found['note']}",
                    flush=True,
                )


def by_table(fits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return means over splits for each table, number of rows and kind."""
    found = []
    for rows, table, kind in dict.fromkeys((one["rows"], one["table"], one["kind"]) for one in fits):
        cells = [one for one in fits if (one["rows"], one["table"], one["kind"]) == (rows, table, kind)]
        means = {name: float(np.mean([one[name] for one in cells])) for name in MEANS}
        taken = sum("df" in one for one in cells)
        found.append({"rows": rows, "table": table, "kind": kind, "splits": len(cells), "taken": taken, **means})
    return found


def counts(fits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return wins and losses of each kind against Gaussian noise, by the number of rows."""
    plain = {(one["rows"], one["table"], one["split"]): one for one in fits if one["kind"] == "gaussian"}
    found = []
    for rows, kind in dict.fromkeys((one["rows"], one["kind"]) for one in fits if one["kind"] != "gaussian"):
        chosen = [one for one in fits if (one["rows"], one["kind"]) == (rows, kind)]
        pairs = [(one, plain[one["rows"], one["table"], one["split"]]) for one in chosen]
        nll = np.array([a["nll"] - b["nll"] for a, b in pairs])
        error = np.array([100 * (a["rmse"] / b["rmse"] - 1) for a, b in pairs])
        found.append(
            {
                "rows": rows,
                "kind": kind,
                "fits": len(pairs),
                "taken": sum("df" in a for a, _ in pairs),
                "nll_wins": int((nll < -0.01).sum()),
                "nll_losses": int((nll > 0.01).sum()),
                "nll_mean": float(nll.mean()),
                "nll_worst": float(nll.max()),
                "rmse_wins": int((error < -1).sum()),
                "rmse_losses": int((error > 1).sum()),
                "rmse_worst_percent": float(error.max()),
                "off_50": float(np.mean([abs(a["coverage_50"] - 0.5) for a, _ in pairs])),
                "off_50_before": float(np.mean([abs(b["coverage_50"] - 0.5) for _, b in pairs])),
                "cpu_seconds": float(np.mean([a["cpu_seconds"] for a, _ in pairs])),
                "cpu_seconds_before": float(np.mean([b["cpu_seconds"] for _, b in pairs])),
            }
        )
    return found


def write(path: Path, fits: list[dict[str, Any]]) -> None:
    """Write the fits and what is made of them, as far as each has one with Gaussian noise beside it."""
    path.write_text(
        json.dumps({"summary": counts(fits), "tables": by_table(fits), "fits": fits}, indent=1) + "\n", encoding="utf-8"
    )


def summary(arguments: argparse.Namespace) -> None:
    """Print means over splits for each table, and wins and losses."""
    fits = json.loads(arguments.out.read_text(encoding="utf-8"))["fits"]
    write(arguments.out, fits)
    for one in (*by_table(fits), *counts(fits)):
        print(
            ", ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{value}" for name, value in one.items())
        )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "summary"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    run(arguments) if arguments.command == "run" else summary(arguments)


if __name__ == "__main__":
    main()
