"""Regular grids, interpolation, and the statistics of rows on a grid, which are all that grid inference keeps of them.

::

    grid = RegularGrid.around(X.min(0), X.max(0), shape=(80, 80, 20))
    statistics = GridStatistics.from_rows(grid, X, y)      # one pass; the rows are not needed afterwards
    statistics.gram @ v                                    # W'W v; the cost does not depend on the number of rows
"""

from gigagp.operators.grid.statistics.accumulator import Accumulator
from gigagp.operators.grid.statistics.collect import GridCollector
from gigagp.operators.grid.statistics.geometry import RegularGrid
from gigagp.operators.grid.statistics.gram import StencilGram
from gigagp.operators.grid.statistics.grid_sum import GridSum
from gigagp.operators.grid.statistics.neighbourhoods import Neighbourhoods
from gigagp.operators.grid.statistics.statistics import GridStatistics
from gigagp.operators.grid.statistics.sum_gram import SumGram
from gigagp.tables.rows.sample import RowSample
from gigagp.tables.rows.source import source_bounds, stream_rows

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
