"""What is a user's own in a model file: the file says its name, and whoever loads the file hands it in.

A file never decides which code runs. It has the names of classes and functions that are not this package's; `Custom`
finds them among those that the caller of `gigagp.load` gives, and nothing is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from gigagp.errors import InvalidInputError

#: A class (kernel, mean, likelihood, setting, estimator) or a mean function.
Item = type | Callable[..., Any]
#: Under this name a description in a file has the import path of what is not the package's.
MARK = "custom"
T = TypeVar("T")


def marked(item: Item) -> dict[str, str]:
    """Return what a description says of a class or function that is not the package's.

    Raises
    ------
    InvalidInputError
        If it has no name to be found by: a lambda, a partial function, an object that can be called.
    """
    name = getattr(item, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        msg = (
            f"{item!r} cannot be saved with a model: it has no name by which gigagp.load could be given it. Define it "
            "with def or class, or (a mean function) subtract it from y before the fit."
        )
        raise InvalidInputError(msg)
    return {MARK: f"{getattr(item, '__module__', '?')}.{getattr(item, '__qualname__', name)}"}


def state_of(value: Any) -> dict[str, Any]:
    """Return the constructor's arguments of an object of a user's own: the fields of a dataclass, or none.

    Raises
    ------
    InvalidInputError
        If it holds something else.
    """
    named = {one.name: getattr(value, one.name) for one in fields(value) if one.init} if is_dataclass(value) else {}
    if set(getattr(value, "__dict__", ())) - set(named):
        msg = (
            f"{type(value).__name__} cannot be saved with a model: what it holds is not known. Make it a dataclass "
            "(dataclasses.dataclass(frozen=True)) whose fields are numbers, texts and tuples."
        )
        raise InvalidInputError(msg)
    return named


class Custom:
    """Classes and functions that a model file may name, by their names.

    Parameters
    ----------
    items : iterable of class or function

    Raises
    ------
    InvalidInputError
        If an item is no class and no function, or two of them have one name.
    """

    def __init__(self, items: Iterable[Item] = ()) -> None:
        given: list[Any] = list(items) if isinstance(items, Iterable) else [items]
        self._items: dict[str, Item] = {}
        for item in given:
            name = getattr(item, "__name__", None)
            if not callable(item) or not isinstance(name, str):
                msg = f"custom of gigagp.load must be a list of classes and functions; got {item!r}."
                raise InvalidInputError(msg)
            if self._items.setdefault(name, item) is not item:
                msg = f"custom of gigagp.load has two different items of the name {name!r}; rename one of them."
                raise InvalidInputError(msg)

    def classes(self, base: type[T]) -> list[type[T]]:
        """Return the classes among the items that derive from a base."""
        return [item for item in self._items.values() if isinstance(item, type) and issubclass(item, base)]

    def find(self, name: Any, description: Mapping[str, Any], what: str, base: type | None = None) -> Any:
        """Return the item of a name.

        Parameters
        ----------
        name : str
        description : mapping
            Where the name is from; it may have the import path under `MARK`.
        what : str
            What it is to be, for messages.
        base : type, optional
            What it has to derive from; None: a function.

        Raises
        ------
        InvalidInputError
            If it was not given, or is something else.
        """
        item = self._items.get(name) if isinstance(name, str) else None
        if item is None:
            shown, path = str(name)[:100], str(description.get(MARK, name))[:200]
            msg = (
                f"a description names {what} that is not gigagp's: {shown!r} ({path}). Import it and pass it on: "
                f"gigagp.load(path, custom=[{shown}])."
            )
            raise InvalidInputError(msg)
        if base is not None and not (isinstance(item, type) and issubclass(item, base)):
            msg = f"custom of gigagp.load has {item!r} for {what}; it must be a class derived from {base.__name__}."
            raise InvalidInputError(msg)
        return item


#: Nothing but the package's own.
NOTHING = Custom()
