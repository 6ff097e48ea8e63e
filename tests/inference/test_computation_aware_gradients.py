"""Gradients of both losses by hyperparameters and actions: golden values, differences, invariances, block forms."""

from __future__ import annotations

import pytest
import torch

from gigagp.inference.computation_aware.actions import BlockActions, DenseActions, RowActions, balanced_bounds
from gigagp.kernels import RBF, Linear, Matern, RationalQuadratic, White
from gigagp.model.means import ConstantMean, ZeroMean
from gigagp.model.model import NOISE
from helpers import generator, points
from twelve_rows import NOISE as GOLDEN_NOISE
from twelve_rows import ROWS, TARGETS, blocks, evidence_of

F64 = {"dtype": torch.float64}
LOSSES = ["elbo", "projected"]


def loss_gradient(actions, *arguments, by_actions=True, **options):
    found = evidence_of(actions, *arguments, **options)
    return {name: -value for name, value in found.gradient(by_actions=by_actions).items()}


def value(actions, *arguments, **options):
    return -evidence_of(actions, *arguments, **options).terms().value(options.get("loss", "elbo"))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [("elbo", [8.4136716, -11.7396165, -15.3439592]), ("projected", [0.9012070, -0.1368593, 0.0607647])],
)
def test_golden_hyperparameters(loss, expected):
    found = loss_gradient(blocks(), loss=loss)
    by_logs = [found["variance"], found["lengthscale"][0] * 0.3, found[NOISE] * GOLDEN_NOISE]
    torch.testing.assert_close(torch.stack(by_logs), torch.tensor(expected, **F64), rtol=0, atol=6e-8)  # as printed


def test_golden_actions():
    expected = [
        *(0.977739412358, 0.525060593714, 0.049299778615, -1.552099784688),
        *(-1.281957291436, -0.941591925858, 0.19608696705, 0.6442200605),
        *(0.030671743202, 0.184896614581, -0.172451616905, -0.332473582743),
    ]
    found = loss_gradient(blocks())["actions"]
    torch.testing.assert_close(found, torch.tensor(expected, **F64), rtol=1e-10, atol=1e-11)


CASES = {
    "ARD, two targets": (Matern(1.5, [0.8, 1.7], 1.4), torch.tensor(0.07, **F64), ZeroMean(), 2),
    "trend": (RBF(1.1, 0.7), torch.tensor(0.2, **F64), ConstantMean(), 1),
    "sum with white noise": (
        RationalQuadratic(1.2, 0.9, 0.8) + Linear(0.5) + White(0.1) * Linear(0.3) + White(0.05),
        torch.tensor(0.1, **F64),
        ConstantMean(),
        1,
    ),
    "noise of each row": (Matern(2.5, 1.3), torch.rand(17, generator=generator(5), **F64) + 0.05, ZeroMean(), 1),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", CASES)
def test_differences(name, loss):
    """Central differences of the value, by every hyperparameter and every entry; blocks of unequal size."""
    kernel, noise, mean, targets = CASES[name]
    kernel = kernel.bind(2)
    n, count = 17, 5
    X, Y = points(n, 2, seed=1), points(n, targets, seed=2) + 1
    values = torch.randn(n, generator=generator(3), **F64)
    bounds = balanced_bounds(n, count)
    options = {"mean": mean, "loss": loss}
    found = loss_gradient(BlockActions(values, bounds), X, Y, kernel=kernel, noise=noise, **options)
    step = 1e-5

    def at(kernel=kernel, noise=noise, values=values):
        return value(BlockActions(values, bounds), X, Y, kernel=kernel, noise=noise, **options)

    for parameter, number in kernel.parameters().items():
        for k in range(number.numel()):
            shift = torch.zeros_like(number).reshape(-1)
            shift[k] = step
            moved = [kernel.replace({parameter: number + sign * shift.reshape(number.shape)}) for sign in (1, -1)]
            difference = (at(kernel=moved[0]) - at(kernel=moved[1])) / (2 * step)
            assert float(found[parameter].reshape(-1)[k]) == pytest.approx(difference, rel=1e-6, abs=1e-6)
    difference = (at(noise=noise + step) - at(noise=noise - step)) / (2 * step)
    assert float(found[NOISE]) == pytest.approx(difference, rel=1e-6, abs=1e-6)
    for k in range(n):
        shift = torch.zeros(n, **F64)
        shift[k] = step
        difference = (at(values=values + shift) - at(values=values - shift)) / (2 * step)
        assert float(found["actions"][k]) == pytest.approx(difference, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_differences_for_dense_and_row_actions(loss):
    X, Y = points(10, 2, seed=1), points(10, 1, seed=2)
    kernel = Matern(1.5, [0.7, 1.1]).bind(2)
    S = torch.randn(10, 3, generator=generator(4), **F64)
    found = loss_gradient(DenseActions(S), X, Y, kernel=kernel, loss=loss)
    for k in range(30):
        shift = torch.zeros(30, **F64)
        shift[k] = 1e-5
        ends = (DenseActions(S + sign * shift.reshape(10, 3)) for sign in (1, -1))
        up, down = (value(actions, X, Y, kernel=kernel, loss=loss) for actions in ends)
        assert float(found["actions"].reshape(-1)[k]) == pytest.approx((up - down) / 2e-5, rel=1e-6, abs=1e-6)
    rows = RowActions(torch.tensor([7, 2, 4]), 10)
    sparse = loss_gradient(rows, X, Y, kernel=kernel, loss=loss, by_actions=False)
    dense = loss_gradient(DenseActions(rows.dense()), X, Y, kernel=kernel, loss=loss, by_actions=False)
    assert sparse.keys() == dense.keys()
    for name in sparse:
        torch.testing.assert_close(sparse[name], dense[name], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("loss", LOSSES)
def test_directions_that_change_nothing_have_no_slope(loss):
    """Losses depend only on the span: ``S' grad = 0`` for dense actions; each block is orthogonal to its gradient."""
    by_entries = loss_gradient(blocks(), loss=loss)["actions"]
    assert float(blocks().project(by_entries[:, None]).abs().max()) < 1e-10
    S = torch.randn(12, 4, generator=generator(6), **F64)
    dense = loss_gradient(DenseActions(S), loss=loss)["actions"]
    assert float((S.T @ dense).abs().max()) < 1e-9
    assert float(dense.abs().max()) > 1e-3


@pytest.mark.pairs
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("n", "count"), [(53, 7), (40, 40), (31, 1), (64, 16)])
def test_blocks_are_dense_actions_with_zeros(n, count, dtype, loss):
    X, Y = points(n, 3, seed=1, dtype=dtype), points(n, 2, seed=2, dtype=dtype)
    kernel = Matern(1.5, [0.9, 1.4, 2.0]).bind(3)
    sparse = BlockActions(torch.randn(n, generator=generator(3), **F64).to(dtype), balanced_bounds(n, count))
    dense = DenseActions(sparse.dense())
    options = {"kernel": kernel, "mean": ConstantMean(), "loss": loss}
    tight = dtype == torch.float64
    assert value(sparse, X, Y, **options) == pytest.approx(value(dense, X, Y, **options), rel=1e-10 if tight else 1e-4)
    left, right = loss_gradient(sparse, X, Y, **options), loss_gradient(dense, X, Y, **options)
    right["actions"] = (right["actions"] * (sparse.dense() != 0)).sum(1)
    for name in left:
        # blocks of one row have no slope; the remainder is rounding, compared with numbers of order one
        error = (left[name] - right[name]).abs().max() / right[name].abs().max().clamp_min(1.0)
        assert float(error) < (1e-10 if tight else 1e-3), name


def test_several_groups_of_blocks_agree_with_one(monkeypatch):
    """Large tables multiply their blocks in groups."""
    X, Y = points(60, 2, seed=1), points(60, 1, seed=2)
    actions = BlockActions(torch.randn(60, generator=generator(3), **F64), balanced_bounds(60, 13))
    together = loss_gradient(actions, X, Y, kernel=Matern(1.5, 0.9).bind(2))
    monkeypatch.setattr("gigagp.inference.computation_aware.actions.block._GROUP_BLOCKS", 3)
    monkeypatch.setattr("gigagp.inference.computation_aware.actions.base._BLOCK_ENTRIES", 40)
    again = BlockActions(actions.values, actions.bounds)
    apart = loss_gradient(again, X, Y, kernel=Matern(1.5, 0.9).bind(2))
    assert len(again._groups) > 3
    for name in together:
        torch.testing.assert_close(apart[name], together[name], rtol=1e-9, atol=1e-10)


def test_known_products_are_used():
    """Iterative policies provide ``H S``, and the results are the same for any kernel."""
    actions = DenseActions(blocks().dense())
    matrix = evidence_of(actions).matrix
    known = loss_gradient(actions, ROWS, TARGETS[:, None], product=matrix @ actions.dense())
    plain = loss_gradient(actions)
    for name in plain:
        torch.testing.assert_close(known[name], plain[name], rtol=1e-10, atol=1e-11)
