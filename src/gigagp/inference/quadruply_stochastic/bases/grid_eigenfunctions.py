"""Leading eigenfunctions of a separable kernel on a tensor grid (GP-GRIEF)."""

from __future__ import annotations

import functools
import heapq
import operator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.quadruply_stochastic.bases.base import Basis
from gigagp.kernels import RBF, Kernel, Leaf, Outputs, White
from gigagp.products.dense import eigh

#: Added to the diagonal of each axis' covariance, as a share of its mean: the values of a smooth kernel at equispaced
#: nodes are nearly dependent.
_JITTER = 1e-10


@dataclass(frozen=True, eq=False)
class GridEigenfunctions(Basis):
    """Eigenfunctions of the covariance of a tensor grid: ``phi_i(x) = k(x, G) q_i / sqrt(lambda_i)``, prior ``S = I``.

    Eigenpairs of a Kronecker product are products of eigenpairs of the axes. So an entry costs one product per axis,
    and the largest of exponentially many eigenvalues are found without the others (Evans and Nair 2018, "Scalable
    Gaussian processes with grid-structured eigenfunctions", http://proceedings.mlr.press/v80/evans18a.html, section 3).
    The start kernel decides which eigenfunctions lead, for the whole fit. The kernel's hyperparameters are not learned
    with this basis: many eigenvalues of a smooth kernel are equal up to rounding, and their eigenvectors have no
    derivative.

    When to use: for smooth kernels of up to about ten inputs, where far fewer eigenfunctions than random features are
    enough.

    Parameters
    ----------
    kernel : Kernel
        `kernels.RBF`, or a product of kernels of one input each; bound.
    nodes : tuple of Tensor
        Grid nodes of every input, each of shape (g_k,).
    orders : Tensor of shape (m, d), int64
        The eigenvector of each axis that makes each function, 0 being the leading one; `leading` chooses them.

    Raises
    ------
    InvalidInputError
        If the kernel is no product over its inputs.
    """

    kernel: Kernel
    nodes: tuple[Tensor, ...]
    orders: Tensor

    kind = "grid eigenfunctions"
    is_differentiable = False

    def __post_init__(self) -> None:
        _axis_kernels(self.kernel, len(self.nodes))
        if self.orders.ndim != 2 or self.orders.shape[1] != len(self.nodes) or not len(self.orders):
            raise InvalidInputError(
                f"orders of GridEigenfunctions must have shape (m, {len(self.nodes)}); got {tuple(self.orders.shape)}."
            )

    @property
    def size(self) -> int:  # type: ignore[override]  # a property here, an attribute elsewhere
        """Number of functions, m."""
        return len(self.orders)

    @classmethod
    def leading(cls, kernel: Kernel, X: Tensor, most: int, n_nodes: int = 10) -> GridEigenfunctions:
        """Return the functions of the largest eigenvalues, on a grid that spans the rows.

        Parameters
        ----------
        kernel : Kernel
        X : Tensor of shape (n, d)
        most : int
            Number of functions; there are fewer where the grid has fewer nodes.
        n_nodes : int
            Number of equispaced nodes of each input.
        """
        nodes = tuple(_axis_nodes(column, n_nodes) for column in X.double().T)
        values = [pair[0].flip(0).tolist() for pair in _axis_eigenpairs(kernel, nodes)]
        orders = torch.tensor(_largest_products(values, most), device=X.device)
        return cls(kernel, nodes, orders)

    @cached_property
    def _eigenpairs(self) -> list[tuple[Tensor, Tensor]]:
        return _axis_eigenpairs(self.kernel, self.nodes)

    def columns(self, X: Tensor, index: Tensor) -> Tensor:
        """Return eigenfunctions at rows; see `Basis.columns`. They are differentiable in the rows alone."""
        with torch.set_grad_enabled(X.requires_grad and torch.is_grad_enabled()):
            return self._columns(X, index)

    def _columns(self, X: Tensor, index: Tensor) -> Tensor:
        found: Tensor | None = None
        kernels = _axis_kernels(self.kernel, len(self.nodes))
        chosen = self.orders[index]
        for axis, (kernel, nodes) in enumerate(zip(kernels, self.nodes, strict=True)):
            values, vectors = self._eigenpairs[axis]
            table = kernel.block(X[:, axis : axis + 1].double(), nodes[:, None].to(X.device)) @ vectors.to(X.device)
            table = (table / values.to(X.device).sqrt()).to(X).flip(1)
            factor = table[:, chosen[:, axis]]
            found = factor if found is None else found * factor
        assert found is not None
        return found

    def with_kernel(self, kernel: Kernel) -> GridEigenfunctions:
        return replace(self, kernel=kernel)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {f"nodes.{axis}": nodes for axis, nodes in enumerate(self.nodes)}
        return {"orders": self.orders, **tensors}, {"n_axes": len(self.nodes)}

    @classmethod
    def from_state(cls, kernel: Kernel, tensors: dict[str, Tensor], header: dict[str, Any]) -> GridEigenfunctions:
        """Return the basis that `state` described."""
        return cls(kernel, tuple(tensors[f"nodes.{axis}"] for axis in range(header["n_axes"])), tensors["orders"])


def _axis_kernels(kernel: Kernel, n_axes: int) -> list[Kernel]:
    """Return a kernel of one input for every axis, whose product is the kernel."""
    terms = kernel.terms()
    found: list[list[Kernel]] = [[] for _ in range(n_axes)]
    separable = len(terms) == 1
    for leaf in terms[0] if separable else ():
        if isinstance(leaf, RBF):
            columns = range(n_axes) if leaf.columns is None else leaf.columns
            lengthscales = leaf.lengths()
            for place, axis in enumerate(columns):
                # The first axis takes the variance.
                variance = leaf.value("variance") if place == 0 else torch.ones((), dtype=torch.float64)
                part: Kernel = (
                    RBF().bind(1).replace({"lengthscale": lengthscales[place : place + 1], "variance": variance})
                )
                found[axis].append(part)
        elif leaf.columns is not None and len(leaf.columns) == 1 and not isinstance(leaf, White | Outputs):
            found[leaf.columns[0]].append(_on_one_input(leaf))
        else:
            separable = False
    kernels = [functools.reduce(operator.mul, parts) for parts in found if parts]
    if not separable or len(kernels) < n_axes:
        raise InvalidInputError(
            "kernel of GridEigenfunctions must be a product over all inputs: kernels.RBF, or a product of kernels with "
            f"columns=[k] for every input k; got {kernel!r}."
        )
    return kernels


def _on_one_input(leaf: Leaf) -> Kernel:
    """Return a kernel of one column of the inputs as a kernel of a single input."""
    values = leaf.parameters()
    arguments: dict[str, Any] = {k: v for k, v in leaf.settings().items() if k not in ("columns", "fixed", "ard")}
    return type(leaf)(**arguments).bind(1).replace(values)


def _axis_nodes(column: Tensor, n_nodes: int) -> Tensor:
    low, high = float(column.min()), float(column.max())
    if high <= low:
        return torch.tensor([low], dtype=torch.float64, device=column.device)
    return torch.linspace(low, high, n_nodes, dtype=torch.float64, device=column.device)


@torch.no_grad()
def _axis_eigenpairs(kernel: Kernel, nodes: tuple[Tensor, ...]) -> list[tuple[Tensor, Tensor]]:
    """Return the eigenvalues, ascending, and the eigenvectors of every axis' covariance."""
    found = []
    for part, grid in zip(_axis_kernels(kernel, len(nodes)), nodes, strict=True):
        covariance = part.block(grid[:, None], grid[:, None])
        jitter = _JITTER * covariance.detach().diagonal().mean()
        values, vectors = eigh(covariance + jitter * torch.eye(len(grid)).to(covariance))
        found.append((values.clamp_min(float(jitter)), vectors))
    return found


def _largest_products(values: list[list[float]], most: int) -> list[tuple[int, ...]]:
    """Return the places of the largest products of one value from each list; every list is in descending order."""
    start = (0,) * len(values)

    def product(place: tuple[int, ...]) -> float:
        result = 1.0
        for axis, order in enumerate(place):
            result *= values[axis][order] / values[axis][0]
        return result

    heap, seen = [(-1.0, start)], {start}
    found: list[tuple[int, ...]] = []
    while heap and len(found) < most:
        _, place = heapq.heappop(heap)
        found.append(place)
        for axis in range(len(values)):
            following = (*place[:axis], place[axis] + 1, *place[axis + 1 :])
            if following[axis] < len(values[axis]) and following not in seen:
                seen.add(following)
                heapq.heappush(heap, (-product(following), following))
    return found
