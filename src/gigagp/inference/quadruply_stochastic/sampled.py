"""The lower bound estimated from samples of the rows and of the basis functions, which sparse optimizers maximise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn, Protocol

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.quadruply_stochastic.anchor import Anchor, is_early, steps_between
from gigagp.inference.quadruply_stochastic.bases import Basis
from gigagp.inference.quadruply_stochastic.controls import Controls
from gigagp.inference.quadruply_stochastic.estimators.readings import (
    BoundForm,
    divergence_from_parts,
    expected_log_likelihood,
    latent_functions,
    latent_spread,
)
from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample, sample_indices
from gigagp.inference.quadruply_stochastic.estimators.terms import (
    Origin,
    Prior,
    SampledRows,
    column_terms,
    constant_term,
    diagonal_terms,
    mean_term,
    prior_term,
)
from gigagp.inference.quadruply_stochastic.objective import WeightObjective
from gigagp.inference.quadruply_stochastic.options import WeightProblem
from gigagp.inference.quadruply_stochastic.posterior import QuadruplyStochasticPosterior
from gigagp.inference.quadruply_stochastic.rows_covariance import OpenTrend, RowsCovariance
from gigagp.inference.quadruply_stochastic.start import (
    Subset,
    start_weights,
    starts_known,
    trend_subset,
    unit_of_dependent_weights,
)
from gigagp.inference.quadruply_stochastic.weights import (
    COLUMNS,
    LOG_PRECISION,
    LOG_SCALE,
    MEAN,
    Weights,
    touched_root,
)
from gigagp.model.likelihoods import Likelihood
from gigagp.model.model import Model
from gigagp.optimization.history import History
from gigagp.optimization.objective import Evaluation
from gigagp.optimization.sampled import SampledEvaluation
from gigagp.optimization.sparse import SparseAdam
from gigagp.optimization.subsets import SubsetFirst
from gigagp.optimization.trace import Trace
from gigagp.runtime.processes import sum_of_rows
from gigagp.runtime.progress import NoProgress
from gigagp.settings.schema import part

#: Learning rate where the weights start at zero.
_RATE_FROM_ZERO = 0.05
#: Rows whose exact likelihood decides the hyperparameters of a sampled fit, and square arrays alive at once there.
_LIKELIHOOD_ROWS, _LIKELIHOOD_SQUARES = 4000, 8


class Batches(Protocol):
    """The rows that the steps of one ascent see."""

    #: rows of a step
    size: int

    def begin(self, coefficients: Tensor, targets: Tensor) -> None:
        """Start again, given the trend's coefficients (p, t) and the held rows' targets (n, t) less the trend."""

    def draw(self, generator: torch.Generator) -> Tensor:
        """Return the places of the next rows, shape (size,), as `at` takes them."""

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (r, d), and targets less the trend (r, t), of rows of the last draw."""

    def all_rows(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over all rows once: their places, as `Model.noise_of_rows` takes them, and their inputs."""

    def snapshot(self) -> dict[str, Any]:
        """Return, as plain data, the state that the next draw depends on beside the generator."""

    def restore(self, header: dict[str, Any]) -> None:
        """Continue from a snapshot."""


class HeldBatches(Batches):
    """Random rows of a table that is held."""

    def __init__(self, problem: WeightProblem) -> None:
        self._X, self._n_rows = problem.table.X, problem.table.n_rows
        self._replacement = problem.options.replacement
        self._targets = problem.table.Y
        self.size = min(problem.options.sampled_rows, self._n_rows)

    def begin(self, coefficients: Tensor, targets: Tensor) -> None:
        self._targets = targets

    def draw(self, generator: torch.Generator) -> Tensor:
        return sample_indices(self._n_rows, self.size, generator, replacement=self._replacement).to(self._X.device)

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self._X[rows], self._targets[rows]

    def all_rows(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield torch.arange(self._n_rows, device=self._X.device), self._X

    def snapshot(self) -> dict[str, Any]:
        """Return nothing: the generator decides every draw."""
        return {}

    def restore(self, header: dict[str, Any]) -> None:
        """Do nothing: the generator decides every draw."""


class MinibatchObjective(WeightObjective):
    """The bound on minibatches of rows and functions; `gigagp.optimization.SparseAdam` maximises it.

    The rows of the steps come from ``batches``; None: random rows of the held table.
    """

    deterministic = False  # every step sees other rows and functions

    def __init__(self, problem: WeightProblem, seed: int, batches: Batches | None = None) -> None:
        super().__init__(problem, seed)
        self.batches = batches or HeldBatches(problem)
        self._state: State | None = None

    @property
    def state(self) -> State:
        """The ascent as it is; `begin` makes it."""
        if self._state is None:
            raise RuntimeError("the ascent has no state before begin(model)")
        return self._state

    def own_optimizer(self) -> SubsetFirst | SparseAdam:
        """Return the optimizer of a fit where none is given: it learns the weights alone.

        The hyperparameters are those that the likelihood of a few thousand rows prefers. The bound of independent
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
        raise InvalidInputError(
            f'optimizer of GPRegressor with inference.{type(self.problem.options).__name__} must be "auto", None, '
            "optimization.SparseAdam, SparseAdaGrad or SparseSGD where rows and functions are sampled. They are "
            "sampled because there are too many, or because row_batch, basis_batch, n_support or replacement is set."
        )

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
        self._state = State(model, basis, weights, generator, trend, targets, start, trend_rows, spread, controls)
        if self._moves_anchor(basis) and is_early(basis, self._steps_between(basis)):
            self._move_anchor()
        self._state.restart_controls()
        return model

    def _move_anchor(self) -> None:
        """Compute the functions of the weights, of the mean alone where a step sees some columns, at the held rows."""
        state = self.state
        basis, with_columns = state.basis.with_kernel(state.model.kernel), self._column_batch(state.weights) is None
        state.anchor = Anchor.at(basis, state.weights, self.table.X, with_columns=with_columns)
        state.steps_since_anchor = 0

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
            self._move_anchor()
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
        """Return the uncertainty of the mean's coefficients given the rows of the trend."""
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
        """Return the state that the next step depends on, without the weights, which the optimizer keeps."""
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
        anchor = part(tensors, "anchor.")
        state.anchor = Anchor.from_state(state.basis, anchor, self.table.n_targets) if anchor else None
        state.restart_controls()
        state.controls.restore(tensors, header)
        state.model = model


@dataclass
class State:
    """An ascent between two steps."""

    #: at which the bound was last evaluated
    model: Model
    #: at the hyperparameters of the start
    basis: Basis
    #: moved in place
    weights: Weights
    #: of the samples to come
    generator: torch.Generator
    #: coefficients of the mean's basis, shape (p, t), float64
    trend: Tensor
    #: of the held rows, less the trend; labels and counts as they are
    targets: Tensor
    #: rows whose posterior the weights start from; None: they start from zero
    start: Subset | None
    #: rows that the trend comes from: those of the start where they are enough
    trend_rows: Subset | None
    #: the latent covariance that the rows of the start leave, where it takes the place of the weights' in the bound
    spread: RowsCovariance | None
    controls: Controls
    anchor: Anchor | None = None
    #: steps since the anchor was computed, or since the start
    steps_since_anchor: int = 0

    def restart_controls(self) -> None:
        """Have the control variates follow the difference of the weights from the anchor."""
        self.controls.restart(self.weights, self.targets, self.anchor)


# The bound on one sample of rows and functions, which a step climbs ---------------------------------------------------


class Drawn(NamedTuple):
    """One sample of rows, w functions and s dense columns, with everything that the bound on it needs."""

    rows: SampledRows
    sample: BasisSample
    basis: Basis
    #: diagonal of the prior precision, shape (w,)
    diagonal: Tensor
    #: the touched entries of the weights' arrays, shapes (w, t), (w,) and (w, s); see `Weights`
    mean: Tensor
    log_scale: Tensor
    columns: Tensor | None
    #: the part of the mean, and of the columns, that the anchor knows
    of_mean: Origin | None = None
    of_columns: Origin | None = None

    @property
    def n_targets(self) -> int:
        """Number of targets, t."""
        return self.mean.shape[1]

    @property
    def root(self) -> Tensor:
        """The touched part of the dense columns, shape (w, s), diagonal included."""
        seen = None if self.sample.columns is None else self.sample.columns.slice
        return touched_root(self.log_scale, self.columns, self.sample.index, seen)

    @property
    def log_scale_of_columns(self) -> Tensor:
        """The sum of the logarithms of the dense columns' diagonal entries, or its estimate."""
        return self.sample.sum_of_columns(self.log_scale[self.sample.places])

    def prior(self, sample: BasisSample) -> Prior:
        """Return the prior precision as the estimators take it."""
        if self.basis.has_diagonal_prior:
            return self.diagonal
        # weights that differ from column to column: a function counts where any of them does
        of_functions = (one if one.ndim == 1 else one.sum(1) for one in (sample.left, sample.right))
        left, right = (weights.nonzero()[:, 0] for weights in of_functions)
        block = self.basis.prior_block(sample.index[left], sample.index[right]).to(self.diagonal)
        return lambda a, b: (a[left] * (block @ b[right])).sum(0)

    def prior_of_mean(self) -> Tensor:
        """Return the estimate of the mean's prior term, all targets."""
        return prior_term(self.mean, self.sample, self.prior(self.sample), self.of_mean).sum()


def gaussian_bound(drawn: Drawn, controls: Controls, model: Model, *, of_root: bool) -> Tensor:
    """Return the estimate of eq. 2: Theorems 1 and 2 with control variates, and Proposition 2.

    ``of_root`` says whether the covariance of the weights is part of the estimate.
    """
    rows, sample, t, k = drawn.rows, drawn.sample, drawn.n_targets, drawn.sample.n_head
    if drawn.of_mean is not None:
        rows = rows._replace(targets=rows.targets - drawn.of_mean.fitted)
    of_mean = mean_term(rows, drawn.mean, sample, drawn.prior(sample), origin=drawn.of_mean)
    total = controls.mean(of_mean, model, drawn.mean, sample, drawn.of_mean)
    if of_root:
        tail = SampledRows(rows.features[:, k:], *rows[1:])
        spread = sample.linear[k:] @ diagonal_terms(tail, drawn.log_scale[k:], drawn.diagonal[k:])
        if k:
            root, seen = drawn.root, sample.for_columns()
            dense = seen.sum_of_columns(column_terms(rows, root, seen, drawn.prior(seen), origin=drawn.of_columns))
            dense = controls.columns(dense, model, root, seen, drawn.of_columns)
            spread = spread + dense - 2 * drawn.log_scale_of_columns
        total = total + t * spread
    # A dense prior does not change, so its determinant is left out.
    determinant = drawn.diagonal.log() if drawn.basis.has_diagonal_prior else None
    return -0.5 * (total + constant_term(rows, determinant, sample, drawn.basis.size))


def latent_bound(drawn: Drawn, likelihood: Likelihood, form: BoundForm, nodes: int) -> Tensor:
    """Return the estimate for a likelihood that is not Gaussian: Theorem 3, and a sampled divergence from the prior."""
    rows, sample, t, k = drawn.rows, drawn.sample, drawn.n_targets, drawn.sample.n_head
    root, log_scale = drawn.root, drawn.log_scale
    latent = latent_functions(rows.features, drawn.mean, sample, drawn.of_mean)
    spread = latent_spread(rows.features, log_scale, root, sample, form, drawn.of_columns)
    fit = expected_log_likelihood(likelihood, rows.targets, latent, spread, rows.noise, rows.factor, nodes)
    weights = sample.linear[k:]
    of_root = (weights * drawn.diagonal[k:] * (2 * log_scale[k:]).exp()).sum()
    if k:
        seen = sample.for_columns()
        of_root = of_root + seen.sum_of_columns(prior_term(root, seen, drawn.prior(seen), drawn.of_columns))
    log_determinant = 2 * (drawn.log_scale_of_columns + (weights * log_scale[k:]).sum())
    log_precision = drawn.mean.new_zeros(())
    if drawn.basis.has_diagonal_prior:
        log_precision = (sample.linear * drawn.diagonal.log()).sum()
    of_mean, m = drawn.prior_of_mean(), drawn.basis.size
    return fit - divergence_from_parts(of_mean, t * of_root, t * log_determinant, t * log_precision, t * m)


def bound_of_mean(drawn: Drawn, likelihood: Likelihood, spread: Tensor, of_covariance: float, nodes: int) -> Tensor:
    """Return the estimate under a known covariance of the latent function.

    ``spread`` (rows,) are the standard deviations of the latent values, and ``of_covariance`` is the covariance's part
    of the divergence from the prior, for one target.
    """
    rows = drawn.rows
    latent = latent_functions(rows.features, drawn.mean, drawn.sample, drawn.of_mean)
    fit = expected_log_likelihood(likelihood, rows.targets, latent, spread, rows.noise, rows.factor, nodes)
    return fit - 0.5 * drawn.prior_of_mean() - drawn.n_targets * of_covariance
