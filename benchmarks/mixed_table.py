"""`gigagp fit` on a CSV with texts, dates and missing cells, beside a pipeline of boosted trees.

    python benchmarks/mixed_table.py --rows 3000 --json benchmarks/results/mixed_table.json

The table is made from a known function of five text columns, a date and three numbers; a tenth of the cells of two
columns is missing, and one column numbers the rows. Three ways to learn it from the same rows:

- ``gigagp``: one command, ``gigagp fit train.csv --target price``, and ``gigagp predict`` for the held-out rows.
- ``dummies``: one-hot columns made by pandas, medians for missing cells and days for dates, in
  ``GPRegressor()`` without its encoder: standardized one-hot columns with one lengthscale each.
- ``trees``: a scikit-learn pipeline of an ordinal encoder and ``HistGradientBoostingRegressor`` with categorical
  features and defaults otherwise, with year, month and day of the year made from the date by hand.

Scores are RMSE of held-out rows, beside the deviation of the noise, and the NLL of the Gaussian predictions. Seconds
are wall and CPU seconds of each process from reading the file to the written predictions, imports included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from checkout import commit

#: Standard deviation of the noise.
NOISE = 0.3
TEXTS = {"city": 8, "product": 20, "supplier": 70, "colour": 4, "grade": 3}


def make(rows: int, seed: int) -> pd.DataFrame:
    """Return a table; ``price`` is a known function of its columns with noise."""
    rng = np.random.default_rng(seed)
    known = np.random.default_rng(0)  # the function does not depend on the seed of the rows
    columns: dict[str, Any] = {"order": [f"no-{seed}-{k}" for k in range(rows)]}
    effects = {}
    for name, count in TEXTS.items():
        weights = 1.0 / np.arange(1, count + 1)
        codes = rng.choice(count, rows, p=weights / weights.sum())
        columns[name] = np.array([f"{name}{code}" for code in range(count)], dtype=object)[codes]
        effects[name] = known.normal(size=count)[codes]
    slopes = known.normal(size=TEXTS["product"])[np.array([int(text[7:]) for text in columns["product"]])]
    days = rng.integers(0, 1400, rows)
    columns["date"] = (np.datetime64("2019-03-01") + days).astype(str)
    area, age, score = rng.normal(size=(3, rows))
    target = effects["city"] + 0.7 * effects["supplier"] + 0.5 * effects["grade"] + 0.8 * slopes * area
    target += np.sin(2 * area) + np.sin(2 * np.pi * days / 365.2425) * (1 + 0.5 * effects["city"]) + days / 700
    target += 0.7 * np.exp(-np.square(age)) * effects["city"]
    columns |= {"area": 100 + 20 * area, "age": np.where(rng.random(rows) < 0.1, np.nan, 10 + 3 * age), "score": score}
    columns["city"] = np.where(rng.random(rows) < 0.1, None, columns["city"])
    columns["price"] = target + NOISE * rng.normal(size=rows)
    return pd.DataFrame(columns).round(4)


def dummies(train: pd.DataFrame, test: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Fit one-hot columns made by pandas as plain numbers."""
    from gigagp import GPRegressor, kernels

    both = pd.concat([train, test]).drop(columns=["order", "price"])
    both["date"] = (pd.to_datetime(both["date"]) - pd.Timestamp("2019-03-01")).dt.days
    both["age"] = both["age"].fillna(train["age"].median())
    X = pd.get_dummies(both, columns=list(TEXTS), dummy_na=True, dtype=float)
    gp = GPRegressor(kernels.Matern(nu=1.5)).fit(X[: len(train)], train["price"])
    return gp.predict(X[len(train) :], return_std=True, include_noise=True)


def trees(train: pd.DataFrame, test: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Fit boosted trees; their standard deviation is that of the residuals of held-out training rows."""
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder

    def prepared(frame: pd.DataFrame) -> pd.DataFrame:
        date = pd.to_datetime(frame["date"])
        parts = {
            "day": (date - pd.Timestamp("2019-03-01")).dt.days,
            "month": date.dt.month,
            "yearday": date.dt.day_of_year,
        }
        return frame.drop(columns=["order", "price", "date"]).assign(**parts)

    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan, encoded_missing_value=np.nan)
    model = make_pipeline(
        make_column_transformer((codes, list(TEXTS)), remainder="passthrough"),
        HistGradientBoostingRegressor(categorical_features=list(range(len(TEXTS))), random_state=0),
    )
    X = prepared(train)
    spread = np.std(cross_val_predict(model, X, train["price"], cv=5) - train["price"])
    mean = model.fit(X, train["price"]).predict(prepared(test))
    return mean, np.full(len(mean), spread)


def child(which: str, folder: Path) -> None:
    """Run one way in this process and write its predictions."""
    train, test = pd.read_csv(folder / "train.csv"), pd.read_csv(folder / "test.csv")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mean, std = (dummies if which == "dummies" else trees)(train, test)
    pd.DataFrame({"mean": mean, "std": std}).to_csv(folder / f"{which}.csv", index=False)


def timed(commands: list[list[str]], environment: dict[str, str]) -> tuple[float, float]:
    """Return wall and CPU seconds of commands, one after the other."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    for command in commands:
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--test-rows", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ways", nargs="+", default=["gigagp", "dummies", "trees"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child[0], Path(arguments.child[1]))
        return
    source = str(Path(__file__).resolve().parents[1] / "src")
    environment = {**os.environ, "PYTHONPATH": source}
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(arguments.rows, arguments.seed).to_csv(folder / "train.csv", index=False)
        test = make(arguments.test_rows, arguments.seed + 1000)
        test.to_csv(folder / "test.csv", index=False)
        gigagp = [sys.executable, "-m", "gigagp"]
        model, out = str(folder / "m.gp"), str(folder / "gigagp.csv")
        for way in arguments.ways:
            commands = [[sys.executable, __file__, "--child", way, name]]
            if way == "gigagp":
                commands = [
                    [*gigagp, "fit", str(folder / "train.csv"), "--target", "price", "-o", model, "-q"],
                    [*gigagp, "predict", model, str(folder / "test.csv"), "--include-noise", "-o", out],
                ]
            wall, cpu = timed(commands, environment)
            found = pd.read_csv(folder / f"{way}.csv")
            error = found["mean"] - test["price"]
            nll = np.mean(0.5 * np.square(error / found["std"]) + np.log(found["std"]) + 0.5 * np.log(2 * np.pi))
            results.append(
                {
                    "way": way,
                    "rows": arguments.rows,
                    "test_rows": arguments.test_rows,
                    "seed": arguments.seed,
                    "noise": NOISE,
                    "rmse": float(np.sqrt(np.mean(np.square(error)))),
                    "nll": float(nll),
                    "seconds": wall,
                    "cpu_seconds": cpu,
                }
            )
            print(
                f"{way:8s} RMSE {results[-1]['rmse']:.3f} (noise {NOISE}), NLL {results[-1]['nll']:.3f}, "
                f"{wall:.1f} s, {cpu:.1f} CPU s"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps({"commit": commit(), "rows": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
