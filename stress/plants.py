"""Bugs that can be planted to check that the harness finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Setter = Callable[[Any, str, Any], None]


def plant(name: str, put: Setter = setattr) -> str:
    """Plant a bug in this process; return the area that has to find it.

    Parameters
    ----------
    name : str
        One of `PLANTS`.
    put : callable
        ``setattr``, or pytest's version, which is undone after a test.
    """
    if name not in PLANTS:
        msg = f"--plant must be one of {', '.join(PLANTS)}; got {name!r}"
        raise SystemExit(msg)
    area, action = PLANTS[name]
    action(put)
    return area


def _wide_variance(put: Setter) -> None:
    """Make variances a tenth too large."""
    from gigagp import GPRegressor

    spread = GPRegressor._spread
    put(GPRegressor, "_spread", lambda self, variance: spread(self, 1.1 * variance))


def _shifted_mean(put: Setter) -> None:
    """Shift means by a thousandth of the target's standard deviation."""
    from gigagp import GPRegressor

    in_units = GPRegressor._in_units
    put(GPRegressor, "_in_units", lambda self, values, X: in_units(self, values + 1e-3, X))


def _dropped_row(put: Setter) -> None:
    """Make exact inference ignore the last row."""
    import torch

    from gigagp.inference import Exact

    objective = Exact.objective

    def without_last(self: Any, table: Any, generator: Any, likelihood: Any = None) -> Any:
        return objective(self, table.take_rows(torch.arange(table.n_rows - 1)), generator)

    put(Exact, "objective", without_last)


def _batch_mean(put: Setter) -> None:
    """Make the prediction of a row depend on the other rows of its batch."""
    from gigagp import GPRegressor

    in_units = GPRegressor._in_units
    put(GPRegressor, "_in_units", lambda self, values, X: in_units(self, values, X) + 1e-3 * np.tanh(X.mean()))


def _one_seed(put: Setter) -> None:
    """Draw the same samples for every seed."""
    from gigagp import GPRegressor

    sample = GPRegressor.sample_y
    put(GPRegressor, "sample_y", lambda self, X, n_samples=1, random_state=0: sample(self, X, n_samples, 0))


def _ignored_arguments(put: Setter) -> None:
    """Replace invalid arguments silently by the defaults."""
    from gigagp import GPRegressor
    from gigagp.errors import InvalidInputError

    fit = GPRegressor.fit

    def fit_anyway(self: Any, X: Any, y: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return fit(self, X, y, *arguments, **named)
        except InvalidInputError:
            return fit(self.set_params(**GPRegressor(optimizer=None).get_params(deep=False)), X, y)

    put(GPRegressor, "fit", fit_anyway)


def _no_checksum(put: Setter) -> None:
    """Write the same checksum into every model file."""
    from gigagp.storage import tensor_file

    put(tensor_file, "_checksum", lambda *arguments: "0")


def _half_files(put: Setter) -> None:
    """Write files in place."""
    import contextlib
    import time
    from collections.abc import Iterator
    from pathlib import Path

    from gigagp.storage import tensor_file

    @contextlib.contextmanager
    def in_place(path: Any, *arguments: Any, **named: Any) -> Iterator[Any]:
        with Path(path).open("wb") as file:
            time.sleep(0.001)
            yield file

    put(tensor_file, "replacing", in_place)


def _left_in(put: Setter) -> None:
    """Leave no row out of its own prediction."""
    from gigagp import GPRegressor
    from gigagp.estimators.answers.predictive_distribution import LeaveOneOut, PredictiveDistribution

    left_out = PredictiveDistribution.leave_one_out

    def left_in(self: GPRegressor) -> LeaveOneOut:
        found, scaling = left_out(self), self.scaling_
        rows = self.posterior_.X.double().numpy() * scaling.x_scale + scaling.x_centre
        mean, std = self.predict(rows, return_std=True)
        return found._replace(mean=mean, std=std + 1e-300)

    put(PredictiveDistribution, "leave_one_out", left_in)


def _other_joint(put: Setter) -> None:
    """Leave a hundredth of the covariance of batches out."""
    from gigagp.estimators.answers.joint_posterior import JointPosterior

    stddev = JointPosterior.stddev.fget
    put(JointPosterior, "stddev", property(lambda self: 0.99 * stddev(self)))


#: From a name to the area that finds the bug, and the function that plants it.
PLANTS: dict[str, tuple[str, Callable[[Setter], None]]] = {
    "wide-variance": ("tables", _wide_variance),
    "shifted-mean": ("tables", _shifted_mean),
    "dropped-row": ("tables", _dropped_row),
    "batch-mean": ("tables", _batch_mean),
    "one-seed": ("tables", _one_seed),
    "left-in": ("tables", _left_in),
    "other-joint": ("tables", _other_joint),
    "ignored-arguments": ("arguments", _ignored_arguments),
    "no-checksum": ("models", _no_checksum),
    "half-files": ("kills", _half_files),
}
