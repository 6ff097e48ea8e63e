"""Local problems of a Vecchia approximation in batches of torch, for any kernel and device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gigagp.kernels import Kernel
from gigagp.neighbours.local import LOST, Conditionals, Derivatives, gram, total
from gigagp.runtime import interruption

if TYPE_CHECKING:
    from gigagp.neighbours.conditionals import Pool

#: Arrays of (m + 1)^2 numbers for each problem at the peak of a batch.
_ARRAYS = 8


def conditionals(
    pool: Pool, targets: Tensor, neighbours: Tensor, values: Tensor | None, *, weights: bool
) -> Conditionals:
    """Return the conditional distributions of some rows; see `gigagp.neighbours.conditionals.Pool.conditionals`."""
    none = torch.zeros(0, dtype=torch.float64, device=pool.X.device)
    width = neighbours.shape[1] if weights else 0
    variances, regressions = [none], [none.new_zeros(0, width)]
    residuals = [] if values is None else [none.new_zeros(0, values.shape[1])]
    raised = 0
    for rows in _batches(pool, targets, neighbours):
        problem = _Problem(pool, targets[rows], neighbours[rows], pool.kernel)
        raised += problem.raised
        variances.append(problem.u[:, -1].square().reciprocal())
        regressions.append(-problem.u[:, :width] / problem.u[:, -1:])
        if values is not None:
            whitened = problem.whiten(values.to(problem.factor)[problem.index])
            residuals.append(whitened[:, -1] / problem.u[:, -1:])
    variance = torch.cat(variances)
    return Conditionals(
        variance,
        torch.cat(regressions),
        torch.cat(residuals) if residuals else None,
        total(variance.detach().log()),
        raised,
    )


def derivatives(pool: Pool, targets: Tensor, neighbours: Tensor, values: Tensor) -> Derivatives:
    """Return the log density with its gradient and information; see `Pool.derivatives`."""
    t = values.shape[1]
    parameters = pool.kernel.parameters()
    n_kernel = sum(value.numel() for value in parameters.values())
    diagonals, by_parameter = diagonal_directions(pool.kernel, pool.X, white=not pool.latent)
    value, gradient = 0.0, torch.zeros(n_kernel + 1, dtype=torch.float64)
    information = torch.zeros(n_kernel + 1, n_kernel + 1, dtype=torch.float64)
    for rows in _batches(pool, targets, neighbours, n_kernel + 1):
        problem = _Problem(pool, targets[rows], neighbours[rows], pool.kernel)
        z = problem.whiten(values.to(problem.factor)[problem.index])
        moved = [_moved(pool.kernel, problem, name) for name in parameters]
        moved.append(torch.zeros_like(problem.u)[..., None])
        on_diagonal = diagonals.to(problem.u)[problem.index] * problem.u[..., None]  # (b, m + 1, directions)
        stacked = torch.cat(moved, -1) + on_diagonal @ by_parameter.to(on_diagonal).T
        a = problem.whiten(stacked)  # (b, m + 1, p)
        # Guinness 2021, eq. 6 and 7, with a the last row of L^-1 dH L^-T for each hyperparameter
        last, last_z = a[:, -1], z[:, -1]
        product = torch.einsum("bmp,bmt->bpt", a, z) - 0.5 * last[:, :, None] * last_z[:, None, :]
        gradient += ((product * last_z[:, None, :]).sum((0, 2)) - 0.5 * t * last.sum(0)).cpu()
        flat = a.reshape(-1, a.shape[-1])
        information += t * (gram(flat) - 0.5 * gram(last)).cpu()
        log_variance = -2 * problem.u[:, -1].log().sum()
        q = len(problem.u)
        value -= 0.5 * float(last_z.square().sum() + t * (log_variance + q * math.log(2 * math.pi)))
    return Derivatives.of(pool.kernel, value, gradient, information)


def diagonal_directions(kernel: Kernel, X: Tensor, *, white: bool = True) -> tuple[Tensor, Tensor]:
    """Return what the noise and, if ``white``, the kernel's white parts change on the diagonal.

    ``diagonals``, shape (n, k), has the derivatives of the diagonal: ones for the noise, then one column for each
    number of a white part. ``by_parameter``, shape (p + 1, k), tells which of them belongs to which hyperparameter, in
    the order of `Kernel.parameters`, then the noise.
    """
    parameters = kernel.parameters()
    sizes = [value.numel() for value in parameters.values()]
    columns = [torch.ones(len(X), dtype=torch.float64, device=X.device)]
    places = [sum(sizes)]
    if white and kernel.has_white:
        start = 0
        for name, value in parameters.items():
            for k in range(value.numel()):
                unit = torch.zeros_like(value).reshape(-1)
                unit[k] = 1.0

                def diagonal(moved: Tensor, name: str = name) -> Tensor:
                    return kernel.replace({name: moved}).white(X).double()

                slope = torch.autograd.functional.jvp(diagonal, value.detach(), unit.reshape(value.shape))[1]
                if bool(slope.any()):
                    columns.append(slope)
                    places.append(start + k)
            start += value.numel()
    by_parameter = torch.zeros(sum(sizes) + 1, len(columns), dtype=torch.float64)
    by_parameter[places, torch.arange(len(columns))] = 1.0
    return torch.stack(columns, 1), by_parameter


class _Problem:
    """A batch of b local problems.

    ``index``, shape (b, m + 1), has rows of the pool: the neighbours, and last the row itself; empty places repeat the
    row. ``factor`` has their lower Cholesky factors. ``kept`` marks the places that are neither empty nor determined by
    nearer ones. ``u`` is ``L^-T e_m``.
    """

    def __init__(self, pool: Pool, targets: Tensor, neighbours: Tensor, kernel: Kernel) -> None:
        targets, neighbours = targets.to(pool.X.device).long(), neighbours.to(pool.X.device).long()
        present = torch.cat([neighbours >= 0, torch.ones_like(targets, dtype=torch.bool)[:, None]], 1)
        self.index = torch.cat([torch.where(neighbours >= 0, neighbours, targets[:, None]), targets[:, None]], 1)
        self.points = pool.X.to(torch.float64)[self.index]
        covariance = blocks(kernel, self.points)
        if pool.low is not None:
            low = pool.low.to(covariance)[self.index]
            covariance = covariance - low @ low.mT
        covariance = covariance + torch.diag_embed(pool.noise.to(covariance)[self.index])
        self.factor, self.kept, self.raised = _factor(covariance, present)
        unit = torch.zeros_like(covariance[:, :, :1])
        unit[:, -1] = 1.0
        self.u = torch.linalg.solve_triangular(self.factor.mT, unit, upper=True)[:, :, 0]

    def whiten(self, values: Tensor) -> Tensor:
        """Return ``L^-1`` times values of shape (b, m + 1, k), zero in places that are left out."""
        return torch.linalg.solve_triangular(self.factor, values * self.kept[:, :, None], upper=False)


@torch.no_grad()
def neighbour_factors(pool: Pool, targets: Tensor, neighbours: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `conditionals` solves with: lower Cholesky factors, and which neighbours are neither empty nor lost.

    The factors, shape (q, m, m), are those of the covariances among the neighbours of each row.
    """
    batches = _batches(pool, targets, neighbours)
    parts = [_Problem(pool, targets[rows], neighbours[rows], pool.kernel) for rows in batches]
    factors = torch.cat([part.factor[:, :-1, :-1] for part in parts])
    return factors, torch.cat([part.kept[:, :-1] for part in parts]) & (neighbours >= 0)


def _factor(covariance: Tensor, present: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return Cholesky factors, which places are in them, and the number of rows whose variance was raised.

    A place that is empty, or determined by nearer ones, gets the row and the column of an identity matrix, so that
    the factor has a derivative too.
    """
    with torch.no_grad():
        own = covariance.diagonal(dim1=-2, dim2=-1)
        factor, info = torch.linalg.cholesky_ex(covariance)
        pivots = factor.diagonal(dim1=-2, dim2=-1).square()
        again = ~(present.all(1) & (info == 0) & (pivots > LOST * own).all(1))
        kept, raised = torch.ones_like(present), torch.zeros_like(present[:, 0])
        if bool(again.any()):
            kept[again], raised[again] = _sound_places(covariance[again], present[again])
        if covariance.requires_grad:
            again = torch.ones_like(again)
    if bool(again.any()):
        inside, eye = kept[again], torch.eye(covariance.shape[-1], device=covariance.device, dtype=covariance.dtype)
        reduced = torch.where(inside[:, :, None] & inside[:, None, :], covariance[again], eye)
        corner = raised[again, None, None] & (eye * eye[-1] > 0)
        floor = LOST * own[again, -1, None, None]
        found = torch.linalg.cholesky_ex(torch.where(corner, reduced + floor, reduced))[0]
        factor = factor.index_put((again,), torch.where(corner, floor.sqrt(), found))
    return factor, kept, int(raised.sum())


def _sound_places(covariance: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Return which places are there and not determined by nearer ones, and whether the last, which stays, is."""
    floor = LOST * covariance.diagonal(dim1=-2, dim2=-1)
    left, kept = covariance.clone(), present.clone()
    for j in range(covariance.shape[-1]):
        kept[:, j] &= left[:, j, j] > floor[:, j]
        root = torch.where(kept[:, j], left[:, j, j], torch.inf).sqrt()
        column = left[:, :, j] / root[:, None]
        left -= column[:, :, None] * column[:, None, :]
    raised = ~kept[:, -1]
    kept[:, -1] = True
    return kept, raised


def blocks(kernel: Kernel, points: Tensor, others: Tensor | None = None) -> Tensor:
    """Return the covariances of the continuous part within batches of points, shape (b, k, l).

    Points have the shape (b, k, d), and those on the other side, by default the same, (b, l, d).
    """
    try:
        if others is None:
            found: Tensor = torch.vmap(lambda own: kernel.block(own, own))(points)
        else:
            found = torch.vmap(kernel.block)(points, others)
    except RuntimeError:  # a user's kernel whose operations torch cannot batch
        others = points if others is None else others
        found = torch.stack([kernel.block(points[k], others[k]) for k in range(len(points))])
    return found


def _moved(kernel: Kernel, problem: _Problem, name: str) -> Tensor:
    """Return ``(dK / d parameter) u`` for every number of a hyperparameter, shape (b, m + 1, numbers)."""
    value = kernel.parameters()[name].detach()

    def product(candidate: Tensor) -> Tensor:
        return (blocks(kernel.replace({name: candidate}), problem.points) @ problem.u[..., None])[..., 0]

    units = torch.eye(value.numel(), dtype=value.dtype).reshape(-1, *value.shape)
    jvp: Any = torch.autograd.functional.jvp  # two backward passes; forward mode loads TorchScript
    return torch.stack([jvp(product, value, unit)[1] for unit in units], -1)


def _batches(pool: Pool, targets: Tensor, neighbours: Tensor, directions: int = 0) -> Iterator[slice]:
    """Iterate over ranges of rows whose problems keep to the memory budget."""
    side = neighbours.shape[1] + 1
    bytes_each = 8 * side * (_ARRAYS * side + directions + (0 if pool.low is None else pool.low.shape[1]))
    size = max(1, min(pool.budget // (2 * bytes_each), 4096))
    for start in range(0, len(targets), size):
        interruption.check()
        yield slice(start, min(start + size, len(targets)))
