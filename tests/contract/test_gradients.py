"""Derivatives by the inputs of all predictions of a posterior are correct, or refused."""

from __future__ import annotations

import pytest
import torch

from contract.fits import GAUSSIAN, UNEVEN, fitted
from contract.systems import KINDS
from gigagp.errors import InvalidInputError


def functions(count):
    """Return a function that draws functions from a posterior, once."""

    def draw(posterior):
        found = posterior.sample_functions(count, torch.Generator().manual_seed(3))
        return lambda X: (found(X),)

    return draw


#: Predictions as functions of the points, with tensors as values.
ASKED = {
    "mean": lambda posterior: lambda X: (posterior.mean(X),),
    "mean and variance": lambda posterior: posterior.mean_and_variance,
    "mean and solved variance": lambda posterior: lambda X: posterior.mean_and_variance(X, "solve"),
    "mean and sampled variance": lambda posterior: lambda X: posterior.mean_and_variance(X, "samples"),
    "covariance": lambda posterior: lambda X: (posterior.covariance(X),),
    "functions": functions(2),
    "many functions": functions(70),
    "joint samples": lambda posterior: lambda X: (posterior.sample_at(X, 2, torch.Generator().manual_seed(3)),),
}
#: Predictions without finite differences: eigenvectors of a covariance rotate where two eigenvalues meet.
ONLY_REFUSED_OR_ANY = ("joint samples",)
STEP = 1e-5


def by_differences(function, X):
    """Return the derivatives of all values by central differences."""
    found = None
    for row in range(X.shape[0]):
        for column in range(X.shape[1]):
            moved = [X.clone(), X.clone()]
            moved[0][row, column] += STEP
            moved[1][row, column] -= STEP
            with torch.no_grad():
                above, below = (function(one) for one in moved)
            slopes = [(a - b) / (2 * STEP) for a, b in zip(above, below, strict=True)]
            found = found or [torch.zeros_like(X) for _ in slopes]
            for place, slope in enumerate(slopes):
                found[place][row, column] = slope
    return found


@pytest.mark.each
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("place", [GAUSSIAN, UNEVEN])  # Matern-1/2 has kinks, and its samples no derivative at all
@pytest.mark.parametrize("system", KINDS, ids=repr)
def test_gradients_by_inputs(system, place, asked):
    gp, cell = fitted(system.name, place, "linear")
    X = torch.from_numpy(cell.table.new[1:4]) + 0.01
    weights = torch.Generator().manual_seed(1)
    answer = ASKED[asked](gp.posterior_)
    shapes = answer(X)
    drawn = [torch.randn(one.shape, generator=weights, dtype=torch.float64) for one in shapes]

    def values(points):
        return [(w * one).sum() for w, one in zip(drawn, answer(points), strict=True)]

    live = X.clone().requires_grad_()
    try:
        got = [torch.autograd.grad(one, live, retain_graph=True)[0] for one in values(live)]
    except InvalidInputError:
        return
    if asked in ONLY_REFUSED_OR_ANY:
        assert all(bool(torch.isfinite(one).all()) for one in got)
        return
    expected = by_differences(values, X)
    for name, mine, true in zip(asked.split(" and "), got, expected, strict=True):
        error = float((mine - true).abs().max() / true.abs().max().clamp_min(1e-3))
        assert error < 1e-4, f"{name}: {mine.flatten().tolist()}, by differences {true.flatten().tolist()}"
