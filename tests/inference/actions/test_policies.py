"""Policies: CG and Lanczos against textbooks, their stopping rules, and choices that do not depend on the targets."""

from __future__ import annotations

import itertools

import pytest
import torch

from gigagp import actions
from gigagp.errors import MemoryBudgetError
from gigagp.inference.computation_aware.actions import (
    BlockActions,
    Choice,
    DenseActions,
    RowActions,
    Sequence,
    SequentialPolicy,
    Stop,
)
from gigagp.kernels import Matern
from gigagp.operators import DenseMatrix, KernelMatrix
from helpers import dense_posterior, generator, points, reference_matrix, spd_matrix
from twelve_rows import KERNEL, NEW, NOISE, ROWS, TARGETS, evidence_of, posterior_of

F64 = {"dtype": torch.float64}
MATRIX = KernelMatrix(KERNEL, ROWS, NOISE)
X, Y = points(80, 2, seed=1), points(80, 1, seed=2)
LARGER = KernelMatrix(Matern(1.5, [0.6, 1.1]).bind(2), X, 0.05)


def choose(policy, count, matrix=LARGER, targets=Y) -> Choice:
    return policy.choose(matrix, targets, count, generator())


def textbook_cg(H, b, steps):
    """Return the iterates of Hestenes and Stiefel's conjugate gradients."""
    x, r = torch.zeros_like(b), b.clone()
    p, found = r.clone(), []
    for _ in range(steps):
        image = H @ p
        length = (r @ r) / (p @ image)
        x, after = x + length * p, r - length * image
        p, r = after + (after @ after) / (r @ r) * p, after
        found.append(x)
    return found


# Conjugate gradients and Lanczos --------------------------------------------------------------------------------------

GOLDEN = {
    1: (54.1111405983, 0.634712877837, -0.130536143602, [0.844591386413, 1.0, 0.993426721655]),
    2: (46.5184988091, 0.978618165179, -0.001198147440, [0.807671958555, 1.0, 0.98820481009]),
    3: (43.9252757192, 0.921636387524, -0.101213894491, [0.805148921541, 1.0, 0.980431814867]),
    4: (43.8243473406, 0.918477816620, -0.081739832033, [0.805055078212, 1.0, 0.976864550797]),
}


@pytest.mark.parametrize(
    "policy", [actions.ConjugateGradients(0.0), actions.Lanczos(tolerance=0.0), actions.Lanczos(True)]
)
@pytest.mark.parametrize("count", GOLDEN)
def test_golden_conjugate_gradients(policy, count):
    elbo, left, right, variances = GOLDEN[count]
    choice = choose(policy, count, MATRIX, TARGETS[:, None])
    assert choice.note == ""
    found = evidence_of(choice.actions, product=choice.product.clone())
    assert -found.terms().elbo == pytest.approx(elbo, rel=1e-10)
    mean, variance = posterior_of(choice.actions).mean_and_variance(NEW)
    assert mean[[0, 2], 0].tolist() == pytest.approx([left, right], rel=1e-9)
    assert variance.tolist() == pytest.approx(variances, rel=1e-10)


@pytest.mark.parametrize("policy", [actions.ConjugateGradients(1e-8), actions.Lanczos(tolerance=1e-8)])
def test_a_krylov_space_that_ends_gives_fewer_actions(policy):
    """The golden targets are antisymmetric: their Krylov space has six dimensions."""
    choice = choose(policy, 12, MATRIX, TARGETS[:, None])
    assert choice.actions.count == 6
    assert choice.note == Stop.TOLERANCE.value
    exact = dense_posterior(KERNEL, ROWS, TARGETS, NEW, NOISE)
    found = posterior_of(choice.actions)
    torch.testing.assert_close(found.mean(NEW), exact.mean, rtol=1e-7, atol=1e-8)  # the mean is complete
    assert float(found.mean_and_variance(NEW)[1][1]) == pytest.approx(1.0)  # but the variance at 0.5 is not reduced


@pytest.mark.parametrize("policy", [actions.ConjugateGradients(0.0), actions.Lanczos(tolerance=0.0)])
def test_a_policy_that_breaks_down_says_so(policy):
    """With three distinct eigenvalues, only rounding is left after three steps, and no tolerance was given."""
    H = spd_matrix(torch.tensor([1.0, 2.0, 5.0], **F64).repeat_interleave(10))
    b = points(30, 1, seed=3)
    sequence, stop = policy.run(DenseMatrix(H), b, 20)
    assert sequence.count == 3
    assert stop in (Stop.EXHAUSTED, Stop.DEPENDENT)
    torch.testing.assert_close(sequence.weights, torch.linalg.solve(H, b), rtol=1e-12, atol=1e-12)


def test_weights_are_the_iterates_of_conjugate_gradients():
    H = spd_matrix(torch.linspace(0.5, 8.0, 50))
    b = points(50, 1, seed=3)[:, 0]
    matrix = DenseMatrix(H)
    for steps, expected in enumerate(textbook_cg(H, b, 10), start=1):
        sequence, stop = actions.ConjugateGradients(0.0).run(matrix, b[:, None], steps)
        assert stop is Stop.COUNT
        torch.testing.assert_close(sequence.weights[:, 0], expected, rtol=1e-10, atol=1e-12)


class Plain(actions.ConjugateGradients):
    """Residuals without orthogonalisation."""

    def next_action(self, sequence):
        return sequence.residual[:, 0]


def test_actions_of_conjugate_gradients_stay_orthogonal():
    H = spd_matrix(torch.cat([torch.logspace(-4, 0, 54), torch.logspace(2, 6, 6)]))
    overlaps = []
    for policy in (actions.ConjugateGradients(0.0), Plain(0.0)):
        sequence, _ = policy.run(DenseMatrix(H), points(60, 1, seed=3), 60)
        assert sequence.count == 60
        overlaps.append(float((sequence.actions.T @ sequence.actions - torch.eye(60)).abs().max()))
    assert overlaps[0] < 1e-13
    assert overlaps[1] > 1e-3  # control: overlaps due to rounding


def test_other_bases_of_the_krylov_space_are_the_same_posterior():
    found = [
        posterior_of(choose(policy, 9).actions, X, Y, kernel=LARGER.kernel, noise=0.05)
        for policy in (actions.ConjugateGradients(0.0), actions.Lanczos(tolerance=0.0), actions.Lanczos(True, 0.0))
    ]
    x = points(6, 2, seed=5)
    for other in found[1:]:
        torch.testing.assert_close(other.mean(x), found[0].mean(x), rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(other.covariance(x), found[0].covariance(x), rtol=1e-8, atol=1e-10)
    ritz = choose(actions.Lanczos(True, 0.0), 9)
    S = ritz.actions.dense()
    projected = S.T @ LARGER.to_dense() @ S
    torch.testing.assert_close(projected, torch.diag(projected.diagonal()), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(ritz.product, LARGER.to_dense() @ S, rtol=1e-9, atol=1e-10)


def test_the_tolerance_stops_it():
    loose = choose(actions.ConjugateGradients(tolerance=0.3), 80)
    tight = choose(actions.ConjugateGradients(tolerance=0.01), 80)
    assert 1 < loose.actions.count < tight.actions.count < 80
    assert loose.note == tight.note == Stop.TOLERANCE.value
    S = tight.actions.dense()
    H = LARGER.to_dense()
    residual = Y - H @ S @ torch.linalg.solve(S.T @ H @ S, S.T @ Y)
    assert float(residual.norm() / Y.norm()) <= 0.01
    absolute = choose(actions.ConjugateGradients(0.0, absolute_tolerance=0.3 * float(Y.norm())), 80)
    assert absolute.actions.count == loose.actions.count


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_without_a_tolerance_the_space_grows_after_the_mean_has_converged(dtype):
    """Targets of a long wave converge in few steps, and most of the variance is still there."""
    kernel = Matern(2.5, 0.5).bind(2)
    matrix, wave = KernelMatrix(kernel, X.to(dtype), 0.05), (X @ torch.tensor([[1.0], [2.0]], **F64)).sin()
    few = choose(actions.ConjugateGradients(1e-4), 60, matrix, wave)
    many = choose(actions.ConjugateGradients(), 60, matrix, wave)
    assert few.actions.count < 50
    assert few.note == Stop.TOLERANCE.value
    assert many.actions.count == 60
    assert many.note == ""
    S = many.actions.dense()
    torch.testing.assert_close(S.T @ S, torch.eye(60, **F64), rtol=0, atol=1e-12)
    variances = [
        posterior_of(one.actions, X, wave, kernel=kernel, noise=0.05).mean_and_variance(X)[1] for one in (few, many)
    ]
    exact = dense_posterior(kernel, X, wave[:, 0], X, 0.05).covariance.diagonal()
    left = [float((variance - exact).mean() / exact.mean()) for variance in variances]
    assert left[0] > 0.5  # control
    assert -1e-10 < left[1] < 0.1 * left[0]


def test_several_targets_share_actions():
    both = points(80, 2, seed=6) * torch.tensor([1.0, 1e3])
    choice = choose(actions.ConjugateGradients(tolerance=1e-2), 80, targets=both)
    S, H = choice.actions.dense(), LARGER.to_dense()
    residual = both - H @ S @ torch.linalg.solve(S.T @ H @ S, S.T @ both)
    assert bool((residual.norm(dim=0) <= 1e-2 * both.norm(dim=0)).all())
    lanczos = choose(actions.Lanczos(tolerance=1e-2), 80, targets=both)
    assert lanczos.note == Stop.TOLERANCE.value


def test_targets_of_zeros_get_one_action():
    choice = choose(actions.ConjugateGradients(), 5, targets=torch.zeros(80, 1, **F64))
    assert choice.actions.count == 1
    assert choice.note == Stop.TOLERANCE.value


# The iterative algorithm ----------------------------------------------------------------------------------------------


def search_directions(sequence):
    """Return ``d = s - C H s`` for each action; they are conjugate in H with ``d' H d = eta``."""
    roots = torch.linalg.solve_triangular(sequence.factor, sequence.actions.T, upper=False).T
    return roots * sequence.factor.diagonal()


def test_the_iterative_algorithm_is_the_batch_algorithm():
    """Compare Alg. S1 as printed (with a low-rank C), our class, and Alg. S2; the order of actions is irrelevant."""
    H = reference_matrix(KERNEL, ROWS, NOISE)
    S = torch.randn(12, 5, generator=generator(4), **F64)
    C, v = torch.zeros(12, 12, **F64), torch.zeros(12, **F64)
    sequence = Sequence(MATRIX, TARGETS[:, None], 5)
    for j in range(5):
        s = S[:, j] / S[:, j].norm()
        r = TARGETS - H @ v
        alpha, z = s @ r, H @ s
        d = s - C @ z
        eta = z @ d
        C, v = C + torch.outer(d, d) / eta, v + alpha / eta * d
        assert sequence.append(S[:, j]) is None
        assert float(sequence.observations[j]) == pytest.approx(float(alpha), rel=1e-9)
        assert sequence.curvatures[j] == pytest.approx(float(eta), rel=1e-9)
        torch.testing.assert_close(search_directions(sequence)[:, j], d, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(sequence.residual[:, 0], TARGETS - H @ v, rtol=1e-9, atol=1e-12)
    batch = S @ torch.linalg.solve(S.T @ H @ S, S.T)
    torch.testing.assert_close(C, batch, rtol=1e-9, atol=1e-11)
    directions, curvatures = search_directions(sequence), torch.tensor(sequence.curvatures, **F64)
    torch.testing.assert_close(directions.T @ H @ directions, torch.diag(curvatures), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(sequence.weights[:, 0], v, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(sequence.weights[:, 0], batch @ TARGETS, rtol=1e-9, atol=1e-11)
    other = Sequence(MATRIX, TARGETS[:, None], 5)
    for j in (3, 0, 4, 2, 1):
        other.append(S[:, j])
    torch.testing.assert_close(other.weights, sequence.weights, rtol=1e-9, atol=1e-11)
    assert sequence.append(S[:, 0]) is Stop.COUNT


def test_actions_that_bring_nothing_are_refused():
    sequence = Sequence(MATRIX, TARGETS[:, None], 5)
    assert sequence.append(torch.ones(12)) is None
    assert sequence.append(torch.zeros(12)) is Stop.DEPENDENT
    assert sequence.append(-3 * torch.ones(12)) is Stop.NOT_DEFINITE
    assert sequence.outside_span(torch.ones(12) * 7) is None
    assert sequence.count == 1
    assert sequence.append(torch.arange(12.0)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(10))
def test_combinations_of_earlier_actions_are_refused(dtype, seed):
    """Their curvature is only rounding, which may be positive."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(2000, 2, generator=generator, dtype=dtype)
    S = torch.randn(2000, 2, generator=generator, **F64)
    matrix = KernelMatrix(Matern(1.5, 1.0, 1.0).bind(2), points, 0.01)
    sequence = Sequence(matrix, torch.randn(2000, 1, generator=generator, **F64), 5)
    assert sequence.append(S[:, 0]) is None
    assert sequence.append(S[:, 1]) is None
    assert sequence.append(-3 * S[:, 0]) is Stop.NOT_DEFINITE
    assert sequence.append(0.7 * S[:, 0] - 2 * S[:, 1]) is Stop.NOT_DEFINITE
    assert sequence.append(S[:, 0] + 0.05 * torch.randn(2000, generator=generator, **F64)) is None


def test_a_policy_of_your_own():
    class FirstRows(SequentialPolicy):
        tolerance = 0.0

        def next_action(self, sequence):
            if sequence.count == 3:
                return None
            return torch.eye(80, **F64)[sequence.count]

    choice = choose(FirstRows(), 10)
    assert choice.note == Stop.EXHAUSTED.value
    rows = RowActions(torch.arange(3), 80)
    expected = posterior_of(rows, X, Y, kernel=LARGER.kernel, noise=0.05).covariance(X[:4])
    found = posterior_of(choice.actions, X, Y, kernel=LARGER.kernel, noise=0.05).covariance(X[:4])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


# Choices that do not depend on the targets ----------------------------------------------------------------------------


def test_top_eigenvectors():
    choice = choose(actions.TopEigenvectors(), 6)
    values = torch.linalg.eigvalsh(LARGER.to_dense()).flip(0)[:6]
    S = choice.actions.dense()
    torch.testing.assert_close(S.T @ LARGER.to_dense() @ S, torch.diag(values), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(choice.product, LARGER.to_dense() @ S, rtol=1e-9, atol=1e-10)
    small = KernelMatrix(LARGER.kernel, X, 0.05, memory_budget=10_000)
    with pytest.raises(MemoryBudgetError, match="The eigenvectors of 80 rows"):
        choose(actions.TopEigenvectors(), 3, small)


def test_unit_vectors():
    first = choose(actions.UnitVectors(), 9).actions
    assert isinstance(first, RowActions)
    assert torch.equal(first.rows, choose(actions.UnitVectors(), 9).actions.rows)
    pivoted = choose(actions.UnitVectors("pivoted"), 9).actions
    explained = [
        float(posterior_of(one, X, Y, kernel=LARGER.kernel, noise=0.05).mean_and_variance(X)[1].max())
        for one in (pivoted, first)
    ]
    assert explained[0] < explained[1]
    flat = KernelMatrix(Matern(1.5, 1e6).bind(2), X, 0.05)
    few = choose(actions.UnitVectors("pivoted"), 40, flat)
    assert few.actions.count < 40
    assert "no higher rank" in few.note


def test_pseudo_inputs_span_columns_of_the_kernel_matrix():
    S = choose(actions.PseudoInputs(), 5).actions.dense()
    K = LARGER.to_dense() - 0.05 * torch.eye(80, **F64)
    outside = K - S @ (S.T @ K)
    assert int((outside.norm(dim=0) < 1e-9 * K.norm(dim=0)).sum()) == 5
    flat = KernelMatrix(Matern(2.5, 1e5).bind(2), X, 0.05)
    few = choose(actions.PseudoInputs(), 40, flat)
    assert few.actions.count < 40
    assert few.note == "pseudo-inputs were dependent in this precision"


@pytest.mark.parametrize("law", ["gaussian", "rademacher"])
@pytest.mark.parametrize("structure", ["dense", "blocks"])
def test_random_actions(law, structure):
    policy = actions.Random(law, structure)
    S = choose(policy, 6).actions.dense()
    assert torch.equal(S, choose(policy, 6).actions.dense())
    nonzero = S[S != 0].abs()
    assert nonzero.numel() == (480 if structure == "dense" else 80)
    assert (float(nonzero.std()) < 1e-12) == (law == "rademacher")


@pytest.mark.parametrize("initial", ["eigenvectors", "targets", "random"])
@pytest.mark.parametrize("blocks", ["clusters", "shuffled"])
def test_initial_blocks(blocks, initial):
    policy = actions.Learned(blocks, initial)
    order = policy.order(LARGER, 7, generator())
    assert order.sort().values.tolist() == list(range(80))
    ordered = KernelMatrix(LARGER.kernel, X[order], 0.05)
    found = choose(policy, 7, ordered, Y[order]).actions
    assert isinstance(found, BlockActions)
    part = slice(found.bounds[2], found.bounds[3])
    if initial == "targets":
        expected = Y[order][part, 0]
    else:
        expected = torch.linalg.eigh(ordered.block(part, part)).eigenvectors[:, -1]
    overlap = abs(float(found.values[part] @ expected) / float(found.values[part].norm() * expected.norm()))
    assert (overlap > 1 - 1e-10) == (initial != "random")
    spread = float(torch.stack([X[order][s:e].var(0).sum() for s, e in itertools.pairwise(found.bounds)]).mean())
    assert (spread < 0.5 * float(X.var(0).sum())) == (blocks == "clusters")


def test_targets_of_zeros_start_from_ones():
    found = choose(actions.Learned(initial="targets"), 4, targets=torch.zeros(80, 1, **F64)).actions
    assert bool((found.values == found.values[0]).all())


def test_dense_actions_beyond_the_budget_are_refused():
    small = KernelMatrix(LARGER.kernel, X, 0.05, memory_budget=10_000)
    with pytest.raises(MemoryBudgetError, match="60 dense actions of 80 rows"):
        choose(actions.ConjugateGradients(), 60, small)
    assert isinstance(choose(actions.ConjugateGradients(), 2, small).actions, DenseActions)
