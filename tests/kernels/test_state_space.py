"""Kernels of series by independent formulas, and the state-space form of every kernel that has one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.linalg import expm

from gigagp import kernels
from gigagp.errors import InvalidInputError
from gigagp.kernels import Constant, Cosine, DampedTrend, IntegratedWiener, Linear, Matern, Oscillator, Periodic, White
from gigagp.kernels.state_space import damped_level, incomplete_gammas, remainder
from gigagp.kernels.units import Units
from helpers import autograd_gradient, close

#: Uneven times on both sides of the kernels' centre with a repeated one, two that nearly repeat it, and a far one.
TIMES = torch.from_numpy(
    np.sort(np.concatenate([np.random.default_rng(0).uniform(-3, 4, 18), [0.5, 0.5, 0.5 + 1e-9, 0.5 + 1e-5, 90.0]]))
)
KERNELS = {
    "matern12": Matern(0.5, 0.7, 1.3),
    "matern32": Matern(1.5, 0.7, 1.3),
    "matern52": Matern(2.5, 0.7, 1.3),
    "cosine": Cosine(0.8, 1.7),
    "constant": Constant(0.4),
    "linear": Linear(0.3, centre=0.2),
    "white": White(0.3),
    "integrated Wiener": IntegratedWiener(0.6, centre=0.3),
    "damped trend": DampedTrend(1.4, 0.5, centre=0.3),
    "damped trend at rows": DampedTrend(1.4, 0.5, centre=0.5 + 5e-10),
    "integrated Wiener at rows": IntegratedWiener(0.6, centre=0.5 + 5e-10),
    "oscillator": Oscillator(1.1, 1.3, 4.0),
    "critical oscillator": Oscillator(1.1, 1.3, 0.5),
    "overdamped oscillator": Oscillator(1.1, 1.3, 0.02),
    "periodic": Periodic(0.9, 1.1, 2.0),
    "sum": Matern(1.5, 0.7) + Cosine(0.8, 1.7) * Matern(0.5, 0.9) + White(0.1) + Constant(0.2),
    "product": (Linear(0.3, centre=0.2) + White(0.1)) * Matern(2.5, 0.7) * Cosine(0.8, 1.7),
    "bending season": IntegratedWiener(0.6, centre=0.3) * Periodic(1.4, 1.0, 2.0),
    "trend times noise": DampedTrend(1.4, 0.5, centre=0.3) * Matern(0.5, 0.7),
}


@pytest.mark.parametrize("name", KERNELS)
def test_states_have_the_covariance_of_the_kernel(name):
    kernel = KERNELS[name].bind(1)
    t, n = TIMES, len(TIMES)
    found = torch.zeros(n, n, dtype=torch.float64)
    for one in kernel.state_space():
        P, h = one.covariance(t), one.seen(t)
        for i in range(n):
            F, _ = one.step(t[i].expand(n - i), t[i:])
            found[i, i:] += (h[i:] * (F @ P[i] @ h[i])).sum(1)
    expected = kernel.block(t[:, None], t[:, None]).triu()
    share = 1e-12 if "season" in name or name == "periodic" else 0.0  # what the harmonics miss
    turns = 2 * math.pi * float(t[-1] - t[0])  # an angle is rounded relative to its size
    assert float((found - expected).abs().max()) <= (share + 64 * 2.2e-16 * turns) * float(expected.abs().max())


@pytest.mark.parametrize("name", [name for name in KERNELS if name != "white"])
def test_steps_add_up(name):
    """A step has the covariance that is missing after it, and two steps are one, also where they are tiny."""
    for one in KERNELS[name].bind(1).state_space():
        P = one.covariance(TIMES)
        F, Q = one.step(TIMES[:-1], TIMES[1:])
        size = P.abs().amax((1, 2), keepdim=True)[1:]
        assert float(((F @ P[:-1] @ F.mT + Q - P[1:]) / size).abs().max()) < 1e-13
        assert float((torch.linalg.eigvalsh(Q)[:, :1, None] / size).min()) > -1e-14
        G, R = one.step(TIMES[:-2], TIMES[2:])
        scale = max(float(G.abs().max()), 1.0)
        assert float((F[1:] @ F[:-1] - G).abs().max()) < 1e-12 * scale
        assert float(((F[1:] @ Q[:-1] @ F[1:].mT + Q[1:] - R) / size[1:]).abs().max()) < 1e-12


@pytest.mark.parametrize("p", [0, 1, 2])
def test_tiny_steps_keep_their_digits(p):
    """The variance that noise adds within a tiny step is a power of the step; a difference would be zero."""
    rate, d = 1.7, 1e-9
    (one,) = Matern(p + 0.5, math.sqrt(2 * p + 1) / rate, 1.3).bind(1).state_space()
    zero = torch.zeros(1, dtype=torch.float64)
    Q = one.step(zero, zero + d)[1][0]
    power = 2 * p + 1
    expected = 1.3 * 2**power * math.factorial(p) ** 2 / math.factorial(2 * p) * (rate * d) ** power
    close(Q[0, 0], expected / (power * math.factorial(p) ** 2), condition=1e8)
    difference = 1.3 * (
        1 - math.exp(-2 * rate * d) * sum((2 * rate * d) ** k / math.factorial(k) for k in range(power))
    )
    assert p == 0 or abs(difference - float(Q[0, 0])) > 0.5 * float(Q[0, 0])


@pytest.mark.few(6)
@pytest.mark.parametrize("name", [name for name in KERNELS if name not in ("white", "constant")])
def test_steps_are_differentiable(name):
    """Derivatives by hyperparameters, through the steps from the first time, are those of the kernel."""
    kernel, t = KERNELS[name].bind(1), TIMES[:-1]
    weights = torch.cos(torch.arange(len(t), dtype=torch.float64))

    def by_states(one):
        total = 0.0
        for state in one.state_space():
            F, Q = state.step(t[:1].expand(len(t)), t)
            P, h = state.covariance(t[:1])[0], state.seen(t)
            total = total + ((h * (F @ P @ h[0])).sum(1) * weights).sum()
            total = total + ((h[:, None] @ Q @ h[:, :, None]).flatten() * weights).sum()
        return total

    def by_formula(one):
        whole = one.block(t[:1, None], t[:, None])[0]
        # what a step adds is the variance after it less what it kept of that before
        kept = torch.stack([_kept(one, t[:1], t[k : k + 1]) for k in range(len(t))])
        return (whole * weights).sum() + ((one.diagonal(t[:, None]) - kept) * weights).sum()

    found, expected = autograd_gradient(kernel, by_states), autograd_gradient(kernel, by_formula)
    for key, value in expected.items():
        assert torch.allclose(found[key], value, rtol=1e-8, atol=1e-9), key


def _kept(kernel, s, t):
    total = torch.zeros((), dtype=torch.float64)
    for state in kernel.state_space():
        F = state.step(s, t)[0][0]
        h = state.seen(t)[0]
        total = total + h @ F @ state.covariance(s)[0] @ F.T @ h
    return total


def test_integrated_wiener_is_the_integral_of_a_random_walk():
    points, weights = np.polynomial.legendre.leggauss(8)
    x, z = np.array([-2.0, -0.5, 0.3, 1.0, 2.5]), np.array([-3.0, -0.5, 0.2, 0.3, 0.9, 4.0])
    expected = np.zeros((5, 6))
    for i, a in enumerate(x - 0.3):
        for j, b in enumerate(z - 0.3):
            if a * b > 0:
                end = min(abs(a), abs(b))
                u = end * (points + 1) / 2
                expected[i, j] = 0.6 * end / 2 * (weights * (abs(a) - u) * (abs(b) - u)).sum()
    kernel = IntegratedWiener(0.6, centre=0.3)
    close(kernel.block(torch.from_numpy(x)[:, None], torch.from_numpy(z)[:, None]), expected)


def test_a_damped_trend_is_the_integral_of_its_slope():
    """By sums over a fine grid of both integrals, whose error falls with the square of the step."""
    kernel, errors = DampedTrend(0.8, 0.5, centre=0.3), []
    x, z = -1.2, 1.7
    found = float(kernel.block(torch.tensor([[x]], dtype=torch.float64), torch.tensor([[z]], dtype=torch.float64)))
    for count in (200, 400):
        u, w = (0.3 + (end - 0.3) * (np.arange(count) + 0.5) / count for end in (x, z))
        slopes = 0.5 * np.exp(-np.abs(u[:, None] - w) / 0.8)
        errors.append(abs(slopes.mean() * (x - 0.3) * (z - 0.3) - found))
    assert errors[1] < 1e-5
    assert errors[1] < errors[0] / 3.5
    far = DampedTrend(1e6, 0.5, centre=0.3)  # a straight line
    X = torch.linspace(-2, 2, 5, dtype=torch.float64)[:, None]
    assert torch.allclose(far.block(X, X), Linear(0.5, centre=0.3).block(X, X), atol=1e-5)


@pytest.mark.parametrize("quality", [0.05, 0.4, 0.499999, 0.5, 0.5000001, 0.6, 30.0])
def test_an_oscillator_is_the_solution_of_its_equation(quality):
    frequency, d = 2 * math.pi / 1.3, np.array([0.0, 1e-7, 0.01, 0.3, 2.0, 11.0])
    drift = np.array([[0, frequency], [-frequency, -frequency / quality]])
    expected = np.array([1.1 * expm(drift * one)[0, 0] for one in d])
    found = Oscillator(1.1, 1.3, quality).block(torch.from_numpy(d)[:, None], torch.zeros(1, 1, dtype=torch.float64))
    np.testing.assert_allclose(found[:, 0].numpy(), expected, atol=1e-12)


def test_a_critical_oscillator_is_a_matern_kernel():
    X, matern = TIMES[:, None], Matern(1.5, math.sqrt(3) * 1.3 / (2 * math.pi), 1.1)
    # distances of up to 30 decay times leave something, and are rounded
    close(Oscillator(1.1, 1.3, 0.5).block(X, X), matern.block(X, X), condition=30)


def test_harmonics_miss_what_they_say():
    for lengthscale, least, most in ((1.0, 0.0, 1e-12), (0.3, 0.0, 1e-12), (0.15, 1e-6, 1e-5), (0.1, 1e-3, 2e-3)):
        kernel = Periodic(lengthscale, 1.0, 2.0).bind(1)
        share, X = kernel.missing_share(), torch.linspace(0, 2, 41, dtype=torch.float64)[:, None]
        assert least <= share <= most
        waves = kernel.harmonics()
        angles = math.pi * X * torch.arange(len(waves), dtype=torch.float64)
        error = (kernel.block(X, X[:1])[:, 0] - torch.cos(angles) @ waves).abs().max()
        assert float(error) <= share + 1e-15
        assert least == 0 or float(error) > 0.9 * share


def test_parts_of_a_state_with_cancelling_forms():
    """Remainders and integrals against sums of their series in exact order."""
    x = torch.tensor([1e-9, 1e-4, 0.3, 0.999, 1.001, 4.0], dtype=torch.float64)
    for order in (2, 3):
        expected = [math.fsum((-v) ** k / math.factorial(k) for k in range(order, 60)) for v in x.tolist()]
        np.testing.assert_allclose(remainder(x, order).numpy(), expected, rtol=1e-13)
    for k, found in enumerate(incomplete_gammas(x, 4)):
        terms = [
            [(-1) ** j * v ** (k + 1 + j) / (math.factorial(j) * (k + 1 + j)) for j in range(60)] for v in x.tolist()
        ]
        np.testing.assert_allclose(found.numpy(), [math.fsum(one) for one in terms], rtol=1e-12)
    np.testing.assert_allclose(damped_level(x[:2]).numpy(), 2 * x[:2].numpy() ** 3 / 3, rtol=1e-4)


def test_what_has_no_states_says_so():
    class Mine(Matern):
        def profile(self, q):
            return 1 / (1 + q)

    for kernel in (kernels.RBF(), kernels.RationalQuadratic(), Mine(), Matern() + kernels.RBF()):
        with pytest.raises(InvalidInputError, match="has no state-space form"):
            kernel.bind(1).state_space()
    with pytest.raises(InvalidInputError, match=r"columns of Oscillator must be one input"):
        Oscillator().bind(2)
    X = torch.rand(5, 2, dtype=torch.float64)
    close(Oscillator(columns=[1]).block(X, X), Oscillator().block(X[:, 1:], X[:, 1:]))


@pytest.mark.parametrize("name", ["integrated Wiener", "damped trend", "oscillator"])
def test_series_kernels_change_units_and_come_back(name):
    kernel, X = KERNELS[name], TIMES[:12, None]
    units = Units(torch.tensor([0.7], dtype=torch.float64), torch.tensor([2.5], dtype=torch.float64), 4.0)
    standard = kernel.standardized(units)
    close(4.0 * standard.block((X - 0.7) / 2.5, (X - 0.7) / 2.5), kernel.block(X, X), condition=1e3)
    close(standard.in_own_units(units).block(X, X), kernel.block(X, X), condition=1e3)
    assert kernels.from_dict(kernel.bind(1).to_dict()) == kernel.bind(1)
