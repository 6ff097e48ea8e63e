"""The settings of quadruply stochastic inference and of relevance vector machines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from gigagp.errors import InvalidInputError
from gigagp.fields import Positive
from gigagp.inference.base import Abilities, Inference
from gigagp.inference.quadruply_stochastic.factory import make_objective
from gigagp.inference.quadruply_stochastic.options import WeightOptions
from gigagp.inference.quadruply_stochastic.posterior import QuadruplyStochasticPosterior
from gigagp.inference.quadruply_stochastic.sampled import MinibatchObjective
from gigagp.inference.quadruply_stochastic.streamed import stream
from gigagp.inference.quadruply_stochastic.whole import WholeObjective
from gigagp.inference.streaming import BegunFit, StreamJob
from gigagp.inference.table import TrainingTable
from gigagp.likelihoods import Gaussian, Likelihood
from gigagp.optimization.sparse import SparseAdam


@dataclass(frozen=True)
class QuadruplyStochastic(WeightOptions, Inference):
    """Variational inference of the weights of very many basis functions; a step costs the same for any number of them.

    The Gaussian process is ``f(x) = sum_i w_i phi_i(x)`` with a Gaussian prior of the m weights. A Gaussian posterior
    ``N(mu, C C')`` of them is learned by ascent of the evidence lower bound, estimated without bias from one sample of
    the rows and three of the basis functions (rows, and both factors and the column of ``c_r' Phi' Phi c_r``). Features
    are made again from a seed, so memory is a few numbers a basis function.

    Small tables need no samples: where a step on all rows and functions is affordable (up to 20,000 rows and 2,000
    functions by default) and nothing of a sampled fit is asked for (``row_batch``, ``basis_batch``, ``n_support``, a
    sparse optimizer), the weights have their exact posterior, or for other likelihoods the best Gaussian one, by
    Newton's method. Hyperparameters then start where the likelihood of up to 1,000 rows has them, of their own kind.

    When to use: classes, counts and heavy tails at any number of rows; and many rows of a function that needs many
    basis functions, where solves with all rows are too slow or too large. From samples the mean starts at the posterior
    of some rows and converges to the exact one of the basis, slowly where the noise is small. The variance is what
    these rows alone leave of the exact process', so never below that with all rows; ``n_columns`` asks for a covariance
    of the weights instead. For a Gaussian likelihood `Exact` and, up to some 50,000 rows, `Iterative` are nearer to the
    exact process.

    Parameters
    ----------
    n_basis : int or None, default None
        Basis functions, m; at most so many. None: 20,000; where all rows and functions are used at once, as many as
        rows, but 1,000 at least and 2,000 at most.
    basis : {"fourier", "inducing", "grid"}, default "fourier"
        Random Fourier features of the kernel; covariances with n_basis of the training rows (all rows, where there are
        no more: the predictive mean is then the exact Gaussian process's); or the leading eigenfunctions of a separable
        kernel on a grid. See `gigagp.bases`. From samples ``optimizer="auto"`` learns the weights alone, at the
        hyperparameters that the likelihood of some rows prefers; `gigagp.optimization.SparseAdam` moves those of the
        first along with the weights. Where all functions are used at once only the grid's are not learned.
    row_batch : int or None, default None
        Rows of a step; all of a smaller table. None: 128.
    basis_batch : int or None, default None
        Functions of each of the two samples of a step, at most ``n_basis``. None: 10,000, or all of up to 20,000; 1,000
        of ``basis="inducing"``, whose step needs a block of the prior precision, ``basis_batch^2`` covariances. Of
        the two batches this one should be the larger: what a sample of the functions leaves out of the fit is one
        error, the same function for all rows of the step, so that more rows do not average it; its variance is the
        squared norm of what is sampled over ``basis_batch``, whatever the number of functions.
    n_columns : int or None, default None
        Dense columns of C, a factor of the weights' covariance, the first ones (a chevron); 0 is mean-field, n_basis a
        full factor (m^2 numbers). None: all where all rows and functions are used at once. From samples no factor is
        learned: the covariance is that of the exact process once the ``start_rows`` rows are known, which is no smaller
        than with all rows, wherever; mean-field where ``start_rows``, ``diagonal``, ``augment`` or ``bound`` ask for
        it, or where the hyperparameters of labels or counts are learned along.
    diagonal : {"learned", "closed_form"}, default "learned"
        The diagonal columns of C: by ascent, or the optimum in closed form from one pass over the rows when the rest is
        done: O(n m) once. The closed form is for a Gaussian likelihood.
    start_rows : int or None, default None
        Random rows whose posterior the weights' mean starts from, with the features' own covariances: O(rows^2 m) once.
        None: 4,096 (2,000 for other than Gaussian likelihoods), or fewer where that would take more than about a minute
        of one core (1,483 for a million functions) or an eighth of the memory budget; 0: the mean starts at zero, as in
        the paper. Dense columns start there too, but those of ``basis="inducing"``, whose rows are some of its points.
    anchor : bool, default True
        Compute the function of the weights at all rows now and then, O(n m), as often as that costs what the steps
        between do; a step then samples only the difference from it. What sampled functions add to the variance, and to
        the gap of the bound of other likelihoods, nearly vanishes. Of rows that are not held (``fit_table`` of a large
        table) there are no anchors. False: as in the paper.
    n_support : int, default 0
        Rows of the control variates, their rank; 0: none. They cost about as much a step as so many rows in the batch,
        and remove variance that the sampling of the basis makes; `variance_removed` of the posterior's controls says
        how much.
    control : {"residual", "quadratic"}, default "residual"
        What they follow: the residuals of the support rows, or the quadratic part alone (the paper's eq. 3).
    prior_control : bool, default False
        Control variates for the prior term too, by Nystrom's approximation at the support rows; for
        ``basis="inducing"``.
    linear_control : bool, default False
        A control variate for the targets' term (the paper's F2c): it takes the noise that sampled functions add out of
        the bound that is reported, and not out of its gradient. One pass over rows and functions, O(n m), and m
        numbers.
    order : {"given", "information"}, default "given"
        Which functions the dense columns are: the first ones of the basis, or those of which the rows say most,
        ``phi' phi / s``, from a pass over a thousand rows. The functions of a grid are in that order already.
    bound : {"sqrt", "linear", "as_printed"}, default "sqrt"
        For other than Gaussian likelihoods, how the spread of the latent value is estimated: next to without bias, or
        as a certified lower bound that is loose with many functions, or with the paper's misprint.
    replacement : bool, default False
        Draw basis functions and rows with replacement.
    augment : bool, default False
        Predict with one more basis function at each new point (the paper's Prop. 4), which takes the variance back to
        the prior's far from the rows; for ``basis="inducing"``. It costs O(n) a point.
    quadrature_nodes : int, default 101

    References
    ----------
    Evans and Nair 2020, "Quadruply stochastic Gaussian processes", arXiv:2006.03015. The spread in its eq. 5 and
    Theorem 3 lacks a root; see `gigagp.inference.quadruply_stochastic.bound`.
    """

    abilities = Abilities(
        "quadruply-stochastic",
        "any number",
        likelihoods="any",
        streams=True,
        options={"--functions": "n_basis"},
    )
    posteriors = (QuadruplyStochasticPosterior,)

    def objective(
        self, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> WholeObjective | MinibatchObjective:
        """Return the lower bound on a table; the likelihood is Gaussian where none is given."""
        return make_objective(self, table, generator, likelihood or Gaussian())

    def adam(self, **settings: Any) -> SparseAdam:
        """Return the Adam that touches only the weights that a step samples."""
        return SparseAdam(**settings)

    def stream(self, job: StreamJob, generator: torch.Generator) -> BegunFit:
        """Fit rows that are not held, by minibatches from random places; see `gigagp.inference.streaming`."""
        return stream(self, job, generator)

    def describe(self) -> str:
        """Return one line for people."""
        if self.row_batch is None and self.basis_batch is None:
            step = "all rows and functions at once where the table is small"
        else:
            step = f"a step: {self.sampled_rows:,} rows, 2 x {self.sampled_functions:,} functions"
        root = (
            "" if self.n_columns is None else f", {self.n_columns} dense columns" if self.n_columns else ", mean-field"
        )
        return (
            f"quadruply stochastic (at most {self.n_functions:,} {self.basis} functions{root}; {step}); its log "
            "marginal likelihood is a lower bound"
        )


@dataclass(frozen=True)
class RelevanceVectorMachine(QuadruplyStochastic):
    """Sparse Bayesian learning: a kernel at every training row, of which few are kept.

    Every weight has a prior precision of its own, which follows the weight at the optimum of the same bound. Most grow
    without limit and their weights vanish; the rows of the others are the relevance vectors
    (``posterior_.relevance_vectors``).

    When to use: where a small, readable model is wanted; predictions cost the relevance vectors alone. Its variances
    are small far from all of them. Up to some 5,000 rows all of them are used at once and the precisions converge: a
    noisy sinc keeps 7 to 13 of 100 to 500 rows (13 in the paper). From samples they end where the steps do, above
    that: superfluous precisions grow by a share a step that becomes ever smaller (27 vectors of 100 rows after 1,000
    steps).

    Parameters
    ----------
    threshold : float, default 1e4
        Precision above which a weight is dropped.
    others
        As for `QuadruplyStochastic`; ``n_basis`` random rows where the table has more.

    References
    ----------
    Tipping 2001, https://jmlr.org/papers/v1/tipping01a.html; Evans and Nair 2020, arXiv:2006.03015, appendix I.3.
    """

    threshold: Positive = 1e4

    abilities = replace(QuadruplyStochastic.abilities, name="relevance-vectors", rows="up to some 5,000")

    learns_precision = True

    @property
    def highest_precision(self) -> float | None:
        """Prior precision above which a weight is dropped."""
        return self.threshold

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order != "given":
            msg = f'order of RelevanceVectorMachine must be "given"; got {self.order!r}.'
            raise InvalidInputError(msg)
        if self.basis != "fourier":
            msg = f"basis of RelevanceVectorMachine is the kernel at training rows; leave it out, got {self.basis!r}."
            raise InvalidInputError(msg)

    def describe(self) -> str:
        """Return one line for people."""
        return "relevance vectors by " + super().describe().replace("fourier", "radial")
