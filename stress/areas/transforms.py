"""Mean functions of every kind, and transforms of the target: answers in the target's units against dense algebra."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy import special

from stress.draw import Draw
from stress.drawn.means import QuadraticMean, ramp
from stress.drawn.settings import draw_inference
from stress.drawn.small import draw_places, draw_size, draw_values, points_around, smooth_values
from stress.oracle.answers import check_against_dense
from stress.outcome import RIGHT, Wrong

#: Step of rules for expectations, in standard deviations, and their end: most of the variance of exp(s z) comes from
#: 2 s of them above the mean.
_STEP, _END = 0.02, 45.0
#: Error of the package's quadrature as a share of a standard deviation: splines have kinks in their second derivatives.
_QUADRATURE = 0.02


def run(draw: Draw) -> str:
    """Run one case."""
    return _transform(draw) if draw.chance(0.5) else _mean(draw)


def _mean(draw: Draw) -> str:
    """Check mean functions with every inference method."""
    from gigagp import GPRegressor

    n, d = draw_size(draw, 60), draw.whole(1, 3)
    X = draw_places(draw, n, d)
    unit = draw.one_of([1.0, 1e-3, 1e6])
    count = 2 if draw.chance(0.15) else 1
    mean = {
        "zero": "zero",
        "constant": "constant",
        "linear": "linear",
        "quadratic": QuadraticMean(),
        "known": ramp,
    }[draw.one_of(["zero", "constant", "linear", "quadratic", "known"])]
    offset = ramp(X) if mean is ramp else np.zeros(n)
    trend = draw.one_of([0.0, 1.0, 100.0]) * (X - X.mean(0)) @ (1 / np.maximum(np.ptp(X, axis=0), 1e-300))
    y = unit * (smooth_values(draw, X, count) + trend[:, None] + 0.1 * draw.rng.normal(size=(n, count)))
    kernel = draw_values(draw, d)
    settings: dict[str, Any] = {
        "inference": draw_inference(draw, d),
        "mean": mean,
        "noise_variance": draw.one_of([0.003, 0.1, 1.0]),
        "standardize": draw.chance(0.8) if unit == 1.0 else True,
        "dtype": "float64",
    }
    draw.note(settings)
    gp = GPRegressor(kernel, optimizer=None, hyperparameter_units="standardized", outputs="shared", **settings)
    said = _fitted(gp, X, (y + offset[:, None]) if count > 1 else (y[:, 0] + offset), draw)
    new = points_around(draw, X)
    if gp.posterior_.kind == "grid":
        new = new[:-2]  # a grid ends somewhere
    values = y if count > 1 else y[:, 0]
    check_against_dense(gp, X, values, new, draw, said, offset=ramp(new) if mean is ramp else None)
    return RIGHT


def _transform(draw: Draw) -> str:
    """Check transforms of the target."""
    from gigagp import GPRegressor, inference

    n, d = draw_size(draw, 40), draw.whole(1, 3)
    X = draw_places(draw, n, d)
    name = draw.one_of(["log", "yeo-johnson", "spline", "auto"])
    latent = draw.one_of([0.3, 1.0, 2.0]) * (smooth_values(draw, X)[:, 0] + 0.2 * draw.rng.normal(size=n))
    shape = draw.one_of(["exp", "cube", "plain", "half zeros"])
    y = {
        "exp": np.exp(latent),
        "cube": latent**3,
        "plain": latent,
        "half zeros": np.exp(np.maximum(latent, 0)) - 1,
    }[shape]
    y = y * draw.one_of([1.0, 1.0, 1e-6, 1e6])
    if name == "log":
        y = np.abs(y) + 1e-3 * np.abs(y).max() + 1e-12
    kernel = draw_values(draw, d)
    settings: dict[str, Any] = {
        "target_transform": name,
        "inference": draw.one_of(["auto", inference.Exact(), inference.Vecchia(n), inference.Iterative(n_samples=8)]),
        "mean": draw.one_of(["zero", "constant", "linear"]),
        "noise_variance": draw.one_of([0.003, 0.1, 1.0]),
        "standardize": draw.chance(0.85),
    }
    draw.note(f"{shape}, {settings}")
    gp = GPRegressor(kernel, optimizer=None, hyperparameter_units="standardized", **settings)
    said = _fitted(gp, X, y, draw)
    transform = gp.target_transform_
    draw.note(transform.words())
    z = _forward(transform, y)
    if not np.allclose(z, transform.forward(y), rtol=1e-9, atol=1e-9 * np.abs(z).max()):
        raise Wrong(f"the transform {transform.words()} is not its formula")
    new = points_around(draw, X)
    check_against_dense(gp, X, z, new, draw, said)
    if not transform.is_identity:
        _check_answers(gp, transform, new, y, draw)
    return RIGHT


def _fitted(gp: Any, X: np.ndarray, y: np.ndarray, draw: Draw) -> bool:
    """Fit; return whether there was a warning."""
    from gigagp.errors import GigaGPWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gp.fit(X, y)
    said = [str(one.message) for one in caught if issubclass(one.category, GigaGPWarning)]
    if said:
        draw.note(f"warned: {said[0]}")
    return bool(said)


def _forward(transform: Any, y: np.ndarray) -> np.ndarray:
    if transform.kind == "log":
        return np.log(y)
    if transform.kind != "yeo-johnson":
        return np.asarray(transform.forward(y))
    # eq. 2.1 of Yeo and Johnson 2000, about a centre
    t, p, c, s = (y - transform.centre) / transform.scale, transform.power, transform.centre, transform.scale
    above, below = np.maximum(t, 0), np.maximum(-t, 0)
    right = np.log1p(above) if p == 0 else ((1 + above) ** p - 1) / p
    left = np.log1p(below) if p == 2 else ((1 + below) ** (2 - p) - 1) / (2 - p)
    return np.asarray(c + s * (right - left))


def _check_answers(gp: Any, transform: Any, new: np.ndarray, y: np.ndarray, draw: Draw) -> None:
    """Compare answers in the target's units with what the latent moments mean for them, by fine quadrature."""
    f, std = gp.predict_latent(new, return_std=True)
    white = gp.predict(new, return_std=True, include_noise=True)[1]
    noise = _noise(gp, new)
    nodes = np.arange(-_END, _END + _STEP / 2, _STEP)
    roots = np.sqrt(special.softmax(-0.5 * nodes**2))  # a weight may be below float64 where a target is huge
    with np.errstate(over="ignore", invalid="ignore"):
        whole = np.sqrt(std**2 + noise)
        targets = transform.inverse(f[:, None] + whole[:, None] * nodes)
        centre = (targets * roots) @ roots
        spread = np.sqrt(np.square((targets - centre[:, None]) * roots).sum(1))
        few = nodes[::7]
        inner = np.sqrt(special.softmax(-0.5 * few**2))
        places = f[:, None, None] + std[:, None, None] * few[:, None] + np.sqrt(noise)[:, None, None] * few
        of_function = (transform.inverse(places) * inner) @ inner
        of_mean = np.sqrt(np.square((of_function - centre[:, None]) * inner).sum(1))
    mean, found = gp.predict(new, return_std=True)
    known = np.isfinite(spread) & np.isfinite(of_mean) & (whole < 6 * gp.scaling_.y_scale[0])
    if transform.kind == "log":
        known &= whole < 3
    size = spread + 1e-9 * np.abs(centre)
    for what, one, right in (("mean", mean, centre), ("std", found, of_mean), ("std with noise", white, spread)):
        off = (np.abs(one - right) / size)[known]
        if not (off <= _QUADRATURE).all():
            raise Wrong(f"{what} after {transform.words()}: {one!r} for {right!r} (known {known!r})")
    level = draw.one_of([0.025, 0.5, 0.9])
    quantile = gp.predict_quantile(new, level)
    at = f + whole * special.ndtri(level)
    if not (np.abs(transform.forward(quantile) - at) <= 1e-6 * (whole + np.abs(at) + gp.scaling_.y_scale[0])).all():
        raise Wrong(f"quantile {level} after {transform.words()}: {quantile!r}")
    given = y[draw.rng.integers(0, len(y), len(new))]
    step = (
        1e-5 * (np.abs(given) + 1e-3 * np.ptp(y) + 1e-9 * gp.scaling_.y_scale[0])
        if transform.kind != "log"
        else 1e-6 * given
    )
    slope = (transform.forward(given + step) - transform.forward(given - step)) / (2 * step)
    gap = (transform.forward(given) - f) / whole
    right = -0.5 * (np.log(2 * np.pi) + 2 * np.log(whole) + gap**2) + np.log(slope)
    density = gp.predictive_log_density(new, given)
    if not (np.abs(density - right) <= 1e-3 + 1e-6 * gap**2).all():
        raise Wrong(f"log density after {transform.words()}: {density!r} for {right!r}")


def _noise(gp: Any, new: np.ndarray) -> np.ndarray:
    """Return the noise variance of new rows in squared units of the transformed target."""
    from stress.oracle import kernel as formulas

    model = gp.posterior_.model
    white = formulas.white(model.kernel.to_dict(), gp.scaling_.inputs(new))
    return np.asarray((white + float(model.noise_variance)) * gp.scaling_.y_scale[0] ** 2)
