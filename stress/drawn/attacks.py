"""The use of settings objects in estimators."""

from __future__ import annotations

import dataclasses
from typing import Any

#: Exported classes that are results and not settings.
_RESULTS = {
    "Abilities",
    *("Solution", "Start", "Truncated", "PathwiseProbes", "Evaluation", "History", "SolveRecord", "Step", "Unsaved"),
}


def settings_classes() -> list[tuple[str, str, type]]:
    """Return (room, name, class) of every exported settings class."""
    from gigagp import actions, gradients, inference, optimization, solvers, truncation

    rooms = {
        "inference": inference,
        "solvers": solvers,
        "gradients": gradients,
        "optimization": optimization,
        "truncation": truncation,
        "actions": actions,
    }
    return [
        (room, name, getattr(module, name))
        for room, module in rooms.items()
        for name in module.__all__
        if isinstance(getattr(module, name), type)
        and dataclasses.is_dataclass(getattr(module, name))
        and name not in _RESULTS
    ]


def placed(room: str, name: str, made: Any) -> dict[str, Any]:
    """Return arguments of `GPRegressor` that use a settings object, with fast and valid values for everything else."""
    from gigagp import inference, optimization, solvers, truncation

    quick = optimization.Adam(steps=2)
    if room == "inference":
        slow = isinstance(made, inference.RelevanceVectorMachine | inference.QuadruplyStochastic)
        # Settings with sampling would take thousands of steps, with 20,000 functions by default.
        sampled = ("row_batch", "basis_batch", "n_support", "replacement")
        if any(getattr(made, one, None) for one in sampled):
            return {"inference": made, "optimizer": optimization.SparseAdam(steps=20)}
        return {"inference": made, "optimizer": None if slow else quick}
    if room == "optimization":
        if name.startswith("Sparse"):
            # An ascent without a number of steps continues until it no longer gains, which takes minutes with sampling.
            batches = {} if made.steps is None else {"row_batch": 8, "basis_batch": 5}
            return {"inference": inference.QuadruplyStochastic(n_basis=10, **batches), "optimizer": made}
        return {"inference": inference.Exact(), "optimizer": made}
    if room == "actions":
        return {"inference": inference.ComputationAware(n_actions=5, policy=made), "optimizer": quick}
    if room == "gradients":
        return {"inference": inference.Iterative(gradient=made, n_samples=4), "optimizer": quick}
    if room == "truncation":
        series = made if name in ("RussianRoulette", "SingleSample") else truncation.RussianRoulette(made)
        if name == "SingleSample":
            return {"inference": inference.RandomFeatures(n_features=30, truncation=series), "optimizer": quick}
        solver = solvers.ConjugateGradients(truncation=series)
        return {"inference": inference.Iterative(solver=solver, n_samples=4), "optimizer": quick}
    if not isinstance(made, solvers.Solver):
        made = solvers.ConjugateGradients(preconditioner=made)
    return {"inference": inference.Iterative(solver=made, n_samples=4), "optimizer": quick}
