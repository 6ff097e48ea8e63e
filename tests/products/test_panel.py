"""Products for rows that are cells of a panel, against dense float64 algebra, and the rule that finds panels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, inference, solvers
from gigagp.kernels import RBF, Categorical, Matern
from gigagp.operators import KernelMatrix
from gigagp.products import LowRankWeights, PanelTiles, product_entries, select
from helpers import autograd_gradient, close, generator, reference_block, reference_matrix, relative_error, tolerance
from panels import ENTITIES, GAPS, KERNELS, PLACE, TIME, TIMES, cells

BUDGET = 2**26
PAIRS = [
    *(("own and shared", gaps) for gaps in GAPS),
    *((name, "at random") for name in KERNELS if name != "own and shared"),
]


@pytest.mark.parametrize(("name", "gaps"), PAIRS)
def test_a_panel_multiplies_as_the_dense_matrix(name, gaps):
    X = cells(gaps)
    kernel = KERNELS[name].bind(3)
    H = KernelMatrix(kernel, X, 0.1)
    dense = reference_matrix(kernel, X, 0.1)
    V = torch.randn(len(X), 3, generator=generator(6), dtype=torch.float64)
    rows = torch.arange(5, 90, 3)
    assert H.engine.startswith("Kronecker")
    assert H.storage == "tiles"
    for found, matrix, vectors in (
        (H @ V, dense, V),
        (H @ V[:, 0], dense, V[:, 0]),
        (H.rows_product(rows, V), dense[rows], V),
        (H.columns_product(rows, V[: len(rows)]), dense[:, rows], V[: len(rows)]),
    ):
        size = float((matrix.abs() @ vectors.abs()).max())
        assert torch.allclose(found, matrix @ vectors, rtol=0, atol=size * tolerance(torch.float64))


@pytest.mark.few(2)
@pytest.mark.parametrize(("name", "gaps"), PAIRS)
def test_gradients_of_a_panel_are_those_of_the_dense_matrix(name, gaps):
    X = cells(gaps)
    kernel = KERNELS[name].bind(3)
    left, right = (torch.randn(len(X), 3, generator=generator(seed), dtype=torch.float64) for seed in (7, 8))
    found = KernelMatrix(kernel, X, 0.1).gradient(left, right)
    expected = autograd_gradient(kernel, lambda k: ((reference_matrix(k, X) @ right) * left).sum())
    for parameter, value in expected.items():
        close(found[parameter], value, condition=1e4)  # the signs of L and R cancel most of the sum
    engine = select(kernel, X.device, X.dtype, rows=X)
    assert isinstance(engine, PanelTiles)
    continuous = autograd_gradient(
        kernel, lambda k: ((reference_block(k, X, X) @ right) * left).sum() + 0 * k.white(X).sum()
    )
    for budget in (BUDGET, 2**14):  # the second has no room for the entities' factor
        one_sided = engine.gradient(kernel, X, X, LowRankWeights(left, right), symmetric=False, budget=budget)
        for parameter, value in continuous.items():
            close(one_sided[parameter], value, condition=1e4)


@pytest.mark.parametrize("budget", [BUDGET, 2**15])
def test_products_with_other_points(budget):
    X = cells("at random")
    kernel = KERNELS["own and shared"].bind(3)
    engine = select(kernel, X.device, X.dtype, rows=X)
    V = torch.randn(len(X), 2, generator=generator(9), dtype=torch.float64)
    elsewhere = torch.randn(300, 3, generator=generator(10), dtype=torch.float64)
    known_places = torch.cat([X[:300, :2], elsewhere[:, 2:]], 1)
    for points in (elsewhere, known_places, cells("complete"), X[:1]):
        close(engine.product(kernel, points, X, V, budget=budget), kernel.block(points, X) @ V, condition=1e3)


def test_float32_rounds_no_more_than_the_dense_product():
    X = cells("at random", torch.float32)
    kernel = KERNELS["product"].bind(3)
    V = torch.randn(len(X), 4, generator=generator(11), dtype=torch.float32)
    H = KernelMatrix(kernel, X, 0.1)
    assert H.engine.startswith("Kronecker")
    assert relative_error((H @ V).double(), reference_matrix(kernel, X.double(), 0.1) @ V.double()) < tolerance(
        torch.float32
    )


@pytest.mark.parametrize(
    "kernel",
    [
        Matern(1.5),
        Matern(1.5, columns=PLACE) * Matern(0.5, columns=TIME) + 0.1 * RBF(),
        Matern(1.5, columns=PLACE) * Matern(0.5, columns=[1, 2]),
        Matern(1.5, columns=PLACE),
    ],
)
def test_a_kernel_that_joins_entities_and_times_is_no_panel(kernel):
    X = cells("complete")
    assert not isinstance(select(kernel.bind(3), X.device, X.dtype, rows=X), PanelTiles)


def test_scattered_rows_are_no_panel():
    X = torch.randn(800, 3, generator=generator(12), dtype=torch.float64)
    kernel = KERNELS["product"].bind(3)
    assert not isinstance(select(kernel, X.device, X.dtype, rows=X), PanelTiles)


def test_the_work_of_a_product_is_that_of_both_factors():
    X, kernel = cells("at random"), KERNELS["product"].bind(3)
    assert product_entries(kernel, X) == ENTITIES * TIMES * (ENTITIES + TIMES)
    assert product_entries(Matern(1.5).bind(3), X) == len(X) ** 2


def test_zeros_of_both_signs_are_one_time():
    X = cells("complete")
    X[:, 2] -= X[0, 2].clone()
    negative = X.clone()
    negative[X[:, 2] == 0, 2] = torch.where(torch.arange(int((X[:, 2] == 0).sum())) % 2 == 0, -0.0, 0.0).double()
    engine = select(KERNELS["product"].bind(3), X.device, X.dtype, rows=negative)
    assert engine.cells(negative).shape == (ENTITIES, TIMES)


def test_a_fit_of_a_panel_predicts_as_the_exact_fit():
    X = cells("cut short").numpy()
    rng = np.random.default_rng(0)
    y = np.sin(2 * X[:, 0]) * np.cos(X[:, 2]) + X[:, 1] + 0.1 * rng.normal(size=len(X))
    kernel = RBF(1.0, columns=PLACE) * Matern(0.5, 2.0, columns=TIME, fixed=["variance"]) + Categorical(columns=[1])
    given = {"kernel": kernel, "noise_variance": 0.01, "optimizer": None, "random_state": 0}
    solver = solvers.ConjugateGradients(tolerance=1e-10)
    panel = GPRegressor(inference=inference.Iterative(solver=solver), **given).fit(X, y)
    exact = GPRegressor(inference=inference.Exact(), **given).fit(X, y)
    assert panel.engine_.startswith("Kronecker")
    new = cells("complete").numpy()
    close(panel.predict(new), exact.predict(new), condition=1e6)
