"""Predictions of every posterior as functions of the points: correct gradients, or refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from gigagp import actions, inference, kernels, solvers
from gigagp.errors import InvalidInputError
from gigagp.inference.computation_aware import posterior as actions_posterior
from gigagp.inference.computation_aware.actions import dense as dense_actions
from gigagp.inference.contract import exact_posterior, table
from gigagp.inference.contract import rows_posterior as posterior_module
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.grid import posterior as grid_posterior
from gigagp.inference.quadruply_stochastic import posterior as quadruply_posterior
from gigagp.inference.sparse_variational import posterior as sparse_posterior
from gigagp.model.means import LinearMean
from gigagp.model.model import Model
from gigagp.products import select
from helpers import draw_targets, generator, points, reference_block, reference_matrix, relative_error

KERNEL = (kernels.Matern(2.5, [0.9, 1.4], 1.2) + kernels.White(0.05)).bind(2)
SMOOTH = kernels.Matern(2.5, [0.9, 1.4], 1.2).bind(2)
NOISE = 0.1
X = points(36, 2, seed=1)
Y = draw_targets(KERNEL, X, NOISE, columns=2) + X[:, :1]
#: away from the training rows, and all but one within their range
NEW = torch.cat([points(4, 2, seed=2) * 0.7, torch.tensor([[1.9, -1.7]], dtype=torch.float64)])
FINISHED = solvers.ConjugateGradients(tolerance=1e-11)

SYSTEMS: dict[str, tuple[Any, kernels.Kernel]] = {
    "exact": (inference.Exact(), KERNEL),
    "iterative": (inference.Iterative(solver=FINISHED, n_samples=8), KERNEL),
    "iterative, actions": (inference.Iterative(computational_uncertainty=True), KERNEL),
    "vecchia": (inference.Vecchia(12, 15), KERNEL),
    "random features": (inference.RandomFeatures(n_features=60), KERNEL),
    "sparse": (inference.SparseVariational(n_inducing=12), KERNEL),
    "sparse, minibatches": (inference.SparseVariational(n_inducing=12, batch_size=20), KERNEL),
    "actions, blocks": (inference.ComputationAware(n_actions=6), KERNEL),
    "actions, dense": (inference.ComputationAware(6, actions.ConjugateGradients()), KERNEL),
    "actions, rows": (inference.ComputationAware(6, actions.UnitVectors()), KERNEL),
    "grid, exact": (inference.Grid(size=10), SMOOTH),
    "grid, linear": (inference.Grid(size=10, interpolation="linear", outside="clamp"), SMOOTH),
    "grid, samples": (inference.Grid(size=11, exact_nodes=0, final_tolerance=1e-10), SMOOTH),
    "grid, solves": (inference.Grid(size=11, exact_nodes=0, final_tolerance=1e-10, variance="solve"), SMOOTH),
    "grid, low rank": (
        inference.Grid(size=11, exact_nodes=0, final_tolerance=1e-10, variance="low_rank", rank=9, outside="prior"),
        SMOOTH,
    ),
    "quadruply stochastic": (inference.QuadruplyStochastic(n_basis=40), KERNEL),
    "quadruply stochastic, weights": (inference.QuadruplyStochastic(n_basis=40, n_columns=40), KERNEL),
    "quadruply stochastic, sampled": (inference.QuadruplyStochastic(n_basis=40, row_batch=10), KERNEL),
    "quadruply stochastic, augmented": (inference.QuadruplyStochastic(basis="inducing", augment=True), KERNEL),
    "quadruply stochastic, grid": (inference.QuadruplyStochastic(n_basis=20, basis="grid"), kernels.RBF(1.1).bind(2)),
    "relevance vectors": (inference.RelevanceVectorMachine(), SMOOTH),
}

Answer = Callable[[Posterior, Tensor], Tensor]
ANSWERS: dict[str, Answer] = {
    "mean": lambda posterior, points: posterior.mean(points),
    "trend": lambda posterior, points: posterior.trend(points),
    "mean and variance": lambda posterior, points: _joined(posterior.mean_and_variance(points)),
    "by samples": lambda posterior, points: _joined(posterior.mean_and_variance(points, "samples")),
    "by solves": lambda posterior, points: _joined(posterior.mean_and_variance(points, "solve")),
    "covariance": lambda posterior, points: posterior.covariance(points),
    "sample functions": lambda posterior, points: posterior.sample_functions(2, generator(3))(points),
    "more samples": lambda posterior, points: posterior.sample_functions(9, generator(4))(points),
    "parts": lambda posterior, points: torch.stack(posterior.variance_parts(points)),
    "sample at": lambda posterior, points: posterior.sample_at(points, 3, generator(5)),
}
#: predictions that have no gradient for any posterior
REFUSED = {"sample at"}


def _joined(pair: tuple[Tensor, Tensor]) -> Tensor:
    return torch.cat([pair[0], pair[1][:, None]], 1)


def fit(method: Any, kernel: kernels.Kernel, dtype: torch.dtype = torch.float64) -> Posterior:
    mean = LinearMean()
    model = Model(kernel, mean, torch.tensor(NOISE, dtype=torch.float64))
    objective = method.objective(TrainingTable(X.to(dtype), Y.to(dtype), mean, 2**28), generator(0))
    is_sampled = isinstance(method, inference.QuadruplyStochastic) and method.row_batch is not None
    model = objective.begin(model) if is_sampled else objective.start(model)
    return objective.posterior(model, generator(1))


@cache
def fitted(name: str) -> Posterior:
    return fit(*SYSTEMS[name])


def differences(function: Callable[[Tensor], Tensor], at: Tensor, move: Tensor, step: float = 1e-4) -> Tensor:
    """Return the derivative of a function along a direction, by fourth-order central differences."""
    near, far = ((function(at + k * step * move) - function(at - k * step * move)) / (2 * k * step) for k in (1, 2))
    return (4 * near - far) / 3


def check(name: str, answer: str, at: Tensor = NEW) -> None:
    """Compare a gradient with differences; a posterior may also refuse the prediction itself."""
    posterior, function = fitted(name), ANSWERS[answer]
    try:
        plain = function(posterior, at)
    except InvalidInputError:  # the posterior does not support this prediction at all
        with pytest.raises(InvalidInputError):
            function(posterior, at.clone().requires_grad_())
        return
    assert not plain.requires_grad
    moving = at.clone().requires_grad_()
    found = function(posterior, moving)
    torch.testing.assert_close(found.detach(), plain, rtol=1e-9, atol=1e-11)
    assert found.requires_grad, "no graph at all"
    weights = points(plain.numel(), 1, seed=9).view(plain.shape)
    (slope,) = torch.autograd.grad((found * weights).sum(), moving)
    for seed in range(2):
        move = points(*at.shape, seed=seed)
        expected = (differences(lambda moved: function(posterior, moved), at, move) * weights).sum()
        error = float((slope * move).sum() - expected)
        assert abs(error) < 1e-5 * float(slope.norm() * move.norm()), (error, float(expected))


CELLS = [(name, answer) for name in SYSTEMS for answer in ANSWERS if answer not in REFUSED]


@pytest.mark.few(20)
@pytest.mark.parametrize(("name", "answer"), CELLS)
def test_gradients_are_those_of_differences(name, answer):
    check(name, answer)


@pytest.mark.parametrize("answer", ["mean and variance", "covariance"])
def test_gradients_without_a_stored_graph(answer, monkeypatch):
    """Many points compute their covariances with the rows again in the backward pass."""
    monkeypatch.setattr(exact_posterior, "_FEW_COVARIANCES", 0)
    check("exact", answer)


def _without_graph(kernel, X, Z, V, *, budget):
    return select(kernel, X.device, X.dtype).product(kernel, X, Z, V, budget=budget)


#: factors of formulas without their part of the derivative, and the predictions that this makes wrong
HALVES: dict[str, tuple[Any, str, Any, list[tuple[str, str]]]] = {
    "kernel products": (
        posterior_module,
        "cross_product",
        _without_graph,
        [
            (name, answer)
            for name in ("exact", "iterative")
            for answer in ("mean", "mean and variance", "sample functions")
            if (name, answer) != ("exact", "mean and variance")
        ],
    ),
    "covariances with rows": (
        table,
        "cross_covariance",
        lambda kernel, X, Z, budget: kernel.block(X.detach(), Z),
        [("exact", answer) for answer in ("mean and variance", "covariance")],
    ),
    "products in float64": (
        actions_posterior,
        "cross_product",
        _without_graph,
        [("actions, blocks", answer) for answer in ("mean", "sample functions")],
    ),
    "actions": (
        dense_actions,
        "cross_product",
        _without_graph,
        [("actions, dense", answer) for answer in ("mean and variance", "covariance")],
    ),
    "inducing covariances": (
        sparse_posterior.SparsePosterior,
        "_covariances",
        lambda self, X: self.points.covariances(self.points.tiles(X.detach())),
        [("sparse", answer) for answer in ("mean and variance", "covariance")],
    ),
    "one side of a grid": (
        grid_posterior,
        "both_sides",
        lambda half: half,
        [("grid, exact", "covariance"), ("grid, solves", "covariance"), ("grid, solves", "by solves")],
    ),
    "what a grid explains": (
        grid_posterior,
        "wants_gradient",
        lambda X: False,
        [("grid, solves", answer) for answer in ("covariance", "by solves")],
    ),
    "many functions": (
        quadruply_posterior,
        "recomputed",
        lambda function, X: function(X.detach()),
        [("quadruply stochastic, weights", answer) for answer in ("mean", "covariance", "sample functions")],
    ),
}


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("half", HALVES)
def test_a_half_that_is_held_does_not_pass(half, monkeypatch):
    """The control: with the derivative of only some factors of a formula, as in an old error, the test above fails."""
    module, name, replacement, cells = HALVES[half]
    for cell in cells:
        check(*cell)
    monkeypatch.setattr(module, name, replacement)
    for cell in cells:
        with pytest.raises(AssertionError):
            check(*cell)


# Against dense algebra ------------------------------------------------------------------------------------------------


def dense(at: Tensor, X: Tensor = X, Y: Tensor = Y) -> tuple[Tensor, Tensor]:
    """Return mean and covariance at points by textbook formulas that autograd can differentiate."""
    basis = LinearMean().basis
    H, cross = reference_matrix(KERNEL, X, NOISE), reference_block(KERNEL, X, at)
    Phi = basis(X)
    solved = torch.linalg.solve(H, Phi)
    beta = torch.linalg.solve(Phi.T @ solved, solved.T @ Y)
    mean = basis(at) @ beta + cross.T @ torch.linalg.solve(H, Y - Phi @ beta)
    given_trend = reference_block(KERNEL, at, at) - cross.T @ torch.linalg.solve(H, cross)
    open_trend = basis(at) - cross.T @ solved  # Rasmussen and Williams 2006, eq. 2.42
    return mean, given_trend + open_trend @ torch.linalg.solve(Phi.T @ solved, open_trend.T)


EXACT_LIMITS = {
    "exact": inference.Exact(),
    "iterative": inference.Iterative(solver=FINISHED, n_samples=8),
    "actions": inference.ComputationAware(len(X), actions.UnitVectors()),
    "sparse": inference.SparseVariational(n_inducing=len(X), learn_inducing_points=False, jitter=1e-12),
}


@pytest.mark.parametrize("name", EXACT_LIMITS)
def test_gradients_are_those_of_the_dense_formulas(name):
    posterior, moving = fit(EXACT_LIMITS[name], KERNEL), NEW.clone().requires_grad_()
    dense_mean, dense_covariance = dense(moving)
    method = "solve" if name == "iterative" else "auto"
    for found, expected in (
        (posterior.mean(moving), dense_mean),
        (posterior.mean_and_variance(moving, method)[1], dense_covariance.diagonal()),
        (posterior.covariance(moving), dense_covariance),
    ):
        weights = points(found.numel(), 1, seed=9).view(found.shape)
        slope, wanted = (
            torch.autograd.grad((one * weights).sum(), moving, retain_graph=True)[0] for one in (found, expected)
        )
        assert relative_error(slope, wanted) < 1e-6


@pytest.mark.parametrize("part", [0, 1])
def test_second_derivatives_are_those_of_the_dense_formulas(part):
    posterior, at = fitted("exact"), NEW[:2].clone()
    answer = (posterior.mean, posterior.covariance)[part]
    found = torch.autograd.functional.hessian(lambda moved: answer(moved).square().sum(), at)
    expected = torch.autograd.functional.hessian(lambda moved: dense(moved)[part].square().sum(), at)
    assert relative_error(found, expected) < 1e-6


# Where there is none --------------------------------------------------------------------------------------------------


@pytest.mark.few(7)
@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("answer", sorted(REFUSED))
def test_what_has_no_gradient_is_refused(name, answer):
    posterior, function = fitted(name), ANSWERS[answer]
    moving = NEW.clone().requires_grad_()
    with pytest.raises(
        InvalidInputError, match=f"sample_at of a {posterior.kind} posterior has no gradient with respect to"
    ):
        function(posterior, moving)
    with torch.no_grad():
        expected = function(posterior, moving)  # without a request for a gradient
    torch.testing.assert_close(function(posterior, NEW), expected)


def test_training_rows_that_require_a_gradient_are_refused():
    """If they occurred on both sides of a product, the derivative would be by only half of the occurrences."""
    posterior = fit(inference.Exact(), KERNEL)
    posterior.X.requires_grad_()
    with pytest.raises(InvalidInputError, match="Z of a product with new points must not require a gradient"):
        posterior.mean(posterior.X)
    posterior.X.requires_grad_(False)


@pytest.mark.few(7)
@pytest.mark.parametrize("name", SYSTEMS)
def test_nothing_is_recorded_where_nobody_asks(name, monkeypatch):
    posterior = fitted(name)
    asked = [function for answer, function in ANSWERS.items() if answer not in ("parts", "more samples")]
    plain = [function(posterior, NEW) for function in asked]
    assert not any(one.requires_grad for one in plain)
    moving = NEW.clone().requires_grad_()
    with torch.no_grad():
        held = [function(posterior, moving) for function in asked]
    with torch.inference_mode():
        inferred = [function(posterior, moving) for function in asked]
    for one, other, third in zip(plain, held, inferred, strict=True):
        assert not other.requires_grad
        assert third.is_inference()
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(one, third.clone(), rtol=1e-9, atol=1e-11)


# Special points -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("nu", [0.5, 1.5])
def test_gradients_at_training_rows_are_finite(nu):
    kernel = kernels.Matern(nu, [0.9, 1.4], 1.2).bind(2)
    at = torch.cat([X[:3], X[:1]])  # one of them occurs twice
    for method, _ in SYSTEMS.values():
        if method.__class__.__name__ == "QuadruplyStochastic" and method.basis == "grid":
            continue  # kernels that are products over inputs
        posterior = fit(method, kernel)
        for name, function in ANSWERS.items():
            moving = at.clone().requires_grad_()
            try:
                found = function(posterior, moving)
            except InvalidInputError:
                continue
            (slope,) = torch.autograd.grad(found.sum(), moving)
            assert bool(torch.isfinite(slope).all()), (method, name)


@pytest.mark.parametrize("method", [inference.Exact(), inference.Iterative(), inference.ComputationAware(6)])
def test_gradients_of_single_precision(method):
    narrow, wide = fit(method, KERNEL, torch.float32), fit(method, KERNEL)
    slopes = []
    for posterior in (narrow, wide):
        moving = NEW.to(posterior.dtype, copy=True).requires_grad_()
        (slope,) = torch.autograd.grad(posterior.mean(moving).square().sum(), moving)
        assert slope.dtype == posterior.dtype
        slopes.append(slope)
    assert relative_error(slopes[0], slopes[1]) < 2e-3
