"""Inference given whole curves of a panel, held against dense float64 algebra."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, inference, load
from gigagp.errors import InvalidInputError
from gigagp.estimators.choices.panel_kernel import step_scale
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.curves.complete import CompletePart, Grid, complete_part
from gigagp.inference.curves.posterior import CurvesPosterior
from gigagp.inference.vecchia.likelihood import pool_of
from gigagp.kernels import RBF, Group, Matern, ScaleMap, Sum, White
from gigagp.kernels.units import Units
from gigagp.model.means import resolve_mean
from gigagp.model.model import Model
from gigagp.neighbours.joint import Joint
from gigagp.operators import KernelMatrix
from gigagp.products.panel import Cells
from helpers import autograd_gradient, close, generator, reference_block, reference_matrix, within_standard_errors
from panels import PLACE, TIME, cells

BUDGET = 2**28
NOISE = 0.02
PRODUCT = Matern(1.5, 1.2, 2.0, columns=PLACE) * Matern(0.5, 1.5, columns=TIME, fixed=["variance"])
ENTITIES, TIMES = Matern(1.5, 0.7, columns=PLACE), RBF(0.4, columns=TIME)
KERNELS = {
    "product": PRODUCT,
    "entities alone": PRODUCT + ENTITIES,
    "times alone": PRODUCT + TIMES,
    "both alone": PRODUCT + ENTITIES + TIMES,
}
#: every entity of the tests stands in for the many of a usual panel
GAPS = ["complete", "cut short", "whole rows and columns", "one cell of an entity", "repeated"]


def table_of(how: str, *, columns: int = 2) -> TrainingTable:
    X = cells(how)
    noise = torch.randn(len(X), columns, generator=generator(4), dtype=torch.float64)
    return TrainingTable(X, torch.sin(2 * X[:, :1]) * X[:, 2:] + 0.1 * noise, resolve_mean("constant"), BUDGET)


def model_of(kernel, noise: float = NOISE) -> Model:
    return Model(kernel.bind(3), resolve_mean("constant"), torch.tensor(noise, dtype=torch.float64))


def part_of(kernel, table: TrainingTable, noise: float = NOISE) -> CompletePart:
    """Return the complete part of a small panel, however few its entities are."""
    model = model_of(kernel, noise)
    panel = KernelMatrix(model.kernel, table.X, noise).panel
    return CompletePart(model, table, panel, Grid.at(panel.known, *complete_part(panel.known.observed)))


def points_of(X: torch.Tensor) -> torch.Tensor:
    """Return rows, known entities at new times, new entities at known times, and both new."""
    later, elsewhere = X[:4].clone(), X[4:8].clone()
    later[:, TIME] += 0.3
    elsewhere[:, PLACE] += 0.2
    return torch.cat([X[::97], later, elsewhere, X[8:10] + 0.5])


@pytest.mark.few(4)
@pytest.mark.parametrize("gaps", GAPS)
@pytest.mark.parametrize("name", KERNELS)
def test_points_are_predicted_from_the_complete_part_and_their_own_curve(name, gaps):
    table = table_of(gaps)
    part, kernel, new = part_of(KERNELS[name], table), KERNELS[name].bind(3), points_of(table.X)
    given = part._grid.rows.flatten()
    in_part = torch.zeros(table.n_rows, dtype=torch.bool)
    in_part[given] = True
    weights, variances = torch.zeros(len(new), table.n_rows, dtype=torch.float64), []
    for place, point in enumerate(new):
        own = (table.X[:, PLACE] == point[PLACE]).all(1)
        rows = torch.nonzero(in_part | own)[:, 0]
        cross = reference_block(kernel, point[None], table.X[rows])[0]
        weights[place, rows] = torch.linalg.solve(reference_matrix(kernel, table.X[rows], NOISE), cross)
        variances.append(kernel.diagonal(point[None])[0] - weights[place, rows] @ cross)
    mean, variance = part.predict(new, table.Y)
    close(mean, weights @ table.Y, condition=1e5)
    close(variance, torch.stack(variances), condition=1e5)
    cross = weights @ reference_block(kernel, table.X, new)
    inner = weights @ reference_matrix(kernel, table.X, NOISE) @ weights.T
    covariance = reference_matrix(kernel, new) - cross - cross.T + inner
    close(part.covariance(new), covariance, condition=1e5)
    close(covariance.diagonal(), variance, condition=1e5)


def test_variances_keep_their_digits_with_hardly_any_noise():
    """Rough effects of entities lie where a smooth product has only noise, and a solve multiplies them by 1e9."""
    table, noise = table_of("cut short"), 1e-9
    smooth = RBF(4.0, columns=PLACE) * RBF(4.0, columns=TIME, fixed=["variance"])
    given = smooth + Matern(0.5, 0.3, columns=PLACE) + Matern(0.5, 0.3, columns=TIME)
    part, kernel, new = part_of(given, table, noise), given.bind(3), points_of(table.X)
    new = new[: len(table.X[::97]) + 4]  # of known entities, of which whole curves are given
    in_part = torch.zeros(table.n_rows, dtype=torch.bool)
    in_part[part._grid.rows.flatten()] = True
    variances = []
    for point in new:
        rows = torch.nonzero(in_part | (table.X[:, PLACE] == point[PLACE]).all(1))[:, 0]
        factor = torch.linalg.cholesky(reference_matrix(kernel, table.X[rows], noise))
        cross = reference_block(kernel, point[None], table.X[rows]).T
        half = torch.linalg.solve_triangular(factor, cross, upper=False)
        variances.append(kernel.diagonal(point[None])[0] - half.square().sum())
    found = part.predict(new, table.Y)[1]
    exact = torch.stack(variances)
    assert float(exact.min()) < noise
    assert float((found / exact - 1).abs().max()) < 1e-4  # rounding of a prior variance of 3 is 1e-5 of the smallest


@pytest.mark.few(3)
@pytest.mark.parametrize("gaps", GAPS)
@pytest.mark.parametrize("name", KERNELS)
def test_the_likelihood_is_of_the_complete_part_and_of_other_curves_given_it(name, gaps):
    table = table_of(gaps)
    part, kernel = part_of(KERNELS[name], table), KERNELS[name].bind(3)
    found = part.regression()
    values = table.Y - table.basis @ found.trend.coefficients
    in_part = part._grid.rows.flatten().sort().values

    def density(rows: torch.Tensor) -> float:
        H = reference_matrix(kernel, table.X[rows], NOISE)
        normal = torch.distributions.MultivariateNormal(torch.zeros(len(rows), dtype=torch.float64), H)
        return float(normal.log_prob(values[rows].T).sum())

    base = density(in_part)
    wanted = base + sum(density(torch.cat([in_part, own])) - base for own in part._own if len(own))
    close(found.value, wanted, condition=1e6)
    # the coefficients are those of generalised least squares: others have a lower density
    assert found.n_rows == table.n_rows


@pytest.mark.parametrize("gaps", ["at random", "cut short"])
def test_all_curves_as_neighbours_are_exact(gaps):
    X = cells(gaps).numpy()
    y = np.sin(2 * X[:, 0]) * X[:, 2] + 0.1 * np.random.default_rng(0).normal(size=len(X))
    kernel = PRODUCT + White(0.01)  # with which no part is known to be complete
    fits = [
        GPRegressor(kernel, noise_variance=NOISE, optimizer=None, inference=one, random_state=0).fit(X, y)
        for one in (inference.Exact(), inference.Curves(60, 60))
    ]
    new = points_of(torch.from_numpy(X)).numpy()
    exact, curves = (fit.predict(new, return_cov=True) for fit in fits)
    close(curves[0], exact[0], condition=1e5)
    close(curves[1], exact[1], condition=1e5)
    close(*(fit.log_marginal_likelihood().value for fit in fits), condition=1e6)
    left_out = [fit.posterior_.left_out() for fit in fits]
    close(left_out[1].mean, left_out[0].mean, condition=1e5)
    close(left_out[1].variance, left_out[0].variance, condition=1e5)
    few = GPRegressor(
        kernel, noise_variance=NOISE, optimizer=None, inference=inference.Curves(3, 3), random_state=0
    ).fit(X, y)
    at = torch.from_numpy((new - few.scaling_.x_centre) / few.scaling_.x_scale)
    (_, less), (_, all_) = (fit.posterior_.mean_and_variance_given_trend(at) for fit in (few, fits[0]))
    assert bool((less >= all_ * (1 - 1e-9)).all())
    assert float((less / all_).max()) > 1.05


def test_the_gradient_of_a_curve_given_others_is_that_of_dense_algebra():
    X = cells("repeated")
    kernel = (PRODUCT + White(0.05)).bind(3)
    table = TrainingTable(X, torch.cos(X[:, :2]), resolve_mean("constant"), BUDGET)
    model = model_of(PRODUCT + White(0.05))
    rows, given = torch.arange(40, 60), torch.arange(40)
    every = torch.cat([given, rows])

    def density(kernel, noise) -> torch.Tensor:
        H = reference_matrix(kernel, X[every]) + noise * torch.eye(len(every), dtype=torch.float64)
        return sum(
            sign
            * torch.distributions.MultivariateNormal(torch.zeros(size, dtype=torch.float64), H[:size, :size])
            .log_prob(table.Y[every[:size]].T)
            .sum()
            for size, sign in ((60, 1), (40, -1))
        )

    joint = Joint.of(pool_of(model, table), rows, given)
    found = joint.gradient(table.Y)
    noise = torch.tensor(NOISE, dtype=torch.float64, requires_grad=True)
    for name, slope in autograd_gradient(kernel, lambda moved: density(moved, NOISE)).items():
        close(found[name], slope, condition=1e7)
    close(found["noise_variance"], torch.autograd.grad(density(kernel, noise), noise)[0], condition=1e7)
    white = joint.whitened(table.Y)
    value = -0.5 * (float(white.square().sum()) + 2 * (joint.log_variance + 20 * math.log(2 * math.pi)))
    close(value, density(kernel, NOISE), condition=1e6)
    close(joint.inverse() @ table.Y[every], white, condition=1e6)


def panel_rows(n_entities: int = 330, n_times: int = 14, *, rough: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return a long table of entities with two inputs, of which every third curve ends early."""
    draw = np.random.default_rng(3)
    place, time = draw.random((n_entities, 2)), np.arange(n_times, dtype=float)
    rows = np.column_stack([np.arange(n_entities).repeat(n_times), place.repeat(n_times, 0), np.tile(time, n_entities)])
    y = (1 + place[:, :1]) * np.exp(-time / (2 + 4 * place[:, 1:]))
    steps = draw.normal(size=(n_entities, n_times))
    y = y + (0.1 * np.cumsum(steps, 1) if rough else 0.02 * steps)
    kept = np.ones(y.shape, dtype=bool)
    for entity in range(0, n_entities, 3):
        kept[entity, draw.integers(n_times) :] = False
    return rows[kept.ravel()], y.ravel()[kept.ravel()]


@pytest.fixture(scope="module")
def fitted() -> tuple[GPRegressor, np.ndarray, np.ndarray]:
    X, y = panel_rows()
    return GPRegressor(panel=(0, 3), random_state=0).fit(X, y), X, y


def test_a_large_panel_with_a_complete_part_is_predicted_from_it(fitted, tmp_path):
    gp, X, _ = fitted
    assert gp.inference_ == inference.Curves()
    assert isinstance(gp.posterior_, CurvesPosterior)
    assert "complete curves" in gp.posterior_.solver_name()
    assert len(gp.history_) > 0
    draw = np.random.default_rng(5)
    place = draw.random((30, 2))
    new = np.column_stack([1000 + np.arange(30), place, draw.integers(14, size=30)])
    truth = (1 + place[:, 0]) * np.exp(-new[:, 3] / (2 + 4 * place[:, 1]))
    mean, std = gp.predict(new, return_std=True)
    assert float(np.sqrt(np.mean((mean - truth) ** 2))) < 0.1 < float(np.std(truth))
    assert np.mean(np.abs(mean - truth) < 3 * std) > 0.9
    gp.save(tmp_path / "panel.gp")
    np.testing.assert_array_equal(load(tmp_path / "panel.gp").predict(X[::50]), gp.predict(X[::50]))


def test_samples_agree_with_the_predictions(fitted):
    gp, X, _ = fitted
    at = torch.from_numpy(gp.scaling_.inputs(gp.encoder_.transform(X[[5, 100, 700, 1500]])))
    posterior = gp.posterior_
    mean, variance = posterior.mean_and_variance(at)
    draws = posterior.sample_at(at, 4000, generator(1))[:, 0].T
    assert within_standard_errors(draws, mean[:, 0])
    assert within_standard_errors((draws - mean[:, 0]).square(), variance)
    functions = posterior.sample_functions(400, generator(2))(at)[:, 0].T
    assert within_standard_errors(functions, mean[:, 0], errors=5)


def test_further_cells_are_conditioned_on_as_in_a_fit_of_all(fitted):
    gp, X, y = fitted
    more = X[:3] + np.array([0, 0, 0, 0.5]), y[:3] + 1.0
    found = gp.condition_on(*more)
    kernel, noise = gp.kernel_, gp.noise_variance_
    again = GPRegressor(kernel, noise_variance=noise, panel=(0, 3), optimizer=None, inference=gp.inference_)
    again.fit(np.concatenate([X, more[0]]), np.concatenate([y, more[1]]))
    at = np.concatenate([X[:40], more[0]])
    for one, other in zip(found.predict(at, return_std=True), again.predict(at, return_std=True), strict=True):
        close(one, other, condition=1e7)
    assert np.abs(found.predict(at) - gp.predict(at)).max() > 0.1


@pytest.mark.slow
def test_rough_curves_are_found_to_be_rough():
    smooth, rough = (GPRegressor(panel=(0, 3), random_state=0).fit(*panel_rows(rough=one)) for one in (False, True))
    nu = [fit.kernel_.parts[0].parts[1].nu for fit in (smooth, rough)]
    assert nu[1] == 0.5
    assert rough.noise_variance_ < 0.01 * float(np.var(panel_rows(rough=True)[1]))


def settling_rows(n_entities: int = 240, n_times: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Return random walks whose steps become a hundred times smaller, of which every third ends early."""
    draw = np.random.default_rng(7)
    time = np.arange(n_times, dtype=float)
    steps = 10.0 ** (-2 * time / (n_times - 1)) * draw.normal(size=(n_entities, n_times))
    kept = np.ones(steps.shape, dtype=bool)
    for entity in range(0, n_entities, 3):
        kept[entity, draw.integers(1, n_times) :] = False
    rows = np.column_stack([np.arange(n_entities).repeat(n_times), np.tile(time, n_entities)])
    return rows[kept.ravel()], np.cumsum(steps, 1).ravel()[kept.ravel()]


def test_curves_that_settle_have_smaller_errors_at_late_times():
    X, y = settling_rows()
    gone = np.random.default_rng(1).random(len(X)) < 0.1
    is_last = np.append(X[1:, 0] != X[:-1, 0], True)  # predicted from all earlier cells of the curve
    left_out = gone & is_last & (X[:, 1] > 0)
    gp = GPRegressor(panel=(0, 1), random_state=0).fit(X[~left_out], y[~left_out])
    scales = [leaf.log_scale for leaf in gp.kernel_.leaves() if isinstance(leaf, ScaleMap)]
    assert len(scales) == 1, "steps of one size at all times predict worse"
    assert float(scales[0][0] - scales[0][-1]) > 0.7 * math.log(100)
    mean, std = gp.predict(X[left_out], return_std=True, include_noise=True)
    is_late = X[left_out, 1] > 12
    for some in (is_late, ~is_late):
        assert 0.3 < np.mean(((mean - y[left_out]) / std)[some] ** 2) < 3
    assert std[is_late].mean() < 0.3 * std[~is_late].mean()


@pytest.mark.parametrize("power", [1, 2])
def test_the_scale_of_times_follows_the_steps_of_curves(power):
    """A random walk has steps of the same size over the root of their time, whatever the times."""
    times = torch.tensor([3.0, 0.0, 1.0, 7.0, 8.0, 20.0], dtype=torch.float64)
    order = times.argsort()
    walk = torch.randn(4000, 6, generator=generator(2), dtype=torch.float64)
    walk *= torch.cat([torch.zeros(1), times[order].diff()]).sqrt()
    calmer = walk * torch.tensor([1.0, 1, 1, 1, 0.1, 0.1])
    cells = Cells(torch.zeros(4000, 1), times[:, None], torch.zeros(0), torch.zeros(0), (0,), (1,))
    units = Units(torch.zeros(2), torch.ones(2), 1.0)
    found = []
    for one in (walk, calmer):
        curves = one.cumsum(1)[:, order.argsort()]
        guide = SimpleNamespace(grid=SimpleNamespace(cells=cells), table=SimpleNamespace(Y=curves.reshape(-1, 1)))
        scale = step_scale(guide, units, power)
        found.append(scale.scale(torch.stack([torch.zeros(6), times[order]], 1).double())[:, 0].log())
    assert float(found[0].abs().max()) < 0.1 * power
    assert abs(float(found[1][0] - found[1][-1]) - power * math.log(10)) < 0.1 * power


def test_rows_that_are_no_panel_are_refused_and_gradients_of_points_too(fitted):
    X = np.random.default_rng(0).random((30, 2))
    with pytest.raises(InvalidInputError, match=r"inference.Curves needs a panel"):
        GPRegressor(inference=inference.Curves()).fit(X, X[:, 0])
    posterior = fitted[0].posterior_
    points = posterior.X[:2].clone().requires_grad_()
    with pytest.raises(InvalidInputError, match="has no gradient"):
        posterior.mean(points)
    with pytest.raises(InvalidInputError, match="has no gradient"):
        posterior.covariance(points)


def test_with_hardly_any_noise_neighbours_take_the_place_of_the_spectrum():
    X, y = panel_rows(120, 10)
    kernel = Matern(2.5, columns=[1, 2]) * Matern(0.5, columns=[3], fixed=["variance"])
    gp = GPRegressor(
        kernel, noise_variance=1e-13, panel=(0, 3), optimizer=None, inference=inference.Curves(), random_state=0
    ).fit(X, y)
    assert "earlier curves" in gp.posterior_.solver_name()
    close(gp.predict(X[::20]), y[::20], condition=1e8)


def test_entities_without_inputs_are_told_apart_by_their_rows():
    """The part of the times alone, which all entities share, comes from all complete curves."""
    X, y = panel_rows()
    kernel = Sum(Group(0) * Matern(1.5, columns=[1], fixed=["variance"]), Group(0), Matern(1.5, columns=[1]))
    gp = GPRegressor(kernel, panel=(0, 1), inference=inference.Curves(), random_state=0).fit(X[:, [0, 3]], y)
    mean = gp.predict(X[:, [0, 3]])
    assert float(np.sqrt(np.mean((mean - y) ** 2))) < 0.1
