"""What the next point is chosen by, and how it is maximized over a space."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from gigagp.inference.contract.posterior import Posterior, SampleFunctions
from gigagp.model.scaling import Scaling
from gigagp.search.space import Space

#: Values at points, (m, d) to (m,), differentiable.
Acquisition = Callable[[Tensor], Tensor]
#: Starts of the gradient steps, most evaluations, and evenly spread candidates, from which the starts are taken.
_STARTS, _EVALUATIONS, _SPREAD = 4, 12, 192
#: Candidates around the best points, and their distances from them, in widths of the cube.
_AROUND, _NEAR = 8, (0.1, 0.01, 0.001)
#: Distance in the unit cube at which two starts count as one.
_SAME_START = 1e-3
#: Most points of a space that are all tried.
_ALL = 1000
#: Most turns of gradient steps and steps to neighbours, and bisections that lead to the border of what is allowed.
_ROUNDS, _BISECTIONS = 10, 20
#: Improvements in deviations below which other forms of `log_improvement` take over.
_TAIL, _FAR_TAIL = -1.0, -1e3
_LOG_ROOT_TAU, _ROOT_HALF_PI = 0.5 * math.log(2 * math.pi), math.sqrt(math.pi / 2)


class _LogImprovement(torch.autograd.Function):
    """``log h(u)`` for ``h(u) = phi(u) + u Phi(u)``, with ``h' = Phi``."""

    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        near, tail, far = u.clamp_min(_TAIL), u.clamp(_FAR_TAIL, _TAIL), u.clamp_max(_FAR_TAIL)
        direct = ((-0.5 * near.square() - _LOG_ROOT_TAU).exp() + near * torch.special.ndtr(near)).log()
        by_ratio = (tail * _ROOT_HALF_PI * torch.special.erfcx(-tail / math.sqrt(2))).log1p()
        expanded = (-3 / far.square()).log1p() - 2 * (-far).log()
        density = -0.5 * u.square() - _LOG_ROOT_TAU
        found = torch.where(u > _TAIL, direct, density + torch.where(u > _FAR_TAIL, by_ratio, expanded))
        ctx.save_for_backward(u, found)
        return found

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        u, found = ctx.saved_tensors
        return upstream[0] * (torch.special.log_ndtr(u) - found).exp()


def log_improvement(u: Tensor) -> Tensor:
    """Return ``log(phi(u) + u Phi(u))``, the log of the expected positive part of a normal variable with mean u.

    Below -1 it is ``log phi(u) + log(1 - |u| R(|u|))`` with Mills' ratio R, whose expansion is used far below
    (Ament et al. 2023, "Unexpected improvements to expected improvement", eq. 9, arXiv:2310.20708).
    """
    found: Tensor = _LogImprovement.apply(u)
    return found


def log_expected_improvement(posterior: Posterior, scaling: Scaling, best: float) -> Acquisition:
    """Return the log of the expected improvement on ``best``, a value in the posterior's units, for minimization.

    That of a mixture is the mean of those of its components.
    """

    def evaluate(X: Tensor) -> Tensor:
        points = scaling.points(X).to(dtype=posterior.dtype, device=posterior.device)
        found = posterior.marginals(points)
        deviation = found.variances.double().clamp_min(1e-18).sqrt()
        logs = log_improvement((best - found.means[:, :, 0].double()) / deviation) + deviation.log()
        return (found.weights.to(logs).log()[:, None] + logs).logsumexp(0)

    return evaluate


def minus_sample(functions: SampleFunctions, posterior: Posterior, scaling: Scaling, which: int) -> Acquisition:
    """Return minus one of the posterior's sampled functions."""

    def evaluate(X: Tensor) -> Tensor:
        points = scaling.points(X).to(dtype=posterior.dtype, device=posterior.device)
        return -functions(points)[:, 0, which].double()

    return evaluate


def maximize(
    acquisition: Acquisition,
    space: Space,
    spread: torch.quasirandom.SobolEngine,
    best: np.ndarray,
    seed: int,
    allowed: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Return the best rows of a space that were found, (k, width), the best one first; none if none is allowed.

    A space of few points is searched in full. Otherwise candidates are drawn from ``spread`` and gathered around the
    best rows (r, width), and the best of them are improved: real inputs by L-BFGS-B, all starts in one problem, whose
    value is their sum, and integers and categories by steps to their neighbours, until neither helps.

    Parameters
    ----------
    allowed : callable
        Whether each of some rows (m, width) may be returned, shape (m,).
    """
    draw = np.random.default_rng(seed)

    def values_of(rows: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            found: np.ndarray = acquisition(torch.from_numpy(rows)).nan_to_num(nan=-torch.inf).numpy()
        return found

    def ranked(rows: np.ndarray) -> np.ndarray:
        return rows[values_of(rows).argsort(kind="stable")[::-1]] if len(rows) else rows

    if space.n_points <= _ALL:
        every = space.all_rows
        return ranked(every[allowed(every)])
    cube = spread.draw(_SPREAD, dtype=torch.float64).numpy()
    candidates = np.concatenate([space.spread(cube), _around(space, best, draw)])
    starts = np.zeros((0, space.width))
    for row in ranked(candidates[allowed(candidates)]):
        if not len(starts) or np.abs(starts - row).max(1).min() > _SAME_START:
            starts = np.concatenate([starts, row[None]])
        if len(starts) == _STARTS:
            break
    ends = starts
    for _ in range(_ROUNDS if len(starts) else 0):
        if space.is_real.any():
            ends = _better(values_of, ends, _within(allowed, ends, _climbed(acquisition, space, ends)))
        before = ends
        ends = _stepped(values_of, space, ends, allowed, draw)
        if np.array_equal(before, ends):
            break
    return ranked(np.concatenate([ends, starts]))


def _around(space: Space, rows: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Return rows at several distances around some."""
    shares = space.shares(rows)
    near = [shares + width * draw.normal(size=(_AROUND, *shares.shape)) for width in _NEAR]
    return space.spread(np.concatenate([one.reshape(-1, shares.shape[1]) for one in near]).clip(0.0, 1.0))


def _climbed(acquisition: Acquisition, space: Space, starts: np.ndarray) -> np.ndarray:
    """Return where L-BFGS-B takes the real inputs of some rows."""

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        X = torch.from_numpy(flat).reshape(starts.shape).requires_grad_()
        total = -acquisition(X).sum()
        (slope,) = torch.autograd.grad(total, X)
        return total.item(), slope.numpy().ravel()

    lower, upper = np.where(space.is_real, 0.0, starts).ravel(), np.where(space.is_real, 1.0, starts).ravel()
    found = minimize(
        loss, starts.ravel(), jac=True, method="L-BFGS-B", bounds=list(zip(lower, upper, strict=True)),
        options={"maxfun": _EVALUATIONS},
    )  # fmt: skip
    ends: np.ndarray = found.x.reshape(starts.shape)
    return ends


def _within(allowed: Callable[[np.ndarray], np.ndarray], starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the ends, or the last allowed points on the way to them from starts that are allowed."""
    if allowed(ends).all():
        return ends
    low, high = np.zeros((len(starts), 1)), np.ones((len(starts), 1))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        inside = allowed(starts + middle * (ends - starts))[:, None]
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return np.where(allowed(ends)[:, None], ends, starts + low * (ends - starts))


def _better(values_of: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    return np.where((values_of(others) > values_of(rows))[:, None], others, rows)


def _stepped(
    values_of: Callable[[np.ndarray], np.ndarray],
    space: Space,
    rows: np.ndarray,
    allowed: Callable[[np.ndarray], np.ndarray],
    draw: np.random.Generator,
) -> np.ndarray:
    """Return the best neighbour of each row, or the row itself where it is better."""
    if space.is_real.all() and not space.constrained:
        return rows
    sets = [space.neighbours(row) for row in rows]
    if space.constrained:  # gradients do not lead along the border
        sets = [np.concatenate([one, _around(space, row[None], draw)]) for one, row in zip(sets, rows, strict=True)]
    others = np.concatenate(sets)
    owners = np.repeat(np.arange(len(rows)), [len(one) for one in sets])
    possible = allowed(others)
    others, owners = others[possible], owners[possible]
    found = rows.copy()
    values = values_of(rows)
    for other, owner, value in zip(others, owners, values_of(others) if len(others) else (), strict=True):
        if value > values[owner]:
            found[owner], values[owner] = other, value
    return found
