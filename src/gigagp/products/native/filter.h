// Kalman filter and smoother of one observation at a time; gigagp.products.filtering has the same loops in NumPy, and says
// what the arrays are.
#pragma once

#include <cstdint>

namespace gigagp {

// A state of q numbers, whose transitions have blocks of these sizes on their diagonals, `entries` numbers in all.
struct FilterBlocks {
    const int *sizes;
    int count, q, entries;
};

struct FilterSteps {
    long n;
    const double *transition, *spread, *seen, *noise, *values;  // (n, B), (n, B), (n, q), (n), (n, c)
    int columns;
};

struct FilterFound {
    double *errors, *variances, *gains, *means, *covariances;  // the last two may be null
};

// What the smoother returns. `pulls` and `informations` may be null, and so may the derivatives.
struct FilterSmoothed {
    double *solutions, *precisions, *pulls, *informations, *by_transition, *by_spread, *by_seen;
};

struct FilterKernels {
    const char *name;
    void (*forward)(const FilterBlocks &, const FilterSteps &, double *mean, double *covariance, const FilterFound &);
    // `means` and `covariances` are those before the first row and after each row, for derivatives
    void (*backward)(const FilterBlocks &, const FilterSteps &, const FilterFound &, double *pull, double *information,
                     const double *means, const double *covariances, const FilterSmoothed &);
    void (*accumulate)(const FilterBlocks &, const FilterSteps &, double *state, double *out);
    void (*transfer)(const FilterBlocks &, const FilterSteps &, const double *gains, const bool *begins,
                     const std::int64_t *ends, double *state, double *out);
};

const FilterKernels &avx512_filter_kernels();
const FilterKernels &avx2_filter_kernels();
const FilterKernels &baseline_filter_kernels();

}  // namespace gigagp
