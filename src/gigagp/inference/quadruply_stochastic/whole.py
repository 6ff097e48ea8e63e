"""The lower bound on all rows and functions at once, for small tables: its best weights, and its derivatives there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gigagp.inference.contract.least_noise import at_least_noise, with_least_noise
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.trend import coefficient_root
from gigagp.inference.quadruply_stochastic.bases import Basis
from gigagp.inference.quadruply_stochastic.divergence import dense_divergence
from gigagp.inference.quadruply_stochastic.expectation import LAST_STEPS, STEPS, warn_of_missed
from gigagp.inference.quadruply_stochastic.latent import (
    LatentObjective,
    LatentPoint,
    Sites,
    bent_solve,
    best_latent,
    learned_basis,
    newton_target,
    sites_from,
)
from gigagp.inference.quadruply_stochastic.newton import Point, Start, WeightSearch
from gigagp.inference.quadruply_stochastic.objective import WeightObjective
from gigagp.inference.quadruply_stochastic.options import WeightProblem
from gigagp.inference.quadruply_stochastic.posterior import QuadruplyStochasticPosterior
from gigagp.inference.quadruply_stochastic.rows_covariance import OpenTrend, RowsCovariance
from gigagp.inference.quadruply_stochastic.sampled import MinibatchObjective
from gigagp.inference.quadruply_stochastic.start import rows_of_covariance
from gigagp.inference.quadruply_stochastic.weights import Weights
from gigagp.model.estimate import Estimate
from gigagp.model.model import Model
from gigagp.optimization.lbfgs import LBFGS
from gigagp.optimization.objective import Evaluation
from gigagp.optimization.subsets import SubsetFirst
from gigagp.products.dense import triangular_inverse
from gigagp.runtime.machine import MULTIPLICATION, slowness

#: Gain in nats an observation that ends a search: while hyperparameters move, and for the weights that are kept, whose
#: bound must not depend on where the search started.
_TOLERANCE, _LAST_TOLERANCE = 1e-7, 1e-9
#: Rows for each weight up to which many steps cost less among the latent values at the rows than among the weights.
_FEW_ROWS = 1.5
#: Rows that hyperparameters are first learned from where a search takes many steps.
_SUBSET = 1000


class WholeFit(NamedTuple):
    """The best weights at one model."""

    model: Model
    point: Point | FewRowsFit | RelevantWeights
    #: coefficients of the mean's basis, shape (p, t); zeros for labels and counts
    trend: Tensor
    #: less the trend, shape (n, t)
    targets: Tensor
    #: gain in nats that the last Newton step promised, which a search that ended early has missed
    promised: float


class WholeObjective(WeightObjective):
    """The highest bound over all Gaussian distributions of the weights, as a function of the hyperparameters.

    It is deterministic, so any optimizer can maximise it. A sparse optimizer with a number of steps takes the objective
    of samples in its place (`sampled`).
    """

    deterministic = True

    def __init__(self, problem: WeightProblem, seed: int) -> None:
        super().__init__(problem, seed)
        self._basis: Basis | None = None
        #: where the next search starts
        self._start: Start | Sites | None = None
        #: what hyperparameters have been learned from, and its rows, which tell where the first search starts
        self._learner: tuple[LatentObjective, Tensor] | None = None
        self._fitted: WholeFit | None = None
        #: the objective that a sparse optimizer has asked for: its weights are then those of the posterior
        self._sampled: MinibatchObjective | None = None

    def own_optimizer(self) -> SubsetFirst | LBFGS:
        likelihood = self.problem.likelihood
        if self.problem.options.learns_precision:
            return LBFGS(5, tolerance=1e-3)
        if not likelihood.has_noise:
            return SubsetFirst(signal_variance=likelihood.signal_variance)
        if self.problem.is_gaussian or self.n_rows <= _SUBSET:
            # After five steps, squared errors of targets without noise were thousands of times the predicted variances.
            return LBFGS(40, tolerance=1e-4)
        return SubsetFirst(_SUBSET, steps=40, tolerance=1e-4, then=LBFGS(5, tolerance=1e-4))

    def thin(self, rows: Tensor) -> TableObjective:
        """Return an objective on a subset: the same for Laplace noise, which also covers the error of the basis."""
        problem = self.problem
        if problem.is_gaussian or not problem.likelihood.has_noise:
            found = super().thin(rows)
            if isinstance(found, LatentObjective):
                self._learner = found, rows
            return found
        return WholeObjective(replace(problem, table=self.table.take_rows(rows), n_rows=len(rows)), self.seed)

    def sampled(self) -> MinibatchObjective:
        """Return the objective of samples with the same basis; `posterior` is of its weights from now on."""
        if self._sampled is None:
            self._sampled = MinibatchObjective(self.problem, self.seed)
        return self._sampled

    def ending_seconds(self) -> float:
        """Return the expected seconds of an evaluation, and as much for the posterior."""
        n, m = self.n_rows, self.problem.options.n_basis or 0
        return 2 * slowness() * MULTIPLICATION * (n * m**2 + m**3)

    # The weights -----------------------------------------------------------------------------------------------------

    def start(self, model: Model) -> Model:
        """Make the basis; nothing else is learned beside the hyperparameters."""
        self._basis, _ = self._new_basis(model)
        return model

    @property
    def basis(self) -> Basis:
        """The basis at the model that `start` was given."""
        assert self._basis is not None, "an optimizer calls start first"
        return self._basis

    def evaluate(self, model: Model) -> Evaluation:
        """Return the highest bound at a model with enough noise for float64, and its derivatives."""
        fitted = self._fit(with_least_noise(model, self.table.X), _TOLERANCE)
        return at_least_noise(Evaluation(fitted.point.value, self._gradient(fitted)), model, self.table.X)

    @torch.no_grad()
    def _fit(self, model: Model, tolerance: float) -> WholeFit:
        """Find the best weights at a model."""
        problem, table, options = self.problem, self.table, self.problem.options
        index, X = torch.arange(self.basis.size, device=table.X.device), table.X.double()
        basis = self.basis.with_kernel(model.kernel)
        Phi = basis.columns(X, index)
        search = WeightSearch(
            Phi,
            basis.prior_diagonal(index) if basis.has_diagonal_prior else basis.prior_block(index, index),
            self._noise(model),
            table.Y.double(),
            learned_basis(table, problem.likelihood),
            problem.likelihood,
            options.n_columns,
            options.quadrature_nodes,
        )
        point: Point | FewRowsFit | RelevantWeights
        if options.learns_precision:
            prior_variance = float(model.kernel.diagonal(table.X).mean())
            point = relevant_weights(search, prior_variance, options.highest_precision or 0.0, _TOLERANCE)
            promised = point.promised
        else:
            if self._start is None and self._learner is not None:
                self._start = sites_from(*self._learner, model, table)
            point, promised = self._maximise(search, tolerance)
            self._start = point.to_start()
        trend = point.trend if problem.likelihood.has_noise else problem.no_trend
        self._fitted = WholeFit(model, point, trend, problem.centred(trend), promised)
        return self._fitted

    def _maximise(self, search: WeightSearch, tolerance: float) -> tuple[Point | FewRowsFit, float]:
        """Return the best distribution of the weights, and the gain that another step promises."""
        start, (n, m) = self._start, search.Phi.shape
        most = LAST_STEPS if tolerance == _LAST_TOLERANCE else STEPS
        few_rows = n < m if self.problem.is_gaussian else n <= _FEW_ROWS * m
        if few_rows and search.S.ndim == 1 and (search.n_columns is None or search.n_columns >= m):
            found = fit_few_rows(search, start if isinstance(start, Sites) else None, tolerance, most)
            return found, max(found.promised(), found.best.missed)
        return search.maximise(start if isinstance(start, Sites) else search.start(start), tolerance, most)

    def _noise(self, model: Model) -> Tensor:
        rows = torch.arange(self.n_rows, device=self.table.X.device)
        return model.noise_of_rows(rows, self.table.X.double())

    def _weights(self, fitted: WholeFit) -> Weights:
        """Return the distribution of the weights."""
        like, point = self.table.X, fitted.point
        if isinstance(point, RelevantWeights):
            return point.weights(like)
        k, root = len(point.mean), point.root
        if self.problem.options.n_columns is not None:
            k = min(self.problem.options.n_columns, k)
        columns = root[:, :k].to(like) if k else None
        return Weights(point.mean.to(like), root.diagonal().log().to(like), columns)

    # The hyperparameters ---------------------------------------------------------------------------------------------

    def _gradient(self, fitted: WholeFit) -> dict[str, Tensor]:
        """Return the derivatives of the best bound by the hyperparameters, at the best weights.

        The bound is at its maximum in the weights there, so they count as constants. Hyperparameters without a
        derivative have zeros: those that make the functions of a grid, or of a relevance vector machine.
        """
        model = fitted.model
        found = {name: torch.zeros_like(value) for name, value in model.parameters().items()}
        learns = self.basis.is_differentiable and not self.problem.options.learns_precision
        names = self._names_with_gradient(model, of_kernel=learns)
        if not names:
            return found
        with torch.enable_grad():
            values = {name: model.parameters()[name].detach().clone().requires_grad_() for name in names}
            tangent = self._tangent(fitted, model.replace(values))
            slopes = torch.autograd.grad(tangent, list(values.values()), allow_unused=True)
        found |= {name: slope for name, slope in zip(values, slopes, strict=True) if slope is not None}
        return found

    def _tangent(self, fitted: WholeFit, live: Model) -> Tensor:
        """Return a function of the hyperparameters with the derivatives of the best bound, where it was fitted."""
        point, noise = fitted.point, self._noise(live)
        if isinstance(point, RelevantWeights):
            # The bound of the functions that are kept: the others have left, though their precisions are finite.
            return (point.point.fit.of_noise * noise).sum()
        index, basis = torch.arange(self.basis.size, device=noise.device), self.basis.with_kernel(live.kernel)
        Phi = basis.columns(self.table.X.double(), index)
        if isinstance(point, FewRowsFit):
            scaled = Phi / basis.prior_diagonal(index).sqrt()
            return point.best.tangent(scaled @ scaled.T, noise)
        return self._bound(fitted, live, basis, Phi)

    def _bound(self, fitted: WholeFit, live: Model, basis: Basis, Phi: Tensor) -> Tensor:
        """Return the bound of the best weights as a function of the hyperparameters."""
        weights = self._weights(fitted)
        mean, root, index = weights.mean.double(), weights.root(), torch.arange(len(weights.mean), device=Phi.device)
        S = weights.prior_diagonal(basis, index) if basis.has_diagonal_prior else basis.prior_block(index, index)
        fit = self.problem.likelihood.expected_log_density(
            fitted.targets.double(),
            Phi @ mean,
            (Phi @ root).square().sum(1).clamp_min(1e-30).sqrt()[:, None],
            self._noise(live)[:, None],
            self.problem.options.quadrature_nodes,
        )
        return fit.sum() - dense_divergence(S, mean, root)

    # Posteriors ------------------------------------------------------------------------------------------------------

    def current_posterior(self) -> QuadruplyStochasticPosterior | None:
        """Return the posterior of the weights where `evaluate` was last called; None before."""
        return None if self._fitted is None else self._posterior_of(self._fitted)

    def learn_remaining(self, model: Model, generator: torch.Generator) -> None:
        """Have the objective of samples learn its remaining weights, where a sparse optimizer has asked for it."""
        if self._sampled is not None:
            self._sampled.learn_remaining(model, generator)

    def learned_posterior(self, model: Model, generator: torch.Generator) -> QuadruplyStochasticPosterior:
        """Return the posterior at a learned model with enough noise for float64."""
        return self.posterior(with_least_noise(model, self.table.X), generator)

    def posterior(self, model: Model, generator: torch.Generator) -> QuadruplyStochasticPosterior:
        """Return the posterior of the best weights at a model, or of those that a sparse optimizer has learned."""
        if self._sampled is not None:
            return self._sampled.posterior(model, generator)
        if self._basis is None:
            self.start(model)
        fitted = self._fitted
        if fitted is None or not (self.problem.options.learns_precision and model.equals(fitted.model)):
            fitted = self._fit(model, _LAST_TOLERANCE)
        warn_of_missed(fitted.promised, self.n_observations)
        posterior = self._posterior_of(fitted)
        posterior.bound = Estimate(fitted.point.value, 0.0)
        posterior.warn_of_threshold()
        return posterior

    def _posterior_of(self, fitted: WholeFit) -> QuadruplyStochasticPosterior:
        """Return the posterior of the best weights; its covariance is that of the rows, unless one was asked for.

        The covariance of m weights is too small: m functions leave less of the prior to learn than the kernel does. The
        mean under a Gaussian likelihood does not depend on it. Labels and counts say so much less of the function than
        targets with noise that the weights' own covariance is nearly right.
        """
        problem, of_rows, point = self.problem, None, fitted.point
        open_trend = point.open_trend
        if not problem.likelihood.has_noise:
            open_trend = OpenTrend.known(self.table.basis.shape[1])
        if problem.likelihood.has_noise and not problem.options.learns_covariance:
            rows = rows_of_covariance(problem, torch.Generator().manual_seed(self.seed))
            of_rows = RowsCovariance(fitted.model.kernel, self.table.X[rows], point.curvature[rows])
            open_trend = OpenTrend.at_rows(of_rows, self.table.mean.basis(of_rows.X.double()))
        return QuadruplyStochasticPosterior.of(
            problem,
            fitted.model,
            self.basis,
            self._weights(fitted),
            fitted.trend,
            open_trend,
            covariance_of=of_rows,
            from_samples=False,
        )

    # Checkpoints -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return ({} if self._start is None else self._start._asdict()), {}

    def restore(self, model: Model, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        for kind in (Start, Sites):
            if kind._fields[0] in tensors:
                self._start = kind(**{name: tensors.pop(name) for name in kind._fields})


# The best Gaussian distribution of the weights where there are few rows for each basis function -----------------------


@dataclass(frozen=True, eq=False)
class FewRowsFit:
    """The best distribution of the weights, from that of the latent values at the rows; see `Point`."""

    search: WeightSearch
    #: prior covariance of the latent values
    K: Tensor
    best: LatentPoint

    @property
    def value(self) -> float:
        """The bound."""
        return self.best.value

    @property
    def trend(self) -> Tensor:
        """Coefficients of the mean's basis, shape (p, t)."""
        return self.best.coefficients

    @property
    def curvature(self) -> Tensor:
        """Curvature of the log-likelihood at the rows, shape (n,)."""
        return self.best.curvature

    @cached_property
    def mean(self) -> Tensor:
        """Mean of the weights, shape (m, t)."""
        return self._by_weight(self.best.alpha)

    @cached_property
    def root(self) -> Tensor:
        """Lower factor of the weights' covariance, shape (m, m).

        By a QR decomposition, because the precision itself loses small variances where the rows say much: O(m^3).
        """
        scaled = self.curvature.sqrt()[:, None] * self.search.Phi / self.search.S.sqrt()
        identity = torch.eye(scaled.shape[1], dtype=scaled.dtype, device=scaled.device)
        factor = torch.linalg.qr(torch.cat([scaled.flip(1), identity]), mode="r").R
        factor = factor * factor.diagonal().sign()[:, None]
        # In reversed order, so that the inverse of an upper factor is a lower one.
        return triangular_inverse(factor.T).T.flip(0, 1) / self.search.S.sqrt()[:, None]

    @property
    def open_trend(self) -> OpenTrend:
        """What the rows leave open about ``trend``."""
        basis = self.search.mean_basis
        solved = bent_solve(self.best.factor, self.curvature.sqrt(), basis)
        return OpenTrend(coefficient_root(basis.T @ solved), self._by_weight(solved))

    def to_start(self) -> Sites:
        """Return the start of a search at a model nearby."""
        return self.best.sites(self.K, self.search.mean_basis, self.best.fit.bend)

    def promised(self) -> float:
        """Return the gain in nats that a step promises, by the curvature whose steps bring it."""
        best, basis = self.best, self.search.mean_basis
        bend = list(best.fit.curvatures())[-1][0]
        known = best.alpha, best.coefficients
        sites = best.sites(self.K, basis, bend)
        alpha, coefficients, _ = newton_target(self.K, basis, sites, bend.mean(1), known)
        by_alpha = ((best.fit.slope - best.alpha) * (self.K @ (alpha - best.alpha))).sum()
        return 0.5 * float(by_alpha + ((basis.T @ best.fit.slope) * (coefficients - best.coefficients)).sum())

    def _by_weight(self, by_row: Tensor) -> Tensor:
        """Return ``S^-1 Phi'`` times a tensor of shape (n, q)."""
        return self.search.Phi.T @ by_row / self.search.S[:, None]


def fit_few_rows(search: WeightSearch, start: Sites | None, tolerance: float, most: int = STEPS) -> FewRowsFit:
    """Return the maximum of a search, found among distributions of the n latent values: O(n^3 + n^2 m) a step.

    The bound depends on the weights through the latent values alone, whose prior covariance is ``K = Phi S^-1 Phi'``.
    The weights that represent their best distribution have the mean ``S^-1 Phi' alpha`` and the precision
    ``S + Phi' W Phi``. It is for a full root and a diagonal S.
    """
    scaled = search.Phi / search.S.sqrt()
    K = scaled @ scaled.T
    rows = (search.mean_basis, search.noise, search.targets, search.likelihood, search.nodes)
    return FewRowsFit(search, K, best_latent(K, *rows, start, tolerance, most))


# The relevance vector machine on all rows and functions: precisions that grow until their functions leave -------------


#: Most updates of the precisions; the gain in nats an observation below which an update is not worth it, because a
#: hundred more would gain nothing that matters; and the loss in nats an observation below which a function goes.
_UPDATES, _GAIN, _LOSS = 2000, 1e-6, 1e-4
#: Gain in nats an observation below which updates creep: before, leaps would decide which functions go.
_CREEPING = 1e-4
#: Most by which the logarithm of a precision changes at once, beyond what one update changes.
_FURTHEST = 2.0
#: Share of an update's gain that is small enough to end the search that follows it.
_SHARE = 0.1
#: Precision, in units of the threshold, beyond which a function is taken out for good, and the lowest threshold there:
#: a lower threshold drops more functions of the same optimum, and does not move the optimum.
_FAR, _THRESHOLD = 100.0, 1e4
#: Precisions stay above this, so that the posterior precision has a factor.
_LEAST = 1e-8


class RelevantWeights(NamedTuple):
    """The best weights under prior precisions that are learned."""

    #: of the functions that are kept
    point: Point
    #: their indices
    kept: Tensor
    #: of all functions, shape (m,)
    precision: Tensor
    #: with a solution for every function: zero where it was left out
    open_trend: OpenTrend
    #: gain in nats that the last Newton step promised
    promised: float

    @property
    def value(self) -> float:
        """The bound."""
        return self.point.value

    @property
    def trend(self) -> Tensor:
        """Coefficients of the mean's basis, shape (p, t)."""
        return self.point.trend

    @property
    def curvature(self) -> Tensor:
        """Curvature of the log-likelihood at the rows, shape (n,)."""
        return self.point.curvature

    def weights(self, like: Tensor) -> Weights:
        """Return weights of which only those of the kept functions differ from their prior."""
        point, kept, m = self.point, self.kept, len(self.precision)
        mean, log_scale = like.new_zeros(m, point.mean.shape[1]), (-0.5 * self.precision.log()).to(like)
        root = like.new_zeros(m, m)
        mean[kept], log_scale[kept] = point.mean.to(like), point.root.diagonal().log().to(like)
        root[kept[:, None], kept] = point.root.to(like)
        # At the end the precisions are exactly the best ones for these weights. The bound is that of the precisions
        # before, which differ by less than the tolerance.
        best = self.precision.clone()
        best[kept] = 1 / (point.mean.square().mean(1) + point.root.square().sum(1))
        return Weights(mean, log_scale, root, best.log().to(like))


def relevant_weights(
    search: WeightSearch, prior_variance: float, threshold: float, tolerance: float
) -> RelevantWeights:
    """Return the weights of a relevance vector machine: precisions by MacKay's update.

    ``s_i = (1 - s_i Sigma_ii) / mu_i^2`` has the fixed points of ``s_i = 1 / E w_i^2`` and gets there in a tenth of the
    steps. Most precisions of functions that are not needed reach infinity in a few (Tipping 2001, eq. 16). Some creep
    there by a few hundredths at a time, while a similar function takes their place. So the logarithms of all precisions
    move by twice as many updates each time, as long as these gain little and have one direction. A function is taken
    out where that gains more than an update, and, where updates gain next to nothing, where it is worth next to
    nothing. They go one by one, because each of two similar functions is superfluous only beside the other.

    A search between two updates is for the next update: it ends where a step gains a small share of what the last
    update was to gain. Labels and heavy tails would take many steps that halve the rest, for weights that change again.

    The search has the features of all functions; its prior precision is not used. The function starts with the variance
    ``prior_variance``. A weight is dropped from the model at a precision above ``threshold``.
    """
    Phi, m = search.Phi, search.Phi.shape[1]
    precision = Phi.new_full((m,), float(Phi.square().sum()) / len(Phi) / prior_variance)
    kept = torch.arange(m, device=Phi.device)
    far = _FAR * max(threshold, _THRESHOLD)
    start, enough = search.start(None), tolerance

    def of_kept() -> WeightSearch:
        return replace(search, Phi=Phi[:, kept], S=precision[kept])

    change, updates = torch.zeros_like(precision), 1.0
    for _ in range(_UPDATES):
        found, _ = of_kept().maximise(start, enough)
        variance, squares = found.root.square().sum(1), found.mean.square().mean(1)
        known = (1 - precision[kept] * variance).clamp_min(1e-12)
        update, last = (known / squares.clamp_min(1e-300) / precision[kept]).log(), change[kept]
        change[kept] = update
        # The bound's slope by the logarithm of a precision is half of this for each target.
        gain = 0.5 * float(((known - precision[kept] * squares) * update).sum())
        enough = max(tolerance, _SHARE * gain / search.targets.numel())
        updates = 2 * updates if gain < _CREEPING * len(Phi) and float(update @ last) > 0 else 1.0
        # By an infinite precision, where the others stay as they are (Faul and Tipping 2002, eq. 18).
        loss = 0.5 * ((-known).log1p() + squares / variance)
        has_ended = gain < _GAIN * len(Phi)
        if len(kept) > 1 and float(loss.min()) < (_LOSS * len(Phi) if has_ended else -gain):
            updated = precision[kept].clone()
            updated[loss.argmin()] = far
        elif has_ended:
            break
        else:
            furthest = update.abs().clamp_min(_FURTHEST)
            step = (updates * update).clamp(-furthest, furthest)
            updated = (precision[kept] * step.exp()).clamp_min(_LEAST).clamp_max(far)
            if bool((updated == precision[kept]).all()):  # all are at a bound that their updates lead beyond
                break
        precision[kept] = updated
        left = updated < far
        if not bool(left.any()):
            left[updated.argmin()] = True
        kept, start = kept[left], found.to_start(left)
    found, promised = of_kept().maximise(start, min(tolerance, _LAST_TOLERANCE))
    solutions = Phi.new_zeros(m, found.open_trend.solutions.shape[1])
    solutions[kept] = found.open_trend.solutions
    return RelevantWeights(found, kept, precision, replace(found.open_trend, solutions=solutions), promised)
