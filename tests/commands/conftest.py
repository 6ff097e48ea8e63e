"""A stand-in for the estimator, so that tests of the command line take no time."""

from __future__ import annotations

import sys
import types
import warnings

import numpy as np
import pyarrow as pa
import pytest
import torch

import gigagp
from gigagp.errors import InvalidInputError, SolverWarning
from gigagp.estimators.saving import persistence
from gigagp.model.likelihoods import Gaussian
from gigagp.model.target_transform import NoTransform


class GPRegressor:
    """Least squares with the interface of the real class. ``calls`` stores the arguments of the last constructor."""

    arguments: dict[str, object]
    likelihood = "gaussian"
    likelihood_ = Gaussian()
    target_transform_ = NoTransform()
    posterior_ = types.SimpleNamespace(n_targets=1)

    _stacking = None

    @property
    def estimators_(self):
        return (self,)

    def __init__(self, **arguments):
        type(self).arguments = arguments

    def fit(self, X, y, checkpoint=None):
        if isinstance(X, pa.Table):
            self.feature_names_in_ = np.asarray(X.column_names, dtype=object)
        X = np.asarray(X)
        if y.std() == 0.0:
            raise InvalidInputError("y must vary;\n it is constant.")
        self.n_features_in_ = X.shape[1]
        self.weights = np.linalg.lstsq(self._basis(X), y, rcond=None)[0]
        self.spread = max(float(np.std(y - self._basis(X) @ self.weights)), 0.1)
        warnings.warn(SolverWarning("a solve stopped early:\n residual 0.5"), stacklevel=2)
        return self

    @staticmethod
    def _basis(X):
        return np.column_stack([np.ones(len(X)), X])

    def predict(self, X, return_std=False, include_noise=False):
        mean = self._basis(np.asarray(X)) @ self.weights
        return mean, np.full(len(mean), self.spread if include_noise else self.spread / 2)

    def sample_y(self, X, n_samples=1, random_state=0):
        mean, std = self.predict(X, return_std=True)
        return mean[:, None] + std[:, None] * np.random.default_rng(random_state).normal(size=(len(mean), n_samples))

    def describe(self):
        return "stand-in: least squares"

    def _to_state(self):
        names = getattr(self, "feature_names_in_", None)
        tensors = {"weights": torch.from_numpy(self.weights)}
        return tensors, {"spread": self.spread, "names": None if names is None else list(names)}

    @classmethod
    def _from_state(cls, tensors, header, custom):
        self = cls()
        self.weights, self.spread = tensors["weights"].numpy(), header["spread"]
        self.n_features_in_ = len(self.weights) - 1
        if header["names"] is not None:
            self.feature_names_in_ = np.asarray(header["names"], dtype=object)
        return self


@pytest.fixture
def stand_in(monkeypatch):
    module = types.ModuleType("stand_in_regression")
    module.GPRegressor = GPRegressor
    monkeypatch.setitem(sys.modules, "stand_in_regression", module)
    monkeypatch.setitem(persistence._KINDS, "GPRegressor", "stand_in_regression")
    monkeypatch.setattr(GPRegressor, "__module__", module.__name__)
    monkeypatch.setitem(vars(gigagp), "GPRegressor", GPRegressor)
    return GPRegressor


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command line in a folder of the test; return its exit code, standard output and standard error."""
    from gigagp.commands import main

    monkeypatch.chdir(tmp_path)  # where predictions.csv would be, if no other name is given

    def run_command(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return caught.value.code, shown.out, shown.err

    return run_command


@pytest.fixture
def refused(run):
    """Run a command line that must end in one line on standard error and exit code 2; return that line."""

    def run_refused(*arguments):
        code, _, error = run(*arguments)
        assert code == 2
        assert error.startswith("gigagp: ")
        assert error.endswith("\n")
        assert error.count("\n") == 1
        assert "Traceback" not in error
        return error

    return run_refused


@pytest.fixture
def csv(tmp_path):
    """Return the path of a table y = 1 + 2 a - b with some noise."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 40))
    y = 1 + 2 * a - b + 0.1 * rng.normal(size=40)
    path = tmp_path / "table.csv"
    rows = "\n".join(f"{row[0]:.6f},{row[1]:.6f},{row[2]:.6f}" for row in np.column_stack([a, b, y]))
    path.write_text(f"a,b,y\n{rows}\n", encoding="utf-8")
    return path
