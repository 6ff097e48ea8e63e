"""Exact inference by a Cholesky factor, the answers of the prior, and mixtures of posteriors."""
