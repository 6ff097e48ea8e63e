"""Inducing points: distances in lengthscales, and the share of the latent variance."""

from __future__ import annotations

import pytest
import torch

from gigagp.diagnostics import inducing_distance, latent_share
from gigagp.inference.computation_aware.actions import DenseActions
from gigagp.kernels import Linear, Matern
from helpers import points
from twelve_rows import NEW, NOISE, ROWS, blocks, posterior_of


def test_distances_are_in_lengthscales():
    X = torch.tensor([[0.0, 0.0], [10.0, 10.0]], dtype=torch.float64)
    Z = torch.tensor([[1.0, 0.0], [10.0, 7.0]], dtype=torch.float64)
    assert inducing_distance(Matern(1.5, [1.0, 1.0]), Z, X) == pytest.approx((1 + 3) / 2)
    assert inducing_distance(Matern(1.5, [0.5, 3.0]), Z, X) == pytest.approx((2 + 1) / 2)
    assert inducing_distance(Linear() + Matern(1.5, [0.5, 3.0]), Z, X) == pytest.approx((2 + 1) / 2)
    assert inducing_distance(Linear(), Z, X) == pytest.approx(2.0)
    many = points(600, 2)
    assert inducing_distance(Matern(1.5, 1.0), many, many) == pytest.approx(0.0, abs=1e-6)


def test_the_share_of_the_latent_variance():
    posterior = posterior_of(blocks())
    variance = posterior.mean_and_variance(NEW)[1]
    assert latent_share(posterior, NEW) == pytest.approx(float((variance / (variance + NOISE)).mean()))
    sure = posterior_of(DenseActions(torch.eye(12, dtype=torch.float64)))
    assert latent_share(sure, ROWS) < latent_share(posterior, ROWS)
