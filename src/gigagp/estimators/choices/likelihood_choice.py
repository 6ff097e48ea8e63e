"""The choice of a likelihood by the targets: ``likelihood="auto"``.

Targets that are counts, shares or positive may have a likelihood of their own. Each that they allow is learned from a
few rows, the simplest first, and takes the place of the one before it, Gaussian noise at the start, if it is surely
better by evidence and by left-out rows. All are compared by densities, or probabilities, of the same targets in their
own units: of counts, Gaussian noise has the probability of what is rounded to each. If Gaussian noise stays, it is
compared with Student-t noise (`gigagp.estimators.choices.noise_choice`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from gigagp.errors import UNUSABLE, InvalidInputError
from gigagp.estimators.arguments import Arguments, Problem, with_likelihood
from gigagp.estimators.choices import noise_choice
from gigagp.estimators.choices.candidates import n_learned
from gigagp.estimators.choices.noise_choice import Choice
from gigagp.estimators.choices.trials import Trial, few_values, held_exactly, learned
from gigagp.inference import Inference, Vecchia
from gigagp.model.likelihoods import (
    Beta,
    Censored,
    Gamma,
    Gaussian,
    Likelihood,
    NegativeBinomial,
    Poisson,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)
from gigagp.model.model import Model
from gigagp.runtime.run import unshown
from gigagp.tables.beside import Beside

#: Rows of the comparison, up to which Laplace's approximation is dense algebra, and the fewest that can tell.
_ROWS, _FEWEST_ROWS = 200, 20
#: Steps from Gaussian noise of counts as numbers.
_STEPS_FROM_NEAR = 6


class _Kind(NamedTuple):
    """What targets are, and the likelihoods for that, simpler ones first."""

    words: str
    likelihoods: tuple[Likelihood, ...]


def _kind(y: np.ndarray) -> _Kind:
    """Return what targets of any shape are."""
    if y.min() >= 0 and y.max() > 1 and bool((y == np.round(y)).all()):
        with_zeros = (ZeroInflatedPoisson(), ZeroInflatedNegativeBinomial()) if y.min() == 0 else ()
        return _Kind("counts", (Poisson(), NegativeBinomial(), *with_zeros))
    if y.min() > 0:
        return _Kind("shares", (Beta(), Gamma())) if y.max() < 1 else _Kind("positive", (Gamma(),))
    return _Kind("numbers", ())


def of_rates(y: np.ndarray) -> Likelihood:
    """Return the simplest likelihood of rates for targets (n,) or (n, t), which an exposure or an offset asks for."""
    found = [one for one in _kind(y).likelihoods if one.exposure == "rate"]
    if not found:
        least = y.reshape(len(y), -1).min(1)
        row = int((least <= 0).argmax())
        raise InvalidInputError(
            'exposure and offset with likelihood="auto" need positive targets, or counts of which some are above 1; '
            f'got {least[row]:g} in row {row}. Give the likelihood, such as "binomial" for successes in trials.'
        )
    return found[0]


def choose(
    arguments: Arguments,
    X: np.ndarray,
    y: np.ndarray,
    beside: Beside,
    generator: torch.Generator,
    *,
    has_validation: bool = False,
) -> Choice:
    """Return the likelihood that explains up to 200 rows best, and why.

    Where there is an offset in ``beside``, it is one of rates. Likelihoods that do not go with the other arguments are
    not compared; those that are not of noise exclude validation rows.

    Raises
    ------
    InvalidInputError
        If the arguments leave no choice.
    """
    noise_choice.check_choice(arguments, y)
    y = y.reshape(-1)
    has_rate, kind = beside.offset is not None, _kind(y)
    candidates = [one for one in kind.likelihoods if one.exposure == "rate" or not has_rate]
    allowed = [one for one in candidates if not has_validation and _goes_with(arguments, one, has_rate)]
    if has_rate and not allowed:
        names = ", ".join(one.name for one in candidates)
        msg = f'likelihood="auto" of GPRegressor with exposure or offset is one of {names}, and none of them goes with '
        raise InvalidInputError(msg + "the other settings. Give the likelihood, which says why.")
    rows = np.sort(torch.randperm(len(y), generator=generator.clone_state()).numpy()[:_ROWS])
    is_told = kind.words == "counts" or few_values(y[rows]) is None
    words = ""
    if allowed and is_told and len(rows) >= _FEWEST_ROWS:
        compared = _Compared(arguments, X[rows], y[rows], beside.take(torch.from_numpy(rows)), kind.words, generator)
        best, words = compared.best(allowed if has_rate else [Gaussian(), *allowed])
        if not isinstance(best, Gaussian):
            return Choice(best, f"{best.name}, auto: {words}")
    if has_rate:
        return Choice(allowed[0], f"{allowed[0].name}, auto: too few rows to compare others")
    found = noise_choice.choose(arguments, X, y, generator)
    return found._replace(note="; ".join(filter(None, (found.note, words))))


def _goes_with(arguments: Arguments, likelihood: Likelihood, has_rate: bool) -> bool:
    """Whether a fit with a likelihood, and with an offset for rates, accepts the other arguments."""
    given = arguments.estimator.inference
    inference = given if isinstance(given, Inference) else Vecchia()
    if has_rate and inference.abilities.likelihoods != "any":
        return False
    try:
        inference.check_likelihood(likelihood)
        replace(arguments, likelihood=likelihood).check_for(inference)
    except InvalidInputError:
        return False
    return True


@dataclass(frozen=True)
class _Tried(Trial):
    """A likelihood after learning; its value is the evidence, less what its hyperparameters cost (Schwarz 1978)."""

    likelihood: Likelihood

    def against(self, other: _Tried) -> str:
        """Return in words what it gains over another one."""
        gain = self.gain(other)
        told = f"{gain.value:+.1f} nats over {other.likelihood.name}"
        return f"{told}, left out {gain.left_out:+.1f} ({gain.standard_error:.1f})"


@dataclass(frozen=True)
class _Compared:
    """Rows that likelihoods are compared on, and what their targets are."""

    arguments: Arguments
    X: np.ndarray  # (n, d)
    y: np.ndarray  # (n,)
    beside: Beside
    kind: str
    generator: torch.Generator

    def best(self, likelihoods: Sequence[Likelihood]) -> tuple[Likelihood, str]:
        """Return the likelihood at which a climb from the first one ends, and what each gains."""
        best: _Tried | None = None
        words, slowest = [], 0.0
        for likelihood in likelihoods:
            began = time.monotonic()
            if began + 2 * slowest > self.arguments.deadline:
                words.append(f"no time for {likelihood.name}")
                continue
            one = self._tried(likelihood, self.y)
            slowest = max(slowest, time.monotonic() - began)
            if one is None:
                words.append(f"{likelihood.name} could not be learned")
            elif best is not None:
                words.append(f"{likelihood.name} gains {one.against(best)}")
            if one is not None and (best is None or one.doubt(best) is None):
                best = one
        if best is not None and self.kind != "counts" and self.beside.offset is None:
            logs = self._tried(Gaussian(), np.log(self.y))
            jacobian = torch.from_numpy(np.log(self.y))
            if logs is not None:
                logs = replace(logs, value=logs.value - float(jacobian.sum()), densities=logs.densities - jacobian)
                if logs.doubt(best) is None:
                    words.append(f'target_transform="log" would gain {logs.against(best)}')
        told = f"{self.kind}, of {len(self.y):,} rows: {', '.join(words)}"
        return (likelihoods[0] if best is None else best.likelihood), told

    def _tried(self, likelihood: Likelihood, y: np.ndarray) -> _Tried | None:
        """Return a likelihood as learned from the rows, by Laplace's approximation; None if it cannot be.

        Gaussian noise of counts is that of targets within limits, half of one apart from each.
        """
        draws = self.generator.clone_state()
        try:
            if isinstance(likelihood, Gaussian):
                exact = noise_choice.trial(replace(self.arguments, likelihood=likelihood), self.X, y, draws)
                value, densities, model = exact.value, exact.densities, exact.posterior.model
                if self.kind == "counts":
                    limits = torch.from_numpy(np.stack([y - 0.5, y + 0.5], 1))
                    value, densities, model = self._by_laplace(Censored(), Beside(limits=limits), model)
            else:
                value, densities, model = self._by_laplace(likelihood, self.beside)
        except (InvalidInputError, *UNUSABLE):
            return None
        n_own = n_learned(model) - (not likelihood.has_noise)  # without the noise variance, which others ignore
        return _Tried(value - 0.5 * math.log(len(y)) * n_own, densities, likelihood)

    def _by_laplace(
        self, likelihood: Likelihood, beside: Beside, near: Model | None = None
    ) -> tuple[float, torch.Tensor, Model]:
        """Return the evidence, the log density of each row given all others, and the model that is learned.

        Learning takes few steps from a model that is ``near``.
        """
        arguments, draws = replace(self.arguments, likelihood=likelihood), self.generator.clone_state()
        problem = Problem.of(arguments, self.X, self.y, beside)
        table = held_exactly(problem.table())
        objective = Vecchia().objective(table, draws, likelihood)
        start = with_likelihood(problem.model if near is None else near, likelihood, table)
        steps = None if near is None else _STEPS_FROM_NEAR
        model = learned(objective, start, arguments.optimizer, draws, steps=steps)
        value = objective.evaluate(model).value
        with unshown():
            densities = objective.left_out_densities(model, draws)
        assert value is not None
        assert densities is not None, "few rows have a dense covariance"
        return value, densities, model
