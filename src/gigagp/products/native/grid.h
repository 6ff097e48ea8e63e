// Types that the grid module and the compiled passes of one instruction set share: plain structs, as in kernels.h.
//
// Rows are sorted by cell, a batch at a time. The rows of a cell add sums of powers of their offsets ("moments"), which
// determine W'W (gigagp/operators/grid/statistics/moments.py), and weighted sums of their columns, which are added to the nodes at once.
#pragma once

#include <cstdint>

namespace gigagp {

// These constants are those of gigagp/grids; tests/products/test_codes.py compares them.
constexpr int MAX_INPUTS = 4;
constexpr double EDGE = 1e-6;
constexpr int GROUP = 16;  // nodes whose entries for one offset are stored together

struct GridShape {
    int inputs;                        // d
    int width, before;                 // nodes of a stencil, and how many of them lie below the start of the cell
    int axis;                          // the first axis in the numbering of cells
    long shape[MAX_INPUTS], strides[MAX_INPUTS];       // of nodes
    long cells[MAX_INPUTS], cell_strides[MAX_INPUTS];  // of cells in which points are accepted
    double lower[MAX_INPUTS], spacing[MAX_INPUTS];
    long n_nodes, n_cells;
};

// Records of rows: offsets in the cell, targets, and the bits of the row's hash if there are probes.
struct Rows {
    const double *records;
    int targets, probes;
    int stride;  // numbers in a record
};

// W'W by groups of nodes: entries[p][j] belongs to node `GROUP g + j` and the node `steps[which[p]]` further on, for
// starts[g] <= p < starts[g + 1]. A product reads one stream of memory; a row for each offset would be hundreds.
struct Packed {
    const double *entries;
    const std::int64_t *starts;
    const std::int32_t *which;
    const std::int64_t *steps;
    long n_nodes;
};

struct GridKernels {
    const char *name;
    // How many numbers the moments of a cell are.
    long (*moments)(const GridShape &);
    // Cell and record of rows [0, n).
    void (*locate)(const GridShape &, const double *X, const double *Y, int targets, int probes, std::uint64_t seed, long n,
                   std::uint32_t *cells, double *records);
    // 64 random bits for each row, which depend on its numbers alone.
    void (*hash)(const double *X, int inputs, const double *Y, int targets, std::uint64_t seed, long n, std::uint64_t *out);
    // Add the first `count` rows, all of one cell, to its moments (unless null) and to `columns`, [column][node].
    void (*add_cell)(const GridShape &, const Rows &, long count, long cell, double *moments, double *columns);
    // Turn the moments of cells [first, last) into entries of W'W: values[target[e] + node] += product[source[e]].
    void (*expand)(const GridShape &, const double *moments, long first, long last, const double *products, long n_entries,
                   const std::int64_t *target, const std::int32_t *source, double *values);
    // W'W times one column for groups [first, last) of GROUP nodes: out[i] += sum_k g[k][i] v[i + step_k] and
    // out[i + step_k] += g[k][i] v[i] over the entries of each group. Entries that are zero for a whole group are not
    // stored. `out` starts at the first node of group `first`.
    void (*product)(const Packed &, const double *v, long first, long last, double *out);
};

const GridKernels &avx512_grid_kernels();
const GridKernels &avx2_grid_kernels();
const GridKernels &baseline_grid_kernels();

}  // namespace gigagp
