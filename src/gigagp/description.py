"""A description of a fitted estimator in words and numbers."""

from __future__ import annotations

import re

import numpy as np

from gigagp.encoding import fitted_encoder
from gigagp.estimator import FittedEstimator
from gigagp.model import NOISE, Model
from gigagp.student_noise import LEAST_DF, OUTLIER_WEIGHT

_SHOWN = 12


def describe(estimator: FittedEstimator) -> str:
    """Return the settings of a fit, its outcome, and the hyperparameters in standardized and own units.

    A user-defined kernel that does not define the units of its hyperparameters has only standardized values.
    """
    posterior, scaling = estimator.posterior_, estimator.scaling_
    optimizer = "none" if estimator.optimizer_ is None else type(estimator.optimizer_).__name__
    lines = [
        f"rows          {posterior.n_rows:,}, inputs {posterior.n_inputs}, targets {posterior.n_targets}",
        *_transform(estimator),
        *_noise(estimator),
        f"inference     {estimator.inference_.describe()}",
        f"solver        {estimator.solver_}",
        f"engine        {estimator.engine_}",
        f"optimizer     {optimizer}, {len(estimator.history_)} evaluations, "
        f"{estimator.history_.epochs:.4g} epochs of kernel products",
    ]
    if estimator.plan_ is not None:
        words = str(estimator.plan_).splitlines()
        lines += [f"{'forecast' if not k else '':13s} {line}" for k, line in enumerate(words)]
    if estimator.history_.interrupted == "learning":
        lines.append("interrupted   Ctrl-C ended the learning; these are the best hyperparameters so far")
    if estimator.history_.interrupted == "time budget":
        lines.append("time budget   it ended the learning; these are the best hyperparameters so far")
    lines += _truncated_solves(estimator)
    final = posterior.final_solve
    if final is not None:
        lines.append(
            f"last solve    {final.status.lower()}, {final.iterations} iterations, relative residual "
            f"{final.relative_residual_targets:.2g} (targets), {final.relative_residual_probes:.2g} (probes)"
        )
    lines += [f"{word:13s} {note}" for word, note in posterior.notes().items()]
    structure = re.sub(r"\[[^\]]{40,}\]", "[...]", repr(estimator.kernel_))  # the table below has long lists
    lines.append(f"kernel        {structure}")
    lines += [] if estimator.kernel_choice_ is None else estimator.kernel_choice_.lines()
    names = getattr(estimator, "feature_names_in_", None)
    encoder = fitted_encoder(estimator)
    if encoder is not None:
        lines += ["columns", *encoder.describe()]
        names = encoder.labels
    n_inputs = posterior.n_inputs if encoder is None else len(encoder.labels)
    factors = posterior.model.unit_factors(scaling.units())
    lines.append(f"{'hyperparameter':34s} {'standardized':>14s} {'own units':>14s}")
    for name, value in posterior.model.parameters().items():
        numbers = np.atleast_1d(value.double().cpu().numpy())
        factor = np.broadcast_to(factors[name].numpy(), numbers.shape) if name in factors else None
        is_per_input = numbers.size == n_inputs and not name.endswith(NOISE)
        for index, number in enumerate(numbers[:_SHOWN]):
            label = name
            if numbers.size > 1:
                label = f"{name}[{names[index] if names is not None and is_per_input else index}]"
            own = "not known" if factor is None else f"{number * factor[index]:14.6g}"
            lines.append(f"{label:34s} {number:14.6g} {own:>14s}")
        if numbers.size > _SHOWN:
            lines.append(f"{name} has {numbers.size - _SHOWN} more values, see kernel_.parameters()")
    if scaling.y_scale.size > 1:
        lines.append("variances      shares of the variance of each target, which are scaled separately")
    lines += [f"at its bound  {label}" for label in _at_bounds(posterior.model)]
    return "\n".join(lines)


def _transform(estimator: FittedEstimator) -> list[str]:
    """Return a line about the transform of the target, or no line if none was asked for."""
    transform = estimator.target_transform_
    if transform.is_identity and not transform.note:
        return []
    return [f"target        {transform.words()}" + (f"; {transform.note}" if transform.note else "")]


def _noise(estimator: FittedEstimator) -> list[str]:
    """Return lines about Student-t noise and its outliers, or about the choice of the noise, if there is any."""
    model, note = estimator.posterior_.model, estimator.likelihood_note_
    if model.student is None:
        return [f"noise         {note}"] if note else []
    weights = model.student.weights(model.noise_variance).double().cpu()
    scale = np.sqrt(model.student.squared_scale) * estimator.scaling_.y_scale[0]
    count = int((weights < OUTLIER_WEIGHT).sum())
    lines = [
        f"noise         Student-t with {model.student.df:.3g} degrees of freedom and the scale {scale:.4g}"
        + (f"; {note}" if note else ""),
        f"outliers      {count:,} rows of {len(weights):,} have weights below {OUTLIER_WEIGHT:g}: they hardly move the "
        "function (noise_weights_)",
    ]
    if model.student.df <= LEAST_DF:
        lines.append(f"              {LEAST_DF:g} is the least number of degrees of freedom that is learned")
    return lines


def _at_bounds(model: Model) -> list[str]:
    """Return the learned hyperparameters that ended at a bound, with its side."""
    values, found = model.parameters(), []
    for name, pair in model.kernel.bounds().items():
        if name in model.learned_names():
            for side, at in (("lower", values[name] == pair.lower), ("upper", values[name] == pair.upper)):
                where = at.reshape(-1).nonzero().reshape(-1).tolist()
                found += [f"{name}[{i}] ({side})" if values[name].ndim else f"{name} ({side})" for i in where]
    return found


def _truncated_solves(estimator: FittedEstimator) -> list[str]:
    """Return a line about solves that were cut at a random length, or no line if there were none."""
    solves = [step.solve for step in estimator.history_ if step.solve is not None and step.solve.lengths is not None]
    if not solves:
        return []
    mean = sum(solve.iterations for solve in solves) / len(solves)
    early = sum(bool(solve.ended_early) for solve in solves)
    return [
        f"truncation    {len(solves)} solves cut at random, {mean:.4g} iterations on average; {early} converged before"
    ]
