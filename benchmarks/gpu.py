"""Check that a GPU gives the right numbers, and how fast: one command for the day that one is at hand.

    python benchmarks/gpu.py --json benchmarks/results/gpu_CARD.json     # all stages, within ten minutes
    python benchmarks/gpu.py parity products                             # stages by name
    python benchmarks/gpu.py --device cpu --smoke                        # small sizes on a processor: does it run?
    torchrun --nproc_per_node 2 benchmarks/gpu.py --own cards            # a fit whose products two cards share

Each stage is a list of parts, cheapest first. A part runs in a process of its own with a deadline of its own, so that
one that crashes or hangs costs no other; its rows are in the JSON as soon as they are known. Stages:

- ``parity``: products, entries and gradients of every engine, solves with every preconditioner, conditionals and
  neighbours, and predictions of fits at fixed hyperparameters, each beside float64 on the processor;
- ``products``: products and a gradient with 131,072 points, beside plain torch, KeOps and GPyTorch where they are;
- ``steps``: a training step, a pass of grid statistics, a step of computation-aware inference with 1,000,000 rows;
- ``fits``: default fits of tables and of made functions, beside GPyTorch's exact GP;
- ``papers``: rows of Lin et al. 2024, table 1, on whole tables.

Tables are read from ``--data``; without them, the parts that need them say so. Times are the least of several runs,
each waited for (`torch.cuda.synchronize`). The script ends with code 1 where parity is missed or a part of gigagp
fails.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkout import commit
from torch import Tensor

from gigagp import GPRegressor, __version__, inference, kernels, metrics, presets, solvers
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.likelihood import pool_of
from gigagp.model.means import resolve_mean
from gigagp.model.model import Model
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.operators import KernelMatrix
from gigagp.operators.grid.statistics import GridStatistics, RegularGrid
from gigagp.products import LowRankWeights, TorchTiles
from gigagp.products.measured_tiles import seconds
from gigagp.products.triton_tiles import TritonTiles
from gigagp.runtime.memory import resolve_budget

#: Largest error, as a share of the largest number, that counts as parity.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4}
#: The same for tensor cores, which round the points, and for predictions, which rest on solves.
ROUNDED, PREDICTED = 5e-3, {torch.float64: 1e-5, torch.float32: 2e-3}
BUDGET = 2**30
#: Sizes of the parts, and those of ``--smoke``.
SIZES = {"parity": 3000, "fit": 1500, "products": 131_072, "step": 100_000, "grid": 2_000_000, "aware": 1_000_000}
SIZES |= {"made": 100_000, "made more": 300_000, "table": 10**6}
SMOKE = {"parity": 120, "fit": 60, "products": 300, "step": 200, "grid": 500, "aware": 300}
SMOKE |= {"made": 200, "made more": 300, "table": 60}

Row = dict[str, Any]


def error_of(found: Any, expected: Any) -> float:
    """Return the largest error as a share of the largest number, over all tensors of two results."""
    if isinstance(expected, dict):
        size = max(float(one.abs().max()) for one in expected.values())
        return (
            max(float((found[k].double().cpu() - one.double().cpu()).abs().max()) for k, one in expected.items()) / size
        )
    return float((found.double().cpu() - expected.double().cpu()).abs().max() / expected.double().abs().max().cpu())


def tried(what: str, run: Callable[[], Row]) -> Row:
    """Return a row of the table, which is a failure where the path fails."""
    try:
        return {"what": what, **run()}
    except Exception as error:  # a path that fails is a finding
        lines = str(error).splitlines() or [""]
        return {"what": what, "failure": f"{type(error).__name__}: {lines[0][:150]}"}


def compared(what: str, run: Callable[[], Any], expected: Any, allowed: float) -> Row:
    """Return a row with the error of a path."""

    def found() -> Row:
        error = error_of(run(), expected)
        return {"error": error, "allowed": allowed, "ok": bool(error <= allowed)}

    return tried(what, found)


# Parity ---------------------------------------------------------------------------------------------------------------


def uneven(n: int, d: int) -> tuple[Tensor, Tensor]:
    """Return rows that are clumped, with a gap and with copies, and targets."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, d, generator=generator, dtype=torch.float64) * 0.3
    X[n // 2 :] += 3
    X[: n // 20] = X[n // 20 : 2 * (n // 20)]
    y = torch.sin(2 * X).sum(1) + 0.2 * torch.randn(n, generator=generator, dtype=torch.float64)
    return X, y


def kernels_of_parity() -> dict[str, kernels.Kernel]:
    """Return kernels of every compiled profile, and one of each operation."""
    return {
        "RBF": kernels.RBF(),
        "Matern 1/2": kernels.Matern(0.5),
        "Matern 3/2": kernels.Matern(1.5),
        "Matern 5/2": kernels.Matern(2.5),
        "sum": kernels.RBF() + kernels.Matern(0.5),
        "product": kernels.Matern(2.5) * kernels.Linear(),
        "periodic": kernels.Periodic(),
    }


def engines_on(device: str) -> dict[str, Any]:
    """Return the engines that a device can run, by name."""
    found: dict[str, Any] = {"torch tiles": TorchTiles()}
    if device != "cpu" and TritonTiles.available():
        for distances in ("ieee", "bf16x3", "tf32"):
            found[f"triton, {distances}"] = TritonTiles(distances)  # type: ignore[arg-type]
    return found


def parity_of_engines(device: str, n: int, label: str) -> Iterator[Row]:
    """Compare products, entries and gradients of every engine with torch tiles in float64 on the processor."""
    X, _ = uneven(n, 3)
    generator = torch.Generator().manual_seed(1)
    one, other = (torch.randn(n, 5, generator=generator, dtype=torch.float64).abs() for _ in range(2))
    # weights V W' that are symmetric, as engines may expect of ``symmetric=True``
    V, W = torch.cat([one, other], 1), torch.cat([other, one], 1)
    kernel, plain = kernels_of_parity()[label].bind(3), TorchTiles()
    expected = {
        "product": plain.product(kernel, X, X, V, budget=BUDGET),
        "entries": plain.dense(kernel, X[:100], X, budget=BUDGET),
        "gradient": plain.gradient(kernel, X, X, LowRankWeights(V, W), symmetric=True, budget=BUDGET),
    }
    for name, engine in engines_on(device).items():
        for dtype in (torch.float64, torch.float32):
            P, A, B = (part.to(device=device, dtype=dtype) for part in (X, V, W))
            run: dict[str, Callable[[], Any]] = {
                "product": partial(engine.product, kernel, P, P, A, budget=BUDGET),
                "entries": partial(engine.dense, kernel, P[:100].contiguous(), P, budget=BUDGET),
                "gradient": partial(engine.gradient, kernel, P, P, LowRankWeights(A, B), symmetric=True, budget=BUDGET),
            }
            rounds = dtype == torch.float32 and name.endswith(("bf16x3", "tf32"))
            for job, call in run.items():
                what = f"{job}, {label}, {name}, {str(dtype).removeprefix('torch.')}"
                yield compared(what, call, expected[job], ROUNDED if rounds else TOLERANCE[dtype])


def parity_of_parts(device: str, n: int) -> Iterator[Row]:
    """Compare solves, neighbours and conditionals with dense algebra, or with the processor."""
    X, y = uneven(n, 2)
    kernel = kernels.Matern(1.5).bind(2)
    H = kernel.block(X, X).detach() + 0.1 * torch.eye(n, dtype=torch.float64)
    expected = torch.linalg.solve(H, y[:, None])
    there = KernelMatrix(kernel, X.to(device), 0.1, memory_budget=BUDGET)
    right = y[:, None].to(device)
    for name, preconditioner in (
        ("no preconditioner", None),
        ("PivotedCholesky", solvers.PivotedCholesky(30)),
        ("TwoLevel", solvers.TwoLevel(30, 40)),
        ("Vecchia", solvers.Vecchia(10)),
    ):
        solver = solvers.ConjugateGradients(tolerance=1e-8, preconditioner=preconditioner)
        call = lambda solver=solver: solver.solve(there, right).value  # noqa: E731
        yield compared(f"conjugate gradients, {name}", call, expected, PREDICTED[torch.float64])
    projections = solvers.AlternatingProjections(block_size=max(n // 10, 20), tolerance=1e-7)
    yield compared("alternating projections", lambda: projections.solve(there, right).value, expected, 1e-4)
    model = Model(kernel, resolve_mean("constant"), torch.tensor(0.1, dtype=torch.float64))

    def conditionals(where: str) -> Tensor:
        table = TrainingTable(X.to(where), y[:, None].to(where), model.mean, BUDGET)
        every = torch.arange(n, device=where)
        neighbours = NeighbourGraph(kernel, table.X, 10).earlier(every)
        return pool_of(model, table).conditionals(every, neighbours, table.Y).variance

    yield compared("neighbours and conditionals", lambda: conditionals(device), conditionals("cpu"), 1e-8)


def methods() -> dict[str, inference.Inference]:
    """Return every inference that runs on a device."""
    solver = solvers.ConjugateGradients(tolerance=1e-8)
    return {
        "Exact": inference.Exact(),
        "Iterative": inference.Iterative(solver=solver),
        "Vecchia": inference.Vecchia(n_neighbors=10),
        "ComputationAware": inference.ComputationAware(n_actions=20),
        "SparseVariational": inference.SparseVariational(n_inducing=20),
        "SparseVariational, minibatches": inference.SparseVariational(n_inducing=20, batch_size=30),
        "RandomFeatures": inference.RandomFeatures(),
        "QuadruplyStochastic": inference.QuadruplyStochastic(n_basis=200),
        "RelevanceVectorMachine": inference.RelevanceVectorMachine(n_basis=100),
    }


def parity_of_fits(device: str, n: int) -> Iterator[Row]:
    """Compare predictions at fixed hyperparameters with those of the processor."""
    X, y = (part.numpy() for part in uneven(n, 2))
    new = X[::7] + 0.01

    def predictions(method: inference.Inference, where: str, dtype: str) -> Tensor:
        gp = GPRegressor(kernel=kernels.Matern(1.5), inference=method, optimizer=None, device=where, dtype=dtype)
        return torch.from_numpy(np.concatenate(gp.fit(X, y).predict(new, return_std=True)))

    for name, method in methods().items():
        expected = tried(f"fit, {name}", lambda method=method: {"value": predictions(method, "cpu", "float64")})
        for dtype in (torch.float64, torch.float32):
            word = str(dtype).removeprefix("torch.")
            if word not in method.abilities.dtypes:
                continue
            call = partial(predictions, method, device, word)
            failed = "failure" in expected
            yield expected if failed else compared(f"fit, {name}, {word}", call, expected["value"], PREDICTED[dtype])


# Times ----------------------------------------------------------------------------------------------------------------


def timed(what: str, make: Callable[[], Callable[[], object]], device: str, runs: int = 3) -> Row:
    """Return a row with the least seconds of some runs after one that is not timed."""

    def found() -> Row:
        call, where = make(), torch.device(device)
        call()
        peak = 0
        if where.type == "cuda":
            torch.cuda.reset_peak_memory_stats(where)
        least = min(seconds(call, where) for _ in range(runs))
        if where.type == "cuda":
            peak = torch.cuda.max_memory_allocated(where)
        return {"seconds": least, "peak_bytes": peak}

    return tried(what, found)


def plain_torch(kernel: Any, X: Tensor, V: Tensor) -> Callable[[], Tensor]:
    """Return a product as one would write it: blocks of `torch.cdist`."""
    Z, root, variance = X / kernel.value("lengthscale", X), 3**0.5, float(kernel.value("variance"))
    rows = max(1, 2**27 // len(X))

    def call() -> Tensor:
        blocks = ((root * torch.cdist(Z[k : k + rows], Z)) for k in range(0, len(X), rows))
        return torch.cat([(variance * (1 + t) * torch.exp(-t)) @ V for t in blocks])

    return call


def of_others(name: str, kernel: Any, X: Tensor, V: Tensor) -> Callable[[], object]:
    """Return the product of another package, which need not be installed."""
    call: Callable[[], object] = getattr(importlib.import_module("gpu_products"), name)(kernel, X, V)
    return call


def products(device: str, n: int, s: int) -> Iterator[Row]:
    """Time products with s vectors, and a gradient."""
    kernel, X, V = problem(device, n, s)
    contenders: dict[str, Callable[[], Callable[[], object]]] = {
        name: lambda engine=engine: lambda: engine.product(kernel, X, X, V, budget=BUDGET)
        for name, engine in engines_on(device).items()
    }
    chosen = KernelMatrix(kernel, X, 0.1, memory_budget=BUDGET, storage="tiles")
    contenders["the engine that is chosen"] = lambda: lambda: chosen @ V
    contenders["plain torch"] = lambda: plain_torch(kernel, X, V)
    for name, make in contenders.items():
        yield timed(f"product, s = {s}, {name}", make, device)
    if s == 17:
        yield timed(f"gradient, s = {s}", lambda: lambda: chosen.gradient(V, V), device)


def of_peer(device: str, n: int, name: str) -> Iterator[Row]:
    """Time products of another package."""
    for s in (1, 17, 65):
        kernel, X, V = problem(device, n, s)
        yield timed(f"product, s = {s}, {name}", partial(of_others, name, kernel, X, V), device)


def problem(device: str, n: int, s: int) -> tuple[Any, Tensor, Tensor]:
    """Return a kernel, points and vectors."""
    generator = torch.Generator().manual_seed(0)
    X, V = (torch.randn(n, columns, generator=generator).to(device) for columns in (10, s))
    return kernels.Matern(1.5, 3.0).bind(10), X, V


def steps(device: str, sizes: dict[str, int]) -> Iterator[Row]:
    """Time a training step, a grid pass and a computation-aware step."""

    def table(n: int, dtype: torch.dtype) -> tuple[TrainingTable, Model]:
        generator = torch.Generator().manual_seed(0)
        X = torch.rand(n, 3, generator=generator, dtype=torch.float64) * 3
        Y = torch.sin(3 * X).sum(1, keepdim=True) + 0.3 * torch.randn(n, 1, generator=generator, dtype=torch.float64)
        model = Model(kernels.Matern(1.5).bind(3), resolve_mean("constant"), torch.tensor(0.1, dtype=torch.float64))
        budget = resolve_budget(None, torch.device(device))
        return TrainingTable(X.to(device, dtype), Y.to(device, dtype), model.mean, budget), model

    def step(method: inference.Inference, n: int) -> Callable[[], object]:
        data, model = table(n, torch.float32)
        objective = method.objective(data, torch.Generator().manual_seed(0))
        start = objective.start(model)
        return lambda: objective.evaluate(start)

    def grid() -> Callable[[], object]:
        data, _ = table(sizes["grid"], torch.float64)
        shape = RegularGrid.around((0, 0, 0), (3, 3, 3), (24, 24, 24) if sizes["grid"] > 10_000 else (6, 6, 6))
        return lambda: GridStatistics.from_rows(shape, data.X.cpu(), data.Y.cpu(), 2, seed=0)

    n, aware, actions = sizes["step"], sizes["aware"], 512 if sizes["aware"] > 10_000 else 20
    yield timed(f"training step of Iterative, n = {n:,}", lambda: step(inference.Iterative(), n), device, 1)
    yield timed(f"grid pass on the processor, n = {sizes['grid']:,}", grid, device, 1)
    method = inference.ComputationAware(n_actions=actions)
    what = f"step of ComputationAware, n = {aware:,}, {actions} actions"
    yield timed(what, lambda: step(method, aware), device, 1)


# Whole fits -----------------------------------------------------------------------------------------------------------


def made(n: int) -> tuple[np.ndarray, ...]:
    """Return rows of a function of six inputs, and points with the function itself."""
    draw = np.random.default_rng(0)
    X = draw.uniform(-2, 2, (n + 1000, 6))
    f = np.sin(2 * X[:, 0]) * X[:, 1] + np.cos(X[:, 2] * X[:, 3]) + 0.3 * X[:, 4] ** 2
    return X[:n], f[:n] + 0.2 * draw.normal(size=n), X[n:], f[n:] + 0.2 * draw.normal(size=1000)


def table_of(data: Path, name: str, rows: int) -> tuple[np.ndarray, ...]:
    """Return training and test rows of a table, at most so many."""
    if not (data / "load.py").exists():
        raise FileNotFoundError(f"no tables in {data}: give --data")
    sys.path.insert(0, str(data))
    X, y, new, target = importlib.import_module("load").uci(name, 0)
    return X[:rows], y[:rows], new[: max(rows // 4, 50)], target[: max(rows // 4, 50)]


def fitted(what: str, rows: Callable[[], tuple[np.ndarray, ...]], device: str, **settings: Any) -> Row:
    """Return the scores and seconds of a fit and its predictions of new measurements."""

    def found() -> Row:
        X, y, new, target = rows()
        where = torch.device(device)
        if where.type == "cuda":
            torch.cuda.reset_peak_memory_stats(where)
        began, cpu = time.perf_counter(), time.process_time()
        gp = GPRegressor(**{"device": device, "random_state": 0, **settings}).fit(X, y)
        fit, fit_cpu, began = time.perf_counter() - began, time.process_time() - cpu, time.perf_counter()
        mean, std = gp.predict(new, return_std=True, include_noise=True)
        return {
            "rows": len(y),
            "seconds": round(fit, 3),
            "cpu_seconds": round(fit_cpu, 3),
            "predict_seconds": round(time.perf_counter() - began, 3),
            "peak_bytes": torch.cuda.max_memory_allocated(where) if where.type == "cuda" else 0,
            "rmse": round(metrics.rmse(target, mean), 4),
            "nll": round(metrics.gaussian_nll(target, mean, std), 4),
            "coverage_95": round(float(np.mean(np.abs(target - mean) < 1.96 * std)), 4),
            "engine": gp.engine_,
            "inference": type(gp.inference_).__name__,
            "evaluations": len(gp.history_),
        }

    return tried(what, found)


def gpytorch_exact(rows: Callable[[], tuple[np.ndarray, ...]], device: str, steps: int = 50) -> Row:
    """Return the same of GPyTorch's exact GP as its tutorials fit it: Matern-3/2 with ARD, Adam(.1), float32."""

    def found() -> Row:
        import gpytorch

        X, y, new, target = rows()
        x, t, at = (torch.tensor(part, dtype=torch.float32, device=device) for part in (X, y, new))
        noise = gpytorch.constraints.GreaterThan(1e-4)
        likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=noise).to(device)

        class Exact(gpytorch.models.ExactGP):
            def __init__(self) -> None:
                super().__init__(x, t, likelihood)
                self.mean_module = gpytorch.means.ConstantMean()
                inner = gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=x.shape[1])
                self.covar_module = gpytorch.kernels.ScaleKernel(inner)

            def forward(self, points: Tensor) -> Any:
                return gpytorch.distributions.MultivariateNormal(self.mean_module(points), self.covar_module(points))

        model = Exact().to(device)
        model.train()
        likelihood.train()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        loss_of = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        began = time.perf_counter()
        with gpytorch.settings.max_preconditioner_size(100):
            for _ in range(steps):
                optimizer.zero_grad()
                loss = -loss_of(model(x), t)
                loss.backward()
                optimizer.step()
            fit = time.perf_counter() - began
            model.eval()
            likelihood.eval()
            with torch.no_grad(), gpytorch.settings.fast_pred_var(), gpytorch.settings.eval_cg_tolerance(0.01):
                parts = [likelihood(model(part)) for part in at.split(500)]
                mean = torch.cat([one.mean for one in parts]).cpu().numpy()
                std = torch.cat([one.variance.sqrt() for one in parts]).cpu().numpy()
        peak = torch.cuda.max_memory_allocated() if torch.device(device).type == "cuda" else 0
        return {
            "rows": len(y),
            "seconds": round(fit, 3),
            "peak_bytes": peak,
            "rmse": round(metrics.rmse(target, mean), 4),
            "nll": round(metrics.gaussian_nll(target, mean, std), 4),
        }

    return tried("GPyTorch, exact", found)


def of_paper(rows: Callable[[], tuple[np.ndarray, ...]], device: str, solver: str, name: str, *, smoke: bool) -> Row:
    """Return a row of table 1 of Lin et al. 2024: pathwise gradients and warm starts."""
    sizes = (
        {"block_size": 20, "steps": 2, "n_probes": 4} if smoke else {"block_size": 2000 if name == "protein" else 1000}
    )
    settings = presets.lin2024(solver, "pathwise", warm_start=True, **sizes)  # type: ignore[arg-type]
    return fitted(f"{name}, {solver}, pathwise, warm", rows, device, **settings, standardize=False, dtype="float32")


def two_cards(sizes: dict[str, int]) -> None:
    """Print the scores and seconds of a fit by several processes, one for each card; for torchrun."""
    import torch.distributed as dist

    has_cards = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_cards else "gloo")
    if has_cards:
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    rows = partial(made, sizes["made"])
    settings = {"kernel": kernels.Matern(1.5), "inference": inference.Iterative()}
    row = fitted("six inputs, Iterative", rows, "cuda" if has_cards else "cpu", **settings)
    if dist.get_rank() == 0:
        print(json.dumps({"processes": dist.get_world_size(), **row}))
    dist.destroy_process_group()


# Stages and their parts -----------------------------------------------------------------------------------------------


def parts(device: str, data: Path, *, smoke: bool) -> dict[str, dict[str, tuple[float, Callable[[], Iterator[Row]]]]]:
    """Return the parts of each stage, with their deadlines in seconds."""
    sizes = SMOKE if smoke else SIZES

    def one(make: Callable[..., Row], *arguments: Any, **more: Any) -> Callable[[], Iterator[Row]]:
        return lambda: iter([make(*arguments, **more)])

    def table(name: str) -> Callable[[], tuple[np.ndarray, ...]]:
        return partial(table_of, data, name, sizes["table"])

    n, few, many = sizes["products"], partial(made, sizes["made"]), partial(made, sizes["made more"])
    peers = {"keops", "gpytorch_with_keops"} if device != "cpu" else set()
    return {
        "parity": {
            **{
                f"engines, {label}": (60, partial(parity_of_engines, device, sizes["parity"], label))
                for label in kernels_of_parity()
            },
            "parts": (60, partial(parity_of_parts, device, sizes["parity"])),
            "fits": (90, partial(parity_of_fits, device, sizes["fit"])),
        },
        "products": {
            **{f"s = {s}": (40, partial(products, device, n, s)) for s in (1, 17, 65)},
            **{name: (60, partial(of_peer, device, n, name)) for name in sorted(peers)},
        },
        "steps": {"steps": (60, partial(steps, device, sizes))},
        "fits": {
            "kin40k": (60, one(fitted, "kin40k, default", table("kin40k"), device)),
            "protein": (60, one(fitted, "protein, default", table("protein"), device)),
            "kin40k, float32": (
                60,
                one(
                    fitted,
                    "kin40k, Iterative",
                    table("kin40k"),
                    device,
                    inference=inference.Iterative(),
                    dtype="float32",
                ),
            ),
            "made": (60, one(fitted, "six inputs, default", few, device)),
            "GPyTorch": (60, one(gpytorch_exact, table("kin40k"), device, 2 if smoke else 50)),
            "made, more": (120, one(fitted, "six inputs, more rows, default", many, device)),
        },
        "papers": {
            f"{name}, {solver}": (180, one(of_paper, table(name), device, solver, name, smoke=smoke))
            for name in ("pol", "elevators", "bike")
            for solver in ("cg", "ap")
        },
    }


def line(row: Row) -> str:
    """Return a row as text."""
    if "failure" in row:
        return f"{row['what']:70s} FAILED {row['failure']}"
    if "error" in row:
        return f"{row['what']:70s} error {row['error']:.1e} of {row['allowed']:.0e} {'' if row['ok'] else 'MISSED'}"
    scores = f", RMSE {row['rmse']}, NLL {row['nll']}" if "rmse" in row else ""
    return f"{row['what']:70s} {row['seconds']:.4g} s, {row['peak_bytes'] / 2**30:.2f} GiB{scores}"


def run_part(arguments: argparse.Namespace, stage: str, part: str, deadline: float) -> list[Row]:
    """Run a part in a process of its own, and return its rows; one that ends early or hangs has a row that says so."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.jsonl"
        command = [
            sys.executable,
            __file__,
            "--own",
            f"{stage}/{part}",
            "--out",
            str(out),
            "--data",
            str(arguments.data),
        ]
        command += ["--device", arguments.device, *(["--smoke"] if arguments.smoke else [])]
        try:
            code = subprocess.run(command, timeout=deadline, check=False).returncode
            ended = f"the process ended with code {code}" if code else ""
        except subprocess.TimeoutExpired:
            ended = f"not done after {deadline:g} s"
        found = [json.loads(one) for one in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []
    return [*found, {"what": part, "failure": ended}] if ended else found


def own_part(arguments: argparse.Namespace) -> None:
    """Run one part, and write each row when it is known."""
    if arguments.own == "cards":
        two_cards(SMOKE if arguments.smoke else SIZES)
        return
    stage, part = arguments.own.split("/", 1)
    sys.path.insert(0, str(Path(__file__).parent))
    if arguments.device.startswith("cuda"):
        torch.backends.cuda.matmul.allow_tf32 = False
    _, run = parts(arguments.device, arguments.data, smoke=arguments.smoke)[stage][part]
    with warnings.catch_warnings(), arguments.out.open("w", encoding="utf-8") as out:
        warnings.simplefilter("ignore")  # of fits that are too small
        for row in run():
            print(line(row), flush=True)
            out.write(json.dumps(row) + "\n")
            out.flush()


def main() -> None:
    """Check, measure, print a table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "stages", nargs="*", metavar="STAGE", help="parity, products, steps, fits, papers (default: all)"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--own", default="", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.own:
        own_part(arguments)
        return
    device = arguments.device
    every = parts(device, arguments.data, smoke=arguments.smoke)
    if unknown := set(arguments.stages) - set(every):
        parser.error(f"there is no stage {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    card = torch.cuda.get_device_name(device) if device.startswith("cuda") else "a processor"
    print(f"{card}; gigagp {__version__}, torch {torch.__version__}", flush=True)
    settings = {"device": device, "smoke": arguments.smoke, "sizes": SMOKE if arguments.smoke else SIZES}
    result: dict[str, Any] = {"commit": commit(), "card": card, "torch": torch.__version__, "settings": settings}
    for stage in arguments.stages or every:
        print(f"\n{stage}", flush=True)
        result[stage] = []
        for part, (deadline, _) in every[stage].items():
            result[stage] += run_part(arguments, stage, part, deadline)
            if arguments.json is not None:  # what is known, after every part
                arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    rows = [row for stage in every for row in result.get(stage, [])]
    missed = [row["what"] for row in result.get("parity", []) if not row.get("ok")]
    absent = ("ModuleNotFound", "FileNotFound")  # packages and tables that are not here
    failed = [row for row in rows if not row.get("failure", absent[0]).startswith(absent)]
    print(f"\n{len(rows)} rows; parity missed: {missed or 'none'}; failed: {[row['what'] for row in failed] or 'none'}")
    if missed or failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
