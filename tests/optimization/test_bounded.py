"""No optimizer violates the bounds, and the optimum within them is that of dense algebra."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import torch

import gigagp
from gigagp import GPRegressor, inference, kernels, optimization
from gigagp.model.means import resolve_mean
from gigagp.model.model import Model
from gigagp.optimization import ParameterSpace
from gigagp.optimization.quasi_newton import QuasiNewton, minimise
from gigagp.optimization.space import Box


def table(n=40):
    rng = np.random.default_rng(3)
    X = rng.uniform(-3, 3, (n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.normal(size=n)


def dense_value(X, y, log_values):
    """Return the log marginal likelihood of an RBF kernel in float64 NumPy."""
    first, second, variance, noise = np.exp(log_values)
    scaled = X / np.array([first, second])
    squares = ((scaled[:, None] - scaled[None]) ** 2).sum(-1)
    H = variance * np.exp(-0.5 * squares) + noise * np.eye(len(X))
    _, log_determinant = np.linalg.slogdet(H)
    return -0.5 * (y @ np.linalg.solve(H, y) + log_determinant + len(y) * math.log(2 * math.pi))


BOUNDS = {"lengthscale": ([0.2, None], [0.5, 1.5]), "variance": (0.1, 0.6)}
LOG_BOX = [(math.log(0.2), math.log(0.5)), (None, math.log(1.5)), (math.log(0.1), math.log(0.6)), (None, None)]


def fitted(optimizer, bounds=BOUNDS, **settings):
    X, y = table()
    kernel = kernels.RBF([0.4, 1.0], 0.4, bounds=bounds)
    settings = {"inference": inference.Exact(), "mean": "zero", "standardize": False, "noise_variance": 0.1, **settings}
    return GPRegressor(kernel, optimizer=optimizer, **settings).fit(X, y)


def values_of(gp):
    return np.concatenate([gp.kernel_.lengthscale.numpy(), [float(gp.kernel_.variance), gp.noise_variance_]])


def within(gp, bounds=None):
    for name, pair in (gp.kernel_.bounds() if bounds is None else bounds).items():
        value = gp.kernel_.parameters()[name]
        if not bool(((pair.lower <= value) & (value <= pair.upper)).all()):
            return False
    return True


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "optimizer",
    [
        optimization.LBFGS(),
        optimization.LBFGS(transform="softplus"),
        optimization.Adam(0.1, 400, transform="log", final_share=0.0),
        optimization.Adam(0.1, 400, final_share=0.0),
    ],
)
def test_the_optimum_in_the_box_is_that_of_dense_algebra(optimizer):
    X, y = table()
    found = scipy.optimize.minimize(
        lambda values: -dense_value(X, y, values), np.log([0.4, 1.0, 0.4, 0.1]), bounds=LOG_BOX, tol=1e-12
    )
    gp = fitted(optimizer)
    assert abs(gp.log_marginal_likelihood().value - dense_value(X, y, np.log(values_of(gp)))) < 1e-8
    assert gp.log_marginal_likelihood().value == pytest.approx(-found.fun, abs=1e-3)
    np.testing.assert_allclose(values_of(gp)[:3], np.exp(found.x)[:3], rtol=1e-3)
    # Two of them are exactly at a bound, and one is not.
    assert gp.kernel_.lengthscale.tolist() == [0.5, 1.5]
    assert float(gp.kernel_.variance) < 0.55
    # Without bounds the optimum is elsewhere.
    assert not within(fitted(optimizer, None), gp.kernel_.bounds())


def test_bounds_around_the_optimum_change_nothing():
    wide = {"lengthscale": (1e-3, 1e3), "variance": (1e-3, 1e3)}
    np.testing.assert_array_equal(
        values_of(fitted(optimization.LBFGS(), wide)), values_of(fitted(optimization.LBFGS(), None))
    )


EVERY = {
    "auto": ({}, optimization.Auto()),
    "auto, middle subset": ({}, optimization.Auto(subset_sizes=(10,), middle_size=20)),
    "iterative": ({"inference": inference.Iterative()}, optimization.Auto(subset_sizes=(10,))),
    "redrawn probes": ({"inference": inference.Iterative(warm_start=False)}, optimization.Auto(subset_sizes=(10,))),
    "iterative, LBFGS": ({"inference": inference.Iterative()}, optimization.LBFGS()),
    "sparse variational": ({"inference": inference.SparseVariational(10)}, "auto"),
    "computation aware": ({"inference": inference.ComputationAware(10)}, "auto"),
    "quadruply stochastic": ({"inference": inference.QuadruplyStochastic(n_basis=64)}, "auto"),
    "neighbourhoods": ({}, optimization.SubsetStart(optimization.LBFGS(), 2, 20, optimization.Adam(0.1, 20))),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("name", EVERY)
def test_no_way_of_learning_leaves_the_box(name):
    settings, optimizer = EVERY[name]
    gp = fitted(optimizer, **settings)
    assert within(gp)
    assert float(gp.kernel_.lengthscale[0]) == 0.5  # all would prefer a larger value
    for step in gp.history_:
        assert step.hyperparameters["lengthscale"][0] <= 0.5


@pytest.mark.slow
def test_ascent_on_samples_stays_in_the_box():
    optimizer = optimization.SparseAdam(steps=200, hyper_learning_rate=0.3, hyper_start=0.0)
    method = inference.QuadruplyStochastic(n_basis=64)
    gp = fitted(optimizer, {"lengthscale": (0.2, [0.5, 1.1])}, inference=method)
    assert within(gp)
    assert float(gp.kernel_.lengthscale[1]) == 1.1
    assert float(fitted(optimizer, None, inference=method).kernel_.lengthscale[1]) > 1.2


def test_grids_stay_in_the_box():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (400, 1))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=400)
    kernel = kernels.RBF(0.3, bounds={"lengthscale": (None, 0.5)})
    settings = {"standardize": False, "inference": inference.Grid(size=64), "mean": "zero"}
    gp = GPRegressor(kernel, **settings).fit(X, y)
    assert float(gp.kernel_.lengthscale) == 0.5
    streamed = GPRegressor(kernel, **settings).fit_table((X, y))
    assert float(streamed.kernel_.lengthscale) <= 0.5
    assert float(GPRegressor(kernels.RBF(0.3), **settings).fit(X, y).kernel_.lengthscale) > 0.6


def test_a_classifier_stays_in_the_box():
    X, y = table()
    kernel = kernels.RBF(0.4, bounds={"lengthscale": (None, 0.5)})
    gp = gigagp.GPClassifier(kernel, standardize=False).fit(X, y > 0)
    assert within(gp.latent_)
    assert float(gp.latent_.kernel_.lengthscale[1]) == 0.5


@pytest.mark.parametrize("optimizer", [optimization.LBFGS(), None])
def test_bounds_are_in_the_units_of_the_data(optimizer):
    """A table in other units gives the same fit, and a start at a bound stays within it."""
    X, y = table()
    scale, factor = np.array([1 / 3, 70.1]), 12.3
    found = []
    for x_scale, y_scale in (([1.0, 1.0], 1.0), (scale, factor)):
        low, high = np.array([0.2, 0.4]) * x_scale, np.array([0.5, 1.5]) * x_scale
        kernel = kernels.RBF(
            high, 0.1 * y_scale**2, bounds={"lengthscale": (low, high), "variance": (0.1 * y_scale**2, None)}
        )
        gp = GPRegressor(kernel, inference.Exact(), optimizer, noise_variance=0.1 * y_scale**2)
        found.append(gp.fit(X * x_scale, y * y_scale))
        assert within(gp)
        np.testing.assert_allclose(gp.kernel_.bounds()["lengthscale"].lower.numpy(), low)
        np.testing.assert_allclose(gp.kernel_.bounds()["lengthscale"].upper.numpy(), high)
        np.testing.assert_allclose(gp.kernel_.lengthscale.numpy(), high)
        assert "at its bound  lengthscale[0] (upper)" in gp.describe()
    first, second = found
    np.testing.assert_allclose(values_of(second)[2:], values_of(first)[2:] * factor**2, rtol=1e-5)


def test_bounds_are_saved_with_the_model(tmp_path):
    gp = fitted(optimization.LBFGS())
    gp.save(tmp_path / "model.gp")
    again = gigagp.load(tmp_path / "model.gp")
    assert again.kernel_ == gp.kernel_
    assert again.kernel == gp.kernel
    assert again.kernel_.bounds().keys() == {"lengthscale", "variance"}


def model_of(**bounds):
    kernel = kernels.RBF([1.0, 2.0], 0.5, bounds=bounds).bind(2)
    return Model(kernel, resolve_mean("zero"), torch.tensor(0.1, dtype=torch.float64))


@pytest.mark.parametrize("transform", ["log", "softplus"])
def test_a_vector_outside_means_the_nearest_model_inside(transform):
    space = ParameterSpace(model_of(lengthscale=([0.3, None], 4.0), variance=(0.1, None)), transform)
    for direction in (-50.0, 50.0):
        kernel = space.decode(torch.full((space.size,), direction, dtype=torch.float64)).kernel
        assert bool((kernel.lengthscale <= 4.0).all())
        assert float(kernel.lengthscale[0]) >= 0.3
        assert float(kernel.variance) >= 0.1
    assert float(space.decode(torch.full((space.size,), -50.0, dtype=torch.float64)).kernel.lengthscale[0]) == 0.3
    assert float(space.decode(torch.full((space.size,), 50.0, dtype=torch.float64)).kernel.lengthscale[1]) == 4.0
    # Clipping the vector to the box gives the same model.
    far = space.box.clip(torch.full((space.size,), -50.0, dtype=torch.float64))
    torch.testing.assert_close(space.decode(far).parameters()["lengthscale"][0].item(), 0.3)
    assert far[1] == -50.0


@pytest.mark.parametrize("transform", ["log", "softplus"])
def test_the_end_of_the_box_is_the_bound_to_the_last_bit(transform):
    for seed in range(50):
        low, high = torch.tensor([0.5, 2.0]).double() * (
            1 + torch.rand(2, generator=torch.Generator().manual_seed(seed))
        )
        bounds = (float(low), float(high))
        kernel = kernels.RBF(float(low), float(high), bounds={"lengthscale": bounds, "variance": bounds}).bind(1)
        space = ParameterSpace(Model(kernel, resolve_mean("zero"), torch.tensor(0.1).double()), transform)
        ends = space.decode(space.encode(space.template)).kernel
        assert (float(ends.lengthscale), float(ends.variance)) == bounds
        wild = space.decode(torch.tensor([-torch.inf, torch.inf, 0.0], dtype=torch.float64)).kernel
        assert (float(wild.lengthscale), float(wild.variance)) == bounds


@pytest.mark.parametrize("with_values", [True, False])
@pytest.mark.parametrize("with_metric", [True, False])
def test_a_quadratic_in_a_box_ends_at_its_constrained_minimum(with_values, with_metric):
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        root = torch.randn(5, 5, generator=generator, dtype=torch.float64)
        H = root @ root.T + 0.3 * torch.eye(5, dtype=torch.float64)
        centre = 2 * torch.randn(5, generator=generator, dtype=torch.float64)
        box = Box(torch.full((5,), -1.0, dtype=torch.float64), torch.full((5,), 0.8, dtype=torch.float64))

        def evaluate(x, H=H, centre=centre):
            gradient = H @ (x - centre)
            return (0.5 * float((x - centre) @ gradient) if with_values else None), gradient

        def by_scipy(x, H=H, centre=centre):
            H, centre = H.numpy(), centre.numpy()
            return 0.5 * (x - centre) @ H @ (x - centre), H @ (x - centre)

        metric = (lambda g, H=H: torch.linalg.solve(H, g)) if with_metric else None
        settings = QuasiNewton(200, 1e-14, 1.0, patience=2)
        vector, step, finite = minimise(evaluate, torch.zeros(5, dtype=torch.float64), settings, metric, box)
        assert finite
        assert torch.equal(box.clip(vector + step), vector + step)
        reference = scipy.optimize.minimize(by_scipy, np.zeros(5), jac=True, bounds=[(-1.0, 0.8)] * 5, tol=1e-14)
        np.testing.assert_allclose(vector.numpy(), reference.x, atol=2e-5)
