"""Estimators of the gradient of the log marginal likelihood."""

from gigagp.gradients.base import GradientEstimator, Probes
from gigagp.gradients.exact import Exact
from gigagp.gradients.hutchinson import Hutchinson
from gigagp.gradients.pathwise import Pathwise, PathwiseProbes

__all__ = ["Exact", "GradientEstimator", "Hutchinson", "Pathwise", "PathwiseProbes", "Probes"]
