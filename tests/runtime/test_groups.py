"""What processes share, in threads that stand for them; `test_processes` has real ones, which take longer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
import typer

from gigagp import GPRegressor, inference, kernels
from gigagp.commands.fit import all_processes
from gigagp.errors import InvalidInputError, ProcessFailedError
from gigagp.neighbours import conditionals
from gigagp.neighbours.conditionals import Conditionals, Derivatives, Pool
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.operators.grid.statistics import GridCollector, GridStatistics, Neighbourhoods, RegularGrid
from gigagp.products import TorchTiles, shared_tiles
from gigagp.products.shared_tiles import SharedTiles
from gigagp.runtime import processes
from gigagp.runtime.run import current_run
from threads import in_threads

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch.distributed is not there")

RNG = np.random.default_rng(0)
X = RNG.uniform(size=(900, 2))
Y = np.sin(5 * X) + 0.1 * RNG.normal(size=(900, 2))
GRID = RegularGrid.around((0, 0), (1, 1), (9, 14))


def test_shared_results_are_those_of_one_process(monkeypatch):
    points, V = torch.from_numpy(X), torch.from_numpy(Y)
    kernel, engine = kernels.RBF(0.3).bind(2), SharedTiles(TorchTiles())
    monkeypatch.setattr(shared_tiles, "SMALLEST", 0)
    shares = []

    def work(rank: int) -> dict[str, torch.Tensor]:
        with processes.joined(True):
            own = current_run().processes
            shares.append(own.share(8))
            return {
                "rows": own.rows(torch.empty(900, 2).double(), lambda rows: V[rows] ** 2, "squares"),
                "product": engine.product(kernel, points, points, V, budget=2**24),
                "other points": engine.product(kernel, points[:99], points, V, budget=2**24),
                "least": torch.tensor(own.least(7 - rank)),
            }

    (alone,) = in_threads(monkeypatch, work, 1)
    K = kernel.block(points, points)
    assert torch.equal(alone["rows"], V**2)
    torch.testing.assert_close(alone["product"], K @ V, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(alone["other points"], K[:99] @ V, rtol=1e-12, atol=1e-12)
    for count in (2, 3):
        shares.clear()
        for found in in_threads(monkeypatch, work, count):
            assert int(found["least"]) == 8 - count
            assert all(torch.equal(found[name], alone[name]) for name in ("rows", "product", "other points"))
        assert sorted(part for share in shares for part in share) == list(range(8))
        assert max(map(len, shares)) < 8


@pytest.mark.parametrize("weights", [True, False])
def test_conditionals_and_their_derivatives_are_shared(monkeypatch, weights):
    points = torch.from_numpy(X)
    graph = NeighbourGraph(kernels.Matern(1.5, [0.3, 0.5]).bind(2), points, 6)
    pool = Pool(graph.kernel, points, torch.full((900,), 0.01, dtype=torch.float64))
    every = torch.arange(900)
    given = every, graph.earlier(every), torch.from_numpy(Y)
    monkeypatch.setattr(conditionals, "_sharing", lambda targets: current_run().processes)

    def work(rank: int) -> tuple[Conditionals, Derivatives]:
        with processes.joined(True):
            return pool.conditionals(*given, weights=weights), pool.derivatives(*given)

    expected, slopes = pool.conditionals(*given, weights=weights), pool.derivatives(*given)
    for found, own in in_threads(monkeypatch, work):
        for name in ("variance", "weights", "residual"):
            assert torch.equal(getattr(found, name), getattr(expected, name))
        assert found.log_variance == pytest.approx(expected.log_variance, rel=1e-12)
        assert found.raised == expected.raised
        assert own.value == pytest.approx(slopes.value, rel=1e-12)
        torch.testing.assert_close(own.information, slopes.information, rtol=1e-10, atol=1e-10)
        for name, slope in slopes.gradient.items():
            torch.testing.assert_close(own.gradient[name], slope, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"random_state": None}, "random_state"), ({"time_budget": 60.0}, "time_budget of GPRegressor must be None")],
)
def test_fits_whose_processes_would_part_are_refused(monkeypatch, options, words):
    gp = GPRegressor(kernels.RBF(0.5), inference.Exact(), None, distributed=True, **options)
    for found in in_threads(monkeypatch, lambda rank: gp.fit(X[:20], Y[:20, 0])):
        assert isinstance(found, InvalidInputError)
        assert words in str(found)


def test_a_failure_ends_the_others_with_its_message(monkeypatch):
    def work(rank: int) -> None:
        with processes.joined(True):
            if rank == 1:
                raise OSError("the disk is full")
            current_run().processes.meet("there")

    first, second = in_threads(monkeypatch, work)
    assert isinstance(second, OSError)  # the error itself
    assert isinstance(first, ProcessFailedError)
    assert str(first) == "process 1 of 2: OSError: the disk is full"
    assert not first.lost


def test_processes_at_other_places_or_with_other_values_are_refused(monkeypatch):
    def apart(rank: int) -> None:
        with processes.joined(True):
            current_run().processes.meet("here" if rank else "there")

    def different(rank: int) -> None:
        with processes.joined(True):
            processes.require_same({"seed": rank})

    for rank, found in enumerate(in_threads(monkeypatch, apart)):
        assert isinstance(found, ProcessFailedError)
        assert f"out of step (process {rank} is at: {'here' if rank else 'there'})" in str(found)
    for found in in_threads(monkeypatch, different):
        assert isinstance(found, InvalidInputError)
        assert "process 1 of 2 has a different seed than process 0: 1, not 0" in str(found)


def test_a_lost_process_is_noticed(monkeypatch):
    def work(rank: int) -> None:
        if rank == 0:
            with processes.joined(True):
                current_run().processes.meet("there")
        raise SystemExit

    first, _ = in_threads(monkeypatch, work)
    assert isinstance(first, ProcessFailedError)
    assert first.lost
    assert "another process has ended" in str(first)


# Sums on grids --------------------------------------------------------------------------------------------------------


def test_sums_of_shares_are_those_of_all_rows(monkeypatch):
    def collected(share: tuple[int, int]) -> GridCollector:
        near = Neighbourhoods(torch.from_numpy(X[:3]), [0.5, 1.0], 20, 2)
        return GridCollector(GRID, 2, 4, 7, neighbourhoods=near).read((X, Y), chunk_rows=100, share=share)

    def work(rank: int) -> GridCollector:
        collector = collected((rank, 3))
        collector.notes = {"kept": 1}
        return collector.all_reduce()

    whole = collected((0, 1))
    for found in in_threads(monkeypatch, work, 3):
        sums, expected = found.statistics(), whole.statistics()
        assert found.notes == {"kept": 1}
        assert sums.n_rows == found.sample.n_rows == 900
        torch.testing.assert_close(sums.gram.values, expected.gram.values, rtol=1e-12, atol=1e-12)
        for name in ("cross", "probes", "probe_squares", "target_squares", "cell_counts", "input_low", "input_high"):
            torch.testing.assert_close(getattr(sums, name), getattr(expected, name), rtol=1e-12, atol=1e-12, msg=name)
        assert torch.equal(found.sample.X, whole.sample.X)
        for mine, one in zip(found.neighbourhoods.boxes(), whole.neighbourhoods.boxes(), strict=True):
            assert torch.equal(mine[0], one[0])
            assert torch.equal(mine[1], one[1])
    assert not torch.equal(collected((0, 3)).statistics().cross, whole.statistics().cross)  # the control


def test_sums_with_other_probes_are_refused(monkeypatch):
    def work(rank: int) -> GridStatistics:
        return GridStatistics.from_rows(GRID, torch.from_numpy(X), torch.from_numpy(Y), 4, seed=rank).all_reduce()

    for found in in_threads(monkeypatch, work):
        assert isinstance(found, InvalidInputError)
        assert "Processes must have the same grid" in str(found)


def test_fit_table_of_shares_is_that_of_all_rows(monkeypatch):
    def fit(distributed: bool, y: np.ndarray = Y[:, 0], **options: object) -> GPRegressor:
        method = inference.Grid(size=(15, 15), distributed=distributed)
        gp = GPRegressor(kernels.RBF(0.5), method, noise_variance=0.1, optimizer=None)
        return gp.fit_table((X, y), chunk_rows=100, **options)

    whole = fit(False).predict(X[:20], return_std=True)
    for gp in in_threads(monkeypatch, lambda rank: fit(True)):
        assert gp.posterior_.n_rows == 900
        for found, expected in zip(gp.predict(X[:20], return_std=True), whole, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6)
    bad = Y[:, 0].copy()
    bad[-1] = np.nan
    first, second = in_threads(monkeypatch, lambda rank: fit(True, bad if rank else Y[:, 0]))
    assert isinstance(second, InvalidInputError)
    assert str(first) == f"process 1 of 2: {second}"


def test_sums_of_one_process_are_no_checkpoint(monkeypatch, tmp_path):
    np.savetxt(tmp_path / "t.csv", X, delimiter=",", header="a,y", comments="")
    gp = GPRegressor(kernels.RBF(0.5), inference.Grid(size=15, distributed=True), optimizer=None)
    for found in in_threads(
        monkeypatch, lambda rank: gp.fit_table(tmp_path / "t.csv", "y", checkpoint=tmp_path / "kept")
    ):
        assert isinstance(found, InvalidInputError)
        assert "it keeps one process's sums" in str(found)


# The command line -----------------------------------------------------------------------------------------------------


def test_the_first_process_of_a_command_saves_and_reports(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")

    def saves(rank: int) -> bool:
        with all_processes(True) as first:
            return first

    def fails(rank: int) -> None:
        with all_processes(True):
            if rank == 1:
                raise InvalidInputError("y must be finite")
            current_run().processes.meet("there")

    assert in_threads(monkeypatch, saves) == [True, False]
    first, second = in_threads(monkeypatch, fails)
    assert str(first) == "process 1 of 2: y must be finite"
    assert isinstance(second, typer.Exit)  # without a message of its own
    assert second.exit_code == 2
