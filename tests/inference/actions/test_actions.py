"""Actions of every kind against the dense matrices that they represent."""

from __future__ import annotations

import pytest
import torch

from gigagp.errors import InvalidInputError
from gigagp.inference.computation_aware.actions import BlockActions, DenseActions, RowActions, balanced_bounds
from gigagp.kernels import Matern, White
from gigagp.operators import KernelMatrix
from helpers import autograd_gradient, generator, largest_tensor, points, reference_block, relative_error, tolerance

F64 = {"dtype": torch.float64}
N, COUNT = 37, 6
FORMS = {
    "blocks": BlockActions(torch.randn(N, generator=generator(), **F64), balanced_bounds(N, COUNT)),
    "uneven blocks": BlockActions(torch.randn(N, generator=generator(), **F64), (0, 1, 5, 20, 22, 30, N)),
    "dense": DenseActions(torch.randn(N, COUNT, generator=generator(1), **F64)),
    "rows": RowActions(torch.tensor([30, 2, 11, 5, 17, 8]), N),
}
KERNEL = (Matern(1.5, [0.9, 1.6], 1.3) + White(0.2)).bind(2)


@pytest.fixture(params=FORMS)
def actions(request):
    return FORMS[request.param]


def test_products_with_the_matrix(actions):
    S = actions.dense()
    assert S.shape == (N, actions.count) == (actions.n, COUNT)
    left, right = points(COUNT, 3, seed=2), points(N, 3, seed=3)
    torch.testing.assert_close(actions.combine(left), S @ left)
    torch.testing.assert_close(actions.combine(left, slice(4, 19)), (S @ left)[4:19])
    torch.testing.assert_close(actions.project(right), S.T @ right)
    weights = torch.rand(N, generator=generator(4), **F64)
    torch.testing.assert_close(actions.gram(weights), S.T @ (weights[:, None] * S))
    square = points(COUNT, COUNT, seed=5)
    torch.testing.assert_close(actions.row_quadratics(square), (S @ square @ S.T).diagonal())


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("storage", ["tiles", "dense"])
def test_products_with_a_kernel_leave_the_noise_out(actions, dtype, storage):
    X, X_new = points(N, 2, seed=6, dtype=dtype), points(5, 2, seed=7, dtype=dtype)
    matrix = KernelMatrix(KERNEL, X, torch.rand(N, generator=generator(8)).to(dtype) + 0.1, storage=storage)
    K = reference_block(KERNEL, X, X)
    product = actions.kernel_product(matrix)
    assert product.dtype == dtype
    bound = 100 * tolerance(dtype)
    assert relative_error(product, K @ actions.dense()) < bound
    assert relative_error(product, (K + torch.eye(N, **F64)) @ actions.dense()) > 1e-3  # control: with noise
    crossed = actions.cross_product(KERNEL, X_new, X, 2**30)
    assert relative_error(crossed, reference_block(KERNEL, X_new, X) @ actions.dense()) < bound
    left = points(N, COUNT, seed=9)
    found = actions.kernel_gradient(matrix, left)
    expected = autograd_gradient(
        KERNEL, lambda kernel: (reference_block(kernel, X, X) * (left @ actions.dense().T)).sum()
    )
    assert found.keys() == expected.keys()
    for name in found:
        if name != "1.variance":  # white noise is not part of K
            assert relative_error(found[name], expected[name]) < bound
    assert float(found["1.variance"].abs().max()) == 0.0


@pytest.mark.parametrize("name", ["blocks", "uneven blocks", "dense"])
def test_products_on_the_pattern(name):
    actions = FORMS[name]
    S = actions.dense()
    pattern = S != 0

    def restrict(whole):
        return whole if name == "dense" else (whole * pattern).sum(1)

    left, right, square = points(N, 4, seed=1), points(COUNT, 4, seed=2), points(COUNT, COUNT, seed=3)
    torch.testing.assert_close(actions.outer_at(left, right), restrict(left @ right.T))
    weights = torch.rand(N, generator=generator(4), **F64)
    # Products of S with itself give a diagonal matrix if blocks are disjoint.
    diagonal = square if name == "dense" else torch.diag(square.diagonal())
    torch.testing.assert_close(actions.combine_at(diagonal), restrict(S @ diagonal))
    torch.testing.assert_close(actions.combine_at(diagonal, weights), restrict(weights[:, None] * (S @ diagonal)))
    X = points(N, 2, seed=6)
    matrix = KernelMatrix(KERNEL, X, 0.3, storage="tiles")
    whole = points(N, COUNT, seed=7)
    expected = restrict(reference_block(KERNEL, X, X) @ whole)
    torch.testing.assert_close(actions.kernel_product_at(matrix, whole), expected)


def test_blocks_cover_every_row_with_sizes_that_differ_by_at_most_one():
    for n, count in ((5288, 512), (10, 3), (7, 7), (100, 1)):
        bounds = balanced_bounds(n, count)
        sizes = torch.tensor(bounds).diff()
        assert (bounds[0], bounds[-1], len(bounds)) == (0, n, count + 1)
        assert int(sizes.max() - sizes.min()) <= 1


def test_memory_of_a_product_is_linear_in_the_rows():
    sizes = []
    for n in (1000, 2000):
        actions = BlockActions(torch.ones(n, **F64), balanced_bounds(n, 20))
        matrix = KernelMatrix(Matern(1.5), points(n, 2), 0.1, memory_budget=2**22)
        with largest_tensor() as spy:
            product = actions.kernel_product(matrix)
            assert matrix.entries_computed == n * n  # every entry once, for any number of actions
            actions.kernel_product_at(matrix, product)
            actions.kernel_gradient(matrix, product)
        sizes.append(spy.elements)
    assert sizes[1] <= 2 * sizes[0]
    assert sizes[1] < 2000 * 2000 / 10


# Bad input ------------------------------------------------------------------------------------------------------------


def test_dependent_actions_are_refused():
    S = torch.randn(9, 4, generator=generator(), **F64)
    S[:, 2] = S[:, 0] - 3 * S[:, 1]
    with pytest.raises(InvalidInputError, match="must be linearly independent; column 2 is a combination"):
        DenseActions(S)
    S[:, 2] = 0.0
    with pytest.raises(InvalidInputError, match="must not be zero; column 2 is"):
        DenseActions(S)
    S[:, 2] = S[:, 0] + 1e-6 * torch.randn(9, generator=generator(1), **F64)
    DenseActions(S)  # close, but independent
    DenseActions(S * torch.tensor([1e-150, 1.0, 1e100, 1.0], **F64))  # scale does not matter


def test_more_actions_than_rows_are_refused():
    with pytest.raises(InvalidInputError, match="must not have more actions than rows; got 5 actions of 4 rows"):
        DenseActions(torch.randn(4, 5, generator=generator()))


@pytest.mark.parametrize(
    ("values", "bounds", "message"),
    [
        (torch.ones(4), (0, 2, 3), "must rise from 0 to the number of rows"),
        (torch.ones(4), (0, 2, 2, 4), "must rise from 0"),
        (torch.ones(4), (1, 4), "must rise from 0"),
        (torch.ones(4, 1), (0, 4), "must rise from 0"),
        (torch.tensor([1.0, 1.0, 0.0, 0.0]), (0, 2, 4), "not all zero in a block; those of block 1 are not"),
        (torch.tensor([1.0, float("nan"), 1.0, 0.0]), (0, 2, 4), "those of block 0"),
    ],
)
def test_blocks_that_are_none_are_refused(values, bounds, message):
    with pytest.raises(InvalidInputError, match=message):
        BlockActions(values, bounds)


@pytest.mark.parametrize("rows", [torch.tensor([1, 1]), torch.tensor([4]), torch.tensor([-1]), torch.ones(2, 2)])
def test_rows_that_are_none_are_refused(rows):
    with pytest.raises(InvalidInputError, match="rows of RowActions must be different numbers from 0 to 3"):
        RowActions(rows, 4)


def test_vectors_of_another_length_are_refused(actions):
    with pytest.raises(InvalidInputError, match=r"vectors must have shape \(37, s\)"):
        actions.project(torch.ones(5, 1))
    with pytest.raises(InvalidInputError, match="must be a finite real"):
        DenseActions(torch.full((3, 1), torch.nan))
