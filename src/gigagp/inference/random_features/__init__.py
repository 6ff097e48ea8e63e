"""Inference with random features, in one pass over the rows."""
