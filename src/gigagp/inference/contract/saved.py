"""Checks of the state of a posterior in a model file that all kinds share.

Each posterior declares its own tensors and numbers in `Posterior.from_state`, using `gigagp.settings.schema`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gigagp.errors import ModelFileError
from gigagp.kernels import Kernel
from gigagp.kernels.features import count_columns
from gigagp.model.likelihoods import Likelihood
from gigagp.model.model import Model
from gigagp.settings.schema import Field, flag, listing, number, one_of, optional, record, text, whole
from gigagp.solvers import Solver

#: Schema of the record of one linear solve (`gigagp.optimization.SolveRecord`).
SOLVE = record(
    {
        "iterations": whole(),
        "epochs": number(),
        "setup_epochs": number(),
        "relative_residual_targets": number(),
        "relative_residual_probes": optional(number()),
        "status": text,
    },
    {
        "nats_targets": optional(number()),
        "nats_probes": optional(number()),
        "lengths": optional(listing(whole())),
        "ended_early": optional(flag),
        "widened": optional(flag),
    },
)
#: Schema of a draw of random features.
DRAW = record(
    {
        "n_features": whole(2),
        "law": one_of("balanced", "joint", "independent"),
        "names": listing(listing(listing(text))),
    }
)


class Saved(NamedTuple):
    """Contents of a model file apart from the state of its posterior."""

    model: Model  # with the fitted hyperparameters
    budget: int  # memory budget in bytes
    solver: Solver | str  # to use, or the name of the method that ran
    likelihood: Likelihood
    n_targets: int
    #: classes of posteriors by their kind, for posteriors made of others
    kinds: Mapping[str, Any] = MappingProxyType({})

    @property
    def kernel(self) -> Kernel:
        """Kernel of the model."""
        return self.model.kernel

    @property
    def n_inputs(self) -> int:
        """Number of inputs."""
        return self.model.n_inputs

    def check_rows(self, n_rows: int) -> None:
        """Refuse known noise variances whose number differs from the posterior's number of rows."""
        if self.model.noise_is_known and len(self.model.noise_variance) != n_rows:
            raise ModelFileError(
                f"its tensor 'noise_variance' must have {n_rows} numbers, one per row, or be a number."
            )

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that the letters in the shapes of `gigagp.settings.schema.Field` stand for."""
        p = self.model.mean.basis(torch.zeros(1, self.n_inputs, dtype=torch.float64)).shape[1]
        known = {"d": self.n_inputs, "t": self.n_targets, "p": p}
        return known | ({"n": len(self.model.noise_variance)} if self.model.noise_is_known else {})


def draw_fields(saved: Saved, draw: Mapping[str, Any], tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Field]:
    """Return the fields of the tensors of a feature draw, from a small draw of the same kernel."""
    small, form = saved.kernel.draw_features(8, saved.n_inputs, torch.Generator(), law=draw["law"]).state()
    if draw["names"] != form["names"] or draw["n_features"] % 2:
        raise ModelFileError("its random features are those of another kernel.")
    frequencies = draw["n_features"] // 2
    for name, tensor in small.items():
        found = tensors.get(prefix + name)
        if found is not None and tuple(found.shape) != (frequencies, *tensor.shape[1:]):
            wanted = (frequencies, *tensor.shape[1:])
            raise ModelFileError(f"its tensor {prefix + name!r} must be of shape {wanted}; got {tuple(found.shape)}.")
    letters = "abcdefgh"  # any names: the sizes have been checked above
    return {
        prefix + name: Field(" ".join(f"{name}/{letters[axis]}" for axis in range(tensor.ndim)), _name(tensor))
        for name, tensor in small.items()
    }


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def check_columns(saved: Saved, draw: Any, weights: Tensor, name: str) -> None:
    """Refuse weights whose number of features differs from the kernel's."""
    columns = count_columns(saved.kernel.bind(saved.n_inputs), draw)
    if len(weights) != columns:
        raise ModelFileError(f"its tensor {name!r} must have {columns} rows; got {len(weights)}.")
