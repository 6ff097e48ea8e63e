"""Randomly truncated conjugate gradients: unbiased in sums over every length, with biased controls."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from gigagp.errors import InvalidInputError
from gigagp.operators import DenseMatrix, KernelMatrix
from gigagp.solvers import ConjugateGradients, PivotedCholesky, Solution, Start, Status, TwoLevel
from gigagp.solvers.conjugate_gradients import EXHAUSTED
from gigagp.solvers.truncation import ExponentialDecay, Fixed, OneOverJ, RussianRoulette, SingleSample, Uniform
from golden import choose, lengths_and_chances
from helpers import relative_error
from matrices import Counting, Spoiled, Weighted, generator, kernel_matrix, normal, smooth_part, spectral, with_spectrum

NOISE = 0.8
MATRIX = kernel_matrix(60, noise=NOISE)
B = normal(60, 3)
EXACT = torch.linalg.solve(MATRIX.to_dense(), B)
PLAIN = ConjugateGradients(preconditioner=None)
PRECONDITIONERS = pytest.mark.parametrize("preconditioner", [None, PivotedCholesky(5), TwoLevel(5, 20)], ids=repr)
#: Far above the effect of rounding on an unbiased mean (1e-10).
VISIBLE = 1e-5
LAWS = [ExponentialDecay(0.1, 5, 60), ExponentialDecay(0.3, 1, 60), ExponentialDecay(0.05, 2, 60, step=3)]


def run(law, *lengths, kind=RussianRoulette, preconditioner=None, initial=None, b=B, matrix=MATRIX) -> Solution:
    solver = ConjugateGradients(preconditioner=preconditioner, truncation=kind(choose(law, *lengths)))
    return solver.solve(matrix, b, initial, generator())


def converged_after(**settings) -> int:
    """Return the length at which the series ends."""
    return run(ExponentialDecay(0.1, 1, 60), 60, 60, **settings).iterations


def mean_over_lengths(law, **settings):
    converged = converged_after(**{k: v for k, v in settings.items() if k != "kind"})
    return sum(chance * run(law, j, j, **settings).value for j, chance in lengths_and_chances(law, converged))


STEEP = torch.logspace(-6, 6, 60, dtype=torch.float64)


@pytest.mark.parametrize("initial", [None, 0.5 * B / STEEP[:, None]])
def test_where_the_residual_blows_up_both_solutions_are_the_start(initial, monkeypatch):
    """Gradients use the second solution as much as the first."""
    settings = {"matrix": DenseMatrix(torch.diag(STEEP)), "initial": initial}
    free = run(ExponentialDecay(0.1, 1, 60), 8, 9, **settings)
    assert free.status is Status.TRUNCATED
    monkeypatch.setattr("gigagp.solvers.conjugate_gradients._BLOWN_UP", 1.5)
    found = run(ExponentialDecay(0.1, 1, 60), 8, 9, **settings)
    assert found.status is Status.DIVERGED
    assert found.iterations >= 1  # there was something to discard
    expected = torch.zeros_like(B) if initial is None else initial
    for solution in (found.value, found.truncated.second, found.truncated.plain.value):
        torch.testing.assert_close(solution, expected)
    assert not torch.allclose(free.truncated.second, expected)


@pytest.mark.pairs
@PRECONDITIONERS
@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("kind", [RussianRoulette, SingleSample])
def test_the_mean_over_the_lengths_is_the_solution(law, kind, preconditioner):
    if kind is SingleSample:  # lengths beyond convergence are different runs, with increments of zero
        found = sum(
            law.probability(j) * run(law, j, j, kind=kind, preconditioner=preconditioner).value for j in law.support()
        )
    else:
        found = mean_over_lengths(law, preconditioner=preconditioner)
    assert relative_error(found, EXACT) < 1e-10


@pytest.mark.slow
def test_stopping_without_weights_is_biased():
    """The controls are one fixed length, and the converged solution in place of the weighted sum."""
    fixed = PLAIN.solve(MATRIX, B).value
    assert relative_error(fixed, EXACT) > VISIBLE
    at_seven = replace(PLAIN, truncation=Fixed(7)).solve(MATRIX, B)
    assert relative_error(at_seven.value, EXACT) > VISIBLE
    assert torch.equal(at_seven.value, replace(PLAIN, tolerance=1e-30, max_epochs=7).solve(MATRIX, B).value)
    trusting = mean_over_lengths(LAWS[0], kind=lambda law: RussianRoulette(law, trust_convergence=True))
    assert relative_error(trusting, EXACT) > VISIBLE
    assert relative_error(mean_over_lengths(LAWS[0]), EXACT) < 1e-10


@PRECONDITIONERS
def test_any_start_is_unbiased(preconditioner):
    """A warm start changes the series but not its sum; a column that starts worse than zero starts from zero."""
    start = EXACT + 0.3 * normal(60, 3, seed=4)
    start[:, 2] = 100.0
    found = mean_over_lengths(LAWS[0], preconditioner=preconditioner, initial=start)
    assert relative_error(found, EXACT) < 1e-10
    residual = B - MATRIX.to_dense() @ start
    known = run(LAWS[0], 9, 9, preconditioner=preconditioner, initial=Start(start, residual))
    assert relative_error(known.value, run(LAWS[0], 9, 9, preconditioner=preconditioner, initial=start).value) < 1e-10
    at_the_solution = run(LAWS[0], 9, 30, initial=Start(EXACT))
    assert at_the_solution.iterations == 0
    assert at_the_solution.status is Status.CONVERGED
    assert at_the_solution.truncated.ended_early
    assert torch.equal(at_the_solution.truncated.second, at_the_solution.value)


def test_a_good_start_leaves_little_to_vary():
    """The terms of the series are those of the remaining error."""

    def spread(initial):
        chances = lengths_and_chances(LAWS[1], converged_after(initial=initial))
        return sum(p * (run(LAWS[1], j, j, initial=initial).value - EXACT).square().sum() for j, p in chances)

    assert spread(EXACT + 0.01 * normal(60, 3, seed=4)) < 1e-2 * spread(None)


def test_a_start_that_knows_the_length_is_biased():
    """Control for warm starts: the lengths of a solve must be independent of its start."""
    law, converged = LAWS[0], converged_after()
    starts = {j: run(law, j, j).truncated.plain.value for j, _ in lengths_and_chances(law, converged)}
    found = sum(chance * run(law, j, j, initial=starts[j]).value for j, chance in lengths_and_chances(law, converged))
    assert relative_error(found, EXACT) > VISIBLE


# Two lengths from one run ---------------------------------------------------------------------------------------------


def test_two_solutions_are_read_from_one_run():
    law = LAWS[0]
    for first, second in ((6, 11), (11, 6), (7, 7)):
        both = run(law, first, second)
        assert both.truncated.lengths == (first, second)
        assert both.iterations == both.epochs == max(first, second)
        torch.testing.assert_close(both.value, run(law, first, first).value)
        torch.testing.assert_close(both.truncated.second, run(law, second, second).value)
        plain = replace(PLAIN, tolerance=1e-30, max_epochs=max(first, second)).solve(MATRIX, B)
        torch.testing.assert_close(both.truncated.plain.value, plain.value)
        residual = B - MATRIX.to_dense() @ plain.value
        torch.testing.assert_close(both.truncated.plain.residual, residual, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_the_lengths_are_independent_and_follow_the_law():
    law = ExponentialDecay(0.3, 2, 60)
    solver, source = replace(PLAIN, truncation=law), generator(5)
    matrix, b = spectral(60, 10.0), normal(60)
    drawn = torch.tensor([solver.solve(matrix, b, generator=source).truncated.lengths for _ in range(300)]).double()
    error = law.standard_deviation / 300**0.5
    assert (drawn.mean(0) - law.mean).abs().max() < 4 * error
    assert abs(float(torch.corrcoef(drawn.T)[0, 1])) < 4 / 300**0.5
    assert solver.solve(matrix, b).truncated.lengths == solver.solve(matrix, b).truncated.lengths  # a fixed seed
    again = generator(5)
    assert solver.solve(matrix, b, generator=again).truncated.lengths == tuple(drawn[0].int().tolist())


def test_a_quadratic_form_needs_independent_lengths():
    """``E[b' D b']`` over independent lengths is exact; with one length for both there is a variance on top."""
    law, D = LAWS[1], with_spectrum(torch.linspace(0.1, 2, 60).double(), 3)
    chances = lengths_and_chances(law, converged_after())
    solved = {j: run(law, j, j).value[:, 0] for j, _ in chances}
    exact = float(EXACT[:, 0] @ D @ EXACT[:, 0])
    independent = sum(
        p * q * float(solved[i] @ D @ solved[j]) for (i, p), (j, q) in itertools.product(chances, chances)
    )
    assert independent == pytest.approx(exact, rel=1e-10)
    shared = sum(p * float(solved[j] @ D @ solved[j]) for j, p in chances)
    assert shared > 1.05 * exact


# What is reported -----------------------------------------------------------------------------------------------------


def test_a_truncated_solve_tells_the_truth():
    solution = run(LAWS[0], 8, 12)
    assert solution.status is Status.TRUNCATED
    assert not solution.converged
    assert "cut at a random length" in solution.status.value
    truth = (B - MATRIX.to_dense() @ solution.value).norm(dim=0) / B.norm(dim=0)
    torch.testing.assert_close(solution.relative_residual, truth, rtol=1e-8, atol=0)
    assert not solution.truncated.ended_early
    assert solution.truncated.expected_iterations == LAWS[0].expected_longest(2)
    nats = 0.5 * (B - MATRIX.to_dense() @ solution.value).square().sum(0) / NOISE
    torch.testing.assert_close(solution.nats, nats, rtol=1e-8, atol=0)


def test_iterations_are_products_and_their_mean_is_the_expected_one():
    matrix = Counting(smooth_part(MATRIX), NOISE)
    law = ExponentialDecay(0.4, 3)
    solver, source = replace(PLAIN, truncation=law), generator(1)
    spent = []
    for _ in range(150):
        before = matrix.products
        solution = solver.solve(matrix, B, generator=source)
        assert matrix.products - before == solution.iterations
        spent.append(solution.iterations)
    spent = torch.tensor(spent).double()
    expected = law.bounded(60).expected_longest()
    assert solution.truncated.expected_iterations == pytest.approx(expected)
    assert abs(float(spent.mean()) - expected) < 4 * float(spent.std()) / 150**0.5


def test_a_series_that_ends_before_its_length_is_complete():
    """The rest of the series is zero: the run ends, the weights stay, and the early end is reported."""
    converged = converged_after()
    ended = run(LAWS[0], converged + 3, converged + 9)
    assert ended.iterations == converged
    assert ended.truncated.ended_early
    assert ended.status is Status.TRUNCATED  # with weights above one this draw is not the solution
    assert torch.equal(ended.value, ended.truncated.second)
    assert relative_error(ended.truncated.plain.value, EXACT) < 1e-10
    # Without weights above one it is the solution.
    whole = run(ExponentialDecay(0.1, converged, 60), converged + 3, converged + 9)
    assert whole.status is Status.CONVERGED
    assert relative_error(whole.value, EXACT) < 1e-10
    trusting = run(LAWS[0], converged + 3, 6, kind=lambda law: RussianRoulette(law, trust_convergence=True))
    assert relative_error(trusting.value, EXACT) < 1e-10
    assert trusting.status is Status.CONVERGED
    torch.testing.assert_close(trusting.truncated.second, run(LAWS[0], 6, 6).value)


def test_the_largest_minimum_is_ordinary_conjugate_gradients():
    whole = replace(PLAIN, truncation=ExponentialDecay(0.1, 60)).solve(MATRIX, B)
    assert whole.converged
    assert relative_error(whole.value, EXACT) < 1e-10


def test_columns_that_are_done_stay_as_they_are():
    """The weights that other columns still need do not multiply the rounding of converged columns."""
    b = torch.stack([MATRIX.to_dense() @ torch.ones(60).double(), B[:, 0], torch.zeros(60).double()], 1)
    easy = torch.linalg.eigh(MATRIX.to_dense()).eigenvectors[:, -1]
    b[:, 0] = easy  # converges in one step
    solution = run(ExponentialDecay(1.5, 1, 60), 40, 40, b=b)
    exact = torch.linalg.solve(MATRIX.to_dense(), b)
    assert relative_error(solution.value[:, 0], exact[:, 0]) < 1e-10
    assert not bool(solution.value[:, 2].any())
    assert relative_error(solution.value[:, 1], exact[:, 1]) > 10  # control: weights of e^60 are present


def test_shapes_and_inner_products_are_those_of_the_operator():
    single = run(LAWS[0], 8, 12, b=B[:, 0])
    torch.testing.assert_close(single.value, run(LAWS[0], 8, 12).value[:, 0])
    assert single.truncated.second.shape == single.truncated.plain.value.shape == (60,)
    K, M = (
        with_spectrum(torch.logspace(0, -1, 60).double(), 1),
        with_spectrum(torch.logspace(0.5, -0.5, 60).double(), 2),
    )
    operator = Weighted(K, M, 0.2)
    found = mean_over_lengths(LAWS[0], matrix=operator)
    assert relative_error(found, torch.linalg.solve(operator.full, B)) < 1e-10


def test_float32_and_float64_have_the_same_mean():
    single = kernel_matrix(60, noise=NOISE, dtype=torch.float32)
    law = ExponentialDecay(0.1, 10, 60)
    found = mean_over_lengths(law, matrix=single, b=B.float())
    assert found.dtype == torch.float32
    assert relative_error(found, EXACT) < 1e-3
    assert set(EXHAUSTED) == {torch.float32, torch.float64}


def test_mixed_precision_does_not_reach_the_terms():
    mixed = KernelMatrix(MATRIX.kernel, MATRIX.X, NOISE, mixed=True)
    assert mixed.fast is not mixed
    found, rounded, expected = (run(LAWS[0], 8, 9, matrix=matrix) for matrix in (mixed, mixed.fast, MATRIX))
    assert relative_error(found.value, expected.value) < 1e-10
    assert relative_error(found.truncated.second, expected.truncated.second) < 1e-10
    torch.testing.assert_close(found.relative_residual, expected.relative_residual, rtol=1e-8, atol=0)
    assert relative_error(rounded.value, expected.value) > 1e-7  # control: with float32 products


# Bad input and bad matrices -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("law", "message"),
    [
        (ExponentialDecay(0.1, 61), "minimum of ExponentialDecay must be at most the number of rows, 60; got 61"),
        (ExponentialDecay(0.1, 5, 61), "maximum of ExponentialDecay must be at most the number of rows, 60; got 61"),
        (Fixed(61), "of Fixed must be at most the number of rows, 60; got 61"),
        (OneOverJ(60), "minimum of OneOverJ must be at most the number of rows, 60; got 61"),
    ],
)
def test_lengths_that_the_matrix_does_not_have_are_refused(law, message):
    matrix = Counting(smooth_part(MATRIX), NOISE)
    with pytest.raises(InvalidInputError, match=message):
        replace(PLAIN, truncation=law).solve(matrix, B)
    assert matrix.products == 0


def test_laws_that_need_a_bound_get_the_number_of_rows():
    for law in (Uniform(1), OneOverJ(1)):
        solution = replace(PLAIN, truncation=law).solve(MATRIX, B)
        assert solution.truncated.expected_iterations == law.bounded(60).expected_longest()


def test_a_length_beyond_the_budget_says_so():
    solver = replace(PLAIN, max_epochs=6, truncation=choose(ExponentialDecay(0.1, 3), 4, 9))
    solution = solver.solve(MATRIX, B)
    assert solution.status is Status.BUDGET_SPENT
    assert solution.iterations == 6


def test_what_goes_wrong_is_no_truncation():
    law = ExponentialDecay(0.1, 5)
    broken = Spoiled(MATRIX.to_dense(), 3)
    solution = replace(PLAIN, truncation=law).solve(broken, B)
    assert solution.status is Status.NOT_FINITE
    assert torch.isfinite(solution.value).all()
    indefinite = with_spectrum(torch.cat([torch.linspace(0.5, 1, 29), torch.tensor([-0.3])]).double())
    solution = replace(PLAIN, truncation=Uniform(20)).solve(DenseMatrix(indefinite), normal(30, 2))
    assert solution.status is Status.STAGNATED
    assert torch.isfinite(solution.value).all()
