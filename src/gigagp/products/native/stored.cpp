// Products of a stored matrix with a few columns, for one instruction set; see variant.h.
//
// A block of rows times one panel of columns stays in registers. Each entry of the matrix is read once and used for all
// columns, so that with a few dozen columns the speed of memory is nearly reached.

#include "variant.h"

#include "stored.h"

namespace gigagp {
namespace {

#include "simd.h"

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int REGISTERS = 24;  // for sums; the others hold columns and an entry
#else
constexpr int REGISTERS = 12;
#endif
constexpr int BLOCK = 512;  // entries of a row that are summed before they are added to the result
constexpr int most(int vectors) { return REGISTERS / vectors < 16 ? REGISTERS / vectors : 16; }

template <class T, int VECTORS, int ROWS>
INLINE void tile(const T *matrix, long stride, int depth, const T *columns, T *out) {
    typedef Simd<T> S;
    constexpr int WIDTH = VECTORS * S::lanes;
    typename S::Vector sums[ROWS][VECTORS] = {};
    for (int k = 0; k < depth; k++) {
        typename S::Vector values[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) values[v] = S::load(columns + k * WIDTH + v * S::lanes);
#pragma GCC unroll 16
        for (int i = 0; i < ROWS; i++) {
            const typename S::Vector entry = S::all(matrix[i * stride + k]);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sums[i][v] += entry * values[v];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            T *to = out + i * WIDTH + v * S::lanes;
            S::store(to, S::load(to) + sums[i][v]);
        }
}

template <class T, int VECTORS>
void panel(const T *matrix, long stride, long rows, long depth, const T *columns, T *out) {
    constexpr int ROWS = most(VECTORS), WIDTH = VECTORS * Simd<T>::lanes;
    for (long k = 0; k < depth; k += BLOCK) {
        const int block = static_cast<int>(depth - k < BLOCK ? depth - k : BLOCK);
        long i = 0;
        for (; i + ROWS <= rows; i += ROWS)
            tile<T, VECTORS, ROWS>(matrix + i * stride + k, stride, block, columns + k * WIDTH, out + i * WIDTH);
        for (; i < rows; i++)
            tile<T, VECTORS, 1>(matrix + i * stride + k, stride, block, columns + k * WIDTH, out + i * WIDTH);
    }
}

template <class T>
void product(const T *matrix, long stride, long rows, long depth, const T *columns, int vectors, T *out) {
    static_assert(STORED_VECTORS == 3, "one case for each number of vectors");
    switch (vectors) {
        case 1: return panel<T, 1>(matrix, stride, rows, depth, columns, out);
        case 2: return panel<T, 2>(matrix, stride, rows, depth, columns, out);
        default: return panel<T, 3>(matrix, stride, rows, depth, columns, out);
    }
}

const StoredKernels TABLE = {GIGAGP_VARIANT_WORDS,
                             {Simd<float>::lanes, product<float>},
                             {Simd<double>::lanes, product<double>}};

}  // namespace

const StoredKernels &GIGAGP_VARIANT_NAMED(stored_kernels)() { return TABLE; }

}  // namespace gigagp
