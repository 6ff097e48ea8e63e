"""Records of the solves of a fit, and the warning about those that did not finish."""

from __future__ import annotations

from collections.abc import Sequence

from gigagp.errors import NotPositiveDefiniteError, SolverWarning, warn
from gigagp.optimization.history import SolveRecord
from gigagp.solvers import Solution, Status

#: Relative residual of a solve that could not go on, above which it has found nothing: zero leaves 1.
_NOTHING = 0.5


def record_of(solution: Solution, n_fixed: int) -> SolveRecord:
    """Return the record of a solve whose first ``n_fixed`` columns are not probes; their residual is 0 without any."""
    residual, nats, truncated = solution.relative_residual, solution.nats, solution.truncated
    probes = residual[n_fixed:]
    has_probes = probes.numel() > 0
    return SolveRecord(
        iterations=solution.iterations,
        epochs=solution.epochs,
        setup_epochs=solution.setup_epochs,
        relative_residual_targets=float(residual[:n_fixed].max()) if n_fixed else 0.0,
        relative_residual_probes=float(probes.mean()) if has_probes else None,
        status=solution.status.name,
        nats_targets=None if nats is None or not n_fixed else float(nats[:n_fixed].max()),
        nats_probes=None if nats is None or not has_probes else float(nats[n_fixed:].mean()),
        lengths=None if truncated is None else list(truncated.lengths),
        ended_early=None if truncated is None else truncated.ended_early,
        widened=solution.widened or None,
    )


def require_solved(solves: Sequence[SolveRecord]) -> None:
    """Refuse a posterior whose own solves could not go on and have found nothing (`NotPositiveDefiniteError`).

    Solves that end with a budget of epochs or of time are what was asked for.
    """
    failed = (Status.STAGNATED.name, Status.DIVERGED.name, Status.NOT_FINITE.name)
    for one in solves:
        left = max(one.relative_residual_targets, one.relative_residual_probes or 0.0)
        if one.status in failed and not left <= _NOTHING:
            raise NotPositiveDefiniteError(
                f"the last solves of this fit have found no answer: they leave a relative residual of {left:.2g} after "
                f"{one.epochs:.3g} epochs. {Status[one.status].value}"
            )


def warn_of_unfinished(solves: Sequence[SolveRecord], remedy: str | None = None) -> None:
    """Warn if solves stopped before their tolerance, with the worst of them, or went on in float64.

    ``remedy`` is advice in place of that of the solver's status.
    """
    widened = sum(bool(record.widened) for record in solves)
    if widened:
        msg = (
            f"Products in float32 were too coarse for {widened} of {len(solves)} linear solves of this fit, which took "
            'float64 from there on, as dtype="float64" does from the start.'
        )
        warn(msg, SolverWarning)
    done = (Status.CONVERGED.name, Status.TRUNCATED.name)
    unfinished = [record for record in solves if record.status not in done]
    if not unfinished:
        return
    worst = max(unfinished, key=lambda one: max(one.relative_residual_targets, one.relative_residual_probes or 0.0))
    probes = "" if worst.relative_residual_probes is None else f", {worst.relative_residual_probes:.2g} of the probes"
    msg = (
        f"{len(unfinished)} of {len(solves)} linear solves of this fit stopped before their tolerance (worst "
        f"relative residual {worst.relative_residual_targets:.2g} of the targets{probes}, after {worst.epochs:.3g} "
        f"epochs). {remedy or Status[worst.status].value}"
    )
    warn(msg, SolverWarning)
