"""The least noise variance that is learned where the kernel matrix of all rows is factorised or solved with."""

from __future__ import annotations

import torch

from gigagp.inference.contract.input_gradients import derivatives
from gigagp.model.model import NOISE, Model
from gigagp.optimization.objective import Evaluation

#: Least noise variance over the trace of the kernel matrix: sixteen roundings of float64. Without noise in the targets,
#: solves on three tables with two kernels had residuals of order one below one rounding, and converged above ten.
_LEAST_SHARE = 16 * torch.finfo(torch.float64).eps


def with_least_noise(model: Model, X: torch.Tensor) -> Model:
    """Return a model that is being learned with at least the noise that float64 needs; given noise stays.

    The likelihood of targets without noise rises as the noise falls, until ``H`` of the rows X is singular to working
    precision.
    """
    if NOISE not in model.learned_names():
        return model
    least = _LEAST_SHARE * float(model.kernel.diagonal(X).double().sum())
    if float(model.noise_variance) >= least:
        return model
    return model.replace({NOISE: torch.full_like(model.noise_variance, least)})


def at_least_noise(found: Evaluation, model: Model, X: torch.Tensor) -> Evaluation:
    """Return an evaluation at `with_least_noise` of a model as one of the model, by its own hyperparameters.

    Where the model has less noise, the noise of the evaluation follows the trace of the kernel matrix instead.
    Only a pull to more noise is kept.
    """
    if with_least_noise(model, X) is model:
        return found
    known = {name: value for name, value in model.kernel.parameters().items() if name in found.gradient}
    pull, gradient = found.gradient[NOISE], dict(found.gradient)
    slopes = derivatives(lambda values: model.kernel.replace(values).diagonal(X).double().sum(), known)
    for name, slope in slopes.items():
        gradient[name] = gradient[name] + (_LEAST_SHARE * pull * slope).to(gradient[name])
    return Evaluation(found.value, gradient | {NOISE: pull.clamp_min(0.0)}, found.solve)
