"""`Search`: where to evaluate an expensive function next."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from os import PathLike
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import torch
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist
from sklearn.base import clone

from gigagp.errors import FitWarning, InvalidInputError, NotPositiveDefiniteError
from gigagp.estimators.answers.answering import predictor_of_rows
from gigagp.inference import Inference
from gigagp.inference.contract.rows_posterior import RowsPosterior
from gigagp.kernels import Kernel, Matern
from gigagp.model.likelihoods import Gaussian, resolve_likelihood
from gigagp.regression import GPRegressor
from gigagp.search import record
from gigagp.search.acquisition import log_expected_improvement, maximize, minus_sample
from gigagp.search.progress import draw_progress
from gigagp.search.space import SAME, Space
from gigagp.settings.fields import Count, Positive, checks_arguments
from gigagp.settings.random import RandomState, generator_from
from gigagp.tables import intake

#: Hyperparameters are learned again once the told rows have grown by this share, or when a value surprises by this many
#: deviations; and without regard to the earlier ones once the rows have grown by this factor.
_GROWTH, _SURPRISE, _ANEW = 0.1, 4.0, 2.0
#: Best rows around which candidates are gathered.
_BEST_ROWS = 2
#: Told and failed points around a failed one that say whether it failed by chance or because of where it is.
_AROUND_FAILED = 4
#: Most points of the Sobol sequence that are passed over because they are known or not feasible, and most points of a
#: space without real inputs that are looked at one by one.
_PASSED = 4096
#: Points of such a space up to which all are looked at where the sequence finds none.
_LISTED = 100_000
#: Suggestions that must all promise little before a search is done, and what is little by default: shares of the
#: standard deviations of the told values and of the noise.
_PATIENCE, _LITTLE, _LITTLE_NOISE = 3, 1e-3, 0.1


class Best(NamedTuple):
    """The best value that was told, and where.

    Attributes
    ----------
    x : ndarray of shape (d,), or dict
    y : float
    """

    x: Any
    y: float


class Search:
    """Bayesian optimization of a function of numbers and categories, by alternating `ask` and `tell`.

    When to use: for functions so expensive that half a second to choose the next point does not matter: experiments,
    simulations, training of models. It needs no other package. For several objectives, measured constraints or other
    acquisition functions, `gigagp.botorch` turns a fit into a BoTorch model, and `gigagp.search.optuna` has a sampler
    for Optuna.

    Parameters
    ----------
    bounds : mapping of str to tuple or list, or array-like of shape (d, 2)
        Allowed values of each input. In a dictionary, a pair of integers such as ``(1, 8)`` means an integer, any other
        pair of numbers a real number, ``(1e-5, 1e-1, "log")`` a real number on a log scale, and a list such as
        ``["a", "b"]`` or ``[False, True]`` categories. Points are then dictionaries. An array holds the lower and upper
        bounds of real inputs, and points are arrays of shape (d,).
    maximize : bool, default False
        Whether to maximize instead of minimize.
    acquisition : {"logei", "thompson"}, default "logei"
        What the next point maximizes: the log of the expected improvement (Ament et al. 2023, arXiv:2310.20708), or a
        sample of the posterior function, which suits large batches.
    regressor : GPRegressor, optional
        Template for the arguments of the model. None: ``GPRegressor(kernels.Matern(2.5))``. The model sees each input
        scaled by its bounds, from 0 to 1. The kernel is for the numeric inputs; it is multiplied by a `Categorical`
        kernel for each categorical input.
    n_initial : int, optional
        Number of initial points, from a scrambled Sobol sequence. None: ``2 (d + 1)``.
    feasible : callable, optional
        A cheap function of a point that returns whether it may be evaluated, such as
        ``lambda x: x["layers"] * x["width"] < 4096``.
    file : path, optional
        A JSON file that is written at every `ask` and `tell`. If it exists, the search continues from it, starting with
        the points whose values were never told. Only one process at a time may use it.
    random_state : int or generator, default 0
        Source of all random numbers; a search that continues from a file uses that of the file.

    Attributes
    ----------
    gp : GPRegressor or None
        Model of the values (of minus the values, with ``maximize=True``) on the unit cube; None until one was needed.
        An integer is one column, and a categorical input has a one-hot column for each value.

    Raises
    ------
    InvalidInputError
        If an argument is invalid, or ``file`` holds a search over other bounds.
    ModelFileError
        If ``file`` is damaged, or not a file of a search.

    Notes
    -----
    Rows are added to the model at fixed hyperparameters (`GPRegressor.condition_on`). These are learned again after a
    tenth more rows, or after a value that the model considered very unlikely. Learning starts from the current values,
    and from scratch each time the number of rows has doubled. Pending points count as rows with their predicted values
    (Ginsbourger et al. 2010, doi:10.1007/978-3-642-10701-6_6). So do failed points, with a value between the predicted
    one and the worst so far: the more of the four nearest points have failed, the closer it is to the worst. A single
    chance failure therefore does not hide an optimum, and the search leaves a region where all trials fail.

    The model sees integers and categories as they are evaluated, so the acquisition function is only ever computed at
    points that exist (Garrido-Merchán and Hernández-Lobato 2020, arXiv:1805.03463). If there are at most a thousand
    points, all are tried; otherwise gradient steps in the real inputs alternate with steps to neighbouring integers and
    categories.

    No point is suggested twice, unless different values at the same point have shown that there is noise, or all
    feasible points are known.

    Examples
    --------
    >>> from gigagp.search import Search
    >>> search = Search({"width": (0.0, 1.0), "layers": (1, 8), "kind": ["a", "b"]})
    >>> for _ in range(20):
    ...     (x,) = search.ask()
    ...     search.tell(x, (x["width"] - 0.3) ** 2 + (x["layers"] - 3) ** 2 + (x["kind"] == "a"))
    >>> search.best.x["layers"], search.best.x["kind"], bool(search.best.y < 0.01)
    (3, 'b', True)
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
        feasible: Any = None,
        file: str | PathLike[str] | None = None,
        random_state: RandomState = 0,
    ) -> None:
        self._space = Space(bounds, feasible)
        self.maximize, self.acquisition, self.file = maximize, acquisition, file
        self.n_inputs = d = len(self._space.inputs)
        self.n_initial = 2 * (d + 1) if n_initial is None else n_initial
        regressor = GPRegressor(Matern(nu=2.5)) if regressor is None else _checked_regressor(regressor)
        kernel = Matern(nu=1.5) if regressor.kernel is None else regressor.kernel  # steps leave no time to choose
        self._regressor = clone(regressor).set_params(kernel=self._space.kernel(kernel))
        self._entropy = int(torch.randint(2**31, (), generator=generator_from(random_state)))
        self._seeds = self._asked = first_drawn = spread_drawn = 0
        self._told = self._failed = self._pending = self._left = self._space.no_rows
        self._y = np.zeros(0)
        found = None if file is None else record.read(file, self._space, maximize)
        if found is not None:
            self._told, self._y, self._failed = found["told"], np.array(found["values"], dtype=float), found["failed"]
            self._left = found["pending"]  # of a process that has ended
            self._entropy, self._seeds, self._asked = found["entropy"], found["seeds"], found["asked"]
            first_drawn, spread_drawn = found["first_drawn"], found["spread_drawn"]
            self._y = -self._y if maximize else self._y
        self._first, self._spread = (
            torch.quasirandom.SobolEngine(d, scramble=True, seed=self._seed(which)).fast_forward(drawn)
            for which, drawn in ((0, first_drawn), (1, spread_drawn))
        )
        self._gains: list[float] = []
        self._n_learned = self._n_anew = 0
        self.gp: GPRegressor | None = None
        self._lock = threading.Lock()

    # Asking and telling -----------------------------------------------------------------------------------------------

    @checks_arguments
    def ask(self, n: Count = 1) -> Any:
        """Return points to evaluate next: an array of shape (n, d), or a list of n dictionaries.

        They are pending until their values are told, so another `ask` returns other points. Before two values are told,
        all points come from the Sobol sequence. Several threads may call `ask` and `tell`; calls are served one at a
        time.

        Parameters
        ----------
        n : int, default 1

        Raises
        ------
        InvalidInputError
            If no point allowed by ``feasible`` was found, or it does not return True or False.
        """
        with self._lock:
            rows = self._left[:n]
            while len(rows) < n:
                rows = np.concatenate([rows, self._next(rows)[None]])
            self._left = self._left[n:]
            self._pending = np.concatenate([self._pending, rows])
            self._save()
        return self._space.points(rows)

    def _next(self, chosen: np.ndarray) -> np.ndarray:
        """Return the next row, after those that were chosen for the same batch."""
        by_model = self._asked >= self.n_initial and len(self._y) > 1
        row = self._suggest(chosen) if by_model else self._sobol(chosen)
        self._asked += 1
        return row

    def tell(self, x: Any, y: Any) -> None:
        """Report values of suggested points, or of any others within the bounds.

        Parameters
        ----------
        x : array-like of shape (d,) or (k, d), or a dictionary or a list of k of them
            Points.
        y : float or array-like of shape (k,)
            Values. Report a failed trial, which has none, with `tell_failed`.

        Raises
        ------
        InvalidInputError
            If a value is not finite, a point is outside the bounds, or their numbers differ; in that case nothing is
            stored.
        """
        rows = self._space.rows(x, "x of Search.tell")
        values = intake.numbers(y, "y of Search.tell", finite=False).reshape(-1)
        if len(values) != len(rows):
            msg = f"y of Search.tell must have a value for each of {len(rows)} point(s); got {len(values)}."
            raise InvalidInputError(msg)
        if not np.isfinite(values).all():
            raise InvalidInputError(
                f"y of Search.tell must be finite; got {values[~np.isfinite(values)][0]}. Report a failed trial "
                "with tell_failed(x)."
            )
        values = -values if self.maximize else values
        with self._lock:
            self._settle(rows)
            self._told, self._y = np.concatenate([self._told, rows]), np.concatenate([self._y, values])
            self._save()

    def tell_failed(self, x: Any) -> None:
        """Report that evaluations failed; later suggestions avoid regions where many fail.

        Parameters
        ----------
        x : array-like of shape (d,) or (k, d), or a dictionary or a list of k of them
            Points.

        Raises
        ------
        InvalidInputError
            If a point is outside the bounds.
        """
        rows = self._space.rows(x, "x of Search.tell_failed")
        with self._lock:
            self._settle(rows)
            self._failed = np.concatenate([self._failed, rows])
            self._save()

    @checks_arguments
    def is_done(self, tolerance: Positive | None = None) -> bool:
        """Return whether further evaluations promise little: a stopping rule.

        True if each of the last three suggestions of the model was expected to improve the best value by less than
        ``tolerance``, or if every feasible point of a space without real inputs is known and no noise was seen. The
        model may be wrong: see `docs/botorch.md` on local optima.

        Parameters
        ----------
        tolerance : float, optional
            In units of the values. None: a thousandth of the standard deviation of the told values, or a tenth of that
            of the noise if it is larger.
        """
        with self._lock:
            if self._exhausted():
                return True
            if len(self._gains) < _PATIENCE or self.gp is None:
                return False
            if tolerance is None:
                noise = math.sqrt(float(np.max(self.gp.noise_variance_)))
                tolerance = max(_LITTLE * float(self._y.std()), _LITTLE_NOISE * noise)
            return max(self._gains[-_PATIENCE:]) < tolerance

    # What is known ----------------------------------------------------------------------------------------------------

    @property
    def X(self) -> Any:
        """Points that were told with their values: an array of shape (n, d), or a list of dictionaries."""
        return self._space.points(self._told)

    @property
    def y(self) -> np.ndarray:
        """Values that were told, shape (n,)."""
        return -self._y if self.maximize else self._y.copy()

    @property
    def pending(self) -> Any:
        """Suggested points without a value yet: an array of shape (k, d), or a list of dictionaries."""
        return self._space.points(self._pending)

    @property
    def failed(self) -> Any:
        """Points whose evaluation failed: an array of shape (m, d), or a list of dictionaries."""
        return self._space.points(self._failed)

    @property
    def best(self) -> Best:
        """The best value told so far, and its point; with noise it is better than the function there.

        Raises
        ------
        InvalidInputError
            If nothing was told.
        """
        if not len(self._y):
            raise InvalidInputError("Search has no best value yet. Report a value with tell first.")
        place = int(self._y.argmin())
        return Best(self._space.points(self._told[place : place + 1])[0], float(self.y[place]))

    def plot(self, ax: Any = None) -> Any:
        """Draw the values in the order in which they were told, and the best so far.

        Parameters
        ----------
        ax : matplotlib axes, optional
            None: axes of a new figure.

        Returns
        -------
        matplotlib axes

        Raises
        ------
        InvalidInputError
            If nothing was told, or matplotlib is not installed.
        """
        _ = self.best  # refuses a search without values
        return draw_progress(self.y, maximize=self.maximize, n_initial=self.n_initial, ax=ax)

    def __repr__(self) -> str:
        return f"Search over {'; '.join(self._space.describe())}; {len(self._y)} values told"

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
        """Return the next row, after those that were chosen for the same batch."""
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
        posterior, scaling = predictor_of_rows(gp).posterior, gp.scaling_
        best = float(scaling.targets(at_rows.min(keepdims=True)[:, None])[0, 0])
        improvement = log_expected_improvement(posterior, scaling, best)
        sought = improvement
        if self.acquisition == "thompson":
            functions = posterior.sample_functions(1, generator_from(self._seed()))
            sought = minus_sample(functions, posterior, scaling, 0)
        is_open = self._open(self._known(chosen, repeats=self._repeats_differ()))
        found = maximize(sought, self._space, self._spread, self._told[order], self._seed(), is_open)
        row = found[0] if len(found) else self._sobol(chosen)
        with torch.no_grad():
            gain = math.exp(float(improvement(torch.from_numpy(row[None])))) * float(scaling.y_scale[0])
        self._gains = [*self._gains, gain][-_PATIENCE:]
        return row

    # Which points are open --------------------------------------------------------------------------------------------

    def _known(self, chosen: np.ndarray, *, repeats: bool) -> np.ndarray:
        """Return the rows that are not asked for; with ``repeats`` those that were told may be."""
        told = self._space.no_rows if repeats else self._told
        return np.concatenate([told, self._pending, self._left, chosen, self._failed])

    def _open(self, known: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function of rows (m, width): whether each is feasible and none of the known ones, shape (m,)."""
        tree = cKDTree(known)

        def is_open(rows: np.ndarray) -> np.ndarray:
            found: np.ndarray = tree.query(rows, p=np.inf, distance_upper_bound=2 * SAME)[0] > SAME
            found[found] = self._space.allows(rows[found])
            return found

        return is_open

    def _repeats_differ(self) -> bool:
        """Whether values at equal points have differed."""
        _, which, counts = np.unique(self._told.round(9), axis=0, return_inverse=True, return_counts=True)
        if not (counts > 1).any():
            return False
        low, high = np.full(len(counts), np.inf), np.full(len(counts), -np.inf)
        np.minimum.at(low, which.ravel(), self._y)
        np.maximum.at(high, which.ravel(), self._y)
        return bool((high > low).any())

    def _exhausted(self) -> bool:
        """Whether every feasible point was told or has failed, without noise."""
        if self._space.n_points > len(self._told) + len(self._failed) and not self._space.constrained:
            return False
        if self._space.n_points > _PASSED or self._repeats_differ():
            return False
        known = np.concatenate([self._told, self._failed])
        return not self._open(known)(self._space.all_rows).any()

    def _sobol(self, chosen: np.ndarray) -> np.ndarray:
        """Return the next row of the Sobol sequence that is new; without any, one that is known."""
        is_open, rows = self._open(self._known(chosen, repeats=False)), self._space.no_rows
        while len(rows) < _PASSED:
            row = self._space.spread(self._first.draw(1, dtype=torch.float64).numpy())
            if is_open(row)[0]:
                return row[0]
            rows = np.concatenate([rows, row])
            if self._space.n_points <= _PASSED:
                rows = self._space.all_rows
                break
        if _PASSED < self._space.n_points <= _LISTED and not is_open(rows).any():
            rows = self._space.all_rows  # few of them are feasible, so that the sequence may pass them by
        for possible in (is_open(rows), self._space.allows(rows)):
            if possible.any():
                found: np.ndarray = np.random.default_rng(self._seed()).choice(rows[possible])
                return found
        raise InvalidInputError(
            f"feasible of Search allows none of {len(rows):,} points spread over the bounds. Give bounds that enclose "
            "the feasible points more tightly."
        )

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

    def _seed(self, which: int | None = None) -> int:
        """Return the seed with a number; None: the next one, which a file can count."""
        if which is None:
            self._seeds += 1
            which = self._seeds + 1
        return int(np.random.SeedSequence([self._entropy, which]).generate_state(1)[0])

    def _settle(self, rows: np.ndarray) -> None:
        """Remove rows from the pending ones."""
        for row in rows:
            for name in ("_pending", "_left"):
                waiting = getattr(self, name)
                same = np.flatnonzero(np.abs(waiting - row).max(1) <= SAME)
                setattr(self, name, np.delete(waiting, same[:1], 0))

    def _save(self) -> None:
        """Write the file, if there is one."""
        if self.file is None:
            return
        waiting = np.concatenate([self._left, self._pending])
        record.write(
            self.file,
            self._space,
            {"told": self._told, "failed": self._failed, "pending": waiting},
            maximize=self.maximize,
            values=self.y.tolist(),
            entropy=self._entropy,
            seeds=self._seeds,
            asked=self._asked,
            first_drawn=self._first.num_generated,
            spread_drawn=self._spread.num_generated,
        )


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
