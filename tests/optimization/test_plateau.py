"""A noisy ascent ends when it gains nothing more, not because of its noise, and its history says why."""

from __future__ import annotations

import pytest
import torch

from gigagp import inference, kernels
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from gigagp.optimization import SparseAdam
from gigagp.optimization.sparse_ascent import Plateau
from helpers import generator, new_trace


def climb(curve, noise, seed=0, most=40_000, matters=1.0):
    """Return the steps at which the rate fell on a curve; a step at a share of the rate climbs by that share."""
    plateau, g = Plateau(0.03, matters), generator(seed)
    reached, falls, share = 0.0, [], 1.0
    for step in range(most):
        reached += plateau.share
        plateau.add(curve(reached) + noise * float(torch.randn((), generator=g)))
        if plateau.share != share:
            falls.append(step + 1)
            share = plateau.share
        if plateau.ended:
            break
    return falls, plateau


def test_a_flat_objective_ends_soon_however_noisy():
    for noise in (0.0, 1.0, 1e3):
        falls, plateau = climb(lambda reached: 5.0, noise)
        assert plateau.ended
        assert len(falls) == 4
        assert falls[-1] <= 4 * 3200


def test_gains_are_followed_as_long_as_they_matter():
    falls, plateau = climb(lambda reached: 0.01 * reached, 5.0, most=10_000)
    assert not plateau.ended
    # after the most steps at one rate it falls in any case
    assert falls
    assert falls[0] == 3200
    # a rise of a hundred is worth more steps where one matters, and not where a thousand does
    early, _ = climb(lambda reached: 0.01 * reached, 5.0, matters=1000.0)
    assert early[0] == 400


def test_one_comparison_that_cannot_tell_decides_nothing():
    """Noise of 30 hides a slope of 0.02 in 400 estimates, but not in 1,600."""
    firsts = [climb(lambda reached: 0.02 * reached, 30.0, seed, most=3200)[0][:1] for seed in range(20)]
    assert sum(not first or first[0] >= 1600 for first in firsts) >= 16
    assert not any(first and first[0] == 400 for first in firsts)


def test_falling_values_make_it_fall():
    falls, _ = climb(lambda reached: -0.1 * reached, 1.0)
    assert falls[0] == 400


def test_it_goes_on_from_its_state():
    one = Plateau(0.03, 1.0)
    values = torch.randn(1500, generator=generator(0)).tolist()
    for value in values[:700]:
        one.add(value)
    other = Plateau(0.03, 1.0)
    other.take_over(one.state())
    for value in values[700:]:
        one.add(value)
        other.add(value)
    assert one.share == other.share < 1
    assert torch.equal(one.state(), other.state())


@pytest.mark.slow
def test_a_fit_without_a_number_of_steps_ends_by_itself_near_the_best_bound():
    g = generator(0)
    X = torch.rand(300, 1, generator=g, dtype=torch.float64) * 2 - 1
    Y = torch.sin(6 * X) + 0.1**0.5 * torch.randn(300, 1, generator=g, dtype=torch.float64)
    table = TrainingTable(X, Y, ZeroMean(), 2**28)
    settings = inference.QuadruplyStochastic(n_basis=60, basis_batch=30, row_batch=100)
    objective = settings.objective(table, generator(0))
    model = Model(kernels.RBF([0.3], 1.0).bind(1), ZeroMean(), torch.tensor(0.1, dtype=torch.float64))
    trace = new_trace()
    SparseAdam(hyper_learning_rate=0).run(objective, model, trace, generator(0))
    stages = [step.stage for step in trace.history]
    assert stages[0] == "sparse, rate 1"
    assert "sparse, rate 0.4" in stages
    assert stages[-1] == "sparse, nothing gained at the smallest rate"
    assert 16 < len(trace.history) < 100
    found = objective.posterior(model, generator(0))
    whole = inference.QuadruplyStochastic(n_basis=60, n_columns=0).objective(table, generator(0))
    best = whole.evaluate(whole.start(model)).value
    reached = float(found.log_marginal_likelihood(generator(0)).value)
    error = found.log_marginal_likelihood(generator(0)).standard_error
    assert best - reached < 0.02 * 300 + 4 * error
