"""Several outputs as one: each observed cell is a row of one model, with a column of zeros and a one for each output.

The model of these rows has a kernel of the inputs times one of the outputs (`gigagp.kernels.Outputs`), a noise variance
and a mean for each output. Its answers have an axis of the outputs again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.estimators.answers.left_out import LeaveOneOut
from gigagp.estimators.answers.predictor import Predictor, UncertaintyParts
from gigagp.inference.contract.posterior import Posterior
from gigagp.model.estimate import Estimate
from gigagp.model.scaling import Scaling, centre_and_spread
from gigagp.settings.random import RandomState
from gigagp.tables import intake


@dataclass(frozen=True, eq=False)
class Stacking:
    """How the cells of several outputs are rows of one model, and the units of each output.

    Attributes
    ----------
    centre, scale : ndarray of shape (k,)
        What is subtracted from each output, and what it is divided by.
    observed : ndarray of bool, shape (n, k)
        The cells of the fit that are rows, one row of the table after the other.
    """

    centre: np.ndarray
    scale: np.ndarray
    observed: np.ndarray

    @classmethod
    def fit(cls, Y: np.ndarray, standardize: bool) -> Stacking:
        """Return the stacking of targets (n, k) with NaN where nothing was observed; each output needs two values."""
        observed = ~np.isnan(Y)
        counts = observed.sum(0)
        if (counts < 2).any():
            few = int(np.argmax(counts < 2))
            raise InvalidInputError(
                f"y of GPRegressor must have two values or more of each output; output {few} has {counts[few]}."
            )
        if not standardize:
            return cls(np.zeros(Y.shape[1]), np.ones(Y.shape[1]), observed)
        units = [centre_and_spread(Y[seen, k, None]) for k, seen in enumerate(observed.T)]
        centre, scale = (np.concatenate(parts) for parts in zip(*units, strict=True))
        return cls(centre, scale, observed)

    @property
    def log_units(self) -> float:
        """The sum of the logarithms of the units of all cells of the fit."""
        return float((self.observed * np.log(self.scale)).sum())

    def state(self) -> dict[str, Tensor]:
        """Return the arrays as tensors, for a file."""
        observed = torch.from_numpy(self.observed.astype(np.uint8))
        return {"centre": torch.from_numpy(self.centre), "scale": torch.from_numpy(self.scale), "observed": observed}

    @property
    def n_outputs(self) -> int:
        """Number of outputs."""
        return len(self.scale)

    def points(self, X: np.ndarray, cells: np.ndarray | None = None) -> np.ndarray:
        """Return the rows of the model for some cells (n, k) of points (n, d), or for all of them."""
        chosen = np.ones((len(X), self.n_outputs), dtype=bool) if cells is None else cells
        rows, outputs = np.nonzero(chosen)
        return np.concatenate([X[rows], np.eye(self.n_outputs)[outputs]], 1)

    def points_of(self, X: Tensor) -> Tensor:
        """Return the rows of the model for all outputs at batches of points (..., q, d), shape (..., q k, d + k)."""
        every = torch.eye(self.n_outputs, dtype=X.dtype, device=X.device).repeat(X.shape[-2], 1)
        return torch.cat([X.repeat_interleave(self.n_outputs, -2), every.expand(*X.shape[:-2], *every.shape)], -1)

    def units(self) -> tuple[Tensor, Tensor]:
        """Return `centre` and `scale` as tensors."""
        return torch.from_numpy(self.centre), torch.from_numpy(self.scale)

    def targets(self, Y: np.ndarray, cells: np.ndarray) -> np.ndarray:
        """Return the targets of some cells in the units of the model."""
        found: np.ndarray = ((Y - self.centre) / self.scale)[cells]
        return found

    def further(self, X: np.ndarray, y: Any, name: str) -> tuple[Stacking, np.ndarray, np.ndarray]:
        """Return the stacking of further rows too, and the new rows and targets of the model."""
        Y = observed_cells(y, len(X), name)
        if Y.shape != (len(X), self.n_outputs):
            raise InvalidInputError(f"{name} must have {self.n_outputs} targets, as in the fit; got shape {Y.shape}.")
        cells = ~np.isnan(Y)
        grown = Stacking(self.centre, self.scale, np.concatenate([self.observed, cells]))
        return grown, self.points(X, cells), self.targets(Y, cells)

    def noise_variance(self, posterior: Posterior, scaling: Scaling) -> np.ndarray:
        """Return the noise variance of each output (k,), or the known ones of the cells (n, k), in their own units."""
        units = np.square(self.scale) * scaling.y_scale[0] ** 2
        if posterior.model.noise_is_known:
            found = np.full(self.observed.shape, np.nan)
            found[self.observed] = posterior.model.noise_variance.double().cpu().numpy()
            return found * units
        place = np.zeros((1, len(scaling.x_scale) - self.n_outputs))
        points = torch.from_numpy(scaling.inputs(self.points(place))).to(posterior.device, posterior.dtype)
        return posterior.noise_at(points).double().cpu().numpy() * units

    def by_output(self, values: np.ndarray, *, shift: bool = False) -> np.ndarray:
        """Return answers (m k, ...) of the model as (m, k, ...) in the units of the outputs."""
        found = values.reshape(-1, self.n_outputs, *values.shape[1:])
        shape = (1, -1) + (1,) * (values.ndim - 1)
        return found * self.scale.reshape(shape) + (self.centre.reshape(shape) if shift else 0.0)


@dataclass(frozen=True, eq=False)
class CorrelatedPredictor:
    """Answers of a predictor of stacked rows about all outputs; the methods are those of `Predictor`."""

    rows: Predictor
    stacking: Stacking

    @property
    def likelihood(self) -> Any:
        """The likelihood of the targets."""
        return self.rows.likelihood

    def predict(self, X: np.ndarray, return_std: bool = False, return_cov: bool = False, **options: Any) -> Any:
        """Return means (m, k), with deviations (m, k), or with covariances (m, k, m, k) across outputs."""
        found = self.rows.predict(self.stacking.points(X), return_std, return_cov, **options)
        return self._by_output(found, return_cov)

    def predict_latent(self, X: np.ndarray, return_std: bool = False, return_cov: bool = False, **options: Any) -> Any:
        """Return the same of the latent function, which noise is added to."""
        found = self.rows.predict_latent(self.stacking.points(X), return_std, return_cov, **options)
        return self._by_output(found, return_cov)

    def _by_output(self, found: Any, return_cov: bool) -> Any:
        mean, *others = found if isinstance(found, tuple) else (found,)
        answers: list[Any] = [self.stacking.by_output(mean, shift=True)]
        for other in others:
            if isinstance(other, UncertaintyParts):
                answers.append(UncertaintyParts(*map(self.stacking.by_output, other)))
            elif return_cov:
                each = len(mean) // self.stacking.n_outputs
                units = np.tile(self.stacking.scale, each)
                answers.append((other * units * units[:, None]).reshape(2 * (each, self.stacking.n_outputs)))
            else:
                answers.append(self.stacking.by_output(other))
        return tuple(answers) if others else answers[0]

    def sample_functions(
        self, n_samples: int, random_state: RandomState = 0, *, latent: bool = False
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Return samples of all outputs, (m, k, s), as a function of points."""
        functions = self.rows.sample_functions(n_samples, random_state, latent=latent)
        return lambda X: self.stacking.by_output(functions(self.stacking.points(X)), shift=True)

    def sample_y(self, X: np.ndarray, n_samples: int = 1, random_state: RandomState = 0, **options: Any) -> np.ndarray:
        """Return joint samples (m, k, s) of the outputs at points, or measurements."""
        found = self.rows.sample_y(self.stacking.points(X), n_samples, random_state, **options)
        return self.stacking.by_output(found, shift=True)

    def predict_quantile(self, X: np.ndarray, levels: np.ndarray, **options: Any) -> np.ndarray:
        """Return quantiles (m, k), with a last axis for several probabilities."""
        found = self.rows.predict_quantile(self.stacking.points(X), levels, **options)
        return self.stacking.by_output(found, shift=True)

    def predictive_log_density(self, X: np.ndarray, y: Any, beside: Any = None) -> np.ndarray:
        """Return the log density of each measurement, (m, k)."""
        Y = intake.targets(y, len(X))
        if Y.shape != (len(X), self.stacking.n_outputs):
            raise InvalidInputError(f"y must have {self.stacking.n_outputs} targets, as in the fit; got {Y.shape}.")
        every = np.ones(Y.shape, dtype=bool)
        found = self.rows.predictive_log_density(self.stacking.points(X), self.stacking.targets(Y, every))
        return found.reshape(Y.shape) - np.log(self.stacking.scale)

    def log_marginal_likelihood(self, random_state: RandomState = 0, *, standardized: bool = False) -> Estimate:
        """Return the log density of all targets of the fit, in nats."""
        found = self.rows.log_marginal_likelihood(random_state, standardized=standardized)
        units = 0.0 if standardized else self.stacking.log_units
        return Estimate(found.value - units, found.standard_error)

    def leave_one_out(self) -> LeaveOneOut:
        """Return each cell of the fit as it is predicted from all others, (n, k), with NaN where none was observed."""
        observed, scale = self.stacking.observed, self.stacking.scale
        found = self.rows.leave_one_out()
        parts = np.full((4, *observed.shape), np.nan)
        parts[:, observed] = np.stack(found)
        mean, std, density, error = parts
        return LeaveOneOut(mean * scale + self.stacking.centre, std * scale, density - np.log(scale), error * scale)

    def joint(self, X: Any, **options: Any) -> NoReturn:
        """Refuse batches of points."""
        raise InvalidInputError(
            'posterior of GPRegressor needs outputs="independent" or "shared"; of outputs="correlated" predict, with '
            "return_cov=True, and sample_y have the joint distribution."
        )


def observed_cells(y: Any, n_rows: int, name: str = "y") -> np.ndarray:
    """Return targets (n, k) with NaN where nothing was observed; infinite ones are refused."""
    Y = intake.targets(y, n_rows, name, finite=False)
    if np.isinf(Y).any():
        row = int(np.argmax(np.isinf(Y).any(1) if Y.ndim == 2 else np.isinf(Y)))
        raise InvalidInputError(f"{name} must be numbers, or NaN where nothing was observed; row {row} is infinite.")
    return Y


def require_apart(estimator: Any, what: str) -> None:
    """Refuse correlated outputs where something is for models of one output."""
    if estimator._stacking is not None:
        raise InvalidInputError(
            f'{what} needs a model with outputs="independent" or "shared"; this one has outputs="correlated", whose '
            "rows are cells of all outputs."
        )
