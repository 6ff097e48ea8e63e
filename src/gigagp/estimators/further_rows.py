"""Further rows for a fit: `condition_on` and `partial_fit` of `GPRegressor`."""

from __future__ import annotations

import copy
from typing import Any, Self

from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from gigagp.errors import InvalidInputError
from gigagp.estimators.added_rows import add_rows, cannot_add, rows_of
from gigagp.estimators.answers.outputs import columns_of
from gigagp.estimators.arguments import Arguments
from gigagp.estimators.fitted_model import FittedModel
from gigagp.estimators.fitting import fit_rows
from gigagp.estimators.guard import warn_of_interruption, whole_or_unchanged
from gigagp.inference import Inference
from gigagp.inference.contract.posterior import GrowingPosterior
from gigagp.inference.registry import adding_names
from gigagp.kernels.stationary import require_taken
from gigagp.model.likelihoods import Gaussian, resolve_likelihood
from gigagp.runtime.run import naming
from gigagp.settings.brief import output_name
from gigagp.settings.fields import checks_arguments
from gigagp.tables.encoding import fitted_encoder, model_inputs


def _adds_rows(estimator: FurtherRows) -> bool:
    """Whether rows can be added to a fit; scikit-learn asks this before it offers `partial_fit`."""
    if hasattr(estimator, "posterior_"):
        for one in estimator.estimators_:
            if not isinstance(one.posterior_, GrowingPosterior):
                raise AttributeError(f"{cannot_add('partial_fit', one.posterior_)} Fit all rows again.")
        return True
    used = estimator.inference
    if isinstance(used, Inference) and used.abilities.adds_rows:
        return True
    if isinstance(used, str) and used == "auto" and isinstance(resolve_likelihood(estimator.likelihood), Gaussian):
        return True
    msg = (
        f"partial_fit of GPRegressor can add rows only to a fit with {adding_names()}; the inference of this one is "
        f"{used!r}. Fit all rows again."
    )
    raise AttributeError(msg)


class FurtherRows(FittedModel):
    """Methods that add rows to a fit."""

    @checks_arguments
    def condition_on(self, X: Any, y: Any, noise_variance: Any = None, *, refit: bool = False) -> Self:
        """Return the fit with further rows, for about the price of what is new; this one stays as it is.

        When to use: where rows arrive one after the other, as in Bayesian optimization, and for "what if" questions.
        Hyperparameters and scaling are those of the fit, so that predictions are those of a fit to all rows with the
        same kernel, noise variance and scaling, and ``optimizer=None``. Where new rows change what is known of the
        hyperparameters, ``refit=True`` learns them again, from where they are.

        With n rows and k new ones, `inference.Exact` extends its Cholesky factor in O(n^2 k) time.
        `inference.Iterative` continues its solves from the old solutions, corrected by the prediction errors of the new
        rows, which saves a part of the steps. `inference.Vecchia` conditions the new rows alone, and builds the tree of
        all rows anew. `inference.SparseVariational` without minibatches and `inference.RandomFeatures` add to their
        sums, and so does `inference.Grid`. Other methods, and likelihoods other than the Gaussian one, need a fit of
        all rows.

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
            found._grow(X, y, noise_variance, refit, "condition_on")
        return found

    @available_if(_adds_rows)  # type: ignore[untyped-decorator]  # scikit-learn has no types
    @checks_arguments
    def partial_fit(self, X: Any, y: Any, noise_variance: Any = None, *, refit: bool = False) -> Self:
        """Add rows to this fit, as `condition_on` does for a new one.

        This method exists only where the inference can add rows. The first call is `fit`.

        Parameters
        ----------
        X : array-like of shape (k, d)
            Inputs.
        y : array-like of shape (k,) or (k, n_targets)
            Targets.
        noise_variance : array-like of shape (k,), float or None, default None
            As for `condition_on`.
        refit : bool, default False
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
            If the rows exceed the memory budget or the memory of the machine.
        """
        if not hasattr(self, "posterior_"):
            if noise_variance is not None:
                msg = "noise_variance of the first partial_fit, which is a fit, is an argument of GPRegressor; got one."
                raise InvalidInputError(msg)
            found: Self = self.fit(X, y)
            return found
        with whole_or_unchanged(self):
            self._grow(X, y, noise_variance, refit, "partial_fit")
        return self

    def _grow(self, X: Any, y: Any, noise_variance: Any, refit: bool, method: str) -> None:
        """Add rows to this estimator, in the name of a public method."""
        if self._models:
            columns = columns_of(y, len(self._models), f"y of {method}")
            grown = [copy.copy(one) for one in self._models]
            for number, (one, column) in enumerate(zip(grown, columns, strict=True)):
                with naming(output_name(number)):
                    one._grow(X, column, noise_variance, refit, method)
            self._take_outputs(grown)
            return
        if refit:
            self._check_refit(method)
        X = model_inputs(self, X, reset=False)
        names = getattr(self, "feature_names_in_", None)
        require_taken(self.posterior_.model.kernel, X, names)
        units = self.scaling_, self.target_transform_
        self._adopt(add_rows(self.posterior_, *units, X, y, noise_variance, names, method), self.scaling_)
        if refit:
            start = copy.copy(self)
            start.kernel, start.noise_variance, start.outputs = self.kernel_, self.noise_variance_, self.outputs_
            rows = rows_of(self.posterior_, *units, one_target=self._one_target)
            fitted = fit_rows(Arguments.of(start), *rows)
            self._take(fitted._replace(choice=self.kernel_choice_), one_target=self._one_target)
            warn_of_interruption(self.history_, None)

    def _check_refit(self, method: str) -> None:
        """Refuse to learn again where nothing would be learned, or from other columns."""
        if self.optimizer is None:
            msg = f"refit of {method} must be False for an estimator with optimizer=None, which learns nothing."
            raise InvalidInputError(msg)
        if fitted_encoder(self) is not None:
            msg = (
                f'refit of {method} must be False with encode="auto", whose table is not kept. Call fit with all rows.'
            )
            raise InvalidInputError(msg)
        rows_of(self.posterior_, self.scaling_, self.target_transform_, one_target=self._one_target)
