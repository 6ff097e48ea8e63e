"""Compare a default fit on a whole table with GPyTorch's SVGP in the same CPU time.

    python benchmarks/large_tables.py --data ../shared/data --tables kin40k protein
    python benchmarks/large_tables.py --tables kin40k protein elevators --kernels matern32 default --skip-svgp

The SVGP has m inducing points, Matern-3/2 with one lengthscale per input, minibatches of 1,024, Adam at 0.01 and
float32. It stops after as many CPU seconds as the default fit took with its prediction; on a shared machine wall
seconds are meaningless. Requires gpytorch (extra ``bench``).
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from checkout import commit
from splits import read_split

from gigagp import GPRegressor, kernels
from gigagp.estimators.metrics import coverage, gaussian_nll, rmse

#: Arguments of the estimator, by the name of the kernel.
KERNELS: dict[str, dict[str, object]] = {"matern32": {"kernel": kernels.Matern(nu=1.5)}, "default": {}}


def scores(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> dict[str, float]:
    """Return the scores of the table."""
    result = {"rmse": rmse(y, mean), "nll": gaussian_nll(y, mean, std)}
    return result | {f"coverage_{int(100 * level)}": coverage(y, mean, std, level) for level in (0.5, 0.8, 0.95)}


def run_gigagp(data: tuple[np.ndarray, ...], kernel: str, verbose: int, **settings: object) -> dict[str, object]:
    """Fit with the defaults, but for the kernel, and predict the whole test set."""
    X, y, X_test, y_test = data
    started, cpu = time.perf_counter(), time.process_time()
    gp = GPRegressor(verbose=verbose, **KERNELS[kernel], **settings).fit(X, y)
    fitted = time.perf_counter() - started
    mean, std = gp.predict(X_test, return_std=True, include_noise=True)
    print(gp.describe(), flush=True)
    return {
        "library": "gigagp",
        "kernel": kernel,
        "seconds": time.perf_counter() - started,
        "fit_seconds": fitted,
        "cpu_seconds": time.process_time() - cpu,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        **scores(y_test, mean, std),
        "history": gp.history_.to_dict(),
    }


def run_svgp(data: tuple[np.ndarray, ...], seconds: float, n_inducing: int) -> dict[str, object]:
    """Train an SVGP for a given number of CPU seconds and predict."""
    import gpytorch

    X, y, X_test, y_test = (torch.from_numpy(array).float() for array in data)
    torch.manual_seed(0)
    inducing = X[torch.randperm(len(y))[:n_inducing]].clone()

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            distribution = gpytorch.variational.CholeskyVariationalDistribution(n_inducing)
            super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, distribution))
            self.mean_module = gpytorch.means.ConstantMean()
            base = gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=X.shape[1])
            self.covar_module = gpytorch.kernels.ScaleKernel(base)

        def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model, likelihood = Model(), gpytorch.likelihoods.GaussianLikelihood()
    elbo = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    started, steps = time.process_time(), 0
    model.train()
    while time.process_time() - started < seconds:
        for rows in torch.randperm(len(y)).split(1024):
            optimizer.zero_grad()
            loss = -elbo(model(X[rows]), y[rows])
            loss.backward()
            optimizer.step()
            steps += 1
            if time.process_time() - started >= seconds:
                break
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        prediction = [likelihood(model(block)) for block in X_test.split(1024)]
        mean = torch.cat([p.mean for p in prediction]).double().numpy()
        std = torch.cat([p.variance for p in prediction]).sqrt().double().numpy()
    return {
        "library": f"SVGP m={n_inducing}",
        "cpu_seconds": time.process_time() - started,
        "steps": steps,
        **scores(y_test.double().numpy(), mean, std),
    }


def report(result: dict[str, object], table: str, results: list[dict[str, object]], path: Path | None) -> None:
    """Print one result and store it."""
    result |= {"table": table, "commit": commit()}
    print(
        f"{table:10s} {result['library']:12s} {result['cpu_seconds']:8.0f} CPU s  RMSE {result['rmse']:.4f}  NLL "
        f"{result['nll']:.4f}  coverage {result['coverage_50']:.3f} {result['coverage_80']:.3f} "
        f"{result['coverage_95']:.3f}",
        flush=True,
    )
    results.append(result)
    if path is not None:
        path.write_text(json.dumps(results, indent=1), encoding="utf-8")


def main() -> None:
    """Run all methods on every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tables", nargs="+", default=["kin40k", "protein"])
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=["matern32"])
    parser.add_argument("--inducing", type=int, default=512)
    parser.add_argument("--skip-svgp", action="store_true")
    parser.add_argument("--svgp-alone", type=float, default=None, help="run only the SVGP, with this many CPU seconds")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--memory", default=None, help='memory budget of gigagp, such as "8GiB"')
    parser.add_argument("--verbose", type=int, default=0)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    results = []
    for table in arguments.tables:
        data = read_split(arguments.data, table, rows=arguments.rows)
        print(f"{table}: {len(data[1]):,} training rows, {torch.get_num_threads()} threads", flush=True)
        seconds = arguments.svgp_alone
        for kernel in arguments.kernels if arguments.svgp_alone is None else []:
            ours = run_gigagp(data, kernel, arguments.verbose, dtype=arguments.dtype, memory_budget=arguments.memory)
            report(ours, table, results, arguments.json)
            seconds = float(ours["cpu_seconds"])  # type: ignore[arg-type]
        if not arguments.skip_svgp:
            report(run_svgp(data, seconds, arguments.inducing), table, results, arguments.json)


if __name__ == "__main__":
    main()
