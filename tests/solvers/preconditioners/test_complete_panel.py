"""The preconditioner of complete panels against dense float64 algebra, for gaps of every kind."""

from __future__ import annotations

import pytest
import torch

from gigagp import solvers
from gigagp.errors import InvalidInputError
from gigagp.operators import KernelMatrix
from gigagp.solvers.preconditioners.automatic import automatic
from gigagp.solvers.preconditioners.base import Parts
from gigagp.solvers.preconditioners.complete_panel import CompletePanelFactor
from helpers import close, generator, relative_error
from panels import ENTITIES, GAPS, KERNELS, TIMES, cells


def built(H: KernelMatrix, **settings: int) -> CompletePanelFactor:
    return solvers.CompletePanel(**settings).build(H, generator(0))


def vectors(n: int) -> torch.Tensor:
    return torch.randn(n, 3, generator=generator(1), dtype=torch.float64)


@pytest.mark.few(5)
@pytest.mark.parametrize("gaps", [gaps for gaps in GAPS if gaps != "repeated"])
@pytest.mark.parametrize("name", ["product", "own and shared", "alone"])
def test_few_gaps_are_solved_for_exactly(gaps, name):
    X = cells(gaps)
    H = KernelMatrix(KERNELS[name].bind(3), X, 0.01)
    dense, V = H.to_dense(), vectors(len(X))
    condition = float(torch.linalg.cond(dense))
    P = built(H)
    close(P.apply(V), torch.linalg.solve(dense, V), condition=condition)
    close(P.log_determinant(), torch.logdet(dense), condition=condition)
    # samples are a linear map of standard normal numbers, whose square is their covariance
    root = P.transform_normal(torch.eye(P.n + P.rank, dtype=torch.float64))
    close(root @ root.T, dense, condition=1e3)
    solved = solvers.ConjugateGradients(tolerance=1e-8, preconditioner=P).solve(H, V)
    assert solved.iterations <= 2
    if gaps not in ("complete", "whole rows and columns"):  # the latter have no cell left over
        ignored = built(H, most_gaps=0)
        assert relative_error(ignored.apply(V), torch.linalg.solve(dense, V)) > 1e-3


def test_noise_of_entities_times_that_of_times_is_exact():
    X = cells("at random")
    place = {tuple(row): i for i, row in enumerate(X[:, :2].unique(dim=0).tolist())}
    of_entities = 0.01 * (1 + torch.tensor([place[tuple(row)] for row in X[:, :2].tolist()]) % 5)
    noise = of_entities.double() * (1 + X[:, 2])
    H = KernelMatrix(KERNELS["product"].bind(3), X, noise)
    dense, V = H.to_dense(), vectors(len(X))
    P = built(H)
    close(P.apply(V), torch.linalg.solve(dense, V), condition=float(torch.linalg.cond(dense)))
    close(P.log_determinant(), torch.logdet(dense), condition=1e6)
    even = built(KernelMatrix(KERNELS["product"].bind(3), X, float(noise.mean())))
    assert relative_error(even.apply(V), torch.linalg.solve(dense, V)) > 0.05


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "gaps", "most_gaps"),
    [
        ("own and shared", "at random", 6000),
        ("own and shared", "cut short", 0),
        ("sums of factors", "repeated", 0),
        ("product", "repeated", 6000),
    ],
)
def test_sums_unequal_noise_repeated_cells_and_many_gaps_are_approximated(name, gaps, most_gaps):
    X = cells(gaps)
    noise = 0.05 + 0.2 * torch.rand(len(X), generator=generator(2), dtype=torch.float64)
    H = KernelMatrix(KERNELS[name].bind(3), X, noise)
    V, P = vectors(len(X)), built(H, most_gaps=most_gaps)
    inverse = P.apply(torch.eye(len(X), dtype=torch.float64))
    close(inverse, inverse.T, condition=1e3)
    assert float(torch.linalg.eigvalsh(0.5 * (inverse + inverse.T))[0]) > 0
    if P.has_determinant:
        close(P.log_determinant(), -torch.logdet(inverse), condition=1e6)
        root = P.transform_normal(torch.eye(P.n + P.rank, dtype=torch.float64))
        close(root @ root.T @ inverse, torch.eye(len(X)), condition=1e6)
    found = solvers.ConjugateGradients(tolerance=1e-9, preconditioner=P, max_epochs=400).solve(H, V)
    plain = solvers.ConjugateGradients(tolerance=1e-9, preconditioner=None, max_epochs=400).solve(H, V)
    close(found.value, torch.linalg.solve(H.to_dense(), V), condition=1e8)
    assert found.iterations < 0.7 * plain.iterations


def test_other_rows_are_refused():
    X = torch.randn(600, 3, generator=generator(3), dtype=torch.float64)
    with pytest.raises(InvalidInputError, match="CompletePanel is a preconditioner of the rows of a panel"):
        built(KernelMatrix(KERNELS["product"].bind(3), X, 0.1))


def test_a_panel_takes_it_by_default():
    H = KernelMatrix(KERNELS["product"].bind(3), cells("at random"), 0.1)
    found = solvers.ConjugateGradients(tolerance=1e-6).solve(H, vectors(H.n))
    assert f"{ENTITIES} by {TIMES} cells" in found.detail["preconditioner"]


def test_auto_takes_it_for_sums_where_gaps_are_few():
    """Eigenvectors of weighted sums of the factors are no common ones, and still save most iterations."""
    matrix = KernelMatrix(KERNELS["two products"].bind(3), cells("at random"), 0.01)
    assert isinstance(automatic(matrix, Parts()), solvers.CompletePanel)
    B = torch.randn(matrix.n, 4, generator=generator(1), dtype=torch.float64)
    found = [
        solvers.ConjugateGradients(tolerance=1e-6, preconditioner=one).solve(matrix, B)
        for one in (solvers.CompletePanel(), None)
    ]
    assert float(((matrix @ found[0].value - B).norm(dim=0) / B.norm(dim=0)).max()) < 2e-6
    assert found[0].iterations < found[1].iterations / 3
