"""A posterior from the tensors of a model file.

What each kind has to hold is declared here (`gigagp.schema`) and checked before anything is made of it: a file with a
right checksum may still be of another program, another version, or hostile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gigagp.errors import ModelFileError
from gigagp.grids import RegularGrid
from gigagp.grids.gram import half_offsets
from gigagp.inference.computation_aware import ComputationAwarePosterior
from gigagp.inference.exact import ExactPosterior
from gigagp.inference.grid.posterior import GridPosterior
from gigagp.inference.pathwise_posterior import PathwisePosterior
from gigagp.inference.posterior import Posterior
from gigagp.inference.quadruply_stochastic.posterior import QuadruplyStochasticPosterior
from gigagp.inference.random_features_posterior import FeaturePosterior
from gigagp.inference.sparse_variational.posterior import SparsePosterior
from gigagp.kernels import Kernel
from gigagp.likelihoods import Likelihood
from gigagp.model import Model
from gigagp.schema import (
    Field,
    Form,
    anything,
    below,
    check_tensors,
    factor,
    flag,
    listing,
    not_negative,
    number,
    one_of,
    optional,
    part,
    record,
    table,
    text,
    whole,
)
from gigagp.solvers import Solver

#: What one linear solve did (`gigagp.optimization.SolveRecord`).
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
    },
)
#: Shapes in letters: n rows, d inputs, t targets, p basis functions of the mean, s samples; others as they come.
#: Names that end in "?" are of what later versions keep: files from before have the variances that they had then.
_ROWS = {"X": Field("n d", "real"), "Y": Field("n t", "real")}
_DRAW = record(
    {
        "n_features": whole(2),
        "law": one_of("balanced", "joint", "independent"),
        "names": listing(listing(listing(text))),
    }
)
#: A torus longer than this many grids has nothing to be for.
_LONGEST_TORUS = 64


class Given(NamedTuple):
    """What is known when a posterior is restored.

    Attributes
    ----------
    model : Model
    budget : int
        Bytes.
    solver : Solver or text
    likelihood : Likelihood
    n_targets : int
    """

    model: Model
    budget: int
    solver: Solver | str
    likelihood: Likelihood
    n_targets: int

    @property
    def kernel(self) -> Kernel:
        """The model's kernel."""
        return self.model.kernel

    @property
    def n_inputs(self) -> int:
        """Columns of the inputs."""
        assert self.kernel.n_inputs is not None, "the kernel of a model is bound"
        return self.kernel.n_inputs

    def check_rows(self, n_rows: int) -> None:
        """Refuse noise variances of another number of rows than a posterior without rows says it is of."""
        if self.model.noise_is_known and len(self.model.noise_variance) != n_rows:
            raise ModelFileError(f"its tensor 'noise_variance' must have {n_rows} numbers, one a row, or be a number.")

    @property
    def sizes(self) -> dict[str, int]:
        """What letters of shapes stand for."""
        p = self.model.mean.basis(torch.zeros(1, self.n_inputs, dtype=torch.float64)).shape[1]
        known = {"d": self.n_inputs, "t": self.n_targets, "p": p}
        return known | ({"n": len(self.model.noise_variance)} if self.model.noise_is_known else {})


def restore_posterior(header: dict[str, Any], tensors: dict[str, Tensor], given: Given) -> Posterior:
    """Return the posterior that was saved.

    Raises
    ------
    ModelFileError
        If the state is not what a posterior of its kind has.
    """
    kind = header["kind"]
    restore = _KINDS.get(kind) if isinstance(kind, str) else None
    if restore is None:
        msg = f"the model file holds a posterior of an unknown kind: {str(kind)[:60]!r}."
        raise ModelFileError(msg)
    return restore(header, tensors, given)


def _exact(header: dict[str, Any], tensors: dict[str, Tensor], given: Given) -> Posterior:
    check_tensors(tensors, _ROWS, given.sizes)
    return ExactPosterior.from_state(tensors, given.model, given.budget)


def _pathwise(header: dict[str, Any], tensors: dict[str, Tensor], given: Given) -> Posterior:
    record({"draw": _DRAW, "final_solve": optional(SOLVE)})(header, "posterior")
    if not isinstance(given.solver, Solver):
        raise ModelFileError(f"its solver must be one of gigagp.solvers; got {str(given.solver)[:60]!r}.")
    fields = _ROWS | {
        "target_solutions": Field("n t", "real"),
        "probe_solutions": Field("n s", "real"),
        "basis_solutions?": Field("n p", "real"),
        "coefficients": Field("p t"),
        "coefficient_root?": Field("p p"),
        "prior.weights": Field("q s"),
    }
    check_tensors(tensors, fields | _draw_fields(given, header["draw"], tensors, "prior.draw."), given.sizes)
    posterior = PathwisePosterior.from_state(tensors, header, given.model, given.budget, given.solver)
    _check_columns(given, posterior.update.prior.draw, tensors["prior.weights"], "prior.weights")
    return posterior


def _random_features(header: dict[str, Any], tensors: dict[str, Tensor], given: Given) -> Posterior:
    finite = number(finite=True)
    record({"draw": _DRAW, "data_fit": finite, "log_determinant": finite, "value": finite})(header, "posterior")
    fields = _ROWS | {
        "factor": Field("q q", "float64", factor),
        "weights": Field("q t", "float64"),
        "basis_weights?": Field("q p", "float64"),
        "coefficients": Field("p t"),
        "coefficient_root?": Field("p p"),
    }
    check_tensors(tensors, fields | _draw_fields(given, header["draw"], tensors, "draw."), given.sizes)
    posterior = FeaturePosterior.from_state(tensors, header, given.model, given.budget)
    _check_columns(given, posterior.draw, tensors["weights"], "weights")
    return posterior


def _draw_fields(given: Given, draw: Mapping[str, Any], tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Field]:
    """Return the fields of the draws of random features: those of a small draw, with more frequencies."""
    small, form = given.kernel.draw_features(8, given.n_inputs, torch.Generator(), law=draw["law"]).state()
    if draw["names"] != form["names"] or draw["n_features"] % 2:
        raise ModelFileError("its random features are those of another kernel.")
    frequencies = draw["n_features"] // 2
    for name, tensor in small.items():
        found = tensors.get(prefix + name)
        if found is not None and tuple(found.shape) != (frequencies, *tensor.shape[1:]):
            wanted = (frequencies, *tensor.shape[1:])
            raise ModelFileError(f"its tensor {prefix + name!r} must be of shape {wanted}; got {tuple(found.shape)}.")
    letters = "abcdefgh"  # looked at above
    return {
        prefix + name: Field(" ".join(f"{name}/{letters[axis]}" for axis in range(tensor.ndim)), _name(tensor))
        for name, tensor in small.items()
    }


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_columns(given: Given, draw: Any, weights: Tensor, name: str) -> None:
    """Refuse weights of another number of features than the kernel has."""
    columns = given.kernel.features(torch.zeros(1, given.n_inputs, dtype=torch.float64), draw).shape[1]
    if len(weights) != columns:
        raise ModelFileError(f"its tensor {name!r} must have {columns} rows; got {len(weights)}.")


def _computation_aware(header: dict[str, Any], tensors: dict[str, Tensor], given: Given) -> Posterior:
    forms: dict[str, Form] = {
        "actions": one_of("blocks", "dense", "rows"),
        "bound": optional(number()),
        "note": text,
        "final_solve": optional(SOLVE),
    }
    record(forms)(header, "posterior")
    actions = {
        "blocks": {"actions.values": Field("n", "float64"), "actions.bounds": Field("bounds", "int64")},
        "dense": {"actions.matrix": Field("n i", "float64")},
        "rows": {"actions.rows": Field("i", "int64")},
    }[header["actions"]]
    fields = _ROWS | {
        "factor": Field("i i", "float64", factor),
        "weights": Field("i t", "float64"),
        "basis_weights?": Field("i p", "float64"),
        "coefficients": Field("p t"),
        "coefficient_root?": Field("p p"),
        "noise": Field("n", rule=not_negative),
    }
    sizes = check_tensors(tensors, fields | actions, given.sizes)
    if sizes.get("bounds", sizes["i"] + 1) != sizes["i"] + 1:
        raise ModelFileError(f"its tensor 'actions.bounds' must have {sizes['i'] + 1} numbers; got {sizes['bounds']}.")
    return ComputationAwarePosterior.from_state(tensors, header, given.model, given.budget)


def _grid(header: dict[str, Any], tensors: dict[str, Tensor], given: Given) -> Posterior:
    d, finite = given.n_inputs, number(finite=True)
    grid_form = record(
        {
            "lower": listing(finite, d),
            "spacing": listing(finite, d),
            "shape": listing(whole(1, 2**40), d),
            "interpolation": one_of("cubic", "linear"),
        }
    )
    forms: dict[str, Form] = {
        "statistics": record({"grid": grid_form, "n_rows": whole(), "seed": whole(-(2**63))}),
        "settings": table(anything),
        "method": text,
        "seeds": listing(whole(), 2),
        "torus": optional(listing(whole(1), d)),
        "final_solve": optional(SOLVE),
    }
    record(forms)(header, "posterior")
    grid = RegularGrid.from_dict(header["statistics"]["grid"])
    for length, count in zip(header["torus"] or (), grid.shape, strict=header["torus"] is not None):
        if length > _LONGEST_TORUS * count:
            raise ModelFileError(f"posterior.torus must be at most {_LONGEST_TORUS} times the grid; got {length}.")
    sizes = given.sizes | {"m": grid.size, "c": math.prod(grid.cells), "h": len(half_offsets(grid))}
    fields = {
        "values": Field("m t", "float64"),
        "adjoint": Field("m t", "float64"),
        "coefficients": Field("p t", "float64"),
        "basis_values": Field("m p", "float64"),
        "coefficient_root": Field("p p", "float64"),
        "deviations": Field("m s", "float64"),
        "statistics.cross": Field("m t", "float64"),
        "statistics.target_squares": Field("t", "float64"),
        "statistics.target_sums": Field("t", "float64"),
        "statistics.probes": Field("m r", "float64"),
        "statistics.probe_squares": Field("r", "float64"),
        "statistics.position_sums": Field("d", "float64"),
        "statistics.position_squares": Field("d", "float64"),
        "statistics.cell_counts": Field("c", "float64", not_negative),
        "statistics.input_low": Field("d", "float64"),
        "statistics.input_high": Field("d", "float64"),
        "statistics.gram.nodes": Field("u", "int64", below(grid.size)),
        "statistics.gram.values": Field("h u", "float64"),
    }
    check_tensors(tensors, fields, sizes)
    given.check_rows(header["statistics"]["n_rows"])
    corners = torch.stack([tensors["statistics.input_low"], tensors["statistics.input_high"]])
    if not bool(grid.covers(corners.cpu()).all()):
        raise ModelFileError("its grid does not cover the rows that its statistics are of.")
    return GridPosterior.from_state(tensors, header, given.model, given.budget)


def _sparse_variational(header: dict[str, Any], tensors: dict[str, Tensor], given: Given) -> Posterior:
    forms: dict[str, Form] = {
        "value": number(),
        "method": text,
        "jitter": number(finite=True, positive=True),
        "n_rows": whole(1),
        "dtype": one_of("float64", "float32"),
    }
    record(forms)(header, "posterior")
    fields = {
        "inducing_points": Field("m d", "float64"),
        "mean": Field("m t", "float64"),
        "root": Field("m m", "float64"),
        "whitened_basis?": Field("m p", "float64"),
        "coefficients": Field("p t"),
        "coefficient_root?": Field("p p"),
    }
    check_tensors(tensors, fields, given.sizes)
    given.check_rows(header["n_rows"])
    return SparsePosterior.from_state(tensors, header, given.model, given.budget)


def _quadruply_stochastic(header: dict[str, Any], tensors: dict[str, Tensor], given: Given) -> Posterior:
    forms: dict[str, Form] = {
        "basis": record({"kind": text}),
        "n_rows": whole(1),
        "augment": flag,
        "threshold": optional(number()),
        "variance_removed": table(number()),
        "bound": optional(listing(number(), 2)),
    }
    record(forms, {"from_samples": flag})(header, "posterior")
    fields = {
        "X": Field("r d", "real"),
        "weights.mean": Field("m t", "real"),
        "weights.log_scale": Field("m", "real"),
        "weights.columns?": Field("m k", "real"),
        "weights.log_precision?": Field("m", "real"),
        "coefficients": Field("p t"),
    }
    if part(tensors, "rows."):
        fields |= {"rows.X": Field("o d"), "rows.curvature": Field("o", rule=not_negative)}
    if part(tensors, "trend."):
        of_rows = bool(part(tensors, "trend.rows."))
        letter = "v" if of_rows else "w"
        fields |= {"trend.root": Field("p p", "float64"), "trend.solutions": Field(f"{letter} p", "float64")}
        if of_rows:
            fields |= {"trend.rows.X": Field("v d"), "trend.rows.curvature": Field("v", rule=not_negative)}
    sizes = check_tensors(tensors, fields | _basis_fields(header["basis"], given, tensors), given.sizes)
    given.check_rows(header["n_rows"])
    if sizes.get("w", 0) not in (0, sizes["m"]):
        raise ModelFileError(f"its tensor 'trend.solutions' must have {sizes['m']} rows or none; got {sizes['w']}.")
    if sizes.get("k", 0) > sizes["m"]:
        raise ModelFileError(f"its tensor 'weights.columns' must have {sizes['m']} columns at most; got {sizes['k']}.")
    return QuadruplyStochasticPosterior.from_state(tensors, header, given.model, given.budget, given.likelihood)


def _basis_fields(header: dict[str, Any], given: Given, tensors: Mapping[str, Tensor]) -> dict[str, Field]:
    """Return the fields of a basis of as many functions as there are weights."""
    mean = tensors.get("weights.mean")
    m = 0 if mean is None or not mean.ndim else len(mean)
    kind, fields = header["kind"], {}
    if kind == "reordered":
        record({"below": one_of("fourier", "inducing", "radial", "grid eigenfunctions")})(header, "posterior.basis")
        kind, fields = header["below"], {"basis.head": Field("head", "int64", below(m))}
    if kind == "fourier":
        record({"size": whole(m, m), "seed": whole(-(2**63))})(header, "posterior.basis")
        return fields
    if kind in ("inducing", "radial"):
        extra: dict[str, Form] = {"jitter": number(finite=True)} if kind == "inducing" else {}
        record(extra)(header, "posterior.basis")
        return fields | {"basis.points": Field("m d")}
    if kind == "grid eigenfunctions":
        record({"n_axes": whole(given.n_inputs, given.n_inputs)})(header, "posterior.basis")
        nodes = {f"basis.nodes.{axis}": Field(f"g{axis}", "float64") for axis in range(given.n_inputs)}
        axes = [tensors.get(name) for name in nodes]
        most = max((axis.numel() for axis in axes if axis is not None), default=0)
        orders = tensors.get("basis.orders")
        if orders is not None and orders.ndim == 2 and orders.shape[1] == len(axes):
            for axis, column in zip(axes, orders.T, strict=True):
                if axis is not None and not bool((column < axis.numel()).all()):
                    raise ModelFileError("its tensor 'basis.orders' must be places among the nodes of their axis.")
        return fields | nodes | {"basis.orders": Field("m d", "int64", below(most))}
    msg = f"the model file names a basis that this version does not know: {kind[:60]!r}."
    raise ModelFileError(msg)


_KINDS: dict[str, Callable[[dict[str, Any], dict[str, Tensor], Given], Posterior]] = {
    ExactPosterior.kind: _exact,
    PathwisePosterior.kind: _pathwise,
    FeaturePosterior.kind: _random_features,
    ComputationAwarePosterior.kind: _computation_aware,
    GridPosterior.kind: _grid,
    SparsePosterior.kind: _sparse_variational,
    QuadruplyStochasticPosterior.kind: _quadruply_stochastic,
}
