from __future__ import annotations

import torch

from gigagp import kernels
from gigagp.inference import Grid
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.grid.objective import GridObjective
from gigagp.model.means import ConstantMean
from gigagp.model.model import Model


def objective(settings: Grid | None = None) -> GridObjective:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(400, 2, generator=generator, dtype=torch.float64)
    Y = torch.sin(6 * X[:, :1]) + 0.1 * torch.randn(400, 1, generator=generator, dtype=torch.float64)
    table = TrainingTable(X, Y, ConstantMean(), 2**30)
    settings = settings or Grid(size=16, exact_nodes=0, n_probes=4, n_samples=4)
    return GridObjective(settings, table, torch.Generator().manual_seed(1))


def model(scale: float = 0.3, noise: float = 0.02) -> Model:
    return Model(kernels.Matern(1.5, [scale, scale]).bind(2), ConstantMean(), torch.tensor(noise, dtype=torch.float64))


def test_a_restored_objective_goes_on_where_the_first_was() -> None:
    first = objective()
    first.start(model())
    first.evaluate(model())
    tensors, header = first.snapshot()
    expected = first.evaluate(model(0.32))
    again = objective()
    again.restore(model(), tensors, header)
    found = again.evaluate(model(0.32))
    assert all(torch.equal(found.gradient[name], value) for name, value in expected.gradient.items())
    assert found.solve == expected.solve
    cold = objective().evaluate(model(0.32))  # the control: without the warm start the solve differs
    assert cold.solve != expected.solve
    before = objective()
    tensors, header = before.snapshot()
    objective().restore(model(), tensors, header)


def test_the_noise_is_raised_by_the_gap_once() -> None:
    whole = objective(Grid(size=10))
    rough = Model(kernels.Matern(0.5, [0.2, 0.2]).bind(2), ConstantMean(), torch.tensor(1e-3, dtype=torch.float64))
    raised = whole.start(rough)
    likelihood = whole.likelihood(rough)
    gap = likelihood.gap(likelihood.kernel_at(rough))
    assert gap > 0.1
    assert abs(float(raised.noise_variance) - 1e-3 - gap) < 1e-12
    assert whole.start(raised) is raised
    part = whole.thin(torch.arange(200))
    assert part.start(raised) is raised
    assert part.likelihood(rough).statistics.grid == likelihood.statistics.grid  # one grid per fit


def test_the_value_of_a_small_grid_is_exact_and_of_others_an_estimate() -> None:
    exact = objective(Grid(size=16)).value(model())
    estimate = objective(Grid(size=16, exact_nodes=0, n_samples=32)).value(model())
    assert exact.standard_error == 0
    assert abs(exact.value - estimate.value) < 4 * estimate.standard_error
    assert objective(Grid(size=16)).evaluate(model()).value == exact.value
