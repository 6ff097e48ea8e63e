"""The examples run; those that need packages beyond the test extra are skipped without them."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_optuna_sampler(capsys):
    optuna = pytest.importorskip("optuna")
    sampler = runpy.run_path(str(EXAMPLES / "optuna_sampler.py"))["GigaSampler"]
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial):
        x, kind = trial.suggest_float("x", 1e-3, 10.0, log=True), trial.suggest_categorical("kind", ["a", "b"])
        if trial.number == 7:
            raise RuntimeError("a failed trial")
        return -((x - 0.1) ** 2) - (kind == "b")

    study = optuna.create_study(sampler=sampler(n_initial=4), direction="maximize")
    study.optimize(objective, n_trials=25, catch=(RuntimeError,))
    assert abs(study.best_params["x"] - 0.1) < 0.02
    assert study.best_params["kind"] == "a"
    assert len(study.sampler._search.failed) == 1
    assert len(study.sampler._search.pending) == 0
