"""Grids whose W'W does not fit the memory budget multiply by the rows' weights; the answers are the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import gigagp
from gigagp import GPRegressor, inference, kernels, optimization
from gigagp.errors import GigaGPWarning, InvalidInputError, MemoryBudgetError
from gigagp.operators.grid.statistics import GridStatistics, RegularGrid, StencilGram
from gigagp.operators.grid.statistics.accumulator import statistics_of_rows
from gigagp.operators.grid.statistics.rows_gram import RowsGram

#: Bytes between those of the rows' weights and those of W'W, for `table` on 44 x 44 nodes.
BUDGET = 1_700_000


def rows(name: str, d: int) -> Tensor:
    """Return rows in a unit cube."""
    X = torch.rand(150, d, generator=torch.Generator().manual_seed(d), dtype=torch.float64)
    if name == "clumps":
        return torch.cat([0.02 * X[:100] + 0.3, 0.1 * X[100:140] + 0.8, X[140:]])
    if name == "repeated":
        return torch.cat([X[:60], X[:30], X[:1].expand(20, d)])
    return X


@pytest.mark.pairs
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("name", ["uniform", "clumps", "repeated"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("interpolation", ["cubic", "linear"])
@pytest.mark.filterwarnings("ignore:About .* of the rows are exact copies")
def test_every_part_of_the_statistics_is_that_of_a_pass(d: int, name: str, weighted: bool, interpolation: str) -> None:
    X = rows(name, d)
    Y = torch.cat([X.sum(1, keepdim=True).sin(), X[:, :1] ** 2], 1)
    noise = 0.1 + X[:, 0] if weighted else None
    grid = RegularGrid.around([0.0] * d, [1.0] * d, (9, 8, 7)[:d], interpolation)
    expected = GridStatistics.from_rows(grid, X, Y, 3, 5, noise=noise)
    found = statistics_of_rows(grid, X, Y, 3, 5, noise=noise)
    first = grid.nodes().sum(1).cos()
    assert isinstance(found.gram, RowsGram)
    assert isinstance(expected.gram, StencilGram)
    pairs = [(getattr(found.gram, one), getattr(expected.gram, one)) for one in ("offset_sums", "trace")]
    pairs += [(getattr(found.gram, one)(), getattr(expected.gram, one)()) for one in ("row_sums", "diagonal", "dense")]
    pairs += [(found.gram @ first, expected.gram @ first)]
    names = ("cross", "target_squares", "target_sums", "probes", "probe_squares", "cell_counts", "weight_sums")
    names += ("position_sums", "position_squares", "input_low", "input_high")
    pairs += [(getattr(found, one), getattr(expected, one)) for one in names]
    for one, other in pairs:
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), rtol=1e-11, atol=1e-11)
    assert found.n_rows == expected.n_rows
    assert found.noise == expected.noise
    other = statistics_of_rows(grid, X, Y, 3, 6, noise=noise)  # the control: other signs
    assert not torch.allclose(other.probes, expected.probes)


def table(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    X = np.concatenate([random.uniform(0, 3, (n // 2, 2)), 1 + 0.3 * random.normal(size=(n - n // 2, 2)) % 3])
    return X, np.sin(2 * X[:, 0]) * np.cos(3 * X[:, 1]) + 0.1 * random.normal(size=n)


def fitted(budget: int | None, *, exact_nodes: int = 0, **settings: object) -> GPRegressor:
    grid = inference.Grid(size=44, exact_nodes=exact_nodes, tolerance=1e-8, final_tolerance=1e-8)
    options: dict[str, object] = {"optimizer": None, "noise_variance": 0.02} | settings
    return GPRegressor(kernels.Matern(2.5, 0.6), grid, memory_budget=budget, **options).fit(*table())


@pytest.mark.few(1)
@pytest.mark.parametrize("known", [False, True])
def test_answers_are_those_of_the_gram_matrix(known: bool, tmp_path: Path) -> None:
    noise = np.linspace(0.01, 0.1, 300) if known else 0.02
    plain, held = (fitted(budget, noise_variance=noise) for budget in (None, BUDGET))
    assert "in place of W'W" in held.engine_
    assert "in place of W'W" not in plain.engine_
    assert "in place of W'W" in str(held.describe())
    new = np.random.default_rng(1).uniform(0.1, 2.9, (50, 2))
    for one, other in zip(held.predict(new, return_std=True), plain.predict(new, return_std=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    held.save(tmp_path / "held.gp")
    again = gigagp.load(tmp_path / "held.gp")
    np.testing.assert_array_equal(again.predict(new), held.predict(new))
    more = (new[:20], np.sin(new[:20, 0]))
    extra = {"noise_variance": np.full(20, 0.05)} if known else {}
    grown, other = (gp.partial_fit(*more, **extra).predict(new) for gp in (again, plain))
    np.testing.assert_allclose(grown, other, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_learning_takes_the_same_steps() -> None:
    plain, held = (fitted(budget, optimizer=optimization.Adam(0.1, steps=5)) for budget in (None, BUDGET))
    lengths = [gp.kernel_.parameters()["lengthscale"].numpy() for gp in (plain, held)]
    np.testing.assert_allclose(lengths[1], lengths[0], rtol=1e-6)
    assert np.abs(lengths[0] / 0.6 - 1).max() > 0.05
    assert "in place of W'W" in held.engine_


def test_what_does_not_fit_without_the_matrix_either_is_refused() -> None:
    with pytest.raises(MemoryBudgetError, match=r"statistics of 300 rows .* without W'W needs"):
        fitted(500_000)


def test_a_table_that_is_not_held_is_told_of_fit() -> None:
    X, y = table()
    gp = GPRegressor(inference=inference.Grid(size=44), memory_budget=BUDGET, optimizer=None)
    with pytest.raises(MemoryBudgetError, match=r"hold the rows: GPRegressor.fit can do without W'W"):
        gp.fit_table((X, y))


def test_rows_that_are_held_cannot_be_taken_out() -> None:
    X, y = table()
    grid = RegularGrid.around(X.min(0), X.max(0), 10)
    found = statistics_of_rows(grid, X, y)
    with pytest.raises(InvalidInputError, match="cannot be removed"):
        found.remove_rows(X[:3], y[:3])
    with pytest.raises(InvalidInputError, match="RowsGram multiplies"):
        found.gram @ torch.zeros(3, 1, dtype=torch.float64)


def test_draws_have_the_matrix_as_covariance() -> None:
    X, y = table()
    grid = RegularGrid.around(X.min(0), X.max(0), 6)
    gram = statistics_of_rows(grid, X, y, noise=np.linspace(0.5, 2, 300)).gram
    draws = gram.draw(20_000, torch.Generator().manual_seed(0))
    scale = gram.diagonal().clamp_min(1e-12).sqrt()
    error = (draws @ draws.T / 20_000 - gram.dense()).abs() / torch.outer(scale, scale)
    assert float(error.max()) < 5 * 2**0.5 / 20_000**0.5
    wrong = (draws @ draws.T / 20_000 - 1.2 * gram.dense()).abs() / torch.outer(scale, scale)
    assert float(wrong.max()) > 5 * 2**0.5 / 20_000**0.5


def test_the_filter_of_warnings_is_needed() -> None:
    X = rows("repeated", 2)
    grid = RegularGrid.around([0.0, 0.0], [1.0, 1.0], 8)
    with pytest.warns(GigaGPWarning, match="exact copies"):
        statistics_of_rows(grid, X, X[:, :1], 2)
