"""Values and derivatives of every kernel against textbook formulas and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp.kernels import RBF, Constant, Linear, Matern, Periodic, RationalQuadratic, White
from helpers import DTYPES, all_kernels, autograd_gradient, close, points, reference_block, relative_error, tolerance

ALL = all_kernels()
STATIONARY = ["rbf", "matern12", "matern32", "matern52", "rational quadratic"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALL)
def test_block_agrees_with_the_formula(name, dtype):
    kernel = ALL[name]
    X, Z = points(23, 4, dtype=dtype), points(17, 4, seed=1, dtype=dtype)
    Z[3] = X[5]
    block = kernel.block(X, Z)
    assert block.dtype == dtype
    assert torch.allclose(block.double(), reference_block(kernel, X, Z), rtol=0, atol=tolerance(dtype))
    whole = kernel.block(X, X)
    assert torch.allclose(whole.diagonal(), kernel.diagonal(X), rtol=0, atol=tolerance(dtype))


@pytest.mark.parametrize("name", ALL)
def test_block_is_differentiable_in_the_hyperparameters(name):
    kernel, X, Z = ALL[name], points(11, 4), points(9, 4, seed=1)
    Z[0] = X[0]
    weights = points(11, 9, seed=2)
    if name == "white":
        assert not kernel.block(X, Z).any()
        return
    found = autograd_gradient(kernel, lambda k: (k.block(X, Z) * weights).sum())
    expected = autograd_gradient(kernel, lambda k: (reference_block(k, X, Z) * weights).sum())
    for key, value in expected.items():
        assert torch.allclose(found[key], value, rtol=1e-9, atol=1e-9), key


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALL)
def test_gradients_are_finite_at_coincident_points(name, dtype):
    kernel = ALL[name]
    X = points(3, 4, dtype=dtype)[[0, 0, 1, 1, 2]].requires_grad_()
    values = {key: value.clone().requires_grad_() for key, value in kernel.parameters().items()}
    block = kernel.replace(values).block(X, X.detach())
    if block.requires_grad:
        for gradient in torch.autograd.grad(block.sum(), [X, *values.values()], allow_unused=True):
            assert gradient is None or bool(torch.isfinite(gradient).all())


def test_a_bare_root_would_not_be_finite():
    q = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    t = q.sqrt()
    (gradient,) = torch.autograd.grad(((1 + t) * torch.exp(-t)).sum(), q)
    assert torch.isnan(gradient).all()


@pytest.mark.parametrize(("nu", "curvature"), [(1.5, 3.0), (2.5, 5 / 3)])
def test_second_derivatives_at_coincident_points(nu, curvature):
    """The covariance of derivatives is right where a masked root would say zero."""
    kernel, others = Matern(nu, lengthscale=[1.0, 2.0]).bind(2), points(2, 2, seed=3)

    def covariance(a, b):
        return kernel.block(torch.stack([a, others[0]]), torch.stack([others[1], b]))[0, 1]

    for x in points(5, 2):  # rounding of the distance must not decide
        found = torch.func.jacrev(torch.func.grad(covariance, 0), 1)(x, x)
        assert torch.allclose(found, torch.diag(torch.tensor([curvature, curvature / 4], dtype=torch.float64)))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, on loading its decompositions
@pytest.mark.parametrize("name", [*STATIONARY, "periodic", "nested"])
def test_block_works_under_function_transforms(name):
    kernel, X = ALL[name], points(6, 4)
    key = next(key for key in kernel.parameters() if key.endswith("lengthscale"))
    start = kernel.parameters()[key]

    def block(value):
        return kernel.replace({key: value}).block(X, X)

    many = torch.stack([start, 2 * start])
    assert torch.allclose(torch.vmap(block)(many)[1], block(2 * start))
    reverse, forward = torch.func.jacrev(block)(start), torch.func.jacfwd(block)(start)
    assert torch.allclose(reverse, forward)


@pytest.mark.parametrize("name", STATIONARY)
def test_profile_derivatives(name):
    kernel = ALL[name]
    q = torch.tensor([0.0, 1e-12, 0.01, 0.5, 3.0, 40.0], dtype=torch.float64, requires_grad=True)
    g, slope, by_alpha = kernel.profile_derivatives(q.detach())
    close(kernel.profile(q), g)
    close(kernel.profile_(q.detach() * kernel.distance_factor), g)
    (expected,) = torch.autograd.grad(kernel.profile(q).sum(), q)
    assert torch.allclose(slope, expected, rtol=1e-12, atol=0)
    if name != "rational quadratic":
        assert by_alpha is None
        return
    expected = autograd_gradient(kernel, lambda k: k.profile(q.detach())[2])["alpha"]
    assert torch.allclose(by_alpha[2], expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", STATIONARY)
def test_points_far_apart_have_no_covariance(name, dtype):
    kernel = ALL[name].replace({"lengthscale": torch.full((4,), 1e-12, dtype=torch.float64)})
    X = points(4, 4, dtype=dtype)
    block = kernel.block(X, X)
    assert bool(torch.isfinite(block).all())
    assert torch.allclose(block, 1.7 * torch.eye(4, dtype=dtype), atol=1e-6)


@pytest.mark.parametrize("name", STATIONARY)
def test_float32_is_accurate_for_near_points_far_from_the_origin(name):
    """The squared norms are 1e8 lengthscales here; a float32 matrix product would leave an error of 10 in q."""
    X = points(30, 4)
    X = torch.cat([X, X + 1e-3 * points(30, 4, seed=1)]).float()
    kernel = ALL[name].replace({"lengthscale": torch.full((4,), 1e-3, dtype=torch.float64)})
    assert torch.allclose(kernel.block(X, X).double(), reference_block(kernel, X, X), rtol=0, atol=1e-5)
    scaled = X / 1e-3
    naive = scaled.square().sum(1)[:, None] + scaled.square().sum(1) - 2 * scaled @ scaled.T
    naive = 1.7 * torch.exp(-0.5 * naive.clamp_min(0)).double()
    rbf = ALL["rbf"].replace({"lengthscale": torch.full((4,), 1e-3, dtype=torch.float64)})
    assert float((naive - reference_block(rbf, X, X)).abs().max()) > 1e-2


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RBF([0.7, 1.3, 2.0], 1.7), lambda k: 1.7 * k.RBF([0.7, 1.3, 2.0])),
        (Matern(0.5, [0.7, 1.3, 2.0], 1.7), lambda k: 1.7 * k.Matern([0.7, 1.3, 2.0], nu=0.5)),
        (Matern(1.5, [0.7, 1.3, 2.0], 1.7), lambda k: 1.7 * k.Matern([0.7, 1.3, 2.0], nu=1.5)),
        (Matern(2.5, [0.7, 1.3, 2.0], 1.7), lambda k: 1.7 * k.Matern([0.7, 1.3, 2.0], nu=2.5)),
        (RationalQuadratic(1.3, 1.7, 0.6, ard=False), lambda k: 1.7 * k.RationalQuadratic(1.3, alpha=0.6)),
        (Linear(1.0) + Constant(0.49), lambda k: k.DotProduct(sigma_0=0.7)),
        (RBF(0.9) * Matern(1.5, 1.4) + Constant(0.3), lambda k: k.RBF(0.9) * k.Matern(1.4, nu=1.5) + 0.3),
    ],
)
def test_agreement_with_scikit_learn(ours, theirs):
    from sklearn.gaussian_process import kernels as sklearn_kernels

    X, Z = points(40, 3), points(25, 3, seed=1)
    expected = theirs(sklearn_kernels)(X.numpy(), Z.numpy())
    assert np.allclose(ours.block(X, Z).numpy(), expected, rtol=0, atol=1e-12)


def test_periodic_agrees_with_scikit_learn_in_one_dimension():
    from sklearn.gaussian_process.kernels import ExpSineSquared

    X = points(40, 3)
    expected = 0.6 * ExpSineSquared(length_scale=0.8, periodicity=1.9)(X[:, 1:2].numpy())
    assert np.allclose(Periodic(0.8, 0.6, 1.9, columns=[1]).block(X, X).numpy(), expected, rtol=0, atol=1e-12)


def test_white_lives_on_the_diagonal_only():
    X = points(4, 2)[[0, 0, 1, 2]]
    kernel = (RBF(1.0, 2.0) + White(0.5)).bind(2)
    assert torch.equal(kernel.white(X), torch.full((4,), 0.5, dtype=torch.float64))
    assert float(kernel.block(X, X)[0, 1]) == 2.0  # equal rows are still two rows
    assert not RBF().white(X).any()


def test_white_of_products_follows_the_product_rule():
    X = points(5, 2)
    left, right = RBF(1.0, 2.0) + White(0.5), Linear(0.3) + White(0.7)
    kernel = (left * right).bind(2)
    whole = (left.diagonal(X) + left.white(X)) * (right.diagonal(X) + right.white(X))
    assert torch.allclose(kernel.diagonal(X) + kernel.white(X), whole)
    assert torch.allclose(kernel.diagonal(X), left.diagonal(X) * right.diagonal(X))


def test_relative_error_can_tell():
    assert relative_error(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])) == 0.5
