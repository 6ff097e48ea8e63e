"""A fitted model as pictures see it: columns to draw along, rows to draw, and predictions of encoded inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from scipy.special import ndtri
from scipy.stats import qmc

from gigagp.errors import InvalidInputError
from gigagp.estimators.answers.answering import predictor_of_rows
from gigagp.estimators.answers.correlated import require_apart
from gigagp.inference.contract.rows_posterior import RowsPosterior
from gigagp.model.likelihoods import Logistic, Probit
from gigagp.tables import intake
from gigagp.tables.cells import Place
from gigagp.tables.encoding import TableEncoder, fitted_encoder, model_inputs
from gigagp.tables.encoding.columns import Categories, Column, Dates, LeftOut, Numbers
from gigagp.tables.encoding.reading import SECONDS_A_DAY

if TYPE_CHECKING:
    from gigagp.estimators.answers.predictor import Predictor
    from gigagp.estimators.estimator import FittedEstimator

#: Number of points that are predicted at a time.
BLOCK = 2**14


class Rows(NamedTuple):
    """Rows that a picture shows, in their own units.

    X (n, n_encoded) are encoded inputs, and y (n,) are targets or numbers of classes.
    """

    X: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Axis:
    """One column of the table, along which a picture may run.

    ``places`` are its encoded columns; the first one has its numbers, or its days. ``column`` is what the encoder knows
    of it, None for a table of numbers.
    """

    name: str
    number: int
    places: tuple[int, ...]
    column: Column | None = None

    @property
    def is_date(self) -> bool:
        """Whether values are days since the earliest date of the fit."""
        return isinstance(self.column, Dates)

    @property
    def categories(self) -> tuple[str, ...]:
        """The categories of the column; none for numbers and dates."""
        return self.column.categories if isinstance(self.column, Categories) else ()

    def shown(self, values: np.ndarray) -> np.ndarray:
        """Return values as matplotlib shows them: numbers, or dates as datetime64."""
        if not isinstance(self.column, Dates):
            return np.asarray(values, dtype=float)
        seconds = self.column.origin + np.asarray(values, dtype=float) * SECONDS_A_DAY
        return (seconds * 1e3).astype("datetime64[ms]")

    def value(self, given: Any, argument: str) -> float:
        """Return a finite number that a user has given for this axis; dates may be texts or dates."""
        try:
            if isinstance(self.column, Dates) and not isinstance(given, int | float):
                moment = np.datetime64(given, "ms").astype(np.int64)
                return float((moment / 1e3 - self.column.origin) / SECONDS_A_DAY)
            found = float(given)
        except (TypeError, ValueError, OverflowError):
            found = np.nan
        if not np.isfinite(found):
            what = "dates, or days since the earliest," if self.is_date else "finite numbers"
            raise InvalidInputError(f"{argument} of a picture must be {what} for {self.name}; got {given!r}.")
        return found

    def encoded(self, values: Any) -> np.ndarray:
        """Return the encoded columns, shape (m, width), of numbers, days, or texts of categories."""
        if self.column is None:
            return np.asarray(values, dtype=float)[:, None]
        cells = self.column.at(np.asarray(values)) if isinstance(self.column, Dates) else pa.array(values)
        return self.column.encode(self.column.read(cells, Place("X", [self.name])), [])


class View:
    """A fitted model, and one of its targets, by its number from 0.

    Of a classifier the probability of a class is seen: of two classes that of the second one, and of more that of the
    class with the number ``target``.

    Attributes
    ----------
    regressor : GPRegressor
        The model, or the latent functions of a classifier; that of the target where each target has its own.
    place : int
        Number of the target in `regressor`.
    classes : list
        The classes of a classifier; none of a regressor.
    columns, axes : list of Axis
        All columns of the table that the model uses, and those that are numbers or dates.
    """

    def __init__(self, model: Any, target: int = 0) -> None:
        self.regressor: FittedEstimator = getattr(model, "latent_", model)
        if getattr(self.regressor, "posterior_", None) is None:
            raise InvalidInputError("model of a picture must be fitted.")
        require_apart(self.regressor, "A picture")
        self.is_classifier = hasattr(model, "latent_")
        places = [(one, place) for one in self.regressor.estimators_ for place in range(one.posterior_.n_targets)]
        if not 0 <= target < len(places):
            raise InvalidInputError(f"target of a picture must be from 0 to {len(places) - 1}; got {target!r}.")
        self.model, self.target = model, target
        self.regressor, self.place = places[target]
        posterior = self.regressor.posterior_
        kind = self.regressor.likelihood_.exposure
        if isinstance(posterior, RowsPosterior) and posterior.table.beside.state() and kind == "none":
            raise InvalidInputError(
                "A picture cannot show rows with offset or limits: their targets are not measurements of what is "
                "predicted. Draw gp.predict yourself."
            )
        self.classes = model.classes_.tolist() if self.is_classifier else []
        self.encoder: TableEncoder | None = fitted_encoder(self.regressor)
        names = getattr(model, "feature_names_in_", None)
        self.names = None if names is None else [str(name) for name in names]
        self.columns = _columns(self.encoder, self.names, int(self.regressor.n_features_in_))
        self.axes = [axis for axis in self.columns if not axis.categories and _varies(axis)]

    @cached_property
    def plain(self) -> Predictor:
        """What answers at inputs that are encoded already, none of which is missing, without names."""
        return replace(predictor_of_rows(self.regressor), encoder=None, names=None)

    @property
    def has_noise(self) -> bool:
        """Whether the model has a noise variance."""
        return self.regressor.likelihood_.has_noise

    @property
    def adds_noise(self) -> bool:
        """Whether targets are the function with noise added; those of counts and signs are spread around it anyway."""
        return self.regressor.likelihood_.adds_noise

    @property
    def noise_is_known(self) -> bool:
        """Whether the spread of a new row around the function is known."""
        return not (self.has_noise and self.regressor.posterior_.model.noise_is_known)

    # Rows -----------------------------------------------------------------------------------------------------------

    @cached_property
    def rows(self) -> Rows | None:
        """The training rows in their own units; None if the model does not keep them."""
        posterior, scaling = self.regressor.posterior_, self.regressor.scaling_
        if not isinstance(posterior, RowsPosterior):
            return None
        X = scaling.original_inputs(posterior.X.double().cpu().numpy())
        if self.is_classifier:
            signs = posterior.table.Y.double().cpu().numpy()
            return Rows(X, signs.argmax(1) if len(self.classes) > 2 else (signs[:, 0] > 0).astype(np.int64))
        Y = scaling.original(posterior.table.Y.double().cpu().numpy()) + posterior.model.mean.offset(X)[:, None]
        exposure = posterior.table.beside.exposure()
        Y = Y if exposure is None else Y / exposure.cpu().numpy()[:, None]  # rates, as they are predicted
        return Rows(X, self.regressor.target_transform_.inverse(Y[:, self.place]))

    def given(self, X: Any, y: Any) -> Rows:
        """Return rows that a user has given, after a check; the exposure of their targets is 1."""
        if X is None or y is None:
            raise InvalidInputError("X and y of a picture must be given together.")
        encoded = self.inputs(X)
        if self.is_classifier:
            return Rows(encoded, self.codes(y, len(encoded)))
        targets = intake.targets(y, len(encoded))
        if targets.ndim == 2:
            if targets.shape[1] <= self.target:
                msg = f"y of a picture must have target {self.target}, from 0; got {targets.shape[1]} target(s)."
                raise InvalidInputError(msg)
            targets = targets[:, self.target]
        return Rows(encoded, targets)

    def rows_to_draw(self, X: Any, y: Any) -> Rows | None:
        """Return the rows given, else those of the fit, as `drawn` has them."""
        return self.drawn(self.rows if X is None and y is None else self.given(X, y))

    def drawn(self, rows: Rows | None) -> Rows | None:
        """Return rows with targets in the units of the picture; None where there are none.

        Those of a classifier have one as their target if they have the class, and else zero.
        """
        if rows is None or not self.is_classifier:
            return rows
        return Rows(rows.X, (rows.y == self.class_number).astype(float))

    @property
    def class_number(self) -> int:
        """The number of the class that is seen."""
        return self.target if len(self.classes) > 2 else 1

    @property
    def noun(self) -> str:
        """What the uncertainty of a picture is about."""
        return "the probability" if self.is_classifier else "the function"

    def codes(self, y: Any, n: int) -> np.ndarray:
        """Return the numbers of the classes of n labels, shape (n,)."""
        given = intake.labels(y, n).tolist()
        known = {one: code for code, one in enumerate(self.classes)}
        unknown = [one for one in given if one not in known]
        if unknown:
            msg = f"y of a picture must hold classes of the fit, {self.classes[:12]}; got {unknown[0]!r}."
            raise InvalidInputError(msg)
        return np.array([known[one] for one in given], dtype=np.int64)

    def inputs(self, X: Any) -> np.ndarray:
        """Return the encoded inputs of a user's table."""
        owner: Any = self.regressor if self.encoder is not None else self.model
        return model_inputs(owner, X, reset=False)

    @property
    def knows_places(self) -> bool:
        """Whether the range of the training rows is known."""
        return len(self.regressor.posterior_.places()) > 0

    def range_of(self, axis: Axis) -> tuple[float, float]:
        """Return the range of a column in the fit, or two standard deviations around the mean if it is not kept."""
        scaling, place = self.regressor.scaling_, axis.places[0]
        places = self.regressor.posterior_.places()
        if len(places):
            values = places[:, place].double().cpu().numpy()
            low, high = float(values.min()), float(values.max())
        else:
            low, high = -2.0, 2.0
        scale, centre = scaling.x_scale[place], scaling.x_centre[place]
        return low * scale + centre, high * scale + centre

    # Predictions ----------------------------------------------------------------------------------------------------

    def points(self, axes: Sequence[Axis], values: np.ndarray) -> np.ndarray:
        """Return encoded inputs, shape (m, n_encoded), with values (m, k) of some columns and typical other cells."""
        m = len(values)
        if self.encoder is None:
            found = np.broadcast_to(self._typical, (m, len(self._typical))).copy()
        else:
            cells = self.encoder.table(np.zeros((1, len(self.encoder.axes))), self.names)
            if self.encoder.axes:
                typical = [_fill(self.encoder.columns[k]) for k in self.encoder.axes]
                cells = self.encoder.table(np.array([typical]), self.names)
            found = np.repeat(self.encoder.transform(cells), m, 0)
        for axis, column in zip(axes, values.T, strict=True):
            found[:, list(axis.places)] = axis.encoded(column)
        return found

    @cached_property
    def _typical(self) -> np.ndarray:
        """The medians of the columns, or their means where the rows are not kept."""
        return self.regressor.scaling_.x_centre if self.rows is None else np.median(self.rows.X, 0)

    def mean(self, X: np.ndarray) -> np.ndarray:
        """Return the mean of the target at encoded inputs, shape (m,); the probability of the class of a classifier."""
        if self.is_classifier:
            return self.of_target(self.probabilities(X))
        parts = [self.plain.predict(block) for block in _blocks(X)]
        return self.of_target(np.concatenate(parts))

    def mean_and_std(
        self, X: np.ndarray, include_noise: bool = False, exposure: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of the target at encoded inputs, each of shape (m,)."""
        if self.is_classifier:
            mean, std = self._latent_moments(X)
            return self.of_target(self._class.means(mean, std)), self._class.stds(mean, std)
        parts = [
            self.plain.predict(block, return_std=True, include_noise=include_noise, exposure=own)
            for block, own in zip(_blocks(X), _parts(exposure, len(X)), strict=True)
        ]
        mean, std = (np.concatenate(part) for part in zip(*parts, strict=True))
        return self.of_target(mean), self.of_target(std)

    def quantiles(
        self, X: np.ndarray, levels: Sequence[float], include_noise: bool = False, exposure: np.ndarray | None = None
    ) -> np.ndarray:
        """Return quantiles at encoded inputs, shape (m, len(levels))."""
        if self.is_classifier:
            return self._class.quantiles(*self._latent_moments(X), levels)
        found = []
        for points, own in zip(_blocks(X), _parts(exposure, len(X)), strict=True):
            block = self.plain.predict_quantile(points, np.array(levels), include_noise=include_noise, exposure=own)
            found.append(block if block.ndim == 2 else block[:, self.place])
        return np.concatenate(found)

    def probabilities(self, X: np.ndarray) -> np.ndarray:
        """Return the probabilities of all classes of a classifier, (m, n_classes), or of the second of two, (m,)."""
        return self._class.means(*self._latent_moments(X))

    def samples(self, X: np.ndarray, n_samples: int, seed: int) -> np.ndarray:
        """Return posterior samples of the target, (m, n_samples); of a classifier, those of the probability."""
        found = self.plain.sample_functions(n_samples, seed, latent=self.is_classifier)(X)
        if self.is_classifier:
            return self._class.of_samples(found)
        return found if found.ndim == 2 else found[:, self.place]

    def _latent_moments(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and standard deviations of all latent functions."""
        parts = [self.plain.predict_latent(block, return_std=True) for block in _blocks(X)]
        mean, std = (np.concatenate(part) for part in zip(*parts, strict=True))
        return mean, std

    @cached_property
    def _class(self) -> ClassProbability:
        likelihood = self.regressor.likelihood_
        assert isinstance(likelihood, Logistic | Probit)
        return ClassProbability(likelihood, self.target)

    def of_target(self, values: np.ndarray) -> np.ndarray:
        """Return the part of an answer that belongs to the target."""
        return values if values.ndim == 1 else values[:, self.place]

    def label(self, given: str | None) -> str:
        """Return a name for the target, or of the probability of a class."""
        if self.is_classifier:
            shown = str(self.classes[self.class_number])
            return f"probability of {shown if given is None else f'{given} = {shown}'}"
        return "target" if given is None else given


def _columns(encoder: TableEncoder | None, names: list[str] | None, n_columns: int) -> list[Axis]:
    names = [f"input {k + 1}" for k in range(n_columns)] if names is None else names
    if encoder is None:
        return [Axis(name, k, (k,)) for k, name in enumerate(names)]
    found = []
    for k, (column, parts) in enumerate(zip(encoder.columns, encoder.inputs, strict=True)):
        if not isinstance(column, LeftOut):
            found.append(Axis(names[k], k, tuple(place for part in parts for place in part), column))
    return found


def _blocks(X: np.ndarray) -> list[np.ndarray]:
    return [X[start : start + BLOCK] for start in range(0, len(X), BLOCK)]


def _parts(exposure: np.ndarray | None, n: int) -> Sequence[np.ndarray | None]:
    """Return the exposure of each block of n points."""
    return [None] * len(range(0, n, BLOCK)) if exposure is None else _blocks(exposure)


def _varies(axis: Axis) -> bool:
    return not isinstance(axis.column, Numbers) or axis.column.varies


def _fill(column: Column) -> float:
    return column.fill if isinstance(column, Numbers | Dates) else 0.0


# Probabilities of a class, from means and standard deviations of the latent functions of a classifier -----------------


#: Base-two logarithm of the number of joint values of several latent functions; numbers held at a time.
_LOG2_DRAWS, _NUMBERS = 9, 4_000_000
#: Nodes for the second moment of a probability.
_NODES = 64
#: Smallest probability, as in `GPClassifier`.
_LEAST = 1e-300


class ClassProbability:
    """The probability of a class as a random function, because the latent functions are not known exactly.

    For more than two classes, the probabilities of one against the rest are scaled to sum to one, as
    `GPClassifier.predict_proba` does, and the latent functions are independent, as in the fit. ``likelihood`` has the
    probability of a class given its latent function, whose number is ``target``.
    """

    def __init__(self, likelihood: Logistic | Probit, target: int) -> None:
        self.likelihood, self.target = likelihood, target

    def means(self, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
        """Return probabilities averaged over the latent functions, as `GPClassifier.predict_proba` has them.

        Their shape, (m,) or (m, n_classes), is that of mean and std of the latent functions.
        """
        found = self.likelihood.mean_probability(torch.from_numpy(mean), torch.from_numpy(std)).clamp_min(_LEAST)
        return (found if mean.ndim == 1 else found / found.sum(1, keepdim=True)).numpy()

    def stds(self, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
        """Return standard deviations of the probability of the class, shape (m,)."""
        if mean.ndim == 1:
            places, weights = np.polynomial.hermite_e.hermegauss(_NODES)
            values = self._of(mean[:, None] + std[:, None] * places)
            weights = weights / weights.sum()
            centre = values @ weights
            spread: np.ndarray = np.sqrt((values - centre[:, None]) ** 2 @ weights)
            return spread
        return np.concatenate([part.std(1) for part in self._draws(mean, std)])

    def quantiles(self, mean: np.ndarray, std: np.ndarray, levels: Sequence[float]) -> np.ndarray:
        """Return quantiles of the probability of the class, shape (m, len(levels)); exact for two classes."""
        if mean.ndim == 1:
            return self._of(mean[:, None] + std[:, None] * ndtri(np.asarray(levels)))
        return np.concatenate([np.quantile(part, levels, axis=1).T for part in self._draws(mean, std)])

    def of_samples(self, values: np.ndarray) -> np.ndarray:
        """Return the probability of the class, (m, s), in samples of the latent functions, (m, s) or (m, K, s)."""
        found = self._of(values)
        return found if values.ndim == 2 else found[:, self.target] / found.sum(1)

    def _draws(self, mean: np.ndarray, std: np.ndarray) -> list[np.ndarray]:
        """Return the probability of the class, (m, s), at the same joint values of the functions at each point."""
        count = mean.shape[1]
        # Evenly spread instead of random, and the same at each point: curves of quantiles have no jitter.
        values = ndtri(qmc.Sobol(count, seed=np.random.default_rng(0)).random_base2(_LOG2_DRAWS)).T  # (K, s)
        step = max(1, _NUMBERS // values.size)
        return [
            self.of_samples(mean[start : start + step, :, None] + std[start : start + step, :, None] * values)
            for start in range(0, len(mean), step)
        ]

    def _of(self, latent: np.ndarray) -> np.ndarray:
        return self.likelihood.probability(torch.from_numpy(np.asarray(latent))).clamp_min(_LEAST).numpy()
