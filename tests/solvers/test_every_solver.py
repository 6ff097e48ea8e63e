"""The contract of a solve, for every solver."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest
import torch

from gigagp.errors import InvalidInputError
from gigagp.kernels import Matern
from gigagp.operators import DenseMatrix, KernelMatrix
from gigagp.solvers import (
    AlternatingProjections,
    Cholesky,
    ConjugateGradients,
    PivotedCholesky,
    Solution,
    Start,
    Status,
    StochasticGradientDescent,
    TwoLevel,
)
from matrices import Spoiled, generator, kernel_matrix, normal, smooth_part, spectral, with_duplicates

ITERATIVE = {
    "cg": ConjugateGradients(preconditioner=None),
    "cg greedy": ConjugateGradients(preconditioner=PivotedCholesky(20)),
    "cg two-level": ConjugateGradients(preconditioner=TwoLevel(20, 30)),
    "cg auto": ConjugateGradients(),
    "ap paper": AlternatingProjections(block_size=30, partition="contiguous", coarse_rank=0),
    "ap": AlternatingProjections(block_size=30, coarse_rank=20),
    "ap shuffled sum": AlternatingProjections(block_size=30, partition="shuffled", score="sum", coarse_rank=20),
    "ap one block": AlternatingProjections(),
    "sgd": StochasticGradientDescent(batch_size=30),
    "sgd epoch": StochasticGradientDescent(batch_size=40, sampling="epoch"),
    "sgd full": StochasticGradientDescent(),
}
every_iterative = pytest.mark.parametrize("solver", ITERATIVE.values(), ids=ITERATIVE.keys())
every_solver = pytest.mark.parametrize("solver", [Cholesky(), *ITERATIVE.values()], ids=["cholesky", *ITERATIVE.keys()])


def true_residual(matrix, value, b):
    difference = b.double() - matrix.to_dense().double() @ value.double()
    norms = b.double().norm(dim=0)
    return difference.norm(dim=0) / torch.where(norms > 0, norms, 1.0)


@every_solver
@pytest.mark.parametrize("noise", [0.3, torch.linspace(0.1, 2.0, 120, dtype=torch.float64)], ids=["one", "each row"])
def test_it_agrees_with_dense_algebra_to_the_tolerance_and_reports_the_true_residual(solver, noise):
    matrix, b = kernel_matrix(120, noise=noise), normal(120, 5)
    solution = solver.solve(matrix, b, generator=generator())
    assert isinstance(solution, Solution)
    assert solution.status is Status.CONVERGED
    assert solution.converged
    residual = true_residual(matrix, solution.value, b)
    assert float(residual.max()) <= 0.01
    torch.testing.assert_close(solution.relative_residual, residual, rtol=1e-6, atol=1e-9)
    exact = torch.linalg.solve(matrix.to_dense(), b)
    assert float((solution.value - exact).norm() / exact.norm()) < 0.05
    assert solution.total_epochs == solution.epochs + solution.setup_epochs


@every_iterative
def test_a_tight_tolerance_gives_the_exact_solution(solver):
    matrix, b = spectral(60, 20.0), normal(60, 3)
    solution = replace(solver, tolerance=1e-10, max_epochs=5000).solve(matrix, b, generator=generator())
    exact = torch.linalg.solve(matrix.to_dense(), b)
    assert solution.converged
    assert float((solution.value - exact).norm() / exact.norm()) < 1e-8


@every_iterative
def test_started_at_its_own_solution_it_takes_no_step(solver):
    matrix, b = kernel_matrix(120, noise=0.3), 1e3 * normal(120, 5) * torch.logspace(-3, 3, 5).double()
    first = solver.solve(matrix, b, generator=generator())
    again = solver.solve(matrix, b, first.value, generator())
    assert first.iterations > 0
    assert again.iterations == 0
    assert again.epochs == 0
    assert again.converged
    torch.testing.assert_close(again.value, first.value, rtol=1e-12, atol=0)
    # With a known residual it does not even take a pass.
    known = Start(first.value, b - matrix @ first.value, epochs=0.25)
    assert solver.solve(matrix, b, known).setup_epochs == 0.25


@every_iterative
def test_a_start_near_the_solution_saves_work(solver):
    matrix, b = kernel_matrix(120, noise=0.02), normal(120, 5)
    near = torch.linalg.solve(matrix.to_dense(), b + 0.03 * normal(120, 5, seed=8))
    cold = solver.solve(matrix, b, generator=generator())
    warm = solver.solve(matrix, b, near, generator())
    assert warm.converged
    assert warm.iterations < cold.iterations or cold.iterations == 1


@every_iterative
def test_a_start_worse_than_zero_is_dropped_column_by_column(solver):
    matrix, b = kernel_matrix(120, noise=0.3), normal(120, 2)
    bad = torch.stack([1e6 * normal(120, seed=5), torch.linalg.solve(matrix.to_dense(), b[:, 1])], 1)
    cold = replace(solver, max_epochs=1).solve(matrix, b, generator=generator())
    warm = replace(solver, max_epochs=1).solve(matrix, b, bad, generator())
    assert float(warm.relative_residual[0]) <= max(1.0, 2 * float(cold.relative_residual[0]))
    assert float(warm.relative_residual[1]) < 1e-8 or not isinstance(solver, ConjugateGradients)


@every_iterative
def test_the_first_residual_of_a_warm_start_is_that_of_the_change(solver):
    # Notes, test 13: with fixed b and v = H^-1 b, the residual at H + dH is -dH v.
    matrix, b = kernel_matrix(120, noise=0.3), normal(120, 3)
    exact = torch.linalg.solve(matrix.to_dense(), b)
    change = kernel_matrix(120, noise=0.3, lengthscale=1.01)
    expected = ((matrix.to_dense() - change.to_dense()) @ exact).norm(dim=0) / b.norm(dim=0)
    reported = replace(solver, tolerance=0.5).solve(change, b, exact).relative_residual
    torch.testing.assert_close(reported, expected, rtol=1e-9, atol=1e-12)


@every_solver
def test_a_vector_comes_back_as_a_vector(solver):
    matrix, b = kernel_matrix(50, noise=0.3), normal(50)
    flat = solver.solve(matrix, b, generator=generator())
    column = solver.solve(matrix, b[:, None], generator=generator())
    assert flat.value.shape == (50,)
    assert flat.relative_residual.shape == (1,)
    assert torch.equal(flat.value, column.value[:, 0])


@every_solver
def test_zero_columns_have_the_solution_zero(solver):
    matrix, b = kernel_matrix(120, noise=0.3), normal(120, 3)
    b[:, 1] = 0
    for initial in (None, normal(120, 3, seed=1)):
        solution = solver.solve(matrix, b, initial, generator())
        assert solution.converged
        assert not solution.value[:, 1].any()
        assert float(solution.relative_residual[1]) == 0
    nothing = solver.solve(matrix, torch.zeros(120, 2).double(), normal(120, 2))
    assert nothing.converged
    assert nothing.iterations == 0
    assert not nothing.value.any()


@pytest.mark.each
@every_iterative
@pytest.mark.parametrize("scale", [1e-6, 1e6, 1e-200, 1e200])
def test_scaling_the_right_hand_sides_changes_nothing_else(solver, scale):
    matrix, b = kernel_matrix(120, noise=0.3), normal(120, 4)
    start = 0.1 * normal(120, 4, seed=2)
    plain = solver.solve(matrix, b, start, generator())
    scaled = solver.solve(matrix, scale * b, scale * start, generator())
    assert abs(plain.iterations - scaled.iterations) <= 1
    torch.testing.assert_close(scaled.value / scale, plain.value, rtol=1e-6, atol=1e-6)


@every_iterative
def test_columns_of_different_scale_are_each_solved(solver):
    matrix, b = kernel_matrix(120, noise=0.3), normal(120, 3) * torch.tensor([1e-8, 1.0, 1e8]).double()
    solution = solver.solve(matrix, b, generator=generator())
    assert float(true_residual(matrix, solution.value, b).max()) <= 0.01


@pytest.mark.few(1)
@every_iterative
def test_it_goes_on_until_targets_and_probes_are_both_done(solver):
    matrix = kernel_matrix(120, noise=0.02)
    top = torch.linalg.eigh(matrix.to_dense())[1][:, -1]  # converges first
    b = torch.cat([top[:, None], normal(120, 6)], 1)
    solver = replace(solver, max_epochs=3000)
    for order in (b, b.flip(1)):
        solution = solver.solve(matrix, order, generator=generator(), n_targets=1)
        assert solution.converged
        residual = true_residual(matrix, solution.value, order)
        assert float(residual[0]) <= 0.01
        assert float(residual[1:].mean()) <= 0.01
    # Control: the target alone converges sooner, so the rule above made a difference.
    alone = solver.solve(matrix, top, generator=generator())
    assert alone.iterations <= solver.solve(matrix, b, generator=generator(), n_targets=1).iterations


@every_iterative
def test_probes_may_have_their_own_looser_tolerance(solver):
    matrix, b = kernel_matrix(120, noise=0.02), normal(120, 7)
    solver = replace(solver, max_epochs=3000)
    same = solver.solve(matrix, b, generator=generator(), n_targets=0)
    loose = replace(solver, probe_tolerance=0.3).solve(matrix, b, generator=generator(), n_targets=0)
    assert loose.converged
    assert 0.01 < float(loose.relative_residual.mean()) <= 0.3 or same.iterations == loose.iterations == 1
    assert loose.iterations <= same.iterations


@every_iterative
def test_a_spent_budget_is_told_and_kept(solver):
    matrix, b = kernel_matrix(120, noise=1e-4), normal(120, 3)
    size = getattr(solver, "block_size", getattr(solver, "batch_size", 120))
    solution = replace(solver, tolerance=1e-13, max_epochs=3).solve(matrix, b, generator=generator())
    if solution.status is Status.BUDGET_SPENT:
        assert solution.iterations <= -(-3 * 120 // min(size, 120)) + (size == 40)
        assert 3 <= solution.epochs < 4
        torch.testing.assert_close(
            solution.relative_residual, true_residual(matrix, solution.value, b), rtol=1e-5, atol=1e-12
        )
    else:  # with preconditioners and blocks of full size it has converged
        assert solver in (ITERATIVE["cg auto"], ITERATIVE["ap one block"])


@every_iterative
def test_the_budget_is_what_the_operator_computes(solver):
    kernel = Matern(nu=1.5, lengthscale=1.0, variance=1.0)
    matrix = KernelMatrix(kernel, normal(120, 3), 1e-4, storage="tiles")
    solution = replace(solver, tolerance=1e-13, max_epochs=4).solve(matrix, normal(120, 3), generator=generator())
    assert matrix.entries_computed / 120**2 == pytest.approx(solution.total_epochs, abs=0.15)
    assert solution.epochs < 5


@every_solver
@pytest.mark.parametrize("n", [1, 2, 7])
def test_few_rows_are_no_problem(solver, n):
    matrix, b = kernel_matrix(n, noise=0.3), normal(n, 2)
    solution = solver.solve(matrix, b, generator=generator())
    assert solution.converged
    assert float(true_residual(matrix, solution.value, b).max()) <= 0.01


@every_solver
def test_duplicate_rows_with_noise_are_no_problem(solver):
    matrix, b = with_duplicates(80, 30, noise=0.1), normal(80, 3)
    solution = solver.solve(matrix, b, generator=generator())
    assert solution.converged
    assert float(true_residual(matrix, solution.value, b).max()) <= 0.01


@every_solver
def test_float32_stays_float32_and_its_residual_is_true(solver):
    matrix, b = kernel_matrix(120, noise=0.3, dtype=torch.float32), normal(120, 4)
    solution = solver.solve(matrix, b, generator=generator())  # float64 right-hand sides are cast to its dtype
    assert solution.value.dtype == torch.float32
    assert solution.converged
    residual = true_residual(matrix, solution.value, b.float())
    assert float(residual.max()) <= 0.0101
    torch.testing.assert_close(solution.relative_residual.double(), residual, rtol=1e-2, atol=1e-5)
    if solver != Cholesky():
        assert solver.solve(matrix, b, solution.value, generator()).iterations == 0


@every_iterative
def test_the_same_seed_gives_the_same_bits(solver):
    matrix, b = kernel_matrix(120, noise=0.02), normal(120, 3)
    first = solver.solve(matrix, b, generator=generator(3))
    second = solver.solve(matrix, b, generator=generator(3))
    assert torch.equal(first.value, second.value)
    assert first.iterations == second.iterations
    unseeded = [solver.solve(matrix, b).value for _ in range(2)]  # without a generator the seed is fixed, not random
    assert torch.equal(*unseeded)


@every_iterative
def test_nothing_that_was_passed_in_is_changed(solver):
    matrix, b = kernel_matrix(120, noise=0.3), normal(120, 3)
    start = Start(0.1 * normal(120, 3, seed=1), None)
    start = Start(start.value, b - matrix @ start.value)
    copies = [tensor.clone() for tensor in (b, start.value, start.residual, matrix.to_dense())]
    solver.solve(matrix, b, start, generator())
    for copy, tensor in zip(copies, (b, start.value, start.residual, matrix.to_dense()), strict=True):
        assert torch.equal(copy, tensor)


@every_iterative
def test_what_a_similar_matrix_leaves_gives_the_same_answer(solver):
    matrix, b = kernel_matrix(120, noise=0.3), normal(120, 3)
    state = solver.prepare(matrix)
    first = solver.solve(state, b, generator=generator())
    assert torch.equal(first.value, solver.solve(matrix, b, generator=generator()).value)
    neighbour = kernel_matrix(120, noise=0.3, lengthscale=1.05)
    for previous in (state, state.without_matrix()):
        again = solver.solve(solver.prepare(neighbour, previous), b, generator=generator())
        assert again.converged
        assert float(true_residual(neighbour, again.value, b).max()) <= 0.01


@every_iterative
def test_the_bound_in_nats_is_above_the_error(solver):
    matrix, b = kernel_matrix(120, noise=0.3), normal(120, 4)
    solution = replace(solver, tolerance=0.1).solve(matrix, b, generator=generator())
    residual = b - matrix.to_dense() @ solution.value
    nats = 0.5 * (residual * torch.linalg.solve(matrix.to_dense(), residual)).sum(0)
    assert (solution.nats >= nats * (1 - 1e-6) - 1e-12).all()


@every_iterative
def test_nan_in_the_matrix_is_a_status_and_the_value_stays_finite(solver):
    bad = smooth_part(kernel_matrix(60)).clone()
    early = Spoiled(bad, good_products=0)
    late = Spoiled(bad + 0.01 * torch.eye(60).double(), good_products=2)
    for matrix in (early, late):
        solution = replace(solver, tolerance=1e-14).solve(matrix, normal(60, 2), generator=generator())
        assert torch.isfinite(solution.value).all()
        if solution.status is not Status.NOT_FINITE:  # it converged before the first bad product
            assert matrix is late
            assert solution.iterations <= 2


@every_solver
def test_bad_input_is_refused_before_any_work(solver):
    matrix, b = kernel_matrix(20), normal(20, 3)
    spoiled = b.clone()
    spoiled[4, 2] = float("nan")
    with pytest.raises(InvalidInputError, match="right_hand_sides of solve must be finite; got nan in row 4, column 2"):
        solver.solve(matrix, spoiled)
    with pytest.raises(InvalidInputError, match=r"must have shape \(20,\) or \(20, s\); got \(19, 3\)"):
        solver.solve(matrix, b[1:])
    with pytest.raises(InvalidInputError, match="must be real"):
        solver.solve(matrix, b.to(torch.complex128))
    with pytest.raises(InvalidInputError, match=r"must be a torch\.Tensor; got ndarray"):
        solver.solve(matrix, b.numpy())
    if solver == Cholesky():
        return
    with pytest.raises(InvalidInputError, match="initial of solve must be finite"):
        solver.solve(matrix, b, spoiled)
    with pytest.raises(InvalidInputError, match="initial must have the shape of right_hand_sides"):
        solver.solve(matrix, b, b[:, :2])
    with pytest.raises(InvalidInputError, match="n_targets of solve must be between 0 and"):
        solver.solve(matrix, b, n_targets=4)


@every_solver
def test_no_columns_give_no_solutions(solver):
    solution = solver.solve(kernel_matrix(20), torch.zeros(20, 0).double())
    assert solution.value.shape == (20, 0)
    assert solution.converged


@every_iterative
def test_a_solver_is_an_immutable_value(solver):
    assert replace(solver) == solver
    assert hash(replace(solver)) == hash(solver)
    with pytest.raises(FrozenInstanceError):
        solver.tolerance = 0.1


def test_known_noise_of_each_row_may_be_a_dense_matrix_too():
    noise = torch.linspace(0.1, 3, 60).double()
    matrix = DenseMatrix(smooth_part(kernel_matrix(60)), noise)
    b = normal(60, 2)
    for solver in ITERATIVE.values():
        assert solver.solve(matrix, b, generator=generator()).converged
