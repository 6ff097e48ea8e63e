"""How a Gaussian process is inferred: one file for each system."""

from gigagp.inference.exact import Exact
from gigagp.inference.iterative import Iterative

__all__ = ["Exact", "Iterative"]
