"""Memory layouts of `TritonTiles` for its GPU kernels: points by coordinates, steps of a program, vectors, weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import torch
from torch import Tensor

from gigagp.kernels.fused import Profile
from gigagp.products.native_tiles import FEW_INPUTS
from gigagp.products.program import Operation, Program, ProgramStep, Term

#: Numbers of points are padded to multiples of this, so that every block of rows or columns is whole.
PADDING = 64
#: Up to this many columns that are left over from the blocks of a matrix product are multiplied one by one.
FEW = 8
#: Coordinates in one block of a gradient.
MOST_COORDINATES = 32


class Method(IntEnum):
    """How a term's argument is computed."""

    DIFFERENCES = 0
    #: differences of coordinates that are sums of two float32 numbers
    TWO_PART_DIFFERENCES = 1
    PRODUCTS = 2
    TF32_PRODUCTS = 3
    SPLIT_PRODUCTS = 4
    #: split products in float32, for Triton's interpreter
    WIDENED_SPLIT_PRODUCTS = 5


#: Methods that take points as sums of two numbers.
_OF_TWO_PARTS = (Method.TWO_PART_DIFFERENCES, Method.SPLIT_PRODUCTS, Method.WIDENED_SPLIT_PRODUCTS)


def method_of(term: Term, dtype: torch.dtype, distances: str, *, interpreted: bool) -> Method:
    """Return how a term's argument is computed, for the ``distances`` of `TritonTiles`."""
    if term.profile == Profile.DOT:
        return Method.PRODUCTS
    if dtype == torch.float32 and term.is_far(dtype):
        return Method.TWO_PART_DIFFERENCES
    if term.inputs <= FEW_INPUTS or term.is_wide(dtype):
        return Method.DIFFERENCES
    if dtype == torch.float32 and distances == "tf32":
        return Method.TF32_PRODUCTS
    if dtype == torch.float32 and distances == "bf16x3":
        return Method.WIDENED_SPLIT_PRODUCTS if interpreted else Method.SPLIT_PRODUCTS
    return Method.PRODUCTS


@dataclass(frozen=True)
class Packed:
    """A program as the GPU kernels read it.

    ``n`` and ``m`` are the numbers of rows and columns with padding. ``steps`` are those of the program, which are
    known at compile time; see ``triton_kernels.py``. ``widths`` are the numbers of coordinates of each term, with
    padding and with those that only gradients read.

    ``data`` has left coordinates (c, n), their second parts (c, n), squared norms (terms, n); the same for the right
    points, with m; and for each step alpha, a_factor, b_factor and the constant factor of d kernel / d value.
    """

    n: int
    m: int
    steps: tuple[tuple[int, ...], ...]
    widths: tuple[int, ...]
    data: tuple[Tensor, ...]

    @property
    def dtype(self) -> torch.dtype:
        """The precision of entries."""
        return self.data[0].dtype

    def transposed(self) -> Packed:
        """Return the transposed kernel matrix."""
        return replace(self, n=self.m, m=self.n, data=(*self.data[3:6], *self.data[:3], self.data[6]))


def pack(program: Program, n: int, m: int, methods: list[Method], like: Tensor) -> Packed:
    """Lay out a program for n by m points, with the dtype and on the device of ``like``."""
    shapes: list[tuple[int, ...]] = []
    widths: list[int] = []
    for term, method in zip(program.terms, methods, strict=True):
        together, single, chunk = chunks(term.inputs) if method >= Method.PRODUCTS else (0, term.inputs, 16)
        shapes.append((int(term.profile), int(method), sum(widths), together, single, chunk))
        widths.append(together + single + term.left.shape[1] - term.inputs)
    steps = tuple(
        (int(step.operation), step.a, step.b, *(shapes[step.a] if step.operation == Operation.TERM else [-1] * 6))
        for step in program.steps
    )
    # The last block of a gradient may reach beyond the last term.
    coordinates = max(sum(widths) + (MOST_COORDINATES if program.derivatives else 0), 1)
    with_rest = any(method in _OF_TWO_PARTS for method in methods)
    data = []
    for count, sides in ((n, [term.left for term in program.terms]), (m, [term.right for term in program.terms])):
        points = like.new_zeros(1 + with_rest, coordinates, padded(count))
        squares = like.new_zeros(max(len(sides), 1), padded(count))
        for t, (term, method, side) in enumerate(zip(program.terms, methods, sides, strict=True)):
            main, rest = rounded(side[:, : term.inputs], like.dtype, method)
            _, _, begin, together, single, _ = shapes[t]
            points[0, begin : begin + term.inputs, :count] = main.T
            points[-1, begin : begin + term.inputs, :count] += rest.T  # zeros for methods without a second part
            behind = begin + together + single
            points[0, behind : behind + side.shape[1] - term.inputs, :count] = side[:, term.inputs :].T
            # SPLIT_PRODUCTS leave out rest^2, so this does too: the distance of equal points is then zero
            squares[t, :count] = (main * (main + 2 * rest)).sum(1)
        data += [points[0], points[-1], squares]
    numbers = [(_alpha(program, s), s.a_factor, s.b_factor, path(program, k)[0]) for k, s in enumerate(program.steps)]
    data.append(torch.tensor(numbers, dtype=torch.float64).to(like))
    return Packed(padded(n), padded(m), steps, tuple(widths), tuple(data))


def rounded(points: Tensor, dtype: torch.dtype, method: Method) -> tuple[Tensor, Tensor]:
    """Return float64 points rounded for a method, and the second part that the method adds to them."""
    if method in (Method.SPLIT_PRODUCTS, Method.WIDENED_SPLIT_PRODUCTS):
        main = points.to(torch.bfloat16).to(torch.float64)
        return main, (points - main).to(torch.bfloat16).to(torch.float64)
    main = points.to(dtype)
    if method == Method.TF32_PRODUCTS:  # to the nearest number with 11 significant bits
        main = ((main.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    main = main.to(torch.float64)
    return main, points - main if method == Method.TWO_PART_DIFFERENCES else torch.zeros_like(main)


def path(program: Program, k: int) -> tuple[float, tuple[int, ...]]:
    """Return d kernel / d value k of a program: a number, and the steps whose values are its other factors."""
    factor, factors = 1.0, []
    for later, step in enumerate(program.steps):
        if step.operation in (Operation.ADD, Operation.MULTIPLY) and k in (step.a, step.b):
            if step.operation == Operation.ADD:
                factor *= step.a_factor if k == step.a else step.b_factor
            else:
                factors.append(step.b if k == step.a else step.a)
            k = later
    return factor, tuple(factors)


def _alpha(program: Program, step: ProgramStep) -> float:
    """Return alpha of a step's term."""
    return program.terms[step.a].alpha if step.operation == Operation.TERM else 0.0


def padded(count: int) -> int:
    """Return a count of points with padding."""
    return -(-count // PADDING) * PADDING


def chunks(coordinates: int) -> tuple[int, int, int]:
    """Return how inner products are split: coordinates for matrix products, the few others, and a chunk's size."""
    chunk = 16 if coordinates < 64 else 32
    together, single = coordinates // chunk * chunk, coordinates % chunk
    return (together, single, chunk) if single <= FEW else (together + chunk, 0, chunk)


def by_coordinates(points: Tensor, coordinates: int, dtype: torch.dtype) -> Tensor:
    """Return ``points`` (n, c) as (coordinates, n), both padded with zeros."""
    laid = points.new_zeros(max(coordinates, 1), padded(len(points)), dtype=dtype)
    laid[: points.shape[1], : len(points)] = points.T
    return laid
