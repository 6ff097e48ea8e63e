"""Sparse variational inference with inducing points: SGPR (Titsias 2009) and SVGP (Hensman et al. 2013)."""

from gigagp.inference.sparse_variational.inference import SparseVariational

__all__ = ["SparseVariational"]
