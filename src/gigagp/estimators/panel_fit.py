"""The model of a panel: a kernel of entities and times for a long table with a column of each."""

from __future__ import annotations

import copy
import functools
import operator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.estimators.arguments import Arguments
from gigagp.kernels import Constant, Group, Kernel, Linear, Matern, Periodic, StationaryKernel, Sum, White
from gigagp.model.means import LinearMean
from gigagp.tables.encoding import Panel, TableEncoder, panel_places
from gigagp.tables.encoding.columns import Dates, Entities, LeftOut, Numbers


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are inputs of, by their places in it.

    An input of the entity has one value for each entity, an input of the time one for each time, and others are inputs
    of the cell. A column that is both is one of the entity.
    """

    entity: int
    time: int
    of_entities: tuple[int, ...]
    of_times: tuple[int, ...]
    of_cells: tuple[int, ...]
    levels: tuple[int, ...] = ()  # those of them that are levels of a group

    @classmethod
    def of(cls, panel: Panel, encoder: TableEncoder, X: np.ndarray) -> Roles:
        """Return the roles of the columns of a table, whose encoded rows are X."""
        entity, time = panel_places(panel, [column.label for column in encoder.columns])
        found: dict[str, list[int]] = {"of_entities": [], "of_times": [], "of_cells": []}
        groups = {"of_entities": _numbers(X, encoder, entity), "of_times": _numbers(X, encoder, time)}
        for place, column in enumerate(encoder.columns):
            if place in (entity, time) or isinstance(column, LeftOut):
                continue
            numbers = _numbers(X, encoder, place)
            role = next((role for role, group in groups.items() if _is_constant(numbers, group)), "of_cells")
            found[role].append(place)
        places = {role: tuple(places) for role, places in found.items()}
        return cls(entity, time, **places, levels=tuple(encoder.level_columns))

    def kernel(self) -> Kernel:
        """Return the kernel of columns of the table: entity x time + entity + time, and a part of the cell's inputs.

        Each entity has an offset and its own curve, and entities whose inputs are alike have similar ones.
        """
        times = (self.time, *self.of_times)
        of_entities = functools.reduce(operator.add, [Group(self.entity), *self._parts(self.of_entities)])
        numbers = tuple(place for place in times if place not in self.levels)
        by_time = of_entities * Matern(columns=numbers, fixed=["variance"])
        return Sum(by_time, of_entities, *self._parts(times), *self._parts(self.of_cells))

    def _parts(self, columns: tuple[int, ...]) -> list[Kernel]:
        """Return a smooth function of the columns, and an effect of each level of those that have levels."""
        numbers = [place for place in columns if place not in self.levels]
        smooth: list[Kernel] = [Matern(columns=numbers)] if numbers else []
        return smooth + [Group(place) for place in columns if place in self.levels]


def of_panel(arguments: Arguments, X: np.ndarray) -> Arguments:
    """Return the arguments of the fit of a panel with the encoded rows X: those given, with its kernel and its mean."""
    given: Any = arguments.estimator
    encoder: TableEncoder = given.encoder_
    roles = Roles.of(given.panel, encoder, X)
    _check(given, encoder, roles)
    estimator, mean = copy.copy(given), arguments.mean
    if given.kernel is None:
        estimator.kernel = roles.kernel()
    if isinstance(mean, LinearMean) and mean.columns is None:
        codes = encoder.inputs[roles.entity][0]
        mean = LinearMean(tuple(column for column in range(encoder.n_encoded) if column not in codes))
    of_entity, of_time = (tuple(chain.from_iterable(encoder.inputs[place])) for place in (roles.entity, roles.time))
    found = replace(arguments, estimator=estimator, mean=mean, cells=(of_entity, of_time))
    return replace(found, opened="panel") if given.kernel is None else found


def entities_of(fitted: Any) -> np.ndarray:
    """Return the number of the entity of each row of the fit of a panel, shape (n,)."""
    place = next(place for place, column in enumerate(fitted.encoder_.columns) if isinstance(column, Entities))
    found: np.ndarray = np.rint(_rows_of(fitted)[:, fitted.encoder_.inputs[place][0][0]]).astype(np.int64)
    return found


def panel_in_words(fitted: Any) -> str:
    """Return of how many entities and times the rows of a fit are, and what its other columns are inputs of."""
    encoder, X = fitted.encoder_, _rows_of(fitted)
    labels = [column.label for column in encoder.columns]
    entity, time = panel_places(fitted._arguments["panel"], labels)
    found = f"{len(encoder.columns[entity].levels):,} entities ({labels[entity]})"
    if not len(X):  # not every posterior keeps the rows
        return f"{found} by times ({labels[time]})"
    roles = Roles.of((entity, time), encoder, X)
    found += f" by {len(np.unique(_numbers(X, encoder, time))):,} times ({labels[time]})"
    of_each = {"entities": roles.of_entities, "times": roles.of_times, "cells": roles.of_cells}
    words = [f"{', '.join(labels[place] for place in places)} of {of}" for of, places in of_each.items() if places]
    return found + (f"; inputs: {', '.join(words)}" if words else "")


def _rows_of(fitted: Any) -> np.ndarray:
    """Return the encoded rows that a fit knows, in the units of the table."""
    found: np.ndarray = fitted.scaling_.original_inputs(fitted.posterior_.places().double().cpu().numpy())
    return found


def _check(estimator: Any, encoder: TableEncoder, roles: Roles) -> None:
    """Refuse a panel without times, and arguments that have no meaning for one."""
    time = encoder.columns[roles.time]
    if not isinstance(time, Numbers | Dates) or time.missing:
        raise InvalidInputError(
            f"panel of GPRegressor must name a column of times, numbers or dates that differ, and none missing; column "
            f"{time.label!r} has {time.describe()}."
        )
    if len(estimator.groups):
        raise InvalidInputError(
            "groups of GPRegressor with a panel must be empty, because the kernel of a panel has effects of entities; "
            f"got {estimator.groups!r}. Use one of both."
        )
    if estimator.kernel is not None and not isinstance(estimator.kernel, Kernel):
        raise InvalidInputError(
            f"kernel of GPRegressor with a panel must be a kernel of the table's columns, or None, which makes one of "
            f"entities and times; got {estimator.kernel!r}."
        )
    for leaf in [] if estimator.kernel is None else estimator.kernel.leaves():
        of_all = leaf.columns is None and not isinstance(leaf, Constant | White)
        if of_all or (roles.entity in (leaf.columns or ()) and _is_of_numbers(leaf)):
            raise InvalidInputError(
                f"kernel of GPRegressor with a panel must take the entity, column {roles.entity} of the table, by "
                f"kernels.Group or kernels.Outputs, and name the columns of its other parts; got {leaf!r}."
            )
    if estimator.outputs == "correlated":
        raise InvalidInputError(
            'outputs of GPRegressor with a panel must not be "correlated". Put the output of each row into the table '
            "as the entity, or use one of both."
        )


def _is_of_numbers(leaf: Kernel) -> bool:
    """Whether a kernel takes a column for a number that may be near another one."""
    return isinstance(leaf, StationaryKernel | Linear | Periodic)


def _numbers(X: np.ndarray, encoder: TableEncoder, place: int) -> np.ndarray:
    """Return the number of the value that each row has in a column of the table."""
    columns = [column for part in encoder.inputs[place] for column in part]
    found: np.ndarray = np.unique(X[:, columns], axis=0, return_inverse=True)[1]
    return found.reshape(-1)


def _is_constant(numbers: np.ndarray, groups: np.ndarray) -> bool:
    """Whether all rows of a group have the same number, for each group."""
    first = np.zeros(int(groups.max()) + 1, dtype=numbers.dtype)
    first[groups] = numbers
    return bool((numbers == first[groups]).all())
