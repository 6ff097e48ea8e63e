"""Fits under budgets of time, memory and steps: what a fit that was stopped says, and that its model is consistent."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from stress.draw import Draw
from stress.drawn.settings import draw_inference
from stress.drawn.small import draw_places, draw_size, draw_values, points_around, smooth_values
from stress.oracle import kernel as formulas
from stress.oracle.answers import check_against_dense
from stress.outcome import REFUSED, RIGHT, Wrong


def run(draw: Draw) -> str:
    """Run one case."""
    return draw.one_of([_time, _time, _steps, _memory])(draw)


def _problem(draw: Draw, most: int = 60) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    n, d = draw_size(draw, most), draw.whole(1, 3)
    X = draw_places(draw, n, d)
    y = draw.one_of([1.0, 1e4]) * (smooth_values(draw, X)[:, 0] + 0.1 * draw.rng.normal(size=n))
    settings: dict[str, Any] = {
        "kernel": draw_values(draw, d) if draw.chance(0.6) else None,
        "inference": draw_inference(draw, d),
        "mean": draw.one_of(["zero", "constant", "linear"]),
        "noise_variance": draw.one_of([None, 0.01, 0.1]),
        "hyperparameter_units": "standardized",
    }
    return X, y, settings


def _fit(draw: Draw, gp: Any, X: np.ndarray, y: np.ndarray) -> bool:
    from gigagp.errors import GigaGPWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gp.fit(X, y)
    said = [str(one.message) for one in caught if issubclass(one.category, GigaGPWarning)]
    if said:
        draw.note(f"warned: {said[0]}")
    return bool(said)


def _points(gp: Any, X: np.ndarray, draw: Draw) -> np.ndarray:
    new = points_around(draw, X)
    return new[:-2] if gp.posterior_.kind == "grid" else new


def _time(draw: Draw) -> str:
    from gigagp import GPRegressor, kernels, optimization

    X, y, settings = _problem(draw)
    seconds = draw.one_of([1e-9, 1e-3, 0.01, 0.05, "0.02s", "0.1s"])
    optimizer = draw.weighted({"auto": 0.6, optimization.Adam(steps=200): 0.2, optimization.LBFGS(steps=200): 0.2})
    if getattr(settings["inference"], "batch_size", None) is not None:
        optimizer = optimization.Adam(steps=200)
    if draw.chance(0.1):
        settings["kernel"] = draw.one_of(["auto", "choose", "average"])
        settings["inference"] = "auto"
    draw.note(f"time_budget {seconds!r}, {optimizer}, {settings}")
    gp = GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | settings, optimizer=optimizer, time_budget=seconds)
    said = _fit(draw, gp, X, y)
    ended, text = gp.history_.interrupted, gp.describe()
    draw.note(f"ended by {ended!r} after {len(gp.history_)} steps")
    if ended not in ("", "time budget"):
        raise Wrong(f"a time budget ended as {ended!r}")
    if (ended == "time budget") != ("it ended the learning" in text):  # a warning may say that it ended the last solve
        raise Wrong(f"describe() does not say how the fit ended ({ended!r}): {text}")
    check_against_dense(gp, X, y, _points(gp, X, draw), draw, said)
    _check_reread(gp, X, y, draw)
    return RIGHT


def _check_reread(gp: Any, X: np.ndarray, y: np.ndarray, draw: Draw) -> None:
    """Compare a stopped fit with one at the hyperparameters that it reports, where that determines the answers."""
    from gigagp import GPRegressor

    if gp.posterior_.kind != "exact" or not isinstance(gp.noise_variance_, float):
        return
    again = GPRegressor(
        gp.kernel_,
        gp.inference_,
        None,
        mean=gp.mean,
        noise_variance=gp.noise_variance_,
        hyperparameter_units=gp.hyperparameter_units,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again.fit(X, y)
    new = points_around(draw, X)
    (mean, std), (own, own_std) = (one.predict(new, return_std=True) for one in (gp, again))
    scale = float(gp.scaling_.y_scale[0]) + float(np.abs(mean).max())
    white = formulas.white(gp.posterior_.model.kernel.to_dict(), gp.scaling_.inputs(X))
    noise = float(gp.posterior_.model.noise_variance.min()) + float(white.min())
    prior = float(gp.posterior_.model.kernel.diagonal(gp.posterior_.places()).max())
    allowed = 1e-13 * len(X) * (1 + prior / noise) + 1e-10
    off = max(np.abs(mean - own).max() / scale, np.abs((std / scale) ** 2 - (own_std / scale) ** 2).max())
    if off > allowed:
        raise Wrong(f"a fit at the reported hyperparameters is another model: off by {off:.3g} (allowed {allowed:.2g})")


def _steps(draw: Draw) -> str:
    """Check that few steps are as many as were asked for, and that the model is that of the reported numbers."""
    from gigagp import GPRegressor, kernels, optimization

    X, y, settings = _problem(draw)
    count = draw.whole(1, 4)
    optimizer = draw.one_of([optimization.Adam, optimization.LBFGS])(steps=count)
    if getattr(settings["inference"], "batch_size", None) is not None:
        optimizer = optimization.Adam(steps=count)
    draw.note(f"{optimizer}, {settings}")
    gp = GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | settings, optimizer=optimizer)
    said = _fit(draw, gp, X, y)
    if type(optimizer).__name__ == "Adam" and len(gp.history_) > count + 1:
        raise Wrong(f"{count} steps were asked for, and {len(gp.history_)} made")
    check_against_dense(gp, X, y, _points(gp, X, draw), draw, said)
    _check_reread(gp, X, y, draw)
    return RIGHT


def _memory(draw: Draw) -> str:
    """Check that a budget of memory changes answers by rounding only, or is refused with the bytes that are needed."""
    from gigagp import GPRegressor
    from gigagp.errors import MemoryBudgetError

    X, y, settings = _problem(draw, most=150)
    budget = draw.one_of([1, 1000, "20kB", 100_000, "1MB", "4MiB", "1GiB"])
    draw.note(f"memory_budget {budget!r}, {settings}")
    gp = GPRegressor(**settings, optimizer=None, memory_budget=budget)
    try:
        said = _fit(draw, gp, X, y)
        new = _points(gp, X, draw)
        gp.predict(new, return_std=True)
    except MemoryBudgetError as error:
        if "memory" not in str(error):
            raise Wrong(f"the refusal does not speak of memory: {error}") from error
        return REFUSED
    if gp.posterior_.kind not in ("pathwise", "quadruply stochastic"):  # solves may take another way
        free = GPRegressor(**settings, optimizer=None)
        _fit(draw, free, X, y)
        # Inducing points are chosen among as many rows as the budget holds.
        points = [getattr(one.posterior_, "inducing_points", np.empty(0)) for one in (gp, free)]
        same = free.posterior_.kind == gp.posterior_.kind and str(free.solver_) == str(gp.solver_)
        if same and np.array_equal(*points):
            (mean, std), (own, own_std) = (one.predict(new, return_std=True) for one in (gp, free))
            scale = float(gp.scaling_.y_scale[0]) + float(np.abs(own).max())
            off = max(np.abs(mean - own).max() / scale, np.abs((std / scale) ** 2 - (own_std / scale) ** 2).max())
            if off > 1e-6:
                raise Wrong(f"a budget of memory changes the answers of {gp.posterior_.kind} by {off:.3g}")
    check_against_dense(gp, X, y, new, draw, said)
    return RIGHT
