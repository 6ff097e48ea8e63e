"""Products between new points and known ones: the engine's own numbers, and the derivative in the new points."""

from __future__ import annotations

import pytest
import torch

from gigagp.errors import InvalidInputError
from gigagp.products import LowRankWeights, TorchTiles, cross_covariance, cross_product, select
from helpers import DTYPES, all_kernels, generator, largest_tensor, points, reference_block, relative_error, tolerance

ALL = all_kernels()
BUDGET = 2**24


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALL)
def test_they_are_the_engine_s_with_the_derivative_of_the_formula(name, dtype):
    kernel, X, Z, V = ALL[name], points(9, 4, dtype=dtype), points(40, 4, seed=1, dtype=dtype), points(40, 3, seed=2)
    X[4], V = Z[7], V.to(dtype)  # a coincident pair
    engine = select(kernel, X.device, X.dtype)
    for found, expected, slope in (
        (cross_product(kernel, moving := X.clone().requires_grad_(), Z, V, budget=BUDGET), V.double(), points(9, 3)),
        (cross_covariance(kernel, moving, Z, budget=BUDGET), torch.eye(40).double(), points(9, 40)),
    ):
        exact = X.double().clone().requires_grad_()
        value = reference_block(kernel, exact, Z.double()) @ expected
        assert relative_error(found, value) < 10 * tolerance(dtype) or not value.any()
        (by_points,) = torch.autograd.grad(found, moving, slope.to(dtype))
        assert by_points.dtype == dtype
        wanted = torch.zeros(9, 4)
        if value.requires_grad:
            (wanted,) = torch.autograd.grad(value, exact, slope)
        scale = float(wanted.abs().max()) or 1.0
        torch.testing.assert_close(by_points.double(), wanted.double(), rtol=0, atol=100 * scale * tolerance(dtype))
    assert torch.equal(cross_product(kernel, X, Z, V, budget=BUDGET), engine.product(kernel, X, Z, V, budget=BUDGET))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["matern52", "rbf", "decaying period", "constant", "nested"])
def test_second_derivatives(name):
    kernel, X, Z, V = ALL[name], points(4, 4), points(7, 4, seed=1), points(7, 2, seed=2)
    at = X.clone().requires_grad_()
    torch.autograd.gradgradcheck(lambda X: cross_product(kernel, X, Z, V, budget=BUDGET), at)
    torch.autograd.gradgradcheck(lambda X: cross_covariance(kernel, X, Z, budget=BUDGET), at)


def test_torch_func_differentiates_it():
    kernel, X, Z, V = ALL["nested"], points(3, 4), points(7, 4, seed=1), points(7, 2, seed=2)

    def product(X: torch.Tensor) -> torch.Tensor:
        return cross_product(kernel, X, Z, V, budget=BUDGET)

    def formula(X: torch.Tensor) -> torch.Tensor:
        return reference_block(kernel, X, Z) @ V

    torch.testing.assert_close(torch.func.jacrev(product)(X), torch.autograd.functional.jacobian(formula, X))
    slope = torch.func.grad(lambda X: product(X).square().sum())(X)
    torch.testing.assert_close(slope, torch.func.grad(lambda X: formula(X).square().sum())(X))


def test_the_derivative_keeps_to_the_budget_and_tiles_add_up():
    kernel, X, Z, V = ALL["sum"], points(300, 4), points(400, 4, seed=1), points(400, 2, seed=2)
    moving = X.clone().requires_grad_()
    slopes = {}
    for budget in (2**18, 2**26):
        with largest_tensor() as spy:
            found = cross_product(kernel, moving, Z, V, budget=budget)
            (slopes[budget],) = torch.autograd.grad(found.sum(), moving)
        assert spy.elements * 8 <= max(budget, 8 * X.numel() * 2)
    torch.testing.assert_close(slopes[2**18], slopes[2**26])
    weights = LowRankWeights(torch.ones(300, 2).double(), V)
    expected = TorchTiles(tile_bytes=2**12).points_gradient(kernel, X, Z, weights, budget=BUDGET)
    torch.testing.assert_close(slopes[2**26], expected)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, for its forward derivatives
def test_what_is_not_followed_is_refused():
    """The known points and the vectors, and derivatives forwards."""
    kernel, X, Z, V = ALL["rbf"], points(4, 4), points(7, 4, seed=1), points(7, 2, seed=2)
    for name, arguments in (("Z", (Z.clone().requires_grad_(), V)), ("V", (Z, V.clone().requires_grad_()))):
        with pytest.raises(InvalidInputError, match=f"{name} of a product with new points must not require a gradient"):
            cross_product(kernel, X, *arguments, budget=BUDGET)
        with torch.no_grad():
            assert not cross_product(kernel, X, *arguments, budget=BUDGET).requires_grad
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, torch.ones_like(X))
        with pytest.raises(NotImplementedError, match="forward mode AD"):
            cross_product(kernel, dual, Z, V, budget=BUDGET)
    with pytest.raises(RuntimeError, match="does not have vmap support"):
        torch.func.vmap(lambda X: cross_product(kernel, X, Z, V, budget=BUDGET))(X[None])


def test_nothing_is_kept_where_no_gradient_is_wanted():
    kernel, Z, V = ALL["matern32"], points(7, 4, seed=1), points(7, 2, seed=2)
    X = torch.rand(5, 4, generator=generator(0), dtype=torch.float64)
    assert cross_product(kernel, X, Z, V, budget=BUDGET).grad_fn is None
    with torch.no_grad():
        assert cross_product(kernel, X.requires_grad_(), Z, V, budget=BUDGET).grad_fn is None
