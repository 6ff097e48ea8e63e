"""A fitted model in one file of tensors and JSON (safetensors). Loading never runs code.

The file is a safetensors file whose metadata has ``format`` = "gigagp", ``version`` (of the file layout), ``kind``
(which class wrote it), ``gigagp`` (the version of the package), ``header`` (JSON, the class's own) and ``checksum`` (of
the header and of every tensor). Which class a kind means is decided by a fixed table here, never by the file.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

import gigagp
from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.files import replacing

if TYPE_CHECKING:
    from gigagp.regression import GPRegressor

FORMAT = "gigagp"
#: Version of the file layout; a reader refuses what is newer.
VERSION = 2
#: Kind in the file -> module of the class of that name.
_KINDS = {"GPClassifier": "gigagp.classification", "GPRegressor": "gigagp.regression"}

Path = str | os.PathLike[str]
State = tuple[dict[str, torch.Tensor], dict[str, Any]]


class Saveable(Protocol):
    """What `save` needs of an estimator."""

    def _to_state(self) -> State: ...


def save(estimator: Saveable, path: Path, *, notes: Mapping[str, Any] | None = None) -> None:
    """Write a fitted estimator to one file, atomically.

    Parameters
    ----------
    estimator : GPRegressor
        A fitted estimator.
    path : str or path
        The file; what was there is replaced once the new one is complete.
    notes : mapping, optional
        Anything JSON can hold that should travel with the model, such as the name of the target column. Read it with
        `load_notes`.

    Raises
    ------
    ModelFileError
        If the file cannot be written.
    """
    tensors, header = estimator._to_state()
    if notes:
        header = {**header, "notes": dict(notes)}
    save_state(path, type(estimator).__name__, tensors, header)


def load(path: Path) -> GPRegressor:
    """Read a fitted estimator from a file written by `save`. No code from the file is run.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    GPRegressor
        Ready to predict.

    Raises
    ------
    ModelFileError
        If the file is missing, damaged, truncated, newer than this version of gigagp, or not a gigagp model.
    """
    kind, tensors, header = load_state(path)
    if kind not in _KINDS:
        msg = (
            f"{os.fspath(path)} holds a {kind!r}; this version of gigagp ({gigagp.__version__}) reads {sorted(_KINDS)}."
        )
        raise ModelFileError(msg)
    estimator_class = getattr(importlib.import_module(_KINDS[kind]), kind)
    try:
        return estimator_class._from_state(tensors, header)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        msg = (
            f"{os.fspath(path)} is a gigagp file, but its content is not a complete {kind} ({error!r}). Save it again."
        )
        raise ModelFileError(msg) from error


def load_notes(path: Path) -> dict[str, Any]:
    """Return the notes that `save` was given, {} if there were none. Raises as `load` does."""
    notes = _read_metadata(path)[1].get("notes", {})
    return notes if isinstance(notes, dict) else {}


def save_state(path: Path, kind: str, tensors: Mapping[str, torch.Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a JSON header to one file, atomically: a crash leaves the old file whole.

    Parameters
    ----------
    path : str or path
        The file.
    kind : str
        Which class wrote it.
    tensors : mapping of str to Tensor
        Any shapes and dtypes, on any device; they are stored from the CPU.
    header : mapping
        JSON-able.

    Raises
    ------
    InvalidInputError
        If the header is not JSON-able.
    ModelFileError
        If the file cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # Own, contiguous memory: safetensors refuses views that share theirs.
    stored = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    try:
        text = json.dumps(dict(header))
    except (TypeError, ValueError) as error:
        msg = f"header must hold only what JSON can ({error})."
        raise InvalidInputError(msg) from None
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "kind": kind,
        "gigagp": gigagp.__version__,
        "header": text,
        "checksum": _checksum(kind, text, stored),
    }
    try:
        with replacing(path) as temporary:
            save_file(stored, temporary, metadata=metadata)
    except (OSError, SafetensorError) as error:
        msg = f"{os.fspath(path)} cannot be written: {getattr(error, 'strerror', None) or error}."
        raise ModelFileError(msg) from error


def load_state(path: Path) -> tuple[str, dict[str, torch.Tensor], dict[str, Any]]:
    """Read what `save_state` wrote, after checking that it is all there and undamaged.

    Returns
    -------
    kind : str
    tensors : dict of str to Tensor
        On the CPU.
    header : dict

    Raises
    ------
    ModelFileError
        If the file is missing, damaged, truncated, newer than this version of gigagp, or not a gigagp file.
    """
    from safetensors import SafetensorError, safe_open

    metadata, header = _read_metadata(path)
    try:
        with safe_open(path, framework="pt") as file:
            # A copy: the original is a window into the file, which may go away while the model is in use.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise _damaged(path, str(error)) from error
    if _checksum(metadata["kind"], metadata["header"], tensors) != metadata.get("checksum"):
        raise _damaged(path, "its checksum is wrong")
    return metadata["kind"], tensors, header


def _read_metadata(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the metadata and the parsed header of a gigagp file; everything but the tensors is checked."""
    from safetensors import SafetensorError, safe_open

    name = os.fspath(path)
    try:
        size = os.path.getsize(path)
        if os.path.isdir(path):
            msg = f"{name} is a folder, not a model file."
            raise ModelFileError(msg)
        if size == 0:
            msg = f"{name} is empty: the program that wrote it was probably stopped. Fit and save again."
            raise ModelFileError(msg)
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
    except FileNotFoundError as error:
        msg = f"{name} does not exist."
        raise ModelFileError(msg) from error
    except OSError as error:
        msg = f"{name} cannot be read: {error.strerror or error}."
        raise ModelFileError(msg) from error
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise _damaged(path, str(error)) from error
    if metadata.get("format") != FORMAT:
        msg = f"{name} is a safetensors file, but gigagp did not write it."
        raise ModelFileError(msg)
    version = metadata.get("version", "")
    if not version.isdecimal() or int(version) > VERSION:
        msg = (
            f"{name} was written by gigagp {metadata.get('gigagp', '(unknown)')} in layout {version!r}; this is "
            f"{gigagp.__version__}, which reads layouts up to {VERSION}. Update gigagp."
        )
        raise ModelFileError(msg)
    try:
        header = json.loads(metadata["header"])
        metadata["kind"]
    except (KeyError, ValueError) as error:
        raise _damaged(path, "its header cannot be read") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not a table of names")
    return metadata, header


def _damaged(path: Path, why: str) -> ModelFileError:
    """Return the error for a file that is cut off, changed, or something else altogether."""
    msg = f"{os.fspath(path)} is damaged, cut off, or not a gigagp model ({why}). Fit and save again, or copy it again."
    return ModelFileError(msg)


def _checksum(kind: str, header: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a digest of everything in the file that matters."""
    digest = hashlib.blake2b(f"{kind}\0{header}".encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        if tensor.numel():
            digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
