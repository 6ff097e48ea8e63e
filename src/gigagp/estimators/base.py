"""What `GPRegressor` and `GPClassifier` share as estimators of scikit-learn: nested arguments, and their view."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from os import PathLike
from typing import Any, Self

from sklearn.base import BaseEstimator

from gigagp.errors import InvalidInputError
from gigagp.estimators.description import with_fit
from gigagp.estimators.saving.persistence import save
from gigagp.kernels import Kernel
from gigagp.kernels.rebuilding import arguments_of, rebuilt
from gigagp.settings.fields import shown

#: Where the objects are whose arguments have nested names, and an example of each.
_EXAMPLES = {
    "kernel": "kernels.Matern(nu=1.5)",
    "inference": "inference.Iterative()",
    "optimizer": "optimization.Auto()",
    "likelihood": "likelihoods.StudentT()",
}


class GaussianProcess(BaseEstimator):
    """A scikit-learn estimator whose kernel and settings have arguments too: ``kernel__nu``, ``inference__n_samples``.

    Kernels and settings never change. To set an argument of one of them is to replace it by another, so a kernel that
    several estimators share is safe.

    Once it is fitted, a notebook shows what the fit has found above scikit-learn's diagram of the arguments, which
    pipelines and searches need. ``sklearn.set_config(display="text")`` turns both off.
    """

    encode: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True  # converted to dense arrays within the memory budget
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = self.encode == "auto"
        return tags

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments by name.

        Parameters
        ----------
        deep : bool, default True
            Whether to include the arguments of the kernel and of settings, such as ``kernel__lengthscale``,
            ``kernel__0__nu`` (of the first part of a sum or product) and ``inference__solver__tolerance``.
        """
        found: dict[str, Any] = super().get_params(deep)
        if deep:
            for name, value in tuple(found.items()):
                found |= {f"{name}__{inner}": part for inner, part in _flat(value).items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """Set arguments by name, among them those of the kernel and of settings; see `get_params`.

        They are for the next fit, also that of ``condition_on(..., refit=True)``. The answers of an earlier fit and the
        file that `save` writes of it stay as they are.

        Parameters
        ----------
        **params
            Values by name. Where an argument and its own arguments are given, the argument is set first. If one cannot
            be set, none is.

        Returns
        -------
        Self
            The estimator itself.

        Raises
        ------
        InvalidInputError
            If there is no such argument, or if its value is not allowed for a kernel or setting.
        """
        known = self.get_params(deep=False)
        values, deeper = _split(params)
        owner = type(self).__name__
        for name in {**values, **deeper}:
            if name not in known:
                raise InvalidInputError(f"{owner} has no argument {name!r}; it has {', '.join(known)}.")
        for name, changes in deeper.items():
            values[name] = _replaced(values.get(name, known[name]), changes, name, owner)
        for name, value in values.items():
            setattr(self, name, value)
        return self

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted model to one file, atomically; `gigagp.load` reads it.

        Parameters
        ----------
        path : str or path
            The file. A previous file is replaced once the new one is complete. Classes and functions that are not part
            of gigagp (a kernel, a mean, a likelihood, a subclass of the estimator) are stored by their names, and must
            be passed to `gigagp.load`.

        Raises
        ------
        InvalidInputError
            If a part of the model could not be recreated from the file; nothing is then written.
        ModelFileError
            If the file cannot be written.
        """
        save(self, path)

    @property
    def _repr_html_(self) -> Any:
        inherited = super()._repr_html_  # an AttributeError where the display is text
        return lambda: with_fit(self, inherited())

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        found: dict[str, str] = super()._repr_mimebundle_(**options)
        if "text/html" in found:
            found["text/html"] = with_fit(self, found["text/html"])
        return found


def _arguments(value: Any) -> dict[str, Any]:
    """Return the arguments of a kernel or of settings by name; none for anything else."""
    if isinstance(value, Kernel):
        return arguments_of(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    return {}


def _flat(value: Any) -> dict[str, Any]:
    """Return the arguments of a kernel or of settings, and theirs in turn, by nested names."""
    found = {}
    for name, part in _arguments(value).items():
        found[name] = part
        found |= {f"{name}__{inner}": one for inner, one in _flat(part).items()}
    return found


def _split(changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the changes of arguments, and those of the arguments of each."""
    own: dict[str, Any] = {}
    deeper: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        head, separator, rest = name.partition("__")
        if separator:
            deeper.setdefault(head, {})[rest] = value
        else:
            own[name] = value
    return own, deeper


def _replaced(value: Any, changes: Mapping[str, Any], path: str, owner: str) -> Any:
    """Return a kernel or settings with some arguments exchanged."""
    known = _arguments(value)
    own, deeper = _split(changes)
    if not known:
        example = _EXAMPLES.get(path, "an object with arguments")
        raise InvalidInputError(
            f"{path}__{next(iter(changes))} of {owner} cannot be set, because {path} is {shown(value)}, which has no "
            f"arguments. Set {path} first, for example to {example}."
        )
    for name in {**own, **deeper}:
        if name not in known:
            raise InvalidInputError(
                f"{path}__{name} of {owner} cannot be set: {type(value).__name__} has no argument {name!r}; it has "
                f"{', '.join(known)}."
            )
    for name, inner in deeper.items():
        own[name] = _replaced(own.get(name, known[name]), inner, f"{path}__{name}", owner)
    return rebuilt(value, own) if isinstance(value, Kernel) else dataclasses.replace(value, **own)
