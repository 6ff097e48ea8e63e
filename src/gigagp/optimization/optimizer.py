"""The interface of optimizers, and optimizers from user-defined functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np
import torch

from gigagp.errors import InvalidInputError
from gigagp.model.model import Model
from gigagp.optimization.objective import Objective
from gigagp.optimization.prior import loss
from gigagp.optimization.space import ParameterSpace, TransformName
from gigagp.optimization.trace import Trace
from gigagp.settings.fields import Settings, Words, shown

#: Function to be minimised: from a vector to its value and its gradient.
Function = Callable[[np.ndarray], "tuple[float, np.ndarray]"]


@runtime_checkable
class Optimizer(Protocol):
    """An optimizer of the hyperparameters: any object with this method can be the ``optimizer`` of an estimator.

    When to use: to write a search that needs everything the package's own optimizers use. For a function that minimises
    another function, `Minimiser` is enough.

    A `gigagp.optimization.ParameterSpace` of ``objective.start(model)`` converts the learned numbers to a vector and
    back, within its ``box``. ``trace.evaluate(objective, space, vector, "name")`` returns value and gradient, or None
    if they are not finite. It also records the history and the checkpoint, and shows progress. A checkpoint identifies
    an optimizer by its ``repr``, which should therefore contain its settings. Model files contain no code. A loaded
    model has `Unsaved` instead of a user-defined optimizer, unless that is a dataclass of plain fields whose class is
    passed to `gigagp.load` in ``custom``.
    """

    def run(self, objective: Objective, model: Model, trace: Trace, generator: torch.Generator) -> Model:
        """Return the model with the best hyperparameters found.

        Parameters
        ----------
        objective : Objective
            The function to maximise: the log marginal likelihood or its substitute.
        model : Model
            The starting point.
        trace : Trace
            Performs and records evaluations.
        generator : torch.Generator
            Source of all randomness, so that fits can be repeated and resumed.
        """


def check_optimizer(optimizer: object) -> None:
    """Raise `InvalidInputError` for anything that is neither an optimizer nor None."""
    if optimizer is None or (isinstance(optimizer, Optimizer) and not isinstance(optimizer, type)):
        return
    hint = "an object with a method run(objective, model, trace, generator), see gigagp.optimization.Optimizer"
    if isinstance(optimizer, type):
        hint += "; this is a class: call it"
    elif callable(optimizer):
        hint += "; wrap a function in optimization.Minimiser"
    allowed = f'"auto", None or one of gigagp.optimization, or {hint}'
    raise InvalidInputError(f"optimizer of GPRegressor must be {allowed}; got {shown(optimizer)}.")


def check_found(found: object, model: Model, optimizer: object) -> Model:
    """Return the result of an optimizer, a model with the given one's hyperparameters, or refuse anything else."""
    owner = f"run of {type(optimizer).__name__}"
    if not isinstance(found, Model):
        raise InvalidInputError(f"{owner} must return a gigagp.model.model.Model; got {found!r}.")
    before, after = model.parameters(), found.parameters()
    if {name: value.shape for name, value in before.items()} != {name: value.shape for name, value in after.items()}:
        msg = f"{owner} must return a model with the hyperparameters {list(before)}; got {list(after)}."
        raise InvalidInputError(msg)
    for name in found.learned_names():
        if not bool((torch.isfinite(after[name]) & (after[name] > 0)).all()):
            msg = f"{owner} must return positive finite hyperparameters; got {name} = {after[name].tolist()}."
            raise InvalidInputError(msg)
    return found


@dataclass(frozen=True)
class Unsaved(Settings):
    """Placeholder in a loaded model for an optimizer that is not part of this package.

    Parameters
    ----------
    description : str
        The ``repr`` of that optimizer.
    """

    description: str

    def run(self, objective: Objective, model: Model, trace: Trace, generator: torch.Generator) -> Model:
        """Raise InvalidInputError, because the file contains the model but not the code of its optimizer."""
        raise InvalidInputError(
            f"The optimizer of this model, {self.description}, is not in the model file. Set optimizer of the "
            "estimator to fit it again."
        )


@dataclass(frozen=True)
class Minimiser(Settings):
    """An optimizer from any function that minimises another function, such as those of `scipy.optimize`.

    When to use: for a search that the package does not provide, on a few hundred to a few thousand rows.

    Parameters
    ----------
    function : callable
        ``function(evaluate, start, bounds)`` returns the best vector found, shape (p,). ``evaluate(vector)`` returns
        minus the log marginal likelihood per observation, and its gradient, shape (p,); if the kernel matrix cannot be
        factored, it returns infinity and zeros. ``start`` has shape (p,). ``bounds`` has shape (p, 2) and is infinite
        where the kernel has no bounds. With the log transform, vectors hold logarithms of hyperparameters, and half of
        the logarithm for variances.
    transform : {"log", "softplus"}, default "log"
        How hyperparameters are made unconstrained; see `gigagp.optimization.ParameterSpace`.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.optimize import minimize
    >>> from gigagp import GPRegressor, optimization
    >>> def search(evaluate, start, bounds):
    ...     return minimize(evaluate, start, jac=True, method="TNC", bounds=bounds).x
    >>> X = np.linspace(0, 6, 40)[:, None]
    >>> gp = GPRegressor(optimizer=optimization.Minimiser(search)).fit(X, np.sin(X[:, 0]))
    """

    function: Annotated[
        Callable[[Function, np.ndarray, np.ndarray], Any], Words("callable as function(evaluate, start, bounds)")
    ]
    transform: TransformName = "log"

    def run(self, objective: Objective, model: Model, trace: Trace, generator: torch.Generator) -> Model:
        """Return the model at the vector that the function returns.

        Raises
        ------
        InvalidInputError
            If the objective has no value or is redrawn for each evaluation, or the returned vector cannot be used.
        """
        require_deterministic(objective, "Minimiser")
        space = ParameterSpace(objective.start(model), self.transform)
        if not space.size:
            return model
        trace.meter.phase("learning", unit="gradient")
        penalised = loss(trace, objective, space, "minimiser")

        def evaluate(vector: np.ndarray) -> tuple[float, np.ndarray]:
            found = penalised(space.box.clip(torch.tensor(np.asarray(vector), dtype=torch.float64)))
            if found is None:
                return np.inf, np.zeros(space.size)
            return require_value(found[0], "Minimiser"), found[1].numpy()

        bounds = torch.stack([space.box.lower, space.box.upper], 1).numpy()
        best = np.asarray(self.function(evaluate, space.encode(space.template).numpy(), bounds), dtype=np.float64)
        if best.shape != (space.size,) or not np.isfinite(best).all():
            raise InvalidInputError(f"function of Minimiser must return {space.size} finite numbers; got {best!r}.")
        return space.decode(space.box.clip(torch.from_numpy(best.copy())))


def require_deterministic(objective: Objective, owner: str) -> None:
    """Raise `InvalidInputError` for an objective whose values cannot be compared, because each is drawn anew."""
    if not objective.deterministic:
        raise _incomparable(owner, "draws a new estimate at each evaluation")


def require_value(value: float | None, owner: str) -> float:
    """Return the value of an evaluation; raise `InvalidInputError` if it is None."""
    if value is None:
        raise _incomparable(owner, "only has gradients")
    return value


def _incomparable(owner: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"{owner} compares values of the log marginal likelihood, but this inference {why}. Use it with "
        'inference.Exact, or on a bound without minibatches. For large tables there is optimizer="auto".'
    )
