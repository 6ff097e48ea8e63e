"""Reading and writing tables: CSV, Parquet (a file or a folder of files), Arrow (Feather) and NumPy.

`read_columns` gives what a file holds, of any type; `Table.from_arrow` takes the columns a model needs out of it and
makes numbers of them, or says which cell is in the way.
"""

from gigagp.data.reading import FORMATS, read_columns, read_table
from gigagp.data.table import Table, find_column
from gigagp.data.writing import write_table

__all__ = ["FORMATS", "Table", "find_column", "read_columns", "read_table", "write_table"]
