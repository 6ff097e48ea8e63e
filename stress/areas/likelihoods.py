"""Counts, labels and noise with heavy tails: latent moments, targets, quantiles and evidence against dense algebra."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from scipy import special

from stress.draw import Draw
from stress.drawn.small import draw_places, draw_size, draw_values, points_around, smooth_values
from stress.oracle import kernel as formulas
from stress.oracle.answers import check_against_dense
from stress.oracle.kriging import Answer
from stress.oracle.latent import Latent, density_of
from stress.outcome import RIGHT, Wrong

#: Relative error that searches for modes, and for the best lower bound, may leave.
_MODE, _BOUND = 1e-6, 2e-3
#: The same at most where steps are not Newton's; see `Latent.search_error`.
_HEAVY = 1e-4
#: Step of rules for expectations, in standard deviations.
_STEP = 0.006
#: Kernels that have random features, and those rough enough for few neighbours.
_WITH_FEATURES = ("RBF", "Matern12", "Matern32", "Matern52", "RationalQuadratic", "Periodic", "Constant")
_ROUGH = ("Matern12", "Matern32")


def run(draw: Draw) -> str:
    """Run one case."""
    way = draw.weighted({"laplace": 0.4, "few neighbours": 0.1, "bound": 0.2, "weights": 0.15, "classes": 0.15})
    draw.note(way)
    return {"weights": _weights, "classes": _classes}.get(way, _latent)(draw, way)


def _latent(draw: Draw, way: str) -> str:
    """Check Laplace's approximation and the best lower bound."""
    from gigagp import GPRegressor, inference
    from gigagp.errors import GigaGPWarning

    n, d = draw_size(draw, 150 if way == "bound" else 300), draw.whole(1, 3)
    X = draw_places(draw, n, d)
    names = ["poisson", "logistic", "probit", "laplace"] + (["student-t"] if way == "laplace" else [])
    likelihood = draw.one_of(names)
    t = 2 if draw.chance(0.15) else 1
    y = draw_targets(draw, X, likelihood, t)
    rough = _ROUGH if way == "few neighbours" else _WITH_FEATURES if way == "bound" else ()
    kernel = draw_values(draw, d, leaves=rough)
    widest, functions = max(n - 1, 1), draw.one_of([20, 200]) if draw.chance(0.7) else None
    # by default the covariance for noise is not that of the functions
    weights = {"start_rows": 0} if likelihood == "laplace" else {}
    chosen = {
        "laplace": inference.Vecchia(widest),
        "few neighbours": inference.Vecchia(min(20, widest), min(40, n)),
        "bound": inference.QuadruplyStochastic(n_basis=functions, **weights),
    }[way]
    settings: dict[str, Any] = {
        "mean": "zero",
        "standardize": draw.chance(0.8),
        "outputs": "shared",
        "random_state": draw.whole(0, 2),
    }
    if likelihood in ("laplace", "student-t"):
        settings["noise_variance"] = draw.one_of([0.01, 0.1, 1.0])
        settings["mean"] = draw.one_of(["zero", "constant", "linear"])
        settings["standardize"] |= way == "bound"  # far from the targets, the bound has no curvature to search by
    draw.note(f"{likelihood}, {chosen}, {settings}")
    gp = GPRegressor(*(kernel, chosen, None), likelihood=likelihood, hyperparameter_units="standardized", **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gp.fit(X, y if t > 1 else y[:, 0])
        new = points_around(draw, X)
        mean, std = gp.predict_latent(new, return_std=True)
    said = [str(one.message) for one in caught if issubclass(one.category, GigaGPWarning)]
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std >= 0).all()):
        raise Wrong(f"latent moments not finite: {mean!r}, {std!r}")
    check_targets(gp, new, y, draw)
    if said:
        draw.note(f"warned: {said[0]}")
        return RIGHT
    density, information = density_of(gp.likelihood_)
    if way == "bound":
        problem = Latent.of(gp, X, y, new, _functions(gp))
        answer, share = problem.at_bound(density, _variance_given_trend(gp, X)), _BOUND
    else:
        problem = Latent.of(gp, X, y, new)
        answer, share = problem.laplace(density, information), _MODE
    if answer is None:
        draw.note("no dense answer")
        return RIGHT
    if way == "few neighbours":
        _check_roughly(gp, answer, mean, std)
        return RIGHT
    of_mean = share
    if way == "laplace" and information is not None:
        of_mean = max(_MODE, min(_HEAVY, problem.search_error(density, information, answer.value)))
    _check_latent(gp, answer, problem.prior, mean, std, (of_mean, share), f"{likelihood} by {way}")
    if way == "laplace":
        found = gp.log_marginal_likelihood(standardized=True).value
        allowed = 1e-6 * (1 + abs(answer.value)) + answer.value_error
        if not abs(found - answer.value) <= allowed:
            raise Wrong(f"evidence of {likelihood}: {found!r} for {answer.value!r} (allowed {allowed:.2g})")
    return RIGHT


def draw_targets(draw: Draw, X: np.ndarray, likelihood: str, count: int) -> np.ndarray:
    """Return targets of a likelihood, shape (n, count)."""
    f = draw.one_of([0.3, 1.0, 3.0]) * smooth_values(draw, X, count)
    if likelihood == "poisson":
        return draw.rng.poisson(np.exp(np.minimum(f + draw.one_of([-2.0, 1.0, 5.0]), 12.0))).astype(float)
    if likelihood in ("logistic", "probit"):
        return np.where(draw.rng.uniform(size=f.shape) < special.expit(2 * f + draw.one_of([0.0, 2.0])), 1.0, -1.0)
    heavy = draw.rng.standard_t(2, f.shape) if likelihood == "student-t" else draw.rng.laplace(size=f.shape)
    return (f + draw.one_of([0.1, 0.5]) * heavy) * draw.one_of([1.0, 1e-6, 1e6]) + draw.one_of([0.0, 100.0])


def _functions(gp: Any) -> Any:
    """Return the functions that stand for the kernel, of unit prior precision."""
    basis = gp.posterior_.basis

    def values(points: np.ndarray) -> np.ndarray:
        return basis.columns(torch.from_numpy(points), torch.arange(basis.size)).double().numpy()

    return values


def _variance_given_trend(gp: Any, X: np.ndarray) -> np.ndarray:
    """Return the latent variance at rows and the estimated coefficients of the mean, in units of the model."""
    rows = torch.from_numpy(gp.scaling_.inputs(X))
    return gp.posterior_.mean_and_variance_given_trend(rows)[1].double().numpy()


def _in_model_units(gp: Any, mean: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaling, m = gp.scaling_, len(mean)
    found = (np.reshape(mean, (m, -1)) - scaling.y_centre) / scaling.y_scale
    return found, np.square(np.reshape(std, (m, -1))[:, 0] / scaling.y_scale[0])


def _check_latent(
    gp: Any,
    answer: Answer,
    prior: np.ndarray,
    mean: np.ndarray,
    std: np.ndarray,
    shares: tuple[float, float],
    what: str,
) -> None:
    """Compare latent means and variances, with relative errors that the search may leave in each."""
    found, variance = _in_model_units(gp, mean, std)
    back = 1e-13 * (1 + np.abs(gp.scaling_.y_centre / gp.scaling_.y_scale).max())
    size = np.sqrt(np.maximum(answer.variance, 0))
    allowed = answer.mean_error + shares[0] * (np.sqrt(prior) + size + np.abs(answer.mean).max(1)) + back
    off = np.abs(found - answer.mean).max(1)
    if not (off <= allowed).all():
        worst = int(np.argmax(off / allowed))
        raise Wrong(
            f"latent mean of {what}: {found[worst]!r} for {answer.mean[worst]!r} (allowed {allowed[worst]:.2g}, prior "
            f"variance {prior[worst]:.3g})"
        )
    allowed = answer.variance_error + shares[1] * (prior + np.maximum(answer.variance, 0)) + back
    off = np.abs(variance - np.maximum(answer.variance, 0))
    if not (off <= allowed).all():
        worst = int(np.argmax(off / allowed))
        raise Wrong(
            f"latent variance of {what}: {variance[worst]!r} for {answer.variance[worst]!r} (allowed "
            f"{allowed[worst]:.2g})"
        )


def _check_roughly(gp: Any, answer: Answer, mean: np.ndarray, std: np.ndarray) -> None:
    """Check that few neighbours give about the dense answer: many deviations away there is no approximation."""
    found, variance = _in_model_units(gp, mean, std)
    known = np.isfinite(answer.mean_error) & np.isfinite(answer.variance_error)
    right = np.maximum(answer.variance, 0)[known]
    apart = np.abs(found[known] - answer.mean[known]).max(1) / np.sqrt(right + answer.variance_error[known] + 1e-9)
    ratio = np.sqrt((variance[known] + 1e-9) / (right + answer.variance_error[known] + 1e-9))
    if not (apart <= 2.0).all() or not ((ratio <= 2.0) & (ratio >= 0.5)).all():
        raise Wrong(f"few neighbours: means {apart!r} deviations off, deviations {ratio!r} of the dense ones")


def _nodes(mean: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return latent values (..., q) for expectations under normal distributions, and their weights (q,)."""
    nodes = _STEP * np.arange(-2000, 2001)
    return mean[..., None] + std[..., None] * nodes, special.softmax(-0.5 * nodes**2)


def _rule_error(std: np.ndarray) -> float:
    """Return the error of the rule of `_nodes` for probabilities, which are steps beside large deviations."""
    return 1e-8 if std.max() * _STEP < 0.3 else _STEP


def _probability(likelihood: Any, f: np.ndarray) -> np.ndarray:
    """Return the probability of the second class at latent values."""
    return np.exp(density_of(likelihood)[0](np.ones(1), f, np.ones(1))[0])


def check_targets(gp: Any, new: np.ndarray, y: np.ndarray, draw: Draw) -> None:
    """Compare answers about targets with what the latent moments mean for them."""
    m, likelihood = len(new), gp.likelihood_
    f, std = (np.reshape(part, (m, -1)) for part in gp.predict_latent(new, return_std=True))
    mean, of_mean = (np.reshape(part, (m, -1)) for part in gp.predict(new, return_std=True))
    of_target = np.reshape(gp.predict(new, return_std=True, include_noise=True)[1], (m, -1))
    if likelihood.has_noise:
        if not (np.array_equal(mean, f) and np.array_equal(of_mean, std)):
            raise Wrong(f"predict is not predict_latent for {likelihood.name} noise")
        if not (of_target >= std).all():
            raise Wrong("a measurement is less uncertain than the function")
        return
    if likelihood.name == "poisson":
        with np.errstate(over="ignore", invalid="ignore"):
            rate = np.exp(f + std**2 / 2)
            right = rate, rate * np.sqrt(np.expm1(std**2)), np.sqrt(rate**2 * np.expm1(std**2) + rate)
    else:
        places, weights = _nodes(f, std)
        sign = _probability(likelihood, places) - _probability(likelihood, -places)
        centre = sign @ weights
        right = centre, np.sqrt((sign - centre[..., None]) ** 2 @ weights), np.sqrt(np.maximum(1 - centre**2, 0))
    for name, found, wanted in zip(("mean", "std", "std with noise"), (mean, of_mean, of_target), right, strict=True):
        if np.isfinite(wanted).all() and not np.allclose(found, wanted, rtol=1e-6, atol=_rule_error(std)):
            raise Wrong(f"{name} of {likelihood.name} targets: {found!r} for {wanted!r}")
    if draw.chance(0.3):
        _check_distribution(gp, new, f, std, y, draw)


def _check_distribution(gp: Any, new: np.ndarray, f: np.ndarray, std: np.ndarray, y: np.ndarray, draw: Draw) -> None:
    """Check log densities, and quantiles of counts."""
    density, _ = density_of(gp.likelihood_)
    given = y[draw.rng.integers(0, len(y), len(new))]
    shape = given if gp.posterior_.n_targets > 1 else given[:, 0]
    found = np.reshape(gp.predictive_log_density(new, shape), given.shape)
    places, weights = _nodes(f, std)
    logs = density(given[..., None], places, np.ones(1))[0]
    wanted = special.logsumexp(logs, b=weights, axis=-1)
    # the rule sees the density, and its ends are far enough apart
    narrow = (std * _STEP < 0.3 / np.sqrt(np.abs(given) + 1)) & (wanted > -40)
    if not np.allclose(found[narrow], wanted[narrow], rtol=1e-6, atol=1e-6):
        raise Wrong(f"log density of {gp.likelihood_.name} targets: {found!r} for {wanted!r}")
    if gp.likelihood_.name != "poisson":
        return
    level = draw.one_of([0.025, 0.5, 0.9])
    count = np.reshape(gp.predict_quantile(new, level), given.shape)
    upper, lower = (
        special.pdtr(np.maximum(k, 0)[..., None], np.exp(np.minimum(places, 700))) for k in (count, count - 1)
    )
    narrow = std * _STEP < 0.3 / np.sqrt(count + 1)
    at, below = upper @ weights, np.where(count > 0, lower @ weights, 0.0)
    if not ((at >= level - 1e-6) & (below <= level + 1e-6))[narrow].all():
        raise Wrong(f"quantile {level} of counts: {count!r} with probabilities {below!r} to {at!r}")


def _weights(draw: Draw, way: str) -> str:
    """Check Student-t noise by weights of rows, which is Gaussian noise of known variances."""
    from gigagp import GPRegressor, inference, likelihoods
    from gigagp.errors import GigaGPWarning

    n, d = draw_size(draw, 60), draw.whole(1, 3)
    X = draw_places(draw, n, d)
    y = draw_targets(draw, X, "student-t", 1)[:, 0]
    chosen = draw.one_of([inference.Exact(), inference.Exact(), "auto", inference.Iterative(n_samples=8)])
    df = draw.one_of([None, 2.5, 4.0, 30.0])
    kernel = draw_values(draw, d)
    settings = {"mean": draw.one_of(["zero", "constant", "linear"]), "noise_variance": draw.one_of([0.01, 0.1, 1.0])}
    draw.note(f"{chosen}, df {df}, {settings}")
    gp = GPRegressor(
        *(kernel, chosen, None), likelihood=likelihoods.StudentT(df), hyperparameter_units="standardized", **settings
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gp.fit(X, y)
    said = [one for one in caught if issubclass(one.category, GigaGPWarning)]
    weights, noise = gp.noise_weights_, gp.posterior_.model.student
    if not (np.isfinite(weights).all() and (weights > 0).all() and (weights <= (noise.df + 1) / noise.df + 1e-9).all()):
        raise Wrong(f"weights of rows: {weights!r}")
    new = points_around(draw, X)
    check_against_dense(gp, X, y, new, draw, bool(said))
    errors = (y - gp.predict(X)) / gp.scaling_.y_scale[0]
    squares = errors**2 + _variance_given_trend(gp, X)
    right = (noise.df + 1) / (noise.df + squares / noise.squared_scale)
    has_white = formulas.white(
        gp.posterior_.model.kernel.to_dict(), gp.scaling_.inputs(X)
    ).any()  # has a part of errors
    if gp.posterior_.kind == "exact" and not said and not has_white and not np.abs(weights - right).max() <= 0.05:
        raise Wrong(f"weights of rows: {weights!r} for {right!r}")
    return RIGHT


def _classes(draw: Draw, way: str) -> str:
    """Check classifiers: latent functions by dense algebra, and probabilities from them."""
    from gigagp import GPClassifier, inference
    from gigagp.errors import GigaGPWarning

    n, d = draw_size(draw, 150), draw.whole(1, 3)
    X = draw_places(draw, n, d)
    f = smooth_values(draw, X)[:, 0] + 0.3 * draw.rng.normal(size=n)
    n_classes = draw.weighted({2: 0.7, 3: 0.3})
    codes = np.argsort(np.argsort(f)) * n_classes // n
    labels = np.array(["a", "b", "c"])[codes]
    kernel = draw_values(draw, d)
    likelihood, standardize = draw.one_of(["logistic", "probit"]), draw.chance(0.8)
    draw.note(f"{n_classes} classes, {likelihood}, standardize {standardize}")
    classifier = GPClassifier(
        *(kernel, inference.Vecchia(n - 1), None),
        likelihood=likelihood,
        standardize=standardize,
        hyperparameter_units="standardized",
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        classifier.fit(X, labels)
    said = [one for one in caught if issubclass(one.category, GigaGPWarning)]
    new = points_around(draw, X)
    gp = classifier.latent_
    mean, std = gp.predict_latent(new, return_std=True)
    signs = np.where(codes[:, None] == (np.arange(n_classes) if n_classes > 2 else 1), 1.0, -1.0)
    density, _ = density_of(gp.likelihood_)
    problem = Latent.of(gp, X, signs, new)
    answer = None if said else problem.laplace(density, None)
    if answer is not None:
        _check_latent(gp, answer, problem.prior, mean, std, (_MODE, _MODE), f"{n_classes} classes, {likelihood}")
    f, spread = np.reshape(mean, (len(new), -1)), np.reshape(std, (len(new), -1))
    places, node_weights = _nodes(f, spread)
    own = _probability(gp.likelihood_, places) @ node_weights
    wanted = np.concatenate([1 - own, own], 1) if n_classes == 2 else own / own.sum(1, keepdims=True)
    found = classifier.predict_proba(new)
    if not np.allclose(found, wanted, rtol=1e-6, atol=_rule_error(spread)):
        raise Wrong(f"probabilities of {n_classes} classes: {found!r} for {wanted!r}")
    best = f.argmax(1) if n_classes > 2 else (f[:, 0] > 0).astype(int)
    if not np.array_equal(classifier.predict(new), classifier.classes_[best]):
        raise Wrong("predict is not the class of the largest median")
    return RIGHT
