"""An Optuna sampler made of `gigagp.search.Search`.

    pip install gigagp optuna
    python examples/optuna_sampler.py

It suggests the real parameters that all trials have in common, with logarithmic ones on their log. Integers, steps and
categories are drawn at random, as `sample_independent` does for every parameter that is not in the common space.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from gigagp.search import Search


class GigaSampler(optuna.samplers.BaseSampler):
    """Bayesian optimization by a Gaussian process, for studies with one objective.

    Parameters
    ----------
    seed : int, default 0
        Seed of all random numbers.
    options
        Further arguments of `Search`: ``acquisition``, ``regressor``, ``n_initial``.
    """

    def __init__(self, seed: int = 0, **options: Any) -> None:
        self._seed, self._options = seed, options
        self._random = optuna.samplers.RandomSampler(seed=seed)
        self._common = optuna.search_space.IntersectionSearchSpace()
        self._current: _Box | None = None  # threads of a study see a whole one, or none

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the real parameters that all completed trials have."""
        space = self._common.calculate(study)
        return {
            name: one
            for name, one in space.items()
            if isinstance(one, FloatDistribution) and one.step is None and not one.single()
        }

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the next point."""
        if not search_space:
            return {}
        box = self._current
        if box is None or box.space != search_space:
            box = self._current = self._begin(study, search_space)
        (x,) = box.search.ask()
        return box.values(x)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a random value."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Tell the search what a trial has brought."""
        if self._current is not None:
            self._current.tell(trial, None if state == TrialState.FAIL or not values else values[0])

    def _begin(self, study: Study, space: dict[str, BaseDistribution]) -> _Box:
        """Return a search over this space, with what is known there."""
        reals = {name: one for name, one in space.items() if isinstance(one, FloatDistribution)}
        maximize = study.direction == StudyDirection.MAXIMIZE
        box = _Box(reals, maximize=maximize, random_state=self._seed, **self._options)
        for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            box.tell(trial, trial.value)
        return box


class _Box:
    """A search over real parameters.

    Parameters
    ----------
    space : dict of str to FloatDistribution
    options
        Arguments of `Search`.
    """

    def __init__(self, space: dict[str, FloatDistribution], **options: Any) -> None:
        self.space = space
        self.search = Search([(_number(one, one.low), _number(one, one.high)) for one in space.values()], **options)

    def tell(self, trial: FrozenTrial, value: float | None) -> None:
        """Tell what a trial has brought; None, and a value that is not finite, count as a failure."""
        if not all(one.low <= trial.params.get(name, math.inf) <= one.high for name, one in self.space.items()):
            return  # the study has other parameters or ranges too
        x = [_number(one, trial.params[name]) for name, one in self.space.items()]
        if value is None or not math.isfinite(value):
            self.search.tell_failed(x)
        else:
            self.search.tell(x, value)

    def values(self, x: Sequence[float]) -> dict[str, Any]:
        """Return the values of the parameters at a point of the search."""
        numbers = zip(self.space.items(), x, strict=True)
        found = {name: math.exp(number) if one.log else float(number) for (name, one), number in numbers}
        return {name: min(max(found[name], one.low), one.high) for name, one in self.space.items()}


def _number(one: FloatDistribution, value: float) -> float:
    return math.log(value) if one.log else value


def main() -> None:
    """Minimize a function of two parameters, one of them on a log scale."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=GigaSampler())

    def objective(trial: optuna.Trial) -> float:
        rate, share = trial.suggest_float("rate", 1e-5, 1.0, log=True), trial.suggest_float("share", 0.0, 1.0)
        return math.log10(rate / 1e-3) ** 2 + (share - 0.3) ** 2

    study.optimize(objective, n_trials=30)
    print(f"best value {study.best_value:.2e} at {study.best_params}")


if __name__ == "__main__":
    main()
