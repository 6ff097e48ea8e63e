"""User-defined kernels, means, likelihoods, settings and estimators, through a file and back."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import gigagp
from gigagp import GPRegressor, inference, kernels, likelihoods, optimization
from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.estimators.saving.persistence import load_state, save_state
from gigagp.model.means import Mean
from gigagp.settings.custom import Custom

GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-2, 2, (30, 2))
Y = np.sin(X[:, 0]) + 0.1 * GENERATOR.normal(size=30)


class Hat(kernels.Leaf):
    """A user-defined kernel with a setting in addition to its hyperparameters."""

    shapes = {"variance": False}  # noqa: RUF012

    def __init__(self, variance=None, power=2, fixed=()):
        super().__init__({"variance": variance}, fixed=fixed)
        self.power = power

    def settings(self):
        return {**super().settings(), "power": self.power}

    def block(self, X, Z):
        distance = torch.cdist(X, Z.to(X))
        return self.bind(X.shape[1]).value("variance", X) * torch.exp(-distance) ** self.power

    def diagonal(self, X):
        return self.bind(X.shape[1]).value("variance", X).expand(len(X))


class Forgetful(Hat):
    """A kernel whose description leaves out its setting."""

    def settings(self):
        return kernels.Leaf.settings(self)


class Rough(kernels.Matern):
    """A subclass of a kernel of the package."""

    def block(self, X, Z):
        return 0.5 * super().block(X, Z)

    def diagonal(self, X):
        return 0.5 * super().diagonal(X)


#: A subclass with the name of its parent, which a file must not confuse with it.
Shadow = type("RBF", (kernels.RBF,), {"block": lambda self, X, Z: 2 * kernels.RBF.block(self, X, Z)})


def trend(X):
    return 3 * X[:, 0]


@dataclass(frozen=True)
class Squares(Mean):
    """A user-defined basis."""

    power: int = 2
    name = "constant"  # the name of another mean

    def basis(self, X):
        return torch.cat([torch.ones_like(X[:, :1]), X[:, :1] ** self.power], 1)


@dataclass(frozen=True)
class Steep(likelihoods.Poisson):
    """A subclass of a likelihood of the package, with the same name."""

    slope: float = 1.5

    def log_density(self, y, f, noise):
        return super().log_density(y, self.slope * f, noise)


@dataclass(frozen=True)
class Patient(optimization.Adam):
    """A user-defined setting."""

    patience: int = 3


class Regressor(GPRegressor):
    """A user-defined estimator."""

    def predict(self, X, **options):
        return super().predict(X, **options)


QS = inference.QuadruplyStochastic(20)
CASES = {
    "kernel": (GPRegressor(Hat(0.7, power=3), optimizer=None), [Hat]),
    "in a sum and a product": (GPRegressor(kernels.RBF() * Hat() + kernels.White(), optimizer=None), [Hat]),
    "learned": (GPRegressor(kernels.Constant() + Hat(), optimizer=optimization.Adam(steps=2)), [Hat]),
    "subclass of a kernel": (GPRegressor(kernels.Linear() + Rough(1.5), optimizer=None), [Rough]),
    "same name": (GPRegressor(Shadow() + kernels.RBF(), optimizer=None), [Shadow]),
    "mean function": (GPRegressor(mean=trend, optimizer=None), [trend]),
    "mean": (GPRegressor(mean=Squares(3), optimizer=None), [Squares]),
    "likelihood": (
        GPRegressor(kernels.RBF(), likelihood=Steep(1.2), inference=QS, optimizer=None, mean="zero"),
        [Steep],
    ),
    "setting": (GPRegressor(optimizer=Patient(steps=2)), [Patient]),
    "estimator": (Regressor(Hat(), optimizer=None), [Regressor, Hat]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_handed_in_comes_back_with_the_same_bits(tmp_path, name):
    gp, custom = CASES[name]
    gp.fit(X, np.abs(Y).round() if name == "likelihood" else Y).save(tmp_path / "m")
    loaded = gigagp.load(tmp_path / "m", custom=custom)
    assert type(loaded) is type(gp)
    for mine, theirs in zip(loaded.predict(X, return_std=True), gp.predict(X, return_std=True), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert [type(leaf) for leaf in loaded.kernel_.leaves()] == [type(leaf) for leaf in gp.kernel_.leaves()]
    for left in range(len(custom)):
        with pytest.raises(ModelFileError, match=rf"not gigagp's: '{custom[left].__name__}'.*pass it on: gigagp.load"):
            gigagp.load(tmp_path / "m", custom=custom[:left] + custom[left + 1 :])
    loaded.save(tmp_path / "again")
    again = gigagp.load(tmp_path / "again", custom=[*custom, int])
    np.testing.assert_array_equal(again.predict(X), gp.predict(X))


class Callable:
    def __call__(self, X):
        return X[:, 0]


@dataclass(frozen=True)
class Holding(Mean):
    """A basis with an attribute that is not plain data."""

    table: object = None
    name = "holding"

    def basis(self, X):
        return torch.ones_like(X[:, :1])


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"mean": lambda X: X[:, 0]}, "no name by which gigagp.load could find it"),
        ({"mean": functools.partial(np.sum, axis=1)}, "no name by which"),
        ({"mean": Callable()}, "no name by which"),
        ({"mean": Holding(np.zeros(3))}, "only data that JSON can represent|cannot be recreated"),
        ({"kernel": Forgetful(1.0, power=4)}, "Forgetful, recreated from its description, differs from the original"),
        ({"kernel": kernels.RBF() + Forgetful(1.0, power=4)}, "differs from the original"),
    ],
)
def test_what_could_not_come_back_is_refused_before_anything_is_written(tmp_path, settings, match):
    path = tmp_path / "m"
    path.write_text("what was there", encoding="utf-8")
    gp = GPRegressor(optimizer=None, **settings).fit(X, Y)
    with pytest.raises(InvalidInputError, match=match):
        gp.save(path)
    assert path.read_text(encoding="utf-8") == "what was there"
    assert list(tmp_path.iterdir()) == [path]


def test_an_estimator_with_the_name_of_another_is_refused(tmp_path):
    other = type("GPRegressor", (GPRegressor,), {})
    with pytest.raises(InvalidInputError, match="rename it"):
        other(optimizer=None).fit(X, Y).save(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_another_function_of_the_same_name_is_noticed(tmp_path):
    """A model's predictions must not depend on which version of a function happens to be available."""
    GPRegressor(mean=trend, optimizer=None).fit(X, Y).save(tmp_path / "mean")
    GPRegressor(Hat(), optimizer=None).fit(X, Y).save(tmp_path / "kernel")
    changed = type("Hat", (Hat,), {"block": lambda self, X, Z: 1.01 * Hat.block(self, X, Z)})

    def other(X):
        return 3.01 * X[:, 0]

    other.__name__ = "trend"
    for name, custom in (("mean", other), ("kernel", changed)):
        with pytest.raises(ModelFileError, match="compute other numbers than those the model was fitted with"):
            gigagp.load(tmp_path / name, custom=[custom])


def test_a_model_that_an_earlier_version_could_only_save_is_read(tmp_path):
    """Its file has the name of the class and no mark."""
    gp = GPRegressor(Hat(0.7), optimizer=None).fit(X, Y)
    gp.save(tmp_path / "m")
    kind, tensors, header = load_state(tmp_path / "m")
    del header["custom_values"], header["kernel"]["custom"], header["settings"]["kernel"]["kernel"]["custom"]
    save_state(tmp_path / "old", kind, tensors, header)
    with pytest.raises(ModelFileError, match="not gigagp's: 'Hat'"):
        gigagp.load(tmp_path / "old")
    np.testing.assert_array_equal(gigagp.load(tmp_path / "old", custom=[Hat]).predict(X), gp.predict(X))


def test_nothing_is_imported_for_a_name_in_a_file(tmp_path, monkeypatch):
    GPRegressor(Hat(), optimizer=None).fit(X, Y).save(tmp_path / "m")
    kind, tensors, header = load_state(tmp_path / "m")
    header["kernel"] |= {"kernel": "Hat", "custom": "antigravity.Hat"}
    save_state(tmp_path / "m", kind, tensors, header)
    with pytest.raises(ModelFileError, match="not gigagp's"):
        gigagp.load(tmp_path / "m")
    import sys

    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("custom", "match"),
    [([3], "list of classes and functions"), (["Hat"], "list of classes"), (3, "list of cl"), ([Hat(), Hat], "list")],
)
def test_what_can_be_handed_in(tmp_path, custom, match):
    with pytest.raises(InvalidInputError, match=match):
        Custom(custom)
    with pytest.raises(InvalidInputError, match="two different items named 'Hat'"):
        Custom([Hat, type("Hat", (Hat,), {})])
    GPRegressor(Hat(), optimizer=None).fit(X, Y).save(tmp_path / "m")
    with pytest.raises(ModelFileError, match="must be a class derived from Kernel"):
        gigagp.load(tmp_path / "m", custom=[type("Hat", (), {})])
