"""Kernels of GPyTorch and scikit-learn as kernels of this package, and back.

Neither package is imported before one of the functions is called.
"""

from gigagp.kernels.translation.gpytorch import from_gpytorch, to_gpytorch
from gigagp.kernels.translation.scikit_learn import from_sklearn, to_sklearn

__all__ = ["from_gpytorch", "from_sklearn", "to_gpytorch", "to_sklearn"]
