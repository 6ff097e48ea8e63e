"""A basis with chosen functions first: the same functions in other places."""

from __future__ import annotations

import pytest
import torch

from gigagp import GPRegressor, load
from gigagp.errors import InvalidInputError
from gigagp.inference import QuadruplyStochastic, RelevanceVectorMachine
from gigagp.inference.quadruply_stochastic.bases import FourierBasis, InducingBasis, ReorderedBasis
from gigagp.inference.quadruply_stochastic.bases.reordered import most_informed
from gigagp.kernels import RBF
from gigagp.optimization import SparseAdam
from helpers import draw_targets, generator, points
from weight_bounds import best_chevron, bound_terms, exact_weights

X = points(40, 2)
KERNEL = RBF([0.8, 1.4], 1.3).bind(2)
BASES = {"fourier": FourierBasis(KERNEL, 20, seed=3), "inducing": InducingBasis(KERNEL, points(20, 2, seed=4))}


@pytest.mark.parametrize("kind", BASES)
@pytest.mark.parametrize("head", [[], [0, 1, 2], [7], [19, 1, 0, 12], [2, 1, 0]])
def test_the_functions_are_the_same_in_other_places(kind, head):
    below = BASES[kind]
    basis, index = ReorderedBasis(below, torch.tensor(head, dtype=torch.int64)), torch.arange(20)
    order = basis.original(index)
    assert order[: len(head)].tolist() == head
    assert order.sort().values.tolist() == list(range(20))
    untouched = [one for one in range(len(head), 20) if one not in head]
    assert order[untouched].tolist() == untouched
    some = torch.tensor([3, 19, 0, 3])
    torch.testing.assert_close(basis.columns(X, some), below.columns(X, order[some]))
    torch.testing.assert_close(basis.prior_block(some, index), below.prior_block(order[some], order))
    torch.testing.assert_close(basis.prior_diagonal(some), below.prior_diagonal(order[some]))
    assert basis.has_diagonal_prior == below.has_diagonal_prior
    moved = basis.with_kernel(RBF([0.4, 1.4], 1.3).bind(2))
    torch.testing.assert_close(moved.columns(X, index), below.with_kernel(moved.kernel).columns(X, order))


def test_the_most_informed_come_first_and_make_a_better_chevron():
    below, index = BASES["fourier"], torch.arange(20)
    Phi = below.columns(X, index)
    chosen = most_informed(below, X, 5, generator(0))
    assert chosen.tolist() == Phi.square().sum(0).argsort(descending=True)[:5].tolist()
    S, y = torch.eye(20).double(), draw_targets(KERNEL, X, 0.1)[:, 0]
    bounds = {}
    for name, head in {"chosen": chosen, "least": Phi.square().sum(0).argsort()[:5]}.items():
        features = ReorderedBasis(below, head).columns(X, index)
        mean, _ = exact_weights(features, S, y, 0.1)
        bounds[name] = bound_terms(features, S, y, 0.1, mean, best_chevron(features, S, 0.1, 5)).bound
    assert bounds["chosen"] > bounds["least"]


def test_a_fit_with_ordered_columns_comes_back_from_a_file(tmp_path):
    x, y = X.numpy(), draw_targets(KERNEL, X, 0.1)[:, 0].numpy()
    settings = QuadruplyStochastic(n_basis=20, n_columns=4, order="information", basis_batch=10, row_batch=20)
    gp = GPRegressor(RBF([0.8, 1.4], 1.3), settings, SparseAdam(steps=30), noise_variance=0.1).fit(x, y)
    assert gp.posterior_.basis.kind == "reordered"
    gp.save(tmp_path / "r.gp")
    again = load(tmp_path / "r.gp")
    for one, other in zip(gp.predict(x, return_std=True), again.predict(x, return_std=True), strict=True):
        assert (one == other).all()


def test_bad_input():
    for head in ([1, 1], [-1], [20]):
        with pytest.raises(InvalidInputError, match="head of ReorderedBasis must be different indices from 0 to 19"):
            ReorderedBasis(BASES["fourier"], torch.tensor(head))
    with pytest.raises(InvalidInputError, match='order of RelevanceVectorMachine must be "given"'):
        RelevanceVectorMachine(order="information")
