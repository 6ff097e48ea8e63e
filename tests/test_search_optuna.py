"""`gigagp.search.optuna`: every kind of parameter is learned, and what other trials and processes did is known."""

from __future__ import annotations

import math
import pickle

import pytest

from gigagp.errors import InvalidInputError

optuna = pytest.importorskip("optuna")

from gigagp.search.optuna import GigaSampler  # noqa: E402  (needs Optuna)


@pytest.fixture(autouse=True)
def quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def loss(trial):
    x = trial.suggest_float("x", 1e-3, 10.0, log=True)
    n = trial.suggest_int("n", 10, 50, step=10)
    size = trial.suggest_int("size", 1, 1024, log=True)
    share = trial.suggest_float("share", 0.1, 0.9, step=0.2)
    kind = trial.suggest_categorical("kind", ["a", "b", None])
    trial.suggest_categorical("alone", ["only"])
    if trial.number == 9:
        raise RuntimeError("a failed trial")
    far = math.log10(x / 0.1) ** 2 + ((n - 30) / 20) ** 2 + 0.3 * math.log2(size / 32) ** 2 + (share - 0.7) ** 2
    return -far - (kind is not None)


@pytest.mark.slow
def test_every_kind_of_parameter_is_learned():
    def best(sampler):
        study = optuna.create_study(sampler=sampler, direction="maximize")
        study.optimize(loss, n_trials=45, catch=(RuntimeError,))
        return study

    study = best(GigaSampler())
    assert study.best_value > -0.02
    assert study.best_params["n"] == 30
    assert study.best_params["kind"] is None
    assert study.best_params["share"] == pytest.approx(0.7)
    search = study.sampler._current.search
    assert (len(search.failed), search.pending) == (1, [])
    assert len(search.y) == 44
    assert best(optuna.samplers.RandomSampler(seed=0)).best_value < -0.1  # the control


def test_infinite_values_and_other_ranges():
    def objective(trial):
        x = trial.suggest_float("x", 0.0, 1.0 if trial.number < 14 else 2.0)
        return math.inf if trial.number % 5 == 3 else (x - 0.3) ** 2

    study = optuna.create_study(sampler=GigaSampler(n_initial=4))
    study.optimize(objective, n_trials=14)
    assert len(study.sampler._current.search.failed) == 3
    study.optimize(objective, n_trials=4)  # a wider range
    assert study.best_value < 0.01


@pytest.mark.slow
def test_threads_meet_where_the_search_begins():
    study = optuna.create_study(sampler=GigaSampler(n_initial=10))
    study.optimize(lambda trial: trial.suggest_float("x", 0.0, 1.0), n_trials=16, n_jobs=8)
    assert len(study.trials) == 16
    search = study.sampler._current.search
    assert len(search.y) <= 16
    assert search.pending.__len__() == 0


def test_trials_of_others_are_told():
    """A study that other samplers, as of other processes, have begun; and a sampler that was pickled."""

    def objective(trial):
        return (trial.suggest_float("x", 0.0, 1.0) - 0.3) ** 2

    study = optuna.create_study(sampler=GigaSampler())
    study.optimize(objective, n_trials=3)
    other = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    other.optimize(objective, n_trials=20)
    study.add_trials(other.trials)
    study.sampler = pickle.loads(pickle.dumps(study.sampler))
    study.optimize(objective, n_trials=2)
    search = study.sampler._current.search
    assert len(search.y) == 25
    assert search.gp is not None  # with so many trials, no first points are wanted
    assert study.best_value < 1e-5


def test_what_it_cannot_do_is_refused():
    with pytest.raises(InvalidInputError, match="acquisition of Search"):
        GigaSampler(acquisition="ei")
    with pytest.raises(InvalidInputError, match="n_initial of Search"):
        GigaSampler(n_initial=0)
    study = optuna.create_study(sampler=GigaSampler(), directions=["minimize", "minimize"])
    with pytest.raises(InvalidInputError, match="for studies with one objective; got 2"):
        study.optimize(lambda trial: (trial.suggest_float("x", 0, 1), 1.0), n_trials=1)
