"""Engines that multiply with kernel matrices without storing them."""

from gigagp.products.engine import Engine, Weights, select
from gigagp.products.torch_tiles import TorchTiles

__all__ = ["Engine", "TorchTiles", "Weights", "select"]
