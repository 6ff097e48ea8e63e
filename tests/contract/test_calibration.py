"""Simulation-based calibration, short version; `benchmarks/simulation_based_calibration.py` has the long one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from contract.calibration import NO_PRIOR, OWN_PRIOR, learned_spread, simulate
from contract.problems import LIKELIHOODS
from contract.systems import BY_NAME, SYSTEMS
from gigagp import actions, inference

#: Probability of a false alarm for one system.
LEVEL = 1e-4


@pytest.mark.slow
@pytest.mark.few(8)
@pytest.mark.filterwarnings("ignore:Squared errors of the latent function")  # truths are drawn from few functions
@pytest.mark.parametrize("system", [one for one in SYSTEMS if one.name not in NO_PRIOR], ids=repr)
def test_the_truth_ranks_evenly(system):
    count = 12 if system.variance == "solve" and system.by_features else 24  # these systems are slower
    found = simulate(system, count, mean="linear", own_prior=system.name in OWN_PRIOR)
    assert found.p_values(8)["all"] > LEVEL, (found.p_values(8), found.spread)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("likelihood", LIKELIHOODS[1:])
def test_laplace_approximations(likelihood):
    """The truth ranks as it does in dense Laplace approximations, which neighbours are with as many as there are rows.

    These are close to the posterior for all likelihoods but Laplace noise: a row's expected information overstates what
    a density with a kink says where rows are few, and variances are a quarter to a half too small.
    """
    few = replace(BY_NAME["vecchia"], make=lambda p: inference.Vecchia(6, 8))
    found, whole = (simulate(one, 16, mean="zero", likelihood=likelihood) for one in (few, BY_NAME["vecchia"]))
    assert np.abs(whole.gains).max() < 1e-4
    assert abs(found.spread - whole.spread) < 0.1
    if likelihood == "laplace":
        assert 1.1 < whole.spread < 1.7
    else:
        assert found.p_values(8)["all"] > LEVEL
    narrow = simulate(few, 10, mean="zero", likelihood=likelihood, shrink=0.5)  # the control
    assert narrow.p_values(8)["all"] < LEVEL


@pytest.mark.slow
def test_uncertain_hyperparameters():
    """Samples have the right spread with uncertain hyperparameters, and are too narrow without: the control."""
    uncertain, learned = learned_spread(50, "laplace"), learned_spread(50, "learned")

    def error(values):
        return values.std() / np.sqrt(len(values))

    assert abs(uncertain.mean() - 1) < 3 * error(uncertain)
    assert (learned - uncertain).mean() > 3 * error(learned - uncertain)


@pytest.mark.slow
def test_narrow_samples_are_found():
    """The control: samples with 15 % less spread are rejected."""
    assert simulate(BY_NAME["exact"], 100).p_values()["all"] > LEVEL
    narrow = simulate(BY_NAME["exact"], 100, shrink=0.85)
    assert narrow.p_values()["all"] < LEVEL
    assert narrow.spread > 1.2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Squared errors")  # which says the same
def test_what_is_too_sure_is_found():
    """Another control: a model with functions at only eight rows has no variance between them."""
    few = replace(
        BY_NAME["quadruply, inducing"], make=lambda p: inference.QuadruplyStochastic(8, "inducing", n_columns=8)
    )
    assert simulate(few, 24).p_values(8)["all"] < LEVEL


@pytest.mark.few(3)
@pytest.mark.parametrize("mean", ["zero", "constant"])
@pytest.mark.parametrize("policy", [actions.Learned(), actions.ConjugateGradients(), actions.Random()], ids=repr)
def test_few_actions_are_never_overconfident(policy, mean):
    few = replace(BY_NAME["exact"], make=lambda p: inference.ComputationAware(6, policy), evidence="bound")
    found = simulate(few, 20, mean=mean)
    assert found.gains.min() >= -1e-10  # at every point of every problem
    assert found.gains.max() > 0.05  # the variance is larger than the exact one somewhere
    squares = (found.scores**2).mean(1)
    assert squares.mean() <= 1 + 4 * squares.std() / np.sqrt(len(squares))
