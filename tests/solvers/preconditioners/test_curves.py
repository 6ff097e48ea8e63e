"""The preconditioner of whole curves against dense float64 algebra, for gaps of every kind."""

from __future__ import annotations

import pytest
import torch

from gigagp import solvers
from gigagp.errors import InvalidInputError
from gigagp.kernels import Group, Matern
from gigagp.operators import KernelMatrix
from gigagp.solvers.preconditioners import automatic, complete_panel
from gigagp.solvers.preconditioners.base import Parts
from gigagp.solvers.preconditioners.curves import suits_curves
from helpers import close, generator
from panels import ENTITIES, GAPS, KERNELS, TIME, cells


def vectors(n: int) -> torch.Tensor:
    return torch.randn(n, 3, generator=generator(1), dtype=torch.float64)


@pytest.mark.few(4)
@pytest.mark.parametrize("gaps", GAPS)
@pytest.mark.parametrize("name", ["product", "own and shared", "alone", "two products"])
def test_given_all_other_curves_it_is_the_inverse(name, gaps):
    X = cells(gaps)
    noise = 0.05 + 0.2 * torch.rand(len(X), generator=generator(2), dtype=torch.float64)
    H = KernelMatrix(KERNELS[name].bind(3), X, noise)
    dense, V = H.to_dense(), vectors(len(X))
    condition = float(torch.linalg.cond(dense))
    P = solvers.Curves(n_neighbors=ENTITIES).build(H, generator(0))
    close(P.apply(V), torch.linalg.solve(dense, V), condition=condition)
    close(P.log_determinant(), torch.logdet(dense), condition=condition)
    root = P.transform_normal(torch.eye(P.n, dtype=torch.float64))
    close(root @ root.T, dense, condition=condition)


@pytest.mark.few(2)
@pytest.mark.parametrize("gaps", ["at random", "cut short", "repeated"])
@pytest.mark.parametrize("name", ["product", "own and shared"])
def test_given_few_curves_it_is_a_covariance_that_saves_iterations(name, gaps):
    H = KernelMatrix(KERNELS[name].bind(3), cells(gaps), 0.01)
    P, V = solvers.Curves(n_neighbors=4).build(H, generator(0)), vectors(H.n)
    inverse = P.apply(torch.eye(H.n, dtype=torch.float64))
    close(inverse, inverse.T, condition=1e3)
    root = P.transform_normal(torch.eye(P.n, dtype=torch.float64))
    close(root @ root.T @ inverse, torch.eye(H.n), condition=1e6)
    close(P.log_determinant(), -torch.logdet(inverse), condition=1e6)
    found, plain = (solvers.ConjugateGradients(tolerance=1e-6, preconditioner=one).solve(H, V) for one in (P, None))
    close(found.value, torch.linalg.solve(H.to_dense(), V), condition=1e10)  # the tolerance over the rounding
    assert found.iterations < plain.iterations / 3


def test_a_panel_with_many_gaps_takes_it_by_default(monkeypatch: pytest.MonkeyPatch):
    H = KernelMatrix(KERNELS["product"].bind(3), cells("cut short"), 0.1)
    assert isinstance(automatic.automatic(H, Parts()), solvers.CompletePanel)
    monkeypatch.setattr(complete_panel, "_MOST_GAPS", 10)
    assert isinstance(automatic.automatic(H, Parts()), solvers.Curves)
    without_places = KernelMatrix((Group(0) * Matern(columns=TIME)).bind(3), cells("cut short"), 0.1)
    assert not isinstance(automatic.automatic(without_places, Parts()), solvers.Curves)


def test_it_is_taken_where_a_build_has_the_memory():
    X = cells("cut short")
    answers = set()
    for kilobytes in range(100, 1300, 100):
        H = KernelMatrix(KERNELS["product"].bind(3), X, 0.1, memory_budget=kilobytes * 1000)
        answers.add(suits := suits_curves(H, kilobytes * 1000))
        if suits:
            solvers.Curves().build(H, generator(0))
    assert answers == {True, False}


def test_other_rows_are_refused():
    X = torch.randn(600, 3, generator=generator(3), dtype=torch.float64)
    with pytest.raises(InvalidInputError, match="Curves is a preconditioner of the rows of a panel"):
        solvers.Curves().build(KernelMatrix(KERNELS["product"].bind(3), X, 0.1), generator(0))
