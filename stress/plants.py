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
    from gigagp.estimators.answers.predictor import Predictor

    spread = Predictor._spread
    put(Predictor, "_spread", lambda self, variance: spread(self, 1.1 * variance))


def _shifted_mean(put: Setter) -> None:
    """Shift means by a thousandth of the target's standard deviation."""
    from gigagp.estimators.answers.predictor import Predictor

    in_units = Predictor._in_units
    put(Predictor, "_in_units", lambda self, values, X: in_units(self, values + 1e-3, X))


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
    from gigagp.estimators.answers.predictor import Predictor

    in_units = Predictor._in_units
    put(Predictor, "_in_units", lambda self, values, X: in_units(self, values, X) + 1e-3 * np.tanh(X.mean()))


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
    from gigagp.estimators.answers.left_out import LeaveOneOut
    from gigagp.estimators.answers.predictor import Predictor

    left_out = Predictor.leave_one_out

    def left_in(self: Predictor) -> LeaveOneOut:
        found, scaling = left_out(self), self.scaling
        rows = self.posterior.X.double().numpy() * scaling.x_scale + scaling.x_centre
        mean, std = self.predict(rows, return_std=True)
        return found._replace(mean=mean, std=std + 1e-300)

    put(Predictor, "leave_one_out", left_in)


def _other_joint(put: Setter) -> None:
    """Leave a hundredth of the covariance of batches out."""
    from gigagp.estimators.answers.joint_posterior import JointPosterior

    stddev = JointPosterior.stddev.fget
    put(JointPosterior, "stddev", property(lambda self: 0.99 * stddev(self)))


def _steep_rates(put: Setter) -> None:
    """Leave a tenth of the curvature of counts out."""
    from gigagp.inference.vecchia import mode

    of = mode.Curvature.of.__func__

    def flatter(cls: Any, likelihood: Any, *arguments: Any) -> Any:
        found = of(cls, likelihood, *arguments)
        return found._replace(curvature=0.9 * found.curvature) if likelihood.name == "poisson" else found

    put(mode, "Curvature", type("Curvature", (mode.Curvature,), {"of": classmethod(flatter)}))


def _median_rates(put: Setter) -> None:
    """Return the rate at the mean of the logarithm in place of the mean rate."""
    from gigagp.model.likelihoods import Poisson

    moments = Poisson.target_moments
    put(
        Poisson,
        "target_moments",
        lambda self, mean, std, noise: moments(self, mean, std, noise)._replace(mean=mean.exp() + 0 * std),
    )


def _sure_classes(put: Setter) -> None:
    """Return the probability at the mean of the latent function, without its uncertainty."""
    from gigagp.model.likelihoods import Logistic

    put(Logistic, "mean_probability", lambda self, mean, std, nodes=0: self.probability(mean))


def _known_trend(put: Setter) -> None:
    """Leave the uncertainty of the slopes of a linear mean out."""
    from gigagp.model.means import LinearMean

    basis = LinearMean.basis
    put(LinearMean, "basis", lambda self, X: basis(self, X)[:, :1] + 0 * X[:, :1])


def _no_jacobian(put: Setter) -> None:
    """Leave the Jacobian of a transform out of log densities."""
    from gigagp.estimators.answers import responses

    density = responses.log_density
    put(
        responses,
        "log_density",
        lambda transform, y, *moments: density(transform, y, *moments) - transform.log_derivative(y),
    )


def _median_of_transforms(put: Setter) -> None:
    """Return the median in place of the mean after a transform."""
    from gigagp.estimators.answers import responses

    moments = responses.moments
    put(
        responses,
        "moments",
        lambda transform, mean, *rest: (transform.inverse(mean), *moments(transform, mean, *rest)[1:]),
    )


def _rounded_file(put: Setter) -> None:
    """Write model files with the digits of float32."""
    from gigagp.estimators.saving import persistence

    save = persistence.save_state

    def rounded(path: Any, kind: str, tensors: Any, header: Any) -> Any:
        few = {name: one.float().to(one.dtype) if one.is_floating_point() else one for name, one in tensors.items()}
        return save(path, kind, few, header)

    put(persistence, "save_state", rounded)


def _quiet_budget(put: Setter) -> None:
    """Do not say that a time budget has ended the learning."""
    from gigagp import GPRegressor

    describe = GPRegressor.describe

    def without(self: GPRegressor) -> str:
        return "\n".join(line for line in describe(self).splitlines() if "time budget" not in line)

    put(GPRegressor, "describe", without)


def _plain_periodic(put: Setter) -> None:
    """Translate lengthscales of periodic kernels to GPyTorch as they are."""
    from gigagp.kernels.periodic import Periodic
    from gigagp.kernels.translation import gpytorch
    from gigagp.kernels.translation.numbers import Name

    names = {"lengthscale": Name("lengthscale"), "period": Name("period_length")}
    put(gpytorch, "_LEAVES", {**gpytorch._LEAVES, "PeriodicKernel": (Periodic, names)})


def _sorted_columns(put: Setter) -> None:
    """Read the columns of Arrow and polars tables in the order of their last rows."""
    import pandas as pd

    from gigagp.tables import intake

    frame = intake._frame

    def turned(values: Any) -> Any:
        found = frame(values)
        if found is None or isinstance(values, pd.DataFrame) or len(found[0]) < 2:
            return found
        return found[0], list(found[1])[::-1]

    put(intake, "_frame", turned)


def _one_scale(put: Setter) -> None:
    """Return all outputs that share a kernel with the deviation of the first."""
    from gigagp.model.scaling import Scaling

    spreads = Scaling.spreads
    put(Scaling, "spreads", lambda self, std: spreads(self, std)[:, :1] + 0 * spreads(self, std))


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
    "steep-rates": ("likelihoods", _steep_rates),
    "median-rates": ("likelihoods", _median_rates),
    "sure-classes": ("likelihoods", _sure_classes),
    "known-trend": ("transforms", _known_trend),
    "no-jacobian": ("transforms", _no_jacobian),
    "median-of-transforms": ("transforms", _median_of_transforms),
    "rounded-file": ("copies", _rounded_file),
    "quiet-budget": ("budgets", _quiet_budget),
    "plain-periodic": ("translations", _plain_periodic),
    "sorted-columns": ("containers", _sorted_columns),
    "one-scale": ("outputs", _one_scale),
}
