"""What every engine promises, against dense float64 algebra: values, gradients, shapes, memory, bad input."""

from __future__ import annotations

import math
import warnings
from functools import cache

import pytest
import torch
from torch import Tensor

from engines import BUDGET, MAKERS, MatrixWeights, Same, parameters
from gigagp.errors import InvalidInputError, MemoryBudgetError
from gigagp.kernels import RBF, Matern, Periodic, RationalQuadratic
from gigagp.products import LowRankWeights
from gigagp.products.program import compile_kernel
from helpers import DTYPES, all_kernels, autograd_gradient, points, reference_block, relative_error, tolerance

ALL = all_kernels()
STATIONARY = ["rbf", "matern12", "matern32", "matern52", "rational quadratic"]
#: For what one kernel shows as well as all: one term, and a tree with everything in it.
TWO = ["matern32", "nested"]


@pytest.fixture(params=parameters(), scope="session")
def engine(request):
    return MAKERS[request.param]()


@cache
def training_inputs(n: int, dtype: torch.dtype) -> Tensor:
    """Return inputs as real tables have them: duplicate rows, a constant column, one row far out."""
    X = points(n, 4, dtype=dtype)
    X[7], X[n - 1] = X[3], X[0]
    X[:, 2] = 1.5
    X[11] = 40
    return X


@cache
def stationary(d: int) -> Matern:
    """Return a kernel for d standard normal inputs; entries are neither all zero nor all one."""
    return Matern(1.5, [math.sqrt(d) * (1 + 0.5 * k / d) for k in range(d)], 1.7).bind(d)


def assert_product(found: Tensor, kernel, X: Tensor, Z: Tensor, V: Tensor) -> None:
    """Assert entries that are right to the rounding of distances and profiles, and sums right to their own."""
    K = reference_block(kernel, X, Z)
    assert found.dtype == X.dtype
    assert found.shape == (len(X), V.shape[1])
    bound = float((K.abs() @ V.double().abs()).amax()) if found.numel() and len(Z) else 0.0
    assert torch.allclose(found.double(), K @ V.double(), rtol=0, atol=bound * tolerance(X.dtype))


def assert_gradient(found: dict[str, Tensor], kernel, X: Tensor, Z: Tensor, A: Tensor) -> None:
    """Assert the derivatives of sum(A * K), relative to what they would be without cancellation."""
    A = A.double()
    expected = autograd_gradient(kernel, lambda k: (reference_block(k, X, Z) * A).sum() + 0 * _any(k))
    without_signs = autograd_gradient(kernel, lambda k: (reference_block(k, X, Z) * A.abs()).sum() + 0 * _any(k))
    bound = max(float(value.abs().max()) for value in without_signs.values())
    assert list(found) == list(kernel.parameters())
    for name, value in expected.items():
        assert found[name].shape == value.shape
        assert (found[name].dtype, found[name].device.type) == (torch.float64, "cpu")
        assert torch.allclose(found[name], value, rtol=0, atol=bound * tolerance(X.dtype)), name


def _any(kernel) -> Tensor:
    """Return something that depends on the hyperparameters: white noise is zero between rows."""
    return next(iter(kernel.parameters().values())).sum()


# Values and derivatives --------------------------------------------------------------------------------------------


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALL)
def test_product(engine, name, dtype):
    kernel, X, Z = ALL[name], training_inputs(70, dtype), points(45, 4, seed=1, dtype=dtype)
    V, W = points(70, 3, seed=2, dtype=dtype), points(45, 3, seed=3, dtype=dtype)
    assert_product(engine.product(kernel, X, X, V), kernel, X, X, V)
    assert_product(engine.product(kernel, X, Z, W), kernel, X, Z, W)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALL)
def test_dense(engine, name, dtype):
    kernel, X, Z = ALL[name], training_inputs(70, dtype), points(45, 4, seed=1, dtype=dtype)
    for right in (None, Z):
        found, expected = engine.dense(kernel, X, right), reference_block(kernel, X, X if right is None else right)
        assert found.dtype == dtype
        assert torch.allclose(found.double(), expected, rtol=0, atol=float(expected.abs().max()) * tolerance(dtype))
        if right is None:
            assert torch.equal(found, found.T)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("name", "symmetric", "low_rank"),
    [(name, both, both) for name in ALL for both in (True, False)]
    + [(name, both, not both) for name in TWO for both in (True, False)],
)
def test_gradient_agrees_with_autograd_on_the_formula(engine, name, symmetric, low_rank, dtype):
    n, m = (30, 21) if engine.slow else (70, 45)
    kernel, X = ALL[name], training_inputs(n, dtype)
    Z = X if symmetric else points(m, 4, seed=1, dtype=dtype)
    A = points(n, len(Z), seed=2, dtype=dtype)
    A = A + A.T if symmetric else A
    weights = MatrixWeights(A)
    if low_rank:
        left, right = points(n, 3, seed=2, dtype=dtype), points(m, 3, seed=4, dtype=dtype)
        weights = LowRankWeights(left, left * points(1, 3, seed=3, dtype=dtype) if symmetric else right)
        A = weights.left.double() @ weights.right.double().T
    before = A.clone()
    found = engine.gradient(kernel, X, Z, weights, symmetric=symmetric)
    assert torch.equal(A, before)
    assert_gradient(found, kernel, X, Z, A)


#: Numbers of inputs and of vectors: all that matter, those that end blocks, more than the GPU engine takes at a time.
SHAPES = [(1, 65), (2, 3), (3, 1), (18, 17), (90, 3), (400, 1), (400, 65)]
MORE_SHAPES = [
    (1, 1),
    (2, 16),
    (3, 2),
    (4, 0),
    (5, 8),
    (6, 9),
    (7, 33),
    (10, 137),
    (18, 65),
    (24, 1),
    (90, 17),
    (400, 3),
]


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("d", "s"), SHAPES)
def test_numbers_of_inputs_and_vectors(engine, d, s, dtype):
    kernel, X, Z = stationary(d), points(45, d, dtype=dtype), points(38, d, seed=1, dtype=dtype)
    V, W = points(45, s, seed=2, dtype=dtype), points(38, s, seed=3, dtype=dtype)
    assert_product(engine.product(kernel, X, X, V), kernel, X, X, V)
    assert_product(engine.product(kernel, X, Z, W), kernel, X, Z, W)
    found = engine.gradient(kernel, X, X, LowRankWeights(V, V), symmetric=True)
    assert_gradient(found, kernel, X, X, V.double() @ V.double().T)


@pytest.mark.parametrize(("d", "s"), MORE_SHAPES)
def test_more_numbers_of_inputs_and_vectors(engine, d, s):
    """One precision each: the layout of memory is that of the other, with other lengths of SIMD vectors."""
    dtype = DTYPES[(d + s) % 2]
    kernel, X, W = stationary(d), points(45, d, dtype=dtype), points(38, s, seed=3, dtype=dtype)
    Z = points(38, d, seed=1, dtype=dtype)
    assert_product(engine.product(kernel, X, Z, W), kernel, X, Z, W)


@pytest.mark.few(13)
@pytest.mark.parametrize(
    ("n", "m"),
    [(1, 1), (1, 129), (7, 257), (127, 127), (128, 64), (129, 129), (255, 7), (257, 257), (600, 600), (1500, 300)],
)
def test_numbers_of_points(engine, n, m):
    if engine.slow:  # beyond two of its blocks nothing new happens
        n, m = min(n, 130), min(m, 130)
    kernel, X, V = stationary(3), points(n, 3), points(m, 3, seed=2)
    Z = X if n == m else points(m, 3, seed=1)
    assert_product(engine.product(kernel, X, Z, V), kernel, X, Z, V)
    U = V if n == m else points(n, 3, seed=3)
    found = engine.gradient(kernel, X, Z, LowRankWeights(U, V), symmetric=n == m)
    assert_gradient(found, kernel, X, Z, U @ V.T)
    if n * m <= 300 * 300:
        assert relative_error(engine.dense(kernel, X, None if n == m else Z), reference_block(kernel, X, Z)) < 1e-12


@pytest.mark.parametrize("name", [*TWO, "constant"])
def test_nothing_in_nothing_out(engine, name):
    kernel = ALL[name]
    X, nothing = points(9, 4), points(0, 4)
    assert engine.product(kernel, nothing, X, points(9, 2)).shape == (0, 2)
    assert torch.equal(engine.product(kernel, X, nothing, points(0, 2)), torch.zeros(9, 2).double())
    assert engine.product(kernel, X, X, points(9, 0)).shape == (9, 0)
    assert engine.dense(kernel, nothing).shape == (0, 0)
    assert engine.dense(kernel, X, nothing).shape == (9, 0)
    assert engine.dense(kernel, nothing, X).shape == (0, 9)
    for left, right, s in ((nothing, X, 2), (X, nothing, 2), (X, X, 0)):
        weights = LowRankWeights(points(len(left), s), points(len(right), s))
        for w in (weights, MatrixWeights(weights.left @ weights.right.T)):
            found = engine.gradient(kernel, left, right, w, symmetric=left is right)
            assert {name: value.shape for name, value in found.items()} == {
                name: value.shape for name, value in kernel.parameters().items()
            }
            assert all(not value.any() for value in found.values())


# How the numbers lie in memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_layouts_do_not_matter(engine, dtype):
    kernel = ALL["matern32"]
    X, V, W = points(40, 4, dtype=dtype), points(40, 3, seed=1, dtype=dtype), points(40, 3, seed=2, dtype=dtype)
    expected = engine.product(kernel, X, X, V)
    gradient = engine.gradient(kernel, X, X, LowRankWeights(V, W), symmetric=False)

    def otherwise(A: Tensor) -> list[Tensor]:
        wide = torch.full((2 * len(A), 2 * A.shape[1]), float("nan"), dtype=dtype)
        wide[::2, 1::2] = A
        return [A.T.contiguous().T, wide[::2, 1::2], A.flip(0).flip(0)]

    for X2, V2, W2 in zip(otherwise(X), otherwise(V), otherwise(W), strict=True):
        assert relative_error(engine.product(kernel, X2, X2, V2), expected) < tolerance(dtype) / 10
        found = engine.gradient(kernel, X2, X2, LowRankWeights(V2, W2), symmetric=False)
        assert all(relative_error(found[name], value) < tolerance(dtype) for name, value in gradient.items())
    column, row = V[:1].expand(40, 3), V[:, :1].expand(40, 3)
    assert_product(engine.product(kernel, X, X, column), kernel, X, X, column)
    assert_product(engine.product(kernel, X, X, row), kernel, X, X, row)
    one = X[:1].expand(40, 4)
    assert_product(engine.product(kernel, one, X, V), kernel, one, X, V)


def test_read_only_memory_is_read_and_nothing_else(engine):
    kernel, X, V = ALL["matern32"], points(40, 4).numpy(), points(40, 3, seed=1).numpy()
    copies = X.copy(), V.copy()
    X.flags.writeable = V.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would rather have writable arrays
        X, V = torch.from_numpy(X), torch.from_numpy(V)
    assert_product(engine.product(kernel, X, X, V), kernel, X, X, V)
    found = engine.gradient(kernel, X, X, LowRankWeights(V, V), symmetric=True)
    assert_gradient(found, kernel, X, X, V @ V.T)
    assert torch.equal(X, torch.from_numpy(copies[0]))
    assert torch.equal(V, torch.from_numpy(copies[1]))


def test_tensors_of_a_graph_are_values(engine):
    kernel = Matern().bind(4)
    if not engine.slow:  # hyperparameters of a graph do not travel to another process
        kernel = kernel.replace({key: value.clone().requires_grad_() for key, value in kernel.parameters().items()})
    X, V = points(40, 4).requires_grad_(), points(40, 2).requires_grad_()
    assert not engine.product(kernel, X, X, V).requires_grad
    assert not engine.dense(kernel, X).requires_grad
    found = engine.gradient(kernel, X, X, LowRankWeights(V, V), symmetric=True)
    assert not any(value.requires_grad for value in found.values())


# Difficult points --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STATIONARY)
def test_float32_near_points_far_from_the_origin(engine, name):
    """Lengthscales a thousandth of the range: products and derivatives keep their digits."""
    X = points(20, 4)
    X = torch.cat([X, X + 1e-3 * points(20, 4, seed=1)]).float()
    kernel = ALL[name].replace({"lengthscale": torch.full((4,), 1e-3, dtype=torch.float64)})
    V = points(40, 2, seed=2, dtype=torch.float32)
    expected = reference_block(kernel, X, X)
    assert relative_error(engine.product(kernel, X, X, V), expected @ V.double()) < 1e-5
    assert relative_error(engine.dense(kernel, X), expected) < 1e-5
    assert relative_error(expected, torch.eye(40) * expected[0, 0]) > 0.1  # near points do matter
    found = engine.gradient(kernel, X, X, LowRankWeights(V, V), symmetric=True)
    for key, value in autograd_gradient(
        kernel, lambda k: (reference_block(k, X, X) * (V @ V.T).double()).sum()
    ).items():
        assert relative_error(found[key], value) < 1e-5, key


@pytest.mark.pairs
@pytest.mark.parametrize("far", [1e4, 1e7, 1e20, 1e300])
@pytest.mark.parametrize("name", STATIONARY)
def test_far_points_take_no_digits_from_the_others(engine, name, far):
    """On either side; to the last bits where the path of computation is the same."""
    kernel, near = ALL[name], points(30, 4)
    X = torch.cat([near, torch.full((1, 4), far, dtype=torch.float64)])
    V = points(31, 2, seed=2)
    V[30] = 0.0  # a rational quadratic is not zero at this distance
    expected = reference_block(kernel, near, near)
    assert relative_error(engine.product(kernel, near, X, V), expected @ V[:30]) < 1e-10
    assert relative_error(engine.product(kernel, X, near, V[:30])[:30], expected @ V[:30]) < 1e-10
    assert relative_error(engine.dense(kernel, X)[:30, :30], expected) < 1e-10
    assert relative_error(kernel.block(X, X)[:30, :30], expected) < 1e-10
    centred = X - X.mean(0)  # the control: what the mean of the rows would leave
    assert far < 1e10 or relative_error(reference_block(kernel, centred[:30], centred[:30]), expected) > 1e-10


@pytest.mark.pairs
@pytest.mark.parametrize("far", [0.0, 1e4, 1e6])
@pytest.mark.parametrize("name", STATIONARY)
def test_gradients_of_two_groups_far_apart(engine, name, far):
    """A difference of sums of squared norms would have no digit left at a million lengthscales."""
    kernel, X = ALL[name], points(40, 4)
    X[20:] += far
    L, R = points(40, 3, seed=1), points(40, 3, seed=2)
    expected = autograd_gradient(kernel, lambda k: (reference_block(k, X, X) * (L @ R.T)).sum())
    for weights in (LowRankWeights(L, R), MatrixWeights(L @ R.T)):
        found = engine.gradient(kernel, X, X, weights, symmetric=False)
        for key, value in expected.items():
            assert relative_error(found[key], value) < 1e-7, key


def test_gradients_of_thousands_of_turns_are_fused(engine):
    """Angles are multiplied with each other's waves and never squared, so that they keep their digits for long."""
    kernel, X = Periodic(0.6, 1.3, 7.0).bind(1), torch.linspace(0, 30_000, 60, dtype=torch.float64)[:, None]
    L, R = torch.randn(2, 60, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = autograd_gradient(kernel, lambda k: (reference_block(k, X, X) * (L @ R.T)).sum())
    found = engine.gradient(kernel, X, X, LowRankWeights(L, R), symmetric=False)
    for key, value in expected.items():
        assert relative_error(found[key], value) < 1e-9, key
    assert [compile_kernel(kernel, f * X, f * X, derivatives=True).terms[0].is_apart for f in (1.0, 1e4)] == [
        False,
        True,
    ]


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("alpha", [1e3, 1e6, 1e10, 1e17, 1e300])
def test_a_rational_quadratic_with_a_large_exponent_is_nearly_an_rbf(engine, alpha, dtype):
    """``1 + p`` rounds away what a large exponent multiplies: float32 was off by 5 % at 1e6, by everything at 1e8."""
    X, V = points(60, 4, dtype=dtype), points(60, 2, seed=1, dtype=dtype)
    rbf, kernel = RBF(2.0).bind(4), RationalQuadratic(2.0, alpha=alpha).bind(4)
    found = engine.product(kernel, X, X, V, budget=BUDGET)
    # (1 + q / (2 a))^-a = exp(-q / 2) (1 + q^2 / (8 a) + ...), and q^2 exp(-q / 2) is at most 16 / e^2
    allowed = 0.3 / alpha + 10 * tolerance(dtype)
    expected = reference_block(rbf, X, X) @ V.double()
    assert float((found.double() - expected).abs().max()) < allowed * float(V.double().abs().sum(0).max())
    if alpha == 1e3:  # the control
        assert float((found.double() - expected).abs().max()) > 0.001 * allowed


@pytest.mark.parametrize("apart", [1e-3, 1e-7, 1e-12])
def test_near_points_are_not_taken_for_the_same(engine, apart):
    """Matern-1/2 falls by the distance itself, however small that is."""
    kernel, X = Matern(nu=0.5, lengthscale=1.0).bind(4), points(30, 4)
    X[1] = X[0]
    X[1, 0] += apart
    t = float((X[1, 0] - X[0, 0]).abs())
    expected = 1 - math.exp(-t) if t > 1e-8 else t
    for block in (engine.dense(kernel, X), kernel.block(X, X)):
        assert float(1 - block[0, 1]) == pytest.approx(expected, rel=1e-6, abs=3e-16)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengthscale", [1e-14, 1e14])
@pytest.mark.parametrize("name", STATIONARY)
def test_extreme_lengthscales_stay_finite(engine, name, lengthscale, dtype):
    kernel = ALL[name].replace({"lengthscale": torch.full((4,), lengthscale, dtype=torch.float64)})
    X = points(40, 4, dtype=dtype)
    expected = torch.eye(40, dtype=dtype) if lengthscale < 1 else torch.ones(40, 40, dtype=dtype)
    assert torch.allclose(engine.dense(kernel, X), 1.7 * expected, atol=1e-5)
    assert torch.allclose(
        engine.product(kernel, X, X, torch.ones(40, 1, dtype=dtype)), 1.7 * expected.sum(1, True), atol=1e-4
    )
    found = engine.gradient(kernel, X, X, MatrixWeights(torch.ones(40, 40, dtype=dtype)), symmetric=True)
    assert all(bool(torch.isfinite(value).all()) for value in found.values())


@pytest.mark.parametrize("name", STATIONARY)
def test_duplicate_rows_are_perfectly_correlated(engine, name):
    """To the rounding of squared distances; where a profile has a kink, its root would show, and they are exact."""
    X = (points(20, 4) * 30)[torch.arange(60) % 20]
    largest = float((X / ALL[name].value("lengthscale")).square().sum(1).amax())
    error = 1e-14 if name == "matern12" else 16 * largest * torch.finfo(torch.float64).eps
    assert error < 1e-10
    whole = engine.dense(ALL[name], X)
    assert torch.allclose(whole[:20, 40:].diagonal() / 1.7, torch.ones(20).double(), rtol=0, atol=error)


def test_float32_sums_over_many_tiles_keep_their_digits(engine):
    n = 1000 if engine.slow else 4000
    X = points(n, 1, dtype=torch.float32)
    V = torch.ones(n, 1, dtype=torch.float32) + points(n, 1, seed=1, dtype=torch.float32).abs()
    kernel = RBF(100.0).bind(1)
    exact = reference_block(kernel, X[:5], X) @ V.double()
    assert relative_error(engine.product(kernel, X[:5], X, V), exact) < 2e-7


@pytest.mark.parametrize("dtype", DTYPES)
def test_not_a_number_in_vectors_stays_in_its_column(engine, dtype):
    Z, V = points(21, 4, seed=1, dtype=dtype), points(21, 2, seed=2, dtype=dtype)
    V[4, 1] = float("nan")
    for right in (Z, Z.clone()):
        found = engine.product(ALL["matern32"], Z, right, V)
        assert bool(found[:, 1].isnan().all())
        assert bool(found[:, 0].isfinite().all())


# Algebra -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TWO)
def test_adjoint_identity(engine, name):
    n = 60 if engine.slow else 90
    kernel, X, Z = ALL[name], points(n, 4), points(41, 4, seed=1)
    V, U = points(41, 5, seed=2), points(n, 5, seed=3)
    one, other = (U * engine.product(kernel, X, Z, V)).sum(0), (V * engine.product(kernel, Z, X, U)).sum(0)
    assert torch.allclose(one, other, rtol=0, atol=1e-9)
    W = points(n, 5, seed=4)
    one, other = (U * engine.product(kernel, X, X, W)).sum(0), (W * engine.product(kernel, X, X, U)).sum(0)
    assert torch.allclose(one, other, rtol=0, atol=1e-9)


@pytest.mark.pairs
@pytest.mark.parametrize("s", [1, 17, 65])
@pytest.mark.parametrize("name", TWO)
def test_symmetric_products_are_rectangular_products(engine, name, s):
    n = 60 if engine.slow else 90
    kernel, X, V = ALL[name], points(n, 4), points(n, s, seed=1)
    assert relative_error(engine.product(kernel, X, X, V), engine.product(kernel, X, X.clone(), V)) < 1e-13
    weights = LowRankWeights(V, V)
    short = engine.gradient(kernel, X, X, weights, symmetric=True)
    long = engine.gradient(kernel, X, X.clone(), weights, symmetric=False)
    assert all(relative_error(short[key], long[key]) < 1e-10 for key in long)


def test_the_same_call_gives_the_same_bits(engine):
    kernel, X, V = ALL["nested"], points(130, 4), points(130, 9, seed=1)
    for method, arguments in (("product", (kernel, X, X, V)), ("dense", (kernel, X))):
        first, second = (engine.call(method, *arguments, budget=BUDGET) for _ in range(2))
        assert torch.equal(first, second)
    first, second = (
        engine.gradient(kernel, X[:60], X[:60], LowRankWeights(V[:60], V[:60]), symmetric=True) for _ in range(2)
    )
    assert all(torch.equal(first[key], second[key]) for key in first)


# Memory ------------------------------------------------------------------------------------------------------------


def test_dense_is_refused_before_it_is_allocated(engine):
    X = points(600, 4)
    with pytest.raises(MemoryBudgetError, match="600 by 600 needs 2,880,000 bytes"):
        engine.dense(ALL["rbf"], X, budget=2**20)
    with pytest.raises(MemoryBudgetError, match="600 by 600"):
        engine.dense(ALL["rbf"], X, X.clone(), budget=2**20)


# Bad input ---------------------------------------------------------------------------------------------------------

X8, V8 = points(8, 4), points(8, 2)
IN_ROW_2 = torch.tensor(2), torch.tensor(1)
NAN, INFINITY = (torch.tensor(float(word), dtype=torch.float64) for word in ("nan", "inf"))


@pytest.mark.few(24)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((X8[:, 0], X8, V8), r"X of .* must be .* \(n, d\)"),
        ((X8.index_put(IN_ROW_2, NAN), X8, V8), "X of .* must be finite; got nan in row 2, column 1"),
        ((X8, X8.index_put(IN_ROW_2, -INFINITY), V8), "Z of .* must be finite; got -inf in row 2"),
        ((X8.long(), X8.long(), V8), "float32 or float64"),
        ((X8.half(), X8.half(), V8.half()), "float32 or float64"),
        ((X8.float(), X8, V8), "Z of .* must be torch.float32"),
        ((X8, X8.to("meta"), V8), "Z of .* on cpu"),
        ((X8, X8[:, :3], V8), r"Z of .* \(m, 4\)"),
        ((X8[:, :3], X8[:, :3], V8), "bound to 4 inputs"),
        ((X8, X8, V8.float()), "V of .* must be torch.float64"),
        ((X8, X8, V8.to("meta")), "V of .* on cpu"),
        ((X8, X8, V8[:5]), r"V of .* \(8, s\)"),
        ((X8, X8, V8[:, 0]), r"V of .* \(8, s\)"),
        ((X8, X8, V8.to(torch.complex128)), "V of .* must be torch.float64"),
    ],
)
def test_refused_products(engine, arguments, words):
    if type(engine).__name__ == "OnCuda":
        words = words.replace("cpu", "cuda")
        if any(argument.is_meta for argument in arguments):
            pytest.skip("meta tensors do not travel")
    with pytest.raises(InvalidInputError, match=words):
        engine.product(ALL["matern32"], *arguments)


@pytest.mark.parametrize(
    ("left", "right", "words"),
    [
        (V8[:5], V8, r"weights.left of .* \(8, s\)"),
        (V8, V8[:5], r"weights.right of .* \(8, s\)"),
        (V8, V8[:, :1], "same number of columns"),
        (V8.float(), V8, "weights.left of .* torch.float64"),
        (V8[:, 0], V8, r"weights.left of .* \(8, s\)"),
    ],
)
def test_refused_gradients(engine, left, right, words):
    with pytest.raises(InvalidInputError, match=words):
        engine.gradient(ALL["matern32"], X8, X8, LowRankWeights(left, right), symmetric=False)


@pytest.mark.parametrize("shape", [(8, 5), (5, 8), (8, 8, 1), (8,)])
def test_refused_tiles_of_weights(engine, shape):
    with pytest.raises(InvalidInputError, match=r"weights\(.*\) of .* of shape \(8, 8\); got"):
        engine.gradient(ALL["matern32"], X8, X8, Same(torch.ones(shape).double()), symmetric=False)


def test_an_unbound_kernel_is_refused(engine):
    with pytest.raises(InvalidInputError, match="bind"):
        engine.product(Matern(), X8, X8, V8)
