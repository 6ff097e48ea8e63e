"""Several outputs of unlike scales and shapes: each as in a fit of it alone, or all by the dense answer they share."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import clone

from stress.draw import Draw
from stress.drawn.settings import draw_inference, draw_optimizer
from stress.drawn.small import draw_places, draw_size, draw_values, points_around, smooth_values
from stress.oracle.answers import check_against_dense
from stress.outcome import RIGHT, Wrong


def run(draw: Draw) -> str:
    """Run one case."""
    from gigagp import GPRegressor, kernels
    from gigagp.errors import GigaGPWarning

    n, d, t = draw_size(draw, 40), draw.whole(1, 3), draw.whole(2, 4)
    X = draw_places(draw, n, d)
    y = draw_outputs(draw, X, t)
    way = draw.one_of(["independent", "auto", "shared"])
    settings: dict[str, Any] = {
        "kernel": draw_values(draw, d) if draw.chance(0.8) else None,
        "inference": draw_inference(draw, d),
        "optimizer": draw_optimizer(draw) if draw.chance(0.3) and way != "shared" else None,
        "mean": draw.one_of(["zero", "constant", "linear"]),
        "noise_variance": draw.one_of([None, 0.01, 0.1]),
        "standardize": True,
        "random_state": draw.whole(0, 3),
        "hyperparameter_units": "standardized",
    }
    if getattr(settings["inference"], "batch_size", None) is not None:
        settings["optimizer"] = None
    if way != "shared":
        settings["target_transform"] = draw.weighted({"none": 0.8, "yeo-johnson": 0.1, "spline": 0.1})
    draw.note(f"{t} outputs, {way}, {settings}")
    gp = GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | settings, outputs=way)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gp.fit(X, y)
    said = [str(one.message) for one in caught if issubclass(one.category, GigaGPWarning)]
    if said:
        draw.note(f"warned: {said[0]}")
    if gp.outputs_ != ("shared" if way == "shared" else "independent") or "output" not in gp.describe():
        raise Wrong(f"outputs_ is {gp.outputs_!r} for {way!r}, or describe() does not say so")
    new = points_around(draw, X)
    if not isinstance(gp.posterior_, tuple) and gp.posterior_.kind == "grid":
        new = new[:-2]  # a grid ends somewhere
    elif isinstance(gp.posterior_, tuple) and gp.posterior_[0].kind == "grid":
        new = new[:-2]
    _check_shapes(gp, new, y)
    if gp.outputs_ == "shared":
        check_against_dense(gp, X, y, new, draw, bool(said))
        return RIGHT
    for k in range(t):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            alone = clone(gp).fit(X, y[:, k].copy())
        for name, (found, wanted) in _pairs(gp, alone, new, y, k).items():
            if not np.array_equal(found, wanted, equal_nan=True):
                raise Wrong(f"{name} of output {k} of all: {found!r} for {wanted!r}")
    return RIGHT


def draw_outputs(draw: Draw, X: np.ndarray, count: int) -> np.ndarray:
    """Return targets of unlike scales, shapes and noise, shape (n, count)."""
    f = smooth_values(draw, X, count)
    f[:, 0] = f[:, 0] ** 3
    noise = draw.rng.choice([0.0, 0.01, 0.5], count) * draw.rng.normal(size=f.shape)
    unit = 10.0 ** draw.rng.integers(-9, 10, count)
    return (f + noise + draw.rng.choice([0.0, 10.0], count)) * unit


def _check_shapes(gp: Any, new: np.ndarray, y: np.ndarray) -> None:
    m, t = len(new), y.shape[1]
    mean, covariance = gp.predict(new, return_cov=True)
    samples = gp.sample_y(new, 3, random_state=1)
    shapes = {
        "mean": (mean.shape, (m, t)),
        "covariance": (covariance.shape, (m, m, t)),
        "samples": (samples.shape, (m, t, 3)),
        "quantiles": (gp.predict_quantile(new, [0.1, 0.9]).shape, (m, t, 2)),
        "log densities": (gp.predictive_log_density(new, mean).shape, (m, t)),
    }
    wrong = {name: pair for name, pair in shapes.items() if pair[0] != pair[1]}
    if wrong:
        raise Wrong(f"shapes of several outputs: {wrong}")
    if not (np.isfinite(samples).all() and np.isfinite(covariance).all()):
        raise Wrong("samples or covariances of several outputs are not finite")


def _pairs(gp: Any, alone: Any, new: np.ndarray, y: np.ndarray, k: int) -> dict[str, tuple[Any, Any]]:
    """Return the answers about an output of the fit of all and of the fit of it alone."""
    from gigagp.errors import InvalidInputError

    mean, std = gp.predict(new, return_std=True)
    own_mean, own_std = alone.predict(new, return_std=True)
    found = {
        "mean": (mean[:, k], own_mean),
        "std": (std[:, k], own_std),
        "std with noise": (
            gp.predict(new, return_std=True, include_noise=True)[1][:, k],
            alone.predict(new, return_std=True, include_noise=True)[1],
        ),
        "quantile": (gp.predict_quantile(new, 0.9)[:, k], alone.predict_quantile(new, 0.9)),
        "log density": (gp.predictive_log_density(new, mean)[:, k], alone.predictive_log_density(new, own_mean)),
        "noise variance": (gp.noise_variance_[k], alone.noise_variance_),
    }
    try:
        found["row left out"] = gp.leave_one_out().mean[:, k], alone.leave_one_out().mean
    except InvalidInputError as error:
        if "leave_one_out of" not in str(error):
            raise
    return found
