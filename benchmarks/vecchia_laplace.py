"""Compare Vecchia-Laplace inference with quadruply stochastic inference and GPBoost on labels, counts and outliers.

    python -m venv ../venv_gpb && ../venv_gpb/bin/pip install gpboost
    python benchmarks/vecchia_laplace.py --peer ../venv_gpb/bin/python --json benchmarks/results/vecchia_laplace.json

Rows are places of the map of elevation. With z the standardized logarithm of the elevation, a label has the log-odds
``3 z``, and a count the rate ``exp(1 + z)``. Measurements of z ("outliers") have an error of 0.1 times Student's t with
four degrees of freedom, and a tenth of them is off by 5 to 50. They are fitted with Student-t noise, by quadruply
stochastic inference with Laplace noise, and as a control with Gaussian noise. A tenth of the rows is predicted. All
take a Matern-3/2 kernel with one lengthscale for each input and no mean, on standardized inputs and one thread; each
run is a process of its own that is stopped at a limit. GPBoost has the same number of neighbours and its defaults
otherwise. The seconds are the CPU's, of fit and prediction, without imports and reading. Log scores are those of the
predictive distribution, by quadrature over the latent function.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

#: GPBoost's names of likelihoods, and numbers of neighbours of a row and of a point.
PEER_LIKELIHOODS, NEIGHBOURS = {"labels": "bernoulli_logit", "counts": "poisson", "outliers": "t"}, 30
CONTROL = "vecchia, Gaussian noise"


def peer(file: Path, kind: str) -> None:
    """Fit GPBoost to the rows in a file and print seconds; the latent predictions go to a file beside it."""
    import gpboost

    with np.load(file) as data:
        X, y, X_test = data["X"], data["y"], data["X_test"]
    start = time.process_time()
    model = gpboost.GPModel(
        gp_coords=X,
        cov_function="matern_ard",
        cov_fct_shape=1.5,
        likelihood=PEER_LIKELIHOODS[kind],
        gp_approx="vecchia",
        num_neighbors=NEIGHBOURS,
        num_parallel_threads=1,
        seed=0,
    )
    model.fit(y=np.maximum(y, 0.0) if kind == "labels" else y)
    fitted = time.process_time()
    found = model.predict(gp_coords_pred=X_test, predict_var=True, predict_response=False)
    end = time.process_time()
    np.savez(file.with_name("found.npz"), mean=found["mu"], variance=found["var"])
    parameters = np.asarray(model.get_cov_pars()).ravel().tolist()
    record = {"fit_cpu_s": fitted - start, "predict_cpu_s": end - fitted, "fitted": str(parameters)}
    record["log_evidence"] = -float(model.get_current_neg_log_likelihood())
    print(json.dumps(record | {"version": gpboost.__version__}))


def own(file: Path, kind: str, way: str) -> None:
    """Do the same with an inference of gigagp."""
    import torch

    from gigagp import GPRegressor, inference, kernels

    torch.set_num_threads(1)
    methods = {
        "vecchia": inference.Vecchia(NEIGHBOURS),
        CONTROL: inference.Vecchia(NEIGHBOURS),
        "vecchia, learns from all rows": inference.Vecchia(NEIGHBOURS, learning_rows=10**9),
        "quadruply stochastic": inference.QuadruplyStochastic(),
    }
    with np.load(file) as data:
        X, y, X_test = data["X"], data["y"], data["X_test"]
    start = time.process_time()
    likelihood = {"labels": "logistic", "counts": "poisson", "outliers": "student-t"}[kind]
    if kind == "outliers" and way != "vecchia":
        likelihood = "gaussian" if way == CONTROL else "laplace"
    gp = GPRegressor(kernels.Matern(nu=1.5), methods[way], mean="zero", likelihood=likelihood).fit(X, y)
    fitted = time.process_time()
    mean, std = gp.predict_latent(X_test, return_std=True)
    end = time.process_time()
    np.savez(file.with_name("found.npz"), mean=mean, variance=std**2)
    value, error = gp.log_marginal_likelihood(standardized=True)
    record = {"fit_cpu_s": fitted - start, "predict_cpu_s": end - fitted, "fitted": repr(gp.kernel_)}
    print(json.dumps(record | {"log_evidence": value, "standard_error": error}))


def scores(kind: str, y: np.ndarray, latent: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> dict[str, float]:
    """Return scores of the predictive distribution, and the error of the latent mean."""
    from scipy.special import gammaln, logsumexp
    from sklearn.metrics import roc_auc_score

    places, weights = np.polynomial.hermite_e.hermegauss(61)
    f = mean[:, None] + np.sqrt(variance)[:, None] * places
    found = {
        "latent_rmse": float(np.sqrt(np.mean((mean - latent) ** 2))),
        "latent_coverage_95": float(np.mean(np.abs(mean - latent) <= 1.96 * np.sqrt(variance))),
    }
    if kind == "outliers":  # the latent scores say it all
        return found
    if kind == "labels":
        logs = -np.logaddexp(0, -y[:, None] * f)
    else:
        logs = y[:, None] * f - np.exp(f) - gammaln(y + 1)[:, None]
    found["log_score"] = float(logsumexp(logs, axis=1, b=weights / weights.sum()).mean())
    if kind == "labels":
        probability = (1 / (1 + np.exp(-f))) @ (weights / weights.sum())
        found["brier"] = float(np.mean((probability - (y > 0)) ** 2))
        found["auc"] = float(roc_auc_score(y > 0, probability))
    return found


def table(folder: Path, rows: int, kind: str) -> dict[str, np.ndarray]:
    """Return rows, rows to predict and the latent function there."""
    from maps import read_map

    X, elevation = read_map(folder, "elevation", round(rows / 0.9))
    z = np.log(elevation + 100)
    z = (z - z.mean()) / z.std()
    rng = np.random.default_rng(0)
    order = rng.permutation(len(z))
    if kind == "labels":
        latent = 3 * z
        y = np.where(rng.uniform(size=len(z)) < 1 / (1 + np.exp(-latent)), 1.0, -1.0)
    elif kind == "outliers":
        latent = z
        y = z + 0.1 * rng.standard_t(4, size=len(z))
        y += np.where(rng.uniform(size=len(z)) < 0.1, rng.choice([-1, 1], len(z)) * rng.uniform(5, 50, len(z)), 0.0)
    else:
        latent = 1 + z
        y = rng.poisson(np.exp(latent)).astype(float)
    train, test = order[:rows], order[rows:]
    X = (X - X[train].mean(0)) / X[train].std(0)
    return {"X": X[train], "y": y[train], "X_test": X[test], "y_test": y[test], "latent": latent[test]}


def main() -> None:
    """Run all ways on all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[2_000, 20_000, 100_000])
    parser.add_argument("--kinds", nargs="*", default=["labels", "counts", "outliers"])
    parser.add_argument("--ways", nargs="*", default=["vecchia", CONTROL, "quadruply stochastic", "GPBoost"])
    parser.add_argument("--peer", type=Path, help="Python of an environment with gpboost")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--limit", type=float, default=600, help="seconds after which a run is stopped")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        file, kind, way = arguments.child
        peer(Path(file), kind) if way == "GPBoost" else own(Path(file), kind, way)
        return
    from maps import write

    found: list[dict[str, object]] = []
    for kind in arguments.kinds:
        for rows in arguments.rows:
            data = table(arguments.data, rows, kind)
            for way in arguments.ways:
                if (way == "GPBoost" and arguments.peer is None) or (way == CONTROL and kind != "outliers"):
                    continue
                record: dict[str, object] = {"kind": kind, "rows": rows, "way": way}
                with tempfile.TemporaryDirectory() as folder:
                    file = Path(folder) / "rows.npz"
                    np.savez(file, **data)
                    python = arguments.peer if way == "GPBoost" else sys.executable
                    command = [str(python), __file__, "--child", str(file), kind, way]
                    environment = dict(os.environ)
                    if way == "GPBoost":
                        environment.pop("PYTHONPATH", None)
                    try:
                        done = subprocess.run(
                            command,
                            capture_output=True,
                            text=True,
                            check=True,
                            timeout=arguments.limit,
                            env=environment,
                        )
                        with np.load(file.with_name("found.npz")) as predicted:
                            parts = predicted["mean"], predicted["variance"]
                        record |= json.loads(done.stdout.strip().splitlines()[-1])
                        record |= scores(kind, data["y_test"], data["latent"], *parts)
                    except subprocess.TimeoutExpired:
                        record["stopped_after_s"] = arguments.limit
                    except subprocess.CalledProcessError as error:
                        record["failed"] = error.stderr.strip().splitlines()[-1][:200]
                found.append(record)
                print({key: round(v, 4) if isinstance(v, float) else v for key, v in record.items()}, flush=True)
                write(arguments.json, vars(arguments), found)


if __name__ == "__main__":
    main()
