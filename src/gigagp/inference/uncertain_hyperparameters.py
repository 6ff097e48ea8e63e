"""Uncertain hyperparameters: a mixture of posteriors at draws of the hyperparameters, by Laplace's approximation.

Laplace's approximation is normal, in logarithms of lengthscales and standard deviations, about the mode of the
likelihood times the weak prior of `gigagp.optimization.Auto`. Its precision is the Fisher information plus that of the
prior (Stein 1999, section 6.4). Beliefs from few rows are skewed, so that up to 3,000 rows draws are corrected twice
(Rue, Martino and Chopin 2009, doi:10.1111/j.1467-9868.2008.00700.x, section 6.5): each half of each principal axis has
the width at which the density has fallen as that of a normal distribution does, and draws are weighted by the ratio of
the densities. Where rows do not determine a hyperparameter, only the prior is known.

The likelihood is the restricted one, in which the coefficients of the mean have a flat prior, as in the variances of
every posterior: ``log p(y | theta) - log det(Phi' H^-1 Phi) / 2``. Up to 3,000 rows it is exact, or that of the nearest
neighbours of `gigagp.inference.Vecchia`. Beyond, draws have equal weights, and the information is that of nearest
neighbours, or n / 1,000 times that of 1,000 rows where they are not compiled for the kernel, or inference is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.errors import FitWarning, NonFiniteError, NotPositiveDefiniteError, warn
from gigagp.inference.contract.exact_posterior import ExactPosterior
from gigagp.inference.contract.objective import ExactObjective, TableObjective
from gigagp.inference.exact.mixture_posterior import MixturePosterior, require_factors
from gigagp.inference.vecchia.objective import VecchiaObjective
from gigagp.model.model import Model
from gigagp.optimization import History
from gigagp.optimization.prior import WeakPrior
from gigagp.optimization.scoring import FisherScoring
from gigagp.optimization.space import ParameterSpace
from gigagp.optimization.trace import Trace
from gigagp.products.dense import eigh
from gigagp.runtime.progress import NoProgress
from gigagp.settings.random import spawn

#: Rows up to which draws are weighted. Beyond, the rows determine the hyperparameters so well that Laplace's
#: approximation needs no correction, and likelihoods cost seconds.
WEIGHTED_ROWS = 3000
#: Rows up to which more draws are affordable; draws that are mixed there, up to `WEIGHTED_ROWS`, and beyond; and draws
#: that the first two are picked from. Deviations from 32 of 128 had two thirds of the error of those from 16.
_FEW_ROWS, _DRAWS, _CANDIDATES = 700, (32, 16, 8), (128, 48)
#: Draws of each component of an average of kernels, at least.
_LEAST_DRAWS = 4
#: Number of equal weights that those of the candidates must be worth; a power makes them more equal where they are not.
_LEAST_WORTH = 8.0
#: Bounds on the width of half an axis, relative to that of Laplace's approximation.
_WIDTHS = (0.4, 2.0)
#: Steps to the mode, the gain in nats that ends them, and the largest change of a coordinate in one.
_STEPS, _GAIN, _CHANGE = 20, 1e-3, 0.7
#: Nats that learning may have missed the mode by without a warning.
_MISSED = 5.0
#: Rows up to which all unit vectors are the probes of the information, which is then exact; and probes beyond.
_EXACT_INFORMATION, _PROBES = 400, 64
#: Rows of the subset that stands for all rows where there is no other information.
_SUBSET = 1000
#: Least size of a direction of the mean's coefficients, relative to the largest, that the rows determine.
_DETERMINED = 1e-12
#: Rounds of random numbers in which draws within the bounds are sought.
_ROUNDS = 64


def laplace_mixture(
    objective: TableObjective, model: Model, generator: torch.Generator, parts: int = 1
) -> MixturePosterior | None:
    """Return the posterior with the uncertainty of the hyperparameters; None if the inference method has none.

    The table has one target, and the model is the learned one. If the answer consists of several such mixtures
    (``parts``), they share the number of draws. A `FitWarning` says if the learned hyperparameters are far from the
    mode, about which the draws are.
    """
    if not objective.has_posteriors_near:
        return None
    beliefs, n = _Beliefs.of(objective, model, spawn(generator)), objective.n_rows
    count = max(_LEAST_DRAWS, _DRAWS[(n > _FEW_ROWS) + (n > WEIGHTED_ROWS)] // parts)
    vectors, weights = beliefs.weighted_draws(count) if n <= WEIGHTED_ROWS else beliefs.plain_draws(count)
    posteriors, seed = [], spawn(generator)
    for vector in vectors:
        # With the same random numbers for all, the components of solves with samples differ by their models alone.
        found = objective.posterior_near(beliefs.space.decode(vector), seed.clone_state())
        if found is None:
            return None
        if isinstance(found, ExactPosterior):
            require_factors(found.table, len(vectors))
        posteriors.append(found)
    return MixturePosterior(posteriors, weights)


@dataclass(frozen=True, eq=False)
class _Beliefs:
    """Beliefs about the hyperparameters, from the likelihood of the rows and the prior."""

    likelihood: ExactObjective | VecchiaObjective  # of the rows, or of a subset of them
    share: float  # all rows over those of the likelihood
    space: ParameterSpace  # coordinates of the hyperparameters
    prior: WeakPrior  # on these coordinates, that of `gigagp.optimization.Auto`
    centre: Tensor  # the learned hyperparameters, (p,)
    generator: torch.Generator

    @classmethod
    def of(cls, objective: TableObjective, model: Model, generator: torch.Generator) -> _Beliefs:
        """Return them with the neighbours' likelihood for neighbours and beyond `WEIGHTED_ROWS`, else the exact one."""
        n, guide = objective.n_rows, objective.guide(model)
        likelihood: ExactObjective | VecchiaObjective
        if isinstance(guide, VecchiaObjective) and (guide is objective or n > WEIGHTED_ROWS):
            guide.refresh(model)
            likelihood = guide
        else:
            rows = torch.arange(n) if n <= WEIGHTED_ROWS else objective.draw_rows(_SUBSET, spawn(generator))
            likelihood, model = objective.subset(rows), model.take_rows(rows)
        space = ParameterSpace(model, "log")
        prior = WeakPrior(space, objective.n_inputs, objective.target_variance)
        return cls(likelihood, n / likelihood.n_rows, space, prior, space.encode(model), generator)

    def log_density(self, vector: Tensor) -> float:
        """Return the log density up to a constant; minus infinity if the likelihood cannot be computed at a vector."""
        model = self.space.decode(vector)
        try:
            if isinstance(self.likelihood, ExactObjective):
                self.likelihood.value(model)
            else:
                self.likelihood.evaluate(model)
        except (NonFiniteError, NotPositiveDefiniteError):
            return -math.inf
        posterior = self.likelihood.current_posterior()
        assert posterior is not None, "it was evaluated"
        value = posterior.log_marginal_likelihood(self.generator).value
        sizes = torch.linalg.svdvals(posterior.coefficient_root.double())
        flat = float(sizes[sizes > _DETERMINED * sizes.max()].log().sum()) if len(sizes) else 0.0
        found = value + flat - self.prior.penalty(vector)
        return found if math.isfinite(found) else -math.inf

    def _scoring(self) -> FisherScoring:
        """Return the search for the mode; its probes give the exact information on few rows."""
        n = self.likelihood.n_rows
        few = n <= _EXACT_INFORMATION
        probes = math.sqrt(n) * torch.eye(n) if few else torch.randn(n, _PROBES, generator=self.generator)
        trace, stage = Trace(History(), NoProgress()), "uncertain hyperparameters"
        gain = _GAIN / self.likelihood.n_observations
        return FisherScoring(
            self.likelihood, self.space, self.prior, trace, probes.double(), _STEPS, gain, _CHANGE, stage
        )

    def _root(self, information: Tensor) -> Tensor:
        """Return a root of the covariance, (p, p), with principal axes as columns; bounds that meet hold a value."""
        values, axes = eigh(information + torch.diag(self.prior.precision))
        box = self.space.box
        return (axes * values.rsqrt()) * (box.upper > box.lower)[:, None]

    def plain_draws(self, count: int) -> tuple[Tensor, Tensor]:
        """Return draws from Laplace's approximation at the learned hyperparameters, with equal weights."""
        n = self.likelihood.n_observations
        start = self._scoring().evaluate(self.centre)
        assert start is not None, "the trace raises an error at the first evaluation"
        root = self._root(self.share * n * start.information)
        return self._within(self.centre, root, torch.ones(2, len(root)).double(), count)[0], torch.ones(count).double()

    def weighted_draws(self, count: int) -> tuple[Tensor, Tensor]:
        """Return draws about the mode, with weights that correct Laplace's approximation."""
        n, scoring = self.likelihood.n_observations, self._scoring()
        start = scoring.evaluate(self.centre)
        assert start is not None, "the trace raises an error at the first evaluation"
        mode = scoring.improve(start, _STEPS, on_trial=True)
        if n * (start.value - mode.value) > _MISSED:
            msg = (
                f"The learned hyperparameters are {n * (start.value - mode.value):.1f} nats below the nearest mode of "
                'the likelihood times its weak prior, about which hyperparameters="laplace" draws them. Let the '
                "optimizer go on, or use optimization.Auto, which learns with this prior."
            )
            warn(msg, FitWarning)
        root, best = self._root(n * mode.information), self.log_density(mode.vector)
        widths = torch.ones(2, len(root), dtype=torch.float64)
        for side, sign in enumerate((-1.0, 1.0)):
            for k in range(len(root)):
                fall = best - self.log_density(self.space.box.clip(mode.vector + sign * root[:, k]))
                widths[side, k] = min(max(math.sqrt(0.5 / max(fall, 1e-3)), _WIDTHS[0]), _WIDTHS[1])
        candidates = _CANDIDATES[self.likelihood.n_rows > _FEW_ROWS]
        vectors, squares = self._within(mode.vector, root, widths, candidates)
        order = (vectors @ root[:, 0]).argsort()  # picked ones are then spread along the least known axis
        vectors, squares = vectors[order], squares[order]
        ratios = torch.tensor([self.log_density(vector) for vector in vectors], dtype=torch.float64) + 0.5 * squares
        places = (torch.arange(count, dtype=torch.float64) + 0.5) / count
        cumulative = _tempered(ratios).cumsum(0)
        chosen = torch.searchsorted(cumulative / cumulative[-1], places).clamp_max(candidates - 1)
        kept, counts = chosen.unique(return_counts=True)
        return vectors[kept], counts.double()

    def _within(self, centre: Tensor, root: Tensor, widths: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return draws within the bounds, (count, p), and their squared lengths in units of the widths.

        Each half of each axis has its own width, and the density is continuous at the centre, so that a half has
        probability in proportion to its width. Where too few draws are within the bounds, others are moved to them.
        """
        engine = torch.quasirandom.SobolEngine(
            len(root), scramble=True, seed=int(torch.randint(2**31, (), generator=self.generator))
        )
        kept, lengths, found = [], [], 0
        below = widths[0] / widths.sum(0)
        for last in range(_ROUNDS - 1, -1, -1):
            uniform = engine.draw(count, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
            lower = uniform < below
            halves = torch.where(lower, (below - uniform) / below, (uniform - below) / (1 - below)).clamp_max(1 - 1e-12)
            steps = torch.special.ndtri(0.5 + 0.5 * halves)
            vectors = centre + torch.where(lower, -steps * widths[0], steps * widths[1]) @ root.T
            clipped = self.space.box.clip(vectors)
            inside = (clipped == vectors).all(1) if last and found < count else torch.ones(count, dtype=torch.bool)
            kept.append(clipped[inside])
            lengths.append(steps[inside].square().sum(1))
            found += int(inside.sum())
            if found >= count:
                break
        return torch.cat(kept)[:count], torch.cat(lengths)[:count]


def _tempered(logs: Tensor) -> Tensor:
    """Return weights from their logs, to the largest power up to 1 at which they are worth enough equal ones."""
    logs = logs - logs.max()
    low, high = 0.0, 1.0

    def worth(power: float) -> float:
        weights = (power * logs).exp()
        return float(weights.sum().square() / weights.square().sum())

    if worth(1.0) >= _LEAST_WORTH:
        return logs.exp()
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if worth(middle) >= _LEAST_WORTH else (low, middle)
    # At the power zero an impossible draw would have the weight of the others.
    return torch.where(logs > -math.inf, (low * logs).exp(), 0.0)
