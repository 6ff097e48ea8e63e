"""KernelMatrix: products, entries and derivatives against dense algebra, with both kinds of storage."""

from __future__ import annotations

import pytest
import torch

from gigagp import kernels
from gigagp.errors import InvalidInputError, MemoryBudgetError
from gigagp.kernels import RBF, Linear, Matern, White
from gigagp.operators import KernelMatrix
from gigagp.products import TorchTiles, select
from helpers import (
    DTYPES,
    all_kernels,
    autograd_gradient,
    largest_tensor,
    points,
    reference_matrix,
    tolerance,
)

ALL = all_kernels()
N = 60
IN_ROW_2, NAN = (torch.tensor(2), torch.tensor(1)), torch.tensor(float("nan"), dtype=torch.float64)


def matrices(name="sum", dtype=torch.float64, noise=0.3):
    """Return the operator with both kinds of storage, and the dense matrix."""
    X = points(N, 4, dtype=dtype)
    X[9] = X[4]
    both = [KernelMatrix(ALL[name], X, noise, storage=storage) for storage in ("dense", "tiles")]
    return both, reference_matrix(ALL[name], X, noise)


def known_noise(dtype=torch.float64):
    return points(N, 1, seed=5, dtype=dtype)[:, 0].square() + 0.1


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("noise", ["scalar", "vector"])
@pytest.mark.parametrize("name", ALL)
def test_every_way_to_read_it_agrees(name, noise, dtype):
    both, dense = matrices(name, dtype, 0.3 if noise == "scalar" else known_noise(dtype))
    V = points(N, 3, seed=1, dtype=dtype)
    rows = torch.tensor([5, 0, 41, 9, 4])
    columns = torch.tensor([7, 5, 9])
    error = 10 * float(dense.abs().max()) * tolerance(dtype)

    def same(found, expected):
        return found.dtype == dtype and torch.allclose(found.double(), expected, rtol=0, atol=error)

    double = V.double()
    for H in both:
        assert same(H @ V, dense @ double)
        assert same(H @ V[:, 0], dense @ double[:, 0])
        assert same(H.diagonal(), dense.diagonal())
        assert same(H.to_dense(), dense)
        for r in (rows, slice(3, 20), slice(None)):
            assert same(H.rows_product(r, V), dense[r] @ double)
            size = len(dense[r])
            assert same(H.columns_product(r, V[:size]), dense[:, r] @ double[:size])
            for c in (r, columns, slice(10, 25)):
                assert same(H.block(r, c), dense[r][:, c])
        assert H.shape == (N, N)


def test_a_block_does_not_lead_into_the_stored_matrix():
    both, dense = matrices()
    for H in both:
        H.block(slice(None), slice(None)).zero_()
        assert torch.allclose(H.to_dense(), dense)


def test_repeated_rows_are_equal_indices():
    (stored, tiled), dense = matrices()
    rows = torch.tensor([2, 2, 8])
    V = points(3, 2)
    for H in (stored, tiled):
        assert torch.allclose(H.block(rows, rows), dense[rows][:, rows])
        assert torch.allclose(H.columns_product(rows, V), dense[:, rows] @ V)


@pytest.mark.parametrize("storage", ["dense", "tiles"])
def test_adjoint_identity(storage):
    H = KernelMatrix(ALL["nested"], points(N, 4), known_noise(), storage=storage)
    left, right = points(N, 3, seed=1), points(N, 3, seed=2)
    assert torch.allclose(H.inner(left, H @ right), H.inner(H @ left, right))
    rows = torch.arange(0, N, 7)
    short = points(len(rows), 3, seed=3)
    assert torch.allclose((H.rows_product(rows, right) * short).sum(0), (right * H.columns_product(rows, short)).sum(0))


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("noise", ["scalar", "vector"])
@pytest.mark.parametrize("name", ALL)
def test_gradient_agrees_with_autograd_on_the_dense_formula(name, noise, dtype):
    variances = 0.3 if noise == "scalar" else known_noise(dtype)
    (_, H), _ = matrices(name, dtype, variances)
    left, right = points(N, 3, seed=1, dtype=dtype), points(N, 3, seed=2, dtype=dtype)
    weights = torch.tensor([0.5, -1.0, 0.2], dtype=dtype)

    def bilinear(kernel):
        # White alone has no continuous part; its white part is in the reference matrix.
        dH = reference_matrix(kernel, H.X, variances)
        return (weights.double() * (left.double() * (dH @ right.double())).sum(0)).sum()

    expected = autograd_gradient(H.kernel, bilinear)
    found = H.gradient(left, right, weights)
    assert set(found) == {*expected, "noise_variance"}
    largest = max(float(value.abs().max()) for value in expected.values())
    for key, value in expected.items():
        assert found[key].shape == value.shape
        assert torch.allclose(found[key], value, rtol=0, atol=30 * (1 + largest) * tolerance(dtype)), key
    by_noise = (weights * (left * right).sum(0)).sum().double()
    assert torch.allclose(found["noise_variance"], by_noise, atol=100 * tolerance(dtype))


def test_gradient_of_equal_vectors_takes_the_short_way_to_the_same_place():
    (H, _), _ = matrices()
    vectors = points(N, 3, seed=1)
    short, long = H.gradient(vectors, vectors), H.gradient(vectors, vectors.clone())
    assert all(torch.allclose(short[key], long[key]) for key in long)
    single = H.gradient(vectors[:, 0], vectors[:, 0])
    assert all(torch.allclose(single[key], H.gradient(vectors[:, :1], vectors[:, :1])[key]) for key in long)


def test_the_order_of_left_and_right_does_not_matter():
    (H, _), _ = matrices("nested")
    left, right = points(N, 2, seed=1), points(N, 2, seed=2)
    one, other = H.gradient(left, right), H.gradient(right, left)
    assert all(torch.allclose(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", ["matern32", "sum", "growing noise"])
def test_weighted_gradient(name):
    (H, _), _ = matrices(name)
    A = points(N, N, seed=1)
    A = A + A.T
    expected = autograd_gradient(H.kernel, lambda k: (reference_matrix(k, H.X) * A).sum())
    for weights in (A, lambda rows, columns: A[rows, columns]):
        found = H.weighted_gradient(weights)
        assert all(torch.allclose(found[key], expected[key]) for key in expected)
        assert torch.allclose(found["noise_variance"], A.trace())


def test_gradient_of_the_marginal_likelihood():
    """Compare the exact gradient with autograd through the log-determinant and the quadratic form."""
    (H, _), dense = matrices("matern32")
    y = points(N, 1, seed=3)
    inverse = torch.linalg.inv(dense)
    alpha = inverse @ y
    found = H.weighted_gradient(0.5 * (alpha @ alpha.T - inverse))

    def log_likelihood(kernel):
        whole = reference_matrix(kernel, H.X, 0.3)
        return -0.5 * (y.T @ torch.linalg.solve(whole, y)).sum() - 0.5 * torch.logdet(whole)

    expected = autograd_gradient(H.kernel, log_likelihood)
    assert all(torch.allclose(found[key], expected[key], rtol=1e-8) for key in expected)


def test_noise_holds_known_variances_and_white_parts():
    X = points(N, 4)
    H = KernelMatrix(RBF() + White(0.4) + White(0.5) * Linear(), X, known_noise())
    assert torch.allclose(H.noise(), known_noise() + 0.4 + 0.5 * X.square().sum(1))
    assert H.noise_variance is not None
    assert H.kernel.n_inputs == 4


def test_storage_follows_the_budget():
    X = points(100, 2)
    needed = 100 * 100 * 8
    assert KernelMatrix(RBF(), X, memory_budget=2 * needed).storage == "dense"
    assert KernelMatrix(RBF(), X, memory_budget=2 * needed - 2).storage == "tiles"
    assert KernelMatrix(RBF(), X.float(), memory_budget=needed).storage == "dense"
    assert KernelMatrix(RBF(), X, memory_budget=needed, storage="dense").storage == "dense"
    with pytest.raises(MemoryBudgetError, match="80,000 bytes"):
        KernelMatrix(RBF(), X, memory_budget=needed - 1, storage="dense")


@pytest.mark.parametrize("engine", [None, TorchTiles()])
def test_tile_storage_allocates_nothing_large(engine):
    n = 600
    X = points(n, 4)
    V, W = points(n, 5, seed=1), points(n, 5, seed=2)
    rows = torch.arange(0, n, 40)
    with largest_tensor() as spy:
        H = KernelMatrix(Matern() + White(0.1), X, 0.1, memory_budget=2**20, engine=engine)
        assert H.storage == "tiles"
        H @ V
        H.rows_product(rows, V)
        H.columns_product(rows, V[: len(rows)])
        H.block(slice(None), rows)
        H.diagonal()
        H.gradient(V, W)
        H.gradient(V, V)
    assert spy.elements <= n * len(rows) + 20_000
    with largest_tensor() as spy:
        KernelMatrix(Matern(), X, 0.1, storage="dense", engine=engine) @ V
    assert spy.elements >= n * n
    with pytest.raises(MemoryBudgetError):
        H.to_dense()


def test_entries_are_counted():
    X, V = points(100, 2), points(100, 3)
    stored, tiled = (KernelMatrix(RBF(), X, 0.1, storage=storage) for storage in ("dense", "tiles"))
    for H, expected in ((stored, 10_000), (tiled, 20_000)):
        assert H.entries_computed == 0
        H @ V
        H @ V
        assert H.entries_computed == expected
    tiled.rows_product(slice(0, 10), V)
    tiled.columns_product(slice(0, 10), V[:10])
    tiled.block(slice(0, 10), slice(0, 5))
    assert tiled.entries_computed == 22_050


def test_coordinates_are_scaled_inputs():
    X = points(20, 4)
    H = KernelMatrix(Linear() + Matern(1.5, [0.5, 2.0], columns=[1, 3]), X)
    assert torch.allclose(H.coordinates(), X[:, [1, 3]] / torch.tensor([0.5, 2.0]).double())
    assert torch.equal(KernelMatrix(Linear(), X).coordinates(), X)


@pytest.mark.parametrize("engine", [None, TorchTiles()])
def test_describe_says_what_runs(engine):
    X = points(20, 2, dtype=torch.float32)
    H = KernelMatrix(RBF(), X, memory_budget="1MiB", storage="tiles", engine=engine)
    assert H.engine == (engine or select(H.kernel, "cpu", torch.float32)).name
    for words in ("20 rows", "float32 on cpu", f"tile by tile by {H.engine}"):
        assert words in H.describe()
    assert H.describe() in repr(H)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda X: KernelMatrix(RBF(), X[:, 0]), r"X of KernelMatrix must be .* \(n, d\)"),
        (lambda X: KernelMatrix(RBF(), X.long()), "float32 or float64"),
        (lambda X: KernelMatrix(RBF(), X.index_put(IN_ROW_2, NAN)), "nan in row 2, column 1"),
        (lambda X: KernelMatrix(RBF([1.0, 2.0, 3.0]), X), "must be one number or 2"),
        (lambda X: KernelMatrix(RBF(), X, -0.1), "noise_variance of KernelMatrix must be zero or positive"),
        (lambda X: KernelMatrix(RBF(), X, torch.ones(3)), r"shape \(8,\)"),
        (lambda X: KernelMatrix(RBF(), X, float("nan")), "noise_variance"),
        (lambda X: KernelMatrix(RBF(), X, storage="disk"), "storage of KernelMatrix"),
        (lambda X: KernelMatrix(RBF(), X) @ X[:5], "vectors must have shape"),
        (lambda X: KernelMatrix(RBF(), X) @ X.float(), "vectors must be torch.float64"),
        (lambda X: KernelMatrix(RBF(), X).columns_product(slice(0, 3), X), "vectors must have shape"),
        (lambda X: KernelMatrix(RBF(), X).weighted_gradient(X), "matrix_weights"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(InvalidInputError, match=words):
        make(points(8, 2))


def test_a_kernel_of_your_own_works_everywhere():
    class Cosine(kernels.Leaf):
        shapes = {"variance": False, "frequency": True}  # noqa: RUF012

        def __init__(self, variance=None, frequency=None):
            super().__init__({"variance": variance, "frequency": frequency})

        def block(self, X, Z):
            phase = self.value("frequency", X)
            return self.value("variance", X) * torch.cos((X @ phase)[:, None] - (Z @ phase)[None, :])

        def diagonal(self, X):
            return self.value("variance", X).expand(X.shape[0])

    X, V = points(50, 2), points(50, 2, seed=1)
    kernel = (Cosine(1.4, [0.3, 1.2]) * RBF() + Matern()).bind(2)
    dense = kernel.block(X, X) + 0.2 * torch.eye(50).double()
    H = KernelMatrix(kernel, X, 0.2, storage="tiles")
    assert torch.allclose(H @ V, dense @ V)
    expected = autograd_gradient(kernel, lambda k: (V * (k.block(X, X) @ V)).sum())
    found = H.gradient(V, V)
    assert all(torch.allclose(found[key], expected[key]) for key in expected)
