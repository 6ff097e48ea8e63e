"""Settings that meet: each pair works, as dense algebra says, or is refused by a sentence before any work."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gigagp
from gigagp import GPRegressor, inference, kernels, optimization
from gigagp.errors import InvalidInputError
from gigagp.estimators import checkpoint, fitting
from gigagp.inference.vecchia.mode import Curvature
from gigagp.model.likelihoods import Gaussian
from gigagp.optimization.trace import Trace

N = 24
DRAW = np.random.default_rng(0)
X = np.column_stack([np.sort(DRAW.uniform(0, 6, N)), np.arange(N) % 3])
NEW = np.column_stack([[0.5, 2.2, 7.0], [0, 1, 2]])
F = 0.5 * np.sin(X[:, 0])
AMOUNTS = DRAW.gamma(3, np.exp(F) / 3)
TARGETS = {
    "gaussian": AMOUNTS,
    "student-t": AMOUNTS,
    "censored": np.stack([np.where(AMOUNTS < 0.5, -np.inf, AMOUNTS), AMOUNTS.clip(0.5)], 1),
    "poisson": DRAW.poisson(np.exp(1 + F)),
    "negative-binomial": DRAW.poisson(np.exp(1 + F)),
    "gamma": AMOUNTS,
    "binomial": DRAW.uniform(size=N) < 0.5,
    "beta": DRAW.uniform(0.1, 0.9, N),
    "auto": AMOUNTS,
}
LOCAL = kernels.LocalVariance([[1.0], [5.0]], 2.0, [0.2, 0.7], columns=[0])
SMOOTH = kernels.Matern(1.5, 1.2, 0.6, columns=[0])
KERNELS = {
    "constant": SMOOTH,
    "varying": SMOOTH + kernels.White(1.0, fixed=True) * LOCAL,
    "scaled": LOCAL * (SMOOTH + kernels.White(0.1)),
    "map": kernels.ScaleMap([[1.0, 3.0, 5.0]], [-0.5, 0.1, 0.4], columns=[0]) * (SMOOTH + kernels.White(0.1)),
}
METHODS = {
    "auto": "auto",
    "exact": inference.Exact(),
    "neighbours": inference.Vecchia(N),
    "iterative": inference.Iterative(),
    "quadruply stochastic": inference.QuadruplyStochastic(),
}
#: Arguments that a refusal may name.
NAMES = ("noise", "likelihood", "inference", "groups", "target_transform", "kernel", "optimizer")
#: What the rows are: values at points, or averages over areas, of one point to three.
BLOCKS = {"points": None, "areas": np.concatenate([np.arange(12), np.repeat(np.arange(12, 17), [2, 2, 2, 3, 3])])}
WEIGHTS = DRAW.uniform(0.5, 2.0, N)
SHARES = np.array([[0.25, 0.75, 0.0], [0.0, 0.5, 0.5]])


def dense(gp, new=NEW, *, groups=True):
    """Return the mean and the covariance of the latent function, by inverses; Laplace's if not Gaussian."""
    posterior, likelihood = gp.posterior_, gp.likelihood_
    table, model = posterior.table, posterior.model
    at, new = table.points.double(), torch.from_numpy(gp.scaling_.inputs(new))
    A = table.average(torch.eye(len(at), dtype=torch.float64))
    kernel = model.kernel if groups else gp.kernel_.parts[0].bind(2)
    K, cross, prior = A @ model.kernel.block(at, at) @ A.T, kernel.block(new, at) @ A.T, kernel.block(new, new)
    noise = model.noise_at(table.X.double())
    if isinstance(likelihood, Gaussian):
        inverse = torch.linalg.inv(K + noise.diag())
        return cross @ inverse @ table.Y.double(), prior - cross @ inverse @ cross.T
    given, f = table.beside.given(likelihood, table.Y), torch.zeros_like(table.Y).double()
    noise = noise.expand(len(at)) if table.beside.trials is None else table.beside.trials
    eye = torch.eye(len(at), dtype=torch.float64)
    for _ in range(60):
        local = Curvature.of(likelihood, given, f, noise)
        f = f + 0.5 * (K @ torch.linalg.solve(eye + local.hessian * K, local.hessian * f + local.slope) - f)
    local = Curvature.of(likelihood, given, f, noise)
    W = local.curvature
    return cross @ local.slope, prior - (cross * W.T) @ torch.linalg.solve(eye + K * W.T, cross.T)


def refusal_of(act):
    """Do something, and return None, or the words of the refusal."""
    try:
        act()
    except InvalidInputError as error:
        return str(error)
    return None


def of_rows(places, y):
    """Return the arguments of a fit to rows at points, or to areas with the first targets."""
    if BLOCKS[places] is None:
        return {"X": X, "y": y}
    return {"X": X, "y": y[: len(np.unique(BLOCKS[places]))], "blocks": BLOCKS[places], "weights": WEIGHTS}


@pytest.mark.pairs
@pytest.mark.parametrize("places", BLOCKS)
@pytest.mark.parametrize("transform", ["none", "log"])
@pytest.mark.parametrize("groups", [(), (1,)], ids=["no groups", "groups"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("noise", KERNELS)
@pytest.mark.parametrize("likelihood", TARGETS)
def test_each_pair_works_or_is_refused(likelihood, noise, method, groups, transform, places, tmp_path, monkeypatch):
    began = []
    own = fitting.learn_posterior
    monkeypatch.setattr(fitting, "learn_posterior", lambda *given: began.append(1) or own(*given))
    settings = {"optimizer": None, "mean": "zero", "standardize": False}
    gp = GPRegressor(
        KERNELS[noise],
        METHODS[method],
        likelihood=likelihood,
        groups=list(groups),
        target_transform=transform,
        **settings,
    )
    given = of_rows(places, TARGETS[likelihood])
    refusal = refusal_of(lambda: gp.fit(**given))
    if refusal is not None:
        assert not began, refusal
        assert any(name in refusal for name in NAMES), refusal
        assert places == "points" or "blocks" in refusal, refusal
        assert not works(likelihood, noise, method, groups, transform, places), refusal
        return
    assert transform == "none" or likelihood == "gaussian"
    # a checkpoint is kept, or refused before any work
    began.clear()
    other = gigagp.load(saved(gp, tmp_path)).set_params(optimizer=optimization.LBFGS(steps=1))
    refusal = refusal_of(lambda: other.fit(**given, checkpoint=tmp_path / "kept"))
    assert (refusal is not None) == (places == "areas"), refusal
    assert refusal is None or ("checkpoint" in refusal and not began)
    mean, std = gp.predict_latent(NEW, return_std=True)
    loaded = gigagp.load(saved(gp, tmp_path))
    for one, other in zip(loaded.predict_latent(NEW, return_std=True), (mean, std), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    if method == "quadruply stochastic" or likelihood == "student-t" or not hasattr(gp.posterior_, "table"):
        return
    agrees(gp, mean, std**2, method)
    if transform == "none" and likelihood == "gaussian":
        averages, covariance = gp.predict_average(
            np.tile(NEW, (2, 1)), [0] * 3 + [1] * 3, SHARES.ravel(), return_cov=True
        )
        found = dense(gp)
        near(averages, SHARES @ found[0][:, 0].numpy(), method)
        near(covariance, SHARES @ found[1].numpy() @ SHARES.T, method)
    if groups and transform == "none" and likelihood == "gaussian":
        agrees(gp, *squared(gp.predict(NEW, return_std=True, groups=False)), method, groups=False)
    more = []
    refusal = refusal_of(lambda: more.append(gp.condition_on(NEW[:1], given["y"][:1])))
    if refusal is None:
        agrees(more[0], *squared(more[0].predict_latent(NEW, return_std=True)), method)
        assert np.abs(more[0].predict_latent(NEW) - mean).max() > 1e-4  # the control: another table
    else:
        assert "condition_on" in refusal or "Use fit with all rows" in refusal, refusal


def saved(gp, folder):
    """Save a model, and return its file."""
    gp.save(folder / "m.gp")
    return folder / "m.gp"


def squared(answer):
    """Return a mean, and a variance in place of a standard deviation."""
    return answer[0], answer[1] ** 2


def near(found, wanted, method):
    rtol = 1e-2 if method == "iterative" else 1e-6  # of its solves, whose tolerance is a hundredth
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol)


def agrees(gp, mean, variance, method, *, groups=True):
    """Assert that answers are those of dense algebra; of samples, variances within their chance."""
    found, covariance = dense(gp, groups=groups)
    near(mean, found[:, 0].numpy(), method)
    of_samples = method == "iterative" and not gp.posterior_.table.has_points
    wanted = covariance.diagonal().numpy()
    if of_samples:  # five standard errors of 64 samples
        assert (np.abs(variance / wanted - 1) < 5 * np.sqrt(2 / 64)).all()
    else:
        near(variance, wanted, method)


def test_the_dense_program_tells_settings_apart():
    """The control: answers of other settings are others."""
    found = []
    for noise, kernel in KERNELS.items():
        for groups in ([], [1]):
            for likelihood in ("gaussian", "censored") if noise == "constant" else ("gaussian",):
                settings = {"optimizer": None, "mean": "zero", "standardize": False, "groups": groups}
                gp = GPRegressor(kernel, inference.Vecchia(N), likelihood=likelihood, **settings)
                gp.fit(X, TARGETS[likelihood])
                found += [numbers(dense(gp))] + ([numbers(dense(gp, groups=False))] if groups else [])
    areas = GPRegressor(SMOOTH, optimizer=None, mean="zero", standardize=False).fit(**of_rows("areas", AMOUNTS))
    centroids = GPRegressor(SMOOTH, optimizer=None, mean="zero", standardize=False)
    centroids.fit(areas.posterior_.table.X.numpy(), AMOUNTS[:17])
    found += [numbers(dense(areas)), numbers(dense(centroids))]
    apart = np.abs(np.array(found)[:, None] - np.array(found)[None]).max(-1)
    assert apart[~np.eye(len(found), dtype=bool)].min() > 1e-3


def numbers(answer):
    return np.concatenate([one.numpy().ravel() for one in answer])


def works(likelihood, noise, method, groups, transform, places):
    """Whether settings are promised to work: Gaussian noise by exact methods, and others by neighbours."""
    if places == "areas":
        plain = likelihood == "gaussian" and noise == "constant" and transform == "none"
        return plain and not groups and method in ("auto", "exact", "iterative")
    if likelihood == "gaussian":
        return method in ("auto", "exact", "neighbours")
    has_noise = likelihood in ("censored",)
    return (
        transform == "none"
        and method in ("auto", "neighbours")
        and (noise == "constant" or has_noise)
        and likelihood not in ("student-t", "auto")
    )


class Killed(BaseException):
    """Stands for a kill."""


@pytest.mark.few(28)
@pytest.mark.filterwarnings("ignore:Learning stopped after", "ignore:The noise of this fit")  # so few steps
@pytest.mark.parametrize("exposure", [False, True], ids=["no exposure", "exposure"])
@pytest.mark.parametrize("groups", [(), (1,)], ids=["no groups", "groups"])
@pytest.mark.parametrize("noise", KERNELS)
@pytest.mark.parametrize("likelihood", TARGETS)
def test_a_killed_fit_resumes_or_is_refused(likelihood, noise, groups, exposure, tmp_path, monkeypatch):
    """The fit that goes on from its checkpoint has the bits of one that was not killed, with fewer evaluations."""
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)
    kernel, y, path = KERNELS[noise], TARGETS[likelihood], tmp_path / "c"
    effort = {"exposure": 1 + np.arange(N) % 4} if exposure else {}
    count, most, original = [0], [10**6], Trace._compute

    def compute(self, *given):
        if count[0] >= most[0]:
            raise Killed
        count[0] += 1
        return original(self, *given)

    monkeypatch.setattr(Trace, "_compute", compute)

    def fit(**more):
        settings = {"likelihood": likelihood, "groups": list(groups), "optimizer": optimization.LBFGS(steps=4)}
        return GPRegressor(kernel, **settings).fit(X, y, **effort, **more)

    refusals = []
    for more in ({}, {"checkpoint": path}):
        try:
            whole = fit(**more)
            break
        except InvalidInputError as error:
            refusals.append(error)
    if refusals:
        assert len(refusals) == 2
        assert not count[0], refusals
        assert not path.exists()
        return
    needed, most[0], count[0] = count[0], 2, 0
    with pytest.raises(Killed):
        fit(checkpoint=path)
    assert path.exists()
    most[0], count[0] = 10**6, 0
    if exposure:
        with pytest.raises(InvalidInputError, match="belongs to another fit"):
            GPRegressor(**whole.get_params(deep=False)).fit(X, y, checkpoint=path)
        count[0] = 0
    resumed = fit(checkpoint=path)
    assert count[0] == needed - 2
    assert not path.exists()
    for one, other in zip(*(gp.predict_latent(NEW, return_std=True) for gp in (whole, resumed)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert resumed.history_.to_dict()["objective"] == whole.history_.to_dict()["objective"]


@pytest.mark.parametrize("noise", ["varying", "scaled", "auto"])
@pytest.mark.parametrize("likelihood", [one for one in TARGETS if one != "gaussian"])
def test_noise_that_is_learned_is_gaussian(likelihood, noise):
    with pytest.raises(InvalidInputError, match="noise"):
        GPRegressor(noise=noise, likelihood=likelihood).fit(X, TARGETS[likelihood])


@pytest.mark.parametrize(("name", "value"), [("noise", "varying"), ("likelihood", "gamma"), ("likelihood", "auto")])
def test_what_no_plan_foresees(name, value):
    with pytest.raises(InvalidInputError, match=f"plan of GPRegressor needs {name}="):
        GPRegressor(**{name: value}).plan(X, AMOUNTS)


@pytest.mark.parametrize("groups", [[], [1]], ids=str)
@pytest.mark.parametrize("likelihood", ["gaussian", "poisson"])
def test_rows_that_are_read_in_chunks(likelihood, groups):
    """What `fit_table` cannot do is refused; what it can has the answers of `fit`."""
    y = TARGETS[likelihood].astype(float)
    settings = {"likelihood": likelihood, "optimizer": None, "groups": groups, "inference": inference.Vecchia(N)}
    one = GPRegressor(SMOOTH, **settings)
    if groups:
        with pytest.raises(InvalidInputError, match=r"fit_table must have no kernels\.Group"):
            one.fit_table((X, y))
        return
    np.testing.assert_allclose(
        one.fit_table((X, y)).predict(NEW), GPRegressor(SMOOTH, **settings).fit(X, y).predict(NEW), rtol=1e-6
    )
