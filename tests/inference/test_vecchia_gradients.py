"""The gradient of the neighbour likelihood against differences, for every kind of kernel, and its bits."""

from __future__ import annotations

import pytest
import torch

from gigagp import inference, kernels
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.objective import VecchiaObjective
from gigagp.model.means import LinearMean
from gigagp.model.model import NOISE, Model
from gigagp.neighbours.conditionals import is_compiled
from helpers import close, generator, points


class Cauchy(kernels.StationaryKernel):
    """A kernel of a user's own, without a compiled program."""

    def profile(self, q):
        return 1 / (1 + q)


KERNELS = {
    "ARD": kernels.Matern(2.5, [0.8, 1.7, 3.0], 1.3),
    "sum": kernels.RBF([0.8, 1.7, 3.0], 1.3) + kernels.Matern(0.5, 2.0, 0.4),
    "product": kernels.RBF(2.0, 1.3) * kernels.Matern(1.5, [0.8, 1.7, 3.0], 0.7),
    "nested": (kernels.RBF(1.0, 1.3) + kernels.Matern(1.5, 2.0, 0.4)) * kernels.RationalQuadratic(2.0, 1.5, 0.6),
    "periodic": kernels.Periodic(1.1, 0.9, 1.2) + kernels.RBF(1.5, 0.5),
    "linear": kernels.Linear(0.5) + kernels.Matern(1.5, 1.0, 1.2),
    "white": kernels.Matern(1.5, 1.0, 1.2) + kernels.White(0.2),
    "growing noise": kernels.Matern(1.5, 1.0, 1.2) + kernels.White(0.1) * kernels.Linear(0.5),
    "own": Cauchy([0.8, 1.7, 3.0], 1.3) + kernels.White(0.2),
    "own in a product": Cauchy(1.4, 1.3) * kernels.Periodic(1.1, 0.9, 1.2),
}
STEP = 1e-3


def clumps(n):
    return torch.cat([points(n - n // 3, 3), 1e-1 * points(n // 3, 3, seed=1) + 1.0])


@pytest.mark.few(2)
@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_are_those_of_differences(kernel):
    n = 30 if kernel.startswith("own") else 90  # without compiled code a row takes a hundred times as long
    X = clumps(n)
    Y = torch.stack([torch.sin(2 * X[:, 0]) + X[:, 1], X[:, 2]], 1) + 0.1 * points(n, 2, seed=2)
    model = Model(KERNELS[kernel].bind(3), LinearMean(), torch.tensor(0.05, dtype=torch.float64))
    objective = VecchiaObjective(TrainingTable(X, Y, model.mean, 2**28), 8, 20, n - n // 3)
    objective.refresh(model)
    gradient = objective.evaluate(model).gradient
    assert set(gradient) == {*model.kernel.parameters(), NOISE}
    largest = max(float((gradient[name] * value).abs().max()) for name, value in model.parameters().items())
    for name, value in model.parameters().items():
        for place in range(value.numel()):
            unit = torch.zeros(value.numel(), dtype=torch.float64)
            unit[place] = STEP * value.reshape(-1)[place]
            unit = unit.reshape(value.shape)
            at = {s: objective.evaluate(model.replace({name: value + s * unit})).value for s in (-2, -1, 1, 2)}
            slope = (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * STEP)  # by the logarithm
            found = float(gradient[name].reshape(-1)[place] * value.reshape(-1)[place])
            assert found == pytest.approx(slope, rel=1e-6, abs=1e-7 * largest)
            assert found != pytest.approx(1.001 * slope, rel=1e-6, abs=1e-7 * largest) or abs(slope) < 1e-3 * largest


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("kernel", ["nested", "own"])
def test_threads_change_no_bit_of_compiled_code(kernel):
    """Enough rows and values that torch would share sums between threads.

    Batches of torch leave sums to libraries, whose order may depend on the threads. Their results agree up to rounding:
    matrices of eleven rows with a variance of one and a noise of 0.05 have a condition of some 200, and the gradient
    and the likelihood are sums whose terms are up to fifty times as large.
    """
    compiled = is_compiled(KERNELS[kernel].bind(3))
    n = 40_000 if compiled else 3_000
    X = 30 * torch.rand(n, 3, generator=generator(), dtype=torch.float64)
    Y = torch.stack([torch.sin(X[:, 0]), X[:, 1]], 1) + 0.1 * points(n, 2, seed=2)
    model = Model(KERNELS[kernel].bind(3), LinearMean(), torch.tensor(0.05, dtype=torch.float64))

    def numbers():
        objective = inference.Vecchia(6, 10, n).objective(TrainingTable(X, Y, model.mean, 2**28), generator())
        objective.refresh(model)
        found = objective.evaluate(model)
        final = objective.posterior(model, generator())
        value = final.log_marginal_likelihood(generator()).value
        values = torch.tensor([found.value, value], dtype=torch.float64)
        answers = [*final.mean_and_variance(X[:3000] + 0.1), final.covariance(X[:20] + 0.1), final.coefficient_root]
        return [values, *found.gradient.values(), *answers]

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = numbers()
        torch.set_num_threads(2)
        two = numbers()
    finally:
        torch.set_num_threads(before)
    for a, b in zip(one, two, strict=True):
        if compiled:
            assert torch.equal(a, b)
        close(a, b, condition=1e4)
