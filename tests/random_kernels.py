"""Random kernels, and rows of all kinds, on which two packages are compared."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp import kernels
from gigagp.kernels import Kernel
from helpers import generator, points, relative_error

N_INPUTS = 3


def rows(kind: str, *, n: int = 12, d: int = N_INPUTS, seed: int = 0) -> Tensor:
    """Return rows, shape (n, d)."""
    X = points(n, d, seed=seed)
    if kind == "clumped":
        return points(3, d, seed=seed + 1)[torch.arange(n) % 3] + 1e-7 * X
    if kind == "duplicated":
        return X[torch.arange(n) // 3]
    if kind == "badly scaled":
        return X * torch.logspace(-3, 3, d, dtype=torch.float64) + 50 * torch.logspace(-3, 3, d, dtype=torch.float64)
    return X


KINDS = ("normal", "clumped", "duplicated", "badly scaled")


class Numbers:
    """Random numbers, bounds and choices for the hyperparameters of one tree."""

    def __init__(self, seed: int, *, scales: Tensor | None = None) -> None:
        self.source = generator(seed)
        self.scales = torch.ones(N_INPUTS, dtype=torch.float64) if scales is None else scales

    def choose(self, n: int) -> int:
        return int(torch.randint(n, (), generator=self.source))

    def positive(self, *shape: int) -> Tensor:
        return torch.exp(torch.randn(shape, generator=self.source, dtype=torch.float64))

    def columns(self) -> list[int] | None:
        return [None, [1], [2, 0], [0, 1, 2]][self.choose(4)]

    def bounds(self, value: Tensor) -> tuple[Tensor | None, Tensor | None] | None:
        lower, upper = value.min() / 3, value.max() * 5
        return [None, (lower, upper), (lower, None), (None, upper), (value / 2, value * 2)][self.choose(5)]


def random_leaf(numbers: Numbers, names: list[str], *, plain: bool = False) -> Kernel:
    """Return a random elementary kernel of one of the classes.

    With ``plain`` it is one that scikit-learn has: all columns, and one value for all inputs, except of
    `RBF` and `Matern`.
    """
    cls = getattr(kernels, names[numbers.choose(len(names))])
    settings = {}
    per_input = [name for name, one_each in cls.shapes.items() if one_each]
    columns = None if plain or cls is kernels.Constant or cls is kernels.White else numbers.columns()
    if cls is kernels.Cosine:
        columns = [numbers.choose(N_INPUTS)]
    ard = bool(numbers.choose(2)) and not (plain and cls not in (kernels.RBF, kernels.Matern))
    if per_input:
        settings |= {"ard": ard, "columns": columns}
    if cls is kernels.Matern:
        settings["nu"] = [0.5, 1.5, 2.5][numbers.choose(3)]
    active = list(range(N_INPUTS)) if columns is None else columns
    scales = numbers.scales[active] if ard else numbers.scales[active].log().mean(0, keepdim=True).exp()
    values = {}
    for name, unit in cls.units.items():
        size = (len(scales),) if name in per_input else ()
        values[name] = numbers.positive(*size)
        if unit == "input":
            values[name] = values[name] * scales
        if unit == "slope":
            values[name] = values[name] / scales.square()
    fixed = [name for name in values if numbers.choose(3) == 0]
    if "variance" in values and "variance" not in per_input and numbers.choose(2):
        values["variance"], fixed = 1.0, [*{*fixed, "variance"}]
    bounds = {name: numbers.bounds(value) for name, value in values.items() if torch.is_tensor(value)}
    bounds = {name: pair for name, pair in bounds.items() if pair is not None}
    return cls(**values, **settings, fixed=fixed, bounds=bounds)


def random_tree(numbers: Numbers, names: list[str], depth: int = 3, *, plain: bool = False) -> Kernel:
    """Return a random sum or product of elementary kernels."""
    kind = numbers.choose(3) if depth else 0
    if kind == 0:
        return random_leaf(numbers, names, plain=plain)
    parts = [random_tree(numbers, names, depth - 1, plain=plain) for _ in range(2 + numbers.choose(2))]
    return kernels.Sum(*parts) if kind == 1 else kernels.Product(*parts)


def assert_same_kernel(found: Kernel, expected: Kernel, *, relative: float = 1e-14) -> None:
    """Fail unless structure, values, bounds and fixed names agree."""

    def numbers(side: Tensor) -> Tensor:
        return torch.where(torch.isinf(side), 0.0, side)

    assert list(found.parameters()) == list(expected.parameters())
    assert [type(leaf) for leaf in found.leaves()] == [type(leaf) for leaf in expected.leaves()]
    assert [leaf.settings().get("columns") for leaf in found.leaves() if leaf.shapes] == [
        leaf.settings().get("columns") for leaf in expected.leaves() if leaf.shapes
    ]
    assert found.fixed_parameters() == expected.fixed_parameters()
    for name, value in expected.parameters().items():
        assert relative_error(found.parameters()[name], value) < relative, name
        assert found.parameters()[name].shape == value.shape
    assert found.bounds().keys() == expected.bounds().keys()
    for name, pair in expected.bounds().items():
        for mine, other in ((found.bounds()[name].lower, pair.lower), (found.bounds()[name].upper, pair.upper)):
            assert torch.equal(torch.isinf(mine), torch.isinf(other)), name
            assert relative_error(numbers(mine), numbers(other)) < relative or not numbers(other).any(), name


def exact_block(kernel: Kernel, X: Tensor, Z: Tensor) -> Tensor:
    """Return our covariance, one column at a time: the squared distances from one row come without cancellation."""
    return torch.cat([kernel.block(X, Z[j : j + 1]) for j in range(len(Z))], dim=1)


def difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference; where some entry is above 1, relative to the largest."""
    assert found.shape == expected.shape
    found, expected = found.detach(), expected.detach()
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1.0))
