"""Conditional distributions of rows given neighbours, in compiled code and in torch, against dense float64 algebra."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from gigagp import kernels
from gigagp.kernels import Kernel
from gigagp.model.model import NOISE
from gigagp.neighbours.conditionals import Pool
from gigagp.products import NativeTiles
from helpers import all_kernels, close, generator, points, reference_block, relative_error

SETS = NativeTiles.instruction_sets()
ENGINES = ["native", "torch"] if SETS else ["torch"]
KERNELS = all_kernels()
#: Enough rows for several groups of lanes, the last of which is not full.
N, M = 37, 6


class Cauchy(kernels.StationaryKernel):
    """A kernel of a user's own, without a compiled program."""

    def profile(self, q):
        return 1 / (1 + q)


def uneven(n: int) -> Tensor:
    return points(n, 4) * torch.tensor([1.0, 0.05, 8.0, 1.0]) + 0.1


def clumps(n: int) -> Tensor:
    return torch.cat([points(n - n // 2, 4), 1e-3 * points(n // 2, 4, seed=1) + 1.0])


TABLES = {
    "Gaussian": lambda n: points(n, 4),
    "uneven scales": uneven,
    "clumps": clumps,
    "a gap": lambda n: points(n, 4) + 6.0 * (torch.arange(n) % 2)[:, None],
    "far from the origin": lambda n: points(n, 4) + 1000.0,
}


def earlier(X: Tensor, m: int, seed: int = 3) -> Tensor:
    """Return random earlier rows of every row, and empty places: also between others."""
    draw = generator(seed)
    found = torch.full((len(X), m), -1, dtype=torch.int32)
    for i in range(len(X)):
        chosen = torch.randperm(i, generator=draw)[:m].int()
        found[i, : len(chosen)] = chosen
    found[5::4, 1:2] = -1
    return found


class Problem(NamedTuple):
    pool: Pool
    targets: Tensor
    neighbours: Tensor
    values: Tensor
    noise: Tensor


def problem(kernel: Kernel, table: str = "Gaussian", *, engine: str, t: int = 1, rank: int = 0, m: int = M) -> Problem:
    X = TABLES[table](N)
    noise = 0.05 + 0.2 * torch.rand(N, generator=generator(4), dtype=torch.float64)
    low = 0.1 * points(N, rank, seed=5) if rank else None
    pool = Pool(kernel, X, noise + kernel.white(X), low, engine=engine)
    targets = torch.randperm(N, generator=generator(6))[:29]
    return Problem(pool, targets, earlier(X, m)[targets], points(N, t, seed=7), noise)


class Dense(NamedTuple):
    variance: Tensor
    weights: Tensor
    residual: Tensor
    value: float
    gradient: Tensor
    information: Tensor


def covariance(p: Problem, kernel: Kernel, noise: Tensor) -> Tensor:
    X, low = p.pool.X, p.pool.low
    block = reference_block(kernel, X, X) if not isinstance(kernel, Cauchy) else kernel.block(X, X)
    own = torch.diag(kernel.white(X) + noise)
    return block + own - (0.0 if low is None else low @ low.T)


def slopes(p: Problem) -> Tensor:
    """Return the derivatives of the covariance in all hyperparameters and the noise, shape (p, n, n), by autograd."""
    given = p.pool.kernel.parameters()
    sizes = [value.numel() for value in given.values()]

    def flat(vector: Tensor) -> Tensor:
        parts = vector[:-1].split(sizes)
        values = {k: part.reshape(given[k].shape) for k, part in zip(given, parts, strict=True)}
        return covariance(p, p.pool.kernel.replace(values), p.noise + vector[-1])

    at = torch.cat([*(value.reshape(-1) for value in given.values()), torch.zeros(1)]).double()
    return torch.autograd.functional.jacobian(flat, at).permute(2, 0, 1)


def dense(p: Problem) -> Dense:
    """Return all from the definitions, row by row."""
    H, moved, t = covariance(p, p.pool.kernel, p.noise), slopes(p), p.values.shape[1]
    q, m = p.neighbours.shape
    variance, weights, residual = torch.zeros(q).double(), torch.zeros(q, m).double(), torch.zeros(q, t).double()
    value, gradient = 0.0, torch.zeros(len(moved)).double()
    information = torch.zeros(len(moved), len(moved)).double()
    for k in range(q):
        i, places = p.targets[k], (p.neighbours[k] >= 0).nonzero()[:, 0]
        near = p.neighbours[k, places].long()
        solved = torch.linalg.solve(H[near][:, near], H[near, i])
        weights[k, places] = solved
        variance[k] = H[i, i] - H[i, near] @ solved
        residual[k] = p.values[i] - solved @ p.values[near]
        value += float(-0.5 * (residual[k].square() / variance[k] + (2 * math.pi * variance[k]).log()).sum())
        # the log density is that of the neighbours with the row minus that of the neighbours: quadratic forms
        joint = torch.cat([near, i[None]])
        C, own = H[joint][:, joint], H[near][:, near]
        forms = []
        for dH in moved:
            form = torch.linalg.solve(C, torch.linalg.solve(C, dH[joint][:, joint]).T)
            form[:-1, :-1] -= torch.linalg.solve(own, torch.linalg.solve(own, dH[near][:, near]).T)
            forms.append(form)
        stacked = torch.stack(forms) @ C
        y = p.values[joint]
        quadratic = torch.stack([0.5 * (y * (form @ y)).sum() for form in forms])
        traces = 0.5 * stacked.diagonal(dim1=1, dim2=2).sum(1)
        gradient += quadratic - t * traces
        information += 0.5 * t * torch.einsum("aij,bji->ab", stacked, stacked)  # Cov(y'Ay / 2, y'By / 2)
    return Dense(variance, weights, residual, value, gradient, information)


def flat(gradient: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.reshape(-1) for value in gradient.values()])


def scaled_error(found: Tensor, expected: Tensor, root: Tensor) -> float:
    """Return the largest error of a form in units of the roots of the information's diagonal."""
    return float(((found - expected).abs() / root.clamp_min(1e-12)).max())


def assert_dense(p: Problem, tolerance: float = 1e-8) -> None:
    expected = dense(p)
    found = p.pool.conditionals(p.targets, p.neighbours, p.values)
    assert found.raised == 0
    assert relative_error(found.variance, expected.variance) < tolerance
    assert not found.weights.numel() or relative_error(found.weights, expected.weights) < tolerance
    assert relative_error(found.residual, expected.residual) < tolerance
    assert bool((found.weights[p.neighbours < 0] == 0).all())
    assert found.log_variance == pytest.approx(float(expected.variance.log().sum()), rel=tolerance, abs=tolerance)
    derived = p.pool.derivatives(p.targets, p.neighbours, p.values)
    assert derived.value == pytest.approx(expected.value, rel=tolerance)
    assert list(derived.gradient) == [*p.pool.kernel.parameters(), NOISE]
    root = expected.information.diagonal().sqrt()
    assert scaled_error(flat(derived.gradient), expected.gradient, root) < 100 * tolerance
    assert scaled_error(derived.information, expected.information, root[:, None] * root) < 100 * tolerance
    for name, where in derived.slices.items():
        torch.testing.assert_close(flat(derived.gradient)[where], derived.gradient[name].reshape(-1))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_the_dense_algebra(name, engine):
    assert_dense(problem(KERNELS[name], engine=engine))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("table", TABLES)
def test_tables_of_every_shape(table, engine):
    kernel = (kernels.Matern(1.5, [0.7, 1.3, 2.1, 0.9], 1.7) + kernels.Constant(0.3)).bind(4)
    assert_dense(problem(kernel, table, engine=engine))


@pytest.mark.each
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["matern32", "growing noise", "nested"])
def test_several_targets_with_columns_that_are_subtracted(name, engine):
    assert_dense(problem(KERNELS[name], engine=engine, t=3, rank=4))


@pytest.mark.slow
def test_a_kernel_of_ones_own_goes_to_torch():
    p = problem((Cauchy([0.7, 1.3, 2.1, 0.9], 1.2) + kernels.White(0.1)).bind(4), engine="auto", t=2)
    p = p._replace(pool=replace(p.pool, kernel=Cauchy([0.7, 1.3, 2.1, 0.9], 1.2).bind(4), noise=p.noise))
    assert not p.pool.is_native
    assert_dense(p)


@pytest.mark.skipif(not SETS, reason="no compiled extension")
def test_the_package_goes_to_compiled_code():
    assert problem(KERNELS["nested"], engine="auto").pool.is_native


@pytest.mark.few(2)
@pytest.mark.skipif(not SETS, reason="no compiled extension")
@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("m", [0, 1, 3, 4, 5, 11])
def test_every_instruction_set_and_remainder_of_its_blocks(instruction_set, m):
    p = problem(KERNELS["sum"], engine="native", t=2, rank=1, m=m)
    assert_dense(p._replace(pool=replace(p.pool, instruction_set=instruction_set)))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_as_many_neighbours_as_rows_are_the_exact_likelihood(engine):
    p = problem(KERNELS["sum"], engine=engine, t=2)
    every = torch.arange(N)
    index = torch.where(every[:, None] > every, every, -1).int()
    p = p._replace(targets=every, neighbours=index)
    H, moved = covariance(p, p.pool.kernel, p.noise), slopes(p)
    solved = torch.linalg.solve(H, p.values)
    value = -0.5 * (p.values * solved).sum() - torch.linalg.slogdet(2 * math.pi * H).logabsdet
    found = p.pool.derivatives(every, index, p.values)
    assert found.value == pytest.approx(float(value), rel=1e-11)
    forms = torch.stack([torch.linalg.solve(H, dH) for dH in moved])
    gradient = 0.5 * torch.einsum("nt,anm,mt->a", solved, moved, solved) - forms.diagonal(dim1=1, dim2=2).sum(1)
    assert relative_error(flat(found.gradient), gradient) < 1e-8
    assert relative_error(found.information, torch.einsum("aij,bji->ab", forms, forms)) < 1e-8
    fewer = p.pool.derivatives(every, index[:, :-3], p.values)  # the control
    assert abs(fewer.value - float(value)) > 1e-4


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_are_those_of_differences(engine):
    p = problem(KERNELS["growing noise"], engine=engine, t=2)
    found = p.pool.derivatives(p.targets, p.neighbours, p.values)

    def value(kernel: Kernel, more: float = 0.0) -> float:
        pool = replace(p.pool, kernel=kernel, noise=p.noise + more + kernel.white(p.pool.X))
        return pool.derivatives(p.targets, p.neighbours, p.values).value

    step = 1e-5
    for name, number in p.pool.kernel.parameters().items():
        for place in range(number.numel()):
            move = torch.zeros_like(number).reshape(-1)
            move[place] = step
            above, below = (p.pool.kernel.replace({name: number + s * move.reshape(number.shape)}) for s in (1, -1))
            slope = (value(above) - value(below)) / (2 * step)
            assert float(found.gradient[name].reshape(-1)[place]) == pytest.approx(slope, rel=1e-6, abs=1e-6)
    slope = (value(p.pool.kernel, step) - value(p.pool.kernel, -step)) / (2 * step)
    assert float(found.gradient[NOISE]) == pytest.approx(slope, rel=1e-6)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_information_is_the_covariance_of_gradients(engine):
    """For one row, over draws of the values: within standard errors, which twice the information is not."""
    p = problem(KERNELS["matern52"], engine=engine)
    row = int((p.neighbours >= 0).all(1).nonzero()[0])
    target, near = p.targets[row : row + 1], p.neighbours[row : row + 1]
    root = torch.linalg.cholesky(covariance(p, p.pool.kernel, p.noise))
    draws = root @ points(N, 400, seed=8)
    gradients = torch.stack(
        [flat(p.pool.derivatives(target, near, draws[:, k : k + 1]).gradient) for k in range(draws.shape[1])]
    )
    expected = p.pool.derivatives(target, near, p.values).information
    squares = gradients[:, :, None] * gradients[:, None, :]
    error = squares.std(0) / math.sqrt(len(squares))
    apart = (squares.mean(0) - expected) / error
    assert float(apart.abs().max()) < 4
    assert float((gradients.mean(0) / (gradients.std(0) / math.sqrt(len(gradients)))).abs().max()) < 4
    assert float(((squares.mean(0) - 2 * expected) / error).abs().max()) > 4


# Rows that determine each other ------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("noise", [0.0, 1e-15])
def test_a_neighbour_that_nearer_ones_determine_is_left_out(engine, noise):
    kernel = KERNELS["matern32"]
    X = points(40, 4)
    X[1], X[2] = X[0], X[0]
    pool = Pool(kernel, X, torch.full((40,), noise).double(), engine=engine)
    targets = torch.arange(20, 40)
    twice = torch.tensor([[0, 1, 5, 2, 6]], dtype=torch.int32).expand(20, -1)
    once = torch.tensor([[0, -1, 5, -1, 6]], dtype=torch.int32).expand(20, -1)
    values = points(40, 2, seed=1)
    found, expected = (pool.conditionals(targets, one, values) for one in (twice, once))
    assert found.raised == 0
    assert bool((found.weights[:, [1, 3]] == 0).all())
    for name in ("variance", "weights", "residual"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-12, atol=1e-13)
    slope, plain = (pool.derivatives(targets, one, values) for one in (twice, once))
    torch.testing.assert_close(flat(slope.gradient), flat(plain.gradient), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(slope.information, plain.information, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_row_that_its_neighbours_determine_keeps_a_variance(engine):
    X = points(12, 2)
    X[7] = X[3]
    kernel = kernels.RBF([1.0, 2.0], 2.5).bind(2)
    pool = Pool(kernel, X, torch.zeros(12).double(), engine=engine)
    found = pool.conditionals(torch.tensor([7, 8]), torch.tensor([[3, 4], [3, 4]], dtype=torch.int32))
    assert found.raised == 1
    assert found.residual is None
    assert float(found.variance[0]) == pytest.approx(2.5e-12)
    torch.testing.assert_close(found.weights[0], torch.tensor([1.0, 0.0]).double(), rtol=0, atol=1e-9)
    derived = pool.derivatives(torch.tensor([7, 8]), torch.tensor([[3, 4], [3, 4]], dtype=torch.int32), points(12, 1))
    assert math.isfinite(derived.value)
    assert bool(torch.isfinite(flat(derived.gradient)).all())
    assert bool(torch.isfinite(derived.information).all())


@pytest.mark.parametrize("engine", ENGINES)
def test_far_points_are_independent_of_all(engine):
    X = points(30, 4)
    X[20], X[21], X[22] = 1e100, -1e300, 1e300
    for name in ("rbf", "matern12", "matern32", "matern52", "rational quadratic", "product"):
        kernel = KERNELS[name]
        pool = Pool(kernel, X, torch.full((30,), 0.1, dtype=torch.float64), engine=engine)
        near = torch.arange(5, dtype=torch.int32).expand(3, -1)
        found = pool.conditionals(torch.tensor([20, 21, 22]), near, points(30, 1))
        expected = kernel.diagonal(X[:3]) + 0.1
        torch.testing.assert_close(found.variance, expected, rtol=1e-9, atol=0)
        assert float(found.weights.abs().max()) < 1e-9


# Bits --------------------------------------------------------------------------------------------------------------


def outputs(p: Problem) -> list[Tensor]:
    found, derived = (f(p.targets, p.neighbours, p.values) for f in (p.pool.conditionals, p.pool.derivatives))
    numbers = torch.tensor([found.log_variance, derived.value], dtype=torch.float64)
    return [found.variance, found.weights, found.residual, numbers, flat(derived.gradient), derived.information]


def many_rows(engine: str) -> Problem:
    X = points(700, 4)
    pool = Pool(KERNELS["sum"], X, torch.full((700,), 0.3).double(), engine=engine)
    return Problem(pool, torch.arange(700), earlier(X, 8), points(700, 2, seed=1), pool.noise)


@pytest.mark.parametrize("engine", ENGINES)
def test_threads_change_no_bit_of_compiled_code(engine):
    """Batches of torch leave sums to libraries, whose order may depend on the threads: results agree up to rounding.

    Matrices of nine rows with a variance of two and a noise of 0.3 have a condition below 100.
    """
    p, before = many_rows(engine), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = outputs(p)
        torch.set_num_threads(2)
        two = outputs(p)
    finally:
        torch.set_num_threads(before)
    for a, b in zip(one, two, strict=True):
        if engine == "native":
            assert torch.equal(a, b)
        close(a, b, condition=100)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_row_does_not_depend_on_the_others_of_the_call(engine):
    p = many_rows(engine)
    whole = p.pool.conditionals(p.targets, p.neighbours, p.values)
    for rows in (slice(3, 4), slice(17, 300), slice(5, 5)):
        part = p.pool.conditionals(p.targets[rows], p.neighbours[rows], p.values)
        for name in ("variance", "weights", "residual"):
            found, expected = getattr(part, name), getattr(whole, name)[rows]
            assert found.shape == expected.shape
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_that_nobody_reads_are_not_made(engine):
    p = many_rows(engine)
    whole = p.pool.conditionals(p.targets, p.neighbours, p.values)
    part = p.pool.conditionals(p.targets, p.neighbours, p.values, weights=False)
    assert whole.weights.shape == p.neighbours.shape
    assert part.weights.shape == (len(p.targets), 0)
    assert torch.equal(part.variance, whole.variance)
    assert torch.equal(part.residual, whole.residual)
    assert part.log_variance == whole.log_variance


def test_small_budgets_change_only_rounding():
    p = problem(KERNELS["sum"], engine="torch")
    for one, other in zip(outputs(p), outputs(p._replace(pool=replace(p.pool, budget=30_000))), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_in_float32_are_computed_in_float64(engine):
    p = problem(KERNELS["sum"], engine=engine)
    narrow = p._replace(pool=replace(p.pool, X=p.pool.X.float()), values=p.values.float())
    wide = narrow._replace(pool=replace(narrow.pool, X=narrow.pool.X.double()), values=narrow.values.double())
    for one, other in zip(outputs(narrow), outputs(wide), strict=True):
        assert one.dtype == torch.float64
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_other_neighbours_are_another_answer(engine):
    """The control of all tests above."""
    p = problem(KERNELS["matern32"], engine=engine)
    expected = dense(p)
    wrong = p.pool.conditionals(p.targets, p.neighbours.flip(1), p.values)
    assert relative_error(wrong.variance, expected.variance) < 1e-10  # the order decides only about which is which
    assert relative_error(wrong.weights, expected.weights) > 0.1
    shifted = torch.where(p.neighbours >= 0, (p.neighbours + 1) % N, -1).int()
    assert relative_error(p.pool.conditionals(p.targets, shifted).variance, expected.variance) > 0.01


@pytest.mark.skipif(not SETS, reason="no compiled extension")
def test_what_does_not_fit_is_refused():
    p = problem(KERNELS["rbf"], engine="native")
    with pytest.raises(ValueError, match="a neighbour beyond the pool"):
        p.pool.conditionals(p.targets, p.neighbours + N)
    with pytest.raises(ValueError, match="a row beyond the pool"):
        p.pool.conditionals(p.targets + N, p.neighbours)
    with pytest.raises(ValueError, match="neighbours do not fit"):
        p.pool.conditionals(p.targets, p.neighbours[:3])
    with pytest.raises(ValueError, match="values does not fit"):
        p.pool.conditionals(p.targets, p.neighbours, p.values[:3])
    with pytest.raises(ValueError, match="no instruction set abacus"):
        replace(p.pool, instruction_set="abacus").conditionals(p.targets, p.neighbours)
