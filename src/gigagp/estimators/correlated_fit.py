"""The joint model of correlated outputs: its rows, its kernel, its mean and its noise."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.estimators.answers.correlated import Stacking
from gigagp.estimators.arguments import Arguments
from gigagp.kernels import Kernel, Outputs, Sum, White
from gigagp.kernels.chosen import is_open, plain_kernel
from gigagp.kernels.composite import summands
from gigagp.kernels.rebuilding import beside_others, rebuilt
from gigagp.model.likelihoods import Gaussian
from gigagp.model.means import ConstantMean, LinearMean, Mean, ZeroMean

#: Outputs up to which any covariance of them is learned, and shared functions beyond.
_FEW_OUTPUTS, _SHARED = 5, 2
#: Share of each output's variance that is noise at the start, as for one output.
_NOISE = 0.09


def stacked(arguments: Arguments, X: np.ndarray, Y: np.ndarray) -> tuple[Arguments, np.ndarray, np.ndarray, Stacking]:
    """Return the arguments, the rows and the targets of one model of outputs Y (n, k), and how to read it.

    The kernel of each part is one of the inputs times a covariance of the outputs, and the mean has a constant for each
    output. Arguments that have no meaning for it are refused.
    """
    estimator = arguments.estimator
    _check(arguments)
    stacking = Stacking.fit(Y, estimator.standardize)
    d, k = X.shape[1], stacking.n_outputs
    columns = list(range(d, d + k))
    one: Any = copy.copy(estimator)
    kernel, opened = estimator.kernel, is_open(estimator.kernel)
    if opened:
        kernel = rebuilt(plain_kernel(kernel), {"fixed": ["variance"]})
    kernel.bind(d)  # refuses columns that there are not
    rank = None if k <= _FEW_OUTPUTS else _SHARED
    joint = Sum(*(beside_others(part, d) * Outputs(k, columns=columns, rank=rank) for part in summands(kernel)))
    noise = estimator.noise_variance
    if noise is None:
        one.kernel = joint + White(fixed=True) * Outputs(k, columns=columns, rank=0, variance=_NOISE)
    else:
        known = _known(noise, Y.shape) / np.square(stacking.scale)
        one.kernel, one.noise_variance = joint, known[stacking.observed]
    cells = np.argwhere(stacking.observed)

    def shown(number: int) -> str:
        row, output = cells[number]
        return f"{Y[row, output]:.3g} of output {output} in row {row}"

    found = replace(arguments, estimator=one, mean=_joint_mean(arguments.mean, d, k), shown=shown)
    found = replace(found, cells=(tuple(columns), tuple(range(d))), opened="outputs" if opened else None)
    return found, stacking.points(X, stacking.observed), stacking.targets(Y, stacking.observed), stacking


def _joint_mean(mean: Mean, d: int, k: int) -> Mean:
    """Return the mean of the rows: the first output has the constant, and the others what they differ by."""
    if isinstance(mean, ZeroMean):
        return mean
    slopes: Sequence[int] = ()
    if isinstance(mean, LinearMean):
        slopes = range(d) if mean.columns is None else mean.columns
        if max(slopes) >= d:
            msg = f"columns of LinearMean must be below {d}, the number of inputs; got {list(slopes)}."
            raise InvalidInputError(msg)
    return LinearMean((*slopes, *range(d + 1, d + k)))


def own_mean(mean: Mean, d: int) -> Mean:
    """Return the mean of d inputs that became the mean of the rows."""
    if not isinstance(mean, LinearMean) or mean.columns is None:
        return mean
    slopes = tuple(column for column in mean.columns if column < d)
    if not slopes:
        return ConstantMean()
    return LinearMean(None if slopes == tuple(range(d)) else slopes)


def _known(noise: Any, shape: tuple[int, ...]) -> np.ndarray:
    values = np.asarray(noise, dtype=float)
    if values.shape != shape:
        raise InvalidInputError(
            'noise_variance of GPRegressor with outputs="correlated" must be None, which learns one for each output, '
            f"or the known variance of each cell of y, shape {shape}; got shape {values.shape}."
        )
    return values


def _check(arguments: Arguments) -> None:
    """Refuse arguments that a joint model of several outputs does not take."""
    estimator, mean = arguments.estimator, arguments.mean
    kernel = estimator.kernel
    got = None
    if not isinstance(arguments.likelihood, Gaussian) or arguments.chooses_likelihood:
        got = f"likelihood={estimator.likelihood!r}; it must be 'gaussian'"
    elif not is_open(kernel) and not isinstance(kernel, Kernel):
        got = f"kernel={kernel!r}; give a kernel of the inputs, or None"
    elif isinstance(kernel, Kernel) and any(isinstance(leaf, Outputs | White) for leaf in kernel.leaves()):
        got = f"kernel={kernel!r}; give a kernel of the inputs alone, since covariances and noise of the outputs follow"
    elif type(mean) not in (ZeroMean, ConstantMean, LinearMean):
        got = f"mean={estimator.mean!r}; it must be 'zero', 'constant' or 'linear'"
    elif estimator.target_transform != "none":
        got = f"target_transform={estimator.target_transform!r}; transform the columns of y before the fit"
    elif estimator.noise != "constant":
        got = f"noise={estimator.noise!r}; each output has its own noise variance"
    elif estimator.encode != "strict":
        got = f"encode={estimator.encode!r}; give a table of numbers"
    elif estimator.hyperparameter_units != "own":
        got = f"hyperparameter_units={estimator.hyperparameter_units!r}; it must be 'own'"
    if got is not None:
        raise InvalidInputError(f'GPRegressor with outputs="correlated" does not take {got}.')
