"""Checks of the state of a grid posterior in a model file."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import ModelFileError
from gigagp.inference.contract.saved import SOLVE, Saved
from gigagp.inference.grid.likelihood import GridLikelihood
from gigagp.inference.grid.settings import GridSettings
from gigagp.operators.grid.statistics import GridStatistics, GridSum, RegularGrid
from gigagp.operators.grid.statistics.gram import half_offsets
from gigagp.operators.grid.statistics.grid_sum import grid_from_dict
from gigagp.settings.schema import (
    Field,
    Form,
    Rule,
    anything,
    below,
    check_tensors,
    either,
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

#: Largest length of a torus, in multiples of the grid; a longer one is never needed.
_LONGEST_TORUS = 64
#: Shapes of the posterior's own tensors, which are float64, by the names of its arguments.
POSTERIOR_TENSORS = {
    "values": "m t",
    "adjoint": "m t",
    "coefficients": "p t",
    "basis_values": "m p",
    "coefficient_root": "p p",
    "deviations": "m s",
}
#: Shapes of sums over rows that all statistics have.
_SUMS = {
    "cross": "m t",
    "target_squares": "t",
    "target_sums": "t",
    "probes": "m r",
    "probe_squares": "r",
    "position_sums": "d",
    "position_squares": "d",
    "input_low": "d",
    "input_high": "d",
}


def restored_likelihood(tensors: dict[str, Tensor], header: dict[str, Any], saved: Saved) -> GridLikelihood:
    """Return the likelihood of the saved statistics; raise `ModelFileError` if the state is not valid."""
    d = saved.n_inputs
    grids = record({"sum": listing(_grid_of(*range(1, d + 1), columns=listing(whole(0, d - 1))))})
    known = {"noise": optional(number(finite=True, positive=True))}
    forms: dict[str, Form] = {
        "statistics": record({"grid": either(grids, _grid_of(d)), "n_rows": whole(), "seed": whole(-(2**63))}, known),
        "settings": table(anything),
        "method": text,
        "seeds": listing(whole(), 2),
        "torus": optional(either(listing(listing(whole(1))), listing(whole(1), d))),
        "final_solve": optional(SOLVE),
    }
    record(forms)(header, "posterior")
    grid = grid_from_dict(header["statistics"]["grid"])
    if grid.n_inputs != d:
        raise ModelFileError(f"its grid must have {d} inputs, as the model; got {grid.n_inputs}.")
    if (header["statistics"].get("noise") is None) == saved.model.noise_is_known:
        raise ModelFileError(
            "its statistics have weights for known noise variances if and only if the model has these."
        )
    _check_tori(grid, header["torus"])
    sizes = saved.sizes | {"m": grid.size, "c": math.prod(grid.cells), "w": 2}
    fields = {name: Field(shape, "float64") for name, shape in POSTERIOR_TENSORS.items()}
    fields |= {f"statistics.{name}": Field(shape, "float64") for name, shape in _SUMS.items()}
    fields["statistics.cell_counts"] = Field("c", "float64", not_negative)
    # versions without weights did not write them
    fields[f"statistics.weight_sums{'' if saved.model.noise_is_known else '?'}"] = Field("w", "float64")
    if isinstance(grid, GridSum):
        fields["statistics.gram.values"] = Field("m m", "float64")
    elif "statistics.gram.X" in tensors:
        fields["statistics.gram.X"] = Field("q d", "float64", _inside(grid))
        fields[f"statistics.gram.weights{'' if saved.model.noise_is_known else '?'}"] = Field("q", "float64", positive)
        sizes["q"] = header["statistics"]["n_rows"]
    else:
        sizes["h"] = len(half_offsets(grid))
        fields["statistics.gram.nodes"] = Field("u", "int64", below(grid.size))
        fields["statistics.gram.values"] = Field("h u", "float64")
    check_tensors(tensors, fields, sizes)
    saved.check_rows(header["statistics"]["n_rows"])
    corners = torch.stack([tensors["statistics.input_low"], tensors["statistics.input_high"]])
    if not bool(grid.covers(corners.cpu()).all()):
        raise ModelFileError("its grid does not cover the rows of its statistics.")
    statistics = GridStatistics.from_state(
        {name: value.cpu() for name, value in part(tensors, "statistics.").items()}, header["statistics"]
    )
    likelihood = GridLikelihood(statistics, saved.model.mean, GridSettings(**header["settings"]), torch.Generator())
    likelihood.seeds = header["seeds"]
    likelihood.resume(None, header["torus"])
    return likelihood


def _grid_of(*counts: int, **more: Form) -> Form:
    """Return the form of a `RegularGrid` with one of these numbers of inputs."""
    finite = number(finite=True)
    return record(
        {
            "lower": listing(finite, *counts),
            "spacing": listing(finite, *counts),
            "shape": listing(whole(1, 2**40), *counts),
            "interpolation": one_of("cubic", "linear"),
            **more,
        }
    )


def _inside(grid: RegularGrid) -> Rule:
    """Return the rule that points lie on the grid."""

    def check(tensor: Tensor) -> str | None:
        return None if bool(grid.covers(tensor.cpu()).all()) else "inside of the grid"

    return check


def _check_tori(grid: RegularGrid | GridSum, lengths: list[Any] | None) -> None:
    """Refuse tori that do not belong to the grid, or are so long that they were never needed."""
    if lengths is None:
        return
    grids, own = ((grid,), [lengths]) if isinstance(grid, RegularGrid) else (grid.grids, lengths)
    fits = len(own) == len(grids) and all(
        isinstance(torus, list) and len(torus) == one.n_inputs for torus, one in zip(own, grids, strict=True)
    )
    if not fits:
        raise ModelFileError(f"posterior.torus must have a length for each input of each grid; got {lengths}.")
    for one, torus in zip(grids, own, strict=True):
        for length, count in zip(torus, one.shape, strict=True):
            if length > _LONGEST_TORUS * count:
                raise ModelFileError(f"posterior.torus must be at most {_LONGEST_TORUS} times the grid; got {length}.")
