"""The kernel of groups of rows: an effect of each level of a column, and slopes of each level."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels.arguments import BoundsLike, ParameterLike
from gigagp.kernels.base import Kernel
from gigagp.kernels.elementary import Constant, White, checked_centre
from gigagp.kernels.leaf import Hyperparameter, Leaf
from gigagp.kernels.units import Unit, Units
from gigagp.settings.fields import Words, shown
from gigagp.settings.indexed_random import IndexedDraws, random_bits

#: A column by its number or its name, and what the constructor takes for some of them.
Column = int | str
ColumnsLike = Column | Sequence[Column]
#: What estimators take for groups.
GroupsLike = Annotated[Any, Words("a list of columns of levels, by number or name")]

#: How far a number may be from a whole one: levels of standardized rows are rounded, also to float32.
_ROUNDING = 1e-2
#: Size of a level up to which float64 and float32 tell it from the next one, also after standardizing.
_LARGEST = {torch.float64: 2.0**42, torch.float32: 2.0**16}
#: Distance of two levels whose squared exponential is exactly zero.
_APART = 64.0
#: Keys of random features are whole numbers below this, which float64 holds.
_KEYS = 2.0**52


class Group(Leaf):
    """Effects of groups: ``k = [same level] (variance_0 + sum_j variance_j (x_j - centre_j) (z_j - centre_j))``.

    When to use: if rows come in groups, such as shops, patients or items, each with its own effect (a random effect):
    ``Matern() + Group("shop") + Group("item")``. Effects are independent and normal, and their variance is learned:
    effects of levels with few rows are shrunk towards zero, and a level without rows has the prior. With ``slopes``
    each level also has its own slope in some inputs. Other kernel terms without ``columns`` depend on all inputs except
    the grouping columns. A product such as ``Matern(columns=[0]) * Group("shop")`` is a separate function for each
    level.

    Parameters
    ----------
    levels : int, str or sequence of them
        Column with the level of each row, by number or name: integers, or any values with ``encode="auto"`` of the
        estimators. With several columns the levels are their combinations: ``Group(["shop", "department"])`` is for
        departments nested in shops, where department 1 of one shop is unrelated to department 1 of another.
    slopes : int, str or sequence of them, optional
        Inputs along which each level has a slope, independent of its effect.
    variance : float or array-like, optional
        Variance of the effects, then of each slope. Default 1.
    centre : float or array-like, optional
        The input at which the line of a level equals its effect, for each slope. Default: the mean of the training
        inputs where the estimator standardizes them, otherwise zero.
    fixed, bounds
        As for `RBF`.
    """

    shapes: ClassVar[dict[str, bool]] = {"variance": True}
    units: ClassVar[dict[str, Unit]] = {"variance": "target"}
    has_spectrum: ClassVar[bool] = True

    variance = Hyperparameter("Variance of the effects and of each slope, (1 + slopes,); None if not settled.")

    def __init__(
        self,
        levels: ColumnsLike,
        slopes: ColumnsLike = (),
        variance: ParameterLike = None,
        *,
        centre: ParameterLike = None,
        fixed: Sequence[str] | bool = (),
        bounds: BoundsLike = None,
    ) -> None:
        self._level_columns, self._slope_columns = _checked(levels, "levels"), _checked(slopes, "slopes", empty=True)
        both = self._level_columns + self._slope_columns
        if len(set(both)) < len(both):
            raise InvalidInputError(f"levels and slopes of Group must be different columns; got {list(both)}.")
        self._centre = checked_centre(centre, "Group")
        if self._centre is not None and (self._centre.numel() not in (1, len(self._slope_columns))):
            msg = f"centre of Group must be one number or one for each of {len(self._slope_columns)} slopes; got "
            raise InvalidInputError(msg + f"{self._centre.numel()}.")
        super().__init__({"variance": variance}, columns=None, fixed=fixed, bounds=bounds)
        self._place()

    def _place(self) -> None:
        """Set the columns of the base class, once all are numbers."""
        numbers = [column for column in self._level_columns + self._slope_columns if isinstance(column, int)]
        complete = len(numbers) == len(self._level_columns) + len(self._slope_columns)
        self._columns = tuple(numbers) if complete else None

    # Columns --------------------------------------------------------------------------------------------------------

    @property
    def level_columns(self) -> tuple[Column, ...]:
        """The columns whose values are the levels."""
        return self._level_columns

    @property
    def slope_columns(self) -> tuple[Column, ...]:
        """The inputs along which levels have slopes."""
        return self._slope_columns

    @property
    def centre(self) -> Tensor | None:
        """Where the lines of a level have its effect, one number for each slope or for all; None for zero."""
        return self._centre

    @property
    def label(self) -> str:
        """The columns of levels in words, such as ``shop:department``."""
        return ":".join(map(str, self._level_columns))

    def on(self, levels: Sequence[Column], slopes: Sequence[Column]) -> Self:
        """Return this kernel with other columns, as many slopes as before."""
        other = copy.copy(self)
        other._level_columns, other._slope_columns = tuple(levels), tuple(slopes)
        other._place()
        return other

    def bind(self, n_inputs: int) -> Self:
        if self._columns is None:
            names = [column for column in self._level_columns + self._slope_columns if isinstance(column, str)]
            raise InvalidInputError(
                f"Group names the columns {', '.join(map(repr, names))}, but the inputs have no names. Give a table "
                "with these columns, or their numbers."
            )
        return super().bind(n_inputs)

    def on_columns(self, columns: Sequence[int]) -> Self:
        other = super().on_columns(columns)
        assert other._columns is not None
        count = len(self._level_columns)
        other._level_columns, other._slope_columns = other._columns[:count], other._columns[count:]
        return other

    # The contract of leaves -----------------------------------------------------------------------------------------

    def n_values(self, name: str, n_active: int) -> tuple[int, str]:
        return 1 + len(self._slope_columns), "effect and slope"

    def default(self, name: str, n_active: int) -> float:
        return 1.0

    def levels(self, X: Tensor) -> Tensor:
        """Return the levels of rows as whole numbers, shape (n, columns of levels), int64; refuse other numbers."""
        count = len(self._level_columns)
        own = self.active(X.detach())[:, :count].double()
        found = own.round()
        sound = ((own - found).abs() <= _ROUNDING) & (found.abs() <= _LARGEST.get(X.dtype, 2.0**42))
        try:
            is_sound = bool(sound.all())
        except RuntimeError:  # torch.vmap does not allow reading a number; the rows of a fit have been looked at
            is_sound = True
        if not is_sound:
            row, place = (int(one) for one in (~sound).nonzero()[0])
            raise InvalidInputError(
                f"Column {self._level_columns[place]} of X must be whole numbers of at most "
                f"{_LARGEST.get(X.dtype, 2.0**42):g} in size, the levels, for Group; got {float(own[row, place]):g} in "
                f'row {row}. Number the levels, or give encode="auto" to have strings and other values numbered.'
            )
        return found.long()

    def same(self, X: Tensor, Z: Tensor) -> Tensor:
        """Return whether rows have the same level, shape (n, m)."""
        left, right = self.levels(X), self.levels(Z)
        return (left[:, None, :] == right[None, :, :]).all(-1)

    def embed(self, X: Tensor) -> Tensor:
        """Return coordinates in which different levels are so far apart that a squared exponential is exactly zero."""
        return _APART * self.levels(X).to(torch.float64)

    def lines(self, X: Tensor) -> Tensor:
        """Return 1 and the inputs of the slopes minus their centre, shape (n, 1 + slopes)."""
        one = X.new_ones(X.shape[0], 1)
        if not self._slope_columns:
            return one
        inputs = X[:, [column for column in self._slope_columns if isinstance(column, int)]]
        return torch.cat([one, inputs if self._centre is None else inputs - self._centre.to(inputs)], 1)

    def scale(self, X: Tensor) -> Tensor:
        """Return `lines` times the standard deviations of effects and slopes, shape (n, 1 + slopes)."""
        return self.lines(X) * self.value("variance", X).sqrt()

    def block(self, X: Tensor, Z: Tensor) -> Tensor:
        kernel = self.bind(X.shape[1])
        return kernel.same(X, Z) * (kernel.scale(X) @ kernel.scale(Z).T)

    def derivatives(self, X: Tensor, Z: Tensor) -> dict[str, Tensor]:
        kernel = self.bind(X.shape[1])
        lines = zip(kernel.lines(X).T, kernel.lines(Z).T, strict=True)
        return {"variance": kernel.same(X, Z) * torch.stack([left[:, None] * right for left, right in lines])}

    def diagonal(self, X: Tensor) -> Tensor:
        return self.bind(X.shape[1]).scale(X).square().sum(1)

    def admitted(self, X: Tensor) -> Tensor:
        """Return rows whose levels are whole numbers, for points that are made up."""
        kernel, count = self.bind(X.shape[1]), len(self._level_columns)
        columns = kernel.active_columns[:count]
        named = kernel.active(X)[:, :count].round()
        if self._input_weights is not None and self._input_origin is not None:
            named = (named - self._input_origin[:count].to(X)) / self._input_weights[:count].to(X)
        return X.index_copy(1, torch.tensor(columns, device=X.device), named)

    def at_new_levels(self, X: Tensor) -> Tensor:
        """Return rows (n, d) of a bound kernel at the level that no row is expected to have: the smallest there is."""
        count = len(self._level_columns)
        columns = torch.tensor(self.active_columns[:count], device=X.device)
        new = X.new_full((len(X), count), -_LARGEST.get(X.dtype, 2.0**42) / 2)
        if self._input_weights is not None and self._input_origin is not None:
            new = (new - self._input_origin[:count].to(X)) / self._input_weights[:count].to(X)
        return X.index_copy(1, columns, new)

    # Random features: a random sign for each level and frequency ------------------------------------------------------

    def draw_frequencies(self, n_frequencies: int, generator: torch.Generator, law: str) -> dict[str, Tensor]:
        """Return a random key for each frequency, from which the signs of all levels follow."""
        return {"key": torch.randint(int(_KEYS), (n_frequencies, 1), generator=generator).double()}

    def draw_at(self, numbers: IndexedDraws) -> dict[str, Tensor]:
        return {"key": (numbers.uniform(1) * _KEYS).floor()}

    def amplitude_and_phase(self, X: Tensor, draw: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        levels = self.levels(X)
        hashed = torch.zeros_like(levels[:, 0])
        for place, one in enumerate(levels.T):
            hashed = random_bits(place, hashed ^ one)
        keys, scale = draw["key"][:, 0].to(levels.device).long(), self.scale(X)
        found = scale.new_zeros(len(X), len(keys))
        for place, column in enumerate(scale.T):
            bits = random_bits(place, hashed[:, None] ^ keys)
            found = found + column[:, None] * (1 - 2 * ((bits >> 40) & 1)).to(scale)
        return found, None

    # Units and files ------------------------------------------------------------------------------------------------

    def unit_factors(self, units: Units) -> dict[str, Tensor]:
        slopes = units.scale[self._active_columns(len(units.scale))][len(self._level_columns) :]
        return {"variance": units.variance / torch.cat([torch.ones(1).to(slopes), slopes]).square()}

    def _weights_in(self, units: Units) -> Tensor:
        count, columns = len(self._level_columns), self._active_columns(len(units.scale))
        scale = units.scale[columns].clone()
        scale[count:] = 1.0
        return scale

    def _origin_in(self, units: Units) -> Tensor:
        count, columns = len(self._level_columns), self._active_columns(len(units.scale))
        centre = units.centre[columns].clone()
        centre[count:] = 0.0
        return centre

    def standardized(self, units: Units) -> Self:
        other = super().standardized(units)
        if self._centre is not None and self._slope_columns:
            columns = self._active_columns(len(units.scale))[len(self._level_columns) :]
            other._centre = _or_none((self._centre - units.centre[columns]) / units.scale[columns])
        return other

    def in_own_units(self, units: Units) -> Self:
        other = super().in_own_units(units)
        if self._slope_columns:
            columns = self._active_columns(len(units.scale))[len(self._level_columns) :]
            origin = 0.0 if self._centre is None else self._centre
            other._centre = _or_none(units.centre[columns] + units.scale[columns] * origin)
        return other

    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = {"levels": list(self._level_columns)}
        if self._slope_columns:
            found["slopes"] = list(self._slope_columns)
        if self._centre is not None:
            found["centre"] = self._centre.tolist()
        return found | {name: value for name, value in super().settings().items() if name != "columns"}


def _or_none(centre: Tensor) -> Tensor | None:
    return centre if bool((centre != 0).any()) else None


def _checked(columns: ColumnsLike, name: str, *, empty: bool = False) -> tuple[Column, ...]:
    """Return columns by number or name."""
    given = [columns] if isinstance(columns, str) or not isinstance(columns, Sequence) else list(columns)
    found: list[Column] = []
    for column in given:
        try:
            found.append(column if isinstance(column, str) else operator.index(column))
        except TypeError:
            found = []
            break
    sound = all(isinstance(one, str) or one >= 0 for one in found) and len(set(found)) == len(found) == len(given)
    if not sound or any(isinstance(one, bool) for one in given) or not (found or empty):
        many = "different columns by number or name" + ", at least one" * (not empty)
        raise InvalidInputError(f"{name} of Group must be {many}; got {shown(columns)}.")
    return tuple(found)


# Groups in a kernel ---------------------------------------------------------------------------------------------------


def groups_of(kernel: Kernel) -> list[Group]:
    """Return the groups in a kernel."""
    return [leaf for leaf in kernel.leaves() if isinstance(leaf, Group)]


def numbered(kernel: Kernel, names: Sequence[Any] | None) -> Kernel:
    """Return a kernel whose groups have the numbers of their columns in place of names; unknown names are refused."""
    if names is None or not groups_of(kernel):
        return kernel
    places = {str(name): place for place, name in enumerate(names)}

    def found(column: Column) -> int:
        if isinstance(column, str) and column not in places:
            shown_names = ", ".join(map(repr, list(places)[:20]))
            raise InvalidInputError(f"Group names the column {column!r}, which is none of the inputs: {shown_names}.")
        return places[column] if isinstance(column, str) else column

    return mapped(
        kernel, lambda one: one.on(*([found(c) for c in cs] for cs in (one.level_columns, one.slope_columns)))
    )


def mapped(kernel: Kernel, change: Callable[[Group], Kernel]) -> Kernel:
    """Return a kernel with each group changed."""
    parts: tuple[Kernel, ...] = getattr(kernel, "parts", ())
    if parts:
        return kernel.with_parts(tuple(mapped(part, change) for part in parts))  # type: ignore[attr-defined]
    return change(kernel) if isinstance(kernel, Group) else kernel


def level_columns(kernel: Kernel) -> set[int]:
    """Return the numbers of the columns of levels."""
    return {column for group in groups_of(kernel) for column in group.level_columns if isinstance(column, int)}


def apart_from_levels(kernel: Kernel, n_inputs: int) -> Kernel:
    """Return a kernel beside groups whose other parts, where they name no columns, leave out the columns of levels."""
    levels = level_columns(kernel)
    others = tuple(column for column in range(n_inputs) if column not in levels)
    if not levels:
        return kernel

    def apart(part: Kernel) -> Kernel:
        parts: tuple[Kernel, ...] = getattr(part, "parts", ())
        if parts:
            return part.with_parts(tuple(apart(one) for one in parts))  # type: ignore[attr-defined]
        if not isinstance(part, Leaf) or isinstance(part, Group | Constant | White):
            return part
        if part.columns is not None or part.n_inputs is not None:
            return part
        if not others:
            raise InvalidInputError(
                f"{type(part).__name__} has no inputs, because all columns hold the levels of groups. Leave it out, or "
                "name its columns."
            )
        made = copy.copy(part)
        made._columns = others
        return made

    return apart(kernel)


def with_groups(kernel: Kernel | None, groups: Sequence[Any]) -> Kernel | None:
    """Return a kernel, or none, plus a group for each of an estimator's ``groups``."""
    for one in groups:
        part = one if isinstance(one, Group) else Group(one)
        kernel = part if kernel is None else kernel + part
    return kernel
