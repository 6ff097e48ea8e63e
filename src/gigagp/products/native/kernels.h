// Types that the scheduler and the tile kernels share. They are plain structs, so that the linker cannot put code
// compiled for one instruction set into the code for another.
#pragma once

#include <cstddef>

namespace gigagp {

// The codes of gigagp.kernels.fused.Profile and gigagp.products.program.Operation, in the same order. The module hands
// both tables to Python, where tests/products/test_codes.py compares them. A new profile is a name in this list and a
// formula in profiles.h.
#define GIGAGP_PROFILES(X) X(RBF) X(MATERN_12) X(MATERN_32) X(MATERN_52) X(RATIONAL_QUADRATIC) X(DOT)
#define GIGAGP_OPERATIONS(X) X(TERM) X(ADD) X(MULTIPLY) X(ONE)
#define GIGAGP_LISTED(name) name,
enum Profile { GIGAGP_PROFILES(GIGAGP_LISTED) };
enum Operation { GIGAGP_OPERATIONS(GIGAGP_LISTED) };
#undef GIGAGP_LISTED

// Larger squared distances are clipped: every profile is zero there, and infinity times zero would be NaN.
constexpr double FARTHEST = 1e30;
// Smaller ones are raised: their root is far below the rounding error of 1, and division by it stays finite.
template <class T>
constexpr T NEAREST = T(sizeof(T) == sizeof(float) ? 1e-30 : 1e-200);

// A term's value between two points is a profile of their squared distance, or for DOT their inner product.
template <class T>
struct Term {
    int profile;
    int inputs;         // coordinates of the distance; they come first in a panel
    int all_inputs;     // the same and those that only gradients read
    int direct;         // whether distances are sums of squared differences: slower, exact for near points far out
    T alpha;            // of RATIONAL_QUADRATIC
    T left_scale;       // packed left points are the points times this number
    const T *left;      // panels of `rows` points, [panel][input][row]
    const T *left_squares;
    const T *right;     // panels of `columns` points, [panel][input][column]
    const T *right_squares;
};

// Value k of a kernel tree: a term, `a_factor * value[a] + b_factor * value[b]`, `value[a] * value[b]`, or one.
// The last value is the kernel, up to a factor that the caller knows. A later step uses every other value exactly once.
template <class T>
struct Step {
    int operation;
    int a, b;  // TERM: a is the term
    T a_factor, b_factor;
};

template <class T>
struct Program {
    int n_terms, n_steps;
    const Term<T> *terms;
    const Step<T> *steps;
};

// Vectors to multiply with: most columns as `wide` SIMD vectors a row, the few left over as single columns.
template <class T>
struct Vectors {
    int wide, single;
    const T *wide_values;    // [row][wide * lanes]
    const T *single_values;  // [column][padded rows]
    long stride;             // from one single column to the next
};

struct Sums {
    int wide, single;
    double *wide_values, *single_values;
    long stride;
};

template <class T>
struct ProductWork {
    Program<T> program;
    long tile_columns;
    Vectors<T> right;  // multiplied with rows of the kernel matrix: one row for each right point
    Sums rows;
    // for symmetric products, where a tile is used twice
    Vectors<T> left;
    Sums columns;
};

template <class T>
struct DenseWork {
    Program<T> program;
    long tile_columns, n_rows, n_columns;
    T factor;
    T *out;          // or null ...
    float *rounded;  // ... where entries are computed in float64 and kept in float32
};

template <class T>
struct GradientWork {
    Program<T> program;
    long tile_columns, n_rows, n_columns;
    // the weights: low rank, packed like the points of a DOT term ...
    const Term<T> *weights;
    // ... or dense
    const T *dense;
    long dense_stride;
    // sums by row and by column, one stretch for each term; tasks own ranges of them
    double *row_sums, *column_sums;
    long row_stride, column_stride;
};

// The sums of one task of a gradient: sum(A dK/dvalue value) for every step, sum(A dK/dalpha) for every term, and
// sum(S e f) for each of all_inputs of every term, where S are the weights of squared distances.
struct GradientSums {
    double *values, *alphas, *cross;
};

// Rows and columns of a task: multiples of the panel sizes, at most the padded number of points.
struct Block {
    long first_row, last_row, first_column, last_column;
};

template <class T>
struct Kernels {
    int lanes, rows, columns;  // SIMD lanes; points in a left and in a right panel
    long tile_rows, tile_columns;
    std::size_t (*product_scratch)(const ProductWork<T> &);
    void (*product)(const ProductWork<T> &, Block, int mirrored, T *scratch);
    std::size_t (*dense_scratch)(const DenseWork<T> &);
    void (*dense)(const DenseWork<T> &, Block, int mirrored, T *scratch);
    std::size_t (*gradient_scratch)(const GradientWork<T> &);
    void (*gradient)(const GradientWork<T> &, Block, int mirrored, GradientSums, T *scratch);
};

struct InstructionSet {
    const char *name;
    Kernels<float> single_precision;
    Kernels<double> double_precision;
};

const InstructionSet &avx512_kernels();
const InstructionSet &avx2_kernels();
const InstructionSet &baseline_kernels();

}  // namespace gigagp
