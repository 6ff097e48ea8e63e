"""Gaussian processes at scale, with the error of limited computation accounted for.

The names below are loaded when they are first used, so that ``import gigagp`` costs no more than it must:
scikit-learn, SciPy and pyarrow are not touched before something needs them.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str

    from gigagp import (
        diagnostics,
        errors,
        forecasting,
        inference,
        kernels,
        operators,
        optimization,
        plots,
        presets,
        search,
        solvers,
    )
    from gigagp.classification import GPClassifier
    from gigagp.diagnostics.comparison import compare
    from gigagp.diagnostics.report.making import report
    from gigagp.estimators import metrics, planning
    from gigagp.estimators.saving.persistence import load
    from gigagp.forecasting.door import forecast
    from gigagp.inference import gradients
    from gigagp.inference.computation_aware import actions
    from gigagp.model import likelihoods, means
    from gigagp.operators.grid import statistics as grids
    from gigagp.regression import GPRegressor
    from gigagp.solvers import truncation
    from gigagp.tables import panels

#: Public name -> its module, or its module and its name there.
_HOMES = {
    "GPClassifier": "gigagp.classification:GPClassifier",
    "GPRegressor": "gigagp.regression:GPRegressor",
    "actions": "gigagp.inference.computation_aware.actions",
    "compare": "gigagp.diagnostics.comparison:compare",
    "diagnostics": "gigagp.diagnostics",
    "errors": "gigagp.errors",
    "forecast": "gigagp.forecasting.door:forecast",
    "forecasting": "gigagp.forecasting",
    "gradients": "gigagp.inference.gradients",
    "grids": "gigagp.operators.grid.statistics",
    "inference": "gigagp.inference",
    "kernels": "gigagp.kernels",
    "likelihoods": "gigagp.model.likelihoods",
    "load": "gigagp.estimators.saving.persistence:load",
    "means": "gigagp.model.means",
    "metrics": "gigagp.estimators.metrics",
    "operators": "gigagp.operators",
    "optimization": "gigagp.optimization",
    "planning": "gigagp.estimators.planning",
    "panels": "gigagp.tables.panels",
    "plots": "gigagp.plots",
    "presets": "gigagp.presets",
    "report": "gigagp.diagnostics.report.making:report",
    "search": "gigagp.search",
    "solvers": "gigagp.solvers",
    "truncation": "gigagp.solvers.truncation",
}

__all__ = [
    "GPClassifier",
    "GPRegressor",
    "__version__",
    "actions",
    "compare",
    "diagnostics",
    "errors",
    "forecast",
    "forecasting",
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
    "panels",
    "planning",
    "plots",
    "presets",
    "report",
    "search",
    "solvers",
    "truncation",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        value: object = _installed_version()
    elif name in _HOMES:
        module, _, attribute = _HOMES[name].partition(":")
        value = importlib.import_module(module)
        value = getattr(value, attribute) if attribute else value
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # the next use costs a dictionary look-up
    return value


def _installed_version() -> str:
    """Return the version that the build took from the tag; 0.0.0 for sources that were never installed."""
    metadata = importlib.import_module("importlib.metadata")
    try:
        return str(metadata.version(__name__))
    except metadata.PackageNotFoundError:
        return "0.0.0"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _PublicPaths:
    """Finds modules by their public paths, such as ``gigagp.gradients``, wherever they are; never a second copy."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        public, _, inner = rest.partition(".")
        home = _HOMES.get(public, ":") if package == __name__ else ":"
        if ":" in home or home == f"{package}.{public}":
            return None
        alias = _Alias(f"{home}.{inner}" if inner else home)
        return ModuleSpec(name, alias)  # type: ignore[arg-type]  # importlib.abc.Loader is slow to import


class _Alias:
    """Loads a module that is another one."""

    def __init__(self, module: str) -> None:
        self.module = importlib.import_module(module)
        self.spec = self.module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has put that of the alias there


sys.meta_path.insert(0, _PublicPaths())
