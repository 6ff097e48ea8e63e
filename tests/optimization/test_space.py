"""The unconstrained vector: round trips, extreme values and the chain rule."""

from __future__ import annotations

import pytest
import torch

from gigagp.errors import InvalidInputError
from gigagp.kernels import RBF, Linear, Matern, Periodic, RationalQuadratic, White
from gigagp.model.means import ZeroMean
from gigagp.model.model import NOISE, Model
from gigagp.optimization import ParameterSpace
from helpers import generator

KERNEL = (RBF([0.3, 2.0], 1.7, fixed=["variance"]) * Periodic(1.1, 0.7, [2.0, 3.0]) + RationalQuadratic(2.0)).bind(2)


def model_of(kernel=KERNEL, noise=0.02):
    return Model(kernel, ZeroMean(), torch.as_tensor(noise, dtype=torch.float64))


@pytest.mark.parametrize("transform", ["softplus", "log"])
def test_round_trip(transform):
    model = model_of()
    space = ParameterSpace(model, transform)
    vector = space.encode(model)
    assert vector.shape == (space.size,) == (len(space.labels),)
    for name, value in space.decode(vector).parameters().items():
        torch.testing.assert_close(value, model.parameters()[name], rtol=1e-13, atol=0)
    moved = vector + torch.randn(space.size, generator=generator(), dtype=torch.float64)
    torch.testing.assert_close(space.encode(space.decode(moved)), moved, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("transform", ["softplus", "log"])
@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 1e3, 1e12])
def test_extremes_neither_overflow_nor_vanish(transform, scale):
    model = model_of(Matern(1.5, scale, scale**2).bind(2), scale**2)
    space = ParameterSpace(model, transform)
    vector = space.encode(model)
    assert bool(torch.isfinite(vector).all())
    assert bool((space.jacobian(vector) > 0).all())
    for name, value in space.decode(vector).parameters().items():
        torch.testing.assert_close(value, model.parameters()[name], rtol=1e-10, atol=0)


def test_variances_move_as_standard_deviations():
    space = ParameterSpace(model_of((Linear(4.0) + White(0.25)).bind(2), 9.0), "log")
    assert space.names == ("0.variance", "1.variance", NOISE)
    assert space.labels == ("0.variance[0]", "0.variance[1]", "1.variance", NOISE)
    expected = torch.tensor([2.0, 2.0, 0.5, 3.0], dtype=torch.float64).log()
    torch.testing.assert_close(space.encode(space.template), expected)
    softplus = ParameterSpace(space.template, "softplus")
    torch.testing.assert_close(
        torch.nn.functional.softplus(softplus.encode(space.template)), torch.tensor([2, 2, 0.5, 3]).double()
    )


@pytest.mark.parametrize("transform", ["softplus", "log"])
def test_the_chain_rule_agrees_with_finite_differences(transform):
    model = model_of()
    space = ParameterSpace(model, transform)
    vector = space.encode(model)

    def function(vector):
        """Return a smooth function of the natural hyperparameters."""
        return sum(((k + 1) * value.sin()).sum() for k, value in enumerate(space.decode(vector).parameters().values()))

    natural = {name: (k + 1) * value.cos() for k, (name, value) in enumerate(model.parameters().items())}
    step = 1e-6
    differences = [
        (function(vector + step * unit) - function(vector - step * unit)) / (2 * step) for unit in torch.eye(space.size)
    ]
    torch.testing.assert_close(space.pull_back(natural, vector), torch.stack(differences), rtol=1e-7, atol=1e-8)
    assert not torch.allclose(space.flatten(natural), torch.stack(differences), rtol=1e-2)  # control: no chain rule


def test_fixed_values_and_known_noise_stay_out():
    space = ParameterSpace(model_of(noise=[0.1, 0.2, 0.3]), "log")
    assert NOISE not in space.names
    assert "0.0.variance" not in space.names
    moved = space.decode(space.encode(space.template) + 1)
    assert float(moved.kernel.parameters()["0.0.variance"]) == 1.7
    assert torch.equal(moved.noise_variance, space.template.noise_variance)


def test_nothing_to_learn_is_an_empty_vector():
    space = ParameterSpace(model_of(RBF(1.0, fixed=True).bind(2), [0.1]), "log")
    assert space.size == 0
    assert space.encode(space.template).shape == (0,)
    assert space.pull_back({}, torch.zeros(0)).shape == (0,)
    assert space.decode(torch.zeros(0)).kernel == space.template.kernel


def test_unknown_transforms_are_refused():
    with pytest.raises(InvalidInputError, match='transform of ParameterSpace must be "softplus" or "log"'):
        ParameterSpace(model_of(), "square")
