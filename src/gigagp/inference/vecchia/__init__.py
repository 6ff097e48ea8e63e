"""Vecchia inference: every row, and every new point, conditioned on its nearest neighbours."""

from gigagp.inference.vecchia.inference import Vecchia

__all__ = ["Vecchia"]
