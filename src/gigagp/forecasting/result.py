"""Forecasts of future times, with their uncertainty and components."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from gigagp.errors import InvalidInputError
from gigagp.forecasting.choice import Chosen
from gigagp.forecasting.times import Clock, Periods
from gigagp.inference.contract.exact_posterior import ExactPosterior
from gigagp.inference.exact.mixture_posterior import MixturePosterior
from gigagp.inference.markov.posterior import MarkovPosterior
from gigagp.plots.axes import LEVELS, OPACITIES, plain
from gigagp.regression import GPRegressor
from gigagp.settings.fields import Count, Fraction, checks_arguments
from gigagp.settings.random import RandomState
from gigagp.storage.figures import BLUE, GREEN, GUIDE, INK, ORANGE, check_plot, new_figure, save_figure, style

if TYPE_CHECKING:
    from gigagp.forecasting.backtest import Backtest

#: Rows that a picture shows for each step of the forecast, at least so many.
_SHOWN_EACH, _SHOWN_LEAST = 6, 60
#: Series of a picture of many.
_MOST_PICTURES = 12


class Band(NamedTuple):
    """A component with its central interval of 95 %, each of shape (n + steps,)."""

    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


@dataclass(frozen=True, eq=False)
class Rows:
    """A series as it is learned from, sorted by time, and the points to forecast."""

    name: str
    clock: Clock
    times: np.ndarray  # measured, (n,); seconds since 1970 for dates
    y: np.ndarray  # (n,)
    future: np.ndarray  # times to forecast, (m,)
    covariates: np.ndarray  # at the measured and then the future times, (n + m, k)

    @cached_property
    def X(self) -> np.ndarray:
        """Inputs of the model at the measured and then the future times, in steps, (n + m, 1 + k)."""
        steps = self.clock.steps(np.concatenate([self.times, self.future]))
        return np.concatenate([steps[:, None], self.covariates], 1)

    @property
    def n(self) -> int:
        """Number of measured values."""
        return len(self.y)


@dataclass(frozen=True, eq=False)
class Forecast:
    """The forecast of a series, by `gigagp.forecast`.

    Attributes
    ----------
    rows : Rows
        The measured rows, sorted by time, and the times to forecast.
    chosen : Chosen
        The models that were tried, with their weights; the factor by which held-out stretches widen the variances; and
        the periods.
    known : Periods
        The periods that were looked for.
    """

    rows: Rows
    chosen: Chosen
    known: Periods

    @property
    def name(self) -> str:
        """Name of the series."""
        return self.rows.name

    @property
    def model(self) -> GPRegressor:
        """The fitted mixture, a function of the time in steps and of the covariates."""
        return self.chosen.model

    @property
    def times(self) -> np.ndarray:
        """Times of the forecast, (steps,): dates (datetime64) or numbers."""
        return self.rows.clock.shown(self.rows.future)

    @property
    def mean(self) -> np.ndarray:
        """Means of new measurements, (steps,)."""
        return self._moments[0]

    @property
    def std(self) -> np.ndarray:
        """Standard deviations of new measurements, (steps,)."""
        return self._moments[1]

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        mean, std = self.model.predict(self._X, return_std=True, include_noise=True)
        return mean, std

    @property
    def _X(self) -> np.ndarray:
        return self.rows.X[self.rows.n :]

    def quantile(self, levels: float | Sequence[float]) -> np.ndarray:
        """Return quantiles of new measurements, (steps,), or (steps, levels) for several levels."""
        found: np.ndarray = self.model.predict_quantile(self._X, levels)
        return found

    @checks_arguments
    def interval(self, level: Fraction = 0.95) -> np.ndarray:
        """Return the lower and the upper end of the central interval of a probability, (steps, 2)."""
        return self.quantile([0.5 - level / 2, 0.5 + level / 2])

    @checks_arguments
    def samples(self, n_samples: Count = 100, random_state: RandomState = 0) -> np.ndarray:
        """Return sample paths of new measurements, (steps, n_samples)."""
        return self.model.sample_y(self._X, n_samples, random_state, include_noise=True)

    def components(self) -> dict[str, Band]:
        """Return trend, seasons, cycle and rest of the model with the largest weight, at all times.

        Bands cover 95 %, without the noise. The components add up to the values, or to the transformed values if there
        is a transform; with a log transform, the trend is in the units of the values, and the other components are
        factors.
        """
        model, labels = self.model, [name for name, _ in self.chosen.tried[0].candidate.parts]
        posterior = model.posterior_
        heaviest = posterior.components[0] if isinstance(posterior, MixturePosterior) else posterior
        assert isinstance(heaviest, ExactPosterior | MarkovPosterior), "those that a choice has"
        points = torch.from_numpy(model.scaling_.inputs(self.rows.X))
        scale, centre = float(model.scaling_.y_scale[0]), float(model.scaling_.y_centre[0])
        basis, found = heaviest.model.mean.basis(points).double(), {}
        in_logs = model.target_transform_.kind == "log"
        for number, label in enumerate(labels):
            mean, explained, variance = (one.double() for one in heaviest.moments_of_part(points, number))
            found[label] = _Part(mean[:, 0], -explained, variance)
        none = torch.zeros(len(points), dtype=torch.float64)
        trend = found.pop("trend", _Part(none, torch.zeros_like(basis), none))
        found = {"trend": trend.with_mean(basis, heaviest.coefficients.double()), **found}
        bands = {}
        for label, part in found.items():
            open_ = (part.basis @ heaviest.coefficient_root.double()).square().sum(1) if basis.shape[1] else 0.0
            std = scale * (part.variance + open_).sqrt().numpy()
            centred: np.ndarray = scale * part.mean.numpy() + (centre if label == "trend" else 0.0)
            ends = [centred, centred - 1.96 * std, centred + 1.96 * std]
            bands[label] = Band(*map(np.exp, ends)) if in_logs else Band(*ends)
        return bands

    @checks_arguments
    def backtest(self, origins: Count = 3, random_state: RandomState = 0) -> Backtest:
        """Forecast again from earlier times, with newly chosen models, and compare with simple methods.

        Parameters
        ----------
        origins : int, default 3
            Number of origins, each one horizon before the next. Those with too few values before them are skipped.
        random_state : int, RandomState, Generator or None, default 0
            Seed.

        Returns
        -------
        Backtest
            Error, continuous ranked probability score and coverage, also for forecasts by the last value, by the value
            one season earlier and, if statsmodels is installed and the steps are regular, by Holt-Winters and SARIMA.
        """
        from gigagp.forecasting.backtest import backtest

        return backtest(self, origins, random_state)

    def table(self, levels: Sequence[float] = (0.025, 0.975)) -> pa.Table:
        """Return the forecast as an Arrow table: time, mean, std and a column for each quantile, such as q0.975."""
        quantiles = self.quantile(list(levels))
        found = {"time": self.times, "mean": self.mean, "std": self.std}
        return pa.table(found | {f"q{level:g}": quantiles[:, k] for k, level in enumerate(levels)})

    def plot(self, path: str | os.PathLike[str] | None = None, *, components: bool = False) -> Any:
        """Draw the latest rows and the forecast with its bands of 50 and 95 %, or the components.

        Parameters
        ----------
        path : str or path, optional
            File for the picture: PNG, PDF or SVG. None: the figure is shown as pyplot shows figures.
        components : bool, default False
            Whether to draw each component on its own axis, over all rows.

        Returns
        -------
        matplotlib.figure.Figure
        """
        return _drawn([self], path, components=components)

    def _draw(self, ax: Any) -> None:
        rows, clock = self.rows, self.rows.clock
        start = max(0, rows.n - max(_SHOWN_LEAST, _SHOWN_EACH * len(rows.future)))
        ax.plot(clock.shown(rows.times[start:]), rows.y[start:], ".-", color=INK, markersize=3, linewidth=0.8)
        quantiles = self.quantile(list(LEVELS))
        for lower, upper, opacity in zip((0, 1), (3, 2), OPACITIES, strict=True):
            ax.fill_between(
                self.times, quantiles[:, lower], quantiles[:, upper], color=ORANGE, alpha=opacity, linewidth=0
            )
        ax.plot(self.times, self.mean, color=ORANGE)
        ax.set_ylabel(plain(rows.name))

    def _draw_components(self, figure: Any) -> None:
        rows, bands = self.rows, self.components()
        times = rows.clock.shown(np.concatenate([rows.times, rows.future]))
        order = np.argsort(times, kind="stable")
        axes = figure.subplots(len(bands), 1, sharex=True, squeeze=False)[:, 0]
        for ax, (label, band) in zip(axes, bands.items(), strict=True):
            ax.fill_between(times[order], band.lower[order], band.upper[order], color=BLUE, alpha=0.25, linewidth=0)
            ax.plot(times[order], band.mean[order], color=BLUE if label == "trend" else GREEN, linewidth=1.0)
            ax.axvline(times[rows.n - 1], color=GUIDE, linewidth=0.8, linestyle=":")
            ax.set_ylabel(plain(label))

    def __str__(self) -> str:
        """Return the chosen models in words."""
        chosen = self.chosen
        lines = [f"{self.name}: {len(self.times)} steps from {self.rows.n:,} values"]
        lines += [f"  weight {one.weight:.2f}: {one.candidate}" for one in chosen.tried]
        wider = f"  variances times {chosen.factor:.2f}, as held-out stretches show"
        return "\n".join([*lines, wider] if chosen.factor > 1 else lines)


class _Part(NamedTuple):
    mean: torch.Tensor  # (m,)
    basis: torch.Tensor  # by how much it depends on the coefficients of the mean, (m, p)
    variance: torch.Tensor  # (m,)

    def with_mean(self, basis: torch.Tensor, coefficients: torch.Tensor) -> _Part:
        return _Part(self.mean + (basis @ coefficients)[:, 0], self.basis + basis, self.variance)


@dataclass(frozen=True, eq=False)
class Forecasts(Mapping[Any, Forecast]):
    """Forecasts of many series, by name.

    Attributes
    ----------
    failures : dict
        Reason why a series has no forecast, by name.
    """

    found: dict[Any, Forecast]
    failures: dict[Any, str]

    def __getitem__(self, name: Any) -> Forecast:
        return self.found[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def table(self, levels: Sequence[float] = (0.025, 0.975)) -> pa.Table:
        """Return the tables of all forecasts in one, with the name of the series as first column."""
        tables = []
        for name, one in self.found.items():
            table = one.table(levels)
            tables.append(table.add_column(0, "series", pa.array([name] * len(table))))
        return pa.concat_tables(tables)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the first twelve forecasts; see `Forecast.plot`."""
        return _drawn(list(self.found.values())[:_MOST_PICTURES], path)

    def __str__(self) -> str:
        """Return the forecasts and the failures in words."""
        failed = [f"{name}: failed. {why}" for name, why in self.failures.items()]
        return "\n".join([*map(str, self.found.values()), *failed])


def _drawn(forecasts: Sequence[Forecast], path: str | os.PathLike[str] | None, *, components: bool = False) -> Any:
    if path is not None:
        check_plot(path)
    if not forecasts:
        raise InvalidInputError("there is no forecast to draw: all series failed.")
    count = len(forecasts[0].chosen.tried[0].candidate.parts) + 1 if components else len(forecasts)
    across = 1 if count == 1 or components else 2
    down = -(-count // across)
    figure = new_figure(6.8 * across, 3.6 if count == 1 else 2.4 * down, shown=path is None)
    with style():
        if components:
            forecasts[0]._draw_components(figure)
        else:
            for number, one in enumerate(forecasts, 1):
                one._draw(figure.add_subplot(down, across, number))
    if path is not None:
        save_figure(figure, path)
    return figure
