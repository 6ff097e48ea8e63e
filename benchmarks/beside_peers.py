"""Default fits beside those of other packages, on twelve public tables of 100 to a million rows.

    pip install gpboost
    python benchmarks/beside_peers.py --data ../shared/data --json benchmarks/results/beside_peers.json
    python benchmarks/beside_peers.py --json benchmarks/results/beside_peers.json --page   # docs/beside-peers.md

Each package is used as its documentation introduces it, on inputs and targets that are standardized by the training
rows, in one thread and a process of its own, which is ended after some CPU seconds or beyond 16 GiB. Where a package
was ended, it does not see a larger table. Errors are in standard deviations of the target. The seconds are those of fit
and prediction, without imports and reading.

A package that is not installed is left out. TabPFN can be installed, but its weights have to be downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from checkout import commit
from children import ONE_THREAD

ROOT = Path(__file__).parents[1]
_MEMORY = 16 * 2**30

Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
#: Mean and standard deviation of measurements, the second where the package has it.
Predicted = tuple[np.ndarray, np.ndarray | None]


# Tables: X, y, X_test, y_test in their own units


def _apart(X: np.ndarray, y: np.ndarray, share: float = 0.25) -> Rows:
    """Leave out a random share of the rows."""
    order = np.random.default_rng(0).permutation(len(y))
    test, train = np.split(order, [round(share * len(y))])
    return X[train], y[train], X[test], y[test]


def _columns(file: Path, *names: str) -> list[np.ndarray]:
    import pandas as pd

    frame = pd.read_parquet(file, columns=list(names)).dropna()
    return [frame[name].to_numpy(float) for name in names]


def _meuse(folder: Path) -> Rows:
    x, y, dist, zinc = _columns(folder / "geostatistics/meuse.parquet", "x", "y", "dist.m", "zinc")
    return _apart(np.c_[x, y, dist], np.log(zinc))


def _jura(folder: Path) -> Rows:
    parts = []
    for file in ("jura-prediction", "jura-validation"):
        x, y, cadmium = _columns(folder / f"geostatistics/{file}.parquet", "Xloc", "Yloc", "Cd")
        parts += [np.c_[x, y], cadmium]
    return tuple(parts)  # type: ignore[return-value]


def _diabetes(folder: Path) -> Rows:
    from sklearn.datasets import load_diabetes

    return _apart(*load_diabetes(return_X_y=True))


def _uci(name: str, columns: slice = slice(None), rows: int | None = None) -> Callable[[Path], Rows]:
    def read(folder: Path) -> Rows:
        from splits import read_split

        X, y, X_test, y_test = read_split(folder, name, rows=rows)
        return X[:, columns], y, X_test[:, columns], y_test

    return read


def _heaton(folder: Path) -> Rows:
    import pandas as pd

    frame = pd.read_parquet(folder / "heaton/simulated.parquet")
    seen = frame["MaskTemp"].notna().to_numpy()
    X, y = frame[["Lon", "Lat"]].to_numpy(float), frame["TrueTemp"].to_numpy(float)
    return X[seen], y[seen], X[~seen], y[~seen]


def _map(name: str) -> Callable[[Path], Rows]:
    def read(folder: Path) -> Rows:
        from maps import read_map

        return _apart(*read_map(folder, name), share=0.1)

    return read


def _radar(folder: Path) -> Rows:
    import pyarrow.parquet

    frame = pyarrow.parquet.read_table(folder / "radar/klbb-2016-06-01.parquet").to_pandas().dropna().to_numpy(float)
    return _apart(frame[:, :3], frame[:, 3], share=0.1)


#: By their number of rows. The last two columns of bike add up to the target.
TABLES: dict[str, Callable[[Path], Rows]] = {
    "meuse": _meuse,
    "jura": _jura,
    "diabetes": _diabetes,
    "parkinsons, 2,000 rows": _uci("parkinsons", rows=2000),
    "pol": _uci("pol"),
    "elevators": _uci("elevators"),
    "bike": _uci("bike", slice(0, -2)),
    "kin40k": _uci("kin40k"),
    "protein": _uci("protein"),
    "simulated map": _heaton,
    "elevation": _map("elevation"),
    "radar": _radar,
}


# Packages: mean and standard deviation at the test rows, from standardized rows


def _gigagp(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> Predicted:
    from gigagp import GPRegressor

    return GPRegressor().fit(X, y).predict(X_test, return_std=True, include_noise=True)


def _sklearn(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> Predicted:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    kernel = ConstantKernel() * Matern(np.ones(X.shape[1]), nu=1.5) + WhiteKernel()
    found = GaussianProcessRegressor(kernel, normalize_y=True).fit(X, y)
    return found.predict(X_test, return_std=True)


def _gpytorch(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> Predicted:
    """Fifty steps of Adam, as in its first tutorial."""
    import gpytorch
    import torch

    rows, targets, points = (torch.from_numpy(array).float() for array in (X, y, X_test))

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(rows, targets, likelihood)
            self.mean_module, self.covar_module = _mean_and_covariance(X.shape[1])

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(likelihood)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(50):
        optimizer.zero_grad()
        loss = -objective(model(rows), targets)
        loss.backward()
        optimizer.step()
    return _predicted(model.eval(), likelihood.eval(), points)


def _svgp(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> Predicted:
    """500 inducing points and batches of 1,024 rows, as in its tutorial; four epochs, and at least a thousand steps."""
    import gpytorch
    import torch

    torch.manual_seed(0)
    rows, targets, points = (torch.from_numpy(array).float() for array in (X, y, X_test))
    inducing = rows[torch.randperm(len(y))[:500]].clone()

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            distribution = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
            super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, distribution))
            self.mean_module, self.covar_module = _mean_and_covariance(X.shape[1])

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model, likelihood = Model(), gpytorch.likelihoods.GaussianLikelihood()
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    batches = -(-len(y) // 1024)
    for _ in range(max(4, -(-1000 // batches))):
        for chosen in torch.randperm(len(y)).split(1024):
            optimizer.zero_grad()
            loss = -objective(model(rows[chosen]), targets[chosen])
            loss.backward()
            optimizer.step()
    return _predicted(model.eval(), likelihood.eval(), points)


def _mean_and_covariance(n_inputs: int) -> tuple[Any, Any]:
    import gpytorch

    matern = gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=n_inputs)
    return gpytorch.means.ConstantMean(), gpytorch.kernels.ScaleKernel(matern)


def _predicted(model: Any, likelihood: Any, points: Any) -> Predicted:
    import gpytorch
    import torch

    with torch.no_grad(), gpytorch.settings.fast_pred_var():
        found = [likelihood(model(block)) for block in points.split(1024)]
    mean = torch.cat([one.mean for one in found]).double().numpy()
    return mean, torch.cat([one.variance for one in found]).double().sqrt().numpy()


def _gpboost(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> Predicted:
    """Vecchia's approximation, which its documentation recommends for large tables, beyond 1,000 rows."""
    import gpboost

    large = {"gp_approx": "vecchia"} if len(y) > 1000 else {}
    model = gpboost.GPModel(
        gp_coords=X,
        cov_function="matern_ard",
        cov_fct_shape=1.5,
        likelihood="gaussian",
        num_parallel_threads=1,
        **large,
    )
    model.fit(y=y, X=np.ones((len(y), 1)))
    found = model.predict(
        gp_coords_pred=X_test, X_pred=np.ones((len(X_test), 1)), predict_var=True, predict_response=True
    )
    return found["mu"], np.sqrt(found["var"])


def _trees(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> Predicted:
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(random_state=0).fit(X, y).predict(X_test), None


#: What a package is called on the page, what it imports, and its fit.
PACKAGES: dict[str, tuple[str, Callable[[np.ndarray, np.ndarray, np.ndarray], Predicted]]] = {
    "gigagp": ("gigagp", _gigagp),
    "scikit-learn": ("sklearn", _sklearn),
    "GPyTorch, exact": ("gpytorch", _gpytorch),
    "GPyTorch, SVGP": ("gpytorch", _svgp),
    "GPBoost": ("gpboost", _gpboost),
    "boosted trees": ("sklearn", _trees),
}


def child(folder: Path, table: str, package: str, limit: int) -> dict[str, Any]:
    """Return the scores of one fit; the process ends itself at the limits."""
    module, fit = PACKAGES[package]
    try:
        __import__(module)
    except ImportError:
        return {"ended": "not installed"}
    X, y, X_test, y_test = TABLES[table](folder)
    centre, spread = X.mean(0), X.std(0)
    spread[spread == 0] = 1.0
    middle, scale = y.mean(), y.std()
    X, X_test, y, y_test = (
        (X - centre) / spread,
        (X_test - centre) / spread,
        (y - middle) / scale,
        (y_test - middle) / scale,
    )
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    used = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + limit, used + limit + 5))
    began = time.process_time()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            mean, std = fit(X, y, X_test)
        except (MemoryError, RuntimeError) as error:
            if "alloc" not in str(error) and not isinstance(error, MemoryError):
                raise
            return {"ended": "16 GiB", "rows": len(y)}
    seconds, peak = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    from gigagp import metrics  # after the measurement, whose memory it would be part of

    row: dict[str, Any] = {
        "rows": len(y),
        "inputs": X.shape[1],
        "test_rows": len(y_test),
        "cpu_s": seconds,
        "peak_gib": peak,
        "rmse": metrics.rmse(y_test, mean),
        "warnings": sorted({one.category.__name__ for one in warned}),
    }
    if std is not None:
        row["nll"] = metrics.gaussian_nll(y_test, mean, std)
        row["coverage"] = metrics.coverage(y_test, mean, std, 0.95)
    return row


def run(folder: Path, table: str, package: str, limit: int) -> dict[str, Any]:
    """Return the row of a table and a package, from a process of its own."""
    command = [sys.executable, __file__, "--data", str(folder), "--limit", str(limit), "--child", table, package]
    done = subprocess.run(command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, check=False)
    named = {"table": table, "package": package, "commit": commit()}
    if done.returncode == 0:
        return named | json.loads(done.stdout.splitlines()[-1])
    if done.returncode in {-9, -24}:  # SIGKILL, SIGXCPU
        return named | {"ended": f"{limit} CPU s"}
    return named | {"ended": "failed: " + (done.stderr.strip().splitlines() or ["?"])[-1][:200]}


def main() -> None:
    """Run what is not in the file yet, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--packages", nargs="+", default=list(PACKAGES), choices=PACKAGES)
    parser.add_argument("--limit", type=int, default=600, help="CPU seconds of fit and prediction")
    parser.add_argument("--json", type=Path, default=Path("beside_peers.json"))
    parser.add_argument("--child", nargs=2, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--page", action="store_true", help="write the page and its picture from the file")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.data, *options.child, options.limit)))
        return
    rows = json.loads(options.json.read_text(encoding="utf-8"))["rows"] if options.json.exists() else []
    if options.page:
        from beside_peers_page import write

        write(rows)
        return
    for table in options.tables:
        for package in options.packages:
            if any(row["table"] == table and row["package"] == package for row in rows):
                continue
            if any(row["package"] == package and "ended" in row for row in rows):
                row = {"table": table, "package": package, "ended": "not tried"}
            else:
                row = run(options.data.resolve(), table, package, options.limit)
            rows.append(row)
            print({key: value for key, value in row.items() if key != "commit"}, flush=True)
            options.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
