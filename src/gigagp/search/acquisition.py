"""What the next point is chosen by, on the unit cube, and how it is maximized there."""

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

#: Values at points, (m, d) to (m,), differentiable.
Acquisition = Callable[[Tensor], Tensor]
#: Starts of the gradient steps, most evaluations, and evenly spread candidates, from which the starts are taken.
_STARTS, _EVALUATIONS, _SPREAD = 4, 12, 192
#: Candidates around the best points, and their distances from them, in widths of the cube.
_AROUND, _NEAR = 8, (0.1, 0.01, 0.001)
#: Distance in the unit cube at which two starts count as one.
_SAME = 1e-3
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
    """Return the log of the expected improvement on ``best``, a value in the posterior's units, for minimization."""

    def evaluate(X: Tensor) -> Tensor:
        points = scaling.points(X).to(dtype=posterior.dtype, device=posterior.device)
        mean, variance = posterior.mean_and_variance(points)
        deviation = variance.double().clamp_min(1e-18).sqrt()
        return log_improvement((best - mean[:, 0].double()) / deviation) + deviation.log()

    return evaluate


def minus_sample(functions: SampleFunctions, posterior: Posterior, scaling: Scaling, which: int) -> Acquisition:
    """Return minus one of the posterior's sampled functions."""

    def evaluate(X: Tensor) -> Tensor:
        points = scaling.points(X).to(dtype=posterior.dtype, device=posterior.device)
        return -functions(points)[:, 0, which].double()

    return evaluate


def maximize(
    acquisition: Acquisition, spread: torch.quasirandom.SobolEngine, best: np.ndarray, seed: int
) -> np.ndarray:
    """Return the best points that were found, (k, d), the best one first.

    Candidates are drawn from ``spread`` over the cube and gathered around the best rows (r, d). L-BFGS-B improves the
    best of them, all starts in one problem, whose value is their sum.
    """
    d = best.shape[1]
    draw = np.random.default_rng(seed)
    near = [best + width * draw.normal(size=(_AROUND, *best.shape)) for width in _NEAR]
    around = np.concatenate([one.reshape(-1, d) for one in near]).clip(0.0, 1.0)
    candidates = torch.cat([spread.draw(_SPREAD, dtype=torch.float64), torch.from_numpy(around)])
    with torch.no_grad():
        values = acquisition(candidates)
    starts: list[Tensor] = []
    for place in values.argsort(descending=True).tolist():
        if all(float((candidates[place] - one).abs().max()) > _SAME for one in starts):
            starts.append(candidates[place])
        if len(starts) == _STARTS:
            break

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        X = torch.from_numpy(flat).reshape(-1, d).requires_grad_()
        total = -acquisition(X).sum()
        (slope,) = torch.autograd.grad(total, X)
        return total.item(), slope.numpy().ravel()

    first = torch.stack(starts)
    found = minimize(
        loss, first.numpy().ravel(), jac=True, method="L-BFGS-B", bounds=[(0.0, 1.0)] * first.numel(),
        options={"maxfun": _EVALUATIONS},
    )  # fmt: skip
    ends = torch.cat([torch.from_numpy(found.x).reshape(-1, d), first])
    with torch.no_grad():
        values = acquisition(ends)
    return ends[values.nan_to_num(nan=-torch.inf).argsort(descending=True)].numpy()
