"""`inference.SparseVariational`: what users choose of sparse variational inference, and what it makes of a table."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gigagp.inference.base import Abilities, Inference
from gigagp.inference.sparse_variational.collapsed import CollapsedObjective
from gigagp.inference.sparse_variational.objective import SparseObjective
from gigagp.inference.sparse_variational.posterior import SparsePosterior
from gigagp.inference.sparse_variational.settings import SparseSettings
from gigagp.inference.sparse_variational.stochastic import StochasticObjective
from gigagp.inference.table import TrainingTable
from gigagp.likelihoods import Likelihood


@dataclass(frozen=True)
class SparseVariational(SparseSettings, Inference):
    """Inference through inducing points: a lower bound of the log marginal likelihood in place of it.

    When to use: where a few hundred numbers can tell what the table says (smooth functions of few inputs), or to
    compare with what is known. Its error bars can be too small near an inducing point and are too large where none is
    near; the noise it learns also covers what the inducing points cannot represent.

    Without ``batch_size`` this is SGPR: the distribution of the inducing values is the best one in closed form, and a
    step costs O(n m^2) time and O(m^2) memory beside the table. With it this is SVGP: the distribution is learned with
    the rest, from minibatches, and a step costs O(m^3 + batch_size m^2) whatever the number of rows. There is no other
    switch between the two.

    Parameters
    ----------
    n_inducing : int, default 512
        Inducing points, m. A table with fewer distinct rows has that many; ``posterior_.n_inducing`` says how many
        there are.
    batch_size : int or None, default None
        None: all rows at every step, the collapsed bound. An int: rows of a minibatch, at most all of them. Minibatches
        need `gigagp.optimization.Adam` (``optimizer="auto"`` ends with it).
    start : {"kmeans++", "greedy", "random"}, default "kmeans++"
        Where the inducing points start, among the training rows: spread by squared distance in lengthscales (Arthur and
        Vassilvitskii 2007), one after the other where the variance given those before is largest (Burt et al. 2020,
        section 4.2), or at random. The first two look at 20 n_inducing random rows, 10,000 at least. Greedy pays where
        the points are nearly enough; with 64 to 256 for 2,500 rows of protein and pol it starts far lower, because it
        takes the rows at the border first.
    learn_inducing_points : bool, default True
        Whether the points move with the hyperparameters, or stay where they start.
    jitter : float, default 1e-8
        Added to the diagonal of the inducing points' covariance, as a share of the prior variance. The bound with it is
        still a lower bound: that of inducing values with this much noise.

    References
    ----------
    Titsias 2009, https://proceedings.mlr.press/v5/titsias09a.html; Hensman, Fusi and Lawrence 2013, arXiv:1309.6835;
    Burt, Rasmussen and van der Wilk 2020, https://jmlr.org/papers/v21/19-1015.html.
    """

    abilities = Abilities(
        "sparse-variational",
        "any number, smooth functions of few inputs",
        options={"--inducing": "n_inducing"},
    )
    posteriors = (SparsePosterior,)

    def objective(
        self, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> SparseObjective:
        """Return the lower bound on a table."""
        kind = CollapsedObjective if self.batch_size is None else StochasticObjective
        return kind(self, table, generator)

    def describe(self) -> str:
        """Return one line for people."""
        moved = "learned" if self.learn_inducing_points else "fixed"
        batches = "" if self.batch_size is None else f", batches of {self.batch_size}"
        return (
            f"sparse variational ({self.method}, at most {self.n_inducing} inducing points, {moved}, "
            f"start: {self.start}{batches}); its log marginal likelihood is a lower bound"
        )
