from __future__ import annotations

import pytest
import torch

from gigagp.errors import InvalidInputError, MemoryBudgetError, NotPositiveDefiniteError
from gigagp.kernels import Matern
from gigagp.operators import DenseMatrix, KernelMatrix
from gigagp.solvers import Cholesky
from matrices import Weighted, kernel_matrix, normal, with_spectrum


def test_it_is_exact_and_gives_the_log_determinant():
    matrix, b = kernel_matrix(80), normal(80, 3)
    solution = Cholesky().solve(matrix, b)
    assert float((matrix.to_dense() @ solution.value - b).norm() / b.norm()) < 1e-12
    assert solution.detail["log_determinant"] == pytest.approx(float(torch.logdet(matrix.to_dense())))
    assert (solution.iterations, solution.epochs, solution.setup_epochs) == (0, 0.0, 1.0)
    assert float(solution.nats.max()) < 1e-15


def test_no_jitter_is_added():
    with pytest.raises(NotPositiveDefiniteError, match="noise_variance"):
        Cholesky().solve(DenseMatrix(with_spectrum(torch.tensor([1.0, 0.5, -0.1]).double())), normal(3))
    with pytest.raises(NotPositiveDefiniteError):
        Cholesky().solve(DenseMatrix(torch.zeros(3, 3).double()), normal(3))


def test_it_refuses_what_does_not_fit_or_cannot_be_read():
    kernel = Matern(nu=1.5, lengthscale=1.0, variance=1.0)
    matrix = KernelMatrix(kernel, normal(1000, 2), 0.1, memory_budget=10**7, storage="tiles")
    with pytest.raises(MemoryBudgetError, match=r"16,000,000 bytes, but the memory budget is 10,000,000"):
        Cholesky().solve(matrix, normal(1000))
    operator = Weighted(torch.eye(5).double(), torch.eye(5).double(), 0.1)
    with pytest.raises(InvalidInputError, match="operator must be a SymmetricMatrix; got Weighted"):
        Cholesky().solve(operator, normal(5))
