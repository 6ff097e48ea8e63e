"""Score fits with and without a transform of the target, in the target's units.

    OMP_NUM_THREADS=1 python benchmarks/target_transforms.py run --data ../shared/data --rows 500 --splits 0 1 2
    python benchmarks/target_transforms.py summary

Tables are the standard splits (bike without the two inputs that leak its target, at most 2,000 test rows), daily
temperatures, and three made ones: products of factors, targets with heavy tails, and a control whose targets are
normal, where a transform can only lose. ``run`` adds its fits to the JSON file, and ``summary`` counts wins and losses
against no transform: NLL lower or higher by more than 0.01, RMSE by more than 1 %.
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
from splits import read_split

UCI = ("pol", "elevators", "bike", "protein", "keggdirected", "kin40k", "parkinsons")
MADE = ("made-factors", "made-tails", "made-normal")
KINDS = ("none", "log", "yeo-johnson", "spline", "auto")
TEST_ROWS = 2000
OUT = Path(__file__).parent / "results" / "target_transforms.json"

Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def read(folder: Path, table: str, rows: int, split: int) -> Split:
    """Return X, y, X_test, y_test of one table."""
    if table in UCI:
        X, y, X_test, y_test = read_split(folder, table, split, rows)
        if table == "bike":
            X, X_test = X[:, :-2], X_test[:, :-2]
        return X, y, X_test[:TEST_ROWS], y_test[:TEST_ROWS]
    rng = np.random.default_rng(split)
    if table == "temperature":
        import pyarrow.parquet

        found = pyarrow.parquet.read_table(folder / "temperature" / "noaa-tmax-1990-93.parquet")
        names = ("longitude", "latitude", "day", "tmax_fahrenheit")
        values = np.column_stack([found.column(name).to_numpy() for name in names]).astype(float)
        chosen = values[rng.choice(len(values), rows + TEST_ROWS, replace=False)]
        X, y = chosen[:, :-1], chosen[:, -1]
    else:
        X = rng.uniform(-2, 2, (rows + TEST_ROWS, 3))
        z = np.sin(2 * X[:, 0]) + X[:, 1] * np.cos(X[:, 2]) + 0.3 * rng.normal(size=len(X))
        y = {"made-factors": np.exp(z), "made-tails": np.sinh(1.5 * z), "made-normal": z}[table]
    return X[:rows], y[:rows], X[rows:], y[rows:]


def scores(kind: str, X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray) -> dict[str, Any]:
    """Return the scores of one fit."""
    from gigagp import GPRegressor, kernels
    from gigagp.estimators.metrics import rmse

    began = time.process_time()
    gp = GPRegressor(kernels.Matern(nu=1.5), target_transform=kind).fit(X, y)
    seconds = time.process_time() - began
    low, first, third, high = gp.predict_quantile(X_test, [0.025, 0.25, 0.75, 0.975]).T
    return {
        "nll": -float(gp.predictive_log_density(X_test, y_test).mean()),
        "rmse": rmse(y_test, gp.predict(X_test)),
        "coverage_50": float(np.mean((y_test >= first) & (y_test <= third))),
        "coverage_95": float(np.mean((y_test >= low) & (y_test <= high))),
        "cpu_seconds": seconds,
        "chosen": gp.target_transform_.kind,
        "note": gp.target_transform_.note,
    }


def run(arguments: argparse.Namespace) -> None:
    """Fit, print and keep every cell that was asked for."""
    results = json.loads(arguments.out.read_text(encoding="utf-8"))["fits"] if arguments.out.exists() else []
    for table in arguments.tables:
        for split in arguments.splits:
            X, y, X_test, y_test = read(arguments.data, table, arguments.rows, split)
            for kind in KINDS:
                if kind not in arguments.kinds or (kind == "log" and not (np.r_[y, y_test] > 0).all()):
                    continue
                cell = {"table": table, "rows": arguments.rows, "split": split, "kind": kind}
                found = cell | scores(kind, X, y, X_test, y_test)
                results = [one for one in results if not cell.items() <= one.items()] + [found]
                write(arguments.out, results)
                print(
                    f"{table:13s} {arguments.rows:5d} {split} {kind:12s} NLL {found['nll']:8.4f} "
                    f"RMSE {found['rmse']:8.4f} 50 %: {found['coverage_50']:.3f} 95 %: {found['coverage_95']:.3f} "
                    f"CPU {found['cpu_seconds']:6.2f} s  {found['chosen']}, {found['note']}",
                    flush=True,
                )


def counts(results: list[dict[str, Any]], rows: int) -> list[dict[str, Any]]:
    """Return wins and losses of each transform against none, over tables and splits with some number of rows."""
    plain = {(one["table"], one["split"]): one for one in results if (one["rows"], one["kind"]) == (rows, "none")}
    found = []
    for kind in KINDS[1:]:
        fits = [one for one in results if (one["rows"], one["kind"]) == (rows, kind)]
        if not fits:
            continue
        pairs = [(one, plain[one["table"], one["split"]]) for one in fits]
        nll = np.array([a["nll"] - b["nll"] for a, b in pairs])
        error = np.array([100 * (a["rmse"] / b["rmse"] - 1) for a, b in pairs])
        found.append(
            {
                "rows": rows,
                "kind": kind,
                "fits": len(pairs),
                "taken": sum(one["chosen"] != "none" for one in fits),
                "nll_wins": int((nll < -0.01).sum()),
                "nll_losses": int((nll > 0.01).sum()),
                "nll_mean": float(nll.mean()),
                "nll_worst": float(nll.max()),
                "rmse_wins": int((error < -1).sum()),
                "rmse_losses": int((error > 1).sum()),
                "rmse_mean_percent": float(error.mean()),
                "rmse_worst_percent": float(error.max()),
                "off_50": float(np.mean([abs(a["coverage_50"] - 0.5) for a, _ in pairs])),
                "off_50_before": float(np.mean([abs(b["coverage_50"] - 0.5) for _, b in pairs])),
                "cpu_seconds": float(np.mean([a["cpu_seconds"] for a, _ in pairs])),
                "cpu_seconds_before": float(np.mean([b["cpu_seconds"] for _, b in pairs])),
            }
        )
    return found


def write(path: Path, fits: list[dict[str, Any]]) -> None:
    """Write the fits and the counts made of them."""
    rows = sorted({one["rows"] for one in fits if one["kind"] == "none"})
    summaries = [one for size in rows for one in counts(fits, size)]
    path.write_text(json.dumps({"summary": summaries, "fits": fits}, indent=1) + "\n", encoding="utf-8")


def summary(arguments: argparse.Namespace) -> None:
    """Print means over splits for each table, and wins and losses against no transform."""
    results = json.loads(arguments.out.read_text(encoding="utf-8"))["fits"]
    write(arguments.out, results)
    for rows in sorted({one["rows"] for one in results}):
        print(f"{rows} rows: NLL (RMSE) and coverage of the 50 and 95 % intervals, means over splits")
        for table in dict.fromkeys(one["table"] for one in results):
            line = f"  {table:13s}"
            for kind in KINDS:
                cells = [one for one in results if (one["table"], one["rows"], one["kind"]) == (table, rows, kind)]
                if cells:
                    mean = {n: np.mean([c[n] for c in cells]) for n in ("nll", "rmse", "coverage_50", "coverage_95")}
                    line += f" | {kind} {mean['nll']:.3f} ({mean['rmse']:.3f}) {mean['coverage_50']:.2f}"
                    line += f" {mean['coverage_95']:.2f}"
            print(line)
        for one in counts(results, rows):
            print("  " + ", ".join(f"{n} {v:.4g}" if isinstance(v, float) else f"{n} {v}" for n, v in one.items()))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "summary"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tables", nargs="+", default=[*UCI, "temperature", *MADE])
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    run(arguments) if arguments.command == "run" else summary(arguments)


if __name__ == "__main__":
    main()
