// The passes over data on a grid for one instruction set; see variant.h.

#include "variant.h"

#include <cstring>

#include "grid.h"

namespace gigagp {
namespace {

#include "simd.h"

// 64 random bits for each x: SplitMix64, like `random_bits` of gigagp/settings/indexed_random.py with key 0.
INLINE std::uint64_t random_bits(std::uint64_t x) {
    x = (x + 1) * 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

INLINE std::uint64_t row_bits(const double *x, int inputs, const double *y, int targets, std::uint64_t seed) {
    std::uint64_t hash = seed, bits;
    for (int k = 0; k < inputs + targets; k++) {
        const double value = (k < inputs ? x[k] : y[k - inputs]) + 0.0;  // -0 and 0 are the same number
        std::memcpy(&bits, &value, 8);
        hash = random_bits(hash ^ bits);
    }
    return hash;
}

void hash(const double *X, int inputs, const double *Y, int targets, std::uint64_t seed, long n, std::uint64_t *out) {
    for (long i = 0; i < n; i++) out[i] = row_bits(X + i * inputs, inputs, Y + i * targets, targets, seed);
}

template <int LANES>
struct Lanes {
    typedef double Vector __attribute__((vector_size(8 * LANES)));
    typedef double Unaligned __attribute__((vector_size(8 * LANES), aligned(8), may_alias));
    INLINE Vector load(const double *p) { return *(const Unaligned *)p; }
    INLINE void store(double *p, Vector x) { *(Unaligned *)p = x; }
    INLINE Vector all(double x) { return x - Vector{}; }
};

constexpr int NATIVE = Simd<double>::lanes;
constexpr int least(int a, int b) { return a < b ? a : b; }
constexpr int power(int base, int exponent) { return exponent == 0 ? 1 : base * power(base, exponent - 1); }

// SIMD vectors of sums that stay in registers at a time.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int REGISTERS = 25;
#else
constexpr int REGISTERS = 12;
#endif
constexpr int BATCH = 16;  // rows of a cell that are handled at a time

template <int D, int WIDTH>
struct Pass {
    static constexpr int POWERS = 2 * WIDTH - 1;             // powers of one input
    static constexpr int INNER = WIDTH == 4 ? 8 : 4;         // powers of the last input, padded
    static constexpr int OUTER = power(POWERS, D - 1);       // products of powers of all other inputs
    static constexpr int NODES = power(WIDTH, D);            // nodes of a stencil
    static constexpr long MOMENTS = static_cast<long>(OUTER) * INNER;

    static long moments(const GridShape &) { return MOMENTS; }

    // Where rows are ------------------------------------------------------------------------------------------------

    static void locate(const GridShape &grid, const double *X, const double *Y, int targets, int probes,
                       std::uint64_t seed, long n, std::uint32_t *cells, double *records) {
        const int stride = D + targets + (probes > 0);
        double last[D];
        for (int k = 0; k < D; k++) last[k] = static_cast<double>(grid.cells[k] - 1);
        for (long i = 0; i < n; i++, X += D, Y += targets, records += stride) {
            long cell = 0;
            for (int k = 0; k < D; k++) {
                const double position = (X[k] - grid.lower[k]) / grid.spacing[k] - grid.before;
                const double start = __builtin_fmax(0.0, __builtin_fmin(__builtin_floor(position), last[k]));
                records[k] = position - start - 0.5;
                cell += static_cast<long>(start) * grid.cell_strides[k];
            }
            cells[i] = static_cast<std::uint32_t>(cell);
            for (int t = 0; t < targets; t++) records[D + t] = Y[t];
            if (probes > 0) {
                const std::uint64_t hash = row_bits(X, D, Y, targets, seed);
                std::memcpy(records + D + targets, &hash, 8);
            }
        }
    }

    // Sums over the rows of a cell ------------------------------------------------------------------------------------

    struct Batch {
        double outer[BATCH][OUTER + 8];   // products of powers of all inputs but the last
        double inner[BATCH][INNER];
        double weights[BATCH][NODES];
    };

    INLINE void powers(double x, double *to) {
        to[0] = 1;
        to[1] = x;
        to[2] = x * x;
        if (WIDTH == 4) {
            to[3] = to[2] * x;
            to[4] = to[2] * to[2];
            to[5] = to[4] * x;
            to[6] = to[3] * to[3];
        }
        for (int p = POWERS; p < INNER; p++) to[p] = 0;
    }

    INLINE void stencil(double x, double *to) {  // the polynomials of gigagp/operators/grid/statistics/interpolation.py
        if (WIDTH == 4) {
            to[0] = ((-0.5 * x + 0.25) * x + 0.125) * x - 0.0625;
            to[1] = ((1.5 * x - 0.25) * x - 1.375) * x + 0.5625;
            to[2] = ((-1.5 * x - 0.25) * x + 1.375) * x + 0.5625;
            to[3] = ((0.5 * x + 0.25) * x - 0.125) * x - 0.0625;
        } else {
            to[0] = 0.5 - x;
            to[1] = 0.5 + x;
        }
    }

    // to[a][:] = left[a] * right[:] for rows of EACH numbers. This writes vectors of PADDED numbers: the next row
    // overwrites what lies beyond a row, and there is room after the last one.
    template <int COUNT, int EACH, int PADDED>
    INLINE void tensor(const double *left, const double *right, double *to) {
        constexpr int N = least(NATIVE, PADDED);
        typedef Lanes<N> L;
#pragma GCC unroll 64
        for (int a = 0; a < COUNT; a++)
#pragma GCC unroll 4
            for (int v = 0; v < PADDED; v += N) L::store(to + a * EACH + v, left[a] * L::load(right + v));
    }

    template <bool WITH_MOMENTS>
    INLINE void prepare(const double *record, int i, Batch &batch) {
        double one[D][WIDTH], two[WIDTH * WIDTH], three[WIDTH * WIDTH * WIDTH];
        for (int k = 0; k < D; k++) stencil(record[k], D == 1 ? batch.weights[i] : one[k]);
        double *weights = batch.weights[i];
        if constexpr (D >= 2) tensor<WIDTH, WIDTH, WIDTH>(one[0], one[1], D == 2 ? weights : two);
        if constexpr (D >= 3) tensor<WIDTH * WIDTH, WIDTH, WIDTH>(two, one[2], D == 3 ? weights : three);
        if constexpr (D >= 4) tensor<WIDTH * WIDTH * WIDTH, WIDTH, WIDTH>(three, one[3], weights);
        if (!WITH_MOMENTS) return;
        powers(record[D - 1], batch.inner[i]);
        double *outer = batch.outer[i];
        if constexpr (D == 1) outer[0] = 1;
        if constexpr (D == 2) powers(record[0], outer);
        if constexpr (D >= 3) {
            double first[INNER], second[INNER], third[INNER], both[POWERS * POWERS + INNER];
            powers(record[0], first);
            powers(record[1], second);
            tensor<POWERS, POWERS, INNER>(first, second, D == 3 ? outer : both);
            if constexpr (D == 4) {
                powers(record[2], third);
                tensor<POWERS * POWERS, POWERS, INNER>(both, third, outer);
            }
        }
    }

    // sums[q][lane] += outer[i][q] * inner[i][lane]
    template <int COUNT>
    INLINE void add_outer(const Batch &batch, int rows, int first, double *sums) {
        constexpr int N = least(NATIVE, INNER);
        typedef Lanes<N> L;
        constexpr int VECTORS = INNER / N;
        typename L::Vector total[COUNT][VECTORS];
#pragma GCC unroll 25
        for (int q = 0; q < COUNT; q++)
            for (int v = 0; v < VECTORS; v++) total[q][v] = L::load(sums + (first + q) * INNER + v * N);
        for (int i = 0; i < rows; i++) {
            typename L::Vector inner[VECTORS];
            for (int v = 0; v < VECTORS; v++) inner[v] = L::load(batch.inner[i] + v * N);
            const double *outer = batch.outer[i] + first;
#pragma GCC unroll 25
            for (int q = 0; q < COUNT; q++) {
                const typename L::Vector factor = L::all(outer[q]);
                for (int v = 0; v < VECTORS; v++) total[q][v] += factor * inner[v];
            }
        }
#pragma GCC unroll 25
        for (int q = 0; q < COUNT; q++)
            for (int v = 0; v < VECTORS; v++) L::store(sums + (first + q) * INNER + v * N, total[q][v]);
    }

    INLINE void add_moments(const Batch &batch, int rows, double *sums) {
        constexpr int GROUP = least(OUTER, REGISTERS / (INNER / least(NATIVE, INNER)));
        constexpr int REST = OUTER % GROUP;
        int q = 0;
        for (; q + GROUP <= OUTER; q += GROUP) add_outer<GROUP>(batch, rows, q, sums);
        if (REST) add_outer<REST ? REST : 1>(batch, rows, q, sums);
    }

    // sums[node] += value[i] * weights[i][node], one column
    INLINE void add_column(const Batch &batch, int rows, const double *value, double *sums) {
        constexpr int N = least(NATIVE, NODES);
        typedef Lanes<N> L;
        constexpr int GROUP = least(NODES / N, 8);
        for (int first = 0; first < NODES; first += GROUP * N) {
            typename L::Vector total[GROUP];
#pragma GCC unroll 8
            for (int g = 0; g < GROUP; g++) total[g] = L::load(sums + first + g * N);
            for (int i = 0; i < rows; i++) {
                const typename L::Vector factor = L::all(value[i]);
#pragma GCC unroll 8
                for (int g = 0; g < GROUP; g++) total[g] += factor * L::load(batch.weights[i] + first + g * N);
            }
#pragma GCC unroll 8
            for (int g = 0; g < GROUP; g++) L::store(sums + first + g * N, total[g]);
        }
    }

    template <bool WITH_MOMENTS>
    static void add_rows(const GridShape &grid, const Rows &rows, long count, long cell,
                         double *moments, double *columns) {
        constexpr int TOGETHER = 32;  // columns that are summed at the same time
        alignas(64) Batch batch;
        alignas(64) double values[TOGETHER][BATCH], sums[TOGETHER][NODES];
        const int n_columns = rows.targets + rows.probes;
        for (int first = 0; first == 0 || first < n_columns; first += TOGETHER) {
            const int together = least(TOGETHER, n_columns - first);
            std::memset(sums, 0, sizeof(double) * NODES * together);
            for (long start = 0; start < count; start += BATCH) {
                const int n = static_cast<int>(count - start < BATCH ? count - start : BATCH);
                for (int i = 0; i < n; i++) {
                    const double *record = rows.records + (start + i) * rows.stride;
                    prepare<WITH_MOMENTS>(record, i, batch);
                    gather(rows, record, first, together, i, values);
                }
                if (WITH_MOMENTS && first == 0) add_moments(batch, n, moments);
                for (int c = 0; c < together; c++) add_column(batch, n, values[c], sums[c]);
            }
            const long node = first_node(grid, cell);
            for (int c = 0; c < together; c++) add_to_nodes(grid, sums[c], columns + (first + c) * grid.n_nodes + node);
        }
    }

    // Targets are in the record. Probes are signs made from its hash, 64 from each word.
    INLINE void gather(const Rows &rows, const double *record, int first, int together, int i, double (*values)[BATCH]) {
        int c = 0;
        for (; c < together && first + c < rows.targets; c++) values[c][i] = record[D + first + c];
        if (c == together) return;
        std::uint64_t hash, word = 0;
        std::memcpy(&hash, record + D + rows.targets, 8);
        int held = -1;
        for (; c < together; c++) {
            const int probe = first + c - rows.targets;
            if (probe / 64 != held) {
                held = probe / 64;
                word = random_bits(hash + static_cast<std::uint64_t>(held)) >> (probe % 64);
            }
            values[c][i] = static_cast<double>(1 - 2 * static_cast<int>(word & 1));
            word >>= 1;
        }
    }

    INLINE long first_node(const GridShape &grid, long cell) {
        long node = 0;
        for (int k = 0; k < D; k++) node += cell / grid.cell_strides[k] % grid.cells[k] * grid.strides[k];
        return node;
    }

    INLINE void add_to_nodes(const GridShape &grid, const double *sums, double *to) {
        for (int a = 0; a < NODES / WIDTH; a++) {
            long node = 0;
            for (int k = D - 2, rest = a; k >= 0; k--, rest /= WIDTH) node += rest % WIDTH * grid.strides[k];
            for (int b = 0; b < WIDTH; b++) to[node + b] += sums[a * WIDTH + b];
        }
    }

    static void add_cell(const GridShape &grid, const Rows &rows, long count, long cell,
                         double *moments, double *columns) {
        if (moments)
            add_rows<true>(grid, rows, count, cell, moments, columns);
        else
            add_rows<false>(grid, rows, count, cell, moments, columns);
    }

    // Moments to entries of W'W -----------------------------------------------------------------------------------------

    static constexpr int PAIRS = WIDTH * (WIDTH + 1) / 2;

    // Transform one input of the tensor: from [BEFORE][POWERS, padded][AFTER] to [BEFORE][PAIRS][AFTER].
    template <int BEFORE, int PADDED, int AFTER>
    INLINE void transform(const double *products, const double *from, double *to) {
        constexpr int N = AFTER % NATIVE == 0 ? NATIVE : AFTER % 4 == 0 && NATIVE >= 4 ? 4 : AFTER % 2 == 0 ? 2 : 1;
        for (int a = 0; a < BEFORE; a++, from += PADDED * AFTER)
            for (int pair = 0; pair < PAIRS; pair++, to += AFTER) {
                const double *coefficients = products + pair * POWERS;
                if constexpr (N == 1) {
                    for (int c = 0; c < AFTER; c++) {
                        double sum = 0;
                        for (int p = 0; p < POWERS; p++) sum += coefficients[p] * from[p * AFTER + c];
                        to[c] = sum;
                    }
                } else {
                    typedef Lanes<N> L;
                    for (int c = 0; c < AFTER; c += N) {
                        typename L::Vector sum = {};
                        for (int p = 0; p < POWERS; p++) sum += coefficients[p] * L::load(from + p * AFTER + c);
                        L::store(to + c, sum);
                    }
                }
            }
    }

    // Transform all inputs, beginning with the last, and return where the result is.
    template <int LEFT>
    INLINE const double *transform_all(const double *products, const double *from, double *to, double *other) {
        if constexpr (LEFT == 0) {
            return from;
        } else {
            transform<power(POWERS, LEFT - 1), LEFT == D ? INNER : POWERS, power(PAIRS, D - LEFT)>(products, from, to);
            return transform_all<LEFT - 1>(products, to, other, to);
        }
    }

    static void expand(const GridShape &grid, const double *moments, long first, long last, const double *products,
                       long n_entries, const std::int64_t *target, const std::int32_t *source, double *values) {
        constexpr int LARGEST = power(PAIRS > POWERS ? PAIRS : POWERS, D);
        alignas(64) static thread_local double one[LARGEST], two[LARGEST];
        for (long cell = first; cell < last; cell++) {
            const double *from = moments + cell * MOMENTS;
            if (from[0] == 0) continue;  // the cell has no rows
            from = transform_all<D>(products, from, one, two);
            double *at = values + first_node(grid, cell);
            for (long e = 0; e < n_entries; e++) at[target[e]] += from[source[e]];
        }
    }

};

// W'W times a vector ----------------------------------------------------------------------------------------------------

void product(const Packed &gram, const double *v, long first, long last, double *out) {
    typedef Simd<double> S;
    constexpr int PARTS = GROUP / S::lanes;
    for (long g = first; g < last; g++) {
        const long i = g * GROUP;
        const bool inside = i + GROUP <= gram.n_nodes;
        double *own = out + (g - first) * GROUP;
        S::Vector mine[PARTS] = {}, sum[PARTS] = {};
        for (int u = 0; u < PARTS && inside; u++) mine[u] = S::load(v + i + u * S::lanes);
        for (long p = gram.starts[g]; p < gram.starts[g + 1]; p++) {
            const long step = gram.steps[gram.which[p]];
            const double *entries = gram.entries + p * GROUP;
            // Entries whose other node would lie beyond the grid are zero, but its value cannot be read.
            if (i + GROUP + step > gram.n_nodes) {
                for (long j = 0; j < GROUP && i + j + step < gram.n_nodes; j++) {
                    own[j] += entries[j] * v[i + j + step];
                    if (step) own[j + step] += entries[j] * v[i + j];
                }
                continue;
            }
            for (int u = 0; u < PARTS; u++) {
                const S::Vector entry = S::load(entries + u * S::lanes);
                sum[u] += entry * S::load(v + i + step + u * S::lanes);
                double *to = own + step + u * S::lanes;
                if (step) S::store(to, S::load(to) + entry * mine[u]);
            }
        }
        for (int u = 0; u < PARTS && inside; u++) {
            double *to = own + u * S::lanes;
            S::store(to, S::load(to) + sum[u]);
        }
    }
}

// The pass that a grid needs ------------------------------------------------------------------------------------------------

#define GIGAGP_DISPATCH(call)                                \
    switch (grid.inputs * 10 + grid.width) {                 \
        case 14: return Pass<1, 4>::call;                    \
        case 24: return Pass<2, 4>::call;                    \
        case 34: return Pass<3, 4>::call;                    \
        case 44: return Pass<4, 4>::call;                    \
        case 12: return Pass<1, 2>::call;                    \
        case 22: return Pass<2, 2>::call;                    \
        case 32: return Pass<3, 2>::call;                    \
        default: return Pass<4, 2>::call;                    \
    }

long moments(const GridShape &grid) { GIGAGP_DISPATCH(moments(grid)) }

void locate(const GridShape &grid, const double *X, const double *Y, int targets, int probes, std::uint64_t seed, long n,
            std::uint32_t *cells, double *records) {
    GIGAGP_DISPATCH(locate(grid, X, Y, targets, probes, seed, n, cells, records))
}

void add_cell(const GridShape &grid, const Rows &rows, long count, long cell, double *moments,
              double *columns) {
    GIGAGP_DISPATCH(add_cell(grid, rows, count, cell, moments, columns))
}

void expand(const GridShape &grid, const double *moments, long first, long last, const double *products, long n_entries,
            const std::int64_t *target, const std::int32_t *source, double *values) {
    GIGAGP_DISPATCH(expand(grid, moments, first, last, products, n_entries, target, source, values))
}

}  // namespace

const GridKernels &GIGAGP_VARIANT_NAMED(grid_kernels)() {
    static const GridKernels kernels = {GIGAGP_VARIANT_WORDS, moments, locate, hash, add_cell, expand, product};
    return kernels;
}

}  // namespace gigagp
