"""Inference from sums over rows in one, two and four processes: the same bits, and those of a fit alone."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import gigagp
from gigagp import GPRegressor, inference, kernels, optimization, planning, solvers
from gigagp.inference.automatic import objective as automatic
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.iterative import solve_cost
from gigagp.model.likelihoods import resolve_likelihood
from gigagp.model.means import resolve_mean
from gigagp.model.model import Model
from gigagp.operators import kernel_matrix
from gigagp.runtime import group, machine, processes

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch.distributed is not there")

N, COUNTS = 1500, (1, 2, 4)
#: Every process imports torch; the default run has two of them.
counts = pytest.mark.parametrize(
    "count", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.rest)]
)
ADAM = optimization.Adam(steps=2)
METHODS: dict[str, tuple[Any, Any]] = {
    "collapsed": (inference.SparseVariational(n_inducing=100), ADAM),
    "minibatches": (inference.SparseVariational(n_inducing=200, batch_size=900), ADAM),
    "functions": (
        inference.QuadruplyStochastic(n_basis=3000, row_batch=128, basis_batch=1000, start_rows=200),
        optimization.SparseAdam(steps=3),
    ),
    "columns": (
        inference.QuadruplyStochastic(n_basis=2500, row_batch=256, basis_batch=600, n_columns=9, start_rows=200),
        optimization.SparseAdam(steps=3, hyper_learning_rate=0.01),
    ),
    "iterative": (
        inference.Iterative(solver=solvers.ConjugateGradients(tolerance=1e-8, preconditioner=solvers.Vecchia(8))),
        optimization.Adam(steps=1),
    ),
}


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Return rows that are clumped, with a gap, repeated and badly scaled."""
    generator = np.random.default_rng(3)
    X = np.concatenate([generator.normal(size=(N // 3, 2)) * 0.2, 4 + generator.uniform(size=(N - N // 3, 2))])
    X[5:15] = X[20:30]
    X[:, 1] *= 1e4
    return X, 100 + np.sin(3 * X[:, 0]) + np.cos(X[:, 1] / 1e4) + 0.2 * generator.normal(size=N)


NEW = rows()[0][::97] + np.array([0.01, 30.0])


def table() -> tuple[TrainingTable, Model]:
    X, y = (torch.from_numpy(part) for part in rows())
    model = Model(kernels.Matern(1.5).bind(2), resolve_mean("constant"), torch.tensor(0.1, dtype=torch.float64))
    return TrainingTable((X - X.mean(0)) / X.std(0), (y - 100)[:, None], model.mean, 2**28), model


def answers(name: str, *, distributed: bool) -> dict[str, torch.Tensor]:
    method, optimizer = METHODS[name]
    gp = GPRegressor(
        kernel=kernels.Matern(1.5),
        inference=method,
        optimizer=optimizer,
        memory_budget="256MiB",
        distributed=distributed,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Squared errors")  # after so few steps
        gp.fit(*rows())
    mean, std = gp.predict(NEW, return_std=True)
    bound = gp.log_marginal_likelihood().value
    found = {"mean": mean, "std": std, "hyperparameters": gp.kernel_.lengthscale.numpy(), "bound": np.array(bound)}
    return {f"{name} {key}": torch.from_numpy(np.asarray(value)) for key, value in found.items()}


def gradients() -> dict[str, torch.Tensor]:
    """Return products, bounds and gradients on the same rows."""
    data, model = table()
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(N, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    H = kernel_matrix(model.kernel, data.X, 0.1, storage="tiles", memory_budget=2**28)
    found = {"product": H @ left} | {f"matrix {key}": value for key, value in H.gradient(left, right).items()}
    for name in ("collapsed", "minibatches"):
        objective = METHODS[name][0].objective(data, torch.Generator().manual_seed(1))
        evaluation = objective.evaluate(objective.start(model))
        found[f"one {name} bound"] = torch.tensor(evaluation.value)
        found |= {f"one {name} {key}": value for key, value in evaluation.gradient.items()}
    counts = TrainingTable(data.X, data.Y.abs().mul(3).round(), resolve_mean("zero"), 2**28)
    for name, likelihood, rows_of in (
        ("functions", "gaussian", data),
        ("columns", "gaussian", data),
        ("functions", "poisson", counts),
        ("columns", "poisson", counts),
    ):
        told = resolve_likelihood(likelihood)
        objective = METHODS[name][0].objective(rows_of, torch.Generator().manual_seed(1), told)
        start = model if likelihood == "gaussian" else Model(model.kernel, counts.mean, model.noise_variance)
        objective.begin(start, moves_hyperparameters=likelihood == "gaussian")
        sampled = objective.sample(start, hyperparameters=likelihood == "gaussian")
        key = f"{name} {likelihood}"
        found |= {f"{key} bound": torch.tensor(sampled.value)}
        found |= {f"{key} {what}": one for what, one in (sampled.gradient | sampled.hyperparameters).items()}
    return found


def choice(rank: int) -> str:
    """Return how ``inference="auto"`` ends where the processes believe in machines of very different speed."""
    kept = machine._measured, solve_cost._measured, automatic.EXACT_ROWS, planning.EXACT_ROWS
    machine._measured = solve_cost._measured = lambda threads: 1e4**rank  # type: ignore[assignment]
    automatic.EXACT_ROWS = planning.EXACT_ROWS = 300
    try:
        X, y = rows()
        gp = GPRegressor(kernel=kernels.Matern(1.5), memory_budget="256MiB", distributed=True).fit(X[::3], y[::3])
        return f"{gp.inference_!r} {gp.predict(NEW).tolist()}"
    finally:
        machine._measured, solve_cost._measured, automatic.EXACT_ROWS, planning.EXACT_ROWS = kept


def work(rank: int, count: int, folder: Path) -> dict[str, Any]:
    """Compute everything in one of the processes, and return it."""
    meet, wait = f"file://{folder}/meet{count}", timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=count, timeout=wait)
    whats, meets = set(), group.Processes.meet

    def noted(self: group.Processes, what: str, *arguments: Any, **settings: Any) -> None:
        whats.add(what.split(" (")[0])
        meets(self, what, *arguments, **settings)

    group.Processes.meet = noted  # type: ignore[method-assign]
    try:
        with processes.joined(True):
            found: dict[str, Any] = gradients() | {"shared": whats}
        for name in METHODS if count < 4 else ("collapsed",):
            found |= answers(name, distributed=True)
        if count == 2:
            found["choice"] = choice(rank)
        return found
    finally:
        group.Processes.meet = meets  # type: ignore[method-assign]
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[dict[str, Any]]]:
    """For a number of processes, what each of them finds; they are started once."""
    folder = tmp_path_factory.mktemp("shared")
    environment = os.environ | {"PYTHONPATH": str(Path(gigagp.__file__).parents[1]), "OMP_NUM_THREADS": "1"}

    @cache
    def found_by(count: int) -> list[dict[str, Any]]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with ExitStack() as running:
                others = []
                for rank in range(1, count):  # not forks, because torch has threads here
                    command = [sys.executable, "-W", "error", __file__, str(rank), str(count), str(folder)]
                    others.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
                    running.callback(others[-1].communicate)
                    running.callback(others[-1].kill)
                mine = work(0, count, folder)
                for one in others:
                    errors = one.communicate(timeout=120)[1]
                    assert one.returncode == 0, errors
        finally:
            torch.set_num_threads(threads)
        names = [folder / f"{count}.{rank}" for rank in range(1, count)]
        return [mine, *(torch.load(name, weights_only=False) for name in names)]

    return found_by


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("count", COUNTS[1:])
def test_the_bits_are_those_of_one_process(found, count):
    alone = found(1)[0]
    for one in found(count):
        assert len(one.keys() & alone.keys()) > 30
        for name in one.keys() & alone.keys() - {"shared"}:
            assert torch.equal(one[name], alone[name]), name


@pytest.mark.slow
def test_bounds_and_gradients_are_those_without_processes(found):
    """The parts are added in another order, so that results differ by rounding errors alone."""
    data, model = table()
    condition = {}  # of the matrices between inducing points, which bounds and gradients are solved with
    for method in ("collapsed", "minibatches"):
        places = (
            METHODS[method][0].objective(data, torch.Generator().manual_seed(1)).start(model).free["inducing_points"]
        )
        condition[method] = float(torch.linalg.cond(model.kernel.block(places, places).detach()))
    for name, expected in gradients().items():
        size = max(float(expected.double().abs().max()), 1.0)
        worst = next((number for method, number in condition.items() if method in name), 1e5)
        assert float((found(2)[1][name] - expected).abs().max()) < 64 * torch.finfo(torch.float64).eps * worst * size


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_every_inference_shares_its_work(found, count):
    points = {"sums of inducing points", "gradient of inducing points", "minibatch of inducing points"}
    others = {"bound of inducing points", "minibatch of functions", "anchor", "symmetric product", "gradient"}
    for one in found(count):
        assert points | others <= one["shared"]


def test_half_of_the_rows_have_other_sums(found):
    """A control: with the first half of the rows alone, bound and gradient of the collapsed form are others."""
    data, model = table()
    half = data.take_rows(torch.arange(N // 2))
    objective = METHODS["collapsed"][0].objective(half, torch.Generator().manual_seed(1))
    value = objective.evaluate(objective.start(model)).value
    assert abs(value - float(found(2)[0]["one collapsed bound"])) > 1.0


@pytest.mark.few(2)
@pytest.mark.parametrize("name", METHODS)
def test_fits_are_those_without_processes(found, name):
    for key, value in answers(name, distributed=False).items():
        np.testing.assert_allclose(found(2)[1][key], value, rtol=1e-6, atol=1e-7, err_msg=key)


@counts
def test_a_product_agrees_with_dense_algebra(found, count):
    data, model = table()
    left = torch.randn(N, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    H = model.kernel.block(data.X, data.X).detach() + 0.1 * torch.eye(N, dtype=torch.float64)
    for one in found(count):
        assert float((one["product"] - H @ left).abs().max()) < 1e-11 * float((H @ left).abs().max())


@counts
def test_the_collapsed_bound_agrees_with_dense_algebra(found, count):
    data, model = table()
    objective = METHODS["collapsed"][0].objective(data, torch.Generator().manual_seed(1))
    points = objective.points(objective.start(model)).points
    cross, kernel = model.kernel.block(data.X, points).detach(), model.kernel.block(points, points).detach()
    kernel.diagonal().add_(1e-8)
    nystrom = cross @ torch.linalg.solve(kernel, cross.T)
    covariance = nystrom + 0.1 * torch.eye(N, dtype=torch.float64)
    ones = torch.ones(N, 1, dtype=torch.float64)
    solved = torch.linalg.solve(covariance, torch.cat([data.Y, ones], 1))
    residual = data.Y - (ones.T @ solved[:, :1]) / (ones.T @ solved[:, 1:]) * ones
    fit = float((residual * torch.linalg.solve(covariance, residual)).sum())
    expected = -0.5 * (fit + float(torch.logdet(covariance)) + N * np.log(2 * np.pi))
    expected -= 0.5 * float((model.kernel.diagonal(data.X) - nystrom.diagonal()).sum()) / 0.1
    for one in found(count):
        assert float(one["one collapsed bound"]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_the_automatic_choice_is_one(found):
    """No clock decides it: the second process believes that its machine is ten thousand times as slow."""
    first, second = (one["choice"] for one in found(2))
    assert first == second


def test_sums_over_rows_without_processes_are_made_at_once():
    calls = []

    def compute(part: slice) -> list[torch.Tensor]:
        calls.append(part)
        return [torch.ones(())]

    processes.sum_of_rows(compute, [torch.zeros(())], 10**6, 10**3, "a sum")
    assert calls == [slice(0, 10**6)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, count, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.save(work(rank, count, folder), folder / f"{count}.{rank}")
