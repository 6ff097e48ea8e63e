"""Estimators of the gradient of the log marginal likelihood."""

from gigagp.inference.gradients.base import GradientEstimator, Probes
from gigagp.inference.gradients.exact import Exact
from gigagp.inference.gradients.hutchinson import Hutchinson
from gigagp.inference.gradients.pathwise import Pathwise, PathwiseProbes

__all__ = ["Exact", "GradientEstimator", "Hutchinson", "Pathwise", "PathwiseProbes", "Probes"]
