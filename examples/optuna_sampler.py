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
        self._space: dict[str, FloatDistribution] = {}
        self._search: Search | None = None

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
        if search_space != self._space:
            self._begin(study, search_space)
        assert self._search is not None
        (x,) = self._search.ask()
        return {name: self._value(name, number) for name, number in zip(self._space, x, strict=True)}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a random value."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Tell the search what a trial has brought."""
        if self._search is not None and self._space.keys() <= trial.params.keys():
            self._tell(trial, None if state == TrialState.FAIL or not values else values[0])

    def _begin(self, study: Study, space: dict[str, BaseDistribution]) -> None:
        """Begin a search over this space, with what is known there."""
        self._space = {name: one for name, one in space.items() if isinstance(one, FloatDistribution)}
        box = [(self._number(name, one.low), self._number(name, one.high)) for name, one in self._space.items()]
        maximize = study.direction == StudyDirection.MAXIMIZE
        self._search = Search(box, maximize=maximize, random_state=self._seed, **self._options)
        for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            self._tell(trial, trial.value)

    def _tell(self, trial: FrozenTrial, value: float | None) -> None:
        assert self._search is not None
        x = [self._number(name, trial.params[name]) for name in self._space]
        if value is None:
            self._search.tell_failed(x)
        else:
            self._search.tell(x, value)

    def _number(self, name: str, value: float) -> float:
        return math.log(value) if self._space[name].log else value

    def _value(self, name: str, number: float) -> float:
        one = self._space[name]
        value = math.exp(number) if one.log else float(number)
        return min(max(value, one.low), one.high)


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
