"""Distances and spectra of iterative solves, against dense algebra."""

from __future__ import annotations

import pytest
import torch

from gigagp import diagnostics, gradients, kernels
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from gigagp.operators import KernelMatrix
from helpers import generator, points, within_standard_errors

X = points(120, 2)
KERNEL = kernels.Matern(nu=1.5).bind(2)
H = KernelMatrix(KERNEL, X, 0.05)
DENSE = H.to_dense()


def test_the_spectrum_of_the_inverse():
    found = diagnostics.inverse_spectrum(H)
    inverse = torch.linalg.inv(DENSE)
    assert found.trace == pytest.approx(float(inverse.trace()), rel=1e-9)
    assert found.largest == pytest.approx(float(torch.linalg.eigvalsh(inverse)[-1]), rel=1e-9)
    assert found.condition == pytest.approx(float(torch.linalg.cond(DENSE)), rel=1e-6)
    assert found.largest <= 1 / 0.05


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (gradients.Pathwise(n_probes=500, prior="exact"), 120.0),  # Lin et al. 2024, eq. 15: n, for any noise
        (gradients.Hutchinson(n_probes=500), None),  # eq. 14: tr(H^-1)
    ],
)
def test_the_distance_from_a_zero_start(estimator, expected):
    model = Model(KERNEL, ZeroMean(), torch.tensor(0.05, dtype=torch.float64))
    right = estimator.draw(model, X, generator(0)).right_hand_sides(model, H, 10**9)
    solution = torch.linalg.solve(DENSE, right)
    distances = diagnostics.squared_distance(H, torch.zeros_like(solution), solution)
    spectrum = diagnostics.inverse_spectrum(H)
    assert within_standard_errors(distances, spectrum.trace if expected is None else expected)
    if expected is None:
        assert not within_standard_errors(distances, 120.0)  # control: the two laws differ
    difference = solution - 1.0
    direct = (difference * (DENSE @ difference)).sum(0)
    assert torch.allclose(diagnostics.squared_distance(H, torch.ones_like(solution), solution), direct)
