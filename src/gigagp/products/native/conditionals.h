// Types that the module and the compiled passes of Vecchia factors share: plain structs, as in kernels.h.
//
// The Vecchia approximation (Vecchia 1988) writes the density of all rows as a product of conditionals, each given a few
// earlier rows only. One conditional is a problem with m + 1 points: the covariance of a row and its m neighbours, its
// Cholesky factor, and two triangular solves. One SIMD vector holds the same number of as many problems as it has lanes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace gigagp {

// A term as in kernels.h, on points that are not packed.
struct PoolTerm {
    int profile, inputs, all_inputs;
    double alpha;
    const double *left, *right;  // (pool, all_inputs)
};

struct ConditionalsWork {
    int n_terms, n_steps;
    const PoolTerm *terms;
    const Step<double> *steps;
    double factor;               // the kernel is `factor` times the value of the last step
    const double *noise;         // (pool,): added to the diagonal
    int rank;                    // columns that are subtracted from the covariance: k(x, z) - low(x)' low(z)
    const double *low;           // (pool, rank)
    const std::int64_t *targets; // (n,): rows of the pool
    int m;
    const std::int32_t *neighbours;  // (n, m): rows of the pool, -1 where there is none; the nearest first
    int columns;
    const double *values;        // (pool, columns): the targets, with their mean subtracted
    // Results for each of the n rows; the first and the last may be null.
    double *weights;             // (n, m): the regression on the neighbours
    double *variance;            // (n,): what the neighbours leave
    double *residual;            // (n, columns): the row's values minus the prediction from its neighbours
    // Directions dH of the derivatives: of each step that is a term or one `value`; of each term d/dalpha; of each of
    // all_inputs of each term `slope times (e - f)^2`, beyond `inputs` and for DOT `slope times e f`; of each column of
    // `diagonals` a diagonal matrix.
    int n_directions, n_diagonals;
    const double *diagonals;     // (pool, n_diagonals)
};

// Sums over rows. With directions: gradient[j] of the log likelihood, and its information, (n_directions)^2, the upper
// triangle by rows, for one column of values.
struct ConditionalsSums {
    double log_variance;
    double *gradient, *information;
    std::int64_t raised;  // rows whose variance was lost in rounding and was raised
};

// The sparse matrix I - B by rows (neighbours and weights of every row) and by columns.
struct SparseRows {
    long n;
    int m;
    const std::int32_t *neighbours;
    const double *weights;
};
struct SparseColumns {
    const std::int64_t *starts;   // (n + 1,)
    const std::int32_t *rows;     // rows that have the column's row among their neighbours
    const double *weights;
};

struct ConditionalsKernels {
    const char *name;
    int lanes;
    std::size_t (*scratch)(const ConditionalsWork &);  // in numbers
    void (*rows)(const ConditionalsWork &, long first, long last, ConditionalsSums &, double *scratch);
    // out[i] = v[i] - sum_j weights[i][j] v[neighbours[i][j]] for rows [first, last); `s` columns
    void (*residuals)(const SparseRows &, const double *v, long s, long first, long last, double *out);
    // out[i] = v[i] - sum over the rows r that i is a neighbour of, weight times v[r]
    void (*transposed)(const SparseColumns &, const double *v, long s, long first, long last, double *out);
    // The inverses, for columns [first, last), in place: rows in the given order, and in its reverse.
    void (*solve)(const SparseRows &, const std::int64_t *order, double *v, long s, long first, long last);
    void (*solve_transposed)(const SparseColumns &, long n, const std::int64_t *order, double *v, long s, long first,
                             long last);
};

const ConditionalsKernels &avx512_conditionals();
const ConditionalsKernels &avx2_conditionals();
const ConditionalsKernels &baseline_conditionals();

}  // namespace gigagp
