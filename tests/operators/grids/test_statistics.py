from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch

from gigagp.errors import GigaGPWarning, InvalidInputError, MemoryBudgetError, ModelFileError
from gigagp.operators.grid import RowsGram
from gigagp.operators.grid.statistics import Accumulator, GridStatistics, RegularGrid, StencilGram

from .conftest import rows

GRID = RegularGrid.around((-7, -7, -7), (3, 13, 23), (9, 14, 8))


def difference(a: GridStatistics, b: GridStatistics) -> float:
    """Return the largest difference of any part, relative to the largest number of that part."""
    worst = 0.0
    for field in fields(GridStatistics):
        one, other = getattr(a, field.name), getattr(b, field.name)
        if isinstance(one, StencilGram):
            one, other = one.values, other.values
        if isinstance(one, torch.Tensor):
            assert one.shape == other.shape
            if one.numel():
                worst = max(worst, float((one - other).abs().max() / other.abs().max().clamp(min=1)))
        else:
            assert one == other
    return worst


def test_chunked_shuffled_and_merged_are_the_whole(way):
    X, Y = rows(3000, 3, 2)
    whole = GridStatistics.from_rows(GRID, X, Y, n_probes=6, seed=4)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
    shuffled = GridStatistics.from_rows(GRID, X[order], Y[order], 6, 4)
    chunked = Accumulator(GRID, 2, 6, 4)
    for part in order.split([1, 999, 1500, 0, 500]):
        chunked.add(X[part], Y[part])
    merged = GridStatistics.from_rows(GRID, X[:1200], Y[:1200], 6, 4) + GridStatistics.from_rows(
        GRID, X[1200:], Y[1200:], 6, 4
    )
    grown = GridStatistics.from_rows(GRID, X[:1200], Y[:1200], 6, 4).add_rows(X[1200:], Y[1200:])
    for found in (shuffled, chunked.statistics(), merged, grown):
        assert difference(found, whole) < 1e-12
        assert found.n_rows == 3000
    # Control: another seed has other probes, one row fewer is another sum.
    assert difference(GridStatistics.from_rows(GRID, X[1:], Y[1:], 6, 4).add_rows(X[:1], Y[:1]), whole) < 1e-12
    assert (GridStatistics.from_rows(GRID, X, Y, 6, 5).probes - whole.probes).abs().max() > 1
    assert (GridStatistics.from_rows(GRID, X[1:], Y[1:], 6, 4).gram.values - whole.gram.values).abs().max() > 1e-3


def test_every_part_is_the_sum_over_rows():
    X, Y = rows(700, 3, 2)
    found = GridStatistics.from_rows(GRID, X, Y, 3, 1)
    W = GRID.matrix(X).to_dense()
    assert (found.cross - W.T @ Y).abs().max() < 1e-12
    assert torch.allclose(found.target_squares, Y.square().sum(0), rtol=1e-13)
    assert torch.allclose(found.target_sums, Y.sum(0), rtol=1e-12)
    assert torch.allclose(found.target_means, Y.mean(0), rtol=1e-12)
    assert torch.allclose(found.target_variances, Y.var(0, correction=0), rtol=1e-10)
    assert torch.allclose(found.input_means, X.mean(0), rtol=1e-12)
    assert torch.allclose(found.input_variances, X.var(0, correction=0), rtol=1e-10)
    assert torch.equal(found.input_low, X.amin(0))
    assert torch.equal(found.input_high, X.amax(0))
    assert found.probe_squares.tolist() == [700.0] * 3
    assert found.cell_counts.sum() == 700
    assert found.occupancy == float((found.cell_counts > 0).double().mean())
    assert found.nbytes > found.gram.nbytes > 0


def test_rows_can_be_taken_out_again():
    X, Y = rows(2000, 3)
    all_rows = GridStatistics.from_rows(GRID, X, Y, 2, 1)
    left = GridStatistics.from_rows(GRID, X[:1500], Y[:1500], 2, 1)
    found = all_rows.remove_rows(X[1500:], Y[1500:])
    assert found.n_rows == 1500
    assert (found.gram.values - left.gram.values).abs().max() < 1e-12
    assert (found.probes - left.probes).abs().max() < 1e-12
    assert torch.equal(found.cell_counts, left.cell_counts)
    with pytest.raises(InvalidInputError, match="were never added"):
        left.remove_rows(X[1500:], Y[1500:])


def test_targets_are_shifted_and_scaled_without_the_rows():
    X, Y = rows(900, 3, 2)
    shift, scale = torch.tensor([1.5, -2.0]).double(), torch.tensor([0.3, 4.0]).double()
    found = GridStatistics.from_rows(GRID, X, Y).for_targets(shift, scale)
    assert difference(found, GridStatistics.from_rows(GRID, X, (Y - shift) / scale)) < 1e-12
    same = GridStatistics.from_rows(GRID, X, Y).for_targets(0.0, 1.0)
    assert difference(same, GridStatistics.from_rows(GRID, X, Y)) == 0
    with pytest.raises(InvalidInputError, match=r"scale .* must be positive"):
        found.for_targets(0.0, 0.0)
    with pytest.raises(InvalidInputError, match=r"shift .* one for each of 2"):
        found.for_targets([1.0, 2.0, 3.0], 1.0)


def test_inputs_are_shifted_and_scaled_without_the_rows():
    X, Y = rows(900, 3, 2)
    shift, scale = torch.tensor([1.5, -2.0, 100.0]).double(), torch.tensor([0.3, 4.0, 7.0]).double()
    found = GridStatistics.from_rows(GRID, X, Y).for_inputs(shift, scale)
    expected = GridStatistics.from_rows(found.grid, (X - shift) / scale, Y)
    assert found.grid.shape == GRID.shape
    assert difference(found, expected) < 1e-12
    for one, other in ((found.input_means, expected.input_means), (found.input_variances, expected.input_variances)):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert found.gram.grid == found.grid
    with pytest.raises(InvalidInputError, match=r"scale .* must be positive"):
        found.for_inputs(0.0, -1.0)
    with pytest.raises(InvalidInputError, match=r"shift .* one for each of 3 inputs"):
        found.for_inputs([1.0, 2.0], 1.0)


def test_probes_estimate_the_trace_without_bias():
    X, Y = rows(600, 3)
    found = GridStatistics.from_rows(GRID, X, Y, 2000, 0)
    squares = found.probes.square().sum(0)  # z' W W' z, whose mean is the trace of W'W
    error = float(squares.mean() - found.gram.trace) / float(squares.std() / 2000**0.5)
    assert abs(error) < 4
    # Control: the same test sees probes of rows that all share one sign.
    shared = GRID.matrix(X).to_dense().T @ torch.ones(600, 1, dtype=torch.float64)
    assert float(shared.square().sum() - found.gram.trace) / float(squares.std() / 2000**0.5) > 4


def test_many_equal_rows_are_warned_of():
    X, Y = rows(500, 3)
    X, Y = X.repeat(3, 1), Y.repeat(3, 1)
    with pytest.warns(GigaGPWarning, match="About 67% of the rows are exact copies"):
        GridStatistics.from_rows(GRID, X, Y, n_probes=2)
    GridStatistics.from_rows(GRID, X, Y)  # no probes, nothing to warn of
    GridStatistics.from_rows(GRID, X + torch.arange(1500)[:, None] * 1e-9, Y, n_probes=2)


def test_saved_and_loaded(tmp_path):
    X, Y = rows(300, 3, 2)
    found = GridStatistics.from_rows(GRID, X, Y, 3, 2)
    path = tmp_path / "sums.safetensors"
    found.save(path)
    assert difference(GridStatistics.load(path), found) == 0
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="damaged"):
        GridStatistics.load(path)
    with pytest.raises(ModelFileError, match="does not exist"):
        GridStatistics.load(tmp_path / "none")


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    X, Y = rows(300, 3)
    found = GridStatistics.from_rows(GRID, X, Y)
    path = tmp_path / "sums.safetensors"
    found.save(path)
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gigagp.storage.tensor_file._write_tensors", full)
    with pytest.raises(ModelFileError, match="No space left"):
        found.add_rows(X, Y).save(path)
    assert path.read_bytes() == before


def test_bad_rows_are_refused_and_add_nothing(way):
    X, Y = rows(50, 3)
    sums = Accumulator(GRID, 1)
    sums.add(X, Y)
    bad = X.clone()
    bad[17, 1] = torch.nan
    with pytest.raises(InvalidInputError, match="X must be finite; got NaN in column 1, row 17"):
        sums.add(bad, Y)
    bad[17, 1] = 50.0
    with pytest.raises(InvalidInputError, match=r"1 of 50 rows lie outside of the grid's region .* row 17"):
        sums.add(bad, Y)
    targets = Y.clone()
    targets[3] = torch.inf
    with pytest.raises(InvalidInputError, match="Y must be finite; got infinity in column 0, row 3"):
        sums.add(X, targets)
    with pytest.raises(InvalidInputError, match="squares overflow"):
        sums.add(X, Y * 1e300)
    with pytest.raises(InvalidInputError, match=r"shapes \(n, 3\) and \(n, 1\)"):
        sums.add(X[:, :2], Y)
    with pytest.raises(InvalidInputError, match=r"shapes \(n, 3\) and \(n, 1\)"):
        sums.add(X, Y[1:])
    with pytest.raises(InvalidInputError, match="must hold real numbers"):
        sums.add(X.numpy().astype(complex), Y)
    with pytest.raises(InvalidInputError, match="n_targets of Accumulator must be an int of at least 1"):
        Accumulator(GRID, 0)
    assert sums.n_rows == 50
    assert difference(sums.statistics(), GridStatistics.from_rows(GRID, X, Y)) == 0


def test_a_grid_that_does_not_fit_is_refused_before_anything_is_allocated():
    grid = RegularGrid.around((0, 0, 0), (1, 1, 1), (1200, 1200, 1200))
    with pytest.raises(MemoryBudgetError, match=r"1,728,000,000 nodes needs [\d,]+ bytes"):
        Accumulator(grid, 1)
    with pytest.raises(MemoryBudgetError, match="1,008 nodes needs"):
        GridStatistics.from_rows(GRID, *rows(5, 3), memory_budget="1MiB")


def test_only_alike_statistics_are_added():
    X, Y = rows(40, 3)
    one = GridStatistics.from_rows(GRID, X, Y, 2, 1)
    coarse = RegularGrid.around((-7, -7, -7), (3, 13, 23), (8, 8, 8))
    for other in (
        GridStatistics.from_rows(coarse, X, Y, 2, 1),
        GridStatistics.from_rows(GRID, X, Y, 2, 2),
        GridStatistics.from_rows(GRID, X, Y, 3, 1),
        GridStatistics.from_rows(GRID, X, torch.cat([Y, Y], 1), 2, 1),
    ):
        with pytest.raises(InvalidInputError, match="can be added or subtracted if"):
            one + other
    with pytest.raises(InvalidInputError, match="same grid"):
        one.gram + GridStatistics.from_rows(coarse, X, Y).gram


def test_float32_and_integers_count_as_their_float64():
    X, Y = rows(60, 3)
    low = X.float().numpy()
    found = GridStatistics.from_rows(GRID, low, Y[:, 0].numpy())
    assert difference(found, GridStatistics.from_rows(GRID, low.astype(np.float64), Y)) == 0
    whole = GridStatistics.from_rows(GRID, X.round(), Y.round().int())
    assert difference(whole, GridStatistics.from_rows(GRID, X.round(), Y.round())) == 0


def test_an_accumulator_goes_on_from_statistics():
    X, Y = rows(80, 3)
    start = GridStatistics.from_rows(GRID, X[:30], Y[:30], 2, 1)
    sums = Accumulator(GRID, 1, 2, 1, start=start)
    sums.add(X[30:], Y[30:])
    assert sums.n_rows == 80
    assert difference(sums.statistics(), GridStatistics.from_rows(GRID, X, Y, 2, 1)) < 1e-12


@pytest.mark.parametrize("weighted", [(), (0,), (1,), (0, 1)])
def test_rows_that_are_held_are_added(weighted):
    generator = torch.Generator().manual_seed(1)
    X = torch.rand(60, 2, dtype=torch.float64, generator=generator)
    V = torch.randn(9 * 8, 3, dtype=torch.float64, generator=generator)
    grid = RegularGrid.around((0, 0), (1, 1), (9, 8))
    one, other = (
        RowsGram(grid, part, torch.rand(len(part), generator=generator).double() if k in weighted else None)
        for k, part in enumerate(X.split([25, 35]))
    )
    both = one + other
    torch.testing.assert_close(both @ V, one @ V + other @ V, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(both.diagonal(), one.diagonal() + other.diagonal(), rtol=1e-12, atol=1e-12)
    assert both.nbytes == one.nbytes + other.nbytes
    with pytest.raises(InvalidInputError, match="on the same grid, can be added"):
        one + RowsGram(RegularGrid.around((0, 0), (1, 1), (8, 8)), X)
    with pytest.raises(InvalidInputError, match="Rows cannot be removed"):
        both - one
