"""The bound for Student-t noise by exact inference, and the weights of rows for any inference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import FitWarning, InvalidInputError, warn
from gigagp.inference.contract.exact_posterior import ExactPosterior, Factorised, require_factor, warn_of_float64
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.model import NOISE, Model
from gigagp.model.student_noise import (
    START_DF,
    StudentNoise,
    expected_weights,
    most_likely_df,
    most_likely_noise,
    sites,
)
from gigagp.optimization.fisher import fisher_information
from gigagp.optimization.objective import Evaluation
from gigagp.optimization.space import ParameterSpace
from gigagp.products.dense import symmetric_inverse
from gigagp.runtime.machine import FACTOR_SECONDS, slowness

#: Rounds of weights and the posterior of the function: the most, and the gain in nats a row that ends them.
_ROUNDS, _GAIN = 30, 2e-5
#: Rounds at the end of a fit, and their gain.
_LAST_ROUNDS, _LAST_GAIN = 100, 1e-8
#: Gain in nats a row that may be missed without a warning, and the largest change of a weight's logarithm ahead of the
#: rounds.
_MISSED, _AHEAD = 1e-4, 3.0
#: Rounds of the start, in which each row is predicted from the others.
_LEFT_OUT_ROUNDS = 2


class StudentObjective(TableObjective):
    """The bound of `gigagp.model.student_noise` with exact inference, at the best weights and degrees of freedom.

    The noise variance of a model is here the squared scale. Weights and degrees of freedom, unless these are given as
    ``df``, are found at each evaluation, from those of the last one, so that by the envelope theorem the gradient is
    that at given weights.
    """

    deterministic = True

    def __init__(self, table: TrainingTable, df: float | None) -> None:
        super().__init__(table)
        require_factor(table)
        self._given, self._df = df, df or START_DF
        self._weights: Tensor | None = None
        #: gain in nats of the last round of a search that did not end
        self._missed = 0.0
        self._last: _Evaluated | None = None

    @property
    def target_variance(self) -> float:
        """The squared median absolute deviation, in units of a normal distribution's, which outliers do not move."""
        gaps = (self.table.Y - self.table.Y.median()).abs()
        variance = (1.4826 * float(gaps.median())) ** 2
        return variance if variance > 0 else super().target_variance

    def ending_seconds(self) -> float:
        """Return the expected seconds of ten factors of all rows."""
        return 10 * slowness() * FACTOR_SECONDS * self.n_rows**3

    def subset(self, rows: Tensor) -> StudentObjective:  # type: ignore[override]  # it has what scoring asks for
        return StudentObjective(self.table.take_rows(rows), self._given)

    def thin(self, rows: Tensor) -> StudentObjective:
        return self.subset(rows)

    def _factorise(self, model: Model, weights: Tensor) -> _Evaluated:
        self._last = None  # free the factor of the last model before computing the next one
        noise = StudentNoise(self._df, float(model.noise_variance))
        known = replace(model, noise_variance=noise.squared_scale / weights, student=noise)
        return _Evaluated(Factorised.of(known, self.table))

    def _left_out(self, model: Model) -> Tensor:
        """Return weights from each row's prediction by the others.

        With equal weights at the start, a function that can follow an outlier hides it.
        """
        weights = torch.ones(self.n_rows, dtype=torch.float64, device=self.table.X.device)
        for _ in range(_LEFT_OUT_ROUNDS):
            at = self._factorise(model, weights)
            # Rasmussen and Williams 2006, eqs. 5.10 to 5.12; the row's own noise is that of weight one
            variance = 1 / at.precision.clamp_min(1e-300)
            latent = (variance - at.noise).clamp_min(0)
            scale = float(model.noise_variance)
            squares = (variance * at.solutions).square() * scale / (latent + scale)
            weights = expected_weights(squares, StudentNoise(self._df, scale))
        return weights

    def _converge(self, model: Model, rounds: int, gain: float) -> _Evaluated:
        """Return the state at a model with the best weights and degrees of freedom.

        Rounds of weights and squares gain ever less where many rows are far away. Every other round leaps ahead along
        its path (Varadhan and Roland 2008, "Simple and globally convergent methods for accelerating the convergence of
        any EM algorithm", https://doi.org/10.1111/j.1467-9469.2007.00585.x), and goes back where that gains nothing.
        """
        if self._weights is None or len(self._weights) != self.n_rows:
            self._weights = self._left_out(model)
        scale, value, self._missed = float(model.noise_variance), -float("inf"), 0.0
        path, behind = [self._weights.log()], None
        for count in range(rounds):
            at = self._factorise(model, self._weights)
            if not at.value >= value + gain * self.n_rows:
                if behind is None:
                    self._missed = 0.0
                    break
                self._weights, path, behind = behind, [behind.log()], None
                continue
            self._missed, value, squares = at.value - value, at.value, at.squares
            if self._given is None:
                self._df = most_likely_df(squares, scale)
            self._weights = expected_weights(squares, StudentNoise(self._df, scale))
            path, behind = [*path, self._weights.log()], None
            if len(path) == 3 and count < rounds - 2:
                behind, self._weights = self._weights, _leap(path, (self._df + 1) / self._df)
                path = [self._weights.log()]
        self._last = at
        return at

    def evaluate(self, model: Model) -> Evaluation:
        """Return the bound and its gradient."""
        at = self._converge(model, _ROUNDS, _GAIN)
        return Evaluation(at.value, at.gradient())

    def fisher(self, space: ParameterSpace, vector: Tensor, probes: Tensor) -> Tensor:
        """Return the Fisher information at the weights of the last evaluation."""
        assert self._last is not None, "evaluate comes first"
        state, weights = self._last.state, self._last.weights
        return fisher_information(
            replace(state.model, noise_variance=weights[:0].sum()),
            state.table.derivative_products,
            state.factor,
            space,
            vector,
            probes.to(state.factor),
            1 / weights,
        )

    def current_posterior(self) -> ExactPosterior | None:
        return None if self._last is None else ExactPosterior(self._last.state)

    def posterior(self, model: Model, generator: torch.Generator | None = None) -> ExactPosterior:
        """Return the posterior at a model, with weights that have converged."""
        found = ExactPosterior(self._converge(model, _LAST_ROUNDS, _LAST_GAIN).state)
        if self._missed > _MISSED * self.n_rows:
            msg = (
                f"the search for the weights of rows with Student-t noise ended early: its last round gained "
                f"{self._missed:.3g} nats. Mean and variance may be off. Use a larger noise_variance."
            )
            warn(msg, FitWarning)
        self._last = None
        warn_of_float64(self.table, found.table)
        return found

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return ({} if self._weights is None else {"weights": self._weights}), {"df": self._df}

    def restore(self, model: Model, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        self._weights, self._df = tensors.get("weights"), float(header["df"])


def _leap(path: list[Tensor], largest: float) -> Tensor:
    """Return weights ahead of two rounds, from logarithms of the weights before, between and after them."""
    start, once, twice = path
    step, bend = once - start, twice - 2 * once + start
    length = max(1.0, float(step.norm() / bend.norm().clamp_min(1e-300)))
    ahead = start + 2 * length * step + length**2 * bend
    return ahead.clamp(twice - _AHEAD, twice + _AHEAD).exp().clamp_max(largest)


class _Evaluated:
    """A factor at given weights, with what the bound needs of its inverse."""

    def __init__(self, state: Factorised) -> None:
        self.state = state
        self.noise = state.model.noise_variance.double()
        assert state.model.student is not None
        self.student = state.model.student
        self.weights = self.student.weights(self.noise)
        self.solutions = state.solutions[:, 0].double()
        self.inverse = symmetric_inverse(state.factor)
        self.precision = self.inverse.diagonal().double()
        self.value = state.value + sites(self.weights, self.student.df)

    @property
    def squares(self) -> Tensor:
        """Expected squares of the errors: ``E[e^2] = r + 2 r^2 d log Z / d r`` for the noise variance r of each row."""
        variance = self.noise * (1 - self.noise * self.precision)
        return (self.noise * self.solutions).square() + variance.clamp_min(0)

    def gradient(self) -> dict[str, Tensor]:
        """Return the gradient at these weights."""
        solutions, inverse = self.state.solutions, self.inverse

        def tile_weights(rows: slice, columns: slice) -> Tensor:
            return torch.addmm(inverse[rows, columns], solutions[rows], solutions[columns].T, beta=-0.5, alpha=0.5)

        gradient = self.state.matrix.weighted_gradient(tile_weights)
        slope = 0.5 * (self.solutions.square() - self.precision) / self.weights
        gradient[NOISE] = slope.sum()
        return gradient


def check_student(model: Model, n_targets: int) -> None:
    """Refuse (`InvalidInputError`) targets and noise that weights of rows have no meaning for."""
    got = None
    if n_targets > 1:
        got = f'one target, because each has its own outliers, or outputs="independent"; got {n_targets}'
    elif model.noise_is_known:
        got = "noise_variance to be a number or None; got one for each row"
    elif not bool(model.noise_variance > 0):
        got = "noise of its own; give noise_variance, or leave kernels.White out of the kernel"
    if got is not None:
        raise InvalidInputError(f"likelihood of GPRegressor for Student-t noise needs {got}.")


def squares_at_rows(posterior: Posterior, table: TrainingTable) -> Tensor:
    """Return the expected squares of the errors of all rows, (n,) float64, from predictions at the rows."""
    mean, variance = posterior.mean_and_variance(table.X.to(posterior.dtype))
    return (table.Y[:, 0].double() - mean[:, 0].double()).square().cpu() + variance.double().cpu()


def with_weights(model: Model, squares: Tensor, noise: StudentNoise) -> Model:
    """Return the model whose rows have the noise variances of their weights."""
    rows = noise.squared_scale / expected_weights(squares, noise)
    return replace(model, noise_variance=rows, student=noise)


def improved(posterior: Posterior, table: TrainingTable, *, learns_df: bool, learns_scale: bool) -> Model:
    """Return the model of a posterior with the weights, the scale and the degrees of freedom that suit it best."""
    noise, squares = posterior.model.student, squares_at_rows(posterior, table)
    assert noise is not None
    if learns_scale:
        noise = most_likely_noise(squares, noise, learns_df=learns_df)
    return with_weights(posterior.model, squares, noise)
