"""Whatever a user gives becomes float64 rows: arrays, data frames, files, streams, and columns of any type.

Nothing here knows a model. An error names the column and the row of the cell that is at fault.
"""
