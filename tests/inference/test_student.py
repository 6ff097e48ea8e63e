"""The bound for Student-t noise: against quadrature and a Gibbs sampler, its gradient, its limit, and outliers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from gigagp import kernels
from gigagp.errors import FitWarning, InvalidInputError
from gigagp.estimators.student_fit import weighted_by_neighbours
from gigagp.inference.contract.objective import ExactObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact import student
from gigagp.inference.exact.evidence import bound
from gigagp.inference.exact.student import StudentObjective, check_student
from gigagp.model.likelihoods import StudentT
from gigagp.model.means import ConstantMean, ZeroMean
from gigagp.model.model import Model
from gigagp.model.student_noise import StudentNoise, expected_weights
from gigagp.optimization.space import ParameterSpace
from helpers import generator

KERNEL = kernels.Matern(1.5, [0.8, 1.7], 1.3).bind(2)


def rows(n, seed=0):
    """Return rows in a clump, with duplicates, and far apart, in inputs of different scales."""
    draw = np.random.default_rng(seed)
    X = np.concatenate([draw.normal(size=(n - n // 3, 2)), 0.05 * draw.normal(size=(n // 3, 2)) + 1.0])
    X[1] = X[0]
    return X * [1.0, 2.0]


def problem(n, share=0.1, size=8.0, seed=0):
    """Return a table of which a share of the targets is wrong, and which."""
    draw = np.random.default_rng(seed)
    X = rows(n, seed)
    covariance = KERNEL.block(torch.from_numpy(X), torch.from_numpy(X)).numpy()
    f = np.linalg.cholesky(covariance + 1e-9 * np.eye(n)) @ draw.normal(size=n)
    wrong = draw.uniform(size=n) < share
    y = f + 0.2 * draw.normal(size=n) + np.where(wrong, size * draw.choice([-1, 1], n), 0.0)
    return table_of(X, y), wrong, f


def table_of(X, y, mean=None):
    return TrainingTable(torch.from_numpy(X), torch.from_numpy(y)[:, None], mean or ZeroMean(), 2**30)


def model_of(squared_scale=0.05, mean=None, kernel=KERNEL):
    return Model(kernel, mean or ZeroMean(), torch.tensor(squared_scale, dtype=torch.float64))


@pytest.mark.few(2)
@pytest.mark.parametrize("df", [2.5, 4.0, 30.0])
@pytest.mark.parametrize("gap", [0.0, 1.0, 30.0], ids=["fits", "off", "far off"])
def test_it_is_a_lower_bound_close_to_the_integral(df, gap):
    """Three rows, the integral over the function by a rule of 70 points in each direction."""
    X, y = np.array([[0.0, 0.0], [0.3, 0.5], [2.0, 1.0]]), np.array([0.4, 0.6 + gap, -0.5])
    squared_scale = 0.3
    own = StudentObjective(table_of(X, y), df)
    value = own.evaluate(model_of(squared_scale)).value
    points = torch.from_numpy(X)
    root = np.linalg.cholesky(KERNEL.block(points, points).numpy())
    z = np.linspace(-7, 7, 70)
    mesh = np.stack(np.meshgrid(z, z, z, indexing="ij"), -1).reshape(-1, 3)
    logs = stats.norm.logpdf(mesh).sum(1) + stats.t(df, scale=squared_scale**0.5).logpdf(y - mesh @ root.T).sum(1)
    exact = np.logaddexp.reduce(logs) + 3 * np.log(z[1] - z[0])
    assert value < exact
    assert value > exact - 0.7 / df**0.5
    assert value > ExactObjective(own.table).evaluate(model_of(squared_scale)).value or gap < 30


def test_many_degrees_of_freedom_are_gaussian_noise():
    table, _, _ = problem(60, share=0.0)
    own, exact = StudentObjective(table, 1e9), ExactObjective(table)
    found, wanted = own.evaluate(model_of()), exact.evaluate(model_of())
    assert found.value == pytest.approx(wanted.value, abs=1e-5)
    for name, value in wanted.gradient.items():
        torch.testing.assert_close(found.gradient[name], value, rtol=1e-6, atol=1e-5)
    new = torch.from_numpy(rows(7, 5))
    mine, theirs = own.posterior(model_of()), exact.posterior(model_of())
    for one, other in zip(mine.mean_and_variance(new), theirs.mean_and_variance(new), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    left_out = mine.left_out().of_student(table.Y, mine.model)
    torch.testing.assert_close(left_out.log_density, theirs.left_out().log_density, rtol=0, atol=1e-3)
    few = StudentObjective(table, 3.0).evaluate(model_of())
    assert abs(few.value - wanted.value) > 1  # the control


@pytest.mark.parametrize("df", [3.0, None])
def test_the_gradient_is_that_of_the_value(df):
    """At weights that have converged; with a white part and a learned mean."""
    kernel, mean = (KERNEL + kernels.White(0.05)).bind(2), ConstantMean()
    table = replace(problem(50)[0], mean=mean)
    own, model = StudentObjective(table, df), model_of(0.04, mean, kernel)
    space = ParameterSpace(model, "log")
    vector = space.encode(model)
    own.posterior(model)

    def value(x):
        for _ in range(3):
            found = own.evaluate(space.decode(x))
        return found

    gradient = space.pull_back(value(vector).gradient, vector)
    step = 1e-4
    for k in range(space.size):
        e = torch.zeros_like(vector)
        e[k] = step
        slope = (value(vector + e).value - value(vector - e).value) / (2 * step)
        assert float(gradient[k]) == pytest.approx(slope, rel=2e-2, abs=5e-2)


def test_the_information_is_that_of_the_row_noise():
    """Many probes, against dense algebra."""
    table = problem(30)[0]
    own, model = StudentObjective(table, 3.0), model_of()
    space = ParameterSpace(model, "log")
    vector = space.encode(model)
    own.evaluate(model)
    state = own.current_posterior()
    noise = state.model.noise_variance.numpy()
    H = KERNEL.block(table.X, table.X).numpy() + np.diag(noise)
    product = np.linalg.solve(H, 2 * np.diag(noise))  # by the logarithm of the standard deviation
    exact = 0.5 * np.trace(product @ product)
    probes = torch.randn(30, 4000, generator=generator(), dtype=torch.float64)
    assert float(own.fisher(space, vector, probes)[-1, -1]) == pytest.approx(exact, rel=0.05)


@pytest.mark.slow
def test_beside_a_gibbs_sampler():
    """The mean is right and the standard deviation a little small, as of all such bounds."""
    n, df, squared_scale = 30, 3.0, 0.04
    table, _, _ = problem(n, size=4.0)
    found = StudentObjective(table, df).posterior(model_of(squared_scale))
    mean, variance = (one.numpy() for one in found.mean_and_variance(table.X))
    draw, y = np.random.default_rng(1), table.Y[:, 0].numpy()
    K = KERNEL.block(table.X, table.X).numpy()
    w, draws = np.ones(n), []
    for k in range(6000):
        gain = np.linalg.solve(K + np.diag(squared_scale / w), K).T
        centre, covariance = gain @ y, K - gain @ K
        values, vectors = np.linalg.eigh(covariance)
        f = centre + vectors @ (np.sqrt(np.clip(values, 0, None)) * draw.normal(size=n))
        w = draw.gamma((df + 1) / 2, 2 / (df + (y - f) ** 2 / squared_scale))
        if k >= 500:
            draws.append(f)
    exact_mean, exact_std = np.mean(draws, 0), np.std(draws, 0)
    assert np.abs(mean[:, 0] - exact_mean).max() < 0.5 * exact_std.max()
    ratio = np.sqrt(variance) / exact_std
    assert 0.75 < np.median(ratio) < 1.05
    gaussian = ExactObjective(table).posterior(model_of(3 * squared_scale))  # of the same variance: the control
    assert np.abs(gaussian.mean(table.X)[:, 0].numpy() - exact_mean).max() > 2 * exact_std.max()


@pytest.mark.parametrize("size", [5.0, 1e3, 1e8])
def test_outliers_are_found_where_rows_clump_and_repeat(size):
    table, wrong, f = problem(150, size=size, seed=3)
    posterior = StudentObjective(table, None).posterior(model_of())
    noise = posterior.model.student
    weights = noise.weights(posterior.model.noise_variance).numpy()
    assert (weights[wrong] < 0.1).mean() > 0.9
    assert (weights[~wrong] < 0.1).mean() < 0.05
    error = np.sqrt(np.mean((posterior.mean(table.X)[:, 0].numpy() - f) ** 2))
    assert error < 0.25
    gaussian = ExactObjective(table).posterior(model_of(noise.variance))
    assert np.sqrt(np.mean((gaussian.mean(table.X)[:, 0].numpy() - f) ** 2)) > 2 * error


def test_weights_from_neighbours_are_those_of_exact_inference():
    table, wrong, _ = problem(400, seed=4)
    exact = StudentObjective(table, 3.0).posterior(model_of()).model
    model = model_of()
    found = weighted_by_neighbours(model, table, StudentNoise(3.0, 0.05), learns_df=None)
    assert found.student == exact.student
    gap = (found.student.weights(found.noise_variance) / exact.student.weights(exact.noise_variance)).log()
    assert float(gap.abs().quantile(0.95)) < 0.1
    learned = weighted_by_neighbours(model, table, StudentNoise(4.0, 1.0), learns_df=True)
    assert learned.student.squared_scale < 0.1
    assert learned.student.df < 4
    assert (learned.student.weights(learned.noise_variance).numpy()[wrong] < 0.1).mean() > 0.9


def test_subsets_and_snapshots():
    table, _, _ = problem(60)
    own = StudentObjective(table, None)
    first = own.evaluate(model_of())
    tensors, header = own.snapshot()
    second = own.evaluate(model_of(0.1))
    again = StudentObjective(table, None)
    again.restore(model_of(), tensors, header)
    assert again.evaluate(model_of(0.1)).value == second.value != first.value
    some = own.thin(torch.arange(0, 60, 2))
    assert some.n_rows == 30
    assert bound(some.posterior(model_of())) == pytest.approx(some.evaluate(model_of()).value, abs=1e-3)
    assert own.target_variance < float(table.Y.var())  # outliers do not count


def test_densities_of_left_out_rows():
    """Each is Student's, about the prediction from the others at their weights."""
    table, _, _ = problem(40)
    posterior = StudentObjective(table, 3.0).posterior(model_of())
    found = posterior.left_out().of_student(table.Y, posterior.model).log_density[:, 0]
    noise, row = posterior.model.noise_variance, 7
    others = [k for k in range(40) if k != row]
    K = KERNEL.block(table.X, table.X)
    gain = torch.linalg.solve(K[others][:, others] + torch.diag(noise[others]), K[others, row])
    mean, variance = gain @ table.Y[others, 0], K[row, row] - gain @ K[others, row]
    wanted = StudentT(3.0).predictive_log_density(
        table.Y[row], mean, variance.sqrt(), torch.tensor(posterior.model.student.variance, dtype=torch.float64)
    )
    assert float(found[row]) == pytest.approx(float(wanted), abs=1e-8)


def test_what_it_has_no_meaning_for():
    for model, targets, words in (
        (model_of(), 2, "one target"),
        (replace(model_of(), noise_variance=torch.ones(3)), 1, "got one for each row"),
        (model_of(0.0), 1, "noise of its own"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            check_student(model, targets)


# Many rows that are far away ------------------------------------------------------------------------------------------


def far_rows():
    """Return an objective and a model whose function follows a line, and whose noise is much less than the errors."""
    x = np.linspace(-1.7, 1.7, 36)
    y = np.random.default_rng(1).standard_t(2, 36)
    kernel = kernels.Linear(2.758).bind(1)
    return StudentObjective(table_of(x[:, None], y, ConstantMean()), 4.0), model_of(0.001, ConstantMean(), kernel)


def test_weights_agree_with_the_errors_after_few_rounds(monkeypatch):
    """It took 56 rounds; in other tables a hundred were not enough, and nothing said so."""
    rounds, factorise = [], StudentObjective._factorise
    monkeypatch.setattr(StudentObjective, "_factorise", lambda *given: rounds.append(1) or factorise(*given))
    objective, model = far_rows()
    posterior = objective.posterior(model)
    assert len(rounds) < 40
    noise, table = posterior.model.student, objective.table
    gaps = table.Y[:, 0] - posterior.mean(table.X)[:, 0]
    squares = gaps.square() + posterior.mean_and_variance_given_trend(table.X)[1]
    found = noise.weights(posterior.model.noise_variance)
    torch.testing.assert_close(found, expected_weights(squares, noise), rtol=1e-3, atol=1e-3)


def test_rounds_that_do_not_suffice_warn(monkeypatch):
    monkeypatch.setattr(student, "_LAST_ROUNDS", 3)
    objective, model = far_rows()
    with pytest.warns(FitWarning, match="its last round gained"):
        objective.posterior(model)
