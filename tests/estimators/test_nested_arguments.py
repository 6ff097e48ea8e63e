"""scikit-learn's nested names reach the arguments of kernels and settings."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.fixes import parse_version

from gigagp import GPClassifier, GPRegressor, inference, kernels, likelihoods, optimization, solvers
from gigagp.errors import InvalidInputError
from gigagp.kernels.rebuilding import arguments_of, rebuilt
from helpers import all_kernels


class Powered(kernels.StationaryKernel):
    """k = variance * (1 + q / depth)^-power."""

    shapes = kernels.StationaryKernel.shapes | {"power": False}
    units = kernels.StationaryKernel.units | {"power": "none"}

    def __init__(self, depth=2, lengthscale=None, variance=None, **options):
        self.depth = depth
        super().__init__(lengthscale, variance, **options)

    def profile(self, q):
        return (1 + q / self.depth) ** -self.value("power", q)


KERNELS = {
    **all_kernels(),
    "unbound": kernels.Matern(columns=[1], bounds={"lengthscale": (0.1, None)}),
    "own": Powered(3, power=1.5),
    "groups": kernels.RBF([1.0, 2.0]).with_groups([0, 0, 1]).bind(3),
    "weights": kernels.RBF(2.0, ard=False).bind(2).with_input_weights([1.0, 3.0]),
    "categorical": kernels.Categorical(0.7, columns=[1, 2]),
    "centred": kernels.Linear(1.0, centre=[1.0, 2.0]),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_rebuilt_from_its_arguments(name):
    kernel = KERNELS[name]
    assert rebuilt(kernel, arguments_of(kernel)) == kernel
    gp = GPRegressor(kernel)
    deep = gp.get_params()
    gp.set_params(**{name: value for name, value in deep.items() if "__" in name})
    assert gp.kernel == kernel
    assert gp.kernel is not kernel
    if not isinstance(kernel, kernels.Sum | kernels.Product):
        other = rebuilt(kernel, {"fixed": ["variance"]})
        assert other.fixed_parameters() == {"variance"}
        assert kernel.fixed_parameters() != {"variance"}


def test_arguments_of_kernels_have_names():
    gp = GPRegressor(kernels.Matern(1.5, 2.0) + kernels.RBF() * kernels.White())
    found = gp.get_params()
    assert found["kernel__0__nu"] == 1.5
    assert found["kernel__0__lengthscale"] == 2.0
    assert found["kernel__1__0__lengthscale"] is None
    assert found["kernel__1__1__fixed"] == ()
    before = gp.kernel
    gp.set_params(kernel__0__nu=2.5, kernel__1__0__lengthscale=[1.0, 3.0], kernel__1__1__bounds={"variance": (0.1, 2)})
    expected = kernels.Matern(2.5, 2.0) + kernels.RBF([1.0, 3.0]) * kernels.White(bounds={"variance": (0.1, 2)})
    assert gp.kernel == expected
    assert before == kernels.Matern(1.5, 2.0) + kernels.RBF() * kernels.White()  # kernels do not change
    gp.set_params(kernel__1=kernels.Constant(2.0))
    assert gp.kernel == kernels.Matern(2.5, 2.0) + kernels.Constant(2.0)
    assert "kernel__0__nu" not in gp.get_params(deep=False)


def test_arguments_of_settings_have_names():
    gp = GPRegressor(
        inference=inference.Iterative(solver=solvers.ConjugateGradients()), optimizer=optimization.Restarts()
    )
    shared = gp.inference
    gp.set_params(inference__n_samples=8, inference__solver__tolerance=0.5, optimizer__restarts=2)
    assert gp.inference == inference.Iterative(n_samples=8, solver=solvers.ConjugateGradients(tolerance=0.5))
    assert shared == inference.Iterative(solver=solvers.ConjugateGradients())
    assert gp.optimizer == optimization.Restarts(restarts=2)
    assert GPRegressor(likelihood=likelihoods.StudentT(4.0)).set_params(likelihood__df=5.0).likelihood.df == 5.0
    # an argument is set before its own arguments, in whatever order they are given
    gp.set_params(kernel__nu=2.5, kernel=kernels.Matern(), inference__n_neighbors=7, inference=inference.Vecchia())
    assert gp.kernel == kernels.Matern(2.5)
    assert gp.inference == inference.Vecchia(7)
    classifier = GPClassifier(kernels.RBF(1.0)).set_params(kernel__lengthscale=3.0)
    assert classifier.kernel == kernels.RBF(3.0)


@pytest.mark.parametrize(
    ("arguments", "changes", "words"),
    [
        (
            {"kernel": None},
            {"kernel__nu": 2.5},
            "kernel__nu of GPRegressor cannot be set, because kernel is None.*Matern",
        ),
        ({"kernel": "matern"}, {"kernel__nu": 2.5}, "kernel is 'matern', which has no arguments"),
        ({}, {"inference__n_samples": 8}, "inference is 'auto', which has no arguments.*inference.Iterative"),
        ({"kernel": kernels.RBF()}, {"kernel__nu": 2.5}, "RBF has no argument 'nu'; it has lengthscale, variance, ard"),
        ({"kernel": kernels.RBF() + 1.0}, {"kernel__2__nu": 1.5}, "Sum has no argument '2'; it has 0, 1"),
        (
            {"kernel": kernels.RBF()},
            {"kernel__lengthscale__x": 1.0},
            "kernel__lengthscale is None, which has no arguments",
        ),
        ({"kernel": kernels.Matern()}, {"kernel__nu": 2.0}, "nu of Matern must be 0.5, 1.5 or 2.5; got 2.0"),
        ({"kernel": kernels.RBF()}, {"kernel__lengthscale": -1.0}, "lengthscale of RBF must be positive"),
        ({"inference": inference.Vecchia()}, {"inference__n_neighbors": 0}, "n_neighbors of Vecchia must be"),
        ({}, {"kernels": None}, "GPRegressor has no argument 'kernels'; it has device, distributed, dtype"),
        ({}, {"colour__hue": 1}, "GPRegressor has no argument 'colour'"),
    ],
)
def test_what_cannot_be_set_is_named_and_nothing_changes(arguments, changes, words):
    gp = GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | arguments)
    before = copy.copy(vars(gp))
    with pytest.raises(InvalidInputError, match=words):
        gp.set_params(verbose=1, **changes)
    assert vars(gp) == before


def test_searches_and_clones_use_them():
    X = np.random.default_rng(0).uniform(-2, 2, (60, 1))
    y = np.abs(X[:, 0])
    gp = GPRegressor(kernels.Matern(), optimizer=None)
    grid = {"kernel__nu": [0.5, 2.5], "kernel__lengthscale": [0.3, 3.0]}
    search = GridSearchCV(gp, grid, cv=3, error_score="raise").fit(X, y)
    assert search.best_estimator_.kernel == kernels.Matern(**{k[8:]: v for k, v in search.best_params_.items()})
    direct = {
        (nu, length): np.mean(
            GridSearchCV(GPRegressor(kernels.Matern(nu, length), optimizer=None), {}, cv=3).fit(X, y).best_score_
        )
        for nu in (0.5, 2.5)
        for length in (0.3, 3.0)
    }
    found = search.cv_results_
    for params, score in zip(found["params"], found["mean_test_score"], strict=True):
        assert score == direct[params["kernel__nu"], params["kernel__lengthscale"]]
    assert gp.kernel == kernels.Matern()
    copied = clone(gp.set_params(kernel__nu=0.5))
    assert copied.kernel == gp.kernel
    pipeline = make_pipeline(StandardScaler(), gp).set_params(gpregressor__kernel__nu=2.5)
    assert pipeline[-1].kernel == kernels.Matern(2.5)


@pytest.mark.skipif(parse_version(sklearn.__version__) < parse_version("1.7"), reason="older tables have no parameters")
def test_the_table_of_a_notebook_lists_them():
    assert "kernel__nu" in GPRegressor(kernels.Matern(2.5))._repr_html_()
