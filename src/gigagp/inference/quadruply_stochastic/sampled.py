"""The lower bound estimated from samples of the rows and of the basis functions: what sparse optimizers maximise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.quadruply_stochastic.anchor import Anchor, is_early, steps_between
from gigagp.inference.quadruply_stochastic.bases import Basis
from gigagp.inference.quadruply_stochastic.batches import Batches
from gigagp.inference.quadruply_stochastic.controls import Controls
from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample
from gigagp.inference.quadruply_stochastic.estimators.terms import SampledRows
from gigagp.inference.quadruply_stochastic.objective import WeightObjective
from gigagp.inference.quadruply_stochastic.posterior import QuadruplyStochasticPosterior
from gigagp.inference.quadruply_stochastic.problem import WeightProblem
from gigagp.inference.quadruply_stochastic.rows_covariance import RowsCovariance
from gigagp.inference.quadruply_stochastic.sampled_bound import (
    Drawn,
    bound_of_mean,
    gaussian_bound,
    latent_bound,
)
from gigagp.inference.quadruply_stochastic.start import start_weights, starts_known, unit_of_dependent_weights
from gigagp.inference.quadruply_stochastic.subset_posterior import Subset, trend_subset
from gigagp.inference.quadruply_stochastic.trend import OpenTrend
from gigagp.inference.quadruply_stochastic.weights import COLUMNS, LOG_PRECISION, LOG_SCALE, MEAN, Weights
from gigagp.model.model import Model
from gigagp.optimization.history import History
from gigagp.optimization.objective import Evaluation
from gigagp.optimization.sampled import SampledEvaluation
from gigagp.optimization.sparse import SparseAdam
from gigagp.optimization.subsets import SubsetFirst
from gigagp.optimization.trace import Trace
from gigagp.runtime.processes import sum_of_rows
from gigagp.runtime.progress import NoProgress

#: Learning rate where the weights start at zero.
_RATE_FROM_ZERO = 0.05
#: Rows whose exact likelihood decides the hyperparameters of a sampled fit, and square arrays alive at once there.
_LIKELIHOOD_ROWS, _LIKELIHOOD_SQUARES = 4000, 8


class MinibatchObjective(WeightObjective):
    """The bound on minibatches of rows and functions; `gigagp.optimization.SparseAdam` maximises it.

    Parameters
    ----------
    problem : WeightProblem
    seed : int
    batches : Batches
        Where the rows of the steps come from.
    """

    def __init__(self, problem: WeightProblem, seed: int, batches: Batches) -> None:
        super().__init__(problem, seed)
        self.batches = batches
        self._state: State | None = None

    @property
    def state(self) -> State:
        """The ascent as it is; `begin` makes it."""
        if self._state is None:
            msg = "the ascent has no state before begin(model)"
            raise RuntimeError(msg)
        return self._state

    # What optimizers ask before a fit --------------------------------------------------------------------------------

    @property
    def deterministic(self) -> bool:
        """Whether the same model gives the same numbers: no, every step sees other rows and functions."""
        return False

    def own_optimizer(self) -> SubsetFirst | SparseAdam:
        """Return what maximises it where no optimizer is given: it learns the weights alone.

        The hyperparameters are those that the likelihood of some thousand rows prefers. The bound of independent
        weights prefers too much noise (on kin40k six times as much, which costs a fifth of the accuracy), and a
        thousand rows prefer too smooth a function (on protein an error of 0.65, not 0.52).
        """
        options, likelihood = self.problem.options, self.problem.likelihood
        rate = SparseAdam.learning_rate if starts_known(options) else _RATE_FROM_ZERO
        ascent = SparseAdam(rate, hyper_learning_rate=0.0)
        if options.learns_precision:
            return ascent
        if not self.problem.is_gaussian:
            return SubsetFirst(signal_variance=likelihood.signal_variance, then=ascent)
        rows = min(_LIKELIHOOD_ROWS, math.isqrt(self.table.budget // (8 * _LIKELIHOOD_SQUARES)))
        return SubsetFirst(rows, then=ascent)

    def start(self, model: Model) -> NoReturn:
        """Refuse: one vector cannot hold so many weights."""
        msg = (
            f'optimizer of GPRegressor with inference.{type(self.problem.options).__name__} must be "auto", None, '
            "optimization.SparseAdam, SparseAdaGrad or SparseSGD where rows and functions are sampled: for so many "
            "of them, or because row_batch, basis_batch, n_support or replacement asks for it."
        )
        raise InvalidInputError(msg)

    def evaluate(self, model: Model) -> Evaluation:
        self.start(model)

    # An ascent -------------------------------------------------------------------------------------------------------

    def begin(self, model: Model, *, moves_hyperparameters: bool = True) -> Model:
        """Make basis, weights, anchor and control variates at their start."""
        problem = self.problem
        basis, generator = self._new_basis(model)
        weights, start = start_weights(problem, basis, model)
        trend_rows = None
        if problem.has_trend:
            trend_rows = trend_subset(problem, model, torch.Generator().manual_seed(self.seed), start)
        trend = problem.no_trend if trend_rows is None else trend_rows.coefficients
        targets = problem.centred(trend)
        self.batches.begin(trend, targets)
        spread = None
        if not (moves_hyperparameters or problem.is_gaussian):
            spread = self._covariance_left(start, model)
        controls = Controls(problem, basis, weights, model, generator)
        state = State(model, basis, weights, generator, trend, targets, start, trend_rows, spread, controls)
        if self._moves_anchor(basis) and is_early(basis, self._steps_between(basis)):
            state.move_anchor(self.table.X, with_columns=self._column_batch(weights) is None)
        state.restart_controls()
        self._state = state
        return model

    def _basis_batch(self, basis: Basis) -> int:
        """Return the functions in each of the two samples of a step."""
        return min(self.problem.options.sampled_functions, basis.size)

    def _column_batch(self, weights: Weights) -> int | None:
        """Return how many of the dense columns a step sees; None: all."""
        batch = self.problem.options.sampled_columns
        return None if batch is None or batch >= weights.n_columns else batch

    def _moves_anchor(self, basis: Basis) -> bool:
        """Whether there are anchors: where they are allowed and functions are sampled at all."""
        options = self.problem.options
        return options.anchor and (self._basis_batch(basis) < basis.size or options.replacement)

    def _steps_between(self, basis: Basis) -> int:
        return steps_between(basis, self.n_rows, self.batches.size, self._basis_batch(basis))

    def learned_names(self, model: Model) -> tuple[str, ...]:
        """Return the hyperparameters that the estimate has a gradient for.

        Those of a dense prior are not among them: samples give no estimate of its determinant.
        """
        basis = self.state.basis
        learns = basis.is_differentiable and not self.problem.options.learns_precision and basis.has_diagonal_prior
        return self._names_with_gradient(model, of_kernel=learns)

    def arrays(self) -> dict[str, Tensor]:
        """Return the arrays of the weights."""
        return self.state.weights.arrays()

    def units(self) -> dict[str, float]:
        """Return the step of a learning rate of one, for the mean and for dense columns, in prior standard deviations.

        All entries of a column together are as long as one weight is wide. With longer steps they would drown in the
        noise of the other weights: 100 columns of 100,000 functions made a fit of keggdirected worse than no columns.
        """
        basis = self.state.basis
        mean = 1.0 if basis.has_diagonal_prior else unit_of_dependent_weights(basis, self.table.X)
        return {MEAN: mean, COLUMNS: mean * basis.size**-0.5}

    def draw(self) -> tuple[Tensor, BasisSample]:
        """Return sampled rows and sampled functions."""
        state, X = self.state, self.table.X
        rows = self.batches.draw(state.generator)
        sample = BasisSample.draw(
            state.basis.size,
            self._basis_batch(state.basis),
            state.generator,
            n_head=state.weights.n_columns,
            column_batch=self._column_batch(state.weights),
            replacement=self.problem.options.replacement,
            dtype=X.dtype,
            device=X.device,
        )
        return rows, sample

    def sample(self, model: Model, *, hyperparameters: bool) -> SampledEvaluation:
        """Return the bound and its gradient on the next sample."""
        return self.evaluate_sample(model, *self.draw(), hyperparameters=hyperparameters)

    def evaluate_sample(
        self, model: Model, rows: Tensor, sample: BasisSample, *, hyperparameters: bool = False
    ) -> SampledEvaluation:
        """Return the bound and its gradient on given rows and functions."""
        state = self.state
        state.model = model
        state.controls.forget()
        fixed = {LOG_PRECISION} | (set() if self._learns_diagonal else {LOG_SCALE})
        assert state.spread is None or not hyperparameters
        moving = {name: value for name, value in self.arrays().items() if name not in fixed}
        columns = {} if sample.columns is None else {COLUMNS: sample.columns.slice}
        found = SampledEvaluation(0.0, sample.index, {}, {}, columns)
        touched = {name: found.place(name).read(value) for name, value in self.arrays().items()}
        names = self.learned_names(model) if hyperparameters else ()
        values = {name: model.parameters()[name].detach() for name in names}
        wanted = {name: touched[name] for name in moving} | values

        def sums_of(within: slice) -> list[Tensor]:
            """Return the share of some rows: the estimate from them alone, weighted by their number."""
            some = rows[within]
            leaves = {name: one.clone().requires_grad_() for name, one in wanted.items()}
            with torch.enable_grad():
                live = model.replace({name: leaves[name] for name in values}) if values else model
                own = touched | {name: leaves[name] for name in moving}
                value = self._bound(live, some, sample, own) * (len(some) / len(rows))
                return [value.detach(), *torch.autograd.grad(value, list(leaves.values()))]

        like = [touched[MEAN].new_zeros(()), *wanted.values()]
        if state.controls.coefficients:  # which learn from the estimate of all rows
            value, *slopes = sums_of(slice(0, len(rows)))
        else:
            what = "minibatch of functions"
            value, *slopes = sum_of_rows(sums_of, like, len(rows), len(sample.index), what, touched[MEAN])
        gradient = dict(zip(wanted, slopes, strict=True))
        by_name = {name: gradient.pop(name) for name in values}
        return replace(found, value=float(value), gradient=gradient, hyperparameters=by_name)

    @property
    def _learns_diagonal(self) -> bool:
        state = self.state
        if state.spread is not None:
            return False
        return self.problem.options.diagonal == "learned" or state.weights.n_columns > 0

    def _bound(self, model: Model, rows: Tensor, sample: BasisSample, touched: dict[str, Tensor]) -> Tensor:
        """Return the estimate of the bound, differentiable in the touched numbers and the hyperparameters."""
        state, options, likelihood = self.state, self.problem.options, self.problem.likelihood
        X, targets = self.batches.at(rows)
        features = state.basis.with_kernel(model.kernel).columns(X, sample.index)
        at_rows = SampledRows(features, targets, model.noise_of_rows(rows, X), self.n_rows / len(rows))
        of_mean, of_columns = None, None
        if state.anchor is not None:
            of_mean, of_columns = state.anchor.origins(model.kernel, rows, X, sample.index, features)
        learned = touched.get(LOG_PRECISION)
        diagonal = state.basis.prior_diagonal(sample.index).to(X) if learned is None else learned.exp()
        numbers = touched[MEAN], touched[LOG_SCALE], touched.get(COLUMNS)
        drawn = Drawn(at_rows, sample, state.basis, diagonal, *numbers, of_mean, of_columns)
        if self.problem.is_gaussian:
            return gaussian_bound(drawn, state.controls, model, of_root=self._learns_diagonal)
        if state.spread is None:
            return latent_bound(drawn, likelihood, options.bound, options.quadrature_nodes)
        spread = state.spread.variance(X).sqrt().to(X)
        return bound_of_mean(drawn, likelihood, spread, state.spread.divergence, options.quadrature_nodes)

    def moved(self, evaluation: SampledEvaluation, changes: dict[str, Tensor]) -> None:
        """Have control variates, anchor and learned precisions follow a step that the weights have taken."""
        state = self.state
        state.controls.moved(state.weights, evaluation.index, changes, evaluation.columns.get(COLUMNS))
        state.steps_since_anchor += 1
        if self._moves_anchor(state.basis) and state.steps_since_anchor >= self._steps_between(state.basis):
            state.move_anchor(self.table.X, with_columns=self._column_batch(state.weights) is None)
            state.restart_controls()
        state.weights.settle_precisions(evaluation.index)

    @torch.no_grad()
    def settle(self, model: Model) -> None:
        """Put learned precisions at their optimum, and the diagonal at its, where the closed form was asked for."""
        state = self.state
        state.model = model
        state.weights.settle_precisions(torch.arange(state.basis.size, device=self.table.X.device))
        if self.problem.options.diagonal == "closed_form":
            self._settle_diagonal(model)

    def _settle_diagonal(self, model: Model) -> None:
        """Put the diagonal at its optimum (Proposition 1): one pass over rows and functions."""
        weights, basis = self.state.weights, self.state.basis.with_kernel(model.kernel)
        gram = self.table.X.new_zeros(basis.size, dtype=torch.float64)
        for places, X in self.batches.all_rows():
            weight = (1 / model.noise_of_rows(places, X)).double()
            for rows, index, columns in basis.tiles(X):
                gram[index] += weight[rows] @ columns.double().square()
        index = torch.arange(weights.n_columns, len(gram), device=gram.device)
        scale = -0.5 * (gram[index] + weights.prior_diagonal(self.state.basis, index)).log()
        weights.log_scale[index] = scale.to(weights.log_scale)

    # Posteriors ------------------------------------------------------------------------------------------------------

    def covariance_of_rows(self, model: Model) -> RowsCovariance | None:
        """Return the covariance that the rows of the start leave; None where the weights have one.

        The mean under a Gaussian likelihood does not depend on the covariance, so the covariance can be that of any
        hyperparameters. With the others it has to be the one that the mean was learned with.
        """
        return self._covariance_left(self.state.start, model) if self.problem.is_gaussian else self.state.spread

    def _covariance_left(self, start: Subset | None, model: Model) -> RowsCovariance | None:
        if start is None or self.problem.options.learns_covariance:
            return None
        return start.covariance(self.problem, model)

    def _open_trend(self, model: Model) -> OpenTrend:
        """Return what the rows of the trend leave open about the mean's coefficients."""
        state = self.state
        if state.trend_rows is None:
            return OpenTrend.known(self.table.basis.shape[1])
        known = self.covariance_of_rows(model)
        if known is None or state.trend_rows is not state.start:
            known = state.trend_rows.covariance(self.problem, model)
        return OpenTrend.at_rows(known, self.table.mean.basis(self.table.X[state.trend_rows.rows].double()))

    def _posterior_of_state(self, model: Model) -> QuadruplyStochasticPosterior:
        state = self.state
        return QuadruplyStochasticPosterior.of(
            self.problem,
            model,
            state.basis,
            state.weights,
            state.trend,
            self._open_trend(model),
            covariance_of=self.covariance_of_rows(model),
            variance_removed=state.controls.variance_removed(),
        )

    def current_posterior(self) -> QuadruplyStochasticPosterior | None:
        """Return the posterior of the weights as they are, without its bound; None before the first step."""
        return None if self._state is None else self._posterior_of_state(self._state.model)

    def learn_remaining(self, model: Model, generator: torch.Generator) -> None:
        """Learn the weights at a model at which no ascent has ended, in steps that no history records."""
        if self._state is None or self._state.model is not model:
            ascent = SparseAdam(hyper_learning_rate=0.0)
            ascent.run(self, model, Trace(History(), NoProgress()), generator)

    def posterior(self, model: Model, generator: torch.Generator) -> QuadruplyStochasticPosterior:
        """Return the posterior of the weights at a model, with an estimate of its bound."""
        posterior = self._posterior_of_state(model)
        posterior.estimate_bound(self.table.X, self.state.targets, generator)
        posterior.warn_of_threshold()
        return posterior

    # Checkpoints -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what the next step depends on; the weights are not included, as the optimizer keeps them."""
        state = self.state
        tensors, header = state.controls.snapshot()
        tensors["generator"] = state.generator.get_state()
        if state.anchor is not None:
            tensors |= {f"anchor.{name}": value for name, value in state.anchor.state().items()}
        return tensors, {**header, "steps_since": state.steps_since_anchor, **self.batches.snapshot()}

    def restore(self, model: Model, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        state = self.state
        self.batches.restore(header)
        state.generator.set_state(tensors.pop("generator"))
        state.steps_since_anchor = header["steps_since"]
        anchor = {name.removeprefix("anchor."): tensors[name] for name in tensors if name.startswith("anchor.")}
        state.anchor = Anchor.from_state(state.basis, anchor, self.table.n_targets) if anchor else None
        state.restart_controls()
        state.controls.restore(tensors, header)
        state.model = model


# What an ascent of the weights consists of between two steps ----------------------------------------------------------


@dataclass
class State:
    """An ascent between two steps.

    Attributes
    ----------
    model : Model
        Where the bound was last evaluated.
    basis : Basis
        At the hyperparameters of the start.
    weights : Weights
        Moved in place.
    generator : torch.Generator
        Of the samples to come.
    trend : Tensor of shape (p, t)
        Coefficients of the mean's basis, float64.
    targets : Tensor of shape (n, t)
        Of the held rows, without the trend; labels and counts as they are.
    start : Subset or None
        Rows whose posterior the weights start from; None: they start from zero.
    trend_rows : Subset or None
        Rows that the trend comes from: those of the start where they are enough.
    spread : RowsCovariance or None
        The latent covariance that the rows of the start leave, where it takes the place of the weights' in the bound.
    controls : Controls
    anchor : Anchor or None
    steps_since_anchor : int
        Steps since the anchor was computed, or since the start.
    """

    model: Model
    basis: Basis
    weights: Weights
    generator: torch.Generator
    trend: Tensor
    targets: Tensor
    start: Subset | None
    trend_rows: Subset | None
    spread: RowsCovariance | None
    controls: Controls
    anchor: Anchor | None = None
    steps_since_anchor: int = 0

    def move_anchor(self, X: Tensor, *, with_columns: bool) -> None:
        """Compute the functions of the present weights, of the mean alone or of all, at the held rows ``X``."""
        basis = self.basis.with_kernel(self.model.kernel)
        self.anchor, self.steps_since_anchor = Anchor.at(basis, self.weights, X, with_columns=with_columns), 0

    def restart_controls(self) -> None:
        """Have the control variates follow what the weights are apart from the anchor."""
        self.controls.restart(self.weights, self.targets, self.anchor)
