"""The preconditioner from nearest earlier rows against dense algebra, and what it saves conjugate gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, inference
from gigagp.errors import InvalidInputError, MemoryBudgetError
from gigagp.kernels import RBF, Matern, White
from gigagp.operators import DenseMatrix, KernelMatrix
from gigagp.operators.kernel_matrix import RoundedMatrix
from gigagp.solvers import ConjugateGradients, Status
from gigagp.solvers.preconditioners import Parts
from gigagp.solvers.preconditioners.vecchia import SparsePlusLowRank, Vecchia
from helpers import reference_matrix, relative_error
from matrices import generator, kernel_matrix, normal, spectral, with_duplicates

#: Recipes, and whether each is exact at 60 rows.
RECIPES = {
    "few": (Vecchia(8), False),
    "few and columns": (Vecchia(8, 10), False),
    "all": (Vecchia(59), True),
    "more than all": (Vecchia(500), True),
    "all and columns": (Vecchia(59, 7), True),
    "all columns": (Vecchia(3, 60), True),
}
every_recipe = pytest.mark.parametrize(("recipe", "exact"), RECIPES.values(), ids=RECIPES.keys())
NOISES = {"one": 0.05, "each row": torch.linspace(0.01, 2.0, 60, dtype=torch.float64)}
every_noise = pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES.keys())
EYE = torch.eye(60, dtype=torch.float64)


@every_recipe
@every_noise
def test_inverse_samples_and_determinant_belong_to_one_matrix(recipe, exact, noise):
    matrix = kernel_matrix(60, noise=noise)
    built = recipe.build(matrix, generator())
    inverse = built.apply(EYE)
    torch.testing.assert_close(inverse, inverse.T, rtol=1e-9, atol=1e-9)
    P = torch.linalg.inv(inverse)
    assert float(torch.linalg.eigvalsh(P).min()) > 0
    A = built.transform_normal(torch.eye(60 + built.rank, dtype=torch.float64))
    assert relative_error(A @ A.T, P) < 1e-9
    assert built.log_determinant() == pytest.approx(float(torch.linalg.slogdet(P).logabsdet), abs=1e-8)
    assert built.rank == min(recipe.rank, 60)
    assert built.sample(3, generator()).shape == (60, 3)
    error = relative_error(P, matrix.to_dense())
    assert error < 1e-9 if exact else error > 1e-4


def test_white_parts_and_columns_of_inputs_are_in_the_factor():
    kernel = (Matern(1.5, [0.7, 1.2], columns=[2, 0]) + RBF(0.5) + White(0.3)).bind(3)
    X = normal(60, 3)
    built = Vecchia(59).build(KernelMatrix(kernel, X, 0.1), generator())
    assert relative_error(torch.linalg.inv(built.apply(EYE)), reference_matrix(kernel, X, 0.1)) < 1e-9


def test_a_small_number_of_neighbours_is_close_and_columns_help_where_noise_hides_them():
    matrix = kernel_matrix(400, d=2, noise=0.01)
    H = matrix.to_dense()

    def condition(recipe):
        A = recipe.build(matrix, generator()).apply(H)
        values = torch.linalg.eigvals(A).real
        return float(values.max() / values.min())

    assert condition(Vecchia(30)) < 5
    assert condition(Vecchia(30)) < condition(Vecchia(10)) < condition(Vecchia(3)) < 1e-2 * float(torch.linalg.cond(H))
    noisy = kernel_matrix(400, d=8, noise=1.0, lengthscale=6.0)

    def iterations(recipe):
        return solve(noisy, recipe).iterations

    assert iterations(Vecchia(5, 100)) < iterations(Vecchia(5))


# Conjugate gradients -------------------------------------------------------------------------------------------------


def clumps(dtype=torch.float64):
    X = torch.cat([normal(200, 2), 1e-3 * normal(150, 2, seed=1) + 2.0, 1e-6 * normal(50, 2, seed=2) - 1.0])
    return KernelMatrix(Matern(1.5, 1.0, 1.0), X.to(dtype), 0.01)


def gaps(dtype=torch.float64):
    X = normal(400, 2)
    X[::2, 0] += 30.0
    return KernelMatrix(Matern(2.5, [0.5, 2.0], 1.0), X.to(dtype), 0.01)


def duplicates(dtype=torch.float64):
    X = normal(130, 2, seed=3)[torch.arange(400) % 130]
    return KernelMatrix(Matern(0.5, 1.0, 1.0), X.to(dtype), 0.01)


MATRICES = {"clumps": clumps, "gaps": gaps, "duplicates": duplicates}
every_matrix = pytest.mark.parametrize("make", MATRICES.values(), ids=MATRICES.keys())


def solve(matrix, preconditioner, tolerance=1e-8):
    b = normal(matrix.n, 2, seed=9).to(matrix.dtype)
    solver = ConjugateGradients(tolerance=tolerance, max_epochs=2000, preconditioner=preconditioner)
    return solver.solve(matrix, b, generator=generator())


@every_matrix
@pytest.mark.parametrize("recipe", [Vecchia(30), Vecchia(30, 20)], ids=repr)
def test_solutions_are_the_dense_ones_in_far_fewer_iterations(make, recipe):
    matrix = make()
    found, plain = solve(matrix, recipe), solve(matrix, None)
    assert found.status == Status.CONVERGED
    expected = torch.linalg.solve(matrix.to_dense(), normal(matrix.n, 2, seed=9))
    assert relative_error(found.value, expected) < 1e-6
    assert 5 * found.iterations < plain.iterations


@every_matrix
def test_solutions_in_float32(make):
    narrow, wide = make(torch.float32), make()
    matrix = KernelMatrix(narrow.kernel, narrow.X, 0.2)
    found = solve(matrix, Vecchia(30), 1e-3)
    assert found.status == Status.CONVERGED
    assert found.value.dtype == torch.float32
    expected = torch.linalg.solve(wide.to_dense() + 0.19 * torch.eye(400), normal(matrix.n, 2, seed=9))
    assert relative_error(found.value, expected) < 2e-2
    built = Vecchia(30, 5).build(matrix, generator())
    assert built.apply(normal(400, 2).float()).dtype == torch.float32
    assert built.sample(2, generator()).dtype == torch.float32


@every_matrix
def test_solutions_with_products_in_float32(make):
    exact = make()
    mixed = KernelMatrix(exact.kernel, exact.X, 0.01, mixed=True)
    assert isinstance(mixed.fast, RoundedMatrix)
    found, wide = solve(mixed, Vecchia(30)), solve(exact, Vecchia(30))
    assert found.status == Status.CONVERGED
    expected = torch.linalg.solve(exact.to_dense(), normal(exact.n, 2, seed=9))
    assert relative_error(found.value, expected) < 1e-6
    assert found.iterations <= 2 * wide.iterations + 3


@pytest.mark.few(3)
@pytest.mark.parametrize("options", [{}, {"computational_uncertainty": True}], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32", "mixed"])
def test_an_estimator_with_it_predicts_what_exact_inference_does(options, dtype):
    if options and dtype == "mixed":
        pytest.skip("computation-aware inference refuses mixed precision")
    X, new = normal(250, 2).numpy(), normal(20, 2, seed=1).numpy()
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * normal(250, seed=2).numpy()
    given = {"kernel": Matern(1.5, [1.0, 2.0], 1.0), "noise_variance": 0.01, "optimizer": None}
    tolerance = 1e-4 if dtype == "float32" else 1e-9
    solver = ConjugateGradients(tolerance=tolerance, preconditioner=Vecchia(15))
    method = inference.Iterative(solver=solver, **options)
    found = GPRegressor(inference=method, dtype=dtype, **given).fit(X, y)
    mean = GPRegressor(inference=inference.Exact(), **given).fit(X, y).predict(new)
    np.testing.assert_allclose(found.predict(new), mean, atol=2e-2 if dtype == "float32" else 1e-6)


# What it refuses, and what it reuses ---------------------------------------------------------------------------------


@pytest.mark.parametrize("matrix", [spectral(60), DenseMatrix(EYE)], ids=["spectral", "dense"])
def test_a_matrix_without_inputs_is_refused(matrix):
    with pytest.raises(InvalidInputError, match=r"Vecchia needs a KernelMatrix.*got DenseMatrix"):
        Vecchia(5).build(matrix, generator())


def test_what_does_not_fit_is_refused_with_its_bytes():
    matrix = kernel_matrix(60)
    small = KernelMatrix(matrix.kernel, matrix.X, 0.01, memory_budget=20_000)
    with pytest.raises(MemoryBudgetError, match="28,800 bytes"):
        Vecchia(20).build(small, generator())
    with pytest.raises(MemoryBudgetError, match=r"n_neighbors or rank"):
        Vecchia(2, 40).build(small, generator())
    with pytest.raises(MemoryBudgetError, match="its 12 neighbours"):
        Vecchia(12).build(small, generator())


@pytest.mark.parametrize("number", [0, -3, 2.5, "many"])
def test_numbers_of_neighbours_are_counts(number):
    with pytest.raises(InvalidInputError, match="n_neighbors of Vecchia"):
        Vecchia(number)


def test_a_build_reuses_neighbours_and_pivots():
    matrix = kernel_matrix(100, d=2)
    recipe = Vecchia(10, 6)
    first = recipe.build(matrix, generator(0))
    near = KernelMatrix(
        matrix.kernel.replace({"lengthscale": matrix.kernel.value("lengthscale") * 1.2}), matrix.X, 0.02
    )
    again = recipe.build(near, generator(1), first)
    assert again.graph is first.graph
    assert torch.equal(again.pivots, first.pivots)
    pivots = Parts()
    pivots.pivots = first.pivots
    fresh = recipe.build(near, generator(1), pivots)
    assert fresh.graph is not first.graph
    far = KernelMatrix(matrix.kernel.replace({"lengthscale": matrix.kernel.value("lengthscale") * 2}), matrix.X, 0.02)
    for other in (
        recipe.build(far, generator(1), first),
        Vecchia(9, 6).build(near, generator(1), first),
    ):
        assert other.graph is not first.graph
    assert solve(near, again).iterations <= solve(near, fresh).iterations + 1


def test_the_same_rows_give_the_same_bits_on_any_number_of_threads():
    matrix, V, before = kernel_matrix(700, d=2), normal(700, 3), torch.get_num_threads()
    built = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            one = Vecchia(12).build(matrix, generator())
            built.append((one.apply(V), one.sample(2, generator())))
    finally:
        torch.set_num_threads(before)
    for left, right in zip(*built, strict=True):
        assert torch.equal(left, right)


def test_rows_without_noise_that_others_determine_do_no_harm():
    matrix = with_duplicates(noise=0.0)
    built = Vecchia(10).build(matrix, generator())
    assert bool(torch.isfinite(built.apply(normal(80, 2))).all())
    assert bool(torch.isfinite(built.sample(2, generator())).all())
    assert np.isfinite(built.log_determinant())
    with_noise = with_duplicates(noise=1e-6)
    found = solve(with_noise, Vecchia(30), 1e-6)
    assert found.status == Status.CONVERGED


@pytest.mark.parametrize("recipe", [Vecchia(5), Vecchia(5, 8)], ids=repr)
def test_the_lower_bound_is_below_the_matrix(recipe):
    matrix = kernel_matrix(60, noise=NOISES["each row"])
    built = recipe.build(matrix, generator(), bound=True)
    V = normal(60, 200)
    bound = (V * built.lower_bound_apply(V)).sum(0)
    exact = (V * torch.linalg.solve(matrix.to_dense(), V)).sum(0)
    assert bool((bound >= exact * (1 - 1e-9)).all())
    assert bool(((V * built.apply(V)).sum(0) < exact).any())  # the control: P itself is no bound


def test_it_says_what_it_is():
    assert Vecchia(5).build(kernel_matrix(60), generator()).describe() == "5 neighbours of each row"
    found = Vecchia(5, 3).build(kernel_matrix(60), generator())
    assert isinstance(found, SparsePlusLowRank)
    assert found.describe() == "3 randomly pivoted columns plus 5 neighbours of each row"
    assert 0 < found.epochs < 1
