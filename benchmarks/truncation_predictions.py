"""Compare predictions of large tables in ``truncation_table.py`` with exact ones, where these can be computed.

    python benchmarks/truncation_predictions.py --tables pol elevators kin40k --rows 4000 --json predictions.json

Predictions beyond ``--exact-rows`` come from solves to 1e-4, with variances from 256 samples and neighbours. The
table has their root-mean-square relative errors with and without the noise, the difference of the NLL from the exact
one, and the same for the samples alone; all at the exact optimum of 1,000 rows.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from maps import write
from splits import read_shuffled
from truncation_table import PREDICTION, at

from gigagp import GPRegressor, inference, kernels
from gigagp.estimators.metrics import gaussian_nll


def compare(data: tuple[np.ndarray, ...], start_rows: int) -> list[dict[str, Any]]:
    """Return errors of variances and of the NLL, for samples alone and with neighbours."""
    X, y, X_test, y_test = data
    start = GPRegressor(kernels.RBF(), inference.Exact(), standardize=False).fit(X[:start_rows], y[:start_rows])
    parameters = {
        "lengthscale": start.kernel_.lengthscale,
        "variance": start.kernel_.variance,
        "noise_variance": start.noise_variance_,
    }
    noise = float(start.noise_variance_)
    mean, exact = at(parameters, data, inference.Exact()).predict(X_test, return_std=True)
    truth = gaussian_nll(y_test, mean, np.sqrt(exact**2 + noise))
    gp = at(parameters, data, PREDICTION)
    rows = []
    for source in ("samples", "auto"):
        started = time.process_time()
        found, std = gp.predict(X_test, return_std=True, variance=source)
        ratio = (std**2 + noise) / (exact**2 + noise)
        rows.append(
            {
                "variance": source,
                "relative_error": float(np.sqrt(np.mean((ratio - 1) ** 2))),
                "latent_error": float(np.sqrt(np.mean(((std / exact) ** 2 - 1) ** 2))),
                "nll": gaussian_nll(y_test, found, np.sqrt(std**2 + noise)),
                "exact_nll": truth,
                "cpu_seconds": time.process_time() - started,
            }
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tables", nargs="+", default=["pol", "elevators", "kin40k"])
    parser.add_argument("--rows", type=int, default=4000, help="number of training rows")
    parser.add_argument("--start-rows", type=int, default=1000, help="rows that hyperparameters are learned from")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args(arguments)
    results: list[dict[str, object]] = []
    for table in options.tables:
        for row in compare(read_shuffled(options.data, table, 0, options.rows), options.start_rows):
            results.append({"table": table, **row})
            print(
                f"{table:12s} {row['variance']:8s} with noise {row['relative_error']:.4f}  latent "
                f"{row['latent_error']:.4f}  NLL {row['nll'] - row['exact_nll']:+.5f}",
                flush=True,
            )
    write(options.json, vars(options), results)


if __name__ == "__main__":
    main()
