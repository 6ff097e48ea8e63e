from __future__ import annotations

import itertools
import math

import pytest
import torch

from gigagp.errors import InvalidInputError, NonFiniteError
from gigagp.model.estimate import Estimate
from gigagp.operators import DenseMatrix
from gigagp.solvers import PivotedCholesky, RandomlyPivotedCholesky, TwoLevel
from gigagp.solvers.lanczos import Quadrature, log_determinant
from gigagp.solvers.truncation import ExponentialDecay, Fixed, RussianRoulette, SingleSample
from matrices import Spoiled, Weighted, generator, kernel_matrix, normal, spectral, with_duplicates, with_spectrum

CHOICES = [None, "auto", PivotedCholesky(20), RandomlyPivotedCholesky(20), TwoLevel(20, 20)]


def exact(matrix):
    return float(torch.logdet(matrix.to_dense().double()))


@pytest.mark.parametrize("preconditioner", CHOICES, ids=repr)
@pytest.mark.parametrize("matrix", [kernel_matrix(150, noise=0.01), spectral(100), with_duplicates(90, 30)])
def test_it_is_within_four_standard_errors(preconditioner, matrix):
    estimate = log_determinant(matrix, preconditioner, n_probes=64, generator=generator())
    assert isinstance(estimate, Estimate)
    assert abs(estimate.value - exact(matrix)) < 4 * estimate.standard_error + 1e-6
    assert estimate.standard_error < 0.05 * abs(exact(matrix))


@pytest.mark.slow
def test_the_mean_over_many_runs_is_unbiased_and_the_error_is_honest():
    matrix = kernel_matrix(80, noise=0.05)
    runs = [log_determinant(matrix, TwoLevel(10, 10), 8, generator=generator(seed)) for seed in range(60)]
    values = torch.tensor([run.value for run in runs])
    spread = float(values.std())
    assert abs(float(values.mean()) - exact(matrix)) < 4 * spread / 60**0.5
    assert float(torch.tensor([run.standard_error for run in runs]).mean()) == pytest.approx(spread, rel=0.4)
    # Control: two steps of Lanczos are a biased quadrature, which the same test detects.
    few = torch.tensor([log_determinant(matrix, None, 8, 2, generator=generator(seed)).value for seed in range(60)])
    assert abs(float(few.mean()) - exact(matrix)) > 4 * float(few.std()) / 60**0.5


def test_with_the_matrix_itself_as_preconditioner_it_is_exact():
    matrix = kernel_matrix(60)
    for recipe in (TwoLevel(5, 60), PivotedCholesky(60)):
        estimate = log_determinant(matrix, recipe, n_probes=4, generator=generator())
        assert estimate.value == pytest.approx(exact(matrix), abs=1e-6)
        assert estimate.standard_error < 1e-6


def test_few_distinct_eigenvalues_need_as_many_steps_and_no_more_harm():
    matrix = DenseMatrix(with_spectrum(torch.tensor([0.5, 2.0, 7.0]).double().repeat(10)))
    for steps in (3, 4, 100):
        estimate = log_determinant(matrix, None, n_probes=200, max_steps=steps, generator=generator())
        assert math.isfinite(estimate.value)
        assert abs(estimate.value - exact(matrix)) < 4 * estimate.standard_error
    scaled_identity = DenseMatrix(3.0 * torch.eye(20).double())
    estimate = log_determinant(scaled_identity, None, generator=generator())
    assert estimate.value == pytest.approx(20 * math.log(3))
    assert estimate.standard_error < 1e-10


def test_a_better_preconditioner_has_a_smaller_error():
    matrix = kernel_matrix(300, noise=0.01)
    errors = [
        log_determinant(matrix, choice, 32, generator=generator()).standard_error
        for choice in (None, RandomlyPivotedCholesky(40), TwoLevel(40, 40))
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.5 * errors[0]


def test_float32_is_close_to_float64():
    single = log_determinant(kernel_matrix(100, noise=0.1, dtype=torch.float32), generator=generator())
    double = log_determinant(kernel_matrix(100, noise=0.1), generator=generator())
    assert single.value == pytest.approx(double.value, abs=0.05)


def test_the_same_seed_gives_the_same_number():
    matrix = kernel_matrix(60)
    assert log_determinant(matrix, generator=generator(1)) == log_determinant(matrix, generator=generator(1))
    assert log_determinant(matrix) == log_determinant(matrix)
    assert log_determinant(matrix, None, generator=generator(1)) != log_determinant(
        matrix, None, generator=generator(2)
    )


def test_one_probe_has_no_standard_error():
    estimate = log_determinant(kernel_matrix(40, noise=0.3), n_probes=1)
    assert math.isnan(estimate.standard_error)
    assert math.isfinite(estimate.value)


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(NonFiniteError, match="not positive definite"):
        log_determinant(DenseMatrix(with_spectrum(torch.tensor([1.0, 0.5, -0.9]).double())), None)
    with pytest.raises(NonFiniteError):
        log_determinant(Spoiled(torch.eye(5).double() + 0.1, 0), None)
    with pytest.raises(InvalidInputError, match="n_probes of log_determinant must be an int of at least 1; got 0"):
        log_determinant(kernel_matrix(10), n_probes=0)
    with pytest.raises(InvalidInputError, match="preconditioner of log_determinant must be"):
        log_determinant(kernel_matrix(10), "best")
    with pytest.raises(InvalidInputError, match="none to read"):
        log_determinant(Weighted(torch.eye(5).double(), torch.eye(5).double(), 0.1), TwoLevel())


def test_an_operator_without_entries_needs_no_preconditioner():
    K = with_spectrum(torch.logspace(0, -1, 30).double())
    operator = Weighted(K, torch.eye(30).double(), 0.1)
    estimate = log_determinant(operator, n_probes=64)
    assert abs(estimate.value - float(torch.logdet(operator.full))) < 4 * estimate.standard_error


# Random truncation (its numbers: tests/verification/test_truncated_solves.py) -----------------------------------------


@pytest.mark.parametrize("preconditioner", CHOICES, ids=repr)
def test_a_truncated_quadrature_is_unbiased_whatever_the_preconditioner(preconditioner):
    matrix = kernel_matrix(80, noise=0.05)
    law = ExponentialDecay(0.4, 2)
    estimate = log_determinant(matrix, preconditioner, 200, generator=generator(), truncation=law)
    assert abs(estimate.value - exact(matrix)) < 4 * estimate.standard_error
    again = log_determinant(matrix, preconditioner, 200, generator=generator(), truncation=RussianRoulette(law))
    assert again == estimate
    if preconditioner is None:  # control: stopped at the mean length, without weights
        stopped = log_determinant(matrix, None, 200, generator=generator(), truncation=Fixed(3))
        assert stopped.value > exact(matrix) + 4 * stopped.standard_error


def test_a_single_sample_of_the_quadrature_is_unbiased_too():
    matrix = kernel_matrix(80, noise=0.5)
    series = SingleSample(ExponentialDecay(0.4, 4))
    estimate = log_determinant(matrix, None, 300, generator=generator(), truncation=series)
    assert abs(estimate.value - exact(matrix)) < 4 * estimate.standard_error


def test_quadratures_fall_towards_their_limit_and_are_kept():
    matrix, z = kernel_matrix(60, noise=0.1), normal(60, 4)
    quadrature, values = Quadrature(matrix, z), []
    while not quadrature.exhausted:
        quadrature.step()
        values.append(quadrature.values())
    eigenvalues, vectors = torch.linalg.eigh(matrix.to_dense())
    limit = (eigenvalues.log()[:, None] * (vectors.T @ z).square()).sum(0) / z.square().sum(0)
    torch.testing.assert_close(values[-1], limit)
    assert all(bool((after <= before + 1e-9).all()) for before, after in itertools.pairwise(values))
    assert quadrature.steps == len(values)
    torch.testing.assert_close(quadrature.values(5), values[4])
    torch.testing.assert_close(quadrature.values(5, torch.tensor([2, 0])), values[4][[2, 0]])
    torch.testing.assert_close(quadrature.values(10**6), values[-1])


def test_lengths_that_do_not_fit_are_refused():
    matrix = kernel_matrix(40, noise=0.3)
    with pytest.raises(InvalidInputError, match="minimum of ExponentialDecay must be at most the number of rows, 40"):
        log_determinant(matrix, None, truncation=ExponentialDecay(0.1, 41))
    with pytest.raises(InvalidInputError, match="at most max_steps of log_determinant, 10; got 12"):
        log_determinant(matrix, None, max_steps=10, truncation=ExponentialDecay(0.1, 12))
