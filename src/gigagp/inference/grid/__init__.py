"""Grid inference: kernel interpolation as regression on the nodes of a regular grid (Yadav et al. 2021)."""

from gigagp.inference.grid.inference import Grid

__all__ = ["Grid"]
