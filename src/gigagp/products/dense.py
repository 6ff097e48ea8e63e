"""Dense linear algebra: factors with a clear error, inverses from them, eigenvectors, and products with few columns."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch

from gigagp.errors import NotPositiveDefiniteError

#: A number of bytes above the buffer of any build of OpenBLAS, and a matrix size whose inverse requires that buffer.
_BLAS_BUFFER, _BLOCKED = 2**28, 256
#: Rows from which SciPy's LAPACK is worth a second pool of threads beside torch's. Below, starting and awaiting its
#: threads took up to forty times as long as the work on a busy machine.
_SMALLEST_FOR_SCIPY = 512
#: Side of the blocks in which a lower triangle is copied to the upper one.
_SYMMETRY_SIDE = 256


def cholesky(matrix: torch.Tensor, what: str = "the kernel matrix", *, overwrite: bool = False) -> torch.Tensor:
    """Return the lower Cholesky factor, on request in the memory of the matrix.

    If there is none, the `NotPositiveDefiniteError` names the failed pivot and a remedy; no jitter is added.
    """
    if overwrite:
        out = matrix, torch.empty((), dtype=torch.int32, device=matrix.device)
        factor, info = torch.linalg.cholesky_ex(matrix, out=out)
    else:
        factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info) != 0 or not math.isfinite(factor.detach().diagonal().sum()):
        raise NotPositiveDefiniteError(
            f"{what} is not positive definite in {str(matrix.dtype).removeprefix('torch.')} (pivot {int(info)} of "
            f'{matrix.shape[0]}). Raise noise_variance (repeated rows need some), or use dtype="float64".'
        )
    return factor


def eigh(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the eigenvalues of a symmetric matrix, ascending, and its eigenvectors.

    LAPACK's divide and conquer, which torch has, fails now and then where many eigenvalues are zero. QR iteration then
    takes a few times as long.
    """
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # torch's stub lacks it
        if matrix.requires_grad or not bool(torch.isfinite(matrix).all()):
            raise
        from scipy.linalg import eigh as by_scipy

        values, vectors = map(torch.from_numpy, by_scipy(matrix.cpu().numpy(), driver="ev"))
    return values.to(matrix), vectors.to(matrix)


def tall_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return ``left @ right``, for a result with many rows and few columns, computed as ``(right' left')'``.

    A row-major product is the transpose of a column-major one, and MKL is slower if the latter is short and wide. With
    the order reversed, a stored 4,000 x 4,000 matrix times 17 (65) columns took 0.42 (0.57) of the time in float64 and
    0.74 in float32 (AVX-512, one core). A GPU is given the product as it is.
    """
    if left.device.type != "cpu":
        return left @ right
    return (right.mT @ left.mT).mT.contiguous() if right.ndim >= 2 else left @ right


def subtract_product(result: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Subtract ``left @ right`` in place from a matrix with many rows and few columns, and return it."""
    if result.device.type != "cpu":
        return result.addmm_(left, right, alpha=-1)
    return result.sub_(tall_product(left, right))


def add_scaled_rows(result: torch.Tensor, factors: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Add ``factors[i] * vectors[i]`` in place to the rows of a vector or matrix, and return it."""
    factors = factors if vectors.ndim == 1 else factors[:, None]
    if result.device.type != "cpu":
        return result.addcmul_(factors, vectors)
    return result.add_(factors * vectors)


@cache
def _take_blas_buffer() -> None:
    """Let SciPy's BLAS allocate its buffer, once; raise MemoryError if there is no room for it.

    OpenBLAS allocates it at the first call that needs one, and if that fails it retries without end.
    """
    from scipy.linalg import get_lapack_funcs

    np.empty(_BLAS_BUFFER, dtype=np.uint8)  # reserved and released; nothing is written
    identity = np.eye(_BLOCKED)
    get_lapack_funcs(("potri",), (identity,))[0](identity)


def symmetric_inverse(factor: torch.Tensor) -> torch.Tensor:
    """Return ``(L L')^-1`` from its lower Cholesky factor L.

    SciPy's potri takes 0.7 of the time of torch's at 1,000 and more rows.
    """
    if factor.device.type != "cpu" or len(factor) < _SMALLEST_FOR_SCIPY:
        return torch.cholesky_inverse(factor)
    failed = "the inverse of the kernel matrix does not exist"
    inverse = _overwritten("potri", factor.detach().clone(), failed, "Raise noise_variance.")
    for start in range(0, len(inverse), _SYMMETRY_SIDE):  # potri leaves the upper triangle as it was
        stop = min(start + _SYMMETRY_SIDE, len(inverse))
        inverse[:start, start:stop] = inverse[start:stop, :start].T
        corner = inverse[start:stop, start:stop]
        corner.copy_(corner.tril() + corner.tril(-1).T)
    return inverse


def triangular_inverse(factor: torch.Tensor) -> torch.Tensor:
    """Return the inverse of a lower triangular matrix, which is lower triangular too.

    LAPACK's trtri takes a third of the work of solving against the identity.
    """
    if factor.device.type != "cpu" or len(factor) < _SMALLEST_FOR_SCIPY:
        identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
        return torch.linalg.solve_triangular(factor, identity, upper=False)
    failed = "the inverse of a triangular matrix does not exist"
    return _overwritten("trtri", factor.detach().tril(), failed, "It has a zero on its diagonal.")


def _overwritten(routine: str, factor: torch.Tensor, failed: str, remedy: str) -> torch.Tensor:
    """Return the result of a LAPACK routine that overwrites a lower triangular matrix."""
    from scipy.linalg import get_lapack_funcs

    _take_blas_buffer()
    array = factor.numpy().T  # a row-major lower matrix is a column-major upper one, without a copy
    (function,) = get_lapack_funcs((routine,), (array,))
    found, info = function(array, lower=0, overwrite_c=1)
    if info != 0:
        raise NotPositiveDefiniteError(f"{failed} (LAPACK {routine}: {info}). {remedy}")
    return torch.from_numpy(found.T)
