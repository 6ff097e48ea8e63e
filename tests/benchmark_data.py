"""A data folder as benchmarks read it, with small made tables under the names of the real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np

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
"""


def make_folder(folder: Path, n_rows: int = 90) -> Path:
    """Write ``load.py`` and every table: four inputs, one of them constant and one badly scaled, and repeated rows."""
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
    (folder / "load.py").write_text(_LOAD)
    return folder
