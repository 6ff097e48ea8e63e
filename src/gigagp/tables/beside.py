"""What is known of rows beside their inputs and targets: exposure, offset, and the limits of their targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError, RowError
from gigagp.model.likelihoods import Likelihood
from gigagp.tables.intake import numbers, targets


@dataclass(frozen=True)
class Beside:
    """Numbers of rows that a likelihood takes; each is None where there are none.

    Targets that are known within limits are in the table as a number between them, so that whatever looks at a table
    sees one number for each target.
    """

    offset: Tensor | None = None  # added to the latent values, (n,): given, and the logarithm of the exposure
    trials: Tensor | None = None  # (n,); targets are then successes
    limits: Tensor | None = None  # lower and upper limits of the targets, in the units of the table, (n, 2)

    @classmethod
    def of(cls, likelihood: Likelihood, n_rows: int, exposure: Any, offset: Any = None) -> Beside:
        """Check the arguments ``exposure`` and ``offset`` of a method, each None, a number or (n,)."""
        values = {
            name: column(one, n_rows, name)
            for name, one in (("exposure", exposure), ("offset", offset))
            if one is not None
        }
        if "exposure" in values and likelihood.exposure == "none":
            msg = f"exposure must be None with the {likelihood.name} likelihood, which has neither a rate nor trials."
            raise InvalidInputError(msg)
        if "offset" in values and likelihood.has_noise:
            raise InvalidInputError(
                f"offset must be None with the {likelihood.name} likelihood, whose function is in the units of the "
                "target. Subtract it from y, or give mean a function."
            )
        if likelihood.exposure == "trials":
            trials = values.pop("exposure", np.ones(n_rows))
            _refuse_rows(trials != np.round(trials), trials, "exposure", "whole numbers of trials for binomial targets")
            return cls(_as_tensor(values.get("offset")), _as_tensor(trials))
        if "exposure" in values:
            values["offset"] = np.log(values["exposure"]) + values.get("offset", 0.0)
        return cls(_as_tensor(values.get("offset")))

    def take(self, rows: Any) -> Beside:
        """Return what is known of some rows."""
        return Beside(**{name: value[rows] for name, value in self.state().items()})

    def state(self) -> dict[str, Tensor]:
        """Return the numbers that there are, by name."""
        each = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in each.items() if value is not None}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor]) -> Beside:
        """Return what `state` described."""
        return cls(**{one.name: tensors[one.name] for one in fields(cls) if one.name in tensors})

    def exposure(self) -> Tensor | None:
        """Return what each target was counted over, (n,): trials, or the factor of a rate that the offset is of."""
        if self.trials is not None:
            return self.trials
        return None if self.offset is None else self.offset.exp()

    def given(self, likelihood: Likelihood, Y: Tensor) -> Tensor:
        """Return targets (n, t) as a likelihood takes them, float64: proportions, or with limits both, (2, n, t)."""
        if self.limits is not None:
            return self.limits.to(Y.device).double().T[:, :, None]
        return Y.double() if self.trials is None else Y.double() / self.trials.to(Y.device)[:, None]

    def offset_of(self, Y: Tensor) -> Tensor:
        """Return the offset of latent values, (n, t) as the targets, float64."""
        nothing = torch.zeros_like(Y, dtype=torch.float64)
        return nothing if self.offset is None else nothing + self.offset.to(nothing)[:, None]


def known_targets(
    likelihood: Likelihood, y: Any, n_rows: int, exposure: Any = None, offset: Any = None
) -> tuple[np.ndarray, Beside]:
    """Return targets as numbers, and what else is known of their rows; refuse those that the likelihood excludes.

    Several targets in columns may be of several models, each of which checks its own.
    """
    beside = Beside.of(likelihood, n_rows, exposure, offset)
    if likelihood.has_limits:
        y, limits = _split_limits(targets(y, n_rows, finite=False))
        beside = replace(beside, limits=torch.from_numpy(limits))
    else:
        y = targets(y, n_rows)
    if beside.trials is not None:
        _require_successes(y, beside.trials.numpy())
    if y.ndim == 1:
        likelihood.check_targets(beside.given(likelihood, torch.from_numpy(np.array(y))[:, None]))
    return y, beside


def _require_successes(y: np.ndarray, trials: np.ndarray) -> None:
    """Refuse more successes than trials, and fewer than none."""
    each = y.reshape(len(y), -1)
    bad = (each < 0) | (each > trials[:, None])
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        rule = "successes must be from 0 to the number of trials, which is the exposure, or 1 where none is given"
        raise RowError(rule, f"{each[row, column]:g} of {trials[row]:g}", row)


def measured_targets(likelihood: Likelihood, y: Any) -> np.ndarray:
    """Return targets that predictions can be scored with; limits that differ are refused."""
    if not likelihood.has_limits:
        return targets(y)
    y, limits = _split_limits(targets(y, finite=False))
    censored = limits[:, 0] != limits[:, 1]
    if censored.any():
        raise InvalidInputError(
            f"score of GPRegressor needs measured targets; row {int(np.argmax(censored))} has limits that differ. "
            "predictive_log_density takes all rows."
        )
    return y


def _split_limits(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a number for each target, (n,), and its limits, (n, 2); limits that cross are refused.

    The number is the middle between finite limits, and the finite one of others.
    """
    if y.ndim != 2 or y.shape[1] != 2:
        raise InvalidInputError(
            "y must have shape (n, 2), the lower and the upper limit of each target, equal where it was measured; got "
            f"shape {y.shape}."
        )
    lower, upper = y.T
    known = np.isfinite(y)
    bad = np.isnan(y).any(1) | (lower > upper) | ~known.any(1)
    if bad.any():
        row = int(np.argmax(bad))
        raise RowError(
            "limits of y must be a lower one in column 0 and a larger or equal one in column 1, not both infinite",
            f"{lower[row]:g} and {upper[row]:g}",
            row,
        )
    ends = np.where(known, y, 0.0)
    return ends.sum(1) / known.sum(1), y


def column(value: Any, n_rows: int, name: str) -> np.ndarray:
    """Return a finite column of numbers, positive if it is the exposure."""
    values = numbers(value, name)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim > 1 or (values.ndim == 1 and len(values) != n_rows):
        msg = f"{name} must be a number or have shape ({n_rows},), one for each row; got {values.shape}."
        raise InvalidInputError(msg)
    if name == "exposure":
        _refuse_rows(values <= 0, values, name, "positive")
    return np.broadcast_to(values, (n_rows,)).astype(np.float64)


def _refuse_rows(bad: np.ndarray, values: np.ndarray, name: str, what: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise RowError(f"{name} must be {what}", f"{float(np.atleast_1d(values)[row]):g}", row, name)


def _as_tensor(values: np.ndarray | None) -> torch.Tensor | None:
    return None if values is None else torch.from_numpy(np.ascontiguousarray(values))
