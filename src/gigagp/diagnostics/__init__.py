"""Measurements of solves and of the errors of estimates, and plots of these and of fitted models."""

from gigagp.diagnostics.bias import BiasReport, BiasRow, measure_bias
from gigagp.diagnostics.comparison import Compared, Comparison, compare
from gigagp.diagnostics.plots import plot_bias, plot_map
from gigagp.diagnostics.solves import (
    InverseSpectrum,
    inducing_distance,
    inverse_spectrum,
    latent_share,
    squared_distance,
)
from gigagp.plots import MapValues, map_values

__all__ = [
    "BiasReport",
    "BiasRow",
    "Compared",
    "Comparison",
    "InverseSpectrum",
    "MapValues",
    "compare",
    "inducing_distance",
    "inverse_spectrum",
    "latent_share",
    "map_values",
    "measure_bias",
    "plot_bias",
    "plot_map",
    "squared_distance",
]
