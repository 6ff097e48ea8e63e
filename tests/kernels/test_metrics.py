"""Great-circle distances and rotated axes, against dense computations in NumPy."""

from __future__ import annotations

import math
import pickle
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.stats import chi2

import gigagp
from gigagp import GPRegressor, inference, kernels, solvers
from gigagp.errors import InvalidInputError
from gigagp.neighbours.neighbourhood import Neighbourhood
from helpers import generator

RADIUS = 6371.0088
#: Rows on both sides of the date line, around both poles, clumped, and twice; longitude and latitude in degrees.
PLACES = {
    "date line": np.array([[179.9, 10.0], [-179.9, 10.0], [180.0, 12.0], [-180.0, 12.0], [181.0, 9.0], [178.0, -5.0]]),
    "north pole": np.array([[0.0, 90.0], [77.0, 90.0], [10.0, 89.9], [190.0, 89.9], [-120.0, 88.0]]),
    "south pole": np.array([[5.0, -90.0], [5.0, -89.0], [185.0, -89.0], [300.0, -85.0]]),
    "clump": np.array([[20.0, 50.0], [20.0, 50.0], [20.0 + 1e-6, 50.0], [20.0, 50.001], [21.0, 50.0]]),
}
EVERYWHERE = np.concatenate(list(PLACES.values()))


def chords(X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """Return chords in km from great-circle distances, which come from the haversine formula."""
    X, Z = np.radians(X)[:, None, :], np.radians(Z)[None, :, :]
    h = np.sin((X[..., 1] - Z[..., 1]) / 2) ** 2
    h = h + np.cos(X[..., 1]) * np.cos(Z[..., 1]) * np.sin((X[..., 0] - Z[..., 0]) / 2) ** 2
    great_circle = 2 * RADIUS * np.arcsin(np.sqrt(np.clip(h, 0, 1)))
    return 2 * RADIUS * np.sin(great_circle / (2 * RADIUS))


def matern(distance: np.ndarray) -> np.ndarray:
    """Return the Matern-3/2 correlation at a distance in lengthscales."""
    return (1 + math.sqrt(3) * distance) * np.exp(-math.sqrt(3) * distance)


def simulated(K: np.ndarray, noise: float, seed: int) -> np.ndarray:
    """Return a draw of a process with this covariance, plus noise."""
    factor = np.linalg.cholesky(K + noise * np.eye(len(K)))
    return factor @ np.random.default_rng(seed).normal(size=len(K))


def conditional(K, cross, own, y, noise):
    """Return mean and standard deviation of the latent function by dense algebra."""
    H = K + noise * np.eye(len(K))
    return cross.T @ np.linalg.solve(H, y), np.sqrt(np.diag(own - cross.T @ np.linalg.solve(H, cross)))


# Great circles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLACES)
def test_covariances_are_those_of_great_circle_distances(name):
    X, Z = torch.from_numpy(PLACES[name]), torch.from_numpy(EVERYWHERE)
    expected = 1.7 * matern(chords(X.numpy(), Z.numpy()) / 900)
    block = kernels.Matern(1.5, 900.0, 1.7, metric="haversine").block(X, Z).numpy()
    assert abs(block - expected).max() < 1e-10  # an error of 1e-16 in a sine is 1 um on the Earth
    degrees = kernels.Matern(1.5, 900.0 / 111.2, 1.7).block(X, Z).numpy()
    if name != "clump":
        assert abs(degrees - expected).max() > 0.1, "the control: degrees know neither date line nor poles"


def test_a_place_has_many_names():
    X = torch.tensor([[-170.0, 3.0], [180.0, 5.0], [12.0, 90.0], [0.0, -90.0]], dtype=torch.float64)
    Z = torch.tensor([[190.0, 3.0], [-180.0, 5.0], [300.0, 90.0], [-77.0, -90.0]], dtype=torch.float64)
    for kernel in (kernels.RBF(50.0, metric="haversine"), kernels.Matern(0.5, 50.0, metric="haversine")):
        assert torch.allclose(kernel.block(X, Z).diagonal(), torch.ones(4).double(), atol=1e-12)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_kernels_are_positive_definite_on_the_whole_sphere(nu):
    source = np.random.default_rng(0)
    X = np.c_[source.uniform(-180, 180, 200), np.degrees(np.arcsin(source.uniform(-1, 1, 200)))]
    X = np.concatenate([X, [[180.0, 0.0], [0.0, 0.0], [90.0, 0.0], [-90.0, 0.0], [0.0, 90.0], [0.0, -90.0]]])
    K = kernels.Matern(nu, 20_000.0, metric="haversine").block(torch.from_numpy(X), torch.from_numpy(X))
    assert float(torch.linalg.eigvalsh(K).min()) > -1e-11
    if nu > 1:  # the control: the same profile of great-circle distances is none (Gneiting 2013, theorem 7)
        arcs = 2 * RADIUS * np.arcsin(np.clip(chords(X, X) / (2 * RADIUS), 0, 1))
        assert np.linalg.eigvalsh(matern(arcs / 20_000.0)).min() < -1e-6


METHODS = {
    "exact": inference.Exact(),
    "vecchia": inference.Vecchia(n_neighbors=40),
    "iterative": inference.Iterative(solver=solvers.ConjugateGradients(tolerance=1e-10)),
}
SOLVED = {"iterative": {"variance": "solve"}}


@pytest.mark.parametrize(("name", "dtype"), [*((name, "float64") for name in METHODS), ("exact", "float32")])
def test_posterior_agrees_with_dense_algebra(name, dtype):
    y = np.sin(np.arange(len(EVERYWHERE)) * 1.3)
    y = y - y.mean()  # a zero mean is that of standardized targets
    new = np.array([[180.0, 10.5], [-179.0, 0.0], [45.0, 89.99], [0.0, -89.5], [20.5, 50.2], [100.0, 0.0]])
    kernel = kernels.Matern(1.5, 900.0, 1.7, metric="haversine")
    K, cross, own = (1.7 * matern(chords(a, b) / 900) for a, b in ((EVERYWHERE,) * 2, (EVERYWHERE, new), (new, new)))
    expected = conditional(K, cross, own, y, 0.05)
    gp = GPRegressor(kernel, METHODS[name], mean="zero", noise_variance=0.05, optimizer=None, dtype=dtype)
    found = gp.fit(EVERYWHERE, y).predict(new, return_std=True, **SOLVED.get(name, {}))
    for one, other in zip(found, expected, strict=True):
        assert abs(one - other).max() < (1e-7 if dtype == "float64" else 2e-3)


def test_neighbours_are_near_on_the_sphere():
    source = np.random.default_rng(1)
    X = np.c_[source.uniform(170, 190, 300), source.uniform(-20, 20, 300)]
    X[X[:, 0] > 180, 0] -= 360
    kernel = kernels.Matern(1.5, 900.0, metric="haversine").bind(2)
    around = Neighbourhood(kernel, torch.from_numpy(X), generator(0))
    earlier = around.earlier(5)
    distance = chords(X, X)
    for row in around.order[20:].tolist():
        candidates = [one for one in range(300) if around.rank[one] < around.rank[row]]
        nearest = sorted(candidates, key=lambda one: distance[row, one])[:5]
        assert set(earlier[row].tolist()) == set(nearest)
    assert np.sign(X[earlier[around.order[20:]].numpy(), 0]).std(1).max() > 0, "some have both signs of longitude"


def test_a_fit_finds_the_range_across_the_date_line():
    source = np.random.default_rng(0)
    X = np.c_[source.uniform(160, 200, 400), source.uniform(-30, 10, 400)]
    y = simulated(4.0 * matern(chords(X, X) / 500), 0.04, 1)
    X[X[:, 0] > 180, 0] -= 360
    gp = GPRegressor(kernels.Matern(metric="haversine"), inference.Exact()).fit(X, y)
    value = gp.kernel_.lengthscale.item()
    assert 350 < value < 700, "in km"
    twice = [[180.0, -10.0], [-180.0, -10.0]]
    assert abs(np.diff(gp.predict(twice))) < 1e-9
    plain = GPRegressor(kernels.Matern(), inference.Exact()).fit(X, y)
    assert abs(np.diff(plain.predict(twice))) > 0.1, "the control takes the date line for a gap"


def test_files_and_pickles_keep_the_sphere(tmp_path):
    y = np.sin(EVERYWHERE[:, 1] / 20)
    gp = GPRegressor(kernels.RBF(metric="haversine") + kernels.Linear(columns=[1])).fit(EVERYWHERE, y)
    gp.save(tmp_path / "model.gp")
    for again in (gigagp.load(tmp_path / "model.gp"), pickle.loads(pickle.dumps(gp))):
        assert (again.predict(EVERYWHERE) == gp.predict(EVERYWHERE)).all()
        assert again.kernel_ == gp.kernel_
    assert kernels.from_dict(gp.kernel_.to_dict()) == gp.kernel_
    text = repr(gp.kernel_)
    assert "metric='haversine'" in text
    assert "input_weights" not in text, "own units need none"


def test_derivatives_in_the_points():
    gp = GPRegressor(kernels.Matern(2.5, 900.0, metric="haversine"), inference.Exact(), optimizer=None)
    gp.fit(EVERYWHERE, np.sin(EVERYWHERE[:, 1] / 20))
    points = torch.tensor([[179.95, 10.3], [30.0, 85.0]], dtype=torch.float64, requires_grad=True)
    gp.posterior(points).mean.sum().backward()
    for k in range(2):
        step = torch.zeros(2, dtype=torch.float64)
        step[k] = 1e-4
        up, down = (gp.predict((points.detach() + sign * step).numpy()) for sign in (1, -1))
        assert np.allclose(points.grad[:, k].numpy(), (up - down) / 2e-4, rtol=1e-5, atol=1e-8)


def test_streamed_rows_are_the_same_rows():
    y = np.sin(EVERYWHERE[:, 1] / 20)
    gp = GPRegressor(kernels.Matern(1.5, 900.0, metric="haversine"), inference.Vecchia(), optimizer=None)
    held = gp.fit(EVERYWHERE, y).predict(EVERYWHERE + 0.01 * (EVERYWHERE[:, 1:] < 80))
    streamed = gp.fit_table((EVERYWHERE, y)).predict(EVERYWHERE + 0.01 * (EVERYWHERE[:, 1:] < 80))
    assert abs(held - streamed).max() < 1e-9


def test_rows_at_a_pole_are_taken_again():
    """Rows are read back from a fit in its precision, a little beyond 90 degrees in float32."""
    y = np.sin(EVERYWHERE[:, 1] / 20) + 0.1 * np.random.default_rng(0).normal(size=len(EVERYWHERE))
    gp = GPRegressor(kernels.Matern(metric="haversine"), inference.Exact(), dtype="float32").fit(EVERYWHERE, y)
    again = gp.condition_on([[3.0, 90.0]], [1.0], refit=True)
    assert again.posterior_.n_rows == len(EVERYWHERE) + 1


class WithAngle(kernels.StationaryKernel):
    """A kernel with a hyperparameter of the name that rotations use."""

    shapes: ClassVar = {**kernels.StationaryKernel.shapes, "angle": False}
    units: ClassVar = {**kernels.StationaryKernel.units, "angle": "none"}

    def profile(self, q):
        return torch.exp(-q * self.value("angle", q))


def test_a_class_may_have_an_angle_of_its_own():
    X = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    assert WithAngle(1.0, angle=3.0).block(X, X)[0, 1].item() == pytest.approx(math.exp(-3))


SPHERE = kernels.Matern(metric="haversine")


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda gp, X, y: gp.fit(X[:, ::-1], y), "Column 1 of X must have latitudes in degrees, from -90 to 90"),
        (lambda gp, X, y: gp.fit(X * [5, 1], y), "Column 0 of X must have longitudes in degrees, from -180 to 360"),
        (lambda gp, X, y: gp.fit_table((X + np.array([0, 89]), y)), "Column 1 of X must have latitudes"),
        (lambda gp, X, y: gp.predict([[0.0, 91.0]]), "got 91 in row 0"),
        (lambda gp, X, y: gp.fit(X, y).predict([[0.0, 0.0], [0.0, -91.0]]), "got -91 in row 1"),
        (lambda gp, X, y: gp.fit(X, y).posterior(torch.tensor([[0.0, -91.0]])), "got -91 in row 0"),
        (lambda gp, X, y: gp.fit(X, y).condition_on([[0.0, 95.0]], [1.0]), "got 95 in row 0"),
        (lambda gp, X, y: gp.fit(X[:, :1], y), "columns of Matern must have at least two inputs"),
        (lambda gp, X, y: SPHERE.block(torch.tensor([[0.0, 100.0]]), torch.zeros(1, 2)), "latitudes in degrees"),
        (lambda gp, X, y: GPRegressor(SPHERE, inference.Grid()).fit(X, y), "lengthscales along them"),
        (lambda gp, X, y: GPRegressor(kernels.RBF(metric="rotated"), inference.Grid()).fit(X, y), "along them"),
        (lambda gp, X, y: kernels.RBF(metric="haversine", ard=False), "ard of RBF must be True"),
        (lambda gp, X, y: kernels.RBF(metric="geodesic"), "metric of RBF"),
        (lambda gp, X, y: kernels.RBF(angle=30.0), 'angle of RBF needs metric="rotated"'),
        (lambda gp, X, y: kernels.RBF(metric="rotated", angle=-30.0), "angle of RBF must be positive"),
        (lambda gp, X, y: gp.set_params(hyperparameter_units="standardized").fit(X, y), "hyperparameter_units"),
        (lambda gp, X, y: WithAngle(metric="rotated"), "the class has another hyperparameter angle"),
    ],
)
def test_what_cannot_be_is_refused(act, words):
    gp = GPRegressor(SPHERE, inference.Vecchia(), optimizer=None)
    X = EVERYWHERE[:6]
    with pytest.raises(InvalidInputError) as error:
        act(gp, X, np.arange(6.0))
    assert words in str(error.value)


def test_gpytorch_has_no_great_circles():
    pytest.importorskip("gpytorch", reason="gpytorch is not installed")
    with pytest.raises(InvalidInputError, match="no metric='haversine'"):
        kernels.to_gpytorch(SPHERE.bind(2))


# Rotations ------------------------------------------------------------------------------------------------------------


def turned(X: np.ndarray, angle: float, lengths: list[float]) -> np.ndarray:
    """Return coordinates along and across an angle in degrees, in lengthscales."""
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    return np.c_[cosine * X[:, 0] + sine * X[:, 1], cosine * X[:, 1] - sine * X[:, 0]] / lengths


def apart(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    return np.sqrt(((A[:, None] - B[None]) ** 2).sum(2))


@pytest.mark.parametrize("name", METHODS)
def test_a_rotation_is_in_the_units_of_the_inputs(name):
    """Standardizing gives the two inputs different units, in which the axes would not be at right angles."""
    source = np.random.default_rng(3)
    X = np.round(source.uniform(0, 1000, (20, 2)) * [1.0, 0.03], 1)
    X[7] = X[3]
    y = source.normal(size=20)
    y, new = y - y.mean(), source.uniform(0, 1000, (4, 2)) * [1.0, 0.03]
    places = [turned(points, 25.0, [300.0, 6.0]) for points in (X, new)]
    K, cross, own = (2.0 * matern(apart(*pair)) for pair in ((places[0],) * 2, places, (places[1],) * 2))
    expected = conditional(K, cross, own, y, 0.1)
    kernel = kernels.Matern(1.5, [300.0, 6.0], 2.0, metric="rotated", angle=25.0)
    gp = GPRegressor(kernel, METHODS[name], mean="zero", noise_variance=0.1, optimizer=None).fit(X, y)
    found = gp.predict(new, return_std=True, **SOLVED.get(name, {}))
    for one, other in zip(found, expected, strict=True):
        assert abs(one - other).max() < 1e-7
    wrong = GPRegressor(kernels.Matern(1.5, [300.0, 6.0], 2.0), inference.Exact(), mean="zero", noise_variance=0.1)
    assert abs(wrong.set_params(optimizer=None).fit(X, y).predict(new) - expected[0]).max() > 0.1


@pytest.mark.few(1)
@pytest.mark.parametrize("angle", [20.0, 90.0, 135.0])
def test_a_fit_finds_the_angle(angle):
    X = np.random.default_rng(4).uniform(0, 100, (350, 2)) * [1.0, 0.6]
    places = turned(X, angle, [30.0, 7.0])
    y = simulated(4.0 * matern(apart(places, places)), 0.04, 5)
    gp = GPRegressor(kernels.Matern(metric="rotated"), inference.Exact()).fit(X, y)
    along, across = gp.kernel_.lengthscale.tolist()
    found = gp.kernel_.angle.item()
    assert 0 < found <= 180, "directions repeat after half a turn"
    if along < across:  # the same ellipse
        along, across, found = across, along, found - 90
    assert abs((found - angle + 90) % 180 - 90) < 8
    assert 2.5 < along / across < 7
    plain = GPRegressor(kernels.Matern(), inference.Exact()).fit(X, y)
    gain = gp.log_marginal_likelihood().value - plain.log_marginal_likelihood().value
    assert gain > 15 if angle != 90.0 else abs(gain) < 3, "along an axis there is nothing to gain"


# Space and time -------------------------------------------------------------------------------------------------------


def space_time(seed: int, n: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return longitudes, latitudes and days of rows, with the distances between them in km and in days."""
    source = np.random.default_rng(seed)
    X = np.c_[source.uniform(175, 185, n), source.uniform(40, 50, n), source.uniform(0, 100, n)]
    km, days = chords(X[:, :2], X[:, :2]), abs(X[:, None, 2] - X[None, :, 2])
    X[X[:, 0] > 180, 0] -= 360
    return X, km, days


def test_a_separable_kernel_is_recovered():
    X, km, days = space_time(6)
    y = simulated(3.0 * matern(km / 300) * np.exp(-days / 30), 0.03, 7)
    kernel = kernels.Matern(columns=[0, 1], metric="haversine") * kernels.Matern(
        0.5, columns=[2], variance=1.0, fixed=["variance"]
    )
    gp = GPRegressor(kernel, inference.Exact()).fit(X, y)
    space, time = gp.kernel_.parts
    assert 180 < space.lengthscale.item() < 500
    assert 15 < time.lengthscale.item() < 60


def test_a_sum_metric_kernel_is_recovered():
    """One distance of space and time has one lengthscale in km and one in days (De Cesare et al. 2001)."""
    X, km, days = space_time(8)
    y = simulated(3.0 * matern(np.sqrt((km / 300) ** 2 + (days / 20) ** 2)), 0.03, 9)
    joint = GPRegressor(kernels.Matern(metric="haversine"), inference.Exact()).fit(X, y)
    km_found, days_found = joint.kernel_.lengthscale.tolist()
    assert 200 < km_found < 450
    assert 13 < days_found < 30
    whole = (
        kernels.Matern(lengthscale=200.0, columns=[0, 1], metric="haversine")
        + kernels.Matern(lengthscale=10.0, columns=[2])
        + kernels.Matern(lengthscale=[300.0, 20.0], metric="haversine")
    )
    expected = matern(km / 200) + matern(days / 10) + matern(np.sqrt((km / 300) ** 2 + (days / 20) ** 2))
    rows = torch.from_numpy(X)
    assert abs(whole.block(rows, rows).numpy() - expected).max() < 1e-10


def test_the_fit_of_a_whole_sum_metric_kernel_ends_above_the_truth():
    """Its ranges are hardly known from few rows, so that the likelihood is compared, and not the ranges."""
    X, km, days = space_time(10)
    joint = np.sqrt((km / 250) ** 2 + (days / 6) ** 2)
    y = simulated(matern(km / 400) + 0.7 * matern(days / 20) + 1.5 * matern(joint), 0.05, 11)

    def three(places=None, day=None, both=None) -> kernels.Kernel:
        return (
            kernels.Matern(1.5, *(places or ()), columns=[0, 1], metric="haversine")
            + kernels.Matern(1.5, *(day or ()), columns=[2])
            + kernels.Matern(1.5, *(both or ()), metric="haversine")
        )

    def value(kernel, noise) -> float:
        gp = GPRegressor(kernel, inference.Exact(), None, mean="zero", noise_variance=noise).fit(X, y)
        return gp.log_marginal_likelihood().value

    gp = GPRegressor(three(), inference.Exact(), mean="zero").fit(X, y)
    truth = value(three((400.0, 1.0), (20.0, 0.7), ([250.0, 6.0], 1.5)), 0.05)
    gain = value(gp.kernel_, float(gp.noise_variance_)) - truth
    assert 0 < gain < chi2.ppf(0.999, 8) / 2  # eight hyperparameters
    wrong = value(three((400.0, 1.0), (20.0, 0.7), ([250.0, 60.0], 1.5)), 0.05)
    assert truth - wrong > 10, "the control"
