"""The GPU kernels of `TritonTiles`. Only that module imports this one, which needs triton.

A program instance owns ROWS rows of the kernel matrix and walks over blocks of COLUMNS columns. It computes squared
distances (or inner products) of two blocks of points, profiles and steps in registers, then the product with the
vectors or the sums of a gradient. No tile is ever written to memory. In float32, sums over tiles carry their rounding
errors along, and become float64 at the end of the walk. Nothing depends on the order in which instances run.

Points are stored by coordinate, shape (coordinates, points), padded with zeros so that no load needs a mask. Names in
capitals are known at compile time: a new tree of kernels or another number of inputs needs a new compilation, and new
hyperparameters do not. ``data`` is that of `triton_packing.Packed`, n and m are numbers of points with padding, and a
step is (operation, a, b, profile, method, first coordinate, coordinates together, single ones, chunk).
"""
# mypy: ignore-errors
# (Triton compiles these functions from their source, which a type checker cannot follow.)

from __future__ import annotations

import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from gigagp.kernels import distances
from gigagp.kernels.fused import Profile
from gigagp.products.program import Operation
from gigagp.products.triton_packing import Method

RBF = tl.constexpr(Profile.RBF.value)
MATERN_12 = tl.constexpr(Profile.MATERN_12.value)
MATERN_32 = tl.constexpr(Profile.MATERN_32.value)
MATERN_52 = tl.constexpr(Profile.MATERN_52.value)
RATIONAL_QUADRATIC = tl.constexpr(Profile.RATIONAL_QUADRATIC.value)
DOT = tl.constexpr(Profile.DOT.value)
TERM = tl.constexpr(Operation.TERM.value)
ADD = tl.constexpr(Operation.ADD.value)
MULTIPLY = tl.constexpr(Operation.MULTIPLY.value)
TWO_PART_DIFFERENCES = tl.constexpr(Method.TWO_PART_DIFFERENCES.value)
TF32_PRODUCTS = tl.constexpr(Method.TF32_PRODUCTS.value)
SPLIT_PRODUCTS = tl.constexpr(Method.SPLIT_PRODUCTS.value)
#: Numbers of each step in ``data[6]``: alpha, a_factor, b_factor, and the constant factor of d kernel / d value.
NUMBERS = tl.constexpr(4)
#: Larger squared distances are clipped: every profile is zero there, and infinity times zero would be NaN.
FARTHEST = tl.constexpr(distances.FARTHEST)
#: Smaller ones are raised: their root is far below the rounding error of 1, and division by it stays finite.
NEAREST = tl.constexpr(1e-30)


@triton.jit
def inner_products(data, n, m, i, j, total, STEPS: tl.constexpr, K: tl.constexpr):
    """Add ``e'f`` of step K: most coordinates by matrix products of chunks, and the few behind them one by one.

    In SPLIT_PRODUCTS points are sums of two bfloat16 numbers, and the product of the two small ones is left out.
    """
    dtype: tl.constexpr = data[0].dtype.element_ty
    METHOD: tl.constexpr = STEPS[K][4]
    FIRST: tl.constexpr = STEPS[K][5]
    TOGETHER: tl.constexpr = STEPS[K][6]
    SINGLE: tl.constexpr = STEPS[K][7]
    CHUNK: tl.constexpr = STEPS[K][8]
    for k in range(0, TOGETHER, CHUNK):
        at = (FIRST + k + tl.arange(0, CHUNK)).to(tl.int64)
        at_left, at_right = at[None, :] * n + i[:, None], at[:, None] * m + j[None, :]
        e, f = tl.load(data[0] + at_left), tl.load(data[3] + at_right)
        if METHOD >= SPLIT_PRODUCTS:
            e_rest, f_rest = tl.load(data[1] + at_left), tl.load(data[4] + at_right)
            if METHOD == SPLIT_PRODUCTS:
                e, e_rest = e.to(tl.bfloat16), e_rest.to(tl.bfloat16)
                f, f_rest = f.to(tl.bfloat16), f_rest.to(tl.bfloat16)
            total = tl.dot(e, f_rest, total, input_precision="ieee", out_dtype=dtype)
            total = tl.dot(e_rest, f, total, input_precision="ieee", out_dtype=dtype)
            total = tl.dot(e, f, total, input_precision="ieee", out_dtype=dtype)
        elif METHOD == TF32_PRODUCTS:
            total = tl.dot(e, f, total, input_precision="tf32", out_dtype=dtype)
        else:
            total = tl.dot(e, f, total, input_precision="ieee", out_dtype=dtype)
    first = tl.full((), FIRST + TOGETHER, tl.int64)
    for k in tl.static_range(SINGLE):
        at_left, at_right = (first + k) * n + i, (first + k) * m + j
        e, f = tl.load(data[0] + at_left), tl.load(data[3] + at_right)
        if METHOD >= SPLIT_PRODUCTS:
            e, f = e + tl.load(data[1] + at_left), f + tl.load(data[4] + at_right)
        total += e[:, None] * f[None, :]
    return total


@triton.jit
def squared_differences(data, n, m, i, j, total, STEPS: tl.constexpr, K: tl.constexpr):
    """Add ``sum_k (e_k - f_k)^2`` of step K. In TWO_PART_DIFFERENCES each coordinate is the sum of two numbers."""
    METHOD: tl.constexpr = STEPS[K][4]
    FIRST: tl.constexpr = STEPS[K][5]
    INPUTS: tl.constexpr = STEPS[K][7]
    at_left, at_right = tl.full((), FIRST, tl.int64) * n + i, tl.full((), FIRST, tl.int64) * m + j
    for _ in range(INPUTS):  # not unrolled: the compiler would take minutes for a hundred inputs
        d = tl.load(data[0] + at_left)[:, None] - tl.load(data[3] + at_right)[None, :]
        if METHOD == TWO_PART_DIFFERENCES:
            d += tl.load(data[1] + at_left)[:, None] - tl.load(data[4] + at_right)[None, :]
        total += d * d
        at_left += n
        at_right += m
    return total


@triton.jit
def term_argument(data, n, m, i, j, STEPS: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the argument of the profile of step K, a term."""
    zero = tl.full((ROWS, COLUMNS), 0.0, data[0].dtype.element_ty)
    NUMBER: tl.constexpr = STEPS[K][1]
    PROFILE: tl.constexpr = STEPS[K][3]
    METHOD: tl.constexpr = STEPS[K][4]
    if METHOD <= TWO_PART_DIFFERENCES:
        p = squared_differences(data, n, m, i, j, zero, STEPS, K)
    else:
        p = inner_products(data, n, m, i, j, zero, STEPS, K)
        if PROFILE != DOT:
            term = tl.full((), NUMBER, tl.int64)
            e_squares, f_squares = tl.load(data[2] + term * n + i), tl.load(data[5] + term * m + j)
            p = (e_squares[:, None] + f_squares[None, :]) - 2 * p
    return p


@triton.jit
def clamped(p):
    """Return squared distances within the range of every profile; NaN stays NaN."""
    p = tl.maximum(p, NEAREST, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(p, FARTHEST, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def log_beyond_one(p):
    """Return ``log(1 + p)`` for p >= 0, exact to rounding also where 1 + p rounds p away (Goldberg 1991, Thm. 4)."""
    u = 1 + p
    rounded = u - 1
    return tl.where(rounded > 0, tl.log(u) * (p / tl.where(rounded > 0, rounded, 1.0)), p)


@triton.jit
def profile_value(p, alpha, PROFILE: tl.constexpr):
    """Return a profile's value."""
    if PROFILE == DOT:
        value = p
    elif PROFILE == RBF:
        value = tl.exp(-clamped(p))
    elif PROFILE == RATIONAL_QUADRATIC:
        value = tl.exp(-alpha * log_beyond_one(clamped(p)))
    else:
        t = tl.sqrt(clamped(p))
        e = tl.exp(-t)
        if PROFILE == MATERN_12:
            value = e
        elif PROFILE == MATERN_32:
            value = t * e + e
        else:
            tl.static_assert(PROFILE == MATERN_52, "a profile without a formula")
            value = (t * (t * (1 / 3) + 1) + 1) * e
    return value


@triton.jit
def profile_derivatives(p, alpha, PROFILE: tl.constexpr):
    """Return a profile's value, its slope in p, and its derivative in alpha, which is zero for most profiles."""
    by_alpha = tl.full(p.shape, 0.0, p.dtype)
    if PROFILE == DOT:
        value = p
        slope = by_alpha + 1
    elif PROFILE == RBF:
        value = tl.exp(-clamped(p))
        slope = -value
    elif PROFILE == RATIONAL_QUADRATIC:
        p = clamped(p)
        log = log_beyond_one(p)
        share = 1 / (1 + p)
        value = tl.exp(-alpha * log)
        slope = -alpha * value * share
        by_alpha = value * (p * share - log)
    else:
        # d/dp of the profile of order j is -1 / (4 j - 2) times that of order j - 1, for p = t^2, j = nu - 1/2
        t = tl.sqrt(clamped(p))
        e = tl.exp(-t)
        if PROFILE == MATERN_12:
            value = e
            slope = tl.where(p > 0, -0.5 * e / t, 0.0)  # infinite at coincident points, where its factor is 0
        elif PROFILE == MATERN_32:
            value = t * e + e
            slope = -0.5 * e
        else:
            tl.static_assert(PROFILE == MATERN_52, "a profile without a formula")
            slope = t * e + e
            value = t * t * e * (1 / 3) + slope
            slope = slope * (-1 / 6)
    return value, slope, by_alpha


@triton.jit
def step_value(
    values, data, n, m, i, j, STEPS: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Return the value of step K from the values before it."""
    OPERATION: tl.constexpr = STEPS[K][0]
    A: tl.constexpr = STEPS[K][1]
    B: tl.constexpr = STEPS[K][2]
    PROFILE: tl.constexpr = STEPS[K][3]
    numbers = data[6] + K * NUMBERS
    if OPERATION == TERM:
        p = term_argument(data, n, m, i, j, STEPS, K, ROWS, COLUMNS)
        value = profile_value(p, tl.load(numbers), PROFILE)
    elif OPERATION == ADD:
        value = tl.load(numbers + 1) * values[A] + tl.load(numbers + 2) * values[B]
    elif OPERATION == MULTIPLY:
        value = values[A] * values[B]
    else:
        value = tl.full((ROWS, COLUMNS), 1.0, data[0].dtype.element_ty)
    return value


@triton.jit
def step_values(
    data, n, m, i, j, STEPS: tl.constexpr, N_STEPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Return the value of every step of the program."""
    values = ()
    for k in tl.static_range(N_STEPS):
        value = step_value(values, data, n, m, i, j, STEPS, k, ROWS, COLUMNS)
        values = values + (value,)  # noqa: RUF005 (Triton has no unpacking)
    return values


@triton.jit
def add_exactly(total, error, x):
    """Return ``total + x``, and what rounding has taken from it so far (Knuth's two-sum); float64 goes without."""
    new = total + x
    if x.dtype == tl.float32:
        there = new - total
        error += (total - (new - there)) + (x - there)
    return new, error


@triton.jit
def product_kernel(
    data,
    wide,
    single,
    wide_out,
    single_out,
    n,
    m,
    columns_each,
    STEPS: tl.constexpr,
    N_STEPS: tl.constexpr,
    WIDE: tl.constexpr,
    SINGLE: tl.constexpr,
    SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Multiply with WIDE columns side by side, ``wide`` (m, WIDE), and a few others, ``single`` (SINGLE, m).

    Instance (a, b) takes rows from a * ROWS on and ``columns_each`` columns from b * columns_each on. Its results go to
    ``wide_out`` (splits, n, WIDE) and ``single_out`` (splits, SLOTS, n). SLOTS is the power of two at or above SINGLE.
    """
    dtype: tl.constexpr = data[0].dtype.element_ty
    i = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    begin = tl.program_id(1) * columns_each
    slot = tl.arange(0, SLOTS)
    if WIDE:
        vector = tl.arange(0, WIDE)
        wide_total = tl.full((ROWS, WIDE), 0.0, dtype)
        wide_error = wide_total
    if SINGLE:
        total = tl.full((ROWS, SLOTS), 0.0, dtype)
        error = total
    for start in range(begin, tl.minimum(begin + columns_each, m), COLUMNS):
        j = (start + tl.arange(0, COLUMNS)).to(tl.int64)
        tile = step_values(data, n, m, i, j, STEPS, N_STEPS, ROWS, COLUMNS)[N_STEPS - 1]
        if WIDE:
            v = tl.load(wide + j[:, None] * WIDE + vector[None, :])
            # three products of tensor cores, which round as float32 does (2e-7 of the largest number)
            found = tl.dot(tile, v, input_precision="tf32x3", out_dtype=dtype)
            wide_total, wide_error = add_exactly(wide_total, wide_error, found)
        if SINGLE:
            found = tl.full((ROWS, SLOTS), 0.0, dtype)
            at = single + j
            for q in tl.static_range(SINGLE):
                sums = tl.sum(tile * tl.load(at)[None, :], 1)
                found = tl.where(slot[None, :] == q, sums[:, None], found)
                at += m
            total, error = add_exactly(total, error, found)
    split = tl.program_id(1).to(tl.int64)
    if WIDE:
        at = (split * n + i[:, None]) * WIDE + vector[None, :]
        tl.store(wide_out + at, wide_total.to(tl.float64) + wide_error.to(tl.float64))
    if SINGLE:
        at = (split * SLOTS + slot[None, :]) * n + i[:, None]
        tl.store(single_out + at, total.to(tl.float64) + error.to(tl.float64))


@triton.jit
def dense_kernel(
    data,
    factor,
    out,
    n,
    m,
    n_rows,
    n_columns,
    STEPS: tl.constexpr,
    N_STEPS: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Write one square tile of ``out`` (n_rows, n_columns), and with SYMMETRIC its mirror image, from one half."""
    blocks = m // ROWS
    a, b = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    if not SYMMETRIC or a <= b:
        i, j = (a * ROWS + tl.arange(0, ROWS)).to(tl.int64), (b * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        tile = step_values(data, n, m, i, j, STEPS, N_STEPS, ROWS, ROWS)[N_STEPS - 1] * tl.load(factor)
        inside = (i[:, None] < n_rows) & (j[None, :] < n_columns)
        if SYMMETRIC:  # within a tile too: a matrix product may round its two halves differently
            inside = inside & (i[:, None] <= j[None, :])
            tl.store(out + j[None, :] * n_columns + i[:, None], tile, mask=inside)
        tl.store(out + i[:, None] * n_columns + j[None, :], tile, mask=inside)


@triton.jit
def gradient_kernel(
    data,
    left_weights,
    right_weights,
    row_out,
    sums_out,
    cross_out,
    n,
    m,
    columns_each,
    row_stride,
    column_stride,
    n_rows,
    n_columns,
    STEPS: tl.constexpr,
    N_STEPS: tl.constexpr,
    TARGET: tl.constexpr,
    FACTORS: tl.constexpr,
    N_FACTORS: tl.constexpr,
    WEIGHTS: tl.constexpr,
    LOW_RANK: tl.constexpr,
    CROSS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Compute the sums that the derivatives of step TARGET need. A are the weights, g is its value, p its argument.

    The derivative of the kernel in g is a number times the values of the steps FACTORS. LOW_RANK weights are inner
    products, and WEIGHTS[0] is their step. Others are a matrix ``left_weights`` (n_rows, n_columns) with strides.

    Instance (a, b, c) writes ``row_out`` (splits, n), the row sums of ``S = A dk/dg dg/dp``; ``sums_out``
    (splits, instances, 2), sums of ``A dk/dg g`` and ``A dk/dg dg/dalpha``; and CROSS numbers of ``cross_out``
    (splits, instances, coordinates), sums of ``S_ij e_ik f_jk`` for the term's coordinates k from c * CROSS on.
    """
    dtype: tl.constexpr = data[0].dtype.element_ty
    IS_TERM: tl.constexpr = STEPS[TARGET][0] == TERM
    PROFILE: tl.constexpr = STEPS[TARGET][3]
    FIRST: tl.constexpr = STEPS[TARGET][5]
    a, b, c = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i = (a * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    begin = b * columns_each
    rows = tl.full((ROWS,), 0.0, tl.float64)
    value_sums = rows
    alpha_sums = rows
    numbers = data[6] + TARGET * NUMBERS
    if CROSS:
        coordinate = (c * CROSS + tl.arange(0, CROSS)).to(tl.int64)
        total = tl.full((ROWS, CROSS), 0.0, dtype)
        error = total
    for start in range(begin, tl.minimum(begin + columns_each, m), COLUMNS):
        j = (start + tl.arange(0, COLUMNS)).to(tl.int64)
        adjoint = tl.full((ROWS, COLUMNS), 0.0, dtype)
        if LOW_RANK:
            vectors = (left_weights, left_weights, left_weights, right_weights, right_weights, right_weights)
            adjoint = inner_products(vectors, n, m, i, j, adjoint, WEIGHTS, 0)
        else:
            inside = (i[:, None] < n_rows) & (j[None, :] < n_columns)
            at = left_weights + i[:, None] * row_stride + j[None, :] * column_stride
            adjoint = tl.load(at, mask=inside, other=0.0)
        adjoint *= tl.load(numbers + 3)
        if N_FACTORS:
            values = step_values(data, n, m, i, j, STEPS, N_STEPS, ROWS, COLUMNS)
            for q in tl.static_range(N_FACTORS):
                adjoint *= values[FACTORS[q]]
        if IS_TERM:
            p = term_argument(data, n, m, i, j, STEPS, TARGET, ROWS, COLUMNS)
            value, slope, by_alpha = profile_derivatives(p, tl.load(numbers), PROFILE)
            weighted = adjoint * slope
            rows += tl.sum(weighted, 1).to(tl.float64)
            value_sums += tl.sum(adjoint * value, 1).to(tl.float64)
            if PROFILE == RATIONAL_QUADRATIC:
                alpha_sums += tl.sum(adjoint * by_alpha, 1).to(tl.float64)
            if CROSS:
                f = tl.load(data[3] + (FIRST + coordinate[None, :]) * m + j[:, None])
                total, error = add_exactly(total, error, tl.dot(weighted, f, input_precision="ieee", out_dtype=dtype))
        else:
            value_sums += tl.sum(adjoint, 1).to(tl.float64)
    place = b.to(tl.int64) * tl.num_programs(0) + a
    if c == 0:
        tl.store(row_out + b.to(tl.int64) * n + i, rows)
        tl.store(sums_out + place * 2, tl.sum(value_sums, 0))
        tl.store(sums_out + place * 2 + 1, tl.sum(alpha_sums, 0))
    if CROSS:
        e = tl.load(data[0] + (FIRST + coordinate[None, :]) * n + i[:, None]).to(tl.float64)
        found = tl.sum((total.to(tl.float64) + error.to(tl.float64)) * e, 0)
        tl.store(cross_out + place * CROSS * tl.num_programs(2) + coordinate, found)


#: Whether Triton's interpreter runs the kernels, on the CPU: with the environment variable TRITON_INTERPRET=1.
INTERPRETED = not isinstance(product_kernel, JITFunction)
