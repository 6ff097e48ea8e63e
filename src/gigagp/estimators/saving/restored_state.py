"""A fitted estimator from the tensors and plain data of a model file, which are checked first."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import GigaGPWarning, ModelFileError, warn
from gigagp.estimators.answers.correlated import Stacking
from gigagp.estimators.arguments import has_white_term, resolve_device
from gigagp.estimators.attributes import adopt
from gigagp.estimators.choices.kernel_choice import KernelChoice
from gigagp.estimators.correlated_fit import own_mean
from gigagp.estimators.estimator import FittedEstimator
from gigagp.estimators.saving.configuration import from_plain
from gigagp.estimators.saving.custom_parts import are_close, known_values
from gigagp.estimators.saving.fitted_state import SCALES
from gigagp.inference import Inference
from gigagp.inference.automatic.plan import Plan
from gigagp.inference.contract.areas import ROW_NAMES
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.saved import SOLVE, Saved
from gigagp.inference.exact.mixture_posterior import MixturePosterior, state_to_mixture
from gigagp.inference.registry import posterior_kinds, restore_posterior
from gigagp.kernels import from_dict
from gigagp.model import means, target_transform
from gigagp.model.estimate import Estimate
from gigagp.model.likelihoods import NAMES, Gaussian, Likelihood, Logistic, Probit, resolve_likelihood
from gigagp.model.means import Mean
from gigagp.model.model import NOISE, OF_LIKELIHOOD, Model
from gigagp.model.scaling import Scaling
from gigagp.model.student_noise import StudentNoise
from gigagp.optimization import History, SolveRecord
from gigagp.runtime.memory import resolve_budget
from gigagp.settings.custom import NOTHING, Custom
from gigagp.settings.schema import (
    Field,
    anything,
    check_tensors,
    either,
    flag,
    listing,
    not_negative,
    number,
    one_of,
    optional,
    part,
    positive,
    record,
    table,
    text,
    whole,
)
from gigagp.tables.encoding import Encode, TableEncoder

E = TypeVar("E", bound=FittedEstimator)

_SOLVE_NAMES = tuple(SolveRecord.__dataclass_fields__)
_HISTORY = {
    "stage": listing(text),
    "seconds": listing(number()),
    "objective": listing(optional(number())),
    "gradient_norm": listing(number()),
    "hyperparameters": listing(table(either(number(), listing(number())))),
    "validation_rmse": listing(optional(number())),
    "validation_log_likelihood": listing(optional(number())),
}
_HEADER = record(
    {
        "settings": record(
            {}, {"device": text, "memory_budget": optional(either(number(positive=True), text)), "dtype": text}
        ),
        "mean": table(anything),
        "kernel": table(anything),
        "inference": anything,
        "optimizer": anything,
        "solver": anything,
        "history": record(_HISTORY),
        "posterior": record({"kind": text}),
        "one_target": flag,
        "feature_names": listing(text),
    },
    {
        "n_rows": whole(1),
        "interrupted": one_of("", "learning", "last solve", "time budget"),
        "gap": optional(listing(number(), 2)),
        "likelihood": one_of(*NAMES),
        "student": record({"df": number(positive=True), "squared_scale": number(positive=True)}),
        "likelihood_note": text,
        "uncertain": table(anything),
    },
)


def states_of(tensors: dict[str, Tensor], header: dict[str, Any]) -> list[tuple[dict[str, Tensor], dict[str, Any]]]:
    """Return the states of the models in a file: one, or one for each output; see `fitted_state.joined_states`."""
    if "outputs" not in header:
        return [(tensors, header)]
    one = record({"one_target": flag, "feature_names": listing(text)})
    listing(one)(header["outputs"], "the header.outputs")
    headers = header["outputs"]
    alike = all(each["feature_names"] == headers[0]["feature_names"] for each in headers)
    if len(headers) < 2 or not alike or not all(each["one_target"] for each in headers):
        raise ModelFileError("the header.outputs must be two or more models of one target each, with the same inputs.")
    common = {name: tensor for name, tensor in tensors.items() if not name.startswith("outputs.")}
    return [({**common, **part(tensors, f"outputs.{k}.")}, each) for k, each in enumerate(headers)]


def state_to_fitted(cls: type[E], tensors: dict[str, Tensor], header: dict[str, Any], custom: Custom = NOTHING) -> E:
    """Return the estimator that `fitted_to_state` described; states that are not valid are refused."""
    _HEADER(header, "the header")
    scaling, stacking = _scaling(tensors), _stacking(tensors)
    d, t = len(scaling.x_scale), len(scaling.y_scale)
    n_own = d if stacking is None else d - stacking.n_outputs
    if n_own < 1:
        raise ModelFileError(f"its tensor 'stacking.scale' must have fewer than {d} outputs; got {d - n_own}.")
    # for files of versions that only had standardized units
    settings: dict[str, Any] = {"hyperparameter_units": "standardized"}
    settings |= {name: from_plain(value, custom, n_own) for name, value in header["settings"].items()}
    estimator = cls(**settings)
    estimator.inference_ = from_plain(header["inference"], custom, d)
    if not isinstance(estimator.inference_, Inference):
        raise ModelFileError("the header.inference must be one of gigagp.inference.")
    device = _device(estimator, header)
    likelihood = resolve_likelihood(header.get("likelihood", estimator.likelihood))
    model = replace(_model(tensors, header, custom, scaling), of_likelihood=_of_likelihood(tensors, likelihood))
    estimator.mean = _mean_argument(model.mean if stacking is None else own_mean(model.mean, n_own))
    if model.noise_is_known and model.student is None:
        estimator.noise_variance = model.noise_variance.numpy() * scaling.y_scale[0] ** 2
    _set_records(estimator, header, custom, d)
    saved = Saved(
        model,
        resolve_budget(estimator.memory_budget, device),
        from_plain(header["solver"], custom, d),
        likelihood,
        t,
    )
    may_transform = isinstance(saved.likelihood, Gaussian) and not model.noise_is_known
    estimator.target_transform_ = target_transform.restored(header, t, may_transform=may_transform)
    if estimator._one_target and t != 1:
        raise ModelFileError(f"the header.one_target must be false for {t} targets.")
    _set_columns(estimator, header, n_own)
    posterior, estimator._uncertain = _posteriors(tensors, header, saved, custom, device)
    if header.get("n_rows", posterior.n_rows) != posterior.n_rows:
        raise ModelFileError(f"the header.n_rows must be the number of its rows, {posterior.n_rows}.")
    estimator._keep_arguments(saved.likelihood)
    estimator._stacking = stacking
    adopt(estimator, posterior, scaling)
    if stacking is not None and model.noise_is_known:
        estimator.noise_variance = estimator._arguments[NOISE] = stacking.noise_variance(posterior, scaling)
    return estimator


def _posteriors(
    tensors: dict[str, Tensor], header: dict[str, Any], saved: Saved, custom: Custom, device: torch.device
) -> tuple[Posterior, MixturePosterior | None]:
    """Return the posterior of a file on a device, and the mixture over hyperparameters, if there is one."""
    moved = {name: value.to(device) for name, value in tensors.items()}
    own = custom.classes(Inference)  # type: ignore[type-abstract]  # only used in comparisons
    of_mixture = part(moved, "uncertain.")
    moved = {name: value for name, value in moved.items() if not name.startswith("uncertain.")}
    posterior = restore_posterior(header["posterior"], moved, saved, own)
    _check_answer(posterior)
    if of_mixture and "uncertain" not in header:
        raise ModelFileError("the header has no 'uncertain', of which it has tensors.")
    if "uncertain" not in header:
        return posterior, None
    rows = {name: moved[name] for name in ROW_NAMES if name in moved}
    mixture = state_to_mixture({**rows, **of_mixture}, header["uncertain"], saved._replace(kinds=posterior_kinds(own)))
    _check_answer(mixture)
    return posterior, mixture


def _scaling(tensors: dict[str, Tensor]) -> Scaling:
    """Take the scaling out of the tensors of a file."""
    fields = {
        "x_centre": Field("d", "float64"),
        "x_scale": Field("d", "float64", positive),
        "y_centre": Field("t", "float64"),
        "y_scale": Field("t", "float64", positive),
    }
    check_tensors(part(tensors, "scaling."), fields, {})
    return Scaling(*(tensors.pop(f"scaling.{name}").numpy() for name in SCALES))


def _stacking(tensors: dict[str, Tensor]) -> Stacking | None:
    """Take how correlated outputs are stacked out of the tensors of a file; None where there are none."""
    own = part(tensors, "stacking.")
    if not own:
        return None
    for name in own:
        tensors.pop(f"stacking.{name}")
    fields = {
        "centre": Field("k", "float64"),
        "scale": Field("k", "float64", positive),
        "observed": Field("n k", "uint8"),
    }
    check_tensors(own, fields, {})
    return Stacking(own["centre"].numpy(), own["scale"].numpy(), own["observed"].numpy() != 0)


def _model(tensors: dict[str, Tensor], header: dict[str, Any], custom: Custom, scaling: Scaling) -> Model:
    """Return the model of a file, with the noise that is taken out of its tensors."""
    d, t = len(scaling.x_scale), len(scaling.y_scale)
    noise = {name: value for name, value in tensors.items() if name == NOISE}
    of_rows = any(value.ndim == 1 for value in noise.values())
    check_tensors(noise, {NOISE: Field("n" if of_rows else "", "float64", positive if of_rows else not_negative)}, {})
    kernel, mean = from_dict(header["kernel"], custom, d), means.from_dict(header["mean"], custom)
    if kernel.n_inputs != d:
        raise ModelFileError(f"its kernel must be bound to {d} inputs; got {kernel.n_inputs}.")
    if "custom_values" in header and not are_close(known_values(kernel, mean, scaling), header["custom_values"]):
        msg = "the objects in custom of gigagp.load compute other numbers than those the model was fitted with."
        raise ModelFileError(msg)
    variance = tensors.pop(NOISE)
    held = not of_rows and float(variance) == 0
    if held and not has_white_term(kernel):
        raise ModelFileError("its tensor 'noise_variance' must be positive: its kernel has no White term.")
    student = StudentNoise(**header["student"]) if "student" in header else None
    if student is not None and not (of_rows and t == 1 and student.df > 2):
        raise ModelFileError(
            "the header.student must have more than 2 degrees of freedom, weights of rows and 1 target."
        )
    return Model(kernel, mean, variance, noise_is_learned=not held, student=student)


def _of_likelihood(tensors: dict[str, Tensor], likelihood: Likelihood) -> dict[str, Tensor]:
    """Take the learned parameters of a likelihood out of the tensors of a file."""
    found = {name: value for name, value in part(tensors, OF_LIKELIHOOD).items()}
    learned = [name for name in likelihood.learned if getattr(likelihood, name) is None]
    axes = {name: " ".join("k" for _ in range(min(found[name].ndim, 1))) for name in learned if name in found}
    check_tensors(found, {name: Field(axes.get(name, ""), "float64", positive) for name in learned}, {})
    return {name: tensors.pop(f"{OF_LIKELIHOOD}{name}") for name in learned}


def _set_records(estimator: FittedEstimator, header: dict[str, Any], custom: Custom, d: int) -> None:
    """Set what is known of the fit that has been saved."""
    estimator.optimizer_ = from_plain(header["optimizer"], custom, d)
    estimator.history_ = _history(header["history"])
    # these are absent in files of earlier versions
    tried = header.get("kernel_choice")
    estimator.kernel_choice_ = None if tried is None else KernelChoice.from_plain(tried)
    plan = header.get("plan")
    estimator.plan_ = None if plan is None else Plan.from_plain(plan, lambda data: from_plain(data, custom, d))
    estimator.likelihood_note_ = header.get("likelihood_note", "")
    estimator.warnings_ = tuple(map(str, header.get("warnings", [])))
    estimator.history_.interrupted = header.get("interrupted", "")
    gap = header.get("gap")
    estimator.history_.gap = None if gap is None else Estimate(*gap)
    estimator._one_target = header["one_target"]


def _set_columns(estimator: FittedEstimator, header: dict[str, Any], d: int) -> None:
    """Set the names of the columns, and how they become d inputs."""
    encoder = TableEncoder.from_plain(header["encoder"], d) if "encoder" in header else None
    if estimator.encode not in get_args(Encode):
        raise ModelFileError(f"the header.settings.encode must be one of {get_args(Encode)}; got {estimator.encode!r}.")
    estimator.n_features_in_ = d if encoder is None else len(encoder.columns)
    listing(text, 0, estimator.n_features_in_)(header["feature_names"], "the header.feature_names")
    if encoder is not None:
        estimator.encoder_ = encoder
    if header["feature_names"]:
        estimator.feature_names_in_ = np.array(header["feature_names"], dtype=object)


def _device(estimator: FittedEstimator, header: dict[str, Any]) -> torch.device:
    """Return the device of a model, or the CPU if its device is not available.

    Files of earlier versions do not say how many rows a model has: with ``device="auto"`` it is on the CPU.
    """
    if not re.fullmatch(r"auto|cpu|(cuda|mps|xpu)(:[0-9]{1,3})?", estimator.device):
        raise ModelFileError(f"the header.settings.device must name a device; got {estimator.device[:60]!r}.")
    if estimator.device.startswith("cuda") and not torch.cuda.is_available():
        warn(
            f"The model was fitted on {estimator.device!r}, which is not available; it is on the CPU now.",
            GigaGPWarning,
        )
        estimator.device = "cpu"
    return resolve_device(estimator.device, estimator.inference_.takes_gpu(header.get("n_rows", 0)))


def _mean_argument(mean: Mean) -> Any:
    """Return the constructor argument for a mean."""
    if isinstance(mean, means.FixedMean):
        return mean.function
    return mean.name if means.describe(mean) == {"mean": mean.name} else mean


def _history(columns: dict[str, Any]) -> History:
    """Return the history of a file; files of earlier versions have fewer columns."""
    length, first = len(columns["stage"]), _SOLVE_NAMES[0]
    solves = {name: columns[name] for name in _SOLVE_NAMES if name in columns}
    for name in _HISTORY:
        listing(anything, length)(columns[name], f"the header.history.{name}")
    table(listing(anything, length))(solves, "the header.history")
    for place in range(length):
        row = {name: column[place] for name, column in solves.items()}
        if row.get(first) is not None:
            SOLVE(row, f"the header.history[{place}]")
    return History.from_dict(columns)


def _check_answer(posterior: Posterior) -> None:
    """Refuse a posterior whose prediction at the centre of its training data is not finite."""
    places = posterior.places()
    point = places.median(0).values[None] if len(places) else places.new_zeros(1, posterior.n_inputs)
    mean, variance = posterior.mean_and_variance(posterior.model.kernel.admitted(point))
    if not bool(torch.isfinite(mean).all() & torch.isfinite(variance).all() & (variance >= 0).all()):
        raise ModelFileError("its predictions are not finite.")


def restored_classes(header: dict[str, Any], latent: FittedEstimator) -> tuple[np.ndarray, list[str]]:
    """Return the class labels of a classifier and the names of its inputs, which have to suit its latent functions."""
    if not isinstance(resolve_likelihood(latent.likelihood), Logistic | Probit):
        raise ModelFileError(f"the header.settings.likelihood must be one of classes; got {latent.likelihood!r}.")
    t = latent.posterior_.n_targets
    count = 2 if t == 1 else t
    form = record(
        {
            "classes": record({"dtype": text, "values": listing(either(flag, number(), text), count)}),
            "had_kernel": flag,
            "feature_names": listing(text, 0, latent.n_features_in_),
        }
    )
    form(header, "the header")
    values, name = header["classes"]["values"], header["classes"]["dtype"]
    found = np.array(values, dtype=object if name == "|O" else None)
    # The name of a string dtype includes a length, which must be that of these strings.
    kinds = {"b": "b", "i": "i", "u": "iu", "f": "fiu", "U": "U"}
    match = re.fullmatch(r"[<>|=]([biufU])([0-9]{1,6})", name)
    if name != "|O":
        longest = max((len(one) for one in values if isinstance(one, str)), default=0)
        if match is None or found.dtype.kind not in kinds[match[1]] or int(match[2]) > max(16, longest):
            raise ModelFileError(f"the header.classes.dtype must be that of the values; got {name[:60]!r}.")
        found = found.astype(np.dtype(name))
    if len(set(found.tolist())) < count:
        raise ModelFileError("the header.classes.values must be different.")
    return found, header["feature_names"]
