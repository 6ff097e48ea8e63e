"""User-defined parts of a model file: the file stores their names, and the caller of `gigagp.load` passes them.

A file never determines which code runs. It contains the names of classes and functions that are not part of this
package. `Custom` finds them among the objects that the caller of `gigagp.load` passes, and nothing is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from gigagp.errors import InvalidInputError

#: A class (kernel, mean, likelihood, setting, estimator) or a mean function.
Item = type | Callable[..., Any]
#: Key in a description for the import path of an object that is not part of the package.
MARK = "custom"
T = TypeVar("T")


def marked(item: Item) -> dict[str, str]:
    """Return the entry of a description for a class or function that is not part of the package.

    One without a name by which it could be found is refused: a lambda, a partial function, or a callable object.
    """
    name = getattr(item, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise InvalidInputError(
            f"{item!r} cannot be saved with a model: it has no name by which gigagp.load could find it. Define it "
            "with def or class, or (a mean function) subtract it from y before the fit."
        )
    return {MARK: f"{getattr(item, '__module__', '?')}.{getattr(item, '__qualname__', name)}"}


def state_of(value: Any) -> dict[str, Any]:
    """Return the constructor arguments of a user-defined object: the fields of a dataclass, or none.

    An object with other attributes is refused.
    """
    named = {one.name: getattr(value, one.name) for one in fields(value) if one.init} if is_dataclass(value) else {}
    if set(getattr(value, "__dict__", ())) - set(named):
        raise InvalidInputError(
            f"{type(value).__name__} cannot be saved with a model: its contents are not known. Make it a dataclass "
            "(dataclasses.dataclass(frozen=True)) whose fields are numbers, strings and tuples."
        )
    return named


class Custom:
    """User-defined classes and functions that a model file may name; they are found by their names."""

    def __init__(self, items: Iterable[Item] = ()) -> None:
        given: list[Any] = list(items) if isinstance(items, Iterable) else [items]
        self._items: dict[str, Item] = {}
        for item in given:
            name = getattr(item, "__name__", None)
            if not callable(item) or not isinstance(name, str):
                raise InvalidInputError(f"custom of gigagp.load must be a list of classes and functions; got {item!r}.")
            if self._items.setdefault(name, item) is not item:
                msg = f"custom of gigagp.load has two different items named {name!r}; rename one of them."
                raise InvalidInputError(msg)

    def classes(self, base: type[T]) -> list[type[T]]:
        """Return the classes among the items that derive from a base."""
        return [item for item in self._items.values() if isinstance(item, type) and issubclass(item, base)]

    def find(self, name: Any, description: Mapping[str, Any], what: str, base: type | None = None) -> Any:
        """Return the item with the name in a description, which may have the import path too, under `MARK`.

        ``what`` is the expected kind of object, for messages. ``base`` is its base class; None: the item is a function.
        """
        item = self._items.get(name) if isinstance(name, str) else None
        if item is None:
            shown, path = str(name)[:100], str(description.get(MARK, name))[:200]
            raise InvalidInputError(
                f"a description names {what} that is not gigagp's: {shown!r} ({path}). Import it and pass it on: "
                f"gigagp.load(path, custom=[{shown}])."
            )
        if base is not None and not (isinstance(item, type) and issubclass(item, base)):
            msg = f"custom of gigagp.load has {item!r} for {what}; it must be a class derived from {base.__name__}."
            raise InvalidInputError(msg)
        return item


#: No user-defined objects.
NOTHING = Custom()
