"""Reading and writing tables: CSV, Parquet (a file or a folder of files), Arrow (Feather) and NumPy.

`read_columns` returns the columns of a file, whatever their types. `Table.from_arrow` turns the columns that a model
needs into numbers, or names the cell that cannot be one. `gigagp.data.streaming` reads large files in chunks.
"""

from gigagp.data.delimited import PLAIN, CsvStyle
from gigagp.data.reading import FORMATS, read_columns, read_table
from gigagp.data.table import Table, find_column
from gigagp.data.writing import write_table

__all__ = ["FORMATS", "PLAIN", "CsvStyle", "Table", "find_column", "read_columns", "read_table", "write_table"]
