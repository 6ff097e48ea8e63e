"""Write model files by one checkout of gigagp, and see what another one reads from them.

    git worktree add ../before 04a5003                             # and build its native module there
    PYTHONPATH=../before/src python benchmarks/model_files.py write FOLDER
    PYTHONPATH=src python benchmarks/model_files.py read FOLDER --json benchmarks/results/model_files.json

``write`` fits 80 rows of two inputs by every inference and by what else a file can hold, and saves each fit with its
predictions. ``read`` predicts again: the same bits, or the largest difference relative to the largest prediction.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkout import commit

import gigagp
from gigagp import GPClassifier, GPRegressor, actions, inference, kernels, load
from gigagp.errors import GigaGPError

random = np.random.default_rng(0)
X = random.uniform(0, 3, (80, 2))
Y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * random.normal(size=80)
COUNTS = random.poisson(np.exp(Y / 2))
LABELS = np.where(Y > 0.5, "a", "b")
NEW = random.uniform(-0.2, 3.2, (15, 2))


def mixed(rows: np.ndarray) -> np.ndarray:
    """Return rows with a column of texts."""
    return np.column_stack([rows.astype(object), np.where(rows[:, 0] > 1, "a", "b")])


def regression(y: np.ndarray = Y, **settings: Any) -> Callable[[], GPRegressor]:
    return lambda: GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | settings).fit(X, y)


BOX = kernels.RBF([0.5, 0.5])
FITS: dict[str, Callable[[], Any]] = {
    "exact": regression(),
    "iterative": regression(inference=inference.Iterative()),
    "grid": regression(kernel=BOX, inference=inference.Grid(size=12)),
    "random features": regression(inference=inference.RandomFeatures(n_features=50)),
    "sparse variational": regression(inference=inference.SparseVariational(n_inducing=20)),
    "neighbours": regression(inference=inference.Vecchia(n_neighbors=10)),
    "computation-aware": regression(inference=inference.ComputationAware(10)),
    "conjugate actions": regression(inference=inference.ComputationAware(10, actions.ConjugateGradients())),
    "quadruply stochastic": regression(inference=inference.QuadruplyStochastic(n_basis=50)),
    "relevance vectors": regression(inference=inference.RelevanceVectorMachine()),
    "classes": lambda: GPClassifier().fit(X, LABELS),
    "classes, neighbours": lambda: GPClassifier(inference=inference.Vecchia(n_neighbors=10)).fit(X, LABELS),
    "counts": regression(COUNTS, likelihood="poisson"),
    "counts, neighbours": regression(COUNTS, likelihood="poisson", inference=inference.Vecchia(n_neighbors=10)),
    "Student-t noise": regression(likelihood="student-t"),
    "transform": regression(np.exp(Y), target_transform="yeo-johnson"),
    "linear mean": regression(mean="linear"),
    "encoded": lambda: GPRegressor(encode="auto").fit(mixed(X), Y),
    "two outputs": regression(np.column_stack([Y, COUNTS])),
    "average of kernels": regression(kernel="average"),
}


def predicted(model: Any, name: str) -> np.ndarray:
    rows = mixed(NEW) if name == "encoded" else NEW
    if name.startswith("classes"):
        return model.predict_proba(rows)
    # `predict` of counts was of the latent function before `predict_latent` was there
    answer = getattr(model, "predict_latent", model.predict) if name.startswith("counts") else model.predict
    return np.stack(answer(rows, return_std=True))


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "commit").write_text(commit(Path(gigagp.__file__).parents[2]), encoding="utf-8")
    for name, fit in FITS.items():
        model = fit()
        model.save(folder / f"{name}.gp")
        np.save(folder / f"{name}.npy", predicted(model, name))
        print(name, flush=True)


def read(folder: Path) -> list[dict[str, Any]]:
    rows = []
    for name in FITS:
        wanted = np.load(folder / f"{name}.npy")
        try:
            found = predicted(load(folder / f"{name}.gp"), name)
        except (GigaGPError, ValueError) as refused:
            rows.append({"file": name, "refused": str(refused)})
        else:
            error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
            rows.append({"file": name, "same_bits": bool(np.array_equal(found, wanted)), "relative_difference": error})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["write", "read"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.mode == "write":
        write(options.folder)
        return
    report = {
        "command": " ".join(["python", *sys.argv]),
        "written_at": (options.folder / "commit").read_text(encoding="utf-8"),
        "commit": commit(Path(gigagp.__file__).parents[2]),
        "rows": read(options.folder),
    }
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
