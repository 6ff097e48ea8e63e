"""Random Fourier features: the right law, and inner products that converge to the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gigagp import kernels
from gigagp.errors import InvalidInputError
from gigagp.kernels import RBF, Constant, FeatureDraw, Linear, Matern, Periodic, RationalQuadratic, White
from gigagp.kernels.features import nested_columns
from helpers import DTYPES, all_kernels, close, generator, points

ALL = all_kernels()


def root_mean_square_error(kernel, X, n_frequencies, *, law="joint", seed=0):
    kernel = kernel.bind(X.shape[1])
    draw = kernel.draw_features(2 * n_frequencies, X.shape[1], generator(seed), law=law)
    features = kernel.features(X, draw)
    return float((features @ features.T - kernel.block(X, X)).square().mean().sqrt())


@pytest.mark.few(5)
@pytest.mark.parametrize("d", [1, 4, 9])
@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_matern_frequencies_are_multivariate_t(d, nu):
    assert root_mean_square_error(Matern(nu), points(25, d), 100_000) < 0.004


@pytest.mark.parametrize("d", [4, 9])
def test_the_published_law_is_another_kernel(d):
    """Lin et al. 2024 published independent coordinates; more frequencies do not help it."""
    assert root_mean_square_error(Matern(1.5), points(25, d), 100_000, law="independent") > 0.03
    # in one dimension the two laws agree
    assert root_mean_square_error(Matern(1.5), points(25, 1), 100_000, law="independent") < 0.004


@pytest.mark.each
@pytest.mark.parametrize("law", ["joint", "balanced"])
@pytest.mark.parametrize("name", [name for name in ALL if name != "white"])
def test_inner_products_converge_to_the_kernel(name, law):
    kernel, X = ALL[name], points(12, 4) * 0.5
    scale = float(kernel.diagonal(X).max())
    coarse = root_mean_square_error(kernel, X, 500, law=law) / scale
    fine = root_mean_square_error(kernel, X, 50_000, law=law, seed=1) / scale
    assert fine < 0.02
    assert fine < 0.3 * coarse + 1e-12  # one over root m says 0.1


def test_balanced_draws_of_a_product_are_independent(monkeypatch):
    """Strata in order would pair the tails of both leaves, which is another kernel."""
    kernel, X = RBF(0.7) * Matern(0.5, 1.2), points(12, 2)
    assert root_mean_square_error(kernel, X, 50_000, law="balanced") < 0.01
    monkeypatch.setattr(torch, "randperm", lambda n, generator=None: torch.arange(n))
    assert root_mean_square_error(kernel, X, 50_000, law="balanced") > 0.02


@pytest.mark.parametrize("kernel", [RBF(), Matern(0.5), Matern(1.5), RationalQuadratic()])
def test_balanced_draws_see_the_roughness_between_close_points(kernel):
    """The variance of small differences is an average over the spectrum's tail: plain draws are noisier there."""
    X = points(1, 2).repeat(2, 1)
    X[1, 0] += 0.003
    kernel = kernel.bind(2)
    exact = kernel.block(X, X)
    expected = float(exact[0, 0] - exact[0, 1])

    def spread(law):
        errors = []
        for seed in range(40):
            features = kernel.features(X, kernel.draw_features(400, 2, generator(seed), law=law))
            errors.append(float((features[0] - features[1]).square().sum() / 2) / expected - 1)
        return float(torch.tensor(errors).square().mean().sqrt())

    assert spread("balanced") < 0.9 * spread("joint")


def test_draws_survive_a_file():
    kernel, X = ALL["nested"], points(5, 4)
    draw = kernel.draw_features(10, 4, generator())
    again = FeatureDraw.from_state(*draw.state())
    assert torch.equal(kernel.features(X, draw), kernel.features(X, again))


@pytest.mark.parametrize("alpha", [0.3, 1.0, 5.0])
def test_rational_quadratic_features(alpha):
    assert root_mean_square_error(RationalQuadratic(alpha=alpha), points(25, 3), 50_000) < 0.008


def test_constant_and_linear_terms_are_exact():
    kernel, X = (Constant(0.7) + Linear([0.4, 0.9]) + Constant(2.0) * Linear(0.3)).bind(2), points(9, 2)
    features = kernel.features(X, kernel.draw_features(2, 2, generator()))
    assert features.shape == (9, 1 + 2 + 2)
    assert torch.allclose(features @ features.T, kernel.block(X, X))


def test_white_parts_have_no_features():
    X = points(9, 2)
    kernel = (RBF() + White() + White() * Linear()).bind(2)
    assert kernel.features(X, kernel.draw_features(20, 2, generator())).shape == (9, 20)
    assert White().features(X, White().draw_features(20, 2, generator())).shape == (9, 0)


def test_columns_add_up_over_terms():
    kernel = ((RBF() + Matern()) * Periodic() + Constant()).bind(3)
    X = points(5, 3)
    assert kernel.features(X, kernel.draw_features(50, 3, generator())).shape == (5, 101)


@pytest.mark.parametrize("name", ["matern32", "rational quadratic", "periodic", "nested"])
def test_frozen_draws_move_smoothly_with_the_hyperparameters(name):
    kernel, X = ALL[name], points(7, 4)
    draw = kernel.draw_features(100, 4, generator())
    features = kernel.features(X, draw)
    assert torch.equal(features, kernel.features(X, kernel.draw_features(100, 4, generator())))

    def moved(step):
        other = kernel.replace({key: value * (1 + step) for key, value in kernel.parameters().items()})
        return float((other.features(X, draw) - features).norm())

    # the steepest waves of Matern-1/2 have frequencies of a hundred million: only small steps are small for them
    assert moved(1e-10) > 0
    assert moved(1e-9) == pytest.approx(10 * moved(1e-10), rel=0.05)


@pytest.mark.parametrize("dtype", DTYPES)
def test_features_follow_the_dtype(dtype):
    kernel, X = ALL["sum"], points(6, 4, dtype=dtype)
    assert kernel.features(X, kernel.draw_features(10, 4, generator())).dtype == dtype


def test_refusals():
    with pytest.raises(InvalidInputError, match="n_features must be an even number"):
        RBF().draw_features(3, 2, generator())
    with pytest.raises(InvalidInputError, match="law of random features"):
        RBF().draw_features(4, 2, generator(), law="wrong")
    draw = RBF().draw_features(4, 2, generator())
    with pytest.raises(InvalidInputError, match="another structure"):
        (RBF() + Matern()).features(points(3, 2), draw)


@pytest.mark.parametrize("alpha", [0.04, 0.3, 1.0, 8.0])
@pytest.mark.parametrize("law", ["joint", "balanced"])
def test_the_rational_quadratic_is_differentiable_in_alpha(alpha, law):
    kernel, X = RationalQuadratic(alpha=alpha).bind(3), points(6, 3)
    draw = kernel.draw_features(200, 3, generator(), law=law)
    weights = points(6, 200, seed=1)

    def scalar(value):
        return (kernel.replace({"alpha": value}).features(X, draw) * weights).sum()

    value = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(scalar(value), value)
    step = 1e-5 * alpha
    with torch.no_grad():
        difference = (scalar(value + step) - scalar(value - step)) / (2 * step)
    assert bool(torch.isfinite(slope))
    assert float(slope) == pytest.approx(float(difference), rel=1e-5, abs=1e-6 * float(weights.norm()))


#: Bounds of the phases of a dozen frequencies with heavy tails, whose rounding is that of a feature.
PHASES = {"matern12": 1e9, "nested": 1e7, "sphere": 1e5}


@pytest.mark.parametrize("name", [name for name in ALL if name != "white"])
def test_one_table_of_features_holds_those_of_fewer_frequencies(name):
    kernel, X = ALL[name], points(5, 4)
    draw = kernel.draw_features(24, 4, generator())
    whole = kernel.features(X, draw)
    for count in (1, 5, 12):
        columns, factors = nested_columns(kernel, draw, count)
        fewer = kernel.features(X, draw.first(count))
        close(whole[:, columns] * factors, fewer, condition=PHASES.get(name, 1e4))
    if whole.shape[1] > 24:  # the control: exact columns do not carry the factor
        columns, factors = nested_columns(kernel, draw, 5)
        assert not torch.allclose(whole[:, columns] * (12 / 5) ** 0.5, kernel.features(X, draw.first(5)))
    with pytest.raises(InvalidInputError, match="n_frequencies must be between 1 and 12"):
        draw.first(13)


@pytest.mark.slow
def test_importing_kernels_is_enough():
    """In a process of its own: other modules import what draws features too."""
    code = (
        "import torch; from gigagp import kernels; kernel = kernels.RBF() * kernels.Linear(); "
        "draw = kernel.draw_features(4, 2, torch.Generator()); print(kernel.features(torch.ones(3, 2), draw).shape[0])"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(kernels.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "3\n", done.stderr[-500:]
