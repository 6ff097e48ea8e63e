// The tile kernels of one instruction set; see variant.h.
//
// A tile is `tile_rows` times `tile_columns` entries of a kernel matrix. It is computed in strips of ROWS rows, which
// stay in the first-level cache: squared distances as a small matrix product in registers, their profile, then products
// with single columns. Products with many columns follow once the whole tile is in the second-level cache.
// Sums over a tile are in the precision of the entries, sums over tiles in float64.

#include "variant.h"

#include "kernels.h"

namespace gigagp {
namespace {

#include "simd.h"

#include "profiles.h"

// Points in a left panel: together with two SIMD vectors of right points they make as many sums as registers hold.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int ROWS = 12;
#else
constexpr int ROWS = 4;
#endif
constexpr long TILE_ROWS = 96, TILE_COLUMNS = 256;

INLINE long smaller(long a, long b) { return a < b ? a : b; }

// Add a sum over a tile to sums over tiles.
INLINE void flush(double *total, Doubles sum) {
    Simd<double>::store(total, Simd<double>::load(total) + sum);
}
INLINE void flush(double *total, Floats sum) {
    typedef float Half __attribute__((vector_size(GIGAGP_BYTES / 2)));
    union {
        Floats whole;
        Half halves[2];
    } parts = {sum};
    flush(total, __builtin_convertvector(parts.halves[0], Doubles));
    flush(total + Simd<double>::lanes, __builtin_convertvector(parts.halves[1], Doubles));
}

template <class T>
struct Tiles {
    typedef Simd<T> S;
    typedef typename S::Vector Vector;
    static constexpr int LANES = S::lanes;
    static constexpr int COLUMNS = 2 * LANES;
    static constexpr long STRIP = ROWS * TILE_COLUMNS;

    // Values ---------------------------------------------------------------------------------------------------------

    // The profile of |e|^2 + |f|^2 - 2 e'f, or of sum (e - f)^2, for one left and one right panel; in registers.
    template <int PROFILE, bool DIRECT>
    INLINE void entries(const Term<T> &term, const T *e, const T *e_squares, const T *f, const T *f_squares, T *out) {
        Vector p[ROWS][2];
        if (DIRECT) {
            for (int i = 0; i < ROWS; i++) p[i][0] = p[i][1] = Vector{};
        } else {
            Vector s0 = S::load(f_squares), s1 = S::load(f_squares + LANES);
#pragma GCC unroll 12
            for (int i = 0; i < ROWS; i++) p[i][0] = s0 + e_squares[i], p[i][1] = s1 + e_squares[i];
        }
        for (int k = 0; k < term.inputs; k++, e += ROWS, f += COLUMNS) {
            Vector f0 = S::load(f), f1 = S::load(f + LANES);
#pragma GCC unroll 12
            for (int i = 0; i < ROWS; i++) {
                Vector x = S::all(e[i]);
                if (DIRECT) {
                    Vector d0 = x - f0, d1 = x - f1;
                    p[i][0] = p[i][0] + d0 * d0, p[i][1] = p[i][1] + d1 * d1;
                } else {
                    p[i][0] = p[i][0] - x * f0, p[i][1] = p[i][1] - x * f1;
                }
            }
        }
#pragma GCC unroll 12
        for (int i = 0; i < ROWS; i++) {
            S::store(out + i * TILE_COLUMNS, ProfileOf<PROFILE, T>::value(p[i][0], term.alpha, DIRECT));
            S::store(out + i * TILE_COLUMNS + LANES, ProfileOf<PROFILE, T>::value(p[i][1], term.alpha, DIRECT));
        }
    }

    // A strip of a profile from row i on, columns j to j + n. The profile DOT returns its argument: the inner products
    // of a DOT term, the squared distances of any other.
    template <int PROFILE>
    static void profile_strip(const Term<T> &term, long i, long j, long n, T *out) {
        const T *e = term.left + i * term.all_inputs, *e_squares = term.left_squares + i;
        for (long c = 0; c < n; c += COLUMNS) {
            const T *f = term.right + (j + c) * term.all_inputs, *f_squares = term.right_squares + j + c;
            if (term.direct)
                entries<PROFILE, true>(term, e, e_squares, f, f_squares, out + c);
            else
                entries<PROFILE, false>(term, e, e_squares, f, f_squares, out + c);
        }
    }

    static void term_strip(const Term<T> &term, long i, long j, long n, T *out) {
        switch (term.profile) {
#define GIGAGP_CASE(PROFILE) \
    case PROFILE: return profile_strip<PROFILE>(term, i, j, n, out);
            GIGAGP_PROFILES(GIGAGP_CASE)
#undef GIGAGP_CASE
        }
    }

    template <class F>
    INLINE void each_vector(long n, F f) {
        for (int i = 0; i < ROWS; i++)
            for (long c = 0; c < n; c += LANES) f(i * TILE_COLUMNS + c);
    }

    static void combine(const Step<T> &step, long n, const T *a, const T *b, T *out) {
        Vector fa = S::all(step.a_factor), fb = S::all(step.b_factor);
        if (step.operation == ADD)
            each_vector(n, [=](long at) { S::store(out + at, fa * S::load(a + at) + fb * S::load(b + at)); });
        else if (step.operation == MULTIPLY)
            each_vector(n, [=](long at) { S::store(out + at, S::load(a + at) * S::load(b + at)); });
        else
            each_vector(n, [=](long at) { S::store(out + at, S::all(1)); });
    }

    // A strip of the kernel; `values` holds a strip for every step but the last.
    static void kernel_strip(const Program<T> &program, long i, long j, long n, T *out, T *values) {
        for (int k = 0; k < program.n_steps; k++) {
            const Step<T> &step = program.steps[k];
            T *at = k + 1 == program.n_steps ? out : values + k * STRIP;
            if (step.operation == TERM)
                term_strip(program.terms[step.a], i, j, n, at);
            else
                combine(step, n, values + step.a * STRIP, values + step.b * STRIP, at);
        }
    }

    // Products with vectors ------------------------------------------------------------------------------------------

    // total (R x Q vectors) += tile (R x n) @ vectors (n x Q vectors). TRANSPOSED takes columns of the tile as its rows.
    template <int R, int Q, bool TRANSPOSED>
    INLINE void multiply_block(long n, const T *tile, const T *vectors, double *to, long stride) {
        Vector sum[R][Q];
#pragma GCC unroll 16
        for (int i = 0; i < R; i++)
#pragma GCC unroll 4
            for (int q = 0; q < Q; q++) sum[i][q] = Vector{};
        for (long k = 0; k < n; k++) {
            Vector v[Q];
#pragma GCC unroll 4
            for (int q = 0; q < Q; q++) v[q] = S::load(vectors + k * stride + q * LANES);
#pragma GCC unroll 16
            for (int i = 0; i < R; i++) {
                Vector x = S::all(TRANSPOSED ? tile[k * TILE_COLUMNS + i] : tile[i * TILE_COLUMNS + k]);
#pragma GCC unroll 4
                for (int q = 0; q < Q; q++) sum[i][q] = sum[i][q] + x * v[q];
            }
        }
#pragma GCC unroll 16
        for (int i = 0; i < R; i++)
#pragma GCC unroll 4
            for (int q = 0; q < Q; q++) flush(to + i * stride + q * LANES, sum[i][q]);
    }

    template <int R, int Q, bool TRANSPOSED>
    static void multiply_panel(long m, long n, const T *tile, const T *vectors, double *to, long stride) {
        const long step = TRANSPOSED ? 1 : TILE_COLUMNS;
        long i = 0;
        for (; i + R <= m; i += R) multiply_block<R, Q, TRANSPOSED>(n, tile + i * step, vectors, to + i * stride, stride);
        for (; i < m; i++)
            multiply_block<1, Q, TRANSPOSED>(n, tile + i * step, vectors, to + i * stride, stride);
    }

    // total (m x wide vectors) += tile (m x n) @ vectors (n x wide vectors)
    template <bool TRANSPOSED>
    static void multiply(long m, long n, const T *tile, const T *vectors, double *total, int wide) {
        const long stride = (long)wide * LANES;
        for (int q = 0; q < wide;) {
            const T *v = vectors + q * LANES;
            double *to = total + q * LANES;
#if defined(__AVX512F__) || defined(__aarch64__)
            const int left = wide - q;
            if (left >= 4) {
                multiply_panel<6, 4, TRANSPOSED>(m, n, tile, v, to, stride), q += 4;
            } else if (left == 3) {
                multiply_panel<8, 3, TRANSPOSED>(m, n, tile, v, to, stride), q += 3;
            } else if (left == 2) {
                multiply_panel<8, 2, TRANSPOSED>(m, n, tile, v, to, stride), q += 2;
            } else {
                multiply_panel<16, 1, TRANSPOSED>(m, n, tile, v, to, stride), q += 1;
            }
#else
            if (wide - q >= 2) {
                multiply_panel<6, 2, TRANSPOSED>(m, n, tile, v, to, stride), q += 2;
            } else {
                multiply_panel<8, 1, TRANSPOSED>(m, n, tile, v, to, stride), q += 1;
            }
#endif
        }
    }

    // Products of a strip with one column: rows[i] += strip @ right and, mirrored, columns += strip' @ left.
    template <bool MIRRORED>
    static void multiply_single(long n, const T *strip, const T *right, double *rows, const T *left, T *columns) {
        Vector sum[ROWS], v[ROWS];
#pragma GCC unroll 12
        for (int i = 0; i < ROWS; i++) sum[i] = Vector{}, v[i] = MIRRORED ? S::all(left[i]) : Vector{};
        for (long c = 0; c < n; c += LANES) {
            Vector r = S::load(right + c), column = MIRRORED ? S::load(columns + c) : Vector{};
#pragma GCC unroll 12
            for (int i = 0; i < ROWS; i++) {
                Vector x = S::load(strip + i * TILE_COLUMNS + c);
                sum[i] = sum[i] + x * r;
                if (MIRRORED) column = column + x * v[i];
            }
            if (MIRRORED) S::store(columns + c, column);
        }
        for (int i = 0; i < ROWS; i++) rows[i] += total(sum[i]);
    }

    static std::size_t product_scratch(const ProductWork<T> &work) {
        return (work.program.n_steps - 1) * STRIP + TILE_ROWS * TILE_COLUMNS + (work.right.single + 1) * TILE_COLUMNS;
    }

    static void product_tile(const ProductWork<T> &work, long i, long m, long j, long n, bool mirrored, T *scratch) {
        const Vectors<T> &right = work.right, &left = work.left;
        T *tile = scratch, *columns = tile + TILE_ROWS * TILE_COLUMNS;
        T *values = columns + (right.single + 1) * TILE_COLUMNS;
        if (mirrored)
            for (long c = 0; c < right.single * TILE_COLUMNS; c++) columns[c] = 0;
        for (long r = 0; r < m; r += ROWS) {
            T *strip = right.wide ? tile + r * TILE_COLUMNS : tile;
            kernel_strip(work.program, i + r, j, n, strip, values);
            for (int s = 0; s < right.single; s++) {
                const T *v = right.single_values + s * right.stride + j;
                double *to = work.rows.single_values + s * work.rows.stride + i + r;
                if (mirrored)
                    multiply_single<true>(n, strip, v, to, left.single_values + s * left.stride + i + r,
                                          columns + s * TILE_COLUMNS);
                else
                    multiply_single<false>(n, strip, v, to, nullptr, nullptr);
            }
        }
        const long stride = (long)right.wide * LANES;
        multiply<false>(m, n, tile, right.wide_values + j * stride, work.rows.wide_values + i * stride, right.wide);
        if (!mirrored) return;
        multiply<true>(n, m, tile, left.wide_values + i * stride, work.columns.wide_values + j * stride, right.wide);
        for (int s = 0; s < right.single; s++)
            for (long c = 0; c < n; c++)
                work.columns.single_values[s * work.columns.stride + j + c] += columns[s * TILE_COLUMNS + c];
    }

    // Blocks ---------------------------------------------------------------------------------------------------------

    // Visit the tiles of a block. In a block on the diagonal of a symmetric matrix (mirrored == 2) visit the tiles above
    // the diagonal, mirrored, and the tiles on it, whole and not mirrored.
    template <class F>
    INLINE void each_tile(Block block, long tile_columns, int mirrored, F visit) {
        for (long i = block.first_row; i < block.last_row; i += TILE_ROWS) {
            const long m = smaller(TILE_ROWS, block.last_row - i);
            long j = block.first_column;
            if (mirrored == 2) {
                for (j = i; j < i + m; j += tile_columns) visit(i, m, j, smaller(tile_columns, i + m - j), false);
                j = i + m;
            }
            for (; j < block.last_column; j += tile_columns)
                visit(i, m, j, smaller(tile_columns, block.last_column - j), mirrored != 0);
        }
    }

    static void product(const ProductWork<T> &work, Block block, int mirrored, T *scratch) {
        each_tile(block, work.tile_columns, mirrored, [&](long i, long m, long j, long n, bool twice) {
            product_tile(work, i, m, j, n, twice, scratch);
        });
    }

    static std::size_t dense_scratch(const DenseWork<T> &work) { return work.program.n_steps * STRIP; }

    template <class Entry>
    INLINE void fill(const DenseWork<T> &work, Entry *out, Block block, int mirrored, T *scratch) {
        T *strip = scratch, *values = scratch + STRIP;
        each_tile(block, work.tile_columns, mirrored, [&](long i, long m, long j, long n, bool twice) {
            for (long r = 0; r < m; r += ROWS) {
                kernel_strip(work.program, i + r, j, n, strip, values);
                const long rows = smaller(ROWS, work.n_rows - i - r), columns = smaller(n, work.n_columns - j);
                const T factor = work.factor;
                for (long a = 0; a < rows; a++)
                    for (long c = 0; c < columns; c++)
                        out[(i + r + a) * work.n_columns + j + c] =
                            static_cast<Entry>(factor * strip[a * TILE_COLUMNS + c]);
                if (!twice) continue;
                for (long c = 0; c < columns; c++)
                    for (long a = 0; a < rows; a++)
                        out[(j + c) * work.n_columns + i + r + a] =
                            static_cast<Entry>(factor * strip[a * TILE_COLUMNS + c]);
            }
        });
    }

    static void dense(const DenseWork<T> &work, Block block, int mirrored, T *scratch) {
        if (work.rounded)
            fill(work, work.rounded, block, mirrored, scratch);
        else
            fill(work, work.out, block, mirrored, scratch);
    }

    // Gradients ------------------------------------------------------------------------------------------------------

    template <int PROFILE>
    static void derivative_strip(const Term<T> &term, long n, T *value, T *slope, T *by_alpha) {
        each_vector(n, [=](long at) {
            Vector v, s, a = Vector{};
            ProfileOf<PROFILE, T>::derivatives(S::load(value + at), term.alpha, v, s, a);
            S::store(value + at, v);
            S::store(slope + at, s);
            if (PROFILE == RATIONAL_QUADRATIC) S::store(by_alpha + at, a);
        });
    }

    static void term_derivatives(const Term<T> &term, long i, long j, long n, T *value, T *slope, T *by_alpha) {
        profile_strip<DOT>(term, i, j, n, value);
        switch (term.profile) {
#define GIGAGP_CASE(PROFILE) \
    case PROFILE: return derivative_strip<PROFILE>(term, n, value, slope, by_alpha);
            GIGAGP_PROFILES(GIGAGP_CASE)
#undef GIGAGP_CASE
        }
    }

    // cross[k] += sum_ij e_ik S_ij f_jk, lane by lane, for inputs k to k + INPUTS
    template <int INPUTS>
    INLINE void contract(int inputs, long n, const T *S_strip, const T *e, const T *f, Vector *cross) {
        Vector sum[ROWS][INPUTS];
#pragma GCC unroll 12
        for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 2
            for (int k = 0; k < INPUTS; k++) sum[i][k] = Vector{};
        for (long c = 0; c < n; c += COLUMNS, f += (long)inputs * COLUMNS)
#pragma GCC unroll 2
            for (int half = 0; half < COLUMNS; half += LANES) {
                Vector right[INPUTS];
#pragma GCC unroll 2
                for (int k = 0; k < INPUTS; k++) right[k] = S::load(f + k * COLUMNS + half);
#pragma GCC unroll 12
                for (int i = 0; i < ROWS; i++) {
                    Vector s = S::load(S_strip + i * TILE_COLUMNS + c + half);
#pragma GCC unroll 2
                    for (int k = 0; k < INPUTS; k++) sum[i][k] = sum[i][k] + s * right[k];
                }
            }
#pragma GCC unroll 2
        for (int k = 0; k < INPUTS; k++) {
            Vector added = cross[k];
#pragma GCC unroll 12
            for (int i = 0; i < ROWS; i++) added = added + sum[i][k] * e[k * ROWS + i];
            cross[k] = added;
        }
    }

    static int all_inputs(const Program<T> &program) {
        int total = 0;
        for (int t = 0; t < program.n_terms; t++) total += program.terms[t].all_inputs;
        return total;
    }

    static std::size_t gradient_scratch(const GradientWork<T> &work) {
        const Program<T> &p = work.program;
        return (2 * p.n_steps + 2 * p.n_terms) * STRIP + p.n_terms * TILE_COLUMNS + all_inputs(p) * LANES;
    }

    static void weight_strip(const GradientWork<T> &work, long i, long j, long n, T *out) {
        if (work.weights) return profile_strip<DOT>(*work.weights, i, j, n, out);
        for (long a = 0; a < ROWS; a++)
            for (long c = 0; c < n; c++)
                out[a * TILE_COLUMNS + c] = i + a < work.n_rows && j + c < work.n_columns
                                                ? work.dense[(i + a) * work.dense_stride + j + c]
                                                : T(0);
    }

    // Sums over one strip for one term. Its adjoint is overwritten with the weights S of squared distances.
    static void term_sums(const Term<T> &term, long i, long j, long n, T *adjoint, const T *value, const T *slope,
                          const T *by_alpha, double multiple, double *row_sums, T *column_sums, Vector *cross,
                          double &value_sum, double &alpha_sum) {
        Vector values = Vector{}, alphas = Vector{};
        for (int r = 0; r < ROWS; r++) {
            Vector row = Vector{};
            for (long c = 0; c < n; c += LANES) {
                const long at = r * TILE_COLUMNS + c;
                Vector a = S::load(adjoint + at), s = a * S::load(slope + at);
                values = values + a * S::load(value + at);
                if (term.profile == RATIONAL_QUADRATIC) alphas = alphas + a * S::load(by_alpha + at);
                row = row + s;
                S::store(column_sums + c, S::load(column_sums + c) + s);
                S::store(adjoint + at, s);
            }
            row_sums[r] += multiple * total(row);
        }
        value_sum += multiple * total(values);
        if (term.profile == RATIONAL_QUADRATIC) alpha_sum += multiple * total(alphas);
        const int inputs = term.all_inputs;
        const T *e = term.left + i * inputs, *f = term.right + j * inputs;
        int k = 0;
        for (; k + 2 <= inputs; k += 2) contract<2>(inputs, n, adjoint, e + k * ROWS, f + k * COLUMNS, cross + k);
        for (; k < inputs; k++) contract<1>(inputs, n, adjoint, e + k * ROWS, f + k * COLUMNS, cross + k);
    }

    static void gradient_tile(const GradientWork<T> &work, long i, long m, long j, long n, bool twice,
                              GradientSums sums, T *scratch) {
        const Program<T> &program = work.program;
        const double multiple = twice ? 2.0 : 1.0;
        T *values = scratch, *adjoints = values + program.n_steps * STRIP;
        T *slopes = adjoints + program.n_steps * STRIP, *alphas = slopes + program.n_terms * STRIP;
        T *column_sums = alphas + program.n_terms * STRIP;
        Vector *cross = (Vector *)(column_sums + program.n_terms * TILE_COLUMNS);
        for (long c = 0; c < program.n_terms * TILE_COLUMNS; c++) column_sums[c] = 0;
        for (int k = 0; k < all_inputs(program); k++) cross[k] = Vector{};
        const int last = program.n_steps - 1;
        for (long r = 0; r < m; r += ROWS) {
            for (int k = 0; k <= last; k++) {
                const Step<T> &step = program.steps[k];
                T *value = values + k * STRIP;
                if (step.operation == TERM)
                    term_derivatives(program.terms[step.a], i + r, j, n, value, slopes + step.a * STRIP,
                                     alphas + step.a * STRIP);
                else
                    combine(step, n, values + step.a * STRIP, values + step.b * STRIP, value);
            }
            weight_strip(work, i + r, j, n, adjoints + last * STRIP);
            Vector *cross_of_term = cross + all_inputs(program);
            for (int k = last; k >= 0; k--) {  // exactly one later step has used each value
                const Step<T> &step = program.steps[k];
                T *adjoint = adjoints + k * STRIP;
                const T *a = values + step.a * STRIP, *b = values + step.b * STRIP;
                T *to_a = adjoints + step.a * STRIP, *to_b = adjoints + step.b * STRIP;
                if (step.operation == ADD) {
                    Vector fa = S::all(step.a_factor), fb = S::all(step.b_factor);
                    each_vector(n, [=](long at) {
                        Vector passed = S::load(adjoint + at);
                        S::store(to_a + at, fa * passed);
                        S::store(to_b + at, fb * passed);
                    });
                } else if (step.operation == MULTIPLY) {
                    each_vector(n, [=](long at) {
                        Vector passed = S::load(adjoint + at);
                        S::store(to_a + at, S::load(b + at) * passed);
                        S::store(to_b + at, S::load(a + at) * passed);
                    });
                } else if (step.operation == ONE) {
                    Vector sum = Vector{};
                    each_vector(n, [&](long at) { sum = sum + S::load(adjoint + at); });
                    sums.values[k] += multiple * total(sum);
                } else {
                    const int t = step.a;
                    cross_of_term -= program.terms[t].all_inputs;
                    term_sums(program.terms[t], i + r, j, n, adjoint, values + k * STRIP, slopes + t * STRIP,
                              alphas + t * STRIP, multiple, work.row_sums + t * work.row_stride + i + r,
                              column_sums + t * TILE_COLUMNS, cross_of_term, sums.values[k], sums.alphas[t]);
                }
            }
        }
        for (int t = 0; t < program.n_terms; t++)
            for (long c = 0; c < n; c++)
                work.column_sums[t * work.column_stride + j + c] += multiple * column_sums[t * TILE_COLUMNS + c];
        for (int t = 0, k = 0; t < program.n_terms; t++)
            for (int x = 0; x < program.terms[t].all_inputs; x++, k++)
                sums.cross[k] += multiple / program.terms[t].left_scale * total(cross[k]);
    }

    static void gradient(const GradientWork<T> &work, Block block, int mirrored, GradientSums sums, T *scratch) {
        each_tile(block, work.tile_columns, mirrored, [&](long i, long m, long j, long n, bool twice) {
            gradient_tile(work, i, m, j, n, twice, sums, scratch);
        });
    }

    static Kernels<T> table() {
        return {LANES,         ROWS,  COLUMNS,         TILE_ROWS, TILE_COLUMNS,    product_scratch, product,
                dense_scratch, dense, gradient_scratch, gradient};
    }
};

}  // namespace

const InstructionSet &GIGAGP_VARIANT_NAMED(kernels)() {
    static const InstructionSet kernels = {GIGAGP_VARIANT_WORDS, Tiles<float>::table(), Tiles<double>::table()};
    return kernels;
}

}  // namespace gigagp
