"""Matrices for the tests of solvers and preconditioners: prescribed spectra, kernels, and faulty matrices."""

from __future__ import annotations

import torch

from gigagp.kernels import Matern
from gigagp.operators import DenseMatrix, KernelMatrix, LinearOperator


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def with_spectrum(eigenvalues: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """Return a dense symmetric matrix with the given eigenvalues and random eigenvectors."""
    basis = torch.linalg.qr(normal(len(eigenvalues), len(eigenvalues), seed=seed))[0]
    matrix = basis * eigenvalues @ basis.T
    return (matrix + matrix.T) / 2


def spectral(n: int = 60, condition: float = 100.0, seed: int = 0) -> DenseMatrix:
    """Return a matrix whose eigenvalues are evenly spaced in logarithm from 1 down to 1 / condition."""
    return DenseMatrix(with_spectrum(torch.logspace(0, -torch.tensor(condition).log10().item(), n).double(), seed))


def kernel_matrix(
    n: int = 150,
    d: int = 3,
    noise: float | torch.Tensor = 0.01,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    lengthscale: float = 1.0,
) -> KernelMatrix:
    """Return a Matern-3/2 matrix on normal inputs."""
    kernel = Matern(nu=1.5, lengthscale=lengthscale, variance=1.0)
    return KernelMatrix(kernel, normal(n, d, seed=seed, dtype=dtype), noise)


def with_duplicates(n: int = 80, distinct: int = 30, noise: float = 0.01) -> KernelMatrix:
    """Return a matrix whose smooth part has rank ``distinct``."""
    X = normal(distinct, 2, seed=3)[torch.arange(n) % distinct]
    return KernelMatrix(Matern(nu=1.5, lengthscale=1.0, variance=1.0), X, noise)


def smooth_part(matrix: KernelMatrix | DenseMatrix) -> torch.Tensor:
    return matrix.to_dense().double() - torch.diag(matrix.noise().double())


class Weighted(LinearOperator):
    """``K M + s2 I``, self-adjoint in ``<a, b> = a' M b`` and not symmetric."""

    def __init__(self, kernel: torch.Tensor, weight: torch.Tensor, noise: float) -> None:
        self.n, self.dtype, self.device = len(kernel), kernel.dtype, kernel.device
        self.weight = weight
        self.full = kernel @ weight + noise * torch.eye(len(kernel), dtype=kernel.dtype)

    def __matmul__(self, vectors: torch.Tensor) -> torch.Tensor:
        return self.full @ vectors

    def inner(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return (left * (self.weight @ right)).sum(0)


class Euclidean(Weighted):
    """Control: the same operator with the wrong inner product."""

    def inner(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return (left * right).sum(0)


class Spoiled(DenseMatrix):
    """A matrix whose products become NaN after a number of good ones."""

    def __init__(self, matrix: torch.Tensor, good_products: int) -> None:
        super().__init__(matrix)
        self.good_products = good_products

    def _spoil(self, product: torch.Tensor) -> torch.Tensor:
        self.good_products -= 1
        return product if self.good_products >= 0 else product * float("nan")

    def __matmul__(self, vectors: torch.Tensor) -> torch.Tensor:
        return self._spoil(super().__matmul__(vectors))

    def rows_product(self, rows, vectors):
        return self._spoil(super().rows_product(rows, vectors))

    def columns_product(self, columns, vectors):
        return self._spoil(super().columns_product(columns, vectors))


class Counting(DenseMatrix):
    """A matrix that counts its full products."""

    def __init__(self, matrix: torch.Tensor, noise: float | torch.Tensor = 0.0) -> None:
        super().__init__(matrix, noise)
        self.products = 0

    def __matmul__(self, vectors: torch.Tensor) -> torch.Tensor:
        self.products += 1
        return super().__matmul__(vectors)
