"""`inference.SparseVariational`: the settings of sparse variational inference, and its objectives."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gigagp.inference.contract.base import Abilities, Inference
from gigagp.inference.contract.forecast import Forecast, Subject
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.sparse_variational.collapsed import CollapsedObjective
from gigagp.inference.sparse_variational.objective import SparseObjective
from gigagp.inference.sparse_variational.posterior import SparsePosterior
from gigagp.inference.sparse_variational.settings import SparseSettings
from gigagp.inference.sparse_variational.stochastic import StochasticObjective
from gigagp.inference.sparse_variational.trial import forecast
from gigagp.model.likelihoods import Likelihood


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
        collapsed bound. Minibatches need `gigagp.optimization.Adam`, which is what ``optimizer="auto"`` ends with.
    start : {"kmeans++", "greedy", "random"}, default "kmeans++"
        Choice of the initial inducing points among the training rows. ``"kmeans++"`` spreads them by squared distance
        in lengthscales (Arthur and Vassilvitskii 2007). ``"greedy"`` adds the row of largest variance given the
        previous ones (Burt et al. 2020, section 4.2). ``"random"`` draws them uniformly. The first two choose among
        20 n_inducing random rows, and at least 10,000. Greedy is better if the points are nearly sufficient. With 64 to
        256 points for 2,500 rows of protein and pol, its initial bound is much lower, because it takes rows at the
        border first.
    learn_inducing_points : bool, default True
        Whether to learn the inducing points together with the hyperparameters; False keeps them fixed.
    jitter : float, default 1e-8
        Number added to the diagonal of the inducing points' covariance, as a share of the prior variance. The bound is
        still a lower bound, for inducing values observed with this noise.

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
        """Return the lower bound of the log marginal likelihood on a table."""
        kind = CollapsedObjective if self.batch_size is None else StochasticObjective
        return kind(self, table, generator)

    def forecast(self, subject: Subject) -> Forecast:
        """Return the scores of the left-out rows from inducing points, extrapolated from subsets to all rows."""
        return forecast(self, subject)

    def describe(self) -> str:
        """Return a one-line description for users."""
        moved = "learned" if self.learn_inducing_points else "fixed"
        batches = "" if self.batch_size is None else f", batches of {self.batch_size}"
        return (
            f"sparse variational ({self.method}, at most {self.n_inducing} inducing points, {moved}, "
            f"start: {self.start}{batches}); its log marginal likelihood is a lower bound"
        )
