"""The package's own kernels: by name for descriptions in files, and by word for the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from inspect import isabstract
from typing import Any

from gigagp.kernels.base import Kernel
from gigagp.kernels.leaf import Leaf


def own_classes() -> dict[str, type[Kernel]]:
    """Return the package's kernel classes by name; a class becomes one of them by being defined in this package."""
    return {cls.__name__: cls for cls in _derived(Kernel) if cls.__module__.startswith("gigagp.kernels.")}


def by_word() -> dict[str, Callable[[], Leaf]]:
    """Return what makes the kernel of each word that the classes declare in ``words``."""
    leaves = [cls for cls in own_classes().values() if issubclass(cls, Leaf)]
    return {word: partial(cls, **settings) for cls in leaves for word, settings in vars(cls).get("words", {}).items()}


def _derived(cls: Any) -> Iterator[type[Kernel]]:
    """Iterate over the classes derived from one that can be constructed."""
    for derived in cls.__subclasses__():
        yield from _derived(derived)
        if not isabstract(derived):
            yield derived
