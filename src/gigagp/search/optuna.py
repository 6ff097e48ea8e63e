"""A sampler for Optuna; the extra ``optuna`` installs it.

::

    import optuna
    from gigagp.search.optuna import GigaSampler

    study = optuna.create_study(sampler=GigaSampler())
    study.optimize(objective, n_trials=50)
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from gigagp.errors import InvalidInputError
from gigagp.search.loop import Search

__all__ = ["GigaSampler"]

#: Most values of a parameter with steps, which are the numbers of an integer input.
_MOST_STEPS = 10**7
#: States in which a trial has ended.
_ENDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


class GigaSampler(optuna.samplers.BaseSampler):
    """Bayesian optimization by `gigagp.search.Search`, for studies with one objective.

    It suggests the parameters that all completed trials have in common: real numbers, integers, steps, log scales and
    categories. Others are drawn at random. Trials completed by other processes are used too.

    Parameters
    ----------
    seed : int, default 0
        Seed of all random numbers.
    acquisition, regressor
        As for `Search`.
    n_initial : int, optional
        Number of trials before the model suggests points. None: ``2 (d + 1)`` for d parameters.

    Raises
    ------
    InvalidInputError
        If an argument is invalid, or, at the first trial, if the study has several objectives.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        acquisition: Literal["logei", "thompson"] = "logei",
        regressor: Any = None,
        n_initial: int | None = None,
    ) -> None:
        self._options = {"acquisition": acquisition, "regressor": regressor, "random_state": seed}
        Search([(0, 1)], n_initial=n_initial, **self._options)  # refuses invalid arguments before any trial
        self._n_initial = n_initial
        self._random = optuna.samplers.RandomSampler(seed=seed)
        self._common = optuna.search_space.IntersectionSearchSpace()
        self._current: _Known | None = None
        self._lock = threading.RLock()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the parameters that all completed trials have in common, and that can vary."""
        if len(study.directions) > 1:
            msg = f"GigaSampler is for studies with one objective; got {len(study.directions)}. Use another sampler."
            raise InvalidInputError(msg)
        space = self._common.calculate(study)
        return {name: one for name, one in space.items() if not one.single() and _bounds(one) is not None}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the next point."""
        if not search_space:
            return {}
        with self._lock:
            if self._current is None or self._current.space != search_space:
                self._current = self._begin(study, search_space)
            for other in study.get_trials(deepcopy=False, states=_ENDED):
                self._current.tell(other, other.state, other.value)
            (x,) = self._current.search.ask()
            return {name: _value(one, x[name]) for name, one in search_space.items()}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a random value."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Tell the search the result of a trial."""
        with self._lock:
            if self._current is not None:
                self._current.tell(trial, state, values[0] if values else None)

    def _begin(self, study: Study, space: Mapping[str, BaseDistribution]) -> _Known:
        """Return a search over a space that no trial was told to; earlier trials count as first points."""
        wanted = 2 * (len(space) + 1) if self._n_initial is None else self._n_initial
        n_initial = max(1, wanted - len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))))
        maximize = study.direction == StudyDirection.MAXIMIZE
        return _Known(space, n_initial=n_initial, maximize=maximize, **self._options)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())


class _Known:
    """A search over a space of parameters, and the trials that were told to it."""

    def __init__(self, space: Mapping[str, BaseDistribution], **options: Any) -> None:
        self.space = dict(space)
        self.search = Search({name: _bounds(one) for name, one in space.items()}, **options)
        self._told: set[int] = set()

    def tell(self, trial: FrozenTrial, state: TrialState, value: float | None) -> None:
        """Tell the result of a trial once; a value that is not finite counts as a failure."""
        if trial.number in self._told:
            return
        self._told.add(trial.number)
        if not all(name in trial.params and _contains(one, trial.params[name]) for name, one in self.space.items()):
            return  # it had other parameters or ranges
        x = {name: _inner(one, trial.params[name]) for name, one in self.space.items()}
        if state == TrialState.FAIL or value is None or not math.isfinite(value):
            self.search.tell_failed(x)
        else:
            self.search.tell(x, value)


def _bounds(one: BaseDistribution) -> Any:
    """Return a parameter as bounds of `Search`, by the numbers of its steps or categories; None if it has too many."""
    if isinstance(one, CategoricalDistribution):
        return list(range(len(one.choices)))
    assert isinstance(one, FloatDistribution | IntDistribution)
    if one.log and not (isinstance(one, IntDistribution) and one.high > _MOST_STEPS):
        return one.low, one.high, "log"
    if one.step is None:
        return one.low, one.high
    steps = round((one.high - one.low) / one.step)
    return (0, steps) if steps <= _MOST_STEPS else None


def _contains(one: BaseDistribution, value: Any) -> bool:
    """Whether a value may come from this distribution."""
    try:
        return one._contains(one.to_internal_repr(value))
    except (TypeError, ValueError):
        return False


def _inner(one: BaseDistribution, value: Any) -> Any:
    """Return a value of a parameter as `Search` has it."""
    if isinstance(one, CategoricalDistribution):
        return int(one.to_internal_repr(value))
    assert isinstance(one, FloatDistribution | IntDistribution)
    return value if one.log or one.step is None else round((value - one.low) / one.step)


def _value(one: BaseDistribution, inner: Any) -> Any:
    """Return the value of a parameter from that of `Search`."""
    if isinstance(one, CategoricalDistribution):
        return one.choices[inner]
    assert isinstance(one, FloatDistribution | IntDistribution)
    return inner if one.log or one.step is None else min(one.low + inner * one.step, one.high)
