"""The distribution at batches of points that every system gives: values, derivatives, samples, and what is kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from contract.fits import GAUSSIAN, UNEVEN, fitted
from contract.systems import KINDS

BADLY_SCALED = 5
#: Functions of points whose derivatives must be right.
ASKED = {
    "mean": lambda found: found.mean,
    "variance": lambda found: found.variance,
    "covariance": lambda found: found.covariance,
    "samples": lambda found: found.rsample((2,), random_state=4),
    "density": lambda found: found.log_prob(torch.zeros_like(found.mean)),
}


def batches(cell, leading, q):
    """Return points within the range of the rows, shape (*leading, q, d), and the width of each input."""
    low, high = cell.table.X[:, :].min(0), cell.table.X.max(0)
    share = np.random.default_rng(8).uniform(0.2, 0.8, size=(*leading, q, len(low)))
    return torch.from_numpy(low + (high - low) * share), torch.from_numpy(high - low)


@pytest.mark.each
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("place", [GAUSSIAN, UNEVEN, BADLY_SCALED])
@pytest.mark.parametrize("system", KINDS, ids=repr)
def test_derivatives_by_points(system, place, asked):
    gp, cell = fitted(system.name, place, "linear")
    X, width = batches(cell, (2,), 2)

    def answer(moved):
        # observations have a density everywhere, and functions between near points hardly any spread of their own
        noisy = asked in ("samples", "density")
        return ASKED[asked](gp.posterior(X + width * moved, include_noise=noisy))

    start = torch.zeros_like(X, requires_grad=True)
    assert torch.autograd.gradcheck(answer, start, eps=1e-5, atol=2e-4, rtol=2e-3, fast_mode=True)


@pytest.mark.each
@pytest.mark.filterwarnings("ignore:Squared errors")  # few functions, given noise
@pytest.mark.parametrize("targets", ["one", "two"])
@pytest.mark.parametrize("system", KINDS, ids=repr)
def test_values_are_those_of_predict(system, targets):
    gp, cell = fitted(system.name, GAUSSIAN, "linear", targets=targets)
    X, _ = batches(cell, (2, 3), 2)
    found = gp.posterior(X, variance=system.variance)
    flat = X.reshape(-1, X.shape[-1]).numpy()
    mean, std = gp.predict(flat, return_std=True, variance=system.variance)
    whole = gp.predict(flat, return_cov=True)[1]
    t = () if targets == "one" else mean.shape[1:]
    np.testing.assert_allclose(found.mean, mean.reshape(2, 3, 2, *t), rtol=1e-9)
    np.testing.assert_allclose(found.stddev, std.reshape(2, 3, 2, *t), rtol=1e-7)
    blocks = np.stack([whole[k : k + 2, k : k + 2] for k in range(0, 12, 2)]).reshape(2, 3, 2, 2, *t)
    np.testing.assert_allclose(found.covariance, blocks, rtol=1e-6, atol=1e-8 * float(np.abs(blocks).max()))


@pytest.mark.parametrize("system", KINDS, ids=repr)
def test_samples_have_the_moments(system):
    gp, cell = fitted(system.name, UNEVEN)
    found = gp.posterior(batches(cell, (2,), 3)[0])
    drawn = found.rsample((4000,), random_state=2)
    spread = found.covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    apart = (drawn - found.mean) / spread
    assert float(apart.mean(0).abs().max()) < 5 / 4000**0.5
    correlation = found.covariance / (spread[..., None, :] * spread[..., :, None])
    estimate = torch.einsum("sbp,sbq->bpq", apart, apart) / 4000
    assert float((estimate - correlation).abs().max()) < 5 * (2 / 4000) ** 0.5
