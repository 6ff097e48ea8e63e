"""Uncertain hyperparameters: a mixture of posteriors at draws of the hyperparameters, by Laplace's approximation.

Laplace's approximation is normal, in logarithms of lengthscales and standard deviations, about the mode of the
likelihood times the weak prior of `gigagp.optimization.Auto`. Its precision is the Fisher information plus that of the
prior (Stein 1999, section 6.4). Beliefs from few rows are skewed, so that up to 3,000 rows draws are corrected twice
(Rue, Martino and Chopin 2009, doi:10.1111/j.1467-9868.2008.00700.x, section 6.5): each half of each principal axis has
the width at which the density has fallen as that of a normal distribution does, and draws are weighted by the ratio of
the densities. They are points of a scrambled Sobol sequence, from a distribution that is somewhat wider, so that tails
are not missed. All are kept: at 25 to 120 rows, deviations from 32 such draws were as close to those from 1,500 as from
32 that were picked among 128, for half of the time. Where rows do not determine a hyperparameter, only the prior is
known.

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

from gigagp.errors import UNUSABLE, FitWarning, warn
from gigagp.inference.contract.exact_posterior import ExactPosterior
from gigagp.inference.contract.objective import ExactObjective, TableObjective
from gigagp.inference.contract.rows_posterior import RowsPosterior
from gigagp.inference.exact.mixture_posterior import MixturePosterior, require_factors, restricted_likelihood
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
#: Rows up to which more draws are affordable; and draws that are mixed there, up to `WEIGHTED_ROWS`, and beyond.
_FEW_ROWS, _DRAWS = 700, (32, 16, 8)
#: Fewest draws of a component of an average of kernels, and its least weight for which there are any.
_LEAST_DRAWS, _LEAST_SHARE = 8, 0.05
#: Width of the distribution that weighted draws are from, and weight, over the mean, below which one is left out.
_WIDER, _NEGLIGIBLE = 1.2, 1e-3
#: Number of equal weights that those of draws must be worth, and as a share of their number; a power makes them more
#: equal where they are not.
_LEAST_WORTH, _WORTH_SHARE = 8.0, 0.25
#: Bounds on the width of half an axis, relative to that of Laplace's approximation; and the number of axes, the least
#: known ones, whose widths are looked for. Along the others beliefs are nearly normal.
_WIDTHS, SKEWED = (0.4, 2.0), 12
#: Steps to the mode, the gain in nats that ends them, for which weights make up, and the largest change of a coordinate
#: in one.
_STEPS, _GAIN, _CHANGE = 20, 0.03, 0.7
#: Nats that learning may have missed the mode by without a warning.
_MISSED = 5.0
#: Rows up to which all unit vectors are the probes of the information, which is then exact; and probes beyond.
_EXACT_INFORMATION, _PROBES = 200, 64
#: Rows of the subset that stands for all rows where there is no other information.
_SUBSET = 1000
#: Rounds of random numbers in which draws within the bounds are sought.
_ROUNDS = 64


def drawn(n_rows: int, share: float = 1.0) -> int:
    """Return the number of draws of a component with a share of the answer; 0 if it is too light for any."""
    draws = _DRAWS[(n_rows > _FEW_ROWS) + (n_rows > WEIGHTED_ROWS)]
    return min(draws, max(_LEAST_DRAWS, round(share * draws))) if share >= _LEAST_SHARE else 0


def laplace_mixture(
    objective: TableObjective, learned: RowsPosterior, generator: torch.Generator, share: float = 1.0
) -> MixturePosterior | None:
    """Return a learned posterior with the uncertainty of the hyperparameters; None if the inference method has none.

    The table has one target. If the answer consists of several such mixtures, this one has the given share of the
    draws; with a small one it is the learned posterior alone. A `FitWarning` says if the learned hyperparameters are
    far from the mode, about which the draws are.
    """
    if not objective.has_posteriors_near:
        return None
    n = objective.n_rows
    count = drawn(n, share)
    if not count:
        return MixturePosterior([learned], torch.ones(1))
    beliefs = _Beliefs.of(objective, learned.model, spawn(generator))
    seed = spawn(generator)

    def near(vector: Tensor) -> RowsPosterior | None:
        # With the same random numbers for all, the components of solves with samples differ by their models alone.
        found = objective.posterior_near(beliefs.space.decode(vector), seed.clone_state())
        if isinstance(found, ExactPosterior):
            require_factors(found.table, count)
        return found

    if n > WEIGHTED_ROWS:
        vectors, weights = beliefs.plain_draws(count)
        posteriors = [near(vector) for vector in vectors]
    else:
        vectors, squares = beliefs.draws(count)
        logs: list[float] = []
        factorised: list[RowsPosterior | None] = []
        for vector in vectors:
            logs.append(beliefs.log_density(vector))
            # An exact objective has the factor of the posterior, until the next draw.
            has_factor = isinstance(objective, ExactObjective) and logs[-1] > -math.inf
            factorised.append(near(vector) if has_factor else None)
        weights = _tempered(torch.tensor(logs, dtype=torch.float64) + 0.5 * squares)
        kept = (weights > _NEGLIGIBLE * weights.mean()).nonzero()[:, 0].tolist()
        weights = weights[kept]
        posteriors = [factorised[k] or near(vectors[k]) for k in kept]
    sound = [one for one in posteriors if one is not None]
    return MixturePosterior(sound, weights) if len(sound) == len(posteriors) else None


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
        elif isinstance(objective, ExactObjective) and n <= WEIGHTED_ROWS:
            likelihood = objective
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
        except UNUSABLE:
            return -math.inf
        posterior = self.likelihood.current_posterior()
        assert posterior is not None, "it was evaluated"
        found = restricted_likelihood(posterior, self.generator).value - self.prior.penalty(vector)
        return found if math.isfinite(found) else -math.inf

    def _scoring(self) -> FisherScoring:
        """Return the search for the mode; its probes give the exact information on few rows."""
        n = self.likelihood.n_rows
        few = n <= _EXACT_INFORMATION
        probes = math.sqrt(n) * torch.eye(n) if few else torch.randn(n, _PROBES, generator=self.generator)
        trace, stage = Trace(History(), NoProgress()), "uncertain hyperparameters"
        gain = _GAIN / self.likelihood.n_observations
        return FisherScoring(
            self.likelihood,
            self.space,
            self.prior,
            trace,
            probes.double(),
            _STEPS,
            gain,
            _CHANGE,
            stage,
            on_trial=True,
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

    def draws(self, count: int) -> tuple[Tensor, Tensor]:
        """Return draws about the mode (count, p), and twice the negative logs of the density that they are from.

        The density is up to a constant.
        """
        n, scoring = self.likelihood.n_observations, self._scoring()
        start = scoring.evaluate(self.centre)
        assert start is not None, "the trace raises an error at the first evaluation"
        mode = scoring.improve(start, _STEPS)
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
            for k in range(min(SKEWED, len(root))):
                fall = best - self.log_density(self.space.box.clip(mode.vector + sign * root[:, k]))
                widths[side, k] = min(max(math.sqrt(0.5 / max(fall, 1e-3)), _WIDTHS[0]), _WIDTHS[1])
        return self._within(mode.vector, root, _WIDER * widths, count)

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
    least = min(_LEAST_WORTH, _WORTH_SHARE * len(logs))

    def worth(power: float) -> float:
        weights = (power * logs).exp()
        return float(weights.sum().square() / weights.square().sum())

    if worth(1.0) >= least:
        return logs.exp()
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if worth(middle) >= least else (low, middle)
    # At the power zero an impossible draw would have the weight of the others.
    return torch.where(logs > -math.inf, (low * logs).exp(), 0.0)
