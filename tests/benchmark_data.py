"""A data folder as benchmarks read it, with small made tables and maps under the names of the real ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

TABLES = ("pol", "elevators", "bike", "protein", "keggdirected", "kin40k", "parkinsons")
_LOAD = """
from pathlib import Path
import numpy as np

def uci(name, split=0, scale=True):
    table, mask = (np.loadtxt(Path(__file__).parent / "uci" / name / f"{part}.csv.gz", delimiter=",")
                   for part in ("data", "test_mask"))
    train, test = table[mask[:, split] == 0], table[mask[:, split] == 1]
    if scale:
        centre, spread = train.mean(0), train.std(0)
        spread[spread == 0] = 1.0
        train, test = (train - centre) / spread, (test - centre) / spread
    return train[:, :-1], train[:, -1], test[:, :-1], test[:, -1]

def table(path):
    import pyarrow.parquet
    return pyarrow.parquet.read_table(Path(__file__).parent / path)
"""


def make_folder(folder: Path, n_rows: int = 90) -> Path:
    """Write ``load.py``, maps, and every table: four inputs, one constant and one badly scaled, and repeated rows."""
    random = np.random.default_rng(0)
    X = random.uniform(size=(n_rows, 4))
    X[:, 2] = 3.0
    X[:, 3] *= 1e-5
    X[1] = X[0]
    y = np.sin(6 * X[:, 0]) + X[:, 1] + 0.1 * random.normal(size=n_rows)
    mask = (np.arange(n_rows)[:, None] + np.arange(10)) % 10 == 0
    for name in TABLES:
        (folder / "uci" / name).mkdir(parents=True)
        np.savetxt(folder / "uci" / name / "data.csv.gz", np.column_stack([X, y]), delimiter=",")
        np.savetxt(folder / "uci" / name / "test_mask.csv.gz", mask, delimiter=",", fmt="%d")
    for name, map_ in make_maps().items():
        (folder / name).parent.mkdir(exist_ok=True)
        map_.to_parquet(folder / name, index=False)
    (folder / "load.py").write_text(_LOAD, encoding="utf-8")
    tuned = {"split": 0, "length_scale": [0.8, 1.5, 2.0, 2.0], "signal_scale": 1.2, "noise_scale": 0.2}
    text = json.dumps([{"dataset": name, **tuned} for name in TABLES])
    (folder / "uci" / "tuned-matern32-hyperparameters.json").write_text(text, encoding="utf-8")
    return folder


def make_maps() -> dict[str, pd.DataFrame]:
    """Return a record with a gap, its gap, pixels of a map (one corner, a window far from it), and stations by day."""
    random = np.random.default_rng(1)
    sample = np.arange(1.0, 81.0)
    sound = pd.DataFrame({"sample": sample, "amplitude": 0.05 * np.sin(sample / 8) + 0.01 * random.normal(size=80)})
    gap = (sample > 40) & (sample <= 46)
    i, j = (part.ravel() for part in np.meshgrid(np.arange(300, 314), np.arange(200, 212), indexing="ij"))
    i, j = np.concatenate([[0, 1], i]), np.concatenate([[0, 1], j])  # the corner tells the size of a pixel
    height = 1000 + 500 * np.sin(i / 4) * np.cos(j / 5) + 10 * random.normal(size=len(i))
    pixels = pd.DataFrame({"longitude": -120 + i / 24, "latitude": 30 + j / 24, "elevation": height})
    station, day = (part.ravel() for part in np.meshgrid(np.arange(30), np.arange(1.0, 6.0), indexing="ij"))
    places = random.uniform((-110, 30), (-90, 45), size=(30, 2))[station]
    weather = pd.DataFrame({"longitude": places[:, 0], "latitude": places[:, 1], "day": day})
    value = np.sin(places[:, 0] / 4) + 0.1 * day + 0.1 * random.normal(size=len(day))
    return {
        "temperature/noaa-tmax-1990-93.parquet": weather.assign(tmax_fahrenheit=60 + 10 * value),
        "precipitation/january-2010.parquet": weather.assign(precipitation=np.maximum(value, 0.0)),
        "sound/train.parquet": sound[~gap],
        "sound/test.parquet": sound[gap],
        "elevation/us-prism.parquet": pixels,
    }
