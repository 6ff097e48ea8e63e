"""Reading and writing tables: CSV, Parquet (a file or a folder of files), Arrow (Feather) and NumPy.

`read_columns` returns the columns of a file, whatever their types. `Table.from_arrow` turns the columns that a model
needs into numbers, or names the cell that cannot be one. `gigagp.tables.files.streaming` reads large files in chunks.
"""

from gigagp.tables.files.delimited import PLAIN, CsvStyle
from gigagp.tables.files.reading import FORMATS, read_columns, read_table
from gigagp.tables.files.table import Table, find_column
from gigagp.tables.files.writing import write_table

__all__ = ["FORMATS", "PLAIN", "CsvStyle", "Table", "find_column", "read_columns", "read_table", "write_table"]
