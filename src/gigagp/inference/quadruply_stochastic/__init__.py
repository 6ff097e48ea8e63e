"""Quadruply stochastic inference: every step samples the rows once and the basis functions three times.

Evans and Nair 2020, "Quadruply stochastic Gaussian processes", arXiv:2006.03015.
"""

from gigagp.inference.quadruply_stochastic.settings import QuadruplyStochastic, RelevanceVectorMachine

__all__ = ["QuadruplyStochastic", "RelevanceVectorMachine"]
