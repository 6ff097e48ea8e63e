"""The inputs that an elementary kernel depends on, and which of its values belongs to each of them."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels.arguments import checked_groups


class OfInputs(ABC):
    """What `gigagp.kernels.Leaf` knows of its inputs."""

    _columns: tuple[int, ...] | None
    _ard: bool
    #: Number of the value that each active input has, where several inputs share one; None: one each.
    _groups: tuple[int, ...] | None
    #: Factors of the inputs where one lengthscale serves all of them and standardizing gave them different units.
    _input_weights: Tensor | None
    #: What is added after the factors; None: nothing.
    _input_origin: Tensor | None
    _n_inputs: int | None

    @abstractmethod
    def value(self, name: str, like: Tensor | None = None) -> Tensor:
        """Return one hyperparameter; see `Leaf.value`."""

    @property
    def columns(self) -> tuple[int, ...] | None:
        """The input columns that the kernel depends on; None for all."""
        return self._columns

    @property
    def active_columns(self) -> list[int]:
        """The input columns that this bound kernel depends on."""
        assert self._n_inputs is not None, "the kernel is bound"
        return self._active_columns(self._n_inputs)

    def _active_columns(self, n_inputs: int) -> list[int]:
        return list(range(n_inputs) if self._columns is None else self._columns)

    @property
    def n_active(self) -> int:
        """Number of inputs that the kernel depends on, which an unbound kernel knows from its ``columns`` alone."""
        if self._columns is not None:
            return len(self._columns)
        if self._n_inputs is None:
            msg = f"{type(self).__name__} is not bound to data yet; call bind(n_inputs) first."
            raise InvalidInputError(msg)
        return self._n_inputs

    @property
    def ard(self) -> bool:
        """Whether hyperparameters that belong to inputs have one value each."""
        return self._ard

    @property
    def groups(self) -> tuple[int, ...] | None:
        """Number of the value that each active input has; None: one value for each input."""
        return self._groups

    def active(self, X: Tensor) -> Tensor:
        """Return the columns that the kernel depends on, shape (n, number of active inputs)."""
        chosen = X if self._columns is None else X[:, list(self._columns)]
        if self._input_weights is None:
            return chosen
        weighted = chosen * self._input_weights.to(chosen)
        return weighted if self._input_origin is None else weighted + self._input_origin.to(chosen)

    def shared_values(self) -> tuple[int, ...] | None:
        """Return the number of the value that each coordinate of a point has; None: each input has its own."""
        return self._groups

    def by_input(self, name: str, like: Tensor | None = None) -> Tensor:
        """Return the values of a hyperparameter of inputs, one for each active input, shape (n_active,).

        With a metric of its own a kernel has coordinates in place of active inputs, here and in `by_value`.
        """
        value, shared = self.value(name, like), self.shared_values()
        if shared is not None and self._ard:
            return value[list(shared)]
        return value.expand(self.n_active)

    def lengths(self, name: str = "lengthscale") -> Tensor:
        """Return one lengthscale or period for each active input, in the units that the kernel sees, (n_active,)."""
        value = self.by_input(name)
        return value if self._input_weights is None else value / self._input_weights

    def by_value(self, by_input: Tensor) -> Tensor:
        """Return numbers of the active inputs, shape (n_active, ...), summed over the inputs that share a value."""
        if not self._ard:
            return by_input.sum(0, keepdim=True)
        shared = self.shared_values()
        if shared is None:
            return by_input
        members = torch.tensor(shared, device=by_input.device)
        return torch.stack([by_input[members == group].sum(0) for group in range(max(shared) + 1)])

    def with_groups(self, groups: Sequence[int], columns: Sequence[int] | None = None) -> Self:
        """Return this unbound kernel with one value of its hyperparameters of inputs for each group of inputs.

        ``groups`` has the number of the group of each active input, from 0, in the order in which groups first occur.
        The inputs of a group must have the same unit. ``columns`` replaces the active columns.
        """
        other = copy.copy(self)
        other._groups = checked_groups(groups, type(self).__name__)
        if max(other._groups) + 1 == len(other._groups):  # one input each
            other._groups = None
        other._columns = self._columns if columns is None else tuple(columns)
        return other

    def on_columns(self, columns: Sequence[int]) -> Self:
        """Return this bound kernel for tables with only these columns, which include all that it depends on."""
        other = copy.copy(self)
        other._n_inputs = len(columns)
        if self._columns is not None:
            other._columns = tuple(columns.index(column) for column in self._columns)
        return other
