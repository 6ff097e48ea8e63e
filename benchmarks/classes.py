"""Log loss and CPU seconds of classifiers on ten tables of two to eleven classes.

    python benchmarks/classes.py --json benchmarks/results/classes.json
    python benchmarks/classes.py --src ../before/src --methods default --json benchmarks/results/classes.json

Three tables come with scikit-learn, and three are of real data: rock types of the Jura, whether it rained at a place
and day, and the values of pol as classes. The labels of the others are drawn from known probabilities, and ``excess``
is the mean Kullback-Leibler divergence from these to the predicted ones. All methods predict the same rows with the
same standardized inputs, in one thread. Gradient boosting, the forest of 500 trees and logistic regression have
scikit-learn's defaults, the support vectors are calibrated by five folds, and probabilities count as at least 1e-3 over
the number of classes, because a forest gives zeros. "plain" has the first of the kernels between which "default"
chooses; ``kernel`` is what it chose.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from children import OWN, measure
from splits import read_split_as_it_is


class Table(NamedTuple):
    """Inputs and labels to fit, those to predict, and the true probabilities there, if they are known."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    truth: np.ndarray | None = None

    @classmethod
    def split(cls, X: np.ndarray, y: np.ndarray, rows: int, test_rows: int) -> Table:
        """Return random rows to fit, and others to predict."""
        order = np.random.default_rng(0).permutation(len(y))
        train, test = order[:rows], order[rows : rows + test_rows]
        return cls(X[train], y[train], X[test], y[test])


def made(rows: int, inputs: int, classes: int, imbalance: float = 0.0, test_rows: int = 2000) -> Table:
    """Return labels of random smooth functions of up to six inputs; with ``imbalance`` later classes are rarer."""
    rng = np.random.default_rng([rows, inputs, classes])
    X, waves = rng.normal(size=(rows + test_rows, inputs)), 40
    seen = X[:, :6]
    logits = np.zeros((len(X), classes))
    for k in range(1 if classes == 2 else 0, classes):
        frequencies = 1.2 * rng.normal(size=(seen.shape[1], waves)) / np.sqrt(seen.shape[1])
        phases = rng.uniform(0, 2 * np.pi, waves)
        logits[:, k] = np.cos(seen @ frequencies + phases) @ rng.normal(size=waves) * 2.5 * np.sqrt(2 / waves)
        logits[:, k] -= imbalance * k
    truth = np.exp(logits - logits.max(1, keepdims=True))
    truth /= truth.sum(1, keepdims=True)
    y = (truth.cumsum(1) > rng.uniform(size=len(X))[:, None]).argmax(1)
    return Table(X[:rows], y[:rows], X[rows:], y[rows:], truth[rows:])


def bundled(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a table of scikit-learn."""
    from sklearn import datasets

    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return X, y


def jura(data: Path) -> Table:
    """Return rock types by place and metals."""
    import pandas as pd

    parts = [pd.read_parquet(data / "geostatistics" / f"jura-{name}.parquet") for name in ("prediction", "validation")]
    columns = ["Xloc", "Yloc", "Cd", "Co", "Cr", "Cu", "Ni", "Pb", "Zn"]
    fit, test = ((one[columns].to_numpy(float), one["Rock"].to_numpy(int)) for one in parts)
    return Table(*fit, *test)


def rain(data: Path, rows: int) -> Table:
    """Return whether there was rain, by place and day."""
    import pandas as pd

    found = pd.read_parquet(data / "precipitation" / "january-2010.parquet")
    X = found[["longitude", "latitude", "day"]].to_numpy(float)
    return Table.split(X, (found["precipitation"] > 0).to_numpy(int), rows, 2000)


def values(data: Path, rows: int) -> Table:
    """Return the eleven values of pol as classes."""
    X, y, X_test, y_test = read_split_as_it_is(data, "pol")
    X, y = np.concatenate([X, X_test]), np.concatenate([y, y_test])
    return Table.split(X, np.unique(y, return_inverse=True)[1], rows, 2000)


TABLES: dict[str, Callable[[Path, float], Table]] = {
    "digits": lambda data, share: Table.split(*bundled("digits"), int(1203 * share), 594),
    "breast cancer": lambda data, share: Table.split(*bundled("breast_cancer"), int(379 * share), 190),
    "wine": lambda data, share: Table.split(*bundled("wine"), int(118 * share), 60),
    "jura": lambda data, share: jura(data),
    "rain": lambda data, share: rain(data, int(3000 * share)),
    "pol": lambda data, share: values(data, int(1000 * share)),
    "four inputs, four classes": lambda data, share: made(int(2010 * share), 4, 4),
    "twenty inputs, three classes": lambda data, share: made(int(2010 * share), 20, 3),
    "six inputs, two classes": lambda data, share: made(int(3000 * share), 6, 2),
    "two inputs, six uneven classes": lambda data, share: made(int(1500 * share), 2, 6, imbalance=0.7),
}


def classifier(method: str) -> Any:
    """Return an unfitted classifier."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import SVC

    if method in ("default", "plain", "vecchia"):
        from gigagp import GPClassifier, inference, kernels

        kernel = kernels.RBF() if method == "plain" else None
        return GPClassifier(kernel, inference.Vecchia() if method == "vecchia" else "auto", verbose=0)
    return {
        "boosting": lambda: HistGradientBoostingClassifier(random_state=0),
        "forest": lambda: RandomForestClassifier(500, random_state=0),
        "logistic": lambda: LogisticRegression(max_iter=1000),
        "support vectors": lambda: CalibratedClassifierCV(SVC(random_state=0), ensemble=False),
    }[method]()


METHODS = ("default", "plain", "vecchia", "boosting", "forest", "logistic", "support vectors")


def fit(data: Path, name: str, method: str, share: float) -> dict[str, Any]:
    """Return log loss, accuracy and seconds."""
    warnings.simplefilter("ignore")
    table = TABLES[name](data, share)
    centre, spread = table.X.mean(0), table.X.std(0)
    X, X_test = ((one - centre) / np.where(spread > 0, spread, 1.0) for one in (table.X, table.X_test))
    estimator = classifier(method)
    start = time.process_time()
    estimator.fit(X, table.y)
    fitted = time.process_time()
    found = estimator.predict_proba(X_test)
    end = time.process_time()
    count = int(max(table.y.max(), table.y_test.max())) + 1
    probability = np.zeros((len(X_test), count))
    probability[:, estimator.classes_.astype(int)] = found
    probability = np.maximum(probability, 1e-3 / count)
    probability /= probability.sum(1, keepdims=True)
    row = {
        "rows": len(X),
        "inputs": X.shape[1],
        "classes": len(estimator.classes_),
        "log_loss": float(-np.log(probability[np.arange(len(X_test)), table.y_test]).mean()),
        "accuracy": float((probability.argmax(1) == table.y_test).mean()),
        "fit_cpu_s": fitted - start,
        "predict_cpu_s": end - fitted,
    }
    latent = getattr(estimator, "latent_", None)
    if latent is not None and latent.kernel_choice_ is not None:
        row["kernel"] = next(one.name for one in latent.kernel_choice_.tried if one.weight)
    if table.truth is not None:
        logs = np.log(np.maximum(table.truth, 1e-300)) - np.log(probability)
        row["excess"] = float((table.truth * logs).sum(1).mean())
    return row


def main() -> None:
    """Fit every table by every method, and write the JSON after each fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--src", type=Path, default=OWN)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--share", type=float, default=1.0, help="share of the rows to fit")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--child", nargs=2, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(fit(options.data, *options.child, options.share)))
        return
    cells = [
        (
            {"table": table, "method": method, "share": options.share},
            ["--data", str(options.data), "--share", str(options.share), "--child", table, method],
        )
        for table in options.tables
        for method in options.methods
    ]
    measure(__file__, cells, options.src, options.json)


if __name__ == "__main__":
    main()
