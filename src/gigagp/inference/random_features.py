"""Inference with random Fourier features, biased or not (Potapczynski et al. 2021: RFF and SS-RFF)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from gigagp.fields import Pairs
from gigagp.inference.base import Abilities, Inference
from gigagp.inference.exact import Exact
from gigagp.inference.exact_posterior import require_factor
from gigagp.inference.iterative import Iterative
from gigagp.inference.objective import ExactObjective, TableObjective
from gigagp.inference.posterior import Posterior
from gigagp.inference.random_features_posterior import FeaturePosterior
from gigagp.inference.random_features_sums import (
    count_columns,
    pull_back,
    require_features,
    sum_rows,
)
from gigagp.inference.table import TrainingTable
from gigagp.inference.weight_space import WeightSpace
from gigagp.kernels.draws import FeatureDraw
from gigagp.kernels.features import nested_columns
from gigagp.likelihoods import Likelihood
from gigagp.model import Model
from gigagp.optimization.objective import Evaluation
from gigagp.random import spawn
from gigagp.truncation import Distribution, SingleSample, TruncatedSeries
from gigagp.truncation.estimators import TruncationChoice


@dataclass(frozen=True)
class RandomFeatures(Inference):
    """Inference with a kernel replaced by random Fourier features, or an unbiased likelihood made of such.

    With m columns of features an evaluation costs O(n m^2) time and O(m^2) memory beside the table, and predictions
    cost nothing that depends on n. The likelihood is that of another model: its data fit is too high, its
    log-determinant too low and what is learned too rough, with an error that falls like 1 / m only.

    With a ``truncation`` values and gradients are unbiased for the exact likelihood (SS-RFF): the features are cut
    at a random number and reweighted, and the last term of the series is the exact likelihood by a Cholesky factor,
    drawn seldom. The variance is large: learning takes a hundred times as many steps, and three n x n arrays have to
    fit.

    When to use: features without truncation for smooth functions of few inputs on very many rows, where the speed is
    worth a bias; with it to study the estimator. `Iterative` learns hyperparameters without bias at a small variance.

    Parameters
    ----------
    n_features : int, default 1000
        Sine and cosine columns of each random term of the kernel; even. Constant and linear terms are exact. With a
        truncation, whose law has the numbers for learning, they are those of predictions from features.
    truncation : Distribution, SingleSample, RussianRoulette or None, default None
        A law of the number of frequencies (pairs of a sine and a cosine) from `gigagp.truncation`, such as
        ``OneOverJ(base=350, maximum=750, step=50)``; a distribution alone is `SingleSample` of it. Its largest length
        stands for the exact likelihood; without a maximum it is half the number of rows, and none may be larger.
    redraw : bool, default False
        Draw new frequencies at each evaluation, as the paper does. False: freeze them, so that the likelihood is one
        smooth function; with a truncation it is unbiased in both cases.
    law : {"joint", "balanced"}, default "joint"
        How frequencies are drawn: from the spectral density, or half of them evenly over the decades of its tail (see
        `gigagp.kernels.Kernel.draw_features`).
    prediction : {"auto", "features"}, Exact or Iterative, default "auto"
        What predicts with the hyperparameters that were learned. ``"auto"``: the features, and with a truncation, whose
        likelihood is that of the exact model, `Exact`.

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
        options={"--features": "n_features"},
    )
    posteriors = (FeaturePosterior, *Exact.posteriors, *Iterative.posteriors)

    @property
    def mixes_precision(self) -> bool:
        """Whether what predicts does."""
        predictor = self.predictor()
        return predictor is not None and predictor.mixes_precision

    def predictor(self) -> Exact | Iterative | None:
        """Return what predicts, None for the features themselves."""
        if self.prediction == "auto":
            return None if self.truncation is None else Exact()
        return None if self.prediction == "features" else self.prediction

    def objective(
        self, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> RandomFeaturesObjective:
        """Return the log marginal likelihood of a table.

        Raises
        ------
        InvalidInputError
            If the truncation asks for more frequencies than half the rows: those are as many columns as rows.
        MemoryBudgetError
            If the features, the exact likelihood at the end of a truncated series, or exact predictions do not fit.
        """
        if isinstance(self.predictor(), Exact):
            require_factor(table)  # now and not after the fit
        if self.truncation is None:
            return RandomFeaturesObjective(self, None, table, generator)
        series = SingleSample(self.truncation) if isinstance(self.truncation, Distribution) else self.truncation
        # Half as many frequencies as rows are as many columns as rows: the exact likelihood costs no more.
        bounded = series.bounded(max(1, table.n_rows // 2), f"half of the {table.n_rows:,} rows")
        return RandomFeaturesObjective(self, bounded, table, generator)

    def describe(self) -> str:
        """Return one line for people."""
        how = "redrawn" if self.redraw else "frozen"
        predictor = self.predictor()
        ending = "" if predictor is None else f", predictions: {predictor.describe()}"
        if self.truncation is not None:
            return f"random features ({self.truncation!r}, {self.law}, {how}{ending})"
        return f"random features ({self.n_features:,}, {self.law}, {how}{ending})"


class RandomFeaturesObjective(TableObjective):
    """The log marginal likelihood with random features, or an unbiased estimate of the exact one.

    Parameters
    ----------
    settings : RandomFeatures
    series : TruncatedSeries or None
        Its truncation, bounded.
    table : TrainingTable
    generator : torch.Generator
        Of frequencies and lengths.
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
        #: the random length of the last evaluation, in frequencies
        self.last_length: int | None = None
        # Columns of one term at least; the kernel, which is not known here, may have several.
        require_features(2 * self._most_frequencies(), table)
        if series is not None:
            require_factor(table)  # of the last term of the series

    def _most_frequencies(self) -> int:
        """Return the largest number of frequencies whose features are ever computed."""
        if self.series is None:
            return self.settings.n_features // 2
        distribution = self.series.distribution
        points = distribution.support()
        return max(points[-2] if len(points) > 1 else distribution.base, 1)  # the last one is the exact likelihood

    @property
    def deterministic(self) -> bool:
        """Whether frequencies are frozen and nothing is truncated at random."""
        return self.series is None and not self.settings.redraw

    @property
    def is_likelihood(self) -> bool:
        """Whether it is an estimate of the kernel's own likelihood: without a truncation it is the features'."""
        return self.series is not None

    def _frequencies(self, model: Model) -> FeatureDraw:
        """Return the frequencies of one evaluation."""
        if self._draw is None or self.settings.redraw:
            self._draw = self._new_frequencies(model, 2 * self._most_frequencies(), self._frequency_generator)
        return self._draw

    def _new_frequencies(self, model: Model, n_features: int, generator: torch.Generator) -> FeatureDraw:
        draw = model.kernel.draw_features(n_features, self.n_inputs, generator, law=self.settings.law)
        require_features(count_columns(model.kernel, draw), self.table)
        return draw

    def evaluate(self, model: Model) -> Evaluation:
        """Return value and gradient, exact for the features or unbiased for the kernel."""
        self._current, self._model = None, model
        draw = self._frequencies(model)
        if self.series is not None:
            self.last_length = self.series.distribution.sample(self._length_generator)
            return self.estimate(model, draw, self.last_length)
        sums = sum_rows(model, draw, self.table)
        space = WeightSpace.fit(sums, self.n_rows, self.table.n_targets)
        if self.settings.predictor() is None:
            self._current = FeaturePosterior(model, self.table, draw, space)
        return Evaluation(space.value, pull_back(model, draw, self.table, space.slope()))

    def estimate(self, model: Model, draw: FeatureDraw, length: int) -> Evaluation:
        """Return the estimate of the exact likelihood and its gradient for one length of the series.

        The partial sums of the series are likelihoods with the first frequencies of one draw: with independent ones
        the differences would not shrink. Both terms of the likelihood share the length, and the mean's coefficients are
        each partial sum's own best ones.

        Parameters
        ----------
        model : Model
        draw : FeatureDraw
            At least as many frequencies as the series needs.
        length : int
            Of the truncation's law.
        """
        assert self.series is not None
        coefficients = self.series.coefficients(length)
        exact = coefficients.pop(self.series.distribution.support()[-1], 0.0)
        value, gradient = self._partial_sums(model, draw, coefficients)
        if exact:
            last = ExactObjective(self.table).evaluate(model)  # not kept: its factor is as large as all the rest
            assert last.value is not None
            value += exact * last.value
            gradient = {name: total + exact * last.gradient[name] for name, total in gradient.items()}
        return Evaluation(value, gradient)

    def _partial_sums(
        self, model: Model, draw: FeatureDraw, coefficients: dict[int, float]
    ) -> tuple[float, dict[str, torch.Tensor]]:
        """Return value and gradient of a sum of likelihoods with the first frequencies, all from one pass each."""
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
        """Return the same on a subset of the rows, with frequencies of its own."""
        thinned = self.table.take_rows(rows)
        return RandomFeaturesObjective(self.settings, self.series, thinned, self._frequency_generator)

    def current_posterior(self) -> Posterior | None:
        """Return the posterior where `evaluate` was last called; made anew where its features do not predict."""
        if self._current is not None or self._model is None:
            return self._current
        return self.posterior(self._model, torch.Generator().manual_seed(0))

    def posterior(self, model: Model, generator: torch.Generator) -> Posterior:
        """Return the posterior at a model, from the frozen frequencies where there are any."""
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
        """Return the states of the generators."""
        return {
            "generator.frequencies": self._frequency_generator.get_state(),
            "generator.lengths": self._length_generator.get_state(),
        }, {}

    def restore(self, model: Model, tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
        """Take over a snapshot; frozen frequencies are drawn again, from the same generator."""
        if not self.settings.redraw:
            self._frequencies(model)
        self._frequency_generator.set_state(tensors["generator.frequencies"])
        self._length_generator.set_state(tensors["generator.lengths"])
