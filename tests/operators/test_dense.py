"""DenseMatrix: a stored matrix with the interface of all matrices."""

from __future__ import annotations

import pytest
import torch

from gigagp.errors import InvalidInputError
from gigagp.operators import DenseMatrix
from helpers import DTYPES, points, spd_matrix


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("noise", [0.0, 0.4, torch.linspace(0, 1, 12)])
def test_every_way_to_read_it_agrees(noise, dtype):
    K = spd_matrix(torch.logspace(-2, 1, 12)).to(dtype)
    H = DenseMatrix(K, noise)
    dense = K + torch.diag(torch.as_tensor(noise, dtype=dtype).expand(12))
    V = points(12, 3, dtype=dtype)
    assert torch.allclose(H @ V, dense @ V, atol=1e-5)
    assert torch.allclose(H @ V[:, 0], dense @ V[:, 0], atol=1e-5)
    assert torch.equal(H.diagonal(), dense.diagonal())
    assert torch.equal(H.to_dense(), dense)
    assert H.noise().shape == (12,)
    assert H.coordinates() is None
    for rows in (slice(2, 7), torch.tensor([5, 0, 9])):
        for columns in (rows, slice(4, 10), torch.tensor([9, 1])):
            assert torch.equal(H.block(rows, columns), dense[rows][:, columns])
        assert torch.allclose(H.rows_product(rows, V), dense[rows] @ V, atol=1e-5)
        short = V[: len(dense[rows])]
        assert torch.allclose(H.columns_product(rows, short), dense[:, rows] @ short, atol=1e-5)
    assert torch.equal(H.to_dense(), dense)  # reading has changed nothing


def test_prescribed_spectrum():
    eigenvalues = torch.tensor([0.5, 1.0, 7.0], dtype=torch.float64)
    assert torch.allclose(torch.linalg.eigvalsh(spd_matrix(eigenvalues)), eigenvalues)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DenseMatrix(torch.ones(2, 3)), "square"),
        (lambda: DenseMatrix(torch.ones(2, 2, dtype=torch.int64)), "real"),
        (lambda: DenseMatrix(torch.tensor([[1.0, 2.0], [0.0, 1.0]])), "symmetric"),
        (lambda: DenseMatrix(torch.full((2, 2), torch.nan)), "finite"),
        (lambda: DenseMatrix(torch.eye(2), -1.0), "noise of DenseMatrix"),
        (lambda: DenseMatrix(torch.eye(2), torch.ones(3)), "noise of DenseMatrix"),
        (lambda: DenseMatrix(torch.eye(2)) @ torch.ones(3, 1), "vectors"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(InvalidInputError, match=words):
        make()
