"""The model: names, learned hyperparameters, and fixed ones."""

from __future__ import annotations

import pytest
import torch

from gigagp import kernels
from gigagp.errors import InvalidInputError
from gigagp.kernels import RBF, Linear, White
from gigagp.model.means import LinearMean, ZeroMean
from gigagp.model.model import NOISE, Model
from helpers import points

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


AMPLIFIED = {
    "one kernel": kernels.Matern(1.5, [0.5, 2.0], 1.3),
    "a sum": kernels.Matern(0.5, 0.5, 0.7) + kernels.RBF(2.0, 1.1) + kernels.White(0.2),
    "a product": kernels.Periodic(1.0, 0.9, 2.0) * kernels.RBF(1.5, 3.0),
    "a sum of products": kernels.Linear(0.3) * kernels.RBF(1.5) + kernels.Constant(0.4),
    "turned axes": kernels.RBF([2.0, 0.5], metric="rotated", angle=30.0),
    "the sphere": kernels.Matern(0.5, 80.0, metric="haversine"),  # in km, for inputs in degrees
}


@pytest.mark.parametrize("kernel", AMPLIFIED.values(), ids=AMPLIFIED.keys())
def test_an_amplified_model_has_all_its_covariances_multiplied(kernel):
    model = Model(kernel.bind(2), ZeroMean(), torch.tensor(0.3, dtype=torch.float64))
    found = model.amplified(2.5)
    X = points(7, 2)
    assert torch.allclose(found.kernel.block(X, X), 2.5 * model.kernel.block(X, X))
    assert torch.allclose(found.kernel.white(X), 2.5 * model.kernel.white(X))
    assert float(found.noise_variance) == pytest.approx(0.75)
    assert not found.equals(model)
    assert model.amplified(1.0).equals(model)


def test_a_model_with_given_variances_is_not_amplified():
    noise = torch.tensor(0.3, dtype=torch.float64)
    given = kernels.Matern(1.5, 0.5, 1.3, fixed=["variance"]).bind(2)
    assert Model(given, ZeroMean(), noise).amplified(2.0) is None
    learned = kernels.Matern(1.5, 0.5, 1.3).bind(2)
    assert Model(learned, ZeroMean(), noise, noise_is_learned=False).amplified(2.0) is None
    assert Model(learned, ZeroMean(), noise.expand(5).clone()).amplified(2.0) is None
    assert Model((learned + kernels.Constant(0.4, fixed=True)).bind(2), ZeroMean(), noise).amplified(2.0) is None
    assert Model(learned, ZeroMean(), noise).amplified(2.0) is not None  # the control
