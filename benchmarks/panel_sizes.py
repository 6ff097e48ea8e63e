"""Panels of thousands to millions of cells with a field of known truth: CPU seconds, peak memory, error and coverage.

    python benchmarks/panel_sizes.py --json benchmarks/results/panel_sizes.json

Each size is a default fit, ``GPRegressor(panel=("entity", "time"))``, to a long table in a process of its own with one
thread. The field is the sum of a smooth function of places and time, a curve and an offset of each entity's own and a
curve of all, with noise of deviation 0.3. A third of the cells is missing: of a quarter of the entities the second half
of the times, and of all others as many at random. ``rmse`` is that of the field in missing cells, at most 20,000 of
each kind, ``coverage`` that of 95 % intervals of the field, and ``two_way`` the error of the averages of entities and
times. ``fit_cpu_s`` and ``predict_cpu_s`` are CPU seconds, ``peak_gib`` the most memory of the process, of which
``data_gib`` was there before the fit.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from checkout import commit
from earlier_run import earlier_rows

from gigagp import GPRegressor, metrics

#: Entities and times of each size.
SIZES = {
    "3,600": (90, 60),
    "36,000": (270, 200),
    "360,000": (900, 600),
    "3.3 million, 2,500 times": (2000, 2500),
    "3.3 million, 50 times": (100_000, 50),
}
#: A size for trying it.
TINY = "200"
_NOISE, _SCORED, _FEATURES = 0.3, 20_000, 400


def field(n_entities: int, n_times: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return places (N, 2) and the field (N, T) at times 0 to T - 1, with variances 1 + 0.5 + 1 + 0.5.

    Curves are random walks that forget over 20 times, smoothed twice, so that they are those of a Matern-3/2 kernel.
    """
    draw = np.random.default_rng(seed)
    places, t = draw.random((n_entities, 2)), np.arange(n_times)
    phi = np.exp(-np.sqrt(3) / 20)

    def curves(count: int) -> np.ndarray:
        """Return curves of variance 1, (count, T): an autoregression of the second order, from its stationary law."""
        burn = 200
        walk, steps = np.zeros((count, n_times + burn)), draw.standard_normal((count, n_times + burn))
        for k in range(2, n_times + burn):
            walk[:, k] = 2 * phi * walk[:, k - 1] - phi**2 * walk[:, k - 2] + steps[:, k]
        variance = (1 + phi**2) / ((1 - phi**2) * ((1 + phi**2) ** 2 - 4 * phi**2))
        return walk[:, burn:] / np.sqrt(variance)

    # a Matern-3/2 field of lengthscale 0.2: frequencies are of a Student law with 3 degrees of freedom
    frequencies = draw.standard_normal((2, _FEATURES)) / 0.2 / np.sqrt(draw.chisquare(3, _FEATURES) / 3)
    waves = np.sqrt(2 / _FEATURES) * np.cos(places @ frequencies + draw.uniform(0, 2 * np.pi, _FEATURES))
    found = waves @ curves(_FEATURES)
    found += np.sqrt(0.5) * curves(n_entities)
    found += draw.standard_normal((n_entities, 1)) + np.sqrt(0.5) * curves(1)
    assert found.shape == (n_entities, len(t))
    return places, found


def gaps(n_entities: int, n_times: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which cells are missing at random and which because an entity has ended, (N, T) each."""
    draw = np.random.default_rng(seed + 1)
    ended = np.zeros((n_entities, n_times), dtype=bool)
    ended[draw.choice(n_entities, n_entities // 4, replace=False), n_times // 2 :] = True
    share = (1 / 3 - ended.mean()) / (1 - ended.mean())
    return (draw.random(ended.shape) < share) & ~ended, ended


def run(size: str, seed: int) -> dict[str, Any]:
    """Return the record of one size."""
    torch.set_num_threads(1)
    n_entities, n_times = (20, 15) if size == TINY else SIZES[size]
    places, truth = field(n_entities, n_times, seed)
    at_random, ended = gaps(n_entities, n_times, seed)
    draw = np.random.default_rng(seed + 2)
    observed = ~(at_random | ended)

    def table(entity: np.ndarray, t: np.ndarray) -> pd.DataFrame:
        return pd.DataFrame({"entity": entity, "time": t, "east": places[entity, 0], "north": places[entity, 1]})

    entity, t = np.nonzero(observed)
    known = table(entity, t)
    y = truth[observed] + _NOISE * draw.standard_normal(len(known))
    scored = [np.flatnonzero(kind.ravel()) for kind in (at_random, ended)]
    scored = [draw.permutation(cells)[:_SCORED] for cells in scored]
    asked = table(*np.divmod(np.concatenate(scored), n_times))
    actual = truth.ravel()[np.concatenate(scored)]
    del truth, at_random, ended, observed
    means = [pd.Series(y).groupby(key).mean() for key in (entity, t)]
    two_way = means[0].reindex(asked["entity"]).to_numpy() + means[1].reindex(asked["time"]).to_numpy() - y.mean()
    del entity, t
    data_gib = _peak_gib()
    began = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gp = GPRegressor(panel=("entity", "time"), random_state=0).fit(known, y)
        fitted = time.process_time()
        mean, std = gp.predict(asked, return_std=True)
        ended_at = time.process_time()
    record = {"size": size, "entities": n_entities, "times": n_times, "rows": len(known), "seed": seed}
    record |= {"fit_cpu_s": fitted - began, "predict_cpu_s": ended_at - fitted, "peak_gib": _peak_gib()}
    record |= {"data_gib": data_gib, "inference": gp.inference_.label, "engine": gp.engine_}
    record |= {"noise_std": float(np.sqrt(gp.noise_variance_)), "evaluations": len(gp.history_)}
    first = 0
    for kind, count in zip(("random", "ended"), map(len, scored), strict=True):
        part, first = slice(first, first + count), first + count
        record |= {f"{kind}_rmse": metrics.rmse(actual[part], mean[part])}
        record |= {f"{kind}_coverage": metrics.coverage(actual[part], mean[part], std[part], 0.95)}
        record |= {f"{kind}_two_way": metrics.rmse(actual[part], two_way[part])}
    return record | {"kernel": str(gp.kernel_), "warnings": [str(one.message)[:300] for one in caught]}


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """Run each size in a process of its own, and write the JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=(*SIZES, TINY))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--here", action="store_true", help="run in this process, and print the record as JSON")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the JSON file, and run the others")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    if options.here:
        print(json.dumps([run(size, options.seed) for size in options.sizes]), flush=True)
        return
    where = commit()
    settings = {"threads": 1, "noise_std": _NOISE}
    records = earlier_rows(parser, options)
    for size in (one for one in options.sizes if one not in {row["size"] for row in records}):
        command = [sys.executable, __file__, "--here", "--sizes", size, "--seed", str(options.seed)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        failed = {"size": size, "failed": done.returncode}
        records += json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else [failed]
        records[-1] |= {"commit": where}
        print(records[-1], flush=True)
        if options.json is not None:
            text = json.dumps({"settings": settings, "rows": records}, indent=1)
            options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
