"""Measurements of the machinery itself: how far solves have to go, and how far estimates are from the truth."""

from gigagp.diagnostics.bias import BiasReport, BiasRow, measure_bias
from gigagp.diagnostics.inducing import inducing_distance, latent_share
from gigagp.diagnostics.plots import plot_bias
from gigagp.diagnostics.solves import InverseSpectrum, inverse_spectrum, squared_distance

__all__ = [
    "BiasReport",
    "BiasRow",
    "InverseSpectrum",
    "inducing_distance",
    "inverse_spectrum",
    "latent_share",
    "measure_bias",
    "plot_bias",
    "squared_distance",
]
