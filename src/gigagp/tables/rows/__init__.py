"""Rows, whatever holds them: in chunks, by number, and in minibatches from random places.

- A source is what a user gives: arrays, a data frame, a file, a folder, an iterable or a function. `stream_rows` turns
  any source into chunks, and `source_bounds` finds the range of its inputs.
- `RowSource` is a source as a fit sees it: with inputs and targets chosen, and with labels or a known mean dealt with.
  `preview_of` says what is known of it before the pass.
- `RowAccess` takes its rows by number, and `RowPasses` puts them into random order, pass after pass.
- `RandomOrder` numbers the rows at random, and passes over them in the order in which they are stored.
- `RowSample` keeps a random sample of a stream.

This package knows neither models nor grids. It reads files with `gigagp.tables.files`.
"""

from gigagp.tables.rows.access import RowAccess, Section
from gigagp.tables.rows.chunk import CHUNK_ROWS, Chunk
from gigagp.tables.rows.passes import RowPasses
from gigagp.tables.rows.preview import Preview, preview_of
from gigagp.tables.rows.random_order import PlacedRows, RandomOrder
from gigagp.tables.rows.sample import RowSample
from gigagp.tables.rows.source import RowSource, source_bounds, stream_rows
from gigagp.tables.rows.storage import Bounds

__all__ = [
    "CHUNK_ROWS",
    "Bounds",
    "Chunk",
    "PlacedRows",
    "Preview",
    "RandomOrder",
    "RowAccess",
    "RowPasses",
    "RowSample",
    "RowSource",
    "Section",
    "preview_of",
    "source_bounds",
    "stream_rows",
]
