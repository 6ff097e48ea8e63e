"""Sparse variational inference: SGPR (Titsias 2009) and SVGP (Hensman et al. 2013) on the same inducing points."""

from gigagp.inference.sparse_variational.inference import SparseVariational

__all__ = ["SparseVariational"]
