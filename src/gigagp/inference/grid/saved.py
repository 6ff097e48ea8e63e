"""Checks of the state of a grid posterior in a model file."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import ModelFileError
from gigagp.grids import GridStatistics, RegularGrid
from gigagp.grids.gram import half_offsets
from gigagp.inference.grid.likelihood import GridLikelihood
from gigagp.inference.grid.settings import GridSettings
from gigagp.inference.saved import SOLVE, Saved
from gigagp.schema import (
    Field,
    Form,
    anything,
    below,
    check_tensors,
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

#: Largest length of a torus, in multiples of the grid; a longer one is never needed.
_LONGEST_TORUS = 64


def restored_likelihood(tensors: dict[str, Tensor], header: dict[str, Any], saved: Saved) -> GridLikelihood:
    """Return the likelihood of the saved statistics, after a check of the entire state.

    Raises
    ------
    ModelFileError
        If the state is not valid for a grid posterior.
    """
    d, finite = saved.n_inputs, number(finite=True)
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
    sizes = saved.sizes | {"m": grid.size, "c": math.prod(grid.cells), "h": len(half_offsets(grid))}
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
