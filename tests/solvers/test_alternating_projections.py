from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from gigagp.errors import InvalidInputError, MemoryBudgetError
from gigagp.kernels import Matern
from gigagp.operators import DenseMatrix, KernelMatrix
from gigagp.solvers import AlternatingProjections, Status
from matrices import generator, kernel_matrix, normal, smooth_part

PAPER = AlternatingProjections(block_size=25, partition="contiguous", coarse_rank=0)


class Recorder(DenseMatrix):
    """A dense matrix that records the columns for which a solver requests products."""

    def __init__(self, matrix, noise):
        super().__init__(matrix, noise)
        self.steps = []

    def columns_product(self, columns, vectors):
        self.steps.append((columns, vectors.clone()))
        return super().columns_product(columns, vectors)


def run(solver, n=100, noise=0.05, steps=8):
    matrix = Recorder(smooth_part(kernel_matrix(n)), noise)
    b = normal(n, 4)
    epochs = steps * solver.block_size / n
    solution = replace(solver, tolerance=1e-14, max_epochs=epochs).solve(matrix, b, generator=generator())
    return matrix, b / b.norm(dim=0), solution


def test_the_steps_are_those_of_the_algorithm():
    matrix, b, solution = run(PAPER)
    H = matrix.to_dense()
    value = torch.zeros_like(b)
    chosen = []
    for rows, change in matrix.steps:
        residual = b - H @ value
        scores = [float(residual[part].norm()) for part in torch.arange(100).split(25)]
        assert rows.start // 25 == max(range(4), key=scores.__getitem__)  # the largest residual
        torch.testing.assert_close(change, torch.linalg.solve(H[rows, rows], residual[rows]))
        value[rows] += change
        assert float((b - H @ value)[rows].abs().max()) < 1e-12  # solved to rounding
        chosen.append(rows.start)
    assert solution.iterations == len(chosen) == 8
    assert all(first != second for first, second in itertools.pairwise(chosen))
    torch.testing.assert_close(solution.value, value * normal(100, 4).norm(dim=0))
    assert solution.epochs == pytest.approx(8 * 25 / 100)


def test_the_printed_score_sums_over_the_columns_first():
    matrix, b, _ = run(replace(PAPER, score="sum"), steps=1)
    scores = b.sum(1).reshape(4, 25).norm(dim=1)
    assert matrix.steps[0][0].start // 25 == int(scores.argmax())
    # Control: with columns that cancel, the sum is zero but the norm is not.
    cancelling = torch.zeros(100, 2).double()
    cancelling[:50] = normal(50)[:, None] * torch.tensor([1.0, -1.0]).double()
    cancelling[60] = 0.01
    for score, expected in (("sum", 2), ("frobenius", 0)):
        recorder = Recorder(smooth_part(kernel_matrix(100)), 0.05)
        replace(PAPER, score=score, max_epochs=0.2).solve(recorder, cancelling)
        first = recorder.steps[0][0].start // 25
        assert (first == expected) if score == "sum" else (first in (0, 1))


@pytest.mark.slow
def test_the_frobenius_score_needs_no_more_epochs_than_the_sum():
    matrix, b = kernel_matrix(300, 4, noise=0.05), normal(300, 9)
    epochs = {
        score: AlternatingProjections(block_size=50, partition="contiguous", coarse_rank=0, score=score)
        .solve(matrix, b, n_targets=1)
        .epochs
        for score in ("frobenius", "sum")
    }
    assert epochs["frobenius"] <= 1.02 * epochs["sum"]


@pytest.mark.parametrize("solver", [PAPER, replace(PAPER, partition="clustered", coarse_rank=20)])
def test_the_energy_norm_of_the_error_never_grows(solver):
    matrix, b = kernel_matrix(100, noise=0.01), normal(100, 3)
    H = matrix.to_dense()
    exact = torch.linalg.solve(H, b)
    errors = []
    for steps in range(1, 16):
        value = replace(solver, tolerance=1e-14, max_epochs=steps / 4).solve(matrix, b, generator=generator()).value
        errors.append(float(((value - exact) * (H @ (value - exact))).sum()))
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(errors))


@pytest.mark.parametrize("solver", [PAPER, replace(PAPER, partition="clustered", coarse_rank=20)])
def test_the_running_residual_is_the_true_one(solver):
    matrix, b = kernel_matrix(100, noise=0.01), normal(100, 3)
    solution = replace(solver, max_epochs=2000).solve(matrix, b, generator=generator())
    assert solution.converged
    truth = (b - matrix.to_dense() @ solution.value).norm(dim=0) / b.norm(dim=0)
    torch.testing.assert_close(solution.relative_residual, truth, rtol=1e-8, atol=0)


def test_one_block_solves_in_one_step():
    matrix, b = kernel_matrix(100, noise=0.01), normal(100, 3)
    solution = AlternatingProjections(block_size=100, tolerance=1e-10).solve(matrix, b)
    assert solution.converged
    assert (solution.iterations, solution.epochs) == (1, 1.0)


def test_the_coarse_space_is_solved_exactly_after_every_step():
    solver = AlternatingProjections(block_size=25, coarse_rank=10, tolerance=1e-14, max_epochs=1)
    matrix, b = kernel_matrix(100, noise=0.01), normal(100, 3)
    state = solver.prepare(matrix)
    solution = solver.solve(state, b, generator=generator())
    columns = smooth_part(matrix)[:, state.pivots]
    residual = b - matrix.to_dense() @ solution.value
    assert float((torch.linalg.qr(columns)[0].T @ residual).abs().max()) < 1e-10
    assert solution.detail["coarse_rank"] == 10


@pytest.mark.slow
def test_clusters_and_the_coarse_space_together_save_most_epochs():
    matrix, b = kernel_matrix(400, 3, noise=0.01), normal(400, 5)
    epochs = {}
    for partition in ("contiguous", "clustered"):
        for rank in (0, 60):
            solver = AlternatingProjections(block_size=50, partition=partition, coarse_rank=rank, max_epochs=2000)
            solution = solver.solve(matrix, b, generator=generator())
            assert solution.converged
            assert solution.detail["partition"] == partition
            epochs[partition, rank] = solution.total_epochs
    assert epochs["clustered", 60] < 0.2 * epochs["contiguous", 0]
    assert epochs["clustered", 60] < epochs["clustered", 0]
    assert epochs["clustered", 60] < epochs["contiguous", 60]


def test_a_warm_start_shares_its_pass_with_the_coarse_space():
    kernel = Matern(nu=1.5, lengthscale=1.0, variance=1.0)
    b = normal(200, 3)
    solver = AlternatingProjections(block_size=50, coarse_rank=20)
    passes = []
    for initial in (None, 0.01 * normal(200, 3, seed=1)):
        matrix = KernelMatrix(kernel, normal(200, 3), 0.1, storage="tiles")
        solution = solver.solve(matrix, b, initial, generator())
        passes.append(solution.setup_epochs)
        assert matrix.entries_computed / 200**2 == pytest.approx(solution.total_epochs, abs=0.02)
    assert passes[0] == pytest.approx(passes[1])
    assert passes[0] == pytest.approx(1 + 20 / 200 + 1 / 4, abs=0.01)


def test_without_points_the_columns_of_the_coarse_space_make_the_clusters():
    dense = DenseMatrix(smooth_part(kernel_matrix(100)), 0.1)
    assert AlternatingProjections(25, coarse_rank=20).solve(dense, normal(100)).detail["partition"] == "clustered"
    assert AlternatingProjections(25, coarse_rank=0).solve(dense, normal(100)).detail["partition"] == "contiguous"


def test_a_tolerance_out_of_reach_is_stagnation():
    matrix, b = kernel_matrix(100, noise=0.1, dtype=torch.float32), normal(100, 3)
    solution = AlternatingProjections(25, tolerance=1e-9, max_epochs=3000).solve(matrix, b)
    assert solution.status is Status.STAGNATED
    assert float(solution.relative_residual.max()) < 1e-4


def test_the_block_factors_have_to_fit():
    kernel = Matern(nu=1.5, lengthscale=1.0, variance=1.0)
    matrix = KernelMatrix(kernel, normal(1000, 2), 0.1, memory_budget=10**6, storage="tiles")
    with pytest.raises(MemoryBudgetError, match="needs 4,000,000 bytes"):
        AlternatingProjections(block_size=500, coarse_rank=0).solve(matrix, normal(1000))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"partition": "random"},
            'partition of AlternatingProjections must be "clustered", "contiguous" or "shuffled"',
        ),
        ({"score": "max"}, "score of AlternatingProjections must be .frobenius. or .sum.; got 'max'"),
        ({"block_size": 0}, "block_size of AlternatingProjections must be an int of at least 1"),
        ({"coarse_rank": -1}, "coarse_rank"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(InvalidInputError, match=message):
        AlternatingProjections(**settings)
