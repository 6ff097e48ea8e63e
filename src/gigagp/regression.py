"""`GPRegressor`: the scikit-learn estimator for regression."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.estimators import regression_fit
from gigagp.estimators.answers.answering import (
    answering,
    joint_answering,
    left_out,
    predictor_of,
    predictor_of_rows,
    sampled_functions,
)
from gigagp.estimators.answers.averages import averages
from gigagp.estimators.answers.correlated import Stacking
from gigagp.estimators.answers.group_effects import GroupEffects, effects_of_groups
from gigagp.estimators.answers.joint_posterior import JointPosterior
from gigagp.estimators.answers.left_out import LeaveOneOut
from gigagp.estimators.answers.outputs import by_output, each_output
from gigagp.estimators.answers.predictor import UncertaintyParts, probabilities
from gigagp.estimators.answers.target_posterior import TargetPosterior
from gigagp.estimators.area_fit import fit_areas
from gigagp.estimators.attributes import take, take_outputs
from gigagp.estimators.base import GaussianProcess
from gigagp.estimators.choices.kernel_choice import KernelChoice, KernelRule
from gigagp.estimators.choices.open_hyperparameters import Hyperparameters
from gigagp.estimators.choices.varying_noise import NoiseRule
from gigagp.estimators.description import describe
from gigagp.estimators.further_rows import adds_rows, grow
from gigagp.estimators.guard import guarded, scored, warn_of_interruption, whole_or_unchanged
from gigagp.estimators.planning import InferenceChoice, OutputsChoice
from gigagp.estimators.saving.fitted_state import fitted_to_state, joined_states
from gigagp.estimators.saving.restored_state import state_to_fitted, states_of
from gigagp.inference import Inference
from gigagp.inference.automatic.plan import Plan
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.exact.mixture_posterior import MixturePosterior
from gigagp.kernels import Chosen, Kernel
from gigagp.kernels.group import GroupsLike
from gigagp.model.estimate import Estimate
from gigagp.model.likelihoods import Likelihood, StudentT, resolve_likelihood
from gigagp.model.means import MeanLike
from gigagp.model.model import HyperparameterUnits
from gigagp.model.scaling import Scaling
from gigagp.model.target_transform import TargetTransform, TargetTransformName
from gigagp.optimization import History
from gigagp.runtime import processes
from gigagp.runtime.progress import Verbosity
from gigagp.settings.custom import Custom
from gigagp.settings.fields import Count, Positive, Words, checks_arguments
from gigagp.settings.random import RandomState
from gigagp.tables.beside import known_targets, measured_targets
from gigagp.tables.encoding import Encode, Panel, fitted_encoder
from gigagp.tables.rows.source import RowSource

__all__ = ["GPRegressor", "OptimizerChoice", "UncertaintyParts"]

#: Optimizer argument of the estimators; `gigagp.optimization.optimizer.check_optimizer` states the requirements.
OptimizerChoice = Any


class GPRegressor(MultiOutputMixin, RegressorMixin, GaussianProcess):
    """Gaussian-process regression.

    Parameters
    ----------
    kernel : Kernel, "auto", "average", "choose", `kernels.Chosen` or None, default None
        Kernel of the prior; learning starts from its values. ``"average"`` averages the posteriors of several kernels.
        ``"choose"`` selects one kernel, by the evidence of up to 2,000 rows. ``"auto"`` averages up to 2,000 rows, in
        about three times the time of one kernel, and chooses above that. None is ``"auto"`` where the default optimizer
        learns Gaussian noise and the choice is cheap compared with the fit. Otherwise it is ``kernels.Matern(nu=1.5)``
        with one lengthscale per input. For counts with one input, a period that their spectrum shows is compared with
        that kernel, and used if it is better.
    inference : one of `gigagp.inference` or "auto", default "auto"
        Inference method. ``"auto"`` is exact inference up to 3,000 rows if the memory allows, and `inference.Markov`
        for more than 1,000 rows of one input if you give a kernel with a state-space form. More rows of a panel that
        has a complete part are predicted from it by `inference.Curves`. With other tables of more rows, the
        hyperparameters are first learned from nearest neighbours. A forecast of time and error (`plan`) then decides
        which method makes the final fit, mostly `inference.Iterative` or `inference.Vecchia`.
    optimizer : one of `gigagp.optimization`, your own `optimization.Optimizer`, "auto" or None, default "auto"
        Optimizer of the hyperparameters. None keeps the values of the kernel and ``noise_variance``.
    mean : {"zero", "constant", "linear"} or callable, default "constant"
        Mean function. The coefficients of ``"constant"`` and ``"linear"`` are estimated by generalised least squares. A
        callable is a fixed function of ``X``, shape (n, d), in its own units, and returns values in the target's units,
        shape (n,). With ``standardize=True`` the average residual of the targets is added to a callable and to
        ``"zero"``; with ``standardize=False`` nothing is added. With ``likelihood="logistic"`` and ``"probit"``, and
        with ``"poisson"`` without an exposure, the mean of the latent function is zero: add `kernels.Constant` or
        `kernels.Linear` to the kernel instead. With all other likelihoods, this is the mean of the latent function.
    noise_variance : float, array-like of shape (n,) or None, default None
        Noise variance in squared units of ``y``. A float is the initial value for learning; None starts at 0.09 of the
        target's variance. An array is the known variance of each row, which is not learned. With a `kernels.White` term
        in the kernel, None means 0, because that term represents all the noise.
    standardize : bool, default True
        Whether to learn on centred and scaled inputs and targets. Hyperparameters are in the data's own units in any
        case; `describe` prints both. An input is scaled by its standard deviation, or by the spread of most rows if a
        few lie far from all others (such as -9999 for a missing number).
    dtype : {"float64", "float32", "mixed"}, default "float64"
        Precision of kernel products; small factors are always float64. ``"mixed"`` is float64 with float32 products
        inside iterative solvers, which are corrected with float64 residuals: the results are the same, for half the
        time and memory. Methods without such solves refuse it; ``"auto"`` accepts it, and uses float64 on small tables.
        On a GPU ``inference="auto"`` uses such products automatically where a forecast says that they are faster, and
        `describe` says so. ``"float32"`` means the same for `inference.Iterative`. If the noise is too small for
        float32, solves and exact factors use float64, with a warning. `inference.Grid` supports only float64.
    device : str, default "auto"
        Device of the computations. ``"auto"``: CUDA if there is such a device and 10,000 rows or more, otherwise the
        CPU. `inference.Vecchia`, `inference.Markov`, `inference.Curves` and `inference.Grid` run on the CPU.
    memory_budget : int, str or None, default None
        Memory that fits and predictions may use, in bytes or as a string such as ``"4GiB"``. None: half of the free
        memory.
    verbose : {"auto", 0, 1, 2} or Meter, default "auto"
        ``"auto"``: a progress bar for a fit that takes more than ten seconds, on a terminal or in a notebook only. 0:
        silent. 1: the bar, or lines in a log. 2: a line for every step.
    random_state : int, RandomState, Generator or None, default 0
        Seed of probe vectors, features and subsets. The same seed gives bit for bit the same result on the same
        machine; on CUDA, where the engine is chosen by its speed, two runs may differ by rounding.
    likelihood : str or Likelihood, default "gaussian"
        Distribution of a target given the latent function (`gigagp.likelihoods`). Student-t noise is robust to gross
        outliers; its degrees of freedom are learned, or given by ``likelihoods.StudentT(df=4.0)``. Laplace noise and
        Poisson counts, whose rate is ``exp(f)``, need ``inference.QuadruplyStochastic``, which ``inference="auto"``
        then selects, or ``inference.Vecchia``. The latter supports all others, whose parameters are learned:
        ``"quantile"``, ``"censored"``, ``"negative-binomial"``, ``"zero-inflated-poisson"``,
        ``"zero-inflated-negative-binomial"``, ``"hurdle-poisson"``, ``"gamma"``, ``"weibull"``, ``"binomial"``,
        ``"beta"`` and ``"ordinal"``. ``"auto"`` compares likelihoods on up to 200 rows by their evidence and
        leave-one-out densities: Gaussian, Poisson, negative binomial and, with zeros, zero-inflated ones for counts;
        Gaussian, beta and gamma for proportions; Gaussian and gamma for positive targets. If Gaussian noise is kept, it
        is compared with Student-t noise on up to 500 rows. `likelihood_` is the choice, and `describe` says why. The
        documentation has a page on which to use.
    hyperparameter_units : {"own", "standardized"}, default "own"
        Units of the kernel's hyperparameters and of the noise variance, both as arguments and as results. ``"own"``:
        lengthscales, periods and bounds are in the units of the inputs, and variances in squared units of the target.
        Targets that share hyperparameters are scaled separately, and variances are then fractions of the variance of
        each. ``"standardized"``: units of the standardized problem, in standard deviations, as in papers and in models
        of earlier versions.
    time_budget : float, str or None, default None
        Time that `fit` may take, in seconds or as a string such as ``"90s"``, ``"10min"`` or ``"1.5h"``. Learning stops
        in time for the last solve, and ``inference="auto"`` chooses a method that fits. `describe` says what was
        skipped. ``inference.Exact``, ``inference.Iterative`` and ``inference.SparseVariational`` raise an error at once
        if the budget is far too short for them. A fit with a budget depends on the speed of the machine. None: no
        limit.
    target_transform : {"none", "log", "yeo-johnson", "spline", "auto"}, default "none"
        Increasing transform g of a target that is skewed or has heavy tails: the Gaussian process models ``g(y)``. The
        parameters of g maximise the likelihood of up to 1,000 rows; ``"auto"`` uses a transform only if it is better by
        a margin than none. Predictions are in the target's units; ``noise_variance`` and the variances of the kernel
        are in squared units of ``g(y)``. It requires Gaussian noise. The documentation has a page on it.
    encode : {"strict", "auto"}, default "strict"
        ``"strict"`` refuses all cells that are not numbers. ``"auto"`` encodes text, categories, booleans, dates and
        missing cells as numbers in `fit`, and in the same way afterwards (`gigagp.tables.encoding.TableEncoder`).
        Columns of ``kernel`` are then those of the table. Columns with more than 50 categories become ``groups``.
    distributed : bool, default False
        Whether a fit shares its large computations with the other processes of the default ``torch.distributed`` group,
        all of which make the same call with the same rows and get the same model (the documentation has a page on it).
        `fit_table` then requires `inference.Grid`, whose processes share the files.
    outputs : {"auto", "independent", "shared", "correlated"}, default "auto"
        Hyperparameters of several targets. ``"independent"``: each target has its own, from a separate fit.
        ``"shared"``: one kernel and one noise variance for all, as fractions of each target's variance, in about the
        time of one fit; error bars are wrong for targets that vary on different scales. ``"correlated"``: one model
        that also learns how targets correlate (`kernels.Outputs`), with a constant and a noise variance for each; ``y``
        may be NaN where a target was not observed. ``"auto"``: independent for up to 50 targets and 20,000 rows times
        targets, and shared otherwise and in `fit_table`.
    noise : {"constant", "varying", "scaled", "auto"}, default "constant"
        Whether Gaussian noise has one variance, or one that depends on the inputs (`kernels.LocalVariance`, and from
        5,000 rows on `kernels.ScaleMap`) and is learned in a second fit. ``"varying"``: only the noise varies.
        ``"scaled"``: the function and its noise share a scale that varies with the inputs, as elevation does between
        mountains and plains. ``"auto"`` learns both if squared leave-one-out errors vary with the inputs, and keeps the
        better one if it predicts left-out rows better than constant noise. With many rows, it skips the form that
        cannot gain as much as the other. If kernels are averaged, it uses the one with the largest weight.
    panel : (entity, time) or None, default None
        Columns of a long table, by name or number, with the entity and the time of each row: sensors by hours, learning
        curves by epochs. Without a ``kernel``, each entity has its own offset and curve, all entities share another
        curve, and entities with similar values in the other columns have similar curves. All columns are encoded as
        with ``encode="auto"``. Columns of ``kernel`` are those of the table, in which the entity is an integer, its
        position among the sorted entities. The documentation has a page on it.
    hyperparameters : {"auto", "learned", "laplace"}, default "auto"
        Hyperparameters used for all predictions. ``"learned"``: the learned values, as if they were known exactly.
        ``"laplace"``: predictions are averaged over draws from an approximate posterior of the hyperparameters, for
        Gaussian noise and `inference.Exact`, `inference.Iterative` or `inference.Vecchia`. ``"auto"``: draws for up to
        500 rows where kernels are averaged, as by default, if they take at most twice the time of the fit; otherwise
        ``"learned"``. ``kernel_`` and ``posterior_`` are always at the learned values, and so are the graphs of
        `gigagp.onnx` and the models of `gigagp.botorch`.
    groups : sequence of int, str, sequence or Group, default ()
        Grouping columns, by number or name, such as ``["shop", "item"]``: each adds a `kernels.Group`, an effect of
        each level, to the kernel. ``("shop", "department")`` groups by combinations of two columns. The other kernel
        terms, and a linear mean, ignore these columns.

    Attributes
    ----------
    outputs_ : {"independent", "shared", "correlated"}
        Whether several targets share hyperparameters, or correlate.
    estimators_ : tuple of GPRegressor
        A fitted estimator for each target with its own hyperparameters. If there are several such targets, the
        attributes below, up to ``warnings_``, are tuples with one item for each.
    kernel_ : Kernel
        Kernel with the learned hyperparameters.
    kernel_choice_ : KernelChoice or None
        Kernels that were tried, with gains and weights, if the data chose the kernel; ``kernel_`` is the one with the
        largest weight.
    noise_variance_ : float or ndarray of shape (n,)
        Noise variance, learned or as given. For correlated targets: one for each, or the given variances of the cells.
    likelihood_ : Likelihood
        Likelihood of the fit, with its learned parameters.
    noise_weights_ : ndarray of shape (n,)
        Weights of the rows for Student-t noise. Rows with weights below 0.1 are outliers.
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
    hyperparameters_ : {"learned", "laplace"}
        Whether predictions use the learned hyperparameters, or are averaged over draws of them.
    posterior_ : Posterior
        Posterior at the learned hyperparameters, in the units of the standardized problem.
    scaling_ : Scaling
        Transformation between the data's own units and those of the standardized problem.
    target_transform_ : TargetTransform
        Transform of the target, with its learned parameters.
    warnings_ : tuple of str
        Warnings of the fit.
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

    # What a fit leaves (`gigagp.estimators.attributes`). Where outputs have a model each, they are tuples.
    posterior_: Posterior
    scaling_: Scaling
    history_: History
    kernel_: Kernel
    kernel_choice_: KernelChoice | None
    noise_variance_: Any
    likelihood_note_: str
    warnings_: tuple[str, ...]
    inference_: Inference
    optimizer_: Any
    plan_: Plan | None
    solver_: Any
    engine_: str
    target_transform_: TargetTransform
    n_features_in_: int

    _arguments: dict[str, Any]  # those of the fit, which later ones do not change
    _likelihood: Likelihood  # the one that was given or chosen
    _one_target: bool  # whether answers have no axis of the targets
    _models: tuple[Self, ...] = ()  # of outputs that have a model each
    _stacking: Stacking | None = None  # of correlated outputs, whose cells are the rows of one model
    _uncertain: MixturePosterior | None = None  # what answers with uncertain hyperparameters

    def __init__(
        self,
        kernel: Kernel | KernelRule | Chosen | None = None,
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
        noise: NoiseRule = "constant",
        panel: Panel | None = None,
        hyperparameters: Hyperparameters = "auto",
        groups: GroupsLike = (),
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
        self.noise = noise
        self.panel = panel
        self.hyperparameters = hyperparameters
        self.groups = groups

    # ------------------------------------------------------------------ fitting

    @checks_arguments
    def fit(
        self,
        X: Any,
        y: Any,
        validation: Annotated[tuple[Any, Any], Words("a pair (X, y)")] | None = None,
        checkpoint: str | PathLike[str] | None = None,
        *,
        exposure: Any = None,
        offset: Any = None,
        predict_at: Any = None,
        blocks: Any = None,
        weights: Any = None,
    ) -> Self:
        """Learn the hyperparameters and compute the posterior.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n,) or (n, n_targets)
            Targets. If there are several, each has its own hyperparameters, unless ``outputs`` says otherwise. For
            ``likelihood="censored"`` and ``"weibull"``, which support a single target, an array of shape (n, 2): the
            lower and the upper limit of each target, equal where it was measured, and infinite where there is no limit.
        validation : (X, y) or None, default None
            Rows to score at every step that uses all rows; nothing is learned from them. The scores are in ``history_``
            (`gigagp.optimization.Step`). Requires Gaussian noise. Scores use the posterior that is available at a step.
            With `inference.Grid`, and with `inference.RandomFeatures` with a truncation or a different predictor, each
            score costs as much as the posterior at the end of a fit.
        checkpoint : str, path or None, default None
            File for the state of the fit while it runs. If the process was killed, the same call continues from it,
            with bit for bit the same result. A long solve by conjugate gradients saves its last iteration in a second
            file, with ``.solve`` added to the name. The files are removed at the end. Targets that are fitted
            separately have a file each, with ``.0``, ``.1`` and so on added to the name.
        exposure : array-like of shape (n,), float or None, default None
            What each target was counted over, such as hours, areas or people, for likelihoods of counts and amounts:
            the mean of a target is its exposure times the rate. For ``likelihood="binomial"`` it is the number of
            trials. None: 1.
        offset : array-like of shape (n,), float or None, default None
            Known term of the latent function at each row, such as the logarithm of an exposure; for likelihoods whose
            latent function is not in the units of the target.
        predict_at : array-like of shape (q, d), optional
            Points that are to be predicted, if they are known. To choose the kernel and to forecast errors, the fit
            then holds out patches of rows that are as wide as the gaps around these points. Without them, it looks for
            gaps with up to three inputs.
        blocks : array-like of shape (p,), optional
            For targets that are averages over areas: the area label of each point, a number or a string. ``X`` then
            contains the points of all areas, shape (p, d), and ``y`` has one target for each area, in ascending order
            of the labels; a pandas Series is matched by its index, which must contain the labels. The target of an area
            is the average of the function over its points plus noise, whose variance is that of an average. Predictions
            at points, and `predict_average`, then show the function within the areas. An area of one point is an
            ordinary row, and a point that belongs to two areas is listed twice. Requires exact or iterative inference
            and Gaussian noise; ``"auto"`` is exact up to 3,000 areas. ``kernel=None`` is ``kernels.Matern(nu=1.5)``,
            with draws of the hyperparameters for up to 500 areas and 2,000 points in total. The documentation has a
            page on it.
        weights : array-like of shape (p,), optional
            Weight of each point within its area, at least 0, such as its size or its population. Weights are normalised
            within each area. None: equal weights.

        Returns
        -------
        GPRegressor
            The estimator itself.

        Raises
        ------
        InvalidInputError
            If an argument or the data are invalid; raised before anything is computed.
        MemoryBudgetError
            If the fit exceeds the memory budget or the memory of the machine.

        Warns
        -----
        FitInterruptedWarning
            After Ctrl-C. The first stops learning at the best hyperparameters so far, and the checkpoint is kept. A
            second, or a first before anything was learned for a target, ends the fit and leaves the estimator
            unchanged.
        FitWarning
            If learning stopped early; and, where Gaussian noise is learned, if a few targets lie far from all others,
            or left-out rows are too far from their predictions.
        """
        with whole_or_unchanged(self, checkpoint), processes.joined(self.distributed):
            if blocks is None and weights is None:
                regression_fit.fit(self, X, y, validation, checkpoint, exposure, offset, predict_at)
            else:
                others = {"validation": validation, "checkpoint": checkpoint, "exposure": exposure}
                others |= {"offset": offset, "predict_at": predict_at}
                take(self, fit_areas(self, X, y, blocks, weights, others), one_target=True)
        last = self.estimators_[-1].history_  # others that Ctrl-C ends are no fit
        warn_of_interruption(last, regression_fit.last_checkpoint(checkpoint, len(self._models)))
        return self

    def plan(self, X: Any, y: Any, *, predict_at: Any = None) -> Plan | tuple[Plan, ...]:
        """Return what `fit` with ``inference="auto"`` would do, and its expected error and cost.

        When to use: before a long fit. The hyperparameters are learned from nearest neighbours, which takes seconds for
        any number of rows, and rows are predicted from nearby rows. The estimator is not changed.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n,) or (n, n_targets)
            Targets.
        predict_at : array-like of shape (q, d), optional
            Points that are to be predicted, as for `fit`.

        Returns
        -------
        Plan, or a tuple of them for outputs that are fitted separately
            The options, each with its time in seconds and, for a new target, the expected negative log density in nats
            and root mean square error in the data's units, and which one is chosen. It prints as a table.

        Raises
        ------
        InvalidInputError
            If an argument or the data are invalid, if the likelihood is not Gaussian, or if an inference method is
            given.
        """
        with guarded():
            return regression_fit.plan(self, X, y, predict_at)

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
        method must support streams. `inference.Grid`, the default for Gaussian noise, reads all rows once and keeps
        none; it supports one to three inputs, or more with an additive kernel. `inference.QuadruplyStochastic`, the
        default for other log-concave likelihoods, supports any number of inputs and reads minibatches from random
        positions. `inference.Vecchia` keeps all rows in memory, because predictions need nearby rows, at about three
        hundred bytes per row with two inputs; the result is that of `fit`. If they do not fit the memory budget, it
        passes over the table a few times, learns from random rows with neighbours from the whole table, and predicts
        from as many random rows as fit.

        Parameters
        ----------
        source : str, path, data frame, pair of arrays, callable or iterable
            A Parquet, CSV or NumPy file, or a folder of Parquet and CSV files; a pandas or pyarrow table; a pair
            ``(X, y)``; an iterable of pairs ``(X, y)``, each with some of the rows; or a callable that returns such an
            iterable and is called several times.
        target : str or sequence of str
            Column or columns to predict, for files and data frames. Several share the kernel and the noise.
        inputs : sequence of str, optional
            Columns to predict from, for files and data frames. None: all other columns.
        bounds : (lower, upper), optional
            Smallest and largest value of each input, for `inference.Grid`. They are required for a generator, which can
            be read only once; otherwise they save the pass that determines them (most Parquet files have them in their
            metadata).
        checkpoint : str, path or None, default None
            File for the sums, or for the learned parameters, while the fit runs; the source must be files. After an
            error (such as a damaged file in a folder), or if the process was killed, the same call continues from it.
            The file is removed at the end.
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
            If `inference.Vecchia` keeps only a part of the rows in memory.
        """
        open_rows = partial(RowSource, source, target, inputs, header=header, chunk_rows=chunk_rows)
        shared = self.distributed or getattr(self.inference, "distributed", False)
        with whole_or_unchanged(self, checkpoint), processes.joined(shared):
            regression_fit.fit_table(self, open_rows, bounds, checkpoint)
        warn_of_interruption(self.history_, checkpoint)
        return self

    def plot(self, X: Any = None, y: Any = None, **options: Any) -> Any:
        """Draw the picture that suits the fitted model, by the number of its inputs.

        For one input it is a curve with bands of 50 and 95 %, with extrapolation in another colour; for two or three,
        maps of the mean and its uncertainty; for more, the relevance of the inputs and partial dependence. Requires
        matplotlib (``pip install "gigagp[plot]"``).

        Parameters
        ----------
        X, y : array-like, optional
            Data points to draw. None: the training rows, if the model keeps them.
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
        # Without either, predictions before a fit are those of the prior.
        tags.requires_fit = self.encode == "auto" or self.panel is not None
        return tags

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, exposure: Any = None) -> float:
        """Return the coefficient of determination of the predictions; see scikit-learn's `RegressorMixin.score`.

        ``exposure`` is that of `predict`. Targets with limits must have been measured.
        """
        from sklearn.metrics import r2_score  # loads slowly

        with scored():
            y = measured_targets(resolve_likelihood(self.likelihood), y)
            return float(r2_score(y, self.predict(X, exposure=exposure), sample_weight=sample_weight))

    # ------------------------------------------------------------------ answers

    @each_output
    def likelihood_(self) -> Likelihood:
        """Likelihood of the fit, with its learned parameters."""
        check_is_fitted(self, "posterior_")
        model = self.posterior_.model
        if model.student is not None:
            return StudentT(model.student.df)
        return self._likelihood.settled(model.of_likelihood)

    @each_output
    def noise_weights_(self) -> np.ndarray:
        """Weight of each training row, shape (n,), for Student-t noise; below 0.1 a row counts as an outlier.

        A row with weight w counts as if its noise variance were ``1 / w`` times the squared scale of the noise. Rows
        that fit well have weights a little above 1.

        Raises
        ------
        AttributeError
            If the noise is not Student-t, or for Laplace's method, which has no weights.
        """
        check_is_fitted(self, "posterior_")
        model = self.posterior_.model
        if model.student is None:
            raise AttributeError(
                f"noise_weights_ of {type(self).__name__} needs Student-t noise; its likelihood is {self.likelihood_}."
            )
        return model.student.weights(model.noise_variance).double().cpu().numpy()

    @each_output
    def hyperparameters_(self) -> Literal["learned", "laplace"]:
        """Whether predictions use the learned hyperparameters, or are averaged over draws of them."""
        check_is_fitted(self, "posterior_")
        return "learned" if self._uncertain is None else "laplace"

    @each_output
    def group_effects_(self) -> dict[str, GroupEffects]:
        """Effects of the levels of each group with their standard deviations, by grouping column.

        They are in the target's units, or in those of the latent function. Effects of levels with few rows are shrunk
        towards zero. If there are slopes, effects are those at the centre of the slopes' inputs.

        Raises
        ------
        AttributeError
            If the inference method was not `inference.Exact` or `Vecchia`, or the kernel has no `kernels.Group` as a
            term.
        """
        check_is_fitted(self, "posterior_")
        names = getattr(self, "feature_names_in_", None)
        return effects_of_groups(predictor_of_rows(self).posterior, self.scaling_, names, fitted_encoder(self))

    @guarded()
    @checks_arguments
    @by_output(axis=-1)
    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        *,
        include_noise: bool = False,
        variance: Literal["auto", "samples", "solve"] = "auto",
        return_parts: bool = False,
        hyperparameters: Hyperparameters = "auto",
        exposure: Any = None,
        groups: bool = True,
    ) -> Any:
        """Predict the mean of the target and, on request, its standard deviation or covariance.

        The function that is predicted is ``E[y | f]``, the mean of measurements given the latent function f. With
        Gaussian noise, it is f itself. With a `target_transform`, and for counts and classes, it is in the target's
        units too: for ``likelihood="poisson"`` the rate ``exp(f)``, for ``"logistic"`` and ``"probit"``, whose targets
        are -1 and 1, the probability of 1 minus that of -1. `predict_latent` returns f.

        Before `fit` the predictions are those of the prior, for a single target: the kernel with its given values, in
        the units of X and y. A learned mean is then 0, and its uncertainty, which is infinite, is ignored.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Points, or with ``encode="auto"`` a table like that of the fit.
        return_std : bool, default False
            Whether to return the standard deviation of this function as well.
        return_cov : bool, default False
            Whether to return the full covariance as well; iterative inference solves a linear system for each point.
        include_noise : bool, default False
            Whether the standard deviation is that of a new measurement, which includes the noise variance and the
            kernel's white terms, or the spread of counts around their rate.
        variance : {"auto", "samples", "solve"}, default "auto"
            Source of the variances in iterative inference: the stored posterior samples combined with nearest
            neighbours, for compiled kernels (``"auto"``); the samples alone; or a solve for each point, which is exact
            up to the solver's tolerance and never below the exact variance.
        return_parts : bool, default False
            Whether to return the two parts of the latent standard deviation as well,
            ``UncertaintyParts(mathematical, computational)``: the uncertainty due to finite data, and that due to
            limited computation. Their squares add up to the latent variance. It takes O(n^3) time, so the table must be
            small enough for exact inference.
        hyperparameters : {"auto", "learned", "laplace"}, default "auto"
            Whether to use the learned hyperparameters, or to average over 8 to 32 draws from Laplace's approximation of
            their posterior. ``"auto"`` is the choice of the fit (``hyperparameters_``). If the fit made no draws, they
            are made once, in about one to three times its time. Averaging widens the error bars of fits to a few
            hundred rows.
        exposure : array-like of shape (m,), float or None, default None
            What the target is counted over at each point (see `fit`): the mean and the standard deviation are those of
            the rate times the exposure, or of the number of successes in this many trials. None: 1.
        groups : bool, default True
            Whether to include the effects of groups (`kernels.Group`). False: predict the other terms alone. A level
            that was not in the fit has the prior of an effect.

        Returns
        -------
        mean : ndarray of shape (m,) or (m, n_targets)
            Mean of the target.
        std : ndarray of the same shape
            Standard deviation, if ``return_std``.
        cov : ndarray of shape (m, m) or (m, m, n_targets)
            Covariance, if ``return_cov``; for correlated targets of shape (m, n_targets, m, n_targets), across all of
            them.
        parts : UncertaintyParts of two ndarrays with the shape of std
            Parts of the standard deviation, if ``return_parts``.

        Raises
        ------
        NonFiniteError
            If a result is not finite, a factorisation fails or a number overflows.
        MemoryBudgetError
            If the prediction exceeds the memory of the machine.
        """
        _require_one_of(return_std, return_cov, "predict")
        predictor, points = answering(self, X, hyperparameters, groups=groups)
        return predictor.predict(
            points,
            return_std,
            return_cov,
            include_noise=include_noise,
            variance=variance,
            return_parts=return_parts,
            exposure=exposure,
        )

    @guarded()
    @checks_arguments
    @by_output(axis=-1)
    def predict_average(
        self,
        X: Any,
        blocks: Any = None,
        weights: Any = None,
        *,
        return_std: bool = False,
        return_cov: bool = False,
        hyperparameters: Hyperparameters = "auto",
        exposure: Any = None,
        groups: bool = True,
    ) -> Any:
        """Predict averages of the target over blocks of points, such as districts, raster cells or days.

        When to use: to predict the average over an area or a period. Its standard deviation is smaller than that at a
        point, because errors at points partly cancel, and larger than if these were independent: it follows from the
        joint distribution of the points, ``W C W'``. `geo.Kriging.block_means` places the points in polygons.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Points, as for `predict`. Give enough of each block to show how the function varies within it.
        blocks : array-like of shape (m,), default None
            Block label of each point, a number or a string. None: all points form one block.
        weights : array-like of shape (m,), default None
            Weight of each point within its block, at least 0, such as its area or its population. Weights are
            normalised within each block. None: equal weights.
        return_std : bool, default False
            Whether to return the standard deviation of each average as well.
        return_cov : bool, default False
            Whether to return the covariance of the averages as well. This needs the covariance of all m points at once;
            standard deviations alone are computed a few whole blocks at a time.
        hyperparameters, exposure, groups
            As for `predict`. An ``exposure`` has a value for each point.

        Returns
        -------
        mean : ndarray of shape (b,) or (b, n_targets)
            Average of each block, in ascending order of the labels (as in ``numpy.unique``).
        std : ndarray of the same shape
            Standard deviation, if ``return_std``.
        cov : ndarray of shape (b, b), (b, b, n_targets) or, of correlated targets, (b, n_targets, b, n_targets)
            Covariance, if ``return_cov``.

        Raises
        ------
        InvalidInputError
            If a point has no block, a weight is negative, or all weights of a block are 0.
        NonFiniteError, MemoryBudgetError
            As for `predict`.

        Examples
        --------
        >>> import numpy as np
        >>> from gigagp import GPRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> gp = GPRegressor().fit(X, np.sin(X[:, 0]))
        >>> hours = np.linspace(0, 6, 60)[:, None]
        >>> mean, std = gp.predict_average(hours, blocks=hours[:, 0] > 3, return_std=True)
        >>> mean.shape
        (2,)
        """
        _require_one_of(return_std, return_cov, "predict_average")
        predictor, points = answering(self, X, hyperparameters, groups=groups)
        return averages(predictor, points, blocks, weights, exposure, return_std=return_std, return_cov=return_cov)

    @guarded()
    @checks_arguments
    @by_output(axis=-1)
    def predict_latent(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        *,
        variance: Literal["auto", "samples", "solve"] = "auto",
        hyperparameters: Hyperparameters = "auto",
    ) -> Any:
        """Predict the latent function f, whose posterior is normal or approximated by a normal distribution.

        With noise added to f, as for ``likelihood="gaussian"``, ``"laplace"`` and ``"student-t"``, this is `predict`.
        For ``"poisson"`` it is the log rate, for ``"logistic"`` the log-odds, for ``"probit"`` the argument of the
        normal distribution function, and with a `target_transform` the function behind ``g(y)``, in its units.

        Parameters
        ----------
        X, return_std, return_cov, variance, hyperparameters
            As for `predict`.

        Returns
        -------
        mean, std, cov
            As for `predict`, of f.

        Raises
        ------
        InvalidInputError, NonFiniteError, MemoryBudgetError
            As for `predict`.

        Examples
        --------
        >>> import numpy as np
        >>> from gigagp import GPRegressor, inference
        >>> X = np.linspace(0, 6, 60)[:, None]
        >>> counts = np.random.default_rng(0).poisson(np.exp(1 + np.sin(X[:, 0])))
        >>> gp = GPRegressor(inference=inference.Vecchia(), likelihood="poisson").fit(X, counts)
        >>> f, std = gp.predict_latent(X, return_std=True)
        >>> bool(np.allclose(gp.predict(X), np.exp(f + std**2 / 2)))
        True
        """
        _require_one_of(return_std, return_cov, "predict_latent")
        predictor, points = answering(self, X, hyperparameters)
        return predictor.predict_latent(points, return_std, return_cov, variance=variance)

    @guarded()
    @checks_arguments
    @by_output()
    def posterior(
        self,
        X: Any,
        *,
        include_noise: bool = False,
        variance: Literal["auto", "samples", "solve"] = "auto",
        hyperparameters: Hyperparameters = "auto",
    ) -> JointPosterior | TargetPosterior:
        """Return the joint distribution of the function at batches of points, differentiable in the points.

        It is that of `predict`: for counts it is the distribution of the rate, which is not normal.

        When to use: to optimise points by gradients, as acquisition functions of Bayesian optimization do, or if many
        small sets of points each need a joint distribution. `predict` is for tables.

        Mean, variance, covariance and samples are differentiable, by closed forms of the kernel; apart from a few MiB,
        no array of size training rows times points is stored for this. Strictly, derivatives do not exist in three
        cases. With a Matern-1/2 kernel, functions have a kink at the training rows (the derivative returned there
        ignores that row). Predictions by `inference.Vecchia` jump a little where the nearest rows of a point change.
        Categorical inputs (`kernels.Categorical`) are treated as numbers.

        Before `fit` it is the distribution of the prior; see `predict`.

        Parameters
        ----------
        X : Tensor or array of shape (..., q, d)
            Points in the data's own units: batches of q points each, with a joint distribution for each batch.
            Covariances between batches are not computed.
        include_noise : bool, default False
            Whether to return the distribution of measurements.
        variance : {"auto", "samples", "solve"}, default "auto"
            Source of the variances in iterative inference, as for `predict`. Covariances and samples use a solve for
            each point there, as with ``"solve"``.
        hyperparameters : {"auto", "learned", "laplace"}, default "auto"
            As for `predict`. A mixture over draws or kernels is not normal: it has mean, variance and covariance, but
            no ``rsample`` and no ``log_prob``.

        Returns
        -------
        JointPosterior or TargetPosterior, or JointOutputs if each of several outputs has its own model
            Object with ``mean``, ``variance``, ``covariance``, ``rsample`` and ``log_prob``; the last is missing for
            counts and classes.

        Raises
        ------
        InvalidInputError
            If the points are invalid, or require a derivative that does not exist: with a `target_transform`, whose
            function is not normal in the target's units; with ``encode="auto"`` and columns that are not numbers; with
            a callable as mean (which is supported without gradients).
        """
        predictor = joint_answering(self, X, hyperparameters)
        return predictor.joint(X, include_noise=include_noise, variance=variance)

    @guarded()
    @checks_arguments
    @by_output()
    def log_marginal_likelihood(self, random_state: RandomState = 0, *, standardized: bool = False) -> Estimate:
        """Return the log density of the training targets under the fitted model, in nats.

        It is a density in the targets' own units, including the Jacobian of a `target_transform`, so it can be compared
        between fits with different scales, transforms, kernels and packages. For counts it is a log probability.

        Parameters
        ----------
        random_state : int or generator
            Seed of probe vectors, for inference methods that estimate it.
        standardized : bool, default False
            Whether to return the density of the transformed targets in the units of `scaling_`, in which
            hyperparameters are learned.

        Returns
        -------
        Estimate
            Object with ``value`` and ``standard_error``, which is 0 for exact inference. For ComputationAware and
            SparseVariational, and for Student-t noise, the value is a lower bound of the log marginal likelihood.

        Raises
        ------
        InvalidInputError
            In own units, for a model with a `target_transform` from a file of a version that did not store the
            Jacobian.
        """
        return predictor_of(self, "learned").log_marginal_likelihood(random_state, standardized=standardized)

    @guarded()
    @checks_arguments
    @by_output()
    def sample_functions(
        self,
        n_samples: Count = 1,
        random_state: RandomState = 0,
        *,
        hyperparameters: Hyperparameters = "auto",
        latent: bool = False,
    ) -> Callable[[Any], np.ndarray]:
        """Return posterior samples of the function, as a function that can be evaluated at any points.

        It is that of `predict`: with a `target_transform`, and for counts and classes, ``E[y | f]``.

        Before `fit` the samples are those of the prior; see `predict`.

        Parameters
        ----------
        n_samples : int
            Number of samples. With iterative inference, `Iterative.n_samples` samples, shared by the targets, are
            stored; more need a solve.
        random_state : int or generator
            Seed of the samples.
        hyperparameters : {"auto", "learned", "laplace"}, default "auto"
            As for `predict`; with draws, each sample uses one of them.
        latent : bool, default False
            Whether the samples are of the latent function; see `predict_latent`.

        Returns
        -------
        callable
            Function from points (m, d) to values (m, n_samples) or (m, n_targets, n_samples).
        """
        return sampled_functions(self, n_samples, random_state, hyperparameters, latent=latent)

    @guarded()
    @checks_arguments
    @by_output()
    def sample_y(
        self,
        X: Any,
        n_samples: Count = 1,
        random_state: RandomState = 0,
        *,
        include_noise: bool = False,
        hyperparameters: Hyperparameters = "auto",
        exposure: Any = None,
    ) -> np.ndarray:
        """Sample the function of `predict` at given points; before `fit`, the samples are those of the prior.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Points.
        n_samples : int
            Number of samples.
        random_state : int or generator
            Seed of the samples.
        include_noise : bool, default False
            Whether to draw a measurement at each value of the function: with noise, or a count.
        hyperparameters : {"auto", "learned", "laplace"}, default "auto"
            As for `sample_functions`.
        exposure : array-like of shape (m,), float or None, default None
            As for `predict`.

        Returns
        -------
        ndarray of shape (m, n_samples) or (m, n_targets, n_samples)
            Joint samples over the points. With exact inference and up to 2,000 points, they use the full covariance.
        """
        predictor, points = answering(self, X, hyperparameters)
        return predictor.sample_y(points, n_samples, random_state, include_noise=include_noise, exposure=exposure)

    @guarded()
    @checks_arguments
    @by_output()
    def leave_one_out(self, groups: Any = None, *, hyperparameters: Hyperparameters = "auto") -> LeaveOneOut:
        """Predict each training row from all others, to see how good predictions and their error bars are.

        Nothing is refitted: the hyperparameters are those of all rows, and the coefficients of the mean are those of
        the other rows (Rasmussen and Williams 2006, section 5.4.2). With few rows, scores are therefore a little too
        good. A row with the same inputs as another is predicted from that one.

        Exact inference takes the diagonal from its factor, `inference.Markov` from its passes along the input, and
        `inference.Vecchia` from its sparse factor.
        `inference.Iterative` estimates it from posterior samples and nearest neighbours; its means have the error of
        the solve too.

        Parameters
        ----------
        groups : array-like of shape (n,), "entity" or None, default None
            Group of each row. The rows of a group are left out together, so each row is predicted from the other
            groups. ``"entity"`` is the entity of a `panel`, so that whole curves are left out. Requires exact
            inference.
        hyperparameters : {"auto", "learned", "laplace"}, default "auto"
            As for `predict`; draws have the weights given by all rows.

        Returns
        -------
        LeaveOneOut
            Means, standard deviations, log densities, and the standard errors of the deviations, in the order of the
            rows.

        Raises
        ------
        InvalidInputError
            If the inference method or the likelihood does not support it, if the fit did not use all rows, or if a
            coefficient of the mean is not determined without some row.
        MemoryBudgetError, NonFiniteError
            As for `predict`.

        Examples
        --------
        >>> import numpy as np
        >>> from gigagp import GPRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> y = np.sin(X[:, 0])
        >>> y[20] += 1.0
        >>> left_out = GPRegressor().fit(X, y).leave_one_out()
        >>> int(np.argmax(np.abs(y - left_out.mean)))
        20
        """
        return left_out(self, groups, hyperparameters)

    @guarded()
    @checks_arguments
    @by_output()
    def predict_quantile(
        self,
        X: Any,
        q: Any,
        *,
        include_noise: bool = True,
        hyperparameters: Hyperparameters = "auto",
        exposure: Any = None,
    ) -> np.ndarray:
        """Return quantiles of the predictive distribution; 0.5 is the median.

        They are exact with a `target_transform` too, because it is increasing.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Points.
        q : float or array-like of shape (k,)
            Probabilities, between 0 and 1.
        include_noise : bool, default True
            Whether the quantiles are those of a new measurement, or those of the function (see `predict`). For counts
            they are integers: the smallest count that is not exceeded with this probability.
        hyperparameters : {"auto", "learned", "laplace"}, default "auto"
            As for `predict`; with ``"laplace"`` the quantiles of the mixture, whose tails are heavier than normal ones.
        exposure : array-like of shape (m,), float or None, default None
            As for `predict`.

        Returns
        -------
        ndarray of shape (m,) or (m, n_targets), or with a last axis of size k for several probabilities
            Quantiles in the target's units.

        Raises
        ------
        InvalidInputError
            If a probability is not between 0 and 1; or, with ``include_noise``, if the noise variance of new rows is
            not known or the likelihood has no quantiles.
        NonFiniteError, MemoryBudgetError
            As for `predict`.
        """
        levels = probabilities(q)
        predictor, points = answering(self, X, hyperparameters)
        return predictor.predict_quantile(points, levels, include_noise=include_noise, exposure=exposure)

    @guarded()
    @checks_arguments
    @by_output()
    def predictive_log_density(
        self, X: Any, y: Any, *, hyperparameters: Hyperparameters = "auto", exposure: Any = None
    ) -> np.ndarray:
        """Return the log density of measurements at given points, in nats; its mean is the log score.

        It is a density in the target's own units, including the Jacobian of a `target_transform`. For counts it is a
        log probability.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Points.
        y : array-like of shape (m,) or (m, n_targets)
            Measurements; limits as in `fit`, for the log probability that a target lies between them.
        hyperparameters : {"auto", "learned", "laplace"}, default "auto"
            As for `predict_quantile`.
        exposure : array-like of shape (m,), float or None, default None
            As for `predict`.

        Returns
        -------
        ndarray of the shape of y, or (m,) with limits

        Raises
        ------
        InvalidInputError
            If a measurement is not possible under the likelihood or the transform, or the noise of new rows is not
            known.
        NonFiniteError, MemoryBudgetError
            As for `predict`.
        """
        predictor, points = answering(self, X, hyperparameters)
        return predictor.predictive_log_density(points, *known_targets(predictor.likelihood, y, len(points), exposure))

    # -------------------------------------------------------------- further rows

    @checks_arguments
    def condition_on(self, X: Any, y: Any, noise_variance: Any = None, *, refit: bool = False) -> Self:
        """Return the fit with additional rows, at about the cost of the new ones; this fit is not changed.

        When to use: if rows arrive one at a time, as in Bayesian optimization, and for "what if" questions.
        Hyperparameters and scaling are kept, so predictions equal those of a fit to all rows with the same kernel,
        noise variance and scaling, and ``optimizer=None``. Draws of the hyperparameters are kept too, and reweighted by
        Bayes' rule. If the new rows change what is known about the hyperparameters, ``refit=True`` learns them again,
        starting from their current values.

        With n rows and k new ones, `inference.Exact` extends its Cholesky factor in O(n^2 k) time.
        `inference.Iterative` continues its solves from the old solutions, corrected by the prediction errors of the new
        rows, which saves some of the iterations. `inference.Vecchia` conditions only the new rows, and rebuilds its
        search tree from all rows. `inference.Markov` passes over all rows. `inference.SparseVariational` without
        minibatches, `inference.RandomFeatures` and `inference.Grid` add to their sums. Other methods, and likelihoods
        other than the Gaussian, need a fit to all rows.

        `inference.Vecchia` keeps the neighbours of earlier rows and does not look for new rows among them, so the
        likelihood and the coefficients of the mean differ slightly from those of a fit to all rows.

        Parameters
        ----------
        X : array-like of shape (k, d)
            Inputs. With `inference.Grid` they must lie within the grid.
        y : array-like of shape (k,) or (k, n_targets)
            Targets.
        noise_variance : array-like of shape (k,), float or None, default None
            Known noise variance of the new rows, in squared units of ``y``. Required if the fit was given the noise
            variance of each row; otherwise it must be None.
        refit : bool, default False
            Whether to learn the hyperparameters again from all rows, with a new scaling, starting from their current
            values. Not available for `inference.Grid` and `inference.SparseVariational`, which do not keep the rows.

        Returns
        -------
        GPRegressor
            A fitted estimator with the same arguments. It shares everything that has not changed with this one.

        Raises
        ------
        InvalidInputError
            If a row is invalid, or if rows cannot be added to this fit.
        MemoryBudgetError
            If the rows exceed the memory budget or the memory of the machine.

        Examples
        --------
        >>> import numpy as np
        >>> from gigagp import GPRegressor
        >>> X = np.linspace(0, 6, 60)[:, None]
        >>> gp = GPRegressor().fit(X, np.sin(X[:, 0]))
        >>> more = gp.condition_on([[7.0], [8.0]], np.sin([7.0, 8.0]))
        >>> more.posterior_.n_rows, gp.posterior_.n_rows
        (62, 60)
        """
        check_is_fitted(self, "posterior_")
        found = copy.copy(self)
        with whole_or_unchanged(found):
            grow(found, X, y, noise_variance, refit, "condition_on")
        return found

    @available_if(adds_rows)  # type: ignore[untyped-decorator]  # scikit-learn has no types
    @checks_arguments
    def partial_fit(self, X: Any, y: Any, noise_variance: Any = None, *, refit: bool = False) -> Self:
        """Add rows to this fit in place; see `condition_on`.

        The method exists only if the inference method can add rows. The first call is `fit`.

        Parameters
        ----------
        X, y, noise_variance, refit
            As for `condition_on`.

        Returns
        -------
        GPRegressor
            The estimator itself.

        Raises
        ------
        InvalidInputError
            If a row is invalid; in that case no row is added.
        MemoryBudgetError
            As for `condition_on`.
        """
        if not hasattr(self, "posterior_"):
            if noise_variance is not None:
                msg = "noise_variance of the first partial_fit, which is a fit, must be None. GPRegressor takes it."
                raise InvalidInputError(msg)
            return self.fit(X, y)
        with whole_or_unchanged(self):
            grow(self, X, y, noise_variance, refit, "partial_fit")
        return self

    # -------------------------------------------------------------- what a fit leaves

    def _keep_arguments(self, likelihood: Likelihood) -> None:
        """Keep the arguments of this fit: its answers and its file do not depend on those that are set afterwards."""
        names = {*GPRegressor._get_param_names(), *self._get_param_names()}  # a subclass may have others
        self._arguments, self._likelihood = {name: getattr(self, name) for name in names}, likelihood

    @property
    def estimators_(self) -> tuple[Self, ...]:
        """The fitted estimators of outputs with separate models; only this one if there is a single model."""
        check_is_fitted(self, "posterior_")
        return self._models or (self,)

    @property
    def outputs_(self) -> Literal["independent", "shared", "correlated"]:
        """Whether outputs have separate hyperparameters, share them, or are correlated in one model."""
        if self._stacking is not None:
            return "correlated"
        return "independent" if all(one.posterior_.n_targets == 1 for one in self.estimators_) else "shared"

    def describe(self) -> str:
        """Return the methods that ran and the hyperparameters, in standardized units and in the data's own."""
        check_is_fitted(self, "posterior_")
        return describe(self)

    def _to_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        return joined_states([fitted_to_state(one) for one in self.estimators_])

    @classmethod
    def _from_state(cls, tensors: dict[str, torch.Tensor], header: dict[str, Any], custom: Custom) -> Self:
        models = [state_to_fitted(cls, *state, custom) for state in states_of(tensors, header)]
        if len(models) == 1:
            return models[0]
        if len({one.n_features_in_ for one in models}) > 1:
            raise ModelFileError("its outputs must have the same inputs.")
        found = copy.copy(models[0])
        take_outputs(found, models)
        return found


def _require_one_of(return_std: bool, return_cov: bool, method: str) -> None:
    if return_std and return_cov:
        msg = f"return_std and return_cov of GPRegressor.{method} cannot both be True; the covariance is enough."
        raise InvalidInputError(msg)
