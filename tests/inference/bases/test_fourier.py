"""Random features by index: the kernel in the mean, no stored features, derivatives."""

from __future__ import annotations

import pytest
import torch

from gigagp.errors import InvalidInputError
from gigagp.inference.quadruply_stochastic.bases import FourierBasis
from gigagp.kernels import RBF, Constant, Leaf, Linear, Matern, Periodic, RationalQuadratic, White
from helpers import all_kernels, autograd_gradient, close, generator, largest_tensor, points, within_standard_errors

X = points(6, 4)
KERNELS = {name: kernel for name, kernel in all_kernels().items() if name != "white"}


def everything(basis):
    return torch.arange(basis.size)


@pytest.mark.each
@pytest.mark.parametrize("name", KERNELS)
def test_the_covariance_is_the_kernel_in_the_mean(name):
    kernel = KERNELS[name]
    exact = kernel.block(X, X)
    draws = []
    for seed in range(150):
        basis = FourierBasis.fitting(kernel, 400, seed)
        features = basis.columns(X, everything(basis))
        draws.append((features / basis.prior_diagonal(everything(basis)).sqrt()) @ features.T)
    draws = torch.stack(draws)
    spread = draws.std(0) / len(draws) ** 0.5 + 1e-9  # constants are exact
    assert float(((draws.mean(0) - exact).abs() / spread).max()) < 4.5
    if name in ("rbf", "matern32"):
        assert not within_standard_errors(draws, KERNELS["matern52"].block(X, X))  # the control
        torch.testing.assert_close(draws[0].diagonal(), kernel.diagonal(X))  # cos^2 + sin^2


@pytest.mark.parametrize("name", KERNELS)
def test_a_column_is_the_same_in_every_block(name):
    basis = FourierBasis.fitting(KERNELS[name], 240, 3)
    whole = basis.columns(X, everything(basis))
    index = torch.tensor([17, 2, 2, basis.size - 1, 0, 100])
    close(basis.columns(X, index), whole[:, index], condition=500)  # phases of places on the sphere are up to 500
    other = FourierBasis.fitting(KERNELS[name], 240, 4).columns(X, index)
    assert name == "constant" or not torch.allclose(other, whole[:, index])


@pytest.mark.slow
def test_only_the_block_is_made():
    basis = FourierBasis(Matern(1.5).bind(4), 10**12)
    index = torch.randint(10**12, (50,), generator=generator(0))
    with largest_tensor() as spy:
        basis.columns(X, index)
    assert spy.elements <= 50 * 6 * 2


@pytest.mark.parametrize("name", ["rbf", "matern32", "rational quadratic", "periodic", "sum", "nested"])
def test_derivatives_in_the_hyperparameters(name):
    kernel = KERNELS[name]
    basis, index = FourierBasis.fitting(kernel, 120), torch.tensor([0, 7, 33, 58, 101])
    weights = torch.randn(6, 5, generator=generator(1), dtype=torch.float64)

    def scalar(kernel):
        return (basis.with_kernel(kernel).columns(X, index) * weights).sum()

    gradient = autograd_gradient(kernel, scalar)
    for key, value in kernel.parameters().items():
        direction = torch.ones_like(value)
        up, down = (scalar(kernel.replace({key: value + h * direction})) for h in (1e-6, -1e-6))
        assert float(up - down) / 2e-6 == pytest.approx(float(gradient[key].sum()), rel=1e-5, abs=1e-7)


def test_float32_follows_float64():
    basis = FourierBasis(Matern(1.5).bind(4), 100)
    narrow = basis.columns(X.float(), everything(basis))
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow.double(), basis.columns(X, everything(basis)), atol=1e-5, rtol=0)


def test_bad_input():
    class Own(Leaf):
        has_spectrum = True
        block = diagonal = None

    for kernel in (White().bind(2), White().bind(2) * Linear().bind(2)):
        with pytest.raises(InvalidInputError, match="a white kernel alone has none"):
            FourierBasis(kernel, 10)
    with pytest.raises(InvalidInputError, match="multiple of 4 for this kernel; got 10"):
        FourierBasis(RBF().bind(2) + Constant().bind(2), 10)
    with pytest.raises(InvalidInputError, match="Own has no random features"):
        FourierBasis(Own({}).bind(2), 10).columns(points(3, 2), torch.tensor([1]))


def test_it_is_made_again_from_its_state():
    for kernel in (RBF().bind(4), Periodic().bind(4) * RationalQuadratic().bind(4)):
        basis = FourierBasis(kernel, 20, 5)
        again = FourierBasis.from_state(kernel, *basis.state())
        assert torch.equal(again.columns(X, everything(basis)), basis.columns(X, everything(basis)))
