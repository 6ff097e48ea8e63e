"""Products with a stored matrix: every shape, precision and instruction set against torch in float64."""

from __future__ import annotations

import pytest
import torch

from gigagp.products import stored
from gigagp.products.extension import native
from gigagp.products.stored import stored_product
from helpers import points

compiled = pytest.mark.skipif(native is None, reason="no compiled extension")
SETS = native.instruction_sets() if native is not None else []


def product(matrix, vectors, instruction_set="", threads=1):
    out = vectors.new_full((matrix.shape[0], vectors.shape[1]), float("nan"))
    native.stored_product(instruction_set, matrix.numpy(), vectors.contiguous().numpy(), out.numpy(), threads)
    return out


@pytest.mark.pairs
@compiled
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 700), (200, 513), (385, 1), (7, 0), (0, 4)])
@pytest.mark.parametrize("s", [1, 2, 15, 16, 17, 24, 25, 49, 66])
def test_products_agree_with_torch(name, dtype, n, m, s):
    matrix, vectors = points(n, m).to(dtype), points(m, s, seed=1).to(dtype)
    found = product(matrix, vectors, name)
    sizes = matrix.double().abs() @ vectors.double().abs() + 1e-300
    error = (found.double() - matrix.double() @ vectors.double()).abs() / sizes
    assert found.dtype == dtype
    assert n == 0 or float(error.max()) < 20 * torch.finfo(dtype).eps


@compiled
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_bits_do_not_depend_on_threads_or_on_other_rows(dtype):
    matrix, vectors = points(1000, 600).to(dtype), points(600, 18, seed=1).to(dtype)
    whole = product(matrix, vectors)
    assert torch.equal(product(matrix, vectors, threads=3), whole)
    assert torch.equal(product(matrix[192:384], vectors), whole[192:384])


@compiled
def test_rows_of_a_wider_matrix_are_read_in_place():
    wide, vectors = points(300, 500), points(200, 5, seed=1)
    assert torch.allclose(stored_product(wide[:, 100:300], vectors), wide[:, 100:300] @ vectors, atol=1e-11)


def test_what_compiled_code_does_not_serve_goes_elsewhere(monkeypatch):
    called = []

    class Native:
        def stored_product(self, *arguments):
            called.append(arguments)

    monkeypatch.setattr(stored, "_native", Native())
    matrix, vectors = points(200, 200), points(200, 3, seed=1)
    expected = matrix @ vectors
    cases = {
        "one column": (matrix, vectors[:, :1], expected[:, :1]),
        "a vector": (matrix, vectors[:, 0], expected[:, 0]),
        "columns in memory": (matrix.T.contiguous().T, vectors, expected),
        "a gradient": (matrix, vectors.clone().requires_grad_(), expected),
        "a small matrix": (matrix[:50], vectors, expected[:50]),
    }
    for name, (left, right, wanted) in cases.items():
        assert torch.allclose(stored_product(left, right), wanted, atol=1e-11), name
    assert not called
    stored_product(matrix, vectors)
    assert called  # the control
    monkeypatch.setattr(stored, "_native", None)
    assert torch.allclose(stored_product(matrix, vectors), expected, atol=1e-11)


@compiled
def test_arguments_that_do_not_fit_are_refused():
    matrix, vectors = points(6, 5), points(5, 2, seed=1)
    for bad in (
        (matrix.T, points(6, 2)),  # rows that are not contiguous
        (matrix, points(4, 2)),
        (matrix, vectors.float()),
    ):
        with pytest.raises((ValueError, TypeError)):
            product(*bad)
    with pytest.raises(ValueError, match="threads"):
        product(matrix, vectors, threads=0)
    with pytest.raises(ValueError, match="no instruction set"):
        product(matrix, vectors, "AVX-1024")
