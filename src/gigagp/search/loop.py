"""`Search`: where to evaluate an expensive function next."""

from __future__ import annotations

import threading
import warnings
from contextlib import suppress
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import torch
from scipy.spatial.distance import cdist
from sklearn.base import clone

from gigagp.errors import FitWarning, InvalidInputError, NotPositiveDefiniteError
from gigagp.inference import Inference
from gigagp.inference.contract.rows_posterior import RowsPosterior
from gigagp.kernels import Kernel, Matern
from gigagp.model.likelihoods import Gaussian, resolve_likelihood
from gigagp.regression import GPRegressor
from gigagp.search.acquisition import log_expected_improvement, maximize, minus_sample
from gigagp.settings.fields import Count, checks_arguments
from gigagp.settings.random import RandomState, generator_from
from gigagp.tables import intake

#: Hyperparameters are learned again once the told rows have grown by this share, or when a value surprises by this many
#: deviations; and without regard to the earlier ones once the rows have grown by this factor.
_GROWTH, _SURPRISE, _ANEW = 0.1, 4.0, 2.0
#: Best rows around which candidates are gathered.
_BEST_ROWS = 2
#: Told and failed points around a failed one that say whether it failed by chance or because of where it is.
_AROUND_FAILED = 4
#: Distance in widths of the box within which a told point is one that was asked for, and an asked one is new.
_SAME = 1e-9


class Best(NamedTuple):
    """The best value that was told, and where.

    Attributes
    ----------
    x : ndarray of shape (d,)
    y : float
    """

    x: np.ndarray
    y: float


class Search:
    """Bayesian optimization of a function of real inputs in a box, one `ask` and one `tell` after the other.

    When to use: for functions so expensive that half a second to choose the next point is nothing: experiments,
    simulations, trainings of models. It needs no further package; for several objectives, constraints or other
    acquisition functions, `gigagp.botorch` makes a fit a model of BoTorch.

    Parameters
    ----------
    bounds : array-like of shape (d, 2)
        Lower and upper bound of each input, which is a real number. There are no integers and no categories: for a
        whole number round what `ask` returns, evaluate there and tell the rounded point.
    maximize : bool, default False
        Whether large values are sought.
    acquisition : {"logei", "thompson"}, default "logei"
        What the next point maximizes: the log of the expected improvement (Ament et al. 2023, arXiv:2310.20708), or a
        sample of the posterior function, which suits large batches.
    regressor : GPRegressor, optional
        Its arguments are those of the model. None: ``GPRegressor(kernels.Matern(2.5))``. Inputs are told to it in
        widths of the box.
    n_initial : int, optional
        Number of points of a scrambled Sobol sequence that are asked for first. None: ``2 (d + 1)``.
    random_state : int or generator, default 0
        Source of all random numbers.

    Attributes
    ----------
    gp : GPRegressor or None
        Model of the values (of minus the values, with ``maximize=True``) on the unit cube; None until one was needed.

    Raises
    ------
    InvalidInputError
        If an argument is invalid.

    Notes
    -----
    Rows are added to the model at fixed hyperparameters (`GPRegressor.condition_on`). These are learned again after a
    tenth more rows, or after a value that the model gave no chance; learning starts from where they are, and afresh
    each time the number of rows has doubled. Points that are pending count as rows with their predicted values
    (Ginsbourger et al. 2010, doi:10.1007/978-3-642-10701-6_6). So do failed ones, but their values move from the
    predicted one towards the worst so far by the share of failures among the four points nearest to them: a failure by
    chance hides no optimum, and a region where all trials fail is left.

    Examples
    --------
    >>> from gigagp.search import Search
    >>> search = Search([(0, 1), (-5, 5)])
    >>> for _ in range(20):
    ...     (x,) = search.ask()
    ...     search.tell(x, (x[0] - 0.3) ** 2 + x[1] ** 2)
    >>> bool(search.best.y < 0.01)
    True
    """

    @checks_arguments
    def __init__(
        self,
        bounds: Any,
        *,
        maximize: bool = False,
        acquisition: Literal["logei", "thompson"] = "logei",
        regressor: Any = None,
        n_initial: Count | None = None,
        random_state: RandomState = 0,
    ) -> None:
        self._lower, self._upper = _checked_bounds(bounds)
        self.maximize, self.acquisition = maximize, acquisition
        self.n_inputs = d = len(self._lower)
        self.n_initial = 2 * (d + 1) if n_initial is None else n_initial
        self._regressor = GPRegressor(Matern(nu=2.5)) if regressor is None else _checked_regressor(regressor)
        self._generator = generator_from(random_state)
        self._first = torch.quasirandom.SobolEngine(d, scramble=True, seed=self._seed())
        self._spread = torch.quasirandom.SobolEngine(d, scramble=True, seed=self._seed())
        self._asked = 0
        self._told, self._pending, self._failed = (np.zeros((0, d)) for _ in range(3))  # in widths of the box
        self._y = np.zeros(0)
        self._n_learned = self._n_anew = 0
        self.gp: GPRegressor | None = None
        self._lock = threading.Lock()

    # Asking and telling -----------------------------------------------------------------------------------------------

    @checks_arguments
    def ask(self, n: Count = 1) -> np.ndarray:
        """Return points to evaluate next, shape (n, d).

        They are pending until they are told, so that a further `ask` returns other points. Before two values are told,
        all points are those of the Sobol sequence. Several threads may ask and tell; one at a time is served.

        Parameters
        ----------
        n : int, default 1
        """
        points = np.zeros((0, self.n_inputs))
        with self._lock:
            while len(points) < n:
                by_model = self._asked >= self.n_initial and len(self._y) > 1
                one = self._suggest(points) if by_model else self._sobol()
                self._asked += 1
                points = np.concatenate([points, one[None]])
            self._pending = np.concatenate([self._pending, points])
        return self._own(points)

    def tell(self, x: Any, y: Any) -> None:
        """Report values, of points that were asked for or of any others in the box.

        Parameters
        ----------
        x : array-like of shape (d,) or (k, d)
            Points.
        y : float or array-like of shape (k,)
            Values. A trial that failed has none: report it by `tell_failed`.

        Raises
        ------
        InvalidInputError
            If a value is not finite, a point is not in the box, or their numbers differ; nothing is taken then.
        """
        points = self._checked_points(x, "tell")
        values = intake.numbers(y, "y of Search.tell", finite=False).reshape(-1)
        if len(values) != len(points):
            msg = f"y of Search.tell must have a value for each of {len(points)} point(s); got {len(values)}."
            raise InvalidInputError(msg)
        if not np.isfinite(values).all():
            raise InvalidInputError(
                f"y of Search.tell must be finite; got {values[~np.isfinite(values)][0]}. Report a failed trial "
                "with tell_failed(x)."
            )
        values = -values if self.maximize else values
        with self._lock:
            self._settle(points)
            self._told, self._y = np.concatenate([self._told, points]), np.concatenate([self._y, values])

    def tell_failed(self, x: Any) -> None:
        """Report that evaluations failed; later points keep away from there.

        Parameters
        ----------
        x : array-like of shape (d,) or (k, d)
            Points.

        Raises
        ------
        InvalidInputError
            If a point is not in the box.
        """
        points = self._checked_points(x, "tell_failed")
        with self._lock:
            self._settle(points)
            self._failed = np.concatenate([self._failed, points])

    # What is known ----------------------------------------------------------------------------------------------------

    @property
    def X(self) -> np.ndarray:
        """Points that were told with their values, shape (n, d)."""
        return self._own(self._told)

    @property
    def y(self) -> np.ndarray:
        """Values that were told, shape (n,)."""
        return -self._y if self.maximize else self._y.copy()

    @property
    def pending(self) -> np.ndarray:
        """Points that were asked for and not told yet, shape (k, d)."""
        return self._own(self._pending)

    @property
    def failed(self) -> np.ndarray:
        """Points whose evaluation failed, shape (m, d)."""
        return self._own(self._failed)

    @property
    def best(self) -> Best:
        """The best value that was told, and where; with noisy values, it is a lucky one.

        Raises
        ------
        InvalidInputError
            If nothing was told.
        """
        if not len(self._y):
            raise InvalidInputError("Search has no best value yet. Report a value with tell first.")
        place = int(self._y.argmin())
        return Best(self.X[place], float(self.y[place]))

    # The model --------------------------------------------------------------------------------------------------------

    def _fit(self) -> GPRegressor:
        """Return the model of all told rows, learned again if that is worthwhile.

        Warnings about the fit are left out: without noise, learning often ends where the matrix has no factor.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            return self._learned()

    def _learned(self) -> GPRegressor:
        n = len(self._y)
        if self.gp is None or n >= _ANEW * self._n_anew:
            return self._learn_anew()
        have = self.gp.posterior_.n_rows
        if have == n:
            return self.gp
        X, y = self._told[have:], self._y[have:]
        mean, std = self.gp.predict(X, return_std=True, include_noise=True)
        surprising = bool((np.abs(y - mean) > _SURPRISE * std).any())
        refit = (surprising or n >= (1 + _GROWTH) * self._n_learned) and self.gp.optimizer is not None
        if refit and not isinstance(self.gp.posterior_, RowsPosterior):
            return self._learn_anew()
        try:
            self.gp = self.gp.condition_on(X, y, refit=refit)
        except NotPositiveDefiniteError:  # repeated rows ask for more noise than there was
            return self._learn_anew()
        self._n_learned = n if refit else self._n_learned
        return self.gp

    def _learn_anew(self) -> GPRegressor:
        self.gp = clone(self._regressor).fit(self._told, self._y)
        self._n_learned = self._n_anew = len(self._y)
        return self.gp

    def _suggest(self, chosen: np.ndarray) -> np.ndarray:
        """Return the next point of the unit cube, after those that were chosen for the same batch."""
        gp = self._fit()
        waiting = np.concatenate([self._pending, chosen])
        rows = np.concatenate([waiting, self._failed])
        at_rows = gp.predict(self._told)
        order = at_rows.argsort()[:_BEST_ROWS]
        if len(rows):
            lies = gp.predict(rows)
            lies[len(waiting) :] = self._values_of_failed(lies[len(waiting) :])
            with suppress(NotPositiveDefiniteError):  # the kernel matrix has no factor then
                gp = gp.condition_on(rows, lies)
        posterior, scaling = gp.posterior_, gp.scaling_
        if self.acquisition == "logei":
            best = float(scaling.targets(at_rows.min(keepdims=True)[:, None])[0, 0])
            found = maximize(
                log_expected_improvement(posterior, scaling, best), self._spread, self._told[order], self._seed()
            )
        else:
            functions = posterior.sample_functions(1, self._generator)
            sample = minus_sample(functions, posterior, scaling, 0)
            found = maximize(sample, self._spread, self._told[order], self._seed())
        known = np.concatenate([self._told, rows])
        for point in found:
            if np.abs(known - point).max(1).min() > _SAME:
                return point
        return self._sobol()

    def _values_of_failed(self, believed: np.ndarray) -> np.ndarray:
        """Return values for the failed points, between those that are believed and the worst that was told."""
        n, m = len(self._told), len(self._failed)
        distances = cdist(self._failed, np.concatenate([self._told, self._failed]))
        distances[np.arange(m), n + np.arange(m)] = np.inf  # a point is not beside itself
        nearest = distances.argsort(1)[:, :_AROUND_FAILED]
        found: np.ndarray = believed + (nearest >= n).mean(1) * (self._y.max() - believed).clip(min=0)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    # Helpers ----------------------------------------------------------------------------------------------------------

    def _seed(self) -> int:
        return int(torch.randint(2**31, (), generator=self._generator))

    def _sobol(self) -> np.ndarray:
        found: np.ndarray = self._first.draw(1, dtype=torch.float64)[0].numpy()
        return found

    def _own(self, points: np.ndarray) -> np.ndarray:
        """Return points of the unit cube in the units of the bounds, and not beyond them by rounding."""
        found: np.ndarray = (self._lower + points * (self._upper - self._lower)).clip(self._lower, self._upper)
        return found

    def _checked_points(self, x: Any, method: str) -> np.ndarray:
        """Return points in widths of the box."""
        name = f"x of Search.{method}"
        points = intake.numbers(x, name)
        points = points[None] if points.ndim == 1 else points
        if points.ndim != 2 or points.shape[1] != self.n_inputs:
            msg = f"{name} must have shape ({self.n_inputs},) or (k, {self.n_inputs}); got {np.shape(x)}."
            raise InvalidInputError(msg)
        unit = (points - self._lower) / (self._upper - self._lower)
        outside = ~((unit >= -_SAME) & (unit <= 1 + _SAME)).all(1)
        if outside.any():
            raise InvalidInputError(f"{name} must lie within the bounds; got {points[outside][0].tolist()}.")
        return unit.clip(0.0, 1.0)

    def _settle(self, points: np.ndarray) -> None:
        """Remove points from the pending ones."""
        for point in points:
            same = np.flatnonzero(np.abs(self._pending - point).max(1) <= _SAME)
            self._pending = np.delete(self._pending, same[:1], 0)


def _checked_bounds(bounds: Any) -> tuple[np.ndarray, np.ndarray]:
    found = intake.numbers(bounds, "bounds of Search")
    if found.ndim != 2 or found.shape[1] != 2 or not len(found):
        msg = f"bounds of Search must be pairs (lower, upper), one for each input; got shape {found.shape}."
        raise InvalidInputError(msg)
    lower, upper = found.T
    with np.errstate(over="ignore"):
        wrong = np.flatnonzero(~(lower < upper) | ~np.isfinite(upper - lower))
    if len(wrong):
        msg = f"bounds of Search must have lower < upper; got {found[wrong[0]].tolist()} for input {wrong[0]}."
        raise InvalidInputError(msg)
    return lower, upper


def _checked_regressor(regressor: Any) -> GPRegressor:
    if not isinstance(regressor, GPRegressor):
        raise InvalidInputError(f"regressor of Search must be a GPRegressor; got {regressor!r}.")
    if not (regressor.kernel is None or isinstance(regressor.kernel, Kernel)):
        _refuse(regressor, "kernel", "must be a kernel, because a mixture of several is not normal")
    if not isinstance(regressor.mean, str):
        _refuse(regressor, "mean", 'must be "zero", "constant" or "linear": a known function has no derivative')
    if regressor.target_transform != "none":
        _refuse(regressor, "target_transform", 'must be "none": transform the values before you tell them')
    if regressor.encode != "strict":
        _refuse(regressor, "encode", 'must be "strict", because all inputs are numbers')
    how = regressor.inference
    if isinstance(how, Inference) and (not how.abilities.adds_rows or how.abilities.takes_bounds):
        _refuse(regressor, "inference", "must be one that adds rows anywhere, such as inference.Exact() or Vecchia()")
    if np.ndim(regressor.noise_variance):
        _refuse(regressor, "noise_variance", "must be one number or None")
    if not isinstance(resolve_likelihood(regressor.likelihood), Gaussian):
        _refuse(regressor, "likelihood", 'must be "gaussian"')
    return regressor


def _refuse(regressor: GPRegressor, name: str, allowed: str) -> NoReturn:
    raise InvalidInputError(f"{name} of the regressor of Search {allowed}; got {getattr(regressor, name)!r}.")
