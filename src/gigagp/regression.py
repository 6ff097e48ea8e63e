"""`GPRegressor`: the scikit-learn estimator for regression."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Annotated, Any, Literal, Self

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from gigagp.errors import InvalidInputError
from gigagp.estimators.answers.answers import UncertaintyParts
from gigagp.estimators.arguments import Arguments
from gigagp.estimators.choices.kernel_choice import KernelRule
from gigagp.estimators.fitting import checkpoints_of, fit_outputs, fit_rows, fit_source, plan_rows
from gigagp.estimators.further_rows import FurtherRows
from gigagp.estimators.guard import guarded, scored, warn_of_interruption, whole_or_unchanged
from gigagp.estimators.planning import InferenceChoice, OutputsChoice, resolve_outputs
from gigagp.inference.automatic.plan import Plan
from gigagp.kernels import Kernel
from gigagp.kernels.stationary import rows_check
from gigagp.model.likelihoods import Likelihood
from gigagp.model.means import Mean, MeanLike
from gigagp.model.model import HyperparameterUnits
from gigagp.model.target_transform import TargetTransformName
from gigagp.runtime import processes
from gigagp.runtime.progress import Verbosity
from gigagp.settings.fields import Count, Positive, Words, checks_arguments
from gigagp.settings.random import RandomState
from gigagp.tables import intake
from gigagp.tables.encoding import Encode, model_inputs
from gigagp.tables.rows.source import RowSource

__all__ = ["GPRegressor", "OptimizerChoice", "UncertaintyParts"]

#: Optimizer argument of the estimators; `gigagp.optimization.optimizer.check_optimizer` states the requirements.
OptimizerChoice = Any


class GPRegressor(MultiOutputMixin, RegressorMixin, FurtherRows):
    """Gaussian-process regression.

    Parameters
    ----------
    kernel : Kernel, "auto", "average", "choose" or None, default None
        Kernel of the prior, whose values are the start of learning. None: ``kernels.Matern(nu=1.5)`` with one
        lengthscale per input. ``"average"`` mixes the exact posteriors of several kernels, ``"choose"`` takes one by
        the evidence of a subset, and ``"auto"`` averages up to 2,000 rows and chooses beyond
        (`gigagp.estimators.choices.kernel_rules`).
    inference : one of `gigagp.inference` or "auto", default "auto"
        Inference method. ``"auto"`` is exact inference up to 3,000 rows if the memory allows. Beyond, nearest
        neighbours learn, and `inference.Iterative` or `inference.Vecchia` ends the fit, as a forecast says (`plan`).
    optimizer : one of `gigagp.optimization`, an `optimization.Optimizer` of your own, "auto" or None, default "auto"
        Optimizer of the hyperparameters. None keeps the values of the kernel and ``noise_variance``.
    mean : {"zero", "constant", "linear"} or callable, default "constant"
        Mean function. The coefficients of ``"constant"`` and ``"linear"`` are estimated by generalised least squares. A
        callable is a fixed function of ``X``, shape (n, d), in its own units, and returns values in the target's units,
        shape (n,). For a likelihood of counts or signs, the latent mean is zero; add `kernels.Constant` or
        `kernels.Linear` to the kernel instead.
    noise_variance : float, array-like of shape (n,) or None, default None
        Noise variance in squared units of ``y``. A float is the start of learning; None starts at 0.09 of the target's
        variance. An array is the known variance of each row, which is not learned. With a `kernels.White` term in the
        kernel, None means 0, because that term represents all of the noise.
    standardize : bool, default True
        Whether to learn on centred and scaled inputs and targets. Hyperparameters are given and read in the data's own
        units in any case; `describe` prints both. An input is scaled by its standard deviation; where few rows lie far
        from all others (-9999 for a missing number), by the spread of the others.
    dtype : {"float64", "float32", "mixed"}, default "float64"
        Precision of kernel products; small factors are always float64. ``"mixed"`` is float64 with float32 products
        inside iterative solvers, which are corrected with float64 residuals: the results are the same, for half of the
        time and memory. Methods without such solves refuse it; ``"auto"`` accepts it, and uses float64 on small tables.
        ``"float32"`` is the same for `inference.Iterative`. With too little noise for float32, solves and exact factors
        take float64 and warn. `inference.Grid` supports only float64.
    device : str, default "auto"
        Device of the computations. ``"auto"``: CUDA if there is such a device, otherwise the CPU. `inference.Grid` runs
        only on the CPU.
    memory_budget : int, str or None, default None
        Memory that fits and predictions may use, in bytes or as a string such as ``"4GiB"``. None: half of the free
        memory.
    verbose : {"auto", 0, 1, 2} or Meter, default "auto"
        ``"auto"``: one bar for a fit that takes more than ten seconds, on a terminal or in a notebook only. 0: silent.
        1: the bar, or lines in a log. 2: a line for every step (`gigagp.runtime.progress.meter_for`).
    random_state : int, RandomState, Generator or None, default 0
        Seed of probe vectors, features and subsets. The same seed gives the same bits on the same machine; on CUDA,
        where the engine is chosen by its speed, two runs may differ in rounding.
    likelihood : {"gaussian", "student-t", "auto", "laplace", "poisson"} or Likelihood, default "gaussian"
        Distribution of a target given the latent function (`gigagp.likelihoods`). Student-t noise is robust to gross
        outliers; its degrees of freedom are learned, or given by ``likelihoods.StudentT(df=4.0)``. ``"auto"`` chooses
        between it and Gaussian noise by the likelihood of up to 500 rows. Laplace noise and Poisson counts, whose rate
        is ``exp(f)``, need ``inference.QuadruplyStochastic``, which ``inference="auto"`` then selects, or
        ``inference.Vecchia``.
    hyperparameter_units : {"own", "standardized"}, default "own"
        Units of the kernel's hyperparameters and of the noise variance, given and read. ``"own"``: lengthscales,
        periods and bounds are in the units of the inputs, and variances in squared units of the target. Targets that
        share hyperparameters are scaled separately, and variances are then shares of the variance of each.
        ``"standardized"``: units of the standardized problem, in standard deviations, as in papers and in models of
        earlier versions.
    time_budget : float, str or None, default None
        Time that `fit` may take, in seconds or as a string such as ``"90s"``, ``"10min"`` or ``"1.5h"``. Learning ends
        in time for the last solve, and ``inference="auto"`` chooses what fits. `describe` says what was left undone.
        ``inference.Exact``, ``inference.Iterative`` and ``inference.SparseVariational`` refuse a budget that is far too
        short for them before the work.
        A fit with a budget depends on the speed of the machine. None: no limit.
    target_transform : {"none", "log", "yeo-johnson", "spline", "auto"}, default "none"
        Increasing transform g of a target that is skewed or has heavy tails: ``g(y)`` is the Gaussian process. Its
        parameters are learned by the likelihood of up to 1,000 rows; ``"auto"`` also chooses among the transforms and
        none, by a margin. Answers are in the target's units; ``noise_variance`` and the variances of the kernel are in
        squared units of ``g(y)``. It requires Gaussian noise. The documentation has a page on it.
    encode : {"strict", "auto"}, default "strict"
        ``"strict"`` refuses all cells that are not numbers. ``"auto"`` turns texts, categories, truth values, dates and
        missing cells into numbers in `fit`, and in the same way afterwards (`gigagp.tables.encoding.TableEncoder`).
        Columns of ``kernel`` are then those of the table.
    distributed : bool, default False
        Whether a fit shares its large computations with the other processes of the default group of
        ``torch.distributed``, all of which make the same call with the same rows and get the same model (the
        documentation has a page on it). `fit_table` then takes `inference.Grid`, whose processes share the files.
    outputs : {"auto", "independent", "shared"}, default "auto"
        Hyperparameters of several targets. ``"independent"``: each target has its own, and everything is as in a fit of
        it alone, for as many times the time. ``"shared"``: one kernel and one noise variance for all, as shares of each
        target's variance, for the time of about one fit; targets of unlike shape then get wrong error bars. ``"auto"``:
        independent for up to 50 targets and 20,000 rows times targets, and shared beyond and in `fit_table`.

    Attributes
    ----------
    outputs_ : {"independent", "shared"}
        Whether several targets share hyperparameters.
    estimators_ : tuple of GPRegressor
        A fitted estimator for each target that has hyperparameters of its own. Of several such targets, the attributes
        below, up to ``target_transform_``, are tuples with one item for each.
    kernel_ : Kernel
        Kernel with the learned hyperparameters.
    kernel_choice_ : KernelChoice or None
        Kernels that a rule for ``kernel`` has tried, with gains and weights; ``kernel_`` is that of the heaviest.
    noise_variance_ : float or ndarray of shape (n,)
        Noise variance, learned or as given.
    likelihood_ : Likelihood
        Likelihood of the fit; for Student-t noise with the learned degrees of freedom.
    noise_weights_ : ndarray of shape (n,)
        Weights of the rows for Student-t noise. Rows below 0.1 are outliers.
    history_ : History
        One record for each optimization step.
    inference_ : one of `gigagp.inference`
        Inference method that ran.
    optimizer_ : object or None
        Optimizer that ran.
    solver_ : str or Solver
        Solver that ran: ``"cholesky"``, an iterative solver, or the method in words.
    engine_ : str
        Engine of the kernel products, with its device, precision and storage.
    posterior_ : Posterior
        Posterior in the units of the standardized problem.
    scaling_ : Scaling
        Transformation between the data's own units and those of the standardized problem.
    target_transform_ : TargetTransform
        Transform of the target, with its learned parameters.
    encoder_ : TableEncoder
        What happens to each column, if ``encode="auto"``.
    n_features_in_ : int
        Number of inputs.
    feature_names_in_ : ndarray
        Names of the inputs, if ``X`` had names.

    See Also
    --------
    gigagp.load : Read a saved model.

    Examples
    --------
    >>> import numpy as np
    >>> from gigagp import GPRegressor
    >>> X = np.linspace(0, 6, 60)[:, None]
    >>> gp = GPRegressor().fit(X, np.sin(X[:, 0]))
    >>> mean, std = gp.predict(X[:2], return_std=True)
    >>> bool(abs(mean[0]) < 0.05)
    True
    """

    def __init__(
        self,
        kernel: Kernel | KernelRule | None = None,
        inference: InferenceChoice = "auto",
        optimizer: OptimizerChoice = "auto",
        mean: MeanLike = "constant",
        noise_variance: Any = None,
        standardize: bool = True,
        dtype: Literal["float64", "float32", "mixed"] = "float64",
        device: str = "auto",
        memory_budget: Positive | str | None = None,
        verbose: Verbosity = "auto",
        random_state: RandomState = 0,
        likelihood: str | Likelihood = "gaussian",
        hyperparameter_units: HyperparameterUnits = "own",
        time_budget: Positive | str | None = None,
        target_transform: TargetTransformName = "none",
        encode: Encode = "strict",
        distributed: bool = False,
        outputs: OutputsChoice = "auto",
    ) -> None:
        self.kernel = kernel
        self.inference = inference
        self.optimizer = optimizer
        self.mean = mean
        self.noise_variance = noise_variance
        self.standardize = standardize
        self.dtype = dtype
        self.device = device
        self.memory_budget = memory_budget
        self.verbose = verbose
        self.random_state = random_state
        self.likelihood = likelihood
        self.hyperparameter_units = hyperparameter_units
        self.time_budget = time_budget
        self.target_transform = target_transform
        self.encode = encode
        self.distributed = distributed
        self.outputs = outputs

    # ------------------------------------------------------------------ fitting

    @checks_arguments
    def fit(
        self,
        X: Any,
        y: Any,
        validation: Annotated[tuple[Any, Any], Words("a pair (X, y)")] | None = None,
        checkpoint: str | PathLike[str] | None = None,
    ) -> Self:
        """Learn the hyperparameters and compute the posterior.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n,) or (n, n_targets)
            Targets. Each of several has hyperparameters of its own, unless ``outputs`` says otherwise.
        validation : (X, y) or None, default None
            Rows to score at every step that uses all rows; nothing is learned from them. The scores are in
            ``history_`` (`gigagp.optimization.Step`). It requires targets with Gaussian noise. Scores use the posterior
            that a step has available. With `inference.Grid`, and with a truncation or a different predictor of
            `inference.RandomFeatures`, each score costs as much as the posterior at the end of a fit.
        checkpoint : str, path or None, default None
            File for the state of the fit while it runs (`gigagp.estimators.checkpoint`). After a kill, the same call
            continues from it and returns the same bits. A long solve by conjugate gradients keeps its last iteration
            beside it, in a file with ``.solve`` added to the name. The files are removed at the end. Targets that are
            fitted one by one have a file each, with ``.0``, ``.1`` and so on added to the name.

        Returns
        -------
        GPRegressor
            The estimator itself.

        Raises
        ------
        InvalidInputError
            If an argument or the data are invalid; raised before any work.
        MemoryBudgetError
            If the fit exceeds the memory budget or the memory of the machine.

        Warns
        -----
        FitInterruptedWarning
            After Ctrl-C. The first one ends learning at the best hyperparameters so far, and the checkpoint is kept. If
            nothing has been learned yet of a target, or at the second one, the fit ends and the estimator remains as it
            was.
            `gigagp.runtime.interruption` has the details.
        FitWarning
            If learning stopped before its end; and, where Gaussian noise is learned, if few targets lie far from all
            others, or left-out rows too far from their predictions (`gigagp.estimators.fit_checks.noise_support`).
        """
        with whole_or_unchanged(self, checkpoint), processes.joined(self.distributed):
            self._fit(X, y, validation, checkpoint)
        last = self.estimators_[-1].history_  # others that Ctrl-C ends are no fit
        warn_of_interruption(last, checkpoints_of(checkpoint, len(self._models))[-1] if self._models else checkpoint)
        return self

    def plan(self, X: Any, y: Any) -> Plan | tuple[Plan, ...]:
        """Return what `fit` with ``inference="auto"`` would do, and what it is expected to bring and to cost.

        When to use: before a long fit. The hyperparameters are learned from neighbours, which takes seconds for any
        number of rows, and rows are predicted from the rows around them. Nothing of the estimator changes.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n,) or (n, n_targets)
            Targets.

        Returns
        -------
        Plan, or a tuple of them for outputs that are fitted one by one
            Options with seconds, the expected negative log density in nats and root mean square error of a new target
            in the data's units, and the chosen one. Printed, it is a table.

        Raises
        ------
        InvalidInputError
            If an argument or the data are invalid, if the likelihood is not Gaussian, or if an inference is given.
        """
        with guarded():
            planned = copy.copy(self)  # whose names and encoder are set
            arguments = Arguments.of(planned)
            arguments.check_plan()
            X = model_inputs(planned, X, reset=True, min_rows=2)
            y = intake.targets(y, len(X))
            parts = y.T if self._fits_apart(y) else [y]
            found = [plan_rows(arguments, X, np.ascontiguousarray(part)) for part in parts]
        plans = tuple(plan.in_units(scaling.typical_y_scale) for plan, scaling in found)
        return plans if len(plans) > 1 else plans[0]

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
        """Learn from a table that is read in chunks.

        When to use: for tables in files, and for more rows than fit into memory or than `fit` can handle. The inference
        method must support streams. `inference.Grid`, the default for Gaussian noise, reads all rows once and holds
        none; it takes one to three inputs, or more with an additive kernel. `inference.QuadruplyStochastic`, the
        default for other log-concave likelihoods, takes any number of inputs and reads minibatches from random places.
        `inference.Vecchia` holds the numbers of all rows, since predictions need the rows near them, and returns what
        `fit` does: some three hundred bytes a row with two inputs. Where these do not fit the memory budget, it passes
        over the table a few times, learns from rows with their neighbours in all of it, and predicts from as many rows
        as fit, drawn at random.

        Parameters
        ----------
        source : str, path, data frame, pair of arrays, callable or iterable
            A Parquet, CSV or NumPy file, or a folder of Parquet and CSV files; a pandas or pyarrow table; a pair
            ``(X, y)``; an iterable of pairs ``(X, y)`` with some rows each; or a callable that returns such an
            iterable and is called several times.
        target : str or sequence of str
            Column or columns to predict, for files and data frames. Several share kernel, noise and solves.
        inputs : sequence of str, optional
            Columns to predict from, for files and data frames. None: all other columns.
        bounds : (lower, upper), optional
            Smallest and largest value of each input, for `inference.Grid`. They are required for a generator, which can
            be read only once; otherwise they save the pass that determines them (most Parquet files have them in their
            metadata).
        checkpoint : str, path or None, default None
            File for the sums, or for the learned parameters, while the fit runs; the source must be files. After an
            error (such as a damaged file in a folder) or a kill, the same call continues from it. The file is removed
            at the end.
        chunk_rows : int
            Largest number of rows to read at a time.
        header : bool, optional
            Whether the first line of CSV files contains the names. None: detected.

        Returns
        -------
        GPRegressor
            The estimator itself.

        Raises
        ------
        InvalidInputError
            If an argument or a row is invalid; the message names the file and the row.
        MemoryBudgetError
            If the fit exceeds the memory budget or the memory of the machine.

        Warns
        -----
        FitInterruptedWarning
            After Ctrl-C, as for `GPRegressor.fit`. During a pass over the rows nothing is learned yet, so the fit ends.
        FitWarning
            If `inference.Vecchia` holds only a part of the rows.
        """

        def open_rows(mean: Mean) -> RowSource:
            check = rows_check(self.kernel)
            rows = RowSource(
                source, target, inputs, header=header, chunk_rows=chunk_rows, offset=mean.offset, check=check
            )
            if rows.n_targets > 1 and self.outputs == "independent":
                msg = (
                    f'outputs of GPRegressor must be "auto" or "shared" for fit_table, which reads {rows.n_targets} '
                    'targets together; got "independent". Or fit one target at a time.'
                )
                raise InvalidInputError(msg)
            return rows

        shared = self.distributed or getattr(self.inference, "distributed", False)
        with whole_or_unchanged(self, checkpoint), processes.joined(shared):
            self._fit_source(open_rows, bounds, checkpoint)
        warn_of_interruption(self.history_, checkpoint)
        return self

    def _fit(self, X: Any, y: Any, validation: tuple[Any, Any] | None, checkpoint: str | PathLike[str] | None) -> None:
        arguments = Arguments.of(self)
        X = model_inputs(self, X, reset=True, min_rows=2)
        y = intake.targets(y, len(X))
        if self._fits_apart(y):
            self._take_outputs(fit_outputs(arguments, X, y, validation, checkpoint))
        else:
            self._take(fit_rows(arguments, X, y, validation, checkpoint), one_target=y.ndim == 1)

    def _fits_apart(self, y: np.ndarray) -> bool:
        """Whether the targets are several outputs with hyperparameters of their own."""
        several = y.ndim == 2 and y.shape[1] > 1
        return several and resolve_outputs(self.outputs, *y.shape) == "independent"

    def _fit_source(self, open_rows: Callable[[Mean], RowSource], bounds: Any, checkpoint: Any) -> None:
        """Fit rows that are not held in memory, and set the names of their columns."""
        self.__dict__.pop("encoder_", None)  # of an earlier fit
        fitted, rows = fit_source(self, open_rows, bounds, checkpoint)
        self.n_features_in_ = rows.n_inputs
        if rows.input_names is not None:
            self.feature_names_in_ = np.array(rows.input_names, dtype=object)
        elif hasattr(self, "feature_names_in_"):  # of an earlier fit
            del self.feature_names_in_
        self._take(fitted, one_target=rows.n_targets == 1 and (rows.one_target or rows.labels is not None))

    def plot(self, X: Any = None, y: Any = None, **options: Any) -> Any:
        """Draw the picture that suits the fitted model, by the number of its inputs.

        A curve with bands of 50 and 95 % and the forecast apart; maps of mean and uncertainty; or relevance and partial
        dependence. It needs matplotlib (``pip install "gigagp[plot]"``).

        Parameters
        ----------
        X, y : array-like, optional
            Data points to draw. None: the rows of the fit, if the model keeps them.
        **options
            Arguments of `gigagp.plots.plot`, such as ``upper`` for a forecast, ``label`` or ``path``.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        InvalidInputError
            If matplotlib is not installed, or an argument is invalid.
        """
        check_is_fitted(self, "posterior_")
        from gigagp.plots import plot  # matplotlib is optional, and takes long to import

        return plot(self, X, y, **options)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True  # converted to dense arrays within the memory budget
        tags.requires_fit = self.encode == "auto"  # predictions before a fit are those of the prior
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = self.encode == "auto"
        return tags

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination of the predictions; see scikit-learn's `RegressorMixin.score`."""
        with scored():
            return float(super().score(X, intake.targets(y), sample_weight))
