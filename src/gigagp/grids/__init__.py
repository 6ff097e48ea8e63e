"""Regular grids, interpolation, and the statistics of rows on a grid, which are all that grid inference keeps of them.

::

    grid = RegularGrid.around(X.min(0), X.max(0), shape=(80, 80, 20))
    statistics = GridStatistics.from_rows(grid, X, y)      # one pass; the rows are not needed afterwards
    statistics.gram @ v                                    # W'W v; the cost does not depend on the number of rows
"""

from gigagp.grids.accumulator import Accumulator
from gigagp.grids.collect import GridCollector
from gigagp.grids.geometry import RegularGrid
from gigagp.grids.gram import StencilGram
from gigagp.grids.grid_sum import GridSum
from gigagp.grids.neighbourhoods import Neighbourhoods
from gigagp.grids.statistics import GridStatistics
from gigagp.grids.sum_gram import SumGram
from gigagp.rows.sample import RowSample
from gigagp.rows.source import source_bounds, stream_rows

__all__ = [
    "Accumulator",
    "GridCollector",
    "GridStatistics",
    "GridSum",
    "Neighbourhoods",
    "RegularGrid",
    "RowSample",
    "StencilGram",
    "SumGram",
    "source_bounds",
    "stream_rows",
]
