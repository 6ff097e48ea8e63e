from __future__ import annotations

import itertools

import pytest
import torch

from gigagp.operators import DenseMatrix
from gigagp.solvers.preconditioners import pivoting
from matrices import generator, kernel_matrix, smooth_part, spectral, with_duplicates, with_spectrum


def textbook_greedy(K, rank):
    """Pivoted Cholesky with explicit swaps-free downdating of the whole matrix."""
    rest, pivots = K.clone(), []
    for _ in range(rank):
        pivots.append(int(rest.diagonal().argmax()))
        rest = rest - torch.outer(rest[:, pivots[-1]], rest[pivots[-1]]) / rest[pivots[-1], pivots[-1]]
    return pivots


def test_greedy_pivots_are_the_largest_of_the_updated_diagonal():
    matrix = kernel_matrix(60, 2, noise=torch.linspace(0.01, 1, 60).double())
    factor = pivoting.greedy(matrix, 12)
    K = smooth_part(matrix) * torch.linspace(1, 2, 60).double().sqrt().outer(torch.linspace(1, 2, 60).double().sqrt())
    scaled = DenseMatrix(K, 0.1)
    assert factor.pivots.tolist() == textbook_greedy(smooth_part(matrix), 12)
    assert pivoting.greedy(scaled, 12).pivots.tolist() == textbook_greedy(K, 12)
    # Control, trap 4: pivots on a diagonal that is never updated.
    assert K.diagonal().argsort(descending=True)[:12].tolist() != textbook_greedy(K, 12)


def test_greedy_residual_trace_falls_and_is_the_trace_of_what_is_left():
    matrix = kernel_matrix(50)
    traces = []
    for rank in (1, 5, 10, 20, 50):
        factor = pivoting.greedy(matrix, rank)
        left = smooth_part(matrix) - factor.columns @ factor.columns.T
        torch.testing.assert_close(factor.residual, left.diagonal(), rtol=0, atol=1e-12)
        traces.append(float(factor.residual.sum()))
    assert traces == sorted(traces, reverse=True)
    assert traces[-1] < 1e-12


@pytest.mark.parametrize("method", ["greedy", "random", "given"])
def test_full_rank_reproduces_the_matrix(method):
    matrix = kernel_matrix(40)
    factor = {
        "greedy": lambda: pivoting.greedy(matrix, 40),
        "random": lambda: pivoting.random(matrix, 40, generator()),
        "given": lambda: pivoting.given(matrix, 40, torch.randperm(40, generator=generator()), block=7),
    }[method]()
    assert factor.rank == 40
    torch.testing.assert_close(factor.columns @ factor.columns.T, smooth_part(matrix), rtol=0, atol=1e-12)
    assert torch.equal(factor.columns[factor.pivots].triu(1), torch.zeros(40, 40, dtype=torch.float64))


def exact_pair_probabilities(K):
    """Return the probability of each unordered pair of pivots of one-at-a-time RPCholesky."""
    n, probabilities = len(K), {}
    first = K.diagonal() / K.trace()
    for i, j in itertools.permutations(range(n), 2):
        rest = K.diagonal() - K[:, i] ** 2 / K[i, i]
        key = tuple(sorted((i, j)))
        probabilities[key] = probabilities.get(key, 0.0) + float(first[i] * rest[j] / rest.sum())
    return probabilities


@pytest.mark.few(1)
@pytest.mark.parametrize(("block", "same_law"), [(1, True), (4, True), (None, False)])
def test_random_pivots_have_the_law_of_rpcholesky(block, same_law):
    K = with_spectrum(torch.tensor([3.0, 1.0, 0.3, 0.1]).double(), seed=2)
    matrix = DenseMatrix(K, 0.1)
    source, draws = generator(), 1500
    counts = dict.fromkeys(itertools.combinations(range(4), 2), 0)
    for _ in range(draws):
        if block is None:  # control: two rows drawn from the first diagonal
            pivots = torch.multinomial(K.diagonal(), 2, generator=source)
        else:
            pivots = pivoting.random(matrix, 2, source, block=block).pivots
        counts[tuple(sorted(pivots.tolist()))] += 1
    expected = exact_pair_probabilities(K)
    statistic = sum((counts[pair] - draws * p) ** 2 / (draws * p) for pair, p in expected.items())
    assert (statistic < 20.5) == same_law  # the 0.999 quantile of chi-square with 5 degrees of freedom


def test_random_beats_greedy_on_isolated_rows():
    # The greedy choice takes the isolated rows first, one by one.
    cluster = torch.full((60, 60), 0.9).double() + 0.1 * torch.eye(60, dtype=torch.float64)
    K = torch.block_diag(cluster, 1.01 * torch.eye(20, dtype=torch.float64))
    matrix = DenseMatrix(K, 0.1)
    assert float(pivoting.random(matrix, 10, generator()).residual.sum()) < 0.5 * float(
        pivoting.greedy(matrix, 10).residual.sum()
    )


@pytest.mark.parametrize("method", ["greedy", "random", "given"])
def test_duplicates_end_the_factor_at_the_rank_of_the_matrix(method):
    matrix = with_duplicates(80, 30)
    factor = {
        "greedy": lambda: pivoting.greedy(matrix, 60),
        "random": lambda: pivoting.random(matrix, 60, generator()),
        "given": lambda: pivoting.given(matrix, 60, torch.arange(80), block=9),
    }[method]()
    assert factor.rank == 30
    assert torch.isfinite(factor.columns).all()
    torch.testing.assert_close(factor.columns @ factor.columns.T, smooth_part(matrix), rtol=0, atol=1e-10)


def test_a_zero_matrix_has_rank_zero():
    matrix = DenseMatrix(torch.zeros(5, 5).double(), 1.0)
    assert pivoting.random(matrix, 3, generator()).rank == 0
    assert pivoting.greedy(matrix, 3).rank == 0


def test_kept_pivots_give_the_factor_back_and_missing_ones_are_filled_up():
    matrix = kernel_matrix(60)
    first = pivoting.random(matrix, 20, generator(1))
    again = pivoting.random(matrix, 20, generator(2), pivots=first.pivots)
    torch.testing.assert_close(again.columns, first.columns, rtol=0, atol=1e-10)
    assert pivoting.random(matrix, 20, generator(2), pivots=first.pivots[:5]).rank == 20


def test_float32_entries_give_a_float64_factor_without_noise_columns():
    matrix = kernel_matrix(100, 1, noise=0.1, dtype=torch.float32)  # numerically of low rank
    factor = pivoting.random(matrix, 100, generator())
    assert factor.columns.dtype == torch.float64
    assert torch.isfinite(factor.columns).all()
    assert float((smooth_part(matrix) - factor.columns @ factor.columns.T).abs().max()) < 1e-3


def test_epochs_count_the_entries_read():
    matrix = kernel_matrix(100)
    assert pivoting.greedy(matrix, 10).epochs == pytest.approx(10 / 100 + 10 / 100**2)
    assert 0.1 <= pivoting.random(spectral(100), 10, generator()).epochs < 0.12


def test_weights_give_the_pivots_of_the_scaled_matrix_and_the_factor_of_the_plain_one():
    matrix, weights = kernel_matrix(30), torch.linspace(0, 2, 30).double()
    K = smooth_part(matrix)
    roots = weights.sqrt()
    scaled = DenseMatrix(roots.outer(roots) * K + 0.0, 0.0)
    for seed in range(5):
        factor = pivoting.random(matrix, 8, generator(seed), weights=weights)
        assert factor.pivots.tolist() == pivoting.random(scaled, 8, generator(seed)).pivots.tolist()
        chosen = factor.pivots
        expected = K[:, chosen] @ torch.linalg.solve(K[chosen][:, chosen], K[chosen])
        torch.testing.assert_close(factor.columns @ factor.columns.T, expected)
        assert 0 not in chosen.tolist()  # its weight is zero
    # Control: without weights other rows are drawn.
    assert factor.pivots.tolist() != pivoting.random(matrix, 8, generator(seed)).pivots.tolist()


def test_a_factor_ends_where_what_remains_is_enough():
    matrix, weights = kernel_matrix(60, 1), torch.ones(60, dtype=torch.float64)
    whole = pivoting.random(matrix, 40, generator(), block=1)
    for enough in (1e-1, 1e-3):
        factor = pivoting.random(matrix, 40, generator(), block=1, weights=weights, enough=enough)
        assert factor.rank < whole.rank
        assert float(factor.residual.sum()) <= enough * factor.rank
        before = pivoting.given(matrix, 40, factor.pivots[:-1], block=1)
        assert float(before.residual.sum()) > enough * before.rank
