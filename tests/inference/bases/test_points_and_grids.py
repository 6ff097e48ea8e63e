"""Bases at points and on grids."""

from __future__ import annotations

import pytest
import torch

from gigagp.errors import InvalidInputError
from gigagp.inference.quadruply_stochastic.bases import GridEigenfunctions, InducingBasis, RadialBasis
from gigagp.inference.quadruply_stochastic.bases.inducing import random_points
from gigagp.kernels import RBF, Linear, Matern
from helpers import generator, points

X, Z = points(30, 2), points(12, 2, seed=1)
KERNEL = Matern(1.5, [0.8, 1.4], 1.7).bind(2)


def test_inducing_points_give_nystroms_approximation():
    basis = InducingBasis(KERNEL, Z, jitter=0.0)
    index = torch.arange(12)
    features, S = basis.columns(X, index), basis.prior_block(index, index)
    K = KERNEL.block(X, Z)
    torch.testing.assert_close(features, K)
    torch.testing.assert_close(S, KERNEL.block(Z, Z))
    some, others = torch.tensor([3, 7, 3]), torch.tensor([7, 0])
    torch.testing.assert_close(basis.prior_block(some, others), S[some][:, others])
    torch.testing.assert_close(basis.columns(X, some), K[:, some])
    torch.testing.assert_close(basis.prior_diagonal(some), S.diagonal()[some])


def test_the_jitter_is_on_the_diagonal_alone():
    plain, jittered = (InducingBasis(KERNEL, Z, jitter) for jitter in (0.0, 0.01))
    some, others = torch.tensor([3, 7]), torch.tensor([7, 0])
    difference = jittered.prior_block(some, others) - plain.prior_block(some, others)
    torch.testing.assert_close(difference, torch.tensor([[0.0, 0.0], [0.017, 0.0]], dtype=torch.float64))
    assert float(jittered.prior_diagonal(some)[0]) == pytest.approx(1.717)


def test_radial_functions_have_independent_weights():
    basis = RadialBasis(KERNEL, X)
    assert basis.has_diagonal_prior
    some = torch.tensor([3, 7])
    torch.testing.assert_close(basis.prior_block(some, some), torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(basis.columns(X, some), KERNEL.block(X, X[some]))


@pytest.mark.parametrize("kernel", [RBF([0.8, 1.4], 1.7), RBF(0.9, columns=[1]) * Matern(2.5, 1.1, 0.6, columns=[0])])
def test_all_grid_eigenfunctions_interpolate_through_the_grid(kernel):
    kernel = kernel.bind(2)
    basis = GridEigenfunctions.leading(kernel, X, 10**6, n_nodes=7)
    assert basis.size == 49
    features = basis.columns(X, torch.arange(49))
    grid = torch.cartesian_prod(*basis.nodes)
    cross = kernel.block(X, grid)
    expected = cross @ torch.linalg.solve(kernel.block(grid, grid) + 1e-10 * torch.eye(49), cross.T)
    torch.testing.assert_close(features @ features.T, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(features @ features.T, kernel.block(X, X), rtol=0.02, atol=0.02)
    some = torch.tensor([40, 3, 3])
    torch.testing.assert_close(basis.columns(X, some), features[:, some])


def test_the_leading_ones_are_the_largest():
    kernel = RBF([0.8, 1.4], 1.7).bind(2)
    few, many = (GridEigenfunctions.leading(kernel, X, count, 7) for count in (10, 49))
    assert torch.equal(few.orders, many.orders[:10])
    grid = torch.cartesian_prod(*few.nodes)
    values, vectors = torch.linalg.eigh(kernel.block(grid, grid))
    leading = values.flip(0)[:10]
    cross = kernel.block(X, grid) @ vectors.flip(1)[:, :10] / leading.sqrt()
    found = few.columns(X, torch.arange(10))
    torch.testing.assert_close(found @ found.T, cross @ cross.T, rtol=1e-5, atol=1e-6)
    last = many.columns(X, torch.arange(39, 49))  # the control: the last ten add next to nothing
    assert float((last @ last.T).diagonal().mean()) < 0.01 * float((found @ found.T).diagonal().mean())


def test_ten_inputs_are_no_trouble():
    X10 = points(50, 10)
    basis = GridEigenfunctions.leading(RBF(3.0).bind(10), X10, 500, 10)
    features = basis.columns(X10, torch.arange(500))
    share = features.square().sum(1).mean()
    assert 0.8 < float(share) <= 1.0 + 1e-6


def test_bad_input():
    for kernel in (Matern(1.5).bind(2), RBF(columns=[0]).bind(2), RBF().bind(2) + Linear().bind(2)):
        with pytest.raises(InvalidInputError, match="must be a product over all inputs"):
            GridEigenfunctions.leading(kernel, X, 10)
    with pytest.raises(InvalidInputError, match=r"points of InducingBasis must have shape \(m, 2\)"):
        InducingBasis(KERNEL, torch.zeros(4, 3))


def test_random_points_are_different_rows():
    doubled = torch.cat([X, X])
    assert len(random_points(doubled, 100, generator(0))) == 30
    found = random_points(doubled, 10, generator(0))
    assert len(torch.unique(found, dim=0)) == 10


@pytest.mark.parametrize(
    "basis",
    [InducingBasis(KERNEL, Z, 0.01), RadialBasis(KERNEL, Z), GridEigenfunctions.leading(RBF().bind(2), X, 9, 4)],
    ids=lambda basis: basis.kind,
)
def test_they_are_made_again_from_their_state(basis):
    again = type(basis).from_state(basis.kernel, *basis.state())
    index = torch.arange(basis.size)
    assert torch.equal(again.columns(X, index), basis.columns(X, index))
    assert torch.equal(again.prior_block(index, index), basis.prior_block(index, index))
