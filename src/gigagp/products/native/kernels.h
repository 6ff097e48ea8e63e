// What the scheduler and the tile kernels agree on: plain structs, so that nothing compiled for one instruction set can
// be linked into the code for another.
#pragma once

#include <cstddef>

namespace gigagp {

// The numbers are those of gigagp/products/program.py.
enum Profile { RBF = 0, MATERN_12 = 1, MATERN_32 = 2, MATERN_52 = 3, RATIONAL_QUADRATIC = 4, DOT = 5 };
enum Operation { TERM = 0, ADD = 1, MULTIPLY = 2, ONE = 3 };

// A term's value between two points is a profile of their squared distance (DOT: of their inner product).
template <class T>
struct Term {
    int profile;
    int inputs;         // of the distance; they come first in a panel
    int all_inputs;     // with those that only gradients read
    int direct;         // distances by differences: slower, exact for near points far from the origin
    T alpha;            // of RATIONAL_QUADRATIC
    T left_scale;       // packed left points are the points times this
    const T *left;      // panels of `rows` points, [panel][input][row]
    const T *left_squares;
    const T *right;     // panels of `columns` points, [panel][input][column]
    const T *right_squares;
};

// Value k of a kernel tree: a term, `a_factor * value[a] + b_factor * value[b]`, `value[a] * value[b]`, or one.
// The last value is the kernel (up to a factor that the caller knows). Every other value is used exactly once, later.
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

// Vectors to multiply with: `wide` SIMD vectors a row for the bulk, and a few single columns each by itself.
template <class T>
struct Vectors {
    int wide, single;
    const T *wide_values;    // [row][wide * lanes]
    const T *single_values;  // [column][padded rows]
    long stride;             // of single columns
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
    // for symmetric products, where a tile serves twice
    Vectors<T> left;
    Sums columns;
};

template <class T>
struct DenseWork {
    Program<T> program;
    long tile_columns, n_rows, n_columns;
    T factor;
    T *out;
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
    // results that tasks own by rows or by columns, one stretch a term
    double *row_sums, *column_sums;
    long row_stride, column_stride;
};

// What one task of a gradient found: for every step sum(A dK/dvalue value), for every term sum(A dK/dalpha), and for
// every input of every term (all of them) sum(S e f), S the weights of squared distances.
struct GradientSums {
    double *values, *alphas, *cross;
};

// Rows and columns of a task; multiples of the panel sizes, up to the padded ends.
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

#ifdef GIGAGP_X86_VARIANTS
const InstructionSet &avx512_kernels();
const InstructionSet &avx2_kernels();
#endif
const InstructionSet &baseline_kernels();

}  // namespace gigagp
