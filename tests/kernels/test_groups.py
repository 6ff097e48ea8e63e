"""Kernels whose inputs share lengthscales, in every engine and beside autograd on the dense formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp import kernels
from gigagp.errors import InvalidInputError
from gigagp.kernels import from_dict
from gigagp.operators import KernelMatrix
from gigagp.optimization.fisher import derivative_products
from gigagp.products.native_tiles import NativeTiles
from gigagp.products.torch_tiles import TorchTiles

GROUPS = [0, 1, 1, 1, 2, 2]
MADE = {
    "matern": lambda: kernels.Matern(nu=1.5),
    "matern12": lambda: kernels.Matern(nu=0.5),
    "rational quadratic": lambda: kernels.RationalQuadratic(),
    "periodic": lambda: kernels.Periodic(),
    "linear": lambda: kernels.Linear(),
    "cosine": lambda: kernels.Cosine(period=9.0),
}


def points() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    one_hot = torch.eye(3, dtype=torch.float64)[torch.randint(0, 3, (40,), generator=generator)]
    rest = torch.randn(40, 3, dtype=torch.float64, generator=generator)
    return torch.cat([rest[:, :1], one_hot, rest[:, 1:]], 1)


def grouped(name: str) -> kernels.Kernel:
    kernel = MADE[name]().with_groups(GROUPS).bind(6)
    values = {
        key: value * torch.linspace(0.8, 1.6, value.numel(), dtype=torch.float64).reshape(value.shape)
        for key, value in kernel.parameters().items()
    }
    return kernel.replace(values)


@pytest.mark.parametrize("name", MADE)
def test_values_are_those_with_repeated_lengthscales(name):
    kernel, X = grouped(name), points()
    plain = MADE[name]().bind(6)
    values = {key: value[GROUPS] if value.ndim else value for key, value in kernel.parameters().items()}
    torch.testing.assert_close(kernel.block(X, X), plain.replace(values).block(X, X), rtol=0, atol=0)
    assert from_dict(kernel.to_dict()) == kernel
    assert from_dict(kernel.to_dict()).groups == tuple(GROUPS)


@pytest.mark.parametrize("name", MADE)
def test_gradients_beside_autograd(name):
    kernel, X = grouped(name), points()
    generator = torch.Generator().manual_seed(1)
    L, R = torch.randn(2, 40, 3, dtype=torch.float64, generator=generator)
    found = KernelMatrix(kernel, X).gradient(L, R)
    values = {key: value.clone().requires_grad_() for key, value in kernel.parameters().items()}
    ((L @ R.T) * kernel.replace(values).block(X, X)).sum().backward()
    for key, value in values.items():
        torch.testing.assert_close(found[key], value.grad, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("engine", [TorchTiles, NativeTiles])
def test_engines_agree(engine):
    kernel, X = grouped("matern"), points()
    L, R = X[:, :2].contiguous(), X[:, 2:4].contiguous()

    def weights(rows: slice, columns: slice) -> torch.Tensor:
        return L[rows] @ R[columns].T

    if engine is NativeTiles:
        native = pytest.importorskip("gigagp.products._native")
        assert native is not None
    try:
        found = engine().gradient(kernel, X, X, weights, symmetric=False, budget=2**28)
    except (TypeError, InvalidInputError):
        pytest.skip("the engine takes its weights as factors")
    expected = TorchTiles().gradient(kernel, X, X, weights, symmetric=False, budget=2**28)
    torch.testing.assert_close(found["lengthscale"], expected["lengthscale"], rtol=1e-9, atol=1e-9)


def test_derivatives_of_the_fisher_information():
    kernel, X = grouped("matern"), points()
    vectors = points()[:, :2].contiguous()
    found = derivative_products(kernel, X, vectors)["lengthscale"]
    step = 1e-6
    for group in range(3):
        moved = []
        for sign in (-1, 1):
            value = kernel.value("lengthscale").clone()
            value[group] += sign * step
            moved.append(kernel.replace({"lengthscale": value}).block(X, X) @ vectors)
        torch.testing.assert_close(found[group], (moved[1] - moved[0]) / (2 * step), rtol=1e-5, atol=1e-6)


def test_the_default_lengthscale_counts_groups():
    kernel = kernels.Matern().with_groups(GROUPS).bind(6)
    np.testing.assert_allclose(kernel.value("lengthscale"), 3**0.5)
    assert kernels.Matern().with_groups([0, 1, 2]).groups is None  # one input each


@pytest.mark.parametrize("groups", [[], [1, 0], [0, 2], [0, True], [0, -1], "00", [0.0], [0, [1]]])
def test_wrong_groups_are_refused(groups):
    with pytest.raises(InvalidInputError, match="groups of RBF"):
        kernels.RBF().with_groups(groups)
    with pytest.raises(InvalidInputError, match="groups of RBF"):
        from_dict({"kernel": "RBF", "groups": groups})


def test_groups_must_be_of_these_inputs():
    with pytest.raises(InvalidInputError, match="one number for each of 4 active inputs"):
        kernels.RBF().with_groups(GROUPS).bind(4)
    with pytest.raises(InvalidInputError, match=r"one number or 3 .one for each group"):
        kernels.RBF([1.0, 2.0]).with_groups(GROUPS).bind(6)


def test_random_features_of_the_overlap_kernel():
    X = torch.eye(4, dtype=torch.float64)
    kernel = kernels.Categorical(0.9, columns=[0, 1, 2, 3]).bind(4)
    draw = kernel.draw_features(200_000, 4, torch.Generator().manual_seed(0), law="joint")
    features = kernel.features(X, draw)
    torch.testing.assert_close(features @ features.T, kernel.block(X, X), rtol=0, atol=0.015)
