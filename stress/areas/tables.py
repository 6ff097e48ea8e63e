"""Fuzzed tables and targets in every container and file, fitted in every way; answers are compared with the oracle."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from stress.areas import classifiers, table_files
from stress.draw import Draw
from stress.drawn.containers import FIT, REFUSE, Given, put
from stress.drawn.rows import Rows, draw_rows
from stress.drawn.settings import draw_estimator
from stress.oracle.answers import as_answered, check_regressor
from stress.outcome import RIGHT, Lost, Wrong
from stress.scratch import scratch


def run(draw: Draw) -> str:
    """Run one case."""
    kind = draw.weighted({"regressor": 0.7, "classifier": 0.12, "file": 0.18})
    if kind == "classifier":
        return classifiers.run(draw)
    return table_files.run(draw) if kind == "file" else _regressor(draw)


def _regressor(draw: Draw) -> str:
    import gigagp

    rows = draw_rows(draw)
    given = put(draw, rows)
    settings = draw_estimator(draw, rows.X.shape)
    draw.note(settings)
    estimator = gigagp.GPRegressor(**{"kernel": gigagp.kernels.Matern(nu=1.5)} | settings)
    before = _copies(given)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            estimator.fit(given.X, given.y)
        except gigagp.errors.GigaGPError as error:
            if hasattr(estimator, "posterior_"):
                raise Lost("a refused fit left a posterior") from error
            if rows.is_tame and given.verdict == FIT and has_to_fit(settings, rows):
                raise Wrong(f"a tame table was refused: {type(error).__name__}: {error}") from error
            raise
    if given.verdict == REFUSE:
        raise Wrong(f"accepted what has no meaning: {' / '.join(draw.notes[:-1])}")
    check_unchanged(given, before)
    said = [one for one in caught if issubclass(one.category, gigagp.errors.GigaGPWarning)]
    if said:
        draw.note(f"warned: {said[0].message}")
    X, y = given.meant_X, as_answered(estimator, given.meant_X, given.meant_y)
    with scratch() as folder:
        check_regressor(estimator, X, y, draw, warned=bool(said), folder=folder)
    return RIGHT


def has_to_fit(settings: dict[str, Any], rows: Rows) -> bool:
    """Whether these settings suit any tame table."""
    from gigagp import inference

    chosen, kernel = settings["inference"], settings["kernel"]
    known = np.ndim(settings.get("noise_variance")) > 0
    if settings["dtype"] != "float64" or known:
        return False
    if not settings["standardize"]:
        return False
    plain = kernel is None or type(kernel).__name__ in ("RBF", "Matern", "RationalQuadratic")
    noise = settings.get("noise_variance")
    if isinstance(chosen, inference.Grid):
        return plain and rows.X.shape[1] <= 2 and bool(np.ptp(rows.X, axis=0).min() > 0)
    return plain and (noise is None or noise >= 1e-3)


def _copies(given: Given) -> list[Any]:
    """Return copies of arrays, for a later check that they have not been written to."""
    return [np.array(part, copy=True) if isinstance(part, np.ndarray) else None for part in (given.X, given.y)]


def check_unchanged(given: Given, before: list[Any]) -> None:
    """Raise `Lost` if a fit has written to the user's arrays."""
    for part, old in zip((given.X, given.y), before, strict=True):
        if old is not None and part.dtype.kind in "fiub" and not np.array_equal(np.asarray(part), old, equal_nan=True):
            raise Lost("the fit wrote to the user's array")
