"""A matrix that is ready for solves: what solves with it share, and what those with the next one take over."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import NamedTuple, Self

import torch

from gigagp.errors import InvalidInputError
from gigagp.kernels import Kernel
from gigagp.model.model import NOISE
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.operators import KernelMatrix
from gigagp.operators.base import LinearOperator, SymmetricMatrix
from gigagp.runtime.run import Run, current_run
from gigagp.settings.schema import part
from gigagp.solvers.preconditioners.automatic import PreconditionerChoice, automatic
from gigagp.solvers.preconditioners.base import Parts, Preconditioner, PreconditionerRecipe, are_near

#: Names in checkpoints: hyperparameters of the neighbours and of the last build, and what else that build was given.
_GRAPH, BUILT, _STATE, _GIVEN = "graph.", "built.", "generator.built", "pivots.built"


class Prepared(Parts):
    """A matrix that is ready for solves, and what all solves with it share; `gigagp.solvers.Solver.prepare` makes it.

    The preconditioner is built by the first solve that needs it.

    Parameters
    ----------
    operator : LinearOperator
        The matrix.
    previous : Prepared, optional
        An earlier state of a matrix with the same rows. Its parts are taken over, and its preconditioner where the
        hyperparameters are the same or near. Anything else is left alone.
    setting : "auto", recipe, Preconditioner or None
        The preconditioner to build.
    near : float, default 1
        Factor of hyperparameters up to which the preconditioner of another matrix serves.
    bound : bool, default False
        As for `PreconditionerRecipe.build`.
    run : Run, optional
        As for `gigagp.solvers.Solver.prepare`.

    Attributes
    ----------
    preconditioner : Preconditioner or None
        None before it is built.
    is_kept : bool
        Whether it was built for other hyperparameters. It then costs nothing and bounds no error.
    """

    def __init__(
        self,
        operator: LinearOperator,
        previous: object = None,
        setting: PreconditionerChoice = None,
        *,
        near: float = 1.0,
        bound: bool = False,
        run: Run | None = None,
    ) -> None:
        self.run = run or current_run()
        self._operator: LinearOperator | None = operator
        self._n, self.setting, self._bound = operator.n, setting, bound
        self.preconditioner: Preconditioner | None = None
        self.is_kept = False
        self._origin: _Origin | None = None
        if isinstance(previous, Prepared) and previous._n == operator.n:
            self.pivots, self.graph, self.choice = previous.pivots, previous.graph, previous.choice
            origin = previous._origin
            if origin is not None and origin.is_near(operator, near):
                self.preconditioner, self._origin = previous.preconditioner, origin
                self.is_kept = not origin.is_near(operator, 1.0)

    @property
    def operator(self) -> LinearOperator:
        """The matrix."""
        if self._operator is None:
            msg = "this state is without its matrix; give it to Solver.prepare, which returns one to solve with."
            raise InvalidInputError(msg)
        return self._operator

    def without_matrix(self) -> Self:
        """Return the state for a later `Solver.prepare`, so that a stored matrix does not outlive its solves."""
        found = copy(self)
        found._operator, found.run = None, Run()
        return found

    def build(self, generator: torch.Generator) -> Preconditioner | None:
        """Return the preconditioner, which is built at the first call; None if there is to be none.

        "auto" stands for `automatic` if the operator's entries can be read, and for none otherwise.

        Raises
        ------
        InvalidInputError
            If a recipe is given for an operator whose entries cannot be read, or a preconditioner was built for
            another number of rows.
        """
        setting, operator = self.setting, self.operator
        if setting is None or self.preconditioner is not None:
            return self.preconditioner
        given, state = self.pivots, generator.get_state()
        if isinstance(setting, Preconditioner):
            if setting.n != operator.n:
                msg = f"the preconditioner was built for {setting.n} rows; the operator has {operator.n}."
                raise InvalidInputError(msg)
            built = setting
        elif isinstance(operator, SymmetricMatrix):
            if isinstance(setting, PreconditionerRecipe):
                recipe, self.choice = setting, None
            else:
                recipe = automatic(operator, self, self.run.seconds_left())
            built = recipe.build(operator, generator, self, bound=self._bound)
        elif isinstance(setting, PreconditionerRecipe):
            msg = f"{setting!r} reads entries of the matrix, and {type(operator).__name__} has none to read: use None."
            raise InvalidInputError(msg)
        else:
            return None
        self.preconditioner, self.pivots, self.graph = built, built.pivots, built.graph
        if isinstance(operator, KernelMatrix):
            self._origin = _Origin(operator.kernel, operator.X, operator.noise_variance, given, state)
        return built

    def describe(self) -> str:
        """Return one line about the preconditioner."""
        if self.preconditioner is None:
            return "none"
        return self.preconditioner.describe() + (", kept from other hyperparameters" if self.is_kept else "")

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Return what the parts and the preconditioner follow from, for a checkpoint."""
        found = {} if self.pivots is None else {"pivots": self.pivots}
        if self.graph is not None:
            found |= {f"{_GRAPH}{name}": value for name, value in self.graph.kernel.parameters().items()}
            found["neighbours"] = torch.tensor(self.graph.n_neighbours)
        if self._origin is not None:
            values = self._origin.hyperparameters().items()
            found |= {f"{BUILT}{name}": value for name, value in values if name != NOISE or not value.ndim}
            found[_STATE] = self._origin.state
            if self._origin.pivots is not None:
                found[_GIVEN] = self._origin.pivots
        return found

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take a snapshot over; the hyperparameters of the matrix must be those of its `BUILT`, if it has any."""
        operator, has_built = self.operator, _STATE in tensors
        assert isinstance(operator, KernelMatrix)
        pivots = tensors.get(_GIVEN if has_built else "pivots")
        self.pivots = None if pivots is None else pivots.to(operator.device)
        if "neighbours" in tensors:
            kernel = operator.kernel.replace(part(tensors, _GRAPH))
            self.graph = NeighbourGraph(kernel, operator.X, int(tensors["neighbours"]))
        if has_built:
            generator = torch.Generator()
            generator.set_state(tensors[_STATE])
            self.build(generator)


class _Origin(NamedTuple):
    """The matrix of a build, without its entries, and what else the build depended on."""

    kernel: Kernel
    X: torch.Tensor
    noise_variance: float | torch.Tensor
    pivots: torch.Tensor | None
    state: torch.Tensor

    def hyperparameters(self) -> dict[str, torch.Tensor]:
        """Return those of the kernel, and the noise variance."""
        return dict(self.kernel.parameters()) | {NOISE: torch.as_tensor(self.noise_variance, dtype=torch.float64)}

    def is_near(self, operator: LinearOperator, factor: float) -> bool:
        """Whether a matrix has the same rows and kernel, and no hyperparameter differs by more than a factor."""
        if not isinstance(operator, KernelMatrix):
            return False
        kernel, X = operator.kernel, operator.X
        other = self._replace(kernel=kernel, noise_variance=operator.noise_variance)
        if not are_near(self.hyperparameters(), other.hyperparameters(), factor):
            return False
        has_rows = X.device == self.X.device and torch.equal(X, self.X)
        return has_rows and self.kernel.replace(kernel.parameters()) == kernel
