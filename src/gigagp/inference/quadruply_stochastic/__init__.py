"""Quadruply stochastic inference: rows once and basis functions three times sampled (Evans and Nair 2020)."""

from gigagp.inference.quadruply_stochastic.settings import QuadruplyStochastic, RelevanceVectorMachine

__all__ = ["QuadruplyStochastic", "RelevanceVectorMachine"]
