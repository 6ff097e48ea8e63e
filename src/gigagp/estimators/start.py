"""The start of a fit: kernel, mean and noise variance, and whether the noise is learned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gigagp.errors import GigaGPWarning, InvalidInputError, warn
from gigagp.estimators.checks import known_noise
from gigagp.estimators.estimator import Estimator
from gigagp.kernels import Constant, Kernel, Matern, White
from gigagp.kernels.units import Units
from gigagp.model.likelihoods import Likelihood
from gigagp.model.means import Mean
from gigagp.model.model import NOISE, Model, StartModel
from gigagp.tables.encoding import fitted_encoder


def start_model(
    estimator: Estimator, mean: Mean, n_rows: int, n_targets: int, *, noise_differs: bool = False
) -> StartModel:
    """Return the initial kernel, mean and noise, in the estimator's hyperparameter units.

    For a rule such as ``"average"``, the kernel is the default one, which shows how candidates treat the inputs.

    Parameters
    ----------
    estimator : Estimator
    mean : Mean
    n_rows, n_targets : int
    noise_differs : bool
        Whether rows with missing cells may have more noise than others, as under a Gaussian likelihood. They get it
        where kernel and noise are left to the fit, and the inference supports it.

    Raises
    ------
    InvalidInputError
        If the noise variance is invalid.
    """
    kernel = estimator.kernel if isinstance(estimator.kernel, Kernel) else Matern(nu=1.5)
    encoder = fitted_encoder(estimator)
    kernel = kernel if encoder is None else encoder.kernel(kernel)
    noise = start_noise(estimator.noise_variance, kernel, n_rows)
    if noise is not None and noise.ndim == 1 and n_targets > 1 and estimator.standardize:
        msg = (
            'noise_variance of GPRegressor as an array needs outputs="independent", one target, or standardize=False: '
            f"several targets that share a kernel are scaled differently; got {n_targets} targets."
        )
        raise InvalidInputError(msg)
    start = StartModel(kernel, mean, noise, estimator.hyperparameter_units)
    is_given = isinstance(estimator.kernel, Kernel) or estimator.noise_variance is not None
    if encoder is None or is_given or not noise_differs:
        return start
    of_missing = encoder.noise()
    if of_missing is None:
        return start
    noisier = replace(start, kernel=kernel + of_missing)
    return noisier if _takes(estimator.inference, noisier.bound(encoder.n_encoded)) else start


def _takes(inference: Any, model: Model) -> bool:
    """Whether an inference supports a model; "auto" supports all."""
    if isinstance(inference, str):
        return True
    try:
        inference.check_model(model)
    except InvalidInputError:
        return False
    return True


def warn_of_shares(estimator: Estimator, model: Model, n_targets: int) -> None:
    """Warn if ``outputs="auto"`` has several targets share variances that are given in the target's squared units.

    Targets of one model are scaled separately, so that the variances are shares of each target's. With a model for each
    target they are in its own units.
    """
    is_scaled = estimator.standardize and estimator.hyperparameter_units == "own" and model.student is None
    if n_targets == 1 or estimator.outputs != "auto" or not is_scaled:
        return
    one, ones = (model.kernel.unit_factors(_units(model.n_inputs, variance)) for variance in (4.0, 1.0))
    set_by_user = model.given | model.kernel.bounds().keys()
    names = [name for name in one if name in set_by_user and not torch.equal(one[name], ones[name])]
    names += [NOISE] * (np.ndim(estimator.noise_variance) == 0 and estimator.noise_variance is not None)
    if names:
        msg = (
            f"{names[0]} is given in squared units of the target, and {n_targets} targets of so many rows share one "
            "model, in which it is a share of the variance of each. Give "
            'outputs="shared" if that is meant, or outputs="independent" for a model of each target.'
        )
        warn(msg, GigaGPWarning)


def _units(n_inputs: int, variance: float) -> Units:
    return Units(torch.zeros(n_inputs).double(), torch.ones(n_inputs).double(), variance)


def start_noise(noise_variance: Any, kernel: Kernel, n_rows: int) -> torch.Tensor | None:
    """Return the noise variance at the start of a fit, in addition to that of the kernel.

    If only the sum of two variances has a meaning, they cannot both be learned. A `White` term of the kernel therefore
    represents all noise, unless ``noise_variance`` is given too.

    Parameters
    ----------
    noise_variance : float, array-like of shape (n_rows,) or None
        The argument of `GPRegressor`.
    kernel : Kernel
        Kernel of the estimator.
    n_rows : int
        Number of training rows.

    Returns
    -------
    Tensor of shape () or (n_rows,), or None
        0: the variance stays fixed at zero. None: none was given, and it is initialised from the data.

    Raises
    ------
    InvalidInputError
        If the argument is none of these, or 0 without a `White` term, because nothing would then bound the condition
        number of the kernel matrix.
    """
    if has_white_term(kernel) and (noise_variance is None or (np.ndim(noise_variance) == 0 and noise_variance == 0)):
        return torch.zeros((), dtype=torch.float64)
    return known_noise(noise_variance, n_rows)


def has_white_term(kernel: Kernel) -> bool:
    """Whether the kernel adds the same white noise to every row; `White` times a function of the inputs does not."""
    return any(
        any(leaf.is_white for leaf in term) and all(isinstance(leaf, White | Constant) for leaf in term)
        for term in kernel.terms()
    )


def refuse_white(kernel: object, likelihood: Likelihood) -> None:
    """Refuse a kernel with a white part under a likelihood without noise, where that part would have no effect.

    Raises
    ------
    InvalidInputError
        If the kernel has a white part, as a term or within a product, and the likelihood has no noise.
    """
    if likelihood.has_noise or not isinstance(kernel, Kernel) or not kernel.has_white:
        return
    msg = (
        f"kernel must not contain White with the {likelihood.name} likelihood: it is noise of the targets, and this "
        f"likelihood has no noise variance, so that it would have no effect; got {kernel!r}. Leave the White part out."
    )
    raise InvalidInputError(msg)
