"""Likelihoods: densities, expectations compared with fine sums, and concavity."""

from __future__ import annotations

import math

import pytest
import torch

from gigagp.errors import InvalidInputError
from gigagp.model.likelihoods import (
    Gaussian,
    Laplace,
    Likelihood,
    Logistic,
    Poisson,
    Probit,
    StudentT,
    check_laplace,
    check_log_concave,
    is_default,
    resolve_likelihood,
)

F64 = {"dtype": torch.float64}
TARGETS = {
    "gaussian": [-1.2, 0.3, 4.0],
    "laplace": [-1.2, 0.3, 4.0],
    "student-t": [-1.2, 0.3, 40.0],
    "logistic": [-1.0, 1.0, 1.0],
    "probit": [-1.0, 1.0, 1.0],
    "poisson": [0.0, 1.0, 7.0],
}
LOG_CONCAVE = (Gaussian(), Laplace(), Logistic(), Probit(), Poisson())
BUILT_IN = (*LOG_CONCAVE, StudentT(), StudentT(2.1))


def number(value):
    return torch.tensor(value, **F64)


def fine_expectation(likelihood, y, mean, std, noise):
    z = torch.linspace(-12, 12, 400_001, **F64)
    density = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return float((likelihood.log_density(y, mean + std * z, noise) * density).sum() * (z[1] - z[0]))


@pytest.mark.parametrize("likelihood", BUILT_IN, ids=lambda one: one.name)
@pytest.mark.parametrize(("mean", "std"), [(0.5, 1.0), (-1.0, 2.0), (0.2, 0.05)])
def test_expectations(likelihood, mean, std):
    for y in TARGETS[likelihood.name]:
        found = likelihood.expected_log_density(number(y), number(mean), number(std), number(0.5))
        expected = fine_expectation(likelihood, number(y), number(mean), number(std), number(0.5))
        assert float(found) == pytest.approx(expected, rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("likelihood", BUILT_IN, ids=lambda one: one.name)
def test_slopes_of_expectations(likelihood):
    """Closed forms are those of autograd, also where there is next to no spread or noise."""
    targets = TARGETS[likelihood.name]
    mean, std, noise = (
        part.flatten()
        for part in torch.meshgrid(
            number([-1.0, 0.31, 2.0]), number([0.0, 1e-8, 0.05, 1.0]), number([1e-6, 0.5]), indexing="ij"
        )
    )
    for y in (torch.full_like(mean, target) for target in targets):
        found = likelihood.expected_slopes(y, mean, std, noise)
        for one, wanted in zip(found, Likelihood.expected_slopes(likelihood, y, mean, std, noise), strict=True):
            torch.testing.assert_close(one, wanted, rtol=1e-12, atol=1e-12)
        step = 1e-6
        up, down = (likelihood.expected_log_density(y, mean + s, std, noise) for s in (step, -step))
        smooth = (std > 0.01) & (noise > 0.1)
        torch.testing.assert_close(found.by_mean[smooth], ((up - down) / (2 * step))[smooth], rtol=1e-6, atol=1e-6)


def test_golden_expectations():
    logistic, laplace, gaussian = Logistic(), Laplace(), Gaussian()
    one, nothing = number(1.0), number(1.0)
    assert float(logistic.expected_log_density(one, number(0.5), number(1.0), nothing)) == pytest.approx(-0.5817256984)
    assert float(logistic.expected_log_density(one, number(-1.0), number(2.0), nothing)) == pytest.approx(-1.6424953695)
    assert float(logistic.expected_log_density(one, number(0.0), number(0.0), nothing)) == pytest.approx(-math.log(2))
    found = laplace.expected_log_density(number(0.3), number(-0.4), number(0.8), number(2 * 0.5**2))
    assert float(found) == pytest.approx(-1.7363725268, abs=1e-9)
    found = gaussian.expected_log_density(number(0.3), number(-0.4), number(0.8), number(0.3))
    assert float(found) == pytest.approx(-2.2002854644, abs=1e-9)


@pytest.mark.parametrize("likelihood", BUILT_IN, ids=lambda one: one.name)
def test_gradients_are_finite_where_there_is_no_spread(likelihood):
    for y in TARGETS[likelihood.name]:
        mean, std = number([y, 0.5]).requires_grad_(), number([0.0, 1e-9]).requires_grad_()
        found = likelihood.expected_log_density(number(y), mean, std, number(0.5)).sum()
        exact = likelihood.log_density(number(y), mean.detach(), number(0.5)).sum()
        assert float(found.detach()) == pytest.approx(float(exact), abs=1e-7)
        for gradient in torch.autograd.grad(found, (mean, std)):
            assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("likelihood", BUILT_IN, ids=lambda one: one.name)
def test_they_are_densities(likelihood):
    y = number(TARGETS[likelihood.name])
    likelihood.check_targets(y)
    check_laplace(likelihood, y)
    if likelihood.is_log_concave:
        check_log_concave(likelihood, y)
        if likelihood.has_noise:
            check_log_concave(likelihood, 1e3 * y + 1e8, 1e-4)  # rounding is no convexity
    else:
        with pytest.raises(InvalidInputError, match=r"does not declare it .* Use one of gaussian, laplace, logistic"):
            check_log_concave(likelihood, y)
    assert (resolve_likelihood(likelihood.name) == likelihood) is is_default(likelihood)
    f, noise = number(0.4), number(0.5)
    if likelihood.name in ("logistic", "probit"):
        total = sum(float(likelihood.log_density(number(sign), f, noise).exp()) for sign in (-1.0, 1.0))
        assert float(likelihood.probability(f)) == pytest.approx(
            float(likelihood.log_density(number(1.0), f, noise).exp())
        )
        averaged = likelihood.mean_probability(number(0.7), number(1.3))
        z = torch.linspace(-12, 12, 100_001, **F64)
        weights = torch.exp(-0.5 * z**2) * float(z[1] - z[0]) / math.sqrt(2 * math.pi)
        assert float(averaged) == pytest.approx(float(likelihood.probability(0.7 + 1.3 * z) @ weights), abs=1e-9)
    elif likelihood.name == "poisson":
        total = float(likelihood.log_density(torch.arange(60, **F64), f, noise).exp().sum())
    elif likelihood == StudentT(2.1):  # whose variance is in tails that no grid reaches
        return
    else:
        half = 30 if likelihood.name != "student-t" else 3000
        grid = torch.linspace(-half, half, 600_001, **F64)
        total = float(likelihood.log_density(grid, f, noise).exp().sum() * (grid[1] - grid[0]))
        variance = float(
            ((grid - f).square() * likelihood.log_density(grid, f, noise).exp()).sum() * (grid[1] - grid[0])
        )
        # the noise variance has the same meaning for all; Student's tails beyond the grid have 1e-3 of it
        assert variance == pytest.approx(0.5, rel=1e-5 if likelihood.name != "student-t" else 2e-3)
    assert total == pytest.approx(1, rel=1e-6)


def test_what_is_not_log_concave_is_refused():
    class Silent(Gaussian):
        is_log_concave = False

    class Student(Likelihood):
        is_log_concave = True
        name = "student"

        def log_density(self, y, f, noise):
            return -2.0 * torch.log1p((y - f).square() / 3)

    with pytest.raises(InvalidInputError, match=r"Silent does not declare it \(is_log_concave\)"):
        check_log_concave(Silent(), number([0.0]))
    with pytest.raises(InvalidInputError, match=r"Student is convex near f = .* for y = 0"):
        check_log_concave(Student(), number([0.0]))
    with pytest.raises(InvalidInputError, match="Student is convex near"):
        check_log_concave(Student(), number([1e8]))


@pytest.mark.parametrize("likelihood", BUILT_IN, ids=lambda one: one.name)
@pytest.mark.parametrize(("mean", "std"), [(0.5, 1.0), (-1.0, 0.5), (0.2, 0.02)])
def test_predictive_densities(likelihood, mean, std):
    z = torch.linspace(-12, 12, 400_001, **F64)
    weights = torch.exp(-0.5 * z**2) * float(z[1] - z[0]) / math.sqrt(2 * math.pi)
    for y in TARGETS[likelihood.name]:
        found = likelihood.predictive_log_density(number(y), number(mean), number(std), number(0.5))
        exact = (likelihood.log_density(number(y), mean + std * z, number(0.5)).exp() @ weights).log()
        assert float(found) == pytest.approx(float(exact), abs=1e-7)


@pytest.mark.parametrize("likelihood", [StudentT(), StudentT(2.1), StudentT(50.0)], ids=repr)
def test_student_noise_of_any_size(likelihood):
    """Quadrature fails for noise that is small beside the spread, and these do not."""
    mean, std = number(0.3), number(2.0)
    z = torch.linspace(-12, 12, 1_000_001, **F64)
    weights = torch.exp(-0.5 * z**2) * float(z[1] - z[0]) / math.sqrt(2 * math.pi)
    for noise in (1e-6, 1e-2, 1e6):
        for y in (0.3, -5.0, 1e5):
            each = likelihood.log_density(number(y), mean + std * z, number(noise))
            found = likelihood.predictive_log_density(number(y), mean, std, number(noise))
            assert float(found) == pytest.approx(float(torch.logsumexp(each + weights.log(), 0)), abs=1e-6)
            expected = likelihood.expected_log_density(number(y), mean, std, number(noise))
            assert float(expected) == pytest.approx(float(each @ weights), rel=1e-6)
    rough = Likelihood.expected_log_density(likelihood, number(0.3), mean, std, number(1e-6))  # the control
    fine = likelihood.expected_log_density(number(0.3), mean, std, number(1e-6))
    assert abs(float(rough - fine)) > 1e-3


@pytest.mark.parametrize("likelihood", [Laplace(), StudentT(), StudentT(2.5), StudentT(30.0)], ids=repr)
def test_the_expected_information(likelihood):
    """It is the mean square of the slope; no point lies on the kink of Laplace noise."""
    noise = number(0.7)
    gap = torch.sinh(torch.linspace(-40, 40, 800_000, **F64)).requires_grad_()
    logs = likelihood.log_density(gap, number(0.0), noise)
    (slope,) = torch.autograd.grad(logs.sum(), gap)
    with torch.no_grad():
        mean = torch.trapezoid(slope.square() * logs.exp(), gap)
    assert float(likelihood.information(noise)) == pytest.approx(float(mean), rel=1e-6)


def test_degrees_of_freedom():
    for bad in (2.0, 0.0, math.nan, math.inf, "4"):
        with pytest.raises(InvalidInputError, match=r"df of StudentT must be a number above 2.*noise variance is inf"):
            StudentT(bad)
    assert StudentT(3) == StudentT(3.0)
    gaussian, wide = Gaussian(), StudentT(1e7)
    for y in (-1.0, 3.0):
        found, limit = (one.log_density(number(y), number(0.4), number(0.5)) for one in (wide, gaussian))
        assert float(found) == pytest.approx(float(limit), abs=1e-5)


def test_bad_targets_and_names():
    for name in ("logistic", "probit"):
        with pytest.raises(InvalidInputError, match=f"targets of the {name} likelihood must be -1 and 1; got .0.0"):
            resolve_likelihood(name).check_targets(number([1.0, 0.0]))
    for bad in (-1.0, 0.5, 1e16):
        with pytest.raises(InvalidInputError, match="must be whole numbers from 0"):
            Poisson().check_targets(number([1.0, bad]))
    with pytest.raises(InvalidInputError, match="likelihood must be one of 'gaussian', 'laplace'"):
        resolve_likelihood("student")


@pytest.mark.parametrize("likelihood", [Logistic(), Probit()], ids=lambda one: one.name)
def test_probabilities_where_the_latent_function_is_very_uncertain(likelihood):
    """A probability is then a step beside the spread of f, between whose nodes a rule for smooth functions falls."""
    mean, std = (torch.tensor(one, dtype=torch.float64) for one in ([0.7, -8.0, 3.0, 20.0], [50.0, 40.0, 9.0, 3.1]))
    f = torch.linspace(-800, 800, 3_200_001, dtype=torch.float64)  # Riemann sums along f itself
    own = likelihood.probability(f)
    for k in range(len(mean)):
        density = (-0.5 * ((f - mean[k]) / std[k]).square()).softmax(0)
        right, sign = own @ density, 2 * own - 1
        of_mean = sign.square() @ density - (2 * right - 1).square()
        place = mean[k : k + 1], std[k : k + 1]
        found = likelihood.target_moments(*place, torch.zeros(1, dtype=torch.float64))
        assert float(likelihood.mean_probability(*place)) == pytest.approx(float(right), rel=1e-9)
        assert float(found.mean) == pytest.approx(float(2 * right - 1), abs=1e-9)
        assert float(found.of_mean) == pytest.approx(float(of_mean), abs=1e-9)
        assert float(found.of_target) == pytest.approx(float(4 * right * (1 - right)), abs=1e-9)
        logs = likelihood.predictive_log_density(torch.ones(1, dtype=torch.float64), *place, torch.zeros(1).double())
        assert float(logs) == pytest.approx(float(right.log()), abs=1e-9)
