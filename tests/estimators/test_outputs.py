"""Several outputs, each with hyperparameters of its own: everything is as in fits of each output alone."""

from __future__ import annotations

import copy
import pickle
import re

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

import gigagp
from engines import needs_extension
from gigagp import GPClassifier, GPRegressor, inference, kernels, optimization, plots
from gigagp.errors import FitWarning, GigaGPWarning, InvalidInputError, ModelFileError
from gigagp.estimators import regression_fit
from gigagp.estimators.fit_checks import noise_support
from gigagp.estimators.planning import SEPARATE_CELLS, SEPARATE_OUTPUTS, resolve_outputs
from gigagp.inference.exact.exact import ExactObjective
from gigagp.plots.view import View
from gigagp.settings.random import generator_from, spawn

RNG = np.random.default_rng(0)
#: Clumped, uneven, with a repeated row.
X = np.concatenate([RNG.uniform(-2, 2, 25), RNG.normal(0.5, 0.05, 10), [1.5, 1.5]])[:, None]
#: Unlike in scale, shape and noise.
Y = np.stack(
    [
        np.sin(3 * X[:, 0]) + 0.05 * RNG.normal(size=37),
        1e4 * X[:, 0] ** 2 + 900 * RNG.normal(size=37),
        np.exp(X[:, 0] + 0.3 * RNG.normal(size=37)),
    ],
    1,
)
NEW = np.linspace(-2.5, 2.5, 9)[:, None]
Y_NEW = np.stack([np.sin(3 * NEW[:, 0]), 1e4 * NEW[:, 0] ** 2, np.exp(NEW[:, 0])], 1)
FRAME = pd.DataFrame({"x": X[:, 0], "colour": np.where(X[:, 0] > 0, "red", "blue")})
FRAME_NEW = pd.DataFrame({"x": NEW[:, 0], "colour": np.where(NEW[:, 0] > 0, "red", "blue")})


def alone(gp: GPRegressor, table=X, y=Y) -> list[GPRegressor]:
    """Return fits of each output alone."""
    return [clone(gp).fit(table, y[:, k]) for k in range(len(gp.estimators_))]


# What it is for -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [np.linspace(-2, 2, 12), np.sort(np.random.default_rng(0).uniform(-2, 2, 12))])
def test_twelve_rows_of_a_wave_and_a_parabola(rows):
    both = np.stack([np.sin(3 * rows), 1e4 * rows**2], 1)
    gp, point = GPRegressor(kernels.Matern(nu=1.5)).fit(rows[:, None], both), [[1.1]]
    mean, std = gp.predict(point, return_std=True)
    shared = GPRegressor(kernels.Matern(nu=1.5), outputs="shared").fit(rows[:, None], both)
    for k, truth in enumerate([np.sin(3.3), 12100.0]):
        expected = GPRegressor(kernels.Matern(nu=1.5)).fit(rows[:, None], both[:, k]).predict(point, return_std=True)
        assert (mean[0, k], std[0, k]) == (expected[0][0], expected[1][0])
        assert abs(mean[0, k] - truth) < 3 * std[0, k]
    assert shared.predict(point, return_std=True)[1][0, 1] > 3 * std[0, 1]  # the control: the kernel of the wave
    lengths = [one.lengthscale.item() for one in gp.kernel_]
    assert lengths[1] > 3 * lengths[0]


# As fits of each output alone -----------------------------------------------------------------------------------------

QUICK = optimization.Auto(subset_sizes=(20,), polish_steps=6)
FITS = {
    "default": {},
    "average of kernels": {"kernel": "auto", "optimizer": QUICK},
    "student": {"likelihood": "student-t"},
    "noise chosen": {"likelihood": "auto"},
    "known noise": {"noise_variance": np.linspace(0.01, 0.1, 37)},
    "fixed, own units": {"kernel": kernels.RBF(0.5, 2.0), "noise_variance": 0.1, "optimizer": None},
    "linear mean": {"mean": "linear", "inference": inference.Vecchia(10)},
    "iterative": {"inference": inference.Iterative(n_samples=8), "optimizer": optimization.Adam(steps=3)},
    "float32": {"dtype": "float32", "standardize": False, "optimizer": QUICK},
    "features": {"inference": inference.RandomFeatures(60), "optimizer": QUICK},
}


def answers(gp: GPRegressor, table, y) -> dict[str, np.ndarray]:
    """Return what a model answers without random numbers."""
    found = dict(zip(("mean", "std"), gp.predict(table, return_std=True), strict=True))
    found["covariance"] = gp.predict(table, return_cov=True)[1]
    found["latent mean"], found["latent std"] = gp.predict_latent(table, return_std=True)
    found["quantiles"], found["median"] = gp.predict_quantile(table, [0.1, 0.9], include_noise=False), gp.predict(table)
    if np.ndim(gp.noise_variance) == 0:
        found["noisy"] = gp.predict(table, return_std=True, include_noise=True)[1]
        found["density"] = gp.predictive_log_density(table, y)
    if not isinstance(gp.inference, inference.RandomFeatures):
        found |= {f"left out, {name}": part for name, part in gp.leave_one_out()._asdict().items()}
    return found


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", FITS)
@pytest.mark.filterwarnings("ignore::gigagp.errors.GigaGPWarning")  # of few steps and few rows
def test_each_output_is_a_fit_of_it_alone(name, tmp_path):
    two = Y[:, :2]
    gp = GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | FITS[name]).fit(X, two)
    assert gp.outputs_ == "independent"
    expected = [answers(one, NEW, Y_NEW[:, k]) for k, one in enumerate(alone(gp, y=two))]
    found = answers(gp, NEW, Y_NEW[:, :2])
    for part, values in found.items():
        axis = -1 if part == "covariance" else 1
        np.testing.assert_array_equal(values, np.stack([one[part] for one in expected], axis), err_msg=part)
    generator = generator_from(0)
    likelihoods = [one.log_marginal_likelihood(spawn(generator)) for one in alone(gp, y=two)]
    value, error = gp.log_marginal_likelihood()
    assert value == sum(one.value for one in likelihoods)
    assert error == pytest.approx(np.linalg.norm([one.standard_error for one in likelihoods]))
    # the same bits from a file, a copy and a pickle
    gp.save(tmp_path / "model.gp")
    for copied in (gigagp.load(tmp_path / "model.gp"), copy.deepcopy(gp), pickle.loads(pickle.dumps(gp))):
        assert copied.outputs_ == "independent"
        assert not any((copied._one_target, copied.estimators_[1] is gp.estimators_[1]))
        for part, values in answers(copied, NEW, Y_NEW[:, :2]).items():
            np.testing.assert_array_equal(values, found[part], err_msg=part)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::gigagp.errors.GigaGPWarning")
def test_transforms_and_uncertain_hyperparameters_belong_to_each_output():
    gp = GPRegressor(kernels.Matern(nu=1.5), target_transform="auto").fit(X, Y[:, [0, 2]])
    assert [one.kind for one in gp.target_transform_] == [one.target_transform_.kind for one in gp.estimators_]
    for k, one in enumerate(alone(gp, y=Y[:, [0, 2]])):
        np.testing.assert_array_equal(gp.predict(NEW)[:, k], one.predict(NEW))
    gp = GPRegressor(kernels.Matern(nu=1.5)).fit(X, Y[:, :2])
    mixed = gp.predict(NEW, return_std=True, hyperparameters="laplace")
    for k, one in enumerate(alone(gp, y=Y[:, :2])):
        for part, expected in zip(mixed, one.predict(NEW, return_std=True, hyperparameters="laplace"), strict=True):
            np.testing.assert_array_equal(part[:, k], expected)


def test_counts_are_answered_in_the_units_of_each_output():
    counts = RNG.poisson(np.exp(np.stack([1 + np.sin(3 * X[:, 0]), 3 - X[:, 0]], 1)))
    new_counts = RNG.poisson(5.0, (len(NEW), 2))
    gp = GPRegressor(inference=inference.Vecchia(10), likelihood="poisson", optimizer=QUICK).fit(X, counts)
    assert gp.outputs_ == "independent"
    parts = alone(gp, y=counts)

    def same(ask, axis=1):
        found, expected = ask(gp, [0, 1]), [ask(one, k) for k, one in enumerate(parts)]
        many = isinstance(found, tuple)
        pairs = zip(found, *expected, strict=True) if many else [(found, *expected)]
        for values, *each in pairs:
            np.testing.assert_array_equal(values, np.stack(each, axis))

    same(lambda one, k: one.predict(NEW, return_std=True))
    same(lambda one, k: one.predict(NEW, return_std=True, include_noise=True))
    same(lambda one, k: one.predict(NEW, return_cov=True)[1], -1)
    same(lambda one, k: one.predict_latent(NEW, return_std=True))
    same(lambda one, k: one.predict_latent(NEW, return_cov=True)[1], -1)
    same(lambda one, k: one.predict_quantile(NEW, [0.1, 0.9]))
    same(lambda one, k: one.predict_quantile(NEW, 0.5, include_noise=False))
    same(lambda one, k: one.predictive_log_density(NEW, new_counts[:, k]))
    f, std = gp.predict_latent(NEW, return_std=True)
    np.testing.assert_allclose(gp.predict(NEW), np.exp(f + std**2 / 2), rtol=1e-9)  # known answer of a log rate
    same(lambda one, k: one.posterior(NEW).mean.numpy(), -1)
    same(lambda one, k: one.posterior(NEW, include_noise=True).variance.numpy(), -1)
    same(lambda one, k: one.posterior(NEW).covariance.numpy(), -1)
    assert gp.posterior(NEW).rsample((3,)).shape == (3, len(NEW), 2)
    with pytest.raises(InvalidInputError, match="log_prob of posterior does not exist"):
        gp.posterior(NEW).log_prob(torch.ones(len(NEW), 2))
    drawn = gp.sample_y(NEW, 400, include_noise=True)
    assert drawn.shape == (len(NEW), 2, 400)
    np.testing.assert_array_equal(drawn, np.round(drawn))
    mean, std = gp.predict(NEW, return_std=True, include_noise=True)
    assert (np.abs(drawn.mean(2) - mean) < 5 * std / 20).all()
    np.testing.assert_allclose(
        np.exp(gp.sample_functions(3, latent=True)(NEW)), gp.sample_functions(3)(NEW), rtol=1e-12
    )
    assert gp.score(X, counts) > 0.3


@pytest.mark.filterwarnings("ignore:.*column 'x' has")
def test_missing_cells_widen_each_output_by_what_they_leave_open_in_it():
    gp = GPRegressor(encode="auto", optimizer=optimization.LBFGS(steps=5)).fit(FRAME, Y[:, :2])
    parts, opened = alone(gp, FRAME, Y[:, :2]), FRAME_NEW.copy()
    opened.loc[2, "x"] = np.nan
    for noisy in (False, True):
        for values, *each in zip(
            gp.predict(opened, return_std=True, include_noise=noisy),
            *(one.predict(opened, return_std=True, include_noise=noisy) for one in parts),
            strict=True,
        ):
            np.testing.assert_array_equal(values, np.stack(each, 1))
    found = gp.predict_quantile(opened, 0.9)
    np.testing.assert_array_equal(found, np.stack([one.predict_quantile(opened, 0.9) for one in parts], 1))
    mean, std = gp.predict(opened, return_std=True)
    copies = FRAME.assign(colour=opened["colour"][2])
    for k in range(2):  # by hand: the average over the values of the cell in the fit
        means, stds = (part[:, k] for part in gp.predict(copies, return_std=True))
        spread = np.sqrt(np.mean(stds**2) + means.var())
        assert abs(mean[2, k] - means.mean()) < 0.15 * spread
        assert std[2, k] == pytest.approx(spread, rel=0.15)
    for drawn in (
        gp.sample_y(opened, 400),
        gp.sample_functions(400)(opened),
        gp.sample_y(opened, 9, include_noise=True),
    ):
        assert drawn.shape[:2] == (len(opened), 2)
        assert (np.abs(drawn.mean(2) - mean)[2] < 5 * std[2] / np.sqrt(drawn.shape[2])).all()


def test_given_values_are_in_the_units_of_each_output():
    """Held against dense algebra: RBF of variance 4 and noise .5 in squared units of both, which differ in scale."""
    Z = np.stack([Y[:, 0], 20 * Y[:, 0] + 5], 1)
    gp = GPRegressor(kernels.RBF(0.5, 4.0), noise_variance=0.5, optimizer=None, mean="zero").fit(X, Z)
    K = 4 * np.exp(-0.5 * np.subtract.outer(X[:, 0], X[:, 0]) ** 2 / 0.25)
    k = 4 * np.exp(-0.5 * np.subtract.outer(NEW[:, 0], X[:, 0]) ** 2 / 0.25)
    H = K + 0.5 * np.eye(len(X))
    mean, std = gp.predict(NEW, return_std=True)
    np.testing.assert_allclose(mean, Z.mean(0) + k @ np.linalg.solve(H, Z - Z.mean(0)), rtol=1e-8, atol=1e-8)
    variance = 4 - (k * np.linalg.solve(H, k.T).T).sum(1)
    np.testing.assert_allclose(std, np.sqrt(variance)[:, None] * [1.0, 1.0], rtol=1e-8)
    assert gp.noise_variance_ == pytest.approx((0.5, 0.5))
    shared = clone(gp).set_params(outputs="shared").fit(X, Z)  # the control: shares of each variance
    assert shared.predict(NEW, return_std=True)[1][0] == pytest.approx(mean[0] * 0 + Z.std(0) * std[0, 0], rel=0.5)


class Doubled(GPRegressor):
    """A regressor whose predictions are twice those of another."""

    def predict(self, X, *arguments, **options):
        return 2 * super().predict(X, *arguments, **options)


def test_a_subclass_changes_an_answer_once():
    np.testing.assert_array_equal(
        Doubled(optimizer=None).fit(X, Y).predict(NEW), 2 * GPRegressor(optimizer=None).fit(X, Y).predict(NEW)
    )


# Samples --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [inference.Exact(), inference.Iterative(n_samples=64)])
def test_samples_of_different_outputs_are_independent(method):
    given = {"kernel": kernels.Matern(1.5, 0.7), "noise_variance": 0.1, "hyperparameter_units": "standardized"}
    both = np.stack([Y[:, 0], 5 * Y[:, 0]], 1)  # the same target, so that the same numbers would give the same samples
    gp = GPRegressor(inference=method, optimizer=None, **given).fit(X, both)
    count = 64
    drawn = {
        "joint": gp.sample_y(NEW[:4], count, random_state=3),
        "functions": gp.sample_functions(count, random_state=3)(NEW[:4]),
    }
    for values in drawn.values():
        assert values.shape == (4, 2, count)
        first, second = values[:, 0], values[:, 1]
        correlation = [np.corrcoef(a, b)[0, 1] for a, b in zip(first, second, strict=True)]
        assert np.abs(correlation).max() < 4.5 / np.sqrt(count)
    np.testing.assert_array_equal(gp.sample_y(NEW[:4], count, random_state=3), drawn["joint"])
    same = [one.sample_y(NEW[:4], count, random_state=3) for one in alone(gp, y=both)]
    if isinstance(method, inference.Exact):  # the control: one seed for both
        assert np.corrcoef(same[0][0], same[1][0])[0, 1] > 0.999


def test_joint_distributions():
    gp = GPRegressor(kernels.Matern(nu=1.5)).fit(X, Y[:, :2])
    points = torch.from_numpy(np.linspace(-2, 2, 6)).reshape(2, 3, 1).requires_grad_()
    joint = gp.posterior(points, include_noise=True)
    parts = [one.posterior(points, include_noise=True) for one in gp.estimators_]
    for name in ("mean", "variance", "stddev", "covariance"):
        expected = torch.stack([getattr(one, name) for one in parts], -1)
        torch.testing.assert_close(getattr(joint, name), expected, rtol=0, atol=0)
    torch.testing.assert_close(joint.prior_variance(), torch.cat([one.prior_variance() for one in parts]))
    (slope,) = torch.autograd.grad(joint.mean[..., 1].sum(), points)
    assert bool((slope != 0).all())
    z = torch.randn(5, 2, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = joint.rsample((5,), z)
    torch.testing.assert_close(drawn[..., 1], parts[1].rsample((5,), z[..., 1]))
    together = sum(one.log_prob(drawn[0, ..., k]) for k, one in enumerate(parts))
    torch.testing.assert_close(joint.log_prob(drawn[0]), together)
    free = joint.rsample((400,)).detach()
    centred = (free - free.mean(0)).reshape(400, 6, 2)
    correlation = (centred[..., 0] * centred[..., 1]).mean(0) / centred.std(0).prod(-1)
    assert correlation.abs().max() < 4.5 / 20
    for use in (lambda: joint.rsample((5,), z[..., 0]), lambda: joint.log_prob(drawn[0, ..., 0])):
        with pytest.raises(InvalidInputError, match="must have shape"):
            use()


# Further rows, files, checkpoints -------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("refit", [False, True])
def test_rows_are_added_to_each_output(refit):
    first, rest = slice(0, 30), slice(30, 37)
    gp = GPRegressor(kernels.Matern(nu=1.5)).fit(X[first], Y[first])
    before = gp.predict(NEW)
    grown = gp.condition_on(X[rest], Y[rest], refit=refit)
    np.testing.assert_array_equal(gp.predict(NEW), before)
    expected = [one.condition_on(X[rest], Y[rest, k], refit=refit) for k, one in enumerate(gp.estimators_)]
    np.testing.assert_array_equal(grown.predict(NEW), np.stack([one.predict(NEW) for one in expected], 1))
    assert grown.partial_fit(X[:2], Y[:2]) is grown
    assert [one.n_rows for one in grown.posterior_] == [39, 39, 39]
    for bad, words in ((Y[rest, :2], "3 target.*got 2"), (Y[rest, 0], "3 target.*got 1"), (Y[:3], "number of")):
        with pytest.raises(InvalidInputError, match=words):
            grown.condition_on(X[rest], bad)
    with pytest.raises(InvalidInputError, match=r"y must have 3 target.*got 2"):
        grown.predictive_log_density(NEW, Y_NEW[:, :2])


def test_files_hold_the_rows_once_and_old_files_are_shared_models(tmp_path):
    gp = GPRegressor(optimizer=None).fit(X, Y)
    tensors, header = gp._to_state()
    assert [name for name in tensors if name.split(".")[-1] == "X"] == ["X"]
    assert [name for name in tensors if name.endswith("Y")] == ["outputs.0.Y", "outputs.1.Y", "outputs.2.Y"]
    shared = GPRegressor(optimizer=None, outputs="shared").fit(X, Y)
    shared.save(tmp_path / "shared.gp")
    old, plain = shared._to_state()
    del plain["settings"]["outputs"]  # as in a file of an earlier version
    loaded = GPRegressor._from_state(old, plain, gigagp.estimators.saving.persistence.Custom(()))
    for one in (loaded, gigagp.load(tmp_path / "shared.gp")):
        assert one.outputs_ == "shared"
        np.testing.assert_array_equal(one.predict(NEW), shared.predict(NEW))
    assert loaded.outputs == "auto"
    damaged = [
        {"outputs": header["outputs"][:1]},
        {"outputs": 3},
        {"outputs": [{**one, "one_target": False} for one in header["outputs"]]},
        {"outputs": [header["outputs"][0], {**header["outputs"][1], "feature_names": ["a"]}, header["outputs"][2]]},
    ]
    for bad in damaged:
        gigagp.estimators.saving.persistence.save_state(tmp_path / "bad.gp", "GPRegressor", tensors, bad)
        with pytest.raises(ModelFileError):
            gigagp.load(tmp_path / "bad.gp")


class Killed(BaseException):
    """Stands for a kill."""


@pytest.mark.few(1)
@pytest.mark.parametrize("stopped", [3, 14, 25])
def test_a_killed_fit_goes_on_where_it_was(tmp_path, monkeypatch, stopped):
    gp = GPRegressor(optimizer=optimization.LBFGS(steps=8))
    evaluate, count = ExactObjective.evaluate, [0]

    def counted(self, model):
        count[0] += 1
        if count[0] == stopped:
            raise Killed
        return evaluate(self, model)

    monkeypatch.setattr("gigagp.estimators.checkpoint.INTERVAL", 0.0)
    monkeypatch.setattr("gigagp.estimators.checkpoint.INTERVAL", 0.0)
    monkeypatch.setattr(ExactObjective, "evaluate", counted)
    # fits without some rows follow the learning, and are no part of a checkpoint
    monkeypatch.setattr(noise_support, "supported", lambda objective, posterior, *_, **__: (posterior, ""))
    with pytest.raises(Killed):
        gp.fit(X, Y, checkpoint=tmp_path / "c")
    assert not hasattr(gp, "posterior_")
    ran, count[0] = count[0] - 1, -(10**6)
    assert list(tmp_path.iterdir())
    gp.fit(X, Y, checkpoint=tmp_path / "c")
    resumed = count[0] + 10**6
    assert list(tmp_path.iterdir()) == []
    whole = clone(gp).fit(X, Y)
    np.testing.assert_array_equal(gp.predict(NEW), whole.predict(NEW))
    assert ran + resumed == count[0] + 10**6 - resumed  # no evaluation came twice


def test_ctrl_c_before_the_last_output_leaves_the_estimator_as_it_was(monkeypatch):
    gp = GPRegressor(kernels.Matern(nu=1.5)).fit(X, Y[:, :2])
    before, real, cut = gp.predict(NEW), regression_fit.fit_rows, [0]

    def interrupted(*arguments):
        found = real(*arguments)
        cut[0] -= 1
        if not cut[0]:
            found.history.interrupted = "learning"
        return found

    monkeypatch.setattr(regression_fit, "fit_rows", interrupted)
    cut[0] = 1
    with pytest.raises(KeyboardInterrupt, match="output 1 of 2"):
        gp.fit(X, 2 * Y[:, :2])
    np.testing.assert_array_equal(gp.predict(NEW), before)
    cut[0] = 2
    with pytest.warns(FitWarning, match="Ctrl-C ended the learning"):
        gp.fit(X, 2 * Y[:, :2])
    assert not np.array_equal(gp.predict(NEW), before)


def test_a_time_budget_is_shared(monkeypatch):
    deadlines, real = [], regression_fit.fit_rows

    def watched(arguments, *rest):
        deadlines.append(arguments.deadline - regression_fit.time.monotonic())
        return real(arguments, *rest)

    monkeypatch.setattr(regression_fit, "fit_rows", watched)
    GPRegressor(kernels.Matern(nu=1.5), time_budget=300).fit(X, Y)
    assert deadlines[0] == pytest.approx(100, rel=0.05)
    assert 100 < deadlines[1] <= 150
    assert 200 < deadlines[2] <= 300  # what the others have left


# What is said and drawn -----------------------------------------------------------------------------------------------


def test_descriptions_say_which_it_is():
    apart, shared = (GPRegressor(optimizer=None, outputs=kind).fit(X, Y) for kind in ("auto", "shared"))
    text = apart.describe()
    assert "3, each with its own hyperparameters" in text
    assert [f"y[:, {k}]" in text for k in range(4)] == [True, True, True, False]
    assert all(one.describe() in text for one in apart.estimators_)
    assert "3, which share the kernel and the noise" in shared.describe()
    assert (apart.outputs_, shared.outputs_) == ("independent", "shared")
    assert shared.estimators_ == (shared,)
    one = GPRegressor(optimizer=None).fit(X, Y[:, 0])
    assert one.outputs_ == "independent"
    assert "outputs" not in one.describe()
    assert with_view(apart).count("gigagp-view") > with_view(one).count("gigagp-view")
    assert "y[:, 2]" in with_view(apart)
    assert len(apart.kernel_) == len(apart.history_) == len(apart.likelihood_) == 3
    for again, kind in ((apart.fit(X, Y[:, 0]), "independent"), (shared.fit(X, Y), "shared")):  # fits anew
        assert (again.outputs_, again.estimators_) == (kind, (again,))
    assert isinstance(apart.kernel_, kernels.Kernel)


def with_view(gp: GPRegressor) -> str:
    return gp._repr_mimebundle_()["text/html"]


@needs_extension
def test_plans():
    rows, table = RNG.uniform(-1, 1, (120, 2)), RNG.normal(size=(120, 2))
    gp = GPRegressor(kernels.Matern(nu=1.5))
    plans = gp.plan(rows, table)
    for k, plan in enumerate(plans):
        expected = gp.plan(rows, table[:, k])
        assert [(one.inference, one.nll, one.rmse) for one in plan.options] == [
            (one.inference, one.nll, one.rmse) for one in expected.options
        ]
    assert len(GPRegressor(kernels.Matern(nu=1.5), outputs="shared").plan(rows, table).options) > 0


@pytest.mark.slow
def test_pictures_and_reports_are_of_the_output_that_is_asked_for(tmp_path):
    gp = GPRegressor(kernels.Matern(nu=1.5)).fit(FRAME[["x"]], Y)
    own = GPRegressor(kernels.Matern(nu=1.5)).fit(FRAME[["x"]], Y[:, 1])
    pairs = [
        (plots.predicted(gp, target=1), plots.predicted(own)),
        (plots.predicted(gp, FRAME_NEW[["x"]], Y_NEW, target=1), plots.predicted(own, FRAME_NEW[["x"]], Y_NEW[:, 1])),
    ]
    for found, expected in pairs:
        np.testing.assert_array_equal(found.y, expected.y)
        np.testing.assert_array_equal(found.mean, expected.mean)
        np.testing.assert_array_equal(found.std, expected.std)
    gp.plot(target=1, path=tmp_path / "of-all.png")
    gp.estimators_[1].plot(path=tmp_path / "alone.png")
    assert (tmp_path / "of-all.png").read_bytes() == (tmp_path / "alone.png").read_bytes()
    view, expected = (View(one, k) for one, k in ((gp, 2), (gp.estimators_[2], 0)))
    np.testing.assert_array_equal(view.given(FRAME_NEW[["x"]], Y_NEW).y, Y_NEW[:, 2])
    for found, wanted in zip(view.mean_and_std(NEW), expected.mean_and_std(NEW), strict=True):
        np.testing.assert_array_equal(found, wanted)
    page = gigagp.report(gp, FRAME_NEW[["x"]], Y_NEW, target=2)
    assert f"{np.sqrt(np.mean((gp.predict(FRAME_NEW[['x']])[:, 2] - Y_NEW[:, 2]) ** 2)):.4g}" in page
    with pytest.raises(InvalidInputError, match="from 0 to 2"):
        gp.plot(target=3, path=tmp_path / "x.png")


def test_encoded_tables_and_validation():
    gp = GPRegressor(encode="auto", optimizer=optimization.LBFGS(steps=3))
    gp.fit(FRAME, Y, validation=(FRAME_NEW, Y_NEW))
    for k in range(3):
        expected = clone(gp).fit(FRAME, Y[:, k], validation=(FRAME_NEW, Y_NEW[:, k]))
        np.testing.assert_array_equal(gp.predict(FRAME_NEW)[:, k], expected.predict(FRAME_NEW))
        scores = [step.validation_rmse for step in expected.history_]
        assert [step.validation_rmse for step in gp.history_[k]] == scores
    assert gp.score(FRAME, Y) > 0.5
    with pytest.raises(InvalidInputError, match=r"validation y must have 3 target"):
        gp.fit(FRAME, Y, validation=(FRAME_NEW, Y_NEW[:, 0]))


def test_messages_name_the_output_and_come_before_any_work(monkeypatch):
    gp = GPRegressor(kernels.Matern(nu=1.5), target_transform="log")
    monkeypatch.setattr(regression_fit, "fit_rows", None)  # nothing may be fitted
    with pytest.raises(InvalidInputError, match=re.escape("y[:, 2]: y must be positive")):
        gp.fit(X, np.abs(Y) * [1, 1, -1])
    monkeypatch.undo()
    with pytest.warns(FitWarning, match=re.escape("y[:, 1]: ")):
        GPRegressor(kernels.Matern(nu=1.5)).fit(
            np.tile(X, (3, 1)), np.tile(Y, (3, 1)) + 1e9 * np.eye(111, 3, -5) * [0, 1, 0]
        )


# The choice -----------------------------------------------------------------------------------------------------------


def test_auto_fits_each_output_up_to_a_size():
    assert resolve_outputs("auto", SEPARATE_CELLS // 2, 2) == "independent"
    assert resolve_outputs("auto", SEPARATE_CELLS // 2 + 1, 2) == "shared"
    assert resolve_outputs("auto", 5, SEPARATE_OUTPUTS) == "independent"
    assert resolve_outputs("auto", 5, SEPARATE_OUTPUTS + 1) == "shared"
    assert resolve_outputs("independent", 10**9, 10**6) == "independent"
    assert resolve_outputs("shared", 5, 2) == "shared"
    many = np.tile(Y, (1, 20))
    gp = GPRegressor(optimizer=None).fit(X, many)
    assert gp.outputs_ == "shared"
    assert "60, which share the kernel and the noise" in gp.describe()
    with pytest.raises(InvalidInputError, match=r'outputs of GPRegressor must be "auto", "independent", "shared" or'):
        GPRegressor(outputs="joint").fit(X, Y)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"noise_variance": 0.1}, "noise_variance"),
        ({"kernel": kernels.RBF(variance=2.0)}, "variance"),
        ({"kernel": kernels.Matern(1.5, bounds={"variance": (0.1, 10.0)})}, "variance"),
    ],
)
def test_auto_warns_where_given_variances_change_their_meaning(given, name):
    many, rest = np.tile(Y, (1, 20)), {"optimizer": None, **given}
    with pytest.warns(GigaGPWarning, match=rf'{name} is given in squared units.*outputs="independent"'):
        GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | rest).fit(X, many)
    GPRegressor(outputs="shared", **{"kernel": kernels.Matern(nu=1.5)} | rest).fit(X, many)  # warnings are errors
    GPRegressor(hyperparameter_units="standardized", **{"kernel": kernels.Matern(nu=1.5)} | rest).fit(X, many)
    GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | rest).fit(X, Y)
    GPRegressor(kernels.RBF(0.3), optimizer=None).fit(X, many)


def test_shared_models_learn_again_without_a_warning():
    learned = GPRegressor(optimizer=optimization.Adam(steps=1)).fit(X, np.tile(Y, (1, 20)))
    again = learned.condition_on(X[:2], np.tile(Y[:2], (1, 20)), refit=True)
    assert again.outputs_ == "shared"


def test_tables_and_classes_are_shared():
    gp = GPRegressor(inference=inference.Grid(20), optimizer=None).fit_table((X, Y))
    assert gp.outputs_ == "shared"
    with pytest.raises(InvalidInputError, match=r"outputs of GPRegressor must be .* for fit_table"):
        GPRegressor(outputs="independent").fit_table((X, Y))
    assert GPRegressor(outputs="independent", optimizer=None, inference=inference.Grid(20)).fit_table((X, Y[:, 0]))
    classes = GPClassifier(inference=inference.QuadruplyStochastic(n_basis=20), optimizer=None)
    classes.fit(X, np.digitize(X[:, 0], [-0.5, 0.5]))
    assert classes.latent_.outputs_ == "shared"
    assert classes.latent_.posterior_.n_targets == 3
    with pytest.raises(InvalidInputError, match='outputs="independent"'):
        GPRegressor("average", outputs="shared").fit(X, Y)


def test_botorch_takes_outputs_of_both_kinds():
    pytest.importorskip("botorch")
    from gigagp.botorch import GigaModel

    gp = GPRegressor(kernels.Matern(nu=1.5)).fit(X, Y[:, :2])
    model, points = GigaModel(gp), torch.from_numpy(NEW).reshape(3, 3, 1)
    assert model.num_outputs == 2
    parts = [GigaModel(one) for one in gp.estimators_]
    more = torch.tensor([[0.3], [1.0]]).double(), torch.tensor([[0.8, 900.0], [0.1, 1e4]]).double()
    for use in (
        lambda one, k: one.posterior(points, observation_noise=True),
        lambda one, k: one.condition_on_observations(more[0], more[1][:, k]).posterior(points),
    ):
        found, expected = use(model, [0, 1]), [use(part, [k]) for k, part in enumerate(parts)]
        for name in ("mean", "variance"):
            together = torch.cat([getattr(one, name) for one in expected], -1)
            torch.testing.assert_close(getattr(found, name), together)
    torch.testing.assert_close(model.subset_output([1]).posterior(points).mean, parts[1].posterior(points).mean)
    torch.manual_seed(0)
    from botorch.sampling.pathwise import draw_matheron_paths

    paths = draw_matheron_paths(model, sample_shape=torch.Size([500]))(points[0])
    assert paths.shape == (500, 2, 3)
    mean, std = gp.predict(NEW[:3], return_std=True)
    assert (np.abs(paths.mean(0).numpy().T - mean) < 5 * std / np.sqrt(500)).all()
