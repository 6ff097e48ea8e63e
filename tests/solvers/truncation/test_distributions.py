"""Laws of random lengths: closed forms against exact arithmetic and against sums over the support."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
import torch

from gigagp.errors import InvalidInputError
from gigagp.solvers.truncation import ExponentialDecay, Fixed, Geometric, OneOverJ, Uniform
from helpers import generator

LAWS = [
    ExponentialDecay(0.3, 3, 20),
    ExponentialDecay(0.3, 3, 21, step=4),
    ExponentialDecay(1e-9, 2, 40),
    ExponentialDecay(1e-3, 1, 900),
    ExponentialDecay(20.0, 1, 30),
    Geometric(0.6, 2, 60),
    Geometric(0.2, 5, 300, step=2),
    OneOverJ(0, 9),
    OneOverJ(1, 400),
    OneOverJ(4, 103, step=7),
    Uniform(1, 6),
    Uniform(3, 90, step=4),
    Fixed(7),
]
ALL = pytest.mark.parametrize("law", LAWS, ids=repr)


# Sums over the support ------------------------------------------------------------------------------------------------


@ALL
def test_probabilities_add_up_to_survival_and_moments(law):
    points = list(law.support())
    chances = [law.probability(j) for j in points]
    assert all(chance > 0 for chance in chances)
    assert math.fsum(chances) == pytest.approx(1, rel=1e-13)
    assert points[0] == law.minimum
    assert points[-1] == law.last <= law.maximum
    assert all(b - a == law.step for a, b in itertools.pairwise(points))
    for j in range(0, points[-1] + 3):
        tail = math.fsum(chance for point, chance in zip(points, chances, strict=True) if point >= j)
        assert law.survival(j) == pytest.approx(tail, rel=1e-12)
        assert law.probability(j) == (chances[points.index(j)] if j in points else 0)
    mean = math.fsum(p * j for p, j in zip(chances, points, strict=True))
    variance = math.fsum(p * (j - mean) ** 2 for p, j in zip(chances, points, strict=True))
    assert law.mean == pytest.approx(mean, rel=1e-12)
    assert law.standard_deviation == pytest.approx(math.sqrt(variance), rel=1e-7, abs=1e-7)


@ALL
def test_the_longest_of_several_draws(law):
    for draws in (1, 2, 3):
        points = list(law.support())
        expected = math.fsum(j * ((1 - law.survival(j + 1)) ** draws - (1 - law.survival(j)) ** draws) for j in points)
        assert law.expected_longest(draws) == pytest.approx(expected, rel=1e-10)


@ALL
def test_draws_follow_the_probabilities(law):
    source = generator(1)
    n = 4000
    drawn = torch.tensor([law.sample(source) for _ in range(n)])
    assert set(drawn.tolist()) <= set(law.support())
    for j in law.support():
        chance = law.survival(j)
        share = float((drawn >= j).double().mean())
        assert abs(share - chance) <= 4.5 * math.sqrt(chance * (1 - chance) / n) + 1e-12
    again = generator(1)
    assert [law.sample(again) for _ in range(20)] == drawn[:20].tolist()


def test_laws_without_a_maximum():
    for law in (ExponentialDecay(0.05, 80), Geometric(0.9, 4, step=3)):
        far = law.bounded(3000)
        assert law.last is None
        assert far.last > 2900
        assert far.mean == pytest.approx(law.mean, rel=1e-12)
        assert far.standard_deviation == pytest.approx(law.standard_deviation, rel=1e-12)
        assert far.survival(150) == pytest.approx(law.survival(150), rel=1e-12)
        assert law.probability(100) == pytest.approx(far.probability(100), rel=1e-12)
        assert [law.sample(generator(3))] == [far.sample(generator(3))]
        assert law.bounded(3000).bounded(5000) == far
        with pytest.raises(InvalidInputError, match="needs a maximum before it has probabilities"):
            law.support()
    for law in (OneOverJ(3), Uniform(2)):
        for ask in (lambda law=law: law.survival(9), lambda law=law: law.mean, lambda law=law: law.sample(generator())):
            with pytest.raises(InvalidInputError, match=r"needs a maximum before .* call bounded\(\)"):
                ask()
        assert law.bounded(50).survival(50) > 0


# Float64 weights ------------------------------------------------------------------------------------------------------

ROWS = 10_000


@pytest.mark.parametrize(("rate", "minimum"), [(0.05, 1), (0.05, 80), (0.07, 20)])
@pytest.mark.parametrize("bounded", [True, False])
def test_weights_of_the_decay_are_right_to_twelve_digits_at_every_length(rate, minimum, bounded):
    law = ExponentialDecay(rate, minimum, ROWS if bounded else None)
    with localcontext() as context:
        context.prec = 50
        factor, power = (-Decimal(rate)).exp(), Decimal(1)
        end = factor ** (ROWS - minimum + 1) if bounded else Decimal(0)
        for j in range(minimum, ROWS + 1):
            exact = (power - end) / (1 - end)
            assert abs(Decimal(law.survival(j)) / exact - 1) < Decimal("1e-12"), j
            power *= factor


def test_weights_of_one_over_j_are_right_to_twelve_digits_at_every_length():
    for law in (OneOverJ(1, ROWS), OneOverJ(500, ROWS), OneOverJ(0, ROWS, step=10)):
        scale, total, tails = 10**40, 0, {}  # sums of integers: 40 digits, and quick
        for j in reversed(law.support()):
            total += scale // j
            tails[j] = total
        for j in law.support():
            exact = Fraction(tails[j], total)
            assert abs(Fraction(law.survival(j)) / exact - 1) < Fraction(1, 10**12), j


def test_weights_of_the_other_laws():
    law = Geometric(0.95, 3, ROWS)
    with localcontext() as context:
        context.prec = 50
        ratio, power = Decimal.from_float(0.95), Decimal(1)
        end = ratio ** (ROWS - 2)
        for j in range(3, ROWS + 1):
            assert abs(Decimal(law.survival(j)) / ((power - end) / (1 - end)) - 1) < Decimal("1e-12"), j
            power *= ratio
    law = Uniform(4, ROWS)
    for j in range(4, ROWS + 1, 7):
        assert abs(Fraction(law.survival(j)) / Fraction(ROWS - j + 1, ROWS - 3) - 1) < Fraction(1, 10**15)


def test_one_minus_a_float32_sum_is_wrong():
    """Control: the computation of the weights in the published code (research/official-code.md, A, defect 4)."""
    law = ExponentialDecay(0.05, 1, 9600)
    chances = torch.exp(-0.05 * torch.arange(9600, dtype=torch.float32))
    survival = 1 - torch.cumsum(chances / chances.sum(), 0)
    errors = [abs(float(survival[offset - 1]) / law.survival(1 + offset) - 1) for offset in (100, 300)]
    assert errors[0] > 1e-6
    assert errors[1] > 0.05
    assert float(survival[400]) <= 0 or abs(float(survival[400]) / law.survival(402) - 1) > 0.5


# Given moments --------------------------------------------------------------------------------------------------------


def test_the_moments_of_the_notes():
    """Check papers/rr-cg-ss-rff.md, section 10, test 1."""
    for law, mean, deviation in (
        (ExponentialDecay(0.05, 80, 9600), 99.5042, 19.998),
        (ExponentialDecay(0.1, 80, 9600), 89.5083, 9.996),
        (ExponentialDecay(0.05, 1, 500), 20.504, 19.998),
    ):
        assert law.mean == pytest.approx(mean, abs=5e-4)
        assert law.standard_deviation == pytest.approx(deviation, abs=5e-4)
    law = ExponentialDecay(0.05, 80, 9600)
    assert law.survival(80) == 1
    assert law.survival(81) == pytest.approx(math.exp(-0.05), rel=1e-14)
    # Section 3.4: the expected length of a run that serves one, two or three lengths.
    assert [law.expected_longest(k) for k in (1, 2, 3)] == pytest.approx([99.5, 109.5, 116.2], abs=0.04)
    assert OneOverJ(1, 4800).mean == pytest.approx(595.88, abs=0.005)
    assert OneOverJ(500, 950).mean == pytest.approx(701.6, abs=0.05)
    assert OneOverJ(500, 4800).mean == pytest.approx(1902, abs=0.5)
    assert OneOverJ(5, 4800).mean == pytest.approx(708, abs=0.5)


@pytest.mark.parametrize(("mean", "deviation"), [(40, 10), (99.5, 20), (100, 20), (21.3, 20), (2.5, 1.2), (800, 250)])
def test_laws_of_wanted_moments(mean, deviation):
    for kind in (ExponentialDecay, Geometric):
        law = kind.from_moments(mean, deviation)
        assert law.mean == pytest.approx(mean, rel=1e-12)
        assert abs(law.standard_deviation - deviation) <= 0.55
    if deviation < mean / 2:
        law = Uniform.from_moments(mean, deviation)
        assert abs(law.mean - mean) <= 0.5
        assert abs(law.standard_deviation - deviation) <= 0.6
        for step in (1, 5) if mean > 20 else (1,):
            law = OneOverJ.from_moments(mean, deviation, step)
            assert abs(law.mean - mean) <= step
            assert abs(law.standard_deviation - deviation) <= max(step, 0.05 * deviation)
            assert law.step == step
    assert Fixed.from_moments(40) == Fixed(40)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ExponentialDecay.from_moments(10, 30), "from_moments of ExponentialDecay: with a standard deviation"),
        (lambda: Geometric.from_moments(10, 30), "from_moments of Geometric: with a standard deviation of 30"),
        (
            lambda: ExponentialDecay.from_moments(0.5, 1),
            "mean of ExponentialDecay.from_moments must be a number from 1",
        ),
        (
            lambda: ExponentialDecay.from_moments(5, 0),
            "standard_deviation of ExponentialDecay.from_moments must be a number from 1e-12",
        ),
        (lambda: Uniform.from_moments(math.nan, 1), "mean of Uniform.from_moments must be"),
        (lambda: Uniform.from_moments(5, 10), "from_moments of Uniform: a standard deviation of 10 needs"),
        (lambda: OneOverJ.from_moments(5, 10), "from_moments of OneOverJ: a standard deviation of 10 is too large"),
        (lambda: Fixed.from_moments(5.5), "from_moments of Fixed needs an integer mean"),
        (lambda: Fixed.from_moments(5, 1), "from_moments of Fixed needs an integer mean"),
    ],
)
def test_moments_that_no_law_has(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ExponentialDecay(0.1, 9, 8), "maximum of ExponentialDecay must be at least its smallest length, 9"),
        (lambda: Uniform(5, 4), "maximum of Uniform must be at least its smallest length, 5; got 4"),
        (lambda: OneOverJ(10, 10), "maximum of OneOverJ must be at least its smallest length, 11; got 10"),
        (lambda: OneOverJ(10, 14, step=5), "there is no length left"),
        (lambda: ExponentialDecay(0.1, 1, 50).bounded(40, "the rows"), "maximum of .* must be at most the rows, 40"),
        (lambda: ExponentialDecay(0.1, 50).bounded(40), "minimum of ExponentialDecay must be at most the length of"),
        (lambda: Fixed(41).bounded(40), "of Fixed must be at most the length of the series, 40; got 41"),
        (lambda: OneOverJ(40).bounded(40), "minimum of OneOverJ must be at most the length of the series, 40; got 41"),
    ],
)
def test_what_is_no_law_is_refused(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()
