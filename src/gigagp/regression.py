"""`GPRegressor`: the scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from gigagp import intake
from gigagp.answers import Answers, UncertaintyParts
from gigagp.custom import Custom
from gigagp.description import describe
from gigagp.fields import Count, Positive, Words, checks_arguments
from gigagp.fitted_state import fitted_to_state
from gigagp.fitting import Arguments, Fitted, add_rows, fit_rows, fit_source
from gigagp.guard import scored, warn_of_interruption, whole_or_unchanged
from gigagp.inference import Inference
from gigagp.inference.posterior import Posterior
from gigagp.kernels import Kernel
from gigagp.likelihoods import Likelihood
from gigagp.means import Mean, MeanLike
from gigagp.model import HyperparameterUnits
from gigagp.optimization import History
from gigagp.persistence import save
from gigagp.planning import InferenceChoice
from gigagp.progress import Verbosity
from gigagp.random import RandomState
from gigagp.restored_state import state_to_fitted
from gigagp.rows.source import RowSource
from gigagp.scaling import Scaling

__all__ = ["GPRegressor", "OptimizerChoice", "UncertaintyParts"]

#: What learns hyperparameters; `gigagp.optimization.optimizer.check_optimizer` says what that has to be.
OptimizerChoice = Any


def _adds_rows(estimator: GPRegressor) -> bool:
    """Whether rows can be added to a fit: what scikit-learn asks before it offers `partial_fit`."""
    used = getattr(estimator, "inference_", estimator.inference)
    if isinstance(used, Inference) and used.abilities.adds_rows:
        return True
    msg = (
        "partial_fit of GPRegressor can add rows to a fit with inference.Grid alone, which keeps sums over rows; this "
        f"one is of inference {used!r}. Fit all rows again."
    )
    raise AttributeError(msg)


class GPRegressor(Answers, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Gaussian-process regression for a hundred to a few hundred thousand rows.

    Parameters
    ----------
    kernel : Kernel or None, default None
        None: ``kernels.Matern(nu=1.5)`` with one lengthscale an input. Values given in it are where learning
        starts.
    inference : one of `gigagp.inference` or "auto", default "auto"
        ``"auto"``: exact up to 3,000 rows where the memory allows, iterative beyond (`gigagp.planning`).
    optimizer : one of `gigagp.optimization`, an `optimization.Optimizer` of your own, "auto" or None, default "auto"
        What learns the hyperparameters; None keeps the kernel's values and ``noise_variance``.
    mean : {"zero", "constant", "linear"} or callable, default "constant"
        Learned with the rest by generalised least squares; or a fixed function of ``X`` (in its own units, shape
        (n, d)) with values in the target's units, shape (n,). Counts and signs have a latent mean of zero; add
        `kernels.Constant` or `kernels.Linear` to the kernel.
    noise_variance : float, array-like of shape (n,) or None, default None
        In squared units of ``y``. A float is where learning starts (None: 0.09 of the target's variance). An array is
        the known variance of each row; it is not learned. With a `kernels.White` term in the kernel None means 0: that
        term is all the noise there is.
    standardize : bool, default True
        Centre and scale inputs and targets with training statistics, for learning. Hyperparameters, given or read, are
        in the data's own units all the same; `describe` prints both.
    dtype : {"float64", "float32", "mixed"}, default "float64"
        Of kernel products; small factors are float64 always. ``"mixed"``: float64, but for the products inside of
        iterative solvers, which are float32 and corrected with float64 residuals: the same answers, half of the time
        and the memory. An inference without such solves refuses it (``"auto"`` takes it, and is then exact in float64
        on small tables). `inference.Grid` is float64 alone.
    device : str, default "auto"
        ``"auto"``: CUDA if there is a device, otherwise the CPU. `inference.Grid` runs on the CPU alone.
    memory_budget : int, str or None, default None
        Bytes, or a text such as ``"4GiB"``, that fit and predict may take; None: half of what is free.
    verbose : int, default 0
        0: silent, 1: a progress bar on a terminal and lines elsewhere.
    random_state : int, RandomState, Generator or None, default 0
        Seeds probes, features and subsets; the same seed gives the same bits on the same machine.
    likelihood : {"gaussian", "laplace", "poisson"} or Likelihood, default "gaussian"
        Of a target given the latent function (`gigagp.likelihoods`): Laplace noise does not mind outliers, Poisson
        counts have the rate ``exp(f)``. All but the Gaussian are for ``inference.QuadruplyStochastic``, which
        ``"auto"`` then is.
    hyperparameter_units : {"own", "standardized"}, default "own"
        Units of the kernel's numbers and of a noise variance, given and read. ``"own"``: lengthscales, periods and
        bounds in the units of the inputs, variances in squared units of the target (with several targets, which are
        scaled apart, shares of the variance of each). ``"standardized"``: those of the problem that is solved, in
        standard deviations; for papers' configurations, and what models of earlier versions are in.

    Attributes
    ----------
    kernel_ : Kernel
        With learned hyperparameters.
    noise_variance_ : float or ndarray of shape (n,)
        Learned, or as given.
    history_ : History
        One record an outer step.
    inference_ : one of `gigagp.inference`
        What ran.
    optimizer_ : object or None
        What ran.
    solver_ : str or Solver
        ``"cholesky"`` or the iterative solver.
    engine_ : str
        What computed the kernel products, on which device, in which precision, dense or in tiles.
    posterior_ : Posterior
        Answers in the standardized problem's units.
    scaling_ : Scaling
    n_features_in_ : int
    feature_names_in_ : ndarray, if ``X`` had names

    See Also
    --------
    gigagp.load : read a saved model.

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
        kernel: Kernel | None = None,
        inference: InferenceChoice = "auto",
        optimizer: OptimizerChoice = "auto",
        mean: MeanLike = "constant",
        noise_variance: Any = None,
        standardize: bool = True,
        dtype: Literal["float64", "float32", "mixed"] = "float64",
        device: str = "auto",
        memory_budget: Positive | str | None = None,
        verbose: Verbosity = 0,
        random_state: RandomState = 0,
        likelihood: str | Likelihood = "gaussian",
        hyperparameter_units: HyperparameterUnits = "own",
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

    # ------------------------------------------------------------------ fitting

    @checks_arguments
    def fit(
        self,
        X: Any,
        y: Any,
        validation: Annotated[tuple[Any, Any], Words("a pair (X, y)")] | None = None,
        checkpoint: str | PathLike[str] | None = None,
    ) -> Self:
        """Learn the hyperparameters and solve for the posterior.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,) or (n, n_targets)
            Several targets share kernel, noise and solves.
        validation : (X, y) or None, default None
            Rows to score at every outer step on all rows; nothing is learned from them. The scores are in
            ``history_`` (`gigagp.optimization.Step`). For targets with Gaussian noise. What a step has at hand
            predicts; with `inference.Grid` and with a truncation or another predictor of `inference.RandomFeatures` a
            score costs as much as the posterior at the end of a fit.
        checkpoint : str, path or None, default None
            A file that keeps the state of the fit while it runs (`gigagp.checkpoint`). The same call after a kill
            goes on from there, to the same bits; the file is removed at the end.

        Returns
        -------
        GPRegressor
            Itself.

        Raises
        ------
        InvalidInputError
            For arguments or data that cannot be used, before any work.
        MemoryBudgetError
            If the job cannot fit the memory budget, or the machine has no more.

        Warns
        -----
        FitInterruptedWarning
            After Ctrl-C. The first one ends the learning at the best hyperparameters so far (a checkpoint stays), the
            second ends the fit, and the estimator is as it was before; so does the first where nothing was learned yet.
            `gigagp.interruption` has the details.
        """
        with whole_or_unchanged(self, checkpoint):
            self._fit(X, y, validation, checkpoint)
        warn_of_interruption(self.history_, checkpoint)
        return self

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

        def open_rows(mean: Mean) -> RowSource:
            return RowSource(source, target, inputs, header=header, chunk_rows=chunk_rows, offset=mean.offset)

        with whole_or_unchanged(self, checkpoint):
            self._fit_source(open_rows, bounds, checkpoint)
        warn_of_interruption(self.history_, checkpoint)
        return self

    @available_if(_adds_rows)  # type: ignore[untyped-decorator]  # scikit-learn has no types
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
        if not hasattr(self, "posterior_"):
            return self.fit(X, y)
        with whole_or_unchanged(self):
            X = intake.estimator_inputs(self, X, reset=False)
            names = getattr(self, "feature_names_in_", None)
            self._adopt(add_rows(self.posterior_, self.scaling_, X, y, names), self.scaling_)
        return self

    def _fit(self, X: Any, y: Any, validation: tuple[Any, Any] | None, checkpoint: str | PathLike[str] | None) -> None:
        arguments = Arguments.of(self)
        X = intake.estimator_inputs(self, X, reset=True, min_rows=2)
        y = intake.targets(y, len(X))
        self._take(fit_rows(arguments, X, y, validation, checkpoint), one_target=y.ndim == 1)

    def _take(self, fitted: Fitted, *, one_target: bool) -> None:
        """Take over what a fit has found."""
        self._one_target, self.inference_, self.optimizer_ = one_target, fitted.inference, fitted.optimizer
        self._adopt(fitted.posterior, fitted.scaling, fitted.history)

    def _fit_source(self, open_rows: Callable[[Mean], RowSource], bounds: Any, checkpoint: Any) -> None:
        """Fit rows that are not held, and take over the names of their columns."""
        fitted, rows = fit_source(self, open_rows, bounds, checkpoint)
        self.n_features_in_ = rows.n_inputs
        if rows.input_names is not None:
            self.feature_names_in_ = np.array(rows.input_names, dtype=object)
        elif hasattr(self, "feature_names_in_"):  # of an earlier fit
            del self.feature_names_in_
        self._take(fitted, one_target=rows.n_targets == 1 and (rows.one_target or rows.labels is not None))

    def _adopt(self, posterior: Posterior, scaling: Scaling, history: History | None = None) -> None:
        """Take a posterior over, and the history of the standardized problem that led to it."""
        model = posterior.model
        if history is not None:
            own = self.hyperparameter_units == "own"
            self.history_ = history.multiplied(model.unit_factors(scaling.units())) if own else history
        self.posterior_, self.scaling_ = posterior, scaling
        read = model.in_own_units(scaling.units()) if self.hyperparameter_units == "own" else model
        self.kernel_ = read.kernel
        self.noise_variance_ = read.noise_variance.cpu().numpy() if read.noise_is_known else float(read.noise_variance)
        self.solver_ = posterior.solver_name()
        self.engine_ = posterior.engine_name()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True  # made dense, where the memory budget holds that
        tags.requires_fit = False  # before one it answers from the prior
        return tags

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination of the predictions; see scikit-learn's `RegressorMixin.score`."""
        with scored():
            return float(super().score(X, intake.targets(y), sample_weight))

    # -------------------------------------------------------------- description

    def describe(self) -> str:
        """Return what ran and the hyperparameters, in the standardized problem's units and in the data's own."""
        check_is_fitted(self, "posterior_")
        return describe(self)

    # -------------------------------------------------------------- persistence

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted model to one file, atomically; `gigagp.load` reads it. See `gigagp.save`."""
        save(self, path)

    def _to_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        check_is_fitted(self, "posterior_")
        return fitted_to_state(self)

    @classmethod
    def _from_state(cls, tensors: dict[str, torch.Tensor], header: dict[str, Any], custom: Custom) -> GPRegressor:
        return state_to_fitted(cls, tensors, header, custom)
