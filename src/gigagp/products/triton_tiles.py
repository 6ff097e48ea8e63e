"""The GPU engine: distance, profile and product fused in registers, as in flash attention (``triton_kernels.py``)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels import Kernel
from gigagp.kernels.fused import Profile
from gigagp.products.arguments import check_points, check_vectors, check_weights
from gigagp.products.blocks import gradient_by_blocks, ranges
from gigagp.products.engine import LowRankWeights, Weights
from gigagp.products.program import Operation, Program, TermSums, compile_kernel, supports
from gigagp.products.tile_memory import Shape
from gigagp.products.torch_tiles import gradient_apart
from gigagp.products.triton_packing import (
    FEW,
    MOST_COORDINATES,
    PADDING,
    Method,
    Packed,
    by_coordinates,
    chunks,
    method_of,
    pack,
    path,
)
from gigagp.runtime.memory import require

#: Oldest version of triton whose compiler takes the GPU kernels.
OLDEST = (3, 5)
#: Most vectors in one sweep: `FEW` of them one by one, the others side by side. Times are known up to 65; more vectors
#: are multiplied in several sweeps.
MOST_VECTORS = 64 + FEW
#: Program instances that fill a large GPU several times over. Products with few rows are split by columns to get them.
INSTANCES = 1024
#: Rows and columns of the dense weights that a gradient reads at a time.
WEIGHTS_SIDE = 8192


@dataclass(frozen=True)
class Tiling:
    """Rows and columns of a tile, and the warps that work on it."""

    rows: int
    columns: int
    warps: int

    @property
    def shape(self) -> Shape:
        """The three numbers."""
        return self.rows, self.columns, self.warps


@dataclass(frozen=True)
class TritonTiles:
    """Products in code that Triton compiles for the GPU at the first use.

    `select` takes it on CUDA by way of `MeasuredTiles`, where it passes a self-test and is quicker than torch tiles.
    Pass it to `operators.KernelMatrix` to choose ``distances``, or to use it without the test.

    ``distances`` is how `product` and `dense` multiply the coordinates of float32 points to get their distances.
    ``"ieee"`` is float32. The others use tensor cores. ``"tf32"`` first rounds points to 11 significant bits, so K is
    the covariance of slightly moved points. ``"bf16x3"`` makes points sums of two bfloat16 numbers, and leaves out the
    smallest of their products. K stays symmetric, and equal points stay equal. The choice has no effect on float64,
    inner products (`Linear`), gradients, vectors, and distances for which norms in float32 would not do (few inputs,
    points far apart, Matern 1/2).

    Largest error of an entry of K(X, X) with variance 1 for 256 standard normal rows and lengthscale sqrt(d), as
    Triton's interpreter computes it:

    ===================  =======  =======  =======
    RBF, Matern 3/2      d = 4    d = 18   d = 90
    ===================  =======  =======  =======
    ``"ieee"``           9e-7     9e-7     8e-7
    ``"bf16x3"``         3.1e-5   5.1e-6   3e-6
    ``"tf32"``           4.2e-4   1.9e-4   8.9e-5
    ===================  =======  =======  =======

    Float32 sums carry their rounding errors along. The same call gives the same bits, but another number of rows may
    split the sums at other places. Every entry is computed, also where symmetry would give half of them: each instance
    owns the results of its rows, so that none waits for another and the order of every sum is fixed. Gradients on two
    different sets of points take a second sweep for the sums by columns.

    ``tiling`` is the shape of the tiles of products and gradients; None takes what is known to be quick, or what is
    likely to be. `variants` are those that are worth measuring.

    Tests run the kernels under Triton's interpreter. On one NVIDIA H100 (torch 2.11, triton 3.6) all modes agreed with
    torch tiles and with the processor.
    """

    distances: Literal["ieee", "tf32", "bf16x3"] = "ieee"
    tiling: Tiling | None = None

    def __post_init__(self) -> None:
        if not self.available():
            msg = "TritonTiles needs triton >= {}.{}, which is not installed (PyTorch for CUDA on Linux brings it)."
            raise InvalidInputError(msg.format(*OLDEST))
        if self.distances not in ("ieee", "tf32", "bf16x3"):
            msg = f'distances of TritonTiles must be "ieee", "tf32" or "bf16x3"; got {self.distances!r}.'
            raise InvalidInputError(msg)

    @property
    def name(self) -> str:
        """The engine, and its ``distances`` where they are not the default."""
        return "triton tiles" if self.distances == "ieee" else f"triton tiles ({self.distances} distances)"

    @staticmethod
    def available() -> bool:
        """Whether a triton that is recent enough can be imported."""
        if find_spec("triton") is None:
            return False
        import triton

        return tuple(int(part) for part in triton.__version__.split(".")[:2]) >= OLDEST

    @classmethod
    def supports(cls, kernel: Kernel, device: torch.device | str) -> bool:
        """Whether the engine can run on a device, and the kernel has a program; imports triton only for CUDA."""
        return torch.device(device).type == "cuda" and supports(kernel) and cls.available()

    @torch.no_grad()
    def product(self, kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor, *, budget: int) -> Tensor:
        """Return ``K(X, Z) @ V``; see `Engine.product`."""
        check_points(self.name, kernel, X, Z)
        check_vectors(self.name, V, Z)
        _check_runs_here(X)
        n, s = X.shape[0], V.shape[1]
        out = X.new_zeros(n, s)
        if not n or not s or not Z.shape[0]:
            return out
        # Memory that grows with the rows: embedded points (float64, and packed twice), and float64 sums.
        row_bytes = 24 * (2 * X.shape[1] * sum(1 for _ in kernel.leaves()) + MOST_VECTORS)
        with _on(X.device):
            for rows in ranges(n, max(budget // row_bytes, 1024)):
                program = compile_kernel(kernel, X[rows], Z)
                packed = self._packed(program, rows.stop - rows.start, Z.shape[0], X)
                for group in ranges(s, MOST_VECTORS):
                    found = _multiply(packed, V[:, group], self.tiling).mul_(program.factor)
                    out[rows, group] = found[: rows.stop - rows.start].to(X.dtype)
        return out

    @torch.no_grad()
    def dense(self, kernel: Kernel, X: Tensor, Z: Tensor | None = None, *, budget: int) -> Tensor:
        """Return the whole matrix; see `Engine.dense`."""
        symmetric = Z is None
        Z = X if Z is None else Z
        check_points(self.name, kernel, X, Z)
        _check_runs_here(X)
        needed = X.shape[0] * Z.shape[0] * X.element_size()
        require(needed, budget, f"A dense covariance of {X.shape[0]:,} by {Z.shape[0]:,}", "Multiply tile by tile.")
        out = X.new_empty(X.shape[0], Z.shape[0])
        if not out.numel():
            return out
        program = compile_kernel(kernel, X, Z)
        packed = self._packed(program, X.shape[0], Z.shape[0], X)
        with _on(X.device):
            _kernels().dense_kernel[(packed.n // PADDING * (packed.m // PADDING),)](
                packed.data,
                out.new_tensor([program.factor]),
                out,
                packed.n,
                packed.m,
                *out.shape,
                STEPS=packed.steps,
                N_STEPS=len(packed.steps),
                SYMMETRIC=symmetric,
                ROWS=PADDING,
                num_warps=8,
                enable_fp_fusion=True,
            )
        return out

    @torch.no_grad()
    def gradient(
        self, kernel: Kernel, X: Tensor, Z: Tensor, weights: Weights, *, symmetric: bool, budget: int
    ) -> dict[str, Tensor]:
        """Return the gradient in all hyperparameters; see `Engine.gradient`."""
        check_points(self.name, kernel, X, Z)
        check_weights(self.name, weights, X, Z)
        _check_runs_here(X)
        Z = X if symmetric else Z
        with _on(X.device):
            if isinstance(weights, LowRankWeights):
                return _gradient(kernel, X, Z, weights.left, weights.right, symmetric=symmetric, tiling=self.tiling)
            side = max(min(WEIGHTS_SIDE, int((budget / (4 * X.element_size())) ** 0.5)), 64)
            by_tiles = partial(_gradient, tiling=self.tiling)
            return gradient_by_blocks(self.name, by_tiles, kernel, X, Z, weights, side, symmetric=symmetric)

    def variants(self, kernel: Kernel, like: Tensor, vectors: int | None) -> list[TritonTiles]:
        """Return this engine with the shapes of tiles that are worth measuring, what it takes unmeasured first.

        They are for products of ``like`` points with so many vectors, or for gradients (None).
        """
        program = compile_kernel(kernel, like[:1], like[:1], derivatives=vectors is None)
        packed = self._packed(program, 1, 1, like)
        if vectors is None:
            chosen, others = _gradient_tiling(packed), [Tiling(64, 32, 4), Tiling(32, 32, 4)]
        else:
            wide = _layout(min(vectors, MOST_VECTORS))[0]
            chosen, others = _tiling(packed, wide), [Tiling(32, 32, 4), Tiling(64, 32, 8)]
            if len(packed.steps) == 1:
                # In float64 the second needs more than the 99 KiB of shared memory that a consumer card has.
                single = [Tiling(32, 64, 4)] if like.dtype == torch.float32 else []
                others = [Tiling(64, 32, 4), *single, Tiling(32, 32, 4)]
        tilings = [chosen, *(one for one in others if one != chosen)]
        return [replace(self, tiling=one) for one in tilings[:3]]

    def _packed(self, program: Program, n: int, m: int, like: Tensor) -> Packed:
        interpreted = _kernels().INTERPRETED
        methods = [method_of(term, like.dtype, self.distances, interpreted=interpreted) for term in program.terms]
        return pack(program, n, m, methods, like)


@dataclass(frozen=True)
class _GradientWeights:
    """Low-rank weights are vectors by coordinates, and the step that multiplies them. A matrix has no step."""

    left: Tensor
    right: Tensor
    step: tuple[int, ...] | None

    def transposed(self) -> _GradientWeights:
        if self.step is None:
            return _GradientWeights(self.left.T, self.left.T, None)
        return _GradientWeights(self.right, self.left, self.step)


def _gradient(
    kernel: Kernel,
    X: Tensor,
    Z: Tensor,
    left: Tensor,
    right: Tensor | None = None,
    *,
    symmetric: bool = False,
    tiling: Tiling | None = None,
) -> dict[str, Tensor]:
    """Return the gradient for weights ``left @ right.T``, or ``left`` (n, m)."""
    n, m = X.shape[0], Z.shape[0]
    if not n or not m or not left.shape[1]:
        return {name: torch.zeros(v.shape, dtype=torch.float64) for name, v in kernel.parameters().items()}
    program = compile_kernel(kernel, X, Z, derivatives=True)
    if any(term.is_apart for term in program.terms):
        return gradient_apart(kernel, X, Z, left, right, symmetric=symmetric)
    # sums of squared differences cancel as strongly as distances
    dtype = torch.float64 if any(term.is_wide(X.dtype) for term in program.terms) else X.dtype
    methods = [method_of(term, dtype, "ieee", interpreted=False) for term in program.terms]
    packed = pack(program, n, m, methods, X.new_empty(0, dtype=dtype))
    if right is None:
        weights = _GradientWeights(left.to(dtype), left.to(dtype), None)
    else:
        together, single, chunk = chunks(left.shape[1])
        products = (int(Operation.TERM), 0, 0, int(Profile.DOT), int(Method.PRODUCTS), 0, together, single, chunk)
        packed_left, packed_right = (by_coordinates(v, together + single, dtype) for v in (left, right))
        weights = _GradientWeights(packed_left, packed_right, products)
    values, sums = [0.0] * len(program.steps), []
    for k, step in enumerate(program.steps):
        if step.operation not in (Operation.TERM, Operation.ONE):
            continue
        factors = path(program, k)[1]
        tiling = tiling or _gradient_tiling(packed)
        values[k], by_alpha, rows, cross = _sum_up(packed, weights, k, factors, n, m, tiling)
        if step.operation == Operation.TERM:
            if symmetric:
                columns = rows
            else:  # a second sweep is cheaper than sums to which several instances add in a fixed order
                columns = _sum_up(
                    packed.transposed(), weights.transposed(), k, factors, m, n, tiling, with_cross=False
                )[2]
            term = program.terms[step.a]
            extra = term.left.shape[1] - term.inputs
            behind = packed.steps[k][6] + packed.steps[k][7]
            crosses = torch.cat([cross[: term.inputs], cross[behind : behind + extra]])
            sums.append(TermSums.from_products(term, by_alpha, crosses, rows[:n], columns[:m]))
    return program.gradient(values, sums)


def _sum_up(
    packed: Packed,
    weights: _GradientWeights,
    k: int,
    factors: tuple[int, ...],
    n: int,
    m: int,
    tiling: Tiling,
    *,
    with_cross: bool = True,
) -> tuple[float, float, Tensor, Tensor]:
    """Return the sums of `TermSums` for step k: of values, in alpha, by row, and of products by coordinate."""
    step = packed.steps[k]
    is_term = step[0] == Operation.TERM
    width = packed.widths[step[1]] if is_term and with_cross else 0
    cross = next((size for size in (16, MOST_COORDINATES) if size >= width), MOST_COORDINATES) if width else 0
    blocks = -(-width // cross) if width else 1
    splits, columns_each = _splits(packed, tiling)
    instances = packed.n // tiling.rows
    row_sums, sums, crosses = (
        torch.empty(shape, dtype=torch.float64, device=weights.left.device)
        for shape in ((splits, packed.n), (splits, instances, 2), (splits, instances, max(blocks * cross, 1)))
    )
    _kernels().gradient_kernel[(instances, splits, blocks)](
        packed.data,
        weights.left,
        weights.right,
        row_sums,
        sums,
        crosses,
        packed.n,
        packed.m,
        columns_each,
        *weights.left.stride(),
        n,
        m,
        STEPS=packed.steps,
        N_STEPS=len(packed.steps),
        TARGET=k,
        FACTORS=factors or (0,),
        N_FACTORS=len(factors),
        WEIGHTS=(weights.step or packed.steps[k],),
        LOW_RANK=weights.step is not None,
        CROSS=cross,
        ROWS=tiling.rows,
        COLUMNS=tiling.columns,
        num_warps=tiling.warps,
        enable_fp_fusion=True,
    )
    total = sums.sum((0, 1)).tolist()
    return total[0], total[1], row_sums.sum(0), crosses.sum((0, 1))


def _multiply(packed: Packed, V: Tensor, tiling: Tiling | None = None) -> Tensor:
    """Return the product with at most `MOST_VECTORS` vectors, (n, s), float64, without the program's factor."""
    wide, single = _layout(V.shape[1])
    beside = V.shape[1] - single
    slots = 1 << max(single - 1, 0).bit_length()
    wide_values, single_values = V.new_zeros(packed.m, max(wide, 1)), V.new_zeros(max(single, 1), packed.m)
    wide_values[: len(V), :beside] = V[:, :beside]
    single_values[:single, : len(V)] = V[:, beside:].T
    tiling = tiling or _tiling(packed, wide)
    splits, columns_each = _splits(packed, tiling)
    wide_out, single_out = (
        torch.empty(splits, *shape, dtype=torch.float64, device=V.device)
        for shape in ((packed.n, max(wide, 1)), (slots, packed.n))
    )
    _kernels().product_kernel[(packed.n // tiling.rows, splits)](
        packed.data,
        wide_values,
        single_values,
        wide_out,
        single_out,
        packed.n,
        packed.m,
        columns_each,
        STEPS=packed.steps,
        N_STEPS=len(packed.steps),
        WIDE=wide,
        SINGLE=single,
        SLOTS=slots,
        ROWS=tiling.rows,
        COLUMNS=tiling.columns,
        num_warps=tiling.warps,
        enable_fp_fusion=True,
    )
    found = [wide_out[..., :beside].sum(0)] if wide else []
    found += [single_out[:, :single].sum(0).T] if single else []
    return torch.cat(found, 1)


def _layout(s: int) -> tuple[int, int]:
    """Return how many vectors are multiplied side by side (a power of two with padding, or none) and one by one."""
    if s <= FEW:
        return 0, s
    fitting = next((wide for wide in (64, 32, 16) if 0 <= s - wide <= FEW), 0)
    return (fitting, s - fitting) if fitting else (max(16, 1 << (s - 1).bit_length()), 0)


def _splits(packed: Packed, tiling: Tiling) -> tuple[int, int]:
    """Return into how many parts the columns are split, and how many columns each part has."""
    blocks = packed.m // tiling.columns
    wanted = min(max(INSTANCES * tiling.rows // packed.n, 1), blocks)
    each = -(-blocks // wanted)
    return -(-blocks // each), each * tiling.columns


def _kernels() -> Any:
    from gigagp.products import triton_kernels

    return triton_kernels


def _tiling(packed: Packed, beside: int) -> Tiling:
    """Return tiles that leave room in the registers for the sums of ``beside`` columns and their rounding errors.

    For one step in float32 they were the quickest of eight shapes on an H100 (1, 17 and 65 vectors, ten inputs); one
    that does not fit the registers took thirty times as long. The others follow from what the compiler reports for
    compute capabilities 9.0 and 8.0 (``python benchmarks/gpu_registers.py``): none of these spills.
    """
    if len(packed.steps) > 1:
        return Tiling(64, 32, 8)
    if packed.dtype == torch.float64:
        return Tiling(64, 32, 4 if beside <= 16 else 8)
    return Tiling(64, 32, 4) if beside <= 16 else Tiling(32, 64, 4)


def _gradient_tiling(packed: Packed) -> Tiling:
    """Return tiles for gradients, of which no times are known."""
    is_small = len(packed.steps) == 1 and packed.dtype == torch.float32
    return Tiling(64, 64 if is_small else 32, 8)


def _check_runs_here(X: Tensor) -> None:
    if X.device.type != "cuda" and not _kernels().INTERPRETED:
        raise InvalidInputError(
            f"X of TritonTiles must be on a CUDA device; got {X.device}. For Triton's interpreter on the CPU set the "
            "environment variable TRITON_INTERPRET=1 before triton is imported."
        )


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which kernels start on a device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
