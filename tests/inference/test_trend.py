"""The trend by generalised least squares, from solves."""

from __future__ import annotations

import torch

from gigagp.inference.trend import estimate_trend
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
