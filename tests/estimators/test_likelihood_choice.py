"""``likelihood="auto"``: what targets may be, what is taken and why, and what leaves no choice."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gigagp
from gigagp import GPRegressor, inference, kernels, likelihoods
from gigagp.errors import InvalidInputError
from gigagp.estimators.arguments import Arguments
from gigagp.estimators.choices.likelihood_choice import _Compared, choose, of_rates
from gigagp.tables.beside import Beside
from helpers import generator

N = 120
DRAW = np.random.default_rng(1)
X = np.sort(DRAW.uniform(0, 6, N))[:, None]
F = np.sin(X[:, 0])
EFFORT = 10 ** DRAW.uniform(-0.5, 1, N)
KERNEL = kernels.Matern(nu=1.5)

TARGETS = {
    "poisson": DRAW.poisson(np.exp(1 + F)),
    "negative-binomial": DRAW.negative_binomial(1, 1 / (1 + np.exp(2 + F))),
    "zero-inflated-poisson": DRAW.poisson(np.exp(2 + F)) * (DRAW.uniform(size=N) > 0.3),
    "gamma": DRAW.gamma(1.5, np.exp(F) / 1.5),
    "beta": DRAW.beta(1.5 / (1 + np.exp(-2 * F)), 1.5 / (1 + np.exp(2 * F))).clip(1e-6, 1 - 1e-6),
    "gaussian": F + 0.3 * DRAW.normal(size=N),
}
#: Whole numbers above zero that are no counts.
DEGREES = np.round(60 + 20 * F + DRAW.normal(size=N))


def chosen(y, **options):
    arguments = Arguments.of(GPRegressor(KERNEL, likelihood="auto", **options))
    return choose(arguments, X, np.asarray(y, dtype=float), Beside(), generator())


@pytest.mark.parametrize("name", TARGETS)
def test_targets_get_the_likelihood_that_drew_them(name):
    found = chosen(TARGETS[name])
    assert found.likelihood == likelihoods.resolve_likelihood(name)
    assert "auto: " in found.note


def test_whole_numbers_with_little_noise_are_no_counts():
    """Gaussian noise has the probability of what is rounded to each whole number, so that it can be compared."""
    found = chosen(DEGREES)
    assert isinstance(found.likelihood, likelihoods.Gaussian)
    assert re.search(r"counts, of 120 rows: poisson gains -\d", found.note)


@pytest.mark.slow
def test_the_unit_of_amounts_does_not_count():
    one, other = (chosen(unit * TARGETS["gamma"]).note for unit in (1.0, 1e4))
    gains = [[float(number) for number in re.findall(r"[+-]\d+\.\d", note)] for note in (one, other)]
    np.testing.assert_allclose(gains[0], gains[1], atol=0.3)
    assert gains[0][0] > 10


def test_what_targets_may_be():
    assert of_rates(np.array([0.0, 2.0, 1.0])) == likelihoods.Poisson()
    assert of_rates(np.array([0.5, 2.0])) == likelihoods.Gamma()
    message = r"need positive targets, or counts of which .* got -?[01] in row 0"
    for bad in ([0.0, 1.0], [-1.0, 3.0], [0.0, 0.5]):
        with pytest.raises(InvalidInputError, match=message):
            of_rates(np.array(bad))


@pytest.mark.slow
def test_an_exposure_through_all_doors(tmp_path):
    counts = np.random.default_rng(3).negative_binomial(1, 1 / (1 + np.exp(1 + F) * EFFORT))
    gp, given = (
        GPRegressor(KERNEL, likelihood=name, inference=inference.Vecchia()).fit(X, counts, exposure=EFFORT)
        for name in ("auto", "negative-binomial")
    )
    assert isinstance(gp.likelihood_, likelihoods.NegativeBinomial)
    np.testing.assert_array_equal(gp.predict(X, exposure=2.0), given.predict(X, exposure=2.0))
    words = r"likelihood +negative-binomial, auto: counts, of 120 rows: negative-binomial gains"
    assert re.search(words, gp.describe())
    gp.save(tmp_path / "m.gp")
    loaded = gigagp.load(tmp_path / "m.gp")
    assert (loaded.likelihood, loaded.likelihood_) == ("auto", gp.likelihood_)
    assert loaded.describe() == gp.describe()
    np.testing.assert_allclose(loaded.predict(X), gp.predict(X), rtol=1e-13)


def test_what_was_compared_is_the_evidence_of_each():
    """A trial has the evidence and the left-out densities that a fit has at the same hyperparameters."""
    y = TARGETS["gamma"]
    arguments = Arguments.of(GPRegressor(KERNEL, likelihood="auto"))
    one = _Compared(arguments, X, y, Beside(), "positive", generator())._tried(likelihoods.Gamma(), y)
    gp = GPRegressor(KERNEL, likelihood="gamma").fit(X, y)
    cost = 0.5 * np.log(N) * 3  # of variance, lengthscale and shape
    assert one.value == pytest.approx(gp.log_marginal_likelihood().value - cost, abs=0.5)
    assert float(one.densities.sum()) == pytest.approx(gp.leave_one_out().log_density.sum(), abs=0.5)


@pytest.mark.parametrize(
    ("options", "beside", "match"),
    [
        ({"noise": "varying"}, {}, 'needs noise="constant"; got .varying'),
        ({"target_transform": "log"}, {}, 'needs target_transform="none"'),
        ({"optimizer": None}, {}, "needs an optimizer"),
        ({"inference": inference.Exact()}, {"exposure": EFFORT}, "one of poisson, negative-binomial, .* none of them"),
    ],
)
def test_what_leaves_no_choice(options, beside, match):
    with pytest.raises(InvalidInputError, match=match):
        GPRegressor(KERNEL, likelihood="auto", **options).fit(X, TARGETS["zero-inflated-poisson"], **beside)


def test_arguments_exclude_likelihoods():
    """Exact inference takes Gaussian noise alone, so that only noise is compared."""
    found = chosen(TARGETS["gamma"], inference=inference.Exact())
    assert isinstance(found.likelihood, likelihoods.Gaussian | likelihoods.StudentT)
    assert "gamma" not in found.note
