"""Trial solves: what they estimate, which recipe they choose, and small budgets."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from gigagp.kernels import RBF, Matern
from gigagp.operators import KernelMatrix
from gigagp.products import NativeTiles
from gigagp.solvers import ConjugateGradients
from gigagp.solvers.preconditioners import TwoLevel, Vecchia
from gigagp.solvers.preconditioners import automatic as automatic_module
from gigagp.solvers.preconditioners.automatic import TRIAL_ROWS, Candidate, automatic, build, cheapest
from gigagp.solvers.preconditioners.base import PreconditionerRecipe, Reuse
from gigagp.solvers.preconditioners.low_rank import RandomlyPivotedCholesky
from helpers import generator, points

compiled = pytest.mark.skipif(not NativeTiles.available(), reason="conditionals are not compiled")


def matrix(n=TRIAL_ROWS, d=6, noise=0.01, kernel=None, **changes):
    kernel = (kernel or Matern(1.5, 1.0, 1.0)).bind(d)
    return KernelMatrix(kernel, points(n, d), noise, **changes)


@dataclass(frozen=True)
class Useless(PreconditionerRecipe):
    """A recipe whose preconditioner is a poor one, for controls."""

    def build(self, matrix, generator, reuse=None, *, bound=False):
        return RandomlyPivotedCholesky(1).build(matrix, generator, reuse, bound=bound)


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


@compiled
@pytest.mark.parametrize("budget", [2**20, 2**23, 2**26, None])
def test_a_trial_fits_into_any_budget(budget):
    H = matrix(5100, memory_budget=budget, storage="tiles")
    recipe, _ = automatic(H)
    assert isinstance(recipe, (TwoLevel, Vecchia))


@compiled
def test_a_preconditioner_of_the_same_matrix_is_used_as_it_is():
    H = matrix(400, d=2)
    b = points(400, 2, seed=1)
    solver = ConjugateGradients(tolerance=1e-6, preconditioner=TwoLevel(30, 30))
    first = solver.solve(H, b, generator=generator())
    assert first.setup_epochs > 0
    assert first.preconditioner is not None
    again = replace(solver, preconditioner=first.preconditioner).solve(H, b, generator=generator(), reuse=first.reuse)
    assert again.setup_epochs == 0
    assert again.preconditioner is first.preconditioner
    assert torch.equal(again.value, first.value)
    assert build(TwoLevel(30, 30), H, generator(), Reuse()) is not first.preconditioner  # the control


@compiled
def test_a_similar_matrix_gets_a_preconditioner_of_its_own():
    solver = ConjugateGradients(tolerance=1e-6, preconditioner=TwoLevel(30, 30))
    b = points(400, 2, seed=1)
    first = solver.solve(matrix(400, d=2), b, generator=generator())
    other = solver.solve(matrix(400, d=2, noise=0.5), b, generator=generator(), reuse=first.reuse)
    assert other.setup_epochs > 0
    assert other.preconditioner is not first.preconditioner


@pytest.mark.few(1)
@compiled
@pytest.mark.parametrize("lengthscale", [0.5, 20.0])
def test_a_choice_is_kept_while_hyperparameters_hardly_move(monkeypatch, lengthscale):
    """Also through solves, whose preconditioners carry it."""
    trials = []

    def counted(matrix, candidates):
        trials.append(matrix)
        return cheapest(matrix, candidates)

    monkeypatch.setattr(automatic_module, "cheapest", counted)
    solver = ConjugateGradients(tolerance=0.1)
    reuse = None
    for factor, noise, expected in ((1.0, 0.3, 1), (1.5, 0.3, 1), (1.5, 0.5, 1), (1.5, 1.0, 2), (5.0, 1.0, 3)):
        H = matrix(5100, noise=noise, kernel=Matern(1.5, factor * lengthscale, 1.0), storage="tiles")
        reuse = solver.solve(H, points(5100, 1), generator=generator(), reuse=reuse).reuse
        assert len(trials) == expected, (factor, noise)
    solver.solve(H, points(5100, 1), generator=generator())
    assert len(trials) == 4  # nothing to reuse
