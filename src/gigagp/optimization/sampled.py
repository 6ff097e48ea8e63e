"""The contract of objectives that are evaluated on samples of their parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor

from gigagp.model.model import Model
from gigagp.optimization.objective import Objective


@dataclass(frozen=True)
class Place:
    """The entries of an array that a sample touches: some distinct rows, and there all columns or neighbouring ones.

    Reading by `index_select` takes a tenth of the time of an indexed read where the array has a million rows.
    """

    index: Tensor
    columns: slice | None = None

    def read(self, array: Tensor) -> Tensor:
        """Return a copy of the entries."""
        return self._seen(array).index_select(0, self.index)

    def write(self, array: Tensor, values: Tensor) -> None:
        """Replace the entries."""
        self._seen(array).index_copy_(0, self.index, values)

    def _seen(self, array: Tensor) -> Tensor:
        return array if self.columns is None else array[:, self.columns]


@dataclass(frozen=True)
class SampledEvaluation:
    """An unbiased estimate of an objective and of its gradient in the entries that a sample touches.

    ``index`` (w,) has the touched rows of the parameter arrays, all distinct, and ``gradient`` is (w, ...) for each
    array that moves. Where the sample touches only some ``columns`` of a matrix, it is (w, s). ``hyperparameters`` has
    the gradient in natural units; it is empty where that was not asked for.
    """

    value: float
    index: Tensor
    gradient: dict[str, Tensor]
    hyperparameters: dict[str, Tensor]
    columns: dict[str, slice] = field(default_factory=dict)

    def place(self, name: str) -> Place:
        """Return where an array is touched."""
        return Place(self.index, self.columns.get(name))


@runtime_checkable
class SampledObjective(Objective, Protocol):
    """What sparse ascent needs of an objective beside `gigagp.optimization.Objective`."""

    def begin(self, model: Model, *, moves_hyperparameters: bool) -> Model:
        """Make the parameter arrays at their start, and return the model to start from.

        ``moves_hyperparameters`` says whether gradients by the hyperparameters will be asked for.
        """

    def learned_names(self, model: Model) -> tuple[str, ...]:
        """Return the hyperparameters that it has a gradient for."""

    def arrays(self) -> dict[str, Tensor]:
        """Return the parameter arrays; they are moved in place."""

    def units(self) -> dict[str, float]:
        """Return the step of an entry at a learning rate of one, for some of the arrays; it is 1 for the others."""

    def sample(self, model: Model, *, hyperparameters: bool) -> SampledEvaluation:
        """Draw a sample and evaluate it."""

    def moved(self, evaluation: SampledEvaluation, changes: dict[str, Tensor]) -> None:
        """Follow a step: ``changes`` have been added to the touched entries."""

    def settle(self, model: Model) -> None:
        """Complete the parameters once, after the last step."""


@runtime_checkable
class Sampleable(Objective, Protocol):
    """A deterministic objective that can also be maximised from samples of its parameters."""

    def sampled(self) -> SampledObjective:
        """Return the objective of samples; from now on the posterior is that of its parameters."""
