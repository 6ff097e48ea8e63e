"""Answers with uncertain hyperparameters, against sums over a dense grid of hyperparameters in float64."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from scipy.integrate import trapezoid
from sklearn.exceptions import NotFittedError

import gigagp
from gigagp import GPClassifier, GPRegressor, inference, kernels, optimization
from gigagp.errors import FitWarning, InvalidInputError, MemoryBudgetError, NotPositiveDefiniteError
from gigagp.estimators.answers.answering import predictor_of
from gigagp.inference import uncertain_hyperparameters as uncertain
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.mixture_posterior import MixturePosterior
from gigagp.model.means import resolve_mean
from gigagp.model.model import Model

NEW = np.linspace(-2.2, 3.0, 9)[:, None]
LEVELS = (0.025, 0.25, 0.75, 0.975)


def rows(n: int, noise: float, seed: int, kind: str = "even") -> tuple[np.ndarray, np.ndarray]:
    """Return a standardized table of one input, whose rows are even, clumped with a gap, or repeated."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 6, (n, 1))
    if kind == "clumped":
        X[n // 3 :] = 2 * X[: n - n // 3] ** 0.5 + 0.02 * rng.normal(size=(n - n // 3, 1))
    elif kind == "repeated":
        X[n // 2 :] = X[: n - n // 2]
    y = np.sin(2 * X[:, 0]) + noise * rng.normal(size=n)
    return (X - X.mean()) / X.std(), (y - y.mean()) / y.std()


class Dense:
    """The answers of a Matern-3/2 kernel with a constant mean, summed over a grid of its three hyperparameters.

    The constant has a flat prior. The logs of lengthscale, standard deviation and noise have the documented priors.
    """

    centres, widths = np.array([0.0, 0.0, math.log(0.3)]), np.array([2.0, 1.5, 1.0])

    def __init__(self, X: np.ndarray, y: np.ndarray) -> None:
        self.X, self.y = torch.from_numpy(X), torch.from_numpy(y)
        axes = [np.linspace(c - 3 * w, c + 3 * w, 13) for c, w in zip(self.centres, self.widths, strict=True)]
        for _ in range(2):  # a finer grid where the density is
            self._compute(axes)
            mean = self.weights @ self.points
            std = (self.weights @ (self.points - mean) ** 2).sqrt() + 0.02
            axes = [
                np.linspace(max(float(m - 5 * s), axis[0]), min(float(m + 5 * s), axis[-1]), 15)
                for m, s, axis in zip(mean, std, axes, strict=True)
            ]
        self._compute(axes)

    def _compute(self, axes: list[np.ndarray]) -> None:
        self.points = torch.cartesian_prod(*(torch.from_numpy(axis) for axis in axes))
        parts = [self._of(some) for some in self.points.split(1000)]
        logs, self.means, self.variances, self.noises = (torch.cat(part) for part in zip(*parts, strict=True))
        self.weights = (logs - logs.logsumexp(0)).exp()

    def _of(self, points: torch.Tensor) -> tuple[torch.Tensor, ...]:
        length, scale, noise = points.exp().T[:, :, None, None]
        n, new, ones = len(self.y), torch.from_numpy(NEW), torch.ones(len(points), len(self.y), 1).double()

        def kernel(Z: torch.Tensor) -> torch.Tensor:
            r = math.sqrt(3) * (self.X - Z.T).abs() / length
            return scale**2 * (1 + r) * torch.exp(-r)

        inverse = torch.cholesky_inverse(torch.linalg.cholesky(kernel(self.X) + noise**2 * torch.eye(n).double()))
        gram = ones.mT @ inverse @ ones
        beta = ones.mT @ inverse @ self.y[:, None] / gram
        residual = self.y[:, None] - ones * beta
        logs = 0.5 * (torch.linalg.slogdet(inverse)[1] - (residual.mT @ inverse @ residual + gram.log())[:, 0, 0])
        penalty = ((points - torch.from_numpy(self.centres)) / torch.from_numpy(self.widths)).square().sum(1) / 2
        cross = kernel(new)
        rest = 1 - ones.mT @ inverse @ cross
        mean = (beta + residual.mT @ inverse @ cross)[:, 0]
        variance = scale**2 - (cross * (inverse @ cross)).sum(1, keepdim=True) + rest**2 / gram
        # where hardly anything is left of a large variance, rounding is larger; such points have no weight
        return logs - penalty, mean, variance[:, 0].clamp_min(0.0), noise[:, 0] ** 2

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        mean = self.weights @ self.means
        return mean.numpy(), (self.weights @ (self.variances + (self.means - mean) ** 2)).sqrt().numpy()

    def distribution(self, values: np.ndarray) -> np.ndarray:
        """Return the distribution function of a measurement at values of shape (m, k)."""
        z = (torch.from_numpy(values)[None] - self.means[:, :, None]) / (self.variances + self.noises).sqrt()[
            :, :, None
        ]
        return (self.weights[:, None, None] * torch.special.ndtr(z)).sum(0).numpy()


CASES = [
    (15, 0.3, "even"),
    (20, 1.0, "clumped"),
    (25, 3.0, "even"),
    (30, 0.1, "clumped"),
    (40, 0.3, "repeated"),
]


@pytest.mark.parametrize("draws", [32, pytest.param(128, marks=pytest.mark.rest)])
def test_draws_come_to_the_sum_over_a_dense_grid(draws, monkeypatch):
    """Answers at the learned hyperparameters are the control, whose errors are those that draws should remove."""
    monkeypatch.setattr(uncertain, "_DRAWS", (draws, 64, 64))
    errors, levels = {"learned": [], "laplace": []}, {"learned": [], "laplace": []}
    for seed, case in enumerate(CASES):
        X, y = rows(*case[:2], seed, case[2])
        gp, truth = GPRegressor(kernels.Matern(nu=1.5), standardize=False).fit(X, y), Dense(X, y)
        mean, std = truth.moments()
        for name in errors:
            m, s = gp.predict(NEW, return_std=True, hyperparameters=name)
            values = gp.predict_quantile(NEW, LEVELS, hyperparameters=name)
            levels[name].append(np.abs(truth.distribution(values) - LEVELS).mean())
            if case[1] < 3:  # in nearly nothing but noise there is more than one mode, and draws are about one
                errors[name] += [*(m - mean) / std, *np.log(s / std)]
    sizes = {name: np.sqrt(np.mean(np.square(found))) for name, found in errors.items()}
    assert sizes["laplace"] < 0.3 * sizes["learned"]
    assert np.mean(levels["laplace"]) < 0.5 * np.mean(levels["learned"])


@pytest.mark.slow
def test_neighbours_and_solves_agree_with_it():
    X, y = rows(40, 0.3, 0)
    found = {}
    for method in (inference.Exact(), inference.Vecchia(39, 39), inference.Iterative(final_tolerance=1e-8)):
        gp = GPRegressor(kernels.Matern(nu=1.5), inference=method).fit(X, y)
        found[method.abilities.name] = gp.predict(NEW, return_std=True, variance="solve", hyperparameters="laplace")
        assert np.isfinite(gp.sample_y(NEW, 3, hyperparameters="laplace")).all()
    for name in ("vecchia", "iterative"):  # which end their learning elsewhere by the tolerance of learning
        np.testing.assert_allclose(found[name][0], found["exact"][0], atol=0.05)
        np.testing.assert_allclose(found[name][1], found["exact"][1], rtol=0.05)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "method", [inference.Exact(), inference.Vecchia(10, 20), inference.Iterative(), "average"], ids=str
)
def test_many_rows_have_draws_of_equal_weight_about_the_learned_hyperparameters(method, monkeypatch):
    monkeypatch.setattr(uncertain, "WEIGHTED_ROWS", 30)
    monkeypatch.setattr(uncertain, "_FEW_ROWS", 20)
    monkeypatch.setattr(uncertain, "_SUBSET", 40)
    X, y = rows(60, 0.3, 0)
    kernel = "average" if method == "average" else kernels.Matern(nu=1.5)
    gp = GPRegressor(kernel, "auto" if method == "average" else method).fit(X, y)
    mixture = predictor_of(gp, "laplace").posterior
    assert isinstance(mixture, MixturePosterior)
    if method != "average":
        assert len(mixture.components) == 8
        np.testing.assert_allclose(mixture.weights, 1 / 8)
    assert mixture.weights.sum() == pytest.approx(1)
    s, wider = (gp.predict(NEW, return_std=True, hyperparameters=name)[1] for name in ("learned", "laplace"))
    assert (wider > 0.9 * s).all()
    assert wider.mean() > s.mean()


def test_kernels_of_an_average_share_the_draws(monkeypatch):
    """Each keeps its weight, and one of little weight its learned hyperparameters."""
    X, y = rows(40, 0.3, 0)
    gp = GPRegressor("average", hyperparameters="learned").fit(X, y)
    average = gp.posterior_
    least = float(average.weights.sort().values[:2].mean())  # so that the lightest has no draws
    monkeypatch.setattr(uncertain, "_LEAST_SHARE", least)
    mixture = predictor_of(gp, "laplace").posterior

    def names(posterior):
        return tuple(posterior.model.parameters())

    pairs = list(zip(average.weights.tolist(), average.components, strict=True))
    for weight, one in pairs:
        like = [k for k, other in enumerate(mixture.components) if names(other) == names(one)]
        alike = [w for w, other in pairs if names(other) == names(one)]
        assert float(mixture.weights[like].sum()) == pytest.approx(sum(alike), rel=1e-9)
        if len(alike) == 1:
            assert (mixture.components[like[0]] is one) == (weight < least)
            assert len(like) <= max(8, round(32 * weight))
    assert len(mixture.components) < 64


def dense_information(gp: GPRegressor) -> torch.Tensor:
    """Return the information and the prior's precision by automatic differentiation of the covariance matrix."""
    posterior = gp.posterior_
    X = posterior.X

    def matrix(logs: torch.Tensor) -> torch.Tensor:
        length, scale, noise = logs.exp()
        r = math.sqrt(3) * (X - X.T).abs() / length
        return scale**2 * (1 + r) * torch.exp(-r) + noise**2 * torch.eye(len(X)).double()

    values = posterior.model.parameters()
    scales = [
        values["lengthscale"].reshape(-1),
        *(values[name][None].sqrt() for name in ("variance", "noise_variance")),
    ]
    logs = torch.cat(scales).log()
    slopes = torch.autograd.functional.jacobian(matrix, logs).movedim(2, 0)
    whitened = torch.linalg.inv(matrix(logs)) @ slopes
    information = 0.5 * torch.einsum("kij,lji->kl", whitened, whitened)
    return information + torch.diag(torch.from_numpy(Dense.widths) ** -2)


@pytest.mark.slow
def test_draws_have_the_covariance_of_the_information(monkeypatch):
    X, y = rows(50, 0.3, 0)
    gp = GPRegressor(kernels.Matern(nu=1.5)).fit(X, y)
    objective = gp.inference_.objective(gp.posterior_.table, torch.Generator())
    beliefs = uncertain._Beliefs.of(objective, gp.posterior_.model, torch.Generator().manual_seed(0))
    drawn, _ = beliefs.plain_draws(4096)
    expected = torch.linalg.inv(dense_information(gp))
    assert beliefs.space.labels[0].startswith("lengthscale")
    order = [beliefs.space.names.index(name) for name in ("lengthscale", "variance", "noise_variance")]
    np.testing.assert_allclose(torch.cov(drawn.T)[order][:, order], expected, rtol=0.02, atol=1e-4)
    np.testing.assert_allclose(drawn.mean(0), beliefs.centre, atol=0.01)


def test_halves_of_an_axis_have_their_widths():
    X, y = rows(20, 0.3, 0)
    gp = GPRegressor(kernels.Matern(nu=1.5)).fit(X, y)
    objective = gp.inference_.objective(gp.posterior_.table, torch.Generator())
    beliefs = uncertain._Beliefs.of(objective, gp.posterior_.model, torch.Generator().manual_seed(0))
    widths = torch.tensor([[1.0, 0.5, 2.0], [1.0, 1.5, 0.4]]).double()
    drawn, squares = beliefs._within(torch.zeros(3).double(), torch.eye(3).double(), widths, 8192)
    for k in range(3):
        below, above = drawn[drawn[:, k] < 0, k], drawn[drawn[:, k] > 0, k]
        assert len(below) / 8192 == pytest.approx(float(widths[0, k] / widths[:, k].sum()), abs=0.002)
        assert float(below.square().mean().sqrt()) == pytest.approx(float(widths[0, k]), rel=0.01)
        assert float(above.square().mean().sqrt()) == pytest.approx(float(widths[1, k]), rel=0.01)
    scaled = torch.where(drawn < 0, drawn / widths[0], drawn / widths[1])
    np.testing.assert_allclose(scaled.square().sum(1), squares)


def test_weights_are_those_of_the_density_or_worth_enough():
    logs = torch.randn(100, generator=torch.Generator().manual_seed(0)).double()
    np.testing.assert_allclose(uncertain._tempered(logs), (logs - logs.max()).exp())
    far = torch.cat([100 * logs, torch.tensor([-math.inf])])
    weights = uncertain._tempered(far)
    assert weights[-1] == 0
    assert float(weights.sum() ** 2 / weights.square().sum()) == pytest.approx(8, rel=1e-6)
    few = uncertain._tempered(torch.tensor([0.0, *[-100.0] * 10, -math.inf]).double())
    assert float(few.sum() ** 2 / few.square().sum()) == pytest.approx(3, rel=1e-6)
    assert few[-1] == 0


def test_bounds_hold_for_every_draw():
    X, y = rows(25, 0.3, 0)
    bounds = {"lengthscale": (0.9, 1.1), "variance": (0.01, 0.02)}
    gp = GPRegressor(kernels.Matern(1.5, 1.0, 0.015, bounds=bounds), standardize=False).fit(X, y)
    for one in predictor_of(gp, "laplace").posterior.components:
        values = one.model.parameters()
        assert 0.9 <= float(values["lengthscale"]) <= 1.1
        assert 0.01 <= float(values["variance"]) <= 0.02
    moved = {float(one.model.noise_variance) for one in predictor_of(gp, "laplace").posterior.components}
    assert len(moved) > 4
    fixed = GPRegressor(kernels.Matern(1.5, 1.0, fixed=["lengthscale"])).fit(X, y)
    lengths = {float(one.model.kernel.lengthscale) for one in predictor_of(fixed, "laplace").posterior.components}
    assert len(lengths) == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["two rows", "constant target", "many inputs", "no noise", "far row", "one place"])
def test_what_rows_do_not_determine_stays_with_the_prior(kind):
    """Nothing runs away: deviations stay finite and below the prior's at ten times its deviation."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 8 if kind == "many inputs" else 1))
    y = np.sin(X[:, 0])
    if kind == "two rows":
        X, y = X[:2], y[:2]
    elif kind == "constant target":
        y[:] = 3.0
    elif kind == "far row":
        X[0] = 1e6
    elif kind == "one place":
        X[:] = 1.0
        X[0] = 2.0
    gp = GPRegressor(kernels.Matern(nu=1.5)).fit(X, y)
    new = np.concatenate([X[:3], X[:3] + 100.0])
    mean, std = gp.predict(new, return_std=True, include_noise=True, hyperparameters="laplace")
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert std.max() < 30 * gp.scaling_.y_scale[0]
    assert np.isfinite(gp.predictive_log_density(X, y, hyperparameters="laplace")).all()


@pytest.mark.slow
def test_answers_agree_with_each_other():
    X, y = rows(20, 0.3, 1)
    gp = GPRegressor(kernels.Matern(nu=1.5)).fit(X, y)
    before = gp.predict(NEW, return_std=True)
    mean, std = gp.predict(NEW, return_std=True, hyperparameters="laplace")
    _, covariance = gp.predict(NEW, return_cov=True, hyperparameters="laplace")
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-6)
    for drawn in (
        gp.sample_y(NEW, 4000, hyperparameters="laplace"),
        gp.sample_functions(4000, hyperparameters="laplace")(NEW),
    ):
        np.testing.assert_allclose((drawn.mean(1) - mean) / std, 0, atol=4 / math.sqrt(4000))
        np.testing.assert_allclose(drawn.std(1), std, rtol=0.1)
    values = np.linspace(-15, 15, 4001)
    density = np.exp(gp.predictive_log_density(np.full((4001, 1), NEW[4, 0]), values, hyperparameters="laplace"))
    assert trapezoid(density, values) == pytest.approx(1, abs=1e-3)
    low = gp.predict_quantile(NEW[4:5], 0.1, hyperparameters="laplace")[0]
    assert trapezoid(density * (values < low), values) == pytest.approx(0.1, abs=0.003)
    np.testing.assert_array_equal(gp.predict(NEW, return_std=True), before)


def test_a_mixture_is_made_once_for_a_fit(tmp_path):
    X, y = rows(20, 0.3, 1)
    gp = GPRegressor(kernels.Matern(nu=1.5), inference=inference.Vecchia(19, 19)).fit(X, y)
    first = gp.predict(NEW, hyperparameters="laplace")
    assert predictor_of(gp, "laplace").posterior is predictor_of(gp, "laplace").posterior
    for other in (pickle.loads(pickle.dumps(gp)), _loaded(gp, tmp_path)):
        np.testing.assert_array_equal(other.predict(NEW, hyperparameters="laplace"), first)
    gp.partial_fit(X + 0.1, y)
    assert np.abs(gp.predict(NEW, hyperparameters="laplace") - first).max() > 1e-3


def _loaded(gp: GPRegressor, folder) -> GPRegressor:
    gp.save(folder / "m.gp")
    return gigagp.load(folder / "m.gp")


def test_a_transformed_target_and_known_noise():
    X, y = rows(30, 0.3, 1)
    gp = GPRegressor(kernels.Matern(nu=1.5), target_transform="log").fit(X, np.exp(y))
    plain = GPRegressor(kernels.Matern(nu=1.5)).fit(X, y)
    found, expected = (one.predict_quantile(NEW, 0.5, hyperparameters="laplace") for one in (gp, plain))
    np.testing.assert_allclose(np.log(found), expected, atol=0.1)
    known = GPRegressor(kernels.Matern(nu=1.5), noise_variance=np.full(30, 0.1)).fit(X, y)
    assert (known.predict(NEW, return_std=True, hyperparameters="laplace")[1] > 0).all()


def test_a_learning_that_ended_early_is_told():
    X, y = rows(60, 0.1, 0)
    gp = GPRegressor(optimizer=optimization.Adam(steps=1)).fit(X, y)
    with pytest.warns(FitWarning, match="nats below the nearest mode"):
        found = gp.predict(NEW, hyperparameters="laplace")
    good = GPRegressor(kernels.Matern(nu=1.5)).fit(X, y).predict(NEW, hyperparameters="laplace")
    np.testing.assert_allclose(found, good, atol=0.05)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda X, y: GPRegressor(optimizer=None).fit(X, y), "learned hyperparameters"),
        (lambda X, y: GPRegressor(kernels.RBF(1.0, 1.0, fixed=True), noise_variance=0.1).fit(X, y), None),
        (lambda X, y: GPRegressor(likelihood="student-t").fit(X, y), "Gaussian noise"),
        (
            lambda X, y: GPRegressor(kernels.Matern(nu=1.5), outputs="shared").fit(X, np.stack([y, -y], 1)),
            "got 2 that share",
        ),
        (lambda X, y: GPRegressor(inference=inference.SparseVariational(5)).fit(X, y), "Exact, Iterative or Vecchia"),
        (lambda X, y: GPRegressor(inference=inference.ComputationAware(5)).fit(X, y), "Exact, Iterative or Vecchia"),
        (lambda X, y: GPRegressor(inference=inference.Grid(size=20)).fit(X, y), "Exact, Iterative or Vecchia"),
        (lambda X, y: GPRegressor(inference=inference.RandomFeatures(50)).fit(X, y), "Exact, Iterative or Vecchia"),
    ],
)
def test_others_refuse(make, words):
    X, y = rows(30, 0.3, 0)
    gp = make(X, y)
    if words is None:  # the noise alone is learned
        assert np.isfinite(gp.predict(NEW, hyperparameters="laplace")).all()
        return
    for ask in (gp.predict, gp.sample_y, lambda X, **named: gp.predict_quantile(X, 0.5, **named)):
        with pytest.raises(InvalidInputError, match=words):
            ask(NEW, hyperparameters="laplace")
    assert np.isfinite(gp.predict(X)).all()


def test_wrong_arguments_refuse():
    X, y = rows(20, 0.3, 0)
    with pytest.raises(NotFittedError):
        GPRegressor().predict(NEW, hyperparameters="laplace")
    gp = GPRegressor(kernels.Matern(nu=1.5)).fit(X, y)
    with pytest.raises(InvalidInputError, match="hyperparameters of GPRegressor"):
        gp.predict(NEW, hyperparameters="mcmc")
    std, parts = gp.predict(NEW, return_std=True, return_parts=True, hyperparameters="laplace")[1:]
    np.testing.assert_allclose(parts.mathematical, std)
    assert not parts.computational.any()
    with pytest.raises(TypeError, match="hyperparameters"):
        GPClassifier().predict_proba(NEW, hyperparameters="laplace")
    small = GPRegressor(kernels.Matern(nu=1.5), memory_budget=5 * 8 * 20**2 + 200).fit(X, y)
    with pytest.raises(MemoryBudgetError, match="A mixture of"):
        small.predict(NEW, hyperparameters="laplace")


@pytest.mark.parametrize("method", [inference.Exact(), inference.Iterative()])
def test_draws_have_at_least_the_noise_that_float64_needs(method):
    """Draws of a fit to repeated rows without noise were singular (HSAUR::epilepsy)."""
    X = torch.linspace(0, 1, 40, dtype=torch.float64).repeat(2)[:, None]
    table = TrainingTable(X, torch.sin(X), resolve_mean("zero"), 2**30)
    kernel, noise = kernels.RBF(lengthscale=[0.5], variance=3.0).bind(1), torch.tensor(1e-30, dtype=torch.float64)
    model = Model(kernel, table.mean, noise)
    objective = method.objective(table, torch.Generator().manual_seed(0))
    if isinstance(method, inference.Exact):
        with pytest.raises(NotPositiveDefiniteError):  # the control
            objective.posterior(model, torch.Generator())
    found = objective.posterior_near(model, torch.Generator().manual_seed(0))
    assert float(found.model.noise_variance) == pytest.approx(16 * 2**-52 * 80 * 3.0)
    mean, variance = found.mean_and_variance(X)
    assert float((mean - torch.sin(X)).abs().max()) < 1e-4
    assert bool((variance >= 0).all())
