// The tree that the neighbour search walks, shared by the module that builds it and the compiled searches.
//
// A k-d tree whose leaves have LEAF points each, apart from the last one. A node with L leaves has L / 2 of them on its
// left side. So positions follow from counts: the left child of node i is i + 1, the right one i + 2 (L / 2).
#pragma once

#include <cstdint>

namespace gigagp {

constexpr int LEAF = 64;   // points in a leaf: 32 is a little better in two inputs, 256 in twenty
constexpr int PANEL = 8;   // points that are stored together, input by input

struct NeighbourTree {
    int inputs;               // d
    int corner;               // numbers in a corner of a box: d, padded with zeros for vectors
    long n, leaves;
    const double *panels;     // [leaf][panel][input][PANEL]
    const std::int32_t *ids;  // [leaf][LEAF]: indices of the points, ascending; beyond the last one the largest integer
    const double *boxes;      // [node][lower, upper][corner]
    const std::int32_t *least;  // [node]: the smallest index below it
};

struct NeighbourKernels {
    const char *name;
    // The `m` nearest points of queries order[first], ..., order[last - 1] among those with an index below the query's
    // limit, by distance and then by index: out[query][m], -1 where there are fewer.
    void (*search)(const NeighbourTree &, const double *queries, const std::int32_t *limits, const std::int32_t *order,
                   long first, long last, int m, std::int32_t *out);
};

const NeighbourKernels &avx512_neighbour_kernels();
const NeighbourKernels &avx2_neighbour_kernels();
const NeighbourKernels &baseline_neighbour_kernels();

}  // namespace gigagp
