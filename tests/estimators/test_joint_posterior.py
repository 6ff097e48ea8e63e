"""`GPRegressor.posterior`: kernels, units, shapes, samples, densities, refusals, and the memory of its derivatives."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from gigagp import GPRegressor, actions, inference, kernels
from gigagp.errors import InvalidInputError, NotPositiveDefiniteError
from gigagp.estimators.answers.joint_posterior import JointPosterior, cholesky_of_batches
from gigagp.inference.contract.batches import prior_covariance
from helpers import all_kernels, dense_posterior

METHODS = {
    "exact": inference.Exact(),
    "vecchia": inference.Vecchia(10, 12),
    "sparse": inference.SparseVariational(n_inducing=9, learn_inducing_points=False),
    "actions": inference.ComputationAware(n_actions=6),
}
#: Every kernel with one method, and kernels of every kind of formula with the others.
CELLS = [(name, "exact") for name in all_kernels() if name not in ("white", "constant", "sphere")]
CELLS += [(name, method) for name in ("matern32", "sum", "decaying period") for method in METHODS if method != "exact"]
SCALE, CENTRE = np.array([1.0, 1e3, 1e-3, 7.0]), np.array([0.0, 5e3, 2.0, -9.0])


def table(n=30, seed=0, d=4):
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(n, d))
    return X, np.sin(X[:, 0]) + 0.3 * X[:, 1] + 0.1 * draw.normal(size=n)


def fit(method, kernel, mean="linear", seed=0, **settings):
    X, y = table(seed=seed)
    settings = {"noise_variance": 0.02, "hyperparameter_units": "standardized", **settings}
    gp = GPRegressor(kernel, method, optimizer=None, mean=mean, **settings)
    return gp.fit(CENTRE + SCALE * X, 40.0 + 5.0 * y)


def moved(gp, asked):
    """Return a function of standardized moves of six points in two batches."""
    start = torch.from_numpy(np.random.default_rng(3).normal(size=(2, 3, 4)))
    scale, centre = torch.from_numpy(SCALE), torch.from_numpy(CENTRE)
    return lambda move: asked(gp.posterior(centre + scale * (start + move), include_noise=True))


def right(function, shape=(2, 3, 4)):
    start = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    return torch.autograd.gradcheck(function, start, eps=1e-5, atol=1e-4, rtol=1e-4, fast_mode=True)


ALL = {
    "mean": lambda found: found.mean,
    "variance": lambda found: found.variance,
    "covariance": lambda found: found.covariance,
    "samples": lambda found: found.rsample((2,)),
}


@pytest.mark.few(5)
@pytest.mark.parametrize(("name", "method"), CELLS)
def test_derivatives_for_every_kernel_in_any_units(name, method):
    gp = fit(METHODS[method], all_kernels()[name])
    for asked in ALL.values():
        assert right(moved(gp, asked))


@pytest.mark.few(1)
@pytest.mark.parametrize("method", METHODS)
def test_derivatives_on_the_sphere(method):
    """Inputs in degrees, across the date line and near a pole, and a third one in units of its own."""
    draw = np.random.default_rng(1)
    X = np.stack([draw.uniform(170, 190, 30), draw.uniform(60, 88, 30), 1e3 * draw.normal(size=30)], 1)
    kernel = kernels.Matern(2.5, [900.0, 2e3], metric="haversine")
    gp = GPRegressor(kernel, METHODS[method], optimizer=None, noise_variance=0.02).fit(X, np.sin(X[:, 0] / 5))
    start, scale = torch.from_numpy(X[:12].reshape(2, 6, 3) + 0.1), torch.tensor([1.0, 1.0, 1e3])
    for asked in ALL.values():
        assert right(lambda move, asked=asked: asked(gp.posterior(start + scale * move, include_noise=True)), (2, 6, 3))


def test_a_held_factor_does_not_pass(monkeypatch):
    """The control: without the derivative of what the rows explain, the test above fails."""
    gp = fit(METHODS["exact"], all_kernels()["rbf"])
    assert right(moved(gp, ALL["covariance"]))
    kernel = gp.posterior_.model.kernel

    def held(function, X, points=0):
        explained = (prior_covariance(kernel, X) - function(X)).detach()
        return prior_covariance(kernel, X) - explained

    monkeypatch.setattr("gigagp.inference.contract.exact_posterior._FEW_COVARIANCES", 0)
    monkeypatch.setattr("gigagp.inference.contract.exact_posterior.by_batches", held)
    with pytest.raises(RuntimeError, match=r"not equal|mismatch"):
        right(moved(gp, ALL["covariance"]))


def test_one_hot_columns_of_categories_count_as_numbers():
    kernel = kernels.Matern(2.5, 1.0, columns=[0, 1]) * kernels.Categorical(columns=[2, 3], fixed=["variance"])
    gp = fit(METHODS["exact"], kernel)
    assert right(moved(gp, ALL["covariance"]))


def test_dense_algebra_in_own_units():
    X, y = table(25, 1, 2)
    kernel, noise = kernels.Matern(2.5, [0.8, 1.5], 2.0), 0.05
    gp = GPRegressor(kernel, inference.Exact(), optimizer=None, mean="zero", noise_variance=noise, standardize=False)
    gp.fit(X, y)
    points = torch.from_numpy(np.random.default_rng(2).normal(size=(4, 3, 2))).requires_grad_()
    found = gp.posterior(points)
    for k in range(4):
        dense = dense_posterior(kernel, torch.from_numpy(X), torch.from_numpy(y), points[k], noise)
        torch.testing.assert_close(found.mean[k], dense.mean[:, 0])
        torch.testing.assert_close(found.covariance[k], dense.covariance, rtol=1e-9, atol=1e-10)
        for mine, theirs in ((found.mean[k], dense.mean[:, 0]), (found.covariance[k], dense.covariance)):
            weights = torch.linspace(1, 2, mine.numel(), dtype=torch.float64).view(mine.shape)
            slopes = [
                torch.autograd.grad((weights * one).sum(), points, retain_graph=True)[0] for one in (mine, theirs)
            ]
            torch.testing.assert_close(*slopes, rtol=1e-7, atol=1e-9)


def test_second_derivatives():
    gp = fit(METHODS["exact"], all_kernels()["matern52"])
    function = moved(gp, lambda found: found.covariance[0].square().sum() + found.mean[0].square().sum())
    assert torch.autograd.gradgradcheck(
        lambda move: function(move) * 1e-3,
        torch.zeros(2, 3, 4, dtype=torch.float64, requires_grad=True),
        eps=1e-4,
        atol=1e-4,
        rtol=1e-3,
        fast_mode=True,
    )


# Rows and points that coincide ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Squared errors")  # few functions, given noise
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_at_training_rows_and_at_equal_points_everything_is_finite(nu, method):
    X, y = table()
    gp = GPRegressor(kernels.Matern(nu), METHODS[method], optimizer=None, noise_variance=1e-4)
    gp.fit(np.concatenate([X, X[:5]]), np.concatenate([y, y[:5]]))  # with rows that are repeated
    points = torch.from_numpy(np.stack([X[[0, 0]], X[[1, 2]]])).requires_grad_()
    found = gp.posterior(points)
    total = sum(asked(found).sum() for asked in ALL.values())
    assert bool(torch.isfinite(torch.autograd.grad(total, points)[0]).all())


@pytest.mark.parametrize("noise", [1e-6, 0.1])
def test_neighbours_among_repeated_rows_have_derivatives(noise):
    X, y = table(40, 5, 2)
    rows = np.concatenate([X, X, X + 1e-9])
    gp = GPRegressor(
        kernels.RBF(1.0), inference.Vecchia(8, 24), optimizer=None, noise_variance=noise, standardize=False
    ).fit(rows, np.concatenate([y, y, y]))
    start = torch.from_numpy(np.random.default_rng(1).normal(size=(2, 2, 2)))
    for name in ("mean", "variance", "covariance"):
        assert right(lambda move, name=name: ALL[name](gp.posterior(start + move)), (2, 2, 2))


def test_more_jitter_is_added_only_where_it_is_needed():
    good = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    bad = torch.ones(2, 2, dtype=torch.float64)
    roots = cholesky_of_batches(torch.stack([good, bad]), 1.0)
    torch.testing.assert_close(roots[0], torch.linalg.cholesky(good), rtol=0, atol=1e-9)
    torch.testing.assert_close(roots[1] @ roots[1].T, bad, rtol=0, atol=1e-9)
    worse = torch.stack([good, torch.tensor([[1.0, 1.0 + 1e-9], [1.0 + 1e-9, 1.0]], dtype=torch.float64)])
    roots = cholesky_of_batches(worse, 1.0)
    torch.testing.assert_close(roots[0], torch.linalg.cholesky(good), rtol=0, atol=1e-9)
    torch.testing.assert_close(roots[1] @ roots[1].T, worse[1], rtol=0, atol=1e-7)
    with pytest.raises(NotPositiveDefiniteError, match="positive definite"):
        cholesky_of_batches(-good[None], 1.0)


# Samples and densities ------------------------------------------------------------------------------------------------


def test_density_is_that_of_the_normal_distribution():
    X, y = table()
    gp = GPRegressor(inference=inference.Exact(), optimizer=None).fit(X, np.stack([y, 50 + 9 * X[:, 0]], 1))
    found = gp.posterior(torch.from_numpy(X[:6]).view(3, 2, 4) + 0.3, include_noise=True)
    values = found.mean + torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 2, 2)
    expected = sum(
        torch.distributions.MultivariateNormal(found.mean[..., k], found.covariance[..., k]).log_prob(values[..., k])
        for k in range(2)
    )
    torch.testing.assert_close(found.log_prob(values), expected)


def test_the_same_numbers_serve_every_batch_and_can_be_given():
    gp, X = fit(METHODS["exact"], kernels.RBF()), torch.from_numpy(CENTRE + SCALE * table(4, 9)[0])
    found = gp.posterior(torch.stack([X, X]))
    drawn = found.rsample((3,), random_state=7)
    assert torch.equal(drawn[:, 0], drawn[:, 1])
    assert torch.equal(drawn, found.rsample((3,), random_state=7))
    assert not torch.equal(drawn, found.rsample((3,), random_state=8))
    assert torch.equal(found.rsample((3,), base_samples=torch.zeros(3, 2, 4)), found.mean.expand(3, 2, 4))
    with pytest.raises(InvalidInputError, match=r"base_samples of rsample must have shape \(3, 2, 4\)"):
        found.rsample((3,), base_samples=torch.zeros(3, 4))


def test_values_asked_without_gradients_do_not_lose_them():
    gp = fit(METHODS["exact"], kernels.RBF())
    found = gp.posterior(torch.from_numpy(CENTRE)[None].requires_grad_())
    with torch.no_grad():
        assert not found.mean.requires_grad
    assert found.mean.requires_grad


# Shapes, types, and what is refused -----------------------------------------------------------------------------------


def test_shapes_types_and_tables_with_names():
    X, y = table()
    gp = GPRegressor(inference=inference.Exact(), optimizer=None).fit(pd.DataFrame(X, columns=list("abcd")), y)
    for shape in ((2, 4), (3, 1, 4), (2, 3, 5, 4)):
        found = gp.posterior(torch.zeros(shape, dtype=torch.float32))
        assert found.mean.dtype == found.covariance.dtype == torch.float32
        assert found.mean.shape == found.variance.shape == shape[:-1]
        assert found.covariance.shape == (*shape[:-1], shape[-2])
        assert found.rsample((2, 1)).shape == (2, 1, *shape[:-1])
        assert found.log_prob(found.mean).shape == shape[:-2]
    assert isinstance(gp.posterior(X[:3]), JointPosterior)
    assert gp.posterior(torch.zeros(0, 3, 4)).covariance.shape == (0, 3, 3)


def test_before_a_fit_it_is_the_prior():
    kernel = kernels.RBF([1.0, 2.0], 3.0)
    X = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3, 2)))
    found = GPRegressor(kernel).posterior(X)
    torch.testing.assert_close(found.covariance, torch.stack([kernel.block(one, one) for one in X]))
    assert not found.mean.any()


@pytest.mark.parametrize(
    "X",
    [torch.zeros(4), torch.zeros(2, 3), torch.zeros(3, 0, 4), torch.full((2, 4), torch.nan), "text", [["a"] * 4]],
    ids=["1d", "columns", "no points", "nan", "text", "texts"],
)
def test_bad_points_are_refused(X):
    with pytest.raises(InvalidInputError, match="X of posterior must be"):
        fit(METHODS["exact"], kernels.RBF()).posterior(X)


def test_python_numbers_keep_all_their_digits():
    X, y = table()
    gp = GPRegressor(kernels.RBF(), METHODS["exact"]).fit(X + 1e8, y)
    at = (X[:3] + 1e8 + 0.1).tolist()
    found = gp.posterior(at)
    assert found.mean.dtype == torch.float64
    np.testing.assert_allclose(found.mean.numpy(), gp.predict(at), rtol=1e-12)


@pytest.mark.parametrize("shape", [4, (-1,), (2.0,), "ab", None], ids=str)
def test_shapes_of_samples_are_checked(shape):
    with pytest.raises(InvalidInputError, match="sample_shape of rsample must be"):
        fit(METHODS["exact"], kernels.RBF()).posterior(torch.zeros(2, 4)).rsample(shape)


def test_what_has_no_normal_distribution_or_no_derivative_is_refused():
    X, y = table()
    live = torch.from_numpy(X[:2]).requires_grad_()
    exact = {"inference": inference.Exact(), "optimizer": None}
    with pytest.raises(InvalidInputError, match="target_transform='none'"):
        GPRegressor(target_transform="log", **exact).fit(X, np.exp(y)).posterior(live)
    with pytest.raises(InvalidInputError, match='encode="strict"'):
        GPRegressor(encode="auto", **exact).fit(pd.DataFrame({"a": list("ab" * 15), "b": y}), y).posterior(live[:, :2])
    known = GPRegressor(mean=lambda X: X[:, 0] ** 2, **exact).fit(X, y)
    with pytest.raises(InvalidInputError, match="function of NumPy arrays"):
        known.posterior(live)
    np.testing.assert_allclose(known.posterior(live.detach()).mean, known.predict(X[:2]), rtol=1e-12)
    counts = GPRegressor(inference=inference.Vecchia(), likelihood="poisson", optimizer=None).fit(
        X, np.round(np.exp(y))
    )
    with pytest.raises(InvalidInputError, match="do not move with the points"):
        counts.posterior(live, include_noise=True).rsample()
    with pytest.raises(InvalidInputError, match="not normal"):
        counts.posterior(live).log_prob(torch.ones(2))
    mixed = GPRegressor(kernel="average", inference=inference.Exact()).fit(*table(40)).posterior(live)
    assert mixed.variance.requires_grad
    with pytest.raises(InvalidInputError, match="not normal"):
        mixed.rsample()
    with pytest.raises(InvalidInputError, match="not normal"):
        mixed.log_prob(mixed.mean)


def test_a_kernel_without_features_has_no_covariance():
    X, y = table(20)
    gp = GPRegressor(kernels.White(), inference.RandomFeatures(10), mean="zero", optimizer=None).fit(X, y)
    assert not gp.posterior(X[:3]).covariance.any()


# Memory ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", [inference.Exact(), inference.ComputationAware(5, actions.UnitVectors()), inference.Vecchia(5, 5)]
)
@pytest.mark.parametrize("asked", ["mean", "variance", "covariance"])
def test_nothing_of_the_size_of_rows_times_points_is_kept(method, asked, monkeypatch):
    monkeypatch.setattr("gigagp.inference.contract.exact_posterior._FEW_COVARIANCES", 0)  # few points may keep some MiB
    X, y = table(600)
    gp = GPRegressor(kernels.RBF(), method, optimizer=None, noise_variance=0.1).fit(X, y)
    points, kept = torch.from_numpy(X[:40]).view(20, 2, 4).requires_grad_(), []

    def keep(tensor):
        kept.append(0 if tensor.shape == (600, 600) else tensor.numel())  # but for the factor of the fit, a constant
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = ALL[asked](gp.posterior(points)).sum()
    found.backward()
    assert max(kept) < 600 * 40 / 4
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):  # the control
        gp.posterior_.model.kernel.block(points.flatten(0, 1), gp.posterior_.X)
    assert max(kept) >= 600 * 40
