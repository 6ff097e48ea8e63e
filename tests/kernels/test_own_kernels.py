"""Stationary kernels of a user's own, and subclasses of the package's: the numbers of their own `block`, everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gigagp
from engines import BUDGET, NO_EXTENSION
from gigagp import GPRegressor, inference, kernels
from gigagp.commands.options import KERNELS, choose_kernel
from gigagp.errors import InvalidInputError
from gigagp.kernels.catalogue import by_word, own_classes
from gigagp.kernels.fused import Profile
from gigagp.optimization.fisher import derivative_products
from gigagp.products import LowRankWeights, NativeTiles, TorchTiles, select
from helpers import autograd_gradient, generator, points, relative_error


class Cauchy(kernels.StationaryKernel):
    """All that a kernel needs: a profile."""

    def profile(self, q):
        return 1 / (1 + q)


class Powered(kernels.StationaryKernel):
    """A hyperparameter and a setting more, a random-feature law that is a mixture of RBF with rate 1 / 2."""

    shapes = {**kernels.StationaryKernel.shapes, "power": False}  # noqa: RUF012

    def __init__(self, depth=2, lengthscale=None, variance=None, **options):
        self.depth = depth
        super().__init__(lengthscale, variance, **options)

    def profile(self, q):
        return (1 + q / self.depth) ** -self.value("power", q)


class Spelled(kernels.StationaryKernel):
    """Closed forms and the compiled RBF, under a class of one's own that passes its values by name."""

    def __init__(self, lengthscale=None, variance=None):
        super().__init__({"lengthscale": lengthscale, "variance": variance})

    def profile(self, q):
        return torch.exp(-q)

    def profile_(self, p):
        return p.neg_().exp_()

    def profile_derivatives_(self, p):
        g = self.profile_(p)
        return g, -g, None

    def fused_profile(self):
        return Profile.RBF


class Doubled(kernels.RBF):
    """Another profile than its parent's, of which it inherits the rest."""

    def profile(self, q):
        return torch.exp(-2 * q)


class Halved(kernels.Matern):
    """Another covariance."""

    def block(self, X, Z):
        return 0.5 * super().block(X, Z)

    def diagonal(self, X):
        return 0.5 * super().diagonal(X)


class Warped(kernels.RationalQuadratic):
    """Other coordinates."""

    def scale(self, X):
        return torch.tanh(super().scale(X))


class Stretched(kernels.RBF):
    """Another argument of the closed form alone, which does not change the covariance."""

    distance_factor = 3.0


class Renamed(kernels.Matern):
    """Nothing new."""


class Raised(kernels.Constant):
    """A constant that is larger than it says."""

    def block(self, X, Z):
        return 3 * super().block(X, Z)


CASES = {
    "profile alone": Cauchy([0.7, 1.3, 2.1, 0.9], 1.7),
    "more hyperparameters": Powered(3, 1.1, 0.6, power=1.5),
    "declared": Spelled([0.7, 1.3, 2.1, 0.9], 1.7),
    "subclass with another profile": Doubled([0.7, 1.3, 2.1, 0.9], 1.7),
    "subclass with another block": Halved(2.5, [0.7, 1.3, 2.1, 0.9], 1.7),
    "subclass with other coordinates": Warped([0.7, 1.3, 2.1, 0.9], 1.7, 0.8),
    "subclass with another argument": Stretched(1.4),
    "subclass": Renamed(1.5, 1.4, columns=[1, 3]),
    "subclass of a constant": Raised(0.4),
    "in a tree": Doubled(1.2) * kernels.Matern(1.5) + Raised(0.3) + kernels.White(0.2),
}
CASES = {name: kernel.bind(4) for name, kernel in CASES.items()}
COMPILED = {"declared"}


def assert_engine(engine, kernel, dtype=torch.float64):
    """Assert that an engine has the values and derivatives of the kernel's own block."""
    X, Z = points(70, 4, dtype=dtype), points(45, 4, seed=1, dtype=dtype)
    V, W = points(70, 3, seed=2, dtype=dtype), points(45, 3, seed=3, dtype=dtype)
    error = 1e-11 if dtype == torch.float64 else 1e-4
    assert relative_error(engine.product(kernel, X, X, V, budget=BUDGET), kernel.block(X, X) @ V) < error
    assert relative_error(engine.product(kernel, X, Z, W, budget=BUDGET), kernel.block(X, Z) @ W) < error
    assert relative_error(engine.dense(kernel, X, budget=BUDGET), kernel.block(X, X)) < error
    found = engine.gradient(kernel, X, Z, LowRankWeights(V.abs(), W.abs()), symmetric=False, budget=BUDGET)
    expected = autograd_gradient(
        kernel, lambda k: (k.block(X.double(), Z.double()) * (V.abs() @ W.abs().T).double()).sum() + 0 * _any(k)
    )
    assert list(found) == list(kernel.parameters())
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=100 * error, atol=100 * error), name


def _any(kernel):
    """Return something that depends on every hyperparameter: white noise is zero between rows."""
    return sum(value.sum() for value in kernel.parameters().values())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_every_engine_computes_the_block_of_the_class(name, dtype):
    kernel = CASES[name]
    assert_engine(TorchTiles(tile_bytes=1), kernel, dtype)
    assert_engine(select(kernel, "cpu", dtype), kernel, dtype)
    for instruction_set in NativeTiles.instruction_sets():
        engine = NativeTiles(instruction_set)
        assert engine.supports(kernel) is (name in COMPILED)
        if name in COMPILED:
            assert_engine(engine, kernel, dtype)
        else:
            with pytest.raises(
                InvalidInputError, match="has a part without a compiled form; multiply with it on Torch"
            ):
                engine.product(
                    kernel,
                    points(5, 4, dtype=dtype),
                    points(5, 4, dtype=dtype),
                    points(5, 1, dtype=dtype),
                    budget=BUDGET,
                )


@pytest.mark.parametrize("name", CASES)
def test_derivatives_of_the_fisher_information_are_those_of_the_block(name):
    kernel, X, V = CASES[name], points(20, 4), points(20, 2, seed=1)
    found = derivative_products(kernel, X, V)
    step = 1e-6
    for key, value in kernel.parameters().items():
        up, down = (kernel.replace({key: value * (1 + sign * step)}) for sign in (1, -1))
        moved = [(k.block(X, X) + torch.diag(k.white(X))) @ V for k in (up, down)]
        slope = (moved[0] - moved[1]) / (2 * step)
        expected = (found[key] * value.reshape(-1, 1, 1)).sum(0)
        assert torch.allclose(expected, slope, atol=1e-7), key


@pytest.mark.skipif(not NativeTiles.available(), reason=NO_EXTENSION)
def test_an_inherited_declaration_would_be_wrong(monkeypatch):
    """The control of the above: what the compiled engine would compute if a subclass had its parent's profile."""
    kernel, X, V = CASES["subclass with another profile"], points(40, 4), points(40, 1, seed=1)
    monkeypatch.setattr(Doubled, "fused_profile", kernels.RBF.fused_profile)
    found = NativeTiles().product(kernel, X, X, V, budget=BUDGET)
    assert relative_error(found, kernel.block(X, X) @ V) > 0.1
    monkeypatch.setattr(Doubled, "has_closed_form", lambda self: True)
    found = TorchTiles().product(kernel, X, X, V, budget=BUDGET)
    assert relative_error(found, kernel.block(X, X) @ V) > 0.1


def test_random_features_belong_to_the_class_that_wrote_them():
    have = {name for name, kernel in CASES.items() if kernel.has_features()}
    assert have == {"subclass with other coordinates", "subclass with another argument", "subclass"}
    with pytest.raises(InvalidInputError, match=r"Random features of \['Doubled'\] are not known"):
        CASES["subclass with another profile"].draw_features(8, 4, generator())

    class Described(Doubled):
        def frequencies(self, draw):
            return 2 * super().frequencies(draw)

    kernel, X = Described(1.3).bind(2), points(6, 2)
    draw = kernel.draw_features(200_000, 2, generator())
    features = kernel.features(X, draw)
    assert torch.allclose(features @ features.T, kernel.block(X, X), atol=0.02)


def test_the_constructor_is_written_once():
    kernel = Cauchy([1.0, 2.0], 3.0, columns=[0, 2], fixed=("variance",), bounds={"lengthscale": (0.1, None)})
    assert repr(kernel) == (
        "Cauchy(lengthscale=[1.0, 2.0], variance=3.0, columns=[0, 2], fixed=['variance'], "
        "bounds={'lengthscale': [0.1, None]})"
    )
    assert eval(repr(kernel), {"Cauchy": Cauchy}) == kernel
    powered = CASES["more hyperparameters"]
    assert powered.settings() == {"depth": 3}
    assert eval(repr(powered), {"Powered": Powered}).bind(4) == powered
    for make in (lambda: Cauchy(power=1.0), lambda: kernels.Matern(lenghtscale=1.0)):
        with pytest.raises(TypeError, match=r"(Cauchy|Matern)\(\) got an unexpected keyword argument"):
            make()
    with pytest.raises(InvalidInputError, match="lengthscale of RBF must be a number"):
        kernels.RBF({"variance": 1.0})
    with pytest.raises(InvalidInputError, match="power of Powered must be positive"):
        Powered(power=-1.0)


@pytest.mark.parametrize("settings", [inference.Exact(), inference.SparseVariational(20)])
def test_a_profile_alone_fits_saves_and_loads(tmp_path, settings):
    X = np.random.default_rng(0).uniform(-2, 2, (60, 2))
    y = np.sin(X[:, 0]) + 0.1 * np.cos(3 * X[:, 1])
    with pytest.raises(InvalidInputError, match=r"must have random features for inference\.Iterative"):
        GPRegressor(Cauchy(), inference.Iterative()).fit(X, y)
    gp = GPRegressor(Cauchy(fixed=("variance",)), settings, random_state=0).fit(X, y)
    assert gp.score(X, y) > 0.98
    gp.save(tmp_path / "m")
    loaded = gigagp.load(tmp_path / "m", custom=[Cauchy])
    np.testing.assert_array_equal(loaded.predict(X), gp.predict(X))


def test_the_package_s_own_classes_are_found_by_being_defined():
    own = own_classes()
    others = {"Chosen", "FeatureDraw", "Kernel", "Leaf", "StationaryKernel", "from_dict"}
    others |= {"from_gpytorch", "from_sklearn", "to_gpytorch", "to_sklearn"}
    assert set(own) == set(kernels.__all__) - others
    assert all(cls is getattr(kernels, name) for name, cls in own.items())
    assert {"rbf", "matern12", "matern32", "matern52", "rq"} <= set(by_word())
    assert set(KERNELS) <= set(by_word())
    for word, make in by_word().items():
        kernel = choose_kernel(word)
        assert kernel == make()
        assert kernels.from_dict(json.loads(json.dumps(kernel.to_dict()))) == kernel


#: The class and its export: all that a kernel of the package needs.
CLASS = """
from gigagp.kernels.stationary import StationaryKernel

class Cauchy(StationaryKernel):
    words = {"cauchy": {}}

    def profile(self, q):
        return 1 / (1 + q)
"""
USE = """
import sys, types, torch
import gigagp
from gigagp import GPRegressor, kernels

module = sys.modules["gigagp.kernels.cauchy"] = types.ModuleType("gigagp.kernels.cauchy")
exec(sys.argv[2], module.__dict__)
kernels.Cauchy = module.Cauchy

from gigagp.commands.options import choose_kernel
kernel = choose_kernel("cauchy+linear")
assert kernels.from_dict(kernel.to_dict()) == kernel
X = torch.rand(40, 2, dtype=torch.float64).numpy()
gp = GPRegressor(kernel).fit(X, X[:, 0])
gp.save(sys.argv[1])
assert (gigagp.load(sys.argv[1]).predict(X) == gp.predict(X)).all()  # without custom: it is the package's own
print(type(gp.kernel_.parts[0]).__name__, gp.engine_)
"""


@pytest.mark.slow
def test_a_new_kernel_of_the_package_is_its_class_and_its_export(tmp_path):
    """In a process of its own, because the package would keep the class."""
    environment = {**os.environ, "PYTHONPATH": str(Path(gigagp.__file__).parents[1])}
    command = [sys.executable, "-c", USE, str(tmp_path / "m"), CLASS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("Cauchy torch tiles"), done.stderr[-2000:]
