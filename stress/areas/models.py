"""Damaged and crafted model files: each is refused or gives the same model, in bounded memory and time."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from stress.draw import Draw
from stress.drawn import fitted
from stress.drawn.damage import damage
from stress.outcome import RIGHT, Wrong
from stress.scratch import scratch

#: Memory in bytes that loading a small model and predicting may use.
_MEMORY = 3 * 2**30


def run(draw: Draw) -> str:
    """Run one case."""
    import gigagp

    kind = draw.one_of(fitted.KINDS)
    model = fitted.model(kind)
    expected = fitted.answers(model)
    blind = draw.chance(0.5)
    with scratch() as folder:
        path = folder / "model.gp"
        model.save(path)
        draw.note(kind)
        draw.note(damage(draw, path) if blind else _craft(draw, path))
        with limited_memory(_MEMORY):
            try:
                loaded = gigagp.load(path)
            except (gigagp.errors.ModelFileError, gigagp.errors.MemoryBudgetError):
                return "refused"
            except gigagp.errors.GigaGPError as error:
                raise TypeError(f"load refused with {type(error).__name__}: {error}") from error
            found = fitted.answers(loaded)
    if blind and not (found.shape == expected.shape and np.allclose(found, expected, rtol=1e-9, atol=1e-9)):
        raise Wrong(f"damaged file of {kind} was loaded and predicts something else")
    if not np.isfinite(found).all():
        raise Wrong(f"crafted file of {kind} was loaded and predicts NaN: {' / '.join(draw.notes[1:])}")
    return RIGHT


@contextmanager
def limited_memory(size: int) -> Iterator[None]:
    """Let this process use at most ``size`` further bytes."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _craft(draw: Draw, path: Path) -> str:
    """Change the header or the tensors, with a correct checksum."""
    from gigagp.errors import GigaGPError
    from gigagp.estimators.saving.persistence import load_state, save_state

    kind, tensors, header = load_state(path)
    tensors = dict(tensors)
    notes = []
    for _ in range(draw.weighted({1: 0.8, 2: 0.2})):
        notes.append(_change_tensor(draw, tensors) if draw.chance(0.45) else _change_header(draw, header))
    if draw.chance(0.05):
        kind = draw.one_of(["GPClassifier", "GPRegressor", "checkpoint", "os.system", ""])
        notes.append(f"kind {kind!r}")
    try:
        save_state(path, kind, tensors, header)
    except GigaGPError as error:
        draw.note(f"cannot be written: {error}")
        path.write_bytes(b"")
    return "; ".join(notes)


def _hostile(draw: Draw) -> Any:
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    values = [
        None,
        -1,
        0,
        1,
        2**31,
        2**63,
        10**30,
        1e308,
        -1e308,
        1e-320,
        float("nan"),
        float("inf"),
        "",
        "x" * 1000,
        "auto",
    ]
    values += [[], {}, [1, 2, 3], True, {"class": "Grid", "settings": {}}, {"kernel": "RBF"}, deep, 3.5, "float32"]
    values += [{"class": "os.system", "settings": {"command": "true"}}, {"tuple": [1, 2]}, [[[1.0]]], 2**53 + 1]
    return draw.one_of(values)


def _change_header(draw: Draw, header: Any) -> str:
    places = list(_places(header))
    place = draw.one_of(places)
    parent = header
    for key in place[:-1]:
        parent = parent[key]
    how = draw.weighted({"set": 0.7, "delete": 0.15, "rename": 0.05, "scale": 0.1})
    value = parent[place[-1]]
    name = ".".join(map(str, place))
    if how == "delete":
        del parent[place[-1]]
        return f"{name} deleted"
    if how == "rename" and isinstance(parent, dict):
        parent[str(place[-1]) + "x"] = parent.pop(place[-1])
        return f"{name} renamed"
    if how == "scale" and isinstance(value, int | float) and not isinstance(value, bool):
        parent[place[-1]] = value * draw.one_of([-1, 0.5, 2, 1000])
        return f"{name} scaled to {parent[place[-1]]!r}"
    parent[place[-1]] = _hostile(draw)
    return f"{name} = {str(parent[place[-1]])[:60]!r}"


def _places(item: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every item in a header, with only the start of long lists."""
    entries = item.items() if isinstance(item, dict) else enumerate(item[:3]) if isinstance(item, list) else ()
    for key, value in list(entries):
        yield (*path, key)
        yield from _places(value, (*path, key))


def _change_tensor(draw: Draw, tensors: dict[str, Any]) -> str:
    import torch

    name = draw.one_of(sorted(tensors))
    value = tensors[name]
    how = draw.one_of(
        ["delete", "dtype", "cut", "extra row", "flat", "axis", "transpose", "fill", "cell", "empty", "huge", "add"]
    )
    if how == "delete":
        del tensors[name]
    elif how == "dtype":
        kind = draw.one_of([torch.float32, torch.float16, torch.int64, torch.bool, torch.uint8, torch.bfloat16])
        tensors[name] = value.to(kind)
        return f"{name} as {kind}"
    elif how == "cut":
        tensors[name] = value[:-1] if value.ndim and len(value) else value.reshape(-1)[:0]
    elif how == "extra row":
        tensors[name] = torch.cat([value, value[:1]]) if value.ndim else value.reshape(1).repeat(2)
    elif how == "flat":
        tensors[name] = value.reshape(-1)
    elif how == "axis":
        tensors[name] = value[..., None]
    elif how == "transpose":
        tensors[name] = value.mT if value.ndim > 1 else value[None] if value.ndim else value
    elif how in ("fill", "cell") and value.is_floating_point() and value.numel():
        content = draw.one_of([float("nan"), float("inf"), 0.0, -1.0, 1e300, 1e-320])
        changed = value.clone()
        (changed.reshape(-1)[draw.whole(0, value.numel() - 1) :][: 1 if how == "cell" else None]).fill_(content)
        tensors[name] = changed
        return f"{name}: {how} {content}"
    elif how == "empty":
        tensors[name] = value.reshape(-1)[:0]
    elif how == "huge":  # many rows with a few bytes each
        tensors[name] = torch.zeros((draw.one_of([2**12, 2**16]), *value.shape[1:]), dtype=value.dtype)
    else:
        tensors["x" + name] = value
    return f"{name}: {how}"
