"""Variances that differ from place to place: their values, all engines, and noise and functions that have them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from scipy.interpolate import RegularGridInterpolator

from gigagp import GPRegressor, inference, kernels
from gigagp.errors import InvalidInputError
from gigagp.kernels.units import Units
from gigagp.neighbours.conditionals import Pool
from gigagp.optimization.fisher import _by_differentiation, _product, derivative_products
from gigagp.products import NativeTiles, TorchTiles
from gigagp.products.engine import LowRankWeights

KNOTS = [[0.0, 0.4, 3.0], [-1.0, 2.0]]
LOGS = [[-0.8, 0.3], [0.5, -0.2], [0.1, 1.1]]
POINTS = [[0.0, 0.0], [2.0, 1.0], [-1.0, 0.5]]
VARIANCE = [0.3, 2.0, 0.1]


def local(**settings: object) -> kernels.LocalVariance:
    return kernels.LocalVariance(POINTS, 0.8, VARIANCE, **settings)  # type: ignore[arg-type]


def mapped(**settings: object) -> kernels.ScaleMap:
    return kernels.ScaleMap(KNOTS, LOGS, **settings)  # type: ignore[arg-type]


def rows(n: int, seed: int = 0) -> torch.Tensor:
    """Return clumped and far inputs, some of them twice."""
    draw = np.random.default_rng(seed)
    X = np.exp(draw.normal(size=(n, 2)))
    X[: n // 5] = X[n // 5 : 2 * (n // 5)]
    return torch.from_numpy(X)


def by_hand(X: np.ndarray) -> np.ndarray:
    """Return the variance at every row."""
    squared = ((X[:, None] - np.array(POINTS)) ** 2).sum(2) / 0.8**2
    weights = np.exp(-0.5 * (squared - squared.min(1, keepdims=True)))
    return np.exp((weights / weights.sum(1, keepdims=True)) @ np.log(VARIANCE))


def test_the_variance_is_a_mean_of_those_at_the_points():
    X, kernel = rows(40), local().bind(2)
    v = by_hand(X.numpy())
    np.testing.assert_allclose(kernel.diagonal(X), v, rtol=1e-12)
    np.testing.assert_allclose(kernel.block(X, X), np.sqrt(np.outer(v, v)), rtol=1e-12)
    np.testing.assert_allclose((kernels.White(0.5) * local()).bind(2).white(X), 0.5 * v, rtol=1e-12)
    far = torch.tensor([[1e9, 5e8]]).double()
    np.testing.assert_allclose(kernel.diagonal(far), VARIANCE[1], rtol=1e-12)  # that of the nearest point
    assert v.max() / v.min() > 3  # the control


def test_a_map_is_linear_between_its_knots():
    X, kernel = rows(40), mapped().bind(2)
    inside = np.clip(X.numpy(), [KNOTS[0][0], KNOTS[1][0]], [KNOTS[0][-1], KNOTS[1][-1]])
    s = np.exp(RegularGridInterpolator(KNOTS, np.array(LOGS))(inside))
    np.testing.assert_allclose(kernel.scale(X)[:, 0], s, rtol=1e-12)
    np.testing.assert_allclose(kernel.block(X, X), np.outer(s, s), rtol=1e-12)
    corners = torch.tensor([[-1e9, -1e9], [1e9, 1e9], [0.4, 2.0]]).double()
    np.testing.assert_allclose(kernel.scale(corners)[:, 0].log(), [LOGS[0][0], LOGS[2][1], LOGS[1][1]], atol=1e-15)
    assert s.max() / s.min() > 2  # the control
    turned = kernels.ScaleMap(KNOTS[::-1], np.transpose(LOGS), columns=[1, 0]).bind(2)
    torch.testing.assert_close(turned.scale(X), kernel.scale(X), rtol=1e-13, atol=0)
    of_one = kernels.ScaleMap([[5.0]], [0.7], columns=[1]).bind(2)
    np.testing.assert_allclose(of_one.scale(X), np.exp(0.7), rtol=1e-12)


def test_the_slope_of_a_map_along_the_inputs():
    X = torch.tensor([[0.2, 0.3], [1.1, 1.9], [9.0, 0.5]]).double().requires_grad_()
    kernel = mapped().bind(2)
    assert torch.autograd.gradcheck(kernel.scale, X)
    (slope,) = torch.autograd.grad(kernel.scale(X).sum(), X)
    assert slope[2, 0] == 0  # beyond the knots
    assert (slope[:2] != 0).all()


def test_batches_of_torch_have_the_conditionals_of_compiled_code():
    X, kernel = rows(40), (mapped() * (kernels.RBF(1.2) + kernels.White(0.1))).bind(2)
    neighbours = torch.stack([torch.arange(k - 5, k) for k in range(40)]).clamp_min(-1).int()
    y, noise = X.sin().sum(1, keepdim=True), kernel.white(X) + 0.05
    one, other = (Pool(kernel, X, noise, engine=engine) for engine in ("torch", "native"))
    found, wanted = (pool.conditionals(torch.arange(40), neighbours, y) for pool in (one, other))
    torch.testing.assert_close(found.variance, wanted.variance, rtol=1e-9, atol=0)
    torch.testing.assert_close(found.residual, wanted.residual, rtol=1e-7, atol=1e-9)
    found, wanted = (pool.derivatives(torch.arange(40), neighbours, y).gradient for pool in (one, other))
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-8)


PRODUCTS = [
    local() * (kernels.RBF([1.0, 2.0], fixed=["variance"]) + kernels.White(0.1)),
    kernels.Matern(1.5, [1.0, 2.0]) * kernels.Periodic(3.0) * local() + kernels.Constant(0.2),
    kernels.White(1.2) * local() + kernels.RBF(),
    local() * local(columns=[1, 0]),
    (kernels.Matern(2.5, [1.0, 2.0]) + kernels.White(0.1)) * mapped() + kernels.Constant(0.2),
    kernels.White(1.2) * mapped() + kernels.RBF() * mapped(columns=[1, 0]),
]
NAMES = ["scale", "three factors", "noise", "twice", "map of a scale", "maps of noise and function"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("engine", [TorchTiles(), NativeTiles()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("kernel", PRODUCTS, ids=NAMES)
def test_engines_compute_the_matrix_and_its_gradient(kernel, engine, dtype):
    kernel, X, Z = kernel.bind(2), rows(50), rows(37, 1)
    generator, eps = torch.Generator().manual_seed(0), torch.finfo(dtype).eps
    V, L, R = (torch.randn(n, 2, generator=generator, dtype=torch.float64) for n in (37, 50, 50))
    found = engine.product(kernel, X.to(dtype), Z.to(dtype), V.to(dtype), budget=2**30)
    size = float((kernel.block(X, Z).abs() @ V.abs()).max())
    assert float((found.double() - kernel.block(X, Z) @ V).abs().max()) < 100 * eps * size
    weights = LowRankWeights(L.to(dtype), R.to(dtype))
    found = engine.gradient(kernel, X.to(dtype), X.to(dtype), weights, symmetric=False, budget=2**30)
    values = {name: value.clone().requires_grad_() for name, value in kernel.parameters().items()}
    (L * (kernel.replace(values).block(X, X) @ R)).sum().backward()
    size = float((L.abs() * (kernel.block(X, X).abs() @ R.abs())).sum())
    for name, value in values.items():
        wanted = torch.zeros_like(value) if value.grad is None else value.grad
        assert float((found[name] - wanted).abs().max()) < 100 * eps * size, name


@pytest.mark.parametrize("kernel", PRODUCTS, ids=NAMES)
def test_derivatives_times_vectors_are_those_by_differentiation(kernel):
    kernel, X = kernel.bind(2), rows(30)
    vectors = torch.randn(30, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = derivative_products(kernel, X, vectors)
    wanted = _by_differentiation(kernel, vectors, lambda moved: _product(moved, X, vectors, None))
    assert found.keys() == wanted.keys() == kernel.parameters().keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-10)


def test_random_features_have_the_covariance():
    X, generator = rows(30), torch.Generator().manual_seed(0)
    alone = local().bind(2)
    phi = alone.features(X, alone.draw_features(2, 2, generator))
    torch.testing.assert_close(phi @ phi.T, alone.block(X, X), rtol=1e-12, atol=1e-14)
    for scale in (local(), mapped()):
        kernel = (scale * kernels.RBF(1.3)).bind(2)
        phi = kernel.features(X, kernel.draw_features(40_000, 2, generator))
        size = float(kernel.diagonal(X).max())
        assert float((phi @ phi.T - kernel.block(X, X)).abs().max()) < 0.1 * max(size, 1.0)  # some five standard errors


@pytest.mark.parametrize("scale", [local(), mapped()], ids=["points", "map"])
def test_files_copies_and_units(scale):
    kernel = (kernels.RBF(fixed=["variance"] if scale.shapes else []) * scale).bind(2)
    for other in (kernels.from_dict(kernel.to_dict()), pickle.loads(pickle.dumps(kernel))):
        assert other == kernel
    units = Units(torch.tensor([10.0, -3.0]).double(), torch.tensor([4.0, 0.1]).double(), 25.0)
    X = rows(20)
    inside = kernel.standardized(units)
    found = inside.block((X - units.centre) / units.scale, (X - units.centre) / units.scale)
    torch.testing.assert_close(25.0 * found, kernel.block(X, X), rtol=1e-10, atol=1e-12)
    back = inside.in_own_units(units)
    torch.testing.assert_close(back.block(X, X), kernel.block(X, X), rtol=1e-10, atol=1e-12)
    again = kernels.from_dict(inside.to_dict())
    assert again == inside
    assert torch.equal(again.block(X, X), inside.block(X, X))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: kernels.LocalVariance([0.0, 1.0], 1.0), r"shape \(m, inputs\)"),
        (lambda: kernels.LocalVariance([], 1.0), r"shape \(m, inputs\)"),
        (lambda: kernels.LocalVariance([[0.0, np.nan]], 1.0), "must be finite"),
        (lambda: kernels.LocalVariance([["a"]], 1.0), "must be numbers"),
        (lambda: kernels.LocalVariance([[0.0]], 0.0), "a positive number"),
        (lambda: kernels.LocalVariance([[0.0, 1.0]], [1.0, 1.0, 1.0]), "or 2 of them"),
        (lambda: kernels.LocalVariance([[0.0]], 1.0, columns=[0, 1]), "2 columns and 1 coordinates"),
        (lambda: kernels.LocalVariance([[0.0]], 1.0).bind(2), "each of 2 inputs; got 1"),
        (lambda: kernels.LocalVariance([[0.0]], 1.0, [1.0, 2.0]).bind(1), "one for each point"),
        (lambda: kernels.LocalVariance([[0.0]], 1.0, -1.0), "positive and finite"),
        (lambda: kernels.ScaleMap([[0.0, 0.0]], [1.0, 1.0]), "ascending numbers"),
        (lambda: kernels.ScaleMap([], 1.0), "ascending numbers"),
        (lambda: kernels.ScaleMap([["a"]], [1.0]), "must be numbers"),
        (lambda: kernels.ScaleMap([[0.0]], [np.inf]), "must be finite"),
        (lambda: kernels.ScaleMap([[0.0, 1.0]], [1.0]), r"must have shape \(2,\)"),
        (lambda: kernels.ScaleMap([[0.0]], [1.0], columns=[0, 1]), "2 columns and 1 lists"),
        (lambda: mapped().bind(3), "each of 3 inputs; got 2"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(InvalidInputError, match=words):
        make()


@pytest.mark.pairs
@pytest.mark.parametrize("kernel", [PRODUCTS[k] for k in (0, 2, 4, 5)], ids=[NAMES[k] for k in (0, 2, 4, 5)])
@pytest.mark.parametrize(
    "method",
    [
        inference.Exact(),
        inference.Vecchia(n_neighbors=39, prediction_neighbors=40),
        inference.ComputationAware(40),
    ],
    ids=lambda one: one.label,
)
def test_inference_is_that_of_the_dense_matrix(kernel, method):
    X, new = rows(40).numpy(), rows(7, 3).numpy()
    y = np.random.default_rng(1).normal(size=40)
    gp = GPRegressor(kernel, method, optimizer=None, noise_variance=0.05, mean="zero", standardize=False).fit(X, y)
    bound = kernel.bind(2)
    K, k, own = (
        bound.block(torch.from_numpy(a), torch.from_numpy(b)).numpy() for a, b in ((X, X), (new, X), (new, new))
    )
    H = K + np.diag(bound.white(torch.from_numpy(X)).numpy() + 0.05)
    mean, covariance = k @ np.linalg.solve(H, y), own - k @ np.linalg.solve(H, k.T)
    noise = bound.white(torch.from_numpy(new)).numpy() + 0.05
    rounding = 1e3 * np.linalg.cond(H) * np.finfo(float).eps
    found, std = gp.predict(new, return_std=True, include_noise=True)
    np.testing.assert_allclose(found, mean, atol=rounding)
    np.testing.assert_allclose(std**2, np.diag(covariance) + noise, atol=rounding)
    np.testing.assert_allclose(gp.predict(new, return_cov=True)[1], covariance, atol=rounding)
    wanted = -0.5 * (y @ np.linalg.solve(H, y) + np.linalg.slogdet(H)[1] + 40 * np.log(2 * np.pi))
    np.testing.assert_allclose(gp.log_marginal_likelihood().value, wanted, rtol=rounding)
    assert np.ptp(noise) > 0.1 or kernel is PRODUCTS[0]  # the control: noise does vary


def test_states_leave_noise_to_the_rows():
    """With one input, `Markov` takes noise of any kind, and equals exact inference."""
    draw = np.random.default_rng(0)
    x = np.sort(draw.uniform(0, 10, 60))[:, None]
    y = np.sin(x[:, 0]) + draw.normal(size=60) * np.where(x[:, 0] > 5, 0.5, 0.05)
    kernel = kernels.Matern(1.5, 2.0) + kernels.White(fixed=True) * kernels.LocalVariance([[2.0], [8.0]], 2.0)
    one, other = (GPRegressor(kernel, method).fit(x, y) for method in (inference.Exact(), inference.Markov()))
    for found, wanted in zip(
        other.predict(x, return_std=True, include_noise=True),
        one.predict(x, return_std=True, include_noise=True),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    low, high = one.kernel_.parts[1].parts[1].variance
    assert high > 10 * low
