"""The Fisher information of the hyperparameters, estimated with a few probes and the gradient's Cholesky factor."""

from __future__ import annotations

import math

import torch

from gigagp.kernels import Kernel, LocalVariance, Product, Sum
from gigagp.kernels.distances import common_offset, squared_differences
from gigagp.kernels.stationary import StationaryKernel
from gigagp.model.model import NOISE, Model
from gigagp.optimization.space import ParameterSpace

#: Rounding error of squared distances, in squared lengthscales, above which they are computed from differences.
_INEXACT = 1e-4


def derivative_products(kernel: Kernel, X: torch.Tensor, vectors: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return ``(dK/dtheta) @ vectors``, (number of values, n, s), for every hyperparameter, also of white parts.

    K(X, X) is formed densely, for subsets of up to a few thousand rows. Derivatives are in natural units.
    """
    if isinstance(kernel, Sum):
        return {
            f"{index}.{name}": value
            for index, part in enumerate(kernel.parts)
            for name, value in derivative_products(part, X, vectors).items()
        }
    if isinstance(kernel, StationaryKernel) and kernel.has_closed_form():
        return _stationary(kernel, X, vectors)
    if isinstance(kernel, Product):
        for index, part in enumerate(kernel.parts):
            if isinstance(part, LocalVariance):
                return _with_local_variance(kernel, index, part, X, vectors)
    return _by_differentiation(kernel, X, vectors)


def _with_local_variance(
    kernel: Product, index: int, local: LocalVariance, X: torch.Tensor, vectors: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return the products of ``s(x) s(z)`` times the other parts, whose own products are computed as without it."""
    indices = [number for number in range(len(kernel.parts)) if number != index]
    rest: Kernel = Product(*(kernel.parts[number] for number in indices))
    if len(indices) == 1:
        rest = kernel.parts[indices[0]]
    scale, weights = local.scale(X), local.weights(X)
    products = {}
    for name, value in derivative_products(rest, X, scale * vectors).items():
        first, _, others = name.partition(".")
        own = f"{indices[0]}.{name}" if len(indices) == 1 else f"{indices[int(first)]}.{others}"
        products[own] = scale * value
    # d log s_i / d log v_j = w_ij / 2, so that one product of the other parts covers all points.
    (n, m), s = weights.shape, vectors.shape[1]
    columns = torch.cat([vectors, (weights[:, :, None] * vectors[:, None, :]).reshape(n, m * s)], 1) * scale
    whole = rest.white(X)[:, None] * columns
    if rest.correlated_terms():
        whole = whole + rest.block(X, X) @ columns
    plain, weighted = (scale * whole).split([s, m * s], 1)
    by_log = weights[:, :, None] * plain[:, None, :] + weighted.reshape(n, m, s)
    variance = local.value("variance", X)
    products[f"{index}.variance"] = 0.5 * by_log.movedim(1, 0) / variance[:, None, None]
    return products


def _stationary(kernel: StationaryKernel, X: torch.Tensor, vectors: torch.Tensor) -> dict[str, torch.Tensor]:
    scaled = kernel.scale(X)
    scaled = scaled - common_offset(scaled)
    # Matrix products are two to five times as fast as differences. Far from zero they leave nothing of the distances.
    by_differences = float(scaled.square().sum(1).max()) * torch.finfo(X.dtype).eps > _INEXACT
    distance = squared_differences(scaled, scaled) if by_differences else _squared_distances(scaled)
    values, slopes, shapes = kernel.profile_derivatives_(distance.mul_(kernel.distance_factor))
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
    (n, s), d = vectors.shape, scaled.shape[1]
    columns = [(factor[:, :, None] * vectors[:, None, :]).reshape(n, d * s) for factor in (scaled, scaled.square())]
    plain, first, second = (slopes @ torch.cat([vectors, *columns], 1)).split([s, s * d, s * d], 1)
    first, second = first.reshape(n, d, s), second.reshape(n, d, s)
    by_input = scaled.square()[:, :, None] * plain[:, None, :] - 2 * scaled[:, :, None] * first + second
    return by_input.movedim(1, 0)


def _times_differences(scaled: torch.Tensor, slopes: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Return what `_times` does, input by input."""
    columns = scaled.T.contiguous()
    return torch.stack([(column[:, None] - column).square_().mul_(slopes) @ vectors for column in columns])


def _by_differentiation(kernel: Kernel, X: torch.Tensor, vectors: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the products by two backward passes, of which all hyperparameters share the first.

    Forward mode (torch.func.jvp) needs one, but it loads TorchScript, which takes a second and issues a deprecation
    warning.
    """
    values = {name: value.detach().clone().requires_grad_() for name, value in kernel.parameters().items()}
    moved = kernel.replace(values)
    with torch.enable_grad():
        whole = moved.block(X, X) @ vectors + moved.white(X)[:, None] * vectors
        weights = torch.zeros_like(whole, requires_grad=True)  # the second pass derives by them
        slopes = torch.autograd.grad(whole, list(values.values()), weights, create_graph=True, materialize_grads=True)
    products = {}
    for name, slope in zip(values, slopes, strict=True):
        each = [
            torch.autograd.grad(one, weights, retain_graph=True, materialize_grads=True)[0]
            if one.requires_grad
            else torch.zeros_like(vectors)
            for one in slope.flatten()
        ]
        products[name] = torch.stack(each)
    return products


def fisher_information(
    model: Model,
    X: torch.Tensor,
    factor: torch.Tensor,
    space: ParameterSpace,
    vector: torch.Tensor,
    probes: torch.Tensor,
    noise_slope: torch.Tensor | None = None,
) -> torch.Tensor:
    """Estimate the Fisher information of the learned hyperparameters in the coordinates of ``space``, shape (p, p).

    The information ``F_kl = tr(H^-1 D_k H^-1 D_l) / 2`` (Rasmussen and Williams 2006, section 5.4, expectation of the
    Hessian) is estimated for one target by ``E[a_k' a_l] / 2`` with ``a_k = L^-1 D_k L^-T w`` and ``w ~ N(0, I)``, the
    ``probes`` (n, s). ``factor`` is L, the lower Cholesky factor of H. ``noise_slope`` (n,) has the derivatives of the
    rows' noise variances with respect to the model's; None: 1.
    """
    whitened = torch.linalg.solve_triangular(factor.T, probes, upper=True)
    products = derivative_products(model.kernel, X, whitened)
    products[NOISE] = (whitened if noise_slope is None else noise_slope.to(whitened)[:, None] * whitened)[None]
    stacked = torch.cat([products[name] for name in space.names])
    p, n, s = stacked.shape
    projected = torch.linalg.solve_triangular(factor, stacked.movedim(0, 1).reshape(n, p * s), upper=False)
    projected = projected.reshape(n, p, s).movedim(1, 0).reshape(p, n * s)
    information = (0.5 / s) * (projected @ projected.T).double().cpu()
    slope = space.jacobian(vector)
    return slope[:, None] * information * slope[None, :]


def damped_inverse(information: torch.Tensor, damping: float) -> torch.Tensor:
    """Return ``(F + damping I)^-1`` for a symmetric positive semi-definite F."""
    eye = torch.eye(information.shape[0], dtype=information.dtype)
    return torch.cholesky_inverse(torch.linalg.cholesky(information + (damping + math.ulp(1.0)) * eye))
