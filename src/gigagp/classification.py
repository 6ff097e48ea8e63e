"""`GPClassifier`: the scikit-learn estimator for classification."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from os import PathLike
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d

from gigagp.errors import InvalidInputError
from gigagp.estimators import regression_fit
from gigagp.estimators.base import GaussianProcess
from gigagp.estimators.guard import scored, warn_of_interruption, whole_or_unchanged
from gigagp.estimators.planning import InferenceChoice
from gigagp.estimators.saving.fitted_state import fitted_to_state
from gigagp.estimators.saving.restored_state import restored_classes
from gigagp.kernels import Chosen, Kernel
from gigagp.kernels.composite import summands
from gigagp.kernels.group import GroupsLike, numbered, with_groups
from gigagp.model.likelihoods import Logistic, Probit
from gigagp.model.model import HyperparameterUnits
from gigagp.regression import GPRegressor, OptimizerChoice
from gigagp.runtime.progress import Verbosity
from gigagp.settings.custom import Custom
from gigagp.settings.fields import Count, Positive, Words, check_parameters, checks_arguments
from gigagp.settings.random import RandomState
from gigagp.tables import intake
from gigagp.tables.encoding import Encode
from gigagp.tables.files.labels import Labels
from gigagp.tables.rows.source import RowSource

#: Likelihood argument: one for two classes.
LikelihoodChoice = Annotated[
    Literal["logistic", "probit"] | Logistic | Probit, Words('"logistic" or "probit", as a string or an object')
]
#: Smallest probability, so that its logarithm is finite.
_LEAST = 1e-300


class GPClassifier(ClassifierMixin, GaussianProcess):
    """Gaussian-process classification for any number of rows and basis functions.

    The probability of a class depends on a latent Gaussian process, which quadruply stochastic inference learns
    (`gigagp.inference.QuadruplyStochastic`). For more than two classes there is one latent function per class (one
    against the rest); all are learned in one fit and share the kernel.

    Parameters
    ----------
    kernel : Kernel or None, default None
        Kernel of the latent functions; learning starts from its values. None: ``kernels.RBF()`` with one lengthscale
        per input, unless ``kernels.RationalQuadratic()`` is clearly better on up to 500 of the rows, by the approximate
        evidence and by leave-one-out densities (``latent_.describe()``). They are not compared with fewer than 100
        rows.
    inference : one of `gigagp.inference` that supports likelihoods of classes, or "auto", default "auto"
        Inference method. ``"auto"`` is ``QuadruplyStochastic()``: Newton's method on all rows up to 20,000 rows, and
        sampled steps above that.
    optimizer : SparseAdam, SparseAdaGrad, SparseSGD, Auto, "auto" or None, default "auto"
        Optimizer. ``"auto"`` learns the hyperparameters on up to 1,000 rows, first with the labels as numeric targets
        and then by the bound of the likelihood; sampled ascent, if it is used, continues from there.
    likelihood : {"logistic", "probit"}, default "logistic"
        Probability of a class given the latent function.
    standardize : bool, default True
        Whether to centre and scale the inputs, as `GPRegressor` does.
    dtype, device, memory_budget, verbose, random_state, hyperparameter_units, time_budget, encode
        The same as for `GPRegressor`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted class labels.
    latent_ : GPRegressor
        Latent functions: that of the second class if there are two, or one for each class.
    n_features_in_ : int
        Number of inputs.
    feature_names_in_ : ndarray
        Names of the inputs, if ``X`` had names.

    Examples
    --------
    >>> import numpy as np
    >>> from gigagp import GPClassifier, inference, optimization
    >>> X = np.linspace(-3, 3, 80)[:, None]
    >>> gp = GPClassifier(
    ...     inference=inference.QuadruplyStochastic(n_basis=100), optimizer=optimization.SparseAdam(steps=200)
    ... )
    >>> gp.fit(X, np.where(X[:, 0] > 0, "right", "left")).predict([[-2.0], [2.0]]).tolist()
    ['left', 'right']
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        inference: InferenceChoice = "auto",
        optimizer: OptimizerChoice = "auto",
        likelihood: LikelihoodChoice = "logistic",
        standardize: bool = True,
        dtype: Literal["float64", "float32"] = "float64",
        device: str = "auto",
        memory_budget: Positive | str | None = None,
        verbose: Verbosity = "auto",
        random_state: RandomState = 0,
        hyperparameter_units: HyperparameterUnits = "own",
        time_budget: Positive | str | None = None,
        encode: Encode = "strict",
        groups: GroupsLike = (),
    ) -> None:
        self.kernel = kernel
        self.inference = inference
        self.optimizer = optimizer
        self.likelihood = likelihood
        self.standardize = standardize
        self.dtype = dtype
        self.device = device
        self.memory_budget = memory_budget
        self.verbose = verbose
        self.random_state = random_state
        self.hyperparameter_units = hyperparameter_units
        self.time_budget = time_budget
        self.encode = encode
        self.groups = groups

    @checks_arguments
    def fit(self, X: Any, y: Any, checkpoint: str | PathLike[str] | None = None) -> Self:
        """Learn the latent functions.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n,)
            Labels of any kind, with at least two classes.
        checkpoint : str, path or None, default None
            File for the state of the fit, as for `GPRegressor.fit`.

        Raises
        ------
        InvalidInputError
            If all labels are the same, or an argument is invalid.
        """
        with whole_or_unchanged(self, checkpoint):
            self._fit(X, y, checkpoint)
        warn_of_interruption(self.latent_.history_, checkpoint)
        return self

    @checks_arguments
    def fit_table(
        self,
        source: Any,
        target: str | None = None,
        inputs: Sequence[str] | None = None,
        *,
        classes: Sequence[Any] | None = None,
        checkpoint: str | PathLike[str] | None = None,
        chunk_rows: Count = 2**20,
        header: bool | None = None,
    ) -> Self:
        """Learn from a table that is not held in memory, by minibatches from random places.

        When to use: for more rows than fit into memory. A table that fits is read, and the result is that of `fit`.

        Parameters
        ----------
        source, inputs, checkpoint, chunk_rows, header
            The same as for `GPRegressor.fit_table`. Parquet files are read where rows are needed. The rows of CSV
            files, callables and generators are first written to a temporary file (8 bytes per number).
        target : str, optional
            Column of labels, for files and data frames.
        classes : sequence, optional
            All labels. None: they are determined by a first pass over the column of labels.

        Raises
        ------
        InvalidInputError
            If all labels are the same, a label is not in ``classes``, or a row is invalid; the message names the file
            and the row.
        """
        check_parameters(self)
        labels, latent = Labels(classes), self._latent()
        open_rows = partial(RowSource, source, target, inputs, header=header, chunk_rows=chunk_rows, labels=labels)
        with whole_or_unchanged(self, checkpoint):
            regression_fit.fit_table(latent, open_rows, None, checkpoint)
            assert labels.classes is not None
            self.classes_, self.latent_, self.n_features_in_ = labels.classes, latent, latent.n_features_in_
            self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
            if hasattr(latent, "feature_names_in_"):  # the latent functions take arrays, which have no names
                self.feature_names_in_ = latent.__dict__.pop("feature_names_in_")
        warn_of_interruption(latent.history_, checkpoint)
        return self

    def _fit(self, X: Any, y: Any, checkpoint: str | PathLike[str] | None) -> None:
        check_parameters(self)
        X, encoded = self._checked_inputs(X, reset=True, min_rows=2)
        if getattr(y, "ndim", 1) == 2 and y.shape[1] == 1:
            column_or_1d(y, warn=True)  # the warning of scikit-learn
        y = intake.labels(y, encoded)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            msg = f"y of GPClassifier.fit must have at least two classes; got one class, {self.classes_.tolist()[0]!r}."
            raise InvalidInputError(msg)
        if len(self.classes_) == 2:
            signs = 2.0 * codes - 1.0
        else:  # one against the rest
            signs = np.where(codes[:, None] == np.arange(len(self.classes_)), 1.0, -1.0)
        latent = self._latent()
        regression_fit.fit(latent, X, signs, checkpoint=checkpoint)  # `fit` of the classifier warns of interruptions
        self.latent_ = latent

    def _latent(self) -> GPRegressor:
        """Return the unfitted estimator of the latent functions, which has all arguments of this one."""
        arguments = {name: getattr(self, name) for name in GPClassifier._get_param_names()}
        names, groups = getattr(self, "feature_names_in_", None), with_groups(None, self.groups)
        if isinstance(self.kernel, Kernel):
            arguments["kernel"] = numbered(self.kernel, names)
        elif self.kernel is None:
            arguments["kernel"] = Chosen(default="rbf")
        arguments["groups"] = () if groups is None else summands(numbered(groups, names))
        return GPRegressor(**arguments, mean="zero", outputs="shared")

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy; see scikit-learn's `ClassifierMixin.score`."""
        with scored():
            return float(super().score(X, intake.labels(y), sample_weight))

    def _inputs(self, X: Any) -> Any:
        check_is_fitted(self)
        return self._checked_inputs(X, reset=False)[0]

    def _checked_inputs(self, X: Any, *, reset: bool, min_rows: int = 1) -> tuple[Any, int]:
        """Return what the latent functions take, and the number of rows: numbers, or a table that they encode."""
        if (self.encode if reset else self.latent_.encode) == "auto":
            return X, intake.check_features(self, X, reset=reset, min_rows=min_rows)
        values = intake.estimator_inputs(self, X, reset=reset, min_rows=min_rows)
        return values, len(values)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the log-odds of each class against the rest, shape (m,) for two classes, else (m, n_classes).

        They are the log-odds of the averaged probabilities, so they rank rows as `predict_proba` does, and they
        distinguish rows whose probability rounds to one. ``latent_.predict_latent`` returns the latent function itself.
        """
        own, rest = self._against_the_rest(X)
        return np.log(own) - np.log(rest)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes, shape (m, n_classes), averaged over the latent posterior.

        For more than two classes, the one-against-the-rest probabilities are normalised to sum to one.
        """
        own, rest = self._against_the_rest(X)
        if own.ndim == 1:
            return np.stack([rest, own], 1)
        return own / own.sum(1, keepdims=True)

    def _against_the_rest(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the averaged probabilities of each class and of the rest, each to full relative precision."""
        X = self._inputs(X)  # first, because it raises `NotFittedError` before `latent_` is accessed
        mean, std = (torch.from_numpy(part) for part in self.latent_.predict_latent(X, return_std=True))
        likelihood = self.latent_.likelihood_
        assert isinstance(likelihood, Logistic | Probit)
        own, rest = (likelihood.mean_probability(side, std).clamp_min(_LEAST).numpy() for side in (mean, -mean))
        return own, rest

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of every row, from the median of the latent posterior, without variances."""
        X = self._inputs(X)
        latent = self.latent_.predict_latent(X)
        return self.classes_[(latent > 0).astype(int) if latent.ndim == 1 else latent.argmax(1)]

    def log_marginal_likelihood(self) -> Any:
        """Return the lower bound of the log marginal likelihood, summed over one-against-the-rest problems."""
        check_is_fitted(self)
        return self.latent_.log_marginal_likelihood()

    def plot(self, X: Any = None, y: Any = None, **options: Any) -> Any:
        """Draw the probabilities of classes, with their uncertainty; see `gigagp.plots.plot`.

        Parameters
        ----------
        X, y : array-like, optional
            Rows and their labels, to draw as data points. With more than three inputs, the rows to average over.
        **options
            Arguments of `gigagp.plots.plot`; ``target`` is the number of a single class, if there are more than two.
        """
        check_is_fitted(self)
        from gigagp.plots import plot  # here, so that it costs nothing to import an estimator

        return plot(self, X, y, **options)

    # -------------------------------------------------------------- persistence

    def _to_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        check_is_fitted(self)
        if self.classes_.dtype.kind not in "biufUSO" or not all(
            isinstance(one, bool | int | float | str) for one in self.classes_.tolist()
        ):
            msg = f"classes of GPClassifier must be numbers or strings to be saved; got {self.classes_.dtype}."
            raise InvalidInputError(msg)
        tensors, header = fitted_to_state(self.latent_)
        classes = {"dtype": self.classes_.dtype.str, "values": self.classes_.tolist()}
        names = [str(name) for name in getattr(self, "feature_names_in_", [])]
        return tensors, {**header, "classes": classes, "had_kernel": self.kernel is not None, "feature_names": names}

    @classmethod
    def _from_state(cls, tensors: dict[str, Any], header: dict[str, Any], custom: Custom) -> GPClassifier:
        own = header if "encoder" in header else {**header, "feature_names": []}  # only encoders take named tables
        latent = GPRegressor._from_state(tensors, own, custom)
        classes, names = restored_classes(header, latent)
        estimator = cls(**{name: getattr(latent, name) for name in cls._get_param_names()})
        if not header["had_kernel"]:
            estimator.kernel = None
        estimator.latent_, estimator.n_features_in_ = latent, latent.n_features_in_
        estimator.classes_ = classes
        if names:
            estimator.feature_names_in_ = np.array(names, dtype=object)
        return estimator
