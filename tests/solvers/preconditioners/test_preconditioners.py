"""Properties of every preconditioner."""

from __future__ import annotations

import pytest
import torch

from gigagp.errors import MemoryBudgetError
from gigagp.kernels import Cosine, Matern
from gigagp.operators import DenseMatrix, KernelMatrix
from gigagp.products.native_tiles import NativeTiles
from gigagp.solvers.preconditioners import Nystrom, Parts, PivotedCholesky, RandomlyPivotedCholesky, TwoLevel, Vecchia
from gigagp.solvers.preconditioners.automatic import auto_sizes, automatic
from matrices import generator, kernel_matrix, normal, smooth_part, spectral, with_duplicates

RECIPES = [
    PivotedCholesky(20),
    RandomlyPivotedCholesky(20),
    RandomlyPivotedCholesky(20, block=7),
    Nystrom(20),
    TwoLevel(20, 17),
    TwoLevel(20, 1000),
]
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=repr)
NOISES = {"one": 0.05, "each row": torch.linspace(0.01, 2.0, 60, dtype=torch.float64)}
every_noise = pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES.keys())


def dense_of(preconditioner):
    """Return P from its inverse."""
    return torch.linalg.inv(preconditioner.apply(torch.eye(preconditioner.n, dtype=torch.float64)))


@every_recipe
@every_noise
def test_the_inverse_is_that_of_the_formula(recipe, noise):
    matrix = kernel_matrix(60, noise=noise)
    preconditioner = recipe.build(matrix, generator())
    if isinstance(recipe, TwoLevel):
        L = torch.zeros(60, 0, dtype=torch.float64)
        if recipe.block_size < 60:
            columns = matrix.to_dense()[:, preconditioner.pivots]
            columns -= torch.diag(matrix.noise())[:, preconditioner.pivots]
            L = columns @ torch.linalg.inv(torch.linalg.cholesky(columns[preconditioner.pivots])).T
        P = L @ L.T
        for rows in preconditioner.partition.blocks:
            P[rows[:, None], rows] = matrix.to_dense()[rows[:, None], rows]  # L L' + (H - L L')
    else:
        columns = smooth_part(matrix)[:, preconditioner.pivots]
        P = columns @ torch.linalg.solve(columns[preconditioner.pivots], columns.T) + torch.diag(matrix.noise())
    vectors = normal(60, 4)
    torch.testing.assert_close(preconditioner.apply(vectors), torch.linalg.solve(P, vectors), rtol=1e-8, atol=1e-8)
    assert preconditioner.log_determinant() == pytest.approx(float(torch.logdet(P)), abs=1e-8)
    assert preconditioner.jitter == 0


@every_recipe
def test_samples_have_the_covariance_p(recipe):
    preconditioner = recipe.build(kernel_matrix(60, noise=NOISES["each row"]), generator())
    # Sampling is linear in the normal numbers, with a matrix A such that A A' = P.
    A = preconditioner.transform_normal(torch.eye(60 + preconditioner.rank, dtype=torch.float64))
    torch.testing.assert_close(A @ A.T, dense_of(preconditioner), rtol=1e-8, atol=1e-8)
    assert preconditioner.sample(3, generator()).shape == (60, 3)


@every_recipe
@every_noise
def test_the_lower_bound_is_below_the_matrix(recipe, noise):
    matrix = kernel_matrix(60, noise=noise)
    preconditioner = recipe.build(matrix, generator(), bound=True)
    vectors = normal(60, 200)
    bound = (vectors * preconditioner.lower_bound_apply(vectors)).sum(0)
    exact = (vectors * torch.linalg.solve(matrix.to_dense(), vectors)).sum(0)
    assert (bound >= exact * (1 - 1e-9)).all()


def test_the_two_level_preconditioner_itself_is_no_bound():
    matrix = kernel_matrix(60)
    preconditioner = TwoLevel(20, 17).build(matrix, generator())
    assert not preconditioner.is_lower_bound
    assert preconditioner.lower_bound_apply(normal(60, 1)) is None
    eigenvalues = torch.linalg.eigvalsh(matrix.to_dense() - dense_of(preconditioner))
    assert eigenvalues[0] < -1e-6


def test_two_levels_agree_with_the_matrix_on_every_block():
    matrix = kernel_matrix(60)
    preconditioner = TwoLevel(20, 17).build(matrix, generator())
    P, H = dense_of(preconditioner), matrix.to_dense()
    for rows in preconditioner.partition.blocks:
        torch.testing.assert_close(P[rows[:, None], rows], H[rows[:, None], rows], rtol=0, atol=1e-9)


@pytest.mark.parametrize("recipe", [TwoLevel(5, 60), PivotedCholesky(60), RandomlyPivotedCholesky(500), Nystrom(99)])
def test_at_full_size_the_preconditioner_is_the_matrix(recipe):
    matrix = kernel_matrix(60)
    vectors = normal(60, 3)
    torch.testing.assert_close(recipe.build(matrix, generator()).apply(matrix @ vectors), vectors, rtol=1e-7, atol=1e-7)


@every_recipe
def test_duplicates_and_single_rows_do_no_harm(recipe):
    for matrix in (with_duplicates(60, 10), kernel_matrix(1), kernel_matrix(2)):
        preconditioner = recipe.build(matrix, generator())
        vectors = normal(matrix.n, 2)
        assert torch.isfinite(preconditioner.apply(vectors)).all()
        assert torch.linalg.eigvalsh(dense_of(preconditioner))[0] > 0


@every_recipe
def test_without_noise_the_jitter_is_reported(recipe):
    X = normal(20, 2)[torch.arange(40) % 20]
    matrix = KernelMatrix(Matern(nu=1.5, lengthscale=1.0, variance=1.0), X, 0.0)
    preconditioner = recipe.build(matrix, generator())
    assert preconditioner.jitter > 0
    assert not preconditioner.is_lower_bound or len(preconditioner.partition) == 1
    assert "jitter" in preconditioner.describe()
    assert torch.isfinite(preconditioner.apply(normal(40, 2))).all()


@every_recipe
def test_float32_vectors_come_back_in_float32(recipe):
    matrix = kernel_matrix(60, noise=0.1, dtype=torch.float32)
    preconditioner = recipe.build(matrix, generator(), bound=True)
    exact = recipe.build(kernel_matrix(60, noise=0.1), generator(), bound=True)
    vectors = normal(60, 3)
    result = preconditioner.apply(vectors.float())
    assert result.dtype == torch.float32
    if not isinstance(recipe, PivotedCholesky):  # its pivots may depend on rounding
        torch.testing.assert_close(result.double(), exact.apply(vectors), rtol=1e-3, atol=1e-3)
    assert preconditioner.sample(2, generator()).dtype == torch.float32


@every_recipe
def test_with_little_noise_a_float32_matrix_has_the_preconditioner_of_float64(recipe):
    """On smooth vectors the inverse is a small difference of terms as large as one over the noise."""
    smooth = smooth_part(kernel_matrix(60, noise=0.1, lengthscale=3.0)).mul(30).float()
    narrow, wide = (DenseMatrix(one, 2.0**-14) for one in (smooth, smooth.double()))  # 6.1e-5, exact in float32
    found, expected = (recipe.build(one, generator()) for one in (narrow, wide))
    vectors = narrow @ normal(60, 4).float()  # along the leading eigenvectors
    result, exact = found.apply(vectors), expected.apply(vectors.double())
    torch.testing.assert_close(result.double(), exact, rtol=0, atol=1e-6 * float(exact.abs().max()))


@every_recipe
def test_the_same_seed_gives_the_same_bits_and_building_changes_nothing(recipe):
    matrix, vectors = kernel_matrix(60), normal(60, 2)
    before = matrix.to_dense()
    first = recipe.build(matrix, generator(4)).apply(vectors)
    assert torch.equal(first, recipe.build(matrix, generator(4)).apply(vectors))
    assert torch.equal(before, matrix.to_dense())


@every_recipe
def test_reuse_gives_as_good_a_preconditioner_for_a_neighbouring_matrix(recipe):
    matrix, neighbour = kernel_matrix(100), kernel_matrix(100, lengthscale=1.1)

    def condition(preconditioner):
        values = torch.linalg.eigvals(preconditioner.apply(neighbour.to_dense())).real
        return float(values.max() / values.min())

    known = recipe.build(matrix, generator())
    kept = condition(recipe.build(neighbour, generator(1), known))
    assert kept < 2 * condition(recipe.build(neighbour, generator(1)))


def test_a_matrix_without_coordinates_is_clustered_by_its_own_columns():
    matrix = kernel_matrix(80, 2, noise=1e-3, lengthscale=0.3)
    bare = DenseMatrix(smooth_part(matrix), matrix.noise())

    blocks = TwoLevel(20, 20).build(bare, generator()).partition.blocks
    spread = sum(float(matrix.X[rows].var(0).sum()) for rows in blocks)
    shuffled = torch.randperm(80, generator=generator()).split(20)
    assert spread < 0.7 * sum(float(matrix.X[rows].var(0).sum()) for rows in shuffled)


def test_epochs_of_two_levels_are_columns_and_blocks():
    preconditioner = TwoLevel(10, 25).build(kernel_matrix(100), generator())
    assert 10 / 100 + 25 / 100 <= preconditioner.epochs < 10 / 100 + 25 / 100 + 0.01


def test_too_large_a_preconditioner_is_refused_with_its_bytes():
    kernel = Matern(nu=1.5, lengthscale=1.0, variance=1.0)
    matrix = KernelMatrix(kernel, normal(1000, 2), 0.1, memory_budget=4 * 10**6, storage="tiles")
    with pytest.raises(MemoryBudgetError, match=r"needs 20,000,000 bytes, but the memory budget is 4,000,000"):
        TwoLevel(1000, 500).build(matrix, generator())
    recipe = automatic(matrix, Parts())  # the automatic sizes fit
    assert 8 * 1000 * (2 * recipe.rank + recipe.block_size) <= 2 * 10**6


def test_the_automatic_choice_follows_the_inputs_the_noise_and_the_kernel():
    def chosen(kernel, d, noise):
        n = 1200 if d == 2 else 5100
        return type(automatic(KernelMatrix(kernel, normal(n, d), noise, storage="tiles"), Parts()))

    short, long = Matern(nu=1.5, lengthscale=0.5, variance=1.0), Matern(nu=1.5, lengthscale=20.0, variance=1.0)
    compiled = NativeTiles.available()
    assert chosen(short, 2, 0.5) is (Vecchia if compiled else TwoLevel)  # few inputs, any noise
    assert chosen(short, 6, 0.01) is (Vecchia if compiled else TwoLevel)  # close rows explain what is known
    assert chosen(long, 6, 0.5) is TwoLevel  # rows far and wide do
    assert chosen(short, 2, 0.0) is TwoLevel  # no noise at all
    assert chosen(short * Cosine(), 2, 0.5) is TwoLevel  # conditionals of this kernel are not compiled


@pytest.mark.skipif(not NativeTiles.available(), reason="the extension was not built")
def test_more_rows_in_few_inputs_have_more_neighbours_where_the_budget_has_room():
    def neighbours(n, budget):
        matrix = KernelMatrix(Matern(nu=0.5), normal(n, 2), 0.1, memory_budget=budget, storage="tiles")
        return automatic(matrix, Parts()).n_neighbors

    assert [neighbours(n, 2**30) for n in (2000, 10_000, 20_000)] == [30, 30, 38]
    assert neighbours(20_000, 2 * 48 * 20_000 * 33) == 33


def test_automatic_sizes_grow_with_the_rows_and_stay_below_them():
    sizes = [auto_sizes(n) for n in (1, 5, 100, 1000, 10_000, 10**6)]
    assert sizes == sorted(sizes)
    assert all(max(size) <= n for size, n in zip(sizes, (1, 5, 100, 1000, 10_000, 10**6), strict=True))
    assert auto_sizes(10**6) == (2000, 2000)
    in_time = [auto_sizes(10**6, seconds=one)[0] for one in (-1.0, 60.0, 600.0, 1e9)]
    assert in_time == sorted(in_time)
    assert in_time[0] < in_time[2] < in_time[3] == 2000  # the last is the control: a long time leaves the size alone


def test_a_spectral_matrix_is_preconditioned_too():
    matrix = spectral(60)
    assert TwoLevel(20, 20).build(matrix, generator()).rank == 20
