"""Inference methods from the options of the command line, for ``gigagp diagnose``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gigagp.commands import options
from gigagp.errors import InvalidInputError

SOLVERS = {
    "cg": "ConjugateGradients",
    "ap": "AlternatingProjections",
    "sgd": "StochasticGradientDescent",
    "cholesky": "Cholesky",
}
GRADIENTS = {"pathwise": "Pathwise", "hutchinson": "Hutchinson", "exact": "Exact"}
#: Inference methods whose gradients estimate the exact ones.
_MEASURED = ("iterative", "random-features", "exact")
#: Relative residual so small that solves run until their budget is spent.
_NEVER = 1e-12


def choose_method(
    inference: str,
    *,
    truncation: str | None = None,
    features: int | None = None,
    solver: str = "auto",
    max_epochs: float | None = None,
    tolerance: float | None = None,
    preconditioner: str = "auto",
    gradient: str = "auto",
    probes: int | None = None,
) -> Any:
    """Return the inference method that the options describe.

    Raises
    ------
    InvalidInputError
        If a word is unknown, or an option does not apply to the inference method.
    """
    from gigagp.inference import Iterative, RandomFeatures

    if (inference in options.INFERENCES and inference not in _MEASURED) or inference == "auto":
        why = "which is exact here" if inference == "auto" else "whose model is another one"
        msg = f"--inference of diagnose must be {' or '.join(_MEASURED)}; got {inference!r}, {why}."
        raise InvalidInputError(msg)
    method = options.choose_inference(inference, truncation)
    given = {
        "--solver": solver != "auto",
        "--max-epochs": max_epochs is not None,
        "--tolerance": tolerance is not None,
        "--preconditioner": preconditioner != "auto",
        "--gradient": gradient != "auto",
        "--probes": probes is not None,
    }
    if isinstance(method, Iterative):
        return replace(
            method,
            solver=_choose_solver(method.solver, solver, max_epochs, tolerance, preconditioner),
            gradient=_choose_gradient(gradient, probes, features),
        )
    given["--features"] = features is not None and not isinstance(method, RandomFeatures)
    for option, is_given in given.items():
        if is_given:
            msg = f"{option} does not apply to --inference {inference}; it goes with --inference iterative."
            raise InvalidInputError(msg)
    if features is None:
        return method
    if truncation is not None:
        msg = "--features cannot be combined with --truncation, which draws the number of random features."
        raise InvalidInputError(msg)
    return replace(method, n_features=features)


def _choose_solver(
    truncated: Any, word: str, max_epochs: float | None, tolerance: float | None, preconditioner: str
) -> Any:
    """Return the solver; ``truncated`` is ``"auto"``, or conjugate gradients with a truncation."""
    from gigagp import solvers

    if word not in ("auto", *SOLVERS):
        msg = f"--solver must be one of auto, {', '.join(SOLVERS)}; got {word!r}."
        raise InvalidInputError(msg)
    if truncated != "auto" and word not in ("auto", "cg"):
        msg = f"--truncation cuts conjugate gradients; --solver must be cg, got {word!r}."
        raise InvalidInputError(msg)
    if word not in ("auto", "cg") and preconditioner != "auto":
        msg = f"--preconditioner belongs to --solver cg; got {word!r}."
        raise InvalidInputError(msg)
    changes: dict[str, Any] = {}
    if max_epochs is not None:
        changes |= {"max_epochs": max_epochs, "tolerance": _NEVER}
    if tolerance is not None:
        changes["tolerance"] = tolerance
    if preconditioner == "none":
        changes["preconditioner"] = None
    elif preconditioner != "auto":
        if not preconditioner.isdecimal():
            msg = f"--preconditioner must be auto, none or a rank; got {preconditioner!r}."
            raise InvalidInputError(msg)
        changes["preconditioner"] = solvers.PivotedCholesky(rank=int(preconditioner))
    if truncated != "auto":
        return replace(truncated, **changes)
    if word == "auto" and not changes:
        return "auto"
    if word == "cholesky" and changes:
        msg = "--solver cholesky has no --max-epochs and no --tolerance: it solves exactly."
        raise InvalidInputError(msg)
    return getattr(solvers, SOLVERS["cg" if word == "auto" else word])(**changes)


def _choose_gradient(word: str, probes: int | None, features: int | None) -> Any:
    from gigagp.inference import gradients

    if word not in ("auto", *GRADIENTS):
        msg = f"--gradient must be one of auto, {', '.join(GRADIENTS)}; got {word!r}."
        raise InvalidInputError(msg)
    if features is not None and word not in ("auto", "pathwise"):
        msg = f"--features belongs to --gradient pathwise or --inference random-features; got --gradient {word!r}."
        raise InvalidInputError(msg)
    if word == "exact" and probes is not None:
        msg = "--gradient exact has no --probes."
        raise InvalidInputError(msg)
    changes = {} if probes is None else {"n_probes": probes}
    if features is not None:
        changes["n_features"] = features
    if word == "auto" and not changes:
        return "auto"
    # sixteen probes, as for "auto"; the default of the estimators themselves is the papers' sixty-four
    return getattr(gradients, GRADIENTS["pathwise" if word == "auto" else word])(
        **({} if word == "exact" else {"n_probes": 16} | changes)
    )
