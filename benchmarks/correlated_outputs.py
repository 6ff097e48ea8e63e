"""Correlated outputs beside single ones: cokriging of a metal in the soil, and cheap and dear simulators.

    python benchmarks/correlated_outputs.py --data ../shared/data --json benchmarks/results/correlated_outputs.json

Jura (Goovaerts 1997): cadmium at 100 places, from cadmium at 259 others and nickel and zinc at all of them. Errors are
mean absolute ones in mg/kg, also of the fit to logarithms, whose prediction is the exponential of its mean: the median.

Fidelities: simulators with two or three levels from cheap to dear (Forrester 2007; Currin and Borehole, Xiong 2013).
"dear alone" sees the dear runs, "one column" has the level as one more number, "correlated" is
``outputs="correlated"`` and "ordered" a kernel of ordered outputs on stacked rows. These have the same kernels of the
inputs; "default" is ``outputs="correlated"`` whose kernels are left to the rows. Errors are of the dear simulator at
1,000 places, in its standard deviations, and NLL of its values in nats.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gigagp import GPRegressor, kernels, metrics

Levels = list[Callable[[np.ndarray], np.ndarray]]
METALS = ("Cd", "Ni", "Zn")


def jura(folder: Path) -> list[dict[str, Any]]:
    """Return a record for one output and for three, of metals and of their logarithms."""
    known, new = (
        pd.read_parquet(folder / "geostatistics" / f"jura-{name}.parquet") for name in ("prediction", "validation")
    )
    places = [table[["Xloc", "Yloc"]].to_numpy(float) for table in (known, new)]
    truth, records = new["Cd"].to_numpy(float), []
    for logs in (False, True):
        values = np.concatenate([table[list(METALS)].to_numpy(float) for table in (known, new)])
        Y = np.log(values) if logs else values
        Y[len(known) :, 0] = np.nan
        target = np.log(truth) if logs else truth
        for name in ("cadmium alone", "with nickel and zinc"):
            began = time.process_time()
            if name == "cadmium alone":
                gp = GPRegressor().fit(places[0], Y[: len(known), 0])
            else:
                gp = GPRegressor(outputs="correlated").fit(np.concatenate(places), Y)
            mean, std = (
                one.reshape(len(new), -1)[:, 0] for one in gp.predict(places[1], return_std=True, include_noise=True)
            )
            error = np.abs((np.exp(mean) if logs else mean) - truth).mean()
            records.append(
                {"table": "jura", "logs": logs, "model": name, "mae": float(error)}
                | {"nll": metrics.gaussian_nll(target, mean, std), "cpu_s": time.process_time() - began}
            )
            print(records[-1], flush=True)
    return records


def _forrester(x: np.ndarray) -> np.ndarray:
    return (6 * x[:, 0] - 2) ** 2 * np.sin(12 * x[:, 0] - 4)


def _currin(x: np.ndarray) -> np.ndarray:
    a, b = x[:, 0], np.maximum(x[:, 1], 1e-9)
    cubic = (2300 * a**3 + 1900 * a**2 + 2092 * a + 60) / (100 * a**3 + 500 * a**2 + 4 * a + 20)
    return (1 - np.exp(-1 / (2 * b))) * cubic


def _currin_cheap(x: np.ndarray) -> np.ndarray:
    moves = [(0.05, 0.05), (0.05, -0.05), (-0.05, 0.05), (-0.05, -0.05)]
    return np.mean([_currin(np.maximum(x + np.array(move), 0)) for move in moves], 0)


def _borehole(x: np.ndarray, factor: float = 2 * np.pi, one: float = 1.0) -> np.ndarray:
    low = np.array([0.05, 100, 63070, 990, 63.1, 700, 1120, 9855])
    high = np.array([0.15, 50000, 115600, 1110, 116, 820, 1680, 12045])
    rw, r, Tu, Hu, Tl, Hl, L, Kw = (low + (high - low) * x).T
    ratio = np.log(r / rw)
    return factor * Tu * (Hu - Hl) / (ratio * (one + 2 * L * Tu / (ratio * rw**2 * Kw) + Tu / Tl))


#: Levels from cheap to dear, number of inputs, and runs of each level.
SIMULATORS: dict[str, tuple[Levels, int, tuple[int, ...]]] = {
    "forrester, 2 levels": ([lambda x: 0.5 * _forrester(x) + 10 * x[:, 0] - 10, _forrester], 1, (20, 10)),
    "forrester, 3 levels": (
        [
            lambda x: 0.5 * _forrester(x) + 10 * x[:, 0] - 10,
            lambda x: 0.75 * _forrester(x) + 5 * x[:, 0] - 4.5,
            _forrester,
        ],
        1,
        (20, 14, 10),
    ),
    "currin": ([_currin_cheap, _currin], 2, (40, 15)),
    "borehole": ([lambda x: _borehole(x, 5.0, 1.5), _borehole], 8, (120, 40)),
}
MODELS = ("dear alone", "one column", "correlated", "ordered", "default")


def fidelities(name: str, seed: int) -> list[dict[str, Any]]:
    """Return a record for each model of one simulator, from random designs with a seed."""
    levels, d, counts = SIMULATORS[name]
    draw, k = np.random.default_rng(seed), len(levels)
    designs = [draw.random((count, d)) for count in counts]
    runs = [level(design) for level, design in zip(levels, designs, strict=True)]
    points = draw.random((1000, d))
    truth = levels[-1](points)
    X, level = np.concatenate(designs), np.repeat(np.arange(k), counts)
    stacked = np.column_stack([X, level])
    inputs = list(range(d))

    def of_inputs() -> kernels.Kernel:
        return kernels.Matern(2.5, columns=inputs, fixed=["variance"])

    records = []
    kernel: kernels.Kernel | None
    for model in MODELS:
        began = time.process_time()
        if model == "dear alone":
            gp = GPRegressor(kernels.Matern(2.5)).fit(designs[-1], runs[-1])
            mean, std = gp.predict(points, return_std=True)
        elif model in ("correlated", "default"):
            Y = np.full((len(X), k), np.nan)
            Y[np.arange(len(X)), level] = np.concatenate(runs)
            kernel = of_inputs() + of_inputs() if model == "correlated" else None
            gp = GPRegressor(kernel, outputs="correlated").fit(X, Y)
            mean, std = (one[:, -1] for one in gp.predict(points, return_std=True))
        else:
            kernel = kernels.Matern(2.5)
            if model == "ordered":
                parts = [of_inputs() * kernels.Outputs(k, columns=[d], ordered=True) for _ in range(2)]
                kernel = parts[0] + parts[1]
            gp = GPRegressor(kernel, mean="linear").fit(stacked, np.concatenate(runs))
            mean, std = gp.predict(np.column_stack([points, np.full(len(points), k - 1)]), return_std=True)
        spread = truth.std()
        records.append(
            {"table": name, "seed": seed, "model": model, "rmse": metrics.rmse(truth, mean) / spread}
            | {"nll": metrics.gaussian_nll(truth, mean, std), "cpu_s": time.process_time() - began}
        )
        print(records[-1], flush=True)
    return records


def main() -> None:
    """Run all, and write the JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None, help="folder with geostatistics/; without it no Jura")
    parser.add_argument("--simulators", nargs="*", default=list(SIMULATORS), choices=SIMULATORS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    records: list[dict[str, Any]] = []
    jobs = [] if options.data is None else [lambda: jura(options.data)]
    jobs += [lambda n=name, s=seed: fidelities(n, s) for name in options.simulators for seed in range(options.seeds)]
    for job in jobs:
        records += job()
        if options.json is not None:
            options.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
