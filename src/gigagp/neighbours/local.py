"""What is computed from the local problems of a Vecchia approximation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.kernels import Kernel
from gigagp.model.model import NOISE

#: A variance below this share of the prior's is rounding; as in ``products/native/conditionals.cpp``. At 1e-10 and
#: above, variances have at least four correct digits, whatever the kernel and the rows.
LOST = 1e-12

#: Numbers that torch adds in one thread, and multiplications of a product of matrices that it computes in one.
_IN_ONE_THREAD, _PRODUCT_IN_ONE_THREAD = 2**14, 2**15


def total(values: Tensor) -> float:
    """Return the sum of all numbers, with the same bits for any number of threads."""
    return sum(float(part.sum()) for part in values.reshape(-1).split(_IN_ONE_THREAD))


def gram(values: Tensor) -> Tensor:
    """Return ``values' values`` of a tall matrix, added block by block, with the same bits for any number of threads.

    On some processors MKL shares products of 100,000 multiplications between threads.
    """
    columns = values.shape[1]
    found = values.new_zeros(columns, columns)
    for part in values.split(max(_PRODUCT_IN_ONE_THREAD // max(columns, 1) ** 2, 1)):
        found += part.T @ part
    return found


@dataclass(frozen=True)
class Conditionals:
    """Conditional distributions of q rows given m neighbours each.

    ``variance`` is what the neighbours leave, positive. ``weights``, shape (q, m), is the regression on them; 0 where
    there is none, or where nearer ones determine it up to rounding. Its shape is (q, 0) where weights were not asked
    for. ``residual``, shape (q, t), has the values of the rows minus their prediction. ``log_variance`` is the sum of
    the logarithms of ``variance``. ``raised`` counts the rows whose variance was below `LOST` of the prior's, which is
    rounding, and was raised to it.
    """

    variance: Tensor
    weights: Tensor
    residual: Tensor | None
    log_variance: float
    raised: int


@dataclass(frozen=True)
class Derivatives:
    """The log density of rows given their neighbours, with derivatives by all hyperparameters in natural units.

    ``gradient`` includes the noise variance. ``information`` is the expected one, the covariance of the gradient under
    the approximation; ``slices`` tells which of its rows belong to each hyperparameter.
    """

    value: float
    gradient: dict[str, Tensor]
    information: Tensor
    slices: dict[str, slice]

    @classmethod
    def of(cls, kernel: Kernel, value: float, gradient: Tensor, information: Tensor) -> Derivatives:
        """Return the record of a flat gradient in the order of `Kernel.parameters`, then the noise."""
        shapes = {name: parameter.shape for name, parameter in kernel.parameters().items()} | {NOISE: torch.Size([])}
        slices, start = {}, 0
        for name, shape in shapes.items():
            slices[name] = slice(start, start + shape.numel())
            start += shape.numel()
        by_name = {name: gradient[where].reshape(shapes[name]) for name, where in slices.items()}
        return cls(value, by_name, information, slices)
