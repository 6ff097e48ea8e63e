"""Simulation-based calibration in its short form; `benchmarks/simulation_based_calibration.py` has the long one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from contract.calibration import OF_FEATURES, simulate
from contract.systems import BY_NAME, SYSTEMS
from gigagp import actions, inference

#: Systems that are no Gaussian process with this kernel, so that no ranks are promised.
OTHER_MODELS = ("relevance vectors",)
#: Conditioning the weights of functions at the rows alone leaves nothing between them: known to be too sure.
TOO_SURE = ("quadruply, inducing",)
#: Chance of a false alarm of one system.
LEVEL = 1e-4


@pytest.mark.parametrize("system", [one for one in SYSTEMS if one.name not in OTHER_MODELS + TOO_SURE], ids=repr)
def test_the_truth_ranks_evenly(system):
    count = 16 if system.inside and system.by_features else 24
    found = simulate(system, count, mean="linear", own_prior=system.name in OF_FEATURES)
    assert found.p_values(8)["all"] > LEVEL, (found.p_values(8), found.spread)


def test_narrow_samples_are_found():
    """The control: 15 % less spread."""
    assert simulate(BY_NAME["exact"], 100).p_values()["all"] > LEVEL
    narrow = simulate(BY_NAME["exact"], 100, shrink=0.85)
    assert narrow.p_values()["all"] < LEVEL
    assert narrow.spread > 1.2


@pytest.mark.parametrize("name", TOO_SURE)
def test_what_is_too_sure_is_found(name):
    """Another control: a system that is known to be."""
    assert simulate(BY_NAME[name], 24).p_values(8)["all"] < LEVEL


@pytest.mark.parametrize("mean", ["zero", "constant"])
@pytest.mark.parametrize("policy", [actions.Learned(), actions.ConjugateGradients(), actions.Random()], ids=repr)
def test_few_actions_are_never_overconfident(policy, mean):
    few = replace(BY_NAME["exact"], make=lambda p: inference.ComputationAware(6, policy), evidence="bound")
    found = simulate(few, 20, mean=mean)
    assert found.gains.min() >= -1e-10  # at every point of every problem
    assert found.gains.max() > 0.05  # and something was left out
    squares = (found.scores**2).mean(1)
    assert squares.mean() <= 1 + 4 * squares.std() / np.sqrt(len(squares))
