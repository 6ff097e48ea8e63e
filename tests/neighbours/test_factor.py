"""The sparse inverse factor against the dense matrices that its weights, variances and order make."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gigagp import kernels
from gigagp.neighbours import factor as factor_module
from gigagp.neighbours.conditionals import Pool
from gigagp.neighbours.factor import Factor
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.products import NativeTiles
from helpers import points, reference_matrix, relative_error

SETS = NativeTiles.instruction_sets()
KERNEL = kernels.Matern(1.5, [0.8, 1.7], 1.3).bind(2)


def clumps(n: int) -> Tensor:
    return torch.cat([points(n - n // 3, 2), 1e-2 * points(n // 3, 2, seed=1) + 2.0])


def duplicates(n: int) -> Tensor:
    return points(n // 2, 2).repeat(2, 1)


TABLES = {"Gaussian": lambda n: points(n, 2), "clumps": clumps, "duplicates": duplicates}
tables = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())


@pytest.fixture(params=["native", "torch"] if SETS else ["torch"])
def engine(request, monkeypatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(factor_module, "_native", None)
    return request.param


def made(X: Tensor, m: int, engine: str = "auto", noise: float = 0.05) -> Factor:
    graph = NeighbourGraph(KERNEL, X, m)
    pool = Pool(KERNEL, X, torch.full((len(X),), noise, dtype=torch.float64), engine=engine)
    return Factor.of(pool, graph.neighbours, graph.order)


def regression(factor: Factor) -> Tensor:
    """Return ``I - B`` as a dense matrix."""
    n = factor.n
    found = torch.eye(n, dtype=torch.float64)
    for i in range(n):
        for j, weight in zip(factor.neighbours[i].tolist(), factor.weights[i], strict=True):
            if j >= 0:
                found[i, j] -= weight
    return found


@pytest.mark.pairs
@tables
@pytest.mark.parametrize("columns", [1, 3, 8, 21])
def test_products_and_solves_are_the_dense_ones(table, columns, engine):
    X = table(90)
    factor = made(X, 7, engine)
    A, D, V = regression(factor), torch.diag(factor.variance), points(90, columns, seed=2)
    root = torch.linalg.solve(A, D.sqrt())
    H = root @ root.T
    kept = V.clone()
    expected = {
        "residuals": A @ V,
        "transposed": A.T @ V,
        "whiten": torch.linalg.solve(root, V),
        "apply": A.T @ torch.linalg.solve(D, A @ V),
        "colour": root @ V,
        "unwhiten": H @ V,
    }
    for name, right in expected.items():
        assert relative_error(getattr(factor, name)(V), right) < 1e-11, name
        narrow = getattr(factor, name)(V.float())
        assert narrow.dtype == torch.float64
        assert relative_error(narrow, right) < 1e-4, name
    assert torch.equal(V, kept)
    assert factor.log_determinant() == pytest.approx(float(torch.linalg.slogdet(H).logabsdet), rel=1e-11)
    # Control: in the rows' own order, solves with I - B are something else.
    wrong = Factor(factor.neighbours, factor.weights, factor.variance, torch.arange(90))
    if engine == "native":
        assert relative_error(wrong.colour(V), expected["colour"]) > 1e-3


@tables
def test_with_all_earlier_rows_it_is_the_matrix(table, engine):
    X = table(60)
    factor, H = made(X, 59, engine), reference_matrix(KERNEL, X, 0.05)
    V = points(60, 4, seed=2)
    assert relative_error(factor.unwhiten(V), H @ V) < 1e-10
    assert relative_error(factor.apply(V), torch.linalg.solve(H, V)) < 1e-9
    root = factor.colour(torch.eye(60, dtype=torch.float64))
    assert relative_error(root @ root.T, H) < 1e-10
    assert factor.log_determinant() == pytest.approx(float(torch.linalg.slogdet(H).logabsdet), rel=1e-10)
    assert relative_error(made(X, 20, engine).unwhiten(V), H @ V) > 1e-5  # the control


@pytest.mark.parametrize("seed", range(5))
def test_no_other_weights_are_closer_in_divergence(seed):
    """KL(N(0, H) || N(0, P)) is smallest at these weights and variances among all with the same neighbours."""
    X = clumps(80)
    factor, H = made(X, 6), reference_matrix(KERNEL, X, 0.05)

    def divergence(weights: Tensor, variance: Tensor) -> float:
        A = regression(Factor(factor.neighbours, weights, variance, factor.order))
        inside = torch.einsum("ij,jk,ik->i", A, H, A)
        own = (inside / variance - 1 + variance.log()).sum() - torch.linalg.slogdet(H).logabsdet
        return float(0.5 * own)

    best = divergence(factor.weights, factor.variance)
    assert best > 0
    move = 1e-3 * points(80, 6, seed=seed) * (factor.neighbours >= 0)
    assert divergence(factor.weights + move, factor.variance) > best
    assert divergence(factor.weights, factor.variance * (1 + 1e-2 * points(80, 1, seed=seed)[:, 0])) > best


@pytest.mark.skipif(not SETS, reason="no compiled extension")
@pytest.mark.parametrize("columns", [1, 9, 40])
def test_threads_change_no_bit(columns):
    factor, V = made(points(400, 2), 9), points(400, columns, seed=1)
    names = ("residuals", "transposed", "whiten", "apply", "colour", "unwhiten")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = [getattr(factor, name)(V) for name in names]
        torch.set_num_threads(2)
        two = [getattr(factor, name)(V) for name in names]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.skipif(not SETS, reason="no compiled extension")
@pytest.mark.parametrize("instruction_set", SETS)
def test_every_instruction_set_multiplies_and_solves(instruction_set):
    factor, V, native = made(points(70, 2), 5), points(70, 11, seed=1), factor_module._native
    neighbours, weights, columns = factor.neighbours.numpy(), factor.weights.numpy(), factor._by_columns()
    v, order = V.numpy(), factor.order.numpy()
    A = regression(factor)

    def solved(function, *arguments) -> Tensor:
        out = V.clone()
        function(instruction_set, *arguments, order, out.numpy(), 1)
        return out

    found = native.sparse_residuals(instruction_set, neighbours, weights, v, 1)
    assert relative_error(torch.from_numpy(found), A @ V) < 1e-12
    found = native.sparse_transposed(instruction_set, *columns, v, 1)
    assert relative_error(torch.from_numpy(found), A.T @ V) < 1e-12
    assert relative_error(solved(native.sparse_solve, neighbours, weights), torch.linalg.solve(A, V)) < 1e-11
    found = solved(native.sparse_solve_transposed, *columns)
    assert relative_error(found, torch.linalg.solve(A.T, V)) < 1e-11


def test_one_row_and_no_columns(engine):
    factor = made(points(1, 2), 3, engine)
    assert factor.neighbours.tolist() == [[-1]]
    V = torch.tensor([[2.0, -1.0]], dtype=torch.float64)
    torch.testing.assert_close(factor.unwhiten(V), 1.35 * V)
    torch.testing.assert_close(factor.apply(V), V / 1.35)
    for name in ("residuals", "transposed", "apply", "colour", "unwhiten"):
        assert getattr(made(points(9, 2), 3, engine), name)(torch.zeros(9, 0)).shape == (9, 0)


@pytest.mark.skipif(not SETS, reason="no compiled extension")
def test_what_does_not_fit_is_refused():
    factor = made(points(9, 2), 3)
    with pytest.raises(ValueError, match="vectors do not fit"):
        factor.residuals(torch.zeros(8, 2))
    with pytest.raises(ValueError, match="columns do not fit"):
        factor.transposed(torch.zeros(8, 2))
    with pytest.raises(ValueError, match="a neighbour beyond the pool"):
        factor_module._native.sparse_columns((factor.neighbours + 9).numpy(), factor.weights.numpy())
    wrong = Factor(factor.neighbours, factor.weights, factor.variance, factor.order + 1)
    with pytest.raises(ValueError, match="the order does not fit"):
        wrong.colour(torch.zeros(9, 2))
