"""`GPRegressor`: the scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from gigagp import intake
from gigagp.checkpoint import open_checkpoint
from gigagp.checks import resolve_device, resolve_dtype
from gigagp.custom import Custom
from gigagp.effect import refuse_for_fit, refuse_model, refuse_validation, refuse_without_effect
from gigagp.errors import InvalidInputError
from gigagp.estimate import Estimate
from gigagp.fields import Count, Positive, Words, check_parameters, checks_arguments
from gigagp.guard import finite_prediction, guarded, scored
from gigagp.inference import QuadruplyStochastic
from gigagp.inference.objective import TableObjective
from gigagp.inference.posterior import Posterior, SampleFunctions
from gigagp.inference.table import TrainingTable
from gigagp.kernels import Kernel, Matern
from gigagp.learning import learn_posterior, warn_of_interruption, whole_or_unchanged
from gigagp.likelihoods import Likelihood, resolve_likelihood
from gigagp.means import Mean, MeanLike, resolve_mean
from gigagp.memory import resolve_budget
from gigagp.model import HyperparameterUnits, StartModel
from gigagp.noise import start_noise
from gigagp.optimization import Auto, History
from gigagp.optimization.optimizer import check_optimizer
from gigagp.optimization.trace import Trace
from gigagp.planning import InferenceChoice, resolve_inference
from gigagp.progress import Verbosity, meter_for
from gigagp.random import RandomState, generator_from, spawn
from gigagp.scaling import Scaling
from gigagp.streamed_fit import StreamedFitting
from gigagp.unfitted import PriorFunctions, before_fit
from gigagp.validation import validation_scorer

#: What learns hyperparameters; `gigagp.optimization.optimizer.check_optimizer` says what that has to be.
OptimizerChoice = Any


class UncertaintyParts(NamedTuple):
    """Standard deviations of the latent function; the squares of the two add up to its variance.

    Attributes
    ----------
    mathematical : ndarray of shape (m,) or (m, n_targets)
        What finitely many rows leave open: the exact posterior's, at the same hyperparameters.
    computational : ndarray of shape (m,) or (m, n_targets)
        What was not computed leaves open on top; zero for exact inference.
    """

    mathematical: np.ndarray
    computational: np.ndarray


class GPRegressor(StreamedFitting, MultiOutputMixin, RegressorMixin, BaseEstimator):
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

    def _fit(self, X: Any, y: Any, validation: tuple[Any, Any] | None, checkpoint: str | PathLike[str] | None) -> None:
        check_parameters(self)
        X = intake.estimator_inputs(self, X, reset=True, min_rows=2)
        y = intake.targets(y, len(X))
        dtype, device = resolve_dtype(self.dtype), resolve_device(self.device)
        budget = resolve_budget(self.memory_budget, device)
        targets = y if y.ndim == 2 else y[:, None]
        mean = resolve_mean(self.mean)
        offset = mean.offset(X)
        likelihood = resolve_likelihood(self.likelihood)
        scaling = Scaling.fit(X, targets - offset[:, None], self.standardize)
        if not likelihood.has_noise:  # counts and signs have no scale
            scaling = scaling.of_inputs_only()
        model = self._start_model(mean, X.shape[0], targets.shape[1]).standardized(scaling.units())
        optimizer = self._resolve_optimizer()
        inference = resolve_inference(self.inference, X.shape[0], dtype.itemsize, budget, likelihood)
        refuse_without_effect(self, inference, likelihood)
        refuse_for_fit(inference)
        if validation is not None:
            refuse_validation(optimizer, likelihood)
        refuse_model(inference, model)

        generator, meter = generator_from(self.random_state), meter_for(self.verbose)
        table = TrainingTable(
            torch.from_numpy(scaling.inputs(X)).to(dtype=dtype, device=device),
            torch.from_numpy(scaling.targets(targets - offset[:, None])).to(dtype=dtype, device=device),
            mean,
            budget,
            mixed=self.dtype == "mixed",
        ).require_finite()
        if isinstance(inference, QuadruplyStochastic):
            objective: TableObjective = inference.objective(table, spawn(generator), likelihood)
        else:
            objective = inference.objective(table, spawn(generator))
        validate = None if validation is None else validation_scorer(validation, scaling, table)
        history = History()
        log = None if checkpoint is None else open_checkpoint(checkpoint, self, objective, model)
        trace = Trace(history, meter, validate, log)
        with meter:
            posterior = learn_posterior(objective, model, optimizer, trace, generator)
        if log is not None and history.interrupted != "learning":
            log.remove()
        self._one_target = y.ndim == 1
        self.inference_, self.optimizer_ = inference, optimizer
        self._adopt(posterior, scaling, history)

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

    def _start_model(self, mean: Mean, n_rows: int, n_targets: int) -> StartModel:
        kernel = Matern(nu=1.5) if self.kernel is None else self.kernel
        noise = start_noise(self.noise_variance, kernel, n_rows)
        if noise is not None and noise.ndim == 1 and n_targets > 1 and self.standardize:
            msg = (
                "noise_variance of GPRegressor as an array needs one target, or standardize=False: several targets "
                f"are scaled differently; got {n_targets} targets."
            )
            raise InvalidInputError(msg)
        return StartModel(kernel, mean, noise, self.hyperparameter_units)

    def _resolve_optimizer(self) -> Any:
        if isinstance(self.optimizer, str) and self.optimizer == "auto":
            return Auto()
        check_optimizer(self.optimizer)
        return self.optimizer

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True  # made dense, where the memory budget holds that
        tags.requires_fit = False  # before one it answers from the prior
        return tags

    # --------------------------------------------------------------- prediction

    def _new_inputs(self, X: Any) -> tuple[np.ndarray, torch.Tensor]:
        X = intake.estimator_inputs(self, X, reset=False)
        points = torch.from_numpy(self.scaling_.inputs(X)).to(self.posterior_.X)
        refusal = self.posterior_.refusal(points, self.scaling_, getattr(self, "feature_names_in_", None))
        if refusal is not None:
            raise refusal
        return X, points

    def _in_units(self, values: torch.Tensor, X: np.ndarray) -> np.ndarray:
        """Return means or samples, (m, t) or (m, t, s), in the targets' units, without the axis of one target."""
        array = self.scaling_.original(values.double().cpu().numpy())
        offset = self.posterior_.model.mean.offset(X)
        array = finite_prediction(array + offset.reshape((-1,) + (1,) * (array.ndim - 1)))
        return array[:, 0] if self._one_target else array

    @guarded()
    @checks_arguments
    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        *,
        include_noise: bool = False,
        variance: Literal["auto", "samples", "solve"] = "auto",
        return_parts: bool = False,
    ) -> Any:
        """Predict the latent function.

        Before `fit` these are predictions of the prior: the kernel at the values it was given, in the units of X and y,
        and one target. A learned mean is 0 there, and its uncertainty, which is infinite, is left out.

        Parameters
        ----------
        X : array-like of shape (m, d)
        return_std : bool, default False
            Also return the standard deviation of the latent function.
        return_cov : bool, default False
            Also return the full covariance, (m, m); one linear solve for each point.
        include_noise : bool, default False
            Add the noise (and the kernel's white part): the spread of a new observation.
        variance : {"auto", "samples", "solve"}, default "auto"
            With iterative inference: from the stored posterior samples (``"auto"``), or from a solve for each point,
            exact to the solver's tolerance and never below the exact variance.
        return_parts : bool, default False
            Also return the two parts of the latent standard deviation, ``UncertaintyParts(mathematical,
            computational)``: what the data leave open, and what computation-aware inference left uncomputed. Their
            squares add up to the latent variance. O(n^3) time: for tables that exact inference could do.

        Returns
        -------
        mean : ndarray of shape (m,) or (m, n_targets)
        std : ndarray of the same shape, if ``return_std``
        cov : ndarray of shape (m, m) or (m, m, n_targets), if ``return_cov``
        parts : UncertaintyParts of two ndarrays shaped like std, if ``return_parts``

        Raises
        ------
        NonFiniteError
            If a number that would be returned is not finite, or the arithmetic breaks down on the way.
        MemoryBudgetError
            If the machine has no memory for it.
        """
        if return_std and return_cov:
            msg = "return_std and return_cov of GPRegressor.predict cannot both be True; the covariance has both."
            raise InvalidInputError(msg)
        if not hasattr(self, "posterior_"):
            prior = before_fit(self, X)
            return prior.predict(
                X, return_std, return_cov, include_noise=include_noise, variance=variance, return_parts=return_parts
            )
        X, points = self._new_inputs(X)
        if return_parts:
            found = self.predict(X, return_std, return_cov, include_noise=include_noise, variance=variance)
            parts = (self._spread(part) for part in self.posterior_.variance_parts(points))
            return (*(found if isinstance(found, tuple) else (found,)), UncertaintyParts(*parts))
        if not return_std and not return_cov:
            return self._in_units(self.posterior_.mean(points), X)
        if include_noise and not resolve_likelihood(self.likelihood).has_noise:
            msg = (
                f"include_noise of GPRegressor.predict must be False: {self.likelihood} targets have no noise variance."
            )
            raise InvalidInputError(msg)
        noise = self.posterior_.noise_at(points) if include_noise else points.new_zeros(points.shape[0])
        if return_cov:
            covariance = self.posterior_.covariance(points) + torch.diag(noise)
            array = finite_prediction(self.scaling_.covariances(covariance.double().cpu().numpy()))
            return self._in_units(self.posterior_.mean(points), X), array[:, :, 0] if self._one_target else array
        mean, latent = self.posterior_.mean_and_variance(points, method=variance)
        return self._in_units(mean, X), self._spread(latent + noise)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination of the predictions; see scikit-learn's `RegressorMixin.score`."""
        with scored():
            return float(super().score(X, intake.targets(y), sample_weight))

    def _spread(self, variance: torch.Tensor) -> np.ndarray:
        """Return standard deviations in the targets' units, without the axis of one target."""
        std = finite_prediction(self.scaling_.spreads(variance.sqrt().double().cpu().numpy()))
        return std[:, 0] if self._one_target else std

    @guarded()
    @checks_arguments
    def sample_functions(self, n_samples: Count = 1, random_state: RandomState = 0) -> Callable[[Any], np.ndarray]:
        """Return posterior samples of the latent function that can be evaluated anywhere, again and again.

        Before `fit`: samples of the prior, see `predict`.

        Parameters
        ----------
        n_samples : int
            With iterative inference `Iterative.n_samples`, shared by the targets, cost nothing; more cost a solve.
        random_state : int or generator

        Returns
        -------
        callable
            From points (m, d) to values (m, n_samples) or (m, n_targets, n_samples).
        """
        if not hasattr(self, "posterior_"):
            return PriorFunctions(self, n_samples, random_state)
        functions: SampleFunctions = self.posterior_.sample_functions(n_samples, generator_from(random_state))

        @guarded()
        def evaluate(X: Any) -> np.ndarray:
            X, points = self._new_inputs(X)
            return self._in_units(functions(points), X)

        return evaluate

    @guarded()
    @checks_arguments
    def sample_y(self, X: Any, n_samples: Count = 1, random_state: RandomState = 0) -> np.ndarray:
        """Draw samples of the latent function at given points; before `fit`, of the prior (see `predict`).

        Parameters
        ----------
        X : array-like of shape (m, d)
        n_samples : int
        random_state : int or generator

        Returns
        -------
        ndarray of shape (m, n_samples) or (m, n_targets, n_samples)
            Joint over the points. With exact inference and up to 2,000 points they come from the full covariance.
        """
        if not hasattr(self, "posterior_"):
            return before_fit(self, X).sample_y(X, n_samples, random_state)
        checked, points = self._new_inputs(X)
        if self.posterior_.covariance_is_cheap and points.shape[0] <= 2000:
            return self._in_units(self.posterior_.sample_at(points, n_samples, generator_from(random_state)), checked)
        return self.sample_functions(n_samples, random_state)(X)

    @guarded()
    @checks_arguments
    def log_marginal_likelihood(self, random_state: RandomState = 0) -> Estimate:
        """Return the log marginal likelihood of the training targets in the standardized problem's units.

        Returns
        -------
        Estimate
            ``value`` and ``standard_error``; exact inference has standard error 0. With inference.ComputationAware and
            SparseVariational the value is their lower bound, and the log marginal likelihood is at least that.
        """
        check_is_fitted(self, "posterior_")
        return self.posterior_.log_marginal_likelihood(generator_from(random_state))

    # -------------------------------------------------------------- description

    def describe(self) -> str:
        """Return what ran and the hyperparameters, in the standardized problem's units and in the data's own."""
        check_is_fitted(self, "posterior_")
        from gigagp.description import describe

        return describe(self)

    # -------------------------------------------------------------- persistence

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted model to one file, atomically; `gigagp.load` reads it. See `gigagp.save`."""
        from gigagp.persistence import save

        save(self, path)

    def _to_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        from gigagp.fitted_state import fitted_to_state

        check_is_fitted(self, "posterior_")
        return fitted_to_state(self)

    @classmethod
    def _from_state(cls, tensors: dict[str, torch.Tensor], header: dict[str, Any], custom: Custom) -> GPRegressor:
        from gigagp.restored_state import state_to_fitted

        return state_to_fitted(cls, tensors, header, custom)
