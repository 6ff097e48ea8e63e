"""Engines that multiply with kernel matrices without storing them."""

from gigagp.products.cross import cross_covariance, cross_product
from gigagp.products.engine import Engine, LowRankWeights, Weights
from gigagp.products.measured_tiles import MeasuredTiles
from gigagp.products.native_tiles import NativeTiles
from gigagp.products.panel import PanelTiles
from gigagp.products.selection import product_entries, select
from gigagp.products.torch_tiles import TorchTiles
from gigagp.products.triton_tiles import TritonTiles

__all__ = [
    "Engine",
    "LowRankWeights",
    "MeasuredTiles",
    "NativeTiles",
    "PanelTiles",
    "TorchTiles",
    "TritonTiles",
    "Weights",
    "cross_covariance",
    "cross_product",
    "product_entries",
    "select",
]
