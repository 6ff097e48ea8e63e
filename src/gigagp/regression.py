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
        Kernel of the prior, whose values are the start of learning. ``"average"`` mixes the posteriors of several
        kernels, ``"choose"`` takes one by the evidence of some rows, and ``"auto"`` averages up to 2,000 rows, in about
        three times the time of one kernel, and chooses beyond (`gigagp.estimators.choices.kernel_rules`). None is
        ``"auto"`` where `optimization.Auto` maximises the likelihood of Gaussian noise, and a choice costs little
        compared with the fit; elsewhere it is ``kernels.Matern(nu=1.5)`` with one lengthscale per input. For counts of
        one input a period that their spectrum shows is compared with that kernel, and used where it is better.
    inference : one of `gigagp.inference` or "auto", default "auto"
        Inference method. ``"auto"`` is exact inference up to 3,000 rows if the memory allows, and `inference.Markov`
        for more than 1,000 rows of one input, unless the kernel has no states or is left to a rule. Otherwise nearest
        neighbours learn, and `inference.Iterative` or `inference.Vecchia` ends the fit, as a forecast says (`plan`).
    optimizer : one of `gigagp.optimization`, an `optimization.Optimizer` of your own, "auto" or None, default "auto"
        Optimizer of the hyperparameters. None keeps the values of the kernel and ``noise_variance``.
    mean : {"zero", "constant", "linear"} or callable, default "constant"
        Mean function. The coefficients of ``"constant"`` and ``"linear"`` are estimated by generalised least squares. A
        callable is a fixed function of ``X``, shape (n, d), in its own units, and returns values in the target's units,
        shape (n,). With ``standardize=True`` a callable and ``"zero"`` are shifted by the average of the targets less
        them; ``standardize=False`` takes them as they are. For signs, and ``likelihood="poisson"`` without an exposure,
        the latent mean is zero; add `kernels.Constant` or `kernels.Linear` to the kernel instead. Others have the mean
        of the latent function.
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
        On a GPU ``inference="auto"`` takes such products by itself where a forecast says that they are quicker, and
        `describe` says so. ``"float32"`` is the same for `inference.Iterative`. With too little noise for float32,
        solves and exact factors take float64 and warn. `inference.Grid` supports only float64.
    device : str, default "auto"
        Device of the computations. ``"auto"``: CUDA if there is such a device and 10,000 rows or more, otherwise the
        CPU. What works with nearest neighbours, with states or with a grid runs on the CPU.
    memory_budget : int, str or None, default None
        Memory that fits and predictions may use, in bytes or as a string such as ``"4GiB"``. None: half of the free
        memory.
    verbose : {"auto", 0, 1, 2} or Meter, default "auto"
        ``"auto"``: one bar for a fit that takes more than ten seconds, on a terminal or in a notebook only. 0: silent.
        1: the bar, or lines in a log. 2: a line for every step (`gigagp.runtime.progress.meter_for`).
    random_state : int, RandomState, Generator or None, default 0
        Seed of probe vectors, features and subsets. The same seed gives the same bits on the same machine; on CUDA,
        where the engine is chosen by its speed, two runs may differ in rounding.
    likelihood : str or Likelihood, default "gaussian"
        Distribution of a target given the latent function (`gigagp.likelihoods`). Student-t noise is robust to gross
        outliers; its degrees of freedom are learned, or given by ``likelihoods.StudentT(df=4.0)``. Laplace noise and
        Poisson counts, whose rate is ``exp(f)``, need ``inference.QuadruplyStochastic``, which ``inference="auto"``
        then selects, or ``inference.Vecchia``. The latter has all others, with parameters that are learned:
        ``"quantile"``, ``"censored"``, ``"negative-binomial"``, ``"zero-inflated-poisson"``,
        ``"zero-inflated-negative-binomial"``, ``"hurdle-poisson"``, ``"gamma"``, ``"weibull"``, ``"binomial"``,
        ``"beta"`` and ``"ordinal"``. ``"auto"`` compares up to 200 rows by evidence and left-out rows: counts as
        Gaussian, Poisson, negative binomial and, with zeros, zero-inflated; shares as Gaussian, beta and gamma;
        positive targets as Gaussian and gamma. Where Gaussian noise stays, it is compared with Student-t noise on up to
        500. `likelihood_` is what was taken, and `describe` says why. The documentation has a page on which to take.
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
        Columns of ``kernel`` are then those of the table. Columns with more than 50 categories are ``groups``.
    distributed : bool, default False
        Whether a fit shares its large computations with the other processes of the default group of
        ``torch.distributed``, all of which make the same call with the same rows and get the same model (the
        documentation has a page on it). `fit_table` then takes `inference.Grid`, whose processes share the files.
    outputs : {"auto", "independent", "shared", "correlated"}, default "auto"
        Hyperparameters of several targets. ``"independent"``: each target has its own, as in a fit of that target
        alone, which takes one fit for each. ``"shared"``: one kernel and one noise variance for all, as shares of each
        target's variance, in about the time of one fit; error bars are wrong for targets that vary differently.
        ``"correlated"``: one model that also learns how targets correlate (`kernels.Outputs`), with a constant and a
        noise variance for each; ``y`` may be NaN where a target was not observed.
        ``"auto"``: independent for up to 50 targets and 20,000 rows times targets, and shared beyond and in
        `fit_table`.
    noise : {"constant", "varying", "scaled", "auto"}, default "constant"
        Whether Gaussian noise has one variance, or one that depends on the inputs (`kernels.LocalVariance`, and from
        5,000 rows on `kernels.ScaleMap`) and is learned in a second fit. ``"varying"``: of the noise alone.
        ``"scaled"``: the function and its noise have the same scale, which differs from place to place, as heights in
        mountains and in plains. ``"auto"`` learns both where squared errors of left-out rows differ between places, of
        many rows only those that may gain as much as the other, and keeps the better one where it predicts left-out
        rows better than constant noise. Of kernels that are averaged, it uses the one with the largest weight.
    panel : (entity, time) or None, default None
        Columns of a long table, by name or number, that say of which entity and time each row is: sensors by hours,
        learning curves by epochs. Without a ``kernel``, each entity has an offset and a curve of its own, entities
        share another curve, and those whose other columns are alike have similar ones. All columns are read as with
        ``encode="auto"``. Columns of ``kernel`` are those of the table, where the entity is a number among all
        entities in their order. The documentation has a page on it.
    hyperparameters : {"auto", "learned", "laplace"}, default "auto"
        Hyperparameters of all answers. ``"learned"``: those that were learned, as if the rows determined them.
        ``"laplace"``: answers are averaged over draws from an approximate posterior of them, for Gaussian noise and
        `inference.Exact`, `inference.Iterative` or `inference.Vecchia`. ``"auto"``: draws for up to 500 rows where a
        rule averages kernels by exact inference, as by default, in at most twice the time of the fit; and otherwise
        ``"learned"`` (`gigagp.estimators.choices.open_hyperparameters`). ``kernel_`` and ``posterior_`` are at the
        learned values in any case, and so are the graphs of `gigagp.onnx` and the models of `gigagp.botorch`.
    groups : sequence of int, str, sequence or Group, default ()
        Columns of levels, by number or name, such as ``["shop", "item"]``: each adds a `kernels.Group`, an effect of
        each level, to the kernel. ``("shop", "department")`` stands for the combinations of two columns. The other
        parts of the kernel do not depend on these columns, nor does a linear mean.

    Attributes
    ----------
    outputs_ : {"independent", "shared", "correlated"}
        Whether several targets share hyperparameters, or correlate.
    estimators_ : tuple of GPRegressor
        A fitted estimator for each target that has hyperparameters of its own. Of several such targets, the attributes
        below, up to ``target_transform_``, are tuples with one item for each.
    kernel_ : Kernel
        Kernel with the learned hyperparameters.
    kernel_choice_ : KernelChoice or None
        Kernels that a rule for ``kernel`` has tried, with gains and weights; ``kernel_`` is the one with the largest
        weight.
    noise_variance_ : float or ndarray of shape (n,)
        Noise variance, learned or as given. Of correlated targets: one for each, or the given ones of the cells.
    likelihood_ : Likelihood
        Likelihood of the fit, with its learned parameters.
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
    hyperparameters_ : {"learned", "laplace"}
        Whether answers are at the learned hyperparameters, or averaged over draws of them.
    posterior_ : Posterior
        Posterior at the learned hyperparameters, in the units of the standardized problem.
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

    # What a fit leaves (`gigagp.estimators.attributes`). Where outputs have a model each, they are tuples.
    posterior_: Posterior
    scaling_: Scaling
    history_: History
    kernel_: Kernel
    kernel_choice_: KernelChoice | None
    noise_variance_: Any
    likelihood_note_: str
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
            Targets. Each of several has hyperparameters of its own, unless ``outputs`` says otherwise. For
            ``likelihood="censored"`` and ``"weibull"``, which have one target, it is an array of shape (n, 2): the
            lower and the upper limit of each target, equal where it was measured, and infinite where there is none.
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
        exposure : array-like of shape (n,), float or None, default None
            What each target was counted over, such as hours, areas or people, for likelihoods of counts and amounts:
            the mean of a target is its exposure times the rate. For ``likelihood="binomial"`` it is the number of
            trials. None: 1.
        offset : array-like of shape (n,), float or None, default None
            Known part of the latent function at each row, as the logarithm of an exposure is one; for likelihoods
            whose function is not in the units of the target.
        predict_at : array-like of shape (q, d), optional
            Points that are to be predicted, if they are known. A rule for the kernel and the forecast then leave
            patches of rows out as wide as the gaps that these points lie in. Without them, gaps are looked for in
            tables of up to three inputs (`gigagp.neighbours.folds`).
        blocks : array-like of shape (p,), optional
            For targets that are averages over areas: the label of the area of each point, a number or a text. ``X`` are
            then the points of all areas, shape (p, d), and ``y`` has one target for each area, in the ascending order
            of their labels; a pandas column is taken by its index, which must be the labels. The target of an area is
            the average of the function over its points plus noise, whose variance is that of an average. Predictions
            at points and `predict_average` then say what lies below. An area of one point is an ordinary row, and a
            point of two areas is there twice. It needs exact or iterative inference and Gaussian noise; ``"auto"`` is
            exact up to 3,000 areas. ``kernel=None`` is ``kernels.Matern(nu=1.5)``, with draws of the hyperparameters up
            to 500 areas of together 2,000 points. The documentation has a page on it.
        weights : array-like of shape (p,), optional
            Weight of each point within its area, at least 0, such as its size or its population. They are divided by
            their sum over the area. None: all points count alike.

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

        When to use: before a long fit. The hyperparameters are learned from neighbours, which takes seconds for any
        number of rows, and rows are predicted from the rows around them. Nothing of the estimator changes.

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
        Plan, or a tuple of them for outputs that are fitted one by one
            Options with seconds, the expected negative log density in nats and root mean square error of a new target
            in the data's units, and the chosen one. Printed, it is a table.

        Raises
        ------
        InvalidInputError
            If an argument or the data are invalid, if the likelihood is not Gaussian, or if an inference is given.
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
        open_rows = partial(RowSource, source, target, inputs, header=header, chunk_rows=chunk_rows)
        shared = self.distributed or getattr(self.inference, "distributed", False)
        with whole_or_unchanged(self, checkpoint), processes.joined(shared):
            regression_fit.fit_table(self, open_rows, bounds, checkpoint)
        warn_of_interruption(self.history_, checkpoint)
        return self

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
        """Likelihood of the fit, with the values of the parameters that were learned."""
        check_is_fitted(self, "posterior_")
        model = self.posterior_.model
        if model.student is not None:
            return StudentT(model.student.df)
        return self._likelihood.settled(model.of_likelihood)

    @each_output
    def noise_weights_(self) -> np.ndarray:
        """Weight of each training row, shape (n,), for Student-t noise; below 0.1 a row counts as an outlier.

        A row of weight w counts as one whose noise variance is ``1 / w`` times the squared scale of the noise. Rows
        that fit well have weights a little above 1.

        Raises
        ------
        AttributeError
            If the noise is not Student-t, or Laplace's method ran, which has no weights.
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
        """Whether answers are those at the learned hyperparameters, or mixed over draws of them."""
        check_is_fitted(self, "posterior_")
        return "learned" if self._uncertain is None else "laplace"

    @each_output
    def group_effects_(self) -> dict[str, GroupEffects]:
        """Effects of the levels of each group with their standard deviations, by the columns of levels.

        They are in the target's units, or in those of the latent function, and shrunk towards zero as the rows of each
        level ask for. With slopes, an effect is that at the centre of their inputs.

        Raises
        ------
        AttributeError
            If another inference method than `inference.Exact` or `Vecchia` ran, or the kernel has no `kernels.Group` as
            a term.
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
        """Predict the target: its mean, and how far this mean, or a measurement, may be off.

        The function that is predicted is ``E[y | f]``, the mean of measurements where the latent function f is known.
        With noise added to f, it is f itself. After a `target_transform`, and for counts and classes, it is in the
        target's units too: for ``likelihood="poisson"`` the rate ``exp(f)``, for ``"logistic"`` and ``"probit"``, whose
        targets are -1 and 1, the probability of 1 less that of -1. `predict_latent` has f.

        Before `fit` the predictions are those of the prior, for a single target: the kernel with its given values, in
        the units of X and y. A learned mean is then 0, and its uncertainty, which is infinite, is left out.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Points, or with ``encode="auto"`` a table like that of the fit.
        return_std : bool, default False
            Whether to return the standard deviation of this function as well.
        return_cov : bool, default False
            Whether to return the full covariance as well; iterative inference solves a linear system for each point.
        include_noise : bool, default False
            Whether the standard deviation is that of a new measurement: with the noise variance and the kernel's
            white terms, or with the spread of counts around their rate.
        variance : {"auto", "samples", "solve"}, default "auto"
            Source of the variances in iterative inference: the stored posterior samples together with nearest
            neighbours, where the kernel has a compiled program (``"auto"``); the samples alone; or a solve for each
            point, which is exact to the solver's tolerance and never below the exact variance.
        return_parts : bool, default False
            Whether to return the two parts of the latent standard deviation as well,
            ``UncertaintyParts(mathematical, computational)``: the uncertainty due to finite data, and that due to
            limited computation. Their squares add up to the latent variance. It takes O(n^3) time, so the table must be
            small enough for exact inference.
        hyperparameters : {"auto", "learned", "laplace"}, default "auto"
            Whether answers are those at the learned hyperparameters, or averaged over 8 to 32 draws from their
            approximate posterior, Laplace's (`gigagp.inference.uncertain_hyperparameters`). ``"auto"`` is
            what the argument of the estimator has come to (``hyperparameters_``). Draws that the fit has not made are
            made once, in some one to three times its time. Error bars of a few hundred rows become wider.
        exposure : array-like of shape (m,), float or None, default None
            What the target is counted over at each point (see `fit`): the mean and the deviation are those of the rate
            times the exposure, or of the successes in so many trials. None: 1.
        groups : bool, default True
            Whether the effects of groups (`kernels.Group`) are part of the function. False: the prediction is of the
            other parts alone. A level that no row of the fit has is predicted by its prior where they are a part.

        Returns
        -------
        mean : ndarray of shape (m,) or (m, n_targets)
            Mean of the target.
        std : ndarray of the same shape
            Standard deviation, if ``return_std``.
        cov : ndarray of shape (m, m) or (m, m, n_targets)
            Covariance, if ``return_cov``; of correlated targets (m, n_targets, m, n_targets), across all of them.
        parts : UncertaintyParts of two ndarrays with the shape of std
            Parts of the standard deviation, if ``return_parts``.

        Raises
        ------
        NonFiniteError
            If a returned number would not be finite, or a factorisation fails or a number overflows.
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
        """Predict averages of the target over blocks of points, such as districts, cells of a raster or days.

        When to use: where the average over an area or a period is asked for. Its standard deviation is smaller than
        that at a point, because errors at points partly cancel, and larger than if they were independent: it is that of
        the joint distribution of the points, ``W C W'``. `geo.Kriging.block_means` makes the points of polygons.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Points, as for `predict`. Give enough of each block to show how the function varies within it.
        blocks : array-like of shape (m,), default None
            Label of the block of each point, a number or a text. None: all points are one block.
        weights : array-like of shape (m,), default None
            Weight of each point within its block, at least 0, such as its area or its population. They are divided by
            their sum over the block. None: all points count alike.
        return_std : bool, default False
            Whether to return the standard deviation of each average as well.
        return_cov : bool, default False
            Whether to return the covariance of the averages as well. It takes the covariance of all m points at once;
            standard deviations alone take some whole blocks at a time.
        hyperparameters, exposure, groups
            As for `predict`. An ``exposure`` belongs to each point.

        Returns
        -------
        mean : ndarray of shape (b,) or (b, n_targets)
            Average of each block, in the ascending order of their labels (that of ``numpy.unique``).
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
        """Predict the latent function f, whose posterior is normal or taken to be.

        With noise added to f, as for ``likelihood="gaussian"``, ``"laplace"`` and ``"student-t"``, this is `predict`.
        For ``"poisson"`` it is the log rate, for ``"logistic"`` the log-odds, for ``"probit"`` the argument of the
        normal distribution function, and after a `target_transform` the function behind ``g(y)``, in its units.

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

        When to use: where points are sought by gradients, as acquisition functions of Bayesian optimization do, or
        where many small sets of points each need a joint distribution. `predict` is for tables.

        Mean, variance, covariance and samples have the derivatives of what they return, by closed forms of the kernel;
        beyond some MiB, nothing of the size of training rows times points is kept for them. Three places have none in
        the strict sense: at the training rows, values with a Matern-1/2 kernel have a kink (the derivative returned
        there leaves out that row); predictions by `inference.Vecchia` jump a little where the nearest rows of a point
        change; and the inputs of categories (`kernels.Categorical`) are treated as the numbers that they are.

        Before `fit` it is the distribution of the prior; see `predict`.

        Parameters
        ----------
        X : Tensor or array of shape (..., q, d)
            Points in the data's own units: batches of q points, whose joint distributions are returned. Covariances
            between batches are not computed.
        include_noise : bool, default False
            Whether to return the distribution of measurements.
        variance : {"auto", "samples", "solve"}, default "auto"
            Source of the variances in iterative inference, as for `predict`. Covariances and samples take a solve for
            each point there, so that they are those of ``"solve"``.
        hyperparameters : {"auto", "learned", "laplace"}, default "auto"
            As for `predict`. A mixture over draws or kernels is not normal: it has mean, variance and covariance, but
            no ``rsample`` and no ``log_prob``.

        Returns
        -------
        JointPosterior or TargetPosterior, or JointOutputs where each of several outputs has a model
            Object with ``mean``, ``variance``, ``covariance``, ``rsample`` and ``log_prob``; of counts and classes
            without the last one.

        Raises
        ------
        InvalidInputError
            If the points are invalid, or require a derivative that does not exist: after a `target_transform`, whose
            function is not normal in the target's units; with ``encode="auto"`` and columns that are not numbers; with
            a known function as mean (without gradients there is an answer).
        """
        predictor = joint_answering(self, X, hyperparameters)
        return predictor.joint(X, include_noise=include_noise, variance=variance)

    @guarded()
    @checks_arguments
    @by_output()
    def log_marginal_likelihood(self, random_state: RandomState = 0, *, standardized: bool = False) -> Estimate:
        """Return the log density of the training targets under the fitted model, in nats.

        It is a density in the targets' own units, with the Jacobian of a `target_transform`, so that it compares fits
        with other scales, transforms, kernels and packages. For counts it is a log probability.

        Parameters
        ----------
        random_state : int or generator
            Seed of probe vectors, for inferences that estimate it.
        standardized : bool, default False
            Whether to return the density of the transformed targets in the units that `scaling_` gives them, in
            which hyperparameters are learned.

        Returns
        -------
        Estimate
            Object with ``value`` and ``standard_error``, which is 0 for exact inference. For ComputationAware and
            SparseVariational, and for Student-t noise, the value is a lower bound of the log marginal likelihood.

        Raises
        ------
        InvalidInputError
            In own units, for a model with a `target_transform` from a file of a version that did not keep the Jacobian.
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

        It is that of `predict`: after a `target_transform`, and for counts and classes, ``E[y | f]``.

        Before `fit` the samples are those of the prior; see `predict`.

        Parameters
        ----------
        n_samples : int
            Number of samples. With iterative inference, `Iterative.n_samples` samples, shared by the targets, are
            stored; more need a solve.
        random_state : int or generator
            Seed of the samples.
        hyperparameters : {"auto", "learned", "laplace"}, default "auto"
            As for `predict`; with draws, each sample is at one of them.
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
        """Predict each row of the fit from all others, to see how good predictions and their error bars are.

        Nothing is fitted again: the hyperparameters are those of all rows, and the coefficients of the mean are those
        of the other rows (Rasmussen and Williams 2006, section 5.4.2). Scores of a few rows are therefore a little too
        good. A measurement that repeats another one's inputs is predicted from that one.

        Exact inference takes the diagonal from its factor, `inference.Markov` from its passes along the input, and
        `inference.Vecchia` from its sparse factor.
        `inference.Iterative` estimates it from posterior samples and nearest neighbours; its means have the error of
        the solve too.

        Parameters
        ----------
        groups : array-like of shape (n,), "entity" or None, default None
            The group of each row, all rows of which are left out together: each row is then predicted from the other
            groups. ``"entity"`` is that of a `panel`, so that whole curves are left out. It needs exact inference.
        hyperparameters : {"auto", "learned", "laplace"}, default "auto"
            As for `predict`; draws have the weights that all rows give them.

        Returns
        -------
        LeaveOneOut
            Means, standard deviations, log densities, and the standard errors of the deviations, in the order of the
            rows.

        Raises
        ------
        InvalidInputError
            If the inference method or the likelihood has no such answer, rows were left out of the fit, or a
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

        They are exact after a `target_transform` too, because it is increasing.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Points.
        q : float or array-like of shape (k,)
            Probabilities, between 0 and 1.
        include_noise : bool, default True
            Whether the quantiles are those of a new measurement, or else those of the function (see `predict`). Of
            counts they are whole numbers: the least count that is not exceeded with this probability.
        hyperparameters : {"auto", "learned", "laplace"}, default "auto"
            As for `predict`; ``"laplace"`` has the quantiles of the mixture, whose tails are heavier than normal ones.
        exposure : array-like of shape (m,), float or None, default None
            As for `predict`.

        Returns
        -------
        ndarray of shape (m,) or (m, n_targets), or with a last axis of size k for several probabilities
            Quantiles in the target's units.

        Raises
        ------
        InvalidInputError
            If a probability is not between 0 and 1; or, with ``include_noise``, where the noise variance of new rows is
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

        It is a density in the target's own units: the Jacobian of a `target_transform` is included. For counts it is
        a log probability.

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
        """Return the fit with further rows, at about the cost of the new ones; this fit stays unchanged.

        When to use: where rows arrive one after the other, as in Bayesian optimization, and for "what if" questions.
        Hyperparameters and scaling are those of the fit, so that predictions are those of a fit to all rows with the
        same kernel, noise variance and scaling, and ``optimizer=None``. Draws of the hyperparameters stay too, and get
        the weights that Bayes' rule gives them for the new rows. Where new rows change what is known of the
        hyperparameters, ``refit=True`` learns them again, from where they are.

        With n rows and k new ones, `inference.Exact` extends its Cholesky factor in O(n^2 k) time.
        `inference.Iterative` continues its solves from the old solutions, corrected by the prediction errors of the new
        rows, which saves a part of the steps. `inference.Vecchia` conditions the new rows alone, and builds the tree of
        all rows anew. `inference.Markov` passes over all rows. `inference.SparseVariational` without minibatches and
        `inference.RandomFeatures` add to their sums, and so does `inference.Grid`. Other methods, and likelihoods other
        than the Gaussian one, need a fit of all rows.

        `inference.Vecchia` keeps the neighbours of earlier rows, among which the new ones are not, so that the
        likelihood and the mean's coefficients differ slightly from those of a fit to all rows.

        Parameters
        ----------
        X : array-like of shape (k, d)
            Inputs. With `inference.Grid` they must lie within the grid.
        y : array-like of shape (k,) or (k, n_targets)
            Targets.
        noise_variance : array-like of shape (k,), float or None, default None
            Known noise variance of the new rows, in squared units of ``y``. It is required if the fit was given the
            noise variance of each row, and must otherwise be None.
        refit : bool, default False
            Whether to learn the hyperparameters again with all rows and their own scaling. Learning starts at the
            present hyperparameters. `inference.Grid` and `inference.SparseVariational` do not keep the rows for this.

        Returns
        -------
        GPRegressor
            A fitted estimator with the same arguments. It shares with this one whatever has not changed.

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
        """Add rows to this fit, as `condition_on` does for a new one.

        This method exists only where the inference can add rows. The first call is `fit`.

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
        """The fitted estimators of the outputs that have a model each; this one alone if there is one model."""
        check_is_fitted(self, "posterior_")
        return self._models or (self,)

    @property
    def outputs_(self) -> Literal["independent", "shared", "correlated"]:
        """Whether each output has hyperparameters of its own, several share them, or one model correlates them."""
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
        msg = f"return_std and return_cov of GPRegressor.{method} cannot both be True; the covariance has both."
        raise InvalidInputError(msg)
