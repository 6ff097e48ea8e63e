"""Vecchia-Laplace inference: gradients, draws, exact limits, hostile targets, files and learning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import gigagp
from contract import dense
from gigagp import GPClassifier, GPRegressor, inference, kernels, optimization
from gigagp.errors import InvalidInputError
from gigagp.inference.vecchia import laplace, latent
from gigagp.inference.vecchia.learning_rows import spread_and_clustered
from gigagp.inference.vecchia.mode import Curvature
from gigagp.model.likelihoods import Laplace, Likelihood, Logistic, Poisson, Probit, StudentT
from gigagp.model.means import LinearMean
from gigagp.optimization.space import ParameterSpace
from gigagp.settings.custom import Custom
from helpers import draw_targets, generator, points, relative_error
from vecchia_cases import NEW, clumps, gradients, killed_at_write, model_of, objective_of, tables

KERNEL = kernels.Matern(1.5, [0.8, 1.7], 1.3).bind(2)
N = 90
LIKELIHOODS = [Logistic(), Probit(), Poisson(), Laplace(), StudentT()]
likelihoods = pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda one: one.name)


def targets(likelihood, X, columns=1):
    f = draw_targets(KERNEL, X, 1e-8, columns=columns)
    uniform = torch.rand(f.shape, generator=generator(7), dtype=torch.float64)
    if likelihood.name == "poisson":
        return torch.poisson(f.exp(), generator=generator(8))
    if likelihood.has_noise:
        return f + 0.3 * torch.tan(1.3 * (uniform - 0.5))
    return torch.where(uniform < torch.sigmoid(f), 1.0, -1.0).double()


def objective(likelihood, X, Y, mean=None, neighbours=8, **options):
    return objective_of(X, Y, likelihood, neighbours=neighbours, more=3 * neighbours, mean=mean, **options)


def model(kernel=KERNEL, mean=None, noise=0.2):
    return model_of(kernel, noise, mean)


# Gradients -----------------------------------------------------------------------------------------------------------


@pytest.mark.each
@tables
@likelihoods
def test_the_gradient_is_that_of_the_value(table, likelihood):
    """With a white part, a linear mean and two targets."""
    X = table(N)
    kernel = (KERNEL + kernels.White(0.05)).bind(2)
    own = objective(likelihood, X, targets(likelihood, X, 2), LinearMean())
    start = own.start(model(kernel, LinearMean()))
    found, expected = gradients(own, start)
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-5)
    if likelihood.name == "logistic":  # the control: the determinant's change through the mode matters
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Curvature, "of", lambda *given, of=Curvature.of: _still(of(*given)), raising=True)
            without, _ = gradients(own, start)
        assert float((without - expected).abs().max()) > 1e-2


def _still(found):
    return found._replace(change=torch.zeros_like(found.change))


@likelihoods
def test_gradients_from_draws_are_unbiased(likelihood, monkeypatch):
    X = clumps(150)
    own = objective(likelihood, X, targets(likelihood, X))
    start = own.start(model())
    exact = own.evaluate(start)
    monkeypatch.setattr(latent, "DENSE_ROWS", 0)
    monkeypatch.setattr(laplace, "_TOLERANCE", 1e-8)
    monkeypatch.setattr(laplace, "_GRADIENT_DRAWS", 4000)
    monkeypatch.setattr(laplace, "_DIRECTIONS", 500)
    drawn = own.evaluate(start)
    assert drawn.value == pytest.approx(exact.value, abs=0.5)
    for name, value in exact.gradient.items():
        scale = 0.05 * float(value.abs().max()) + 0.3
        assert float((drawn.gradient[name] - value).abs().max()) < scale, name
    # the control: draws of the prior in the place of those of the posterior
    monkeypatch.setattr(latent.LatentSpace, "roots", lambda self, *_: (self.colour(torch.eye(self.n).double()),) * 2)
    wrong = own.evaluate(start).gradient["variance"]
    assert float((wrong - exact.gradient["variance"]).abs()) > 0.05 * float(exact.gradient["variance"].abs()) + 0.3


def test_few_draws_suffice_for_the_gradients_of_smooth_kernels(monkeypatch):
    """What the data do not inform adds no noise, though a smooth kernel's precision is huge there."""
    X = points(200, 2)
    own, smooth = objective(Logistic(), X, targets(Logistic(), X), neighbours=20), kernels.RBF([0.8, 1.7], 1.3).bind(2)
    start = own.start(model(smooth))
    exact = own.evaluate(start).gradient["lengthscale"]
    monkeypatch.setattr(latent, "DENSE_ROWS", 0)

    def error(seeds=6):
        squares = []
        for seed in range(seeds):
            draws = torch.randn(200, 32, generator=generator(seed), dtype=torch.float64).split(16, 1)
            monkeypatch.setattr(latent.LatentSpace, "_draws", lambda self, count, draws=draws: draws)
            squares.append((own.evaluate(start).gradient["lengthscale"] - exact).square().mean())
        return float(torch.stack(squares).mean().sqrt())

    found = error()
    monkeypatch.setattr(latent.LatentSpace, "is_dense", True)  # the control: differences of the two forms
    assert 5 * found < error()


# The latent space -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [0, 20])
def test_solves_without_dense_matrices_agree_with_dense_ones(block, monkeypatch):
    X = clumps(N)
    own = objective(Logistic(), X, targets(Logistic(), X))
    own.start(model())
    draws = torch.rand(N, 2, generator=generator(3), dtype=torch.float64)
    right = torch.randn(N, 2, 3, generator=generator(4), dtype=torch.float64)
    found = []
    for rows in (10**6, 0):
        monkeypatch.setattr(latent, "DENSE_ROWS", rows)
        space = own._space(model(), own._graph, own._nugget(model()), block)
        root, prior = space.roots(draws[:, 0], 6000, 1e-8)
        determinant = space.log_determinant(draws[:, 0], 64)
        basis = torch.ones(N, 1, dtype=torch.float64)
        pair = space.solve_with_trend(right[:, :, 0], right[:1, :, 1], draws, basis, 1e-11)
        solved = space.solve(right, draws, 1e-11), space.solve(right[:, :1], draws[:, :1], 1e-11), *pair
        found.append((root @ root.T, prior @ prior.T, determinant, solved, space.trend(draws[:, 0], basis, 1e-11)))
    exact, sampled = found
    assert relative_error(sampled[0], exact[0]) < 0.1
    assert relative_error(sampled[1], exact[1]) < 0.1
    assert abs(sampled[2].value - exact[2].value) < 5 * sampled[2].standard_error + 1e-9
    assert exact[2].standard_error == 0.0
    for one, other in zip((*sampled[3], *sampled[4]), (*exact[3], *exact[4]), strict=True):
        assert relative_error(one, other) < 1e-7


def test_variances_from_draws(monkeypatch):
    X = clumps(400)
    own = objective(Logistic(), X, targets(Logistic(), X), neighbours=20)
    exact = own.posterior(model(), generator())
    monkeypatch.setattr(latent, "DENSE_ROWS", 0)
    drawn = own.posterior(model(), generator())
    assert drawn.latent.root.shape == (400, 128)
    torch.testing.assert_close(drawn.mean(NEW), exact.mean(NEW), rtol=1e-3, atol=1e-3)
    ratio = drawn.mean_and_variance(NEW)[1] / exact.mean_and_variance(NEW)[1]
    assert float((ratio - 1).abs().max()) < 4.5 * (2 / 128) ** 0.5
    value = drawn.log_marginal_likelihood(generator())
    assert abs(value.value - exact.log_marginal_likelihood(generator()).value) < 5 * value.standard_error


# Against dense algebra; `tests/contract` has all cells with as many neighbours as rows --------------------------------


@pytest.mark.slow
@pytest.mark.few(1)
@tables
@pytest.mark.parametrize("likelihood", [Logistic(), Poisson(), Laplace()], ids=lambda one: one.name)
def test_few_neighbours_are_close_to_all(table, likelihood):
    X = table(150)
    Y, noise = targets(likelihood, X), np.full(150, 0.2)
    found = objective(likelihood, X, Y, neighbours=20).posterior(model(), generator())
    covariance = dense.matern(1.5, np.array([0.8, 1.7]), 1.3)
    exact = dense.laplace_approximation(covariance, X.numpy(), Y.numpy(), NEW.numpy(), noise, likelihood.name)
    mean, variance = found.mean_and_variance(NEW)
    spread = np.sqrt(exact.variance)
    assert np.abs(mean.numpy() - exact.mean)[:, 0].max() < 0.15 * spread.max()
    np.testing.assert_allclose(variance.numpy(), exact.variance, rtol=0.05)
    assert abs(found.log_marginal_likelihood(generator()).value - exact.evidence) < 1.5
    torch.testing.assert_close(found.covariance(NEW).diagonal(), variance, rtol=1e-8, atol=1e-10)


def test_samples_have_the_covariance_of_the_predictions():
    X = clumps(N)
    found = objective(Poisson(), X, targets(Poisson(), X)).posterior(model(), generator())
    new = NEW[:5]
    mean, covariance = found.mean(new)[:, 0], found.covariance(new)
    at = found.sample_at(new, 6000, generator(3))[:, 0].T
    functions = torch.cat([found.sample_functions(100, generator(k))(new)[:, 0].T for k in range(60)])
    for drawn in (at, functions):
        assert relative_error(torch.cov(drawn.T), covariance) < 0.12
        assert float((drawn.mean(0) - mean).abs().max()) < 0.1
    assert relative_error(torch.cov(at.T), 1.4 * covariance) > 0.12


# Hostile targets ------------------------------------------------------------------------------------------------------

HOSTILE = {
    "no counts": (Poisson(), lambda n: torch.zeros(n, 1, dtype=torch.float64)),
    "huge counts": (Poisson(), lambda n: torch.arange(n, dtype=torch.float64)[:, None] * 1e9),
    "one huge count": (Poisson(), lambda n: 1e12 * (torch.arange(n) == 3).double()[:, None]),
    "one class": (Logistic(), lambda n: torch.ones(n, 1, dtype=torch.float64)),
    "separable classes": (Probit(), lambda n: torch.sign(points(n, 2)[:, :1] + 1e-9)),
    "a far outlier": (Laplace(), lambda n: 1e6 * (torch.arange(n) == 3).double()[:, None]),
    "constant": (Laplace(), lambda n: torch.full((n, 1), 5.0, dtype=torch.float64)),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("rows", [10**6, 0], ids=["dense", "draws"])
@pytest.mark.parametrize(("likelihood", "make"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_targets(likelihood, make, rows, monkeypatch):
    monkeypatch.setattr(latent, "DENSE_ROWS", rows)
    X = points(N, 2)
    Y = make(N)
    own = objective(likelihood, X, Y, LinearMean(), neighbours=N - 1)
    found = own.posterior(own.start(model(mean=LinearMean())), generator())
    mean, variance = found.mean_and_variance(X)
    evaluation = own.evaluate(model(mean=LinearMean()))
    assert bool(torch.isfinite(torch.cat([mean[:, 0], variance])).all())
    assert bool((variance > 0).all())
    assert all(bool(torch.isfinite(one).all()) for one in evaluation.gradient.values())
    # at the mode the pull of the prior is that of the likelihood
    trend = found.trend(X)
    f = found.latent.mean if rows == 0 else mean - trend
    slope = Curvature.of(likelihood, Y, f + trend, torch.full((N,), 0.2, dtype=torch.float64)).slope
    assert float((KERNEL.block(X, X) @ slope - f).abs().max()) < 1e-2 * (1 + float(f.abs().max()))


@pytest.mark.slow
def test_badly_scaled_inputs():
    scale = np.array([1e-6, 1e6])
    X = points(300, 2).numpy()
    y = np.random.default_rng(0).poisson(np.exp(np.sin(2 * X[:, 0])))
    gp, other = (
        GPRegressor(kernels.Matern(nu=1.5), inference.Vecchia(10), likelihood="poisson").fit(one, y)
        for one in (X, X * scale)
    )
    np.testing.assert_allclose(gp.predict(X[:9]), other.predict(X[:9] * scale), rtol=1e-4)


def test_invalid_targets_and_likelihoods_are_refused():
    X = points(20, 2).numpy()
    with pytest.raises(InvalidInputError, match="whole numbers"):
        GPRegressor(inference=inference.Vecchia(), likelihood="poisson").fit(X, np.full(20, 0.5))

    class Convex(Likelihood):
        name = "convex"

        def log_density(self, y, f, noise):
            return f.square()

    with pytest.raises(InvalidInputError, match="log-concave"):
        GPRegressor(inference=inference.Vecchia(), likelihood=Convex()).fit(X, np.zeros(20))


# Learning -------------------------------------------------------------------------------------------------------------


def labelled(n=400, classes=2):
    X = points(n, 2).numpy()
    f = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
    return X, np.digitize(f, np.linspace(-1, 1, classes + 1)[1:-1])


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("classes", [2, 3])
def test_classes_are_learned_and_saved(classes, tmp_path):
    X, y = labelled(classes=classes)
    names = np.array(["a", "b", "c"])[y]
    gp = GPClassifier(kernels.RBF(), inference=inference.Vecchia(12)).fit(X[:300], names[:300])
    assert gp.score(X[300:], names[300:]) > 0.88
    probabilities = gp.predict_proba(X[300:])
    np.testing.assert_allclose(probabilities.sum(1), 1.0)
    gp.save(tmp_path / "model.gp")
    again = gigagp.load(tmp_path / "model.gp")
    np.testing.assert_array_equal(again.predict_proba(X[300:]), probabilities)
    np.testing.assert_array_equal(
        again.latent_.sample_y(X[:4], 3, random_state=1), gp.latent_.sample_y(X[:4], 3, random_state=1)
    )
    assert again.log_marginal_likelihood() == gp.log_marginal_likelihood()
    assert "Laplace approximation" in gp.latent_.describe()


def test_files_of_latent_values_without_an_independent_part():
    X = points(30, 2)
    y = torch.poisson(torch.exp(X[:, 0]), generator=generator())
    method = inference.Vecchia(n_neighbors=8)
    gp = GPRegressor(kernels.Matern(2.5, [1.0, 1.0]), method, optimizer=None, mean="zero", likelihood="poisson")
    tensors, header = gp.fit(X.numpy(), y.numpy())._to_state()
    (name,) = [name for name in tensors if name.endswith("noise")]
    earlier = GPRegressor._from_state({key: one for key, one in tensors.items() if key != name}, header, Custom())
    assert earlier.posterior_.latent.noise.eq(0).all()
    difference = earlier.predict_latent(X.numpy()) - gp.predict_latent(X.numpy())
    assert 0 < np.abs(difference).max() < 1e-7  # the part is 1e-10 of the variance


@pytest.mark.slow
def test_learning_climbs_to_the_optimum():
    X, y = labelled(300)
    auto = GPClassifier(kernels.Matern(nu=1.5), inference.Vecchia(12)).fit(X, y)
    exact = GPClassifier(kernels.Matern(nu=1.5), inference.Vecchia(12), optimization.LBFGS()).fit(X, y)
    reached, best = auto.log_marginal_likelihood().value, exact.log_marginal_likelihood().value
    assert best - 3 < reached < best + 0.05  # the default has a weak prior
    fixed = GPClassifier(kernels.Matern(1.5, 1.0, 1.0), inference.Vecchia(12), None).fit(X, y)
    assert fixed.log_marginal_likelihood().value < best - 3


@pytest.mark.slow
def test_learning_from_draws_and_from_a_part_of_the_rows(monkeypatch):
    X, y = labelled(600)
    y = np.random.default_rng(1).poisson(np.exp(y.astype(float)))

    def learned(**settings):
        method = inference.Vecchia(12, **settings)
        return GPRegressor(kernels.Matern(nu=1.5), method, likelihood="poisson").fit(X, y)

    def evidence(gp):
        fixed = GPRegressor(gp.kernel_, inference.Vecchia(12), None, likelihood="poisson").fit(X, y)
        return fixed.log_marginal_likelihood()

    exact = learned()
    with monkeypatch.context() as patch:
        patch.setattr(latent, "DENSE_ROWS", 0)
        by_draws, of_a_part = learned(), learned(learning_rows=400)
    best = evidence(exact).value
    assert evidence(by_draws).value > best - 2  # about half a nat a hyperparameter, and the tolerance
    assert evidence(of_a_part).value > best - 4  # rows that were not seen cost about half a nat a hyperparameter
    start = GPRegressor(kernels.Matern(nu=1.5), inference.Vecchia(12), None, likelihood="poisson").fit(X, y)
    assert start.log_marginal_likelihood().value < best - 5  # the control
    for gp in (by_draws, of_a_part):
        np.testing.assert_allclose(gp.predict(X[:50]), exact.predict(X[:50]), atol=0.2)


def test_a_share_of_the_rows_is_scaled_up_and_sound():
    X = clumps(3000)
    rows = spread_and_clustered(X, 600)
    assert len(rows) == 600
    assert bool((rows[1:] > rows[:-1]).all())
    assert len(spread_and_clustered(X, 3)) == 3
    Y = targets(Logistic(), X[:300])
    own = objective(Logistic(), X[:300], Y, rows=100)
    part = objective(Logistic(), X[:300][own._rows], Y[own._rows])
    whole, alone = own.evaluate(own.start(model())), part.evaluate(part.start(model()))
    assert whole.value == pytest.approx(3 * alone.value)
    torch.testing.assert_close(whole.gradient["variance"], 3 * alone.gradient["variance"])
    space = ParameterSpace(model(), "log")
    vector, none = space.encode(model()), torch.zeros(0)
    torch.testing.assert_close(own.fisher(space, vector, none), 3 * part.fisher(space, vector, none))


def test_rows_cannot_be_added():
    X, y = labelled(60)
    gp = GPRegressor(kernels.Matern(1.5, 1.0), inference.Vecchia(6), None, likelihood="poisson").fit(X, y)
    before = gp.predict(X)
    with pytest.raises(InvalidInputError, match="gaussian likelihood alone"):
        gp.partial_fit(X[:3], y[:3])
    np.testing.assert_array_equal(gp.predict(X), before)


@pytest.mark.parametrize("kill_at", [3, 8])
def test_a_killed_fit_resumes_to_the_same_bits(kill_at, tmp_path):
    X, y = labelled(200)
    path = tmp_path / "fit.checkpoint"

    def estimator():
        return GPClassifier(inference=inference.Vecchia(6, 9, learning_rows=150), optimizer=optimization.Adam(steps=12))

    whole = estimator().fit(X, y)
    with killed_at_write(kill_at):
        estimator().fit(X, y, checkpoint=path)
    resumed = estimator().fit(X, y, checkpoint=path)
    np.testing.assert_array_equal(whole.predict_proba(X), resumed.predict_proba(X))


@pytest.mark.slow
def test_the_same_numbers_on_one_and_two_threads(monkeypatch):
    """Up to the rounding of dense Cholesky factors."""
    monkeypatch.setattr(latent, "DENSE_ROWS", 0)
    X = clumps(1500)
    found, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            own = objective(Poisson(), X, (X[:, :1].abs() * 3).round())
            gradient = own.evaluate(own.start(model())).gradient["lengthscale"]
            found.append((gradient, *own.posterior(model(), generator()).mean_and_variance(NEW)))
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


@pytest.mark.slow
def test_known_noise_of_each_row_under_laplace_noise():
    X = clumps(N)
    Y = targets(Laplace(), X)
    noise = 0.05 + torch.rand(N, generator=generator(5), dtype=torch.float64)
    own = objective(Laplace(), X, Y, neighbours=N - 1)
    found = own.posterior(replace(model(), noise_variance=noise), generator())
    covariance = dense.matern(1.5, np.array([0.8, 1.7]), 1.3)
    exact = dense.laplace_approximation(covariance, X.numpy(), Y.numpy(), NEW.numpy(), noise.numpy(), "laplace")
    np.testing.assert_allclose(found.mean(NEW).numpy(), exact.mean, atol=1e-4)
    np.testing.assert_allclose(found.mean_and_variance(NEW)[1].numpy(), exact.variance, rtol=1e-6)


def test_the_mode_under_targets_far_from_all_latent_values():
    """The log density is then linear, so that the mode is ``K sign(y) / b``, and its values lose what a step gains."""
    X = np.random.default_rng(3).uniform(0, 5, (13, 1))
    sides = np.where(np.arange(13) % 3 == 1, -1.0, 1.0)
    kernel = kernels.Matern(nu=1.5, lengthscale=[2.0], variance=4.7)
    gp = GPRegressor(kernel, inference.Vecchia(12), None, likelihood="laplace", mean="zero", noise_variance=1.0)
    gp.set_params(standardize=False).fit(X, sides * np.linspace(1e5, 1e6, 13))
    rows = torch.from_numpy(X)
    expected = gp.kernel_.block(rows, rows).numpy() @ sides / np.sqrt(0.5)
    assert np.allclose(gp.predict_latent(X), expected, atol=1e-5 * np.sqrt(4.7))  # it had been off by 4e-3
