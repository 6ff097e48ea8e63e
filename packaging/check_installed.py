"""Check an installed gigagp: it is not the checkout, the compiled engine runs, and answers agree with dense algebra."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import gigagp
from gigagp import GPRegressor, inference, kernels


def main() -> int:
    """Return 0 if all is well."""
    checkout = Path(__file__).resolve().parents[1]
    home = Path(gigagp.__file__).resolve()
    if home.is_relative_to(checkout / "src"):
        print(f"gigagp is the checkout's, {home}, and not an installed one.")
        return 1
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=400)
    new = rng.normal(size=(50, 2))
    kernel = kernels.Matern(nu=1.5, lengthscale=0.7, variance=1.2)
    gp = GPRegressor(
        kernel, mean="zero", noise_variance=0.01, optimizer=None, inference=inference.Iterative(final_tolerance=1e-9)
    ).fit(X, y)
    distance = np.sqrt(3) * np.linalg.norm(np.concatenate([X, new])[:, None] - X[None], axis=2) / 0.7
    covariances = 1.2 * (1 + distance) * np.exp(-distance)
    # A zero mean is the prior's in standardized units, which is the mean of the targets in the data's own.
    weights = np.linalg.solve(covariances[:400] + 0.01 * np.eye(400), y - y.mean())
    error = np.abs(gp.predict(new) - y.mean() - covariances[400:] @ weights).max()
    print(f"gigagp {gigagp.__version__} of {home.parent}, engine: {gp.engine_}, error of the mean: {error:.1e}")
    return 0 if "native" in gp.engine_ and error < 1e-6 else 1


if __name__ == "__main__":
    sys.exit(main())
