"""The settings of quadruply stochastic inference and of relevance vector machines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from gigagp.errors import InvalidInputError
from gigagp.inference.contract.base import Abilities, Inference
from gigagp.inference.contract.forecast import Forecast, Subject
from gigagp.inference.contract.streaming import BegunFit, StreamJob
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.quadruply_stochastic.factory import make_objective
from gigagp.inference.quadruply_stochastic.options import LEAST_WHOLE, MOST_WHOLE, WHOLE_ROWS, WeightOptions
from gigagp.inference.quadruply_stochastic.posterior import QuadruplyStochasticPosterior
from gigagp.inference.quadruply_stochastic.sampled import MinibatchObjective
from gigagp.inference.quadruply_stochastic.streamed import stream
from gigagp.inference.quadruply_stochastic.whole import WholeObjective
from gigagp.model.likelihoods import Gaussian, Likelihood
from gigagp.model.model import Model
from gigagp.optimization.sparse import SparseAdam
from gigagp.runtime.machine import MULTIPLICATION
from gigagp.settings.fields import Positive

#: Gradients where all rows and functions are used at once. Measured on protein: 30, and 23 CPU s for 4,000 rows.
_STEPS = 30


@dataclass(frozen=True)
class QuadruplyStochastic(WeightOptions, Inference):
    """Variational inference of the weights of very many basis functions; a step costs the same for any number of them.

    The Gaussian process is ``f(x) = sum_i w_i phi_i(x)`` with a Gaussian prior of the m weights. Their Gaussian
    posterior ``N(mu, C C')`` is learned by ascent of the evidence lower bound. Every step estimates the bound without
    bias from one sample of the rows and up to three samples of the basis functions: two for the factors of ``c_r' Phi'
    Phi c_r``, and one for the columns r (see ``column_batch``). Features are computed again from a seed, so memory is a
    few numbers per basis function.

    Small tables need no samples. All rows and functions are used at once where a step on them is affordable (by default
    up to 20,000 rows and 2,000 functions) and nothing asks for a sampled fit (``row_batch``, ``basis_batch``,
    ``column_batch``, ``n_support``, a sparse optimizer with a number of steps). The weights then have their exact
    posterior, or for other likelihoods the best Gaussian one, by Newton's method. Hyperparameters start at the optimum
    for up to 1,000 rows, under the same likelihood.

    When to use: for classes, counts and heavy tails with any number of rows, and for many rows of a function that needs
    many basis functions, where solves with all rows are too slow or too large. In a sampled fit the mean starts at the
    posterior of a subset of rows and converges to the exact one of the basis, slowly if the noise is small. The
    variance is never below that given all rows, unless ``n_columns`` asks for a covariance of the weights. For a
    Gaussian likelihood `Exact` and, up to about 50,000 rows, `Iterative` are closer to the exact process.

    Parameters
    ----------
    n_basis : int or None, default None
        Largest number of basis functions, m. None: 20,000; where all rows and functions are used at once, as many as
        there are rows, but at least 1,000 and at most 2,000.
    basis : {"fourier", "inducing", "grid"}, default "fourier"
        Random Fourier features of the kernel; covariances with n_basis of the training rows (where these are all rows,
        the predictive mean is that of the exact Gaussian process); or the leading eigenfunctions of a separable kernel
        on a grid. See `gigagp.inference.quadruply_stochastic.bases`. In a sampled fit ``optimizer="auto"`` learns only
        the weights, at hyperparameters learned from a subset of rows, and `gigagp.optimization.SparseAdam` moves the
        hyperparameters of a Fourier basis along with the weights. Where all functions are used at once, the
        hyperparameters of every basis but the grid are learned.
    row_batch : int or None, default None
        Rows of a step; a smaller table is used whole. None: 128.
    basis_batch : int or None, default None
        Functions in each of the two samples of a step, at most ``n_basis``. None: 10,000, or all of up to 20,000; 1,000
        with ``basis="inducing"``, where a step needs a block of the prior precision, ``basis_batch^2`` covariances.
        This batch should be larger than ``row_batch``. The functions that a sample leaves out cause an error that all
        rows of the step share, so more rows do not average it out. Its variance is the squared norm of the sampled
        weights over ``basis_batch``, for any number of functions.
    n_columns : int or None, default None
        Dense columns of C, a factor of the weights' covariance. They are the first columns (a chevron); 0 is
        mean-field, and n_basis a full factor (m^2 numbers). None: the covariance is that of the exact process given the
        ``start_rows`` rows, which is nowhere smaller than that given all rows. It comes from the weights where
        ``start_rows=0``, ``diagonal``, ``augment`` or ``bound`` ask for that, and for labels and counts where their
        hyperparameters are learned as well or all rows and functions are used at once. It is then mean-field in a
        sampled fit, and otherwise full.
    column_batch : int or None, default None
        Dense columns that a step of a sampled fit sees, at most ``n_columns``: the third sample of the paper's Theorem
        2. The columns are divided into groups of at most this many neighbours, and a step sees a random group. With 10
        of 100 columns a step takes about half the time, and with a full covariance its time does not depend on m.
        None: all of up to 128 columns, and 64 of more. If there are few, it is better to use all: the features then
        cost as much as the columns, the reported bound is less noisy, and the columns have an anchor. A relevance
        vector machine always sees all of them, because its precisions depend on all.
    diagonal : {"learned", "closed_form"}, default "learned"
        How the diagonal columns of C are found: by ascent, or as the optimum in closed form after the last step, in one
        pass over the rows, O(n m). The closed form is for a Gaussian likelihood.
    start_rows : int or None, default None
        Random rows at whose posterior the weights' mean starts, by the covariances of the features: O(rows^2 m) once.
        None: 4,096 (2,000 for other than Gaussian likelihoods), or fewer where that would take more than about a minute
        of one core (1,483 for a million functions) or an eighth of the memory budget. 0: the mean starts at zero, as in
        the paper. Dense columns start at that posterior too, except with ``basis="inducing"``, where the rows are some
        of the points.
    anchor : bool, default True
        Whether to compute the function of the weights at all rows now and then, O(n m), so rarely that it costs no more
        than the steps between. A step then samples only the difference from it. The variance due to sampled functions
        nearly vanishes, and with it the gap of the bound for other likelihoods. There are no anchors for rows that are
        not in memory (``fit_table`` of a large table). False: as in the paper.
    n_support : int, default 0
        Rows of the control variates, which is their rank; 0: none. In a step they cost about as much as the same number
        of rows in the batch. They remove variance that the sampling of the basis causes; ``variance_removed`` of the
        posterior says how much.
    control : {"residual", "quadratic", "as_printed"}, default "residual"
        Whether the control variates follow the residuals of the support rows, or the quadratic part alone. Support rows
        have the weights that represent all rows best, and every control the multiple that removes most variance.
        "as_printed" is the paper's eq. 3: the quadratic part, equal weights, and the multiple 1, which can add variance
        where the rank is low or the lengthscale short.
    prior_control : bool, default False
        Whether the prior term has control variates too, by Nystrom's approximation at the support rows; for
        ``basis="inducing"``.
    linear_control : bool, default False
        Whether the targets' term has a control variate (the paper's F2c). It removes the noise of sampled functions
        from the reported bound, not from its gradient. It costs a pass over rows and functions, O(n m), and m numbers.
    bound : {"sqrt", "linear", "as_printed"}, default "sqrt"
        How the spread of the latent value is estimated for other than Gaussian likelihoods: nearly without bias, as a
        certified lower bound that is loose with many functions, or with the paper's misprint.
    replacement : bool, default False
        Whether basis functions and rows are drawn with replacement.
    augment : bool, default False
        Whether predictions use one more basis function at each new point (the paper's Prop. 4), which returns the
        variance to the prior's far from the rows; for ``basis="inducing"``. It costs O(n) per point.
    quadrature_nodes : int, default 101
        Of the expected log-likelihood, where it has no closed form.

    References
    ----------
    Evans and Nair 2020, "Quadruply stochastic Gaussian processes", arXiv:2006.03015. The spread in its eq. 5 and
    Theorem 3 lacks a root; see `gigagp.inference.quadruply_stochastic.estimators.readings`.
    """

    abilities = Abilities(
        "quadruply-stochastic",
        "any number",
        kernels="random features",
        likelihoods="log-concave",
        streams=True,
        options={"--functions": "n_basis"},
    )
    posteriors = (QuadruplyStochasticPosterior,)

    def objective(
        self, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> WholeObjective | MinibatchObjective:
        return make_objective(self, table, generator, likelihood or Gaussian())

    def check_model(self, model: Model) -> None:
        """Refuse a kernel without random features where the basis is made of them."""
        if self.basis == "fourier" and not self.learns_precision:
            super().check_model(model)

    def adam(self, **settings: Any) -> SparseAdam:
        """Return the Adam that touches only the weights that a step samples."""
        return SparseAdam(**settings)

    def stream(self, job: StreamJob, generator: torch.Generator) -> BegunFit:
        return stream(self, job, generator)

    def forecast(self, subject: Subject) -> Forecast | None:
        """Return the cost where all rows and functions are used at once; None beyond, and with other settings.

        The cost of a sampled fit does not depend on the number of rows, but how far it gets does.
        """
        n = subject.table.n_rows
        if n > WHOLE_ROWS or self.learns_precision:
            return None
        m = min(max(n, LEAST_WHOLE), MOST_WHOLE)
        return Forecast(_STEPS * MULTIPLICATION * n * m**2, 8.0 * (4 * m**2 + n * m))

    def describe(self) -> str:
        if self.row_batch is None and self.basis_batch is None:
            step = "all rows and functions at once where the table is small"
        else:
            step = f"a step: {self.sampled_rows:,} rows, 2 x {self.sampled_functions:,} functions"
        k = self.n_columns
        root = "" if k is None else f", {k} dense columns" if k else ", mean-field"
        if self.sampled_columns is not None:
            root += f" of which a step sees {self.sampled_columns}"
        return (
            f"quadruply stochastic (at most {self.n_functions:,} {self.basis} functions{root}; {step}); its log "
            "marginal likelihood is a lower bound"
        )


@dataclass(frozen=True)
class RelevanceVectorMachine(QuadruplyStochastic):
    """Sparse Bayesian learning: a kernel function at every training row, few of which are kept.

    Every weight has its own prior precision, which follows the weight at the optimum of the same bound. Most precisions
    grow without limit, and their weights vanish. The rows of the others are the relevance vectors
    (``posterior_.relevance_vectors``).

    When to use: for a small, interpretable model. The cost of predictions grows with the number of relevance vectors.
    The variance is small far from all of them. Up to about 5,000 rows all rows are used at once and the precisions
    converge: a noisy sinc keeps 7 to 13 of 100 to 500 rows (13 in the paper). A sampled fit keeps more. A precision is
    at most one over the square of its weight, so the noise of the steps holds the precisions of superfluous weights
    down, and where neighbours share a weight it takes many steps to remove one of them. Anchors take away most of that
    noise; a larger ``row_batch``, more steps and a smaller ``final_share`` of the optimizer take away more.

    If all rows are used at once, the fit always uses float64; with ``dtype="float32"`` a warning says so.

    Parameters
    ----------
    threshold : float, default 1e4
        Precision above which a weight is dropped.
    others
        As for `QuadruplyStochastic`. If the table has more than ``n_basis`` rows, the functions are at random rows.

    References
    ----------
    Tipping 2001, https://jmlr.org/papers/v1/tipping01a.html; Evans and Nair 2020, arXiv:2006.03015, appendix I.3.
    """

    threshold: Positive = 1e4

    abilities = replace(
        QuadruplyStochastic.abilities, name="relevance-vectors", rows="up to about 5,000", kernels="any"
    )

    learns_precision = True

    @property
    def highest_precision(self) -> float | None:
        return self.threshold

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.basis != "fourier":
            msg = f"basis of RelevanceVectorMachine is the kernel at training rows; leave it out, got {self.basis!r}."
            raise InvalidInputError(msg)

    def describe(self) -> str:
        return "relevance vectors by " + super().describe().replace("fourier", "radial")
