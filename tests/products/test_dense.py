"""Dense factors."""

from __future__ import annotations

import pytest
import torch

from gigagp.errors import NotPositiveDefiniteError
from gigagp.products.dense import cholesky, eigh, symmetric_inverse, tall_product
from helpers import DTYPES, generator, spd_matrix

EIGENVALUES = torch.logspace(-2, 1, 40).double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [40, 600])
def test_the_inverse_of_a_factor(dtype, n):
    """SciPy computes the larger one."""
    matrix = spd_matrix(EIGENVALUES if n == 40 else torch.logspace(-2, 1, n).double()).to(dtype)
    factor = cholesky(matrix)
    assert torch.equal(cholesky(matrix.clone(), overwrite=True), factor)
    kept = factor.clone()
    found = symmetric_inverse(factor)
    expected = torch.linalg.inv(matrix.double()).to(dtype)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 if dtype == torch.float64 else 2e-2)
    assert torch.equal(found, found.T)
    assert torch.equal(factor, kept)
    # Factors come in either memory order.
    columns = factor.T.contiguous().T
    torch.testing.assert_close(symmetric_inverse(columns), found, rtol=1e-4, atol=1e-4)


def test_a_matrix_without_a_factor_names_the_pivot():
    matrix = torch.eye(5).double()
    matrix[2, 2] = -1.0
    with pytest.raises(
        NotPositiveDefiniteError, match=r"the prior covariance is not positive .* float64 \(pivot 3 of 5"
    ):
        cholesky(matrix, "the prior covariance")
    with pytest.raises(NotPositiveDefiniteError, match="Raise noise_variance"):
        cholesky(torch.full((3, 3), torch.nan))


@pytest.mark.parametrize("dtype", DTYPES)
def test_eigenvectors_where_divide_and_conquer_fails(dtype, monkeypatch):
    matrix = spd_matrix(EIGENVALUES).to(dtype)
    values, vectors = eigh(matrix)

    def fail(_):
        raise torch.linalg.LinAlgError("linalg.eigh: The algorithm failed to converge")

    monkeypatch.setattr(torch.linalg, "eigh", fail)
    again, found = eigh(matrix)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-4
    assert again.dtype == found.dtype == dtype
    torch.testing.assert_close(again, values, rtol=0, atol=tolerance)
    torch.testing.assert_close((vectors.T @ found).abs(), torch.eye(40, dtype=dtype), rtol=0, atol=100 * tolerance)
    with pytest.raises(torch.linalg.LinAlgError):
        eigh(torch.full((3, 3), torch.nan))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7, 5), (3, 7, 5), (0, 4)], ids=str)
def test_products_with_few_columns(dtype, shape):
    left = torch.randn(shape, generator=generator()).to(dtype)
    for right in (
        torch.randn(*shape[:-2], shape[-1], 3, generator=generator(1)),
        torch.ones(*shape[:-2], shape[-1], 0),
    ):
        found = tall_product(left, right.to(dtype))
        torch.testing.assert_close(found, left @ right.to(dtype))
        assert found.is_contiguous()
    if len(shape) == 2:
        vector = torch.ones(shape[-1], dtype=dtype)
        torch.testing.assert_close(tall_product(left, vector), left @ vector)
