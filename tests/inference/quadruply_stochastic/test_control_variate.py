"""Control variates: zero in the mean, exact running vectors, sparse gradients without bias, less variance."""

from __future__ import annotations

import pytest
import torch

from gigagp.inference.quadruply_stochastic.bases import FourierBasis
from gigagp.inference.quadruply_stochastic.estimators.control_variate import (
    Coefficient,
    LinearControl,
    QuadraticControl,
)
from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample, sample_indices
from gigagp.inference.quadruply_stochastic.estimators.terms import SampledRows, mean_term
from gigagp.kernels import RBF
from helpers import generator, points
from inference.quadruply_stochastic.reference import pairs

M, SUPPORT = 5, 3
P = torch.randn(SUPPORT, M, generator=generator(0), dtype=torch.float64)
MEAN = torch.randn(M, 2, generator=generator(1), dtype=torch.float64)
OFFSET = torch.randn(SUPPORT, 2, generator=generator(2), dtype=torch.float64)
WEIGHTS = torch.rand(SUPPORT, generator=generator(3), dtype=torch.float64) + 0.5


def control(offset=OFFSET):
    made = QuadraticControl(lambda index: P[:, index], offset.clone())
    made.reset(iter([(torch.arange(M), MEAN)]))
    return made


def unscaled(made, features, vectors, weights):
    """Without F.1: the plain slope in the touched part."""
    step = features @ (vectors - vectors.detach())
    return (weights @ (made.running - made.offset + step).square()).sum()


def as_printed(made, features, vectors, sample, weights):
    """F.1 taken literally: the stop-gradient around the whole term."""
    q = unscaled(made, features, vectors, weights)
    scale = M / len(sample.index)
    return scale * q + ((1 - scale) * q).detach()


@pytest.mark.few(1)
@pytest.mark.parametrize("offset", [OFFSET, torch.zeros_like(OFFSET)])
@pytest.mark.parametrize("replacement", [False, True])
def test_it_is_zero_in_the_mean_with_an_unbiased_gradient(offset, replacement):
    made = control(offset)
    noise = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    # the whole quadratic: the enumeration removes its sampled part, and the slopes of the rest have mean zero
    values, slopes = [], []
    for sample in pairs(M, 2, replacement):
        vectors = MEAN[sample.index].clone().requires_grad_()
        value = made.value(P[:, sample.index], vectors, sample, WEIGHTS / noise).sum()
        by_vectors, by_noise = torch.autograd.grad(value, (vectors, noise))
        dense = torch.zeros(M, 2, dtype=torch.float64)
        dense[sample.index] = by_vectors
        values.append(float(value.detach()))
        slopes.append(torch.cat([dense.reshape(-1), by_noise[None]]))
    assert sum(values) / len(values) == pytest.approx(0, abs=1e-10)
    torch.testing.assert_close(torch.stack(slopes).mean(0), torch.zeros(M * 2 + 1).double(), rtol=0, atol=1e-10)
    assert float(torch.tensor(values).std()) > 0.1


def test_controls_of_the_sparse_gradient():
    """T8c, A7: without the scale the slope is 0.64 of the right one; the literal form is wrong in the noise alone."""
    made = control()
    noise = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    whole = MEAN.clone().requires_grad_()
    exact = ((WEIGHTS / noise) @ (P @ whole - OFFSET).square()).sum()
    slope, slope_in_noise = torch.autograd.grad(exact, (whole, noise))
    plain, literal, literal_noise, ours, ours_noise = [], [], [], [], []
    for sample in pairs(M, 2, False):
        vectors = MEAN[sample.index].clone().requires_grad_()
        features = P[:, sample.index]
        sampled = (WEIGHTS / noise) @ (
            (features @ (sample.left[:, None] * vectors) - OFFSET)
            * (features @ (sample.right[:, None] * vectors) - OFFSET)
        )
        for value, into, into_noise in (
            (unscaled(made, features, vectors, WEIGHTS / noise), plain, None),
            (as_printed(made, features, vectors, sample, WEIGHTS / noise), literal, literal_noise),
            ((made.value(features, vectors, sample, WEIGHTS / noise) + sampled).sum(), ours, ours_noise),
        ):
            by_vectors, by_noise = torch.autograd.grad(value, (vectors, noise), retain_graph=True)
            dense = torch.zeros(M, 2, dtype=torch.float64)
            dense[sample.index] = by_vectors
            into.append(dense)
            if into_noise is not None:
                into_noise.append(by_noise)
            assert float(value.detach()) == pytest.approx(float(exact.detach()), rel=1e-10)
    torch.testing.assert_close(torch.stack(plain).mean(0), 0.64 * slope)
    torch.testing.assert_close(torch.stack(literal).mean(0), slope)
    torch.testing.assert_close(torch.stack(ours).mean(0), slope)
    torch.testing.assert_close(torch.stack(ours_noise).mean(), slope_in_noise)
    assert float(torch.stack(literal_noise).mean() / slope_in_noise) > 1.3


def test_running_vectors_stay_exact():
    made, mean, g = control(), MEAN.clone(), generator(4)
    for _ in range(1000):
        index = sample_indices(M, 2, g)
        change = 0.1 * torch.randn(2, 2, generator=g, dtype=torch.float64)
        mean[index] += change
        made.update(P[:, index], change)
    torch.testing.assert_close(made.running, P @ mean, rtol=0, atol=1e-9)
    assert float((made.running - P @ MEAN).abs().max()) > 1


def test_the_linear_control_removes_the_sampling_of_the_basis_from_the_targets_part():
    Phi, y = torch.randn(6, M, generator=generator(5)).double(), torch.randn(6, 2, generator=generator(6)).double()
    b = Phi.T @ y
    made = LinearControl(b)
    made.update(torch.arange(M), MEAN)
    values, slopes, left = [], [], []
    for sample in pairs(M, 2, False):
        vectors = MEAN[sample.index].clone().requires_grad_()
        value = made.value(sample.index, vectors, sample.left, sample.linear)
        dense = torch.zeros(M, 2, dtype=torch.float64)
        dense[sample.index] = torch.autograd.grad(value, vectors)[0]
        slopes.append(dense)
        values.append(float(value.detach()))
        term = -2 * (y * (Phi[:, sample.index] @ (sample.left[:, None] * MEAN[sample.index]))).sum()
        left.append(float(term) + values[-1])
    assert sum(values) / len(values) == pytest.approx(0, abs=1e-10)
    torch.testing.assert_close(torch.stack(slopes).mean(0), torch.zeros(M, 2).double(), rtol=0, atol=1e-10)
    assert left == pytest.approx([float(-2 * (b * MEAN).sum())] * len(left))  # all rows: nothing is random
    assert float(torch.tensor(values).std()) > 0.1


def test_the_fitted_multiple_is_the_best_and_rejects_a_useless_control():
    g = generator(0)
    noise, shared = torch.randn(2, 4000, generator=g, dtype=torch.float64)
    estimates, helpful, useless = 5 + shared + 0.3 * noise, -2 * shared, torch.randn(4000, generator=g).double() * 50
    learned = {name: Coefficient() for name in ("helpful", "useless")}
    for one, other, useless_one in zip(estimates, helpful, useless, strict=True):
        learned["helpful"].learn(float(one), float(other))
        learned["useless"].learn(float(one), float(useless_one))
    assert learned["helpful"].value == pytest.approx(0.5, abs=0.05)
    assert learned["helpful"].removed == pytest.approx(1 / 1.09, abs=0.03)
    assert abs(learned["useless"].value) * 50 < 0.4
    assert learned["useless"].removed < 0.15


def test_it_is_not_used_before_it_is_known():
    coefficient = Coefficient(warm_up=20)
    for step in range(20):
        assert coefficient.value == 0.0
        coefficient.learn(float(step % 3), -float(step % 3))
    assert coefficient.value > 0.5


@pytest.mark.parametrize(("lengthscale", "helps"), [(2.0, True), (1.0, False)])
def test_it_removes_variance_where_the_lengthscale_is_long(lengthscale, helps):
    """T8d at a tenth of its size: an 8-input table, features, weights from the prior; a control of rank 100."""
    n, m, size, support = 4000, 2000, 250, 100
    X, g = points(n, 8), generator(1)
    basis = FourierBasis(RBF([lengthscale] * 8, fixed=True).bind(8), m, seed=3)
    mean = torch.randn(m, 1, generator=g, dtype=torch.float64)
    rows = sample_indices(n, support, g)
    made = QuadraticControl(lambda index: basis.columns(X[rows], index), torch.zeros(support, 1).double())
    made.reset((index, mean[index]) for index in basis.blocks(512))
    estimates, controls = [], []
    for _ in range(100):
        sample = BasisSample.draw(m, size, g)
        chosen = sample_indices(n, 250, g)
        at_rows = SampledRows(
            basis.columns(X[chosen], sample.index), torch.zeros(250, 1).double(), torch.ones(250).double(), n / 250
        )
        estimates.append(mean_term(at_rows, mean[sample.index], sample, torch.zeros(len(sample.index)).double()))
        weights = torch.full((support,), n / support, dtype=torch.float64)
        controls.append(made.value(basis.columns(X[rows], sample.index), mean[sample.index], sample, weights)[0])
    estimates, controls = torch.stack(estimates), torch.stack(controls)
    ratio = float((estimates + controls).var() / estimates.var())
    fitted = 1 - float(torch.corrcoef(torch.stack([estimates, controls]))[0, 1]) ** 2  # by the best multiple
    assert fitted <= 1.0
    assert (ratio < 0.4) if helps else (ratio > 1)
    if helps:
        assert fitted < 0.4
    print(lengthscale, ratio, fitted)  # noqa: T201
