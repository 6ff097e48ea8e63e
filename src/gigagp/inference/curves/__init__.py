"""Inference for panels of many short curves, of which each is conditioned on whole curves of other entities."""

from gigagp.inference.curves.inference import Curves

__all__ = ["Curves"]
