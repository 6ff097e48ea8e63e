from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp.operators.grid.statistics import RegularGrid, StencilGram, moments
from gigagp.operators.grid.statistics.gram import half_offsets
from gigagp.operators.grid.statistics.moments import Moments, signs, survey

from .conftest import SHAPES, rows

pytestmark = pytest.mark.filterwarnings("ignore:A grid over 4 inputs:gigagp.errors.GigaGPWarning")
TOLERANCE = 1e-12


def problem(d: int, interpolation: str, n: int = 400, t: int = 2):
    X, Y = rows(n, d, t)
    grid = RegularGrid.around(X.amin(0).tolist(), X.amax(0).tolist(), SHAPES[d], interpolation)
    return grid, X, Y, grid.matrix(X).to_dense()


@pytest.mark.pairs
@pytest.mark.parametrize("d", SHAPES)
@pytest.mark.parametrize("interpolation", ["cubic", "linear"])
def test_moments_expand_to_the_direct_sum(d, interpolation, way):
    grid, X, Y, W = problem(d, interpolation)
    found = Moments(grid, 2, n_probes=67, seed=3)  # more probes than bits of a word
    found.add(X, Y)
    gram, Z = found.gram(), signs(X, Y, 67, 3)
    assert (gram.dense() - W.T @ W).abs().max() < TOLERANCE
    assert (found.columns.T - W.T @ torch.cat([Y, Z], 1)).abs().max() < TOLERANCE
    assert found.counts().sum() == len(X)
    positions = grid.positions(X)
    sums, squares = found.position_sums()
    assert torch.allclose(sums, positions.sum(0), rtol=1e-13)
    assert torch.allclose(squares, positions.square().sum(0), rtol=1e-13)
    # Control: one row fewer is another matrix.
    assert (gram.dense() - W[1:].T @ W[1:]).abs().max() > 1e-3


def test_golden_values(golden, way):
    grid, X, Y = golden
    found = Moments(grid, 1)
    found.add(X, Y)
    gram, cross = found.gram(), found.columns[0]
    expected = "-0.05725712 0.51655771 3.81754669 2.01863391 -1.57091267 -3.46406895 -0.24239651 4.18462054 2.48236201"
    expected += " -2.62955343 -3.53098784 -0.52529889 0.06610223 0"
    assert np.abs(cross.numpy() - np.array(expected.split(), dtype=float)).max() < 1e-8
    assert gram.trace == pytest.approx(32.6335403019, abs=1e-10)
    assert float(gram.row_sums().sum()) == pytest.approx(40, abs=1e-12)
    row = [0.0097159539, -0.1479281725, 0.3503823068, 2.8301944288, 0.5903211825, -0.1356119037, 0.0068446134]
    assert np.abs(gram.dense()[5, 2:9].numpy() - row).max() < 1e-10
    assert gram.nnz == 79
    assert float(Y.square().sum()) == pytest.approx(21.77343901821579, abs=1e-13)


@pytest.mark.parametrize(("d", "interpolation", "most"), [(1, "cubic", 7), (2, "cubic", 49), (3, "linear", 27)])
def test_a_row_of_the_matrix_has_no_more_entries_than_the_stencil(d, interpolation, most, way):
    grid, X, Y, _ = problem(d, interpolation, 2000)
    found = Moments(grid, 2)
    found.add(X, Y)
    gram = found.gram()
    entries = (gram.dense() != 0).sum(1)
    assert entries.max() == most
    assert gram.nnz == entries.sum()
    assert 2 * len(half_offsets(grid)) - 1 == most


def test_a_product_is_that_of_the_dense_matrix(way):
    for d, interpolation in ((1, "linear"), (2, "cubic"), (3, "cubic")):
        grid, X, Y, W = problem(d, interpolation)
        found = Moments(grid, 2)
        found.add(X, Y)
        gram = found.gram()
        V = torch.randn(grid.size, 19, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        assert (gram @ V - W.T @ (W @ V)).abs().max() < TOLERANCE
        assert (gram @ V[:, 0] - W.T @ (W @ V[:, 0])).abs().max() < TOLERANCE
        assert torch.equal(gram.diagonal(), gram.dense().diagonal())
        assert (gram.row_sums() - W.sum(0)).abs().max() < TOLERANCE


@pytest.mark.skipif(moments._native is None, reason="the compiled extension was not built")
def test_every_instruction_set_makes_the_same_numbers():
    native = moments._native
    grid, X, Y, W = problem(3, "cubic", 900)
    V = torch.randn(grid.size, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    products, target, source = moments._expansion(grid)
    description = moments._description(grid)
    for name in native.grid_instruction_sets():
        found = Moments(grid, 2, 3)
        arguments = (3, 0, found.values.numpy(), found.columns.numpy(), 1000, native.GridWorkspace(), 1)
        native.grid_add(name, description, X.numpy(), Y.numpy(), *arguments)
        values = torch.zeros(len(half_offsets(grid)), grid.size, dtype=torch.float64)
        native.grid_expand(
            name,
            description,
            found.values.numpy(),
            products.numpy(),
            target.numpy(),
            source.int().numpy(),
            values.numpy(),
            1,
        )
        gram, out = StencilGram(grid, values), torch.empty(2, grid.size, dtype=torch.float64)
        assert (gram.dense() - W.T @ W).abs().max() < TOLERANCE
        assert (found.columns.T - W.T @ torch.cat([Y, signs(X, Y, 3, 0)], 1)).abs().max() < TOLERANCE
        native.grid_product(name, *gram.packed, gram._steps, V.T.contiguous().numpy(), out.numpy(), 1)
        assert (out.T - W.T @ (W @ V)).abs().max() < TOLERANCE


@pytest.mark.skipif(moments._native is None, reason="the compiled extension was not built")
def test_the_number_of_threads_changes_no_bit(monkeypatch):
    X, Y = rows(30_000, 3)
    grid = RegularGrid.around(X.amin(0).tolist(), X.amax(0).tolist(), (12, 30, 9))
    results = []
    for threads in (1, 3):
        monkeypatch.setattr(moments, "threads_for", lambda rows, threads=threads: threads)
        monkeypatch.setattr("gigagp.operators.grid.statistics.gram._ENTRIES_A_THREAD", 2**40 if threads == 1 else 1)
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found = Moments(grid, 1, 2)
        found.add(X, Y)
        gram = found.gram()
        results.append([found.values, found.columns, gram.values, gram @ found.columns.T, survey(X).squares])
    for one, three in zip(*results, strict=True):
        assert torch.equal(one, three)


@pytest.mark.skipif(moments._native is None, reason="the compiled extension was not built")
@pytest.mark.parametrize("bad", [[9.0, 4.0], [4.0, 0.5], [torch.nan, 4.0]])
def test_the_extension_refuses_points_that_would_be_written_beyond_the_grid(bad):
    grid = RegularGrid((0.0, 0.0), (1.0, 1.0), (9, 9))
    found = Moments(grid, 1)
    X = torch.tensor([[4.0, 4.0], bad], dtype=torch.float64)
    with pytest.raises(ValueError, match="outside of the grid"):
        found.add(X, torch.ones(2, 1, dtype=torch.float64))
    assert not bool(found.values.any())


def test_a_survey_tells_ranges_and_what_is_not_finite(way):
    X, _ = rows(70_000, 2)
    found = survey(X)
    assert torch.equal(found.low, X.amin(0))
    assert torch.equal(found.high, X.amax(0))
    assert torch.allclose(found.squares, X.square().sum(0), rtol=1e-13)
    X[69_000, 1] = torch.inf
    found = survey(X)
    assert found.squares.isnan().tolist() == [False, True]
    assert survey(X[:0]).low.tolist() == [torch.inf, torch.inf]


def test_signs_are_fair_and_independent_and_belong_to_the_row(way):
    X, Y = rows(20_000, 2)
    Z = signs(X, Y, 70, 5)
    assert set(Z.unique().tolist()) == {-1.0, 1.0}
    n = len(Z)
    assert Z.mean(0).abs().max() < 4.5 / n**0.5  # the largest of 70
    correlation = Z.T @ Z / n - torch.eye(70, dtype=torch.float64)
    assert correlation.abs().max() < 5.5 / n**0.5  # the largest of 2,415
    neighbours = (Z[1:] * Z[:-1]).mean(0)
    assert neighbours.abs().max() < 4.5 / n**0.5
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    assert torch.equal(signs(X[order].contiguous(), Y[order].contiguous(), 70, 5), Z[order])
    assert (signs(X, Y, 70, 6) != Z).double().mean() == pytest.approx(0.5, abs=0.01)
    zero = torch.zeros(1, 2, dtype=torch.float64)
    assert torch.equal(signs(zero, zero, 9, 1), signs(-zero, zero, 9, 1))
