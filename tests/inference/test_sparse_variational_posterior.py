"""Fitted sparse models as posteriors, as estimators and as files."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import gigagp
from gigagp import GPRegressor, inference, kernels, optimization
from gigagp.errors import FitWarning, InvalidInputError
from gigagp.estimators import checkpoint
from gigagp.inference import SparseVariational
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.sparse_variational import points as blocks
from gigagp.inference.sparse_variational.collapsed import CollapsedObjective
from gigagp.inference.sparse_variational.posterior import SparsePosterior
from gigagp.inference.sparse_variational.stochastic import StochasticObjective
from gigagp.model.means import LinearMean
from gigagp.model.model import Model
from helpers import draw_targets, generator, largest_tensor, points, within_standard_errors

X = points(80, 2)
Y = draw_targets(kernels.Matern(1.5), X, 0.05, columns=2) + X[:, :1] + 3
NEW = torch.cat([points(25, 2, seed=9), X[:5]])
METHODS = {"sgpr": SparseVariational(15), "svgp": SparseVariational(15, batch_size=20)}
TABLE = np.random.default_rng(0).normal(size=(120, 2))
TARGET = np.sin(2 * TABLE[:, 0]) + 0.3 * TABLE[:, 1] + 0.1 * np.random.default_rng(1).normal(size=120)


def posterior(method="sgpr", kernel=None, Y=Y) -> SparsePosterior:
    kernel = kernels.Matern(1.5, [0.8, 1.4], 1.3).bind(2) if kernel is None else kernel.bind(2)
    table = TrainingTable(X, Y, LinearMean(), 2**28)
    ours = METHODS[method].objective(table, generator())
    return ours.posterior(Model(kernel, LinearMean(), torch.tensor(0.1, dtype=torch.float64)))


# The posterior ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_mean_variance_and_covariance_agree(method, monkeypatch):
    fitted = posterior(method)
    mean, variance = fitted.mean_and_variance(NEW)
    torch.testing.assert_close(mean, fitted.mean(NEW), rtol=1e-11, atol=1e-11)
    covariance = fitted.covariance(NEW)
    torch.testing.assert_close(variance, covariance.diagonal(), rtol=1e-9, atol=1e-10)
    assert float(torch.linalg.eigvalsh(covariance).min()) > -1e-9
    assert bool((variance > 0).all())
    monkeypatch.setattr(blocks, "_CPU_ENTRIES", 60)  # four points at a time
    in_blocks = fitted.mean_and_variance(NEW)
    torch.testing.assert_close(in_blocks[0], mean, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(in_blocks[1], variance, rtol=1e-9, atol=1e-12)
    assert fitted.mean(NEW[:0]).shape == (0, 2)
    assert fitted.mean_and_variance(NEW[:0])[1].shape == (0,)


@pytest.mark.parametrize("way", ["at points", "functions"])
@pytest.mark.parametrize("kernel", [None, kernels.Matern(2.5, 1.5) + kernels.Linear(0.3)])
def test_samples_have_the_posterior_as_their_law(kernel, way):
    """From the full covariance and from functions, compared with closed forms."""
    fitted, s = posterior(kernel=kernel), 600
    mean, covariance = fitted.mean(NEW), fitted.covariance(NEW)
    if way == "at points":
        draws, slack = fitted.sample_at(NEW, s, generator(1)), 0.0
    else:  # 2,000 frequencies estimate the prior covariance to within a standard error of its root
        draws, slack = fitted.sample_functions(s, generator(2))(NEW), 4 * 1.3 / math.sqrt(2000)
    assert draws.shape == (len(NEW), 2, s)
    samples = draws.movedim(2, 0).reshape(s, -1)
    assert within_standard_errors(samples, mean.reshape(-1))
    assert not within_standard_errors(samples, mean.reshape(-1) + 0.3 * covariance.diagonal().mean().sqrt())
    centred = draws - mean[:, :, None]
    prior = fitted.model.kernel.block(NEW, NEW)
    for target in range(2):
        products = (centred[:, None, target] * centred[None, :, target]).reshape(-1, s).T  # of pairs of points
        error = 4 * products.std(0) / math.sqrt(s) + slack
        assert bool(((products.mean(0) - covariance.reshape(-1)).abs() <= error).all())
        assert not bool(((products.mean(0) - prior.reshape(-1)).abs() <= error).all())
    across = (centred[:, 0] * centred[:, 1]).T  # targets are independent
    assert within_standard_errors(across, 0.0)


def test_samples_are_functions():
    functions = posterior().sample_functions(3, generator())
    assert torch.equal(functions(NEW), functions(NEW))
    torch.testing.assert_close(functions(NEW)[4:9], functions(NEW[4:9]), rtol=1e-9, atol=1e-9)


def test_a_kernel_without_features_has_samples_at_points_only():
    class Unknown(kernels.Matern):
        has_spectrum = False

    fitted = posterior(kernel=Unknown(1.5, 1.0))
    assert fitted.sample_at(NEW, 2, generator()).shape == (30, 2, 2)
    with pytest.raises(InvalidInputError, match="sample_functions needs a kernel with random features"):
        fitted.sample_functions(2, generator())


def test_predictions_never_hold_all_covariances():
    fitted = posterior()
    fitted.budget = 2**20
    many = points(8000, 2, seed=3)
    with largest_tensor() as spy:
        fitted.mean_and_variance(many)
        fitted.mean(many)
    assert spy.elements <= 8000 * 5


# The estimator ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer", [None, optimization.Adam(0.05, 6)])
@pytest.mark.parametrize("learn", [True, False])
def test_a_saved_model_is_the_same_without_its_rows(tmp_path, method, optimizer, learn):
    chosen = SparseVariational(12, METHODS[method].batch_size, learn_inducing_points=learn, start="greedy")
    gp = GPRegressor(kernels.Matern(nu=1.5), inference=chosen, optimizer=optimizer, mean="linear").fit(TABLE, TARGET)
    gp.save(tmp_path / "model.gp")
    loaded = gigagp.load(tmp_path / "model.gp")
    for options in ({"return_std": True}, {"return_cov": True}, {"return_std": True, "include_noise": True}):
        for left, right in zip(gp.predict(TABLE, **options), loaded.predict(TABLE, **options), strict=True):
            assert np.array_equal(left, right)
    assert np.array_equal(gp.sample_y(TABLE[:9], 3), loaded.sample_y(TABLE[:9], 3))
    assert gp.log_marginal_likelihood() == loaded.log_marginal_likelihood()
    assert loaded.describe() == gp.describe()
    assert loaded.inference_ == chosen
    assert loaded.history_.to_dict() == gp.history_.to_dict()
    assert gp.posterior_.n_inducing == 12
    assert gp.posterior_.n_rows == loaded.posterior_.n_rows == 120
    assert (tmp_path / "model.gp").stat().st_size < 60_000
    assert f"{chosen.method}, 12 inducing points" in gp.describe()
    assert "lower bound" in gp.describe()


@pytest.mark.few(2)
@pytest.mark.parametrize("method", METHODS)
def test_fitting_learns_points_and_hyperparameters(method):
    optimizer = optimization.Auto(stochastic_polish=optimization.Adam(0.01, 60, transform="log", final_share=0.1))
    gp = GPRegressor(kernels.Matern(nu=1.5), inference=METHODS[method], optimizer=optimizer).fit(TABLE, TARGET)
    given = GPRegressor(inference=METHODS[method], optimizer=None).fit(TABLE, TARGET)
    exact = GPRegressor(gp.kernel_, inference=inference.Exact(), optimizer=None, noise_variance=gp.noise_variance_)
    value = gp.log_marginal_likelihood().value
    assert given.log_marginal_likelihood().value + 20 < value < exact.fit(TABLE, TARGET).log_marginal_likelihood().value
    assert gp.score(TABLE, TARGET) > 0.95
    moved = torch.cdist(gp.posterior_.inducing_points, torch.from_numpy(gp.scaling_.inputs(TABLE))).min(1).values
    assert float(moved.median()) > 1e-3
    stages = {"sgpr": {"lbfgs"}, "svgp": {"subset 120", "adam"}}[method]
    assert {step.stage for step in gp.history_} == stages
    assert set(gp.history_[0].hyperparameters) == {"lengthscale", "variance", "noise_variance"}


def test_validation_scores_stand_in_the_history():
    for method in METHODS.values():
        gp = GPRegressor(inference=method, optimizer=optimization.Adam(0.05, 4))
        gp.fit(TABLE[:90], TARGET[:90], validation=(TABLE[90:], TARGET[90:]))
        assert all(step.validation_rmse > 0 for step in gp.history_)


def test_known_noise_and_fixed_kernels_go_through_every_optimizer():
    noise = np.full(120, 0.01)
    kernel = kernels.Matern(1.5, 1.0, 1.0, fixed=True)
    for optimizer in (optimization.LBFGS(5), optimization.Adam(0.02, 5), "auto"):
        gp = GPRegressor(kernel, SparseVariational(10), optimizer, noise_variance=noise).fit(TABLE, TARGET)
        still = GPRegressor(kernel, SparseVariational(10), None, noise_variance=noise).fit(TABLE, TARGET)
        assert gp.log_marginal_likelihood().value > still.log_marginal_likelihood().value
        assert gp.kernel_ == still.kernel_


def test_tables_smaller_than_the_settings():
    """More inducing points and larger batches than rows: all rows are used, and the model reports it."""
    gp = GPRegressor(inference=SparseVariational(512, batch_size=4096), optimizer=None).fit(TABLE[:40], TARGET[:40])
    assert gp.posterior_.n_inducing == 40
    exact = GPRegressor(inference=inference.Exact(), optimizer=None).fit(TABLE[:40], TARGET[:40])
    np.testing.assert_allclose(gp.predict(TABLE), exact.predict(TABLE), atol=1e-5)
    twice = GPRegressor(inference=SparseVariational(60), optimizer=None).fit(
        np.repeat(TABLE[:25], 2, 0), np.repeat(TARGET[:25], 2)
    )
    assert twice.posterior_.n_inducing == 25


def test_lbfgs_is_refused_for_minibatches():
    with pytest.raises(InvalidInputError, match=r"LBFGS needs a deterministic objective.*batch_size=None"):
        GPRegressor(inference=METHODS["svgp"], optimizer=optimization.LBFGS()).fit(TABLE, TARGET)


def test_a_rate_that_is_too_high_keeps_the_best_state():
    with pytest.warns(FitWarning, match="The best state before it was kept"):
        gp = GPRegressor(inference=METHODS["sgpr"], optimizer=optimization.Adam(1e6, 5)).fit(TABLE, TARGET)
    assert np.isfinite(gp.predict(TABLE)).all()


# Checkpoints --------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for a kill in these tests."""


@pytest.mark.few(3)
@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize(
    ("method", "optimizer"),
    [("sgpr", optimization.LBFGS(6)), ("sgpr", optimization.Adam(0.05, 8)), ("svgp", optimization.Adam(0.05, 9))],
)
def test_a_killed_fit_resumes_to_the_same_bits(tmp_path, monkeypatch, method, optimizer, learn):
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)
    chosen = SparseVariational(8, METHODS[method].batch_size, learn_inducing_points=learn)
    path = tmp_path / "fit.checkpoint"
    ran = {"count": 0}

    def count(limit):
        for kind in (CollapsedObjective, StochasticObjective):

            def evaluate(self, model, original=kind.evaluate):
                ran["count"] += 1
                if ran["count"] > limit:
                    raise Killed
                return original(self, model)

            monkeypatch.setattr(kind, "evaluate", evaluate)

    whole = GPRegressor(kernels.Matern(nu=1.5), inference=chosen, optimizer=optimizer).fit(TABLE, TARGET)
    with monkeypatch.context():
        count(4)
        with pytest.raises(Killed):
            GPRegressor(inference=chosen, optimizer=optimizer).fit(TABLE, TARGET, checkpoint=path)
    tensors = checkpoint.load_state(path)[1]
    # Adam logs its moments and one evaluation; L-BFGS logs all evaluations
    assert len(tensors["gradients"]) == (1 if isinstance(optimizer, optimization.Adam) else 4)
    monkeypatch.undo()
    ran["count"] = 0
    count(10**6)
    resumed = GPRegressor(kernels.Matern(nu=1.5), inference=chosen, optimizer=optimizer).fit(
        TABLE, TARGET, checkpoint=path
    )
    assert ran["count"] == len(whole.history_) - 4
    for left, right in zip(whole.predict(TABLE, return_std=True), resumed.predict(TABLE, return_std=True), strict=True):
        assert np.array_equal(left, right)
    for key, values in whole.history_.to_dict().items():
        assert key == "seconds" or values == resumed.history_.to_dict()[key]
    assert not path.exists()


# Another program ----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_values_agree_with_gpytorch():
    gpytorch = pytest.importorskip("gpytorch")
    rows, Z, targets = points(60, 2), points(9, 2, seed=4), draw_targets(kernels.Matern(1.5), points(60, 2), 0.1)
    scale, noise = torch.tensor([0.8, 1.4], dtype=torch.float64), 0.2
    table = TrainingTable(rows, targets, gigagp.means.ZeroMean(), 2**28)
    model = Model(
        kernels.Matern(1.5, scale, 1.3).bind(2),
        gigagp.means.ZeroMean(),
        torch.tensor(noise, dtype=torch.float64),
        {"inducing_points": Z},
    )

    def covariance():
        module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=2)).double()
        module.base_kernel.lengthscale, module.outputscale = scale, 1.3
        return module

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = noise

    class SGPR(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(rows, targets[:, 0], likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.InducingPointKernel(covariance(), Z.clone(), likelihood)

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    class SVGP(gpytorch.models.ApproximateGP):
        def __init__(self):
            q = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
            super().__init__(gpytorch.variational.VariationalStrategy(self, Z.clone(), q))
            self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), covariance()

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    ours = SparseVariational(9, jitter=0.0).objective(table, generator())
    theirs = SGPR().double().train()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood.train(), theirs)
    value = mll(theirs(rows), targets[:, 0]) * 60
    assert ours.evaluate(model).value == pytest.approx(float(value.detach()), rel=1e-7)

    stochastic = SparseVariational(9, 60, jitter=0.0).objective(table, generator())
    started = stochastic.start(model)
    q = stochastic.distribution(started)
    with gpytorch.settings.variational_cholesky_jitter(double_value=0.0):
        approximate = SVGP().double().train()
        approximate.variational_strategy.variational_params_initialized.fill_(1)
        approximate.variational_strategy._variational_distribution.variational_mean.data = 0.7 * q.mean[:, 0]
        root = approximate.variational_strategy._variational_distribution.chol_variational_covar
        root.data = 1.5 * q.root
        bound = gpytorch.mlls.VariationalELBO(likelihood, approximate, num_data=60)
        value = bound(approximate(rows), targets[:, 0]) * 60
    changed = started.replace({"whitened_mean": 0.7 * q.mean, "whitened_root": 1.5 * q.root})
    assert stochastic.evaluate(changed).value == pytest.approx(float(value.detach()), rel=1e-7)
