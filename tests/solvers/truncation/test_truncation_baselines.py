"""sgGP and the product of experts, which only benchmarks use."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from truncation_baselines import Minibatches, combinations, generalized_product, split_rows

from gigagp import kernels
from gigagp.inference.contract.objective import ExactObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model


def table(rows: int) -> TrainingTable:
    """Return clumped rows with a badly scaled input; no two are the same, so that nearest rows are not ambiguous."""
    random = np.random.default_rng(0)
    X = random.normal(size=(rows, 3)) * [1.0, 1e-3, 1.0] + 4 * random.integers(0, 2, (rows, 1))
    Y = np.sin(X[:, :1]) + 0.1 * random.normal(size=(rows, 1))
    return TrainingTable(torch.from_numpy(X), torch.from_numpy(Y), ZeroMean(), 2**30)


def model() -> Model:
    return Model(kernels.RBF([0.8, 2e-3, 1.5], 1.3).bind(3), ZeroMean(), torch.tensor(0.05, dtype=torch.float64))


def gradient(rows: TrainingTable, **settings: int) -> dict[str, torch.Tensor]:
    return Minibatches(**settings).objective(rows, torch.Generator().manual_seed(0)).evaluate(model()).gradient


def test_a_minibatch_of_all_rows_has_the_exact_gradient():
    rows = table(30)
    exact = ExactObjective(rows).evaluate(model()).gradient
    found, small = gradient(rows, size=30), gradient(rows, size=5)
    for name, value in exact.items():
        torch.testing.assert_close(found[name].reshape(value.shape), value, rtol=1e-7, atol=1e-7)
    assert not torch.allclose(small["noise_variance"], exact["noise_variance"], rtol=0.05)


def test_the_gradient_is_the_mean_over_rows_and_their_nearest_rows():
    rows = table(40)
    found = gradient(rows, size=6)
    total = {name: torch.zeros_like(value) for name, value in found.items()}
    for centre in range(40):
        nearest = (rows.X - rows.X[centre]).square().sum(1).argsort(stable=True)[:6]
        for name, value in ExactObjective(rows.take_rows(nearest)).evaluate(model()).gradient.items():
            total[name] += value.reshape(total[name].shape) / 6
    for name, value in total.items():
        torch.testing.assert_close(found[name], value, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("rows", "size"), [(10, 5), (11, 5), (3, 5), (1, 1)])
def test_parts_cover_the_rows_and_have_one_size(rows, size):
    parts = split_rows(rows, size, 0)
    assert {len(part) for part in parts} == {min(rows, size)}
    assert sorted(np.unique(np.concatenate(parts))) == list(range(rows))
    assert len(np.unique(np.concatenate(parts[:-1] or parts))) == sum(map(len, parts[:-1] or parts))


def test_a_product_of_the_same_experts_is_one_of_them():
    mean, variance = np.array([1.0, -2.0]), np.array([0.5, 3.0])
    for found in (
        generalized_product(np.stack([mean] * 4), np.stack([variance] * 4)),
        combinations(np.stack([mean] * 4), np.stack([variance] * 4), 9.0, 0.0)["gPoE, weights by entropy"],
    ):
        np.testing.assert_allclose(found, [mean, variance])


def test_a_sure_expert_prevails_and_ignorant_ones_return_the_prior():
    mean, variance = generalized_product(np.array([[1.0], [5.0]]), np.array([[1e-9], [1.0]]))
    np.testing.assert_allclose([mean, variance], [[1.0], [2e-9]], rtol=1e-6)
    ignorant = combinations(np.zeros((3, 1)), np.full((3, 1), 2.0), 2.0, 0.1)
    for _, found in ignorant.values():
        np.testing.assert_allclose(found, 2.1)
