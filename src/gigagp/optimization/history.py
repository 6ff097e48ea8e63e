"""The history of a fit, with one record for each outer step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from torch import Tensor

from gigagp.model.estimate import Estimate
from gigagp.model.model import Model
from gigagp.optimization.history_plot import HistoryQuantity, draw_history


@dataclass(frozen=True)
class SolveRecord:
    """Cost and outcome of one linear solve of a fit; residuals are relative and true.

    Attributes
    ----------
    iterations, epochs, setup_epochs
        As in `gigagp.solvers.Solution`.
    relative_residual_targets : float
        Largest over the targets.
    relative_residual_probes : float or None
        Mean over the probes; None without probes.
    nats_targets, nats_probes : float or None
        Bounds on the error in nats; None if the solver has none.
    status : str
        Name of the solution's status.
    lengths : list of int or None
        The two random lengths of a truncated solve.
    ended_early : bool or None
        Whether a truncated solve converged before the longer of its lengths.
    widened : bool or None
        Whether float32 products were too coarse for the solve, which went on in float64.
    """

    iterations: int
    epochs: float
    setup_epochs: float
    relative_residual_targets: float
    relative_residual_probes: float | None
    status: str
    nats_targets: float | None = None
    nats_probes: float | None = None
    lengths: list[int] | None = None
    ended_early: bool | None = None
    widened: bool | None = None


@dataclass(frozen=True)
class Step:
    """One evaluation by an outer loop.

    Attributes
    ----------
    stage : str
        Stage of the optimizer that made the evaluation, for instance ``"subset 500"``.
    seconds : float
        Wall time since the start of the fit.
    objective : float or None
        Log marginal likelihood of the stage's rows, or the bound that is maximised instead (for a minibatch, its
        estimate). None if the gradient was estimated without it.
    gradient_norm : float
        Euclidean norm of the gradient with respect to the unconstrained hyperparameters and free numbers, divided by
        the number of observations.
    hyperparameters : dict of str to float or list of float
        Values at which the evaluation was made, in the units of the fitted estimator's ``kernel_``.
    solve : SolveRecord or None
        The linear solve of the evaluation; None for a Cholesky factor.
    validation_rmse, validation_log_likelihood : float or None
        Scores on the validation rows given to ``fit``, in the target's units. None without such rows, in steps on a
        subset of the rows, and in steps whose solutions define no posterior (Hutchinson's probes).
    """

    stage: str
    seconds: float
    objective: float | None
    gradient_norm: float
    hyperparameters: dict[str, float | list[float]]
    solve: SolveRecord | None = None
    validation_rmse: float | None = None
    validation_log_likelihood: float | None = None


_PLAIN = tuple(one.name for one in fields(Step) if one.name != "solve")


@dataclass(repr=False)
class History:
    """The steps of a fit, in order.

    Attributes
    ----------
    steps : list of Step
    interrupted : {"", "learning", "last solve", "time budget"}
        Stage in which Ctrl-C was pressed. In the learning, it ended the stage at the best hyperparameters so far. The
        last solve was completed regardless; signals that come after it count as in it. ``"time budget"``: the learning
        ended so for lack of time. Empty otherwise.
    gap : Estimate or None
        How far the final approximation of the likelihood is from one with eight times the neighbours, in nats a row
        with a standard error: the mean Kullback-Leibler divergence of a row's conditional density. It is at most that
        from the exact likelihood. None where no density is conditioned on neighbours.
    """

    steps: list[Step] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter, repr=False)
    interrupted: Literal["", "learning", "last solve", "time budget"] = ""
    gap: Estimate | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __getitem__(self, index: int) -> Step:
        return self.steps[index]

    def append(self, step: Step) -> None:
        """Add a step."""
        self.steps.append(step)

    def elapsed(self) -> float:
        """Return the seconds since the start of this history."""
        return time.perf_counter() - self.started

    def resume_after(self, step: Step) -> None:
        """Set the clock to continue from a step of an earlier run."""
        self.started = min(self.started, time.perf_counter() - step.seconds)

    def multiplied(self, factors: Mapping[str, Tensor]) -> History:
        """Return this history in other units: with hyperparameters multiplied by the factors of the same name."""
        plain = {name: factor.tolist() for name, factor in factors.items()}
        steps = [
            replace(
                step,
                hyperparameters={
                    name: _times(value, plain.get(name, 1.0)) for name, value in step.hyperparameters.items()
                },
            )
            for step in self.steps
        ]
        return replace(self, steps=steps)

    def plot(self, quantity: HistoryQuantity = "hyperparameters", *, ax: Any = None) -> Any:
        """Draw how a quantity moved during the fit; it needs matplotlib (``pip install "gigagp[plot]"``).

        Parameters
        ----------
        quantity : {"hyperparameters", "gradient", "objective", "validation"}, default "hyperparameters"
            ``"hyperparameters"``: each over its last value, so that lines end at 1; of more than eight, those that
            moved most. ``"gradient"``: the norm of the gradient for each row. ``"objective"``: values, for each stage.
            ``"validation"``: RMSE of the validation rows.
        ax : matplotlib axes, optional
            Where to draw. None: a new figure.

        Returns
        -------
        matplotlib axes

        Raises
        ------
        InvalidInputError
            If matplotlib is missing, the quantity is unknown, or the history has no such values.
        """
        return draw_history(self.steps, quantity, ax)

    def __repr__(self) -> str:
        """Return the number of steps and their stages."""
        stages = ", ".join(dict.fromkeys(step.stage for step in self.steps))
        seconds = f" in {self.steps[-1].seconds:.4g} s" if self.steps else ""
        ended = f", ended by {self.interrupted}" if self.interrupted else ""
        return f"History({len(self.steps)} steps{seconds}{': ' if stages else ''}{stages}{ended})"

    @property
    def epochs(self) -> float:
        """Epochs of all solves, including their set-up."""
        return sum(s.solve.epochs + s.solve.setup_epochs for s in self.steps if s.solve is not None)

    def to_dict(self) -> dict[str, list[object]]:
        """Return a plain list for each field, with None where a step has no value."""
        rows = [asdict(step) for step in self.steps]
        columns: dict[str, list[object]] = {name: [row[name] for row in rows] for name in _PLAIN}
        for name in SolveRecord.__dataclass_fields__:
            columns[name] = [None if row["solve"] is None else row["solve"][name] for row in rows]
        return columns

    @classmethod
    def from_dict(cls, columns: dict[str, list]) -> History:
        """Return the history from the lists of `to_dict`."""
        history = cls()
        for i in range(len(columns["stage"])):
            solve = None
            if columns["iterations"][i] is not None:
                # Files of earlier versions have no columns for fields that were added later.
                known = [name for name in SolveRecord.__dataclass_fields__ if name in columns]
                solve = SolveRecord(**{name: columns[name][i] for name in known})
            history.append(Step(**{name: columns[name][i] for name in _PLAIN}, solve=solve))
        return history


def _times(value: float | list[float], factor: float | list[float]) -> float | list[float]:
    if not isinstance(value, list):
        return value * (factor[0] if isinstance(factor, list) else factor)
    factors = factor if isinstance(factor, list) and len(factor) == len(value) else [factor] * len(value)
    return [one * (each[0] if isinstance(each, list) else each) for one, each in zip(value, factors, strict=True)]


def natural_values(model: Model) -> dict[str, float | list[float]]:
    """Return a model's hyperparameters as plain numbers."""
    return {name: value.tolist() for name, value in model.parameters().items()}
