"""`GPRegressor.fit_table` and `GPRegressor.partial_fit`: rows that are not held, and rows that come later."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, cast

import numpy as np
import torch
from sklearn.utils.metaestimators import available_if

from gigagp import intake
from gigagp.checkpoint import open_checkpoint
from gigagp.checks import resolve_device, resolve_dtype
from gigagp.effect import refuse_model, refuse_without_effect, resolve_bounds
from gigagp.errors import InvalidInputError, UnreadableRowsError
from gigagp.fields import Count, Words, check_parameters, checks_arguments
from gigagp.files import check_folder
from gigagp.inference import Grid
from gigagp.inference.grid.posterior import GridPosterior, in_units
from gigagp.inference.objective import TableObjective
from gigagp.inference.row_source import RowSource
from gigagp.inference.streaming import StreamJob
from gigagp.learning import learn_posterior, warn_of_interruption, whole_or_unchanged
from gigagp.likelihoods import resolve_likelihood
from gigagp.means import resolve_mean
from gigagp.memory import resolve_budget
from gigagp.model import Model
from gigagp.optimization import Auto, History, SubsetStart
from gigagp.optimization.trace import Trace
from gigagp.planning import resolve_streaming
from gigagp.progress import meter_for
from gigagp.random import generator_from, spawn

if TYPE_CHECKING:
    from gigagp.data.labels import Labels
    from gigagp.regression import GPRegressor


def _keeps_sums(estimator: GPRegressor) -> bool:
    """Whether there are sums that rows can be added to: what scikit-learn asks before it offers `partial_fit`."""
    used = getattr(estimator, "inference_", estimator.inference)
    if isinstance(used, Grid):
        return True
    msg = (
        "partial_fit of GPRegressor can add rows to a fit with inference.Grid alone, which keeps sums over rows; this "
        f"one is of inference {used!r}. Fit all rows again."
    )
    raise AttributeError(msg)


class StreamedFitting:
    """What `GPRegressor` does with rows that it never holds."""

    @checks_arguments
    def fit_table(
        self,
        source: Any,
        target: str | Sequence[str] | None = None,
        inputs: Sequence[str] | None = None,
        *,
        bounds: Annotated[tuple[Any, Any], Words("a pair (lower, upper)")] | None = None,
        checkpoint: str | PathLike[str] | None = None,
        chunk_rows: Count = 2**20,
        header: bool | None = None,
    ) -> Self:
        """Learn from a table that is read a chunk at a time and never held.

        When to use: more rows than fit into the memory, or than `fit` gets through. It needs an inference that can do
        it: `inference.Grid` (what ``"auto"`` is here), with one to three inputs (four at a price), which reads all rows
        once; or `inference.QuadruplyStochastic`, with any number of inputs, which takes minibatches from random places
        and is what ``"auto"`` is for other likelihoods.

        Parameters
        ----------
        source : str, path, data frame, pair of arrays, callable or iterable
            A Parquet, CSV or NumPy file, or a folder of Parquet and CSV files; a pandas or pyarrow table; ``(X, y)``;
            a callable that returns an iterable of ``(X, y)`` for some rows at a time, and is called several times; or
            such an iterable itself.
        target : str or sequence of str
            The column to predict, or several; for files and data frames.
        inputs : sequence of str, optional
            Columns to predict from, for files and data frames; None: all the others.
        bounds : (lower, upper), optional
            For `inference.Grid`: smallest and largest value of each input. A generator, which can be read only once,
            needs them; elsewhere they save the pass that looks for them (Parquet files usually have them in their
            metadata).
        checkpoint : str, path or None, default None
            A file that keeps what has been added up, or learned, for sources that are files. After an error (a damaged
            file in the middle of a folder) or a kill the same call goes on from there; the file is removed at the end.
        chunk_rows : int
            Most rows that are read at a time.
        header : bool, optional
            Whether the first line of CSV files has the names; None: found out.

        Returns
        -------
        GPRegressor
            Itself.

        Raises
        ------
        InvalidInputError
            For arguments or rows that cannot be used; the message names the file and the row.
        MemoryBudgetError
            If the job cannot fit the memory budget, or the machine has no more.

        Warns
        -----
        FitInterruptedWarning
            After Ctrl-C, as for `GPRegressor.fit`. In a pass over the rows nothing is learned yet, and it ends the fit.
        """
        estimator = cast("GPRegressor", self)
        options: dict[str, Any] = {"bounds": bounds, "checkpoint": checkpoint, "chunk_rows": chunk_rows}
        with whole_or_unchanged(self, checkpoint):
            fit_streamed(estimator, source, target, inputs, header=header, **options)
        warn_of_interruption(estimator.history_, checkpoint)
        return self

    @available_if(_keeps_sums)  # type: ignore[untyped-decorator]  # scikit-learn has no types
    def partial_fit(self, X: Any, y: Any) -> Self:
        """Take further rows into account, at the hyperparameters, the scaling and the grid that the fit has found.

        Only with `inference.Grid`; another estimator has no such method. The first call is `fit`; the cost of later
        ones does not depend on the rows before them.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Within the region of the grid.
        y : array-like of shape (n,) or (n, n_targets)

        Returns
        -------
        GPRegressor
            Itself.

        Raises
        ------
        InvalidInputError
            If a row cannot be used; then nothing is added.
        """
        estimator = cast("GPRegressor", self)
        if hasattr(estimator, "posterior_"):
            with whole_or_unchanged(self):
                _add_rows(estimator, X, y)
        else:
            estimator.fit(X, y)
        return self


def fit_streamed(
    estimator: GPRegressor,
    source: Any,
    target: str | Sequence[str] | None,
    inputs: Sequence[str] | None,
    *,
    bounds: tuple[Any, Any] | None = None,
    checkpoint: str | PathLike[str] | None,
    chunk_rows: int,
    header: bool | None,
    labels: Labels | None = None,
) -> None:
    """Fit an estimator to a source of rows; arguments as those of `GPRegressor.fit_table`.

    With ``labels`` the target is a column of them, and the estimator learns their signs; the classes are found out.
    """
    check_parameters(estimator)
    dtype, device = resolve_dtype(estimator.dtype), resolve_device(estimator.device)
    budget = resolve_budget(estimator.memory_budget, device)
    mean, likelihood = resolve_mean(estimator.mean), resolve_likelihood(estimator.likelihood)
    inference = resolve_streaming(estimator.inference, likelihood)
    optimizer = estimator._resolve_optimizer()
    refuse_without_effect(estimator, inference, likelihood)
    bounds = resolve_bounds(bounds, inference)
    if isinstance(optimizer, SubsetStart):
        msg = "optimization.SubsetStart needs the rows, which fit_table does not hold. Use fit, or another optimizer."
        raise InvalidInputError(msg)
    if np.ndim(estimator.noise_variance):
        msg = "noise_variance of GPRegressor must be one number, or None, for fit_table; got one for each row."
        raise InvalidInputError(msg)
    generator, meter = generator_from(estimator.random_state), meter_for(estimator.verbose)
    rows = RowSource(source, target, inputs, header=header, chunk_rows=chunk_rows, mean=mean, labels=labels)
    if checkpoint is not None and not rows.has_files:
        msg = "checkpoint of fit_table needs a file or a folder as its source, so that reading can go on; got rows."
        raise InvalidInputError(msg)
    if checkpoint is not None:
        check_folder(checkpoint)
    start = estimator._start_model(mean, 1, rows.n_targets)
    refuse_model(inference, start.bound(rows.n_inputs))
    history = History()
    trace, own, early = Trace(history, meter), spawn(generator), torch.Generator().manual_seed(0)

    def learn(objective: TableObjective, start: Model) -> Model:
        """Learn from few rows alone: enough to say how fine things are."""
        settings = optimizer if isinstance(optimizer, Auto) else Auto()
        return replace(settings, polish_steps=0).run(objective, start, trace, early)

    with ExitStack() as resources:
        job = StreamJob(
            rows,
            start,
            estimator.standardize,
            budget,
            bounds,
            None if checkpoint is None else Path(checkpoint),
            None if optimizer is None else learn,
            meter,
            likelihood,
            dtype,
            device,
            resources,
        )
        resources.enter_context(meter)
        found = inference.stream(job, own)
        if checkpoint is not None and found.logs_steps:
            extra = {"source": rows.identity, "rows": found.objective.n_rows}
            trace.log = open_checkpoint(checkpoint, estimator, found.objective, found.model, extra)
        try:
            posterior = learn_posterior(found.objective, found.model, optimizer, trace, generator)
        except UnreadableRowsError as error:
            raise UnreadableRowsError(f"{error} {_what_next(rows, checkpoint)}".rstrip()) from error
    if checkpoint is not None and history.interrupted != "learning":
        Path(checkpoint).unlink(missing_ok=True)
    estimator.n_features_in_ = rows.n_inputs
    if rows.input_names is not None:
        estimator.feature_names_in_ = np.array(rows.input_names, dtype=object)
    elif hasattr(estimator, "feature_names_in_"):  # of an earlier fit
        del estimator.feature_names_in_
    estimator._one_target = rows.n_targets == 1 and (rows.one_target or labels is not None)
    estimator.inference_ = cast("Any", inference)
    estimator.optimizer_ = optimizer
    estimator._adopt(posterior, found.scaling, history)


def _what_next(rows: RowSource, checkpoint: str | PathLike[str] | None) -> str:
    """Return what can be done after rows could not be read in the middle of a fit."""
    if checkpoint is not None and Path(checkpoint).exists():
        return f"What has been learned is kept in {checkpoint}: mend the file, and the same call goes on from there."
    if checkpoint is not None:
        return "Nothing had been learned yet: mend the file, and make the same call."
    return "Give fit_table a checkpoint, and a later call goes on from there." if rows.has_files else ""


def _add_rows(estimator: GPRegressor, X: Any, y: Any) -> None:
    """Add rows to what a fitted estimator knows, at its hyperparameters; see `GPRegressor.partial_fit`."""
    names = getattr(estimator, "feature_names_in_", None)
    X = intake.estimator_inputs(estimator, X, reset=False)
    y = intake.targets(y, len(X))
    posterior, scaling = estimator.posterior_, estimator.scaling_
    assert isinstance(posterior, GridPosterior), "only inference.Grid offers partial_fit"
    targets = y if y.ndim == 2 else y[:, None]
    if targets.shape[1] != posterior.n_targets:
        msg = f"y of partial_fit must have {posterior.n_targets} target(s), as the fit had; got {targets.shape[1]}."
        raise InvalidInputError(msg)
    inside = posterior.grid.covers(torch.from_numpy(scaling.inputs(X)))
    if not bool(inside.all()):
        raise in_units(posterior.grid, scaling).refusal(torch.tensor(X), inside, names=names)
    targets = targets - posterior.model.mean.offset(X)[:, None]
    statistics = posterior.statistics.add_rows(scaling.inputs(X), scaling.targets(targets))
    estimator._adopt(posterior.with_statistics(statistics), scaling)
