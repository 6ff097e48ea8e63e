"""Reproduce the figures of Wenger et al. 2024 (arXiv:2411.01036) with this package.

    python benchmarks/computation_aware_figures.py --folder figures                    # the toy figures, about a minute
    python benchmarks/computation_aware_figures.py --folder figures --figures 3 4 --table parkinsons --rows 1000

1: posteriors on a toy. 2: actions compared with eigenvectors, and the distance of their spans during learning. S1: the
projected likelihood and the ELBO (test NLL and noise, also S2). S3: inducing points in many dimensions. 3: test NLL,
RMSE and hyperparameters by seconds on a table (also S5). 4: coverage during learning. The paper does not give the sizes
of the toys.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from tables import read_split

from gigagp import GPRegressor, actions, inference, kernels, metrics
from gigagp.diagnostics import inducing_distance, latent_share
from gigagp.operators import KernelMatrix
from gigagp.optimization import LBFGS, Adam

PAPER = actions.Learned("shuffled", initial="random")
CG = actions.ConjugateGradients(1e-4)


def draw_targets(X: np.ndarray, kernel: kernels.Kernel, noise: float, seed: int) -> np.ndarray:
    """Return a noisy sample of the prior."""
    points = torch.from_numpy(X)
    covariance = kernel.bind(X.shape[1]).block(points, points) + (noise + 1e-10) * torch.eye(len(X))
    normal = torch.randn(len(X), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (torch.linalg.cholesky(covariance) @ normal).numpy()


def model(method: str, count: int, steps: int, kernel: kernels.Kernel | None = None, loss: str = "elbo") -> GPRegressor:
    """Return an estimator for one of the paper's methods on a toy."""
    chosen: dict[str, Any] = {
        "exact": inference.Exact(),
        "SVGP": inference.SparseVariational(count, batch_size=1024),
        "SGPR": inference.SparseVariational(count),
        "CaGP-CG": inference.ComputationAware(count, CG, loss),  # type: ignore[arg-type]
        "CaGP-Opt": inference.ComputationAware(count, PAPER, loss),  # type: ignore[arg-type]
        "random": inference.ComputationAware(count, actions.Random(structure="blocks")),
        "clusters": inference.ComputationAware(count),
    }
    optimizer = (
        LBFGS(max(1, min(steps, 50))) if method in ("exact", "SGPR") else Adam(0.1, max(1, steps), final_share=0.1)
    )
    return GPRegressor(kernel, chosen[method], optimizer if steps else None, "zero", 0.5, standardize=False)


def figure_1(plt: Any, folder: Path) -> None:
    """Plot posterior (dark) and predictive (light) bands of four methods, with a gap in the data."""
    random = np.random.default_rng(0)
    x = np.concatenate([random.uniform(-3, -0.8, 60), random.uniform(0.6, 3, 60)])[:, None]
    y = draw_targets(x, kernels.Matern(1.5, 0.6, 1.0), 0.02, seed=3)
    grid = np.linspace(-4, 4, 400)[:, None]
    figure, axes = plt.subplots(1, 4, figsize=(16, 3.2), sharey=True, layout="constrained")
    for axis, method in zip(axes, ("exact", "SVGP", "CaGP-CG", "CaGP-Opt"), strict=True):
        gp = model(method, 8, 300, kernels.Matern(1.5, 1.0, 1.0)).fit(x, y)
        mean, latent = gp.predict(grid, return_std=True)
        std = np.sqrt(latent**2 + gp.noise_variance_)
        axis.fill_between(grid[:, 0], mean - 1.96 * std, mean + 1.96 * std, alpha=0.2, color="C0", lw=0)
        axis.fill_between(grid[:, 0], mean - 1.96 * latent, mean + 1.96 * latent, alpha=0.5, color="C0", lw=0)
        axis.plot(grid[:, 0], mean, color="C0")
        axis.plot(x[:, 0], y, "k.", ms=3)
        if method == "SVGP":
            points = gp.posterior_.inducing_points.numpy()
            axis.plot(points[:, 0], np.full(len(points), -3.0), "C3^", ms=5)
        axis.set_title(f"{method}, noise {gp.noise_variance_:.3f} (truth 0.02)")
    figure.savefig(folder / "figure_1.png", dpi=150)


def spans(gp: GPRegressor, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the points, the actions and the top eigenvectors of H at the hyperparameters of a fit."""
    posterior = gp.posterior_
    H = KernelMatrix(gp.kernel_, posterior.X, gp.noise_variance_).to_dense()
    top = torch.linalg.eigh(H).eigenvectors[:, -count:].flip(1)
    return posterior.X.numpy(), posterior.actions.dense().numpy(), top.numpy()


def figure_2(plt: Any, folder: Path) -> None:
    """Plot magnitudes of eigenvectors and actions on a square, and the distance of their spans by training step."""
    random = np.random.default_rng(1)
    x = random.uniform(-1, 1, (400, 2))
    y = draw_targets(x, kernels.Matern(1.5, 0.5, 1.0), 0.05, seed=1)
    count = 20
    figure, axes = plt.subplots(4, 5, figsize=(11, 8.5), layout="constrained")
    fitted = {name: model(name, count, 150).fit(x, y) for name in ("CaGP-CG", "CaGP-Opt", "clusters")}
    points, _, top = spans(fitted["CaGP-Opt"], count)
    shown = {"eigenvectors": (points, top)}
    shown |= {name: spans(gp, count)[:2] for name, gp in fitted.items()}
    for row, (name, (where, vectors)) in zip(axes, shown.items(), strict=True):
        for j, axis in enumerate(row):
            sizes = np.abs(vectors[:, j]) / np.abs(vectors[:, j]).max()
            axis.scatter(where[:, 0], where[:, 1], c=sizes, s=6, cmap="viridis")
            axis.set(xticks=[], yticks=[], ylabel=name if j == 0 else "")
    figure.savefig(folder / "figure_2_left.png", dpi=150)

    figure, axis = plt.subplots(figsize=(5, 3.5), layout="constrained")
    steps = (1, 2, 5, 10, 20, 50, 100, 150)
    for name in ("CaGP-CG", "CaGP-Opt", "clusters", "random"):
        distances = []
        for step in steps:
            _, S, top = spans(model(name, count, step).fit(x, y), count)
            distances.append(actions.grassmann_distance(torch.from_numpy(S), torch.from_numpy(top)))
        axis.plot(steps, distances, "o-", ms=3, label=name)
        print(f"figure 2: {name:9s} distance of spans {distances[0]:.3f} -> {distances[-1]:.3f}", flush=True)
    axis.set(xlabel="training step", ylabel="Grassmann distance to the top eigenvectors", xscale="log")
    axis.legend()
    figure.savefig(folder / "figure_2_right.png", dpi=150)


def figure_s1(plt: Any, folder: Path) -> None:
    """Plot test NLL and noise by step under the two losses (figures S1 and S2)."""
    random = np.random.default_rng(0)
    x = random.uniform(0, 1, (360, 1))
    y = draw_targets(x, kernels.Matern(1.5, 0.1, 1.0), 0.05, seed=0)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for method in ("CaGP-CG", "CaGP-Opt"):
        for loss in ("elbo", "projected"):
            gp = model(method, 10, 200, kernels.Matern(1.5, 0.5, 1.0), loss)
            gp.fit(x[:160], y[:160], validation=(x[160:], y[160:]))
            columns = gp.history_.to_dict()
            noise = [values["noise_variance"] for values in columns["hyperparameters"]]  # type: ignore[index]
            scores = -np.array(columns["validation_log_likelihood"], dtype=float)
            axes[0].plot(scores, label=f"{method}, {loss}")
            axes[1].plot(noise, label=f"{method}, {loss}")
            print(f"figure S1: {method} {loss:9s} test NLL {scores[-1]:.3f}, noise {noise[-1]:.4f}", flush=True)
    axes[0].set(xlabel="step", ylabel="test NLL", ylim=(0, 4))
    axes[1].set(xlabel="step", ylabel="noise variance", yscale="log")
    axes[1].axhline(0.05, color="k", lw=0.5)
    axes[0].legend(fontsize=7)
    figure.savefig(folder / "figure_s1.png", dpi=150)


def figure_s3(plt: Any, folder: Path, dimensions: list[int]) -> None:
    """Plot the distance of inducing points to the data in lengthscales, and their latent share, by dimension."""
    rows = []
    for d in dimensions:
        random = np.random.default_rng(d)
        x = random.uniform(0, 1, (500, d))
        truth = kernels.Matern(1.5, 1.0, 1.0).bind(d)
        y = draw_targets(x, truth, 0.1, seed=d)
        sparse = model("SVGP", 64, 300).fit(x, y)
        exact = model("exact", 64, 0, truth).set_params(noise_variance=0.1).fit(x, y)
        Z = sparse.posterior_.inducing_points
        drawn = torch.from_numpy(random.uniform(0, 1, (64, d)))
        X = torch.from_numpy(x)
        rows.append(
            [inducing_distance(sparse.kernel_, points, X) for points in (Z, drawn)]
            + [latent_share(sparse.posterior_, Z), latent_share(exact.posterior_, Z.to(X))]
        )
        print(f"figure S3: d {d:2d}, distance {rows[-1][0]:.3f} (random {rows[-1][1]:.3f}), latent share "
              f"{rows[-1][2]:.4f} (exact {rows[-1][3]:.4f})", flush=True)  # fmt: skip
    table = np.array(rows)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for column, label in ((0, "SVGP, learned"), (1, "uniform")):
        axes[0].plot(dimensions, table[:, column], "o-", ms=3, label=label)
    for column, label in ((2, "SVGP"), (3, "exact, true hyperparameters")):
        axes[1].plot(dimensions, table[:, column], "o-", ms=3, label=label)
    axes[0].set(xlabel="inputs", ylabel="distance to the nearest row (lengthscales)")
    axes[1].set(xlabel="inputs", ylabel="latent share of the variance at inducing points")
    for axis in axes:
        axis.legend()
    figure.savefig(folder / "figure_s3.png", dpi=150)


def figure_3(plt: Any, folder: Path, data: tuple[np.ndarray, ...], count: int, steps: int) -> None:
    """Plot scores and hyperparameters by seconds on a table (figures 3 and S5)."""
    X, y, X_test, y_test = data
    figure, axes = plt.subplots(1, 4, figsize=(17, 3.4), layout="constrained")
    for index, method in enumerate(("SVGP", "CaGP-CG", "CaGP-Opt", "clusters")):
        gp = model(method, 2 * count if method == "SVGP" else count, steps)
        gp.fit(X, y, validation=(X_test, y_test))
        columns = gp.history_.to_dict()
        seconds = np.array(columns["seconds"], dtype=float)
        scores = columns["validation_log_likelihood"], columns["validation_rmse"]
        found = np.array([[np.nan if one is None else one for one in column] for column in scores], dtype=float)
        values: list[Any] = columns["hyperparameters"]
        axes[0].plot(seconds, -found[0], label=method)
        axes[1].plot(seconds, found[1])
        axes[2].plot([value["noise_variance"] for value in values], color=f"C{index}")
        for k in range(3):
            axes[3].plot([value["lengthscale"][k] for value in values], color=f"C{index}", lw=0.8)
    labels = (
        ("seconds", "test NLL"),
        ("seconds", "test RMSE"),
        ("step", "noise"),
        ("step", "first three lengthscales"),
    )
    for axis, (below, left) in zip(axes, labels, strict=True):
        axis.set(xlabel=below, ylabel=left)
    for axis in axes[1:]:
        axis.set_yscale("log")
    axes[0].legend()
    figure.savefig(folder / "figure_3.png", dpi=150)


def figure_4(plt: Any, folder: Path, data: tuple[np.ndarray, ...], count: int, steps: int) -> None:
    """Plot the coverage error of 95 % intervals after increasing numbers of steps."""
    X, y, X_test, y_test = data
    schedule = sorted({max(1, round(steps * share)) for share in (0.02, 0.1, 0.25, 0.5, 1.0)})
    figure, axis = plt.subplots(figsize=(5, 3.5), layout="constrained")
    found: dict[str, list[float]] = {}
    for method in ("SVGP", "CaGP-Opt", "clusters"):
        found[method] = []
        for step in schedule:
            gp = model(method, 2 * count if method == "SVGP" else count, step).fit(X, y)
            mean, std = gp.predict(X_test, return_std=True, include_noise=True)
            found[method].append(metrics.coverage_error(y_test, mean, std))
        axis.plot(schedule, found[method], "o-", ms=3, label=method)
    print("figure 4:", json.dumps(found), flush=True)
    axis.set(xlabel="training steps", ylabel="coverage error, 95 %")
    axis.legend()
    figure.savefig(folder / "figure_4.png", dpi=150)


def main() -> None:
    """Draw the requested figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("figures"))
    parser.add_argument("--figures", nargs="+", choices=["1", "2", "S1", "S3", "3", "4"], default=["1", "2", "S1"])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[1, 2, 4, 8, 16, 25])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--table", default="parkinsons")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--actions", type=int, default=100, help="SVGP gets twice as many inducing points")
    parser.add_argument("--steps", type=int, default=150)
    arguments = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    arguments.folder.mkdir(parents=True, exist_ok=True)
    toys = {"1": figure_1, "2": figure_2, "S1": figure_s1}
    for name in arguments.figures:
        if name in toys:
            toys[name](plt, arguments.folder)
        elif name == "S3":
            figure_s3(plt, arguments.folder, arguments.dimensions)
        else:
            data = read_split(arguments.data, arguments.table, 0, arguments.rows)
            draw = figure_3 if name == "3" else figure_4
            draw(plt, arguments.folder, data, arguments.actions, arguments.steps)
        print(f"figure {name} is in {arguments.folder}", flush=True)


if __name__ == "__main__":
    main()
