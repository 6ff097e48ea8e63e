"""The least noise variance that is learned where the kernel matrix of all rows is factorised or solved with."""

from __future__ import annotations

import torch

from gigagp.model.model import NOISE, Model
from gigagp.optimization.objective import Evaluation

#: Least noise variance over the trace of the kernel matrix: sixteen roundings of float64. Without noise in the targets,
#: solves on three tables with two kernels had residuals of order one below one rounding, and converged above ten.
_LEAST_SHARE = 16 * torch.finfo(torch.float64).eps


def with_least_noise(model: Model, X: torch.Tensor) -> Model:
    """Return a model that is being learned with at least the noise that float64 needs; given noise stays.

    The likelihood of targets without noise rises as the noise falls, until ``H`` is singular to working precision.

    Parameters
    ----------
    model : Model
    X : Tensor of shape (n, d)
        The rows of ``H``.
    """
    if NOISE not in model.learned_names():
        return model
    least = _LEAST_SHARE * float(model.kernel.diagonal(X).double().sum())
    if float(model.noise_variance) >= least:
        return model
    return model.replace({NOISE: torch.full_like(model.noise_variance, least)})


def at_least_noise(found: Evaluation, model: Model, X: torch.Tensor) -> Evaluation:
    """Return an evaluation at `with_least_noise` of a model as one of the model, by its own hyperparameters.

    Where it has less noise, that of the evaluation follows the trace of the kernel matrix, and its own changes nothing.
    Only a pull to more noise is kept.
    """
    if with_least_noise(model, X) is model:
        return found
    names = [name for name in model.kernel.parameters() if name in found.gradient]
    values = {name: model.parameters()[name].detach().clone().requires_grad_() for name in names}
    pull, gradient = found.gradient[NOISE], dict(found.gradient)
    if values:
        trace = model.kernel.replace(values).diagonal(X).double().sum()
        slopes = torch.autograd.grad(trace, list(values.values()), allow_unused=True) if trace.requires_grad else ()
        for name, slope in zip(names, slopes, strict=False):
            if slope is not None:
                gradient[name] = gradient[name] + (_LEAST_SHARE * pull * slope).to(gradient[name])
    return Evaluation(found.value, gradient | {NOISE: pull.clamp_min(0.0)}, found.solve)
