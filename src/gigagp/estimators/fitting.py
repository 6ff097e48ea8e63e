"""The steps of every fit: check arguments, scale rows, choose the inference, learn, solve for the posterior.

Rows that are held (`fit_rows`) and rows that are streamed (`fit_source`) differ in how their objective is made; the
steps before and after that are shared. No function here changes an estimator: a fit returns its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gigagp.errors import InvalidInputError, NotPositiveDefiniteError, UnreadableRowsError
from gigagp.estimators.arguments import Arguments, Problem, require_same_rows
from gigagp.estimators.checkpoint import open_checkpoint
from gigagp.estimators.choices import kernel_rules, noise_support, student_fit
from gigagp.estimators.choices.kernel_choice import KernelChoice
from gigagp.estimators.choices.transform_learning import learn_transform, require_transformable
from gigagp.estimators.estimator import Estimator
from gigagp.estimators.guard import finite_means
from gigagp.estimators.planning import require_time, resolve_inference, resolve_streaming
from gigagp.estimators.start import start_model, warn_of_shares
from gigagp.estimators.validation import refuse_validation, validation_scorer
from gigagp.estimators.warnings import far_targets, flat_fits, left_out_rows
from gigagp.estimators.warnings.certainty import warn_of_certainty
from gigagp.inference import Inference
from gigagp.inference.automatic import Automatic
from gigagp.inference.automatic.objective import AutomaticObjective
from gigagp.inference.automatic.plan import Plan
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.streaming import BegunFit, StreamJob
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.likelihoods import AUTO, Gaussian
from gigagp.model.means import Mean
from gigagp.model.model import Model
from gigagp.model.scaling import Scaling
from gigagp.model.target_transform import NoTransform, TargetTransform
from gigagp.optimization import Auto, History, SubsetStart
from gigagp.optimization.optimizer import check_found
from gigagp.optimization.sampled import SampledObjective
from gigagp.optimization.trace import Trace
from gigagp.runtime import processes, termination
from gigagp.runtime.interruption import Interrupted, interruptible
from gigagp.runtime.progress import Meter, meter_for
from gigagp.settings.random import generator_from, spawn
from gigagp.storage.files import check_folder
from gigagp.storage.kept_solves import kept_in
from gigagp.tables.encoding import encoded_validation, fitted_encoder, refuse_streams
from gigagp.tables.rows.source import RowSource


class Fitted(NamedTuple):
    """The result of a fit.

    Attributes
    ----------
    posterior : Posterior
        Posterior in the units of the standardized problem.
    scaling : Scaling
        Transformation between the data's own units and those of the standardized problem.
    history : History
        Optimization history in the units of the standardized problem.
    inference : Inference
        Inference method that ran.
    optimizer : object or None
        Optimizer that ran.
    plan : Plan or None
        What was forecast where ``inference="auto"`` had a choice, in the units of the standardized problem.
    transform : TargetTransform
        Transform of the target, before the scaling.
    choice : KernelChoice or None
        Kernels that were tried, if the kernel was not given.
    note : str
        What ``likelihood="auto"`` has chosen, and why; or what was done to the noise (`choices.noise_support`).
    """

    posterior: Posterior
    scaling: Scaling
    history: History
    inference: Inference
    optimizer: Any
    plan: Plan | None = None
    transform: TargetTransform = NoTransform()
    choice: KernelChoice | None = None
    note: str = ""


def plan_rows(arguments: Arguments, X: np.ndarray, y: np.ndarray) -> tuple[Plan, Scaling]:
    """Return what a fit of held rows with ``inference="auto"`` would choose from, in standardized units.

    Parameters
    ----------
    arguments : Arguments
        Checked arguments of the estimator.
    X : ndarray of shape (n, d)
        Inputs in the data's own units.
    y : ndarray of shape (n,) or (n, n_targets)
        Targets in the data's own units.

    Raises
    ------
    InvalidInputError
        If an argument or the data are invalid; raised before any work.
    """
    problem = Problem.of(arguments, X, y)
    model, estimator = problem.model, arguments.estimator
    inference = Automatic(arguments.deadline, all_rows=model.noise_is_known)
    arguments.check_for(inference)
    inference.check_model(model)
    generator = generator_from(estimator.random_state)
    with (
        meter_for(estimator.verbose, job=f"forecast for {len(X):,} rows") as meter,
        interruptible(arguments.deadline),
    ):
        objective = inference.planning(problem.table(), model, spawn(generator))
        model, _ = kernel_rules.pick(estimator.kernel, objective, model, inference, arguments.optimizer, generator)
        if isinstance(arguments.optimizer, Auto):
            model = arguments.optimizer.run(objective, model, Trace(History(), meter), spawn(generator))
        return objective.plan_at(model), problem.scaling


def fit_rows(
    arguments: Arguments,
    X: np.ndarray,
    y: np.ndarray,
    validation: tuple[Any, Any] | None = None,
    checkpoint: str | PathLike[str] | None = None,
) -> Fitted:
    """Fit rows that are held in memory.

    Parameters
    ----------
    arguments : Arguments
        Checked arguments of the estimator.
    X : ndarray of shape (n, d)
        Inputs in the data's own units.
    y : ndarray of shape (n,) or (n, n_targets)
        Targets in the data's own units.
    validation, checkpoint
        The same as for `GPRegressor.fit`.

    Raises
    ------
    InvalidInputError
        If an argument or the data are invalid; raised before any work.
    MemoryBudgetError
        If the fit exceeds the memory budget.
    """
    estimator, note = arguments.estimator, ""
    if isinstance(estimator.likelihood, str) and estimator.likelihood == AUTO:
        # The fit's own numbers are left as they are: "auto" that chooses Gaussian noise gives the bits of "gaussian".
        chosen, note = student_fit.choose(arguments, X, y, generator_from(estimator.random_state).clone_state())
        arguments = replace(arguments, likelihood=chosen)
    likelihood = arguments.likelihood
    require_transformable(estimator, arguments.mean, likelihood, y[:1].size)
    problem = Problem.of(arguments, X, y)
    require_same_rows(X, y, problem.model.noise_variance)
    sizes = len(X), arguments.dtype.itemsize, arguments.budget
    inference = resolve_inference(
        estimator.inference,
        *sizes,
        likelihood,
        arguments.deadline,
        all_rows=problem.model.noise_is_known or likelihood.is_scale_mixture,
    )
    arguments.check_for(inference)
    inference.check_held()
    if validation is not None:
        refuse_validation(arguments.optimizer, likelihood)
    inference.check_model(problem.model)
    if likelihood.has_noise:
        warn_of_shares(estimator, problem.model, y[:1].size)
    watches = _watches(arguments) and not note
    Y = y.reshape(len(y), -1)

    def example(row: int, column: int) -> str:
        return f"{Y[row, column]:.3g} in row {row}"

    warned = watches and far_targets.warns_before(Y, example)
    with meter_for(estimator.verbose, job=f"fit of {len(X):,} rows{arguments.job}") as meter:
        fitted = _fit_problem(arguments, inference, problem, X, y, meter, validation, checkpoint)
    fitted = fitted._replace(note="; ".join(filter(None, (note, fitted.note))))
    with _afterwards(fitted.history):
        few_far = watches and not warned and far_targets.warn_after(problem.table, Y, fitted.posterior, example)
        is_learned = isinstance(arguments.optimizer, Auto) and not fitted.history.interrupted  # to the end
        if watches and is_learned and not warned and not few_far:
            left_out_rows.warn_after(problem.table, len(Y), fitted.posterior, example)
        if not warned:
            some = flat_fits.evenly(len(X))
            _warn_if_flat(arguments, lambda: problem.table_of(X[some], y[some]), fitted.posterior)
    return fitted


@contextmanager
def _afterwards(history: History, deadline: float = math.inf) -> Iterator[None]:
    """Let a first Ctrl-C, or a deadline, end only the block, which follows a fit; a second Ctrl-C ends both."""
    is_first = history.interrupted in ("", "time budget")
    with interruptible(deadline, handles=is_first and processes.current() is None) as interruption:
        interruption.keep()
        with suppress(Interrupted):
            yield
    if interruption.requested and not history.interrupted:
        history.interrupted = "last solve"


def _watches(arguments: Arguments) -> bool:
    """Whether a fit is to be looked at for targets that spoil it: where Gaussian noise is learned."""
    estimator = arguments.estimator
    learns_noise = arguments.optimizer is not None and np.ndim(estimator.noise_variance) == 0
    return learns_noise and isinstance(arguments.likelihood, Gaussian) and estimator.target_transform == "none"


def _warn_if_flat(arguments: Arguments, table: Callable[[], TrainingTable], posterior: Posterior) -> None:
    """Warn if learning has ended where all is noise; the table has rows of the fit, and is made if it is needed."""
    estimator, likelihood = arguments.estimator, arguments.likelihood
    if arguments.optimizer is not None:
        is_sum = likelihood.has_noise and estimator.target_transform == "none"
        learns_noise = not likelihood.is_scale_mixture and np.ndim(estimator.noise_variance) == 0
        flat_fits.warn_after(table(), posterior, is_sum=is_sum, learns_noise=learns_noise and likelihood.has_noise)


def _fit_problem(
    arguments: Arguments,
    inference: Inference,
    problem: Problem,
    X: np.ndarray,
    y: np.ndarray,
    meter: Meter,
    validation: tuple[Any, Any] | None,
    checkpoint: str | PathLike[str] | None,
) -> Fitted:
    """Fit rows that have been checked, and show the progress."""
    estimator, likelihood = arguments.estimator, arguments.likelihood
    generator = generator_from(estimator.random_state)
    transform: TargetTransform = NoTransform()
    if estimator.target_transform != "none":
        # The fit's own numbers are left as they are: "auto" that finds none gives the bits of "none".
        own = spawn(generator.clone_state())
        transform = learn_transform(estimator, X, y.reshape(-1), arguments.mean, arguments.budget, own)
        problem = Problem.of(arguments, X, transform.forward(y))
    scaling, table = problem.scaling, problem.table()
    objective, model = student_fit.begin(arguments, inference, table, problem.model, generator)
    require_time(objective, inference, arguments.deadline)
    validation = encoded_validation(fitted_encoder(estimator), validation)
    validate = None if validation is None else validation_scorer(validation, scaling, table, transform)

    def learn(start: Model) -> tuple[Posterior, History]:
        trace = Trace(History(), meter, validate)
        seed, deadline = spawn(generator), arguments.deadline
        found = learn_posterior(objective, start, arguments.optimizer, trace, seed, deadline)
        return _supported(arguments, objective, found, start, trace.history).posterior, trace.history

    if not likelihood.is_scale_mixture and kernel_rules.averages(estimator.kernel, inference, table, checkpoint):
        mixture, history, averaged = kernel_rules.average(
            objective, model, inference, learn, arguments.deadline, checkpoint
        )
        return Fitted(mixture, scaling, history, inference, arguments.optimizer, None, transform, averaged)
    model, choice = kernel_rules.pick(estimator.kernel, objective, model, inference, arguments.optimizer, generator)
    trace, begun = Trace(History(), meter, validate), BegunFit(objective, model, scaling, logs_steps=True)
    if checkpoint is not None:
        trace.log = open_checkpoint(checkpoint, estimator, arguments.optimizer, objective, model)
    fitted = _finish(arguments, inference, begun, trace, generator, checkpoint)
    posterior = fitted.posterior
    if not fitted.history.interrupted:
        posterior = student_fit.end(arguments, objective, posterior, generator)
    found = _supported(arguments, objective, posterior, model, fitted.history)
    fitted = fitted._replace(transform=transform, choice=choice)
    return fitted._replace(posterior=found.posterior, note=found.note)


def _supported(
    arguments: Arguments, objective: TableObjective, posterior: Posterior, start: Model, history: History
) -> noise_support.Supported:
    """Return the posterior with as much noise as left-out rows support, unless the fit was interrupted."""
    found = noise_support.Supported(posterior)
    if isinstance(arguments.likelihood, Gaussian) and arguments.optimizer is not None and not history.interrupted:
        generator = torch.Generator().manual_seed(0)
        with _afterwards(history, arguments.deadline):
            found = noise_support.supported(objective, posterior, start, arguments.optimizer, generator)
    return found


def fit_source(
    estimator: Estimator,
    open_rows: Callable[[Mean], RowSource],
    bounds: tuple[Any, Any] | None = None,
    checkpoint: str | PathLike[str] | None = None,
) -> tuple[Fitted, RowSource]:
    """Fit rows that are not held in memory.

    Parameters
    ----------
    estimator : Estimator
        Estimator whose arguments are used.
    open_rows : callable
        Function that returns the source of rows for a mean function; called after the arguments have been checked.
    bounds, checkpoint
        The same as for `GPRegressor.fit_table`.

    Returns
    -------
    fitted : Fitted
        Result of the fit.
    rows : RowSource
        Source that ``open_rows`` has returned.

    Raises
    ------
    InvalidInputError
        If an argument or a row is invalid; the message names the file and the row.
    MemoryBudgetError
        If the fit exceeds the memory budget.
    """
    arguments = Arguments.of(estimator)
    refuse_streams(estimator)
    likelihood, optimizer = arguments.likelihood, arguments.optimizer
    if isinstance(estimator.likelihood, str) and estimator.likelihood == AUTO:
        msg = 'likelihood of GPRegressor for fit_table must be given; "auto" compares rows that are held. Use fit.'
        raise InvalidInputError(msg)
    inference = resolve_streaming(estimator.inference, likelihood)
    if processes.current() is not None:
        inference = inference.in_processes()
    if student_fit.is_weighted(inference, likelihood):
        msg = (
            "inference of GPRegressor for fit_table with Student-t noise must be inference.Vecchia, because other "
            f"methods weight rows that are held; got {inference!r}. Or use fit."
        )
        raise InvalidInputError(msg)
    arguments.check_for(inference, streams=True)
    bounds = inference.check_bounds(bounds)
    if isinstance(optimizer, SubsetStart) and not inference.abilities.holds_rows:
        msg = "optimization.SubsetStart needs the rows, which fit_table does not hold. Use fit, or another optimizer."
        raise InvalidInputError(msg)
    if np.ndim(estimator.noise_variance):
        msg = "noise_variance of GPRegressor must be one number, or None, for fit_table; got one for each row."
        raise InvalidInputError(msg)
    require_transformable(estimator, arguments.mean, likelihood, streams=True)
    rows = open_rows(arguments.mean)
    if checkpoint is not None and not rows.has_files:
        msg = "checkpoint of fit_table needs a file or a folder as its source, so that reading can resume; got rows."
        raise InvalidInputError(msg)
    if checkpoint is not None:
        check_folder(checkpoint)
    start = start_model(estimator, arguments.mean, 1, rows.n_targets)
    inference.check_model(start.bound(rows.n_inputs))
    warn_of_shares(estimator, start.bound(rows.n_inputs), rows.n_targets)
    generator, meter = generator_from(estimator.random_state), meter_for(estimator.verbose, job="fit of a table")
    trace, own, early = Trace(History(), meter), spawn(generator), torch.Generator().manual_seed(0)

    def learn(objective: TableObjective, model: Model) -> Model:
        """Learn from few rows alone, which is enough to choose the resolution of a grid."""
        settings = optimizer if isinstance(optimizer, Auto) else Auto()
        return replace(settings, polish_steps=0).run(objective, model, trace, early)

    with ExitStack() as resources:
        job = StreamJob(
            rows,
            start,
            estimator.standardize,
            arguments.budget,
            bounds,
            None if checkpoint is None else Path(checkpoint),
            None if optimizer is None else learn,
            meter,
            likelihood,
            arguments.dtype,
            arguments.device,
            resources,
        )
        resources.enter_context(meter)
        begun = inference.stream(job, own)
        if checkpoint is not None and begun.logs_steps:
            extra = {"source": rows.identity, "rows": begun.objective.n_rows}
            trace.log = open_checkpoint(checkpoint, estimator, optimizer, begun.objective, begun.model, extra)
        try:
            fitted = _finish(arguments, inference, begun, trace, generator, checkpoint)
        except UnreadableRowsError as error:
            if trace.log is not None and not isinstance(begun.objective, SampledObjective):  # which has written its own
                trace.log.write()
            raise UnreadableRowsError(f"{error} {_what_next(rows, checkpoint)}".rstrip()) from error
    sample = begun.objective.table
    with _afterwards(fitted.history):
        if not (_watches(arguments) and _warns_of_sample(sample, begun.scaling, fitted.posterior)):
            some = torch.arange(sample.n_rows)[flat_fits.evenly(sample.n_rows)]
            _warn_if_flat(arguments, lambda: sample.take_rows(some), fitted.posterior)
    return fitted, rows


def _warns_of_sample(sample: TrainingTable, scaling: Scaling, posterior: Posterior) -> bool:
    """Warn of far targets among streamed rows that a fit holds; return whether they are what the targets vary by."""

    def example(row: int, column: int) -> str:
        x, y = sample.X[[row]].double().cpu().numpy(), sample.Y[[row]].double().cpu().numpy()
        value = (scaling.original(y) + sample.mean.offset(x * scaling.x_scale + scaling.x_centre)[:, None])[0, column]
        return f"{value:.3g}, among the rows that were looked at"

    Y = sample.Y.double().cpu().numpy()
    warned = far_targets.warns_before(Y, example)
    if not warned:
        far_targets.warn_after(lambda: sample, Y, posterior, example)
    return warned


def _finish(
    arguments: Arguments,
    inference: Inference,
    begun: BegunFit,
    trace: Trace,
    generator: torch.Generator,
    checkpoint: str | PathLike[str] | None,
) -> Fitted:
    """Learn, solve for the posterior, and remove the checkpoint unless learning was interrupted."""
    optimizer, deadline = arguments.optimizer, arguments.deadline
    with kept_in(None if trace.log is None else trace.log.solves):
        posterior = learn_posterior(begun.objective, begun.model, optimizer, trace, generator, deadline)
    ended_early = trace.history.interrupted in ("learning", "time budget")
    if isinstance(arguments.likelihood, Gaussian):
        warn_of_certainty(begun.objective, posterior, ended_early=ended_early)
    if checkpoint is not None and not ended_early and not arguments.keeps_checkpoint:
        if trace.log is not None:
            trace.log.remove()
        else:  # the state of a pass over the rows
            Path(checkpoint).unlink(missing_ok=True)
    plan = None
    if isinstance(begun.objective, AutomaticObjective):
        inference, plan = begun.objective.inference, begun.objective.plan
    return Fitted(posterior, begun.scaling, trace.history, inference, arguments.optimizer, plan)


def _what_next(rows: RowSource, checkpoint: str | PathLike[str] | None) -> str:
    """Return advice for the case that rows cannot be read in the middle of a fit."""
    if checkpoint is not None and Path(checkpoint).exists():
        return f"What has been learned is kept in {checkpoint}: mend the file, and the same call goes on from there."
    if checkpoint is not None:
        return "Nothing had been learned yet: mend the file, and make the same call."
    return "Give fit_table a checkpoint, and a later call goes on from there." if rows.has_files else ""


# Learn hyperparameters and solve for the posterior, to the end or until Ctrl-C or a deadline ends the learning --------


#: Largest number of rows at which the posterior is checked at the end of a fit.
_CHECKED_ROWS = 256


def learn_posterior(
    objective: TableObjective,
    model: Model,
    optimizer: Any,
    trace: Trace,
    generator: torch.Generator,
    deadline: float = math.inf,
) -> Posterior:
    """Return the posterior at the hyperparameters found by the optimizer; None keeps those of the model.

    The first Ctrl-C ends learning at the best hyperparameters so far and sets ``trace.history.interrupted``. The last
    solve is never interrupted by it, because predictions depend on that solve. A deadline ends the learning in time
    for the last solve.
    """
    # Ctrl-C does not come to all processes at once, so that it ends a distributed fit as it ends other programs.
    with interruptible(deadline, handles=processes.current() is None) as interruption:
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
        finite_means(posterior.mean(X))
        posterior.check_variances(X)
        trace.history.gap = posterior.gap()
        trace.meter.step()
    if interruption.requested:  # checked after the block, so that a signal at its end is not lost
        trace.history.interrupted = "learning" if interruption.cut else "last solve"
        trace.meter.remark("Ctrl-C ended the learning")
    elif interruption.cut:
        trace.history.interrupted = "time budget"
        trace.meter.remark("the time budget ended the learning")
    return posterior


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
