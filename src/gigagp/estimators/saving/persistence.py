"""A fitted model in one file of tensors and JSON (safetensors). Loading never runs code that the file names.

`gigagp.storage.tensor_file` defines the file. The class for each kind comes from a fixed table here, or from classes
that the caller passes (`gigagp.settings.custom`), never from the file.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch

import gigagp
from gigagp.errors import InvalidInputError, MemoryBudgetError, ModelFileError
from gigagp.runtime.memory import memory_is_budget
from gigagp.settings.custom import Custom, Item, marked
from gigagp.storage.tensor_file import Path, load_state, read, read_header, save_state

__all__ = ["load", "load_notes", "load_state", "save", "save_state"]

#: From a kind in a file to the module of the class with that name.
_KINDS = {"GPClassifier": "gigagp.classification", "GPRegressor": "gigagp.regression"}

State = tuple[dict[str, torch.Tensor], dict[str, Any]]
#: From a layout's version to a function that upgrades a model's state to the next version, so that old files load.
_UPGRADES: dict[int, Callable[[State], State]] = {}
#: Exceptions that an incomplete state can raise while a model is built from it.
_UNSOUND = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class Saveable(Protocol):
    """An estimator that `save` can write."""

    def _to_state(self) -> State: ...


@memory_is_budget()
def save(estimator: Saveable, path: Path, *, notes: Mapping[str, Any] | None = None) -> None:
    """Write a fitted estimator to one file, atomically; see `gigagp.estimators.base.GaussianProcess.save`.

    ``notes`` are further JSON data to store with the model, such as the name of the target column. `load_notes` reads
    them.
    """
    tensors, header = estimator._to_state()
    kind = type(estimator)
    if kind.__module__ != _KINDS.get(kind.__name__):
        if kind.__name__ in _KINDS:
            msg = f"a class named {kind.__name__!r} that is not part of gigagp cannot be saved; rename it."
            raise InvalidInputError(msg)
        header = {**header, "estimator": marked(kind)}
    if notes:
        header = {**header, "notes": dict(notes)}
    save_state(path, kind.__name__, tensors, header)


@memory_is_budget()
def load(path: Path, custom: Iterable[Item] = ()) -> Any:
    """Read a fitted estimator from a file written by `save`. No code that is only named in the file is run.

    Parameters
    ----------
    path : str or path
        The file.
    custom : iterable of class or function, default ()
        Parts of the model that are not part of gigagp: classes of kernels, means, likelihoods, settings or the
        estimator, and mean functions. They are found by their names. Nothing is imported.

    Returns
    -------
    GPRegressor or GPClassifier
        Ready to predict.

    Raises
    ------
    InvalidInputError
        If ``custom`` contains anything else.
    MemoryBudgetError
        If the model does not fit into the memory budget.
    ModelFileError
        If the file is missing, damaged, truncated, newer than this version of gigagp, or not a gigagp model, or if it
        names an object that is not in ``custom``.

    Examples
    --------
    >>> import numpy as np, os, tempfile
    >>> import gigagp
    >>> def trend(X):
    ...     return 2 * X[:, 0]
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> path = os.path.join(tempfile.mkdtemp(), "model.gp")
    >>> gigagp.GPRegressor(mean=trend).fit(X, 2 * X[:, 0] + X[:, 0] ** 2).save(path)
    >>> gigagp.load(path, custom=[trend]).predict(X).shape
    (20,)
    """
    given = Custom(custom)
    content = read(path)
    kind, state = content.kind, (content.tensors, content.header)
    try:
        for version in range(content.version, max(_UPGRADES, default=content.version) + 1):
            state = _UPGRADES[version](state) if version in _UPGRADES else state
        return _estimator_class(kind, path, content.header, given)._from_state(*state, given)
    except MemoryBudgetError:
        raise
    except (ModelFileError, InvalidInputError) as error:
        if isinstance(error, ModelFileError) and str(error).startswith(os.fspath(path)):
            raise
        raise ModelFileError(f"{os.fspath(path)} cannot be loaded: {error}") from error
    except _UNSOUND as error:
        shown = f"{type(error).__name__}: {error}"
        raise ModelFileError(
            f"{os.fspath(path)} is a gigagp file, but its content is not a complete {kind} ({shown[:300]}). Save it "
            "again."
        ) from error


def _estimator_class(kind: str, path: Path, header: Mapping[str, Any], custom: Custom) -> Any:
    """Return the class for the kind of an estimator."""
    if kind in _KINDS:
        return getattr(importlib.import_module(_KINDS[kind]), kind)
    description = header.get("estimator")
    if isinstance(description, dict):
        found = custom.find(kind, description, "an estimator")
        classes = tuple(getattr(importlib.import_module(module), name) for name, module in _KINDS.items())
        if isinstance(found, type) and issubclass(found, classes):
            return found
        msg = f"custom of gigagp.load has {found!r} for an estimator; it must be a class derived from {sorted(_KINDS)}."
        raise InvalidInputError(msg)
    own = sorted(_KINDS)
    msg = f"{os.fspath(path)} holds a {kind[:60]!r}; this version of gigagp ({gigagp.__version__}) reads {own}."
    raise ModelFileError(msg)


def load_notes(path: Path) -> dict[str, Any]:
    """Return the notes passed to `save`, or {} if there were none; raises the errors of `load`."""
    notes = read_header(path).get("notes", {})
    return notes if isinstance(notes, dict) else {}
