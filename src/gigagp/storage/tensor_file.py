"""Files of tensors and JSON (safetensors), which are written atomically and opened once for reading.

The metadata of a file consist of ``format`` ("gigagp"), ``version`` (of the layout), ``kind`` (the class that wrote
it), ``gigagp`` (the version of the package), ``header`` (JSON, specific to the class) and ``checksum`` (of the header
and of every tensor).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import torch

import gigagp
from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.storage.files import replacing

FORMAT = "gigagp"
#: Version of the layout. Newer versions are rejected; `gigagp.estimators.saving.persistence` explains how older ones
#: are read.
VERSION = 2

Path = str | os.PathLike[str]
#: Dtypes that files can contain, with their names in the format.
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Content(NamedTuple):
    """The content of a file."""

    kind: str  # name of the class that wrote it
    tensors: dict[str, torch.Tensor]  # on the CPU
    header: dict[str, Any]
    version: int  # of the layout


# Writing --------------------------------------------------------------------------------------------------------------


def save_state(path: Path, kind: str, tensors: Mapping[str, torch.Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a JSON header to one file, atomically: after a crash the old file is intact.

    ``kind`` is the name of the class that writes it. Tensors may have any shape, real dtype and device. A header that
    JSON cannot represent is refused; `ModelFileError` says why the file cannot be written.
    """
    # Tensors on the CPU are written without a copy.
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        text = json.dumps(dict(header))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"header must contain only data that JSON can represent ({error}).") from None
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "kind": kind,
        "gigagp": gigagp.__version__,
        "header": text,
        "checksum": _checksum(kind, text, stored),
    }
    try:
        with replacing(path) as file:
            _write_tensors(file, stored, metadata)
    except OSError as error:
        raise ModelFileError(f"{os.fspath(path)} cannot be written: {error.strerror or error}.") from error


def _write_tensors(file: BinaryIO, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write what `safetensors.torch.save_file` would, but to an open file, as atomic writing requires."""
    # The widest dtypes come first, so that every tensor is aligned to a multiple of its item size.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        begin, end = end, end + tensors[name].nbytes
        dtype, shape = _DTYPES[tensors[name].dtype], list(tensors[name].shape)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)))
    file.write(text)
    for name in names:
        file.write(_bytes(tensors[name]))


def _bytes(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")


def _checksum(kind: str, header: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a digest of the kind, the header and all tensors."""
    digest = hashlib.blake2b(f"{kind}\0{header}".encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(_bytes(tensor.contiguous()))
    return digest.hexdigest()


# Reading --------------------------------------------------------------------------------------------------------------


def load_state(path: Path) -> tuple[str, dict[str, torch.Tensor], dict[str, Any]]:
    """Read kind, tensors and header of a file of `save_state`; see `read`."""
    content = read(path)
    return content.kind, content.tensors, content.header


def read(path: Path) -> Content:
    """Read a file of `save_state` after checking that it is complete and undamaged; raises `ModelFileError`.

    The file is opened only once, so that everything comes from one file even if another one replaces it meanwhile.
    """
    with _opened(path) as file:
        metadata, header, version = _metadata(file, path)
        # Copy the tensors: the originals are mapped to the file, which may disappear while the model is in use.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
    if _checksum(metadata["kind"], metadata["header"], tensors) != metadata.get("checksum"):
        raise _damaged(path, "its checksum is wrong")
    return Content(metadata["kind"], tensors, header, version)


def read_header(path: Path) -> dict[str, Any]:
    """Return the header alone, without reading the tensors."""
    with _opened(path) as file:
        return _metadata(file, path)[1]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file; errors with it in the block become `ModelFileError`."""
    from safetensors import SafetensorError, safe_open

    name, descriptor = os.fspath(path), None
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise ModelFileError(f"{name} is a folder, not a model file.")
        if not stat.S_ISREG(found.st_mode):
            raise ModelFileError(f"{name} is not a regular file, so it is not a model file.")
        if found.st_size == 0:
            msg = f"{name} is empty: the program that wrote it was probably stopped. Fit and save again."
            raise ModelFileError(msg)
        # The library opens the path twice, for the header and for the tensors. The path of a descriptor always leads to
        # the same file.
        names = (f"/proc/self/fd/{descriptor}", f"/dev/fd/{descriptor}")
        with safe_open(next(filter(os.path.exists, names), path), framework="pt") as file:
            yield file
    except FileNotFoundError as error:
        raise ModelFileError(f"{name} does not exist.") from error
    except OSError as error:
        raise ModelFileError(f"{name} cannot be read: {error.strerror or error}.") from error
    except ModelFileError:
        raise
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise _damaged(path, _shortened(str(error), 200)) from error
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _metadata(file: Any, path: Path) -> tuple[dict[str, str], dict[str, Any], int]:
    """Return metadata, parsed header and version of an open file after checking everything except the tensors."""
    name = os.fspath(path)
    metadata: dict[str, str] = file.metadata() or {}
    if metadata.get("format") != FORMAT:
        raise ModelFileError(f"{name} is a safetensors file, but gigagp did not write it.")
    version = metadata.get("version", "")
    if not re.fullmatch("[0-9]{1,6}", version) or int(version) > VERSION:
        raise ModelFileError(
            f"{name} was written by gigagp {_shortened(metadata.get('gigagp', '(unknown)'))} in layout "
            f"{_shortened(version)!r}; this is {gigagp.__version__}, which reads layouts up to {VERSION}. Update "
            "gigagp."
        )
    try:
        header = json.loads(metadata["header"])
        metadata["kind"]
    except (KeyError, ValueError, RecursionError) as error:
        raise _damaged(path, "its header cannot be read") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not a table of names")
    return metadata, header, int(version)


def _damaged(path: Path, why: str) -> ModelFileError:
    """Return the error for a file that is truncated, changed, or not a model."""
    msg = f"{os.fspath(path)} is damaged, cut off, or not a gigagp model ({why}). Fit and save again, or copy it again."
    return ModelFileError(msg)


def _shortened(text: str, most: int = 40) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
