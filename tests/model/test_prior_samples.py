"""Prior functions: their law, their blocks, and their dependence on the hyperparameters."""

from __future__ import annotations

import pytest
import torch

from gigagp import kernels
from gigagp.model.prior_samples import PriorSamples
from helpers import all_kernels, close, generator, largest_tensor, points, within_standard_errors

ALL = {name: kernel for name, kernel in all_kernels().items() if name != "white"}
X = points(7, 4)
BUDGET = 2**30


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ALL)
def test_they_have_the_covariance_of_the_prior(name):
    """The mean is over features and weights, so that any number of features will do."""
    kernel = ALL[name]
    products = []
    for seed in range(400):
        values = PriorSamples.new(kernel, 4, 6, 40, generator(seed)).evaluate(kernel, X, BUDGET)
        products.append(values @ values.T / 6)
    products = torch.stack(products)
    assert within_standard_errors(products, kernel.block(X, X), errors=4.5)
    assert not within_standard_errors(products, 1.3 * kernel.block(X, X), errors=4.5)


@pytest.mark.parametrize("n_samples", [1, 3])
@pytest.mark.parametrize("name", ALL)
def test_they_are_features_times_weights(name, n_samples):
    kernel = ALL[name]
    samples = PriorSamples.new(kernel, 4, n_samples, 60, generator(2))
    slopes = torch.randn(7, n_samples, generator=generator(3), dtype=torch.float64)

    def both(of):
        moving = X.clone().requires_grad_()
        values = of(moving) + 0 * moving.sum()  # a constant has no graph
        (slope,) = torch.autograd.grad((values * slopes).sum(), moving, materialize_grads=True)
        return values.detach(), slope

    found = both(lambda X: samples.evaluate(kernel, X, BUDGET))
    for mine, other in zip(found, both(lambda X: kernel.features(X, samples.draw) @ samples.weights), strict=True):
        # a phase of 1e9, as Matern 1/2 has, is known to 1e-7
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6 * (1 + float(other.abs().max())))
    one = samples.evaluate(kernel, X[:1], BUDGET)
    torch.testing.assert_close(one, found[0][:1], rtol=0, atol=1e-6 * (1 + float(one.abs().max())))


def test_samples_are_independent_given_the_features():
    values = PriorSamples.new(ALL["rbf"], 4, 4000, 200, generator(1)).evaluate(ALL["rbf"], X, BUDGET)
    assert within_standard_errors((values[:, ::2] * values[:, 1::2]).T, 0.0)


@pytest.mark.slow
def test_blocks_change_nothing_and_keep_to_the_budget():
    kernel, many = ALL["nested"], points(3000, 4, seed=2)
    samples = PriorSamples.new(kernel, 4, 3, 100, generator())
    whole = samples.evaluate(kernel, many, BUDGET)
    with largest_tensor() as spy:
        blocks = samples.evaluate(kernel, many, 2**20)
    close(blocks, whole, condition=1e8)  # the largest phase, of Matern 1/2
    assert spy.elements * 8 <= 2**20


def test_the_same_functions_everywhere_and_at_all_hyperparameters():
    kernel = ALL["matern32"]
    samples = PriorSamples.new(kernel, 4, 3, 100, generator())
    together = samples.evaluate(kernel, X, BUDGET)
    torch.testing.assert_close(samples.evaluate(kernel, X[2:4], BUDGET), together[2:4])
    # Stretching inputs and lengthscales alike gives the same function; four times the variance doubles the function.
    values = kernel.parameters()
    stretched = kernel.replace({"lengthscale": 3 * values["lengthscale"], "variance": 4 * values["variance"]})
    torch.testing.assert_close(samples.evaluate(stretched, 3 * X, BUDGET), 2 * together)


def test_dtypes_and_noise_alone():
    single = PriorSamples.new(ALL["rbf"], 4, 3, 100, generator()).evaluate(ALL["rbf"], X.float(), BUDGET)
    assert single.dtype == torch.float32
    white = kernels.White(0.5).bind(4)
    assert not PriorSamples.new(white, 4, 3, 100, generator()).evaluate(white, X, BUDGET).any()
