"""A kernel as a short program over pairs of points, for engines that fuse everything into one pass.

A term is a profile of the squared distance (or of the inner product) of *embedded* points: inputs divided by
lengthscales, or points on circles for `Periodic`. A tree of kernels is a list of steps over such terms. Engines compute
values, and a few sums for gradients. This module turns the sums into derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels import (
    Constant,
    Group,
    Kernel,
    Linear,
    LocalVariance,
    Outputs,
    Periodic,
    Product,
    ScaleMap,
    StationaryKernel,
    Sum,
    White,
)
from gigagp.kernels.composite import Composite
from gigagp.kernels.distances import ROUNDING_ERROR, common_offset
from gigagp.kernels.fused import Profile
from gigagp.kernels.geometry import Rotation
from gigagp.kernels.leaf import Leaf

#: Bound on the relative rounding error of a gradient.
GRADIENT_ERROR = 1e-9
#: Outputs up to which their covariance has a program, whose gradient has a sum for each pair of them.
_MOST_OUTPUTS = 8
#: Rows in one sum: few enough that torch uses one thread for a column.
_SUMMED_ROWS = 4096


class Operation(IntEnum):
    """What a step does; ``native/kernels.h`` lists the same names, and a test compares the codes."""

    TERM = 0
    ADD = 1
    MULTIPLY = 2
    ONE = 3


@dataclass(frozen=True)
class Term:
    """``profile(|e - f|^2)``, or ``e'f``, of embedded points.

    ``left``, shape (n, c), and ``right``, shape (m, c), are float64. They are the same object where left and right
    points and their coordinates are the same. The points' common offset is subtracted, except for inner products. The
    first ``inputs`` of the c coordinates belong to the points; only derivatives use the others. Without ``has_scales``
    no hyperparameter moves the points, and no derivative reads the distances.
    """

    profile: Profile
    left: Tensor
    right: Tensor
    inputs: int
    alpha: float = 1.0
    has_scales: bool = True

    @cached_property
    def largest(self) -> float:
        """Bound on a pair's squared norms times the profile's steepest slope. Rounding errors are epsilon times it.

        The coordinates that only derivatives use are never squared: a pair has their products.
        """
        if self.profile == Profile.DOT or not (len(self.left) and len(self.right)):
            return 0.0
        sides = (self.left,) if self.left is self.right else (self.left, self.right)
        norms = [float(one[:, : self.inputs].square().sum(1).amax()) for one in sides]
        further = [one[:, self.inputs :].abs().amax(0) for one in sides]
        return max(self.alpha, 1.0) * (norms[0] + norms[-1] + float((further[0] * further[-1]).sum()))

    def is_wide(self, dtype: torch.dtype) -> bool:
        """Whether distances from norms would show rounding errors: points far apart, or a profile with a kink."""
        return self.profile == Profile.MATERN_12 or self.largest * torch.finfo(dtype).eps > ROUNDING_ERROR[dtype]

    @property
    def is_apart(self) -> bool:
        """Whether a gradient, which is a difference of float64 sums of squared norms, would be lost to rounding."""
        return self.has_scales and self.largest * torch.finfo(torch.float64).eps > GRADIENT_ERROR

    def is_far(self, dtype: torch.dtype) -> bool:
        """Whether even differences of coordinates would show it: near points carry their own rounding errors."""
        return 2 * self.largest**0.5 * torch.finfo(dtype).eps > ROUNDING_ERROR[torch.float32]


@dataclass(frozen=True)
class ProgramStep:
    """Value k of a program: a term, ``a_factor * a + b_factor * b``, ``a * b`` or one."""

    operation: Operation
    a: int = 0
    b: int = 0
    a_factor: float = 1.0
    b_factor: float = 1.0


@dataclass(frozen=True)
class TermSums:
    """The sums of an engine for one term. A are the weights of the gradient, g is the term's value, p its distance.

    ``alpha`` is ``sum_ij A dk/dg dg/dalpha`` (0 without alpha). With ``S = A dk/dg dg/dp``, ``squares``, shape
    (inputs,), is ``sum_ij S_ij (e_ik - f_jk)^2`` for the coordinates of the points, which inner products do not read.
    ``cross``, shape (c,), is ``sum_ij S_ij e_ik f_jk``; only inner products read it for the coordinates of the points.
    """

    alpha: float
    squares: Tensor
    cross: Tensor

    @classmethod
    def from_products(cls, term: Term, alpha: float, cross: Tensor, rows: Tensor, columns: Tensor) -> TermSums:
        """Return the sums from ``cross`` and from the row sums, shape (n,), and column sums, shape (m,), of S."""
        left = _weighted_squares(rows, term.left[:, : term.inputs])
        right = _weighted_squares(columns, term.right[:, : term.inputs])
        return cls(alpha, (left + right).cpu() - 2 * cross[: term.inputs].cpu(), cross.cpu())


@dataclass
class Program:
    """Terms and steps; ``factor`` times the last step's value is the kernel."""

    kernel: Kernel
    derivatives: bool
    terms: list[Term] = field(default_factory=list)
    steps: list[ProgramStep] = field(default_factory=list)
    factor: float = 1.0

    def gradient(self, values: list[float], sums: list[TermSums]) -> dict[str, Tensor]:
        """Return the derivatives of ``sum_ij A_ij k(x_i, z_j)`` in every hyperparameter.

        For each step that is a term or one, ``values`` has ``sum_ij A_ij dK/dvalue value`` with ``K = k / factor``.
        ``sums`` has one record for each term, also without ``factor``.
        """
        position = iter([k for k, step in enumerate(self.steps) if step.operation in (Operation.TERM, Operation.ONE)])
        found, _ = self._gradient(self.kernel, "", position, values, sums)
        order = self.kernel.parameters()
        return {name: found[name].reshape(order[name].shape) for name in order}

    def codes(self) -> list[tuple[int, int, int, float, float]]:
        """Return the steps as compiled code reads them (``native/steps.h``)."""
        return [(int(s.operation), s.a, s.b, s.a_factor, s.b_factor) for s in self.steps]

    def jacobian(self) -> Tensor:
        """Return the derivatives in all hyperparameters for each sum alone, shape (p, directions).

        `gradient` is linear in its sums. Their order is that of ``native/conditionals.h``: values of steps, alphas of
        terms, and coordinates of terms (squares, then further products). The hyperparameters are those of
        `Kernel.parameters`, one after the other.
        """
        steps = [k for k, step in enumerate(self.steps) if step.operation in (Operation.TERM, Operation.ONE)]
        widths = [term.left.shape[1] for term in self.terms]
        units = torch.eye(len(steps) + len(widths) + sum(widths), dtype=torch.float64)
        columns = []
        for unit in units:
            given, alphas, coordinates = unit.split([len(steps), len(widths), sum(widths)])
            values = [0.0] * len(self.steps)
            for k, value in zip(steps, given.tolist(), strict=True):
                values[k] = value
            parts = zip(self.terms, alphas.tolist(), coordinates.split(widths), strict=True)
            found = self.gradient(values, [TermSums(alpha, part[: t.inputs], part) for t, alpha, part in parts])
            columns.append(torch.cat([value.reshape(-1) for value in found.values()]))
        return torch.stack(columns, 1)

    def _gradient(
        self, kernel: Kernel, prefix: str, position: Iterator[int], values: list[float], sums: list[TermSums]
    ) -> tuple[dict[str, Tensor], float]:
        """Return the derivatives, and the weighted sum of this part, which the derivatives of other factors need."""
        if isinstance(kernel, Sum | Product):
            found: dict[str, Tensor] = {}
            shares = []
            for index, part in enumerate(kernel.parts):
                if _is_skipped(part, kernel):
                    found |= {f"{prefix}{index}.{name}": torch.zeros_like(v) for name, v in part.parameters().items()}
                    continue
                derivatives, share = self._gradient(part, f"{prefix}{index}.", position, values, sums)
                found |= derivatives
                shares.append(share)
            return found, sum(shares) if isinstance(kernel, Sum) else shares[0]
        assert isinstance(kernel, Leaf)
        step = next(position)
        share = self.factor * values[step]
        if isinstance(kernel, White):
            return {f"{prefix}{name}": torch.zeros_like(v) for name, v in kernel.parameters().items()}, share
        if isinstance(kernel, Constant):
            return {f"{prefix}variance": _by_variance(kernel, share)}, share
        if isinstance(kernel, Group):
            if not kernel.slope_columns:
                return {f"{prefix}variance": _by_variance(kernel, share)}, share
            step = next(position)  # that of the lines, after the levels
        t = self.steps[step].a
        own = _derivatives(kernel, self.terms[t], sums[t])
        own = {name: self.factor * value for name, value in own.items()}
        if not isinstance(kernel, Group | Linear | LocalVariance | Outputs | ScaleMap):
            own["variance"] = _by_variance(kernel, share)
        return {f"{prefix}{name}": value.to(torch.float64) for name, value in own.items()}, share


def supports(kernel: Kernel) -> bool:
    """Whether a kernel has a program.

    Stationary kernels declare it (`StationaryKernel.fused_profile`). Of the others only the package's own classes have
    one. Classes derived from them do not, because they may compute something else.
    """
    if isinstance(kernel, Composite):
        return type(kernel) in (Sum, Product) and all(supports(part) for part in kernel.parts)
    if isinstance(kernel, StationaryKernel):
        return kernel.fused_profile() is not None
    if type(kernel) is Outputs:
        return kernel.n_outputs <= _MOST_OUTPUTS and not kernel.new_outputs  # which have no factor
    return type(kernel) in (Group, Periodic, Linear, LocalVariance, ScaleMap, Constant, White)


def compile_kernel(kernel: Kernel, X: Tensor, Z: Tensor, *, derivatives: bool = False) -> Program:
    """Return the program of a bound kernel, which `supports` has to allow.

    Pass X itself as Z for a symmetric matrix, and ``derivatives`` if `Program.gradient` will be called.
    """
    if not supports(kernel):
        raise InvalidInputError(f"{kernel!r} has a part without a compiled form; multiply with it on TorchTiles.")
    program = Program(kernel, derivatives)
    with torch.no_grad():
        left = X.detach().to(torch.float64)
        right = left if Z is X else Z.detach().to(torch.float64)
        last, program.factor = _emit(kernel, left, right, program)
    assert last == len(program.steps) - 1
    return program


def _is_skipped(part: Kernel, parent: Kernel) -> bool:
    """Whether a part adds nothing: white noise in a sum, also times something, which is zero between two points."""
    return isinstance(parent, Sum) and _is_noise(part) and not all(map(_is_noise, parent.parts))


def _is_noise(kernel: Kernel) -> bool:
    return not kernel.correlated_terms()


def _emit(kernel: Kernel, left: Tensor, right: Tensor, program: Program) -> tuple[int, float]:
    """Append a kernel's steps; return the position of its value and the factor that turns it into the kernel."""
    if isinstance(kernel, Sum | Product):
        parts = [_emit(part, left, right, program) for part in kernel.parts if not _is_skipped(part, kernel)]
        last, factor = parts[0]
        for other, other_factor in parts[1:]:
            if isinstance(kernel, Sum):
                program.steps.append(ProgramStep(Operation.ADD, last, other, factor, other_factor))
                factor = 1.0
            else:
                program.steps.append(ProgramStep(Operation.MULTIPLY, last, other))
                factor *= other_factor
            last = len(program.steps) - 1
        return last, factor
    if isinstance(kernel, Constant | White):
        program.steps.append(ProgramStep(Operation.ONE))
        return len(program.steps) - 1, 0.0 if isinstance(kernel, White) else float(kernel.value("variance"))
    assert isinstance(kernel, Leaf)
    if isinstance(kernel, Group):
        return _emit_group(kernel, left, right, program)
    term, factor = _term(kernel, left, right, program.derivatives)
    program.terms.append(term)
    program.steps.append(ProgramStep(Operation.TERM, len(program.terms) - 1))
    return len(program.steps) - 1, factor


def _emit_group(kernel: Group, left: Tensor, right: Tensor, program: Program) -> tuple[int, float]:
    """Append what is one for rows of the same level and else zero, times the inner products of the lines of a level."""
    e, f = _centred(*_both(kernel.embed, left, right))
    program.terms.append(Term(Profile.RBF, e, f, e.shape[1], has_scales=False))
    program.steps.append(ProgramStep(Operation.TERM, len(program.terms) - 1))
    if not kernel.slope_columns:
        return len(program.steps) - 1, float(kernel.value("variance"))
    e, f = _both(kernel.scale, left, right)
    program.terms.append(Term(Profile.DOT, e, f, e.shape[1]))
    last = len(program.steps)
    program.steps.append(ProgramStep(Operation.TERM, len(program.terms) - 1))
    program.steps.append(ProgramStep(Operation.MULTIPLY, last - 1, last))
    return len(program.steps) - 1, 1.0


def _both(embed: Callable[[Tensor], Tensor], left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a function makes of left and right points, which may be the same."""
    found = embed(left)
    return found, found if right is left else embed(right)


def _centred(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return points without the common offset of the right ones: rounding errors of distances grow with the norms."""
    centre = common_offset(right)
    return _both(lambda points: points - centre, left, right)


def _term(kernel: Leaf, left: Tensor, right: Tensor, derivatives: bool) -> tuple[Term, float]:
    """Return the term of an elementary kernel and the factor that turns it into the kernel."""
    if isinstance(kernel, Linear | ScaleMap):
        left, right = _both(kernel.scale, left, right)
        return Term(Profile.DOT, left, right, left.shape[1]), 1.0
    if isinstance(kernel, Outputs):
        return _outputs_term(kernel, left, right, derivatives), 1.0
    if isinstance(kernel, LocalVariance):
        return _local_term(kernel, left, right, derivatives), 1.0
    factor = float(kernel.value("variance"))
    if isinstance(kernel, Periodic):
        return _periodic_term(kernel, left, right, derivatives), factor
    assert isinstance(kernel, StationaryKernel)
    profile = kernel.fused_profile()
    assert profile is not None, "compile_kernel has asked supports"
    root = kernel.distance_factor**0.5
    left, right = _centred(*_both(lambda points: kernel.scale(points) * root, left, right))
    inputs = left.shape[1]
    if derivatives and kernel.metric == "rotated":
        # The derivative by the angle needs sums of (e_1 - f_1) (e_2 - f_2): four products of functions of e and of f.
        one = torch.ones_like
        e, f = (points[:, :2].unbind(1) for points in (left, right))
        left = torch.cat([left, torch.stack([e[0] * e[1], e[0], e[1], one(e[0])], 1)], 1)
        right = torch.cat([right, torch.stack([one(f[0]), -f[1], -f[0], f[0] * f[1]], 1)], 1)
    return Term(profile, left, right, inputs, kernel.fused_alpha()), factor


def _outputs_term(kernel: Outputs, left: Tensor, right: Tensor, derivatives: bool) -> Term:
    """Return the inner products of the outputs' loadings.

    The derivatives by the covariance of two outputs need the sum over their rows, for each pair: a product of a
    function of the left point and one of the right point, each of which tells one output.
    """
    e, f = (kernel.scale(points) for points in (left, right))
    inputs, k = e.shape[1], kernel.n_outputs
    if derivatives:
        one = [torch.nn.functional.one_hot(kernel.levels(points), k).to(e) for points in (left, right)]
        e = torch.cat([e, one[0].repeat_interleave(k, 1)], 1)
        f = torch.cat([f, one[1].repeat(1, k)], 1)
    return Term(Profile.DOT, e, f, inputs)


def _local_term(kernel: LocalVariance, left: Tensor, right: Tensor, derivatives: bool) -> Term:
    """Return the product of the standard deviations of two points.

    The derivative by the variance at a place needs the sums of the products times its weight at either point.
    """
    e, f = (kernel.scale(points) for points in (left, right))
    if derivatives:
        of_left, of_right = kernel.weights(left), kernel.weights(right)
        e, f = (
            torch.cat([e, e * of_left, e.expand(of_left.shape)], 1),
            torch.cat([f, f.expand(of_right.shape), f * of_right], 1),
        )
    return Term(Profile.DOT, e, f, 1)


def _periodic_term(kernel: Periodic, left: Tensor, right: Tensor, derivatives: bool) -> Term:
    """Return an RBF on circles, whose squared distances are ``p = sum_k (1 - cos(a_k - b_k)) / lengthscale_k^2``.

    A derivative in a period needs sums of ``(a - b) sin(a - b)``. That is a sum of four products, each of a function of
    a and a function of b.
    """
    left, right = _centred(left, right)  # fewer turns, smaller rounding errors
    e, f = _both(lambda points: kernel.embed(points) * 0.5**0.5, left, right)
    inputs = e.shape[1]
    if derivatives:
        turns = 2 * math.pi / kernel.by_input("period", left)
        a, b = (kernel.active(points) * turns for points in (left, right))
        e = torch.cat([e, a * a.sin(), a * a.cos(), a.sin(), a.cos()], 1)
        f = torch.cat([f, b.cos(), -b.sin(), -b * b.cos(), b * b.sin()], 1)
    return Term(Profile.RBF, e, f, inputs)


def _derivatives(kernel: Leaf, term: Term, sums: TermSums) -> dict[str, Tensor]:
    """Return the derivatives in all hyperparameters but the variance of a leaf that is a factor."""
    if isinstance(kernel, Group):
        return {"variance": sums.cross[: term.inputs] / kernel.value("variance").detach()}
    if isinstance(kernel, Linear):
        variance = kernel.value("variance").detach()
        return {"variance": kernel.by_value(sums.cross[: term.inputs]) / variance}
    if isinstance(kernel, ScaleMap):
        return {}
    by_square, more = sums.squares, sums.cross[term.inputs :]
    if isinstance(kernel, Outputs):
        with torch.enable_grad():
            values = {name: value.detach().requires_grad_() for name, value in kernel.parameters().items()}
            covariance = kernel.replace(values).covariance()
            slopes = torch.autograd.grad(covariance, list(values.values()), more.view_as(covariance).to(covariance))
        return dict(zip(values, slopes, strict=True))
    if isinstance(kernel, LocalVariance):
        return {"variance": 0.5 * more.view(2, -1).sum(0) / kernel.value("variance").detach()}
    lengthscale = kernel.value("lengthscale").detach()
    found = {}
    if isinstance(kernel, Periodic):
        by_square = by_square.view(2, -1).sum(0)
        by_turn = more.view(4, -1).sum(0) / kernel.by_input("lengthscale").detach().square()
        turned = kernel.by_value(by_turn)
        found["period"] = -turned / kernel.value("period").detach()
    if "alpha" in kernel.shapes:
        found["alpha"] = torch.tensor(sums.alpha, dtype=torch.float64)
    if isinstance(kernel, StationaryKernel) and kernel.metric == "rotated":
        found["angle"] = more.sum() * Rotation.slope(lengthscale)
    found["lengthscale"] = -2 * kernel.by_value(by_square) / lengthscale
    return found


def _weighted_squares(weights: Tensor, points: Tensor) -> Tensor:
    """Return ``sum_i weights_i points_ik^2`` for every k, with the same bits on any number of threads.

    The bits of a matrix product by MKL depend on the number of threads, and so do those of a sum over a whole column.
    """
    blocks = zip(weights.split(_SUMMED_ROWS), points.split(_SUMMED_ROWS), strict=True)
    return torch.stack([(part.square() * weight[:, None]).sum(0) for weight, part in blocks]).sum(0)


def _by_variance(kernel: Leaf, share: float) -> Tensor:
    """Return the derivative in the variance of a part whose weighted sum is ``share``."""
    return torch.tensor(share / float(kernel.value("variance")), dtype=torch.float64)
