"""Compare Vecchia inference with GPBoost's: CPU seconds, and scores on the same rows.

    python -m venv ../venv_gpb && ../venv_gpb/bin/pip install gpboost
    python benchmarks/vecchia_peers.py elevation kin40k temperature --peer ../venv_gpb/bin/python --data FOLDER

Both take a Matern-3/2 kernel with one lengthscale for each input, a constant mean, the same standardized rows and the
same numbers of neighbours, on one thread. GPBoost runs in its own environment and process, with its defaults
otherwise: an order at random and L-BFGS. Of gigagp there are three runs: the default, which learns from some random
rows; learning from all rows, as GPBoost does; and the default's own number of neighbours for predictions. The seconds
are those of fit and prediction, without imports and reading.
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


def child(file: Path, n_neighbors: int, prediction_neighbors: int, optimizer: str) -> None:
    """Fit GPBoost to the rows in a file and write its predictions; runs in GPBoost's environment."""
    import gpboost

    with np.load(file) as data:
        X, y, X_test = data["X"], data["y"], data["X_test"]
    start = time.process_time()
    model = gpboost.GPModel(
        gp_coords=X,
        cov_function="matern_ard",
        cov_fct_shape=1.5,
        likelihood="gaussian",
        gp_approx="vecchia",
        num_neighbors=n_neighbors,
        vecchia_ordering="random",
        num_parallel_threads=1,
        seed=0,
    )
    model.fit(y=y, X=np.ones((len(y), 1)), params={"optimizer_cov": optimizer})
    fitted = time.process_time()
    model.set_prediction_data(num_neighbors_pred=prediction_neighbors)
    found = model.predict(
        gp_coords_pred=X_test, X_pred=np.ones((len(X_test), 1)), predict_var=True, predict_response=True
    )
    end = time.process_time()
    np.savez(file.with_name("found.npz"), mean=found["mu"], variance=found["var"])
    parameters = np.asarray(model.get_cov_pars()).ravel().tolist()
    steps = int(model._get_num_optim_iter())
    print(
        json.dumps(
            {
                "fit_cpu_s": fitted - start,
                "predict_cpu_s": end - fitted,
                "fitted": parameters,
                "optimizer_steps": steps,
                "negative_log_likelihood": float(model.get_current_neg_log_likelihood()),
                "version": gpboost.__version__,
            }
        )
    )


def main() -> None:
    """Run both libraries on every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=["elevation", "kin40k", "temperature"])
    parser.add_argument("--peer", type=Path, help="Python of an environment with gpboost; without it gigagp alone")
    parser.add_argument("--peer-optimizer", default="lbfgs", choices=("lbfgs", "fisher_scoring", "gradient_descent"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rows", type=int, default=100_000, help="rows of maps, of which a tenth are for tests")
    parser.add_argument("--neighbors", type=int, default=30)
    parser.add_argument("--prediction-neighbors", type=int, default=60)
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which GPBoost is stopped")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.neighbors, arguments.prediction_neighbors, arguments.peer_optimizer)
        return

    import torch

    sys.path.insert(0, str(Path(__file__).parent))
    from maps import FILES, line, scores, split, write
    from splits import read_split

    from gigagp import GPRegressor, inference, kernels

    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []

    def report(found: dict[str, object]) -> None:
        rows.append(found)
        print(
            f"  {found['way']:28s} fit {found['fit_cpu_s']:8.2f} + predict {found['predict_cpu_s']:6.2f} CPU s  "
            f"{line(found)}",
            flush=True,
        )
        write(arguments.json, vars(arguments), rows)

    for name in arguments.tables:
        if name in FILES:
            data = split(arguments.data, name, "random", arguments.rows)
            X, y, X_test, y_test = data.X, data.y, data.X_test, data.y_test
        else:
            X, y, X_test, y_test = read_split(arguments.data, name)
        centre, spread, middle, scale = X.mean(0), X.std(0), y.mean(), y.std()
        X, X_test, y, y_test = (X - centre) / spread, (X_test - centre) / spread, (y - middle) / scale, y_test - middle
        y_test = y_test / scale
        print(f"{name}: {len(y):,} rows, {len(y_test):,} predicted, standardized", flush=True)
        common = {"table": name, "rows": len(y), "predicted": len(y_test)}
        m, wide = arguments.neighbors, arguments.prediction_neighbors
        for way, settings in {
            "gigagp": inference.Vecchia(m, wide),
            "gigagp, learns from all rows": inference.Vecchia(m, wide, len(y)),
            "gigagp, own prediction": inference.Vecchia(m),
        }.items():
            start = time.process_time()
            gp = GPRegressor(kernel=kernels.Matern(nu=1.5), inference=settings).fit(X, y)
            fitted = time.process_time()
            mean, std = gp.predict(X_test, return_std=True, include_noise=True)
            end = time.process_time()
            own = {"way": way, "fit_cpu_s": fitted - start, "predict_cpu_s": end - fitted}
            own["fitted"] = f"{gp.kernel_!r}, noise {gp.noise_variance_:.4g}"
            own["negative_log_likelihood"] = -gp.log_marginal_likelihood(standardized=True).value
            report({**common, **own, **scores(y_test, mean, std)})
        if arguments.peer:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "rows.npz"
                np.savez(file, X=X, y=y, X_test=X_test)
                command = [arguments.peer, __file__, "--child", file, "--neighbors", m, "--prediction-neighbors", wide]
                command += ["--peer-optimizer", arguments.peer_optimizer]
                try:
                    done = subprocess.run(
                        [str(part) for part in command],
                        capture_output=True,
                        text=True,
                        check=True,
                        timeout=arguments.limit,
                        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
                    )
                except subprocess.TimeoutExpired:
                    print(f"  GPBoost was stopped after {arguments.limit:g} s", flush=True)
                    rows.append({**common, "way": "GPBoost", "stopped_after_s": arguments.limit})
                    write(arguments.json, vars(arguments), rows)
                    continue
                except subprocess.CalledProcessError as error:
                    print(f"  GPBoost failed: {error.stderr[-2000:]}", flush=True)
                    continue
                own = json.loads(done.stdout.splitlines()[-1])
                with np.load(file.with_name("found.npz")) as found:
                    mean, std = found["mean"], np.sqrt(found["variance"])
                report({**common, "way": f"GPBoost {own['version']}", **own, **scores(y_test, mean, std)})


if __name__ == "__main__":
    main()
