"""Fits in two processes (gloo): the answers of one process, the same bits for any number, and one message each."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import gigagp
from gigagp import GPRegressor, gradients, inference, kernels, optimization, solvers
from gigagp.errors import GigaGPError, InvalidInputError, ProcessFailedError
from gigagp.estimators import checkpoint
from gigagp.inference.iterative.iterative import IterativeObjective
from gigagp.neighbours.conditionals import Pool
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.operators import KernelMatrix, ShardedKernelMatrix, kernel_matrix
from gigagp.products import LowRankWeights, TorchTiles
from gigagp.products.shared_tiles import SMALLEST, SharedTiles, n_terms
from gigagp.runtime import group, processes
from gigagp.runtime.run import current_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_available(), reason="torch.distributed is not there"),
]

N = 1500  # more than SMALLEST entries, also of a group of blocks of actions
PATHWISE = gradients.Pathwise(n_probes=4, n_features=60)
METHODS = {
    "iterative": inference.Iterative(
        solver=solvers.ConjugateGradients(tolerance=1e-8, preconditioner=solvers.Vecchia(8)),
        gradient=PATHWISE,
        n_samples=4,
    ),
    "two levels": inference.Iterative(
        solver=solvers.ConjugateGradients(tolerance=1e-8, preconditioner=solvers.TwoLevel(60, 60)),
        gradient=PATHWISE,
        n_samples=4,
    ),
    "projections": inference.Iterative(
        solver=solvers.AlternatingProjections(block_size=300, tolerance=1e-8), gradient=PATHWISE, n_samples=4
    ),
    "aware": inference.ComputationAware(n_actions=24),
    "vecchia": inference.Vecchia(n_neighbors=12),
}


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Return rows that are clumped, with a gap, repeated and badly scaled."""
    generator = np.random.default_rng(0)
    X = np.concatenate([generator.normal(size=(N // 2, 2)) * 0.2, 4 + generator.uniform(size=(N - N // 2, 2))])
    X[5:15] = X[20:30]
    X[:, 1] *= 1e4
    y = np.sin(3 * X[:, 0]) + np.cos(X[:, 1] / 1e4) + 0.2 * generator.normal(size=N)
    return X, y


def small_rows() -> torch.Tensor:
    X = torch.from_numpy(rows()[0])
    return X / X.std(0)


NEW = rows()[0][::97] + np.array([0.01, 30.0])


# What every process computes ------------------------------------------------------------------------------------------


class Own(kernels.RBF):
    """A kernel without a compiled program."""

    def k(self, squared: torch.Tensor) -> torch.Tensor:
        return (-0.5 * squared).exp() * 0.9


def products() -> dict[str, torch.Tensor]:
    """Return products, gradients, conditionals and neighbours of a distributed fit."""
    generator, found = torch.Generator().manual_seed(1), {}
    X = small_rows()
    V, W = (torch.randn(N, s, generator=generator, dtype=torch.float64) for s in (3, 3))
    for name, kernel, dtype in (
        ("native", kernels.Matern(1.5) + kernels.White(0.1), torch.float64),
        ("short", kernels.RBF(lengthscale=0.1), torch.float32),
    ):
        points, left, right = X.to(dtype), V.to(dtype), W.to(dtype)
        for storage in ("tiles", "dense"):
            H = kernel_matrix(kernel, points, 0.3, storage=storage, memory_budget=2**28)
            found |= {
                f"{name} {storage} product": H @ left,
                f"{name} {storage} one": H @ left[:, 0],
                f"{name} {storage} rows": H.rows_product(torch.arange(0, N, 1), left),
                f"{name} {storage} columns": H.columns_product(slice(20, N), left[20:]),
                f"{name} {storage} block": H.block(slice(0, 9), slice(4, 20)),
            }
            found |= {f"{name} {storage} d {key}": value for key, value in H.gradient(left, right).items()}
    H = kernel_matrix(kernels.RBF(), X, 0.3, engine=SharedTiles(TorchTiles()), storage="tiles", memory_budget=2**28)
    found |= {"torch product": H @ V} | {f"torch d {key}": value for key, value in H.gradient(V, W).items()}
    one_sided = SharedTiles(TorchTiles()).gradient(
        H.kernel, X, X[: N - 50], LowRankWeights(V, W[: N - 50]), symmetric=False, budget=2**28
    )
    found |= {f"rectangular d {key}": value for key, value in one_sided.items()}
    mixed = kernel_matrix(kernels.RBF(), X, 0.3, mixed=True, memory_budget=2**28)
    found["mixed"] = mixed.fast @ V
    graph = NeighbourGraph(H.kernel, X, 10)
    pool = Pool(H.kernel, X, torch.full((N,), 0.1, dtype=torch.float64))
    every, neighbours = torch.arange(N), graph.earlier(torch.arange(N))
    conditionals, derivatives = pool.conditionals(every, neighbours, V), pool.derivatives(every, neighbours, V)
    assert conditionals.residual is not None
    found |= {
        "neighbours": neighbours,
        "variance": conditionals.variance,
        "weights": conditionals.weights,
        "residual": conditionals.residual,
        "sums": torch.tensor([conditionals.log_variance, conditionals.raised, derivatives.value]),
        "information": derivatives.information,
    }
    return found | {f"derivative {key}": value for key, value in derivatives.gradient.items()}


def estimator(name: str, **changes: Any) -> GPRegressor:
    return GPRegressor(
        inference=METHODS[name],
        kernel=kernels.Matern(1.5),
        **{"optimizer": optimization.Adam(steps=2), "memory_budget": "256MiB", "distributed": True} | changes,
    )


def answers(gp: GPRegressor) -> dict[str, np.ndarray]:
    mean, std = gp.predict(NEW, return_std=True)
    return {"mean": mean, "std": std, "hyperparameters": gp.kernel_.lengthscale.numpy()}


def fits() -> dict[str, torch.Tensor]:
    found = {}
    for name in METHODS:
        for key, value in answers(estimator(name).fit(*rows())).items():
            found[f"{name} {key}"] = torch.from_numpy(value)
    return found


def message_of(call: Callable[[], object]) -> str:
    try:
        call()
    except GigaGPError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def refusals(rank: int) -> dict[str, str]:
    """Return the messages of fits that cannot work in two processes."""
    X, y = rows()
    X, y = X[:60], y[:60]
    bad = y.copy()
    bad[17] = np.nan
    gp = estimator("vecchia")

    def stops() -> None:
        with processes.joined(True):
            if rank == 1:
                msg = "the disk is full"
                raise OSError(msg)
            shared = current_run().processes
            assert shared is not None
            shared.total(torch.zeros(3), 4, lambda part: torch.ones(3), "a sum")

    def differs() -> None:
        with processes.joined(True):
            shared = current_run().processes
            assert shared is not None
            shared.total(torch.zeros(3 + rank), 4, lambda part: torch.ones(3 + rank), "a sum")

    def versions() -> None:
        gigagp.__version__, kept = f"0.{rank}", gigagp.__version__
        try:
            gp.fit(X, y)
        finally:
            gigagp.__version__ = kept

    return {
        "rows": message_of(lambda: gp.fit(X + rank, y)),
        "targets": message_of(lambda: gp.fit(X, y * (1 + rank))),
        "bad row": message_of(lambda: gp.fit(X, bad if rank == 1 else y)),
        "noise": message_of(lambda: estimator("vecchia", noise_variance=np.full(60, 0.1 + rank)).fit(X, y)),
        "arguments": message_of(lambda: estimator("vecchia", random_state=rank).fit(X, y)),
        "seed": message_of(lambda: estimator("vecchia", random_state=None).fit(X, y)),
        "time": message_of(lambda: estimator("vecchia", time_budget="1h").fit(X, y)),
        "table": message_of(lambda: gp.fit_table((X, y))),
        "versions": message_of(versions),
        "an error": message_of(lambda: _quiet(stops)),
        "ways": message_of(differs),
    }


def _quiet(call: Callable[[], object]) -> None:
    with contextlib.suppress(OSError):
        call()


def sums(count: int) -> None:
    """Add in all processes this many times."""
    with processes.joined(True):
        shared = current_run().processes
        assert shared is not None
        for _ in range(count):
            shared.total(torch.zeros(3), 4, lambda part: torch.ones(3), "a sum")


class Killed(BaseException):
    """Stands for a kill."""


def resumed(folder: Path, steps: int | None) -> dict[str, torch.Tensor]:
    """Return the answers of a fit with a checkpoint that may exist; the fit is killed after this many steps."""
    checkpoint.INTERVAL = 0.0  # write at every step
    evaluate, count = IterativeObjective.evaluate, 0

    def counted(self: Any, model: Any) -> Any:
        nonlocal count
        if count == steps:
            raise Killed
        count += 1
        return evaluate(self, model)

    IterativeObjective.evaluate = counted  # type: ignore[method-assign]
    try:
        gp = estimator("iterative", optimizer=optimization.Adam(steps=4))
        gp.fit(*rows(), checkpoint=folder / "fit.checkpoint")
    except Killed:
        return {}
    finally:
        IterativeObjective.evaluate = evaluate  # type: ignore[method-assign]
    found = {key: torch.from_numpy(value) for key, value in answers(gp).items()}
    return found | {"evaluations": torch.tensor(count)}


def work(rank: int, count: int, folder: Path) -> dict[str, Any]:
    """Compute everything in one of the processes, and return it."""
    wait = timedelta(seconds=120)
    meet = f"file://{folder}/meet{count}"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=count, timeout=wait)
    try:
        with processes.joined(True):
            found: dict[str, Any] = {"products": products()}
        found["fits"] = fits()
        if count == 1:
            found["whole"] = resumed(folder, None)
            assert resumed(folder, 2) == {}
        else:
            found["resumed"] = resumed(folder, None)
            found["refusals"] = refusals(rank)
        return found
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def another(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run this file in a new process; not a fork, because torch has threads here."""
    environment = os.environ | {"PYTHONPATH": str(Path(gigagp.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", __file__, *arguments]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of a process alone in its group, and those of the two processes of another."""
    folder, threads = tmp_path_factory.mktemp("processes"), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = work(0, 1, folder)
        with another("work", str(folder)) as process:
            first = work(0, 2, folder)
            errors = process.communicate(timeout=120)[1]
            assert process.returncode == 0, errors
        return {"alone": alone, "first": first, "second": torch.load(folder / "second", weights_only=False)}
    finally:
        torch.set_num_threads(threads)


# Tests ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["products", "fits"])
def test_the_bits_are_the_same_for_any_number_of_processes(found, what):
    alone, first, second = (found[who][what] for who in ("alone", "first", "second"))
    assert alone.keys() == first.keys() == second.keys()
    for name, value in alone.items():
        assert torch.equal(value, first[name]), name
        assert torch.equal(value, second[name]), name


def test_products_agree_with_dense_algebra(found):
    results = found["first"]["products"]
    generator = torch.Generator().manual_seed(1)
    X = small_rows()
    V, W = (torch.randn(N, s, generator=generator, dtype=torch.float64) for s in (3, 3))
    for name, kernel, noise, error in (
        ("native", kernels.Matern(1.5), 0.4, 1e-12),
        ("short", kernels.RBF(lengthscale=0.1), 0.3, 3e-6),
    ):
        bound = kernel.bind(2)
        H = bound.block(X, X).detach() + noise * torch.eye(N, dtype=torch.float64)
        size = float((H @ V).abs().max())
        expected = {"product": H @ V, "one": H @ V[:, 0], "rows": H @ V, "columns": H[:, 20:] @ V[20:]}
        for storage in ("tiles", "dense"):
            for what, value in expected.items():
                assert (results[f"{name} {storage} {what}"].double() - value).abs().max() < error * size, (name, what)
            assert (results[f"{name} {storage} block"].double() - H[:9, 4:20]).abs().max() < error
            slope = results[
                f"{name} {storage} d lengthscale" if name == "short" else f"{name} {storage} d 0.lengthscale"
            ]
            leaf = bound.lengthscale.detach().double().requires_grad_()
            dense = bound.replace({"lengthscale": leaf, "variance": bound.variance}).block(X, X)
            ((W @ V.T) * dense).sum().backward()
            scale = float((W.abs() @ V.abs().T).sum()) * 1e-3
            assert (slope - leaf.grad).abs().max() < 10 * error * scale, (name, storage)
    assert (
        results["torch product"] - (kernels.RBF().bind(2).block(X, X) + 0.3 * torch.eye(N, dtype=torch.float64)) @ V
    ).abs().max() < 1e-10
    assert (results["mixed"] - results["torch product"]).abs().max() < 1e-3


def test_conditionals_are_those_of_a_process_without_others(found):
    results, X = found["second"]["products"], small_rows()
    generator = torch.Generator().manual_seed(1)
    V = torch.randn(N, 3, generator=generator, dtype=torch.float64)
    kernel = kernels.RBF().bind(2)
    graph, every = NeighbourGraph(kernel, X, 10), torch.arange(N)
    pool = Pool(kernel, X, torch.full((N,), 0.1, dtype=torch.float64))
    neighbours = graph.earlier(every)
    assert torch.equal(results["neighbours"], neighbours)
    alone, slopes = pool.conditionals(every, neighbours, V), pool.derivatives(every, neighbours, V)
    for name in ("variance", "weights", "residual"):
        torch.testing.assert_close(results[name], getattr(alone, name), rtol=1e-12, atol=1e-13)
    sums = torch.tensor([alone.log_variance, alone.raised, slopes.value])
    torch.testing.assert_close(results["sums"], sums, rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(results["information"], slopes.information, rtol=1e-10, atol=1e-9)
    for name, value in slopes.gradient.items():
        torch.testing.assert_close(results[f"derivative {name}"], value, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_fits_are_those_of_a_process_without_others(found, name):
    alone = answers(estimator(name, distributed=False).fit(*rows()))
    for key, value in alone.items():
        np.testing.assert_allclose(found["second"]["fits"][f"{name} {key}"], value, rtol=1e-6, atol=1e-7, err_msg=key)
    half = estimator(name, distributed=False).fit(*(part[::2] for part in rows()))  # a control: half of the rows
    assert np.abs(half.predict(NEW) - alone["mean"]).max() > 1e-4


@pytest.mark.slow
def test_a_killed_fit_resumes_with_another_number_of_processes(found):
    whole, again = found["alone"]["whole"], found["first"]["resumed"]
    for key in ("mean", "std", "hyperparameters"):
        assert torch.equal(whole[key], again[key]), key
    assert int(again["evaluations"]) == int(whole["evaluations"]) - 2
    assert torch.equal(whole["mean"], found["second"]["resumed"]["mean"])


@pytest.mark.parametrize(
    ("what", "both"),
    [
        ("rows", "InvalidInputError: process 1 of 2 has a different X than process 0"),
        ("targets", "InvalidInputError: process 1 of 2 has a different y than process 0"),
        ("noise", "InvalidInputError: process 1 of 2 has a different noise_variance than process 0"),
        ("arguments", "InvalidInputError: process 1 of 2 has a different random_state than process 0: 1, not 0"),
        ("seed", "InvalidInputError: random_state of GPRegressor must be an int"),
        ("time", "InvalidInputError: time_budget of GPRegressor must be None"),
        ("table", "InvalidInputError: inference of GPRegressor for fit_table with distributed=True"),
        ("versions", "InvalidInputError: process 1 of 2 has a different version of gigagp than process 0: 0.1, not"),
        ("ways", "ProcessFailedError: the processes are out of step"),
    ],
)
def test_what_cannot_be_shared_is_refused_everywhere(found, what, both):
    for who in ("first", "second"):
        assert found[who]["refusals"][what].startswith(both), found[who]["refusals"][what]


def test_an_error_of_one_process_ends_all(found):
    first, second = (found[who]["refusals"] for who in ("first", "second"))
    assert second["bad row"].startswith("InvalidInputError: y")
    assert first["bad row"] == second["bad row"].replace("InvalidInputError:", "ProcessFailedError: process 1 of 2:")
    assert first["an error"] == "ProcessFailedError: process 1 of 2: OSError: the disk is full"
    assert second["an error"] == "nothing"  # the error itself, which is not gigagp's


def test_a_killed_process_ends_the_others(tmp_path):
    with another("die", str(tmp_path)) as process:
        wait = timedelta(seconds=60)
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=2, timeout=wait)
        try:
            with pytest.raises(ProcessFailedError, match="another process has ended") as error:
                sums(3)
            assert error.value.lost
        finally:
            dist.destroy_process_group()
        process.communicate(timeout=60)
        assert process.returncode == 3


def test_without_processes_it_is_refused():
    with pytest.raises(InvalidInputError, match="distributed of GPRegressor, or of"):
        estimator("vecchia").fit(*rows())
    assert current_run().processes is None


def test_without_processes_nothing_changes():
    H = kernel_matrix(kernels.RBF(), small_rows())
    assert type(H) is KernelMatrix
    assert not isinstance(H, ShardedKernelMatrix)
    assert processes.is_first()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 20])
def test_a_sum_has_one_order(count):
    """The subtrees of all processes, joined in order, are the tree of one process."""
    parts = 8
    nodes = [
        node
        for rank in range(count)
        for node in group._nodes(range(parts * rank // count, parts * (rank + 1) // count))
    ]
    covered = [place * 2**level + k for level, place in nodes for k in range(2**level)]
    assert covered == list(range(parts))


@pytest.mark.parametrize("n", [1, 15, 16, 1000, 50_000])
def test_parts_cover_the_rows(n):
    edges = group.row_edges(n)
    assert edges[0] == 0
    assert edges[-1] == n
    assert all(a < b for a, b in pairwise(edges))
    assert n_terms(n).bit_count() == 1
    assert N**2 > SMALLEST


def test_a_part_of_a_product_is_worth_its_overhead():
    n, entries = 50_000, 1024
    edges = group.row_edges(n, entries)
    assert len(group.row_edges(n)) - 1 == 64
    assert len(edges) - 1 == 8
    assert all((b - a) * entries >= group._PART_ENTRIES for a, b in pairwise(edges))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "work":
        torch.save(work(1, 2, Path(sys.argv[2])), Path(sys.argv[2]) / "second")
    else:
        wait = timedelta(seconds=60)
        dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}/meet", rank=1, world_size=2, timeout=wait)
        with processes.joined(True):
            sums(1)
            os._exit(3)
