"""Hyperparameters are in the data's own units, regardless of internal standardization."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from contract import dense
from contract.checks import answers, failures
from contract.problems import TABLES, Problem, Table, known_mean
from contract.systems import BY_NAME, KINDS
from gigagp import kernels

#: Location and scale of inputs and targets, none of them near zero or one.
SHIFT, SIZE, TARGET_SHIFT, TARGET_SIZE = 700.0, np.array([40.0, 0.003]), -2000.0, 30.0


def in_other_units(mean: str, noise: str, kernel=None, covariance=None) -> Problem:
    """Return the Gaussian table with inputs and targets in other units."""
    plain = TABLES[0]()
    draw, n = np.random.default_rng(8), len(plain.X)
    scale = SIZE * np.array([0.9, 1.4])
    X, new = SHIFT * SIZE + SIZE * plain.X, SHIFT * SIZE + SIZE * plain.new
    kernel = kernel or kernels.Matern(1.5, scale, 1.3 * TARGET_SIZE**2)
    covariance = covariance or dense.matern(1.5, scale, 1.3 * TARGET_SIZE**2)
    one = 0.1 * TARGET_SIZE**2
    each = one * (draw.uniform(0.5, 2, size=n) if noise == "rows" else np.ones(n))
    root = np.linalg.cholesky(covariance(X, X) + 1e-9 * TARGET_SIZE**2 * np.eye(n))
    y = TARGET_SHIFT + root @ draw.normal(size=n) + np.sqrt(each) * draw.normal(size=n) + known_mean(X)
    table = Table("own units", X, new, kernel, covariance, one)
    return Problem(table, y[:, None], mean, each, noise == "rows", "float64", "gaussian")


def assert_own_units(gp, cell):
    """The hyperparameters read are those given, because nothing was learned."""
    given = cell.table.kernel.bind(2)
    for name, value in given.parameters().items():
        assert torch.allclose(gp.kernel_.parameters()[name].double(), value.double(), rtol=1e-9), name
    assert np.allclose(gp.noise_variance_, cell.noise if cell.rows_known else cell.table.noise, rtol=1e-9)


@pytest.mark.few(6)
@pytest.mark.filterwarnings("ignore:Squared errors")  # few functions, given noise
@pytest.mark.parametrize("noise", ["one", "rows"])
@pytest.mark.parametrize("mean", ["constant", "linear", "function"])
@pytest.mark.parametrize("system", KINDS, ids=repr)
def test_standardizing_is_internal(system, mean, noise):
    """With a mean that includes the targets' centre, predictions are those in the data's own units."""
    if noise in system.refuses:
        return  # `test_gaussian` tests that it is refused
    cell = in_other_units(mean, noise)
    gp = system.fit(cell, standardize=True)
    assert_own_units(gp, cell)
    if mean == "function":  # without a constant beside it, centred targets have a mean of zero
        shift = (cell.Y - cell.offset(cell.table.X)).mean()
        centred = replace(cell, Y=cell.Y - shift)
        found = _moved(system, gp, centred, shift)
    else:
        found = [one for one in answers(system, gp, cell) if one.quantity not in ("evidence",)]
    assert not failures(found), "\n".join(failures(found))


def _moved(system, gp, centred, shift):
    """Return the predictions of an estimator for centred targets, with a reference for centred targets."""

    class Centred:
        """An estimator whose predictions are shifted by the centre of the targets."""

        def __getattr__(self, name):
            return getattr(gp, name)

        def predict(self, *args, **options):
            return self._shifted(gp.predict(*args, **options))

        def predict_latent(self, *args, **options):
            return self._shifted(gp.predict_latent(*args, **options))

        def _shifted(self, found):
            return (found[0] - shift, *found[1:]) if isinstance(found, tuple) else found - shift

        def sample_y(self, *args, **options):
            return gp.sample_y(*args, **options) - shift

    found = answers(system, Centred(), centred)
    return [one for one in found if one.quantity != "evidence"]


L = SIZE * np.array([0.8, 1.1])
V = 1.2 * TARGET_SIZE**2
KERNELS = {
    "rbf": (kernels.RBF(L, V), dense.rbf(L, V)),
    "matern12": (kernels.Matern(0.5, L, V), dense.matern(0.5, L, V)),
    "rational quadratic": (kernels.RationalQuadratic(L, V, 0.7), dense.rational_quadratic(L, V, 0.7)),
    "periodic": (kernels.Periodic(0.9, V, 2 * SIZE), dense.periodic(0.9, V, 2 * SIZE)),
    "sum": (
        kernels.RBF(L, V) + kernels.Matern(1.5, 3 * L, 2 * V),
        dense.added(dense.rbf(L, V), dense.matern(1.5, 3 * L, 2 * V)),
    ),
    "product": (
        kernels.RBF(2 * L, V) * kernels.Matern(2.5, L, 0.5),
        dense.multiplied(dense.rbf(2 * L, V), dense.matern(2.5, L, 0.5)),
    ),
    "decaying period": (
        kernels.RBF(3 * L, V) * kernels.Periodic(1.1, 1.0, 2 * SIZE),
        dense.multiplied(dense.rbf(3 * L, V), dense.periodic(1.1, 1.0, 2 * SIZE)),
    ),
    "constant and rbf": (
        kernels.RBF(L, V) + kernels.Constant(2 * V),
        dense.added(dense.rbf(L, V), dense.constant(2 * V)),
    ),
}


@pytest.mark.few(8)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("system", ["exact", "iterative, CG", "SGPR"])
def test_every_kernel_says_its_own_units(system, name):
    kernel, covariance = KERNELS[name]
    cell = in_other_units("constant", "one", kernel, covariance)
    gp = BY_NAME[system].fit(cell, standardize=True)
    assert_own_units(gp, cell)
    found = [one for one in answers(BY_NAME[system], gp, cell) if one.quantity != "evidence"]
    assert not failures(found), "\n".join(failures(found))


def test_learned_hyperparameters_follow_the_units():
    """The same table in other units has the same optimum, in those units."""
    from gigagp import GPRegressor, optimization

    plain = in_other_units("constant", "one")
    X, y = plain.table.X, plain.y
    settings = {"optimizer": optimization.LBFGS(steps=30)}
    left = GPRegressor(kernels.Matern(1.5, SIZE, TARGET_SIZE**2), noise_variance=0.1 * TARGET_SIZE**2, **settings)
    right = GPRegressor(kernels.Matern(1.5, SIZE * 1000, 1.0), noise_variance=0.1, **settings)
    left.fit(X, y)
    right.fit(X * 1000, y / TARGET_SIZE)
    ratio = right.kernel_.parameters()["lengthscale"] / left.kernel_.parameters()["lengthscale"]
    assert torch.allclose(ratio, torch.full_like(ratio, 1000.0), rtol=1e-4)
    assert np.isclose(left.noise_variance_ / right.noise_variance_, TARGET_SIZE**2, rtol=1e-4)
    assert float(left.kernel_.parameters()["lengthscale"][1]) < 1  # in metres, not in standard deviations


@pytest.mark.few(6)
@pytest.mark.filterwarnings("ignore:Squared errors")  # few functions, given noise
@pytest.mark.parametrize("system", KINDS, ids=repr)
def test_a_variance_of_several_targets_is_a_share_of_each(system):
    """Targets are scaled separately, so a shared variance is a share of the variance of each."""
    cell = in_other_units("constant", "one")
    draw, n = np.random.default_rng(9), len(cell.table.X)
    Y = cell.Y * [1.0, 1e-3, 50.0] + draw.normal(size=(n, 3))
    kernel = kernels.Matern(1.5, SIZE, 0.8)
    shared = replace(cell, table=replace(cell.table, kernel=kernel, noise=0.2))
    gp = system.fit_to(system.estimator(shared, standardize=True), cell.table.X, Y)
    mean, std = gp.predict(cell.table.new), system.std(gp, cell.table.new)
    assert np.isclose(gp.noise_variance_, 0.2)
    for k in range(3):
        size = Y[:, k].std() ** 2
        own = replace(cell.table, covariance=dense.matern(1.5, SIZE, 0.8 * size), noise=0.2 * size)
        alone = replace(cell, table=own, Y=Y[:, k : k + 1], noise=np.full(n, 0.2 * size))
        # every approximation of the kernel, in the units of this target
        limit = system.limit(_OneTarget(gp, k), alone)
        found = dense.kriging(
            limit.covariance, own.X, alone.Y, own.new, alone.noise, alone.basis, rest=limit.rest, actions=limit.actions
        )
        relative = 1e-9 + 3 * system.tolerance
        assert np.abs(mean[:, k] - found.mean[:, 0]).max() <= relative * np.abs(Y[:, k]).max()
        assert np.abs(std[:, k] ** 2 - found.variance).max() <= relative * size


class _OneTarget:
    """An estimator whose scaling is that of one target."""

    def __init__(self, gp, k):
        self.posterior_ = gp.posterior_
        self.scaling_ = replace(gp.scaling_, y_scale=gp.scaling_.y_scale[k : k + 1])
