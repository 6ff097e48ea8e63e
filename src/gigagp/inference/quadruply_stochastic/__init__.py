"""Quadruply stochastic inference: a step samples the rows once and the basis functions up to three times.

The third sample, of the dense columns of the weights' covariance, is drawn where there are many columns.

Evans and Nair 2020, "Quadruply stochastic Gaussian processes", arXiv:2006.03015.
"""

from gigagp.inference.quadruply_stochastic.settings import QuadruplyStochastic, RelevanceVectorMachine

__all__ = ["QuadruplyStochastic", "RelevanceVectorMachine"]
