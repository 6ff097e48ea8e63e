"""The model: names, learned hyperparameters, and fixed ones."""

from __future__ import annotations

import pytest
import torch

from gigagp.errors import InvalidInputError
from gigagp.kernels import RBF, Linear, White
from gigagp.means import LinearMean
from gigagp.model import NOISE, Model

KERNEL = (RBF([1.0, 2.0], 3.0, fixed=["variance"]) + Linear(0.5, ard=False) + White(0.1)).bind(2)
NUMBER = torch.tensor(0.2, dtype=torch.float64)
ROWS = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


def test_names_in_a_fixed_order():
    model = Model(KERNEL, LinearMean(), NUMBER)
    assert list(model.parameters()) == ["0.lengthscale", "0.variance", "1.variance", "2.variance", NOISE]
    assert model.learned_names() == ("0.lengthscale", "1.variance", "2.variance", NOISE)
    assert not model.noise_is_known


def test_known_noise_is_no_hyperparameter():
    model = Model(KERNEL, LinearMean(), ROWS)
    assert model.noise_is_known
    assert NOISE not in model.parameters()
    assert NOISE not in model.learned_names()
    with pytest.raises(InvalidInputError, match="the model has no hyperparameter 'noise_variance'; it has"):
        model.replace({NOISE: NUMBER})


def test_replacing_gives_a_new_model():
    model = Model(KERNEL, LinearMean(), NUMBER)
    moved = model.replace({"1.variance": torch.tensor([9.0]).double(), NOISE: torch.tensor(5.0).double()})
    assert float(moved.parameters()["1.variance"]) == 9
    assert float(moved.noise_variance) == 5
    assert float(model.parameters()["1.variance"]) == 0.5
    assert model.noise_variance is NUMBER
    assert model.replace({}).kernel is model.kernel
    with pytest.raises(InvalidInputError, match="no hyperparameter 'lengthscale'"):
        model.replace({"lengthscale": NUMBER})


def test_rows_take_their_noise_with_them():
    rows = torch.tensor([3, 1])
    assert torch.equal(Model(KERNEL, LinearMean(), ROWS).take_rows(rows).noise_variance, ROWS[rows])
    single = Model(KERNEL, LinearMean(), NUMBER)
    assert single.take_rows(rows) is single
