"""The preconditioner of the last build, which serves later solves too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from gigagp.model.model import Model
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.operators import KernelMatrix
from gigagp.settings.schema import part
from gigagp.solvers import ConjugateGradients, Solution
from gigagp.solvers.base import Solver
from gigagp.solvers.preconditioners import Preconditioner, Reuse
from gigagp.solvers.preconditioners.kept import Kept

#: Factor of hyperparameters up to which a preconditioner is kept. A build, with the trial before it, takes as long as
#: 20 to 30 products (8,000 rows), and a kept one only some more iterations. With a factor of two, these were 22 and 13
#: on a function of six inputs, where they are 10 and 8 now, in the same time.
_NEAR = 1.5
_MODEL, _STATE, _PIVOTS = "built.", "generator.built", "pivots.built"


class BuiltPreconditioner:
    """A preconditioner, the model of its matrix, and what else its build depends on.

    At its own model it is used as it is. As long as no hyperparameter has moved by more than a factor of 1.5, it is
    used as one that bounds no error, where the choice of the preconditioner is left to the solver. A randomly truncated
    solver builds a new one for each model, because the law of its lengths assumes quick convergence.
    """

    def __init__(self) -> None:
        self._preconditioner: Preconditioner | None = None
        self._model: Model | None = None
        self._pivots: torch.Tensor | None = None
        self._state = torch.empty(0)

    def prepared(self, solver: Solver, model: Model) -> Solver:
        """Return a solver with the preconditioner where it serves at a model, and else forget it."""
        if not isinstance(solver, ConjugateGradients) or self._preconditioner is None or self._model is None:
            return solver
        if model.equals(self._model):
            return replace(solver, preconditioner=self._preconditioner)
        if solver.preconditioner == "auto" and not solver.is_random and model.is_near(self._model, _NEAR):
            return replace(solver, preconditioner=Kept(self._preconditioner))
        self._preconditioner = None  # before the next one is built, which may be as large
        return solver

    def remember(self, solution: Solution, model: Model, given: Reuse | None, state: torch.Tensor) -> None:
        """Keep the preconditioner of a solve, unless that had one of an earlier solve.

        Parameters
        ----------
        solution : Solution
        model : Model
        given : Reuse or None
            What the build was given.
        state : Tensor
            State of the solver's generator before the solve.
        """
        if self._preconditioner is None and solution.preconditioner is not None:
            self._preconditioner, self._model, self._state = solution.preconditioner, model, state
            self._pivots = None if given is None else given.pivots

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Return what the build depends on, for a checkpoint; the same preconditioner follows from it."""
        if self._preconditioner is None or self._model is None:
            return {}
        found = {f"{_MODEL}{name}": value for name, value in self._model.parameters().items()}
        found[_STATE] = self._state
        return found if self._pivots is None else found | {_PIVOTS: self._pivots}

    def restore(
        self,
        model: Model,
        tensors: dict[str, torch.Tensor],
        solver: Solver,
        matrix: Callable[[Model], KernelMatrix],
        graph: NeighbourGraph | None = None,
    ) -> None:
        """Build the preconditioner of a snapshot again.

        Parameters
        ----------
        model : Model
            A model of the same structure.
        tensors : dict of str to Tensor
            May hold others.
        solver : Solver
        matrix : callable
            Returns the matrix of a model.
        graph : NeighbourGraph or None
            The neighbours of the build, which may be those of an earlier model.
        """
        values = part(tensors, _MODEL)
        if not values or not isinstance(solver, ConjugateGradients):
            return
        self._model, self._state = model.replace(values), tensors[_STATE]
        operator = matrix(self._model)
        self._pivots = tensors[_PIVOTS].to(operator.device) if _PIVOTS in tensors else None
        generator = torch.Generator()
        generator.set_state(self._state)
        reuse = None if self._pivots is None and graph is None else Reuse(self._pivots, graph)
        self._preconditioner = solver.build_preconditioner(operator, generator, reuse=reuse)
