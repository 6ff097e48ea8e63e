"""Plot the figures of Potapczynski et al. 2021 on truncation: losses against length, and learned values at each length.

``truncation_table.py --plots FOLDER`` draws them, and writes their numbers to FOLDER/figures.json.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parent))
from splits import read_shuffled

from gigagp import GPRegressor, gradients, inference, kernels, optimization, solvers
from gigagp.errors import SolverWarning
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.weight_space import WeightSpace
from gigagp.inference.random_features.sums import sum_rows
from gigagp.kernels.features import nested_columns
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from gigagp.operators import KernelMatrix
from gigagp.solvers.lanczos import log_determinant
from gigagp.solvers.truncation import ExponentialDecay, OneOverJ, SingleSample

LOSS_ITERATIONS = (2, 4, 8, 16, 24, 32, 48, 64)
LOSS_FREQUENCIES = (4, 8, 16, 32, 64, 128, 256)
TOY_ITERATIONS = (3, 5, 7, 10, 15, 20)
TOY_FREQUENCIES = (2, 5, 10, 20, 50)
#: Initial value of every toy run.
TOY_START = math.log(2)
COLOURS = {"cg": "C0", "rr-cg": "C1", "rff": "C2", "ss-rff": "C3"}


def draw_all(folder: Path, results: list[dict], data: Path, table: str, n_rows: int, n_draws: int, steps: int) -> None:
    """Draw every figure for which there are numbers.

    Parameters
    ----------
    folder : Path
        Where figures are written.
    results : list of dict
        Rows of the table, some with a curve.
    data, table : Path, str
        Data folder, and the table of Figure 1.
    n_rows, n_draws : int
        Training rows and draws of Figure 1.
    steps : int
        Steps of Adam in Figure 2.
    """
    X, y, _, _ = read_shuffled(data, table, 0, n_rows)
    numbers = {
        "terms": {"table": table, "draws": n_draws, **terms_against_length(X, y, n_draws)},
        "bias": bias_against_length(3 * n_draws),
        "recovery": recovered_lengthscales(steps),
    }
    (folder / "figures.json").write_text(json.dumps(numbers, indent=1), encoding="utf-8")
    draw_terms(numbers["terms"], folder / "loss_against_length.png")
    draw_bias(numbers["bias"], folder / "bias_against_length.png")
    draw_recovery(numbers["recovery"], folder / "lengthscale_recovery.png")
    if any(row["curve"] for row in results):
        draw_curves(results, folder / "loss_while_learning.png")


def _figure(n_columns: int, width: float = 4.2) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=(width * n_columns, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, np.atleast_1d(figure.subplots(1, n_columns))


def _lengths(panel: Axes, rows: list[list[float]], label: str) -> None:
    """Make the axis of lengths logarithmic, labelled with the lengths themselves."""
    panel.set_xscale("log")
    panel.set_xticks([row[0] for row in rows], [f"{row[0]:.3g}" for row in rows], fontsize=8)
    panel.set_xticks([], minor=True)
    panel.set_xlabel(label)


# Figure 1: the two terms of the loss ----------------------------------------------------------------------------------


def terms_against_length(X: np.ndarray, y: np.ndarray, n_draws: int, methods: Sequence[str] = tuple(COLOURS)) -> dict:
    """Return data fit and log-determinant at the exact optimum against the (expected) length, for every estimator."""
    gp = GPRegressor(kernels.RBF(), inference.Exact(), mean="zero", standardize=False).fit(X, y)
    model = Model(gp.kernel_, ZeroMean(), torch.tensor(max(gp.noise_variance_, 0.01), dtype=torch.float64))
    rows = TrainingTable(torch.from_numpy(X), torch.from_numpy(y)[:, None], ZeroMean(), 2**31)
    matrix = KernelMatrix(model.kernel, rows.X, model.noise_variance, storage="dense")
    exact = _exact_terms(matrix, rows.Y)
    lengths = [count for count in LOSS_ITERATIONS if count <= len(y)]
    counts = [count for count in LOSS_FREQUENCIES if count <= len(y) // 2 - 8]
    found: dict = {"rows": len(y), "noise_variance": float(model.noise_variance), "exact": exact}
    for method in methods:
        if method == "cg":
            found[method] = [_cg_terms(matrix, rows.Y, count, n_draws) for count in lengths]
        elif method == "rr-cg":
            found[method] = [_roulette_terms(matrix, rows.Y, count, n_draws) for count in lengths if count > 4]
        elif method == "rff":
            found[method] = _feature_terms(model, rows, counts, n_draws)
        else:
            found[method] = [_sample_terms(model, rows, exact, count, n_draws) for count in counts if count > 4]
    return found


def _exact_terms(matrix: KernelMatrix, Y: torch.Tensor) -> list[float]:
    dense = matrix.to_dense()
    return [float((Y * torch.linalg.solve(dense, Y)).sum()), float(torch.linalg.slogdet(dense).logabsdet)]


def _summary(length: float, draws: np.ndarray) -> list[float]:
    """Return [length, mean and deviation of the data fit, mean and deviation of the log-determinant]."""
    return [length, *(float(part) for column in draws.T for part in (column.mean(), column.std(ddof=1)))]


def _cg_terms(matrix: KernelMatrix, Y: torch.Tensor, iterations: int, n_draws: int) -> list[float]:
    solver = solvers.ConjugateGradients(tolerance=1e-13, max_epochs=iterations, preconditioner=None)
    fit = float((Y * solver.solve(matrix, Y).value).sum())
    determinant = log_determinant(matrix, None, n_draws, iterations, torch.Generator().manual_seed(0))
    return [iterations, fit, 0.0, determinant.value, determinant.standard_error * n_draws**0.5]


def _roulette_terms(matrix: KernelMatrix, Y: torch.Tensor, iterations: int, n_draws: int) -> list[float]:
    law = ExponentialDecay.from_moments(iterations, min(20.0, iterations / 3))
    solver = solvers.ConjugateGradients(truncation=law, preconditioner=None)
    draws = []
    for seed in range(n_draws):
        generator = torch.Generator().manual_seed(seed)
        fit = float((Y * solver.solve(matrix, Y, generator=generator).value).sum())
        draws.append([fit, log_determinant(matrix, None, 1, None, generator, truncation=law).value])
    return _summary(law.mean, np.asarray(draws))


def _spaces(model: Model, rows: TrainingTable, counts: list[int], seed: int) -> dict[int, WeightSpace]:
    """Return the terms of the likelihood for nested numbers of frequencies from one draw."""
    draw = model.kernel.draw_features(2 * max(counts), rows.n_inputs, torch.Generator().manual_seed(seed), law="joint")
    sums = sum_rows(model, draw, rows)
    return {
        count: WeightSpace.fit(sums.take(*nested_columns(model.kernel, draw, count)), rows.n_rows, 1)
        for count in counts
    }


def _feature_terms(model: Model, rows: TrainingTable, counts: list[int], n_draws: int) -> list[list[float]]:
    draws = []
    for seed in range(n_draws):
        spaces = _spaces(model, rows, counts, seed)
        draws.append([[spaces[count].data_fit, spaces[count].log_determinant] for count in counts])
    whole = np.asarray(draws)
    return [_summary(count, whole[:, place]) for place, count in enumerate(counts)]


def _sample_terms(model: Model, rows: TrainingTable, exact: list[float], count: int, n_draws: int) -> list[float]:
    base = max(1, round(count / 2))
    law = OneOverJ(base=base, maximum=min(4 * base, rows.n_rows // 2), step=max(1, base // 4))
    series, generator = SingleSample(law), torch.Generator().manual_seed(count)
    draws = []
    for seed in range(n_draws):
        parts = series.coefficients(law.sample(generator))
        total = parts.pop(law.support()[-1], 0.0) * np.asarray(exact)
        for n_frequencies, space in _spaces(model, rows, list(parts), seed).items():
            total = total + parts[n_frequencies] * np.asarray([space.data_fit, space.log_determinant])
        draws.append(total)
    return _summary(law.mean, np.asarray(draws))


def draw_terms(numbers: dict, path: Path) -> None:
    """Plot errors against length; thin bars are one standard deviation of a draw, thick ones two standard errors."""
    figure, axes = _figure(4, 3.6)
    for column, name in enumerate(("data fit", "log-determinant")):
        for place, pair in enumerate((("cg", "rr-cg"), ("rff", "ss-rff"))):
            panel = axes[2 * place + column]
            for shift, method in enumerate(pair):
                rows, colour = np.asarray(numbers[method]), COLOURS[method]
                lengths, errors = rows[:, 0] * 1.06**shift, rows[:, 1 + 2 * column] - numbers["exact"][column]
                spread = rows[:, 2 + 2 * column]
                panel.errorbar(lengths, errors, yerr=spread, fmt="none", ecolor=colour, elinewidth=0.8)
                thick = {"fmt": "o", "color": colour, "elinewidth": 3, "markersize": 3, "label": method}
                panel.errorbar(lengths, errors, yerr=2 * spread / numbers["draws"] ** 0.5, **thick)
            panel.axhline(0, color="black", linestyle="--", linewidth=0.8)
            panel.set_yscale("symlog", linthresh=10)
            panel.set_title(f"{name}, estimate minus exact", fontsize=9)
            _lengths(panel, numbers[pair[0]], ("(expected) iterations", "(expected) frequencies")[place])
            panel.legend(fontsize=8)
    figure.suptitle(f"{numbers['table']}, {numbers['rows']} rows, {numbers['draws']} draws", fontsize=9)
    figure.savefig(path, dpi=150)


# Decay of the biases: exponential for CG, like 1 / J for features -----------------------------------------------------


def bias_against_length(n_draws: int) -> dict:
    """Return |bias| of both terms for 200 points on a line with noise variance 1, which attain the proven rates."""
    i = torch.arange(200, dtype=torch.float64)
    x = (i / 199)[:, None]
    y = x * torch.sin(5 * math.pi * x) + 0.1 * torch.cos(7 * i**2)[:, None]
    model = Model(kernels.RBF(0.1, 1.0).bind(1), ZeroMean(), torch.tensor(1.0, dtype=torch.float64))
    matrix = KernelMatrix(model.kernel, x, 1.0, storage="dense")
    exact = _exact_terms(matrix, y)

    def determinants(steps: int) -> np.ndarray:
        seeds = [torch.Generator().manual_seed(seed) for seed in range(40)]
        return np.asarray([log_determinant(matrix, None, 1, steps, generator).value for generator in seeds])

    # Compare with the end of the same probe's series: the spread of the probes would hide the effect of stopping.
    ends, found = determinants(60), {"cg": [], "rff": []}
    for count in range(1, 13):
        solver = solvers.ConjugateGradients(tolerance=1e-14, max_epochs=count, preconditioner=None)
        fit = float((y * solver.solve(matrix, y).value).sum())
        found["cg"].append([count, abs(fit - exact[0]), abs(float((determinants(count) - ends).mean()))])
    rows = TrainingTable(x, y, ZeroMean(), 2**30)
    for row in _feature_terms(model, rows, [1, 2, 5, 10, 20, 40, 80, 160, 320], n_draws):
        found["rff"].append([row[0], abs(row[1] - exact[0]), abs(row[3] - exact[1])])
    return found


def draw_bias(numbers: dict, path: Path) -> None:
    """Plot both on axes on which theory predicts straight lines: one logarithmic axis for CG, two for features."""
    figure, panels = _figure(2)
    for panel, method, label in zip(panels, ("cg", "rff"), ("iterations", "frequencies"), strict=True):
        rows = np.asarray(numbers[method])
        for column, name in ((1, "data fit"), (2, "log-determinant")):
            panel.plot(rows[:, 0], rows[:, column], "o-", label=name)
        panel.set_yscale("log")
        panel.set_xlabel(label)
        panel.set_ylabel("|bias|, nats")
        panel.set_title(f"bias of {method}, 200 rows", fontsize=9)
    rows = np.asarray(numbers["rff"])
    middle = len(rows) // 2
    panels[1].plot(rows[:, 0], rows[middle, 2] * rows[middle, 0] / rows[:, 0], "k:", linewidth=1, label="1 / J")
    panels[1].set_xscale("log")
    for panel in panels:
        panel.legend(fontsize=8)
    figure.savefig(path, dpi=150)


# Figure 2: the learned lengthscale ------------------------------------------------------------------------------------


def _learned(method: object, steps: int) -> float:
    """Return the log lengthscale learned by Adam, with the true variance and noise.

    It is the mean over the last half of the steps, because a single step of a noisy method would show its noise.
    """
    x = np.linspace(0, 1, 100)
    y = x * np.sin(5 * np.pi * x) + 0.1 * np.random.default_rng(0).normal(size=100)
    gp = GPRegressor(
        kernels.RBF(TOY_START, 1.0, fixed=("variance",)),
        method,
        optimization.Adam(0.05, steps, final_share=0.1),
        mean="zero",
        noise_variance=np.full(len(y), 0.01),
        standardize=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolverWarning)  # early stopping is the subject of this benchmark
        gp.fit(x[:, None], y)
    learned = np.log([step.hyperparameters["lengthscale"] for step in gp.history_])
    return float(learned[len(learned) // 2 :].mean())


def recovered_lengthscales(steps: int, methods: Sequence[str] = tuple(COLOURS)) -> dict:
    """Return log(learned / exact lengthscale) against the (expected) length."""
    exact = _learned(inference.Exact(), steps)
    probes = gradients.Hutchinson(10, law="rademacher")

    def iterative(**settings: object) -> inference.Iterative:
        solver = solvers.ConjugateGradients(tolerance=1e-12, preconditioner=None, **settings)
        return inference.Iterative(solver, probes, warm_start=False, n_samples=1)

    def away(method: inference.Inference, steps: int = steps) -> float:
        return _learned(method, steps) - exact

    found: dict = {"exact": exact}
    for method in methods:
        if method == "cg":
            found[method] = [[count, away(iterative(max_epochs=count))] for count in TOY_ITERATIONS]
        elif method == "rr-cg":
            laws = [ExponentialDecay(0.1, minimum) for minimum in (1, 3, 6, 11)]
            found[method] = [[law.mean, away(iterative(truncation=law))] for law in laws]
        elif method == "rff":
            redrawn = {count: inference.RandomFeatures(2 * count, redraw=True) for count in TOY_FREQUENCIES}
            found[method] = [[count, away(plain)] for count, plain in redrawn.items()]
        else:
            sampled = []
            for law in (OneOverJ(base=base, maximum=50, step=5) for base in (5, 10, 20)):
                features = inference.RandomFeatures(truncation=law, redraw=True, prediction="features")
                sampled.append([law.mean, away(features, 10 * steps)])  # its gradients are much noisier
            found[method] = sampled
    return found


def draw_recovery(numbers: dict, path: Path) -> None:
    """Plot log ratios of lengthscales against iterations, and against frequencies."""
    figure, axes = _figure(2)
    for panel, pair, label in zip(
        axes, (("cg", "rr-cg"), ("rff", "ss-rff")), ("(expected) iterations", "(expected) frequencies"), strict=True
    ):
        for method in pair:
            rows = np.asarray(numbers[method])
            panel.plot(rows[:, 0], rows[:, 1], "o-", color=COLOURS[method], label=method)
        panel.axhline(0, color="black", linestyle="--", linewidth=0.8)
        _lengths(panel, numbers[pair[0]], label)
        panel.set_ylabel("log(learned / exact lengthscale)")
        panel.legend(fontsize=8)
    figure.savefig(path, dpi=150)


# Figures 4 and 5: the exact loss while learning -----------------------------------------------------------------------


def draw_curves(results: list[dict], path: Path) -> None:
    """Plot the exact loss at the steps of each fit with the first seed."""
    tables = list(dict.fromkeys(row["table"] for row in results))
    figure, axes = _figure(len(tables))
    for panel, table in zip(axes, tables, strict=True):
        for row in results:
            if row["table"] == table and row["seed"] == results[0]["seed"] and row["curve"]:
                curve, colour = np.asarray(row["curve"]), COLOURS.get(row["method"], "black")
                panel.plot(curve[:, 0] + 1, curve[:, 1], color=colour, label=row["method"], linewidth=1.2)
        panel.set_xscale("log")
        panel.set_xlabel("step of Adam")
        panel.set_ylabel("exact loss per row")
        panel.set_title(table, fontsize=9)
        panel.legend(fontsize=8)
    figure.savefig(path, dpi=150)
