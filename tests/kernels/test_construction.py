"""Kernels as values: binding, parameters, replacing, text, descriptions, refusals."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch

from gigagp import kernels
from gigagp.errors import InvalidInputError
from gigagp.kernels import RBF, Constant, Linear, Matern, Periodic, Product, RationalQuadratic, Sum, White
from helpers import all_kernels, points

ALL = all_kernels()


def test_bind_fills_defaults():
    kernel = Matern(nu=1.5).bind(9)
    assert kernel.lengthscale.tolist() == [3.0] * 9
    assert kernel.variance.shape == ()
    assert float(kernel.variance) == 1.0
    assert RationalQuadratic(columns=[0, 2, 3, 4]).bind(5).parameters()["lengthscale"].tolist() == [2.0] * 4
    assert RBF(ard=False).bind(4).lengthscale.tolist() == [2.0]
    assert all(value.dtype == torch.float64 for value in kernel.parameters().values())


def test_bind_repeats_single_numbers_and_is_idempotent():
    kernel = RBF(lengthscale=0.5).bind(3)
    assert kernel.lengthscale.tolist() == [0.5] * 3
    assert kernel.bind(3) is kernel
    whole = (kernel + White()).bind(3)
    assert whole.bind(3) is whole


def test_binding_leaves_the_unbound_kernel_alone():
    kernel = RBF()
    kernel.bind(3)
    assert kernel.lengthscale is None
    assert kernel.n_inputs is None


def test_changing_the_callers_array_does_not_change_the_kernel():
    lengthscale = np.array([1.0, 2.0])
    kernel = RBF(lengthscale=lengthscale)
    lengthscale[:] = -1
    assert kernel.lengthscale.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RBF(lengthscale=0.0), "lengthscale of RBF must be positive"),
        (lambda: RBF(lengthscale=[1.0, float("nan")]), "lengthscale of RBF must be positive and finite"),
        (lambda: RBF(variance=-1.0), "variance of RBF"),
        (lambda: RBF(variance=[1.0, 2.0]), "variance of RBF must be one number"),
        (lambda: RBF(lengthscale=[[1.0]]), "shape"),
        (lambda: RBF(lengthscale="long"), "must be a number"),
        (lambda: RBF(lengthscale=[]), "lengthscale of RBF"),
        (lambda: Matern(nu=2.0), "nu of Matern must be 0.5, 1.5 or 2.5; got 2.0"),
        (lambda: RBF(columns=[0, 0]), "columns of RBF"),
        (lambda: RBF(columns=[-1]), "columns of RBF"),
        (lambda: RBF(columns=["a"]), "columns of RBF"),
        (lambda: RBF(fixed=("scale",)), "fixed of RBF"),
        (lambda: RBF(lengthscale=[1.0, 2.0]).bind(3), "must be one number or 3"),
        (lambda: RBF(lengthscale=[1.0, 2.0], ard=False).bind(2), "ard=False"),
        (lambda: RBF(columns=[3]).bind(3), "below 3"),
        (lambda: RBF().bind(2).bind(3), "bound to data with 2 columns"),
        (lambda: RBF().parameters(), "not bound"),
        (lambda: Sum(), "at least one part"),
        (lambda: Sum(RBF(), "RBF"), "must be a kernel or a number"),
        (lambda: RBF() + (-1.0), "variance of Constant"),
        (lambda: RBF().bind(2).replace({"length": torch.ones(2)}), "has the hyperparameters"),
        (lambda: RBF().bind(2).replace({"lengthscale": torch.ones(3)}), "shape"),
        (lambda: (RBF() + White()).bind(2).replace({"2.variance": torch.ones(())}), "is not a hyperparameter"),
        (lambda: (RBF() + White()).bind(2).replace({"variance": torch.ones(())}), "is not a hyperparameter"),
    ],
)
def test_refusals_name_the_argument(make, words):
    with pytest.raises(InvalidInputError, match=words):
        make()


def test_adding_something_else_is_a_type_error():
    with pytest.raises(TypeError):
        RBF() + "RBF"
    with pytest.raises(TypeError):
        "RBF" * RBF()


def test_parameter_names_of_trees():
    kernel = (Matern() + Linear() * (RBF() + White())).bind(2)
    names = ["0.lengthscale", "0.variance", "1.0.variance", "1.1.0.lengthscale", "1.1.0.variance", "1.1.1.variance"]
    assert list(kernel.parameters()) == names


def test_sums_and_products_are_flat():
    assert len((RBF() + Matern() + White()).parts) == 3
    assert len((RBF() * (Matern() * Constant())).parts) == 3
    assert isinstance((RBF() + Matern()) * Constant(), Product)


def test_fixed_parameters():
    assert RBF(fixed=True).fixed_parameters() == {"lengthscale", "variance"}
    assert RBF(fixed="variance").fixed_parameters() == {"variance"}
    assert RBF(fixed=False).fixed_parameters() == frozenset()
    # a number in an expression is meant as it stands
    assert (2.0 * RBF()).fixed_parameters() == {"0.variance"}
    assert (RBF() + White(fixed=True)).bind(2).fixed_parameters() == {"1.variance"}


@pytest.mark.parametrize("name", ALL)
def test_replace_keeps_tensors_and_structure(name):
    kernel = ALL[name]
    values = {key: (value * 1.5).requires_grad_() for key, value in kernel.parameters().items()}
    other = kernel.replace(values)
    assert all(other.parameters()[key] is values[key] for key in values)
    assert other != kernel
    assert other.replace(kernel.parameters()) == kernel
    assert other.fixed_parameters() == kernel.fixed_parameters()


@pytest.mark.parametrize("name", ALL)
def test_text_and_description_give_the_kernel_back(name):
    kernel = ALL[name]
    scope = {cls.__name__: cls for cls in (RBF, Matern, RationalQuadratic, Periodic, Linear, Constant, White)}
    assert eval(repr(kernel), scope).bind(4) == kernel
    assert kernels.from_dict(json.loads(json.dumps(kernel.to_dict()))) == kernel
    assert copy.deepcopy(kernel) == kernel


def test_descriptions_of_unbound_kernels():
    kernel = Matern(2.5, variance=0.3, columns=[1], fixed=True) + White()
    assert kernels.from_dict(kernel.to_dict()) == kernel
    assert kernels.from_dict(kernel.to_dict()).n_inputs is None


@pytest.mark.parametrize(
    "description",
    [
        {},
        {"kernel": "os.system"},
        {"kernel": "RBF", "command": "x"},
        {"kernel": "Sum"},
        {"kernel": "RBF", "variance": -1},
    ],
)
def test_damaged_descriptions_are_refused(description):
    with pytest.raises(InvalidInputError):
        kernels.from_dict(description)


def test_equality_looks_at_values_and_settings():
    assert RBF(1.0) == RBF(1.0)
    assert RBF(1.0) != RBF(2.0)
    assert RBF(1.0) != RBF(1.0, fixed=True)
    assert RBF(1.0) != Matern(lengthscale=1.0)
    assert Matern(1.5) != Matern(2.5)
    assert RBF() + White() != White() + RBF()
    assert RBF() != 1.0


def test_unbound_kernels_bind_on_the_way():
    X = points(5, 3)
    assert torch.equal(RBF().block(X, X), RBF().bind(3).block(X, X))
    assert torch.equal((RBF() + 1.0).diagonal(X), torch.full((5,), 2.0, dtype=torch.float64))


def test_a_kernel_of_your_own():
    class Cosine(kernels.Leaf):
        shapes = {"variance": False, "frequency": True}  # noqa: RUF012

        def __init__(self, variance=None, frequency=None):
            super().__init__({"variance": variance, "frequency": frequency})

        def block(self, X, Z):
            kernel = self.bind(X.shape[1])
            phase = kernel.value("frequency", X)
            return kernel.value("variance", X) * torch.cos((X @ phase)[:, None] - (Z @ phase)[None, :])

        def diagonal(self, X):
            return self.bind(X.shape[1]).value("variance", X).expand(X.shape[0])

    X = points(6, 2)
    kernel = (Cosine() * RBF()).bind(2)
    assert list(kernel.parameters()) == ["0.variance", "0.frequency", "1.lengthscale", "1.variance"]
    assert torch.allclose(kernel.block(X, X).diagonal(), kernel.diagonal(X))
    assert not kernel.has_features()
    with pytest.raises(InvalidInputError, match=r"features of \['Cosine'\]"):
        kernel.draw_features(10, 2, torch.Generator())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RBF().bind(2).bind(3), "is bound to data with 2 columns; got 3"),
        (lambda: RBF().bind(0), "needs data with at least one column; got 0"),
        (lambda: RBF().n_active, "is not bound to data yet"),
        (lambda: RBF().bind(2).with_input_weights([1.0]), "input_weights of RBF must be 2 positive numbers"),
        (lambda: RBF().bind(2).with_input_weights([1.0, 0.0]), "input_weights of RBF must be 2 positive numbers"),
        (lambda: RBF().bind(1).with_input_weights([1.0], [np.nan]), "input_origin of RBF must be 1 finite numbers"),
        (lambda: Linear(centre="middle"), "centre of Linear must be a number or a list of numbers; got 'middle'"),
        (lambda: Linear(centre=[np.inf]), "centre of Linear must be finite"),
        (lambda: Linear(centre=[]), "centre of Linear must be finite"),
        (lambda: Linear(centre=[1.0, 2.0]).bind(3).diagonal(points(4, 3)), "centre of Linear must be one number or 3"),
    ],
)
def test_what_no_kernel_can_be_is_refused(make, words):
    with pytest.raises(InvalidInputError, match=words):
        make()


def test_values_of_a_kernel_cannot_be_set():
    kernel = RBF(2.0).bind(1)
    with pytest.raises(AttributeError, match="lengthscale of RBF cannot be set"):
        kernel.lengthscale = 3.0
    assert kernel.lengthscale.tolist() == [2.0]


def test_only_numbers_and_kernels_are_added_and_multiplied():
    for act in (lambda: RBF() + None, lambda: None + RBF(), lambda: RBF() * None, lambda: None * RBF()):
        with pytest.raises(TypeError, match="unsupported operand"):
            act()
