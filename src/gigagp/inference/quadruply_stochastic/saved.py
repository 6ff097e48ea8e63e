"""The state of a posterior of very many weights in a model file, checked before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gigagp.errors import ModelFileError
from gigagp.inference.contract.saved import Saved
from gigagp.settings.schema import (
    Field,
    Form,
    below,
    check_tensors,
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


def check_state(header: dict[str, Any], tensors: dict[str, Tensor], saved: Saved) -> None:
    """Raise `ModelFileError` for a state that no posterior of very many weights has."""
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
    sizes = check_tensors(tensors, fields | _basis_fields(header["basis"], saved, tensors), saved.sizes)
    saved.check_rows(header["n_rows"])
    if sizes.get("w", 0) not in (0, sizes["m"]):
        raise ModelFileError(f"its tensor 'trend.solutions' must have {sizes['m']} rows or none; got {sizes['w']}.")
    if sizes.get("k", 0) > sizes["m"]:
        raise ModelFileError(f"its tensor 'weights.columns' must have {sizes['m']} columns at most; got {sizes['k']}.")


def _basis_fields(header: dict[str, Any], saved: Saved, tensors: Mapping[str, Tensor]) -> dict[str, Field]:
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
        record({"n_axes": whole(saved.n_inputs, saved.n_inputs)})(header, "posterior.basis")
        nodes = {f"basis.nodes.{axis}": Field(f"g{axis}", "float64") for axis in range(saved.n_inputs)}
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
