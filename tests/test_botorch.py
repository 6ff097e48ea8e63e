"""`GigaModel` in BoTorch: values, conditioning, sampled functions, and acquisition functions with their gradients."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, inference, kernels, solvers
from gigagp.errors import InvalidInputError

pytest.importorskip("botorch", reason="BoTorch is the extra botorch")

from botorch import acquisition
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.models import ModelList, SingleTaskGP
from botorch.models.deterministic import MatheronPathModel
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler

from gigagp.botorch import GigaModel

KERNEL, NOISE = kernels.Matern(2.5, [0.4, 0.6], 1.5), 0.01
TIGHT = solvers.ConjugateGradients(tolerance=1e-11)
METHODS = {
    "exact": inference.Exact(),
    "iterative": inference.Iterative(solver=TIGHT, n_samples=16),
    "vecchia": inference.Vecchia(12, 12),
    "random features": inference.RandomFeatures(200),
    "sparse": inference.SparseVariational(15, learn_inducing_points=False),
    "actions": inference.ComputationAware(n_actions=10),
    "grid": inference.Grid(12),
    "quadruply stochastic": inference.QuadruplyStochastic(n_basis=60),
}
#: Those that are exact with all rows or neighbours, so that conditioning is the same as another fit.
EXACT = {
    "exact": lambda n: inference.Exact(),
    "iterative": lambda n: inference.Iterative(solver=TIGHT, n_samples=4),
    "vecchia": lambda n: inference.Vecchia(n, n),
}
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def table(n=30, seed=0):
    X = np.random.default_rng(seed).random((n, 2))
    return X, -((X - [0.3, 0.6]) ** 2).sum(1) * 4 + np.sin(7 * X[:, 0]) * 0.3


def fit(method, n=30, mean="constant", rows=None, **settings):
    X, y = rows or table(n)
    settings = {"noise_variance": NOISE, "standardize": False, **settings}
    return GPRegressor(settings.pop("kernel", KERNEL), method, optimizer=None, mean=mean, **settings).fit(X, y)


def points(*shape, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).uniform(0.1, 0.9, size=(*shape, 2)))


# Values ---------------------------------------------------------------------------------------------------------------


def test_the_posterior_is_that_of_botorchs_own_model():
    from gpytorch.kernels import MaternKernel, ScaleKernel
    from gpytorch.means import ZeroMean

    X, y = table()
    gp, X_train, Y_train = fit(inference.Exact(), mean="zero"), torch.from_numpy(X), torch.from_numpy(y)[:, None]
    covariance = ScaleKernel(MaternKernel(2.5, ard_num_dims=2))
    theirs = SingleTaskGP(
        X_train, Y_train, covar_module=covariance, mean_module=ZeroMean(), outcome_transform=None
    ).double()
    covariance.base_kernel.lengthscale, covariance.outputscale = torch.tensor([0.4, 0.6]), 1.5
    theirs.likelihood.noise = NOISE
    theirs.eval()
    mine, at = GigaModel(gp), points(3, 2)
    for noisy in (False, True):
        one, other = (model.posterior(at, observation_noise=noisy) for model in (mine, theirs))
        torch.testing.assert_close(one.mean, other.mean, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(one.variance, other.variance, rtol=1e-5, atol=1e-7)
        covariances = [each.distribution.covariance_matrix for each in (one, other)]
        torch.testing.assert_close(*covariances, rtol=1e-5, atol=1e-7)
    new, Y = points(2, seed=3), torch.tensor([[0.5], [-1.0]], dtype=torch.float64)
    one, other = (model.condition_on_observations(new, Y).posterior(at) for model in (mine, theirs))
    torch.testing.assert_close(one.mean, other.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(one.variance, other.variance, rtol=1e-4, atol=1e-6)
    for q, name in ((1, "LogExpectedImprovement"), (2, "qLogExpectedImprovement")):
        settings = {} if q == 1 else {"sampler": SobolQMCNormalSampler(torch.Size([128]), seed=0)}
        values = [getattr(acquisition, name)(model, best_f=0.1, **settings)(points(4, q)) for model in (mine, theirs)]
        torch.testing.assert_close(*values, rtol=1e-4, atol=1e-4)


def test_outputs_noise_and_transforms():
    X, y = table()
    shared = {"optimizer": None, "outputs": "shared"}
    gp = GPRegressor(KERNEL, inference.Exact(), **shared).fit(X, np.stack([y, 50 + 9 * X[:, 0]], 1))
    model, at = GigaModel(gp), points(3, 4)
    assert model.num_outputs == 2
    assert model.batch_shape == torch.Size()
    found = model.posterior(at)
    joint = gp.posterior(at)
    torch.testing.assert_close(found.mean, joint.mean)
    torch.testing.assert_close(found.variance, joint.covariance.diagonal(dim1=1, dim2=2).mT)
    torch.testing.assert_close(found.distribution.variance, found.variance)
    noisy = model.posterior(at, observation_noise=True).variance - found.variance
    unit = torch.from_numpy(gp.scaling_.y_scale)
    torch.testing.assert_close(noisy, (gp.posterior_.model.noise_variance * unit**2).expand(3, 4, 2))
    given = model.posterior(at, observation_noise=torch.full((4, 2), 0.5, dtype=torch.float64))
    torch.testing.assert_close(given.variance - found.variance, torch.full((3, 4, 2), 0.5, dtype=torch.float64))
    second = model.posterior(at, output_indices=[1])
    torch.testing.assert_close(second.mean, found.mean[..., 1:])
    torch.testing.assert_close(model.subset_output([1]).posterior(at).variance, found.variance[..., 1:])
    weighted = model.posterior(at, posterior_transform=ScalarizedPosteriorTransform(torch.tensor([2.0, -1.0]).double()))
    torch.testing.assert_close(weighted.mean[..., 0], 2 * found.mean[..., 0] - found.mean[..., 1])
    torch.testing.assert_close(weighted.variance[..., 0], 4 * found.variance[..., 0] + found.variance[..., 1])
    drawn = found.rsample(torch.Size([4000]))
    assert drawn.shape == (4000, 3, 4, 2)
    assert float(((drawn - found.mean) / found.variance.sqrt()).mean(0).abs().max()) < 5 / 4000**0.5


def test_a_list_of_models():
    X, y = table()
    models = ModelList(GigaModel(fit(inference.Exact())), GigaModel(fit(inference.Exact(), rows=(X, 3 - y))))
    found = models.posterior(points(5, 2))
    assert found.mean.shape == (5, 2, 2)
    assert found.rsample(torch.Size([3])).shape == (3, 5, 2, 2)


# Conditioning ---------------------------------------------------------------------------------------------------------


@pytest.mark.few(5)
@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize("name", EXACT)
def test_conditioning_is_a_fit_to_all_rows(name, mean):
    X, y = table(34)
    whole = GigaModel(fit(EXACT[name](34), mean=mean, rows=(X, y)))
    part = GigaModel(fit(EXACT[name](30), mean=mean, rows=(X[:30], y[:30])))
    new, Y = torch.from_numpy(X[30:]), torch.from_numpy(y[30:, None])
    at = torch.cat([points(3, 2), new[:2].expand(1, 2, 2)])
    for model in (
        part.condition_on_observations(new, Y),
        part.condition_on_observations(new[:1], Y[:1]).condition_on_observations(new[1:], Y[1:]),
    ):
        one, other = model.posterior(at), whole.posterior(at)
        torch.testing.assert_close(one.mean, other.mean, rtol=1e-6, atol=1e-7)
        covariances = [each.distribution.covariance_matrix for each in (one, other)]
        torch.testing.assert_close(*covariances, rtol=1e-5, atol=1e-7)
    assert part.given is None  # the model itself stays as it was


def test_noise_of_observations_can_be_given():
    X, y = table(31)
    noise = np.full(31, NOISE)
    noise[30] = 0.3
    whole = GigaModel(fit(inference.Exact(), rows=(X, y), noise_variance=noise))
    part = GigaModel(fit(inference.Exact(), rows=(X[:30], y[:30]), noise_variance=noise[:30]))
    new, Y = torch.from_numpy(X[30:]), torch.from_numpy(y[30:, None])
    with pytest.raises(InvalidInputError, match="noise of new rows is not known"):
        part.condition_on_observations(new, Y)
    found = part.condition_on_observations(new, Y, noise=torch.full_like(Y, 0.3)).posterior(points(2, 2))
    torch.testing.assert_close(found.variance, whole.posterior(points(2, 2)).variance, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_observations_and_noise_that_are_no_numbers_are_refused(value):
    model, new = GigaModel(fit(inference.Exact())), points(3, 2)
    Y = torch.zeros(3, 2, 1).double()
    Y[1, 0] = value
    with pytest.raises(InvalidInputError, match="Y of condition_on_observations must be finite"):
        model.condition_on_observations(new, Y)
    for wrong in (value, -0.1):
        noise = torch.full((2, 1), 0.1).double()
        noise[1] = wrong
        with pytest.raises(InvalidInputError, match="noise of condition_on_observations must have finite variances"):
            model.condition_on_observations(new, torch.zeros(3, 2, 1).double(), noise=noise)
        with pytest.raises(InvalidInputError, match="observation_noise of posterior must have finite variances"):
            model.posterior(new, observation_noise=noise)


def test_noise_of_other_shapes_is_refused():
    model, new = GigaModel(fit(inference.Exact())), points(3, 2)
    noise = torch.full((5, 1), 0.1).double()
    with pytest.raises(InvalidInputError, match=r"must have shape \(..., 2, 1\); got \(5, 1\)"):
        model.condition_on_observations(new, torch.zeros(3, 2, 1).double(), noise=noise)
    with pytest.raises(InvalidInputError, match=r"must have shape \(..., 2, 1\); got \(5, 1\)"):
        model.posterior(new, observation_noise=noise)
    one = model.posterior(new, observation_noise=noise[:1]).variance - model.posterior(new).variance
    torch.testing.assert_close(one, torch.full((3, 2, 1), 0.1).double())


def test_fantasies_have_leading_shapes_and_derivatives():
    model, sampler = GigaModel(fit(inference.Exact())), SobolQMCNormalSampler(torch.Size([5]), seed=0)

    def value(X):
        fantasies = model.fantasize(X, sampler)
        assert fantasies.batch_shape == (5, 3)
        found = fantasies.posterior(points(4, seed=6))
        assert found.mean.shape == (5, 3, 4, 1)
        return found.mean, found.variance

    start = points(3, 2).requires_grad_()
    assert torch.autograd.gradcheck(value, start, eps=1e-5, atol=1e-5, rtol=1e-4, fast_mode=True)
    twice = model.fantasize(points(3, 2), sampler).fantasize(points(1, seed=9), SobolQMCNormalSampler(torch.Size([2])))
    assert twice.posterior(points(4)).mean.shape == (2, 5, 3, 4, 1)


def test_conditioning_that_is_not_exact_is_refused():
    X, y = table()
    counts = GPRegressor(KERNEL, inference.Vecchia(), optimizer=None, likelihood="poisson", mean="constant")
    model = GigaModel(counts.fit(X, np.round(np.exp(2 + y))))
    assert bool(torch.isfinite(model.posterior(points(2, 2)).mean).all())
    with pytest.raises(InvalidInputError, match="likelihood='poisson'"):
        model.condition_on_observations(points(1), torch.ones(1, 1).double())
    with pytest.raises(InvalidInputError, match="no noise variance"):
        model.posterior(points(2), observation_noise=True)
    augmented = inference.QuadruplyStochastic(basis="inducing", augment=True)
    with pytest.raises(InvalidInputError, match="augment=True"):
        GigaModel(fit(augmented)).condition_on_observations(points(1), torch.ones(1, 1).double())
    with pytest.raises(InvalidInputError, match=r"shape \(..., 1, 1\)"):
        GigaModel(fit(inference.Exact())).condition_on_observations(points(1), torch.ones(2, 1).double())


# Acquisition functions ------------------------------------------------------------------------------------------------

ACQUISITIONS = {
    "LogEI": (1, lambda m: acquisition.LogExpectedImprovement(m, best_f=0.1)),
    "UCB": (1, lambda m: acquisition.UpperConfidenceBound(m, beta=0.2)),
    "qLogEI": (2, lambda m: acquisition.qLogExpectedImprovement(m, best_f=0.1)),
    "qLogNEI": (2, lambda m: acquisition.qLogNoisyExpectedImprovement(m, X_baseline=points(4, seed=7))),
    "qUCB": (2, lambda m: acquisition.qUpperConfidenceBound(m, beta=0.2)),
    "qKG": (5, lambda m: acquisition.qKnowledgeGradient(m, num_fantasies=4)),
    "MES": (1, lambda m: acquisition.qMaxValueEntropy(m, points(30), num_mv_samples=4, num_fantasies=4)),
    "GIBBON": (1, lambda m: acquisition.qLowerBoundMaxValueEntropy(m, points(30), num_mv_samples=4)),
    "Thompson": (2, PathwiseThompsonSampling),
}


@pytest.mark.each
@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.BotorchWarning")
@pytest.mark.parametrize("name", ACQUISITIONS)
@pytest.mark.parametrize("method", METHODS)
def test_acquisition_functions_and_their_derivatives(method, name):
    """This is the table of docs/botorch.md."""
    q, make = ACQUISITIONS[name]
    torch.manual_seed(0)
    function = make(GigaModel(fit(METHODS[method]), variance="solve"))
    start = points(2, q).requires_grad_()
    value = function(start)
    assert value.shape == (2,)
    (slope,) = torch.autograd.grad(value.sum(), start)
    move = torch.from_numpy(np.random.default_rng(5).normal(size=start.shape))
    with torch.no_grad():
        above, below = (function(start + step * move).sum() for step in (1e-5, -1e-5))
    expected = float(above - below) / 2e-5
    assert abs(float((slope * move).sum()) - expected) < 1e-3 * float(slope.norm() * move.norm())


@pytest.mark.parametrize(("acquired", "q"), [("LogEI", 1), ("qLogEI", 3)])
def test_optimize_acqf_finds_the_maximum(acquired, q):
    X, y = table(60)
    torch.manual_seed(0)
    model = GigaModel(GPRegressor(KERNEL, inference.Exact(), noise_variance=1e-4, optimizer=None).fit(X, y))
    function = ACQUISITIONS[acquired][1](model)
    function.best_f = torch.tensor(y.max())
    found, value = optimize_acqf(function, BOUNDS, q=q, num_restarts=4, raw_samples=256)
    with torch.no_grad():
        assert float(value) >= float(function(points(200, q)).max())
    assert found.shape == (q, 2)
    assert float((found - torch.tensor([0.27, 0.6])).norm(dim=1).min()) < 0.2


def test_sampled_functions():
    gp = fit(inference.Exact())
    model, at = GigaModel(gp), points(3, 2)
    paths = MatheronPathModel(model, sample_shape=torch.Size([2000]), seed=1)
    drawn = paths(at[:, None])
    assert drawn.shape == (3, 2000, 2, 1)
    found = model.posterior(at)
    apart = (drawn - found.mean[:, None]) / found.variance.sqrt()[:, None]
    assert float(apart.mean(1).abs().max()) < 0.15
    assert 0.85 < float(apart.std(1).min()) <= float(apart.std(1).max()) < 1.15
    one = MatheronPathModel(model, seed=1)
    assert torch.equal(one(at), MatheronPathModel(model, seed=1)(at))
    assert torch.autograd.gradcheck(one, at.clone().requires_grad_(), eps=1e-5, atol=1e-4, fast_mode=True)
    X, y = table()
    two = GPRegressor(KERNEL, inference.Exact(), optimizer=None).fit(X, np.stack([y, 50 + 9 * X[:, 0]], 1))
    found = MatheronPathModel(GigaModel(two), sample_shape=torch.Size([4]), seed=0)(at[:, None])
    assert found.shape == (3, 4, 2, 2)
    assert float((found[..., 1] - 50 - 9 * at[:, None, :, 0]).abs().max()) < 2
    again = copy.copy(gp)
    paths = MatheronPathModel(GigaModel(again), seed=1)
    again.fit(10 * X, 7 + 5 * y)
    assert torch.equal(paths(at), one(at))  # those of the earlier fit
    with pytest.raises(InvalidInputError, match="without further observations"):
        MatheronPathModel(model.condition_on_observations(at[0], torch.zeros(2, 1).double()))


def test_what_is_no_model_is_refused():
    X, y = table()
    for wrong in (GPRegressor(kernels.Matern(nu=1.5)), "model"):
        with pytest.raises(InvalidInputError, match="must be a fitted GPRegressor"):
            GigaModel(wrong)
    with pytest.raises(InvalidInputError, match="one kernel"):
        GigaModel(GPRegressor(kernel="average", inference=inference.Exact()).fit(X, y))
    with pytest.raises(InvalidInputError, match="target_transform"):
        GigaModel(GPRegressor(kernels.Matern(nu=1.5), target_transform="log").fit(X, np.exp(y)))


# Correlated outputs ---------------------------------------------------------------------------------------------------


def correlated(n=24, rows=slice(None)):
    """Return a fit of three outputs in units of their own, of which some cells were not observed."""
    X, y = table(n)
    draw = np.random.default_rng(3)
    Y = np.stack([y, 50 - 20 * y, 0.01 * np.cos(5 * X[:, 1])], 1) + draw.normal(size=(n, 3)) * [0.1, 2.0, 0.001]
    Y[draw.random(Y.shape) < 0.3] = np.nan
    Y[-2:] = [[0.1, 45.0, 0.002], [-0.3, 52.0, -0.004]]
    kernel = kernels.Matern(2.5, [0.4, 0.6], fixed=["variance"])
    settings = {"inference": inference.Exact(), "optimizer": None, "outputs": "correlated", "standardize": False}
    given = np.broadcast_to(np.array([0.01, 4.0, 1e-6]), Y.shape)
    fitted = GPRegressor(kernel, noise_variance=given[rows], **settings).fit(X[rows], Y[rows])
    return fitted, X, Y


def test_correlated_outputs_are_joint():
    gp = correlated()[0]
    model, at = GigaModel(gp), points(2, 3)
    posterior = model.posterior(at)
    assert model.num_outputs == 3
    for batch in range(2):
        mean, covariance = gp.predict(at[batch].numpy(), return_cov=True)
        np.testing.assert_allclose(posterior.mean[batch], mean, rtol=1e-9)
        found = posterior.distribution.covariance_matrix[batch].numpy()
        np.testing.assert_allclose(found, covariance.reshape(9, 9), atol=1e-9 * np.abs(covariance).max())
        np.testing.assert_allclose(posterior.variance[batch].flatten(), np.diag(found), rtol=1e-6)
    across = covariance[0, 0, 0, 1] / np.sqrt(covariance[0, 0, 0, 0] * covariance[0, 1, 0, 1])
    assert abs(across) > 0.05  # the control
    draws = posterior.rsample(torch.Size([20000])).flatten(2)
    assert draws.shape == (20000, 2, 9)
    spread = np.sqrt(np.diag(found))
    drawn = np.cov(draws[:, 1].numpy().T)
    np.testing.assert_allclose(drawn / spread / spread[:, None], found / spread / spread[:, None], atol=0.06)
    some = model.subset_output([1, 0]).posterior(at)
    np.testing.assert_allclose(some.mean, posterior.mean[..., [1, 0]])
    np.testing.assert_allclose(
        some.distribution.covariance_matrix[1], covariance[:, [1, 0]][..., [1, 0]].reshape(6, 6), rtol=1e-8
    )
    one = model.posterior(at, output_indices=[2])
    np.testing.assert_allclose(one.distribution.covariance_matrix[1], covariance[:, 2, :, 2], rtol=1e-8)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # of linear_operator
def test_correlated_outputs_are_those_of_botorchs_multi_task_model():
    from botorch.models import MultiTaskGP
    from gpytorch.kernels import IndexKernel, MaternKernel
    from gpytorch.means import ZeroMean

    fitted, X, Y = correlated()
    noise = np.broadcast_to([0.01, 4.0, 1e-6], Y.shape)
    gp = copy.copy(fitted).set_params(mean="zero", noise_variance=noise).fit(X, Y)
    rows, outputs = np.nonzero(~np.isnan(Y))
    cells = np.column_stack([X[rows], outputs])
    targets, variances = (torch.from_numpy(one[rows, outputs][:, None]) for one in (Y, noise))
    data = MaternKernel(2.5, ard_num_dims=2, active_dims=[0, 1])
    theirs = MultiTaskGP(
        torch.from_numpy(cells),
        targets,
        2,
        variances,
        mean_module=ZeroMean(),
        covar_module=data,
        outcome_transform=None,
    )
    of_outputs = IndexKernel(num_tasks=3, rank=3, active_dims=[2]).double()
    of_outputs.covar_factor.data = torch.linalg.cholesky(gp.kernel_.parts[0].parts[1].covariance())
    of_outputs.var = torch.full((3,), 1e-12).double()
    theirs.covar_module = data.double() * of_outputs
    data.lengthscale = torch.tensor([0.4, 0.6]).double()
    at = points(5)
    found, expected = GigaModel(gp).posterior(at), theirs.posterior(at)
    scale = torch.from_numpy(np.nanstd(Y, 0))
    np.testing.assert_allclose(found.mean / scale, (expected.mean / scale).detach(), atol=1e-6)
    np.testing.assert_allclose(found.variance, expected.variance.detach(), rtol=1e-5)


def test_a_panel_with_gaps_is_that_of_botorchs_latent_kronecker_model():
    from botorch.models.latent_kronecker_gp import LatentKroneckerGP
    from gpytorch.kernels import MaternKernel
    from gpytorch.likelihoods import GaussianLikelihood
    from gpytorch.means import ZeroMean

    X, y = table(14)
    times = np.linspace(0, 1, 6)
    draw = np.random.default_rng(4)
    Y = y[:, None] * np.cos(2 * times) + 0.1 * draw.normal(size=(14, 6))
    Y[draw.random(Y.shape) < 0.3] = np.nan
    Y[3, 2:] = np.nan
    rows, columns = np.nonzero(~np.isnan(Y))
    kernel = kernels.Matern(2.5, [0.4, 0.6], columns=[0, 1]) * kernels.Matern(0.5, 0.5, columns=[2], fixed=["variance"])
    cells = np.column_stack([X[rows], times[columns]])
    gp = fit(inference.Exact(), mean="zero", rows=(cells, Y[rows, columns]), kernel=kernel)
    likelihood = GaussianLikelihood().double()
    likelihood.noise = NOISE
    of_entities, of_times = MaternKernel(2.5, ard_num_dims=2).double(), MaternKernel(0.5).double()
    of_entities.lengthscale, of_times.lengthscale = torch.tensor([0.4, 0.6]).double(), 0.5
    theirs = LatentKroneckerGP(
        torch.from_numpy(X),
        torch.from_numpy(times)[:, None],
        torch.from_numpy(Y),
        likelihood=likelihood,
        mean_module_X=ZeroMean(),
        mean_module_T=ZeroMean(),
        covar_module_X=of_entities,
        covar_module_T=of_times,
        outcome_transform=None,
    )
    at = points(3)
    expected = theirs.eval().posterior(at)
    every = torch.cat([at.repeat_interleave(6, 0), torch.from_numpy(times).repeat(3)[:, None]], 1)
    found = GigaModel(gp).posterior(every)
    np.testing.assert_allclose(found.mean.flatten(), expected.mean.detach().flatten(), atol=1e-5)
    np.testing.assert_allclose(found.variance.flatten(), expected.variance.detach().flatten(), rtol=1e-4)


def test_conditioning_of_correlated_outputs_is_a_fit_to_all_rows():
    whole, X, Y = correlated()
    part = GigaModel(correlated(rows=slice(0, 22))[0])
    noise = torch.tensor([0.01, 4.0, 1e-6]).double().expand(2, 3)
    model = part.condition_on_observations(torch.from_numpy(X[22:]), torch.from_numpy(Y[22:]), noise)
    at = points(4)
    # standardize=False, so that both have the same units
    found, expected = model.posterior(at), whole.predict(at.numpy(), return_cov=True)
    np.testing.assert_allclose(found.mean, expected[0], rtol=1e-6)
    error = found.distribution.covariance_matrix.numpy() - expected[1].reshape(12, 12)
    assert np.abs(error).max() < 1e-7 * np.abs(expected[1]).max()
    some = model.subset_output([2]).posterior(at)
    np.testing.assert_allclose(some.mean[:, 0], expected[0][:, 2], rtol=1e-6, atol=1e-9)
    with pytest.raises(InvalidInputError, match="all 3 correlated outputs"):
        part.subset_output([0]).condition_on_observations(torch.from_numpy(X[22:]), torch.from_numpy(Y[22:, :1]))


def test_acquisition_and_paths_of_correlated_outputs():
    gp, _, _ = correlated()
    learned = copy.copy(gp).set_params(noise_variance=None)
    learned.fit(*(table(24)[0], np.stack([table(24)[1], 3 - table(24)[1]], 1)))
    model = GigaModel(learned)
    noisy, plain = (model.posterior(points(3), observation_noise=noise).variance for noise in (True, False))
    np.testing.assert_allclose((noisy - plain)[0], learned.noise_variance_, rtol=1e-6)
    objective = ScalarizedPosteriorTransform(torch.tensor([1.0, -0.5]).double())
    acquired = acquisition.UpperConfidenceBound(model, beta=0.2, posterior_transform=objective)
    at = points(5, 1).requires_grad_()
    acquired(at).sum().backward()
    step = 1e-5 * torch.ones(2).double()
    moved = (acquired(at.detach() + step) - acquired(at.detach() - step)).detach() / 2
    torch.testing.assert_close((at.grad[:, 0] * step).sum(1), moved, rtol=1e-3, atol=1e-9)
    paths = MatheronPathModel(model, seed=1)
    values = paths(points(1, 6))
    assert values.shape == (1, 6, 2)
    assert float((values[..., 1] - (3 - values[..., 0])).abs().max()) < 3
