"""Files that are whole or absent: atomic writes, tensors with a header, solves kept for a restart, pictures.

What is in a file is for its owner to say: model files are in `gigagp.estimators.saving`, tables in `gigagp.tables`.
"""
