"""Compare the same fit in float64, in mixed precision and in float32: test scores, and times as ratios.

    python benchmarks/mixed_precision.py --data ../shared/data --tables pol
    python benchmarks/mixed_precision.py --tables pol kin40k --noises learned 1e-5 1e-3 .1 1 --rows 3000

Each fit is `GPRegressor(inference=Iterative())` with default settings, on the training rows of a split, followed by a
prediction of all test rows; all run one after the other in one process. The noise variance is learned, or it is given
in units of the target's variance. "float64 again" is float64 with other random numbers: the difference that no
precision removes. ``--tiles`` keeps the kernel matrix out of memory, so that every product recomputes
its entries. With ``--json``, each fit is in the file as soon as it ends, and
``--resume`` goes on behind the fits that are there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkout import commit
from earlier_run import earlier_rows

sys.path.insert(0, str(Path(__file__).parent))
from splits import read_split

from gigagp import GPRegressor, __version__, inference, kernels, metrics

_TILES_BUDGET = "1GiB"
#: Behind a dtype: with other random numbers.
_AGAIN = " again"


def fit(dtype: str, noise: str, split: tuple[np.ndarray, ...], *, tiles: bool, seed: int = 0) -> dict[str, object]:
    """Return scores and times of one fit."""
    X, y, X_test, y_test = split
    given = None if noise == "learned" else np.full(len(y), float(noise) * y.var())
    wall, cpu = time.perf_counter(), time.process_time()
    gp = GPRegressor(
        kernels.Matern(nu=1.5),
        inference=inference.Iterative(),
        noise_variance=given,
        dtype=dtype,
        memory_budget=_TILES_BUDGET if tiles else None,
        random_state=seed,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gp.fit(X, y)
    mean, std = gp.predict(X_test, return_std=True)
    of_noise = float(gp.noise_variance_) if given is None else given[0]
    return {
        "dtype": dtype,
        "rmse": metrics.rmse(y_test, mean),
        "log_likelihood": -metrics.gaussian_nll(y_test, mean, np.sqrt(std**2 + of_noise)),
        "noise_variance": of_noise,
        "cpu_seconds": time.process_time() - cpu,
        "seconds": time.perf_counter() - wall,
        "evaluations": len(gp.history_),
        "epochs": gp.history_.epochs,
        "engine": gp.engine_,
        "warnings": [str(one.message) for one in caught],
    }


def main() -> None:
    """Fit in each precision, print scores and ratios, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tables", nargs="+", default=["pol"])
    parser.add_argument("--noises", nargs="+", default=["learned"], help='"learned", or shares of the variance')
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtypes", nargs="+", default=["float64", "mixed", "float32"])
    parser.add_argument(
        "--tiles", action="store_true", help=f"use a memory budget of {_TILES_BUDGET}, too small to store H"
    )
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--resume", action="store_true", help="leave out the fits that the file of --json has")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"gigagp {__version__}, {arguments.threads} threads", flush=True)
    where = commit()
    fits: list[dict[str, Any]] = earlier_rows(parser, arguments, "fits")
    known = {(one["table"], one["rows"], one["noise"], one["dtype"]): one for one in fits}
    for table in arguments.tables:
        split = read_split(arguments.data, table, 0, arguments.rows)
        for noise in arguments.noises:
            first: dict[str, Any] | None = None
            for dtype in arguments.dtypes:
                earlier = known.get((table, len(split[1]), noise, dtype))
                if earlier is not None:
                    first = first or earlier
                    continue
                row: dict[str, Any] = {"table": table, "rows": len(split[1]), "noise": noise, "commit": where}
                again = dtype.endswith(_AGAIN)
                row |= fit(dtype.removesuffix(_AGAIN), noise, split, tiles=arguments.tiles, seed=int(again))
                row["dtype"] = dtype
                first = first or row
                ratio = first["cpu_seconds"] / row["cpu_seconds"]
                print(
                    f"{table:12s} noise {noise:8s} {dtype:8s} RMSE {row['rmse']:.5f}, log-likelihood "
                    f"{row['log_likelihood']:.5f}, {row['cpu_seconds']:.1f} CPU s ({ratio:.2f} times faster), "
                    f"{row['evaluations']} evaluations, {row['epochs']:.0f} epochs, {' '.join(row['warnings'])}",
                    flush=True,
                )
                fits.append(row)
                if arguments.json is not None:
                    told = {"version": __version__, "commit": where, "threads": arguments.threads, "fits": fits}
                    arguments.json.write_text(json.dumps(told, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
