"""The Fisher information of the hyperparameters, estimated with a few probes and the gradient's Cholesky factor."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from operator import mul
from typing import TypeVar, cast

import torch

from gigagp.kernels import Kernel, Outputs, Periodic, Product, Sum
from gigagp.kernels.composite import Composite
from gigagp.kernels.distances import common_offset, squared_differences
from gigagp.kernels.leaf import Leaf
from gigagp.kernels.stationary import StationaryKernel
from gigagp.model.model import NOISE, Model
from gigagp.optimization.space import ParameterSpace

#: Rounding error of squared distances, in squared lengthscales, above which they are computed from differences.
_INEXACT = 1e-4
KernelType = TypeVar("KernelType", bound=Kernel)


def derivative_products(
    kernel: Kernel, X: torch.Tensor, vectors: torch.Tensor, weights: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """Return ``(dK/dtheta) @ vectors``, (number of values, n, s), for every hyperparameter, also of white parts.

    K(X, X) is formed densely, for subsets of up to a few thousand rows, and multiplied entry by entry with ``weights``
    (n, n). Derivatives are in natural units.
    """
    if isinstance(kernel, Product):
        for index, part in enumerate(kernel.parts):
            if isinstance(part, Leaf) and (outer := part.outer_scale(X)) is not None:
                return _with_outer_scale(kernel, index, *outer, X, vectors, weights)
    if isinstance(kernel, Composite) and (isinstance(kernel, Sum) or not kernel.has_white):
        factors = [weights] * len(kernel.parts) if isinstance(kernel, Sum) else _other_factors(kernel, X, weights)
        return {
            f"{index}.{name}": value
            for index, (part, factor) in enumerate(zip(kernel.parts, factors, strict=True))
            for name, value in derivative_products(part, X, vectors, factor).items()
        }
    if isinstance(kernel, StationaryKernel) and kernel.has_closed_form():
        return _stationary(kernel, X, vectors, weights)
    if type(kernel) is Periodic:
        return _periodic(kernel, X, vectors, weights)
    closed = kernel.derivatives(X, X) if isinstance(kernel, Leaf) else None
    if closed is not None:
        return {name: (one if weights is None else one * weights) @ vectors for name, one in closed.items()}
    if isinstance(kernel, Outputs):
        return _of_outputs(kernel, X, vectors, weights)
    return _by_differentiation(kernel, vectors, lambda moved: _product(moved, X, vectors, weights))


def _with_outer_scale(
    kernel: Product,
    index: int,
    scale: torch.Tensor,
    slopes: dict[str, torch.Tensor],
    X: torch.Tensor,
    vectors: torch.Tensor,
    weights: torch.Tensor | None,
) -> dict[str, torch.Tensor]:
    """Return the products of ``s(x) s(z)`` times the other parts, whose own products are computed as without it."""
    indices = [number for number in range(len(kernel.parts)) if number != index]
    rest: Kernel = Product(*(kernel.parts[number] for number in indices))
    if len(indices) == 1:
        rest = kernel.parts[indices[0]]
    products = {}
    for name, value in derivative_products(rest, X, scale * vectors, weights).items():
        first, _, others = name.partition(".")
        own = f"{indices[0]}.{name}" if len(indices) == 1 else f"{indices[int(first)]}.{others}"
        products[own] = scale * value
    if not slopes:
        return products
    # With the slopes of log s, one product of the other parts covers all values.
    by_log = torch.cat(list(slopes.values()), 1)
    (n, m), s = by_log.shape, vectors.shape[1]
    columns = torch.cat([vectors, (by_log[:, :, None] * vectors[:, None, :]).reshape(n, m * s)], 1) * scale
    whole = rest.white(X)[:, None] * columns  # white kernels come without weights
    if rest.correlated_terms():
        block = rest.block(X, X)
        whole = whole + (block if weights is None else block * weights) @ columns
    plain, weighted = (scale * whole).split([s, m * s], 1)
    each = (by_log[:, :, None] * plain[:, None, :] + weighted.reshape(n, m, s)).movedim(1, 0)
    for name, part in zip(slopes, each.split([one.shape[1] for one in slopes.values()]), strict=True):
        products[f"{index}.{name}"] = part / kernel.parameters()[f"{index}.{name}"].to(X).reshape(-1, 1, 1)
    return products


def _other_factors(kernel: Composite, X: torch.Tensor, weights: torch.Tensor | None) -> list[torch.Tensor | None]:
    """Return for each part of a product what its derivatives are multiplied with: the product of the other parts."""
    blocks = [part.block(X, X) for part in kernel.parts]
    given = [] if weights is None else [weights]
    others = ([*given, *blocks[:index], *blocks[index + 1 :]] for index in range(len(blocks)))
    return [reduce(mul, factors) if factors else None for factors in others]


def _periodic(
    kernel: Periodic, X: torch.Tensor, vectors: torch.Tensor, weights: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Return the products of a kernel ``exp(-sum_k (1 - cos u_k) / l_k^2)`` of the angles u between two rows.

    Angles and their cosines and sines are differences and products of numbers of the two rows, so that a few columns of
    a product with K serve each input.
    """
    like = X.double()
    angle = kernel.active(like) * (2 * math.pi / kernel.by_input("period", like))
    angle = angle - angle.mean(0).div(2 * math.pi).round() * (2 * math.pi)  # whole turns, which lose digits
    lengths, periods = kernel.by_input("lengthscale", like), kernel.by_input("period", like)
    K = kernel.block(X, X)
    K = K if weights is None else K * weights
    by_length, by_period = [], []
    for k in range(angle.shape[1]):
        a, c, s = (one[:, k, None].to(X) for one in (angle, angle.cos(), angle.sin()))
        columns = [vectors, c * vectors, s * vectors, a * c * vectors, a * s * vectors]
        plain, of_c, of_s, of_ac, of_as = (K @ torch.cat(columns, 1)).split(vectors.shape[1], 1)
        by_length.append(2 * (plain - c * of_c - s * of_s) / float(lengths[k]) ** 3)
        turning = a * s * of_c - a * c * of_s - s * of_ac + c * of_as  # of u sin(u)
        by_period.append(turning / (float(lengths[k]) ** 2 * float(periods[k])))
    products = {"lengthscale": torch.stack(by_length), "period": torch.stack(by_period)}
    products = {name: kernel.by_value(one) for name, one in products.items()}
    return {**products, "variance": (K @ vectors / float(kernel.value("variance")))[None]}


def _stationary(
    kernel: StationaryKernel, X: torch.Tensor, vectors: torch.Tensor, weights: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    scaled = kernel.scale(X)
    scaled = scaled - common_offset(scaled)
    # Matrix products are two to five times as fast as differences. Far from zero they leave nothing of the distances.
    by_differences = float(scaled.square().sum(1).max()) * torch.finfo(X.dtype).eps > _INEXACT
    distance = squared_differences(scaled, scaled) if by_differences else _squared_distances(scaled)
    values, slopes, shapes = kernel.profile_derivatives_(distance.mul_(kernel.distance_factor))
    if weights is not None:
        values, slopes = values * weights, slopes * weights
        shapes = None if shapes is None else shapes * weights
    parameters = {name: value.to(X) for name, value in kernel.parameters().items()}
    variance = parameters["variance"]
    products = {"variance": (values @ vectors)[None]}
    if shapes is not None:
        products["alpha"] = variance * (shapes @ vectors)[None]
    # dk / d log l_k = -2 variance g'(q) (z_ik - z_jk)^2, where slopes are those by p, a multiple of q.
    by_input = _times_differences(scaled, slopes, vectors) if by_differences else _times(scaled, slopes, vectors)
    by_value = kernel.by_value(-2 * kernel.distance_factor * variance * by_input)
    products["lengthscale"] = by_value / parameters["lengthscale"].reshape(-1, 1, 1)
    return products


def _squared_distances(scaled: torch.Tensor) -> torch.Tensor:
    squares = scaled.square().sum(1)
    distance = (squares[:, None] + squares[None, :]).addmm_(scaled, scaled.T, alpha=-2).clamp_min_(0)
    return distance.fill_diagonal_(0)


def _times(scaled: torch.Tensor, slopes: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Return the matrix ``slopes * (z_ik - z_jk)^2`` times vectors (n, s) for every input k, shape (d, n, s).

    One product with ``(2 d + 1) s`` columns covers all inputs.
    """
    (n, d), squares = scaled.shape, scaled.square()
    columns = torch.cat([scaled.new_ones(n, 1), scaled, squares], 1)[:, :, None] * vectors[:, None, :]
    plain, first, second = (slopes @ columns.flatten(1)).reshape(columns.shape).split([1, d, d], 1)
    return (squares[:, :, None] * plain - 2 * scaled[:, :, None] * first + second).movedim(1, 0)


def _times_differences(scaled: torch.Tensor, slopes: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Return what `_times` does, input by input."""
    columns = scaled.T.contiguous()
    return torch.stack([(column[:, None] - column).square_().mul_(slopes) @ vectors for column in columns])


def _of_outputs(
    kernel: Outputs, X: torch.Tensor, vectors: torch.Tensor, weights: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Return the products of a covariance of k outputs: one product with k s columns, each of one output's rows."""
    levels = kernel.levels(X)
    is_of = torch.nn.functional.one_hot(levels, kernel.n_outputs).to(X)
    columns = is_of[:, :, None] * vectors[:, None, :]
    sums = columns.sum(0).expand_as(columns) if weights is None else (weights @ columns.flatten(1)).view_as(columns)
    return _by_differentiation(
        kernel, vectors, lambda moved: torch.einsum("nk,nks->ns", moved.covariance().to(X)[levels], sums)
    )


def _product(kernel: Kernel, X: torch.Tensor, vectors: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    white = kernel.white(X)[:, None]
    whole = (white if weights is None else white * weights.diagonal()[:, None]) * vectors
    if not kernel.correlated_terms():
        return whole
    K = kernel.block(X, X)
    return whole + (K if weights is None else K * weights) @ vectors


def _by_differentiation(
    kernel: KernelType, vectors: torch.Tensor, product: Callable[[KernelType], torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the derivatives of a product of a kernel with vectors (n, s) by two backward passes.

    All hyperparameters share the first. Forward mode (torch.func.jvp) needs one, but it loads TorchScript, which takes
    a second and issues a deprecation warning.
    """
    values = {name: value.detach().clone().requires_grad_() for name, value in kernel.parameters().items()}
    with torch.enable_grad():
        whole = product(cast("KernelType", kernel.replace(values)))
        factors = torch.zeros_like(whole, requires_grad=True)  # the second pass derives by them
        # Factors given as an argument would load SymPy, which takes a second.
        total = (factors * whole).sum()
        slopes = torch.autograd.grad(total, list(values.values()), create_graph=True, materialize_grads=True)
    products = {}
    for name, slope in zip(values, slopes, strict=True):
        each = [
            torch.autograd.grad(one, factors, retain_graph=True, materialize_grads=True)[0]
            if one.requires_grad
            else torch.zeros_like(vectors)
            for one in slope.flatten()
        ]
        products[name] = torch.stack(each)
    return products


def fisher_information(
    model: Model,
    products_of: Callable[[Kernel, torch.Tensor], dict[str, torch.Tensor]],
    factor: torch.Tensor,
    space: ParameterSpace,
    vector: torch.Tensor,
    probes: torch.Tensor,
    noise_slope: torch.Tensor | None = None,
) -> torch.Tensor:
    """Estimate the Fisher information of the learned hyperparameters in the coordinates of ``space``, shape (p, p).

    The information ``F_kl = tr(H^-1 D_k H^-1 D_l) / 2`` (Rasmussen and Williams 2006, section 5.4, expectation of the
    Hessian) is estimated for one target by ``E[a_k' a_l] / 2`` with ``a_k = L^-1 D_k L^-T w`` and ``w ~ N(0, I)``, the
    ``probes`` (n, s). ``factor`` is L, the lower Cholesky factor of H. ``products_of`` returns ``(dH/dtheta) V`` for
    the hyperparameters of a kernel and vectors V, as `derivative_products` does for values at points. ``noise_slope``
    (n,) has the derivatives of the rows' noise variances with respect to the model's; None: 1.
    """
    whitened = torch.linalg.solve_triangular(factor.T, probes, upper=True)
    products = products_of(model.kernel, whitened)
    products[NOISE] = (whitened if noise_slope is None else noise_slope.to(whitened)[:, None] * whitened)[None]
    return information_from_products(products, factor, space, vector)


def information_from_products(
    products: dict[str, torch.Tensor], factor: torch.Tensor, space: ParameterSpace, vector: torch.Tensor
) -> torch.Tensor:
    """Return the information from the products of the derivatives with ``L^-T w``; see `fisher_information`."""
    stacked = torch.cat([products[name] for name in space.names])
    p, n, s = stacked.shape
    projected = torch.linalg.solve_triangular(factor, stacked.movedim(0, 1).reshape(n, p * s), upper=False)
    projected = projected.reshape(n, p, s).movedim(1, 0).reshape(p, n * s)
    information = (0.5 / s) * (projected @ projected.T).double().cpu()
    slope = space.jacobian(vector)
    return slope[:, None] * information * slope[None, :]


def with_known(information: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Return an information (p, p) of few rows with a diagonal (p,) that is known of all rows; nan: it is not known.

    Rows and columns are scaled to the known diagonal. Correlations count as far as the few rows tell about as much of a
    coordinate, each for its share, as all rows do: where they do not, another thing is mistaken for it.
    """
    ratio = (known / information.diagonal().clamp_min(torch.finfo(information.dtype).tiny)).nan_to_num(1.0)
    alike = torch.minimum(ratio, 1 / ratio)
    share = torch.minimum(alike[:, None], alike).fill_diagonal_(1.0)  # positive semi-definite, as each factor is
    return information * share * (ratio[:, None] * ratio).sqrt()


def damped_inverse(information: torch.Tensor, damping: float) -> torch.Tensor:
    """Return ``(F + damping I)^-1`` for a symmetric positive semi-definite F."""
    eye = torch.eye(information.shape[0], dtype=information.dtype)
    return torch.cholesky_inverse(torch.linalg.cholesky(information + (damping + math.ulp(1.0)) * eye))
