"""Gaussian processes at scale, with the error of limited computation accounted for.

The names below are loaded when they are first used, so that ``import gigagp`` costs no more than it must:
scikit-learn, SciPy and pyarrow are not touched before something needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gigagp import diagnostics, errors, inference, kernels, operators, optimization, plots, presets, search, solvers
    from gigagp.classification import GPClassifier
    from gigagp.diagnostics.comparison import compare
    from gigagp.diagnostics.report.making import report
    from gigagp.estimators import metrics, planning
    from gigagp.estimators.saving.persistence import load
    from gigagp.inference import gradients
    from gigagp.inference.computation_aware import actions
    from gigagp.model import likelihoods, means
    from gigagp.operators.grid import statistics as grids
    from gigagp.regression import GPRegressor
    from gigagp.solvers import truncation

#: Public name -> the module that has it (None: the name is a module of this package).
_HOMES = {
    "GPClassifier": "gigagp.classification",
    "GPRegressor": "gigagp.regression",
    "actions": None,
    "compare": "gigagp.diagnostics.comparison",
    "diagnostics": None,
    "errors": None,
    "gradients": None,
    "grids": None,
    "inference": None,
    "kernels": None,
    "likelihoods": None,
    "load": "gigagp.estimators.saving.persistence",
    "means": None,
    "metrics": None,
    "operators": None,
    "optimization": None,
    "planning": None,
    "plots": None,
    "presets": None,
    "report": "gigagp.diagnostics.report.making",
    "search": None,
    "solvers": None,
    "truncation": None,
}

__all__ = [
    "GPClassifier",
    "GPRegressor",
    "__version__",
    "actions",
    "compare",
    "diagnostics",
    "errors",
    "gradients",
    "grids",
    "inference",
    "kernels",
    "likelihoods",
    "load",
    "means",
    "metrics",
    "operators",
    "optimization",
    "planning",
    "plots",
    "presets",
    "report",
    "search",
    "solvers",
    "truncation",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    home = _HOMES[name]
    value = (
        importlib.import_module(f"{__name__}.{name}") if home is None else getattr(importlib.import_module(home), name)
    )
    globals()[name] = value  # the next use costs a dictionary look-up
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
