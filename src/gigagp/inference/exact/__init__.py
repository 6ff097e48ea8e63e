"""Exact inference by a Cholesky factor, and mixtures of posteriors."""
