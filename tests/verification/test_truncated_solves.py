"""Potapczynski et al. 2021 on the notes' golden problem: signs and rates of the biases, and the estimates without them.

The numbers are those of papers/rr-cg-ss-rff.md, section 10, for 200 points on a line; its tests 7, 8 and 11 are about
random features.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from gigagp import kernels, optimization
from gigagp.inference import Iterative
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective
from gigagp.inference.gradients import Hutchinson, Pathwise
from gigagp.model.means import resolve_mean
from gigagp.model.model import NOISE, Model
from gigagp.solvers import ConjugateGradients, PivotedCholesky
from gigagp.solvers.krylov import Recurrence
from gigagp.solvers.lanczos import Quadrature, log_determinant
from gigagp.solvers.truncation import ExponentialDecay, Fixed, RussianRoulette, russian_roulette_variance
from golden import Golden, choose, golden, lengths_and_chances
from helpers import generator, new_trace, relative_error, within_standard_errors
from matrices import normal, spectral

BOTH = pytest.mark.parametrize("noise", [0.01, 1.0])
LOW, HIGH = golden(0.01), golden(1.0)
PROBLEMS = {0.01: LOW, 1.0: HIGH}
FIT = {0.01: 98.409704, 1.0: 3.293044}
DETERMINANT = {0.01: -837.740449, 1.0: 26.745202}
OF_Z = {0.01: -846.681691, 1.0: 25.154977}
STEPS = (1, 2, 3, 5, 8, 10, 12)
U = {
    0.01: (1.877362, 2.400909, 2.923576, 4.013969, 9.141925, 33.784519, 90.193547),
    1.0: (1.777019, 2.209068, 2.554321, 2.957610, 3.253406, 3.291800, 3.293044),
}
V = {
    0.01: (-5.427049, -346.121596, -494.551123, -716.735609, -825.868966, -842.331616, -845.405495),
    1.0: (134.918175, 41.444287, 30.332637, 25.568073, 25.161641, 25.155106, 25.154978),
}


def data_fits(problem, steps, preconditioner=None):
    """Return the increments of ``y' x_J``: step length times ``r' P^-1 r``, positive in floating point too."""
    apply = None if preconditioner is None else preconditioner.build(problem.matrix, generator()).apply
    run = Recurrence(problem.matrix, torch.zeros_like(problem.y[:, None]), problem.y[:, None].clone(), apply)
    increments = []
    for _ in range(steps):
        gamma = run.gamma
        increments.append(float(run.step().alpha * gamma))
    return increments


def quadratures(problem, starts, steps):
    """Return the values of every number of steps, shape (steps, s)."""
    quadrature, values = Quadrature(problem.matrix, starts), []
    for _ in range(steps):
        quadrature.step()
        values.append(starts.square().sum(0) * quadrature.values())
    return torch.stack(values)


def run(problem, law, *lengths, b=None, preconditioner=None):
    solver = ConjugateGradients(preconditioner=preconditioner, truncation=choose(law, *lengths))
    return solver.solve(problem.matrix, problem.y if b is None else b)


def solutions(problem, law, b=None, preconditioner=None):
    """Return the solution of every length with its probability."""
    converged = run(problem, ExponentialDecay(0.1, 1, 200), 200, 200, b=b, preconditioner=preconditioner).iterations
    chances = lengths_and_chances(law, converged)
    return [(p, run(problem, law, j, j, b=b, preconditioner=preconditioner).value) for j, p in chances], converged


def spread(values):
    """Return mean and standard deviation of numbers with probabilities."""
    mean = math.fsum(p * x for p, x in values)
    return mean, math.sqrt(max(math.fsum(p * (x - mean) ** 2 for p, x in values), 0))


# Test 2: signs and rates of the biases --------------------------------------------------------------------------------


@BOTH
def test_the_golden_problem_is_the_notes(noise):
    problem = PROBLEMS[noise]
    assert float(problem.y.sum()) == pytest.approx(13.930245, abs=1e-6)
    assert float(problem.y @ problem.y) == pytest.approx(32.914631, abs=1e-6)
    assert problem.z[:6].tolist() == [1, -1, -1, 1, 1, 1]
    assert float(problem.y @ torch.linalg.solve(problem.dense, problem.y)) == pytest.approx(FIT[noise], abs=1e-5)
    assert float(torch.logdet(problem.dense)) == pytest.approx(DETERMINANT[noise], abs=1e-5)


@BOTH
def test_conjugate_gradients_underestimate_the_data_fit(noise):
    """Theorem 1, eq. 9a: from below, and rising with every step."""
    increments = data_fits(PROBLEMS[noise], 20)
    fits = list(itertools.accumulate(increments))
    assert all(increment > 0 for increment in increments)
    assert all(fit < FIT[noise] + 1e-6 for fit in fits)
    for step, expected in zip(STEPS, U[noise], strict=True):
        assert fits[step - 1] == pytest.approx(expected, abs=1e-5)
        fixed = run_fixed(PROBLEMS[noise], step)
        assert float(PROBLEMS[noise].y @ fixed) == pytest.approx(expected, abs=1e-5)


def run_fixed(problem, step):
    return ConjugateGradients(preconditioner=None, truncation=Fixed(step)).solve(problem.matrix, problem.y).value


@BOTH
def test_lanczos_quadrature_overestimates_the_determinant(noise):
    """Theorem 1, eq. 9b; for every single probe, from above and falling."""
    problem = PROBLEMS[noise]
    values = quadratures(problem, problem.z[:, None], 12)[:, 0]
    for step, expected in zip(STEPS, V[noise], strict=True):
        assert float(values[step - 1]) == pytest.approx(expected, abs=1e-5)
    eigenvalues, vectors = torch.linalg.eigh(problem.dense)
    probes = torch.randn(200, 50, generator=generator(), dtype=torch.float64).sign()
    exact = (eigenvalues.log()[:, None] * (vectors.T @ probes).square()).sum(0)
    values = quadratures(problem, probes, 20)
    slack = 1e-9 * exact.abs()
    assert bool((values >= exact - slack).all())
    assert bool((values[1:] <= values[:-1] + slack).all())


def test_the_biases_are_below_the_bound_of_the_condition_number():
    """``4 rho^-2J`` of the data fit, with rho = 1.333."""
    condition = float(torch.linalg.cond(HIGH.dense))
    assert condition == pytest.approx(48.9637, abs=1e-3)
    exact = float(HIGH.y @ torch.linalg.solve(HIGH.dense, HIGH.y))
    gaps = 1 - torch.tensor(list(itertools.accumulate(data_fits(HIGH, 12)))) / exact
    assert bool((gaps <= 4 * rate(condition) ** (-2.0 * torch.arange(1, 13))).all())
    assert float(gaps[4]) == pytest.approx(0.102, abs=1e-3)
    assert float(gaps[9]) == pytest.approx(3.8e-4, abs=1e-5)


def rate(condition):
    return (condition**0.5 + 1) / (condition**0.5 - 1)


def test_the_logarithm_of_the_bias_is_linear_in_the_iterations():
    """O(rho^-2J), seen on eigenvalues spread evenly in logarithm, where no few of them can be dealt with first."""
    matrix, b = spectral(300, 50.0), normal(300, 1)
    problem = Golden(matrix, b[:, 0], b[:, 0])
    exact = float(b[:, 0] @ torch.linalg.solve(problem.dense, b[:, 0]))
    of_fit = exact - torch.tensor(list(itertools.accumulate(data_fits(problem, 24))), dtype=torch.float64)
    eigenvalues, vectors = torch.linalg.eigh(problem.dense)
    exact = float((eigenvalues.log() * (vectors.T @ b[:, 0]).square()).sum())
    of_determinant = quadratures(problem, b, 24)[:, 0] - exact
    steps = torch.arange(5, 25).double()  # a rate is a matter of many steps: the first few are left out
    for gaps in (of_fit, of_determinant):
        assert bool((gaps > 0).all())
        gaps = gaps[4:]
        assert correlation(steps, gaps.log()) < -0.999
        slope = float((gaps[-1] / gaps[0]).log()) / 19
        assert -2.5 * math.log(rate(50)) < slope <= -2 * math.log(rate(50))  # the bound, and not much quicker
        # the control: a power of the iterations leaves ten times as much unexplained
        assert 1 - correlation(steps.log(), gaps.log()) ** 2 > 10 * (1 - correlation(steps, gaps.log()) ** 2)


def correlation(x, y):
    return float(torch.corrcoef(torch.stack([x, y]))[0, 1])


# Test 3: unbiased, exactly --------------------------------------------------------------------------------------------

SPREADS = [  # noise, rate, minimum, standard deviations of the data fit and of the determinant's quadrature
    (0.01, 0.05, 1, 72.89, 247.36),
    (0.01, 0.05, 5, 51.84, 40.71),
    (0.01, 0.05, 10, 16.89, 1.21),
    (0.01, 0.1, 1, 117.60, 360.98),
    (0.01, 0.1, 5, 79.05, 59.28),
    (0.01, 0.1, 10, 24.36, 1.75),
    (1.0, 0.05, 5, 0.0896, 0.110),
    (1.0, 0.1, 1, 0.718, 36.1),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("noise", "rate", "minimum", "of_fit", "of_determinant"), SPREADS)
def test_every_law_is_unbiased_and_has_the_variance_of_the_formula(noise, rate, minimum, of_fit, of_determinant):
    problem, law = PROBLEMS[noise], ExponentialDecay(rate, minimum, 200)
    solved, converged = solutions(problem, law)
    mean = sum(p * x for p, x in solved)
    assert relative_error(mean, torch.linalg.solve(problem.dense, problem.y)) < 1e-10
    fit, deviation = spread([(p, float(problem.y @ x)) for p, x in solved])
    assert fit == pytest.approx(FIT[noise], abs=2e-6)
    assert deviation == pytest.approx(of_fit, rel=5e-3)
    formula = russian_roulette_variance(data_fits(problem, converged), law) ** 0.5
    assert deviation == pytest.approx(formula, rel=1e-3)  # the increments by another route

    values = quadratures(problem, problem.z[:, None], converged)[:, 0].tolist()
    estimates = []
    for j, p in lengths_and_chances(law, converged):
        needed = RussianRoulette(law).coefficients(min(j, 200))
        estimates.append((p, math.fsum(c * values[min(steps, converged) - 1] for steps, c in needed.items())))
    determinant, deviation = spread(estimates)
    assert determinant == pytest.approx(OF_Z[noise], abs=2e-6)
    assert deviation == pytest.approx(of_determinant, rel=5e-3)
    terms = [values[0], *(b - a for a, b in itertools.pairwise(values))]
    assert deviation == pytest.approx(russian_roulette_variance(terms, law) ** 0.5, rel=1e-6)


@pytest.mark.slow
def test_float32_has_the_same_mean():
    """Test 13: rounding makes late terms larger and noisier, and leaves the mean."""
    for noise in (0.01, 1.0):
        single = golden(noise, torch.float32)
        for rate in (0.05, 0.1):
            solved, _ = solutions(single, ExponentialDecay(rate, 20, 200))
            mean = sum(p * x.double() for p, x in solved)
            fit = float(PROBLEMS[noise].y @ mean)
            assert fit == pytest.approx(FIT[noise], rel=1e-3)


# Test 4: two independent lengths --------------------------------------------------------------------------------------


def derivatives(problem):
    """Return dH by the logarithms of lengthscale and noise."""
    x = problem.matrix.X.double()
    squares = (x - x.T).square() / 0.01
    return {
        "lengthscale": squares * torch.exp(-squares / 2),
        NOISE: problem.matrix.noise().double()[0] * torch.eye(200).double(),
    }


@pytest.mark.slow
def test_the_gradients_quadratic_form_needs_independent_lengths():
    solved, _ = solutions(LOW, ExponentialDecay(0.1, 5, 200))
    expected = {"lengthscale": (-12.425689, -85.862, -111.754), NOISE: (94.857945, 162.280, 9.043)}
    stopped = run_fixed(LOW, 10)
    for name, D in derivatives(LOW).items():
        exact, shared, biased = expected[name]
        products = [D @ x for _, x in solved]
        independent = math.fsum(
            p * q * float(x @ Dx)
            for (p, x), ((q, _), Dx) in itertools.product(solved, zip(solved, products, strict=True))
        )
        assert independent == pytest.approx(exact, abs=2e-5)
        # the control: rounding of y by 1e-15 moves it by 0.3 %, since late iterates have large weights
        assert math.fsum(p * float(x @ D @ x) for p, x in solved) == pytest.approx(shared, rel=1e-2)
        assert float(stopped @ D @ stopped) == pytest.approx(biased, rel=1e-4)


# Test 5: gradients ----------------------------------------------------------------------------------------------------

MODEL = Model(kernels.RBF(0.1, 1.0).bind(1), resolve_mean("zero"), torch.tensor(0.01, dtype=torch.float64))
TABLE = TrainingTable(LOW.matrix.X, LOW.y[:, None], resolve_mean("zero"), 2**30)
#: By the logarithms of lengthscale and noise: the notes' dL is of minus the log likelihood.
GRADIENT = torch.tensor([24.481197, -45.160513], dtype=torch.float64)


def gradients(truncation, estimator, repeats, preconditioner=None):
    solver = ConjugateGradients(preconditioner=preconditioner, truncation=truncation)
    objective = Iterative(solver=solver, gradient=estimator, warm_start=False).objective(TABLE, generator())
    found = []
    for _ in range(repeats):
        gradient = objective.evaluate(MODEL).gradient
        found.append(torch.stack([0.1 * gradient["lengthscale"][0], 0.01 * gradient[NOISE]]))
    return torch.stack(found)


def test_the_exact_gradient_is_the_notes():
    found = ExactObjective(TABLE).evaluate(MODEL)
    values = torch.stack([0.1 * found.gradient["lengthscale"][0], 0.01 * found.gradient[NOISE]])
    torch.testing.assert_close(values, GRADIENT, rtol=0, atol=2e-5)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("estimator", "preconditioner"),
    [
        (Hutchinson(4, "rademacher"), None),
        (Hutchinson(4), PivotedCholesky(5)),
        (Pathwise(4, prior="exact"), None),
        (Pathwise(4, prior="exact"), PivotedCholesky(5)),
    ],
    ids=repr,
)
def test_gradients_are_unbiased_and_those_of_stopped_solves_are_not(estimator, preconditioner):
    draws = gradients(ExponentialDecay(0.1, 10), estimator, 100, preconditioner)
    assert within_standard_errors(draws, GRADIENT)
    assert not within_standard_errors(gradients(Fixed(6), estimator, 30, preconditioner), GRADIENT)


@pytest.mark.slow
def test_the_gradient_is_that_of_the_surrogate_loss():
    """``S(theta) = (mean_k a_k' H z_k - b' H b') / 2`` with the solutions held constant (notes, section 3.4)."""
    law = ExponentialDecay(0.1, 5)
    z = torch.randn(200, 3, generator=generator(), dtype=torch.float64)
    solved = run(LOW, law, 9, 14, b=torch.cat([LOW.y[:, None], z], 1))
    first, second = solved.value, solved.truncated.second
    found = Hutchinson(3).gradient(LOW.matrix, first[:, :1], first[:, 1:], z, (second[:, :1], second[:, 1:]))
    lengthscale = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    noise = torch.tensor(0.01, dtype=torch.float64, requires_grad=True)
    x = LOW.matrix.X
    H = torch.exp(-0.5 * ((x - x.T) / lengthscale).square()) + noise * torch.eye(200).double()
    trace = 0.5 * ((first + second)[:, 1:] * (H @ z)).sum() / 3
    loss = 0.5 * (trace - first[:, 0] @ H @ second[:, 0])
    of_lengthscale, of_noise = torch.autograd.grad(-loss, [lengthscale, noise])
    torch.testing.assert_close(found["lengthscale"][0], of_lengthscale, rtol=1e-9, atol=0)
    torch.testing.assert_close(found[NOISE], of_noise, rtol=1e-10, atol=0)


# Test 6: values -------------------------------------------------------------------------------------------------------


def test_the_truncated_determinant_is_unbiased():
    law = ExponentialDecay(0.1, 5)
    estimate = log_determinant(LOW.matrix, None, 300, generator=generator(), truncation=law)
    assert abs(estimate.value - DETERMINANT[0.01]) < 4 * estimate.standard_error
    assert 40 < estimate.standard_error * 300**0.5 < 120  # the notes saw about 77
    stopped = log_determinant(LOW.matrix, None, 300, generator=generator(), truncation=Fixed(5))
    assert stopped.value > DETERMINANT[0.01] + 4 * stopped.standard_error


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("preconditioner", [None, PivotedCholesky(5)], ids=repr)
def test_the_likelihood_is_unbiased(preconditioner):
    def values(truncation, repeats):
        solver = ConjugateGradients(preconditioner=preconditioner, truncation=truncation)
        objective = Iterative(solver=solver, gradient=Hutchinson(8)).objective(TABLE, generator(3))
        return [objective.value(MODEL) for _ in range(repeats)]

    exact = ExactObjective(TABLE).evaluate(MODEL).value
    assert -exact == pytest.approx(-185.877666, abs=1e-5)
    drawn = values(ExponentialDecay(0.1, 10), 30)
    numbers = torch.tensor([estimate.value for estimate in drawn], dtype=torch.float64)
    assert within_standard_errors(numbers, exact)
    errors = torch.tensor([estimate.standard_error for estimate in drawn], dtype=torch.float64)
    assert float(errors.square().mean().sqrt()) == pytest.approx(float(numbers.std()), rel=0.5)
    stopped = torch.tensor([estimate.value for estimate in values(Fixed(3), 10)], dtype=torch.float64)
    assert not within_standard_errors(stopped, exact)


# Test 9: what is learned ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_stopped_solves_learn_long_lengthscales_and_random_ones_do_not():
    """Figure 2 of the paper: only the lengthscale is learned. The notes have +1.2, +0.4 and 0 for three laws."""
    n = 100
    x = torch.linspace(0, 1, n, dtype=torch.float64)[:, None]
    noise = 0.1 * torch.randn(n, 1, generator=generator(), dtype=torch.float64)
    table = TrainingTable(x, x * torch.sin(5 * math.pi * x) + noise, resolve_mean("zero"), 2**30)
    kernel = kernels.RBF(0.3, 1.0, fixed=["variance"]).bind(1)
    start = Model(kernel, resolve_mean("zero"), torch.full((n,), 0.01, dtype=torch.float64))
    adam = optimization.Adam(learning_rate=0.05, steps=60, transform="log", final_share=0.2)

    def learned(objective):
        return float(adam.run(objective, start, new_trace(), generator()).kernel.parameters()["lengthscale"])

    def with_truncation(law):
        solver = ConjugateGradients(preconditioner=None, truncation=law)
        settings = Iterative(solver=solver, gradient=Hutchinson(10, "rademacher"), warm_start=False)
        return learned(settings.objective(table, generator(1)))

    best = learned(ExactObjective(table))
    assert 0.1 < best < 0.2
    assert math.log(with_truncation(Fixed(3)) / best) > 1
    assert math.log(with_truncation(Fixed(5)) / best) > 0.2
    assert abs(math.log(with_truncation(ExponentialDecay(0.1, 10)) / best)) < 0.02


# Test 10: preconditioning ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_preconditioner_shortens_the_series_and_keeps_the_mean():
    law = ExponentialDecay(0.1, 5, 200)
    expected = {0.01: ((51, 79.05), (34, 29.8)), 1.0: ((24, 0.130), (16, 0.0024))}
    for noise, pairs in expected.items():
        problem = PROBLEMS[noise]
        exact = torch.linalg.solve(problem.dense, problem.y)
        for recipe, (iterations, deviation) in zip((None, PivotedCholesky(5)), pairs, strict=True):
            solved, converged = solutions(problem, law, preconditioner=recipe)
            assert relative_error(sum(p * x for p, x in solved), exact) < 1e-10
            assert abs(converged - iterations) <= 3
            found = spread([(p, float(problem.y @ x)) for p, x in solved])[1]
            assert found == pytest.approx(deviation, rel=0.02)
            assert found == pytest.approx(
                russian_roulette_variance(data_fits(problem, converged, recipe), law) ** 0.5, 1e-3
            )
