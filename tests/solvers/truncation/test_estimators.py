"""Russian roulette and single-sample estimates: unbiased in sums over every length, without Monte Carlo."""

from __future__ import annotations

import math

import pytest
import torch

from gigagp.errors import InvalidInputError
from gigagp.solvers.truncation import (
    ExponentialDecay,
    Fixed,
    Geometric,
    OneOverJ,
    RussianRoulette,
    SingleSample,
    Uniform,
    russian_roulette,
    russian_roulette_variance,
    single_sample,
    single_sample_variance,
)

#: Every law ends at 30, the length of the series.
LAWS = [
    ExponentialDecay(0.2, 1, 30),
    ExponentialDecay(0.2, 6, 30, step=3),
    Geometric(0.7, 4, 30),
    OneOverJ(0, 30),
    OneOverJ(5, 30, step=5),
    Uniform(1, 30),
    Uniform(2, 30, step=7),
    Fixed(30),
]
ALL = pytest.mark.parametrize("law", LAWS, ids=repr)
KINDS = pytest.mark.parametrize("kind", [RussianRoulette, SingleSample])
FUNCTIONS = {RussianRoulette: russian_roulette, SingleSample: single_sample}
VARIANCES = {RussianRoulette: russian_roulette_variance, SingleSample: single_sample_variance}

NUMBERS = [(-1) ** j * 3 / j**2 + 2 * 0.8**j for j in range(1, 31)]
VECTORS = [torch.tensor([number, 0.5**j, 1.0]).double() for j, number in enumerate(NUMBERS)]


def partial_sums(terms):
    return lambda count: sum(terms[1:count], terms[0])


def over_lengths(law, estimate):
    """Return the exact mean over the law."""
    return sum(law.probability(j) * estimate(j) for j in law.support())


@pytest.mark.pairs
@ALL
@KINDS
@pytest.mark.parametrize("terms", [NUMBERS, VECTORS], ids=["scalars", "vectors"])
def test_the_mean_over_the_lengths_is_the_sum_of_the_series(law, kind, terms):
    expected = torch.as_tensor(partial_sums(terms)(30))
    from_terms = over_lengths(law, lambda j: FUNCTIONS[kind](iter(terms), law, j))
    from_sums = over_lengths(law, lambda j: kind(law).estimate(partial_sums(terms), j))
    for found in (from_terms, from_sums):
        torch.testing.assert_close(torch.as_tensor(found), expected, rtol=1e-12, atol=1e-12)


@ALL
@KINDS
def test_terms_and_partial_sums_give_the_same_estimate_for_every_length(law, kind):
    for j in law.support():
        from_sums = kind(law).estimate(partial_sums(NUMBERS), j)
        assert from_sums == pytest.approx(FUNCTIONS[kind](NUMBERS, law, j), rel=1e-10, abs=1e-10)


@ALL
@KINDS
def test_the_exact_variance_is_that_of_the_estimates(law, kind):
    mean = over_lengths(law, lambda j: FUNCTIONS[kind](NUMBERS, law, j))
    variance = over_lengths(law, lambda j: (FUNCTIONS[kind](NUMBERS, law, j) - mean) ** 2)
    assert VARIANCES[kind](NUMBERS, law) == pytest.approx(variance, rel=1e-10, abs=1e-20)
    # A series that ends before the law does is continued with zeros.
    short = [*NUMBERS[:12], *[0.0] * 18]
    assert VARIANCES[kind](NUMBERS[:12], law) == pytest.approx(VARIANCES[kind](short, law), rel=1e-10, abs=1e-20)


def test_a_law_that_does_not_reach_the_end_is_biased():
    """Control: the unbiased quantity is the sum of the terms that the law reaches."""
    total = math.fsum(NUMBERS)
    for law in (Fixed(8), ExponentialDecay(0.2, 2, 8), OneOverJ(1, 8)):
        for kind, function in FUNCTIONS.items():
            found = over_lengths(law, lambda j, law=law, function=function: function(NUMBERS, law, j))
            assert found == pytest.approx(math.fsum(NUMBERS[:8]), rel=1e-12), kind
            assert abs(found - total) > 0.05
    assert russian_roulette(NUMBERS, Fixed(8), 8) == pytest.approx(math.fsum(NUMBERS[:8]))


def test_increments_to_the_last_term_only_leave_out_what_lies_between():
    """Control: the published single sample with a step (research/official-code.md, A, defect 1)."""
    law = OneOverJ(5, 30, step=5)
    sums = partial_sums(NUMBERS)
    published = over_lengths(law, lambda j: sums(5) + (sums(j) - sums(j - 1)) / law.probability(j))
    assert abs(published - math.fsum(NUMBERS)) > 0.1
    assert SingleSample(law).coefficients(15) == pytest.approx(
        {5: 1, 10: -1 / law.probability(15), 15: 1 / law.probability(15)}
    )
    first = 1 / law.probability(10)
    assert SingleSample(law).coefficients(10) == pytest.approx({5: 1 - first, 10: first})


def test_three_terms_by_hand():
    law, terms = Geometric(0.5, 1, 3), [8.0, 4.0, 2.0]
    assert [law.probability(j) for j in (1, 2, 3)] == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    found = [russian_roulette(terms, law, j) for j in (1, 2, 3)]
    assert found == pytest.approx([8, 8 + 4 * 7 / 3, 8 + 4 * 7 / 3 + 2 * 7])
    assert [single_sample(terms, law, j) for j in (1, 2, 3)] == pytest.approx([8 * 7 / 4, 4 * 7 / 2, 2 * 7])


def test_limits():
    for kind, function in FUNCTIONS.items():
        only = Fixed(30) if kind is RussianRoulette else OneOverJ(29, 30)  # a single length, with probability 1
        assert only.n_points == 1
        assert function(NUMBERS, only, 30) == pytest.approx(math.fsum(NUMBERS))
        assert VARIANCES[kind](NUMBERS, only) == pytest.approx(0, abs=1e-20)


def test_no_term_is_asked_for_that_is_not_needed():
    def terms():
        yield from NUMBERS[:7]
        raise AssertionError

    assert math.isfinite(russian_roulette(terms(), ExponentialDecay(0.2, 3, 30), 7))
    assert russian_roulette([1.0, 2.0], ExponentialDecay(0.2, 3, 30), 9) == 3.0  # the series ends before the length
    asked = []
    SingleSample(OneOverJ(4, 30, step=2)).estimate(lambda count: asked.append(count) or float(count), 12)
    assert asked == [4, 10, 12]
    asked.clear()
    RussianRoulette(ExponentialDecay(0.2, 9, 30)).estimate(lambda count: asked.append(count) or float(count), 12)
    assert asked == [9, 10, 11, 12]  # terms up to the smallest length have a weight of one


@KINDS
def test_coefficients_add_up_to_one_but_for_the_empty_sum(kind):
    for law in (ExponentialDecay(0.2, 6, 30, step=3), OneOverJ(5, 30, step=5), Uniform(9, 30)):
        for j in law.support():
            assert math.fsum(kind(law).coefficients(j).values()) == pytest.approx(1)


def test_fast_decay_wants_a_fast_law_and_slow_decay_a_slow_one():
    """Theorem 4: among laws J^-a, 1 / J has the smallest variance if increments fall like 1 / J."""
    increments = [1 / j for j in range(1, 201)]
    by_power = {}
    for power in (0, 0.5, 1, 1.5, 2):
        weights = [j**-power for j in range(1, 201)]
        by_power[power] = math.fsum(w * math.fsum(weights) / j**2 / w**2 for j, w in enumerate(weights, start=1))
    assert min(by_power, key=by_power.get) == 1
    law = OneOverJ(0, 200)
    assert single_sample_variance(increments, law) == pytest.approx(by_power[1] - math.fsum(increments) ** 2, abs=1e-9)
    assert single_sample_variance(increments, law) < 0.5 * single_sample_variance(increments, Uniform(1, 200))
    geometric = [0.9**j for j in range(1, 201)]
    decay = ExponentialDecay(0.1, 1, 200)
    assert russian_roulette_variance(geometric, decay) < russian_roulette_variance(
        geometric, ExponentialDecay(0.3, 1, 200)
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RussianRoulette(0.05), "distribution of RussianRoulette must be one of gigagp.truncation"),
        (lambda: SingleSample(None), "distribution of SingleSample must be one of gigagp.truncation"),
        (lambda: SingleSample(OneOverJ(2, 9)).bounded(5, "the rows"), "must be at most the rows, 5; got 9"),
        (lambda: SingleSample(OneOverJ(5, 30, step=5)).coefficients(12), "length must be one that OneOverJ"),
        (lambda: russian_roulette(NUMBERS, Uniform(2, 9), 1), "length must be one that Uniform"),
        (lambda: russian_roulette([], Uniform(2, 9), 4), "terms must hold at least one term"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()
