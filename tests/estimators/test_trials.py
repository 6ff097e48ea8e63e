"""What is tried on a few rows: gains over the plain trial, doubts about them, and the decision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from gigagp import metrics
from gigagp.estimators.choices.trials import (
    ERRORS,
    MARGIN,
    SUBSET_ROWS,
    PatchScores,
    Trial,
    decide,
    n_learned,
    normal_crps,
)
from gigagp.neighbours.folds import Fold

DENSITIES = torch.linspace(-2.0, 1.0, 60, dtype=torch.float64)
PLAIN = Trial(-30.0, DENSITIES)


def better(nats, gains):
    return Trial(PLAIN.value + nats, DENSITIES + torch.as_tensor(gains, dtype=torch.float64))


def test_the_gain_is_that_of_sums_with_their_standard_error():
    gains = np.random.default_rng(0).normal(0.1, 0.5, 60)
    found = better(12.0, gains).gain(PLAIN)
    assert found.value == pytest.approx(12.0)
    assert found.left_out == pytest.approx(gains.sum())
    assert found.standard_error == pytest.approx(np.sqrt(60) * gains.std())
    assert found.least == min(found.value, found.left_out)


def test_each_doubt_is_said_and_nothing_where_there_is_none():
    sure, unsure = np.resize([0.1, 0.3], 60), np.resize([1.0, -0.9], 60)
    assert better(MARGIN + 1, sure).doubt(PLAIN) is None
    assert better(MARGIN - 1, sure).doubt(PLAIN) == "too few"
    assert better(MARGIN + 1, sure).doubt(PLAIN, penalty=2.0) == "too few"
    assert "within its error" in better(MARGIN + 1, unsure).doubt(PLAIN)
    error = better(MARGIN + 1, unsure).gain(PLAIN).standard_error
    shifted = unsure - unsure.mean() + (ERRORS + 0.01) * error / 60
    assert better(MARGIN + 1, shifted).doubt(PLAIN) is None


def test_the_decision_is_the_most_worthy_candidate_without_an_objection():
    tried = [better(nats, 0.0) for nats in (5.0, 20.0, 30.0, 20.0)]

    def chosen(objected):
        return decide(PLAIN, tried, lambda one: "no" if one.value > objected else None, lambda one: one.value)

    assert chosen(np.inf) is tried[2]
    assert chosen(PLAIN.value + 25) is tried[1]  # the first of equals
    assert chosen(PLAIN.value) is PLAIN


def test_the_crps_is_that_of_the_metrics():
    rng = np.random.default_rng(0)
    errors, variances = rng.normal(size=(40, 2)), rng.gamma(1.0, size=40)
    found = normal_crps(torch.from_numpy(errors), torch.from_numpy(variances))
    std = np.sqrt(variances)[:, None].repeat(2, 1)
    assert float(found.mean()) == pytest.approx(metrics.gaussian_crps(errors, np.zeros((40, 2)), std), rel=1e-12)


def test_neither_all_rows_nor_the_worst_may_be_predicted_worse():
    """A gain of all rows does not make up for the worst tenth, nor that for all."""
    scores = torch.linspace(0.1, 1.0, 60, dtype=torch.float64)

    def trial(crps):
        return Trial(0.0, DENSITIES, crps=crps)

    plain, worst = trial(scores), torch.zeros(60, dtype=torch.float64)
    worst[-6:] = 0.05
    assert not trial(scores).predicts_worse(plain)
    assert not trial(0.9 * scores).predicts_worse(plain)
    assert not trial(1.02 * scores).predicts_worse(plain)
    assert trial(1.05 * scores).predicts_worse(plain)
    assert trial(0.9 * scores + 3 * worst).predicts_worse(plain)
    assert trial(scores + 0.1 - 3 * worst).predicts_worse(plain)
    assert not better(5.0, 0.0).predicts_worse(plain)  # nothing is known


def test_fewer_rows_are_learned_from_where_the_memory_is_small():
    assert n_learned(10**6, 2**40) == SUBSET_ROWS
    assert n_learned(70, 2**40) == 70
    assert n_learned(10**6, 64 * 30**2) == 30


def test_patches_count_as_far_as_they_tell():
    """The gain is the mean over patches times the rows, and a standard error of doubt is in a candidate's favour."""
    every = torch.arange(60)
    folds = [Fold(rows, 10) for rows in every.split(15)]
    means = np.array([0.5, 0.1, 0.4, 0.2])
    of_default = PatchScores.of(folds, torch.zeros(40).double(), torch.ones(40).double())
    plain = Trial(0.0, DENSITIES, patches=of_default)

    def trial(shift, crps=0.0):
        gains = torch.from_numpy(shift + means).repeat_interleave(10)
        return Trial(100.0, DENSITIES + 2.0, patches=PatchScores.of(folds, gains, 1 + crps * gains))

    error = 60 * means.std(ddof=1) / 2
    found = trial(0.0).gain(plain)
    assert found.in_gaps == pytest.approx(60 * means.mean())
    assert found.gaps_error == pytest.approx(error)
    assert found.least == pytest.approx(60 * means.mean() + error)
    assert trial(5.0).gain(plain).least == 100.0
    assert trial(-means.mean() - 0.01).gain(plain).least > 0 > trial(-1.0).gain(plain).least
    assert Trial(100.0, DENSITIES + 2.0).gain(plain).in_gaps is None
    assert not trial(0.0, -0.1).predicts_worse(plain)
    assert not trial(-means.mean() + 0.04, 1.0).predicts_worse(plain)  # within the error
    assert trial(0.0, 1.0).predicts_worse(plain)


def test_patches_that_no_kernel_can_predict_count_for_nothing():
    folds = [Fold(torch.arange(5), 5)] * 3
    scores = torch.tensor([-math.inf] * 5 + [-1.0] * 10).double(), torch.tensor([math.inf] * 5 + [1.0] * 10).double()
    plain = Trial(0.0, DENSITIES, patches=PatchScores.of(folds, *scores))
    other = Trial(1.0, DENSITIES, patches=PatchScores.of(folds, scores[0] + 1, 0.5 * scores[1]))
    found = other.gain(plain)
    assert found.in_gaps == pytest.approx(60.0)
    assert found.gaps_error == 0
    assert not other.predicts_worse(plain)
    unknown = Trial(1.0, DENSITIES, patches=PatchScores.of(folds[:2], scores[0][:10], scores[1][:10]))
    assert unknown.gain(unknown).in_gaps is None
