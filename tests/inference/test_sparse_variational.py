"""SGPR: the collapsed bound, its gradient and its posterior against dense formulas and exact inference."""

from __future__ import annotations

import itertools
import time
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from gigagp.errors import MemoryBudgetError, NotPositiveDefiniteError
from gigagp.inference import SparseVariational
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective
from gigagp.inference.sparse_variational import points as blocks
from gigagp.inference.sparse_variational.objective import choose_points
from gigagp.kernels import RBF, Linear, Matern, White
from gigagp.model.means import ConstantMean, LinearMean, ZeroMean
from gigagp.model.model import Model
from gigagp.runtime import interruption
from helpers import (
    all_kernels,
    dense_posterior,
    draw_targets,
    generator,
    largest_tensor,
    points,
    reference_block,
    relative_error,
)
from sparse_reference import collapsed

KERNEL = (Matern(1.5, [0.8, 1.4], 1.3) + Linear(0.2) + White(0.05)).bind(2)


def objective(X, Y, mean=None, budget=2**28, seed=0, **settings):
    table = TrainingTable(X, Y if Y.ndim == 2 else Y[:, None], mean or ZeroMean(), budget)
    return SparseVariational(**{"jitter": 0.0, **settings}).objective(table, generator(seed))


def model_of(kernel, noise, mean=None, Z=None):
    free = {} if Z is None else {"inducing_points": Z}
    return Model(kernel, mean or ZeroMean(), torch.as_tensor(noise, dtype=torch.float64), free)


@pytest.fixture
def small_blocks(monkeypatch):
    """Make tables of a few dozen rows have several blocks, the last one smaller."""
    monkeypatch.setattr(blocks, "_CPU_ENTRIES", 70)


# Known answers ------------------------------------------------------------------------------------------------------


def test_golden_numbers():
    """Computed by an independent program: 12 rows, Matern-3/2 with lengthscale 0.3, noise 0.1."""
    X = torch.arange(12, dtype=torch.float64)[:, None] / 11
    y = torch.sin(2 * torch.pi * X[:, 0]) + 0.5 * torch.cos(5 * torch.pi * X[:, 0])
    at = torch.tensor([[0.37], [0.5], [1.5]], dtype=torch.float64)
    kernel = Matern(1.5, 0.3, 1.0).bind(1)
    Z = torch.tensor([[0.1], [0.5], [0.9]], dtype=torch.float64)
    fitted = objective(X, y, n_inducing=3).posterior(model_of(kernel, 0.1, Z=Z))
    assert -fitted.log_marginal_likelihood(generator()).value == pytest.approx(24.60352852178839, rel=1e-12)
    means = torch.tensor([0.277995302249, 0, -0.1093958703274], dtype=torch.float64)
    torch.testing.assert_close(fitted.mean(at)[:, 0], means, rtol=1e-11, atol=1e-12)
    variances = torch.tensor([0.032351202966, 0.029549270358, 0.032351202966], dtype=torch.float64)
    torch.testing.assert_close(fitted.mean_and_variance(Z)[1], variances, rtol=1e-10, atol=0)
    far = torch.tensor([[0.25], [0.75], [1.3]], dtype=torch.float64)
    variance = objective(X, y, n_inducing=3).posterior(model_of(kernel, 0.1, Z=far)).mean_and_variance(far)[1]
    assert float(variance[2]) == pytest.approx(0.351497778919, rel=1e-11)
    exact = dense_posterior(kernel, X, y, far, 0.1).covariance.diagonal()
    assert float(exact[2]) == pytest.approx(0.775983973997, rel=1e-11)  # the overconfidence described in the notes


@pytest.mark.parametrize("n_targets", [1, 3])
def test_all_rows_as_inducing_points_are_exact_inference(n_targets):
    X, mean = points(50, 2), LinearMean()
    Y = draw_targets(Matern(1.5), X, 0.1, columns=n_targets) + 2 * X[:, :1] - 1
    model = model_of(KERNEL, 0.1, mean)
    ours = objective(X, Y, mean, n_inducing=50)
    exact = ExactObjective(TrainingTable(X, Y, mean, 2**28))
    found, expected = ours.evaluate(ours.start(model)), exact.evaluate(model)
    assert found.value == pytest.approx(expected.value, rel=1e-11)
    for name, value in expected.gradient.items():
        torch.testing.assert_close(found.gradient[name], value, rtol=1e-8, atol=1e-8)
    fitted, reference, new = ours.posterior(model), exact.posterior(model), points(20, 2, seed=9)
    torch.testing.assert_close(fitted.mean(new), reference.mean(new), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(fitted.covariance(new), reference.covariance(new), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(fitted.coefficients, reference.coefficients, rtol=1e-9, atol=1e-9)
    fewer = objective(X, Y, mean, n_inducing=25)  # the control
    assert fewer.evaluate(fewer.start(model)).value < expected.value - 0.5


@pytest.mark.slow
def test_the_bound_lies_below_the_likelihood_and_needs_its_trace_term():
    """100 random problems. Without the trace term many values exceed the likelihood, so the comparison can fail."""
    above = 0
    for seed in range(100):
        X = points(25, 2, seed=seed)
        noise = 10.0 ** float(-3 * torch.rand((), generator=generator(seed)))
        kernel = Matern([0.5, 1.5, 2.5][seed % 3], [0.5, 2.0], 1.5).bind(2)
        Y = draw_targets(kernel, X, noise, seed=seed + 1) * [1.0, 0.2][seed % 2]  # small targets favour a small matrix
        Z, jitter = points(6, 2, seed=seed + 2), [0.0, 0.1][seed // 2 % 2]
        bound = objective(X, Y, jitter=jitter).evaluate(model_of(kernel, noise, Z=Z)).value
        exact = dense_posterior(kernel, X, Y, X, noise).log_likelihood
        assert bound < exact
        above += float(collapsed(kernel, X, Y, Z, noise, jitter=jitter).likelihood_of_q) > exact
    assert above > 10


def test_more_points_never_lower_the_bound():
    """Nested inducing points (Titsias 2009, section 3.1), including large jitter."""
    X = points(40, 2)
    Y = draw_targets(Matern(1.5), X, 0.05)
    values = [
        objective(X, Y, jitter=1e-6).evaluate(model_of(Matern(1.5).bind(2), 0.05, Z=X[:m])).value
        for m in range(2, 40, 3)
    ]
    assert all(later > earlier - 1e-9 for earlier, later in itertools.pairwise(values))


# Against the dense formula ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in all_kernels() if name != "white"])
def test_value_gradient_and_posterior_of_every_kernel(name, small_blocks):
    kernel = all_kernels()[name]
    X, Z, new = points(23, 4), points(6, 4, seed=1), points(11, 4, seed=2)
    Y, mean = points(23, 2, seed=3) + 4, ConstantMean()
    values = {key: value.clone().requires_grad_() for key, value in kernel.parameters().items()}
    noise, places = torch.tensor(0.3, dtype=torch.float64).requires_grad_(), Z.clone().requires_grad_()
    expected = collapsed(kernel.replace(values), X, Y, places, noise, new, mean.basis, jitter=0.01)
    wanted = [*values.values(), noise, places]
    gradients = torch.autograd.grad(expected.bound, wanted, retain_graph=True, allow_unused=True)
    ours = objective(X, Y, mean, jitter=0.01, n_inducing=6)
    model = model_of(kernel, 0.3, mean, Z)
    found = ours.evaluate(model)
    assert found.value == pytest.approx(float(expected.bound.detach()), rel=1e-10)
    for key, value in zip([*values, "noise_variance", "inducing_points"], gradients, strict=True):
        value = torch.zeros_like(found.gradient[key]) if value is None else value
        torch.testing.assert_close(found.gradient[key], value, rtol=1e-7, atol=1e-8)
    fitted = ours.current_posterior()
    torch.testing.assert_close(fitted.mean(new), expected.mean.detach(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(fitted.coefficients, expected.coefficients.detach(), rtol=1e-9, atol=1e-9)
    # the reference has noise-free inducing values; they agree to the effect of the jitter
    scale = float(kernel.diagonal(new).max()) or 1.0
    covariance = fitted.covariance_given_trend(new)
    torch.testing.assert_close(covariance, expected.covariance.detach(), rtol=1e-9, atol=1e-9 * scale)
    mean_again, variance = fitted.mean_and_variance_given_trend(new)
    torch.testing.assert_close(mean_again, expected.mean.detach(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(variance, expected.covariance.detach().diagonal(), rtol=1e-8, atol=1e-9 * scale)


def test_known_noise_of_each_row(small_blocks):
    X, Z = points(30, 2), points(5, 2, seed=1)
    noise = torch.rand(30, generator=generator(), dtype=torch.float64) + 0.05
    Y = draw_targets(Matern(1.5), X, 0.1)
    values = {key: value.clone().requires_grad_() for key, value in KERNEL.parameters().items()}
    places = Z.clone().requires_grad_()
    expected = collapsed(KERNEL.replace(values), X, Y, places, noise)
    gradients = torch.autograd.grad(expected.bound, [*values.values(), places])
    found = objective(X, Y).evaluate(model_of(KERNEL, noise, Z=Z))
    assert found.value == pytest.approx(float(expected.bound.detach()), rel=1e-11)
    for key, value in zip([*values, "inducing_points"], gradients, strict=True):
        torch.testing.assert_close(found.gradient[key], value, rtol=1e-8, atol=1e-9)
    mixed = objective(X, Y).evaluate(model_of(KERNEL, noise.mean(), Z=Z))  # the control: one variance for all
    assert mixed.value != pytest.approx(found.value, rel=1e-3)


def test_blocks_do_not_change_the_numbers(monkeypatch):
    X, Y = points(40, 2), points(40, 1, seed=1)
    model = model_of(KERNEL, 0.2, Z=X[:7] + 0.1)
    whole = objective(X, Y).evaluate(model)
    monkeypatch.setattr(blocks, "_CPU_ENTRIES", 50)  # seven rows at a time
    pieces = objective(X, Y, n_inducing=7).evaluate(model)
    assert pieces.value == pytest.approx(whole.value, rel=1e-13)
    for name, value in whole.gradient.items():
        torch.testing.assert_close(pieces.gradient[name], value, rtol=1e-10, atol=1e-11)


def test_a_large_mean_costs_no_digits():
    """For targets a million from zero, sums of squares would lose twelve digits."""
    X, Y = points(60, 2), draw_targets(Matern(1.5), points(60, 2), 0.01)
    model = model_of(Matern(1.5).bind(2), 0.01, ConstantMean(), X[:20])
    near, far = (objective(X, Y + shift, ConstantMean()).evaluate(model) for shift in (0.0, 1e6))
    assert far.value == pytest.approx(near.value, rel=1e-8)


def test_gradients_keep_their_digits_where_points_nearly_coincide():
    """A covariance of condition number 1e9 and low noise, against the same formula from whitened features."""
    X = points(80, 1)
    Y = torch.sin(X) + 0.01 * points(80, 1, seed=1)
    kernel = RBF(2.0, 1.0).bind(1)
    model = model_of(kernel, 1e-4, Z=X[:20].clone())
    found = objective(X, Y, jitter=1e-8).evaluate(model)
    step = 1e-4
    up, down = (
        objective(X, Y, jitter=1e-8)
        .evaluate(model.replace({"lengthscale": torch.tensor([2.0 + h], dtype=torch.float64)}))
        .value
        for h in (step, -step)
    )
    assert float(found.gradient["lengthscale"]) == pytest.approx((up - down) / (2 * step), rel=1e-5)


def test_float32_tables_have_float64_algebra():
    X, Y = points(60, 2, dtype=torch.float32), points(60, 1, seed=1, dtype=torch.float32)
    model = model_of(KERNEL, 0.1, Z=X[:9].double())
    narrow, wide = objective(X, Y), objective(X.double(), Y.double())
    assert narrow.evaluate(model).value == pytest.approx(wide.evaluate(model).value, rel=1e-13)
    found = narrow.posterior(model).mean(X)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), wide.posterior(model).mean(X.double()), rtol=1e-6, atol=1e-6)


def test_the_same_numbers_twice():
    X, Y = points(90, 2), points(90, 1, seed=1)
    first, second = objective(X, Y, n_inducing=20), objective(X, Y, n_inducing=20)
    model = model_of(KERNEL, 0.1)
    left, right = (one.evaluate(one.start(model)) for one in (first, second))
    assert left.value == right.value
    assert all(torch.equal(left.gradient[name], right.gradient[name]) for name in left.gradient)
    other = objective(X, Y, n_inducing=20, seed=1)
    assert other.evaluate(other.start(model)).value != left.value


# Memory -------------------------------------------------------------------------------------------------------------


def test_nothing_has_n_rows_and_m_columns():
    n, m, budget = 6000, 20, 2**20
    X, Y = points(n, 2), points(n, 1, seed=1)
    ours = objective(X, Y, budget=budget, n_inducing=m)
    model = model_of(KERNEL, 0.1, Z=X[:m])
    with largest_tensor() as spy:
        ours.evaluate(model)
    assert spy.elements <= max(budget // (8 * 8), 5 * n)  # blocks, and the rows with their targets
    with largest_tensor() as spy:
        ours.points(model).features(X)  # the control: all rows at once
    assert spy.elements >= n * m


def test_what_cannot_fit_is_refused_first():
    X, Y = points(300, 2), points(300, 1)
    with pytest.raises(MemoryBudgetError, match=r"Inference with 200 inducing points needs .* smaller n_inducing"):
        objective(X, Y, budget=2**20, n_inducing=200)
    with pytest.raises(MemoryBudgetError, match="batch_size"):
        objective(X, Y, budget=2**18, n_inducing=30, batch_size=300)
    objective(X, Y, budget=2**18, n_inducing=30, batch_size=30)


# Where the points start ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["greedy", "kmeans++", "random"])
def test_starts_are_distinct_rows(rule):
    X = points(50, 2)[torch.arange(150) % 50]  # every row three times
    table = TrainingTable(X, X[:, :1], ZeroMean(), 2**28)
    for count, expected in ((20, 20), (50, 50), (120, 50)):
        Z = choose_points(rule, model_of(KERNEL, 0.1), table, count, generator())
        assert Z.shape == (expected, 2)
        assert len(torch.unique(Z, dim=0)) == expected
        assert bool((torch.cdist(Z, X).min(1).values < 1e-7).all())
        again = choose_points(rule, model_of(KERNEL, 0.1), table, count, generator())
        assert torch.equal(Z, again)
        if expected < 50 and rule != "greedy":  # the greedy rule can only choose among equals
            assert not torch.equal(Z, choose_points(rule, model_of(KERNEL, 0.1), table, count, generator(1)))


def test_greedy_takes_the_largest_variance_each_time():
    X = points(80, 2)
    kernel = Matern(1.5, [0.5, 2.0]).bind(2)
    Z = choose_points("greedy", model_of(kernel, 0.1), TrainingTable(X, X[:, :1], ZeroMean(), 2**28), 12, generator())
    for m in range(1, 12):
        cross, inner = reference_block(kernel, X, Z[:m]), reference_block(kernel, Z[:m], Z[:m])
        left = 1 - (cross * torch.linalg.solve(inner, cross.T).T).sum(1)
        at_next = float(left[(X - Z[m]).square().sum(1).argmin()])
        assert at_next == pytest.approx(float(left.max()), rel=1e-9)


def test_spread_starts_cover_clusters_that_random_rows_miss():
    """Ten clusters, one of them with almost all rows."""
    centres = 100 * points(10, 2, seed=3)
    X = torch.cat([centres[0] + 0.1 * points(2000, 2), centres.repeat_interleave(2, 0) + 0.1 * points(20, 2, seed=1)])
    table = TrainingTable(X, X[:, :1], ZeroMean(), 2**28)
    model = model_of(Matern(1.5, 1.0, ard=False).bind(2), 0.1)

    def covered(rule):
        Z = choose_points(rule, model, table, 10, generator())
        return len(set(torch.cdist(Z, centres).argmin(1).tolist()))

    assert covered("kmeans++") >= 9
    assert covered("greedy") == 10
    assert covered("random") <= 3


def test_a_smooth_kernel_still_gets_all_its_points():
    """The greedy choice ends at the level of rounding; a shorter lengthscale will need the other points."""
    X = points(60, 1)
    table = TrainingTable(X, X, ZeroMean(), 2**28)
    assert choose_points("greedy", model_of(RBF(100.0).bind(1), 0.1), table, 40, generator()).shape == (40, 1)
    constant = model_of(Linear(1.0, columns=[1]).bind(2), 0.1)
    rows = torch.cat([X, X.new_zeros(60, 1)], 1)
    table = TrainingTable(rows, X, ZeroMean(), 2**28)
    for rule in ("greedy", "kmeans++"):
        assert choose_points(rule, constant, table, 40, generator()).shape == (40, 2)


def test_large_tables_are_looked_at_in_part(monkeypatch):
    from gigagp.inference.sparse_variational import objective

    monkeypatch.setattr(objective, "_LEAST_ROWS", 30)
    monkeypatch.setattr(objective, "_ROWS_PER_POINT", 2)
    X = points(500, 2)
    X[:495] = X[0]  # nearly all rows are equal: a part may have too few distinct ones, but the whole has six
    table = TrainingTable(X, X[:, :1], ZeroMean(), 2**28)
    for rule in ("greedy", "kmeans++", "random"):
        assert len(choose_points(rule, model_of(KERNEL, 0.1), table, 6, generator())) == 6


def test_a_step_is_only_begun_where_the_posterior_follows_in_time(monkeypatch):
    """Two hours leave time for a pass over the rows of 50 minutes, not for an evaluation and that pass."""
    X = torch.randn(60, 2, dtype=torch.float64, generator=generator())
    given = objective(X, X[:, :1].sin(), n_inducing=10)
    model = given.start(model_of(RBF(1.0).bind(2), 0.1))
    monkeypatch.setattr(given, "least_seconds", lambda: 3000.0)
    for hours, ends in ((2, True), (4, False)):
        with interruption.interruptible(time.monotonic() + 3600 * hours) as fit:
            fit.keep()
            with pytest.raises(interruption.Interrupted) if ends else nullcontext():
                given.evaluate(model)
            assert fit.cut == ends
            fit.learning = False
            assert torch.isfinite(given.posterior(model).mean(X)).all()


def test_points_stay_where_they_are_fixed():
    X, Y = points(60, 2), points(60, 1, seed=1)
    ours = objective(X, Y, n_inducing=10, learn_inducing_points=False)
    model = ours.start(model_of(KERNEL, 0.1))
    assert not model.free
    first = ours.evaluate(model)
    assert "inducing_points" not in first.gradient
    later = ours.start(model.replace({"0.lengthscale": torch.tensor([0.1, 9.0]).double()}))
    assert torch.equal(ours.posterior(later).inducing_points, ours.posterior(model).inducing_points)
    moving = objective(X, Y, n_inducing=10)
    handed = replace(model, free={"inducing_points": X[:4]})
    assert moving.start(handed) is handed  # points learned in an earlier stage are kept
    assert torch.equal(moving.start(model).free["inducing_points"], ours.posterior(model).inducing_points)


def test_white_noise_alone_has_no_inducing_values():
    with pytest.raises(NotPositiveDefiniteError, match="covariance of the 4 inducing points"):
        objective(points(20, 2), points(20, 1), jitter=1e-6).evaluate(
            model_of(White(1.0).bind(2), 0.1, Z=points(4, 2, seed=1))
        )


def test_coinciding_points_need_jitter():
    X, Y = points(20, 2), points(20, 1)
    model = model_of(RBF().bind(2), 0.1, Z=X[:1].repeat(3, 1))
    with pytest.raises(NotPositiveDefiniteError, match=r"covariance of the 3 inducing points .* Raise jitter"):
        objective(X, Y).evaluate(model)
    found = objective(X, Y, jitter=1e-8).evaluate(model)
    once = objective(X, Y).evaluate(model_of(RBF().bind(2), 0.1, Z=X[:1]))
    assert found.value == pytest.approx(once.value, rel=1e-6)
    assert relative_error(found.gradient["lengthscale"], once.gradient["lengthscale"]) < 1e-4
