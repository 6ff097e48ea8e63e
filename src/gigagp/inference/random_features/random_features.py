"""Inference with random Fourier features, with bias (RFF) or without (SS-RFF; Potapczynski et al. 2021)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch

from gigagp.errors import NotPositiveDefiniteError
from gigagp.inference.contract.base import Abilities, Inference
from gigagp.inference.contract.exact_posterior import require_factor
from gigagp.inference.contract.forecast import Forecast, Subject
from gigagp.inference.contract.objective import ExactObjective, TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.weight_space import WeightSpace
from gigagp.inference.exact.exact import Exact
from gigagp.inference.iterative.iterative import Iterative
from gigagp.inference.random_features.posterior import FeaturePosterior
from gigagp.inference.random_features.sums import evaluate_few, pull_back, require_features, sum_rows
from gigagp.kernels.draws import FeatureDraw
from gigagp.kernels.features import count_columns, nested_columns
from gigagp.model.likelihoods import Likelihood
from gigagp.model.model import Model
from gigagp.optimization.objective import Evaluation
from gigagp.runtime.machine import MULTIPLICATION
from gigagp.settings.fields import Pairs
from gigagp.settings.random import spawn
from gigagp.solvers.truncation import Distribution, SingleSample, TruncatedSeries
from gigagp.solvers.truncation.estimators import TruncationChoice

#: Gradients of a fit, products of all features with themselves in each, and rows whose features are held together.
#: Measured on protein: 53 gradients and 21 CPU s for 4,000 rows.
_GRADIENTS, _PRODUCTS, _BLOCK = 55, 2, 10_000


@dataclass(frozen=True)
class RandomFeatures(Inference):
    """Inference with random Fourier features in place of the kernel, or with an unbiased likelihood from such features.

    With m feature columns, an evaluation costs O(n m^2) time and O(m^2) memory in addition to the table, and the cost
    of predictions does not depend on n. The likelihood is that of a different model: its data fit is too large, its
    log-determinant is too small, and the learned functions are too rough. The error decreases only like 1 / m.

    With a ``truncation``, values and gradients are unbiased for the exact likelihood (SS-RFF). The series of features
    is cut at a random length and reweighted; its last term is the exact likelihood by a Cholesky factor, which is drawn
    rarely. The variance is large: learning needs a hundred times as many steps, and three n x n arrays must fit in the
    memory budget.

    When to use: without truncation, for smooth functions of few inputs on very many rows, where speed is worth a bias;
    with truncation, to study the estimator. `Iterative` learns hyperparameters without bias and with small variance.

    Parameters
    ----------
    n_features : int, default 1000
        Number of sine and cosine columns for each random term of the kernel; even. Constant and linear terms are
        exact. With a truncation, which sets the number of features in learning, it applies to predictions from features
        only.
    truncation : Distribution, SingleSample, RussianRoulette or None, default None
        Distribution of the number of frequencies (pairs of a sine and a cosine) from `gigagp.truncation`, such as
        ``OneOverJ(base=350, maximum=750, step=50)``; a bare distribution means `SingleSample` of it. The largest length
        stands for the exact likelihood. It is half the number of rows if no maximum is given, and may not exceed that.
    redraw : bool, default False
        Whether to draw new frequencies at each evaluation, as in the paper. False freezes them, so that the likelihood
        is a smooth function; with a truncation, the estimate is unbiased in both cases.
    law : {"joint", "balanced"}, default "joint"
        Distribution of the frequencies: ``"joint"`` draws them from the spectral density, and ``"balanced"`` draws half
        of them evenly over the decades of its tail (see `gigagp.kernels.Kernel.draw_features`).
    prediction : {"auto", "features"}, Exact or Iterative, default "auto"
        Method of prediction at the learned hyperparameters. ``"auto"`` predicts from the features; with a truncation,
        whose likelihood is that of the exact model, it is `Exact`. Variances from features are too small where there
        are not many more features than the data could resolve; those of `Exact` and `Iterative` are not.

    References
    ----------
    Rahimi and Recht (2007), https://papers.nips.cc/paper/3182. Potapczynski, Wu, Biderman, Pleiss and Cunningham
    (2021), "Bias-free scalable Gaussian processes via randomized truncations", eqs. 5 and 18 to 20, arXiv:2102.06695.
    """

    n_features: Pairs = 1000
    truncation: TruncationChoice | None = None
    redraw: bool = False
    law: Literal["joint", "balanced"] = "joint"
    prediction: Exact | Iterative | Literal["auto", "features"] = "auto"

    abilities = Abilities(
        "random-features",
        "a few thousand, to study",
        kernels="random features",
        adds_rows=True,
        options={"--features": "n_features"},
    )
    posteriors = (FeaturePosterior, *Exact.posteriors, *Iterative.posteriors)

    @property
    def mixes_precision(self) -> bool:
        """Whether the method of prediction supports mixed precision."""
        predictor = self.predictor()
        return predictor is not None and predictor.mixes_precision

    def predictor(self) -> Exact | Iterative | None:
        """Return the inference method that predicts; None for the features themselves."""
        if self.prediction == "auto":
            return None if self.truncation is None else Exact()
        return None if self.prediction == "features" else self.prediction

    def forecast(self, subject: Subject) -> Forecast | None:
        """Return the cost of 55 gradients from products of the features; None with a truncation.

        The bias of the features is not known beforehand.
        """
        if self.truncation is not None:
            return None
        n, m = subject.table.n_rows, self.n_features
        memory = 8.0 * (_PRODUCTS * m**2 + m * min(n, _BLOCK))
        return Forecast(_GRADIENTS * _PRODUCTS * MULTIPLICATION * n * m**2, memory)

    def objective(
        self, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> RandomFeaturesObjective:
        """Return the log marginal likelihood on a table.

        Raises
        ------
        InvalidInputError
            If the truncation asks for more frequencies than half the rows, and so for more columns than rows.
        MemoryBudgetError
            If the features, the exact likelihood at the end of a truncated series, or exact predictions do not fit the
            memory budget.
        """
        if isinstance(self.predictor(), Exact):
            require_factor(table)  # refuse before the fit, not after it
        if self.truncation is None:
            return RandomFeaturesObjective(self, None, table, generator)
        series = SingleSample(self.truncation) if isinstance(self.truncation, Distribution) else self.truncation
        # Half as many frequencies as rows give as many columns as rows; the exact likelihood then costs no more.
        bounded = series.bounded(max(1, table.n_rows // 2), f"half of the {table.n_rows:,} rows")
        return RandomFeaturesObjective(self, bounded, table, generator)

    def describe(self) -> str:
        how = "redrawn" if self.redraw else "frozen"
        predictor = self.predictor()
        ending = "" if predictor is None else f", predictions: {predictor.describe()}"
        if self.truncation is not None:
            return f"random features ({self.truncation!r}, {self.law}, {how}{ending})"
        return f"random features ({self.n_features:,}, {self.law}, {how}{ending})"


class RandomFeaturesObjective(TableObjective):
    """The log marginal likelihood with random features, or an unbiased estimate of the exact one.

    ``series`` is a truncation with a bounded length; None for plain random features. The generator is the source of
    frequencies and random lengths.
    """

    def __init__(
        self,
        settings: RandomFeatures,
        series: TruncatedSeries | None,
        table: TrainingTable,
        generator: torch.Generator,
    ) -> None:
        super().__init__(table)
        self.settings, self.series = settings, series
        self._frequency_generator, self._length_generator = spawn(generator), spawn(generator)
        self._draw: FeatureDraw | None = None
        self._current: FeaturePosterior | None = None
        self._model: Model | None = None
        #: random length of the last evaluation, in frequencies
        self.last_length: int | None = None
        # This counts the columns of a single term; the kernel, which is not known yet, may have several.
        require_features(2 * self._most_frequencies(), table)
        if series is not None:
            require_factor(table)  # for the last term of the series

    def _most_frequencies(self) -> int:
        """Return the largest number of frequencies for which features are computed."""
        if self.series is None:
            return self.settings.n_features // 2
        distribution = self.series.distribution
        points = distribution.support()
        return max(points[-2] if len(points) > 1 else distribution.base, 1)  # the last point is the exact likelihood

    @property
    def deterministic(self) -> bool:
        """Whether frequencies are frozen and no series is truncated at random."""
        return self.series is None and not self.settings.redraw

    @property
    def is_likelihood(self) -> bool:
        """Whether the value estimates the likelihood of the exact model, as it does with a truncation."""
        return self.series is not None

    def _frequencies(self, model: Model) -> FeatureDraw:
        """Return the frequencies for one evaluation."""
        if self._draw is None or self.settings.redraw:
            self._draw = self._new_frequencies(model, 2 * self._most_frequencies(), self._frequency_generator)
        return self._draw

    def _new_frequencies(self, model: Model, n_features: int, generator: torch.Generator) -> FeatureDraw:
        draw = model.kernel.draw_features(n_features, self.n_inputs, generator, law=self.settings.law)
        require_features(count_columns(model.kernel, draw), self.table)
        return draw

    def evaluate(self, model: Model) -> Evaluation:
        """Return value and gradient: exact for the features, or unbiased for the exact model."""
        self._current, self._model = None, model
        draw = self._frequencies(model)
        if self.series is not None:
            self.last_length = self.series.distribution.sample(self._length_generator)
            return self.estimate(model, draw, self.last_length)
        if self.deterministic and 2 * self.n_rows <= count_columns(model.kernel, draw):
            with suppress(NotPositiveDefiniteError):  # noise at rounding, with which the sums have a factor
                return evaluate_few(model, draw, self.table)  # `current_posterior` computes its own
        sums = sum_rows(model, draw, self.table)
        space = WeightSpace.fit(sums, self.n_rows, self.table.n_targets)
        if self.settings.predictor() is None:
            self._current = FeaturePosterior(model, self.table, draw, space)
        return Evaluation(space.value, pull_back(model, draw, self.table, space.slope()))

    def estimate(self, model: Model, draw: FeatureDraw, length: int) -> Evaluation:
        """Return the estimate of the exact likelihood and its gradient for a given length of the series.

        All partial sums of the series use the first frequencies of the same draw; with independent draws their
        differences would not shrink. Both terms of the likelihood share the length, and each partial sum has its own
        optimal coefficients of the mean. ``draw`` has at least as many frequencies as the series needs.
        """
        assert self.series is not None
        coefficients = self.series.coefficients(length)
        exact = coefficients.pop(self.series.distribution.support()[-1], 0.0)
        value, gradient = self._partial_sums(model, draw, coefficients)
        if exact:
            last = ExactObjective(self.table).evaluate(model)  # not stored, since its factor is n x n
            assert last.value is not None
            value += exact * last.value
            gradient = {name: total + exact * last.gradient[name] for name, total in gradient.items()}
        return Evaluation(value, gradient)

    def _partial_sums(
        self, model: Model, draw: FeatureDraw, coefficients: dict[int, float]
    ) -> tuple[float, dict[str, torch.Tensor]]:
        """Return value and gradient of a weighted sum of likelihoods with nested frequencies, in one pass each."""
        value = 0.0
        if not coefficients:
            return value, {name: torch.zeros_like(one) for name, one in model.parameters().items()}
        widest = draw.first(max(coefficients))
        sums = sum_rows(model, widest, self.table)
        slope = sums.zeros()
        for n_frequencies, weight in coefficients.items():
            columns, factors = nested_columns(model.kernel, widest, n_frequencies)
            space = WeightSpace.fit(sums.take(columns, factors), self.n_rows, self.table.n_targets)
            value += weight * space.value
            slope.add_(weight, space.slope(), columns, factors)
        return value, pull_back(model, widest, self.table, slope)

    def thin(self, rows: torch.Tensor) -> RandomFeaturesObjective:
        """Return the objective on a subset of the rows, with its own frequencies."""
        thinned = self.table.take_rows(rows)
        return RandomFeaturesObjective(self.settings, self.series, thinned, self._frequency_generator)

    def current_posterior(self) -> Posterior | None:
        """Return the posterior at the last evaluated model; if features do not predict, it is computed on demand."""
        if self._current is not None or self._model is None:
            return self._current
        return self.posterior(self._model, torch.Generator().manual_seed(0))

    def posterior(self, model: Model, generator: torch.Generator) -> Posterior:
        """Return the posterior at a model; it uses the frozen frequencies if there are any."""
        predictor = self.settings.predictor()
        if predictor is not None:
            return predictor.objective(self.table, spawn(generator)).posterior(model, generator)
        if self.deterministic:
            draw = self._frequencies(model)
        else:
            draw = self._new_frequencies(model, self.settings.n_features, generator)
        sums = sum_rows(model, draw, self.table)
        return FeaturePosterior(model, self.table, draw, WeightSpace.fit(sums, self.n_rows, self.table.n_targets))

    def snapshot(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        return {
            "generator.frequencies": self._frequency_generator.get_state(),
            "generator.lengths": self._length_generator.get_state(),
        }, {}

    def restore(self, model: Model, tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
        """Restore a snapshot; frozen frequencies are drawn again from the same generator."""
        if not self.settings.redraw:
            self._frequencies(model)
        self._frequency_generator.set_state(tensors["generator.frequencies"])
        self._length_generator.set_state(tensors["generator.lengths"])
