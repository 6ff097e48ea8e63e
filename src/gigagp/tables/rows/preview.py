"""What can be known of a source before the pass over it: the range of its inputs, and a sample of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.tables.rows.chunk import CHUNK_ROWS, Chunk
from gigagp.tables.rows.sample import RowSample
from gigagp.tables.rows.source import RowSource, no_rows
from gigagp.tables.rows.storage import Bounds

#: Largest number of rows that a preview reads where it need not read all of them, and the number of stretches of
#: consecutive rows that these lie in.
PREVIEW_ROWS, _STRETCHES = 2**20, 16
#: Number of rows that a preview keeps.
_SAMPLE_ROWS = 2**16


@dataclass(frozen=True)
class Preview:
    """What is known of a source before the pass over it: the range of each input, and some of its rows.

    ``n_rows`` is None if only the pass will tell. The sample's rows are spread over the source where these are cheap to
    read, and otherwise from its beginning.
    """

    lower: list[float]
    upper: list[float]
    n_rows: int | None
    sample: RowSample


def preview_of(source: RowSource, seed: int, bounds: tuple[Sequence[float], Sequence[float]] | None = None) -> Preview:
    """Return the range of a source's inputs and some of its rows.

    Of Parquet files with the ranges of their columns in their metadata, a few stretches of rows are read. Of all other
    sources every row is read, or only the first rows if finite ``bounds`` (lower, upper) of the inputs are given.
    Raises `InvalidInputError` if there are no rows, an input is constant, or bounds do not fit or are missing for a
    generator.
    """
    if bounds is None and source.reads_once:
        msg = "bounds of fit_table must be given for a generator: its range cannot be known before its end."
        raise InvalidInputError(msg)
    if bounds is not None and not len(bounds[0]) == len(bounds[1]) == source.n_inputs:
        raise InvalidInputError(
            "bounds of fit_table must be the smallest and the largest inputs, two sequences of "
            f"{source.n_inputs} finite numbers; got {bounds!r}."
        )
    sample = RowSample(_SAMPLE_ROWS, source.n_inputs, source.n_targets, seed)
    found = _sample_stretches(source, sample)
    if found is None and bounds is None:
        found = Bounds.union(_sampled(source.chunks(), sample))
    elif found is None:
        for chunk in map(source.prepared, source.storage.beginning(PREVIEW_ROWS, source.chunk_rows)):
            sample.add(chunk.X, chunk.Y)
    if not len(sample):
        raise no_rows()
    n_rows = None if found is None else found.n_rows
    corners = bounds if bounds is not None else found
    assert corners is not None
    lower, upper = (list(map(float, corner)) for corner in corners[:2])
    for column, (a, b) in enumerate(zip(lower, upper, strict=True)):
        if a == b:
            msg = f"Input {source.label(column)} is constant (always {a!r}). Leave it out of the inputs."
            raise InvalidInputError(msg)
    return Preview(lower, upper, n_rows, sample)


def _sampled(chunks: Iterator[Chunk], sample: RowSample) -> Iterator[Bounds]:
    """Add chunks to a sample, and yield their bounds."""
    for chunk in chunks:
        sample.add(chunk.X, chunk.Y)
        yield Bounds.of(chunk.X)


def _sample_stretches(source: RowSource, sample: RowSample) -> Bounds | None:
    """Add stretches of rows to a sample if all bounds are known without reading, and return these bounds."""
    storage = source.storage
    parts = storage.parts
    known = []
    for part in parts:
        bounds = storage.known_bounds(part)
        if bounds is None:
            return None
        known.append(bounds)
    for part, first, count in _stretches(parts, [bounds.n_rows for bounds in known]):
        try:
            for chunk in _stretch(source, part, first, count):
                sample.add(chunk.X, chunk.Y)
        except InvalidInputError:
            if not len(sample):
                raise
            # The pass will meet the same error. It keeps what came before, and says so.
    return Bounds.union(known)


def _stretch(source: RowSource, part: str, first: int, count: int) -> Iterator[Chunk]:
    """Yield ``count`` rows of a part."""
    left = count
    for chunk in source.storage.read(part, min(count, CHUNK_ROWS), first):
        yield source.prepared(replace(chunk, X=chunk.X[:left], Y=chunk.Y[:left]))
        left -= len(chunk.X)
        if left <= 0:
            return


def _stretches(parts: Sequence[str], counts: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    """Yield part, first row and number of rows of stretches spread evenly over all parts together."""
    ends, total = np.cumsum(counts), sum(counts)
    n_stretches = 1 if total <= PREVIEW_ROWS else _STRETCHES
    length = min(PREVIEW_ROWS // n_stretches, total)
    for k in range(n_stretches):
        start = int((k + 0.5) / n_stretches * total - length / 2)
        for place in range(int(np.searchsorted(ends, start, side="right")), len(parts)):
            begin, end = int(ends[place]) - counts[place], int(ends[place])
            if start + length <= begin:
                break
            first = max(start, begin)
            yield parts[place], first - begin, min(start + length, end) - first
