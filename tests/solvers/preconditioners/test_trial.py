"""Trial solves: what they estimate, which recipe they choose, and small budgets."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from gigagp.errors import InvalidInputError
from gigagp.kernels import RBF, Matern
from gigagp.operators import KernelMatrix
from gigagp.products import NativeTiles
from gigagp.solvers import ConjugateGradients
from gigagp.solvers.preconditioners import TwoLevel, Vecchia
from gigagp.solvers.preconditioners import automatic as automatic_module
from gigagp.solvers.preconditioners.automatic import TRIAL_ROWS, Candidate, automatic, cheapest
from gigagp.solvers.preconditioners.base import Parts, PreconditionerRecipe
from gigagp.solvers.preconditioners.low_rank import RandomlyPivotedCholesky
from helpers import generator, points

compiled = pytest.mark.skipif(not NativeTiles.available(), reason="conditionals are not compiled")


def matrix(n=TRIAL_ROWS, d=6, noise=0.01, kernel=None, **changes):
    kernel = (kernel or Matern(1.5, 1.0, 1.0)).bind(d)
    return KernelMatrix(kernel, points(n, d), noise, **changes)


@dataclass(frozen=True)
class Useless(PreconditionerRecipe):
    """A recipe whose preconditioner is a poor one, for controls."""

    def build(self, matrix, generator, known=None, *, bound=False):
        return RandomlyPivotedCholesky(1).build(matrix, generator, known, bound=bound)


@compiled
def test_the_estimate_is_the_iterations_of_conjugate_gradients():
    H = matrix(noise=0.1)
    recipe = TwoLevel(100, 100)
    b = H @ points(H.n, 4)
    found = Candidate(recipe, recipe, setup=3.0, application=0.5).cost(H, H.n, b)
    solver = ConjugateGradients(tolerance=0.01, preconditioner=recipe, nats=None)
    iterations = solver.solve(H, b, generator=generator()).iterations
    assert abs(found - (3.0 + 1.5 * iterations)) <= 1.5
    grown = Candidate(recipe, recipe, 3.0, 0.5, growth=1 / 3).cost(H, 8 * H.n, b)
    assert grown - 3.0 == pytest.approx(2 * (found - 3.0))


@compiled
def test_the_cheapest_recipe_is_chosen_and_one_that_does_not_end_never_is():
    H = matrix(noise=1e-6, kernel=RBF(1.0))
    good, bad = Vecchia(n_neighbors=80), Useless()
    offered = [Candidate(good, good, setup=50.0, application=1.0), Candidate(bad, bad, setup=0.0, application=0.0)]
    assert cheapest(H, offered)[0] is good
    free = [replace(offered[0], setup=0.0), replace(offered[0], recipe=TwoLevel(), setup=1.0)]
    assert cheapest(H, free)[0] is good


@pytest.mark.few(1)
@compiled
@pytest.mark.parametrize("budget", [2**20, 2**23, 2**26, None])
def test_a_trial_fits_into_any_budget(budget):
    H = matrix(5100, memory_budget=budget, storage="tiles")
    recipe = automatic(H, Parts())
    assert isinstance(recipe, (TwoLevel, Vecchia))


@compiled
def test_a_preconditioner_of_the_same_matrix_is_used_as_it_is():
    H = matrix(400, d=2)
    b = points(400, 2, seed=1)
    solver = ConjugateGradients(tolerance=1e-6, preconditioner=TwoLevel(30, 30))
    state = solver.prepare(H)
    assert state.preconditioner is None  # until a solve needs it
    first = solver.solve(state, b, generator=generator())
    assert first.setup_epochs > 0
    built = state.preconditioner
    assert built is not None
    twin = matrix(400, d=2)  # another object with the same numbers
    for later in (state, solver.prepare(twin, state), solver.prepare(twin, state.without_matrix())):
        again = solver.solve(later, b, generator=generator())
        assert again.setup_epochs == 0
        assert later.preconditioner is built
        assert not later.is_kept
        assert torch.equal(again.value, first.value)
    assert solver.prepare(H).build(generator()) is not built  # the control
    with pytest.raises(InvalidInputError, match="without its matrix"):
        solver.solve(state.without_matrix(), b)


@compiled
def test_only_the_automatic_choice_is_kept_for_other_hyperparameters_and_bounds_nothing():
    H, b = matrix(1200, d=2, noise=0.3), points(1200, 2, seed=1)
    solver = ConjugateGradients(tolerance=1e-6, nats=(1e-9, 1e-9))
    state = solver.prepare(H)
    built = state.build(generator())
    for noise, kept in ((0.3 * 1.4, True), (0.3 * 1.6, False)):
        near = matrix(1200, d=2, noise=noise)
        later = solver.prepare(near, state)
        solution = solver.solve(later, b, generator=generator())
        assert later.is_kept == kept == (later.preconditioner is built)
        assert ("kept from other" in solution.detail["preconditioner"]) == kept
        residual = b - near.to_dense() @ solution.value
        true = 0.5 * (residual * torch.linalg.solve(near.to_dense(), residual)).sum(0)
        assert (solution.nats >= true * (1 - 1e-6) - 1e-12).all()
    smoother = KernelMatrix(Matern(2.5, 1.0, 1.0), H.X, 0.3)
    elsewhere = KernelMatrix(H.kernel, points(1200, 2, seed=5), 0.3)
    narrow = KernelMatrix(H.kernel, H.X.float(), 0.3)
    for one in (smoother, elsewhere, narrow, matrix(400, d=2, noise=0.3)):
        assert solver.prepare(one, state).preconditioner is None


@compiled
def test_a_similar_matrix_gets_a_preconditioner_of_its_own():
    solver = ConjugateGradients(tolerance=1e-6, preconditioner=TwoLevel(30, 30))
    b = points(400, 2, seed=1)
    first = solver.prepare(matrix(400, d=2))
    solver.solve(first, b, generator=generator())
    second = solver.prepare(matrix(400, d=2, noise=0.4), first)
    assert torch.equal(second.pivots, first.pivots)
    other = solver.solve(second, b, generator=generator())
    assert other.setup_epochs > 0
    assert second.preconditioner is not first.preconditioner


@pytest.mark.slow
@pytest.mark.few(1)
@compiled
@pytest.mark.parametrize("lengthscale", [0.5, 20.0])
def test_a_choice_is_kept_while_hyperparameters_hardly_move(monkeypatch, lengthscale):
    """Also through solves, whose states carry it."""
    trials = []

    def counted(matrix, candidates):
        trials.append(matrix)
        return cheapest(matrix, candidates)

    monkeypatch.setattr(automatic_module, "cheapest", counted)
    solver = ConjugateGradients(tolerance=0.1)
    state = None
    for factor, noise, expected in ((1.0, 0.3, 1), (1.5, 0.3, 1), (1.5, 0.5, 1), (1.5, 1.0, 2), (5.0, 1.0, 3)):
        H = matrix(5100, noise=noise, kernel=Matern(1.5, factor * lengthscale, 1.0), storage="tiles")
        state = solver.prepare(H, state)
        solver.solve(state, points(5100, 1), generator=generator())
        assert len(trials) == expected, (factor, noise)
    solver.solve(H, points(5100, 1), generator=generator())
    assert len(trials) == 4  # nothing to reuse
