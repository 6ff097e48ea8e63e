"""Additive kernels, linear terms and known row noise on grids, against dense algebra of the interpolated kernel."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import gigagp
from gigagp import GPRegressor, inference, kernels, optimization
from gigagp.errors import InvalidInputError, MemoryBudgetError, ModelFileError
from gigagp.inference.grid.iterative import SlopesSystem, iterative_system
from gigagp.inference.grid.likelihood import GridLikelihood
from gigagp.inference.grid.settings import GridSettings
from gigagp.inference.grid.sum_grid import choose_grid_sum, sum_columns
from gigagp.inference.grid.system import DenseGridSystem, SolveSettings
from gigagp.kernels import Kernel
from gigagp.model.means import LinearMean
from gigagp.model.model import NOISE, Model
from gigagp.operators.grid import SumKernel, grid_kernel
from gigagp.operators.grid.statistics import GridStatistics, GridSum, RegularGrid

Array = np.ndarray
#: Units of the five inputs.
SCALES = np.array([1.0, 1e5, 1e-4, 3.0, 1.0])
TIGHT = {"tolerance": 1e-9, "final_tolerance": 1e-9, "n_samples": 64, "n_probes": 64}


def additive() -> Kernel:
    """Return terms of one and two inputs, of which two share an input, slopes, a constant and a product."""
    return (
        kernels.Matern(2.5, 0.8, 0.9, columns=[0])
        + kernels.RBF([8e4, 2.5], 0.6, columns=[1, 3])
        + kernels.Constant(0.5) * kernels.Matern(2.5, [9e4], 0.7, columns=[1])
        + kernels.Linear([1e7, 0.4], centre=[1e-4, -0.3], columns=[2, 4])
        + kernels.Constant(0.3)
    )


def table(kind: str, n: int = 160, d: int = 5) -> tuple[Array, Array]:
    """Return rows of different scales and the targets of an additive function."""
    draw = np.random.default_rng(3)
    X = draw.uniform(-1, 1, size=(n, d))
    if kind == "gappy":
        X = np.where(X < 0, 0.3 * X - 0.7, 0.2 * X + 0.8)
    elif kind == "clumped":
        X = X[:8].repeat(n // 8, 0) + 1e-3 * X
    elif kind == "duplicated":
        X = X[: n // 4].repeat(4, 0)
    elif kind == "normal":
        X = 0.4 * draw.normal(size=(n, d))
    U = X if d == 5 else np.pad(X, ((0, 0), (0, 5 - d)))
    y = np.sin(3 * U[:, 0]) + U[:, 1] * U[:, 3] + 0.5 * U[:, 4] + U[:, 2] + 0.1 * draw.normal(size=n)
    return X * SCALES[:d], y


def weights(grid: RegularGrid | GridSum, X: Array) -> Array:
    indices, own = grid.stencil(torch.from_numpy(np.asarray(X)))
    return torch.zeros(len(X), grid.size, dtype=torch.float64).scatter_add_(1, indices, own).numpy()


def own_covariance(kernel: Kernel, grid: RegularGrid | GridSum, X: Array, Z: Array) -> Array:
    """Return the interpolated kernel from the kernel itself at the nodes, term by term and dense."""
    d = X.shape[1]
    found = np.zeros((len(X), len(Z)))
    for term in kernel.bind(d).terms():
        bound = kernels.Product(*term)
        inputs = sorted(
            {k for leaf in term if not isinstance(leaf, kernels.Constant) for k in leaf.columns or range(d)}
        )
        if not inputs or isinstance(term[0], kernels.Linear):  # interpolation reproduces these
            found += bound.block(*map(torch.from_numpy, (X, Z))).numpy()
            continue
        if isinstance(grid, GridSum):
            part, columns = next(
                (one, own) for one, own in zip(grid.grids, grid.columns, strict=True) if list(own) == inputs
            )
        else:
            part, columns = grid, tuple(range(d))
        nodes = torch.zeros(part.size, d, dtype=torch.float64)
        nodes[:, list(columns)] = part.nodes()
        between = bound.block(nodes, nodes).numpy()
        A, B = (weights(part, np.ascontiguousarray(one[:, list(columns)])) for one in (X, Z))
        found += A @ between @ B.T
    return found


class Dense:
    """Exact inference with the interpolated kernel and a linear mean, by dense algebra."""

    def __init__(self, gp: GPRegressor, kernel: Kernel, X: Array, y: Array, noise: Array | float, new: Array) -> None:
        grid = gp.posterior_.grid
        H = own_covariance(kernel, grid, X, X) + np.diag(np.broadcast_to(noise, (len(X),)))
        cross = own_covariance(kernel, grid, new, X)
        B, P = (np.c_[np.ones(len(one)), one / SCALES[: X.shape[1]]] for one in (X, new))
        inverse = np.linalg.inv(H)
        information = B.T @ inverse @ B
        beta = np.linalg.solve(information, B.T @ inverse @ y)
        residual, rest = y - B @ beta, P - cross @ inverse @ B
        self.mean = P @ beta + cross @ inverse @ residual
        self.covariance = own_covariance(kernel, grid, new, new) - cross @ inverse @ cross.T
        self.covariance += rest @ np.linalg.solve(information, rest.T)
        fit = residual @ inverse @ residual
        self.value = -0.5 * (fit + np.linalg.slogdet(H)[1] + len(X) * np.log(2 * np.pi))


def fitted(kernel: Kernel, X: Array, y: Array, noise: Array | float, **settings: object) -> GPRegressor:
    own = inference.Grid(**{"size": 14, **TIGHT, **settings})
    gp = GPRegressor(kernel, mean="linear", noise_variance=noise, optimizer=None, standardize=False, inference=own)
    return gp.fit(X, y)


@pytest.mark.few(2)
@pytest.mark.parametrize("exact_nodes", [1500, 0], ids=["dense", "iterative"])
@pytest.mark.parametrize("known", [False, True], ids=["", "row noise"])
@pytest.mark.parametrize("kind", ["normal", "gappy", "clumped", "duplicated"])
def test_an_additive_model_is_that_of_dense_algebra(kind: str, known: bool, exact_nodes: int) -> None:
    X, y = table(kind)
    noise = np.random.default_rng(4).uniform(0.002, 0.1, len(X)) if known else 0.02
    gp = fitted(additive(), X, y, noise, exact_nodes=exact_nodes)
    assert isinstance(gp.posterior_.grid, GridSum)
    assert {(0,), (1, 3), (1,), (2,), (4,)} == set(gp.posterior_.grid.columns)
    new = X[:1] + np.random.default_rng(5).uniform(0, 0.5, size=(6, 1)) * (X.mean(0) - X[:1])
    found = Dense(gp, additive(), X, y, noise, new)
    mean, covariance = gp.predict(new, return_cov=True)
    np.testing.assert_allclose(mean, found.mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(covariance, found.covariance, atol=1e-7)
    std = gp.predict(new, return_std=True, variance="solve")[1]
    np.testing.assert_allclose(std**2, found.covariance.diagonal(), atol=1e-7)
    value, error = gp.log_marginal_likelihood()
    assert abs(value - found.value) <= 4.5 * error + 1e-5
    assert (error == 0) == (exact_nodes > 0)
    less = Dense(gp, kernels.Sum(*additive().parts[1:]), X, y, noise, new)  # the control: a term is left out
    assert np.abs(mean - less.mean).max() > 0.01
    assert abs(value - less.value) > 4.5 * error + 1e-5


def test_new_samples_of_a_sum_have_the_posterior_covariance() -> None:
    """More than are stored need noise drawn from the dense ``W'W``."""
    X, y = table("gappy")
    gp = fitted(additive(), X, y, 0.02, exact_nodes=0, n_samples=8, tolerance=1e-5, final_tolerance=1e-5)
    new = 0.9 * X[:3]
    found = Dense(gp, additive(), X, y, 0.02, new)
    draws = gp.sample_y(new, 1000, random_state=1) - found.mean[:, None]
    diagonal = found.covariance.diagonal()
    error = np.sqrt((diagonal[:, None] * diagonal + found.covariance**2) / 1000)
    assert (np.abs(draws @ draws.T / 1000 - found.covariance) < 5 * error).all()
    assert not (np.abs(draws @ draws.T / 1000 - 1.5 * found.covariance) < 5 * error).all()


@pytest.mark.few(1)
@pytest.mark.parametrize("preconditioner", ["auto", "circulant", "holes", "long_waves", "vecchia"])
@pytest.mark.parametrize("known", [False, True], ids=["", "row noise"])
def test_slopes_on_one_grid(known: bool, preconditioner: str) -> None:
    """Linear terms with any preconditioner for the rest; circulants have roots with an error of a hundredth."""
    X, y = table("gappy", 250, 2)
    kernel = kernels.Matern(2.5, [0.9, 9e4], 1.2) + kernels.Linear([0.5, 1e-10], centre=[0.2, 1e4])
    noise = np.random.default_rng(4).uniform(0.002, 0.1, len(X)) if known else 0.02
    gp = fitted(kernel, X, y, noise, exact_nodes=0, preconditioner=preconditioner, tolerance=1e-6, final_tolerance=1e-6)
    new = X[:5] * 0.9
    found = Dense(gp, kernel, X, y, noise, new)
    mean, covariance = gp.predict(new, return_cov=True)
    np.testing.assert_allclose(mean, found.mean, atol=1e-3)
    np.testing.assert_allclose(covariance, found.covariance, atol=1e-3 * 0.02)
    value, error = gp.log_marginal_likelihood()
    assert abs(value - found.value) <= 4.5 * error + 1e-3
    less = Dense(gp, kernels.Sum(kernel.parts[0]), X, y, noise, new)
    assert abs(less.value - found.value) > 0.1
    draws = gp.sample_y(new, 64, random_state=1)
    spread = np.sqrt(found.covariance.diagonal())
    assert (np.abs(draws.mean(1) - found.mean) < 5 * spread / 64**0.5 + 1e-3).all()


def likelihood_of(
    kernel: Kernel, X: Array, y: Array, grid: RegularGrid | GridSum, settings: inference.Grid, noise: Array | None
) -> tuple[GridLikelihood, Model]:
    found = GridStatistics.from_rows(grid, X, y, settings.n_collected, noise=noise)
    given = torch.tensor(0.03, dtype=torch.float64) if noise is None else torch.from_numpy(noise)
    model = Model(kernel.bind(X.shape[1]), LinearMean(), given)
    return GridLikelihood(found, LinearMean(), settings, torch.Generator().manual_seed(0)), model


def problem(sums: bool, known: bool) -> tuple[Kernel, Array, Array, RegularGrid | GridSum, Array | None]:
    X, y = table("gappy", 200, 5 if sums else 2)
    X = X / SCALES[: X.shape[1]]
    one = kernels.Matern(2.5, 0.5, 0.9, columns=[0])
    if sums:
        # the kernel with columns 0 occurs in two terms: both have its hyperparameters
        kernel = one * (kernels.RBF(0.9, 0.8, columns=[1]) + kernels.RBF([0.8, 1.1], 0.7, columns=[1, 2]))
        kernel = kernel + kernels.Linear([0.5, 0.3], columns=[3, 4], centre=0.1) * 1.3 + kernels.Constant(0.2)
        columns = sum_columns(kernel.bind(5))
    else:
        kernel, columns = kernels.RBF([0.5, 0.7], 0.9) + kernels.Linear(0.4, ard=False), ((0, 1),)
    low, high = X.min(0), X.max(0)
    grids = tuple(RegularGrid.around(low[list(own)], high[list(own)], 8) for own in columns)
    grid = GridSum(grids, tuple(columns)) if sums else grids[0]
    noise = np.random.default_rng(6).uniform(0.01, 0.1, len(X)) if known else None
    return kernel if known else kernel + kernels.White(0.01), X, y, grid, noise


@pytest.mark.few(2)
@pytest.mark.parametrize("known", [False, True], ids=["", "row noise"])
@pytest.mark.parametrize("sums", [True, False], ids=["sum of grids", "one grid"])
def test_gradients_are_differences_of_values(sums: bool, known: bool) -> None:
    kernel, X, y, grid, noise = problem(sums, known)
    likelihood, model = likelihood_of(kernel, X, y, grid, inference.Grid(exact_nodes=2000), noise)
    found = likelihood.evaluate(model)
    assert found.value is not None
    parameters = model.parameters()
    assert set(found.gradient) == set(parameters)
    assert (NOISE in found.gradient) != known
    for name, value in parameters.items():
        for place in range(value.numel()):
            step = torch.zeros_like(value.reshape(-1))
            step[place] = 1e-5 * value.reshape(-1)[place]
            ends = [
                likelihood.value(model.replace({name: value + sign * step.reshape(value.shape)}), 1, torch.Generator())
                for sign in (1, -1)
            ]
            difference = (ends[0].value - ends[1].value) / (2 * float(step.abs().sum()))
            assert float(found.gradient[name].reshape(-1)[place]) == pytest.approx(difference, rel=1e-4, abs=1e-4), name


@pytest.mark.few(2)
@pytest.mark.parametrize("known", [False, True], ids=["", "row noise"])
@pytest.mark.parametrize("sums", [True, False], ids=["sum of grids", "one grid"])
def test_iterative_gradients_are_unbiased(sums: bool, known: bool) -> None:
    """Mean over seeds within 4.5 standard errors of the dense gradient; the gradient of another model is not."""
    kernel, X, y, grid, noise = problem(sums, known)
    exact, model = likelihood_of(kernel, X, y, grid, inference.Grid(exact_nodes=2000), noise)
    tight = {"tolerance": 1e-6, "final_tolerance": 1e-6, "preconditioner": "long_waves"}
    settings = inference.Grid(exact_nodes=0, n_probes=32, **tight)
    wanted, other = (exact.evaluate(one).gradient for one in (model, _moved(model)))
    draws: list[dict[str, Tensor]] = []
    for seed in range(6):
        statistics = GridStatistics.from_rows(grid, X, y, 32, seed, noise=noise)
        own = GridLikelihood(statistics, LinearMean(), settings, torch.Generator().manual_seed(seed))
        draws.append(own.evaluate(model).gradient)
    far = 0
    for name, value in wanted.items():
        found = torch.stack([draw[name] for draw in draws])
        error = found.std(0) / len(draws) ** 0.5
        assert bool(((found.mean(0) - value).abs() <= 4.5 * error + 2e-3 * value.abs() + 1e-3).all()), name
        far += int(((found.mean(0) - other[name]).abs() > 4.5 * error + 2e-3 * value.abs() + 1e-3).sum())
    assert far > 1


def _moved(model: Model) -> Model:
    learned = {name: value * 1.5 for name, value in model.parameters().items() if name in model.learned_names()}
    return model.replace(learned)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("sums", [True, False], ids=["sum of grids", "one grid"])
def test_the_kernel_between_nodes(sums: bool) -> None:
    kernel, *_, grid, _ = problem(sums, True)
    own = grid_kernel(kernel, grid)
    assert isinstance(own, SumKernel)
    matrix, g = own.to_dense(), torch.Generator().manual_seed(0)
    L, R = (torch.randn(grid.size, 3, dtype=torch.float64, generator=g) for _ in range(2))
    torch.testing.assert_close(own @ L, matrix @ L)
    torch.testing.assert_close(own.diagonal(), matrix.diagonal())
    nodes = torch.randperm(grid.size, generator=g)[:40]
    torch.testing.assert_close(own.between(slice(None), nodes), matrix[:, nodes])
    weighted = (L * torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)) @ R.T
    both = own.gradient(L, R, torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)), own.weighted_gradient(weighted)
    for name in both[0]:
        torch.testing.assert_close(both[0][name], both[1][name], rtol=1e-8, atol=1e-8)
    draws = own.sample(4000, g)
    error = (draws @ draws.T / 4000 - matrix).abs()
    scale = (matrix.diagonal()[:, None] * matrix.diagonal() + matrix.square()).sqrt() / 4000**0.5
    assert bool((error <= 6 * scale + 1e-2).all())
    assert not bool((error + 0.2 * matrix.abs() <= 6 * scale + 1e-2).all())


def test_a_system_with_slopes_corrects_its_quadratic_forms() -> None:
    """Their error is quadratic in that of the solve, as without slopes."""
    kernel, X, y, grid, _ = problem(False, True)
    statistics = GridStatistics.from_rows(grid, X, y, 8)
    own = grid_kernel(kernel, grid)
    own = grid_kernel(kernel, grid, own.fitting_tori(1e-6))
    dense = DenseGridSystem(own, statistics, 0.05)
    cross, squares = statistics.cross, statistics.target_squares[:, None]
    exact = dense.solve(cross)
    wanted = float(dense.quadratic(cross, squares, exact))
    plain = []
    for tolerance in (1e-3, 1e-4, 1e-5, 1e-6):
        settings = SolveSettings(tolerance, tolerance, 1000, "circulant")
        system = iterative_system(own, statistics, 0.05, settings)
        assert isinstance(system, SlopesSystem)
        found = system.solve(cross)
        solve_error = float((found.values - exact.values).norm() / exact.values.norm())
        assert abs(float(system.quadratic(cross, squares, found)) / wanted - 1) < 10 * solve_error**2
        plain.append(abs(float((squares - cross.T @ found.values) / 0.05) / wanted - 1) / solve_error**2)
    assert max(plain) > 100  # the control: without the correction; its sign changes, so that one may be small
    assert float(system.prior_squares(found)) == pytest.approx(float(dense.prior_squares(exact)), rel=1e-2)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("standardize", [True, False])
def test_a_fit_learns_an_additive_function(standardize: bool, tmp_path) -> None:
    """Rows and a streamed table give the same function, which a file keeps, and more rows can be added."""
    X, y = table("even", 600)
    kernel = (
        kernels.Matern(2.5, columns=[0]) + kernels.RBF(columns=[1, 3]) + kernels.Linear(columns=[2, 4])
        if standardize
        else additive()
    )
    names = list("abcde")
    frame = pd.DataFrame(X, columns=names).assign(y=y)
    gp = GPRegressor(kernel, mean="constant", standardize=standardize, inference=inference.Grid(size=16))
    gp.set_params(optimizer=optimization.LBFGS(5))
    held = gp.fit(X, y)
    U = X / SCALES
    truth = np.sin(3 * U[:, 0]) + U[:, 1] * U[:, 3] + 0.5 * U[:, 4] + U[:, 2]
    assert np.sqrt(np.mean((held.predict(X) - truth) ** 2)) < 0.06  # the noise is 0.1
    streamed = GPRegressor(**held.get_params(deep=False)).fit_table(frame, target="y")
    np.testing.assert_allclose(streamed.predict(frame[names]), held.predict(X), atol=0.05)
    streamed.save(tmp_path / "model.gp")
    loaded = gigagp.load(tmp_path / "model.gp")
    np.testing.assert_array_equal(loaded.predict(frame[names]), streamed.predict(frame[names]))
    before = loaded.predict(frame[names][:5], return_std=True)[1]
    loaded.partial_fit(frame[names][:300], y[:300])
    assert (loaded.predict(frame[names][:5], return_std=True)[1] < before).all()


def test_rows_with_known_noise_can_be_added(tmp_path) -> None:
    X, y = table("normal", 200)
    noise = np.random.default_rng(4).uniform(0.002, 0.1, len(X))
    whole = fitted(additive(), X, y, noise)
    # the same bounding box, so that the grids are the same
    order = np.argsort(-np.abs(X / SCALES).max(1))
    first, later = order[:150], order[150:]
    part = fitted(additive(), X[first], y[first], noise[first])
    part.save(tmp_path / "part.gp")
    part = gigagp.load(tmp_path / "part.gp")
    assert np.abs(part.predict(X) - whole.predict(X)).max() > 1e-3
    part.partial_fit(X[later], y[later], noise_variance=noise[later])
    np.testing.assert_allclose(part.predict(X), whole.predict(X), atol=1e-6)
    assert part.log_marginal_likelihood()[0] == pytest.approx(whole.log_marginal_likelihood()[0], abs=1e-5)


REFUSED: list[tuple[Callable[[], Kernel], object, str]] = [
    (lambda: kernels.RBF(), 0.1, "sum of terms of at most 3 inputs each"),
    (lambda: kernels.RBF(columns=[0]) * kernels.RBF(columns=[1, 2, 3]), 0.1, "with a term of 4"),
    (lambda: kernels.RBF(columns=[0]) * kernels.Linear(columns=[1]), 0.1, "Linear as a term of its own"),
    (lambda: kernels.Linear(columns=[0]) * kernels.Linear(columns=[1]), 0.1, "Linear as a term of its own"),
    (lambda: kernels.RBF(columns=[0]) + kernels.White(), np.full(160, 0.1), "no white term"),
    (lambda: kernels.RBF(columns=[0]) + kernels.White() * kernels.Linear(columns=[1]), 0.1, "the same white noise"),
]


@pytest.mark.parametrize(("kernel", "noise", "message"), REFUSED)
def test_refusals_name_the_way_out(kernel: Callable[[], Kernel], noise: Array | float, message: str) -> None:
    X, y = table("normal")
    with pytest.raises(InvalidInputError, match=message):
        fitted(kernel(), X, y, noise)


def test_a_stream_cannot_have_known_noise() -> None:
    X, y = table("normal")
    gp = GPRegressor(additive(), noise_variance=np.full(len(X), 0.1), inference=inference.Grid(8))
    with pytest.raises(InvalidInputError, match="noise_variance"):
        gp.fit_table((X, y))


def test_a_damaged_file_of_a_sum_is_refused() -> None:
    from gigagp.inference.contract.saved import Saved
    from gigagp.inference.grid.posterior import GridPosterior
    from gigagp.model.likelihoods import Gaussian

    X, y = table("normal")
    gp = fitted(additive(), X, y, 0.1)
    tensors, header = gp.posterior_.state()
    saved = Saved(gp.posterior_.model, 2**30, "auto", Gaussian(), 1)
    GridPosterior.from_state(tensors, header, saved)
    sums = header["statistics"]["grid"]["sum"]
    grid = {"sum": [sums[0] | {"columns": [9]}, *sums[1:]]}
    for change in ({"grid": grid}, {"noise": 0.5}, {"noise": -1.0}):
        with pytest.raises(ModelFileError):
            GridPosterior.from_state(tensors, header | {"statistics": header["statistics"] | change}, saved)
    for torus in ([[1]], [9], [[10**9]] * len(sums)):
        with pytest.raises(ModelFileError):
            GridPosterior.from_state(tensors, header | {"torus": torus}, saved)


def test_automatic_grids_of_a_sum_keep_to_the_number_of_nodes():
    kernel = (kernels.Matern(1.5, 0.5, columns=[0]) + kernels.RBF([0.5, 2.0], columns=[1, 2])).bind(3)
    columns, lower, upper = [(0,), (1, 2)], [0.0, 0.0, 0.0], [10.0, 1.0, 1.0]

    def nodes(most: int) -> list[int]:
        chosen = choose_grid_sum(GridSettings(), lower, upper, most, kernel, 0.1, columns)
        return [math.prod(grid.shape) for grid in chosen.grids]

    wanted = nodes(10**9)
    assert wanted == nodes(sum(wanted))
    fewer = nodes(sum(wanted) - 1)
    assert sum(fewer) < sum(wanted)
    assert all(few <= many for few, many in zip(fewer, wanted, strict=True))
    coarsest = nodes(sum(wanted) // 2)
    assert sum(coarsest) <= sum(wanted) // 2
    with pytest.raises(MemoryBudgetError, match="The coarsest grids for this kernel have"):
        nodes(10)
