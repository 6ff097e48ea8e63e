"""Tune two numbers and a choice with Optuna, by a Gaussian process: ``pip install "gigagp[optuna]"``."""

import math

import optuna

from gigagp.search.optuna import GigaSampler


def loss(trial: optuna.Trial) -> float:
    """Stand for the training of a model."""
    rate = trial.suggest_float("rate", 1e-5, 1.0, log=True)
    layers = trial.suggest_int("layers", 1, 8)
    return math.log10(rate / 1e-3) ** 2 + (layers - 3) ** 2 + (trial.suggest_categorical("kind", ["a", "b"]) == "a")


optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(sampler=GigaSampler())
study.optimize(loss, n_trials=30)
print(f"best value {study.best_value:.2e} at {study.best_params}")
