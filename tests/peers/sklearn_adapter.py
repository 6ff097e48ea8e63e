"""gigagp behind the names of scikit-learn's Gaussian processes: translation, and nothing that gigagp does not do.

What scikit-learn offers and gigagp does not is left out, so that its tests fail here and stand in the list of
differences.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.gaussian_process import kernels as sk

from gigagp import GPClassifier, GPRegressor, inference, kernels, optimization
from gigagp.inference.exact.exact import ExactObjective
from gigagp.model.model import NOISE


def translated(kernel):
    """Return our kernel for one of scikit-learn's, with its bounds; learned values are in the order of ``theta``."""
    if isinstance(kernel, sk.Sum):
        return translated(kernel.k1) + translated(kernel.k2)
    if isinstance(kernel, sk.Product):
        return translated(kernel.k1) * translated(kernel.k2)
    if type(kernel) is sk.RBF:
        return _leaf(kernel, kernels.RBF, length_scale="lengthscale")
    if type(kernel) is sk.ExpSineSquared:
        return _leaf(kernel, kernels.Periodic, length_scale="lengthscale", periodicity="period")
    if type(kernel) is sk.ConstantKernel:
        return _leaf(kernel, kernels.Constant, constant_value="variance")
    if type(kernel) is sk.WhiteKernel:
        return _leaf(kernel, kernels.White, noise_level="variance")
    raise TypeError(f"no kernel of gigagp is {kernel!r}")


def _leaf(kernel, kind, **names):
    values, bounds = {}, {}
    fixed = [name for name in kind.shapes if name not in names.values()]
    for theirs, ours in names.items():
        hyperparameter = getattr(kernel, f"hyperparameter_{theirs}")
        values[ours] = np.asarray(getattr(kernel, theirs), dtype=float)
        if hyperparameter.fixed:
            fixed.append(ours)
        else:
            lower, upper = hyperparameter.bounds.T
            bounds[ours] = (lower, upper) if values[ours].ndim else (float(lower[0]), float(upper[0]))
    more = {"variance": 1.0} if "variance" in kind.shapes and "variance" not in values else {}
    if "lengthscale" in kind.shapes:
        more["ard"] = bool(values["lengthscale"].ndim)
    return kind(**values, **more, fixed=fixed, bounds=bounds)


def theta_of(model_or_kernel):
    """Return the logarithms of the learned hyperparameters, in scikit-learn's order."""
    values, fixed = model_or_kernel.parameters(), model_or_kernel.fixed_parameters()
    learned = [np.log(value.numpy()).reshape(-1) for name, value in values.items() if name not in fixed]
    return np.concatenate(learned) if learned else np.zeros(0)


def values_at(kernel, theta):
    """Return hyperparameters by name at a vector of scikit-learn's."""
    found, start, bounds = {}, 0, kernel.bounds()
    for name, value in kernel.parameters().items():
        if name not in kernel.fixed_parameters():
            numbers = torch.tensor(np.exp(theta[start : start + value.numel()]), dtype=torch.float64)
            found[name] = numbers.reshape(value.shape)
            inside = bounds[name].clip(found[name]) if name in bounds else found[name]
            if torch.allclose(found[name], inside, rtol=1e-12, atol=0.0):  # rounding of a logarithm
                found[name] = inside
            start += value.numel()
    return found


def gradient_by_theta(evaluation, model):
    """Return the gradient by the logarithms of the kernel's learned hyperparameters."""
    values = model.parameters()
    names = [name for name in model.learned_names() if name != NOISE]
    return np.concatenate([(evaluation.gradient[name] * values[name]).reshape(-1).numpy() for name in names])


class TheirOptimizer:
    """A function ``optimizer(obj_func, initial_theta, bounds)`` as one of `gigagp.optimization.Optimizer`."""

    def __init__(self, function, bounds):
        self.function, self.bounds = function, bounds

    def run(self, objective, model, trace, generator):
        def minus_likelihood(theta, eval_gradient=True):
            at = model.replace(values_at(model.kernel, theta))
            evaluation = objective.evaluate(at)
            return (-evaluation.value, -gradient_by_theta(evaluation, at)) if eval_gradient else -evaluation.value

        model = objective.start(model)
        theta, _ = self.function(minus_likelihood, theta_of(model.kernel), self.bounds)
        return model.replace(values_at(model.kernel, theta))


class _Adapter(BaseEstimator):
    search = optimization.LBFGS()

    def _optimizer(self, kernel):
        if self.optimizer is None:
            return None
        if callable(self.optimizer):
            return TheirOptimizer(self.optimizer, kernel.bounds)
        assert self.optimizer == "fmin_l_bfgs_b"
        restarts = self.n_restarts_optimizer
        return optimization.Restarts(self.search, restarts) if restarts else self.search

    def _seed(self):
        return 0 if self.random_state is None else self.random_state

    def _adopt(self, kernel, fitted):
        """Give a copy of scikit-learn's kernel the values that were found."""
        self.kernel_ = clone(kernel)
        self.kernel_.theta = theta_of(fitted)


class GaussianProcessRegressor(_Adapter):
    """scikit-learn's signature; `gigagp.GPRegressor` with exact inference, no mean and the kernel's own units."""

    def __init__(
        self,
        kernel=None,
        *,
        alpha=1e-10,
        optimizer="fmin_l_bfgs_b",
        n_restarts_optimizer=0,
        normalize_y=False,
        copy_X_train=True,
        n_targets=None,
        random_state=None,
    ):
        self.kernel = kernel
        self.alpha = alpha
        self.optimizer = optimizer
        self.n_restarts_optimizer = n_restarts_optimizer
        self.normalize_y = normalize_y
        self.copy_X_train = copy_X_train
        self.n_targets = n_targets
        self.random_state = random_state

    def _ours(self, kernel, noise, optimizer):
        settings = {"mean": "zero", "standardize": False, "random_state": self._seed(), "outputs": "shared"}
        return GPRegressor(translated(kernel), inference.Exact(), optimizer, noise_variance=noise, **settings)

    def fit(self, X, y):
        y = np.asarray(y, dtype=float)
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y  # one column is one target there, whatever its shape
        kernel = sk.ConstantKernel() * sk.RBF() if self.kernel is None else self.kernel
        self._y_train_mean, self._y_train_std = np.zeros(y.shape[1:]), np.ones(y.shape[1:])
        if self.normalize_y:
            self._y_train_mean, spread = y.mean(0), y.std(0)
            self._y_train_std = np.where(spread > 1e-12 * np.abs(self._y_train_mean), spread, 1.0)
        # known variances of the rows, which are not learned; 0 is none beside the kernel's own
        noise = self.alpha if np.ndim(self.alpha) or self.alpha == 0 else np.full(len(y), self.alpha)
        self._gp = self._ours(kernel, noise, self._optimizer(kernel))
        self._gp.fit(X, (y - self._y_train_mean) / self._y_train_std)
        self._adopt(kernel, self._gp.kernel_)
        return self

    def _fitted(self):
        if hasattr(self, "_gp"):
            return self._gp, self._y_train_mean, self._y_train_std
        kernel = sk.ConstantKernel() * sk.RBF() if self.kernel is None else self.kernel
        return self._ours(kernel, None, None), 0.0, 1.0

    def predict(self, X, return_std=False, return_cov=False):
        gp, mean, scale = self._fitted()
        found = gp.predict(X, return_std, return_cov)
        if not return_std and not return_cov:
            return found * scale + mean
        # scikit-learn counts the kernel's white noise to the function
        kernel = gp.kernel_ if hasattr(gp, "kernel_") else gp.kernel.bind(np.shape(X)[1])
        white = kernel.white(torch.zeros(len(X), np.shape(X)[1], dtype=torch.float64)).numpy()
        shape = (-1,) + (1,) * np.ndim(scale)
        if return_std:
            return found[0] * scale + mean, np.sqrt(found[1] ** 2 + white.reshape(shape)) * scale
        diagonal = np.diag(white)
        return found[0] * scale + mean, (
            found[1] + (diagonal[:, :, None] if found[1].ndim == 3 else diagonal)
        ) * scale**2

    def sample_y(self, X, n_samples=1, random_state=0):
        gp, mean, scale = self._fitted()
        return gp.sample_y(X, n_samples, random_state) * np.expand_dims(scale, -1) + np.expand_dims(mean, -1)

    def log_marginal_likelihood(self, theta=None, eval_gradient=False):
        if theta is None:
            return np.float64(self._gp.log_marginal_likelihood().value)
        posterior = self._gp.posterior_
        model = posterior.model.replace(values_at(posterior.model.kernel, theta))
        evaluation = ExactObjective(posterior.table).evaluate(model)
        value = np.float64(evaluation.value)
        return (value, gradient_by_theta(evaluation, model)) if eval_gradient else value


class GaussianProcessClassifier(_Adapter):
    """scikit-learn's signature; `gigagp.GPClassifier` in the kernel's own units."""

    search = optimization.LBFGS(tolerance=1e-6)  # the bound at a kernel is the end of a search itself

    def __init__(
        self,
        kernel=None,
        *,
        optimizer="fmin_l_bfgs_b",
        n_restarts_optimizer=0,
        max_iter_predict=100,
        warm_start=False,
        copy_X_train=True,
        random_state=None,
        multi_class="one_vs_rest",
        n_jobs=None,
    ):
        self.kernel = kernel
        self.optimizer = optimizer
        self.n_restarts_optimizer = n_restarts_optimizer
        self.max_iter_predict = max_iter_predict
        self.warm_start = warm_start
        self.copy_X_train = copy_X_train
        self.random_state = random_state
        self.multi_class = multi_class
        self.n_jobs = n_jobs

    def _ours(self, kernel, optimizer):
        every_row = inference.QuadruplyStochastic(basis="inducing")  # a basis that is not an approximation
        return GPClassifier(kernel, every_row, optimizer, standardize=False, random_state=self._seed())

    def fit(self, X, y):
        kernel = sk.ConstantKernel() * sk.RBF() if self.kernel is None else self.kernel
        self._table = X, y
        self._gp = self._ours(translated(kernel), self._optimizer(kernel)).fit(X, y)
        self._adopt(kernel, self._gp.latent_.kernel_)
        return self

    def predict(self, X):
        return self._gp.predict(X)

    def predict_proba(self, X):
        return self._gp.predict_proba(X)

    def log_marginal_likelihood(self, theta=None):
        if theta is None:
            return np.float64(self._gp.log_marginal_likelihood().value)
        kernel = self._gp.latent_.kernel_
        at = self._ours(kernel.replace(values_at(kernel, theta)), None).fit(*self._table)
        return np.float64(at.log_marginal_likelihood().value)

    def latent_mean_and_variance(self, X):
        mean, std = self._gp.latent_.predict_latent(X, return_std=True)
        return mean, std**2
