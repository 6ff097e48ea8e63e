"""The file of a search: what was told and asked for, as JSON that is whole or absent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.search.space import Space
from gigagp.settings.schema import anything, flag, listing, number, one_of, record, whole
from gigagp.storage.files import check_folder, replacing

_FORMAT = "gigagp search 1"
_FORM = record(
    {
        "format": one_of(_FORMAT),
        "bounds": anything,
        "maximize": flag,
        "values": listing(number(finite=True)),
        **dict.fromkeys(("told", "failed", "pending"), listing(anything)),
        **dict.fromkeys(("entropy", "seeds", "asked", "first_drawn", "spread_drawn"), whole()),
    }
)


def read(path: str | os.PathLike[str], space: Space, maximize: bool) -> dict[str, Any] | None:
    """Return what the file of a search over this space holds, with rows in place of points; None without a file.

    Raises `ModelFileError` for a file that is damaged or no search's, and `InvalidInputError` for one of another space.
    """
    check_folder(path)
    name = os.fspath(path)
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        msg = f"{name} cannot be read as the file of a search: {error}. Give another file, or remove this one."
        raise ModelFileError(msg) from error
    _FORM(data, f"{name}: the search")
    difference = _difference(data["bounds"], space.to_plain())
    if not difference and data["maximize"] != maximize:
        difference = f"maximize is {data['maximize']} there, and {maximize} was given"
    if difference:
        raise InvalidInputError(
            f"file of Search: {name} holds another search: {difference}. Give another file, or the same arguments."
        )
    try:
        for part in ("told", "failed", "pending"):
            data[part] = space.rows(data[part], f"{name}: {part}") if data[part] else space.no_rows
    except InvalidInputError as error:
        raise ModelFileError(str(error)) from None
    if len(data["values"]) != len(data["told"]):
        msg = f"{name} must have a value for each of {len(data['told'])} point(s); got {len(data['values'])}."
        raise ModelFileError(msg)
    return dict(data)


def write(path: str | os.PathLike[str], space: Space, rows: dict[str, np.ndarray], **numbers: Any) -> None:
    """Write what `read` returns: the told, failed and pending rows, and the rest."""
    data: dict[str, Any] = {"format": _FORMAT, "bounds": space.to_plain()} | numbers
    for part, some in rows.items():
        points = space.points(some)
        data[part] = points if isinstance(points, list) else points.tolist()
    with replacing(path) as file:
        file.write(json.dumps(data, indent=1, allow_nan=False).encode())


def _difference(there: Any, given: Any) -> str:
    """Return where two bounds differ, written as JSON, because 1, 1.0 and True are equal; empty if nowhere."""
    if not isinstance(there, dict) or not isinstance(given, dict):
        return "" if json.dumps(there) == json.dumps(given) else f"its bounds are {there}, and {given} were given"
    for name in [*there, *given]:
        if name not in there:
            return f"it has no {name!r}"
        if name not in given:
            return f"it has {name!r}, which was not given"
        if json.dumps(there[name]) != json.dumps(given[name]):
            return f"its {name!r} is {_shown(there[name])}, and {_shown(given[name])} was given"
    return "" if list(there) == list(given) else f"its inputs are in the order {list(there)}"


def _shown(bounds: Any) -> Any:
    """Return the plain bounds of an input as users write them."""
    return bounds[0] if isinstance(bounds, list) and bounds and isinstance(bounds[0], list) else bounds
