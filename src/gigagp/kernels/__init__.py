"""Covariance functions: elementary kernels, and sums and products of them.

>>> from gigagp import kernels
>>> kernel = kernels.Matern(nu=1.5) + kernels.Periodic(period=365.25, columns=[0]) * kernels.RBF(columns=[0])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from gigagp.kernels.base import Kernel
from gigagp.kernels.categorical import Categorical
from gigagp.kernels.chosen import Chosen
from gigagp.kernels.composite import Product, Sum
from gigagp.kernels.draws import FeatureDraw
from gigagp.kernels.elementary import Constant, Linear, White
from gigagp.kernels.group import Group
from gigagp.kernels.leaf import Leaf
from gigagp.kernels.local_variance import LocalVariance, ScaleMap
from gigagp.kernels.outputs import Outputs
from gigagp.kernels.periodic import Cosine, Periodic
from gigagp.kernels.radial import RBF, Matern, RationalQuadratic
from gigagp.kernels.serialization import from_dict
from gigagp.kernels.series import DampedTrend, IntegratedWiener, Oscillator
from gigagp.kernels.stationary import StationaryKernel

if TYPE_CHECKING:
    from gigagp.kernels.translation import from_gpytorch, from_sklearn, to_gpytorch, to_sklearn

__all__ = [
    "RBF",
    "Categorical",
    "Chosen",
    "Constant",
    "Cosine",
    "DampedTrend",
    "FeatureDraw",
    "Group",
    "IntegratedWiener",
    "Kernel",
    "Leaf",
    "Linear",
    "LocalVariance",
    "Matern",
    "Oscillator",
    "Outputs",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "ScaleMap",
    "StationaryKernel",
    "Sum",
    "White",
    "from_dict",
    "from_gpytorch",
    "from_sklearn",
    "to_gpytorch",
    "to_sklearn",
]


def __getattr__(name: str) -> object:
    if name not in ("from_gpytorch", "from_sklearn", "to_gpytorch", "to_sklearn"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module("gigagp.kernels.translation"), name)
    globals()[name] = value  # the next use costs a dictionary look-up
    return value
