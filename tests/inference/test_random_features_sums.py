"""Sums over rows, the likelihood in weight space and its derivatives, against dense algebra."""

from __future__ import annotations

import math

import pytest
import torch

from gigagp import kernels
from gigagp.errors import MemoryBudgetError
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.weight_space import WeightSpace
from gigagp.inference.random_features.sums import pull_back, require_features, row_blocks, sum_rows
from gigagp.kernels.features import count_columns, nested_columns
from gigagp.model.means import LinearMean, ZeroMean
from gigagp.model.model import Model
from helpers import all_kernels, close, generator, largest_tensor, points

X, Y = points(60, 4, seed=1) * 0.6, points(60, 2, seed=2)
NOISES = {"one": torch.tensor(0.2).double(), "each": torch.linspace(0.05, 0.6, 60).double()}
ALL = all_kernels()


def table_of(mean=None, budget=2**30, dtype=torch.float64):
    return TrainingTable(X.to(dtype), Y.to(dtype), ZeroMean() if mean is None else mean, budget)


def dense_value(model, draw, table):
    """Return the log likelihood under ``F F' + noise`` with optimal mean coefficients, differentiable by autograd."""
    features = model.kernel.features(table.X, draw)
    H = features @ features.T + torch.diag(model.noise_variance + model.kernel.white(table.X))
    basis = table.basis
    solved = torch.linalg.solve(H, torch.cat([table.Y, basis], 1))
    residual = table.Y
    if basis.shape[1]:
        coefficients = torch.linalg.solve(basis.T @ solved[:, 2:], basis.T @ solved[:, :2])
        residual = table.Y - basis @ coefficients
    fit = (residual * torch.linalg.solve(H, residual)).sum()
    return -0.5 * (fit + 2 * (torch.linalg.slogdet(H).logabsdet + len(H) * math.log(2 * math.pi)))


@pytest.mark.pairs
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("mean", [ZeroMean(), LinearMean()], ids=["zero", "linear"])
@pytest.mark.parametrize("name", ALL)
def test_value_and_gradient_are_those_of_the_dense_formula(name, mean, noise):
    model, table = Model(ALL[name], mean, NOISES[noise]), table_of(mean)
    draw = model.kernel.draw_features(22, 4, generator())
    space = WeightSpace.fit(sum_rows(model, draw, table), 60, 2)
    gradient = pull_back(model, draw, table, space.slope())
    values = {key: value.clone().requires_grad_() for key, value in model.parameters().items()}
    expected = dense_value(model.replace(values), draw, table)
    assert space.value == pytest.approx(expected.item(), rel=1e-10)
    slopes = torch.autograd.grad(expected, list(values.values()), allow_unused=True)
    assert set(gradient) == set(values)
    for key, slope in zip(values, slopes, strict=True):
        slope = torch.zeros_like(values[key]) if slope is None else slope
        # Matern-1/2 has phases of a hundred million, which lose eight digits
        assert torch.allclose(gradient[key], slope, rtol=1e-6, atol=1e-7), key
    other = model.kernel.draw_features(22, 4, generator(1))
    if count_columns(model.kernel, draw) > 5:  # the control: another draw gives another model
        assert abs(WeightSpace.fit(sum_rows(model, other, table), 60, 2).value - space.value) > 0.01


@pytest.mark.parametrize("count", [1, 4, 11])
def test_one_pass_holds_every_smaller_number_of_frequencies(count):
    kernel = ALL["sum"] + ALL["rational quadratic"]
    model, table = Model(kernel, LinearMean(), NOISES["each"]), table_of(LinearMean())
    draw = kernel.draw_features(22, 4, generator())
    fewer = sum_rows(model, draw.first(count), table)
    taken = sum_rows(model, draw, table).take(*nested_columns(kernel, draw, count))
    for left, right in zip(vars(taken).values(), vars(fewer).values(), strict=True):
        close(left, right, condition=1e4)  # the largest phase, of Matern 3/2


def test_the_derivative_of_a_part_is_the_part_of_the_derivative():
    kernel = ALL["sum"]
    model, table = Model(kernel, LinearMean(), NOISES["one"]), table_of(LinearMean())
    draw = kernel.draw_features(22, 4, generator())
    sums = sum_rows(model, draw, table)
    columns, factors = nested_columns(kernel, draw, 4)
    slope = sums.zeros()
    slope.add_(0.7, WeightSpace.fit(sums.take(columns, factors), 60, 2).slope(), columns, factors)
    found = pull_back(model, draw, table, slope)
    few = draw.first(4)
    direct = pull_back(model, few, table, WeightSpace.fit(sum_rows(model, few, table), 60, 2).slope())
    for name, value in direct.items():
        assert torch.allclose(found[name], 0.7 * value, rtol=1e-9, atol=1e-10)


def test_blocks_change_nothing_and_keep_to_the_budget():
    kernel = kernels.Matern(1.5) + kernels.Linear(0.3)
    many = points(3000, 4)
    targets = many[:, :1]
    results = []
    model = Model(kernel.bind(4), LinearMean(), NOISES["one"])
    draw = model.kernel.draw_features(100, 4, generator())
    for budget in (2**30, 2**20):
        table = TrainingTable(many, targets, LinearMean(), budget)
        with largest_tensor() as spy:
            space = WeightSpace.fit(sum_rows(model, draw, table), 3000, 1)
            gradient = pull_back(model, draw, table, space.slope())
        results.append((space.value, gradient["0.lengthscale"]))
        assert 8 * spy.elements <= max(budget, 8 * 2048 * 104)
    assert 8 * spy.elements < 8 * 3000 * 100  # never n x m
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-11)
    assert torch.allclose(results[0][1], results[1][1], rtol=1e-9)
    covered = [index for rows in row_blocks(777, 100, 2**20) for index in range(777)[rows]]
    assert covered == list(range(777))


def test_what_does_not_fit_is_refused_with_its_bytes():
    needed = 7 * 8 * 500**2 + 8 * 12 * 500
    require_features(500, table_of(budget=needed))
    with pytest.raises(MemoryBudgetError, match=rf"500 columns of random features needs {needed:,} bytes"):
        require_features(500, table_of(budget=needed - 1))


def test_float32_features_have_float64_products():
    """The rounding error of a float32 product is divided by the noise, and would exceed the small eigenvalues."""
    model = Model(kernels.RBF(6.0, 1.0).bind(4), ZeroMean(), torch.tensor(1e-6).double())
    draw = model.kernel.draw_features(40, 4, generator())
    features = model.kernel.features(X.float(), draw)
    expected = torch.linalg.slogdet(features.double() @ features.double().T + 1e-6 * torch.eye(60)).logabsdet
    sums = sum_rows(model, draw, table_of(dtype=torch.float32))
    assert all(part.dtype == torch.float64 for part in vars(sums).values())
    assert WeightSpace.fit(sums, 60, 2).log_determinant == pytest.approx(float(expected), abs=1e-4)
    rounded = (features / 1e-3).T @ (features / 1e-3)
    control = torch.linalg.slogdet(torch.eye(40) + rounded.double()).logabsdet + 60 * math.log(1e-6)
    assert abs(float(control - expected)) > 0.1
