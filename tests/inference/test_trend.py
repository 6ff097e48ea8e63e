"""The trend by generalised least squares, from solves."""

from __future__ import annotations

import torch

from gigagp.inference.contract.trend import OrthogonalBasis, estimate_trend
from helpers import points, spd_matrix

H = spd_matrix(torch.logspace(-1, 1, 30).double())
Y = points(30, 2, seed=1)


def test_the_formula():
    basis = torch.cat([torch.ones(30, 1).double(), points(30, 2, seed=2)], 1)
    inverse = torch.linalg.inv(H)
    expected = torch.linalg.solve(basis.T @ inverse @ basis, basis.T @ inverse @ Y)
    found = estimate_trend(basis, Y, inverse @ basis)
    torch.testing.assert_close(found.coefficients, expected, rtol=1e-9, atol=1e-9)
    ordinary = torch.linalg.lstsq(basis, Y).solution  # the control: ordinary least squares gives other numbers
    assert not torch.allclose(found.coefficients, ordinary, rtol=1e-2)


def test_no_basis_has_no_coefficients():
    found = estimate_trend(Y[:, :0], Y, Y[:, :0])
    assert found.coefficients.shape == (0, 2)


def test_directions_that_are_not_determined_get_the_shortest_solution():
    column = points(30, 1, seed=3)
    basis = torch.cat([column, column, torch.zeros_like(column)], 1)
    inverse = torch.linalg.inv(H)
    found = estimate_trend(basis, Y, inverse @ basis)
    alone = estimate_trend(column, Y, inverse @ column)
    torch.testing.assert_close(found.coefficients[:2], alone.coefficients.expand(2, 2) / 2, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.coefficients[2], torch.zeros(2).double(), rtol=0, atol=1e-12)


def test_slightly_unsymmetric_solves_change_little():
    basis = torch.cat([torch.ones(30, 1).double(), points(30, 2, seed=2)], 1)
    solved = torch.linalg.solve(H, torch.cat([basis, Y], 1))
    noisy = solved + 1e-4 * points(30, 5, seed=9)
    exact = estimate_trend(basis, Y, solved[:, :3])
    found = estimate_trend(basis, Y, noisy[:, :3])
    torch.testing.assert_close(found.coefficients, exact.coefficients, rtol=0, atol=1e-2)


def collinear(n=60):
    """Return a constant, an input far from zero, two inputs that hardly differ, and one that is constant."""
    far, one, other = points(n, 3, seed=4).unbind(1)
    ones = torch.ones(n).double()
    return torch.stack([ones, 1e3 + far, one, one + 1e-4 * other, 5 * ones], 1)


def test_orthogonal_columns_span_the_basis():
    basis = collinear()
    found = OrthogonalBasis.of(basis)
    assert found.columns.shape == (60, 4)  # the last input adds nothing to the constant
    torch.testing.assert_close(found.columns.T @ found.columns / 60, torch.eye(4).double(), rtol=0, atol=1e-12)
    assert torch.equal(found.columns[:, 0], basis[:, 0])
    torch.testing.assert_close(found.columns @ found.to_basis, basis, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(basis @ found.to_columns, found.columns, rtol=0, atol=1e-8)  # eps times condition
    nothing = OrthogonalBasis.of(basis[:, :0])
    assert nothing.columns.shape == (60, 0)
    assert nothing.to_columns.shape == (0, 0)


def test_the_trend_of_orthogonal_columns_is_that_of_the_basis():
    basis, H = collinear(), spd_matrix(torch.logspace(-1, 1, 60).double())
    targets = basis @ torch.tensor([[1.0], [0.01], [2.0], [-1.0], [0.5]]).double() + points(60, 1, seed=5)
    found = OrthogonalBasis.of(basis)
    trend = found.trend(estimate_trend(found.columns, targets, torch.linalg.solve(H, found.columns)))
    known = estimate_trend(basis, targets, torch.linalg.solve(H, basis))
    assert trend.root.shape == known.root.shape == (5, 5)
    torch.testing.assert_close(basis @ trend.coefficients, basis @ known.coefficients, rtol=0, atol=1e-6)
    spread, expected = (basis @ one.root @ (basis @ one.root).T for one in (trend, known))
    torch.testing.assert_close(spread, expected, rtol=0, atol=1e-6 * float(expected.max()))
    assert float(trend.coefficients[2:4].abs().min()) > 100  # the control: they are large and cancel
    in_units = basis.square().mean(0).sqrt() * trend.coefficients[:, 0]
    torch.testing.assert_close(in_units[0], in_units[4])  # the constant input has as much of the constant as the mean
