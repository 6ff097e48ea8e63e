"""A fit as a list of steps, the same for rows that are held in memory and for rows that are streamed.

1. Choose the likelihood and the inference, and refuse everything that cannot be fitted (`fit_rows`, `fit_source`).
2. Begin: choose the transform of the target, scale the rows, let the inference make its objective of them, and choose
   the kernel (`_Held.begin`, `_Streamed.begin`).
3. Learn: let the optimizer move the hyperparameters, and compute the posterior at the end, with as much noise as
   left-out rows support (`_Held.learn`, `_Streamed.learn`).
4. Check the fit for what may have spoiled it (`Job.check`).

No function here changes an estimator: a fit returns its result.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gigagp.errors import InvalidInputError, NotPositiveDefiniteError, UnreadableRowsError
from gigagp.estimators import student_fit
from gigagp.estimators.arguments import (
    Arguments,
    Problem,
    require_same_rows,
    start_model,
    warn_of_shares,
    with_likelihood,
)
from gigagp.estimators.checkpoint import open_checkpoint
from gigagp.estimators.choices import kernel_rules, likelihood_choice, panel_kernel, varying_noise
from gigagp.estimators.choices.kernel_choice import KernelChoice, KernelRule
from gigagp.estimators.choices.open_hyperparameters import check_draws, uncertain_by_default, uncertain_posterior
from gigagp.estimators.choices.transform_learning import learn_transform
from gigagp.estimators.estimator import Estimator
from gigagp.estimators.fit_checks import noise_support, poor_fits
from gigagp.estimators.fit_checks.far_counts import warn_of_far_counts
from gigagp.estimators.fit_checks.small_variances import warn_of_small_variances
from gigagp.estimators.fit_checks.structured_noise import warn_of_structured_noise
from gigagp.estimators.guard import finite_means
from gigagp.estimators.metrics import gaussian_nll, rmse
from gigagp.estimators.planning import require_time, resolve_inference, resolve_streaming
from gigagp.inference import Exact, Inference
from gigagp.inference.automatic import Automatic
from gigagp.inference.automatic.objective import AutomaticObjective
from gigagp.inference.automatic.plan import Plan
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.streaming import StreamJob
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.mixture_posterior import MixturePosterior
from gigagp.kernels.composite import own_groups
from gigagp.kernels.group import groups_of
from gigagp.kernels.stationary import rows_check
from gigagp.model.likelihoods import Gaussian, Likelihood, StudentT
from gigagp.model.model import Model, StartModel
from gigagp.model.scaling import Scaling
from gigagp.model.target_transform import NoTransform, TargetTransform
from gigagp.model.transformed_answers import log_density, moments
from gigagp.optimization import Auto, History, SubsetStart
from gigagp.optimization.optimizer import check_found
from gigagp.optimization.sampled import SampledObjective
from gigagp.optimization.trace import Trace
from gigagp.runtime import termination
from gigagp.runtime.interruption import Interrupted, interruptible, seconds_left
from gigagp.runtime.progress import Meter, meter_for
from gigagp.runtime.run import current_run, running
from gigagp.settings.random import generator_from, spawn
from gigagp.storage.files import check_folder
from gigagp.tables import intake
from gigagp.tables.beside import Beside
from gigagp.tables.encoding import encoded_validation, fitted_encoder, refuse_streams
from gigagp.tables.rows.source import RowSource


class Fitted(NamedTuple):
    """The result of a fit; posterior, history and plan are in the units of the standardized problem."""

    posterior: Posterior
    scaling: Scaling
    history: History
    inference: Inference  # the one that ran
    optimizer: Any  # the one that ran
    likelihood: Likelihood  # the one that was given or chosen
    plan: Plan | None = None  # the forecast where ``inference="auto"`` had a choice
    transform: TargetTransform = NoTransform()
    choice: KernelChoice | None = None  # the kernels that were tried, if none was given
    note: str = ""  # what ``likelihood="auto"`` has chosen, and why; or what was done to the noise
    uncertain: MixturePosterior | None = None  # with what the rows leave open about the hyperparameters


def fit_rows(
    arguments: Arguments,
    X: np.ndarray,
    y: np.ndarray,
    validation: tuple[Any, Any] | None = None,
    checkpoint: str | PathLike[str] | None = None,
    beside: Beside | None = None,
) -> Fitted:
    """Fit rows (n, d) and targets (n,) or (n, n_targets) that are held in memory, in the data's own units.

    ``validation`` and ``checkpoint`` are those of `GPRegressor.fit`, and ``beside`` is what it is told of the rows
    otherwise. Invalid arguments and data are refused before anything is computed.
    """
    estimator, note = arguments.estimator, ""
    if arguments.chooses_likelihood:
        # The fit's own numbers are left as they are: "auto" that chooses Gaussian noise gives the bits of it.
        own = generator_from(estimator.random_state).clone_state()
        known = Beside() if beside is None else beside
        has_validation = validation is not None
        likelihood, note = likelihood_choice.choose(arguments, X, y, known, own, has_validation=has_validation)
        arguments = replace(arguments, likelihood=likelihood)
    likelihood = arguments.likelihood
    arguments.check_transform(y[:1].size)
    problem = Problem.of(arguments, X, y, beside)
    require_same_rows(X, y, problem.model.noise_variance)
    inference = resolve_inference(
        estimator.inference,
        len(X),
        arguments.dtype.itemsize,
        arguments.budget,
        likelihood,
        arguments.deadline,
        all_rows=problem.model.noise_is_known or likelihood.is_scale_mixture,
        model=problem.model if arguments.suits_states else None,
        rows=lambda: problem.scaling.inputs(problem.X),
        has_offset=problem.beside.offset is not None,
        has_groups=bool(own_groups(problem.model.kernel)),
    )
    arguments, problem = arguments.placed(inference, len(X)), problem.placed(inference)
    arguments.check_for(inference)
    arguments.check_noise(inference, has_checkpoint=checkpoint is not None)
    inference.check_held()
    if validation is not None:
        _refuse_validation(arguments.optimizer, likelihood)
    inference.check_model(problem.model)
    if likelihood.has_noise:
        warn_of_shares(estimator, problem.model, y[:1].size)
    title = f"fit of {len(X):,} rows{arguments.job}"
    return _Held(arguments, inference, checkpoint, title, problem, y, validation, note).fit()


def fit_source(
    estimator: Estimator,
    open_rows: Callable[..., RowSource],
    bounds: tuple[Any, Any] | None = None,
    checkpoint: str | PathLike[str] | None = None,
) -> tuple[Fitted, RowSource]:
    """Fit rows that are not held in memory, and return their source too.

    ``open_rows`` returns the source for the ``offset`` of a mean and a ``check`` of the inputs, and is called once the
    arguments have been checked. ``bounds`` and ``checkpoint`` are those of `GPRegressor.fit_table`.
    """
    arguments = Arguments.of(estimator)
    likelihood = arguments.likelihood
    refuse_streams(estimator)
    if likelihood.has_limits or likelihood.exposure == "trials":
        raise InvalidInputError(
            f"likelihood of GPRegressor for fit_table must not be {likelihood.name}, which needs more than one number "
            "of each target. Load the table and use fit."
        )
    if estimator.hyperparameters == "laplace":
        msg = (
            'hyperparameters of GPRegressor for fit_table must be "auto" or "learned", because it draws none. Use fit.'
        )
        raise InvalidInputError(msg)
    if arguments.chooses_likelihood:
        msg = 'likelihood of GPRegressor for fit_table must be given; "auto" compares rows that are held. Use fit.'
        raise InvalidInputError(msg)
    inference = resolve_streaming(estimator.inference, likelihood)
    if current_run().processes is not None:
        inference = inference.in_processes()
    arguments = arguments.placed(inference, math.inf)
    if arguments.weights_rows(inference):
        raise InvalidInputError(
            "inference of GPRegressor for fit_table with Student-t noise must be inference.Vecchia, because other "
            f"methods weight rows that are held; got {inference!r}. Or use fit."
        )
    arguments.check_for(inference, streams=True)
    bounds = inference.check_bounds(bounds)
    if isinstance(arguments.optimizer, SubsetStart) and not inference.abilities.holds_rows:
        msg = "optimization.SubsetStart needs the rows, which fit_table does not hold. Use fit, or another optimizer."
        raise InvalidInputError(msg)
    if np.ndim(estimator.noise_variance):
        msg = "noise_variance of GPRegressor must be one number, or None, for fit_table; got one for each row."
        raise InvalidInputError(msg)
    arguments.check_transform(streams=True)
    rows = open_rows(offset=arguments.mean.offset, check=rows_check(estimator.kernel))
    if rows.n_targets > 1 and estimator.outputs in ("independent", "correlated"):
        raise InvalidInputError(
            f'outputs of GPRegressor must be "auto" or "shared" for fit_table, which reads {rows.n_targets} targets '
            f'together; got "{estimator.outputs}". Or fit one target at a time.'
        )
    if checkpoint is not None:
        if not rows.has_files:
            msg = "checkpoint of fit_table needs a file or a folder as source, so that reading can resume; got rows."
            raise InvalidInputError(msg)
        check_folder(checkpoint)
    start = start_model(estimator, arguments.mean, 1, rows.n_targets)
    if groups_of(start.kernel):
        raise InvalidInputError(
            "kernel of GPRegressor for fit_table must have no kernels.Group, whose effects need all rows. Load the "
            "table and use fit."
        )
    model = start.bound(rows.n_inputs)
    inference.check_model(model)
    warn_of_shares(estimator, model, rows.n_targets)
    return _Streamed(arguments, inference, checkpoint, "fit of a table", rows, start, bounds).fit(), rows


class Begun(NamedTuple):
    """A fit before learning: the objective and its start, in the units of the standardized problem."""

    objective: TableObjective
    model: Model
    optimizer: Any  # that goes on from the model
    scaling: Scaling
    trace: Trace
    generator: torch.Generator
    rows: poor_fits.Rows
    is_spoiled: bool  # a warning has said that few targets spoil the fit
    transform: TargetTransform = NoTransform()
    choice: KernelChoice | None = None
    averages: bool = False
    least_noise: float = 0.0  # of a chosen kernel where rows repeat


@dataclass(frozen=True)
class Job(ABC):
    """A fit whose likelihood and inference have been chosen, and the steps that follow."""

    arguments: Arguments
    inference: Inference
    checkpoint: str | PathLike[str] | None
    title: str

    def fit(self) -> Fitted:
        """Return the result of all steps."""
        with ExitStack() as resources:
            meter = resources.enter_context(meter_for(self.arguments.estimator.verbose, job=self.title))
            begun = self.begin(meter, resources)
            model = with_likelihood(begun.model, self.arguments.likelihood, begun.objective.table)
            begun = begun._replace(model=model)
            fitted = with_draws(self.arguments, self.learn(begun))
        self.check(begun, fitted)
        return fitted

    @abstractmethod
    def begin(self, meter: Meter, resources: ExitStack) -> Begun:
        """Make the objective; ``resources`` are closed after the learning."""

    def learn(self, begun: Begun) -> Fitted:
        """Learn, solve for the posterior, and remove the checkpoint unless learning was interrupted."""
        arguments, trace, log = self.arguments, begun.trace, begun.trace.log
        # A fit that several processes share does not keep its solves.
        solves = None if log is None or current_run().processes is not None else log.solves
        with running(solves=solves):
            posterior = learn_posterior(
                begun.objective, begun.model, begun.optimizer, trace, begun.generator, arguments.deadline
            )
        ended_early = trace.history.interrupted in ("learning", "time budget")
        if isinstance(arguments.likelihood, Gaussian):
            late = time.monotonic() > arguments.deadline
            warn_of_small_variances(begun.objective, posterior, ended_early=ended_early, late=late)
        if self.checkpoint is not None and not ended_early and not arguments.keeps_checkpoint:
            if log is not None:
                log.remove()
            else:  # the state of a pass over the rows
                Path(self.checkpoint).unlink(missing_ok=True)
        ended = posterior, begun.scaling, trace.history, *self._ran(begun.objective)
        return Fitted(*ended, begun.transform, begun.choice)

    def _ran(self, objective: TableObjective) -> tuple[Inference, Any, Likelihood, Plan | None]:
        """Return the inference, the optimizer and the likelihood that ran, and the forecast where there was one."""
        own = self.arguments.optimizer, self.arguments.likelihood
        if isinstance(objective, AutomaticObjective):
            return objective.inference, *own, objective.plan
        return self.inference, *own, None

    def check(self, begun: Begun, fitted: Fitted) -> None:
        """Warn of few targets that spoil a fit, structure in the noise, and learning that ends in noise."""
        estimator, likelihood = self.arguments.estimator, self.arguments.likelihood
        if begun.is_spoiled or self.arguments.optimizer is None:
            return
        with _afterwards(fitted.history):
            rows, posterior = begun.rows, fitted.posterior
            is_sum = likelihood.has_noise and estimator.target_transform == "none"
            has_variance = likelihood.has_noise and not likelihood.is_scale_mixture
            learns_noise = has_variance and np.ndim(estimator.noise_variance) == 0
            is_spoiled = self.watches and poor_fits.warn_of_far_targets(rows, posterior)
            is_spoiled |= warn_of_far_counts(rows, begun.objective.table, posterior, likelihood)
            is_spoiled |= poor_fits.warn_of_flat_fit(rows, posterior, is_sum=is_sum, learns_noise=learns_noise)
            # What follows is less sure, or a consequence.
            if is_spoiled or fitted.history.interrupted or not isinstance(self.arguments.optimizer, Auto):
                return
            has_rule = fitted.choice is not None or not rows.has_others
            if self.learns_noise and warn_of_structured_noise(begun.objective.table, posterior, has_rule=has_rule):
                return
            if self.watches:
                poor_fits.warn_of_rows_outside_bars(rows, posterior)

    @property
    def watches(self) -> bool:
        """Whether targets may spoil the fit: where Gaussian noise is learned of the targets as they are given."""
        return self.learns_noise and self.arguments.estimator.target_transform == "none"

    @property
    def learns_noise(self) -> bool:
        """Whether Gaussian noise is learned."""
        arguments = self.arguments
        has_variance = isinstance(arguments.likelihood, Gaussian) and np.ndim(arguments.estimator.noise_variance) == 0
        return has_variance and arguments.optimizer is not None


@dataclass(frozen=True)
class _Held(Job):
    """A fit to rows that are held in memory."""

    problem: Problem
    y: np.ndarray
    validation: tuple[Any, Any] | None
    note: str

    def begin(self, meter: Meter, resources: ExitStack) -> Begun:
        """Choose the transform of the target, make the objective, and choose the kernel."""
        arguments, inference, problem, X = self.arguments, self.inference, self.problem, self.problem.X
        estimator, rows = arguments.estimator, self._rows()
        is_spoiled = self.watches and poor_fits.warn_of_extreme_targets(rows)
        generator = generator_from(estimator.random_state)
        transform: TargetTransform = NoTransform()
        if estimator.target_transform != "none":
            # The fit's own numbers are left as they are: "auto" that finds none gives the bits of "none".
            own = spawn(generator.clone_state())
            transform = learn_transform(arguments, X, self.y.reshape(-1), own).of_targets(self.y)
            problem = Problem.of(arguments, X, transform.forward(self.y))
        table = problem.table()
        if arguments.weights_rows(inference):
            objective, model = student_fit.begin(arguments, inference, table, problem.model, generator)
        else:
            model = problem.model
            objective = inference.objective_of(model, table, spawn(generator), arguments.likelihood)
        if arguments.deadline < math.inf:
            require_time(objective, inference, arguments.deadline)
        if estimator.hyperparameters == "laplace":
            check_draws(objective, arguments.optimizer, arguments.likelihood)
        validate = None
        if self.validation is not None:
            validation = encoded_validation(fitted_encoder(estimator), self.validation)
            validate = _validation_scorer(validation, problem.scaling, table, transform)
        averages, choice, least_noise, rule = False, None, 0.0, arguments.rule_for(inference)
        optimizer, history = arguments.optimizer, History()
        if rule is not None:
            may_average = not arguments.likelihood.is_scale_mixture
            averages = may_average and kernel_rules.averages(rule, inference, table, self.checkpoint)
            if averages:
                kernel_rules.require_average(table, self.checkpoint)
            else:
                settings = inference, arguments.optimizer, generator, arguments.deadline
                compared, start = objective, model
                if arguments.likelihood.is_scale_mixture and model.student is None:
                    # Laplace's approximation has no exact value or left-out rows to compare; weights of rows have both.
                    compared, start = student_fit.begin(arguments, inference, table, model, generator)
                rule = _rule_to_pick(arguments, inference, table.n_rows)
                picked, optimizer, choice, least_noise = kernel_rules.pick(rule, compared, start, *settings)
                model = picked if start is model else replace(model, kernel=picked.kernel)
        elif arguments.opened == "panel":
            units, deadline = problem.scaling.units(), arguments.deadline
            model, optimizer = panel_kernel.choose(objective, model, optimizer, units, deadline, history)
        trace = Trace(history, meter, validate)
        found = objective, model, optimizer, problem.scaling, trace, generator, rows, is_spoiled
        return Begun(*found, transform, choice, averages, least_noise)

    def _rows(self) -> poor_fits.Rows:
        problem, y, shown = self.problem, self.y, self.arguments.shown
        Y = y.reshape(len(y), -1)
        return poor_fits.Rows(
            len(y),
            lambda: Y,
            lambda row, column: f"{Y[row, column]:.3g} in row {row}" if shown is None else shown(row),
            lambda some: problem.table_of(problem.X[some], y[some]),
        )

    def learn(self, begun: Begun) -> Fitted:
        """Learn and compute the posterior, with noise that varies if that is asked for."""
        fitted = self._averaged(begun) if begun.averages else self._of_one_kernel(begun)
        return fitted if self.arguments.estimator.noise == "constant" else self._with_varying_noise(begun, fitted)

    def _of_one_kernel(self, begun: Begun) -> Fitted:
        """Learn and compute the posterior, with as much noise as the rows support."""
        arguments, objective, generator = self.arguments, begun.objective, begun.generator
        if self.checkpoint is not None:
            log = open_checkpoint(self.checkpoint, arguments.estimator, arguments.optimizer, objective, begun.model)
            begun.trace.log = log
        fitted = super().learn(begun)
        posterior = fitted.posterior
        if arguments.likelihood.is_scale_mixture and not fitted.history.interrupted:
            posterior = student_fit.end(arguments, objective, posterior, generator)
        history, least = fitted.history, begun.least_noise
        posterior, note = _supported(arguments, objective, posterior, begun.model, history, least)
        return fitted._replace(posterior=posterior, note="; ".join(filter(None, (self.note, note))))

    def _with_varying_noise(self, begun: Begun, fitted: Fitted) -> Fitted:
        """Return the fit with noise that depends on the inputs, where the rule asks for it or the rows show it."""
        arguments, objective, optimizer = self.arguments, begun.objective, begun.optimizer
        if fitted.history.interrupted:
            return fitted._replace(note="constant noise: the fit ended before noise that varies could be learned")
        if isinstance(optimizer, Auto):
            optimizer = replace(optimizer, rougher_starts=False)

        objectives = {id(fitted.posterior): objective}

        def learn(start: Model, *, learns: bool = True) -> tuple[Posterior, History]:
            trace, generator = Trace(History(), begun.trace.meter, begun.trace.validate), begun.generator
            # What an objective has drawn for one kernel does not serve another.
            own = self.inference.objective_of(start, objective.table, spawn(generator), arguments.likelihood)
            how = optimizer if learns else None
            found = learn_posterior(own, start, how, trace, generator, arguments.deadline)
            objectives[id(found)] = own
            return found, trace.history

        posterior, history, note = varying_noise.refined(
            arguments.estimator.noise,
            self.inference,
            objective.table,
            begun.scaling.units(),
            fitted.posterior,
            fitted.history,
            learn,
            begun.generator,
        )
        if posterior is fitted.posterior:
            return fitted._replace(note=note)
        choice = None if begun.averages else begun.choice  # one kernel is left of an average
        ran = self._ran(objectives[id(posterior)])
        return Fitted(posterior, begun.scaling, history, *ran, begun.transform, choice, note)

    def _averaged(self, begun: Begun) -> Fitted:
        """Learn every kernel, and return the mixture of their posteriors."""
        arguments, objective, deadline = self.arguments, begun.objective, self.arguments.deadline
        limited = arguments.rule_for(self.inference) == "auto"
        notes: list[str] = []
        raised: list[Posterior] = []

        def learn(start: Model, optimizer: object) -> tuple[Posterior, History]:
            trace = Trace(History(), begun.trace.meter, begun.trace.validate)
            found = learn_posterior(objective, start, optimizer, trace, begun.generator, deadline)
            # To look at tails again takes four fits. Candidates are compared by left-out rows in any case.
            looks = not limited or not notes or bool(notes[0])
            posterior, note = _supported(arguments, objective, found, start, trace.history, looks_at_tails=looks)
            notes.append(note)
            raised.extend([posterior] if note else [])
            return posterior, trace.history

        given = objective, begun.model, self.inference, learn, arguments.optimizer, begun.generator, deadline
        found = kernel_rules.average(*given, is_limited=limited)
        ended = found.posterior, begun.scaling, found.history, *self._ran(objective)
        fitted = Fitted(*ended, begun.transform, found.choice, self.note)
        is_exact, setting = isinstance(self.inference, Exact), arguments.estimator.hyperparameters
        if setting != "auto" or not is_exact or found.history.interrupted:
            return fitted
        with _afterwards(found.history, deadline):
            given_to = found.posterior, self.inference, arguments.likelihood, found.seconds, raised
            return fitted._replace(uncertain=uncertain_by_default(*given_to))
        return fitted  # after an interruption


def _rule_to_pick(arguments: Arguments, inference: Inference, n_rows: int) -> KernelRule | None:
    """Return the rule that picks one kernel where none are averaged: none by default for few rows with noise."""
    few = n_rows <= kernel_rules.AVERAGED_ROWS and arguments.likelihood.has_noise
    return None if arguments.opens_kernel and few else arguments.rule_for(inference)


@dataclass(frozen=True)
class _Streamed(Job):
    """A fit to rows that are not held in memory."""

    rows: RowSource
    start: StartModel
    bounds: Any

    def begin(self, meter: Meter, resources: ExitStack) -> Begun:
        """Read the rows as the inference needs them, and make the objective."""
        arguments, rows, checkpoint = self.arguments, self.rows, self.checkpoint
        estimator, optimizer = arguments.estimator, arguments.optimizer
        generator, trace = generator_from(estimator.random_state), Trace(History(), meter)
        own, early = spawn(generator), torch.Generator().manual_seed(0)

        def learn(objective: TableObjective, model: Model) -> Model:
            """Learn from few rows alone, which is enough to choose the resolution of a grid."""
            settings = optimizer if isinstance(optimizer, Auto) else Auto()
            return replace(settings, polish_steps=0).run(objective, model, trace, early)

        job = StreamJob(
            rows,
            self.start,
            estimator.standardize,
            arguments.budget,
            self.bounds,
            None if checkpoint is None else Path(checkpoint),
            None if optimizer is None else learn,
            meter,
            arguments.likelihood,
            arguments.dtype,
            arguments.device,
            resources,
        )
        found = self.inference.stream(job, own)
        if checkpoint is not None and found.logs_steps:
            extra = {"source": rows.identity, "rows": found.objective.n_rows}
            trace.log = open_checkpoint(checkpoint, estimator, optimizer, found.objective, found.model, extra)
        sample = _sample(found.objective.table, found.scaling)
        is_spoiled = self.watches and poor_fits.warn_of_extreme_targets(sample)
        return Begun(found.objective, found.model, optimizer, found.scaling, trace, generator, sample, is_spoiled)

    def learn(self, begun: Begun) -> Fitted:
        """Learn and compute the posterior, with as much noise as rows support that are all held.

        Rows that cannot be read any more come with advice.
        """
        try:
            fitted = super().learn(begun)
        except UnreadableRowsError as error:
            log = begun.trace.log
            if log is not None and not isinstance(begun.objective, SampledObjective):  # which has written its own
                log.write()
            raise UnreadableRowsError(f"{error} {self._what_next()}".rstrip()) from error
        if begun.objective.table.drawn_from is not None:  # a posterior of all rows would take another pass
            return fitted
        given = self.arguments, begun.objective, fitted.posterior, begun.model, fitted.history
        posterior, note = _supported(*given)
        return fitted._replace(posterior=posterior, note=note)

    def _what_next(self) -> str:
        """Return advice for the case that rows cannot be read in the middle of a fit."""
        checkpoint = self.checkpoint
        if checkpoint is not None and Path(checkpoint).exists():
            return (
                f"What has been learned is kept in {checkpoint}: mend the file, and the same call goes on from there."
            )
        if checkpoint is not None:
            return "Nothing had been learned yet: mend the file, and make the same call."
        return "Give fit_table a checkpoint, and a later call goes on from there." if self.rows.has_files else ""


def _sample(table: TrainingTable, scaling: Scaling) -> poor_fits.Rows:
    """Return the streamed rows that a fit holds, to check it by."""

    def example(row: int, column: int) -> str:
        x, y = table.X[[row]].double().cpu().numpy(), table.Y[[row]].double().cpu().numpy()
        value = (scaling.original(y) + table.mean.offset(scaling.original_inputs(x))[:, None])[0, column]
        return f"{value:.3g}, among the rows that were looked at"

    def some_of(some: slice) -> TrainingTable:
        return table if some == slice(None) else table.take_rows(torch.arange(table.n_rows)[some])

    return poor_fits.Rows(table.n_rows, lambda: table.Y.double().cpu().numpy(), example, some_of)


def with_draws(arguments: Arguments, fitted: Fitted, *, by_default: bool = False) -> Fitted:
    """Return a fit with draws of its hyperparameters, if they are wanted and nothing interrupts them."""
    asked = arguments.estimator.hyperparameters == "laplace"
    if (asked or by_default) and not fitted.history.interrupted:
        with _afterwards(fitted.history, arguments.deadline):
            if not asked:
                own = fitted.posterior, fitted.inference, fitted.likelihood
                return fitted._replace(uncertain=uncertain_by_default(*own, math.inf, ()))
            ran = fitted.inference, fitted.optimizer, fitted.likelihood
            return fitted._replace(uncertain=uncertain_posterior(fitted.posterior, *ran))
    return fitted


@contextmanager
def _afterwards(history: History, deadline: float = math.inf) -> Iterator[None]:
    """Let a first Ctrl-C, or a deadline, end only the block, which follows a fit; a second Ctrl-C ends both."""
    is_first = history.interrupted in ("", "time budget")
    with interruptible(deadline, handles=is_first and current_run().processes is None) as interruption:
        interruption.keep()
        with suppress(Interrupted):
            yield
    if interruption.requested and not history.interrupted:
        history.interrupted = "last solve"


def _supported(
    arguments: Arguments,
    objective: TableObjective,
    posterior: Posterior,
    start: Model,
    history: History,
    least_noise: float = 0.0,
    *,
    looks_at_tails: bool = True,
) -> tuple[Posterior, str]:
    """Return the posterior with as much noise as left-out rows support, unless the fit was interrupted."""
    found = posterior, ""
    if isinstance(arguments.likelihood, Gaussian) and arguments.optimizer is not None and not history.interrupted:
        generator = torch.Generator().manual_seed(0)
        with _afterwards(history, arguments.deadline):
            given = objective, posterior, start, arguments.optimizer, generator, least_noise
            found = noise_support.supported(*given, looks_at_tails=looks_at_tails)
    return found


# Learn hyperparameters and solve for the posterior, to the end or until Ctrl-C or a deadline ends the learning --------


#: Largest number of rows at which the posterior is checked at the end of a fit, and those of them that come first where
#: there is a deadline.
_CHECKED_ROWS, _FIRST_CHECKED = 256, 16


def learn_posterior(
    objective: TableObjective,
    model: Model,
    optimizer: Any,
    trace: Trace,
    generator: torch.Generator,
    deadline: float = math.inf,
) -> Posterior:
    """Return the posterior at the hyperparameters found by the optimizer; None keeps those of the model.

    The first Ctrl-C ends learning at the best hyperparameters so far and sets ``trace.history.interrupted``. It never
    interrupts the last solve, on which predictions depend. A deadline ends the learning in time for this solve.
    """
    # Ctrl-C does not come to all processes at once, so that it ends a distributed fit as it ends other programs.
    with interruptible(deadline, handles=current_run().processes is None) as interruption:
        if deadline < math.inf:
            interruption.reserve = objective.ending_seconds()
        if optimizer is not None:
            try:
                model = check_found(optimizer.run(objective, model, trace, spawn(generator)), model, optimizer)
            except Interrupted:
                interruption.learning = False
                model = _best_so_far(objective, model, trace)
        interruption.learning = False
        if trace.log is not None:
            termination.write_last(trace.log.write)
        title = "preparing predictions"
        if interruption.requested:
            title += " at the best so far (Ctrl-C again ends at once)"
        trace.meter.phase(title, 1, then=0.0)
        seed = spawn(generator)
        try:
            posterior = _posterior_at(objective, model, seed, learned=optimizer is not None)
        except NotPositiveDefiniteError:
            # Optimizers do not evaluate their last step. If it has no factor, the step before it does.
            if trace.last_sound is None or trace.last_sound.noise_variance.shape != model.noise_variance.shape:
                raise
            posterior = _posterior_at(objective, trace.last_sound, seed, learned=True)
        X = objective.table.X[:_CHECKED_ROWS].to(posterior.dtype)  # which may be wider than what was asked for
        if _check_at(posterior, X):
            trace.history.gap = posterior.gap()
        trace.meter.step()
    if interruption.requested:  # checked after the block, so that a signal at its end is not lost
        trace.history.interrupted = "learning" if interruption.cut else "last solve"
        trace.meter.remark("Ctrl-C ended the learning")
    elif interruption.cut:
        trace.history.interrupted = "time budget"
        trace.meter.remark("the time budget ended the learning")
    return posterior


def _check_at(posterior: Posterior, X: torch.Tensor) -> bool:
    """Check means and variances at rows, and return whether a deadline has left time for more than a few."""
    first, rest = (X, X[:0]) if seconds_left() == math.inf else X.tensor_split([_FIRST_CHECKED])
    began = time.monotonic()
    finite_means(posterior.mean(first))
    posterior.check_variances(first)
    if (time.monotonic() - began) * len(X) > len(first) * seconds_left():
        return False
    if len(rest):
        finite_means(posterior.mean(rest))
        posterior.check_variances(rest)
    return True


def _posterior_at(objective: TableObjective, model: Model, generator: torch.Generator, *, learned: bool) -> Posterior:
    """Return the posterior at a learned or given model; what the optimizer does not learn is learned before."""
    objective.learn_remaining(model, generator)
    return objective.learned_posterior(model, generator) if learned else objective.posterior(model, generator)


def _best_so_far(objective: TableObjective, start: Model, trace: Trace) -> Model:
    """Return the model that the optimizer has last accepted, completed for all rows."""
    accepted_by, found = trace.accepted
    if accepted_by is objective:
        return found
    learned = found.parameters()
    model = start.replace({name: learned[name] for name in start.learned_names()})
    # A stage on other rows has no free parameters for these rows. Sampled objectives start when they are learned.
    return model if isinstance(objective, SampledObjective) else objective.start(model)


# Scores on held-out validation rows at every step of a fit ------------------------------------------------------------


def _validation_scorer(
    validation: tuple[Any, Any], scaling: Scaling, table: TrainingTable, transform: TargetTransform
) -> Callable[[Any], tuple[float, float] | None]:
    """Return a function that scores the current posterior of an objective of all rows of the table on validation rows.

    It returns RMSE and mean log-likelihood in the target's units, over all targets, or None if the objective has no
    posterior available. Predictions include the noise if it is learned. Validation rows that cannot be used are
    refused.
    """
    X = intake.inputs(validation[0], "validation X")
    y = intake.targets(validation[1], len(X), "validation y")
    if X.shape[1] != table.n_inputs or y[:1].size != table.n_targets:
        raise InvalidInputError(
            f"validation of GPRegressor.fit must have {table.n_inputs} inputs and {table.n_targets} target(s); got "
            f"{X.shape[1]} and {y[:1].size}."
        )
    transform.check(y, "validation y")
    points = torch.from_numpy(scaling.inputs(X)).to(table.X)
    targets = y.reshape(len(y), -1) - table.mean.offset(X)[:, None]

    def score(objective: Any) -> tuple[float, float] | None:
        if objective.n_rows != table.n_rows or (posterior := objective.current_posterior()) is None:
            return None
        refusal = posterior.refusal(points, scaling, None)
        if refusal is not None:
            raise refusal
        predicted, variance = posterior.mean_and_variance(points)
        if (student := posterior.model.student) is not None:
            noise, latent = posterior.noise_at(points).double().cpu(), variance.double().cpu().sqrt()
            standard = torch.from_numpy(scaling.targets(targets))
            centre = predicted.double().cpu()
            logs = StudentT(student.df).predictive_log_density(standard, centre, latent[:, None], noise[:, None])
            unit = float(np.log(scaling.y_scale[0]))
            return rmse(targets, scaling.original(centre.numpy())), float(logs.mean()) - unit
        if not posterior.model.noise_is_known:
            variance = variance + posterior.model.noise_at(points)
        std = variance.sqrt().double().cpu().numpy()[:, None] * scaling.y_scale
        centre = scaling.original(predicted.double().cpu().numpy())
        if not transform.is_identity:
            z, whole = centre[:, 0], np.square(std[:, 0])
            middle = moments(transform, z, np.zeros_like(whole), whole)[0]
            return rmse(y.ravel(), middle), float(log_density(transform, y.ravel(), z, whole).mean())
        flat = targets.ravel(), centre.ravel(), np.broadcast_to(std, centre.shape).ravel()
        return rmse(*flat[:2]), -gaussian_nll(*flat)

    return score


def _refuse_validation(optimizer: object, likelihood: Likelihood) -> None:
    """Refuse validation rows if there are no steps to score, or if the scores do not apply to the likelihood."""
    if optimizer is None:
        raise InvalidInputError(
            "validation of GPRegressor.fit scores the steps of an optimizer, and optimizer is None; leave it out, and "
            "score predictions with gigagp.metrics."
        )
    if not isinstance(likelihood, Gaussian) and not likelihood.is_scale_mixture:
        raise InvalidInputError(
            "validation of GPRegressor.fit scores targets with Gaussian noise; got the "
            f"{likelihood.name} likelihood. Leave it out, and score predictions with gigagp.metrics."
        )


# What a fit would choose ----------------------------------------------------------------------------------------------


def plan_rows(arguments: Arguments, X: np.ndarray, y: np.ndarray) -> tuple[Plan, Scaling]:
    """Return what `fit_rows` with ``inference="auto"`` would choose from, in standardized units."""
    problem = Problem.of(arguments, X, y)
    model, estimator = problem.model, arguments.estimator
    if groups_of(model.kernel) and estimator.panel is None:
        raise InvalidInputError(
            "plan of GPRegressor needs a kernel without groups, also of an encoded column with more than 50 "
            "categories. With groups inference is exact up to 3,000 rows, above that inference.Vecchia is used."
        )
    inference = Automatic(arguments.deadline, all_rows=model.noise_is_known)
    problem = problem.placed(inference)
    arguments.check_for(inference)
    inference.check_model(model)
    generator = generator_from(estimator.random_state)
    with (
        meter_for(estimator.verbose, job=f"forecast for {len(X):,} rows") as meter,
        interruptible(arguments.deadline),
    ):
        objective = inference.planning(problem.table(), model, spawn(generator))
        settings = inference, arguments.optimizer, generator, arguments.deadline
        rule = _rule_to_pick(arguments, inference, len(X))
        model, optimizer, *_ = kernel_rules.pick(rule, objective, model, *settings)
        if isinstance(optimizer, Auto):
            model = optimizer.run(objective, model, Trace(History(), meter), spawn(generator))
        return objective.plan_at(model), problem.scaling
