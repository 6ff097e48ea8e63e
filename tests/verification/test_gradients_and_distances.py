"""Notes on Lin et al. 2024, section 10, tests 1 to 4: the gradient, the initial distance, the variance, Lemma 4."""

from __future__ import annotations

import math

import pytest
import torch

from gigagp.diagnostics import inverse_spectrum, squared_distance
from gigagp.inference.gradients import Exact, Hutchinson, Pathwise
from gigagp.kernels import Matern
from gigagp.model.means import ZeroMean
from gigagp.model.model import NOISE, Model
from gigagp.operators import KernelMatrix
from helpers import draw_targets, generator, points, reference_matrix, within_standard_errors

BUDGET = 2**31


def setting(n, d, sigma):
    """Return model, inputs and H of section 11: normal inputs, unit lengthscales and signal."""
    X = points(n, d)
    model = Model(Matern(1.5, 1.0, 1.0).bind(d), ZeroMean(), torch.tensor(sigma**2, dtype=torch.float64))
    return model, X, KernelMatrix(model.kernel, X, model.noise_variance)


def right_hand_sides(estimator, model, X, matrix, seed=0):
    return estimator.draw(model, X, generator(seed)).right_hand_sides(model, matrix, BUDGET)


def in_scales(gradient, model):
    """Return the gradient by the paper's scales: s_f and sigma are standard deviations."""
    return torch.cat(
        [
            gradient["lengthscale"],
            (2 * model.kernel.variance.sqrt() * gradient["variance"])[None],
            (2 * model.noise_variance.sqrt() * gradient[NOISE])[None],
        ]
    )


# 1 ------------------------------------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("estimator", [Hutchinson(16), Pathwise(16, prior="exact")], ids=["standard", "pathwise"])
def test_1_the_average_over_200_seeds_is_the_gradient(estimator):
    model, X, matrix = setting(150, 3, 0.3)
    H = matrix.to_dense()
    factor = torch.linalg.cholesky(H)
    y = draw_targets(model.kernel, X, 0.3**2, seed=1)
    solved = torch.cholesky_solve(y, factor)
    exact = in_scales(Exact().from_factor(matrix, solved, factor), model)
    found = []
    for seed in range(200):
        right = right_hand_sides(estimator, model, X, matrix, seed)
        solutions = torch.cholesky_solve(right, factor)
        gradient = in_scales(estimator.gradient(matrix, solved, solutions, right), model)
        left, other = estimator.trace_pair(solutions, right)
        closed = 0.3 * (solved.square().sum() - (left * other).sum() / 16)  # sigma (|v_y|^2 - mean A'C)
        assert float(gradient[-1]) == pytest.approx(float(closed), rel=1e-10)
        found.append(gradient)
    found = torch.stack(found)
    assert within_standard_errors(found, exact, errors=4)
    assert not within_standard_errors(found, exact + 0.6 * found.std(0), errors=4)  # the control: 8 errors away


# 2 ------------------------------------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize(("sigma", "measured"), [(1.0, 769), (0.3, 4196), (0.1, 9438), (0.03, 11908)])
def test_2_the_initial_distance(sigma, measured):
    model, X, matrix = setting(1000, 4, sigma)
    H = matrix.to_dense()
    factor = torch.linalg.cholesky(H)
    draws = 2000

    def distances(estimator):
        right = right_hand_sides(estimator, model, X, matrix)
        return squared_distance(matrix, torch.zeros_like(right), torch.cholesky_solve(right, factor))

    trace, largest, _ = inverse_spectrum(matrix)
    inverse = torch.cholesky_inverse(factor)
    assert trace == pytest.approx(float(inverse.trace()), rel=1e-8)
    assert trace == pytest.approx(measured, rel=0.1)  # other normal inputs than those of the notes
    assert largest <= sigma**-2 * (1 + 1e-9)
    pathwise = distances(Pathwise(draws, prior="exact"))
    assert float(pathwise.mean()) == pytest.approx(1000, abs=4 * math.sqrt(2 * 1000 / draws))
    standard = distances(Hutchinson(draws))
    standard_error = math.sqrt(2 * float(inverse.square().sum()) / draws)
    assert float(standard.mean()) == pytest.approx(trace, abs=4 * standard_error)
    if sigma < 1:  # the control: the two laws differ
        assert abs(float(standard.mean()) - 1000) > 20 * standard_error


# 3 ------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_3_variances_of_the_trace_estimates():
    """Equations 18 and 20 within 5 %; equal for signal and noise, smaller for every lengthscale."""
    model, X, matrix = setting(200, 4, 0.1)
    H = matrix.to_dense()
    inverse, draws = torch.linalg.inv(H), 20_000
    names = {"s_f": ("variance", 0, 2.0), "l_1": ("lengthscale", 0, 1.0), "l_3": ("lengthscale", 2, 1.0)}
    derivatives = {"sigma": 2 * 0.1 * torch.eye(200).double()}
    for label, (name, place, factor) in names.items():
        value = model.kernel.parameters()[name]
        unit = torch.zeros_like(value)
        unit.view(-1)[place] = factor

        def moved(candidate, name=name):
            return reference_matrix(model.kernel.replace({name: candidate}), X)

        derivatives[label] = torch.autograd.functional.jvp(moved, value, unit)[1]
    expected, found = {}, {}
    for kind, estimator in (("standard", Hutchinson(draws)), ("pathwise", Pathwise(draws, prior="exact"))):
        right = right_hand_sides(estimator, model, X, matrix)
        left, other = estimator.trace_pair(inverse @ right, right)
        for label, D in derivatives.items():
            A = inverse @ D
            squares = float((A * A.T).sum())
            expected[kind, label] = 2 * squares if kind == "pathwise" else squares + float(A.square().sum())
            terms = (left * (D @ other)).sum(0)
            found[kind, label] = float(terms.var())
            assert float(terms.mean()) == pytest.approx(float(A.trace()), abs=4 * float(terms.std()) / draws**0.5)
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=0.05), key
    for label in ("sigma", "s_f"):
        assert expected["pathwise", label] == pytest.approx(expected["standard", label], rel=1e-6)
    for label in ("l_1", "l_3"):
        assert found["pathwise", label] < 0.95 * found["standard", label]


# 4 ------------------------------------------------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize("s", [4, 64])
@pytest.mark.parametrize(("law", "fourth_moment"), [("gaussian", 3), ("rademacher", 1)])
def test_4_lemma_4(law, fourth_moment, s):
    n, repeats = 50, 192_000 // s
    model, X, _ = setting(n, 2, 1.0)
    z = Hutchinson(s * repeats, law=law).draw(model, X, generator()).vectors.reshape(n, repeats, s)
    c = points(n, 1, seed=3)[:, 0]
    c /= c.norm()
    moved = torch.einsum("nrs,rs->nr", z, torch.einsum("nrs,n->rs", z, c)) / s - c[:, None]
    values = moved.square().sum(0)
    expected = (fourth_moment + n - 2) / s
    assert float(values.mean()) == pytest.approx(expected, rel=0.02)
    assert within_standard_errors(values, expected)
    other = (4 - fourth_moment + n - 2) / s  # the control: the other law's value
    assert not within_standard_errors(values, other)
