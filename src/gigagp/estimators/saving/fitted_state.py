"""Conversion of a fitted estimator to tensors and plain data, of which `restored_state` is the inverse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigagp.estimators.estimator import FittedEstimator
from gigagp.estimators.saving.configuration import kept_optimizer, to_plain
from gigagp.estimators.saving.custom_parts import checked_again
from gigagp.inference.contract.areas import ROW_NAMES
from gigagp.inference.exact.mixture_posterior import mixture_to_state
from gigagp.kernels.serialization import describe
from gigagp.model import means
from gigagp.model.likelihoods import AUTO, is_default, resolve_likelihood
from gigagp.model.model import NOISE
from gigagp.tables.encoding import fitted_encoder

#: Names of the tensors of a `Scaling`.
SCALES = ("x_centre", "x_scale", "y_centre", "y_scale")


def fitted_to_state(estimator: FittedEstimator) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the plain data that restore a fitted estimator.

    A part that could not be restored is refused, such as a lambda or a class whose description does not reproduce it.
    """
    posterior, arguments = estimator.posterior_, estimator._arguments
    tensors, posterior_header = posterior.state()
    for name in SCALES:
        tensors[f"scaling.{name}"] = torch.from_numpy(np.ascontiguousarray(getattr(estimator.scaling_, name)))
    if estimator._stacking is not None:
        tensors |= {f"stacking.{name}": value for name, value in estimator._stacking.state().items()}
    tensors[NOISE] = posterior.model.noise_variance.double().cpu()
    tensors |= {name: posterior.model.parameters()[name] for name in posterior.model.likelihood_names()}
    settings = {
        name: to_plain(kept_optimizer(arguments[name]) if name == "optimizer" else arguments[name])
        for name in estimator.get_params(deep=False)
        if name not in ("mean", NOISE, "random_state", "verbose", "likelihood")
    }
    likelihood = resolve_likelihood(arguments["likelihood"])
    settings["likelihood"] = likelihood.name if is_default(likelihood) else to_plain(likelihood)
    if isinstance(arguments["likelihood"], str):  # "auto" too
        settings["likelihood"] = arguments["likelihood"]
    # A generator has no seed, and a meter is not plain data. The noise variance is the constructor's argument.
    for name in ("random_state", "verbose"):
        if (given := arguments[name]) is None or isinstance(given, int | str):
            settings[name] = given
    if (noise := arguments[NOISE]) is None or np.ndim(noise) == 0:
        settings[NOISE] = None if noise is None else float(noise)
    header = {
        "settings": settings,
        "mean": means.describe(posterior.model.mean),
        "kernel": describe(posterior.model.kernel),
        "kernel_choice": None if estimator.kernel_choice_ is None else estimator.kernel_choice_.to_plain(),
        "plan": None if estimator.plan_ is None else estimator.plan_.to_plain(to_plain),
        "inference": to_plain(estimator.inference_),
        "optimizer": to_plain(kept_optimizer(estimator.optimizer_)),
        "solver": to_plain(estimator.solver_),
        "history": estimator.history_.to_dict(),
        "interrupted": estimator.history_.interrupted,
        "gap": None if estimator.history_.gap is None else list(estimator.history_.gap),
        "posterior": {"kind": posterior.kind, **posterior_header},
        "n_rows": posterior.n_rows,
        "one_target": estimator._one_target,
        "feature_names": [str(name) for name in getattr(estimator, "feature_names_in_", [])],
    }
    if estimator._uncertain is not None:
        own, header["uncertain"] = mixture_to_state(estimator._uncertain)
        tensors |= {f"uncertain.{name}": value for name, value in own.items() if not _is_known(name, value, tensors)}
    if arguments["likelihood"] == AUTO:
        header["likelihood"] = estimator._likelihood.name
    if (student := posterior.model.student) is not None:
        header["student"] = {"df": student.df, "squared_scale": student.squared_scale}
    if estimator.warnings_:
        header["warnings"] = list(estimator.warnings_)
    if estimator.likelihood_note_:
        header["likelihood_note"] = estimator.likelihood_note_
    if settings["target_transform"] != "none":
        header["target_transform"] = estimator.target_transform_.to_plain()
    if (encoder := fitted_encoder(estimator)) is not None:
        header["encoder"] = encoder.to_plain()
    check = checked_again(estimator, header)
    if check is not None:
        header["custom_values"] = check
    return {name: value.contiguous().cpu() for name, value in tensors.items()}, header


def joined_states(
    states: Sequence[tuple[dict[str, Tensor], dict[str, Any]]],
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the plain data of several outputs with a model each.

    Tensors that are equal for all models, such as the rows, are there once. A single model stays as it is.
    `restored_state.states_of` is the inverse.
    """
    if len(states) == 1:
        return states[0]
    (first, _), *others = states
    common = {
        name: tensor
        for name, tensor in first.items()
        if all(name in other and _are_equal(other[name], tensor) for other, _ in others)
    }
    tensors = dict(common)
    for number, (own, _) in enumerate(states):
        tensors |= {f"outputs.{number}.{name}": tensor for name, tensor in own.items() if name not in common}
    return tensors, {"outputs": [header for _, header in states]}


def _is_known(name: str, value: Tensor, tensors: dict[str, Tensor]) -> bool:
    """Whether a tensor is one of the posterior's rows, which are stored once."""
    return name in ROW_NAMES and name in tensors and _are_equal(tensors[name], value)


def _are_equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)
