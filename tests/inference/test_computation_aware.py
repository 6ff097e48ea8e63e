"""The computation-aware posterior and its losses: golden values, and the paper's identities by dense algebra."""

from __future__ import annotations

import math

import pytest
import torch

from gigagp import GPRegressor, inference
from gigagp.errors import InvalidInputError, NotPositiveDefiniteError
from gigagp.inference.computation_aware.actions import BlockActions, DenseActions, RowActions, balanced_bounds
from gigagp.kernels import RBF, Leaf, Matern, White
from gigagp.model.means import ConstantMean, LinearMean
from helpers import (
    dense_posterior,
    draw_targets,
    generator,
    points,
    reference_block,
    reference_matrix,
    within_standard_errors,
)
from twelve_rows import BOUNDS, KERNEL, NEW, NOISE, ROWS, TARGETS, VALUES, blocks, evidence_of, posterior_of

F64 = {"dtype": torch.float64}
EXACT = dense_posterior(KERNEL, ROWS, TARGETS, NEW, NOISE)
H = reference_matrix(KERNEL, ROWS, NOISE)


def dense_actions(n, count, seed=0):
    return DenseActions(torch.randn(n, count, generator=generator(seed), **F64))


def close(found, expected, rtol=1e-8, atol=0.0):
    torch.testing.assert_close(torch.as_tensor(found, **F64), torch.as_tensor(expected, **F64), rtol=rtol, atol=atol)


# Golden values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["blocks", "dense"])
@pytest.mark.parametrize("storage", ["tiles", "dense"])
def test_golden_losses(form, storage):
    actions = blocks() if form == "blocks" else DenseActions(blocks().dense())
    found = evidence_of(actions, storage=storage)
    terms = found.terms()
    close(EXACT.log_likelihood, -8.985076165302672)
    close(-terms.elbo, 22.87410896682196)
    close(-terms.projected_log_likelihood, 4.645476043130225)
    close(-terms.elbo + EXACT.log_likelihood, 13.889032801519253)
    close(terms.divergence, 3.903302833003224)
    close([terms.squared_residuals * NOISE, terms.posterior_variances * NOISE], [2.482358190824308, 1.869452667841077])
    close(found.unseen.square().sum(), 2.478451872729946)
    close([terms.weights, terms.trace], [1.0369933321128808, 2.8394073190644633])
    close(terms.projected_fit, 1.0760565130564994)
    close(2 * found.factor.diagonal().log().sum(), 10.889953498420116)
    close(terms.projected_log_determinant - 3 * math.log(2 * math.pi), 10.889953498420116 - 8.1886891244442)
    close(found.weights[:, 0], [0.241588224861, -0.0556194217, -0.046320163271], rtol=1e-10)
    first, second = (
        [13.749230070882, 14.135724027304, 4.568930566126],
        [14.135724027304, 89.136382011799, 56.036123747875],
    )
    close(
        found.factor @ found.factor.T, [first, second, [4.568930566126, 56.036123747875, 89.136382011799]], rtol=1e-11
    )


def test_the_wrong_logarithm_is_noticed():
    """The error of the published code: the logarithm of a sum of squared norms in place of the sum of logarithms."""
    terms = evidence_of(blocks()).terms()
    squares = blocks().gram(torch.ones(12, **F64)).diagonal()
    wrong = -terms.elbo + 0.5 * float(squares.log().sum() - squares.sum().log())
    close(wrong, 24.889011987364224)
    scaled = BlockActions(VALUES * torch.tensor([0.01] * 4 + [1.0] * 4 + [30.0] * 4), BOUNDS)
    close(evidence_of(scaled).terms().elbo, terms.elbo, rtol=1e-12)


def test_golden_predictions():
    found = posterior_of(blocks())
    mean, variance = found.mean_and_variance(NEW)
    close(mean[:, 0], [0.067960898166, -0.325292879482, -0.060831716621], rtol=1e-10)
    close(found.mean(NEW), mean, rtol=1e-12)
    close(variance, [0.235293309568, 0.090235764205, 0.984938591683], rtol=1e-10)
    close(found.covariance(NEW).diagonal(), variance, rtol=1e-12)
    parts = found.variance_parts(NEW)
    close(parts.mathematical, [0.050792718164, 0.052841100826, 0.953605702516], rtol=1e-10)
    close(parts.computational, [0.184500591404, 0.037394663379, 0.031332889167], rtol=1e-10)
    close(EXACT.mean[:, 0], [0.9183436022671, 0.0, -0.08171245085907], rtol=1e-10, atol=1e-14)


def test_golden_nested_blocks():
    expected = {
        1: (62.45299679, 1.73265870, [0.550421905608, 0.811946229683, 0.999982789248]),
        2: (35.56444232, 3.39264871, [0.261352918266, 0.103735937639, 0.998997936674]),
        3: (22.87410897, 4.64547604, [0.235293309568, 0.090235764205, 0.984938591683]),
    }
    for count, (elbo, projected, variance) in expected.items():
        actions = DenseActions(blocks().dense()[:, :count])
        terms = evidence_of(actions).terms()
        close([-terms.elbo, -terms.projected_log_likelihood], [elbo, projected])
        close(posterior_of(actions).mean_and_variance(NEW)[1], variance, rtol=1e-10)


def test_golden_eigenvectors_and_pseudo_inputs():
    top = DenseActions(torch.linalg.eigh(H).eigenvectors[:, -3:])
    terms = evidence_of(top).terms()
    close([-terms.elbo, -terms.projected_log_likelihood], [19.397537687298133, 5.142750596125364])
    Z = torch.tensor([[0.1], [0.5], [0.9]], **F64)
    pseudo = DenseActions(reference_block(KERNEL, ROWS, Z))
    close(-evidence_of(pseudo).terms().elbo, 19.9040999601504)
    mean, _ = posterior_of(pseudo).mean_and_variance(NEW)
    close(mean[:, 0], [0.3467858803089, 0.0, -0.110252969468], rtol=1e-10, atol=1e-13)
    close(posterior_of(pseudo).mean_and_variance(Z)[1], [0.07294993374, 0.083390803269, 0.07294993374])


def test_float32_products_with_float64_algebra():
    found = evidence_of(blocks(), ROWS.float(), TARGETS[:, None].float())
    assert found.factor.dtype == torch.float64
    close(-found.terms().elbo, 22.87410896682196, rtol=1e-3)
    posterior = posterior_of(blocks(), ROWS.float(), TARGETS[:, None].float())
    mean, variance = posterior.mean_and_variance(NEW.float())
    assert mean.dtype == variance.dtype == torch.float32
    close(variance.double(), [0.235293309568, 0.090235764205, 0.984938591683], rtol=1e-3)


# Identities -----------------------------------------------------------------------------------------------------------

PROBLEMS = {
    "matern": (Matern(1.5, [0.8, 1.7]), 0.05, 60, 7),
    "rough": (Matern(0.5, 1.2, 2.0), 0.3, 40, 25),
    "white and smooth": (RBF(1.1, 0.7) + White(0.1), 0.02, 50, 12),
    "noise of each row": (Matern(2.5, 1.3), torch.rand(45, generator=generator(5), **F64) + 0.05, 45, 9),
}


def problem(name):
    kernel, noise, n, count = PROBLEMS[name]
    kernel = kernel.bind(2)
    X = points(n, 2, seed=3)
    Y = points(n, 1, seed=4)
    return kernel, noise, X, Y, count


def dense_bound(kernel, X, Y, noise, S):
    """Return the log likelihood minus the divergence of the posterior at the rows from the exact one, all dense."""
    n = len(X)
    matrix = reference_matrix(kernel, X, noise)
    diagonal = matrix.diagonal() - reference_block(kernel, X, X).diagonal()
    K = matrix - torch.diag(diagonal)
    C = S @ torch.linalg.solve(S.T @ matrix @ S, S.T)
    inverse = torch.linalg.inv(matrix)
    # compare q(f) and p(f | y) as Gaussians on H^-1-whitened weights: f = K w avoids a singular K
    mean_gap = (inverse - C) @ Y
    covariance_q, covariance_p = K - K @ C @ K, K - K @ inverse @ K
    jitter = 1e-10 * torch.eye(n, **F64)
    root = torch.linalg.cholesky(covariance_p + jitter)
    half = torch.linalg.solve_triangular(root, covariance_q + jitter, upper=False)
    trace = torch.linalg.solve_triangular(root, half.T, upper=False).trace()
    gap = torch.linalg.solve_triangular(root, K @ mean_gap, upper=False).square().sum()
    logs = torch.linalg.slogdet(covariance_p + jitter).logabsdet - torch.linalg.slogdet(covariance_q + jitter).logabsdet
    divergence = 0.5 * (trace + gap - n + logs)
    log_likelihood = -0.5 * (
        Y[:, 0] @ inverse @ Y[:, 0] + torch.linalg.slogdet(matrix).logabsdet + n * math.log(2 * math.pi)
    )
    return float(log_likelihood), float(divergence)


@pytest.mark.parametrize("name", ["matern", "rough", "noise of each row"])
def test_the_elbo_is_the_likelihood_less_the_divergence(name):
    kernel, noise, X, Y, count = problem(name)
    actions = dense_actions(len(X), count)
    terms = evidence_of(actions, X, Y, kernel=kernel, noise=noise).terms()
    log_likelihood, divergence = dense_bound(kernel, X, Y, noise, actions.dense())
    close(terms.elbo, log_likelihood - divergence, rtol=1e-6)
    assert divergence > 1.0


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_compact_form_agrees(name):
    """The projected likelihood plus the unseen directions treated as noise; S'KS does not occur in it."""
    kernel, noise, X, Y, count = problem(name)
    n = len(X)
    actions = dense_actions(n, count)
    S = actions.dense()
    found = evidence_of(actions, X, Y, kernel=kernel, noise=noise)
    matrix = reference_matrix(kernel, X, noise)
    each = matrix.diagonal() - reference_block(kernel, X, X).diagonal()
    C = S @ torch.linalg.solve(S.T @ matrix @ S, S.T)
    left = Y - matrix @ C @ Y
    rest = ((matrix - matrix @ C @ matrix).diagonal() / each).sum() - (n - count)
    compact = 0.5 * (
        (Y.T @ C @ Y).sum()
        + torch.linalg.slogdet(S.T @ matrix @ S).logabsdet
        - torch.linalg.slogdet(S.T @ (each[:, None] * S)).logabsdet
        + each.log().sum()
        + n * math.log(2 * math.pi)
        + (left.square() / each[:, None]).sum()
        + rest
    )
    close(-found.terms().elbo, compact, rtol=1e-10)
    close(found.terms().expected_log_likelihood - found.terms().divergence, -compact, rtol=1e-10)


@pytest.mark.parametrize("name", PROBLEMS)
def test_as_many_actions_as_rows_are_exact(name):
    kernel, noise, X, Y, _ = problem(name)
    n = len(X)
    X_new = points(20, 2, seed=9)
    exact = dense_posterior(kernel, X, Y, X_new, noise)
    for actions in (dense_actions(n, n), BlockActions(torch.ones(n, **F64), balanced_bounds(n, n))):
        terms = evidence_of(actions, X, Y, kernel=kernel, noise=noise).terms()
        close(terms.elbo, exact.log_likelihood, rtol=1e-9)
        close(terms.projected_log_likelihood, exact.log_likelihood, rtol=1e-9)
        found = posterior_of(actions, X, Y, kernel=kernel, noise=noise)
        close(found.mean(X_new), exact.mean, rtol=1e-8, atol=1e-9)
        close(found.covariance(X_new), exact.covariance, rtol=1e-8, atol=1e-9)
        close(found.variance_parts(X_new).computational, torch.zeros(20), atol=1e-12)


def test_only_the_span_matters():
    actions = dense_actions(12, 4)
    mixed = DenseActions(actions.dense() @ torch.randn(4, 4, generator=generator(7), **F64))
    first, second = evidence_of(actions).terms(), evidence_of(mixed).terms()
    close(second.elbo, first.elbo, rtol=1e-10)
    close(second.projected_log_likelihood, first.projected_log_likelihood, rtol=1e-10)
    close(posterior_of(mixed).covariance(NEW), posterior_of(actions).covariance(NEW), rtol=1e-10, atol=1e-12)
    other = posterior_of(dense_actions(12, 4, seed=8)).covariance(NEW)  # the control: a different span
    assert float((other - posterior_of(actions).covariance(NEW)).abs().max()) > 1e-2


def test_never_surer_than_the_exact_posterior():
    """A thousand random problems: the variance itself, not the sum of its parts, against the exact one."""
    smallest = math.inf
    for seed in range(100):
        draw = generator(seed)
        n = int(torch.randint(3, 25, (), generator=draw))
        kernel = Matern(1.5, float(torch.rand((), generator=draw)) + 0.1).bind(1)
        noise = 10 ** float(-4 * torch.rand((), generator=draw))
        X, x = torch.rand(n, 1, generator=draw, **F64), 2 * torch.rand(3, 1, generator=draw, **F64)
        exact = dense_posterior(kernel, X, X, x, noise).covariance.diagonal()
        for _ in range(10):
            count = int(torch.randint(1, n + 1, (), generator=draw))
            actions = DenseActions(torch.randn(n, count, generator=draw, **F64))
            found = posterior_of(actions, X, X, kernel=kernel, noise=noise, loss="projected", storage="dense")
            smallest = min(smallest, float((found.mean_and_variance(x)[1] - exact).min()))
        assert float(found.variance_parts(x).computational.min()) >= 0.0
    assert smallest >= -1e-10


def test_what_is_left_uncomputed_is_a_covariance():
    grid = torch.linspace(-0.5, 1.5, 25, **F64)[:, None]
    gap = posterior_of(blocks()).covariance(grid) - dense_posterior(KERNEL, ROWS, TARGETS, grid, NOISE).covariance
    assert float(torch.linalg.eigvalsh(gap).min()) >= -1e-10
    assert float(gap.diagonal().max()) > 0.1


def test_more_nested_actions_never_raise_a_variance():
    S = torch.randn(12, 12, generator=generator(2), **F64)
    grid = torch.linspace(-0.5, 1.5, 25, **F64)[:, None]
    before = torch.full((25,), 1.0, **F64)
    for count in range(1, 13):
        after = posterior_of(DenseActions(S[:, :count])).mean_and_variance(grid)[1]
        assert bool((after <= before + 1e-12).all())
        before = after
    close(before, dense_posterior(KERNEL, ROWS, TARGETS, grid, NOISE).covariance.diagonal(), rtol=1e-8)
    # The control: two actions that do not contain the first may explain less.
    one = posterior_of(RowActions(torch.tensor([4]), 12)).mean_and_variance(NEW)[1][0]
    two = posterior_of(RowActions(torch.tensor([0, 11]), 12)).mean_and_variance(NEW)[1][0]
    close([one, two], [0.0921, 0.8633], rtol=1e-3)


@pytest.mark.parametrize("form", ["rows", "dense"])
def test_unit_vectors_are_exact_inference_on_the_subset(form):
    rows = torch.tensor([1, 4, 5, 9])
    actions = RowActions(rows, 12)
    actions = actions if form == "rows" else DenseActions(actions.dense())
    subset = dense_posterior(KERNEL, ROWS[rows], TARGETS[rows], NEW, NOISE)
    found = posterior_of(actions)
    close(found.mean(NEW), subset.mean, rtol=1e-10, atol=1e-13)
    close(found.covariance(NEW), subset.covariance, rtol=1e-10, atol=1e-13)
    close(evidence_of(actions).terms().projected_log_likelihood, subset.log_likelihood, rtol=1e-10)


def test_it_is_conditioning_on_the_projected_targets():
    """Lemma S1: exact conditioning of the prior on ``S' y`` with noise ``S' N S``."""
    S = dense_actions(12, 5).dense()
    joint = S.T @ H @ S
    cross = reference_block(KERNEL, NEW, ROWS) @ S
    found = posterior_of(DenseActions(S))
    close(found.mean(NEW)[:, 0], cross @ torch.linalg.solve(joint, S.T @ TARGETS), rtol=1e-10)
    expected = reference_block(KERNEL, NEW, NEW) - cross @ torch.linalg.solve(joint, cross.T)
    close(found.covariance(NEW), expected, rtol=1e-9, atol=1e-12)


def test_the_variance_is_the_worst_case_error():
    """Theorem S2: the largest squared error over the unit ball of the RKHS of the noisy kernel is K_i + noise."""
    S = blocks().dense()
    C = S @ torch.linalg.solve(S.T @ H @ S, S.T)
    variance = posterior_of(blocks()).mean_and_variance(NEW)[1]
    for j, expected in enumerate([0.335293309568, 0.190235764205, 1.084938591683]):
        k = reference_block(KERNEL, ROWS, NEW[j : j + 1])[:, 0]
        w = C @ k
        worst = 1.0 + NOISE - 2 * w @ k + w @ H @ w
        close([worst, variance[j] + NOISE], [expected, expected], rtol=1e-10)
        # y = sum_p c_p K^s(., p) over the rows and the point; the ball is c' G c <= 1 with their Gram matrix G
        gram = torch.zeros(13, 13, **F64)
        gram[:12, :12], gram[:12, 12], gram[12, :12], gram[12, 12] = H, k, k, 1.0 + NOISE
        error = gram[12] - w @ gram[:12]  # y(x) - w' y(X) as a linear function of c
        draws = torch.randn(2000, 13, generator=generator(j), **F64)
        draws = draws / (draws * (draws @ gram)).sum(1, keepdim=True).sqrt()
        assert float((draws @ error).square().max()) <= float(worst) + 1e-12
        best = torch.cat([-w, torch.ones(1, **F64)])
        best = best / (best @ gram @ best).sqrt()
        close((best @ error).square(), worst, rtol=1e-10)


def test_overconfidence_belongs_to_inducing_points():
    """P14 and the golden contrast: at inducing points, SGPR <= exact <= computation-aware with actions K(X, Z)."""
    for inducing, middle in ([[0.1, 0.5, 0.9], None], [[0.25, 0.75, 1.3], 0.775983973997]):
        Z = torch.tensor(inducing, **F64)[:, None]
        Kzz, Kzx = reference_block(KERNEL, Z, Z), reference_block(KERNEL, Z, ROWS)
        sparse = (Kzz @ torch.linalg.solve(Kzz + Kzx @ Kzx.T / NOISE, Kzz)).diagonal()
        exact = dense_posterior(KERNEL, ROWS, TARGETS, Z, NOISE).covariance.diagonal()
        ours = posterior_of(DenseActions(Kzx.T)).mean_and_variance(Z)[1]
        assert bool((sparse < exact).all())
        assert bool((exact < ours).all())
        if middle is not None:
            close([sparse[2], exact[2]], [0.351497778919, middle])


class Nystrom(Leaf):
    """``k(x, Z) k(Z, Z)^-1 k(Z, z)``, the approximation of a kernel by inducing points."""

    def __init__(self, Z):
        super().__init__({})
        self.Z = Z

    def block(self, X, Z):
        left, right = (reference_block(KERNEL, points, self.Z) for points in (X, Z))
        return left @ torch.linalg.solve(reference_block(KERNEL, self.Z, self.Z), right.T)

    def diagonal(self, X):
        return self.block(X, X).diagonal()


def test_sparse_regression_is_pseudo_inputs_with_the_nystrom_kernel():
    """P13: with Q in place of K, actions K(X, Z) give SGPR's mean, which agrees with the golden value and with ours."""
    settings = {"optimizer": None, "mean": "zero", "noise_variance": NOISE, "standardize": False}
    method = inference.SparseVariational(3, learn_inducing_points=False)
    sparse = GPRegressor(KERNEL, method, **settings).fit(ROWS.numpy(), TARGETS.numpy())
    golden = torch.tensor([[0.1], [0.5], [0.9]], **F64)
    expected = {golden: [0.277995302249, 0.0, -0.1093958703274], sparse.posterior_.inducing_points: sparse.predict(NEW)}
    for Z, means in expected.items():
        actions = DenseActions(reference_block(KERNEL, ROWS, Z))
        close(posterior_of(actions, kernel=Nystrom(Z)).mean(NEW)[:, 0], means, rtol=1e-6, atol=1e-7)


# Means, targets, noise ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [ConstantMean(), LinearMean()], ids=["constant", "linear"])
def test_the_learned_mean_is_exact_with_all_actions(mean):
    kernel, noise, X, _, _ = problem("matern")
    Y = draw_targets(kernel, X, 0.05, columns=2) + 4 - 2 * X[:, :1]
    exact = dense_posterior(kernel, X, Y, X[:5] + 0.1, noise, mean.basis)
    found = posterior_of(dense_actions(len(X), len(X)), X, Y, kernel=kernel, noise=noise, mean=mean)
    close(found.coefficients, exact.coefficients, rtol=1e-7)
    close(found.mean(X[:5] + 0.1), exact.mean, rtol=1e-7)


@pytest.mark.parametrize("loss", ["elbo", "projected"])
def test_the_learned_mean_is_the_best_one_for_the_loss(loss):
    kernel, noise, X, _, count = problem("noise of each row")
    Y = points(len(X), 2, seed=6) + 3 + X[:, :1]
    actions = dense_actions(len(X), count)
    options = {"kernel": kernel, "noise": noise, "loss": loss}
    found = evidence_of(actions, X, Y, mean=LinearMean(), **options)
    best = found.terms().value(loss)
    basis = LinearMean().basis(X)
    close(evidence_of(actions, X, Y - basis @ found.coefficients, **options).terms().value(loss), best, rtol=1e-12)
    for seed in range(5):
        shift = 0.05 * torch.randn(found.coefficients.shape, generator=generator(seed), **F64)
        other = evidence_of(actions, X, Y - basis @ (found.coefficients + shift), **options).terms().value(loss)
        assert other < best


def test_targets_add_up():
    both = torch.stack([TARGETS, TARGETS.flip(0) ** 2], 1)
    terms = evidence_of(blocks(), ROWS, both).terms()
    alone = [evidence_of(blocks(), ROWS, both[:, j : j + 1]).terms() for j in range(2)]
    close(terms.elbo, sum(one.elbo for one in alone), rtol=1e-12)
    close(terms.projected_log_likelihood, sum(one.projected_log_likelihood for one in alone), rtol=1e-12)
    assert posterior_of(blocks(), ROWS, both).mean(NEW).shape == (3, 2)


def test_noise_of_each_row_that_is_the_same_is_one_noise():
    each = evidence_of(blocks(), noise=torch.full((12,), NOISE, **F64)).terms()
    close(each.elbo, evidence_of(blocks()).terms().elbo, rtol=1e-13)


# Bad input ------------------------------------------------------------------------------------------------------------


def test_zero_noise_is_an_error_of_the_elbo_alone():
    with pytest.raises(InvalidInputError, match="noise_variance must be positive for the ELBO"):
        evidence_of(blocks(), noise=0.0)
    terms = evidence_of(blocks(), noise=0.0, loss="projected").terms()
    assert math.isfinite(terms.projected_log_likelihood)
    assert math.isnan(terms.elbo)
    found = posterior_of(blocks(), noise=0.0, loss="projected")
    close(found.mean_and_variance(ROWS)[1].sum() > 0.0, 1.0)


def test_a_matrix_without_a_factor_is_an_error():
    X = torch.zeros(6, 1, **F64)  # repeated rows and no noise
    with pytest.raises(NotPositiveDefiniteError, match="the projected matrix S'HS is not positive definite"):
        # whole numbers, so that the second pivot is exactly 0
        evidence_of(DenseActions(torch.eye(6, 3, **F64)), X, X, kernel=Matern(1.5).bind(1), noise=0.0, loss="projected")


def test_samples_know_the_noise_of_a_white_part():
    """All rows are actions, so samples must have the exact covariance; without the white part they are too narrow."""
    kernel, noise = (Matern(1.5, 0.3, 1.0) + White(1.0)).bind(1), 0.05
    exact = dense_posterior(kernel, ROWS, TARGETS, NEW, noise).covariance
    found = posterior_of(RowActions(torch.arange(12), 12), kernel=kernel, noise=noise)
    products = []
    for seed in range(60):
        deviations = found.sample_functions(20, generator(seed))(NEW)[:, 0] - found.mean(NEW)
        products.append(deviations @ deviations.T / 20)
    assert within_standard_errors(torch.stack(products), exact)
    # the control: the noise of the update without the white part
    K, cross = reference_block(kernel, ROWS, ROWS), reference_block(kernel, ROWS, NEW)
    update = torch.linalg.solve(reference_matrix(kernel, ROWS, noise), cross)
    short = reference_block(kernel, NEW, NEW) - 2 * cross.T @ update + update.T @ (K @ update + noise * update)
    assert not within_standard_errors(torch.stack(products), short)
