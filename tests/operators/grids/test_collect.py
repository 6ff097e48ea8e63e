from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.estimators.saving.persistence import save_state
from gigagp.operators.grid.statistics import (
    GridCollector,
    GridStatistics,
    Neighbourhoods,
    RegularGrid,
    RowSample,
    moments,
    source_bounds,
    stream_rows,
)

from .conftest import rows
from .test_statistics import difference

INPUTS, TARGETS = ["a", "b"], ["y"]
GRID = RegularGrid.around((-7, -7), (3, 13), (9, 14))


def table(n: int = 600, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, pa.Table]:
    X, Y = rows(n, 2, seed=seed)
    columns = {"y": Y[:, 0].numpy(), "b": X[:, 1].numpy(), "note": ["text"] * n, "a": X[:, 0].numpy()}
    return X, Y, pa.table(columns)


def folder(path, frame: pa.Table, parts: int = 4, group: int = 50) -> list:
    """Write a table as Parquet files of several row groups, some in a folder of their own."""
    (path / "more").mkdir(parents=True)
    step, files = -(-frame.num_rows // parts), []
    for k in range(parts):
        files.append(path / ("more" if k == parts - 1 else "") / f"part-{k}.parquet")
        pq.write_table(frame.slice(k * step, step), files[-1], row_group_size=group)
    return sorted(files)


@pytest.fixture
def expected() -> GridStatistics:
    X, Y, _ = table()
    return GridStatistics.from_rows(GRID, X, Y, 3, 1)


def collected(source, **options) -> GridCollector:
    named = {} if isinstance(source, tuple) or hasattr(source, "__next__") else {"inputs": INPUTS, "targets": TARGETS}
    return GridCollector(GRID, 1, 3, 1).read(source, **named, **options)


@pytest.mark.few(1)
@pytest.mark.parametrize("chunk_rows", [7, 64, 10_000])
def test_every_kind_of_source_gives_the_same_statistics(tmp_path, chunk_rows, expected):
    X, Y, frame = table()
    pq.write_table(frame, tmp_path / "one.parquet", row_group_size=90)
    frame.drop(["note"]).to_pandas().to_csv(tmp_path / "one.csv", index=False)
    folder(tmp_path / "parts", frame)
    sources = {
        "arrays": (X.numpy(), Y[:, 0].numpy()),
        "tensors": (X, Y),
        "arrow": frame,
        "pandas": frame.to_pandas(),
        "parquet": tmp_path / "one.parquet",
        "csv": str(tmp_path / "one.csv"),
        "folder": tmp_path / "parts",
        "generator": ((X[k : k + 83], Y[k : k + 83]) for k in range(0, 600, 83)),
    }
    for name, source in sources.items():
        found = collected(source, chunk_rows=chunk_rows)
        assert found.n_rows == 600, name
        assert difference(found.statistics(), expected) < 1e-12, name
        assert torch.equal(found.sample.X.sort(0).values, X.sort(0).values)


def test_a_generator_may_use_its_memory_again(expected):
    X, Y, _ = table()

    def chunks():
        points, values = np.empty((100, 2)), np.empty(100)
        for k in range(0, 600, 100):
            points[:], values[:] = X[k : k + 100], Y[k : k + 100, 0]
            yield points, values

    assert difference(collected(chunks()).statistics(), expected) < 1e-12


def test_a_damaged_file_is_named_and_reading_goes_on_when_it_is_mended(tmp_path, expected):
    _, _, frame = table()
    files = folder(tmp_path / "parts", frame)
    whole = files[2].read_bytes()
    # Pages of the second row group are garbage; the metadata at the end is whole.
    group = pq.read_metadata(files[2]).row_group(1)
    start = min(group.column(k).dictionary_page_offset or group.column(k).data_page_offset for k in (0, 1, 3))
    damaged = bytearray(whole)
    damaged[start : start + 400] = b"\xff" * 400
    files[2].write_bytes(damaged)
    collector = GridCollector(GRID, 1, 3, 1)
    with pytest.raises(InvalidInputError, match=rf"{files[2].name} .*rows before it are kept; mend or remove") as error:
        collector.read(tmp_path / "parts", INPUTS, TARGETS)
    done = collector.n_rows
    assert f"{done:,} rows" in str(error.value)
    assert 300 <= done < 450
    assert sum(collector.done.values()) == done
    # What was added is unharmed ...
    X, Y, _ = table()
    order = torch.cat([torch.arange(600).split(150)[k] for k in order_of(files)])
    partial = GridStatistics.from_rows(GRID, X[order[:done]], Y[order[:done]], 3, 1)
    assert difference(collector.statistics(), partial) < 1e-12
    # ... also in a file, from which another process goes on.
    collector.save(tmp_path / "state")
    files[2].write_bytes(whole)
    for resumed in (collector, GridCollector.load(tmp_path / "state")):
        resumed.read(tmp_path / "parts", INPUTS, TARGETS)
        assert resumed.n_rows == 600
        assert difference(resumed.statistics(), expected) < 1e-12
        resumed.read(tmp_path / "parts", INPUTS, TARGETS)  # nothing is left to read
        assert resumed.n_rows == 600


@pytest.mark.few(1)
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("lattice", [False, True])
def test_a_pass_that_stops_anywhere_goes_on_to_the_same_bits(tmp_path, monkeypatch, lattice):
    """The bits depend on the order of the rows alone: not on chunks, on where a pass stopped, nor on what was saved."""
    monkeypatch.setattr(moments, "_LEAST_ROWS", 64)
    monkeypatch.setattr(moments, "_MOST_ROWS", 64)
    X, Y, _ = table()
    if lattice:  # most rows are as far from a centre as others
        X = X.round()

    def collector() -> GridCollector:
        near = Neighbourhoods(X[[3, 70]], torch.ones(2).double(), 40, 1)
        return GridCollector(GRID, 1, 3, 1, sample_size=50, neighbourhoods=near)

    def contents(found: GridCollector) -> dict[str, torch.Tensor]:
        assert found.neighbourhoods is not None
        tensors = found.statistics().state()[0] | found.sample.state()[0]
        return tensors | {f"near.{name}": value for name, value in found.neighbourhoods.state()[0].items()}

    once = collector()
    once.add(X, Y)
    expected = contents(once)
    for stops in ([1], [63], [64], [65], [333], [599], [64, 128], [10, 20, 400], [150, 151, 152]):
        found = collector()
        for first, last in zip([0, *stops], [*stops, 600], strict=True):
            for start in range(first, last, 37):
                found.add(X[start : min(start + 37, last)], Y[start : min(start + 37, last)])
            found.save(tmp_path / "state")  # changes nothing
            if last in stops[::2]:
                found = GridCollector.load(tmp_path / "state")
        for name, value in contents(found).items():
            assert torch.equal(value, expected[name]), (stops, name)
        assert found.n_rows == 600


def test_a_state_of_earlier_versions_is_read(tmp_path, expected):
    """They kept statistics in the place of sums."""
    X, Y, _ = table()
    half = GridCollector(GRID, 1, 3, 1)
    half.add(X[:300], Y[:300])
    tensors, header = half.statistics().state()
    own, header["sample"] = half.sample.state()
    header |= {"done": {"a": 300}, "notes": {"b": 1}}
    save_state(tmp_path / "old", "GridCollector", tensors | {f"sample.{k}": v for k, v in own.items()}, header)
    found = GridCollector.load(tmp_path / "old")
    assert (found.done, found.notes, found.n_rows) == ({"a": 300}, {"b": 1}, 300)
    found.add(X[300:], Y[300:])
    assert difference(found.statistics(), expected) < 1e-12


def order_of(files: list) -> list[int]:
    return [int(file.stem.removeprefix("part-")) for file in files]


def test_a_file_without_its_end_is_named(tmp_path):
    _, _, frame = table()
    files = folder(tmp_path / "parts", frame)
    files[1].write_bytes(files[1].read_bytes()[:-30])
    with pytest.raises(InvalidInputError, match=rf"{files[1].name} cannot be read as a table beyond its row 0"):
        collected(tmp_path / "parts")
    with pytest.raises(InvalidInputError, match=f"{files[1].name} cannot be read"):
        source_bounds(tmp_path / "parts", INPUTS, TARGETS)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("cell", "match"),
    [(np.nan, "column 'a', row 412"), (99.0, "rows after its first 400: 1 of 100 rows lie outside .* row 11")],
)
def test_a_bad_row_in_a_file_names_the_file_and_adds_nothing_of_its_chunk(tmp_path, ending, cell, match):
    _, _, frame = table()
    data = frame.drop(["note"]).to_pandas()
    data.loc[411, "a"] = cell
    path = tmp_path / f"bad.{ending}"
    data.to_csv(path, index=False) if ending == "csv" else data.to_parquet(path, row_group_size=100)
    collector = GridCollector(GRID, 1)
    with pytest.raises(InvalidInputError, match=match) as error:
        collector.read(path, INPUTS, TARGETS, chunk_rows=100)
    assert str(path) in str(error.value)
    assert collector.n_rows == 400 == collector.done[str(path)]


@pytest.mark.parametrize("kind", ["folder", "file", "arrays"])
def test_shares_of_a_source_make_the_whole(tmp_path, kind, expected):
    X, Y, frame = table()
    folder(tmp_path / "parts", frame)
    pq.write_table(frame, tmp_path / "one.parquet", row_group_size=55)
    source = {"folder": tmp_path / "parts", "file": tmp_path / "one.parquet", "arrays": (X, Y)}[kind]
    parts = [collected(source, chunk_rows=40, share=(k, 3)) for k in range(3)]
    assert all(part.n_rows for part in parts)
    if kind == "file":  # one of them stops half-way and goes on
        half = GridCollector(GRID, 1, 3, 1)
        for rows in list(stream_rows(source, INPUTS, TARGETS, chunk_rows=40, share=(1, 3)))[:4]:
            half.add(rows.X, rows.Y)
            half.done[rows.part] = rows.last
        parts[1] = half.read(source, INPUTS, TARGETS, chunk_rows=40, share=(1, 3))
    whole = parts[0].statistics() + parts[1].statistics() + parts[2].statistics()
    assert whole.n_rows == 600
    assert difference(whole, expected) < 1e-12


@pytest.mark.parametrize(
    ("read", "match"),
    [
        (lambda c, p: c.read(p / "none", INPUTS, TARGETS), "does not exist"),
        (lambda c, p: c.read(p, INPUTS, TARGETS), "folder without Parquet or CSV files"),
        (lambda c, p: c.read(p / "x.parquet"), "lists of column names"),
        (lambda c, p: c.read(p / "x.parquet", "a", "y"), "lists of column names"),
        (lambda c, p: c.read(table()[2], ["a", "B"], ["y"]), "no column 'B'. Did you mean 'b'"),
        (lambda c, p: c.read(table()[2], ["a", "note"], ["y"]), "got the text 'text' in column 'note', row 0"),
        (lambda c, p: c.read(7), "A source of rows is"),
        (lambda c, p: c.read(iter([np.zeros((3, 2))])), "must yield pairs"),
        (lambda c, p: c.read((np.zeros((3, 2)), np.zeros(4))), "same number of rows"),
        (lambda c, p: c.read((np.zeros((3, 2)), np.zeros(3)), chunk_rows=0), "chunk_rows must be positive"),
        (lambda c, p: c.read((np.zeros((3, 2)), np.zeros(3)), share=(2, 2)), "share"),
    ],
)
def test_bad_sources_are_refused(tmp_path, read, match):
    with pytest.raises(InvalidInputError, match=match):
        read(GridCollector(GRID), tmp_path)


def test_a_collector_is_not_statistics(tmp_path):
    collected((table()[0], table()[1])).save(tmp_path / "state")
    with pytest.raises(ModelFileError, match="holds a 'GridCollector', not a 'GridStatistics'"):
        GridStatistics.load(tmp_path / "state")


def test_neighbourhoods_hold_the_nearest_rows():
    X, Y, _ = table(5000)
    centres, spacing = X[[3, 1700]], torch.tensor([0.5, 2.0]).double()
    parts = [Neighbourhoods(centres, spacing, 60, 1) for _ in range(2)]
    for place, (points, values) in enumerate(zip(X.split(333), Y.split(333), strict=True)):
        parts[place % 2].add(points, values)
    for centre, (found, values) in zip(centres, (parts[0] + parts[1]).boxes(), strict=True):
        distances = ((X - centre) / spacing).abs().amax(1)
        nearest = distances.topk(60, largest=False).indices
        assert torch.equal(found, X[nearest])
        assert torch.equal(values, Y[nearest])
    collector = GridCollector(GRID, neighbourhoods=Neighbourhoods(centres, spacing, 60, 1)).read((X, Y))
    assert torch.equal(collector.neighbourhoods.boxes()[0][0], (parts[0] + parts[1]).boxes()[0][0])


def test_samples_and_notes_travel_with_a_collector(tmp_path):
    X, Y, frame = table()
    folder(tmp_path / "parts", frame)
    near = Neighbourhoods(X[:3], [1.0, 2.0], 40, 1)
    half = GridCollector(GRID, 1, 3, 1, sample_size=100, neighbourhoods=near)
    chunks = list(stream_rows(tmp_path / "parts", INPUTS, TARGETS, chunk_rows=50))
    for chunk in chunks[:6]:
        half.take(chunk)
    half.notes = {"shift": [1.5]}
    half.save(tmp_path / "state")
    again = GridCollector.load(tmp_path / "state")
    assert again.notes == {"shift": [1.5]}
    for collector in (half, again):
        collector.read(tmp_path / "parts", INPUTS, TARGETS)
    assert torch.equal(half.sample.X, again.sample.X)
    assert (half.sample.size, half.sample.n_rows) == (again.sample.size, again.sample.n_rows) == (100, 600)
    assert again.neighbourhoods is not None
    for one, other in zip(near.boxes(), again.neighbourhoods.boxes(), strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
    whole = RowSample(100, 2, 1, 1)
    whole.add(X, Y)
    assert torch.equal(whole.X, again.sample.X)


def test_a_row_that_is_not_finite_is_named_wherever_it_comes_from():
    X, Y, _ = table()
    broken = X.clone()
    broken[333, 1] = torch.inf
    pairs = [(broken[k : k + 83], Y[k : k + 83]) for k in range(0, 600, 83)]
    for source in ((broken, Y), pairs):
        for use in (source_bounds, lambda rows: GridCollector(GRID).read(rows)):
            with pytest.raises(InvalidInputError, match="X must be finite; got infinity in column 1, row 333 "):
                use(source)
    huge = torch.full_like(Y, 1e308)  # finite, but their sum is not
    assert sum(len(rows.X) for rows in stream_rows((X, huge))) == 600
