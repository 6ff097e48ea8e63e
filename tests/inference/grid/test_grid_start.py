"""Where learning on a grid starts: no lengthscale that no grid shows, those that are given, and true warnings."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, inference, kernels
from gigagp.errors import GigaGPWarning
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.grid.objective import GridObjective, way_to_a_finer_grid
from gigagp.inference.grid.settings import GridSettings
from gigagp.inference.grid.spacing import is_resolved
from gigagp.inference.grid.start import CompositeObjective, composite
from gigagp.kernels import Kernel
from gigagp.kernels.units import Units
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model, StartModel
from gigagp.operators.grid.statistics import RegularGrid


def noisy(n: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Return rows whose noise has four times the deviation of the function."""
    random = np.random.default_rng(0)
    X = random.random((n, 2))
    return X, np.sin(6 * X[:, 0]) * np.cos(5 * X[:, 1]) + 2 * random.normal(size=n)


def problem(given: Kernel | None = None) -> tuple[GridObjective, Model]:
    """Return the objective and the standardized model of a fit to noisy rows."""
    X, y = noisy()
    scale = X.std(0)
    table = TrainingTable(
        torch.from_numpy((X - X.mean(0)) / scale), torch.from_numpy(y / y.std())[:, None], ZeroMean(), 2**32
    )
    units = Units(torch.from_numpy(X.mean(0)), torch.from_numpy(scale), float(y.var()))
    model = StartModel(given or kernels.Matern(1.5), ZeroMean(), None).standardized(units)
    return GridObjective(GridSettings(), table, torch.Generator().manual_seed(0)), model


def begun(objective: GridObjective, model: Model, seed: int) -> Model:
    rows = objective.draw_rows(500, torch.Generator().manual_seed(seed))
    subset = objective.subset(rows)
    assert isinstance(subset, CompositeObjective)
    return subset.start(model)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(4))
def test_no_start_is_shorter_than_a_grid_shows(seed: int) -> None:
    objective, model = problem()
    found = begun(objective, model, seed)
    lengths = found.kernel.parameters()["lengthscale"]
    cell = (3.5**2 / (4 * 20_000)) ** 0.5
    assert float(lengths.min()) > 2 * cell * 0.95
    # the control: a search without a floor ends among lengthscales that are as good as noise
    rows = objective.draw_rows(500, torch.Generator().manual_seed(seed))
    free = composite(objective.table, rows).start(model)
    assert float(free.kernel.parameters()["lengthscale"].min()) < cell


def test_a_given_lengthscale_is_where_learning_starts() -> None:
    given = kernels.Matern(1.5, lengthscale=[0.3, 0.2])
    objective, model = problem(given)
    assert model.given == {"lengthscale"}
    found = begun(objective, model, 0)
    assert torch.equal(found.kernel.parameters()["lengthscale"], model.kernel.parameters()["lengthscale"])
    objective, model = problem(kernels.Matern(1.5, lengthscale=0.2) + kernels.RBF(variance=0.5))
    assert model.given == {"0.lengthscale", "1.variance"}
    found = begun(objective, model, 0)
    before, after = model.kernel.parameters(), found.kernel.parameters()
    assert torch.equal(after["0.lengthscale"], before["0.lengthscale"])
    assert not torch.equal(after["1.lengthscale"], before["1.lengthscale"])  # the control: the other is searched


def test_what_counts_as_resolved() -> None:
    kernel = kernels.RBF([0.1, 0.5]).bind(2)
    assert is_resolved(kernel, [1.0, 1.0], 80)  # 20 x 4 cells
    assert not is_resolved(kernel, [1.0, 1.0], 79)
    assert is_resolved(kernel, [1e-9, 1.0], 4)  # lengthscales beyond the data take one cell
    additive = (kernels.RBF(0.1, columns=[0]) + kernels.RBF(0.1, columns=[1])).bind(2)
    assert is_resolved(additive, [1.0, 1.0], 20)
    assert not is_resolved(kernels.Cosine(period=0.01).bind(1), [1.0], 1000)


def advice(settings: GridSettings, n_nodes: int, n_rows: int, budget: int) -> str:
    grid = RegularGrid((0.0, 0.0), (1.0, 1.0), (n_nodes, 100))
    return way_to_a_finer_grid(
        settings, grid, n_rows, budget, Model(kernels.RBF(1.0).bind(2), ZeroMean(), torch.ones(()))
    )


def test_the_advice_names_what_limits_the_grid() -> None:
    auto, asked = GridSettings(), GridSettings(size=40)
    assert advice(asked, 100, 10**6, 10**9) == "Use a finer grid (size of inference.Grid)."
    assert "at most 4 nodes for each of 2,600 rows" in advice(auto, 100, 2600, 10**9)
    assert "memory budget of 50,000,000 bytes" in advice(auto, 100, 10**6, 50_000_000)
    assert "at the start of learning" in advice(auto, 100, 10**6, 10**9)


@pytest.mark.slow
def test_a_fit_is_not_told_to_raise_a_budget_that_does_not_limit_it() -> None:
    random = np.random.default_rng(1)
    X = random.random((2000, 2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        GPRegressor(
            kernels.Matern(1.5, 0.002), inference.Grid(), optimizer=None, noise_variance=0.01, memory_budget=2**32
        ).fit(X, np.sin(3 * X[:, 0]))
    said = [str(one.message) for one in caught if issubclass(one.category, GigaGPWarning)]
    assert len(said) == 2
    assert said[1].startswith("Squared errors of the latent function")
    assert "cannot see the lengthscale" in said[0]
    assert "4 nodes for each of 2,000 rows" in said[0]
    assert "budget" not in said[0]
