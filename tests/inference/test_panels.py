"""Inference on panels with gaps against dense float64 algebra: samples, predictions, evidence, and its guide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, inference, load, solvers
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.curves.complete import Grid, complete_part
from gigagp.inference.curves.guide import PanelGuide
from gigagp.inference.gradients import Pathwise
from gigagp.inference.gradients.panel_samples import PanelSamples
from gigagp.kernels import RBF, Group, Matern
from gigagp.model.means import resolve_mean
from gigagp.model.model import Model
from gigagp.model.prior_samples import PriorSamples
from gigagp.operators import KernelMatrix
from gigagp.optimization import ParameterSpace
from helpers import autograd_gradient, close, generator, reference_block, reference_matrix, relative_error
from panels import GAPS, KERNELS, PLACE, TIME, cells

BUDGET = 2**28
PRODUCT = Matern(1.5, 1.2, 2.0, columns=PLACE) * Matern(0.5, 1.5, columns=TIME, fixed=["variance"])


def model_of(kernel, noise: float = 0.01) -> Model:
    return Model(kernel.bind(3), resolve_mean("constant"), torch.tensor(noise, dtype=torch.float64))


def unit_samples(kernel, X: torch.Tensor) -> PanelSamples:
    """Return samples whose values are the columns of their linear map from standard normal numbers."""
    prior = Pathwise(n_probes=1, n_features=200).draw(model_of(kernel), X, generator(0)).prior
    assert isinstance(prior, PanelSamples)
    return replace(prior, weights=torch.eye(len(prior.weights), dtype=torch.float64))


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "gaps"), [("product", "at random"), ("sums of factors", "repeated")])
def test_samples_have_the_covariance_of_the_kernel_in_the_cells_and_between_cells_and_points(name, gaps):
    X, kernel = cells(gaps), KERNELS[name].bind(3)
    samples = unit_samples(kernel, X)
    new = torch.randn(6, 3, generator=generator(1), dtype=torch.float64)
    new[:2, :2], new[2:4, 2:] = X[:2, :2], X[:2, 2:]  # known entities, known times, and neither
    at_rows, at_new = (samples.evaluate(kernel, points, BUDGET) for points in (X, new))
    close(at_rows @ at_rows.T, reference_matrix(kernel, X) - torch.diag(kernel.white(X)), condition=1e6)
    close(at_new @ at_rows.T, reference_block(kernel, new, X), condition=1e6)
    # features alone miss it by some percent
    columns = samples.weights.shape[0] - len(samples.panel.factors(kernel)) * 50 * 16
    features = PriorSamples(samples.draw, samples.weights[:columns, :columns]).evaluate(kernel, X, BUDGET)
    assert relative_error(features @ features.T, reference_matrix(kernel, X)) > 1e-3


def test_samples_have_gradients_at_points():
    X, kernel = cells("at random"), KERNELS["product"].bind(3)
    prior = Pathwise(n_probes=2, n_features=50).draw(model_of(KERNELS["product"]), X, generator(0)).prior
    at = X[:1].clone() + 0.1
    at.requires_grad_()
    prior.evaluate(kernel, at, BUDGET).sum().backward()
    step = 1e-6
    moved = [at.detach() + sign * step * torch.eye(3, dtype=torch.float64)[1] for sign in (1, -1)]
    up, down = (float(prior.evaluate(kernel, one, BUDGET).sum()) for one in moved)
    assert abs(float(at.grad[0, 1]) - (up - down) / (2 * step)) < 1e-4 * (1 + abs(float(at.grad[0, 1])))


@pytest.mark.few(6)
@pytest.mark.parametrize("gaps", GAPS)
def test_a_fit_is_that_of_dense_algebra(gaps, tmp_path):
    X = cells(gaps).numpy()
    rng = np.random.default_rng(0)
    y = np.sin(2 * X[:, 0]) * np.cos(X[:, 2]) + 0.1 * rng.normal(size=len(X))
    noise = 0.01 * (1 + (np.arange(len(X)) % 3)) if gaps == "at random" else 0.01
    given = {"kernel": PRODUCT, "noise_variance": noise, "optimizer": None, "random_state": 0}
    solver = solvers.ConjugateGradients(tolerance=1e-11)
    panel = GPRegressor(inference=inference.Iterative(solver=solver), **given).fit(X, y)
    exact = GPRegressor(inference=inference.Exact(), **given).fit(X, y)
    new = np.concatenate([cells("complete").numpy()[::90], rng.normal(size=(4, 3))])
    (mean, std), (wanted, deviations) = (
        gp.predict(new, return_std=True, **more) for gp, more in ((panel, {"variance": "solve"}), (exact, {}))
    )
    np.testing.assert_allclose(mean, wanted, atol=1e-6)
    np.testing.assert_allclose(std, deviations, atol=1e-6)
    np.testing.assert_allclose(*(gp.predict(new, return_cov=True)[1] for gp in (panel, exact)), atol=1e-6)
    value, target = (gp.log_marginal_likelihood() for gp in (panel, exact))
    has_error = gaps in ("at random", "repeated")  # of samples, where noise is neither of entities nor of times
    assert abs(value.value - target.value) < (4 * value.standard_error if has_error else 0) + 1e-6 * abs(target.value)
    update = panel.posterior_.update  # samples follow from prior values by the same solve
    matrix = KernelMatrix(panel.posterior_.model.kernel, panel.posterior_.X, panel.posterior_.model.noise_variance)
    points = torch.from_numpy((new - panel.scaling_.x_centre) / panel.scaling_.x_scale)
    found, _ = update.deviations_and_mean(points)
    prior = update.prior.evaluate(matrix.kernel, points, BUDGET)
    solved = torch.linalg.solve(matrix.to_dense(), matrix @ update.probe_solutions)
    np.testing.assert_allclose(found, prior - matrix.kernel.block(points, matrix.X) @ solved, atol=1e-6)
    panel.save(tmp_path / "model.gp")
    np.testing.assert_array_equal(
        load(tmp_path / "model.gp").predict(new, return_std=True), panel.predict(new, return_std=True)
    )


def test_variances_from_samples_are_those_of_the_posterior_where_noise_is_low():
    X = cells("cut short").numpy()
    y = np.sin(2 * X[:, 0]) * np.cos(X[:, 2])
    gp = GPRegressor(
        kernel=PRODUCT,
        noise_variance=1e-4,
        optimizer=None,
        inference=inference.Iterative(n_samples=400),
        random_state=0,
    ).fit(X, y)
    new = cells("complete").numpy()[::7]
    found, wanted = (gp.predict(new, return_std=True, variance=how)[1] for how in ("samples", "solve"))
    gap = wanted > 3 * wanted.min()
    assert abs(np.mean(np.log(found[gap] / wanted[gap]))) < 0.05


@pytest.mark.parametrize(
    "kernel",
    [
        PRODUCT,
        PRODUCT + Matern(1.5, columns=PLACE),
        PRODUCT + RBF(lengthscale=0.4, columns=TIME),
        PRODUCT + Matern(1.5, columns=PLACE) + RBF(lengthscale=0.4, columns=TIME),
    ],
    ids=["product", "entities alone", "times alone", "both alone"],
)
def test_the_guide_is_the_exact_likelihood_of_its_cells(kernel, monkeypatch):
    monkeypatch.setattr("gigagp.inference.curves.guide._DRAWN_CELLS", 10**6)
    X = cells("cut short")
    y = torch.sin(2 * X[:, :1]) + 0.1 * torch.randn(len(X), 2, generator=generator(4), dtype=torch.float64)
    model = model_of(kernel, 0.02)
    table = TrainingTable(X, y, model.mean, BUDGET)
    matrix = KernelMatrix(model.kernel, X, 0.02)
    observed = torch.zeros(matrix.panel.known.shape, dtype=torch.bool)
    observed[matrix.panel.known.entity, matrix.panel.known.time] = True
    guide = PanelGuide(table, matrix.panel, Grid.at(matrix.panel.known, *complete_part(observed)))
    exact = guide.subset(torch.arange(guide.n_rows))
    found, wanted = guide.evaluate(model), exact.evaluate(model)
    close(found.value, wanted.value, condition=1e5)
    for name, slope in wanted.gradient.items():
        close(found.gradient[name], slope, condition=1e7)
    space = ParameterSpace(model, "log")
    vector = space.encode(model)
    many = torch.randn(guide.n_rows, 1000, generator=generator(5), dtype=torch.float64)
    exact_information = exact.fisher(space, vector, many)
    scale = exact_information.diagonal().sqrt()
    error = (guide.fisher(space, vector, many) - exact_information) / scale[:, None] / scale
    assert float(error.abs().max()) < 0.1


def test_the_complete_part_has_no_gap_and_a_panel_with_gaps_everywhere_has_none():
    observed = torch.rand(60, 9, generator=generator(6)) < 0.95
    entities, times = complete_part(observed)
    assert len(entities) > 30
    assert bool(observed[entities][:, times].all())
    X, model = cells("at random"), model_of(PRODUCT)
    sparse = PanelGuide.of(TrainingTable(X, X[:, :1], model.mean, BUDGET), model, KernelMatrix(PRODUCT, X, 0.1).panel)
    assert sparse is None
    assert (
        PanelGuide.of(
            TrainingTable(X, X[:, :1], model.mean, BUDGET),
            model_of(PRODUCT + RBF(columns=PLACE) * RBF(columns=TIME)),
            KernelMatrix(PRODUCT, X, 0.1).panel,
        )
        is None
    )


def test_gradients_of_all_cells_have_the_mean_of_the_likelihoods():
    X, model = cells("at random"), model_of(PRODUCT, 0.05)
    H = KernelMatrix(model.kernel, X, 0.05)
    dense = reference_matrix(model.kernel, X, 0.05)
    inverse = torch.linalg.inv(dense)
    probes = Pathwise(n_probes=600, n_features=20).draw(model, X, generator(7))
    solved = torch.linalg.solve(dense, probes.right_hand_sides(model, H, BUDGET))
    found = H.gradient(solved, solved)
    wanted = autograd_gradient(model.kernel, lambda k: (reference_matrix(k, X) * inverse).sum())
    for name, value in wanted.items():
        assert torch.allclose(found[name] / 600, value, rtol=0.1, atol=0.05 * float(value.abs().max()))


# Neighbours, with the effects of entities beside them --------------------------------------------------------------


def of_entities() -> GPRegressor:
    """Return an estimator of curves and offsets of entities (column 0) at times (column 1), by neighbours."""
    own = Group(0, variance=0.5) * Matern(1.5, 0.8, columns=[1], fixed=["variance"])
    kernel = own + Group(0, variance=2.0) + Matern(1.5, 0.5, columns=[1])
    return GPRegressor(kernel, noise_variance=0.04, optimizer=None, standardize=False, random_state=0)


def made_entities(gaps: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return cells of 12 entities at 20 times, their targets, and cells to predict, also of a new entity."""
    rng = np.random.default_rng(1)
    entity, time = (one.ravel() for one in np.meshgrid(np.arange(12.0), np.linspace(0, 4, 20), indexing="ij"))
    X = np.column_stack([entity, time])
    seen = rng.random(len(X)) < 0.6 if gaps == "at random" else (time < 1.5) | (entity > 5)
    offset = np.sqrt(2.0) * rng.normal(size=12)
    y = offset[entity.astype(int)] + np.sin(3 * time + entity) + 0.2 * rng.normal(size=len(X))
    X_known, y_known = X[seen], y[seen]
    if gaps == "repeated":
        X_known, y_known = np.concatenate([X_known, X_known[:30]]), np.concatenate([y_known, y_known[:30] + 0.3])
    return X_known, y_known, np.concatenate([X[~seen][::7], [[12.0, 1.0], [12.0, 3.0]]])


@pytest.mark.few(1)
@pytest.mark.parametrize("gaps", ["at random", "at the end", "repeated"])
def test_neighbours_with_effects_of_entities_are_dense_algebra_where_all_rows_are_neighbours(gaps, tmp_path):
    X, y, new = made_entities(gaps)
    every = inference.Vecchia(n_neighbors=len(X) + 1, prediction_neighbors=len(X) + 2)
    gp, exact = of_entities().set_params(inference=every).fit(X, y), of_entities().fit(X, y)
    assert gp.posterior_.kind == "vecchia with groups"
    wanted = exact.predict(new, return_cov=True)
    gp.save(tmp_path / "panel.gp")
    for found in (gp, load(tmp_path / "panel.gp")):
        mean, std = found.predict(new, return_std=True)
        np.testing.assert_allclose(mean, wanted[0], rtol=0, atol=1e-7)
        np.testing.assert_allclose(std, np.sqrt(np.diag(wanted[1])), rtol=1e-6)
        np.testing.assert_allclose(found.predict(new, return_cov=True)[1], wanted[1], rtol=0, atol=1e-7)
    np.testing.assert_allclose(gp.log_marginal_likelihood().value, exact.log_marginal_likelihood().value, rtol=1e-7)
    left, wanted_left = gp.leave_one_out(), exact.leave_one_out()
    np.testing.assert_allclose(left.mean, wanted_left.mean, rtol=0, atol=1e-7)
    np.testing.assert_allclose(left.std, wanted_left.std, rtol=1e-6)
    draws = gp.sample_y(new, 4000, random_state=0)
    assert np.abs(draws.mean(1) - wanted[0]).max() < 5 * np.sqrt(np.diag(wanted[1]).max() / 4000)
    further = gp.condition_on(new[:2], [0.5, -0.5]).predict(new)
    np.testing.assert_allclose(further, exact.condition_on(new[:2], [0.5, -0.5]).predict(new), rtol=0, atol=1e-6)


def test_effects_of_entities_are_known_from_all_of_their_rows():
    X, y, new = made_entities("at the end")
    new = new[:-2]
    few = inference.Vecchia(n_neighbors=4, prediction_neighbors=6)
    wanted = of_entities().fit(X, y).predict(new, return_std=True)[1]
    with_effects = of_entities().set_params(inference=few).fit(X, y).predict(new, return_std=True)[1]
    product = Group(0, variance=0.5) * Matern(1.5, 0.8, columns=[1], fixed=["variance"])
    # the same kernel, whose offsets are no term: a curve that does not change
    constant = Group(0, variance=2.0) * Matern(1.5, 1e6, columns=[1], fixed=["variance"])
    kernel = product + constant + Matern(1.5, 0.5, columns=[1])
    without = of_entities().set_params(kernel=kernel, inference=few).fit(X, y).predict(new, return_std=True)[1]
    assert (wanted**2).mean() <= (with_effects**2).mean() <= 0.9 * (without**2).mean()


def test_an_amplified_posterior_is_that_of_the_amplified_model():
    X, y, new = made_entities("at random")
    few = inference.Vecchia(n_neighbors=6, prediction_neighbors=8)
    gp = of_entities().set_params(inference=few).fit(X, 3 * y)
    posterior = gp.posterior_
    found = posterior.amplified()
    assert float(found.model.noise_variance) > 1.1 * float(posterior.model.noise_variance)
    wanted = posterior.fitted(found.model, posterior.table, 6, 8)
    close(found.log_marginal_likelihood(generator(0)).value, wanted.log_marginal_likelihood(generator(0)).value)
    assert wanted.log_marginal_likelihood(generator(0)).value > posterior.log_marginal_likelihood(generator(0)).value
    points = torch.from_numpy((new - gp.scaling_.x_centre) / gp.scaling_.x_scale)
    pairs = zip(found.mean_and_variance(points), wanted.mean_and_variance(points), strict=True)
    for one, other in pairs:
        close(one, other, condition=1e4)
    close(found.covariance(points), wanted.covariance(points), condition=1e4)
    assert wanted.amplified() is wanted


def grid_table(entities, times, share=0.6):
    e, t = torch.arange(entities).repeat_interleave(times), torch.arange(times).repeat(entities)
    X = torch.stack([e, t.flip(0)], 1).double()[torch.rand(entities * times, generator=generator(1)) < share]
    return TrainingTable(X, X[:, :1], resolve_mean("zero"), BUDGET, cells=((0,), (1,)))


def test_a_run_of_times_is_drawn_of_a_long_panel():
    """Random cells would have nothing in common; few entities would not show what those with like inputs have."""
    few = grid_table(6, 400)
    rows = few.draw_rows(300, generator(2))
    assert torch.equal(rows, rows.unique())
    run = few.X[rows, 1].unique()
    assert float(run[-1] - run[0]) < 120
    assert len(few.X[rows, 0].unique()) == 6
    assert float(few.X[replace(few, cells=None).draw_rows(300, generator(2)), 1].unique().diff().mean()) > 1.2
    many = grid_table(300, 200)
    rows = many.draw_rows(500, generator(2))
    counts = torch.bincount(many.X[rows, 0].long()).sort(descending=True).values
    assert 200 < int(counts[:10].sum()) < 340
    assert int((counts > 0).sum()) > 100


def test_random_rows_are_drawn_of_other_panels():
    short = grid_table(300, 40)
    for table, count in ((short, 500), (short.take_rows(torch.arange(100)), 200)):
        rows = table.draw_rows(count, generator(2))
        assert torch.equal(rows, replace(table, cells=None).draw_rows(count, generator(2)))
    lone = torch.arange(400.0, dtype=torch.float64)[:, None].repeat(1, 2)  # one row of each entity, and of each time
    apart = TrainingTable(lone, lone[:, :1], resolve_mean("zero"), BUDGET, cells=((0,), (1,)))
    assert len(apart.draw_rows(50, generator(0)).unique()) == 50
