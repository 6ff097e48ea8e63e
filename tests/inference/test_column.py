"""The exact likelihood of rows of one input, from covariances at their distances, against that from all pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp import kernels
from gigagp.inference.contract.objective import ExactObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.column import ColumnObjective, Distances, with_derivatives
from gigagp.model.means import ConstantMean, LinearMean
from gigagp.model.model import NOISE, Model
from gigagp.optimization.space import ParameterSpace
from helpers import close, generator

KERNELS = {
    "one": kernels.Matern(0.5, 0.7, 1.3),
    "radial": kernels.RBF(0.4) + kernels.Matern(1.5, 1.1) + kernels.RationalQuadratic(0.8, 1.2, 0.7),
    "season": kernels.Periodic(1.1, 0.8, 0.9) * kernels.Matern(2.5, 3.0, fixed=["variance"]) + kernels.Matern(0.5),
    "cycle": kernels.Oscillator(0.9, 1.3, 4.0) + kernels.IntegratedWiener(0.4, centre=0.2),
    "trend": kernels.DampedTrend(1.4, 0.5, centre=0.1) + kernels.Periodic(0.9, 1.2, 0.6),
    "inside": (kernels.Matern(1.5, 0.9) + kernels.Periodic(1.0, 0.5, 0.7)) * kernels.Matern(0.5, 2.0),
}
TIMES = {
    "even": np.arange(40) / 13 - 1.5,
    "some of even": np.sort(np.random.default_rng(0).choice(90, 40, replace=False)) / 29 - 1.5,
    "in no order": np.random.default_rng(1).uniform(-1.5, 1.5, 40),
    "repeated": np.repeat(np.arange(20) / 7 - 1.5, 2),
}


def both(kernel, times, mean):
    X = torch.from_numpy(TIMES[times])[:, None]
    table = TrainingTable(X, torch.randn(len(X), 1, generator=generator(), dtype=torch.float64), mean, 2**28)
    model = Model(KERNELS[kernel].bind(1), mean, torch.tensor(0.2, dtype=torch.float64))
    return model, ExactObjective(table), ColumnObjective(table, Distances.of(X[:, 0]))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("times", TIMES)
def test_value_gradient_and_information_are_those_from_all_pairs(kernel, times):
    mean = LinearMean() if times in ("some of even", "repeated") else ConstantMean()
    model, exact, column = both(kernel, times, mean)
    condition = float(torch.linalg.cond(exact.posterior(model).factor)) ** 2
    expected, found = exact.evaluate(model), column.evaluate(model)
    close(found.value, expected.value, condition=condition)
    assert found.gradient.keys() == expected.gradient.keys()
    scale = max(float(one.abs().max()) for one in expected.gradient.values())
    for name, one in found.gradient.items():
        close(one.reshape(-1) / scale + 1, expected.gradient[name].reshape(-1) / scale + 1, condition=condition)
    space, probes = ParameterSpace(model, "log"), torch.randn(40, 4, generator=generator(1), dtype=torch.float64)
    vector = space.encode(model)
    X, inverse = column.table.X, torch.linalg.inv(exact.posterior(model).factor)
    slopes = with_derivatives(model.kernel, X, X)[1] | {NOISE: torch.eye(40, dtype=torch.float64)[None]}
    rows = torch.stack([(inverse @ slopes[name][0] @ inverse.T @ probes).flatten() for name in space.names])
    rows = rows * space.jacobian(vector)[:, None]
    close(column.fisher(space, vector, probes), rows @ rows.T / 8, condition=condition)
    # the control: a row elsewhere has other distances
    moved = column.table.X.clone()
    moved[3] += 1e-3
    other = ColumnObjective(column.table, Distances.of(moved[:, 0])).evaluate(model).value
    assert abs(other - expected.value) > 1e3 * abs(found.value - expected.value)


def test_equal_steps_have_as_many_distances_as_rows():
    at = Distances.of(torch.arange(50, dtype=torch.float64) / 7 - 3)
    assert len(at.values) == 50
    assert len(Distances.of(torch.from_numpy(TIMES["in no order"])).values) == 40 * 39 // 2 + 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_derivatives_are_those_of_differences(kernel):
    given = KERNELS[kernel].bind(1)
    X, Z = torch.from_numpy(TIMES["even"])[:7, None], torch.from_numpy(TIMES["in no order"])[:5, None]
    block, slopes = with_derivatives(given, X, Z)
    close(block, given.block(X, Z), condition=10)
    values = given.parameters()
    assert slopes.keys() == values.keys()
    for name, value in values.items():
        change = 1e-5 * value
        ends = [given.replace({name: value + sign * change}).block(X, Z) for sign in (1, -1)]
        expected = (ends[0] - ends[1]) / (2 * float(change))
        torch.testing.assert_close(slopes[name][0], expected, rtol=1e-6, atol=1e-8)


def test_all_rows_have_the_same_objective_and_some_their_own():
    model, exact, column = both("season", "even", ConstantMean())
    assert column.subset(torch.arange(40)) is column
    some = torch.arange(0, 40, 3)
    assert column.subset(some).value(model) == exact.subset(some).value(model)
