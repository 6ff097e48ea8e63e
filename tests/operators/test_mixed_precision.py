"""Products in float32 and residuals in float64 must give the accuracy of float64."""

from __future__ import annotations

import gc
import warnings
import weakref
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, inference, optimization
from gigagp.errors import InvalidInputError, SolverWarning
from gigagp.kernels import RBF, Linear, Matern, White
from gigagp.operators import KernelMatrix
from gigagp.solvers import AlternatingProjections, ConjugateGradients, Status, StochasticGradientDescent
from helpers import points, reference_block, reference_matrix, relative_error

NOISE = 0.1


def system(
    *, mixed: bool, storage: str = "tiles", dtype: torch.dtype = torch.float64
) -> tuple[KernelMatrix, torch.Tensor]:
    X = points(400, 3).to(dtype)
    H = KernelMatrix(Matern(1.5, 2.0) + White(1e-3), X, NOISE, mixed=mixed, storage=storage)
    return H, points(400, 4, seed=1).to(dtype)


@pytest.mark.parametrize("storage", ["dense", "tiles"])
def test_fast_products_are_float32_and_the_others_float64(storage):
    H, V = system(mixed=True, storage=storage)
    dense = reference_matrix(H.kernel, H.X, NOISE)
    rows = torch.tensor([3, 77, 200])
    pairs = [
        (H @ V, H.fast @ V, dense @ V),
        (H.rows_product(rows, V), H.fast.rows_product(rows, V), dense[rows] @ V),
        (H.columns_product(rows, V[:3]), H.fast.columns_product(rows, V[:3]), dense[:, rows] @ V[:3]),
    ]
    for exact, fast, expected in pairs:
        assert fast.dtype == torch.float64
        assert relative_error(exact, expected) < 1e-13
        assert 1e-10 < relative_error(fast, expected) < 1e-5
    assert torch.equal(H.fast.block(rows, rows), H.block(rows, rows))
    assert H.fast.rounding == torch.finfo(torch.float32).eps
    assert H.fast.storage == storage
    assert H.storage == "tiles"
    assert "float32" in H.describe()


def test_without_it_the_fast_operator_is_the_operator():
    H, _ = system(mixed=False)
    assert H.fast is H


@pytest.mark.few(1)
@pytest.mark.parametrize("storage", ["dense", "tiles"])
def test_conjugate_gradients_reach_float64_tolerances(storage):
    solver = ConjugateGradients(tolerance=1e-10, max_epochs=300, preconditioner=None)
    found = {}
    for mixed in (False, True):
        H, b = system(mixed=mixed, storage=storage)
        found[mixed] = solver.solve(H, b)
        assert found[mixed].status is Status.CONVERGED
        true = (b - reference_matrix(H.kernel, H.X, NOISE) @ found[mixed].value).norm(dim=0) / b.norm(dim=0)
        assert float(true.max()) < 1.1e-10
    # Directions lose their conjugacy sooner in float32, with or without correction; here 155 iterations instead of 97.
    assert found[True].iterations <= 2 * found[False].iterations
    assert found[True].setup_epochs <= 12  # one float64 product each time the residual has fallen thirtyfold
    H, b = system(mixed=False, storage=storage, dtype=torch.float32)
    patient = replace(solver, max_epochs=3000)  # when it gives up depends on rounding
    assert patient.solve(H, b).status is Status.STAGNATED  # float32 alone does not reach it


@pytest.mark.parametrize(
    "solver",
    [
        AlternatingProjections(block_size=100, tolerance=1e-6, max_epochs=400),
        StochasticGradientDescent(batch_size=100, tolerance=0.02, max_epochs=400),
    ],
)
def test_the_other_solvers_report_true_residuals(solver):
    H, b = system(mixed=True)
    solution = solver.solve(H, b)
    true = (b - reference_matrix(H.kernel, H.X, NOISE) @ solution.value).norm(dim=0) / b.norm(dim=0)
    assert solution.status is Status.CONVERGED
    assert float(true.max()) <= 1.05 * solver.tolerance
    assert torch.allclose(solution.relative_residual, true, rtol=0.05, atol=0)


@pytest.mark.slow
def test_a_fit_gives_the_answers_of_float64():
    X = np.random.default_rng(0).normal(size=(300, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * np.random.default_rng(1).normal(size=300)
    how = inference.Iterative(solver=ConjugateGradients(tolerance=1e-6), n_samples=16)
    found = {}
    for dtype in ("float64", "mixed"):
        gp = GPRegressor(kernel=Matern() + Linear(0.1), inference=how, dtype=dtype, random_state=0).fit(X, y)
        found[dtype] = gp.predict(X[:50] + 0.1, return_std=True)
        assert ("float32 inside of solvers" in gp.engine_) == (dtype == "mixed")
    for exact, mixed in zip(found["float64"], found["mixed"], strict=True):
        assert np.allclose(exact, mixed, atol=1e-3 * np.abs(exact).max())


def hard_rows(layout: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(300, 3))
    if layout == "clumps":
        X = X[rng.integers(0, 6, size=300)] + 1e-3 * rng.normal(size=(300, 3))
    y = np.sin(2 * X[:, 0]) + 3 * X[:, 1] * X[:, 2]
    return X, y, rng.normal(size=(60, 3))


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "mixed"])
@pytest.mark.parametrize(
    ("layout", "kernel", "coarse"),
    [
        ("spread", Matern(1.5, 3.0, variance=20.0), False),
        ("spread", RBF(1.5, variance=20.0), True),
        ("clumps", Matern(1.5, 3.0, variance=20.0), True),
    ],
)
def test_with_little_noise_a_fit_gives_the_answers_of_dense_algebra(layout, kernel, coarse, dtype):
    X, y, new = hard_rows(layout)
    noise = 1e-5
    how = inference.Iterative(solver=ConjugateGradients(tolerance=1e-6), final_tolerance=1e-6, n_samples=16)
    gp = GPRegressor(
        kernel, how, dtype=dtype, noise_variance=noise, optimizer=None, mean="zero", standardize=False, random_state=0
    )
    with pytest.warns(SolverWarning, match="Products in float32 were too coarse") if coarse else nullcontext():
        gp.fit(X, y)
    found = gp.predict(new)
    kernel = kernel.bind(3)
    H = reference_matrix(kernel, torch.from_numpy(X), noise)
    cross = reference_block(kernel, torch.from_numpy(new), torch.from_numpy(X))
    exact = cross @ torch.linalg.solve(H, torch.from_numpy(y))
    variance = 20.0 - (cross * torch.linalg.solve(H, cross.T).T).sum(1)
    errors = (torch.from_numpy(found) - exact).abs() / (variance + noise).sqrt()
    assert float(errors.max()) < 0.02
    assert gp.posterior_.final_solve.status == "CONVERGED"
    assert ("float32 inside of solvers" in gp.engine_) != coarse  # float64 for the rest of the fit


@pytest.mark.slow
def test_learning_down_to_little_noise_predicts_as_in_float64():
    X, y, new = hard_rows("spread")
    X, y, new, truth = X[:200], y[:200], X[200:], y[200:]
    how = inference.Iterative(solver=ConjugateGradients(tolerance=1e-4))
    scores = {}
    for dtype in ("float64", "float32", "mixed"):
        gp = GPRegressor(Matern(1.5), how, dtype=dtype, random_state=0, optimizer=optimization.LBFGS(steps=10))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SolverWarning)
            gp.fit(X, y)
        assert gp.noise_variance_ < 1e-4 * gp.kernel_.variance
        scores[dtype] = gp.predictive_log_density(new, truth).mean()
    assert scores["float32"] == pytest.approx(scores["float64"], abs=0.01)
    assert scores["mixed"] == pytest.approx(scores["float64"], abs=0.01)


@pytest.mark.few(1)
@pytest.mark.parametrize("keeps", [False, True])
def test_matrices_do_not_outlive_their_step(keeps, monkeypatch):
    """Stored matrices of one step after another would fill the memory until Python looks for cycles of references."""
    made, plain = weakref.WeakSet(), KernelMatrix.__init__

    def noted(self, *args, **settings):
        plain(self, *args, **settings)
        made.add(self)
        if keeps:  # the control
            self.cycle = self

    monkeypatch.setattr(KernelMatrix, "__init__", noted)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2))
    y = np.sin(X).sum(1) + 0.1 * rng.normal(size=100)  # without noise it would take float64, with a warning
    gc.collect()
    gc.disable()
    try:
        GPRegressor(Matern(nu=1.5), inference=inference.Iterative(), dtype="mixed", random_state=0).fit(X, y)
        assert bool(made) == keeps
    finally:
        gc.enable()


def test_float32_inputs_are_refused():
    with pytest.raises(InvalidInputError, match="float64 inputs"):
        KernelMatrix(RBF(), points(5, 2).float(), mixed=True)
