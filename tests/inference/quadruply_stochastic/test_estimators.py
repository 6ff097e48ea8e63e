"""Theorems 1 and 2, Propositions 1 and 2: golden numbers and full enumeration, with controls that fail."""

from __future__ import annotations

import itertools

import pytest
import torch

from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample
from gigagp.inference.quadruply_stochastic.estimators.terms import (
    column_terms,
    constant_term,
    diagonal_terms,
    mean_term,
)
from helpers import generator
from inference.quadruply_stochastic.reference import Instance, pairs, samples, small, tiny
from weight_bounds import best_chevron, best_scale, bound_terms, exact_weights, log_evidence

WHOLE = "all rows and functions"


def terms_of(case: Instance):
    return bound_terms(case.Phi, case.S, case.y, case.noise, case.mean, case.root)


def full_sample(m):
    return BasisSample.from_indices(torch.arange(m), torch.arange(m), m)


def mean_estimate(case, rows, sample, **settings):
    rows = case.rows(rows, sample.index)
    return float(mean_term(rows, case.mean[sample.index][:, None], sample, case.prior(sample.index), **settings))


def covariance_estimate(case, rows, sample, columns, *, log_inside=True):
    """Theorem 2 with sampled columns, in its generic form."""
    found = column_terms(
        case.rows(rows, sample.index), case.root[sample.index][:, columns], sample, case.prior(sample.index)
    )
    logs = -2 * case.root.diagonal()[columns].log()
    weight = case.m / len(columns)
    return float(weight * (found + logs).sum()) if log_inside else float(weight * found.sum() + logs.sum())


# Closed forms -------------------------------------------------------------------------------------------------------


def test_closed_forms_have_the_golden_numbers():
    case = tiny()
    found = terms_of(case)
    assert found == pytest.approx(case.terms, abs=1e-9)
    assert found.bound == pytest.approx(-9.8662561099, abs=1e-9)
    assert log_evidence(case.Phi, case.S, case.y, case.noise) == pytest.approx(case.evidence, abs=1e-9)
    mean, root = exact_weights(case.Phi, case.S, case.y, case.noise)
    torch.testing.assert_close(
        mean, torch.tensor([1.1046025105, -0.2510460251], dtype=torch.float64), atol=1e-9, rtol=0
    )
    expected = torch.tensor([[0.4290692466, 0], [-0.0975157379, 0.3015113446]], dtype=torch.float64)
    torch.testing.assert_close(root, expected, atol=1e-9, rtol=0)
    assert bound_terms(case.Phi, case.S, case.y, case.noise, mean, root).mean == pytest.approx(-6.6276150628, abs=1e-9)
    scale = best_scale(case.Phi.square().sum(0), case.S.diagonal(), case.noise)
    torch.testing.assert_close(
        scale, torch.tensor([0.4082482905, 0.3015113446], dtype=torch.float64), atol=1e-9, rtol=0
    )
    best = {
        k: bound_terms(case.Phi, case.S, case.y, case.noise, mean, best_chevron(case.Phi, case.S, case.noise, k))
        for k in (0, 2)
    }
    assert best[2].covariance == pytest.approx(6.0901691908, abs=1e-9)
    assert best[0].covariance == pytest.approx(6.1896547420, abs=1e-9)
    assert best[2].bound == pytest.approx(case.evidence, abs=1e-9)
    assert best[0].bound == pytest.approx(-6.2183067744, abs=1e-9)


def test_second_golden_instance():
    case = small()
    found = terms_of(case)
    assert found[:2] == pytest.approx(case.terms[:2], rel=1e-11)
    assert log_evidence(case.Phi, case.S, case.y, case.noise) == pytest.approx(case.evidence, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_is_the_evidence_at_the_exact_posterior_and_lower_elsewhere(seed):
    g = generator(seed)
    Phi, A = (torch.randn(size, generator=g, dtype=torch.float64) for size in ((30, 12), (12, 12)))
    S, y, noise = A @ A.T + torch.eye(12).double(), torch.randn(30, generator=g, dtype=torch.float64), 0.2
    mean, root = exact_weights(Phi, S, y, noise)
    evidence = log_evidence(Phi, S, y, noise)
    assert bound_terms(Phi, S, y, noise, mean, root).bound == pytest.approx(evidence, rel=1e-10)
    assert bound_terms(Phi, S, y, noise, mean + 0.01, root).bound < evidence
    assert bound_terms(Phi, S, y, noise, mean, 1.01 * root).bound < evidence


def test_chevrons_are_nested():
    case = small()
    mean, exact = exact_weights(case.Phi, case.S, case.y, case.noise)
    bounds = []
    for k in range(5):
        root = best_chevron(case.Phi, case.S, case.noise, k)
        torch.testing.assert_close(root[:, :k], exact[:, :k])
        bounds.append(bound_terms(case.Phi, case.S, case.y, case.noise, mean, root).bound)
    assert bounds == pytest.approx([-12.744, -12.564, -12.560, -12.355, -12.355], abs=6e-4)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(bounds))
    assert bounds[3] == pytest.approx(case.evidence, abs=1e-9)


# Enumeration --------------------------------------------------------------------------------------------------------


def test_single_draws_have_the_golden_values():
    case = tiny()
    expected = {
        (0, 0): (-4.32, -11.52, 0.72),
        (0, 1): (-7.32, -15.96, -0.12),
        (1, 0): (-0.12, 8.04, -9.72),
        (1, 1): (0.16, 10.72, -5.60),
    }
    found = {
        (i, j): [
            mean_estimate(
                case, [row], BasisSample.from_indices(torch.tensor([i]), torch.tensor([j]), 2), symmetric=False
            )
            for row in range(3)
        ]
        for i, j in expected
    }
    for key, values in expected.items():
        assert found[key] == pytest.approx(values, abs=1e-12)
    assert torch.tensor(list(found.values())).mean() == pytest.approx(case.terms.mean)
    one = BasisSample.from_indices(torch.tensor([0]), torch.tensor([1]), 2)
    assert covariance_estimate(case, [1], one, torch.tensor([0])) == pytest.approx(5.0525742052, abs=1e-9)


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_the_mean_term_is_unbiased_over_all_samples(replacement, symmetric):
    case = small()
    bases = list(pairs(4, 2, replacement))
    # it is linear in the rows: samples of rows are enumerated for one pair, and every pair sees all rows
    over_bases = [mean_estimate(case, None, one, symmetric=symmetric) for one in bases]
    assert sum(over_bases) / len(bases) == pytest.approx(case.terms.mean, rel=1e-11)
    over_rows = [mean_estimate(case, rows, bases[5], symmetric=symmetric) for rows in samples(6, 3, replacement)]
    assert sum(over_rows) / len(over_rows) == pytest.approx(over_bases[5], rel=1e-11)


def test_the_mean_term_is_unbiased_over_rows_and_both_bases_at_once():
    case = small()
    found = [mean_estimate(case, rows, one) for one in pairs(4, 2, False) for rows in samples(6, 3, False)]
    assert sum(found) / len(found) == pytest.approx(case.terms.mean, rel=1e-12)


@pytest.mark.parametrize(("replacement", "expected"), [(False, 511.8938827655), (True, 585.8066625789)])
def test_control_one_shared_sample_is_biased(replacement, expected):
    case = small()
    shared = [BasisSample.from_indices(one, one, 4) for one in samples(4, 2, replacement)]
    found = [mean_estimate(case, None, one) for one in shared]
    assert sum(found) / len(found) == pytest.approx(expected, rel=1e-11)
    assert expected > 1.3 * case.terms.mean


@pytest.mark.few(1)
@pytest.mark.parametrize("replacement", [False, True])
def test_the_covariance_term_is_unbiased_over_all_samples(replacement):
    case = small()
    found, misplaced = [], []
    for sample in pairs(4, 2, replacement):
        for columns in samples(4, 2, replacement):
            found.append(covariance_estimate(case, None, sample, columns))
            misplaced.append(covariance_estimate(case, None, sample, columns, log_inside=False))
    assert sum(found) / len(found) == pytest.approx(case.terms.covariance, rel=1e-11)
    # the control: the logarithm outside of the sum over columns
    assert abs(sum(misplaced) / len(misplaced) - case.terms.covariance) > 0.1


def test_the_tiny_covariance_term_is_unbiased_over_rows_too():
    case = tiny()
    found = [
        covariance_estimate(case, rows, sample, columns)
        for sample in pairs(2, 1, False)
        for rows in samples(3, 1, False)
        for columns in samples(2, 1, False)
    ]
    assert sum(found) / len(found) == pytest.approx(case.terms.covariance, abs=1e-9)


@pytest.mark.parametrize("replacement", [False, True])
def test_a_head_that_is_always_there_keeps_columns_unbiased(replacement):
    case = small()
    exact = column_terms(case.rows(), case.root[:, :2], full_sample(4), case.prior(torch.arange(4)))
    found = {True: [], False: []}
    for plain in pairs(4, 2, replacement, n_head=2):
        for stratified in found:
            sample = plain.for_columns() if stratified else plain
            rows = case.rows(None, sample.index)
            found[stratified].append(
                column_terms(rows, case.root[sample.index][:, :2], sample, case.prior(sample.index))
            )
    for values in found.values():
        torch.testing.assert_close(torch.stack(values).mean(0), exact)
    assert bool((torch.stack(found[True]).var(0) < torch.stack(found[False]).var(0)).all())


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("replacement", [False, True])
def test_diagonal_columns_and_the_constant_are_unbiased(replacement):
    case = small()
    log_scale, precision = case.mean.abs().log(), 1 + case.mean.square()
    whole = diagonal_terms(case.rows(), log_scale, precision)
    root = log_scale.exp()
    torch.testing.assert_close(whole, root**2 * (case.Phi.square().sum(0) / case.noise + precision) - 2 * log_scale)
    diagonal, constant = [], []
    for sample in pairs(4, 2, replacement):
        i = sample.index
        for rows in samples(6, 2, replacement):
            at = case.rows(rows, i)
            diagonal.append(float(sample.linear @ diagonal_terms(at, log_scale[i], precision[i])))
            constant.append(float(constant_term(at, precision[i].log(), sample, 4)))
    assert sum(diagonal) / len(diagonal) == pytest.approx(float(whole.sum()), rel=1e-11)
    exact = bound_terms(case.Phi, torch.diag(precision), case.y, case.noise, case.mean, case.root).constant
    assert sum(constant) / len(constant) == pytest.approx(exact, rel=1e-11)


def test_with_everything_sampled_there_is_no_variance():
    case = small()
    sample = full_sample(4)
    assert mean_estimate(case, None, sample) == pytest.approx(case.terms.mean, rel=1e-11)
    assert covariance_estimate(case, None, sample, torch.arange(4)) == pytest.approx(case.terms.covariance, rel=1e-11)
    everything = BasisSample.draw(4, 4, generator(0))
    assert bool((torch.cat([everything.left, everything.right]) == 1).all())


@pytest.mark.slow
def test_structured_forms_have_the_mean_of_the_generic_ones_and_less_variance():
    """T12: a diagonal root and a diagonal S that are treated as dense lose most of the precision."""
    g = generator(0)
    n, m, rows_sampled, size = 200, 100, 40, 20
    omega, x = torch.randn(2, m // 2, generator=g).double(), torch.randn(n, 2, generator=g).double()
    Phi = torch.cat([torch.sin(x @ omega), torch.cos(x @ omega)], 1) * (2 / m) ** 0.5
    mean, c, ones = (
        torch.randn(m, generator=g).double(),
        torch.rand(m, generator=g).double() + 0.2,
        torch.ones(m).double(),
    )
    case = Instance(Phi, torch.eye(m), torch.zeros(n), 0.5, mean, torch.diag(c))
    exact = terms_of(case)
    found = {name: [] for name in ("generic", "structured", "S generic", "S structured")}
    for _ in range(400):
        sample = BasisSample.draw(m, size, g)
        rows = case.rows(torch.randperm(n, generator=g)[:rows_sampled], sample.index)
        column_sample = BasisSample.draw(m, size, g)
        chosen = column_sample.index[column_sample.left > 0]
        generic = column_terms(rows, case.root[sample.index][:, chosen], sample, case.prior(sample.index))
        found["generic"].append(float(m / size * (generic - 2 * c[chosen].log()).sum()))
        structured = diagonal_terms(rows, c[sample.index].log(), ones[sample.index])
        found["structured"].append(float(sample.linear @ structured))
        touched = mean[sample.index][:, None]
        found["S generic"].append(
            float(case.prior(sample.index)(sample.left[:, None] * touched, sample.right[:, None] * touched))
        )
        found["S structured"].append(float((sample.linear @ touched.square())[0]))
    truth = {"generic": exact.covariance, "structured": exact.covariance, "S generic": float(mean @ mean)}
    truth["S structured"] = truth["S generic"]
    draws = {name: torch.tensor(values) for name, values in found.items()}
    for name, values in draws.items():
        assert abs(values.mean() - truth[name]) < 4 * values.std() / len(values) ** 0.5, name
    assert draws["structured"].std() < 0.2 * draws["generic"].std()
    assert draws["S structured"].std() < 0.5 * draws["S generic"].std()
