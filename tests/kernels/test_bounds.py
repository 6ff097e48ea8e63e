"""Bounds on hyperparameters: what is accepted, how they follow the value through units, files and pickles."""

from __future__ import annotations

import json
import pickle

import pytest
import torch

from gigagp import kernels
from gigagp.errors import InvalidInputError
from gigagp.kernels import RBF, Constant, Linear, Matern, Periodic, White, from_dict

EVERY_KERNEL = [
    kernels.RBF,
    kernels.Matern,
    kernels.RationalQuadratic,
    kernels.Periodic,
    kernels.Cosine,
    kernels.Linear,
    kernels.Constant,
    kernels.White,
]

TREE = (
    Matern(1.5, bounds={"lengthscale": ([0.1, None], [10.0, 3.0]), "variance": (None, 0.5)}) * Periodic()
    + White(bounds={"variance": (1e-3, 2.0)})
    + RBF(2.0, bounds={"lengthscale": (0.3, 5)}, fixed=["variance"])
)


@pytest.mark.parametrize("kind", EVERY_KERNEL)
def test_every_kernel_takes_bounds_for_each_of_its_hyperparameters(kind):
    bounds = {name: (0.25, 4.0) for name in kind.shapes}
    bound = kind(bounds=bounds).bind(3)
    assert set(bound.bounds()) == set(bound.parameters())
    for name, value in bound.parameters().items():
        pair = bound.bounds()[name]
        assert pair.lower.shape == pair.upper.shape == value.shape
        assert bool((pair.lower == 0.25).all())
        assert bool((pair.upper == 4.0).all())


@pytest.mark.parametrize("n_inputs", [None, 2])
def test_a_description_keeps_bounds(n_inputs):
    kernel = TREE if n_inputs is None else TREE.bind(n_inputs)
    again = from_dict(json.loads(json.dumps(kernel.to_dict(), allow_nan=False)))
    assert again == kernel
    assert again != from_dict(json.loads(json.dumps(RBF().to_dict())))
    _same_bounds(again.bounds(), kernel.bounds())
    _same_bounds(pickle.loads(pickle.dumps(kernel)).bounds(), kernel.bounds())
    assert repr(eval(repr(kernel), vars(kernels))) == repr(kernel)


def _same_bounds(first, second):
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name].lower, second[name].lower, rtol=0, atol=0)
        torch.testing.assert_close(first[name].upper, second[name].upper, rtol=0, atol=0)


def test_kernels_with_other_bounds_are_unequal():
    assert RBF(1.0, bounds={"lengthscale": (0.1, 10)}) != RBF(1.0, bounds={"lengthscale": (0.1, 11)})
    assert RBF(1.0, bounds={"lengthscale": (0.1, 10)}) != RBF(1.0)


def test_no_bound_is_no_bound():
    assert RBF(1.0).bind(2).bounds() == {}
    pair = RBF(1.0, bounds={"lengthscale": (None, None)}).bind(1).bounds()["lengthscale"]
    assert float(pair.lower) == 0
    assert float(pair.upper) == torch.inf


def test_a_default_outside_of_its_bounds_moves_into_them():
    kernel = RBF(bounds={"lengthscale": ([3.0, None], [4.0, 0.5]), "variance": (2.0, None)}).bind(2)
    assert kernel.lengthscale.tolist() == [3.0, 0.5]
    assert float(kernel.variance) == 2.0


def test_values_and_bounds_move_together_between_units():
    factors = {"0.lengthscale": torch.tensor([1 / 3, 7.7], dtype=torch.float64), "2.variance": torch.tensor(0.1)}
    start = Matern(1.5, [0.7, 0.9], bounds={"lengthscale": ([0.7, 0.1], [1.0, 0.9])}) + Linear() + Constant()
    start = start.bind(2)
    moved = start.multiplied(factors)
    pair, value = moved.bounds()["0.lengthscale"], moved.parameters()["0.lengthscale"]
    torch.testing.assert_close(value, start.parameters()["0.lengthscale"] * factors["0.lengthscale"], rtol=0, atol=0)
    # a value at its bound stays there to the last bit
    assert float(value[0]) == float(pair.lower[0])
    assert float(value[1]) == float(pair.upper[1])
    torch.testing.assert_close(float(moved.parameters()["2.variance"]), 0.1)
    assert start.bounds()["0.lengthscale"].lower.tolist() == [0.7, 0.1]


@pytest.mark.parametrize(
    "bounds",
    [
        {"lengthscale": (3.0, 1.0)},
        {"lengthscale": (1.0, 1.0)},
        {"lengthscale": (-1.0, 2.0)},
        {"lengthscale": (float("nan"), 2.0)},
        {"lengthscale": (float("inf"), None)},
        {"lengthscale": (0.0, 0.0)},
        {"lengthscale": ("a", 2.0)},
        {"lengthscale": ([[0.1]], 2.0)},
        {"lengthscale": ([0.1, 0.2], [1.0, 2.0, 3.0])},
        {"lengthscale": (10**400, None)},
        {"lengthscale": 3.0},
        {"lengthscale": (1.0,)},
        {"lengthscale": "ab"},
        {"variance": ([0.1, 0.2], 3.0)},
        {"length_scale": (0.1, 10.0)},
        (0.1, 10.0),
        "fixed",
    ],
)
def test_other_bounds_are_refused(bounds):
    with pytest.raises(InvalidInputError, match="bounds of RBF"):
        RBF(bounds=bounds)


def test_a_value_outside_of_its_bounds_is_refused():
    with pytest.raises(InvalidInputError, match="lengthscale of RBF must lie within its bounds"):
        RBF(20.0, bounds={"lengthscale": (0.1, 10.0)})
    with pytest.raises(InvalidInputError, match="lengthscale of RBF must lie within its bounds"):
        RBF([1.0, 20.0], bounds={"lengthscale": (0.1, 10.0)})


def test_bounds_for_another_number_of_inputs_are_refused():
    kernel = RBF(1.0, bounds={"lengthscale": ([0.1, 0.2], 10.0)})
    with pytest.raises(InvalidInputError, match="lower bound of lengthscale of RBF must be one number or 3"):
        kernel.bind(3)
