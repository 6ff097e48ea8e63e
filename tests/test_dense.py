"""Dense factors."""

from __future__ import annotations

import pytest
import torch

from gigagp.dense import cholesky, lower_inverse
from gigagp.errors import NotPositiveDefiniteError
from helpers import DTYPES, spd_matrix

EIGENVALUES = torch.logspace(-2, 1, 40).double()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_inverse_of_a_factor(dtype):
    matrix = spd_matrix(EIGENVALUES).to(dtype)
    factor = cholesky(matrix)
    kept = factor.clone()
    found = lower_inverse(factor).tril()
    expected = torch.linalg.inv(matrix.double()).tril().to(dtype)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 if dtype == torch.float64 else 2e-2)
    assert torch.equal(factor, kept)
    # factors come in either memory order
    columns = factor.T.contiguous().T
    torch.testing.assert_close(lower_inverse(columns).tril(), found, rtol=1e-4, atol=1e-4)


def test_a_matrix_without_a_factor_names_the_pivot():
    matrix = torch.eye(5).double()
    matrix[2, 2] = -1.0
    with pytest.raises(
        NotPositiveDefiniteError, match=r"the prior covariance is not positive .* float64 \(pivot 3 of 5"
    ):
        cholesky(matrix, "the prior covariance")
    with pytest.raises(NotPositiveDefiniteError, match="Raise noise_variance"):
        cholesky(torch.full((3, 3), torch.nan))
