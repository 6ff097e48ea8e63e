"""A fitted estimator as tensors and plain data, and back; `gigagp.persistence` has the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gigagp.checks import resolve_device
from gigagp.configuration import from_plain, to_plain
from gigagp.errors import GigaGPWarning, warn
from gigagp.inference.restore import restore_posterior
from gigagp.kernels import from_dict
from gigagp.likelihoods import resolve_likelihood
from gigagp.means import from_dict as mean_from_dict
from gigagp.memory import resolve_budget
from gigagp.model import NOISE, Model
from gigagp.optimization import History
from gigagp.scaling import Scaling

if TYPE_CHECKING:
    from gigagp.regression import GPRegressor

_SCALES = ("x_centre", "x_scale", "y_centre", "y_scale")


def fitted_to_state(estimator: GPRegressor) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return everything that a fitted estimator needs to predict again."""
    posterior = estimator.posterior_
    tensors, posterior_header = posterior.state()
    for name in _SCALES:
        tensors[f"scaling.{name}"] = torch.from_numpy(np.ascontiguousarray(getattr(estimator.scaling_, name)))
    tensors[NOISE] = posterior.model.noise_variance.double().cpu()
    settings = {
        name: to_plain(value)
        for name, value in estimator.get_params(deep=False).items()
        if name not in ("mean", NOISE, "random_state", "verbose", "likelihood")
    }
    settings["likelihood"] = resolve_likelihood(estimator.likelihood).name
    # A generator has no seed to save, a meter is no data; the noise is as the constructor was given it.
    for name in ("random_state", "verbose"):
        if getattr(estimator, name) is None or isinstance(getattr(estimator, name), int):
            settings[name] = getattr(estimator, name)
    if estimator.noise_variance is None or np.ndim(estimator.noise_variance) == 0:
        settings[NOISE] = None if estimator.noise_variance is None else float(estimator.noise_variance)
    header = {
        "settings": settings,
        "mean": posterior.model.mean.to_dict(),
        "kernel": posterior.model.kernel.to_dict(),
        "inference": to_plain(estimator.inference_),
        "optimizer": to_plain(estimator.optimizer_),
        "solver": to_plain(estimator.solver_),
        "history": estimator.history_.to_dict(),
        "posterior": {"kind": posterior.kind, **posterior_header},
        "one_target": estimator._one_target,
        "feature_names": [str(name) for name in getattr(estimator, "feature_names_in_", [])],
    }
    return {name: value.contiguous().cpu() for name, value in tensors.items()}, header


def state_to_fitted(cls: type[GPRegressor], tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> GPRegressor:
    """Return the estimator that `fitted_to_state` described."""
    # files from before the data's own units were the rule
    settings = {"hyperparameter_units": "standardized", **header["settings"]}
    estimator = cls(**{name: from_plain(value) for name, value in settings.items()})
    if estimator.device.startswith("cuda") and not torch.cuda.is_available():
        warn(f"The model was fitted on {estimator.device!r}, which is not here; it is on the CPU now.", GigaGPWarning)
        estimator.device = "cpu"
    device = resolve_device(estimator.device)
    mean = mean_from_dict(header["mean"])
    estimator.mean = mean.name
    noise = tensors.pop(NOISE)
    scaling = Scaling(*(tensors.pop(f"scaling.{name}").numpy() for name in _SCALES))
    if noise.ndim == 1:
        estimator.noise_variance = noise.numpy() * scaling.y_scale[0] ** 2
    model = Model(from_dict(header["kernel"]), mean, noise)
    estimator.inference_ = from_plain(header["inference"])
    estimator.optimizer_ = from_plain(header["optimizer"])
    estimator.history_ = History.from_dict(header["history"])
    estimator._one_target = header["one_target"]
    budget = resolve_budget(estimator.memory_budget, device)
    moved = {name: value.to(device) for name, value in tensors.items()}
    posterior = restore_posterior(header["posterior"], moved, model, budget, from_plain(header["solver"]))
    estimator._adopt(posterior, scaling)
    estimator.n_features_in_ = scaling.x_centre.shape[0]
    if header["feature_names"]:
        estimator.feature_names_in_ = np.array(header["feature_names"], dtype=object)
    return estimator
