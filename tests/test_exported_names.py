from __future__ import annotations

import importlib
import re

import pytest

import gigagp

PUBLIC = {
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
}


def test_the_public_names_are_these():
    assert set(gigagp.__all__) == PUBLIC
    assert set(dir(gigagp)) >= PUBLIC
    assert re.match(r"\d+\.\d+", gigagp.__version__)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_name_loads(name):
    value = getattr(gigagp, name)
    assert getattr(gigagp, name) is value


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'GPRegresor'"):
        gigagp.GPRegresor  # noqa: B018


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (
            "kernels",
            "RBF Matern RationalQuadratic Periodic Linear Constant White Sum Product",
        ),
        (
            "solvers",
            "Cholesky ConjugateGradients AlternatingProjections StochasticGradientDescent PivotedCholesky "
            "RandomlyPivotedCholesky TwoLevel Vecchia",
        ),
        ("gradients", "Exact Hutchinson Pathwise"),
        ("truncation", "ExponentialDecay OneOverJ Geometric Uniform Fixed RussianRoulette SingleSample"),
        ("inference", "Exact Iterative Vecchia RandomFeatures Grid"),
        ("grids", "RegularGrid GridStatistics GridCollector StencilGram"),
        ("diagnostics", "measure_bias plot_bias BiasReport plot_map map_values"),
        ("plots", "plot curve surface partial_dependence relevance residuals calibration predicted"),
        ("optimization", "Adam LBFGS"),
        ("errors", "GigaGPError InvalidInputError ModelFileError SolverWarning FitWarning"),
        ("metrics", "rmse gaussian_nll gaussian_crps coverage"),
    ],
)
def test_the_design_promises_these(module, names):
    found = importlib.import_module(f"gigagp.{module}")
    assert [name for name in names.split() if not hasattr(found, name)] == []


@pytest.mark.parametrize(
    "name", ["actions", "gradients", "grids", "likelihoods", "means", "metrics", "planning", "truncation"]
)
def test_public_paths_are_modules_wherever_these_are(name):
    found = importlib.import_module(f"gigagp.{name}")
    assert found is getattr(gigagp, name)
    assert found.__spec__.name == found.__name__ != f"gigagp.{name}"  # no second copy
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"gigagp.{name}.nothing")


def test_parts_of_moved_folders_are_found_by_their_public_paths():
    from gigagp.gradients.pathwise import Pathwise

    assert Pathwise is gigagp.gradients.Pathwise
    assert importlib.import_module("gigagp.truncation.decay").__name__ == "gigagp.solvers.truncation.decay"
