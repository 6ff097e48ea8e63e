"""The evidence lower bound on sampled rows and sampled basis functions, and what a fit keeps while it runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gigagp.bases import Basis
from gigagp.errors import InvalidInputError
from gigagp.estimate import Estimate
from gigagp.inference.objective import TableObjective
from gigagp.inference.quadruply_stochastic.anchor import Anchor, is_early, steps_between
from gigagp.inference.quadruply_stochastic.controls import Controls
from gigagp.inference.quadruply_stochastic.estimators import RowSample
from gigagp.inference.quadruply_stochastic.latent import LatentObjective
from gigagp.inference.quadruply_stochastic.posterior import QuadruplyStochasticPosterior
from gigagp.inference.quadruply_stochastic.rows_covariance import RowsCovariance
from gigagp.inference.quadruply_stochastic.sampled_bound import Drawn, bound_of_mean, gaussian_bound, latent_bound
from gigagp.inference.quadruply_stochastic.sampling import BasisSample, sample_indices
from gigagp.inference.quadruply_stochastic.settings import QuadruplyStochastic
from gigagp.inference.quadruply_stochastic.start import (
    make_basis,
    require_weights,
    start_weights,
    starts_known,
    unit_of_dependent_weights,
    whole_bytes,
)
from gigagp.inference.quadruply_stochastic.subset_posterior import Subset, trend_subset
from gigagp.inference.quadruply_stochastic.trend import OpenTrend
from gigagp.inference.quadruply_stochastic.weights import COLUMNS, LOG_PRECISION, LOG_SCALE, MEAN, Weights
from gigagp.inference.quadruply_stochastic.whole import WholeTable
from gigagp.inference.table import TrainingTable
from gigagp.likelihoods import Gaussian, Likelihood, check_log_concave
from gigagp.model import NOISE, Model
from gigagp.optimization.history import History
from gigagp.optimization.lbfgs import LBFGS
from gigagp.optimization.objective import Evaluation
from gigagp.optimization.sampled import SampledEvaluation
from gigagp.optimization.sparse import SparseAdam
from gigagp.optimization.subset_first import SubsetFirst
from gigagp.optimization.trace import Trace
from gigagp.progress import NoProgress

#: Learning rate where the weights start at zero.
_RATE_FROM_ZERO = 0.05
#: Rows whose exact likelihood decides the hyperparameters of a sampled fit, and square arrays alive at once there.
_LIKELIHOOD_ROWS, _LIKELIHOOD_SQUARES = 4000, 8


class QuadruplyStochasticObjective(TableObjective):
    """The lower bound for weights of a basis, estimated from samples; `gigagp.optimization.SparseAdam` maximises it.

    Parameters
    ----------
    settings : QuadruplyStochastic
    table : TrainingTable
    generator : torch.Generator
        Of the basis and of the samples.
    likelihood : Likelihood

    Raises
    ------
    InvalidInputError
        If the likelihood is not log-concave or the targets are none of its.
    MemoryBudgetError
        If the weights do not fit.
    """

    weights: Weights
    basis: Basis
    controls: Controls

    def __init__(
        self, settings: QuadruplyStochastic, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood
    ) -> None:
        super().__init__(table)
        likelihood.check_targets(table.Y)
        check_log_concave(likelihood, table.Y)
        if settings.diagonal == "closed_form" and not isinstance(likelihood, Gaussian):
            msg = 'diagonal of QuadruplyStochastic must be "learned" for likelihoods other than Gaussian.'
            raise InvalidInputError(msg)
        whole = settings.for_all_at_once(table.n_rows)
        if whole is not None and whole_bytes(whole, table) > table.budget:
            whole = None
        self.settings, self.likelihood = whole or settings, likelihood
        self.whole = None if whole is None else WholeTable(self)
        if whole is None:
            require_weights(settings, table)
        self._seed = int(torch.randint(2**62, (), generator=generator))
        self.row_batch = min(self.settings.sampled_rows, table.n_rows)
        self.set_trend(table.basis.new_zeros(table.basis.shape[1], table.n_targets, dtype=torch.float64))
        #: model that the weights were learned at
        self.fitted: Model | None = None
        #: rows that the weights start from, rows that the trend comes from (the same, where they are enough), and what
        #: the first leave of the latent function's spread if that is in the bound
        self._subset: Subset | None = None
        self._trend_rows: Subset | None = None
        self._spread: RowsCovariance | None = None
        #: weights whose function is known at the rows, and the steps since they were
        self.anchor: Anchor | None = None
        self._steps_since = 0

    def set_trend(self, coefficients: Tensor) -> None:
        """Take coefficients of the mean's basis, shape (p, t), off the targets; labels and counts stay."""
        self.trend, table = coefficients, self.table
        self.targets = table.Y
        if self.likelihood.has_noise:
            self.targets = (table.Y.double() - table.basis.double() @ coefficients).to(table.Y)

    def open_trend(self, model: Model) -> OpenTrend:
        """Return what is left open about the mean's coefficients; those of labels and counts are held at zero."""
        p = self.table.basis.shape[1]
        if self.whole is not None and self.whole.open_trend is not None:
            return self.whole.open_trend
        if not self.likelihood.has_noise or not p:
            return OpenTrend.known(p)
        assert self._trend_rows is not None, "a fit begins first"
        X = self.table.X[self._trend_rows.rows]
        known = self.covariance_of_rows(model)
        if known is None or self._trend_rows is not self._subset:
            known = RowsCovariance(model.kernel, X, self._curvature(model, self._trend_rows))
        return OpenTrend.at_rows(known, self.table.mean.basis(X.double()))

    # What optimizers ask ---------------------------------------------------------------------------------------------

    @property
    def deterministic(self) -> bool:
        """Only where all rows and functions are used at once; otherwise every step sees others."""
        return self.whole is not None

    @property
    def follows_likelihood(self) -> bool:
        """Hyperparameters start where the exact likelihood of a few rows has them, as in the paper."""
        return True

    @property
    def is_likelihood(self) -> bool:
        """It is a lower bound."""
        return False

    def own_optimizer(self) -> SubsetFirst | SparseAdam | LBFGS:
        """Return what maximises it where nothing else is asked for.

        From samples the weights alone, at the hyperparameters that the likelihood of some thousand rows prefers: the
        bound of independent weights wants more noise than there is (on kin40k six times as much, which costs a fifth
        of the accuracy), and a thousand rows prefer a smoother function than all (on protein an error of 0.65, and not
        0.52).
        """
        learns_precision, gaussian = self.settings.learns_precision, isinstance(self.likelihood, Gaussian)
        ascent = None
        if self.whole is None:
            rate = SparseAdam.learning_rate if starts_known(self) else _RATE_FROM_ZERO
            ascent = SparseAdam(rate, hyper_learning_rate=0.0)
        if learns_precision:
            return ascent or LBFGS(5, tolerance=1e-3)
        if not gaussian:
            return SubsetFirst(signal_variance=self.likelihood.signal_variance, then=ascent)
        if ascent is None:
            return LBFGS(5, tolerance=1e-4)
        rows = min(_LIKELIHOOD_ROWS, math.isqrt(self.table.budget // (8 * _LIKELIHOOD_SQUARES)))
        return SubsetFirst(rows, then=ascent)

    def start(self, model: Model) -> Model:
        """Make the basis where all functions are used at once; otherwise refuse: one vector holds no more."""
        if self.whole is None:
            msg = (
                f'optimizer of GPRegressor with inference.{type(self.settings).__name__} must be "auto", None, '
                "optimization.SparseAdam, SparseAdaGrad or SparseSGD where rows and functions are sampled: for so many "
                "of them, or because row_batch, basis_batch, n_support or replacement asks for it."
            )
            raise InvalidInputError(msg)
        self._make_basis(model)
        return model

    def evaluate(self, model: Model) -> Evaluation:
        """Return the highest bound at a model, over all weights, and its derivatives; for all rows and functions."""
        if self.whole is None:
            self.start(model)
        assert self.whole is not None
        value = self._fit_whole(model)
        return Evaluation(value, self.whole.gradient(model, self.weights))

    def _fit_whole(self, model: Model, *, to_the_end: bool = False) -> float:
        assert self.whole is not None
        self.weights, value = self.whole.fit(model, to_the_end=to_the_end)
        self.fitted, self.controls = model, Controls(self, model, self._generator)  # there are none
        return value

    def thin(self, rows: Tensor) -> TableObjective:
        """Return the same on a subset of the rows, with the kernel in the place of a basis.

        For a Gaussian likelihood that is the exact likelihood, for the others their bound.
        """
        if not isinstance(self.likelihood, Gaussian):
            return LatentObjective(self.table.take_rows(rows), self.likelihood, self.settings.quadrature_nodes)
        return self.subset(rows)

    # A fit ----------------------------------------------------------------------------------------------------------

    def begin(self, model: Model, *, moves_hyperparameters: bool = True) -> Model:
        """Make basis, weights and control variates at their start."""
        self.whole = None  # an optimizer of samples was asked for
        self._make_basis(model)
        self.basis_batch = min(self.settings.sampled_functions, self.basis.size)
        self.weights, self._subset = start_weights(self, model)
        self._settle_trend(model)
        self._spread = None
        if not (moves_hyperparameters or isinstance(self.likelihood, Gaussian)):
            self._spread = self._covariance_at(model)
        self.anchor, self._steps_since = None, 0
        if self.moves_anchor and is_early(self):
            self.anchor = self._new_anchor(model)
        self.controls = Controls(self, model, self._generator)
        self.fitted = model
        return model

    def _settle_trend(self, model: Model) -> None:
        """Take the trend of some rows by generalised least squares: all others need weights that are not learned yet.

        What its variance says is of these rows too, so it is honest about the others that are left out.
        """
        self._trend_rows = None
        if not self.likelihood.has_noise or not self.table.basis.shape[1]:
            return
        self._trend_rows = trend_subset(self, model, torch.Generator().manual_seed(self._seed), self._subset)
        self.set_trend(self._trend_rows.coefficients)

    @property
    def has_anchors(self) -> bool:
        """Whether the weights' function is computed at all rows now and then, where functions are sampled."""
        return self.settings.anchor

    @property
    def moves_anchor(self) -> bool:
        """Whether it is: whether functions are sampled at all."""
        return self.has_anchors and (self.basis_batch < self.basis.size or self.settings.replacement)

    def _new_anchor(self, model: Model) -> Anchor:
        return Anchor.at(self.basis.with_kernel(model.kernel), self.weights, self.table.X)

    def _make_basis(self, model: Model) -> None:
        self._generator = torch.Generator().manual_seed(self._seed)
        self.basis = make_basis(self.settings, model, self.table, self._generator)

    def learned_names(self, model: Model) -> tuple[str, ...]:
        """Return the hyperparameters that the bound has a gradient for.

        Those of a dense prior are among them only where all functions are used at once: its determinant has no estimate
        from samples.
        """
        learns = self.basis.is_differentiable and not self.settings.learns_precision
        learns = learns and (self.basis.has_diagonal_prior or self.whole is not None)
        return tuple(
            name
            for name in model.learned_names()
            if (name == NOISE and self.likelihood.has_noise) or (name != NOISE and learns)
        )

    def arrays(self) -> dict[str, Tensor]:
        """Return the arrays of the weights."""
        return self.weights.arrays()

    def units(self) -> dict[str, float]:
        """Return what a learning rate of one is for the mean and for dense columns, in prior standard deviations.

        The entries of a column are all together as long as one weight is wide; with longer steps they would drown in
        the noise of these: 100 columns of 100,000 functions made a fit of keggdirected worse than none did.
        """
        mean = 1.0 if self.basis.has_diagonal_prior else unit_of_dependent_weights(self)
        return {MEAN: mean, COLUMNS: mean * self.basis.size**-0.5}

    def noise(self, model: Model, rows: Tensor, X: Tensor) -> Tensor:
        """Return the noise variances of rows, differentiable in the model's."""
        noise = model.noise_variance.to(X)
        noise = noise[rows] if model.noise_is_known else noise.expand(len(rows))
        return noise + model.kernel.white(X)

    def draw(self) -> tuple[Tensor, BasisSample]:
        """Return sampled rows and sampled functions."""
        replacement = self.settings.replacement
        rows = self.draw_batch()
        sample = BasisSample.draw(
            self.basis.size,
            self.basis_batch,
            self._generator,
            n_head=self.weights.n_columns,
            replacement=replacement,
            dtype=self.table.X.dtype,
            device=self.table.X.device,
        )
        return rows, sample

    def draw_batch(self) -> Tensor:
        """Return the rows of a step, as `values_at` takes them."""
        replacement = self.settings.replacement
        rows = sample_indices(self.n_rows, self.row_batch, self._generator, replacement=replacement)
        return rows.to(self.table.X.device)

    def values_at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of rows."""
        return self.table.X[rows], self.targets[rows]

    def residuals(self, rows: Tensor) -> Tensor:
        """Return targets of held rows, less what is known of the fit there."""
        found = self.targets[rows]
        return found if self.anchor is None else found - self.anchor.fitted_mean[rows]

    def sample(self, model: Model, *, hyperparameters: bool) -> SampledEvaluation:
        """Return the bound and its gradient on the next sample."""
        return self.evaluate_sample(model, *self.draw(), hyperparameters=hyperparameters)

    def evaluate_sample(
        self, model: Model, rows: Tensor, sample: BasisSample, *, hyperparameters: bool = False
    ) -> SampledEvaluation:
        """Return the same on given rows and functions."""
        self.fitted = model
        self.controls.forget()
        fixed = {LOG_PRECISION} | (set() if self._learns_diagonal else {LOG_SCALE})
        assert self._spread is None or not hyperparameters
        moving = {name: value for name, value in self.arrays().items() if name not in fixed}
        touched = {name: value[sample.index] for name, value in self.arrays().items()}
        leaves = {name: touched[name].requires_grad_() for name in moving}
        names = self.learned_names(model) if hyperparameters else ()
        values = {name: model.parameters()[name].detach().clone().requires_grad_() for name in names}
        with torch.enable_grad():
            live = model.replace(values) if values else model
            value = self._bound(live, rows, sample, touched)
            found = torch.autograd.grad(value, [*leaves.values(), *values.values()])
        gradient = dict(zip(leaves, found, strict=False))
        by_name = dict(zip(values, found[len(leaves) :], strict=True))
        return SampledEvaluation(float(value.detach()), sample.index, gradient, by_name)

    @property
    def _learns_diagonal(self) -> bool:
        if self._spread is not None:
            return False
        return self.settings.diagonal == "learned" or self.weights.n_columns > 0

    def _bound(self, model: Model, rows: Tensor, sample: BasisSample, touched: dict[str, Tensor]) -> Tensor:
        """Return the estimate of the bound, differentiable in the touched numbers and the hyperparameters."""
        X, targets = self.values_at(rows)
        features = self.basis.with_kernel(model.kernel).columns(X, sample.index)
        at_rows = RowSample(features, targets, self.noise(model, rows, X), self.n_rows / len(rows))
        of_mean, of_columns = None, None
        if self.anchor is not None:
            of_mean, of_columns = self.anchor.origins(model.kernel, rows, X, sample.index, features)
        learned = touched.get(LOG_PRECISION)
        diagonal = self.basis.prior_diagonal(sample.index).to(X) if learned is None else learned.exp()
        numbers = touched[MEAN], touched[LOG_SCALE], touched.get(COLUMNS)
        drawn = Drawn(at_rows, sample, self.basis, diagonal, *numbers, of_mean, of_columns)
        if isinstance(self.likelihood, Gaussian):
            return gaussian_bound(drawn, self.controls, model, of_root=self._learns_diagonal)
        if self._spread is None:
            return latent_bound(drawn, self.likelihood, self.settings.bound, self.settings.quadrature_nodes)
        spread = self._spread.variance(X).sqrt().to(X)
        return bound_of_mean(drawn, self.likelihood, spread, self._spread.divergence, self.settings.quadrature_nodes)

    def moved(self, evaluation: SampledEvaluation, changes: dict[str, Tensor]) -> None:
        """Keep the running vectors of the control variates in step, and learned precisions at their optimum."""
        self.controls.moved(evaluation.index, changes)
        self._steps_since += 1
        if self.moves_anchor and self._steps_since >= steps_between(self):
            assert self.fitted is not None
            self.anchor, self._steps_since = self._new_anchor(self.fitted), 0
            self.controls.restart()
        if self.weights.log_precision is not None:
            self._move_precisions(evaluation.index)

    @torch.no_grad()
    def _move_precisions(self, index: Tensor) -> None:
        """Put the touched precisions where the bound is highest: ``1 / E w^2`` (Tipping 2001, eq. 16 as an EM step).

        The other terms of the bound do not have them, so this is exact and needs no learning rate. It also shrinks
        weights that the data do not need much faster than ascent would.
        """
        weights = self.weights
        assert weights.log_precision is not None
        squares = weights.mean[index].square().mean(1) + weights.diagonal_scales(index).square()
        squares += weights.root_rows(index).square().sum(1)
        weights.log_precision[index] = -squares.clamp_min(torch.finfo(squares.dtype).tiny).log()

    @torch.no_grad()
    def settle(self, model: Model) -> None:
        """Put learned precisions at their optimum, and the diagonal at its, where the closed form was asked for."""
        self.fitted = model
        if self.weights.log_precision is not None:
            self._move_precisions(torch.arange(self.basis.size, device=self.table.X.device))
        if self.settings.diagonal == "closed_form":
            self._settle_diagonal(model)

    def _settle_diagonal(self, model: Model) -> None:
        """Put the diagonal at its optimum (Proposition 1): one pass over rows and functions."""
        basis = self.basis.with_kernel(model.kernel)
        gram = self.table.X.new_zeros(basis.size, dtype=torch.float64)
        for places, X in self._all_rows():
            weight = (1 / self.noise(model, places, X)).double()
            for rows, index, columns in basis.tiles(X):
                gram[index] += weight[rows] @ columns.double().square()
        index = torch.arange(self.weights.n_columns, len(gram), device=gram.device)
        scale = -0.5 * (gram[index] + self.prior_diagonal(index)).log()
        self.weights.log_scale[index] = scale.to(self.weights.log_scale)

    def _all_rows(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over all rows once: their places, as `noise` takes them, and their inputs."""
        yield torch.arange(self.n_rows, device=self.table.X.device), self.table.X

    def prior_diagonal(self, index: Tensor) -> Tensor:
        """Return the diagonal of the prior precision, learned or the basis', float64."""
        if self.weights.log_precision is not None:
            return self.weights.log_precision[index].double().exp()
        return self.basis.prior_diagonal(index)

    def covariance_of_rows(self, model: Model) -> RowsCovariance | None:
        """Return the covariance that the rows of the start leave; None where the weights have one.

        The mean of a Gaussian likelihood does not depend on the covariance, so it can have that of any hyperparameters.
        With the others it has to be the one that the mean was learned with.
        """
        return self._covariance_at(model) if isinstance(self.likelihood, Gaussian) else self._spread

    def _covariance_at(self, model: Model) -> RowsCovariance | None:
        if self._subset is None or self.settings.learns_covariance:
            return None
        return RowsCovariance(model.kernel, self.table.X[self._subset.rows], self._curvature(model, self._subset))

    def _curvature(self, model: Model, subset: Subset) -> Tensor:
        """Return the curvatures of rows' log-likelihood; those of a Gaussian follow the noise of a model."""
        if not isinstance(self.likelihood, Gaussian):
            return subset.curvature
        return 1 / self.noise(model, subset.rows, self.table.X[subset.rows]).detach().double()

    # Posteriors -----------------------------------------------------------------------------------------------------

    def current_posterior(self) -> QuadruplyStochasticPosterior | None:
        """Return the posterior of the weights as they are; its bound is not computed."""
        return None if self.fitted is None else QuadruplyStochasticPosterior.of(self, self.fitted)

    def posterior(self, model: Model, generator: torch.Generator) -> QuadruplyStochasticPosterior:
        """Return the posterior at a model; weights that no optimizer has learned are learned now."""
        if self.whole is not None:
            if not hasattr(self, "basis"):
                self._make_basis(model)
            value = self._fit_whole(model, to_the_end=True)
            posterior = QuadruplyStochasticPosterior.of(self, model)
            posterior.bound, posterior.from_samples = Estimate(value, 0.0), False
            posterior.warn_of_threshold()
            return posterior
        if self.fitted is None or self.fitted is not model:
            settings = SparseAdam(hyper_learning_rate=0.0)
            settings.run(self, model, Trace(History(), NoProgress()), generator)
        posterior = QuadruplyStochasticPosterior.of(self, model)
        posterior.estimate_bound(self.targets, generator)
        posterior.warn_of_threshold()
        return posterior

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what the next step depends on beside the weights, which the optimizer keeps."""
        if self.whole is not None:
            return self.whole.snapshot(), {}
        tensors, header = self.controls.snapshot()
        tensors["generator"] = self._generator.get_state()
        if self.anchor is not None:
            tensors |= {f"anchor.{name}": value for name, value in self.anchor.state().items()}
        return tensors, {**header, "steps_since": self._steps_since}

    def restore(self, model: Model, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        """Take over a snapshot."""
        if self.whole is not None:
            self.whole.restore(tensors)
            return
        self._generator.set_state(tensors.pop("generator"))
        self._steps_since = header["steps_since"]
        state = {name.removeprefix("anchor."): tensors[name] for name in tensors if name.startswith("anchor.")}
        self.anchor = Anchor.from_state(self.basis, state, self.table.n_targets) if state else None
        self.controls.restart()
        self.controls.restore(tensors, header)
        self.fitted = model
