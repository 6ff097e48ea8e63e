"""Additive kernels: sums of terms that depend on a few inputs each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from gigagp.kernels.base import Kernel
from gigagp.kernels.composite import Product, Sum
from gigagp.kernels.elementary import Constant, Linear
from gigagp.kernels.leaf import Leaf


@dataclass(frozen=True)
class Component:
    """The terms of a kernel that depend on the same inputs, as a bound kernel of those inputs alone.

    ``names`` has the names, in the whole kernel, of the hyperparameters in ``kernel.parameters()``, in their order. A
    name occurs more than once if terms share a hyperparameter.
    """

    columns: tuple[int, ...]
    kernel: Kernel
    names: tuple[str, ...]

    def gather(self, gradient: dict[str, Tensor], whole: dict[str, Tensor]) -> None:
        """Add derivatives by the hyperparameters of ``kernel`` to those of the whole kernel."""
        for name, value in zip(self.names, gradient.values(), strict=True):
            whole[name] = whole[name] + value


@dataclass(frozen=True)
class Slopes:
    """A linear term, alone or times constants: random slopes of some inputs.

    ``names`` has the names of each leaf's hyperparameters in the whole kernel, and ``columns`` the inputs with a slope.
    """

    leaves: tuple[Leaf, ...]
    names: tuple[tuple[str, ...], ...]
    columns: tuple[int, ...]

    @property
    def linear(self) -> Linear:
        """The linear kernel."""
        return next(leaf for leaf in self.leaves if isinstance(leaf, Linear))

    def centre(self) -> Tensor:
        """Return where the functions are zero, one number for each slope."""
        own = self.linear.centre
        return (
            torch.zeros(len(self.columns), dtype=torch.float64)
            if own is None
            else own.double().expand(len(self.columns))
        )

    def variances(self, values: dict[str, Tensor] | None = None) -> Tensor:
        """Return the prior variance of each slope, differentiable in ``values``, the whole kernel's hyperparameters."""
        leaves = self.leaves
        if values is not None:
            leaves = tuple(
                leaf.replace({own: values[name] for own, name in zip(leaf.parameters(), names, strict=True)})
                for leaf, names in zip(leaves, self.names, strict=True)
            )
        product = reduce(torch.mul, (_by_slope(leaf, len(self.columns)) for leaf in leaves))
        weights = self.linear._input_weights
        return product if weights is None else product * weights.square()


def _by_slope(leaf: Leaf, n_slopes: int) -> Tensor:
    return leaf.by_input("variance") if isinstance(leaf, Linear) else leaf.value("variance").expand(n_slopes)


def components(kernel: Kernel, whole: Sequence[int] | None = None) -> tuple[list[Component], list[Slopes]]:
    """Return the components of a bound kernel without its white terms, and its linear terms.

    Constant terms go to the first component. There is one component for each set of inputs that terms depend on
    together. With ``whole``, all inputs, everything that is not linear becomes one component of these.
    """
    assert kernel.n_inputs is not None, "the kernel is bound"
    kernel = kernel.replace(kernel.parameters())  # leaves are told apart as objects, and one object may stand twice
    names = iter(kernel.parameters())
    labels = {id(leaf): tuple(next(names) for _ in leaf.parameters()) for leaf in kernel.leaves()}
    slopes: list[Slopes] = []
    constants: list[tuple[Leaf, ...]] = []
    groups: dict[tuple[int, ...], list[tuple[Leaf, ...]]] = {}
    for term in kernel.correlated_terms():
        used = {column for leaf in term if not isinstance(leaf, Constant) for column in leaf.active_columns}
        varying = [leaf for leaf in term if not isinstance(leaf, Constant)]
        if len(varying) == 1 and isinstance(varying[0], Linear):
            own = tuple(labels[id(leaf)] for leaf in term)
            slopes.append(Slopes(term, own, tuple(varying[0].active_columns)))
        elif not varying:
            constants.append(term)
        else:
            groups.setdefault(tuple(sorted(used)) if whole is None else tuple(whole), []).append(term)
    if constants:
        first = next(iter(groups), (0,) if whole is None else tuple(whole))
        groups[first] = [*groups.get(first, []), *constants]
    found = []
    for columns, terms in groups.items():
        parts = [[leaf.on_columns(columns) for leaf in term] for term in terms]
        summed = Sum(*(Product(*leaves) for leaves in parts))
        found.append(
            Component(columns, summed, tuple(name for term in terms for leaf in term for name in labels[id(leaf)]))
        )
    return found, slopes
