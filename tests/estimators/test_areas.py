"""Fits of averages over areas, against dense float64 algebra with an explicit matrix of the shares."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm
from sklearn.base import clone

import gigagp
from gigagp import GPRegressor, gradients, inference, kernels, likelihoods, solvers
from gigagp.errors import FitWarning, InvalidInputError, ModelFileError
from gigagp.estimators.answers.answering import predictor_of
from gigagp.estimators.planning import resolve_areas
from gigagp.inference.contract.areas import AreaTable, restored
from gigagp.inference.contract.objective import ExactObjective
from gigagp.inference.contract.structured_noise import likeness
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.means import ConstantMean
from gigagp.model.model import NOISE, Model
from gigagp.operators import AveragedMatrix, Averages
from gigagp.operators import averages as module
from gigagp.optimization.space import ParameterSpace
from helpers import autograd_gradient, close, reference_block

RNG = np.random.default_rng(0)
#: Areas of 1 to 50 points; the last one holds points of the first two again.
SIZES = [50, 1, 7, 23, 1, 2, 12, 31, 5, 1, 9, 16]
LABELS = np.array([f"area {k:02d}" for k in range(len(SIZES) + 1)])


def made() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return clumped, repeated and badly scaled points with labels and weights, in random order, targets, and A."""
    centres = RNG.uniform(size=(len(SIZES), 2))
    points = [c + 0.07 * RNG.normal(size=(size, 2)) for c, size in zip(centres, SIZES, strict=True)]
    points[3][5:9] = points[3][4]
    points.append(np.concatenate([points[0][:9], points[1]]))
    area = np.repeat(np.arange(len(points)), [len(one) for one in points])
    X = np.concatenate(points) * [1.0, 1e4]
    weights = RNG.uniform(0.1, 3.0, size=len(X)) * 1e5
    weights[area == 7] *= RNG.uniform(size=SIZES[7]) > 0.5  # some points do not count
    order = RNG.permutation(len(X))
    X, area, weights = X[order], area[order], weights[order]
    A = (area == np.arange(len(points))[:, None]) * weights
    A /= A.sum(1, keepdims=True)
    y = 100 + 20 * (A @ (np.sin(6 * X[:, 0]) + X[:, 1] / 1e4)) + RNG.normal(size=len(A))
    return X, LABELS[area], weights, y, A


X, BLOCKS, WEIGHTS, Y, A = made()
POINTS = np.concatenate([RNG.uniform(-0.2, 1.2, size=(20, 2)) * [1.0, 1e4], X[:3]])
KERNEL = kernels.Matern(nu=1.5, lengthscale=[0.4, 5e3], variance=300.0)
MEANS = {
    "zero": lambda X: np.zeros((len(X), 0)),
    "constant": lambda X: np.ones((len(X), 1)),
    "linear": lambda X: np.column_stack([np.ones(len(X)), X / [1.0, 1e4]]),
}


def dense(kernel: kernels.Kernel, noise, mean: str = "constant", A: np.ndarray = A, y: np.ndarray = Y):  # type: ignore[no-untyped-def]
    """Return mean, covariance and log likelihood at POINTS, and the areas' precision without the mean, in own units."""
    P, Z = torch.from_numpy(X), torch.from_numpy(POINTS)
    kernel = kernel.bind(2)
    K, cross = reference_block(kernel, P, P).numpy(), reference_block(kernel, Z, P).numpy() @ A.T
    H = A @ K @ A.T + np.diag(np.broadcast_to(noise, len(A)))
    Phi, phi = A @ MEANS[mean](X), MEANS[mean](POINTS)
    solved = np.linalg.solve(H, Phi)
    gram = np.linalg.inv(Phi.T @ solved)
    beta = gram @ solved.T @ y
    alpha = np.linalg.solve(H, y - Phi @ beta)
    rest = phi - cross @ solved
    covariance = reference_block(kernel, Z, Z).numpy() - cross @ np.linalg.solve(H, cross.T) + rest @ gram @ rest.T
    value = -0.5 * ((y - Phi @ beta) @ alpha + np.linalg.slogdet(H)[1] + len(A) * np.log(2 * np.pi))
    precision = np.linalg.inv(H) - solved @ gram @ solved.T
    return phi @ beta + cross @ alpha, covariance, value, precision, np.linalg.cond(H)


def fixed(**settings) -> GPRegressor:  # type: ignore[no-untyped-def]
    return GPRegressor(**{"kernel": KERNEL, "noise_variance": 1.0, "optimizer": None} | settings)


@pytest.fixture(scope="module")
def learned() -> GPRegressor:
    return GPRegressor(kernels.Matern(nu=1.5)).fit(X, Y, blocks=BLOCKS, weights=WEIGHTS)


NOISES = 1.0 + np.arange(len(A)) % 3
#: Pairs of settings; each is held against dense algebra at the values that the fit ends with.
SETTINGS = [
    {},
    {"mean": "linear", "standardize": False},
    {"mean": "zero", "noise_variance": NOISES, "standardize": False},
    {"kernel": kernels.RBF(lengthscale=0.5, columns=[0]) + KERNEL * kernels.RationalQuadratic(lengthscale=[1.0, 1e4])},
    {"kernel": None, "hyperparameters": "learned", "optimizer": "auto", "noise_variance": None, "mean": "linear"},
    {"kernel": kernels.Chosen(ard=False), "hyperparameters": "learned", "optimizer": "auto", "time_budget": "60s"},
    {"inference": inference.Exact(), "optimizer": gigagp.optimization.LBFGS(steps=5), "noise_variance": NOISES},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_answers_are_those_of_dense_algebra(settings):
    gp = fixed(**settings).fit(X, Y, blocks=BLOCKS, weights=WEIGHTS)
    noise = gp.noise_variance_
    mean, covariance, value, precision, condition = dense(gp.kernel_, noise, settings.get("mean", "constant"))
    found, cov = gp.predict(POINTS, return_cov=True)
    close(found, mean, condition=condition)
    close(cov, covariance, condition=condition)
    close(gp.predict(POINTS, return_std=True)[1] ** 2, covariance.diagonal().copy(), condition=condition)
    close(gp.predict_latent(POINTS), mean, condition=condition)
    close(gp.log_marginal_likelihood().value, value, condition=condition)
    left_out = gp.leave_one_out()
    close(left_out.std, 1 / np.sqrt(np.diag(precision)), condition=condition)
    close(left_out.mean, Y - precision @ Y / np.diag(precision), condition=condition)
    close(left_out.log_density, norm.logpdf(Y, left_out.mean, left_out.std), condition=condition)
    W = RNG.uniform(size=(3, len(POINTS)))
    blocks, points = np.repeat(np.arange(3), len(POINTS)), np.tile(POINTS, (3, 1))
    averages, of_blocks = gp.predict_average(points, blocks, W.ravel(), return_cov=True)
    W /= W.sum(1, keepdims=True)
    close(averages, W @ mean, condition=condition)
    close(of_blocks, W @ covariance @ W.T, condition=condition)
    # the control: the centroids are other rows
    centroids = fixed(**settings | {"kernel": gp.kernel_, "noise_variance": noise, "optimizer": None}).fit(A @ X, Y)
    assert np.abs(centroids.predict(POINTS) - mean).max() > 1e-3 * np.abs(mean).max()


def test_quantiles_samples_and_gradients_of_points_follow(learned):
    mean, covariance, *_, condition = dense(learned.kernel_, learned.noise_variance_)
    std, spread = np.sqrt(np.diag(covariance)), learned.noise_variance_
    close(learned.predict_quantile(POINTS, 0.9, include_noise=False), mean + norm.ppf(0.9) * std, condition=condition)
    wide = np.sqrt(std**2 + spread)
    close(learned.predict(POINTS, return_std=True, include_noise=True)[1], wide, condition=condition)
    samples = learned.sample_y(POINTS, 4000, random_state=1)
    assert (np.abs(samples.mean(1) - mean) < 5 * std / np.sqrt(4000)).all()
    assert (np.abs(samples.std(1) / std - 1) < 5 / np.sqrt(2 * 4000)).all()
    functions = learned.sample_functions(2000)
    assert (np.abs(functions(POINTS).mean(1) - mean) < 5 * std / np.sqrt(2000)).all()
    at = torch.from_numpy(POINTS[:, None, :]).requires_grad_()
    joint = learned.posterior(at)
    slope = torch.autograd.grad(joint.mean.sum() + joint.variance.sum(), at)[0][:, 0]
    step = np.array([1e-5, 1e-1])
    for k in range(2):
        parts = [learned.predict(POINTS + s * step * np.eye(2)[k], return_std=True) for s in (1, -1)]
        (up, up_std), (down, down_std) = parts
        wanted = (up - down + up_std**2 - down_std**2) / (2 * step[k])
        assert np.abs(slope[:20, k].numpy() - wanted[:20]).max() < 1e-4 * np.abs(wanted).max()


def table_of(mean=None) -> tuple[AreaTable, torch.Tensor]:  # type: ignore[no-untyped-def]
    """Return the areas in standardized units, and A for their points."""
    area = np.unique(BLOCKS, return_inverse=True)[1]
    order = np.argsort(area, kind="stable")
    points = torch.from_numpy(((X - X.mean(0)) / X.std(0))[order])
    shares = torch.from_numpy(A[area[order], order])
    averages = Averages(points, torch.from_numpy(area[order]), shares, len(A))
    targets = torch.from_numpy((Y - Y.mean()) / Y.std())[:, None]
    return AreaTable.of(averages, targets, mean or ConstantMean(), 2**28), torch.from_numpy(A[:, order])


@pytest.mark.parametrize(
    ("kernel", "side"),
    [
        (kernels.Matern(nu=1.5, lengthscale=[0.8, 1.1]), 64),
        (kernels.RBF(ard=False) * kernels.Linear() + kernels.Periodic(), 2048),
    ],
    ids=str,
)
def test_value_gradient_and_information(kernel, side, monkeypatch):
    monkeypatch.setattr(module, "_SIDE", side)  # tiles that end within areas
    table, dense_A = table_of()
    model = Model(kernel.bind(2), table.mean, torch.tensor(0.1, dtype=torch.float64))
    objective = ExactObjective(table)
    found = objective.evaluate(model)
    ones = torch.ones(len(A), 1, dtype=torch.float64)

    def matrix(kernel: kernels.Kernel, noise: float | torch.Tensor = 0.1) -> torch.Tensor:
        return dense_A @ kernel.block(table.points, table.points) @ dense_A.T + noise * torch.eye(len(A)).double()

    def value(kernel: kernels.Kernel, noise: float | torch.Tensor = 0.1) -> torch.Tensor:
        H = matrix(kernel, noise)
        solved = torch.linalg.solve(H, torch.cat([table.Y, ones], 1))
        beta = (ones.T @ solved[:, :1]) / (ones.T @ solved[:, 1:])
        rest = table.Y - beta
        fit = (rest * torch.linalg.solve(H, rest)).sum()
        return -0.5 * (fit + torch.logdet(H) + len(A) * np.log(2 * np.pi))

    condition = float(torch.linalg.cond(matrix(model.kernel)))
    close(found.value, value(model.kernel), condition=condition)
    wanted = autograd_gradient(model.kernel, value)
    noise = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    wanted[NOISE] = torch.autograd.grad(value(model.kernel, noise), noise)[0]
    scale = max(float(one.abs().max()) for one in wanted.values())
    for name, one in wanted.items():
        assert (found.gradient[name] - one).abs().max() < 1e-10 * scale
    # the Fisher information of log hyperparameters, with as many probes as rows: no estimate
    space, n = ParameterSpace(model, "log"), len(A)
    probes = torch.eye(n, dtype=torch.float64) * n**0.5
    information = objective.fisher(space, space.encode(model), probes)
    H, solved = matrix(model.kernel), []
    for step in 1e-4 * torch.eye(space.size, dtype=torch.float64):
        up, down = (space.decode(space.encode(model) + one) for one in (step, -step))
        difference = matrix(up.kernel, up.noise_variance) - matrix(down.kernel, down.noise_variance)
        solved.append(torch.linalg.solve(H, difference / 2e-4))
    by_hand = torch.tensor([[0.5 * float((one * other.T).sum()) for other in solved] for one in solved])
    torch.testing.assert_close(information, by_hand.double(), rtol=1e-5, atol=1e-5 * float(by_hand.abs().max()))


@pytest.mark.parametrize("side", [2048, 64])
@pytest.mark.parametrize("storage", ["auto", "dense", "tiles"])
def test_the_matrix_of_averages(storage, side, monkeypatch):
    monkeypatch.setattr(module, "_SIDE", side)
    table, dense_A = table_of()
    kernel, noise = kernels.Matern(nu=2.5).bind(2), torch.linspace(0.1, 0.3, len(A), dtype=torch.float64)
    H = AveragedMatrix(kernel, table.areas, noise, 2**28, storage)
    assert H.storage == ("tiles" if storage == "tiles" else "dense")
    wanted = dense_A @ kernel.block(table.points, table.points) @ dense_A.T + noise.diag()
    close(H.diagonal(), wanted.diagonal())
    close(H.to_dense(), wanted)
    vectors = torch.randn(len(A), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    close(H @ vectors, wanted @ vectors)
    close(H @ vectors[:, 0], wanted @ vectors[:, 0])
    some, others = torch.tensor([12, 0, 3, 3]), slice(2, 9)
    close(H.block(some, others), wanted[some][:, others])
    close(H.block(others, others), wanted[others, others])
    close(H.block(some, some), wanted[some][:, some])
    for rows in (some, others):
        close(H.rows_product(rows, vectors), wanted[rows] @ vectors)
        few = vectors[: len(wanted[rows])]
        close(H.columns_product(rows, few), wanted[:, rows] @ few)
    close(H.coordinates(), kernel.scale(dense_A @ table.points))
    right, weights = vectors.flip(0), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)

    def form(kernel: kernels.Kernel, other: torch.Tensor = right) -> torch.Tensor:
        K = dense_A @ kernel.block(table.points, table.points) @ dense_A.T
        return (weights * ((vectors.T @ K).T * other).sum(0)).sum()

    for other in (right, vectors):
        found = H.gradient(vectors, other, weights)
        for name, slope in autograd_gradient(kernel, lambda given: form(given, other)).items():  # noqa: B023
            close(found[name], slope)
        close(found[NOISE], (weights * vectors * other).sum())
    close(table.take_rows(some).X, dense_A[some] @ table.points)


#: Iterative settings whose solves end at rounding, and the relative error of their answers.
SOLVERS = {
    "conjugate gradients": (
        solvers.ConjugateGradients(tolerance=1e-11, preconditioner=solvers.PivotedCholesky(5)),
        1e-9,
    ),
    "no preconditioner": (solvers.ConjugateGradients(tolerance=1e-11, preconditioner=None), 1e-9),
    "alternating projections": (solvers.AlternatingProjections(block_size=8, tolerance=1e-7), 1e-5),
    "stochastic gradients": (solvers.StochasticGradientDescent(tolerance=1e-7, max_epochs=10_000), 1e-5),
    "Cholesky": (solvers.Cholesky(), 1e-9),
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("storage", ["dense", "tiles"])
def test_iterative_answers_are_those_of_dense_algebra(solver, storage, monkeypatch, tmp_path):
    monkeypatch.setattr("gigagp.operators.averages.is_stored", lambda *_: storage == "dense")
    (given, rtol), noise = (
        SOLVERS[solver],
        50 * NOISES,
    )  # a condition that projections and gradients reach rounding with
    settings = {"inference": inference.Iterative(given, n_samples=400), "noise_variance": noise, "mean": "linear"}
    gp = fixed(**settings).fit(X, Y, blocks=BLOCKS, weights=WEIGHTS)
    assert ("H stored" in gp.engine_) == (storage == "dense")
    mean, covariance, value, precision, _ = dense(gp.kernel_, noise, "linear")
    std = np.sqrt(np.diag(covariance))
    found, cov = gp.predict(POINTS, return_cov=True)
    np.testing.assert_allclose(found, mean, rtol=rtol, atol=rtol * np.abs(mean).max())
    np.testing.assert_allclose(cov, covariance, rtol=rtol, atol=rtol * covariance.max())
    solved = gp.predict(POINTS, return_std=True, variance="solve")[1]
    np.testing.assert_allclose(solved, std, rtol=rtol, atol=rtol * std.max())
    estimate = gp.log_marginal_likelihood()
    assert abs(estimate.value - value) < 4 * estimate.standard_error + 1e-6
    # what samples tell, with their sampling errors; the trend's share of a variance is exact
    assert (np.abs(gp.predict(POINTS, return_std=True)[1] / std - 1) < 5 / np.sqrt(2 * 400)).all()
    samples = gp.sample_y(POINTS, 300, random_state=1)
    assert (np.abs(samples.mean(1) - mean) < 5 * std / np.sqrt(300)).all()
    left_out = gp.leave_one_out()
    assert (np.abs(left_out.std * np.sqrt(np.diag(precision)) - 1) < 5 / np.sqrt(2 * 400)).all()
    gp.save(tmp_path / "areas.gigagp")
    again = gigagp.load(tmp_path / "areas.gigagp")
    assert np.array_equal(again.predict(POINTS), gp.predict(POINTS))
    assert np.array_equal(again.predict(POINTS, return_std=True)[1], gp.predict(POINTS, return_std=True)[1])
    assert again.describe() == gp.describe()
    assert f"1 to 50 points each, {len(X)} in all" in gp.describe()
    # the control: other shares of the points are another fit
    other = fixed(**settings).fit(X, Y, blocks=BLOCKS)
    assert np.abs(other.predict(POINTS) - mean).max() > 1e-3 * np.abs(mean).max()


def test_iterative_areas_and_further_rows():
    exactly = inference.Iterative(solvers.ConjugateGradients(tolerance=1e-11), n_samples=400)
    gp = fixed(inference=exactly).fit(X, Y, blocks=BLOCKS, weights=WEIGHTS)
    values = [100.0, 101.0, 102.0, 103.0]
    more = gp.condition_on(POINTS[:4], values)
    whole = fixed().fit(X, Y, blocks=BLOCKS, weights=WEIGHTS).condition_on(POINTS[:4], values)
    mean, std = whole.predict(POINTS, return_std=True)
    np.testing.assert_allclose(more.predict(POINTS), mean, rtol=1e-8)
    assert (np.abs(more.predict(POINTS, return_std=True)[1] / std - 1) < 5 / np.sqrt(2 * 400)).all()
    assert np.abs(gp.predict(POINTS) - mean).max() > 1e-3 * np.abs(mean).max()  # the control


@pytest.mark.parametrize(
    "estimator", [gradients.Exact(), gradients.Pathwise(4000), gradients.Hutchinson(4000)], ids=str
)
def test_gradients_from_solves_are_those_of_dense_algebra(estimator):
    table, _ = table_of()
    model = Model(kernels.Matern(nu=1.5, lengthscale=[0.8, 1.1]).bind(2), table.mean, torch.tensor(0.1).double())
    wanted = ExactObjective(table).evaluate(model).gradient
    solver = solvers.ConjugateGradients(tolerance=1e-11)
    settings = inference.Iterative(solver, estimator, warm_start=False)
    objective = settings.objective(table, torch.Generator().manual_seed(0))
    found = objective.evaluate(model).gradient
    # of 4,000 probes, whose quadratic forms have at most the relative error of a chi-square one
    scale = 1e-9 if isinstance(estimator, gradients.Exact) else 5 * np.sqrt(2 / 4000)
    rows = objective.matrix(model)
    inverse = torch.linalg.inv(rows.to_dense())
    terms = rows.weighted_gradient(lambda some, others: 0.5 * inverse[some, others])
    for name, slope in wanted.items():
        assert (found[name] - slope).abs().max() < scale * (1 + terms[name].abs().max() * 3), name
    # the control: the probes of values at the centroids are of another matrix
    apart = settings.objective(TrainingTable(table.X, table.Y, table.mean, table.budget), torch.Generator())
    far = apart.evaluate(model).gradient
    assert any((far[n] - wanted[n]).abs().max() > scale * (1 + terms[n].abs().max() * 3) for n in wanted)


def test_iterative_learning_ends_near_the_exact_optimum():
    kernel = kernels.Matern(nu=1.5)
    settings = {"inference": inference.Iterative(gradient=gradients.Exact()), "hyperparameters": "learned"}
    found, exact = (GPRegressor(kernel, **one).fit(X, Y, blocks=BLOCKS, weights=WEIGHTS) for one in (settings, {}))
    value = dense(found.kernel_, found.noise_variance_)[2]
    assert value > exact.log_marginal_likelihood().value - 0.1


def test_areas_whose_centroids_are_a_panel_are_none():
    cells = np.stack(np.meshgrid(np.arange(8.0), np.arange(6.0), indexing="ij"), -1).reshape(-1, 2)
    blocks = (cells[:, 0] // 2) * 10 + cells[:, 1] // 2
    y = RNG.normal(size=len(np.unique(blocks)))
    kernel = kernels.Matern(columns=[0], lengthscale=2.0) * kernels.RBF(columns=[1], lengthscale=1.5)
    exactly = inference.Iterative(solvers.ConjugateGradients(tolerance=1e-11), n_samples=400)
    settings = {"kernel": kernel, "noise_variance": 0.1}
    mean, std = fixed(**settings).fit(cells, y, blocks=blocks).predict(cells, return_std=True)
    found, spread = fixed(**settings, inference=exactly).fit(cells, y, blocks=blocks).predict(cells, return_std=True)
    np.testing.assert_allclose(found, mean, atol=1e-8)
    assert (np.abs(spread / std - 1) < 5 / np.sqrt(2 * 400)).all()


def test_many_areas_are_fitted_iteratively(monkeypatch):
    assert isinstance(fixed().fit(X, Y, blocks=BLOCKS).inference_, inference.Exact)
    monkeypatch.setattr("gigagp.estimators.planning.EXACT_ROWS", len(Y) - 1)
    gp = fixed().fit(X, Y, blocks=BLOCKS, weights=WEIGHTS)
    assert isinstance(gp.inference_, inference.Iterative)
    mean, *_ = dense(gp.kernel_, gp.noise_variance_)
    np.testing.assert_allclose(gp.predict(POINTS), mean, rtol=1e-2)
    monkeypatch.undo()
    assert isinstance(resolve_areas("auto", 3000, 2**28), inference.Exact)
    assert isinstance(resolve_areas("auto", 3000, 2**27), inference.Iterative)  # no room for three matrices


def test_areas_of_one_point_are_rows_and_the_order_of_points_does_not_matter():
    y = np.sin(6 * X[:, 0])
    apart = fixed().fit(X, y, blocks=np.arange(len(X)), weights=WEIGHTS + 1)
    rows = fixed().fit(X, y)
    for one, other in zip(apart.predict(POINTS, return_cov=True), rows.predict(POINTS, return_cov=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9 * np.abs(other).max())
    order = RNG.permutation(len(X))
    gp = fixed().fit(X, Y, blocks=BLOCKS, weights=WEIGHTS)
    moved = fixed().fit(X[order], Y, blocks=BLOCKS[order], weights=WEIGHTS[order])
    np.testing.assert_allclose(moved.predict(POINTS), gp.predict(POINTS), rtol=1e-10)
    equal = fixed().fit(X, Y, blocks=BLOCKS)
    same = fixed().fit(X, Y, blocks=BLOCKS, weights=np.full(len(X), 1e307))
    np.testing.assert_allclose(equal.predict(POINTS), same.predict(POINTS), rtol=1e-10)
    assert np.abs(equal.predict(POINTS) - gp.predict(POINTS)).max() > 0.01


def test_targets_are_taken_by_their_index():
    gp, order = fixed().fit(X, Y, blocks=BLOCKS, weights=WEIGHTS), RNG.permutation(len(Y))
    column = pd.Series(Y, index=LABELS).iloc[order]
    frame = pd.DataFrame(X, columns=["a", "b"])
    again = fixed().fit(frame, column, blocks=pd.Series(BLOCKS, dtype="category"), weights=pd.Series(WEIGHTS))
    assert np.array_equal(again.predict(frame), gp.predict(X))
    known = pd.Series(NOISES, index=LABELS)
    by_index, by_place = (
        fixed(noise_variance=one).fit(X, Y, blocks=BLOCKS).predict(X) for one in (known.iloc[order], NOISES)
    )
    assert np.array_equal(by_index, by_place)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.unique(BLOCKS, return_inverse=True)[1], "D")
    dated = pd.Series(Y, index=pd.date_range("2024-01-01", periods=len(Y))).iloc[order]
    assert np.array_equal(fixed().fit(X, dated, blocks=days, weights=WEIGHTS).predict(X), gp.predict(X))


def test_copies_files_and_descriptions(learned, tmp_path):
    path = tmp_path / "areas.gigagp"
    learned.save(path)
    for again in (gigagp.load(path), pickle.loads(pickle.dumps(learned))):
        assert np.array_equal(again.predict(POINTS), learned.predict(POINTS))
        assert np.array_equal(again.predict(POINTS, return_cov=True)[1], learned.predict(POINTS, return_cov=True)[1])
        assert np.array_equal(again.leave_one_out().mean, learned.leave_one_out().mean)
        assert again.log_marginal_likelihood() == learned.log_marginal_likelihood()
        assert again.describe() == learned.describe()
    assert f"1 to 50 points each, {len(X)} in all" in learned.describe()
    fresh = clone(learned).fit(X, Y, blocks=BLOCKS, weights=WEIGHTS)
    assert np.array_equal(fresh.predict(POINTS), learned.predict(POINTS))
    assert fresh.fit(A @ X, Y).predict(POINTS).shape == (len(POINTS),)  # a later fit of rows
    assert "areas" not in fresh.describe()


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("area", lambda one: one.flip(0), "ascending order"),
        ("area", lambda one: one + 1, "ascending order"),
        ("shares", lambda one: 2 * one, "sum to one"),
        ("shares", lambda one: -one, "zero or above"),
        ("points", lambda one: one[:-1], "shape"),
    ],
)
def test_files_with_other_areas_are_refused(name, changed, said, learned):
    from gigagp.inference.contract.saved import Saved

    posterior = learned.posterior_
    saved = Saved(posterior.model, posterior.budget, "cholesky", likelihoods.Gaussian(), 1)
    tensors = posterior.state()[0]
    assert isinstance(restored(tensors, saved), AreaTable)
    with pytest.raises(ModelFileError, match=said):
        restored(tensors | {name: changed(tensors[name])}, saved)


def test_further_rows_are_areas_of_one_point():
    gp = fixed().fit(X, Y, blocks=BLOCKS, weights=WEIGHTS)
    more = gp.condition_on(POINTS[:4], [100.0, 101.0, 102.0, 103.0])
    points, labels = np.concatenate([X, POINTS[:4]]), np.concatenate([BLOCKS, ["b1", "b2", "b3", "b4"]])
    y, weights = np.concatenate([Y, [100.0, 101.0, 102.0, 103.0]]), np.concatenate([WEIGHTS, np.ones(4)])
    whole = fixed().fit(points, y, blocks=labels, weights=weights)
    np.testing.assert_allclose(more.predict(POINTS), whole.predict(POINTS), rtol=1e-8)
    with pytest.raises(InvalidInputError, match="refit must be False after a fit with blocks"):
        GPRegressor(KERNEL).fit(X, Y, blocks=BLOCKS).condition_on(POINTS[:1], [100.0], refit=True)


def made_field(seed: int, n_areas: int = 50, side: int = 16):  # type: ignore[no-untyped-def]
    """Return cells, a field on them, their areas of uneven size, and the areas' averages with noise."""
    rng = np.random.default_rng(seed)
    cells = np.stack(np.meshgrid(*[(np.arange(side) + 0.5) / side] * 2), -1).reshape(-1, 2)
    kernel = kernels.Matern(lengthscale=0.3, variance=1.0, nu=1.5, ard=False).bind(2)
    points = torch.from_numpy(cells)
    factor = torch.linalg.cholesky(kernel.block(points, points) + 1e-9 * torch.eye(len(cells)).double()).numpy()
    field = 5 + factor @ rng.normal(size=len(cells))
    centres = rng.uniform(size=(n_areas, 2)) ** 1.5
    area = np.square(cells[:, None] - centres).sum(2).argmin(1)
    names = np.unique(area)
    means = np.array([field[area == one].mean() for one in names])
    return cells, field, area, means + 0.05 * rng.normal(size=len(names))


@pytest.mark.slow
def test_intervals_hold_the_function_below_the_areas():
    inside, errors = [], []
    for seed in range(6):
        cells, field, area, y = made_field(seed)
        gp = GPRegressor(kernels.Matern(nu=1.5, ard=False)).fit(cells, y, blocks=area)
        mean, std = gp.predict(cells, return_std=True)
        inside.append(np.mean(np.abs(mean - field) < norm.ppf(0.975) * std))
        names, place = np.unique(area, return_inverse=True)
        centroids = np.array([cells[area == one].mean(0) for one in names])
        other = GPRegressor(kernels.Matern(nu=1.5, ard=False)).fit(centroids, y).predict(cells)
        errors.append([np.sqrt(np.mean(np.square(one - field))) for one in (mean, other, y[place])])
    share, error = np.mean(inside), np.std(inside, ddof=1) / np.sqrt(len(inside))
    assert abs(share - 0.95) < max(0.02, 2 * error), (share, error)
    ours, of_centroids, copied = np.mean(errors, 0)
    assert ours < 0.95 * of_centroids
    assert ours < 0.6 * copied


BAD = [
    ({"y": Y[:-1]}, "y of GPRegressor.fit with blocks must have one target for each area, shape \\(13,\\)"),
    ({"y": np.stack([Y, Y], 1)}, "must have one target for each area.*got \\(13, 2\\)"),
    ({"y": pd.Series(Y[:-1], index=LABELS[:-1])}, "it has no row for 'area 12'"),
    ({"y": pd.Series([*Y, 1.0], index=[*LABELS, "other"])}, "it has 'other', which has no points"),
    ({"y": pd.Series(Y)}, "no row for 'area 00' and 0, which has no points. Take its to_numpy"),
    ({"y": pd.Series([*Y, 1.0], index=[*LABELS, LABELS[0]])}, "that of 'area 00' is there twice"),
    ({"y": np.where(np.arange(len(Y)) == 3, np.nan, Y)}, "y has a value that is not finite|y .* (NaN|nan)"),
    ({"blocks": np.where(np.arange(len(X)) == 3, None, BLOCKS)}, "blocks of .* row 3 has none"),
    ({"blocks": [pd.NA, *BLOCKS[1:]]}, "blocks of .* row 0 has none"),
    ({"blocks": BLOCKS[1:]}, "blocks of GPRegressor.fit must have shape"),
    ({"blocks": [0, *BLOCKS[1:].astype(object)], "y": Y}, "must be labels of one kind|one target for each area"),
    ({"blocks": np.zeros(len(X)), "y": [1.0]}, "blocks of GPRegressor.fit must have two areas or more"),
    ({"weights": -WEIGHTS}, "weights of GPRegressor.fit must be .* at least 0"),
    ({"weights": WEIGHTS[1:]}, "weights of GPRegressor.fit must be .* got shape"),
    ({"weights": WEIGHTS * (BLOCKS != "area 04")}, "must not all be 0 within a block; those of 'area 04'"),
    ({"weights": np.where(np.arange(len(X)) == 1, np.nan, WEIGHTS)}, "weights"),
    ({"blocks": None}, "weights of GPRegressor.fit must be None without blocks"),
    ({"exposure": np.ones(len(Y))}, "exposure of GPRegressor.fit must be None with blocks"),
    ({"validation": (X, X[:, 0])}, "validation of GPRegressor.fit must be None with blocks"),
    ({"checkpoint": "file"}, "checkpoint of GPRegressor.fit must be None with blocks"),
    ({"predict_at": POINTS}, "predict_at of GPRegressor.fit must be None with blocks"),
]


@pytest.mark.parametrize(("given", "said"), BAD, ids=[said[:40] for _, said in BAD])
def test_bad_areas_are_refused_by_name(given, said):
    gp = fixed()
    with pytest.raises(InvalidInputError, match=said):
        gp.fit(**{"X": X, "y": Y, "blocks": BLOCKS, "weights": WEIGHTS} | given)
    assert not hasattr(gp, "posterior_")


def first_input(X):
    return X[:, 0]


REFUSED = {
    "likelihood": ["poisson", "student-t", "auto"],
    "inference": [inference.Vecchia(10), inference.Iterative(computational_uncertainty=True)],
    "kernel": ["auto", KERNEL + kernels.White(), KERNEL + kernels.Group(0)],
    "mean": [first_input],
    "target_transform": ["log"],
    "noise": ["varying"],
    "encode": ["auto"],
    "panel": [(0, 1)],
    "groups": [[0]],
    "dtype": ["float32"],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, one) for name, many in REFUSED.items() for one in many],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_arguments_without_a_meaning_for_areas_are_refused(name, value):
    noise = {"noise_variance": None} if name in ("likelihood", "kernel", "noise") else {}
    with pytest.raises(InvalidInputError, match=f"{name}.*") as caught:
        fixed(**noise | {name: value}).fit(X, Y, blocks=BLOCKS)
    assert "blocks" in str(caught.value)


def test_predictions_with_draws_of_hyperparameters_mix_those_of_the_areas(learned, tmp_path):
    mixture = predictor_of(learned, "laplace").posterior
    units, wanted, condition = learned.scaling_.units(), 0.0, 1.0
    for weight, one in zip(mixture.weights.tolist(), mixture.components, strict=True):
        model = one.model.in_own_units(units)
        mean, *_, own = dense(model.kernel, float(model.noise_variance))
        wanted, condition = wanted + weight * mean, max(condition, own)
    close(learned.predict(POINTS, hyperparameters="laplace"), wanted, condition=condition)
    drawn = clone(learned).set_params(hyperparameters="laplace").fit(X, Y, blocks=BLOCKS, weights=WEIGHTS)
    drawn.save(tmp_path / "areas.gigagp")
    for one in (drawn, gigagp.load(tmp_path / "areas.gigagp")):
        close(one.predict(POINTS), wanted, condition=condition)
        assert one.hyperparameters_ == "laplace"


def test_a_fit_that_leaves_the_kernel_open_draws_while_that_is_cheap(monkeypatch):
    drawn = GPRegressor().fit(X, Y, blocks=BLOCKS, weights=WEIGHTS)
    assert drawn.hyperparameters_ == "laplace"
    of_learned, of_draws = (drawn.predict(POINTS, True, hyperparameters=one)[1] for one in ("learned", "laplace"))
    np.testing.assert_array_equal(drawn.predict(POINTS, True)[1], of_draws)
    assert of_draws.mean() > of_learned.mean()
    for given in ({"optimizer": None}, {"hyperparameters": "learned"}, {"kernel": kernels.Matern(nu=1.5)}):
        other = GPRegressor(**given).fit(X, Y, blocks=BLOCKS, weights=WEIGHTS)
        assert other.hyperparameters_ == "learned"
    monkeypatch.setattr("gigagp.estimators.area_fit._DRAWN_POINTS", len(X) - 1)
    assert GPRegressor().fit(X, Y, blocks=BLOCKS, weights=WEIGHTS).hyperparameters_ == "learned"


def test_a_graph_of_a_fit_answers_as_the_fit(learned, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    from gigagp.onnx import export

    export(learned, tmp_path / "areas.onnx")
    found = runtime.InferenceSession(tmp_path / "areas.onnx").run(["mean", "std"], {"X": POINTS})
    for one, wanted in zip(found, learned.predict(POINTS, return_std=True), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-6)


def test_areas_left_out_together(learned):
    groups = np.arange(len(Y)) % 4
    *_, precision, condition = dense(learned.kernel_, learned.noise_variance_)
    found = learned.leave_one_out(groups=groups)
    for group in range(4):
        rows = np.flatnonzero(groups == group)
        covariance = np.linalg.inv(precision[np.ix_(rows, rows)])
        close(found.mean[rows], Y[rows] - covariance @ (precision @ Y)[rows], condition=condition)
        close(found.std[rows], np.sqrt(np.diag(covariance)), condition=condition)


def test_targets_that_spoil_a_fit_to_areas_are_named():
    cells, _, area, y = made_field(0, 150, 24)
    names = np.array([f"area {one:02d}" for one in np.unique(area)])
    labels = np.array([f"area {one:02d}" for one in area])
    GPRegressor(kernels.Matern(nu=1.5)).fit(cells, y, blocks=labels)  # the control: none is off, and nothing is said
    spoiled = y.copy()
    spoiled[7] += 1000
    with pytest.warns(FitWarning, match=f"far from the others, such as .* of area '{names[7]}'.* or leave them out"):
        GPRegressor(kernels.Matern(nu=1.5)).fit(cells, spoiled, blocks=labels)
    off = y.copy()
    off[7] += 8
    with pytest.warns(
        FitWarning, match=f"error bars are too small for some rows: .* of area '{names[7]}' lies.* leave them out"
    ):
        GPRegressor(kernels.Matern(nu=1.5)).fit(cells, off, blocks=labels)


def test_fits_to_areas_that_end_in_noise_are_flat():
    cells, _, area, y = made_field(0, 150, 24)
    kernel, one_step = kernels.Matern(nu=1.5, lengthscale=1e-4, ard=False), gigagp.optimization.LBFGS(steps=1)
    with pytest.warns(FitWarning, match="The fit explains the targets as noise"):
        GPRegressor(kernel, optimizer=one_step).fit(cells, y, blocks=area)
    noise = RNG.normal(size=len(y))  # the control: there is nothing to learn
    GPRegressor(kernel, optimizer=one_step).fit(cells, noise, blocks=area)


def test_structure_in_the_noise_of_areas_of_one_point_is_that_of_rows():
    rng = np.random.default_rng(4)
    P = torch.from_numpy(rng.uniform(size=(80, 2)))
    targets = torch.from_numpy(np.sin(60 * P[:, :1].numpy()) + 0.1 * rng.normal(size=(80, 1)))
    each = Averages(P, torch.arange(80), torch.ones(80).double(), 80)
    pairs = Averages(P, torch.arange(80) // 2, torch.full((80,), 0.5).double(), 40)
    model = Model(kernels.RBF(lengthscale=2.0).bind(2), ConstantMean(), torch.tensor(0.4).double())
    rows, areas = TrainingTable(P, targets, ConstantMean(), 2**28), AreaTable.of(each, targets, ConstantMean(), 2**28)
    found, wanted = likeness(model, areas), likeness(model, rows)
    np.testing.assert_allclose(found, wanted, rtol=1e-8)
    assert likeness(model, AreaTable.of(pairs, targets[:40], ConstantMean(), 2**28)) is None  # too few
