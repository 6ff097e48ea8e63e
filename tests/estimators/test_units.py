"""Units: hyperparameters are given and read in the data's own units."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gigagp
from gigagp import GPClassifier, GPRegressor, inference, kernels, optimization
from gigagp.errors import InvalidInputError
from gigagp.kernels.leaf import Hyperparameter, Leaf

RNG = np.random.default_rng(0)
X = np.stack([2000 + 5 * RNG.standard_normal(50), 1e-3 * RNG.standard_normal(50)], 1)
Y = 1e3 * (np.sin(X[:, 0]) + 100 * X[:, 1]) + 5e4
NEW = X[:7] + np.array([0.1, 1e-4])
NOISE = 100.0

KERNELS = {
    "rbf": kernels.RBF([2.0, 1e-3], 3e5),
    "one length for all inputs": kernels.Matern(1.5, 0.5, 1e5, ard=False),
    "rational quadratic": kernels.RationalQuadratic([2.0, 1e-3], 1e5, 2.0),
    "periodic": kernels.Periodic([1.0, 2.0], 1e5, [1.0, 1e-3]),
    "one period for all inputs": kernels.Periodic(2.0, 1e5, 0.7, ard=False),
    "cosine": kernels.Cosine(1e5, [3.0, 1e-2]),
    "linear": kernels.Linear([3.0, 1e9]),
    "linear about a year": kernels.Linear([3.0, 1e9], centre=[1990.0, 0.0]),
    "one slope for all inputs": kernels.Linear(3.0, ard=False) + kernels.RBF([2.0, 1e-3], 1e5),
    "constant times": kernels.Constant(2e5) * kernels.RBF([2.0, 1e-3]),
    "number times": 2.0 * kernels.RBF([2.0, 1e-3], 1e5),
    "sum in a product": (kernels.RBF([2.0, 1e-3], 3e4) + kernels.Constant(2e4))
    * kernels.Periodic(1.0, 2.0, 1.0, columns=[0]),
    "fixed in a product": kernels.Matern(2.5, 2.0, 3.0, columns=[0], fixed=True) * kernels.RBF(2e-3, 1e5, columns=[1]),
    "noise that grows": kernels.White(3.0) * kernels.Linear([3.0, 1e9]) + kernels.RBF([2.0, 1e-3], 1e5),
}


def fit(kernel: kernels.Kernel | None, **settings: object) -> GPRegressor:
    return GPRegressor(kernel, **{"optimizer": None, "noise_variance": NOISE, **settings}).fit(X, Y)


def covariance(kernel: kernels.Kernel) -> torch.Tensor:
    return kernel.block(torch.from_numpy(X), torch.from_numpy(NEW))


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_given_is_what_is_read(name: str) -> None:
    gp = fit(KERNELS[name])
    read = gp.kernel_.parameters()
    for parameter, given in KERNELS[name].bind(2).parameters().items():
        torch.testing.assert_close(read[parameter], given, rtol=1e-12, atol=0)
    assert gp.noise_variance_ == pytest.approx(NOISE, rel=1e-12)
    standardized = gp.posterior_.model.parameters()
    assert any(not torch.allclose(read[one], standardized[one]) for one in read)  # control


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernel_that_is_read_is_the_prior_of_the_rows(name: str) -> None:
    """In the data's own units it has the covariances of the standardized problem."""
    gp = fit(KERNELS[name])
    scaling, unit = gp.scaling_, gp.scaling_.y_scale[0] ** 2
    left, right = (torch.from_numpy(scaling.inputs(points)) for points in (X, NEW))
    used = gp.posterior_.model.kernel
    torch.testing.assert_close(covariance(gp.kernel_), unit * used.block(left, right), rtol=1e-9, atol=1e-9 * unit)
    torch.testing.assert_close(gp.kernel_.white(torch.from_numpy(X)), unit * used.white(left), rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", KERNELS)
def test_standardizing_does_not_show(name: str) -> None:
    gp = fit(KERNELS[name])
    plain = fit(gp.kernel_, standardize=False)
    for one, other in zip(gp.predict(NEW, return_std=True), plain.predict(NEW, return_std=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("name", KERNELS)
def test_a_model_file_keeps_both(name: str, tmp_path: object) -> None:
    gp = fit(KERNELS[name])
    gp.save(f"{tmp_path}/model.gp")
    again = gigagp.load(f"{tmp_path}/model.gp")
    assert again.kernel_ == gp.kernel_
    assert again.noise_variance_ == gp.noise_variance_
    assert np.array_equal(again.predict(NEW), gp.predict(NEW))
    assert again.fit(X, Y).kernel_ == gp.kernel_


def test_what_is_not_given_follows_the_data() -> None:
    read = fit(None, noise_variance=None)
    np.testing.assert_allclose(read.kernel_.lengthscale, 2**0.5 * X.std(0), rtol=1e-12)
    assert float(read.kernel_.variance) == pytest.approx(Y.var(), rel=1e-12)
    assert read.noise_variance_ == pytest.approx(0.09 * Y.var(), rel=1e-12)
    half = fit(kernels.RBF([2.0, 1e-3]))
    torch.testing.assert_close(half.kernel_.lengthscale, torch.tensor([2.0, 1e-3], dtype=torch.float64))
    assert float(half.kernel_.variance) == pytest.approx(Y.var(), rel=1e-12)


def test_bounds_are_in_the_units_of_the_values() -> None:
    bounded = kernels.RBF([0.55, 1e-3], bounds={"lengthscale": ([0.5, 9e-4], [0.6, 1.1e-3]), "variance": (1e3, 2e7)})
    gp = GPRegressor(bounded).fit(X, Y)
    lengthscale = gp.kernel_.lengthscale
    assert lengthscale is not None
    assert bool((lengthscale >= torch.tensor([0.5, 9e-4], dtype=torch.float64) * (1 - 1e-9)).all())
    assert bool((lengthscale <= torch.tensor([0.6, 1.1e-3], dtype=torch.float64) * (1 + 1e-9)).all())
    free = GPRegressor(kernels.RBF([2.0, 1e-3])).fit(X, Y).kernel_.lengthscale
    assert free is not None
    assert not 0.5 < float(free[0]) < 0.6  # control: the bounds are active


def test_a_period_in_years_finds_the_year() -> None:
    """A period that was interpreted as standardized led to 17.6 years."""
    months = 1960 + np.arange(300) / 12
    level = 300 + 2 * (months - 1960) + 3 * np.sin(2 * np.pi * months) + 0.2 * RNG.standard_normal(300)
    yearly = kernels.Periodic(period=1.0) * kernels.RBF(lengthscale=50.0) + kernels.RBF(lengthscale=30.0)
    gp = GPRegressor(yearly).fit(months[:-48, None], level[:-48])
    assert float(gp.kernel_.parameters()["0.0.period"][0]) == pytest.approx(1.0, abs=1e-3)
    assert np.sqrt(np.mean((gp.predict(months[-48:, None]) - level[-48:]) ** 2)) < 0.6


def test_history_and_description_are_in_the_same_units() -> None:
    gp = GPRegressor(kernels.RBF() * kernels.Constant(2.0)).fit(X, Y)
    last = gp.history_[-1].hyperparameters
    scale = gp.scaling_
    assert np.all(np.array(last["0.lengthscale"]) / scale.x_scale < 1e3)
    assert gp.history_[0].hyperparameters["0.lengthscale"] == pytest.approx(list(2**0.5 * scale.x_scale))
    described = {line.split()[0]: line.split()[1:] for line in gp.describe().splitlines() if line.strip()}
    assert float(described["0.variance"][1]) == pytest.approx(float(described["0.variance"][0]) * Y.var(), rel=1e-4)
    assert described["1.variance"][0] == described["1.variance"][1]  # a factor has no unit
    assert float(described["noise_variance"][1]) == pytest.approx(gp.noise_variance_, rel=1e-4)


def test_known_noise_and_several_targets() -> None:
    known = np.linspace(50, 200, len(X))
    np.testing.assert_allclose(fit(None, noise_variance=known).noise_variance_, known)
    given = {"optimizer": None, "noise_variance": 0.25}
    both = GPRegressor(outputs="shared", **{"kernel": kernels.Matern(nu=1.5)} | given).fit(X, np.stack([Y, X[:, 0]], 1))
    assert both.noise_variance_ == 0.25  # a share of each target's variance
    np.testing.assert_allclose(both.kernel_.lengthscale, 2**0.5 * X.std(0), rtol=1e-12)
    own = GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | given).fit(X, np.stack([Y, X[:, 0]], 1))
    for k, target in enumerate((Y, X[:, 0])):
        assert own.noise_variance_[k] == pytest.approx(0.25)  # in squared units of each target
        assert float(own.posterior_[k].model.noise_variance) == pytest.approx(0.25 / target.var())


class Sinc(Leaf):
    """A user-defined kernel that does not define the units of its hyperparameters."""

    shapes = {"length": False, "variance": False}  # noqa: RUF012
    length = Hyperparameter("Length.")

    def __init__(self, length: float = 1.0, variance: float = 1.0) -> None:
        super().__init__({"length": length, "variance": variance})

    def block(self, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        return self.value("variance", X) * torch.sinc((X[:, :1] - Z[:, 0]) / self.value("length", X))

    def diagonal(self, X: torch.Tensor) -> torch.Tensor:
        return self.value("variance", X).expand(len(X))


def test_a_kernel_of_ones_own_sees_standardized_inputs_unless_it_says_its_units() -> None:
    silent = fit(Sinc(0.7, 0.9))
    assert float(silent.kernel_.parameters()["length"]) == 0.7
    assert float(silent.posterior_.model.parameters()["length"]) == 0.7
    assert "not known" in silent.describe()


@pytest.mark.filterwarnings("ignore:Squared errors of the latent function")  # few functions
@pytest.mark.parametrize("settings", [inference.Grid(size=(30, 30)), inference.QuadruplyStochastic(n_basis=50)])
def test_streamed_fits_have_the_same_units(settings: object) -> None:
    gp = GPRegressor(kernels.RBF([2.0, 1e-3], 3e5), inference=settings, optimizer=None, noise_variance=1e5)
    gp.fit_table((X, Y))
    torch.testing.assert_close(
        gp.kernel_.lengthscale, torch.tensor([2.0, 1e-3], dtype=torch.float64), rtol=1e-9, atol=0
    )
    assert float(gp.kernel_.variance) == pytest.approx(3e5, rel=1e-9)
    assert gp.noise_variance_ == pytest.approx(1e5, rel=1e-9)


def test_classifiers_have_lengthscales_of_the_inputs() -> None:
    labels = np.where(np.sin(X[:, 0]) > 0, "up", "down")
    gp = GPClassifier(kernels.RBF([2.0, 5e-3]), optimizer=None).fit(X, labels)
    torch.testing.assert_close(
        gp.latent_.kernel_.lengthscale, torch.tensor([2.0, 5e-3], dtype=torch.float64), rtol=1e-12, atol=0
    )


def test_standardized_units_by_choice() -> None:
    gp = fit(kernels.RBF([0.5, 2.0], 0.8), noise_variance=0.01, hyperparameter_units="standardized")
    assert gp.kernel_.lengthscale is not None
    assert gp.kernel_.lengthscale.tolist() == [0.5, 2.0]
    assert gp.noise_variance_ == 0.01
    assert gp.kernel_ == gp.posterior_.model.kernel
    with pytest.raises(InvalidInputError, match="hyperparameter_units of GPRegressor"):
        fit(None, hyperparameter_units="imperial")


@pytest.mark.slow
def test_learning_does_not_depend_on_the_units_of_the_table() -> None:
    optimizer = optimization.LBFGS(20)
    metres = GPRegressor(kernels.Matern(nu=1.5), optimizer=optimizer).fit(X, Y)
    other = GPRegressor(kernels.Matern(nu=1.5), optimizer=optimizer).fit(X * [1e3, 1e-2], Y / 1e6)
    np.testing.assert_allclose(
        other.kernel_.lengthscale, metres.kernel_.lengthscale * torch.tensor([1e3, 1e-2]), rtol=1e-4
    )
    assert float(other.kernel_.variance) == pytest.approx(float(metres.kernel_.variance) / 1e12, rel=1e-4)
