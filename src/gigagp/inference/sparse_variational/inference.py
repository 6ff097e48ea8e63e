"""`inference.SparseVariational`: the settings of sparse variational inference, and its objectives."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from gigagp.inference.contract.base import Abilities, Inference
from gigagp.inference.contract.forecast import Forecast, Subject, ratio_of_gains
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.sparse_variational.collapsed import CollapsedObjective
from gigagp.inference.sparse_variational.objective import SparseObjective, SparseSettings
from gigagp.inference.sparse_variational.posterior import SparsePosterior
from gigagp.inference.sparse_variational.stochastic import StochasticObjective
from gigagp.model.likelihoods import Likelihood
from gigagp.runtime.machine import MULTIPLICATION


@dataclass(frozen=True)
class SparseVariational(SparseSettings, Inference):
    """Inference through inducing points, which maximizes a lower bound of the log marginal likelihood.

    When to use: if a few hundred inducing points can represent the function (smooth functions of few inputs), or to
    compare with an established method. Predicted variances can be too small near an inducing point, and are too large
    where there is none nearby. The learned noise also covers what the inducing points cannot represent.

    Without ``batch_size`` the method is SGPR: the distribution of the inducing values is optimal in closed form, and a
    step costs O(n m^2) time and O(m^2) memory in addition to the table. With ``batch_size`` the method is SVGP: the
    distribution is learned from minibatches together with the hyperparameters, and a step costs
    O(m^3 + batch_size m^2) for any number of rows.

    Parameters
    ----------
    n_inducing : int, default 512
        Number of inducing points, m. It is limited by the number of distinct rows; ``posterior_.n_inducing`` is the
        number used.
    batch_size : int or None, default None
        Number of rows in a minibatch, limited by the number of rows. None uses all rows at every step, with the
        collapsed bound. Minibatches need `gigagp.optimization.Adam`, which ``optimizer="auto"`` uses in the end.
    start : {"kmeans++", "greedy", "random"}, default "kmeans++"
        Choice of the initial inducing points among the training rows. ``"kmeans++"`` spreads them by squared distance
        in lengthscales (Arthur and Vassilvitskii 2007). ``"greedy"`` adds the row of largest variance given the
        previous ones (Burt et al. 2020, section 4.2). ``"random"`` draws them uniformly. The first two choose among
        20 n_inducing random rows, and at least 10,000, or as many as the memory budget holds. Greedy is better if the
        points are nearly sufficient. With 64 to 256 points for 2,500 rows of protein and pol, its initial bound is much
        lower, because it takes rows at the border first.
    learn_inducing_points : bool, default True
        Whether to learn the inducing points together with the hyperparameters; False keeps them fixed.
    jitter : float, default 1e-8
        Number added to the diagonal of the inducing points' covariance, as a fraction of the prior variance. The bound
        is still a lower bound, for inducing values observed with this noise.

    References
    ----------
    Titsias 2009, https://proceedings.mlr.press/v5/titsias09a.html; Hensman, Fusi and Lawrence 2013, arXiv:1309.6835;
    Burt, Rasmussen and van der Wilk 2020, https://jmlr.org/papers/v21/19-1015.html.
    """

    abilities = Abilities(
        "sparse-variational",
        "any number, smooth functions of few inputs",
        adds_rows=True,
        options={"--inducing": "n_inducing"},
    )
    posteriors = (SparsePosterior,)

    def objective(
        self, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> SparseObjective:
        kind = CollapsedObjective if self.batch_size is None else StochasticObjective
        return kind(self, table, generator)

    def forecast(self, subject: Subject) -> Forecast:
        """Return the cost of inducing points for all rows, and their density from trials with up to 8,000 rows.

        A trial predicts the left-out rows at the hyperparameters that neighbours have learned. Variances are then
        multiplied by the factor that makes them as right as those by neighbours, because the noise that this method
        learns includes the part of the function that the points cannot represent. With the same points, the gains of
        twice as many rows form a geometric series. The points and hyperparameters are not learned, so the method itself
        does somewhat better.
        """
        table, m = subject.table, self.n_inducing
        n = table.n_rows
        rows = _FIRST * n if n < _THINNED else _FIRST * _THINNED / 2 + _LAST * n
        seconds = _PRODUCTS * MULTIPLICATION * m**2 * rows
        memory = 8.0 * (12 * m**2 + 4 * m * min(n, _TRIAL_ROWS))
        if subject.gain < _LEAST_GAIN or seconds > subject.seconds_left:
            return Forecast(seconds, memory)
        tested = max(min(len(subject.left_out), n // 4), 1)
        differences = trials(replace(self, learn_inducing_points=False, start="random"), subject, tested)
        doublings = math.log2(n / min(_TRIAL_ROWS, n - tested))
        return subject.with_nll(seconds, memory, subject.nll + extrapolated(differences, doublings))

    def describe(self) -> str:
        moved = "learned" if self.learn_inducing_points else "fixed"
        batches = "" if self.batch_size is None else f", batches of {self.batch_size}"
        return (
            f"sparse variational ({self.method}, at most {self.n_inducing} inducing points, {moved}, "
            f"start: {self.start}{batches}); its log marginal likelihood is a lower bound"
        )


# The expected cost and accuracy of inducing points, for the choice of ``inference="auto"`` ----------------------------


#: Rows of the largest trial, and the number of trials, each with half the rows of the next.
_TRIAL_ROWS, _TRIALS = 8000, 3
#: Products of all rows' features with m x m matrices in a gradient, and gradients of a fit: on a few thousand rows, and
#: then on all rows of a larger table. Measured on four tables: 20 to 200, and 5 to 30.
_PRODUCTS, _FIRST, _LAST, _THINNED = 3, 80, 15, 16_000
#: Gain of exact inference over neighbours below which inducing points are not tried.
_LEAST_GAIN = 0.002


def trials(settings: SparseSettings, subject: Subject, tested: int) -> list[float]:
    """Return the mean negative log density of left-out rows given more and more of the others, less that by neighbours.

    The first ``tested`` of the left-out rows are predicted.
    """
    table, left_out = subject.table, subject.left_out[:tested]
    drawn = torch.randperm(table.n_rows, generator=torch.Generator().manual_seed(5)).to(left_out.device)
    others = drawn[~torch.isin(drawn, left_out)][:_TRIAL_ROWS]
    local, wanted = float(subject.densities[:tested].mean()), subject.squares[:tested].mean()
    X, Y = table.X[left_out], table.Y[left_out].double()
    scores = []
    for halvings in reversed(range(_TRIALS)):
        taken = table.take_rows(others[: max(len(others) >> halvings, 1)].sort().values)
        objective = CollapsedObjective(settings, taken, torch.Generator().manual_seed(0))
        posterior = objective.posterior(objective.start(subject.model))
        found = posterior.marginals(X, include_noise=True)
        mean, variance = found.means[0], found.variances[0].double()[:, None]
        right = variance * (Y - mean.double()).square().div(variance).mean() / wanted
        scores.append(float(0.5 * (wanted + (2 * math.pi * right).log().mean())) - local)
    return scores


def extrapolated(scores: list[float], doublings: float) -> float:
    """Return the last score after further doublings of the rows, whose gains form a geometric series."""
    gains = [one - other for one, other in pairwise(scores)]
    if gains[-1] <= 0 or doublings <= 0:
        return scores[-1]
    ratio = ratio_of_gains(gains[-2], gains[-1])
    return scores[-1] - gains[-1] * ratio * (1 - ratio**doublings) / (1 - ratio)
